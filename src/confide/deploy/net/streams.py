"""Bytes between machines: gRPC streams under mutual TLS, on which `server.py` and `client.py` talk.

    Client   a client dials its unit's server, and both speak on that stream
    Server   a server dials a neighbour and speaks; to answer, the neighbour dials too. So each direction has a stream
             of its own, and one direction that is cut leaves the other.

To gRPC our messages are bytes, and no code is generated for them: they have a strict decoder of their own
(`confide.base.wire`), and a second one in front of it would only be a second one to attack.

Nothing is promised to arrive. Machines repeat what matters until it is answered, so an outbox is bounded by dropping:
the oldest message goes first, since what a machine said later repeats or overtakes what it said before.

Here is one stream, whichever side it is seen from; `listener.py` and `dialer.py` are the sides, and `endpoints.py` says
who they are. All of it belongs to one event loop; callbacks are called on it and must be quick.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import grpc
from grpc import StatusCode

from confide.base.wire import MalformedError
from confide.deploy.net import handshake
from confide.deploy.net.frames import Joiner, OversizedError, cut
from confide.deploy.net.handshake import LARGEST_HELLO

_log = logging.getLogger(__name__)


class ClosingError(Exception):
    """Ends a stream: the status that the peer gets, and under which word it is counted."""

    def __init__(self, code: StatusCode, why: str, word: str) -> None:
        self.code, self.why, self.word = code, why, word
        super().__init__(why)


def closed_by_peer(code: StatusCode, details: str | None) -> ClosingError:
    """By the peer, whose text may be anything."""
    shown = "".join(c if c.isprintable() else "?" for c in (details or "")[:300])
    return ClosingError(code, f"{code.name}: {shown}", "lost")


class Stream:
    """Messages on one RPC; both sides of gRPC's have `read` and `write`."""

    def __init__(self, call: Any, outbox: int, counts: Counter[str]) -> None:
        self.joiner = Joiner(LARGEST_HELLO)
        self._call, self._outbox, self._counts = call, outbox, counts
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._pump: asyncio.Task[None] | None = None  # only while something waits: an idle stream has no task for it
        # The arguments of a `ClosingError`, not itself: it knows the frames that it went through, and they the stream.
        self._ended: asyncio.Future[tuple[StatusCode, str, str] | None] = asyncio.get_running_loop().create_future()

    def send(self, raw: bytes) -> bool:
        """Whether it will be tried; a later message may still push it out."""
        if self._ended.done():
            return False
        if not 0 < len(raw) <= self._outbox:
            self._counts["unsendable"] += 1
            return False
        while self._size + len(raw) > self._outbox:
            self._size -= len(self._waiting.popleft())
            self._counts["dropped"] += 1
        self._waiting.append(raw)
        self._size += len(raw)
        if self._pump is None:
            self._pump = asyncio.create_task(self._empty())
        return True

    async def _empty(self) -> None:
        try:
            while self._waiting:
                raw = self._waiting.popleft()
                self._size -= len(raw)
                await self.say(raw)
        except Exception as e:  # of many types, all of them: the RPC is over; why, the reader learns
            _log.debug("writing ended: %s", type(e).__name__)
        else:
            self._pump = None

    async def say(self, raw: bytes) -> None:
        """Ends when gRPC has taken it, which waits for a peer that is slow: this is the back-pressure."""
        for frame in cut(raw):
            await self._call.write(frame)

    async def hear(self) -> bytes | None:
        """The next message, None at the end."""
        while (frame := await self._call.read()) is not grpc.aio.EOF:
            try:
                if (raw := self.joiner.add(frame)) is not None:
                    return raw
            except OversizedError as e:
                raise ClosingError(StatusCode.RESOURCE_EXHAUSTED, str(e), "oversized") from None
            except MalformedError as e:
                raise ClosingError(StatusCode.INVALID_ARGUMENT, str(e), "malformed") from None
        return None

    async def expect(self, *kinds: type) -> Any:
        """A word of the handshake."""
        if (raw := await self.hear()) is None:
            raise ClosingError(StatusCode.INVALID_ARGUMENT, "the stream ended before it began", "malformed")
        try:
            return handshake.decode(raw, *kinds)
        except MalformedError as e:
            raise ClosingError(StatusCode.INVALID_ARGUMENT, str(e), "malformed") from None

    async def listen(self, receive: Callable[[bytes], None]) -> None:
        """Until the peer is done, or `end` is called; raises `ClosingError` unless all is well."""
        reader = asyncio.create_task(self._read(receive))
        try:
            closing = await self._ended
        finally:
            self.end(None)
            reader.cancel()
            if self._pump is not None:
                self._pump.cancel()
        if closing is not None:
            raise ClosingError(*closing)

    async def _read(self, receive: Callable[[bytes], None]) -> None:
        try:
            while (raw := await self.hear()) is not None:
                try:
                    receive(raw)
                except Exception:  # our own fault; the stream is as far as it reaches
                    _log.exception("a message could not be handled")
                    raise ClosingError(StatusCode.INTERNAL, "a message could not be handled", "failed") from None
            self.end(None)
        except ClosingError as e:
            self.end(e)
        except grpc.aio.AioRpcError as e:
            self.end(closed_by_peer(e.code(), e.details()))
        except Exception as e:  # of many types, all of them: the RPC is over
            self.end(ClosingError(StatusCode.UNKNOWN, f"reading ended: {type(e).__name__}", "lost"))

    def end(self, closing: ClosingError | None) -> None:
        if not self._ended.done():
            self._ended.set_result(None if closing is None else (closing.code, closing.why, closing.word))
