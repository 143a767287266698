"""The reference round against the paper written out again, and the fixed-point round against it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from confide.base.errors import InputError
from confide.base.randomness import Purpose
from confide.graph.graph import Graph
from confide.laws.law import GAUSSIAN, Law
from confide.problems.federation import Federation
from confide.problems.models import Softmax
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL, Failures
from confide.rounds.arithmetic import FixedArithmetic, on_grid
from confide.rounds.clipping import Clip
from confide.rounds.reference import Reference, check_failures, links_up, prepare, units_present
from confide.rounds.schemes import Scheme, scheme
from exploring import more

Maker = Callable[..., Problem]
GRAPH = Graph.random(4, 0.6, seed=1)
SMALL = {"step": 0.3, "sampled": 3, "local_steps": (1, 3), "batch": (1, 4)}
BROKEN = Failures(link=0.3, unit=0.2, links=((1, *GRAPH.edges[0].tolist()),), units=((2, 3),))


def course(reference: Reference, rounds: int, w: np.ndarray) -> list:
    """The rounds 1, 2, ... from w."""
    done = []
    for i in range(1, rounds + 1):
        done.append(reference.round(i, w))
        w = done[-1].w
    return done


def fixed(alg: GFL, bits: int = 24) -> GFL:
    return replace(alg, arithmetic="fixed", fraction_bits=bits)


# ---- the paper


def test_full_participation_is_gradient_descent_and_averaging(ragged: Maker) -> None:
    """L = K and whole batches leave nothing random: (3), (6), (7), (8) written out in matrices."""
    problem, mu, rho = ragged(P=1), 0.3, 0.1
    f = problem.federation
    E = np.arange(1, f.clients + 1)
    alg = GFL(scheme("none"), mu, sampled=3, local_steps=E, batch=f.N, replacement=False)
    w = np.array([[0.5, -1.0]])
    done = prepare(problem, [Graph.path(1)], alg, 1, seed=0)(0).round(1, w)
    models = []
    for k in range(3):
        X, d = f.client(0, k)
        phi = w[0]
        for _ in range(E[k]):
            phi = phi - mu / E[k] * (2 * X.T @ (X @ phi - d) / len(d) + 2 * rho * phi)
        models.append(phi)
    np.testing.assert_allclose(done.psi[0], np.mean(models, axis=0), rtol=1e-12)
    assert np.array_equal(done.w, done.psi)
    assert done.participants == 3


def test_full_participation_with_softmax_is_a_loop_over_classes_samples_and_clipped_examples() -> None:
    """(3), (6) and (7) written out, one number at a time."""
    rng, C, F, N, mu, rho, B = np.random.default_rng(2), 3, 2, 4, 0.5, 0.05, 0.6
    rows = [(rng.standard_normal((N, F)), rng.integers(0, C, N).astype(float)) for _ in range(3)]
    problem = Problem(Federation.from_clients([rows]), Softmax(rho, classes=C))
    settings = {"sampled": 3, "local_steps": 2, "batch": N, "replacement": False, "clip": Clip("example", B)}
    w = rng.standard_normal(C * F)
    done = prepare(problem, [Graph.path(1)], GFL(scheme("none"), mu, **settings), 1, seed=0)(0).round(1, w[None])
    models, clipped = [], 0
    for X, d in rows:
        phi = w.copy()
        for _ in range(2):
            step = 2 * rho * phi
            for u, label in zip(X, d, strict=True):
                e = [np.exp(sum(phi[c * F + j] * u[j] for j in range(F))) for c in range(C)]
                g = np.array([(e[c] / sum(e) - (c == label)) * u[j] for c in range(C) for j in range(F)])
                size = np.sqrt(sum(x * x for x in g))
                clipped += size > B
                step = step + g * min(1.0, B / size) / N
            phi = phi - mu / 2 * step
        models.append(phi)
    np.testing.assert_allclose(done.psi[0], np.mean(models, axis=0), rtol=1e-12)
    assert 0 < clipped < 24


def test_a_round_of_four_servers_combines_with_A(ragged: Maker) -> None:
    problem = ragged()
    reference = prepare(problem, [GRAPH], GFL(scheme("none"), **SMALL), 1, seed=0)(0)
    w = np.random.default_rng(0).standard_normal((4, 2))
    done = reference.round(1, w)
    np.testing.assert_allclose(done.w, GRAPH.A @ done.psi, rtol=0, atol=1e-14)
    for p in range(4):
        assert np.array_equal(done.psi[p], reference.adapt(1, p, w[p], reference.sample(1, p)))
        assert not np.array_equal(done.psi[p], w[p])


def test_l_stays_in_the_denominator_under_dropout(ragged: Maker) -> None:
    problem, w = ragged(), np.array([0.5, -1.0])
    reference = prepare(problem, [GRAPH], GFL(scheme("none"), **SMALL), 1, seed=0)(0)
    alone = [reference.adapt(1, 1, w, [k]) - w for k in (0, 2, 4)]
    together = reference.adapt(1, 1, w, [0, 2, 4])
    np.testing.assert_allclose(together, w + np.sum(alone, axis=0), rtol=1e-13)
    assert np.array_equal(reference.adapt(1, 1, w, []), w)


def test_nobody_comes_when_all_drop_out(ragged: Maker) -> None:
    w = np.random.default_rng(0).standard_normal((4, 2))
    alg = GFL(scheme("none"), **SMALL, dropout=1.0)
    done = prepare(ragged(), [GRAPH], alg, 1, seed=0)(0).round(1, w)
    assert done.participants == 0
    assert np.array_equal(done.psi, w)


def test_dropouts_leave_the_other_draws_alone(ragged: Maker) -> None:
    alg = GFL(scheme("none"), **SMALL)
    all_of_them = prepare(ragged(), [GRAPH], alg, 1, seed=0)(0)
    some = prepare(ragged(), [GRAPH], replace(alg, dropout=0.5), 1, seed=0)(0)
    kept = [(i, p) for i in range(1, 50) for p in range(4) if some.sample(i, p) != all_of_them.sample(i, p)]
    assert kept
    assert all(set(some.sample(i, p)) < set(all_of_them.sample(i, p)) for i, p in kept)


def test_graphs_take_turns(ragged: Maker) -> None:
    graphs, w = [Graph.ring(4), Graph.star(4)], np.random.default_rng(0).standard_normal((4, 2))
    reference = prepare(ragged(), graphs, GFL(scheme("none"), **SMALL), 4, seed=0)(0)
    for i in range(1, 5):
        done = reference.round(i, w)
        np.testing.assert_allclose(done.w, graphs[(i - 1) % 2].A @ done.psi, rtol=0, atol=1e-14)


def test_an_absent_unit_does_nothing(ragged: Maker) -> None:
    w = np.random.default_rng(0).standard_normal((4, 2))
    alg = GFL(scheme("shared", 0.5), **SMALL, failures=Failures(units=((2, 1),)))
    reference = prepare(ragged(), [GRAPH], alg, 3, seed=0)(0)
    done = reference.round(2, w)
    assert np.array_equal(done.w[1], w[1])
    assert done.participants == 3 * 3
    assert reference.round(1, w).participants == 4 * 3


def test_repetitions_and_seeds_differ(ragged: Maker) -> None:
    w = np.zeros((4, 2))
    alg = GFL(scheme("shared", 0.5), **SMALL)
    results = [prepare(ragged(), [GRAPH], alg, 1, seed=s)(r).round(1, w).w for s in (0, 1) for r in (0, 1)]
    assert len({x.tobytes() for x in results}) == 4


# ---- failures


def test_scheduled_failures_hit_their_round_only() -> None:
    g = Graph.ring(4)
    failures = Failures(links=((2, 3, 2),), units=((5, 0),))
    for i in range(1, 7):
        present = units_present(failures, 0, i, 4)
        assert present.tolist() == [i != 5, True, True, True]
        up = dict(zip(map(tuple, g.edges.tolist()), links_up(failures, 0, i, g, present).tolist(), strict=True))
        assert up == {(0, 1): i != 5, (0, 3): i != 5, (1, 2): True, (2, 3): i != 2}


def test_random_failures_have_their_probability() -> None:
    g, rounds = Graph.complete(6), 400
    failures = Failures(link=0.3, unit=0.2)
    present = np.array([units_present(failures, 7, i, 6) for i in range(1, rounds + 1)])
    all_here = np.ones(6, dtype=bool)
    up = np.array([links_up(failures, 7, i, g, all_here) for i in range(1, rounds + 1)])
    for rate, events in ((0.8, present), (0.7, up)):
        deviation = np.sqrt(rate * (1 - rate) / events.size)
        assert abs(events.mean() - rate) < 4 * deviation


@pytest.mark.parametrize(
    "failures",
    [
        Failures(units=((11, 0),)),
        Failures(units=((1, 4),)),
        Failures(links=((11, 0, 1),)),
        Failures(links=((1, 0, 2),)),  # no edge of the ring
    ],
)
def test_failures_that_cannot_happen_are_refused(failures: Failures) -> None:
    with pytest.raises(InputError, match="failures"):
        check_failures(failures, [Graph.ring(4)], rounds=10)


def test_a_link_failure_is_checked_against_the_graph_of_its_round() -> None:
    graphs = [Graph.ring(4), Graph.complete(4)]
    check_failures(Failures(links=((2, 2, 0),)), graphs, 10)
    with pytest.raises(InputError, match=r"failures\.links"):
        check_failures(Failures(links=((3, 2, 0),)), graphs, 10)


# ---- fixed point


# What bits do is the same for every scheme and clip: each clip comes with one of the two.
CLIPS = (Clip("example", 1.0), Clip("update", 1.0), Clip("update", 0.5, "l1"))


@pytest.mark.parametrize(("clip", "bits"), more([*zip(CLIPS, (16, 28, 16), strict=True)], [*product(CLIPS, (16, 28))]))
def test_fixed_point_is_the_float_round_up_to_its_quanta(
    ragged: Maker, each_fixed_scheme: Scheme, clip: Clip, bits: int
) -> None:
    if each_fixed_scheme.name == "partial:0.3":
        each_fixed_scheme = scheme(
            "partial:0.25", each_fixed_scheme.sigma
        )  # on the grid of weights, as the graph below
    rounds, g = 6, on_grid(GRAPH)
    alg = GFL(each_fixed_scheme, **SMALL, clip=clip, failures=BROKEN)
    w = np.zeros((4, 2))
    reference = prepare(ragged(), [g], fixed(alg, bits), rounds, seed=3)(0)
    integers = course(reference, rounds, reference.start(w))
    arith = reference.arithmetic
    assert isinstance(arith, FixedArithmetic)

    def same(*draw: Any) -> np.ndarray:
        """The integers' noise as real numbers: the samplers differ, the round may not."""
        return np.asarray(arith.value(reference.noise(*draw)))

    floats = course(prepare(ragged(), [g], alg, rounds, seed=3, noise=same)(0), rounds, w)
    # a round truncates L updates (one client quantum together) and rounds noise, carry and flows (a few own quanta)
    allowed = rounds * (arith.client_quantum + 10 * arith.quantum) + rounds * 2.0**-31
    for a, b in zip(floats, integers, strict=True):
        assert np.abs(arith.value(b.w) - a.w).max() < allowed
        assert a.participants == b.participants
    assert np.abs(floats[-1].w).max() > 100 * allowed


