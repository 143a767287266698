"""Linear, logistic and softmax regression, draw for draw as plain NumPy has it."""

from __future__ import annotations

import numpy as np
import pytest

from client_updates import Clients, expected, found, some_clients
from confide.base.arrays import Floats
from confide.engines.device.backend import Backend
from confide.engines.device.training import margins
from confide.problems.models import Linear, Logistic, Model
from confide.rounds.clipping import Clip

CLIPS = [None, *(Clip(k, 0.3, n) for k in ("example", "update") for n in ("l1", "l2"))]


class Softmax:
    """Four classes, in the plainest words."""

    rho = 0.05

    def gradients(self, w: Floats, X: Floats, d: Floats) -> Floats:
        z = X @ w.reshape(4, -1).T
        p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True) - np.eye(4)[d.astype(int)]
        return (p[:, :, None] * X[:, None]).reshape(len(X), -1)


def clients(model: Model | Softmax, features: int = 3) -> Clients:
    if isinstance(model, Softmax):
        return some_clients(features, lambda rng, n: rng.integers(0, 4, n).astype(float))
    return some_clients(features, lambda rng, n: rng.choice([-1.0, 1.0], n))


@pytest.mark.parametrize("limit", CLIPS, ids=str)
@pytest.mark.parametrize("model", [Linear(0.1), Logistic(0.05), Softmax()], ids=lambda m: type(m).__name__)
def test_closed_forms(exact: Backend, model: Model, limit: Clip | None) -> None:
    c, classes = clients(model), 4 if isinstance(model, Softmax) else 1
    slopes = getattr(margins, type(model).__name__.lower())
    w = np.random.default_rng(2).standard_normal((2, 3 * classes))
    train = margins.margins(exact, slopes, model.rho, classes)
    sums = found(exact, train, c, w, limit)
    np.testing.assert_allclose(sums, expected(c, model, w, limit), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("limit", CLIPS[1:], ids=str)
@pytest.mark.parametrize("large", [1e100, 1e155, 1e200, 5e306])
def test_overflow(exact: Backend, limit: Clip, large: float) -> None:
    """What is not finite counts zero, and what is finite is clipped, however large it is."""
    c = clients(Linear(0.0))
    c.X[::3] *= large
    w = np.ones((2, 3))
    train = margins.margins(exact, margins.linear, 0.0)
    sums = found(exact, train, c, w, limit)
    assert np.isfinite(sums).all()
    np.testing.assert_allclose(sums, expected(c, Linear(0.0), w, limit), rtol=1e-9, atol=1e-12)
