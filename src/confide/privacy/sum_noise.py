"""Noise inside the secure sum: what even the own server, and with it everybody else, can learn at most.

Every client adds a share of discrete Gaussian noise to its integer update before it is masked. The server sees the
sum S_j of round j and nothing else of its clients; the model that it handed out is a function of what it saw before. So
each round is a fresh query at a point that the adversary knows (or chooses): psi moves by at most `Sensitivity.single`,
nothing accumulates, no convexity is needed, and the rho of the rounds add up. Whatever anybody else sees (messages,
other servers' states, handed-out models, a release) is a function of the S_j and of things that do not depend on
the target's data, so that the same number holds against every adversary who does not know the honest shares.

*Sums of discrete Gaussians* are not discrete Gaussian (Kairouz, Liu & Steinke 2021, arXiv 2102.06387). In quanta, with
n shares of parameter s >= 1/2 in each of d coordinates and a shift of l2 norm Delta:

    tau  = 10 sum_{k=1}^{n-1} exp(-2 pi^2 s^2 k / (k + 1))
    D_a <= a x / 2 + tau d          and          D_a <= (a / 2) (sqrt x + tau sqrt d)^2,      x = Delta^2 / (n s^2)

for all Rényi orders a > 1 (their Proposition 14), hence rho = min(x + 2 tau d, (sqrt x + tau sqrt d)^2) / 2. Their
Theorem 1 prints tau d / 2 in the place of 2 tau d, which does not follow for orders below 4; it is not used here.
Why it is true:

  *Two Gaussians.* The sum of discrete Gaussians with parameters k s^2 and s^2 has at z the probability of the discrete
  Gaussian with (k + 1) s^2 times S(c_z) / mean of S, where S(c) = sum over integers y of exp(-(y - c)^2 / 2t^2) and
  t^2 = s^2 k / (k + 1). By Poisson summation S varies by factors 1 +- e, e = 2 sum_j exp(-2 pi^2 t^2 j^2), so the
  logarithm of the ratio is at most log((1 + e) / (1 - e)) <= 5 exp(-2 pi^2 t^2) for s >= 1/2. Adding the shares one by
  one, the sum X and the discrete Gaussian Y with parameter n s^2 differ by at most tau / 2 in log-probability.
  *First bound.* log P(X + Delta = z) / P(X = z) is within tau of the same for Y, which is linear in z; and
  E exp(u X) <= exp(u^2 n s^2 / 2), as for every discrete Gaussian.
  *Second bound.* X + Delta to Y + Delta to Y to X are (tau/2)^2/2-, x/2- and (tau/2)^2/2-concentrated, and roots of
  concentrated costs add up (Bun & Steinke 2016). Over d coordinates costs add, and Cauchy-Schwarz does the rest.

More honest shares than counted are more noise on top: post-processing. So is the wrapping of the ring.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np

from confide.base.arrays import Floats
from confide.base.errors import InputError
from confide.base.validation import number, one_of, positive, positive_int, whole
from confide.laws import conversion, discrete_gaussian
from confide.laws.law import Conversion, Norm
from confide.plans.words import Adjacency, Amplified, Level, Random, Threat
from confide.privacy.course import Account, Bound
from confide.privacy.rounding import Rounding
from confide.privacy.sensitivity import Sensitivity

if TYPE_CHECKING:
    from confide.secure.settings import SecureSum

LEAST_SHARE = 0.5  # quanta: below, the correction is not proven


def tau(share: float, shares: int) -> float:
    """Twice the log-distance of a sum of discrete Gaussians from the discrete Gaussian of the same variance.

    >>> tau(0.5, 1), round(tau(0.5, 2), 4), tau(3.0, 1000) < 1e-34
    (0.0, 0.848, True)
    """
    k = np.arange(1.0, shares)
    return 10.0 * float(np.sum(np.exp(-2.0 * (math.pi * share) ** 2 * (k / (k + 1.0)))))


def sum_rho(delta: float, share: float, shares: int, dim: int) -> float:
    """rho of a vector seen through the sum of `shares` discrete Gaussian vectors; everything in quanta.

    Args:
        delta: l2 sensitivity of the vector.  share: parameter s of one share.  dim: d.

    >>> sum_rho(10.0, 5.0, 4, 100)  # wide shares: delta^2 / (2 n s^2)
    0.5
    >>> round(sum_rho(1.0, 0.5, 2, 1), 4)  # narrow ones: more than 1.0
    1.848
    """
    number("delta", delta, 0.0)
    if positive("share", share) < LEAST_SHARE:
        raise InputError("share", share, f"must be at least {LEAST_SHARE:g} quanta: below, no bound is proven")
    root, t, d = delta / (math.sqrt(positive_int("shares", shares)) * share), tau(share, shares), float(dim)
    return 0.5 * min(root * root + 2.0 * t * d, (root + t * math.sqrt(d)) ** 2)


def release_rho(
    deviation: float,
    sigma: float,
    *,
    servers: int,
    colluders: int = 0,
    known: int | None = None,
    quantum: float,
    dim: int,
) -> float:
    """rho of one release of the mean over P servers, each of which added a discrete Gaussian share to the secure sum.

    A share has variance P^2 sigma^2 / (P - C) on the sum, so that P - C of them put sigma on the mean.

    Args:
        deviation: of one server's integer state given the messages, c Delta_T and what rounding adds.
        sigma: of P - C shares on the mean.  quantum: of the states.
        known: shares that the adversary knows; C by default.

    >>> release_rho(0.4, 0.1, servers=4, colluders=1, quantum=2.0**-20, dim=10)  # (0.4 / 4 / 0.1)^2 / 2
    0.5
    """
    P = positive_int("servers", servers)
    sized = P - whole("colluders", colluders, 0, P - 1)
    n = sized if known is None else P - whole("known", known, 0, P - 1)
    share = P * positive("sigma", sigma) / (math.sqrt(sized) * positive("quantum", quantum))
    if share < LEAST_SHARE:
        least = LEAST_SHARE * math.sqrt(sized) * quantum / P
        remedy = f"a share of it is {share:.3g} quanta wide, and at least {LEAST_SHARE:g} is needed: at least {least:g}"
        raise InputError("sigma", sigma, remedy)
    return sum_rho(deviation / quantum, share, n, positive_int("dim", dim))


@dataclass(frozen=True)
class SumNoise:
    """The noise that every revealed sum of a unit carries.

    Attributes:
        sigma: standard deviation per coordinate on psi, of the honest shares alone.
        honest: number of honest shares in any sum, at least: quorum minus corrupted.
        share_quanta: parameter s of one client's share, in the clients' quanta 2^-fraction_bits.
        dim: M.
        corrupted: clients, at most, who tell the adversary their updates and shares.
        server: what secure aggregation trusts the own server with, "curious" or "active".
    """

    sigma: float
    honest: int
    share_quanta: float
    dim: int
    corrupted: int = 0
    server: str = "curious"

    def __post_init__(self) -> None:
        positive("sum_noise.sigma", self.sigma)
        positive_int("sum_noise.honest", self.honest)
        positive_int("sum_noise.dim", self.dim)
        whole("sum_noise.corrupted", self.corrupted, 0)
        one_of("sum_noise.server", self.server, ("curious", "active"))
        share = positive("sum_noise.share_quanta", self.share_quanta)
        if share < LEAST_SHARE:
            least, bits = self.sigma * LEAST_SHARE / share, math.ceil(math.log2(LEAST_SHARE / share))
            remedy = (
                f"a share of it is {share:.3g} quanta wide, and at least {LEAST_SHARE:g} is needed: give at least "
                f"{least:.4g}, or {bits} more fraction bits"
            )
            raise InputError("sum_noise.sigma", self.sigma, remedy)

    @classmethod
    def sized(
        cls,
        sigma: float,
        honest: int,
        *,
        sampled: int,
        fraction_bits: int,
        dim: int,
        corrupted: int = 0,
        server: str = "curious",
    ) -> Self:
        """Shares so wide that `honest` of them put sigma on psi = w + sum / L.

        >>> SumNoise.sized(0.1, 4, sampled=8, fraction_bits=20, dim=3).share_quanta
        419430.4
        """
        per_unit = positive_int("sampled", sampled) * 2.0 ** whole("fraction_bits", fraction_bits, 1, 52)
        share = positive("sum_noise.sigma", sigma) * per_unit / math.sqrt(positive_int("sum_noise.honest", honest))
        return cls(sigma, honest, share, dim, corrupted, server)

    @classmethod
    def of(cls, secure: SecureSum, fraction_bits: int, dim: int) -> Self:
        """What a secure sum has inside.

        >>> from confide.secure.settings import Secure
        >>> noise = SumNoise.of(Secure(sigma=0.01).sums(11), 24, 2)
        >>> noise.honest, noise.corrupted  # 6 clients at least, one of them corrupted
        (5, 1)
        """
        if secure.sigma == 0.0:
            raise InputError("secure.sigma", secure.sigma, "there is no noise inside the sum; give a sigma")
        p, share = secure.parameters, secure.share_quanta(fraction_bits)
        try:
            return cls(secure.sigma, p.honest_survivors, share, dim, p.corrupted, p.server)
        except InputError as e:
            raise InputError(e.field.replace("sum_noise", "secure"), e.value, e.remedy) from None

    @property
    def per_unit(self) -> float:
        """Quanta of the sum in one unit of psi, L 2^fraction_bits."""
        return self.share_quanta * math.sqrt(self.honest) / self.sigma

    def rho(self, delta: float) -> float:
        """What one sum costs whose psi moves by at most `delta` (l2)."""
        return sum_rho(delta * self.per_unit, self.share_quanta, self.honest, self.dim)

    def without(self, shares: int) -> Self:
        """The same clients when the adversary knows so many of the shares that count as honest."""
        left = self.honest - shares
        if left < 1:
            raise InputError(
                "sum_noise.honest", self.honest, f"an adversary with {shares} of the shares knows them all; give more"
            )
        return replace(self, honest=left, sigma=self.sigma * math.sqrt(left / self.honest))

    @property
    def words(self) -> str:
        """The adversary that the shares are sized for."""
        if self.corrupted == 0:
            return "the unit's own server, with no corrupted client"
        return f"the unit's own server, with up to {self.corrupted} corrupted client{'s' * (self.corrupted > 1)}"


@dataclass(frozen=True)
class Sums(Bound):
    """Noisy sums, one a round: of the own server, and an upper bound for everybody else."""

    blank: Account
    noise: SumNoise
    deltas: tuple[float, ...]
    costs: tuple[float, ...]  # rho of each round
    rate: float | None  # of a client that is drawn at random

    def at(self, rounds: int, releases: int) -> Account:
        noise, costs = self.noise, self.costs[:rounds]
        rho, draws = math.fsum(costs), rounds * noise.honest * noise.dim
        squared = discrete_gaussian.mu_squared(rho, math.sqrt(noise.honest) * noise.share_quanta, noise.share_quanta)
        convert: dict[str, Callable[[float], float]] = {
            Conversion.ZCDP: lambda delta: conversion.zcdp_epsilon(rho, delta)
        }
        mu = None if squared is None else math.sqrt(squared)
        if mu is not None:
            convert[Conversion.ROUNDED] = lambda delta: conversion.gaussian_epsilon(mu, delta)
        given = replace(self.blank, rho=rho, mu_gdp=mu, deltas=self.deltas[:rounds], costs=costs)
        always = given.priced(convert, draws)
        return always if self.rate is None else self._by_chance(self.rate, always, draws)

    def _by_chance(self, q: float, always: Account, draws: int) -> Account:
        costs = np.asarray(always.costs)
        curve: dict[str, Callable[[float], float]] = {
            Conversion.RENYI: lambda delta: conversion.renyi_epsilon(lambda a: _drawn(q, costs, a), delta)
        }
        sometimes = replace(always, leak=False, rho=None, mu_gdp=None, costs=()).priced(curve, draws)
        most = math.inf if always.epsilon is None else always.epsilon
        if sometimes.epsilon is None or sometimes.epsilon >= most:
            return always
        note = (
            f"random participation: in each round with probability {q:g}, independently of the data and of other "
            f"rounds; who took part may become known; a client that is always there would have epsilon {most:.4g}"
        )
        kept = [x for x in always.assumptions if not x.startswith("leak: ")]
        return replace(sometimes, assumptions=(*kept, note))


def by_sums(noise: SumNoise, s: Sensitivity, rounds: int, threat: Threat, blank: Account) -> Sums:
    """What the noise inside up to `rounds` sums proves about this adversary."""
    part = s.participation
    if part.by_chance and noise.server == "active":
        raise InputError("participation", str(part), "an active server chooses who takes part; use all")
    notes: list[str] = []
    if threat.own_client and noise.corrupted == 0:
        noise = noise.without(1)
        notes.append(f"the curious client knows its own share: {noise.honest} others are counted")
    moved = _moved(noise, s, rounds, notes)
    costs = s.charged(np.array([noise.rho(delta) for delta in moved]), remembers=False).tolist()
    who = noise.words if threat.own_server else threat.adversary
    blank = replace(
        blank,
        adversary=blank.adversary.replace(threat.adversary, who),
        by="sum",
        law="discrete Gaussian shares inside the secure sums",
        assumptions=(*_assumptions(noise, s, threat), *s.assumptions(False), *notes),
    )
    return Sums(blank, noise, tuple(moved), tuple(costs), part.rate if isinstance(part, Random | Amplified) else None)


def _drawn(q: float, costs: Floats, orders: Floats) -> Floats:
    """Rényi divergence of fresh queries that concern the client with probability q each, given who was drawn."""
    with np.errstate(over="ignore"):
        exponents = np.multiply.outer((orders - 1.0) * orders, costs)  # a - 1 times a rho
        each = np.logaddexp(math.log1p(-q) if q < 1.0 else -np.inf, math.log(q) + exponents)
    return np.asarray(each.sum(axis=1) / (orders - 1.0))


def _moved(noise: SumNoise, s: Sensitivity, rounds: int, notes: list[str]) -> list[float]:
    """Delta_1..Delta_T on psi: fresh queries, so that nothing is kept from round to round."""
    _, why = s.to_norm(Norm.L2)
    notes += why
    grid = s.rounding or Rounding(1.0 / noise.per_unit, 0, decays=False)
    if s.level is Level.EXAMPLE:  # |trunc a - trunc b| < |a - b| + 1, and a, b are floats
        why_more = "example level: truncation may move every coordinate by one quantum more"
        notes.append(why_more + f", floating point by {2.0 * grid.floating:.2g}" * (grid.floating > 0.0))
    s, ones = replace(s, rounding=grid), math.sqrt(noise.dim)
    found: list[float] = s.deltas(lambda j, before: np.zeros(1), rounds, remembers=False, ones=ones).tolist()
    return found


def _assumptions(noise: SumNoise, s: Sensitivity, threat: Threat) -> list[str]:
    found = [
        "proof: noise inside the secure sum"
        + ("" if threat.own_server else "; all else that is seen is a function of the noisy sums"),
        f"at least {noise.honest} honest clients add their shares to every sum: the quorum, less {noise.corrupted} "
        "corrupted ones",
        f"secure aggregation ({noise.server} server) reveals one sum a round, and never a second one of the same round",
        f"shares are discrete Gaussian with {noise.share_quanta:.4g} quanta; sums of them by Kairouz, Liu and Steinke "
        f"2021, tau = {tau(noise.share_quanta, noise.honest):.3g}; the sampler is within 2^-108 of each draw in total "
        "variation (confide.laws.noise): N draws add (1 + e^epsilon) N 2^-108 to delta, paid from this delta",
        "an honest client clips and truncates its update itself and adds its share before it masks",
    ]
    if s.adjacency is Adjacency.ZERO_OUT:
        found.append("who contributes nothing takes part all the same, with a share of noise")
    if s.level is Level.UNIT:
        found.append("unit level: the data of all clients of the unit but those of the adversary's own may change")
    return found
