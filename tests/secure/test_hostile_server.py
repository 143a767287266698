"""A server that breaks the rules, against the client: each rule a test, and every abort is the end."""

from __future__ import annotations

import copy
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import chain, combinations, product
from typing import Any

import numpy as np
import pytest

import sessions
from confide.base.errors import InputError
from confide.secure import client, masks, server
from confide.secure.client import Advertised, Answered, Consented, Sent, Shared
from confide.secure.keys import Identity, KeyPair, pair_mask_key, self_mask_key
from confide.secure.messages import (
    UNSIGNED,
    Advertise,
    Answer,
    Consent,
    Consents,
    Entry,
    FromServer,
    Inbox,
    Masked,
    Question,
    Roster,
    Shares,
)
from confide.secure.parameters import Parameters
from confide.secure.session import RefusedError, Task, Why, advertisement, consent
from sessions import IDENTITIES, Drops, Entropy, Trace, a_member, a_task, snapshot, updates

CURIOUS, ACTIVE = Parameters(7, 6, 5, 5, 1), Parameters(7, 6, 5, 5, 1, "active")
SPARSE, SPARSE_ACTIVE = Parameters(8, 4, 3, 5, 0), Parameters(8, 4, 3, 5, 0, "active")
both = pytest.mark.parametrize("parameters", [CURIOUS, ACTIVE], ids=["curious", "active"])
sparse = pytest.mark.parametrize("parameters", [SPARSE, SPARSE_ACTIVE], ids=["curious", "active"])
STRANGER = Identity.of(bytes(range(32)))
ROUND = 5
TWO_DROP: Drops = ((5, Masked), (6, Shares))  # 5 shared and sent no update, 6 is on the roster and never shared


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def begin(task: Task, i: int, draw: str = "a") -> tuple[Advertised, Advertise]:
    return client.start(task, a_member(task, i), updates(task)[i], 0, Entropy(draw, i))


@cache
def play(task: Task, drops: Drops = TWO_DROP, draw: str = "a") -> Trace:
    """An honest session; states are immutable, so tests share it."""
    return sessions.play(task, drops, draw)


def aborts(state: client.State, message: FromServer, why: Why, answered: int = 0) -> None:
    """The client gives nothing away, names the reason, and never speaks again."""
    before = snapshot(state)
    after, reply = client.receive(state, message, answered)
    assert isinstance(after, client.Aborted), f"{after} said {type(reply).__name__}"
    assert (after.why, reply) == (why, None)
    assert snapshot(state) == before
    end = snapshot(after)
    for further in (message, *play(state.task).every_told()):
        with pytest.raises(RefusedError):
            client.receive(after, further, answered)
    assert snapshot(after) == end


def refuses(state: client.State, message: FromServer, match: str | None = None) -> None:
    """Nothing has changed."""
    before = snapshot(state)
    with pytest.raises(RefusedError, match=match):
        client.receive(state, message, 0)
    assert snapshot(state) == before


def test_the_honest_sessions_here_end_with_a_sum() -> None:
    for task in (a_task(CURIOUS), a_task(ACTIVE)):
        end = play(task).end
        assert isinstance(end, server.Summed)
        assert end.survivors == (0, 1, 2, 3, 4)
        assert end.total.tolist() == [100, 105, 110]
    for task in (a_task(SPARSE), a_task(SPARSE_ACTIVE)):
        assert isinstance(play(task, ()).end, server.Summed)


# --- the question: who is in the sum and who is not -----------------------------------------------------------------


def asked(trace: Trace, alive: tuple[int, ...], dead: tuple[int, ...]) -> tuple[Sent, Question]:
    return trace.clients[Sent][0], Question(trace.clients[Sent][0].session.id, alive, dead)


@both
@pytest.mark.parametrize("twice", range(6))
def test_a_client_is_listed_alive_and_dead(parameters: Parameters, twice: int) -> None:
    alive, dead = sorted({0, 1, 2, 3, 4, twice}), sorted({5, twice})
    aborts(*asked(play(a_task(parameters)), tuple(alive), tuple(dead)), Why.ALIVE_AND_DEAD)


@both
@pytest.mark.parametrize(
    ("alive", "dead"),
    [((0, 1, 1, 2, 3, 4), (5,)), ((0, 1, 2, 3, 4), (5, 5)), ((0, 0, 1, 2, 3, 4), (5,)), ((0, 1, 2, 3, 3), (4, 5))],
)
def test_a_client_is_listed_twice(parameters: Parameters, alive: tuple[int, ...], dead: tuple[int, ...]) -> None:
    aborts(*asked(play(a_task(parameters)), alive, dead), Why.ALIVE_AND_DEAD)


@both
@pytest.mark.parametrize(("alive", "dead"), [((0, 1, 2, 3), (4, 5)), ((0,), (1, 2, 3, 4, 5))])
def test_the_survivors_are_fewer_than_the_quorum(
    parameters: Parameters, alive: tuple[int, ...], dead: tuple[int, ...]
) -> None:
    aborts(*asked(play(a_task(parameters)), alive, dead), Why.TOO_FEW_UPDATES)


@both
@pytest.mark.parametrize(("alive", "dead"), [((1, 2, 3, 4, 5), (0,)), ((1, 2, 3, 4, 5), ()), ((), (0, 1, 2, 3, 4, 5))])
def test_the_sum_is_taken_without_the_client(
    parameters: Parameters, alive: tuple[int, ...], dead: tuple[int, ...]
) -> None:
    aborts(*asked(play(a_task(parameters)), alive, dead), Why.LEFT_OUT)


