"""Fixed point against Python's own integers, and ranges that are proved before a run."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confide.base.errors import InputError
from confide.graph.graph import Graph
from confide.rounds.arithmetic import WEIGHT_BITS, FixedArithmetic, FloatArithmetic, check_range, on_grid, scaled
from confide.rounds.schemes import Scheme, scheme
from exploring import more

states = st.integers(-(2**62), 2**62)
near_edges = st.sampled_from([s * (2**k + d) for s in (1, -1) for k in (0, 1, 15, 16, 31, 32, 61) for d in (-1, 0, 1)])
models = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8).map(np.array)
arithmetics = st.builds(FixedArithmetic, st.integers(1, 40), st.integers(1, 30))


@st.composite
def products(draw: st.DrawFn) -> tuple[int, int, int]:
    """(factor, x, bits) over the whole range."""
    bits = draw(st.integers(1, 32))
    factor = draw(st.one_of(st.integers(0, 2**bits), st.sampled_from([0, 1, 2 ** (bits - 1), 2**bits - 1, 2**bits])))
    return factor, draw(st.one_of(states, near_edges)), bits


def half_away(q: Fraction) -> int:
    """Round half away from zero, with Python's integers."""
    size = (2 * abs(q) + 1) // 2
    return int(size) if q >= 0 else -int(size)


@given(products())
@settings(max_examples=more(200, 600))
def test_scaled_is_the_rounded_product(case: tuple[int, int, int]) -> None:
    factor, x, bits = case
    result = scaled(factor, np.array([x], dtype=np.int64), bits)
    assert result.dtype == np.int64
    assert int(result[0]) == half_away(Fraction(factor * x, 2**bits))


@given(products())
@settings(max_examples=more(100, 300))
def test_scaled_is_odd(case: tuple[int, int, int]) -> None:
    factor, x, bits = case
    there, back = scaled(factor, np.array([x, -x], dtype=np.int64), bits)
    assert there == -back


@pytest.mark.parametrize("factor", [-1, 2**16 + 1])
def test_a_weight_outside_0_to_1_is_refused(factor: int) -> None:
    with pytest.raises(InputError, match=r"must lie in \[0, 1\]"):
        scaled(factor, np.array([1], dtype=np.int64), 16)


@given(arithmetics, st.floats(0, 1), st.lists(states, min_size=1, max_size=6))
def test_weigh_is_odd_in_both_arithmetics(a: FixedArithmetic, weight: float, xs: list[int]) -> None:
    x = np.array(xs, dtype=np.int64)
    assert np.array_equal(a.weigh(weight, -x), -a.weigh(weight, x))
    f = FloatArithmetic(a.L)
    assert np.array_equal(f.weigh(weight, -x.astype(float)), -f.weigh(weight, x.astype(float)))


# ---- the grid of weights


@pytest.mark.parametrize("rule", ["lazy", "metropolis", "uniform"])
@pytest.mark.parametrize("shape", ["ring:7", "star:9", "random:12:0.3", "complete:11", "path:1", "path:2"])
def test_weights_on_the_grid_sum_to_one_exactly(shape: str, rule: str) -> None:
    graph = Graph.parse(shape, weights=rule, seed=3)
    g = on_grid(graph)
    A = g.A * 2**WEIGHT_BITS
    assert np.array_equal(A, np.rint(A))
    assert np.array_equal(A.sum(axis=0), np.full(g.P, 2.0**WEIGHT_BITS))  # sums of integers: exact
    assert np.array_equal(A, A.T)
    assert np.abs(g.edge_weights - graph.edge_weights).max(initial=0.0) <= 2.0**-17
    assert np.array_equal(on_grid(g).A, g.A)


def test_a_weight_that_would_vanish_is_refused() -> None:
    a = 2.0**-18
    graph = Graph.from_matrix([[1 - a, a], [a, 1 - a]])
    with pytest.raises(InputError, match=r"edge \(0, 1\).*would vanish"):
        on_grid(graph)


def test_no_weight_left_after_rounding_is_refused() -> None:
    """Three neighbours, each weight rounded up: the hub would keep less than nothing."""
    a = 1 / 3  # 21845.33 rounds down; 0.33333778 is 21845.6 and rounds up
    up = (21845.6) / 2**16
    A = np.eye(4)
    for leaf, weight in ((1, up), (2, up), (3, 1 - 2 * up)):
        A[0, leaf] = A[leaf, 0] = weight
        A[leaf, leaf] = 1 - weight
    A[0, 0] = 0.0
    assert up > a
    with pytest.raises(InputError, match="server 0 has no weight left"):
        on_grid(Graph.from_matrix(A))


# ---- numbers and states


