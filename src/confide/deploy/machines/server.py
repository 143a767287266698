"""The server of a unit: rounds with its clients, the exchange with its neighbours, all in front of its store.

A machine without clock, network or threads: whoever drives it says what came in and what time it is, and is handed
what goes out. It brings both to the machines that decide: `rounds`, one `neighbour` for each edge, `rejoining`,
`removal` and `relay`. Every transition is committed before a byte of it leaves, and what leaves is read from the books.
"""

from __future__ import annotations

from math import inf as NEVER

from confide.base.errors import RunError
from confide.base.wire import MalformedError
from confide.deploy.machines import client_messages, enrolment, evidence, exchange, release_messages, sync
from confide.deploy.machines import cohort as cohorts
from confide.deploy.machines.epoch import EpochError
from confide.deploy.machines.exchange import ExchangeError, LieError, OtherBytesError, Reason
from confide.deploy.machines.neighbour import Neighbour
from confide.deploy.machines.ports import Desk, Phase, Ports
from confide.deploy.machines.rejoining import Rejoining
from confide.deploy.machines.relay import Relay
from confide.deploy.machines.releases import Releases
from confide.deploy.machines.removal import Removal
from confide.deploy.machines.rounds import Rounds, Stop
from confide.deploy.machines.terms import Terms
from confide.deploy.store.books import Changes, Status
from confide.deploy.store.store import Store


