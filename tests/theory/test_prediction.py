"""Predicted curves and levels against simulation, their own fixed point, and what is known as the step falls."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import confide
from confide.base.errors import InputError
from confide.graph.graph import Graph
from confide.problems.federation import Federation
from confide.problems.gaussian import regression
from confide.problems.models import Linear
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL
from confide.rounds.schemes import scheme
from confide.theory import stationary as module
from confide.theory.moments import Moments, moments
from confide.theory.prediction import Prediction, levels, predict, transient
from confide.theory.quadratics import linearise
from confide.theory.stationary import Doubling, Modes, limit, spread
from exploring import more

Floats = np.ndarray[Any, Any]
Maker = Callable[..., Problem]
RAGGED = GFL(scheme("homomorphic", 0.3), step=0.3, sampled=3, local_steps=(1, 4), batch=(1, 4))
NAMES = ("centroid", "individual")


def round_of(problem: Problem, graph: Graph, alg: GFL, seed: int = 0) -> Moments:
    return moments(linearise(problem), graph, alg, seed)


def found(problem: Problem, graph: Graph, alg: GFL, **options: Any) -> Prediction:
    prediction = predict(problem, graph, alg, **options)
    assert prediction.limit is not None
    return prediction


# ---- simulation


CURVES = [
    ("ring:4", {}),
    ("path:4", {"scheme": scheme("per-link", 0.3, sigma_client=0.4), "dropout": 0.3}),
    ("star:4", {"scheme": scheme("pairwise", 0.2, sigma_pair=0.5), "replacement": False}),
    ("ring:4", {"scheme": scheme("own-clean", 0.3), "sampled": 1, "batch": 1}),
    ("ring:4", {"scheme": scheme("homomorphic", 0.3, sigma_client=0.4)}),
]
MORE_CURVES = [  # what ends where `test_ten_problems.py` looks
    ("ring:4", {"scheme": scheme("central", 0.2, noise="gaussian"), "step": 0.8}),
    ("complete:4", {"scheme": scheme("local-only"), "local_steps": 5}),
]


@pytest.mark.parametrize(("graph", "changes"), more(CURVES, CURVES + MORE_CURVES))
def test_curves_and_levels_lie_in_the_band_of_a_simulation(ragged: Maker, graph: str, changes: dict[str, Any]) -> None:
    """Laplace noise too: only its variance matters. 4.5 standard errors, for the dozen numbers compared in all."""
    problem, alg, g = ragged(), replace(RAGGED, **changes), Graph.parse(graph)
    run = confide.simulate(problem, g, alg, rounds=150, repeats=400, seed=3, evaluate_every=150)
    prediction = found(problem, g, alg, rounds=150, seed=3)
    for name in NAMES:
        curve, measured = getattr(prediction, f"{name}_msd"), run.metrics[f"{name}_msd"]
        for last in (slice(0, 1), slice(1, 6), slice(120, 150)):
            level = measured[:, last].mean(axis=1)
            error = level.std(ddof=1) / np.sqrt(len(level))
            assert abs(level.mean() - curve[last].mean()) < 4.5 * error, (name, last)
            assert error < 0.08 * level.mean(), "the band is too wide to tell anything"
        assert run.steady_state is not None
        assert prediction.steady_state is not None
        assert run.steady_state[f"{name}_db"] == pytest.approx(prediction.steady_state[f"{name}_db"], abs=0.5)


def test_homomorphic_noise_with_noise_on_client_links() -> None:
    """(7) with (47) on the paper's regression, against levels of a simulation that was written from the paper alone."""
    noisy = GFL(scheme("homomorphic", math.sqrt(0.1), sigma_client=math.sqrt(0.1)), step=0.7)
    limit = found(regression(), Graph.random(10, 0.4), noisy).limit
    assert limit is not None
    assert limit.db["centroid_db"] == pytest.approx(-25.44, abs=0.12)
    assert limit.db["individual_db"] == pytest.approx(-13.71, abs=0.04)


def test_e_and_batch_are_those_of_the_seed(ragged: Maker) -> None:
    a, b = (found(ragged(), Graph.ring(4), RAGGED, seed=seed).limit for seed in (1, 2))
    assert a is not None
    assert b is not None
    assert a.centroid.total != b.centroid.total


class Begun(Linear):
    def start(self) -> Floats:
        return np.array([3.0, -1.0])


