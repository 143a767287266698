"""What is said in a session, in order (docs/design/secure-sum.md, 1). C: a client says it, S: the server.

phase       C                S
advertise   Advertise   ->   Roster      public keys, then everybody's
share       Shares      ->   Inbox       sealed shares, then those addressed to you
mask        Masked      ->   Question    the masked update, then who is in the sum and who is not
(consent)   Consent     ->   Consents    active server only: the question, signed, then everybody's signatures
unmask      Answer                       one share for every neighbour, of one kind
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from annotated_types import Len
from pydantic import FailFast, Field
from pydantic.dataclasses import dataclass

from confide.base import wire
from confide.secure.keys import KEY_BYTES, SIGNATURE_BYTES
from confide.secure.parameters import LARGEST_COHORT
from confide.secure.shares import SHARE_BYTES

TAG_BYTES: Final = 16
SEALED_BYTES: Final = 2 * SHARE_BYTES + TAG_BYTES

Client = Annotated[int, Field(ge=0, lt=2**32)]
Hash = Annotated[bytes, Len(32, 32)]
Key = Annotated[bytes, Len(KEY_BYTES, KEY_BYTES)]
Share = Annotated[bytes, Len(SHARE_BYTES, SHARE_BYTES)]
Sealed = Annotated[bytes, Len(SEALED_BYTES, SEALED_BYTES)]
Signature = Annotated[bytes, Len(SIGNATURE_BYTES, SIGNATURE_BYTES)]
# FailFast: one error a list, not one for each of a million wrong items.
Clients = Annotated[tuple[Client, ...], Len(0, LARGEST_COHORT), FailFast()]
SealedShares = Annotated[tuple[tuple[Client, Sealed], ...], Len(0, LARGEST_COHORT), FailFast()]
OpenShares = Annotated[tuple[tuple[Client, Share], ...], Len(0, LARGEST_COHORT), FailFast()]
UNSIGNED: Final = b""  # where the server is trusted to pass keys on


class Entry(NamedTuple):
    """A client's keys for one session."""

    client: Client
    mask_key: Key
    channel_key: Key
    signature: Annotated[bytes, Len(0, SIGNATURE_BYTES)]


@dataclass(frozen=True, config=wire.STRICT)
class Advertise:
    task: Hash
    entry: Entry


@dataclass(frozen=True, config=wire.STRICT)
class Roster:
    task: Hash
    entries: Annotated[tuple[Entry, ...], Len(0, LARGEST_COHORT), FailFast()]


@dataclass(frozen=True, config=wire.STRICT)
class _OfClient:
    session: Hash
    client: Client


@dataclass(frozen=True, config=wire.STRICT)
class Shares(_OfClient):
    commitment: Hash  # to the self-mask's seed, so that a wrong share is noticed
    sealed: SealedShares  # (to whom, ciphertext)


@dataclass(frozen=True, config=wire.STRICT)
class Inbox:
    session: Hash
    sealed: SealedShares  # (from whom, ciphertext)


@dataclass(frozen=True, config=wire.STRICT)
class Masked(_OfClient):
    words: bytes = Field(repr=False)


@dataclass(frozen=True, config=wire.STRICT)
class Question:
    session: Hash
    alive: Clients  # whose updates are in the sum
    dead: Clients  # who shared but sent no update


@dataclass(frozen=True, config=wire.STRICT)
class Consent(_OfClient):
    signature: Signature


@dataclass(frozen=True, config=wire.STRICT)
class Consents:
    session: Hash
    signatures: Annotated[tuple[tuple[Client, Signature], ...], Len(0, LARGEST_COHORT), FailFast()]


@dataclass(frozen=True, config=wire.STRICT)
class Answer(_OfClient):
    seeds: OpenShares = Field(repr=False)  # (whose, share) of those alive
    keys: OpenShares = Field(repr=False)  # of the dead


FromClient = Advertise | Shares | Masked | Consent | Answer
FromServer = Roster | Inbox | Question | Consents
FROM_CLIENT: Final[dict[str, type[FromClient]]] = wire.kinds(FromClient)
FROM_SERVER: Final[dict[str, type[FromServer]]] = wire.kinds(FromServer)
encode = wire.encode


def from_client(raw: bytes, largest: int) -> FromClient:
    return wire.decode(raw, FROM_CLIENT, largest)


def from_server(raw: bytes, largest: int) -> FromServer:
    return wire.decode(raw, FROM_SERVER, largest)
