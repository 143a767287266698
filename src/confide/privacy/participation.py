"""What it is worth that a client takes part only sometimes: Rényi curves for random and for amplified participation.

random:Q     valid for any carry: given the pattern of participation the mechanism is known, and exp((a - 1) D_a) is
             jointly convex, so D_a <= log E exp((a - 1) D_a(pattern)) / (a - 1)   (docs/design/privacy.md, 1.3).
amplified:Q  standard amplification by subsampling, true only where the state is public (carry 0).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from confide.base.arrays import Floats
from confide.base.errors import InputError
from confide.laws.conversion import ORDERS
from confide.laws.law import Law
from confide.privacy.sensitivity import Sensitivity

Curve = Callable[[int], Floats]  # releases -> Renyi divergence by (order of `ORDERS`, rounds)
MOST_NOISE = 1e6  # in swap distances
CELLS = 64  # of the deviation's grid per unit of s, where the carry is neither 0 nor 1


def random_curve(
    *, q: float, added: float, keep: Floats, copies: Floats, sigma: float, noise: Law, final: Floats
) -> tuple[Curve, list[str]]:
    """Rényi divergence bound when a client takes part in each round independently with probability q.

    The deviation x follows x <- keep_j x + added (with probability q) or keep_j x, rounded up on a grid, which can
    only overstate it; each round costs R_a(x). One pass over the rounds gives E exp((a - 1) sum of costs) after each.

    Args:
        copies: of independent noise in each round, with standard deviation `sigma` and the law `noise`.
        final: of a release after each round: (carry / P) / sigma, whose noise is Gaussian.
    """
    renyi = noise.renyi
    if renyi is None:
        remedy = "no Rényi curve of it is known, which participation by chance asks for; use all or cap:N"
        raise InputError("noise", noise.name, remedy)
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

    @cache
    def curve(releases: int) -> Floats:
        found = np.empty((len(ORDERS), T))
        for n, a in enumerate(ORDERS.tolist()):
            log_mass, costs = start.copy(), dict[float, Floats]()
            for j in range(T):
                log_mass = _gather(log_mass, moved(j), size)
                up = np.full(size, -np.inf)
                up[cells:] = log_mass[:-cells]
                up[-1] = np.logaddexp.reduce(log_mass[-cells - 1 :])  # what would leave the grid stays at its end
                absent = math.log1p(-q) + log_mass if q < 1.0 else np.full(size, -np.inf)
                log_mass = np.logaddexp(absent, math.log(q) + up)
                if (of := float(copies[j])) > 0.0:
                    if of not in costs:
                        costs[of] = (a - 1.0) * renyi(grid, sigma, of, a)
                    log_mass = log_mass + costs[of]
                revealed = (a - 1.0) * a * releases * final[j] ** 2 / 2.0
                found[n, j] = np.logaddexp.reduce(log_mass + revealed * grid**2) / (a - 1.0)
        return np.where(np.isfinite(found), found, np.inf)

    return curve, [
        f"random participation: in each round with probability {q:g}, independently of the data and of other rounds, "
        "uniformly over the enrolled; who took part may become known afterwards"
    ]


def amplified_curve(s: Sensitivity, q: float, noise: Law, factor: Floats) -> tuple[Curve, list[str]]:
    """Gaussian noise behind a sample of L of K clients without replacement (Wang, Balle & Kasiviswanathan 2019).

    The bound compares samples in which one whole client is exchanged for another, so that it needs the swap distance
    2 mu B / L at every level and adjacency: one example, or no contribution, is a special case of other data. What
    nothing clips must not tell who was drawn: with a regulariser outside the clip all clients take equally many steps.
    """
    if not noise.normal:
        raise InputError("noise", noise.name, "amplification is implemented for Gaussian noise; use random:Q or all")
    if s.clip == "example" and s.regulariser and s.steps[0] != s.steps[1]:
        remedy = (
            "with a regulariser outside the clip and unequal local steps the decay tells who was drawn; use random:Q, "
            "or give all clients the same number of local steps"
        )
        raise InputError("participation", str(s.participation), remedy)
    import dp_accounting as dp
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    # dp-accounting takes the logarithm of 0 for very much noise; less noise than there is can only cost more.
    multipliers = np.minimum(1.0 / (np.sqrt(factor) * s.swap), MOST_NOISE)

    @cache
    def curve(releases: int) -> Floats:
        """The state is public: a release after a message tells nothing more."""
        usable = np.unique(np.maximum(2, np.rint(ORDERS)))  # the bound knows whole orders
        which, rounds = np.unique(multipliers, return_inverse=True)
        one = np.empty((len(ORDERS), len(which)))
        for n, multiplier in enumerate(which.tolist()):
            sampled = dp.SampledWithoutReplacementDpEvent(10**9, math.ceil(q * 10**9), dp.GaussianDpEvent(multiplier))
            accountant = rdp.RdpAccountant(usable.tolist(), dp.NeighboringRelation.REPLACE_ONE)
            accountant.compose(sampled)
            # (a - 1) R_a is convex in a, so its chords lie above it; those of R_a itself may not.
            chords = np.interp(ORDERS, usable, (usable - 1.0) * np.asarray(accountant.rdp), left=np.inf, right=np.inf)
            one[:, n] = chords / (ORDERS - 1.0)
        return np.asarray(np.cumsum(one[:, rounds], axis=1))

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
