"""Bytes between machines: gRPC streams under mutual TLS, on which `server.py` and `client.py` talk.

    Client   a client dials its unit's server, and both speak on that stream
    Server   a server dials a neighbour and speaks; to answer, the neighbour dials too. So each direction has a stream
             of its own, and one direction that is cut leaves the other.

To gRPC our messages are bytes, and no code is generated for them: they have a strict decoder of their own
(`confide.wire`), and a second one in front of it would only be a second one to attack.

Nothing is promised to arrive. Machines repeat what matters until it is answered, so an outbox is bounded by dropping:
the oldest message goes first, since what a machine said later repeats or overtakes what it said before. Everything here
belongs to one event loop; callbacks are called on it and must be quick.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import secrets
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import grpc
from grpc import StatusCode

from confide.deploy import handshake, pki
from confide.deploy.frames import FRAME, Joiner, OversizedError, cut
from confide.deploy.handshake import LARGEST_ANSWER, LARGEST_HELLO, Agreed, Common, Differs, Hello
from confide.deploy.pki import Peer, RefusedPeer
from confide.errors import InputError
from confide.wire import MalformedError

SERVICE: Final = "confide.Talk"
METHODS: Final = {"client": "Client", "server": "Server"}  # by the role of the node that dials
FIRST_DELAY: Final = 0.2  # seconds until a lost stream is dialed again; then twice as many, and so on
LAST_DELAY: Final = 10.0
SETTLED: Final = 5.0  # seconds after which a stream counts as a success: two nodes with one name must not race
GREETINGS: Final = 4  # of one node at a time
STREAMS: Final = 16  # of one connection; an honest node has one, or two while it reconnects
_log = logging.getLogger(__name__)


class Node(NamedTuple):
    """A peer as the machines count: a client of this unit, or a neighbour."""

    role: str  # "client", "server"
    number: int


@dataclass(frozen=True, repr=False)
class Credentials:
    """What a node shows, and whom it believes.

    Attributes:
        own: certificate and keys.
        authorities: CA certificates in PEM by organisation. A dialer has exactly one, the other side's.
        revoked: serials by organisation, for a listener; one without a list is refused.
    """

    own: pki.Node
    authorities: Mapping[str, bytes]
    revoked: Mapping[str, frozenset[int]] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return handshake.address(self.own.org, self.own.role, self.own.name)

    @property
    def roots(self) -> bytes:
        return b"\n".join(self.authorities.values())

    @property
    def pair(self) -> tuple[bytes, bytes]:
        return bytes(self.own.key), self.own.certificate  # grpcio takes plain bytes only


@dataclass(frozen=True)
class Target:
    """The server that a dialer wants; its identity is the raw Ed25519 key in the plan."""

    org: str
    name: str
    identity: bytes

    @property
    def host(self) -> str:
        return pki.server_host(self.org, self.name)


@dataclass(frozen=True)
class Limits:
    """Bounds in bytes and seconds.

    Attributes:
        from_client, from_server: the longest message of each.
        outbox: of messages that wait on one stream, beside the one that is being sent.
        hello: until the first words are through. connect: until a connection is made, first words included.
        ping, pong: a silent peer is asked after the one and given up after the other.
        connections: at a listener, from anywhere.
    """

    from_client: int = 1 << 26
    from_server: int = 1 << 26
    outbox: int = 1 << 27
    hello: float = 5.0
    connect: float = 10.0
    ping: float = 15.0
    pong: float = 10.0
    connections: int = 4096

    def of(self, role: str) -> int:
        return self.from_client if role == "client" else self.from_server

    @property
    def options(self) -> list[tuple[str, int]]:
        return [
            ("grpc.max_receive_message_length", FRAME),
            ("grpc.max_send_message_length", FRAME),
            ("grpc.compression_enabled_algorithms_bitset", 1),  # none: what is packed may unpack to a gigabyte
            ("grpc.keepalive_time_ms", round(1000 * self.ping)),
            ("grpc.keepalive_timeout_ms", round(1000 * self.pong)),
            ("grpc.http2.ping_timeout_ms", round(1000 * self.pong)),  # a minute, if only the line above is there
            ("grpc.http2.max_pings_without_data", 0),  # idle is the usual state of a client
        ]


LIMITS: Final = Limits()


class _ClosingError(Exception):
    """Ends a stream: the status that the peer gets, and under which word it is counted."""

    def __init__(self, code: StatusCode, why: str, word: str) -> None:
        self.code, self.why, self.word = code, why, word
        super().__init__(why)


def _closed(code: StatusCode, details: str | None) -> _ClosingError:
    """By the peer, whose text may be anything."""
    shown = "".join(c if c.isprintable() else "?" for c in (details or "")[:300])
    return _ClosingError(code, f"{code.name}: {shown}", "lost")


class _Stream:
    """Messages on one RPC; both sides of gRPC's have `read` and `write`."""

    def __init__(self, call: Any, outbox: int, counts: Counter[str]) -> None:
        self.joiner = Joiner(LARGEST_HELLO)
        self._call, self._outbox, self._counts = call, outbox, counts
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._pump: asyncio.Task[None] | None = None  # only while something waits: an idle stream has no task for it
        # The arguments of a `_ClosingError`, not itself: it knows the frames that it went through, and they the stream.
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
                raise _ClosingError(StatusCode.RESOURCE_EXHAUSTED, str(e), "oversized") from None
            except MalformedError as e:
                raise _ClosingError(StatusCode.INVALID_ARGUMENT, str(e), "malformed") from None
        return None

    async def expect(self, *kinds: type) -> Any:
        """A word of the handshake."""
        if (raw := await self.hear()) is None:
            raise _ClosingError(StatusCode.INVALID_ARGUMENT, "the stream ended before it began", "malformed")
        try:
            return handshake.decode(raw, *kinds)
        except MalformedError as e:
            raise _ClosingError(StatusCode.INVALID_ARGUMENT, str(e), "malformed") from None

    async def listen(self, receive: Callable[[bytes], None]) -> None:
        """Until the peer is done, or `end` is called; raises `_ClosingError` unless all is well."""
        reader = asyncio.create_task(self._read(receive))
        try:
            closing = await self._ended
        finally:
            self.end(None)
            reader.cancel()
            if self._pump is not None:
                self._pump.cancel()
        if closing is not None:
            raise _ClosingError(*closing)

    async def _read(self, receive: Callable[[bytes], None]) -> None:
        try:
            while (raw := await self.hear()) is not None:
                try:
                    receive(raw)
                except Exception:  # our own fault; the stream is as far as it reaches
                    _log.exception("a message could not be handled")
                    raise _ClosingError(StatusCode.INTERNAL, "a message could not be handled", "failed") from None
            self.end(None)
        except _ClosingError as e:
            self.end(e)
        except grpc.aio.AioRpcError as e:
            self.end(_closed(e.code(), e.details()))
        except Exception as e:  # of many types, all of them: the RPC is over
            self.end(_ClosingError(StatusCode.UNKNOWN, f"reading ended: {type(e).__name__}", "lost"))

    def end(self, closing: _ClosingError | None) -> None:
        if not self._ended.done():
            self._ended.set_result(None if closing is None else (closing.code, closing.why, closing.word))


