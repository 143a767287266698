"""A store that is older than what left: found out once it is known for ever, and nothing is published twice."""

from __future__ import annotations

from math import inf as NEVER
from typing import Any

import pytest

from confide.deploy.machines.exchange import Reason
from confide.deploy.machines.ports import Phase
from confide.deploy.machines.server import Server
from confide.deploy.store.books import Changes, Status
from confide.deploy.store.store import MemoryStore
from confide.graph.graph import Graph
from confide.rounds.schemes import scheme
from confide.testing.network import Cut, Network, Unit, Weather
from confide.testing.rehearsal import scripted

T, WINDOW = 40, 2
Lines = list[tuple[int, str, dict[str, Any]]]


def path(n: int = 2) -> list[Unit]:
    return scripted(Graph.parse(f"path:{n}"), scheme("homomorphic", 0.5), rounds=T, window=WINDOW)


def deaf(begin: float, end: float, to: int = 0, source: int = 1) -> Cut:
    return Cut(begin, end, ("server", source, 0), ("server", to, 0))


class Box(Network):
    """A network whose server 0 gets an older copy of its store back."""

    def __init__(self, units: list[Unit], weather: Weather | None = None) -> None:
        self.lines: Lines = []
        self.sent: list[tuple[float, int, int]] = []  # when, by which server, and how many bytes
        super().__init__(
            units,
            weather,
            1,
            sent=lambda source, _, raw: self.sent.append((self.now, source[1], len(raw))),
            log=lambda p, event, **fields: self.lines.append((p, event, fields)),
        )
        self.copy: tuple[Any, list[Any]] = (None, [])

    def keep(self) -> None:
        store = self.units[0].store
        self.copy = store.load(), list(store.entries())

    def put_back(self, away: float = 0.5) -> None:
        books, entries = self.copy
        self.units[0].store = MemoryStore(books)
        self.units[0].store.commit(Changes(entries=list(entries)))
        self.kill(0, away)

    def rejoin(self) -> None:
        """By hand: it is started once with `--rejoin`."""
        self.kill(0, NEVER)
        self.at(self.now + 0.1, self._boot, 0, True)

    def go(self, until: float) -> Server:
        self.run(until)
        server = self.units[0].server
        assert server is not None
        return server

    def said(self, p: int, event: str) -> list[dict[str, Any]]:
        return [fields for q, name, fields in self.lines if (q, name) == (p, event)]


def published(unit: Unit) -> list[int]:
    return [entry.event.round for entry in unit.store.entries() if entry.event.kind == "message"]


def restored(weather: Weather | None = None, units: list[Unit] | None = None) -> Box:
    """At 55 s, after five rounds, its store becomes that of 25 s, after two."""
    box = Box(units or path(), weather)
    box.at(25.0, box.keep)
    box.at(55.0, box.put_back)
    return box


def test_it_is_refused_at_every_later_start_whoever_is_up_then() -> None:
    box = restored()
    assert box.go(60.0).phase is Phase.STOPPED
    assert published(box.units[0]) == [1, 2]
    box.weather = Weather(cuts=(deaf(60.0, 200.0),))
    for _ in range(2):
        box.kill(0, 0.1)
        box.kill(1, 100.0)  # and nobody is there to say so
        server = box.go(box.now + 30.0)
        assert server.phase is Phase.STOPPED
        assert "older than what left" in server.why
        assert published(box.units[0]) == [1, 2]
    box.rejoin()
    server = box.go(260.0)
    assert (server.books.overtaken, server.phase is Phase.STOPPED) == (0, False)
    box.run(1000.0, done=box.finished)
    assert box.finished()
    assert min(i for i in published(box.units[0])[2:]) == 3  # paid for, without a message
    assert not any(u.server is None or u.server.alarms for u in box.units)


def test_it_publishes_nothing_before_anybody_was_heard() -> None:
    """The neighbour is down for long; the old store waits, and is found out when it is back."""
    box = restored()
    box.at(54.0, box.kill, 1, 100.0)
    server = box.go(150.0)
    assert (server.phase, server.books.decided) == (Phase.BOOT, 2)
    assert ("to hear its neighbours", [1]) in [(f["what"], f["servers"]) for f in box.said(0, "waiting")]
    server = box.go(170.0)
    assert server.phase is Phase.STOPPED
    assert published(box.units[0]) == [1, 2]


