"""The ledger: one line for everything that left a unit, each line bound to all lines before it.

    header       {"dataset", "events", "format", "hash", "previous", "promise", "run"}
                 hash = sha256(the rest of the line), previous = null or the last hash of the run before
    event n      {"event", "hash", "n", "previous"}                hash = sha256(previous + canonical(event))

A run's ledger (format 2) keeps one promise: whose data may change, how, and who looks. Its file holds one run (header,
events) or several, one after the other, as they were made.

A data set's ledger (format 3, `data_ledger.py`) says what whole plans cost: its promise names no adversary, and every
event has a cost for each. An event is a reservation, made before the first round, or the end of one.

A line that was changed, added, removed, moved or torn is refused with its number. What no chain of hashes can show is
that whole lines at the END are gone: a finished run therefore states its number of events in its header, the `head` of
a growing one can be kept elsewhere (`read(path, head=...)`), and a bundle (`bundle.py`) is signed.
"""

from __future__ import annotations

import os
import secrets
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn, Self

from confide.base import canonical
from confide.base.durable_files import flush
from confide.base.errors import InputError
from confide.base.files import atomic_file, sync_folder
from confide.base.validation import number, one_of, whole
from confide.laws.law import LAWS, Law
from confide.plans import words
from confide.plans.plan import Plan
from confide.plans.privacy import Privacy
from confide.plans.words import Colluders
from confide.privacy.paid import ADVERSARIES, Paid, Terms, summed, together, worst

FORMAT = 2
OLD = 1  # a ledger of this format says nothing about its promise
OF_DATA = 3  # of a data set: its events are `Spending`s
KINDS = ("message", "release", "skip", "sum")
LARGEST = 2**30  # bytes of a ledger: more than a million events
LONGEST = 2**16  # bytes of a line
_EVENT = ("plan", "kind", "round", "unit", "cost", "sha256", "time")
_COST = ("rho", "epsilon", "sensitivity", "sigma", "law")
SEED = "seed "  # begins the name of a run whose noise follows from a seed, which built-in problems have
CLIENT = "client "  # begins the name of a run that is a client's part of a deployment
UNKNOWN = "is an older ledger, whose promise is not known"
_SPENDING = ("plan", "run", "rounds", "repeats", "costs", "of", "time")


