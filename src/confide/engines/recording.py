"""What the rounds of all repetitions leave behind."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from confide.base.arrays import Floats


class Recording(NamedTuple):
    """Arrays of shape (repeats, rounds), and the centroids at every `every`-th round and the last.

    Attributes:
        residual: |sum_p w_p - sum_p s_p|, what flows on the edges gain or lose.
        uncancelled: |sum_p w_p - sum_p psi_p|, the servers' noise that is left in the sum  (46).
    """

    centroid_msd: Floats
    individual_msd: Floats
    disagreement: Floats
    residual: Floats
    uncancelled: Floats
    participants: Floats
    centroids: Floats  # (repeats, evaluations, M)
    every: int

    @classmethod
    def empty(cls, repeats: int, rounds: int, M: int, every: int) -> Recording:
        a, b, c, d, e, f = (np.full((repeats, rounds), np.nan) for _ in range(6))
        return cls(a, b, c, d, e, f, np.full((repeats, -(-rounds // every), M), np.nan), every)

    def slot(self, i: int) -> int:
        """Where the centroid of evaluation round i lies."""
        return -(-i // self.every) - 1

    def evaluation_rounds(self, first: int, last: int, rounds: int) -> list[int]:
        """Rounds of first..last whose centroid is kept."""
        found = list(range(first + -first % self.every, last + 1, self.every))
        return [*found, rounds] if first <= last == rounds and rounds % self.every else found
