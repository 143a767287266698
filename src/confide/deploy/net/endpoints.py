"""The two ends of a stream, as a setup knows them: who they are, whom they believe, how much they take and how long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from confide.deploy.keys import certificates, node_keys
from confide.deploy.keys.authentication import authenticate
from confide.deploy.keys.certificates import Peer, server_host
from confide.deploy.net import handshake
from confide.deploy.net.frames import FRAME

SERVICE: Final = "confide.Talk"
METHODS: Final = {"client": "Client", "server": "Server"}  # by the role of the node that dials


class Node(NamedTuple):
    """A peer as the machines count: a client of this unit, or a neighbour."""

    role: str  # "client", "server"
    number: int


@dataclass(frozen=True, repr=False)
class Credentials:
    """What a node shows, and whom it believes.

    Attributes:
        own: certificate and keys.
        authorities: CA certificates in PEM by organisation. A dialer has exactly one, the other side's.
        revoked: serials by organisation; one without a list is refused.
    """

    own: node_keys.NodeKeys
    authorities: Mapping[str, bytes]
    revoked: Mapping[str, frozenset[int]]

    def peer(self, certificate: bytes) -> Peer:
        """Who holds this certificate; raises `RefusedPeer` for one that does not hold at this moment."""
        return authenticate(certificate, self.authorities, self.revoked, certificates.utc_now())

    @property
    def address(self) -> str:
        return handshake.address(self.own.org, self.own.role, self.own.name)

    @property
    def roots(self) -> bytes:
        return b"\n".join(self.authorities.values())

    @property
    def pair(self) -> tuple[bytes, bytes]:
        return bytes(self.own.key), self.own.certificate  # grpcio takes plain bytes only


@dataclass(frozen=True)
class Target:
    """The server that a dialer wants.

    Attributes:
        identity: the raw Ed25519 key in the plan.
        addresses: HOST:PORT, all of this server.
    """

    org: str
    name: str
    identity: bytes
    addresses: tuple[str, ...]

    @property
    def host(self) -> str:
        return server_host(self.org, self.name)


@dataclass(frozen=True)
class Limits:
    """Bounds in bytes and seconds.

    Attributes:
        from_client, from_server: the longest message of each.
        outbox: of messages that wait on one stream, beside the one that is being sent.
        hello: until the first words are through. connect: until a connection is made, first words included.
        ping, pong: a silent peer is asked after the one and given up after the other.
        connections: at a listener, from anywhere.
    """

    from_client: int = 1 << 26
    from_server: int = 1 << 26
    outbox: int = 1 << 27
    hello: float = 5.0
    connect: float = 10.0
    ping: float = 15.0
    pong: float = 10.0
    connections: int = 4096

    def of(self, role: str) -> int:
        return self.from_client if role == "client" else self.from_server

    @property
    def options(self) -> list[tuple[str, int]]:
        return [
            ("grpc.max_receive_message_length", FRAME),
            ("grpc.max_send_message_length", FRAME),
            ("grpc.compression_enabled_algorithms_bitset", 1),  # none: what is packed may unpack to a gigabyte
            ("grpc.keepalive_time_ms", round(1000 * self.ping)),
            ("grpc.keepalive_timeout_ms", round(1000 * self.pong)),
            ("grpc.http2.ping_timeout_ms", round(1000 * self.pong)),  # a minute, if only the line above is there
            ("grpc.http2.max_pings_without_data", 0),  # idle is the usual state of a client
        ]


LIMITS: Final = Limits()
