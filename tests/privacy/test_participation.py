"""Random and amplified participation: against enumeration of all patterns, against dp-accounting, against a mixture."""

from __future__ import annotations

import inspect
import itertools
import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant
from numpy.typing import NDArray

from confide.base.errors import InputError
from confide.graph.graph import Graph
from confide.laws.conversion import ORDERS, gaussian_epsilon, laplace_renyi, pure_renyi, renyi_epsilon
from confide.laws.law import GAUSSIAN, LAWS
from confide.plans import words
from confide.plans.words import Always, Amplified, ClippingAlone, PublicPoint, Random, Regulariser
from confide.privacy import participation as by_chance
from confide.privacy.accountant import account
from confide.privacy.participation import Curve, amplified_curve, random_curve
from confide.privacy.sensitivity import Sensitivity
from confide.rounds.schemes import Scheme, scheme

Floats = NDArray[np.float64]
ORDER = np.array([1.05, 1.5, 2.0, 3.0, 8.0, 40.0])
WHOLE = np.concatenate([np.arange(2.0, 40.0), np.arange(40.0, 200.0, 16.0)])  # the high ones, which cost most: some
RENYI = {"laplace": laplace_renyi, "discrete-laplace": pure_renyi}
RING = Graph.ring(4)


def sens(participation: str, s: float = 0.3, **given: object) -> Sensitivity:
    """2 mu B / L = s; a rate is that of L of K clients."""
    part = words.participation(participation)
    rate = Fraction(part.rate if isinstance(part, Random | Amplified) else 1).limit_denominator(10**9)
    L, K = rate.numerator, rate.denominator
    facts: dict[str, object] = {"step": s * L / 2, "bound": 1.0, "sampled": L, "clients": K}
    return Sensitivity(**(facts | {"proof": PublicPoint()} | given), participation=part)  # type: ignore[arg-type]


def priced_by(s: Scheme, participation: str, rounds: int, **given: object) -> tuple[float, str]:
    """epsilon, and the note that says which bound it is."""
    a = account(s, RING, sens(participation), rounds=rounds, **given)  # type: ignore[arg-type]
    assert a.epsilon is not None
    return a.epsilon, next(note for note in a.assumptions if note.startswith("participation "))


def curve_of(accountant: rdp_privacy_accountant.RdpAccountant) -> Floats:
    return np.asarray(accountant.rdp)


def without_replacement(q: float, multiplier: float, T: int, orders: Floats) -> Floats:
    """dp-accounting's curve of T samples of fixed size, whose mean moves by one when a client is exchanged."""
    relation = dp.NeighboringRelation.REPLACE_ONE
    accountant = rdp_privacy_accountant.RdpAccountant(orders=orders.tolist(), neighboring_relation=relation)
    event = dp.SampledWithoutReplacementDpEvent(1000, round(1000 * q), dp.GaussianDpEvent(multiplier))
    accountant.compose(dp.SelfComposedDpEvent(event, T))
    return curve_of(accountant)


def poisson(q: float, multiplier: float, T: int, orders: Floats) -> Floats:
    """The divergence of (1 - q) N(0, 1) + q N(1/multiplier, 1) from N(0, 1), which fixed-size samples attain too: of
    one of K clients, all others at one end of the ball and the target at the other."""
    accountant = rdp_privacy_accountant.RdpAccountant(orders=orders.tolist())
    accountant.compose(dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(multiplier)), T))
    return curve_of(accountant)


def converted(curve: Floats, orders: Floats, delta: float) -> float:
    return float(np.min(curve + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)))


