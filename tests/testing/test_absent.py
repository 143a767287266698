"""Clients that never come, vanish or are silent, and a plan that begins without any: rounds go on with who is there.

Two units of five clients, of whom three are enough for a sum, with the clocks that a user gets where none are given:
of `agree`, of `confide cluster` and of docs/deploying.md. With those of `SHORT`, neighbours do not wait for as long as
a silent client is waited for.
"""

from __future__ import annotations

import inspect
import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from math import inf as NEVER
from pathlib import Path
from typing import Any

import pytest

from confide import problems
from confide.cluster.layout import lay_out
from confide.deploy.keys.announcement import agree
from confide.deploy.machines import client_messages
from confide.deploy.machines.attendance import SILENT, TRAINING, Attendance, misfit
from confide.deploy.machines.cohort import REPEATS
from confide.deploy.machines.ports import Phase
from confide.plans.build import of_deployment
from confide.plans.plan import Clocks
from confide.privacy.price import agreed
from confide.testing.network import Client, Cut, Network, Weather
from confide.testing.rehearsal import forged_units, training_units
from invariants import Watch, balanced

ROUNDS, K = 12, 5
PAGE = (Path(__file__).parents[2] / "docs" / "deploying.md").read_text(encoding="utf-8")
SHORT = {"adapt": 10.0, "tick": 0.5, "exchange": 5.0, "drain": 30.0}
PROBLEM = problems.regression(units=2, clients=K, samples=4, features=2, seed=3)
SUMS = {"secure": {}, "active": {"server": "active", "corrupted": 0.0, "dropped": 0.2}, "plain": {}}


def given(function: Callable[..., Any]) -> dict[str, float]:
    """The clocks of somebody who gives none."""
    names = inspect.signature(function).parameters
    return {name: names[name].default for name in SHORT if names[name].default is not None}


def of_the_page() -> dict[str, float]:
    (line,) = re.findall(r"confide agree .*--out public/plan.json .*", PAGE)
    return {name: float(re.findall(rf"--{name} (\S+)", line)[0]) for name in SHORT}


DEFAULTS = {"agree": given(of_deployment), "cluster": given(lay_out), "page": of_the_page()}
CLOCKS = DEFAULTS | {"short": SHORT}


class Box:
    """What everybody's log said is in `said`, by (server, event)."""

    def __init__(
        self, clocks: dict[str, float], sums: str = "secure", weather: Weather | None = None, rounds: int = ROUNDS
    ) -> None:
        config = {
            "rounds": rounds,
            "graph": {"topology": "path"},
            "problem": {"units": 2, "clients": K, "samples": 4, "features": 2},
            "algorithm": {
                "step": 0.1, "sampled": K, "clip": "update", "bound": 1.0, "arithmetic": "fixed",
                "aggregation": "plain" if sums == "plain" else "secure",
            },
            "secure": SUMS[sums],
            "scheme": {"name": "shared", "sigma": 0.1, "noise": "gaussian"},
            "privacy": {"unprotected": True},
        }  # fmt: skip
        self.prices = agreed(agree(config, forged_units(2, K), **clocks))
        self.units = training_units(self.prices, PROBLEM, 3)
        self.watch = Watch([u.terms for u in self.units], [u.store.load() for u in self.units])
        self.said: list[tuple[int, str, dict[str, Any]]] = []
        self.net = Network(
            self.units, weather, 1, committed=self.watch.committed, sent=self.watch.sent, log=self._log,
        )  # fmt: skip

    def _log(self, p: int, event: str, **fields: Any) -> None:
        self.said.append((p, event, fields))

    def logged(self, p: int, event: str) -> list[dict[str, Any]]:
        return [fields for q, name, fields in self.said if (q, name) == (p, event)]

    def run(self) -> None:
        self.net.run(until=1e5, done=self.net.finished)
        assert self.net.finished()
        balanced(self.watch.terms, self.watch.books)

    def kinds(self, p: int) -> Counter[str]:
        return Counter(entry.event.kind for entry in self.units[p].store.entries())

    def applied(self) -> int:
        """Rounds whose flow entered at both ends."""
        return int(self.units[0].store.load().balances[1].n)


