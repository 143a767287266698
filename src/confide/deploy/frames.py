"""Messages cut into frames, and put together again within a bound.

A frame is the number of bytes that are still to come after it (4 bytes, big endian), and then bytes of the message; all
but the last frame of a message are full. So the first frame tells the length: what is too long is refused before it is
held, and nobody can make us hold a million tiny frames. Frames of two messages are never mixed: a stream keeps order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from confide.wire import MalformedError

FRAME: Final = (1 << 20) + (1 << 12)  # bytes of a frame, its head among them: a MiB of a model goes in one
HEAD: Final = 4
ROOM: Final = FRAME - HEAD
LONGEST: Final = (1 << 32) - 1  # bytes of a message, whatever the bound


class OversizedError(MalformedError):
    """A message beyond the bound."""


def cut(message: bytes) -> Iterator[bytes]:
    """The frames of a message, each made when it is asked for: a large message is not held twice.

    >>> [len(frame) for frame in cut(bytes(2 * ROOM + 1))]
    [1052672, 1052672, 5]
    """
    if not 0 < len(message) <= LONGEST:
        raise ValueError(f"a message has 1 to {LONGEST} bytes, not {len(message)}")
    view = memoryview(message)
    for start in range(0, len(message), ROOM):
        piece = view[start : start + ROOM]
        yield b"".join(((len(message) - start - len(piece)).to_bytes(HEAD), piece))


class Joiner:
    """Puts messages of at most `largest` bytes together; after an error it is not to be used again.

    >>> joiner = Joiner(100)
    >>> [joiner.add(frame) for frame in cut(b"hello")]
    [b'hello']
    """

    def __init__(self, largest: int) -> None:
        self.largest = largest
        self._pieces: list[memoryview] = []
        self._missing = 0

    def add(self, frame: bytes) -> bytes | None:
        """The message, if this frame ends one; raises `MalformedError`, and nothing else, for any bytes whatever."""
        if not HEAD < len(frame) <= FRAME:
            raise MalformedError(f"a frame of {len(frame)} bytes")
        missing, piece = int.from_bytes(frame[:HEAD]), memoryview(frame)[HEAD:]
        if self._pieces and self._missing != missing + len(piece):
            raise MalformedError("a frame that does not go on where the last one ended")
        if not self._pieces and missing + len(piece) > self.largest:
            raise OversizedError(f"a message of {missing + len(piece)} bytes, at most {self.largest} are allowed")
        if missing and len(frame) < FRAME:
            raise MalformedError("a frame that is neither full nor the last")
        if not self._pieces and not missing:
            return frame[HEAD:]
        self._pieces.append(piece)
        self._missing = missing
        if missing:
            return None
        whole, self._pieces = b"".join(self._pieces), []
        return whole
