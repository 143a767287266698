"""Lemmas 1 and 2 and the coefficients of one round, against the enumeration of every outcome of a round."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest

from confide.graph.graph import Graph
from confide.problems.federation import Federation
from confide.problems.models import Linear, Logistic
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL
from confide.rounds.schemes import scheme
from confide.theory.bounds_round import local, one_round
from confide.theory.constants import Constants, constants
from confide.theory.constants_clients import clients
from paper import gradient_noise_units, incremental_noise, incremental_noise_units

SLACK = 1 + 1e-9


# ---- every outcome of a round


class Moments(NamedTuple):
    """Mean and mean square of a random vector."""

    mean: np.ndarray
    square: float

    @property
    def variance(self) -> float:
        return self.square - float(self.mean @ self.mean)


def batches(N: int, B: int, replacement: bool) -> Iterator[tuple[int, ...]]:
    """Batches of equal probability."""
    return itertools.product(range(N), repeat=B) if replacement else itertools.combinations(range(N), B)


def outcomes(problem: Problem, alg: GFL, E: int, B: int, p: int, k: int, w: np.ndarray) -> dict[str, np.ndarray]:
    """For every sequence of batches, all equally likely: the final iterate, the gradients at w, and their change."""
    X, d = problem.federation.client(p, k)
    model, eta = problem.model, alg.step / E
    found: dict[str, list[np.ndarray]] = {"u": [], "at_w": [], "q": []}
    for run in itertools.product(list(batches(len(d), B, alg.replacement)), repeat=E):
        u, at_w, on_the_way = w.copy(), np.zeros_like(w), np.zeros_like(w)
        for b in map(list, run):
            gradient = model.gradients(u, X[b], d[b]).mean(axis=0) + 2 * model.rho * u
            at_w = at_w + (model.gradients(w, X[b], d[b]).mean(axis=0) + 2 * model.rho * w) / E
            on_the_way = on_the_way + gradient / E
            u = u - eta * gradient
        for name, value in (("u", u), ("at_w", at_w), ("q", on_the_way - at_w)):
            found[name].append(value)
    return {name: np.array(rows) for name, rows in found.items()}


def sampled(parts: list[np.ndarray], alg: GFL) -> Moments:
    """(1/L) sum of the survivors' parts, over every choice of L clients and of survivors."""
    L, alive = alg.sampled, 1 - alg.dropout
    means = [part.mean(axis=0) for part in parts]
    variances = [float(np.mean(np.sum((part - part.mean(axis=0)) ** 2, axis=1))) for part in parts]
    mean, square, chance = np.zeros_like(means[0]), 0.0, 0.0
    for chosen in itertools.combinations(range(len(parts)), L):
        for survives in itertools.product((0, 1), repeat=L):
            weight = float(np.prod([alive if s else 1 - alive for s in survives]))
            kept = [k for k, s in zip(chosen, survives, strict=True) if s]
            here = sum((means[k] for k in kept), np.zeros_like(mean)) / L
            mean, chance = mean + weight * here, chance + weight
            square += weight * float(here @ here + sum(variances[k] for k in kept) / L**2)
    return Moments(mean / chance, square / chance)


class UnitRound(NamedTuple):
    psi: Moments
    s: Moments
    q: Moments


def enumerate_unit(problem: Problem, alg: GFL, p: int, w: np.ndarray) -> UnitRound:
    f, alive = problem.federation, 1 - alg.dropout
    E, B = alg.settle(f, 0)
    at = range(int(f.unit_offsets[p]), int(f.unit_offsets[p + 1]))
    all_of_it = [outcomes(problem, alg, int(E[c]), int(B[c]), p, k, w) for k, c in enumerate(at)]
    gradient = np.mean([o["at_w"].mean(axis=0) for o in all_of_it], axis=0)
    update = sampled([o["u"] - w for o in all_of_it], alg)
    psi = Moments(w + update.mean, update.variance + float((w + update.mean) @ (w + update.mean)))
    s = sampled([o["at_w"] / alive for o in all_of_it], alg)
    s = Moments(s.mean - gradient, s.variance + float((s.mean - gradient) @ (s.mean - gradient)))
    return UnitRound(psi, s, sampled([o["q"] / alive for o in all_of_it], alg))


