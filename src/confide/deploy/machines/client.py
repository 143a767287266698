"""A deployed client: bytes in, bytes out, without a network and without a clock.

    Invite   ->  train, encode, once for a round and a model  ->  Reply(Advertise), or Update in clear
    Step     ->  one transition of `confide.secure.client`    ->  Reply, the last of them the answer
    either   ->  Decline, one of a few words that tell nothing of the data

Networks lose, repeat and reorder, and servers repeat themselves. The message handled last is answered again with the
same bytes, older ones are passed over, and what is malformed or does not belong here is counted in `refusals` and
changes nothing. A server that crashed begins the round again under a higher attempt: the words that were encoded stay,
the masks are new, and the record sees to it that no round is answered twice, whatever crashes in between, and under
a cap that data go into so many rounds and no more. In clear the update is the answer: it is given for one model of a
round, and again with the same words. Why a client adds zeros it tells nobody.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from confide.base.arrays import Floats
from confide.base.errors import InputError, RunError
from confide.base.validation import whole
from confide.base.wire import MalformedError
from confide.deploy.machines import client_messages as messages
from confide.deploy.machines.training import Trainer
from confide.deploy.store.record import LAST_ROUND, Owner, Record
from confide.laws.noise import discrete_gaussian
from confide.laws.secret_stream import SecretStream
from confide.plans.plan import Clocks, Plan
from confide.plans.words import cap
from confide.secure import client as secure
from confide.secure import messages as secure_messages
from confide.secure.client import Member
from confide.secure.encoding import Encoding, truncate
from confide.secure.session import RefusedError, Task
from confide.secure.settings import SecureSum
from confide.secure.shares import Entropy

Integers = NDArray[np.int64]
Words = NDArray[Any]
Noise = Callable[[int, int], Integers]  # (round, size) -> this client's share, in its quanta
MODELS: Final = 8  # that a round may be begun with: a server's state changes while it recovers, but not for ever
_log = logging.getLogger(__name__)


class Reason(StrEnum):
    """Why a server's message is not taken."""

    OVERSIZED = "oversized"
    MALFORMED = "malformed"
    PLAN = "plan"
    CONTRADICTION = "contradiction"  # one attempt, two models
    UNEXPECTED = "unexpected"
    EARLY = "early"  # before the plan's clocks allow it


@dataclass(frozen=True)
class ClientTerms:
    """What a client knows before the first round, all of it from the plan, which has checked it.

    Attributes:
        text: the plan's canonical text; its hash is the plan's.
        protocol: version of the messages. rounds: T; nothing is given after it.
        unit, client: who this is.
        quantum: of the server's state. length: M. fraction_bits: the client's quantum is 2^-fraction_bits.
        bound: of an update's norm.
        secure: None where the server adds up in clear.
        cap: rounds in which this client gives data at most; None for all.
        clocks: the pace of rounds.
    """

    text: str = field(repr=False)
    protocol: int
    rounds: int
    unit: int
    client: int
    quantum: float
    length: int
    fraction_bits: int
    bound: float
    secure: SecureSum | None = None
    cap: int | None = None
    clocks: Clocks = field(default_factory=Clocks)

    def __post_init__(self) -> None:
        whole("rounds", self.rounds, 1, LAST_ROUND)
        whole("length", self.length, 1, 2**31)

    @classmethod
    def of_plan(cls, plan: Plan, unit: int, client: int) -> Self:
        """What a plan means for one of its clients."""
        a, d = plan.algorithm, plan.deployed()
        whole("unit", unit, 0, len(plan.units) - 1)
        whole("client", client, 0, plan.units[unit].size - 1)
        bits = a.fraction_bits or 0
        return cls(
            plan.text,
            d.protocol,
            plan.rounds,
            unit,
            client,
            2.0**-bits / a.sampled,
            a.model.length,
            bits,
            a.update_bound,
            plan.secure,
            cap(plan.privacy.participation),
            d.clocks,
        )

    @cached_property
    def plan(self) -> bytes:
        """The plan's hash."""
        return hashlib.sha256(self.text.encode()).digest()

    @cached_property
    def encoding(self) -> Encoding | None:
        """Of the secure sum."""
        return None if self.secure is None else self.secure.encoding(self.bound, self.fraction_bits)

    @property
    def share_quanta(self) -> float:
        """Standard deviation of the client's share of noise inside the sum, in its quanta; 0 for none."""
        return 0.0 if self.secure is None else self.secure.share_quanta(self.fraction_bits)

    @property
    def active(self) -> bool:
        """Whether the server may lie."""
        return self.secure is not None and self.secure.parameters.server == "active"

    def due(self, round: int) -> float:
        """No honest server opens the round before; its clock may differ from the client's as servers' clocks may."""
        c = self.clocks
        return c.begin + (round - 1) * c.tick - c.neighbours

    @property
    def owner(self) -> Owner:
        return Owner(self.plan, self.unit, self.client)

    @property
    def enrolment(self) -> messages.Enrol:
        return messages.Enrol(self.protocol, self.plan, self.unit, self.client)

    def task(self, round: int, model: bytes) -> Task:
        """The secure sum of a round that began with a model of this hash."""
        assert self.secure is not None  # noqa: S101 - only called for a secure sum
        return self.secure.task(self.plan, self.unit, round, model, self.length)

    @cached_property
    def largest(self) -> int:
        """Bytes of the longest message that a server can have for this client."""
        step = 0 if self.secure is None else self.task(1, bytes(32)).largest_message
        return 1024 + max(8 * self.length, step)


