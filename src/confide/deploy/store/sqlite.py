"""A server's books in one SQLite file: durable when `commit` returns, and locked by one process.

SQLite keeps transactions whole through a crash (WAL, synchronous=FULL: one fsync each) but has no checksums. So every
row carries the sha256 of its values, each ledger row also that of the row before, and the row of `state` a seal over
all of them. Every row and the whole are verified at opening: a flipped bit is found, and so is a row that is gone or
came back.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from confide.base import canonical
from confide.base.closing import Closing
from confide.base.errors import InputError
from confide.base.files import atomic_file
from confide.base.validation import whole
from confide.deploy.store import sqlite_file
from confide.deploy.store.books import TABLES, TO_ALL, Books, Changes, Entry, as_bytes, as_vector
from confide.deploy.store.kept import Key, Table, flat
from confide.deploy.store.sqlite_file import (
    DamagedError,
    LostError,
    StoreError,
    closed_on_error,
    inodes,
    transaction,
    translated,
)
from confide.deploy.store.store import At, nowhere, parts
from confide.plans.plan import Plan
from confide.privacy.ledger import Header, Promise, link, verify_lines

__all__ = ["SqliteStore", "StoreError"]

_Row = tuple[Table, Key, Mapping[str, Any]]

_KEYS = {"identity": ("id",)} | {table.name: table.keys for table in TABLES}  # every table but the ledger
(_STATE,) = (table for table in TABLES if table.name == "state")


@dataclass
class _Marks:
    """What a commit needs to know of the rows that it does not write."""

    books: Books
    head: str  # hash of the ledger's last line
    count: int  # of its events
    tip: bytes  # sha256 of its last row
    rows: dict[tuple[Any, ...], bytes]  # (table, key...) -> sha256, of every other row but the state's
    seen: bool = False  # the sum of the next round is in the ledger

    def put(self, db: sqlite3.Connection, table: str, *row: Any) -> None:
        self.rows[table, *row[: len(_KEYS[table])]] = _put(db, table, *row)

    @property
    def seal(self) -> bytes:
        return hashlib.sha256(self.tip + b"".join(self.rows[key] for key in sorted(self.rows))).digest()


class SqliteStore(Closing):
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
                raise DamagedError(path, "is missing", "identity", 0)
        self.plan = _plan(path, row[1])
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
        sqlite_file.create(path, lambda db, _: _fill(db, plan, server, dataset, run, books))
        return cls.open(path, the_plan, server)

    @classmethod
    def open(
        cls, path: str | Path, plan: Plan | None = None, server: int | None = None, *, look: bool = False
    ) -> SqliteStore:
        """The store in this file, locked for this process and checked; another plan's or server's is refused.

        An older confide's is brought up to date, after which that one does not read it any more; `look` leaves it as
        it is, and cannot commit.
        """
        path = Path(os.path.realpath(path))  # the log stands beside the file itself, not beside a link to it
        try:
            return cls._open(path, plan, server, look)
        except DamagedError as e:
            sqlite_file.check_readable(path)
            try:
                return cls._open(path, plan, server, look)
            except DamagedError:
                raise LostError(path, e.problem, e.table, e.row, sqlite_file.REJOIN) from e

    @classmethod
    def _open(cls, path: Path, plan: Plan | None, server: int | None, look: bool) -> SqliteStore:
        with closed_on_error(sqlite_file.connect(path, lambda db, new: cls(path, db)._fill_new(new), look=look)) as db:
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

    def close(self) -> None:
        with self._guard, translated(self.path):
            self._db.close()

    @property
    def version(self) -> int:
        """Of the file."""
        with self._guard, translated(self.path):
            return int(self._db.execute("PRAGMA user_version").fetchone()[0])

    @property
    def head(self) -> str:
        """The hash of the ledger's last line: it stands for all of them."""
        with self._guard, translated(self.path):
            return (self._marks or self._load()).head

    def load(self) -> Books:
        with self._guard, translated(self.path):
            return self._load().books.copy()

    def _fill_new(self, tables: frozenset[str]) -> None:
        """The first rows of tables that the file did not have, and a seal over all, once the old one held."""
        marks = self._load(tables)
        for table in TABLES:
            if table.name in tables:
                for key, values in table.rows(marks.books).items():
                    if not table.lacks(values):
                        marks.put(self._db, table.name, *key, *table.write(values))
        _put_state(self._db, marks)

    def _load(self, new: frozenset[str] = frozenset()) -> _Marks:
        """Args:
        new: tables that were empty so far, and whose fields are as in fresh books.
        """
        self._marks = None
        entries, marks = self._ledger()
        tables = {}
        for table, keys in _KEYS.items():
            tables[table] = self._rows(table)
            if table != "state":
                marks.rows.update({(table, *row[: len(keys)]): row[-1] for row in tables[table]})
        if wrong := _follow(marks, entries, self._books(tables, new)):
            self._fail(*wrong)
        if tables["state"][0][-2] != marks.seal:
            self._fail("state", 0, "a row is missing, too many, or older than the others")
        self._marks = None if self._db.in_transaction else marks  # `at` may look, and then stop the commit
        return marks

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
            if self._marks is None:  # what a failed commit has left in the log could be taken for damage
                sqlite_file.empty_log(self._db)
            draft = replace(self._marks or self._load())
            rows = [(table, *row) for table in TABLES for row in table.rows(changes).items()]
            self._check(changes, rows, draft)
            if inodes(self.path) != self._files:
                remedy = "put it back and start again; nothing of this step was written"
                raise LostError(self.path, "the file or its log was moved or removed while in use", remedy=remedy)
            self._marks = None  # until SQLite has answered, also if Ctrl-C comes in between
            with transaction(self._db):
                for part, present in parts(changes).items():
                    if present:
                        at(f"{name}.tx.{part}")
                    self._write(part, changes.entries, rows, draft)
            self._marks = draft

    def _write(self, part: str, entries: Iterable[Entry], rows: Iterable[_Row], draft: _Marks) -> None:
        if part == "ledger":
            for entry in entries:
                self._append(entry, draft)
        for table, key, values in rows:
            if table.name == "state" or part not in (table.part, "gc"):
                continue
            lacks = table.lacks(values)
            if part != ("gc" if lacks and table.by else table.part):
                continue
            if not lacks:
                all_values = values if len(values) == len(table.fields) else table.rows(draft.books)[key]
                draft.put(self._db, table.name, *key, *table.write(all_values))
            elif table.by or (table.name, 0) in draft.rows:
                self._remove(draft, table.name, *key)
        if part == "gc":
            _put_state(self._db, draft)

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

    def _check(self, c: Changes, rows: Iterable[_Row], draft: _Marks) -> None:
        """Refuse what the next start would refuse, while nothing is written; else the draft has the books after it."""
        problem = ""
        if any(e.event.plan != self.plan.hash or e.event.unit != self.server for e in c.entries):
            problem = "an entry of another plan or server"
        try:
            for table, key, values in rows:
                self._check_row(table, key, values)
        except ValueError as e:
            problem = f"{table.name}, row {key}: {e}"
        if not problem:
            books = draft.books.copy()
            books.apply(c)
            *_, problem = _follow(draft, c.entries, books) or [""]
        if problem:
            raise StoreError(self.path, f"refused: {problem}", remedy="this is a fault of confide; nothing was written")

    def _books(self, tables: dict[str, list[tuple[Any, ...]]], new: frozenset[str]) -> Books:
        books = Books.fresh(self.start, self.neighbours)
        for table in TABLES:
            rows = tables[table.name]
            if table.name in ("state", "contribution") and not rows:
                self._fail(table.name, 0, "is missing")
            by_edge = table.by == ("edge",) and table.name not in new
            if by_edge and {row[0] for row in rows} != set(self.neighbours):
                self._fail(table.name, None, f"has not one row for each of the neighbours {self.neighbours}")
            for row in rows:
                key = row[: len(table.keys)]
                try:
                    values = table.read(row)
                    self._check_row(table, key, values)
                except ValueError as e:
                    self._fail(table.name, key if len(key) > 1 else key[0], str(e))
                for name, f in table.fields.items():
                    if table.by:
                        f.place(getattr(books, name), key, values[name])
                    else:
                        setattr(books, name, values[name])
        return books

    def _check_row(self, table: Table, key: Key, values: Mapping[str, Any]) -> None:
        """Raises `ValueError` for an edge that the server does not have, and for a vector of another length."""
        if table.by[:1] == ("edge",) and key[0] not in self.neighbours:
            raise ValueError(f"the neighbours are {self.neighbours}")
        for name, value in values.items():
            for x in () if value is None else table.fields[name].split(value):
                if isinstance(x, np.ndarray) and len(x) != len(self.start):
                    size = self.start.nbytes
                    raise ValueError(f"holds {x.nbytes} bytes; {len(self.start)} numbers take {size}")

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
        return entries, _Marks(Books.fresh(self.start, self.neighbours), book.head, len(entries), tip, {})

    def _fail(self, table: str, row: object, problem: str) -> NoReturn:
        raise DamagedError(self.path, problem, table, row)


