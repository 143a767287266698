"""Two adjacent data sets through the integer round, with the same messages: never further apart than the price says.

The worst that a proof allows is played: updates at their bound in opposite directions where only a bound is used,
real training of real clients where a proof speaks of the map; any survivors, any public flows, any noise.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import a_deployed_plan, forged_units, units
from confide.base.randomness import Purpose
from confide.graph.graph import Graph
from confide.plans.plan import Plan, SecureSum
from confide.privacy.accountant import account
from confide.privacy.price import Price, agreed
from confide.problems.models import Linear
from confide.rounds.arithmetic import DECAY_BITS, on_grid, scaled
from confide.rounds.combine import Perturbed, Sender
from confide.rounds.local import LocalTask, decay, sgd, shared_update
from confide.rounds.schemes import scheme
from confide.secure.parameters import Parameters
from exploring import more

T, P, RHO = 16, 4, 0.125
QUICK = settings(max_examples=more(15, 200))  # a third of all examples and more break a price that is too low


class Case(NamedTuple):
    name: str
    level: str = "client"
    proof: str = "none"
    law: str = "gaussian"
    norm: str = "l2"
    quorum: int | None = None  # None: in clear, where a single client may survive

    def __str__(self) -> str:
        return "-".join(str(x) for x in self)


TIGHT = [  # nothing is rounded that counts
    Case("shared"),
    Case("shared", "unit", law="laplace"),
    Case("shared", "unit", law="laplace", norm="l1"),
    Case("homomorphic", "unit"),
    Case("homomorphic", "unit", law="laplace", norm="l1"),
]
ROUNDED = [
    Case("shared", "example"),
    Case("shared", "example", law="laplace", norm="l1"),
    Case("own-clean", "unit"),
    Case("partial:0.3", "unit", law="laplace", norm="l1"),
    Case("partial:0.3", "unit", "regulariser:0.125"),
    Case("per-link", "unit"),
    Case("per-link-clean", "unit", "regulariser:0.125", law="laplace", norm="l1"),
    Case("homomorphic", "client", "regulariser:0.125"),
    Case("homomorphic", "unit", "regulariser:0.125", law="laplace", norm="l1"),
    Case("homomorphic", "client", "convex-glm:0.25"),
    Case("homomorphic", "client", "convex-glm:0.25", quorum=3),
    Case("homomorphic", "example", "convex-glm:0.25", quorum=3),
    Case("homomorphic", "client", "convex-glm:0.25", law="laplace", norm="l1"),
    Case("own-clean", "client", "convex-glm:0.25", quorum=3),
    Case("per-link", "client", "convex-glm:0.25", quorum=3),
]
LOOSE = [Case("homomorphic", "example", "regulariser:0.125", law="laplace")]  # l1 from l2: nobody attains sqrt(M)
L, M, BITS, BATCH, BOUND, STEP = 3, 2, 2, 4, 1.0, 1.0  # a bounded update is 4 of its quanta
CURVATURE = 1.75  # the largest with mu <= 2 / (delta + nu): features of norm at most sqrt(3) / 2
REACH = math.sqrt((CURVATURE - 2.0 * RHO) / 2.0)


@lru_cache
def plan(case: Case) -> Plan:
    clip = "example" if case.level == "example" or case.proof != "none" else "update"
    summed = SecureSum(Parameters(L, L - 1, 3, case.quorum, 0)) if case.quorum else None
    return a_deployed_plan(
        graph=on_grid(Graph.ring(P, weights="metropolis")),
        scheme=scheme(case.name, 0.5, noise=case.law),
        rounds=T,
        step=STEP,
        bound=BOUND,
        norm=case.norm,
        clip=clip,
        sampled=L,
        dim=M,
        level=case.level,
        proof=case.proof,
        unprotected=True,  # so little noise that no epsilon is left beside the sampler's distance
        smoothness=CURVATURE if case.proof.startswith("convex") else None,
        fraction_bits=BITS,
        model="linear",
        ridge=RHO if clip == "example" else 0.0,
        units=units(forged_units([L] * P), 1, BATCH),
        secure=summed,
    )


@lru_cache
def priced(case: Case) -> Price:
    return agreed(plan(case))


@lru_cache
def promised(case: Case) -> tuple[float, ...]:
    return tuple(cost.sensitivity for cost in priced(case).messages)


@lru_cache
def in_real_numbers(case: Case) -> tuple[float, ...]:
    """What the accountant would say if nothing were ever rounded and everybody survived."""
    found = priced(case)
    assert found.sensitivity is not None
    exact = replace(found.sensitivity, rounding=None)
    return account(found.scheme, found.plan.graph.graphs, exact, rounds=T).deltas


class Play(NamedTuple):
    """An adversary who knows the proof: steady, or with something of everything."""

    case: Case
    rng: np.random.Generator
    steady: bool
    axis: np.ndarray

    def bounded(self, limit: float) -> tuple[np.ndarray, np.ndarray]:
        """Two updates at their bound, mostly opposite."""
        if self.steady:
            return self.axis * limit, -self.axis * limit
        v = unit(self.rng.choice([self.rng.normal(size=M), np.eye(M)[self.rng.integers(M)], np.ones(M)]), self.case)
        return v * limit, self.rng.choice([-1.0, 1.0], p=[0.9, 0.1]) * v * limit

    def clients(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        """X, d and X', d' of each client; they differ in what the level says."""
        found = []
        for k in range(L):
            X = self.rng.normal(size=(BATCH, M))
            X *= (REACH * self.rng.choice([1.0, 0.3]) / np.linalg.norm(X, axis=1))[:, None]
            d = self.rng.choice([0.5, 2.0]) * self.rng.normal(size=BATCH)
            if self.steady:  # every gradient clipped, whatever the model
                X, d = np.tile(REACH * self.axis, (BATCH, 1)), np.full(BATCH, 30.0)
            X2, d2 = X.copy(), d.copy()
            rows = slice(0, 0) if k else slice(0, 1) if self.case.level == "example" else slice(0, BATCH)
            d2[rows] = -d[rows]
            found.append((X, d, X2, d2))
        return found

    def survivors(self) -> list[int]:
        fewest = self.case.quorum or 0
        if self.steady:  # the target always, and as few others as may be
            return list(range(max(1, fewest) if self.case.proof.startswith("convex") else L))
        return [int(k) for k in self.rng.permutation(L)[: self.rng.integers(fewest, L + 1)]]

    def candidates(self) -> int:
        return 5 if self.steady else 1


def unit(v: np.ndarray, case: Case) -> np.ndarray:
    return np.asarray(v / np.linalg.norm(v, 1 if case.norm == "l1" else 2))


def farthest(case: Case, seed: int) -> list[float]:
    """|psi_j - psi'_j|, j = 1..T, in the norm of the noise."""
    rng = np.random.default_rng(seed)
    p, d = plan(case).algorithm, priced(case)
    axis = np.eye(M)[0] if case.level != "example" or case.proof != "none" else unit(rng.normal(size=M), case)
    play, arith, server = Play(case, rng, bool(rng.integers(2)), axis), d.arithmetic, 1
    order = 1 if case.law == "laplace" else 2
    clients = play.clients()
    model = Linear(RHO if p.clip.kind == "example" else 0.0)
    task = LocalTask(model, p.step, 1, BATCH, False, p.clip, int(rng.integers(2**60)))
    gone = 1.0 - decay(task) if p.clip.kind == "example" else 0.0
    w = [np.zeros(M, np.int64), np.zeros(M, np.int64)]
    found = []
    for _ in range(T):
        total, alive = [np.zeros(M, np.int64), np.zeros(M, np.int64)], play.survivors()
        for k in alive:
            for side, update in enumerate(updates(play, k, clients[k], [arith.value(x) for x in w], task, gone)):
                total[side] += arith.encode(update)
        psi = [arith.add(w[side], total[side], gone * len(alive) / L) for side in (0, 1)]
        found.append(float(np.linalg.norm((psi[0] - psi[1]) * arith.quantum, order)))
        ways = [published(d, server, psi, rng) for _ in range(play.candidates())]
        shrink = round(gone * len(alive) / L * 2**DECAY_BITS)

        def apart(pair: list[np.ndarray], shrink: int = shrink) -> float:
            """How far the next round starts apart, its decay included."""
            a, b = (x - scaled(shrink, x, DECAY_BITS) for x in pair)
            return float(np.linalg.norm(a - b, order))

        w = max(ways, key=apart)
    return found


