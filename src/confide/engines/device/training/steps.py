"""The paper's E steps of size mu/E, whatever computes a gradient  (3)."""

from __future__ import annotations

from collections.abc import Callable

from confide.engines.device.backend import Array, Backend
from confide.engines.device.clipping import clip as clipped
from confide.engines.device.training.cohort import Cohort
from confide.rounds.clipping import Clip

Gradient = Callable[[Array, Array, Array, Array, Clip | None], Array]
"""(phi (U, L, M), x (U, L, B, F), y (U, L, B), weights (U, L, B), clip) -> (U, L, M), of the data part alone.

Examples are weighted, those of weight 0 count nothing, and each is clipped where the clip is of examples.
"""


def sgd(
    b: Backend, gradient: Gradient, rho: float, w: Array, X: Array, d: Array, cohort: Cohort, clip: Clip | None
) -> Array:
    """As `Train`, for all clients side by side."""
    steps = cohort.picks.shape[2]

    def step(e: Array, delta: Array) -> Array:
        picks, weights = cohort.picks[:, :, e], cohort.weights[:, :, e]
        rows = b.along(cohort.rows, picks, -1)
        phi = w[:, None] + delta
        found = gradient(phi, X[rows], d[rows], weights, clip) + 2.0 * rho * phi
        return b.xp.where(weights[..., :1] > 0.0, delta - cohort.eta[..., None] * found, delta)

    delta = b.fold(steps, step, b.zeros((*cohort.eta.shape, w.shape[-1]), w.dtype))
    if clip is not None and clip.kind == "update":
        delta = clipped(b, delta, clip.bound, clip.norm)
    return b.xp.sum(b.xp.where(cohort.gives[..., None] > 0.0, delta, 0.0), axis=1)
