"""Constants of tiny problems by hand, printed and repaired, and of every scheme's noise by drawing it."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from confide.base.errors import InputError
from confide.engines.driver import simulate
from confide.graph.graph import Graph
from confide.problems.federation import Federation
from confide.problems.gaussian import regression
from confide.problems.models import Linear, Logistic
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL
from confide.rounds.schemes import Scheme, scheme
from confide.theory.bounds_round import noise
from confide.theory.constants import constants
from confide.theory.constants_clients import clients
from paper import incremental_noise_units


def four_clients() -> Problem:
    """Unit 0: samples (1, 1), (2, 0) and (1, 3); unit 1: (1, 0) and (2, 2); rho = 1/2. So w^o = 5/7."""
    units = [[([[1.0], [2.0]], [1.0, 0.0]), ([[1.0]], [3.0])], [([[1.0]], [0.0]), ([[2.0]], [2.0])]]
    return Problem(Federation.from_clients(units), Linear(0.5))


def settings(**changes: object) -> GFL:
    base: dict[str, object] = {"scheme": scheme("none"), "step": 0.1, "sampled": 1, "local_steps": 2, "batch": 1}
    return GFL(**(base | changes))


# ---- by hand


def test_assumptions_by_hand() -> None:
    c = constants(four_clients(), Graph.path(2), settings(), 0)
    assert c.nu_clients == pytest.approx([6, 3, 3, 9])  # mean of 2u^2 + 1
    assert c.delta_clients == pytest.approx([6, 3, 3, 9])
    assert c.delta_examples == pytest.approx([9, 3, 3, 9])
    assert (c.nu, c.delta) == pytest.approx((3, 9))
    assert c.local_optima[:, 0] == pytest.approx([1 / 6, 2, 0, 8 / 9])
    assert c.xi == pytest.approx(2 - 5 / 7)
    assert c.xi_clients == pytest.approx([5 / 7 - 1 / 6, 9 / 7, 5 / 7, 8 / 9 - 5 / 7])
    assert c.error2 == pytest.approx(25 / 49)
    assert c.gradient2_units == pytest.approx([4 / 49, 4 / 49])  # (9 w - 7)/2 and (12 w - 8)/2
    assert c.iota_2 == pytest.approx(0.5)


def test_gradient_noise_by_hand() -> None:
    """At w^o the gradients are 1/7 and 45/7, -27/7; the Hessians 3 and 9, 3."""
    c = constants(four_clients(), Graph.path(2), settings(), 0)
    assert c.printed.beta_s2_units == pytest.approx([6 * 81 * 1.5] * 2)
    assert c.printed.sigma_s2_units[0] == pytest.approx(9 * (2026 / 98 + 729 / 49) / 2)
    assert c.printed.beta_s2 == pytest.approx(2 * 729)
    assert c.printed.beta_d2 == pytest.approx(2 * 729)
    # half of it: variance 9 of A's Hessians over E = 2, none of B's; and (6 - 3)/2 between the clients
    assert c.repaired.beta_s2_units[0] == pytest.approx(2 * (9 / 2 / 2 + 1.5**2))
    assert c.repaired.beta_s2_units[1] == pytest.approx(2 * 3.0**2)
    assert c.repaired.sigma_s2_units[0] == pytest.approx(2 * ((22 / 7) ** 2 / 2 / 2 + (25 / 7) ** 2))
    assert c.repaired.beta_s2 == pytest.approx(2 * (9 + 18) / 4)
    assert c.repaired.beta_d2 == pytest.approx(2 * 18 / 2)
    assert c.repaired.sigma_s2 == pytest.approx(c.repaired.sigma_s2_units.sum() / 4)
    everyone = constants(four_clients(), Graph.path(2), settings(sampled=2), 0).repaired
    assert everyone.beta_s2_units == pytest.approx([9 / 2 / 2, 0.0])  # no client is left out
    assert everyone.sigma_s2_units == pytest.approx([(22 / 7) ** 2 / 4, 0.0])


def test_batches_and_dropout_by_hand() -> None:
    def sigma(**changes: object) -> float:
        return constants(four_clients(), Graph.path(2), settings(**changes), 0).repaired.sigma_s2_units[0]

    within, between = (22 / 7) ** 2 / 2 / 2, (25 / 7) ** 2
    assert sigma(batch=[2, 1, 1, 1]) == pytest.approx(2 * (within / 2 + between))
    assert sigma(batch=[2, 1, 1, 1], replacement=False) == pytest.approx(2 * between)  # the whole of A's data
    raw = ((23 / 7) ** 2 + (27 / 7) ** 2) / 2
    assert sigma(dropout=0.25) == pytest.approx(2 * ((within + 0.25 * raw) / 0.75 + between))
    c = constants(four_clients(), Graph.path(2), settings(dropout=0.25), 0).repaired
    assert c.beta_s2_units[0] == pytest.approx(2 * ((9 / 4 + 0.25 * (36 + 9) / 2) / 0.75 + 1.5**2))
    whole = constants(four_clients(), Graph.path(2), settings(), 0).repaired
    for name in ("a", "b", "c"):
        assert getattr(c, name) == pytest.approx(getattr(whole, name) / 0.75)


def test_incremental_noise_by_hand() -> None:
    """E = 2: the double sum is 2 + lambda, the triple 1."""
    c = constants(four_clients(), Graph.path(2), settings(), 0)
    printed, repaired = 1 - 2 * 3 * 0.1 + 4 * 81 * 0.01, 1 - 2 * 3 * 0.05 + 2 * 81 * 0.05**2
    assert c.printed.lam == pytest.approx([printed] * 4)
    assert c.repaired.lam == pytest.approx([repaired] * 4)
    assert c.printed.a == pytest.approx([81 * (2 + printed)] * 2)
    assert c.repaired.a == pytest.approx([81**2 * (2 + repaired)] * 2)
    E, x = 2, 1 - printed
    as_printed = (2 * E * (E + 1) * x**2 - 4 * E * x + 4 * printed - 2 * printed ** (E + 1)) / (E**2 * x**3)
    assert c.printed.b == pytest.approx([as_printed] * 4)
    assert c.repaired.b == pytest.approx([81**2] * 4)
    assert c.printed.c == pytest.approx([1 / 6] * 4)
    assert c.repaired.c == pytest.approx([81 / 6] * 4)
    assert c.printed.sigma_q2_clients == pytest.approx([3 * 2 * 2.25, 0, 0, 0], abs=1e-12)  # gradients +-3/2 at 1/6
    assert c.repaired.sigma_q2_clients == pytest.approx([3 * 2.25, 0, 0, 0], abs=1e-12)
    assert c.repaired.sigma_q2_units == pytest.approx([3 * 2.25 / 2, 0], abs=1e-12)
    assert c.repaired.sigma_q2 == pytest.approx(3 * 2.25 / 4)
    assert c.printed.sigma_q2 == pytest.approx((as_printed * 1e-4 + 1e-2 / 6) * 13.5 / 4)
    far, steps = 81**2 * (2 + repaired) * 0.01 * (4 + c.xi**2), (81**2 * 1e-4 + 81 / 6 * 1e-2) * 3 * 2.25 / 2  # (31)
    assert incremental_noise_units(four_clients().federation, c, c.repaired, np.full(2, 4.0)) == pytest.approx(
        [far + steps, far]
    )


def test_local_steps_may_differ_between_clients() -> None:
    c = constants(four_clients(), Graph.path(2), settings(local_steps=[1, 2, 3, 1]), 0)
    lam = c.repaired.lam
    assert lam == pytest.approx([1 - 6 * 0.1 / E + 162 * (0.1 / E) ** 2 for E in (1, 2, 3, 1)])
    sums = [1, (2 + lam[1]) / 4, (3 + 2 * lam[2] + lam[2] ** 2) / 9, 1]
    assert c.repaired.a == pytest.approx([4 * 81**2 * sum(pair) / 2 for pair in (sums[:2], sums[2:])])
    assert c.repaired.b == pytest.approx([0, 81**2, 4 * 81**2 * (1 + 2 + lam[2]) / 9, 0])


def test_factors_by_hand() -> None:
    """alpha = sqrt(1 - 2 nu mu + delta^2 mu^2); repaired, equal parabolas without draws contract by 1 - mu h."""
    c = constants(four_clients(), Graph.path(2), settings(), 0)
    alpha = np.sqrt(1 - 0.6 + 0.81)
    assert c.printed.lambda_units == pytest.approx([alpha + 7.29] * 2)
    assert c.printed.lambda_c == pytest.approx(alpha + 14.58)
    same = Problem(Federation.from_clients([[([[1.0]], [1.0])]] * 2), Linear(0.0))
    repaired = constants(same, Graph.path(2), settings(local_steps=1), 0).repaired
    assert (repaired.lambda_c, *repaired.lambda_units) == pytest.approx((0.64,) * 3)


def test_noise_by_hand() -> None:
    """A = [[3/4, 1/4], [1/4, 3/4]], M = 1."""
    hidden = constants(four_clients(), Graph.path(2), settings(scheme=scheme("homomorphic", 0.4)), 0)
    assert hidden.repaired.sigma_g2_units == pytest.approx([0.16 * 2 / 16] * 2)
    assert hidden.printed.sigma_g2_units == pytest.approx([0.16 * (1 / 4) / (3 / 4)] * 2)
    assert hidden.g2 == 0.0
    assert hidden.g2_disagreement == pytest.approx(0.02)
    noisy = constants(four_clients(), Graph.path(2), settings(scheme=scheme("per-link", 0.4, sigma_client=0.3)), 0)
    assert noisy.repaired.sigma_g2_units == pytest.approx([(0.16 + 0.09) * 10 / 16] * 2)
    assert noisy.printed.sigma_g2_units == pytest.approx([0.16 + 0.09] * 2)
    assert noisy.g2 == pytest.approx(0.16 * 20 / 16 / 4 + 0.09 / 2)
    assert noisy.g2 + noisy.g2_disagreement == pytest.approx(noisy.repaired.sigma_g2)


def test_printed_noise_is_infinite_without_a_weight_of_ones_own() -> None:
    graph = Graph.from_matrix([[0.0, 0.5, 0.5], [0.5, 0.5, 0.0], [0.5, 0.0, 0.5]])
    problem = regression(units=3, clients=2, samples=5)
    c = constants(problem, graph, settings(scheme=scheme("homomorphic", 0.4)), 0)
    assert np.isinf(c.printed.sigma_g2_units[0])
    assert c.repaired.sigma_g2_units == pytest.approx(2 * 0.16 * np.array([1.5, 0.5, 0.5]))
    assert c.to_dict()["printed"]["sigma_g2_units"][0] is None


def test_printed_noise_is_never_below_the_true_one(each_scheme: Scheme, each_graph: Graph) -> None:
    """Jensen's inequality only loses."""
    problem = regression(units=each_graph.P, clients=2, samples=4)
    c = constants(problem, each_graph, settings(scheme=each_scheme), 0)
    assert np.all(c.printed.sigma_g2_units >= c.repaired.sigma_g2_units - 1e-12)
    assert c.g2 + c.g2_disagreement == pytest.approx(c.repaired.sigma_g2)


