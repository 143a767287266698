"""The ledger: one line for everything that left a unit, each line bound to all lines before it.

    line 1       {"dataset", "events", "format", "hash", "run"}    hash = sha256(the rest of the line)
    line n + 1   {"event", "hash", "n", "previous"}                hash = sha256(previous + canonical(event))

A ledger belongs to a data set, so that several runs and tuning on the same data add up (`read_all`, `compose`). A
line that was changed, added, removed, moved or torn is refused with its number. What no chain of hashes can show is
that whole lines at the END are gone: a finished ledger therefore states its number of events in line 1, the `head` of
a growing one can be kept elsewhere (`read(path, head=...)`), and a bundle (`bundle.py`) is signed.
"""

from __future__ import annotations

import fcntl
import math
import os
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, NoReturn, Protocol, Self

from confide.errors import InputError, RunError
from confide.files import atomic_file, sync_folder
from confide.privacy import canonical
from confide.privacy.plan import LAWS, Plan
from confide.validation import number, one_of, whole

if TYPE_CHECKING:
    from confide.federation import Federation

FORMAT = 1
KINDS = ("message", "release", "skip", "sum")
LARGEST = 2**30  # bytes of a ledger: more than a million events
LONGEST = 2**16  # bytes of a line
_EVENT = ("plan", "kind", "round", "unit", "cost", "sha256", "time")
_COST = ("rho", "epsilon", "sensitivity", "sigma", "law")
_WRITTEN = "is being written by another process; try again when it has finished"


@dataclass(frozen=True, slots=True)
class Cost:
    """What one event costs its unit; None is not "nothing" but "this bound does not exist".

    Attributes:
        rho: of zero-concentrated differential privacy.
        epsilon: pure.
        sensitivity: Delta_j, in the norm that the law needs.
        sigma: standard deviation of the noise, per coordinate.
        law: of the noise; "none" where there is none.
    """

    rho: float | None
    epsilon: float | None
    sensitivity: float
    sigma: float
    law: str

    def __post_init__(self) -> None:
        for name in _COST[:4]:
            x = getattr(self, name)
            if x is not None or name not in ("rho", "epsilon"):
                object.__setattr__(self, name, number(f"event.cost.{name}", x, 0.0) + 0.0)
        one_of("event.cost.law", self.law, (*LAWS, "none"))


FREE = Cost(0.0, 0.0, 0.0, 0.0, "none")


@dataclass(frozen=True, slots=True)
class Event:
    """One release of one unit, or a round in which it released nothing.

    Attributes:
        plan: hash of the plan it was made under.
        kind: "message" (to the neighbours), "release" (at the end), "skip" (nothing left, cost `FREE`), or "sum" (the
            own server may see the sum of its clients, which is paid for whether a message or a skip of the round
            follows; the message is then `FREE`).
        round: from 1.  unit: from 0.
        sha256: of the bytes that left, if they are kept.
        time: seconds since 1970, in a deployment; a simulation has none, so that its ledger is reproducible.
    """

    plan: str
    kind: str
    round: int
    unit: int
    cost: Cost = FREE
    sha256: str | None = None
    time: int | None = None

    def __post_init__(self) -> None:
        check_digest("event.plan", self.plan)
        one_of("event.kind", self.kind, KINDS)
        object.__setattr__(self, "round", whole("event.round", self.round, 1))
        object.__setattr__(self, "unit", whole("event.unit", self.unit, 0))
        if not isinstance(self.cost, Cost):
            raise InputError("event.cost", self.cost, "must be a Cost")
        if self.kind == "skip" and self.cost != FREE:
            raise InputError("event.cost", self.cost, "a skipped round costs nothing")
        if self.sha256 is not None:
            check_digest("event.sha256", self.sha256)
        if self.time is not None:
            object.__setattr__(self, "time", whole("event.time", self.time, 0))

    def to_dict(self) -> dict[str, Any]:
        cost = {name: getattr(self.cost, name) for name in _COST}
        return {name: getattr(self, name) for name in _EVENT} | {"cost": cost}

    @classmethod
    def from_dict(cls, data: object) -> Self:
        table = canonical.check_keys("event", data, _EVENT)
        cost = canonical.check_keys("event.cost", table["cost"], _COST)
        return cls(**{**table, "cost": Cost(**cost)})


