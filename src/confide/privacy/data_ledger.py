"""Spending belongs to the data: the ledger of a data set, to which every plan on these data is added before it runs.

    STATE/ledgers/ID.jsonl           of a data set, a ledger of format 3
    STATE/ledgers/plans/HASH.json    of what it names, so that it can be priced again under another promise
    STATE/ledgers/index.json         names and files of data, and the ID of each; its owner's alone

A plan reserves all that it may cost before its first round, under a lock, so that two plans at a time see each other.
What it really cost is written at its end. A reservation without an end counts in full: a crash forgets no spending.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any, Final

from confide.base.errors import InputError
from confide.base.files import atomic_file, locked, sync_folder
from confide.plans.plan import Plan
from confide.plans.privacy import Privacy
from confide.privacy.ledger import Book, Header, Promise, Spending, dataset_id, lines, random_id, read, sharing
from confide.privacy.paid import ADVERSARIES, NOTHING, Paid, Terms, adversary, least
from confide.privacy.price import Price, price
from confide.privacy.run_ledger import PLANS

INDEX: Final = "index.json"
ENDING: Final = ".jsonl"


def folder() -> Path:
    """Where ledgers of data sets are: $CONFIDE_STATE, or the user's state folder."""
    given = os.environ.get("CONFIDE_STATE")
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return (Path(given) if given else state / "confide") / "ledgers"


@dataclass(frozen=True)
class Reservation:
    """What a plan may spend.

    Attributes:
        rounds: that the budget pays for.
        earlier: what was spent on these data before, as the plan's own adversary sees it.
        n: its number in the ledger.
    """

    ledger: DataLedger
    price: Price
    spending: Spending
    earlier: Paid
    n: int

    @property
    def rounds(self) -> int:
        return self.spending.rounds

    @property
    def notes(self) -> tuple[str, ...]:
        return () if self.earlier == NOTHING else (said(self.earlier, self.price.plan),)

    def end(self, rounds: int) -> None:
        """So many rounds were made, and no other will be.

        Raises:
            RunError: the disk is full. All that was reserved then counts as spent.
        """
        with self.ledger.held() as book:
            there = () if book is None else book.spendings
            # Where the ledger was taken away meanwhile nothing is ended, and what was spent is written down anew.
            of = self.n if there[self.n - 1 : self.n] == (self.spending,) else None
            if of is None or all(s.of != of for s in there):
                self.ledger.add(book, self.price, self.spending.run, rounds, self.spending.repeats, of)


@dataclass(frozen=True)
class DataLedger:
    """The ledger of a data set, which may not be there yet.

    Attributes:
        dataset: its id; None is any, and a random one for a new ledger.
    """

    path: Path
    dataset: str | None = None

    def book(self) -> Book | None:
        if not self.path.exists():
            return None
        book = read(self.path)
        if not book.header.of_data:
            raise InputError("output.ledger", str(self.path), "is the ledger of a run, not of a data set; name another")
        if self.dataset not in (None, book.dataset):
            raise InputError("output.ledger", str(self.path), "is of other data than those named; name another")
        return book

    @contextmanager
    def held(self) -> Iterator[Book | None]:
        """The ledger as it stays until this is over: nobody else writes meanwhile."""
        with _held(self.path):
            yield self.book()

    def reserve(self, found: Price, rounds: int, run: str, repeats: int = 1) -> Reservation:
        """Write down what a plan may cost, before its first round.

        Args:
            run: tells two runs of one plan apart.
            repeats: runs with noise of their own, each of which is paid for.

        Raises:
            InputError: after what earlier plans spent the budget does not pay for a single round.
        """
        with self.held() as book:
            earlier = spent_before(book, self.path, found.plan)
            allowed = found.affordable(rounds, earlier, repeats)
            spending = self.add(book, found, run, allowed, repeats)
            return Reservation(self, found, spending, earlier, 1 if book is None else len(book.spendings) + 1)

    def reserve_whole(self, found: Price, run: str) -> None:
        """As `reserve`, all of a plan or nothing."""
        with self.held() as book:
            self.check_pays(book, found)
            self.add(book, found, run, found.plan.rounds, 1)

    def check_pays(self, book: Book | None, found: Price) -> Paid:
        """What was spent before.

        Raises:
            InputError: after that the budget does not pay for all rounds and releases.
        """
        plan = found.plan
        earlier = spent_before(book, self.path, plan)
        remedy = f"cannot pay for this plan, since {said(earlier, plan)}; take no part in it"
        try:
            paid_for = found.affordable(plan.rounds, earlier) == plan.rounds
        except InputError as e:
            raise InputError("ledger", str(self.path), f"{remedy} ({e})") from None
        if not paid_for:
            raise InputError("ledger", str(self.path), remedy)
        return earlier

    def add(
        self, book: Book | None, found: Price, run: str, rounds: int, repeats: int, of: int | None = None
    ) -> Spending:
        """A line for a reservation, or for the end of one; the caller holds the lock."""
        plan, terms = found.plan, Terms.of(found.plan.privacy)
        header = Header(self.dataset or random_id(), Promise(terms, None)) if book is None else book.header
        costs: Mapping[str, Paid] = {name: paid.times(repeats) for name, paid in found.spent(rounds).items()}
        spending = Spending(plan.hash, run, rounds, repeats, costs, of, int(time.time()))
        if book is not None and book.terms != terms:
            try:
                costs = under(spending, terms, book.terms, plan)
            except InputError as e:
                costs = dict.fromkeys(ADVERSARIES, Paid.unknown(str(e)))
            spending = replace(spending, costs=costs)
        kept = self.path.parent / PLANS / f"{plan.hash}.json"
        if not kept.exists():
            kept.parent.mkdir(exist_ok=True, mode=0o700)
            plan.save(kept)
        before = () if book is None else book.spendings
        _write(self.path, "".join(f"{text}\n" for text in lines(header, (*before, spending))))
        return spending


