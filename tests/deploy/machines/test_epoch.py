"""Removals: who must sign what, every refusal with its reason, and bytes that are a message or one named error."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import replace
from typing import Any

import msgpack
import networkx as nx
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from confide.base.errors import InputError
from confide.base.wire import MalformedError
from confide.deploy.machines import epoch as e
from confide.deploy.machines.epoch import Epoch, EpochError, check, decode, encode, sign, statement
from confide.graph.graph import Graph
from confide.rounds.schemes import scheme
from confide.secure.keys import Identity
from confide.testing.rehearsal import scripted
from exploring import more

PLAN, OTHER = hashlib.sha256(b"plan").digest(), hashlib.sha256(b"other").digest()
KEYS = [Identity.of(hashlib.sha256(b"server" + bytes([p])).digest()) for p in range(9)]
IDENTITIES = [key.public for key in KEYS]
RING = [(0, 1), (0, 4), (1, 2), (2, 3), (3, 4)]
COMPLETE = list(itertools.combinations(range(5), 2))
S = bytes(range(64))
TERMS = scripted(Graph.parse("path:2"), scheme("homomorphic", 0.5), rounds=1)[0].terms


def signed(number: int, removed: tuple[int, ...], signers: tuple[int, ...] | None = None, P: int = 5) -> Epoch:
    """Without `signers`, all that remain."""
    who = tuple(p for p in range(P) if p not in removed) if signers is None else signers
    return Epoch(PLAN, number, removed, tuple(sign(KEYS[p], p, PLAN, number, removed) for p in who))


def follow(epoch: Epoch, previous: Epoch | None = None, edges: Any = COMPLETE, P: int = 5, plan: bytes = PLAN) -> None:
    terms = replace(TERMS, rules=TERMS.rules._replace(plan=plan, identities=IDENTITIES[:P]), edges=edges)
    check(epoch, terms, previous)


def refusal(epoch: Epoch, previous: Epoch | None = None, edges: Any = COMPLETE, P: int = 5, plan: bytes = PLAN) -> str:
    with pytest.raises(EpochError) as error:
        follow(epoch, previous, edges, P, plan)
    return str(error.value)


# What holds


def test_a_majority_suffices_in_any_order() -> None:
    for signers in itertools.permutations((0, 1, 3, 4), 3):
        follow(signed(1, (2,), signers))
    follow(signed(1, (2,)))
    follow(signed(1, (0, 4)))


def test_epochs_follow_each_other_and_some_may_be_missed() -> None:
    first, second = signed(1, (4,)), signed(2, (1, 4))
    follow(first)
    follow(second, first)
    follow(second)
    follow(signed(7, (1, 4)), first)
    follow(signed(2**32 - 1, (1, 4)), first)


def test_edges_of_a_graph() -> None:
    follow(signed(1, (3,)), edges=Graph.ring(5).edges)
    assert "no longer reaches" in refusal(signed(1, (1, 3)), edges=Graph.ring(5).edges)


@settings(max_examples=more(60, 150))
@given(st.integers(1, 7), st.data())
def test_accepted_exactly_when_it_should_be(P: int, data: st.DataObject) -> None:
    """Against a check that is written the other way round, with sets and networkx."""
    servers = st.sets(st.integers(0, P - 1))
    pairs = list(itertools.combinations(range(P), 2))
    edges = data.draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    before, removed = data.draw(servers), data.draw(servers)
    if data.draw(st.booleans()):
        removed |= before
    assume(removed)
    previous = Epoch(PLAN, 2, tuple(sorted(before)), ((0, S),)) if before else None
    number = data.draw(st.integers(1, 4))
    signers = set(range(P)) - removed if data.draw(st.booleans()) else data.draw(servers)
    assume(signers)
    epoch = signed(number, tuple(sorted(removed)), tuple(signers))
    remaining = set(range(P)) - removed
    good = (
        before < removed
        and number >= (3 if before else 1)
        and signers <= remaining
        and len(signers) > P / 2
        and len(remaining) >= 2
        and nx.is_connected(nx.Graph([*edges, *((p, p) for p in range(P))]).subgraph(remaining))
    )
    if good:
        follow(epoch, previous, edges, P)
    else:
        refusal(epoch, previous, edges, P)


@pytest.mark.parametrize("P", range(3, 6))
def test_two_epochs_of_one_number_need_somebody_who_signs_twice(P: int) -> None:
    edges = list(itertools.combinations(range(P), 2))

    def holds(removed: int, signers: tuple[int, ...]) -> bool:
        try:
            follow(signed(1, (removed,), signers), None, edges, P)
        except EpochError:
            return False
        return True

    held = 0
    for choice in itertools.product((0, 1), repeat=P):  # whom each server votes out
        votes = [tuple(p for p in range(P) if choice[p] == removed != p) for removed in (0, 1)]
        valid = sum(holds(removed, signers) for removed, signers in enumerate(votes) if signers)
        assert valid <= 1
        held += valid
    assert held > 0
    twice = tuple(range(2, P))
    assert holds(0, twice) == holds(1, twice) == (2 * len(twice) > P)  # who signs both splits the network


# Every refusal


def test_another_plan() -> None:
    assert "another plan" in refusal(signed(1, (2,)), plan=OTHER)
    theirs = Epoch(OTHER, 1, (2,), tuple(sign(KEYS[p], p, OTHER, 1, (2,)) for p in (0, 1, 3, 4)))
    assert "another plan" in refusal(theirs)
    follow(theirs, plan=OTHER)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_an_old_number(number: int) -> None:
    assert "epoch 3 is already followed" in refusal(signed(number, (1, 2)), signed(3, (2,)))


def test_a_removed_server_returns() -> None:
    assert "server 2 was removed before" in refusal(signed(2, (1, 3), (0, 2, 4)), signed(1, (2,)))
    assert "server 1 was removed before" in refusal(signed(2, (2,)), signed(1, (1, 2)))


def test_nobody_more_is_removed() -> None:
    assert "removes nobody" in refusal(signed(2, (2,)), signed(1, (2,)))


@pytest.mark.parametrize("server", [5, 6, 2**16 - 1])
def test_a_removed_server_that_is_not_in_the_plan(server: int) -> None:
    assert f"removes server {server}" in refusal(signed(1, (2, server), (0, 1, 3)))


def test_a_server_signs_twice() -> None:
    one = signed(1, (2,), (0, 1))
    assert "signed it twice" in refusal(Epoch(PLAN, 1, (2,), (*one.signatures, one.signatures[0])))
    assert "signed it twice" in refusal(Epoch(PLAN, 1, (2,), (*signed(1, (2,)).signatures, one.signatures[0])))


@pytest.mark.parametrize("server", [5, 2**16 - 1])
def test_a_signer_that_is_not_in_the_plan(server: int) -> None:
    stranger = (server, KEYS[8].sign(statement(PLAN, 1, (2,))))
    assert f"server {server} signed it" in refusal(Epoch(PLAN, 1, (2,), (*signed(1, (2,)).signatures, stranger)))


def test_a_removed_server_signs() -> None:
    assert "server 2 signed it, and is removed" in refusal(signed(1, (2,), (0, 1, 2, 3, 4)))


@pytest.mark.parametrize(("P", "signers"), [(3, 1), (4, 2), (5, 2), (6, 3), (7, 3), (8, 4)])
def test_half_is_not_enough(P: int, signers: int) -> None:
    edges = list(itertools.combinations(range(P), 2))
    assert f"{signers} of {P} servers signed" in refusal(signed(1, (0,), tuple(range(1, signers + 1))), None, edges, P)
    follow(signed(1, (0,), tuple(range(1, signers + 2))), None, edges, P)


def test_those_that_are_gone_still_count() -> None:
    first = signed(1, (4,))
    assert "2 of 5 servers signed" in refusal(signed(2, (3, 4), (0, 1)), first)
    follow(signed(2, (3, 4), (0, 1, 2)), first)
    assert "signed" in refusal(signed(3, (2, 3, 4)), signed(2, (3, 4)))  # two of five can never be enough


@pytest.mark.parametrize("at", range(4))
def test_every_signature_is_checked(at: int) -> None:
    """One that is wrong refuses the epoch, even where the others suffice."""
    good = list(signed(1, (2,)).signatures)
    server, signature = good[at]
    wrong = [
        S,
        signature[:-1] + bytes([signature[-1] ^ 1]),
        good[at - 1][1],
        KEYS[server].sign(statement(OTHER, 1, (2,))),
        KEYS[server].sign(statement(PLAN, 2, (2,))),
        KEYS[server].sign(statement(PLAN, 1, (3,))),
        KEYS[server].sign(statement(PLAN, 1, (2, 3))),
        KEYS[server].sign(statement(PLAN, 1, ())),
        KEYS[8].sign(statement(PLAN, 1, (2,))),
    ]
    for bad in wrong:
        said = refusal(Epoch(PLAN, 1, (2,), (*good[:at], (server, bad), *good[at + 1 :])))
        assert said == f"the signature of server {server} is not valid"


def test_too_few_remain() -> None:
    assert "fewer than two" in refusal(signed(1, (0,), P=2), edges=[(0, 1)], P=2)
    assert "fewer than two" in refusal(signed(1, (1, 2, 3, 4)))
    assert "fewer than two" in refusal(signed(1, (0,), (1,)), edges=[], P=1)
    follow(signed(1, (0,), P=3), edges=[(0, 1), (0, 2), (1, 2)], P=3)


def test_who_remains_must_be_connected() -> None:
    assert refusal(signed(1, (0, 2)), edges=RING) == "server 3 no longer reaches server 1: make a new plan"
    assert "make a new plan" in refusal(signed(1, (0,)), edges=[(0, 1), (0, 2), (0, 3), (0, 4)])
    follow(signed(1, (0, 1)), edges=RING)
    follow(signed(1, (3, 4)), edges=[(0, 2), (1, 2), (2, 3), (3, 4)])  # from 0 over 2 back to 1


def test_refusals_come_before_signatures_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that nobody makes a server check thousands of them for an epoch that it would refuse anyway."""
    monkeypatch.setattr(e, "signed_by", lambda *_: pytest.fail("a signature was checked"))
    refusal(signed(1, (2,)), plan=OTHER)
    refusal(signed(1, (2, 7)))
    refusal(signed(1, (2,), (0, 1)))
    refusal(signed(1, (0, 2)), edges=RING)
    refusal(signed(1, (2,)), signed(1, (2,)))


