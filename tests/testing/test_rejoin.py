"""Servers that lost their store, or got an old copy back, and rejoin while everything else goes wrong as well.

CONFIDE_STORIES=5 runs five times as many stories.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from confide.deploy.machines import exchange, sync
from confide.deploy.machines.ports import Phase, Ports
from confide.deploy.machines.server import Server
from confide.deploy.store.books import Balance, Books, Changes, Status
from confide.deploy.store.store import MemoryStore
from confide.graph.graph import Graph
from confide.rounds.schemes import scheme
from confide.testing.network import Cut, Network, Unit, Weather
from confide.testing.rehearsal import PLAN, scripted
from exploring import more
from invariants import Watch

STORIES = float(os.environ.get("CONFIDE_STORIES", more(1, 2)))
T = 12


def stories(n: int) -> Iterable[int]:
    return range(int(n * STORIES))


class Story(Network):
    """A network whose stores can be lost. A machine that dies before it has rejoined is started to rejoin again."""

    def __init__(self, graph: str, weather: Weather, seed: int, *, rounds: int = T, **times: Any) -> None:
        units = scripted(Graph.parse(graph), scheme("homomorphic", 0.5), rounds=rounds, window=2, seed=seed, **times)
        self.watch = Watch([u.terms for u in units], [u.store.load() for u in units])
        self.rejoining: set[int] = set()
        self.copies: list[list[MemoryStore]] = [[] for _ in units]
        self.ledger: list[dict[int, set[str]]] = [{} for _ in units]  # all that was ever published, lost stores too
        super().__init__(units, weather, seed, committed=self._committed, sent=self.watch.sent)

    def _committed(self, p: int, c: Changes) -> None:
        self.watch.committed(p, c)
        if c.rejoined is not None:
            self.rejoining.discard(p)
        for e in c.entries:
            if e.event.sha256 is not None:
                self.ledger[p].setdefault(e.event.round, set()).add(e.event.sha256)
        if c.entries:
            self.copies[p].append(copy_of(self.units[p]))

    def _boot(self, p: int, rejoin: bool = False) -> None:
        super()._boot(p, rejoin or p in self.rejoining)

    def lose(self, p: int, store: MemoryStore | None = None, away: float = 0.5, *, rejoin: bool = True) -> None:
        """The machine dies; it is back with another store: a new one, or a copy."""
        unit = self.units[p]
        lost = unit.store.load()
        fresh = Books.fresh(np.zeros_like(lost.contribution), lost.neighbours)
        unit.store.inner = store or MemoryStore(fresh)  # type: ignore[attr-defined]
        books = unit.store.load()
        books.status.update({m: Status.ADRIFT for m, s in books.status.items() if s is Status.OPEN})
        self.watch.books[p] = books  # its edges are not looked at until the neighbours have told the balances
        if rejoin:
            self.rejoining.add(p)
        if unit.server is not None:
            self.kill(p, away)

    def go(self, until: float = 600) -> None:
        self.run(until, done=lambda: self.calm and not self.rejoining and self.finished() and not self.adrift())

    def adrift(self) -> list[tuple[int, int]]:
        books = [(p, u.server.books) for p, u in enumerate(self.units) if u.server and u.server.phase != Phase.STOPPED]
        return [(p, m) for p, b in books for m, s in b.status.items() if s is Status.ADRIFT]

    def state(self) -> list[tuple[object, ...]]:
        return [
            (u.server.phase.value, u.server.why, u.server.books.decided, u.server.pending, dict(u.server.books.status))
            if u.server
            else ("away",)
            for u in self.units
        ]


def ask(decided: int) -> sync.AskBalance:
    rest = {f.name: 0 for f in fields(sync.AskBalance) if f.name not in ("plan", "sender", "receiver", "decided")}
    return sync.AskBalance(plan=PLAN, sender=1, receiver=0, decided=decided, **rest)


def tell(decided: int, n: int, total: bytes) -> sync.TellBalance:
    known = {"plan": PLAN, "sender": 1, "receiver": 0, "decided": decided, "n": n, "total": total}
    return sync.TellBalance(**dict.fromkeys((f.name for f in fields(sync.TellBalance)), 0) | known)


def copy_of(unit: Unit) -> MemoryStore:
    store = unit.store.inner  # type: ignore[attr-defined]
    copy = MemoryStore(store.load())
    copy._entries = list(store.entries())
    return copy


def check_over(net: Story) -> None:
    """All have finished, agree on every edge, and have decided, paid for and published every round once."""
    assert all(u.server is not None and u.server.phase is Phase.FINISHED for u in net.units), net.state()
    books = [u.store.load() for u in net.units]
    for p, mine in enumerate(books):
        assert not any(mine.open.values()), (p, net.state())
        for m in mine.neighbours:
            assert mine.status[m] is Status.OPEN, (p, m, net.state())
            assert not (mine.balances[m].total + books[m].balances[p].total).any(), (p, m, net.state())
            assert mine.balances[m].n == books[m].balances[p].n
        entries = list(net.units[p].store.entries())
        assert [e.event.round for e in entries] == list(range(1, T + 1))
        assert mine.published == sum(e.event.kind == "message" for e in entries)
        assert all(len(shas) == 1 for shas in net.ledger[p].values()), "a round was published twice"
        assert not net.units[p].server.alarms, net.units[p].server.alarms
    models, own = (np.sum([getattr(b, name) for b in books], axis=0) for name in ("w", "contribution"))
    assert np.array_equal(models, own)


def random_weather(r: random.Random, graph: Graph) -> Weather:
    cuts = []
    for _ in range(r.randrange(3)):
        a, b = r.choice(graph.edges.tolist())
        begin = r.uniform(0, 60)
        for x, y in ((a, b), (b, a))[: r.choice((1, 2))]:
            cuts.append(Cut(begin, begin + r.choice((1, 3, 25)), ("server", x, 0), ("server", y, 0)))
    return Weather(
        delay=(0.001, r.choice((0.01, 0.5, 4.0))),
        loss=r.choice((0, 0.1, 0.3)),
        duplication=r.choice((0, 0.3)),
        crash=r.choice((0, 0.003, 0.02)),
        away=r.choice(((0.01, 0.02), (1.0, 15.0))),
        cuts=tuple(cuts),
        calm=r.choice((40.0, 70.0, 110.0)),
    )


def lose_at_random(net: Story, r: random.Random, p: int) -> None:
    net.lose(p, r.choice((None, *net.copies[p])), r.choice((0.0, 0.5, 12.0)))


def story(seed: int, losses: Any) -> Story:
    r = random.Random(seed)  # noqa: S311
    graph = r.choice(("path:2", "path:3", "ring:3", "star:4"))
    net = Story(graph, random_weather(r, Graph.parse(graph)), seed)
    losses(net, r)
    net.go()
    return net


# One at a time


@pytest.mark.parametrize("seed", stories(24))
def test_one_rejoins(seed: int) -> None:
    """Wholly lost or an old copy, once or again before the first rejoin is complete.

    Conserved is the sum of all models = the sum of all contributions in the present stores: what a lost store had
    contributed after the copy is gone from its own contribution, and what it gave away before stays with others.
    """

    def losses(net: Story, r: random.Random) -> None:
        p, when = r.randrange(len(net.units)), r.uniform(0, 75)
        net.at(when, lose_at_random, net, r, p)
        if r.random() < 0.5:
            net.at(when + r.choice((0.0, 0.7, 5.0)), lose_at_random, net, r, p)

    check_over(story(seed, losses))


@pytest.mark.parametrize("seed", stories(15))
def test_neighbours_rejoin_together(seed: int) -> None:
    """Both ends of an edge lose their stores at about the same time, perhaps everybody does: no edge stays adrift."""

    def losses(net: Story, r: random.Random) -> None:
        when = r.uniform(0, 75)
        for p in r.sample(range(len(net.units)), r.choice((2, 2, len(net.units)))):
            net.at(when + r.choice((0.0, 0.0, 0.6, 2.5, 11.0)), lose_at_random, net, r, p)

    check_over(story(seed, losses))


@pytest.mark.parametrize("seed", stories(6))
def test_many_rejoin(seed: int) -> None:
    def losses(net: Story, r: random.Random) -> None:
        for _ in range(4):
            net.at(r.uniform(0, 90), lose_at_random, net, r, r.randrange(len(net.units)))

    check_over(story(seed, losses))


# Exactly


def quiet(graph: str = "path:3", **weather: Any) -> Story:
    return Story(graph, Weather(**weather), 1)


def test_a_lost_store_in_calm_weather() -> None:
    """The gap is charged round by round as published, without a message; learning goes on from the next round."""
    net = quiet()
    net.at(35.0, net.lose, 1)
    net.go()
    check_over(net)
    events = [e.event for e in net.units[1].store.entries()]
    books = net.units[1].store.load()
    assert books.rejoined == 5  # by the clock the fourth was open, and one more is for clocks that differ
    assert [(e.kind, e.round, e.sha256) for e in events[:5]] == [("message", i, None) for i in range(1, 6)]
    assert [e.cost for e in events[:5]] == list(net.units[1].terms.costs[:5])
    assert [e.kind for e in events[5:]] == ["message"] * 7
    assert all(e.sha256 for e in events[5:])
    assert books.published == 12
    assert set(net.ledger[1]) == {1, 2, 3, 6, 7, 8, 9, 10, 11, 12}  # and nothing up to round 5 was published again
    assert [b.n for b in books.balances.values()] == [10, 10]  # three with the lost store, seven since
    for p in (0, 2):
        kinds = [e.event.kind for e in net.units[p].store.entries()]
        assert kinds == ["message"] * 12, "nobody follows a server that moved ahead in a rejoin"


def lost_at(net: Story, when: float, *servers: int) -> list[set[int]]:
    """The rounds that each server had published when all of these lose their stores, and what it charges is enough."""
    before: list[set[int]] = []
    net.at(when, lambda: before.extend(set(rounds) for rounds in net.ledger))
    for p in servers:
        net.at(when, net.lose, p)
    net.run(when + 1.0)
    assert not net.rejoining
    for p in servers:
        books = net.units[p].store.load()
        assert books.published >= len(before[p])
        assert books.rejoined >= max(before[p])
    return before


@pytest.mark.parametrize("graph", ["complete:1", "path:2", "ring:3"])
def test_without_a_neighbour_that_knows_the_clock_says_what_is_charged(graph: str) -> None:
    """Again and again: nor does a server that has rejoined run ahead of the clock."""
    net = Story(graph, Weather(), 1, rounds=40)
    everybody = range(len(net.units))
    for when in (25.0, 75.0, 205.0):
        lost_at(net, when, *everybody)
    net.run(1000, done=net.finished)
    for p, unit in enumerate(net.units):
        assert unit.server is not None
        assert unit.server.phase is Phase.FINISHED, net.state()
        assert max(net.ledger[p]) == 40
        assert all(len(shas) == 1 for shas in net.ledger[p].values()), "a round was published twice"
        assert unit.store.load().published >= len(net.ledger[p])


def test_one_neighbour_that_knows_nothing_is_enough_for_the_clock() -> None:
    """The server in the middle went on with one neighbour, whose store is lost too, and the other one was away."""
    net = Story("path:3", Weather(), 1, rounds=30)
    net.at(25.0, net.kill, 2, 177.8)  # it is back when they are gone
    before = lost_at(net, 202.5, 0, 1)
    assert max(before[1]) > 2 + net.units[1].terms.leash


def test_a_neighbour_that_was_removed_knows_nothing() -> None:
    unit = scripted(Graph.parse("path:2"), scheme("homomorphic", 0.5), rounds=T)[0]
    books = unit.store.load()
    books.apply(Changes(status={1: Status.REMOVED}))
    server, said = server_of(unit, books)
    server.boot(75.0, rejoin=True)
    assert (server.books.decided, server.books.published) == (9, 9)
    clock = {"what": "for the clock to reach the next round", "servers": []}
    assert said == [("rejoined", {"round": 9, "charged": 9, "by": "clock"}), ("waiting", clock)]


def test_a_plan_without_a_start_ends_for_a_server_that_nobody_knows() -> None:
    unit = scripted(Graph.parse("complete:1"), scheme("homomorphic", 0.5), rounds=T)[0]
    server, said = server_of(unit, unit.store.load())
    server.boot(1.7e9, rejoin=True)
    assert server.books.decided == server.books.published == T
    assert said[0] == ("rejoined", {"round": T, "charged": T, "by": "clock"})


def server_of(unit: Unit, books: Books) -> tuple[Server, list[Any]]:
    """With the log of it."""
    said: list[Any] = []
    ports = Ports(
        to_server=lambda *_: None,
        to_client=lambda *_: None,
        noise=unit.noise,
        sample=unit.sample,
        sign=unit.sign,
        log=lambda event, **fields: said.append((event, fields)),
    )
    return Server(unit.terms, MemoryStore(books), ports), said


def test_what_a_lost_store_contributed_is_gone_and_what_it_gave_stays() -> None:
    """Conserved is sum w = sum contribution over the present stores; the neighbours' contributions do not notice."""
    lost, calm = quiet("path:2"), quiet("path:2")
    before: list[Any] = []

    def lose() -> None:
        before.extend(u.store.load() for u in lost.units)
        lost.lose(1)

    lost.at(35.0, lose)
    lost.run(39.0)
    after = [u.store.load() for u in lost.units]
    assert after[1].status == {0: Status.ADRIFT} or np.array_equal(after[1].w, -after[0].balances[1].total)
    assert before[1].contribution.any()
    assert not after[1].contribution.any()
    assert np.array_equal(after[0].contribution, before[0].contribution)
    lost.go()
    check_over(lost)
    calm.go()
    check_over(calm)


