"""A probe that has no certificate learns that the process lives, and nothing else."""

from __future__ import annotations

import asyncio

import pytest

from confide.base.errors import InputError
from confide.deploy.node import liveness
from confide.deploy.node.liveness import ANSWER, PROBES, Liveness

HERE = "127.0.0.1:0"


async def ask(port: int, question: bytes = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n") -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(question)
    try:
        return await reader.read()
    except ConnectionResetError:  # it left without having read all
        return b""
    finally:
        writer.close()


def test_whoever_asks_is_told_that_it_lives() -> None:
    async def talk() -> None:
        alive = await Liveness.serve(HERE)
        for question in (b"GET / HTTP/1.1\r\n\r\n", b"GET /round HTTP/1.0\r\nHost: x\r\n\r\n", b"\x16\x03\r\n\r\n"):
            assert await ask(alive.port, question) == ANSWER
        assert b"alive" in ANSWER
        alive.close()

    asyncio.run(talk())


def test_what_is_no_question_is_not_answered_and_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "PATIENCE", 0.1)

    async def talk() -> None:
        alive = await Liveness.serve(HERE)
        assert await ask(alive.port, b"x" * 10_000) == b""
        silent = [await asyncio.open_connection("127.0.0.1", alive.port) for _ in range(2 * PROBES)]
        for reader, writer in silent:
            assert await reader.read() == b""
            writer.close()
        assert await ask(alive.port) == ANSWER
        alive.close()

    asyncio.run(talk())


def test_a_port_that_is_in_use_is_named() -> None:
    async def talk() -> None:
        alive = await Liveness.serve(HERE)
        with pytest.raises(InputError, match=f"health = .*port {alive.port} is in use"):
            await Liveness.serve(f"127.0.0.1:{alive.port}")
        alive.close()

    asyncio.run(talk())
