"""Noise for whatever leaves a machine: integers, from the words of a secret stream, with a proven distance.

    discrete Laplace    P(x) ~ exp(-|x| / scale)           epsilon = Delta_1 / scale        (pure)
    discrete Gaussian   P(x) ~ exp(-x^2 / (2 sigma^2))     rho = Delta_2^2 / (2 sigma^2)    (zCDP)

for iid coordinates added to an integer vector whose L1 (L2) sensitivity is Delta, all in quanta: the same formulas as
the continuous laws (Canonne, Kamath & Steinke 2020); mu-GDP carries over where noise is wide (`discrete_gaussian`).
Floats leak through their low bits (Mironov 2012), so the float noise of `base.randomness` is for simulations only.

Method. Either law is a sum of independent *dice* times powers of K = 64, X = D_0 + K D_1 + ... + K^n D_n, and a die
is a finite table with probabilities that are multiples of 2^-128, thrown by Walker's alias method with integer
comparisons: one 64-bit word a throw and no rejection (a tie with a threshold, probability below 2^-50, asks for one
more word). Tables are computed with 80-digit decimals; no float touches a probability.

  *Laplace.* With q = exp(-1/scale), X = G - G' for two geometric variables, P(g) ~ q^g. The base-K digits of G are
  independent, since q^(sum of d_i K^i) is a product. So D_i = d_i - d_i' has P(m) ~ sum over d < K - |m| of
  w^(2d + |m|), w = q^(K^i), and the last die is discrete Laplace with scale / K^n. This step is exact.

  *Gaussian.* Let X_1, X_2 be discrete Gaussians with variance parameters v_1, v_2 and v = v_1 + K^2 v_2. Completing
  the square, P(X_1 + K X_2 = z) ~ exp(-z^2 / 2v) S(c_z), where S(c) = sum over y of exp(-(y - c)^2 / 2 t^2) and
  t^2 = v_1 v_2 / v. By Poisson summation S(c) = t sqrt(2 pi) (1 + e_c), |e_c| <= e = 2 sum over j >= 1 of
  exp(-2 pi^2 t^2 j^2), so the sum is within e / (1 - e) of the discrete Gaussian with parameter v. Taking v_1 = 5 K^2
  and splitting only where v >= 25 K^2 gives t^2 >= 4, hence e / (1 - e) < 2^-112.

Distance (total variation, one sample), which `tests/draws.py` adds up. Independent sums and the triangle
inequality make it at most the sum over dice of

  tail       A die that is infinite is cut at a radius r and renormalised, which moves its mass beyond r. Laplace:
             2 q^(r+1) / (1 + q). Gaussian: E exp(uX) <= exp(u^2 v / 2), because the lattice sum is largest unshifted
             (Poisson coefficients are positive), so Chernoff gives 2 exp(-r^2 / 2v). Both are below 2 exp(-79).
  rounding   A weight is off by less than 1e-70, the total being at least 1; masses are rounded down and the mode
             takes what is left, so a die with m faces is off by at most m 2^-128.
  joining    2^-112 for every split of a Gaussian.

It is below 2^-108 for every scale. N samples are within N times that, t say, of ideal ones, and a mechanism that is
(eps, delta)-DP with ideal noise is (eps, delta + (1 + exp(eps)) t)-DP with these. The words are taken to be uniform:
ChaCha20's security is assumed, not counted.

What is not claimed. Throws do not loop, so time does not depend on the value through rejection, but tables are read
at secret positions: who shares the processor's cache may learn something. Python cannot wipe every copy of a key.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal, localcontext
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from numpy.typing import NDArray

from confide.base.errors import InputError
from confide.base.randomness import Words
from confide.base.validation import positive, whole

if TYPE_CHECKING:
    from confide.laws.secret_stream import SecretStream

Law = Literal["laplace", "gaussian"]
Integers = NDArray[np.int64]

LAWS: Final = ("laplace", "gaussian")
LARGEST_SCALE: Final = 2.0**50
LARGEST_SIZE: Final = 1 << 32

K: Final = 64  # the base of the digits
JOIN: Final = 5 * K * K  # v_1, the variance parameter of every Gaussian digit
SPLIT_GAUSSIAN: Final = 25 * K * K  # a larger variance parameter is split; then t^2 >= 4
SPLIT_LAPLACE: Final = 32  # a larger scale is split
TAIL: Final = 79  # nats: a die is cut where its law has fallen by exp(-79)
MASS_BITS: Final = 128
CHUNK: Final = 8192  # samples at a time, so that the arrays stay in the cache; part of a stream's meaning


def discrete_laplace(stream: SecretStream, scale: float, size: int) -> Integers:
    """P(x) ~ exp(-|x| / scale) on the integers; never beyond 84 scale + 1.

    >>> from confide.laws.secret_stream import SecretStream
    >>> discrete_laplace(SecretStream(bytes(32)), 2.0**30, 3)
    array([   64139566, -1104798091, -1282963248])
    """
    return _throw(stream, _dice("laplace", _scale("scale", scale)), size)


def discrete_gaussian(stream: SecretStream, sigma: float, size: int) -> Integers:
    """P(x) ~ exp(-x^2 / (2 sigma^2)) on the integers; never beyond 20 sigma + 1.

    >>> from confide.laws.secret_stream import SecretStream
    >>> discrete_gaussian(SecretStream(bytes(32)), 2.0**30, 3)
    array([    7666372,  -579448173, -1089189044])
    """
    return _throw(stream, _dice("gaussian", _scale("sigma", sigma)), size)


def _scale(field: str, value: object) -> float:
    scale = positive(field, value)
    if scale > LARGEST_SCALE:
        raise InputError(field, value, "must be at most 2^50 quanta; use a coarser grid")
    return scale


@dataclass(frozen=True, eq=False)
class _Die:
    """A law on -radius .. radius as an alias table with 2^bits columns of 2^(128 - bits) equally likely cases each.

    The first `keep` cases of a column mean the column's own value, the others its alias. A word's high bits are the
    column and its other bits begin the case, so `high` is the column's number followed by the high bits of `keep`.
    """

    radius: int
    bits: int
    high: Words
    low: Words  # the last 64 bits of keep
    alias: Integers
    tail: float  # what cutting the law at the radius moved

    def throw(self, stream: SecretStream, n: int) -> Integers:
        word = stream.words(n)
        column = (word >> np.uint64(64 - self.bits)).view(np.int64)
        high = self.high[column]
        own = word < high
        tie = word == high
        if tie.any():
            own[tie] = stream.words(int(tie.sum())) < self.low[column[tie]]
        return np.where(own, column - self.radius, self.alias[column])


def _throw(stream: SecretStream, dice: tuple[_Die, ...], size: int) -> Integers:
    """Horner's rule: the last die is the most significant digit."""
    out = np.empty(whole("size", size, 0, LARGEST_SIZE), dtype=np.int64)
    for start in range(0, len(out), CHUNK):
        part = out[start : start + CHUNK]
        part[:] = 0
        for die in reversed(dice):
            part *= K
            part += die.throw(stream, len(part))
    return out


