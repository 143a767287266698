"""Verdicts of three values, and what a claim looks like in claims.json."""

from __future__ import annotations

import json
import math

import pytest

from confide.experiments.claims import Claim, Condition, Outcome, all_hold

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("value", "error", "at_least", "at_most"),
    [
        (4.0, 0.0, True, False),
        (2.0, 0.0, False, True),
        (3.0, 0.0, False, False),
        (3.5, 0.4, True, False),
        (3.5, 0.5, None, False),
        (2.5, 0.5, False, None),
        (INF, 0.5, True, False),
        (-INF, 0.5, False, True),
        (NAN, 0.0, False, False),
        (4.0, INF, None, None),
        (INF, INF, None, None),
    ],
)
def test_a_number_nearer_than_its_error_decides_nothing(
    value: float, error: float, at_least: bool | None, at_most: bool | None
) -> None:
    assert Condition("x", value, 3.0, error=error).holds is at_least
    assert Condition("x", value, 3.0, error=error, least=False).holds is at_most


def test_one_no_is_no_and_one_open_is_open() -> None:
    assert all_hold([True, True]) is True
    assert all_hold([True, None]) is None
    assert all_hold([None, True, False]) is False


def test_the_condition_that_decides() -> None:
    yes, no, open_ = Condition("yes", 2.0, 1.0), Condition("no", 0.0, 1.0), Condition("open", 2.0, 1.0, error=3.0)
    assert Outcome("r", [yes, open_, no]).deciding is no
    assert Outcome("r", [yes, open_]).deciding is open_
    assert Outcome("r", [yes, Condition("other", 3.0, 1.0)]).deciding is yes
    assert Outcome("r", []).deciding is None
    assert str(no) == "0 dB (>= 1)"
    assert str(Condition("epsilon", 3.13e6, 10.0, "", least=False)) == "3.13e+06 (<= 10)"


def test_a_claim_in_json() -> None:
    default = Outcome(
        "default", [Condition("gap", 1.23456789, 3.0, error=0.5, least=False), Condition("at", INF, 1.0, "times")]
    )
    claim = Claim("x1", "it does", default.holds, {"a": INF, "b": [NAN, 1.23456789]}, "does", "3a", readings=(default,))
    plain = claim.to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["numbers"] == {"a": None, "b": [None, 1.2346]}
    assert plain | {"numbers": 0, "readings": 0} == {
        "id": "x1", "figure": "3a", "statement": "it does", "line": "does", "verdict": "holds", "holds": True,
        "expected": True, "numbers": 0, "readings": 0,
    }  # fmt: skip
    (reading,) = plain["readings"]
    assert (reading["name"], reading["holds"]) == ("default", True)
    assert (
        reading["numbers"]
        == {
            "gap": {"value": 1.2346, "at_most": 3.0, "unit": "dB", "error": 0.5},
            "at": {"value": None, "at_least": 1.0, "unit": "times"},
        }
        or default.holds is not True
    )


@pytest.mark.parametrize(
    ("holds", "expected", "fine"),
    [(True, True, True), (False, True, False), (None, True, True), (False, False, True), (True, False, False),
     (None, False, True)],
)  # fmt: skip
def test_what_is_expected(holds: bool | None, expected: bool, fine: bool) -> None:
    assert Claim("x", "", holds, expected=expected).as_expected is fine
