"""Noise inside the secure sum: the bound against exact divergences, against an attack, and who counts as honest."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from scipy.special import logsumexp

from confide.base.errors import InputError
from confide.graph.graph import Graph
from confide.laws.noise import discrete_gaussian
from confide.laws.secret_stream import SecretStream
from confide.plans.words import Cap
from confide.privacy.accountant import account
from confide.privacy.course import Account
from confide.privacy.sensitivity import Sensitivity
from confide.privacy.sum_noise import SumNoise, release_rho, sum_rho, tau
from confide.rounds.schemes import scheme
from confide.secure.encoding import truncate
from confide.secure.settings import Secure

Floats = NDArray[np.float64]
ORDERS = np.array([1.0, 1.01, 1.1, 1.5, 2.0, 3.0, 4.0, 8.0, 16.0, 32.0])
RADIUS = 200


@cache
def log_law(share: float, shares: int) -> Floats:
    """log P(X = x), x = -RADIUS..RADIUS, of a sum of discrete Gaussians: convolved in logarithms, tails and all."""
    x = np.arange(-RADIUS, RADIUS + 1)
    one = -(x**2) / (2 * share**2)
    one = one - logsumexp(one)
    total, wide = one, np.concatenate([np.full(2 * RADIUS, -np.inf), one, np.full(2 * RADIUS, -np.inf)])
    shifted = np.array([wide[RADIUS + z : 3 * RADIUS + 1 + z] for z in range(0, 2 * RADIUS + 1)])[:, ::-1]
    for _ in range(shares - 1):
        total = logsumexp(shifted + total, axis=1)
    return np.asarray(total)


def divergence(share: float, shares: int, shift: int, order: float) -> float:
    """Of X + shift from X, at a Rényi order (1: Kullback-Leibler)."""
    law = log_law(share, shares)
    p, q = law[: len(law) - shift], law[shift:]
    if order == 1.0:
        return float(np.sum(np.exp(p) * (p - q)))
    return float(logsumexp(order * p + (1.0 - order) * q) / (order - 1.0))


def worst(share: float, shares: int, shift: int) -> float:
    """The least rho for which D_a <= a rho at all these orders."""
    return max(divergence(share, shares, shift, a) / a for a in ORDERS)


# ---- the bound


def test_the_oracle_knows_one_discrete_gaussian() -> None:
    for share in (0.5, 0.8, 2.0):
        for shift in (1, 2, 5):
            assert worst(share, 1, shift) == pytest.approx(shift**2 / (2 * share**2), rel=1e-9)
            assert sum_rho(shift, share, 1, 7) == pytest.approx(shift**2 / (2 * share**2), rel=1e-12)
    x = np.arange(-RADIUS, RADIUS + 1)
    two = np.exp(log_law(0.7, 2))
    assert two.sum() == pytest.approx(1.0, rel=1e-12)
    one = np.exp(log_law(0.7, 1))
    assert np.allclose(two, np.convolve(one, one, mode="same"), atol=1e-15)
    assert float(two @ x**2) == pytest.approx(2 * float(one @ x**2), rel=1e-12)


@pytest.mark.parametrize("share", [0.5, 0.6, 0.75, 1.0, 1.5])
@pytest.mark.parametrize("shares", [2, 3, 5, 10])
def test_the_bound_holds_for_exact_divergences(share: float, shares: int) -> None:
    for shift in (1, 2, 3, 7):
        exact = worst(share, shares, shift)
        assert exact <= sum_rho(shift, share, shares, 1)
        for dim in (2, 30):  # the same shift in every coordinate: costs add up
            assert dim * exact <= sum_rho(shift * math.sqrt(dim), share, shares, dim)
            assert exact <= sum_rho(shift, share, shares, dim)  # all of it in one coordinate


def test_without_the_correction_it_does_not() -> None:
    for shares, shift in ((2, 1), (2, 3), (3, 1), (3, 2), (5, 2), (10, 3)):
        plain = shift**2 / (2 * shares * 0.5**2)
        assert worst(0.5, shares, shift) > 1.004 * plain
    assert worst(0.5, 2, 1) == pytest.approx(1.1129, abs=1e-4)  # against 1.0
    assert sum_rho(1, 0.5, 2, 1) == pytest.approx(1.0 + tau(0.5, 2))


def test_both_branches_count() -> None:
    t = tau(0.5, 2)
    assert sum_rho(1.0, 0.5, 2, 1) == pytest.approx((2.0 + 2 * t) / 2)
    assert sum_rho(0.01, 1.0, 2, 1) == pytest.approx((0.01 / math.sqrt(2) + tau(1.0, 2)) ** 2 / 2)


@pytest.mark.parametrize("share", [0.5, 0.6, 1.0, 1.4])
@pytest.mark.parametrize("shares", [2, 3, 6])
def test_tau_is_twice_the_log_distance(share: float, shares: int) -> None:
    """At most, from the discrete Gaussian of the same variance; for two shares hardly 2.5 times what it is."""
    apart = np.abs(log_law(share, shares) - log_law(share * math.sqrt(shares), 1))
    apart = apart[RADIUS - 20 : RADIUS + 21]  # the oracle's own cut-off is at +-200
    assert 2 * apart.max() <= tau(share, shares)
    if shares == 2:
        assert 2 * apart.max() >= 0.399 * tau(share, shares)


def test_wide_shares_cost_what_a_gaussian_costs() -> None:
    assert tau(2.0, 2) < 1e-15
    assert tau(2.0, 10_000) < 1e-12
    noise = SumNoise.sized(0.3, 7, sampled=10, fraction_bits=24, dim=1000)
    assert noise.rho(0.02) == pytest.approx(0.02**2 / (2 * 0.3**2), rel=1e-12)
    assert noise.per_unit == pytest.approx(10 * 2**24, rel=1e-12)


@pytest.mark.parametrize("change", [{"sigma": 2.0}, {"honest": 2.0}, {"share_quanta": 2.0}])
def test_more_noise_costs_less(change: dict[str, float]) -> None:
    """Wider shares, or more of them: also where the correction is most of the cost."""
    small = SumNoise.sized(0.003, 4, sampled=5, fraction_bits=8, dim=50)
    assert small.share_quanta < 2.0
    more = {
        "sigma": SumNoise.sized(0.006, 4, sampled=5, fraction_bits=8, dim=50),
        "honest": replace(small, honest=8, sigma=small.sigma * math.sqrt(2)),
        "share_quanta": SumNoise.sized(0.003, 4, sampled=5, fraction_bits=9, dim=50),
    }[next(iter(change))]
    assert more.rho(0.01) < small.rho(0.01)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"sigma": 0.0}, "sum_noise.sigma"),
        ({"sigma": math.nan}, "sum_noise.sigma"),
        ({"honest": 0}, "sum_noise.honest"),
        ({"honest": 2.5}, "sum_noise.honest"),
        ({"dim": 0}, "sum_noise.dim"),
        ({"share_quanta": 0.49}, "sum_noise.sigma"),
        ({"share_quanta": -1.0}, "sum_noise.share_quanta"),
        ({"corrupted": -1}, "sum_noise.corrupted"),
        ({"server": "good"}, "sum_noise.server"),
    ],
)
def test_nonsense_is_refused_by_name(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as e:
        SumNoise(**({"sigma": 0.1, "honest": 3, "share_quanta": 4.0, "dim": 2} | given))
    assert e.value.field == field


def test_too_narrow_a_share_says_what_would_be_right() -> None:
    with pytest.raises(InputError, match=r"0\.081 quanta wide.*at least 0\.006176, or 3 more fraction bits"):
        SumNoise.sized(0.001, 10, sampled=1, fraction_bits=8, dim=2)
    assert SumNoise.sized(0.001, 10, sampled=1, fraction_bits=11, dim=2).share_quanta >= 0.5
    assert SumNoise.sized(0.00618, 10, sampled=1, fraction_bits=8, dim=2).share_quanta >= 0.5
    with pytest.raises(InputError, match=r"at least 0\.5 quanta"):
        sum_rho(1.0, 0.4, 2, 1)


# ---- who is honest


@pytest.mark.parametrize("server", ["curious", "active"])
@pytest.mark.parametrize("cohort", [5, 11, 40])
def test_only_honest_survivors_count(server: str, cohort: int) -> None:
    secure = Secure(ring_bits=64, server=server, corrupted=0.2, dropped=0.1, sigma=0.05)
    p, noise = secure.parameters(cohort), SumNoise.of(secure.sums(cohort), 20, 3)
    assert (noise.honest, noise.corrupted, noise.server) == (p.quorum - p.corrupted, p.corrupted, server)
    assert p.corrupted >= 1
    assert noise.share_quanta == pytest.approx(0.05 * cohort * 2**20 / math.sqrt(p.quorum - p.corrupted))
    shares = discrete_gaussian(SecretStream(bytes(32)), noise.share_quanta, 20_000 * noise.honest)
    on_psi = shares.reshape(noise.honest, -1).sum(axis=0) / (cohort * 2**20)  # what a server adds to its model
    measured = float(np.std(on_psi))
    assert measured == pytest.approx(0.05, rel=0.03)
    assert measured != pytest.approx(0.05 * 1.5, rel=0.03)
    assert measured != pytest.approx(0.05 / 1.5, rel=0.03)
    with pytest.raises(InputError, match="no noise inside the sum"):
        SumNoise.of(replace(secure, sigma=0.0).sums(cohort), 20, 3)
    with pytest.raises(InputError, match=r"secure\.sigma = 1e-09: .* more fraction bits"):
        SumNoise.of(replace(secure, sigma=1e-9).sums(cohort), 20, 3)


def test_a_client_who_knows_its_share_takes_it_away() -> None:
    noise = SumNoise.sized(0.1, 5, sampled=10, fraction_bits=20, dim=3)
    less = noise.without(1)
    assert (less.honest, less.share_quanta) == (4, noise.share_quanta)
    assert less.rho(0.01) == pytest.approx(5 / 4 * noise.rho(0.01), rel=1e-12)
    with pytest.raises(InputError, match="knows them all"):
        noise.without(5)


# ---- an attack on the sums


L, BITS, STEP, BOUND, T, HONEST, CORRUPTED = 6, 10, 0.1, 1.0, 4, 3, 3
CLIENT = Sensitivity(STEP, BOUND, sampled=L, dim=1)


def spent(sigma: float, honest: int = HONEST, corrupted: int = CORRUPTED, **given: Any) -> Account:
    noise = SumNoise.sized(sigma, honest, sampled=L, fraction_bits=BITS, dim=1, corrupted=corrupted)
    asked = {"threat": "own-server", "delta": 1e-3} | given
    return account(scheme("none"), Graph.ring(3), CLIENT, rounds=T, sum_noise=noise, **asked)


def scores(sigma: float, sign: int, known: int, runs: int, stream: SecretStream) -> Floats:
    """The server's best statistic in `runs` runs: T sums of L shares each, less the updates and shares it knows."""
    share = SumNoise.sized(sigma, HONEST, sampled=L, fraction_bits=BITS, dim=1).share_quanta
    shares = discrete_gaussian(stream, share, L * T * runs).reshape(L, T, runs)
    updates = np.zeros((L, T, runs), dtype=np.int64)
    updates[0] = truncate(np.array([sign * STEP * BOUND]), BITS)  # the canary; the others' are known to be zero
    sums = (updates + shares).sum(axis=0)
    return np.asarray((sums - shares[L - known :].sum(axis=0)).sum(axis=0), dtype=np.float64)


