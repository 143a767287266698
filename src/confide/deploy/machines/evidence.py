"""What servers sign of their publications, and what that shows: how far a server is, and that it said two things.

A server signs what its message of a round is: (label, plan, server, receiver, round, sha256 of the message). Anybody
who has the plan can check that, and can pass it on. Two such signatures for one place that name different messages are
proof against their server.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Final, NamedTuple

from pydantic import Field
from pydantic.dataclasses import dataclass

from confide.base import wire
from confide.deploy.store.books import TO_NOBODY, Books, Changes, Place, Signed
from confide.secure.keys import signed_by
from confide.secure.messages import Hash, Signature

Sign = Callable[[bytes], bytes]

USE: Final = b"confide publication"


class Publication(NamedTuple):
    """As it travels: `receiver` is TO_ALL where all get the same, TO_NOBODY where a rejoin moved the server there."""

    server: Annotated[int, Field(ge=0, lt=2**16)]
    round: Annotated[int, Field(ge=0, lt=2**32)]
    receiver: Annotated[int, Field(ge=TO_NOBODY, lt=2**16)]
    sha256: Hash
    signature: Signature

    @property
    def place(self) -> Place:
        return self.server, self.round, self.receiver

    @property
    def signed(self) -> Signed:
        return Signed(self.sha256, self.signature)


@dataclass(frozen=True, config=wire.STRICT)
class Proof:
    """Of a server that signed two messages for one place."""

    plan: Hash
    one: Publication
    other: Publication

    def holds(self, identities: Sequence[bytes]) -> bool:
        """Whoever has the plan can say so."""
        both = self.one, self.other
        same = self.one.place == self.other.place and self.one.sha256 != self.other.sha256
        return same and all(holds(self.plan, identities, each) for each in both)


def decode(raw: bytes) -> Proof:
    found: Proof = wire.decode(raw, wire.kinds(Proof), 1024)
    return found


def statement(plan: bytes, place: Place, sha256: bytes) -> bytes:
    """What a server signs; of one length, so that no two places have the same bytes."""
    server, round, receiver = place
    return USE + plan + struct.pack("<IiI", server, receiver, round) + sha256


def sign(sign: Sign, plan: bytes, server: int, round: int, messages: Mapping[int, bytes]) -> dict[Place, Signed]:
    """All that a server publishes in a round, by receiver."""
    found = {}
    for receiver, message in messages.items():
        place, sha = (server, round, receiver), hashlib.sha256(message).digest()
        found[place] = Signed(sha, sign(statement(plan, place, sha)))
    return found


def holds(plan: bytes, identities: Sequence[bytes], p: Publication) -> bool:
    """Whether the plan's server of this number signed it."""
    return p.server < len(identities) and _holds(identities[p.server], p.signature, statement(plan, p.place, p.sha256))


_holds = lru_cache(1024)(signed_by)  # a message is repeated until it is applied


def furthest(places: Iterable[Place], who: int | None = None) -> int:
    """The highest round that this server, or any, is known to have signed."""
    return max((round for server, round, _ in places if who in (None, server)), default=0)


def shown(books: Books, me: int, m: int, offer: int | None) -> tuple[Publication, ...]:
    """What a neighbour is shown: the signature of the offer, and how far this server, the neighbour itself and, where
    they are further than this server, the others are. For each of them the highest round is enough.
    """
    best, found = dict[int, Place](), list[Place]()
    for place in books.signed:
        server, round, receiver = place
        if server == me and receiver >= 0 and receiver != m:
            continue
        if server == me and round == offer:
            found.append(place)
        who = server if server in (me, m) else -1
        if who not in best or round > best[who][1]:
            best[who] = place
    if -1 in best and me in best and best[-1][1] <= best[me][1]:
        del best[-1]
    return tuple(Publication(*place, *books.signed[place]) for place in dict.fromkeys((*found, *best.values())))


def kept(books: Books, me: int, window: int, new: Mapping[Place, Signed]) -> dict[Place, Signed | None]:
    """These and what goes for them: of this server and each neighbour the last W rounds stay, and all of open rounds;
    of all other servers the one furthest round. So one that is older than these does not even come.
    """
    changes: dict[Place, Signed | None] = dict(new)
    ends: dict[int, int] = {}
    for server, round, _ in (*books.signed, *new):
        who = server if server == me or server in books.open else -1
        ends[who] = max(round, ends.get(who, 0))
    for place in (*books.signed, *new):
        server, round, _ = place
        who = server if server == me or server in books.open else -1
        if who == -1:
            old = round < ends[who]
        else:
            needed = any(i == round for i, _ in books.out) if who == me else round in books.open[who]
            old = round <= ends[who] - window and not needed
        if old and place in books.signed:
            changes[place] = None
        elif old:
            del changes[place]
    return changes


def accuse(books: Books, proof: Proof) -> Changes:
    """A proof is kept for good, the first against each server."""
    server = proof.one.server
    return Changes() if server in books.proofs else Changes(proofs={server: wire.encode(proof)})
