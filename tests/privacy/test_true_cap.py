"""`cap:N` is a promise that the run keeps: who has given data N times gives zeros, and every price counts on no more.

The attacks drive two data sets, alike but for one client, through the reference's own `adapt` from the same models.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import confide
from builders import priced
from confide.engines.compiled import CompiledEngine
from confide.engines.driver import engine_named
from confide.engines.plain import PlainEngine
from confide.engines.recording import Recording
from confide.engines.run import DivergenceWarning, StabilityWarning
from confide.graph.graph import Graph
from confide.laws.conversion import gaussian_epsilon
from confide.plans import words
from confide.plans.words import ConvexGlm, PublicPoint
from confide.privacy.accountant import account
from confide.privacy.rounding import Rounding
from confide.privacy.sensitivity import Sensitivity
from confide.privacy.sum_noise import SumNoise
from confide.problems.federation import Federation
from confide.problems.models import Linear
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL, Failures
from confide.rounds.clipping import Clip
from confide.rounds.reference import Reference, prepare, units_present
from confide.rounds.schemes import Scheme, scheme
from confide.secure.settings import Secure

PAIR = Graph.path(2)
K, STEP = 10, 0.1


def problem(target: float = 1.0, rho: float = 0.0, clients: int = K) -> Problem:
    """Labels beyond every clip; only those of client 0 of unit 0 change."""

    def data(label: float) -> tuple[np.ndarray, np.ndarray]:
        return np.eye(2)[[0, 1, 0, 1]], np.full(4, 1e3 * label)

    units = [[data(target if (p, k) == (0, 0) else -1.0) for k in range(clients)] for p in range(2)]
    return Problem(Federation.from_clients(units), Linear(rho), private=False)


def algorithm(sampled: int = K, sigma: float = 0.0418, **changes: Any) -> GFL:
    settings: dict[str, Any] = {"local_steps": 1, "batch": 4, "replacement": False, "clip": Clip("example", 1.0)}
    return GFL(scheme("shared", sigma, noise="gaussian"), step=STEP, sampled=sampled, **settings | changes)


def reference(p: Problem, alg: GFL, rounds: int, cap: int | None) -> Reference:
    return prepare(p, [PAIR], alg, rounds, 0, cap=cap)(0)


# ---- the numbers, and the attack on them


@pytest.mark.parametrize(("rounds", "whole"), [(50, 19.5), (100, 31.1)])
def test_ten_of_ten_clients_give_data_once(rounds: int, whole: float) -> None:
    run = confide.simulate(
        problem(), PAIR, algorithm(), rounds=rounds, privacy=confide.Privacy(participation="cap:1"), progress=False
    )
    assert run.metrics["participants"][0].tolist() == [2 * K] + [0] * (rounds - 1)
    assert run.privacy is not None
    links = run.privacy["statement"]["accounts"][0]
    assert links["epsilon"] == pytest.approx(1.89, abs=0.01)
    assert any("gives data in at most 1 rounds, enforced by" in x for x in links["assumptions"])
    everybody = priced(confide.Privacy(), problem(), [PAIR], algorithm(), rounds).account(rounds)
    assert everybody.epsilon == pytest.approx(whole, abs=0.1)


SECURE = Secure(sigma=0.01)
KINDS: dict[str, dict[str, Any]] = {
    "everybody": {},
    "sampled": {"sampled": 4},
    "dropout": {"sampled": 6, "dropout": 0.4},
    "absent": {"sampled": 6, "failures": Failures(unit=0.3, units=((1, 0), (3, 1)))},
    "several steps": {"sampled": 5, "local_steps": [1, 2, 3, 4, 5] * 4},
    "update": {"clip": Clip("update", 1.0), "sampled": 6},
    "fixed": {"arithmetic": "fixed", "sampled": 6},
    "secure": {"arithmetic": "fixed", "sampled": 6, "aggregation": SECURE},
    "quorum": {"arithmetic": "fixed", "sampled": 6, "aggregation": SECURE, "dropout": 0.4},
    "fixed update": {"arithmetic": "fixed", "sampled": 6, "clip": Clip("update", 1.0)},
}


@pytest.mark.parametrize("rho", [0.0, 0.2])
@pytest.mark.parametrize("N", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_psi_differs_in_at_most_as_many_rounds_and_by_no_more_than_priced(kind: str, N: int, rho: float) -> None:
    T, alg = 30, algorithm(**KINDS[kind])
    one, other = (reference(problem(label, rho), alg, T, N) for label in (1.0, -1.0))
    w, gaps, given, drawn = one.start(np.zeros((2, 2))), [], 0, 0
    for i in range(1, T + 1):
        here, there = one.round(i, w), other.round(i, w)  # from the same models, as carry 0 has it
        gap = np.linalg.norm(one.arithmetic.value(here.psi - there.psi), axis=1)
        assert gap[1] == 0.0
        gaps.append(float(gap[0]))
        assert here.participants == there.participants
        given += here.participants
        drawn += alg.sampled * 2
        w = here.w
    assert 1 <= np.count_nonzero(gaps) <= N
    assert given <= 2 * K * N
    assert given < drawn  # the cap did something
    privacy = confide.Privacy(participation=f"cap:{N}")
    pricing = priced(privacy, problem(rho=rho), [PAIR], alg, T)
    printed = pricing.account(T).epsilon
    assert printed is not None
    assert max(gaps) <= pricing.sensitivity.single * (1 + 1e-6)
    for j in range(1, T + 1):  # the running epsilon too
        so_far = pricing.account(j).epsilon
        assert so_far is not None
        assert so_far >= gaussian_epsilon(math.sqrt(sum(g * g for g in gaps[:j])) / 0.0418, 1e-5) * (1 - 1e-9)


@pytest.mark.parametrize("kind", ["dropout", "absent", "quorum"])
def test_being_drawn_counts_whatever_becomes_of_it(kind: str) -> None:
    """A client that vanishes has been asked, also where a sum then fails; an absent unit has asked nobody."""
    N, T, alg = 2, 20, algorithm(**KINDS[kind])
    r = reference(problem(), alg, T, N)
    drawn = dict.fromkeys(itertools.product(range(2), range(K)), 0)
    lost = 0
    w = r.start(np.zeros((2, 2)))
    for i in range(1, T + 1):
        expected = 0
        for p in np.flatnonzero(units_present(alg.failures, r.seed, i, 2)).tolist():
            survivors = r.sample(i, p)
            quorum = 0 if alg.aggregation is None else alg.aggregation.parameters(alg.sampled).quorum
            for k in r.draw(i, p):
                drawn[p, k] += 1
                gives = drawn[p, k] <= N
                lost += gives and (k not in survivors or len(survivors) < quorum)
                expected += gives and k in survivors and len(survivors) >= quorum
        done = r.round(i, w)
        assert done.participants == expected
        w = done.w
    assert (lost > 0) == (kind != "absent")


@pytest.mark.parametrize("rho", [0.0, 0.2])
@pytest.mark.parametrize("kind", KINDS)
def test_who_gives_no_data_leaves_its_noise_and_its_decay(kind: str, rho: float) -> None:
    """As if its data had no gradient: what zero-out adjacency calls contributing nothing."""
    alg = algorithm(**KINDS[kind] | {"sampled": K, "dropout": 0.0, "failures": Failures()})
    f = problem(rho=rho).federation
    empty = Problem(Federation(np.zeros_like(f.X), np.zeros_like(f.d), f.client_offsets, f.unit_offsets), Linear(rho))
    capped, nothing = reference(problem(rho=rho), alg, 2, 1), reference(empty, alg, 2, None)
    w = capped.start(np.array([[0.3, -0.2], [0.1, 0.4]]))
    if alg.clip is not None and alg.clip.kind == "update":  # its clip is around the regulariser too
        return
    one, other = capped.round(2, w), nothing.round(2, w)
    np.testing.assert_allclose(
        capped.arithmetic.value(one.psi), nothing.arithmetic.value(other.psi), rtol=1e-12, atol=1e-15
    )
    assert (one.participants, other.participants) == (0, 2 * K)
    if rho:
        assert not np.array_equal(one.psi, w)


# ---- the engines


def engines(alg: GFL, cap: int, rounds: int = 12, rho: float = 0.2) -> list[Any]:
    return [engine_named(name)(problem(rho=rho), [PAIR], alg, rounds, 3, cap=cap) for name in ("compiled", "reference")]


@pytest.mark.parametrize("kind", [k for k in KINDS if "arithmetic" not in KINDS[k]])
@pytest.mark.parametrize("cap", [1, 2, 5])
def test_both_engines_agree_draw_for_draw(kind: str, cap: int) -> None:
    alg = algorithm(**KINDS[kind])
    alg = replace(alg, scheme=scheme("per-link", 0.3, noise="gaussian", sigma_client=0.1))  # noise on client links too
    runs = [
        confide.simulate(
            problem(rho=0.2), PAIR, alg, rounds=12, repeats=2, seed=3, engine=engine, progress=False,
            privacy=confide.Privacy(participation=f"cap:{cap}"),
        )
        for engine in ("compiled", "reference")
    ]  # fmt: skip
    np.testing.assert_allclose(runs[0].models, runs[1].models, rtol=1e-9, atol=1e-9)
    assert np.array_equal(runs[0].metrics["participants"], runs[1].metrics["participants"])
    free = confide.simulate(problem(rho=0.2), PAIR, alg, rounds=12, repeats=2, seed=3, progress=False)
    assert runs[0].metrics["participants"].sum() < free.metrics["participants"].sum()


@pytest.mark.parametrize("which", [0, 1])
def test_a_run_that_goes_back_counts_again(which: int) -> None:
    """Chunk by chunk, a step back, another engine that begins in the middle: always the same bits."""
    alg = algorithm(sampled=4, dropout=0.3, failures=Failures(unit=0.2))
    straight = engines(alg, 2)[which]
    out = Recording.empty(2, 12, 2, 12)
    kept, w = {}, [straight.start() for _ in range(2)]
    for i in range(1, 13):
        for r in range(2):
            assert straight.advance(r, w[r], i, i, out) is None
        kept[i] = [x.copy() for x in w]
    jumpy, other = engines(alg, 2)[which], Recording.empty(2, 12, 2, 12)
    for first, last in ((1, 5), (3, 4), (5, 9), (2, 12), (12, 12), (1, 3)):
        for r in range(2):
            state = kept[first - 1][r].copy() if first > 1 else jumpy.start()
            assert jumpy.advance(r, state, first, last, other) is None
            assert np.array_equal(state, kept[last][r])
    assert np.array_equal(out.participants, other.participants)
    fresh = engines(alg, 2)[which]
    state = kept[6][1].copy()
    assert fresh.advance(1, state, 7, 12, other) is None
    assert np.array_equal(state, kept[12][1])


def test_a_run_that_diverges_ends_where_it_was_capped_too() -> None:
    wild = replace(algorithm(sampled=4), step=60.0, clip=Clip("example", 1e40), scheme=scheme("none"))
    with pytest.warns((DivergenceWarning, StabilityWarning)):
        runs = [
            confide.simulate(
                problem(), PAIR, wild, rounds=200, seed=3, engine=engine, progress=False,
                privacy=confide.Privacy(participation="cap:40"),
            )
            for engine in ("compiled", "reference")
        ]  # fmt: skip
    assert runs[0].diverged is not None
    assert runs[0].rounds == runs[1].rounds
    assert np.array_equal(runs[0].metrics["participants"], runs[1].metrics["participants"])
    np.testing.assert_allclose(runs[0].models, runs[1].models, rtol=1e-6)


def test_engines_without_a_cap_do_as_before() -> None:
    for kind in (CompiledEngine, PlainEngine):
        one, other = (kind(problem(), [PAIR], algorithm(sampled=4), 6, 3, *more) for more in ((), (10**12,)))
        found = []
        for engine in (one, other):
            w, out = engine.start(), Recording.empty(1, 6, 2, 6)
            assert engine.advance(0, w, 1, 6, out) is None
            assert out.participants.tolist() == [[8.0] * 6]
            found.append(w)
        assert np.array_equal(*found)


# ---- the account: every prefix is a bound


def sensitivity(participation: str, **changes: Any) -> Sensitivity:
    settings: dict[str, Any] = {"sampled": 5, "dim": 3, "participation": words.participation(participation)}
    return Sensitivity(0.1, 1.0, **settings | changes)


@pytest.mark.parametrize("N", [1, 2, 3, 7])
def test_after_every_round_the_dearest_are_paid(N: int) -> None:
    rng = np.random.default_rng(N)
    for _ in range(50):
        costs = rng.choice([0.0, 1.0, 2.5, rng.random()], size=rng.integers(1, 12))
        paid = sensitivity(f"cap:{N}").charged(costs, remembers=False)
        assert (paid >= 0.0).all()
        for j in range(1, len(costs) + 1):
            assert paid[:j].sum() == pytest.approx(np.sort(costs[:j])[::-1][:N].sum(), rel=1e-12, abs=1e-15)
    assert np.array_equal(sensitivity(f"cap:{N}").charged(costs, remembers=True), costs)
    assert np.array_equal(sensitivity("all").charged(costs, remembers=False), costs)


TURNS = [Graph.path(4), Graph.complete(4)]  # a link scheme sends two copies, then three


@pytest.mark.parametrize("N", [1, 2, 4])
@pytest.mark.parametrize(
    ("s", "given"),
    [
        (scheme("per-link", 0.5, noise="gaussian"), {"proof": PublicPoint()}),
        (scheme("per-link", 0.5, noise="laplace"), {"proof": PublicPoint(), "norm": "l1"}),
        (scheme("pairwise", 0.5, noise="gaussian", sigma_pair=2.0), {}),
        (scheme("shared", 0.5, noise="gaussian"), {}),
        (scheme("homomorphic", 0.5, noise="gaussian"), {"proof": ConvexGlm(0.1)}),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
@pytest.mark.parametrize("graphs", [TURNS, TURNS[::-1], [Graph.ring(4)]], ids=["later", "first", "one"])
def test_costs_of_the_first_rounds_add_up_to_their_account(
    s: Scheme, given: dict[str, Any], N: int, graphs: list[Graph]
) -> None:
    """A ledger that ends after j rounds has no less than a run of j rounds costs."""
    T, facts = 7, sensitivity(f"cap:{N}", **given)
    whole = account(s, graphs, facts, rounds=T)
    for j in range(1, T + 1):
        part = account(s, graphs, facts, rounds=j)
        paid = math.fsum(whole.costs[:j])
        if not s.law.pure:
            assert part.rho is not None
            assert paid >= part.rho * (1 - 1e-12)
        else:
            assert part.epsilon_pure is not None
            assert part.rho is not None
            assert paid >= part.epsilon_pure * (1 - 1e-12)
            assert sum(min(c * c / 2.0, c) for c in whole.costs[:j]) >= part.rho * (1 - 1e-12)
    total = whole.rho if not s.law.pure else whole.epsilon_pure
    assert total is not None
    assert math.fsum(whole.costs) >= total * (1 - 1e-12)


def test_rounds_that_differ_are_charged_from_the_first_one_on() -> None:
    """One participation, one copy of noise more in round 2: round 1 costs too, if the run ends there."""
    pairwise = scheme("pairwise", 0.5, noise="gaussian", sigma_pair=2.0)
    found = account(pairwise, [Graph.complete(4), Graph.path(4)], sensitivity("cap:1"), rounds=2)
    assert found.costs[0] > 0.0
    assert found.costs[1] > 0.0  # a path hides less than the complete graph
    assert found.rho == pytest.approx(sum(found.costs))


@pytest.mark.parametrize("N", [1, 3])
@pytest.mark.parametrize("level", ["client", "example"])
@pytest.mark.parametrize("adjacency", ["replace", "zero-out"])
def test_noise_inside_the_sum_pays_for_as_many_sums(N: int, level: str, adjacency: str) -> None:
    noise = SumNoise.sized(0.3, 4, sampled=5, fraction_bits=24, dim=3)
    facts = sensitivity(f"cap:{N}", level=level, adjacency=adjacency, batch=10)
    for j in (1, 2, N, N + 1, 9):
        found = account(scheme("none"), PAIR, facts, rounds=j, threat="own-server", sum_noise=noise)
        once = account(scheme("none"), PAIR, facts, rounds=1, threat="own-server", sum_noise=noise)
        assert found.rho == pytest.approx((once.rho or 0.0) * min(j, N))
        assert found.costs == pytest.approx([once.rho] * min(j, N) + [0.0] * (j - min(j, N)))
        assert any(f"at most {N} rounds" in x for x in found.assumptions)


def worst(keep: list[float], added: float, first: float, N: int, slack: float) -> np.ndarray:
    """The largest deviation after each round, over all patterns of at most N participations."""
    T = len(keep)
    most = np.zeros(T)
    for pattern in itertools.product((0, 1), repeat=T):
        if sum(pattern) > N:
            continue
        x, found = 0.0, []
        for j, here in enumerate(pattern):
            moved = keep[j - 1] * x + (slack if x else 0.0) if j else 0.0
            x = moved + (added if moved else first) * here
            found.append(x)
        most = np.maximum(most, found)
    return most


@pytest.mark.parametrize("N", [1, 2, 4])
@pytest.mark.parametrize("level", ["client", "example"])
@pytest.mark.parametrize("carry", [1.0, 0.4])
@pytest.mark.parametrize("proof", [ConvexGlm(0.5), ConvexGlm(0.0), PublicPoint()], ids=str)
@pytest.mark.parametrize("grid", [None, Rounding(2.0**-10 / 5, 3, decays=False, floating=1e-6)], ids=["real", "grid"])
def test_a_kept_deviation_is_bounded_for_every_pattern(
    N: int, level: str, carry: float, proof: ConvexGlm | PublicPoint, grid: Rounding | None
) -> None:
    T = 8
    s = sensitivity(f"cap:{N}", level=level, batch=10, proof=proof, rounding=grid)
    ones, roundings = (0.0, 0) if grid is None else (math.sqrt(3.0), int(carry < 1.0))
    found = s.deltas(lambda j, before: carry * before[-1], T, True, ones=ones, roundings=roundings)
    added, gamma = s.added(True), s.contraction
    first, slack = added, 0.0
    if grid is not None:
        rounded = roundings * grid.quantum * ones
        added = grid.clipped(s, added)
        first = grid.first(s, added, ones)
        gamma = 1.0 - 0.6 * (1.0 - gamma)
        slack = gamma * rounded + grid.slack(s, 0.0, ones)
    truth = worst([gamma * carry] * T, added, first, N, slack)
    assert (found >= truth * (1 - 1e-9)).all()
    assert found[0] == pytest.approx(first)


def test_a_deviation_that_grows_by_itself_is_not_capped() -> None:
    """A scheme of one's own may keep more than there was; then the cap bounds nothing and is not credited."""
    s, everybody = (sensitivity(x, proof=PublicPoint()) for x in ("cap:1", "all"))
    for facts in (s, everybody):
        grown = facts.deltas(lambda j, before: 2.0 * before[-1], 4, True)
        assert grown[1] >= 2.0 * grown[0]
    assert s.deltas(lambda j, before: before[-1], 4, True).tolist() == [s.single] * 4
