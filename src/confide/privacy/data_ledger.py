"""Spending belongs to the data: the ledger of a data set, to which every plan on these data is added before it runs.

    STATE/ledgers/ID.jsonl           of a data set, a ledger of format 3
    STATE/ledgers/plans/HASH.json    of what it names, so that it can be priced again under another promise

A plan reserves all that it may cost before its first round, under a lock, so that two plans at a time see each other.
What it really cost is written at its end. A reservation without an end counts in full: a crash forgets no spending.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING

from confide.base.durable_files import replace_file
from confide.base.errors import InputError
from confide.base.files import Source
from confide.plans.plan import Plan
from confide.plans.privacy import Privacy
from confide.plans.words import cap
from confide.privacy.data_index import Index, changing, check_head, held, id_of, ledger_of
from confide.privacy.ledger import (
    CLIENT,
    Book,
    Header,
    Promise,
    Spending,
    dataset_id,
    lines,
    random_id,
    read,
    sharing,
    verify_lines,
)
from confide.privacy.paid import ADVERSARIES, NOTHING, Paid, Terms, adversary, least
from confide.privacy.price import Price, price
from confide.privacy.run_ledger import PLAN, PLANS
from confide.privacy.statement import rounded_up

if TYPE_CHECKING:
    from confide.problems.problem import Problem


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
        earlier = () if self.earlier == NOTHING else (said(self.earlier, self.price.plan),)
        many = self.spending.repeats
        alone = f"statement and folder are about one of {many} repeats; the ledger of the data counts all"
        return (*earlier, *(alone,) * (many > 1), *unaccounted(self.ledger.path.stem))

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
        book = read(self.path) if self.path.exists() else None
        check_head(self.path, book)
        if book is None:
            return None
        if not book.header.of_data:
            raise InputError("output.ledger", str(self.path), "is the ledger of a run, not of a data set; name another")
        if self.dataset not in (None, book.dataset):
            raise InputError("output.ledger", str(self.path), "is of other data than those named; name another")
        return book

    @contextmanager
    def held(self) -> Iterator[Book | None]:
        """The ledger as it stays until this is over: nobody else writes meanwhile."""
        with held(self.path):
            yield self.book()

    def reserve(self, found: Price, rounds: int, run: str, repeats: int = 1) -> Reservation:
        """Write down what a plan may cost, before its first round.

        Args:
            run: tells two runs of one plan apart.
            repeats: runs with noise of their own, each of which is paid for.

        Raises:
            InputError: after what earlier plans spent the budget does not pay for a single round, or one of them drew
                the same noise.
        """
        with self.held() as book:
            _check_noise(book, found.plan, run)
            earlier = spent_before(book, self.path, found.plan)
            allowed = found.affordable(rounds, earlier, repeats)
            spending = self.add(book, found, run, allowed, repeats)
            return Reservation(self, found, spending, earlier, 1 if book is None else len(book.spendings) + 1)

    def reserve_whole(self, found: Price, run: str) -> None:
        """As `reserve`, all of a plan or nothing."""
        with self.held() as book:
            self.check_pays(book, found, run)
            self.add(book, found, run, found.plan.rounds, 1)

    def check_pays(self, book: Book | None, found: Price, run: str) -> Paid:
        """What was spent before.

        Raises:
            InputError: after that the budget does not pay for all rounds and releases, or the noise is shared.
        """
        plan = found.plan
        _check_noise(book, plan, run)
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
        texts = list(lines(header, (*before, spending)))
        replace_file(self.path, "".join(f"{text}\n" for text in texts).encode(), 0o600)
        if (id := id_of(self.path)) is not None:
            with changing() as index:
                index.heads[id] = verify_lines(texts, str(self.path)).head
        return spending


def of_data(name: str | None, source: Source | None, given: str | Path | None = None) -> DataLedger:
    """The ledger of data with this name, or from this file: in the state folder, or the given one elsewhere.

    Raises:
        InputError: as `Index.identify`.
    """
    with changing() as index:
        return _found(index, name, source, given)


def _found(index: Index, name: str | None, source: Source | None, given: str | Path | None) -> DataLedger:
    """In a file that is not in the state folder the index knows of nothing; behind a link is what it points to."""
    path = None if given is None else Path(os.path.realpath(given))
    asked = None if path is None else id_of(path)
    if path is not None and asked is None:
        return DataLedger(path, None if name is None else index.names.get(name) or dataset_id(name))
    id = index.identify(name, source, asked)
    return DataLedger(ledger_of(id), id)


def of_run(problem: Problem, privacy: Privacy, given: str | Path | None) -> DataLedger | None:
    """The ledger that a simulation pays into: the given one, or that of somebody's named data or file."""
    source = _source(problem) if problem.private else None
    if given is None and (not problem.private or (source is None and privacy.dataset is None)):
        return None
    return of_data(privacy.dataset, source, given)


