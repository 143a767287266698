"""The rounds of a server without the server: for whom they wait, what they commit and say, and in which order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from confide.deploy.machines import client_messages
from confide.deploy.machines.ports import Phase
from confide.deploy.machines.rejoining import Rejoining
from confide.deploy.machines.rounds import Rounds, Skip
from confide.deploy.store.books import as_bytes
from desks import Recorded, publication


def started(desk: Recorded, heard: Sequence[int] = (0, 2)) -> Rounds:
    rounds = Rounds(desk, desk.neighbours, Rejoining(desk, desk.neighbours))
    rounds.boot(rejoin=False)
    for m in heard:
        desk.neighbours[m].hear(desk.hears(m))
    return rounds


def test_a_new_server_waits_for_all_its_neighbours() -> None:
    desk = Recorded()
    rounds = started(desk, heard=[0])
    assert desk.steps() == [("at", "boot.loaded"), ("say", 0), ("say", 2), ("at", "boot.sent")]
    desk.now = 1e6
    rounds.advance()
    assert (desk.phase, rounds.waiting_for, rounds.new) == (Phase.BOOT, [2], True)
    desk.neighbours[2].hear(desk.hears(2))
    rounds.advance()
    assert (desk.phase, rounds.new) == (Phase.ADAPT, False)


def test_a_round_is_stored_before_anybody_is_invited_and_published_before_anybody_is_told() -> None:
    desk = Recorded()
    rounds = started(desk)
    desk.taken()
    rounds.advance()
    assert desk.steps() == [
        ("at", "round.open.before"),
        ("at", "round.open.tx.commit"),
        ("at", "round.open.committed"),
        ("tell", 0),
        ("at", "adapt.handed_out"),
    ]
    cohort = rounds.cohort
    assert cohort is not None
    assert cohort.waiting_for == [0]
    cohort.receive(desk.now, 0, client_messages.Update(1, 1, as_bytes(np.array([3, 4]))))
    rounds.advance()
    assert not desk.taken()  # until the tick, whenever the sum was there
    desk.now = rounds.wake
    rounds.advance()
    steps = desk.steps()
    assert steps.index(("at", "publish.tx.commit")) < steps.index(("say", 0)) < steps.index(("say", 2))
    assert [name for what, name in steps if what == "at" and ".tx." not in name] == [
        "adapt.aggregated", "publish.drawn", "publish.committed", "publish.sent_first", "publish.sent_all",
    ]  # fmt: skip
    assert (desk.phase, desk.books.decided, rounds.waiting_for) == (Phase.WAIT, 1, [0, 2])


def test_at_the_deadline_it_goes_on_without_those_that_are_late() -> None:
    desk = Recorded()
    rounds = started(desk)
    desk.phase, rounds.deadline, desk.now = Phase.WAIT, 2.0, 1.0
    desk.neighbours[0].up = False
    desk.books.decided = 1  # of which nobody has heard
    rounds.advance()
    assert (desk.phase, rounds.waiting_for) == (Phase.WAIT, [2])
    desk.now = 2.0
    rounds.advance()
    steps = desk.steps()
    assert (
        steps.index(("at", "wait.deadline")) < steps.index(("log", "down")) < steps.index(("at", "round.open.before"))
    )
    assert not desk.neighbours[2].up


def test_without_budget_it_keeps_pace_and_says_why() -> None:
    desk = Recorded(allowed=0)
    rounds = started(desk)
    rounds.advance()
    assert (rounds.idle, rounds.cohort) == (Skip.BUDGET, None)
    desk.taken()
    desk.now = rounds.wake
    rounds.advance()
    done = desk.taken()
    assert ("log", "skipped", {"round": 1, "why": Skip.BUDGET}) in done
    assert [type(fields["why"]) for what, name, fields in done if name == "skipped"] == [str]  # as the log wants it
    assert desk.books.published == 0


def test_it_goes_to_where_its_neighbours_are_but_never_beyond_the_clock() -> None:
    desk = Recorded()
    rounds = started(desk)
    rounds.advance()
    desk.neighbours[0].hear(desk.hears(0, decided=4, shown=(publication(desk.rules.plan, 0, 4, b""),)))
    rounds.advance()
    assert desk.books.decided == desk.terms.clock_round(desk.now) == 1
    desk.neighbours[0].far = True  # nobody follows one that moved ahead in a rejoin
    desk.now = 1e3
    rounds.advance()
    assert desk.books.decided == 1
    desk.neighbours[0].far = False
    rounds.advance()
    assert desk.books.decided == 4
