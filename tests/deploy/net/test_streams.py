"""Listener and dialer together, over real sockets and with real certificates: what one says the other hears."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from builders import a_plan
from confide.deploy.net.endpoints import Node
from confide.deploy.net.frames import ROOM
from confide.deploy.net.handshake import Common
from exploring import more

PING = 17 + 22  # bytes on the wire, those of TLS included


def test_clocks_are_those_by_which_rounds_go(net: Any, world: Any) -> None:
    """One that was set since a node's start is not: that node's rounds go on by the one of before."""

    async def talk() -> None:
        server = net.Heard(world, clock=lambda: 1100.0)
        async with net.running(server):
            client = net.Dialed(world, [server.address], clock=lambda: 1000.0)
            async with net.running(client):
                await net.until(lambda: client.up)
                assert client.dialer.ahead == 100.0

    asyncio.run(talk())


def test_a_client_and_its_server_talk(net: Any, world: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def talk() -> None:
        server, began = net.Heard(world), time.time()
        async with net.running(server):
            client = net.Dialed(world, [server.address])
            assert not client.dialer.send(b"too early")
            async with net.running(client):
                await net.until(lambda: client.up and server.listener.nodes)
                assert began - time.time() <= client.dialer.ahead <= 0.0  # it says when it answered, here it is later
                here = Node("client", 0)
                assert server.listener.nodes == {here}
                server.answer = True
                large = random.Random(1).randbytes(5 << 20)  # noqa: S311
                for message in (b"first", large, b"last"):
                    assert client.dialer.send(message)
                await net.until(lambda: len(client.messages) == 3)
                assert list(client.messages) == [b"first", large, b"last"]
                assert not server.listener.send(Node("client", 1), b"nobody")
            await net.until(lambda: not server.listener.nodes)
            assert server.events == [("connected", here), ("disconnected", here)]
            assert client.events == ["connected", "disconnected"]
        assert not server.listener.counts["malformed"]

    caplog.set_level(logging.DEBUG)
    net.run(talk)
    assert "PRIVATE" not in caplog.text
    assert "PRIVATE" not in repr(world.listening(world.node("alpha", "server", "one")))


def test_servers_speak_on_the_streams_that_they_dialed(net: Any, world: Any) -> None:
    async def talk() -> None:
        alpha, beta = net.Heard(world), net.Heard(world, "beta", "two")
        async with net.running(alpha, beta):
            to_beta = net.Dialed(
                world, [beta.address], world.node("alpha", "server", "one"), target=world.target("beta", "two")
            )
            to_alpha = net.Dialed(world, [alpha.address], world.node("beta", "server", "two"))
            async with net.running(to_beta, to_alpha):
                await net.until(lambda: to_beta.up and to_alpha.up)
                assert to_beta.dialer.send(b"to beta")
                assert to_alpha.dialer.send(b"to alpha")
                await net.until(lambda: alpha.messages and beta.messages)
                assert alpha.messages[0] == (Node("server", 1), b"to alpha")
                assert beta.messages[0] == (Node("server", 0), b"to beta")
                assert not alpha.listener.send(Node("server", 1), b"not on this stream")

    net.run(talk)


def test_a_server_that_answers_on_a_neighbours_stream_is_hung_up_on(net: Any, world: Any) -> None:
    async def talk() -> None:
        alpha = net.Heard(world)
        async with net.running(alpha):
            neighbour = net.Dialed(world, [alpha.address], world.node("beta", "server", "two"))
            async with net.running(neighbour):
                await net.until(lambda: neighbour.up)
                stream = alpha.listener._open[Node("server", 1)].stream
                assert stream.send(b"unasked")
                await net.until(lambda: neighbour.dialer.counts["oversized"])
                assert not neighbour.messages

    net.run(talk)


def test_the_oldest_messages_are_dropped_for_a_peer_that_does_not_read(net: Any, world: Any) -> None:
    async def talk() -> None:
        server, node = net.Heard(world, limits=replace(net.LIMITS, outbox=4 << 20)), Node("client", 0)
        async with net.running(server), net.calling(world, server.address) as call:
            await net.greet(call, server)
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

    net.run(talk)


def test_one_way_is_cut_and_healed(net: Any, world: Any) -> None:
    async def talk() -> None:
        alpha, beta = net.Heard(world), net.Heard(world, "beta", "two")
        async with net.running(alpha, beta), net.Wire(beta.address) as one, net.Wire(alpha.address) as two:
            one.delay = 0.01
            own, target = world.node("alpha", "server", "one"), world.target("beta", "two")
            to_beta = net.Dialed(world, [one.address], own, target=target)
            to_alpha = net.Dialed(world, [two.address], world.node("beta", "server", "two"))
            async with net.running(to_beta, to_alpha):
                await net.until(lambda: to_beta.up and to_alpha.up)
                one.whole.clear()  # nothing passes, and nobody knows
                assert to_beta.dialer.send(b"held")
                assert to_alpha.dialer.send(b"through")
                await net.until(lambda: alpha.messages)
                assert not beta.messages
                one.whole.set()
                await net.until(lambda: beta.messages)
                one.break_off()
                await net.until(lambda: not to_beta.up)
                assert to_alpha.up
                await net.until(lambda: to_beta.up and to_beta.dialer.send(b"again"))
                await net.until(lambda: len(beta.messages) == 2)
                assert to_alpha.events == ["connected"]

    net.run(talk)


def test_pings_of_an_idle_peer_disturb_nobody(net: Any, world: Any) -> None:
    async def talk() -> None:
        limits = replace(net.LIMITS, ping=0.1)
        server = net.Heard(world, limits=limits)
        async with net.running(server), net.Wire(server.address) as wire:
            client = net.Dialed(world, [wire.address], limits=limits)
            async with net.running(client):
                await net.until(lambda: client.up and server.listener.nodes)
                enough = wire.passed + more(10, 150) * PING  # gRPC minds pings that come too soon after some seconds
                await net.until(lambda: wire.passed >= enough)
                assert client.events == ["connected"]

    net.run(talk)


def test_both_sides_notice_that_the_other_is_gone(net: Any, world: Any) -> None:
    async def talk() -> None:
        limits = replace(net.LIMITS, ping=net.SHORT, pong=net.SHORT)
        server = net.Heard(world, limits=limits)
        async with net.running(server), net.Wire(server.address) as wire:
            client = net.Dialed(world, [wire.address], limits=limits)
            async with net.running(client):
                await net.until(lambda: client.up)
                wire.whole.clear()
                await net.until(lambda: "disconnected" in client.events and not server.listener.nodes)
                wire.break_off()
                wire.whole.set()
                await net.until(lambda: client.up)

    net.run(talk)


def test_another_plan_and_another_protocol_are_named_on_both_sides(net: Any, world: Any) -> None:
    here, there = a_plan().text, a_plan(rounds=7).text

    async def talk() -> None:
        server = net.Heard(world, common=Common(1, here))
        async with net.running(server):
            client = net.Dialed(world, [server.address], common=Common(2, there))
            async with net.running(client):
                await net.until(lambda: client.events and server.events)
                await net.until(lambda: client.dialer.counts["differs"])
                assert client.dialer.why == "; ".join(client.events[0])
        assert server.events[0] == ("differs", Node("client", 0), ["protocol: 1 here, 2 there", "rounds: 100 != 7"])
        assert client.events[0] == ["protocol: 2 here, 1 there", "rounds: 7 != 100"]
        assert server.listener.counts["differs"] >= 1

    net.run(talk)


def test_a_certificate_is_rotated_and_the_old_one_revoked(net: Any, tmp_path: Path) -> None:
    world = net.World.make(tmp_path)
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
        server = net.Heard(world)
        async with net.running(server):
            client = net.Dialed(world, [server.address])
            async with net.running(client):
                await net.until(lambda: client.up)
                assert await serial(server.address) == world.node("alpha", "server", "one").serial
                alpha.renew("one", keep=True)
                server.listener.renew(world.listening(world.node("alpha", "server", "one")))
                assert await serial(server.address) == world.node("alpha", "server", "one").serial
                assert await serial(server.address) == world.node("alpha", "server", "one").serial
                assert client.events == ["connected"]  # the stream lives on

                alpha.renew("c0")  # revokes the certificate that this stream was opened with
                server.listener.renew(world.listening(world.node("alpha", "server", "one")))
                await net.until(lambda: "the certificate was revoked" in client.dialer.why)
                await net.until(lambda: server.listener.counts["refused"] >= 2)  # it came again, in vain
                client.dialer.renew(world.dialing(world.node("alpha", "client", "c0")))
                await net.until(lambda: client.up)

    net.run(talk)
