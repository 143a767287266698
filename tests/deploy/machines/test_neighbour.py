"""Repetitions: soon, then ever later, and soon again after a neighbour was heard."""

from __future__ import annotations

from math import inf

from confide.deploy.machines.resends import Resends


def test_gaps_grow_to_two_exchanges_and_begin_anew() -> None:
    resends, now, gaps = Resends((3, 5), 8.0), 0.0, list[float]()
    assert (resends.wake, resends.due(1e9)) == (inf, [])
    resends.later(3, now)
    for _ in range(6):
        gaps.append(resends.wake - now)
        now = resends.wake
        assert resends.due(now - 1e-6) == []
        assert resends.due(now) == [3]
        resends.slower(3, now)
    assert gaps == [2.0, 4.0, 8.0, 16.0, 16.0, 16.0]
    resends.heard(3)
    resends.later(3, now)
    resends.later(5, now + 1.0)
    assert (resends.wake, resends.due(now + 3.0)) == (now + 2.0, [3, 5])
    resends.never(3)
    assert resends.due(1e9) == [5]


def test_a_server_without_neighbours_tells_nobody() -> None:
    assert Resends((), 8.0).wake == inf
