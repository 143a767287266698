"""The rounds of a server, one after the other: when it waits and for whom, when it publishes, and when it skips.

    boot -> wait -> adapt -> wait -> adapt -> ... -> drain -> finished          any of them -> stopped(why)

`at` is told the crash points of docs/design/flows.md, so that tests can end the machine at any of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from math import inf as NEVER
from typing import Final

from confide.base.randomness import Purpose
from confide.deploy.machines import client_messages, enrolment, exchange
from confide.deploy.machines.cohort import Cohort, Kept, Sum
from confide.deploy.machines.neighbour import Neighbour
from confide.deploy.machines.ports import Desk, Phase
from confide.deploy.machines.rejoining import Rejoining
from confide.deploy.store.books import Attempt, Changes, Status, Vector
from confide.rounds.arithmetic import State
from confide.rounds.combine import Sender


class Skip(StrEnum):
    """Why a round is decided without a publication; `cohort.Failure` has more."""

    BUDGET = "the budget is spent"
    LEASH = "no neighbour has kept up with the last rounds"
    BEHIND = "behind the neighbours"
    LATE = "the sum came too late"


LEFT_OUT: Final = 16  # rounds without a client whose shares made one fail


class Stop(StrEnum):
    """Why a server ends for good: to start it again as it is would end it again."""

    OLD = (
        "a neighbour has shown round {seen} with the signature of this server, whose store ends at round {ends}: it is "
        "older than what left; rejoin with a new store"
    )
    REMOVED = "this server was removed from the network"


class Wait(StrEnum):
    """For what a server waits, where that may take long."""

    HEARD = "to hear its neighbours"
    CLOCK = "for the clock to reach the next round"
    LEVEL = "for a neighbour to come as far"
    FLOWS = "for the neighbours' flows of the last round"
    CLIENTS = "for the clients"
    OPEN = "for the neighbours to close open flows"


class Rounds:
    """Attributes:
    deadline: when the phase ends at the latest.
    together: the last round at which a neighbour was no more than one round away, or waited further on.
    cohort: of the round that is open.
    idle: why there is none in a round.
    left_out: clients who count as dropped, and the last round in which they do. They stay in the draw: a sample of
        fewer would raise the others' rate.
    starved: the first round waits for clients.
    """

    def __init__(self, desk: Desk, neighbours: Mapping[int, Neighbour], rejoining: Rejoining) -> None:
        self.desk, self.neighbours, self.rejoining = desk, neighbours, rejoining
        self.deadline = NEVER
        self.cohort: Cohort | None = None
        self.idle: Skip | None = None
        self.left_out: dict[int, int] = {}
        self.starved = False
        self.together = 0.0
        self._told: Wait | None = None

    @property
    def present(self) -> list[Neighbour]:
        """Those that no epoch has removed."""
        return [n for n in self.neighbours.values() if n.status is not Status.REMOVED]

    @property
    def waiting_for(self) -> list[int]:
        """Neighbours for whom this phase waits, until its deadline at the latest."""
        return [n.m for n in self.present if n.awaited]

    @property
    def new(self) -> bool:
        """Whether every neighbour has to answer first.

        An empty store may replace a lost one, and the neighbours know which rounds were already sent.
        """
        books = self.desk.books
        return self.desk.phase is Phase.BOOT and books.decided == 0 and books.attempt is None

    @property
    def waits(self) -> str:
        """For what it waits beyond any deadline."""
        desk = self.desk
        if not self.starved or desk.phase is not Phase.WAIT:
            return ""
        return f"the first sum needs {desk.terms.quorum} clients, and {len(desk.attendance.here)} are connected"

    @property
    def awaits(self) -> tuple[Wait, list[int]] | None:
        """For what, and for which neighbours; a round's clients are counted by its cohort."""
        desk, present = self.desk, [n.m for n in self.present]
        match desk.phase:
            case Phase.BOOT | Phase.REJOIN:
                return Wait.HEARD, self.waiting_for
            case Phase.WAIT if desk.now < desk.terms.clock_time(desk.books.rejoined + 1):
                return Wait.CLOCK, []
            case Phase.WAIT if self.starved:
                return Wait.CLIENTS, []
            case Phase.WAIT:
                return (Wait.FLOWS, self.waiting_for) if self.waiting_for else (Wait.LEVEL, present)
            case Phase.ADAPT:
                return None if self.idle else (Wait.CLIENTS, [])
            case Phase.DRAIN:
                return Wait.OPEN, sorted(desk.pending)
        return None

    @property
    def wake(self) -> float:
        """When there is something to do though nothing comes in."""
        if self.cohort is None:
            return self.deadline
        return min(self.deadline, self.cohort.wake) if self.cohort.sum is None else self._publish_at(self.cohort)

    def boot(self, *, rejoin: bool) -> None:
        desk = self.desk
        desk.ports.at("boot.loaded")
        desk.phase, desk.began = Phase.REJOIN if rejoin else Phase.BOOT, desk.now
        self.together = min(desk.books.decided, self._farthest)
        self.deadline = NEVER if rejoin or self.new else desk.now + desk.terms.clocks.neighbours
        self._ask_all()
        desk.ports.at("boot.sent")

    def stop(self, why: Stop, **numbers: int) -> None:
        self.desk.phase, self.desk.why, self.cohort = Phase.STOPPED, why.format(**numbers), None
        self.desk.ports.log("stopped", why=self.desk.why)

    def advance(self) -> None:
        """Whatever can be done now."""
        while self._step():
            pass
        self._tell_waiting()

    def _tell_waiting(self) -> None:
        """A wait that no deadline of a round ends is said once."""
        what, servers = self.awaits or (None, [])
        what = what if what in (Wait.HEARD, Wait.CLOCK, Wait.LEVEL) else None
        if what is not None and what is not self._told:
            self.desk.ports.log("waiting", what=str(what), servers=servers)
        self._told = what

    def _step(self) -> bool:
        desk, now, d, T = self.desk, self.desk.now, self.desk.books.decided, self.desk.rules.rounds
        match desk.phase:
            case Phase.BOOT:
                if not self.waiting_for:
                    return self._wait()
                if now >= self.deadline:  # of those that are down one would do, so that an old store is found out
                    if any(n.heard for n in self.present):
                        return self._wait()
                    self.deadline = now + desk.terms.clocks.neighbours
            case Phase.REJOIN:
                if not self.waiting_for:
                    self.rejoining.move()
                    self._wait()
                    self._ask_all()
                    return True
            case Phase.WAIT:
                begin = desk.terms.clock_time(desk.books.rejoined + 1)  # nobody is ever ahead of the clock with a sum
                if d < T and now < begin:
                    self.deadline = begin
                    return False
                return self._catch_up() or self._end_wait()
            case Phase.ADAPT:
                return self._catch_up() or self._adapt()
            case Phase.DRAIN:
                pending = desk.pending
                if not pending or now >= self.deadline:
                    desk.phase, self.deadline = Phase.FINISHED, NEVER
                    desk.ports.at("finish.drained")
                    desk.ports.log("finished", pending=pending)
        return False

    def _ask_all(self) -> None:
        for neighbour in self.present:
            neighbour.say(ask=True)
            neighbour.later()

    # Wait

    def _wait(self) -> bool:
        self.desk.phase, self.cohort = Phase.WAIT, None
        self.deadline = self.desk.now + self.desk.terms.clocks.neighbours
        return True

    def _end_wait(self) -> bool:
        """Go on when all have settled, or at the deadline without those that have not."""
        desk, d, finished = self.desk, self.desk.books.decided, self.desk.books.decided == self.desk.rules.rounds
        present = self.present
        if not finished and present and all(n.status is Status.ADRIFT for n in present):
            return self._wait_adrift()
        self.deadline = min(self.deadline, desk.now + desk.terms.clocks.neighbours)
        if any(n.far or abs(desk.books.seen[n.m] - d) <= 1 for n in self._trusted):
            self.together, desk.alone = d, False
        late = self.waiting_for
        if late and desk.now < self.deadline:
            return False
        if late:
            desk.ports.at("wait.deadline")
        for neighbour in (self.neighbours[m] for m in late if self.neighbours[m].up):
            neighbour.up = False
            desk.ports.log("down", neighbour=neighbour.m, round=d)
        return self._drain() if finished else self._open()

    def _wait_adrift(self) -> bool:
        """After a rejoin: until the first neighbour has come as far, or go to where one is that rejoined as well.

        Not before the clock can be there: or one neighbour's word would end the run for this server.
        """
        self.deadline = NEVER
        ahead = max(self.desk.books.seen[n.m] for n in self.present)
        if ahead <= self.desk.books.decided:
            return False
        if self.desk.now < (due := self.desk.terms.clock_time(ahead)):
            self.deadline = due
            return False
        return self._skip(ahead, Skip.BEHIND)

    def _catch_up(self) -> bool:
        """T2: a neighbour is two rounds ahead, so a deadline was missed here."""
        books = self.desk.books
        if self._asked:
            return False
        ahead = max((books.seen[n.m] for n in self._trusted if not n.far), default=0)
        to = min(ahead, self.desk.terms.clock_round(self.desk.now))
        return ahead >= books.decided + 2 and to > books.decided and self._skip(to, Skip.BEHIND)

    @property
    def _asked(self) -> bool:
        """The sum of the open round is there, or its question has left: it may still be published."""
        cohort = self.cohort
        return cohort is not None and (
            cohort.sum is not None or (self.desk.books.transcript != b"" and not cohort.failed)
        )

    def _skip(self, to: int, why: str) -> bool:
        desk, cohort = self.desk, self.cohort
        changes = exchange.skip(desk.books, desk.rules, to, desk.now, following=why == Skip.BEHIND)
        desk.commit(changes, "skip")
        desk.ports.at("skip.committed")
        if cohort is None:
            desk.ports.log("skipped", round=to, why=str(why))
        else:
            desk.ports.log("skipped", round=to, why=str(why), waited=len(cohort.unheard))
            cohort.give_up(desk.now)
        for neighbour in self.present:
            neighbour.say()
            neighbour.later()
        for neighbour in self.neighbours.values():
            neighbour.early = {i: blob for i, blob in neighbour.early.items() if i > to}
        return self._wait()

    # Adapt

    def _open(self) -> bool:
        """T0: the sample of a round is drawn once, and stored before anybody is invited."""
        desk, books, ports, i = self.desk, self.desk.books, self.desk.ports, self.desk.books.decided + 1
        self.idle = self._idle(i)
        desk.alone = self.idle is Skip.LEASH
        if self.idle is None and self._starves(i):
            self.deadline = NEVER
            return False
        desk.phase, self.deadline = Phase.ADAPT, desk.now + desk.terms.clocks.adapt
        if self.idle is not None:  # it keeps pace, and says nothing
            ports.log("halted", round=i, why=str(self.idle))
            return True
        ports.at("round.open.before")
        attempt, kept = books.attempt, b""
        if attempt is None or attempt.round != i:
            attempt = Attempt(i, 1, ports.sample(i))
        elif books.transcript:
            kept = books.transcript
        else:
            attempt = attempt._replace(number=attempt.number + 1)
        if not kept:
            desk.commit(Changes(attempt=attempt), "round.open")
        ports.at("round.open.committed")
        self.cohort = Cohort(desk, attempt, self._keep, {k for k, last in self.left_out.items() if i <= last})
        self.deadline = self.cohort.deadline
        ports.at("adapt.handed_out")
        return True

    def _starves(self, i: int) -> bool:
        """The first sum waits until clients enough are here: rounds would run out, and noise alone be released.

        Neighbours go on without this unit, and it follows them (T2).
        """
        desk = self.desk
        here, needed = len(desk.attendance.here), desk.terms.quorum
        starves = desk.books.published == 0 and here < needed
        if starves and not self.starved:
            desk.ports.log("waiting", round=i, clients=here, needed=needed)
        self.starved = starves
        return starves

    def _idle(self, i: int) -> Skip | None:
        """Why this round is not to be published."""
        desk, present = self.desk, self.present
        if desk.books.published >= desk.terms.allowed:
            desk.ports.at("halt.budget")
            return Skip.BUDGET
        return Skip.LEASH if present and i > min(self.together, self._farthest) + desk.terms.leash else None

    @property
    def _farthest(self) -> float:
        """The last round that any neighbour has decided, but for those about whom there is an alarm."""
        return max((self.desk.books.seen[n.m] for n in self._trusted), default=-NEVER)

    @property
    def _trusted(self) -> list[Neighbour]:
        return [n for n in self.present if n.status is not Status.SUSPECT]

    def _keep(self, transcript: bytes) -> None:
        """Before a question leaves; where it is the sums that cost, the one whose answers tell it is paid for."""
        desk, books, terms = self.desk, self.desk.books, self.desk.terms
        changes = Changes()
        if terms.sums_cost and Kept.decode(transcript).reveals:
            changes = exchange.reveal(books, desk.rules, terms.costs[books.published], int(desk.now))
        desk.commit(replace(changes, transcript=transcript), "adapt")

    def _publish_at(self, cohort: Cohort) -> float:
        """The first tick after the sum was complete. Publishing on a tick hides how long training took."""
        tick = self.desk.terms.clocks.tick
        ticks = max(1, math.ceil((cohort.ready - cohort.opened) / tick - 1e-9))
        return cohort.opened + min(ticks * tick, self.desk.terms.clocks.adapt)

    def _adapt(self) -> bool:
        cohort, now = self.cohort, self.desk.now
        if cohort is not None and cohort.sum is not None:
            if now < self._publish_at(cohort):
                return False
            self.desk.ports.at("adapt.aggregated")
            self._publish(cohort, cohort.sum)
            return True
        if now < self.deadline:
            return False
        i, failed = self.desk.books.decided + 1, "" if cohort is None else cohort.failed
        for client in () if cohort is None else cohort.liars:
            self.left_out[client] = i + LEFT_OUT
            self.desk.ports.log("left out", client=client, round=i + LEFT_OUT)
        return self._skip(i, self.idle or failed or Skip.LATE)

    def _publish(self, cohort: Cohort, found: Sum) -> None:
        """T1: adapt, draw, and commit everything at once; then tell the neighbours."""
        desk, terms, books, ports = self.desk, self.desk.terms, self.desk.books, self.desk.ports
        i = books.decided + 1
        if found.out_of_range:
            ports.log("out of range", round=i)
        shrink = terms.shrink(cohort.attempt.sample, found.survivors)
        update: Vector = terms.arithmetic.add(cohort.model, found.total, shrink) - cohort.model
        psi = books.w + update  # not the sum itself: flows may have come in since the model was handed out

        def draw(purpose: Purpose, ids: tuple[int, ...], sigma: float) -> State:
            return ports.noise(purpose, (i, *ids), terms.scheme.law, sigma, desk.rules.length)

        me = Sender(terms.scheme, desk.rules.me, terms.own_weight, terms.weights, psi, draw, terms.arithmetic)
        own, sent = me.perturb()
        ports.at("publish.drawn")
        cost = None if terms.sums_cost else terms.costs[books.published]
        present, changes = self.present, exchange.publish(books, desk.rules, own, sent, cost, desk.now, ports.sign)
        for neighbour in present:
            changes = neighbour.take_early(books, changes)  # so that the offers say which flows are in
        desk.commit(changes, "publish")
        self.cohort = None
        ports.at("publish.committed")
        offered = [n.m for n in present if i in books.open[n.m]]
        suspended = [n.m for n in present if i not in books.open[n.m]]
        ports.log("published", round=i, clients=len(found.survivors), offered=offered, suspended=suspended)
        for m in changes.balances:
            ports.log("applied", neighbour=m, round=i)
        for n, neighbour in enumerate(present):
            neighbour.say(offer=i if neighbour.m in offered else None, ask=neighbour.m in offered)
            neighbour.later()
            if n == 0:
                ports.at("publish.sent_first")
        ports.at("publish.sent_all")
        self._wait()

    def _drain(self) -> bool:
        self.desk.settle()
        self.desk.phase, self.deadline = Phase.DRAIN, self.desk.now + self.desk.terms.clocks.drain
        over = client_messages.encode(enrolment.welcome(self.desk.terms, self.desk.books))
        for client in range(self.desk.terms.clients):
            self.desk.ports.to_client(client, over)  # nothing is asked of it any more
        return True