@dataclass(frozen=True, slots=True)
class Cost:
    """What one event costs its unit. None: no bound is known. Zero cost is written 0.0.

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

    @classmethod
    def of(cls, cost: float | None, sensitivity: float, sigma: float, law: Law) -> Self:
        """Of a pure epsilon, which has a rho too, or of a rho, whichever the law charges; None has no bound."""
        name = law.name if sigma else "none"
        if cost is None:
            return cls(None, None, sensitivity, sigma, name)
        if law.pure and sigma:
            return cls(min(cost * cost / 2.0, cost), cost, sensitivity, sigma, name)
        return cls(cost, None if cost else 0.0, sensitivity, sigma, name)


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


@dataclass(frozen=True, slots=True)
class Spending:
    """What a plan costs the worst of its units: before its first round all of it, at its end what was done of it.

    Attributes:
        plan: its hash.
        run: tells two runs of one plan apart.
        rounds: that may be published, or were.
        repeats: runs with noise of their own.
        costs: of all of it, by adversary of `ADVERSARIES`.
        of: of an end, the number of its reservation; None of a reservation.
        time: seconds since 1970.
    """

    plan: str
    run: str
    rounds: int
    repeats: int
    costs: Mapping[str, Paid]
    of: int | None = None
    time: int | None = None

    def __post_init__(self) -> None:
        check_digest("event.plan", self.plan)
        _check_name("event.run", self.run)
        whole("event.rounds", self.rounds, 0)
        whole("event.repeats", self.repeats, 1)
        canonical.check_keys("event.costs", self.costs, ADVERSARIES)
        for name in ("of", "time"):
            if getattr(self, name) is not None:
                whole(f"event.{name}", getattr(self, name), 0)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: object) -> Self:
        table = canonical.check_keys("event", data, _SPENDING)
        costs = canonical.check_keys("event.costs", table["costs"], ADVERSARIES)
        return cls(**{**table, "costs": {name: Paid.from_dict(paid) for name, paid in costs.items()}})


@dataclass(frozen=True, slots=True)
class Promise:
    """What the costs of a ledger are about: whose data may change, how, and who looks.

    Attributes:
        threat: None where each event has a cost for every adversary.
    """

    terms: Terms
    threat: str | None

    def __post_init__(self) -> None:
        if self.threat is not None and str(words.threat(self.threat)) != self.threat:
            raise InputError("ledger.promise.threat", self.threat, f"is spelled {words.threat(self.threat)}")

    @classmethod
    def of(cls, privacy: Privacy) -> Self:
        return cls(Terms.of(privacy), str(privacy.threat))

    def __str__(self) -> str:
        return f"{self.terms}, against {self.threat or 'every adversary'}"

    def to_dict(self) -> dict[str, str]:
        threat = {} if self.threat is None else {"threat": self.threat}
        return {"level": str(self.terms.level), "adjacency": str(self.terms.adjacency)} | threat

    @classmethod
    def from_dict(cls, data: object, format: int) -> Self:
        threat = ("threat",) if format == FORMAT else ()
        table = canonical.check_keys("ledger.promise", data, ("level", "adjacency", *threat))
        return cls(Terms.parse(table["level"], table["adjacency"], "ledger.promise."), table.get("threat"))


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
        _check_name("ledger.run", self.run)
        if self.events is not None:
            whole("ledger.events", self.events, 0)
        if self.previous is not None:
            check_digest("ledger.previous", self.previous)

    @property
    def of_data(self) -> bool:
        return self.promise is not None and self.promise.threat is None

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
        format = OF_DATA if self.promise.threat is None else FORMAT
        return table | {"format": format, "promise": self.promise.to_dict(), "previous": self.previous}

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Self:
        names = ("format", "dataset", "run", "events", "hash")
        if table["format"] == OLD:
            canonical.check_keys("ledger", table, names)
            return cls(table["dataset"], None, table["run"], table["events"])
        canonical.check_keys("ledger", table, (*names, "promise", "previous"))
        promise = Promise.from_dict(table["promise"], table["format"])
        return cls(table["dataset"], promise, table["run"], table["events"], table["previous"])


def link(n: int, previous: str, event: Event | Spending) -> tuple[str, str]:
    """Line and hash of event n (from 1) after the line with the hash `previous`; the first follows `Header.hash`."""
    text = canonical.dumps(event.to_dict(), "event")
    hash = canonical.digest(previous + text)
    return f'{{"event":{text},"hash":"{hash}","n":{n},"previous":"{previous}"}}', hash


def lines(header: Header, events: Iterable[Event | Spending]) -> Iterator[str]:
    """A ledger's lines, without their ends: how a store exports its rows."""
    yield header.line
    head = header.hash
    for n, event in enumerate(events, 1):
        text, head = link(n, head, event)
        yield text


class Part(NamedTuple):
    """One run in a ledger, or what the plans on a data set spent."""

    header: Header
    events: tuple[Event, ...]
    spendings: tuple[Spending, ...] = ()

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
    def terms(self) -> Terms:
        """Of a data set's ledger, which always has some."""
        if self.promise is None:
            raise InputError("ledger", self.where, UNKNOWN)
        return self.promise.terms

    @property
    def spendings(self) -> tuple[Spending, ...]:
        return self.runs[0].spendings

    @property
    def standing(self) -> tuple[Spending, ...]:
        """What counts: of every reservation its end, and all that was reserved where it has none."""
        ends = {s.of: s for s in self.spendings if s.of is not None}
        return tuple(ends.get(n, s) for n, s in enumerate(self.spendings, 1) if s.of is None)

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


