"""What a plan costs: every round and every release, against every adversary. Nothing else in the project computes it.

A simulation and a deployment of the same plan have the same price. Whoever prints an epsilon, keeps a budget or writes
a ledger asks a `Price`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from confide.base.errors import InputError
from confide.base.validation import whole
from confide.graph import Graph
from confide.laws.law import DISCRETE_GAUSSIAN, GAUSSIAN, Law
from confide.laws.noise import LARGEST_SCALE
from confide.plans.build import of_run
from confide.plans.plan import Plan
from confide.plans.privacy import Budget, Privacy
from confide.plans.words import Always, Centroid, Consensus, Links, Neighbours, Nothing, Threat
from confide.privacy import accountant, deviation
from confide.privacy.accountant import Question
from confide.privacy.closed_forms import covers
from confide.privacy.course import Account, Bound, tried
from confide.privacy.ledger import FREE, Cost
from confide.privacy.paid import ADVERSARIES, NOTHING, Paid, onlookers, worst
from confide.privacy.reveal import Reveal
from confide.privacy.sensitivity import Sensitivity
from confide.privacy.statement import Statement, statement_of
from confide.privacy.sum_noise import SumNoise
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL
from confide.rounds.arithmetic import FixedArithmetic, scheme_on_grid
from confide.rounds.schemes import Scheme
from confide.secure.release import Terms

SILENT: Final = Paid(0.0, 0.0, True, proof="one server sends no messages")
PAIRS: Final = (
    "pair noise is a function of the edge's keys, the plan and the round: the same plan run again from empty stores "
    "repeats it, and differences of messages are without it; make another plan for another run"
)

START: Final = (
    "the initial weights of the model, and what of it is not trained, are public: they were computed from nothing that "
    "is protected here"
)

OWN_STEP: Final = (
    "the local step is not confide's: that what it gives for one client follows from the model and that client's data "
    "alone is assumed; in a simulation one process trains for many clients, whose data a module must not keep"
)

IN_RANGE: Final = (
    "all clients of the unit send in range: masks hide what they send, and one that lies can put the sum at the edge "
    "of its ring, where the update of another turns it round"
)


def price(plan: Plan) -> Price:
    """What a plan costs.

    Args:
        plan: of a simulation or a deployment.

    Returns:
        A `Price`: `statement()` is for people, `after(rounds)` is epsilon against the plan's adversary.

    Raises:
        InputError: the plan's proof does not hold for its model, step or round.
    """
    if plan.algorithm.model.undeclared:
        return Price(plan, None, None)
    return Price(plan, deviation.sensitivity(plan), inside_sums(plan))


def price_run(
    problem: Problem, graphs: Sequence[Graph], algorithm: GFL, rounds: int, seed: int, privacy: Privacy
) -> Price:
    """What a run of this problem would cost; its data are looked at only for what was declared of them.

    Raises:
        InputError: as `price`, or the data are not as declared.
    """
    plan = of_run(problem, graphs, algorithm, rounds, seed, privacy)
    deviation.check_data(plan, problem)
    return price(plan)


def agreed(plan: Plan) -> Price:
    """The price of a plan that real machines may run.

    Raises:
        InputError: the budget does not pay for all rounds and releases, or there is no price for the plan's own
            adversary or for links, and the plan does not say so itself (`privacy.unprotected`).
    """
    plan.deployed()
    found = price(plan)
    for name, sigma in (("sigma", plan.scheme.sigma), ("sigma_pair", plan.scheme.sigma_pair)):
        if sigma / found.arithmetic.quantum > LARGEST_SCALE:
            raise InputError(f"scheme.{name}", sigma, "is more than 2^50 quanta wide; use fewer fraction bits")
    _ = found.largest, found.reveal_terms  # refused here, and not in the first round
    found.check_budget()
    if found.unprotected and not plan.privacy.unprotected:
        remedy = f"{'; '.join(found.unprotected)}. To agree all the same, set true: every statement begins with this"
        raise InputError("privacy.unprotected", False, remedy)
    return found


def inside_sums(plan: Plan) -> SumNoise | None:
    """The noise inside the plan's secure sums, if there is any."""
    secure, a = plan.secure, plan.algorithm
    if secure is None or secure.sigma == 0.0 or a.fraction_bits is None:
        return None
    return SumNoise.of(secure, a.fraction_bits, a.model.length)


