"""The clean combinations after training: what they are, where they lead, and that a run releases and prices them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import confide
from confide.base.errors import InputError
from confide.engines.driver import simulate
from confide.graph.graph import Graph
from confide.plans.privacy import Privacy
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL
from confide.rounds.clipping import Clip
from confide.rounds.consensus import consensus
from confide.rounds.schemes import scheme
from confide.theory.prediction import after_consensus, predict

SMALL = {"step": 0.3, "sampled": 3, "local_steps": (1, 3), "batch": (1, 4)}


def test_it_is_a_power_of_the_weights(each_graph: Graph) -> None:
    models = np.random.default_rng(0).standard_normal((3, each_graph.P, 2))
    for t in (0, 1, 5):
        found = consensus(models, each_graph, t)
        np.testing.assert_allclose(found, np.linalg.matrix_power(each_graph.A, t) @ models, rtol=0, atol=1e-12)
        np.testing.assert_allclose(found.mean(axis=1), models.mean(axis=1), rtol=0, atol=1e-12)


def test_graphs_take_turns() -> None:
    graphs, models = Graph.path(4, weights="metropolis").matchings(), np.arange(4.0)[:, None]
    first, second = (g.A for g in graphs)
    np.testing.assert_allclose(consensus(models, graphs, 3), first @ second @ first @ models, rtol=0, atol=1e-12)


@pytest.mark.parametrize("given", [(-1, 4), (1.5, 4), (1, 5)])
def test_what_it_refuses(given: tuple[int, int]) -> None:
    with pytest.raises(InputError):
        consensus(np.zeros((4, 2)), Graph.ring(given[1]), given[0])


def test_every_server_comes_to_the_error_of_the_centroid() -> None:
    """The paper's regression at figure (a), exactly."""
    problem, graph, t = confide.problems.regression(), Graph.random(10, 0.4), (0, 1, 5, 10, 20, 40, 400)
    found = after_consensus(problem, graph, GFL(), t)
    limit = predict(problem, graph).limit
    assert found is not None
    assert limit is not None
    assert found[0].db == pytest.approx(limit.db, abs=1e-9)
    assert all(level.centroid.total == pytest.approx(limit.centroid.total) for level in found)
    levels = [level.individual.total for level in found]
    assert levels == sorted(levels, reverse=True)
    assert levels[-1] == pytest.approx(limit.centroid.total)
    assert [10 * np.log10(x) for x in levels[:6]] == pytest.approx([-15.2, -20.5, -31.4, -34.9, -36.4, -36.8], abs=0.06)
    assert after_consensus(problem, graph, GFL(step=100.0), t) is None


def test_runs_have_the_error_that_is_predicted(ragged: Callable[..., Problem]) -> None:
    problem, graph, alg = ragged(), Graph.ring(4), GFL(scheme("homomorphic", 0.3), **SMALL)
    run = simulate(problem, graph, alg, rounds=60, repeats=600, progress=False)
    found = after_consensus(problem, graph, alg, (0, 2))
    assert found is not None
    for t, level in zip((0, 2), found, strict=True):
        error = np.sum((consensus(run.models, graph, t) - problem.optimum) ** 2, axis=2).mean(axis=1)
        assert error.mean() == pytest.approx(level.individual.total, abs=5 * error.std() / np.sqrt(len(error)))


def test_a_run_releases_it_and_says_what_it_costs(ragged: Callable[..., Problem]) -> None:
    alg = GFL(scheme("homomorphic", 0.3), **SMALL, clip=Clip("example", 1.0))
    privacy = Privacy(level="unit", release="consensus:3", unprotected=True)
    run = simulate(ragged(), Graph.ring(4), alg, rounds=4, privacy=privacy, progress=False)
    assert run.released is not None
    assert run.privacy is not None
    assert np.array_equal(run.released, consensus(run.models, Graph.ring(4), 3))
    unprotected, accounts = (run.privacy["statement"][name] for name in ("unprotected", "accounts"))
    assert "a local model and the messages give the exact sum" in unprotected[0]
    assert all(a["leak"] for a in accounts)