@both
@pytest.mark.parametrize(
    ("alive", "dead"), [((0, 1, 2, 3, 4), ()), ((0, 1, 2, 3, 5), ()), ((0, 2, 3, 4, 5), ()), ((0,), ())]
)
def test_a_neighbour_who_shared_is_left_out(
    parameters: Parameters, alive: tuple[int, ...], dead: tuple[int, ...]
) -> None:
    aborts(*asked(play(a_task(parameters)), alive, dead), Why.BAD_QUESTION)


@both
@pytest.mark.parametrize("never", [6, 7, 77])
def test_one_who_never_shared_is_named(parameters: Parameters, never: int) -> None:
    trace = play(a_task(parameters))
    aborts(*asked(trace, (0, 1, 2, 3, 4), (5, never)), Why.BAD_QUESTION)
    aborts(*asked(trace, (0, 1, 2, 3, 4, never), (5,)), Why.BAD_QUESTION)


@sparse
def test_on_the_sparse_graph_a_neighbour_is_left_out_or_a_stranger_is_named(parameters: Parameters) -> None:
    trace = play(a_task(parameters), ())
    state, everyone = trace.clients[Sent][0], tuple(range(8))
    for j in state.session.neighbours(0):
        rest = tuple(i for i in everyone if i != j)
        aborts(state, Question(state.session.id, rest, ()), Why.BAD_QUESTION)
    aborts(state, Question(state.session.id, (*everyone, 8), ()), Why.BAD_QUESTION)
    aborts(state, Question(state.session.id, everyone, (8,)), Why.BAD_QUESTION)


@both
def test_of_all_questions_only_the_possible_ones_are_answered(parameters: Parameters) -> None:
    """Each of seven clients in neither list, in one, in the other or in both: 4^7 questions, judged independently."""
    trace = play(a_task(parameters))
    state = trace.clients[Sent][0]
    good = 0
    for lists in product(("", "a", "d", "ad"), repeat=7):
        alive = tuple(i for i, where in enumerate(lists) if "a" in where)
        dead = tuple(i for i, where in enumerate(lists) if "d" in where)
        after, reply = client.receive(state, Question(state.session.id, alive, dead), 0)
        # those who shared are 0 to 5, each in one list; 0 asks for itself; 6 may be in none
        possible = all(len(x) == 1 for x in lists[:6]) and lists[0] == "a" and lists[6] == ""
        if possible and len(alive) >= 5:
            good += 1
            assert isinstance(reply, Answer if parameters is CURIOUS else Consent)
            if isinstance(reply, Answer):
                assert ([j for j, _ in reply.seeds], [j for j, _ in reply.keys]) == (list(alive), list(dead))
        else:
            assert isinstance(after, client.Aborted)
            assert reply is None
    assert good == 1 + 5


# --- never twice ----------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("other", [False, True])
def test_a_second_question_comes_in_the_same_session(parameters: Parameters, other: bool) -> None:
    trace = play(a_task(parameters))
    first = trace.told[Question][0]
    second = replace(first, alive=(0, 1, 2, 3, 4, 5), dead=()) if other else first
    if parameters is ACTIVE:
        aborts(trace.clients[Consented][0], second, Why.ASKED_TWICE)
    aborts(trace.clients[Answered][0], second, Why.ASKED_TWICE)
    aborts(trace.clients[Answered][0], second, Why.ASKED_TWICE, answered=ROUND)


def test_consents_that_come_again_get_no_second_answer() -> None:
    trace = play(a_task(ACTIVE))
    refuses(trace.clients[Answered][0], trace.told[Consents][0])


def last_question(trace: Trace) -> tuple[Sent, FromServer]:
    """The state in which a client would answer, and the message it would answer."""
    if Consented in trace.clients:
        return trace.clients[Consented][0], trace.told[Consents][0]
    return trace.clients[Sent][0], trace.told[Question][0]


@both
def test_two_sessions_of_a_round_get_one_answer(parameters: Parameters) -> None:
    task = a_task(parameters)
    (one, ask), (other, ask_again) = (last_question(play(task, draw=draw)) for draw in ("a", "b"))
    assert one.session.id != other.session.id
    assert isinstance(client.receive(one, ask, 0)[1], Answer)
    assert isinstance(client.receive(other, ask_again, 0)[1], Answer)  # but for the record, either would do
    for state, question in ((one, ask), (other, ask_again)):
        assert isinstance(client.receive(state, question, ROUND - 1)[1], Answer)
        aborts(state, question, Why.ANSWERED_BEFORE, answered=ROUND)
        aborts(state, question, Why.ANSWERED_BEFORE, answered=ROUND + 3)


@both
def test_a_round_that_was_answered_is_not_begun_again_after_a_restart(parameters: Parameters) -> None:
    task = a_task(parameters)
    words = np.zeros(3, "<u4")
    for answered in (ROUND, ROUND + 1, 2**32):
        with pytest.raises(RefusedError, match="answered before"):
            client.start(task, a_member(task, 0), words, answered)
    client.start(task, a_member(task, 0), words, ROUND - 1)
    client.start(a_task(parameters, round=ROUND + 1), a_member(task, 0), words, ROUND)


# --- the roster -----------------------------------------------------------------------------------------------------


