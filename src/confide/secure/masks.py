"""Masks: keystream words of AES-256 in counter mode, added to or subtracted from a vector in the ring.

A mask is raw cipher output read as little-endian words, so it is uniform in the ring; its key is 256 bits and used
once (`keys`), so that the counter may start at zero. AES-CTR, because on processors with AES instructions it is at
least as fast as ChaCha20 in pieces of this size (`confide bench secure` times both and names the faster).

One buffer serves all neighbours: the vector is walked in pieces that stay in the cache, and each piece takes the
masks of all keys before the next one is touched. There are no threads: `cryptography` holds the interpreter's lock
while it encrypts, and two threads took as long as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from confide.base.errors import InputError
from confide.secure.encoding import Words
from confide.secure.keys import KEY_BYTES

PIECE: Final = 1 << 17  # bytes
KEYS_AT_ONCE: Final = 256  # cipher contexts kept open
ZEROS: Final = np.zeros(PIECE, np.uint8)
COUNTER: Final = bytes(16)


def apply(words: Words, plus: Sequence[bytes], minus: Sequence[bytes]) -> None:
    """Add the masks of some keys to `words`, and subtract those of others, in place.

    >>> words = np.zeros(3, "<u4")
    >>> apply(words, [bytes(32)], [])
    >>> words  # AES-256 of the zero block under the zero key begins dc95c078 a2408989 ad48a214
    array([2025887196, 2307473570,  346179757], dtype=uint32)
    >>> apply(words, [], [bytes(32)])
    >>> words
    array([0, 0, 0], dtype=uint32)
    """
    if any(len(key) != KEY_BYTES for key in (*plus, *minus)):
        raise InputError("key", "its length", f"must be {KEY_BYTES} bytes; a shorter one would be AES-128")
    signed = [(key, np.add) for key in plus] + [(key, np.subtract) for key in minus]
    buffer = np.empty(PIECE, np.uint8)
    flat = words.view(np.uint8)
    for first in range(0, len(signed), KEYS_AT_ONCE):
        streams = [(Cipher(AES(key), CTR(COUNTER)).encryptor(), op) for key, op in signed[first : first + KEYS_AT_ONCE]]
        for start in range(0, len(flat), PIECE):
            piece = flat[start : start + PIECE].view(words.dtype)
            zeros, keystream = ZEROS[: piece.nbytes].data, buffer[: piece.nbytes]
            mask, target = keystream.view(words.dtype), keystream.data
            for cipher, op in streams:
                cipher.update_into(zeros, target)
                op(piece, mask, out=piece)
