"""The account of a simulated run: how many rounds a budget allows, epsilon so far, and the statement at the end."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from confide.base import canonical
from confide.base.errors import InputError
from confide.graph.graph import Graph
from confide.laws.law import DISCRETE_GAUSSIAN, GAUSSIAN, Law
from confide.plans.plan import LARGEST, Plan, scheme_fields
from confide.plans.settings import Privacy
from confide.plans.threat import Release, Threat
from confide.privacy.accountant import Account, account, covers
from confide.privacy.calibrate import affordable_rounds
from confide.privacy.ledger import (
    FREE,
    SEED,
    Book,
    Cost,
    Event,
    Promise,
    Promising,
    broken,
    dataset_id,
    random_id,
    read,
    write_events,
)
from confide.privacy.rounding import Rounding
from confide.privacy.sensitivity import Participation, Proof, Sensitivity
from confide.privacy.statement import Statement, statement
from confide.privacy.sum_noise import SumNoise
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL
from confide.rounds.arithmetic import FixedArithmetic, largest_state, on_grid, scheme_on_grid
from confide.rounds.schemes import Exchange, Scheme, scheme

PLAN, LEDGER = "plan.json", "ledger.jsonl"
PLANS = "plans"  # beside them, of the runs before in the same folder, by hash
SIMULATED = (
    "in this simulation shares of noise inside the sums are drawn in floating point and rounded; the sampler that "
    "their price speaks of runs in a deployment"
)
GRID = ("rounding.quantum", "rounding.survivors", "rounding.decays", "rounding.floating")  # facts of a plan


@dataclass(frozen=True)
class Pricing:
    """What a run's price depends on, and nothing else: read from the run before it starts, or from its plan."""

    scheme: Scheme  # as the run computes it, in fixed point with weights on their grid
    graphs: Sequence[Graph]
    sensitivity: Sensitivity
    threat: str
    release: str
    delta: float
    secure: bool  # whether updates are masked, or the own server sees each
    sum_noise: SumNoise | None = None
    releases: int = 1
    undeclared: tuple[str, ...] = ()  # of the problem: where there is any, every number would be false

    @classmethod
    def of_plan(cls, plan: Plan) -> Pricing:
        """The same from the plan alone; a scheme that is not one of confide's is refused."""
        s, facts = plan.scheme, plan.facts
        made = scheme(s["name"], s["sigma"], noise=s["law"], sigma_pair=s["sigma_pair"], sigma_client=s["sigma_client"])
        made = replace(made, carry=s["carry"])
        if scheme_fields(made) != dict(s):
            raise InputError("plan.scheme", s["name"], "is not the scheme of this name")
        grid = [facts.get(name) for name in GRID]
        rounding = None
        if None not in grid:
            rounding = Rounding(
                quantum=_number(facts, GRID[0]) or 0.0,
                survivors=int(_number(facts, GRID[1]) or 0),
                decays=bool(facts[GRID[2]]),
                floating=_number(facts, GRID[3]) or 0.0,
            )
        rho = _number(facts, "regulariser") or 0.0
        return cls(
            made,
            [Graph.from_dict(g) for g in (plan.graph, *plan.turns)],
            sensitivity_of(plan, clients=plan.clients, regulariser=rho, rounding=rounding),
            plan.threat,
            plan.release,
            plan.delta,
            plan.aggregation is not None,
            sum_noise_of(plan),
            plan.releases,
            tuple(str(facts["undeclared"]).split("\n")) if "undeclared" in facts else (),
        )

    def spend(self, rounds: int, release: str = "none", threat: str | None = None) -> Account:
        """The account of `rounds` rounds and all releases of this kind; against the settings' `threat` by default."""
        if self.undeclared:
            remedy = f"nothing has a price, so a budget cannot be kept: {self.undeclared[0]}"
            raise InputError("privacy.unprotected", True, remedy)
        found = account(
            self.scheme,
            self.graphs,
            self.sensitivity,
            rounds=rounds,
            threat=threat or self.threat,
            release=Release.planned(release, self.threat, self.graphs, self.releases),
            delta=self.delta,
            sum_noise=self.sum_noise,
            secure=self.secure,
        )
        return _simulated(found)

    def statement(self, rounds: int) -> Statement:
        """What has no price although the settings name it is said first."""
        if self.undeclared:
            return Statement(rounds, str(self.scheme.law), (), (), self.undeclared)

        def why_not(threat: str, release: str) -> str:
            try:
                found = self.spend(rounds, release, threat)
            except InputError as e:
                return str(e)
            return found.assumptions[0] if found.leak else ""

        said = statement(
            self.scheme,
            self.graphs,
            self.sensitivity,
            rounds=rounds,
            threat=self.threat,
            release=Release.planned(self.release, self.threat, self.graphs, self.releases),
            delta=self.delta,
            sum_noise=self.sum_noise,
            secure=self.secure,
        )
        open_to = without_price(self.graphs[0].P, self.threat, self.release, why_not)
        return replace(said, unprotected=open_to, accounts=tuple(map(_simulated, said.accounts)))

    def costs(self, rounds: int) -> tuple[list[Cost], Cost | None]:
        """What each round costs every unit (the worst unit's cost), and each release.

        A leak, a refusal, or participation that counts only as a whole has no price per round: its events carry none,
        so that it cannot vanish from a sum. One proof prices all events: that of the statement about rounds and
        release together.
        """
        released = Release.parse(self.release)
        total = self._answered(rounds, self.release)
        if self.sum_noise is not None and total is not None and total.by == "sum":
            sigma = self.sum_noise.sigma
            each = list(zip(total.costs or (None,) * rounds, total.deltas, strict=True))  # None: only as a whole
            paid = [event_cost(c, 0.0 if c is None else d, sigma, DISCRETE_GAUSSIAN) for c, d in each]
            return paid, None if released.kind == "none" else FREE
        law, sigma = self.scheme.law, self.scheme.sigma
        spent = replace(self, sum_noise=None)._answered(rounds, "none")
        if self.graphs[0].P == 1 and total is not None and not total.leak:  # no message leaves: the release is all
            spent = replace(total, rho=0.0)
            paid = [FREE] * rounds
        elif spent is None or not spent.costs:
            paid = [event_cost(None, 0.0, sigma, law)] * rounds
        else:
            paid = [event_cost(c, d, sigma, law) for c, d in zip(spent.costs, spent.deltas, strict=True)]
        if released.kind == "none":
            return paid, None
        shares = GAUSSIAN if self.sensitivity.rounding is None else DISCRETE_GAUSSIAN
        if total is None or total.leak or total.rho is None or spent is None or spent.rho is None:
            return paid, event_cost(None, 0.0, released.sigma, shares)
        rho = max(0.0, total.rho - spent.rho) / self.releases
        return paid, event_cost(rho, released.sigma * math.sqrt(2.0 * rho), released.sigma, shares)

    def _answered(self, rounds: int, release: str) -> Account | None:
        try:
            return self.spend(rounds, release)
        except InputError:
            return None


