"""Messages as bytes: what goes in comes out, and anything else is one named error that shows nothing."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from confide.base import wire
from confide.base.wire import MalformedError
from confide.secure import messages as m
from confide.secure.parameters import LARGEST_COHORT
from exploring import more
from work import lines, peak_bytes

KINDS = {**m.FROM_CLIENT, **m.FROM_SERVER}
ROOM = 10**6
H, S = bytes(range(32)), bytes(range(64))
EXAMPLES: dict[str, Any] = {
    "Advertise": m.Advertise(H, m.Entry(7, H, H[::-1], S)),
    "Roster": m.Roster(H, (m.Entry(7, H, H[::-1], S), m.Entry(2**32 - 1, H[::-1], H, m.UNSIGNED))),
    "Shares": m.Shares(H, 7, H, ((8, bytes(m.SEALED_BYTES)), (300, b"\xff" * m.SEALED_BYTES))),
    "Inbox": m.Inbox(H, ((8, bytes(m.SEALED_BYTES)),)),
    "Masked": m.Masked(H, 7, bytes(range(40))),
    "Question": m.Question(H, (1, 2, 70000), (3,)),
    "Consent": m.Consent(H, 7, S),
    "Consents": m.Consents(H, ((7, S), (8, S[::-1]))),
    "Answer": m.Answer(H, 7, ((1, bytes(m.SHARE_BYTES)),), ((3, bytes(m.SHARE_BYTES)), (4, b"\1" * m.SHARE_BYTES))),
}


def decode(raw: bytes, largest: int = ROOM) -> Any:
    return wire.decode(raw, KINDS, largest)


def refused(raw: bytes, largest: int = ROOM) -> str:
    """What the refusal says: its text, its arguments and the traceback that a log would print."""
    with pytest.raises(MalformedError) as error:
        decode(raw, largest)
    e = error.value
    printed = "".join(traceback.format_exception_only(e))
    assert e.__cause__ is None
    assert e.__suppress_context__ or e.__context__ is None
    return f"{e} {e!r} {printed}"


def message_or_refusal(raw: bytes) -> Any:
    """Nothing else may happen; a message that is read is one that could have been sent."""
    try:
        found = decode(raw)
    except MalformedError:
        return None
    assert decode(m.encode(found)) == found
    return found


# Round trips

client = st.integers(0, 2**32 - 1) | st.sampled_from([0, 127, 128, 255, 256, 65535, 65536, 2**32 - 1])
hashes, signature = st.binary(min_size=32, max_size=32), st.binary(min_size=64, max_size=64)


def many(of: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(of, max_size=4).map(tuple)


entry = st.builds(m.Entry, client, hashes, hashes, signature | st.just(m.UNSIGNED))
sealed = st.tuples(client, st.binary(min_size=m.SEALED_BYTES, max_size=m.SEALED_BYTES))
opened = st.tuples(client, st.binary(min_size=m.SHARE_BYTES, max_size=m.SHARE_BYTES))
sent: dict[str, st.SearchStrategy[Any]] = {
    "Advertise": st.builds(m.Advertise, hashes, entry),
    "Roster": st.builds(m.Roster, hashes, many(entry)),
    "Shares": st.builds(m.Shares, hashes, client, hashes, many(sealed)),
    "Inbox": st.builds(m.Inbox, hashes, many(sealed)),
    "Masked": st.builds(m.Masked, hashes, client, st.binary(max_size=200)),
    "Question": st.builds(m.Question, hashes, many(client), many(client)),
    "Consent": st.builds(m.Consent, hashes, client, signature),
    "Consents": st.builds(m.Consents, hashes, many(st.tuples(client, signature))),
    "Answer": st.builds(m.Answer, hashes, client, many(opened), many(opened)),
}
any_message = st.one_of(*sent.values())


def test_every_kind_is_tested() -> None:
    assert sent.keys() == EXAMPLES.keys() == KINDS.keys()
    assert not m.FROM_CLIENT.keys() & m.FROM_SERVER.keys()
    assert all(name == kind.__name__ for name, kind in KINDS.items())


@settings(max_examples=more(100, 300))
@given(any_message)
def test_round_trip(message: Any) -> None:
    raw = m.encode(message)
    found = decode(raw, len(raw))
    assert found == message
    assert type(found) is type(message)
    assert m.encode(found) == raw
    hash(found)  # tuples all the way down: nobody can change a message that was accepted


@pytest.mark.parametrize("name", KINDS)
def test_only_the_right_direction(name: str) -> None:
    raw, message = m.encode(EXAMPLES[name]), EXAMPLES[name]
    if name in m.FROM_CLIENT:
        right: Callable[[bytes, int], Any] = m.from_client
        wrong: Callable[[bytes, int], Any] = m.from_server
    else:
        right, wrong = m.from_server, m.from_client
    assert right(raw, ROOM) == message
    with pytest.raises(MalformedError, match=r"^must be one of "):
        wrong(raw, ROOM)


def test_entries_are_entries() -> None:
    """Not bare tuples: the state machines ask for names."""
    assert all(type(e) is m.Entry for e in decode(m.encode(EXAMPLES["Roster"])).entries)
    assert type(decode(m.encode(EXAMPLES["Advertise"])).entry) is m.Entry


def test_the_form_is_a_list_with_the_name_first() -> None:
    """Other releases read it."""
    assert m.encode(EXAMPLES["Question"]) == msgpack.packb(["Question", H, [1, 2, 70000], [3]])


@pytest.mark.parametrize("length", [0, 1, 255, 4095, 4096, 65535, 65536, 4 * 100_000])
def test_long_updates(length: int) -> None:
    """Bytes are copied once, not escaped: a few bytes more than the update."""
    words = np.random.default_rng(1).bytes(length)
    raw = m.encode(m.Masked(H, 7, words))
    assert raw == msgpack.packb(["Masked", H, 7, words])
    assert len(raw) <= length + 60
    assert decode(raw).words == words


# Bytes that are no message


@pytest.mark.parametrize("name", KINDS)
def test_truncated_at_every_byte(name: str) -> None:
    raw = m.encode(EXAMPLES[name])
    for end in range(len(raw)):
        refused(raw[:end])
    for start in range(1, len(raw)):
        message_or_refusal(raw[start:])


@pytest.mark.parametrize("name", KINDS)
def test_nothing_may_follow(name: str) -> None:
    raw = m.encode(EXAMPLES[name])
    for tail in (b"\0", b"\xc0", b"\xc1", raw, b"\x90"):
        refused(raw + tail)


@pytest.mark.parametrize("name", KINDS)
def test_oversized(name: str) -> None:
    raw = m.encode(EXAMPLES[name])
    assert decode(raw, len(raw)) == EXAMPLES[name]
    assert f"{len(raw)} bytes, at most {len(raw) - 1} are allowed" in refused(raw, len(raw) - 1)
    refused(raw, 0)


def test_oversized_is_refused_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(msgpack, "unpackb", lambda *_, **__: pytest.fail("it was read"))
    huge = bytes(10 * ROOM)
    refused(huge)
    assert peak_bytes(lambda: refused(huge)) < ROOM  # nor copied


@settings(max_examples=more(200, 1000))
@given(st.binary(max_size=300))
@example(b"")
@example(b"\xc1")
@example(b"\x90")
@example(b"\x91\xa6Roster")
@example(b"\x80")
def test_random_bytes(raw: bytes) -> None:
    message_or_refusal(raw)


def test_random_bytes_by_the_thousand() -> None:
    rng = np.random.default_rng(5)
    heads = [b"", b"\x93", b"\x94\xa6Masked", b"\x93\xa6Roster\xc4 " + H, b"\x93\xa5Inbox\xc4 " + H + b"\x91\x92"]
    for i in range(6_000):
        message_or_refusal(heads[i % len(heads)] + rng.bytes(int(rng.integers(0, 120))))


@pytest.mark.parametrize("name", KINDS)
def test_every_byte_changed(name: str) -> None:
    """All 256 values at each of the first bytes, where the form is; a few elsewhere."""
    raw = m.encode(EXAMPLES[name])
    for i in range(len(raw)):
        for value in range(256) if i < 16 else (0, 1, 0x7F, 0x80, 0x90, 0xC1, 0xC7, 0xD9, 0xDD, 0xDF, 0xFF):
            message_or_refusal(raw[:i] + bytes([value]) + raw[i + 1 :])


@settings(max_examples=more(150, 500))
@given(any_message, st.data())
def test_mutated(message: Any, data: st.DataObject) -> None:
    raw = bytearray(m.encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw)))
        match data.draw(st.integers(0, 2)):
            case 0:
                raw[at:at] = data.draw(st.binary(max_size=6))
            case 1:
                del raw[at : at + data.draw(st.integers(1, 40))]
            case _:
                raw[at : at + 1] = data.draw(st.binary(min_size=1, max_size=1))
    message_or_refusal(bytes(raw))


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=40)
    | st.binary(max_size=100)
    | st.sampled_from([H, S, 7]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=4), inner, max_size=2)
        | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=3))
    ),
    max_leaves=8,
)


@settings(max_examples=more(100, 300))
@given(anything)
def test_any_other_content(content: Any) -> None:
    assert message_or_refusal(msgpack.packb(content)) is None


@settings(max_examples=more(100, 300))
@given(st.sampled_from(sorted(KINDS)), st.lists(anything, max_size=5))
def test_any_fields(name: str, values: list[Any]) -> None:
    message_or_refusal(msgpack.packb([name, *values]))


# Fields

WRONG: list[Any] = [
    *(None, True, False, -1, 2**32, 2**64 - 1, 0.0, 1.5, float("nan"), "", "7", "a" * 32, "a" * 64),
    *(b"", b"short", bytes(31), bytes(33), bytes(63), bytes(65), {}, [], [[]], [None], [[1]], [[1, b""]]),
    *([[1, bytes(m.SEALED_BYTES), 1]], [[-1, bytes(m.SEALED_BYTES)]], [["1", bytes(m.SEALED_BYTES)]], ["1"], [1.0]),
    *([7, H, H, S, 1], [7, H, H], [7, H, H, "s" * 64], [7, "k" * 32, H, S], [True, H, H, S], [7.0, H, H, S]),
    *(
        [{}],
        msgpack.ExtType(5, b""),
        msgpack.ExtType(5, H),
        msgpack.Timestamp(1),
        [7, H[:-1], H, S],
        [7, H, H, S + b"1"],
    ),
]
RIGHT: dict[str, Callable[[Any], bool]] = {  # of the above, what a field does allow
    "words": lambda v: isinstance(v, bytes),
    **dict.fromkeys(["entries", "sealed", "alive", "dead", "signatures", "seeds", "keys"], lambda v: v == []),
}


def plain(message: Any) -> list[Any]:
    found: list[Any] = msgpack.unpackb(m.encode(message))
    return found


@pytest.mark.parametrize("name", KINDS)
def test_fields_of_another_type(name: str) -> None:
    good = plain(EXAMPLES[name])
    for i, field in enumerate(fields(KINDS[name]), 1):
        tried = 0
        for wrong in WRONG:
            if field.name in RIGHT and RIGHT[field.name](wrong):
                continue
            said = refused(msgpack.packb([*good[:i], wrong, *good[i + 1 :]]))
            assert said.startswith((f"{name}: ", "no message: "))
            tried += 1
        assert tried > 25


@pytest.mark.parametrize("name", KINDS)
def test_missing_and_extra_fields(name: str) -> None:
    good = plain(EXAMPLES[name])
    count = len(good) - 1
    for n in range(count):
        assert f"{name} has {count} fields" in refused(msgpack.packb(good[: n + 1]))
    for extra in (None, 7, H, []):
        assert f"{name} has {count} fields" in refused(msgpack.packb([*good, extra]))


@pytest.mark.parametrize(
    "kind", ["", "roster", "Roster ", "Roster\0", "Entry", "Task", 1, None, b"Roster", ["Roster"], {}]
)
def test_unknown_kinds(kind: Any) -> None:
    refused(msgpack.packb([kind, H, []]))


@pytest.mark.parametrize("content", [None, 1, "Roster", b"Roster", {}, {"Roster": 1}, [], [[]], 1.0, True])
def test_what_is_no_list_with_a_name(content: Any) -> None:
    refused(msgpack.packb(content))


def test_text_must_be_text() -> None:
    refused(b"\x91\xa2\xff\xfe")
    refused(b"\x93\xa6Roster\xc4 " + H + b"\x91\xa4\xed\xa0\x80\x80")


def test_maps_are_refused() -> None:
    """Pydantic would read an entry from a map of its names, and print the names that it does not know."""
    entry = {"client": 7, "mask_key": H, "channel_key": H, "signature": S}
    for content in (entry, {"client": 7}, {"hunter2": 1}, {**entry, "hunter2": 1}):
        assert "hunter" not in refused(msgpack.packb(["Advertise", H, content]))
        assert "hunter" not in refused(msgpack.packb(["Roster", H, [content]]))


@pytest.mark.parametrize("raw", [b"\x91\xd4\x05x", b"\x91\xc7\x00\xff", b"\x91\xd6\xff\0\0\0\1", b"\xc7\x00\x05"])
def test_extensions_are_refused(raw: bytes) -> None:
    refused(raw)


def test_lists_end_at_the_largest_cohort() -> None:
    ids = range(LARGEST_COHORT)
    room = 10 * LARGEST_COHORT
    assert len(decode(m.encode(m.Question(H, tuple(ids), ())), room).alive) == LARGEST_COHORT
    said = refused(msgpack.packb(["Question", H, [*ids, 65536], []]), room)
    assert said.startswith("Question: ")


# Nothing is shown

MARKS: list[Any] = [
    "hunter2-hunter2-hunter2-hunter2!",
    b"hunter2-hunter2",
    b"hunter2-" * 50,
    ["hunter2-hunter2", b"hunter2-hunter2"],
    [["hunter2-hunter2", 98765432109876]],
    [[98765432109876, b"hunter2-hunter2"]],
    [[1, b"hunter2-hunter2"]],
    [98765432109876],
    -98765432109876,
    98765432109876,
    98765432.109876,
    [5, b"hunter2-" * 4, b"hunter2-" * 4, b"hunter2-" * 9],
    [[5, b"hunter2-" * 4, b"hunter2-" * 4, "hunter2-" * 8]],
]


@pytest.mark.parametrize("name", KINDS)
def test_refusals_show_no_values(name: str) -> None:
    good = plain(EXAMPLES[name])
    seen = 0
    for i, mark in itertools.product(range(1, len(good)), MARKS):
        raw = msgpack.packb([*good[:i], mark, *good[i + 1 :]])
        if (name, fields(KINDS[name])[i - 1].name) == ("Masked", "words") and isinstance(mark, bytes):
            continue
        said = refused(raw)
        assert "hunter" not in said
        assert "98765432" not in said
        assert b"hunter".hex() not in said
        assert len(said) < 600
        seen += 1
    assert seen >= 2 * (len(MARKS) - 2)


def test_refusals_of_other_forms_show_no_values() -> None:
    for content in (["hunter2", 1], {"hunter2": 1}, "hunter2", b"hunter2", [b"hunter2"], ["Roster", "hunter2"]):
        assert "hunter" not in refused(msgpack.packb(content))
    assert "hunter" not in refused(b"\x92\xa6Rosterhunter2hunter2")
    assert "hunter" not in refused(b"\x91\xa9hunter2\xff\xfe")


def test_messages_print_neither_updates_nor_shares() -> None:
    mark = b"hunter2!" * 5
    masked, share = m.Masked(H, 7, mark), mark[: m.SHARE_BYTES]
    answer = m.Answer(H, 7, ((1, share),), ((2, share),))
    for message in (masked, answer):
        assert "hunter" not in f"{message} {message!r} {message!s}"


# Bounded work and memory

FEW = 200  # lines of Python that a refusal may run, however long the message is
MEMORY = 120  # bytes that may be in use for a byte of the message


def read(raw: bytes) -> None:
    with suppress(MalformedError):
        decode(raw, len(raw))


def effort(raw: bytes) -> int:
    return lines(lambda: read(raw))


def memory(raw: bytes) -> int:
    read(raw)  # what is made once and kept does not count
    return peak_bytes(lambda: read(raw))


@pytest.mark.parametrize("head", [0xDD, 0xC6, 0xDB, 0xDF, 0xC9])
@pytest.mark.parametrize("declared", [2**32 - 1, 2**31, 10**8])
def test_huge_declared_lengths_cost_nothing(head: int, declared: int) -> None:
    """An array, bytes, text, a map and an extension of up to 4 GiB that never come."""
    value = bytes([head]) + declared.to_bytes(4, "big")
    for raw in (value, b"\x93\xa6Roster" + value, b"\x93\xa6Roster\xc4 " + H + b"\x91" + value + bytes(50)):
        refused(raw)
        assert memory(raw) < 10**6
        assert effort(raw) < FEW


@pytest.mark.parametrize("depth", [10, 500, 1000, 5000, 100_000])
def test_deep_nesting(depth: int) -> None:
    for raw in (b"\x91" * depth, b"\x91" * depth + b"\xc0", b"\x93\xa6Roster\xc4 " + H + b"\x91" * depth + b"\xc0"):
        refused(raw)
        assert memory(raw) < 10**6
        assert effort(raw) < FEW
    refused(b"\x81\xa1a" * depth)


def listing(name: str, item: bytes, n: int) -> bytes:
    return msgpack.packb(name).join([b"\x93", b""]) + b"\xc4 " + H + b"\xdd" + n.to_bytes(4, "big") + item * n


ITEMS = {
    "zeros": b"\0",
    "lists": b"\x90",
    "pairs": b"\x92\0\0",
    "maps": b"\x80",
    "texts": b"\xa1x",
    "floats": b"\xcb" + H[:8],
}


@pytest.mark.parametrize("item", ITEMS)
@pytest.mark.parametrize("name", ["Roster", "Inbox"])
def test_long_lists_of_junk_are_one_error(name: str, item: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hostile message of an allowed size must not cost more than an honest one: it is refused at its first item."""
    raw, errors, places = listing(name, ITEMS[item], 60_000), [], wire._places

    def counted(error: Any) -> str:
        errors.append(error.error_count())
        return places(error)

    monkeypatch.setattr(wire, "_places", counted)
    refused(raw, len(raw))
    assert errors[0] <= 4  # of the first item, which has no more parts
    assert memory(raw) < MEMORY * len(raw)
    assert effort(raw) < FEW


@pytest.mark.parametrize("size", [50_000, 2_000_000])
def test_lists_of_lists_that_never_come(size: int) -> None:
    """Each of a thousand lists in lists declares as many items as the message has bytes: there must not be room for
    the square of them (msgpack keeps at most 80 kB for each)."""
    raw = (b"\xdd" + (size - 5000).to_bytes(4, "big")) * 1000
    raw += bytes(size - len(raw))
    refused(raw, len(raw))
    assert memory(raw) < 1e8 + 40 * size
    assert effort(raw) < FEW


def test_honest_messages_are_within_these_limits() -> None:
    """So that they are not below what is needed; and a roster of twice the length is twice the work."""
    some, twice = (m.encode(m.Roster(H, tuple(m.Entry(i, H, H, S) for i in range(n)))) for n in (1000, 2000))
    assert memory(twice) < MEMORY * len(twice)
    assert effort(twice) < 2.5 * effort(some)
