"""Every way to train a network gives the same rounds, and a run says which one it took."""

from __future__ import annotations

import numpy as np
import pytest

from confide.engines.device.engine import DeviceEngine
from confide.engines.driver import simulate
from confide.engines.recording import Recording
from confide.graph.graph import Graph
from confide.problems.federation import Federation
from confide.problems.networks.named import built_in
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL
from confide.rounds.clipping import Clip
from confide.rounds.schemes import scheme

GRAPH = Graph.ring(3)


@pytest.fixture(scope="module", params=["jax", "torch"])
def problem(request: pytest.FixtureRequest) -> Problem:
    pytest.importorskip(request.param)
    rng = np.random.default_rng(0)
    X, d = rng.standard_normal((3 * 4 * 6, 5)), rng.integers(0, 3, 3 * 4 * 6).astype(float)
    model = built_in("mlp", features=5, classes=3, hidden=[4], framework=request.param)
    return Problem(Federation(X, d, np.arange(13) * 6, np.arange(4) * 4), model, private=False)


def rounds(problem: Problem, clip: Clip | None, way: str) -> np.ndarray:
    algorithm = GFL(scheme("homomorphic", sigma=0.01), step=0.1, sampled=2, local_steps=(1, 3), batch=2, clip=clip)
    framework = problem.model.framework  # type: ignore[attr-defined]
    engine = DeviceEngine(problem, [GRAPH], algorithm, 2, 0, framework=framework, device="cpu", way=way)
    held = engine.states(2)[0]
    engine.advance(0, held, 1, 2, Recording.empty(2, 2, problem.M, 2))
    return engine.models(held)


@pytest.mark.parametrize("clip", [None, Clip("update", 0.05)], ids=str)
def test_ways_agree(problem: Problem, clip: Clip | None) -> None:
    want = rounds(problem, clip, "direct")
    for way in ("Gram form", "Gram form, unit by unit", "direct, unit by unit", "direct, client by client"):
        np.testing.assert_allclose(rounds(problem, clip, way), want, rtol=1e-4, atol=1e-5)


def test_a_run_says_how_it_trained(problem: Problem) -> None:
    framework = problem.model.framework  # type: ignore[attr-defined]
    run = simulate(problem, GRAPH, GFL(step=0.1, sampled=2, batch=2), rounds=1, engine=framework, device="cpu")
    assert any(note.startswith("training: ") for note in run.notes)
