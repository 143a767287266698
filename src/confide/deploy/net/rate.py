"""How often a peer may have something done that costs more than its question."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Final

KNOWN: Final = 256  # peers, before any is forgotten


class Rate:
    """Args:
    burst: so often at once, for each peer.
    every: seconds, after which it may once more.

    >>> now = 0.0
    >>> rate = Rate(2, 30.0, lambda: now)
    >>> [rate.allows("a"), rate.allows("a"), rate.allows("a"), rate.allows("b")]
    [True, True, False, True]
    >>> now = 31.0
    >>> [rate.allows("a"), rate.allows("a")]
    [True, False]

    Whoever may ask as often as at first is forgotten, since certificates cost their organisation nothing.
    """

    def __init__(self, burst: int, every: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst, self._every, self._clock = burst, every, clock
        self._free: dict[Hashable, float] = {}  # when all that was used is free again
        self._most = KNOWN

    def allows(self, peer: Hashable) -> bool:
        now = self._clock()
        free = max(now, self._free.get(peer, now)) + self._every
        if free - now > self._burst * self._every:
            return False
        self._free[peer] = free
        if len(self._free) > self._most:
            self._free = {known: at for known, at in self._free.items() if at > now}
            self._most = max(KNOWN, 2 * len(self._free))
        return True
