"""Following signed epochs without a server: committed before it is passed on, each once."""

from __future__ import annotations

from math import inf

import pytest

from confide.deploy.machines import epoch as epochs
from confide.deploy.machines.removal import Removal
from confide.deploy.machines.sync import TellEpoch
from confide.deploy.store.books import Status
from confide.testing.rehearsal import server_identity
from desks import Recorded


def signed(desk: Recorded, removed: tuple[int, ...], signers: tuple[int, ...]) -> bytes:
    plan = desk.rules.plan
    signatures = tuple(epochs.sign(server_identity(q), q, plan, 1, removed) for q in signers)
    return epochs.encode(epochs.Epoch(plan, 1, removed, signatures))


def test_a_removal_is_committed_then_told_to_all_and_followed_once() -> None:
    desk = Recorded()
    removal = Removal(desk, desk.neighbours)
    removal.tell(desk.neighbours[0])
    assert not desk.taken()  # nobody was removed
    for neighbour in desk.neighbours.values():
        neighbour.later()
    raw = signed(desk, (2,), (0, 1))
    assert removal.follow(raw)
    *points, log, first, second = desk.taken()
    assert points[-1][1] == "remove.tx.commit"
    assert log[:2] == ("log", "removed")
    assert [(what, m, type(said)) for what, m, said in (first, second)] == [
        ("say", 0, TellEpoch),
        ("say", 2, TellEpoch),
    ]
    assert (desk.epoch_number, removal.gone, desk.store.load().epoch) == (1, False, raw)
    assert desk.books.status[2] is Status.REMOVED
    assert (desk.neighbours[0].resend_at, desk.neighbours[2].resend_at) == (desk.neighbours[0].gap, inf)
    assert not removal.follow(raw)
    assert not desk.taken()


def test_its_own_removal_and_one_that_does_not_hold() -> None:
    desk = Recorded()
    removal = Removal(desk, desk.neighbours)
    with pytest.raises(epochs.EpochError):
        removal.follow(signed(desk, (2,), (0,)))
    assert (desk.epoch, desk.taken()) == (None, [])
    with pytest.raises(epochs.EpochError):
        removal.follow(signed(desk, (1,), (0, 2)))  # 0 and 2 would not reach each other
