"""Servers that release: in the box, or in a laboratory where every message is at will; what they draw is remembered."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from confide.deploy.machines import release_messages as messages
from confide.deploy.machines.epoch import Epoch
from confide.deploy.machines.exchange import Rules
from confide.deploy.machines.ports import Desk, Phase, Ports
from confide.deploy.machines.relay import Relay
from confide.deploy.machines.release import Circle, Kept, Part, Released
from confide.deploy.machines.releases import Releases
from confide.deploy.store.books import Books, Changes, as_bytes
from confide.deploy.store.store import MemoryStore, Store
from confide.graph.graph import Graph
from confide.laws.noise import discrete_gaussian
from confide.laws.secret_stream import SecretStream
from confide.privacy.ledger import Cost
from confide.rounds.schemes import scheme
from confide.secure import messages as secure_messages
from confide.secure import receipts
from confide.secure import server as secure_server
from confide.secure.release import Terms
from confide.testing.network import Network, Node, Unit, Weather
from confide.testing.rehearsal import PLAN, scripted, server_identity

QUANTUM = 2.0**-10
COST = Cost(0.5, None, 1.0, 0.5, "discrete-gaussian")
ROUNDS = 3


def a_desk(rules: Rules, store: Store, send: Callable[[int, bytes], None]) -> Desk:
    """Of a server that has learned and has nothing open."""
    unit = scripted(Graph.parse("path:2"), scheme("homomorphic", 0.5), rounds=1)[0]
    terms = replace(unit.terms, rules=rules)
    desk = Desk(terms, store, Ports(send, lambda k, raw: None, unit.noise, unit.sample, unit.sign))
    desk.phase = Phase.FINISHED
    return desk


@dataclass
class Shares:
    """Draws of all servers: never the same twice, and remembered."""

    seed: int
    drawn: dict[tuple[int, int], list[np.ndarray]] = field(default_factory=dict)

    def of(self, p: int) -> Callable[[int, float, int], np.ndarray]:
        def draw(attempt: int, quanta: float, length: int) -> np.ndarray:
            before = self.drawn.setdefault((p, attempt), [])
            key = b"".join(x.to_bytes(8, "little") for x in (self.seed, p, attempt, len(before)))
            before.append(discrete_gaussian(SecretStream(key), quanta, length))
            return before[-1]

        return draw


class Watch:
    """Kept before a byte leaves, paid for before an answer does, one draw of words an attempt, and nothing that tells
    them on the wire."""

    def __init__(self, books: Iterable[Books]) -> None:
        self.w = [b.w for b in books]
        self.words: dict[tuple[int, int], bytes] = {}
        self.paid: Counter[int] = Counter()
        self.answered: set[tuple[int, int]] = set()
        self.masked: dict[int, list[bytes]] = {}

    def committed(self, p: int, c: Changes) -> None:
        rows = [e.event for e in c.entries if e.event.kind == "release"]
        if c.release is None:
            assert not rows, "a payment without its attempt"
            return
        kept = Kept.of(Books(release=c.release))
        assert len(rows) == kept.answered, "an answer and its payment are one transaction"
        if kept.answered:
            assert (rows[0].cost, rows[0].round, rows[0].unit) == (COST, ROUNDS, p)
            assert rows[0].sha256 is None
            assert self.words[p, kept.attempt] == kept.words
            self.paid[p] += 1
            self.answered.add((p, kept.attempt))
            return
        assert all(attempt < kept.attempt for q, attempt in self.words if q == p)
        self.words[p, kept.attempt] = kept.words

    def sent(self, source: Node, target: Node, raw: bytes) -> None:
        if source[0] != "server" or target[0] != "server" or not messages.is_one(raw):
            return
        message, p = messages.decode(raw, 10**9), source[1]
        for (q, _), words in self.words.items():
            assert words not in raw, f"the words of {q} left {p} in clear"
        if isinstance(message, messages.Said):
            assert (p, message.attempt) in self.words, "not kept"
            word = secure_messages.from_client(message.word, 10**9)
            told = isinstance(word, secure_messages.Answer)
            assert not told or (p, message.attempt) in self.answered, "not paid for"

    def shares(self, p: int, attempt: int) -> np.ndarray:
        return np.frombuffer(self.words[p, attempt], "<i8") - self.w[p]


class Box:
    """A finished network, or one that learns first."""

    def __init__(
        self,
        graph: str = "path:3",
        weather: Weather | None = None,
        seed: int = 0,
        *,
        books: list[Books] | None = None,
        attempts: int = 2,
        colluders: int = 0,
        patience: float = 40.0,
        scheme_name: str = "homomorphic",
        length: int = 2,
        **times: Any,
    ) -> None:
        self.units: list[Unit] = scripted(
            Graph.parse(graph), scheme(scheme_name, 0.5), rounds=ROUNDS, length=length, **times
        )
        self.P = len(self.units)
        terms = Terms(self.P, 0.5, QUANTUM, length, colluders)
        self.shares, self.seed = Shares(seed), seed
        self.got: dict[int, list[Released]] = {p: [] for p in range(self.P)}
        self.logs: list[tuple[Any, ...]] = []
        for p, u in enumerate(self.units):
            if books is not None:
                u.store = MemoryStore(books[p])
            identity, share, released = server_identity(p), self.shares.of(p), self.got[p].append
            entropy = np.random.default_rng([seed, p]).bytes
            u.release = Part(terms, lambda _: COST, attempts, attempts, identity, share, patience, released, entropy)
        self.watch = Watch([u.store.load() for u in self.units])
        begin = 0.0 if books is None else 10.0 * ROUNDS  # before that nobody believes that all rounds are over
        self.net = Network(
            self.units, weather, seed, begin=begin, committed=self.watch.committed, sent=self.watch.sent, log=self._log
        )

    def _log(self, *what: Any, **fields: Any) -> None:
        self.logs.append((*what, fields))

    def learn(self) -> Box:
        self.net.run(until=self.net.now + 2000, done=self.net.finished)
        assert self.net.finished()
        self.watch.w = [u.store.load().w for u in self.units]
        return self

    def relay(self, p: int) -> Relay | None:
        server = self.units[p].server
        return None if server is None or server.releases is None else server.releases.relay

    def release(self, p: int = 0, again: bool = False, tries: int = 30) -> Relay:
        """As an operator would: once more after a crash of the relay's machine."""
        for _ in range(tries):
            if self.units[p].server is None:
                self.net.run(until=self.net.now + 100, done=lambda: self.units[p].server is not None)
            self.net.release(p, again=again)
            self.net.run(until=self.net.now + 400, done=lambda: (r := self.relay(p)) is None or r.done)
            found = self.relay(p)
            if found is not None:
                assert found.done
                return found
            again = False
        raise AssertionError(f"seed {self.seed}: the relay dies every time")

    def check(self, result: Released | None, members: Iterable[int] | None = None, attempt: int = 1) -> None:
        """Exact in integers; all have it."""
        members = tuple(range(self.P)) if members is None else tuple(members)
        assert result is not None
        assert (result.attempt, result.servers) == (attempt, len(members)), f"seed {self.seed}"
        w = sum(self.watch.w[p] for p in members)
        shares = [self.watch.shares(p, attempt) for p in members]
        assert np.array_equal(result.total, w + sum(shares)), f"seed {self.seed}"
        assert np.array_equal(result.mean, result.total * (QUANTUM / len(members)))
        for p, share in zip(members, shares, strict=True):
            assert any(np.array_equal(share, x) for x in self.shares.drawn[p, attempt]), f"seed {self.seed}: server {p}"

    def check_told(self, result: Released | None, members: Iterable[int] | None = None) -> None:
        assert result is not None
        for p in range(self.P) if members is None else members:
            assert all(np.array_equal(r.total, result.total) for r in self.got[p] if r.attempt == result.attempt)
            kept = self.units[p].store.load().released[result.attempt]
            assert np.array_equal(kept.total, result.total), f"seed {self.seed}: server {p} has another result"


