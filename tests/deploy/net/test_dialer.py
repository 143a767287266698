"""A dialer finds the server that was meant, by whatever way, and no listener makes it give up."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from cryptography import x509
from grpc import StatusCode

from confide.base.errors import InputError
from confide.deploy.keys import certificates
from confide.deploy.keys.node_keys import NodeKeys
from confide.deploy.net import dialer, handshake
from confide.deploy.net.dialer import Dialer
from confide.deploy.net.endpoints import SERVICE
from confide.deploy.net.frames import FRAME, cut
from confide.deploy.net.ways import way
from confide.secure.keys import Identity
from ports import own_ports


def test_a_lost_server_is_dialed_again(net: Any, world: Any) -> None:
    async def talk() -> None:
        address = f"127.0.0.1:{own_ports(1)[0]}"
        first = net.Heard(world, address=address)
        async with net.running(first):
            client = net.Dialed(world, [address])
            client.dialer.start()
            await net.until(lambda: client.up)
        await net.until(lambda: not client.up)
        assert not client.dialer.send(b"nobody is there")
        second = net.Heard(world, address=address)
        async with net.running(second):
            await net.until(lambda: client.up)
            assert client.dialer.send(b"again")
            await net.until(lambda: second.messages)
            await client.dialer.stop()
        assert client.events == ["connected", "disconnected"] * 2

    net.run(talk)


def test_a_fallback_address_is_tried(net: Any, world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialer, "SETTLED", 0.1)  # that a hole took longer is no success

    async def talk() -> None:
        async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError):
                while await reader.read(1 << 16):
                    pass
            writer.close()

        hole = await asyncio.start_server(swallow, "127.0.0.1", 0)
        silent = f"127.0.0.1:{hole.sockets[0].getsockname()[1]}"
        server = net.Heard(world)
        async with net.running(server):
            limits = replace(net.LIMITS, connect=net.SHORT)
            client = net.Dialed(world, ["127.0.0.1:1", silent, server.address], limits=limits)
            async with net.running(client):
                await net.until(lambda: client.up)
        hole.close()

    net.run(talk)


def test_the_way_goes_through_an_http_proxy(net: Any, world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = net.Heard(world)

    async def talk() -> None:
        asked: list[str] = []
        wires: list[Any] = []

        async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            asked.append(head.split("\r\n")[0])
            wires.append(net.Wire(server.address))
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await wires[-1]._accept(reader, writer)

        door = await asyncio.start_server(proxy, "127.0.0.1", 0)
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{door.sockets[0].getsockname()[1]}")
        monkeypatch.delenv("no_proxy", raising=False)
        server.answer = True
        async with net.running(server):
            client = net.Dialed(world, ["beta.test:7001"])
            async with net.running(client):
                await net.until(lambda: client.up)
                assert client.dialer.send(b"around the corner")
                await net.until(lambda: client.messages)
            here = net.Dialed(world, [server.address])  # to this machine itself no proxy is asked
            async with net.running(here):
                await net.until(lambda: here.up)
        assert set(asked) == {"CONNECT beta.test:7001 HTTP/1.1"}
        door.close()
        for wire in wires:
            await wire.close()

    for name in ("grpc_proxy", "http_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    net.run(talk)


def test_why_nobody_was_reached_is_said_in_one_layer(net: Any, world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("grpc_proxy", "http_proxy", "no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://user:secret@127.0.0.1:1")

    async def talk() -> None:
        for address, why in (
            ("127.0.0.1:1", "127.0.0.1:1: nobody listens there"),
            ("[::1]:1", "[::1]:1: nobody listens there"),
            ("b.test:1", "b.test:1, through the proxy http://127.0.0.1:1 (https_proxy): nobody listens there"),
        ):
            client = net.Dialed(world, [address])
            untried = client.dialer.why
            async with net.running(client):
                await net.until(lambda client=client, untried=untried: client.dialer.why != untried)
                assert client.dialer.why == why

    net.run(talk)


@pytest.mark.parametrize(
    ("address", "environ", "proxied"),
    [
        ("beta.test:1", {"http_proxy": "http://p:1"}, True),
        ("beta.test:1", {"HTTPS_PROXY": "http://p:1"}, False),  # gRPC knows small letters only
        ("beta.test:1", {"https_proxy": "http://p:1", "no_proxy": "other, beta.test"}, False),
        ("beta.test:1", {"https_proxy": "http://p:1", "no_proxy": ".test"}, False),
        ("beta.test:1", {"https_proxy": "http://p:1", "no_proxy": "test", "no_grpc_proxy": ""}, True),
        ("10.1.2.3:1", {"https_proxy": "http://p:1", "no_proxy": "10.0.0.0/8"}, False),
        ("11.1.2.3:1", {"https_proxy": "http://p:1", "no_proxy": "10.0.0.0/8"}, True),
        ("localhost:1", {"https_proxy": "http://p:1"}, False),
        ("127.9.9.9:1", {"grpc_proxy": "http://p:1"}, False),
        ("[::1]:1", {"grpc_proxy": "http://p:1"}, False),
    ],
)
def test_which_way_is_taken(address: str, environ: dict[str, str], proxied: bool) -> None:
    assert bool(way(address, environ).proxy) == proxied


@pytest.mark.parametrize(
    ("details", "said"),
    [
        (
            "errors resolving b.test:7001: [field:hostname lookup error:address lookup failed for b.test:7001: Domain "
            "name not found]",
            "x:1: there is no such name",
        ),
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:7001: Custom verification check "
            "failed with error: UNAUTHENTICATED: Hostname Verification Check failed.",
            "x:1: what answers there has another node's certificate",
        ),
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:3128: HTTP proxy returned response "
            "code 403",
            "x:1: HTTP proxy returned response code 403",
        ),
        ("the server stops", None),
        (None, None),
    ],
)
def test_what_grpc_says(details: str | None, said: str | None) -> None:
    assert way("x:1", {}).unreached(details) == said


def test_a_server_has_a_name_that_no_other_node_has(world: Any) -> None:
    def hosts(*who: str) -> list[str]:
        names = x509.load_pem_x509_certificate(world.node(*who).certificate).extensions
        return names.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)

    assert hosts("alpha", "server", "one") == ["localhost", "one.server.alpha.confide.internal"]
    assert hosts("alpha", "client", "c0") == []
    with pytest.raises(InputError, match="are given by the authority"):
        world.authorities["alpha"].issue("server", "thief", hosts=["One.server.alpha.confide.internal"])


def test_the_server_must_be_the_one_that_was_meant(net: Any, world: Any) -> None:
    async def talk() -> None:
        server = net.Heard(world, name="other")  # of the same organisation, at the address of the one that was meant
        async with net.running(server):
            client = net.Dialed(world, [server.address])
            async with net.running(client):
                why = f"{server.address}: what answers there has another node's certificate"
                await net.until(lambda: client.dialer.why == why)
        assert client.events == server.events == []

    net.run(talk)


def test_a_stolen_tls_key_does_not_make_a_server(net: Any, world: Any) -> None:
    thief = replace(world.node("alpha", "server", "one"), identity=Identity.of(b"t" * 32))

    async def talk() -> None:
        server = net.Heard(world, own=thief)
        async with net.running(server):
            client = net.Dialed(world, [server.address])
            async with net.running(client):
                await net.until(lambda: client.dialer.counts["refused"])
                assert client.dialer.why == "the server does not have the identity that the plan has for it"
        assert client.events == []

    net.run(talk)


def test_a_server_that_was_revoked_is_left_and_not_dialed_again(net: Any, tmp_path: Path) -> None:
    world = net.World.make(tmp_path)

    async def talk() -> None:
        server = net.Heard(world)
        async with net.running(server):
            client = net.Dialed(world, [server.address])
            async with net.running(client):
                await net.until(lambda: client.up)
                world.authorities["alpha"].revoke("one")
                client.dialer.renew(world.dialing(world.node("alpha", "client", "c0")))
                await net.until(lambda: client.dialer.counts["refused"] >= 2)  # the open stream, and a new one
                assert client.dialer.why == "server one of alpha: the certificate was revoked"
                assert client.events == ["connected", "disconnected"]

    net.run(talk)


def test_a_server_whose_certificate_expires_is_left(net: Any, world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def talk() -> None:
        server = net.Heard(world)
        async with net.running(server):
            client = net.Dialed(world, [server.address])
            async with net.running(client):
                await net.until(lambda: client.up)
                year = certificates.utc_now() + timedelta(days=366)
                monkeypatch.setattr(certificates, "utc_now", lambda: year)
                client.dialer.renew(world.dialing(world.node("alpha", "client", "c0")))
                await net.until(lambda: "has expired" in client.dialer.why)

    net.run(talk)


def test_a_thief_of_a_certificate_that_was_replaced_cannot_show_the_new_one(net: Any, tmp_path: Path) -> None:
    """Whoever took all files of a node before it was renewed has its identity, but not the key that counts now."""
    world = net.World.make(tmp_path)
    stolen = world.node("alpha", "server", "one")
    world.authorities["alpha"].renew("one")
    thief = replace(stolen, certificate=world.node("alpha", "server", "one").certificate)

    async def talk() -> None:
        async def lie(_: Any, context: Any) -> None:
            hello = cast(handshake.Hello, handshake.decode(await context.read(), handshake.Hello))
            agreed = net.COMMON.agreed(thief, hello.nonce, "confide://alpha/client/c0", 0.0)
            await context.write(next(cut(handshake.encode(agreed))))
            await context.read()

        async with serving(world, stolen, lie) as address:
            client = net.Dialed(world, [address])
            async with net.running(client):
                await net.until(lambda: client.dialer.counts["refused"])
                assert client.events == []

    net.run(talk)


@asynccontextmanager
async def serving(world: Any, own: NodeKeys, handler: Callable[[Any, Any], Any]) -> AsyncIterator[str]:
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


def test_a_hostile_listener_does_not_disturb_a_dialer(net: Any, world: Any) -> None:
    """A server of the right name that answers with anything."""

    async def talk() -> None:
        answers = [random.Random(n).randbytes(n) for n in (0, 3, 100)]  # noqa: S311
        answers += [
            next(cut(b"x" * 40)),
            next(cut(handshake.encode(handshake.Differs(9, "[" * 1000)))),
            bytes(FRAME + 1),
        ]
        asked = 0

        async def answer(_: Any, context: Any) -> None:
            nonlocal asked
            await context.read()
            asked += 1
            await context.write(answers[-asked] if asked <= len(answers) else b"")

        async with serving(world, world.node("alpha", "server", "one"), answer) as address:
            client = net.Dialed(world, [address] * 20)
            async with net.running(client):
                await net.until(lambda: asked > len(answers))  # it came again after the last of them
                assert "connected" not in client.events
                assert client.dialer.counts["malformed"] >= 3
                assert not client.dialer.counts["failed"]

    net.run(talk)


@pytest.mark.parametrize("when", ["at once", "before the answer", "after the answer"])
def test_whatever_status_a_listener_gives_the_dialer_goes_on(
    net: Any, world: Any, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialer, "delay", lambda *_: 0.0)

    async def talk() -> None:
        given: list[StatusCode] = []
        own = world.node("alpha", "server", "one")

        async def end(_: Any, context: Any) -> None:
            given.append(list(StatusCode)[len(given) % len(StatusCode)])
            if when != "at once":
                if (frame := await context.read()) is grpc.aio.EOF:  # the dialer was stopped
                    return
                hello = cast(handshake.Hello, handshake.decode(frame, handshake.Hello))
            if when == "after the answer":
                proof = net.COMMON.agreed(own, hello.nonce, "confide://alpha/client/c0", 0.0)
                await context.write(next(cut(handshake.encode(proof))))
            context.set_code(given[-1])

        async with serving(world, own, end) as address:
            client = net.Dialed(world, [address])
            async with net.running(client):
                await net.until(lambda: len(given) > len(StatusCode))
            assert not client.dialer.counts["failed"]

    net.run(talk)


def test_a_dialer_goes_on_when_a_machine_fails(net: Any, world: Any) -> None:
    async def talk() -> None:
        server = net.Heard(world)
        async with net.running(server):
            client = net.Dialed(world, [server.address])
            client.dialer._connected = lambda: 1 // 0
            async with net.running(client):
                await net.until(lambda: client.dialer.counts["failed"] >= 2)

    net.run(talk, errors=True)


def test_a_dialer_is_told_whom_to_believe(net: Any, world: Any) -> None:
    own, target = world.dialing(world.node("alpha", "client", "c0")), world.target("beta", "two")
    with pytest.raises(InputError, match="give that of beta and no other"):
        Dialer(own, target, net.COMMON, *[print] * 4)
    with pytest.raises(InputError, match="one address at least"):
        net.Dialed(world, [])