def rate_limit(errors: int, runs: int) -> float:
    """Clopper and Pearson's upper limit of an error rate; two of them hold together with 95% confidence."""
    return 1.0 if errors >= runs else float(stats.beta.ppf(0.975, errors + 1, runs - errors))


def mu_bound(fpr: float, fnr: float) -> float:
    """The least mu_GDP that allows a test with these error rates."""
    return float(stats.norm.isf(fpr) - stats.norm.ppf(fnr)) if fpr + fnr < 1.0 else 0.0


def epsilon_bound(fpr: float, fnr: float, delta: float) -> float:
    """The least epsilon at `delta` that does."""
    return max(0.0, *(math.log(max(1.0 - delta - b, 1e-300) / a) for a, b in ((fpr, fnr), (fnr, fpr))))


def measured(sigma: float, runs: int = 200_000) -> tuple[float, float]:
    """Lower bounds of (mu, epsilon at 1e-3) with 95% confidence; the thresholds follow from the noise's law alone."""
    stream = SecretStream(b"attack on the sums of one server")
    with_it, without = (scores(sigma, sign, CORRUPTED, runs, stream) for sign in (1, -1))
    few = -T * STEP * 2**BITS + 3.3 * sigma * math.sqrt(T) * L * 2**BITS  # hardly a false alarm
    tests = ((0.0, mu_bound), (few, lambda a, b: epsilon_bound(a, b, 1e-3)))
    found = []
    for threshold, bound in tests:
        errors = (int(np.sum(without > threshold)), int(np.sum(with_it <= threshold)))
        found.append(bound(*(rate_limit(n, runs) for n in errors)))
    return found[0], found[1]


