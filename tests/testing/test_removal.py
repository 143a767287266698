"""Servers that are removed for good, at any moment and under every fault, and epochs that change nothing.

CONFIDE_STORIES=5 runs five times as many stories.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from confide.base.wire import MalformedError
from confide.deploy.machines import epoch as epochs
from confide.deploy.machines import exchange, sync
from confide.deploy.machines.epoch import Epoch, EpochError
from confide.deploy.machines.ports import Phase
from confide.deploy.store.books import Changes, Status
from confide.graph.graph import Graph
from confide.rounds.schemes import scheme
from confide.testing.network import Cut, Network, Weather
from confide.testing.rehearsal import PLAN, scripted, server_identity
from exploring import more
from invariants import Watch

STORIES = float(os.environ.get("CONFIDE_STORIES", more(1, 2)))
T = 8
GRAPHS = {"ring:4": (0, 1, 2, 3), "complete:4": (0, 1, 2, 3), "star:5": (1, 2, 3, 4), "path:4": (0, 3)}  # who may go


def stories(n: int) -> Iterable[int]:
    return range(int(n * STORIES))


def signed(number: int, removed: tuple[int, ...], P: int, signers: Iterable[int] | None = None) -> Epoch:
    """Without `signers`, all that remain."""
    who = [p for p in range(P) if p not in removed] if signers is None else signers
    return Epoch(PLAN, number, removed, tuple(epochs.sign(server_identity(p), p, PLAN, number, removed) for p in who))


class Story(Network):
    def __init__(self, graph: str, weather: Weather, seed: int) -> None:
        units = scripted(Graph.parse(graph), scheme("homomorphic", 0.5), rounds=T, window=3, seed=seed)
        self.watch = Watch([u.terms for u in units], [u.store.load() for u in units])
        self.gone: dict[int, float] = {}  # when anybody was first told
        self.contributed: list[dict[int, Any]] = [{} for _ in units]
        super().__init__(units, weather, seed, committed=self._committed, sent=self.watch.sent)

    def _committed(self, p: int, c: Changes) -> None:
        before = self.watch.books[p]
        self.watch.committed(p, c)
        after = self.watch.books[p]
        for m, status in before.status.items():
            if status is Status.REMOVED:
                assert after.status[m] is Status.REMOVED, "a removed server never returns"
                assert after.balances[m] is before.balances[m], "nothing enters over a removed edge"
            if after.status[m] is Status.REMOVED:
                assert not after.open[m]

    def remove(self, epoch: Epoch, told: Iterable[int], every: float = 3.0) -> None:
        """Operators tell some servers; one that is down, or dies of it, hears it again when it is back."""
        for p in told:
            server = self.units[p].server
            if server is not None:
                self._live(p, server.follow, self.now, epochs.encode(epoch))
            if self.units[p].server is None:
                self.at(self.now + every, self.remove, epoch, (p,), every)

    def go(self, until: float = 1500) -> None:
        self.run(until, done=lambda: self.calm and self.finished())

    def state(self) -> list[object]:
        return [(u.server.phase.value, u.server.why, u.server.books.decided, u.server.pending) if u.server else "away"
                for u in self.units]  # fmt: skip


def check_over(net: Story, removed: tuple[int, ...]) -> None:
    """Survivors have finished and agree; their sum is exact; of the removed, whoever heard of it has stopped."""
    books = [u.store.load() for u in net.units]
    left = [p for p in range(len(books)) if p not in removed]
    for p in left:
        server, mine = net.units[p].server, books[p]
        assert server is not None
        assert server.phase is Phase.FINISHED, net.state()
        assert mine.decided == T
        assert not any(mine.open.values()), net.state()
        assert not mine.out, "messages for nobody are kept"
        assert not server.alarms, server.alarms
        assert [e.event.round for e in net.units[p].store.entries()] == list(range(1, T + 1))
        for m in mine.neighbours:
            assert (mine.status[m] is Status.REMOVED) == (m in removed), (p, m)
            if m in left:
                assert not (mine.balances[m].total + books[m].balances[p].total).any(), (p, m)
    own = np.sum([books[p].contribution for p in left], axis=0)
    kept = np.sum(
        [books[p].balances[q].total for p in left for q in removed if q in books[p].neighbours] or [0 * own], axis=0
    )
    assert np.array_equal(np.sum([books[p].w for p in left], axis=0), own + kept)
    for q in removed:
        server = net.units[q].server
        if server is not None and books[q].epoch and q in epochs.decode(books[q].epoch).removed:
            assert server.phase is Phase.STOPPED
            assert "removed" in server.why


def random_weather(r: random.Random, graph: str, q: int) -> Weather:
    cuts = []
    for a, b in Graph.parse(graph).edges.tolist():
        if r.random() < (0.4 if q in (a, b) else 0.1):
            begin, lasts = r.uniform(0, 60), r.choice((1, 5, 25, 1000))
            if lasts == 1000 and q not in (a, b):
                lasts = 5
            for x, y in ((a, b), (b, a))[: r.choice((1, 2))]:
                cuts.append(Cut(begin, begin + lasts, ("server", x, 0), ("server", y, 0)))
    return Weather(
        delay=(0.001, r.choice((0.01, 0.5, 4.0))),
        loss=r.choice((0, 0.1, 0.3)),
        duplication=r.choice((0, 0.3)),
        crash=r.choice((0, 0.003, 0.02)),
        away=r.choice(((0.01, 0.02), (1.0, 15.0))),
        cuts=tuple(cuts),
        calm=r.choice((40.0, 70.0, 110.0)),
    )


@pytest.mark.parametrize("seed", stories(15))
def test_one_is_removed(seed: int) -> None:
    """At any moment, its flows open or not; told to some servers only, perhaps to itself; up, down or cut off."""
    r = random.Random(seed)  # noqa: S311
    graph = r.choice(list(GRAPHS))
    q = r.choice(GRAPHS[graph])
    net = Story(graph, random_weather(r, graph, q), seed)
    P = len(net.units)
    told = r.sample(range(P), r.choice((1, 1, 2, P)))
    if set(told) <= {q}:
        told.append((q + 1) % P)
    when = r.uniform(0, 75)
    net.at(when, net.remove, signed(1, (q,), P), told)
    if r.random() < 0.4:
        net.at(when - r.choice((0.0, 3.0)), lambda: net.units[q].server and net.kill(q, r.choice((1.0, 30.0, 1e6))))
    net.go()
    check_over(net, (q,))


@pytest.mark.parametrize("seed", stories(16))
def test_two_are_removed(seed: int) -> None:
    """One after the other, each told elsewhere and in either order; or both at once, the first epoch missed."""
    r = random.Random(1000 + seed)  # noqa: S311
    graph = r.choice(("complete:5", "star:6", "ring:5"))
    P = len(Graph.parse(graph).edges) if graph == "ring:5" else int(graph[-1])
    a, b = (2, 3) if graph == "ring:5" else r.sample(range(1, P), 2)
    net = Story(graph, random_weather(r, graph, a), seed)
    survivors = [p for p in range(P) if p not in (a, b)]
    first, second = signed(1, (a,), P, [*survivors, b]), signed(2, tuple(sorted((a, b))), P)
    one, other = r.uniform(0, 60), r.uniform(0, 60)  # an older epoch that comes after the newer changes nothing
    net.at(one, net.remove, first, r.sample(survivors, 1))
    net.at(other, net.remove, second, r.sample(survivors, r.choice((1, 2))))
    net.go()
    check_over(net, tuple(sorted((a, b))))
    for p in survivors:
        assert epochs.decode(net.units[p].store.load().epoch).number == 2


def test_the_removed_stops_and_stays_so() -> None:
    """It hears of it from a neighbour, stops, and stops again whenever it is started; what it says is refused."""
    net = Story("ring:4", Weather(), 1)
    net.at(25.0, net.remove, signed(1, (2,), 4), (0,))  # not even a neighbour of 2
    net.run(60.0)
    assert net.units[2].server is not None
    assert net.units[2].server.phase is Phase.STOPPED
    net.kill(2, 0.1)
    net.run(65.0)
    assert net.units[2].server.why == "this server was removed from the network"
    neighbour, books = net.units[1].server, net.units[1].store.load()
    assert neighbour is not None
    stale = exchange.make_sync(net.units[2].store.load(), net.units[2].terms.rules, 1, epoch=0, ask=True)
    neighbour.from_server(net.now, 2, sync.encode(stale))
    assert neighbour.refusals["server: from a server that was removed"] >= 1
    assert net.units[1].store.load().decided == books.decided
    net.go()
    check_over(net, (2,))


def test_open_flows_of_the_removed_are_dropped() -> None:
    """Its records and the messages that only it needed go; those that others need stay; what had come in stays."""
    cut = tuple(Cut(12.0, 1e6, ("server", 2, 0), ("server", m, 0)) for m in (1, 3))
    net = Story("ring:4", Weather(cuts=cut), 1)
    net.run(32.0)
    before = net.units[1].store.load()
    assert before.open[2]
    rounds = set(before.open[2]) - set(before.open[0])
    assert rounds <= {i for i, _ in before.out}
    assert net.units[1].server is not None
    net.units[1].server.follow(net.now, epochs.encode(signed(1, (2,), 4)))
    after = net.units[1].store.load()
    assert after.status == {0: Status.OPEN, 2: Status.REMOVED}
    assert not after.open[2]
    assert after.open[0] == before.open[0]
    assert not rounds & {i for i, _ in after.out}
    assert after.balances[2].n == before.balances[2].n == 1
    net.go()
    check_over(net, (2,))


def _resigned(x: Epoch, **changes: Any) -> Epoch:
    return replace(x, **changes)


PREVIOUS = signed(3, (4,), 5)
BAD: dict[str, Callable[[], Epoch]] = {
    "of another plan": lambda: _resigned(signed(4, (3, 4), 5), plan=bytes([1]) * 32),
    "never returns": lambda: signed(4, (2, 3), 5),
    "removes nobody": lambda: signed(4, (4,), 5),
    "the plan has 0 to 4": lambda: signed(4, (4, 5), 5, (0, 1, 2)),
    "fewer than two": lambda: signed(4, (1, 2, 3, 4), 5, (0,)),
    "no longer reaches": lambda: signed(4, (1, 4), 5),
    "signed it twice": lambda: signed(4, (3, 4), 5, (0, 1, 1, 2)),
    "server 7 signed it": lambda: signed(4, (3, 4), 5, (0, 1, 7)),
    "is removed by it": lambda: signed(4, (3, 4), 5, (0, 1, 2, 3)),
    "more than half must": lambda: signed(4, (3, 4), 5, (0, 1)),
    "is not valid": lambda: _resigned(signed(5, (3, 4), 5), number=4),
}


@pytest.mark.parametrize("why", BAD)
def test_an_invalid_epoch_changes_nothing(why: str) -> None:
    """From an operator it is an error, from a neighbour a refusal; the books, the ledger and the mail stay the same."""
    net = Story("ring:5", Weather(), 1)
    net.at(5.0, net.remove, PREVIOUS, (0,))
    net.run(25.0)
    server, raw = net.units[0].server, epochs.encode(BAD[why]())
    assert server is not None
    before, commits, messages = vars(net.units[0].store.load()), net.watch.commits, net.messages
    with pytest.raises(EpochError, match=why):
        server.follow(net.now, raw)
    server.from_server(net.now, 1, sync.encode(sync.TellEpoch(PLAN, 1, 0, raw)))
    assert server.refusals == {"server: an epoch that does not hold": 1}
    assert (net.watch.commits, net.messages) == (commits, messages)
    assert str(vars(net.units[0].store.load())) == str(before)
    net.go()
    check_over(net, (4,))


@pytest.mark.parametrize("number", [1, 2, 3])
def test_an_old_epoch_is_nothing(number: int) -> None:
    """Older or the same: neither followed nor refused, whatever it says; a late copy is no event."""
    net = Story("ring:5", Weather(), 1)
    net.at(5.0, net.remove, PREVIOUS, (0,))
    net.run(25.0)
    server, commits = net.units[0].server, net.watch.commits
    assert server is not None
    server.follow(net.now, epochs.encode(signed(number, (3,), 5)))
    server.from_server(net.now, 1, sync.encode(sync.TellEpoch(PLAN, 1, 0, epochs.encode(PREVIOUS))))
    assert net.watch.commits == commits
    assert not server.refusals
    with pytest.raises(MalformedError):
        server.follow(net.now, b"no epoch")
    server.from_server(net.now, 1, sync.encode(sync.TellEpoch(PLAN, 1, 0, b"no epoch")))
    assert server.refusals == {"server: malformed": 1}
