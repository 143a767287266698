"""Random and amplified participation: against enumeration of all patterns, against dp-accounting, against a mixture."""

from __future__ import annotations

import itertools
import math

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant
from numpy.typing import NDArray

from confide.errors import InputError
from confide.graph import Graph
from confide.privacy.accountant import account
from confide.privacy.conversion import ORDERS, gaussian_epsilon, laplace_renyi, pure_renyi, renyi_epsilon
from confide.privacy.participation import amplified_curve, random_curve
from confide.privacy.sensitivity import Participation, Proof, Sensitivity
from confide.schemes import scheme

Floats = NDArray[np.float64]
ORDER = np.array([1.05, 1.5, 2.0, 3.0, 8.0, 40.0])
RENYI = {"laplace": laplace_renyi, "discrete-laplace": pure_renyi}
RING = Graph.ring(4)


def sens(participation: str, s: float = 0.3, **given: object) -> Sensitivity:
    """2 mu B / L = s."""
    facts: dict[str, object] = {"step": s / 2, "bound": 1.0, "sampled": 1, "proof": Proof("public-point")} | given
    return Sensitivity(**facts, participation=Participation.parse(participation))  # type: ignore[arg-type]


def deviations(pattern: tuple[int, ...], added: float, keep: Floats) -> Floats:
    x, found = 0.0, []
    for j, present in enumerate(pattern):
        x = (float(keep[j - 1]) * x if j else 0.0) + added * present
        found.append(x)
    return np.array(found)


def enumerated(q: float, added: float, keep: Floats, factor: Floats, noise: str, final: float) -> Floats:
    """log E over all 2^T patterns of exp((a - 1) cost), each order."""
    logs = []
    for pattern in itertools.product((0, 1), repeat=len(keep)):
        x, n = deviations(pattern, added, keep), sum(pattern)
        weight = q**n * (1 - q) ** (len(keep) - n)
        if weight == 0.0:
            continue
        if noise == "gaussian":
            cost = ORDER / 2 * (float(factor @ x**2) + (final * x[-1]) ** 2)
        else:
            cost = np.array([RENYI[noise](np.append(factor * x, final * x[-1]), a).sum() for a in ORDER])
        logs.append(math.log(weight) + (ORDER - 1) * cost)
    return np.logaddexp.reduce(np.array(logs), axis=0) / (ORDER - 1)


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
    curve, _ = random_curve(q=q, added=0.4, keep=keep, factor=factor, noise=noise, final=final)
    np.testing.assert_allclose(curve(ORDER), enumerated(q, 0.4, keep, factor, noise, final), rtol=1e-9)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("carry", [0.05, 0.37, 0.8, 0.99])
def test_between_the_ends_it_is_an_upper_bound_and_close(noise: str, carry: float) -> None:
    T, q = 8, 0.3
    for keep in (np.full(T, carry), np.where(np.arange(T) % 2, carry, 1.0)):
        factor = np.full(T, 0.7)
        curve, _ = random_curve(q=q, added=0.4, keep=keep, factor=factor, noise=noise, final=0.5)
        exact = enumerated(q, 0.4, keep, factor, noise, 0.5)
        assert np.all(curve(ORDER) >= exact * (1 - 1e-9))
        assert np.all(curve(ORDER) <= 1.15 * exact)


@pytest.mark.parametrize("name", ["homomorphic", "own-clean", "shared", "partial:0.5"])
def test_it_grows_with_the_rate_and_ends_at_all(name: str) -> None:
    s = scheme(name, 1.0, noise="gaussian")
    eps = [account(s, RING, sens(f"random:{q}"), rounds=6).epsilon or 0.0 for q in (0.05, 0.2, 0.5, 0.9, 1.0)]
    assert np.all(np.diff(eps) > 0)
    every = account(s, RING, sens("all"), rounds=6)
    assert every.rho is not None
    by_orders = renyi_epsilon(lambda a: a * every.rho, 1e-5)
    assert eps[-1] == pytest.approx(by_orders, rel=1e-9 if name in ("homomorphic", "shared") else 0.03)
    assert eps[-1] >= by_orders * (1 - 1e-9)


def test_one_participation_of_many_rounds() -> None:
    """q small: the curve is about q times the cost of the single patterns."""
    T, q, factor = 5, 1e-6, np.ones(5)
    curve, _ = random_curve(q=q, added=0.1, keep=np.ones(T), factor=factor, noise="gaussian", final=0.0)
    single = sum(math.expm1((2 - 1) * 2 / 2 * 0.1**2 * (T - j)) for j in range(T))
    assert curve(np.array([2.0]))[0] == pytest.approx(math.log1p(q * single), rel=1e-4)


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
    T, sigma = 20, 0.5
    s = sens(f"amplified:{q}", adjacency=adjacency)
    multiplier = sigma / s.single
    ours = account(scheme("shared", sigma, noise="gaussian"), RING, s, rounds=T).epsilon
    inner = dp.GaussianDpEvent(multiplier)
    event: dp.DpEvent
    orders = np.unique(np.rint(ORDERS[ORDERS >= 2]))
    if adjacency == "replace":
        orders = np.concatenate([orders[:30], orders[30::13]])  # of the high ones, which cost most, some and the last
        event = dp.SampledWithoutReplacementDpEvent(1000, round(1000 * q), inner)
        relation = dp.NeighboringRelation.REPLACE_ONE
    else:
        event, relation = dp.PoissonSampledDpEvent(q, inner), dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = rdp_privacy_accountant.RdpAccountant(orders=orders.tolist(), neighboring_relation=relation)
    accountant.compose(dp.SelfComposedDpEvent(event, T))
    curve, _ = amplified_curve(s, "gaussian", np.full(T, sigma**-2))
    np.testing.assert_allclose(curve(orders), accountant._rdp, rtol=1e-6)
    assert ours == pytest.approx(accountant.get_epsilon(1e-5), rel=0.07)  # orders between the whole ones are chords


