"""Adversaries, releases and other words: parsed back to the same text, and refused when they make no sense."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from confide.base.errors import InputError
from confide.plans import words
from confide.plans.words import Centroid, Colluders, Level, Threat


@pytest.mark.parametrize("text", ["links", "colluders:1,2", "colluders:0", "neighbours", "own-client", "own-server"])
def test_threats_read_and_write(text: str) -> None:
    threat = words.threat(text)
    assert str(threat) == text
    assert words.threat(threat) is threat
    assert isinstance(threat, Threat)
    assert threat.adversary
    words.check_servers(threat, 4)


def test_who_is_named() -> None:
    assert words.colluders(words.threat("colluders:4,2")) == {2, 4}
    for others in ("links", "neighbours", "own-client", "own-server"):
        assert words.colluders(words.threat(others)) == frozenset()


@pytest.mark.parametrize(
    ("union", "text"),
    [(words.Proof, x) for x in ("none", "public-point", "regulariser:0.1", "convex-glm:1e-05")]
    + [(words.Participation, x) for x in ("all", "cap:12", "random:0.25", "amplified:1")]
    + [(words.Threat, x) for x in ("links", "colluders:0,3")]
    + [(words.Release, x) for x in ("none", "local", "consensus:7", "centroid:0.30000000000000004")],
)
def test_every_word_is_spelled_as_it_is_read(union: Any, text: str) -> None:
    word = words.parse(union, text, "field")
    assert str(word) == text
    assert words.parse(union, str(word), "field") == word


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (words.proof, "regulariser:1_0"),
        (words.proof, "convex-glm: 1"),
        (words.participation, "cap:+3"),
        (words.participation, "random:.5"),
        (words.release, "centroid:0x1p3"),
        (words.threat, "colluders: 1"),
    ],
)
def test_a_number_is_spelled_plainly(parse: Callable[[str], object], text: str) -> None:
    """Also where Python would read it."""
    with pytest.raises(InputError, match=text.partition(":")[0]):
        parse(text)


def test_a_cap_says_in_how_many_rounds() -> None:
    assert words.cap(words.participation("cap:3")) == 3
    assert words.cap(words.participation("cap:1e2")) == 100
    assert [words.cap(words.participation(x)) for x in ("all", "random:0.5", "amplified:0.5")] == [None] * 3


def test_words_of_closed_lists() -> None:
    assert words.chosen(Level, "example", "privacy.level") is Level.EXAMPLE
    with pytest.raises(InputError, match=r"known: unit .*, client .*, example ") as e:
        words.chosen(Level, "clients", "privacy.level")
    assert e.value.field == "privacy.level"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("everyone", "known: links"),
        ("link", "did you mean 'links'"),
        ("links:1", "takes nothing after it; write links"),
        ("own-server:2", "takes nothing after it"),
        ("colluders", "servers' numbers"),
        ("colluders:", "servers' numbers"),
        ("colluders:a", "servers' numbers"),
        ("colluders:nan", "servers' numbers"),
        ("colluders:1.5", "servers' numbers"),
        ("colluders:-1", "does not exist"),
        ("", "known: links"),
    ],
)
def test_nonsense_threats_are_refused(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as e:
        words.threat(text)
    assert e.value.field == "threat"


def test_colluders_must_be_servers_and_leave_somebody() -> None:
    with pytest.raises(InputError, match="server 4 does not exist; they are 0 to 3"):
        words.check_servers(words.threat("colluders:1,4"), 4)
    with pytest.raises(InputError, match="nobody is left to protect"):
        words.check_servers(words.threat("colluders:0,1,2,3"), 4)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Colluders(frozenset()),
        lambda: Colluders(frozenset({1.5})),  # type: ignore[arg-type]
        lambda: Colluders(frozenset({True})),
        lambda: Colluders(frozenset({-1})),
        lambda: Centroid(math.nan),
        lambda: Centroid(-1.0),
        lambda: Centroid(math.inf),
    ],
)
def test_nonsense_cannot_be_built_by_hand_either(make: Callable[[], object]) -> None:
    with pytest.raises(InputError):
        make()


@pytest.mark.parametrize("text", ["none", "local", "centroid:0", "centroid:0.5"])
def test_releases_read_and_write(text: str) -> None:
    assert str(words.release(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "model",
        "none:1",
        "local:2",
        "centroid",
        "centroid:",
        "centroid:x",
        "centroid:-1",
        "centroid:nan",
        "centroid:inf",
    ],
)
def test_nonsense_releases_are_refused(text: str) -> None:
    with pytest.raises(InputError) as e:
        words.release(text)
    assert e.value.field == "release"
