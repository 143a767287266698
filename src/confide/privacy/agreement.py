"""What all nodes agree on before the first round: the plan of a deployment, and the price of everything that leaves.

`make` turns a config into a plan; `read` and `price` recompute from the plan alone, at every node, what it stands for
and what it costs, and refuse a plan that is not true: a proof that does not hold for its model, a sum or a state that
could overflow, a budget that does not pay for all rounds. Two nodes agree when `Plan.diff` is empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from confide.base.errors import InputError
from confide.graph.graph import Graph
from confide.laws.law import DISCRETE_GAUSSIAN, Law
from confide.laws.noise import LARGEST_SCALE
from confide.plans import sums
from confide.plans.config import Experiment, named_as_in_config
from confide.plans.plan import Plan, scheme_fields
from confide.plans.plan_deployment import PROTOCOL
from confide.plans.threat import Release, Threat
from confide.privacy.accountant import Account, account
from confide.privacy.calibrate import Budget, affordable_rounds
from confide.privacy.ledger import FREE, Cost
from confide.privacy.of_run import (
    Accounting,
    Pricing,
    check_declared,
    event_cost,
    sensitivity_of,
    sum_noise_of,
    without_price,
)
from confide.privacy.rounding import Rounding
from confide.privacy.sensitivity import Proof, Sensitivity
from confide.privacy.statement import Statement, statement
from confide.privacy.sum_noise import SumNoise
from confide.problems.models import GLM
from confide.rounds.algorithm import GFL
from confide.rounds.arithmetic import FixedArithmetic, check_range, largest_state, on_grid, scheme_on_grid
from confide.rounds.local import sgd
from confide.rounds.schemes import Scheme, scheme
from confide.secure.release import Terms

_FIELDS = tuple(f.name for f in fields(Plan))
PAIRS = (
    "pair noise is a function of the edge's keys, the plan and the round: the same plan run again from empty stores "
    "repeats it, and differences of messages are without it; make another plan for another run"
)


@dataclass(frozen=True)
class Unit:
    """One unit as its operator announces it; keys as 64 hex digits.

    Attributes:
        identity: Ed25519 key of the server.  exchange_key: X25519, for edge noise.
        clients: their Ed25519 keys, in the order of the federation.
        authority: sha256 of the unit's CA certificate, if it has one.
    """

    name: str
    identity: str
    exchange_key: str
    clients: tuple[str, ...]
    authority: str = ""


class Deployed(NamedTuple):
    """What a plan says, as the objects that a node works with."""

    scheme: Scheme  # its carry is that of the integers
    graph: Graph
    arithmetic: FixedArithmetic
    sensitivity: Sensitivity
    inside: SumNoise | None  # noise inside the secure sums
    largest: float  # of any state or message, in absolute value
    release: Terms | None  # of a centroid


@dataclass(frozen=True)
class Prices:
    """What leaves a unit, and what it costs the worst unit against the plan's adversary.

    Attributes:
        messages: of the j-th publication of a unit, j = 1..T.  release: of each at the end, None where there is none.
        statement: about all T rounds and all releases, against everybody that a careful reader asks for.
        by: which noise the price rests on, that of the "messages" or that inside the "sum".
    """

    messages: tuple[Cost, ...]
    release: Cost | None
    statement: Statement
    plan: Plan = field(repr=False)
    deployed: Deployed = field(repr=False)
    by: str = "messages"

    def epsilon_after(self, j: int) -> float | None:
        """epsilon at the plan's delta after j publications and no release; None where there is no bound."""
        spent, _ = _answered(self.plan, self.deployed, j, "none") if j else (None, "")
        return 0.0 if j == 0 else None if spent is None else spent.epsilon