class Lab:
    """Servers that have finished, and whatever one says to them; their messages wait in `queue`."""

    def __init__(
        self, P: int = 3, length: int = 2, colluders: int = 0, attempts: int = 3, removed: Iterable[int] = ()
    ) -> None:
        self.P, self.attempts = P, attempts
        self.terms = Terms(P, 0.5, QUANTUM, length, colluders)
        gone = tuple(removed)
        self.epoch = Epoch(PLAN, 1, gone, ((0, bytes(64)),)) if gone else None
        self.shares = Shares(7)
        self.queue: list[tuple[int, int, bytes]] = []
        self.stores: list[MemoryStore] = []
        self.told: list[Released] = []
        for p in range(P):
            books = Books.fresh(np.arange(length) * (p + 1), tuple({(p - 1) % P, (p + 1) % P}))
            books.decided = books.published = ROUNDS
            self.stores.append(MemoryStore(books))
        self.releases = [self._start(p) for p in range(P)]
        self.books = [releases.desk.books for releases in self.releases]
        self.members = [p for p in range(P) if p not in gone]
        self.run = 0

    def _start(self, p: int) -> Releases:
        store, entropy = self.stores[p], np.random.default_rng(p).bytes
        weights = dict.fromkeys(store.load().neighbours, 1)
        identities = tuple(server_identity(q).public for q in range(self.P))
        rules = Rules(p, PLAN, weights, ROUNDS, 4, self.terms.length, 2**62, identities, by_link=False)
        desk = a_desk(rules, store, lambda m, raw: self.queue.append((p, m, raw)))
        desk.epoch = self.epoch
        most, identity, share = self.attempts, server_identity(p), self.shares.of(p)
        return Releases(
            desk, Part(self.terms, lambda _: COST, most, most, identity, share, 60.0, self.told.append, entropy)
        )

    def restart(self, p: int) -> Releases:
        """From its store."""
        self.releases[p] = self._start(p)
        self.books[p] = self.releases[p].desk.books
        self.releases[p].boot(0.0)
        return self.releases[p]

    def deliver(self) -> None:
        while self.queue:
            sender, target, raw = self.queue.pop(0)
            self.releases[target].receive(0.0, sender, raw)

    def release(self, p: int = 0) -> Relay:
        relay: Relay = self.releases[p].begin(0.0)
        self.deliver()
        return relay

    def heard(self, p: int, message: Any) -> list[Any]:
        """What server p answers server 0."""
        self.releases[p].receive(0.0, message.sender, messages.encode(message))
        found = [messages.decode(raw, 10**9) for _, _, raw in self.queue]
        self.queue.clear()
        return found

    def message(self, kind: Any, to: int, run: int, *rest: Any) -> Any:
        return kind(PLAN, 0 if self.epoch is None else 1, 0, to, run.to_bytes(16, "little"), *rest)

    def state(self) -> Any:
        return [(s.load().release, list(s.entries())) for s in self.stores]

    def results(self) -> Any:
        """What is kept of releases that were made."""
        return [(b.relays, [*b.released], b.receipts) for b in (s.load() for s in self.stores)]


