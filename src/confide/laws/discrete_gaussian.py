"""Discrete Gaussian noise as Gaussian differential privacy: zCDP is not all that is known of it.

In quanta. Let X be discrete Gaussian with parameter v = sigma^2, P(x) = exp(-x^2 / 2v) / S_v(0), where
S_v(c) = sum over integers x of exp(-(x - c)^2 / 2v). Let R round a real number y at random: R(y) is the integer x with
probability exp(-(x - y)^2 / 2r) / S_r(y), here r = 9. Two facts about R:

  *It commutes with whole quanta*: R(y + m) has the law of m + R(y) for every integer m, because S_r(y + m) = S_r(y).
  *It makes discrete Gaussian noise of continuous one* (Peikert 2010, Theorem 3.1, with one sum more explicit). Let Y be
  normal with variance v - r. By Poisson summation S_r(y) = sqrt(2 pi r) (1 + e_y), |e_y| <= e = 2 sum over j >= 1 of
  exp(-2 pi^2 r j^2), whatever y. So P(R(Y) = x) is the integral over y of
      N(y; 0, v - r) N(x; y, r) / (1 + e_y),        hence within factors 1/(1 + e) and 1/(1 - e) of  N(x; 0, v),
  and P(X = x) = N(x; 0, v) / (1 + e'), 0 <= e' <= 2 sum over j >= 1 of exp(-2 pi^2 v j^2). With r = 9 and v >= 900
  both e < 1.6e-77 and e' = 0 to 7,000 digits: P(X = x) and P(R(Y) = x) differ by a factor within 1 +- 3e-77.

*One message.* A mechanism that shows m + R(Y), m a vector of integers that depends on the data, has the law of
R(m + Y), coordinate by coordinate: that is m seen through continuous Gaussian noise of variance v - 9, and then
post-processing. The shift between two data sets is one between integer vectors, so that no rounding of m is involved.
*Many, adaptively.* In round t the integers m_t are a function of the data and of what was shown before. Give the
adversary the real numbers m_t + Y_t, whose rounding it may then do itself: an adaptive composition of Gaussian
mechanisms, mu^2 = sum over t of |m_t - m'_t|^2 / (v - 9), as for continuous noise.
*From R(Y) to X.* With n draws in all (coordinates, messages, rounds) the probability of every transcript, under either
data set, changes by a factor within (1 +- 3e-77)^n, a total variation of at most 3e-77 n for n < 1e70. It stands beside
the sampler's own distance of 2^-108 a draw (`conversion.with_draws`), of which it is less than a part in 1e44.
*Sums of shares.* A sum of n shares with parameter s^2 each, s >= 30, is a discrete Gaussian with parameter n s^2 up to
factors exp(+-tau/2) at every point (`sum_noise`), tau < n exp(-8000): the same holds with v = n s^2.
*Mixed.* Messages and a release each have their own v; their mu^2 add up. Where one is narrower than `LEAST` only zCDP
is left for all. It is kept anyhow, and the smaller epsilon is printed: the 9 quanta^2 cost most where epsilon is huge.
"""

from __future__ import annotations

ROUNDING = 9.0  # r, quanta^2
LEAST = 30.0  # quanta: below, a hundredth of the variance and more would be lost


def mu_squared(rho: float, width: float, share: float | None = None) -> float | None:
    """mu^2 of Gaussian differential privacy where discrete Gaussian noise costs rho; None where it is too narrow.

    Args:
        rho: |m - m'|^2 / (2 v), summed over rounds.  width: sqrt(v), in quanta.  share: of a sum of shares, s of one.

    >>> mu_squared(0.5, 30.0), mu_squared(0.5, 29.9), mu_squared(0.5, 60.0, share=20.0)
    (1.0101010101010102, None, None)
    """
    if min(width, width if share is None else share) < LEAST:
        return None
    return 2.0 * rho * width**2 / (width**2 - ROUNDING)
