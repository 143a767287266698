"""What a user says about privacy: read once, refused by the key that is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from confide.base.errors import InputError
from confide.plans.privacy import Budget, Privacy
from confide.plans.text import decoded, encoded
from confide.plans.words import Cap, Centroid, Colluders, ConvexGlm, Level


@pytest.mark.parametrize(
    "wrong",
    [{"delta": 0.0}, {"delta": 1.0}, {"epsilon": -1.0}, {"rho": float("nan")}, {"epsilon": 1.0, "rho": 1.0},
     {"level": "x"}, {"adjacency": "x"}, {"proof": "x"}, {"participation": "x"}, {"threat": "x"}, {"release": "x"},
     {"smoothness": 0.0}],
)  # fmt: skip
def test_nonsense_is_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong)) if len(wrong) == 1 else "rho"):
        Privacy(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"unprotected": 1}, {"releases": 0}, {"releases": 1.5}, {"delta": "small"}])
def test_what_is_no_word_is_refused_by_its_key(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError) as e:
        Privacy(**wrong)  # type: ignore[arg-type]
    assert e.value.field == f"privacy.{next(iter(wrong))}"


def test_words_as_text_or_as_types_are_the_same() -> None:
    text = Privacy("example", proof="convex-glm:0.1", participation="cap:3", threat="colluders:1", release="centroid:2")
    typed = Privacy(
        Level.EXAMPLE,
        proof=ConvexGlm(0.1),
        participation=Cap(3),
        threat=Colluders(frozenset({1})),
        release=Centroid(2.0),
    )
    assert text == typed
    assert replace(text, delta=1e-3).proof == ConvexGlm(0.1)
    assert decoded(Privacy, encoded(text), "privacy") == text


def test_the_name_of_the_data_is_no_part_of_a_plan() -> None:
    assert Privacy(dataset="clinic") == Privacy()
    assert "dataset" not in encoded(Privacy(dataset="clinic"))


def test_a_budget_is_one_number_at_a_delta() -> None:
    assert Privacy().budget is None
    assert Privacy(epsilon=2.0, delta=1e-6).budget == Budget(epsilon=2.0, delta=1e-6)
    assert Privacy(rho=0.5).budget == Budget(rho=0.5)
    assert (Budget(rho=0.5).limit, Budget(epsilon=2.0).limit) == (0.5, 2.0)
    assert Budget(rho=0.5).part(0.25) == Budget(rho=0.125)
    assert Budget(epsilon=2.0).part(0.25) == Budget(epsilon=1.0)
