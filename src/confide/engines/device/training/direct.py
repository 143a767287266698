"""A network's gradients, each client's by itself, all side by side."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from confide.engines.device.backend import Array, Backend
from confide.engines.device.clipping import clip as clipped
from confide.engines.device.training.cohort import Train
from confide.engines.device.training.steps import sgd
from confide.rounds.clipping import Clip


def direct(b: Backend, loss: Callable[[Array, Array, Array], Array], rho: float) -> Train:
    """Training with a loss in the framework: (w (M,), X (B, F), d (B,)) -> mean loss without the regulariser."""

    def one(phi: Array, x: Array, y: Array) -> Array:
        return loss(phi, x[None], y[None])

    def weighted(phi: Array, x: Array, y: Array, weights: Array) -> Array:
        return b.xp.sum(weights * b.vmap(one, (None, 0, 0))(phi, x, y))

    of_batch = b.vmap(b.vmap(b.grad(weighted)))
    of_example = b.vmap(b.vmap(b.grad(one)))

    def gradient(phi: Array, x: Array, y: Array, weights: Array, clip: Clip | None) -> Array:
        if clip is None or clip.kind != "example":
            return of_batch(phi, x, y, weights)

        def add(n: Array, total: Array) -> Array:  # one after the other: all gradients at once would be B times as much
            each = clipped(b, of_example(phi, x[:, :, n], y[:, :, n]), clip.bound, clip.norm)
            return total + weights[:, :, n, None] * each

        return b.fold(x.shape[2], add, b.xp.zeros_like(phi))

    return partial(sgd, b, gradient, rho)