def _source(problem: Problem) -> Source | None:
    """As it was read; of a problem that does not say, as it is now."""
    path = problem.spec.get("path")
    return Source.of(path) if problem.source is None and path is not None else problem.source


@dataclass(frozen=True)
class Enrolment:
    """A client of a deployment, who pays for all of a plan, once.

    Who comes back has paid, whatever the data are by then: to stay away would tell of them. What they are then takes
    part, and their ledger says so, whatever its budget.

    Attributes:
        run: whose client it is.
        given: the ledger, where it is not that of these data in the state folder.
        name, source: of the data, see `of_data`.
    """

    plan: Plan
    run: str
    given: Path | None
    name: str | None
    source: Path | None

    def pay(self, *, anew: bool = False) -> None:
        """Before it enrols.

        Args:
            anew: it has no record of what it answered, and may answer again.

        Raises:
            InputError: the ledger cannot pay for the plan, or the data have changed since an earlier plan.
        """
        paid, found = self._paid, price(self.plan)
        if anew or not paid:
            of_data(self.name, self._seen, self.given).reserve_whole(found, self.run)
        elif (id := id_of(paid[0].path)) is not None:
            digest = None if self._seen is None else self._seen.digest
            with changing() as index:
                known = None if digest is None else index.bytes.setdefault(digest, id)
                now = {index.names.get(self.name or ""), known} - {None, *(ledger.path.stem for ledger in paid)}
            for ledger in (DataLedger(ledger_of(other)) for other in now if other is not None):
                with ledger.held() as book:
                    ledger.add(book, found, self.run, self.plan.rounds, 1)

    def outlook(self, *, anew: bool = False) -> str:
        """What `pay` would find, or raise; nothing is written."""
        if self._paid and not anew:
            return "this plan is paid for"
        ledger = _found(Index.load(), self.name, self._seen, self.given)
        earlier = ledger.check_pays(ledger.book(), price(self.plan), self.run)
        if earlier == NOTHING:
            return "nothing was spent on these data"
        return f"pays for this plan; {said(earlier, self.plan)}"

    @cached_property
    def _seen(self) -> Source | None:
        return None if self.source is None else Source.of(self.source)

    @property
    def _paid(self) -> list[DataLedger]:
        """Where; whoever comes back may have other data by then."""
        ids, given = Index.load().ids(self.name, self._seen), self.given
        paths = [ledger_of(id) for id in ids] if given is None else [Path(os.path.realpath(given))]
        books = [(ledger, book) for path in paths if (book := (ledger := DataLedger(path)).book()) is not None]
        mine = (self.plan.hash, self.run)
        return [ledger for ledger, book in books if any((s.plan, s.run) == mine for s in book.spendings)]


def under(
    spending: Spending, terms: Terms, to: Terms, plan: Plan | None, rows: tuple[int, int] | None = None
) -> Mapping[str, Paid]:
    """The costs under other terms: the smaller of what follows from them and of what the plan says, where it is known.

    Raises:
        InputError: nothing proves them.
    """
    if terms == to:
        return spending.costs
    found = translated(spending.costs, terms, to, plan, spending.rounds, spending.repeats, rows)
    if found is None:
        remedy = f"what plan {spending.plan[:12]} cost at {terms} says nothing about {to}; ask about {terms}"
        raise InputError("privacy.level", str(to.level), remedy)
    return found