def compose(books: Iterable[Book]) -> dict[tuple[int, int], Paid]:
    """What each unit spent, by (run, unit), runs numbered from 0 in the order given."""
    costs: dict[tuple[int, int], list[Cost]] = defaultdict(list)
    for n, run in enumerate(run for book in books for run in book.runs):
        for event in run.events:
            costs[n, event.unit].append(event.cost)
    return {key: _together(of) for key, of in sorted(costs.items())}


def _together(costs: Sequence[Cost]) -> Paid:
    """Plain sums, in rho and in pure epsilon. Nobody counted the draws of discrete noise: more than there can be."""
    from confide.laws.conversion import MANY_DRAWS  # a client is to be small, and converts nothing

    laws = [LAWS[name] for name in {cost.law for cost in costs} - {"none"}]
    gaussian, draws = all(law.normal for law in laws), MANY_DRAWS * any(law.on_grid for law in laws)
    return Paid(summed([c.rho for c in costs]), summed([c.epsilon for c in costs]), gaussian, draws)


def paid_by(books: Sequence[Book]) -> Paid:
    """All that was spent by these runs, at most, each of them about one adversary: of each run its worst unit.

    Numbers of units mean nothing across plans: unit 0 of one may be unit 3 of another. Runs that shared their noise
    have no sum: the difference of two noisy models may be a clean one.
    """
    if (why := sharing(books)) is not None:
        return Paid.unknown(why)
    units: dict[int, list[Paid]] = defaultdict(list)
    for (run, _), paid in compose(books).items():
        units[run].append(paid)
    each = [worst(of) for of in units.values()]
    return replace(together(each), draws=max((paid.draws for paid in each), default=0))


def sharing(books: Iterable[Book], *more: tuple[str, str]) -> str | None:
    """Why these, and `more` (run, plan), have no sum: some share their noise; None where none do.

    Plans share it that draw it from one seed, and clients of one plan, whose servers add it once for all of them.
    """
    made: list[tuple[str, str | None]] = [*more]
    for book in books:
        made += [(run.header.run, run.plan) for run in book.runs] + [(s.run, s.plan) for s in book.standing]
    shared: dict[str, set[str]] = defaultdict(set)
    for name, plan in made:
        if name.startswith(SEED) and plan is not None:
            shared[f"runs with {name} share their noise: give each run another seed"].add(plan)
        elif name.startswith(CLIENT):
            shared[f"clients of the plan {plan} share its noise: no two of them may have the same data"].add(name)
    return next((why for why, of in shared.items() if len(of) > 1), None)


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
        for other in found:
            if reason := unlike(other, book):
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
    promise, another = promise_of(first), promise_of(other)
    if promise is not None and another is not None:  # what one says under the other's terms, a sum asks itself
        threat = promise.threat or another.threat
        another = replace(promise, threat=another.threat or threat)
        promise = replace(promise, threat=threat)
    return broken(promise, first.where, another, "this one")


def broken(first: Promise | None, where: str, other: Promise | None, what: str) -> str | None:
    """Why the costs of two promises have no sum, or None."""
    for promise, place in ((first, where), (other, what)):
        if promise is None:
            remedy = "whose data, and against whom; keep its plan.json beside it, or ask for it alone"
            return f"cannot be added: {place} {UNKNOWN}, {remedy}"
    if first != other:
        return f"cannot be added: {where} is about {first}; {what} about {other}. Unlike promises have no sum"
    if first is not None and first.threat is not None and isinstance(words.threat(first.threat), Colluders):
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
    table = plan.get("privacy", plan)
    return Promise(Terms.parse(table["level"], table["adjacency"]), str(words.threat(table["threat"])))


def verify_lines(texts: Sequence[str], where: str) -> Book:
    """The ledger in a list of lines, as a bundle holds it."""
    return _book(((text + "\n").encode() for text in texts), where)


def book_lines(book: Book) -> Iterator[str]:
    """All lines of a ledger, as they were read."""
    for run in book.runs:
        yield from lines(run.header, (*run.events, *run.spendings))


