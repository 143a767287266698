"""The built-in networks: one description for both frameworks, with the same initial weights in both.

Tensors stand in the order of their names, "0.bias", "0.weight", "1.bias", ..., in w; a weight is (inputs, outputs).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from confide.base.errors import InputError
from confide.base.randomness import Purpose, key, uniform, words
from confide.base.validation import positive_int, whole

Array = Any  # of a framework
Weights = Mapping[str, Array]

LAYERS: Final = 10  # so that the order of their names is their order


@dataclass(frozen=True)
class MLP:
    """Widths from the features to the classes, such as (784, 200, 10); relu between layers."""

    sizes: tuple[int, ...]

    @property
    def classes(self) -> int:
        return self.sizes[-1]

    @property
    def products(self) -> list[tuple[int, int]]:
        """(inputs, outputs) of each layer."""
        return list(pairwise(self.sizes))

    def outputs(self, xp: Any, w: Weights, X: Array) -> Array:
        """The classes' logits, (B, classes); `xp` has the framework's functions."""
        a = X
        for n in range(len(self.products)):
            a = a @ w[f"{n}.weight"] + w[f"{n}.bias"]
            if n + 1 < len(self.products):
                a = xp.where(a > 0, a, 0.0)
        return a


@dataclass(frozen=True)
class CNN:
    """Convolutions of `window` x `window` without padding, each with a 2x2 maximum and relu, then a linear layer.

    A convolution gathers its windows into rows (im2col) and multiplies them with a matrix: clients have weights of
    their own, and a convolution vmapped over its weights becomes a grouped one, which is slow.

    Attributes:
        side: of the square images, which have one channel.
    """

    side: int
    channels: tuple[int, ...]
    window: int
    classes: int

    def __post_init__(self) -> None:
        if self.sides[-1] < 1:
            remedy = f"leave nothing of images of {self.side} x {self.side}; use fewer"
            raise InputError("problem.hidden", list(self.channels), remedy)

    @property
    def sides(self) -> list[int]:
        """Of the images between the layers."""
        found = [self.side]
        for _ in self.channels:
            found.append((found[-1] - self.window + 1) // 2)
        return found

    @property
    def products(self) -> list[tuple[int, int]]:
        """(inputs, outputs) of each layer."""
        convolutions = [(self.window**2 * a, b) for a, b in pairwise((1, *self.channels))]
        return [*convolutions, (self.sides[-1] ** 2 * self.channels[-1], self.classes)]

    def outputs(self, xp: Any, w: Weights, X: Array) -> Array:
        """The classes' logits, (B, classes); `xp` has the framework's functions."""
        h = X.reshape(-1, self.side, self.side, 1)
        last = len(self.channels)
        for layer in range(last):
            n = h.shape[1] - self.window + 1
            h = xp.concatenate([h[:, :, j : j + n] for j in range(self.window)], -1)  # first rows, then whole windows:
            windows = [h[:, i : i + n] for i in range(self.window)]  # fewer and longer pieces to copy
            weight, bias = w[f"{layer}.weight"], w[f"{layer}.bias"]
            # The bias is the weight of a 1, so that its gradient is part of a product; zeros keep rows aligned.
            ones, none = xp.ones_like(windows[0][..., :1]), [0] * (-(len(weight) + 1) % 8)
            windows += [ones, *(0.0 * ones for _ in none)]
            rows = [weight, bias[None], *(0.0 * bias[None] for _ in none)]
            h = xp.concatenate(windows, -1) @ xp.concatenate(rows, 0)
            n = n // 2 * 2
            h = xp.maximum(h[:, 0:n:2], h[:, 1:n:2])
            h = xp.maximum(h[:, :, 0:n:2], h[:, :, 1:n:2])
            h = xp.where(h > 0, h, 0.0)
        return h.reshape(h.shape[0], -1) @ w[f"{last}.weight"] + w[f"{last}.bias"]


Description = MLP | CNN


def described(name: str, features: int, classes: int, hidden: Sequence[int] | None = None) -> Description:
    """The built-in network of this name for such data.

    Args:
        hidden: widths of the layers between; of "cnn" the channels of its convolutions.

    >>> described("mlp", 784, 10, [200])
    MLP(sizes=(784, 200, 10))
    >>> described("cnn", 64, 10)
    CNN(side=8, channels=(16,), window=3, classes=10)
    """
    classes, between = whole("problem.classes", classes, 2), None
    if hidden is not None:
        between = tuple(positive_int("problem.hidden", width) for width in hidden)
        if not 1 <= len(between) < LAYERS:
            raise InputError("problem.hidden", list(hidden), f"must have 1 to {LAYERS - 1} layers")
    if name == "mlp":
        return MLP((features, *(between or (200,)), classes))
    side = math.isqrt(features)
    if side * side != features:
        raise InputError("problem.model", name, f"is for square images; {features} features are none")
    small = side < 16
    return CNN(side, between or ((16,) if small else (16, 32)), 3 if small else 5, classes)


def initial(description: Description, seed: int) -> dict[str, NDArray[np.float32]]:
    """Biases of zero, and weights uniform within sqrt(6 / inputs): the same bits in any framework, on any machine."""
    found: dict[str, NDArray[np.float32]] = {}
    for n, (inputs, outputs) in enumerate(description.products):
        u = uniform(words(key(seed, Purpose.WEIGHTS, n), inputs * outputs))
        found[f"{n}.weight"] = ((2.0 * u - 1.0) * math.sqrt(6.0 / inputs)).reshape(inputs, outputs).astype(np.float32)
        found[f"{n}.bias"] = np.zeros(outputs, np.float32)
    return found
