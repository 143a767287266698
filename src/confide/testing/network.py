"""A whole network in one process, in virtual time: every machine real, every fault at will, every run repeatable.

Messages are bytes in a queue, ordered by the time of their arrival. A `Weather` says what happens to each on the way
and when machines die; all of it comes from one seed, so that a run that went wrong can be run again, and made smaller.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf as NEVER
from typing import Any, NamedTuple, Protocol

from confide.deploy.machines.ports import Phase, Ports
from confide.deploy.machines.release import Part
from confide.deploy.machines.server import Server
from confide.deploy.machines.terms import Terms
from confide.deploy.store.books import Changes
from confide.deploy.store.store import Around, At, Store, nowhere
from confide.rounds.noise import NoiseSource


class CrashError(BaseException):
    """A machine dies here; nothing in it may catch this."""


class Client(Protocol):
    """What the box needs of a client: it says hello, and answers what it is asked."""

    def hello(self) -> bytes: ...

    def receive(self, raw: bytes) -> list[bytes]: ...


Node = tuple[str, int, int]
"""("server", p, 0), or ("client", p, k) for client k of unit p."""


class Cut(NamedTuple):
    """Nothing gets from `source` to `target` for a while; two of them cut both ways.

        Cut(begin=50.0, end=120.0, source=("server", 0, 0), target=("server", 1, 0))

    Attributes:
        begin, end: virtual seconds.
        source, target: ("server", p, 0), or ("client", p, k) for client k of unit p.
    """

    begin: float
    end: float
    source: Node
    target: Node


@dataclass(frozen=True)
class Weather:
    """What goes wrong, in shares of messages and in virtual seconds; by default nothing but a short delay.

        Weather(loss=0.1, duplication=0.2, crash=0.003, away=(1.0, 30.0), calm=150.0)

    Attributes:
        delay: least and most seconds of a message; those that overtake others are reordered.
        loss, duplication: probability for each message.
        cuts: see `Cut`.
        crash: probability that a server dies at each crash point it passes; until `calm`.
        crash_at: crash points at which a server dies: (server, name, how often it is passed before).
        client_crash: probability that a client dies at each message, before or after it has handled it.
        away: least and most seconds that a dead machine stays away.
        calm: after this moment nothing goes wrong any more.
    """

    delay: tuple[float, float] = (0.001, 0.002)
    loss: float = 0.0
    duplication: float = 0.0
    cuts: tuple[Cut, ...] = ()
    crash: float = 0.0
    crash_at: tuple[tuple[int, str, int], ...] = ()
    client_crash: float = 0.0
    away: tuple[float, float] = (0.01, 0.02)
    calm: float = NEVER


class WatchedStore(Around):
    """A store that tells the network of every commit."""

    def __init__(self, inner: Store, told: Callable[[Changes], None]) -> None:
        super().__init__(inner)
        self._told = told

    def commit(self, changes: Changes, at: At = nowhere, name: str = "") -> None:
        super().commit(changes, at, name)
        self._told(changes)


@dataclass
class Unit:
    """One server with its clients, and what outlives them.

    Attributes:
        terms: what the plan says to this server.
        store: where its state survives.
        clients: make each client's machine, anew after a crash, from its record.
        noise, sample: the server's noise, and who is asked in a round.
        sign: with the server's identity.
        make: makes the server's machine.  release: its part in a release, where the plan has one.
        server, machines: the machines that live at the moment; None for one that is away.
    """

    terms: Terms
    store: Store
    clients: Sequence[Callable[[], Client]]
    noise: NoiseSource
    sample: Callable[[int], tuple[int, ...]]
    sign: Callable[[bytes], bytes]
    make: Callable[[Terms, Store, Ports], Server] = Server
    release: Part | None = None
    server: Server | None = None
    machines: list[Client | None] = field(default_factory=list)


class Network:
    """The box: messages in a queue, machines that live and die, and a clock that jumps from event to event.

        network = Network(units, Weather(loss=0.1, calm=60.0), seed=7)
        network.at(30.0, network.kill, 2, 5.0)       # at 30 s server 2 dies, and is back after 5
        network.run(done=network.finished)

    Args:
        units: see `rehearsal`, which makes them.
        weather: what goes wrong; nothing by default.
        seed: of the weather.
        begin: virtual seconds when all machines start.
        committed: called with (server, changes) after every commit.
        sent: called with (source, target, bytes) for every message that leaves a machine.
        log: called with (server, event, **fields) for every line of a server's log.

    Attributes:
        now: virtual seconds.
        units: as given; their `server` is None while it is away.
        messages: how many were sent.
        points, crashes: how often servers passed a crash point, and died at one, by name.
    """

    def __init__(
        self,
        units: Sequence[Unit],
        weather: Weather | None = None,
        seed: int = 0,
        *,
        begin: float = 0.0,
        committed: Callable[[int, Changes], None] | None = None,
        sent: Callable[[Node, Node, bytes], None] | None = None,
        log: Callable[..., None] = lambda *_, **__: None,
    ) -> None:
        self.units, self.weather = list(units), weather or Weather()
        self.now = begin
        self.messages = 0
        self.points: Counter[str] = Counter()
        self.crashes: Counter[str] = Counter()
        self._rng = random.Random(seed)  # noqa: S311 - the weather is no secret
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = itertools.count()
        self._wakes = [NEVER] * len(units)
        self._passed: Counter[tuple[int, str]] = Counter()
        self._sent, self._log = sent, log
        for p, unit in enumerate(self.units):
            if committed is not None:
                unit.store = WatchedStore(unit.store, partial(committed, p))
            unit.machines = [self._made(make) for make in unit.clients]
            self.at(begin, self._boot, p)

    # Running

    def at(self, when: float, what: Callable[..., None], *arguments: Any) -> None:
        """Call `what(*arguments)` at a moment, in virtual seconds."""
        heapq.heappush(self._queue, (when, next(self._order), what, arguments))

    def run(self, until: float = NEVER, done: Callable[[], bool] | None = None) -> None:
        """Let time pass.

        Args:
            until: a moment, in virtual seconds.
            done: asked after everything that happens; true ends the run before that moment.
        """
        while self._queue and self._queue[0][0] <= until:
            self.now, _, what, arguments = heapq.heappop(self._queue)
            what(*arguments)
            if done is not None and done():
                return
        if until < NEVER:
            self.now = max(self.now, until)

    def finished(self) -> bool:
        """Every server that was not stopped has decided its last round and has nothing open."""
        return all(
            u.server is not None and (u.server.phase is Phase.STOPPED or u.server.phase is Phase.FINISHED)
            and not (u.server.phase is Phase.FINISHED and u.server.pending)
            for u in self.units
        )  # fmt: skip

    @property
    def _dangerous(self) -> bool:
        return bool(self.weather.crash or self.weather.crash_at)

    @property
    def calm(self) -> bool:
        """Whether the weather is over."""
        return self.now >= self.weather.calm

    def release(self, p: int, *, again: bool = False, anyway: bool = False) -> None:
        """An operator asks server p, if it lives, to relay a release."""
        server = self.units[p].server
        if server is not None:
            self._live(p, partial(server.release, self.now, again=again, anyway=anyway))

    # Machines that live and die

    def _boot(self, p: int, rejoin: bool = False) -> None:
        unit = self.units[p]
        if unit.server is not None:
            return
        ports = Ports(
            to_server=lambda m, raw: self._carry(("server", p, 0), ("server", m, 0), raw),
            to_client=lambda k, raw: self._carry(("server", p, 0), ("client", p, k), raw),
            noise=unit.noise,
            sample=unit.sample,
            sign=unit.sign,
            at=partial(self._point, p) if self._dangerous else nowhere,
            log=partial(self._log, p),
            release=unit.release,
        )

        def start() -> None:
            unit.server = unit.make(unit.terms, unit.store, ports)
            unit.server.boot(self.now, rejoin=rejoin)

        self._live(p, start)
        for k, machine in enumerate(unit.machines):
            if machine is not None:
                self._connect(p, k, machine)

    def kill(self, p: int, away: float | None = None) -> None:
        """A server dies; it is back after `away` seconds, or the weather's."""
        self.units[p].server = None
        self._wakes[p] = NEVER
        self.at(self.now + (self._rng.uniform(*self.weather.away) if away is None else away), self._boot, p)

    def _live(self, p: int, what: Callable[..., object], *arguments: Any) -> None:
        """Call the server; an injected crash stops it."""
        try:
            what(*arguments)
        except CrashError as e:
            self.crashes[str(e)] += 1
            self.kill(p)
            return
        server = self.units[p].server
        wake = NEVER if server is None else server.wake
        if wake < self._wakes[p]:
            self._wakes[p] = max(wake, self.now)
            self.at(self._wakes[p], self._wake, p, self._wakes[p])

    def _wake(self, p: int, when: float) -> None:
        server = self.units[p].server
        if self._wakes[p] == when:
            self._wakes[p] = NEVER
            if server is not None:
                self._live(p, server.tick, self.now)

    def _point(self, p: int, name: str) -> None:
        self.points[name] += 1
        w = self.weather
        if w.crash_at:
            passed = self._passed[p, name]
            self._passed[p, name] += 1
            if (p, name, passed) in w.crash_at:
                raise CrashError(name)
        if w.crash and not self.calm and self._rng.random() < w.crash:
            raise CrashError(name)

    # Messages on their way

    def _carry(self, source: Node, target: Node, raw: bytes) -> None:
        self.messages += 1
        if self._sent is not None:
            self._sent(source, target, raw)
        w, rng = self.weather, self._rng
        copies = 1
        if not self.calm:
            if w.loss and rng.random() < w.loss:
                return
            if w.duplication and rng.random() < w.duplication:
                copies = 2
            if any(c.begin <= self.now < c.end and (c.source, c.target) == (source, target) for c in w.cuts):
                return
        for _ in range(copies):
            self.at(self.now + rng.uniform(*w.delay), self._arrive, source, target, raw)

    def _arrive(self, source: Node, target: Node, raw: bytes) -> None:
        kind, p, k = target
        unit = self.units[p]
        if kind == "client":
            self._client(p, k, raw)
        elif unit.server is not None:
            if source[0] == "server":
                self._live(p, unit.server.from_server, self.now, source[1], raw)
            else:
                self._live(p, unit.server.from_client, self.now, source[2], raw)

    def _client(self, p: int, k: int, raw: bytes) -> None:
        unit, w = self.units[p], self.weather
        machine = unit.machines[k]
        if machine is None:
            return
        dies = bool(w.client_crash) and not self.calm and self._rng.random() < w.client_crash
        if dies and self._rng.random() < 0.5:
            self.kill_client(p, k)
            return
        replies = machine.receive(raw)
        if dies:  # with the answer on its record, but not on its way
            self.kill_client(p, k)
            return
        for reply in replies:
            self._carry(("client", p, k), ("server", p, 0), reply)

    def kill_client(self, p: int, k: int, away: float | None = None) -> None:
        """A client dies; it is back after `away` seconds, or the weather's."""
        self.units[p].machines[k] = None
        self.at(self.now + self.weather.delay[1], self._lose, p, k)  # after its last words
        self.at(self.now + (self._rng.uniform(*self.weather.away) if away is None else away), self.start_client, p, k)

    def _lose(self, p: int, k: int) -> None:
        """Its stream ends, unless it has a new one by now."""
        server = self.units[p].server
        if server is not None and self.units[p].machines[k] is None:
            self._live(p, server.client_lost, self.now, k)

    def start_client(self, p: int, k: int) -> None:
        """A client that was away is there (again)."""
        machine = self.units[p].machines[k] = self._made(self.units[p].clients[k])
        self._connect(p, k, machine)

    def _made(self, make: Callable[[], Client]) -> Client:
        """A client's machine, by whose clock it is as late as in the box."""
        machine = make()
        if hasattr(machine, "clock"):
            machine.clock = lambda: self.now
        return machine

    def _connect(self, p: int, k: int, machine: Client) -> None:
        server = self.units[p].server
        if server is not None:
            self._live(p, server.client_connected, self.now, k)
            self._carry(("client", p, k), ("server", p, 0), machine.hello())