@pytest.mark.parametrize("model", [Linear, Begun])
def test_full_batches_of_all_clients_are_followed_to_the_last_digit(model: type[Linear]) -> None:
    """Nothing is random, so one run is the expectation. The clients of a unit need equal batches for that."""
    rng = np.random.default_rng(4)
    units = [[(rng.standard_normal((5, 2)), rng.standard_normal(5)) for _ in range(3)] for _ in range(3)]
    problem, graph = Problem(Federation.from_clients(units), model(0.1)), Graph.path(3)
    alg = GFL(scheme("none"), step=0.3, sampled=3, local_steps=(1, 4), batch=5, replacement=False)
    run = confide.simulate(problem, graph, alg, rounds=40)
    prediction = found(problem, graph, alg, rounds=40)
    for name in NAMES:
        np.testing.assert_allclose(getattr(prediction, f"{name}_msd"), run.metrics[f"{name}_msd"][0], rtol=1e-10)
    assert prediction.limit is not None
    assert prediction.limit.centroid.gradient_noise < 1e-12 * prediction.limit.individual.bias_squared  # rounding


def test_two_rounds_against_every_outcome() -> None:
    """One server, one client, single samples of two: four paths."""
    X, d, mu, rho = np.array([0.5, 1.5]), np.array([1.0, -2.0]), 0.3, 0.1
    problem = Problem(Federation.from_clients([[(X[:, None], d)]]), Linear(rho))
    assert problem.optimum is not None
    w = np.zeros(1)
    prediction = predict(
        problem, Graph.path(1), GFL(scheme("none"), step=mu, sampled=1, local_steps=1, batch=1), rounds=2
    )
    for level in prediction.individual_msd:
        w = np.concatenate([w - mu * (2 * u * (u * w - label) + 2 * rho * w) for u, label in zip(X, d, strict=True)])
        assert level == pytest.approx(np.mean((w - problem.optimum) ** 2), rel=1e-12)


# ---- the limit