# ---- small problems


def tiny(seed: int, model: str = "linear", P: int = 2, M: int = 2, rho: float = 0.1) -> Problem:
    rng = np.random.default_rng(seed)
    w = rng.standard_normal(M)

    def samples() -> tuple[np.ndarray, np.ndarray]:
        X = rng.standard_normal((int(rng.integers(2, 5)), M)) * rng.uniform(0.3, 1.0, M)
        d = X @ (w + 0.3 * rng.standard_normal(M)) + 0.3 * rng.standard_normal(len(X))
        return X, d if model == "linear" else np.where(d > 0, 1.0, -1.0)

    units = [[samples() for _ in range(3)] for _ in range(P)]
    return Problem(Federation.from_clients(units), Linear(rho) if model == "linear" else Logistic(rho))


def of_parabolas(*units: list[tuple[list[float], float]]) -> Problem:
    """Clients ([Hessians of its samples], optimum of all of them): P units, M = 1, rho = 0."""
    data = [[([[np.sqrt(h / 2)] for h in hs], [np.sqrt(h / 2) * c for h in hs]) for hs, c in unit] for unit in units]
    return Problem(Federation.from_clients(data), Linear(0.0))


def settings(**changes: object) -> GFL:
    base: dict[str, object] = {"scheme": scheme("none"), "step": 0.3, "sampled": 2, "local_steps": (1, 3), "batch": 1}
    return GFL(**(base | changes))


CASES = {
    "sampled": settings(),
    "all": settings(sampled=3, step=0.05),
    "one": settings(sampled=1, step=0.6),
    "without-replacement": settings(batch=2, replacement=False),
    "dropout": settings(dropout=0.3),
    "one-step": settings(local_steps=1, batch=2),
    "large-step": settings(step=2.0),
}
EVERY = [(name, model, seed) for seed, name in enumerate(CASES) for model in ("linear", "logistic")]


class Case(NamedTuple):
    problem: Problem
    alg: GFL
    constants: Constants
    rounds: list[tuple[np.ndarray, list[UnitRound]]]  # from states w, every outcome of each unit


