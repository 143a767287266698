"""Lower bounds of epsilon(delta) for two known distributions: exact, or rounded down.

Any event has P(event) - exp(epsilon) Q(event) <= delta; the events here are those of the likelihood ratio, and of
independent looks the ratios multiply, so that their logarithms are added up by convolution on a grid. Losses are
rounded down and what the transform blurs is given away, which can only lower the bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from confide.base.arrays import Floats
from confide.laws.conversion import gaussian_delta

CELLS: Final = 1 << 20  # of a grid of losses
MANY: Final = 32  # looks of different kinds: from there on the grid is eight times coarser
BLUR: Final = 1e-11  # more than the transform's error in any sum of probabilities
REACH: Final = 12.0  # standard deviations: beyond them there is less than 1e-32
TERMS: Final = 2_000  # losses that are added up, at most: each is rounded down by a cell


Mixture = Sequence[tuple[float, float]]  # (probability, mean)


class Look(NamedTuple):
    """A distribution of log P/Q under P, and how often it is met independently."""

    loss: Floats
    mass: Floats
    times: int = 1


def largest(delta_of: Callable[[float], float], delta: float, most: float) -> float:
    """The largest epsilon in [0, most] at which delta_of, which falls, is still above delta."""
    low, high = 0.0, most
    if delta_of(0.0) <= delta:
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if delta_of(middle) > delta else (low, middle)
    return low


def epsilon_of(looks: Sequence[Look], delta: float) -> float:
    """A lower bound of epsilon for all these looks together."""
    if not looks:
        return 0.0
    loss, mass = (looks[0].loss, looks[0].mass) if sum(x.times for x in looks) == 1 else _added(looks)
    above = loss > 0.0
    mass, loss = mass[above], loss[above]

    def delta_of(epsilon: float) -> float:
        beyond = loss > epsilon
        return float(mass[beyond] @ -np.expm1(epsilon - loss[beyond])) - BLUR

    return largest(delta_of, delta, float(loss.max(initial=0.0)))


def _added(looks: Sequence[Look]) -> tuple[Floats, Floats]:
    """The losses of all looks added up, and their probabilities."""
    mean = sum(x.times * float(x.mass @ x.loss) for x in looks)
    spread = math.sqrt(sum(x.times * float(x.mass @ x.loss**2 - (x.mass @ x.loss) ** 2) for x in looks))
    reach = 20.0 * spread + max(float(np.ptp(x.loss)) for x in looks)
    size = CELLS if len(looks) < MANY else CELLS // 8
    width = 2.0 * reach / size
    if not width:
        return np.zeros(1), np.ones(1)
    start, transform = 0, np.ones(size // 2 + 1, dtype=complex)
    for x in looks:
        cells = np.floor(x.loss / width).astype(np.int64)
        start += x.times * int(cells.min())
        transform *= np.fft.rfft(np.bincount((cells - cells.min()) % size, x.mass, size)) ** x.times
    mass = np.fft.irfft(transform, size)
    # The sum lies within `reach` of its mean but for nothing: that tells which turn of the circle a cell is on.
    first = math.floor((mean - reach) / width - sum(x.times for x in looks) / 2.0)  # half a cell a term is rounded off
    return np.asarray(width * (first + np.arange(size)), dtype=np.float64), np.roll(mass, start - first)


def laplace_looks(ratios: Floats) -> list[Look]:
    """Independent Laplace noises, in each of which the worlds lie `ratio` scales apart."""
    found = []
    ratios = np.sort(np.abs(ratios[ratios != 0.0]))[-TERMS:]  # to look away from some is allowed
    for r, times in zip(*np.unique(ratios, return_counts=True), strict=True):
        edges = np.linspace(-r, r, 2001)
        # Under P the loss is -r with probability e^-r / 2, r with 1/2, and the rest lies between; of a stretch the
        # masses' ratio is that of its middle.
        between = np.diff(0.5 * np.exp((edges - r) / 2.0))
        loss = np.concatenate([[-r], (edges[1:] + edges[:-1]) / 2.0, [r]])
        found.append(Look(loss, np.concatenate([[0.5 * math.exp(-r)], between, [0.5]]), int(times)))
    return found


def gaussian_look(mu: float) -> Look:
    """Gaussian noise, in which the worlds lie mu standard deviations apart."""
    return mixture_look([(1.0, mu)], [(1.0, 0.0)])


def mixture_look(one: Mixture, other: Mixture, times: int = 1, snr: float = 1.0) -> Look:
    """Gaussian noise of deviation 1/snr around one of several means in either world."""
    means = [snr * m for _, m in (*one, *other)]
    low, high = min(means) - REACH, max(means) + REACH
    x = np.linspace(low, high, max(20_001, int(200 * (high - low))))
    p, q = (
        np.logaddexp.reduce([math.log(w) - (x - snr * m) ** 2 / 2.0 for w, m in side if w], axis=0)
        for side in (one, other)
    )
    mass = np.exp(p)
    return Look(p - q, mass / mass.sum(), times)


def counted_epsilon(chance: float, rounds: int, mu: float, delta: float) -> float:
    """Of Gaussian rounds mu apart, in each of which the target was there by chance, as the adversary learns."""
    from scipy.stats import binom

    n = np.arange(rounds + 1)
    likely = binom.pmf(n, rounds, chance)
    n, likely = n[likely > 1e-14], likely[likely > 1e-14]

    def delta_of(epsilon: float) -> float:
        return float(sum(w * gaussian_delta(math.sqrt(k) * mu, epsilon) for k, w in zip(n, likely, strict=True)))

    return largest(delta_of, delta, 2.0 * rounds * mu * (mu + 2.0) + 60.0 * mu)


def rounded_epsilon(steps: int, terms: int, sigma: float, delta: float) -> float:
    """Of the sum of `terms` Gaussian noises, each rounded to whole numbers, that lies `steps` apart."""
    from scipy.special import ndtr

    reach = int(REACH * math.sqrt(terms * (sigma**2 + 1.0))) + steps + 2
    if 2 * reach > CELLS:
        return 0.0
    x = np.arange(-min(reach, int(REACH * sigma) + 2), min(reach, int(REACH * sigma) + 2) + 1)
    mass = np.zeros(CELLS)
    mass[x % CELLS] = ndtr((x + 0.5) / sigma) - ndtr((x - 0.5) / sigma)
    total = np.fft.irfft(np.fft.rfft(mass) ** terms, CELLS)
    total = np.maximum(np.roll(total, reach)[: 2 * reach + 1], 1e-15)  # a Q that is too large lowers the bound
    here, there = total[steps:], total[: len(total) - steps]
    return largest(lambda epsilon: float(np.maximum(there - math.exp(epsilon) * here, 0.0).sum()) - BLUR, delta, 34.0)