EVERY_ROUND = {"message": ROUNDS}


@pytest.mark.parametrize("sums", SUMS)
@pytest.mark.parametrize("name", CLOCKS)
def test_a_client_that_never_comes_costs_its_unit_no_round(name: str, sums: str) -> None:
    box = Box(CLOCKS[name], sums)
    box.units[0].machines[2] = None
    box.run()
    assert (box.kinds(0), box.kinds(1), box.applied()) == (EVERY_ROUND, EVERY_ROUND, ROUNDS)
    assert not box.logged(1, "down")
    assert {fields["clients"] for fields in box.logged(0, "published")} == {K - 1}


@pytest.mark.parametrize("sums", SUMS)
@pytest.mark.parametrize("name", CLOCKS)
def test_nor_does_one_that_is_killed(name: str, sums: str) -> None:
    """Whenever that is: before it is invited, while it trains, in the middle of a sum."""
    box = Box(CLOCKS[name], sums, Weather(delay=(0.01, 0.02)))
    tick = box.units[0].terms.clocks.tick
    box.net.at(4 * tick + 0.05, box.net.kill_client, 0, 2, NEVER)
    box.run()
    assert (box.kinds(0), box.kinds(1), box.applied()) == (EVERY_ROUND, EVERY_ROUND, ROUNDS)
    last = box.logged(0, "published")[-1]
    assert last["clients"] == K - 1


@pytest.mark.parametrize(
    ("name", "sums"), [*((name, sums) for name in DEFAULTS for sums in ("secure", "active")), ("agree", "plain")]
)
def test_nor_with_the_clocks_of_a_user_one_that_is_connected_and_silent(name: str, sums: str) -> None:
    box = Box(CLOCKS[name], sums, deaf(0.0, NEVER))
    box.run()
    assert (box.kinds(0), box.kinds(1), box.applied()) == (EVERY_ROUND, EVERY_ROUND, ROUNDS)


def deaf(begin: float, end: float, clients: tuple[int, ...] = (2,)) -> Weather:
    """What these clients of the first unit say is lost, and no stream ends."""
    return Weather(cuts=tuple(Cut(begin, end, ("client", 0, k), ("server", 0, 0)) for k in clients))


@pytest.mark.parametrize("sums", SUMS)
def test_with_short_clocks_a_silent_client_is_waited_for_some_rounds_and_no_longer(sums: str) -> None:
    box = Box(SHORT, sums, deaf(0.0, NEVER))
    box.run()
    skipped = box.logged(0, "skipped")
    assert 1 <= len(skipped) <= SILENT
    assert {fields["waited"] for fields in skipped} == {1}
    assert box.kinds(1) == EVERY_ROUND
    assert box.kinds(0)["message"] >= ROUNDS - 2 * SILENT


class Slow:
    """A client that answers everything in time, at the end of it: in each phase of a round it is the last one."""

    def __init__(self, net: Network, inner: Client, adapt: float) -> None:
        self.net, self.inner, self.adapt = net, inner, adapt
        self.asked: list[bytes] = []
        self.began = 0.0

    def hello(self) -> bytes:
        return self.inner.hello()

    def receive(self, raw: bytes) -> list[bytes]:
        match client_messages.from_server(raw, len(raw)):
            case client_messages.Invite() if raw not in self.asked:
                self.asked, self.began = [raw], self.net.now
            case client_messages.Step() if raw not in self.asked:
                self.asked.append(raw)
        late = TRAINING + (len(self.asked) - 1) / 10 - 2 / REPEATS  # questions are repeated until they are answered
        replies = self.inner.receive(raw)
        return replies if not self.asked or self.net.now - self.began >= late * self.adapt else []


