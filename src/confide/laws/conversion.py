"""From what was spent (mu_GDP, rho, a Rényi curve, Laplace ratios) to epsilon(delta), and to words.

Known results: Gaussian trade-off (Balle and Wang 2018; Dong, Roth and Su 2022), Rényi to (epsilon, delta) (Balle et
al. 2020; Canonne, Kamath and Steinke 2020), Laplace composition by privacy loss distributions (dp-accounting).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache

import numpy as np

from confide.base.arrays import Floats, Ints

# Of a discrete draw from its law, in total variation: 2^-108 (`noise`), and 3e-77 (`discrete_gaussian`).
MANY_DRAWS = 2**52  # a million events of 2^32 numbers: more than any ledger has
SMALL_MU = 1e-3  # below, the trapezoid is as good as exact
DISTANCE = 2.0**-108 * (1.0 + 2.0**-40)
# Rényi orders for curves without a closed form: dense near 1, where large epsilons live, then geometric.
ORDERS: Floats = np.unique(np.concatenate([1.0 + np.geomspace(1e-3, 1.0, 40), np.geomspace(2.0, 2048.0, 80)]))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """delta(epsilon) of mu-GDP: Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2)."""
    return 0.0 if mu == 0.0 else math.exp(_log_gaussian_delta(mu, epsilon))


def _log_gaussian_delta(mu: float, epsilon: float) -> float:
    """With x = eps/mu - mu/2, phi the normal density and R = (1 - Phi) / phi: delta = phi(x) (R(x) - R(x + mu)).

    e^eps phi(x + mu) = phi(x), so that nothing overflows. For small mu, where the difference would cancel, it is the
    integral of -R'(t) = 1 - t R(t) over [x, x + mu], which is convex: the trapezoid lies above it, by a part in 1e7.
    """
    from scipy.special import erfcx, ndtr

    def mills(t: float) -> float:
        return math.sqrt(math.pi / 2.0) * float(erfcx(t / math.sqrt(2.0)))

    x = epsilon / mu - mu / 2.0
    log_density = -x * x / 2.0 - math.log(math.sqrt(2.0 * math.pi))
    if x > 1e3:  # R has lost its places, and is less than 1: less than any double is left
        return log_density
    if mu < SMALL_MU:
        found = mu * (1.0 - x * mills(x) + 1.0 - (x + mu) * mills(x + mu)) / 2.0
        return log_density + math.log(found)
    if x > 0.0:
        return log_density + math.log(mills(x) - mills(x + mu))
    return math.log(float(ndtr(-x)) - math.exp(log_density) * mills(x + mu))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon >= 0 with delta(epsilon) <= delta, for mu-GDP.

    >>> round(gaussian_epsilon(1.0, 1e-5), 3)
    4.377
    """
    from scipy.optimize import brentq

    least = math.log(delta)
    if not math.isfinite(mu * mu):
        return math.inf
    if mu == 0.0 or _log_gaussian_delta(mu, 0.0) <= least:
        return 0.0
    high = mu * (mu / 2.0 + 40.0) * (1.0 + 1e-9)  # beyond it delta is less than any double
    return float(brentq(lambda e: _log_gaussian_delta(mu, e) - least, 0.0, high, xtol=1e-14 * mu, rtol=1e-12))


def renyi_epsilon(curve: Callable[[Floats], Floats], delta: float) -> float:
    """min over orders a of  R(a) + log(1 - 1/a) - (log delta + log a)/(a - 1)."""
    a = ORDERS
    values = curve(a) + np.log1p(-1.0 / a) - (math.log(delta) + np.log(a)) / (a - 1.0)
    return max(0.0, float(np.min(values)))


def zcdp_epsilon(rho: float, delta: float) -> float:
    """epsilon(delta) of rho-zCDP, the optimum over all orders.

    >>> zcdp_epsilon(0.0, 1e-5)
    0.0
    """
    from scipy.optimize import minimize_scalar

    if rho == 0.0:
        return 0.0

    def bound(log_excess: float) -> float:
        excess = math.exp(log_excess)  # a - 1, which may be too small to be seen beside 1
        log_a = math.log1p(excess)
        return rho * (1.0 + excess) + log_excess - log_a - (math.log(delta) + log_a) / excess

    start = 0.5 * math.log(math.log(1.0 / delta) / rho)
    found = minimize_scalar(bound, bounds=(start - 8.0, start + 8.0), method="bounded", options={"xatol": 1e-10})
    return max(0.0, float(found.fun))


def rho_epsilon(rho: float, delta: float, gaussian: bool) -> float:
    """epsilon(delta) of a rho that Gaussian noise spent (exactly, mu = sqrt(2 rho)) or any zCDP mechanism."""
    return gaussian_epsilon(math.sqrt(2.0 * rho), delta) if gaussian else zcdp_epsilon(rho, delta)


