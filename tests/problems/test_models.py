"""Models: derivatives against differences, constants against definitions, metrics against pairs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from confide.base.errors import InputError
from confide.problems.models import GLM, Linear, Logistic, Model, auc

KINDS = [Linear, Logistic]


@st.composite
def cases(draw: st.DrawFn) -> tuple[GLM, np.ndarray, np.ndarray, np.ndarray]:
    """(model, w, X, d) with N samples of M features."""
    kind, N, M = draw(st.sampled_from(KINDS)), draw(st.integers(1, 5)), draw(st.integers(1, 4))
    numbers = st.floats(-3, 3, width=32)
    labels = st.sampled_from([-1.0, 1.0]) if kind is Logistic else numbers
    return (
        kind(draw(st.sampled_from([0.0, 0.1, 2.0]))),
        draw(hnp.arrays(np.float64, M, elements=numbers)),
        draw(hnp.arrays(np.float64, (N, M), elements=numbers)),
        draw(hnp.arrays(np.float64, N, elements=labels)),
    )


def whole_gradients(model: GLM, w: np.ndarray, X: np.ndarray, d: np.ndarray) -> np.ndarray:
    return model.gradients(w, X, d) + 2 * model.rho * w


# ---- derivatives


@given(cases())
def test_gradients_are_the_slopes_of_the_loss(case: tuple[GLM, np.ndarray, np.ndarray, np.ndarray]) -> None:
    model, w, X, d = case
    h = 1e-5
    slopes = [(model.loss(w + h * e, X, d) - model.loss(w - h * e, X, d)) / (2 * h) for e in np.eye(len(w))]
    np.testing.assert_allclose(whole_gradients(model, w, X, d), np.transpose(slopes), rtol=1e-6, atol=1e-7)


@given(cases())
def test_the_hessian_is_the_slope_of_the_gradient(case: tuple[GLM, np.ndarray, np.ndarray, np.ndarray]) -> None:
    model, w, X, d = case
    weights = np.arange(1.0, len(d) + 1)
    weights /= weights.sum()
    h = 1e-5
    slopes = [
        weights @ (whole_gradients(model, w + h * e, X, d) - whole_gradients(model, w - h * e, X, d)) / (2 * h)
        for e in np.eye(len(w))
    ]
    np.testing.assert_allclose(model.hessian(w, X, d, weights), slopes, rtol=1e-6, atol=1e-7)


def test_the_squared_loss_by_hand_has_no_half() -> None:
    model, w = Linear(rho=0.1), np.array([1.0, 2.0])
    X, d = np.array([[3.0, 1.0]]), np.array([4.0])  # margin 5, error 1
    assert model.loss(w, X, d) == pytest.approx([1 + 0.1 * 5])
    assert model.gradients(w, X, d).tolist() == [[6.0, 2.0]]  # without the regulariser
    np.testing.assert_allclose(model.hessian(w, X, d, np.ones(1)), [[18.2, 6], [6, 2.2]])


def test_the_logistic_loss_by_hand() -> None:
    model, w = Logistic(rho=0.5), np.array([1.0])
    X, d = np.array([[2.0], [2.0]]), np.array([1.0, -1.0])
    np.testing.assert_allclose(model.loss(w, X, d), [math.log(1 + math.exp(-2)) + 0.5, math.log(1 + math.exp(2)) + 0.5])
    np.testing.assert_allclose(model.gradients(w, X, d), [[-2 / (1 + math.exp(2))], [2 / (1 + math.exp(-2))]])
    np.testing.assert_allclose(model.predict(w, X), 1 / (1 + math.exp(-2)))


def test_the_logistic_model_is_stable_far_out() -> None:
    """Warnings are errors here, so an overflow anywhere fails."""
    model, w = Logistic(), np.array([1.0])
    X, d = np.array([[1000.0], [1000.0], [-1000.0], [-1000.0]]), np.array([1.0, -1.0, 1.0, -1.0])
    assert model.loss(w, X, d) == pytest.approx([0, 1000, 1000, 0])
    assert model.gradients(w, X, d)[:, 0] == pytest.approx([0, 1000, 1000, 0])
    assert model.hessian(w, X, d, np.full(4, 0.25)).item() == pytest.approx(0)
    assert model.predict(w, X) == pytest.approx([1, 1, 0, 0])
    assert model.metrics(w, X, d) == pytest.approx({"error": 0.5, "auc": 0.5, "log_loss": 500.0})


# ---- constants


@given(cases(), st.integers(0, 2**32 - 1))
def test_smoothness_bounds_every_sampled_gradient(
    case: tuple[GLM, np.ndarray, np.ndarray, np.ndarray], seed: int
) -> None:
    model, w, X, d = case
    other = w + np.random.default_rng(seed).normal(0, 2, len(w))
    change = np.linalg.norm(whole_gradients(model, w, X, d) - whole_gradients(model, other, X, d), axis=1)
    assert (change <= model.smoothness(X) * np.linalg.norm(w - other) * (1 + 1e-9) + 1e-12).all()


@pytest.mark.parametrize("kind", KINDS)
def test_smoothness_is_reached(kind: type[GLM]) -> None:
    """Along the longest u, at margin 0, the bound is an equality: no smaller number would do."""
    model = kind(rho=0.3)
    X, d = np.array([[0.1, 0.2], [3.0, -4.0]]), np.ones(2)
    step = 1e-5 * X[1]
    change = whole_gradients(model, step, X, d) - whole_gradients(model, -step, X, d)
    assert np.linalg.norm(change[1]) / np.linalg.norm(2 * step) == pytest.approx(model.smoothness(X), rel=1e-6)
    assert model.smoothness(X) == pytest.approx({Linear: 2.0, Logistic: 0.25}[kind] * 25 + 0.6)


# ---- metrics


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=25))
def test_auc_counts_pairs_and_half_of_ties(rows: list[tuple[int, bool]]) -> None:
    score, positive = np.array([float(s) for s, _ in rows]), np.array([p for _, p in rows])
    pairs = list(itertools.product(score[positive], score[~positive]))
    expected = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs) / len(pairs) if pairs else 0.5
    assert auc(score, positive) == pytest.approx(expected, abs=1e-12)


def test_metrics_by_hand() -> None:
    w, X, d = np.array([2.0]), np.array([[1.0], [-1.0], [0.0], [0.5]]), np.array([1.0, 1.0, -1.0, -1.0])
    assert Linear(rho=9.0).metrics(w, X, d) == {"mse": pytest.approx((1 + 9 + 1 + 4) / 4)}  # no regulariser
    z = np.array([2.0, -2.0, 0.0, 1.0])
    assert Logistic(rho=9.0).metrics(w, X, d) == {
        "error": 0.5,  # a margin of 0 reads as -1
        "auc": 0.5,  # 2 beats both, -2 none
        "log_loss": pytest.approx(np.mean(np.log(1 + np.exp(-d * z)))),
    }
    assert Linear().predict(w, X).tolist() == z.tolist()


# ---- the interface


@pytest.mark.parametrize("kind", KINDS)
def test_both_are_models(kind: type[GLM]) -> None:
    assert isinstance(kind(), Model)
    assert kind().dimension(7) == 7
    assert kind().name == kind.__name__.lower()
    assert kind(0.5) == kind(rho=0.5) != kind(0.4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rho", [-1e-9, math.nan, math.inf, "0.1", None, True])
def test_a_regulariser_that_is_no_number_from_zero_up_is_refused(kind: type[GLM], rho: object) -> None:
    with pytest.raises(InputError, match=r"problem\.rho = "):
        kind(rho)
