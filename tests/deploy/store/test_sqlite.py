"""The durable store: nothing acknowledged is lost, nothing damaged is believed, and every refusal says what to do."""

from __future__ import annotations

import dataclasses
import os
import random
import resource
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confide.base.errors import InputError, RunError
from confide.deploy.store import sqlite, sqlite_file
from confide.deploy.store.books import TO_ALL, Attempt, Balance, Books, Changes, Flow, Outcome, Pace, Signed, Told
from confide.deploy.store.sqlite import SqliteStore, StoreError
from confide.deploy.store.sqlite_file import LostError
from confide.deploy.store.store import parts
from confide.privacy import ledger
from exploring import more

Make = Callable[..., SqliteStore]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def make(histories: SimpleNamespace, path: Path) -> Make:
    def create(where: Path = path, M: int = 3) -> SqliteStore:
        text = histories.make_plan(M).text
        books = histories.make_books(M)
        return SqliteStore.create(where, plan=text, server=1, dataset=histories.DATASET, books=books, run="a run")

    return create


@pytest.fixture(scope="module")
def lived_bytes(histories: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Books]:
    """A closed store in which something stands in every table, and its books."""
    path, h = tmp_path_factory.mktemp("lived") / "store.db", histories
    text = h.make_plan().text
    with SqliteStore.create(path, plan=text, server=1, dataset=h.DATASET, books=h.make_books()) as store:
        books = live(h, store, 60)
    return path.read_bytes(), books


@pytest.fixture
def lived(lived_bytes: tuple[bytes, Books], path: Path) -> Books:
    path.write_bytes(lived_bytes[0])
    return lived_bytes[1]


def live(h: SimpleNamespace, store: SqliteStore, steps: int, seed: int = 1) -> Books:
    books, r = store.load(), random.Random(seed)  # noqa: S311
    kinds = (h.publish, h.publish, h.skip, h.sync, h.sync, h.small)
    for _ in range(steps):
        c = h.make_changes(books, store.plan, r, kinds)
        store.commit(c)
        books.apply(c)
    last = Changes(
        epoch=b"epoch",
        transcript=b"t" * 5000,
        release=b"release",
        attempt=Attempt(9, 1, (3, 1)),
        rejoined=2,
        relays={(1, 2): 0},
        released={1: Outcome(4, store.start)},
        receipts={(1, 2, 0, 0): Told(b"s", b"r", b"c")},
        signed={(2, 7, TO_ALL): Signed(b"s" * 32, b"r" * 64)},
        proofs={2: b"proof"},
        pace=Pace(7, 1.8e9 + 0.1),
        overtaken=60,
    )
    for c in (h.publish(books, store.plan, r), last):
        store.commit(c)
        books.apply(c)
    return books


# --- whose store it is ---


def test_identity_survives(histories: SimpleNamespace, make: Make, path: Path) -> None:
    make().close()
    with SqliteStore.open(path, histories.make_plan(), 1) as store:
        assert store.plan == histories.make_plan()
        assert (store.server, store.dataset, store.run) == (1, histories.DATASET, "a run")
        assert store.start.tolist() == histories.make_books().contribution.tolist()
        assert repr(store) == f"SqliteStore({str(path)!r}, server=1)"


def test_another_plan_is_refused_by_field(histories: SimpleNamespace, make: Make, path: Path) -> None:
    make().close()
    with pytest.raises(InputError, match=r"another plan: algorithm\.step: 0\.1 != 0\.2; rounds: 100 != 7; use"):
        SqliteStore.open(path, histories.make_plan(rounds=7, step=0.2))
    with pytest.raises(InputError, match="is of server 1, not 2"):
        SqliteStore.open(path, histories.make_plan(), 2)
    SqliteStore.open(path, histories.make_plan(), 1).close()  # a refusal leaves no lock


def test_create_refuses_what_does_not_fit_the_plan(histories: SimpleNamespace, path: Path) -> None:
    h = histories
    good = {"plan": h.make_plan().text, "server": 1, "dataset": h.DATASET, "books": h.make_books()}
    for wrong in (
        {"server": 4},
        {"server": 0},  # has other neighbours
        {"dataset": "mine"},
        {"books": h.make_books(4)},
        {"plan": "{}"},
    ):
        with pytest.raises(InputError):
            SqliteStore.create(path, **good | wrong)
    assert list(path.parent.iterdir()) == []


