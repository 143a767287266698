"""Words that an epsilon may count on: they follow from 256 bits of the operating system, not from a seed.

An accounted run on somebody's data draws one secret and keeps it in memory until it has ended; there is no resuming,
so it is never on a disk. HKDF-SHA256 gives each repetition and purpose a key of its own, and the words of a stream are
ChaCha20's keystream under that key with (round, id, id) as nonce: every word of a noise is the cipher's, for 64 bits
behind a whole vector could be guessed and undone. As with a seed, a stream depends on nothing but its name, so threads
and replayed rounds find the same bits. `confide.engines.kernel` computes the same words.
"""

from __future__ import annotations

import os
import struct
from typing import Final, NoReturn

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from confide.base.errors import InputError
from confide.base.randomness import Purpose, Words
from confide.secure.keys import KEY_BYTES, Secret, derive

USE: Final = b"confide simulated run"
MOST_WORDS: Final = 8 << 32  # the cipher's block counter has 32 bits


class Streams:
    """All secret streams of one repetition; `confide.base.randomness.key` takes it in the place of a seed."""

    __slots__ = ("_keys",)

    def __init__(self, keys: dict[Purpose, Secret]) -> None:
        self._keys = keys

    def words(self, purpose: Purpose, ids: tuple[int, ...], count: int) -> Words:
        """The first `count` 64-bit words of one stream."""
        if not 0 <= count <= MOST_WORDS:
            raise InputError("count", count, f"a secret stream has {MOST_WORDS} words")
        nonce = struct.pack("<4I", 0, *ids, *(0,) * (3 - len(ids)))  # the first number counts blocks
        cipher = Cipher(ChaCha20(self._keys[purpose], nonce), mode=None).encryptor()
        return np.frombuffer(cipher.update(bytes(8 * count)), dtype="<u8").astype(np.uint64)

    def key(self, purpose: Purpose, ids: tuple[int, ...]) -> int:
        """The key of a stream of draws, which is enough for them: it serves one round of one client, or one of all."""
        return int(self.words(purpose, ids, 1)[0])

    def table(self) -> NDArray[np.uint32]:
        """The keys as the kernel reads them, a row a purpose."""
        rows = np.zeros((max(Purpose) + 1, KEY_BYTES // 4), np.uint32)
        for purpose, own in self._keys.items():
            rows[purpose] = np.frombuffer(own, dtype="<u4")
        return rows

    def __repr__(self) -> str:
        return "Streams(...)"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("secret streams are neither copied nor pickled: noise would be drawn twice")


class RunSecret:
    """The secret of one run.

    Attributes:
        draws: whether who takes part, batches and failures come from it too, because a price rests on their secrecy.
    """

    __slots__ = ("_key", "draws")

    def __init__(self, draws: bool = False) -> None:
        self._key, self.draws = Secret(os.urandom(KEY_BYTES)), draws

    def streams(self, repetition: int) -> Streams:
        return Streams({purpose: derive(self._key, b"", USE, repetition, int(purpose)) for purpose in Purpose})

    def __repr__(self) -> str:
        return f"RunSecret(draws={self.draws})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("the secret of a run is neither copied nor pickled: noise would be drawn twice")