def of_data(name: str | None, source: str | Path | None) -> DataLedger:
    """The ledger in the state folder of data with this name, or from this file.

    Args:
        source: a file, or words for what is none.

    Raises:
        InputError: the file has changed, and no name says whose data it holds now.
    """
    path = folder() / INDEX
    with _held(path):
        index = _index()
        id = _identity(index["names"], index["sources"], name, None if source is None else _source(source))
        _write(path, json.dumps(index, indent=1) + "\n")
    return DataLedger(folder() / f"{id}{ENDING}", id)


def of_run(private: bool, spec: Mapping[str, Any], privacy: Privacy, given: str | Path | None) -> DataLedger | None:
    """The ledger that a simulation pays into: the given one, or that of somebody's named data or file."""
    if given is not None:
        name = privacy.dataset
        return DataLedger(_real(given), None if name is None else dataset_id(name))
    source = spec.get("path")
    if not private or (source is None and privacy.dataset is None):
        return None
    return of_data(privacy.dataset, None if source is None else Path(source))


@dataclass(frozen=True)
class Enrolment:
    """A client of a deployment, who pays for all of a plan, once.

    Who comes back has paid, whatever the data are by then.

    Attributes:
        run: whose client it is.
        given: the ledger, where it is not that of these data in the state folder.
        name, source: of the data, see `of_data`.
    """

    plan: Plan
    run: str
    given: Path | None
    name: str | None
    source: str | Path

    def pay(self) -> None:
        """Before it enrols.

        Raises:
            InputError: the ledger cannot pay for the plan, or the data have changed since an earlier plan.
        """
        if not self._paid(self._there()):
            dataset = None if self.name is None else dataset_id(self.name)
            given = self.given
            ledger = of_data(self.name, self.source) if given is None else DataLedger(_real(given), dataset)
            ledger.reserve_whole(price(self.plan), self.run)

    def outlook(self) -> str:
        """What `pay` would find; nothing is written. It raises what `pay` does, but for data that have changed."""
        book = self._there()
        if self._paid(book):
            return "this plan is paid for"
        ledger = DataLedger(Path("it") if book is None else Path(book.where))
        earlier = ledger.check_pays(book, price(self.plan))
        return (
            "nothing was spent on these data"
            if earlier == NOTHING
            else f"pays for this plan; {said(earlier, self.plan)}"
        )

    def _there(self) -> Book | None:
        path = known(self.name or self.source) if self.given is None else self.given
        return None if path is None else DataLedger(path).book()

    def _paid(self, book: Book | None) -> bool:
        return book is not None and any((s.plan, s.run) == (self.plan.hash, self.run) for s in book.spendings)


def known(name: str | Path) -> Path | None:
    """The ledger of the data with this name or from this file; None where there is none."""
    index = _index()
    sources = index["sources"]
    id = index["names"].get(str(name)) or sources.get(_source(name), sources.get(os.path.realpath(name), {})).get("id")
    return folder() / f"{id}{ENDING}" if id and (folder() / f"{id}{ENDING}").exists() else None


def under(
    spending: Spending, terms: Terms, to: Terms, plan: Plan | None, rows: tuple[int, int] | None = None
) -> Mapping[str, Paid]:
    """The costs under other terms: the smaller of what follows from them and of what the plan says, where it is known.

    Raises:
        InputError: nothing proves them.
    """
    if terms == to:
        return spending.costs
    ways = list[Mapping[str, Paid]]()
    steps = terms.steps(to, rows)
    if steps is not None:
        ways.append({name: paid.over(steps) for name, paid in spending.costs.items()})
    if plan is not None:
        with suppress(InputError):
            privacy = replace(plan.privacy, level=to.level, adjacency=to.adjacency)
            again = price(replace(plan, privacy=privacy)).spent(spending.rounds)
            ways.append({name: paid.times(spending.repeats) for name, paid in again.items()})
    if not ways:
        remedy = f"what plan {spending.plan[:12]} cost at {terms} says nothing about {to}; ask about {terms}"
        raise InputError("privacy.level", str(to.level), remedy)
    return {name: least([way[name] for way in ways]) for name in ADVERSARIES}