# ---- the noise that is drawn


def test_noise_of_every_scheme_is_what_runs_have(each_scheme: Scheme) -> None:
    """One round from zero, whose only chance is the noise."""
    s = each_scheme.resized(sigma_client=0.5 if each_scheme.by_link else 0.0)
    graph, repeats = Graph.star(4), 3000
    problem = Problem(Federation.from_clients([[(np.eye(2)[[p % 2]], [1.0])] * 2 for p in range(4)]), Linear(0.1))
    algorithm = settings(scheme=s, sampled=2, local_steps=1)
    run = simulate(problem, graph, algorithm, rounds=1, repeats=repeats, evaluate_every=1, progress=False)
    expected, centroid = noise(graph, algorithm, problem.M), run.models.mean(axis=1, keepdims=True)
    close = {"rel": 0.15, "abs": 1e-12}
    assert run.models.var(axis=0).sum(axis=1) == pytest.approx(expected.units, **close)
    assert centroid.var(axis=0).sum() == pytest.approx(expected.centroid, **close)
    assert (run.models - centroid).var(axis=0).sum(axis=1).mean() == pytest.approx(expected.disagreement, **close)


# ---- the facts of clients


@pytest.mark.parametrize("model", ["linear", "logistic"])
def test_facts_of_clients_against_their_definitions(ragged: Callable[..., Problem], model: str) -> None:
    problem, rng = ragged(P=3, M=3, model=model, rho=0.05), np.random.default_rng(0)
    f, kind = problem.federation, problem.model
    found = clients(problem, settings(), 0)
    for c, p in enumerate(np.repeat(np.arange(f.P), f.K)):
        X, d = f.client(int(p), c - int(f.unit_offsets[p]))
        weights = np.full(len(d), 1 / len(d))

        def gradients(w: np.ndarray, X: np.ndarray = X, d: np.ndarray = d) -> np.ndarray:
            return kind.gradients(w, X, d) + 2 * kind.rho * w

        assert np.linalg.norm(gradients(found.optimum[c]).mean(axis=0)) < 1e-9
        here = gradients(problem.optimum)
        assert found.gradient[c] == pytest.approx(here.mean(axis=0))
        assert found.variance[c] == pytest.approx(here.var(axis=0).sum())
        assert found.second[c] == pytest.approx(np.mean(np.sum(here**2, axis=1)))
        assert found.second_local[c] == pytest.approx(np.mean(np.sum(gradients(found.optimum[c]) ** 2, axis=1)))
        drift = 2 * (found.delta_example[c] * np.linalg.norm(found.optimum[c] - problem.optimum)) ** 2
        local = 2 * np.sum(gradients(found.optimum[c]) ** 2, axis=1) + drift
        assert np.all(np.sum(here**2, axis=1) <= local * (1 + 1e-9))  # (27), with the client's own delta and drift
        for _ in range(20):
            a, b = 3 * rng.standard_normal((2, 3))
            change, far = gradients(a) - gradients(b), float(np.linalg.norm(a - b))
            assert np.linalg.norm(change, axis=1).max() <= found.delta_example[c] * far * (1 + 1e-12)
            assert np.linalg.norm(change.mean(axis=0)) <= found.delta[c] * far * (1 + 1e-12)
            assert change.mean(axis=0) @ (a - b) >= found.nu[c] * far**2 * (1 - 1e-9)
            assert np.sqrt(change.var(axis=0).sum()) <= found.omega[c] * far * (1 + 1e-12)
            hessian = kind.hessian(a, X, d, weights)
            assert np.linalg.norm(hessian - found.centre[c], 2) <= found.radius[c] + 1e-12
    if model == "linear":
        assert not found.radius.any()


