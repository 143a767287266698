"""The moments of a round against every outcome of it: each client subset, each dropout pattern, each batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from confide.base.errors import InputError
from confide.base.randomness import Purpose
from confide.graph.graph import Graph
from confide.problems.federation import Federation
from confide.problems.models import Linear
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL, Failures
from confide.rounds.arithmetic import FloatArithmetic
from confide.rounds.clipping import Clip
from confide.rounds.combine import combine, publish
from confide.rounds.local import LocalTask
from confide.rounds.schemes import Scheme, scheme
from confide.theory import moments as module
from confide.theory.moments import Moments, blocks, moments
from confide.theory.packing import congruence, pack, unpack
from confide.theory.quadratics import linearise

Floats = np.ndarray[Any, Any]
Maker = Callable[..., Problem]
EXACT = {"rtol": 1e-12, "atol": 1e-14}
UNITS = ([2, 3, 2], [3, 1, 2])  # samples of the clients of two units; a client with one sample has no batch noise
STANDARD: dict[str, Any] = {"step": 0.4, "sampled": 2, "local_steps": [1, 2, 2, 1, 1, 3], "batch": [2, 1, 2, 1, 2, 1]}
SETTINGS: dict[str, dict[str, Any]] = {
    "paper": {},
    "without replacement": {"replacement": False, "batch": [1, 2, 1, 2, 1, 1]},
    "one client": {"sampled": 1},
    "all clients": {"sampled": 3},
    "dropout": {"dropout": 0.3},
    "dropout, all clients": {"dropout": 0.6, "sampled": 3, "replacement": False, "batch": [1, 2, 1, 2, 1, 1]},
    "full batches": {"sampled": 1, "replacement": False, "batch": [2, 3, 2, 3, 1, 2]},
    "nobody": {"dropout": 1.0},
}


def tiny(M: int = 2) -> Problem:
    rng = np.random.default_rng(M)
    units = [[(rng.standard_normal((n, M)), rng.standard_normal(n)) for n in sizes] for sizes in UNITS]
    return Problem(Federation.from_clients(units), Linear(0.1))


def settings(name: str = "paper", s: Scheme | None = None) -> GFL:
    return GFL(s if s is not None else scheme("none"), **STANDARD | SETTINGS[name])


def round_of(problem: Problem, alg: GFL, graph: Graph | None = None) -> Moments:
    return moments(linearise(problem), graph if graph is not None else Graph.path(2), alg, 0)


# ---- every outcome of one unit, by the model's own gradients


def updates(problem: Problem, alg: GFL, w: Floats, p: int, k: int) -> Floats:
    """The update of client k on each of its equally likely sequences of batches."""
    X, d = problem.federation.client(p, k)
    E, batch = (int(per_client[3 * p + k]) for per_client in (alg.local_steps, alg.batch))  # type: ignore[index]
    batches = list(product(range(len(d)), repeat=batch) if alg.replacement else combinations(range(len(d)), batch))
    found = []
    for sequence in product(batches, repeat=E):
        phi = w
        for b in sequence:
            gradients = problem.model.gradients(phi, X[list(b)], d[list(b)])
            phi = phi - alg.step / E * (gradients.mean(axis=0) + 2 * problem.model.rho * phi)
        found.append(phi - w)
    return np.array(found)


def outcomes(problem: Problem, alg: GFL, w: Floats, p: int) -> Iterator[tuple[float, Floats]]:
    """For each subset of clients and each dropout pattern its probability and the equally likely values of psi_p."""
    subsets = list(combinations(range(3), alg.sampled))
    of_client = [updates(problem, alg, w, p, k) for k in range(3)]
    for subset, survives in product(subsets, product([True, False], repeat=alg.sampled)):
        psi = w[None]
        for k, here in zip(subset, survives, strict=True):
            if here:
                psi = (psi[:, None] + of_client[k][None] / alg.sampled).reshape(-1, len(w))
        lost = survives.count(False)
        yield alg.dropout**lost * (1 - alg.dropout) ** (alg.sampled - lost) / len(subsets), psi


def enumerated(problem: Problem, alg: GFL, w: Floats, p: int) -> tuple[Floats, Floats]:
    """Mean and covariance of psi_p given w_p."""
    every = list(outcomes(problem, alg, w, p))
    assert sum(chance for chance, _ in every) == pytest.approx(1.0)
    mean = sum(chance * psi.mean(axis=0) for chance, psi in every)
    return np.asarray(mean), np.asarray(sum(c * (psi - mean).T @ (psi - mean) / len(psi) for c, psi in every))


@pytest.mark.parametrize("dense", [True, False], ids=["matrices", "samples"])
@pytest.mark.parametrize("M", [1, 2])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_server_against_every_outcome(name: str, M: int, dense: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DENSE", 12 if dense else 0)
    problem, alg = tiny(M), settings(name)
    w = np.random.default_rng(5).standard_normal((2, M))
    x, one = w - problem.optimum, round_of(problem, alg)
    C = one.drawn(x)
    for p in range(2):
        mean, cov = enumerated(problem, alg, w[p], p)
        np.testing.assert_allclose(one.Phi[p] @ x[p] + one.phi[p] + problem.optimum, mean, **EXACT)
        np.testing.assert_allclose(C[p], cov, **EXACT)


# ---- a round, from states that are spread themselves


def responses(s: Scheme, graph: Graph) -> tuple[Floats, Floats]:
    """W and R by running the reference's own publish and combine on unit vectors."""
    arith, present, up = FloatArithmetic(1), np.ones(graph.P, bool), np.ones(len(graph.edges), bool)
    seen: list[tuple[Purpose, tuple[int, ...]]] = []

    def run(psi: Floats, only: int | None) -> Floats:
        seen.clear()

        def draw(purpose: Purpose, ids: tuple[int, ...], sigma: float) -> Floats:
            seen.append((purpose, ids))
            return np.full(1, sigma if len(seen) - 1 == only else 0.0)

        return combine(s, graph, publish(s, graph, psi, draw, arith, present), arith, up)[:, 0]

    W = np.column_stack([run(e[:, None], None) for e in np.eye(graph.P)])
    draws = len(seen)
    R = [run(np.zeros((graph.P, 1)), n) for n in range(draws)]
    return W, np.column_stack(R) if R else np.zeros((graph.P, 0))


