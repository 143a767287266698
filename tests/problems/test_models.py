"""Models: derivatives against differences, constants against definitions, metrics against pairs."""

from __future__ import annotations

import itertools
import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from confide.base.errors import InputError
from confide.problems.models import (
    GLM,
    Linear,
    Logistic,
    Model,
    Regression,
    Softmax,
    auc,
    is_built_in,
    named,
)
from confide.rounds.clipping import clip

KINDS = [Linear, Logistic]
Case = tuple[Regression, np.ndarray, np.ndarray, np.ndarray]


@st.composite
def cases(draw: st.DrawFn, classes: int | None = None) -> Case:
    """(model, w, X, d) with N samples of F features."""
    N, F, rho = draw(st.integers(1, 5)), draw(st.integers(1, 4)), draw(st.sampled_from([0.0, 0.1, 2.0]))
    softmax = Softmax(rho, classes=classes or draw(st.integers(2, 4)))
    model = softmax if classes else draw(st.sampled_from([Linear(rho), Logistic(rho), softmax]))
    numbers = st.floats(-3, 3, width=32)
    of_class = [float(c) for c in range(softmax.classes)]
    labels = numbers if isinstance(model, Linear) else st.sampled_from(of_class if model is softmax else [-1.0, 1.0])
    return (
        model,
        draw(hnp.arrays(np.float64, model.dimension(F), elements=numbers)),
        draw(hnp.arrays(np.float64, (N, F), elements=numbers)),
        draw(hnp.arrays(np.float64, N, elements=labels)),
    )


def whole_gradients(model: Model, w: np.ndarray, X: np.ndarray, d: np.ndarray) -> np.ndarray:
    return model.gradients(w, X, d) + 2 * model.rho * w


# ---- derivatives


@given(cases())
def test_gradients_are_the_slopes_of_the_loss(case: Case) -> None:
    model, w, X, d = case
    h = 1e-5
    slopes = [(model.loss(w + h * e, X, d) - model.loss(w - h * e, X, d)) / (2 * h) for e in np.eye(len(w))]
    np.testing.assert_allclose(whole_gradients(model, w, X, d), np.transpose(slopes), rtol=1e-6, atol=1e-7)


@given(cases())
def test_the_mean_gradient_is_that_of_the_gradients(case: Case) -> None:
    model, w, X, d = case
    weights = np.arange(1.0, len(d) + 1)
    np.testing.assert_allclose(
        model.mean_gradient(w, X, d, weights), weights @ model.gradients(w, X, d), rtol=1e-12, atol=1e-12
    )


def hessian(model: Regression, w: np.ndarray, X: np.ndarray, d: np.ndarray, weights: np.ndarray) -> np.ndarray:
    if isinstance(model, Softmax):
        return np.array([model.hessian_times(w, X, weights, e) + 2 * model.rho * e for e in np.eye(len(w))])
    assert isinstance(model, GLM)
    return model.hessian(w, X, d, weights)


@given(cases())
def test_the_hessian_is_the_slope_of_the_gradient(case: Case) -> None:
    model, w, X, d = case
    weights = np.arange(1.0, len(d) + 1)
    weights /= weights.sum()
    h = 1e-5
    slopes = [
        weights @ (whole_gradients(model, w + h * e, X, d) - whole_gradients(model, w - h * e, X, d)) / (2 * h)
        for e in np.eye(len(w))
    ]
    np.testing.assert_allclose(hessian(model, w, X, d, weights), slopes, rtol=1e-6, atol=1e-7)


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


def test_the_softmax_loss_by_hand() -> None:
    """Two features; the rows of the three classes are one after the other in w."""
    model, w = Softmax(0.5, classes=3), np.array([1.0, 0.0, 0.0, 1.0, 0.0, 0.0])
    X, d = np.array([[1.0, 2.0], [1.0, 2.0]]), np.array([1.0, 2.0])  # margins 1, 2, 0
    e = np.exp([1.0, 2.0, 0.0])
    p = e / e.sum()
    np.testing.assert_allclose(model.loss(w, X, d), [1.0 - np.log(p[1]), 1.0 - np.log(p[2])])
    expected = [p[0], 2 * p[0], p[1] - 1, 2 * (p[1] - 1), p[2], 2 * p[2]]
    np.testing.assert_allclose(model.gradients(w, X, d)[0], expected)
    np.testing.assert_allclose(model.predict(w, X), [p, p])
    assert model.metrics(w, X, d) == {"error": 0.5, "log_loss": pytest.approx(-np.log(p[1:]).mean())}


@given(cases(classes=3))
def test_softmax_is_a_loop_over_samples_and_classes(case: Case) -> None:
    model, w, X, d = case
    F = X.shape[1]
    for n, (u, label) in enumerate(zip(X, d, strict=True)):
        margins = [sum(w[c * F + f] * u[f] for f in range(F)) for c in range(3)]
        total = sum(math.exp(z) for z in margins)
        loss = math.log(total) - margins[int(label)] + model.rho * sum(x * x for x in w)
        assert model.loss(w, X, d)[n] == pytest.approx(loss, rel=1e-12, abs=1e-12)
        for c in range(3):
            off = math.exp(margins[c]) / total - (c == label)
            np.testing.assert_allclose(model.gradients(w, X, d)[n, c * F : (c + 1) * F], off * u, rtol=1e-9, atol=1e-12)


