"""A server's books in one SQLite file: durable when `commit` returns, held by one process, believed only if whole.

SQLite keeps transactions whole through a crash (WAL, synchronous=FULL: one fsync each) but has no checksums. So every
row carries the sha256 of its values, each ledger row also that of the row before, and the row of `state` a seal over
all of them: a flipped bit is found at the next start, and so is a row that is gone or came back.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, Self

from confide.base import canonical
from confide.base.errors import InputError
from confide.base.files import atomic_file
from confide.base.validation import whole
from confide.deploy.store import sqlite_file
from confide.deploy.store.books import (
    TO_ALL,
    Attempt,
    Balance,
    Books,
    Changes,
    Entry,
    Flow,
    Status,
    as_bytes,
    as_vector,
)
from confide.deploy.store.sqlite_file import StoreError, closed_on_error, inodes, transaction, translated
from confide.deploy.store.store import At, nowhere, parts
from confide.plans.plan import Plan
from confide.privacy.ledger import Header, Promise, link, verify_lines

__all__ = ["SqliteStore", "StoreError"]

_KEYS = {  # every table but the ledger, with the columns that name a row
    "identity": ("id",),
    "state": ("id",),
    "contribution": ("id",),
    "edges": ("edge",),
    "balances": ("edge",),
    "open": ("edge", "round"),
    "out": ("round", "receiver"),
    "attempt": ("id",),
    "transcript": ("id",),
    "epoch": ("id",),
    "release": ("id",),
}


@dataclass
class _Marks:
    """What a commit needs to know of the rows that it does not write."""

    decided: int
    published: int
    rejoined: int
    head: str  # hash of the ledger's last line
    count: int  # of its events
    tip: bytes  # sha256 of its last row
    rows: dict[tuple[Any, ...], bytes]  # (table, key...) -> sha256, of every other row but the state's
    seen: bool = False  # the sum of the next round is in the ledger

    @property
    def seal(self) -> bytes:
        return hashlib.sha256(self.tip + b"".join(self.rows[key] for key in sorted(self.rows))).digest()


class SqliteStore:
    """The `Store` of a deployed server. Threads may share it; processes may not.

    Attributes:
        plan, server, dataset, run: whose store this is; they never change.
        start: the vector from which the server began.
    """

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        """Of `create` and `open`, which hold the lock already."""
        self.path = path
        self._db = db
        self._guard = threading.RLock()
        self._marks: _Marks | None = None  # None: in doubt, read them again
        self._files = inodes(path)
        with translated(path):
            row = next(iter(self._rows("identity")), None)
            if row is None:
                raise StoreError(path, "is missing", "identity", 0)
        self.plan = Plan.from_text(row[1])
        self.server: int = row[2]
        self.dataset: str = row[3]
        self.run: str = row[4]
        self.neighbours: tuple[int, ...] = tuple(canonical.loads(row[5]))
        self.start = as_vector(row[6])
        self._header = Header(self.dataset, Promise.of(self.plan.privacy), self.run)

    @classmethod
    def create(
        cls, path: str | Path, *, plan: str, server: int, dataset: str, books: Books, run: str = ""
    ) -> SqliteStore:
        """A new store, whole or not at all; an existing file is refused. `plan` is the canonical text."""
        path = Path(path).absolute()
        the_plan = Plan.from_text(plan)
        whole("store.server", server, 0, the_plan.P - 1)
        Header(dataset, Promise.of(the_plan.privacy), run)
        if the_plan.algorithm.model.length != len(books.contribution):
            remedy = f"the plan has vectors of {the_plan.algorithm.model.length} numbers"
            raise InputError("store.books", len(books.contribution), remedy)
        linked = {int(m) for m in the_plan.graph.graphs[0].neighbours(server)}
        if set(books.neighbours) != linked:
            raise InputError("store.books", books.neighbours, f"server {server} of this plan has {sorted(linked)}")
        sqlite_file.create(path, lambda db: _fill(db, plan, server, dataset, run, books))
        return cls.open(path, the_plan, server)

    @classmethod
    def open(cls, path: str | Path, plan: Plan | None = None, server: int | None = None) -> SqliteStore:
        """The store in this file, locked for this process and checked; another plan's or server's is refused."""
        path = Path(os.path.realpath(path))  # the log stands beside the file itself, not beside a link to it
        with closed_on_error(sqlite_file.connect(path)) as db:
            store = cls(path, db)
            if plan is not None and plan.hash != store.plan.hash:
                differences = "; ".join(store.plan.diff(plan))
                raise InputError("store", str(path), f"is of another plan: {differences}; use that plan or a new store")
            if server is not None and server != store.server:
                raise InputError("store", str(path), f"is of server {store.server}, not {server}; name its own")
            store.load()
            return store

    def __repr__(self) -> str:
        return f"SqliteStore({str(self.path)!r}, server={self.server})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with self._guard, translated(self.path):
            self._db.close()

    @property
    def head(self) -> str:
        """The hash of the ledger's last line: it stands for all of them."""
        with self._guard:
            if self._marks is None:
                self.load()
            assert self._marks is not None  # noqa: S101 - `load` sets it
            return self._marks.head

    def load(self) -> Books:
        with self._guard, translated(self.path):
            self._marks = None
            entries, marks = self._ledger()
            tables = {}
            for table in _KEYS:
                tables[table] = self._rows(table)
                if table != "state":
                    keys = len(_KEYS[table])
                    marks.rows.update({(table, *row[:keys]): row[-1] for row in tables[table]})
            books = self._books(tables)
            self._check(books, entries, marks)
            if tables["state"][0][4] != marks.seal:
                self._fail("state", 0, "a row is missing, too many, or older than the others")
            self._marks = None if self._db.in_transaction else marks  # `at` may look, and then stop the commit
            return books

    def entries(self) -> Iterator[Entry]:
        with self._guard, translated(self.path):
            return iter(self._ledger()[0])

    def export_ledger(self, path: str | Path) -> None:
        """The ledger as `privacy.ledger.read` reads it: one line for the header, one for each event."""
        with self._guard, translated(self.path):
            self._ledger()
            lines = [line for (line,) in self._db.execute("SELECT line FROM ledger ORDER BY n")]
        with atomic_file(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(line + "\n" for line in (self._header.line, *lines))
            file.flush()
            os.fsync(file.fileno())

    def commit(self, changes: Changes, at: At = nowhere, name: str = "") -> None:
        with self._guard, translated(self.path):
            if self._marks is None:
                self.load()
            assert self._marks is not None  # noqa: S101 - `load` sets it
            draft = replace(self._marks)
            self._check_changes(changes, draft)
            if inodes(self.path) != self._files:
                remedy = "put it back and start again; nothing of this step was written"
                raise StoreError(self.path, "the file or its log was moved or removed while in use", remedy=remedy)
            self._marks = None  # until SQLite has answered, also if Ctrl-C comes in between
            with transaction(self._db):
                for part, present in parts(changes).items():
                    if part == "commit":
                        self._write_rest(changes, draft)
                    if present:
                        at(f"{name}.tx.{part}")
                    self._write(part, changes, draft)
            self._marks = draft

    def _write(self, part: str, c: Changes, draft: _Marks) -> None:
        if part == "ledger":
            for entry in c.entries:
                self._append(entry, draft)
        elif part == "state":
            if c.contribution is not None:
                self._put(draft, "contribution", 0, as_bytes(c.contribution))
            for (i, receiver), message in c.out.items():
                self._put(draft, "out", int(i), int(receiver), bytes(message))
        elif part == "applied":
            for m, balance in c.balances.items():
                self._put(draft, "balances", int(m), int(balance.n), as_bytes(balance.total))
        elif part == "flagged":
            for (m, i), flow in c.opened.items():
                flags = int(flow.applied), int(flow.peer_applied)
                self._put(draft, "open", int(m), int(i), *flags, bytes(flow.peer_sha256))
        elif part == "gc":
            for m, i in c.closed:
                self._remove(draft, "open", int(m), int(i))
            for i, receiver in c.dropped:
                self._remove(draft, "out", int(i), int(receiver))

    def _write_rest(self, c: Changes, draft: _Marks) -> None:
        """What no part names, then the seal over all."""
        for m in c.seen.keys() | c.status.keys():
            seen, status = self._db.execute("SELECT seen, status FROM edges WHERE edge = ?", (int(m),)).fetchone()
            self._put(draft, "edges", int(m), int(c.seen.get(m, seen)), Status(c.status.get(m, status)).value)
        if c.attempt is not None:
            sample = canonical.dumps([int(k) for k in c.attempt.sample])
            self._put(draft, "attempt", 0, int(c.attempt.round), int(c.attempt.number), sample)
        for table, words in (("transcript", c.transcript), ("epoch", c.epoch)):
            if words:
                self._put(draft, table, 0, bytes(words))
            elif words is not None and (table, 0) in draft.rows:
                self._remove(draft, table, 0)
        if c.rejoined is not None:
            draft.rejoined = int(c.rejoined)
        if c.release is not None:
            self._put(draft, "release", 0, bytes(c.release))
        _put_state(self._db, draft)

    def _put(self, draft: _Marks, table: str, *row: Any) -> None:
        draft.rows[table, *row[: len(_KEYS[table])]] = _put(self._db, table, *row)

    def _remove(self, draft: _Marks, table: str, *key: int) -> None:
        del draft.rows[table, *key]
        where = " AND ".join(f"{name} = ?" for name in _KEYS[table])
        self._db.execute(f"DELETE FROM {table} WHERE {where}", key)  # noqa: S608 - our own names

    def _append(self, entry: Entry, draft: _Marks) -> None:
        draft.count += 1
        line, draft.head = link(draft.count, draft.head, entry.event)
        offered = canonical.dumps([int(m) for m in entry.offered])
        row = (draft.count, line, draft.head, entry.event.round, entry.event.kind, offered)
        draft.tip = _digest(draft.tip, *row)
        self._db.execute("INSERT INTO ledger VALUES (?, ?, ?, ?, ?, ?, ?)", (*row, draft.tip))

    def _check_changes(self, c: Changes, draft: _Marks) -> None:
        """Refuse what the next start would refuse, while nothing is written. Fills `decided` and `published`."""
        problem = ""
        if any(e.event.plan != self.plan.hash or e.event.unit != self.server for e in c.entries):
            problem = "an entry of another plan or server"
        vectors = [balance.total for balance in c.balances.values()]
        if any(len(x) != len(self.start) for x in (*vectors, *([] if c.contribution is None else [c.contribution]))):
            problem = f"a vector that does not have {len(self.start)} numbers"
        if not {*c.balances, *c.seen, *c.status, *(m for m, _ in c.opened)} <= set(self.neighbours):
            problem = "an edge that the server does not have"
        before = draft.decided, draft.published
        problem = _count(c.entries, draft) or problem
        if (before[0] if c.decided is None else c.decided) != draft.decided:
            problem = f"decided = {c.decided} after {before[0]}, and the ledger has {draft.decided} rounds"
        if (before[1] if c.published is None else c.published) != draft.published:
            problem = f"published = {c.published} after {before[1]}, and the ledger pays for {draft.published}"
        keys = draft.rows.keys()
        opened = ({key[1:] for key in keys if key[0] == "open"} | c.opened.keys()) - set(c.closed)
        out = ({key[1:] for key in keys if key[0] == "out"} | c.out.keys()) - set(c.dropped)
        problem = problem or _open_and_out(opened, out, draft.decided)
        if problem:
            raise StoreError(self.path, f"refused: {problem}", remedy="this is a fault of confide; nothing was written")

    def _check(self, books: Books, entries: list[Entry], marks: _Marks) -> None:
        """The books against the ledger, and against each other."""
        if problem := _count(entries, marks):
            self._fail("ledger", None, problem)
        if books.decided != marks.decided:
            self._fail("state", 0, f"decided = {books.decided}, but the ledger's rounds are not 1 to {books.decided}")
        if books.published != marks.published:
            self._fail(
                "state", 0, f"published = {books.published}, but the ledger has {marks.published} that are paid for"
            )
        opened = {(m, i) for m, flows in books.open.items() for i in flows}
        if problem := _open_and_out(opened, books.out.keys(), books.decided):
            self._fail("open", None, problem)
        marks.rejoined = books.rejoined

    def _books(self, tables: dict[str, list[tuple[Any, ...]]]) -> Books:
        for table in ("state", "contribution"):
            if not tables[table]:
                self._fail(table, 0, "is missing")
        for table in ("edges", "balances"):
            if sorted(row[0] for row in tables[table]) != sorted(self.neighbours):
                self._fail(table, None, f"has not one row for each of the neighbours {self.neighbours}")
        for m, _, status, _ in tables["edges"]:
            if status not in list(Status):
                self._fail("edges", m, f"has the status {status}")
        books = Books(
            self._vector("contribution", 0, tables["contribution"][0][1]),
            self.neighbours,
            tables["state"][0][1],
            tables["state"][0][2],
            balances={m: Balance(n, self._vector("balances", m, raw)) for m, n, raw, _ in tables["balances"]},
            seen={m: seen for m, seen, _, _ in tables["edges"]},
            status={m: Status(status) for m, _, status, _ in tables["edges"]},
            open={m: {} for m in self.neighbours},
            out={(i, receiver): message for i, receiver, message, _ in tables["out"]},
            rejoined=tables["state"][0][3],
        )
        for m, i, applied, peer_applied, peer_sha256, _ in tables["open"]:
            if m not in books.open:
                self._fail("open", (m, i), f"the neighbours are {self.neighbours}")
            books.open[m][i] = Flow(bool(applied), bool(peer_applied), peer_sha256)
        for _, i, number, sample, _ in tables["attempt"]:
            books.attempt = Attempt(i, number, tuple(canonical.loads(sample)))
        books.transcript = b"".join(row[1] for row in tables["transcript"])
        books.epoch = b"".join(row[1] for row in tables["epoch"])
        books.release = b"".join(row[1] for row in tables["release"])
        counts = [("balances", m, b.n) for m, b in books.balances.items()] + [("edges", *x) for x in books.seen.items()]
        for table, m, count in counts:
            if count < 0:
                self._fail(table, m, f"counts {count}")
        return books

    def _rows(self, table: str) -> list[tuple[Any, ...]]:
        """All rows of a table in the order of their keys, each with the sha256 that it should have."""
        keys = _KEYS[table]
        rows = self._db.execute(f"SELECT * FROM {table} ORDER BY {', '.join(keys)}").fetchall()  # noqa: S608
        for row in rows:
            if _digest(table, *row[:-1]) != row[-1]:
                self._fail(table, row[0] if len(keys) == 1 else row[: len(keys)], "was changed: its sha256 is another")
        return rows

    def _ledger(self) -> tuple[list[Entry], _Marks]:
        """Every entry, and the marks after the last; a row that does not follow from those before it is refused."""
        tip, lines, hashes, facts, offered = b"", [self._header.line], [self._header.hash], [], []
        for row in self._db.execute("SELECT * FROM ledger ORDER BY n"):
            if _digest(tip, *row[:-1]) != row[-1]:
                self._fail("ledger", row[0], "was changed, or does not follow from the row before")
            tip = row[-1]
            lines.append(row[1])
            hashes.append(row[2])
            facts.append((row[0], row[3], row[4]))
            offered.append(tuple(canonical.loads(row[5])))
        try:
            book = verify_lines(lines, str(self.path))
        except InputError as e:
            self._fail("ledger", None, e.remedy)
        if list(book.hashes) != hashes:
            self._fail("ledger", None, "a hash is not that of its line")
        for event, fact in zip(book.events, facts, strict=True):
            ours = event.plan == self.plan.hash and event.unit == self.server
            if not ours or (event.round, event.kind) != fact[1:]:
                self._fail("ledger", fact[0], "is not what its line says, or of another plan or server")
        entries = [Entry(event, to) for event, to in zip(book.events, offered, strict=True)]
        return entries, _Marks(0, 0, 0, book.head, len(entries), tip, {})

    def _vector(self, table: str, row: int, raw: bytes) -> Any:
        if len(raw) != self.start.nbytes:
            self._fail(table, row, f"holds {len(raw)} bytes; {len(self.start)} numbers take {self.start.nbytes}")
        return as_vector(raw)

    def _fail(self, table: str, row: object, problem: str) -> NoReturn:
        raise StoreError(self.path, problem, table, row)


def _count(entries: Iterable[Entry], marks: _Marks) -> str:
    """Rounds are decided one after the other, and paid for once, with the sum or the message: "", or what is wrong.

    Brings `decided`, `published` and `seen` up to date.
    """
    for event in (entry.event for entry in entries if entry.event.kind != "release"):
        if event.round != marks.decided + 1 or (event.kind == "sum" and marks.seen):
            return f"a {event.kind} of round {event.round} after round {marks.decided}"
        marks.published += event.kind == "sum" or (event.kind == "message" and not marks.seen)
        marks.seen = event.kind == "sum"
        marks.decided += event.kind != "sum"
    return ""


def _open_and_out(opened: Iterable[tuple[int, int]], out: Iterable[tuple[int, int]], decided: int) -> str:
    """docs/design/flows.md, I5: messages are kept for exactly what is open (neighbour, round). "" or what is wrong."""
    opened, out = set(opened), set(out)
    rounds = {i for _, i in opened}
    for m, i in opened:
        if not 0 < i <= decided:
            return f"round {i} is open with {m}, and {decided} rounds are decided"
        if not out & {(i, TO_ALL), (i, m)}:
            return f"round {i} is open with {m}, and its message is not kept"
    for i, receiver in out:
        if i not in rounds or (receiver != TO_ALL and (receiver, i) not in opened):
            return f"the message of round {i} for {receiver} is kept, and is not open"
    return ""


def _digest(*values: object) -> bytes:
    """Of a row: every value with its type and length, so that no two rows have the same bytes."""
    state = hashlib.sha256()
    for value in values:
        raw = value if isinstance(value, bytes) else str(value).encode()
        state.update(f"{type(value).__name__} {len(raw)} ".encode())
        state.update(raw)
    return state.digest()


def _put(db: sqlite3.Connection, table: str, *row: Any) -> bytes:
    """Insert or overwrite a row: a blob of the same length stays in its pages, and only those that differ are written.

    Returns its sha256.
    """
    sha256 = _digest(table, *row)
    marks = ", ".join("?" * (len(row) + 1))
    db.execute(f"REPLACE INTO {table} VALUES ({marks})", (*row, sha256))  # noqa: S608 - our own names
    return sha256


def _put_state(db: sqlite3.Connection, marks: _Marks) -> None:
    _put(db, "state", 0, marks.decided, marks.published, marks.rejoined, marks.seal)


def _fill(db: sqlite3.Connection, plan: str, server: int, dataset: str, run: str, books: Books) -> None:
    """The first rows; what the books hold beyond a beginning comes with a commit."""
    neighbours = canonical.dumps([int(m) for m in books.neighbours])
    start = as_bytes(books.contribution)
    rows: list[tuple[Any, ...]] = [
        ("identity", 0, plan, int(server), dataset, run, neighbours, start),
        ("contribution", 0, start),
    ]
    for m in books.neighbours:
        rows.append(("edges", int(m), int(books.seen[m]), books.status[m].value))
        rows.append(("balances", int(m), int(books.balances[m].n), as_bytes(books.balances[m].total)))
    keys = {(table, *row[: len(_KEYS[table])]): _put(db, table, *row) for table, *row in rows}
    _put_state(db, _Marks(0, 0, 0, "", 0, b"", keys))
