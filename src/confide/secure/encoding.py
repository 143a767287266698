"""Updates as words of a ring: fixed point modulo 2^32 or 2^64, with a proof that a sum never wraps.

A coordinate x becomes the integer x 2^f, truncated toward zero, so that no norm grows, and the ring is the unsigned
integer type's own wrap-around; a sum is read back as a signed integer. That is exact while every sum lies in
[-2^(b-1), 2^(b-1) - 1], so an encoding is refused when it is made unless n (q + t) <= 2^(b-1) - 1, where q is the
largest encoded coordinate, t a share of noise's largest value and n the number of clients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from confide.base.arrays import Floats, Ints
from confide.base.errors import InputError
from confide.base.validation import positive, positive_int, whole

Words = NDArray[Any]  # little-endian uint32 or uint64
RINGS: Final[dict[int, np.dtype[Any]]] = {8: np.dtype("<u1"), 32: np.dtype("<u4"), 64: np.dtype("<u8")}  # 8: a toy


class Encoded(NamedTuple):
    words: Words
    clipped: int  # coordinates beyond the bound: for the client's own log, it must not leave the client


def truncate(x: Floats, fraction_bits: int) -> Ints:
    """Toward zero onto multiples of 2^-fraction_bits.

    >>> truncate(np.array([0.3, -0.3, 0.25]), 2)
    array([ 1, -1,  1])
    """
    return (x * 2.0**fraction_bits).astype(np.int64)  # a cast truncates


def words_of(integers: Ints, ring_bits: int) -> Words:
    """Integers modulo 2^ring_bits."""
    return integers.view(np.uint64).astype(RINGS[ring_bits])


def signed(words: Words) -> Ints:
    """Words as the integers of smallest modulus that they stand for.

    >>> signed(words_of(np.array([-1, 2]), 32))
    array([-1,  2])
    """
    return words.view(np.dtype(f"<i{words.itemsize}")).astype(np.int64)


@dataclass(frozen=True)
class Encoding:
    """Of one client's update into the ring.

    Attributes:
        ring_bits: 32 or 64.
        fraction_bits: f; the quantum is 2^-f.
        bound: largest absolute coordinate; anything beyond is clipped to it and counted.
        clients: n, the largest number of summands.
        noise: largest absolute value of a client's share of noise, in quanta.

    >>> Encoding(32, 24, bound=1.0, clients=200)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    confide.base.errors.InputError: fraction_bits = 24: the sum of 200 clients could wrap in a 32-bit ring; ...
    """

    ring_bits: int
    fraction_bits: int
    bound: float
    clients: int
    noise: int = 0

    def __post_init__(self) -> None:
        if self.ring_bits not in (32, 64):
            raise InputError("ring_bits", self.ring_bits, "must be 32 or 64")
        whole("fraction_bits", self.fraction_bits, 0, 52)
        positive("bound", self.bound)
        positive_int("clients", self.clients)
        whole("noise", self.noise, 0)
        if not self._fits(self.fraction_bits):
            what = f"the sum of {self.clients} clients could wrap in a {self.ring_bits}-bit ring"
            if self._reach(self.fraction_bits) <= self.largest:
                what = "a coordinate of this size is no whole number of quanta in double precision"
            fits = [f for f in range(self.fraction_bits) if self._fits(f)]
            advice = f"use at most {fits[-1]}" if fits else "no grid is coarse enough: clip lower or add less noise"
            if not fits and self.ring_bits == 32 and self._reach(self.fraction_bits) < 1 << 63:
                advice = "use a 64-bit ring"
            raise InputError("fraction_bits", self.fraction_bits, f"{what}; {advice}")

    @property
    def dtype(self) -> np.dtype[Any]:
        return RINGS[self.ring_bits]

    @property
    def largest(self) -> int:
        """Largest sum that is read back as what it is."""
        return (1 << (self.ring_bits - 1)) - 1

    @property
    def summand(self) -> int:
        """Largest absolute coordinate of one client's words."""
        return self._quanta(self.fraction_bits) + self.noise

    def _quanta(self, fraction_bits: int) -> int:
        """The largest coordinate, as an integer."""
        return math.floor(Fraction(self.bound) * (1 << fraction_bits))

    def _reach(self, fraction_bits: int) -> int:
        """The largest sum."""
        return self.clients * (self._quanta(fraction_bits) + self.noise)

    def _fits(self, fraction_bits: int) -> bool:
        return self._reach(fraction_bits) <= self.largest and self._quanta(fraction_bits) < 2**53

    def encode(self, update: Floats, noise: Ints | None = None) -> Encoded:
        """A client's update, with its share of noise, as words of the ring."""
        update = np.asarray(update, np.float64)  # single precision would round the bound up
        largest = float(np.maximum(update.max(initial=0.0), -update.min(initial=0.0)))
        if not math.isfinite(largest):
            raise InputError("update", "NaN or infinity", "must be finite; the training diverged, nothing was sent")
        clipped = 0
        if largest > self.bound:
            clipped = int(np.count_nonzero(np.abs(update) > self.bound))
            update = np.clip(update, -self.bound, self.bound)
        integers = truncate(update, self.fraction_bits)
        if noise is not None:
            if noise.shape != update.shape:
                raise InputError("noise", f"shape {noise.shape}", f"must have a value for each of {update.shape}")
            if np.any((noise > self.noise) | (noise < -self.noise)):
                raise InputError("noise", "a share of noise", "is beyond the largest value that the ring allows for")
            integers += noise
        return Encoded(words_of(integers, self.ring_bits), clipped)

    def decode(self, total: Words) -> Ints:
        """The integer sum, in quanta."""
        if total.dtype != self.dtype:
            raise InputError("total", total.dtype, f"must be words of the {self.ring_bits}-bit ring")
        return signed(total)

    def mean(self, total: Words, divisor: int) -> Floats:
        """The sum as a number, divided: within one quantum of the mean of the clipped updates if all took part."""
        return np.asarray(
            self.decode(total) * (2.0**-self.fraction_bits / positive_int("divisor", divisor)), np.float64
        )
