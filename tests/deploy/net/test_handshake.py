"""The first words on a stream."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import a_plan
from confide.base.wire import MalformedError
from confide.deploy.net.handshake import (
    LARGEST_ANSWER,
    LARGEST_HELLO,
    LARGEST_TEXT,
    LIFE,
    Agreed,
    Common,
    Differs,
    Hello,
    decode,
    encode,
)
from confide.secure.keys import Identity

NONCE, DIALER = b"n" * 32, "confide://alpha/client/c0"


@pytest.fixture(scope="module")
def here() -> Common:
    return Common(1, a_plan().text)


def test_the_same_plan_and_protocol_agree(here: Common) -> None:
    hello = here.hello(NONCE, LIFE)
    assert hello.plan.hex() == a_plan().hash
    assert here.agrees(hello)
    assert not Common(2, here.text).agrees(hello)
    assert not Common(1, a_plan(rounds=7).text).agrees(hello)


def test_a_proof_is_the_listeners_for_this_dialer_now(here: Common, world: Any) -> None:
    own, other = world.node("alpha", "server", "one"), world.node("alpha", "server", "other")
    listener, agreed = own.identity.public, here.agreed(own, NONCE, DIALER, 1e9)
    assert here.proves(agreed, listener, NONCE, DIALER)
    assert not here.proves(agreed, Identity.of(b"1" * 32).public, NONCE, DIALER)
    assert not here.proves(agreed, listener, b"m" * 32, DIALER)
    assert not here.proves(replace(agreed, time=1e9 + 1), listener, NONCE, DIALER)
    assert not here.proves(agreed, listener, NONCE, "confide://alpha/client/c1")
    assert not Common(2, here.text).proves(agreed, listener, NONCE, DIALER)
    assert not here.proves(replace(agreed, identity=bytes(64)), b"no key", NONCE, DIALER)
    assert not here.proves(replace(agreed, certificate=other.certificate), listener, NONCE, DIALER)
    assert not here.proves(replace(agreed, certificate=b"none"), listener, NONCE, DIALER)


def test_the_identity_alone_does_not_show_a_certificate(here: Common, world: Any) -> None:
    """A thief of a certificate that was replaced has the identity and the older key."""
    own, other = world.node("alpha", "server", "one"), world.node("alpha", "server", "other")
    thief = replace(own, key=other.key)
    assert not here.proves(here.agreed(thief, NONCE, DIALER, 1e9), own.identity.public, NONCE, DIALER)


def test_what_differs_is_named(here: Common) -> None:
    there = Common(2, a_plan(rounds=7, step=0.5).text)
    lines = here.lines(there.differs)
    assert lines[0] == "protocol: 1 here, 2 there"
    assert {line.split(":")[0] for line in lines[1:]} == {"rounds", "algorithm.step"}
    assert here.lines(Common(2, here.text).differs) == ["protocol: 1 here, 2 there"]


def test_a_plan_that_is_too_long_is_not_sent(here: Common) -> None:
    long = Common(1, "x" * (LARGEST_TEXT + 1))
    assert long.differs.plan == ""
    assert here.lines(long.differs) == ["plan: another one, too long to be sent; compare the files"]
    longest = Common(1, "x" * LARGEST_TEXT)
    assert len(encode(longest.differs)) <= LARGEST_ANSWER
    assert len(encode(here.hello(NONCE, LIFE))) <= LARGEST_HELLO


@given(st.text() | st.sampled_from(["[" * 100_000, '{"graph": {}}', "1e999", "\x1b[2J"]))
def test_a_hostile_text_is_never_an_exception_and_never_shown_raw(here: Common, text: str) -> None:
    for said in (text, here.text + text, here.text[: -len(text) - 1]):
        lines = here.lines(Differs(1, said))
        assert lines
        assert all(line.isprintable() and len(line) <= 500 for line in lines)


def test_the_same_text_under_another_hash_is_a_lie(here: Common) -> None:
    assert here.lines(here.differs) == ["plan: its hash differs, the text that was sent does not"]


@given(st.binary())
def test_random_bytes_are_malformed(raw: bytes) -> None:
    with pytest.raises(MalformedError):
        decode(raw, Hello, Agreed, Differs)


def test_only_the_word_that_is_due_is_taken(here: Common) -> None:
    assert decode(encode(here.differs), Agreed, Differs) == here.differs
    with pytest.raises(MalformedError, match="must be one of Hello"):
        decode(encode(here.differs), Hello)