@given(arithmetics, models)
def test_encode_truncates_toward_zero_and_never_grows_a_norm(a: FixedArithmetic, update: np.ndarray) -> None:
    sent = a.encode(update) * a.client_quantum  # exact: a power of two
    assert np.all(np.abs(sent) <= np.abs(update))
    assert np.all(np.abs(update - sent) < a.client_quantum)
    assert np.all(sent * update >= 0)
    for order in (1, 2, np.inf):
        assert np.linalg.norm(sent, order) <= np.linalg.norm(update, order)


@given(arithmetics, st.lists(st.integers(-(2**50), 2**50), min_size=1, max_size=6))
def test_value_and_state_are_inverse(a: FixedArithmetic, xs: list[int]) -> None:
    x = np.array(xs, dtype=np.int64)
    assert np.array_equal(a.state(a.value(x)), x)


@given(arithmetics, models)
def test_state_is_the_nearest_multiple(a: FixedArithmetic, w: np.ndarray) -> None:
    assert np.all(np.abs(a.value(a.state(w)) - w) <= 0.5000001 * a.quantum + 1e-15 * np.abs(w))


def test_adding_the_mean_of_l_updates_is_integer_addition() -> None:
    a = FixedArithmetic(L=3, fraction_bits=8)
    w, updates = np.array([1.0, -2.0]), np.array([[0.5, 0.25], [0.125, 0.0], [-1.0, 2.0]])
    total = sum(a.encode(u) for u in updates)
    assert np.array_equal(a.add(a.state(w), total, 0.0), a.state(w) + total)
    np.testing.assert_allclose(a.value(a.add(a.state(w), total, 0.0)), w + updates.mean(axis=0), rtol=1e-15)


@given(st.floats(0, 1), st.floats(-100, 100), st.floats(-10, 10))
def test_decay_is_the_same_in_both_arithmetics(shrink: float, w: float, total: float) -> None:
    a, f = FixedArithmetic(4, 24), FloatArithmetic(4)
    x, t = np.array([w]), np.array([total])
    fixed = a.value(a.add(a.state(x), a.encode(t), shrink))
    bound = a.quantum * 3 + a.client_quantum + abs(w) * 2.0**-32
    assert abs(fixed[0] - f.add(x, t, shrink)[0]) <= bound


# ---- range


def refusal(a: FixedArithmetic, s: Scheme, g: Graph, update: float, rounds: int) -> int | None:
    """None where the run is allowed, else the fraction bits that the message suggests."""
    try:
        check_range(a, s, g, update, rounds)
    except InputError as e:
        return int(re.findall(r"use at most (\d+)", e.remedy)[0]) if e.field == "algorithm.fraction_bits" else -1
    return None


@given(
    st.sampled_from(["none", "homomorphic", "shared", "per-link", "partial:0.3"]),
    st.floats(0.0, 100.0),
    st.floats(1e-3, 1e3),
    st.integers(1, 10**6),
    st.integers(1, 100),
)
def test_the_suggested_bits_are_accepted(name: str, sigma: float, update: float, rounds: int, L: int) -> None:
    g, s = Graph.ring(5), scheme(name, 0.0 if name == "none" else sigma)
    bits = refusal(FixedArithmetic(L, 52), s, g, update, rounds)
    if bits is not None:
        assert 1 <= bits < 52
        assert refusal(FixedArithmetic(L, bits), s, g, update, rounds) is None
        assert refusal(FixedArithmetic(L, bits + 2), s, g, update, rounds) is not None  # not needlessly small


def test_range_grows_with_rounds_update_and_noise() -> None:
    g, a = Graph.ring(5), FixedArithmetic(1, 40)
    fine = (scheme("shared", 1.0), 1.0, 1000)
    assert refusal(a, fine[0], g, fine[1], fine[2]) is None
    assert refusal(a, fine[0], g, fine[1], 10**6) is not None
    assert refusal(a, fine[0], g, 10.0**6, fine[2]) is not None
    assert refusal(a, scheme("shared", 1000.0), g, fine[1], fine[2]) is not None


def test_the_range_begins_at_the_initial_weights() -> None:
    a, given = FixedArithmetic(3, 20), (scheme("shared", 1.0), Graph.ring(5), 1.0, 10)
    for start in (1.0, 1e-9, 100.3):
        assert check_range(a, *given, start) >= check_range(a, *given) + float(a.value(a.state(np.array(start))))
    with pytest.raises(InputError, match="could overflow"):
        check_range(a, *given, 2.0**42)


def test_where_no_grid_fits_the_message_does_not_suggest_one() -> None:
    with pytest.raises(InputError) as refused:
        check_range(FixedArithmetic(10, 20), scheme("shared", 1e15), Graph.ring(5), 1.0, 10**6)
    assert "at most -" not in refused.value.remedy
    assert "fewer rounds" in refused.value.remedy
