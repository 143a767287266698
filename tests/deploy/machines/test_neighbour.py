"""One end of an edge, without a server: what it commits and says, in which order, and when it says it again."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from confide.deploy.machines.exchange import ExchangeError, OtherBytesError, publish
from confide.deploy.machines.ports import Phase
from confide.deploy.store.books import as_bytes
from confide.plans.plan import Clocks
from desks import Recorded, publication

OFFER = as_bytes(np.array([8, -8]))


def published(desk: Recorded) -> None:
    x = np.array([1, 2])
    desk.commit(publish(desk.books, desk.rules, x, {0: x, 2: x}, desk.terms.costs[0], 0, desk.ports.sign), "publish")
    desk.phase = Phase.WAIT
    desk.taken()


def test_gaps_grow_to_two_exchanges_and_begin_anew() -> None:
    desk, gaps = Recorded(clocks=Clocks(neighbours=8.0)), list[float]()
    neighbour = desk.neighbours[0]
    assert neighbour.resend_at == inf
    neighbour.later()
    for _ in range(6):
        gaps.append(neighbour.resend_at - desk.now)
        desk.now = neighbour.resend_at
        neighbour.repeat()
    assert gaps == [2.0, 4.0, 8.0, 16.0, 16.0, 16.0]
    assert desk.steps() == [("say", 0)] * 6
    neighbour.hear(desk.hears(0))
    neighbour.later()
    assert neighbour.resend_at == desk.now + 2.0
    neighbour.repeat()  # nothing is open, and it was heard
    assert neighbour.resend_at == inf
    assert not desk.taken()


def test_what_it_applies_is_committed_before_anything_is_said() -> None:
    desk = Recorded()
    published(desk)
    neighbour = desk.neighbours[0]
    assert neighbour.awaited
    neighbour.hear(desk.hears(0, decided=1, open=((1, False),), offer=(1, OFFER)))
    points = ("applied", "flagged", "commit")
    assert desk.steps() == [
        *(("at", f"sync.tx.{part}") for part in points),
        ("at", "sync.committed"),
        ("log", "applied"),
    ]
    assert desk.store.load().open[0][1].applied
    assert (neighbour.settled, neighbour.awaited) == (True, False)
    neighbour.repeat()
    ((_, _, said),) = desk.taken()
    assert said.open == ((1, True),)  # as committed


def test_an_early_offer_waits_for_its_round() -> None:
    desk = Recorded()
    neighbour, early = desk.neighbours[2], desk.hears(2, decided=1, open=((1, False),), offer=(1, OFFER))
    neighbour.hear(early)
    assert neighbour.early == {1: OFFER}
    with pytest.raises(OtherBytesError):
        neighbour.hear(desk.hears(2, decided=1, open=((1, False),), offer=(1, OFFER[::-1])))
    neighbour.take_early()
    assert neighbour.early
    published(desk)
    neighbour.take_early()
    assert desk.steps()[-1] == ("log", "applied")
    assert (neighbour.early, desk.books.balances[2].n) == ({}, 1)


def test_one_that_is_heard_again_is_up_again_and_what_it_may_not_say_changes_nothing() -> None:
    desk = Recorded()
    published(desk)
    neighbour = desk.neighbours[0]
    neighbour.up = False
    before = dict(vars(neighbour))
    with pytest.raises(ExchangeError):
        neighbour.hear(desk.hears(0, decided=1, shown=(publication(desk.rules.plan, 2, 1, OFFER)._replace(server=0),)))
    assert vars(neighbour) == before
    assert not desk.taken()
    neighbour.hear(desk.hears(0, decided=1, seen=1, open=((1, False),)))
    assert ("log", "up") in desk.steps()
    assert (neighbour.up, neighbour.known, neighbour.heard) == (True, 1, True)
