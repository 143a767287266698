"""The ledger: one line for everything that left a unit, each line bound to all lines before it.

    header       {"dataset", "events", "format", "hash", "previous", "promise", "run"}
                 hash = sha256(the rest of the line), previous = null or the last hash of the run before
    event n      {"event", "hash", "n", "previous"}                hash = sha256(previous + canonical(event))

A ledger belongs to a data set and keeps one promise: whose data may change, how, and who looks. A file holds one run
(header, events) or several, one after the other, as they were made. What unlike promises cost has no sum, so the
promise is in the header and `read_all` refuses to add what is unlike; `spent` adds what is like.

A line that was changed, added, removed, moved or torn is refused with its number. What no chain of hashes can show is
that whole lines at the END are gone: a finished run therefore states its number of events in its header, the `head` of
a growing one can be kept elsewhere (`read(path, head=...)`), and a bundle (`bundle.py`) is signed.
"""

from __future__ import annotations

import math
import os
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn, Protocol, Self

from confide.base import canonical
from confide.base.errors import InputError
from confide.base.files import atomic_file, sync_folder
from confide.base.validation import number, one_of, whole
from confide.laws.law import LAWS
from confide.plans.plan import ADJACENCIES, LEVELS, Plan
from confide.plans.threat import Threat

FORMAT = 2
OLD = 1  # a ledger of this format says nothing about its promise
KINDS = ("message", "release", "skip", "sum")
LARGEST = 2**30  # bytes of a ledger: more than a million events
LONGEST = 2**16  # bytes of a line
_EVENT = ("plan", "kind", "round", "unit", "cost", "sha256", "time")
_COST = ("rho", "epsilon", "sensitivity", "sigma", "law")
SEED = "seed "  # begins the name of a run whose noise follows from a seed, which built-in problems have
_PROMISE = ("level", "adjacency", "threat")


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


