"""What a way of training is told of a round."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from confide.engines.device.backend import Array
from confide.rounds.clipping import Clip


class Cohort(NamedTuple):
    """The sampled clients of all units of all repetitions: U = repetitions times P, L of them each.

    Clients differ in samples, steps and batches: what is short of the largest is filled up.

    Attributes:
        rows: rows of the federation that a client owns, in S slots; one that it owns fills up.
        picks: slots drawn in each of E steps of B.
        weights: 1 / B_k of the draws that exist, 0 of those that fill up, a whole step where a client takes fewer.
        eta: mu / E_k.
        gives: 1, or 0 of a client that vanished or may give no data.
        key: of the stream of its batches, for a way of training that draws by itself, as are those below.
    """

    rows: Array  # (U, L, S) int32
    picks: Array  # (U, L, E, B) int32
    weights: Array  # (U, L, E, B)
    eta: Array  # (U, L)
    gives: Array  # (U, L)
    key: Array = None  # (U, L) int64
    first: Array = None  # of its rows of the federation
    size: Array = None
    E: Array = None
    batch: Array = None

    def each(self, change: Callable[[Array], Array]) -> Cohort:
        """With every array changed."""
        return Cohort(*(None if a is None else change(a) for a in self))


Train = Callable[[Array, Array, Array, Cohort, Clip | None], Array]
"""(w (U, M), X, d, cohort, clip) -> (U, M), the sum of the clients' updates, each clipped.

A clip of updates has the bound mu B. An update is accumulated by itself, phi = w + delta, never as a difference of
large numbers, so that its clip bounds what it tells. A step that does not exist changes nothing.
"""
