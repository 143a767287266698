"""Where a run will go and where it will end: mean-square deviations without a simulation.

Exact for squared loss. For other smooth convex losses the recursion is linearised at w^o, with the bias that curvature
makes of a spread (`confide.theory.quadratics`). Predictions hold for the E and the batch sizes drawn from the seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from confide.base.arrays import Floats
from confide.base.validation import positive_int, whole
from confide.graph.graph import Graph
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL
from confide.theory.moments import Moments, blocks, moments
from confide.theory.quadratics import LocalQuadratics, bent, exact, linearise
from confide.theory.stationary import Limit, limit

HUGE = 1e200  # beyond this a transient is called infinite, before inf - inf makes NaN of it


@dataclass(frozen=True)
class Level:
    """A mean-square deviation by its sources, which add up to it."""

    bias_squared: float  # from several local steps and unlike units; with curvature, from a spread too
    gradient_noise: float  # sampling of clients and batches, dropout
    privacy_noise: float

    @property
    def total(self) -> float:
        return self.bias_squared + self.gradient_noise + self.privacy_noise


@dataclass(frozen=True)
class Levels:
    """What is left as the rounds go on, i -> infinity."""

    centroid: Level
    individual: Level

    @property
    def db(self) -> dict[str, float] | None:
        return _db(self.centroid.total, self.individual.total)


@dataclass(frozen=True, eq=False)
class Prediction:
    """Result of `predict`.

    Attributes:
        centroid_msd: E|w_c - w^o|^2 after rounds 1, 2, ...; empty without `rounds`.
        individual_msd: (1/P) sum_p E|w_p - w^o|^2, likewise.
        limit: the levels as i -> infinity; None where the step is not mean-square stable.
        exact: True for squared loss, False where it is linearised.
    """

    centroid_msd: Floats
    individual_msd: Floats
    limit: Levels | None
    exact: bool

    @property
    def steady_state(self) -> dict[str, float] | None:
        """In dB, as `Run.steady_state` of a run of as many rounds: over the last fifth of them; None without rounds.

        A run that is too short, or a step that is too long, shows as a difference from `limit.db`.
        """
        last = max(1, math.ceil(len(self.centroid_msd) / 5))
        if not len(self.centroid_msd):
            return None
        return _db(float(self.centroid_msd[-last:].mean()), float(self.individual_msd[-last:].mean()))


def predict(
    problem: Problem,
    graph: Graph,
    algorithm: GFL | None = None,
    *,
    rounds: int | None = None,
    seed: int = 0,
) -> Prediction:
    """The expected learning curves of `simulate(problem, graph, algorithm, rounds=rounds, seed=seed)`.

    Args:
        problem, graph, algorithm: as in `simulate`; by default `GFL()`.
        rounds: length of the transient; None for the limit only.
        seed: of the run: E and batch sizes are drawn from it once per client.

    Returns:
        Mean-square deviations from the optimum; `limit` is None where the step is not mean-square stable.

    Raises:
        InputError: the model is not linear or logistic, there is no unique optimum, or the settings (a clip,
            failures) are not predicted.

    >>> from confide.problems import regression
    >>> found = predict(regression(units=4, clients=20), Graph.ring(4), rounds=200)
    >>> abs(found.steady_state["centroid_db"] - found.limit.db["centroid_db"]) < 1e-3
    True
    """
    algorithm = algorithm if algorithm is not None else GFL()
    quadratics = linearise(problem)
    round, end = with_limit(quadratics, graph, algorithm, whole("seed", seed, 0, 2**63 - 1))
    x0 = np.tile(problem.start - quadratics.optimum, (graph.P, 1))
    curves = transient(round, x0, 0 if rounds is None else positive_int("rounds", rounds))
    return Prediction(*curves, None if end is None else levels(end), exact(problem))


def after_consensus(
    problem: Problem, graph: Graph, algorithm: GFL, combinations: Sequence[int], *, seed: int = 0
) -> list[Levels] | None:
    """The limit, and then so many clean combinations (`rounds.consensus`); None where there is no limit.

    Args:
        problem, graph, algorithm, seed: as of `predict`.
        combinations: numbers of them, a result each; 0 is the limit itself.
    """
    _, end = with_limit(linearise(problem), graph, algorithm, seed)
    if end is None:
        return None
    found = []
    for t in combinations:
        B = np.linalg.matrix_power(graph.A, whole("combinations", t, 0))
        gradient, privacy = (np.einsum("pq,qirj,sr->pisj", B, S, B, optimize=True) for S in (end.gradient, end.privacy))
        found.append(levels(Limit(B @ end.mean, gradient, privacy)))
    return found


def with_limit(quadratics: LocalQuadratics, graph: Graph, algorithm: GFL, seed: int) -> tuple[Moments, Limit | None]:
    """A round, with the bias that curvature makes of the spread in its limit, and that limit."""
    round = moments(quadratics, graph, algorithm, seed)
    end = limit(round)
    if end is not None and not exact(quadratics):
        round = moments(bent(quadratics, end.second_moments), graph, algorithm, seed)
        end = limit(round)
    return round, end


def course(round: Moments, x0: Floats) -> Iterator[tuple[Floats, Floats]]:
    """Covariance and mean after rounds 1, 2, ..., from known states x0."""
    P, M = x0.shape
    m, S = x0, np.zeros((P, M, P, M))
    while True:
        S, m = round.covariance(S, m), round.mean(m)
        yield S, m


def transient(round: Moments, x0: Floats, rounds: int) -> tuple[Floats, Floats]:
    """Centroid and individual MSD after each round, from known states x0."""
    centroid, individual = np.full(rounds, np.inf), np.full(rounds, np.inf)
    for i, (S, m) in zip(range(rounds), course(round, x0), strict=False):
        centroid[i], individual[i] = deviations(S, m)
        if not individual[i] < HUGE:
            centroid[i:], individual[i:] = np.inf, np.inf
            break
    return centroid, individual


def levels(end: Limit) -> Levels:
    nothing_known, nothing_drawn = np.zeros_like(end.mean), np.zeros_like(end.gradient)
    sources = ((nothing_drawn, end.mean), (end.gradient, nothing_known), (end.privacy, nothing_known))
    centroid, individual = zip(*(deviations(S, m) for S, m in sources), strict=True)
    return Levels(Level(*centroid), Level(*individual))


def deviations(S: Floats, m: Floats) -> tuple[float, float]:
    """(1/P^2) sum_pq Tr S_pq + |m_c|^2 and (1/P) sum_p (Tr S_pp + |m_p|^2)"""
    P, m_c = len(m), m.mean(axis=0)
    centroid = np.einsum("piqi->", S) / P**2 + m_c @ m_c
    return float(max(centroid, 0.0)), float((np.einsum("pii->", blocks(S)) + np.sum(m * m)) / P)


def decibels(level: float) -> float | None:
    """10 log10, where there is one."""
    return 10.0 * math.log10(level) if 0.0 < level < math.inf else None


def _db(centroid: float, individual: float) -> dict[str, float] | None:
    """As `Run.steady_state`: None where a level has no dB."""
    c, i = decibels(centroid), decibels(individual)
    return None if c is None or i is None else {"centroid_db": c, "individual_db": i}
