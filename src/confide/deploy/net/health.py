"""gRPC's health service, for whoever has a certificate that holds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from grpc import StatusCode
from grpc_health.v1 import health, health_pb2_grpc

from confide.deploy.keys.certificates import Peer, RefusedPeer
from confide.deploy.net.streams import ClosingError


class Health(health.aio.HealthServicer):  # type: ignore[misc] # untyped
    """A part of the gRPC server; `peer(context)` raises `RefusedPeer` or `ClosingError` for whom it does not answer."""

    def __init__(self, server: Any, peer: Callable[[Any], Awaitable[Peer]]) -> None:
        super().__init__()
        self._peer = peer
        health_pb2_grpc.add_HealthServicer_to_server(self, server)

    async def Check(self, request: Any, context: Any) -> Any:
        try:
            await self._peer(context)
        except RefusedPeer as e:
            await context.abort(StatusCode.PERMISSION_DENIED, str(e))
        except ClosingError as e:
            await context.abort(e.code, e.why)
        return await super().Check(request, context)

    async def Watch(self, request: Any, context: Any) -> None:
        """A stream that says nothing for ever; whoever wants to know asks again."""
        await context.abort(StatusCode.UNIMPLEMENTED, "ask with Check")
