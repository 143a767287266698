"""The built-in networks as far as they need no framework."""

from __future__ import annotations

import numpy as np
import pytest

from confide.base.errors import InputError
from confide.problems.networks.built_in import CNN, MLP, described, initial


def test_shapes() -> None:
    assert MLP((6, 5, 4, 3)).products == [(6, 5), (5, 4), (4, 3)]
    cnn = described("cnn", 784, 10)
    assert cnn == CNN(28, (16, 32), 5, 10)
    assert cnn.products == [(25, 16), (400, 32), (512, 10)]
    assert described("mlp", 4, 3) == MLP((4, 200, 3))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("cnn", 63, 3), "is for square images; 63 features are none"),
        (("cnn", 64, 3, [8, 8, 8]), "leave nothing of images of 8 x 8"),
        (("mlp", 64, 3, []), "must have 1 to 9 layers"),
        (("mlp", 64, 3, [2] * 10), "must have 1 to 9 layers"),
        (("mlp", 64, 3, [0]), "problem.hidden = 0: must be at least 1"),
        (("mlp", 64, 1), "problem.classes = 1: must be at least 2"),
    ],
)
def test_what_is_none(given: tuple[object, ...], said: str) -> None:
    with pytest.raises(InputError) as error:
        described(*given)  # type: ignore[arg-type]
    assert said in str(error.value)


def test_initial_weights() -> None:
    description = MLP((600, 50, 3))
    found = initial(description, 1)
    assert sorted(found) == ["0.bias", "0.weight", "1.bias", "1.weight"]
    weight = found["0.weight"]
    assert weight.dtype == np.float32
    assert np.abs(weight).max() <= 0.1
    assert abs(weight.mean()) < 0.002
    assert weight.std() == pytest.approx(0.1 / np.sqrt(3), rel=0.02)
    assert not found["0.bias"].any()
    assert np.array_equal(initial(description, 1)["0.weight"], weight)
    assert not np.array_equal(initial(description, 2)["0.weight"], weight)