def roster_of(trace: Trace) -> tuple[Advertised, dict[int, Entry]]:
    return trace.clients[Advertised][0], {e.client: e for e in trace.told[Roster][0].entries}


def listing(state: Advertised, entries: dict[int, Entry] | list[Entry]) -> Roster:
    return Roster(state.task.digest, tuple(entries.values() if isinstance(entries, dict) else entries))


def fresh(task: Task, i: int, identity: Identity | None = None, draw: object = "fresh") -> Entry:
    """Keys that the server made up, signed by whom it can."""
    keys = (KeyPair.of(digest(f"{draw} {use} {i}")).public for use in ("mask", "channel"))
    entry = Entry(i, *keys, UNSIGNED)
    return entry if identity is None else entry._replace(signature=identity.sign(advertisement(task, entry)))


@both
@pytest.mark.parametrize("swapped", ["mask_key", "channel_key"])
def test_the_own_keys_are_swapped(parameters: Parameters, swapped: str) -> None:
    state, entries = roster_of(play(a_task(parameters)))
    other = getattr(fresh(state.task, 0), swapped)
    aborts(state, listing(state, entries | {0: entries[0]._replace(**{swapped: other})}), Why.NOT_LISTED)


@both
def test_the_client_is_not_on_the_roster(parameters: Parameters) -> None:
    state, entries = roster_of(play(a_task(parameters)))
    mine = entries.pop(0)
    aborts(state, listing(state, entries), Why.NOT_LISTED)
    aborts(state, listing(state, {}), Why.NOT_LISTED)
    aborts(state, listing(state, entries | {7: mine._replace(client=7)}), Why.NOT_LISTED)


@both
def test_the_roster_is_too_small_or_too_large(parameters: Parameters) -> None:
    state, entries = roster_of(play(a_task(parameters)))
    few = [entries[i] for i in range(4)]
    aborts(state, listing(state, few), Why.BAD_ROSTER)
    after, _ = client.receive(state, listing(state, [*few, entries[4]]), 0)
    assert isinstance(after, Shared)
    sybil = fresh(state.task, 7, IDENTITIES[7])
    aborts(state, listing(state, entries | {7: sybil}), Why.BAD_ROSTER)


@both
@pytest.mark.parametrize("more", [True, False], ids=["besides", "instead of another"])
def test_a_client_is_on_the_roster_twice(parameters: Parameters, more: bool) -> None:
    state, entries = roster_of(play(a_task(parameters)))
    rest = [e for i, e in entries.items() if more or i != 6]
    for i in (0, 1):
        aborts(state, listing(state, [*rest, entries[i]]), Why.BAD_ROSTER)
        for order in (1, -1):  # with other keys; of its own it may read either pair
            twice = listing(state, [*rest, fresh(state.task, i, IDENTITIES[i])][::order])
            after, reply = client.receive(state, twice, 0)
            assert isinstance(after, client.Aborted)
            assert after.why is Why.BAD_ROSTER or (i == 0 and after.why is Why.NOT_LISTED)
            assert reply is None


@both
def test_a_key_is_on_the_roster_twice(parameters: Parameters) -> None:
    state, entries = roster_of(play(a_task(parameters)))
    one, two, mine = entries[1], entries[2], entries[0]
    for bad in (
        two._replace(mask_key=one.mask_key),
        two._replace(channel_key=one.channel_key),
        two._replace(mask_key=one.channel_key),
        two._replace(mask_key=two.channel_key),
        two._replace(mask_key=mine.mask_key),
        two._replace(channel_key=mine.mask_key),
    ):
        signed = bad._replace(signature=IDENTITIES[2].sign(advertisement(state.task, bad)))  # 2 is in on it
        aborts(state, listing(state, entries | {2: signed}), Why.BAD_ROSTER)


def relay(state: Shared, sealed: dict[int, bytes]) -> Inbox:
    """The server passes on what it has, under whatever session the client believes to be in."""
    return Inbox(state.session.id, tuple(sealed.items()))


def goes_without(state: Shared, inbox: Inbox, *unopened: int) -> Sent:
    """What cannot be opened is not held; the masks are those that its sender has as well."""
    before = snapshot(state)
    after, reply = client.receive(state, inbox, 0)
    assert isinstance(after, Sent)
    assert after.unopened == set(unopened)
    assert after.held.keys() == {state.me.client, *(j for j, _ in inbox.sealed)} - set(unopened)
    assert isinstance(reply, Masked)
    words = np.frombuffer(reply.words, state.task.dtype).copy()
    agreed = {j: state.mask.agree([state.session.entries[j].mask_key])[0] for j, _ in inbox.sealed}
    me, session = state.me.client, state.session.id
    keys = {j: pair_mask_key(secret, session, me, j) for j, secret in agreed.items()}
    own, above = self_mask_key(state.seed, session, me), [key for j, key in keys.items() if j > me]
    masks.apply(words, [key for j, key in keys.items() if j < me], [own, *above])
    assert words.tolist() == state.words.tolist()
    assert snapshot(state) == before
    return after


def shares_from(said: dict[int, Shares], to: int) -> dict[int, bytes]:
    return {i: sealed for i, message in said.items() for j, sealed in message.sealed if j == to}


