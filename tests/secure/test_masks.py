"""Masks: the published keystream, whatever the pieces, uniform to the top value, and gone from the sum."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray
from scipy import stats

from confide.secure import masks
from confide.secure.encoding import RINGS
from confide.secure.masks import KEYS_AT_ONCE, PIECE, apply
from work import peak_bytes

Words = NDArray[Any]


def key(i: int) -> bytes:
    return hashlib.sha256(b"key %d" % i).digest()


def keystream(k: bytes, length: int, dtype: np.dtype[Any]) -> Words:
    """In one go, into memory of its own."""
    raw = Cipher(AES(k), CTR(bytes(16))).encryptor().update(bytes(length * dtype.itemsize))
    return np.frombuffer(raw, dtype)


def plain(words: Words, plus: list[bytes], minus: list[bytes]) -> Words:
    total = words.copy()
    for k in plus:
        total += keystream(k, len(words), words.dtype)
    for k in minus:
        total -= keystream(k, len(words), words.dtype)
    return total


def some(length: int, dtype: np.dtype[Any]) -> Words:
    return np.frombuffer(np.random.default_rng(length).bytes(length * dtype.itemsize), dtype).copy()


@pytest.mark.parametrize("bits", RINGS)
def test_published_keystream(bits: int) -> None:
    """AES-256 under the zero key of the counters 0, 1, 2: the hash key, E(K, Y0) and the ciphertext of test cases 13
    and 14 of the GCM specification."""
    expected = bytes.fromhex(
        "dc95c078a2408989ad48a21492842087" + "530f8afbc74536b9a963b4f1c4cb738b" + "cea7403d4d606b6e074ec5d3baf39d18"
    )
    words = np.zeros(48 * 8 // bits, RINGS[bits])
    apply(words, [bytes(32)], [])
    assert words.tobytes() == expected
    negative = np.zeros_like(words)
    apply(negative, [], [bytes(32)])
    assert not np.any(words + negative)


@pytest.mark.parametrize("bits", RINGS)
@pytest.mark.parametrize("off", [-PIECE, -5, -1, 0, 1, 3, PIECE - 1, PIECE, PIECE + 7])
def test_pieces_do_not_show(bits: int, off: int) -> None:
    """Lengths around one and two pieces, in words and odd ones, hence no whole number of cipher blocks."""
    dtype = RINGS[bits]
    length = (PIECE + off) // dtype.itemsize if off % dtype.itemsize == 0 else PIECE // dtype.itemsize + off
    words = some(max(length, 0), dtype)
    expected = plain(words, [key(1), key(2)], [key(3)])
    apply(words, [key(1), key(2)], [key(3)])
    assert np.array_equal(words, expected)


@pytest.mark.parametrize("bits", RINGS)
@pytest.mark.parametrize("length", [0, 1, 2, 3, 5, 7, 15, 17, 1001])
def test_short_and_odd_lengths(bits: int, length: int) -> None:
    words = some(length, RINGS[bits])
    expected = plain(words, [key(4)], [key(5), key(6)])
    apply(words, [key(4)], [key(5), key(6)])
    assert np.array_equal(words, expected)


@pytest.mark.parametrize(
    ("plus", "minus"),
    [(KEYS_AT_ONCE, 0), (KEYS_AT_ONCE + 1, 0), (0, KEYS_AT_ONCE + 1), (KEYS_AT_ONCE - 1, 2), (300, 300)],
)
@pytest.mark.parametrize("length", [11, PIECE // 4 + 3])
def test_more_keys_than_are_open_at_once(plus: int, minus: int, length: int) -> None:
    if length > 1000 and plus + minus > 300:
        length = 999
    words = some(length, RINGS[32])
    keys = [key(i) for i in range(plus + minus)]
    expected = plain(words, keys[:plus], keys[plus:])
    apply(words, keys[:plus], keys[plus:])
    assert np.array_equal(words, expected)


def test_any_piece_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    words = some(1001, RINGS[32])
    expected = plain(words, [key(1), key(2), key(3)], [key(4)])
    for piece, at_once in itertools.product((16, 48, 1024, 1 << 20), (1, 2, 9)):
        monkeypatch.setattr(masks, "PIECE", piece)
        monkeypatch.setattr(masks, "ZEROS", np.zeros(piece, np.uint8))
        monkeypatch.setattr(masks, "KEYS_AT_ONCE", at_once)
        found = words.copy()
        apply(found, [key(1), key(2), key(3)], [key(4)])
        assert np.array_equal(found, expected)


def test_the_zeros_stay_zero() -> None:
    """The keystream is written beside the zeros that are encrypted, not over them."""
    apply(some(PIECE, RINGS[32]), [key(1)], [key(2)])
    assert not masks.ZEROS.any()
    assert not any(masks.COUNTER)


def test_one_buffer_serves_all_keys() -> None:
    """Memory for a piece, whatever the length and the number of neighbours: nothing is copied for each of them."""
    words, keys = some(20 * PIECE, RINGS[8]), [key(i) for i in range(30)]
    apply(words, keys[:1], [])
    assert peak_bytes(lambda: apply(words, keys[:20], keys[20:])) < 2 * PIECE


def test_no_keys_no_mask() -> None:
    words = some(100, RINGS[64])
    before = words.copy()
    apply(words, [], [])
    assert np.array_equal(words, before)


@pytest.mark.parametrize("bits", RINGS)
def test_masks_cancel_in_the_sum(bits: int) -> None:
    """Each pair's mask is added by the one with the smaller number and subtracted by the other."""
    n, length, dtype = 6, PIECE // 4 + 5, RINGS[bits]
    pair = {frozenset(p): key(i) for i, p in enumerate(itertools.combinations(range(n), 2))}
    updates = [some(length + i, dtype)[:length].copy() for i in range(n)]
    exact = sum(updates[1:], updates[0].copy())
    masked = np.zeros(length, dtype)
    for i, words in enumerate(updates):
        plus = [pair[frozenset((i, j))] for j in range(n) if j > i]
        minus = [pair[frozenset((i, j))] for j in range(n) if j < i]
        before = words.copy()
        apply(words, plus, minus)
        assert np.mean(words == before) < 0.02
        masked += words
    assert np.array_equal(masked, exact)


