"""The server of a unit: rounds with its clients, the exchange with its neighbours, all in front of its store.

    boot -> wait -> adapt -> wait -> adapt -> ... -> drain -> finished          any of them -> stopped(why)

A machine without clock, network or threads: whoever drives it says what came in and what time it is, and is handed
what goes out. Every transition is committed before a byte of it leaves, and what leaves is read from the books. `at`
is told the crash points (docs/design/flows.md, 5), so that tests can end the machine at any of them.
"""

from __future__ import annotations

import math
import secrets
from collections import Counter
from dataclasses import replace
from math import inf as NEVER

from confide.base.errors import RunError
from confide.base.randomness import Purpose
from confide.base.wire import MalformedError
from confide.deploy.machines import client_messages, enrolment, exchange, release_messages, sync
from confide.deploy.machines import epoch as epochs
from confide.deploy.machines.cohort import Cohort, Kept
from confide.deploy.machines.exchange import ExchangeError, OtherBytesError
from confide.deploy.machines.ports import Phase, Ports
from confide.deploy.machines.relay import Relay, Releases
from confide.deploy.machines.release import Context, Part
from confide.deploy.machines.resends import Resends
from confide.deploy.machines.terms import Terms
from confide.deploy.store.books import Attempt, Books, Changes, Status, Vector
from confide.deploy.store.store import Store
from confide.rounds.arithmetic import State
from confide.rounds.combine import perturb