@pytest.mark.parametrize("change", ["swap", "mask", "channel", "both"])
def test_other_clients_keys_are_swapped_by_a_curious_server(change: str) -> None:
    """Whoever sees other keys is in another session, and opens nothing that was sealed in this one."""
    trace = play(a_task(CURIOUS), ())
    state, entries = roster_of(trace)
    made_up = fresh(state.task, 1)
    changed = {
        "swap": {1: entries[2]._replace(client=1), 2: entries[1]._replace(client=2)},
        "mask": {1: entries[1]._replace(mask_key=made_up.mask_key)},
        "channel": {1: entries[1]._replace(channel_key=made_up.channel_key)},
        "both": {1: made_up},
    }[change]
    deceived, said = client.receive(state, listing(state, entries | changed), 0)
    assert isinstance(said, Shares)
    aborts(deceived, relay(deceived, shares_from(trace.said[Shares], 0)), Why.TOO_FEW_SHARED)
    for i in range(1, 7):  # and the others cannot open what it sealed
        honest = trace.clients[Shared][i]
        theirs = shares_from(trace.said[Shares], i) | {0: dict(said.sealed)[i]}
        goes_without(honest, relay(honest, theirs), 0)
        del theirs[0]
        assert isinstance(client.receive(honest, relay(honest, theirs), 0)[1], Masked)


@pytest.mark.parametrize("signer", [None, STRANGER, IDENTITIES[2]], ids=["unsigned", "stranger", "another client"])
@pytest.mark.parametrize("swapped", range(1, 7))
def test_other_clients_keys_are_swapped_by_an_active_server(swapped: int, signer: Identity | None) -> None:
    state, entries = roster_of(play(a_task(ACTIVE)))
    signer = IDENTITIES[3] if swapped == 2 and signer is IDENTITIES[2] else signer
    made_up = fresh(state.task, swapped, signer)
    aborts(state, listing(state, entries | {swapped: made_up}), Why.BAD_SIGNATURE)
    old = entries[swapped].signature  # as good as for the true keys, but not for these
    for key in ("mask_key", "channel_key"):
        half = entries[swapped]._replace(**{key: getattr(made_up, key)})
        assert half.signature == old
        aborts(state, listing(state, entries | {swapped: half}), Why.BAD_SIGNATURE)


@pytest.mark.parametrize("i", range(7))
def test_a_signature_is_missing(i: int) -> None:
    state, entries = roster_of(play(a_task(ACTIVE)))
    good = entries[i].signature
    for bad in (UNSIGNED, bytes(64), good[:-1], good[:32], bytes([good[0] ^ 1]) + good[1:]):
        aborts(state, listing(state, entries | {i: entries[i]._replace(signature=bad)}), Why.BAD_SIGNATURE)


def test_entries_trade_places() -> None:
    state, entries = roster_of(play(a_task(ACTIVE)))
    swap = {1: entries[2]._replace(client=1), 2: entries[1]._replace(client=2)}
    aborts(state, listing(state, entries | swap), Why.BAD_SIGNATURE)


def test_an_unknown_client_is_on_the_roster() -> None:
    state, entries = roster_of(play(a_task(ACTIVE)))
    del entries[6]
    for identity in (STRANGER, IDENTITIES[6], None):
        aborts(state, listing(state, entries | {77: fresh(state.task, 77, identity)}), Why.BAD_SIGNATURE)


OTHERS: dict[str, dict[str, Any]] = {
    "model": {"model": digest("another model")},
    "plan": {"plan": digest("another plan")},
    "round": {"round": ROUND - 1},
    "unit": {"unit": 3},
    "length": {"length": 4},
    "ring": {"ring_bits": 64},
}
RULES = {"quorum": {"quorum": 6}, "threshold": {"threshold": 6, "quorum": 6}, "corrupted": {"corrupted": 0}}


def another(parameters: Parameters, what: str) -> Task:
    if what in RULES:
        return a_task(replace(parameters, **RULES[what]))
    return a_task(parameters, **OTHERS[what])


each_difference = pytest.mark.parametrize("what", [*OTHERS, *RULES])


@both
@each_difference
def test_a_roster_of_another_task_is_refused(parameters: Parameters, what: str) -> None:
    state, _ = begin(another(parameters, what), 0)
    refuses(state, play(a_task(parameters)).told[Roster][0], "another task, round, model or plan")


@each_difference
def test_signed_keys_of_another_task_are_noticed(what: str) -> None:
    """Old keys, with the signature that they had."""
    state, entries = roster_of(play(a_task(ACTIVE)))
    old = begin(another(ACTIVE, what), 1, "old")[1].entry
    assert old.signature != UNSIGNED
    aborts(state, listing(state, entries | {1: old}), Why.BAD_SIGNATURE)


@both
@each_difference
def test_different_clients_are_handed_different_models_or_rules(parameters: Parameters, what: str) -> None:
    """The server tells each client what it wants to hear; 0 to 2 have one task, 3 to 6 the other."""
    tasks = {i: a_task(parameters) if i < 3 else another(parameters, what) for i in range(7)}
    begun = {i: begin(task, i) for i, task in tasks.items()}
    entries = tuple(said.entry for _, said in begun.values())
    rosters = {i: Roster(task.digest, entries) for i, task in tasks.items()}
    if parameters is ACTIVE:
        for i, (state, _) in begun.items():
            aborts(state, rosters[i], Why.BAD_SIGNATURE)
        return
    shared = {i: client.receive(state, rosters[i], 0) for i, (state, _) in begun.items()}
    assert len({state.session.id for state, _ in shared.values()}) == 2
    said = {i: message for i, (_, message) in shared.items()}
    for i, (state, _) in shared.items():
        theirs = shares_from(said, i)
        aborts(state, relay(state, theirs), Why.TOO_FEW_SHARED)
        alike = {j: sealed for j, sealed in theirs.items() if tasks[j] == tasks[i]}
        aborts(state, relay(state, alike), Why.TOO_FEW_SHARED)  # four of a kind are below the threshold


