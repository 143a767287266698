"""When a neighbour is told again what it may have missed: soon at first, then ever later, and soon again once heard."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf as NEVER
from typing import Final

FIRST: Final = 4  # the first repetition is after this part of the exchange's time
SLOWEST: Final = 2.0  # and the last ones are that many exchange times apart


class Resends:
    def __init__(self, neighbours: Iterable[int], exchange: float) -> None:
        self._exchange = exchange
        self.at = dict.fromkeys(neighbours, NEVER)
        self.gap = dict.fromkeys(self.at, exchange / FIRST)

    @property
    def wake(self) -> float:
        return min(self.at.values(), default=NEVER)

    def due(self, now: float) -> list[int]:
        return [m for m, at in self.at.items() if now >= at]

    def later(self, m: int, now: float) -> None:
        self.at[m] = now + self.gap[m]

    def slower(self, m: int, now: float) -> None:
        """It was told again, and has not answered yet."""
        self.gap[m] = min(2.0 * self.gap[m], SLOWEST * self._exchange)
        self.later(m, now)

    def heard(self, m: int) -> None:
        self.gap[m] = self._exchange / FIRST

    def never(self, m: int) -> None:
        self.at[m] = NEVER
