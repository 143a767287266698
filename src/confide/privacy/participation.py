"""What it is worth that a client takes part only sometimes: Rényi curves for random and for amplified participation.

random:Q     valid for any carry: given the pattern of participation the mechanism is known, and exp((a - 1) D_a) is
             jointly convex, so D_a <= log E exp((a - 1) D_a(pattern)) / (a - 1)   (docs/design/privacy.md, 1.3).
amplified:Q  standard amplification by subsampling, true only where the state is public (carry 0).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from confide.base.errors import InputError
from confide.laws.conversion import laplace_renyi, pure_renyi
from confide.privacy.sensitivity import Sensitivity

Floats = NDArray[np.float64]
Curve = Callable[[Floats], Floats]
MOST_NOISE = 1e6  # in swap distances
CELLS = 64  # of the deviation's grid per unit of s, where the carry is neither 0 nor 1


def random_curve(
    *, q: float, added: float, keep: Floats, factor: Floats, noise: str, final: float
) -> tuple[Curve, list[str]]:
    """Rényi divergence bound when a client takes part in each round independently with probability q.

    The deviation x follows x <- keep_j x + added (with probability q) or keep_j x, rounded up on a grid, which can
    only overstate it; each round costs R_a(x). One pass over the rounds gives E exp((a - 1) sum of costs).

    Args:
        factor: precision 1/sigma^2 of Gaussian noise, or copies/b of Laplace noise, in each round.
        noise: the law; of discrete Laplace only the pure epsilon is used.
        final: of a release: (carry / P) / sigma, whose noise is Gaussian.
    """
    T = len(keep)
    steady = bool(np.all((keep == 0.0) | (keep == 1.0)))
    cells = 1 if steady else CELLS
    h = added / cells
    worst, x = 0.0, 0.0
    for k in keep:
        worst = max(worst, x := x + added)
        x *= k
    size = math.ceil(worst / h * (1 + 1e-12)) + (0 if steady else math.ceil(T)) + 1
    size = min(size, math.ceil(T * cells) + T + 1)
    grid: Floats = h * np.arange(size, dtype=np.float64)
    start = np.full(size, -np.inf)
    start[0] = 0.0

    def moved(j: int) -> NDArray[np.int64]:
        """Cells after the state has kept its share, rounded up."""
        share = float(keep[j - 1]) if j else 1.0
        return np.asarray(np.minimum(np.ceil(share * np.arange(size) - 1e-9).astype(np.int64), size - 1))

    def curve(orders: Floats) -> Floats:
        found = np.empty(len(orders))
        for n, a in enumerate(orders):
            log_mass = start.copy()
            for j in range(T):
                log_mass = _gather(log_mass, moved(j), size)
                up = np.full(size, -np.inf)
                up[cells:] = log_mass[:-cells]
                up[-1] = np.logaddexp.reduce(log_mass[-cells - 1 :])  # what would leave the grid stays at its end
                absent = math.log1p(-q) + log_mass if q < 1.0 else np.full(size, -np.inf)
                log_mass = np.logaddexp(absent, math.log(q) + up)
                log_mass = log_mass + (a - 1.0) * _cost(grid, float(factor[j]), float(a), noise)
            log_mass = log_mass + (a - 1.0) * _cost(grid, final**2, float(a), "gaussian")
            found[n] = np.logaddexp.reduce(log_mass) / (a - 1.0)
        return np.where(np.isfinite(found), found, np.inf)

    return curve, [
        f"random participation: in each round with probability {q:g}, independently of the data and of other rounds, "
        "uniformly over the enrolled; who took part may become known afterwards"
    ]


def amplified_curve(s: Sensitivity, noise: str, factor: Floats) -> tuple[Curve, list[str]]:
    """Gaussian noise behind a sample of L of K clients without replacement (Wang, Balle & Kasiviswanathan 2019).

    The bound compares samples in which one whole client is exchanged for another, so that it needs the swap distance
    2 mu B / L at every level and adjacency: one example, or no contribution, is a special case of other data. What
    nothing clips must not tell who was drawn: with a regulariser outside the clip all clients take equally many steps.
    """
    if noise != "gaussian":
        raise InputError("noise", noise, "amplification is implemented for Gaussian noise; use random:Q or all")
    if s.clip == "example" and s.regulariser and s.steps[0] != s.steps[1]:
        remedy = (
            "with a regulariser outside the clip and unequal local steps the decay tells who was drawn; use random:Q, "
            "or give all clients the same number of local steps"
        )
        raise InputError("participation", str(s.participation), remedy)
    import dp_accounting as dp
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    q = s.participation.value
    # dp-accounting takes the logarithm of 0 for very much noise; less noise than there is can only cost more.
    multipliers = np.minimum(1.0 / (np.sqrt(factor) * s.swap), MOST_NOISE)

    def curve(orders: Floats) -> Floats:
        usable = np.unique(np.maximum(2, np.rint(orders)))  # the bound knows whole orders
        total = np.zeros(len(usable))
        for multiplier, count in zip(*np.unique(multipliers, return_counts=True), strict=True):
            sampled = dp.SampledWithoutReplacementDpEvent(
                10**9, math.ceil(q * 10**9), dp.GaussianDpEvent(float(multiplier))
            )
            accountant = rdp.RdpAccountant(usable.tolist(), dp.NeighboringRelation.REPLACE_ONE)
            accountant.compose(dp.SelfComposedDpEvent(sampled, int(count)))
            total += np.asarray(accountant.rdp)
        # (a - 1) R_a is convex in a, so its chords lie above it; those of R_a itself may not.
        return np.asarray(np.interp(orders, usable, (usable - 1.0) * total, left=np.inf, right=np.inf) / (orders - 1.0))

    return curve, [
        f"amplification by subsampling at rate {q:g}, fixed-size sampling without replacement, hidden from the "
        "adversary; priced for the exchange of a whole client"
    ]


def _gather(log_mass: Floats, to: NDArray[np.int64], size: int) -> Floats:
    """Sum the masses that move to the same cell."""
    if to[-1] == size - 1 and np.array_equal(to, np.arange(size)):
        return log_mass
    top = float(log_mass.max())
    mass = np.bincount(to, np.exp(log_mass - top), minlength=size)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(mass) + top)


def _cost(x: Floats, factor: float, order: float, noise: str) -> Floats:
    if factor == 0.0:
        return np.zeros_like(x)
    if noise.endswith("gaussian"):
        return order * factor * x**2 / 2.0
    return (pure_renyi if noise == "discrete-laplace" else laplace_renyi)(factor * x, order)
