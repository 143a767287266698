"""The end that is dialed: a server lets in whom its certificates and its plan know, and keeps one stream for each."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import grpc
from grpc import StatusCode

from confide.base.errors import BusyError
from confide.deploy.keys.certificates import Peer, RefusedPeer
from confide.deploy.net import handshake
from confide.deploy.net.endpoints import LIMITS, METHODS, SERVICE, Credentials, Limits, Node
from confide.deploy.net.handshake import LARGEST_ANSWER, Common, Differs, Hello
from confide.deploy.net.lives import Lives
from confide.deploy.net.rate import Rate
from confide.deploy.net.streams import ClosingError, Stream

GREETINGS: Final = 4  # of one node at a time
LAST_CALLS: Final = 1.0  # seconds for gRPC's own tasks to end after its server has
STREAMS: Final = 16  # of one connection; an honest node has one, or two while it reconnects
RATE: Final = (32, 1.0)  # questions of the holder of one certificate: at once, and seconds until the next
HELD: Final = (64, 5.0)  # how many that come sooner are kept waiting for their refusal, and how many seconds
_log = logging.getLogger(__name__)


class _Open(NamedTuple):
    stream: Stream
    certificate: bytes


class Listener:
    """Where a server is dialed.

    Args:
        address: HOST:PORT; port 0 takes a free one, see `port`.
        door: which node a peer is that `authenticate` has accepted; raises `RefusedPeer` for one that has no
            business here. The role in its certificate decides which of the two methods it may call.
        connected: called again without `disconnected` when a newer stream takes an older one's place.
        differs: (node, lines): a peer has another plan or protocol.
        two: (node, who): two processes have this node's keys; called whenever that shows.
        clock: by which this node's rounds go.

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
        two: Callable[[Node, str], None],
        limits: Limits = LIMITS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.port = 0
        self._address, self._credentials, self._common, self._limits = address, credentials, common, limits
        self._clock = clock
        self._door, self._receive = door, receive
        self._connected, self._disconnected, self._differs, self._two = connected, disconnected, differs, two
        self._open: dict[Node, _Open] = {}
        self._lives = Lives()
        self._greeting: Counter[Node] = Counter()
        self._rate, self._held = Rate(*RATE), Counter[tuple[str, bytes]]()  # of as many as wait now
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
        from confide.deploy.net import health  # brings protobuf along, and `confide status` imports this module too

        self._health = health.Health(self._server, self._probed)
        credentials = grpc.dynamic_ssl_server_credentials(
            self._configuration(), self._fetch, require_client_authentication=True
        )
        try:
            self.port = self._server.add_secure_port(self._address, credentials)
        except RuntimeError:
            self._server, port = None, self._address.rpartition(":")[2]
            remedy = f"port {port} is in use, or the address is not this machine's; choose another"
            raise BusyError("listen", self._address, remedy) from None
        await self._server.start()

    async def stop(self, grace: float = 1.0) -> None:
        """Says so to everybody; streams that have not ended after `grace` seconds are cut."""
        if self._server is None or self._health is None:
            return
        await self._health.enter_graceful_shutdown()
        for _, (stream, _) in list(self._open.items()):
            stream.end(ClosingError(StatusCode.UNAVAILABLE, "the server stops", "stopped"))
        await self._server.stop(grace)
        # gRPC's own tasks end a moment after that; cut off by the end of the loop they would print a traceback.
        rest = {task for task in asyncio.all_tasks() if "rpc" in getattr(task.get_coro(), "__name__", "")}
        if rest:
            await asyncio.wait(rest, timeout=LAST_CALLS)

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
        before, self._credentials = self._credentials, credentials
        if (credentials.pair, credentials.roots) != (before.pair, before.roots):
            self._fresh = self._configuration()
        for node, (stream, certificate) in list(self._open.items()):
            try:
                if self._node(credentials.peer(certificate)) != node:
                    raise RefusedPeer("the certificate is no longer this node's")
            except RefusedPeer as e:
                stream.end(ClosingError(StatusCode.PERMISSION_DENIED, str(e), "refused"))

    def _configuration(self) -> Any:
        return grpc.ssl_server_certificate_configuration([self._credentials.pair], self._credentials.roots)

    def _fetch(self) -> Any:
        """Called on a thread of gRPC for every connection; None is the same as before, and costs nothing."""
        fresh, self._fresh = self._fresh, None
        return fresh

    def _node(self, peer: Peer) -> Node:
        node = self._door(peer)
        if node.role != peer.role:
            raise RefusedPeer(f"{_who(peer)}: not a {node.role}")
        return node

    def _method(self, role: str) -> Callable[[Any, Any], Awaitable[None]]:
        async def talk(_: Any, context: Any) -> None:
            who = f"a {role}"
            try:
                certificate = await self._unhurried(role, context)
                peer, node = self._admit(role, certificate)
                who = _who(peer)
                await self._talk(peer, node, certificate, context)
            except ClosingError as e:
                self.counts[e.word] += 1
                _log.info("%s: the stream was closed: %s", who, e.why)
                await context.abort(e.code, e.why)

        return talk

    async def _unhurried(self, what: str, context: Any) -> bytes:
        """The peer's certificate; who asks for it too often waits for the answer, which is no."""
        certificate, (most, seconds) = _certificate(context), HELD
        who = what, certificate
        if self._rate.allows(who):
            return certificate
        if self._held[who] < most:
            self._held[who] += 1
            try:
                await asyncio.sleep(seconds)
            finally:
                self._held -= Counter((who,))
        raise ClosingError(StatusCode.RESOURCE_EXHAUSTED, "too many streams in a short time", "hurried")

    async def _probed(self, context: Any) -> Peer:
        return self._credentials.peer(await self._unhurried("health", context))

    def _admit(self, role: str, certificate: bytes) -> tuple[Peer, Node]:
        try:
            peer = self._credentials.peer(certificate)
            node = self._node(peer)
            if node.role != role:
                raise RefusedPeer(f"{_who(peer)}: a {role} may call this, not a {peer.role}")
        except RefusedPeer as e:
            raise ClosingError(StatusCode.PERMISSION_DENIED, str(e), "refused") from None
        return peer, node

    async def _talk(self, peer: Peer, node: Node, certificate: bytes, context: Any) -> None:
        stream = Stream(context, self._limits.outbox, self.counts)
        life = await self._greet(stream, node, handshake.address(peer.org, peer.role, peer.name))
        stream.joiner.largest = self._limits.of(node.role)
        if (older := self._open.get(node)) is not None:  # it may be dead, and only we do not know yet
            older.stream.end(ClosingError(StatusCode.ABORTED, "a newer stream took its place", "replaced"))
        self._open[node] = here = _Open(stream, certificate)
        back = self._lives.back(node, life)

        def receive(raw: bytes) -> None:
            nonlocal back
            if back:  # and not only its hello, late: it has read our answer
                back = False
                self._two(node, _who(peer))
            self._receive(node, raw)

        try:
            self._connected(node)
            await stream.listen(receive)
        finally:
            if self._open.get(node) is here:
                del self._open[node]
                self._disconnected(node)

    async def _greet(self, stream: Stream, node: Node, dialer: str) -> bytes:
        if self._greeting[node] >= GREETINGS:
            raise ClosingError(StatusCode.RESOURCE_EXHAUSTED, "too many streams that say nothing", "silent")
        self._greeting[node] += 1
        try:
            async with asyncio.timeout(self._limits.hello):
                return await self._agree(stream, node, dialer)
        except TimeoutError:
            why = f"no hello within {self._limits.hello:g} s"
            raise ClosingError(StatusCode.DEADLINE_EXCEEDED, why, "silent") from None
        finally:
            self._greeting[node] -= 1

    async def _agree(self, stream: Stream, node: Node, dialer: str) -> bytes:
        """The life of the process that dials."""
        hello: Hello = await stream.expect(Hello)
        common, own = self._common, self._credentials.own
        if common.agrees(hello):
            await stream.say(handshake.encode(common.agreed(own, hello.nonce, dialer, self._clock())))
            return hello.life
        await stream.say(handshake.encode(common.differs))
        stream.joiner.largest = LARGEST_ANSWER
        theirs: Differs = await stream.expect(Differs)
        self._differs(node, await asyncio.to_thread(common.lines, theirs))  # a plan can be long
        raise ClosingError(StatusCode.FAILED_PRECONDITION, "another plan or protocol", "differs")


def _certificate(context: Any) -> bytes:
    found = context.auth_context().get("x509_pem_cert", ())
    return bytes(found[0]) if found else b""


def _who(peer: Peer) -> str:
    return f"{peer.role} {peer.name} of {peer.org}"
