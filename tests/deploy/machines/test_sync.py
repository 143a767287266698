"""What servers say to each other, as bytes: the same back, or `MalformedError` and nothing else."""

from __future__ import annotations

import math
import random
from dataclasses import fields
from typing import Any

import msgpack
import pytest
from hypothesis import example, given, note, settings
from hypothesis import strategies as st

from builders import mutated
from confide.base.wire import MalformedError
from confide.deploy.machines.sync import (
    KINDS,
    LARGEST_WINDOW,
    AskBalance,
    FromServer,
    Sync,
    TellBalance,
    TellEpoch,
    decode,
    encode,
)

LARGEST = 4096
PLAN = bytes(range(32))
FULL = Sync(
    PLAN,
    3,
    1,
    2,
    9,
    ((7, True), (9, False)),
    offer=(9, b"words of round 9"),
    ask=True,
    seen=8,
    balance=(4, PLAN),
    made=1_800_000_000_000_000,
)
EXAMPLES: list[FromServer] = [
    FULL,
    Sync(PLAN, 0, 0, 65535, 0, (), None, False, 0, None),
    Sync(PLAN, 2**32 - 1, 1, 2, 2**32 - 1, tuple((i, False) for i in range(LARGEST_WINDOW)), None, True, 0, None),
    AskBalance(PLAN, 1, 2, 5, 7, 0),
    TellBalance(PLAN, 1, 2, 5, 7, 3, b"total"),
    TellEpoch(PLAN, 1, 2, b"epoch"),
]

hashes = st.binary(min_size=32, max_size=32)
rounds = st.integers(0, 2**32 - 1)
servers = st.integers(0, 2**16 - 1)
nonces = st.integers(0, 2**63 - 1)
blobs = st.binary(max_size=40)
syncs = st.builds(
    Sync,
    hashes,
    rounds,
    servers,
    servers,
    rounds,
    st.lists(st.tuples(rounds, st.booleans()), max_size=6).map(tuple),
    st.none() | st.tuples(rounds, blobs),
    st.booleans(),
    rounds,
    st.none() | st.tuples(rounds, hashes),
)
messages = st.one_of(
    syncs,
    st.builds(AskBalance, hashes, servers, servers, rounds, nonces, nonces),
    st.builds(TellBalance, hashes, servers, servers, rounds, nonces, rounds, blobs),
    st.builds(TellEpoch, hashes, servers, servers, blobs),
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=4) | blobs | hashes,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=12,
)


def survives(raw: bytes) -> FromServer | None:
    """Whatever comes in: a message that says the same when it is sent on, or the one named error."""
    try:
        found = decode(raw, LARGEST)
    except MalformedError:
        return None
    assert type(found) in KINDS.values()
    assert decode(encode(found), LARGEST) == found
    return found


@pytest.mark.parametrize("message", EXAMPLES)
def test_a_message_comes_back(message: FromServer) -> None:
    assert decode(encode(message), LARGEST) == message


@settings(max_examples=100)
@given(messages)
def test_every_message_comes_back(message: FromServer) -> None:
    assert decode(encode(message), LARGEST) == message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("plan", PLAN[:31]),
        ("plan", PLAN + b"x"),
        ("plan", "p" * 32),
        ("plan", None),
        ("epoch", -1),
        ("epoch", 2**32),
        ("epoch", 1.0),
        ("sender", -1),
        ("sender", 2**16),
        ("sender", True),
        ("sender", "1"),
        ("receiver", 2**16),
        ("receiver", None),
        ("decided", -1),
        ("decided", 2**32),
        ("decided", 2**64 - 1),
        ("decided", b"9"),
        ("open", None),
        ("open", 7),
        ("open", [7]),
        ("open", [[7]]),
        ("open", [[7, True, True]]),
        ("open", [[7, 1]]),
        ("open", [[True, True]]),
        ("open", [[-1, True]]),
        ("open", [[2**32, True]]),
        ("open", [[i, False] for i in range(LARGEST_WINDOW + 1)]),
        ("offer", 9),
        ("offer", [9]),
        ("offer", [9, "text"]),
        ("offer", [9, b"", b""]),
        ("offer", [-1, b""]),
        ("offer", [2**32, b""]),
        ("offer", [None, None]),
        ("ask", 1),
        ("ask", None),
        ("ask", "true"),
        ("seen", -1),
        ("seen", 2**32),
        ("seen", False),
        ("balance", [1]),
        ("balance", [1, PLAN[:31]]),
        ("balance", [-1, PLAN]),
        ("balance", [2**32, PLAN]),
        ("balance", [1, PLAN, 1]),
    ],
)
def test_a_field_that_cannot_be_is_malformed(name: str, value: Any) -> None:
    said = {f.name: getattr(FULL, f.name) for f in fields(FULL)}
    assert decode(msgpack.packb(["Sync", *said.values()]), LARGEST) == FULL
    with pytest.raises(MalformedError, match=f"^Sync: {list(said).index(name)}[.:]"):
        decode(msgpack.packb(["Sync", *(said | {name: value}).values()]), LARGEST)


