"""Linear, logistic and softmax regression in closed form: a gradient is an outer product of margins' slopes and u."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from confide.engines.device.backend import Array, Backend
from confide.engines.device.clipping import spread
from confide.engines.device.training.cohort import Train
from confide.engines.device.training.steps import sgd
from confide.rounds.clipping import Clip

Slopes = Callable[[Backend, Array, Array], Array]  # (margins (..., B, C), labels (..., B)) -> (..., B, C)


def linear(b: Backend, z: Array, d: Array) -> Array:
    return 2.0 * (z - d[..., None])


def logistic(b: Backend, z: Array, d: Array) -> Array:
    t = -d[..., None] * z
    e = b.xp.exp(-b.xp.abs(t))  # never overflows
    return -d[..., None] * (b.xp.where(t >= 0, 1.0, e) / (1.0 + e))


def softmax(b: Backend, z: Array, d: Array) -> Array:
    e = b.xp.exp(z - b.max(z, -1, keepdims=True))
    own = b.arange(z.shape[-1], b.xp.int32) == d[..., None]
    return e / b.xp.sum(e, axis=-1, keepdims=True) - b.xp.where(own, 1.0, 0.0)


def margins(b: Backend, slopes: Slopes, rho: float, classes: int = 1) -> Train:
    """Training of a model with a row of features for each of `classes` margins."""

    def gradient(phi: Array, x: Array, y: Array, weights: Array, clip: Clip | None) -> Array:
        rows = b.xp.reshape(phi, (*phi.shape[:-1], classes, -1))
        off = slopes(b, b.einsum("ulbf,ulcf->ulbc", x, rows), y)
        if clip is not None and clip.kind == "example":
            off = bounded(b, off, x, clip)
        off = b.xp.where(weights[..., None] > 0.0, weights[..., None] * off, 0.0)
        return b.xp.reshape(b.einsum("ulbc,ulbf->ulcf", off, x), phi.shape)

    return partial(sgd, b, gradient, rho)


def bounded(b: Backend, off: Array, x: Array, clip: Clip) -> Array:
    """The slopes for which off u' is what `clip` makes of it; the norm of such a product is the product of norms."""
    most_off, size_off = spread(b, off, clip.norm)
    most_x, size_x = spread(b, x, clip.norm)
    largest, size = most_off * most_x, size_off * size_x
    unit = off / b.xp.where(most_off > 0.0, most_off, 1.0)
    found = b.xp.where(largest * size > clip.bound, unit * (clip.bound / size / most_x), off)
    return b.xp.where(b.xp.isfinite(largest), found, 0.0)
