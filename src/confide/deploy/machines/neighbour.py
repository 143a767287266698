"""The server's end of one edge (T3): what came over it, and when the neighbour is told again what it may have missed.

It is told soon at first, then ever later, and soon again once it was heard.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf as NEVER
from typing import Final

from confide.deploy.machines import exchange, sync
from confide.deploy.machines.exchange import ExchangeError, OtherBytesError, Reason
from confide.deploy.machines.ports import Desk, Phase
from confide.deploy.store.books import Books, Changes, Status

FIRST: Final = 4  # the first repetition is after this part of the exchange's time
SLOWEST: Final = 2.0  # and the last ones are that many exchange times apart


class Neighbour:
    """All but `up` and what is in the books is forgotten by a restart.

    Attributes:
        up: rounds wait for it.
        heard: since the start.
        early: its offers for rounds that are not decided here yet, by round.
        made: when it said first that it had decided as many rounds as it ever said; none since the start.
        epoch_heard: the highest epoch that it says it follows.
        far: it moved ahead in a rejoin and waits there: nobody follows it.
        resend_at, gap: when it is told again, and how long after that once more.
    """

    def __init__(self, desk: Desk, m: int) -> None:
        self.desk, self.m = desk, m
        self.up, self.heard, self.far = True, False, False
        self.early: dict[int, bytes] = {}
        self.made: int | None = None
        self.epoch_heard = 0
        self.resend_at, self.gap = NEVER, desk.terms.clocks.neighbours / FIRST

    @property
    def status(self) -> Status:
        return self.desk.books.status[self.m]

    @property
    def settled(self) -> bool:
        """Nothing of the last round is to come from it: it has decided, and its flow is in or void."""
        if self.status is Status.ADRIFT:
            return True
        books = self.desk.books
        record = books.open[self.m].get(books.decided)
        return books.seen[self.m] >= books.decided and (record is None or record.applied)

    @property
    def awaited(self) -> bool:
        """Whether the server's phase waits for it."""
        match self.desk.phase:
            case Phase.BOOT | Phase.REJOIN:
                return not self.heard
            case Phase.WAIT:
                return (self.up or self.desk.alone) and not self.settled
        return False

    @property
    def owes(self) -> bool:
        """Whether an answer is to come, whatever is open: it may have missed a removal, or the question."""
        if self.status is Status.REMOVED:
            return False
        if self.desk.phase is not Phase.REJOIN and self.status is Status.ADRIFT:
            return True
        return self.epoch_heard < self.desk.epoch_number or not self.heard or self.awaited

    def send(self, message: sync.FromServer) -> None:
        self.desk.ports.to_server(self.m, sync.encode(message))

    def say(self, *, offer: int | None = None, ask: bool = False) -> None:
        """What the books say to it."""
        desk = self.desk
        message = exchange.make_sync(
            desk.books, desk.rules, self.m, epoch=desk.epoch_number, offer=offer, ask=ask, made=_moment(desk.now)
        )
        if desk.phase is Phase.REJOIN:  # of a restored store only the question is true
            message = replace(message, decided=0, open=(), offer=None, balance=None, shown=())
        self.send(message)

    def later(self) -> None:
        self.resend_at = self.desk.now + self.gap

    def repeat(self) -> None:
        """What it may have missed: every open offer, and the question where something is awaited.

        Before it was heard there is the question alone: its answer tells whether this store is older than what left.
        """
        asking = self.desk.phase is Phase.REJOIN or not self.heard
        records = {} if asking else self.desk.books.open[self.m]
        for i in sorted(records):
            self.say(offer=None if records[i].peer_applied else i, ask=True)
        if not records and not self.owes:
            self.resend_at = NEVER
            return
        if not records:
            self.say(ask=True)
        self.gap = min(2.0 * self.gap, SLOWEST * self.desk.terms.clocks.neighbours)
        self.later()

    def hear(self, message: sync.Sync) -> None:
        """T3, for a message that may be true (`exchange.check`)."""
        desk = self.desk
        if self._fell(message):
            before = desk.books.seen[self.m]
            self.suspect(f"is at round {message.decided} and was at {before}: its store is older than what left")
            if message.ask:
                self.say()  # then it knows
            raise ExchangeError(Reason.FELL)
        further = message.decided > desk.books.seen[self.m]
        self._take(message)
        if not self.heard:
            self.heard, self.resend_at = True, desk.now  # offers of before the start were kept back until now
        if further:
            self.made = message.made
        self.far = not message.open and message.balance is None  # it is adrift
        self.gap = desk.terms.clocks.neighbours / FIRST
        if not self.up and message.decided >= desk.books.decided - 1:
            self.up = True
            desk.ports.log("up", neighbour=self.m, round=desk.books.decided)
        self.epoch_heard = max(self.epoch_heard, message.epoch)

    def _fell(self, message: sync.Sync) -> bool:
        """Whether it says less than it had said when it made this. A server that has no store yet says 0."""
        since = _moment(self.desk.began) if self.made is None else self.made
        return 0 < message.decided < self.desk.books.seen[self.m] and message.made > since

    def suspect(self, what: str) -> None:
        """An alarm about this edge, once."""
        if self.suspend():
            self.desk.alarm(f"{self.desk.terms.who(self.m)} {what}")

    def suspend(self) -> bool:
        """Offer nothing here until one of the edge's ends has rejoined; whether that is new."""
        if self.status is not Status.OPEN:
            return False
        self.desk.commit(Changes(status={self.m: Status.SUSPECT}), "suspect")
        return True

    def _take(self, message: sync.Sync) -> None:
        desk, who = self.desk, self.desk.terms.who(self.m)
        heard = exchange.on_sync(desk.books, desk.rules, message, desk.clock)
        if heard.early is not None:
            self._keep_early(*heard.early)
        if heard.unbalanced:
            self.suspect("has other flows on our edge: one of the two stores is not what it was; rejoin")
        if heard.believed < message.decided:
            desk.alarm(f"{who} speaks of rounds that no signature shows; it is believed no further")
        if heard.changes:
            desk.later(heard.changes)
        if heard.applied is not None:
            late = desk.books.decided - heard.applied
            desk.ports.log("applied", neighbour=self.m, round=heard.applied, late=late)
        for i in heard.void:
            desk.ports.log("void", neighbour=self.m, round=i)

    def _keep_early(self, i: int, blob: bytes) -> None:
        """Volatile, and no more than a window: what is not kept is offered again."""
        if self.early.get(i, blob) != blob:
            raise OtherBytesError(f"other bytes for round {i}, which was offered")
        if i in self.early or len(self.early) < self.desk.rules.window:
            self.early[i] = blob

    def take_early(self, books: Books, published: Changes) -> Changes:
        """With what its offer of this round leads to, if that came before the round was decided here."""
        i = books.decided + 1
        blob = self.early.get(i)
        self.early = {j: other for j, other in self.early.items() if j > i}
        if blob is None:
            return published
        return published.then(exchange.on_early(books.after(published), self.desk.rules, self.m, i, blob))


def _moment(now: float) -> int:
    return int(now * 1e6)