def test_the_attack_stays_below_the_account_and_far_above_a_quieter_one() -> None:
    sigma = 0.03
    upper, loud = spent(sigma), spent(3 * sigma)
    mu, epsilon = measured(sigma)
    assert upper.epsilon is not None
    assert loud.epsilon is not None
    print(f"mu {mu:.3f} <= {math.sqrt(2 * (upper.rho or 0)):.3f}, epsilon {epsilon:.3f} <= {upper.epsilon:.3f}")
    assert epsilon <= upper.epsilon
    assert epsilon > loud.epsilon
    assert mu <= math.sqrt(2 * (upper.rho or 0.0))
    assert mu > 0.97 * math.sqrt(2 * (upper.rho or 0.0))  # the number is not idle


def test_counting_corrupted_shares_or_half_the_change_would_be_caught() -> None:
    mu, _ = measured(0.03)
    as_if_all = spent(0.03 * math.sqrt(2), honest=6)  # the same shares, the corrupted ones counted too
    assert mu > 1.3 * math.sqrt(2 * (as_if_all.rho or 0.0))
    half = spent(0.06)
    assert mu > 1.9 * math.sqrt(2 * (half.rho or 0.0))


def test_a_curious_client_sees_more_than_an_eavesdropper() -> None:
    """No client is corrupted, three are in the sum: the curious one subtracts its own share."""
    stream = SecretStream(b"a client of the same unit looks.")
    runs, share = 200_000, SumNoise.sized(0.03, 3, sampled=3, fraction_bits=BITS, dim=1).share_quanta
    worlds = []
    for sign in (1, -1):
        shares = discrete_gaussian(stream, share, 3 * runs).reshape(3, runs)
        sums = shares.sum(axis=0) + int(truncate(np.array([sign * STEP]), BITS)[0])
        worlds.append(sums - shares[2])
    errors = (int(np.sum(worlds[1] > 0)), int(np.sum(worlds[0] <= 0)))
    mu = mu_bound(*(rate_limit(n, runs) for n in errors))
    noise = SumNoise.sized(0.03, 3, sampled=3, fraction_bits=BITS, dim=1)
    s = Sensitivity(STEP, BOUND, sampled=3, dim=1)
    client, server = (
        account(scheme("none"), Graph.ring(3), s, rounds=1, threat=t, sum_noise=noise)
        for t in ("own-client", "own-server")
    )
    assert math.sqrt(2 * (server.rho or 0.0)) < mu <= math.sqrt(2 * (client.rho or 0.0))
    assert (client.rho or 0.0) == pytest.approx(1.5 * (server.rho or 0.0), rel=1e-6)
    with_one = replace(noise, corrupted=1)  # it is among the corrupted: their shares were never counted
    counted = account(scheme("none"), Graph.ring(3), s, rounds=1, threat="own-client", sum_noise=with_one)
    assert counted.rho == server.rho


