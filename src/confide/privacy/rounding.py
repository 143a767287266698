"""What fixed point adds to Delta_j: integers are not the real numbers of the proofs.

Given the messages o, two adjacent data sets drive a server's integer state apart (docs/design/arithmetic.md, 1
and 2; q = 2^-f / L is the state's quantum, Q = L q the client's, rha rounds half away from zero):

    adapt     psi = w - rha(F w) + sum over survivors k of trunc(d_k)         F = round(2^32 shrink) / 2^32
    publish   w = psi + rha((1 - c)(o - psi)) + flows,      with noise on links  psi + sum_m rha(a_pm (o_pm - psi))

Flows are functions of messages and shift both states alike. In every coordinate and in the norm N of the ones,
N = sqrt(M) in l2 and M in l1:

*Monotone.* For integers x and 0 <= F <= 1 both rha(F x) and x - rha(F x) are monotone with steps of 0 or 1: rounding
moves neither the decay nor the publication of two states further apart than they are. So nothing is added where a
proof claims no contraction: clipping alone (proof none) with c = 1.
*A rounded product.* |rha(a x) - rha(a y) - a (x - y)| <= 1 quantum, and it is 0 for a in {0, 1} or x = y. Hence
    publish   |w - w'| <= c |psi - psi'| + r q N     r = 0 for c in {0, 1}, 1 for 0 < c < 1, the degree for links.
    With r > 0 a server remembers even where c = 0: a link scheme without an own weight.
*The decay's factor* is off by at most 2^-33, so (1 - F)|x| <= (1 - shrink)|x| + 2^-33 |x|.
*Truncation* toward zero raises no norm: where a proof uses only that updates are bounded (level client or unit of a
public model, none, regulariser) it costs nothing. |trunc x - trunc y| <= |x - y| + 1: one example that changes an
update from the same model costs at most Q / L = q, and never more than the whole client. Where a proof uses that the
map w -> psi does not expand (convex-glm), x - y may be cancelled by what is left of w - w': trunc x - trunc y differs
from x - y by less than 2 (x = -y = 0.9 are both cut to 0), for each of the L clients: 2 Q.

    proof                        Delta_1                       Delta_{j+1} from d = c Delta_j + r q N
    none, public-point           s                             d + s
    regulariser (any norm)       s                             max(g d + s, d) + q N + 2^-33 d + 2 e N
    convex-glm (l2)              s, example: + q N + 2 e N     g_n d + s + 2 Q N + 2 e N, and q N + 2^-33 d if rho > 0
    ... without a smoothness     s_1, the same                 h_n(d) in the place of g_n d, see `monotone`
    nothing is remembered        s, example: + q N + 2 e N     the same as Delta_1

*Survivors.* L stays in the denominator, so with n of L clients in a sum the map is (1 - n/L) w + (1/L) sum T_k w and
contracts by g_n = 1 - (n/L)(1 - g) only, n the fewest that a sum may hold. Under proof regulariser both the shrinkage
x and what is added, (B/rho) x, are smaller with fewer survivors, 0 <= x <= 1 - g: linear in x, so an end is the worst.
*Floats.* A client computes its update in double precision, from a state rounded to it, with an error of at most e in
each coordinate (root mean square); a clipped norm exceeds its bound by less than (M + 8) 2^-52 of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from confide.base.arrays import Floats
from confide.base.validation import number, positive, whole
from confide.plans.words import ConvexGlm, Level, Regulariser
from confide.privacy import monotone

if TYPE_CHECKING:
    from confide.privacy.sensitivity import Sensitivity

FACTOR = 2.0**-33  # half a unit of the decay's 32 bits
ULP = 2.0**-52


@dataclass(frozen=True)
class Rounding:
    """The grid on which a deployment computes, and a simulation in fixed point.

    Attributes:
        quantum: q, of a server's state.
        survivors: n, fewest clients whose updates a sum holds.
        decays: whether the server subtracts the regulariser's rounded decay.
        floating: e, of a client's floating-point arithmetic.
    """

    quantum: float
    survivors: int
    decays: bool
    floating: float = 0.0

    def __post_init__(self) -> None:
        positive("rounding.quantum", self.quantum)
        whole("rounding.survivors", self.survivors, 0)
        number("rounding.floating", self.floating, 0.0)

    @staticmethod
    def error(E: int, batch: int, dim: int, exact: bool, largest: float, update: float) -> float:
        """e: E steps that round numbers of at most `largest`, sums over the batch, and where a proof needs them
        exact to the last bit the margins u'w, each a sum of M products (times mu/E delta <= 2)."""
        products = 2 * E * dim if exact else 0
        return ULP * (8 * (E + 1) + batch + products) * (largest + 2.0 * update)

    @property
    def words(self) -> str:
        return (
            f"fixed point with quantum {self.quantum:.4g}: what is rounded is counted, and that as few as "
            f"{self.survivors} clients of a cohort may survive; a client's floating-point error is at most "
            f"{self.floating:.2g} in each coordinate"
        )

    def clipped(self, s: Sensitivity, bound: float) -> float:
        """A bound of the clip as floats keep it."""
        return bound * (1.0 + ((s.dim or 1) + 8) * ULP)

    def first(self, s: Sensitivity, added: float, ones: float) -> float:
        """Delta of a round that starts from the same model under both data sets."""
        most = self.clipped(s, s.swap) if s.level is Level.EXAMPLE else 0.0
        if added >= most:
            return added
        return min(added + (self.quantum + 2.0 * self.floating) * ones, most)

    def next(self, s: Sensitivity, kept: Floats, added: float, ones: float) -> Floats:
        """Delta_{j+1} when the handed-out models are `kept` apart."""
        gamma, share = s.contraction, min(1.0, self.survivors / s.sampled) if s.sampled is not None else 0.0
        if isinstance(s.proof, Regulariser):
            moved = np.maximum(gamma * kept + added, kept)
        elif s.monotone:
            grown = monotone.drift(s, kept)
            moved = np.maximum(grown, (1.0 - share) * kept + share * grown) + added
        else:
            moved = (1.0 - share * (1.0 - gamma)) * kept + added
        return np.asarray(moved + self.slack(s, kept, ones))

    def slack(self, s: Sensitivity, kept: Floats, ones: float) -> Floats:
        """What rounding adds in one round, beyond the proof's own recursion."""
        decay = FACTOR * kept + self.quantum * ones
        if isinstance(s.proof, Regulariser):
            return np.asarray(decay + 2.0 * self.floating * ones)
        if isinstance(s.proof, ConvexGlm):
            assert s.sampled is not None  # noqa: S101 - a deployment states L
            cut = 2.0 * s.sampled * self.quantum * ones
            return np.asarray(cut + 2.0 * self.floating * ones + (decay if self.decays else 0.0))
        return np.zeros_like(kept)
