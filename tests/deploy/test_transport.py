"""Listeners and dialers over real sockets, with real certificates, and everybody who should not be let in."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from cryptography import x509
from grpc import StatusCode
from grpc_health.v1 import health_pb2, health_pb2_grpc

from confide.deploy import handshake, pki, transport
from confide.deploy.frames import FRAME, ROOM, cut
from confide.deploy.handshake import Common
from confide.deploy.transport import METHODS, SERVICE, Credentials, Dialer, Limits, Listener, Node, Target
from confide.errors import InputError
from confide.secure.keys import Identity

COMMON = Common(1, "{}")
QUICK = Limits(from_client=8 << 20, from_server=8 << 20, outbox=16 << 20, hello=0.5, connect=2.0)
LOOP = asyncio.Runner()  # one for all: gRPC's last events of a test may come when the test is over


@pytest.fixture(scope="session", autouse=True)
def loop() -> Iterator[None]:
    yield
    LOOP.close()


@dataclass
class World:
    """Two organisations that are neighbours, and one that nobody knows."""

    folder: Path
    authorities: dict[str, pki.Authority] = field(default_factory=dict)

    @classmethod
    def make(cls, folder: Path) -> World:
        world = cls(folder)
        for org, server, clients in (("alpha", "one", 3), ("beta", "two", 1), ("gamma", "three", 1)):
            world.authorities[org] = made = pki.Authority.create(folder / org)
            made.issue("server", server)
            for n in range(clients):
                made.issue("client", f"c{n}")
        world.authorities["alpha"].issue("server", "other")
        return world

    def node(self, org: str, role: str, name: str) -> pki.Node:
        return pki.Node.load(self.folder / org / f"{role}-{name}")

    def trust(self, *orgs: str) -> dict[str, bytes]:
        return {org: self.authorities[org].certificate for org in orgs}

    def revoked(self, *orgs: str) -> dict[str, frozenset[int]]:
        return {org: pki.load_revoked(self.folder / org / pki.CRL, self.authorities[org].certificate) for org in orgs}

    def listening(self, own: pki.Node) -> Credentials:
        return Credentials(own, self.trust("alpha", "beta"), self.revoked("alpha", "beta"))

    def target(self, org: str = "alpha", name: str = "one") -> Target:
        return Target(org, name, self.node(org, "server", name).identity.public)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World.make(tmp_path_factory.mktemp("world"))


def run(test: Callable[[], Coroutine[Any, Any, None]], *, errors: bool = False) -> None:
    """To the end, within a time; neither asyncio nor gRPC complains, and our own log has errors where they belong."""
    complaints: list[Any] = []

    class Complaints(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            complaints.append(record.getMessage())

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        async with asyncio.timeout(20):
            await test()

    handler = Complaints(logging.ERROR)
    logging.getLogger().addHandler(handler)
    try:
        LOOP.run(watched())
    finally:
        logging.getLogger().removeHandler(handler)
    assert bool(complaints) == errors, complaints


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(8):
        while not condition():
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
            **{"limits": QUICK} | settings,
        )

    def door(self, peer: pki.Peer) -> Node:
        if peer.role == "client" and peer.org == self.org:
            return Node("client", int(peer.name[1:]))
        if peer.role == "server" and peer.org != self.org:
            return Node("server", {"alpha": 0, "beta": 1}[peer.org])
        raise pki.RefusedPeer(f"{peer.role} {peer.name} of {peer.org}: not of this unit, and no neighbour")

    def receive(self, node: Node, raw: bytes) -> None:
        self.messages.append((node, raw))
        if self.answer:
            assert self.listener.send(node, raw)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.listener.port}"


class Dialed:
    """A dialer and what it told."""

    def __init__(self, world: World, addresses: Sequence[str], own: pki.Node | None = None, **settings: Any) -> None:
        self.messages, self.events = deque[bytes](), list[Any]()
        own = own or world.node("alpha", "client", "c0")
        target = settings.pop("target", None) or world.target()
        self.dialer = Dialer(
            addresses,
            Credentials(own, world.trust(target.org)),
            target,
            settings.pop("common", COMMON),
            self.messages.append,
            lambda: self.events.append("connected"),
            lambda: self.events.append("disconnected"),
            self.events.append,
            **{"limits": QUICK} | settings,
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


def channel(world: World, address: str, own: pki.Node | None, org: str = "alpha", name: str = "one") -> Any:
    """A dialer without our code."""
    pair = (bytes(own.key), own.certificate) if own is not None else ()
    credentials = grpc.ssl_channel_credentials(world.authorities[org].certificate, *pair)
    options = [
        ("grpc.ssl_target_name_override", pki.server_host(org, name)),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_send_message_length", -1),
    ]
    return grpc.aio.secure_channel(address, credentials, options)


@asynccontextmanager
async def calling(world: World, address: str, own: pki.Node | None = None, role: str = "client") -> AsyncIterator[Any]:
    async with channel(world, address, own or world.node("alpha", "client", "c0")) as made:
        yield made.stream_stream(f"/{SERVICE}/{METHODS[role]}")()


async def hello(call: Any) -> None:
    await call.write(next(cut(handshake.encode(COMMON.hello(bytes(32))))))
    await call.read()


async def greet(call: Any, server: Heard) -> None:
    """Until the listener knows it too."""
    before = len(server.events)
    await hello(call)
    await until(lambda: ("connected", Node("client", 0)) in server.events[before:])


async def status(call: Any) -> tuple[StatusCode, str]:
    async with asyncio.timeout(8):
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

    async def __aenter__(self) -> Wire:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.break_off()
        await asyncio.sleep(0.02)  # the pipes see it

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
        await asyncio.gather(self._pipe(reader, there[1]), self._pipe(there[0], writer))

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                await asyncio.sleep(self.delay)
                await self.whole.wait()
                self.passed += len(data)
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


# --- among friends ---


def test_a_client_and_its_server_talk(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async def talk() -> None:
        server = Heard(world)
        async with running(server):
            client = Dialed(world, [server.address])
            assert not client.dialer.send(b"too early")
            async with running(client):
                await until(lambda: client.up and server.listener.nodes)
                assert client.dialer.ahead == pytest.approx(0.0, abs=5.0)
                here = Node("client", 0)
                assert server.listener.nodes == {here}
                server.answer = True
                large = random.Random(1).randbytes(5 << 20)  # noqa: S311
                for message in (b"first", large, b"last"):
                    assert client.dialer.send(message)
                await until(lambda: len(client.messages) == 3)
                assert list(client.messages) == [b"first", large, b"last"]
                assert not server.listener.send(Node("client", 1), b"nobody")
            await until(lambda: not server.listener.nodes)
            assert server.events == [("connected", here), ("disconnected", here)]
            assert client.events == ["connected", "disconnected"]
        assert not server.listener.counts["malformed"]

    caplog.set_level(logging.DEBUG)
    run(talk)
    assert "PRIVATE" not in caplog.text
    assert "PRIVATE" not in repr(world.listening(world.node("alpha", "server", "one")))


def test_servers_speak_on_the_streams_that_they_dialed(world: World) -> None:
    async def talk() -> None:
        alpha, beta = Heard(world), Heard(world, "beta", "two")
        async with running(alpha, beta):
            to_beta = Dialed(
                world, [beta.address], world.node("alpha", "server", "one"), target=world.target("beta", "two")
            )
            to_alpha = Dialed(world, [alpha.address], world.node("beta", "server", "two"))
            async with running(to_beta, to_alpha):
                await until(lambda: to_beta.up and to_alpha.up)
                assert to_beta.dialer.send(b"to beta")
                assert to_alpha.dialer.send(b"to alpha")
                await until(lambda: alpha.messages and beta.messages)
                assert alpha.messages[0] == (Node("server", 1), b"to alpha")
                assert beta.messages[0] == (Node("server", 0), b"to beta")
                assert not alpha.listener.send(Node("server", 1), b"not on this stream")

    run(talk)


def test_a_server_that_answers_on_a_neighbours_stream_is_hung_up_on(world: World) -> None:
    async def talk() -> None:
        alpha = Heard(world)
        async with running(alpha):
            neighbour = Dialed(world, [alpha.address], world.node("beta", "server", "two"))
            async with running(neighbour):
                await until(lambda: neighbour.up)
                stream = alpha.listener._open[Node("server", 1)].stream
                assert stream.send(b"unasked")
                await until(lambda: neighbour.dialer.counts["oversized"])
                assert not neighbour.messages

    run(talk)


def test_a_lost_server_is_dialed_again(world: World) -> None:
    async def talk() -> None:
        first = Heard(world)
        async with running(first):
            client = Dialed(world, [first.address])
            client.dialer.start()
            await until(lambda: client.up)
        await until(lambda: not client.up)
        assert not client.dialer.send(b"nobody is there")
        second = Heard(world, address=first.address)
        async with running(second):
            await until(lambda: client.up)
            assert client.dialer.send(b"again")
            await until(lambda: second.messages)
            await client.dialer.stop()
        assert client.events == ["connected", "disconnected"] * 2

    run(talk)


def test_a_port_that_is_in_use_is_named(world: World) -> None:
    async def talk() -> None:
        first = Heard(world)
        async with running(first):
            second = Heard(world, address=first.address)
            with pytest.raises(InputError, match=f"port {first.listener.port} is in use"):
                await second.listener.start()
            await second.listener.stop()

    run(talk)


def test_a_newer_stream_takes_the_place_of_an_older_one(world: World) -> None:
    async def talk() -> None:
        server, node = Heard(world), Node("client", 0)
        async with running(server), calling(world, server.address) as old, calling(world, server.address) as new:
            await greet(old, server)
            await greet(new, server)
            assert await status(old) == (StatusCode.ABORTED, "a newer stream took its place")
            assert server.listener.send(node, b"to the new one")
            assert await new.read() == next(cut(b"to the new one"))
            assert server.events == [("connected", node)] * 2

    run(talk)


def test_the_oldest_messages_are_dropped_for_a_peer_that_does_not_read(world: World) -> None:
    async def talk() -> None:
        server, node = Heard(world, limits=replace(QUICK, outbox=4 << 20)), Node("client", 0)
        async with running(server), calling(world, server.address) as call:
            await greet(call, server)
            for n in range(40):
                assert server.listener.send(node, bytes([n]) * ROOM)
                await asyncio.sleep(0.002)
            dropped = server.listener.counts["dropped"]
            assert dropped > 20
            assert not server.listener.send(node, bytes((4 << 20) + 1))
            assert server.listener.counts["unsendable"] == 1
            got = [(await call.read())[-1] for _ in range(40 - dropped)]
            assert got == sorted(got)
            assert got[-3:] == [37, 38, 39]

    run(talk)


def test_a_fallback_address_is_tried(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "SETTLED", 0.1)  # that a hole took longer is no success

    async def talk() -> None:
        async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError):
                while await reader.read(1 << 16):
                    pass
            writer.close()

        hole = await asyncio.start_server(swallow, "127.0.0.1", 0)
        silent = f"127.0.0.1:{hole.sockets[0].getsockname()[1]}"
        server = Heard(world)
        async with running(server):
            limits = replace(QUICK, connect=0.5)
            client = Dialed(world, ["127.0.0.1:1", silent, server.address], limits=limits)
            async with running(client):
                await until(lambda: client.up)
        hole.close()

    run(talk)


def test_one_way_is_cut_and_healed(world: World) -> None:
    async def talk() -> None:
        alpha, beta = Heard(world), Heard(world, "beta", "two")
        async with running(alpha, beta), Wire(beta.address) as one, Wire(alpha.address) as two:
            one.delay = 0.01
            own, target = world.node("alpha", "server", "one"), world.target("beta", "two")
            to_beta = Dialed(world, [one.address], own, target=target)
            to_alpha = Dialed(world, [two.address], world.node("beta", "server", "two"))
            async with running(to_beta, to_alpha):
                await until(lambda: to_beta.up and to_alpha.up)
                one.whole.clear()  # nothing passes, and nobody knows
                assert to_beta.dialer.send(b"held")
                assert to_alpha.dialer.send(b"through")
                await until(lambda: alpha.messages)
                await asyncio.sleep(0.1)
                assert not beta.messages
                one.whole.set()
                await until(lambda: beta.messages)
                one.break_off()
                await until(lambda: not to_beta.up)
                assert to_alpha.up
                await until(lambda: to_beta.up and to_beta.dialer.send(b"again"))
                await until(lambda: len(beta.messages) == 2)
                assert to_alpha.events == ["connected"]

    run(talk)


def test_both_sides_notice_that_the_other_is_gone(world: World) -> None:
    async def talk() -> None:
        limits = replace(QUICK, ping=0.5, pong=0.5)
        server = Heard(world, limits=limits)
        async with running(server), Wire(server.address) as wire:
            client = Dialed(world, [wire.address], limits=limits)
            async with running(client):
                await until(lambda: client.up)
                await asyncio.sleep(1.5)  # idle, and nobody minds the pings
                assert client.events == ["connected"]
                wire.whole.clear()
                await until(lambda: "disconnected" in client.events and not server.listener.nodes)
                wire.break_off()
                wire.whole.set()
                await until(lambda: client.up)

    run(talk)


def test_the_way_goes_through_an_http_proxy(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def talk() -> None:
        asked: list[str] = []

        async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            asked.append(head.split("\r\n")[0])
            wire = Wire(head.split()[1])
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await wire._accept(reader, writer)

        door = await asyncio.start_server(proxy, "127.0.0.1", 0)
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{door.sockets[0].getsockname()[1]}")
        monkeypatch.delenv("no_proxy", raising=False)
        server = Heard(world)
        server.answer = True
        async with running(server):
            client = Dialed(world, [server.address])
            async with running(client):
                await until(lambda: client.up)
                assert client.dialer.send(b"around the corner")
                await until(lambda: client.messages)
        assert asked == [f"CONNECT {server.address} HTTP/1.1"]
        door.close()
        await asyncio.sleep(0.05)

    for name in ("grpc_proxy", "http_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    run(talk)


def test_health_is_told_to_those_who_have_a_certificate(world: World) -> None:
    async def talk() -> None:
        server = Heard(world)
        async with running(server), channel(world, server.address, world.node("beta", "client", "c0")) as made:
            stub = health_pb2_grpc.HealthStub(made)
            answer = await stub.Check(health_pb2.HealthCheckRequest())
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            with pytest.raises(grpc.aio.AioRpcError, match="ask with Check"):
                await stub.Watch(health_pb2.HealthCheckRequest()).read()

    run(talk)


# --- at the door ---


def test_a_server_has_a_name_that_no_other_node_has(world: World) -> None:
    def hosts(*who: str) -> list[str]:
        names = x509.load_pem_x509_certificate(world.node(*who).certificate).extensions
        return names.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)

    assert hosts("alpha", "server", "one") == ["localhost", "one.server.alpha.confide.internal"]
    assert hosts("alpha", "client", "c0") == []
    with pytest.raises(InputError, match="are given by the authority"):
        world.authorities["alpha"].issue("server", "thief", hosts=["One.server.alpha.confide.internal"])


async def refused(world: World, own: pki.Node | None, role: str = "client", **settings: Any) -> tuple[StatusCode, str]:
    server = Heard(world, **settings)
    async with running(server), channel(world, server.address, own) as made:
        call = made.stream_stream(f"/{SERVICE}/{METHODS[role]}")()
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await hello(call)
        found = await status(call)
        assert server.events == []
        return found


def test_no_certificate_opens_nothing(world: World) -> None:
    async def talk() -> None:
        assert (await refused(world, None))[0] is StatusCode.UNAVAILABLE
        server = Heard(world)
        async with running(server), grpc.aio.insecure_channel(server.address) as made:
            call = made.stream_stream(f"/{SERVICE}/Client")()
            assert (await status(call))[0] is StatusCode.UNAVAILABLE

    run(talk)


def test_a_certificate_of_an_unknown_authority_opens_nothing(world: World, tmp_path: Path) -> None:
    async def talk() -> None:
        assert (await refused(world, world.node("gamma", "client", "c0")))[0] is StatusCode.UNAVAILABLE
        pki.Authority.create(tmp_path / "alpha").issue("client", "c0")  # of the same name
        assert (await refused(world, pki.Node.load(tmp_path / "alpha" / "client-c0")))[0] is StatusCode.UNAVAILABLE

    run(talk)


def test_an_authority_does_not_vouch_for_another_organisation(world: World) -> None:
    real = world.node("alpha", "client", "c0")
    forger = replace(world.authorities["beta"], org="alpha")
    entry, files = forger._certify(pki.Entry("", "client", "c0", (), "", None, real.identity.public.hex(), None), 1)
    forged = replace(real, certificate=files[".crt"][0], key=pki.Secret(files[".key"][0]), serial=int(entry.serial, 16))

    async def talk() -> None:
        code, why = await refused(world, forged)
        assert code is StatusCode.PERMISSION_DENIED
        assert why == "client c0 of alpha: the authority of alpha did not sign this certificate"

    run(talk)


def test_an_expired_certificate_opens_nothing(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    past = World.make(tmp_path)
    before = pki.Authority.open(tmp_path / "alpha", clock=lambda: pki.utc_now() - timedelta(days=2))
    before.renew("c0", days=1, keep=True)

    async def talk() -> None:
        assert (await refused(past, past.node("alpha", "client", "c0")))[0] is StatusCode.UNAVAILABLE
        server = Heard(world)  # and one that expires while it is connected
        async with running(server), calling(world, server.address) as call:
            await greet(call, server)
            year = pki.utc_now() + timedelta(days=366)
            monkeypatch.setattr(pki, "utc_now", lambda: year)
            server.listener.renew(server.listener._credentials)
            code, why = await status(call)
            assert code is StatusCode.PERMISSION_DENIED
            assert "expired" in why

    run(talk)


@pytest.mark.parametrize(
    ("who", "role", "why"),
    [
        (("alpha", "client", "c0"), "server", "a server may call this, not a client"),
        (("beta", "server", "two"), "client", "a client may call this, not a server"),
        (("beta", "client", "c0"), "client", "not of this unit"),
        (("beta", "client", "c0"), "server", "not of this unit"),
        (("alpha", "server", "other"), "server", "no neighbour"),
    ],
)
def test_the_wrong_role_and_the_wrong_unit_are_refused_with_the_reason(
    world: World, who: tuple[str, str, str], role: str, why: str
) -> None:
    async def talk() -> None:
        code, details = await refused(world, world.node(*who), role)
        assert code is StatusCode.PERMISSION_DENIED
        assert why in details

    run(talk)


def test_the_server_must_be_the_one_that_was_meant(world: World) -> None:
    async def talk() -> None:
        server = Heard(world, name="other")  # of the same organisation, at the address of the one that was meant
        async with running(server):
            client = Dialed(world, [server.address])
            async with running(client):
                await until(lambda: "UNAVAILABLE" in client.dialer.why)
                assert "hostname" in client.dialer.why.lower() or "handshak" in client.dialer.why.lower()
        assert client.events == server.events == []

    run(talk)


def test_a_stolen_tls_key_does_not_make_a_server(world: World) -> None:
    thief = replace(world.node("alpha", "server", "one"), identity=Identity.of(b"t" * 32))

    async def talk() -> None:
        server = Heard(world, own=thief)
        async with running(server):
            client = Dialed(world, [server.address])
            async with running(client):
                await until(lambda: client.dialer.counts["refused"])
                assert client.dialer.why == "the server does not have the identity that the plan has for it"
        assert client.events == []

    run(talk)


def test_another_plan_and_another_protocol_are_named_on_both_sides(world: World, histories: Any) -> None:
    here, there = histories.make_plan().to_json(), histories.make_plan(rounds=7).to_json()

    async def talk() -> None:
        server = Heard(world, common=Common(1, here))
        async with running(server):
            client = Dialed(world, [server.address], common=Common(2, there))
            async with running(client):
                await until(lambda: client.events and server.events)
                await until(lambda: client.dialer.counts["differs"])
                assert client.dialer.why == "; ".join(client.events[0])
        assert server.events[0] == ("differs", Node("client", 0), ["protocol: 1 here, 2 there", "rounds: 100 != 7"])
        assert client.events[0] == ["protocol: 2 here, 1 there", "rounds: 7 != 100"]
        assert server.listener.counts["differs"] >= 1

    run(talk)


def test_a_certificate_is_rotated_and_the_old_one_revoked(tmp_path: Path) -> None:
    world = World.make(tmp_path)
    alpha = world.authorities["alpha"]

    async def serial(address: str) -> int:
        """Of the certificate that the listener shows now."""
        context = ssl.create_default_context(cadata=alpha.certificate.decode())
        context.load_cert_chain(tmp_path / "alpha/client-c1.crt", tmp_path / "alpha/client-c1.key")
        context.set_alpn_protocols(["h2"])
        _, writer = await asyncio.open_connection(*address.split(":"), ssl=context, server_hostname="localhost")
        der = writer.get_extra_info("ssl_object").getpeercert(True)
        writer.transport.abort()
        return x509.load_der_x509_certificate(der).serial_number

    async def talk() -> None:
        server = Heard(world)
        async with running(server):
            client = Dialed(world, [server.address])
            async with running(client):
                await until(lambda: client.up)
                assert await serial(server.address) == world.node("alpha", "server", "one").serial
                alpha.renew("one", keep=True)
                server.listener.renew(world.listening(world.node("alpha", "server", "one")))
                assert await serial(server.address) == world.node("alpha", "server", "one").serial
                assert await serial(server.address) == world.node("alpha", "server", "one").serial
                assert client.events == ["connected"]  # the stream lives on

                alpha.renew("c0")  # revokes the certificate that this stream was opened with
                server.listener.renew(world.listening(world.node("alpha", "server", "one")))
                await until(lambda: "the certificate was revoked" in client.dialer.why)
                await until(lambda: server.listener.counts["refused"] >= 2)  # it came again, in vain
                client.dialer.renew(Credentials(world.node("alpha", "client", "c0"), world.trust("alpha")))
                await until(lambda: client.up)

    run(talk)


# --- who knocks and misbehaves ---


@pytest.fixture
def bystander(world: World) -> Callable[[Heard], Any]:
    """A client that must not notice anything."""

    @asynccontextmanager
    async def beside(server: Heard) -> AsyncIterator[None]:
        other = Dialed(world, [server.address], world.node("alpha", "client", "c1"))
        async with running(other):
            await until(lambda: other.up)
            yield
            server.answer = True
            assert other.dialer.send(b"well")
            await until(lambda: other.messages)
            assert other.events == ["connected"]

    return beside


def test_a_stream_that_says_nothing_is_closed(world: World, bystander: Any) -> None:
    async def talk() -> None:
        server = Heard(world)
        async with (
            running(server),
            bystander(server),
            channel(world, server.address, world.node("alpha", "client", "c0")) as made,
        ):
            calls = [made.stream_stream(f"/{SERVICE}/Client")() for _ in range(6)]
            found = [(await status(call)) for call in calls]
            codes = sorted(code.name for code, _ in found)
            assert codes == ["DEADLINE_EXCEEDED"] * 4 + ["RESOURCE_EXHAUSTED"] * 2
            assert "no hello within 0.5 s" in {why for _, why in found}
            assert server.listener.counts["silent"] == 6

    run(talk)


def test_a_connection_that_says_nothing_is_closed(world: World) -> None:
    async def talk() -> None:
        server = Heard(world, limits=replace(QUICK, connect=0.5))
        async with running(server):
            reader, writer = await asyncio.open_connection(*server.address.split(":"))
            assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()

    run(talk)


def test_random_bytes_close_the_stream_and_nothing_else(world: World, bystander: Any) -> None:
    async def talk() -> None:
        server, r = Heard(world), random.Random(5)  # noqa: S311
        async with running(server), bystander(server):
            for n in range(12):
                async with calling(world, server.address) as call:
                    if n % 2:
                        await greet(call, server)
                    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                        await call.write(b"" if n < 2 else b"\0\0\1\0" + r.randbytes(r.randrange(200)))
                    assert (await status(call))[0] in (StatusCode.INVALID_ARGUMENT, StatusCode.RESOURCE_EXHAUSTED)
            assert server.listener.counts["malformed"] + server.listener.counts["oversized"] == 12
            assert not [m for m in server.messages if m[0].number == 0]

    run(talk)


def test_a_first_word_that_is_no_hello_closes_the_stream(world: World, bystander: Any) -> None:
    async def talk() -> None:
        server = Heard(world)
        async with running(server), bystander(server):
            for raw in (b"x", handshake.encode(COMMON.differs), handshake.encode(COMMON.hello(bytes(32)))[:-1]):
                async with calling(world, server.address) as call:
                    await call.write(next(cut(raw)))
                    assert (await status(call))[0] is StatusCode.INVALID_ARGUMENT

    run(talk)


def test_what_is_too_long_closes_the_stream(world: World, bystander: Any) -> None:
    async def talk() -> None:
        server = Heard(world)
        async with running(server), bystander(server):
            for raw, greeted in ((bytes(300), False), (bytes((8 << 20) + 1), True)):
                async with calling(world, server.address) as call:
                    if greeted:
                        await greet(call, server)
                    await call.write(next(cut(raw)))  # its first frame is enough
                    code, why = await status(call)
                    assert code is StatusCode.RESOURCE_EXHAUSTED
                    assert f"a message of {len(raw)} bytes" in why
            assert server.listener.counts["oversized"] == 2
            async with calling(world, server.address) as call:
                await greet(call, server)
                with suppress(grpc.aio.AioRpcError):
                    await call.write(bytes(FRAME + 1))  # gRPC's own bound
                assert (await status(call))[0] is StatusCode.RESOURCE_EXHAUSTED
            await until(lambda: Node("client", 0) not in server.listener.nodes)

    run(talk)


def test_nothing_is_unpacked(world: World, bystander: Any) -> None:
    async def talk() -> None:
        server = Heard(world)
        async with (
            running(server),
            bystander(server),
            channel(world, server.address, world.node("alpha", "client", "c0")) as made,
        ):
            for packing in (grpc.Compression.Gzip, grpc.Compression.Deflate):
                call = made.stream_stream(f"/{SERVICE}/Client")(compression=packing)
                with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    await call.write(bytes(64 << 20))  # some 60 kB on the wire
                assert (await status(call))[0] in (StatusCode.UNIMPLEMENTED, StatusCode.INTERNAL)
                assert not server.listener.counts

    run(talk)


def test_half_a_message_is_nothing(world: World, bystander: Any) -> None:
    async def talk() -> None:
        server = Heard(world)
        async with running(server), bystander(server):
            async with calling(world, server.address) as call:
                await greet(call, server)
                await call.write(next(cut(bytes(2 << 20))))
                await call.done_writing()
                assert (await status(call))[0] is StatusCode.OK
            assert not server.messages

    run(talk)


def test_a_machine_that_fails_closes_one_stream(world: World, bystander: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def talk() -> None:
        server = Heard(world)
        receive = server.listener._receive

        def fail(node: Node, raw: bytes) -> None:
            if node.number == 0:
                raise OSError("a fault of our own")
            receive(node, raw)

        server.listener._receive = fail
        async with running(server), bystander(server), calling(world, server.address) as call:
            await greet(call, server)
            await call.write(next(cut(b"secret words")))
            assert await status(call) == (StatusCode.INTERNAL, "a message could not be handled")

    run(talk, errors=True)
    assert "a fault of our own" in caplog.text  # here, not at the peer's
    assert "secret words" not in caplog.text


@asynccontextmanager
async def serving(world: World, own: pki.Node, handler: Callable[[Any, Any], Any]) -> AsyncIterator[str]:
    """A listener without our code."""
    made = grpc.aio.server(options=[("grpc.max_send_message_length", -1)])
    handlers = {"Client": grpc.stream_stream_rpc_method_handler(handler)}
    made.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    pair = (bytes(own.key), own.certificate)
    credentials = grpc.ssl_server_credentials([pair], world.authorities["alpha"].certificate, True)
    port = made.add_secure_port("127.0.0.1:0", credentials)
    await made.start()
    yield f"127.0.0.1:{port}"
    await made.stop(0.0)


def test_a_hostile_listener_does_not_disturb_a_dialer(world: World) -> None:
    """A server of the right name that answers with anything."""

    async def talk() -> None:
        answers = [random.Random(n).randbytes(n) for n in (0, 3, 100)]  # noqa: S311
        answers += [
            next(cut(b"x" * 40)),
            next(cut(handshake.encode(handshake.Differs(9, "[" * 1000)))),
            bytes(FRAME + 1),
        ]

        async def answer(_: Any, context: Any) -> None:
            await context.read()
            await context.write(answers.pop() if answers else b"")

        async with serving(world, world.node("alpha", "server", "one"), answer) as address:
            client = Dialed(world, [address] * 20)
            async with running(client):
                await until(lambda: not answers)
                await asyncio.sleep(0.2)
                assert "connected" not in client.events
                assert client.dialer.counts["malformed"] >= 3
                assert not client.dialer.counts["failed"]

    run(talk)


@pytest.mark.parametrize("when", ["at once", "before the answer", "after the answer"])
def test_whatever_status_a_listener_gives_the_dialer_goes_on(
    world: World, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "delay", lambda *_: 0.0)

    async def talk() -> None:
        given: list[StatusCode] = []
        own = world.node("alpha", "server", "one")

        async def end(_: Any, context: Any) -> None:
            given.append(list(StatusCode)[len(given) % len(StatusCode)])
            if when != "at once":
                if (frame := await context.read()) is grpc.aio.EOF:  # the dialer was stopped
                    return
                hello = cast(handshake.Hello, handshake.decode(frame[4:], handshake.Hello))
            if when == "after the answer":
                proof = COMMON.agreed(own.identity, hello.nonce, "confide://alpha/client/c0", 0.0)
                await context.write(next(cut(handshake.encode(proof))))
            context.set_code(given[-1])

        async with serving(world, own, end) as address:
            client = Dialed(world, [address])
            async with running(client):
                await until(lambda: len(given) > len(StatusCode))
            assert not client.dialer.counts["failed"]

    run(talk)


def test_a_dialer_goes_on_when_a_machine_fails(world: World) -> None:
    async def talk() -> None:
        server = Heard(world)
        async with running(server):
            client = Dialed(world, [server.address])
            client.dialer._connected = lambda: 1 // 0
            async with running(client):
                await until(lambda: client.dialer.counts["failed"] >= 2)

    run(talk, errors=True)


def test_a_dialer_is_told_whom_to_believe(world: World) -> None:
    own, target = Credentials(world.node("alpha", "client", "c0"), world.trust("alpha")), world.target("beta", "two")
    with pytest.raises(InputError, match="give that of beta and no other"):
        Dialer(["x:1"], own, target, COMMON, *[print] * 4)
    with pytest.raises(InputError, match="one address at least"):
        Dialed(world, [])
