"""The limit of mean-square stability against closed forms, the dense operator of every outcome, and simulation."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

import confide
from confide.base.errors import InputError
from confide.graph.graph import Graph
from confide.problems.federation import Federation
from confide.problems.models import Linear
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL
from confide.rounds.clipping import Clip
from confide.rounds.schemes import FAMILIES, scheme
from confide.theory import stability
from confide.theory.moments import moments
from confide.theory.prediction import predict
from confide.theory.quadratics import linearise
from confide.theory.stability import explain, max_stable_step, sure_step
from exploring import more
from paper import spectral_radius

Floats = np.ndarray[Any, Any]
Maker = Callable[..., Problem]
RAGGED = GFL(scheme("homomorphic", 0.3), step=0.3, sampled=3, local_steps=(1, 4), batch=(1, 4))


def problem_of(*units: list[list[float]], rho: float = 0.0, labels: float = 1.0) -> Problem:
    """Scalar features: units[p][k] lists those of client k of unit p."""
    clients = [[(np.array(u)[:, None], labels * np.array(u)) for u in unit] for unit in units]
    return Problem(Federation.from_clients(clients), Linear(rho))


def tiny(M: int, seed: int = 0) -> Problem:
    rng = np.random.default_rng(seed)
    sizes = ([2, 3], [2, 1])
    units = [[(rng.standard_normal((n, M)), rng.standard_normal(n)) for n in unit] for unit in sizes]
    return Problem(Federation.from_clients(units), Linear(0.1))


def dense_radius(problem: Problem, graph: Graph, alg: GFL) -> float:
    """The spectral radius of E[T (x) T] over every outcome of a round, as one matrix; batches with replacement."""
    f, M, rho = problem.federation, problem.M, problem.model.rho
    E, batch = alg.settle(f, 0)
    units = []
    for p in range(f.P):
        maps = []
        for k in range(int(f.K[p])):
            X, _ = f.client(p, k)
            c = int(f.unit_offsets[p]) + k
            H = [2 * X[list(b)].T @ X[list(b)] / len(b) for b in product(range(len(X)), repeat=int(batch[c]))]
            steps = [np.eye(M) - alg.step / E[c] * (h + 2 * rho * np.eye(M)) for h in H]
            maps.append([np.linalg.multi_dot([np.eye(M), *s, np.eye(M)]) for s in product(steps, repeat=int(E[c]))])
        subsets = list(combinations(range(int(f.K[p])), alg.sampled))
        outcomes = []
        for subset, alive in product(subsets, product([0, 1], repeat=alg.sampled)):
            chance = np.prod([1 - alg.dropout if a else alg.dropout for a in alive]) / len(subsets)
            drawn = list(product(*(maps[k] for k in subset)))
            for Ts in drawn:
                change = sum(a * (T - np.eye(M)) for a, T in zip(alive, Ts, strict=True))
                outcomes.append((chance / len(drawn), np.eye(M) + change / alg.sampled))
        units.append([o for o in outcomes if o[0] > 0])
    W = np.kron(alg.scheme.wiring(graph).W, np.eye(M))
    second = np.zeros(((2 * M) ** 2, (2 * M) ** 2))
    for (a, first), (b, other) in product(*units):
        T = np.zeros((2 * M, 2 * M))
        T[:M, :M], T[M:, M:] = first, other
        second += a * b * np.kron(W @ T, W @ T)
    return float(np.abs(np.linalg.eigvals(second)).max())


CASES: list[dict[str, Any]] = [
    {"sampled": 1, "batch": 1},
    {"sampled": 1, "batch": 2, "dropout": 0.4},
    {"sampled": 2, "batch": 1, "local_steps": [1, 2, 1, 3]},
]


@pytest.mark.parametrize("M", [1, 2])
@pytest.mark.parametrize("changes", CASES)
@pytest.mark.parametrize("name", ["none", "local-only", "central"])
def test_the_radius_of_the_dense_operator(name: str, changes: dict[str, Any], M: int) -> None:
    problem, graph = tiny(M), Graph.path(2)
    for step in (0.1, 0.5, 1.5):
        alg = GFL(scheme(name), **{"step": step, "local_steps": 1} | changes)
        assert spectral_radius(problem, graph, alg) == pytest.approx(dense_radius(problem, graph, alg), rel=1e-8)


@pytest.mark.parametrize("M", [1, 2])
@pytest.mark.parametrize("changes", CASES)
def test_the_limit_of_the_dense_operator(changes: dict[str, Any], M: int) -> None:
    problem, graph, alg = tiny(M), Graph.path(2), GFL(scheme("none"), **{"local_steps": 1} | changes)
    most = max_stable_step(problem, graph, alg)
    assert dense_radius(problem, graph, replace(alg, step=most)) == pytest.approx(1.0, abs=1e-5)
    for part in (0.1, 0.5, 0.9, 0.999):
        assert dense_radius(problem, graph, replace(alg, step=part * most)) < 1.0


@pytest.mark.parametrize("E", [1, 3])
def test_the_limit_of_one_client_with_single_samples(E: int) -> None:
    """E(1 - eta h)^2 = 1 - 2 eta E h + eta^2 E h^2 < 1, whatever the number of steps: eta < 2 E h / E h^2."""
    u = np.array([0.3, 1.0, 2.0])
    h = 2 * u**2 + 2 * 0.1
    alg = GFL(scheme("none"), sampled=1, local_steps=E, batch=1)
    most = max_stable_step(problem_of([u.tolist()], rho=0.1), Graph.path(1), alg)
    assert most == pytest.approx(E * 2 * h.mean() / (h**2).mean(), rel=1e-6)
    batches = replace(alg, batch=2, replacement=False)  # half the variance, times (N - B)/(N - 1)
    more = max_stable_step(problem_of([u.tolist()], rho=0.1), Graph.path(1), batches)
    assert more == pytest.approx(E * 2 * h.mean() / (h.mean() ** 2 + h.var() / 2 * (3 - 2) / (3 - 1)), rel=1e-6)


def test_a_limit_that_the_search_steps_on() -> None:
    """One sample: the limit is 2/h, twice the 1/h at which the search begins."""
    alg = GFL(scheme("none"), sampled=1, local_steps=1, batch=1)
    for u in (1.0, 0.3, 1.7):
        assert max_stable_step(problem_of([[u]]), Graph.path(1), alg) == pytest.approx(1 / u**2, rel=1e-6)


def test_the_first_loss_of_stability_counts() -> None:
    """Two clients with 1 and 2 local steps: (1 - mu a) + (1 - mu b / 2)^2 leaves (-2, 2) and comes back."""
    a, b = 6.0, 2.0  # curvatures
    problem = problem_of([[math.sqrt(a / 2)], [math.sqrt(b / 2)]])
    alg = GFL(scheme("none"), sampled=2, local_steps=[1, 2], batch=1)
    first, again = sorted(np.roots([b**2 / 8, -(a + b) / 2, 2.0]).real)
    middle, beyond = (first + again) / 2, again * 1.01
    radii = [spectral_radius(problem, Graph.path(1), replace(alg, step=mu)) for mu in (middle, beyond)]
    assert radii[0] > 1.0 > radii[1]
    assert max_stable_step(problem, Graph.path(1), alg) == pytest.approx(first, rel=1e-6)


def test_a_gap_that_doubling_leaps_over_is_found() -> None:
    stable, unstable = stability._bracket(lambda step: step < 4.5 or 5.5 < step < 12.0, scale=1.0)
    assert stable < 4.5 <= unstable <= 1.1 * stable


def test_a_sure_step_is_the_limit_where_nothing_is_drawn() -> None:
    """Clients with one sample each: they expand beyond mu/E = 2/h, here the sharper one alone."""
    problem, alg = problem_of([[0.7]], [[1.3]], rho=0.1), GFL(scheme("local-only"), sampled=1, local_steps=3, batch=1)
    sure = sure_step(problem, alg, 0)
    assert sure == pytest.approx(3 * 2 / (2 * 1.3**2 + 0.2), rel=1e-12)
    assert max_stable_step(problem, Graph.path(2), alg) == pytest.approx(sure, rel=1e-6)


@pytest.mark.filterwarnings("ignore::confide.engines.run.StabilityWarning")  # one of the two steps is meant to diverge
@pytest.mark.parametrize("name", ["none", "local-only", "central"])
@pytest.mark.parametrize("rule", more(["lazy"], ["lazy", "metropolis"]))  # and `test_ten_problems.py`
def test_full_participation_and_full_batches_diverge_where_predicted(name: str, rule: str) -> None:
    rng = np.random.default_rng(2)
    units = [[(rng.standard_normal((6, 2)), rng.standard_normal(6)) for _ in range(2)] for _ in range(4)]
    problem, graph = Problem(Federation.from_clients(units), Linear(0.1)), Graph.ring(4, weights=rule)
    alg = GFL(scheme(name), sampled=2, local_steps=(1, 3), batch=6, replacement=False)
    most = max_stable_step(problem, graph, alg)
    curves = []
    for part in (0.97, 1.03):
        run = confide.simulate(problem, graph, replace(alg, step=part * most), rounds=400, evaluate_every=400)
        curves.append(run.metrics["individual_msd"][0])
    assert curves[0][-100:].max() <= curves[0][-200:-100].max() * (1 + 1e-6), "it settles"
    assert curves[0][-1] < 1e3
    assert curves[1][-1] > 1e3 * curves[1][200], "it grows without end"


PLAIN = [name for name, s in FAMILIES.items() if s.plain]


@pytest.mark.parametrize("name", more(["homomorphic", "central", "local-only"], PLAIN))  # three ways to mix
def test_the_limit_separates_steps_with_and_without_a_steady_state(ragged: Maker, name: str) -> None:
    s = scheme(name, 0.0 if name in ("none", "local-only") else 0.7)
    problem, graph, alg = ragged(), Graph.ring(4), replace(RAGGED, scheme=s)
    most = max_stable_step(problem, graph, alg)
    below, above = (replace(alg, step=part * most) for part in (0.995, 1.005))
    assert spectral_radius(problem, graph, below) < 1 < spectral_radius(problem, graph, above)
    assert predict(problem, graph, below).limit is not None
    assert predict(problem, graph, above).limit is None


def test_the_step_and_the_noise_of_the_algorithm_do_not_matter(ragged: Maker) -> None:
    limits = {
        max_stable_step(ragged(), Graph.ring(4), replace(RAGGED, step=step, scheme=scheme("homomorphic", sigma)))
        for step, sigma in ((0.1, 0.0), (100.0, 3.0))
    }
    assert len(limits) == 1


# ---- edges


def test_graphs_at_both_ends_of_mixing(ragged: Maker) -> None:
    """Swapping for ever (iota_2 = 1) and averaging at once (iota_2 = 0) have limits like any other."""
    alg = replace(RAGGED, scheme=scheme("none"))
    swap = Graph.from_matrix([[0.0, 1.0], [1.0, 0.0]], turn=True)
    for graph in (swap, Graph.complete(2, weights="uniform")):
        most = max_stable_step(ragged(P=2), graph, alg)
        assert spectral_radius(ragged(P=2), graph, replace(alg, step=most)) == pytest.approx(1.0, abs=1e-5)
    average = replace(alg, scheme=scheme("central"))
    complete = Graph.complete(4, weights="uniform")
    assert max_stable_step(ragged(), complete, alg) == pytest.approx(max_stable_step(ragged(), complete, average))


def test_no_step_is_stable_where_nothing_corrects() -> None:
    flat = Problem(Federation.from_clients([[(np.array([[1.0, 0.0]]), [1.0])], [(np.eye(2), np.ones(2))]]), Linear(0.0))
    alg = GFL(scheme("local-only"), sampled=1, local_steps=1, batch=1)
    with pytest.raises(InputError, match=r"problem\.rho = 0\.0: some direction has no curvature"):
        max_stable_step(flat, Graph.path(2), alg)
    assert max_stable_step(flat, Graph.path(2), replace(alg, scheme=scheme("none"))) > 0.1
    with pytest.raises(InputError, match=r"algorithm\.dropout"):
        max_stable_step(tiny(2), Graph.path(2), GFL(scheme("none"), sampled=1, local_steps=1, batch=1, dropout=1.0))
    alone = Problem(Federation.from_clients([[(np.array([[1.0, 1.0]]), [1.0])]]), Linear(0.0))
    with pytest.raises(InputError, match=r"problem\.rho = 0\.0: the optimum is not unique"):
        max_stable_step(alone, Graph.path(1), alg)


def test_clipping_is_refused(ragged: Maker) -> None:
    with pytest.raises(InputError, match=r"algorithm\.clip"):
        max_stable_step(ragged(), Graph.ring(4), replace(RAGGED, clip=Clip("update", 1.0)))


# ---- explanations


def test_an_explanation_names_the_step_and_the_limit(ragged: Maker) -> None:
    problem, graph = ragged(), Graph.ring(4)
    most = max_stable_step(problem, graph, RAGGED)
    assert explain(problem, graph, replace(RAGGED, step=0.99 * most)) is None
    sentence = explain(problem, graph, replace(RAGGED, step=1.5 * most))
    assert sentence is not None
    step, growth, limit = (float(x) for x in re.findall(r"\d+\.?\d*(?:e[+-]\d+)?", sentence))
    assert step == pytest.approx(1.5 * most, rel=1e-4)
    assert growth == pytest.approx(spectral_radius(problem, graph, replace(RAGGED, step=1.5 * most)), rel=1e-2)
    assert limit == pytest.approx(most, rel=1e-3)


def test_a_small_step_is_cleared_by_one_look_at_the_data(ragged: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, graph = ragged(), Graph.ring(4)
    sure = sure_step(problem, RAGGED, 0)
    assert 0.02 * max_stable_step(problem, graph, RAGGED) < sure < max_stable_step(problem, graph, RAGGED)
    one = moments(linearise(problem), graph, replace(RAGGED, step=sure), 0)
    assert np.abs(np.linalg.eigvalsh(one.Phi)).max() <= 1.0
    monkeypatch.delattr(stability, "moments")
    assert explain(problem, graph, replace(RAGGED, step=sure)) is None
    with pytest.raises(NameError):
        explain(problem, graph, replace(RAGGED, step=1.01 * sure))


def test_an_explanation_stays_cheap(ragged: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too large for the limit: a step that is sure. Too large for anything: nothing."""
    problem, graph, alg = ragged(), Graph.ring(4), replace(RAGGED, step=9.0)
    cost = stability.cost(problem, alg, 0, stability.RADIUS)
    monkeypatch.setattr(stability, "AFFORDABLE", 2 * cost)
    sentence = explain(problem, graph, alg)
    assert sentence is not None
    assert sentence.endswith(f"up to {sure_step(problem, alg, 0):.3g} certainly is")
    monkeypatch.setattr(stability, "AFFORDABLE", 0.5 * cost)
    assert explain(problem, graph, alg) is None
    monkeypatch.setattr(stability, "LARGE", 10)
    assert explain(problem, graph, alg) is None


def test_what_cannot_be_explained_is_left_alone(ragged: Maker) -> None:
    long = replace(RAGGED, step=50.0)
    assert explain(ragged(), Graph.ring(4), long) is not None
    assert explain(ragged(model="logistic"), Graph.ring(4), long) is None
    assert explain(ragged(), Graph.ring(4), replace(long, clip=Clip("update", 1.0))) is None
    assert explain(ragged(), [Graph.ring(4), Graph.path(4)], long) is None  # type: ignore[arg-type]
