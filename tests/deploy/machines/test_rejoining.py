"""A restored store without its server: how far it moves and what that costs, and whose answers it takes."""

from __future__ import annotations

import pytest

from confide.deploy.machines.exchange import ExchangeError
from confide.deploy.machines.ports import Phase
from confide.deploy.machines.rejoining import Rejoining
from confide.deploy.machines.sync import AskBalance, TellBalance
from confide.deploy.store.books import Status
from desks import ME, Recorded, publication


def restored(now: float = 0.0, **decided: int) -> tuple[Recorded, Rejoining]:
    """It has heard the neighbours m0 and m2 say how far they are."""
    desk = Recorded()
    rejoining = Rejoining(desk, desk.neighbours)
    desk.phase, desk.now = Phase.REJOIN, now
    for m, d in decided.items():
        rejoining.hear(desk.hears(int(m[1:]), decided=d))
    return desk, rejoining


def test_it_moves_a_leash_beyond_what_neighbours_know_and_pays_for_the_gap() -> None:
    desk, rejoining = restored(now=60.0, m0=1, m2=1)
    rejoining.move()
    (*points, (_, event, fields)) = desk.taken()
    assert {what for what, *_ in points} == {"at"}  # committed, and nothing is said here
    assert (event, fields) == ("rejoined", {"round": 5, "charged": 5, "by": "neighbours"})
    books = desk.store.load()
    assert (books.decided, books.published, books.rejoined) == (5, 5, 5)
    assert set(books.status.values()) == {Status.ADRIFT}


def test_where_a_neighbour_may_have_forgotten_the_clock_holds() -> None:
    for decided in ({"m0": 1}, {"m0": 1, "m2": 0}):
        desk, rejoining = restored(now=12.0, **decided)
        rejoining.move()
        fields = desk.taken()[-1][2]
        assert (fields["round"], fields["by"]) == (1 + desk.terms.clock_round(12.0), "clock")


def test_only_an_answer_to_the_last_question_is_taken() -> None:
    desk, rejoining = restored(now=60.0, m0=1, m2=1)
    rejoining.move()
    desk.phase = Phase.WAIT
    desk.taken()
    rejoining.ask_balance(desk.hears(0, decided=5))
    ((_, to, ask),) = desk.taken()
    assert (to, ask.nonce, ask.decided) == (0, rejoining.nonces[0], 5)
    told = TellBalance(desk.rules.plan, 0, ME, 5, ask.nonce, 1, bytes(16))
    rejoining.on_ask(AskBalance(desk.rules.plan, 0, ME, 5, 77, 0))  # it was restored, too: a new question
    assert rejoining.nonces[0] != ask.nonce
    assert [type(message) for _, _, message in desk.taken()] == [AskBalance]
    rejoining.on_balance(told)
    assert desk.books.status[0] is Status.ADRIFT
    rejoining.on_balance(TellBalance(desk.rules.plan, 0, ME, 5, rejoining.nonces[0], 1, bytes(16)))
    assert desk.books.status[0] is Status.OPEN
    assert ("log", "balanced") in desk.steps()


def test_a_message_of_which_one_signature_is_false_changes_nothing() -> None:
    desk, rejoining = restored(now=60.0)
    true, false = (publication(desk.rules.plan, 2, i, bytes(16)) for i in (3, 4))
    with pytest.raises(ExchangeError):
        rejoining.hear(desk.hears(0, decided=4, shown=(true, false._replace(signature=true.signature))))
    assert (rejoining.signed, rejoining.claims) == (0, {})
    rejoining.hear(desk.hears(0, decided=4, shown=(true, false)))
    assert (rejoining.signed, rejoining.claims) == (4, {0: 4})