def test_a_whole_fixed_point_run_conserves_every_bit(ragged: Maker, each_fixed_scheme: Scheme) -> None:
    alg = fixed(GFL(each_fixed_scheme, **SMALL, clip=Clip("update", 1.0), dropout=0.2, failures=BROKEN))
    reference = prepare(ragged(), [GRAPH, Graph.ring(4)], alg, 12, seed=3)(0)
    for done in course(reference, 12, reference.start(np.zeros((4, 2)))):
        assert done.w.dtype == done.psi.dtype == done.own.dtype == np.int64
        assert np.array_equal(done.w.sum(axis=0), done.own.sum(axis=0))
        if each_fixed_scheme.name in ("none", "local-only", "homomorphic"):
            assert np.array_equal(done.w.sum(axis=0), done.psi.sum(axis=0))


def test_a_clients_integers_respect_the_clip(ragged: Maker) -> None:
    """Only the data's part is sent under per-example clipping, and it is at most mu B."""
    for clip in (Clip("example", 0.2), Clip("update", 0.2), Clip("example", 0.2, "l1")):
        alg = fixed(GFL(scheme("none"), **SMALL, clip=clip))
        reference = prepare(ragged(), [GRAPH], alg, 10, seed=0)(0)
        arith, order = reference.arithmetic, 1 if clip.norm == "l1" else 2
        w = arith.state(np.array([3.0, -2.0]))
        for k in range(3):
            moved = reference.adapt(1, 0, w, [k]) - w
            if clip.kind == "example":  # take the server's decay out again
                E = int(reference.E[k])
                shrink = (1 - (1 - 2 * 0.1 * 0.3 / E) ** E) / 3
                moved = moved + np.rint(shrink * w).astype(np.int64)
            size = np.linalg.norm(moved * arith.client_quantum, order)
            assert 0 < size <= 0.3 * 0.2 + 2 * arith.client_quantum


