"""What a client must not forget: the last round in which it answered an unmasking question (or gave its update, where
sums are in clear), and under a cap in how many rounds it has given data, and which was the last.

Two answers in one round would open two sums whose difference is a client's update; in clear, a server whose store was
put back would publish the round again, with other noise. So the round is on disk before the answer leaves (`write` has
returned), and likewise a round in which data are given before anything is computed from them (`count` has returned).
No number ever falls, and one file serves one client, of one unit, under one plan, in one process at a time. Whoever
puts an old copy of the file back can make a client answer twice, or give data more often than it may: back up the data,
not this file.

The file is a list of lines, each of which says everything; the last one holds. A line is one sector of a disk and is
appended: a few times as quick as to replace the file, which every round of every client waits for. A last line that is
short was cut off by a crash before anybody relied on it.
"""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from confide.base import canonical
from confide.base.closing import Closing
from confide.base.durable_files import replace_file
from confide.base.errors import BusyError, InputError, RunError, refused
from confide.base.files import check_writable
from confide.base.validation import whole

FORMAT: Final = 3
READ: Final = (2, FORMAT)  # 2 is one line alone
LAST_ROUND: Final = 2**32 - 1
SECTOR: Final = 512  # bytes of a line
MOST: Final = 2048  # lines; then the file begins anew
_FIELDS = ("answered", "client", "format", "given", "given_last", "plan", "unit")  # and sha256, of these


class Owner(NamedTuple):
    """Whose record it is."""

    plan: bytes  # the plan's hash
    unit: int
    client: int


class Given(NamedTuple):
    """In how many rounds data were given, under a cap, and which was the last; 0 for none."""

    rounds: int = 0
    last: int = 0


class Record:
    """In memory: for rehearsals and tests, where it outlives a client that is thrown away, but not the process.

    Attributes:
        owner: whose it is.
        answered: the last round that was answered, 0 for none.
        given: what `count` has kept.
    """

    def __init__(self, owner: Owner) -> None:
        self.owner, self.answered, self.given = owner, 0, Given()

    def write(self, round: int) -> None:
        """Keep a later round as answered; when this returns it outlives a crash."""
        if whole("round", round, 1, LAST_ROUND) <= self.answered:
            raise InputError(
                "round", round, f"round {self.answered} was already answered; a client's record cannot go back"
            )
        self._keep(round, self.given)

    def count(self, round: int) -> None:
        """Keep that data are given in a later round; when this returns it outlives a crash."""
        if whole("round", round, 1, LAST_ROUND) <= self.given.last:
            raise InputError(
                "round", round, f"round {self.given.last} was already counted; a client's record cannot go back"
            )
        self._keep(self.answered, Given(self.given.rounds + 1, round))

    def _keep(self, answered: int, given: Given) -> None:
        self.answered, self.given = answered, given


