"""One thread has the machine: order, deadlines, what is too much, and what fails."""

from __future__ import annotations

import math
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from confide.deploy.node import worker
from confide.deploy.node.worker import WAITING, Clock, Worker
from patience import LIMIT, until


class Machine:
    def __init__(self) -> None:
        self.wakes, self.ticks, self.heard = math.inf, list[float](), list[Any]()
        self.failures: list[BaseException] = []
        self.seen: list[int] = []
        self.worker = Worker(time.monotonic, lambda: self.wakes, self.tick, self.after, self.failures.append)

    def tick(self, now: float) -> None:
        self.ticks.append(now)
        self.wakes = math.inf

    def after(self) -> None:
        self.seen.append(threading.get_ident())

    def take(self, now: float, what: Any) -> None:
        self.heard.append(what)


def test_events_come_in_order_on_one_thread() -> None:
    m = Machine()
    m.worker.start()
    for n in range(100):
        assert m.worker.submit(m.take, n)
    assert m.worker.ask(lambda _: len(m.heard)).result(LIMIT) == 100
    assert m.worker.stop(LIMIT)
    assert m.heard == list(range(100))
    assert len(set(m.seen)) == 1
    assert m.seen[0] != threading.get_ident()


def test_too_much_of_one_peer_is_dropped_and_others_are_heard() -> None:
    m, gate = Machine(), threading.Event()
    m.worker.start()
    m.worker.submit(lambda _: gate.wait(LIMIT))
    taken = [m.worker.submit(m.take, ("loud", n), peer="loud") for n in range(WAITING + 5)]
    assert taken == [True] * WAITING + [False] * 5
    assert m.worker.submit(m.take, ("quiet", 0), peer="quiet")
    gate.set()
    until(lambda: len(m.heard) == WAITING + 1)
    assert m.worker.dropped == 5
    assert m.worker.submit(m.take, "again", peer="loud")  # there is room once it was heard
    assert m.worker.stop(LIMIT)
    assert m.heard[-1] == "again"


def test_the_clock_wakes_it() -> None:
    m = Machine()
    m.wakes = begin = time.monotonic() + 0.1
    m.worker.start()
    until(lambda: m.ticks)
    assert m.ticks[0] >= begin
    assert m.worker.stop(LIMIT)


def test_a_stream_of_messages_does_not_hold_up_a_deadline() -> None:
    m, over = Machine(), threading.Event()

    def flood(now: float) -> None:  # there is always one more
        if not over.is_set():
            m.worker.submit(flood)

    m.wakes = time.monotonic() + 0.05
    m.worker.submit(flood)
    m.worker.start()
    try:
        until(lambda: m.ticks)
    finally:
        over.set()
    assert m.worker.stop(LIMIT)


def test_what_an_event_raises_ends_it_and_is_told() -> None:
    m = Machine()
    m.worker.start()
    with pytest.raises(KeyError):
        m.worker.ask(lambda _: {}["no such key"]).result(LIMIT)  # a question does no harm
    m.worker.submit(lambda _: 1 / 0)
    until(lambda: m.failures)
    assert isinstance(m.failures[0], ZeroDivisionError)
    assert m.worker.stop(LIMIT)


class Times(SimpleNamespace):
    """What a system says of the time: seconds since 1970, since its start, and of these the ones in which it slept."""

    CLOCK_BOOTTIME = 7

    def __init__(self, now: SimpleNamespace) -> None:
        self.time, self.monotonic = lambda: now.since_1970, lambda: now.since_start - now.asleep
        self.clock_gettime = lambda which: now.since_start if which == self.CLOCK_BOOTTIME else self.monotonic()


def test_a_machine_that_slept_knows_what_time_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    now = SimpleNamespace(since_1970=1e9, since_start=7.0, asleep=0.0)
    monkeypatch.setattr(worker, "time", Times(now))
    clock = Clock()
    now.since_1970, now.since_start, now.asleep = 1e9 + 3600.0, 7.0 + 3600.0, 3600.0
    assert (clock(), clock.jumped) == (1e9 + 3600.0, 0.0)


def test_a_clock_that_is_set_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    now = SimpleNamespace(since_1970=1e9, since_start=7.0, asleep=0.0)
    monkeypatch.setattr(worker, "time", Times(now))
    clock = Clock()
    assert (clock(), clock.jumped) == (1e9, 0.0)
    now.since_start += 2.0
    now.since_1970 += 2.0 + 3600.0
    assert (clock(), clock.jumped) == (1e9 + 2.0, 3600.0)