def make(
    experiment: Experiment,
    units: Sequence[Unit],
    *,
    window: int = 4,
    adapt: float = 60.0,
    tick: float | None = None,
    exchange: float = 30.0,
    drain: float = 300.0,
    start: float = 0.0,
) -> Plan:
    """The plan of a deployment of what a config simulates; see `plan_deployment` for the clocks, in seconds.

    `tick` is `adapt` by default: a round is published at the same instant however long training took. Round 1 opens at
    `start`, in seconds since 1970, or when a server comes up after it.
    """
    problem, algorithm, privacy = experiment.problem, experiment.algorithm, experiment.privacy
    if privacy is None:
        raise InputError("privacy", None, "a deployment states what it protects: set algorithm.clip and [privacy]")
    check_declared(problem, "a deployment has no other way: its clients prepare their rows one by one")
    if algorithm.arithmetic != "fixed":
        remedy = "servers compute with integers; set algorithm.arithmetic = 'fixed'"
        raise InputError("algorithm.arithmetic", algorithm.arithmetic, remedy)
    if algorithm.dropout:
        raise InputError("algorithm.dropout", algorithm.dropout, "is for simulations; a real network has its own: 0")
    if algorithm.failures:
        raise InputError("graph.link_failure", algorithm.failures, "is for simulations; a real network has its own: 0")
    if len(experiment.graph) != 1:
        raise InputError("graph.topology", len(experiment.graph), "a deployment has one graph; name one")
    E, batch = algorithm.settle(problem.federation, experiment.seed)
    with named_as_in_config():
        sensitivity = privacy.sensitivity(problem, algorithm, experiment.seed)
        law = algorithm.scheme.law.discrete
        pricing = Pricing(
            algorithm.scheme,
            [on_grid(experiment.graph[0])],
            sensitivity,
            privacy.threat,
            privacy.release,
            privacy.delta,
            algorithm.aggregation is not None,
        )
        simulated = Accounting(privacy, algorithm, pricing, "").plan(experiment.rounds)
    plan = replace(
        simulated,
        scheme=scheme_fields(algorithm.scheme, law),
        local_steps=(int(E.min()), int(E.max())),
        batch=(int(batch.min()), int(batch.max())),
        deployment={
            "protocol": PROTOCOL,
            "fraction_bits": algorithm.fraction_bits,
            "window": window,
            "start": start,
            "degree": 0
            if algorithm.aggregation is None
            else algorithm.aggregation.parameters(algorithm.sampled).degree,
            "adapt": adapt,
            "tick": adapt if tick is None else tick,
            "exchange": exchange,
            "drain": drain,
            "model": _model_fields(experiment),
            "replacement": algorithm.replacement,
            "units": _unit_fields(units, problem.federation.K.tolist(), E.tolist(), batch.tolist()),
        },
    )
    price(plan)
    return plan


def read(plan: Plan) -> Deployed:
    """The objects behind a plan, every claim checked that can be checked without data."""
    d = plan.deployment
    if d is None:
        raise InputError("plan.deployment", None, "is missing: this is the plan of a simulation")
    if "undeclared" in plan.facts:
        raise InputError("plan.facts.undeclared", plan.facts["undeclared"], "nothing has a price then; leave it out")
    assert plan.sampled is not None and plan.bound is not None  # noqa: S101, PT018 - a deployment states them
    named, graph = _scheme(plan), Graph.from_dict(plan.graph)
    arithmetic = FixedArithmetic(plan.sampled, d["fraction_bits"])
    for name in ("sigma", "sigma_pair"):
        if plan.scheme[name] / arithmetic.quantum > LARGEST_SCALE:
            remedy = "is more than 2^50 quanta wide; use fewer fraction bits"
            raise InputError(f"plan.scheme.{name}", plan.scheme[name], remedy)
    _check_proof(plan, d["model"])
    inside = _inside(plan)
    with _named_as_in_plan():
        secure = sums.of_plan(plan)
        noise = 0 if secure is None else secure.encoding.noise
        update = plan.step * plan.bound + noise * arithmetic.client_quantum
        check_range(arithmetic, named, graph, update, 0.0, plan.rounds)
        largest = largest_state(arithmetic, named, graph, update, 0.0, plan.rounds)
        released = _release_terms(plan, graph, arithmetic)
        if released is not None:
            released.check_fits(largest)
        sensitivity = _sensitivity(plan, arithmetic, largest)
    return Deployed(named, graph, arithmetic, sensitivity, inside, largest, released)


