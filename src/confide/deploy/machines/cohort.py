"""The clients of one unit in one round: invite, collect, and end with the sum of their updates or without.

    open -> (advertise -> share -> mask -> (consent) -> unmask) -> summed | failed      secure sums
    open -> collect                                              -> summed | failed      sums in clear

Phases end when everybody has answered, or at their share of the round's time: a slow client is a dropout, not a stall.
Once there are answers enough, a phase does not wait for clients that are not there, nor for those that were silent for
some rounds (`attendance`). Unanswered messages are sent again at intervals; a client answers a repeated message with
identical bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from math import inf as NEVER
from typing import Final, NamedTuple

import numpy as np

from confide.base.wire import MalformedError
from confide.deploy.machines import client_messages as messages
from confide.deploy.machines.attendance import CLEAR, TRAINING
from confide.deploy.machines.ports import Desk
from confide.deploy.store.books import Attempt, Vector, as_bytes, as_vector
from confide.secure import messages as secure_messages
from confide.secure import server as secure
from confide.secure import transcript
from confide.secure.encoding import signed
from confide.secure.session import RefusedError

REPEATS: Final = 32  # how often within the time of a round something is said again
# When each phase ends at the latest, as a share of the time of a round; training is before the first.
ENDS: Final[Mapping[type, float]] = {
    secure.Advertising: TRAINING,
    secure.Sharing: 0.7,
    secure.Masking: 0.8,
    secure.Consenting: 0.9,
    secure.Unmasking: 1.0,
}


class Reason(StrEnum):
    """Why a client's message is not taken."""

    MALFORMED = "client: malformed"
    NO_ROUND = "client: no round is open"
    PLAN = "client: of another plan or version"
    NAMES = "client: not of this unit, or not whom it says"
    ROUND = "client: another round or attempt"
    SAMPLE = "client: not sampled"
    SIZE = "client: an update of the wrong kind or size"
    BOUND = "client: an update beyond its bound"
    CLEAR = "client: a secure message, but sums are in clear"
    SECURE = "client: refused by the secure sum"


class Failure(StrEnum):
    """Why a round has no sum; a secure sum has reasons of its own, `secure.session.Why`."""

    NO_UPDATE = "no update arrived"
    DAMAGED = "the transcript of the round is damaged"  # and then how


class Sum(NamedTuple):
    total: Vector  # of the survivors' encoded updates
    survivors: frozenset[int]
    out_of_range: bool = False  # before it was clamped: no honest clients' sum is


class Kept(NamedTuple):
    """A transcript with what else a round needs to go on, as they are stored together."""

    opened: float  # when the round was opened, in seconds
    asked: float  # when the question left
    model: bytes  # that was handed out
    transcript: bytes
    reveals: bool = False  # the question's answers tell the sum; before them consents may be asked for

    def encode(self) -> bytes:
        head = struct.pack("<dd?Q", self.opened, self.asked, self.reveals, len(self.model))
        return head + self.model + self.transcript

    @classmethod
    def decode(cls, raw: bytes) -> Kept:
        opened, asked, reveals, n = struct.unpack_from("<dd?Q", raw)
        return cls(opened, asked, raw[25 : 25 + n], raw[25 + n :], reveals)


