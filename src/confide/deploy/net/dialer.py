"""The end that dials, again and again: with pauses that grow, and only what the plan has as that server will do."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import secrets
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import grpc
from grpc import StatusCode

from confide.base.errors import InputError
from confide.deploy.keys.certificates import RefusedPeer
from confide.deploy.net import handshake
from confide.deploy.net.endpoints import LIMITS, METHODS, SERVICE, Credentials, Limits, Target
from confide.deploy.net.handshake import LARGEST_ANSWER, LIFE, Agreed, Common, Differs
from confide.deploy.net.streams import ClosingError, Stream, closed_by_peer
from confide.deploy.net.ways import way

FIRST_DELAY: Final = 0.2  # seconds until a lost stream is dialed again
GROWTH: Final = 1.5  # of the next delay: whoever restarts within seconds is found soon after
LAST_DELAY: Final = 10.0
SETTLED: Final = 5.0  # seconds after which a stream counts as a success: two nodes with one name must not race
_log = logging.getLogger(__name__)


class Dialer:
    """Keeps a stream to one server, for ever, by one of its addresses after the other.

    The way may be through a proxy, see `ways`.

    Args:
        connected, disconnected: what was sent before `connected` is lost, so a machine says everything again.
        differs: the fields of the plan in which the two sides differ, whenever it is tried again.
        life: of this process, see `lives`.
        clock: by which this node's rounds go.

    Attributes:
        why: the stream is not there; "" while it is.
        ahead: seconds by which the server's clock was ahead of ours when the stream was opened; None before the first.
        counts: what was refused or dropped, by a word.
    """

    def __init__(
        self,
        credentials: Credentials,
        server: Target,
        common: Common,
        receive: Callable[[bytes], None],
        connected: Callable[[], None],
        disconnected: Callable[[], None],
        differs: Callable[[list[str]], None],
        limits: Limits = LIMITS,
        life: bytes = LIFE,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not server.addresses:
            raise InputError("addresses", [], "a server is reached at one address at least")
        if list(credentials.authorities) != [server.org]:
            raise InputError("authorities", list(credentials.authorities), f"give that of {server.org} and no other")
        self.why = "not yet dialed"
        self.ahead: float | None = None
        self.counts: Counter[str] = Counter()
        self._credentials, self._server, self._common = credentials, server, common
        self._receive, self._limits, self._life, self._clock = receive, limits, life, clock
        self._connected, self._disconnected, self._differs = connected, disconnected, differs
        self._stream: Stream | None = None
        self._shown = b""  # the certificate of the server at its other end
        self._since = math.inf  # when the stream was opened
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def send(self, raw: bytes) -> bool:
        """Whether it will be tried."""
        return self._stream is not None and self._stream.send(raw)

    def renew(self, credentials: Credentials) -> None:
        """For the next connection; a stream to a server that would not be believed any more is ended."""
        self._credentials = credentials
        if self._stream is not None:
            try:
                self._believe(self._shown)
            except ClosingError as e:
                self._stream.end(e)

    async def _run(self) -> None:
        loop, addresses, which, failures = asyncio.get_running_loop(), self._server.addresses, 0, 0
        while True:
            before, self._since = self.why, math.inf
            self.why = await self._dial(addresses[which])
            known = self.why == before and self._since == math.inf
            _log.log(logging.DEBUG if known else logging.WARNING, "no stream to %s: %s", self._server.host, self.why)
            if loop.time() - self._since >= SETTLED:
                failures = 0
            else:
                failures, which = failures + 1, (which + 1) % len(addresses)
            self._hurry.clear()
            pause = delay(failures // len(addresses), random.random())  # noqa: S311 - no secret
            with suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), pause)
                failures = 0

    def hurry(self) -> None:
        """Dial now, not when the pause is over: the other side has shown that it lives."""
        self._hurry.set()

    async def _dial(self, address: str) -> str:
        """Until the stream is lost; returns why."""
        own, limits, road = self._credentials, self._limits, way(address)
        options = [
            *limits.options,
            *road.options,
            ("grpc.ssl_target_name_override", self._server.host),
            ("grpc.use_local_subchannel_pool", 1),  # every dialer waits for itself
            ("grpc.enable_retries", 0),
        ]
        try:
            credentials = grpc.ssl_channel_credentials(own.roots, *own.pair)
            async with grpc.aio.secure_channel(address, credentials, options) as channel:
                call = channel.stream_stream(f"/{SERVICE}/{METHODS[own.own.role]}")()
                stream = Stream(call, limits.outbox, self.counts)
                stream.joiner.largest = LARGEST_ANSWER
                try:
                    async with asyncio.timeout(limits.connect):
                        await self._greet(stream, own.address)
                    await self._converse(stream, own.own.role)
                except asyncio.InvalidStateError:  # it was over before we wrote; the status says why
                    code, details = await call.code(), await call.details()
                    return road.unreached(details) or closed_by_peer(code, details).why
                finally:
                    call.cancel()
        except ClosingError as e:
            self.counts[e.word] += 1
            return e.why
        except grpc.aio.AioRpcError as e:
            return road.unreached(e.details()) or closed_by_peer(e.code(), e.details()).why
        except TimeoutError:
            return f"{road}: no connection within {limits.connect:g} s"
        except Exception:  # our own fault; but a dialer dials for ever
            self.counts["failed"] += 1
            _log.exception("a stream to %s failed", address)
            return "failed on this side, see the log"
        return "the server closed the stream"

    async def _greet(self, stream: Stream, me: str) -> None:
        nonce, common = secrets.token_bytes(32), self._common
        await stream.say(handshake.encode(common.hello(nonce, self._life)))
        match await stream.expect(Agreed, Differs):
            case Agreed() as agreed:
                if not common.proves(agreed, self._server.identity, nonce, me):
                    why = "the server does not have the identity that the plan has for it"
                    raise ClosingError(StatusCode.UNAUTHENTICATED, why, "refused")
                self._believe(agreed.certificate)
                self._shown = agreed.certificate
                self.ahead = agreed.time - self._clock()
            case theirs:
                await stream.say(handshake.encode(common.differs))
                lines = await asyncio.to_thread(common.lines, theirs)
                self._differs(lines)
                with suppress(grpc.aio.AioRpcError):
                    await stream.hear()  # the listener closes, when it has read ours
                raise ClosingError(StatusCode.FAILED_PRECONDITION, "; ".join(lines), "differs")

    def _believe(self, certificate: bytes) -> None:
        """The certificate that the server shows holds, and is that of the server that is meant."""
        try:
            peer, wanted = self._credentials.peer(certificate), self._server
            if (peer.role, peer.org, peer.name, peer.identity) != ("server", wanted.org, wanted.name, wanted.identity):
                raise RefusedPeer("the server shows another node's certificate")
        except RefusedPeer as e:
            raise ClosingError(StatusCode.UNAUTHENTICATED, str(e), "refused") from None

    async def _converse(self, stream: Stream, role: str) -> None:
        stream.joiner.largest = self._limits.from_server if role == "client" else 0  # a neighbour dials to speak
        self._stream, self.why, self._since = stream, "", asyncio.get_running_loop().time()
        try:
            self._connected()
            await stream.listen(self._receive)
        finally:
            self._stream = None
            self._disconnected()


def delay(failures: int, chance: float) -> float:
    """Seconds to wait, by the number of failures in a row and a random number in [0, 1).

    >>> [round(delay(n, 0.0), 2) for n in (0, 1, 5, 10_000)]
    [0.1, 0.15, 0.76, 5.0]
    """
    return min(LAST_DELAY, FIRST_DELAY * GROWTH ** min(failures, 16)) * (0.5 + 0.5 * chance)