# What is signed


def test_a_statement_is_about_one_plan_number_and_set() -> None:
    sets: list[tuple[int, ...]] = [(), (0,), (1,), (0, 1), (256,), (0, 256), (1, 0, 2), (65535,)]
    said = [statement(plan, n, gone) for plan in (PLAN, OTHER) for n in (1, 2, 256, 2**32 - 1) for gone in sets]
    assert len(set(said)) == len(said)
    assert {len(one) for one in said} == {32}


def test_a_statement_is_what_it_always_was() -> None:
    """Operators may run different releases."""
    content = b"confide epoch" + PLAN + bytes.fromhex("03000000 01000000 08000000 08010000")
    said = hashlib.sha256(content).digest()
    assert all(statement(PLAN, 3, gone) == said for gone in itertools.permutations((8, 264, 1)))
    assert statement(PLAN, 3, [1, 264, 1, 8]) == said
    assert sign(KEYS[3], 3, PLAN, 3, (1, 8, 264)) == (3, KEYS[3].sign(said))


@pytest.mark.parametrize(
    ("plan", "number", "removed", "field"),
    [
        (PLAN[:-1], 1, (2,), "plan"),
        (PLAN + b"\0", 1, (2,), "plan"),
        (PLAN, 0, (2,), "number"),
        (PLAN, 2**32, (2,), "number"),
        (PLAN, 1, (-1,), "removed"),
        (PLAN, 1, (1, 2**16), "removed"),
    ],
)
def test_what_an_operator_may_not_sign(plan: bytes, number: int, removed: tuple[int, ...], field: str) -> None:
    with pytest.raises(InputError, match=f"^{field} = "):
        sign(KEYS[0], 0, plan, number, removed)


