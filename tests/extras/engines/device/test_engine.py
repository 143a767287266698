"""Caps, secrets, networks, divergences, chunks and repetitions of the engines on devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import confide
import same_network
from confide.base.errors import InputError
from confide.engines.device.engine import DeviceEngine
from confide.engines.plain import PlainEngine
from confide.engines.recording import Recording
from confide.engines.run import DivergenceWarning, StabilityWarning
from confide.graph.graph import Graph
from confide.problems.federation import Federation
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL, Failures
from confide.rounds.clipping import Clip
from confide.rounds.schemes import scheme
from confide.secure.secret import RunSecret

Maker = Callable[..., Problem]
GRAPH = Graph.random(4, 0.6, seed=1)
SMALL: dict[str, Any] = {"step": 0.3, "sampled": 3, "local_steps": (1, 3), "batch": (1, 4)}
CHUNKS = [(1, 1), (2, 3), (4, 9)]


@pytest.fixture(params=["jax", "torch"])
def framework(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(request.param)
    return str(request.param)


def played(
    kind: Callable[..., Any], problem: Problem, alg: GFL, repeats: int = 1, rounds: int = 9, **more: Any
) -> tuple[np.ndarray, Recording]:
    """Models and measures after the chunks, (repeats, P, M)."""
    engine = kind(problem, [GRAPH], alg, rounds, 3, **more)
    out = Recording.empty(repeats, rounds, problem.M, 4)
    states = engine.states(repeats)
    for first, last in CHUNKS:
        for n, w in enumerate(states):
            assert engine.advance(n, w, first, last, out) is None
    return np.concatenate([engine.models(w).reshape(-1, GRAPH.P, problem.M) for w in states]), out


def agree(framework: str, problem: Problem, alg: GFL, tolerance: float = 1e-9, **more: Any) -> None:
    found = played(DeviceEngine, problem, alg, framework=framework, device="cpu", **more)
    expected = played(PlainEngine, problem, alg, **more)
    np.testing.assert_allclose(found[0], expected[0], rtol=tolerance, atol=tolerance)
    for a, b in zip(found[1][:-1], expected[1][:-1], strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("clip", [None, Clip("example", 0.4), Clip("update", 0.4)], ids=str)
def test_who_may_give_no_more_data(ragged: Maker, clip: Clip | None, framework: str) -> None:
    """Drawn counts, whatever becomes of it; what a regulariser takes away stays where no clip bounds it."""
    alg = GFL(scheme("shared", 0.3), **SMALL, clip=clip, dropout=0.3, failures=Failures(unit=0.2))
    agree(framework, ragged(), alg, cap=2)


@pytest.mark.parametrize("draws", [True, False])
@pytest.mark.parametrize("law", ["laplace", "gaussian"])
@pytest.mark.parametrize("name", ["pairwise", "per-link", "central"])
def test_a_secret_gives_the_same_words(ragged: Maker, name: str, law: str, draws: bool, framework: str) -> None:
    more = {"sigma_pair": 0.2} if name == "pairwise" else {}
    failures = Failures() if name == "central" else Failures(unit=0.2, link=0.3)
    s = scheme(name, 0.3, noise=law, sigma_client=0.1, **more)
    alg = GFL(s, **SMALL, dropout=0.3, failures=failures)
    agree(framework, ragged(M=11), alg, secret=RunSecret(draws), cap=3 if draws else None)


def classification() -> Federation:
    rng = np.random.default_rng(4)
    units = []
    for _ in range(GRAPH.P):
        sizes = rng.integers(4, 9, 5)
        units.append(
            [
                (rng.standard_normal((n, same_network.F)), rng.integers(0, same_network.C, n).astype(float))
                for n in sizes
            ]
        )
    return Federation.from_clients(units)


class Started(same_network.ByHand):
    """The plain MLP, from the network's weights."""

    def __init__(self, rho: float, w: Callable[[], np.ndarray]) -> None:
        super().__init__(rho)
        self.start = w


@pytest.mark.parametrize("clip", [None, Clip("example", 0.2), Clip("update", 0.2, "l1")], ids=str)
def test_a_network_is_the_plain_mlp(clip: Clip | None, framework: str) -> None:
    network = getattr(same_network, f"in_{framework}")(rho=0.02)
    alg = GFL(scheme("homomorphic", 0.05), **SMALL, clip=clip)
    start = network.start()
    found = played(DeviceEngine, Problem(classification(), network), alg, 2, framework=framework, device="cpu")
    expected = played(PlainEngine, Problem(classification(), Started(0.02, lambda: start.copy())), alg, 2)
    np.testing.assert_allclose(found[0], expected[0], rtol=2e-5, atol=2e-5)
    assert np.abs(found[0] - start).max() > 0.05


