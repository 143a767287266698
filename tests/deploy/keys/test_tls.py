"""TLS and gRPC take the certificates of our nodes, and refuse those that they should."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from confide.deploy.keys.authentication import authenticate
from confide.deploy.keys.authority import Authority
from confide.deploy.keys.certificates import utc_now
from confide.deploy.keys.node_keys import NodeKeys
from patience import LIMIT


def _context(folder: Path, prefix: str | None, trusts: str, *, server: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(folder / trusts / "ca.crt")
    context.load_verify_locations(folder / trusts / "crl.pem")
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF | ssl.VERIFY_X509_STRICT
    if prefix:
        context.load_cert_chain(folder / f"{prefix}.crt", folder / f"{prefix}.key")
    return context


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> bytes:
    """A handshake in memory; returns the client's certificate as the server sees it."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        server.wrap_bio(up, down, server_side=True),
        client.wrap_bio(down, up, server_hostname="localhost"),
    ]
    for _ in range(10):
        for end in ends:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    seen = ends[0].getpeercert(binary_form=True)
    assert seen is not None
    return seen


def test_tls_between_two_nodes(world: dict[str, Any]) -> None:
    folder = world["folder"]
    for prefix, trusts in (("alpha/client-c1", "alpha"), ("beta/server-one", "beta")):
        listening = _context(folder, "alpha/server-one", trusts, server=True)
        seen = _handshake(listening, _context(folder, prefix, "alpha", server=False))
        peer = authenticate(seen, world["authorities"], world["revoked"], utc_now())
        assert f"{peer.org}/{peer.role}-{peer.name}" == prefix


@pytest.mark.parametrize(
    ("why", "listens", "calls", "trusted_by_caller"),
    [
        ("no certificate", "alpha/server-one", None, "alpha"),
        ("another organisation's client", "alpha/server-one", "beta/client-c1", "alpha"),
        ("another organisation's server", "beta/server-one", "alpha/client-c1", "alpha"),
        ("a client that plays the server", "alpha/client-c1", "alpha/client-c1", "alpha"),
    ],
)
def test_tls_refuses(world: dict[str, Any], why: str, listens: str, calls: str | None, trusted_by_caller: str) -> None:
    folder = world["folder"]
    listening = _context(folder, listens, "alpha", server=True)
    calling = _context(folder, calls, trusted_by_caller, server=False)
    with pytest.raises(ssl.SSLError):
        _handshake(listening, calling)


def test_tls_refuses_what_is_revoked(tmp_path: Path) -> None:
    alpha = Authority.create(tmp_path / "alpha")
    alpha.issue("server", "one")
    alpha.issue("client", "c1")
    calling = _context(tmp_path, "alpha/client-c1", "alpha", server=False)
    _handshake(_context(tmp_path, "alpha/server-one", "alpha", server=True), calling)
    alpha.revoke("c1")
    with pytest.raises(ssl.SSLError, match="revoked"):
        _handshake(_context(tmp_path, "alpha/server-one", "alpha", server=True), calling)


def test_grpc_between_two_nodes(world: dict[str, Any]) -> None:
    grpc = pytest.importorskip("grpc")
    folder, authorities = world["folder"], world["authorities"]
    listens = NodeKeys.load(folder / "alpha/server-one")

    async def whoami(request: bytes, context: Any) -> bytes:
        pem = context.auth_context()["x509_pem_cert"][0]
        peer = authenticate(pem, authorities, world["revoked"], utc_now())
        return f"{peer.org}/{peer.role}-{peer.name} {peer.identity.hex()}".encode()

    async def call(port: int, prefix: str | None, trusts: str) -> str:
        caller = NodeKeys.load(folder / prefix) if prefix else None
        pair = (bytes(caller.key), caller.certificate) if caller else (None, None)
        credentials = grpc.ssl_channel_credentials(authorities[trusts], *pair)
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
            answer = await channel.unary_unary("/confide.Test/Whoami")(b"", timeout=LIMIT)
        return str(answer.decode())

    async def scene() -> None:
        server = grpc.aio.server()
        handler = {"Whoami": grpc.unary_unary_rpc_method_handler(whoami)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("confide.Test", handler),))
        roots = b"".join(authorities.values())
        credentials = grpc.ssl_server_credentials([(bytes(listens.key), listens.certificate)], roots, True)
        port = server.add_secure_port("127.0.0.1:0", credentials)
        await server.start()
        try:
            for prefix in ("alpha/client-c1", "beta/server-one"):
                identity = NodeKeys.load(folder / prefix).identity.public.hex()
                assert await call(port, prefix, "alpha") == f"{prefix} {identity}"
            for prefix, trusts in ((None, "alpha"), ("alpha/client-c1", "beta")):
                with pytest.raises(grpc.aio.AioRpcError) as e:
                    await call(port, prefix, trusts)
                assert e.value.code() == grpc.StatusCode.UNAVAILABLE
        finally:
            await server.stop(None)

    asyncio.run(scene())
