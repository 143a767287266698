"""What a client computes is what the reference computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from confide.base.errors import DataError, InputError
from confide.base.randomness import Purpose, key
from confide.deploy.machines.training import built_in, fresh_key
from confide.problems.models import Linear, Logistic, Softmax
from confide.rounds.clipping import Clip
from confide.rounds.local import LocalTask, sgd, shared_update

RNG = np.random.default_rng(1)
X, D = RNG.standard_normal((9, 3)), np.where(RNG.standard_normal(9) > 0, 1.0, -1.0)
CLASSES = np.arange(9) % 3.0
W = np.array([0.5, -1.0, 2.0])
WEIGHTS, SIGNS = W, D


def task(**changes: Any) -> LocalTask:
    settings: dict[str, Any] = {"model": Linear(0.1), "step": 0.3, "E": 3, "batch": 4, "replacement": True}
    return LocalTask(**({"clip": Clip("example", 0.5), "key": 0} | settings | changes))


@pytest.mark.parametrize("kind", ["example", "update"])
@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("model", [Linear(0.1), Logistic(0.2), Softmax(0.2, classes=3)], ids=lambda m: m.name)
def test_built_in_is_the_shared_update_with_the_key_of_the_round(kind: str, norm: str, model: Any) -> None:
    t = task(model=model, clip=Clip(kind, 0.5, norm))
    W, D = (np.linspace(-1, 2, 9), CLASSES) if isinstance(model, Softmax) else (WEIGHTS, SIGNS)
    train = built_in(t, X, D, lambda i: key(5, Purpose.BATCHES, i, 1, 2))
    seen = []
    for i in (1, 2):
        expected, _ = shared_update(sgd, W, X, D, t._replace(key=key(5, Purpose.BATCHES, i, 1, 2)), fixed=True)
        found = train(W, i, {})
        assert np.array_equal(found, expected)
        assert np.linalg.norm(found, 1 if norm == "l1" else 2) <= 0.5 * 0.3 * (1 + 1e-15)
        seen.append(found.tolist())
    assert seen[0] != seen[1]


def test_the_decay_is_the_servers_only_in_fixed_point_with_clipped_examples() -> None:
    t, free = task(), task(clip=Clip("update", 1e9))
    whole, none = shared_update(sgd, W, X, D, t, fixed=False)
    part, gone = shared_update(sgd, W, X, D, t, fixed=True)
    assert none == 0.0
    assert gone == 1.0 - (1.0 - 2 * 0.1 * 0.3 / 3) ** 3
    np.testing.assert_allclose(part - gone * W, whole, atol=1e-15)
    assert np.array_equal(shared_update(sgd, W, X, D, free, fixed=True)[0], sgd(W, X, D, free))
    assert shared_update(sgd, W, X, D, free, fixed=True)[1] == 0.0


def test_batches_cannot_be_foreseen() -> None:
    assert len({fresh_key(1) for _ in range(50)}) == 50
    train = built_in(task(E=9), X, D)  # so many batches that they are the same again once in 10^23 times
    assert not np.array_equal(train(W, 1, {}), train(W, 1, {}))


def test_the_samples_are_copied() -> None:
    mine, first = X.copy(), lambda i: 1
    train = built_in(task(), mine, D, first)
    before = train(W, 1, {})
    mine[:] = 0.0
    assert np.array_equal(train(W, 1, {}), before)


@pytest.mark.parametrize(
    ("changes", "data", "message"),
    [
        ({}, (X[:, 0], D), "data = "),
        ({}, (X, D[:-1]), "data = "),
        ({}, (X[:0], D[:0]), "data = "),
        ({}, (X * np.inf, D), "data = 'NaN or infinity'"),
        ({}, (X, D * np.nan), "data = 'NaN or infinity'"),
        ({"clip": None}, (X, D), "clip = None"),
        ({"E": 0}, (X, D), "local_steps = 0"),
        ({"batch": 0}, (X, D), "batch = 0"),
        ({"step": -1.0}, (X, D), "step = -1.0"),
        ({"batch": 10, "replacement": False}, (X, D), "batch = 10: there are only 9 samples"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_refusals(changes: dict[str, Any], data: Any, message: str) -> None:
    with pytest.raises(InputError) as refused:
        built_in(task(**changes), *data)
    assert str(refused.value).startswith(message)
    assert isinstance(refused.value, DataError) == (message.startswith("data") or "only 9 samples" in message)
