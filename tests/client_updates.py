"""Clients' updates in plain NumPy, and the same clients as a cohort of equal shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from confide.base.arrays import Floats
from confide.engines.device.backend import Backend
from confide.engines.device.training.cohort import Cohort, Train
from confide.problems.models import Model
from confide.rounds.clipping import Clip, clip

STEP = 0.4


class Clients(NamedTuple):
    """Two units of three sampled clients each, no two alike in samples, steps and batches."""

    X: Floats
    d: Floats
    sizes: np.ndarray  # (U, L)
    first: np.ndarray
    E: np.ndarray
    B: np.ndarray
    picks: list[list[np.ndarray]]  # of each client (E, B)
    gives: np.ndarray


def some_clients(features: int, label: Callable[[np.random.Generator, int], Floats], even: bool = False) -> Clients:
    rng = np.random.default_rng(5)
    sizes = rng.integers(3, 8, (2, 3))
    first = np.cumsum(sizes.ravel()) - sizes.ravel()
    E = np.full((2, 3), 3) if even else np.array([[1, 3, 2], [3, 1, 1]])
    B = np.full((2, 3), 2) if even else np.array([[2, 1, 4], [1, 3, 2]])
    X = rng.standard_normal((sizes.sum(), features))
    picks = [[rng.integers(0, sizes[u, k], (E[u, k], B[u, k])) for k in range(3)] for u in range(2)]
    gives = np.array([[1.0, 0.0, 1.0], [1.0, 1.0, 1.0]])
    return Clients(X, label(rng, len(X)), sizes, first.reshape(2, 3), E, B, picks, gives)


def cohort(b: Backend, c: Clients) -> Cohort:
    """With rubbish of the client's own in what fills up."""
    S, E, B = c.sizes.max(), c.E.max(), c.B.max()
    rows = c.first[..., None] + np.minimum(np.arange(S), c.sizes[..., None] - 1)
    picks, weights = np.zeros((2, 3, E, B)), np.zeros((2, 3, E, B))
    picks[:] = np.arange(B) % 3
    for u in range(2):
        for k in range(3):
            own = c.picks[u][k]
            picks[u, k, : own.shape[0], : own.shape[1]] = own
            weights[u, k, : own.shape[0], : own.shape[1]] = 1.0 / own.shape[1]
    given = (rows.astype(np.int32), picks.astype(np.int32), weights, STEP / c.E, c.gives)
    return Cohort(*(b.to_device(x) for x in given))


def expected(c: Clients, model: Model, w: Floats, limit: Clip | None) -> Floats:
    """The sums of the clients' updates, one client after the other."""
    total = np.zeros_like(w)
    for u in range(2):
        for k in range(3):
            phi = w[u].copy()
            rows = slice(c.first[u, k], c.first[u, k] + c.sizes[u, k])
            X, d = c.X[rows], c.d[rows]
            with np.errstate(over="ignore", invalid="ignore"):
                for at in c.picks[u][k]:
                    g = model.gradients(phi, X[at], d[at])
                    if limit is not None and limit.kind == "example":
                        g = clip(g, limit.bound, limit.norm)
                    phi = phi - STEP / c.E[u, k] * (g.mean(axis=0) + 2.0 * model.rho * phi)
                delta = phi - w[u]
                if limit is not None and limit.kind == "update":
                    delta = clip(delta, limit.bound, limit.norm)
            if c.gives[u, k]:
                total[u] += delta
    return total


def found(b: Backend, train: Train, c: Clients, w: Floats, limit: Clip | None, labels: type | None = None) -> Floats:
    """The same by a way of training on a device."""
    with b.exact():
        d = c.d if labels is None else c.d.astype(labels)
        given = b.to_device(w), b.to_device(c.X), b.to_device(d), cohort(b, c)

        def run(*of: object) -> object:
            with b.training():
                return train(*of, limit)  # type: ignore[arg-type]

        return b.to_numpy(b.jit(run)(*given)).astype(np.float64)