@pytest.mark.parametrize("seed", stories(5))
def test_without_rejoin_it_stops_and_says_why(seed: int) -> None:
    """An older store whose publications reached a neighbour, started as if nothing had happened."""
    r = random.Random(seed)  # noqa: S311
    net = quiet("ring:3", delay=(0.001, r.choice((0.01, 0.5))), duplication=r.choice((0, 0.4)))
    p = r.randrange(3)
    net.at(r.uniform(25.0, 75.0), lambda: net.lose(p, r.choice((None, *net.copies[p][:-1])), rejoin=False))
    net.run(1000, done=net.finished)
    server = net.units[p].server
    assert server is not None
    assert server.phase is Phase.STOPPED
    assert "older than what left" in server.why
    assert all(len(shas) == 1 for shas in net.ledger[p].values())
    others = [net.units[m].server for m in range(3) if m != p]
    assert all(s is not None and s.books.decided == T for s in others), "the others go on"


@pytest.mark.parametrize("seed", stories(7))
def test_a_rejoin_that_was_given_up(seed: int) -> None:
    """A good store, started to rejoin by mistake; before it has, it is started as it is: nothing has happened to it."""
    r = random.Random(seed)  # noqa: S311
    net = quiet("path:2", delay=(0.001, r.choice((0.01, 0.5, 3.0))))
    p, when = r.randrange(2), r.uniform(0, 75)

    def mistake() -> None:
        net.kill(p, 1.0)
        net.rejoining.add(p)
        cut = Cut(net.now, net.now + 4, ("server", 1 - p, 0), ("server", p, 0))  # it asks, and hears nothing
        net.weather = Weather(delay=net.weather.delay, cuts=(cut,))

    def give_up() -> None:
        if p in net.rejoining:
            net.rejoining.discard(p)
            net.kill(p, 0.1)

    net.at(when, mistake)
    net.at(when + 3.0, give_up)
    net.run(600, done=net.finished)
    check_over(net)