def test_a_deployments_own_integer_noise_can_be_put_in(ragged: Maker) -> None:
    calls = []

    def source(purpose: Purpose, ids: tuple[int, ...], law: Law, sigma: float, size: int) -> np.ndarray:
        calls.append((purpose, ids, law, sigma, size))
        return np.full(size, 1000 * ids[0] + ids[1], dtype=np.int64)

    alg = fixed(GFL(scheme("shared", 0.5, noise="gaussian"), **SMALL, clip=Clip("update", 1.0)))
    reference = prepare(ragged(), [GRAPH], alg, 2, seed=3, noise=source)(0)
    done = course(reference, 2, reference.start(np.zeros((4, 2))))
    assert calls == [(Purpose.SERVER_NOISE, (i, p), GAUSSIAN, 0.5, 2) for i in (1, 2) for p in range(4)]
    for i, r in enumerate(done, start=1):
        expected = 1000 * i + np.arange(4)[:, None] + np.zeros((4, 2), dtype=np.int64)
        assert np.array_equal(r.sent - r.psi, expected)


def test_a_fixed_run_that_could_overflow_is_refused_before_it_starts(ragged: Maker) -> None:
    alg = fixed(GFL(scheme("shared", 10.0), **SMALL, clip=Clip("update", 1.0)), bits=50)
    with pytest.raises(InputError, match="could overflow") as refusal:
        prepare(ragged(), [GRAPH], alg, 10_000, seed=0)
    assert refusal.value.field == "algorithm.fraction_bits"


