"""From what was spent to epsilon(delta): against dp-accounting, against integrals, at the ends of the number range."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import pld_privacy_accountant, privacy_loss_distribution
from dp_accounting.rdp import rdp_privacy_accountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

from confide.laws.conversion import (
    ORDERS,
    gaussian_delta,
    gaussian_epsilon,
    laplace_epsilon,
    laplace_renyi,
    pure_epsilon,
    pure_renyi,
    renyi_epsilon,
    true_positive_rate,
    zcdp_epsilon,
)

DELTAS = (1e-12, 1e-9, 1e-5, 1e-3, 0.1, 0.9)


# Gaussian


@pytest.mark.parametrize("mu", [0.05, 0.3, 1.0, 4.0, 20.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-3])
def test_gaussian_epsilon_is_that_of_dp_accounting(mu: float, delta: float) -> None:
    assert gaussian_epsilon(mu, delta) == pytest.approx(dp.get_epsilon_gaussian(1 / mu, delta), rel=1e-8, abs=1e-9)


@pytest.mark.parametrize("multipliers", [[3.0] * 5, [1.0, 2.0, 4.0], [0.7]])
def test_gaussian_composition_is_that_of_privacy_loss_distributions(multipliers: list[float]) -> None:
    accountant = pld_privacy_accountant.PLDAccountant()
    for m in multipliers:
        accountant.compose(dp.GaussianDpEvent(m))
    mu = math.sqrt(sum(m**-2 for m in multipliers))
    theirs = accountant.get_epsilon(1e-5)  # rounded up on a grid
    assert theirs - 1e-2 < gaussian_epsilon(mu, 1e-5) <= theirs


@pytest.mark.parametrize("mu", [1e-300, 1e-8, 1e-3, 1.0, 30.0, 1e3])
@pytest.mark.parametrize("epsilon", [0.0, 1e-9, 1.0, 700.0, 1e4, 5e5, 1e6])
def test_gaussian_delta_is_a_probability_everywhere(mu: float, epsilon: float) -> None:
    delta = gaussian_delta(mu, epsilon)
    assert -1e-15 <= delta <= 1.0
    assert gaussian_delta(0.0, epsilon) == 0.0


@pytest.mark.parametrize("mu", [1e2, 1e4, 1e7])
def test_gaussian_epsilon_of_huge_mu_is_not_understated(mu: float) -> None:
    """Far out delta is nearly Phi(a), so epsilon is nearly mu^2/2 + 4.2649 mu at delta = 1e-5."""
    assert gaussian_epsilon(mu, 1e-5) == pytest.approx(mu**2 / 2 + 4.2648908 * mu, rel=1e-9, abs=1.5)
    assert gaussian_epsilon(1e5 * mu, 1e-5) >= (1e5 * mu) ** 2 / 2 * (1 - 1e-11)


def test_gaussian_delta_by_integration() -> None:
    for mu, epsilon in [(0.5, 0.3), (1.0, 2.0), (3.0, 7.0), (10.0, 40.0)]:

        def excess(x: float, mu: float = mu, e: float = epsilon) -> float:
            return max(0.0, math.exp(-((x - mu) ** 2) / 2) - math.exp(e - x * x / 2)) / math.sqrt(2 * math.pi)

        start = epsilon / mu + mu / 2
        value, _ = integrate.quad(excess, start, start + 40, epsabs=1e-14, limit=200)
        assert gaussian_delta(mu, epsilon) == pytest.approx(value, rel=1e-6)


@settings(max_examples=40)
@given(st.floats(1e-3, 1e3), st.floats(1.0001, 3.0), st.sampled_from(DELTAS))
def test_epsilon_grows_with_mu_and_falls_with_delta(mu: float, more: float, delta: float) -> None:
    low = gaussian_epsilon(mu, delta)
    assert low >= 0.0
    assert gaussian_epsilon(mu * more, delta) >= low - 1e-9 * (1 + low)
    assert gaussian_epsilon(mu, min(0.99, delta * more)) <= low + 1e-9 * (1 + low)
    if low > 0:
        assert gaussian_delta(mu, low) == pytest.approx(delta, rel=1e-5)


@settings(max_examples=40)
@given(st.floats(1e-2, 50.0), st.floats(0.0, 100.0), st.floats(0.01, 10.0))
def test_gaussian_delta_falls_with_epsilon(mu: float, epsilon: float, more: float) -> None:
    assert gaussian_delta(mu, epsilon + more) <= gaussian_delta(mu, epsilon) + 1e-15


# Rényi and zCDP


@pytest.mark.parametrize("rho", [1e-4, 0.01, 0.5, 2.0, 30.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-3])
def test_zcdp_epsilon_is_that_of_the_renyi_accountant(rho: float, delta: float) -> None:
    best = 1 + math.sqrt(math.log(1 / delta) / rho)
    orders = np.unique(np.concatenate([1 + (best - 1) * np.geomspace(0.1, 10, 400)]))
    theirs, _ = rdp_privacy_accountant.compute_epsilon(orders, rho * orders, delta)
    assert zcdp_epsilon(rho, delta) == pytest.approx(theirs, rel=1e-4)
    assert zcdp_epsilon(rho, delta) <= theirs + 1e-12
    assert gaussian_epsilon(math.sqrt(2 * rho), delta) < zcdp_epsilon(rho, delta)  # the exact one is smaller


@pytest.mark.parametrize("rho", [1e-300, 1e-20, 1e6, 1e20, 1e30])
@pytest.mark.parametrize("delta", [1e-300, 1e-5, 1 - 1e-15])
def test_zcdp_epsilon_at_the_ends_of_the_range(rho: float, delta: float) -> None:
    value = zcdp_epsilon(rho, delta)
    assert math.isfinite(value)
    assert value >= (0.99 * rho if rho > 1e5 else 0.0)
    assert zcdp_epsilon(0.0, delta) == 0.0


@pytest.mark.parametrize("rho", [1e-3, 0.1, 2.0, 50.0])
def test_renyi_orders_are_dense_enough(rho: float) -> None:
    """The grid of orders costs less than 1% against the optimum over all orders."""
    grid = renyi_epsilon(lambda a: rho * a, 1e-5)
    assert zcdp_epsilon(rho, 1e-5) <= grid + 1e-12
    assert grid <= 1.01 * zcdp_epsilon(rho, 1e-5) + 1e-3
    assert ORDERS.min() > 1.0


# Laplace


def laplace_delta(D: float, epsilon: float) -> float:
    """delta(epsilon) of one Laplace mechanism with sensitivity / scale = D, for any sign of epsilon."""
    if epsilon >= D:
        return 0.0
    return 1.0 - math.exp((epsilon - D) / 2) if epsilon >= -D else 1.0 - math.exp(epsilon)


def then_laplace(delta: Callable[[float], float], D: float, epsilon: float) -> float:
    """delta(epsilon) of a mechanism with this curve, followed by Laplace: the mean over the second's privacy loss."""
    ends = 0.5 * delta(epsilon - D) + 0.5 * math.exp(-D) * delta(epsilon + D)
    inside, _ = integrate.quad(
        lambda z: 0.25 * math.exp((z - D) / 2) * delta(epsilon - z), -D, D, epsabs=1e-11, limit=200
    )
    return ends + inside


