"""What a client says to the process that trains for it, and hears: plain bytes of bounded size.

Nothing that crosses can be made to run: numbers are double precision, little end first, all else is MessagePack. That
goes over a pair of sockets. Numbers lie in memory that both have: to pass a model through the sockets takes the system
twice as long. The two speak in turns, and each takes a copy of what it hears.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import struct
import threading
import time
from collections.abc import Mapping
from datetime import date, datetime
from datetime import time as moment
from typing import Annotated, Any, Final

import msgpack
from pydantic import Field
from pydantic.dataclasses import dataclass

from confide.base import wire
from confide.base.closing import Closing
from confide.base.errors import InputError
from confide.base.wire import STRICT, MalformedError

Line = Annotated[str, Field(max_length=1000)]
TALK: Final = 2**23  # bytes of a message, besides its numbers: a TOML has at most 2^20, and `0.` is nine of them here
LARGEST: Final = 2**34  # bytes of numbers: the largest model has 2^31
_LENGTHS: Final = struct.Struct(">QQ")
_DATES: Final = (datetime, date, moment)  # what a TOML has besides what MessagePack knows


@dataclass(frozen=True, config=STRICT)
class Train:
    """Train from the weights that follow."""

    round: int
    config: bytes


@dataclass(frozen=True, config=STRICT)
class Prepare:
    """Before the first training of a network: a packed `network_training.Job`."""

    job: bytes


@dataclass(frozen=True, config=STRICT)
class Ready:
    """The function is loaded, or the network on its data: so many rows of them count as nothing."""

    bad: Annotated[int, Field(ge=0)] = 0
    rows: Annotated[int, Field(ge=0)] = 0


@dataclass(frozen=True, config=STRICT)
class Refused:
    """It is not: an `InputError`, or a `DataError` if that may tell of the data."""

    field: Line
    value: Line
    remedy: Line
    of_data: bool


@dataclass(frozen=True, config=STRICT)
class Warned:
    """Python or a library warned: of what kind, and where. Its words may hold values."""

    kind: Line
    at: Line


@dataclass(frozen=True, config=STRICT)
class Update:
    """What the function returned: the numbers that follow."""


@dataclass(frozen=True, config=STRICT)
class Failed:
    """It gave no update: why, in our words, and the types and places of the error."""

    why: Line
    places: tuple[Line, ...]


QUESTIONS: Final = wire.kinds(Train | Prepare)
ANSWERS: Final = wire.kinds(Ready | Refused | Warned | Update | Failed)


def line(text: str) -> str:
    return text[:1000]


def packed(config: Mapping[str, Any]) -> bytes:
    """A table of a TOML."""

    def dated(value: Any) -> msgpack.ExtType:
        if type(value) in _DATES:
            return msgpack.ExtType(_DATES.index(type(value)), value.isoformat().encode())
        raise TypeError(f"a {type(value).__name__}")

    try:
        return bytes(msgpack.packb(dict(config), default=dated))
    except (TypeError, ValueError, OverflowError) as e:
        raise InputError("train_config", list(config), f"cannot be passed to the train function: {e}") from None


def unpacked(raw: bytes) -> dict[str, Any]:
    found: dict[str, Any] = msgpack.unpackb(
        raw, ext_hook=lambda code, text: _DATES[code].fromisoformat(text.decode()), strict_map_key=False
    )
    return found


def common() -> int:
    """A descriptor of memory for both ends. It can grow, but not shrink, which would end whoever looks at it."""
    memory = os.memfd_create("numbers", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return memory


class Pipe(Closing):
    """One end. A message is its length and that of its numbers, eight bytes each, and the message.

    Args:
        memory: where numbers lie, see `common`; closed with the socket.
    """

    def __init__(self, sock: socket.socket, memory: int) -> None:
        self._sock, self._memory, self._have, self._saying = sock, memory, bytearray(), threading.Lock()
        self._numbers = mmap.mmap(-1, 1)

    def say(self, message: object, numbers: memoryview | bytes = b"", deadline: float | None = None) -> None:
        """Raises `TimeoutError` if the other end does not listen until then, `OSError` if it is gone."""
        raw, body = wire.encode(message), memoryview(numbers).cast("B")
        with self._saying:
            self._sock.settimeout(_left(deadline))
            if body:
                self._room(len(body))[: len(body)] = body
            self._sock.sendall(_LENGTHS.pack(len(raw), len(body)) + raw)

    def hear(
        self, kinds: Mapping[str, type[Any]], largest: int = 0, deadline: float | None = None
    ) -> tuple[Any, bytearray]:
        """The next message and its numbers, at most `largest` bytes of them.

        Raises `TimeoutError` where there is none, after which it can be asked for again, `EOFError` where the other end
        is gone, and `MalformedError` where it is not of these.
        """
        self._until(_LENGTHS.size, deadline)
        size, numbers = _LENGTHS.unpack_from(self._have)
        if size > TALK or numbers > largest:
            raise MalformedError(f"{size} bytes and {numbers} of numbers, at most {TALK} and {largest} are allowed")
        self._until(_LENGTHS.size + size, deadline)
        message = wire.decode(bytes(self._have[_LENGTHS.size :]), kinds, TALK)
        self._have.clear()
        return message, bytearray(self._room(numbers)[:numbers])

    def _room(self, size: int) -> memoryview:
        """The memory of both, of at least so many bytes."""
        if len(self._numbers) < size:
            if os.fstat(self._memory).st_size < size:
                os.ftruncate(self._memory, size)
            self._numbers = mmap.mmap(self._memory, size)
        return memoryview(self._numbers)

    def _until(self, size: int, deadline: float | None) -> None:
        """So many bytes of this message are here, and none of the next."""
        while len(self._have) < size:
            self._sock.settimeout(_left(deadline))
            if not (more := self._sock.recv(size - len(self._have))):
                raise EOFError
            self._have += more

    def close(self) -> None:
        self._sock.close()
        if self._memory >= 0:
            os.close(self._memory)
        self._memory = -1


def _left(deadline: float | None) -> float | None:
    if deadline is None:
        return None
    if (left := deadline - time.monotonic()) <= 0.0:
        raise TimeoutError
    return left