@dataclass(frozen=True, repr=False)
class _Attempt:
    """Where this client stands: `heard` are the names of what it has handled, `reply` is what it said to the last."""

    place: tuple[int, int]  # (round, attempt)
    heard: tuple[bytes, ...]
    reply: bytes
    state: secure.State | None  # None in clear
    answered: int  # the record when the attempt began


class Client:
    """One client of one unit.

    Attributes:
        refused: why the server will not have this client; nothing once it has.
        enrolled: whether the server has welcomed this client.  finished: whether it said that all rounds are over.
        refusals: messages that were not for this client, by reason.
        record: what it must not forget.
        declined: rounds that this client sat out, by the word that it gave.
        clock: seconds since 1970, by which no round is answered before its time.
        clipped: coordinates beyond the encoding's bound so far; failed: trainings that gave no update. They tell of the
            data and must not leave the machine.
    """

    def __init__(
        self,
        terms: ClientTerms,
        trainer: Trainer,
        record: Record,
        member: Member,
        entropy: Entropy = os.urandom,
        noise: Noise | None = None,
        config: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if record.owner != terms.owner:
            raise InputError("record", record.owner[1:], "is not of this plan, unit and client; open it with its owner")
        if member.client != terms.client:
            raise InputError("member", member.client, f"the terms are those of client {terms.client}")
        if terms.active and (member.identity is None or member.peers.get(member.client) != member.identity.public):
            raise InputError("identity", None, "an active server calls for signed keys: give an identity in the roster")
        self.terms = terms
        self.refused: list[str] = []
        self.enrolled = self.finished = False
        self.refusals: Counter[str] = Counter()
        self.declined: Counter[str] = Counter()
        self.clipped = self.failed = 0
        self.clock = clock
        self._began = 0, 0.0  # the last round that was begun, and when
        self._paced = 0.0  # when so many ticks will have passed as rounds were answered
        self._told_early = 0
        self._zeros = False  # whether the last update ended as zeros
        self._trainer, self.record, self._member, self._entropy = trainer, record, member, entropy
        self._noise = noise or self._draw
        self._config = dict(config or {})
        self._at: _Attempt | None = None
        self._words: list[tuple[bytes, Words]] = []  # of the round that we are at, with the model's name

    def __repr__(self) -> str:
        round, attempt = self._at.place if self._at else (0, 0)
        return f"Client(unit {self.terms.unit}, client {self.terms.client}, round {round}, attempt {attempt})"

    @property
    def _last_word(self) -> type:
        """The message after which this client joins no further attempt of the round.

        An active server could unmask the sum that this client's words are in without asking this client, and have it
        in a second sum of the round, with others: so its words are given once, masked as they are.
        """
        return secure_messages.Masked if self.terms.active else secure_messages.Answer

    def hello(self) -> bytes:
        """To be said when a connection is made, and again until the server answers."""
        return messages.encode(self.terms.enrolment)

    def receive(self, raw: bytes) -> list[bytes]:
        """Take in one message; what comes out is to be sent to the server, in order."""
        if len(raw) > self.terms.largest:
            return self._refuse(Reason.OVERSIZED)
        try:
            message = messages.from_server(raw, self.terms.largest)
        except MalformedError:
            return self._refuse(Reason.MALFORMED)
        model = self._name(message.model) if isinstance(message, messages.Invite) else b""
        name, at = self._name_of(raw, message, model), self._at
        if at is not None and name in at.heard:
            return [at.reply] if name == at.heard[-1] else []
        match message:
            case messages.Welcome():
                return self._welcome(message)
            case messages.Refusal():
                self.refused, self.enrolled = [message.why], False
                return []
            case messages.Invite():
                return self._begin(message, model, name)
            case messages.Step():
                return self._step(message, name)

    def _name(self, long: bytes) -> bytes:
        """What a model is known by: its hash, which a secure sum has all agree on. In clear it stands for itself."""
        return long if self.terms.secure is None else hashlib.sha256(long).digest()

    def _name_of(self, raw: bytes, message: messages.FromServer, model: bytes) -> bytes:
        """Key under which a message is remembered. The model, its longest field, is replaced by its hash."""
        if self.terms.secure is None:
            return raw
        if isinstance(message, messages.Invite):
            raw = raw[: len(raw) - len(message.model)] + model
        return hashlib.sha256(raw).digest()

    def _welcome(self, welcome: messages.Welcome) -> list[bytes]:
        if welcome.plan != self.terms.plan:
            return self._refuse(Reason.PLAN)
        self.refused, self.enrolled, self.finished = [], True, welcome.finished
        return []

    def _begin(self, invite: messages.Invite, model: bytes, name: bytes) -> list[bytes]:
        """Check, train, encode, open a session. Declining changes nothing."""
        place = invite.round, invite.attempt
        if invite.plan != self.terms.plan:
            return [self._decline(place, "plan")]
        if invite.round > self.terms.rounds:
            return [self._decline(place, "round")]
        if len(invite.model) != 8 * self.terms.length:
            return [self._decline(place, "model")]
        if self._at is not None and place <= self._at.place:
            return [] if place < self._at.place else self._refuse(Reason.CONTRADICTION)
        known = self._words if self._at is not None and self._at.place[0] == invite.round else []
        if not self._due(invite.round):
            return self._refuse(Reason.EARLY)  # it is said again
        words = next((words for its, words in known if its == model), None)
        again = self.terms.secure is None and words is not None  # in clear the same answer tells nothing new
        if invite.round <= self.record.answered and not again:
            return [self._decline(place, "answered")]
        if words is None:
            if len(known) >= MODELS:
                return [self._decline(place, "model")]
            words = self._encode(invite, self._gives(invite.round))
            known = [*known, (model, words)]
        state, reply = self._open(invite, model, words)
        self._at, self._words = _Attempt(place, (name,), reply, state, self.record.answered), known
        return [reply]

    def _due(self, round: int) -> bool:
        """Whether the plan's clocks allow this round by now.

        An active server could ask for all rounds at once, with the same model, and compare the sums. So no round is
        begun before its time; and where rounds were late, they still come no faster than one a tick. An honest server
        is never early: it opens a round a tick after it opened the last one that was answered, and after the answer.
        """
        now = self.clock()
        if now < max(self.terms.due(round), self._paced - self.terms.clocks.tick):
            if round != self._told_early:
                self._told_early = round
                _log.warning("round %d came before its time by this client's clock", round)
            return False
        if round != self._began[0]:
            self._began = round, now
        return True

    def _gives(self, round: int) -> bool:
        """Whether data go into these words; if so, and if there is a cap, the round is counted first, for good.

        One round counts once, so one model of it gets data: a round that was counted for another model, or by a process
        that crashed since and lost its words, gets zeros, or else two attempts would ask the data twice.
        """
        given = self.record.given
        if self.terms.cap is None:
            return True
        if round <= given.last or given.rounds >= self.terms.cap:
            return False
        self.record.count(round)
        return True

    def _encode(self, invite: messages.Invite, gives: bool) -> Words:
        """The update as words, zeros where no data are given, with this client's share of noise."""
        terms = self.terms
        try:
            update = self._train(np.frombuffer(invite.model, "<i8"), invite.round) if gives else np.zeros(terms.length)
        except (Exception, SystemExit) as e:
            # That it failed may tell of the data: the sum hides it. So may the reason: it stays in this machine's log.
            why = str(e) if isinstance(e, RunError) else type(e).__name__  # the words of others may hold values
            _log.exception("the training of round %d failed, this client adds zeros: %s", invite.round, why)
            self.failed += 1
            update = np.zeros(terms.length)
        if terms.encoding is None:
            return truncate(update, terms.fraction_bits).astype("<i8", copy=False)
        noise = self._noise(invite.round, terms.length) if terms.share_quanta else None
        words, clipped = terms.encoding.encode(update, noise)
        self.clipped += clipped
        return words

    def _train(self, model: Integers, round: int) -> Floats:
        terms = self.terms
        update = self._trainer(np.asarray(model * terms.quantum, np.float64), round, self._config)
        if not isinstance(update, np.ndarray) or update.shape != (terms.length,) or update.dtype != np.float64:
            raise RunError(f"an update is {terms.length} numbers of double precision")
        largest = np.maximum(update.max(), -update.min()) * 2.0**terms.fraction_bits
        if not largest < 2.0**62:  # NaN is not
            raise RunError("the update is not finite, or far beyond its bound: the training diverged")
        zeros, self._zeros = self._zeros, bool(largest < 1.0)
        if self._zeros and not zeros:  # once, until there are others again
            why = "all of them, since none is as large as the plan's quantum"
            _log.warning("numbers of the update of round %d end as zero: %s", round, why)
        return update

    def _draw(self, _: int, size: int) -> Integers:
        return discrete_gaussian(SecretStream(), self.terms.share_quanta, size)

    def _open(self, invite: messages.Invite, model: bytes, words: Words) -> tuple[secure.State | None, bytes]:
        place = invite.round, invite.attempt
        if self.terms.secure is None:
            if invite.round > self.record.answered:
                self.record.write(invite.round)  # before it can leave
            return None, messages.encode(messages.Update(*place, words.tobytes()))
        task = self.terms.task(invite.round, model)
        state, said = secure.start(task, self._member, words, self.record.answered, self._entropy)
        return state, messages.encode(messages.Reply(*place, secure_messages.encode(said)))

    def _step(self, step: messages.Step, name: bytes) -> list[bytes]:
        at, place = self._at, (step.round, step.attempt)
        if at is not None and place < at.place:
            return []
        if at is None or at.state is None or place != at.place:
            return self._refuse(Reason.UNEXPECTED)
        try:
            message = secure_messages.from_server(step.payload, at.state.task.largest_message)
            state, said = secure.receive(at.state, message, at.answered)
        except MalformedError:
            return self._refuse(Reason.MALFORMED)
        except RefusedError:
            return self._refuse(Reason.UNEXPECTED)
        if isinstance(said, self._last_word):
            self.record.write(step.round)  # before it can leave; if this fails, nothing has changed
            self._paced = max(self._paced, self._began[1]) + self.terms.clocks.tick
        if said is None:
            _log.warning("round %d, attempt %d: %r", *place, state)
            reply = self._decline(place, "aborted")
        else:
            reply = messages.encode(messages.Reply(*place, secure_messages.encode(said)))
        self._at = replace(at, heard=(*at.heard, name), reply=reply, state=state)
        return [reply]

    def _decline(self, place: tuple[int, int], why: messages.Declined) -> bytes:
        self.declined[why] += 1
        return messages.encode(messages.Decline(*place, why))

    def _refuse(self, reason: Reason) -> list[bytes]:
        self.refusals[reason] += 1
        return []