def _simulated(a: Account) -> Account:
    return replace(a, assumptions=(*a.assumptions, SIMULATED)) if a.by == "sum" else a


def without_price(P: int, threat: str, release: str, why_not: Callable[[str, str], str]) -> tuple[str, ...]:
    """Why there is no epsilon against the adversary that a plan names, or against who listens on links.

    Args:
        why_not: (threat, release) -> why there is none, or "".
    """
    asked = dict.fromkeys(((threat, release), ("links", "none"))) if P > 1 else {(threat, release): None}
    found = [(Threat.parse(who).words, why_not(who, what).removeprefix("leak: ")) for who, what in asked]
    return tuple(dict.fromkeys(f"there is no epsilon against {who}: {why}" for who, why in found if why))


def event_cost(cost: float | None, sensitivity: float, sigma: float, law: Law) -> Cost:
    """Of a pure epsilon, which has a rho too, or of a rho, whichever the law charges; None has no bound."""
    name = law.name if sigma else "none"
    if cost is None:
        return Cost(None, None, sensitivity, sigma, name)
    if law.pure and sigma:
        return Cost(min(cost * cost / 2.0, cost), cost, sensitivity, sigma, name)
    return Cost(cost, None if cost else 0.0, sensitivity, sigma, name)


def sensitivity_of(plan: Plan, *, clients: int | None, regulariser: float, rounding: Rounding | None) -> Sensitivity:
    """What a plan says of one client's influence; the rest a simulation reads from its facts, a deployment from its
    roster, model and grid."""
    if plan.bound is None:
        raise InputError("plan.clip", plan.clip, "without a clip nothing has a price")
    return Sensitivity(
        step=plan.step,
        bound=plan.bound,
        norm=plan.norm,
        level=plan.level,
        adjacency=plan.adjacency,
        sampled=plan.sampled,
        clients=clients,
        dim=plan.dim,
        local_steps=plan.local_steps,
        batch=plan.batch[0] if isinstance(plan.batch, tuple) else plan.batch,
        proof=Proof.parse(plan.proof),
        participation=Participation.parse(plan.participation),
        smoothness=_number(plan.facts, "smoothness"),
        convex=str(plan.facts.get("convex", "")),
        clip=plan.clip,
        regulariser=regulariser,
        rounding=rounding,
    )