class FileRecord(Closing, Record):
    """The file; `PATH.lock` beside it keeps other processes out and stays when this one ends."""

    def __init__(self, path: str | Path, owner: Owner) -> None:
        super().__init__(owner)
        self._path = Path(os.path.realpath(path))  # two names of one file have one lock
        self._file, self._lines = -1, 0  # open from the first line that is written here
        self._lock = _locked(self._path)
        try:
            _check_writable(self._path)
            if os.path.lexists(self._path):
                self.answered, self.given = _read(self._path, owner)
            else:
                self._keep(self.answered, self.given)
        except BaseException:
            self.close()
            raise

    def _keep(self, answered: int, given: Given) -> None:
        if self._lock < 0:
            raise RunError(f"{self._path}: the record is closed; another process may hold it by now")
        line = _line(self.owner, answered, given)
        if self._lines < MOST and self._is_there():
            self._append(line)
        else:
            self._begin(line)
        super()._keep(answered, given)

    def _is_there(self) -> bool:
        """Whether the open file is the one of that name: somebody may have removed or replaced it."""
        if self._file < 0:
            return False
        try:
            return os.path.samestat(os.fstat(self._file), os.lstat(self._path))
        except OSError:
            return False

    def _append(self, line: bytes) -> None:
        try:
            if (n := os.write(self._file, line)) < len(line):
                os.write(self._file, line[n:])  # which says why
            os.fsync(self._file)
        except OSError as e:
            self._end()  # what is there now is cut off; the next line begins the file anew
            raise _unusable(self._path, e) from None
        self._lines += 1

    def _begin(self, line: bytes) -> None:
        self._end()
        try:
            replace_file(self._path, line, 0o600)
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        except InputError as e:
            raise type(e)("record", str(self._path), e.remedy) from None
        except OSError as e:
            raise _unusable(self._path, e) from None
        self._lines = 1

    def _end(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def close(self) -> None:
        self._end()
        if self._lock >= 0:
            os.close(self._lock)  # the lock ends with it
        self._lock = -1

    def __del__(self) -> None:
        with suppress(AttributeError):  # it never got as far as its lock
            self.close()


def _locked(path: Path) -> int:
    lock = path.with_name(path.name + ".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except (OSError, ValueError) as e:
        raise _unusable(path, e) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        remedy = "is in use by another process; stop that client, or give this one a record of its own"
        raise BusyError("record", str(path), remedy) from None
    except OSError as e:
        os.close(fd)
        remedy = f"cannot be locked on this file system ({e.strerror or e}); put it on a local disk"
        raise InputError("record", str(path), remedy) from None
    return fd


def _check_writable(path: Path) -> None:
    """Before the first round, not in the middle of it."""
    with suppress(FileNotFoundError):
        if not stat.S_IMODE(os.stat(path).st_mode) & stat.S_IWUSR:
            raise InputError("record", str(path), "is read-only; make it writable if it is this client's own")
    try:
        check_writable(path.parent)
    except InputError as e:
        raise type(e)("record", str(path), e.remedy) from None


def _read(path: Path, owner: Owner) -> tuple[int, Given]:
    lines = canonical.read_text(path, "record", SECTOR * (MOST + 1)).split("\n")
    if len(lines) > 1 and len(lines[-1]) < SECTOR - 1:
        lines.pop()
    answered, given = 0, Given()
    for line in lines:
        before = answered, given
        table = _table(path, line.rstrip(" "))
        for name, mine in zip(("plan", "unit", "client"), _named(owner), strict=True):
            if table[name] != mine:
                remedy = (
                    f"is of {name} {table[name]!r}, not {mine!r}; every plan and every client has a record of its own"
                )
                raise InputError("record", str(path), remedy)
        answered, given = table["answered"], Given(table["given"], table["given_last"])
        if answered < before[0] or given.last < before[1].last:
            raise _damaged(path)
    return answered, given


def _table(path: Path, text: str) -> dict[str, Any]:
    """What a line says, or an error that says what to do with a file that is no record."""
    try:
        table = canonical.loads(text, "record")
    except InputError:
        table = None
    if isinstance(table, dict):
        found = table.get("format")
        if isinstance(found, int) and found > FORMAT:
            raise InputError("record", str(path), f"has format {found}; this confide reads {FORMAT}: update confide")
        if found == 1 and not isinstance(found, bool):
            remedy = f"has format 1, of an earlier confide, and this one writes {FORMAT}: begin a new plan"
            raise InputError("record", str(path), remedy)
        claimed = table.pop("sha256", None)
        if table.keys() == {*_FIELDS} and found in READ and claimed == canonical.digest(canonical.dumps(table)):
            for name in ("answered", "given", "given_last"):
                whole(f"record.{name}", table[name], 0, LAST_ROUND)
            return table
    raise _damaged(path)


def _damaged(path: Path) -> InputError:
    remedy = "is no record, or damaged: this client may have answered rounds that it does not know of; begin a new plan"
    return InputError("record", str(path), remedy)


def _named(owner: Owner) -> tuple[str, int, int]:
    return owner.plan.hex(), owner.unit, owner.client


def _line(owner: Owner, answered: int, given: Given) -> bytes:
    plan, unit, client = _named(owner)
    table: dict[str, Any] = {
        "answered": answered, "client": client, "format": FORMAT, "given": given.rounds, "given_last": given.last,
        "plan": plan, "unit": unit,
    }  # fmt: skip
    table["sha256"] = canonical.digest(canonical.dumps(table))
    return canonical.dumps(table).encode().ljust(SECTOR - 1) + b"\n"


def _unusable(path: Path, error: Exception) -> InputError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return refused("record", str(path), f"cannot be written ({reason})", "name a place that this client may use", error)