def at(orders: Floats, curve: Curve) -> Floats:
    """After its last round and one release, at these orders in place of the accountant's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(by_chance, "ORDERS", orders)
        return np.asarray(inspect.unwrap(curve)(1)[:, -1])  # what it remembers is of the accountant's orders


def by_orders(curve: Curve) -> float:
    """epsilon at delta 1e-5."""
    return renyi_epsilon(lambda orders: at(orders, curve), 1e-5)


def deviations(pattern: tuple[int, ...], added: float, keep: Floats) -> Floats:
    x, found = 0.0, []
    for j, present in enumerate(pattern):
        x = (float(keep[j - 1]) * x if j else 0.0) + added * present
        found.append(x)
    return np.array(found)


def enumerated(
    q: float, added: float, keep: Floats, factor: Floats, noise: str, final: float, orders: Floats = ORDER
) -> Floats:
    """log E over all 2^T patterns of exp((a - 1) cost), each order."""
    logs = []
    for pattern in itertools.product((0, 1), repeat=len(keep)):
        x, n = deviations(pattern, added, keep), sum(pattern)
        weight = q**n * (1 - q) ** (len(keep) - n)
        if weight == 0.0:
            continue
        if noise == "gaussian":
            cost = orders / 2 * (float(factor @ x**2) + (final * x[-1]) ** 2)
        else:
            cost = np.array([RENYI[noise](factor * x, a).sum() for a in orders])
            cost += orders / 2 * (final * x[-1]) ** 2  # a release's noise is Gaussian, whatever that of the messages
        logs.append(math.log(weight) + (orders - 1) * cost)
    return np.asarray(np.logaddexp.reduce(np.array(logs), axis=0) / (orders - 1))


def by_name(noise: str, factor: NDArray[np.float64]) -> dict[str, Any]:
    """Of the noise, `factor` copies with precision 1, or with scale 1."""
    law = LAWS[noise]
    return {"noise": law, "sigma": math.sqrt(2.0) if law.pure else 1.0, "copies": factor}


@pytest.mark.parametrize("noise", ["gaussian", "laplace", "discrete-laplace"])
@pytest.mark.parametrize("q", [0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("carry", [0.0, 1.0, "mixed"])
@pytest.mark.parametrize("final", [0.0, 0.8])
def test_random_participation_is_the_mean_over_all_patterns(
    noise: str, q: float, carry: float | str, final: float
) -> None:
    T = 7
    keep = np.array([1.0, 0, 1, 1, 0, 1, 1]) if carry == "mixed" else np.full(T, float(carry))
    factor = np.linspace(0.5, 1.5, T)
    curve, _ = random_curve(**by_name(noise, factor), q=q, added=0.4, keep=keep, final=np.full(T, final))
    np.testing.assert_allclose(at(ORDER, curve), enumerated(q, 0.4, keep, factor, noise, final), rtol=1e-9)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("carry", [0.05, 0.37, 0.8, 0.99])
def test_between_the_ends_it_is_an_upper_bound_and_close(noise: str, carry: float) -> None:
    T, q = 8, 0.3
    for keep in (np.full(T, carry), np.where(np.arange(T) % 2, carry, 1.0)):
        factor = np.full(T, 0.7)
        curve, _ = random_curve(**by_name(noise, factor), q=q, added=0.4, keep=keep, final=np.full(T, 0.5))
        exact = enumerated(q, 0.4, keep, factor, noise, 0.5)
        assert np.all(at(ORDER, curve) >= exact * (1 - 1e-9))
        assert np.all(at(ORDER, curve) <= 1.15 * exact)


@pytest.mark.parametrize("name", ["homomorphic", "own-clean", "shared", "partial:0.5"])
def test_it_grows_with_the_rate_and_ends_at_all(name: str) -> None:
    """Printed is the smaller of the bound for random participation and that for a client who is always there."""
    s, T, rates = scheme(name, 1.0, noise="gaussian"), 6, (0.05, 0.2, 0.5, 0.9, 1.0)
    every = account(s, RING, sens("all"), rounds=T)
    assert every.rho is not None
    assert every.epsilon is not None
    keep, bounds = np.full(T, s.carries(RING)[0]), []
    for q in rates:
        curve, _ = random_curve(q=q, added=0.3, keep=keep, **by_name("gaussian", np.ones(T)), final=np.zeros(T))
        bounds.append(by_orders(curve))
        found, note = priced_by(s, f"random:{q}", T)
        assert found == pytest.approx(min(bounds[-1], every.epsilon), rel=1e-12)
        assert f"random:{q:g}: the smallest of the bounds that hold is that of" in note
        assert ("'all'" in note) == (every.epsilon <= bounds[-1])
    assert np.all(np.diff(bounds) > 0)
    assert bounds[0] < every.epsilon < bounds[-1]  # at q = 1 it is the same divergence, converted less well
    rho = every.rho
    whole = renyi_epsilon(lambda a: a * rho, 1e-5)
    assert bounds[-1] == pytest.approx(whole, rel=1e-9 if name in ("homomorphic", "shared") else 0.03)
    assert bounds[-1] >= whole * (1 - 1e-9)


def test_one_participation_of_many_rounds() -> None:
    """q small: the curve is about q times the cost of the single patterns."""
    T, q, factor = 5, 1e-6, np.ones(5)
    curve, _ = random_curve(q=q, added=0.1, keep=np.ones(T), **by_name("gaussian", factor), final=np.zeros(T))
    single = sum(math.expm1((2 - 1) * 2 / 2 * 0.1**2 * (T - j)) for j in range(T))
    assert at(np.array([2.0]), curve)[0] == pytest.approx(math.log1p(q * single), rel=1e-4)


@pytest.mark.parametrize(
    ("threat", "known"), [("links", 0), ("colluders:0", 1), ("colluders:0,3", 2), ("neighbours", 2)]
)
@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_a_release_is_seen_through_the_shares_that_are_not_known(threat: str, known: int, law: str) -> None:
    """Homomorphic on a path, so that one server has more neighbours than another; by enumeration of all patterns."""
    T, q, sigma, released, added, path = 4, 0.25, 2.0, 0.4, 0.3, Graph.path(4)
    s = scheme("homomorphic", sigma, noise=law)
    variance = (4 - known) * released**2 / (4 - max(1, known))  # of the others' shares on the mean
    factor = np.full(T, sigma**-2 if law == "gaussian" else math.sqrt(2) / sigma)
    final = 1 / 4 / math.sqrt(variance)

    def curve(orders: Floats) -> Floats:
        return enumerated(q, added, np.ones(T), factor, law, final, orders)

    one = sens(f"random:{q}", added, norm="l1")
    found = account(s, path, one, rounds=T, threat=threat, release=f"centroid:{released}")
    every = account(s, path, replace(one, participation=Always()), rounds=T, threat=threat,
                    release=f"centroid:{released}")  # fmt: skip
    assert every.epsilon is not None
    assert found.epsilon == pytest.approx(min(renyi_epsilon(curve, 1e-5), every.epsilon), rel=1e-9)
    assert (found.epsilon or math.inf) < every.epsilon
    assert f"{4 - known} of 4 shares are not known to this adversary" in " | ".join(found.assumptions)


# A cap


@pytest.mark.parametrize("N", [1, 2, 4])
@pytest.mark.parametrize("name", ["homomorphic", "shared", "own-clean", "pairwise"])
@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_a_cap_covers_every_pattern_with_as_many_participations(N: int, name: str, law: str) -> None:
    """Also when the rounds differ: graphs that take turns give pairwise noise different precisions."""
    if name == "pairwise" and law == "laplace":
        return
    T, graphs = 6, [Graph.complete(4), Graph.path(4)]
    s = scheme(name, 0.8, noise=law, sigma_pair=2.0 if name == "pairwise" else 0.0)
    a = account(s, graphs, sens(f"cap:{N}", norm="l1"), rounds=T)
    worst = 0.0
    for p in range(4):
        carries = np.array([s.carries(graphs[j % 2])[p] for j in range(T)])
        for pattern in itertools.product((0, 1), repeat=T):
            if sum(pattern) > N:
                continue
            x = deviations(pattern, 0.3, carries)
            if law == "laplace":
                worst = max(worst, x.sum() * math.sqrt(2) / 0.8)
                continue
            precision = np.full(T, 0.8**-2)
            if name == "pairwise":
                for j in range(T):
                    L = np.diag(graphs[j % 2].degrees) - (graphs[j % 2].A > 0) + np.eye(4)
                    precision[j] = np.linalg.inv(0.64 * np.eye(4) + 4.0 * L)[p, p]
            worst = max(worst, math.sqrt(precision @ x**2))
    found = a.mu_gdp if law == "gaussian" else a.epsilon_pure
    assert found is not None
    assert found >= worst * (1 - 1e-12)
    if name in ("shared", "pairwise"):
        assert found == pytest.approx(worst, rel=1e-12)  # exact
    assert not a.exact


# Amplification


@pytest.mark.parametrize(("q", "adjacency"), [(0.01, "zero-out"), (0.2, "replace"), (1.0, "zero-out")])
def test_amplified_is_that_of_dp_accounting(q: float, adjacency: str) -> None:
    """Samples of fixed size, with the distance of an exchange also where the client only contributes nothing."""
    T, sigma, swap = 20, 0.5, 0.3
    s = sens(f"amplified:{q}", swap, adjacency=adjacency)
    orders = np.unique(np.rint(ORDERS[ORDERS >= 2]))
    orders = np.concatenate([orders[:30], orders[30::13]])  # of the high ones, which cost most, some and the last
    theirs = without_replacement(q, sigma / swap, T, orders)
    curve, _ = amplified_curve(s, q, GAUSSIAN, np.full(T, sigma**-2))
    np.testing.assert_allclose(at(orders, curve), theirs, rtol=1e-6)
    amplified = by_orders(curve)
    assert amplified == pytest.approx(
        converted(theirs, orders, 1e-5), rel=0.07
    )  # orders between the whole ones are chords
    shared = scheme("shared", sigma, noise="gaussian")
    others = [account(shared, RING, replace(s, participation=p), rounds=T).epsilon for p in (Random(q), Always())]
    printed = account(shared, RING, s, rounds=T).epsilon
    assert printed == min(amplified, *(e for e in others if e is not None))
    assert (printed == amplified) == (q < 1.0)


def test_amplified_between_whole_orders_lies_on_chords_that_are_above() -> None:
    """(a - 1) R_a is convex, so its chord is a bound; checked at broken orders against a mixture that is attained."""
    s = sens("amplified:0.01", s=1.0)
    curve, _ = amplified_curve(s, 0.01, GAUSSIAN, np.full(5, 4.0))
    orders = np.array([2.1, 2.5, 3.3, 5.6, 11.5, 30.0, 40.4, 50.0])  # beyond 10 R_a itself is concave
    assert np.all(at(orders, curve) >= poisson(0.01, 0.5 / 1.0, 5, orders) * (1 - 1e-9))
    whole = np.unique(np.rint(orders))
    chords = np.interp(orders, whole, (whole - 1) * without_replacement(0.01, 0.5, 5, whole)) / (orders - 1)
    np.testing.assert_allclose(at(orders, curve), chords, rtol=1e-6)
    assert np.all(np.isinf(at(np.array([1.5]), curve)))
    assert np.all(np.isinf(at(np.array([40.4]), curve)))  # no chord ends beyond it


@pytest.mark.parametrize(("K", "L"), [(2, 1), (4, 1), (4, 2), (6, 3), (5, 4)])
@pytest.mark.parametrize("adjacency", ["replace", "zero-out"])
def test_no_population_passes_the_amplified_bound(K: int, L: int, adjacency: str) -> None:
    """All samples of L of K, everybody somewhere in the ball: the exact divergence of two mixtures, both ways."""
    x, sigma = np.linspace(-9.0, 9.0, 4001), 0.7
    orders, rng = np.array([2.0, 3.0, 8.0]), np.random.default_rng(K * 10 + L)
    curve, _ = amplified_curve(
        sens(f"amplified:{L / K}", 2.0 / L, adjacency=adjacency), L / K, GAUSSIAN, np.array([sigma**-2])
    )
    bound, closest = at(orders, curve), 0.0
    populations = [
        np.full(K - 1, -1.0),
        np.full(K - 1, 1.0),
        *rng.uniform(-1, 1, (6, K - 1)),
        *rng.choice([-1, 1], (6, K - 1)),
    ]
    for others in populations:
        logs = []
        for target in (1.0, -1.0 if adjacency == "replace" else 0.0):
            means = np.array([sum(c) / L for c in itertools.combinations([target, *others], L)])
            each = -0.5 * ((x[:, None] - means) / sigma) ** 2
            logs.append(
                np.logaddexp.reduce(each, axis=1) - math.log(len(means)) - math.log(sigma * math.sqrt(2 * math.pi))
            )
        for p, r in (logs, logs[::-1]):
            found = np.log(np.trapezoid(np.exp(np.multiply.outer(orders, p) + np.multiply.outer(1 - orders, r)), x))
            assert np.all(found / (orders - 1) <= bound * (1 + 1e-9))
            closest = max(closest, float(np.max(found / (orders - 1) / bound)))
    assert closest > 0.1  # the populations are not all harmless


def test_amplified_never_rounds_the_rate_down_to_nothing() -> None:
    whole = np.array([2.0, 3.0, 5.0])
    curves = (amplified_curve(sens(f"amplified:{q}", s=1.0), q, GAUSSIAN, np.full(5, 4.0))[0] for q in (1e-8, 1e-6))
    tiny, small = (at(whole, curve) for curve in curves)
    assert np.all(tiny > 0.0)
    assert np.all(tiny < small)


def test_amplification_is_refused_where_it_has_no_proof() -> None:
    """Then another bound answers and says so; where none does, the refusal is that of what was asked."""
    for name in ("homomorphic", "own-clean", "per-link", "partial:0.1"):
        s = scheme(name, 1.0, noise="gaussian")
        found, note = priced_by(s, "amplified:0.1", 3)
        assert found == priced_by(s, "random:0.1", 3)[0]
        assert "amplified is refused (the state remembers earlier participations (carry > 0): " in note
        assert "no proof; use random:Q" in note
        with pytest.raises(InputError, match=r"remembers.*carry > 0.*no proof") as e:
            account(s, RING, sens("amplified:0.1", proof=ClippingAlone()), rounds=3)
        assert e.value.field == "participation"
    for noise in ("laplace", "discrete-gaussian", "discrete-laplace"):
        s, drawn = scheme("shared", 1.0), {p: sens(f"{p}:0.1", norm="l1") for p in ("amplified", "random")}
        a, b = (account(s, RING, one, rounds=3, noise=noise) for one in drawn.values())
        assert a.epsilon == b.epsilon
        assert "amplified is refused (amplification is implemented for Gaussian noise" in a.assumptions[-1]
        with pytest.raises(InputError, match="implemented for Gaussian") as e:
            amplified_curve(drawn["amplified"], 0.1, LAWS[noise], np.ones(3))
        assert e.value.field == "noise"


def test_who_sees_the_list_gets_no_amplification() -> None:
    """Given who took part the bound for random participation is already a mean over patterns: knowing them is free."""
    shared = scheme("shared", 1.0, noise="gaussian")
    outside, inside = (
        {p: priced_by(shared, f"{p}:0.1", 3, threat=threat) for p in ("random", "amplified")}
        for threat in ("links", "own-client")
    )
    curve, _ = random_curve(q=0.1, added=0.3, keep=np.zeros(3), **by_name("gaussian", np.ones(3)), final=np.zeros(3))
    assert inside["random"][0] == outside["random"][0] == pytest.approx(by_orders(curve), rel=1e-12)
    assert inside["amplified"][0] == inside["random"][0] > outside["amplified"][0]
    assert "amplified is refused (own-client learns who takes part" in inside["amplified"][1]
    for participation in ("random:0.1", "amplified:0.1"):
        assert account(shared, RING, sens(participation), rounds=3, threat="own-server").leak
        assert priced_by(shared, participation, 3, threat="colluders:1")[0] == outside[participation.split(":")[0]][0]


@pytest.mark.parametrize("participation", ["random:0.1", "cap:2"])
def test_participation_of_one_client_is_refused_with_the_regulariser_proof(participation: str) -> None:
    s, steep = sens(participation, proof=Regulariser(0.1)), scheme("homomorphic", 1.0, noise="gaussian")
    if participation == "cap:2":
        with pytest.raises(InputError, match="all clients of the unit may change"):
            account(steep, RING, s, rounds=5)
    else:  # counted as if in every round
        a = account(steep, RING, s, rounds=5)
        assert a.epsilon == account(steep, RING, replace(s, participation=Always()), rounds=5).epsilon
        assert (
            "random is refused (under proof regulariser the updates of all clients of the unit may change"
            in (a.assumptions[-1])
        )
    assert account(scheme("shared", 1.0, noise="gaussian"), RING, s, rounds=5).epsilon is not None


# Numbers of docs/design/privacy.md, 1.3


def ghp(T: int, s: float, participation: str, delta: float) -> float:
    a = account(scheme("homomorphic", 1.0, noise="gaussian"), RING, sens(participation, s), rounds=T, delta=delta)
    assert a.epsilon is not None
    return a.epsilon


def test_two_hundred_rounds_at_a_ninth() -> None:
    assert ghp(200, 0.002, "all", 1e-5) == pytest.approx(18.7, abs=0.05)
    assert ghp(200, 0.002, "cap:36", 1e-5) == pytest.approx(4.16, abs=0.01)
    assert ghp(200, 0.002, "random:0.11", 1e-5) == pytest.approx(2.13, rel=0.01)


TABLE = [  # T, q, s | exact lower bound, Valid 2, all rounds || shared: exact, amplified, not amplified
    (8, 0.1, 0.1, 0.385, 1.717, 4.91, 0.041, 0.054, 0.686),
    (8, 0.1, 0.3, 2.53, 7.88, 21.7, 0.186, 0.233, 2.56),
    (8, 0.02, 1.0, 8.17, 38.5, 145.0, 0.234, 0.653, 12.1),
    (8, 0.3, 0.3, 7.88, 13.3, 21.7, 0.671, 0.810, 2.56),
]


@pytest.mark.parametrize(("T", "q", "s", "least", "random", "every", "fresh", "amplified", "plain"), TABLE)
def test_the_table_at_delta_one_in_a_thousand(
    T: int, q: float, s: float, least: float, random: float, every: float, fresh: float, amplified: float, plain: float
) -> None:
    ours = ghp(T, s, f"random:{q}", 1e-3)
    assert least < ours <= 1.01 * random
    assert ghp(T, s, "all", 1e-3) == pytest.approx(every, rel=0.01)
    assert ours < ghp(T, s, "all", 1e-3)
    shared = scheme("shared", 1.0, noise="gaussian")
    got = account(shared, RING, sens("all", s), rounds=T, delta=1e-3).epsilon
    assert got is not None
    assert got == pytest.approx(plain, rel=0.01)
    assert got > fresh
    # Poisson sampling with a sensitivity of s, as in the table, and what runs: samples of fixed size, exchange s
    by_poisson = converted(poisson(q, 1 / s, T, WHOLE), WHOLE, 1e-3)
    assert by_poisson == pytest.approx(amplified, rel=0.05)  # the third row is .679: only orders from 2 on are used
    by_size = converted(without_replacement(q, 1 / s, T, WHOLE), WHOLE, 1e-3)
    a = account(shared, RING, sens(f"amplified:{q}", s), rounds=T, delta=1e-3).epsilon
    b = account(shared, RING, sens(f"random:{q}", s), rounds=T, delta=1e-3).epsilon
    assert a is not None
    assert b is not None
    assert a == pytest.approx(min(by_size, b, got), rel=0.02)  # with orders between the whole ones
    assert fresh < by_poisson < a < got
    same = sens(f"amplified:{q}", s, adjacency="zero-out")
    half = sens(f"random:{q}", s, adjacency="zero-out")  # only there contributing nothing is half of an exchange
    zero_out = [account(shared, RING, one, rounds=T, delta=1e-3).epsilon or math.nan for one in (same, half)]
    assert zero_out[0] == pytest.approx(min(by_size, zero_out[1]), rel=0.02)


@pytest.mark.parametrize(("T", "q", "s", "least"), [row[:4] for row in TABLE[:2]])
def test_the_true_mixture_is_above_naive_amplification_and_below_ours(T: int, q: float, s: float, least: float) -> None:
    """The exact divergence of homomorphic under random participation, by sampling the mixture over patterns."""
    rng = np.random.default_rng(0)
    patterns = np.array(list(itertools.product((0, 1), repeat=T)))
    log_weight = patterns.sum(axis=1) * math.log(q) + (T - patterns.sum(axis=1)) * math.log1p(-q)
    means = s * np.cumsum(patterns, axis=1)
    chosen = rng.choice(len(patterns), size=20_000, p=np.exp(log_weight))
    y = means[chosen] + rng.standard_normal((len(chosen), T))
    loss = np.logaddexp.reduce(log_weight + y @ means.T - 0.5 * (means**2).sum(axis=1), axis=1)

    def delta(epsilon: float) -> float:
        return float(np.mean(np.maximum(0.0, 1.0 - np.exp(epsilon - loss))))

    ours = ghp(T, s, f"random:{q}", 1e-3)
    assert delta(ours) <= 1e-3
    assert delta(0.9 * least) > 1e-3  # the table's lower bound is real
    naive = converted(poisson(q, 1 / s, T, WHOLE), WHOLE, 1e-3)
    assert delta(naive) > 5e-3  # so amplifying a state that remembers would be false
    shared = scheme("shared", 1.0, noise="gaussian")
    fresh = account(shared, RING, sens(f"amplified:{q}", s), rounds=T, delta=1e-3).epsilon
    assert fresh is not None
    assert delta(fresh) > 1e-3  # also with the number that holds where nothing is remembered
    assert ghp(T, s, f"amplified:{q}", 1e-3) == ours  # which is not given here


def test_gaussian_conversion_beats_renyi_at_full_participation() -> None:
    rho = 0.3**2 / 2 * sum(j * j for j in range(1, 9))
    assert ghp(8, 0.3, "all", 1e-3) == pytest.approx(gaussian_epsilon(math.sqrt(2 * rho), 1e-3), rel=1e-12)