@lru_cache(maxsize=16)
def _dice(law: Law, scale: float) -> tuple[_Die, ...]:
    with localcontext(_decimals()):
        return _laplace_dice(Decimal(scale)) if law == "laplace" else _gaussian_dice(Decimal(scale) ** 2)


def _decimals() -> Context:
    return Context(prec=80, rounding=ROUND_HALF_EVEN, Emin=-999_999, Emax=999_999, traps=[])


def _laplace_dice(scale: Decimal) -> tuple[_Die, ...]:
    dice = []
    while scale > SPLIT_LAPLACE:
        w = _powers((-1 / scale).exp(), 2 * K)
        sums = list(accumulate(w[::2]))  # of w^(2d)
        dice.append(_die((w[m] * sums[K - 1 - m] for m in range(K)), tail=0.0))
        scale /= K
    radius = math.ceil(TAIL * scale)
    return (*dice, _die(_powers((-1 / scale).exp(), radius + 1), tail=2 * math.exp(-TAIL)))


def _gaussian_dice(v: Decimal) -> tuple[_Die, ...]:
    dice = []
    while v > SPLIT_GAUSSIAN:
        dice.append(_joining_die())
        v = (v - JOIN) / (K * K)
    return (*dice, _gaussian_die(v))


@lru_cache(maxsize=1)
def _joining_die() -> _Die:
    with localcontext(_decimals()):
        return _gaussian_die(Decimal(JOIN))


def _gaussian_die(v: Decimal) -> _Die:
    radius = math.ceil((2 * TAIL * v).sqrt())
    ratios = _powers((-1 / v).exp(), radius, first=(-1 / (2 * v)).exp())  # of exp(-(x + 1)^2 / 2v) to exp(-x^2 / 2v)
    return _die(accumulate(ratios, lambda weight, ratio: weight * ratio, initial=Decimal(1)), 2 * math.exp(-TAIL))


def _powers(ratio: Decimal, count: int, first: Decimal = Decimal(1)) -> list[Decimal]:
    """first, first ratio, first ratio^2, ..., in all `count` of them; errors of numbers below 1 only add."""
    return list(accumulate([ratio] * (count - 1), lambda power, r: power * r, initial=first))


def _die(weights: Iterable[Decimal], tail: float) -> _Die:
    """A symmetric die from its weights at 0, 1, ..., radius."""
    half = list(weights)
    radius, unit = len(half) - 1, (1 << MASS_BITS) / (half[0] + 2 * sum(half[1:]))
    side = [int(weight * unit) for weight in half[1:]]
    masses = [*reversed(side), (1 << MASS_BITS) - 2 * sum(side), *side]
    bits = max(1, (len(masses) - 1).bit_length())
    keep, alias = _alias_table(masses, bits)
    shift = MASS_BITS - 64
    return _Die(
        radius,
        bits,
        high=np.array([(c << (64 - bits)) + (k >> shift) for c, k in enumerate(keep)], dtype=np.uint64),
        low=np.array([k & ((1 << shift) - 1) for k in keep], dtype=np.uint64),
        alias=np.array(alias, dtype=np.int64) - radius,
        tail=tail,
    )


def _alias_table(masses: list[int], bits: int) -> tuple[list[int], list[int]]:
    """Walker's columns in exact integers: each holds `keep` cases of its own and fills up from one richer column."""
    column = 1 << (MASS_BITS - bits)
    rest = masses + [0] * ((1 << bits) - len(masses))
    keep, alias = [0] * len(rest), list(range(len(rest)))
    poor = [c for c, mass in enumerate(rest) if mass < column]
    rich = [c for c, mass in enumerate(rest) if mass >= column]
    while poor:  # what is left fills the columns that are left, so one of them is rich
        c, donor = poor.pop(), rich[-1]
        keep[c], alias[c] = rest[c], donor
        rest[donor] -= column - rest[c]
        if rest[donor] < column:
            poor.append(rich.pop())
    return keep, alias  # a column that stays rich is exactly full: its alias is itself
