"""The end of learning: the mean over all servers that are left, with noise that is paid for, by a secure sum.

Any server relays: it asks whether everybody is ready, then runs a session of `secure` whose clients are the servers.
It learns the sum and nothing else; it may lie (`server="active"`), since it is one of the parties.

*Open flows are waited for*, not corrected for. A flow that entered at one end only is missing in the sum, but both
messages stay stored until both ends have it: once the link is back it settles by itself, and a list of pending flows
would be one more thing to get wrong. A server that is gone for good is removed by an epoch first, which closes its
flows; the release is then over those that remain.

*An attempt* is one draw of noise. Its words, state plus share of noise, are written down before anything of it leaves.
What leaves then is masked, and a sum needs the answers of all (quorum and threshold are the number of servers, every
key is signed): so to a server an attempt counts when its own unmasking answer leaves, and the row of the ledger that
pays for it is written, with a mark at the words, before that. A session that failed, by a crash of anybody at any
point, is followed by another of the same attempt, with the same words and fresh masks. That is free: all sessions of an
attempt give the same sum, and no question about fewer servers is answered. What must never happen is two words for one
attempt (the noise could be averaged) or one word for two sets of servers (the difference of the sums would be the word
of those who left). So the words are kept with their attempt and epoch, and older attempts are never joined again. A new
one is drawn after an answer, while the plan allows one more, or after a removal, which ends for good whatever was
begun among other servers: where it was not answered it costs nothing.
A server whose store was restored after the last round cannot know what it has sent, and takes part no more.

*With fewer servers* the noise on the sum that an adversary does not know stays as the plan has it, and so does the
price: the deviation of one server on that sum is the same, the shares are wider and fewer (`Terms.left`).
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from confide.deploy.machines import release_messages as messages
from confide.deploy.machines.epoch import Epoch
from confide.deploy.machines.exchange import Rules
from confide.deploy.machines.ports import Desk
from confide.deploy.machines.release_messages import Message
from confide.deploy.store.books import Books, Vector, as_bytes
from confide.laws.noise import discrete_gaussian
from confide.laws.secret_stream import SecretStream
from confide.privacy.ledger import Cost
from confide.secure.encoding import words_of
from confide.secure.keys import Identity
from confide.secure.release import RING_BITS
from confide.secure.release import Terms as ReleaseTerms
from confide.secure.session import Task
from confide.secure.shares import Entropy

BUSY: Final = 8  # a session keeps later relays away for this part of the patience after its last word
PAST: Final = 64  # runs of which a late invitation is recognised
Share = Callable[[int, float, int], Vector]
"""(attempt, standard deviation in quanta, length) -> a share of noise"""


class Reason(StrEnum):
    """Why a message of a release is not taken."""

    MALFORMED = "release: malformed"
    PLAN = "release: of another plan"
    NAMES = "release: not from whom it says, or not for this server"
    REMOVED = "release: from a server that was removed"
    WORD = "release: a word out of place"
    RUN = "release: for another run of a relay"
    OVER = "release: an invitation to a session that is over"
    DECLINED = "release: declined"  # without why, which has numbers that others choose
    RESULT = "release: the result of an attempt in which this server is not"
    RELAY = "release: a result from a server to which none of the answers went that make it"
    SIGNATURE = "release: a result that its relay did not sign"
    OTHER_RESULT = "release: another result"
    STRANGER = "release: receipts from a server that is no neighbour"
    RECEIPT = "release: a receipt that does not hold"


class Released(NamedTuple):
    """What everybody may know."""

    attempt: int
    servers: int  # P', over whom the mean is taken
    sigma: float  # of the honest noise on the mean
    total: Vector  # of states and noise, in quanta
    mean: NDArray[np.float64]

    @classmethod
    def of(cls, terms: ReleaseTerms, attempt: int, total: Vector) -> Self:
        """Args:
        terms: of the servers that are left.
        """
        return cls(attempt, terms.servers, terms.sigma, total, terms.mean(words_of(total, RING_BITS)))

    @property
    def sha256(self) -> str:
        """Of the sum: what operators compare."""
        return hashlib.sha256(as_bytes(self.total)).hexdigest()


def secret_share(stream: SecretStream | None = None) -> Share:
    """Shares from the operating system's randomness."""
    own = SecretStream() if stream is None else stream
    return lambda _, quanta, length: discrete_gaussian(own, quanta, length)