@pytest.mark.parametrize("D", [0.3, 1.0, 4.0])
def test_laplace_delta_in_closed_form(D: float) -> None:
    def density(x: float) -> float:
        return 0.5 * math.exp(-abs(x))

    for epsilon in np.linspace(-D, D, 7)[1:]:
        edge = (D - epsilon) / 2  # p >= e^eps q exactly for x <= edge; q is shifted by D
        value, _ = integrate.quad(
            lambda x, e=epsilon: density(x) - math.exp(e) * density(x - D), -40, edge, points=[0.0]
        )
        assert laplace_delta(D, epsilon) == pytest.approx(value, abs=1e-8)


@pytest.mark.parametrize("parts", [(0.2, 0.7), (1.0, 1.0), (2.0, 0.1), (3.0, 2.5)])
def test_two_laplace_mechanisms_are_dominated_by_one_with_all_the_sensitivity(parts: tuple[float, float]) -> None:
    one, two = parts
    total, gap = one + two, 0.0
    for epsilon in np.linspace(-total - 0.5, total + 0.5, 41):
        composed = then_laplace(lambda e: laplace_delta(one, e), two, float(epsilon))
        assert composed <= laplace_delta(total, float(epsilon)) + 1e-9
        gap = max(gap, laplace_delta(total, float(epsilon)) - composed)
    assert gap > 1e-3  # not an identity
    close = total - 1e-3  # and no smaller sensitivity would do: near D1 + D2 the composition still has delta > 0
    assert then_laplace(lambda e: laplace_delta(one, e), two, close) > 0.0 == laplace_delta(close, close)


