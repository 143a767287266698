"""What a unit's server and its clients say to each other. C: a client says it, S: the server.

             C                          S
enrolment    Enrol                ->    Welcome or Refusal; Welcome once more after the last round
a round                                 Invite      the model, as the server's integers
  secure     Reply(Advertise ..)  <->   Step(Roster ..)
  in clear   Update
  neither    Decline

A round may be begun again, under the next attempt, by a server that crashed before it asked for unmasking.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from annotated_types import Len, Predicate
from pydantic import Field
from pydantic.dataclasses import dataclass

from confide.base import wire

Hash32 = Annotated[bytes, Len(32, 32)]
Number = Annotated[int, Field(ge=0, lt=2**32)]  # of a unit or a client
Round = Annotated[int, Field(ge=1, lt=2**32)]
Attempt = Annotated[int, Field(ge=1, le=2**31)]
Line = Annotated[str, Len(0, 500), Predicate(str.isprintable)]  # it is shown to people
Declined = Literal["plan", "round", "model", "answered", "aborted"]
"""Why a client sits a round out: another plan, a round beyond it, a model of the wrong length (or one too many), a
round that was answered before, a server that broke the rules of the secure sum. Never its own training: that it
failed may tell of the data, so a client whose training fails sends zeros."""


@dataclass(frozen=True, config=wire.STRICT)
class Enrol:
    protocol: Number
    plan: Hash32
    unit: Number
    client: Number


@dataclass(frozen=True, config=wire.STRICT)
class _OfAttempt:
    round: Round
    attempt: Attempt


@dataclass(frozen=True, config=wire.STRICT)
class Reply(_OfAttempt):
    payload: bytes = Field(repr=False)  # a FromClient of confide.secure.messages


@dataclass(frozen=True, config=wire.STRICT)
class Update(_OfAttempt):
    words: bytes = Field(repr=False)  # int64, little endian, in the client's quanta


@dataclass(frozen=True, config=wire.STRICT)
class Decline(_OfAttempt):
    why: Declined  # a fixed word: a reason of its own could tell of the data


@dataclass(frozen=True, config=wire.STRICT)
class Welcome:
    plan: Hash32
    round: Round  # that is open, or the next
    finished: bool  # all rounds are decided: nothing is asked of clients any more


@dataclass(frozen=True, config=wire.STRICT)
class Refusal:
    why: Line


@dataclass(frozen=True, config=wire.STRICT)
class Invite:
    plan: Hash32
    round: Round
    attempt: Attempt
    model: bytes = Field(repr=False)  # int64, little endian, in the server's quanta


@dataclass(frozen=True, config=wire.STRICT)
class Step(_OfAttempt):
    payload: bytes = Field(repr=False)  # a FromServer of confide.secure.messages


FromClient = Enrol | Reply | Update | Decline
FromServer = Welcome | Refusal | Invite | Step
FROM_CLIENT: Final[dict[str, type[FromClient]]] = wire.kinds(FromClient)
FROM_SERVER: Final[dict[str, type[FromServer]]] = wire.kinds(FromServer)
encode = wire.encode


def from_client(raw: bytes, largest: int) -> FromClient:
    return wire.decode(raw, FROM_CLIENT, largest)


def from_server(raw: bytes, largest: int) -> FromServer:
    return wire.decode(raw, FROM_SERVER, largest)