@dataclass(frozen=True)
class Price:
    """Of one plan, see `price`.

    Attributes:
        sensitivity: how far one client moves its server; None where the data were prepared from everybody's rows, so
            that nothing has a price.
        inside: noise inside the secure sums.
    """

    plan: Plan
    sensitivity: Sensitivity | None
    inside: SumNoise | None
    _bounds: dict[tuple[Threat, bool, bool], Bound] = field(default_factory=dict, repr=False, compare=False)

    @property
    def scheme(self) -> Scheme:
        """As it is computed: in fixed point with the carry of the integers."""
        return self.plan.scheme if self.plan.algorithm.fraction_bits is None else scheme_on_grid(self.plan.scheme)

    @cached_property
    def reveal(self) -> Reveal:
        """The plan's release, with shares of noise for its own adversary."""
        p = self.plan.privacy
        return Reveal.sized(p.release, p.threat, self.plan.graph.graphs, p.releases)

    @property
    def releases(self) -> int:
        """How many releases the plan allows."""
        return 0 if isinstance(self.plan.privacy.release, Nothing) else self.plan.privacy.releases

    @cached_property
    def arithmetic(self) -> FixedArithmetic:
        """The grid of the states.

        Raises:
            InputError: the plan computes in floating point.
        """
        found = deviation.arithmetic(self.plan)
        if found is None:
            raise InputError("algorithm.arithmetic", "float", "servers compute with integers; set 'fixed'")
        return found

    @cached_property
    def largest(self) -> float:
        """What no state and no message exceeds in absolute value."""
        return deviation.largest(self.plan, self.arithmetic)

    @cached_property
    def reveal_terms(self) -> Terms | None:
        """Of the sum over servers that a centroid is released by; None where the plan has none."""
        plan, graphs = self.plan, self.plan.graph.graphs
        if not isinstance(plan.privacy.release, Centroid):
            return None
        known = Reveal.sized(plan.privacy.release, Neighbours(), graphs).colluders
        sized, known = min(self.reveal.colluders, plan.P - 1), min(known, plan.P - 1)
        length, quantum = plan.algorithm.model.length, self.arithmetic.quantum
        found = Terms(plan.P, plan.privacy.release.sigma, quantum, length, sized, known)
        found.check_fits(self.largest)
        return found

    # ---- one adversary

    def account(
        self, rounds: int, releases: int = 0, threat: Threat | None = None, *, with_sums: bool = True
    ) -> Account:
        """What an adversary, by default the plan's own, can learn from so many rounds and releases at their end.

        Args:
            with_sums: whether the noise of clients counts, inside the secure sums or on their links.

        Raises:
            InputError: no proof covers it.
        """
        whole("rounds", rounds, 1, self.plan.rounds)
        found = self._bound(threat or self.plan.privacy.threat, releases > 0, with_sums).at(rounds, releases)
        sure = not self.plan.algorithm.dropout and not self.plan.graph.failures  # else an update may not be there
        assumptions = (*found.assumptions, *self._in_range(found), *self._beside())
        return replace(found, exact=found.exact and sure, assumptions=assumptions)

    def known(
        self, rounds: int, releases: int, threat: Threat | None = None, *, with_sums: bool = True
    ) -> Account | None:
        """The same; None where no proof covers it."""
        try:
            return self.account(rounds, releases, threat, with_sums=with_sums)
        except InputError:
            return None

    def after(self, rounds: int, releases: int = 0, threat: Threat | None = None) -> float | None:
        """epsilon at the plan's delta after so many rounds and releases; None where there is none."""
        if rounds == 0:
            return 0.0
        found = self.known(rounds, releases, threat)
        return None if found is None or found.leak else found.epsilon

    def so_far(self, rounds: Sequence[int], last: int | None = None) -> list[float] | None:
        """epsilon after each of these numbers of rounds, of the `last` with all releases; None where there is none."""
        early = [j for j in rounds if j != last]
        try:
            found = self._bound(self.plan.privacy.threat, False, True).epsilons(early).tolist()
        except InputError:
            return None
        end = self.after(last, self.releases) if last in rounds and last is not None else 0.0
        if end is None or not all(map(math.isfinite, found)):
            return None
        return [*found, end] if last in rounds else found

    # ---- budget

    def affordable(self, rounds: int, earlier: Paid = NOTHING, repeats: int = 1) -> int:
        """Rounds that the budget pays for, all releases at their end included; all of them without a budget.

        Args:
            earlier: what other plans spent before.  repeats: runs that are each paid for.

        Raises:
            InputError: it does not pay for a single round, or there is no price to hold against it.
        """
        budget = self.plan.privacy.budget
        if budget is None:
            return rounds
        # Graphs that take turns keep more of a deviation in one round than in the next, and a release tells of what is
        # kept: the last rounds of all turns are looked at, so that a run may end after any of its rounds.
        turns = len(self.plan.graph.graphs) if self.releases else 1

        def within(j: int) -> bool:
            if earlier == NOTHING and repeats == 1:
                return budget.allows(self.account(j, self.releases))
            mine = self._paid(self.plan.privacy.threat, j, self.releases).times(repeats)
            return budget.allows(earlier + mine)

        allowed = largest(rounds, lambda j: all(within(i) for i in range(max(1, j - turns + 1), j + 1)))
        if allowed == 0:
            one = self.account(1, self.releases)
            spent = "a leak" if one.leak else f"{one.used(budget):.4g}"
            remedy = f"does not pay for a single round, which costs {spent}"
            if repeats > 1:
                remedy += f" in each of {repeats} repeats"
            if earlier != NOTHING:
                before = earlier.used(budget)
                remedy += f", after {'what has no bound' if math.isinf(before) else f'{before:.4g}'} that earlier runs "
                remedy += "on the same data spent"
            raise InputError(_key(budget), budget.limit, f"{remedy}; add noise")
        return allowed

    def check_budget(self) -> None:
        """Refuse a budget that does not pay for all that the plan allows."""
        budget = self.plan.privacy.budget
        if budget is None:
            return
        try:
            total = self.account(self.plan.rounds, self.releases)
        except InputError as e:
            raise InputError(_key(budget), budget.limit, f"cannot be kept: {e}") from None
        if total.leak and total.epsilon is None and total.rho is None:
            raise InputError(_key(budget), budget.limit, f"cannot be kept: {total.assumptions[0]}")
        if not total.costs:
            part = self.plan.privacy.participation
            remedy = f"participation {part} has no price for a single round; use all or cap:N"
            raise InputError(_key(budget), budget.limit, remedy)
        if not budget.allows(total):
            paid = largest(self.plan.rounds, lambda j: budget.allows(self.account(j, self.releases)))
            counted = "the release" if self.plan.privacy.releases == 1 else f"{self.plan.privacy.releases} releases"
            remedy = f"pays for {paid} of the {self.plan.rounds} rounds, {counted} included; run fewer or add noise"
            raise InputError(_key(budget), budget.limit, remedy)

    # ---- all adversaries

    @cached_property
    def unprotected(self) -> tuple[str, ...]:
        """Why there is no epsilon against the plan's own adversary, or against who listens on links."""
        plan = self.plan
        if plan.algorithm.model.undeclared:
            return plan.algorithm.model.undeclared
        own = (plan.privacy.threat, self.releases)
        heard = self.releases if isinstance(plan.privacy.release, Consensus) else 0
        asked: list[tuple[Threat, int]] = [own] if plan.P == 1 else list(dict.fromkeys((own, (Links(), heard))))
        why = dict[str, None]()
        for threat, releases in asked:
            try:
                found = self.account(plan.rounds, releases, threat)
                reason = found.assumptions[0].removeprefix("leak: ") if found.leak else ""
            except InputError as e:
                reason = str(e)
            if reason:
                why[f"there is no epsilon against {threat.adversary}: {reason}"] = None
        if why and plan.scheme.sigma_pair and plan.deployment is not None:
            why[PAIRS] = None
        return tuple(why)

    def statement(self, rounds: int | None = None) -> Statement:
        """About so many rounds (the plan's) and all releases, against everybody that could look."""
        plan, p, rounds = self.plan, self.plan.privacy, self.plan.rounds if rounds is None else rounds
        accounts: tuple[Account, ...] = ()
        refused: tuple[tuple[str, str], ...] = ()

        def ask(threat: Threat, released: bool) -> Account:
            return self.account(rounds, self.releases if released else 0, threat)

        if self.sensitivity is not None:
            accounts, refused = statement_of(plan.P, self._pairs, p.release, ask)
        law, promise = str(plan.scheme.law), (str(p.level), str(p.adjacency), p.delta)
        return Statement(rounds, law, accounts, refused, self.unprotected, *promise)

    @property
    def _pairs(self) -> bool:
        """Whether it matters which server colludes, see `statement_of`."""
        return bool(self.plan.scheme.sigma_pair) or not covers(self.plan.scheme)

    # ---- what a ledger holds

    @cached_property
    def by_sums(self) -> bool:
        """Whether the price is that of the sums that the own server sees, which it pays for before it asks for them."""
        return self._total is not None and self._total.by == "sum"

    @cached_property
    def _by_clients(self) -> bool:
        """Whether it is that of the noisy updates, of which all else is a function."""
        return self._total is not None and self._total.by == "clients"

    @cached_property
    def messages(self) -> tuple[Cost, ...]:
        """What the j-th publication of any unit costs, j = 1..T: the worst unit's cost.

        Where no cost of a round exists (a leak, a refusal, `random`, `amplified`) it is written with None, so that a
        total over it has no bound either. One proof prices all events: that of the statement about rounds and release
        together.
        """
        plan, total = self.plan, self._total
        if self.by_sums and self.inside is not None:
            return _events(total, plan.rounds, self.inside.sigma, DISCRETE_GAUSSIAN)
        if self._by_clients:
            return _events(total, plan.rounds, plan.scheme.sigma_client, plan.scheme.law)
        if plan.P == 1 and total is not None and not total.leak:  # no message leaves: the release is all
            return (FREE,) * plan.rounds
        sent = self.known(plan.rounds, 0, with_sums=False)
        return _events(sent, plan.rounds, plan.scheme.sigma, plan.scheme.law)

    @cached_property
    def release(self) -> Cost | None:
        """Of each release after all rounds; None where the plan has none."""
        return self.release_after(self.plan.rounds) if self.releases else None

    @cached_property
    def _total(self) -> Account | None:
        """The plan's own adversary after all rounds and releases."""
        return self.known(self.plan.rounds, self.releases)

    def release_after(self, published: int) -> Cost:
        """What each release costs a unit that has paid for so many publications.

        Rounds may be skipped, so that a release follows fewer publications than the plan has rounds. What a server's
        messages and what its release tell may be worst of two different targets, one of them early and one late: each
        number of publications has its own price, with which all events add up to the account of so many.
        """
        if not self.releases or published == 0 or self.by_sums or self._by_clients:
            return FREE
        sigma = self.reveal.sigma
        shares = GAUSSIAN if self.plan.algorithm.fraction_bits is None else DISCRETE_GAUSSIAN
        total, spent = (self.known(published, n, with_sums=False) for n in (self.releases, 0))
        sent = 0.0 if self.plan.P == 1 else None if spent is None else spent.rho
        if total is None or total.leak or total.rho is None or sent is None:
            return Cost.of(None, 0.0, sigma, shares)
        rho = max(0.0, total.rho - sent) / self.releases
        return Cost.of(rho, sigma * math.sqrt(2.0 * rho), sigma, shares)

    # ---- what a data set's ledger holds

    def spent(self, rounds: int) -> dict[str, Paid]:
        """What so many rounds and all releases at their end cost the worst unit, against each of `ADVERSARIES`."""
        if rounds == 0:
            return dict.fromkeys(ADVERSARIES, NOTHING)
        each: dict[str, list[Paid]] = defaultdict(list)
        for name, threat, released in onlookers(self.plan.P, self._pairs, self.plan.privacy.release):
            silent = self.plan.P == 1 and name == "links"
            paid = SILENT if silent else self._paid(threat, rounds, self.releases if released else 0)
            each[name].append(paid)
        found = {name: worst(of) for name, of in each.items()}
        receiver = found.get("receiver", found["links"])  # whom servers of other plans stand for where there are none
        return {name: found.get(name, receiver) for name in ADVERSARIES}

    @cached_property
    def _always(self) -> Price:
        """As if every client always took part, which bounds a client that is drawn at random."""
        return price(replace(self.plan, privacy=replace(self.plan.privacy, participation=Always())))

    def _paid(self, threat: Threat, rounds: int, releases: int) -> Paid:
        if rounds == 0:
            return NOTHING
        try:
            found = self.account(rounds, releases, threat)
            by_chance = self.plan.privacy.participation.by_chance
            if by_chance and found.rho is None and not found.leak:  # only the whole has a price, which does not add up
                found = self._always.account(rounds, releases, threat)
        except InputError as e:
            return Paid.unknown(str(e))
        return Paid.of(found)

    # ---- inside

    def _bound(self, threat: Threat, released: bool, with_sums: bool) -> Bound:
        key = (threat, released, with_sums)
        if key not in self._bounds:
            self._bounds[key] = tried(lambda: self._proven(*key))
        return self._bounds[key]

    def _proven(self, threat: Threat, released: bool, with_sums: bool) -> Bound:
        plan = self.plan
        if self.sensitivity is None:
            remedy = f"nothing has a price, so a budget cannot be kept: {plan.algorithm.model.undeclared[0]}"
            raise InputError("privacy.unprotected", True, remedy)
        question = Question(
            self.scheme if with_sums else self.scheme.of_servers,
            plan.graph.graphs,
            self.sensitivity,
            plan.rounds,
            threat,
            self.reveal if released else Reveal(),
            plan.privacy.delta,
            self.inside if with_sums else None,
            secure=plan.secure is not None,
            active=plan.signed,
            dropout=plan.algorithm.dropout > 0.0,
        )
        return accountant.bound(question)

    def _in_range(self, found: Account) -> tuple[str, ...]:
        """What masks leave to be assumed; noise inside the sum needs it not (docs/design/privacy.md, 7)."""
        if self.plan.secure is None or found.by == "sum" or found.leak:
            return ()
        return (IN_RANGE,)

    def _beside(self) -> tuple[str, ...]:
        """What the plan's initial weights, a local step of one's own and clocks leave to be assumed."""
        model = self.plan.algorithm.model
        own = (OWN_STEP,) * (not model.built_in)  # of a simulation and of its deployment: they have one statement
        return (*(() if model.start is None else (START,)), *own, *self._time())

    def _time(self) -> tuple[str, ...]:
        if self.plan.deployment is None:
            return ()
        clocks = self.plan.deployment.clocks
        if clocks.tick == clocks.adapt:
            return ()
        return (
            f"time: rounds are published at multiples of tick = {clocks.tick:g} s, not after adapt = "
            f"{clocks.adapt:g} s: everybody sees how long training took, and that it does not depend on the data is "
            "assumed",
        )


def _events(spent: Account | None, rounds: int, sigma: float, law: Law) -> tuple[Cost, ...]:
    if spent is None or not spent.costs:
        return (Cost.of(None, 0.0, sigma, law),) * rounds
    return tuple(Cost.of(cost, delta, sigma, law) for cost, delta in zip(spent.costs, spent.deltas, strict=True))


def largest(most: int, holds: Callable[[int], bool]) -> int:
    """The largest n <= most that holds, 0 if none: what is paid for n is paid for fewer."""
    low, high = (most, most) if most and holds(most) else (0, max(0, most - 1))  # a budget usually pays for all
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _key(budget: Budget) -> str:
    return "privacy.epsilon" if budget.rho is None else "privacy.rho"
