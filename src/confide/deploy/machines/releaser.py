"""A server's side of every attempt at a release: it says how far it is, joins, draws once, pays once, and is told.

Why all of that is as it is stands in `release`.
"""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from confide.base.errors import InputError
from confide.base.wire import MalformedError
from confide.deploy.machines import release_messages as messages
from confide.deploy.machines.release import BUSY, PAST, Circle, Context, Kept, Reason, all_made, not_ready
from confide.deploy.machines.release_messages import FromRelay
from confide.deploy.machines.results import Results
from confide.deploy.store.books import Changes, Entry, Status
from confide.privacy.ledger import Event
from confide.secure import client as secure_client
from confide.secure import messages as secure_messages
from confide.secure.encoding import words_of
from confide.secure.release import RING_BITS
from confide.secure.session import RefusedError, Why


@dataclass
class _Session:
    relay: int
    run: bytes
    attempt: int
    state: secure_client.State
    replies: dict[bytes, bytes]  # by the message's hash: a repeated message gets identical bytes
    heard: float


class Releaser:
    """A server's side of every attempt."""

    def __init__(self, context: Context) -> None:
        self.context, self.desk = context, context.desk
        self.results = Results(context)
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
        adrift = [(m, 0) for m in books.neighbours if books.status[m] in (Status.ADRIFT, Status.SUSPECT)]
        return adrift + [(m, i) for m, records in books.open.items() for i in sorted(records)]

    def _tell_ready(self, ask: messages.AskReady) -> None:
        c, books, last = self.context, self.desk.books, self.last
        pending = tuple(self._pending()[: messages.LARGEST_PENDING])
        learned = (books.decided, books.published, self.desk.finished, pending)
        made = (last.attempt, last.epoch, last.answered, max(0, c.part.attempts - last.made))
        c.say(messages.Ready, ask.sender, ask.run, *learned, *made, self._never())

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
        desk, books = self.desk, self.desk.books
        why = not_ready(_number, me, books.decided, desk.rules.rounds, desk.finished, self._pending())
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
            return all_made(_number(me))
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

    def pay(self, now: float, relay: int) -> None:
        """Before an unmasking answer leaves, which makes the sum with the others': once for an attempt.

        To whom it goes is written with it: that relay is to tell the sum, and nobody else can.
        """
        desk, rules, last = self.desk, self.desk.rules, self.last
        changes = Changes()
        if desk.books.relays.get((last.attempt, relay)) != last.epoch:
            changes.relays[last.attempt, relay] = last.epoch
        if not last.answered:
            # Without a hash of the words: what leaves is masked, and nobody is to confirm a guess of them.
            cost = self.context.part.cost(desk.books.published)
            changes.entries = [Entry(Event(rules.plan.hex(), "release", rules.rounds, rules.me, cost, None, int(now)))]
            changes.release = last._replace(made=last.made + 1, answered=True).encode()
        if changes:
            desk.commit(changes, "release")
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
            self.pay(now, s.relay)
        if reply is not None:
            self._reply(s, sha, reply)
        elif isinstance(s.state, secure_client.Aborted):
            if s.state.why is not Why.NOT_LISTED:  # with other keys than its own, as after a crash
                self.desk.alarm(f"{self.desk.terms.who(s.relay)} relays a release wrongly: {s.state.why}")
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
        c, last = self.context, self.last
        if (result.attempt, result.epoch) != (last.attempt, last.epoch) or not last.answered:
            c.refuse(Reason.RESULT)
        elif self.results.take(result, c.circle()):
            if self._session is not None and self._session.run == result.run:
                self._session = None
            c.say(messages.Got, result.sender, result.run, result.attempt)


def _number(server: int) -> str:
    """In what is said to others, who may have other names for it."""
    return f"server {server}"