@dataclass(frozen=True)
class Header:
    """Line 1. `run` tells two runs of the same plan apart; `events` is their number once the ledger is finished."""

    dataset: str
    run: str = ""
    events: int | None = None

    def __post_init__(self) -> None:
        check_digest("ledger.dataset", self.dataset)
        if not isinstance(self.run, str) or len(self.run) > 200:
            raise InputError("ledger.run", self.run, "must be a name of at most 200 letters")
        if self.events is not None:
            whole("ledger.events", self.events, 0)

    @property
    def hash(self) -> str:
        return canonical.digest(canonical.dumps(self._table(), "ledger"))

    @property
    def line(self) -> str:
        return canonical.dumps(self._table() | {"hash": self.hash}, "ledger")

    def _table(self) -> dict[str, Any]:
        return {"format": FORMAT, "dataset": self.dataset, "run": self.run, "events": self.events}


def link(n: int, previous: str, event: Event) -> tuple[str, str]:
    """Line and hash of event n (from 1) after the line with the hash `previous`; the first follows `Header.hash`."""
    text = canonical.dumps(event.to_dict(), "event")
    hash = canonical.digest(previous + text)
    return f'{{"event":{text},"hash":"{hash}","n":{n},"previous":"{previous}"}}', hash


def lines(header: Header, events: Iterable[Event]) -> Iterator[str]:
    """A ledger's lines, without their ends: how a store exports its rows."""
    yield header.line
    head = header.hash
    for n, event in enumerate(events, 1):
        text, head = link(n, head, event)
        yield text


class Ledger(Protocol):
    """Where releases are recorded: an event is durable when `append` returns, and only then may its bytes leave."""

    @property
    def dataset(self) -> str: ...

    def append(self, event: Event) -> str:
        """Record the event; returns the hash of its line."""
        ...

    def events(self) -> Iterator[Event]: ...


@dataclass(frozen=True)
class Book:
    """A ledger that was read and whose chain holds."""

    where: str
    header: Header
    events: tuple[Event, ...]
    hashes: tuple[str, ...]  # of every line

    @property
    def dataset(self) -> str:
        return self.header.dataset

    @property
    def head(self) -> str:
        """The hash of the last line: it stands for all of them."""
        return self.hashes[-1]


class Total(NamedTuple):
    """What a unit spent; None when some event has no such bound."""

    events: int
    rho: float | None
    epsilon: float | None


def compose(books: Iterable[Book]) -> dict[tuple[str, int], Total]:
    """Totals by (data set, unit) over all ledgers: plain sums; epsilon at a delta is the accountant's business."""
    costs: dict[tuple[str, int], list[Cost]] = defaultdict(list)
    for book in books:
        for event in book.events:
            costs[book.dataset, event.unit].append(event.cost)
    return {
        key: Total(len(of), _sum([c.rho for c in of]), _sum([c.epsilon for c in of]))
        for key, of in sorted(costs.items())
    }


def all_gaussian(books: Iterable[Book]) -> bool:
    """Whether everything was paid in continuous Gaussian noise, for which rho says all: mu_GDP = sqrt(2 rho)."""
    return all(event.cost.law in ("gaussian", "none") for book in books for event in book.events)


def read(path: str | Path, head: str | None = None) -> Book:
    """The ledger in a file, every line checked; `head`, the hash of a line seen earlier, must still be in it."""
    with _opened(path, os.O_RDONLY) as file:
        _lock(file, path, fcntl.LOCK_SH)
        book = _book(_raw_lines(file, str(path)), str(path))
    if head is not None and head not in book.hashes:
        raise InputError(
            "ledger", str(path), f"line {len(book.hashes) + 1} is missing: it no longer holds the line {head}"
        )
    return book