SMALL_ORDER = [  # all encodings of points of X25519 whose agreement is zero
    0,
    1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
    2**255 - 20,
    2**255 - 19,
    2**255 - 18,
]


@both
@pytest.mark.parametrize("point", SMALL_ORDER)
def test_a_channel_key_admits_no_secret(parameters: Parameters, point: int) -> None:
    state, entries = roster_of(play(a_task(parameters)))
    bad = entries[1]._replace(channel_key=point.to_bytes(32, "little"))
    signed = bad._replace(signature=IDENTITIES[1].sign(advertisement(state.task, bad)))  # 1 is in on it
    aborts(state, listing(state, entries | {1: signed}), Why.BAD_KEY)


@both
@pytest.mark.parametrize("point", SMALL_ORDER)
def test_a_mask_key_admits_no_secret(parameters: Parameters, point: int) -> None:
    """Everybody would know the mask with this neighbour; it shares as it should, so only its key gives it away."""
    task = a_task(parameters)
    begun = {i: begin(task, i)[0] for i in range(7)}
    accomplice = replace(begun[1], mask=KeyPair(begun[1].mask.secret, point.to_bytes(32, "little")))
    entries = {i: Entry(i, s.mask.public, s.channel.public, UNSIGNED) for i, s in (begun | {1: accomplice}).items()}
    signed = {i: e._replace(signature=IDENTITIES[i].sign(advertisement(task, e))) for i, e in entries.items()}
    roster = Roster(task.digest, tuple(signed.values()))
    shared = {i: client.receive(state, roster, 0) for i, state in (begun | {1: accomplice}).items()}
    state, said = shared[0][0], {i: message for i, (_, message) in shared.items() if i}
    aborts(state, relay(state, shares_from(said, 0)), Why.BAD_KEY)
    del said[1]
    assert isinstance(client.receive(state, relay(state, shares_from(said, 0)), 0)[1], Masked)


def test_the_twin_of_a_key_does_not_cancel_its_mask() -> None:
    """A key has a second spelling, with its idle top bit set. 2 lists that of 0: the client between them, which
    subtracts one mask and adds the other, must not be left with none."""
    task = a_task(Parameters(3, 2, 2, 2, 0))
    begun = {i: begin(task, i)[0] for i in range(3)}
    twin = begun[0].mask.public[:31] + bytes([begun[0].mask.public[31] | 0x80])
    begun[2] = replace(begun[2], mask=KeyPair(begun[2].mask.secret, twin))
    entries = tuple(Entry(i, s.mask.public, s.channel.public, UNSIGNED) for i, s in begun.items())
    shared = {i: client.receive(state, Roster(task.digest, entries), 0) for i, state in begun.items()}
    state = shared[1][0]
    _, said = client.receive(state, relay(state, shares_from({i: m for i, (_, m) in shared.items()}, 1)), 0)
    words = np.frombuffer(said.words, task.dtype).copy()
    masks.apply(words, [], [self_mask_key(state.seed, state.session.id, 1)])
    assert not set(words.tolist()) & set(state.words.tolist())


# --- sealed shares --------------------------------------------------------------------------------------------------


def opened(trace: Trace, to: int = 0) -> tuple[Shared, dict[int, bytes]]:
    return trace.clients[Shared][to], dict(trace.told[Inbox][to].sealed)


@both
def test_sealed_shares_are_swapped_between_senders(parameters: Parameters) -> None:
    state, sealed = opened(play(a_task(parameters)))
    goes_without(state, relay(state, sealed | {1: sealed[2]}), 1)
    aborts(state, relay(state, sealed | {1: sealed[2], 2: sealed[1]}), Why.TOO_FEW_SHARED)


@both
def test_sealed_shares_are_given_to_another_or_sent_back(parameters: Parameters) -> None:
    trace = play(a_task(parameters))
    state, sealed = opened(trace)
    for_another = dict(trace.said[Shares][1].sealed)[2]
    goes_without(state, relay(state, sealed | {1: for_another}), 1)
    sent_back = dict(trace.said[Shares][0].sealed)[1]
    goes_without(state, relay(state, sealed | {1: sent_back}), 1)


@both
def test_sealed_shares_are_replayed_from_another_session(parameters: Parameters) -> None:
    """Of the same clients: another draw, another round, and another roster with the very same keys."""
    task = a_task(parameters)
    state, sealed = opened(play(task))
    for old in (play(task, draw="b"), play(a_task(parameters, round=ROUND + 1)), play(task, ((6, Advertise),))):
        assert old.clients[Sent][0].session.id != state.session.id
        goes_without(state, relay(state, sealed | {1: opened(old)[1][1]}), 1)
        aborts(state, relay(state, opened(old)[1]), Why.TOO_FEW_SHARED)