def with_draws(convert: Callable[[float], float], delta: float, draws: int) -> float:
    """epsilon(delta) of noise of which every one of N draws is only within t = `DISTANCE` of its law.

    What is (epsilon, delta')-DP with ideal noise is (epsilon, delta' + (1 + e^epsilon) N t)-DP with the noise that is
    drawn, so `convert`, delta' -> epsilon, is asked for what is left of delta. Infinite where nothing is left.

    >>> with_draws(lambda d: zcdp_epsilon(0.5, d), 1e-5, 10**9) == zcdp_epsilon(0.5, 1e-5)  # too little to be seen
    True
    >>> with_draws(lambda d: zcdp_epsilon(30.0, d), 1e-5, 10**9)
    inf
    """
    epsilon = convert(delta)
    if not draws:
        return epsilon
    for _ in range(100):
        slack = (1.0 + math.exp(min(epsilon, 700.0))) * draws * DISTANCE
        if slack >= delta:
            break
        found = epsilon if delta - slack == delta else convert(delta - slack)
        if found <= epsilon:  # delta'(epsilon) + slack(epsilon) <= delta
            return epsilon
        epsilon = found * (1.0 + 1e-9)
    return math.inf


def smallest(options: Mapping[str, Callable[[float], float]], delta: float, draws: int = 0) -> tuple[float, str]:
    """The smallest epsilon of several conversions that all hold, and which it was."""
    return min((with_draws(convert, delta, draws), str(name)) for name, convert in options.items())


def laplace_renyi(ratio: Floats, order: float) -> Floats:
    """R_a of a Laplace mechanism with sensitivity / scale = ratio (Mironov 2017)."""
    a, t = order, np.asarray(ratio, dtype=np.float64)
    terms = np.logaddexp(math.log(a / (2 * a - 1)) + (a - 1) * t, math.log((a - 1) / (2 * a - 1)) - a * t)
    return np.asarray(terms / (a - 1))


def pure_renyi(epsilon: Floats, order: float) -> Floats:
    """R_a of randomised response, which dominates every mechanism with this pure epsilon (Kairouz et al. 2015)."""
    a, t = order, np.asarray(epsilon, dtype=np.float64)
    return np.asarray((np.logaddexp(a * t, (1 - a) * t) - np.logaddexp(t, 0.0)) / (a - 1))


def pure_epsilon(ratios: Floats, delta: float) -> float:
    """epsilon(delta) of adaptively composed mechanisms of which only the pure epsilons are known.

    Discrete Laplace is one: with the same ratio its delta(epsilon) lies above that of the continuous law.
    """
    return _composed(ratios, delta, pure_renyi)


def laplace_epsilon(ratios: Floats, delta: float) -> float:
    """epsilon(delta) of adaptively composed Laplace mechanisms with sensitivity / scale = ratios.

    Pure composition, Rényi, and dp-accounting's privacy loss distributions: the smallest of the three. A vector with
    l1 sensitivity D is dominated by one coordinate with all of D: T_{D1+D2} <= T_{D1} (x) T_{D2}, which follows from
    delta_D(eps) = 1 - exp((eps - D)/2) on [-D, D] by one integration (tests/privacy/test_conversion.py checks it).
    """
    pure, values, counts = _each(ratios)
    best = _composed(ratios, delta, laplace_renyi)
    if len(values) > 50 or pure > 1e4:  # each distinct mechanism costs a convolution; beyond, nothing is private
        return best
    return min(best, _by_losses(tuple(values.tolist()), tuple(counts.tolist()), pure, delta))


def _composed(ratios: Floats, delta: float, renyi: Callable[[Floats, float], Floats]) -> float:
    """By pure composition or by Rényi, whichever is smaller."""
    pure, values, counts = _each(ratios)
    if pure == 0.0:
        return 0.0
    return min(pure, renyi_epsilon(lambda orders: np.array([counts @ renyi(values, a) for a in orders]), delta))


def _each(ratios: Floats) -> tuple[float, Floats, Ints]:
    """Their sum, and each with how often it is there, of those that cost anything."""
    ratios = ratios[ratios > 0]
    return float(ratios.sum()), *np.unique(ratios, return_counts=True)


@lru_cache(maxsize=64)
def _by_losses(values: tuple[float, ...], counts: tuple[int, ...], pure: float, delta: float) -> float:
    """By privacy loss distributions; a statement asks for the same number several times."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    interval, total = max(1e-4, pure / 50_000), None
    for value, count in zip(values, counts, strict=True):
        one = pld.from_laplace_mechanism(1.0, sensitivity=value, value_discretization_interval=interval)
        many = one.self_compose(count) if count > 1 else one
        total = many if total is None else total.compose(many)
    return math.inf if total is None else float(total.get_epsilon_for_delta(delta))


def true_positive_rate(
    false_positive: float, *, mu: float | None = None, epsilon: float | None = None, delta: float = 0.0
) -> float:
    """The best any test can do: its true positive rate at this false positive rate.

    From mu_GDP exactly; from (epsilon, delta) the bound min(e^eps x + delta, 1 - e^-eps (1 - delta - x)).
    """
    from scipy.special import ndtr, ndtri  # `scipy.stats` has the same, and takes half a second to load

    if mu is not None:
        return float(ndtr(mu + ndtri(false_positive)))
    assert epsilon is not None  # noqa: S101
    up = math.exp(min(epsilon, 700.0)) * false_positive + delta
    return min(1.0, up, 1.0 - math.exp(-epsilon) * (1.0 - delta - false_positive))