def updates(
    play: Play, k: int, data: tuple[np.ndarray, ...], models: list[np.ndarray], task: LocalTask, gone: float
) -> tuple[np.ndarray, np.ndarray]:
    """What client k sends on either side."""
    case, X, y, X2, y2 = play.case, *data
    same = np.array_equal(*models)
    if case.proof.startswith("convex"):
        one = shared_update(sgd, models[0], X, y, task, True)[0]
        return one, shared_update(sgd, models[1], X2, y2, task, True)[0]
    if case.level == "example" and same:  # one of BATCH bounded gradients changes
        common = (
            unit(np.abs(play.rng.normal(size=M)) * np.sign(play.axis), case)
            * STEP
            * BOUND
            * (BATCH - 1)
            / BATCH
            * play.rng.uniform(0.5, 1.0)
        )
        a, b = play.bounded(STEP * BOUND / BATCH)
        return common + a, common + (a if k else b)
    a, b = play.bounded(BOUND * gone / (2.0 * RHO) if case.proof != "none" else STEP * BOUND)
    return a, (a if same and case.level != "unit" and k else b)  # the same model, the same data


def published(d: Price, server: int, psi: list[np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
    """The states after one way in which noise and the network may fall, the same messages on both sides."""
    (graph,) = d.plan.graph.graphs
    row = {m: float(graph.A[server, m]) for m in graph.neighbours(server).tolist()}
    noise = {m: rng.integers(-5, 6, size=M) for m in (*row, server)}

    def side(own: np.ndarray) -> Perturbed:
        def draw(purpose: Purpose, ids: tuple[int, ...], sigma: float) -> np.ndarray:
            if purpose == Purpose.LINK_NOISE and ids == (
                server,
                server,
            ):  # never leaves: known to the adversary of the proof
                return noise[server]
            return psi[0] + noise[ids[-1]] - own  # what explains the message

        return Sender(d.scheme, server, float(graph.own_weights[server]), row, own, draw, d.arithmetic).perturb()

    one, other = side(psi[0]), side(psi[1])
    for m in row:
        assert np.array_equal(one.sent[m], other.sent[m])
    flow = rng.integers(-6, 7, size=M)
    return [one.own + flow, other.own + flow]


@pytest.mark.parametrize("case", TIGHT + ROUNDED + LOOSE, ids=str)
@given(st.integers(0, 2**62))
@QUICK
def test_the_price_is_true(case: Case, seed: int) -> None:
    for size, most in zip(farthest(case, seed), promised(case), strict=True):
        assert size <= most * (1 + 1e-12)


@pytest.mark.parametrize("case", ROUNDED, ids=str)
def test_in_real_numbers_the_price_would_be_false(case: Case) -> None:
    most = np.array(in_real_numbers(case))
    assert any(np.any(np.array(farthest(case, seed)) > most + 1e-6) for seed in range(400))


@pytest.mark.parametrize("case", TIGHT, ids=str)
def test_where_nothing_is_rounded_nothing_is_added(case: Case) -> None:
    assert promised(case) == pytest.approx(in_real_numbers(case), rel=1e-13)