def test_an_existing_file_is_never_overwritten(make: Make, path: Path) -> None:
    for name in ("store.db", "store.db-wal", "store.db-shm", "store.db-journal"):
        other = path.with_name(name)
        other.write_bytes(b"mine")
        with pytest.raises(InputError, match="never overwritten"):
            make()
        assert other.read_bytes() == b"mine"
        other.unlink()
    path.symlink_to(path.with_name("nowhere"))
    with pytest.raises(InputError, match="never overwritten"):
        make()


def test_two_that_create_at_once_do_not_overwrite(make: Make, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_state = sqlite._put_state

    def overtaken(*arguments: object) -> None:
        path.write_bytes(b"theirs")
        put_state(*arguments)

    monkeypatch.setattr(sqlite, "_put_state", overtaken)
    with pytest.raises(InputError, match="never overwritten"):
        make()
    assert [p.read_bytes() for p in path.parent.iterdir()] == [b"theirs"]


def test_a_crash_while_creating_leaves_no_store(make: Make, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    for module, name, left in ((sqlite, "_put_state", []), (sqlite_file, "sync_folder", ["store.db"])):
        with monkeypatch.context() as m:
            m.setattr(module, name, crash)
            with pytest.raises(KeyboardInterrupt):
                make()
        assert [p.name for p in path.parent.iterdir()] == left
    SqliteStore.open(path).close()


def test_only_the_owner_reads_the_files(histories: SimpleNamespace, make: Make, path: Path) -> None:
    mask = os.umask(0)
    try:
        with make() as store:
            live(histories, store, 5)
            files = sorted(path.parent.iterdir())
            assert [f.name for f in files] == ["store.db", "store.db-wal"]
            assert {stat.S_IMODE(f.stat().st_mode) for f in files} == {0o600}
    finally:
        os.umask(mask)
    assert [f.name for f in path.parent.iterdir()] == ["store.db"]


# --- one process ---


def test_a_second_store_is_refused_in_this_process_and_in_another(make: Make, path: Path) -> None:
    code = f"from confide.deploy.store.sqlite import SqliteStore; SqliteStore.open({str(path)!r})"
    with make() as store:
        for _ in range(2):  # the first refusal must not have undone the lock
            with pytest.raises(InputError, match=r"store\.db.*in use by another"):
                SqliteStore.open(path)
            other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
            assert "BusyError" in other.stderr
            assert "is in use by another process" in other.stderr
            foreign = sqlite3.connect(path, timeout=0)
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                foreign.execute("SELECT * FROM state")
            foreign.close()
        store.commit(Changes(epoch=b"x"))
    with SqliteStore.open(path) as store:
        assert store.load().epoch == b"x"


def test_a_closed_store_says_so(make: Make) -> None:
    store = make()
    store.close()
    store.close()
    for use in (store.load, store.entries, lambda: store.commit(Changes())):
        with pytest.raises(RunError, match="the store is closed"):
            use()


# --- files that are something else ---


def test_foreign_files_are_refused_and_left_as_they_are(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.db"
    db = sqlite3.connect(foreign)
    db.executescript("PRAGMA journal_mode = WAL; CREATE TABLE t (x); INSERT INTO t VALUES (1); PRAGMA user_version = 1")
    (tmp_path / "text").write_text("SQLite format 3, they said\n" * 100)
    (tmp_path / "empty").touch()
    before = {p: p.read_bytes() for p in tmp_path.iterdir()}
    for name in ("foreign.db", "text", "empty"):
        with pytest.raises(InputError, match="is not a store of confide; it was left as it is"):
            SqliteStore.open(tmp_path / name)
    assert {p: p.read_bytes() for p in tmp_path.iterdir()} == before
    db.close()
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "pipe"):
        with pytest.raises(InputError, match="is not a file"):
            SqliteStore.open(tmp_path / name)
    with pytest.raises(InputError, match="cannot be opened"):
        SqliteStore.open(tmp_path / "missing")
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("what", ["file", "folder", "unreadable"])
def test_without_permission_it_says_which(make: Make, path: Path, what: str, tmp_path: Path) -> None:
    make().close()
    modes = {"file": (0o444, 0o777), "folder": (0o666, 0o555), "unreadable": (0o000, 0o777)}[what]
    path.chmod(modes[0])
    tmp_path.chmod(modes[1])
    pid = os.fork()
    if pid == 0:  # permissions do not bind root
        code = 2
        try:
            if os.getuid() == 0:
                for folder in tmp_path.parents:
                    if folder.stat().st_mode & 0o011 != 0o011:
                        folder.chmod(folder.stat().st_mode | 0o011)
                os.setuid(65534)
            SqliteStore.open(path)
        except InputError as e:
            code = 0 if "permissions" in str(e) and str(path) in str(e) else 3
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    tmp_path.chmod(0o700)
    path.chmod(0o600)
    SqliteStore.open(path).close()


# --- versions ---


def test_newer_files_are_refused_and_left_as_they_are(lived: Books, path: Path) -> None:
    newer = sqlite_file.VERSION + 1
    changed(path, f"PRAGMA user_version = {newer}")
    before = path.read_bytes()
    with pytest.raises(InputError, match=rf"newer confide \(version {newer}; this one reads {newer - 1}\); use that"):
        SqliteStore.open(path)
    assert path.read_bytes() == before


def changed(path: Path, *statements: str) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        db.execute(statement)
    db.close()


# --- the ledger ---


def test_the_exported_ledger_is_one_that_the_ledger_reads(
    histories: SimpleNamespace, make: Make, tmp_path: Path
) -> None:
    with make() as store:
        header = ledger.Header(histories.DATASET, ledger.Promise.of(store.plan.privacy), "a run")
        assert store.head == header.hash
        for steps in (0, 30):
            live(histories, store, steps)
            store.export_ledger(tmp_path / "ledger.jsonl")
            book = ledger.read(tmp_path / "ledger.jsonl", head=store.head)
            assert book.head == store.head
            assert list(book.events) == [entry.event for entry in store.entries()]
            assert book.header == header


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE ledger SET kind = 'skip'",
        "DELETE FROM ledger",
        "REPLACE INTO ledger SELECT * FROM ledger WHERE n = 1",
        "INSERT INTO ledger SELECT n + 1000, line, hash, round, kind, offered, sha256 FROM ledger WHERE n = 1",
    ],
)
def test_the_ledger_only_grows(lived: Books, path: Path, statement: str) -> None:
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        changed(path, statement)