class Server(Desk):
    """Attributes:
    asked: neighbours that are answered at the end of the wait.
    """

    def __init__(self, terms: Terms, store: Store, ports: Ports) -> None:
        super().__init__(terms, store, ports)
        self.asked: set[int] = set()
        self.neighbours = {m: Neighbour(self, m) for m in terms.rules.weights}
        self.removal = Removal(self, self.neighbours)
        self.rejoining = Rejoining(self, self.neighbours)
        self.rounds = Rounds(self, self.neighbours, self.rejoining)
        self.releases = None if ports.release is None else Releases(self, ports.release)

    # What the driver calls

    def boot(self, now: float, *, rejoin: bool = False) -> None:
        """Start, or start again. `rejoin`: the store is a restored or a new one, older than what may have left."""
        self.now = now
        if self.books.overtaken and not rejoin:
            self.rounds.stop(Stop.OLD, seen=self.books.overtaken, ends=self.books.decided)
            return
        self.rounds.boot(rejoin=rejoin)
        if self.releases is not None:
            self.releases.boot(now)
        self._stop_if_removed()
        self._advance()

    def from_server(self, now: float, sender: int, raw: bytes) -> None:
        """Bytes from a neighbour, whom the network authenticated."""
        self.now = now
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
                    self.rejoining.on_ask(message)
                case sync.TellBalance():
                    self.rejoining.on_balance(message)
                case sync.TellEpoch():
                    self.follow(now, message.epoch)
        except MalformedError:
            self.refusals[Reason.MALFORMED] += 1
        except OtherBytesError as e:
            self._accuse(sender, e)
        except LieError as e:
            self.refusals[str(e)] += 1
            self.alarm(str(e).replace("server", self.terms.who(sender), 1))
        except ExchangeError as e:
            self.refusals[str(e)] += 1
        except EpochError as e:
            self.refusals[Reason.EPOCH] += 1
            self.ports.log("epoch refused", why=str(e))
        self._advance()

    def from_client(self, now: float, client: int, raw: bytes) -> None:
        """Bytes from a client of this unit, whom the network authenticated."""
        self.now = now
        if self.phase is Phase.STOPPED:
            return
        self.attendance.spoke(client)
        cohort = self.rounds.cohort
        try:
            message = client_messages.from_client(raw, self.terms.largest_from_client)
        except MalformedError:
            self.refusals[cohorts.Reason.MALFORMED] += 1
            return
        if isinstance(message, client_messages.Enrol):
            self._enrol(client, message)
        elif cohort is None:
            self.refusals[cohorts.Reason.NO_ROUND] += 1
        else:
            cohort.receive(now, client, message)
        self._advance()

    def client_connected(self, now: float, client: int) -> None:
        """A client has a stream (again)."""
        self.now = now
        self.attendance.connected(client)
        self._advance()

    def client_lost(self, now: float, client: int) -> None:
        """It has none any more."""
        self.now = now
        self.attendance.lost(client)
        if self.rounds.cohort is not None:
            self.rounds.cohort.look(now)
        self._advance()

    def tick(self, now: float) -> None:
        """Time has passed."""
        self.now = now
        if self.phase is Phase.STOPPED:
            return
        if self.rounds.cohort is not None:
            self.rounds.cohort.tick(now)
        for neighbour in [n for n in self.neighbours.values() if now >= n.resend_at]:
            neighbour.repeat()
        if self.releases is not None:
            self.releases.tick(now)
        self._advance()

    @property
    def wake(self) -> float:
        """When `tick` is to be called at the latest."""
        if self.phase is Phase.STOPPED:
            return NEVER
        release = NEVER if self.releases is None else self.releases.wake
        return min(self.rounds.wake, release, *(n.resend_at for n in self.neighbours.values()))

    def connected(self, now: float, m: int) -> None:
        """The way to a neighbour is open (again)."""
        self.now = now
        neighbour = self.neighbours[m]
        if self.phase is not Phase.STOPPED and neighbour.status is not Status.REMOVED:
            neighbour.say(ask=True)
            neighbour.repeat()
            if self.releases is not None:
                self.releases.passing.connected(now, m)

    def follow(self, now: float, raw: bytes) -> None:
        """T4: a signed epoch, from an operator or passed on by a neighbour; raises `EpochError`."""
        self.now = now
        if self.removal.follow(raw):
            self._stop_if_removed()
            self._advance()

    def release(self, now: float, *, again: bool = False, anyway: bool = False) -> Relay:
        """Relay a release to its end, which the relay says."""
        if self.releases is None or self.phase is Phase.STOPPED:
            raise RunError(self.why or "the plan has no release")
        self.now = now
        return self.releases.begin(now, again=again, anyway=anyway)

    # How it brings what came in to the machines

    def _advance(self) -> None:
        """Whatever can be done now; who asked while this server waited for others is answered with what was opened."""
        self.rounds.advance()
        if self.phase is Phase.WAIT:
            return
        asked, self.asked = self.asked, set()
        for m in sorted(asked) if self.phase is not Phase.STOPPED else ():
            self.neighbours[m].say()
            self.ports.at("sync.replied")

    def _answer(self, neighbour: Neighbour) -> None:
        """At the end of the wait, so that all its flows are one transaction; at once, if it asks again meanwhile."""
        if self.phase is Phase.WAIT and neighbour.m not in self.asked:
            self.asked.add(neighbour.m)
        else:
            self.asked.discard(neighbour.m)
            neighbour.say()
            self.ports.at("sync.replied")

    def _check_sender(self, message: sync.FromServer, sender: int) -> None:
        rules = self.rules
        if message.plan != rules.plan:
            raise ExchangeError(Reason.PLAN)
        if message.sender != sender or message.receiver != rules.me:
            raise ExchangeError(Reason.NAMES)
        if sender not in self.neighbours:
            raise ExchangeError(Reason.STRANGER)

    def _on_sync(self, message: sync.Sync) -> None:
        neighbour, decided = self.neighbours[message.sender], self.books.decided
        if neighbour.status is Status.REMOVED:
            self.removal.tell(neighbour)
            raise ExchangeError(Reason.REMOVED)
        exchange.check(self.rules, message, self.clock)
        if self.phase is Phase.REJOIN:
            self.rejoining.hear(message)
            return
        if beyond := exchange.own_beyond(self.books, self.rules, message):
            self.commit(Changes(overtaken=beyond), "overtaken")  # every later start knows it, whoever is up then
            self.rounds.stop(Stop.OLD, seen=beyond, ends=decided)
            return
        neighbour.hear(message)
        if message.epoch < self.epoch_number:
            self.removal.tell(neighbour)
        if neighbour.status is Status.ADRIFT:
            self.rejoining.ask_balance(message)
        if message.ask:
            self._answer(neighbour)

    def _accuse(self, sender: int, e: OtherBytesError) -> None:
        """A second message for a round; with both signatures that is kept, for whoever asks who it was."""
        if e.proof is None:
            self.neighbours[sender].suspend()
            self.alarm(f"{self.terms.who(sender)} sent {e}")
            return
        if changes := evidence.accuse(self.books, e.proof):
            self.commit(changes, "accuse")
        if (accused := e.proof.one.server) in self.neighbours:
            self.neighbours[accused].suspend()
        self.alarm(f"{self.terms.who(accused)} sent {e}: it signed both, and the store keeps the proof")

    def _enrol(self, client: int, message: client_messages.Enrol) -> None:
        answer, refused = enrolment.answer(self.terms, self.books, client, message)
        self.ports.to_client(client, client_messages.encode(answer))
        if refused is not None:
            self.refusals[refused] += 1
        elif self.rounds.cohort is not None:
            self.rounds.cohort.enrolled(client)

    def _stop_if_removed(self) -> None:
        if self.removal.gone:
            self.rounds.stop(Stop.REMOVED)