def price(plan: Plan) -> Prices:
    """What every publication and every release cost; a plan whose budget does not pay for all of them is refused.

    So is one that has no price for its own adversary or for links, unless it says so itself (`unprotected`). Where
    there is no bound, such as messages without noise, a cost has neither rho nor epsilon.
    """
    d = read(plan)
    total, why = _answered(plan, d, plan.rounds, plan.release)
    _check_budget(plan, d, total, why)
    open_to = without_price(
        plan.units, plan.threat, plan.release, lambda who, what: _answered(plan, d, plan.rounds, what, who)[1]
    )
    if open_to and plan.scheme["sigma_pair"]:
        open_to += (PAIRS,)
    if open_to and not plan.unprotected:
        remedy = f"{'; '.join(open_to)}. To agree on it all the same, and have every statement begin with that: true"
        raise InputError("privacy.unprotected", plan.unprotected, remedy)
    said = statement(
        d.scheme, d.graph, d.sensitivity, rounds=plan.rounds, noise=plan.scheme["law"], threat=plan.threat,
        release=_releases(plan, d, plan.release), delta=plan.delta, sum_noise=d.inside,
        secure=plan.aggregation is not None,
    )  # fmt: skip
    said = replace(said, unprotected=open_to, accounts=_with_clocks(plan, said.accounts))
    if total is not None and total.by == "sum":
        assert d.inside is not None  # noqa: S101 - it was the proof
        costs = _costs(total, d.inside.sigma, DISCRETE_GAUSSIAN, plan.rounds)
        return Prices(costs, None if plan.release == "none" else FREE, said, plan, d, "sum")
    spent, _ = _answered(plan, d._replace(inside=None), plan.rounds, "none")
    costs = _costs(spent, plan.scheme["sigma"], Law.parse(plan.scheme["law"]), plan.rounds)
    return Prices(costs, _release_cost(plan, spent, total), said, plan, d)


def _answered(
    plan: Plan, d: Deployed, rounds: int, release: str, threat: str | None = None
) -> tuple[Account | None, str]:
    """The account against the plan's adversary, or another, or why there is none."""
    try:
        found = account(
            d.scheme, d.graph, d.sensitivity, rounds=rounds, noise=plan.scheme["law"], threat=threat or plan.threat,
            release=_releases(plan, d, release), delta=plan.delta, sum_noise=d.inside,
            secure=plan.aggregation is not None,
        )  # fmt: skip
    except InputError as refusal:
        return None, str(refusal)
    why = found.assumptions[0] if found.leak else ""
    return None if found.leak and not found.costs else found, why


def _with_clocks(plan: Plan, accounts: Sequence[Account]) -> tuple[Account, ...]:
    """What the plan's clocks leave to be assumed."""
    d = plan.deployment
    assert d is not None  # noqa: S101 - checked
    if d["tick"] == d["adapt"]:
        return tuple(accounts)
    note = (
        f"time: rounds are published at multiples of tick = {d['tick']:g} s, not after adapt = {d['adapt']:g} s: "
        "everybody sees how long training took, and that it does not depend on the data is assumed"
    )
    return tuple(replace(a, assumptions=(*a.assumptions, note)) for a in accounts)


def _releases(plan: Plan, d: Deployed, release: str) -> Release:
    return Release.planned(release, plan.threat, [d.graph], plan.releases)


def _check_budget(plan: Plan, d: Deployed, total: Account | None, why: str) -> None:
    for name, limit in plan.budget.items():
        if limit is None:
            continue
        place = f"plan.budget.{name}"
        if total is None:
            raise InputError(place, limit, f"cannot be kept: {why}")
        if not total.costs:
            remedy = f"participation {plan.participation} has no price for a single round; use all or cap:N"
            raise InputError(place, limit, remedy)
        with _named_as_in_plan():
            budget = Budget(**{name: limit, "delta": plan.delta})
        if budget.allows(total):
            continue

        def spend(rounds: int) -> Account:
            found, reason = _answered(plan, d, rounds, plan.release)
            assert found is not None, reason  # noqa: S101 - what holds for all rounds holds for fewer
            return found

        paid = affordable_rounds(spend, budget, plan.rounds)
        remedy = f"pays for {paid} of the {plan.rounds} rounds, {_counted(plan)} included; run fewer or add noise"
        raise InputError(place, limit, remedy)