# --- what a commit writes and refuses ---


def test_every_field_of_the_books_is_stored(lived: Books) -> None:
    """So that a new one is not forgotten here: `lived` fills them all, and the histories compare them all."""
    empty = Books.fresh(lived.contribution, lived.neighbours)
    balances = {"balances", "status", "seen"}  # of the right edges, which is not empty
    for field in dataclasses.fields(Books):
        if field.name not in balances | {"contribution", "neighbours"}:
            assert getattr(lived, field.name) != getattr(empty, field.name), field.name


def test_a_commit_that_the_next_start_would_refuse_is_refused_now(
    histories: SimpleNamespace, make: Make, path: Path
) -> None:
    h = histories
    with make() as store:
        books = live(h, store, 8)
        plan, i, r = store.plan, books.decided, random.Random(0)  # noqa: S311
        now = h.plain(store.load())
        good = h.publish(books, plan, r)
        elsewhere = [entry._replace(event=ledger.Event(plan.hash, "skip", i + 1, 2)) for entry in good.entries]
        for wrong in (
            Changes(decided=i + 1),
            Changes(entries=good.entries),
            Changes(decided=i + 1, entries=good.entries),
            Changes(decided=i + 1, published=books.published, entries=good.entries),
            Changes(decided=i - 1),
            Changes(published=books.published + 1),
            Changes(decided=i + 2, entries=[h._entry(plan, "skip", i + 2)]),
            Changes(decided=i + 1, entries=[h._entry(plan, "skip", i + 2)]),
            Changes(decided=i + 1, entries=elsewhere),
            Changes(decided=i + 1, entries=[h._entry(h.make_plan(4), "skip", i + 1)]),
            Changes(contribution=np.zeros(4, np.int64)),
            Changes(balances={0: Balance(1, np.zeros(2, np.int64))}),
            Changes(balances={3: Balance(1, np.zeros(3, np.int64))}),
            Changes(seen={3: 1}),
            Changes(open={3: {1: Flow()}}),
            Changes(open={0: {i + 1: Flow()}}, out={(i + 1, TO_ALL): b"early"}),
            Changes(out={(i + 1, TO_ALL): b"closed"}),
            dataclasses.replace(good, open={0: {i + 1: Flow()}}, out={(i + 1, 0): b"a", (i + 1, 2): b"b"}),
            Changes(out=dict.fromkeys(books.out)),
            Changes(open={m: dict.fromkeys(flows) for m, flows in books.open.items()}),
        ):
            with pytest.raises(StoreError, match="nothing was written"):
                store.commit(wrong)
            assert h.plain(store.load()) == now
        store.commit(good)


