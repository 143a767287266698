"""Checks at the edge: what passes comes back as a plain number, what does not says why."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from confide.base.errors import InputError
from confide.base.validation import number, one_of, positive, positive_int, positive_range, probability, whole


@pytest.mark.parametrize(
    ("check", "value", "expected"),
    [
        (lambda f, v: whole(f, v, 0), 0, 0),
        (lambda f, v: whole(f, v, 1, 3), np.int64(3), 3),
        (lambda f, v: whole(f, v, -5), np.uint8(7), 7),
        (positive_int, 1, 1),
        (positive_int, 10**30, 10**30),
        (number, -2, -2.0),
        (number, np.float32(0.5), 0.5),
        (number, Fraction(1, 4), 0.25),
        (positive, 1e-300, 1e-300),
        (probability, 0, 0.0),
        (probability, 1, 1.0),
        (positive_range, [1, 2], (1.0, 2.0)),
        (positive_range, (0.5, 0.5), (0.5, 0.5)),
        (lambda f, v: one_of(f, v, ("a", "b")), "b", "b"),
    ],
)
def test_what_is_right_comes_back_as_a_plain_value(check: Callable, value: object, expected: object) -> None:
    got = check("field", value)
    assert got == expected
    assert type(got) is type(expected)  # NumPy's numbers would not go into JSON


@pytest.mark.parametrize(
    ("check", "value", "remedy"),
    [
        (lambda f, v: whole(f, v, 1), 0, "must be at least 1"),
        (lambda f, v: whole(f, v, 1, 3), 4, "must be between 1 and 3"),
        (lambda f, v: whole(f, v, 1, 3), 0, "must be between 1 and 3"),
        (lambda f, v: whole(f, v, 0), True, "must be a whole number"),
        (lambda f, v: whole(f, v, 0), np.True_, "must be a whole number"),
        (lambda f, v: whole(f, v, 0), 1.0, "must be a whole number"),
        (lambda f, v: whole(f, v, 0), "1", "must be a whole number"),
        (lambda f, v: whole(f, v, 0), None, "must be a whole number"),
        (positive_int, 0, "must be at least 1"),
        (number, "1", "must be a number"),
        (number, None, "must be a number"),
        (number, False, "must be a number"),
        (number, 1j, "must be a number"),
        (number, [1.0], "must be a number"),
        (number, math.nan, "must be finite"),
        (number, -math.inf, "must be finite"),
        (number, np.float64("inf"), "must be finite"),
        (number, 10**400, "must be finite"),
        (lambda f, v: number(f, v, 0.0), -1e-9, "must be at least 0"),
        (lambda f, v: number(f, v, 0.0, 2.5), 3, "must be between 0 and 2.5"),
        (positive, 0, "must be positive"),
        (positive, -0.0, "must be positive"),
        (positive, math.nan, "must be finite"),
        (probability, 1.0000001, "must be between 0 and 1"),
        (probability, -0.1, "must be between 0 and 1"),
        (positive_range, [1], r"must be two numbers \[low, high\]"),
        (positive_range, [1, 2, 3], r"must be two numbers \[low, high\]"),
        (positive_range, "12", r"must be two numbers \[low, high\]"),
        (positive_range, 3.0, r"must be two numbers \[low, high\]"),
        (positive_range, [2, 1], "the low end must not exceed the high end"),
    ],
)
def test_what_is_wrong_names_field_value_and_remedy(check: Callable, value: object, remedy: str) -> None:
    with pytest.raises(InputError, match=f"field = .*: {remedy}") as caught:
        check("field", value)
    assert caught.value.field == "field"
    assert caught.value.value is value
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(("value", "place"), [([0, 1], 0), ([1, -1], 1), ([1, "2"], 1)])
def test_a_range_says_which_end_is_wrong(value: list[object], place: int) -> None:
    with pytest.raises(InputError, match=rf"field\[{place}\] = {value[place]!r}: "):
        positive_range("field", value)


def test_a_misspelt_word_gets_the_nearest_and_any_gets_the_list() -> None:
    with pytest.raises(
        InputError, match=r"^f = 'homomorfic': did you mean 'homomorphic'\? known: homomorphic, shared$"
    ):
        one_of("f", "homomorfic", ("homomorphic", "shared"))
    for strange in ("zzz", 3, None, ["shared"]):
        with pytest.raises(InputError, match="known: homomorphic, shared") as caught:
            one_of("f", strange, ("homomorphic", "shared"))
        assert ("did you mean" in str(caught.value)) == (strange == ["shared"])


@given(st.floats(allow_nan=True, allow_infinity=True), st.floats(-10, 10), st.floats(0, 10))
def test_a_number_passes_exactly_when_it_is_finite_and_inside(x: float, least: float, width: float) -> None:
    inside = math.isfinite(x) and least <= x <= least + width
    try:
        assert number("field", x, least, least + width) == x
        assert inside
    except InputError:
        assert not inside
