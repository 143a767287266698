"""Best steps and allowed noise against brute force, fastest weights against known optima and their own certificate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from confide.base.errors import InputError
from confide.graph.graph import Graph
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL
from confide.rounds.clipping import Clip
from confide.rounds.schemes import Scheme, scheme
from confide.theory.design import best_step, fastest_mixing, noise_allowed
from confide.theory.fastest import EDGES, _barrier, _bound
from confide.theory.prediction import predict
from confide.theory.stability import max_stable_step
from exploring import more

Maker = Callable[..., Problem]
GRAPH = Graph.ring(4)
ALG = GFL(scheme("homomorphic", 0.3), step=0.3, sampled=3, local_steps=(1, 3), batch=(1, 4), dropout=0.1)
RULES = ("lazy", "metropolis", "uniform", "constant")


def msd(problem: Problem, algorithm: GFL, which: str, rounds: int | None = None, graph: Graph = GRAPH) -> float:
    """By the predictions themselves: after `rounds`, or in the limit."""
    found = predict(problem, graph, algorithm, rounds=rounds)
    if rounds is not None:
        return float(getattr(found, f"{which}_msd")[-1])
    return math.inf if found.limit is None else float(getattr(found.limit, which).total)


# ---- weights


@pytest.mark.parametrize("spec", ["path:5", "star:6", "ring:6", "ring:7", "random:9:0.4", "grid:3x4", "complete:4"])
def test_no_constant_weight_is_better(spec: str) -> None:
    graph = Graph.parse(spec, seed=3)
    laplacian = np.diag(graph.degrees) - (graph.A > 0) + np.diag(np.diag(graph.A) > 0)

    def slowest(w: float) -> float:
        return float(np.abs(np.linalg.eigvalsh(np.eye(graph.P) - w * laplacian - 1.0 / graph.P)).max())

    best = float(graph.with_weights("constant").edge_weights[0])
    grid = np.linspace(0.0, 1.0 / graph.degrees.max(), 401)
    assert best <= 1.0 / graph.degrees.max() + 1e-15
    assert slowest(best) <= min(map(slowest, grid)) + 1e-12
    assert slowest(best) == pytest.approx(graph.with_weights("constant").iota_2, abs=1e-12)


@pytest.mark.parametrize(
    ("spec", "known"),
    [
        *[(f"path:{P}", math.cos(math.pi / P)) for P in (2, 3, 4, 9, 30)],  # Boyd, Diaconis, Sun, Xiao (2006)
        *[(f"complete:{P}", 0.0) for P in (3, 8)],
        *[(f"star:{P}", 1.0 - 1.0 / (P - 1)) for P in (3, 6, 12)],
        ("ring:4", 1.0 / 3.0),
        ("ring:6", 0.6),
        ("hypercube:3", 0.5),  # (l_P - l_2)/(l_P + l_2) = (6 - 2)/(6 + 2), which asks for w = 1/4
        ("hypercube:4", 0.6),
    ],
)
def test_the_fastest_weights_where_they_are_known(spec: str, known: float) -> None:
    found = fastest_mixing(Graph.parse(spec))
    assert found.graph.iota_2 == pytest.approx(known, abs=1e-9)
    assert known - 1e-4 <= found.bound <= known + 1e-9


SPECS = ["random:10:0.4", "grid:4x5", "regular:40:3", "small-world:50:4:0.1"]
LARGER = ["random:30:0.2", "small-world:100:4:0.05"]  # the same search, for seconds


@pytest.mark.parametrize("spec", more(SPECS, SPECS + LARGER))
def test_the_fastest_weights_are_certified_and_beat_every_rule(spec: str) -> None:
    graph = Graph.parse(spec, seed=0)
    found = fastest_mixing(graph)
    assert found.graph.iota_2 <= min(graph.with_weights(rule).iota_2 for rule in RULES)
    assert found.bound <= found.graph.iota_2 <= found.bound + 1e-4
    assert found.graph.iota_2 < graph.with_weights("constant").iota_2 - 0.001
    assert np.array_equal(found.graph.edges, graph.edges)
    A = found.graph.A
    assert found.graph.weights == "given"
    assert (A >= 0).all()
    assert np.array_equal(A, A.T)
    assert A.sum(axis=0) == pytest.approx(np.ones(graph.P), abs=1e-9)


def test_the_certificate_is_below_all_weights_whatever_it_is_made_from() -> None:
    """Any Y proves something true: never more than the best of many."""
    rng, graph = np.random.default_rng(0), Graph.random(7, 0.5)
    best = fastest_mixing(graph).graph.iota_2
    for _ in range(50):
        Y = rng.standard_normal((7, 7))
        assert 0.0 <= _bound(graph, Y + Y.T) <= best + 1e-9


@pytest.mark.parametrize("spec", ["ring:6", "path:5", "random:8:0.5", "grid:3x3"])
def test_the_certificate_of_the_best_weights_is_no_more_than_they_reach(spec: str) -> None:
    graph = Graph.parse(spec, seed=1)
    _, Y = _barrier(graph)
    best = fastest_mixing(graph).graph.iota_2
    assert best - 1e-4 <= _bound(graph, Y) <= best + 1e-9


def test_one_server_and_too_many_edges() -> None:
    alone = Graph.path(1)
    assert fastest_mixing(alone) == (alone, 0.0)
    many = Graph.from_edges(80, [(i, j) for i in range(80) for j in range(i) if (i, j) != (1, 0)])
    assert len(many.edges) > EDGES
    with pytest.raises(InputError, match=f"up to {EDGES} edges"):
        fastest_mixing(many)


# ---- the step


WHICH = {"homomorphic": ("centroid", "individual"), "shared": ("centroid",), "none": ("individual",)}
TRIED = more(13, 25)  # steps of the brute force; their errors have one broad minimum


@pytest.mark.parametrize("name", WHICH)
def test_no_step_is_better_after_so_many_rounds(ragged: Maker, name: str) -> None:
    problem, alg = ragged(), replace(ALG, scheme=scheme(name, 0.0 if name == "none" else 0.3))
    most = max_stable_step(problem, GRAPH, alg)
    steps = most * np.geomspace(1e-4, 0.98, TRIED)
    tried = [predict(problem, GRAPH, replace(alg, step=float(step)), rounds=150) for step in steps]
    for which, rounds in product(WHICH[name], (1, 12, 150)):
        best = best_step(problem, GRAPH, alg, which=which, rounds=rounds, most=most)
        assert best.rounds == rounds
        assert 0.0 < best.step < most
        # the search takes the limit for a transient that has come within a millionth of it
        assert best.msd == pytest.approx(msd(problem, replace(alg, step=best.step), which, rounds), rel=1e-4)
        for step, found in zip(steps, tried, strict=True):
            assert best.msd <= 1.005 * getattr(found, f"{which}_msd")[rounds - 1], (which, rounds, step)


def test_the_search_finds_the_largest_step_itself_and_does_not_care_for_the_present_one(ragged: Maker) -> None:
    a = best_step(ragged(), GRAPH, ALG, rounds=12)
    b = best_step(ragged(), GRAPH, replace(ALG, step=50.0), rounds=12, most=max_stable_step(ragged(), GRAPH, ALG))
    assert a == b


@pytest.mark.parametrize(
    ("name", "which"), [("shared", "centroid"), ("shared", "individual"), ("per-link", "centroid")]
)
def test_the_least_limit(ragged: Maker, name: str, which: str) -> None:
    problem, alg = ragged(), replace(ALG, scheme=scheme(name, 0.3))
    most = max_stable_step(problem, GRAPH, alg)
    best = best_step(problem, GRAPH, alg, which=which, most=most)
    assert best.rounds is None
    assert best.msd == pytest.approx(msd(problem, replace(alg, step=best.step), which), rel=1e-9)
    assert best.db == pytest.approx(10.0 * math.log10(best.msd))
    for step in most * np.geomspace(1e-3, 0.98, TRIED):
        assert best.msd <= 1.005 * msd(problem, replace(alg, step=float(step)), which), step


@pytest.mark.parametrize(("name", "sigma"), [("homomorphic", 0.3), ("none", 0.0)])
def test_a_limit_that_falls_to_a_step_of_zero_has_no_best_step(ragged: Maker, name: str, sigma: float) -> None:
    with pytest.raises(InputError, match=r"falls with the step down to 0; give rounds or target_db"):
        best_step(ragged(), GRAPH, replace(ALG, scheme=scheme(name, sigma)))


@pytest.mark.parametrize("target_db", [-12.0, -25.0])
def test_no_step_reaches_a_target_sooner(ragged: Maker, target_db: float) -> None:
    problem, target = ragged(), 10.0 ** (target_db / 10.0)
    most = max_stable_step(problem, GRAPH, ALG)
    best = best_step(problem, GRAPH, ALG, target_db=target_db, most=most)
    assert best.rounds is not None
    at_best = predict(problem, GRAPH, replace(ALG, step=best.step), rounds=best.rounds + 1)
    assert at_best.centroid_msd[best.rounds - 1] <= target * (1.0 + 1e-9)
    assert at_best.limit is not None
    assert at_best.limit.centroid.total <= target
    for step in most * np.geomspace(1e-3, 0.98, TRIED):
        found = predict(problem, GRAPH, replace(ALG, step=float(step)), rounds=best.rounds)
        stays = found.limit is not None and found.limit.centroid.total <= target
        assert not (stays and (found.centroid_msd[: best.rounds - 1] <= target).any()), step


def test_a_target_that_no_step_reaches(ragged: Maker) -> None:
    shared = replace(ALG, scheme=scheme("shared", 0.3))
    least = best_step(ragged(), GRAPH, shared)
    assert least.db is not None
    with pytest.raises(InputError, match=rf"is not reached; the least that any step leaves is {least.db:.2f} dB"):
        best_step(ragged(), GRAPH, shared, target_db=least.db - 0.1)
    assert best_step(ragged(), GRAPH, shared, target_db=least.db + 0.001).step == pytest.approx(least.step, rel=0.05)


def test_a_linearised_loss_has_a_best_step_too(ragged: Maker) -> None:
    problem = ragged(model="logistic")
    best = best_step(problem, GRAPH, ALG, rounds=20)
    assert best.msd == pytest.approx(msd(problem, replace(ALG, step=best.step), "centroid", 20), rel=1e-4)


def test_refusals_of_the_step(ragged: Maker) -> None:
    with pytest.raises(InputError, match="not both"):
        best_step(ragged(), GRAPH, ALG, rounds=3, target_db=-3.0)
    with pytest.raises(InputError, match="which"):
        best_step(ragged(), GRAPH, ALG, which="mean", rounds=3)
    with pytest.raises(InputError, match="rounds"):
        best_step(ragged(), GRAPH, ALG, rounds=0)
    with pytest.raises(InputError, match="target_db"):
        best_step(ragged(), GRAPH, ALG, target_db=math.nan)
    with pytest.raises(InputError, match="clip"):
        best_step(ragged(), GRAPH, replace(ALG, clip=Clip("update", 1.0)), rounds=3)


# ---- the noise


@pytest.mark.parametrize("which", ["centroid", "individual"])
def test_the_noise_allowed_ends_at_the_target(ragged: Maker, each_scheme: Scheme, which: str) -> None:
    alg = replace(ALG, scheme=each_scheme)
    quiet = msd(ragged(), replace(alg, scheme=each_scheme.resized(sigma=0.0)), which)
    target_db = 10.0 * math.log10(5.0 * quiet)
    sigma = noise_allowed(ragged(), GRAPH, alg, target_db, which=which)
    if each_scheme.name in ("none", "local-only"):
        assert sigma == math.inf
        return
    noisy = replace(alg, scheme=each_scheme.resized(sigma=sigma))
    assert 10.0 * math.log10(msd(ragged(), noisy, which)) == pytest.approx(target_db, abs=1e-6)


def test_the_noise_allowed_where_the_loss_is_not_quadratic(ragged: Maker) -> None:
    problem = ragged(model="logistic")
    quiet = msd(problem, replace(ALG, scheme=scheme("none")), "centroid")
    target_db = 10.0 * math.log10(3.0 * quiet)
    sigma = noise_allowed(problem, GRAPH, ALG, target_db)
    noisy = replace(ALG, scheme=ALG.scheme.resized(sigma=sigma))
    assert 10.0 * math.log10(msd(problem, noisy, "centroid")) == pytest.approx(target_db, abs=1e-6)


def test_noise_that_never_enters(ragged: Maker) -> None:
    """One server alone sends nothing, so its homomorphic noise is nowhere."""
    assert noise_allowed(ragged(P=1), Graph.path(1), ALG, 0.0) == math.inf


def test_the_noise_is_refused_where_the_rest_is_too_much(ragged: Maker) -> None:
    quiet_db = 10.0 * math.log10(msd(ragged(), replace(ALG, scheme=scheme("none")), "centroid"))
    with pytest.raises(InputError, match=rf"the error is {quiet_db:.2f} dB without this noise"):
        noise_allowed(ragged(), GRAPH, ALG, quiet_db - 0.1)
    assert noise_allowed(ragged(), GRAPH, ALG, quiet_db + 1e-6) < 0.01
    with pytest.raises(InputError, match="not mean-square stable"):
        noise_allowed(ragged(), GRAPH, replace(ALG, step=30.0), 0.0)
