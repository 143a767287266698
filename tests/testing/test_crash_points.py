"""kill -9 at every crash point (docs/design/flows.md, 5): the server comes back, and every invariant holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from confide.deploy.machines import epoch as epochs
from confide.deploy.machines.ports import Phase, Ports
from confide.deploy.machines.server import Server
from confide.deploy.machines.terms import Terms
from confide.deploy.store.books import Changes
from confide.deploy.store.store import Store
from confide.testing.network import CrashError, Cut, Weather
from confide.testing.rehearsal import PLAN, server_identity
from exploring import more
from stage import Kill, Make, Stage, Story, play
from stories import SCHEMES

POINTS = (  # docs/design/flows.md, 5; those of a removal are below
    "boot.loaded", "boot.sent", "round.open.before", "round.open.committed", "adapt.handed_out", "adapt.aggregated",
    "publish.drawn", "publish.tx.ledger", "publish.tx.state", "publish.tx.commit", "publish.committed",
    "publish.sent_first", "publish.sent_all", "sync.received", "sync.tx.applied",
    "sync.tx.flagged", "sync.tx.gc", "sync.tx.commit", "sync.committed", "sync.replied", "wait.deadline",
    "skip.tx.commit", "skip.committed", "halt.budget", "finish.drained",
)  # fmt: skip
MORE = (  # and those that the code has besides, of what rides on another commit too
    "round.open.tx.commit", "skip.tx.ledger", "skip.tx.state", "publish.tx.applied", "publish.tx.gc",
    "round.open.tx.applied", "round.open.tx.flagged", "round.open.tx.gc", "skip.tx.gc",
)  # fmt: skip
RARE = ("publish.tx.gc", "round.open.tx.gc", "skip.tx.gc")  # no story of this file has every server there
ALL = [*POINTS, *MORE]
SERVERS = range(3)
AWAY = {"prompt": (0.01, 0.02), "late": (5.0, 30.0)}


def both_ways(begin: float, end: float, a: int, b: int) -> tuple[Cut, Cut]:
    x, y = ("server", a, 0), ("server", b, 0)
    return Cut(begin, end, x, y), Cut(begin, end, y, x)


def telling(n: int, away: tuple[float, float] = AWAY["prompt"]) -> Story:
    """One in which every server passes every point: losses, a cut, and a budget that ends before the plan."""
    cuts = both_ways(12.0, 30.0, n % 3, (n + 1) % 3)
    weather = Weather(delay=(0.001, 0.8), loss=0.1, cuts=cuts, away=away, calm=50.0)
    return Story(n, "ring:3", SCHEMES[n % len(SCHEMES)], rounds=4, window=2, allowed=3, weather=weather)


def passed(story: Story) -> Counter[tuple[int, str]]:
    """How often each server passes each point when nobody dies."""
    points: Counter[tuple[int, str]] = Counter()

    def make(terms: Terms, store: Store, ports: Ports) -> Server:
        def at(name: str) -> None:
            points[terms.rules.me, name] += 1

        return Server(terms, store, replace(ports, at=at))

    play(story, make)
    return points


@cache
def scenes(n: int) -> tuple[Story, Counter[tuple[int, str]]]:
    story = telling(n)
    return story, passed(story)


def crashing(story: Story, *points: tuple[int, str, int]) -> Story:
    return replace(story, weather=replace(story.weather, crash_at=points))


def times(n: int) -> Iterator[int]:
    """The first, the second and the last of n passings."""
    yield from sorted({0, 1, n - 1} & set(range(n)))


def survives(story: Story, name: str, deaths: int = 1) -> None:
    try:
        outcome = play(story)
    except Exception as e:
        raise AssertionError(f"{e!r} in play({story})") from e
    assert outcome.crashes[name] >= deaths, f"nobody died in play({story})"


def test_every_point_is_passed_by_every_server() -> None:
    """In the stories of this file, so that no test below is idle; and there are no points that it does not know."""
    seen = sum((scenes(n)[1] for n in range(len(SCHEMES))), Counter())
    assert {name for _, name in seen} == set(ALL)
    missing = [(p, name) for p in SERVERS for name in ALL if not seen[p, name]]
    assert not missing


@pytest.mark.parametrize("name", ALL)
def test_a_server_dies_there_and_comes_back(name: str) -> None:
    """At its first, its second or its last passing; each server; each under another scheme and weather."""
    for p in SERVERS:
        turns = [(ALL.index(name) + 3 * p + turn) % len(SCHEMES) for turn in range(len(SCHEMES))]
        story, points = next(s for s in map(scenes, turns) if s[1][p, name])
        passings = list(times(points[p, name]))
        for k in more([passings[p % len(passings)]], passings):
            away = AWAY["late" if k == 1 or p == 2 else "prompt"]
            weather = replace(story.weather, away=away)
            survives(crashing(replace(story, weather=weather), (p, name, k)), name)


@pytest.mark.parametrize("name", ALL)
def test_a_server_dies_there_and_again_on_its_way_back(name: str) -> None:
    p = len(name) % 3
    story, points = next(s for s in map(scenes, range(len(SCHEMES))) if s[1][p, name])
    boots = 1 if name.startswith("boot.") else 0
    again = [
        (p, "boot.loaded", boots + 1),
        (p, "boot.sent", boots + 1),
        (p, "sync.received", points[p, "sync.received"]),
    ]
    survives(crashing(story, (p, name, 0), *again), name)


@pytest.mark.parametrize("name", ALL)
def test_every_server_dies_there(name: str) -> None:
    """Or every server that passes it in the story in which most do."""
    story, points = max(map(scenes, range(len(SCHEMES))), key=lambda s: sum(s[1][p, name] > 0 for p in SERVERS))
    there = [p for p in SERVERS if points[p, name]]
    assert len(there) == len(SERVERS) or name in RARE
    survives(crashing(story, *((p, name, 0) for p in there)), name)
    last = [(p, name, points[p, name] - 1) for p in there]
    survives(crashing(story, *last), name)


@pytest.mark.parametrize("when", np.linspace(0.3, 45.0, 12).round(2).tolist())
def test_the_power_goes_out(when: float) -> None:
    """Everybody at once, wherever they are, and then once more."""
    n = int(when * 100) % len(SCHEMES)
    for away in (0.1, 25.0):
        kills = [Kill(t, p, away * (1 + p / 10)) for t in (when, when + 7.0) for p in SERVERS]
        play(replace(telling(n), kills=tuple(kills)))


def dying(p: int, k: int, name: str | None = None) -> Make:
    """Server p dies right after its k-th commit (of this name), before anything else is done."""
    done = [0]

    class Dies(Server):
        def commit(self, changes: Changes, of: str) -> None:
            super().commit(changes, of)
            if self.rules.me == p and name in (None, of):
                done[0] += 1
                if done[0] == k:
                    raise CrashError("after a commit")

    return Dies


@pytest.mark.parametrize("n", range(more(2, 4)))
def test_a_server_dies_right_after_any_commit(n: int) -> None:
    """Also where no crash point is: what was committed and not said is said after all."""
    k, story = 1, telling(n)
    while play(story, dying(n % 3, k)).crashes:
        k += 1
    assert k > 15


# A removal: server 3 of a ring of four is gone, and the others go on without it


def removal(story: Story, make: Make = Server) -> Stage:
    """Server 0's operator loads a signed epoch at second 25, until it is loaded; the others hear it of each other."""
    stage, survivors = Stage(story, make), (0, 1, 2)
    signatures = tuple(epochs.sign(server_identity(p), p, PLAN, 1, (3,)) for p in survivors)
    raw = epochs.encode(epochs.Epoch(PLAN, 1, (3,), signatures))

    def load() -> None:
        server = stage.units[0].server
        if server is not None and server.books.epoch:
            return
        stage.net.at(stage.net.now + 1.0, load)
        if server is not None:
            try:
                server.follow(stage.net.now, raw)
            except CrashError as e:
                stage.net.crashes[str(e)] += 1
                stage.net.kill(0)

    stage.net.at(25.0, load)
    stage.net.run(until=600.0, done=lambda: stage.net.now > 90.0 and stage.net.finished())
    servers = [u.server for u in stage.units]
    assert [s and s.phase for s in servers] == [Phase.FINISHED] * 3 + [Phase.STOPPED], story
    books = [stage.watch.books[p] for p in survivors]
    for p in survivors:
        assert not any(books[p].open.values()), story
        assert [e.event.round for e in stage.units[p].store.entries()] == list(range(1, story.rounds + 1))
        for m in (0, 1, 2):
            if m in books[p].neighbours:
                assert not (books[p].balances[m].total + books[m].balances[p].total).any(), story
    models, own = np.sum([b.w for b in books], axis=0), np.sum([b.contribution for b in books], axis=0)
    kept = np.sum([b.balances[3].total for b in books if 3 in b.neighbours], axis=0)
    assert np.array_equal(models, own + kept), story
    assert not any(s.alarms for s in stage.servers)
    return stage


@pytest.mark.parametrize("n", range(0, len(SCHEMES), more(4, 2)))
def test_a_server_dies_while_another_is_removed(n: int) -> None:
    weather = Weather(delay=(0.001, 0.8), loss=0.1, cuts=both_ways(15.0, 50.0, 1, 2), calm=80.0)
    story = Story(n, "ring:4", SCHEMES[n], rounds=5, window=2, weather=weather)
    for p in range(4):
        for name in ("remove.tx.gc", "remove.tx.commit"):
            stage = removal(crashing(story, (p, name, 0)))
            assert stage.net.points["remove.tx.commit"] >= 4
            assert name == "remove.tx.gc" or stage.net.crashes[name] == 1
        assert removal(story, dying(p, 1, "remove")).net.crashes["after a commit"] == 1
