"""Adversaries and releases: named, parsed back to the same text, and refused when they make no sense."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from confide.base.errors import InputError
from confide.graph.graph import Graph
from confide.plans import words
from confide.plans.words import Colluders, Links


@pytest.mark.parametrize("text", ["links", "colluders:1,2", "colluders:0", "neighbours", "own-client", "own-server"])
def test_threats_read_and_write(text: str) -> None:
    threat = words.threat(text)
    assert str(threat) == text
    assert threat.kind in KINDS
    assert threat.words
    threat.check(4)


def test_who_colludes_against_whom() -> None:
    star = Graph.star(5)
    assert words.threat("links").against(star, 1) == frozenset()
    assert words.threat("colluders:2,4").against(star, 1) == {2, 4}
    assert words.threat("neighbours").against(star, 1) == {0}
    assert words.threat("neighbours").against(star, 0) == {1, 2, 3, 4}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("everyone", "known: links"),
        ("link", "did you mean 'links'"),
        ("links:1", "takes no servers"),
        ("own-server:2", "takes no servers"),
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
        words.threat("colluders:1,4").check(4)
    with pytest.raises(InputError, match="nobody is left to protect"):
        words.threat("colluders:0,1,2,3").check(4)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Threat("everyone"),
        lambda: Links(frozenset({1})),
        lambda: Colluders(),
        lambda: Colluders(frozenset({1.5})),  # type: ignore[arg-type]
        lambda: Colluders(frozenset({True})),
        lambda: Colluders(frozenset({-1})),
        lambda: Release("all"),
        lambda: Release("centroid", math.nan),
        lambda: Release("centroid", -1.0),
        lambda: Release("centroid", math.inf),
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