def test_auto_takes_the_framework_of_a_network(framework: str) -> None:
    network = getattr(same_network, f"in_{framework}")()
    problem = Problem(classification(), network)
    assert confide.simulate(problem, GRAPH, GFL(**SMALL), rounds=2).inputs["engine"] == framework
    for other in {"compiled", "jax", "torch"} - {framework}:
        with pytest.raises(InputError, match=f"^engine = '{other}': .*; use '{framework}'$"):
            confide.simulate(problem, GRAPH, GFL(**SMALL), rounds=2, engine=other)


def test_a_divergence_is_reported_and_the_rounds_before_it_are_kept(ragged: Maker, framework: str) -> None:
    alg = GFL(scheme("none"), step=80.0, sampled=3, local_steps=2, batch=2)
    runs = []
    for engine in (framework, "reference"):
        with pytest.warns(DivergenceWarning), pytest.warns(StabilityWarning):
            runs.append(confide.simulate(ragged(), GRAPH, alg, rounds=60, repeats=2, engine=engine))
    assert runs[0].diverged == runs[1].diverged
    assert 1 < runs[0].rounds < 60
    np.testing.assert_allclose(runs[0].models, runs[1].models, rtol=1e-6)


def test_the_same_bits_however_the_rounds_are_cut(ragged: Maker, framework: str) -> None:
    alg = GFL(scheme("shared", 0.3), **SMALL, dropout=0.2)
    engine = DeviceEngine(ragged(), [GRAPH], alg, 9, 3, framework=framework, device="cpu")
    out = Recording.empty(2, 9, 2, 100)
    (w,) = engine.states(2)
    engine.advance(0, w, 1, 9, out)
    cut, pieces = played(DeviceEngine, ragged(), alg, 2, framework=framework, device="cpu")
    assert np.array_equal(engine.models(w), cut)
    assert np.array_equal(out.individual_msd, pieces.individual_msd)


@pytest.mark.parametrize("kind", ["linear", "network"])
def test_the_same_bits_however_many_repetitions_run_together(ragged: Maker, kind: str, framework: str) -> None:
    network = getattr(same_network, f"in_{framework}")()
    problem = ragged(M=3) if kind == "linear" else Problem(classification(), network)
    alg = GFL(scheme("shared", 0.3, sigma_client=0.1), **SMALL, failures=Failures(link=0.2))
    one, five = (played(DeviceEngine, problem, alg, n, framework=framework, device="cpu")[0] for n in (1, 5))
    assert np.array_equal(one[0], five[0])


def test_whoever_runs_out_of_memory_is_told_what_to_lower(ragged: Maker, framework: str) -> None:
    engine = DeviceEngine(ragged(), [GRAPH], GFL(scheme("none"), **SMALL), 9, 3, framework=framework, device="cpu")
    (w,) = engine.states(2)
    engine.b.to_numpy = lambda _: engine.b.zeros((2**56,))  # an allocation that no machine grants
    with pytest.raises(InputError, match=r"updates of 2 repetitions of 4 units with 3 sampled.*lower repeats"):
        engine.advance(0, w, 1, 1, Recording.empty(2, 9, 2, 4))


@pytest.mark.parametrize("of", ["feature", "label"])
def test_numbers_beyond_single_precision_are_refused(of: str, framework: str) -> None:
    rows = [[(np.ones((3, same_network.F)), np.zeros(3)) for _ in range(3)] for _ in range(4)]
    X, d = rows[1][0]
    (X if of == "feature" else d)[1] = 1e39
    network = (same_network.in_jax if framework == "jax" else same_network.in_torch)(classes=None)
    problem = replace(confide.problems.regression(4, 3, 3), federation=Federation.from_clients(rows))
    object.__setattr__(problem, "model", network)  # which tries itself on its first rows alone
    with pytest.raises(InputError, match="sample 10 holds a number beyond single precision"):
        DeviceEngine(problem, [GRAPH], GFL(sampled=3), 9, 3, framework=framework, device="cpu")
