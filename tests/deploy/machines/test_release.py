"""The release: exact to the last bit, paid for before its answer leaves, the same words however often it is begun."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confide.base.errors import InputError
from confide.deploy.machines import epoch as epochs
from confide.deploy.machines import release_messages as messages
from confide.deploy.machines import sync
from confide.deploy.machines.epoch import Epoch
from confide.deploy.machines.exchange import Rules
from confide.deploy.machines.ports import Phase
from confide.deploy.machines.relay import Relay
from confide.deploy.machines.release import Kept, Part
from confide.deploy.machines.releases import Releases
from confide.deploy.store.books import Books, Changes, Flow, Status
from confide.deploy.store.sqlite import SqliteStore
from confide.secure import messages as secure_messages
from confide.secure import server as secure_server
from confide.secure.release import Terms
from confide.testing.network import Cut, Weather
from confide.testing.rehearsal import PLAN, server_identity
from exploring import more
from releases import COST, QUANTUM, ROUNDS, Box, Lab, LyingRelay, a_desk


@pytest.fixture(scope="module")
def finished() -> list[Books]:
    """The books of three servers in a row after the last round."""
    box = Box("path:3").learn()
    return [u.store.load() for u in box.units]


def settled(box: Box) -> Box:
    box.net.run(until=box.net.now + 100, done=box.net.finished)
    return box


# What is released


@pytest.mark.parametrize(("graph", "name"), [("ring:4", "homomorphic"), ("path:2", "shared"), ("star:5", "own-clean")])
def test_the_mean_is_exact_and_paid_for_by_everybody(graph: str, name: str) -> None:
    box = Box(graph, scheme_name=name).learn()
    relay = box.release(1)
    assert relay.failed == ""
    box.check(relay.result)
    box.check_told(relay.result)
    assert relay.unheard == ()
    assert box.watch.paid == dict.fromkeys(range(box.P), 1)
    for p, u in enumerate(box.units):
        kinds = [e.event.kind for e in u.store.entries()]
        assert kinds == ["message"] * ROUNDS + ["release"]
        assert len(box.got[p]) == 1
    assert not any(what == "alarm" for _, what, _ in box.logs)


def test_the_same_release_again_is_the_same_and_free(finished: list[Books]) -> None:
    box = settled(Box(books=finished))
    first, second, elsewhere = box.release(0), box.release(0), box.release(2)
    box.check(first.result)
    for other in (second, elsewhere):
        assert other.result is not None
        assert np.array_equal(other.result.total, first.result.total)  # type: ignore[union-attr]
    assert box.watch.paid == {0: 1, 1: 1, 2: 1}


def test_another_release_has_other_noise_is_paid_again_and_ends_with_the_budget(finished: list[Books]) -> None:
    box = settled(Box(books=finished, attempts=2))
    first, second = box.release(0), box.release(1, again=True)
    box.check(first.result, attempt=1)
    box.check(second.result, attempt=2)
    assert not np.array_equal(box.watch.shares(0, 1), box.watch.shares(0, 2))
    assert box.watch.paid == {0: 2, 1: 2, 2: 2}
    third = box.release(0, again=True)
    assert third.failed == "; ".join(
        f"server {p} has answered as many releases as its plan and budget allow" for p in range(3)
    )
    assert box.watch.paid == {0: 2, 1: 2, 2: 2}
    assert np.array_equal(box.release(2).result.total, second.result.total)  # type: ignore[union-attr]


def test_two_relays_at_once_release_one_attempt(finished: list[Books]) -> None:
    box = settled(Box(books=finished, seed=1))
    box.net.release(0)
    box.net.release(2)
    box.net.run(until=box.net.now + 100, done=lambda: all(r is None or r.done for r in map(box.relay, (0, 2))))
    found = [r for p in (0, 2) if (r := box.relay(p)) is not None]
    assert [r.failed for r in found] == ["", ""]
    for r in found:
        box.check(r.result)
    assert box.watch.paid == {0: 1, 1: 1, 2: 1}


@pytest.mark.parametrize(("colluders", "members"), [(0, 3), (1, 3), (0, 2)])
def test_the_noise_on_the_sum_is_that_of_the_plan(colluders: int, members: int) -> None:
    """The honest shares alone have a standard deviation of P sigma on the sum, also when servers are gone."""
    P, n = 3, 20_000
    lab = Lab(P, length=n, colluders=colluders, removed=range(members, P))
    relay = lab.release()
    assert relay.result is not None
    noise = relay.result.total - sum(lab.books[p].w for p in range(members))
    expected = P * 0.5 / QUANTUM * math.sqrt(members / (members - colluders))
    assert relay.result.sigma == pytest.approx(0.5 * P / members)

    def fits(scale: float) -> bool:
        z = noise / (expected * scale)
        mean, spread = abs(z.mean()) * math.sqrt(n), abs(np.mean(z**2) - 1.0) * math.sqrt(n / 2.0)
        tails = abs(np.mean(np.abs(z) < 1.0) - 0.682689) * math.sqrt(n / (0.682689 * 0.317311))
        return bool(mean < 4.0 and spread < 4.0 and tails < 4.0)

    assert fits(1.0)
    assert not any(fits(scale) for scale in (0.95, 1.05, members / P if members < P else 2.0))


# Faults


def crash_points(finished: list[Books]) -> list[tuple[int, str, int]]:
    box = settled(Box(books=finished))
    passed: Counter[tuple[int, str]] = Counter()
    for p, u in enumerate(box.units):
        assert u.server is not None

        def at(point: str, p: int = p) -> None:
            passed[p, point] += 1

        u.server.ports.at = at
    box.release(0)
    return [(p, point, k) for (p, point), n in passed.items() if p != 2 for k in range(n) if "sync" not in point]


def test_a_crash_anywhere_is_survived_without_paying_twice(finished: list[Books]) -> None:
    points = crash_points(finished)
    names = {(p, point) for p, point, _ in points}
    kinds = ("advertise", "shares", "masked", "consent", "answer")
    for wanted in (
        "release.drawn", "release.tx.ledger", "release.tx.commit", "release.committed", "release.paid",
        "release.result", "release.kept",
    ):  # fmt: skip
        assert {(0, wanted), (1, wanted)} <= names
    for kind in kinds:
        assert {(p, f"release.{kind}{end}") for p in (0, 1) for end in ("", ".sent")} <= names
    assert {
        (0, f"relay.{x}") for x in ("begin", "sharing", "masking", "consenting", "unmasking", "summed", "signed")
    } <= names
    for p, point, k in points:
        box = settled(Box(books=finished, weather=Weather(crash_at=((p, point, k),)), seed=k))
        relay = box.release(0)
        where = f"crash of {p} at {point}, time {k}"
        assert box.net.crashes == {point: 1}, where
        assert relay.failed == "", where
        box.check(relay.result)
        box.check_told(relay.result)
        assert box.watch.paid == {0: 1, 1: 1, 2: 1}, where


@pytest.mark.parametrize("seed", range(12))
def test_bad_weather_delays_and_changes_nothing(finished: list[Books], seed: int) -> None:
    weather = Weather(
        delay=(0.001, (0.01, 1.0, 3.0)[seed % 3]),
        loss=(0.0, 0.1, 0.3)[seed // 3 % 3],
        duplication=0.3,
        crash=(0.0, 0.02)[seed % 2],
        away=(0.5, 3.0),
        calm=200.0,
    )
    box = settled(Box(books=finished, weather=weather, seed=seed))
    while (relay := box.release(seed % 3)).failed:
        assert box.net.now < 1000, f"seed {seed}: {relay.failed}"
    box.check(relay.result)
    assert box.watch.paid == {0: 1, 1: 1, 2: 1}, f"seed {seed}"
    assert not any(what == "alarm" for _, what, _ in box.logs), f"seed {seed}"


# Who is not ready


def test_a_release_waits_for_learning(finished: list[Books]) -> None:
    box = Box("path:3", patience=1.0)
    box.net.run(until=2.0)
    relay = box.release(0)
    assert relay.failed == "; ".join(f"server {p} has decided 0 of 3 rounds" for p in range(3))
    assert not box.watch.paid


def test_an_open_flow_refuses_the_release_until_it_is_settled() -> None:
    between = [(("server", 1, 0), ("server", 2, 0)), (("server", 2, 0), ("server", 1, 0))]
    box = Box("path:3", Weather(cuts=tuple(Cut(29.0, 200.0, *ends) for ends in between)), patience=20.0)
    box.net.run(until=100.0)
    assert all(u.server is not None and u.server.phase is Phase.FINISHED for u in box.units)
    relay = box.release(0)
    assert (
        relay.failed
        == "server 1 has open flows with server 2: rounds 3; server 2 has open flows with server 1: rounds 3"
    )
    assert not box.watch.paid
    assert not any(u.store.load().release for u in box.units)
    box.net.run(until=300.0, done=box.net.finished)
    box.watch.w = [u.store.load().w for u in box.units]
    box.check(box.release(0).result)


def test_a_flow_that_settles_in_time_is_waited_for() -> None:
    between = [(("server", 1, 0), ("server", 2, 0)), (("server", 2, 0), ("server", 1, 0))]
    box = Box("path:3", Weather(cuts=tuple(Cut(29.0, 80.0, *ends) for ends in between)), patience=60.0)
    box.net.run(until=70.0)
    box.watch.w = [u.store.load().w for u in box.units]
    relay = box.release(0)
    box.watch.w = [u.store.load().w for u in box.units]
    box.check(relay.result)


def test_a_server_that_is_away_is_named(finished: list[Books]) -> None:
    box = settled(Box(books=finished))
    box.net.kill(1, away=1e6)
    assert box.release(0).failed == "server 1 does not answer"
    assert not box.watch.paid


def test_a_restored_store_takes_part_no_more(finished: list[Books]) -> None:
    books = [b.copy() for b in finished]
    books[1].rejoined = ROUNDS
    box = settled(Box(books=books))
    assert box.release(0).failed.startswith('server 1 says "the store of server 1 was restored after the last round')
    assert not box.watch.paid
    books[1].rejoined = ROUNDS - 1
    box = settled(Box(books=books))
    box.check(box.release(0).result)


def remove(box: Box, gone: int) -> None:
    signers = [p for p in range(box.P) if p != gone]
    signed = tuple(epochs.sign(server_identity(p), p, PLAN, 1, (gone,)) for p in signers)
    server = box.units[0].server
    assert server is not None
    server.follow(box.net.now, epochs.encode(Epoch(PLAN, 1, (gone,), signed)))
    box.net.run(until=box.net.now + 5.0)


def test_the_release_is_over_those_who_remain() -> None:
    box = Box("complete:4").learn()
    remove(box, 3)
    relay = box.release(1)
    box.check(relay.result, members=(0, 1, 2))
    box.check_told(relay.result, members=(0, 1, 2))
    assert relay.result is not None
    assert relay.result.sigma == pytest.approx(0.5 * 4 / 3)
    assert box.watch.paid == {0: 1, 1: 1, 2: 1}
    assert box.got[3] == []


def test_an_attempt_with_a_server_that_is_removed_is_not_taken_up_with_others() -> None:
    """Its words summed over fewer servers would tell those of the removed one by the difference.

    Nobody had answered, so nobody paid: the one release that the plan allows is still to be made (it was lost before).
    """
    crash = Weather(crash_at=((3, "release.masked.sent", 0),), away=(1e6, 1e6))
    box = Box("complete:4", crash, attempts=1).learn()
    relay = box.release(0)
    assert relay.failed.startswith("server 3 does not answer; attempt 1 is paid for where it was answered")
    assert not box.watch.paid
    remove(box, 3)
    relay = box.release(0)
    box.check(relay.result, members=(0, 1, 2), attempt=2)
    assert box.watch.paid == {0: 1, 1: 1, 2: 1}
    assert box.watch.words[0, 1] != box.watch.words[0, 2]
    again = box.release(1, again=True)
    assert again.failed.startswith("server 0 has answered as many releases")
    told = box.release(1)
    assert told.result is not None
    assert np.array_equal(told.result.total, relay.result.total)  # type: ignore[union-attr]


@pytest.mark.parametrize("attempts", [1, 2])
def test_an_answer_that_left_is_paid_for_although_the_sum_was_never_made(attempts: int) -> None:
    """Server 3 had consented and not answered; the others cannot know that their answers made nothing."""
    crash = Weather(crash_at=((3, "release.answer", 0),), away=(1e6, 1e6))
    box = Box("complete:4", crash, attempts=attempts).learn()
    assert "server 3 does not answer" in box.release(0).failed
    assert {p: n for p, n in box.watch.paid.items() if p != 3} == {0: 1, 1: 1, 2: 1}
    remove(box, 3)
    relay = box.release(0)
    if attempts == 1:
        assert relay.result is None
        assert "server 1 has answered as many releases as its plan and budget allow" in relay.failed
        assert box.watch.paid[0] == 1
        return
    box.check(relay.result, members=(0, 1, 2), attempt=2)
    assert {p: n for p, n in box.watch.paid.items() if p != 3} == {0: 2, 1: 2, 2: 2}


def test_a_removal_ends_what_was_under_way() -> None:
    box = Box("complete:4").learn()
    box.net.release(0)
    remove(box, 3)
    relay = box.relay(0)
    assert relay is not None
    assert relay.failed == "a server was removed meanwhile: release again, over those that remain"
    attempt = 1 + max((attempt for _, attempt in box.watch.words), default=0)
    box.check(box.release(0).result, members=(0, 1, 2), attempt=attempt)
    assert box.watch.paid == {0: 1, 1: 1, 2: 1}


# Without a network: every message at will


def test_a_relay_that_asks_another_question_is_not_answered() -> None:
    lab = Lab()
    relay = LyingRelay(lab)
    for _ in range(3):
        relay.step()
    question = relay.words[1]
    assert isinstance(question, secure_messages.Question)
    before = lab.state()
    (said,) = relay.tell(1, question)
    assert isinstance(secure_messages.from_client(said.word, 10**9), secure_messages.Consent)
    assert relay.tell(1, question) == [said]  # the same once more is the same
    for other in (replace(question, alive=(0, 1), dead=(2,)), replace(question, alive=(2, 1, 0))):
        (refusal,) = relay.tell(1, other)
        assert isinstance(refusal, messages.Refusal)
    assert relay.tell(1, question) == [said]
    (refusal,) = relay.tell(1, secure_messages.Consents(question.session, ()))  # it has left the session
    assert isinstance(refusal, messages.Refusal)
    (refusal,) = relay.tell(2, replace(question, alive=(1, 2), dead=(0,)))
    assert isinstance(refusal, messages.Refusal)
    assert lab.state() == before


def test_a_question_with_too_few_signatures_is_not_answered() -> None:
    lab = Lab()
    relay = LyingRelay(lab)
    for _ in range(4):
        relay.step()
    consents = relay.words[1]
    for word in (replace(consents, signatures=consents.signatures[:2]), consents):
        (refusal,) = relay.tell(1, word)
        assert isinstance(refusal, messages.Refusal)


def test_every_session_of_an_attempt_gives_the_same_sum() -> None:
    lab = Lab()
    totals = []
    for _ in range(3):
        relay = LyingRelay(lab)
        for _ in range(5):
            relay.step()
        assert isinstance(relay.state, secure_server.Summed)
        totals.append(relay.state.total.tolist())
    assert totals[0] == totals[1] == totals[2]
    assert all(len(entries) == 1 for _, entries in lab.state())


def test_what_does_not_fit_changes_nothing() -> None:
    lab = Lab(attempts=2)
    first = LyingRelay(lab)
    for _ in range(4):
        first.step()
    assert [len(entries) for _, entries in lab.state()] == [0, 0, 0]
    unasked = lab.message(messages.Result, 1, 78, 1, bytes(16), bytes(64))
    early = lab.message(messages.Invite, 1, 79, 2)
    assert lab.heard(1, unasked) == []  # no sum before its own answer
    assert lab.heard(1, early)[0].why == "attempt 1 is under way: server 1 joins no other before it is made"
    first.step()
    far = lab.message(messages.Invite, 1, 80, 4)
    assert lab.heard(1, far)[0].why == "attempt 4 is further than 2 releases and 0 removals can lead"
    second = LyingRelay(lab, attempt=2)
    for _ in range(5):
        second.step()
    before = lab.state()
    assert [len(entries) for _, entries in before] == [2, 2, 2]
    invite = lab.message(messages.Invite, 1, 77, 2)
    for wrong, why in [
        (replace(invite, attempt=1), "attempt 1 is over: server 1 has taken part in attempt 2"),
        (replace(invite, attempt=3), "server 1 has answered as many releases as its plan and budget allow"),
        (replace(invite, epoch=1), "server 1 is at epoch 0, not 1"),
        (lab.message(messages.Told, 1, 78, 2, b"x"), "server 1 has lost the session"),
    ]:
        (refusal,) = lab.heard(1, wrong)
        assert isinstance(refusal, messages.Refusal)
        assert (refusal.why, refusal.run) == (why, wrong.run)
    assert lab.heard(1, replace(invite, plan=bytes([1]) * 32)) == []
    assert lab.heard(1, replace(invite, receiver=2)) == []
    assert lab.heard(1, lab.message(messages.Invite, 1, 1, 1)) == []  # late, of the first session
    lab.releases[1].receive(0.0, 2, messages.encode(invite))
    lab.releases[1].receive(0.0, 9, messages.encode(replace(invite, sender=9)))
    assert lab.queue == []
    total = lab.message(messages.Result, 1, 78, 2, bytes(16), bytes(64))
    for wrong in (replace(total, attempt=1), replace(total, total=bytes(8)), replace(total, epoch=1)):
        assert lab.heard(1, wrong) == []
    assert lab.told == []
    assert lab.state() == before


def test_an_attempt_of_another_epoch_is_not_joined_again() -> None:
    lab = Lab(P=4)
    LyingRelay(lab).step()
    before = lab.state()
    lab.epoch, lab.members = Epoch(PLAN, 1, (3,), ((0, bytes(64)),)), [0, 1, 2]
    for own in lab.releases:
        own.desk.epoch = lab.epoch
    (refusal,) = lab.heard(1, lab.message(messages.Invite, 1, 9, 1))
    assert refusal.why == "attempt 1 was begun in epoch 0, with other servers: begin another"
    assert not refusal.for_now
    removed = replace(lab.message(messages.Invite, 1, 9, 2), sender=3)
    assert lab.heard(1, removed) == []
    assert lab.state() == before


def test_open_flows_and_edges_adrift_refuse_an_invitation() -> None:
    lab = Lab()
    lab.books[1].open[2].update({3: Flow(), 2: Flow(applied=True)})
    lab.books[1].status[0] = Status.ADRIFT
    (refusal,) = lab.heard(1, lab.message(messages.Invite, 1, 9, 1))
    assert refusal.for_now
    assert refusal.why == (
        "server 1 awaits the balance of its edge with server 0, since its store was restored; "
        "server 1 has open flows with server 2: rounds 2, 3"
    )
    assert lab.stores[1].load().release == b""


def test_single_words_may_wrap() -> None:
    lab = Lab()
    for p, sign in enumerate((1, 1, -1)):
        lab.books[p].contribution = np.array([sign * (2**63 - 1), -sign * 2**62])
    relay = lab.release()
    assert relay.result is not None
    shares = sum(lab.shares.drawn[p, 1][0] for p in range(3))
    for found, expected in zip(relay.result.total, (2**63 - 1, -(2**62)), strict=True):
        share = int(shares[0] if expected > 0 else shares[1])
        assert (int(found) - expected - share) % 2**64 == 0


def _keep(sent: list[bytes], _: int, raw: bytes) -> None:
    sent.append(raw)


def test_a_file_keeps_the_words_and_their_payment(histories: Any, tmp_path: Any) -> None:
    plan = histories.make_plan(rounds=2)
    books, rounds = histories.make_books(), [histories._entry(plan, "skip", i) for i in (1, 2)]
    path, me = tmp_path / "store", histories.SERVER
    store = SqliteStore.create(path, plan=plan.text, server=me, dataset=histories.DATASET, books=books)
    store.commit(Changes(decided=2, entries=rounds))
    store.close()
    kept = []
    for _ in range(2):  # and once more after a start
        sent: list[bytes] = []
        with SqliteStore.open(path, plan, me) as store:
            part = Part(Terms(4, 0.5, QUANTUM, 3), lambda _: COST, 1, 1, server_identity(me))
            publics = tuple(server_identity(p).public for p in range(4))
            weights = dict.fromkeys(store.neighbours, 1)
            rules = Rules(me, bytes.fromhex(plan.hash), weights, 2, 4, 3, 2**62, publics, by_link=False)
            desk = a_desk(rules, store, partial(_keep, sent))
            Releases(desk, part).receive(0.0, 0, messages.encode(messages.Invite(rules.plan, 0, 0, me, bytes(16), 1)))
            assert isinstance(messages.decode(sent[0], 1000), messages.Said)
            kept.append(Kept.of(store.load()))
            assert len(list(store.entries())) == 2 + len(kept) - 1
            paid = [] if len(kept) == 1 else [("release", COST)]
            assert [(e.event.kind, e.event.cost) for e in store.entries()][2:] == paid
            if len(kept) == 1:  # as before its answer leaves
                Releases(desk, part).releaser.pay(5.0, 0)
    assert kept[0][:4] == (1, 0, 0, False)
    assert kept[1][:4] == (1, 0, 1, True)
    assert kept[0].words == kept[1].words


def test_too_few_servers_for_the_colluders() -> None:
    lab = Lab(P=3, colluders=2, removed=(2,))
    with pytest.raises(InputError, match="colluders"):
        lab.releases[0].begin(0.0)
    (refusal,) = lab.heard(1, lab.message(messages.Invite, 1, 9, 1))
    assert refusal.why.startswith("too few servers remain")


ANY = st.one_of(st.integers(-1, 2**33), st.binary(max_size=40), st.text(max_size=8), st.booleans(), st.none())


@settings(max_examples=more(25, 60))
@given(data=st.data())
def test_no_bytes_from_outside_change_the_books(data: st.DataObject) -> None:
    """Garbage, and messages of which anything but the right things was changed."""
    lab = Lab(attempts=1)
    LyingRelay(lab).step()
    before = lab.state()
    kind = data.draw(st.sampled_from(sorted(messages.KINDS)))
    small = st.integers(0, 3)
    fields = [
        st.sampled_from((PLAN, bytes([1]) * 32)),
        small,
        small,
        small,
        st.sampled_from([n.to_bytes(16, "little") for n in (1, 2)]),
        st.integers(1, 3) | ANY,
        *[st.binary(max_size=60) | ANY] * 9,
    ]
    n = len(messages.KINDS[kind].__dataclass_fields__)  # type: ignore[attr-defined]
    shaped = msgpack.packb([kind, *(data.draw(f) for f in fields[:n])])
    garbage = data.draw(st.binary(max_size=80))
    for raw in (shaped, b"\x97\xacRelease" + garbage, garbage, shaped[:-1]):
        for p in range(3):
            lab.releases[p].receive(0.0, data.draw(small), raw)
    lab.queue.clear()
    assert lab.state() == before
    assert lab.results() == [({}, [], {})] * 3
    relay = lab.release(2)
    assert relay.failed == ""


def test_messages_of_releases_and_of_the_exchange_are_told_apart() -> None:
    lab = Lab()
    ask = messages.encode(lab.message(messages.AskReady, 1, 0))
    assert messages.is_one(ask)
    assert messages.decode(ask, 200) == lab.message(messages.AskReady, 1, 0)
    assert not messages.is_one(sync.encode(sync.AskBalance(PLAN, 0, 1, 0, 5, 0)))
    assert not messages.is_one(b"")
    assert set(messages.KINDS).isdisjoint(sync.KINDS)


def test_a_relay_listens_to_its_own_run_and_to_those_who_take_part() -> None:
    lab = Lab(P=4, removed=(3,))
    relay: Relay = lab.releases[0].begin(0.0)
    ask = messages.decode(lab.queue[0][2], 10**9)
    say = replace(lab.message(messages.Ready, 0, 0, ROUNDS, ROUNDS, True, (), 0, 0, False, 1, "no"), sender=1)
    lab.releases[0].receive(0.0, 1, messages.encode(say))  # of another run
    lab.releases[0].receive(0.0, 3, messages.encode(replace(say, sender=3, run=ask.run)))  # removed
    assert not relay.done
    while relay.stage != "sum":
        sender, target, raw = lab.queue.pop(0)
        lab.releases[target].receive(0.0, sender, raw)
    late = replace(lab.message(messages.Refusal, 0, 0, 1, "no", False), sender=1, run=ask.run)
    lab.releases[0].receive(0.0, 1, messages.encode(late))
    assert not relay.done
    lab.deliver()
    assert relay.result is not None
