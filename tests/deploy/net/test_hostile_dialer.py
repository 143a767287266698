"""Who is let in and misbehaves loses a stream, and a client beside it notices nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from confide.deploy.net import handshake, listener
from confide.deploy.net.endpoints import SERVICE, Node
from confide.deploy.net.frames import FRAME, MARK, cut
from confide.deploy.net.handshake import Common
from patience import LIMIT


@pytest.fixture
def bystander(net: Any, world: Any) -> Callable[[Any], Any]:
    """A client that must not notice anything."""

    @asynccontextmanager
    async def beside(server: Any) -> AsyncIterator[None]:
        other = net.Dialed(world, [server.address], world.node("alpha", "client", "c1"))
        async with net.running(other):
            await net.until(lambda: other.up)
            yield
            server.answer = True
            assert other.dialer.send(b"well")
            await net.until(lambda: other.messages)
            assert other.events == ["connected"]

    return beside


def test_a_stream_that_says_nothing_is_closed(net: Any, world: Any, bystander: Any) -> None:
    async def talk() -> None:
        server = net.Heard(world, limits=replace(net.LIMITS, hello=net.SHORT))
        async with net.running(server), bystander(server), net.calling(world, server.address) as call:
            assert await net.status(call) == (StatusCode.DEADLINE_EXCEEDED, f"no hello within {net.SHORT} s")

    net.run(talk)


def test_no_more_than_a_few_streams_say_nothing(net: Any, world: Any, bystander: Any) -> None:
    async def talk() -> None:
        server = net.Heard(world)
        async with (
            net.running(server),
            bystander(server),
            net.channel(world, server.address, world.node("alpha", "client", "c0")) as made,
        ):
            calls = [made.stream_stream(f"/{SERVICE}/Client")() for _ in range(6)]
            await net.until(lambda: sum(call.done() for call in calls) == 2)
            assert {await call.code() for call in calls if call.done()} == {StatusCode.RESOURCE_EXHAUSTED}
            assert server.listener.counts["silent"] == 2

    net.run(talk)


def test_a_connection_that_says_nothing_is_closed(net: Any, world: Any) -> None:
    async def talk() -> None:
        server = net.Heard(world, limits=replace(net.LIMITS, connect=net.SHORT))
        async with net.running(server):
            reader, writer = await asyncio.open_connection(*server.address.split(":"))
            assert await reader.read() == b""
            writer.close()

    net.run(talk)


def test_who_asks_too_often_waits_for_a_no_and_the_others_do_not(
    net: Any, world: Any, bystander: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To compare plans, and to make any stream, takes the listener's time: a flood would take it from everybody."""
    monkeypatch.setattr(listener, "RATE", (3, 10.0 * LIMIT))
    monkeypatch.setattr(listener, "HELD", (1, 10.0 * LIMIT))
    other = Common(2, "{}")

    async def talk() -> None:
        server = net.Heard(world)
        async with net.running(server), AsyncExitStack() as calls:
            for _ in range(3):
                call = await calls.enter_async_context(net.calling(world, server.address))
                await call.write(next(cut(handshake.encode(other.hello(bytes(32), bytes(16))))))
                await call.read()
                await call.write(next(cut(handshake.encode(other.differs))))
                assert (await net.status(call))[0] is StatusCode.FAILED_PRECONDITION
            assert [event[0] for event in server.events] == ["differs"] * 3
            made = [await calls.enter_async_context(net.calling(world, server.address)) for _ in range(2)]
            asked = [asyncio.create_task(net.status(call)) for call in made]
            (refused,), (waiting,) = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            assert refused.result() == (StatusCode.RESOURCE_EXHAUSTED, "too many streams in a short time")
            async with bystander(server):
                pass
            waiting.cancel()
        assert server.listener.counts["hurried"] == 1

    net.run(talk)