def test_an_interrupt_after_the_commit_leaves_no_doubt(
    histories: SimpleNamespace, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def interrupted(db: sqlite3.Connection) -> Iterator[None]:
        with sqlite_file.transaction(db):
            yield
        raise KeyboardInterrupt

    with make() as store:
        with monkeypatch.context() as m:
            m.setattr(sqlite, "transaction", interrupted)
            with pytest.raises(KeyboardInterrupt):
                store.commit(Changes(decided=1, entries=[histories._entry(store.plan, "skip", 1)]))
        store.commit(Changes(decided=2, entries=[histories._entry(store.plan, "skip", 2)]))
        assert store.load().decided == 2


def test_before_the_commit_everything_is_written(make: Make) -> None:
    with make() as store:

        def at(where: str) -> None:
            assert where == "x.tx.commit"
            assert store._db.in_transaction
            assert store.load().epoch == b"new"

        store.commit(Changes(epoch=b"new"), at, "x")


def test_numbers_of_numpy_are_numbers(histories: SimpleNamespace, make: Make) -> None:
    with make() as store:
        k = np.int64(0)
        store.commit(Changes(seen={k: np.int64(4)}, balances={k: Balance(np.int64(1), np.ones(3, np.int64))}))
        books = store.load()
        assert books.seen[0] == 4
        assert type(books.balances[0].n) is int


# --- damage ---

TABLES = {
    "identity": "run = 'another'",
    "state": "decided = decided + 1",
    "contribution": "total = zeroblob(24)",
    "edges": "seen = seen + 1",
    "balances": "n = n + 1",
    "open": "applied = NOT applied",
    "out": "message = x'00'",
    "attempt": "number = number + 1",
    "transcript": "words = x'00'",
    "epoch": "words = x'00'",
    "release": "record = x'00'",
    "relays": "epoch = epoch + 1",
    "released": "servers = servers + 1",
    "receipts": "signature = x'00'",
    "signed": "signature = x'00'",
    "proofs": "words = x'00'",
    "pace": "time = time + 1",
    "overtaken": "round = round - 1",
    "ledger": "offered = '[]'",
}


def test_every_table_is_known() -> None:
    assert TABLES.keys() == {*sqlite._KEYS, "ledger"}


def without_triggers(path: Path, *statements: str) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    triggers = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for statement in [
        *[f"DROP TRIGGER {name}" for name, _ in triggers],
        *statements,
        *[sql for _, sql in triggers],
    ]:
        db.execute(statement)
    db.close()


@pytest.mark.parametrize("table", TABLES)
def test_a_row_that_was_changed_removed_or_added_is_named(lived: Books, path: Path, table: str) -> None:
    original = path.read_bytes()
    row = f"rowid = (SELECT max(rowid) FROM {table})"  # noqa: S608
    for statement, match in (
        (f"UPDATE {table} SET {TABLES[table]} WHERE {row}", rf"{table}, row .*was changed"),  # noqa: S608
        (f"DELETE FROM {table} WHERE {row}", r"state, row 0|open: |(edges|balances): has not|is missing"),  # noqa: S608
    ):
        path.write_bytes(original)
        without_triggers(path, statement)
        with pytest.raises(StoreError, match=match) as refused:
            SqliteStore.open(path)
        assert "rejoin with a new store" in str(refused.value)
        assert refused.value.table
    path.write_bytes(original)
    SqliteStore.open(path).close()


def test_an_older_row_is_found_though_its_sha256_holds(
    histories: SimpleNamespace, make: Make, path: Path, tmp_path: Path
) -> None:
    with make() as store:
        live(histories, store, 20)
    shutil.copy(path, tmp_path / "older.db")
    with SqliteStore.open(path) as store:
        seen = store.load().seen[0]
        store.commit(Changes(seen={0: seen + 1}))
    changed(path, f"ATTACH '{tmp_path}/older.db' AS older", "REPLACE INTO edges SELECT * FROM older.edges WHERE edge=0")
    with pytest.raises(StoreError, match="older than the others"):
        SqliteStore.open(path)


def resealed(path: Path, statement: str) -> None:
    """Carry out the statement and make every hash of the store fit again, as a fault of confide itself would."""
    without_triggers(path, statement)
    db = sqlite3.connect(path, isolation_level=None)
    rows: dict[tuple[object, ...], bytes] = {}
    for table, keys in sqlite._KEYS.items():
        for row in db.execute(f"SELECT * FROM {table}").fetchall():  # noqa: S608
            if table != "state":
                rows[table, *row[: len(keys)]] = sqlite._put(db, table, *row[:-1])
    tips = []
    for row in db.execute("SELECT * FROM ledger ORDER BY n").fetchall():
        tips.append((sqlite._digest(tips[-1][0] if tips else b"", *row[:-1]), row[0]))
    _, decided, published, rejoined, *_ = db.execute("SELECT * FROM state").fetchone()
    state = Books(decided=decided, published=published, rejoined=rejoined)
    sqlite._put_state(db, sqlite._Marks(state, "", len(tips), tips[-1][0], rows))
    db.close()
    db = sqlite3.connect(path, isolation_level=None)
    triggers = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for name, _ in triggers:
        db.execute(f"DROP TRIGGER {name}")
    db.executemany("UPDATE ledger SET sha256 = ? WHERE n = ?", tips)
    for _, sql in triggers:
        db.execute(sql)
    db.close()


@pytest.mark.parametrize(
    ("statement", "match"),
    [
        ("UPDATE state SET decided = decided + 1", r"state, row 0: decided = \d+, but the ledger's rounds"),
        ("UPDATE state SET decided = decided - 1", r"state, row 0: decided = \d+, but the ledger's rounds"),
        ("UPDATE state SET published = published - 1", r"state, row 0: published = \d+, but the ledger has"),
        (
            "DELETE FROM ledger WHERE n = (SELECT max(n) FROM ledger WHERE kind = 'message')",
            "ledger: line|state, row 0",
        ),
        ("DELETE FROM ledger WHERE n = 2", "ledger: line 3 holds event 3 where 2 belongs"),
        (
            "UPDATE ledger SET line = replace(line, '\"round\":1,', '\"round\":2,') WHERE n = 1",
            "ledger: line 2 was chan",
        ),
        ("UPDATE ledger SET hash = '0' WHERE n = 2", "ledger: a hash is not that of its line"),
        ("UPDATE ledger SET round = 9 WHERE n = 2", "ledger, row 2: is not what its line says"),
        ("UPDATE ledger SET kind = 'release' WHERE n = 2", "ledger, row 2: is not what its line says"),
        ("UPDATE identity SET server = 2", "ledger, row 1: .* of another plan or server"),
        ("UPDATE contribution SET total = zeroblob(16)", "contribution, row 0: holds 16 bytes; 3 numbers take 24"),
        ("UPDATE balances SET total = zeroblob(32) WHERE edge = 2", "balances, row 2: holds 32 bytes"),
        ("UPDATE balances SET n = -1 WHERE edge = 2", "balances, row 2: counts -1"),
        ("UPDATE edges SET seen = -1 WHERE edge = 0", "edges, row 0: counts -1"),
        ("UPDATE edges SET status = 'lost' WHERE edge = 0", "edges, row 0: .*lost"),
        ("UPDATE edges SET edge = 3 WHERE edge = 0", "edges: has not one row for each of the neighbours"),
        ("DELETE FROM balances WHERE edge = 0", "balances: has not one row for each of the neighbours"),
        ("DELETE FROM contribution", "contribution, row 0: is missing"),
        ("DELETE FROM identity", "identity, row 0: is missing"),
        (
            "UPDATE open SET edge = 3 WHERE rowid = (SELECT max(rowid) FROM open)",
            r"open, row \(3, \d+\): the neighbours",
        ),
        ("DELETE FROM open", "open: the message of round .* is not open"),
        ("DELETE FROM out", "open: round .* and its message is not kept"),
        ("UPDATE open SET round = round + 1000", "open: round .* rounds are decided"),
    ],
)
def test_books_that_contradict_each_other_are_named(lived: Books, path: Path, statement: str, match: str) -> None:
    resealed(path, statement)
    with pytest.raises(StoreError, match=match) as refused:
        SqliteStore.open(path)
    assert "rejoin with a new store" in str(refused.value)


def test_resealing_alone_changes_nothing(histories: SimpleNamespace, lived: Books, path: Path) -> None:
    resealed(path, "UPDATE state SET decided = decided")
    assert histories.plain(books_or_refusal(path)) == histories.plain(lived)


def test_changed_triggers_are_found(lived: Books, path: Path) -> None:
    changed(path, "DROP TRIGGER ledger_delete")
    with pytest.raises(StoreError, match="triggers were changed"):
        SqliteStore.open(path)


def test_what_sqlite_itself_finds_is_refused(lived: Books, path: Path) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[39] ^= 1  # the number of free pages: no row shows it, the next commit would go wrong
    path.write_bytes(damaged)
    with pytest.raises(StoreError, match=r"is damaged \(.*free.*rejoin"):
        SqliteStore.open(path)


def books_or_refusal(path: Path) -> Books | None:
    """Every other exception is a failure of the test."""
    try:
        with SqliteStore.open(path) as store:
            return store.load()
    except (LostError, InputError):  # both end a process with 2: it would be refused again
        return None


def test_a_truncated_file_is_refused(histories: SimpleNamespace, lived: Books, path: Path) -> None:
    whole = path.read_bytes()
    for size in (*range(0, len(whole), 4096), 1, 99, 100, 5000, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert books_or_refusal(path) is None
    path.write_bytes(whole)
    assert histories.plain(books_or_refusal(path)) == histories.plain(lived)


@settings(max_examples=200)
@given(
    flips=st.lists(
        st.tuples(st.one_of(st.integers(0, 2**13), st.integers(0, 2**20)), st.integers(1, 255)), min_size=1, max_size=4
    )
)
def test_flipped_bytes_are_found_or_harmless(
    histories: SimpleNamespace,
    lived_bytes: tuple[bytes, Books],
    tmp_path_factory: pytest.TempPathFactory,
    flips: list[tuple[int, int]],
) -> None:
    whole, lived = lived_bytes
    damaged = bytearray(whole)
    for k, bits in flips:
        damaged[k % len(whole)] ^= bits
    path = tmp_path_factory.getbasetemp() / "flipped.db"
    for file in (path, *sqlite_file.side_files(path)):
        file.unlink(missing_ok=True)
    path.write_bytes(damaged)
    found = books_or_refusal(path)
    assert found is None or histories.plain(found) == histories.plain(lived)


def test_a_damaged_log_is_refused_for_good(histories: SimpleNamespace, make: Make, path: Path) -> None:
    """SQLite alone would drop everything from the damaged byte on, and begin again from there."""
    store = make()
    books = [store.load()]
    for seen in range(1, 6):
        store.commit(Changes(seen={0: seen}))
        books.append(store.load())
    main, log = path.read_bytes(), Path(f"{path}-wal").read_bytes()
    store.close()

    def opened_with(damaged: bytes) -> Books | None:
        path.write_bytes(main)
        Path(f"{path}-wal").write_bytes(damaged)
        first = books_or_refusal(path)
        if first is None:
            assert books_or_refusal(path) is None
        return first

    assert opened_with(log).seen[0] == 5
    page = 24 + 4096
    frames = (len(log) - 32) // page
    ends = [n for n in range(frames) if log[32 + n * page + 4 : 32 + n * page + 8] != bytes(4)]
    assert len(ends) == 5
    last = 32 + page * (ends[-2] + 1)  # where the last transaction begins
    r = random.Random(0)  # noqa: S311
    for at in [*range(32), *(r.randrange(32, last) for _ in range(60))]:
        damaged = bytearray(log)
        damaged[at] ^= r.randint(1, 255)
        assert opened_with(bytes(damaged)) is None, at
    for at in (r.randrange(last, len(log)) for _ in range(10)):  # nothing tells this from a crash before the fsync
        damaged = bytearray(log)
        damaged[at] ^= r.randint(1, 255)
        assert opened_with(bytes(damaged)).seen[0] == 4, at
    for size in (last, last + 1, len(log) - 1):
        assert opened_with(log[:size]).seen[0] == 4


# --- disks ---


def test_after_a_full_disk_it_goes_on(histories: SimpleNamespace, make: Make) -> None:
    h = histories
    with make(M=3000) as store:
        books, r = live(h, store, 5), random.Random(2)  # noqa: S311
        db = store._db
        limit = db.execute("PRAGMA page_count").fetchone()[0] + 2
        db.execute(f"PRAGMA max_page_count = {limit}")
        with pytest.raises(StoreError, match=r"disk is full; make room.*nothing before it is lost"):  # noqa: PT012
            for _ in range(40):
                c = h.publish(books, store.plan, r)
                store.commit(c)
                books.apply(c)
        assert h.plain(store.load()) == h.plain(books)
        db.execute("PRAGMA max_page_count = 1000000")
        store.commit(c)
        books.apply(c)
        assert h.plain(store.load()) == h.plain(books)


def test_a_limit_of_the_system_loses_nothing(histories: SimpleNamespace, make: Make, path: Path) -> None:
    import resource

    make(M=3000).close()

    def child(ack: int) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
        store = SqliteStore.open(path)
        refused = False
        for n in range(1, 40):
            c = Changes(contribution=np.full(3000, n, np.int64))
            try:
                store.commit(c)
            except StoreError as e:
                refused = "the disk" in str(e)
                resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                assert store.load().contribution[0] == n - 1
                store.commit(c)
        assert refused
        store.close()
        os.write(ack, b"+")

    assert forked(child) == b"+"
    with SqliteStore.open(path) as store:
        assert store.load().contribution[0] == 39


@pytest.mark.parametrize("what", ["store.db", "store.db-wal"])
def test_a_file_that_vanished_is_noticed_before_anything_is_acknowledged(make: Make, path: Path, what: str) -> None:
    store = make()
    store.commit(Changes(seen={0: 1}))
    aside = path.with_name("aside")
    path.with_name(what).rename(aside)
    for replaced in (False, True):
        if replaced:
            shutil.copy(aside, path.with_name(what))
        with pytest.raises(LostError, match="moved or removed while in use; put it back"):
            store.commit(Changes(seen={0: 2}))
    aside.rename(path.with_name(what))
    store.commit(Changes(seen={0: 3}))
    store.close()
    with SqliteStore.open(path) as store:
        assert store.load().seen[0] == 3


def test_through_a_link_it_is_the_same_store(make: Make, path: Path, tmp_path: Path) -> None:
    make().close()
    (tmp_path / "link").symlink_to(path)
    with SqliteStore.open(tmp_path / "link") as store:
        with pytest.raises(InputError, match="in use"):
            SqliteStore.open(path)
        assert (tmp_path / "store.db-wal").exists()
        (tmp_path / "store.db-wal").rename(tmp_path / "aside")
        with pytest.raises(StoreError, match="moved or removed"):
            store.commit(Changes(seen={0: 2}))


# --- crashes ---


def forked(child: Callable[[int], None], kill_after: tuple[int, float] | None = None) -> bytes:
    """What `child` wrote until it ended, or was killed so many bytes and then so many seconds after its start."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        with suppress(BaseException):
            os.close(read)
            child(write)
        os._exit(0)
    os.close(write)
    said = b""
    try:
        if kill_after is not None:
            size, seconds = kill_after
            while len(said) < size and (more_said := os.read(read, size - len(said))):
                said += more_said
            time.sleep(seconds)
            os.kill(pid, signal.SIGKILL)
        while more := os.read(read, 2**16):
            said += more
    finally:
        os.waitpid(pid, 0)
        os.close(read)
    return said


def endless(h: SimpleNamespace, path: Path, seed: int, part: str | None = None) -> Callable[[int], None]:
    """Commits on, says so after each; dies by itself in `part` if one is named."""

    def child(ack: int) -> None:
        count = 0

        def at(where: str) -> None:
            if where == f"x.tx.{part}" and count > 3:
                os.kill(os.getpid(), signal.SIGKILL)

        store = SqliteStore.open(path)
        books, r = store.load(), random.Random(seed)  # noqa: S311
        os.write(ack, b".")
        while True:
            c = h.make_changes(books, store.plan, r)
            store.commit(c, at, "x")
            books.apply(c)
            os.write(ack, b"+")
            count += 1

    return child


def replayed(h: SimpleNamespace, books: Books, seed: int, steps: int) -> list[Books]:
    r, plan, all_books = random.Random(seed), h.make_plan(200), [books.copy()]  # noqa: S311
    for _ in range(steps):
        books.apply(h.make_changes(books, plan, r))
        all_books.append(books.copy())
    return all_books


@pytest.mark.parametrize("start", more(range(1), range(5)))
def test_kill_9_at_any_moment_keeps_what_was_acknowledged(
    histories: SimpleNamespace, make: Make, path: Path, start: int
) -> None:
    make(M=200).close()
    books, r = histories.make_books(200), random.Random(start)  # noqa: S311
    for seed in range(15):  # somewhere in a commit: one takes milliseconds
        acknowledged = r.randrange(10)
        said = forked(endless(histories, path, seed), kill_after=(1 + acknowledged, r.uniform(0, 0.005)))
        assert said.count(b"+") >= acknowledged
        after = replayed(histories, books, seed, said.count(b"+") + 1)
        with SqliteStore.open(path) as store:
            found = store.load()
        assert histories.plain(found) in [histories.plain(b) for b in after[-2:]]
        books = found


@pytest.mark.parametrize("part", parts(Changes()))
def test_kill_9_in_a_transaction_leaves_nothing_of_it(
    histories: SimpleNamespace, make: Make, path: Path, part: str
) -> None:
    make(M=200).close()
    books = histories.make_books(200)
    for seed in range(3):
        said = forked(endless(histories, path, seed, part))
        assert said.count(b"+") > 3
        books = replayed(histories, books, seed, said.count(b"+"))[-1]
        with SqliteStore.open(path) as store:
            assert histories.plain(store.load()) == histories.plain(books)


# --- cost ---

COUNTER = """
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <fcntl.h>
    #include <stdlib.h>
    #include <unistd.h>
    static void count(void) {
        int fd = open(getenv("FSYNC_LOG"), O_WRONLY | O_CREAT | O_APPEND, 0600);
        if (fd < 0 || write(fd, "s", 1) != 1) abort();
        close(fd);
    }
    int fsync(int fd) { count(); return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd); }
    int fdatasync(int fd) { count(); return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd); }
