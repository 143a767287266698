"""A release with its noise sized: whose shares hide the mean from whom."""

from __future__ import annotations

import math

import pytest

from confide.base.errors import InputError
from confide.graph.graph import Graph
from confide.plans import words
from confide.plans.words import Centroid, Local
from confide.privacy.reveal import Reveal, known_shares

STAR, RING = Graph.star(5), Graph.ring(5)


def test_who_knows_how_many_shares() -> None:
    each = {
        "links": [0] * 5, "own-client": [0] * 5, "own-server": [1] * 5, "colluders:2,4": [2] * 5,
        "neighbours": [4, 1, 1, 1, 1],
    }  # fmt: skip
    for threat, known in each.items():
        assert [known_shares(words.threat(threat), [STAR], p) for p in range(5)] == known
    # Over several graphs, the neighbours in any of them.
    assert [known_shares(words.threat("neighbours"), [STAR, RING], p) for p in range(5)] == [4, 2, 3, 3, 2]


@pytest.mark.parametrize(
    ("threat", "colluders"),
    [("links", 1), ("own-client", 1), ("own-server", 1), ("colluders:2,4", 2), ("neighbours", 4)],
)
def test_shares_are_sized_for_the_adversary_and_for_any_one_server(threat: str, colluders: int) -> None:
    found = Reveal.sized(Centroid(0.5), words.threat(threat), [STAR], 3)
    assert (found.colluders, found.count, found.sigma) == (colluders, 3, 0.5)
    assert found.hidden(5, colluders) == pytest.approx(0.5)
    assert found.hidden(5, 0) == pytest.approx(0.5 * math.sqrt(5 / (5 - colluders)))
    # Shares on the sum, seen on the mean: those that are not known put sigma there.
    assert math.sqrt(5 - colluders) * found.share(5) / 5 == pytest.approx(0.5)


def test_a_single_share_is_left_where_everybody_may_collude() -> None:
    every = Reveal(Centroid(0.5), colluders=7)
    assert every.hidden(3, 2) == pytest.approx(0.5)
    assert every.share(3) == pytest.approx(1.5)


def test_what_is_said_of_it() -> None:
    assert Reveal(Centroid(1.0)).words == "the release (centroid:1)"
    assert Reveal(Centroid(0.25), count=3).words == "3 releases (centroid:0.25 each)"
    assert (str(Reveal(Local())), Reveal(Local()).sigma, str(Reveal())) == ("local", 0.0, "none")


@pytest.mark.parametrize(
    ("given", "field"),
    [({"colluders": 0}, "release.colluders"), ({"count": 0}, "releases"), ({"count": 1.5}, "releases")],
)
def test_nonsense_is_refused_by_name(given: dict[str, int], field: str) -> None:
    with pytest.raises(InputError) as e:
        Reveal(Centroid(1.0), **given)
    assert e.value.field == field
