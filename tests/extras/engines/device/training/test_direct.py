"""A multilayer perceptron in a framework against one in plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from client_updates import expected, found, some_clients
from confide.base.arrays import Floats
from confide.engines.device.backend import Backend
from confide.engines.device.training.direct import direct
from confide.rounds.clipping import Clip

F, H, C = 4, 5, 3
SIZES = (F * H, H, H * C, C)
CLIPS = [None, *(Clip(k, 0.3, n) for k in ("example", "update") for n in ("l1", "l2"))]


def parts(w: Any) -> tuple[Any, Any, Any, Any]:
    ends = np.cumsum(SIZES).tolist()
    a, b, c, d = (w[end - size : end] for end, size in zip(ends, SIZES, strict=True))
    return a.reshape(F, H), b, c.reshape(H, C), d


class Mlp:
    """F inputs, H hidden with tanh, C classes with the logarithmic loss."""

    rho = 0.02

    def gradients(self, w: Floats, X: Floats, d: Floats) -> Floats:
        W1, b1, W2, b2 = parts(w)
        h = np.tanh(X @ W1 + b1)
        z = h @ W2 + b2
        off = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True) - np.eye(C)[d.astype(int)]
        back = off @ W2.T * (1.0 - h**2)
        rows = (X[:, :, None] * back[:, None], back, h[:, :, None] * off[:, None], off)
        return np.concatenate([g.reshape(len(X), -1) for g in rows], axis=1)


def loss(b: Backend) -> Any:
    def of(w: Any, X: Any, d: Any) -> Any:
        W1, b1, W2, b2 = parts(w)
        z = b.xp.tanh(X @ W1 + b1) @ W2 + b2
        own = b.xp.sum(b.xp.where(b.arange(C, b.xp.int32) == d[:, None], z, 0.0), axis=1)
        return b.xp.mean(b.xp.log(b.xp.sum(b.xp.exp(z), axis=1)) - own)

    return of


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("limit", CLIPS, ids=str)
def test_mlp(exact: Backend, limit: Clip | None, even: bool) -> None:
    c = some_clients(F, lambda rng, n: rng.integers(0, C, n).astype(float), even)
    w = np.random.default_rng(3).standard_normal((2, sum(SIZES)))
    sums = found(exact, direct(exact, loss(exact), Mlp.rho), c, w, limit, labels=np.int32)
    np.testing.assert_allclose(sums, expected(c, Mlp(), w, limit), rtol=1e-11, atol=1e-12)  # type: ignore[arg-type]
