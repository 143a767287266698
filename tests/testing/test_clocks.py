"""Clocks that differ, and neighbours that do not keep up: nobody pays for long for what nobody uses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from confide.deploy.machines.ports import Phase
from confide.deploy.machines.server import Server
from confide.graph.graph import Graph
from confide.plans.plan import Clocks
from confide.rounds.schemes import scheme
from confide.testing.network import Cut, Network, Unit, Weather
from confide.testing.rehearsal import scripted

T, WINDOW = 60, 2
LEASH = 2 * WINDOW


def behind(seconds: float) -> type[Server]:
    """A server whose clock is behind the others'."""

    class Behind(Server):
        def boot(self, now: float, *, rejoin: bool = False) -> None:
            super().boot(now - seconds, rejoin=rejoin)

        def from_server(self, now: float, sender: int, raw: bytes) -> None:
            super().from_server(now - seconds, sender, raw)

        def from_client(self, now: float, client: int, raw: bytes) -> None:
            super().from_client(now - seconds, client, raw)

        def tick(self, now: float) -> None:
            super().tick(now - seconds)

        @property
        def wake(self) -> float:
            return super().wake + seconds + 1e-6  # not a rounding too early

    return Behind


def pair(clocks: Clocks, late: float) -> tuple[Network, list[Unit], list[tuple[int, str, dict[str, Any]]]]:
    """Two servers that begin by their own clocks; that of server 1 is behind."""
    units = scripted(Graph.parse("path:2"), scheme("homomorphic", 0.5), rounds=T, window=WINDOW)
    for unit in units:
        unit.terms = replace(unit.terms, clocks=clocks)
    units[1].make = behind(late)
    lines: list[tuple[int, str, dict[str, Any]]] = []
    network = Network(units, begin=clocks.begin, log=lambda p, event, **fields: lines.append((p, event, fields)))
    return network, units, lines


def published(unit: Unit) -> set[int]:
    return {entry.event.round for entry in unit.store.entries() if entry.event.kind == "message"}


@pytest.mark.parametrize("tick", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("late", [5.0, 20.0])
def test_a_server_whose_neighbour_is_behind_the_clock_pays_for_few_rounds_alone(late: float, tick: float) -> None:
    """It waits for the neighbour again, which comes as far as its own clock lets it; from then on they go together."""
    network, units, _ = pair(Clocks(begin=1000.0, adapt=2.0, tick=tick, neighbours=0.5), late)
    network.run(10_000.0, done=network.finished)
    assert network.finished()
    ahead, slow = map(published, units)
    for alone in (ahead - slow, slow - ahead):  # before either has noticed, and once more on the way back
        assert len(alone) <= 2 * (LEASH + 1)
    assert len(ahead & slow) >= T / 4


def test_a_neighbour_that_hears_and_decides_nothing_is_not_published_for() -> None:
    """Server 1 is new and waits for server 2. It knows of every round of server 0: that is no reason to go on."""
    units = scripted(Graph.parse("path:3"), scheme("homomorphic", 0.5), rounds=T, window=WINDOW)
    ends = ("server", 1, 0), ("server", 2, 0)
    network = Network(units, Weather(cuts=(Cut(0.0, 200.0, *ends), Cut(0.0, 200.0, *reversed(ends)))))
    network.run(190.0)
    assert units[1].server is not None
    assert (units[1].server.phase, units[1].server.books.decided) == (Phase.BOOT, 0)
    assert published(units[0]) == set(range(1, LEASH + 1))
    network.run(5000.0, done=network.finished)
    assert network.finished()
    assert len(published(units[0]) - published(units[1])) == LEASH


def test_a_wait_that_may_be_long_is_said_with_its_reason() -> None:
    clocks = Clocks(begin=1000.0, adapt=2.0, tick=1.0, neighbours=0.5)
    network, units, lines = pair(clocks, 20.0)
    network.run(1010.0)
    assert (1, "waiting", {"what": "for the clock to reach the next round", "servers": []}) in lines
    server = units[1].server
    assert server is not None
    assert (server.phase, server.rounds.awaits) == (Phase.WAIT, ("for the clock to reach the next round", []))
    network.kill(1, 100.0)
    network.kill(0, 0.1)
    network.run(1020.0)
    assert (0, "waiting", {"what": "to hear its neighbours", "servers": [1]}) in lines
    assert units[0].server is not None
    assert units[0].server.rounds.awaits == ("to hear its neighbours", [1])
