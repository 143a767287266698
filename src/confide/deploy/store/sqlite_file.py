"""The file of a store: made whole, opened by one process, refused when it is another's, newer or damaged.

Nothing here knows what the tables mean; `books` and `sqlite` do.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Final

from confide.base.errors import BusyError, FinalError, InputError, RunError
from confide.base.files import sync_folder
from confide.deploy.store.books import TABLES

APPLICATION = 0x636F6E66  # "conf", in the header of every store
WAL_PAGES = 2**14  # 64 MiB of log before it is written back: that costs three more fsyncs than a plain commit
REJOIN = "keep the file, and rejoin with a new store (`confide server CONFIG --rejoin`): a copy publishes rounds twice"
AGAIN = "check the disk, then start again: nothing before this step is lost"
_EXISTS = "exists; a store is never overwritten, name another"

VERSION: Final = max(table.since for table in TABLES)
_ALWAYS = """
CREATE TABLE identity (id INTEGER PRIMARY KEY CHECK (id = 0), plan TEXT, server INTEGER, dataset TEXT, run TEXT,
    neighbours TEXT, start BLOB, sha256 BLOB NOT NULL);
CREATE TABLE ledger (n INTEGER PRIMARY KEY, line TEXT, hash TEXT, round INTEGER, kind TEXT, offered TEXT,
    sha256 BLOB NOT NULL);
