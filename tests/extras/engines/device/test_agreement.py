"""The engines on devices are the reference, draw for draw, in doubles on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

import confide
from confide.base.errors import InputError
from confide.engines.run import Run
from confide.graph.graph import Graph
from confide.problems.federation import Federation
from confide.problems.models import Linear, Softmax
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL, Failures
from confide.rounds.clipping import Clip
from confide.rounds.schemes import Exchange, Noise, Place, Scheme, scheme
from own_schemes import CORRELATED

Maker = Callable[..., Problem]
GRAPH = Graph.random(4, 0.6, seed=1)
SMALL = {"step": 0.3, "sampled": 3, "local_steps": (1, 3), "batch": (1, 4)}
FIRST, SECOND = GRAPH.edges[0].tolist(), GRAPH.edges[1].tolist()[::-1]
BROKEN = Failures(link=0.3, unit=0.2, links=((1, *FIRST), (3, *SECOND)), units=((2, 3), (2, 0)))


@pytest.fixture(params=["jax", "torch"])
def engine(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(request.param)
    return str(request.param)


def agree(engine: str, problem: Problem, graph: Graph | Sequence[Graph], alg: GFL, rounds: int = 6) -> Run:
    """All metrics and models of both engines to 1e-9; returns the device's run."""
    found, expected = (
        confide.simulate(
            problem, graph, alg, rounds=rounds, repeats=2, seed=3, evaluate_every=4, engine=name, device=device
        )
        for name, device in ((engine, "cpu"), ("reference", None))
    )
    assert found.inputs["engine"] == engine
    assert found.metrics.keys() == expected.metrics.keys()
    for name, values in found.metrics.items():
        np.testing.assert_allclose(values, expected.metrics[name], rtol=1e-9, atol=1e-9, err_msg=name)
    np.testing.assert_allclose(found.models, expected.models, rtol=1e-9, atol=1e-9)
    assert np.abs(found.models).max() > 1e-3
    return found


def test_every_scheme(ragged: Maker, each_scheme: Scheme, engine: str) -> None:
    agree(engine, ragged(M=3), GRAPH, GFL(replace(each_scheme, law="gaussian"), **SMALL))


def test_every_scheme_with_failures_dropouts_client_noise_and_two_graphs(
    ragged: Maker, each_scheme: Scheme, engine: str
) -> None:
    graphs = [GRAPH, Graph.path(4, weights="metropolis")]
    alg = GFL(each_scheme.resized(sigma_client=0.4), **SMALL, dropout=0.4)
    if each_scheme.exchange != Exchange.AVERAGE:
        alg = replace(alg, failures=replace(BROKEN, links=(*BROKEN.links, (2, 1, 0), (2, 2, 3))))
    run = agree(engine, ragged(), graphs, alg, rounds=10)
    assert run.metrics["participants"].min() < 12


@pytest.mark.parametrize(
    "failures",
    [Failures(link=0.5), Failures(unit=0.5), replace(BROKEN, link=0.0, unit=0.0), Failures(link=1.0)],
    ids=str,
)
@pytest.mark.parametrize("name", ["homomorphic", "per-link"])
def test_each_kind_of_failure(ragged: Maker, name: str, failures: Failures, engine: str) -> None:
    agree(engine, ragged(), GRAPH, GFL(scheme(name, 0.5), **SMALL, failures=failures))


CLIPS = [None, *(Clip(k, 0.4, n) for k in ("example", "update") for n in ("l1", "l2"))]


@pytest.mark.parametrize(("model", "replacement"), [("linear", True), ("logistic", False)])
@pytest.mark.parametrize("clip", CLIPS, ids=str)
def test_every_local_step(ragged: Maker, model: str, replacement: bool, clip: Clip | None, engine: str) -> None:
    alg = GFL(scheme("homomorphic", 0.3), **SMALL, replacement=replacement, clip=clip)
    agree(engine, ragged(M=3, model=model), GRAPH, alg)


@pytest.mark.parametrize("clip", CLIPS[:3], ids=str)
def test_softmax(clip: Clip | None, engine: str) -> None:
    rng = np.random.default_rng(1)
    units = [[(rng.standard_normal((n, 3)), rng.integers(0, 4, n).astype(float)) for n in (5, 4, 7)] for _ in range(4)]
    problem = Problem(Federation.from_clients(units), Softmax(0.1, classes=4))
    agree(engine, problem, GRAPH, GFL(scheme("shared", 0.1), **SMALL, clip=clip))


def test_matchings_and_mixtures_of_links_that_the_compiled_engine_does_not_run(ragged: Maker, engine: str) -> None:
    agree(engine, ragged(), GRAPH.matchings(), GFL(scheme("shared", 0.5), **SMALL))
    uneven = Scheme("uneven", "gaussian", (Noise(Place.LINK, 0.7), Noise(Place.OWN, 0.3)), carry=0.2)
    agree(engine, ragged(), GRAPH, GFL(uneven, **SMALL, failures=BROKEN))


@pytest.mark.filterwarnings("ignore::confide.engines.run.NoNoiseWarning")
@pytest.mark.parametrize("name", ["pairwise", "per-link", "shared"])
def test_one_unit_alone(ragged: Maker, name: str, engine: str) -> None:
    sizes = {"sigma_pair": 0.5} if name == "pairwise" else {}
    agree(engine, ragged(P=1), Graph.path(1), GFL(scheme(name, 0.3, **sizes), **SMALL, failures=Failures(unit=0.2)))


def test_settings_given_for_every_client_and_more_clients_sampled_than_are_unrolled(engine: str) -> None:
    rng = np.random.default_rng(0)
    clients = [(rng.standard_normal((1 + k % 5, 2)), rng.standard_normal(1 + k % 5)) for k in range(50)]
    f = Federation.from_clients([clients, clients])
    alg = GFL(scheme("none"), 0.3, 40, local_steps=1 + np.arange(100) % 4, batch=f.N, replacement=False)
    agree(engine, Problem(f, Linear(0.1)), Graph.path(2), alg)


def test_without_a_known_optimum(engine: str) -> None:
    X = np.outer(np.arange(1.0, 5.0), [1.0, 2.0, 3.0])
    problem = Problem(Federation.from_clients([[(X, X[:, 0])], [(X, X[:, 1])]]), Linear(0.0))
    run = agree(engine, problem, Graph.path(2), GFL(scheme("none"), 0.01, 1, local_steps=1, batch=2))
    assert np.isnan(run.metrics["centroid_msd"]).all()


def test_what_it_does_not_run_is_refused_in_words(ragged: Maker, engine: str) -> None:
    def refused(alg: GFL, what: str) -> None:
        with pytest.raises(InputError, match=what):
            confide.simulate(ragged(), GRAPH, alg, rounds=1, engine=engine)

    refused(GFL(CORRELATED, **SMALL), "noise without memory")
    refused(GFL(scheme("none"), **SMALL, arithmetic="fixed", clip=Clip("update", 1.0)), "in float")
    with pytest.raises(InputError, match="finds no GPU here"):
        confide.simulate(ragged(), GRAPH, GFL(scheme("none"), **SMALL), rounds=1, engine=engine, device="gpu")
    with pytest.raises(InputError, match="runs on the CPU"):
        confide.simulate(ragged(), GRAPH, GFL(scheme("none"), **SMALL), rounds=1, engine="reference", device="gpu")