class _Open(NamedTuple):
    stream: _Stream
    certificate: bytes


class Listener:
    """Where a server is dialed.

    Args:
        address: HOST:PORT; port 0 takes a free one, see `port`.
        door: which node a peer is that `authenticate` has accepted; raises `RefusedPeer` for one that has no
            business here. The role in its certificate decides which of the two methods it may call.
        connected: called again without `disconnected` when a newer stream takes an older one's place.
        differs: (node, lines): a peer has another plan or protocol.

    Attributes:
        counts: what was refused or dropped, by a word.
    """

    def __init__(
        self,
        address: str,
        credentials: Credentials,
        common: Common,
        door: Callable[[Peer], Node],
        receive: Callable[[Node, bytes], None],
        connected: Callable[[Node], None],
        disconnected: Callable[[Node], None],
        differs: Callable[[Node, list[str]], None],
        limits: Limits = LIMITS,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.port = 0
        self._address, self._credentials, self._common, self._limits = address, credentials, common, limits
        self._door, self._receive = door, receive
        self._connected, self._disconnected, self._differs = connected, disconnected, differs
        self._open: dict[Node, _Open] = {}
        self._greeting: Counter[Node] = Counter()
        self._fresh: Any = None
        self._server: Any = None
        self._health: Any = None

    async def start(self) -> None:
        limits = self._limits
        self._server = grpc.aio.server(
            options=[
                *limits.options,
                ("grpc.so_reuseport", 0),  # or a second server would share the port, and the clients
                ("grpc.max_concurrent_streams", STREAMS),
                ("grpc.max_allowed_incoming_connections", limits.connections),
                ("grpc.server_handshake_timeout_ms", round(1000 * limits.connect)),
                ("grpc.max_connection_idle_ms", round(4000 * limits.ping)),  # connected, and no stream
                ("grpc.http2.min_ping_interval_without_data_ms", round(min(1000, 500 * limits.ping))),
            ]
        )
        handlers = {METHODS[role]: grpc.stream_stream_rpc_method_handler(self._method(role)) for role in METHODS}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        from confide.deploy import health  # brings protobuf along, which a client need not carry

        self._health = health.serve(self._server, lambda context: self._peer(_certificate(context)))
        credentials = grpc.dynamic_ssl_server_credentials(
            self._configuration(), self._fetch, require_client_authentication=True
        )
        try:
            self.port = self._server.add_secure_port(self._address, credentials)
        except RuntimeError:
            self._server, port = None, self._address.rpartition(":")[2]
            remedy = f"port {port} is in use, or the address is not this machine's; choose another"
            raise InputError("listen", self._address, remedy) from None
        await self._server.start()

    async def stop(self, grace: float = 1.0) -> None:
        """Says so to everybody; streams that have not ended after `grace` seconds are cut."""
        if self._server is None or self._health is None:
            return
        await self._health.enter_graceful_shutdown()
        for _, (stream, _) in list(self._open.items()):
            stream.end(_ClosingError(StatusCode.UNAVAILABLE, "the server stops", "stopped"))
        await self._server.stop(grace)

    def send(self, node: Node, raw: bytes) -> bool:
        """Whether it will be tried. A neighbour is spoken to through the stream that was dialed to it: False here."""
        found = self._open.get(node)
        return found is not None and node.role == "client" and found.stream.send(raw)

    @property
    def nodes(self) -> frozenset[Node]:
        """Connected now."""
        return frozenset(self._open)

    def renew(self, credentials: Credentials) -> None:
        """New connections see the new certificate; who would not be let in any more is shown the door."""
        self._credentials = credentials
        self._fresh = self._configuration()
        for node, (stream, certificate) in list(self._open.items()):
            try:
                if self._node(self._peer(certificate)) != node:
                    raise RefusedPeer("the certificate is no longer this node's")
            except RefusedPeer as e:
                stream.end(_ClosingError(StatusCode.PERMISSION_DENIED, str(e), "refused"))

    def _configuration(self) -> Any:
        return grpc.ssl_server_certificate_configuration([self._credentials.pair], self._credentials.roots)

    def _fetch(self) -> Any:
        """Called on a thread of gRPC for every connection; None is the same as before, and costs nothing."""
        fresh, self._fresh = self._fresh, None
        return fresh

    def _peer(self, certificate: bytes) -> Peer:
        now = pki.utc_now()
        return pki.authenticate(certificate, self._credentials.authorities, self._credentials.revoked, now)

    def _node(self, peer: Peer) -> Node:
        node = self._door(peer)
        if node.role != peer.role:
            raise RefusedPeer(f"{_who(peer)}: not a {node.role}")
        return node

    def _method(self, role: str) -> Callable[[Any, Any], Awaitable[None]]:
        async def talk(_: Any, context: Any) -> None:
            who = f"a {role}"
            try:
                certificate = _certificate(context)
                peer, node = self._admit(role, certificate)
                who = _who(peer)
                await self._talk(peer, node, certificate, context)
            except _ClosingError as e:
                self.counts[e.word] += 1
                _log.info("%s: the stream was closed: %s", who, e.why)
                await context.abort(e.code, e.why)

        return talk

    def _admit(self, role: str, certificate: bytes) -> tuple[Peer, Node]:
        try:
            peer = self._peer(certificate)
            node = self._node(peer)
            if node.role != role:
                raise RefusedPeer(f"{_who(peer)}: a {role} may call this, not a {peer.role}")
        except RefusedPeer as e:
            raise _ClosingError(StatusCode.PERMISSION_DENIED, str(e), "refused") from None
        return peer, node

    async def _talk(self, peer: Peer, node: Node, certificate: bytes, context: Any) -> None:
        stream = _Stream(context, self._limits.outbox, self.counts)
        await self._greet(stream, node, handshake.address(peer.org, peer.role, peer.name))
        stream.joiner.largest = self._limits.of(node.role)
        if (older := self._open.get(node)) is not None:  # it may be dead, and only we do not know yet
            older.stream.end(_ClosingError(StatusCode.ABORTED, "a newer stream took its place", "replaced"))
        self._open[node] = here = _Open(stream, certificate)
        try:
            self._connected(node)
            await stream.listen(lambda raw: self._receive(node, raw))
        finally:
            if self._open.get(node) is here:
                del self._open[node]
                self._disconnected(node)

    async def _greet(self, stream: _Stream, node: Node, dialer: str) -> None:
        if self._greeting[node] >= GREETINGS:
            raise _ClosingError(StatusCode.RESOURCE_EXHAUSTED, "too many streams that say nothing", "silent")
        self._greeting[node] += 1
        try:
            async with asyncio.timeout(self._limits.hello):
                await self._agree(stream, node, dialer)
        except TimeoutError:
            why = f"no hello within {self._limits.hello:g} s"
            raise _ClosingError(StatusCode.DEADLINE_EXCEEDED, why, "silent") from None
        finally:
            self._greeting[node] -= 1

    async def _agree(self, stream: _Stream, node: Node, dialer: str) -> None:
        hello: Hello = await stream.expect(Hello)
        common, own = self._common, self._credentials.own
        if common.agrees(hello):
            await stream.say(handshake.encode(common.agreed(own.identity, hello.nonce, dialer, time.time())))
            return
        await stream.say(handshake.encode(common.differs))
        stream.joiner.largest = LARGEST_ANSWER
        theirs: Differs = await stream.expect(Differs)
        self._differs(node, await asyncio.to_thread(common.lines, theirs))  # a plan can be long
        raise _ClosingError(StatusCode.FAILED_PRECONDITION, "another plan or protocol", "differs")


def _certificate(context: Any) -> bytes:
    found = context.auth_context().get("x509_pem_cert", ())
    return bytes(found[0]) if found else b""


def _who(peer: Peer) -> str:
    return f"{peer.role} {peer.name} of {peer.org}"


class Dialer:
    """Keeps a stream to one server, for ever, by one of its addresses after the other.

    gRPC takes the way through a proxy from https_proxy, http_proxy and no_proxy (in small letters).

    Args:
        addresses: HOST:PORT, all of the same server.
        connected, disconnected: what was sent before `connected` is lost, so a machine says everything again.
        differs: the fields of the plan in which the two sides differ, whenever it is tried again.

    Attributes:
        why: the stream is not there; "" while it is.
        ahead: seconds by which the server's clock was ahead of ours when the stream was opened; None before the first.
        counts: what was refused or dropped, by a word.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        credentials: Credentials,
        server: Target,
        common: Common,
        receive: Callable[[bytes], None],
        connected: Callable[[], None],
        disconnected: Callable[[], None],
        differs: Callable[[list[str]], None],
        limits: Limits = LIMITS,
    ) -> None:
        if not addresses:
            raise InputError("addresses", list(addresses), "a server is reached at one address at least")
        if list(credentials.authorities) != [server.org]:
            raise InputError("authorities", list(credentials.authorities), f"give that of {server.org} and no other")
        self.why = "not yet dialed"
        self.ahead: float | None = None
        self.counts: Counter[str] = Counter()
        self._addresses, self._credentials, self._server, self._common = addresses, credentials, server, common
        self._receive, self._limits = receive, limits
        self._connected, self._disconnected, self._differs = connected, disconnected, differs
        self._stream: _Stream | None = None
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
        """For the next connection; the listener says when the one that is open will not do any more."""
        self._credentials = credentials

    async def _run(self) -> None:
        loop, which, failures = asyncio.get_running_loop(), 0, 0
        while True:
            before, self._since = self.why, math.inf
            self.why = await self._dial(self._addresses[which])
            known = self.why == before and self._since == math.inf
            _log.log(logging.DEBUG if known else logging.WARNING, "no stream to %s: %s", self._server.host, self.why)
            if loop.time() - self._since >= SETTLED:
                failures = 0
            else:
                failures, which = failures + 1, (which + 1) % len(self._addresses)
            self._hurry.clear()
            pause = delay(failures // len(self._addresses), random.random())  # noqa: S311 - no secret
            with suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), pause)
                failures = 0

    def hurry(self) -> None:
        """Dial now, not when the pause is over: the other side has shown that it lives."""
        self._hurry.set()

    async def _dial(self, address: str) -> str:
        """Until the stream is lost; returns why."""
        own, limits = self._credentials, self._limits
        options = [
            *limits.options,
            ("grpc.ssl_target_name_override", self._server.host),
            ("grpc.use_local_subchannel_pool", 1),  # every dialer waits for itself
            ("grpc.enable_retries", 0),
        ]
        try:
            credentials = grpc.ssl_channel_credentials(own.roots, *own.pair)
            async with grpc.aio.secure_channel(address, credentials, options) as channel:
                call = channel.stream_stream(f"/{SERVICE}/{METHODS[own.own.role]}")()
                stream = _Stream(call, limits.outbox, self.counts)
                stream.joiner.largest = LARGEST_ANSWER
                try:
                    async with asyncio.timeout(limits.connect):
                        await self._greet(stream, own.address)
                    await self._converse(stream, own.own.role)
                except asyncio.InvalidStateError:  # it was over before we wrote; the status says why
                    raise _closed(await call.code(), await call.details()) from None
                finally:
                    call.cancel()
        except _ClosingError as e:
            self.counts[e.word] += 1
            return e.why
        except grpc.aio.AioRpcError as e:
            return _closed(e.code(), e.details()).why
        except TimeoutError:
            return f"no connection to {address} within {limits.connect:g} s"
        except Exception:  # our own fault; but a dialer dials for ever
            self.counts["failed"] += 1
            _log.exception("a stream to %s failed", address)
            return "failed on this side, see the log"
        return "the server closed the stream"

    async def _greet(self, stream: _Stream, me: str) -> None:
        nonce, common = secrets.token_bytes(32), self._common
        await stream.say(handshake.encode(common.hello(nonce)))
        match await stream.expect(Agreed, Differs):
            case Agreed() as agreed:
                if not common.proves(agreed, self._server.identity, nonce, me):
                    why = "the server does not have the identity that the plan has for it"
                    raise _ClosingError(StatusCode.UNAUTHENTICATED, why, "refused")
                self.ahead = agreed.time - time.time()
            case theirs:
                await stream.say(handshake.encode(common.differs))
                lines = await asyncio.to_thread(common.lines, theirs)
                self._differs(lines)
                with suppress(grpc.aio.AioRpcError):
                    await stream.hear()  # the listener closes, when it has read ours
                raise _ClosingError(StatusCode.FAILED_PRECONDITION, "; ".join(lines), "differs")

    async def _converse(self, stream: _Stream, role: str) -> None:
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

    >>> [delay(n, 0.0) for n in (0, 1, 5, 10_000)]
    [0.1, 0.2, 3.2, 5.0]
    """
    return min(LAST_DELAY, FIRST_DELAY * 2.0 ** min(failures, 16)) * (0.5 + 0.5 * chance)