def test_a_balance_beyond_what_its_flows_can_add_up_to_is_a_lie() -> None:
    """Or one message would put the state of a server out of the range in which its neighbours accept what it says."""
    unit = scripted(Graph.parse("path:2"), scheme("homomorphic", 0.5), rounds=T)[0]
    rules, books = unit.terms.rules._replace(largest=1000), unit.store.load()
    books.apply(exchange.rejoin(books, rules, 3, unit.terms.costs[:3], 0, unit.sign))
    most = 2000 * rules.weights[1] // 2**16 + 1
    for n, lie in ((0, 1), (3, 3 * most + 1), (3, -3 * most - 1), (3, 2**62), (3, -(2**63))):
        with pytest.raises(exchange.LieError, match="beyond what so many flows"):
            exchange.on_balance(books, rules, tell(3, n, np.array([0, lie]).tobytes()))
    assert exchange.on_balance(books, rules, tell(3, 3, np.array([3 * most, -3 * most]).tobytes())) is not None


def test_the_question_is_asked_until_it_is_answered() -> None:
    """A copy with open records, whose first question is lost, when the neighbour has nothing to say by itself."""
    net = quiet("path:2")
    net.run(19.0)
    stale = copy_of(net.units[1])  # open or not, it gets a record that its neighbour never heard of
    books = stale.load()
    books.apply(
        exchange.publish(
            books, net.units[1].terms.rules, books.w, {0: books.w}, net.units[1].terms.costs[0], 0, net.units[1].sign
        )
    )
    net.go()
    now = net.now
    net.weather = Weather(cuts=(Cut(now, now + 5, ("server", 1, 0), ("server", 0, 0)),))
    net.lose(1, MemoryStore(books), 1.0)
    net.run(now + 200)
    assert not net.rejoining, net.state()
    assert not net.units[0].server.refusals, net.units[0].server.refusals
    assert not net.adrift()


