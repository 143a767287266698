"""What servers say to each other: SYNC, and after a restored store the balance of an edge (docs/design/flows.md, 2).

A SYNC is made of committed state only and its facts are monotone, so that it may come late, twice or out of order.
"""

from __future__ import annotations

from typing import Annotated, Final

from annotated_types import Len
from pydantic import FailFast, Field
from pydantic.dataclasses import dataclass

from confide.base import wire
from confide.deploy.machines.evidence import Publication
from confide.secure.messages import Hash

LARGEST_WINDOW: Final = 64
LARGEST_SHOWN: Final = 4  # of the offer, the sender, the receiver, and the furthest of the others
Round = Annotated[int, Field(ge=0, lt=2**32)]
Server = Annotated[int, Field(ge=0, lt=2**16)]
Moment = Annotated[int, Field(ge=0, lt=2**63)]  # microseconds since 1970
Nonce = Annotated[int, Field(ge=0, lt=2**63)]
Open = tuple[Round, bool]  # (round, applied)
Offer = tuple[Round, bytes]
Balanced = tuple[Annotated[int, Field(ge=0, lt=2**32)], Hash]


@dataclass(frozen=True, config=wire.STRICT)
class Sync:
    plan: Annotated[Hash, Field(repr=False)]
    epoch: Round
    sender: Server
    receiver: Server
    decided: Round  # the sender's last decided round
    open: Annotated[tuple[Open, ...], Len(0, LARGEST_WINDOW), FailFast()]  # ALL open records of this edge
    offer: Annotated[Offer | None, Field(repr=False)]  # the stored bytes of an open round
    ask: bool  # an answer is wanted
    seen: Round  # the highest `decided` that the sender ever saw of the receiver
    balance: Balanced | None  # applied flows and their hash in the lower id's sign, when nothing is open
    # What servers signed: of the offer, and whatever shows that the rounds above are no invention.
    shown: Annotated[tuple[Publication, ...], Len(0, LARGEST_SHOWN), FailFast(), Field(repr=False)] = ()
    made: Moment = 0  # when, by the sender's clock; 0 where it does not say


@dataclass(frozen=True, config=wire.STRICT)
class _Message:
    plan: Annotated[Hash, Field(repr=False)]
    sender: Server
    receiver: Server


@dataclass(frozen=True, config=wire.STRICT)
class AskBalance(_Message):
    """From a server with a restored store: what is the balance of our edge, now that all older rounds are closed?"""

    decided: Round
    nonce: Nonce  # of this question; the answer repeats it
    echo: Nonce  # of the receiver's question, if it has asked as well; else 0


@dataclass(frozen=True, config=wire.STRICT)
class TellBalance(_Message):
    decided: Round  # of the question
    nonce: Nonce  # of the question
    n: Round
    total: Annotated[bytes, Field(repr=False)]  # in the sender's sign


@dataclass(frozen=True, config=wire.STRICT)
class TellEpoch(_Message):
    """A signed removal, passed on to whoever does not know it yet."""

    epoch: Annotated[bytes, Field(repr=False)]


FromServer = Sync | AskBalance | TellBalance | TellEpoch
KINDS: Final[dict[str, type[FromServer]]] = wire.kinds(FromServer)
encode = wire.encode


def decode(raw: bytes, largest: int) -> FromServer:
    return wire.decode(raw, KINDS, largest)
