"""Whom a listener lets in, at its port and at its door; and everybody else, with the reason."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import StatusCode
from grpc_health.v1 import health_pb2, health_pb2_grpc

from confide.base.errors import InputError
from confide.deploy.keys import certificates, node_keys
from confide.deploy.keys.authority import Authority, Entry
from confide.deploy.net import dialer
from confide.deploy.net.endpoints import METHODS, SERVICE, Node
from confide.deploy.net.frames import cut
from confide.secure.keys import Secret


def test_a_port_that_is_in_use_is_named(net: Any, world: Any) -> None:
    async def talk() -> None:
        first = net.Heard(world)
        async with net.running(first):
            second = net.Heard(world, address=first.address)
            with pytest.raises(InputError, match=f"port {first.listener.port} is in use"):
                await second.listener.start()
            await second.listener.stop()

    net.run(talk)


def test_when_it_has_stopped_no_call_is_left(net: Any, world: Any) -> None:
    """One that was let in, and one that says nothing."""

    async def test() -> None:
        server = net.Heard(world)
        await server.listener.start()
        async with net.calling(world, server.address) as open_one, net.calling(world, server.address) as silent:
            await net.greet(open_one, server)
            await silent.wait_for_connection()
            await server.listener.stop(0.0)
            names = [getattr(task.get_coro(), "__name__", "") for task in asyncio.all_tasks()]
            assert not [name for name in names if "schedule_rpc" in name]

    net.run(test)


def test_a_newer_stream_takes_the_place_of_an_older_one(net: Any, world: Any) -> None:
    async def talk() -> None:
        server, node = net.Heard(world), Node("client", 0)
        async with (
            net.running(server),
            net.calling(world, server.address) as old,
            net.calling(world, server.address) as new,
        ):
            await net.greet(old, server)
            await net.greet(new, server)
            assert await net.status(old) == (StatusCode.ABORTED, "a newer stream took its place")
            assert server.listener.send(node, b"to the new one")
            assert await new.read() == next(cut(b"to the new one"))
            assert server.events == [("connected", node)] * 2

    net.run(talk)


def lives(server: Any) -> list[Any]:
    return [event for event in server.events if event[0] == "two"]


def test_two_processes_with_the_keys_of_one_node_are_told(
    net: Any, world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take the stream from each other, each dialing again; both are honest programs."""
    monkeypatch.setattr(dialer, "delay", lambda *_: 0.0)

    async def talk() -> None:
        server = net.Heard(world)
        async with net.running(server):
            both = [net.Dialed(world, [server.address], life=bytes([n]) * 16) for n in range(2)]
            async with net.running(*both):
                await net.until(lambda: [one.dialer.send(b"a client says hello") for one in both] and lives(server))
        assert lives(server)[0] == ("two", Node("client", 0), "client c0 of alpha")

    net.run(talk)


def test_reconnecting_and_starting_anew_are_no_second_process(net: Any, world: Any) -> None:
    async def talk() -> None:
        server = net.Heard(world)
        async with net.running(server), AsyncExitStack() as calls:
            for life in (b"1", b"1", b"2", b"2", b"3"):  # an older stream is still open each time
                call = await calls.enter_async_context(net.calling(world, server.address))
                await net.greet(call, server, life * 16)
                await call.write(next(cut(b"a message")))
                await net.until(lambda: server.messages)
                server.messages.clear()
            late = await calls.enter_async_context(net.calling(world, server.address))
            await net.greet(late, server, b"1" * 16)  # a hello that was on its way when its process ended
            await net.status(call)
            assert not lives(server)

    net.run(talk)


def test_health_is_told_to_those_who_have_a_certificate(net: Any, world: Any) -> None:
    async def talk() -> None:
        server = net.Heard(world)
        async with net.running(server), net.channel(world, server.address, world.node("beta", "client", "c0")) as made:
            stub = health_pb2_grpc.HealthStub(made)
            answer = await stub.Check(health_pb2.HealthCheckRequest())
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            with pytest.raises(grpc.aio.AioRpcError, match="ask with Check"):
                await stub.Watch(health_pb2.HealthCheckRequest()).read()

    net.run(talk)


async def refused(
    net: Any, world: Any, own: node_keys.NodeKeys | None, role: str = "client", **settings: Any
) -> tuple[StatusCode, str]:
    server = net.Heard(world, **settings)
    async with net.running(server), net.channel(world, server.address, own) as made:
        call = made.stream_stream(f"/{SERVICE}/{METHODS[role]}")()
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await net.hello(call)
        found = await net.status(call)
        assert server.events == []
        return found


def test_no_certificate_opens_nothing(net: Any, world: Any) -> None:
    async def talk() -> None:
        assert (await refused(net, world, None))[0] is StatusCode.UNAVAILABLE
        server = net.Heard(world)
        async with net.running(server), grpc.aio.insecure_channel(server.address) as made:
            call = made.stream_stream(f"/{SERVICE}/Client")()
            assert (await net.status(call))[0] is StatusCode.UNAVAILABLE

    net.run(talk)


def test_a_certificate_of_an_unknown_authority_opens_nothing(net: Any, world: Any, tmp_path: Path) -> None:
    async def talk() -> None:
        assert (await refused(net, world, world.node("gamma", "client", "c0")))[0] is StatusCode.UNAVAILABLE
        Authority.create(tmp_path / "alpha").issue("client", "c0")  # of the same name
        forged = node_keys.NodeKeys.load(tmp_path / "alpha" / "client-c0")
        assert (await refused(net, world, forged))[0] is StatusCode.UNAVAILABLE

    net.run(talk)


def test_an_authority_does_not_vouch_for_another_organisation(net: Any, world: Any) -> None:
    real = world.node("alpha", "client", "c0")
    forger = replace(world.authorities["beta"], org="alpha")
    entry, files = forger._certify(Entry("", "client", "c0", (), "", None, real.identity.public.hex(), None), 1)
    forged = replace(real, certificate=files[".crt"][0], key=Secret(files[".key"][0]), serial=int(entry.serial, 16))

    async def talk() -> None:
        code, why = await refused(net, world, forged)
        assert code is StatusCode.PERMISSION_DENIED
        assert why == "client c0 of alpha: the authority of alpha did not sign this certificate"

    net.run(talk)


def test_an_expired_certificate_opens_nothing(
    net: Any, world: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    past = net.World.make(tmp_path)
    before = Authority.open(tmp_path / "alpha", clock=lambda: certificates.utc_now() - timedelta(days=2))
    before.renew("c0", days=1, keep=True)

    async def talk() -> None:
        assert (await refused(net, past, past.node("alpha", "client", "c0")))[0] is StatusCode.UNAVAILABLE
        server = net.Heard(world)  # and one that expires while it is connected
        async with net.running(server), net.calling(world, server.address) as call:
            await net.greet(call, server)
            year = certificates.utc_now() + timedelta(days=366)
            monkeypatch.setattr(certificates, "utc_now", lambda: year)
            server.listener.renew(server.listener._credentials)
            code, why = await net.status(call)
            assert code is StatusCode.PERMISSION_DENIED
            assert "expired" in why

    net.run(talk)


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
    net: Any, world: Any, who: tuple[str, str, str], role: str, why: str
) -> None:
    async def talk() -> None:
        code, details = await refused(net, world, world.node(*who), role)
        assert code is StatusCode.PERMISSION_DENIED
        assert why in details

    net.run(talk)
