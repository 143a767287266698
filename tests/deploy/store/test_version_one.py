"""A store that an older confide wrote opens, with the first values of what it lacks, and is one of today then."""

from __future__ import annotations

import gzip
import random
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest

import version_one
from confide.base.errors import InputError
from confide.deploy.store import sqlite, sqlite_file
from confide.deploy.store.books import Attempt, Books, Changes, Entry, as_bytes
from confide.deploy.store.sqlite import SqliteStore, StoreError
from confide.privacy.ledger import Header, Promise, read


def lived(h: SimpleNamespace, path: Path, seed: int) -> tuple[Books, list[Entry]]:
    """A store of today with a history, closed."""
    plan, r = h.make_plan(), random.Random(seed)  # noqa: S311 - a test
    with SqliteStore.create(
        path, plan=plan.text, server=h.SERVER, dataset=h.DATASET, books=h.make_books(), run="a run"
    ) as store:
        books = store.load()
        full = Changes(
            epoch=b"epoch", transcript=b"t" * 500, release=b"release", attempt=Attempt(9, 1, (3, 1)), rejoined=2
        )
        for n in range(40):
            c = full if n == 30 else h.make_changes(books, plan, r)
            store.commit(c)
            books.apply(c)
        return books, list(store.entries())


@pytest.mark.parametrize("seed", range(5))
def test_a_file_of_version_one_opens_and_is_what_is_written_today(
    histories: SimpleNamespace, tmp_path: Path, seed: int
) -> None:
    h, plan = histories, histories.make_plan()
    books, entries = lived(h, tmp_path / "today.db", seed)
    header = Header(h.DATASET, Promise.of(plan.privacy), "a run")
    start = as_bytes(h.make_books().contribution)
    version_one.write(tmp_path / "one.db", header, plan.text, h.SERVER, start, books, entries)
    SqliteStore.open(tmp_path / "one.db").close()
    assert version_one.contents(tmp_path / "one.db") == version_one.contents(tmp_path / "today.db")
    with SqliteStore.open(tmp_path / "one.db", plan, h.SERVER) as store:
        assert h.plain(store.load()) == h.plain(books)
        assert list(store.entries()) == entries
        r = random.Random(seed)  # noqa: S311 - a test
        for _ in range(10):
            c = h.make_changes(books, plan, r)
            store.commit(c)
            books.apply(c)
    with SqliteStore.open(tmp_path / "one.db") as store:
        assert h.plain(store.load()) == h.plain(books)


@pytest.fixture
def one(histories: SimpleNamespace, tmp_path: Path) -> tuple[Path, Books]:
    """A file of version 1, and its books."""
    h, plan = histories, histories.make_plan()
    books, entries = lived(h, tmp_path / "today.db", 1)
    header, start = Header(h.DATASET, Promise.of(plan.privacy), "a run"), as_bytes(h.make_books().contribution)
    version_one.write(tmp_path / "one.db", header, plan.text, h.SERVER, start, books, entries)
    return tmp_path / "one.db", books


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a version after one, if only in number."""
    monkeypatch.setattr(sqlite_file, "VERSION", max(2, sqlite_file.VERSION))


@pytest.mark.usefixtures("newer")
def test_an_older_file_is_completed_whole_or_not_at_all(
    histories: SimpleNamespace, one: tuple[Path, Books], monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    (path, books), before = one, version_one.contents(one[0])
    with monkeypatch.context() as m:
        m.setattr(sqlite, "_put_state", crash)
        with pytest.raises(KeyboardInterrupt):
            SqliteStore.open(path)
    assert version_one.contents(path) == before
    with SqliteStore.open(path, look=True) as store:
        assert store.version == 1
        assert histories.plain(store.load()) == histories.plain(books)
    assert version_one.contents(path) == before
    for _ in range(2):
        with SqliteStore.open(path) as store:
            assert store.version == sqlite_file.VERSION
            assert histories.plain(store.load()) == histories.plain(books)
    assert version_one.contents(path)["version"] == [(sqlite_file.VERSION,)]


@pytest.mark.usefixtures("newer")
@pytest.mark.parametrize(
    ("statement", "problem"),
    [("DELETE FROM epoch", "a row is missing"), ("DROP TABLE transcript", "tables or triggers were changed")],
)
def test_an_older_file_that_is_damaged_is_not_sealed_anew(
    one: tuple[Path, Books], statement: str, problem: str
) -> None:
    path, _ = one
    db = sqlite3.connect(path, isolation_level=None)
    db.execute(statement)
    db.close()
    for _ in range(2):
        with pytest.raises(StoreError, match=problem):
            SqliteStore.open(path)
    assert version_one.contents(path)["version"] == [(1,)]


def test_a_plan_of_another_version_is_named_with_what_to_do(histories: SimpleNamespace, tmp_path: Path) -> None:
    h, plan = histories, histories.make_plan()
    header = Header(h.DATASET, Promise.of(plan.privacy), "a run")
    start = as_bytes(h.make_books().contribution)
    text = plan.text.replace('"version":3', '"version":2')
    version_one.write(tmp_path / "one.db", header, text, h.SERVER, start, h.make_books(), [])
    with pytest.raises(InputError, match=r"has a plan of version 2, .* export its ledger"):
        SqliteStore.open(tmp_path / "one.db", plan, h.SERVER)


def test_a_store_of_the_release_before_is_read_and_goes_on(histories: SimpleNamespace, tmp_path: Path) -> None:
    """A file that the first release with stores left behind: version 1, of a plan of protocol 1."""
    path, ledger = tmp_path / "store.db", tmp_path / "ledger.jsonl"
    path.write_bytes(gzip.decompress(Path(__file__).with_name("protocol_one.db.gz").read_bytes()))
    head = "1bbefab5b741192a0501cc48f9fa3662b91a04ddbefc77a5eae5e6d7b44dacef"
    for look in (True, False):
        with SqliteStore.open(path, look=look) as store:
            books = store.load()
            store.export_ledger(ledger)
            assert (store.server, store.run, store.head) == (1, "a run", head)
        assert (books.decided, books.published, books.rejoined, books.seen) == (37, 14, 2, {0: 8, 2: 6})
        assert books.contribution.tolist() == [7217640161438925556, 7352045119361723576, 1184132976382735851]
        assert {m: balance.n for m, balance in books.balances.items()} == {0: 9, 2: 4}
        assert {m: list(records) for m, records in books.open.items()} == {0: [24], 2: [13, 15, 16, 17]}
        assert list(books.out) == [(13, 2), (15, 2), (16, 2), (17, -1), (24, -1)]
        assert (books.epoch, books.release, books.attempt) == (b"epoch", b"release", Attempt(9, 1, (3, 1)))
        paid = [e for e in read(ledger, head).events if e.kind == "message"]
        assert len(paid) == books.published
        ledger.unlink()
    with SqliteStore.open(path) as store:
        store.commit(histories.publish(store.load(), store.plan, random.Random(0)))  # noqa: S311 - a test
    with SqliteStore.open(path) as store:
        assert store.load().decided == 38
