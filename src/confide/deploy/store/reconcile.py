"""Whether the books of all servers of a network add up, once all have stopped: what bookkeepers do with two ledgers.

The sums are over servers, modulo 2^64 and to the last bit. The oracle of the tests (`tests/invariants.py`) asks
the same and more, of every commit; the two share no code, so that a mistake in one of them shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from confide.deploy.store.books import Books, Status, Vector, as_vector
from confide.rounds.arithmetic import WEIGHT_BITS, scaled

Weights = Sequence[Mapping[int, int]]  # of every server: its neighbours' integer weights


def conserved(weights: Weights, books: Sequence[Books]) -> bool | str:
    """Whether the models add up to the contributions, but for flows that have entered one of their two ends.

    Args:
        weights: by server, and then by neighbour.
        books: by server, all of the same moment.

    Returns:
        True, or what does not add up.
    """
    under_way = np.zeros_like(books[0].contribution)
    for p, mine in enumerate(books):
        for m in mine.neighbours:
            theirs = books[m]
            if m < p or mine.status[m] is not Status.OPEN or theirs.status[p] is not Status.OPEN:
                continue  # after a removal or a restore the ends are settled by others
            expected = _under_way(weights[p][m], (p, mine), (m, theirs))
            if isinstance(expected, str):
                return expected
            if not np.array_equal(mine.balances[m].total + theirs.balances[p].total, expected):
                return f"the balances of servers {p} and {m} do not differ by the flows that are under way"
            under_way += expected
    models, own = np.sum([b.w for b in books], axis=0), np.sum([b.contribution for b in books], axis=0)
    return bool(np.array_equal(models, own + under_way)) or "the sum over servers is not conserved"


def balanced(weights: Weights, books: Sequence[Books]) -> bool | str:
    """Whether nothing is under way any more: no open flow, both ends of each edge agree, and the sum is conserved.

    Args and result are those of `conserved`.
    """
    for p, mine in enumerate(books):
        if any(mine.open.values()):
            return f"server {p} still has open flows"
        for m in mine.neighbours:
            if np.any(mine.balances[m].total + books[m].balances[p].total):
                return f"the balances of servers {p} and {m} do not cancel"
    return conserved(weights, books)


def _under_way(weight: int, one: tuple[int, Books], other: tuple[int, Books]) -> Vector | str:
    """The flows of an edge that have entered exactly one of its ends, which is to keep both messages till then."""
    (p, mine), (m, theirs) = one, other
    total = np.zeros_like(mine.contribution)
    for i in mine.open[m].keys() & theirs.open[p].keys():  # open at one end only: entered both, or neither
        here, there = mine.open[m][i].applied, theirs.open[p][i].applied
        if here == there:
            continue
        sent, received = mine.message(i, m), theirs.message(i, p)
        if sent is None or received is None:
            return f"a message of round {i} between servers {p} and {m} is gone"
        came_in = scaled(weight, as_vector(received) - as_vector(sent), WEIGHT_BITS)
        total += came_in if here else -came_in
    return total