def translated(
    costs: Mapping[str, Paid],
    terms: Terms,
    to: Terms,
    plan: Plan | None,
    rounds: int,
    repeats: int = 1,
    rows: tuple[int, int] | None = None,
) -> dict[str, Paid] | None:
    """The smaller of what follows from costs of so many rounds and of what the plan says, where it is known."""
    ways = list[Mapping[str, Paid]]()
    steps = terms.steps(to, rows)
    if steps is not None:
        ways.append({name: paid.over(steps) for name, paid in costs.items()})
    if plan is not None:
        with suppress(InputError):
            privacy = replace(plan.privacy, level=to.level, adjacency=to.adjacency)
            again = price(replace(plan, privacy=privacy)).spent(rounds)
            ways.append({name: paid.times(repeats) for name, paid in again.items()})
    return {name: least([way[name] for way in ways]) for name in costs} if ways else None


def added_up(book: Book, to: Terms, rows: tuple[int, int] | None = None) -> dict[str, Paid]:
    """What all plans of a data set cost together, against each adversary: of each its worst unit."""
    if (why := sharing([book])) is not None:
        return dict.fromkeys(ADVERSARIES, Paid.unknown(why))
    each = [under(s, book.terms, to, plan_of(book, s.plan), rows) for s in book.standing]
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


def _check_noise(book: Book | None, plan: Plan, run: str) -> None:
    """What shares its noise with what is there already has no sum."""
    if book is None or (plan.privacy.budget is None and not run.startswith(CLIENT)):
        return  # where nothing is promised, the sum says that it has no bound
    if sharing([book]) is None and (why := sharing([book], (run, plan.hash))) is not None:
        raise InputError("ledger", book.where, f"cannot pay for this as well: {why}")
    if cap(plan.privacy.participation) is not None and any((s.plan, s.run) == (plan.hash, run) for s in book.standing):
        remedy = f"has paid for plan {plan.hash[:12]}, and the record of the rounds that got data is gone"
        raise InputError("ledger", book.where, f"{remedy}: nobody can keep its cap now; take no further part in it")


def note_unaccounted(problem: Problem) -> None:
    """A run without an account has no plan and no cost; that it was made is known to the index."""
    if (source := _source(problem)) is not None:
        with suppress(InputError), changing() as index:
            for id in index.ids(None, source) or {index.identify(None, source)}:
                index.unaccounted[id] = index.unaccounted.get(id, 0) + 1


def unaccounted(dataset: str) -> tuple[str, ...]:
    """What every sum over these data assumes of runs that no ledger can hold."""
    n = Index.load().unaccounted.get(dataset, 0)
    return (f"nothing is shown of {n} run{'s' * (n > 1)} on these data without an account (algorithm.clip)",) * (n > 0)


def said(earlier: Paid, plan: Plan) -> str:
    """What was spent before, for people."""
    p, rho = plan.privacy, "without bound" if earlier.rho is None else f"rho {rounded_up(earlier.rho)}"
    epsilon = None if p.budget is None or p.budget.rho is not None else earlier.at(p.delta)
    beside = "" if epsilon is None else f" (epsilon {rounded_up(epsilon)} at delta {p.delta:g})"
    return f"earlier plans on the same data spent {rho}{beside} against {p.threat}, {Terms.of(p)}"


def plan_of(book: Book, hash: str) -> Plan | None:
    """The plan of this hash, where it is kept beside a ledger; what changed since is not that plan."""
    folder = Path(book.where).parent
    for path in (folder / PLANS / f"{hash}.json", folder / PLAN):
        with suppress(InputError):
            if (plan := Plan.load(path)).hash == hash:
                return plan
    return None
