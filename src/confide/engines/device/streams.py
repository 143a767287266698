"""The words of `confide.base.randomness` and `confide.secure.secret`, for many streams at once and on any device.

Everything is on int64 that wraps around: the same 64 bits as the unsigned words there. Names of streams are arrays, a
number for each stream, that broadcast against each other; the first axis is that of the repetitions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from confide.base.randomness import GAMMA, MIX_1, MIX_2, Purpose, words_for
from confide.engines.device.backend import Array, Backend, signed

CELLS = 2**52  # of a uniform
LOW = 0xFFFFFFFF
ROUNDS = 10  # double rounds of ChaCha20
HEAD = tuple(np.frombuffer(b"expand 32-byte k", "<i4").tolist())


def mix(b: Backend, z: Array) -> Array:
    z = (z ^ b.shift_right(z, 30)) * signed(MIX_1)
    z = (z ^ b.shift_right(z, 27)) * signed(MIX_2)
    return z ^ b.shift_right(z, 31)


def fold(b: Backend, key: Array, number: Array) -> Array:
    return mix(b, (key ^ mix(b, b.cast(number, b.xp.int64) + signed(GAMMA))) + signed(GAMMA))


def word(b: Backend, key: Array, n: Array) -> Array:
    """The n-th word of the stream of a key, from 0."""
    return mix(b, key + (b.cast(n, b.xp.int64) + 1) * signed(GAMMA))


def below(b: Backend, w: Array, n: Array) -> Array:
    """Whole numbers in [0, n), for n below 2^31."""
    return b.shift_right(b.shift_right(w, 32) * n, 32)


def threshold(probability: float) -> int:
    """The number of uniform's cells that lie below a probability.

    >>> threshold(0.0), threshold(0.5) == CELLS // 2, threshold(1.0) == CELLS
    (0, True, True)
    """
    return int(np.ceil(probability * CELLS - 0.5))


def happens(b: Backend, w: Array, probability: float) -> Array:
    """Whether uniform(w) < probability, decided on whole numbers, so that it does not depend on the floats."""
    return b.shift_right(w, 12) < threshold(probability)


def choose(b: Backend, w: Array, n: Array) -> Array:
    """Of each n as many without replacement as the last axis of `w` has words: a partial Fisher-Yates shuffle.

    Nothing of length n is made. Pick i takes what lies at j_i; it lies at its own place, unless an earlier pick t has
    put there what lay at t before, which is found in the same way.
    """
    picks = w.shape[-1]
    i = b.arange(picks)
    j = i + below(b, w, n - i)

    def earlier(back: Array, at: Array) -> Array:
        t = picks - 1 - back
        return b.xp.where((j[..., t, None] == at) & (i > t), t, at)

    return b.fold(picks, earlier, j, unroll=picks <= 32)


def laplace(b: Backend, w: Array, size: int) -> Array:
    """Standard deviation 1, as `laplace_of`."""
    cell = b.shift_right(w[..., :size], 12)
    left = cell < CELLS // 2
    side = b.xp.where(left, cell, CELLS - 1 - cell)  # of whole numbers: in float32 too the tails are exact
    return b.xp.where(left, 1.0, -1.0) * b.xp.log((b.cast(side, b.float) + 0.5) * (2.0 / CELLS)) * np.sqrt(0.5).item()


def gaussian(b: Backend, w: Array, size: int) -> Array:
    """Standard normal, as `gaussian_of`."""
    u = (b.cast(b.shift_right(w, 12), b.float) + 0.5) * (1.0 / CELLS)
    radius, angle = b.xp.sqrt(-2.0 * b.xp.log(u[..., 0::2])), (2.0 * np.pi) * u[..., 1::2]
    both = b.xp.stack([radius * b.xp.cos(angle), radius * b.xp.sin(angle)], axis=-1)
    return b.xp.reshape(both, (*w.shape[:-1], w.shape[-1]))[..., :size]


LAWS = (laplace, gaussian)  # by `Law.kernel`


class Streams(NamedTuple):
    """The streams of all repetitions.

    Attributes:
        roots: mix(seed) of each, (R,).
        keys: of its secret, (R, purposes, 8) int32, a row a purpose; no purposes without a secret.
        draws: whether who takes part, batches and failures come from the secret, too.
    """

    roots: Array
    keys: Array
    draws: bool

    def key(self, b: Backend, purpose: Purpose, *ids: Array) -> Array:
        """Of the streams of draws that are not noise."""
        if self.draws:
            return keystream(b, self.secret(purpose, _axes(ids)), ids, 1)[..., 0]
        return self._seeded(b, purpose, ids)

    def noise(self, b: Backend, law: int, purpose: Purpose, ids: tuple[Array, ...], size: int) -> Array:
        """Draws with standard deviation 1, (..., size)."""
        count = words_for(size)
        if self.keys.shape[1]:
            w = keystream(b, self.secret(purpose, _axes(ids)), ids, count)
        else:
            w = word(b, self._seeded(b, purpose, ids)[..., None], b.arange(count))
        return LAWS[law](b, w, size)

    def _seeded(self, b: Backend, purpose: Purpose, ids: tuple[Array, ...]) -> Array:
        key = fold(b, self.roots, int(purpose))
        key = b.xp.reshape(key, (-1, *(1,) * (_axes(ids) - 1)))
        for number in ids:
            key = fold(b, key, number)
        return key

    def secret(self, purpose: Purpose, axes: int) -> tuple[Array, ...]:
        """The words of a purpose's key, each for all repetitions."""
        row = self.keys[:, int(purpose)]
        return tuple(row[:, n].reshape((-1, *(1,) * (axes - 1))) for n in range(8))


