"""The table [problem] with name = "regression"."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from confide.base.validation import number, positive_int
from confide.problems.gaussian import regression
from confide.problems.models import Linear, Model
from confide.problems.problem import Problem
from confide.problems.problem_config import ProblemConfig


class RegressionConfig(ProblemConfig):
    sized_by: ClassVar = ("units", "clients", "samples", "features", "test_rows")
    name: Literal["regression"] = Field("regression", description="the paper's regression on data drawn from the seed")
    units: int = Field(10, description="P")
    clients: int = Field(100, description="K, of each unit")
    samples: int = Field(100, description="N, of each client")
    features: int = Field(2, description="M")
    rho: float = Field(0.1, description="regulariser rho |w|^2")
    covariance: list[float] = Field([0.05, 0.5], description="range of each client's covariance eigenvalues")
    noise_variance: list[float] = Field([0.01, 0.1], description="range of each client's sigma_v^2")
    test_rows: int = Field(0, description="held-out samples")
    seed: int | None = Field(None, description="of the data; the top-level seed by default")

    def make(self, seed: int) -> Problem:
        return regression(**self.arguments(seed))

    def memory(self) -> int:
        clients, features = self.units * self.clients, max(self.features, 0)
        return 8 * (3 * clients * features * (features + self.samples) + 3 * self.test_rows * features)

    def without_data(self) -> tuple[Model, int]:
        return Linear(number("problem.rho", self.rho, 0.0)), positive_int("problem.features", self.features)