@pytest.mark.parametrize(
    "content",
    [
        [],
        {},
        None,
        "Sync",
        ["Sync"],
        ["sync", PLAN],
        ["Enrol", 1, PLAN, 0, 0],
        [b"AskBalance", PLAN, 1, 2, 5, 7, 0],
        [["AskBalance"], PLAN, 1, 2, 5, 7, 0],
        ["AskBalance", PLAN, 1, 2],
        ["AskBalance", PLAN, 1, 2, 5, 7, 0, 0],
        {"AskBalance": [PLAN, 1, 2, 5, 7, 0]},
        ["AskBalance", {}, 1, 2, 5, 7, 0],
        ["AskBalance", PLAN, 1, 2, msgpack.ExtType(5, b""), 7, 0],
        ["AskBalance", PLAN, 1, 2, msgpack.Timestamp(0), 7, 0],
        ["TellBalance", PLAN, 1, 2, 5, 7, 2**32, b""],
        ["TellBalance", PLAN, 1, 2, 5, 2**63, 3, b""],
        ["TellEpoch", PLAN, 1, 2, None],
    ],
)
def test_another_form_is_malformed(content: Any) -> None:
    assert survives(msgpack.packb(["AskBalance", PLAN, 1, 2, 5, 7, 0])) is not None
    with pytest.raises(MalformedError):
        decode(msgpack.packb(content), LARGEST)


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda m: type(m).__name__)
def test_no_part_of_a_message_is_a_message(message: FromServer) -> None:
    raw = encode(message)
    for n in range(len(raw)):
        with pytest.raises(MalformedError):
            decode(raw[:n], LARGEST)
    for more in (b"\x00", b"\xc0", raw):
        with pytest.raises(MalformedError):
            decode(raw + more, LARGEST)


def test_the_size_is_looked_at_first() -> None:
    raw = encode(FULL)
    assert decode(raw, len(raw)) == FULL
    with pytest.raises(MalformedError, match="at most"):
        decode(raw, len(raw) - 1)
    with pytest.raises(MalformedError, match="at most"):
        decode(b"\xc1" * (LARGEST + 1), LARGEST)


@pytest.mark.parametrize(
    "raw",
    [
        b"\x91" * 4000,  # lists in lists
        b"\xdd\xff\xff\xff\xff",  # a list of 2^32 - 1
        b"\xc6\xff\xff\xff\xff",  # as many bytes
        b"\xdb\xff\xff\xff\xff",  # and letters
        b"\xdf\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x05",
        b"\x92\xa4Sync" + b"\x91" * 2000,
        b"\x91\xa4\xff\xff\xff\xff",  # no letters
    ],
)
def test_promises_of_gigabytes_and_depths_are_malformed(raw: bytes) -> None:
    with pytest.raises(MalformedError):
        decode(raw, LARGEST)


def test_an_error_does_not_repeat_what_came() -> None:
    """It may be logged, and the bytes may be somebody's words."""
    with pytest.raises(MalformedError) as e:
        decode(msgpack.packb(["TellBalance", PLAN, 1, 2, 5, 7, b"secret", b"secret"]), LARGEST)
    assert "secret" not in str(e.value)
    assert e.value.__cause__ is None


@settings(max_examples=150)
@given(st.sampled_from(EXAMPLES), st.integers(0, 10), anything)
def test_one_wrong_field(message: FromServer, at: int, value: Any) -> None:
    values = [getattr(message, f.name) for f in fields(message)]
    values[at % len(values)] = value
    survives(msgpack.packb([type(message).__name__, *values]))


ODD: list[Any] = [None, True, False, 0, 1, 9, -1, 2**32 - 1, 2**32, 2**64 - 1, 0.5, math.nan, "", "Sync", b"", PLAN]


def odd(r: random.Random, depth: int = 0) -> Any:
    """A value that may be out of place anywhere."""
    if depth < 3 and r.random() < 0.4:
        return [odd(r, depth + 1) for _ in range(r.randrange(4))]
    return r.choice(ODD)


@settings(max_examples=25)
@given(st.integers(0, 2**32))
@example(0)
def test_thousands_of_bytes_and_contents(seed: int) -> None:
    """Hypothesis says where to begin and what to repeat; the cases of a seed are too many for it to draw."""
    r, kept = random.Random(seed), 0  # noqa: S311 - a test
    for case in range(200):
        true = r.choice(EXAMPLES)
        values = [getattr(true, f.name) for f in fields(true)]
        values[r.randrange(len(values))] = odd(r)
        raw = r.choice(
            (
                r.randbytes(r.randrange(80)),
                mutated(r, encode(true), [encode(r.choice(EXAMPLES))]),
                msgpack.packb([type(true).__name__, *values]),
                msgpack.packb([r.choice([*KINDS, "Enrol"]), *(odd(r) for _ in range(r.randrange(12)))]),
            )
        )
        note(f"case {case}: {raw!r}")
        kept += survives(raw) is not None
    assert 0 < kept < 150  # some mutations are harmless, most are not