def added_up(book: Book, to: Terms, rows: tuple[int, int] | None = None) -> dict[str, Paid]:
    """What all plans of a data set cost together, against each adversary: of each its worst unit."""
    if (seed := sharing([book])) is not None:
        return dict.fromkeys(ADVERSARIES, Paid.unknown(f"runs with {seed} share their noise"))
    each = [under(s, book.terms, to, _plan(Path(book.where), s.plan), rows) for s in book.standing]
    return {name: reduce(add, (costs[name] for costs in each), NOTHING) for name in ADVERSARIES}


def spent_before(book: Book | None, path: Path, plan: Plan) -> Paid:
    """What earlier plans cost, as this plan's own adversary sees it and under its terms."""
    if book is None or not book.standing:
        return NOTHING
    who = adversary(plan.privacy.threat)
    if who is None:
        remedy = f"{plan.privacy.threat} names servers by number, which mean nothing in the earlier plans of {path}"
        raise InputError("privacy.threat", str(plan.privacy.threat), f"{remedy}; use neighbours")
    return added_up(book, Terms.of(plan.privacy))[who]


def said(earlier: Paid, plan: Plan) -> str:
    """What was spent before, for people."""
    budget, rho = plan.privacy.budget, "without bound" if earlier.rho is None else f"rho {earlier.rho:.4g}"
    epsilon = None if budget is None or budget.rho is not None else earlier.at(budget.delta)
    beside = "" if epsilon is None else f" (epsilon {epsilon:.4g})"
    return f"earlier plans on the same data spent {rho}{beside} against {plan.privacy.threat}"


def _real(path: str | Path) -> Path:
    """Behind a link, what it points to is replaced, not the link."""
    return Path(os.path.realpath(path))


def _source(data: str | Path) -> str:
    """How the index names a file, or what is none."""
    return os.path.realpath(data) if isinstance(data, Path) else data


@contextmanager
def _held(path: Path) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with locked(path.with_name(f".{path.name}.lock")):
            yield
    except OSError as e:
        remedy = f"cannot be kept ({e.strerror or e}); name another file, or set CONFIDE_STATE to a folder of yours"
        raise InputError("ledger", str(path), remedy) from None


def _plan(ledger: Path, hash: str) -> Plan | None:
    with suppress(InputError):
        return Plan.load(ledger.parent / PLANS / f"{hash}.json")
    return None


def _identity(names: dict[str, str], sources: dict[str, Any], name: str | None, source: str | None) -> str:
    """The id of these data, noted in the index."""
    digest = _digest(source) if source is not None else None
    there = sources.get(source) if source is not None else None
    moved = [k["id"] for path, k in sources.items() if digest and k["digest"] == digest and not os.path.exists(path)]
    same = [there["id"]] if there is not None and there["digest"] == digest else moved
    if name is None:
        if there is not None and not same:
            remedy = (
                "has changed since earlier runs: name the data that it holds now (privacy.dataset = 'NAME'), or go on "
                f"with the ledger of before (output.ledger = '{folder() / (there['id'] + ENDING)}')"
            )
            raise InputError("problem.path", source, remedy)
        id = same[0] if same else random_id()
    else:
        id = names.get(name) or (same[0] if same else dataset_id(name))
        if same and id not in same:
            remedy = "is another data set than these bytes were known as; leave the name out, or use that of before"
            raise InputError("privacy.dataset", name, remedy)
        names[name] = id
    if source is not None:
        sources[source] = {"id": id, "digest": digest}
    return id


def _digest(source: str) -> str | None:
    """Of a file; None of what is none."""
    if not os.path.isfile(source):
        return None
    with open(source, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _index() -> dict[str, dict[str, Any]]:
    path = folder() / INDEX
    if not path.exists():
        return {"names": {}, "sources": {}}
    try:
        index: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        return {"names": dict(index["names"]), "sources": dict(index["sources"])}
    except (ValueError, KeyError, TypeError, OSError):
        remedy = "cannot be read: it says which ledger is of which data; take it from a backup, or name output.ledger"
        raise InputError("index", str(path), remedy) from None


def _write(path: Path, text: str) -> None:
    """All of it or nothing, on the disk, its owner's alone."""
    with atomic_file(path) as temporary:
        os.chmod(temporary, 0o600)
        with open(temporary, "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
    with suppress(OSError):  # a folder that may not be read cannot be synced; the file is whole
        sync_folder(path.parent)
