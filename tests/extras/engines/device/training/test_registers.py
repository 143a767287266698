"""The kernel, interpreted on a CPU, against plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from client_updates import expected, some_clients
from confide.base.randomness import below, words
from confide.engines.device.backend import Array, Backend, backend, signed
from confide.engines.device.training import margins
from confide.engines.device.training.cohort import Cohort
from confide.problems.models import Linear, Logistic, Model
from confide.rounds.clipping import Clip

pytest.importorskip("jax")

from confide.engines.device.training.registers import registers

KEYS = np.arange(6, dtype=np.uint64).reshape(2, 3) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(99)


@pytest.fixture
def single() -> Backend:
    return backend("jax", "cpu", np.float32)


@pytest.mark.parametrize(
    ("model", "features", "limit"),
    [
        (Linear(0.1), 2, None),
        (Linear(0.1), 3, Clip("example", 0.3, "l1")),
        (Logistic(0.0), 2, Clip("example", 0.3)),
        (Logistic(0.1), 1, Clip("update", 0.1)),
    ],
    ids=str,
)
def test_clients_who_draw_by_themselves(single: Backend, model: Model, features: int, limit: Clip | None) -> None:
    b = single
    c = some_clients(features, lambda rng, n: np.where(rng.random(n) < 0.5, -1.0, 1.0))
    for u in range(2):
        for k in range(3):
            drawn = words(int(KEYS[u, k]), int(c.E[u, k] * c.B[u, k]))
            c.picks[u][k] = below(drawn, int(c.sizes[u, k])).reshape(c.E[u, k], c.B[u, k])
    w = np.random.default_rng(3).standard_normal((2, features))
    slopes = margins.linear if isinstance(model, Linear) else margins.logistic
    train = registers(b, slopes, model.rho, interpret=True)

    def run(w: Array, X: Array, d: Array, cohort: Cohort) -> Array:
        with b.training():
            return train(w, X, d, cohort, limit)

    with b.exact():
        eta, gives = b.to_device(0.4 / c.E), b.to_device(c.gives)
        own = (KEYS.view(np.int64), c.first.astype(np.int32), c.sizes, c.E, c.B)
        cohort = Cohort(eta, eta, eta, eta, gives, *(b.to_device(np.asarray(a)) for a in own))
        found = b.to_numpy(b.jit(run)(b.to_device(w), b.to_device(c.X), b.to_device(c.d), cohort))
    np.testing.assert_allclose(found, expected(c, model, w, limit), rtol=1e-4, atol=1e-5)


def test_keys_are_the_same_bits() -> None:
    assert KEYS.view(np.int64).ravel().tolist() == [signed(int(k)) for k in KEYS.ravel()]
