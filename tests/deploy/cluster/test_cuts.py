"""Real cuts between real servers, by TCP proxies: nobody stops for a neighbour that cannot be reached, and all heals.

A network of four in a ring, each with one client whose update is summed in clear: it is the servers that matter here.
Noise is the operating system's: a message that was drawn twice would raise an alarm.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from confide.config import parse
from confide.deploy.cluster.layout import lay_out
from confide.deploy.cluster.processes import Cluster
from confide.deploy.cluster.try_out import TRY_OUT

NAMES = ("alpha", "beta", "gamma", "delta")  # a ring: each is a neighbour of the one before and the one after
ROUNDS, EXCHANGE = 900, 1.0
MANY = 12  # rounds, three windows
PATIENCE = 120.0


class Net(NamedTuple):
    cluster: Cluster
    ways: Any
    auditor: Any

    def round(self, unit: str) -> int:
        return int(self.cluster.wait_round(unit, 0, PATIENCE)["round"])

    def go_on(self, units: tuple[str, ...], rounds: int = 3) -> None:
        """All of these decide so many rounds more."""
        for unit, round in {unit: self.round(unit) + rounds for unit in units}.items():
            self.cluster.wait_round(unit, round, PATIENCE)

    def peer(self, unit: str, other: str) -> dict[str, Any]:
        told = self.cluster.wait_round(unit, 0, PATIENCE)
        return next(peer for peer in told["peers"] if peer["unit"] == other)

    def until(self, unit: str, other: str, **facts: Any) -> None:
        def so() -> bool:
            peer = self.peer(unit, other)
            return all(peer[name] == value for name, value in facts.items())

        self.cluster.wait(f"{unit} sees {other} as {facts}", so, PATIENCE)

    def together(self) -> None:
        """All see all their neighbours again, and go on."""
        for unit, other in edges():
            self.until(unit, other, up=True, dialed=True, dials_in=True)
        self.go_on(NAMES)


def edges() -> list[tuple[str, str]]:
    pairs = [(a, b) for a, b in zip(NAMES, (*NAMES[1:], NAMES[0]), strict=True)]
    return pairs + [(b, a) for a, b in pairs]


@pytest.fixture
def net(soak: ModuleType, tmp_path: Path) -> Iterator[Net]:
    """One network for everything here: each part begins when all are together, and leaves it healed."""
    config = parse(TRY_OUT | {"algorithm": TRY_OUT["algorithm"] | {"aggregation": "plain"}})
    folder = tmp_path / "n"
    layout = lay_out(
        folder, config, len(NAMES), 1, rounds=ROUNDS, adapt=6.0, tick=0.2, exchange=EXCHANGE, drain=20, log="json",
        grace=0.5,
    )  # fmt: skip
    assert layout.units == NAMES
    with soak.Ways(layout) as ways, Cluster(layout, via=ways.via, log="json", grace=0.5) as cluster:
        cluster.start_all()
        found = Net(cluster, ways, soak.Auditor(cluster))
        found.together()
        yield found


def cut_off(net: Net) -> None:
    """Behind a cable that was pulled out: no packet, no error. It stops nobody, and catches up by skipping."""
    others = tuple(name for name in NAMES if name != "gamma")
    net.ways.cut([way for name in others for way in ((name, "gamma"), ("gamma", name))], "freeze")
    net.until("beta", "gamma", up=False)
    net.until("delta", "gamma", up=False)
    net.go_on(others, MANY)
    net.go_on(("gamma",), 1)  # nor do they stop it
    assert net.peer("alpha", "beta")["up"]
    assert 0 < len(net.peer("beta", "gamma")["open"]) <= 4  # the window, and no more
    net.ways.heal()
    net.together()


def halves_that_heal(net: Net) -> None:
    """Connections are reset, and the halves go on by themselves."""
    halves = (("alpha", "beta"), ("gamma", "delta"))
    across = [way for a in halves[0] for b in halves[1] for way in ((a, b), (b, a))]
    net.ways.cut(across, "drop")
    for a, b in (("alpha", "delta"), ("delta", "alpha"), ("beta", "gamma"), ("gamma", "beta")):
        net.until(a, b, up=False, dialed=False)
    net.go_on(NAMES, 4)
    for a, b in halves:
        assert net.peer(a, b)["up"]
        assert net.peer(b, a)["up"]
    net.ways.heal()
    net.together()


def one_way_loss(net: Net) -> None:
    """beta hears alpha, and alpha does not hear beta."""
    net.ways.cut([("beta", "alpha")], "freeze")
    net.until("alpha", "beta", up=False)
    net.go_on(NAMES, 4)
    seen = net.peer("beta", "alpha")["round"]
    assert net.peer("alpha", "beta")["round"] < seen
    net.cluster.wait("beta still hears alpha", lambda: net.peer("beta", "alpha")["round"] > seen, PATIENCE)
    net.ways.heal()
    net.together()


def dead_for_many_rounds(net: Net) -> None:
    """It stops nobody, and comes back."""
    others = tuple(name for name in NAMES if name != "delta")
    net.cluster.kill("delta", signal.SIGKILL)
    before = net.auditor.look("delta")
    net.go_on(others, MANY)
    net.cluster.start("delta")
    net.together()

    def speaks() -> bool:  # its clients take some seconds until they dial again
        status = net.cluster.status("delta")
        return status is not None and status["published"] > before.published

    net.cluster.wait("delta publishes again", speaks, PATIENCE)
    net.cluster.stop(["delta"])
    after, rows = net.auditor.look("delta"), net.auditor.rows["delta"]
    missed = [event.kind for event in rows[before.decided : before.decided + MANY - 1]]
    assert missed == ["skip"] * (MANY - 1)
    assert after.published > before.published


def the_end(net: Net) -> None:
    """The sum is conserved, and every ledger right. Without clients nothing new is published, and all is settled."""
    cluster = net.cluster
    assert max(net.round(name) for name in NAMES if cluster.alive(name)) < ROUNDS
    cluster.stop(cluster.layout.nodes)
    net.auditor.settle(drained=False)
    for name in NAMES:
        cluster.start(name)
    cluster.wait("nothing is open", lambda: not any(net.peer(a, b)["open"] for a, b in edges()), PATIENCE)
    cluster.stop_all()
    books = net.auditor.settle()
    assert min(one.published for one in books) > MANY


def test_cuts_stop_nobody_and_heal_and_nothing_is_lost(net: Net) -> None:
    """In one test, since starting a network takes most of the time."""
    cut_off(net)
    halves_that_heal(net)
    one_way_loss(net)
    dead_for_many_rounds(net)
    the_end(net)
