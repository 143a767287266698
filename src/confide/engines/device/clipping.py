"""`confide.rounds.clipping` on a device: what is not finite counts zero, and no square overflows or vanishes."""

from __future__ import annotations

from confide.engines.device.backend import Array, Backend


def clip(b: Backend, v: Array, bound: float, norm: str) -> Array:
    """The last axis scaled to norm at most `bound`."""
    largest, size = spread(b, v, norm)
    unit = v / b.xp.where(largest > 0.0, largest, 1.0)
    found = b.xp.where(largest * size > bound, unit * (bound / size), v)
    return b.xp.where(b.xp.isfinite(largest), found, 0.0)


def spread(b: Backend, v: Array, norm: str) -> tuple[Array, Array]:
    """The largest absolute value of the last axis, and the norm of v over it: at least 1, but 1 for zeros."""
    largest = b.max(b.xp.abs(v), -1, keepdims=True)
    unit = v / b.xp.where(largest > 0.0, largest, 1.0)
    if norm == "l1":
        size = b.xp.sum(b.xp.abs(unit), axis=-1, keepdims=True)
    else:
        size = b.xp.sqrt(b.xp.sum(unit * unit, axis=-1, keepdims=True))
    return largest, b.xp.where(largest > 0.0, size, 1.0)