def sum_noise_of(plan: Plan) -> SumNoise | None:
    """The noise inside the secure sums of a plan, if there is any."""
    a = plan.aggregation
    if a is None or a["sigma"] == 0.0 or plan.sampled is None or plan.dim is None:
        return None
    return SumNoise.sized(
        a["sigma"], a["quorum"] - a["corrupted"], sampled=plan.sampled, fraction_bits=a["fraction_bits"], dim=plan.dim,
        corrupted=a["corrupted"], server=a["server"],
    )  # fmt: skip


def _number(facts: Mapping[str, float | str | bool], name: str) -> float | None:
    x = facts.get(name)
    return x if isinstance(x, float) else None


@dataclass(frozen=True)
class Accounting:
    privacy: Privacy
    algorithm: GFL
    pricing: Pricing
    dataset: str | None  # None: it has no name, and gets an id where it is saved
    run: str = ""  # tells this run from others of the same plan

    @classmethod
    def of(
        cls, privacy: Privacy, problem: Problem, graphs: Sequence[Graph], algorithm: GFL, rounds: int, seed: int
    ) -> Accounting:
        if not privacy.unprotected:
            check_declared(problem, "or privacy.unprotected = true, and the run has no epsilon")
        dataset = None if privacy.dataset is None else dataset_id(privacy.dataset)
        run = secrets.token_hex(16) if problem.private else f"{SEED}{seed}"
        _check_absence(algorithm, graphs)
        sensitivity, scheme = privacy.sensitivity(problem, algorithm, seed), algorithm.scheme
        if algorithm.arithmetic == "fixed":
            graphs, scheme = [on_grid(g) for g in graphs], scheme_on_grid(scheme)
            grid = rounding_of_run(problem, graphs, algorithm, sensitivity, rounds, seed)
            sensitivity = replace(sensitivity, rounding=grid)
        pricing = Pricing(
            scheme,
            graphs,
            sensitivity,
            privacy.threat,
            privacy.release,
            privacy.delta,
            algorithm.aggregation is not None,
            inside_sums(algorithm, problem.M),
            privacy.releases,
            problem.undeclared,
        )
        return cls(privacy, algorithm, pricing, dataset, run)

    def affordable(self, rounds: int) -> int:
        """Rounds that the budget pays for, all releases at the end included; all of them without a budget."""
        budget = self.privacy.budget
        if budget is None:
            return rounds
        allowed = affordable_rounds(lambda T: self.pricing.spend(T, self.privacy.release), budget, rounds)
        if allowed == 0:
            one = self.pricing.spend(1, self.privacy.release)
            spent = "a leak" if one.leak else f"{budget.spent(one):.4g}"
            field = "privacy.epsilon" if budget.rho is None else "privacy.rho"
            raise InputError(field, budget.limit, f"does not pay for a single round, which costs {spent}; add noise")
        return allowed

    def epsilons(self, rounds: Sequence[int], last: int | None = None) -> list[float]:
        """epsilon so far after these rounds, after the `last` with the release; nothing where there is none or a leak.

        Nor where participation counts only as a whole: each number would take seconds, and the statement has the last.
        """
        if self.pricing.sensitivity.participation.kind not in ("all", "cap"):
            return []
        try:
            found = [self.pricing.spend(i, self.privacy.release if i == last else "none").epsilon for i in rounds]
        except InputError:
            return []
        return [] if None in found else [float(e) for e in found if e is not None]

    def plan(self, rounds: int) -> Plan:
        """Everything the statement rests on, as one object with one hash."""
        s, p, clip = self.pricing.sensitivity, self.privacy, self.algorithm.clip
        assert clip is not None  # noqa: S101 - Privacy.sensitivity refuses an algorithm without one
        facts: dict[str, float | str | bool] = {} if p.smoothness is None else {"smoothness": p.smoothness}
        if s.convex:
            facts["convex"] = s.convex
        if s.regulariser:
            facts["regulariser"] = s.regulariser
        if s.rounding is not None:
            grid = s.rounding
            facts |= zip(GRID, (grid.quantum, float(grid.survivors), grid.decays, grid.floating), strict=True)
        if self.pricing.undeclared:
            facts["undeclared"] = "\n".join(self.pricing.undeclared)
        first, *turns = self.pricing.graphs
        return Plan(
            graph=first.to_dict(),
            turns=tuple(g.to_dict() for g in turns),
            scheme=scheme_fields(self.pricing.scheme),
            rounds=rounds,
            step=float(s.step),
            bound=float(s.bound),
            norm=s.norm,
            clip=clip.kind,
            sampled=s.sampled,
            clients=s.clients,
            dim=s.dim,
            local_steps=s.local_steps,
            batch=s.batch,
            level=p.level,
            adjacency=p.adjacency,
            proof=p.proof,
            participation=p.participation,
            threat=p.threat,
            release=p.release,
            releases=p.releases,
            unprotected=p.unprotected,
            delta=p.delta,
            budget={"epsilon": p.epsilon, "rho": p.rho},
            facts=facts,
            aggregation=aggregation_fields(self.algorithm),
        )

    def summary(self, rounds: int) -> dict[str, Any]:
        """What a run says about privacy, as plain data."""
        budget = self.privacy.budget
        costs, release = self.pricing.costs(rounds)
        return {
            "statement": self.pricing.statement(rounds).to_dict(),
            "settings": asdict(self.privacy),
            "budget": None if budget is None else asdict(budget),
            "ledger": {
                "dataset": self.dataset,
                "run": self.run,
                "plan": self.plan(rounds).to_json(),
                "costs": [asdict(cost) for cost in costs],
                "release": None if release is None else asdict(release),
            },
        }


