"""The optimum, by formula, by solver and by its own gradient."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confide.base.errors import InputError
from confide.problems import optimum
from confide.problems.federation import Federation
from confide.problems.models import GLM, Linear, Logistic, Regression, Softmax
from confide.problems.optimum import gradient, hessian, quadratic, risk, solve, solve_iteratively
from paper import sample_weights

TOLERANCE = 1e-10


def federation(
    M: int = 3, *, labels: str = "real", seed: int = 0, sizes: tuple[tuple[int, ...], ...] = ()
) -> Federation:
    """Ragged units and clients, each with a shift of its own, so that the weights matter."""
    rng = np.random.default_rng(seed)
    w = rng.standard_normal(M)

    def client(n: int) -> tuple[np.ndarray, np.ndarray]:
        X = rng.standard_normal((n, M)) + rng.standard_normal(M)
        d = X @ (w + 0.5 * rng.standard_normal(M)) + 0.5 * rng.standard_normal(n)
        return X, d if labels == "real" else np.where(d + rng.logistic(size=n) > 0, 1.0, -1.0)

    return Federation.from_clients([[client(n) for n in unit] for unit in sizes or ((5, 40, 7), (60,), (9, 9))])


def objective(f: Federation, model: Regression, w: np.ndarray) -> float:
    """(1) as it is written, a mean of means of means."""
    units = [[np.mean(model.loss(w, *f.client(p, k))) for k in range(f.K[p])] for p in range(f.P)]
    return float(np.mean([np.mean(clients) for clients in units]))


# ---- the two ways to the optimum agree


@given(st.integers(0, 10**6), st.integers(1, 6), st.sampled_from([0.0, 1e-3, 0.1, 3.0]))
@settings(max_examples=40)
def test_the_closed_form_and_the_solver_agree(seed: int, M: int, rho: float) -> None:
    f, model = federation(M, seed=seed), Linear(rho)
    np.testing.assert_allclose(solve(f, model), solve_iteratively(f, model), rtol=0, atol=TOLERANCE)
    assert np.linalg.norm(gradient(f, model, solve(f, model))) < TOLERANCE


def test_the_closed_form_is_weighted_least_squares() -> None:
    f, rho = federation(), 0.2
    root = np.sqrt(sample_weights(f))
    rows = np.vstack([root[:, None] * f.X, np.sqrt(rho) * np.eye(f.M)])
    expected = np.linalg.lstsq(rows, np.concatenate([root * f.d, np.zeros(f.M)]), rcond=None)[0]
    np.testing.assert_allclose(solve(f, Linear(rho)), expected, rtol=0, atol=TOLERANCE)
    pooled = np.linalg.lstsq(f.X, f.d, rcond=None)[0]  # rows weighing equally is another problem
    assert np.linalg.norm(solve(f, Linear()) - pooled) > 0.01


@given(st.integers(0, 10**6), st.integers(1, 5), st.sampled_from([1e-4, 0.03, 1.0]))
@settings(max_examples=30)
def test_the_logistic_optimum_has_no_gradient_left(seed: int, M: int, rho: float) -> None:
    f, model = federation(M, labels="sign", seed=seed), Logistic(rho)
    w = solve(f, model)
    g = gradient(f, model, w)
    assert np.linalg.norm(g) < TOLERANCE
    assert np.linalg.norm(g) / np.linalg.eigvalsh(hessian(f, model, w))[0] < TOLERANCE  # hence |w - w^o| is too
    rng = np.random.default_rng(seed)
    for length in (1e-3, 1.0):
        assert risk(f, model, w + length * rng.standard_normal(M)) > risk(f, model, w)


def test_the_logistic_optimum_without_regulariser_and_its_scale() -> None:
    """Labels that overlap need no regulariser; features k times larger have a model k times smaller."""
    f = federation(labels="sign", sizes=((60, 50), (80,)))
    w = solve(f, Logistic())
    large = Federation(10 * f.X, f.d, f.client_offsets, f.unit_offsets)
    np.testing.assert_allclose(solve(large, Logistic()), w / 10, rtol=0, atol=TOLERANCE)


def test_one_feature_by_hand() -> None:
    """Unit 0: u = 1, d = 1 and u = 2, d = 6 in two clients; unit 1: u = 1, d = 3. Weights 1/4, 1/4, 1/2."""
    f = Federation.from_clients([[([[1.0]], [1.0]), ([[2.0]], [6.0])], [([[1.0]], [3.0])]])
    R, r = 1 / 4 + 4 / 4 + 1 / 2, 1 / 4 + 12 / 4 + 3 / 2
    assert solve(f, Linear(0.25)) == pytest.approx([r / (R + 0.25)])
    q = quadratic(f, Linear(0.25))
    assert (q.R.item(), q.r.item(), q.c, q.rho) == pytest.approx((R, r, 1 / 4 + 36 / 4 + 9 / 2, 0.25))


# ---- risk, gradient and Hessian


@pytest.mark.parametrize("model", [Linear(0.1), Logistic(0.1)], ids=["linear", "logistic"])
def test_the_risk_is_a_mean_over_units_of_means_over_clients(model: GLM) -> None:
    f = federation(labels="sign")
    rng = np.random.default_rng(5)
    h = 1e-5
    for w in rng.standard_normal((5, f.M)):
        assert risk(f, model, w) == pytest.approx(objective(f, model, w), rel=1e-12)
        slopes = [(objective(f, model, w + h * e) - objective(f, model, w - h * e)) / (2 * h) for e in np.eye(f.M)]
        np.testing.assert_allclose(gradient(f, model, w), slopes, rtol=1e-6, atol=1e-8)
        bends = [(gradient(f, model, w + h * e) - gradient(f, model, w - h * e)) / (2 * h) for e in np.eye(f.M)]
        np.testing.assert_allclose(hessian(f, model, w), bends, rtol=1e-6, atol=1e-8)
        if isinstance(model, Linear):
            assert quadratic(f, model).value(w) == pytest.approx(risk(f, model, w), rel=1e-12)


@pytest.mark.parametrize("rho", [1e-3, 0.1, 3.0])
def test_the_optimum_of_a_softmax_model_has_no_slope(rho: float) -> None:
    f = federation(labels="sign")
    f = Federation(f.X, np.digitize(f.X[:, 0] + 0.3 * f.d, [0.0, 1.0]).astype(float), f.client_offsets, f.unit_offsets)
    model = Softmax(rho, classes=3)
    w = solve(f, model)
    h = 1e-5
    slopes = [(objective(f, model, w + h * e) - objective(f, model, w - h * e)) / (2 * h) for e in np.eye(9)]
    np.testing.assert_allclose(slopes, 0.0, atol=1e-8)
    assert np.linalg.norm(gradient(f, model, w)) <= 2 * rho * TOLERANCE
    np.testing.assert_allclose(w.reshape(3, 3).sum(axis=0), 0.0, atol=1e-9)  # no part that all classes share


def test_the_optimum_of_two_classes_is_the_logistic_one() -> None:
    """W = (-w/2, w/2) has |W|^2 = |w|^2 / 2."""
    f = federation(labels="sign")
    classes = Federation(f.X, (f.d + 1) / 2, f.client_offsets, f.unit_offsets)
    one, other = solve(classes, Softmax(0.2, classes=2)).reshape(2, -1)
    np.testing.assert_allclose(other - one, solve(f, Logistic(0.1)), atol=1e-9)


def test_a_softmax_optimum_that_is_not_unique_or_not_affordable(monkeypatch: pytest.MonkeyPatch) -> None:
    f = federation(labels="sign")
    f = Federation(f.X, (f.d + 1) / 2, f.client_offsets, f.unit_offsets)
    with pytest.raises(InputError, match="to the rows of all classes"):
        solve(f, Softmax(0.0, classes=2))
    for rho in (1e-14, 1e300):
        with pytest.raises(InputError, match="lost in rounding"):
            solve(f, Softmax(rho, classes=2))
    monkeypatch.setattr(optimum, "LARGEST", 100.0)
    with pytest.raises(InputError, match="not solved for beyond 1e\\+02"):
        solve(f, Softmax(0.1, classes=2))


@pytest.mark.parametrize("block", [1, 7, 130])
def test_the_block_size_changes_nothing(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    f, w = federation(labels="sign"), np.array([0.3, -0.2, 1.0])
    whole = {m.name: (risk(f, m, w), gradient(f, m, w), hessian(f, m, w)) for m in (Linear(0.1), Logistic(0.1))}
    best = solve(f, Linear(0.1))
    monkeypatch.setattr(optimum, "BLOCK", block)
    for m in (Linear(0.1), Logistic(0.1)):
        assert risk(f, m, w) == pytest.approx(whole[m.name][0], rel=1e-13)
        np.testing.assert_allclose(gradient(f, m, w), whole[m.name][1], rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(hessian(f, m, w), whole[m.name][2], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(solve(f, Linear(0.1)), best, rtol=0, atol=1e-13)


# ---- no unique finite optimum


def dependent(labels: str) -> Federation:
    f = federation(2, labels=labels)
    return Federation(np.column_stack([f.X, f.X @ [2.0, -1.0]]), f.d, f.client_offsets, f.unit_offsets)


@pytest.mark.parametrize(("model", "labels"), [(Linear, "real"), (Logistic, "sign")])
def test_dependent_features_need_a_regulariser(model: type[GLM], labels: str) -> None:
    f = dependent(labels)
    with pytest.raises(InputError, match=r"problem\.rho = 0\.0: .*unique.*positive regulariser"):
        solve(f, model())
    assert np.linalg.norm(gradient(f, model(0.01), solve(f, model(0.01)))) < TOLERANCE


def test_fewer_samples_than_features_need_a_regulariser() -> None:
    f = federation(6, sizes=((2, 1),))
    with pytest.raises(InputError, match="linearly dependent"):
        solve(f, Linear())
    assert np.isfinite(solve(f, Linear(0.1))).all()


@pytest.mark.parametrize("case", ["separable", "one label", "touching"])
def test_separable_labels_need_a_regulariser(case: str) -> None:
    f = federation(2, labels="sign")
    X = np.column_stack([f.X[:, 0], np.ones(f.samples)])
    d = np.ones(f.samples) if case == "one label" else np.where(X[:, 0] > 0, 1.0, -1.0)
    if case == "touching":  # two equal rows on the dividing line, one of each label
        X[:2], d[:2] = [0.0, 1.0], [1.0, -1.0]
    apart = Federation(X, d, f.client_offsets, f.unit_offsets)
    with pytest.raises(InputError, match=r"problem\.rho = 0\.0: no unique finite optimum; a positive regulariser"):
        solve(apart, Logistic())
    assert np.linalg.norm(gradient(apart, Logistic(0.01), solve(apart, Logistic(0.01)))) < TOLERANCE
