"""One thread that owns a machine and its store: events go in by a queue, and nothing else touches them.

Cryptography, training and fsync take their time here, while the event loop of the network goes on. A peer that says
more than the machine can take has what is too much dropped: machines say again what matters.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, Final

WAITING: Final = 16  # messages of one peer that may wait
LONGEST: Final = 3600.0  # seconds without a look at the clock


class Clock:
    """Seconds since 1970 as of the start, then those that pass: a clock that is set later changes nothing.

    Those in which the machine sleeps pass too, which Linux's monotonic clock does not count: a laptop that was closed
    over night would be a night behind the rounds, and refuse them all.
    """

    def __init__(self) -> None:
        self._begin, self._mark = time.time(), _passed()

    def __call__(self) -> float:
        return self._begin + (_passed() - self._mark)

    @property
    def jumped(self) -> float:
        """By how much the machine's clock was set since."""
        return time.time() - self()


def _passed() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Worker:
    """Args:
    clock: the time that the machine is told.
    wake: when it wants `tick` at the latest.
    after: called after every event, on the worker's thread.
    failed: called there once, with what an event raised; the thread has ended then.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        wake: Callable[[], float],
        tick: Callable[[float], None],
        after: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self.dropped = 0
        self._clock, self._wake, self._tick, self._after, self._failed = clock, wake, tick, after, failed
        self._events: queue.SimpleQueue[tuple[Hashable, Callable[..., object], tuple[Any, ...]] | None] = (
            queue.SimpleQueue()
        )
        self._waiting: Counter[Hashable] = Counter()
        self._guard = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="machine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, what: Callable[..., object], *arguments: Any, peer: Hashable = None) -> bool:
        """Have `what(now, *arguments)` called; False if too much of this peer waits already."""
        if peer is not None:
            with self._guard:
                if self._waiting[peer] >= WAITING:
                    self.dropped += 1
                    return False
                self._waiting[peer] += 1
        self._events.put((peer, what, arguments))
        return True

    def ask(self, what: Callable[[float], Any]) -> Future[Any]:
        """What it returns or raises, for somebody who waits; the machine does not fail of it."""
        answer: Future[Any] = Future()

        def asked(now: float) -> None:
            try:
                answer.set_result(what(now))
            except Exception as e:
                answer.set_exception(e)

        self.submit(asked)
        return answer

    def stop(self, patience: float) -> bool:
        """After the events that wait; whether it has ended."""
        self._events.put(None)
        self._thread.join(patience)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while self._step():
                self._after()
        except BaseException as e:
            self._failed(e)

    def _step(self) -> bool:
        due = self._wake()
        wait = min(due - self._clock(), LONGEST)
        try:
            event = self._events.get(timeout=wait) if wait > 0.0 else self._events.get_nowait()
        except queue.Empty:
            self._tick(self._clock())
            return True
        if event is None:
            return False
        peer, what, arguments = event
        if peer is not None:
            with self._guard:
                self._waiting[peer] -= 1
                if not self._waiting[peer]:
                    del self._waiting[peer]
        what(self._clock(), *arguments)
        if math.isfinite(due) and self._clock() >= due:  # a stream of messages must not hold up a deadline
            self._tick(self._clock())
        return True