@pytest.mark.parametrize("name", ["paper", "dropout"])
def test_a_round_of_each_scheme_against_every_outcome(each_scheme: Scheme, name: str) -> None:
    """x takes three values, so S is not that of known states and the servers are correlated."""
    problem, graph, alg = tiny(), Graph.path(2), settings(name, each_scheme)
    rng = np.random.default_rng(7)
    states, chances = rng.standard_normal((3, 2, 2)), np.array([0.5, 0.3, 0.2])
    W, R = responses(each_scheme, graph)

    def moments_of(x: Floats, covariances: Floats) -> tuple[Floats, Floats]:
        mean = np.tensordot(chances, x, 1)
        y = (x - mean).reshape(3, -1)
        return mean, np.tensordot(chances, covariances + y[:, :, None] * y[:, None, :], 1)

    psi, spread = np.empty_like(states), np.zeros((3, 4, 4))
    for n, p in product(range(3), range(2)):
        psi[n, p], spread[n, 2 * p : 2 * p + 2, 2 * p : 2 * p + 2] = enumerated(problem, alg, states[n, p], p)
    WW = np.kron(W, np.eye(2))
    mean, S = moments_of(psi - problem.optimum, spread)
    expected = WW @ S @ WW.T + np.kron(R @ R.T, np.eye(2))

    one = round_of(problem, alg, graph)
    m, before = moments_of(states - problem.optimum, np.zeros((3, 4, 4)))
    np.testing.assert_allclose(one.mean(m), W @ mean, **EXACT)
    np.testing.assert_allclose(one.covariance(before.reshape(2, 2, 2, 2), m).reshape(4, 4), expected, **EXACT)


def test_privacy_noise_of_each_scheme_on_each_graph(each_scheme: Scheme, each_graph: Graph) -> None:
    rng = np.random.default_rng(0)
    units = [[(rng.standard_normal((2, 1)), rng.standard_normal(2))] for _ in range(each_graph.P)]
    problem = Problem(Federation.from_clients(units), Linear(0.1))
    W, R = responses(each_scheme, each_graph)
    one = round_of(problem, GFL(each_scheme, sampled=1, local_steps=1, batch=1), each_graph)
    np.testing.assert_allclose(one.W, W, atol=1e-14)
    np.testing.assert_allclose(one.noise, R @ R.T, atol=1e-14)


def test_noise_on_client_links_comes_from_the_survivors() -> None:
    """Each of n survivors adds a draw over L: variance E[n] sigma^2 / L^2, mixed by W with the rest."""
    graph, s = Graph.path(2), scheme("per-link", 0.3, sigma_client=0.9)
    noises = [round_of(tiny(), settings("dropout", each), graph).noise for each in (s, s.resized(sigma_client=0.0))]
    survivors = sum(n * 0.7**n * 0.3 ** (2 - n) * (2 if n == 1 else 1) for n in range(3))
    np.testing.assert_allclose(noises[0] - noises[1], survivors * 0.9**2 / 2**2 * graph.A @ graph.A, **EXACT)


