"""One story of a network that fails, played to its end: every commit and every byte watched, and all that must hold.

play(Story(seed=3, graph="path:2", weather=Weather(loss=0.3, calm=60.0)))       raises `BrokenError` or is well
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf as NEVER
from typing import Any, Final, NamedTuple

import numpy as np

from confide.base.randomness import Purpose
from confide.deploy.machines.ports import Phase, Ports
from confide.deploy.machines.server import Server
from confide.deploy.machines.terms import Terms
from confide.deploy.store.books import TO_ALL, Books, Changes, as_bytes
from confide.deploy.store.store import MemoryStore, Store
from confide.graph.graph import Graph
from confide.laws.law import Law
from confide.rounds.arithmetic import State
from confide.rounds.combine import Sender
from confide.rounds.noise import integer_noise
from confide.rounds.schemes import Scheme, scheme
from confide.testing.network import Network, Unit, Weather
from confide.testing.rehearsal import scripted, scripted_update
from invariants import Watch, balanced, digest, require

LENGTH: Final = 2
MORE: Final = 1e-6  # virtual seconds: sums of times are rounded

Make = Callable[[Terms, Store, Ports], Server]
MakeStore = Callable[[int, Books], Store]


def in_memory(_: int, books: Books) -> Store:
    return MemoryStore(books)


class Kill(NamedTuple):
    """A server dies at a moment, wherever it is, and stays away for a while."""

    when: float
    server: int
    away: float


@dataclass(frozen=True)
class Story:
    """All that decides a run. `allowed`: publications that the budget pays for; `exchange`: seconds of a wait."""

    seed: int
    graph: str = "ring:3"
    scheme: str = "homomorphic"
    rounds: int = 5
    window: int = 4
    allowed: int | None = None
    exchange: float = 2.0
    weather: Weather = field(default_factory=Weather)
    kills: tuple[Kill, ...] = ()

    @property
    def quiet(self) -> float:
        """From here on nothing goes wrong, and everybody is back."""
        calm = 0.0 if self.weather.calm == NEVER else self.weather.calm
        return max([calm, *(kill.when + kill.away for kill in self.kills)])


@dataclass
class Outcome:
    """What happened, for whoever wants to know that a story was not an idle one."""

    seconds: float  # virtual
    messages: int
    rows: Counter[str]  # of all ledgers, by kind
    events: Counter[str]  # of all logs, with "late" and "suspended" counted apart
    points: Counter[str]  # passed, in weather that has crashes
    crashes: Counter[str]


def noisy(name: str) -> Scheme:
    """A scheme of this name, with some noise where it has any."""
    return scheme(name, 0.0 if name == "none" else 0.5, sigma_pair=0.3 if name == "pairwise" else 0.0)


def image(books: Books) -> dict[str, Any]:
    """Books that can be compared."""
    balances = {m: (b.n, as_bytes(b.total)) for m, b in books.balances.items()}
    return vars(books) | {"contribution": as_bytes(books.contribution), "balances": balances}


class Stage:
    """A story that is ready to be played; whoever wants something else changes `units` before `run`."""

    def __init__(self, story: Story, make: Make = Server, store: MakeStore = in_memory, *, fresh: bool = True) -> None:
        """`fresh`: a noise drawn again is another one, as in a deployment; else it is that of its seed."""
        self.story, self.graph, self.scheme = story, Graph.parse(story.graph), noisy(story.scheme)
        self.units: list[Unit] = scripted(
            self.graph, self.scheme, rounds=story.rounds, length=LENGTH, window=story.window, seed=story.seed,
            allowed=story.allowed, store=store, neighbours=story.exchange,
        )  # fmt: skip
        self.arithmetic = self.units[0].terms.arithmetic
        self.watch = Watch([u.terms for u in self.units], [u.store.load() for u in self.units])
        self.servers: list[Server] = []  # all that ever lived
        self.events: Counter[str] = Counter()
        self._rng, self._fresh = np.random.default_rng(story.seed), fresh
        self._seeded = integer_noise(story.seed, self.arithmetic)
        self._drawn: dict[tuple[Purpose, tuple[int, ...]], State] = {}  # the last of each
        self._messages: dict[tuple[int, int], dict[int, bytes]] = {}  # (server, round) -> by neighbour
        t, self._quiet = self.units[0].terms.clocks, story.quiet
        waits = {Phase.BOOT: t.neighbours, Phase.WAIT: t.neighbours, Phase.ADAPT: t.adapt, Phase.DRAIN: t.drain}
        self._longest = {phase: waits.get(phase, NEVER) + MORE for phase in Phase}
        self._waits: list[tuple[Server | None, Phase, int, bool, float]] = [(None, Phase.BOOT, 0, False, NEVER)] * len(
            self.units
        )

        def made(terms: Terms, kept: Store, ports: Ports) -> Server:
            self.servers.append(make(terms, kept, ports))
            return self.servers[-1]

        for unit in self.units:
            unit.make, unit.noise = made, self._noise
        self.net = Network(
            self.units, story.weather, story.seed, committed=self._committed, sent=self.watch.sent, log=self._log
        )
        for kill in story.kills:
            self.net.at(kill.when, self.net.kill, kill.server, kill.away)

    def run(self) -> None:
        """Until all are finished and nothing can go wrong any more."""
        s, t = self.story, self.units[0].terms.clocks
        longest = s.quiet + 2 * s.weather.away[1] + (s.rounds + 2) * (t.adapt + 2 * t.neighbours) + t.drain + 100.0
        self.net.run(until=longest, done=self._over)
        where = [None if u.server is None else (u.server.phase, u.server.why, u.server.pending) for u in self.units]
        require(all(w is not None and w[0] is Phase.FINISHED for w in where), f"L1: not all have finished: {where}")

    def check(self) -> Outcome:
        """What must hold at the end."""
        balanced(self.watch.terms, self.watch.books)
        offered: dict[tuple[int, int], tuple[int, ...]] = {}
        for p, unit in enumerate(self.units):
            self._books(unit, self.watch.books[p])
            offered |= {(p, e.event.round): e.offered for e in self._ledger(p, unit)}
        used = {(p, m, i) for (p, i), to in offered.items() for m in to if p in offered.get((m, i), ())}
        require(self.watch.entered.keys() == used, "I1: a flow is to enter iff both ends offered its round")
        for server in self.servers:
            require(not server.alarms, f"alarm: {server.alarms}")
            refused = [why for why in server.refusals if why.startswith("server")]
            require(not refused, f"refusal: server {server.rules.me} refused an honest neighbour: {refused}")
        rows = Counter(e.event.kind for u in self.units for e in u.store.entries())
        return Outcome(self.net.now, self.net.messages, rows, self.events, self.net.points, self.net.crashes)

    def _books(self, unit: Unit, watched: Books) -> None:
        """Memory, store and what the watcher made of all commits are one."""
        assert unit.server is not None
        images = [image(books) for books in (unit.server.books, unit.store.load(), watched)]
        require(images[0] == images[1] == images[2], f"I2: books of server {unit.terms.rules.me} are not its commits")

    def _ledger(self, p: int, unit: Unit) -> list[Any]:
        """Every round once, every publication paid, none beyond the budget."""
        entries = list(unit.store.entries())
        rounds = [e.event.round for e in entries]
        require(rounds == list(range(1, self.story.rounds + 1)), f"ledger: server {p} wrote the rounds {rounds}")
        paid = [e for e in entries if e.event.kind == "message"]
        known = {i: sha for (q, i), sha in self.watch.published.items() if q == p}
        require({e.event.round: e.event.sha256 for e in paid} == known, f"ledger: of {p} lacks what was published")
        for (q, i), blobs in self.watch.left.items():
            paid_for = q != p or (i in known and blobs.items() <= self._messages[p, i].items())
            require(paid_for, f"I3: what {p} sent for round {i} is not what it paid for")
        require([e.event.cost for e in paid] == list(unit.terms.costs[: len(paid)]), f"ledger: costs of server {p}")
        require(not any(e.event.cost.rho for e in entries if e.event.kind == "skip"), f"ledger: {p} paid for a skip")
        require(len(paid) <= unit.terms.allowed, f"budget: server {p} published {len(paid)} times")
        require(unit.store.load().published == len(paid), f"ledger: server {p} miscounts")
        return paid

    def _committed(self, p: int, c: Changes) -> None:
        before = self.watch.books[p]
        self.watch.committed(p, c)
        if c.contribution is not None and c.decided is not None:
            early = {m for (m, i), record in c.opened.items() if i == c.decided and record.applied}
            rode = Changes(balances={m: balance for m, balance in c.balances.items() if m not in early})
            self._contributed(p, before.after(rode), c.decided)

    def _contributed(self, p: int, before: Books, i: int) -> None:
        """What is kept and sent is the model, the update and the scheme's noise: no flow is lost or doubled."""
        t = self.units[p].terms

        def draw(purpose: Purpose, ids: tuple[int, ...], _: float) -> State:
            return self._drawn[purpose, (i, *ids)]

        psi = before.w + scripted_update(self.story.seed, i, p, LENGTH)
        own, sent = Sender(t.scheme, p, t.own_weight, t.weights, psi, draw, t.arithmetic).perturb()
        kept = self.watch.books[p].contribution + (before.w - before.contribution)
        require(np.array_equal(kept, own), f"I4: the contribution of {p} in round {i} is another")
        each = self._messages[p, i] = {m: as_bytes(x) for m, x in sent.items()}
        one = not t.scheme.by_link or len(each) == 1
        sha = digest({TO_ALL: next(iter(each.values()))} if one else each)
        require(self.watch.published[p, i] == sha, f"I3: the message of {p} in round {i} is another")

    def _noise(self, purpose: Purpose, ids: tuple[int, ...], law: Law, sigma: float, size: int) -> State:
        if purpose == Purpose.PAIR_NOISE or not self._fresh:
            found = self._seeded(purpose, ids, law, sigma, size)
        else:
            found = np.rint(self._rng.laplace(0.0, sigma, size) / self.arithmetic.quantum).astype(np.int64)
        self._drawn[purpose, ids] = found
        return found

    def _log(self, _: int, event: str, **fields: Any) -> None:
        self.events[event] += 1
        self.events["late"] += bool(fields.get("late"))
        self.events["suspended"] += bool(fields.get("suspended"))

    def _over(self) -> bool:
        """Asked after every event, so that it also sees L3: nobody waits beyond a deadline, but alone, with a new
        store, or for the client without whom there is no first sum."""
        now = self.net.now
        for p, unit in enumerate(self.units):
            if (server := unit.server) is None:
                continue
            alone = server.phase is Phase.BOOT and not any(n.heard for n in server.neighbours.values())
            starves = server.books.published == 0 and not any(unit.machines)
            *before, until = self._waits[p]
            if starves or before != [server, server.phase, server.books.decided, alone]:
                until = NEVER if server.rounds.new or alone else now + self._longest[server.phase]
                self._waits[p] = (server, server.phase, server.books.decided, alone, until)
            require(now <= until, f"L3: server {p} is still in {server.phase}")
        return now >= self._quiet and self.net.finished()


def play(story: Story, make: Make = Server, store: MakeStore = in_memory) -> Outcome:
    """A story from its begin to its end; raises `BrokenError` at the first thing that must not be."""
    stage = Stage(story, make, store)
    stage.run()
    return stage.check()
