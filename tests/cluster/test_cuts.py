"""Real cuts between real servers, by TCP proxies: nobody stops for a neighbour that cannot be reached, and all heals.

A network of four in a ring, each with one client whose update is summed in clear: it is the servers that matter here.
Noise is the operating system's: a message that was drawn twice would raise an alarm.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from confide.cluster.layout import lay_out
from confide.cluster.processes import Cluster
from confide.cluster.try_out import TRY_OUT
from confide.plans.config import parse
from patience import LIMIT, SCALE, wait_round
from ports import own_ports
from soak import Auditor, Ways, settle_flows

NAMES = ("alpha", "beta", "gamma", "delta")  # a ring: each is a neighbour of the one before and the one after
ROUNDS = 5000  # more than there is time for
ADAPT, EXCHANGE = 2.0 * SCALE, 1.0 * SCALE  # short: it is shown what happens when they have passed
WINDOW = 4
MANY = 3 * WINDOW  # rounds


class Net(NamedTuple):
    cluster: Cluster
    ways: Ways
    auditor: Auditor

    def told(self, unit: str) -> dict[str, Any]:
        return wait_round(self.cluster, unit, 0)

    def round(self, unit: str) -> int:
        return int(self.told(unit)["round"])

    def go_on(self, units: tuple[str, ...], rounds: int = 3) -> None:
        """All of these decide so many rounds more."""
        for unit, round in {unit: self.round(unit) + rounds for unit in units}.items():
            wait_round(self.cluster, unit, round)

    def peer(self, unit: str, other: str) -> dict[str, Any]:
        return next(peer for peer in self.told(unit)["peers"] if peer["unit"] == other)

    def until(self, unit: str, other: str, **facts: Any) -> None:
        def so() -> bool:
            peer = self.peer(unit, other)
            return all(peer[name] == value for name, value in facts.items())

        self.cluster.wait(f"{unit} sees {other} as {facts}", so, LIMIT)

    def until_published(self, unit: str, messages: int) -> None:
        """On a slow machine rounds are skipped: not all, and how many is not for a test to say."""
        self.cluster.wait(f"{unit} publishes", lambda: self.told(unit)["published"] >= messages, LIMIT)

    def together(self) -> None:
        """All see all their neighbours again, and go on."""
        for unit, other in edges():
            self.until(unit, other, up=True, dialed=True, dials_in=True)
        self.go_on(NAMES)


def edges() -> list[tuple[str, str]]:
    pairs = [(a, b) for a, b in zip(NAMES, (*NAMES[1:], NAMES[0]), strict=True)]
    return pairs + [(b, a) for a, b in pairs]


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Net]:
    """One network for everything here: each part begins when all are together, and leaves it healed."""
    so_many = {"privacy": TRY_OUT["privacy"] | {"unprotected": True}}  # rounds that nobody runs leave no epsilon
    config = parse(TRY_OUT | so_many | {"algorithm": TRY_OUT["algorithm"] | {"aggregation": "plain"}})
    layout = lay_out(
        tmp_path / "n", config, len(NAMES), 1, rounds=ROUNDS, adapt=ADAPT, tick=0.1, exchange=EXCHANGE, window=WINDOW,
        ports=own_ports,
    )  # fmt: skip
    assert layout.units == NAMES
    with Ways(layout) as ways, Cluster(layout, via=ways.via, log="json", grace=0.5) as cluster:
        cluster.start_all()
        found = Net(cluster, ways, Auditor(cluster))
        found.together()
        yield found


def cut_off(net: Net) -> None:
    """Behind a cable that was pulled out: no packet, no error. It stops nobody, and catches up by skipping."""
    others = tuple(name for name in NAMES if name != "gamma")
    net.ways.cut([way for name in others for way in ((name, "gamma"), ("gamma", name))], "freeze")
    at = net.round("gamma")
    net.until("beta", "gamma", up=False)
    net.until("delta", "gamma", up=False)
    net.go_on(others, MANY)
    wait_round(net.cluster, "gamma", at + 2 * WINDOW + 2)  # nor do they stop it, even at the end of its leash
    net.until("alpha", "beta", up=True)

    def waiting() -> int:
        held = len(net.peer("beta", "gamma")["open"])
        assert held <= WINDOW
        return held

    net.cluster.wait("messages wait for gamma", waiting, LIMIT)
    net.ways.heal()
    net.together()


def halves_that_heal(net: Net) -> None:
    """Connections are reset, and the halves go on by themselves."""
    halves = (("alpha", "beta"), ("gamma", "delta"))
    across = [way for a in halves[0] for b in halves[1] for way in ((a, b), (b, a))]
    net.ways.cut(across, "drop")
    for a, b in (("alpha", "delta"), ("delta", "alpha"), ("beta", "gamma"), ("gamma", "beta")):
        net.until(a, b, up=False, dialed=False)
    net.go_on(NAMES)
    for a, b in halves:
        net.until(a, b, up=True)
        net.until(b, a, up=True)
    net.ways.heal()
    net.together()


def one_way_loss(net: Net) -> None:
    """beta hears alpha, and alpha does not hear beta."""
    net.ways.cut([("beta", "alpha")], "freeze")
    known = net.round("beta")  # alpha can know of no later round
    net.until("alpha", "beta", up=False)
    net.go_on(NAMES)
    seen = net.peer("beta", "alpha")["round"]
    net.cluster.wait("beta still hears alpha", lambda: net.peer("beta", "alpha")["round"] > seen, LIMIT)
    assert net.peer("alpha", "beta")["round"] <= known
    net.ways.heal()
    net.together()


def dead_for_many_rounds(net: Net) -> None:
    """It stops nobody, and comes back; without its client it can only skip what it has missed."""
    cluster, (client,) = net.cluster, net.cluster.layout.clients("delta")
    others = tuple(name for name in NAMES if name != "delta")
    cluster.kill("delta")
    cluster.kill(client)
    before = net.auditor.look("delta")
    net.go_on(others, MANY)
    cluster.start("delta")
    told = wait_round(cluster, "delta", max(net.round(name) for name in others))
    assert told["published"] == before.published
    cluster.start(client)
    net.until_published("delta", before.published + 1)
    net.together()


def the_end(net: Net) -> None:
    """The sum is conserved, and every ledger right."""
    for name in NAMES:
        net.until_published(name, MANY)
    settle_flows(net.cluster, NAMES)
    assert set(net.cluster.stop_all(LIMIT).values()) == {0}
    net.auditor.settle()


def test_cuts_stop_nobody_and_heal_and_nothing_is_lost(net: Net) -> None:
    """In one test, since starting a network takes most of the time."""
    cut_off(net)
    halves_that_heal(net)
    one_way_loss(net)
    dead_for_many_rounds(net)
    the_end(net)