@both
def test_a_sealed_share_is_tampered_with(parameters: Parameters) -> None:
    state, sealed = opened(play(a_task(parameters)))
    for place in range(len(sealed[1])):
        bad = bytearray(sealed[1])
        bad[place] ^= 1 << (place % 8)
        goes_without(state, relay(state, sealed | {1: bytes(bad)}), 1)
    goes_without(state, relay(state, sealed | {1: bytes(len(sealed[1]))}), 1)


@both
def test_who_sealed_what_cannot_be_opened_is_in_the_question_and_gets_no_share(parameters: Parameters) -> None:
    """Its masks are in the update, so that a question without it would not give a sum."""
    state, sealed = opened(play(a_task(parameters)))
    sent = goes_without(state, relay(state, sealed | {1: bytes(len(sealed[1]))}), 1)
    without = Question(state.session.id, (0, 2, 3, 5, 6), ())
    aborts(sent, without, Why.BAD_QUESTION)
    alive, dead = (0, 2, 3, 4, 5), (1,)
    after, said = client.receive(sent, Question(state.session.id, alive, dead), 0)
    if parameters is ACTIVE:
        consents = tuple((i, IDENTITIES[i].sign(consent(state.session.id, alive, dead))) for i in alive)
        after, said = client.receive(after, Consents(state.session.id, consents), 0)
    assert isinstance(after, Answered)
    assert isinstance(said, Answer)
    assert [j for j, _ in said.seeds] == list(alive)
    assert said.keys == ()


@both
def test_a_sealed_share_comes_twice_or_from_nobody(parameters: Parameters) -> None:
    state, sealed = opened(play(a_task(parameters)))
    for more in ((1, sealed[1]), (0, sealed[1]), (7, sealed[1]), (77, sealed[1])):
        aborts(state, Inbox(state.session.id, (*sealed.items(), more)), Why.BAD_SHARE)


@sparse
def test_a_sealed_share_is_not_from_a_neighbour(parameters: Parameters) -> None:
    state, sealed = opened(play(a_task(parameters), ()))
    strangers = set(range(8)) - set(state.session.neighbours(0))
    assert len(strangers) == 4
    for j in strangers:  # itself among them: on the sparse graph nobody holds a share of its own
        aborts(state, relay(state, sealed | {j: sealed[state.session.neighbours(0)[0]]}), Why.BAD_SHARE)


@both
def test_too_few_shares_are_passed_on(parameters: Parameters) -> None:
    """Five make a secret, and the client holds one of its own."""
    state, sealed = opened(play(a_task(parameters)))
    assert list(sealed) == [1, 2, 3, 4, 5]
    aborts(state, relay(state, {j: sealed[j] for j in (1, 2, 3)}), Why.TOO_FEW_SHARED)
    aborts(state, relay(state, {}), Why.TOO_FEW_SHARED)
    assert isinstance(client.receive(state, relay(state, {j: sealed[j] for j in (1, 2, 3, 4)}), 0)[1], Masked)


@sparse
def test_too_few_neighbours_shared(parameters: Parameters) -> None:
    state, sealed = opened(play(a_task(parameters), ()))
    first, second, third, _ = sealed
    aborts(state, relay(state, {j: sealed[j] for j in (first, second)}), Why.TOO_FEW_SHARED)
    assert isinstance(client.receive(state, relay(state, {j: sealed[j] for j in (first, second, third)}), 0)[1], Masked)


# --- consents -------------------------------------------------------------------------------------------------------


def consents_of(trace: Trace) -> tuple[Consented, dict[int, bytes]]:
    return trace.clients[Consented][0], dict(trace.told[Consents][0].signatures)


def gathered(state: Consented, signatures: dict[int, bytes]) -> Consents:
    return Consents(state.session.id, tuple(signatures.items()))


def test_too_few_consent() -> None:
    state, signatures = consents_of(play(a_task(ACTIVE)))
    assert list(signatures) == [0, 1, 2, 3, 4]
    for i in signatures:
        aborts(state, gathered(state, {j: s for j, s in signatures.items() if j != i}), Why.TOO_FEW_CONSENTS)
    aborts(state, gathered(state, {}), Why.TOO_FEW_CONSENTS)


def test_consents_of_those_who_hold_no_share_do_not_count() -> None:
    state, signatures = consents_of(play(a_task(SPARSE_ACTIVE), ()))
    near = state.session.neighbours(0)
    far = {i: s for i, s in signatures.items() if i not in near[:2]}
    assert len(far) == 6  # many, but only two hold shares of client 0's secrets
    aborts(state, gathered(state, far), Why.TOO_FEW_CONSENTS)
    assert isinstance(client.receive(state, gathered(state, {i: signatures[i] for i in near[:3]}), 0)[1], Answer)


def test_a_consent_is_listed_twice() -> None:
    state, signatures = consents_of(play(a_task(ACTIVE)))
    for some in (signatures, {i: signatures[i] for i in (0, 1, 2, 3)}):
        aborts(state, Consents(state.session.id, (*some.items(), (1, signatures[1]))), Why.BAD_SIGNATURE)


@pytest.mark.parametrize("i", [5, 6, 7, 77])
def test_a_consent_is_of_one_who_is_not_in_the_sum(i: int) -> None:
    """Its signature is true, but it did not survive; to have it counted would let the dead outvote the living."""
    state, signatures = consents_of(play(a_task(ACTIVE)))
    statement = consent(state.session.id, state.question.alive, state.question.dead)
    extra = IDENTITIES.get(i, STRANGER).sign(statement)
    aborts(state, gathered(state, signatures | {i: extra}), Why.BAD_SIGNATURE)
    swapped = {j: s for j, s in signatures.items() if j != 1} | {i: extra}
    aborts(state, gathered(state, swapped), Why.BAD_SIGNATURE)


