"""The first words on a stream: both sides have the same plan and protocol, and the listener is who it should be.

    dialer                        listener
    Hello(protocol, plan, nonce, life)
                                  Agreed(time, certificate, identity, key)      the stream is open
                                  Differs(protocol, text)            or it is not:
    Differs(protocol, text)                                          both name what differs, and the stream is closed

TLS has shown the listener the dialer's certificate, with everything that it has to be checked for. The dialer's side of
gRPC checks the authority and the name and then keeps the certificate for itself, so a revoked one would pass. Hence
`Agreed` has the certificate once more, with two signatures under the dialer's nonce: by the identity that the plan has
for the listener, so that a stolen TLS key is not enough, and by the certificate's own key, so that a thief of an old
certificate cannot show the newer one that took its place. The dialer's address is signed too: what was said to one
node is of no use against another. The listener's time is signed with it: clocks are compared, and nothing is decided
by them.

`life` is a number that a process draws once. It tells a node that dials again from a second process with its keys.
"""

from __future__ import annotations

import hashlib
import secrets
import struct
from dataclasses import dataclass as plain
from dataclasses import field
from functools import cached_property
from typing import Annotated, Final

from annotated_types import Len
from pydantic import Field
from pydantic.dataclasses import dataclass

from confide.base import wire
from confide.deploy.keys.authentication import shown_by_owner
from confide.deploy.keys.certificates import LARGEST_PEM
from confide.deploy.keys.node_keys import NodeKeys
from confide.deploy.machines.client_messages import Hash32, Number
from confide.plans.plan import Plan
from confide.secure.keys import signed_by

LARGEST_TEXT: Final = 1 << 20  # bytes of a plan that travels; a longer one is left out, "" says so
LARGEST_HELLO: Final = 256
LARGEST_ANSWER: Final = LARGEST_TEXT + 256  # a certificate is far smaller
LIFE: Final = secrets.token_bytes(16)  # of this process
SHOWN: Final = 100  # differing fields
LINE: Final = 500
Life = Annotated[bytes, Len(16, 16)]


@dataclass(frozen=True, config=wire.STRICT)
class Hello:
    protocol: Number
    plan: Hash32
    nonce: Hash32
    life: Life


@dataclass(frozen=True, config=wire.STRICT)
class Agreed:
    time: Annotated[float, Field(ge=0.0, lt=2.0**40, allow_inf_nan=False)]  # of the listener, in seconds since 1970
    certificate: Annotated[bytes, Len(1, LARGEST_PEM)]  # of the listener
    identity: Annotated[bytes, Len(64, 64)]  # two signatures: by this key of the listener,
    key: Annotated[bytes, Len(8, 80)]  # and by that of the certificate


@dataclass(frozen=True, config=wire.STRICT)
class Differs:
    protocol: Number
    plan: Annotated[str, Len(0, LARGEST_TEXT)] = Field(repr=False)


_KINDS: Final[dict[str, type]] = {kind.__name__: kind for kind in (Hello, Agreed, Differs)}


@plain(frozen=True)
class Common:
    """What both sides of a stream must have in common: the protocol's version and the plan's canonical text."""

    protocol: int
    text: str = field(repr=False)

    @cached_property
    def plan(self) -> bytes:
        """The plan's hash."""
        return hashlib.sha256(self.text.encode()).digest()

    def hello(self, nonce: bytes, life: bytes) -> Hello:
        return Hello(self.protocol, self.plan, nonce, life)

    def agrees(self, hello: Hello) -> bool:
        return (hello.protocol, hello.plan) == (self.protocol, self.plan)

    @property
    def differs(self) -> Differs:
        return Differs(self.protocol, self.text if len(self.text.encode()) <= LARGEST_TEXT else "")

    def agreed(self, own: NodeKeys, nonce: bytes, dialer: str, time: float) -> Agreed:
        said = self._statement(nonce, dialer, time, own.certificate)
        return Agreed(time, own.certificate, own.identity.sign(said), own.prove(said))

    def proves(self, agreed: Agreed, listener: bytes, nonce: bytes, dialer: str) -> bool:
        """Whether the node with this identity key and this certificate said it, to this dialer, now."""
        said = self._statement(nonce, dialer, agreed.time, agreed.certificate)
        return signed_by(listener, agreed.identity, said) and shown_by_owner(agreed.certificate, agreed.key, said)

    def _statement(self, nonce: bytes, dialer: str, time: float, certificate: bytes) -> bytes:
        shown, moment = hashlib.sha256(certificate).digest(), struct.pack("<d", time)
        said = b"confide hello", str(self.protocol).encode(), self.plan, nonce, dialer.encode(), moment, shown
        return b"\0".join(said)

    def lines(self, other: Differs) -> list[str]:
        """What differs, for people; never an exception, whatever the other side wrote."""
        found = []
        if other.protocol != self.protocol:
            found.append(f"protocol: {self.protocol} here, {other.protocol} there")
        if other.plan != self.text:
            found += self._fields(other.plan)
        return [_shown(line) for line in found] or ["plan: its hash differs, the text that was sent does not"]

    def _fields(self, text: str) -> list[str]:
        if not text:
            return ["plan: another one, too long to be sent; compare the files"]
        try:
            return Plan.from_text(self.text).diff(Plan.from_text(text))[:SHOWN]
        except Exception:  # whatever a hostile text leads to
            return ["plan: another one, which this version of confide cannot read"]


def address(org: str, role: str, name: str) -> str:
    """A node's, as its certificate has it."""
    return f"confide://{org}/{role}/{name}"


encode = wire.encode


def decode(raw: bytes, *allowed: type) -> Hello | Agreed | Differs:
    """One of the allowed kinds; raises `MalformedError`, and nothing else."""
    found: Hello | Agreed | Differs = wire.decode(
        raw, {name: kind for name, kind in _KINDS.items() if kind in allowed}, LARGEST_ANSWER
    )
    return found


def _shown(line: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in line[:LINE])
