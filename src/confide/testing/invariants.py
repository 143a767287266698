"""What must hold of all stores of a network: after every commit (docs/design/flows.md, I2), and when all is over.

Sums are over servers and modulo 2^64, to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from confide.deploy.machines.exchange import flow
from confide.deploy.machines.terms import Terms
from confide.deploy.store.books import Books, Status, Vector, as_vector


class BrokenError(AssertionError):
    """An invariant does not hold."""


def require(holds: object, what: str) -> None:
    if not holds:
        raise BrokenError(what)


def pending(terms: Sequence[Terms], books: Sequence[Books]) -> Vector:
    """The flows that entered at exactly one end, each of which must be open at both ends with both messages kept (I2).

    An edge of a removed server, or of one whose store was restored, is not looked at.
    """
    total = np.zeros_like(books[0].contribution)
    for p, mine in enumerate(books):
        for m in (m for m in mine.neighbours if m > p):
            theirs = books[m]
            if mine.status[m] is not Status.OPEN or theirs.status[p] is not Status.OPEN:
                continue
            half = np.zeros_like(total)
            for i in mine.open[m].keys() | theirs.open[p].keys():
                a, b = mine.open[m].get(i), theirs.open[p].get(i)
                if a is None or b is None or a.applied == b.applied:
                    continue  # closed at one end: then it entered both or neither, or the balances will tell
                one, other = mine.message(i, m), theirs.message(i, p)
                require(one is not None and other is not None, f"I2: a message of round {i}, {p}-{m}, is gone")
                entered = flow(terms[p].rules.weights[m], as_vector(other or b""), as_vector(one or b""))
                half += entered if a.applied else -entered
            both = mine.balances[m].total + theirs.balances[p].total
            require(np.array_equal(both, half), f"I2: the balances of {p} and {m} do not differ by what is pending")
            total += half
    return total


def conserved(terms: Sequence[Terms], books: Sequence[Books]) -> None:
    """The sum of the models is the sum of the contributions, but for what is pending."""
    models = np.sum([b.w for b in books], axis=0)
    own = np.sum([b.contribution for b in books], axis=0)
    require(np.array_equal(models, own + pending(terms, books)), "the sum over servers is not conserved")


def balanced(terms: Sequence[Terms], books: Sequence[Books]) -> None:
    """L1 and L2, when all is over: nothing is open, and the ends of every edge agree."""
    for p, mine in enumerate(books):
        require(not any(mine.open.values()), f"L1: server {p} still has open records")
        for m in mine.neighbours:
            both = mine.balances[m].total + books[m].balances[p].total
            require(not both.any(), f"L2: the balances of {p} and {m} do not cancel")
    conserved(terms, books)
