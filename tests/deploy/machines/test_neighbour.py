"""One end of an edge, without a server: what it commits and says, in which order, and when it says it again."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from confide.deploy.machines.exchange import ExchangeError, OtherBytesError, publish
from confide.deploy.machines.ports import Phase
from confide.deploy.store.books import Changes, as_bytes
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
    assert desk.steps() == [("log", "applied")]
    assert (neighbour.settled, neighbour.awaited) == (True, False)
    assert not desk.store.load().open[0][1].applied  # it waits for whatever is said or committed next
    neighbour.repeat()
    points = ("applied", "flagged", "commit")
    *committed, (_, _, said) = desk.taken()
    assert [name for _, name, _ in committed] == [*(f"sync.tx.{part}" for part in points), "sync.committed"]
    assert desk.store.load().open[0][1].applied
    assert said.open == ((1, True),)  # as committed


def test_what_closes_a_record_rides_on_the_next_commit_and_is_heard_again_if_that_never_comes() -> None:
    desk = Recorded()
    published(desk)
    desk.neighbours[0].hear(desk.hears(0, decided=1, open=((1, False),), offer=(1, OFFER)))
    desk.settle()
    closing = desk.hears(0, decided=1, open=())
    for last in (False, True):  # the machine dies the first time
        desk.taken()
        desk.neighbours[0].hear(replace(closing, balance=None))
        assert not desk.books.open[0]
        assert desk.taken() == []
        if not last:
            desk = replaced(desk)
            assert desk.books.open[0][1].applied
    x = np.array([3, 4])
    desk.commit(publish(desk.books, desk.rules, x, {0: x, 2: x}, desk.terms.costs[1], 0, desk.ports.sign), "publish")
    assert ("at", "publish.tx.gc") in desk.steps()
    assert list(desk.store.load().open[0]) == [2]


def replaced(dead: Recorded) -> Recorded:
    """Another machine at the same store."""
    desk = Recorded()
    desk.store, desk.books, desk.phase = dead.store, dead.store.load(), dead.phase
    return desk


@pytest.mark.parametrize("phase", [Phase.DRAIN, Phase.FINISHED])
def test_after_the_last_round_nothing_waits(phase: Phase) -> None:
    desk = Recorded()
    published(desk)
    desk.phase = phase
    desk.neighbours[0].hear(desk.hears(0, decided=1, open=((1, False),), offer=(1, OFFER)))
    assert desk.store.load().open[0][1].applied


def test_an_early_offer_waits_for_its_round() -> None:
    desk = Recorded()
    neighbour, early = desk.neighbours[2], desk.hears(2, decided=1, open=((1, False),), offer=(1, OFFER))
    neighbour.hear(early)
    assert neighbour.early == {1: OFFER}
    with pytest.raises(OtherBytesError):
        neighbour.hear(desk.hears(2, decided=1, open=((1, False),), offer=(1, OFFER[::-1])))
    x = np.array([1, 2])
    changes = publish(desk.books, desk.rules, x, {0: x, 2: x}, desk.terms.costs[0], 0, desk.ports.sign)
    assert desk.neighbours[0].take_early(desk.books, changes) is changes
    changes = neighbour.take_early(desk.books, changes)
    assert changes.opened[2, 1].applied
    assert not changes.opened[0, 1].applied
    assert (neighbour.early, changes.balances[2].n, changes.decided) == ({}, 1, 1)


def test_an_early_offer_is_known_by_its_own_hash() -> None:
    """Where each neighbour gets another message, somebody else may have passed on the signature of the other one."""
    desk = Recorded()
    desk.rules = desk.rules._replace(by_link=True)
    neighbour, x, mine = desk.neighbours[2], np.array([1, 2]), publication(desk.rules.plan, 2, 1, OFFER, receiver=1)
    other = publication(desk.rules.plan, 2, 1, OFFER[::-1], receiver=0)
    desk.commit(Changes(signed={other.place: other.signed}), "sync")
    early = replace(desk.hears(2, decided=1, open=((1, False),)), offer=(1, OFFER), shown=(mine,))
    neighbour.hear(early)
    changes = publish(desk.books, desk.rules, x, {0: x, 2: x + 1}, desk.terms.costs[0], 0, desk.ports.sign)
    desk.commit(neighbour.take_early(desk.books, changes), "publish")
    neighbour.hear(early)  # it says the same again
    assert desk.books.open[2][1].peer_sha256 == mine.sha256


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
    assert (neighbour.up, neighbour.made, neighbour.heard) == (True, 0, True)
