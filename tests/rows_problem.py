"""Random rows with labels, for a network that a config names: a problem of an installed package."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

import confide
from confide.problems.networks.named import from_entry_point
from same_network import C, F


class Rows(confide.problems.ProblemConfig):
    entry_points: ClassVar = frozenset({"model"})
    name: Literal["rows"] = Field("rows", description="of the tests")
    units: int = Field(2, description="P")
    clients: int = Field(3, description="K")
    model: str = Field(description="module:network")
    weights: str | None = Field(None, description="initial weights")

    def make(self, seed: int) -> confide.problems.Problem:
        draws = np.random.default_rng(0)
        rows = [
            [(draws.normal(size=(8, F)), draws.integers(0, C, 8).astype(float)) for _ in range(self.clients)]
            for _ in range(self.units)
        ]
        network = from_entry_point(self.model, weights=self.weights)
        return confide.problems.Problem(confide.Federation.from_clients(rows), network)  # type: ignore[arg-type]
