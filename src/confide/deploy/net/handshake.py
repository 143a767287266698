"""The first words on a stream: both sides have the same plan and protocol, and the listener is who it should be.

    dialer                        listener
    Hello(protocol, plan, nonce)
                                  Agreed(time, proof)                the stream is open
                                  Differs(protocol, text)            or it is not:
    Differs(protocol, text)                                          both name what differs, and the stream is closed

TLS has shown the listener the dialer's certificate, with everything that it has to be checked for. The dialer's side of
gRPC checks the authority and the name and then keeps the certificate for itself, so a revoked one would pass. Hence the
proof: the listener signs the dialer's nonce with the identity that the plan has for it. A stolen TLS key is not enough,
and since the dialer's address is signed too, a proof that was made for one node is of no use against another. The
listener's time is signed with it: clocks are compared, and nothing is decided by them.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass as plain
from dataclasses import field
from functools import cached_property
from typing import Annotated, Final

from annotated_types import Len
from pydantic import Field
from pydantic.dataclasses import dataclass

from confide.base import wire
from confide.deploy.machines.client_messages import Hash32, Number
from confide.plans.plan import Plan
from confide.secure.keys import Identity, signed_by

LARGEST_TEXT: Final = 1 << 20  # bytes of a plan that travels; a longer one is left out, "" says so
LARGEST_HELLO: Final = 256
LARGEST_ANSWER: Final = LARGEST_TEXT + 256
SHOWN: Final = 100  # differing fields
LINE: Final = 500


@dataclass(frozen=True, config=wire.STRICT)
class Hello:
    protocol: Number
    plan: Hash32
    nonce: Hash32


@dataclass(frozen=True, config=wire.STRICT)
class Agreed:
    time: Annotated[float, Field(ge=0.0, lt=2.0**40, allow_inf_nan=False)]  # of the listener, in seconds since 1970
    proof: Annotated[bytes, Len(64, 64)]


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

    def hello(self, nonce: bytes) -> Hello:
        return Hello(self.protocol, self.plan, nonce)

    def agrees(self, hello: Hello) -> bool:
        return (hello.protocol, hello.plan) == (self.protocol, self.plan)

    @property
    def differs(self) -> Differs:
        return Differs(self.protocol, self.text if len(self.text.encode()) <= LARGEST_TEXT else "")

    def agreed(self, identity: Identity, nonce: bytes, dialer: str, time: float) -> Agreed:
        return Agreed(time, identity.sign(self._statement(nonce, dialer, time)))

    def proves(self, agreed: Agreed, listener: bytes, nonce: bytes, dialer: str) -> bool:
        """Whether the node with this identity key said it, to this dialer, now."""
        return signed_by(listener, agreed.proof, self._statement(nonce, dialer, agreed.time))

    def _statement(self, nonce: bytes, dialer: str, time: float) -> bytes:
        said = b"confide hello", str(self.protocol).encode(), self.plan, nonce, dialer.encode(), struct.pack("<d", time)
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