@pytest.mark.parametrize("sums", ["secure", "active"])
@pytest.mark.parametrize("name", ["cluster", "page"])
def test_one_that_takes_its_time_in_every_phase_costs_its_unit_ever_fewer_rounds(name: str, sums: str) -> None:
    """Each phase ends in time, and all together later than neighbours wait."""
    rounds = 64
    box = Box(DEFAULTS[name], sums, rounds=rounds)
    machine = box.units[0].machines[2]
    assert machine is not None
    box.units[0].machines[2] = Slow(box.net, machine, DEFAULTS[name]["adapt"])
    box.run()
    assert box.kinds(1) == {"message": rounds}
    chances = SILENT + int(math.log2(rounds))
    assert 1 <= len(box.logged(0, "skipped")) <= chances  # each of some rounds, which the neighbour has made meanwhile
    taking_part = [fields["clients"] for fields in box.logged(0, "published")]
    assert taking_part.count(K) <= 2 * chances
    assert box.kinds(0)["message"] > rounds / 2


@pytest.mark.parametrize("sums", SUMS)
def test_who_was_silent_is_in_the_sums_again_once_it_answers(sums: str) -> None:
    box = Box(DEFAULTS["agree"], sums, deaf(0.0, 200.0))
    box.run()
    took_part = [fields["clients"] for fields in box.logged(0, "published")]
    assert took_part[0] == K - 1
    assert took_part[-1] == K


def test_a_sum_that_was_asked_for_is_not_given_up() -> None:
    """The answers come after the neighbour has decided two rounds more."""
    clocks = SHORT | {"exchange": 1.0}
    box = Box(clocks, "secure")

    def cut() -> None:
        box.net.weather = deaf(box.net.now, box.net.now + 3.0, tuple(range(K)))

    watching: list[bool] = []

    def look() -> bool:
        if not watching and box.units[0].store.load().transcript:
            watching.append(True)
            cut()
        return box.net.finished()

    box.net.run(until=1e5, done=look)
    assert watching
    balanced(box.watch.terms, box.watch.books)
    kinds = {entry.event.round: entry.event.kind for entry in box.units[0].store.entries()}
    assert kinds[1] == "message"
    assert set(kinds.values()) == {"message", "skip"}  # it was late, and followed
    assert box.kinds(1) == EVERY_ROUND


def test_a_round_that_fails_says_for_how_many_it_has_waited() -> None:
    box = Box(DEFAULTS["cluster"], "secure", deaf(0.0, 20.0, (0, 1, 2)))
    box.run()
    assert box.logged(0, "skipped")[0]["waited"] == 3


# ---- a plan that begins without clients


@pytest.mark.parametrize("sums", SUMS)
def test_a_plan_does_not_run_out_without_clients(sums: str) -> None:
    box = Box(DEFAULTS["cluster"], sums)
    for unit in box.units:
        unit.machines = [None] * K
    box.net.run(until=10_000.0)
    assert [unit.store.load().decided for unit in box.units] == [0, 0]
    for p in (0, 1):
        assert len([fields for fields in box.logged(p, "waiting") if "needed" in fields]) == 1
        server = box.units[p].server
        assert server is not None
        assert "0 are connected" in server.rounds.waits
    for p in (0, 1):
        for k in range(K):
            box.net.at(10_001.0 + k / 100, box.net.start_client, p, k)
    box.run()
    assert (box.kinds(0), box.kinds(1)) == (EVERY_ROUND, EVERY_ROUND)
    assert all(server is not None and not server.rounds.waits for server in (u.server for u in box.units))


def test_a_unit_without_clients_follows_its_neighbour_and_publishes_once_they_come() -> None:
    box = Box(DEFAULTS["cluster"])
    box.units[0].machines = [None] * K
    for k in range(K):
        box.net.at(20.0, box.net.start_client, 0, k)
    box.run()
    kinds = [entry.event.kind for entry in box.units[0].store.entries()]
    first = kinds.index("message")
    assert kinds == ["skip"] * first + ["message"] * (ROUNDS - first)
    assert first > 0
    assert box.kinds(1) == EVERY_ROUND


