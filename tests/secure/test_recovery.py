"""Secrets from answers of which some lie: right where enough others are there, and nobody is named who is honest."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confide.secure import recovery, shares
from confide.secure.messages import Entry
from confide.secure.parameters import Parameters
from confide.secure.recovery import Recovery
from confide.secure.session import Session, Why
from exploring import more
from sessions import Entropy, a_task

COMPLETE = Parameters(7, 6, 4, 4, 1)
SPARSE = Parameters(12, 6, 4, 7, 0)
TIGHT = Parameters(40, 39, 30, 30, 4)


def session(parameters: Parameters) -> Session:
    entries = [Entry(i, bytes([i]) * 32, bytes([i, 1]) * 16, b"") for i in range(parameters.clients)]
    return Session(a_task(parameters), entries)


def secret(owner: int) -> bytes:
    return b"the secret of client number %4d" % owner


def dealt(s: Session) -> dict[int, dict[int, bytes]]:
    """By holder and owner, as honest owners deal."""
    held: dict[int, dict[int, bytes]] = {i: {} for i in s.entries}
    for owner in s.entries:
        holders = s.holders(owner)
        rows = shares.share([secret(owner)], len(holders), s.task.parameters.threshold, Entropy(owner))
        for j, (one,) in zip(holders, rows, strict=True):
            held[j][owner] = one
    return held


def opened(owner: int, found: bytes) -> bytes | None:
    return found if found == secret(owner) else None


def wrong(share: bytes, r: random.Random) -> bytes:
    values = shares.unpack([share])
    values[0, r.randrange(shares.WORDS)] += 1 + r.randrange(shares.PRIME - 1)
    return shares.pack(values % shares.PRIME)[0]


def recover(s: Session, held: Mapping[int, Mapping[int, bytes]], owners: Iterable[int] | None = None) -> Recovery:
    """What is found is right, whatever was held."""
    r, wanted = Recovery(s), list(s.entries if owners is None else owners)
    found = r.secrets(wanted, held, opened)
    assert found == {owner: secret(owner) for owner in wanted if owner not in r.lost}
    return r


@pytest.mark.parametrize("parameters", [COMPLETE, SPARSE, TIGHT], ids=["complete", "sparse", "tight"])
def test_honest_answers_give_all_secrets(parameters: Parameters) -> None:
    s = session(parameters)
    assert recover(s, dealt(s)).lost == []


def test_any_threshold_of_honest_answers_is_enough() -> None:
    """Of seven, three lie about everybody, each for itself or alike: four are there, and four are enough."""
    s = session(COMPLETE)
    honest = dealt(s)
    for liars in combinations(range(7), 3):
        r = random.Random(sum(liars))  # noqa: S311
        held = {j: {o: wrong(x, r) if j in liars else x for o, x in own.items()} for j, own in honest.items()}
        assert recover(s, held).lost == []


@settings(max_examples=more(40, 400))
@given(st.integers(0, 2**32), st.sampled_from([COMPLETE, SPARSE]))
def test_whatever_holders_say_no_honest_owner_is_named(seed: int, parameters: Parameters) -> None:
    """Holders withhold, lie, garble and vanish, as many of them lie as the plan says, and one at least."""
    s, r = session(parameters), random.Random(seed)  # noqa: S311
    liars = r.sample(range(parameters.clients), max(1, parameters.corrupted))
    held = {j: dict(own) for j, own in dealt(s).items() if r.random() < 0.8}
    for j in liars:
        for owner in list(held.get(j, {})):
            match r.randrange(4):
                case 0:
                    del held[j][owner]
                case 1:
                    held[j][owner] = b"\xff" * shares.SHARE_BYTES
                case 2:
                    held[j][owner] = wrong(held[j][owner], r)
    found = recover(s, held)
    assert found.liars == ()
    for owner in found.lost:  # and what is lost could not be found
        honest = [j for j in s.holders(owner) if j in held and j not in liars]
        assert len(honest) < parameters.threshold


def test_liars_who_know_the_decoder_cannot_make_an_honest_owner_look_like_one() -> None:
    """As many as may lie, more than can be found, and together: their errors pass all equations for the locator, so
    that it has no root, as if all shares agreed on another secret.
    """
    s = session(Parameters(100, 99, 51, 60, 30))
    t, lies, points = 51, s.task.parameters.lies, tuple(range(1, 101))
    spare = len(points) - t
    seen, power = np.empty((spare - spare // 2, lies), np.int64), shares.lagrange(points)
    for row in seen:  # what the locator is found from, by error
        power = power * np.array(points) % shares.PRIME
        row[:] = power[:lies]
    errors = shares._solution(seen)
    assert errors is not None
    held = {j: {7: own[7]} for j, own in dealt(s).items()}
    for j, error in enumerate(errors):  # holders 0 to 29
        held[j][7] = shares.pack((shares.unpack([held[j][7]]) + error) % shares.PRIME)[0]
    found = recover(s, held, [7])
    assert (found.lost, found.liars) == ([7], ())


@pytest.mark.parametrize("lie", ["no secret", "garbled", "wrong to three", "sealed badly"])
def test_an_owner_who_deals_no_secret_is_named(lie: str) -> None:
    """By seven answers; by four, of which one may lie, only if more withhold its share than may lie."""
    s, r = session(COMPLETE), random.Random(1)  # noqa: S311
    held = dealt(s)
    other = shares.share([bytes(32)], 7, 4, Entropy("liar"))
    for j in range(7):
        match lie:
            case "no secret":
                held[j][2] = other[j][0]
            case "garbled":
                held[j][2] = b"\xff" * shares.SHARE_BYTES
            case "wrong to three" if j > 3:
                held[j][2] = wrong(held[j][2], r)
            case "sealed badly" if j != 2:
                del held[j][2]
    if lie == "wrong to three":
        assert recover(s, held).lost == []
        held[0][2] = wrong(held[0][2], r)
    found = recover(s, held)
    assert (found.lost, found.liars, found.why) == ([2], (2,), Why.WRONG_SHARE)
    few = recover(s, {j: held[j] for j in (0, 2, 4, 5)})
    assert (few.lost, few.liars) == ([2], (2,) if lie in ("garbled", "sealed badly") else ())


@pytest.mark.parametrize("lie", ["no secret", "sealed badly"])
def test_on_the_sparse_graph_few_neighbours_can_be_liars(lie: str) -> None:
    """Ten of 200 may be corrupted, but hardly five of twenty neighbours."""
    parameters = Parameters(200, 20, 12, 150, 10)
    assert 2 <= parameters.lies <= 6
    s = session(parameters)
    honest = dealt(s)
    other = shares.share([bytes(32)], 20, 12, Entropy("liar"))
    places = {j: x for x, j in enumerate(s.holders(7))}
    held = {
        j: {o: other[places[j]][0] if o == 7 else x for o, x in own.items() if o != 7 or lie == "no secret"}
        for j, own in honest.items()
    }
    found = recover(s, held)
    assert (found.lost, found.liars, found.why) == ([7], (7,), Why.WRONG_SHARE)


def test_where_too_few_answer_nobody_is_named() -> None:
    s = session(COMPLETE)
    held = dealt(s)
    found = recover(s, {j: held[j] for j in (0, 1, 2)})
    assert (found.lost, found.liars, found.why) == (list(range(7)), (), Why.TOO_FEW_ANSWERS)


def test_the_work_is_bounded_and_shared_among_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten of forty lie and 30 are needed: what is found is right, nobody is named, and it ends."""
    s, r = session(TIGHT), random.Random(1)  # noqa: S311
    held = {j: {o: wrong(x, r) if j < 10 else x for o, x in own.items()} for j, own in dealt(s).items()}
    tried = []

    def agreeing(points: tuple[int, ...], given: list[bytes], threshold: int) -> list[int]:
        tried.append(points)
        return right(points, given, threshold)

    right = shares.agreeing
    monkeypatch.setattr(recovery.shares, "agreeing", agreeing)
    monkeypatch.setattr(recovery, "TRIES", 60)
    found = recover(s, held, range(20))
    assert (found.lost, found.liars) == (list(range(20)), ())
    assert len(tried) <= 60 + 2 * 20


def test_who_was_wrong_once_is_asked_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """One decoding finds five liars; all other secrets come from the first shares of the others."""
    s, r = session(TIGHT), random.Random(1)  # noqa: S311
    held = {j: {o: wrong(x, r) if j < 5 else x for o, x in own.items()} for j, own in dealt(s).items()}
    tried, right = [], shares.agreeing
    monkeypatch.setattr(recovery.shares, "agreeing", lambda *a: tried.append(a) or right(*a))
    assert recover(s, held).lost == []
    assert len(tried) == 1
