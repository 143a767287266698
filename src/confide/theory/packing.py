"""Symmetric matrices as vectors, and maps between them as matrices: half the numbers, a quarter of the map.

Off-diagonal entries are scaled by sqrt 2, so that pack(A) . pack(B) = Tr(A B).
"""

from __future__ import annotations

from functools import cache

import numpy as np

from confide.base.arrays import Floats, Ints


@cache
def pairs(n: int) -> tuple[Ints, Ints, Floats]:
    """Rows, columns and scales of the entries that a packed n x n matrix keeps."""
    i, j = np.triu_indices(n)
    return i, j, np.where(i == j, 1.0, np.sqrt(2.0))


def pack(Y: Floats) -> Floats:
    """The last two axes of symmetric matrices as one.

    >>> pack(np.array([[1.0, 2.0], [2.0, 3.0]])) @ pack(np.eye(2))  # the trace
    np.float64(4.0)
    """
    i, j, scale = pairs(Y.shape[-1])
    return np.asarray(Y[..., i, j] * scale)


def packed_squares(a: Floats) -> Floats:
    """pack(a_n a_n') of every row a_n, without the matrices.

    >>> packed_squares(np.array([[3.0, 0.0], [1.0, 2.0]])) @ pack(np.eye(2))  # |a_n|^2
    array([9., 5.])
    """
    i, j, scale = pairs(a.shape[1])
    columns = np.ascontiguousarray(a.T)  # long rows: products of neighbours in memory
    return np.asarray((columns[i] * columns[j] * scale[:, None]).T)


def unpack(v: Floats, n: int) -> Floats:
    i, j, scale = pairs(n)
    Y = np.empty((*v.shape[:-1], n, n))
    Y[..., i, j] = Y[..., j, i] = v / scale
    return Y


def congruence(T: Floats, rows: int | None = None) -> Floats:
    """Y -> T Y T' on packed matrices, for stacks of T; `rows` keeps only the leading rows of T.

    >>> T, Y = np.array([[1.0, 2.0], [0.0, 3.0]]), np.array([[1.0, 2.0], [2.0, 5.0]])
    >>> np.allclose(congruence(T) @ pack(Y), pack(T @ Y @ T.T))
    True
    """
    a, b, left = pairs(T.shape[-2] if rows is None else rows)
    i, j, right = pairs(T.shape[-1])
    A, B = T[..., a, :], T[..., b, :]
    # entry (a, b) is the sum over i <= j of Y_ij (T_ai T_bj + T_aj T_bi), the diagonal i = j counted once
    found = A[..., i] * B[..., j]
    found += A[..., j] * B[..., i]
    found *= left[:, None] / (right * np.where(i == j, 2.0, 1.0))
    return np.asarray(found)
