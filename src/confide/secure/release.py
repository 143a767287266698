"""The end of learning: the mean of all servers' models plus noise, and nothing else, by a secure sum over servers.

The servers are the clients of one more session, on the complete graph; any of them relays. A state is an integer
vector modulo 2^64 and is not clipped: single words may wrap, only the sum must fit, which `check_fits` proves from
the range that `arithmetic.check_range` proved. All P servers must take part, so the threshold is P.

Each server adds a discrete Gaussian share of variance P^2 sigma^2 / (P - C): the P - C honest ones put a standard
deviation of sigma on the mean, whatever C colluders know of theirs. The share of an attempt is drawn once and kept
(`deploy.machines.release.Kept`): a session that is taken up again sends the same words. A new attempt draws again and
is another release, which a server pays for before its unmasking answer leaves; two attempts with one share would reveal
whatever had changed in between, two shares for one attempt could be averaged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from confide.base.arrays import Floats
from confide.base.errors import InputError
from confide.base.validation import positive, whole
from confide.secure.encoding import Words, signed
from confide.secure.parameters import Parameters
from confide.secure.session import Task

RING_BITS: Final = 64
NO_UNIT: Final = 2**32 - 1  # a session of servers belongs to none


@dataclass(frozen=True)
class Terms:
    """What is released, as all servers agreed beforehand.

    Attributes:
        servers: P. colluders: C, as many as the statement allows for.
        sigma: of the honest noise on the mean, per coordinate.
        quantum: of a server's state. length: M.
        known: shares that any adversary of the statement knows, at most; C where it names none with more.
    """

    servers: int
    sigma: float
    quantum: float
    length: int
    colluders: int = 0
    known: int = 0

    def __post_init__(self) -> None:
        whole("servers", self.servers, 2, 2**16)
        whole("colluders", self.colluders, 0, self.servers - 1)
        whole("known", self.known, 0)
        positive("release.sigma", self.sigma)
        positive("quantum", self.quantum)
        whole("length", self.length, 1)

    @property
    def share_quanta(self) -> float:
        """Standard deviation of one server's share on the sum, in quanta."""
        return self.servers * self.sigma / math.sqrt(self.servers - self.colluders) / self.quantum

    def left(self, servers: int) -> Terms:
        """The same release when only so many servers remain, whose shares hide no less from anybody who is priced.

        On the sum one server's deviation is what it was, so the hidden part of the noise must not shrink. Who knew k of
        P shares may know min(k, P' - 1) of P': variances grow by (P - k) / (P' - k), most for the largest k.
        """
        P, C, k = self.servers, self.colluders, min(max(self.known, self.colluders), servers - 1)
        whole("colluders", C, 0, servers - 1)
        wider = (P - k) / (servers - k) * (servers - C) / (P - C)  # 1 where the statement knows of C only
        return replace(self, servers=servers, sigma=self.sigma * P / servers * math.sqrt(wider))

    def check_fits(self, largest: float) -> None:
        """Prove that the sum of P states of absolute value at most `largest`, with their noise, is read back right, and
        that of fewer servers with wider shares."""
        fewest = max(2, self.colluders + 1)
        noise = max(n * (math.ceil(20.0 * self.left(n).share_quanta) + 1) for n in range(fewest, self.servers + 1))
        if self.servers * math.ceil(largest / self.quantum) + noise > 2**63 - 1:
            remedy = f"the sum over {self.servers} servers could wrap in 64 bits; use fewer fraction bits"
            raise InputError("algorithm.fraction_bits", f"quantum {self.quantum:g}", remedy)

    def task(self, plan: bytes, attempt: int, what: bytes) -> Task:
        """The session of one attempt: its number is the session's round, so that none is ever answered twice.

        The server that relays is one of the parties, and may lie.

        Args:
            what: hash of what is released.
        """
        P = self.servers
        parameters = Parameters(P, P - 1, threshold=P, quorum=P, corrupted=self.colluders, server="active")
        return Task(plan, NO_UNIT, attempt, what, parameters, self.length, RING_BITS)

    def mean(self, total: Words) -> Floats:
        """What is revealed: the mean of the states plus noise."""
        return np.asarray(signed(total) * (self.quantum / self.servers), np.float64)
