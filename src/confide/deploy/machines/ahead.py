"""A server's next noise, drawn while it waits for its clients: the sum need not wait for it.

What is drawn ahead is handed out once and then forgotten; what is never asked for is never used.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from confide.base.randomness import Purpose
from confide.laws.law import Law
from confide.rounds.arithmetic import State
from confide.rounds.noise import NoiseSource


class Ahead:
    """A `NoiseSource` around one whose server noise does not depend on the ids: it is secret, and fresh every time."""

    def __init__(self, noise: NoiseSource) -> None:
        self._noise = noise
        self._thread = ThreadPoolExecutor(1, "noise")
        self._next: tuple[tuple[Law, float, int], Future[State]] | None = None

    def __call__(self, purpose: Purpose, ids: tuple[int, ...], law: Law, sigma: float, size: int) -> State:
        if purpose is not Purpose.SERVER_NOISE:
            return self._noise(purpose, ids, law, sigma, size)
        wanted, ready = (law, sigma, size), self._next
        self._next = None  # whatever happens, it is not handed out again
        drawn = ready[1].result() if ready is not None and ready[0] == wanted else None
        if drawn is None:
            drawn = self._noise(purpose, ids, law, sigma, size)
        self._next = wanted, self._thread.submit(self._noise, purpose, ids, law, sigma, size)
        return drawn