def _plan(path: Path, text: str) -> Plan:
    try:
        return Plan.from_text(text)
    except InputError as e:
        what = {"plan.version": "version", "deployment.protocol": "protocol"}.get(e.field)
        if what is None:
            raise
        remedy = f"has a plan of {what} {e.value}, for which it takes the confide that wrote it; export its ledger with"
        raise InputError("store", str(path), f"{remedy} that one, and begin a new plan with a new store") from None


def _follow(marks: _Marks, entries: Iterable[Entry], books: Books) -> tuple[str, object, str] | None:
    """Go on to these books with these entries of the ledger, or say what is wrong: the table, the row and why.

    Rounds are decided one after the other, and paid for once, with the sum or the message.
    """
    decided, published = marks.books.decided, marks.books.published
    for event in (entry.event for entry in entries if entry.event.kind != "release"):
        if event.round != decided + 1 or (event.kind == "sum" and marks.seen):
            return "ledger", None, f"a {event.kind} of round {event.round} after round {decided}"
        published += event.kind == "sum" or (event.kind == "message" and not marks.seen)
        marks.seen = event.kind == "sum"
        decided += event.kind != "sum"
    if books.decided != decided:
        return "state", 0, f"decided = {books.decided}, but the ledger's rounds are not 1 to {books.decided}"
    if books.published != published:
        return "state", 0, f"published = {books.published}, but the ledger has {published} that are paid for"
    marks.books = books
    problem = _open_and_out({key for key, _ in flat(books.open)}, books.out, decided)
    return ("open", None, problem) if problem else None


def _open_and_out(opened: set[Key], out: Collection[Key], decided: int) -> str:
    """docs/design/flows.md, I5: a message is kept for exactly what is open, (neighbour, round). "" or what is wrong."""
    rounds = {i for _, i in opened}
    for m, i in opened:
        if not 0 < i <= decided:
            return f"round {i} is open with {m}, and {decided} rounds are decided"
        if (i, TO_ALL) not in out and (i, m) not in out:
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
    _put(db, "state", 0, *_STATE.write(_STATE.rows(marks.books)[0,]), marks.seal)


def _fill(db: sqlite3.Connection, plan: str, server: int, dataset: str, run: str, books: Books) -> None:
    """The first rows; the ledger is empty."""
    neighbours = canonical.dumps([int(m) for m in books.neighbours])
    marks = _Marks(books, "", 0, b"", {})
    marks.put(db, "identity", 0, plan, int(server), dataset, run, neighbours, as_bytes(books.contribution))
    for table in TABLES:
        for key, values in table.rows(books).items():
            if table.name != "state" and not table.lacks(values):
                marks.put(db, table.name, *key, *table.write(values))
    _put_state(db, marks)
