"""Whether a process lives, for a probe that has no certificate: a load balancer's, a container's, a person's curl.

The answer comes from the event loop on which the node talks, so one that hangs gives none. It says nothing else: not
who this is, which plan it has or how far it is. Whoever may know that asks with a certificate (gRPC's health service),
by `confide status` or on the port for Prometheus.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Final

from confide.base.errors import BusyError
from confide.deploy.node.config import host_port

ANSWER: Final = b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 6\r\n\r\nalive\n"
LARGEST: Final = 4096  # bytes of a question
PATIENCE: Final = 5.0  # seconds for it
PROBES: Final = 16  # at a time


class Liveness:
    """Attributes: port."""

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        self.port: int = server.sockets[0].getsockname()[1]

    @classmethod
    async def serve(cls, address: str) -> Liveness:
        """Answer HTTP on HOST:PORT; port 0 takes a free one."""
        host, port = host_port("health", address, listening=True)
        waiting = asyncio.Semaphore(PROBES)

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                if not waiting.locked():
                    async with waiting, asyncio.timeout(PATIENCE):
                        await reader.readuntil(b"\r\n\r\n")
                        writer.write(ANSWER)
                        await writer.drain()
            writer.close()

        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
            return cls(await asyncio.start_server(answer, host or None, port, family=family, limit=LARGEST))
        except OSError as e:
            remedy = f"port {port} is in use, or the address is not this machine's ({e.strerror}); choose another"
            raise BusyError("health", address, remedy) from None

    def close(self) -> None:
        self._server.close()