def test_a_store_that_is_whole_goes_on_when_one_of_its_neighbours_is_down() -> None:
    """One deadline for those that are down, as long as anybody was heard."""
    box = Box(path(3))
    box.at(24.0, box.kill, 2, 1000.0)
    box.at(25.0, box.kill, 1, 0.5)
    box.run(60.0)
    assert published(box.units[1])[-1] >= 4


def test_offers_are_repeated_to_nobody_who_was_not_heard() -> None:
    box = Box(path(), Weather(cuts=(deaf(19.0, 90.0), deaf(19.0, 39.0, 1, 0))))
    box.at(39.5, box.kill, 0, 0.1)
    server = box.go(80.0)
    assert server.pending
    assert server.phase is Phase.BOOT
    questions = {size for now, p, size in box.sent if p == 0 and now > 39.55}
    box.run(120.0)
    assert max(questions) < max(size for now, p, size in box.sent if p == 0 and now > 80.0)
    box.run(1000.0, done=box.finished)
    assert box.finished()


def elsewhere(until: float) -> Box:
    """Server 0 is back where server 1 cannot dial it: it speaks to 1 without hearing it, and hears 2, whom it had lost.

    So nobody tells it that its store is old.
    """
    units = scripted(Graph.parse("ring:3"), scheme("homomorphic", 0.5), rounds=T, window=WINDOW)
    lost = (deaf(24.0, 54.0, 2, 0), deaf(24.0, 54.0, 0, 2))
    return restored(Weather(cuts=(deaf(54.0, until), *lost)), units)


def test_a_neighbour_that_hears_it_fall_refuses_alarms_and_offers_no_more() -> None:
    box = elsewhere(until=300.0)
    box.run(54.9)
    assert box.units[1].server is not None
    before = box.units[1].server.books.balances[0]
    box.run(120.0)
    neighbour = box.units[1].server
    assert [what.partition(":")[0] for what in neighbour.alarms] == ["server 0 is at round 2 and was at 5"]  # said once
    assert neighbour.refusals[Reason.FELL] > 0
    assert neighbour.store.load().status == {0: Status.SUSPECT, 2: Status.OPEN}
    assert neighbour.books.balances[0] is before
    assert all(0 in f["suspended"] for f in box.said(1, "published") if f["round"] > 6)
    box.kill(1, 0.1)  # and does not forget it
    box.run(160.0)
    assert box.units[1].store.load().status[0] is Status.SUSPECT
    assert box.said(1, "published")[-1]["suspended"] == [0]


def test_after_a_rejoin_the_edge_is_used_again() -> None:
    box = elsewhere(until=100.0)
    box.run(110.0)
    assert box.units[1].store.load().status[0] is Status.SUSPECT
    box.rejoin()
    box.run(1000.0, done=box.finished)
    assert box.finished()
    books = [u.store.load() for u in box.units]
    assert {status for b in books for status in b.status.values()} == {Status.OPEN}
    for p, mine in enumerate(books):
        assert all(not (mine.balances[m].total + books[m].balances[p].total).any() for m in mine.neighbours)


@pytest.mark.parametrize("seed", range(6))
def test_messages_that_are_late_are_no_alarm(seed: int) -> None:
    """They overtake each other, over restarts too; only what was made later than more was said is a store that fell."""
    units = scripted(Graph.parse("ring:3"), scheme("homomorphic", 0.5), rounds=12, window=WINDOW)
    weather = Weather(delay=(0.001, 9.0), duplication=0.3, crash=0.01, away=(0.1, 5.0), calm=150.0)
    box = Network(units, weather, seed)
    box.run(2000.0, done=lambda: box.calm and box.finished())
    assert box.finished()
    for unit in units:
        assert unit.server is not None
        assert not unit.server.alarms
        assert set(unit.store.load().status.values()) == {Status.OPEN}
