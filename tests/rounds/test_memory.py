"""Noise with memory, and noise that depends on the receiver: the reference round runs what `wiring` says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from confide.base.errors import InputError
from confide.base.randomness import Purpose
from confide.engines.driver import choose_engine, simulate
from confide.engines.plain import PlainEngine
from confide.engines.recording import Recording
from confide.graph.graph import Graph
from confide.plans.privacy import Budget
from confide.privacy.calibrate import calibrate
from confide.privacy.planner import noise_variance
from confide.privacy.sensitivity import Sensitivity
from confide.problems.federation import Federation
from confide.problems.models import Linear
from confide.problems.problem import Problem
from confide.rounds import schemes
from confide.rounds.algorithm import GFL
from confide.rounds.arithmetic import FixedArithmetic, FloatArithmetic, check_range
from confide.rounds.clipping import Clip
from confide.rounds.combine import Sender
from confide.rounds.local import LocalTask
from confide.rounds.reference import Reference, prepare
from confide.rounds.schemes import Exchange, Noise, Place, Scheme, scheme
from confide.theory.prediction import predict
from confide.theory.stability import max_stable_step
from own_schemes import CANCELS, CANCELS_EVERYWHERE, CORRELATED, OWN

PURPOSE = {Purpose.SERVER_NOISE: Place.SERVER, Purpose.PAIR_NOISE: Place.EDGE, Purpose.AROUND_NOISE: Place.AROUND}
SMALL = {"step": 0.3, "sampled": 3, "local_steps": (1, 3), "batch": (1, 4)}
T = 5
each_own = pytest.mark.parametrize("s", OWN, ids=lambda s: s.name)


def nothing(w: np.ndarray, X: np.ndarray, d: np.ndarray, task: LocalTask) -> np.ndarray:
    return np.zeros_like(w)


def impulses(s: Scheme, graphs: list[Graph]) -> tuple[Reference, list[dict]]:
    """A run whose models tell how much of every draw is in them: draw n of round j is unit vector n of block j."""
    named = [{draw: n for n, draw in enumerate(s.wiring(g).draws)} for g in graphs]
    widest = max(map(len, named))
    one = [(np.zeros((1, T * widest)), [0.0])]
    problem = Problem(Federation.from_clients([one] * graphs[0].P), Linear(0.0))

    def noise(purpose: Purpose, ids: tuple[int, ...], law: str, sigma: float, size: int) -> np.ndarray:
        i, *who = ids
        place = PURPOSE.get(purpose, Place.OWN if len(set(who)) < len(who) else Place.LINK)
        found = np.zeros(size)
        found[(i - 1) * widest + named[(i - 1) % len(named)][place, tuple(who)]] = sigma
        return found

    alg = GFL(s, step=0.1, sampled=1, local_steps=1, batch=1, local=nothing)
    return prepare(problem, graphs, alg, T, 0, noise)(0), [{"names": list(x), "widest": widest} for x in named]


@each_own
@pytest.mark.parametrize("shape", ["complete:4", "star:4", "ring:4 and star:4"])
def test_the_round_is_the_wiring(s: Scheme, shape: str) -> None:
    graphs = [Graph.parse(one, weights="metropolis") for one in shape.split(" and ")]
    reference, layout = impulses(s, graphs)
    widest, P = layout[0]["widest"], graphs[0].P
    w, past = reference.start(np.zeros((P, T * widest))), None
    state = np.zeros((P, T * widest))
    for i in range(1, T + 1):
        g, m = (i - 1) % len(graphs), s.wiring(graphs[(i - 1) % len(graphs)])
        sent, after = m.C @ state, m.W @ state
        for lag in range(min(len(m.N), i)):
            before = layout[(i - 1 - lag) % len(graphs)]["names"]
            for n, draw in enumerate(layout[g]["names"]):
                if draw in before:  # a link that was not there has no noise of that round
                    column = (i - 1 - lag) * widest + before.index(draw)
                    sent[:, column] += m.N[lag][:, n]
                    after[:, column] += m.R[lag][:, n]
        done = reference.round(i, w, past)
        w, past, state = done.w, done.drawn, after
        np.testing.assert_allclose(done.sent, sent, rtol=0, atol=1e-12)
        np.testing.assert_allclose(done.w, after, rtol=0, atol=1e-12)
    assert np.abs(state).max() > 0.0 or s in (CANCELS, CANCELS_EVERYWHERE)


def test_noise_that_cancels_at_each_receiver_is_in_the_messages_alone(ragged: Callable[..., Problem]) -> None:
    graph = Graph.complete(4, weights="metropolis")
    loud, quiet = (prepare(ragged(), [graph], GFL(s, **SMALL), 3, 0)(0) for s in (CANCELS, scheme("none")))
    w = loud.start(np.zeros((4, 2)))
    for i in range(1, 4):
        noisy, clean = loud.round(i, w), quiet.round(i, w)
        sender, receiver = schemes.links(graph)
        assert np.abs(noisy.sent - clean.psi[sender]).min() > 1e-6
        for p in range(4):
            to_p = noisy.sent[receiver == p] - clean.psi[sender[receiver == p]]
            np.testing.assert_allclose(graph.A[p, sender[receiver == p]] @ to_p, 0.0, atol=1e-14)
        np.testing.assert_allclose(noisy.w, clean.w, rtol=0, atol=1e-14)
        w = clean.w


# ---- engines


@each_own
def test_auto_takes_the_reference_and_compiled_says_why_not(ragged: Callable[..., Problem], s: Scheme) -> None:
    alg = GFL(s, **SMALL)
    assert choose_engine("auto", ragged(), alg) == "reference"
    with pytest.raises(InputError, match="it draws"):
        choose_engine("compiled", ragged(), alg)


def test_rows_of_a_name_of_ones_own_are_compiled_too(ragged: Callable[..., Problem]) -> None:
    mine = Scheme("mine", "gaussian", (Noise(Place.SERVER, 0.3),), carry=0.25)
    assert choose_engine("auto", ragged(), GFL(mine, **SMALL)) == "compiled"
    runs = [simulate(ragged(), Graph.ring(4), GFL(mine, **SMALL), rounds=5, engine=e) for e in ("auto", "reference")]
    np.testing.assert_allclose(runs[0].models, runs[1].models, rtol=1e-9)
    same = simulate(ragged(), Graph.ring(4), GFL(scheme("partial:0.25", 0.3, noise="gaussian"), **SMALL), rounds=5)
    assert np.array_equal(runs[0].models, same.models)


def test_a_run_that_goes_back_takes_its_draws_back(ragged: Callable[..., Problem]) -> None:
    """Chunk by chunk, a step back, another engine that begins in the middle: always the same bits."""
    alg, out = GFL(OWN[2], **SMALL), Recording.empty(1, 12, 2, 12)

    def engine() -> PlainEngine:
        return PlainEngine(ragged(), [Graph.ring(4), Graph.star(4)], alg, 12, seed=3)

    straight, kept = engine(), []
    w = straight.start()
    for i in range(1, 13):
        kept.append(w.copy())
        assert straight.advance(0, w, i, i, out) is None
    kept.append(w)
    for first, last in ((1, 5), (3, 4), (5, 9), (2, 12)):
        state = kept[first - 1].copy()
        assert engine().advance(0, state, first, last, out) is None
        assert np.array_equal(state, kept[last])
    forgetful = kept[4].copy()
    forgetful[4:] = 0.0
    engine().advance(0, forgetful, 5, 5, out)
    assert not np.allclose(forgetful[:4], kept[5][:4])


def test_correlated_noise_is_not_drawn_as_if_it_had_no_memory(ragged: Callable[..., Problem]) -> None:
    graph, memoryless = Graph.ring(4), replace(CORRELATED, noises=(Noise(Place.SERVER, 0.7),))
    runs = [
        simulate(ragged(), graph, GFL(s, **SMALL), rounds=r, seed=1) for s in (CORRELATED, memoryless) for r in (1, 2)
    ]
    np.testing.assert_allclose(runs[0].models, runs[2].models, rtol=1e-9)  # nothing was drawn before round 1
    assert not np.allclose(runs[1].models, runs[3].models)


def test_a_round_without_the_draws_before_is_refused(ragged: Callable[..., Problem]) -> None:
    reference = prepare(ragged(), [Graph.ring(4)], GFL(CORRELATED, **SMALL), 2, 0)(0)
    done = reference.round(1, reference.start(np.zeros((4, 2))))
    with pytest.raises(InputError, match=r"^past = None"):
        reference.round(2, done.w)


# ---- what has not been taught refuses by name


def refusals(s: Scheme, problem: Problem) -> dict[str, Callable[[], object]]:
    graph, alg = Graph.ring(4), GFL(s, **SMALL)
    return {
        "fixed point": lambda: GFL(s, **SMALL, clip=Clip("update", 1.0), arithmetic="fixed"),
        "the range of fixed point": lambda: check_range(FixedArithmetic(3, 20), s, graph, 1.0, 3),
        "prediction": lambda: predict(problem, graph, alg),
        "stability": lambda: max_stable_step(problem, graph, alg),
        "the formula of a plan": lambda: noise_variance(s, graph, 0.9, 3),
        "a deployed server": Sender(
            s, 0, 0.5, {1: 0.5}, np.zeros(2), lambda *_: np.zeros(2), FloatArithmetic(1)
        ).perturb,
    }


@pytest.mark.parametrize(
    "which",
    [
        "fixed point",
        "the range of fixed point",
        "prediction",
        "stability",
        "the formula of a plan",
        "a deployed server",
    ],
)
@pytest.mark.parametrize("s", [x for x in OWN if not x.plain], ids=lambda s: s.name)
def test_who_has_not_been_taught_says_so(ragged: Callable[..., Problem], s: Scheme, which: str) -> None:
    by_receiver = s.receivers is not None or Place.AROUND in s.places
    why = "depends on the receiver" if by_receiver else "has memory"
    with pytest.raises(InputError, match=f"scheme.name = '{s.name}': its noise {why}.*has not been taught"):
        refusals(s, ragged())[which]()


def test_sizing_refuses_a_row_with_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(schemes.FAMILIES, "correlated", replace(CORRELATED, name="correlated"))
    monkeypatch.setattr(schemes, "NAMES", (*schemes.NAMES, "correlated"))
    with pytest.raises(InputError, match="sizing has not been taught"):
        calibrate("correlated", Graph.ring(4), Sensitivity(0.1, 1.0, level="unit"), Budget(rho=1.0), rounds=3)


@pytest.mark.parametrize(
    ("make_one", "field"),
    [
        (lambda: Noise(Place.SERVER, 1.0, taps=()), "scheme.noises.taps"),
        (lambda: Noise(Place.SERVER, 1.0, taps=(1.0, float("nan"))), "scheme.noises.taps"),
        (lambda: Noise(Place.CLIENT, 1.0, taps=(1.0, 1.0)), "scheme.noises.taps"),
        (lambda: Noise(Place.CLIENT, 1.0, taps=(0.5,)), "scheme.noises.taps"),
        (lambda: Noise(Place.SERVER, -1.0), "scheme.noises.sigma"),
        (lambda: Scheme("mine", noises=(Noise(Place.SERVER), Noise(Place.SERVER))), "scheme.noises"),
        (lambda: Scheme("mine", noises=(Noise(Place.NETWORK),)), "scheme.noises"),
        (lambda: Scheme("mine", noises=(Noise(Place.OWN),)), "scheme.noises"),
        (lambda: Scheme("mine", noises=(Noise(Place.SERVER),), exchange=Exchange.AVERAGE), "scheme.noises"),
        (lambda: Scheme("mine", noises=Noise(Place.SERVER)), "scheme.noises"),  # type: ignore[arg-type]
        (lambda: Scheme("mine", exchange=Exchange.AVERAGE, receivers=lambda g: np.ones((0, g.P))), "scheme.receivers"),
        (lambda: replace(OWN[5], receivers=lambda g: np.ones(3)).wiring(Graph.ring(4)), "scheme.receivers"),
    ],
)
def test_what_a_scheme_of_ones_own_refuses(make_one: Callable[[], object], field: str) -> None:
    with pytest.raises(InputError) as refusal:
        make_one()
    assert refusal.value.field == field