"""

COMMITS = """
    import os, random, runpy, sys
    from types import SimpleNamespace
    from confide.deploy.store.sqlite import SqliteStore
    sys.path.insert(0, os.path.dirname(sys.argv[1]))
    h = SimpleNamespace(**runpy.run_path(sys.argv[1]))
    path, M, count, log = sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), os.environ["FSYNC_LOG"]
    plan, books, r = h.make_plan(M), h.make_books(M), random.Random(0)
    store = SqliteStore.create(path, plan=plan.text, server=1, dataset=h.DATASET, books=books)
    def syncs(): return os.stat(log).st_size
    before, each = syncs(), []
    for _ in range(count):
        c = h.make_changes(books, plan, r, (h.publish, h.sync, h.skip))
        start = syncs()
        store.commit(c)
        each.append(syncs() - start)
        books.apply(c)
    print(*each)
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="counting fsync needs a C compiler")
def test_a_commit_is_one_fsync(tmp_path: Path) -> None:
    source, shim = tmp_path / "count.c", tmp_path / "count.so"
    source.write_text(textwrap.dedent(COUNTER))
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)

    def syncs(M: int, commits: int) -> list[int]:
        script = [sys.executable, "-c", textwrap.dedent(COMMITS), Path(__file__).parents[2] / "histories.py"]
        environment = os.environ | {"LD_PRELOAD": str(shim), "FSYNC_LOG": str(tmp_path / "log")}
        command = [*map(str, script), str(tmp_path / f"{M}-{commits}.db"), str(M), str(commits)]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        return [int(word) for word in done.stdout.split()]

    many = syncs(100, 400)
    assert many[0] <= 3  # the log's header, and its name in the folder
    assert many[1:] == [1] * 399
    large = syncs(2**18, 60)  # 2 MiB a vector: now and then the log is written back, and begins anew
    times = sum(n == 3 for n in large[1:])
    assert 1 <= times <= 3
    assert sum(large[1:]) - 59 in (3 * times, 3 * times - 1)


def test_a_machine_without_descriptors_is_no_mistake_of_the_config(lived: Books, path: Path) -> None:
    """Nor is a disk on which no file can be made any more. SQLite says of both that it cannot open the file."""
    limits, held = resource.getrlimit(resource.RLIMIT_NOFILE), list[int]()
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    try:
        with suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        os.close(held.pop())  # for the store, and none for its log
        with pytest.raises(StoreError, match="nothing before this step is lost"):
            SqliteStore.open(path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in held:
            os.close(fd)
    with SqliteStore.open(path) as store:
        assert store.load().decided == lived.decided
