"""The sum of the clients' updates that a server works with: in clear, or in the ring of the secure sum.

The masks of a session cancel exactly, so a simulation leaves them out: what the server learns is the sum of the
encoded words modulo 2^b, and a test holds this equal, bit for bit, to sessions of `confide.secure` with every mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from confide.base.arrays import Floats
from confide.rounds.algorithm import GFL
from confide.rounds.arithmetic import Arithmetic, State
from confide.secure.encoding import Encoding


@dataclass
class PlainSum:
    arithmetic: Arithmetic
    total: State

    def add(self, update: Floats, noise: State | None) -> None:
        self.total += self.arithmetic.encode(update)
        if noise is not None:
            self.total += noise

    def value(self) -> State:
        return self.total


@dataclass
class SecureSum:
    encoding: Encoding
    total: NDArray[Any]

    @classmethod
    def of(cls, algorithm: GFL, length: int) -> Self:
        encoding = algorithm.encoding()
        return cls(encoding, np.zeros(length, encoding.dtype))

    def add(self, update: Floats, noise: State | None) -> None:
        self.total += self.encoding.encode(update, noise).words

    def value(self) -> State:
        return self.encoding.decode(self.total)