def read_all(paths: Iterable[str | Path]) -> dict[str, list[Book]]:
    """Ledgers by data set; the same ledger twice, also as an earlier copy of itself, would count double: refused."""
    found: dict[str, list[Book]] = defaultdict(list)
    seen: dict[tuple[str, ...], str] = {}
    for path in paths:
        book = read(path)
        start = book.hashes[:2]  # header and first event: chains that begin alike are one chain
        if start in seen:
            remedy = f"is the same ledger as {seen[start]}; name each once (another run needs another run id)"
            raise InputError("ledger", str(path), remedy)
        seen[start] = str(path)
        found[book.dataset].append(book)
    return dict(found)


def verify_lines(texts: Sequence[str], where: str) -> Book:
    """The ledger in a list of lines, as a bundle holds it."""
    return _book(((text + "\n").encode() for text in texts), where)


def write_events(path: str | Path, dataset: str, plan: Plan, events: Iterable[Event], run: str = "") -> Book:
    """A finished ledger in one go: all of it or nothing, and never over an existing one."""
    path, events = Path(path), tuple(events)
    for event in events:
        if event.plan != plan.hash:
            raise InputError("event.plan", event.plan, f"must be the hash of the plan, {plan.hash}")
    header = Header(dataset, run, len(events))
    hashes, texts = [header.hash], [header.line]
    for n, event in enumerate(events, 1):
        text, hash = link(n, hashes[-1], event)
        texts.append(text)
        hashes.append(hash)
    _create(path, "".join(text + "\n" for text in texts))
    return Book(str(path), header, events, tuple(hashes))


class FileLedger:
    """A growing ledger in a file, held by one process at a time.

    `append` returns when the line is on the disk. After a crash the last line may be torn; opening then fails and
    says so, and `FileLedger.recover` removes it when asked to.
    """

    def __init__(self, path: str | Path, dataset: str | None = None) -> None:
        """Open for appending: takes the lock and checks every line."""
        self.path = Path(path)
        self._guard = threading.Lock()
        self._broken = False
        self._file = _opened(path, os.O_RDWR | os.O_APPEND)
        try:
            _lock(self._file, path, fcntl.LOCK_EX)
            book = _book(_raw_lines(self._file, str(path)), str(path))
            self._header, self._head, self._count = book.header, book.head, len(book.events)
            self._size = os.fstat(self._file.fileno()).st_size
            if dataset is not None and dataset != book.dataset:
                raise InputError("ledger", str(path), f"is of the data set {book.dataset}, not {dataset}")
            if book.header.events is not None:
                raise InputError("ledger", str(path), f"was finished with {book.header.events} events; begin another")
        except BaseException:
            self._file.close()
            raise

    @classmethod
    def create(cls, path: str | Path, dataset: str, run: str = "") -> Self:
        """Begin a ledger; an existing file is refused."""
        _create(Path(path), Header(dataset, run).line + "\n")
        return cls(path, dataset)

    @property
    def dataset(self) -> str:
        return self._header.dataset

    @property
    def head(self) -> str:
        return self._head

    def __len__(self) -> int:
        return self._count

    def append(self, event: Event) -> str:
        with self._guard:
            self._check_open()
            text, hash = link(self._count + 1, self._head, event)
            data = (text + "\n").encode()
            if len(data) > LONGEST or self._size + len(data) > LARGEST:
                raise RunError(f"{self.path}: the ledger is full; begin another")
            fd = self._file.fileno()
            self._broken = True  # until line and state agree again, also if Ctrl-C comes in between
            try:
                _write_all(fd, data)
                os.fsync(fd)
            except BaseException as e:
                with suppress(OSError):
                    os.ftruncate(fd, self._size)
                    os.fsync(fd)
                if isinstance(e, OSError):
                    raise RunError(f"{self.path}: the event could not be recorded ({e.strerror or e})") from e
                raise
            self._count, self._head, self._size = self._count + 1, hash, self._size + len(data)
            self._broken = False
            return hash

    def events(self) -> Iterator[Event]:
        """All events so far, read back from the disk and checked."""
        with self._guard:
            self._check_open()
            with open(os.dup(self._file.fileno()), "rb") as file:  # another buffer: the old one knows no new lines
                return iter(_book(_raw_lines(file, str(self.path)), str(self.path)).events)

    def _check_open(self) -> None:
        if self._broken or self._file.closed:
            raise RunError(f"{self.path}: the ledger is closed, or an append failed; open it again")

    def close(self) -> None:
        self._file.close()  # and with it the lock

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def recover(path: str | Path) -> int:
        """After a crash: remove a torn last line; returns how many bytes went (0: there was nothing to do).

        Every line before it must hold. A last line that lacks only its end is kept and ended: charging a release
        that never left is safe, forgetting one that did is not.
        """
        with _opened(path, os.O_RDWR | os.O_APPEND) as file:
            _lock(file, path, fcntl.LOCK_EX)
            reader = _Reader(str(path))
            whole_bytes, torn = 0, b""
            for raw in _raw_lines(file, str(path)):
                if not raw.endswith(b"\n"):
                    torn = raw
                    break
                reader.read(raw)
                whole_bytes += len(raw)
            if not torn:
                reader.finish()
                return 0
            if reader.header is None:
                raise InputError("ledger", str(path), "line 1 is truncated, and nothing follows it; remove the file")
            kept = True
            try:
                reader.read(torn + b"\n")
                _write_all(file.fileno(), b"\n")
            except InputError:
                kept = False
                os.ftruncate(file.fileno(), whole_bytes)
            os.fsync(file.fileno())
            return 0 if kept else len(torn)