def test_once_a_round_was_published_nobody_waits_for_clients() -> None:
    """The fact is in the books: also after a restart, and with nobody there the plan runs to its end."""
    box = Box(DEFAULTS["cluster"], "plain")

    def leave() -> None:
        for k in range(K):
            box.net.kill_client(0, k, NEVER)
        box.net.kill(0, 0.1)

    box.net.at(1.7, leave)
    box.run()
    published = box.kinds(0)["message"]
    assert 0 < published < ROUNDS
    assert box.kinds(0)["skip"] == ROUNDS - published


def test_a_server_that_starts_again_waits_for_its_clients_a_while() -> None:
    """They dial it anew, one after the other: no round loses them, but one that they had answered before it ended."""
    box = Box(DEFAULTS["cluster"], "plain")

    def restart() -> None:
        server = box.units[0].server
        assert server is not None
        if server.phase is not Phase.WAIT:
            box.net.at(box.net.now + 0.0005, restart)
            return
        for k in range(K):
            box.net.kill_client(0, k, 0.1 + 0.4 * k)
        box.net.kill(0, 0.1)

    box.net.at(1.7, restart)
    box.run()
    assert box.kinds(0) == EVERY_ROUND
    assert {fields["clients"] for fields in box.logged(0, "published")} == {K}


# ---- for whom a round waits


def test_for_whom_a_round_waits() -> None:
    a = Attendance(3, Clocks(adapt=10.0, tick=1.0, neighbours=4.0))
    a.opened(100.0)
    assert a.until == 102.0  # half of the neighbours' time: they may be dialing
    a.connected(0)
    assert [a.awaited(k) for k in range(3)] == [True, True, True]
    a.tick(102.0)
    assert a.until == NEVER
    assert [a.awaited(k) for k in range(3)] == [True, False, False]
    a.opened(103.0)
    assert a.until == NEVER  # once
    a.connected(1)
    a.lost(0)
    assert [a.awaited(k) for k in range(3)] == [False, True, False]
    a.connected(99)  # not of this unit
    assert a.here == {1}


def test_a_silent_client_that_has_spoken_gets_another_chance_ever_more_seldom() -> None:
    a = Attendance(2, Clocks())
    a.connected(0)
    a.connected(1)
    waited = []
    for i in range(1, 17):
        if a.awaited(1):
            waited.append(i)
        a.settle({0}, {1})
        a.spoke(1)  # too late
    assert waited == [1, 2, 3, 5, 9]
    for _ in range(20):
        assert not a.awaited(1) or a.silent[1] == 16
        a.settle({0}, {1})  # and never a word
    assert not a.awaited(1)
    a.settle({0, 1}, ())
    assert a.awaited(1)
    a.lost(1)
    a.settle({0}, {1})
    assert not a.silent[1]  # who is not there is not silent


@pytest.mark.parametrize("name", DEFAULTS)
def test_clocks_that_a_user_gets_fit(name: str) -> None:
    clocks = dict(DEFAULTS[name])
    neighbours = clocks.pop("exchange")
    assert not misfit(Clocks(**{"tick": clocks["adapt"]} | clocks, neighbours=neighbours), secure=True)


def test_clocks_that_do_not_fit_are_told_with_what_would() -> None:
    short = Clocks(adapt=10.0, tick=0.5, neighbours=5.0)
    assert "exchange = 6.5" in misfit(short, secure=True)
    assert "exchange = 9.5" in misfit(short, secure=False)
    assert not misfit(replace(short, neighbours=6.5), secure=True)
    assert not misfit(replace(short, tick=10.0), secure=True)  # published at the same moment in any case


def test_a_box_that_has_no_absent_client_is_in_the_same_phase_as_before() -> None:
    box = Box(SHORT)
    box.run()
    assert [unit.server.phase for unit in box.units if unit.server] == [Phase.FINISHED] * 2
    assert (box.kinds(0), box.kinds(1), box.applied()) == (EVERY_ROUND, EVERY_ROUND, ROUNDS)
