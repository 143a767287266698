"""Words for noise that leaves a machine: a stream cipher, keyed by the operating system."""

from __future__ import annotations

import os
import threading
from typing import Final, NoReturn, Self

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from confide.base.errors import InputError, RunError
from confide.base.randomness import Words
from confide.base.validation import whole
from confide.laws.noise import LARGEST_SIZE

KEY_BYTES: Final = 32
BLOCK_BYTES: Final = 1 << 16
ZEROS: Final = bytes(BLOCK_BYTES)


class SecretStream:
    """Words from ChaCha20, keyed by the operating system, or by 32 bytes that two parties derived together.

    Every block's first 32 bytes are the key of the next block and words are erased once handed out, so a machine that
    is seized later does not give back earlier noise. Threads may share a stream. A process may not share it with its
    fork, where both would draw the same noise: the child is refused. A copied virtual machine cannot be noticed.

    >>> SecretStream(bytes(32)).words(2)  # RFC 8439, A.1, test vector 1, from byte 32 on
    array([10180482965161198042,  3984235106219861111], dtype=uint64)
    """

    __slots__ = ("_block", "_key", "_lock", "_next", "_process")

    def __init__(self, key: bytes | None = None) -> None:
        if key is not None and not (isinstance(key, bytes) and len(key) == KEY_BYTES):
            shown = f"{len(key)} bytes" if isinstance(key, bytes) else type(key).__name__  # never the key itself
            raise InputError("key", shown, f"must be {KEY_BYTES} bytes")
        self._key = os.urandom(KEY_BYTES) if key is None else key
        self._block = np.zeros(BLOCK_BYTES // 8, dtype="<u8")
        self._next = len(self._block)
        self._lock = threading.Lock()
        self._process = os.getpid()

    @classmethod
    def of(cls, words: Words) -> Self:
        """Keyed by the first four words of a seeded stream, so that a simulation can draw what a deployment would.

        >>> from confide.base.randomness import Purpose, stream
        >>> SecretStream.of(stream(0, Purpose.SERVER_NOISE, (1, 0), 4)).words(1)
        array([17829674904319249423], dtype=uint64)
        """
        return cls(words[:4].astype("<u8").tobytes())

    def words(self, n: int) -> Words:
        """The next n words, each uniform on 0 .. 2^64 - 1."""
        out = np.empty(whole("n", n, 0, LARGEST_SIZE), dtype=np.uint64)
        if os.getpid() != self._process:
            raise RunError("a secret stream was used after a fork; make a new one in each process")
        done = 0
        with self._lock:
            while done < n:
                if self._next == len(self._block):
                    self._refill()
                part = self._block[self._next : self._next + n - done]
                out[done : done + len(part)] = part
                part[:] = 0
                self._next += len(part)
                done += len(part)
        return out

    def _refill(self) -> None:
        cipher = Cipher(ChaCha20(self._key, nonce=bytes(16)), mode=None).encryptor()
        cipher.update_into(ZEROS, self._block.view(np.uint8).data)
        self._next = KEY_BYTES // 8
        self._key = self._block[: self._next].tobytes()
        self._block[: self._next] = 0

    def __repr__(self) -> str:
        return "SecretStream()"

    def __reduce_ex__(self, protocol: object) -> NoReturn:  # pickle, copy and deepcopy all come here
        raise TypeError("a SecretStream cannot be copied or pickled: noise would be drawn twice")