def dataset_id(name: str) -> str:
    """The id of a data set by a name that the user gives it: every run on this data must use the same name.

    >>> dataset_id("hospital 2024")[:8]
    '46d95d25'
    """
    if not isinstance(name, str) or not name.strip():
        raise InputError("dataset", name, "must be a name")
    return canonical.digest(canonical.dumps(["confide data set by name", name], "dataset"))


def federation_id(federation: Federation) -> str:
    """The id of a data set by its contents. For simulations: the hash itself tells about the data.

    Anyone who can guess the data can confirm the guess, so where data are private use `dataset_id`.
    """
    import hashlib

    import numpy as np

    state = hashlib.sha256(b"confide data set by contents\0")
    for name, kind in (("X", "<f8"), ("d", "<f8"), ("client_offsets", "<i8"), ("unit_offsets", "<i8")):
        array = getattr(federation, name)
        state.update(f"{name}{array.shape}".encode())
        rows = max(1, 2**20 // max(1, array[:1].size))
        for start in range(0, len(array), rows):
            state.update(np.ascontiguousarray(array[start : start + rows], dtype=kind).data)
    return state.hexdigest()


def check_digest(field: str, value: object) -> None:
    if not canonical.is_digest(value):
        raise InputError(field, value, "must be a sha256 in 64 hex digits")


class _Reader:
    """Takes the lines one by one and refuses the first that does not follow from those before it."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.line = 0
        self.header: Header | None = None
        self.hashes: list[str] = []

    def read(self, raw: bytes) -> Event | None:
        self.line += 1
        if not raw.endswith(b"\n"):
            if len(raw) > LONGEST:
                self._fail(f"holds more than {LONGEST} bytes")
            self._fail("is truncated: it has no end (after a crash FileLedger.recover removes it)")
        try:
            text = raw[:-1].decode()
            table = canonical.parse(text)
        except (UnicodeDecodeError, InputError):
            self._fail("is not a line of a ledger: it was changed, or the file is something else")
        if self.header is not None:
            return self._event(text, table, self.header)
        self._begin(text, table)
        return None

    def finish(self) -> None:
        if self.header is None:
            self.line = 1
            self._fail("is missing: the file is empty")
        promised, found = self.header.events, len(self.hashes) - 1
        if promised is not None and found != promised:
            self.line += 1
            self._fail(f"is missing: the ledger was finished with {promised} events and holds {found}")

    def _begin(self, text: str, table: Any) -> None:
        if not isinstance(table, Mapping) or "format" not in table:
            self._fail("is not the first line of a ledger")
        if table["format"] != FORMAT or not isinstance(table["format"], int):
            self._fail(f"has format {table['format']!r}; this confide reads {FORMAT}")
        try:
            canonical.check_keys("ledger", table, ("format", "dataset", "run", "events", "hash"))
            header = Header(table["dataset"], table["run"], table["events"])
        except InputError as e:
            self._fail(f"is not the first line of a ledger ({e})")
        if header.line != text:
            self._fail("was changed: its content does not have the hash it carries")
        self.header = header
        self.hashes.append(header.hash)

    def _event(self, text: str, table: Any, header: Header) -> Event:
        n, previous = len(self.hashes), self.hashes[-1]
        if not isinstance(table, Mapping) or set(table) != {"event", "hash", "n", "previous"}:
            self._fail("is not an event: it was changed, or added")
        if table["n"] != n:
            self._fail(f"holds event {table['n']!r} where {n} belongs: a line was removed, added, moved or changed")
        if table["previous"] != previous:
            self._fail("does not follow from the line before: a line was removed, added, moved or changed")
        problem = "was changed: its content does not have the hash it carries"
        try:
            event = Event.from_dict(table["event"])
            expected, hash = link(n, previous, event)
            if expected == text:
                if header.events is not None and n > header.events:
                    self._fail(f"was added: the ledger was finished with {header.events} events")
                self.hashes.append(hash)
                return event
        except InputError as e:
            if e.field == "ledger":
                raise
            with suppress(InputError):
                if table["hash"] == canonical.digest(previous + canonical.dumps(table["event"])):
                    problem = f"holds an event that cannot be: {e}"
        self._fail(problem)

    def _fail(self, problem: str) -> NoReturn:
        raise InputError("ledger", self.where, f"line {self.line} {problem}") from None


def _book(raws: Iterable[bytes], where: str) -> Book:
    reader = _Reader(where)
    events = tuple(event for raw in raws if (event := reader.read(raw)) is not None)
    reader.finish()
    assert reader.header is not None  # noqa: S101 - `finish` refused that
    return Book(where, reader.header, events, tuple(reader.hashes))


def _raw_lines(file: BinaryIO, where: str) -> Iterator[bytes]:
    """Lines end with \\n and with nothing else; one that is too long comes without its end."""
    file.seek(0)
    total = 0
    while raw := file.readline(LONGEST + 1):
        total += len(raw)
        if total > LARGEST:  # it grew since it was opened
            raise InputError("ledger", where, f"holds more than {LARGEST} bytes")
        yield raw


def _opened(path: str | Path, flags: int) -> BinaryIO:
    fd = canonical.open_regular(path, "ledger", flags, LARGEST)
    return open(fd, "rb" if flags & os.O_ACCMODE == os.O_RDONLY else "rb+", buffering=2**20)


def _lock(file: BinaryIO, path: str | Path, kind: int) -> None:
    """The lock goes with the descriptor: it ends with the process, however that ends."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        remedy = _WRITTEN
        if kind == fcntl.LOCK_EX:
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                remedy = "is being read by another process; try again when it has finished"
        raise InputError("ledger", str(path), remedy) from None
    except OSError as e:
        raise InputError("ledger", str(path), f"cannot be locked on this file system ({e.strerror or e})") from None


def _create(path: Path, text: str) -> None:
    """A new file with this text, whole or not at all; an existing one stays."""
    with atomic_file(path) as temporary:
        with open(temporary, "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)  # unlike a rename it never replaces; the rename that follows does nothing
        except FileExistsError:
            raise InputError("ledger", str(path), "exists; a ledger is never overwritten, name another") from None
    with suppress(OSError):  # a folder that may not be read cannot be synced; the file is whole
        sync_folder(path.parent)


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _sum(values: Sequence[float | None]) -> float | None:
    known = [x for x in values if x is not None]
    return math.fsum(known) if len(known) == len(values) else None
