"""Bounded updates that carry their sensitivity.

``Clip("example", B)`` scales each example's data gradient to norm at most B, so that a client's update without
the regulariser's decay is at most mu B. ``Clip("update", B)`` scales a client's whole update to at most mu B.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from confide.base.arrays import Floats
from confide.base.errors import InputError
from confide.base.validation import one_of, positive

KINDS = ("example", "update")
NORMS = ("l1", "l2")
LEAST = 1e-100  # of a bound: what a vector's norm or its share of a bound loses to underflow is far below
SMALL, LARGE = 1e-150, 1e150  # between them squares neither vanish nor overflow, and no quotient with a bound does


@dataclass(frozen=True)
class Clip:
    kind: str
    bound: float
    norm: str = "l2"

    def __post_init__(self) -> None:
        one_of("algorithm.clip", self.kind, KINDS)
        one_of("algorithm.norm", self.norm, NORMS)
        if positive("algorithm.bound", self.bound) < LEAST:
            raise InputError("algorithm.bound", self.bound, f"must be at least {LEAST:g}, or squares of it vanish")

    def update_bound(self, step: float) -> float:
        """mu B: what one client can add to a round's sum, in this clip's norm.

        Raises:
            InputError: it is so small that squares of it vanish.
        """
        if step * self.bound < LEAST:
            raise InputError("algorithm.step", step, f"times the bound it must be at least {LEAST:g}")
        return step * self.bound


def norms(v: Floats, norm: str) -> Floats:
    """Of the last axis, which stays; infinite only where the norm itself is beyond the doubles, 0 only for zeros.

    >>> norms(np.array([[3e200, 4e200], [3e-170, 4e-170]]), "l2")
    array([[5.e+200],
           [5.e-170]])
    """
    return _again(v, _once(v, norm), norm)


def _once(v: Floats, norm: str) -> Floats:
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return np.asarray(np.linalg.norm(v, ord=1 if norm == "l1" else 2, axis=-1, keepdims=True))


def _again(v: Floats, size: Floats, norm: str) -> Floats:
    """Norms whose squares were lost are found from scaled vectors."""
    plain = (size > SMALL) & (size < LARGE)
    if plain.all():
        return size
    with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
        largest = np.abs(v).max(axis=-1, keepdims=True)
        lost = ~plain & (largest > 0.0) & np.isfinite(largest)
        if not lost.any():  # zeros
            return size
        return np.where(lost, largest * _once(v / largest, norm), size)


def clip(v: Floats, bound: float, norm: str = "l2") -> Floats:
    """Scale the last axis to norm at most `bound`; a vector inside is returned as it is, zero included.

    A vector that is not finite becomes zero, so that no overflow gets around the bound; one whose norm is huge is
    scaled first, so that no factor is lost either.

    >>> clip(np.array([3.0, 4.0]), 1.0)
    array([0.6, 0.8])
    >>> clip(np.array([[3e200, 4e200], [np.inf, 0.0]]), 1.0)
    array([[0.6, 0.8],
           [0. , 0. ]])
    """
    size = _once(v, norm)
    if (size <= bound).all():  # what it lost to underflow is far below any bound, see `LEAST`
        return v
    size = _again(v, size, norm)
    with np.errstate(over="ignore", invalid="ignore"):
        found = np.where(size > bound, v * (bound / np.maximum(size, bound)), v)
        if (size < LARGE).all():
            return found
        largest = np.abs(v).max(axis=-1, keepdims=True)
        unit = v / largest
        scaled = unit * (bound / norms(unit, norm))
    return np.where(size < LARGE, found, np.where(np.isfinite(largest), scaled, 0.0))