# Bytes

server = st.integers(0, 2**16 - 1) | st.sampled_from([0, 127, 128, 255, 256, 2**16 - 1])
epochs = st.builds(
    Epoch,
    st.binary(min_size=32, max_size=32),
    st.integers(1, 2**32 - 1),
    st.sets(server, min_size=1, max_size=5).map(lambda s: tuple(sorted(s))),
    st.lists(st.tuples(server, st.binary(min_size=64, max_size=64)), min_size=1, max_size=4).map(tuple),
)


def message_or_refusal(raw: bytes) -> Epoch | None:
    try:
        found = decode(raw)
    except MalformedError:
        return None
    assert decode(encode(found)) == found
    return found


@settings(max_examples=more(80, 200))
@given(epochs)
def test_round_trip(epoch: Epoch) -> None:
    raw = encode(epoch)
    found = decode(raw)
    assert found == epoch
    assert encode(found) == raw
    hash(found)


def test_the_largest_epoch_is_read() -> None:
    everyone = range(2**16)
    largest = Epoch(PLAN, 2**32 - 1, tuple(everyone), tuple((p, S) for p in everyone))
    raw = encode(largest)
    assert 0.9 * e.LARGEST_BYTES < len(raw) <= e.LARGEST_BYTES
    assert decode(raw) == largest
    with pytest.raises(MalformedError, match="at most"):
        decode(raw + bytes(e.LARGEST_BYTES))


