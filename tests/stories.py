"""Random faults: every seed is a `Story`. One that fails is made smaller, and told as code.

explore(range(1000))            raises with the seed and the smallest story found that still fails
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final

from confide.deploy.machines.server import Server
from confide.graph.graph import Graph
from confide.testing.network import Cut, Weather
from stage import Kill, Make, MakeStore, Outcome, Story, in_memory, play

GRAPHS: Final = ("path:2", "path:3", "ring:3", "star:4", "complete:4", "ring:5")  # from small to large
SCHEMES: Final = ("homomorphic", "shared", "own-clean", "partial:0.5", "per-link", "per-link-clean", "pairwise", "none")
FAULTS: Final = ("loss", "duplication", "crash", "client_crash", "cuts", "delay", "away", "crash_at")  # of `Weather`


def story(seed: int) -> Story:
    """A story for every seed; most things go wrong in about half of them."""
    r = random.Random(seed)  # noqa: S311 - the weather is no secret
    spec, rounds = r.choice(GRAPHS), r.randint(2, 8)
    graph = Graph.parse(spec)
    long = 14.0 * rounds  # about as long as the run
    cuts: list[Cut] = []
    for _ in range(r.choice((0, 1, 2, 4))):  # one way or both
        a, b = r.choice(graph.edges.tolist())
        begin, lasts = r.uniform(0.0, long), r.choice((3.0, 20.0, 60.0))
        cuts += _cut([(a, b), (b, a)][: r.choice((1, 2))], begin, begin + lasts)
    if r.random() < 0.3:  # the graph falls apart, and heals
        side = {p for p in range(graph.P) if r.random() < 0.5}
        begin, lasts = r.uniform(0.0, long), r.choice((10.0, 40.0))
        across = [(a, b) for a, b in graph.edges.tolist() if (a in side) != (b in side)]
        cuts += _cut([*across, *((b, a) for a, b in across)], begin, begin + lasts)
    if r.random() < 0.2:
        begin, p = r.uniform(0.0, long), r.randrange(graph.P)
        cuts.append(Cut(begin, begin + 12.0, ("client", p, 0), ("server", p, 0)))
    kills = [
        Kill(r.uniform(0.0, long), r.randrange(graph.P), r.choice((0.5, 15.0, 40.0, 90.0)))
        for _ in range(r.choice((0, 0, 1, 2)))
    ]
    if r.random() < 0.1:  # a power cut
        when, away = r.uniform(0.0, long), r.choice((0.1, 20.0))
        kills += [Kill(when, p, away * r.uniform(0.5, 1.0)) for p in range(graph.P)]
    weather = Weather(
        delay=(0.001, r.choice((0.01, 0.01, 1.0, 5.0))),
        loss=r.choice((0.0, 0.05, 0.3)),
        duplication=r.choice((0.0, 0.1, 0.5)),
        cuts=tuple(cuts),
        crash=r.choice((0.0, 0.003, 0.03)),
        client_crash=r.choice((0.0, 0.0, 0.05)),
        away=r.choice(((0.01, 0.02), (0.5, 3.0), (5.0, 30.0))),
        calm=r.uniform(0.3, 1.2) * long,
    )
    allowed = r.randint(0, rounds - 1) if r.random() < 0.25 else None
    return Story(seed, spec, r.choice(SCHEMES), rounds, r.randint(2, 4), allowed, 2.0, weather, tuple(kills))


def _cut(links: Iterable[tuple[int, int]], begin: float, end: float) -> list[Cut]:
    return [Cut(begin, end, ("server", a, 0), ("server", b, 0)) for a, b in links]


def smaller(story: Story) -> Iterator[Story]:
    """Smaller variants for shrinking, largest reduction first."""
    w, plain = story.weather, Weather()
    for rounds in sorted({1, story.rounds // 2, story.rounds - 1} - {0, story.rounds}):
        yield replace(story, rounds=rounds)
    for spec in GRAPHS[: GRAPHS.index(story.graph)] if story.graph in GRAPHS else ():
        P = Graph.parse(spec).P
        cuts = tuple(c for c in w.cuts if c.source[1] < P and c.target[1] < P)
        kills = tuple(k for k in story.kills if k.server < P)
        yield replace(story, graph=spec, weather=replace(w, cuts=cuts), kills=kills)
    for name in FAULTS:
        if getattr(w, name) != getattr(plain, name):
            yield replace(story, weather=replace(w, **{name: getattr(plain, name)}))
    for n in range(len(w.cuts)):
        yield replace(story, weather=replace(w, cuts=w.cuts[:n] + w.cuts[n + 1 :]))
    for n in range(len(story.kills)):
        yield replace(story, kills=story.kills[:n] + story.kills[n + 1 :])
    if story.allowed is not None:
        yield replace(story, allowed=None)
    if story.scheme != "none":
        yield replace(story, scheme="none")


def shrink(story: Story, fails: Callable[[Story], bool], tries: int = 300) -> Story:
    """The smallest story found that still fails."""
    candidates = smaller(story)
    for _ in range(tries):
        if (candidate := next(candidates, None)) is None:
            break
        if fails(candidate):
            story, candidates = candidate, smaller(candidate)
    return story


def explore(
    seeds: Iterable[int],
    make: Make = Server,
    store: MakeStore = in_memory,
    *,
    progress: Callable[[int, Outcome], None] = lambda _, __: None,
) -> None:
    """Plays the story of every seed; `progress` hears of each that ended well."""

    def failure(s: Story) -> Exception | None:
        try:
            play(s, make, store)
        except Exception as e:  # whatever a wrong server does
            return e
        return None

    for seed in seeds:
        try:
            progress(seed, play(story(seed), make, store))
        except Exception as e:
            least = shrink(story(seed), lambda s: failure(s) is not None)
            raise AssertionError(f"seed {seed}: {e!r}\n  least: {failure(least)!r}\n  play({least})") from e
