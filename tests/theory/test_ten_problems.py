"""A dozen random problems: predicted levels against simulation, stability against the dense operator, bounds.

Sizes, ragged clients, graphs, weights, steps, E and batch ranges, replacement, dropout and schemes are drawn from a
fixed seed, so nothing here was chosen to agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import confide
from confide.base.errors import InputError
from confide.engines.run import Run
from confide.graph.graph import Graph
from confide.problems.federation import Federation
from confide.problems.models import Linear
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL
from confide.rounds.schemes import scheme
from confide.theory import moments as moments_module
from confide.theory.bounds import bounds, largest_step
from confide.theory.moments import Moments
from confide.theory.prediction import predict
from confide.theory.stability import max_stable_step
from exploring import more
from paper import spectral_radius

Floats = np.ndarray[Any, Any]
SEED = 20
REPEATS = 200
TOLERANCE, WIDEST = 0.5, 1.5  # dB
SCHEMES = (
    "none", "homomorphic", "shared", "own-clean", "per-link", "per-link-clean", "pairwise", "central", "local-only",
    "partial:0.4",
)  # fmt: skip
NAMES = ("centroid", "individual")
CASES = more((*range(len(SCHEMES) + 1), 13), range(16))  # each scheme, and two that show what a wrong prediction is


@dataclass(frozen=True, eq=False)
class Case:
    problem: Problem
    graph: Graph
    algorithm: GFL  # its step is a share of the stable one
    settled: int  # rounds until little of the start is left
    rounds: int


@cache
def case(n: int) -> Case:
    rng = np.random.default_rng([SEED, n])
    P, M, rho = int(rng.integers(2, 7)), int(rng.integers(1, 4)), float(rng.uniform(0.05, 0.4))
    K = rng.integers(3, 9, P)
    w, unlike = rng.standard_normal(M), float(rng.uniform(0.0, 0.3))

    def client() -> tuple[Floats, Floats]:
        N = int(rng.integers(4, 11))
        X = rng.standard_normal((N, M)) * rng.uniform(0.3, 1.0, M)
        return X, X @ (w + unlike * rng.standard_normal(M)) + rng.uniform(0.1, 0.5) * rng.standard_normal(N)

    problem = Problem(Federation.from_clients([[client() for _ in range(k)] for k in K]), Linear(rho))
    kind = ["ring", "path", "star", "complete", "random"][int(rng.integers(5))]
    weights = "lazy" if rng.random() < 0.5 else "metropolis"
    spec = f"random:{P}:0.5" if kind == "random" else f"{kind}:{P}"
    name = SCHEMES[n % len(SCHEMES)]
    sigma = 0.0 if name in ("none", "local-only") else float(rng.uniform(0.05, 0.4))
    extra = {"sigma_pair": 0.3} if name == "pairwise" else {"sigma_client": 0.3} if name.startswith("per-link") else {}
    E, B = (tuple(sorted(rng.integers(1, 5, 2).tolist())) for _ in range(2))
    algorithm = GFL(
        scheme(name, sigma, noise=str(rng.choice(["laplace", "gaussian"])), **extra),
        sampled=int(rng.integers(1, K.min() + 1)),
        local_steps=E,
        batch=B,
        replacement=bool(rng.random() < 0.5),
        dropout=float(rng.choice([0.0, 0.0, 0.3])),
    )
    graph = Graph.parse(spec, weights=weights, seed=n)
    share = float(rng.uniform(0.08, 0.3))
    algorithm = replace(algorithm, step=share * max_stable_step(problem, graph, algorithm, seed=n))
    tau = -1.0 / math.log(spectral_radius(problem, graph, algorithm, seed=n))
    settled = math.ceil(14 * tau)
    return Case(problem, graph, algorithm, settled, settled + 80)


@cache
def simulated(n: int) -> Run:
    c = case(n)
    options: dict[str, Any] = {"rounds": c.rounds, "evaluate_every": c.rounds, "engine": "compiled"}
    return confide.simulate(c.problem, c.graph, c.algorithm, repeats=REPEATS, seed=n, **options)


def compared(n: int) -> list[tuple[float, float]]:
    """Measured minus predicted level in dB, and its standard error, for the centroid and the individual models."""
    c, run = case(n), simulated(n)
    prediction = predict(c.problem, c.graph, c.algorithm, seed=n)
    assert prediction.limit is not None
    found = []
    for name in NAMES:
        levels = run.metrics[f"{name}_msd"][:, c.settled :].mean(axis=1)
        expected = getattr(prediction.limit, name).total
        error = levels.std(ddof=1) / math.sqrt(REPEATS) / levels.mean()
        found.append((10 * math.log10(levels.mean() / expected), 10 / math.log(10) * error))
    return found


def disagrees(difference: float, error: float) -> bool:
    """By more than 0.5 dB, or the 99.9% confidence band where that is wider."""
    return not abs(difference) <= max(TOLERANCE, 3.3 * error)


@pytest.mark.parametrize("n", CASES)
def test_the_steady_state_is_the_predicted_one(n: int) -> None:
    for difference, error in compared(n):
        assert 3.3 * error < WIDEST, "the band is too wide to tell anything"
        assert not disagrees(difference, error)


def test_the_problems_differ() -> None:
    algorithms = [case(n).algorithm for n in CASES]
    assert {a.replacement for a in algorithms} == {True, False}
    assert {a.dropout for a in algorithms} == {0.0, 0.3}
    assert {case(n).graph.weights for n in CASES} == {"lazy", "metropolis"}
    assert len({case(n).graph.name.split(":")[0] for n in CASES}) >= 4
    assert len({a.scheme.name for a in algorithms}) == len(SCHEMES)
    assert {case(n).problem.M for n in CASES} == {1, 2, 3}


# ---- it can fail


def no_finite_population(unit: Any) -> float:
    return float(unit.q**2)


def no_variance_of_dropout(algorithm: GFL) -> GFL:
    """Dropout that only shortens the step: in the mean the same, to first order."""
    return replace(algorithm, dropout=0.0, step=(1 - algorithm.dropout) * algorithm.step)


def all_samples(unit: Callable[..., Any]) -> Callable[..., Any]:
    """Batches without replacement as if they were with it."""

    def wrong(quadratics: Any, algorithm: GFL, *rest: Any) -> Any:
        return unit(quadratics, replace(algorithm, replacement=True), *rest)

    return wrong


def noise_by_n(moments: Callable[..., Moments]) -> Callable[..., Moments]:
    """The noise of the messages, N z, for that of the states, R z; where there is one message a server."""

    def wrong(quadratics: Any, graph: Graph, algorithm: GFL, seed: int) -> Moments:
        found, N = moments(quadratics, graph, algorithm, seed), algorithm.scheme.wiring(graph).N[0]
        return replace(found, noise=N @ N.T) if len(N) == graph.P else found

    return wrong


def caught() -> int:
    return sum(any(disagrees(*d) for d in compared(n)) for n in CASES)


def test_a_prediction_without_the_finite_population_factor_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moments_module.Unit, "unlike", property(no_finite_population))
    assert caught() >= 3


def test_batches_read_as_if_replaced_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moments_module, "of_unit", all_samples(moments_module.of_unit))
    assert caught() >= 2


def test_noise_of_messages_for_that_of_states_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("confide.theory.prediction.moments", noise_by_n(moments_module.moments))
    assert caught() >= 4


def test_dropout_without_its_variance_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(quadratics: Any, graph: Graph, algorithm: GFL, seed: int) -> Moments:
        return moments_module.moments(quadratics, graph, no_variance_of_dropout(algorithm), seed)

    monkeypatch.setattr("confide.theory.prediction.moments", silent)
    assert caught() >= 1


# ---- stability


def dense_radius(c: Case, step: float, seed: int) -> float:
    """The spectral radius of E[T (x) T] as one matrix, built from per-client second moments by Kronecker products."""
    f, M, rho, alg = c.problem.federation, c.problem.M, c.problem.model.rho, c.algorithm
    E, batch = alg.settle(f, seed)
    eye, q, L = np.eye(M), 1.0 - alg.dropout, alg.sampled
    means, seconds = [], []
    for p in range(f.P):
        K, first = int(f.K[p]), int(f.unit_offsets[p])
        Phi, F = [], []
        for k in range(K):
            X, _ = f.client(p, k)
            e, b, N, eta = int(E[first + k]), int(batch[first + k]), len(X), step / E[first + k]
            H = [2 * np.outer(u, u) + 2 * rho * eye for u in X]
            Hbar = np.mean(H, axis=0)
            spread = np.mean([np.kron(h, h) for h in H], axis=0) - np.kron(Hbar, Hbar)
            factor = 1.0 if alg.replacement else (N - b) / (N - 1)
            one = np.kron(eye - eta * Hbar, eye - eta * Hbar) + eta**2 * factor / b * spread
            Phi.append(np.linalg.matrix_power(eye - eta * Hbar, e) - eye)
            F.append(np.linalg.matrix_power(one, e))
        # E[D (x) D] of an update D = T - I that survives with probability q, and of two different clients
        same = [q * (Fk - np.kron(Pk, eye) - np.kron(eye, Pk) - np.eye(M * M)) for Fk, Pk in zip(F, Phi, strict=True)]
        pairs = [q**2 * np.kron(a, b) for i, a in enumerate(Phi) for j, b in enumerate(Phi) if i != j]
        both = np.mean(same, axis=0) / L
        if L > 1:
            both = both + (L - 1) / L * np.mean(pairs, axis=0)
        mean = q * np.mean(Phi, axis=0)
        means.append(eye + mean)
        seconds.append(np.eye(M * M) + np.kron(mean, eye) + np.kron(eye, mean) + both)
    n = f.P * M
    W = np.kron(alg.scheme.wiring(c.graph).W, eye)
    whole = np.zeros((n, n, n, n))  # rows (i, j) and columns (k, l) of S
    for p in range(f.P):
        for r in range(f.P):
            block = np.kron(means[p], means[r]) if p != r else seconds[p]
            a, b = slice(p * M, (p + 1) * M), slice(r * M, (r + 1) * M)
            whole[a, b, a, b] = block.reshape(M, M, M, M)
    second = np.kron(W, W) @ whole.reshape(n * n, n * n)
    return float(np.abs(np.linalg.eigvals(second)).max())


SMALL = 9  # PM up to which the (PM)^2 x (PM)^2 operator is formed


def small() -> list[int]:
    return [n for n in CASES if case(n).graph.P * case(n).problem.M <= SMALL]


def test_the_limit_of_stability_is_that_of_the_dense_operator() -> None:
    assert len(small()) >= 4
    for n in small():
        c = case(n)
        most = max_stable_step(c.problem, c.graph, c.algorithm, seed=n)
        assert dense_radius(c, most, n) == pytest.approx(1.0, abs=1e-5)
        for part in (0.2, 0.8):
            radius = spectral_radius(c.problem, c.graph, replace(c.algorithm, step=part * most), seed=n)
            assert dense_radius(c, part * most, n) == pytest.approx(radius, rel=1e-8)
            assert radius < 1.0


@pytest.mark.filterwarnings(
    "ignore::confide.engines.run.StabilityWarning", "ignore::confide.engines.run.DivergenceWarning"
)
@pytest.mark.parametrize("n", CASES)
def test_full_participation_and_full_batches_diverge_beyond_the_limit(n: int) -> None:
    """The same problem with nothing drawn: clients of equal size, all of them, all their samples."""
    c = case(n)
    f = c.problem.federation
    size, K = int(f.N.min()), int(f.K.min())
    clients = [[tuple(a[:size] for a in f.client(p, k)) for k in range(K)] for p in range(f.P)]
    problem = Problem(Federation.from_clients(clients), c.problem.model)  # type: ignore[arg-type]
    quiet = scheme(c.algorithm.scheme.name if c.algorithm.scheme.exchange != "graph" else "none")
    alg = replace(c.algorithm, scheme=quiet, sampled=K, batch=size, replacement=False, dropout=0.0)
    most = max_stable_step(problem, c.graph, alg, seed=n)
    below, above = (
        confide.simulate(
            problem, c.graph, replace(alg, step=part * most), rounds=600, seed=n, evaluate_every=600
        ).metrics["individual_msd"][0]
        for part in (0.97, 1.03)
    )
    assert below[-100:].max() <= below[-300:-200].max() * (1 + 1e-6), "it settles"
    assert above[-1] > 100 * above[len(above) // 2], "it grows without end"


# ---- bounds


@pytest.mark.parametrize("n", CASES)
def test_bounds_hold_where_their_condition_does_and_are_refused_elsewhere(n: int) -> None:
    c = case(n)
    if c.algorithm.scheme.exchange == "nothing":
        with pytest.raises(InputError, match="never exchange"):
            bounds(c.problem, c.graph, c.algorithm, 10, n)
        return
    most = largest_step(c.problem, c.graph, c.algorithm, n)
    with pytest.raises(InputError, match="do not contract"):
        bounds(c.problem, c.graph, replace(c.algorithm, step=1.01 * most), 10, n)
    for step in {min(c.algorithm.step, 0.9 * most), 0.2 * most}:
        alg = replace(c.algorithm, step=step)
        found = bounds(c.problem, c.graph, alg, c.rounds, n)
        exact = predict(c.problem, c.graph, alg, rounds=c.rounds, seed=n)
        assert np.all(exact.centroid_msd <= found.centroid[1:] * (1 + 1e-9))
        assert np.all(exact.individual_msd <= found.individual[1:] * (1 + 1e-9))
        spread = exact.individual_msd - exact.centroid_msd
        assert np.all(spread <= found.disagreement[1:] * (1 + 1e-9) + 1e-12)
        assert exact.limit is not None
        assert exact.limit.centroid.total <= found.limits["centroid"] * (1 + 1e-9)
        assert exact.limit.individual.total <= found.limits["individual"] * (1 + 1e-9)
        if step != c.algorithm.step:
            continue
        run = simulated(n)  # and in simulation, for every server
        for bound, metric in (("centroid", "centroid_msd"), ("individual", "individual_msd"), ("disagreement",) * 2):
            rows = run.metrics[metric]
            error = rows.std(axis=0, ddof=1) / math.sqrt(REPEATS)
            assert np.all(rows.mean(axis=0) <= getattr(found, bound)[1:] + 4 * error + 1e-12), bound
        last = np.sum((run.models - c.problem.optimum) ** 2, axis=2)
        error = last.std(axis=0, ddof=1) / math.sqrt(REPEATS)
        assert np.all(last.mean(axis=0) <= found.individual_units[-1] + 4 * error + 1e-12)