class Server:
    def __init__(self, terms: Terms, store: Store, ports: Ports) -> None:
        self.terms, self.rules, self.store, self.ports = terms, terms.rules, store, ports
        self.books: Books = store.load()
        self.phase = Phase.BOOT
        self.why = ""  # stopped
        self.refusals: Counter[str] = Counter()
        self.alarms: list[str] = []
        self.up = dict.fromkeys(terms.rules.weights, True)
        self.early: dict[int, dict[int, bytes]] = {m: {} for m in terms.rules.weights}
        self._heard: set[int] = set()
        self._epoch_heard = dict.fromkeys(terms.rules.weights, 0)
        self._reached = 0  # in a rejoin: the highest round that anybody mentions
        self._blank: set[int] = set()  # in a rejoin: who knows of no round, as its store may be lost as well
        self._far: set[int] = set()  # neighbours that moved ahead in a rejoin and wait there: nobody follows them
        self._known = 0  # the highest of this server's rounds that a neighbour says it has seen
        self._deadline = NEVER
        self._resends = Resends(terms.rules.weights, terms.exchange)
        self._nonce = {m: secrets.randbits(62) + 1 for m in terms.rules.weights}
        self._cohort: Cohort | None = None
        self._idle = ""  # why there is none in a round
        self._now = 0.0
        self._epoch = epochs.decode(self.books.epoch) if self.books.epoch else None
        self._present = self._not_removed()
        self.releases = None if ports.release is None else Releases(self._release_context(ports.release))

    # What the driver calls

    def boot(self, now: float, *, rejoin: bool = False) -> None:
        """Start, or start again. `rejoin`: the store is a restored or a new one, older than what may have left."""
        self._now = now
        self.ports.at("boot.loaded")
        self.phase = Phase.REJOIN if rejoin else Phase.BOOT
        self._deadline = NEVER if rejoin or self.new else now + self.terms.exchange
        for m in self._present:
            self._sync(m, ask=True)
            self._resends.later(m, self._now)
        self.ports.at("boot.sent")
        if self._epoch is not None and self.rules.me in self._epoch.removed:
            self._stop("this server was removed from the network")
        self._advance()

    def from_server(self, now: float, sender: int, raw: bytes) -> None:
        """Bytes from a neighbour, whom the network authenticated."""
        self._now = now
        if self.phase is Phase.STOPPED:
            return
        if self.releases is not None and release_messages.is_one(raw):
            self.releases.receive(now, sender, raw)
            return
        self.ports.at("sync.received")
        try:
            message = sync.decode(raw, self.terms.largest_sync)
            self._check_sender(message, sender)
            match message:
                case sync.Sync():
                    self._on_sync(message)
                case sync.AskBalance():
                    self._on_ask_balance(message)
                case sync.TellBalance():
                    self._on_balance(message)
                case sync.TellEpoch():
                    self.follow(now, message.epoch)
        except MalformedError:
            self._refuse("server: malformed")
        except OtherBytesError as e:
            self._alarm(f"server {sender} sent {e}")
        except ExchangeError as e:
            self._refuse(f"server: {e}")
        except epochs.EpochError as e:
            self._refuse("server: an epoch that does not hold")
            self.ports.log("epoch refused", why=str(e))
        self._advance()

    def from_client(self, now: float, client: int, raw: bytes) -> None:
        """Bytes from a client of this unit, whom the network authenticated."""
        self._now = now
        if self.phase is Phase.STOPPED:
            return
        try:
            message = client_messages.from_client(raw, self.terms.cohort.largest_message)
        except MalformedError:
            self._refuse("client: malformed")
            return
        if isinstance(message, client_messages.Enrol):
            self._enrol(client, message)
        elif self._cohort is None:
            self._refuse("client: no round is open")
        else:
            self._cohort.receive(now, client, message)
        self._advance()

    def tick(self, now: float) -> None:
        """Time has passed."""
        self._now = now
        if self.phase is Phase.STOPPED:
            return
        if self._cohort is not None:
            self._cohort.tick(now)
        for m in self._resends.due(now):
            self._repeat(m)
        if self.releases is not None:
            self.releases.tick(now)
        self._advance()

    @property
    def wake(self) -> float:
        """When `tick` is to be called at the latest."""
        if self.phase is Phase.STOPPED:
            return NEVER
        due = self._deadline
        if self._cohort is not None:
            due = self._publish_at(self._cohort) if self._cohort.sum is not None else min(due, self._cohort.wake)
        release = NEVER if self.releases is None else self.releases.wake
        return min(due, release, self._resends.wake)

    def connected(self, now: float, m: int) -> None:
        """The way to a neighbour is open (again)."""
        self._now = now
        if self.phase is not Phase.STOPPED and self.books.status[m] is not Status.REMOVED:
            self._sync(m, ask=True)
            self._repeat(m)

    def follow(self, now: float, raw: bytes) -> None:
        """T4: a signed epoch, from an operator or passed on by a neighbour; raises `EpochError`."""
        self._now = now
        found = epochs.decode(raw)
        if self._epoch is not None and found.number <= self._epoch.number:
            return
        epochs.check(found, self.rules.plan, self.terms.identities, self.terms.edges, self._epoch)
        self._commit(exchange.remove(self.books, found.removed, raw), "remove")
        self._epoch, self._present = found, self._not_removed()
        self.ports.log("removed", servers=list(found.removed), epoch=found.number)
        for m in self.rules.weights.keys() & set(found.removed):
            self._resends.never(m)
        for m in self.rules.weights:  # also to those who are gone: they stop
            self._tell_epoch(m)
            if m not in found.removed:
                self._resends.later(m, self._now)
        if self.rules.me in found.removed:
            self._stop("this server was removed from the network")
        self._advance()

    def release(self, now: float, *, again: bool = False) -> Relay:
        """Relay a release to its end, which the relay says."""
        if self.releases is None or self.phase is Phase.STOPPED:
            raise RunError(self.why or "the plan has no release")
        self._now = now
        return self.releases.begin(now, again=again)

    @property
    def pending(self) -> dict[int, list[int]]:
        """Rounds whose flow is open, by neighbour."""
        return {m: sorted(records) for m, records in self.books.open.items() if records}

    @property
    def new(self) -> bool:
        """Still to hear every neighbour: a store without a round may stand in for one that was lost, and they know."""
        return self.phase is Phase.BOOT and self.books.decided == 0 and self.books.attempt is None

    # Rounds

    def _advance(self) -> None:
        """Whatever can be done now."""
        while self._step():
            pass

    def _step(self) -> bool:
        now, d, T = self._now, self.books.decided, self.rules.rounds
        match self.phase:
            case Phase.BOOT:
                if self._heard >= set(self._present) or now >= self._deadline:
                    return self._wait()
            case Phase.REJOIN:
                if self._heard >= set(self._present):
                    return self._rejoin()
            case Phase.WAIT:
                begin = self.terms.clock_time(self.books.rejoined + 1)  # nobody is ever ahead of the clock with a sum
                if d < T and now < begin:
                    self._deadline = begin
                    return False
                if self._catch_up():
                    return True
                if d < T and self._present and all(self.books.status[m] is Status.ADRIFT for m in self._present):
                    return self._wait_adrift()
                self._deadline = min(self._deadline, now + self.terms.exchange)
                late = [m for m in self._present if self.up[m] and not self._settled(m)]
                if late and now < self._deadline:
                    return False
                if late:
                    self.ports.at("wait.deadline")
                for m in late:
                    self.up[m] = False
                    self.ports.log("down", neighbour=m, round=d)
                return self._drain() if d == T else self._open()
            case Phase.ADAPT:
                return self._catch_up() or self._adapt()
            case Phase.DRAIN:
                if not self.pending or now >= self._deadline:
                    self.phase, self._deadline = Phase.FINISHED, NEVER
                    self.ports.at("finish.drained")
                    self.ports.log("finished", pending=self.pending)
        return False

    def _wait_adrift(self) -> bool:
        """After a rejoin: until the first neighbour has come as far, or go to where one is that rejoined as well.

        Not before the clock can be there: or one neighbour's word would end the run for this server.
        """
        self._deadline = NEVER
        ahead = max(self.books.seen[m] for m in self._present)
        if ahead <= self.books.decided:
            return False
        if self._now < (due := self.terms.clock_time(ahead)):
            self._deadline = due
            return False
        self._skip(ahead, "behind the neighbours")
        return True

    def _wait(self) -> bool:
        self.phase, self._cohort = Phase.WAIT, None
        self._deadline = self._now + self.terms.exchange
        return True

    def _settled(self, m: int) -> bool:
        """Nothing of the last round is to come from this neighbour: it has decided, and its flow is in or void."""
        if self.books.status[m] is Status.ADRIFT:
            return True
        record = self.books.open[m].get(self.books.decided)
        return self.books.seen[m] >= self.books.decided and (record is None or record.applied)

    def _catch_up(self) -> bool:
        """T2: a neighbour is two rounds ahead, so a deadline was missed here."""
        seen, d = self.books.seen, self.books.decided
        ahead = max((seen[m] for m in self._present if m not in self._far), default=0)
        if ahead < d + 2 or (to := min(ahead, self.terms.clock_round(self._now))) <= d:
            return False
        self._skip(to, "behind the neighbours")
        return True

    def _skip(self, to: int, why: str) -> None:
        self._commit(exchange.skip(self.books, self.rules, to, int(self._now)), "skip")
        self.ports.at("skip.committed")
        self.ports.log("skipped", round=to, why=why)
        for m in self._present:
            self._sync(m)
            self._resends.later(m, self._now)
        self.early = {m: {i: b for i, b in offers.items() if i > to} for m, offers in self.early.items()}
        self._wait()

    def _open(self) -> bool:
        """T0: the sample of a round is drawn once, and stored before anybody is invited."""
        i, books = self.books.decided + 1, self.books
        self.phase, self._deadline = Phase.ADAPT, self._now + self.terms.adapt
        self._idle = ""
        if books.published >= self.terms.allowed:
            self.ports.at("halt.budget")
            self._idle = "the budget is spent"
        elif self._present and i > max(self._known, *books.seen.values()) + self.terms.leash:
            self._idle = "no neighbour has heard of the last rounds"
        if self._idle:  # it keeps pace, and says nothing
            self.ports.log("halted", round=i, why=self._idle)
            return True
        self.ports.at("round.open.before")
        again = books.attempt is not None and books.attempt.round == i
        previous = books.attempt if again else None
        sample = previous.sample if previous is not None else self.ports.sample(i)
        number = 1 if previous is None else previous.number + (0 if books.transcript else 1)
        if not (again and books.transcript):
            self._commit(Changes(attempt=Attempt(i, number, sample)), "round.open")
        self.ports.at("round.open.committed")
        self._cohort = Cohort(
            self.terms.cohort,
            Attempt(i, number, sample),
            self.books.w,
            self._now,
            self.ports.to_client,
            self._keep,
            self.refusals,
            self.books.transcript,
        )
        self._deadline = self._cohort.deadline
        self.ports.at("adapt.handed_out")
        return True

    def _keep(self, transcript: bytes) -> None:
        """Before a question leaves; where it is the sums that cost, the one whose answers tell it is paid for."""
        changes = Changes()
        if self.terms.sums_cost and Kept.decode(transcript).reveals:
            changes = exchange.reveal(self.books, self.rules, self.terms.costs[self.books.published], int(self._now))
        self._commit(replace(changes, transcript=transcript), "adapt")

    def _publish_at(self, cohort: Cohort) -> float:
        """The tick after the sum was there: how long the clients took is not to be seen in between."""
        ticks = max(1, math.ceil((cohort.ready - cohort.opened) / self.terms.tick - 1e-9))
        return cohort.opened + min(ticks * self.terms.tick, self.terms.adapt)

    def _adapt(self) -> bool:
        if self._cohort is not None and self._cohort.sum is not None:
            if self._now < self._publish_at(self._cohort):
                return False
            self.ports.at("adapt.aggregated")
            self._publish(self._cohort)
            return True
        if self._now < self._deadline:
            return False
        why = self._idle if self._cohort is None else (self._cohort.failed or "the sum came too late")
        self._skip(self.books.decided + 1, why)
        return True

    def _publish(self, cohort: Cohort) -> None:
        """T1: adapt, draw, and commit everything at once; then tell the neighbours."""
        terms, books, i = self.terms, self.books, self.books.decided + 1
        assert cohort.sum is not None  # noqa: S101 - the caller saw it
        shrink = terms.shrink(cohort.attempt.sample, cohort.sum.survivors)
        update: Vector = terms.arithmetic.add(cohort.model, cohort.sum.total, shrink) - cohort.model
        psi = books.w + update  # not the sum itself: flows may have come in since the model was handed out

        def draw(purpose: Purpose, ids: tuple[int, ...], sigma: float) -> State:
            return self.ports.noise(purpose, (i, *ids), terms.scheme.law, sigma, self.rules.length)

        own, sent = perturb(terms.scheme, self.rules.me, terms.own_weight, terms.weights, psi, draw, terms.arithmetic)
        self.ports.at("publish.drawn")
        cost = None if terms.sums_cost else terms.costs[books.published]
        self._commit(exchange.publish(books, self.rules, own, sent, cost, int(self._now)), "publish")
        self._cohort = None
        self.ports.at("publish.committed")
        offered = [m for m in self._present if i in self.books.open[m]]
        suspended = [m for m in self._present if i not in self.books.open[m]]
        self.ports.log("published", round=i, clients=len(cohort.sum.survivors), offered=offered, suspended=suspended)
        self._take_early()  # first, so that the offers already say which flows are in
        for n, m in enumerate(self._present):
            self._sync(m, offer=i if m in offered else None, ask=m in offered)
            self._resends.later(m, self._now)
            if n == 0:
                self.ports.at("publish.sent_first")
        self.ports.at("publish.sent_all")
        self._wait()

    def _take_early(self) -> None:
        """Offers that came before this round was decided here, each a transition of its own."""
        for m in self._present:
            for i in sorted(i for i in self.early[m] if i <= self.books.decided):
                blob = self.early[m].pop(i)
                if changes := exchange.on_early(self.books, self.rules, m, i, blob):
                    self._commit(changes, "early")
                    self.ports.log("applied", neighbour=m, round=i)

    def _drain(self) -> bool:
        self.phase, self._deadline = Phase.DRAIN, self._now + self.terms.drain
        over = client_messages.encode(enrolment.welcome(self.terms, self.books))
        for client in range(self.terms.cohort.clients):
            self.ports.to_client(client, over)  # nothing is asked of it any more
        return True

    # The exchange

    def _on_sync(self, message: sync.Sync) -> None:
        m = message.sender
        if self.books.status[m] is Status.REMOVED:
            self._tell_epoch(m)
            raise ExchangeError("from a server that was removed")
        if self.phase is Phase.REJOIN:
            exchange.check(self.rules, message)
            self._reached = max(self._reached, message.seen, message.decided)
            self._heard.add(m)
            if message.decided == 0:
                self._blank.add(m)
            return
        if message.seen > self.books.decided:
            self._stop(
                f"server {m} has seen round {message.seen} of this server, whose store ends at round "
                f"{self.books.decided}: it is older than what left; rejoin with a new store"
            )
            return
        self._take(message)
        self._heard.add(m)
        self._known = max(self._known, message.seen)
        self._far.discard(m)
        if not message.open and message.balance is None:  # it is adrift
            self._far.add(m)
        self._resends.heard(m)
        if not self.up[m] and message.decided >= self.books.decided - 1:
            self.up[m] = True
            self.ports.log("up", neighbour=m, round=self.books.decided)
        self._epoch_heard[m] = max(self._epoch_heard[m], message.epoch)
        if message.epoch < self.epoch:
            self._tell_epoch(m)
        if self.books.status[m] is Status.ADRIFT:
            self._ask_balance(m, message)
        if message.ask:
            self._sync(m)
            self.ports.at("sync.replied")

    def _take(self, message: sync.Sync) -> None:
        """T3."""
        m = message.sender
        heard = exchange.on_sync(self.books, self.rules, message)
        if heard.early is not None:
            self._keep_early(m, *heard.early)
        if heard.unbalanced:
            self._alarm(f"server {m} has other flows on our edge: one of the two stores is not what it was; rejoin")
        if heard.changes:
            self._commit(heard.changes, "sync")
            self.ports.at("sync.committed")
        if heard.applied is not None:
            self.ports.log("applied", neighbour=m, round=heard.applied, late=self.books.decided - heard.applied)
        for i in heard.void:
            self.ports.log("void", neighbour=m, round=i)

    def _keep_early(self, m: int, i: int, blob: bytes) -> None:
        """Volatile, and no more than a window: what is not kept is offered again."""
        kept = self.early[m]
        if i in kept and kept[i] != blob:
            raise OtherBytesError(f"other bytes for round {i}, which was offered")
        if i in kept or len(kept) < self.rules.window:
            kept[i] = blob

    def _check_sender(self, message: sync.FromServer, sender: int) -> None:
        if message.plan != self.rules.plan:
            raise ExchangeError("of another plan")
        if message.sender != sender or message.receiver != self.rules.me:
            raise ExchangeError("not from whom it says, or not for this server")
        if sender not in self.rules.weights:
            raise ExchangeError("from a server that is no neighbour")

    def _sync(self, m: int, *, offer: int | None = None, ask: bool = False) -> None:
        message = exchange.make_sync(self.books, self.rules, m, epoch=self.epoch, offer=offer, ask=ask)
        if self.phase is Phase.REJOIN:  # of a restored store only the question is true
            message = replace(message, decided=0, open=(), offer=None, balance=None)
        self.ports.to_server(m, sync.encode(message))

    def _repeat(self, m: int) -> None:
        """What a neighbour may have missed: every open offer, and the question where something is awaited."""
        records = {} if self.phase is Phase.REJOIN else self.books.open[m]
        for i in sorted(records):
            self._sync(m, offer=None if records[i].peer_applied else i, ask=True)
        if not records and self._awaits(m):
            self._sync(m, ask=True)
        if records or self._awaits(m):
            self._resends.slower(m, self._now)
        else:
            self._resends.never(m)

    def _awaits(self, m: int) -> bool:
        if self.phase is not Phase.REJOIN and self.books.status[m] is Status.ADRIFT:
            return True
        if self._epoch_heard[m] < self.epoch and self.books.status[m] is not Status.REMOVED:
            return True  # it may have missed the removal
        match self.phase:
            case Phase.BOOT | Phase.REJOIN:
                return m not in self._heard
            case Phase.WAIT:
                return self.up[m] and not self._settled(m)
        return False

    # A store that was restored, and servers that are gone

    def _rejoin(self) -> bool:
        """Move to a round that this server cannot have passed before its store was lost, and pay for the gap.

        The leash holds from what any neighbour ever said; where one of them may have forgotten it, or is gone, only the
        clock is left, and the round that was open.
        """
        books, T = self.books, self.rules.rounds
        known = bool(books.neighbours) and self._heard - self._blank >= set(books.neighbours)
        if known:
            to = min(T, max(self._reached, books.decided) + self.terms.leash)
        else:
            to = min(T, max(self._reached, 1 + max(books.decided, self.terms.clock_round(self._now))))
        seen = self.terms.sums_cost and bool(books.transcript) and Kept.decode(books.transcript).reveals
        costs = [None] * seen + list(self.terms.costs[books.published : books.published + to - books.decided - seen])
        self._commit(exchange.rejoin(books, self.rules, to, costs, int(self._now)), "rejoin")
        self.ports.log("rejoined", round=to, charged=len(costs) - seen, by="neighbours" if known else "clock")
        self._wait()
        for m in self._present:
            self._sync(m, ask=True)
            self._resends.later(m, self._now)
        return True

    def _ask_balance(self, m: int, message: sync.Sync) -> None:
        """Once the neighbour has closed every record from before, its balance will not change any more."""
        since = self.books.rejoined
        if message.decided >= since and not any(i <= since for i, _ in message.open):
            self._send_ask(m, 0)

    def _send_ask(self, m: int, echo: int) -> None:
        ask = sync.AskBalance(self.rules.plan, self.rules.me, m, self.books.rejoined, self._nonce[m], echo)
        self.ports.to_server(m, sync.encode(ask))

    def _on_ask_balance(self, ask: sync.AskBalance) -> None:
        m = ask.sender
        if self.phase is Phase.REJOIN:
            return
        if self.books.status[m] is Status.ADRIFT:
            if changes := exchange.settle(self.books, self.rules, ask, self._nonce[m]):
                self._commit(changes, "balance")
                self.ports.log("balanced", neighbour=m)
            elif self.rules.me > m:
                self._nonce[m] = secrets.randbits(62) + 1  # no answer to an older question is taken any more
                self._send_ask(m, ask.nonce)
        if (tell := exchange.tell_balance(self.books, self.rules, ask)) is not None:
            self.ports.to_server(ask.sender, sync.encode(tell))

    def _on_balance(self, tell: sync.TellBalance) -> None:
        if tell.nonce != self._nonce[tell.sender]:
            return
        if self.phase is not Phase.REJOIN and (changes := exchange.on_balance(self.books, self.rules, tell)):
            self._commit(changes, "balance")
            self.ports.log("balanced", neighbour=tell.sender)

    def _tell_epoch(self, m: int) -> None:
        if self.books.epoch:
            self.ports.to_server(m, sync.encode(sync.TellEpoch(self.rules.plan, self.rules.me, m, self.books.epoch)))

    def _not_removed(self) -> list[int]:
        return [m for m in self.books.neighbours if self.books.status[m] is not Status.REMOVED]

    @property
    def epoch(self) -> int:
        """The number of the last removal; 0 before any."""
        return 0 if self._epoch is None else self._epoch.number

    # Clients

    def _enrol(self, client: int, message: client_messages.Enrol) -> None:
        answer, refused = enrolment.answer(self.terms, self.books, client, message)
        self.ports.to_client(client, client_messages.encode(answer))
        if refused:
            self._refuse(refused)
        elif self._cohort is not None:
            self._cohort.enrolled(client)

    # Bookkeeping

    def _release_context(self, part: Part) -> Context:
        return Context(
            rules=self.rules,
            identities=self.terms.identities,
            part=part,
            books=self.books,
            commit=self._commit,
            finished=lambda: self.phase in (Phase.DRAIN, Phase.FINISHED),
            epoch=lambda: self._epoch,
            send=self.ports.to_server,
            refusals=self.refusals,
            at=self.ports.at,
            log=self.ports.log,
        )

    def _commit(self, changes: Changes, name: str) -> None:
        self.store.commit(changes, self.ports.at, name)
        self.books.apply(changes)

    def _refuse(self, why: str) -> None:
        self.refusals[why] += 1

    def _alarm(self, what: str) -> None:
        self.refusals["alarm"] += 1
        self.alarms = [*self.alarms[-99:], what]
        self.ports.log("alarm", what=what)

    def _stop(self, why: str) -> None:
        self.phase, self.why, self._cohort = Phase.STOPPED, why, None
        self.ports.log("stopped", why=why)