def test_a_consent_is_forged_or_to_something_else() -> None:
    trace, task = play(a_task(ACTIVE)), a_task(ACTIVE)
    state, signatures = consents_of(trace)
    alive, dead = state.question.alive, state.question.dead
    other_session = consents_of(play(task, draw="b"))[1]
    forged = {
        "zero": bytes(64),
        "by a stranger": STRANGER.sign(consent(state.session.id, alive, dead)),
        "by another client": IDENTITIES[2].sign(consent(state.session.id, alive, dead)),
        "to another question": IDENTITIES[1].sign(consent(state.session.id, (*alive, *dead), ())),
        "to other dead": IDENTITIES[1].sign(consent(state.session.id, alive, ())),
        "to the lists in turn": IDENTITIES[1].sign(consent(state.session.id, dead, alive)),
        "to another session": other_session[1],
        "to the keys": trace.said[Advertise][1].entry.signature,
        "with one bit changed": signatures[1][:-1] + bytes([signatures[1][-1] ^ 1]),
    }
    for signature in forged.values():
        aborts(state, gathered(state, signatures | {1: signature}), Why.BAD_SIGNATURE)
    aborts(state, gathered(state, signatures | {0: other_session[0]}), Why.BAD_SIGNATURE)  # its own, an old one


# --- different survivors to different clients -----------------------------------------------------------------------


def questions(session: bytes, n: int, quorum: int) -> list[Question]:
    """Everything that an honest client might accept when all have shared."""
    found = chain.from_iterable(combinations(range(n), size) for size in range(quorum, n + 1))
    return [Question(session, alive, tuple(set(range(n)) - set(alive))) for alive in found]


def unchecked(parameters: Parameters, threshold: int) -> Parameters:
    """With a lower threshold and quorum than `Parameters` would admit."""
    lowered = copy.copy(parameters)
    object.__setattr__(lowered, "threshold", threshold)
    object.__setattr__(lowered, "quorum", threshold)
    return lowered


class Lies:
    """All that a server can try with one session: each honest client gets a question of its own.

    The corrupted clients sign whatever they are asked to and hand over all shares that they hold. An honest client's
    reply depends on its own question and the consents it is shown, so each is computed once.
    """

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self.n, self.bad = parameters.clients, range(parameters.clients - parameters.corrupted, parameters.clients)
        self.honest = range(self.n - parameters.corrupted)
        sent = play(a_task(parameters), ()).clients[Sent]
        self.questions = questions(sent[0].session.id, self.n, parameters.quorum)
        self.asked = [
            {i: client.receive(sent[i], question, 0) for i in self.honest if i in question.alive}
            for question in self.questions
        ]
        self.replies: dict[tuple[int, int, frozenset[int]], Answer | None] = {}

    def answer(self, i: int, q: int, signers: frozenset[int]) -> Answer | None:
        """Of client i, when these honest clients were asked the same and all consents are shown that there are."""
        if (i, q, signers) not in self.replies:
            state, question = self.asked[q][i][0], self.questions[q]
            statement = consent(question.session, question.alive, question.dead)
            signatures = {j: self.asked[q][j][1].signature for j in signers}
            signatures |= {j: IDENTITIES[j].sign(statement) for j in self.bad if j in question.alive}
            after, reply = client.receive(state, gathered(state, signatures), 0)
            assert isinstance(after, Answered if reply else client.Aborted)
            self.replies[i, q, signers] = reply
        return self.replies[i, q, signers]

    def groups(self) -> list[tuple[int, frozenset[int], dict[int, Answer]]]:
        """Every question, everybody who might be asked it alone or together, and who of them answers."""
        found = []
        for q, asked in enumerate(self.asked):
            for group in chain.from_iterable(combinations(asked, size) for size in range(1, len(asked) + 1)):
                answers = {i: self.answer(i, q, frozenset(group)) for i in group}
                found.append((q, frozenset(group), {i: a for i, a in answers.items() if a is not None}))
        return found

    def every_outcome(self) -> Iterator[dict[int, Answer]]:
        """Answers of the honest clients, for every way to hand out the questions.

        A client's answer hangs on who else is asked the same, and not on what the others are asked: all ways are told
        by the groups that answer, with nobody in two of them.
        """

        def together(left: list[Any], answers: dict[int, Answer], taken: frozenset[int]) -> Iterator[dict[int, Answer]]:
            yield answers
            for n, (q, group, found) in enumerate(left, 1):
                if not group & taken:
                    others = [other for other in left[n:] if other[0] != q]
                    yield from together(others, answers | found, taken | group)

        yield from together([group for group in self.groups() if group[2]], {}, frozenset())

    def exposed(self, answers: dict[int, Answer]) -> list[int]:
        """Clients of whom the server can put together both the seed and the key."""
        wanted = self.parameters.threshold - len(self.bad)  # the corrupted have shares of both
        seeds = Counter(j for a in answers.values() for j, _ in a.seeds)
        keys = Counter(j for a in answers.values() for j, _ in a.keys)
        return [j for j in range(self.n) if seeds[j] >= wanted and keys[j] >= wanted]


