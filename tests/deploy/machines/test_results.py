"""A result is its relay's alone, and the first one stays; who was told which goes round; a lie has a name."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from confide.base.errors import RunError
from confide.base.wire import MalformedError
from confide.deploy.machines import release_messages as messages
from confide.deploy.machines.relay import Relay
from confide.deploy.machines.release import Reason
from confide.deploy.store.books import Flow
from confide.secure import receipts
from confide.testing.network import Weather
from confide.testing.rehearsal import PLAN, server_identity
from releases import QUANTUM, ROUNDS, Box, Lab, LyingRelay

LIE = np.array([666, 667])


def refused(lab: Lab, p: int, reason: Reason) -> int:
    return lab.releases[p].desk.refusals[reason]


def kept(lab: Lab, p: int) -> list[int]:
    """What its store has of attempt 1."""
    found = lab.stores[p].load().released.get(1)
    return [] if found is None else found.total.tolist()


def alarms(lab: Lab, p: int) -> list[str]:
    return lab.releases[p].desk.alarms


# Whose a result is


@pytest.mark.parametrize("restarted", [False, True])
def test_who_did_not_relay_tells_nothing(restarted: bool) -> None:
    """Server 2 is a member, its message is in order and its signature its own; but none of the answers went to it."""
    lab = Lab()
    total = lab.release().result.total.tolist()  # type: ignore[union-attr]
    if restarted:
        lab.restart(1)
        lab.deliver()
    lie = LyingRelay(lab).result(1, LIE, signer=2)
    lie = replace(lie, sender=2, signature=receipts.sign(server_identity(2), PLAN, 1, 2, _hash(LIE)))
    assert lab.heard(1, lie) == []
    assert refused(lab, 1, Reason.RELAY) == 1
    assert kept(lab, 1) == total
    again = lab.release()
    assert again.unheard == ()
    assert [kept(lab, p) for p in range(3)] == [total] * 3
    assert not any(alarms(lab, p) for p in range(3))
    assert len(lab.told) == 3  # once each


def test_what_its_relay_did_not_sign_is_no_result() -> None:
    lab = Lab()
    relay = LyingRelay(lab)
    total = relay.sum()
    for wrong in (
        relay.result(1, total, signer=2),
        replace(relay.result(1, total), signature=relay.result(1, LIE).signature),
    ):
        assert lab.heard(1, wrong) == []
    assert refused(lab, 1, Reason.SIGNATURE) == 2
    assert kept(lab, 1) == []
    assert isinstance(lab.heard(1, relay.result(1, total))[0], messages.Got)
    assert kept(lab, 1) == total.tolist()


def test_a_result_that_came_before_the_answer_is_of_nobody() -> None:
    lab = Lab()
    relay = LyingRelay(lab)
    for _ in range(4):
        relay.step()
    assert lab.heard(1, relay.result(1, LIE)) == []
    assert refused(lab, 1, Reason.RESULT) == 1
    assert lab.stores[1].load().relays == {}
    relay.step()
    assert lab.stores[1].load().relays == {(1, 0): 0}


@pytest.mark.parametrize("restarted", [False, True])
def test_the_first_result_stays_and_a_second_one_is_the_evidence(restarted: bool) -> None:
    lab = Lab()
    relay = LyingRelay(lab)
    total = relay.sum()
    assert isinstance(lab.heard(1, relay.result(1, total))[0], messages.Got)
    if restarted:
        lab.restart(1)
        lab.queue.clear()
    for lie in (LIE, LIE + 1):  # of the third nothing is kept
        assert not any(isinstance(said, messages.Got) for said in lab.heard(1, relay.result(1, lie)))
    assert refused(lab, 1, Reason.OTHER_RESULT) == 2
    assert kept(lab, 1) == total.tolist()
    assert alarms(lab, 1) == ["server 0 told two different results of attempt 1 and signed both: it lied"]
    rows = lab.stores[1].load().receipts
    assert {row: told.sha256 for row, told in rows.items()} == {(1, 0, 1, 0): _hash(total), (1, 0, 1, 1): _hash(LIE)}
    assert lab.restart(1).desk.alarms == alarms(lab, 1)
    assert len(alarms(lab, 1)) == 1


def test_servers_that_were_told_different_results_hear_of_it_over_the_graph() -> None:
    """The relay is a neighbour of 1 and 4; 2 and 3, in the middle of the ring, were told the same as 4."""
    lab = Lab(P=5)
    relay = LyingRelay(lab)
    total = relay.sum()
    for p in range(1, 5):
        lab.releases[p].receive(0.0, 0, messages.encode(relay.result(p, total if p == 1 else LIE)))
    lab.deliver()
    for p in range(1, 5):
        assert alarms(lab, p) == ["server 0 told two different results of attempt 1 and signed both: it lied"]
        found = lab.releases[p].results.receipts.values()
        assert {(r.server, r.sha256) for r in found} == {(1, _hash(total)), *((q, _hash(LIE)) for q in (2, 3, 4))}
        assert list(receipts.disputes(found)) == [(1, (0,))]
        assert kept(lab, p) == (total if p == 1 else LIE).tolist()  # nobody's model is replaced


def test_a_relay_that_tells_everybody_the_same_wrong_sum_is_not_found_out() -> None:
    """Agreement is what receipts show; that the sum is right they do not."""
    lab = Lab()
    relay = LyingRelay(lab)
    relay.sum()
    for p in range(1, 3):
        lab.releases[p].receive(0.0, 0, messages.encode(relay.result(p, LIE)))
    lab.deliver()
    assert [kept(lab, p) for p in (1, 2)] == [LIE.tolist()] * 2
    assert not any(alarms(lab, p) for p in range(3))


def test_results_of_two_relays_that_differ_are_told_and_the_first_one_stays() -> None:
    """A server that relays after the release can lie too: nothing is overwritten, and both are named."""
    lab = Lab()
    total = lab.release(1).result.total.tolist()  # type: ignore[union-attr]
    relay = LyingRelay(lab)
    relay.sum()
    lab.releases[2].receive(0.0, 0, messages.encode(relay.result(2, LIE)))
    lab.deliver()
    assert [kept(lab, p) for p in range(3)] == [total] * 3
    for p in range(3):
        (alarm,) = alarms(lab, p)
        assert alarm.startswith("server 0 and server 1 told different results of attempt 1: one of them lied")


def test_an_honest_relay_signs_one_result_whatever_servers_send() -> None:
    """A member that sends other words in another session would else make it sign two, which is evidence of a lie."""
    lab = Lab()
    first = lab.release()
    second: Relay = lab.releases[0].begin(0.0)
    books = lab.releases[2].desk.books
    books.release = books.release[:-8] + bytes(8)  # the words of server 2
    lab.deliver()
    assert second.failed == "attempt 1: the sum is another than this server signed before; a server sent other words"
    assert alarms(lab, 0) == [second.failed]
    assert [kept(lab, p) for p in range(3)] == [first.result.total.tolist()] * 3  # type: ignore[union-attr]
    signed = {(row[1], told.sha256) for row, told in lab.stores[1].load().receipts.items()}
    assert signed == {(0, _hash(first.result.total))}  # type: ignore[union-attr]


def test_a_disk_that_is_full_at_the_moment_of_the_release_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab()
    store = lab.stores[1]
    commit = store.commit

    def full(changes: Any, *more: Any) -> None:
        if changes.released:
            raise RunError("the disk is full")
        commit(changes, *more)

    monkeypatch.setattr(store, "commit", full)
    relay: Relay = lab.releases[0].begin(0.0)
    lab.deliver()
    assert (relay.stage, kept(lab, 1)) == ("tell", [])
    monkeypatch.undo()  # somebody made room
    lab.releases[0].tick(relay.wake)  # the relay says it again
    lab.deliver()
    assert (relay.done, relay.unheard) == (True, ())
    assert kept(lab, 1) == relay.result.total.tolist()  # type: ignore[union-attr]


# Receipts


@pytest.mark.parametrize("seed", range(4))
def test_everybody_has_everybodys_receipt_whatever_the_weather(seed: int) -> None:
    weather = Weather(loss=0.3, duplication=0.2, crash=0.02 * (seed % 2), away=(0.5, 3.0), calm=400.0)
    box = Box("path:4", weather, seed).learn()
    while (relay := box.release(seed)).failed:
        assert box.net.now < 1000, f"seed {seed}: {relay.failed}"

    def all_have() -> bool:
        return all({row[2] for row in u.store.load().receipts} == set(range(4)) for u in box.units)

    box.net.run(until=box.net.now + 5000, done=all_have)
    assert all_have(), f"seed {seed}"
    assert not any(what == "alarm" for _, what, _ in box.logs), f"seed {seed}"
    box.net.run(until=box.net.now + 500)
    before = box.net.messages
    box.net.run(until=box.net.now + 500)
    assert box.net.messages == before, f"seed {seed}: who has all is told no more"


def test_many_receipts_take_several_messages() -> None:
    lab = Lab(P=40)
    found = [receipt(p, LIE) for p in range(40)]
    for given in (found[:30], found[30:]):
        hears(lab, 1, tuple(given))
    lab.restart(1)
    lab.deliver()
    assert all({row[2] for row in store.load().receipts} == set(range(40)) for store in lab.stores)


def test_receipts_that_do_not_hold_are_refused() -> None:
    lab = Lab(P=4)
    good = receipt(3, LIE)
    for wrong in (
        good._replace(sha256=_hash(LIE + 1)),
        good._replace(countersignature=receipt(2, LIE).countersignature),
        good._replace(signature=receipts.sign(server_identity(2), PLAN, 1, 0, _hash(LIE))),
        good._replace(relay=2),
        good._replace(server=4),
        good._replace(server=2),
        good._replace(attempt=2),
        good._replace(attempt=2**32 - 1),
    ):
        assert hears(lab, 1, (wrong,)) == []
        assert hears(lab, 1, (good, wrong)) == []
    assert refused(lab, 1, Reason.RECEIPT) == 16
    assert lab.stores[1].load().receipts == {}
    assert hears(lab, 1, (good,), sender=3) == []  # it is on the other side of the ring
    assert refused(lab, 1, Reason.STRANGER) == 1
    (took,) = [said for said in hears(lab, 1, (good,)) if isinstance(said, messages.Took)]
    assert took.receiver == 2
    assert list(lab.stores[1].load().receipts) == [(1, 0, 3, 0)]
    with pytest.raises(MalformedError):
        messages.decode(messages.encode(replace_raw(good)), 10**6)


def receipt(server: int, total: np.ndarray) -> receipts.Receipt:
    """Server 0 told it this, and both signed."""
    sha = _hash(total)
    own = receipts.countersign(server_identity(server), PLAN, 1, 0, server, sha)
    return receipts.Receipt(1, 0, server, sha, receipts.sign(server_identity(0), PLAN, 1, 0, sha), own)


def hears(lab: Lab, p: int, given: tuple[receipts.Receipt, ...], sender: int = 2) -> list[Any]:
    return lab.heard(p, messages.Receipts(PLAN, 0, sender, p, given))


def replace_raw(good: receipts.Receipt) -> messages.Receipts:
    found = messages.Receipts(PLAN, 0, 2, 1, (good,))
    object.__setattr__(found, "receipts", (good,) * (messages.MOST_RECEIPTS + 1))
    return found


# What one member says


def asked(lab: Lab) -> tuple[Relay, bytes]:
    """A relay that waits for everybody to be ready, and its run."""
    relay: Relay = lab.releases[0].begin(0.0)
    ask = next(messages.decode(raw, 10**9) for _, to, raw in lab.queue if to == 1)
    lab.queue = [message for message in lab.queue if message[1] != 1]  # server 1 says what the test says
    assert isinstance(ask, messages.AskReady)
    return relay, ask.run


def ready(run: bytes, **changes: Any) -> messages.Ready:
    usual = messages.Ready(PLAN, 0, 1, 0, run, ROUNDS, ROUNDS, True, (), 0, 0, False, 3, "")
    return replace(usual, **changes)


@pytest.mark.parametrize(
    ("claim", "named"),
    [
        (
            {"attempt": 2**32 - 1},
            "server 1 claims attempt 4294967295 of epoch 0, and by epoch 0 3 releases can lead to 3",
        ),
        ({"attempt": 4}, "server 1 claims attempt 4 of epoch 0"),
        ({"attempt": 1, "of_epoch": 7}, "server 1 claims attempt 1 of epoch 7"),
        ({"pending": ((3, 2),)}, "server 1 claims open flows with server 3, and the plan has 0 to 2"),
    ],
)
def test_what_cannot_be_is_a_lie_with_a_name(claim: dict[str, Any], named: str) -> None:
    lab = Lab()
    relay, run = asked(lab)
    desk = lab.releases[0].desk
    desk.terms = replace(desk.terms, names=("server 0", "server 1", "server 2"))  # and no others
    lab.releases[0].receive(0.0, 1, messages.encode(ready(run, **claim)))
    assert relay.failed.startswith(named)
    assert relay.failed.endswith(": it lies")
    assert alarms(lab, 0) == [relay.failed]
    lab.queue.clear()
    assert lab.release().failed == ""  # nothing of it lasts


@pytest.mark.parametrize("kind", [messages.Refusal, messages.Ready])
@pytest.mark.parametrize("words", ["\x1b[2J\x1b[1;1H", "all is well\nok", "\u202egpj.exe", "\x07"])
def test_words_that_a_terminal_obeys_are_no_message(kind: Any, words: str) -> None:
    refusal = messages.Refusal(PLAN, 0, 1, 0, bytes(16), 1, "no", False)
    said = refusal if kind is messages.Refusal else ready(bytes(16))
    object.__setattr__(said, "why" if kind is messages.Refusal else "never", words)
    with pytest.raises(MalformedError):
        messages.decode(messages.encode(said), 10**6)


def test_what_another_server_wrote_stands_in_quotes_behind_its_name() -> None:
    lab = Lab()
    relay, run = asked(lab)
    terms = lab.releases[0].desk.terms
    lab.releases[0].desk.terms = replace(terms, names=("alpha", "beta", "gamma"))
    lab.releases[0].receive(0.0, 1, messages.encode(ready(run, never='gone"; gamma: it was me')))
    assert relay.failed == 'beta says "gone\\"; gamma: it was me"'


def test_flows_that_a_member_claims_with_this_server_are_compared_with_the_own_books() -> None:
    lab = Lab(P=4)
    lab.books[0].open[1][3] = Flow()
    relay, run = asked(lab)
    made_up = ready(run, pending=((0, 2), (0, 3)))
    lab.releases[0].receive(0.0, 1, messages.encode(made_up))
    lab.deliver()
    lab.releases[0].tick(61.0)
    of_own, of_other = relay.failed.split("; ", 1)
    assert of_own == "server 0 has open flows with server 1: rounds 3"
    assert of_other == (
        "server 1 has open flows with server 0: rounds 3; "
        "server 1 claims open flows with server 0: rounds 2, which are settled in its books"
    )


# What an operator asks


def test_noise_alone_is_released_only_if_it_is_asked_for() -> None:
    lab = Lab()
    for books in lab.books:
        books.published = 0
    relay = lab.release()
    assert relay.failed == "no server has published a round: it would release noise alone, and pay; ask with --anyway"
    assert all(len(list(store.entries())) == 0 for store in lab.stores)
    relay = lab.releases[0].begin(0.0, anyway=True)
    lab.deliver()
    assert relay.result is not None
    assert lab.release(1).result is not None  # what is paid for is told again
    lab = Lab()
    lab.books[0].published = lab.books[2].published = 0
    assert lab.release().result is not None  # somebody has published


def test_an_operator_may_stop_what_was_not_begun() -> None:
    lab = Lab()
    relay, _ = asked(lab)
    assert relay.stop()
    assert relay.failed == "its operator stopped it; nothing was begun, and nothing is paid for"
    lab.deliver()
    assert all(len(list(store.entries())) == 0 for store in lab.stores)
    begun: Relay = lab.releases[0].begin(0.0)
    while begun.stage != "sum":
        sender, to, raw = lab.queue.pop(0)
        lab.releases[to].receive(0.0, sender, raw)
    assert not begun.stop()
    lab.deliver()
    assert begun.result is not None


def test_the_mean_that_is_handed_out_is_that_of_the_store() -> None:
    lab = Lab()
    relay = lab.release()
    found = lab.restart(2).results.released[1]
    assert (found.attempt, found.servers, found.sigma) == relay.result[:3]  # type: ignore[index]
    assert np.array_equal(found.mean, found.total * (QUANTUM / 3))
    assert found.sha256 == relay.result.sha256  # type: ignore[union-attr]


def _hash(total: np.ndarray) -> bytes:
    return hashlib.sha256(np.asarray(total).astype("<i8").tobytes()).digest()
