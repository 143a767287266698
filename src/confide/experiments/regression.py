"""The paper's regression experiment: its problem, and every run and prediction that a figure or a claim asks for.

The paper leaves the graph, its weights and the scale of the data open. Here is the default reading: a random connected
graph with lazy Metropolis weights and independent noise on every link between servers. The others are predicted, in
`confide.experiments.readings`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from confide.engines.driver import simulate
from confide.engines.run import Run
from confide.experiments.predicted import Comparison, compare
from confide.experiments.readings import DEFAULT, Exact
from confide.graph.graph import Graph
from confide.problems import regression
from confide.rounds.algorithm import GFL
from confide.rounds.schemes import scheme
from confide.theory.prediction import Prediction, predict
from confide.theory.stability import max_stable_step

MU, VARIANCE = 0.7, 0.1  # of figure 2
VARIANCES = (0.001, 0.01, 0.1, 1.0, 2.0, 10.0)  # of figure 3
STEPS = (0.1, 0.5, 1.0, 5.0)  # of figure 4
ARRIVED = 250  # rounds after which most predicted curves no longer move
PAIR = ("homomorphic", "per-link")  # what the sweeps compare
NAMES = ("none", *PAIR)  # "per-link" are the paper's random perturbations
CLIENT_LINKS = "per-link with client links"  # another reading of them


class Setting(NamedTuple):
    """One algorithm on one graph; figure 2 unless told otherwise."""

    name: str
    variance: float = VARIANCE
    mu: float = MU
    client_links: bool = False
    rounds: int | None = None

    @property
    def algorithm(self) -> GFL:
        sigma = math.sqrt(self.variance)
        return GFL(scheme=scheme(self.name, sigma, sigma_client=sigma if self.client_links else 0.0), step=self.mu)


@dataclass
class Regression:
    """Runs and predictions on one drawn problem; each is made when it is first asked for and kept.

    Arguments are those of `Setting`.
    """

    rounds: int
    repeats: int
    seed: int
    _runs: dict[Setting, Run] = field(default_factory=dict)
    _predictions: dict[Setting, Prediction] = field(default_factory=dict)

    @cached_property
    def problem(self) -> Any:
        return regression(seed=self.seed)

    @cached_property
    def stable_step(self) -> float:
        """The largest mean-square stable step, of every scheme shown: noise has no part in it."""
        return max_stable_step(self.problem, self.graph(), Setting("none", 0.0).algorithm, seed=self.seed)

    @cached_property
    def exact(self) -> Exact:
        """What prediction says of the other readings."""
        return Exact(self.seed, VARIANCE, ARRIVED)

    def graph(self, weights: str = DEFAULT.weights) -> Graph:
        return Graph.parse(DEFAULT.topology, weights=weights, seed=self.seed)

    def run(self, *args: Any, **kwargs: Any) -> Run:
        at = _setting(*args, **kwargs)
        if at not in self._runs:
            run = simulate(
                self.problem,
                self.graph(),
                at.algorithm,
                rounds=at.rounds or self.rounds,
                repeats=self.repeats,
                seed=self.seed,
                evaluate_every=at.rounds or self.rounds,  # the figures are of deviations, not of losses
            )
            if run.interrupted:
                raise KeyboardInterrupt  # figures already drawn are kept; half a figure is not
            self._runs[at] = run
        return self._runs[at]

    def prediction(self, *args: Any, **kwargs: Any) -> Prediction:
        """What theory expects of `run` with the same arguments."""
        at = _setting(*args, **kwargs)
        if at not in self._predictions:
            self._predictions[at] = self._predict(at, at.rounds or self.rounds)
        return self._predictions[at]

    def _predict(self, at: Setting, rounds: int) -> Prediction:
        """Of a curve that has arrived, no more rounds are computed."""
        short = min(rounds, ARRIVED)
        found = predict(self.problem, self.graph(), at.algorithm, rounds=short, seed=self.seed)
        if short == rounds:
            return found
        both = np.stack([found.centroid_msd, found.individual_msd])
        if not np.allclose(both[:, -1], both[:, -2], rtol=1e-9, atol=0.0):
            return predict(self.problem, self.graph(), at.algorithm, rounds=rounds, seed=self.seed)
        centroid, individual = np.pad(both, ((0, 0), (0, rounds - short)), "edge")
        return replace(found, centroid_msd=centroid, individual_msd=individual)

    def level(self, which: str, *args: Any, **kwargs: Any) -> float:
        """Steady state in dB; infinite for a run that diverged."""
        run = self.run(*args, **kwargs)
        state = run.steady_state
        return math.inf if run.diverged or state is None else state[f"{which}_db"]

    def compare(self, point: str, *args: Any, **kwargs: Any) -> list[Comparison]:
        """Predicted against measured; nothing where the step is not mean-square stable."""
        return compare(self.run(*args, **kwargs), self.prediction(*args, **kwargs), point)


def _setting(*args: Any, **kwargs: Any) -> Setting:
    at = Setting(*args, **kwargs)
    return at._replace(variance=0.0) if at.name == "none" else at


SHOWN = {  # in figure 2
    **{name: Setting(name) for name in NAMES},
    CLIENT_LINKS: Setting("per-link", client_links=True),
}
