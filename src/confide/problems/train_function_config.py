"""The table [problem] of a train function of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from confide.problems.problem import Problem
from confide.problems.problem_config import ProblemConfig
from confide.problems.train_function import Own, own


class OwnConfig(ProblemConfig):
    one_release: ClassVar = True
    labels: ClassVar = frozenset({"train_config"})
    sized_by: ClassVar = ("units", "clients", "length")
    entry_points: ClassVar = frozenset({"train"})
    name: Literal["own"] = Field("own", description="a train function of your own, as a deployed client has it")
    units: int = Field(description="P")
    clients: int = Field(description="K, of each unit")
    length: int = Field(description="M, numbers in the model")
    train: str = Field(description="package.module:function(weights, round, config) -> update")
    train_config: dict[str, Any] = Field(
        {}, description="[problem.train_config]: given to the function; {unit} and {client} in a text become numbers"
    )
    train_timeout: float = Field(600.0, description="seconds of a training, then zeros")
    train_log: str | None = Field(None, description="file for what the train function writes; nowhere by default")
    weights: str | None = Field(None, description="safetensors file with the initial weights; zeros by default")

    def make(self, seed: int) -> Problem:
        return own(**self.model_dump(exclude={"name"}))

    def told(self, unit: int, client: int) -> dict[str, Any]:
        """The `[train_config]` of one client."""
        return Own(self.train, self.length, self.train_config).told(unit, client)

    def memory(self) -> int:
        return 8 * self.units * max(self.clients, self.length)

    def without_data(self) -> tuple[Own, int]:
        return Own(self.train, self.length, weights=None if self.weights is None else Path(self.weights)), self.length
