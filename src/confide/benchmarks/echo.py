"""The floor of `confide bench deploy`: bytes to all and bytes back over gRPC and mutual TLS, and nothing else.

    python -m confide.benchmarks.echo server FOLDER CLIENTS BYTES     one line in: "ROUNDS BYTES_BACK"; one out: seconds
    python -m confide.benchmarks.echo client FOLDER NUMBER PORT

As simple as gRPC for asyncio allows: one stream a client, one message each way a round. The certificates are those of
the network that is measured.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any, Final

import grpc

SERVER, ORGANISATION = "one", "alpha"
METHOD: Final = "Echo"
CONNECT: Final = 60.0  # seconds until all clients are there
OPTIONS: Final = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def _pem(folder: Path, name: str) -> tuple[bytes, bytes, bytes]:
    """Authority, key, certificate."""
    return tuple((folder / file).read_bytes() for file in ("ca.crt", f"{name}.key", f"{name}.crt"))  # type: ignore[return-value]


async def serve(folder: Path, clients: int, size: int) -> None:
    calls: list[Any] = []
    everybody, over = asyncio.Event(), asyncio.Event()

    async def talk(_: Any, context: Any) -> None:
        calls.append(context)
        if len(calls) == clients:
            everybody.set()
        await over.wait()

    server = grpc.aio.server(options=OPTIONS)
    handlers = {METHOD: grpc.stream_stream_rpc_method_handler(talk)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(METHOD, handlers),))
    authority, key, certificate = _pem(folder, f"server-{SERVER}")
    print(server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, certificate)], authority, True)))
    sys.stdout.flush()
    await server.start()
    await asyncio.wait_for(everybody.wait(), CONNECT)
    while line := await asyncio.to_thread(sys.stdin.readline):
        rounds, back = map(int, line.split())
        message = back.to_bytes(8) + bytes(size - 8)
        taken = []
        for _ in range(rounds):
            begun = time.perf_counter()
            answers = await asyncio.gather(*(_turn(call, message) for call in calls))
            taken.append(time.perf_counter() - begun)
            assert all(len(answer) == back for answer in answers)  # noqa: S101 - or it is no floor
        print(json.dumps(taken), flush=True)
    over.set()
    await server.stop(1.0)


async def _turn(call: Any, message: bytes) -> bytes:
    await call.write(message)
    answer: bytes = await call.read()
    return answer


async def answer(folder: Path, number: int, port: int) -> None:
    authority, key, certificate = _pem(folder, f"client-c{number}")
    options = [*OPTIONS, ("grpc.ssl_target_name_override", f"{SERVER}.server.{ORGANISATION}.confide.internal")]
    credentials = grpc.ssl_channel_credentials(authority, key, certificate)
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options) as channel:
        call = channel.stream_stream(f"/{METHOD}/{METHOD}")()
        while (message := await call.read()) is not grpc.aio.EOF:
            await call.write(bytes(int.from_bytes(message[:8])))


def main(kind: str, folder: str, *numbers: str) -> None:
    run = serve if kind == "server" else answer
    asyncio.run(run(Path(folder), *map(int, numbers)))


if __name__ == "__main__":
    main(*sys.argv[1:])
