"""The Gram form against a perceptron in plain NumPy."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from client_updates import expected, found, some_clients
from confide.base.arrays import Floats
from confide.engines.device.backend import Backend
from confide.engines.device.training.cohort import Train
from confide.engines.device.training.forms import by_client, by_unit
from confide.engines.device.training.gram import fits, gram
from confide.rounds.clipping import Clip

C = 3
CLIPS = [None, Clip("example", 0.3, "l1"), Clip("example", 0.3, "l2"), Clip("update", 0.3, "l2")]


class Relus:
    """Layers of these widths, (inputs, outputs), the bias first in w."""

    def __init__(self, sizes: tuple[int, ...], rho: float) -> None:
        self.sizes, self.rho = sizes, rho

    @property
    def dimension(self) -> int:
        return sum((a + 1) * c for a, c in pairwise(self.sizes))

    def gradients(self, w: Floats, X: Floats, d: Floats) -> Floats:
        layers, at = [], 0
        for a, c in pairwise(self.sizes):
            layers.append((w[at : at + c], w[at + c : at + c + a * c].reshape(a, c)))
            at += (a + 1) * c
        inputs = [X]
        for bias, weight in layers:
            inputs.append(np.maximum(inputs[-1] @ weight + bias, 0.0))
        z = inputs[-2] @ layers[-1][1] + layers[-1][0]
        delta = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True) - np.eye(C)[d.astype(int)]
        parts: list[Floats] = []
        for h, (_, weight) in zip(reversed(inputs[:-1]), reversed(layers), strict=True):
            parts = [delta, (h[:, :, None] * delta[:, None]).reshape(len(X), -1), *parts]
            delta = (delta @ weight.T) * (h > 0.0)
        return np.concatenate(parts, axis=1)


@pytest.mark.parametrize("rho", [0.0, 0.1])
@pytest.mark.parametrize(
    ("sizes", "limit", "even"),
    [
        *(((4, 5, C), limit, False) for limit in CLIPS),
        ((4, 5, C), CLIPS[3], True),  # fewer draws than samples
        ((4, C), CLIPS[3], False),
        ((4, 6, 5, C), CLIPS[2], False),
    ],
    ids=str,
)
def test_clients(exact: Backend, sizes: tuple[int, ...], limit: Clip | None, even: bool, rho: float) -> None:
    c = some_clients(4, lambda rng, n: rng.integers(0, C, n).astype(float), even)
    model = Relus(sizes, rho)
    w = np.random.default_rng(3).standard_normal((2, model.dimension))
    sums = found(exact, gram(exact, sizes, rho), c, w, limit, labels=np.int32)
    np.testing.assert_allclose(sums, expected(c, model, w, limit), rtol=1e-11, atol=1e-12)  # type: ignore[arg-type]


@pytest.mark.parametrize("laid_out", [by_unit, by_client])
def test_other_forms(exact: Backend, laid_out: Callable[[Backend, Train], Train]) -> None:
    c = some_clients(4, lambda rng, n: rng.integers(0, C, n).astype(float))
    model = Relus((4, 5, C), 0.1)
    w = np.random.default_rng(3).standard_normal((2, model.dimension))
    sums = found(exact, laid_out(exact, gram(exact, model.sizes, model.rho)), c, w, CLIPS[2], labels=np.int32)
    np.testing.assert_allclose(sums, expected(c, model, w, CLIPS[2]), rtol=1e-11, atol=1e-12)  # type: ignore[arg-type]


def test_one_client_that_overflows_adds_nothing(exact: Backend) -> None:
    c = some_clients(4, lambda rng, n: rng.integers(0, C, n).astype(float))
    gone = c.first[1, 1]
    c.X[gone : gone + c.sizes[1, 1]] = 1e300
    model = Relus((4, 5, C), 0.0)
    w = np.random.default_rng(3).standard_normal((2, model.dimension))
    limit = Clip("update", 0.3)
    sums = found(exact, gram(exact, model.sizes, 0.0), c, w, limit, labels=np.int32)
    c.gives[1, 1] = 0.0
    np.testing.assert_allclose(sums, expected(c, model, w, limit), rtol=1e-11, atol=1e-12)  # type: ignore[arg-type]


def test_what_it_is_not_for() -> None:
    assert fits(5, None)
    assert fits(5, Clip("example", 1.0, "l1"))
    assert not fits(5, Clip("update", 1.0, "l1"))
    assert not fits(5, Clip("update", 1e-20))
    assert not fits(100, None)