def check_declared(problem: Problem, otherwise: str) -> None:
    """Refuse an epsilon for a table that was prepared from everybody's rows."""
    if problem.undeclared:
        remedy = "; ".join(("no epsilon covers how its rows were prepared", *problem.undeclared, otherwise))
        raise InputError("problem", problem.spec.get("name"), remedy)


def _check_absence(algorithm: GFL, graphs: Sequence[Graph]) -> None:
    """An absent unit keeps its whole deviation, which a graph with a smaller own weight would have shrunk."""
    scheme, failures = algorithm.scheme, algorithm.failures
    absent = failures.unit or failures.units or (algorithm.aggregation is not None and algorithm.dropout)
    if not covers(scheme) and (absent or failures):
        remedy = "has no closed form, and the general accountant knows rounds in which all servers and links are up"
        raise InputError("scheme.name", scheme.name, remedy)
    by_graph = scheme.exchange == Exchange.GRAPH and (scheme.by_link or scheme.carry is None)
    if absent and by_graph and any((g.own_weights != graphs[0].own_weights).any() for g in graphs[1:]):
        remedy = (
            f"takes turns between graphs with other own weights: what a unit that misses a round keeps has no bound "
            f"with scheme {scheme.name}; use one graph, or a scheme whose carry does not depend on it"
        )
        raise InputError("graph", graphs[0].name, remedy)


def rounding_of_run(
    problem: Problem, graphs: Sequence[Graph], algorithm: GFL, s: Sensitivity, rounds: int, seed: int
) -> Rounding:
    """The grid of a simulation in fixed point. Its noise is rounded to the grid, which is post-processing."""
    assert algorithm.clip is not None  # noqa: S101 - fixed point has a clip
    arithmetic = FixedArithmetic(algorithm.sampled, algorithm.fraction_bits)
    update, noise, survivors = s.step * s.bound, 0, 0 if algorithm.dropout else algorithm.sampled
    if algorithm.aggregation is not None:
        noise = algorithm.encoding(algorithm.aggregation).noise
        survivors = algorithm.aggregation.parameters(algorithm.sampled).quorum
    reach = update + noise * arithmetic.client_quantum
    largest = max(largest_state(arithmetic, algorithm.scheme, g, reach, 0.0, rounds) for g in graphs)
    E, batch = algorithm.settle(problem.federation, seed)
    error = Rounding.error(int(E.max()), int(batch.max()), problem.M, s.proof.kind, largest, update)
    decays = algorithm.clip.kind == "example" and problem.model.rho > 0.0
    return Rounding(arithmetic.quantum, survivors, decays, error)


def inside_sums(algorithm: GFL, dim: int) -> SumNoise | None:
    """The noise inside the secure sums of a run, if there is any."""
    secure = algorithm.aggregation
    if secure is None or secure.sigma == 0.0:
        return None
    return SumNoise.of(secure, algorithm.sampled, algorithm.fraction_bits, dim)


def aggregation_fields(algorithm: GFL) -> dict[str, Any] | None:
    """What a plan says about the secure sums."""
    secure = algorithm.aggregation
    if secure is None:
        return None
    p = secure.parameters(algorithm.sampled)
    return {
        "server": p.server,
        "ring_bits": secure.ring_bits,
        "fraction_bits": algorithm.fraction_bits,
        "threshold": p.threshold,
        "quorum": p.quorum,
        "corrupted": p.corrupted,
        "sigma": secure.sigma,
    }


