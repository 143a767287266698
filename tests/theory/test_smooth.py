"""Logistic regression: the linearised recursion, and the bias that the paper's homomorphic noise does not cancel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import confide
from confide.graph.graph import Graph
from confide.problems.federation import Federation
from confide.problems.models import Linear, Logistic
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL
from confide.rounds.schemes import scheme
from confide.theory.moments import moments
from confide.theory.prediction import predict
from confide.theory.quadratics import bent, linearise, third
from confide.theory.stationary import limit
from paper import centroid_bias

Floats = np.ndarray[Any, Any]
Maker = Callable[..., Problem]
P, K, N, M = 4, 3, 12, 2
GRAPH = Graph.path(P)
CALM = GFL(scheme("homomorphic", 0.4), step=0.2, sampled=K, local_steps=1, batch=N, replacement=False)


@cache
def lopsided() -> Problem:
    """Two labels of three are +1, so that third derivatives do not cancel."""
    rng = np.random.default_rng(0)

    def samples() -> tuple[Floats, Floats]:
        X = np.column_stack([np.ones(N), rng.standard_normal(N)])
        return X, np.where(rng.random(N) < 1 / (1 + np.exp(-X @ [1.5, 1.0])), 1.0, -1.0)

    return Problem(Federation.from_clients([[samples() for _ in range(K)] for _ in range(P)]), Logistic(0.1))


def sigmoid(z: Floats) -> Floats:
    return 1 / (1 + np.exp(-z))


def test_the_third_derivative() -> None:
    z = np.linspace(-6, 6, 25)
    s = sigmoid(z)
    np.testing.assert_allclose(third(Logistic(), z, np.sign(z)), s * (1 - s) * (1 - 2 * s), atol=1e-7)
    assert not third(Linear(), z, z).any()


def test_the_quadratics_are_the_gradient_to_first_order() -> None:
    problem = lopsided()
    q, w, f = linearise(problem), problem.optimum, problem.federation
    x = np.array([0.3, -0.2])
    u, a, offsets = q.samples(2)
    rows = slice(2 * K * N, 3 * K * N)
    assert offsets.tolist() == [0, N, 2 * N, 3 * N]

    def gradients(t: float) -> Floats:
        return problem.model.gradients(w + t * x, f.X[rows], f.d[rows]) + 2 * problem.model.rho * (w + t * x)

    linear = [u_n * (a_n @ [*x, 1.0]) + q.regulariser @ [*x, 1.0] for u_n, a_n in zip(u, a, strict=True)]
    slope = (gradients(1e-5) - gradients(-1e-5)) / 2e-5
    np.testing.assert_allclose(linear, gradients(0.0) + slope, atol=1e-9)
    np.testing.assert_allclose(q.hessians[2] @ x, slope.mean(axis=0), atol=1e-9)


def test_hessians_weigh_clients_equally(ragged: Maker) -> None:
    problem = ragged(model="logistic")
    f, model, w = problem.federation, problem.model, problem.optimum
    for p, found in enumerate(linearise(problem).hessians):
        clients = [f.client(p, k) for k in range(int(f.K[p]))]
        mean = np.mean([model.hessian(w, X, d, np.full(len(d), 1 / len(d))) for X, d in clients], axis=0)
        np.testing.assert_allclose(found, mean, rtol=1e-12)


def test_a_bent_slope_is_the_mean_gradient_to_second_order() -> None:
    """E grad over x with the second moment X, by two points +- v: exact up to O(|v|^4)."""
    problem = lopsided()
    f, w, model = problem.federation, problem.optimum, problem.model
    V = 0.02 * np.random.default_rng(1).standard_normal((P, M))
    s = bent(linearise(problem), V[:, :, None] * V[:, None, :]).s
    for p in range(P):
        rows = slice(p * K * N, (p + 1) * K * N)
        X, d = f.X[rows], f.d[rows]
        mean = (model.gradients(w + V[p], X, d) + model.gradients(w - V[p], X, d)) / 2
        change = mean - model.gradients(w, X, d)
        np.testing.assert_allclose((s[rows] - linearise(problem).s[rows])[:, None] * X, change, atol=2e-7)
        assert np.abs(change).max() > 1e-5


def test_squared_loss_has_no_such_bias(ragged: Maker) -> None:
    problem, alg = ragged(), GFL(scheme("homomorphic", 0.5), step=0.2, sampled=2, local_steps=2, batch=2)
    assert not centroid_bias(problem, Graph.ring(4), alg).any()
    assert predict(problem, Graph.ring(4), alg).exact


def test_the_bias_as_the_step_falls_is_half_the_third_derivative_of_the_disagreement() -> None:
    """-(sigma^2/2) Hbar^-1 (1/P) sum_p Z_pp J_p'''[I]: it does not vanish with the step."""
    problem, sigma = lopsided(), 0.4
    values, vectors = np.linalg.eigh(GRAPH.A)
    ratios = ((1 - values) / (1 + values))[:-1]
    Z = (vectors[:, :-1] ** 2) @ ratios
    X, d = problem.federation.X.reshape(P, K * N, M), problem.federation.d
    assert problem.optimum is not None
    s = sigmoid(X @ problem.optimum)
    third_p = np.einsum("pn,pnm,pn->pm", s * (1 - s) * (1 - 2 * s), X, (X**2).sum(axis=2)) / (K * N)
    H = problem.model.hessian(problem.optimum, problem.federation.X, d, np.full(len(d), 1 / len(d)))
    expected = -(sigma**2) / 2 * np.linalg.solve(H, (Z[:, None] * third_p).mean(axis=0))
    found = centroid_bias(problem, GRAPH, replace(CALM, step=1e-3, scheme=scheme("homomorphic", sigma)))
    np.testing.assert_allclose(found, expected, rtol=0.02)


def test_the_bias_is_there_in_a_simulation() -> None:
    """Full gradients, so that nothing but the privacy noise is random; 100 pairs of networks with opposite noise."""
    problem, rng, sigma, mu = lopsided(), np.random.default_rng(2), 0.4, CALM.step
    X, d = problem.federation.X.reshape(P, K * N, M), problem.federation.d.reshape(P, K * N)
    A, w, centroid = GRAPH.A, np.zeros((2, 100, P, M)), []
    for i in range(160):
        slope = -d * sigmoid(-d * np.einsum("pnm,srpm->srpn", X, w))
        psi = w - mu * (np.einsum("srpn,pnm->srpm", slope, X) / (K * N) + 2 * problem.model.rho * w)
        noise = sigma * rng.standard_normal(w.shape[1:])
        w = A @ psi + (A - np.eye(P)) @ np.stack([noise, -noise])
        if i >= 100:
            centroid.append(w.mean(axis=(0, 2)) - problem.optimum)
    mean = np.mean(centroid, axis=0)  # over the rounds, for each pair
    error = mean.std(axis=0) / np.sqrt(len(mean))
    straight = limit(moments(linearise(problem), GRAPH, CALM, 0))
    assert straight is not None
    bias = centroid_bias(problem, GRAPH, CALM)
    left = mean.mean(axis=0) - straight.mean.mean(axis=0) - bias
    assert np.linalg.norm(left) < 0.2 * np.linalg.norm(bias) + 5 * np.linalg.norm(error)
    assert np.linalg.norm(bias) > 20 * np.linalg.norm(error), "without the bias the prediction is far off"


def test_a_prediction_has_the_bias_in_it() -> None:
    straight = limit(moments(linearise(lopsided()), GRAPH, CALM, 0))
    level = predict(lopsided(), GRAPH, CALM, rounds=400).limit
    assert straight is not None
    assert level is not None
    x = straight.mean
    np.testing.assert_allclose(straight.second_moments[1], straight.privacy[1, :, 1] + np.outer(x[1], x[1]), rtol=1e-9)
    mean = x.mean(axis=0) + centroid_bias(lopsided(), GRAPH, CALM)
    assert level.centroid.bias_squared == pytest.approx(mean @ mean, rel=1e-9)
    assert level.centroid.bias_squared != pytest.approx(x.mean(axis=0) @ x.mean(axis=0), rel=0.1)


@pytest.mark.parametrize("name", ["homomorphic", "per-link", "none"])
def test_levels_of_a_logistic_run(name: str) -> None:
    alg = GFL(scheme(name, 0.0 if name == "none" else 0.2), step=0.4, sampled=2, local_steps=(1, 3), batch=(2, 6))
    run = confide.simulate(lopsided(), GRAPH, alg, rounds=300, repeats=200, evaluate_every=300)
    prediction = predict(lopsided(), GRAPH, alg, rounds=300)
    assert not prediction.exact
    assert prediction.limit is not None
    assert run.steady_state is not None
    assert prediction.steady_state == pytest.approx(run.steady_state, abs=0.3)
    assert prediction.limit.db == pytest.approx(run.steady_state, abs=0.3)


def test_an_unstable_step_has_no_limit() -> None:
    assert predict(lopsided(), GRAPH, replace(CALM, step=100.0)).limit is None