def test_three_laplace_mechanisms_are_dominated_too() -> None:
    parts = (0.5, 0.8, 0.4)

    def two(e: float) -> float:
        return then_laplace(lambda x: laplace_delta(parts[0], x), parts[1], e)

    for epsilon in np.linspace(-1.5, 1.7, 9):
        composed = then_laplace(two, parts[2], float(epsilon))
        assert composed <= laplace_delta(sum(parts), float(epsilon)) + 1e-8
        pld = [privacy_loss_distribution.from_laplace_mechanism(1.0, sensitivity=D) for D in parts]
        theirs = pld[0].compose(pld[1]).compose(pld[2]).get_delta_for_epsilon(float(epsilon))
        assert composed == pytest.approx(theirs, abs=1e-3)


@pytest.mark.parametrize(("ratio", "count"), [(0.1, 30), (0.5, 4), (2.0, 2), (0.02, 400)])
def test_laplace_composition_is_that_of_dp_accounting(ratio: float, count: int) -> None:
    accountant = pld_privacy_accountant.PLDAccountant()
    accountant.compose(dp.SelfComposedDpEvent(dp.LaplaceDpEvent(1 / ratio), count))
    for delta in (1e-9, 1e-5, 1e-2):
        assert laplace_epsilon(np.full(count, ratio), delta) == pytest.approx(accountant.get_epsilon(delta), rel=2e-3)


@pytest.mark.parametrize("order", [1.01, 1.5, 2.0, 7.0, 300.0])
def test_renyi_divergence_of_laplace_by_integration(order: float) -> None:
    for D in (0.1, 1.0):

        def term(x: float, D: float = D) -> float:
            return 0.5 * math.exp(-order * abs(x) + (order - 1) * abs(x - D))

        value, _ = integrate.quad(term, -40, 40, points=[0.0, D], limit=400)
        assert float(laplace_renyi(np.array(D), order)) == pytest.approx(math.log(value) / (order - 1), rel=1e-5)


@settings(max_examples=8)
@given(st.lists(st.floats(1e-6, 5.0), min_size=1, max_size=5), st.sampled_from((1e-9, 1e-5, 0.1)))
def test_laplace_epsilon_is_below_pure_and_above_the_largest_single(ratios: list[float], delta: float) -> None:
    value = laplace_epsilon(np.array(ratios), delta)
    assert value <= sum(ratios) + 1e-12
    largest = max(ratios)
    assert value >= max(0.0, largest + 2 * math.log1p(-delta)) - 1e-9  # the inverse of the closed form
    assert value <= pure_epsilon(np.array(ratios), delta) + 1e-9