def test_words_wrap_silently() -> None:
    """Warnings are errors in these tests; at the edge of the ring nothing else happens."""
    words = np.full(1000, 2**32 - 1, RINGS[32])
    apply(words, [key(1)], [])
    assert np.array_equal(words + np.uint32(1), keystream(key(1), 1000, RINGS[32]))


# Uniform to the top value


def uniformity(words: Words, values: int) -> float:
    return float(stats.chisquare(np.bincount(words, minlength=values)).pvalue)


def test_masks_of_the_toy_ring_are_uniform_up_to_the_top_value() -> None:
    words = np.zeros(1 << 20, RINGS[8])
    apply(words, [key(1)], [])
    assert uniformity(words, 256) > 1e-3
    assert (words == 255).any()
    off_by_one = np.random.default_rng(1).integers(0, 255, 1 << 20)  # a peer's randint(0, R - 1)
    assert uniformity(off_by_one, 256) < 1e-9


@pytest.mark.parametrize("bits", [32, 64])
def test_every_part_of_a_word_is_uniform(bits: int) -> None:
    words = np.zeros(1 << 19, RINGS[bits])
    apply(words, [key(2)], [])
    for shift in range(0, bits, 8):
        assert uniformity((words >> words.dtype.type(shift)).astype(np.uint8), 256) > 1e-3 / 12
    assert uniformity((words >> words.dtype.type(bits - 12)).astype(np.int64), 4096) > 1e-3
    assert len(np.unique(words)) > 0.999 * len(words)
    assert stats.chisquare(np.bincount(words[1:].astype(np.uint8) ^ words[:-1].astype(np.uint8))).pvalue > 1e-3


def test_a_masked_update_is_uniform_whatever_it_was() -> None:
    for value in (0, 1, 255):
        words = np.full(1 << 19, value, RINGS[8])
        apply(words, [key(3)], [key(4)])
        assert uniformity(words, 256) > 1e-3


def test_other_keys_other_masks() -> None:
    streams = []
    for i in range(50):
        words = np.zeros(64, RINGS[64])
        apply(words, [key(i)], [])
        streams.append(words)
    assert len(np.unique(np.concatenate(streams))) == 50 * 64
    near = bytearray(key(0))
    near[31] ^= 1  # all 256 bits count
    words = np.zeros(64, RINGS[64])
    apply(words, [bytes(near)], [])
    assert not np.isin(words, np.concatenate(streams)).any()
