"""Every draw is a function of (seed, purpose, round, unit, client): results never depend on threads or order.

A *key* is a 64-bit hash of those numbers. The n-th word of a key's stream is ``mix(key + (n + 1) * GAMMA)``:
SplitMix64 (Steele, Lea & Flood 2014), a counter-based generator, so that NumPy here and the compiled engine
(`confide.engines.kernel`) produce the same words without sharing state. It is for simulations of data that are
nobody's. Whatever must be secret comes from the operating system: noise through `confide.secure.secret`, whose
streams are asked for in the same way.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from confide.secure.secret import Streams

Words = NDArray[np.uint64]

GAMMA: Final = 0x9E3779B97F4A7C15
MIX_1: Final = 0xBF58476D1CE4E5B9
MIX_2: Final = 0x94D049BB133111EB
MASK: Final = 0xFFFFFFFFFFFFFFFF


class Purpose(IntEnum):
    """What a stream is for; two purposes never share a stream."""

    DATA = 1  # problem generators
    SPLIT = 2  # rows to clients, train to test
    HETEROGENEITY = 3  # E_{p,k} and batch sizes, drawn once
    GRAPH = 4
    CLIENTS = 5  # which L of K take part          (round, unit)
    BATCHES = 6  # mini-batch indices              (round, unit, client)
    SERVER_NOISE = 7  # g_p                        (round, unit)
    LINK_NOISE = 8  # g_pm, sent by p to m         (round, p, m)
    PAIR_NOISE = 9  # noise shared by an edge      (round, p, m)
    CLIENT_NOISE = 10  # g_{p,k}                   (round, unit, client)
    DROPOUT = 11  # a sampled client vanishes      (round, unit, client)
    LINK_FAILURE = 12  # an edge has no flow       (round, p, m)
    UNIT_FAILURE = 13  # a unit is absent          (round, unit)
    NETWORK_NOISE = 14  # one draw for all servers (round)
    RELEASE = 15  # shares of what is released     ()
    AROUND_NOISE = 16  # shared by two servers     (round, p, m)
    WEIGHTS = 17  # of a built-in network, at first  (layer)


def mix(z: int) -> int:
    """SplitMix64's finaliser, a bijection of 64-bit integers."""
    z = ((z ^ (z >> 30)) * MIX_1) & MASK
    z = ((z ^ (z >> 27)) * MIX_2) & MASK
    return z ^ (z >> 31)


def fold(key: int, number: int) -> int:
    """A new key from a key and a number, as in ``fold(fold(seed, round), unit)``."""
    return mix((key ^ mix((number + GAMMA) & MASK)) + GAMMA & MASK)


def key(seed: int | Streams, purpose: Purpose, *ids: int) -> int:
    """The stream of one purpose at one place: of a seed, or of a run's secret.

    >>> key(0, Purpose.CLIENTS, 1, 2) == key(0, Purpose.CLIENTS, 1, 2)
    True
    >>> key(0, Purpose.CLIENTS, 1, 2) == key(0, Purpose.CLIENTS, 2, 1)
    False
    """
    if not isinstance(seed, int | np.integer):
        return seed.key(purpose, ids)
    k = fold(mix(seed & MASK), int(purpose))
    for i in ids:
        k = fold(k, i)
    return k


def repetition_seed(seed: int, repetition: int) -> int:
    """The seed of one repetition of a run; repetition 0 is not the seed itself."""
    return fold(mix(seed & MASK), repetition)


def words(k: int, count: int) -> Words:
    """The first `count` 64-bit words of the stream of key `k`."""
    z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GAMMA) + np.uint64(k)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(MIX_1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(MIX_2)
    return z ^ (z >> np.uint64(31))


def stream(seed: int | Streams, purpose: Purpose, ids: tuple[int, ...], count: int) -> Words:
    """The first words of a stream that must be as secret as its source: of a run's secret each comes from a cipher."""
    if not isinstance(seed, int | np.integer):
        return seed.words(purpose, ids, count)
    return words(key(seed, purpose, *ids), count)


def below(w: Words, n: int | NDArray[np.int64]) -> NDArray[np.int64]:
    """Integers in [0, n) by the multiply-shift of Lemire 2019; the bias is below n / 2^32."""
    high = w >> np.uint64(32)
    return ((high * np.asarray(n, dtype=np.uint64)) >> np.uint64(32)).astype(np.int64)


def uniform(w: Words) -> NDArray[np.float64]:
    """Doubles in (0, 1): the exact middle of one of 2^52 cells, never 0 or 1, so that a logarithm is finite."""
    return ((w >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def choose(w: Words, n: int) -> NDArray[np.int64]:
    """`len(w)` of n without replacement: a partial Fisher-Yates shuffle, one word per pick."""
    order = np.arange(n, dtype=np.int64)
    for i in range(len(w)):
        j = i + int(below(w[i : i + 1], n - i)[0])
        order[i], order[j] = order[j], order[i]
    return order[: len(w)]


def laplace(k: int, size: int) -> NDArray[np.float64]:
    """Laplace with standard deviation 1 (scale 1/sqrt 2), by inversion: one word a draw."""
    return laplace_of(words(k, size), size)


def gaussian(k: int, size: int) -> NDArray[np.float64]:
    """Standard normal by Box and Muller: two words give two draws."""
    return gaussian_of(words(k, words_for(size)), size)


def words_for(size: int) -> int:
    """Words enough for `size` draws of either law."""
    return 2 * ((size + 1) // 2)


def laplace_of(w: Words, size: int) -> NDArray[np.float64]:
    u = uniform(w[:size])
    side = np.where(u < 0.5, u, 1.0 - u)  # exact: both halves have the same grid
    return np.asarray(np.where(u < 0.5, 1.0, -1.0) * np.log(2.0 * side) * np.sqrt(0.5))


def gaussian_of(w: Words, size: int) -> NDArray[np.float64]:
    u = uniform(w)
    radius, angle = np.sqrt(-2.0 * np.log(u[0::2])), 2.0 * np.pi * u[1::2]
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).ravel()[:size]


def generator(seed: int, purpose: Purpose, *ids: int) -> np.random.Generator:
    """A NumPy generator for bulk draws outside the round (data, splits, sizes)."""
    return np.random.Generator(np.random.Philox(key=key(seed, purpose, *ids)))
