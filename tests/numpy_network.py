"""A network that needs no framework: softmax with one hidden layer, in NumPy, as `same_network.ByHand` has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from confide.problems.networks.network import Network
from same_network import SHAPES, ByHand, C

SCALE = 0.5  # of the initial weights


class NumpyNetwork(Network):
    framework: ClassVar[str] = "numpy"

    def __init__(self, *, rho: float = 0.0, seed: int = 0, optimizer: Any = None, frozen: bool = False) -> None:
        draws = np.random.default_rng(seed)
        start = {n: draws.normal(scale=SCALE, size=shape).astype(np.float32) for n, shape in SHAPES.items()}
        base = {"base": np.ones(2, np.float32)} if frozen else {}
        super().__init__(start, base, classes=C, rho=rho, weights=None, optimizer=optimizer)
        self._by_hand = ByHand()

    def flat_loss(self) -> Callable[[Any, Any, Any], Any]:
        raise NotImplementedError

    @property
    def held(self) -> dict[str, Any]:
        return dict(self.frozen)

    def _batch(self, w: Any, X: Any, d: Any) -> Any:
        return np.float64(self._by_hand.loss(w.astype(float), X, d).mean())

    def _losses(self, w: Any, X: Any, d: Any) -> Any:
        return self._by_hand.loss(w.astype(float), X, d)

    def _gradients(self, w: Any, X: Any, d: Any) -> Any:
        return self._by_hand.gradients(w.astype(float), X, d)

    def _metrics(self, w: Any, X: Any, d: Any) -> dict[str, float]:
        return self._by_hand.metrics(w.astype(float), X, d)

    def _stepper(self, w: Any) -> Callable[[Any, Any], Any]:
        return lambda w, gradient: w - self.optimizer * gradient


network = NumpyNetwork()
frozen = NumpyNetwork(frozen=True)
optimised = NumpyNetwork(optimizer=0.1)
regular = NumpyNetwork(rho=0.05)
NOTHING = 3


def made() -> Network:
    return NumpyNetwork()