@settings(max_examples=more(100, 300))
@given(st.binary(max_size=300))
def test_garbage(raw: bytes) -> None:
    assert message_or_refusal(raw) is None
    message_or_refusal(b"\x95\xa5Epoch" + raw)
    message_or_refusal(b"\x95\xa5Epoch\xc4 " + PLAN + raw)


@settings(max_examples=more(100, 300))
@given(epochs, st.data())
def test_mutated(epoch: Epoch, data: st.DataObject) -> None:
    raw = bytearray(encode(epoch))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    message_or_refusal(bytes(raw))


def test_every_byte_changed_is_no_epoch_that_holds() -> None:
    """A signed epoch of which any byte is another one is malformed or refused."""
    raw = encode(signed(1, (2,)))
    for at, flip in itertools.product(range(len(raw)), (1, 0x80)):
        found = message_or_refusal(raw[:at] + bytes([raw[at] ^ flip]) + raw[at + 1 :])
        if found is not None:
            refusal(found)


WRONG: dict[int, list[Any]] = {
    1: [None, 1, "a" * 32, b"", PLAN[:-1], PLAN + b"\0", [PLAN]],
    2: [None, True, 0, -1, 2**32, 1.0, "1", [1]],
    3: [None, 1, [], [-1], [2**16], [True], [1.0], ["1"], [2, 1], [1, 1], [0, 1, 1], [[1]], list(range(2**16 + 1))],
    4: [
        *(None, [], [1], [[1]], [[1, S, 1]], [[1, S[:-1]]], [[1, S + b"1"]], [[-1, S]], [[2**16, S]], [[True, S]]),
        *([["1", S]], [[1, "s" * 64]], [[1, S]] * (2**16 + 1)),
    ],
}


@pytest.mark.parametrize("field", WRONG)
def test_fields_that_are_malformed(field: int) -> None:
    good = msgpack.unpackb(encode(signed(1, (2,))))
    for wrong in WRONG[field]:
        with pytest.raises(MalformedError, match=r"^Epoch: "):
            decode(msgpack.packb([*good[:field], wrong, *good[field + 1 :]]))
    others: list[Any] = [good[:-1], [*good, 1], ["epoch", *good[1:]], ["Sync", *good[1:]], good[1:], {}]
    for content in others:
        assert message_or_refusal(msgpack.packb(content)) is None


@pytest.mark.parametrize("removed", [(), (2, 1), (1, 1), (-1,), (2**16,)])
def test_an_epoch_is_made_in_order(removed: tuple[int, ...]) -> None:
    with pytest.raises(ValidationError):
        Epoch(PLAN, 1, removed, ((0, S),))


def test_random_bytes_in_bulk() -> None:
    rng = np.random.default_rng(0)
    heads = [
        b"",
        b"\x95\xa5Epoch",
        b"\x95\xa5Epoch\xc4 " + PLAN + b"\x01",
        b"\x95\xa5Epoch\xc4 " + PLAN + b"\x01\x91\x02",
    ]
    for i in range(4_000):
        message_or_refusal(heads[i % len(heads)] + rng.bytes(int(rng.integers(0, 100))))