@pytest.mark.parametrize(
    "parameters",
    [
        Parameters(4, 3, 3, 3, 0, "active"),  # in each, one or none but the client itself may be left out
        Parameters(4, 3, 3, 3, 1, "active"),
        Parameters(5, 4, 4, 4, 0, "active"),
        Parameters(5, 4, 4, 4, 1, "active"),
        Parameters(5, 4, 4, 4, 2, "active"),
        Parameters(6, 5, 5, 5, 0, "active"),
        Parameters(6, 5, 5, 5, 1, "active"),
        Parameters(6, 5, 5, 5, 3, "active"),
        unchecked(Parameters(5, 4, 4, 4, 0, "active"), 3),  # up to two may be, and still 2t > n
    ],
    ids=lambda p: f"n{p.clients}-t{p.threshold}-c{p.corrupted}",
)
def test_clients_who_are_asked_differently_do_not_answer(parameters: Parameters) -> None:
    """However the server hands out questions, 2t > n + c leaves at most one of them answered by the honest."""
    assert 2 * parameters.threshold > parameters.clients + parameters.corrupted
    lies, sums = Lies(parameters), set()
    assert len(lies.groups()) == sum(2 ** len(asked) - 1 for asked in lies.asked)
    for answers in lies.every_outcome():
        answered = {(tuple(j for j, _ in a.seeds), tuple(j for j, _ in a.keys)) for a in answers.values()}
        assert len(answered) <= 1
        assert not lies.exposed(answers)
        sums |= answered
    assert len(sums) == len(lies.questions)  # and every honest question is answered if all are asked the same


def test_with_too_low_a_threshold_the_server_gets_both_secrets() -> None:
    """What the inequality is for: with 2t = n + c the same search finds a way, so it would have found one above."""
    with pytest.raises(InputError, match="threshold = 3"):
        Parameters(5, 4, 3, 3, 1, "active")
    lies = Lies(unchecked(Parameters(5, 4, 4, 4, 1, "active"), 3))
    assert any(lies.exposed(answers) for answers in lies.every_outcome())


def test_one_client_who_is_asked_differently_stays_silent_and_the_others_go_on() -> None:
    trace = play(a_task(ACTIVE), ())
    sent, question = trace.clients[Sent], trace.told[Question][0]
    lie = replace(question, alive=(0, 1, 2, 3, 4, 5), dead=(6,))
    told = {i: client.receive(sent[i], question if i else lie, 0) for i in range(7)}
    signatures = {i: said.signature for i, (_, said) in told.items()}
    aborts(told[0][0], gathered(told[0][0], signatures), Why.BAD_SIGNATURE)
    aborts(told[1][0], gathered(told[1][0], signatures), Why.BAD_SIGNATURE)
    del signatures[0]
    aborts(told[0][0], gathered(told[0][0], signatures), Why.BAD_SIGNATURE)
    for i in range(1, 7):
        assert isinstance(client.receive(told[i][0], gathered(told[i][0], signatures), 0)[1], Answer)


# --- messages that do not belong here -------------------------------------------------------------------------------

FITS = {Advertised: Roster, Shared: Inbox, Sent: Question, Consented: Consents}


@both
def test_a_message_of_the_wrong_phase_changes_nothing(parameters: Parameters) -> None:
    trace, tried = play(a_task(parameters)), 0
    for kind, states in trace.clients.items():
        for told in trace.told.values():
            message = told[0]
            if isinstance(message, FITS.get(kind, ())) or (kind in (Consented, Answered) and type(message) is Question):
                continue
            refuses(states[0], message)
            tried += 1
    assert tried == (4 * 3 - 3 - 1 if parameters is CURIOUS else 5 * 4 - 4 - 2)
    for kind, fitting in FITS.items():  # the very same states go on
        if kind in trace.clients:
            after, reply = client.receive(trace.clients[kind][0], trace.told[fitting][0], 0)
            assert reply is not None
            assert not isinstance(after, client.Aborted)


@both
def test_a_message_of_another_session_or_round_changes_nothing(parameters: Parameters) -> None:
    trace = play(a_task(parameters))
    for other in (
        play(a_task(parameters), draw="b"),
        play(a_task(parameters, round=ROUND + 1)),
        play(a_task(parameters, unit=9)),
    ):
        for kind in FITS:
            if kind in trace.clients and kind is not Advertised:
                refuses(trace.clients[kind][0], other.told[FITS[kind]][0], "another session")
        refuses(trace.clients[Answered][0], other.told[Question][0], "another session")
        if other.clients[Advertised][0].task != trace.clients[Advertised][0].task:
            refuses(trace.clients[Advertised][0], other.told[Roster][0], "another task")


@both
def test_a_client_to_whom_all_this_happens_still_finishes(parameters: Parameters) -> None:
    """Everything that is refused is thrown at client 0 before each true message; the sum is what it would have been."""
    task = a_task(parameters)
    noise = [m for other in (play(task, draw="b"), play(a_task(parameters, unit=9))) for m in other.every_told()]
    trace = play(task)
    state, said = begin(task, 0)
    for kind in (Roster, Inbox, Question, Consents)[: 3 if parameters is CURIOUS else 4]:
        for message in noise:
            if not isinstance(message, Roster) or message.task != task.digest:
                refuses(state, message)
        state, said = client.receive(state, trace.told[kind][0], 0)
    assert isinstance(state, Answered)
    assert said == trace.said[Answer][0]
