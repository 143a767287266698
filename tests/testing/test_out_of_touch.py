"""A server that no neighbour can hear: what it may still publish, and what it must not."""

from __future__ import annotations

from confide.deploy.machines.ports import Phase
from confide.deploy.store.books import Books
from confide.deploy.store.store import MemoryStore
from confide.graph.graph import Graph
from confide.rounds.schemes import scheme
from confide.testing.network import Cut, Network, Unit, Weather
from confide.testing.rehearsal import scripted

T, WINDOW = 30, 2
ENDS = (("server", 0, 0), ("server", 1, 0))


def cut(begin: float, end: float) -> Weather:
    return Weather(cuts=(Cut(begin, end, *ENDS), Cut(begin, end, *reversed(ENDS))))


def pair() -> list[Unit]:
    return scripted(Graph.parse("path:2"), scheme("homomorphic", 0.5), rounds=T, window=WINDOW)


def published(unit: Unit) -> list[int]:
    return [entry.event.round for entry in unit.store.entries() if entry.event.kind == "message"]


def test_alone_it_publishes_no_further_than_twice_its_window_and_goes_on_when_heard() -> None:
    units = pair()
    network = Network(units, cut(35.0, 250.0))
    network.run(until=250.0)
    for p, unit in enumerate(units):
        seen = units[1 - p].store.load().seen[p]
        rounds = published(unit)
        assert seen == 3
        assert rounds == list(range(1, seen + 2 * WINDOW + 1))
        assert unit.store.load().decided > max(rounds) + 5  # it keeps pace, and says nothing
    network.run(done=network.finished)
    assert network.finished()
    for unit in units:
        assert published(unit)[-1] == T
        assert unit.store.load().decided == T


def test_a_new_store_says_nothing_before_it_has_heard_its_neighbours() -> None:
    """It may stand in for one that was lost: rounds that were published before would be drawn again."""
    units = pair()
    network = Network(units, cut(35.0, 200.0))
    network.run(until=40.0)
    lost = units[0].store.load()
    units[0].store = MemoryStore(Books.fresh(lost.contribution * 0, lost.neighbours))
    network.kill(0, away=1.0)
    network.run(until=199.0)
    server = units[0].server
    assert server is not None
    assert server.phase is Phase.BOOT
    assert published(units[0]) == []
    network.run(until=300.0)
    assert server.phase is Phase.STOPPED
    assert "older than what left" in server.why
    assert published(units[0]) == []