def test_random_bytes_close_the_stream_and_nothing_else(net: Any, world: Any, bystander: Any) -> None:
    async def talk() -> None:
        server, r = net.Heard(world), random.Random(5)  # noqa: S311
        async with net.running(server), bystander(server):
            for n in range(12):
                async with net.calling(world, server.address) as call:
                    if n % 2:
                        await net.greet(call, server)
                    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                        part = bytes((MARK, 0, 0, 1, 0))  # of a message of which more is to come
                        await call.write(b"" if n < 2 else part + r.randbytes(r.randrange(200)))
                    assert (await net.status(call))[0] in (StatusCode.INVALID_ARGUMENT, StatusCode.RESOURCE_EXHAUSTED)
            assert server.listener.counts["malformed"] + server.listener.counts["oversized"] == 12
            assert not [m for m in server.messages if m[0].number == 0]

    net.run(talk)


def test_a_first_word_that_is_no_hello_closes_the_stream(net: Any, world: Any, bystander: Any) -> None:
    async def talk() -> None:
        server = net.Heard(world)
        async with net.running(server), bystander(server):
            hello = handshake.encode(net.COMMON.hello(bytes(32), bytes(16)))
            for raw in (b"x", handshake.encode(net.COMMON.differs), hello[:-1]):
                async with net.calling(world, server.address) as call:
                    await call.write(next(cut(raw)))
                    assert (await net.status(call))[0] is StatusCode.INVALID_ARGUMENT

    net.run(talk)


def test_what_is_too_long_closes_the_stream(net: Any, world: Any, bystander: Any) -> None:
    async def talk() -> None:
        server = net.Heard(world)
        async with net.running(server), bystander(server):
            for raw, greeted in ((bytes(300), False), (bytes((8 << 20) + 1), True)):
                async with net.calling(world, server.address) as call:
                    if greeted:
                        await net.greet(call, server)
                    await call.write(next(cut(raw)))  # its first frame is enough
                    code, why = await net.status(call)
                    assert code is StatusCode.RESOURCE_EXHAUSTED
                    assert f"a message of {len(raw)} bytes" in why
            assert server.listener.counts["oversized"] == 2
            async with net.calling(world, server.address) as call:
                await net.greet(call, server)
                with suppress(grpc.aio.AioRpcError):
                    await call.write(bytes(FRAME + 1))  # gRPC's own bound
                assert (await net.status(call))[0] is StatusCode.RESOURCE_EXHAUSTED
            await net.until(lambda: Node("client", 0) not in server.listener.nodes)

    net.run(talk)


def test_nothing_is_unpacked(net: Any, world: Any, bystander: Any) -> None:
    async def talk() -> None:
        server = net.Heard(world)
        async with (
            net.running(server),
            bystander(server),
            net.channel(world, server.address, world.node("alpha", "client", "c0")) as made,
        ):
            for packing in (grpc.Compression.Gzip, grpc.Compression.Deflate):
                call = made.stream_stream(f"/{SERVICE}/Client")(compression=packing)
                with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    await call.write(bytes(64 << 20))  # some 60 kB on the wire
                assert (await net.status(call))[0] in (StatusCode.UNIMPLEMENTED, StatusCode.INTERNAL)
                assert not server.listener.counts

    net.run(talk)


def test_half_a_message_is_nothing(net: Any, world: Any, bystander: Any) -> None:
    async def talk() -> None:
        server = net.Heard(world)
        async with net.running(server), bystander(server):
            async with net.calling(world, server.address) as call:
                await net.greet(call, server)
                await call.write(next(cut(bytes(2 << 20))))
                await call.done_writing()
                assert (await net.status(call))[0] is StatusCode.OK
            assert not server.messages

    net.run(talk)


def test_a_machine_that_fails_closes_one_stream(
    net: Any, world: Any, bystander: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def talk() -> None:
        server = net.Heard(world)
        receive = server.listener._receive

        def fail(node: Node, raw: bytes) -> None:
            if node.number == 0:
                raise OSError("a fault of our own")
            receive(node, raw)

        server.listener._receive = fail
        async with net.running(server), bystander(server), net.calling(world, server.address) as call:
            await net.greet(call, server)
            await call.write(next(cut(b"secret words")))
            assert await net.status(call) == (StatusCode.INTERNAL, "a message could not be handled")

    net.run(talk, errors=True)
    assert "a fault of our own" in caplog.text  # here, not at the peer's
    assert "secret words" not in caplog.text