def test_nearest_of_many_local_optima() -> None:
    """The first client sees only the first feature: its optima are a line, the nearest to w^o = (a, b) is (1, b)."""
    data = [[([[1.0, 0.0]], [1.0])], [([[1.0, 1.0], [0.0, 1.0]], [0.0, 2.0])]]
    problem = Problem(Federation.from_clients(data), Linear(0.0))
    c = constants(problem, Graph.path(2), settings(), 0)
    assert c.local_optima[0] == pytest.approx([1.0, problem.optimum[1]])
    assert c.nu == 0.0
    assert json.dumps(c.to_dict(), allow_nan=False)


# ---- plain numbers, and what is refused


def test_constants_are_plain_numbers(each_scheme: Scheme) -> None:
    problem = regression(units=3, clients=3, samples=5)
    plain = json.loads(
        json.dumps(constants(problem, Graph.path(3), settings(scheme=each_scheme), 0).to_dict(), allow_nan=False)
    )
    assert len(plain["repaired"]["lam"]) == 9
    assert len(plain["printed"]["sigma_g2_units"]) == 3
    assert "A" not in plain


@pytest.mark.parametrize("E", [1, 300])
def test_many_local_steps_give_no_nan(E: int) -> None:
    c = constants(four_clients(), Graph.path(2), settings(local_steps=E, step=3.0), 0)
    for terms in (c.printed, c.repaired):
        for name in terms.__dataclass_fields__:
            assert not np.isnan(getattr(terms, name)).any(), name


