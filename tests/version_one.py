"""A store's file as version 1 was first written, by statements of its own: what every later confide must open.

Nothing of `confide.deploy.store` is used but the books themselves, so that a change there cannot change this.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from confide.deploy.store.books import Books, Entry
from confide.privacy.ledger import Header, link

APPLICATION = 0x636F6E66
SCHEMA = """
CREATE TABLE identity (id INTEGER PRIMARY KEY CHECK (id = 0), plan TEXT, server INTEGER, dataset TEXT, run TEXT,
    neighbours TEXT, start BLOB, sha256 BLOB NOT NULL);
CREATE TABLE state (id INTEGER PRIMARY KEY CHECK (id = 0), decided INTEGER, published INTEGER, rejoined INTEGER,
    seal BLOB, sha256 BLOB NOT NULL);
CREATE TABLE contribution (id INTEGER PRIMARY KEY CHECK (id = 0), total BLOB, sha256 BLOB NOT NULL);
CREATE TABLE edges (edge INTEGER PRIMARY KEY, seen INTEGER, status TEXT, sha256 BLOB NOT NULL);
CREATE TABLE balances (edge INTEGER PRIMARY KEY, n INTEGER, total BLOB, sha256 BLOB NOT NULL);
CREATE TABLE open (edge INTEGER, round INTEGER, applied INTEGER, peer_applied INTEGER, peer_sha256 BLOB,
    sha256 BLOB NOT NULL, PRIMARY KEY (edge, round));
CREATE TABLE out (round INTEGER, receiver INTEGER, message BLOB, sha256 BLOB NOT NULL, PRIMARY KEY (round, receiver));
CREATE TABLE ledger (n INTEGER PRIMARY KEY, line TEXT, hash TEXT, round INTEGER, kind TEXT, offered TEXT,
    sha256 BLOB NOT NULL);
CREATE TABLE attempt (id INTEGER PRIMARY KEY CHECK (id = 0), round INTEGER, number INTEGER, sample TEXT,
    sha256 BLOB NOT NULL);
CREATE TABLE transcript (id INTEGER PRIMARY KEY CHECK (id = 0), words BLOB, sha256 BLOB NOT NULL);
CREATE TABLE epoch (id INTEGER PRIMARY KEY CHECK (id = 0), words BLOB, sha256 BLOB NOT NULL);
CREATE TABLE release (id INTEGER PRIMARY KEY CHECK (id = 0), record BLOB, sha256 BLOB NOT NULL);
CREATE TRIGGER ledger_update BEFORE UPDATE ON ledger BEGIN SELECT raise(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER ledger_delete BEFORE DELETE ON ledger BEGIN SELECT raise(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER ledger_insert BEFORE INSERT ON ledger WHEN NEW.n IS NOT (SELECT coalesce(max(n), 0) + 1 FROM ledger)
    BEGIN SELECT raise(ABORT, 'the ledger is append-only'); END;
"""


def digest(*values: object) -> bytes:
    state = hashlib.sha256()
    for value in values:
        raw = value if isinstance(value, bytes) else str(value).encode()
        state.update(f"{type(value).__name__} {len(raw)} ".encode())
        state.update(raw)
    return state.digest()


def text(numbers: Iterable[int]) -> str:
    return json.dumps(list(numbers), separators=(",", ":"))


def write(path: Path, header: Header, plan: str, server: int, start: bytes, b: Books, entries: list[Entry]) -> None:
    """A file with these books and this ledger."""
    rows: list[tuple[Any, ...]] = [
        ("identity", 0, plan, server, header.dataset, header.run, text(b.neighbours), start),
        ("contribution", 0, b.contribution.astype("<i8").tobytes()),
        *(("edges", m, b.seen[m], str(b.status[m])) for m in b.neighbours),
        *(("balances", m, b.balances[m].n, b.balances[m].total.astype("<i8").tobytes()) for m in b.neighbours),
        *(
            ("open", m, i, int(f.applied), int(f.peer_applied), f.peer_sha256)
            for m, flows in b.open.items()
            for i, f in flows.items()
        ),
        *(("out", i, receiver, message) for (i, receiver), message in b.out.items()),
        *(("attempt", 0, a.round, a.number, text(a.sample)) for a in [b.attempt] if a is not None),
        *((name, 0, raw) for name in ("transcript", "epoch", "release") if (raw := getattr(b, name))),
    ]
    two_keys = ("open", "out")
    hashes = {tuple(row[: 3 if row[0] in two_keys else 2]): digest(*row) for row in rows}
    tip, head, ledger = b"", header.hash, []
    for n, entry in enumerate(entries, 1):
        line, head = link(n, head, entry.event)
        row = (n, line, head, entry.event.round, entry.event.kind, text(entry.offered))
        tip = digest(tip, *row)
        ledger.append(("ledger", *row, tip))
    seal = hashlib.sha256(tip + b"".join(hashes[key] for key in sorted(hashes))).digest()
    rows.append(("state", 0, b.decided, b.published, b.rejoined, seal))
    db = sqlite3.connect(path, isolation_level=None)
    db.execute(f"PRAGMA application_id = {APPLICATION}")
    db.execute("PRAGMA journal_mode = WAL")
    for statement in SCHEMA.split(";\n"):
        db.execute(statement)
    for table, *values in [*((*row, digest(*row)) for row in rows), *ledger]:
        db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values)  # noqa: S608
    db.execute("PRAGMA user_version = 1")
    db.close()


def contents(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Every table's rows and every statement that made a table, as SQLite has them, in whatever order."""
    db = sqlite3.connect(path)
    made = db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name").fetchall()
    tables = [name for kind, name, *_ in made if kind == "table"]
    found = {name: sorted(db.execute(f"SELECT * FROM {name}").fetchall()) for name in tables}  # noqa: S608
    version = db.execute("PRAGMA user_version").fetchall()
    db.close()
    return found | {"sqlite_master": made, "version": version}