@pytest.fixture(params=EVERY, ids=lambda case: "-".join(map(str, case[:2])), scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    name, model, seed = request.param
    problem, alg = tiny(seed, model), CASES[name]
    rounds = [(w, [enumerate_unit(problem, alg, p, w[p]) for p in range(len(w))]) for w in states(problem)]
    return Case(problem, alg, constants(problem, Graph.path(2), alg, 0), rounds)


def states(problem: Problem, far: tuple[float, ...] = (0.0, 0.1, 1.0, 10.0)) -> Iterator[np.ndarray]:
    """(P, M): all at the optimum, near it, far away."""
    rng = np.random.default_rng(0)
    for size in far:
        yield problem.optimum + size * rng.standard_normal((problem.federation.P, problem.M))


# ---- the lemmas


def test_lemma_1_holds(case: Case) -> None:
    problem, alg, c, rounds = case
    for w, units in rounds:
        s = [unit.s for unit in units]
        errors = np.sum((w - problem.optimum) ** 2, axis=1)
        for unit, bound in zip(s, gradient_noise_units(c.repaired, errors), strict=True):
            assert np.abs(unit.mean).max() < 1e-9  # zero mean
            assert unit.square <= bound * SLACK
        centroid, apart = w.mean(axis=0) - problem.optimum, w - w.mean(axis=0)
        exact = sum(unit.square for unit in s) / len(w) ** 2
        disagreement = np.mean(np.sum(apart**2, axis=1))
        for terms in (c.repaired, c.printed) if alg.dropout == 0 else (c.repaired,):
            assert exact <= terms.gradient_noise(centroid @ centroid, disagreement) * SLACK


def test_sigma_s_is_twice_the_exact_moment_at_the_optimum(case: Case) -> None:
    (w, units), c = case.rounds[0], case.constants
    assert np.array_equal(w, [case.problem.optimum] * 2)
    exact = [unit.s.square for unit in units]
    assert c.repaired.sigma_s2_units / 2 == pytest.approx(exact, rel=1e-9)
    assert c.repaired.sigma_s2 == pytest.approx(2 * sum(exact) / 4)


@pytest.mark.parametrize("name", list(CASES))
def test_beta_s_is_twice_the_exact_moment_of_the_difference_for_one_feature(name: str) -> None:
    """With one feature and squared loss the noise is h x + its value at w^o with a common law: nothing is lost."""
    problem, alg = tiny(5, M=1), CASES[name]
    c = constants(problem, Graph.path(2), alg, 0)
    for p in range(2):
        plus, minus, zero = (enumerate_unit(problem, alg, p, problem.optimum + x).s.square for x in (1.0, -1.0, 0.0))
        assert c.repaired.beta_s2_units[p] / 2 == pytest.approx((plus + minus) / 2 - zero, rel=1e-9)


def test_lemma_2_holds(case: Case) -> None:
    problem, alg, c, rounds = case
    step = one_round(clients(problem, alg, 0), Graph.path(2), alg, alg.step)
    for w, units in rounds:
        q = [unit.q for unit in units]
        errors = np.sum((w - problem.optimum) ** 2, axis=1)
        paper = incremental_noise_units(problem.federation, c, c.repaired, errors)
        sharp = (step.q0 + step.q1 * np.sqrt(errors)) ** 2
        for unit, a, b in zip(q, paper, sharp, strict=True):
            assert unit.square <= b * SLACK + 1e-15
            assert unit.square <= a * SLACK + 1e-15
        centroid, apart = w.mean(axis=0) - problem.optimum, w - w.mean(axis=0)
        mean = np.mean([unit.mean for unit in q], axis=0)
        exact = mean @ mean + sum(unit.variance for unit in q) / len(w) ** 2
        network = incremental_noise(
            problem.federation, c, c.repaired, centroid @ centroid, np.mean(np.sum(apart**2, axis=1))
        )
        assert exact <= network * SLACK + 1e-15


def test_network_bounds_are_the_means_of_like_units() -> None:
    """Like units with E|w_p - w^o|^2 <= 2 (1 + 3): (37) is the mean of (31), (28) of (24), with 1/P where repaired."""
    unit = [([[1.0], [2.0]], [1.0, 0.0]), ([[1.0]], [3.0])]  # the first client's gradients differ at its optimum
    problem, alg = Problem(Federation.from_clients([unit] * 3), Linear(0.0)), settings(local_steps=2, sampled=1)
    c, errors = constants(problem, Graph.path(3), alg, 0), np.full(3, 8.0)
    for terms, averaging in ((c.repaired, 3), (c.printed, 1)):
        alone = gradient_noise_units(terms, errors).mean()
        assert terms.gradient_noise(1.0, 3.0) == pytest.approx(alone / averaging)
        assert incremental_noise(problem.federation, c, terms, 1.0, 3.0) == pytest.approx(
            incremental_noise_units(problem.federation, c, terms, errors).mean()
        )


def test_one_local_step_has_no_incremental_noise() -> None:
    problem, alg = tiny(1), settings(local_steps=1)
    c = constants(problem, Graph.path(2), alg, 0)
    assert not np.any([c.repaired.b, c.repaired.c])
    step = one_round(clients(problem, alg, 0), Graph.path(2), alg, alg.step)
    assert not np.any([step.q0, step.q1])


# ---- what a round is made of


def test_mean_and_spread_of_a_unit(case: Case) -> None:
    problem, alg, _, rounds = case
    c = clients(problem, alg, 0)
    mine, step = local(c, alg.step), one_round(c, Graph.path(2), alg, alg.step)
    alive, eye = 1 - alg.dropout, np.eye(problem.M)
    Phi, t = eye + alive * (c.unit_mean(mine.Phi) - eye), alive * c.unit_mean(mine.t)
    kappa, err = alive * c.unit_mean(mine.kappa), alive * c.unit_mean(mine.err)
    for w, units in rounds:
        for p, x in enumerate(w - problem.optimum):
            psi = units[p].psi
            off = np.linalg.norm(psi.mean - problem.optimum - Phi[p] @ x - t[p])
            size = np.linalg.norm(x)
            assert off <= kappa[p] * size + err[p] + 1e-9 * (1 + size)  # zero for squared loss
            assert np.sqrt(max(psi.variance, 0.0)) <= (step.S0[p] + step.S1[p] * size) * SLACK + 1e-7 * size
    if isinstance(problem.model, Linear):
        assert not np.any([mine.kappa, mine.err])


@pytest.mark.parametrize("name", ["one-step", "sampled"])
def test_spread_at_the_optimum_is_exact_for_one_local_step(name: str) -> None:
    alg = settings(local_steps=1, batch=2, sampled=CASES[name].sampled, dropout=0.25)
    for model in ("linear", "logistic"):
        problem = tiny(8, model)
        step = one_round(clients(problem, alg, 0), Graph.path(2), alg, alg.step)
        exact = [enumerate_unit(problem, alg, p, problem.optimum).psi.variance for p in range(2)]
        assert np.square(step.S0) == pytest.approx(exact, rel=1e-9)


def test_spread_of_the_difference_is_exact_for_one_feature_and_one_step() -> None:
    problem, alg = tiny(8, M=1), settings(local_steps=1, batch=2, dropout=0.25)
    step = one_round(clients(problem, alg, 0), Graph.path(2), alg, alg.step)
    for p in range(2):
        plus, minus, zero = (
            enumerate_unit(problem, alg, p, problem.optimum + x).psi.variance for x in (1.0, -1.0, 0.0)
        )
        assert step.S1[p] ** 2 == pytest.approx((plus + minus) / 2 - zero, rel=1e-9)


def test_incremental_noise_is_exact_for_two_steps_on_parabolas() -> None:
    """From the network's optimum, q is the Hessian times how far a client's first step went."""
    graph = Graph.path(1)
    for problem, at in ((of_parabolas([([1.0, 3.0], 0.5)]), 2.0), (of_parabolas([([2.0], 1.0), ([2.0], -1.0)]), 0.0)):
        alg = settings(local_steps=2, sampled=1)
        step = one_round(clients(problem, alg, 0), graph, alg, alg.step)
        exact = enumerate_unit(problem, alg, 0, problem.optimum + at).q.square
        assert (step.q0[0] + step.q1[0] * at) ** 2 == pytest.approx(exact, rel=1e-12)
    problem, alg = of_parabolas([([2.0], 1.0)]), settings(local_steps=5, sampled=1)
    step = one_round(clients(problem, alg, 0), graph, alg, alg.step)
    exact = enumerate_unit(problem, alg, 0, problem.optimum + 2.0).q.square
    assert (step.q1[0] * 2.0) ** 2 == pytest.approx(exact, rel=1e-12)


def test_unlike_hessians_couple_centroid_and_disagreement_exactly() -> None:
    """Hessians 1 and 3, mu = 0.1: Phi = 0.9 and 0.7, so kappa = 0.1; (y, -y) moves the centroid by 0.1 y."""
    problem, alg = of_parabolas([([1.0], 0.5)], [([3.0], 0.5)]), settings(step=0.1, local_steps=1, sampled=1)
    step = one_round(clients(problem, alg, 0), Graph.path(2), alg, 0.1)
    np.testing.assert_allclose(step.C, [[0.8, 0.1], [0.5 * 0.1, 0.5 * 0.9]])
    assert step.advance(np.array([0.0, 1.0])) == pytest.approx([0.1, 0.5 * 0.9])
    assert step.advance(np.array([1.0, 0.0])) == pytest.approx([0.8, 0.5 * 0.1])


def test_draws_of_units_average_out_exactly() -> None:
    """Three like units, Hessians 1 and 3 drawn one at a time: S1_p = mu, and 1/sqrt 3 of it in the centroid."""
    problem, alg = of_parabolas(*[[([1.0, 3.0], 0.5)]] * 3), settings(step=0.1, local_steps=1, sampled=1)
    step = one_round(clients(problem, alg, 0), Graph.complete(3), alg, 0.1)
    assert list(step.S1) == pytest.approx([0.1] * 3)
    columns = 4 / 9 + 2 / 36 - 1 / 3  # columns of A are 2/3, 1/6, 1/6
    assert step.S1_cd == pytest.approx([0.1 / np.sqrt(3), 0.1 * np.sqrt(columns)])


def test_logistic_steps_by_hand() -> None:
    """u = 2, rho = 0.1: nu = 0.2, delta = 1.2, so G = 0.7, s = 0.5 and omega = 1; mu = 0.2, E = 2, eta = 0.1."""
    problem = Problem(Federation.from_clients([[([[2.0]], [1.0])]]), Logistic(0.1))
    mine = local(clients(problem, settings(local_steps=2, sampled=1), 0), 0.2)
    ell2 = 1 - 0.1 * (2 - 0.12) * 0.2
    assert mine.Phi[0, 0, 0] == pytest.approx(0.93**2)
    assert mine.kappa[0] == pytest.approx(0.93 * 0.05 + 0.05 * np.sqrt(ell2))
    assert mine.y[0] == pytest.approx((0.93 * 0.1 + 0.05 * np.sqrt(ell2)) ** 2 + 0.01 * ell2)
    still = local(clients(problem, settings(local_steps=2, sampled=1, replacement=False), 0), 0.2)
    assert still.y[0] == 0.0  # the one sample is always drawn
    alg = settings(local_steps=1, sampled=1)
    step = one_round(clients(problem, alg, 0), Graph.path(1), alg, 0.2)
    assert step.C[0] == pytest.approx([1 - 0.2 * 0.2, 0.2 * 0.5])


NOISES = [
    scheme("none"),
    scheme("homomorphic", 0.7),
    scheme("shared", 0.7),
    scheme("own-clean", 0.7),
    scheme("per-link", 0.7, sigma_client=0.4),
    scheme("pairwise", 0.3, sigma_pair=0.8),
    scheme("central", 0.7),
    scheme("partial:0.3", 0.7),
]


@pytest.mark.parametrize("model", ["linear", "logistic"])
def test_one_round_is_bounded(model: str) -> None:
    """(I), (II) and the recursion over units from any states, the expectation over a round being exact."""
    graph, P = Graph.star(3, weights="metropolis"), 3
    for seed, dropout in ((0, 0.0), (1, 0.4)):
        problem = tiny(seed, model, P=P)
        algorithms = [settings(scheme=noise, dropout=dropout, step=0.8) for noise in NOISES]
        steps = [one_round(clients(problem, alg, 0), graph, alg, alg.step) for alg in algorithms]
        for w in states(problem):
            x = w - problem.optimum
            psi = [enumerate_unit(problem, algorithms[0], p, w[p]).psi for p in range(P)]  # before any noise
            for noise, step in zip(NOISES, steps, strict=True):
                means = step.W @ (np.array([one.mean for one in psi]) - problem.optimum)
                variances = np.array([one.variance for one in psi])
                units = np.sum(means**2, axis=1) + step.W**2 @ variances + step.noise.units
                centroid = np.sum(means.mean(axis=0) ** 2) + variances.sum() / P**2 + step.noise.centroid
                apart = x - x.mean(axis=0)
                r = np.array([np.linalg.norm(x.mean(axis=0)), np.sqrt(np.mean(np.sum(apart**2, axis=1)))])
                bound = step.advance(r) ** 2
                assert centroid <= bound[0] * SLACK, noise.name
                assert units.mean() - centroid <= bound[1] * SLACK + 1e-12, noise.name
                assert np.all(units <= step.advance_units(np.linalg.norm(x, axis=1)) ** 2 * SLACK), noise.name


# ---- where the printed formulas fail


def one_sample(h: float, w: float = 1.0) -> Problem:
    """P = K = N = M = 1, loss (h/2)(x - w)^2 without noise: no sampling, xi = 0."""
    u = np.sqrt(h / 2)
    return Problem(Federation.from_clients([[([[u]], [u * w])]]), Linear(0.0))


def test_printed_a_lacks_delta_squared() -> None:
    """(32) of docs/theory.md: h = 10, mu = 1e-3, E = 10 at distance 1."""
    problem, alg = one_sample(10.0), settings(step=1e-3, local_steps=10, sampled=1)
    c = constants(problem, Graph.path(1), alg, 0)
    exact = enumerate_unit(problem, alg, 0, problem.optimum + 1.0).q.square
    printed, repaired = (
        incremental_noise_units(problem.federation, c, terms, np.ones(1))[0] for terms in (c.printed, c.repaired)
    )
    assert exact == pytest.approx(2.01e-3, rel=5e-3)
    assert printed == pytest.approx(2.08e-4, rel=5e-3)
    assert repaired == pytest.approx(2.19e-2, rel=5e-3)
    assert printed < exact < repaired


def test_printed_b_is_not_zero_for_one_local_step() -> None:
    """At lambda = 0.9 and E = 1, 1620 instead of 0."""
    alg = settings(step=(2 - np.sqrt(2.4)) / 8, local_steps=1, sampled=1)
    c = constants(one_sample(1.0), Graph.path(1), alg, 0)
    assert c.printed.lam[0] == pytest.approx(0.9)
    assert c.printed.b[0] == pytest.approx(1620.0)
    assert c.repaired.b[0] == 0.0


def test_printed_lambda_promises_too_much() -> None:
    """One local step of mu/E on a parabola: the squared error shrinks by (1 - mu h/E)^2, more slowly than lambda."""
    mu, E, h = 0.05, 10, 1.0
    c = constants(one_sample(h), Graph.path(1), settings(step=mu, local_steps=E, sampled=1), 0)
    exact = (1 - mu * h / E) ** 2
    assert c.printed.lam[0] < exact <= c.repaired.lam[0]


def test_printed_sigma_q_grows_with_the_data_and_has_the_wrong_order() -> None:
    rng = np.random.default_rng(2)
    X, d = rng.standard_normal((3, 1)), rng.standard_normal(3)

    def repeated(copies: int) -> Problem:
        data = [[(np.tile(X, (copies, 1)), np.tile(d, copies))]]
        return Problem(Federation.from_clients(data), Linear(0.0))

    def of(mu: float, copies: int = 1) -> tuple[Constants, float]:
        problem, alg = repeated(copies), settings(step=mu, local_steps=2, sampled=1)
        c = constants(problem, Graph.path(1), alg, 0)
        assert c.xi < 1e-9  # one client: its optimum is the network's
        return c, enumerate_unit(problem, alg, 0, problem.optimum).q.square if copies == 1 else 0.0

    (once, exact), (twice, _) = of(0.01), of(0.01, copies=2)
    assert twice.printed.sigma_q2_clients == pytest.approx(2 * once.printed.sigma_q2_clients)
    assert twice.repaired.sigma_q2_clients == pytest.approx(once.repaired.sigma_q2_clients)

    # At w^o with xi = 0, (37) is O(mu^2) sigma_q^2. The truth is of order mu^2; c_k mu^2 inside (38) makes it mu^4.
    finer, exact_finer = of(0.001)
    c_part = [(c.printed.c * c.printed.sigma_q2_clients)[0] * c.step**4 for c in (once, finer)]
    assert exact / exact_finer == pytest.approx(100, rel=0.05)
    assert c_part[0] / c_part[1] == pytest.approx(1e4)
    assert exact_finer <= incremental_noise_units(repeated(1).federation, finer, finer.repaired, np.zeros(1))[0]


def test_gradient_noise_and_incremental_noise_are_correlated() -> None:
    """Appendix C takes E(s, q) for 0 in its first line; here it is positive, and the line too small."""
    u = np.sqrt([0.5, 1.5])  # h = 1 and 3
    problem = Problem(Federation.from_clients([[(u[:, None], [-1 / (2 * u[0]), 1 / (2 * u[1])])]]), Linear(0.0))
    alg = settings(step=0.2, local_steps=2, sampled=1)
    w = problem.optimum + 0.75
    of = outcomes(problem, alg, 2, 1, 0, 0, w)
    gradient = of["at_w"].mean(axis=0)
    s, q, after = of["at_w"] - gradient, of["q"], of["u"] - problem.optimum
    assert np.mean(np.sum(s * q, axis=1)) > 0
    mean_part = np.mean(np.sum((w - problem.optimum - alg.step * (gradient + q)) ** 2, axis=1))
    printed = mean_part + alg.step**2 * np.mean(np.sum(s**2, axis=1))
    assert np.mean(np.sum(after**2, axis=1)) > printed * 1.001