# ---- the two ways to apply C_p, and what they are made of


@pytest.mark.parametrize("changes", [{}, {"dropout": 0.2, "replacement": False, "batch": (1, 4)}])
def test_matrices_and_samples_agree(ragged: Maker, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]) -> None:
    problem, graph = ragged(P=4, M=3), Graph.ring(4)
    alg = GFL(scheme("none"), **{"sampled": 3, "local_steps": (1, 5), "batch": (1, 6)} | changes)
    Y = np.random.default_rng(1).standard_normal((4, 4, 6))
    Y = Y @ Y.swapaxes(-1, -2)
    found = [round_of(problem, alg, graph).sampling(Y)]
    monkeypatch.setattr(module, "CHUNK", 1)  # a client at a time
    found.append(round_of(problem, alg, graph).sampling(Y))
    monkeypatch.setattr(module, "DENSE", 0)
    found.append(round_of(problem, alg, graph).sampling(Y))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-12)
    np.testing.assert_allclose(found[2], found[0], rtol=1e-11)


def test_packed_maps() -> None:
    rng = np.random.default_rng(2)
    T, Y = rng.standard_normal((5, 4, 4)), rng.standard_normal((4, 4))
    Y = Y + Y.T
    np.testing.assert_allclose(unpack(pack(Y), 4), Y, **EXACT)
    assert pack(Y) @ pack(Y) == pytest.approx(np.trace(Y @ Y))
    np.testing.assert_allclose(congruence(T) @ pack(Y), pack(T @ Y @ T.swapaxes(-1, -2)), **EXACT)
    np.testing.assert_allclose(congruence(T, rows=3) @ pack(Y), pack((T @ Y @ T.swapaxes(-1, -2))[:, :3, :3]), **EXACT)


def test_the_map_is_linear_in_a_spread_and_blocks_are_the_diagonal(ragged: Maker) -> None:
    one = round_of(ragged(), GFL(scheme("none"), sampled=2), Graph.ring(4))
    S = np.random.default_rng(3).standard_normal((8, 8))
    S = (S @ S.T).reshape(4, 2, 4, 2)
    np.testing.assert_array_equal(blocks(S)[2], S[2, :, 2])
    zero = np.zeros((4, 2))
    from_nothing = one.covariance(np.zeros_like(S), zero)
    apart = one.covariance(2 * S, zero) - from_nothing
    np.testing.assert_allclose(apart, 2 * (one.covariance(S, zero) - from_nothing), rtol=1e-10, atol=1e-12)
    assert np.all(np.linalg.eigvalsh(one.multiplied(blocks(S))) > 0)


# ---- what is refused


def my_step(w: Floats, X: Floats, d: Floats, task: LocalTask) -> Floats:
    return -w


class MyModel:
    rho = 0.1


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"clip": Clip("update", 1.0)}, "algorithm.clip"),
        ({"clip": Clip("update", 1.0), "arithmetic": "fixed"}, "algorithm.clip"),
        ({"failures": Failures(link=0.1)}, "failures"),
        ({"failures": Failures(units=((1, 0),))}, "failures"),
        ({"local": my_step}, "algorithm.local"),
        ({"sampled": 4}, "algorithm.sampled"),
    ],
)
def test_algorithms_without_known_moments_are_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as error:
        round_of(tiny(), replace(settings(), **changes))
    assert error.value.field == field


def test_problems_and_graphs_without_known_moments_are_refused(ragged: Maker) -> None:
    with pytest.raises(InputError, match="servers"):
        round_of(tiny(), settings(), Graph.ring(4))
    with pytest.raises(InputError, match="one graph"):
        round_of(tiny(), settings(), [Graph.path(2), Graph.path(2)])  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"problem\.model"):
        linearise(Problem(tiny().federation, MyModel()))  # type: ignore[arg-type]
    flat = Federation.from_clients([[(np.array([[1.0, 1.0], [2.0, 2.0]]), [1.0, 2.0])]])
    with pytest.raises(InputError, match=r"problem\.rho = 0\.0: the optimum is not unique"):
        linearise(Problem(flat, Linear(0.0)))


def test_the_covariance_is_that_of_a_known_state_and_of_a_spread() -> None:
    rng, round = np.random.default_rng(0), round_of(tiny(), settings(), Graph.path(2))
    m, root = rng.standard_normal((2, 2)), rng.standard_normal((4, 4))
    S = (root @ root.T).reshape(2, 2, 2, 2)
    parts = round.carry(S, round.drawn(m) + round.multiplied(blocks(S)))
    parts[:, range(2), :, range(2)] += round.noise
    assert np.allclose(round.covariance(S, m), parts, rtol=1e-13, atol=0.0)