@dataclass(frozen=True)
class Part:
    """How a server takes part in releases.

    Attributes:
        terms: as the plan has them, for all its servers.
        cost: of an attempt, at whatever number of servers, by the publications that were paid for before.
        planned: attempts that the plan allows.  attempts: of those, what this server's budget pays for.
        identity: the server's own.
        share: draws noise.
        patience: seconds that a relay waits: for everybody to be ready, for the sum, for the result to arrive.
        released: told the result once it is in the store, from which it can be had again.
    """

    terms: ReleaseTerms
    cost: Callable[[int], Cost]
    planned: int
    attempts: int
    identity: Identity = field(repr=False)
    share: Share = field(default_factory=secret_share, repr=False)
    patience: float = 600.0
    released: Callable[[Released], None] = lambda _: None
    entropy: Entropy = os.urandom


@dataclass(frozen=True)
class Circle:
    """Who takes part: all servers that no epoch has removed."""

    plan: bytes = field(repr=False)
    round: int  # the last
    epoch: int
    members: tuple[int, ...]
    terms: ReleaseTerms  # of as many servers

    @classmethod
    def of(cls, rules: Rules, terms: ReleaseTerms, epoch: Epoch | None) -> Circle:
        """Raises `InputError` where fewer servers remain than the plan's colluders leave honest."""
        removed = () if epoch is None else epoch.removed
        members = tuple(p for p in range(terms.servers) if p not in removed)
        left = terms.left(len(members))
        return cls(rules.plan, rules.rounds, 0 if epoch is None else epoch.number, members, left)

    def task(self, attempt: int) -> Task:
        what = hashlib.sha256(struct.pack("<32sII", b"release", self.round, self.epoch)).digest()
        return self.terms.task(self.plan, attempt, what)

    @cached_property
    def largest_message(self) -> int:
        return 8192 + self.task(1).largest_message


class Kept(NamedTuple):
    """The record of the last attempt; its number is 0 if there was none. The words are secret until they are summed."""

    attempt: int = 0
    epoch: int = 0
    made: int = 0  # attempts that this server has answered, each of them paid for
    answered: bool = False  # this one is among them
    words: bytes = b""

    def encode(self) -> bytes:
        return struct.pack("<III?", *self[:4]) + self.words

    @classmethod
    def of(cls, books: Books) -> Kept:
        if not books.release:
            return cls()
        attempt, epoch, made, answered = struct.unpack_from("<III?", books.release)
        return cls(attempt, epoch, made, answered, books.release[13:])


@dataclass
class Context:
    """What a server's releaser and relay share.

    Attributes:
        send: to any server, this one among them.
    """

    desk: Desk
    part: Part
    send: Callable[[int, bytes], None]

    def circle(self) -> Circle:
        return Circle.of(self.desk.rules, self.part.terms, self.desk.epoch)

    def peers(self, circle: Circle) -> dict[int, bytes]:
        return {p: self.desk.rules.identities[p] for p in circle.members}

    def say(self, kind: Callable[..., Message], to: int, run: bytes, *rest: Any) -> bytes:
        """Send a message; returns its bytes."""
        raw = messages.encode(kind(self.desk.rules.plan, self.desk.epoch_number, self.desk.rules.me, to, run, *rest))
        self.send(to, raw)
        return raw

    def refuse(self, why: Reason) -> None:
        self.desk.refusals[why] += 1


def not_ready(
    who: Callable[[int], str],
    server: int,
    decided: int,
    rounds: int,
    finished: bool,
    pending: Iterable[tuple[int, int]],
) -> str:
    """Why a release has to wait for this server, in words; "" if it has not to."""
    if decided < rounds:
        return f"{who(server)} has decided {decided} of {rounds} rounds"
    flows = defaultdict(list)
    for m, i in sorted(pending):
        flows[m].append(i)
    found = [
        f"{who(server)} has open flows with {who(m)}: rounds {', '.join(map(str, open))}"
        if any(open)
        else f"{who(server)} awaits the balance of its edge with {who(m)}, since its store was restored"
        for m, open in flows.items()
    ]
    if not found and not finished:
        found = [f"{who(server)} has not heard its neighbours since it was started"]
    return "; ".join(found)


def all_made(who: str) -> str:
    return f"{who} has answered as many releases as its plan and budget allow"


def says(who: str, why: str) -> str:
    """What a server wrote, so that nobody takes it for our words."""
    return f"{who} says {json.dumps(why, ensure_ascii=False)}"
