"""What a client must not forget: the last round in which it answered an unmasking question (or gave its update, where
sums are in clear), and under a cap in how many rounds it has given data, and which was the last.

Two answers in one round would open two sums whose difference is a client's update; in clear, a server whose store was
put back would publish the round again, with other noise. So the round is on disk before the
answer leaves (`write` has returned), and likewise a round in which data are given before anything is computed from
them (`count` has returned). No number ever falls, and one file serves one client, of one unit, under one plan, in one
process at a time. Whoever puts an old copy of the file back can make a client answer twice, or give data more often
than it may: back up the data, not this file.
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

FORMAT: Final = 2
LAST_ROUND: Final = 2**32 - 1
LARGEST: Final = 4096  # bytes of a record
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
    """A small file, replaced whole; `PATH.lock` beside it keeps other processes out and stays when this one ends."""

    def __init__(self, path: str | Path, owner: Owner) -> None:
        super().__init__(owner)
        self._path = Path(os.path.realpath(path))  # two names of one file have one lock
        self._lock = _locked(self._path)
        try:
            _check_writable(self._path)
            if os.path.lexists(self._path):
                self.answered, self.given = _read(self._path, owner)
            else:
                _replace(self._path, owner, self.answered, self.given)
        except BaseException:
            self.close()
            raise

    def _keep(self, answered: int, given: Given) -> None:
        if self._lock < 0:
            raise RunError(f"{self._path}: the record is closed; another process may hold it by now")
        _replace(self._path, self.owner, answered, given)
        super()._keep(answered, given)

    def close(self) -> None:
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
    table = _table(path)
    for name, mine in zip(("plan", "unit", "client"), _named(owner), strict=True):
        if table[name] != mine:
            remedy = f"is of {name} {table[name]!r}, not {mine!r}; every plan and every client has a record of its own"
            raise InputError("record", str(path), remedy)
    return table["answered"], Given(table["given"], table["given_last"])


def _table(path: Path) -> dict[str, Any]:
    """What a record says, or an error that says what to do with a file that is none."""
    text = canonical.read_text(path, "record", LARGEST)
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
        if table.keys() == {*_FIELDS} and claimed == canonical.digest(canonical.dumps(table)):
            for name in ("answered", "given", "given_last"):
                whole(f"record.{name}", table[name], 0, LAST_ROUND)
            return table
    remedy = "is no record, or damaged: this client may have answered rounds that it does not know of; begin a new plan"
    raise InputError("record", str(path), remedy)


def _named(owner: Owner) -> tuple[str, int, int]:
    return owner.plan.hex(), owner.unit, owner.client


def _replace(path: Path, owner: Owner, answered: int, given: Given) -> None:
    plan, unit, client = _named(owner)
    table: dict[str, Any] = {
        "answered": answered, "client": client, "format": FORMAT, "given": given.rounds, "given_last": given.last,
        "plan": plan, "unit": unit,
    }  # fmt: skip
    table["sha256"] = canonical.digest(canonical.dumps(table))
    try:
        replace_file(path, (canonical.dumps(table) + "\n").encode(), 0o600)
    except InputError as e:
        raise type(e)("record", str(path), e.remedy) from None
    except OSError as e:
        raise _unusable(path, e) from None


def _unusable(path: Path, error: Exception) -> InputError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return refused("record", str(path), f"cannot be written ({reason})", "name a place that this client may use", error)