def test_the_limit_is_a_fixed_point_that_the_transient_reaches(ragged: Maker, each_scheme: Any) -> None:
    problem, graph = ragged(), Graph.ring(4)
    one = round_of(problem, graph, replace(RAGGED, scheme=each_scheme))
    end = limit(one)
    assert end is not None
    S = end.gradient + end.privacy
    np.testing.assert_allclose(one.mean(end.mean), end.mean, rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(one.covariance(S, end.mean), S, rtol=1e-9, atol=1e-12 * np.abs(S).max())
    centroid, individual = transient(one, np.ones((4, 2)), 400)
    assert centroid[-1] == pytest.approx(levels(end).centroid.total, rel=1e-9)
    assert individual[-1] == pytest.approx(levels(end).individual.total, rel=1e-9)


def test_the_split_is_what_each_source_does_alone(ragged: Maker) -> None:
    problem, graph = ragged(), Graph.ring(4)
    noisy, silent = (found(problem, graph, replace(RAGGED, scheme=s)).limit for s in (RAGGED.scheme, scheme("none")))
    louder = found(problem, graph, replace(RAGGED, scheme=scheme("homomorphic", 0.6))).limit
    assert noisy is not None
    assert silent is not None
    assert louder is not None
    for name in NAMES:
        a, b, c = (getattr(x, name) for x in (noisy, silent, louder))
        assert (a.bias_squared, a.gradient_noise) == pytest.approx((b.bias_squared, b.gradient_noise), rel=1e-9)
        assert b.privacy_noise == 0.0
        assert c.privacy_noise == pytest.approx(4 * a.privacy_noise, rel=1e-9)
        assert a.total == pytest.approx(b.total + a.privacy_noise, rel=1e-9)


@pytest.mark.parametrize("step", [0.02, 0.3])
def test_both_lyapunov_solvers_agree(ragged: Maker, step: float) -> None:
    one = round_of(ragged(), Graph.ring(4, weights="metropolis"), replace(RAGGED, step=step))
    Q = np.random.default_rng(0).standard_normal((8, 8))
    Q = (Q @ Q.T).reshape(4, 2, 4, 2)
    S = Doubling(one).solve(Q)
    np.testing.assert_allclose(Modes(one).solve(Q), S, rtol=1e-9)
    np.testing.assert_allclose(one.carry(S, np.zeros((4, 2, 2))) + Q, S, rtol=1e-9)
    np.testing.assert_allclose(spread(one, np.ones((4, 2, 2))), one.carry(0 * S, np.ones((4, 2, 2))), atol=1e-14)


def test_large_steps_need_no_positive_phi(ragged: Maker) -> None:
    """Where Phi has negative eigenvalues the doubling takes over; the limit is still where the transient ends."""
    problem, graph, alg = ragged(), Graph.ring(4), replace(RAGGED, step=0.9, local_steps=1, batch=4)
    one = round_of(problem, graph, alg)
    assert np.linalg.eigvalsh(one.Phi).min() < 0
    prediction = found(problem, graph, alg, rounds=300)
    assert prediction.limit is not None
    assert prediction.centroid_msd[-1] == pytest.approx(prediction.limit.centroid.total, rel=1e-9)


def test_the_steady_state_is_that_of_a_run_over_the_last_fifth(ragged: Maker) -> None:
    """Of 7 rounds, far from the limit, the last two."""
    prediction = found(ragged(), Graph.ring(4), RAGGED, rounds=7)
    run = confide.simulate(ragged(), Graph.ring(4), RAGGED, rounds=7)
    for name in NAMES:
        curve = getattr(prediction, f"{name}_msd")
        run.metrics[f"{name}_msd"][:] = curve
        assert curve[-3] > 1.1 * curve[-1]
    assert prediction.steady_state == run.steady_state


def test_without_rounds_there_is_only_the_limit(ragged: Maker) -> None:
    prediction = found(ragged(), Graph.ring(4), RAGGED)
    assert len(prediction.centroid_msd) == len(prediction.individual_msd) == 0
    assert prediction.steady_state is None
    assert prediction.exact


# ---- as the step falls


class Small:
    """A problem and what the asymptotics of it are made of, from the data alone."""

    def __init__(self, sampled: int = 2) -> None:
        self.problem, self.graph, self.L = regression(5, 4, 12, 2, seed=1), Graph.path(5), sampled
        self.E = np.tile([1, 2, 3, 4], 5)
        self.alg = GFL(scheme("none"), sampled=sampled, local_steps=self.E, batch=3, replacement=False)
        f, model, w = self.problem.federation, self.problem.model, self.problem.optimum
        assert w is not None
        H, S, dH = [], [], []
        for p in range(5):
            clients = [f.client(p, k) for k in range(4)]
            H_k = np.array([2 * X.T @ X / len(X) for X, _ in clients]) + 2 * model.rho * np.eye(2)
            g_n = [model.gradients(w, X, d) + 2 * model.rho * w for X, d in clients]
            g_k = np.array([g.mean(axis=0) for g in g_n])
            fresh = (12 - 3) / (12 - 1) / 3 / self.E[4 * p : 4 * p + 4]  # E batches of 3 of 12
            unlike = (4 - sampled) / (4 - 1)
            cov_n = np.array([np.cov(g.T, bias=True) for g in g_n])
            HH_n = np.array([np.mean([4 * np.outer(u, u) @ np.outer(u, u) for u in X], axis=0) for X, _ in clients])
            data = H_k - 2 * model.rho * np.eye(2)
            S.append((np.tensordot(fresh, cov_n, 1) / 4 + unlike * np.cov(g_k.T, bias=True)) / sampled)
            between = np.mean([(h - H_k.mean(axis=0)) @ (h - H_k.mean(axis=0)) for h in H_k], axis=0)
            dH.append((np.tensordot(fresh, HH_n - data @ data, 1) / 4 + unlike * between) / sampled)
            H.append(H_k.mean(axis=0))
        self.H, self.S, self.dH = np.array(H), np.array(S), np.array(dH)
        self.H_inverse = np.linalg.inv(self.H.mean(axis=0))

    def level(self, step: float, s: Any = None) -> Any:
        alg = replace(self.alg, step=step, scheme=s if s is not None else scheme("none"))
        return found(self.problem, self.graph, alg).limit


def test_the_noiseless_centroid_as_the_step_falls() -> None:
    """(mu/2) Tr(Hbar^-1 sum_p S_p / P^2), and a bias^2 of O(mu^2)."""
    small, mu = Small(), 1e-3
    one, half = small.level(mu), small.level(mu / 2)
    expected = mu / 2 * np.trace(small.H_inverse @ small.S.sum(axis=0)) / 25
    assert one.centroid.gradient_noise == pytest.approx(expected, rel=0.01)
    assert one.centroid.bias_squared / half.centroid.bias_squared == pytest.approx(4.0, rel=0.02)


@pytest.mark.parametrize("name", ["shared", "per-link", "own-clean", "central"])
def test_independent_noise_as_the_step_falls(name: str) -> None:
    """(sigma^2 / 2 mu) Tr(Hbar^-1) (1'N_z 1) / P^2: it grows as 1/mu."""
    small, mu, s = Small(), 1e-4, scheme(name, 0.5)
    A, own = small.graph.A, np.diag(small.graph.own_weights)
    per_link = np.diag((A**2).sum(axis=1))
    N_z = {"shared": A @ A, "per-link": per_link, "own-clean": (A - own) @ (A - own), "central": np.ones((5, 5))}
    expected = 0.25 / (2 * mu) * np.trace(small.H_inverse) * N_z[name].sum() / 25
    assert small.level(mu, s).centroid.privacy_noise == pytest.approx(expected, rel=0.01)


def test_homomorphic_noise_as_the_step_falls() -> None:
    """The centroid's excess is O(mu), with its constant; the individuals keep O(1)."""
    small, mu, sigma = Small(), 2e-4, 0.5
    level = small.level(mu, scheme("homomorphic", sigma))
    values, vectors = np.linalg.eigh(small.graph.A)
    ratios = ((1 - values) / (1 + values))[:-1]
    Z = (vectors[:, :-1] * ratios) @ vectors[:, :-1].T
    unlike = small.H - small.H.mean(axis=0)
    source = (unlike @ unlike).sum(axis=0) + np.tensordot(np.diag(Z), small.dH, 1)
    expected = mu * sigma**2 / (2 * 25) * np.trace(small.H_inverse @ source)
    assert level.centroid.privacy_noise == pytest.approx(expected, rel=0.01)
    assert level.individual.privacy_noise == pytest.approx(sigma**2 * 2 / 5 * ratios.sum(), rel=0.01)


# ---- edges


def test_a_graph_that_does_not_mix(ragged: Maker) -> None:
    """iota_2 = 1: two servers that swap models for ever. The losses contract, so there is a limit all the same."""
    swap, problem = Graph.from_matrix([[0.0, 1.0], [1.0, 0.0]], turn=True), ragged(P=2)
    assert swap.iota_2 == pytest.approx(1.0, abs=1e-14)  # an eigenvalue of a 2 x 2 matrix of norm 1
    prediction = found(problem, swap, replace(RAGGED, scheme=scheme("shared", 0.3)), rounds=600)
    assert prediction.limit is not None
    assert prediction.limit.db == pytest.approx(prediction.steady_state, abs=1e-6)


def test_a_complete_graph_is_the_exact_average(ragged: Maker) -> None:
    """iota_2 = 0: after a round all models are the centroid, as with the baseline "central"."""
    problem, graph = ragged(), Graph.complete(4, weights="uniform")
    a, b = (found(problem, graph, replace(RAGGED, scheme=scheme(name))).limit for name in ("none", "central"))
    assert a is not None
    assert b is not None
    assert a.individual.total == pytest.approx(a.centroid.total, rel=1e-9)
    assert a.centroid.total == pytest.approx(b.centroid.total, rel=1e-9)


def flat_unit() -> Problem:
    """rho = 0; the second unit never sees the second feature, so alone it has no optimum."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2, 2, 6, 2))
    X[1, :, :, 1] = 0.0
    return Problem(Federation.from_clients([[(x, x.sum(axis=1) + 0.1) for x in unit] for unit in X]), Linear(0.0))


@pytest.mark.parametrize("rounds", [None, 50])
def test_a_direction_that_is_never_forgotten_has_no_limit(rounds: int | None) -> None:
    problem = flat_unit()
    alg = GFL(scheme("local-only"), step=0.2, sampled=1, local_steps=1, batch=2)
    prediction = predict(problem, Graph.path(2), alg, rounds=rounds)
    assert prediction.limit is None
    assert np.isfinite(prediction.centroid_msd).all()
    helped = predict(problem, Graph.path(2), replace(alg, scheme=scheme("shared", 0.1)), rounds=rounds)
    assert helped.limit is not None, "the other unit corrects it through the graph"


def test_no_unique_optimum_is_refused() -> None:
    f = flat_unit().federation
    flat = Problem(Federation(f.X * [1.0, 0.0], f.d, f.client_offsets, f.unit_offsets), Linear(0.0))
    with pytest.raises(InputError, match=r"problem\.rho"):
        predict(flat, Graph.path(2), replace(RAGGED, sampled=1))


@pytest.mark.parametrize("step", [3.0, 1e3, 1e30])
def test_beyond_stability_there_is_no_limit_and_no_nan(ragged: Maker, step: float) -> None:
    prediction = predict(ragged(), Graph.ring(4), replace(RAGGED, step=step), rounds=300)
    assert prediction.limit is None
    for curve in (prediction.centroid_msd, prediction.individual_msd):
        assert not np.isnan(curve).any()
        assert np.all(curve[10:] > 1e3)
    assert prediction.steady_state is None or prediction.steady_state["centroid_db"] > 30


def test_sizes_beyond_memory_are_refused(ragged: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGEST", 7)
    with pytest.raises(InputError, match="P M = 8"):
        predict(ragged(), Graph.ring(4), RAGGED)


@pytest.mark.parametrize("options", [{"rounds": 0}, {"rounds": 1.5}, {"seed": -1}])
def test_bad_options(ragged: Maker, options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        predict(ragged(), Graph.ring(4), RAGGED, **options)
