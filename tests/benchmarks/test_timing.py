"""Turns: who goes when, how often, and what is said of their ratios."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import pytest

from confide.benchmarks import timing
from confide.benchmarks.timing import Turns, all_told, turns


class Watch:
    """A clock that goes on by what is worked, and who worked."""

    def __init__(self) -> None:
        self.now, self.done = 0.0, ""

    def work(self, name: str, *seconds: float) -> Callable[[], None]:
        """Takes these seconds in turn, the last ones from then on."""
        left = list(seconds)

        def work() -> None:
            self.now += left.pop(0) if len(left) > 1 else left[0]
            self.done += name

        return work


def test_works_take_turns_forwards_and_back() -> None:
    watch, seen = Watch(), []
    works = {"a": watch.work("a", 9.0, 9.0, 2.0, 6.0, 4.0), "b": watch.work("b", 9.0, 9.0, 1.0, 2.0, 2.0)}
    took = turns(works, 3, lambda: seen.append(watch.done), lambda: watch.now)
    assert seen == ["aabbab", "aabbabba", "aabbabbaab"]  # twice each before: to warm up, and to know how long they take
    assert took.seconds == {"a": [2.0, 6.0, 4.0], "b": [1.0, 2.0, 2.0]}
    assert took.median("a") == 4.0
    assert took.ratios("a", "b") == [2.0, 3.0, 2.0]


def test_a_short_work_is_done_several_times_in_a_turn() -> None:
    watch = Watch()
    works = {"a": watch.work("a", timing.LEAST / 4), "b": watch.work("b", timing.LEAST)}
    took = turns(works, 2, clock=lambda: watch.now)
    assert watch.done == "aabb" + "aaaab" + "baaaa"
    assert took.seconds["a"] == pytest.approx([timing.LEAST / 4] * 2)


def test_a_work_that_no_clock_sees_ends_too() -> None:
    watch = Watch()
    turns({"a": watch.work("a", 0.0)}, 1, clock=lambda: watch.now)
    assert len(watch.done) == 2 + timing.MOST


def test_a_ratio_is_the_median_of_those_of_the_turns() -> None:
    """Not the ratio of the medians: in the third turn the machine was at half speed for both."""
    took = Turns({"work": [3.0, 3.0, 6.0], "floor": [1.0, 1.5, 2.0]})
    assert all_told({"ratio": took.ratios("work", "floor")})["ratio"] == 3.0


def test_the_spread_is_that_of_the_quartiles_as_a_share_of_the_median() -> None:
    ratios = [1.0, 2.0, 4.0, 5.0, 9.0]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    assert all_told({"one": ratios, "other_ratio": [7.0]}) == {
        "one": middle,
        "one_spread": (high - low) / middle,
        "other_ratio": 7.0,
        "other_ratio_spread": 0.0,
    }


def test_processor_seconds_are_those_of_this_process_and_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    class Used:
        def __init__(self, who: int) -> None:
            self.ru_utime, self.ru_stime = {timing.resource.RUSAGE_SELF: (1.0, 2.0)}.get(who, (10.0, 20.0))

    monkeypatch.setattr(timing.resource, "getrusage", Used)
    assert timing.processor() == 33.0
