"""One client's update, by hand: steps of mu/E, the factor 2, fresh batches, and what a clip promises."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from confide.base.errors import InputError
from confide.base.randomness import MASK
from confide.problems.models import Linear, Logistic, Model
from confide.rounds.clipping import Clip
from confide.rounds.local import LocalTask, bounded, decay, sgd


def task(model: Model, step: float = 0.5, E: int = 1, batch: int = 1, **rest: object) -> LocalTask:
    settings = {"replacement": True, "clip": None, "key": 7} | rest
    return LocalTask(model, step, E, batch, **settings)


@dataclass
class Recorder:
    """A model that moves nothing and notes the rows and points it was shown; feature 0 is the row number."""

    rho: float = 0.0
    rows: list[list[int]] = field(default_factory=list)
    points: list[np.ndarray] = field(default_factory=list)

    def dimension(self, features: int) -> int:
        return features

    def loss(self, w: np.ndarray, X: np.ndarray, d: np.ndarray) -> np.ndarray:
        return np.zeros(len(d))

    def gradients(self, w: np.ndarray, X: np.ndarray, d: np.ndarray) -> np.ndarray:
        assert np.array_equal(X[:, 0], d)  # features and labels of the same rows
        self.rows.append(X[:, 0].astype(int).tolist())
        self.points.append(w.copy())
        return np.zeros_like(X)

    def metrics(self, w: np.ndarray, X: np.ndarray, d: np.ndarray) -> dict[str, float]:
        return {}


def shown(N: int, **settings: object) -> list[list[int]]:
    rows, model = np.arange(float(N)), Recorder()
    sgd(np.zeros(1), rows[:, None], rows, task(model, **settings))
    return model.rows


# ---- the step


def test_one_step_on_one_sample_by_hand() -> None:
    """w = 1, u = 2, d = 5: the gradient is 2 (2 - 5) 2 + 2 rho w = -12 + 0.2, no half anywhere."""
    update = sgd(np.array([1.0]), np.array([[2.0]]), np.array([5.0]), task(Linear(rho=0.1), step=0.5))
    np.testing.assert_allclose(update, [0.5 * 11.8], rtol=1e-15)


def test_one_step_on_every_sample_is_a_step_of_gradient_descent() -> None:
    rng = np.random.default_rng(0)
    X, d, w = rng.standard_normal((6, 3)), rng.standard_normal(6), rng.standard_normal(3)
    full = -0.3 * ((2 * (X @ w - d)) @ X / 6 + 2 * 0.1 * w)
    update = sgd(w, X, d, task(Linear(rho=0.1), step=0.3, batch=6, replacement=False))
    np.testing.assert_allclose(update, full, rtol=1e-13)
    margins = -d_sign(d) / (1 + np.exp(d_sign(d) * (X @ w)))
    update = sgd(w, X, d_sign(d), task(Logistic(rho=0.1), step=0.3, batch=6, replacement=False))
    np.testing.assert_allclose(update, -0.3 * (margins @ X / 6 + 2 * 0.1 * w), rtol=1e-13)


def d_sign(d: np.ndarray) -> np.ndarray:
    return np.where(d > 0, 1.0, -1.0)


@pytest.mark.parametrize("E", [1, 2, 5])
def test_E_steps_have_size_mu_over_E_and_start_at_w(E: int) -> None:
    w, u, d, mu = 1.0, 2.0, 5.0, 0.1
    phi = w
    for _ in range(E):
        phi -= mu / E * (2 * (u * phi - d) * u + 2 * 0.3 * phi)
    start = np.array([w])
    update = sgd(start, np.array([[u]]), np.array([d]), task(Linear(rho=0.3), step=mu, E=E))
    np.testing.assert_allclose(update, [phi - w], rtol=1e-14)
    assert start.tolist() == [w]  # the server's model is not written to


def test_the_update_is_the_way_from_w_to_the_last_point() -> None:
    rng = np.random.default_rng(1)
    X, d, w = rng.standard_normal((8, 2)), rng.standard_normal(8), rng.standard_normal(2)
    rows = Recorder()
    sgd(np.zeros(1), np.arange(8.0)[:, None], np.arange(8.0), task(rows, E=4, batch=3, key=5))
    phi = w
    for b in rows.rows:  # the same key draws the same rows whatever the model
        phi = phi - 0.2 / 4 * (np.mean([2 * (X[n] @ phi - d[n]) * X[n] for n in b], axis=0) + 2 * 0.1 * phi)
    np.testing.assert_allclose(sgd(w, X, d, task(Linear(rho=0.1), step=0.2, E=4, batch=3, key=5)), phi - w, rtol=1e-13)


# ---- batches


def test_without_replacement_no_batch_repeats_a_row() -> None:
    batches = list(itertools.chain.from_iterable(shown(7, E=5, batch=4, replacement=False, key=k) for k in range(200)))
    assert len(batches) == 1000
    assert all(len(set(b)) == 4 for b in batches)
    assert stats.chisquare(np.bincount(np.ravel(batches), minlength=7)).pvalue > 1e-3
    assert sorted(shown(7, batch=7, replacement=False)[0]) == list(range(7))


def test_with_replacement_rows_repeat_as_often_as_they_should() -> None:
    batches = list(itertools.chain.from_iterable(shown(7, E=5, batch=4, key=k) for k in range(400)))
    assert stats.chisquare(np.bincount(np.ravel(batches), minlength=7)).pvalue > 1e-3
    distinct = np.mean([len(set(b)) == 4 for b in batches])
    p = 6 * 5 * 4 / 7**3
    assert abs(distinct - p) < 4.5 * math.sqrt(p * (1 - p) / len(batches))
    assert [len(b) for b in shown(2, E=3, batch=9)] == [9, 9, 9]  # a batch may exceed the data


@pytest.mark.parametrize("replacement", [True, False])
def test_every_step_has_a_batch_of_its_own_and_a_key_decides_all(replacement: bool) -> None:
    once = shown(50, E=6, batch=5, replacement=replacement)
    assert once == shown(50, E=6, batch=5, replacement=replacement)
    assert len({tuple(b) for b in once}) == 6
    assert once != shown(50, E=6, batch=5, replacement=replacement, key=8)


# ---- the regulariser


@given(st.floats(0, 2), st.floats(0.01, 1), st.integers(1, 10), st.lists(st.floats(-5, 5), min_size=1, max_size=4))
def test_where_the_data_say_nothing_the_update_is_the_decay(rho: float, mu: float, E: int, w: list[float]) -> None:
    t = task(Linear(rho), step=mu, E=E, batch=2)
    v = np.array(w)
    update = sgd(v, np.zeros((3, len(w))), np.zeros(3), t)
    np.testing.assert_allclose(update, (decay(t) - 1) * v, rtol=1e-12, atol=1e-13)  # 10 steps from |w| up to 5
    assert decay(t) == pytest.approx(math.prod([1 - 2 * rho * mu / E] * E), abs=1e-14)


# ---- clips


def test_each_example_is_clipped_before_the_mean_and_the_regulariser_never() -> None:
    X, d, w = np.array([[3.0, 4.0], [0.0, 0.1]]), np.array([-1.0, -1.0]), np.zeros(2)
    # data gradients 2 (0 + 1) u = (6, 8) and (0, 0.2): the first becomes (0.6, 0.8), the second stays
    t = task(Linear(), step=1.0, batch=2, replacement=False, clip=Clip("example", 1.0))
    np.testing.assert_allclose(sgd(w, X, d, t), [-0.3, -0.5], rtol=1e-14)
    l1 = t._replace(clip=Clip("example", 1.0, "l1"))
    np.testing.assert_allclose(sgd(w, X, d, l1), [-3 / 7 / 2, -(4 / 7 + 0.2) / 2], rtol=1e-14)
    far = np.array([100.0, -75.0])  # X w = 0 in the first row; rho pulls with 2 rho w, whatever the bound
    pull = sgd(far, X[:1], np.zeros(1), task(Linear(rho=0.1), step=1.0, clip=Clip("example", 1e-9)))
    np.testing.assert_allclose(pull, -0.2 * far, rtol=1e-9)


@given(st.integers(0, MASK), st.integers(1, 6), st.sampled_from(["l1", "l2"]), st.floats(0.01, 3))
def test_with_example_clips_the_data_move_at_most_mu_B(k: int, E: int, norm: str, bound: float) -> None:
    rng = np.random.default_rng(k)
    X, d, w = 5 * rng.standard_normal((9, 3)), 5 * rng.standard_normal(9), rng.standard_normal(3)
    t = task(Linear(rho=0.4), step=0.6, E=E, batch=4, clip=Clip("example", bound, norm), key=k)
    moved = sgd(w, X, d, t) - (decay(t) - 1) * w
    assert np.linalg.norm(moved, 1 if norm == "l1" else 2) <= t.clip.update_bound(0.6) * (1 + 1e-9)


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_a_whole_update_is_bounded_by_mu_B(norm: str) -> None:
    def local(w: np.ndarray, X: np.ndarray, d: np.ndarray, t: LocalTask) -> np.ndarray:
        return np.array([30.0, -40.0]) * X[0, 0]

    args = (np.zeros(2), np.ones((1, 2)), np.ones(1))
    t = task(Linear(), step=0.5, clip=Clip("update", 2.0, norm))
    size = {"l1": 70.0, "l2": 50.0}[norm]
    np.testing.assert_allclose(bounded(local, *args, t), np.array([30.0, -40.0]) / size, rtol=1e-15)
    small = (np.zeros(2), np.full((1, 2), 1e-3), np.ones(1))
    assert bounded(local, *small, t).tolist() == [0.03, -0.04]
    for untouched in (None, Clip("example", 2.0)):
        assert bounded(local, *args, t._replace(clip=untouched)).tolist() == [30, -40]


def test_an_update_clip_is_no_example_clip() -> None:
    X, d, w = np.array([[3.0, 4.0]]), np.array([-1.0]), np.zeros(2)
    t = task(Linear(), step=0.5, clip=Clip("update", 1.0))
    np.testing.assert_allclose(sgd(w, X, d, t), [-3, -4], rtol=1e-15)
    np.testing.assert_allclose(bounded(sgd, w, X, d, t), [-0.3, -0.4], rtol=1e-15)


def test_a_clip_that_the_step_was_not_taught_is_refused() -> None:
    """Nothing would be clipped, and its price would be false."""
    unknown = Clip("update", 1.0)
    object.__setattr__(unknown, "kind", "layer")
    with pytest.raises(InputError, match=r"algorithm\.clip = 'layer'"):
        bounded(sgd, np.zeros(1), np.ones((2, 1)), np.ones(2), LocalTask(Linear(0.0), 0.1, 1, 1, True, unknown, 0))
