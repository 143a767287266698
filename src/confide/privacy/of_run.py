"""The account of a simulated run: how many rounds a budget allows, epsilon so far, and the statement at the end."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from confide.algorithm import GFL
from confide.errors import InputError
from confide.graph import Graph
from confide.privacy.accountant import Account, account
from confide.privacy.calibrate import affordable_rounds
from confide.privacy.ledger import Cost, Event, dataset_id, federation_id, write_events
from confide.privacy.plan import Plan, scheme_fields
from confide.privacy.sensitivity import Sensitivity
from confide.privacy.settings import Privacy
from confide.privacy.statement import statement
from confide.privacy.sum_noise import SumNoise
from confide.privacy.threat import Release
from confide.problems.problem import Problem

PLAN, LEDGER = "plan.json", "ledger.jsonl"


@dataclass(frozen=True)
class Accounting:
    privacy: Privacy
    graphs: Sequence[Graph]
    algorithm: GFL
    sensitivity: Sensitivity
    dataset: str
    sum_noise: SumNoise | None = None

    @classmethod
    def of(cls, privacy: Privacy, problem: Problem, graphs: Sequence[Graph], algorithm: GFL, seed: int) -> Accounting:
        name = privacy.dataset
        dataset = federation_id(problem.federation) if name is None else dataset_id(name)
        inside = inside_sums(algorithm, problem.M)
        return cls(privacy, graphs, algorithm, privacy.sensitivity(problem, algorithm, seed), dataset, inside)

    def spend(self, rounds: int, release: str = "none") -> Account:
        """The account of the first `rounds` rounds against the adversary that the settings name."""
        return account(
            self.algorithm.scheme,
            self.graphs,
            self.sensitivity,
            rounds=rounds,
            threat=self.privacy.threat,
            release=release,
            delta=self.privacy.delta,
            sum_noise=self.sum_noise,
        )

    def affordable(self, rounds: int) -> int:
        """Rounds that the budget pays for, the release at the end included; all of them without a budget."""
        budget = self.privacy.budget
        if budget is None:
            return rounds
        allowed = affordable_rounds(lambda T: self.spend(T, self.privacy.release), budget, rounds)
        if allowed == 0:
            one = self.spend(1, self.privacy.release)
            spent = "a leak" if one.leak else f"{budget.spent(one):.4g}"
            field = "privacy.epsilon" if budget.rho is None else "privacy.rho"
            raise InputError(field, budget.limit, f"does not pay for a single round, which costs {spent}; add noise")
        return allowed

    def epsilons(self, rounds: Sequence[int]) -> list[float]:
        """epsilon so far after these rounds; nothing where there is no statement or a leak.

        Nor where participation counts only as a whole: each number would take seconds, and the statement has the last.
        """
        if self.sensitivity.participation.kind not in ("all", "cap"):
            return []
        try:
            found = [self.spend(i).epsilon for i in rounds]
        except InputError:
            return []
        return [] if None in found else [float(e) for e in found if e is not None]

    def plan(self, rounds: int) -> Plan:
        """Everything the statement rests on, as one object with one hash."""
        s, p, clip = self.sensitivity, self.privacy, self.algorithm.clip
        assert clip is not None  # noqa: S101 - Privacy.sensitivity refuses an algorithm without one
        return Plan(
            graph=self.graphs[0].to_dict(),
            scheme=scheme_fields(self.algorithm.scheme),
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
            delta=p.delta,
            budget={"epsilon": p.epsilon, "rho": p.rho},
            facts={} if p.smoothness is None else {"smoothness": p.smoothness},
            aggregation=aggregation_fields(self.algorithm),
        )

    def ledger(self, rounds: int) -> dict[str, Any] | None:
        """Plan, data set and what each round costs every unit (the worst unit's cost).

        A leak, a refusal, or participation that counts only as a whole has no price per round: its events carry none,
        so that it cannot vanish from a sum. Graphs that take turns have no plan yet, and no ledger. One proof prices
        all events: that of the statement about rounds and release together.
        """
        if len(self.graphs) > 1:
            return None
        scheme = self.algorithm.scheme
        named = {"dataset": self.dataset, "plan": self.plan(rounds).to_json(), "law": scheme.law, "sigma": scheme.sigma}
        total = self._answered(rounds, self.privacy.release)
        if self.sum_noise is not None and total is not None and total.by == "sum":
            free = None if self.privacy.release == "none" else {"cost": 0.0, "sigma": 0.0, "sensitivity": 0.0}
            priced = {"law": "discrete-gaussian", "sigma": self.sum_noise.sigma, "release": free}
            return named | priced | {"costs": list(total.costs), "sensitivities": list(total.deltas)}
        spent = replace(self, sum_noise=None)._answered(rounds, "none")
        if spent is None or not spent.costs:
            return named | {"costs": [None] * rounds, "sensitivities": [0.0] * rounds, "release": None}
        release = self._release_cost(spent, total)
        return named | {"costs": list(spent.costs), "sensitivities": list(spent.deltas), "release": release}

    def _answered(self, rounds: int, release: str) -> Account | None:
        try:
            return self.spend(rounds, release)
        except InputError:
            return None

    def _release_cost(self, messages: Account, total: Account | None) -> dict[str, float | None] | None:
        """What a release at the end adds, in the unit of the messages' costs; None where it has no bound."""
        release = Release.parse(self.privacy.release)
        if release.kind == "none":
            return None
        if total is None or total.leak:
            return {"cost": None, "sigma": release.sigma, "sensitivity": 0.0}
        if messages.rho is not None and total.rho is not None:
            cost = total.rho - messages.rho
            return {"cost": cost, "sigma": release.sigma, "sensitivity": release.sigma * math.sqrt(2.0 * cost)}
        assert messages.epsilon_pure is not None and total.epsilon_pure is not None  # noqa: S101, PT018 - Laplace
        cost = total.epsilon_pure - messages.epsilon_pure
        return {"cost": cost, "sigma": release.sigma, "sensitivity": release.sigma / math.sqrt(2.0) * cost}

    def summary(self, rounds: int) -> dict[str, Any]:
        """What a run says about privacy, as plain data."""
        said = statement(
            self.algorithm.scheme,
            self.graphs,
            self.sensitivity,
            rounds=rounds,
            release=self.privacy.release,
            delta=self.privacy.delta,
            sum_noise=self.sum_noise,
        )
        budget = self.privacy.budget
        return {
            "statement": said.to_dict(),
            "settings": asdict(self.privacy),
            "budget": None if budget is None else asdict(budget),
            "ledger": self.ledger(rounds),
        }


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


def write_ledger(ledger: Mapping[str, Any], folder: Path, run: str) -> None:
    """plan.json and ledger.jsonl of a simulated run: an event for every message of every unit."""
    plan = Plan.from_json(ledger["plan"])
    plan.save(folder / PLAN)
    law, own = ledger.get("law", plan.scheme["law"]), ledger.get("sigma", plan.scheme["sigma"])

    def price(cost: float | None, sensitivity: float, sigma: float) -> Cost:
        if cost is None:
            return Cost(None, None, sensitivity, sigma, law if sigma else "none")
        gaussian = law.endswith("gaussian")
        rho, pure = (cost, None if cost else 0.0) if gaussian else (None if cost else 0.0, cost)
        return Cost(rho, pure, sensitivity, sigma, law if sigma else "none")

    def events() -> Iterator[Event]:
        for i, (cost, sensitivity) in enumerate(zip(ledger["costs"], ledger["sensitivities"], strict=True), 1):
            one = price(cost, sensitivity, own)
            yield from (Event(plan.hash, "message", i, unit, one) for unit in range(plan.units))
        if ledger["release"] is not None:
            one = price(ledger["release"]["cost"], ledger["release"]["sensitivity"], ledger["release"]["sigma"])
            yield from (Event(plan.hash, "release", plan.rounds, unit, one) for unit in range(plan.units))

    write_events(folder / LEDGER, ledger["dataset"], plan, events(), run)