def test_steps_come_from_the_seed_of_the_run() -> None:
    algorithm, problem = settings(local_steps=(1, 10)), regression(units=2, clients=5, samples=5)
    first, again, other = (constants(problem, Graph.path(2), algorithm, seed).repaired.lam for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_refusals(ragged: Callable[..., Problem]) -> None:
    graph = Graph.path(2)
    flat = Problem(Federation.from_clients([[([[1.0, 0.0]], [1.0])]] * 2), Linear(0.0))
    with pytest.raises(InputError, match=r"problem\.rho = 0\.0: the optimum is not unique"):
        constants(flat, graph, settings(), 0)
    separable = Problem(Federation.from_clients([[([[1.0]], [1.0])], [([[1.0]], [-1.0])]]), Logistic(0.0))
    with pytest.raises(InputError, match=r"problem\.rho = 0\.0: client 0 of unit 0"):
        constants(separable, graph, settings(), 0)
    with pytest.raises(InputError, match=r"algorithm\.step = 1e\+300"):
        constants(four_clients(), graph, settings(step=1e300), 0)
    with pytest.raises(InputError, match=r"algorithm\.dropout"):
        constants(four_clients(), graph, settings(dropout=1.0), 0)
    with pytest.raises(InputError, match="2 units"):
        constants(four_clients(), Graph.path(3), settings(), 0)

    class Own:
        rho = 0.0

        def dimension(self, features: int) -> int:
            return features

    with pytest.raises(InputError, match=r"problem\.model = 'Own'"):
        constants(Problem(four_clients().federation, Own()), graph, settings(), 0)