# ---- truncation


def test_truncation_moves_an_example_by_up_to_a_quantum_more() -> None:
    """Norms cannot grow by truncation, distances can: two updates on either side of a grid point."""
    M, bits, batch = 16, 8, 1000
    s = Sensitivity(0.1, 1.0, sampled=4, dim=M, level="example", batch=batch)
    noise = SumNoise.sized(0.05, 3, sampled=4, fraction_bits=bits, dim=M)
    a = account(scheme("none"), Graph.ring(3), s, rounds=2, threat="own-server", sum_noise=noise)
    apart = 2 * 0.1 / batch  # two updates of one client, one example in the batch exchanged
    x = np.full(M, 3 * 2.0**-bits)
    y = x - apart / math.sqrt(M)
    assert np.linalg.norm(x - y) <= apart * (1 + 1e-12)
    moved = float(np.linalg.norm(truncate(x, bits) - truncate(y, bits))) * 2.0**-bits / 4
    assert moved > s.single * 10  # the mathematics without a grid is not a bound
    assert moved <= a.deltas[0]
    rng = np.random.default_rng(4)
    for _ in range(300):
        x = rng.standard_normal(M) * 0.02
        step = rng.standard_normal(M)
        y = x + apart * rng.uniform() * step / np.linalg.norm(step)
        assert np.linalg.norm(truncate(x, bits) - truncate(y, bits)) * 2.0**-bits / 4 <= a.deltas[0]
    client = account(
        scheme("none"), Graph.ring(3), replace(s, level="client"), rounds=2, threat="own-server", sum_noise=noise
    )
    assert (a.rho or 0.0) < (client.rho or 0.0)
    coarse = SumNoise.sized(5.0, 3, sampled=4, fraction_bits=1, dim=M)  # so coarse that a client's own bound is less
    for_one, for_all = (
        account(scheme("none"), Graph.ring(3), x, rounds=2, threat="own-server", sum_noise=coarse).deltas[0]
        for x in (s, replace(s, level="client"))
    )
    assert for_one == for_all == pytest.approx(replace(s, level="client").single, rel=1e-12)  # as floats keep it