class Cohort:
    """One round's sum. `keep` makes a transcript durable before the question leaves.

    Attributes:
        seconds: until the sum must be there.
        opened: when the round was opened.  ready: when its sum was there, or in a session that is taken up again, when
            its question was asked: how long training took.  sum, failed: how it ended.
        liars: whose shares made it fail.
        session: of the secure sum.  total: of the updates in clear, so far, of the `survivors`.
        said: the last word to each client.  gone: who declined, or was left out.
        late: who had not answered when its phase ended.
    """

    def __init__(
        self, desk: Desk, attempt: Attempt, keep: Callable[[bytes], None], left_out: Collection[int] = ()
    ) -> None:
        """Args:
        left_out: clients who count as dropped, also if they are sampled.
        """
        self.terms, self.seconds, self.attempt = desk.terms, desk.terms.clocks.adapt, attempt
        self.sum: Sum | None = None
        self.failed = ""
        self.liars: tuple[int, ...] = ()
        self.refusals = desk.refusals
        self._send, self._keep = desk.ports.to_client, keep
        self.total: Vector | None = None
        self.survivors: set[int] = set()
        self.said: dict[int, bytes] = {}
        self.gone = set(left_out)
        self.late: set[int] = set()
        self._answered: dict[int, float] = {}  # in this phase, and when
        self._held_up: dict[int, float] = {}  # seconds that phases with answers enough waited for each
        self._attendance, self._repeat = desk.attendance, NEVER
        now, kept = desk.now, desk.books.transcript
        stored = Kept.decode(kept) if kept else None
        self._attendance.opened(now)
        self.opened, self.ready = (now, NEVER) if stored is None else (stored.opened, stored.asked)
        self.model = desk.books.w if stored is None else as_vector(stored.model)
        # A session that is taken up again has the time of its last phases; training was before them.
        self._begun = now if stored is None else now - ENDS[secure.Masking] * self.seconds
        self.session: secure.State | None = None
        if self.terms.secure is None:
            self._invite(now)
            return
        task = self.terms.task(attempt.round, as_bytes(self.model))
        if stored is None:
            invited = [client for client in attempt.sample if client not in self.gone]
            self.session = secure.start(task, invited, self.terms.client_identities)
            self._invite(now)
            return
        try:
            asking, said = transcript.decode(stored.transcript, task, self.terms.client_identities)
        except MalformedError as e:
            self.failed = f"{Failure.DAMAGED}: {e}"
            return
        self.session = asking
        self._say(now, dict.fromkeys(asking.asked, said))

    @property
    def done(self) -> bool:
        return self.sum is not None or self.failed != ""

    @property
    def deadline(self) -> float:
        """When the sum must be there."""
        return self._begun + self.seconds

    @property
    def wake(self) -> float:
        """When there is something to do though nothing comes in."""
        return NEVER if self.done else min(self._repeat, self._ends, self._attendance.until)

    @property
    def unheard(self) -> set[int]:
        """For whom this round has waited without an answer in time, or would wait, if it has waited for nobody yet."""
        silent = set() if self.done else set(self.waiting_for)
        return self.late | silent if self._enough or not self.late else self.late

    @property
    def _ends(self) -> float:
        share = CLEAR if self.session is None else ENDS.get(type(self.session), 1.0)
        return self._begun + share * self.seconds

    def receive(self, now: float, client: int, message: messages.FromClient) -> None:
        if self.done or isinstance(message, messages.Enrol):
            return
        if (message.round, message.attempt) != (self.attempt.round, self.attempt.number):
            self.refusals[Reason.ROUND] += 1
        elif client not in self.attempt.sample:
            self.refusals[Reason.SAMPLE] += 1
        elif isinstance(message, messages.Update):
            self._collect(now, client, message)
        elif isinstance(message, messages.Reply):
            self._reply(now, client, message)
        else:
            self.gone.add(client)
            self.look(now)

    def enrolled(self, client: int) -> None:
        """A client is back: it hears the last word again."""
        if not self.done and client in self.said:
            self._send(client, self.said[client])

    def tick(self, now: float) -> None:
        while not self.done and now >= self._ends:
            self._close(now)
        self._attendance.tick(now)
        self.look(now)
        if not self.done and now >= self._repeat:
            self._repeat = now + self.seconds / REPEATS
            for client in self.waiting_for:
                self._send(client, self.said[client])

    @property
    def waiting_for(self) -> list[int]:
        """Of whom something is still expected in this phase."""
        silent = set(self.attempt.sample) - self.survivors if self.session is None else secure.missing(self.session)
        return sorted(silent - self.gone)

    def look(self, now: float) -> None:
        """Whether there is anybody left to wait for."""
        while not self.done and self._complete:
            self._close(now)

    def give_up(self, now: float) -> None:
        """The round is over before its sum is there."""
        if self.done:
            return
        self._count(now)
        slow = self._too_slow(now)
        if self._enough or self.late or slow:
            late = self.unheard | slow
            self._attendance.settle(set(self.attempt.sample) - late.union(self.waiting_for), late)

    def _count(self, now: float) -> None:
        """For whom this phase has waited, and how long: since those who are enough for a sum had answered."""
        times = self._answered | dict.fromkeys(self.waiting_for, now)
        if len(self._answered) >= self.terms.quorum:
            enough = sorted(self._answered.values())[self.terms.quorum - 1]
            for client, at in times.items():
                self._held_up[client] = self._held_up.get(client, 0.0) + max(0.0, at - enough)
        self._answered = {}

    def _too_slow(self, now: float) -> set[int]:
        """Without whom this round would not have been over later than neighbours wait for it.

        Each phase can end in time, and all of them together too late: a client that takes its time in every one of
        them would cost its unit every round. It counts as silent. Where a round takes `adapt` in any case, nobody is.
        """
        clocks, longest = self.terms.clocks, max(self._held_up.values(), default=0.0)
        over = now - self.opened - (clocks.neighbours if clocks.tick < clocks.adapt else NEVER)
        return {client for client, t in self._held_up.items() if t > longest - over} if 0.0 < over < longest else set()

    @property
    def _complete(self) -> bool:
        silent = self.waiting_for
        return not silent or (not any(map(self._attendance.awaited, silent)) and self._enough)

    @property
    def _enough(self) -> bool:
        """Whether this phase ends well with those who have answered."""
        return bool(self.survivors) if self.session is None else secure.enough(self.session)

    def _invite(self, now: float) -> None:
        a = self.attempt
        self._repeat = now + self.seconds / REPEATS
        raw = messages.encode(messages.Invite(self.terms.rules.plan, a.round, a.number, as_bytes(self.model)))
        for client in a.sample:
            if client not in self.gone:
                self.said[client] = raw
                self._send(client, raw)

    def _collect(self, now: float, client: int, message: messages.Update) -> None:
        if self.session is not None or len(message.words) != 8 * self.terms.rules.length:
            self.refusals[Reason.SIZE] += 1
            return
        words = as_vector(message.words)
        if int(words.max()) > self.terms.largest_update or int(words.min()) < -self.terms.largest_update:
            self.refusals[Reason.BOUND] += 1
            return
        if client not in self.survivors:
            self.survivors.add(client)
            self.total = words.copy() if self.total is None else np.add(self.total, words, out=self.total)
            self._answered[client] = now
        self.look(now)

    def _reply(self, now: float, client: int, message: messages.Reply) -> None:
        if self.session is None:
            self.refusals[Reason.CLEAR] += 1
            return
        try:
            inner = secure_messages.from_client(message.payload, self.session.task.largest_message)
            self.session = secure.receive(self.session, client, inner)
        except MalformedError:
            self.refusals[Reason.MALFORMED] += 1
            return
        except RefusedError:
            self.refusals[Reason.SECURE] += 1
            return
        self._answered.setdefault(client, now)
        self.look(now)

    def _close(self, now: float) -> None:
        """End the phase with whoever has answered."""
        self.late.update(self.waiting_for)
        self._count(now)
        self._end(now)
        if self.sum is not None:
            self.ready = min(self.ready, now)
            self.late |= self._too_slow(now)
            self._attendance.settle(set(self.attempt.sample) - self.late, self.late)

    def _end(self, now: float) -> None:
        if self.session is None:
            if self.total is None:
                self.failed = Failure.NO_UPDATE
                return
            self.sum = Sum(self.total, frozenset(self.survivors))
            return
        state, outgoing = secure.close(self.session)
        self.session = state
        if isinstance(state, secure.Aborted):
            self.failed, self.liars = str(state.why), state.liars
        elif isinstance(state, secure.Summed):
            self.sum = self._in_range(signed(state.total), frozenset(state.survivors))
        else:
            if isinstance(state, secure.Consenting | secure.Unmasking):
                said = next(iter(outgoing.values()))  # the same to all
                consents = said if isinstance(said, secure_messages.Consents) else None
                asked, reveals = transcript.encode(state, consents), isinstance(state, secure.Unmasking)
                self._keep(Kept(self.opened, now, as_bytes(self.model), asked, reveals).encode())
            self._say(now, outgoing)

    def _in_range(self, total: Vector, survivors: frozenset[int]) -> Sum:
        """What honest clients can have added up to. A masked update can hold anything, so that one client could take
        the state out of the range in which neighbours and releases accept it."""
        largest = len(survivors) * self.terms.largest_update
        clamped = np.clip(total, -largest, largest)
        return Sum(clamped, survivors, not np.array_equal(clamped, total))

    def _say(self, now: float, outgoing: Mapping[int, secure_messages.FromServer]) -> None:
        self._repeat = now + self.seconds / REPEATS
        a, packed = self.attempt, {}  # type: Attempt, dict[int, bytes]
        for client, message in outgoing.items():
            if id(message) not in packed:  # most say the same to all
                payload = secure_messages.encode(message)
                packed[id(message)] = messages.encode(messages.Step(a.round, a.number, payload))
            self.said[client] = packed[id(message)]
            self._send(client, packed[id(message)])