CREATE TRIGGER ledger_update BEFORE UPDATE ON ledger BEGIN SELECT raise(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER ledger_delete BEFORE DELETE ON ledger BEGIN SELECT raise(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER ledger_insert BEFORE INSERT ON ledger WHEN NEW.n IS NOT (SELECT coalesce(max(n), 0) + 1 FROM ledger)
    BEGIN SELECT raise(ABORT, 'the ledger is append-only'); END;
"""

Fill = Callable[[sqlite3.Connection, frozenset[str]], None]  # what goes into these tables, which are new in the file
_Made = dict[tuple[str, str], str | None]  # (kind, name) -> the statement that made it, None if another one did


class StoreError(RunError):
    """The store cannot be used or written: which table and row, what is wrong, and what to do."""

    def __init__(self, path: Path, problem: str, table: str = "", row: object = None, remedy: str = AGAIN) -> None:
        self.problem, self.table, self.row, self.remedy = problem, table, row, remedy
        where = f"{table}, row {row}: " if row is not None else f"{table}: " if table else ""
        super().__init__(f"{path}: {where}{problem}; {remedy}")


class DamagedError(StoreError):
    """It does not read as it was written. A disk that fails is no other thing to SQLite."""


class LostError(StoreError, FinalError):
    """It was damaged when it was read again, too, or it was moved away: to start again as it is would help nobody."""


def create(path: Path, fill: Fill) -> None:
    """A new file with the tables and what `fill` puts into them, or no file; an existing one stays."""
    for file in (path, *side_files(path)):  # SQLite would read an old log into the new file
        if os.path.lexists(file):
            raise InputError("store", str(file), _EXISTS)
    temporary = _temporary(path)
    try:
        with translated(path), _closed(_connect(temporary, "rw")) as db:
            _lock(path, db)
            with transaction(db):
                db.execute(f"PRAGMA application_id = {APPLICATION}")
                _complete(db, fill)
                db.execute(f"PRAGMA user_version = {VERSION}")
            empty_log(db)  # closing would do it, and would not say if it cannot
        try:
            os.link(temporary, path)  # unlike a rename it never replaces
        except FileExistsError:
            raise InputError("store", str(path), _EXISTS) from None
        except OSError as e:
            raise _not_made(path, e) from e
    finally:
        for file in (temporary, *side_files(temporary)):
            file.unlink(missing_ok=True)
    with suppress(OSError):  # a folder that may not be read cannot be synced; the file is whole
        sync_folder(path.parent)


def connect(path: Path, fill: Fill, *, look: bool = False) -> sqlite3.Connection:
    """The file, locked for the life of the connection, in this version, and whole as far as SQLite can tell.

    An older one gets the tables that it lacks, and what `fill` puts into them, or stays as it was. Where one only
    looks, it gets them in a transaction that never ends.
    """
    _check_ours(path)
    with translated(path), closed_on_error(_connect(path, "rw")) as db:
        _check_application(path, db)
        _lock(path, db)
        _check_log(path, db)
        version = _version(path, db)
        _check_pages(path, db, version)
        if version < VERSION and look:
            db.execute("BEGIN")
            _complete(db, fill)
        elif version < VERSION:
            with transaction(db):
                _complete(db, fill)
                db.execute(f"PRAGMA user_version = {VERSION}")
        return db


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """All of it or nothing; durable at the end."""
    try:
        db.execute("BEGIN IMMEDIATE")
        yield
        db.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # a full disk has rolled back already
            db.execute("ROLLBACK")
        raise


def _temporary(path: Path) -> Path:
    """An empty file beside `path` that only its owner can read."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as e:
        raise _not_made(path, e) from e
    os.close(handle)
    return Path(name)


def _not_made(path: Path, error: OSError) -> InputError | StoreError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        return StoreError(path, f"cannot be made ({error.strerror})", remedy="make room, or check the disk")
    return InputError("store", str(path), f"cannot be made ({error.strerror}); name another folder")


def side_files(path: Path) -> list[Path]:
    return [path.with_name(path.name + end) for end in ("-wal", "-shm", "-journal")]


def inodes(path: Path) -> list[tuple[int, int]]:
    """Which files stand under the names of the store and its log: SQLite would go on writing into a removed one."""
    found = []
    for file in (path, side_files(path)[0]):
        with suppress(OSError):
            info = file.stat()
            found.append((info.st_dev, info.st_ino))
    return found


def check_readable(path: Path) -> None:
    """Whether its bytes can be read at all. No connection to it may be open, see `_check_ours`."""
    for file in (path, side_files(path)[0]):
        with translated(path), suppress(FileNotFoundError), open(file, "rb") as raw:
            while raw.read(2**20):
                pass


def _check_ours(path: Path) -> None:
    """Is it there, ours and writable? Never opened but through SQLite: closing it would undo this process's locks."""
    try:
        info = path.stat()
    except OSError as e:
        raise InputError("store", str(path), f"cannot be opened ({e.strerror}); name this server's store") from None
    if not stat.S_ISREG(info.st_mode):
        raise InputError("store", str(path), "is not a file; name this server's store")
    # Immutable: no lock, no log, nothing is written. Without its log a store may look damaged, and be whole with it.
    with suppress(sqlite3.DatabaseError), _closed(_connect(path, "ro&immutable=1")) as db:
        _check_application(path, db)
    if not _permitted(path):
        raise InputError("store", str(path), "the file and its folder must be writable; change their permissions")


def _permitted(path: Path) -> bool:
    file = os.access(path, os.R_OK | os.W_OK) or not os.path.lexists(path)
    return file and os.access(path.parent, os.W_OK | os.X_OK)


def _check_application(path: Path, db: sqlite3.Connection) -> None:
    try:
        ours = db.execute("PRAGMA application_id").fetchone()[0] == APPLICATION
    except sqlite3.DatabaseError as e:
        if e.sqlite_errorcode != sqlite3.SQLITE_NOTADB:
            raise
        ours = False
    if not ours:
        raise InputError("store", str(path), "is not a store of confide; it was left as it is, name another")


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    db = sqlite3.connect(
        f"{path.as_uri()}?mode={mode}", uri=True, timeout=0, isolation_level=None, check_same_thread=False
    )
    db.execute("PRAGMA locking_mode = EXCLUSIVE")  # before anything is read: the log's index then stays in memory
    db.execute("PRAGMA trusted_schema = OFF")
    db.execute("PRAGMA temp_store = MEMORY")  # nothing secret in /tmp
    return db


def _lock(path: Path, db: sqlite3.Connection) -> None:
    """For the life of the connection."""
    if db.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
        raise InputError("store", str(path), "this file system cannot hold it; name another folder")
    db.execute("PRAGMA synchronous = FULL")
    db.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
    db.execute("PRAGMA secure_delete = FAST")  # ON would write every dropped message once more, as zeros
    db.execute("PRAGMA cell_size_check = ON")
    db.execute("BEGIN IMMEDIATE")
    db.execute("COMMIT")


def _check_log(path: Path, db: sqlite3.Connection) -> None:
    """Refuse a log in which SQLite stopped too early, then empty it.

    SQLite believes the log up to the first frame that does not add up, as after a crash. But a transaction begins only
    when the one before is on the disk: a whole one with a later frame behind it was acknowledged, and is damaged.
    """
    believed = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1]
    page = db.execute("PRAGMA page_size").fetchone()[0]
    lost = False
    with suppress(FileNotFoundError), open(side_files(path)[0], "rb") as log:  # only the store itself has locks
        header = log.read(32)
        frames = (os.fstat(log.fileno()).st_size - 32) // (24 + page)
        if frames > 0:
            lost = not _log_header_holds(header, page)
            ended = False
            for n in range(believed, 0 if lost else frames):
                log.seek(32 + n * (24 + page))
                _, size, *salts = struct.unpack(">4I", log.read(16))
                if struct.pack(">2I", *salts) == header[16:24]:  # else left over from before the log began anew
                    lost = lost or ended
                    ended = ended or size > 0
    if lost:
        db.execute("PRAGMA user_version = -1")  # or the next start would believe what is left
        raise DamagedError(path, "its log (-wal) is damaged: steps that had left are lost")
    empty_log(db)


def empty_log(db: sqlite3.Connection) -> None:
    """Write the log back; nothing is left in it, nor of transactions that failed."""
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()


def _log_header_holds(header: bytes, page: int) -> bool:
    """The checksum of the log's first 32 bytes, by the rule of the file format."""
    magic = int.from_bytes(header[:4], "big")
    order = ">" if magic & 1 else "<"
    words = struct.unpack(f"{order}6I", header[:24])
    a = b = 0
    for x, y in zip(words[::2], words[1::2], strict=True):
        a = (a + x + b) % 2**32
        b = (b + y + a) % 2**32
    known = magic in (0x377F0682, 0x377F0683) and int.from_bytes(header[8:12], "big") == page
    return known and struct.pack(">2I", a, b) == header[24:]


def _version(path: Path, db: sqlite3.Connection) -> int:
    version: int = db.execute("PRAGMA user_version").fetchone()[0]
    if version > VERSION:
        remedy = f"was made by a newer confide (version {version}; this one reads {VERSION}); use that"
        raise InputError("store", str(path), remedy)
    if version < 1:
        raise DamagedError(path, "was found damaged")
    return version


def _complete(db: sqlite3.Connection, fill: Fill) -> None:
    """The tables that are not there yet, and what is in them."""
    lacking = {key: statement for key, statement in _expected(VERSION).items() if key not in _made(db)}
    for statement in filter(None, lacking.values()):
        db.execute(statement)
    fill(db, frozenset(name for kind, name in lacking if kind == "table"))


def _check_pages(path: Path, db: sqlite3.Connection, version: int) -> None:
    """SQLite's own check, and that tables and triggers are those of this version."""
    found = [row[0] for row in db.execute("PRAGMA integrity_check(1)")]
    if found != ["ok"]:
        raise DamagedError(path, f"is damaged ({' '.join(found[0].split())})")
    if _made(db) != _expected(version):
        raise DamagedError(path, "its tables or triggers were changed", "sqlite_master")


@cache
def _expected(version: int) -> _Made:
    """In the order in which they are made."""
    statements = _ALWAYS.strip().rstrip(";").split(";\n")
    statements += [table.sql(*["seal BLOB"] * (table.name == "state")) for table in TABLES if table.since <= version]
    with _closed(sqlite3.connect(":memory:", isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)
        return _made(db)


def _made(db: sqlite3.Connection) -> _Made:
    rows = db.execute("SELECT type, name, sql FROM sqlite_master ORDER BY rowid")
    return {(kind, name): sql for kind, name, sql in rows}


@contextmanager
def _closed(db: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    try:
        yield db
    finally:
        db.close()


@contextmanager
def closed_on_error(db: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    try:
        yield db
    except BaseException:
        with suppress(sqlite3.Error):
            db.close()
        raise


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """SQLite's refusals in our words."""
    try:
        yield
    except sqlite3.ProgrammingError as e:
        raise RunError(f"{path}: the store is closed ({e})") from e
    except sqlite3.Error as e:
        code = getattr(e, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # the rest says where in SQLite
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            remedy = "is in use by another process or server; stop that one, or name another"
            raise BusyError("store", str(path), remedy) from None
        if code == sqlite3.SQLITE_FULL:
            remedy = "make room, and it goes on: nothing of this step was written, nothing before it is lost"
            raise StoreError(path, "the disk is full", remedy=remedy) from e
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
            if _permitted(path):  # then SQLite could not make its log, and does not say why
                remedy = "see that the disk has room, and the machine descriptors; nothing before this step is lost"
                raise StoreError(path, f"cannot be opened or written ({e})", remedy=remedy) from e
            remedy = f"cannot be opened or written ({e}); change the permissions of the file and its folder"
            raise InputError("store", str(path), remedy) from e
        if code == sqlite3.SQLITE_IOERR:
            raise StoreError(path, f"the disk refused ({e})") from e
        raise DamagedError(path, f"is damaged ({e})") from e
    except OSError as e:  # of what is read beside SQLite
        raise StoreError(path, f"the disk refused ({e.strerror or e})") from e
    except UnicodeDecodeError as e:  # SQLite quotes the damaged name of a table
        raise DamagedError(path, "is damaged (a name that is not text)") from e