def write_events(
    path: str | Path, dataset: str, plan: Plan, events: Iterable[Event], run: str = "", after: Book | None = None
) -> None:
    """A finished ledger in one go, that of a run `after` others: all of it or nothing, and never over an existing one.

    Whoever adds a run has made sure that it may be added (`broken`).
    """
    events = tuple(events)
    for event in events:
        if event.plan != plan.hash:
            raise InputError("event.plan", event.plan, f"must be the hash of the plan, {plan.hash}")
    header = Header(dataset, Promise.of(plan.privacy), run, len(events), None if after is None else after.head)
    before = () if after is None else book_lines(after)
    _create(Path(path), "".join(text + "\n" for text in (*before, *lines(header, events))))


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


def _check_name(field: str, value: object) -> None:
    if not isinstance(value, str) or len(value) > 200:
        raise InputError(field, value, "must be a name of at most 200 letters")


def check_digest(field: str, value: object) -> None:
    if not canonical.is_digest(value):
        raise InputError(field, value, "must be a sha256 in 64 hex digits")


class _Reader:
    """Takes the lines one by one and refuses the first that does not follow from those before it."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.line = 0
        self.runs: list[tuple[Header, list[Event | Spending]]] = []
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
            event = self._event(text, table, header, len(events) + 1)
            if isinstance(event, Spending) and event.of is not None:
                self._check_end(event, events)
            events.append(event)

    def finish(self) -> Book:
        if not self.runs:
            self.line = 1
            self._fail("is missing: the file is empty")
        header, events = self.runs[-1]
        if header.events is not None and len(events) != header.events:
            self.line += 1
            self._fail(f"is missing: the run was finished with {header.events} events and holds {len(events)}")
        parts = []
        for header, events in self.runs:
            of_runs = tuple(e for e in events if isinstance(e, Event))
            parts.append(Part(header, of_runs, tuple(e for e in events if isinstance(e, Spending))))
        return Book(self.where, tuple(parts), tuple(self.hashes))

    def _begin(self, text: str, table: Any) -> None:
        if not isinstance(table, Mapping) or "format" not in table:
            self._fail("is not the first line of a ledger")
        if table["format"] not in (OLD, FORMAT, OF_DATA) or type(table["format"]) is not int:
            self._fail(f"has format {table['format']!r}; this confide reads {OLD} to {OF_DATA}")
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

    def _check_end(self, end: Spending, before: Sequence[Event | Spending]) -> None:
        known = {n: s for n, s in enumerate(before, 1) if isinstance(s, Spending)}
        begun = known.get(end.of or 0)
        if begun is None or begun.of is not None or any(s.of == end.of for s in known.values()):
            self._fail(f"ends event {end.of}, which is no reservation, or was ended before")
        if (begun.plan, begun.run, begun.repeats) != (end.plan, end.run, end.repeats) or end.rounds > begun.rounds:
            self._fail(f"ends event {end.of}, which reserved something else")

    def _event(self, text: str, table: Any, header: Header, n: int) -> Event | Spending:
        previous = self.hashes[-1]
        if not isinstance(table, Mapping) or set(table) != {"event", "hash", "n", "previous"}:
            self._fail("is not an event: it was changed, or added")
        if table["n"] != n:
            self._fail(f"holds event {table['n']!r} where {n} belongs: a line was removed, added, moved or changed")
        if table["previous"] != previous:
            self._fail("does not follow from the line before: a line was removed, added, moved or changed")
        problem = "was changed: its content does not have the hash it carries"
        try:
            event = (Spending if header.of_data else Event).from_dict(table["event"])
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
    return reader.finish()


def _raw_lines(file: BinaryIO, where: str) -> Iterator[bytes]:
    """Lines end with \\n and with nothing else; one that is too long comes without its end."""
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
            flush(file, text.encode())
        try:
            os.link(temporary, path)  # unlike a rename it never replaces; the rename that follows does nothing
        except FileExistsError:
            raise InputError("ledger", str(path), "exists; a ledger is never overwritten, name another") from None
    sync_folder(path.parent)