def check_folder(folder: Path, privacy: Privacy | None) -> None:
    """Refuse before hours of work, not after: may a run with these settings add to the ledger of this folder?"""
    if (before := _ledger_in(folder)) is not None:
        name = None if privacy is None else privacy.dataset
        _check_addable(folder, before, privacy, None if name is None else dataset_id(name))


def write_ledger(ledger: Mapping[str, Any] | None, new: Path, old: Path, rounds: int) -> None:
    """plan.json and ledger.jsonl of a simulated run of `rounds`: an event for every message of every unit.

    `new` is to take the place of `old`: what the ledger of `old` holds comes first, and the plans of its runs are kept.
    A run that is in it already, because it was saved before, is not added again; nor is one that did nothing.
    """
    before = _ledger_in(old)
    plan = None if ledger is None else Plan.from_json(ledger["plan"])
    if before is not None:
        if rounds:
            _check_addable(old, before, plan, None if ledger is None else ledger["dataset"])
        _keep(before, old, new)
    if ledger is None or plan is None:
        if (old / PLAN).is_file():
            (new / PLAN).write_bytes((old / PLAN).read_bytes())
        return
    plan.save(new / PLAN)
    if before is not None and any((r.header.run, r.plan) == (ledger["run"], plan.hash) for r in before.runs):
        return

    def events() -> Iterator[Event]:
        for i, cost in enumerate(ledger["costs"], 1):
            one = Cost(**cost)
            yield from (Event(plan.hash, "message", i, unit, one) for unit in range(plan.units))
        if ledger["release"] is not None:
            one = Cost(**ledger["release"])
            yield from (Event(plan.hash, "release", plan.rounds, unit, one) for unit in range(plan.units))

    dataset = before.dataset if before is not None else ledger["dataset"] or random_id()
    (new / LEDGER).unlink(missing_ok=True)  # the copy that `_keep` made: all of it comes first again
    write_events(new / LEDGER, dataset, plan, events(), ledger["run"], before)


def check_whole(folder: Path, book: Book) -> None:
    """The ledger of a folder holds the run that was saved there last: no run at its end is gone."""
    if canonical.digest(canonical.read_text(folder / PLAN, "plan", LARGEST)) not in {run.plan for run in book.runs}:
        remedy = f"does not hold the run of {PLAN} beside it: its end is gone; take the folder from a backup"
        raise InputError("ledger", str(folder / LEDGER), remedy)


def plans_in(folder: Path, book: Book) -> list[Plan]:
    """The plans of all runs in the ledger of a folder; that of the run saved there last comes first."""
    check_whole(folder, book)
    latest = Plan.load(folder / PLAN)
    others = dict.fromkeys(run.plan for run in book.runs if run.plan not in (None, latest.hash))
    return [latest, *(Plan.load(folder / PLANS / f"{hash}.json") for hash in others)]


def _ledger_in(folder: Path) -> Book | None:
    if not (folder / LEDGER).exists():
        return None
    try:
        return read(folder / LEDGER)
    except InputError as e:
        remedy = f"its {LEDGER} is not whole ({e.remedy}), and is not replaced; name another folder"
        raise InputError("output.folder", str(folder), remedy) from None


def _check_addable(folder: Path, before: Book, promising: Promising | None, dataset: str | None) -> None:
    if promising is None:
        reason: str | None = "a run without an account (algorithm.clip) has no bound and cannot be added to it"
    else:
        reason = broken(before.promise, "it", Promise.of(promising), "this run")
    if reason is None and dataset not in (None, before.dataset):
        reason = "this run names other data (privacy.dataset)"
    if reason is not None:
        remedy = f"holds the ledger of earlier runs, which is not forgotten: {reason}; name another folder"
        raise InputError("output.folder", str(folder), remedy)


def _keep(before: Book, old: Path, new: Path) -> None:
    """The ledger and the plans of its runs, as they are."""
    (new / LEDGER).write_bytes((old / LEDGER).read_bytes())
    hashes = {run.plan for run in before.runs}
    for path in (old / PLAN, *(old / PLANS / f"{hash}.json" for hash in hashes)):
        if path.is_file():
            text = canonical.read_text(path, "plan", LARGEST)
            (new / PLANS).mkdir(exist_ok=True)
            (new / PLANS / f"{canonical.digest(text)}.json").write_text(text + "\n", encoding="utf-8")
