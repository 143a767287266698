"""Messages cut into frames, and put together again within a bound.

A message that fits is a frame as it is, and is not copied. A longer one, and the rare one that begins with MARK, goes
in parts: MARK, the number of bytes that are still to come after this part (4 bytes, big endian), and then bytes of the
message; all but the last part are full. So the first part tells the length: what is too long is refused before it is
held, and nobody can make us hold a million tiny frames. Parts of two messages are never mixed: a stream keeps order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from confide.base.wire import MalformedError

FRAME: Final = (1 << 20) + (1 << 12)  # bytes of a frame: a MiB of a model goes in one
MARK: Final = 0xC1  # the byte that MessagePack never uses
HEAD: Final = 1 + 4
ROOM: Final = FRAME - HEAD
LONGEST: Final = (1 << 32) - 1  # bytes of a message, whatever the bound


class OversizedError(MalformedError):
    """A message beyond the bound."""


def cut(message: bytes) -> Iterator[bytes]:
    """The frames of a message, each made when it is asked for: a large message is not held twice.

    >>> [len(frame) for frame in cut(bytes(2 * ROOM + 1))]
    [1052672, 1052672, 6]
    """
    if not 0 < len(message) <= LONGEST:
        raise ValueError(f"a message has 1 to {LONGEST} bytes, not {len(message)}")
    if len(message) <= FRAME and message[0] != MARK:
        yield message
        return
    view = memoryview(message)
    for start in range(0, len(message), ROOM):
        piece = view[start : start + ROOM]
        yield b"".join((bytes((MARK,)), (len(message) - start - len(piece)).to_bytes(HEAD - 1), piece))


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
        if not 0 < len(frame) <= FRAME:
            raise MalformedError(f"a frame of {len(frame)} bytes")
        if frame[0] != MARK:
            if self._pieces:
                raise MalformedError("a frame that does not go on where the last one ended")
            self._check(len(frame))
            return frame
        if len(frame) <= HEAD:
            raise MalformedError(f"a part of {len(frame)} bytes")
        missing, piece = int.from_bytes(frame[1:HEAD]), memoryview(frame)[HEAD:]
        if self._pieces and self._missing != missing + len(piece):
            raise MalformedError("a frame that does not go on where the last one ended")
        if not self._pieces:
            self._check(missing + len(piece))
        if missing and len(frame) < FRAME:
            raise MalformedError("a frame that is neither full nor the last")
        if not self._pieces and missing + len(piece) <= FRAME and piece[0] != MARK:
            raise MalformedError("a part of a message that needed none")
        self._pieces.append(piece)
        self._missing = missing
        if missing:
            return None
        whole, self._pieces = b"".join(self._pieces), []
        return whole

    def _check(self, size: int) -> None:
        if size > self.largest:
            raise OversizedError(f"a message of {size} bytes, at most {self.largest} are allowed")
