"""The weight rules of a graph and the ends of its spectrum, dense for few servers and sparse for many."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from confide.base.arrays import Floats, Ints
from confide.base.errors import InputError
from confide.graph.checks import check_rule, edge_sums

if TYPE_CHECKING:
    from scipy.sparse import csr_array

DENSE = 1500  # servers up to which a dense eigensolver takes a second at most


def rule_weights(P: int, edges: Ints, rule: str) -> Floats:
    check_rule(rule)
    if rule == "given":
        raise InputError("graph.weights", rule, "needs the matrix itself: Graph.from_matrix or a matrix file")
    if P == 1:
        return np.empty(0)
    d = edge_sums(P, edges)
    if rule == "uniform":
        return np.full(len(edges), 1 / (1 + d.max()))
    if rule == "constant":
        l_2, l_P = _laplacian_ends(P, edges)
        return np.full(len(edges), min(2 / (l_2 + l_P), 1 / d.max()))
    metropolis: Floats = 1 / (1 + d[edges].max(axis=1))
    return metropolis / 2 if rule == "lazy" else metropolis


def _laplacian_ends(P: int, edges: Ints) -> tuple[float, float]:
    """The smallest eigenvalue of the Laplacian above 0, and the largest."""
    d = edge_sums(P, edges).astype(np.float64)
    ones = np.ones(len(edges))
    if P <= DENSE:
        values = np.linalg.eigvalsh(dense(edges, -ones, d))
        return float(values[1]), float(values[-1])
    bound = float(d[edges].sum(axis=1).max())  # Anderson and Morley: l_P <= max over edges of d_p + d_m
    return bound - leading(sparse(edges, ones, bound - d), bound), leading(sparse(edges, -ones, d), bound)


def dense(edges: Ints, off_diagonal: Floats, diagonal: Floats) -> Floats:
    M = np.diag(diagonal)
    i, j = edges.T
    M[i, j] = M[j, i] = off_diagonal
    return M


def sparse(edges: Ints, off_diagonal: Floats, diagonal: Floats) -> csr_array[np.float64]:
    from scipy.sparse import coo_array

    i, j = edges.T
    p = np.arange(len(diagonal))
    values = np.r_[off_diagonal, off_diagonal, diagonal]
    return coo_array((values, (np.r_[i, j, p], np.r_[j, i, p])), shape=(p.size, p.size)).tocsr()


def leading(M: csr_array[np.float64], bound: float) -> float:
    """The largest |eigenvalue| (at most `bound`) of M on the vectors orthogonal to 1, an eigenvector of M."""
    from scipy.sparse import eye_array
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh, splu

    P = M.shape[0]
    start = _centred(np.random.default_rng(0).standard_normal(P))  # fixed, for the same bits every time

    def lanczos(apply: Callable[[Floats], Any], restarts: int) -> float:
        operator = LinearOperator((P, P), lambda x: _centred(apply(_centred(x.ravel()))), dtype=np.float64)
        values, _ = eigsh(operator, k=1, v0=start, ncv=40, maxiter=restarts, tol=1e-12)
        return float(abs(values[0]))

    if np.abs(_centred(M @ start)).max() <= 1e-12 * bound * np.abs(start).max():
        return 0.0  # complete and uniform: Lanczos has nothing to work on
    try:
        return lanczos(lambda x: M @ x, restarts=50)
    except ArpackNoConvergence:
        # A ring or a grid: the eigenvalues crowd below the bound. Squaring folds both ends of the spectrum
        # onto one, inverting just above it pulls the crowd apart, and so few edges are cheap to factor.
        top = bound**2 * (1 + 1e-10)
        factors = splu((top * eye_array(P) - M @ M).tocsc())
        return math.sqrt(top - 1 / lanczos(factors.solve, restarts=1000))


def _centred(x: Any) -> Floats:
    return np.asarray(x - x.mean(), dtype=np.float64)


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.setflags(write=False)
    return array
