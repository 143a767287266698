"""Bounded updates that carry their sensitivity.

``Clip("example", B)`` scales each example's data gradient to norm at most B, so that a client's update without
the regulariser's decay is at most mu B. ``Clip("update", B)`` scales a client's whole update to at most mu B.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from confide.base.arrays import Floats
from confide.base.validation import one_of, positive

KINDS = ("example", "update")
NORMS = ("l1", "l2")


@dataclass(frozen=True)
class Clip:
    kind: str
    bound: float
    norm: str = "l2"

    def __post_init__(self) -> None:
        one_of("algorithm.clip", self.kind, KINDS)
        one_of("algorithm.norm", self.norm, NORMS)
        positive("algorithm.bound", self.bound)

    def update_bound(self, step: float) -> float:
        """mu B: what one client can add to a round's sum, in this clip's norm."""
        return step * self.bound


def clip(v: Floats, bound: float, norm: str = "l2") -> Floats:
    """Scale the last axis to norm at most `bound`; a vector inside is returned as it is, zero included.

    A vector that is not finite becomes zero, so that no overflow gets around the bound; one of finite entries whose
    norm overflows is scaled first.

    >>> clip(np.array([3.0, 4.0]), 1.0)
    array([0.6, 0.8])
    >>> clip(np.array([[3e200, 4e200], [np.inf, 0.0]]), 1.0)
    array([[0.6, 0.8],
           [0. , 0. ]])
    """
    order = 1 if norm == "l1" else 2
    with np.errstate(over="ignore", invalid="ignore"):
        size = np.linalg.norm(v, ord=order, axis=-1, keepdims=True)
        if (size <= bound).all():
            return v
        found = np.where(size > bound, v * (bound / np.maximum(size, bound)), v)
        if np.isfinite(size).all():
            return found
        largest = np.abs(v).max(axis=-1, keepdims=True)
        unit = v / largest
        scaled = unit * (bound / np.linalg.norm(unit, ord=order, axis=-1, keepdims=True))
    return np.where(np.isfinite(size), found, np.where(np.isfinite(largest), scaled, 0.0))