def test_amplified_between_whole_orders_lies_on_chords_that_are_above() -> None:
    """(a - 1) R_a is convex, so its chord is a bound; checked against the exact Poisson curve at broken orders."""
    s = sens("amplified:0.01", s=1.0, adjacency="zero-out")
    curve, _ = amplified_curve(s, "gaussian", np.full(5, 4.0))
    orders = np.array([2.1, 2.5, 3.3, 5.6, 11.5, 30.0, 40.4, 50.0])  # beyond 10 R_a itself is concave
    accountant = rdp_privacy_accountant.RdpAccountant(orders=orders.tolist())
    event = dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(0.5 / s.single))
    accountant.compose(dp.SelfComposedDpEvent(event, 5))
    assert np.all(curve(orders) >= np.asarray(accountant._rdp) * (1 - 1e-9))
    assert np.all(np.isinf(curve(np.array([1.5]))))


def test_amplified_never_rounds_the_rate_down_to_nothing() -> None:
    whole = np.array([2.0, 3.0, 5.0])
    tiny, small = (amplified_curve(sens(f"amplified:{q}", s=1.0), "gaussian", np.full(5, 4.0))[0] for q in (1e-8, 1e-6))
    assert np.all(tiny(whole) > 0.0)
    assert np.all(tiny(whole) < small(whole))


def test_amplification_is_refused_where_it_has_no_proof() -> None:
    for name in ("homomorphic", "own-clean", "per-link", "partial:0.1"):
        with pytest.raises(InputError, match=r"remembers.*carry > 0.*no proof") as e:
            account(scheme(name, 1.0, noise="gaussian"), RING, sens("amplified:0.1"), rounds=3)
        assert e.value.field == "participation"
    for noise in ("laplace", "discrete-gaussian", "discrete-laplace"):
        with pytest.raises(InputError, match="implemented for Gaussian") as e:
            account(scheme("shared", 1.0), RING, sens("amplified:0.1", norm="l1"), rounds=3, noise=noise)
        assert e.value.field == "noise"


@pytest.mark.parametrize("participation", ["random:0.1", "amplified:0.1"])
def test_who_sees_the_list_gets_no_randomness(participation: str) -> None:
    shared = scheme("shared", 1.0, noise="gaussian")
    with pytest.raises(InputError, match="learns who takes part"):
        account(shared, RING, sens(participation), rounds=3, threat="own-client")
    assert account(shared, RING, sens(participation), rounds=3, threat="own-server").leak
    assert account(shared, RING, sens(participation), rounds=3, threat="colluders:1").epsilon is not None


@pytest.mark.parametrize("participation", ["random:0.1", "cap:2"])
def test_participation_of_one_client_is_refused_with_the_regulariser_proof(participation: str) -> None:
    s = sens(participation, proof=Proof("regulariser", 0.1))
    with pytest.raises(InputError, match="all clients of the unit may change"):
        account(scheme("homomorphic", 1.0, noise="gaussian"), RING, s, rounds=5)
    assert account(scheme("shared", 1.0, noise="gaussian"), RING, s, rounds=5).epsilon is not None


# Numbers of privacy.md 1.3


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
    # Poisson sampling with a sensitivity of s, as in the table: zero-out, so twice the bound
    poisson = sens(f"amplified:{q}", 2 * s, adjacency="zero-out")
    assert poisson.single == pytest.approx(s)
    a = account(shared, RING, poisson, rounds=T, delta=1e-3).epsilon
    assert a is not None
    assert fresh < a
    assert a == pytest.approx(amplified, rel=0.05)  # the third row is .679: only orders from 2 on are used


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
    naive = account(
        scheme("shared", 1.0, noise="gaussian"),
        RING,
        sens(f"amplified:{q}", 2 * s, adjacency="zero-out"),
        rounds=T,
        delta=1e-3,
    ).epsilon
    assert naive is not None
    assert delta(naive) > 5e-3  # so amplifying a state that remembers would be false


def test_gaussian_conversion_beats_renyi_at_full_participation() -> None:
    rho = 0.3**2 / 2 * sum(j * j for j in range(1, 9))
    assert ghp(8, 0.3, "all", 1e-3) == pytest.approx(gaussian_epsilon(math.sqrt(2 * rho), 1e-3), rel=1e-12)
