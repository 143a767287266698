"""The schemes at equal true privacy: one (epsilon, delta) for all, the noise of each sized by the accountant.

Figures (f) and (g), ours. Three problems on a ring of 10 servers with 20 clients each, all taking part in every round:
the paper's regression with its rows bounded, and logistic regression whose units are nearly alike (mild) or each look
along their own direction (strong). The adversary sees all links between servers, and what is released; one client's
data may be replaced by any other. Weights are plain Metropolis, those of the design's table; lazy ones, which favour
homomorphic noise, are run too and shown in the numbers of the claim that depends on them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from confide.algorithm import GFL
from confide.clipping import Clip
from confide.engines.driver import simulate
from confide.experiments.claims import Claim
from confide.federation import Federation
from confide.graph import Graph
from confide.models import Linear, Logistic
from confide.privacy.accountant import account
from confide.privacy.calibrate import Budget, Calibrated, calibrate
from confide.privacy.sensitivity import Proof, Sensitivity
from confide.problems import Problem, regression
from confide.randomness import Purpose, generator
from confide.report import figures
from confide.schemes import Scheme, scheme

Floats = NDArray[np.float64]
P, K, N, M = 10, 20, 20, 5  # servers, clients of each, samples of each, features of the logistic problems
MU, ROUNDS, DELTA = 0.5, 60, 1e-5
EPSILONS, FEW = (1.0, 2.0, 4.38, 10.0, 20.0), (2.0, 10.0)  # 4.38 and 10 are rho = 0.5 and 2 of the design's table
USUAL = 10.0  # the epsilon of a claim about one budget; in both grids


@dataclass(frozen=True)
class Task:
    """A problem with what is declared of it; every declared bound is enforced on the data or by the clip."""

    title: str
    problem: Problem
    bound: float  # B of the per-example clip
    smoothness: float  # delta of every sampled loss

    @property
    def sensitivity(self) -> Sensitivity:
        proof = Proof("convex-glm", 2.0 * self.problem.model.rho)
        return Sensitivity(
            step=MU, bound=self.bound, sampled=K, clients=K, dim=self.problem.M, proof=proof, smoothness=self.smoothness
        )


def bounded_regression(seed: int) -> Task:
    """The paper's regression; a row (u, d) longer than |u| = 1 is scaled down to it, so that d = u'w* + v stays true.

    B = 2 is beyond the gradients near the optimum, 2 |u||u'(w* - w^o) + v|, for all but a few rows.
    """
    plain = regression(units=P, clients=K, samples=N, seed=seed)
    f, rho = plain.federation, plain.model.rho
    longer = np.maximum(1.0, np.linalg.norm(f.X, axis=1))
    rows = Federation(f.X / longer[:, None], f.d / longer, f.client_offsets, f.unit_offsets)
    problem = Problem(rows, Linear(rho), spec={**plain.spec, "name": "regression with |u| <= 1"})
    return Task("regression, clipped", problem, bound=2.0, smoothness=2.0 + 2.0 * rho)


def logistic(seed: int, title: str, *, rho: float, size: float, spread: float, narrow: float) -> Task:
    """Labels drawn from a logistic model of each unit's own, |u| = 1, so that no gradient is longer than B = 1.

    Args:
        size, spread: the parameter of unit p is size (c + spread z_p), with c and z_p random directions.
        narrow: how much shorter all but one (random) axis of a unit's features are: 0 is alike in all directions.
    """
    rng = generator(seed, Purpose.DATA, 1)

    def directions(*shape: int) -> Floats:
        z = rng.standard_normal((*shape, M))
        return np.asarray(z / np.linalg.norm(z, axis=-1, keepdims=True))

    theta = size * (directions(1) + spread * directions(P))
    axes, _ = np.linalg.qr(rng.standard_normal((P, M, M)))
    lengths = np.where(np.arange(M) == 0, 1.0, 1.0 - narrow)
    u = np.einsum("pij,pnj->pni", axes * lengths, rng.standard_normal((P, K * N, M)))
    u /= np.linalg.norm(u, axis=2, keepdims=True)
    likely = 1.0 / (1.0 + np.exp(-np.einsum("pni,pi->pn", u, theta)))
    d = np.where(rng.random((P, K * N)) < likely, 1.0, -1.0)
    rows = Federation(u.reshape(-1, M), d.ravel(), np.arange(P * K + 1) * N, np.arange(P + 1) * K)
    return Task(title, Problem(rows, Logistic(rho), spec={"name": title}), bound=1.0, smoothness=0.25 + 2.0 * rho)


@dataclass(frozen=True)
class Way:
    """A scheme, what is revealed in the end, and how it is drawn."""

    label: str
    name: str
    colour: str
    release: str = "centroid"  # paid from the same budget where it costs anything
    pair_ratio: float = 1.0  # sigma_pair / sigma
    style: str = "-"


WAYS = {
    "none": Way("no noise, not private", "none", figures.COLOURS["none"], "none", style=":"),
    "shared": Way("shared", "shared", "#e08214"),
    "per-link": Way("random per link, not released", "per-link", figures.COLOURS["per-link"], "none", style="--"),
    "homomorphic": Way("homomorphic, not released", "homomorphic", figures.COLOURS["homomorphic"], "none", style="--"),
    "released": Way("homomorphic + release", "homomorphic", figures.COLOURS["homomorphic"]),
    "local-only": Way("local only + release", "local-only", "#7b3fa0"),
    # The design's ratio k is one of variances: sigma_pair^2 = k sigma^2.
    "pairwise-2.6": Way("pairwise, k = 2.6", "pairwise", "#18a4b8", pair_ratio=math.sqrt(2.6)),
    "pairwise-30": Way("pairwise, k = 30", "pairwise", "#0b4f63", pair_ratio=math.sqrt(30.0)),
    "central": Way("central (yardstick)", "central", "#555555", style="-."),
}
# A yardstick is not a candidate: it needs a secure sum over all servers in every round.
CANDIDATES = ("shared", "released", "local-only", "pairwise-2.6", "pairwise-30")
OWN = ("shared", "per-link", "homomorphic", "local-only", "pairwise-2.6", "pairwise-30")  # for individual models


class Point(NamedTuple):
    """One scheme on one problem at one epsilon; errors of the last round, one for each repetition."""

    calibrated: Calibrated | None  # None without noise
    epsilon: float | None  # accounted afresh, of the scheme that was run
    centroid: Floats
    released: Floats | None  # None where nothing is released
    individual: Floats

    @property
    def learnt(self) -> Floats:
        """The error of what comes out: of the released model, or of the centroid that nobody sees."""
        return self.centroid if self.released is None else self.released


@dataclass
class EqualPrivacy:
    """Runs on problems drawn once; each is made when it is first asked for and kept."""

    epsilons: tuple[float, ...]
    repeats: int
    seed: int
    _points: dict[tuple[Any, ...], Point] = field(default_factory=dict)
    _runs: dict[tuple[Any, ...], tuple[Floats, Floats]] = field(default_factory=dict)

    @classmethod
    def sized(cls, quick: bool, repeats: int | None, seed: int) -> EqualPrivacy:
        return cls(FEW if quick else EPSILONS, repeats if repeats is not None else 10 if quick else 100, seed)

    @cached_property
    def tasks(self) -> dict[str, Task]:
        mild, strong = "logistic, mild heterogeneity", "logistic, strong heterogeneity"
        return {
            "regression": bounded_regression(self.seed),
            "mild": logistic(self.seed, mild, rho=0.1, size=5.0, spread=0.3, narrow=0.0),
            "strong": logistic(self.seed, strong, rho=0.02, size=15.0, spread=1.0, narrow=0.95),
        }

    def point(self, task: str, way: str, epsilon: float, weights: str = "metropolis") -> Point:
        key = (task, way, epsilon, weights)
        if key not in self._points:
            self._points[key] = self._measure(self.tasks[task], WAYS[way], epsilon, weights)
        return self._points[key]

    def level(self, which: str, task: str, way: str, epsilon: float, weights: str = "metropolis") -> float:
        """Mean squared error ("learnt" or "individual") in dB."""
        return 10.0 * math.log10(float(np.mean(getattr(self.point(task, way, epsilon, weights), which))))

    def _measure(self, task: Task, way: Way, epsilon: float, weights: str) -> Point:
        graph = Graph.ring(P, weights=weights)
        if way.name == "none":
            centroid, individual = self._run(task, graph, scheme("none"))
            return Point(None, None, centroid, None, individual)
        s, budget = task.sensitivity, Budget(epsilon=epsilon, delta=DELTA)
        c = calibrate(way.name, graph, s, budget, rounds=ROUNDS, release=way.release, pair_ratio=way.pair_ratio)
        spent = account(c.scheme, graph, s, rounds=ROUNDS, release=c.release, delta=DELTA)
        centroid, individual = self._run(task, graph, c.scheme)
        # The noise of a release is independent of all else: it adds its variance, exactly.
        released = centroid + task.problem.M * c.release.sigma**2 if c.release.kind == "centroid" else None
        return Point(c, spent.epsilon, centroid, released, individual)

    def _run(self, task: Task, graph: Graph, noise: Scheme) -> tuple[Floats, Floats]:
        key = (task.title, graph.weights, noise)
        if key not in self._runs:
            algorithm = GFL(
                scheme=noise,
                step=MU,
                sampled=K,
                local_steps=1,
                batch=N,
                replacement=False,
                clip=Clip("example", task.bound),
            )
            run = simulate(
                task.problem,
                graph,
                algorithm,
                rounds=ROUNDS,
                repeats=self.repeats,
                seed=self.seed,
                evaluate_every=ROUNDS,
            )
            if run.interrupted:
                raise KeyboardInterrupt  # figures already drawn are kept; half a figure is not
            self._runs[key] = run.metrics["centroid_msd"][:, -1], run.metrics["individual_msd"][:, -1]
        return self._runs[key]