class Promising(Protocol):
    """A plan, or the settings of a run."""

    @property
    def level(self) -> str: ...
    @property
    def adjacency(self) -> str: ...
    @property
    def threat(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Promise:
    """What the costs of a ledger are about: whose data may change, how, and who looks."""

    level: str
    adjacency: str
    threat: str

    def __post_init__(self) -> None:
        one_of("ledger.promise.level", self.level, LEVELS)
        one_of("ledger.promise.adjacency", self.adjacency, ADJACENCIES)
        if str(Threat.parse(self.threat)) != self.threat:
            raise InputError("ledger.promise.threat", self.threat, f"is spelled {Threat.parse(self.threat)}")

    @classmethod
    def of(cls, promising: Promising) -> Self:
        return cls(promising.level, promising.adjacency, str(Threat.parse(promising.threat)))

    @property
    def by_number(self) -> bool:
        """Whether the adversary is named by servers' numbers, which mean nothing in another plan."""
        return Threat.parse(self.threat).kind == "colluders"

    @property
    def adversary(self) -> str:
        return Threat.parse(self.threat).words

    def __str__(self) -> str:
        return f"{self.level} level, {self.adjacency}, against {self.threat}"

    def to_dict(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in _PROMISE}


@dataclass(frozen=True)
class Header:
    """The first line of a run.

    Attributes:
        promise: None in an old ledger, which does not say.
        run: tells two runs of the same plan apart.
        events: their number, once the run is finished.
        previous: hash of the last line of the run before, in the same file.
    """

    dataset: str
    promise: Promise | None
    run: str = ""
    events: int | None = None
    previous: str | None = None

    def __post_init__(self) -> None:
        check_digest("ledger.dataset", self.dataset)
        if not isinstance(self.run, str) or len(self.run) > 200:
            raise InputError("ledger.run", self.run, "must be a name of at most 200 letters")
        if self.events is not None:
            whole("ledger.events", self.events, 0)
        if self.previous is not None:
            check_digest("ledger.previous", self.previous)

    @property
    def hash(self) -> str:
        return canonical.digest(canonical.dumps(self._table(), "ledger"))

    @property
    def line(self) -> str:
        return canonical.dumps(self._table() | {"hash": self.hash}, "ledger")

    def _table(self) -> dict[str, Any]:
        table = {"dataset": self.dataset, "run": self.run, "events": self.events}
        if self.promise is None:
            return table | {"format": OLD}
        return table | {"format": FORMAT, "promise": self.promise.to_dict(), "previous": self.previous}

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Self:
        names = ("format", "dataset", "run", "events", "hash")
        if table["format"] == OLD:
            canonical.check_keys("ledger", table, names)
            return cls(table["dataset"], None, table["run"], table["events"])
        canonical.check_keys("ledger", table, (*names, "promise", "previous"))
        promise = Promise(**canonical.check_keys("ledger.promise", table["promise"], _PROMISE))
        return cls(table["dataset"], promise, table["run"], table["events"], table["previous"])


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


class Part(NamedTuple):
    """One run in a ledger."""

    header: Header
    events: tuple[Event, ...]

    @property
    def plan(self) -> str | None:
        """The hash of the plan that its events were made under; None where there are none."""
        return self.events[0].plan if self.events else None


@dataclass(frozen=True)
class Book:
    """A ledger that was read and whose chain holds; its runs are of one data set and keep one promise."""

    where: str
    runs: tuple[Part, ...]
    hashes: tuple[str, ...]  # of every line

    @property
    def header(self) -> Header:
        """Of the first run."""
        return self.runs[0].header

    @property
    def events(self) -> tuple[Event, ...]:
        return tuple(event for run in self.runs for event in run.events)

    @property
    def dataset(self) -> str:
        return self.header.dataset

    @property
    def promise(self) -> Promise | None:
        return self.header.promise

    @property
    def head(self) -> str:
        """The hash of the last line: it stands for all of them."""
        return self.hashes[-1]


class Total(NamedTuple):
    """What was spent; None when some event has no such bound."""

    events: int
    rho: float | None
    epsilon: float | None


def compose(books: Iterable[Book]) -> dict[tuple[int, int], Total]:
    """Totals by (run, unit), runs numbered from 0 in the order given: plain sums, in rho and in pure epsilon."""
    costs: dict[tuple[int, int], list[Cost]] = defaultdict(list)
    for n, run in enumerate(run for book in books for run in book.runs):
        for event in run.events:
            costs[n, event.unit].append(event.cost)
    return {
        key: Total(len(of), _sum([c.rho for c in of]), _sum([c.epsilon for c in of]))
        for key, of in sorted(costs.items())
    }


def spent(books: Iterable[Book]) -> Total:
    """What all these runs cost together, at most: of each run its worst unit.

    Numbers of units mean nothing across plans: unit 0 of one may be unit 3 of another. Runs that shared their noise
    have no sum: the difference of two noisy models may be a clean one.
    """
    books = list(books)
    if sharing(books) is not None:
        return Total(sum(len(book.events) for book in books), None, None)
    units: dict[int, list[Total]] = defaultdict(list)
    for (run, _), total in compose(books).items():
        units[run].append(total)
    rho, epsilon = (_sum([_worst([t[i] for t in of]) for of in units.values()]) for i in (1, 2))
    return Total(sum(t.events for of in units.values() for t in of), rho, epsilon)


def sharing(books: Iterable[Book]) -> str | None:
    """The seed that several of these runs drew their noise from, under unlike plans; None where there is none."""
    plans: dict[str, set[str]] = defaultdict(set)
    for run in (run for book in books for run in book.runs):
        if run.header.run.startswith(SEED) and run.plan is not None:
            plans[run.header.run].add(run.plan)
    return next((name for name, of in plans.items() if len(of) > 1), None)


def epsilon_of(books: Sequence[Book], delta: float) -> float | None:
    """epsilon at delta of all that was spent: by its pure epsilon or by its rho; None where there is no bound."""
    from confide.laws.conversion import smallest

    options = conversions(spent(books), all_gaussian(books))
    if not options or delta == 0.0:
        return options["pure"](delta) if "pure" in options else None
    epsilon, _ = smallest(options, delta, draws_of(books))
    return epsilon if math.isfinite(epsilon) else None


def conversions(total: Total, gaussian: bool) -> dict[str, Callable[[float], float]]:
    """delta -> epsilon, in the ways that hold for this total with ideal noise."""
    from confide.laws.conversion import rho_epsilon

    rho, epsilon = total.rho, total.epsilon
    found: dict[str, Callable[[float], float]] = {}
    if epsilon is not None:
        found["pure"] = lambda delta: epsilon
    if rho is not None:
        found["rho"] = lambda delta: rho_epsilon(rho, delta, gaussian)
    return found


def draws_of(books: Iterable[Book]) -> int:
    """More than the discrete draws behind these events, which nobody counted; 0 where all noise is continuous."""
    from confide.laws.conversion import MANY_DRAWS

    return MANY_DRAWS * any(LAWS[name].on_grid for name in _laws(books))


def _laws(books: Iterable[Book]) -> set[str]:
    return {event.cost.law for book in books for event in book.events} - {"none"}


def all_gaussian(books: Iterable[Book]) -> bool:
    """Whether everything was paid in continuous Gaussian noise, for which rho says all: mu_GDP = sqrt(2 rho)."""
    return all(LAWS[name].normal for name in _laws(books))


def read(path: str | Path, head: str | None = None) -> Book:
    """The ledger in a file, every line checked; `head`, the hash of a line seen earlier, must still be in it."""
    with open(canonical.open_regular(path, "ledger", os.O_RDONLY, LARGEST), "rb", buffering=2**20) as file:
        book = _book(_raw_lines(file, str(path)), str(path))
    if head is not None and head not in book.hashes:
        raise InputError(
            "ledger", str(path), f"line {len(book.hashes) + 1} is missing: it no longer holds the line {head}"
        )
    return book


def read_all(paths: Iterable[str | Path]) -> list[Book]:
    """Ledgers that may be added up; what is unlike, or comes twice, is refused with the reason."""
    found: list[Book] = []
    seen: dict[tuple[str, ...], str] = {}
    for path in paths:
        book = read(path)
        start = book.hashes[:2]  # header and first event: chains that begin alike are one chain
        if start in seen:
            raise InputError("ledger", str(path), f"is the same ledger as {seen[start]}; name each once")
        seen[start] = str(path)
        if found and (reason := unlike(found[0], book)):
            raise InputError("ledger", str(path), reason)
        found.append(book)
    return found


def unlike(first: Book, other: Book) -> str | None:
    """Why what two ledgers cost has no sum, or None."""
    if first.dataset != other.dataset:
        return (
            f"is of the data set {other.dataset[:12]}, and {first.where} of {first.dataset[:12]}: only runs on the "
            f"same data add up; give these one name (privacy.dataset) before they run, or ask for each ledger alone"
        )
    return broken(promise_of(first), first.where, promise_of(other), "this one")


def broken(first: Promise | None, where: str, other: Promise | None, what: str) -> str | None:
    """Why the costs of two promises have no sum, or None."""
    for promise, place in ((first, where), (other, what)):
        if promise is None:
            remedy = "whose data, and against whom; keep its plan.json beside it, or ask for it alone"
            return f"cannot be added: {place} is an older ledger, whose promise is not known, {remedy}"
    assert first is not None and other is not None  # noqa: S101, PT018 - just refused
    if first != other:
        return f"cannot be added: {where} is about {first}; {what} about {other}. Unlike promises have no sum"
    if first.by_number:
        remedy = "runs against servers by number stand alone, those against neighbours add up"
        return f"cannot be added: {first.threat} names servers by number, which mean nothing in another plan; {remedy}"
    return None


def promise_of(book: Book) -> Promise | None:
    """What a ledger says about itself; an old one says nothing, but the plan beside it may."""
    hashes = {event.plan for event in book.events}
    path = Path(book.where).parent / "plan.json"
    if book.promise is not None or len(hashes) != 1 or not path.is_file():
        return book.promise
    text = canonical.read_text(path, "plan", 2**26)
    if canonical.digest(text) not in hashes:
        return None
    plan = canonical.loads(text, "plan")  # only these words are used: today's Plan may not read a plan of that time
    return Promise(plan["level"], plan["adjacency"], str(Threat.parse(plan["threat"])))


def verify_lines(texts: Sequence[str], where: str) -> Book:
    """The ledger in a list of lines, as a bundle holds it."""
    return _book(((text + "\n").encode() for text in texts), where)


def book_lines(book: Book) -> Iterator[str]:
    """All lines of a ledger, as they were read."""
    for run in book.runs:
        yield from lines(run.header, run.events)


def write_events(
    path: str | Path, dataset: str, plan: Plan, events: Iterable[Event], run: str = "", after: Book | None = None
) -> Book:
    """A finished ledger in one go, that of a run `after` others: all of it or nothing, and never over an existing one.

    Whoever adds a run has made sure that it may be added (`broken`).
    """
    path, events = Path(path), tuple(events)
    for event in events:
        if event.plan != plan.hash:
            raise InputError("event.plan", event.plan, f"must be the hash of the plan, {plan.hash}")
    header = Header(dataset, Promise.of(plan), run, len(events), None if after is None else after.head)
    texts, hashes = [] if after is None else list(book_lines(after)), [] if after is None else [*after.hashes]
    texts.append(header.line)
    hashes.append(header.hash)
    for n, event in enumerate(events, 1):
        text, hash = link(n, hashes[-1], event)
        texts.append(text)
        hashes.append(hash)
    _create(path, "".join(text + "\n" for text in texts))
    runs = () if after is None else after.runs
    return Book(str(path), (*runs, Part(header, events)), tuple(hashes))


def dataset_id(name: str) -> str:
    """The id of a data set by a name that the user gives it: every run on this data must use the same name.

    >>> dataset_id("hospital 2024")[:8]
    '46d95d25'
    """
    if not isinstance(name, str) or not name.strip():
        raise InputError("dataset", name, "must be a name")
    return canonical.digest(canonical.dumps(["confide data set by name", name], "dataset"))


def random_id() -> str:
    """The id of a data set that was given no name. It says nothing about the data, unlike a hash of them."""
    return secrets.token_hex(32)


def check_digest(field: str, value: object) -> None:
    if not canonical.is_digest(value):
        raise InputError(field, value, "must be a sha256 in 64 hex digits")


class _Reader:
    """Takes the lines one by one and refuses the first that does not follow from those before it."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.line = 0
        self.runs: list[tuple[Header, list[Event]]] = []
        self.hashes: list[str] = []

    def read(self, raw: bytes) -> None:
        self.line += 1
        if not raw.endswith(b"\n"):
            if len(raw) > LONGEST:
                self._fail(f"holds more than {LONGEST} bytes")
            self._fail("is truncated: it has no end")
        try:
            text = raw[:-1].decode()
            table = canonical.parse(text)
        except (UnicodeDecodeError, InputError):
            self._fail("is not a line of a ledger: it was changed, or the file is something else")
        if not self.runs or (isinstance(table, Mapping) and "format" in table):
            self._begin(text, table)
        else:
            header, events = self.runs[-1]
            events.append(self._event(text, table, header, len(events) + 1))

    def finish(self) -> None:
        if not self.runs:
            self.line = 1
            self._fail("is missing: the file is empty")
        header, events = self.runs[-1]
        if header.events is not None and len(events) != header.events:
            self.line += 1
            self._fail(f"is missing: the run was finished with {header.events} events and holds {len(events)}")

    def _begin(self, text: str, table: Any) -> None:
        if not isinstance(table, Mapping) or "format" not in table:
            self._fail("is not the first line of a ledger")
        if table["format"] not in (OLD, FORMAT) or type(table["format"]) is not int:
            self._fail(f"has format {table['format']!r}; this confide reads {OLD} and {FORMAT}")
        try:
            header = Header.from_dict(table)
        except InputError as e:
            self._fail(f"is not the first line of a ledger ({e})")
        if header.line != text:
            self._fail("was changed: its content does not have the hash it carries")
        if header.previous != (self.hashes[-1] if self.hashes else None):
            self._fail("does not follow from the line before: a line was removed, added, moved or changed")
        if self.runs:
            first, (before, events) = self.runs[0][0], self.runs[-1]
            if len(events) != before.events:
                self._fail(
                    f"begins a run where {before.events} events belong to the one before, which has {len(events)}"
                )
            if (header.dataset, header.promise) != (first.dataset, first.promise):
                self._fail("begins a run on other data or with another promise than the first")
        self.runs.append((header, []))
        self.hashes.append(header.hash)

    def _event(self, text: str, table: Any, header: Header, n: int) -> Event:
        previous = self.hashes[-1]
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
                    self._fail(f"was added: the run was finished with {header.events} events")
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
    for raw in raws:
        reader.read(raw)
    reader.finish()
    return Book(where, tuple(Part(header, tuple(events)) for header, events in reader.runs), tuple(reader.hashes))


def _raw_lines(file: BinaryIO, where: str) -> Iterator[bytes]:
    """Lines end with \\n and with nothing else; one that is too long comes without its end."""
    file.seek(0)
    total = 0
    while raw := file.readline(LONGEST + 1):
        total += len(raw)
        if total > LARGEST:  # it grew since it was opened
            raise InputError("ledger", where, f"holds more than {LARGEST} bytes")
        yield raw


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


def _sum(values: Sequence[float | None]) -> float | None:
    known = [x for x in values if x is not None]
    return math.fsum(known) if len(known) == len(values) else None


def _worst(values: Sequence[float | None]) -> float | None:
    known = [x for x in values if x is not None]
    return max(known, default=0.0) if len(known) == len(values) else None