def _counted(plan: Plan) -> str:
    return "the release" if plan.releases == 1 else f"{plan.releases} releases"


def _costs(spent: Account | None, sigma: float, law: Law, rounds: int) -> tuple[Cost, ...]:
    if spent is None or not spent.costs:
        return (event_cost(None, 0.0, sigma, law),) * rounds
    return tuple(event_cost(cost, delta, sigma, law) for cost, delta in zip(spent.costs, spent.deltas, strict=True))


def _release_cost(plan: Plan, messages: Account | None, total: Account | None) -> Cost | None:
    """Shares of a release are discrete Gaussian, whatever the messages' noise: its cost is a rho."""
    release, law = Release.parse(plan.release), DISCRETE_GAUSSIAN
    if release.kind == "none":
        return None
    if total is None or messages is None or total.rho is None or messages.rho is None:
        return event_cost(None, 0.0, release.sigma, law)
    rho = max(0.0, total.rho - messages.rho) / plan.releases
    return event_cost(rho, release.sigma * (2.0 * rho) ** 0.5, release.sigma, law)


def _scheme(plan: Plan) -> Scheme:
    s = plan.scheme
    with _named_as_in_plan():
        law = Law.parse(s["law"])
        found = scheme(
            s["name"], s["sigma"], noise=law.continuous, sigma_pair=s["sigma_pair"], sigma_client=s["sigma_client"]
        )  # fmt: skip
    for name, value in scheme_fields(found, law).items():
        if value != s[name]:
            raise InputError(f"plan.scheme.{name}", s[name], f"the scheme {found.name!r} has {value!r}")
    return scheme_on_grid(found)


def _check_proof(plan: Plan, model: Mapping[str, Any]) -> None:
    """The conditions of a proof that a plan can show; that the data keep a declared smoothness, each client checks."""
    d, proof, rho = plan.deployment, Proof.parse(plan.proof), float(model["rho"])
    assert d is not None  # noqa: S101 - checked
    fewest = _ends(plan.local_steps)[0]
    if plan.level == "example" and d["replacement"]:
        remedy = "drawn with replacement one example may fill a mini-batch; deployment.replacement must be false"
        raise InputError("plan.level", plan.level, remedy)
    if plan.clip == "example" and 2.0 * rho * plan.step > fewest:
        remedy = f"the server's decay must lie in [0, 1]: with this regulariser at most {fewest / (2.0 * rho):g}"
        raise InputError("plan.step", plan.step, remedy)
    if proof.kind == "public-point":
        remedy = "clients evaluate gradients at w_p, which is not a function of the messages; use another proof"
        raise InputError("plan.proof", plan.proof, remedy)
    if proof.kind == "regulariser" and proof.constant != rho:
        raise InputError("plan.proof", plan.proof, f"the model's regulariser is rho = {rho!r}")
    if proof.kind == "convex-glm":
        smoothness = plan.facts.get("smoothness")
        if proof.constant > 2.0 * rho * (1 + 1e-12):
            raise InputError(
                "plan.proof", plan.proof, f"every sampled loss is only 2 rho = {2.0 * rho:g} strongly convex"
            )
        if smoothness is None:
            return  # monotone gradients ask nothing of a step but that its decay is at most 1
        if isinstance(smoothness, bool) or not isinstance(smoothness, float):
            raise InputError("plan.facts.smoothness", smoothness, "must be a number, a bound on that of every loss")
        largest = 2.0 * fewest / (smoothness + proof.constant)
        if plan.step > largest:
            remedy = f"convex-glm needs mu/E <= 2/(delta + nu) for every client: at most {largest:g} with E = {fewest}"
            raise InputError("plan.step", plan.step, remedy)


