"""Works timed in turns, one after the other in each: what else the machine does then meets them alike.

A machine's speed changes from second to second, so that what is compared is timed within one turn, and a ratio is the
median of the ratios of the turns. Its spread is the distance of their quartiles as a share of it.
"""

from __future__ import annotations

import math
import resource
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

Name = TypeVar("Name")
Work = Callable[[], object]

LEAST: Final = 0.01  # seconds of one work in a turn: a shorter one is done several times
MOST: Final = 1000  # times


def processor() -> float:
    """Processor seconds of this process and of those that it started and waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


@dataclass(frozen=True)
class Turns(Generic[Name]):
    """Seconds of every work in every turn."""

    seconds: Mapping[Name, Sequence[float]]

    def median(self, name: Name) -> float:
        return statistics.median(self.seconds[name])

    def ratios(self, work: Name, floor: Name) -> list[float]:
        """How many times as long as the floor the work took, turn by turn."""
        return [a / b for a, b in zip(self.seconds[work], self.seconds[floor], strict=True)]


def turns(
    works: Mapping[Name, Work],
    count: int,
    watch: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = processor,
) -> Turns[Name]:
    """Each work's seconds in so many turns, every other one backwards, once caches are warm."""
    times = {name: _times(work, clock) for name, work in works.items()}
    seconds: dict[Name, list[float]] = {name: [] for name in works}
    for turn in range(count):
        for name in list(works)[:: -1 if turn % 2 else 1]:
            seconds[name].append(_timed(works[name], times[name], clock) / times[name])
        watch()
    return Turns(seconds)


def _times(work: Work, clock: Callable[[], float]) -> int:
    """How often a work is done in a turn."""
    work()
    took = _timed(work, 1, clock)
    return math.ceil(LEAST / took) if took > LEAST / MOST else MOST


def _timed(work: Work, times: int, clock: Callable[[], float]) -> float:
    began = clock()
    for _ in range(times):
        work()
    return clock() - began


def all_told(ratios: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Every ratio as a bench prints it: its median, and its spread beside it."""
    found: dict[str, float] = {}
    for name, each in ratios.items():
        middle = statistics.median(each)
        low, _, high = statistics.quantiles(each, n=4, method="inclusive") if len(each) > 1 else (middle,) * 3
        found |= {name: middle, f"{name}_spread": (high - low) / middle}
    return found
