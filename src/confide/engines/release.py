"""The release at the end of a run, made as its price says.

`centroid:SIGMA` is the servers' mean with noise, `local` w_p, and `consensus:T` that after T clean combinations.

Every server adds a discrete Gaussian share to the sum of the states, so wide that those of all but the colluders put
SIGMA on the mean (`Reveal.hidden`). In fixed point shares are whole quanta of the states. In floating point the sum is
rounded to a grid of 2^-32 of a share first: low bits of a sum of floats would tell the mean (Mironov 2012). That the
price speaks of real numbers is among the statement's assumptions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from confide.base.arrays import Floats
from confide.base.errors import InputError
from confide.base.randomness import Purpose, key, words
from confide.graph.graph import Graph
from confide.laws.noise import LARGEST_SCALE, discrete_gaussian
from confide.laws.secret_stream import SecretStream
from confide.plans.words import Consensus, Local, Nothing
from confide.privacy.price import Price
from confide.privacy.reveal import Reveal
from confide.rounds.arithmetic import State
from confide.rounds.consensus import consensus

FINE = 2.0**-32  # of a share: the grid of a release in floating point
LARGEST = 2.0**65  # on that grid: beyond, a double is coarser than 2^-20 of a share, and at last holds none of it
LOST = "nothing is released: in floating point its noise would vanish beside models so large; use arithmetic = 'fixed'"


@dataclass(frozen=True)
class Releasing:
    release: Reveal  # sized for the plan's threat
    graphs: tuple[Graph, ...]
    quantum: float | None  # of the states in fixed point

    @classmethod
    def of(cls, price: Price) -> Releasing:
        """Whatever cannot be drawn or read back is refused before the first round."""
        plan = price.plan
        if plan.algorithm.fraction_bits is None:
            return cls(price.reveal, plan.graph.graphs, None)
        quantum = price.arithmetic.quantum
        found = cls(price.reveal, plan.graph.graphs, quantum)
        quanta = found.share / quantum
        if quanta > LARGEST_SCALE or (quanta and plan.P * (price.largest / quantum + 20.0 * quanta + 2.0) >= 2.0**63):
            remedy = f"the released sum over {plan.P} servers could leave 64 bits; use fewer fraction bits"
            raise InputError("algorithm.fraction_bits", plan.algorithm.fraction_bits, remedy)
        return found

    @property
    def servers(self) -> int:
        return self.graphs[0].P

    @property
    def share(self) -> float:
        """Standard deviation of one server's share on the sum over servers."""
        return self.release.hidden(self.servers, 0) * math.sqrt(self.servers)

    def make(self, state: State, models: Floats, stream: SecretStream) -> Floats | None:
        """What everybody receives, from the servers' last states and the same as numbers; None where it is `LOST`."""
        if isinstance(self.release.release, Nothing):
            return None
        if isinstance(self.release.release, Local):
            return models.copy()
        if isinstance(self.release.release, Consensus):
            return consensus(models, self.graphs, self.release.release.combinations)
        if self.share == 0.0:
            return np.asarray(models.mean(axis=0))
        grid = self.share * FINE if self.quantum is None else self.quantum
        total = np.rint(state.sum(axis=0) / grid) if self.quantum is None else state.sum(axis=0)
        if self.quantum is None and not np.abs(state).max() < LARGEST * grid:
            return None
        for _ in range(self.servers):
            total = total + discrete_gaussian(stream, self.share / grid, len(total))
        return np.asarray(total * (grid / self.servers))


def seeded(seed: int) -> SecretStream:
    """For data that are nobody's: the same seed, the same release."""
    return SecretStream(words(key(seed, Purpose.RELEASE), 4).tobytes())
