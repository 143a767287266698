"""A problem: a federation, a model and what is known of the optimum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from confide.base.arrays import Floats
from confide.base.errors import InputError
from confide.base.files import Source
from confide.problems.federation import Federation
from confide.problems.models import Linear, Model, Regression, Started
from confide.problems.networks.network import Network

if TYPE_CHECKING:
    from confide.problems.optimum import Quadratic


@dataclass(frozen=True, eq=False)
class Problem:
    """What `confide.simulate` learns.

    Attributes:
        federation: the training data, by unit and client.
        model: loss and gradients.
        test: held-out features and labels, or None.
        spec: name and parameters that make this problem again (saved with a run).
        notes: what every output must say of it, such as "synthetic".
        features: how the columns of X were made from a table (`confide predict` reads it), or None.
        private: whether the data are somebody's; what confide made from a seed, or everybody has, is not.
        undeclared: what was computed from everybody's rows before any noise (scaling, categories, a split of the whole
            table), each with what to declare instead: an epsilon does not cover it, so an accounted run is refused.
        source: the file that the data were read from, as it was then; no output has its digest.
    """

    federation: Federation
    model: Model
    test: tuple[Floats, Floats] | None = None
    spec: Mapping[str, Any] = field(default_factory=lambda: {"name": "custom"})
    notes: tuple[str, ...] = ()
    features: Mapping[str, Any] | None = None
    private: bool = True
    undeclared: tuple[str, ...] = ()
    source: Source | None = None

    def __post_init__(self) -> None:
        if isinstance(self.model, Regression):
            for d in (self.federation.d, *(() if self.test is None else (self.test[1],))):
                wrong = d[~self.model.readable(d)]
                if len(wrong):
                    remedy = f"the labels of this model are {self.model.labels}"
                    raise InputError("problem.label", float(wrong[0]), remedy)
        if isinstance(self.model, Network):
            for d in (self.federation.d, *(() if self.test is None else (self.test[1],))):
                self.model.check_labels(d)
            self.model.check(self.federation.X, self.federation.d)
            if self.test is not None:
                self.model.check_metrics(*self.test)

    @property
    def M(self) -> int:
        """Numbers in a model."""
        return self.model.dimension(self.federation.M)

    @cached_property
    def start(self) -> Floats:
        """w_0, the public model that every server begins with, shape (M,): the model's own, or zeros."""
        if not isinstance(self.model, Started):
            return np.zeros(self.M)
        start = np.asarray(self.model.start(), dtype=np.float64)
        if start.shape != (self.M,) or not np.isfinite(start).all():
            remedy = f"its start() must give {self.M} finite numbers"
            raise InputError("problem.model", type(self.model).__name__, remedy)
        return start

    @cached_property
    def optimum(self) -> Floats | None:
        """w^o of (1), to 1e-10, or None where it is unknown: another model, none that is unique, too costly."""
        if not isinstance(self.model, Regression):
            return None
        from confide.problems.optimum import NoUniqueOptimumError, solve

        try:
            return solve(self.federation, self.model)
        except NoUniqueOptimumError:
            return None

    @cached_property
    def _quadratic(self) -> Quadratic | None:
        """Squared loss needs the data once, then every evaluation of the risk is free."""
        from confide.problems.optimum import quadratic

        return quadratic(self.federation, self.model) if isinstance(self.model, Linear) else None

    def risk(self, w: Floats) -> float:
        """The objective (1) at the model w, shape (M,): units and clients weigh equally, whatever their rows."""
        if self._quadratic is not None:
            return self._quadratic.value(w)
        from confide.problems.optimum import risk

        return risk(self.federation, self.model, w)
