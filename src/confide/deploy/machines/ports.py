"""Where a server stands, what it does to the world, and what its machines share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import reduce
from typing import TYPE_CHECKING

from confide.deploy.machines.attendance import Attendance
from confide.deploy.machines.epoch import Epoch, decode
from confide.deploy.machines.evidence import Sign
from confide.deploy.machines.exchange import Clock
from confide.deploy.machines.terms import Terms
from confide.deploy.store.books import Books, Changes, Row
from confide.deploy.store.store import At, Store, nowhere
from confide.rounds.noise import NoiseSource

if TYPE_CHECKING:
    from confide.deploy.machines.release import Part


class Phase(StrEnum):
    BOOT = "boot"  # until every neighbour was heard, or a deadline
    WAIT = "wait"  # for the neighbours' messages of the last decided round, or a deadline
    ADAPT = "adapt"  # with the clients, until the tick at which the sum is published
    DRAIN = "drain"  # the last round is decided; open flows are settled
    FINISHED = "finished"  # still answers
    REJOIN = "rejoin"  # a restored store: until every neighbour was heard
    STOPPED = "stopped"


@dataclass
class Ports:
    """What a server does to the world.

    Attributes:
        to_server, to_client: hand bytes to the network.
        noise: see `draws`.  sample: the clients of a round; drawn once, then stored.
        at: told every crash point.
        log: (event, fields); never anything that depends on data but what was published.
        release: how the server takes part in releases, where the plan has them.
    """

    to_server: Callable[[int, bytes], None]
    to_client: Callable[[int, bytes], None]
    noise: NoiseSource = field(repr=False)
    sample: Callable[[int], tuple[int, ...]]
    sign: Sign = field(repr=False)
    at: At = nowhere
    log: Callable[..., None] = lambda _, **__: None
    release: Part | None = None


class Desk:
    """What the machines of one server share: its books, where it stands, and what it does to the world.

    Attributes:
        why: it stopped.
        alone: no neighbour keeps up with it, so it waits for those that are down as well.
        attendance: which of its clients are there.
        began: when it was started.
        epoch: the last removal that it follows, of which `epoch_number` is 0 before any.
    """

    def __init__(self, terms: Terms, store: Store, ports: Ports) -> None:
        self.terms, self.rules, self.store = terms, terms.rules, store
        self.ports = replace(ports, to_server=self._settled(ports.to_server), to_client=self._settled(ports.to_client))
        self.books: Books = store.load()
        self._waiting: list[Changes] = []  # in the books, and not yet in the store
        self._new: set[Row] = set()  # rows that these make
        self.now = self.began = 0.0
        self.phase, self.why, self.alone = Phase.BOOT, "", False
        self.epoch: Epoch | None = decode(self.books.epoch) if self.books.epoch else None
        self.attendance = Attendance(terms.clients, terms.clocks)
        self.refusals: Counter[str] = Counter()
        self.alarms: list[str] = []

    @property
    def epoch_number(self) -> int:
        return 0 if self.epoch is None else self.epoch.number

    @property
    def finished(self) -> bool:
        """The last round is decided, and neighbours were heard since the start."""
        return self.phase in (Phase.DRAIN, Phase.FINISHED)

    @property
    def pending(self) -> dict[int, list[int]]:
        """Rounds whose flow is open, by neighbour."""
        return {m: sorted(records) for m, records in self.books.open.items() if records}

    def commit(self, changes: Changes, name: str) -> None:
        """Make changes durable, and what waits with them, then carry them out in the books.

        Of the flows of an edge each has a transaction of its own.
        """
        self._part_from(changes)
        self.store.commit(reduce(Changes.then, [*self._waiting, changes]), self.ports.at, name)
        self._waiting.clear()
        self._new.clear()
        self.books.apply(changes)

    @property
    def clock(self) -> Clock:
        """How far other servers can be."""
        return self.terms.clock(self.books.pace, self.now)

    def later(self, changes: Changes) -> None:
        """Carry out in the books what rides on the next commit: before that nothing leaves, so nobody knows of it.

        Only for what a message led to that is said again: a server that dies meanwhile is one that never heard it.
        """
        self._part_from(changes)
        self._waiting.append(changes)
        self._new |= changes.new_in(self.books)
        self.books.apply(changes)
        if self.finished:  # no other commit is to come
            self.settle()

    def settle(self) -> None:
        """Make durable what waits."""
        if self._waiting:
            self.commit(Changes(), "sync")
            self.ports.at("sync.committed")

    def _part_from(self, changes: Changes) -> None:
        """Nothing waits that cannot be in one transaction with these: a flow of the same edge, or a row that goes."""
        flows = any(waits.balances.keys() & changes.balances for waits in self._waiting)
        if flows or not self._new.isdisjoint(changes.rows_that_go):
            self.settle()

    def _settled(self, send: Callable[[int, bytes], None]) -> Callable[[int, bytes], None]:
        def leave(to: int, raw: bytes) -> None:
            self.settle()
            send(to, raw)

        return leave

    def alarm(self, what: str) -> None:
        self.refusals["alarm"] += 1
        self.alarms = [*[before for before in self.alarms if before != what][-99:], what]
        self.ports.log("alarm", what=what)