def test_laplace_epsilon_of_nothing_and_of_many() -> None:
    assert laplace_epsilon(np.zeros(3), 1e-5) == 0.0
    assert pure_epsilon(np.zeros(3), 1e-5) == 0.0
    many = np.linspace(0.01, 0.02, 80)  # too many kinds for convolutions: Rényi alone
    assert 0.0 < laplace_epsilon(many, 1e-5) < many.sum()
    assert laplace_epsilon(np.array([1e4, 3e5]), 1e-5) <= 3.1e5


def discrete_delta(spacing: float, steps: int, epsilon: float) -> float:
    """Exact delta(epsilon) of discrete Laplace with pmf ~ exp(-spacing |k|), shifted by `steps`."""
    k = np.arange(-2000, 2000)
    p = math.tanh(spacing / 2) * np.exp(-spacing * np.abs(k))
    q = math.tanh(spacing / 2) * np.exp(-spacing * np.abs(k - steps))
    return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())


def test_discrete_laplace_is_not_the_continuous_one() -> None:
    """Between the points of its grid it has more delta: only its pure epsilon may be composed."""
    assert discrete_delta(1.0, 1, 0.5) == pytest.approx(0.2877, abs=1e-4)
    assert laplace_delta(1.0, 0.5) == pytest.approx(0.2212, abs=1e-4)
    for spacing, steps in [(1.0, 1), (0.3, 4)]:
        D = spacing * steps
        for epsilon in np.linspace(0, D, 9):
            assert discrete_delta(spacing, steps, epsilon) >= laplace_delta(D, epsilon) - 1e-12
            response = (math.exp(D) - math.exp(epsilon)) / (1 + math.exp(D))  # randomised response
            assert discrete_delta(spacing, steps, epsilon) <= response + 1e-12


def test_pure_epsilon_covers_composed_randomised_response() -> None:
    eps, count, delta = 0.4, 30, 1e-5
    k = np.arange(count + 1)
    log_choose = np.array([math.lgamma(count + 1) - math.lgamma(i + 1) - math.lgamma(count - i + 1) for i in k])
    p = np.exp(log_choose + k * eps - count * math.log1p(math.exp(eps)))
    loss = (2 * k - count) * eps

    def exact(e: float) -> float:
        return float(np.sum(p * np.maximum(0.0, 1 - np.exp(e - loss))))

    value = pure_epsilon(np.full(count, eps), delta)
    assert exact(value) <= delta < exact(0.8 * value)
    assert value < count * eps
    a = 3.0
    q = np.exp(log_choose + (count - k) * eps - count * math.log1p(math.exp(eps)))
    divergence = math.log(np.sum(p**a * q ** (1 - a))) / (a - 1)
    assert count * float(pure_renyi(np.array(eps), a)) == pytest.approx(divergence, rel=1e-9)


# What a test can find out


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
def test_true_positive_rate_of_mu_is_the_envelope_of_its_epsilons(mu: float) -> None:
    rate = true_positive_rate(0.01, mu=mu)
    bounds = [
        true_positive_rate(0.01, epsilon=float(e), delta=gaussian_delta(mu, float(e))) for e in np.linspace(0, 20, 2001)
    ]
    assert min(bounds) == pytest.approx(rate, rel=1e-4)
    assert min(bounds) >= rate - 1e-12


def test_true_positive_rate_by_simulation() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(400_000)
    threshold = np.quantile(x, 0.99)
    assert np.mean(x + 1.5 > threshold) == pytest.approx(true_positive_rate(0.01, mu=1.5), abs=5e-3)


def test_true_positive_rate_of_extreme_budgets() -> None:
    assert true_positive_rate(0.01, epsilon=0.0) == pytest.approx(0.01)
    assert true_positive_rate(0.01, mu=0.0) == pytest.approx(0.01)
    assert true_positive_rate(0.01, epsilon=1e9, delta=1e-5) == 1.0
    assert true_positive_rate(0.01, mu=1e3) == 1.0
    rates = [true_positive_rate(0.01, epsilon=e, delta=1e-5) for e in (0.0, 0.1, 1.0, 3.0, 10.0)]
    assert all(a < b for a, b in pairwise(rates))