# ---- a release over servers


def test_a_release_of_shares() -> None:
    """(Delta / P)^2 / (2 sigma^2) where shares are wide, whoever colludes; more where they are narrow."""
    for colluders in (0, 1, 3):
        wide = release_rho(0.4, 0.1, servers=4, colluders=colluders, quantum=2.0**-30, dim=100)
        assert wide == pytest.approx((0.4 / 4) ** 2 / (2 * 0.1**2), rel=1e-12)
    quantum = 0.1 * 4 / (0.6 * math.sqrt(3))  # a share of 0.6 quanta
    narrow = release_rho(3 * quantum, 0.1, servers=4, colluders=1, quantum=quantum, dim=1)
    assert worst(0.6, 3, 3) <= narrow == pytest.approx(sum_rho(3.0, 0.6, 3, 1), rel=1e-12)
    assert narrow > (3 * quantum / 4) ** 2 / (2 * 0.1**2)
    with pytest.raises(InputError, match="quanta wide"):
        release_rho(0.4, 0.1, servers=4, quantum=1.0, dim=1)
    with pytest.raises(InputError, match="colluders"):
        release_rho(0.4, 0.1, servers=4, colluders=4, quantum=1e-6, dim=1)


def test_honest_shares_of_a_release_put_sigma_on_the_mean() -> None:
    P, C, sigma, quantum = 5, 2, 0.2, 2.0**-16
    share = P * sigma / math.sqrt(P - C) / quantum
    shares = discrete_gaussian(SecretStream(bytes(32)), share, (P - C) * 50_000).reshape(P - C, -1)
    assert float(np.std(shares.sum(axis=0) * quantum / P)) == pytest.approx(sigma, rel=0.02)
    assert release_rho(1.0, sigma, servers=P, colluders=C, quantum=quantum, dim=1) == pytest.approx(
        sum_rho(1.0 / quantum, share, P - C, 1), rel=1e-12
    )


def test_capped_participation_is_counted_once_each() -> None:
    s = replace(CLIENT, participation=Cap(2))
    noise = SumNoise.sized(0.03, HONEST, sampled=L, fraction_bits=20, dim=1)
    a = account(scheme("none"), Graph.ring(3), s, rounds=T, threat="own-server", sum_noise=noise)
    assert np.count_nonzero(a.costs) == 2
    assert a.rho == pytest.approx(2 * noise.rho(CLIENT.single), rel=1e-12)
