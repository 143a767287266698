"""Clipping: a bound that holds, for every vector, and nothing else changed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from confide.base.errors import InputError
from confide.rounds.clipping import KINDS, NORMS, Clip, clip

numbers = st.floats(-1e100, 1e100, allow_subnormal=False).filter(lambda x: x == 0 or abs(x) > 1e-100)
tables = hnp.arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(1, 6)), elements=numbers)
bounds = st.floats(1e-6, 1e6)
norms = st.sampled_from(NORMS)


def size(v: np.ndarray, norm: str) -> float:
    return math.fsum(np.abs(v)) if norm == "l1" else math.hypot(*v)


@given(tables, bounds, norms)
def test_no_row_exceeds_the_bound_and_none_turns(table: np.ndarray, bound: float, norm: str) -> None:
    clipped = clip(table, bound, norm)
    assert clipped.shape == table.shape
    for v, c in zip(table, clipped, strict=True):
        assert size(c, norm) <= bound * (1 + 1e-12)
        if size(v, norm) <= bound * (1 - 1e-12):
            assert np.array_equal(c, v)
        elif size(v, norm) > bound * (1 + 1e-12):
            assert size(c, norm) == pytest.approx(bound, rel=1e-12)
            np.testing.assert_allclose(c, v / size(v, norm) * bound, rtol=1e-12)  # same direction


@given(hnp.arrays(np.float64, st.integers(1, 6), elements=numbers), bounds, norms)
def test_a_vector_is_clipped_as_a_row_of_a_table(v: np.ndarray, bound: float, norm: str) -> None:
    assert np.array_equal(clip(v, bound, norm), clip(np.stack([v, v]), bound, norm)[1])


@pytest.mark.parametrize("norm", NORMS)
def test_zero_stays_exactly_zero(norm: str) -> None:
    assert clip(np.zeros((3, 2)), 1e-300, norm).tolist() == [[0, 0]] * 3


def test_rows_are_clipped_one_by_one_by_hand() -> None:
    table = np.array([[3.0, 4.0], [0.3, 0.4], [-6.0, 8.0]])
    np.testing.assert_allclose(clip(table, 1.0), [[0.6, 0.8], [0.3, 0.4], [-0.6, 0.8]], rtol=1e-15)
    np.testing.assert_allclose(clip(table, 7.0, "l1"), [[3, 4], [0.3, 0.4], [-3, 4]], rtol=1e-15)
    assert clip(np.array([3.0, 4.0]), 5.0).tolist() == [3, 4]  # on the sphere is inside


def test_the_input_is_left_alone() -> None:
    v = np.array([3.0, 4.0])
    clip(v, 1.0)
    assert v.tolist() == [3, 4]


def test_an_update_is_bounded_by_step_times_bound() -> None:
    assert Clip("update", 2.0).update_bound(0.25) == 0.5
    assert Clip("example", 2.0).norm == "l2"
    assert {Clip(kind, 1.0, norm).norm for kind in KINDS for norm in NORMS} == {"l1", "l2"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("examples", 1.0), "algorithm.clip = 'examples': did you mean 'example'"),
        ((None, 1.0), "algorithm.clip = None: known: example, update"),
        (("example", 0.0), "algorithm.bound = 0.0: must be positive"),
        (("example", -1), "algorithm.bound = -1: must be positive"),
        (("update", math.inf), "algorithm.bound = inf: must be finite"),
        (("update", math.nan), "algorithm.bound = nan: must be finite"),
        (("update", "1"), "algorithm.bound = '1': must be a number"),
        (("update", True), "algorithm.bound = True: must be a number"),
        (("update", 1.0, "l3"), "algorithm.norm = 'l3': known: l1, l2"),
    ],
)
def test_a_clip_that_makes_no_sense_is_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Clip(*arguments)
