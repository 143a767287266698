"""The account of a simulated run: how many rounds a budget allows, epsilon so far, and the statement at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from confide.algorithm import GFL
from confide.errors import InputError
from confide.graph import Graph
from confide.privacy.accountant import Account, account
from confide.privacy.calibrate import affordable_rounds
from confide.privacy.sensitivity import Sensitivity
from confide.privacy.settings import Privacy
from confide.privacy.statement import statement
from confide.problems.problem import Problem


@dataclass(frozen=True)
class Accounting:
    privacy: Privacy
    graphs: Sequence[Graph]
    algorithm: GFL
    sensitivity: Sensitivity

    @classmethod
    def of(cls, privacy: Privacy, problem: Problem, graphs: Sequence[Graph], algorithm: GFL, seed: int) -> Accounting:
        return cls(privacy, graphs, algorithm, privacy.sensitivity(problem, algorithm, seed))

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
        """epsilon so far after these rounds; nothing where there is no statement or a leak."""
        try:
            found = [self.spend(i).epsilon for i in rounds]
        except InputError:
            return []
        return [] if None in found else [float(e) for e in found if e is not None]

    def summary(self, rounds: int) -> dict[str, Any]:
        """What a run says about privacy, as plain data."""
        said = statement(
            self.algorithm.scheme,
            self.graphs,
            self.sensitivity,
            rounds=rounds,
            release=self.privacy.release,
            delta=self.privacy.delta,
        )
        budget = self.privacy.budget
        return {
            "statement": said.to_dict(),
            "settings": asdict(self.privacy),
            "budget": None if budget is None else asdict(budget),
        }
