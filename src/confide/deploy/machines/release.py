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
import os
import struct
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from confide.base.errors import InputError
from confide.base.wire import MalformedError
from confide.deploy.machines import release_messages as messages
from confide.deploy.machines.epoch import Epoch
from confide.deploy.machines.exchange import Rules
from confide.deploy.machines.ports import Desk
from confide.deploy.machines.release_messages import FromRelay, Message
from confide.deploy.store.books import Books, Changes, Entry, Status, Vector, as_vector
from confide.laws.noise import SecretStream, discrete_gaussian
from confide.privacy.ledger import Cost, Event
from confide.secure import client as secure_client
from confide.secure import messages as secure_messages
from confide.secure.encoding import words_of
from confide.secure.keys import Identity
from confide.secure.release import RING_BITS
from confide.secure.release import Terms as ReleaseTerms
from confide.secure.session import RefusedError, Task, Why
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
    OTHER_RESULT = "release: another result"


class Released(NamedTuple):
    """What everybody may know."""

    attempt: int
    servers: int  # P', over whom the mean is taken
    sigma: float  # of the honest noise on the mean
    total: Vector  # of states and noise, in quanta
    mean: NDArray[np.float64]


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
        attempts: that the plan allows and the budget pays for.
        identity: the server's own.
        share: draws noise.
        patience: seconds that a relay waits: for everybody to be ready, for the sum, for the result to arrive.
        released: told the result, before its receipt is acknowledged; what is to be kept of it is to be kept there.
    """

    terms: ReleaseTerms
    cost: Callable[[int], Cost]
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

    def released(self, attempt: int, total: Vector) -> Released:
        terms = self.terms
        return Released(attempt, terms.servers, terms.sigma, total, terms.mean(words_of(total, RING_BITS)))

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
        return {p: self.desk.terms.identities[p] for p in circle.members}

    def say(self, kind: Callable[..., Message], to: int, run: bytes, *rest: Any) -> bytes:
        """Send a message; returns its bytes."""
        raw = messages.encode(kind(self.desk.rules.plan, self.desk.epoch_number, self.desk.rules.me, to, run, *rest))
        self.send(to, raw)
        return raw

    def refuse(self, why: Reason) -> None:
        self.desk.refusals[why] += 1


def not_ready(server: int, decided: int, rounds: int, finished: bool, pending: Iterable[tuple[int, int]]) -> str:
    """Why a release has to wait for this server, in words; "" if it has not to."""
    if decided < rounds:
        return f"server {server} has decided {decided} of {rounds} rounds"
    flows = defaultdict(list)
    for m, i in sorted(pending):
        flows[m].append(i)
    found = [
        f"server {server} has open flows with {m}: rounds {', '.join(map(str, open))}"
        if any(open)
        else f"server {server} awaits the balance of its edge with {m}, since its store was restored"
        for m, open in flows.items()
    ]
    if not found and not finished:
        found = [f"server {server} has not heard its neighbours since it was started"]
    return "; ".join(found)


def all_made(server: int) -> str:
    return f"server {server} has answered as many releases as its plan and budget allow"


@dataclass
class _Session:
    relay: int
    run: bytes
    attempt: int
    state: secure_client.State
    replies: dict[bytes, bytes]  # by the word's hash: the same words are answered with the same words
    heard: float


class Releaser:
    """A server's side of every attempt."""

    def __init__(self, context: Context) -> None:
        self.context, self.desk = context, context.desk
        self.results: dict[int, Released] = {}
        self._session: _Session | None = None
        self._past: deque[bytes] = deque(maxlen=PAST)

    def receive(self, now: float, message: FromRelay) -> None:
        """A message of this plan and for this server, from the server that it names."""
        c, me = self.context, self.desk.rules.me
        if isinstance(message, messages.AskReady):
            self._tell_ready(message)
        elif message.epoch != self.desk.epoch_number:
            self._decline(
                message, f"server {me} is at epoch {self.desk.epoch_number}, not {message.epoch}", for_now=True
            )
        elif why := self._never():
            self._decline(message, why)
        elif message.sender not in c.circle().members:
            c.refuse(Reason.REMOVED)
        elif isinstance(message, messages.Invite):
            self._on_invite(now, message)
        elif isinstance(message, messages.Told):
            self._on_told(now, message)
        else:
            self._on_result(message)

    @property
    def last(self) -> Kept:
        """The last attempt of which words were drawn."""
        return Kept.of(self.desk.books)

    def _never(self) -> str:
        """Why this server takes part in no release."""
        if self.desk.books.rejoined >= self.desk.rules.rounds:
            return (
                f"the store of server {self.desk.rules.me} was restored after the last round, so that it cannot know "
                "whether it took part in a release before: remove it by an epoch"
            )
        try:
            self.context.circle()
        except InputError as e:
            return f"too few servers remain: {e}"[: messages.LONGEST_WHY]
        return ""

    def _pending(self) -> list[tuple[int, int]]:
        books = self.desk.books
        adrift = [(m, 0) for m in books.neighbours if books.status[m] is Status.ADRIFT]
        return adrift + [(m, i) for m, records in books.open.items() for i in sorted(records)]

    def _tell_ready(self, ask: messages.AskReady) -> None:
        c, books, last = self.context, self.desk.books, self.last
        pending = tuple(self._pending()[: messages.LARGEST_PENDING])
        made = (last.attempt, last.epoch, last.answered, max(0, c.part.attempts - last.made))
        c.say(messages.Ready, ask.sender, ask.run, books.decided, self.desk.finished, pending, *made, self._never())

    # An attempt

    def _on_invite(self, now: float, invite: messages.Invite) -> None:
        c, s, me = self.context, self._session, self.desk.rules.me
        if s is not None and (s.relay, s.run, s.attempt) == (invite.sender, invite.run, invite.attempt):
            c.send(s.relay, s.replies[b""])
            return
        if invite.run in self._past:
            c.refuse(Reason.OVER)
            return
        # Of two relays at once the one with the lower number goes first, or each could hold half of the servers.
        if s is not None and s.relay < invite.sender and now < s.heard + c.part.patience / BUSY:
            self._decline(invite, f"server {me} is in a session of server {s.relay}", for_now=True)
            return
        why = not_ready(me, self.desk.books.decided, self.desk.rules.rounds, self.desk.finished, self._pending())
        if why:
            self._decline(invite, why[: messages.LONGEST_WHY], for_now=True)
            return
        circle = c.circle()
        if why := self._not_this(invite.attempt, circle):
            self._decline(invite, why)
            return
        words = self._words(invite.attempt, circle)
        task, member = circle.task(invite.attempt), secure_client.Member(me, c.part.identity, c.peers(circle))
        state, first = secure_client.start(task, member, words, invite.attempt - 1, c.part.entropy)
        self._session = _Session(invite.sender, invite.run, invite.attempt, state, {}, now)
        self._past.append(invite.run)
        self._reply(self._session, b"", first)

    def _not_this(self, attempt: int, circle: Circle) -> str:
        """Why this attempt is not to be joined, now or later."""
        me, last, allowed = self.desk.rules.me, self.last, self.context.part.attempts
        if attempt < last.attempt:
            return f"attempt {attempt} is over: server {me} has taken part in attempt {last.attempt}"
        if attempt == last.attempt:
            if circle.epoch != last.epoch:
                return f"attempt {attempt} was begun in epoch {last.epoch}, with other servers: begin another"
            return ""
        if last.made >= allowed:
            return all_made(me)
        if last.attempt and last.epoch == circle.epoch and not last.answered:
            return f"attempt {last.attempt} is under way: server {me} joins no other before it is made"
        if attempt > allowed + circle.epoch:  # each is one of those allowed, or was cut off by a removal
            return f"attempt {attempt} is further than {allowed} releases and {circle.epoch} removals can lead"
        return ""

    def _words(self, attempt: int, circle: Circle) -> NDArray[Any]:
        """Of an attempt: drawn and written down if it is a new one, and then always the same."""
        c, terms = self.context, circle.terms
        if attempt != self.last.attempt:
            share = c.part.share(attempt, terms.share_quanta, terms.length)
            words = words_of(self.desk.books.w, RING_BITS) + words_of(share, RING_BITS)
            self.desk.ports.at("release.drawn")
            kept = Kept(attempt, circle.epoch, self.last.made, False, words.tobytes())
            self.desk.commit(Changes(release=kept.encode()), "release")
            self.desk.ports.at("release.committed")
            self.desk.ports.log("releasing", attempt=attempt, servers=list(circle.members))
        return np.frombuffer(self.last.words, circle.task(attempt).dtype)

    def _pay(self, now: float) -> None:
        """Once for an attempt, before its unmasking answer leaves: with the others' it makes the sum."""
        desk, rules, last = self.desk, self.desk.rules, self.last
        if last.answered:
            return
        # Without a hash of the words: what leaves is masked, and nobody is to confirm a guess of them.
        cost = self.context.part.cost(desk.books.published)
        event = Event(rules.plan.hex(), "release", rules.rounds, rules.me, cost, None, int(now))
        kept = last._replace(made=last.made + 1, answered=True)
        desk.commit(Changes(entries=[Entry(event)], release=kept.encode()), "release")
        desk.ports.at("release.paid")

    def _on_told(self, now: float, told: messages.Told) -> None:
        c, s = self.context, self._session
        if s is None or (s.relay, s.run, s.attempt) != (told.sender, told.run, told.attempt):
            self._decline(told, f"server {self.desk.rules.me} has lost the session", for_now=True)
            return
        s.heard, sha = now, hashlib.sha256(told.word).digest()
        if sha in s.replies:
            c.send(s.relay, s.replies[sha])
            return
        try:
            word = secure_messages.from_server(told.word, s.state.task.largest_message)
            s.state, reply = secure_client.receive(s.state, word, s.attempt - 1)
        except MalformedError:
            c.refuse(Reason.MALFORMED)
            return
        except RefusedError:  # its part in the session is not what the relay takes it to be, as after a crash
            self._decline(told, f"server {self.desk.rules.me} has lost the session", for_now=True)
            return
        if isinstance(reply, secure_messages.Answer):
            self._pay(now)
        if reply is not None:
            self._reply(s, sha, reply)
        elif isinstance(s.state, secure_client.Aborted):
            if s.state.why is not Why.NOT_LISTED:  # with other keys than its own, as after a crash
                self.desk.ports.log("alarm", what=f"server {s.relay} relays a release wrongly: {s.state.why}")
            self._decline(told, f"server {self.desk.rules.me} left the session: {s.state.why}", for_now=True)

    def _reply(self, s: _Session, sha: bytes, word: secure_messages.FromClient) -> None:
        name = type(word).__name__.lower()
        self.desk.ports.at(f"release.{name}")
        s.replies[sha] = self.context.say(messages.Said, s.relay, s.run, s.attempt, secure_messages.encode(word))
        self.desk.ports.at(f"release.{name}.sent")

    def _decline(self, to: messages.Invite | messages.Told | messages.Result, why: str, for_now: bool = False) -> None:
        self.context.refuse(Reason.DECLINED)
        if not isinstance(to, messages.Result):
            self.context.say(messages.Refusal, to.sender, to.run, to.attempt, why, for_now)

    def _on_result(self, result: messages.Result) -> None:
        """It is public, and the relay's word: nothing here depends on it."""
        c, last, circle = self.context, self.last, self.context.circle()
        if (result.attempt, result.epoch) != (last.attempt, last.epoch) or not last.answered:
            c.refuse(Reason.RESULT)
            return
        if len(result.total) != 8 * self.desk.rules.length:
            c.refuse(Reason.MALFORMED)
            return
        found = circle.released(result.attempt, as_vector(result.total))
        known = self.results.get(result.attempt)
        if known is not None and not np.array_equal(known.total, found.total):
            self.desk.ports.log("alarm", what=f"server {result.sender} has another result of attempt {result.attempt}")
            c.refuse(Reason.OTHER_RESULT)
            return
        if known is None:
            self.desk.ports.at("release.result")
            c.part.released(found)
            self.results[result.attempt] = found
            self.desk.ports.log("released", attempt=found.attempt, servers=found.servers, sigma=found.sigma)
        if self._session is not None and self._session.run == result.run:
            self._session = None
        c.say(messages.Got, result.sender, result.run, result.attempt)
