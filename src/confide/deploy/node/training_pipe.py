"""What a client says to the process that trains for it, and hears: plain bytes of bounded size, over a pair of sockets.

Nothing that crosses can be made to run: numbers are bytes of double precision, all else is MessagePack.
"""

from __future__ import annotations

import socket
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
TALK: Final = 2**16  # bytes of a message, besides its numbers
LARGEST: Final = 2**35  # bytes of a question: 2^31 numbers are the largest model
LENGTH: Final = 8  # bytes in front of a message, that say how many follow
CHUNK: Final = 2**20
_DATES: Final = (datetime, date, moment)  # what a TOML has besides what MessagePack knows


@dataclass(frozen=True, config=STRICT)
class Train:
    """Train from these weights."""

    round: int
    weights: bytes
    config: bytes


@dataclass(frozen=True, config=STRICT)
class Ready:
    """The function is loaded."""


@dataclass(frozen=True, config=STRICT)
class Refused:
    """It is not: an `InputError`, or a `DataError` if that may tell of the data."""

    remedy: Line
    of_data: bool


@dataclass(frozen=True, config=STRICT)
class Warned:
    """Python or a library warned: of what kind, and where. Its words may hold values."""

    kind: Line
    at: Line


@dataclass(frozen=True, config=STRICT)
class Update:
    """What the function returned."""

    values: bytes


@dataclass(frozen=True, config=STRICT)
class Failed:
    """It gave no update: why, in our words, and the types and places of the error."""

    why: Line
    places: tuple[Line, ...]


QUESTIONS: Final = wire.kinds(Train)
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


class Pipe(Closing):
    """One end. What has come of a message stays when time runs out, and the next call goes on from there."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._have, self._saying = sock, bytearray(), threading.Lock()

    def say(self, message: object, deadline: float | None = None) -> None:
        """Raises `TimeoutError` if the other end does not listen until then, `OSError` if it is gone."""
        raw = wire.encode(message)
        with self._saying:
            self._sock.settimeout(_left(deadline))
            self._sock.sendall(len(raw).to_bytes(LENGTH, "big") + raw)

    def hear(self, kinds: Mapping[str, type[Any]], largest: int, deadline: float | None = None) -> Any:
        """Raises `TimeoutError` or `EOFError` where there is none, and `MalformedError` where it is not of these."""
        have = self._have
        while len(have) < LENGTH or len(have) < LENGTH + (size := int.from_bytes(have[:LENGTH], "big")):
            if len(have) >= LENGTH and size > largest:
                raise MalformedError(f"{size} bytes, at most {largest} are allowed")
            self._sock.settimeout(_left(deadline))
            if not (more := self._sock.recv(CHUNK)):
                raise EOFError
            have += more
        raw = bytes(have[LENGTH : LENGTH + size])
        del have[: LENGTH + size]
        return wire.decode(raw, kinds, largest)

    def close(self) -> None:
        self._sock.close()


def _left(deadline: float | None) -> float | None:
    if deadline is None:
        return None
    if (left := deadline - time.monotonic()) <= 0.0:
        raise TimeoutError
    return left