@given(cases(classes=4), st.integers(0, 2**32 - 1))
def test_softmax_knows_no_names_of_classes_and_no_common_part(case: Case, seed: int) -> None:
    model, w, X, d = case
    rng = np.random.default_rng(seed)
    order, W = rng.permutation(4), w.reshape(4, -1)
    named_anew = np.argsort(order)[d.astype(int)].astype(float)
    np.testing.assert_allclose(model.loss(W[order].ravel(), X, named_anew), model.loss(w, X, d), rtol=1e-12, atol=1e-12)
    moved = (W + rng.normal(0, 2, W.shape[1])).ravel()
    np.testing.assert_allclose(model.predict(moved, X), model.predict(w, X), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(model.gradients(moved, X, d), model.gradients(w, X, d), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(model.gradients(w, X, d).reshape(len(d), 4, -1).sum(axis=1), 0.0, atol=1e-12)


@given(cases(classes=2))
def test_of_two_classes_softmax_is_the_logistic_model_of_their_difference(case: Case) -> None:
    model, w, X, d = case
    one, other, signs = *w.reshape(2, -1), 2.0 * d - 1.0
    logistic = Logistic()
    np.testing.assert_allclose(
        model.loss(w, X, d) - model.rho * w @ w, logistic.loss(other - one, X, signs), rtol=1e-9, atol=1e-12
    )
    np.testing.assert_allclose(model.predict(w, X)[:, 1], logistic.predict(other - one, X), rtol=1e-9, atol=1e-12)


def test_the_softmax_model_is_stable_far_out() -> None:
    """Warnings are errors here, so an overflow anywhere fails."""
    model, w = Softmax(classes=3), np.array([1.0, 0.0, -1.0])
    X, d = np.array([[1000.0], [-1000.0]]), np.array([0.0, 0.0])
    assert model.loss(w, X, d) == pytest.approx([0.0, 2000.0])
    assert model.gradients(w, X, d).tolist() == [[0.0, 0.0, 0.0], [1000.0, 0.0, -1000.0]]
    assert model.metrics(w, X, d) == {"error": 0.5, "log_loss": 1000.0}


def test_clipped_softmax_gradients_are_not_monotone() -> None:
    """Why `convex-glm` is not for this model: one clipped example may move two models apart, to first order."""
    model, u = Softmax(classes=3), np.ones((1, 1))
    w, v = np.array([-0.454, 1.39, 0.307]), np.array([-10.334, 6.171, 2.788])
    g, h = (clip(model.gradients(x, u, np.zeros(1))[0], 0.5) for x in (w, v))
    assert (g - h) @ (w - v) < -0.28
    free = [model.gradients(x, u, np.zeros(1))[0] for x in (w, v)]
    assert (free[0] - free[1]) @ (w - v) > 0.0


# ---- constants


@given(cases(), st.integers(0, 2**32 - 1))
def test_smoothness_bounds_every_sampled_gradient(case: Case, seed: int) -> None:
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


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_the_smoothness_of_softmax_is_reached(classes: int) -> None:
    """Between two classes that share all of the probability."""
    model, u = Softmax(0.3, classes=classes), np.array([[3.0, -4.0]])
    W, v = np.zeros((classes, 2)), np.zeros((classes, 2))
    W[2:], v[:2] = -2.0 * u, [u[0], -u[0]]
    found = model.hessian_times(W.ravel(), u, np.ones(1), v.ravel()) + 2 * model.rho * v.ravel()
    np.testing.assert_allclose(found, model.smoothness(u) * v.ravel(), rtol=1e-12, atol=1e-12)
    assert model.smoothness(u) == pytest.approx(0.5 * 25 + 0.6)


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


def test_softmax_is_a_model_too() -> None:
    model = Softmax(0.5, classes=10)
    assert isinstance(model, Model)
    assert (model.dimension(7), model.features(70)) == (70, 7)
    with pytest.raises(InputError, match="multiple of the 10 classes"):
        model.features(71)
    assert model.readable(np.array([0.0, 9.0, 10.0, -1.0, 0.5, np.nan, np.inf, -0.0])).tolist() == [
        *(True, True, False, False, False, False, False, True)
    ]


def test_a_built_in_model_is_known_by_its_name() -> None:
    for model in (Linear(0.1), Logistic(0.1), Softmax(0.1, classes=10)):
        assert named(model.name, 0.1) == model
        assert is_built_in(model)
    for name in ("own", "softmax", "softmax:", "softmax:1", "softmax:03", "softmax: 3", "softmax:3.0", "Linear", ""):
        assert named(name) is None
    assert not is_built_in(type("Steeper", (Linear,), {})())


@pytest.mark.parametrize("classes", [1, 0, -3, 2.5, None, True])
def test_softmax_has_at_least_two_classes(classes: object) -> None:
    with pytest.raises(InputError, match=r"problem\.classes"):
        Softmax(classes=classes)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [*KINDS, partial(Softmax, classes=3)])
@pytest.mark.parametrize("rho", [-1e-9, math.nan, math.inf, "0.1", None, True])
def test_a_regulariser_that_is_no_number_from_zero_up_is_refused(kind: type[GLM], rho: object) -> None:
    with pytest.raises(InputError, match=r"problem\.rho = "):
        kind(rho)