class LyingRelay:
    """Runs a session of the others' words by hand, server 0 included by its own machine."""

    def __init__(self, lab: Lab, attempt: int = 1) -> None:
        lab.run += 1
        self.lab, self.attempt, self.run = lab, attempt, lab.run
        circle = Circle.of(lab.releases[0].desk.rules, lab.releases[0].context.part.terms, lab.epoch)
        peers = {p: server_identity(p).public for p in circle.members}
        self.state: secure_server.State = secure_server.start(circle.task(attempt), circle.members, peers)
        self.words: dict[int, Any] = {}

    def tell(self, p: int, word: Any = None) -> list[Any]:
        """The relay is server 0: what it says to itself goes the same way."""
        if word is None:
            told = self.lab.message(messages.Invite, p, self.run, self.attempt)
        else:
            told = self.lab.message(messages.Told, p, self.run, self.attempt, secure_messages.encode(word))
        if p == 0:
            own = self.lab.releases[0]
            sent: list[bytes] = []
            own.context.send = lambda m, raw: sent.append(raw)
            own.releaser.receive(0.0, told)
            return [messages.decode(raw, 10**9) for raw in sent]
        return self.lab.heard(p, told)

    def step(self) -> None:
        """One phase with everybody."""
        for p in self.lab.members:
            (said,) = self.tell(p, self.words.get(p))
            assert isinstance(said, messages.Said), said
            word = secure_messages.from_client(said.word, 10**9)
            self.state = secure_server.receive(self.state, p, word)
        self.state, self.words = secure_server.close(self.state)

    def sum(self) -> np.ndarray:
        """Of a whole session."""
        for _ in range(5):
            self.step()
        assert isinstance(self.state, secure_server.Summed)
        return np.asarray(self.state.total.view("<i8"), np.int64)

    def result(self, to: int, total: np.ndarray, signer: int = 0) -> messages.Result:
        """What it may tell this server, signed by whom it has the key of."""
        raw = as_bytes(total)
        sha = hashlib.sha256(raw).digest()
        signature = receipts.sign(server_identity(signer), PLAN, self.attempt, 0, sha)
        found: messages.Result = self.lab.message(messages.Result, to, self.run, self.attempt, raw, signature)
        return found
