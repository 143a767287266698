"""What `confide cluster` says of the books that it finds: as strict as the oracle of the tests, in words of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

import invariants
from confide.deploy.store.books import Books, Changes
from confide.deploy.store.reconcile import balanced, conserved
from stage import Stage
from stories import story

SEEDS = (3, 11, 24, 57)


def watched(seed: int) -> tuple[Stage, list[list[Books]]]:
    """A story to its end, and the books of all servers after every commit."""
    stage, seen = Stage(story(seed)), []
    told = stage.watch.committed

    def committed(p: int, c: Changes) -> None:
        told(p, c)
        seen.append([b.copy() for b in stage.watch.books])

    stage.watch.committed = committed  # type: ignore[method-assign]
    stage.run()
    return stage, seen


@pytest.mark.parametrize("seed", SEEDS)
def test_the_sum_is_conserved_after_every_commit(seed: int) -> None:
    stage, seen = watched(seed)
    weights = [u.terms.rules.weights for u in stage.units]
    under_way = 0
    for books in seen:
        assert conserved(weights, books) is True
        under_way += bool(invariants.pending(stage.watch.terms, books).any())
    assert under_way  # it was worth asking
    assert balanced(weights, seen[-1]) is True
    unsettled = next(books for books in seen if any(any(b.open.values()) for b in books))
    said = balanced(weights, unsettled)
    assert isinstance(said, str)
    assert "still has open flows" in said


@pytest.mark.parametrize("seed", SEEDS)
def test_books_that_do_not_add_up_are_named(seed: int) -> None:
    stage, seen = watched(seed)
    weights, books = [u.terms.rules.weights for u in stage.units], seen[-1]
    m = books[0].neighbours[0]
    balance = books[0].balances[m]
    books[0].balances[m] = balance._replace(total=balance.total + 1)
    assert balanced(weights, books) == f"the balances of servers 0 and {m} do not cancel"
    assert conserved(weights, books) == (
        f"the balances of servers 0 and {m} do not differ by the flows that are under way"
    )
    books[0].balances[m] = balance
    for at in seen:  # a flow that entered one end, and a message of it that was thrown away
        held = {i for i, flow in at[0].open[m].items() if flow.applied and i in at[m].open[0]}
        waiting = [i for i in held if not at[m].open[0][i].applied]
        if waiting:
            lost = replace(at[m], out={})
            found = [lost if p == m else b for p, b in enumerate(at)]
            assert conserved(weights, found) == f"a message of round {waiting[0]} between servers 0 and {m} is gone"
            return
    pytest.fail("no flow was under way between the first two servers")