def _axes(ids: tuple[Array, ...]) -> int:
    return max(1, *(np.ndim(number) for number in ids))


def keystream(b: Backend, key: tuple[Array, ...], ids: tuple[Array, ...], count: int) -> Array:
    """The first words of secret streams, `Streams.words` of `confide.secure.secret`: ids are the cipher's nonce."""
    nonce = [b.cast(number, b.xp.int32)[..., None] for number in ids]
    block = b.arange(-(-count // 8), b.xp.int32)
    numbers = [*HEAD, *(k[..., None] for k in key), block, *nonce, *(0,) * (3 - len(nonce))]
    full = sum((k * 0 for k in numbers if not isinstance(k, int)), block * 0)  # all axes broadcast
    start = b.xp.reshape(b.xp.stack([full + x for x in numbers]), (4, 4, *full.shape))

    def double(_: Array, rows: tuple[Array, ...]) -> tuple[Array, ...]:
        rows = _turned(b, _quarter(b, *rows), 1)  # columns, which become diagonals
        return _turned(b, _quarter(b, *rows), 3)

    rows = b.fold(ROUNDS, double, tuple(start[n] for n in range(4)))
    x = b.cast(b.xp.reshape(b.xp.stack(rows) + start, (16, *full.shape)), b.xp.int64)
    both = b.xp.stack([(x[n + 1] << 32) | (x[n] & LOW) for n in range(0, 16, 2)], axis=-1)
    return b.xp.reshape(both, (*both.shape[:-2], -1))[..., :count]


def _quarter(b: Backend, p: Array, q: Array, r: Array, s: Array) -> tuple[Array, Array, Array, Array]:
    """Four quarter rounds of RFC 8439 side by side."""
    for n, m in ((16, 12), (8, 7)):
        p = p + q
        s = _rotated(b, s ^ p, n)
        r = r + s
        q = _rotated(b, q ^ r, m)
    return p, q, r, s


def _turned(b: Backend, rows: tuple[Array, ...], by: int) -> tuple[Array, ...]:
    """Row n moved by n times as many places."""
    moved = [(n * by) % 4 for n in range(4)]
    return tuple(b.xp.concatenate([row[n:], row[:n]]) for row, n in zip(rows, moved, strict=True))


def _rotated(b: Backend, x: Array, n: int) -> Array:
    return (x << n) | b.shift_right(x, 32 - n)


def roots_of(seeds: list[int]) -> NDArray[np.int64]:
    """mix(seed) of each repetition's seed."""
    from confide.base.randomness import mix as mixed

    return np.array([signed(mixed(seed)) for seed in seeds], np.int64)
