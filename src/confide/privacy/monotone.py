"""What `convex-glm` credits where no smoothness is declared: clipped gradients are monotone, whatever the step.

One example of a convex loss l(u'w) has the clipped gradient c(u'w) u, where c(z) is l'(z) cut off at +-B/|u|. Both l'
and the cut are nondecreasing, so that for any two models

    <g(w) - g(w'), w - w'> = (c(z) - c(z')) (z - z') >= 0        z = u'w,        |g(w)| <= B in l2,

and the same holds for a mean over a mini-batch. It needs no bound on l'' or |u|, so no client can break it by its data.
(A clip in l1 scales the same vector: c is cut off earlier, and |g| <= B in l2 all the more.)

*One local step* w - eta (g(w) + 2 rho w) of two models D apart, on the same examples, with 0 <= a = 1 - 2 rho eta:

    |D+|^2 = a^2 |D|^2 - 2 a eta <G, D> + eta^2 |G|^2 <= a^2 |D|^2 + (2 eta B)^2,        |G| = |g - g'| <= 2 B.

*A round of a client whose data do not change*: E steps of eta = mu/E, starting d apart, end at most

    h(d) = sqrt(gamma^2 d^2 + (2 mu B)^2 / E)        gamma = a^E

apart. Over clients with unequal E the first term is largest for the most steps, the second for the fewest; h takes
both. A client that sends zeros (it has used up its cap) is shrunk by the server alone: gamma d <= h(d).

*A round of the client whose data change* (level client). Beyond the decay its update is at most mu B under either data
set, so it ends at most gamma d + 2 mu B <= h(d) + 2 mu B apart; mu B where it contributes nothing under one of them.

*A round of the client of whom one example changes* (level example). The example is once in every batch of n, and the
other n - 1 are monotone: a step gives sqrt(a^2 |D|^2 + (2 eta B (n-1)/n)^2) + t, where t = 2 eta B / n is the changed
part, half of it under zero-out. Since sqrt((x + t)^2 + y^2) <= sqrt(x^2 + y^2) + t, E of them end at most h(d) + E t
apart. Where the two models are equal at first (every round of a public model, the first round of any other) the first
step adds t alone, and the other E - 1 give

    sqrt(t^2 + (E - 1) (2 eta B (n-1)/n)^2) + (E - 1) t,

which is convex in 1/n: over batches of n and more it is largest at n or in the limit; over E all are looked at.

*Psi* is (1 - m/L) w + (1/L) (sum over the m <= L clients that survive). Who takes part, and how often it has, does not
depend on data, so the same clients are in both sums:

    Delta_1 = s_1,        Delta_{j+1} <= (1 - m/L) d + (m/L) h(d) + s        d = the deviation that is kept,

s = 2 mu B / L (client), 2 mu B / (L n) (example), half of it under zero-out, 0 in rounds without the target; s_1 = s
but for one example, see above. It is linear in m: all survivors or the fewest are the worst. d = 0 stays 0 until the
target first takes part. With at most N participations the largest Delta_j is, over n = 1..N,

    F_{j+1}(n) = max(d, h(d), h(d') + s),        d kept of F_1..j(n), d' of F_1..j(n - 1),        F(0) = 0;

d alone where the whole unit misses a round. (Without a cap d <= h(d) + s, for Delta_1, Delta_2, ... grow to where the
two are equal.)

*In fixed point* the truncation of L updates, the server's decay and floats perturb psi by what `rounding` counts for
convex-glm: an addition to Delta, of which the proof above knows nothing. One thing is new. A margin u'w is computed
with an error of at most M 2^-53 |u| |w|, so that c may fall by up to 2B/|u| where |z - z'| is below the sum of both
errors, and only there. So <G, D> >= -k with k = 2B M 2^-52 |w|, which does not depend on u, and h gains 2 mu k inside
the root. `rounding`'s e is at least 2 M 2^-52 times the largest coordinate of w: k <= B e sqrt(M).
Floats overflow, and then `clip` makes zero of a gradient, which is not monotone. So features and labels must be within
`LARGEST`: a simulation refuses others, and a deployed client takes such a row for a row of zeros, whose gradient is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from confide.base.arrays import Floats
from confide.plans.words import Adjacency

if TYPE_CHECKING:
    from confide.privacy.sensitivity import Sensitivity

LARGEST = 1e100  # of a feature or a label: twice its square is far from overflow


def drift(s: Sensitivity, apart: Floats) -> Floats:
    """h: how far apart a client with unchanged data may be after a round, `apart` before it."""
    return np.sqrt((s.contraction * apart) ** 2 + _full(s) ** 2 / s.steps[0] + _inverted(s))


def example(s: Sensitivity) -> float:
    """How far one example can move its client's update from a model that is the same under both data sets."""
    assert s.batch is not None  # noqa: S101 - level example states it
    E = np.arange(s.steps[0], s.steps[1] + 1, dtype=np.float64)
    change, rest = _full(s) / (2.0 if s.adjacency is Adjacency.ZERO_OUT else 1.0) / E, _full(s) / E
    found = [
        np.sqrt((x * change) ** 2 + (E - 1.0) * ((1.0 - x) * rest) ** 2 + _inverted(s)) + (E - 1.0) * x * change
        for x in (1.0 / s.batch, 0.0)
    ]
    return float(np.max(found))


def capped(
    kept: Callable[[int, Floats], Floats], after: Callable[[Floats, float], Floats], first: float, added: float,
    rounds: int, cap: int,
) -> Floats:  # fmt: skip
    """Delta_1..Delta_T, each the largest over all ways to take part in at most `cap` rounds.

    Args:
        kept: as in `Sensitivity.deltas`, for every column at once.  after: (deviation kept, s) -> Delta of the round.
    """
    found = np.zeros((rounds, cap + 1))  # column n: after at most n participations
    found[0, 1:] = first
    for j in range(1, rounds):
        before = kept(j, found[:j])
        absent, present = np.maximum(after(before, 0.0), before), after(before, added)  # a unit may miss the round
        absent[0], present[0] = 0.0, first  # who never took part has moved nothing
        found[j, 1:] = np.maximum(absent[1:], present[:-1])
    return np.asarray(found[:, cap])


def within(X: Floats, d: Floats) -> NDArray[np.bool_]:
    """Rows whose gradients cannot overflow."""
    with np.errstate(invalid="ignore"):
        largest = np.float64(LARGEST)  # a Python float would become infinity beside features in single precision
        return np.asarray((np.abs(X) <= largest).all(axis=1) & (np.abs(d) <= largest))


def _full(s: Sensitivity) -> float:
    """2 mu B, as floats keep it on a grid."""
    full = 2.0 * s.step * s.bound
    return full if s.rounding is None else s.rounding.clipped(s, full)


def _inverted(s: Sensitivity) -> float:
    """2 mu k: what margins that rounding puts in the wrong order may add inside the root."""
    if s.rounding is None:
        return 0.0
    return _full(s) * s.rounding.floating * math.sqrt(s.dim or 1)