def test_nobody_tells_a_balance_that_may_change() -> None:
    """Not before it has decided the round of the question, heard of it, and closed all up to it; nor while adrift."""
    unit = scripted(Graph.parse("path:2"), scheme("homomorphic", 0.5), rounds=T)[0]
    rules, books = unit.terms.rules, unit.store.load()
    x = np.ones(2, np.int64)
    assert exchange.tell_balance(books, rules, ask(1)) is None  # not decided
    books.apply(exchange.publish(books, rules, x, {1: x}, unit.terms.costs[0], 0, unit.sign))
    assert exchange.tell_balance(books, rules, ask(1)) is None  # open, and not heard of
    books.apply(Changes(open={1: {1: None}}, out={(1, -1): None}))
    assert exchange.tell_balance(books, rules, ask(1)) is None  # not heard of
    books.apply(Changes(seen={1: 1}, balances={1: Balance(1, x)}))
    told = exchange.tell_balance(books, rules, ask(1))
    assert told is not None
    assert (told.n, told.total) == (1, x.tobytes())
    books.apply(Changes(status={1: Status.ADRIFT}))
    assert exchange.tell_balance(books, rules, ask(1)) is None


def test_only_the_balance_that_was_asked_for_is_taken() -> None:
    unit = scripted(Graph.parse("path:2"), scheme("homomorphic", 0.5), rounds=T)[0]
    rules, books = unit.terms.rules, unit.store.load()
    x = np.arange(1, 3)

    assert exchange.on_balance(books, rules, tell(0, 3, x.tobytes())) is None  # not adrift
    books.apply(exchange.rejoin(books, rules, 3, unit.terms.costs[:3], 0, unit.sign))
    assert exchange.on_balance(books, rules, tell(2, 3, x.tobytes())) is None  # of an earlier question
    with pytest.raises(exchange.ExchangeError, match="length"):
        exchange.on_balance(books, rules, tell(3, 3, b"short"))
    changes = exchange.on_balance(books, rules, tell(3, 3, x.tobytes()))
    assert changes is not None
    books.apply(changes)
    assert books.status[1] is Status.OPEN
    assert books.balances[1].n == 3
    assert np.array_equal(books.balances[1].total, -x)
