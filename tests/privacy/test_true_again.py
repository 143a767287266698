"""Epsilons that were false once, each with the number that an explicit attack attains: none may be printed again.

`attained` is the privacy of a pair of data sets that the test itself drives through the reference's own `adapt`, or an
exact calculation; a printed epsilon below it would be a lie.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import confide
from builders import changed, priced
from confide.base.errors import InputError
from confide.engines.compiled import CompiledEngine
from confide.engines.recording import Recording
from confide.graph.graph import Graph
from confide.laws.conversion import gaussian_epsilon
from confide.plans import words
from confide.plans.build import of_run
from confide.plans.plan import Plan
from confide.plans.words import Always, Amplified, Centroid, ConvexGlm, Links, Neighbours, Random, Regulariser
from confide.privacy import deviation
from confide.privacy.accountant import account
from confide.privacy.price import price
from confide.privacy.reveal import Reveal
from confide.privacy.sensitivity import Sensitivity
from confide.privacy.statement import statement
from confide.privacy.sum_noise import SumNoise
from confide.problems.federation import Federation
from confide.problems.models import Linear, Logistic
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL
from confide.rounds.clipping import Clip, clip
from confide.rounds.reference import prepare
from confide.rounds.schemes import Noise, Scheme, scheme
from confide.secure.settings import Secure

PAIR = Graph.path(2)


def epsilon(s: Sensitivity, sigma: float, rounds: int, name: str = "shared", **options: Any) -> float:
    found = account(scheme(name, sigma, noise="gaussian"), PAIR, s, rounds=rounds, **options).epsilon
    assert found is not None
    return found


def attained(gap: float, sigma: float, rounds: int) -> float:
    """Of a distinguisher that sees psi, moved by `gap`, through fresh noise in every round."""
    return gaussian_epsilon(math.sqrt(rounds) * gap / sigma, 1e-5)


# ---- 1 and 16: what one example moves


def moved(E: tuple[int, ...], batch: int, rho: float, zero_out: bool) -> tuple[float, Problem, GFL]:
    """The gap of psi when one example of client 0 changes, by the reference itself: squared loss in one dimension,
    whose other examples react to the first step with all they have."""
    L, N = len(E), batch

    def data(first: float) -> list[tuple[np.ndarray, np.ndarray]]:
        X = np.full((N, 1), 1000.0)  # steep: a small move of the model turns every clipped gradient round
        X[0] = 1.0
        d = np.zeros(N)
        d[0] = first
        return [(X, d)] + [(np.ones((N, 1)), np.zeros(N)) for _ in range(L - 1)]

    algorithm = GFL(
        scheme("shared", 0.02, noise="gaussian"), step=0.1, sampled=L, local_steps=[*E, *E], batch=batch,
        replacement=False, clip=Clip("example", 1.0),
    )  # fmt: skip
    found = []
    for first in (0.0 if zero_out else -1e3, 1e3):
        problem = Problem(Federation.from_clients([data(first), data(first)]), Linear(rho))
        r = prepare(problem, [PAIR], algorithm, 1, 0)(0)
        found.append(r.adapt(1, 0, np.zeros(1), range(L)))
    return float(abs(found[1] - found[0])[0]), problem, algorithm


@pytest.mark.parametrize("adjacency", ["replace", "zero-out"])
@pytest.mark.parametrize(("proof", "rho"), [("none", 0.0), ("regulariser:0.1", 0.1)])
@pytest.mark.parametrize("E", [(1, 2), (2, 1), (1, 1), (2, 2)])
def test_one_example_moves_psi_no_further_than_priced(
    E: tuple[int, int], proof: str, rho: float, adjacency: str
) -> None:
    gap, problem, algorithm = moved(E, 100, rho, adjacency == "zero-out")
    privacy = confide.Privacy(level="example", proof=proof, adjacency=adjacency)
    paid = priced(privacy, problem, [PAIR], algorithm, 20)
    s = deviation.sensitivity(paid.plan)
    assert gap <= s.single * (1 + 1e-9)
    if E[0] > 1:  # the attack is real: far beyond the example's own share, 2 mu B / (L batch)
        assert gap > 20 * 2 * 0.1 / 2 / 100
    printed = paid.account(20).epsilon
    assert printed is not None
    assert printed >= attained(gap, 0.02, 20) * (1 - 1e-9)


def test_the_share_of_a_batch_is_credited_where_everybody_takes_one_step() -> None:
    one = Sensitivity(0.1, 1.0, level="example", sampled=5, batch=100)
    assert one.single == pytest.approx(2 * 0.1 / 5 / 100)
    assert replace(one, adjacency="zero-out").single == pytest.approx(0.1 / 5 / 100)
    for more in (replace(one, local_steps=(1, 2)), replace(one, local_steps=2, adjacency="zero-out")):
        assert more.single == pytest.approx(2 * 0.1 / 5)
    regularised = replace(one, local_steps=(1, 2), proof=Regulariser(0.1))
    assert regularised.single == pytest.approx(2 * 0.1 / 5)
    noise = SumNoise.sized(0.3, 4, sampled=5, fraction_bits=24, dim=3)
    wide = account(scheme("none"), PAIR, replace(regularised, dim=3), rounds=20, threat="own-server", sum_noise=noise)
    assert wide.deltas[0] == pytest.approx(0.04)


# ---- 3: amplification


def amplified(K: int, L: int, **options: Any) -> Sensitivity:
    part = Amplified(L / K)
    return Sensitivity(0.1, 1.0, sampled=L, clients=K, participation=part, **options)


def mixture_epsilon(gap: float, q: float, rounds: int, delta: float, samples: int = 200_000) -> float:
    """A lower bound of epsilon for Gaussian noise of deviation 1 whose mean is `gap` with probability q, by the exact
    loss of each round, added up by convolution on a grid: P(loss > e) - exp(e) Q(loss > e) at the smallest e >= 0."""
    from scipy import stats

    x = np.linspace(-12.0, 12.0 + gap, samples)
    h = x[1] - x[0]
    p = ((1 - q) * stats.norm.pdf(x) + q * stats.norm.pdf(x - gap)) * h
    loss = np.logaddexp(math.log1p(-q), math.log(q) + gap * x - gap**2 / 2)
    width = 1e-3
    cells = np.floor(loss / width).astype(int)  # rounded down: the bound can only fall
    low = cells.min()
    mass = np.bincount(cells - low, p)
    total = mass
    size = len(mass)
    n = 1 << (rounds * size - 1).bit_length()
    total = np.fft.irfft(np.fft.rfft(mass, n) ** rounds, n)[: rounds * (size - 1) + 1]
    values = (low * rounds + np.arange(len(total))) * width
    tail = np.cumsum(total[::-1])[::-1]
    inverse = np.cumsum((total * np.exp(-values))[::-1])[::-1]
    found = 0.0
    for e in np.linspace(0.0, 60.0, 6001):
        k = int(np.searchsorted(values, e, side="right"))
        if k < len(tail) and tail[k] - math.exp(e) * inverse[k] > delta:
            found = float(e)
    return found


def test_fixed_size_sampling_is_priced_with_the_swap_distance() -> None:
    """K = 100, L = 1: with s = mu B / L = sigma, the others at the other end of the ball, the drawn client's update
    moves by 2 s. Printed was 1.39."""
    zero_out = amplified(100, 1, adjacency="zero-out")
    sigma = 0.1
    truth = mixture_epsilon(1.0, 0.01, 200, 1e-5)  # target's zero against its own update only
    printed = epsilon(zero_out, sigma, 200)
    assert printed == pytest.approx(12.3, abs=0.05)
    assert printed > truth
    assert epsilon(replace(zero_out, adjacency="replace"), sigma, 200) == pytest.approx(printed)


def test_at_example_level_the_client_is_exchanged_not_the_example() -> None:
    s = amplified(100, 1, level="example", batch=100)
    whole_client = amplified(100, 1)
    assert account(
        scheme("shared", 0.02, noise="gaussian"), PAIR, replace(s, local_steps=2), rounds=200
    ).epsilon == pytest.approx(epsilon(whole_client, 0.02, 200))
    assert epsilon(s, 0.02, 200) >= 11.12 or "all" in priced_by(s, 0.02, 200)


def priced_by(s: Sensitivity, sigma: float, rounds: int) -> str:
    notes = account(scheme("shared", sigma, noise="gaussian"), PAIR, s, rounds=rounds).assumptions
    return next(note for note in notes if note.startswith("participation "))


def test_unequal_steps_with_a_regulariser_tell_who_was_drawn() -> None:
    s = amplified(100, 1, local_steps=(1, 3), regulariser=0.5)
    assert "the decay tells who was drawn" in priced_by(s, 0.1, 20)
    assert epsilon(s, 0.1, 20) == epsilon(replace(s, participation=Random(0.01)), 0.1, 20)
    assert "'amplified'" in priced_by(replace(s, local_steps=3), 0.1, 20)


def test_the_smallest_of_the_bounds_that_hold_is_printed() -> None:
    s = amplified(10, 9)
    alone = {part: replace(s, participation=part(0.9)) for part in (Random, Amplified)}
    everywhere = replace(s, participation=Always())
    assert epsilon(alone[Amplified], 0.1, 10) == epsilon(alone[Random], 0.1, 10) == epsilon(everywhere, 0.1, 10)
    assert "'all'" in priced_by(alone[Random], 0.1, 10)


@pytest.mark.parametrize("participation", ["random:0.001", "amplified:0.001"])
def test_a_rate_without_a_roster_is_refused(participation: str) -> None:
    with pytest.raises(InputError, match=r"clients = None: the rate is L / K"):
        Sensitivity(0.1, 1.0, sampled=5, participation=words.participation(participation))


# ---- 10: decay beyond 2, fixed point, exact


@pytest.mark.parametrize("level", ["unit", "client"])
def test_a_decay_beyond_two_is_refused(level: str) -> None:
    for E, rho, most in ((6, 9.0, 6 / 9), (1, 1.2, 1 / 1.2)):
        Sensitivity(most, 1.0, level=level, sampled=5, local_steps=E, regulariser=rho)
        with pytest.raises(InputError, match="beyond 2, where clipping bounds nothing"):
            Sensitivity(1.01 * most, 1.0, level=level, sampled=5, local_steps=E, regulariser=rho)
        Sensitivity(1.01 * most, 1.0, level=level, sampled=5, local_steps=E, regulariser=rho, clip="update")


def test_fixed_point_is_priced_with_its_grid_in_a_simulation() -> None:
    problem = confide.problems.regression(units=2, clients=5, samples=120, features=16)
    privacy = confide.Privacy(level="example")
    found = []
    for arithmetic, bits in (("float", 24), ("fixed", 40), ("fixed", 8)):
        algorithm = GFL(
            scheme("shared", 0.02, noise="gaussian"), step=0.3, sampled=5, local_steps=1, batch=100,
            replacement=False, clip=Clip("example", 1.0), arithmetic=arithmetic, fraction_bits=bits,
        )  # fmt: skip
        found.append(priced(privacy, problem, [PAIR], algorithm, 3, 0).account(3).epsilon or 0.0)
    exact, fine, coarse = found
    assert fine == pytest.approx(exact, rel=1e-6)
    assert coarse > 3 * exact  # a change of one quantum in every coordinate


def test_what_is_only_a_bound_is_not_called_exact() -> None:
    steep = scheme("homomorphic", 1.0, noise="gaussian")
    cases = [
        (Sensitivity(0.1, 1.0, level="unit", proof=Regulariser(0.1)), True),
        (Sensitivity(0.1, 1.0, sampled=5, proof=Regulariser(0.1)), False),
        (Sensitivity(0.1, 1.0, sampled=5, proof=ConvexGlm(0.1), smoothness=1.0), True),
        (Sensitivity(0.1, 1.0, sampled=5, proof=ConvexGlm(0.1)), False),
        (Sensitivity(0.1, 1.0, sampled=5, proof=ConvexGlm(0.1), local_steps=2), False),
    ]
    for s, exact in cases:
        assert account(steep, PAIR, s, rounds=5).exact is exact


# ---- 11: nothing falls through


@pytest.mark.parametrize("changes", [{"at": "links"}, {"at": "bogus"}, {"exchange": "mean"}])
def test_an_unknown_value_of_a_scheme_is_refused(changes: dict[str, str]) -> None:
    with pytest.raises(InputError, match="known: "):
        Scheme("mine", noises=(Noise(changes.get("at", "server"), 1.0),), exchange=changes.get("exchange", "graph"))


def test_a_plan_names_an_adversary_that_exists(a_plan: Callable[..., Plan]) -> None:
    for wrong in ("nobody", "colluders:9", "colluders"):
        with pytest.raises(InputError, match=r"^threat = "):
            a_plan(threat=wrong)


@pytest.fixture
def a_plan() -> Callable[..., Plan]:
    problem = confide.problems.regression(units=2, clients=5, samples=20)
    algorithm = GFL(scheme("shared", 0.5, noise="gaussian"), step=0.1, sampled=5, clip=Clip("example", 1.0))
    made = of_run(problem, [PAIR, Graph.path(2, "metropolis")], algorithm, 4, 0, confide.Privacy())
    return lambda **changes: changed(made, **changes)


def test_graphs_that_take_turns_have_a_plan_and_the_price_follows_from_it(a_plan: Callable[..., Plan]) -> None:
    plan = a_plan()
    again = Plan.from_text(plan.text)
    assert len(again.graph.graphs) == 2
    assert again.hash == plan.hash != a_plan(graph=PAIR).hash
    assert price(again).account(4).epsilon is not None


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"arithmetic": "fixed", "fraction_bits": 12},
        {"arithmetic": "fixed", "fraction_bits": 12, "aggregation": Secure(sigma=0.05)},
    ],
    ids=["float", "fixed", "noise in the sum"],
)
def test_a_price_follows_from_the_plan_alone(changes: dict[str, Any]) -> None:
    """Another price would be signed, or a true one refused: a bundle is priced anew from its plan."""
    problem = confide.problems.regression(units=2, clients=6, samples=20, rho=0.2)
    algorithm = GFL(
        scheme("own-clean", 0.5, noise="gaussian"), step=0.1, sampled=6, local_steps=(1, 3), clip=Clip("example", 1.0),
        **changes,
    )  # fmt: skip
    privacy = confide.Privacy(proof="regulariser:0.2", release="centroid:0.5")
    made = priced(privacy, problem, [PAIR], algorithm, 4)
    again = price(Plan.from_text(made.plan.text))
    assert again.sensitivity == made.sensitivity
    assert again.inside == made.inside
    assert (again.messages, again.release) == (made.messages, made.release)
    assert again.statement() == made.statement()


# ---- 12: servers receive the release, and know their share of its noise


@pytest.mark.parametrize("P", [2, 4])
def test_rows_about_servers_count_the_release(P: int) -> None:
    """sigma 30, T 20, mu 0.1, unit level, centroid:0.5 on the complete graph: what the target's state adds to the mean
    is seen through the shares that the adversary does not know."""
    s, graph, noisy = (
        Sensitivity(0.1, 1.0, level="unit"),
        Graph.complete(P),
        scheme("homomorphic", 30.0, noise="gaussian"),
    )
    said = {a.threat.partition(":")[0] + "+" * ("release" in a.adversary): a for a in statement(
        noisy, graph, s, rounds=20, release="centroid:0.5"
    ).accounts}  # fmt: skip
    messages = sum((0.2 * j / 30.0) ** 2 for j in range(1, 21))
    share = P**2 * 0.5**2 / (P - 1)  # variance of one server's share of noise on the sum
    for who, known in (("colluders+", 1), ("neighbours+", P - 1), ("links+", 0)):
        mu = math.sqrt(messages + (0.2 * 20) ** 2 / ((P - known) * share))
        assert said[who].epsilon == pytest.approx(gaussian_epsilon(mu, 1e-5))
    assert said["links"].epsilon == pytest.approx(gaussian_epsilon(math.sqrt(messages), 1e-5))


def test_shares_are_sized_for_the_adversary_that_the_plan_names() -> None:
    graph = Graph.complete(4)
    release = Centroid(0.5)
    assert Reveal.sized(release, Links(), [graph]).colluders == 1
    assert Reveal.sized(release, Neighbours(), [graph]).colluders == 3
    assert Reveal.sized(release, words.threat("colluders:0,2"), [graph]).colluders == 2
    for known in range(4):
        assert Reveal.sized(release, Neighbours(), [graph]).hidden(4, known) == 0.5 * math.sqrt(4 - known)


# ---- 15: overflow


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("x", [1e155, 1e200, 1e308, math.inf, -math.inf, math.nan])
def test_no_vector_gets_around_the_clip(x: float, norm: str) -> None:
    for v in ([x, x, x], [x, 0.0, 1.0], [[x, -x], [0.3, 0.4]]):
        found = clip(np.array(v), 1.0, norm)
        assert np.isfinite(found).all()
        assert (np.linalg.norm(found, ord=1 if norm == "l1" else 2, axis=-1) <= 1 + 1e-12).all()
    assert clip(np.array([[x, -x], [0.3, 0.4]]), 1.0, norm)[1].tolist() == [0.3, 0.4]


@pytest.mark.parametrize("arithmetic", ["float", "fixed"])
@pytest.mark.parametrize(("kind", "level"), [("example", "example"), ("example", "client"), ("update", "client")])
@pytest.mark.parametrize("model", [Linear(0.1), Logistic(0.1)])
@pytest.mark.parametrize("huge", [1e200, 1e308])
def test_huge_features_and_labels_keep_every_gap_below_its_bound(
    huge: float, model: Linear | Logistic, kind: str, level: str, arithmetic: str
) -> None:
    rng = np.random.default_rng(3)
    clients = [
        [(rng.standard_normal((6, 3)), np.where(rng.random(6) < 0.5, -1.0, 1.0)) for _ in range(3)] for _ in "ab"
    ]

    def problem(row: float) -> Problem:
        X, d = (a.copy() for a in clients[0][0])
        X[0] = (row, -row, row / 2)
        if isinstance(model, Linear):
            d[0] = row
        return Problem(Federation.from_clients([[(X, d), *clients[0][1:]], clients[1]]), model)

    algorithm = GFL(
        scheme("shared", 0.0, noise="gaussian"), step=0.1, sampled=3, local_steps=1, batch=6, replacement=False,
        clip=Clip(kind, 1.0), arithmetic=arithmetic,
    )  # fmt: skip
    usual, changed = problem(1.0), problem(huge)
    bound = deviation.sensitivity(of_run(usual, [PAIR], algorithm, 4, 0, confide.Privacy(level=level))).single
    quanta = 2 * math.sqrt(3) * 2.0**-24
    for w in (np.zeros(3), np.full(3, 0.3)):
        psi = []
        for data in (usual, changed):
            r = prepare(data, [PAIR], algorithm, 1, 0)(0)
            psi.append(r.arithmetic.value(r.adapt(1, 0, r.start(np.stack([w, w]))[0], range(3))))
        assert np.linalg.norm(psi[0] - psi[1]) <= bound * (1 + 1e-9) + quanta
    if arithmetic == "float":
        engine, r = CompiledEngine(changed, [PAIR], algorithm, 4, 0), prepare(changed, [PAIR], algorithm, 4, 0)(0)
        states, w = engine.start(), r.start(np.zeros((2, 3)))
        engine.advance(0, states, 1, 4, Recording.empty(1, 4, 3, 1))
        for i in range(1, 5):
            w = r.round(i, w).w
        assert np.isfinite(states).all()
        assert np.allclose(states, w, rtol=0, atol=1e-9)


# ---- 18: convex


class Concave(Linear):
    """A GLM whose loss is not convex."""

    def slope(self, z: np.ndarray, d: np.ndarray) -> np.ndarray:
        return -2.0 * (z - d)


class Declared(Concave):
    convex = True


def test_convex_glm_is_for_the_models_it_was_proven_for() -> None:
    data = confide.problems.regression(units=2, clients=5, samples=20, rho=0.1).federation
    algorithm = GFL(step=0.01, sampled=5, clip=Clip("example", 1.0))
    privacy = confide.Privacy(proof="convex-glm:0.1", smoothness=100.0)
    priced(privacy, Problem(data, Linear(0.1)), [PAIR], algorithm, 4)
    with pytest.raises(InputError, match="this model does not"):
        priced(privacy, Problem(data, Concave(0.1)), [PAIR], algorithm, 4)
    priced(privacy, Problem(data, Declared(0.1)), [PAIR], algorithm, 4)
