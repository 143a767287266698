"""Shamir's secret sharing over the prime field of 2^16 + 1 elements, for secrets of 32 bytes.

A secret is sixteen 16-bit words, each the constant term of a random polynomial of degree t - 1; holder x = 1, 2, ...
gets the sixteen values at x. Any t shares give the secret, fewer say nothing at all: for every guess of the secret
there is exactly one way to fill in the missing coefficients, whatever the size of the field. A small field makes
sharing one matrix product in which nothing is rounded: entries are below 2^17, so that sums of up to 2^19 products
are exact in double precision.

A value can be 2^16 itself, so a share is sixteen 17-bit numbers: 34 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from confide.base.errors import InputError
from confide.base.validation import whole

Field = NDArray[np.int64]  # numbers modulo PRIME
PRIME: Final = (1 << 16) + 1
SECRET_BYTES: Final = 32
WORDS: Final = SECRET_BYTES // 2
BITS: Final = 17
SHARE_BYTES: Final = WORDS * BITS // 8
LARGEST: Final = PRIME - 1  # holders
Entropy = Callable[[int], bytes]


def share(secrets: Sequence[bytes], holders: int, threshold: int, entropy: Entropy) -> list[list[bytes]]:
    """Split every secret among holders x = 1..n; the result has a row for each holder."""
    whole("holders", holders, 1, LARGEST)
    whole("threshold", threshold, 1, holders)
    if any(len(secret) != SECRET_BYTES for secret in secrets):
        raise InputError("secret", "its length", f"must be {SECRET_BYTES} bytes")
    coefficients = np.empty((threshold, len(secrets) * WORDS), np.int64)
    coefficients[0] = np.frombuffer(b"".join(secrets), "<u2")
    coefficients[1:] = uniform((threshold - 1) * len(secrets) * WORDS, entropy).reshape(
        threshold - 1, len(secrets) * WORDS
    )
    values = multiply(_powers(holders, threshold), coefficients)
    packed = pack(values.reshape(holders * len(secrets), WORDS))
    return [packed[x * len(secrets) : (x + 1) * len(secrets)] for x in range(holders)]


def combine(points: tuple[int, ...], shares: Sequence[Sequence[bytes]]) -> list[bytes | None]:
    """Secrets from the shares of the same holders: `shares` has a row for each point, a column for each secret.

    None where the shares are none, or do not belong together: a word of the secret would be 2^16.
    """
    columns = len(shares[0])
    rows = unpack([one for row in shares for one in row]).reshape(len(points), columns, WORDS)
    possible = np.all(rows < PRIME, axis=(0, 2))
    words = multiply(lagrange(points)[None, :], rows.reshape(len(points), columns * WORDS) % PRIME)
    possible &= np.all(words.reshape(columns, WORDS) < PRIME - 1, axis=1)
    found = words.reshape(columns, WORDS).astype("<u2")
    return [w.tobytes() if fine else None for w, fine in zip(found, possible, strict=True)]


def readable(share: bytes) -> bool:
    """Whether these are numbers of the field."""
    return bool(np.all(unpack([share]) < PRIME))


def agreeing(points: tuple[int, ...], shares: Sequence[bytes], threshold: int) -> list[int]:
    """Places of at least t shares without an error, or none; all errors are found if they are at most (m - t) / 2 of m.

    Berlekamp and Welch's decoding, for sixteen words at once. For a polynomial f of degree t - 1 and j < m - t, the sum
    of l_x x^(j+1) f(x) over the points is what x^(j+1) f(x) is at 0: nothing. So these sums S_j of the shares see their
    errors d_x alone. Let L(z) = sum over k <= e of L_k z^k, not zero, with e = (m - t) // 2, make

        sum over k of L_k S_(j+k)  =  sum over x of l_x x^(j+1) L(x) d_x  =  0        for all j < m - t - e, every word.

    These are at least e equations with different powers of x, so with at most e errors every L(x) d_x is 0: L vanishes
    at every error, and at e points at most. (The product of z - x over the errors is such an L.) With more errors, and
    chosen ones, an L can vanish elsewhere: so the shares that are left are looked at once more.
    """
    spare = len(points) - threshold
    e = spare // 2
    S = _seen(points, shares, threshold)
    equations = np.stack([S[k : spare - e + k].ravel() for k in range(e + 1)], axis=1)
    locator = _solution(equations)
    if locator is None:
        return []
    at, x = np.zeros(len(points), np.int64), np.array(points, np.int64)
    for coefficient in locator[::-1]:
        at = (at * x + coefficient) % PRIME
    right = np.flatnonzero(at).tolist()
    if len(right) < threshold or _seen(tuple(points[n] for n in right), [shares[n] for n in right], threshold).any():
        return []
    return right


def _seen(points: tuple[int, ...], shares: Sequence[bytes], threshold: int) -> Field:
    """The sums S, a row for each j, a column for each word: zeros if and only if all shares agree."""
    x, powers = np.array(points, np.int64), np.empty((len(points) - threshold, len(points)), np.int64)
    power = lagrange(points)
    for row in powers:
        row[:] = power = power * x % PRIME
    return multiply(powers, unpack(shares))


def _solution(equations: Field) -> Field | None:
    """Numbers, not all zero, with equations @ numbers = 0 modulo the prime, the last ones zero where possible."""
    a = equations.copy()
    for column in range(a.shape[1]):
        pivots = np.flatnonzero(a[column:, column])
        if not len(pivots):
            found = np.zeros(a.shape[1], np.int64)
            found[:column], found[column] = -a[:column, column] % PRIME, 1
            return found
        pivot = column + int(pivots[0])
        row = a[pivot] * pow(int(a[pivot, column]), -1, PRIME) % PRIME
        a[pivot] = a[column]
        a = (a - a[:, column : column + 1] * row) % PRIME
        a[column] = row
    return None


def multiply(a: Field, b: Field) -> Field:
    """The matrix product modulo the prime, exact in doubles."""
    return np.rint(a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64) % PRIME


@lru_cache(maxsize=8)
def _powers(holders: int, threshold: int) -> Field:
    """x^j for x = 1..n, j = 0..t-1."""
    x, found = np.arange(1, holders + 1), np.ones((holders, threshold), np.int64)
    for j in range(1, threshold):
        found[:, j] = found[:, j - 1] * x % PRIME
    return found


@lru_cache(maxsize=4096)
def lagrange(points: tuple[int, ...], prime: int = PRIME) -> Field:
    """Coefficients l_x with f(0) = sum of l_x f(x): the product over y != x of y / (y - x)."""
    if len(set(points)) != len(points) or not all(0 < x < prime for x in points):
        raise InputError("points", points, f"must be different numbers from 1 to {prime - 1}")
    x = np.array(points, np.int64)
    top, bottom = np.ones(len(x), np.int64), np.ones(len(x), np.int64)
    for y in points:
        other = x != y
        top[other] = top[other] * y % prime
        bottom[other] = bottom[other] * ((y - x[other]) % prime) % prime
    return top * np.array([pow(int(b), -1, prime) for b in bottom], np.int64) % prime


def uniform(n: int, entropy: Entropy) -> Field:
    """n numbers below the prime, each equally likely: 2^32 = 1 modulo the prime, so only the word 2^32 - 1 is void."""
    found = np.empty(0, np.int64)
    while len(found) < n:
        drawn = np.frombuffer(entropy(4 * (n - len(found))), "<u4").astype(np.int64)
        found = np.concatenate([found, drawn[drawn != (1 << 32) - 1] % PRIME])
    return found


def pack(values: Field) -> list[bytes]:
    """Rows of sixteen numbers, 17 bits each."""
    bits = (values[:, :, None] >> np.arange(BITS)) & 1
    rows = np.packbits(bits.reshape(len(values), WORDS * BITS).astype(np.uint8), axis=1, bitorder="little")
    return [row.tobytes() for row in rows]


def unpack(shares: Sequence[bytes]) -> Field:
    """Rows of sixteen numbers of 17 bits; what was dealt is below the prime."""
    if any(len(one) != SHARE_BYTES for one in shares):
        raise InputError("share", "its length", f"must be {SHARE_BYTES} bytes")
    raw = np.frombuffer(b"".join(shares), np.uint8).reshape(len(shares), SHARE_BYTES)
    bits = np.unpackbits(raw, axis=1, bitorder="little").reshape(len(shares), WORDS, BITS).astype(np.int64)
    return np.asarray(bits @ (1 << np.arange(BITS)))