def _sensitivity(plan: Plan, arithmetic: FixedArithmetic, largest: float) -> Sensitivity:
    d, proof = plan.deployment, Proof.parse(plan.proof)
    assert d is not None and plan.bound is not None  # noqa: S101, PT018 - checked
    decays = plan.clip == "example" and d["model"]["rho"] > 0.0
    survivors = 1 if plan.aggregation is None else plan.aggregation["quorum"]
    assert plan.dim is not None  # noqa: S101 - a deployment states it
    E, batch = _ends(plan.local_steps)[1], _ends(plan.batch)[1]
    error = Rounding.error(E, batch, plan.dim, proof.kind, largest, plan.step * plan.bound)
    rounding = Rounding(arithmetic.quantum, survivors, decays, error)
    clients = min(len(unit["clients"]) for unit in d["units"])
    return sensitivity_of(plan, clients=clients, regulariser=float(d["model"]["rho"]), rounding=rounding)


def _inside(plan: Plan) -> SumNoise | None:
    with _named_as_in_plan():
        return sum_noise_of(plan)


def _release_terms(plan: Plan, graph: Graph, arithmetic: FixedArithmetic) -> Terms | None:
    release, threat = Release.parse(plan.release), Threat.parse(plan.threat)
    threat.check(graph.P)
    if release.kind != "centroid":
        return None
    assert plan.dim is not None  # noqa: S101 - a deployment states it
    P = graph.P
    sized, known = (min(release.for_threat(x, [graph]).colluders, P - 1) for x in (threat, Threat("neighbours")))
    return Terms(P, release.sigma, arithmetic.quantum, plan.dim, sized, known)


def _ends(given: int | tuple[int, int] | None) -> tuple[int, int]:
    assert given is not None  # noqa: S101 - a deployment's clients have a batch
    return given if isinstance(given, tuple) else (given, given)


def _model_fields(experiment: Experiment) -> dict[str, Any]:
    algorithm: GFL = experiment.algorithm
    model = experiment.problem.model
    if algorithm.local is sgd and isinstance(model, GLM):
        return {"kind": model.name, "rho": float(model.rho)}
    return {"kind": "own", "rho": 0.0}


def _unit_fields(units: Sequence[Unit], sizes: list[int], E: list[int], batch: list[int]) -> list[dict[str, Any]]:
    if len(units) != len(sizes):
        raise InputError("units", len(units), f"the problem has {len(sizes)}; announce one for each")
    found, c = [], 0
    for unit, size in zip(units, sizes, strict=True):
        if len(unit.clients) != size:
            raise InputError(
                "units.clients", len(unit.clients), f"unit {unit.name!r} of the problem has {size} clients"
            )
        clients = [
            {"identity": key, "local_steps": E[c + k], "batch": batch[c + k]} for k, key in enumerate(unit.clients)
        ]
        c += size
        found.append(
            {
                "name": unit.name,
                "identity": unit.identity,
                "exchange_key": unit.exchange_key,
                "authority": unit.authority,
                "clients": clients,
            }
        )
    return found


@contextmanager
def _named_as_in_plan() -> Iterator[None]:
    """A refusal names the plan's field, also where the object that refused calls it otherwise."""
    try:
        yield
    except InputError as e:
        table = {
            "algorithm.fraction_bits": "plan.deployment.fraction_bits",
            "fraction_bits": "plan.deployment.fraction_bits",
            "sum_noise.sigma": "plan.aggregation.sigma",
            "release.sigma": "plan.release",
            "servers": "plan.release",
            "colluders": "plan.threat",
            "epsilon": "plan.budget.epsilon",
            "rho": "plan.budget.rho",
            "degree": "plan.deployment.degree",
            "threshold": "plan.aggregation.threshold",
            "quorum": "plan.aggregation.quorum",
            "corrupted": "plan.aggregation.corrupted",
        }
        known = f"plan.{e.field}" if e.field.split(".")[0] in _FIELDS else e.field
        raise InputError(table.get(e.field, known), e.value, e.remedy) from None
