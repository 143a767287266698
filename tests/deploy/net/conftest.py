"""Listeners and dialers over real sockets, with real certificates, and the means to come between them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from confide.deploy.keys import node_keys
from confide.deploy.keys.authentication import load_revoked
from confide.deploy.keys.authority import CRL, Authority
from confide.deploy.keys.certificates import Peer, RefusedPeer, server_host
from confide.deploy.net import handshake
from confide.deploy.net.dialer import Dialer
from confide.deploy.net.endpoints import METHODS, SERVICE, Credentials, Limits, Node, Target
from confide.deploy.net.frames import cut
from confide.deploy.net.handshake import Common
from confide.deploy.net.listener import Listener
from patience import LIMIT

COMMON = Common(1, "{}")
SHORT = 0.3  # seconds, for a test that waits until a limit has passed; honest peers have all the time
LIMITS = Limits(8 << 20, 8 << 20, outbox=16 << 20, hello=LIMIT, connect=LIMIT, ping=LIMIT, pong=LIMIT)
LOOP = asyncio.Runner()  # one for all: gRPC's last events of a test may come when the test is over


@dataclass
class World:
    """Two organisations that are neighbours, and one that nobody knows."""

    folder: Path
    authorities: dict[str, Authority] = field(default_factory=dict)

    @classmethod
    def make(cls, folder: Path) -> World:
        world = cls(folder)
        for org, server, clients in (("alpha", "one", 3), ("beta", "two", 1), ("gamma", "three", 1)):
            world.authorities[org] = made = Authority.create(folder / org)
            made.issue("server", server)
            for n in range(clients):
                made.issue("client", f"c{n}")
        world.authorities["alpha"].issue("server", "other")
        return world

    def node(self, org: str, role: str, name: str) -> node_keys.NodeKeys:
        return node_keys.NodeKeys.load(self.folder / org / f"{role}-{name}")

    def trust(self, *orgs: str) -> dict[str, bytes]:
        return {org: self.authorities[org].certificate for org in orgs}

    def revoked(self, *orgs: str) -> dict[str, frozenset[int]]:
        return {org: load_revoked(self.folder / org / CRL, self.authorities[org].certificate).serials for org in orgs}

    def listening(self, own: node_keys.NodeKeys) -> Credentials:
        return Credentials(own, self.trust("alpha", "beta"), self.revoked("alpha", "beta"))

    def dialing(self, own: node_keys.NodeKeys, org: str = "alpha") -> Credentials:
        return Credentials(own, self.trust(org), self.revoked(org))

    def target(self, org: str = "alpha", name: str = "one") -> Target:
        return Target(org, name, self.node(org, "server", name).identity.public, ("x:1",))


def run(test: Callable[[], Coroutine[Any, Any, None]], *, errors: bool = False) -> None:
    """To the end; neither asyncio nor gRPC complains, and our own log has errors where they belong."""
    complaints: list[Any] = []

    class Complaints(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            complaints.append(record.getMessage())

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        async with asyncio.timeout(LIMIT):
            await test()

    handler = Complaints(logging.ERROR)
    logging.getLogger().addHandler(handler)
    try:
        LOOP.run(watched())
    finally:
        logging.getLogger().removeHandler(handler)
    assert bool(complaints) == errors, complaints


async def until(condition: Callable[[], Any]) -> None:
    while not condition():  # `run` has the limit
        await asyncio.sleep(0.005)


class Heard:
    """A listener and what it told."""

    def __init__(self, world: World, org: str = "alpha", name: str = "one", **settings: Any) -> None:
        self.org, self.messages, self.events = org, deque[tuple[Node, bytes]](), list[tuple[Any, ...]]()
        self.answer = False
        own = settings.pop("own", None) or world.node(org, "server", name)
        self.listener = Listener(
            settings.pop("address", "127.0.0.1:0"),
            world.listening(own),
            settings.pop("common", COMMON),
            self.door,
            self.receive,
            lambda node: self.events.append(("connected", node)),
            lambda node: self.events.append(("disconnected", node)),
            lambda node, lines: self.events.append(("differs", node, lines)),
            lambda node, who: self.events.append(("two", node, who)),
            **{"limits": LIMITS} | settings,
        )

    def door(self, peer: Peer) -> Node:
        if peer.role == "client" and peer.org == self.org:
            return Node("client", int(peer.name[1:]))
        if peer.role == "server" and peer.org != self.org:
            return Node("server", {"alpha": 0, "beta": 1}[peer.org])
        raise RefusedPeer(f"{peer.role} {peer.name} of {peer.org}: not of this unit, and no neighbour")

    def receive(self, node: Node, raw: bytes) -> None:
        self.messages.append((node, raw))
        if self.answer:
            assert self.listener.send(node, raw)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.listener.port}"


class Dialed:
    """A dialer and what it told."""

    def __init__(
        self, world: World, addresses: Sequence[str], own: node_keys.NodeKeys | None = None, **settings: Any
    ) -> None:
        self.messages, self.events = deque[bytes](), list[Any]()
        own = own or world.node("alpha", "client", "c0")
        target = settings.pop("target", None) or world.target()
        self.dialer = Dialer(
            world.dialing(own, target.org),
            replace(target, addresses=tuple(addresses)),
            settings.pop("common", COMMON),
            self.messages.append,
            lambda: self.events.append("connected"),
            lambda: self.events.append("disconnected"),
            self.events.append,
            **{"limits": LIMITS} | settings,
        )

    @property
    def up(self) -> bool:
        return not self.dialer.why


@asynccontextmanager
async def running(*parts: Heard | Dialed) -> AsyncIterator[None]:
    try:
        for part in parts:
            if isinstance(part, Heard):
                await part.listener.start()
            else:
                part.dialer.start()
        yield
    finally:
        for part in reversed(parts):
            await (part.listener.stop(0.0) if isinstance(part, Heard) else part.dialer.stop())


def channel(world: World, address: str, own: node_keys.NodeKeys | None, org: str = "alpha", name: str = "one") -> Any:
    """A dialer without our code."""
    pair = (bytes(own.key), own.certificate) if own is not None else ()
    credentials = grpc.ssl_channel_credentials(world.authorities[org].certificate, *pair)
    options = [
        ("grpc.ssl_target_name_override", server_host(org, name)),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_send_message_length", -1),
    ]
    return grpc.aio.secure_channel(address, credentials, options)


@asynccontextmanager
async def calling(
    world: World, address: str, own: node_keys.NodeKeys | None = None, role: str = "client"
) -> AsyncIterator[Any]:
    async with channel(world, address, own or world.node("alpha", "client", "c0")) as made:
        yield made.stream_stream(f"/{SERVICE}/{METHODS[role]}")()


async def hello(call: Any, life: bytes = bytes(16)) -> None:
    await call.write(next(cut(handshake.encode(COMMON.hello(bytes(32), life)))))
    await call.read()


async def greet(call: Any, server: Heard, life: bytes = bytes(16)) -> None:
    """Until the listener knows it too."""
    before = len(server.events)
    await hello(call, life)
    await until(lambda: ("connected", Node("client", 0)) in server.events[before:])


async def status(call: Any) -> tuple[StatusCode, str]:
    with suppress(grpc.aio.AioRpcError):
        while await call.read() is not grpc.aio.EOF:
            pass
    return await call.code(), await call.details()


class Wire:
    """TCP between a dialer and a listener, that can be slow, cut (nothing passes, nobody is told) and broken."""

    def __init__(self, to: str) -> None:
        self.to, self.delay, self.passed, self.whole = to, 0.0, 0, asyncio.Event()
        self.whole.set()
        self._ends: list[asyncio.StreamWriter] = []
        self._pipes: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Wire:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self.close()

    async def close(self) -> None:
        self.break_off()
        for pipe in self._pipes:
            pipe.cancel()
        await asyncio.gather(*self._pipes, return_exceptions=True)

    def break_off(self) -> None:
        for end in self._ends:
            end.transport.abort()
        self._ends.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection(*self.to.split(":"))
        except OSError:
            writer.transport.abort()
            return
        self._ends += [writer, there[1]]
        pipes = [asyncio.create_task(self._pipe(*ends)) for ends in ((reader, there[1]), (there[0], writer))]
        self._pipes.update(pipes)
        await asyncio.wait(pipes)

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                await asyncio.sleep(self.delay)
                await self.whole.wait()
                self.passed += len(data)
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World.make(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="session")
def net() -> Iterator[SimpleNamespace]:
    yield SimpleNamespace(**globals())
    LOOP.close()
