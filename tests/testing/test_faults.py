"""Random faults by the hundred, the synchronous round to the last bit, and the replay.

These are docs/design/flows.md, R4 and P1. CONFIDE_STORIES=N plays N stories instead of the default.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

from confide.base.randomness import Purpose
from confide.deploy.machines import rounds
from confide.deploy.machines.cohort import Cohort, Sum
from confide.deploy.machines.ports import Ports
from confide.deploy.machines.rounds import Rounds
from confide.deploy.machines.server import Server
from confide.deploy.machines.terms import Terms
from confide.deploy.store.books import Changes, Vector
from confide.deploy.store.store import Store
from confide.graph.graph import Graph
from confide.rounds.arithmetic import State, on_grid
from confide.rounds.combine import Perturbed, Sender, combine, publish
from confide.rounds.schemes import Place
from confide.testing.network import Cut, Network, Weather
from confide.testing.rehearsal import ScriptedClient, scripted, scripted_update
from exploring import more
from invariants import Watch, balanced
from stage import LENGTH, Kill, Outcome, Stage, Story, image, noisy
from stories import GRAPHS, SCHEMES, explore, story

STORIES = int(os.environ.get("CONFIDE_STORIES", more(100, 200)))
PARTS = 2  # so that several workers may share them


# Stories


@pytest.mark.parametrize("part", range(PARTS))
def test_every_story_ends_well(part: int) -> None:
    total: Counter[str] = Counter()

    def progress(_: int, outcome: Outcome) -> None:
        total.update(outcome.events + outcome.rows)
        total["crashes"] += outcome.crashes.total()
        total["points"] = max(total["points"], len(outcome.points))

    explore(range(part, STORIES, PARTS), progress=progress)
    if STORIES >= 50 * PARTS:  # they were not idle
        for event in ("message", "skip", "late", "void", "down", "up", "halted", "suspended", "crashes"):
            assert total[event] >= 5, total


def test_a_flow_that_nobody_offered_leaves_no_trace_in_the_watch() -> None:
    """Seed 1210: the watch, asked for a message that never left, noted it as one that did."""
    explore([1210])


def test_stories_have_every_scheme_graph_and_window() -> None:
    stories = [story(seed) for seed in range(200)]
    assert {s.scheme for s in stories} == set(SCHEMES)
    assert {s.graph for s in stories} == set(GRAPHS)
    assert {s.window for s in stories} == {2, 3, 4}
    assert stories == [story(seed) for seed in range(200)]


@pytest.mark.parametrize("allowed", [0, 1, 3])
def test_a_budget_is_spent_and_not_passed(allowed: int) -> None:
    """Without faults: the first rounds are published, the others skipped, and the model of the last paid one stays."""
    stage = Stage(Story(7, "ring:3", "own-clean", rounds=5, allowed=allowed), fresh=False)
    stage.run()
    assert stage.check().rows == Counter(message=3 * allowed, skip=3 * (5 - allowed))
    reference = synchronous(replace(stage.story, rounds=allowed))
    for p, unit in enumerate(stage.units):
        assert [e.event.kind for e in unit.store.entries()] == ["message"] * allowed + ["skip"] * (5 - allowed)
        assert np.array_equal(unit.store.load().w, reference[p])


def test_a_server_that_was_away_catches_up() -> None:
    """T2: it skips what its neighbours have decided, and publishes with them again; they never waited twice for it."""
    stage = Stage(Story(3, "ring:3", rounds=12, kills=(Kill(25.0, 1, 60.0),)))
    stage.run()
    stage.check()
    kinds = [[e.event.kind for e in u.store.entries()] for u in stage.units]
    assert kinds[0] == kinds[2] == ["message"] * 12
    assert 4 <= kinds[1].count("skip") <= 7
    assert kinds[1][:2] == kinds[1][-2:] == ["message"] * 2
    assert stage.net.now < 12 * 10.0 + 2 * 2.0 + 5.0
    assert all(u.server is not None and all(n.up for n in u.server.neighbours.values()) for u in stage.units)


# R4: the synchronous round, whatever the order of the messages


def synchronous(s: Story) -> State:
    """The models after all rounds, as the reference computes them."""
    g, scheme = on_grid(Graph.parse(s.graph)), noisy(s.scheme)
    unit = scripted(g, scheme, rounds=1, seed=s.seed)[0]
    arithmetic, w = unit.terms.arithmetic, np.zeros((g.P, LENGTH), np.int64)
    for i in range(1, s.rounds + 1):
        psi = np.array([w[p] + scripted_update(s.seed, i, p, LENGTH) for p in range(g.P)])

        def draw(purpose: Purpose, ids: tuple[int, ...], sigma: float, i: int = i) -> State:
            return unit.noise(purpose, (i, *ids), scheme.law, sigma, LENGTH)

        published = publish(scheme, g, psi, draw, arithmetic, np.ones(g.P, bool))
        w = combine(scheme, g, published, arithmetic, np.ones(len(g.edges), bool))
    return w


def is_synchronous(s: Story) -> Stage:
    stage = Stage(s, fresh=False)
    stage.run()
    outcome = stage.check()
    assert not outcome.rows["skip"], s
    reference = synchronous(s)
    for p, unit in enumerate(stage.units):
        assert np.array_equal(unit.store.load().w, reference[p]), (p, s)
    return stage


def reordered(seed: int, graph: str, scheme: str, **weather: Any) -> Story:
    """Messages overtake each other by seconds, but none is later than the deadlines; the smallest window."""
    return Story(seed, graph, scheme, 5, window=2, exchange=40.0, weather=Weather(delay=(0.001, 4.0), **weather))


FOUR = ("path:2", "ring:5", "star:4", "complete:4")
TWO_OF_THEM = [(scheme, FOUR[(n + k) % 4]) for n, scheme in enumerate(SCHEMES) for k in range(2)]


@pytest.mark.parametrize(("scheme", "graph"), more(TWO_OF_THEM, list(product(SCHEMES, FOUR))))
def test_any_order_gives_the_bits_of_the_synchronous_round(scheme: str, graph: str) -> None:
    stage = is_synchronous(reordered(len(graph), graph, scheme, duplication=0.2))
    assert not stage.events["down"]


@pytest.mark.parametrize("graph", ["path:3", "complete:4"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_message_that_takes_longer_than_a_round_is_waited_for(scheme: str, graph: str) -> None:
    """Nothing gets from 0 to 1 while round 1 is published, and it is said again only when round 2 could be over."""
    cut = Cut(9.0, 25.0, ("server", 0, 0), ("server", 1, 0))
    s = Story(5, graph, scheme, 3, 2, exchange=120.0, weather=Weather(delay=(0.001, 1.0), cuts=(cut,)))
    stage = is_synchronous(s)
    assert not stage.events["down"]
    assert 30.0 + 25.0 < stage.net.now < 120.0


POINTS = (  # docs/design/flows.md, 5; those that faults alone lead to are in test_crash_points
    "boot.loaded", "boot.sent", "round.open.before", "round.open.tx.commit", "round.open.committed",
    "adapt.handed_out", "adapt.aggregated", "publish.drawn", "publish.tx.ledger", "publish.tx.state",
    "publish.tx.applied", "publish.tx.commit", "publish.committed", "publish.sent_first", "publish.sent_all",
    "round.open.tx.applied", "round.open.tx.flagged", "sync.received", "sync.tx.applied", "sync.tx.flagged",
    "sync.tx.gc", "sync.tx.commit", "sync.committed", "sync.replied", "finish.drained",
)  # fmt: skip


FEW = ("publish.tx.applied", "sync.tx.applied", "sync.tx.flagged", "sync.tx.gc")  # passed once or so


@pytest.mark.parametrize("name", POINTS)
def test_a_crash_with_a_prompt_restart_gives_the_same_bits(name: str) -> None:
    crashes = 0
    for n in range(POINTS.index(name), POINTS.index(name) + more(2, 4)):
        k = 0 if name.startswith("boot") or name in FEW else n % 3
        s = reordered(n, GRAPHS[n % 5], SCHEMES[n % len(SCHEMES)], crash_at=((n % 2, name, k),))
        stage = is_synchronous(s)
        assert not stage.events["down"], s
        crashes += stage.net.crashes[name]
    assert crashes, "nobody died"


# P1: other data at p behind the same messages


@dataclass
class Tape:
    """A run as everybody but p sees it, and what p published in it."""

    seen: list[Any] = field(default_factory=list)  # every byte between servers, and the books of all but p
    sent: dict[int, dict[int, Vector]] = field(default_factory=dict)  # by round and neighbour
    psi: dict[int, Vector] = field(default_factory=dict)
    paid: list[int] = field(default_factory=list)
    carry: float = 0.0


def replay(s: Story, p: int, monkeypatch: pytest.MonkeyPatch, forced: Tape | None = None) -> Tape:
    """Plays a story; with a tape, server p has other data and says the words of the tape."""
    tape, scheme, now = Tape(), noisy(s.scheme), {}
    units = scripted(
        Graph.parse(s.graph), scheme, rounds=s.rounds, length=LENGTH, window=s.window, seed=s.seed, allowed=s.allowed
    )
    terms = units[p].terms

    class Tells(Rounds):
        def _publish(self, cohort: Cohort, found: Sum) -> None:
            now[self.desk.rules.me] = self.desk.books.decided + 1
            super()._publish(cohort, found)

    def tells(terms: Terms, store: Store, ports: Ports) -> Server:
        server = Server(terms, store, ports)
        server.rounds = Tells(server, server.neighbours, server.rejoining)
        return server

    class Taped(Sender):
        def perturb(self) -> Perturbed:
            found = super().perturb()
            if self.p != p:
                return found
            scheme, own, psi, arithmetic, i = self.scheme, self.own_weight, self.psi, self.arith, now[p]
            tape.psi[i], tape.sent[i] = psi, found.sent
            if forced is None:
                return found
            said = forced.sent[i]
            if scheme.by_link:
                kept = psi + sum(arithmetic.weigh(self.neighbours[m], o - psi) for m, o in said.items())
                if Place.OWN in scheme.places:
                    kept = kept + arithmetic.weigh(own, self.draw(Purpose.LINK_NOISE, (p, p), scheme.sigma))
                return Perturbed(kept, said)
            c = own if scheme.carry is None else scheme.carry
            return Perturbed(psi + arithmetic.weigh(1.0 - c, next(iter(said.values())) - psi), said)

    if forced is not None:
        units[p].clients = [partial(ScriptedClient, OTHER, p, LENGTH)]
    for unit in units:
        unit.make = tells
    watch = Watch([u.terms for u in units], [u.store.load() for u in units])

    def committed(q: int, c: Changes) -> None:
        watch.committed(q, c)
        tape.seen.append((net.now, q, None if q == p else image(watch.books[q])))

    def sent(source: Any, target: Any, raw: bytes) -> None:
        watch.sent(source, target, raw)
        if source[0] == target[0] == "server":
            tape.seen.append((net.now, source, target, raw))

    monkeypatch.setattr(rounds, "Sender", Taped)
    net = Network(units, s.weather, s.seed, committed=committed, sent=sent)
    for kill in s.kills:
        net.at(kill.when, net.kill, kill.server, kill.away)
    net.run(until=2000.0, done=lambda: net.now >= s.quiet and net.finished())
    balanced(watch.terms, watch.books)
    tape.paid = [e.event.round for e in units[p].store.entries() if e.event.kind == "message"]
    link = scheme.by_link or scheme.carry is None
    tape.carry = terms.own_weight if link else float(scheme.carry or 0.0)
    return tape


OTHER = 10**6  # a seed of other data


def test_other_data_behind_the_same_messages_is_seen_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under faults, every scheme: the others' books and all bytes are the same, and p's psi differs by no more than

    its own updates as the carry hands them on: Delta_i <= |u_i - u'_i| + c Delta_(i-1), and quanta for the rounding.
    """
    published = differ = 0
    for n, name in enumerate(SCHEMES * more(2, 3)):
        s = replace(story(n + 500), scheme=name, seed=n)
        p = n % Graph.parse(s.graph).P
        first = replay(s, p, monkeypatch)
        second = replay(s, p, monkeypatch, first)
        assert len(first.seen) == len(second.seen), s
        for a, b in zip(first.seen, second.seen, strict=True):
            assert a == b, s
        assert first.paid == second.paid, s
        c = first.carry
        quanta = 0 if c in (0.0, 1.0) else 1 + len(first.sent.get(next(iter(first.sent), 0), ()))
        before = np.zeros(LENGTH, np.int64)
        for i in first.paid:
            u = scripted_update(OTHER, i, p, LENGTH) - scripted_update(s.seed, i, p, LENGTH)
            now = second.psi[i] - first.psi[i]
            if quanta:
                assert np.all(np.abs(now - u) <= c * np.abs(before) + quanta), (i, s)
            else:
                assert np.array_equal(now, u + int(c) * before), (i, s)
            before, published, differ = now, published + 1, differ + bool(now.any())
    assert published > 50
    assert differ > 0.9 * published