def test_a_decay_outside_0_to_1_is_refused_before_a_fixed_run_starts(ragged: Maker) -> None:
    """2 rho mu / E above 1: the server's factor for the regulariser would be negative."""
    alg = fixed(GFL(scheme("none"), step=6.0, sampled=2, local_steps=1, batch=2, clip=Clip("example", 1.0)))
    with pytest.raises(InputError, match=r"at most 5\b") as refusal:
        prepare(ragged(), [GRAPH], alg, 10, seed=0)
    assert refusal.value.field == "algorithm.step"
    fine = prepare(ragged(), [GRAPH], replace(alg, step=5.0), 10, seed=0)(0)
    fine.round(1, fine.start(np.ones((4, 2))))


def test_the_users_own_local_step(ragged: Maker) -> None:
    """Any function of (w, X, d, task) may stand in for SGD; a clip still bounds it."""
    alg = GFL(scheme("none"), **SMALL, local=lambda w, X, d, task: np.full_like(w, len(d)), clip=Clip("update", 1.0))
    w = np.zeros(2)
    reference = prepare(ragged(), [GRAPH], alg, 1, seed=0)(0)
    np.testing.assert_allclose(np.linalg.norm(reference.adapt(1, 0, w, [0])), 0.3 / 3)
    free = prepare(ragged(), [GRAPH], replace(alg, clip=None), 1, seed=0)(0)
    np.testing.assert_allclose(free.adapt(1, 0, w, [0]), len(ragged().federation.client(0, 0)[1]) / 3)
