"""Which client owns which row: equal shares, unequal shares, or shares skewed by label.

Every split returns ``client_of_row``: the K clients of unit p are numbered p K to (p + 1) K - 1, and none
is empty.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import ArrayLike

from confide.base.arrays import Floats, Ints
from confide.base.errors import InputError
from confide.base.randomness import Purpose, generator
from confide.base.validation import positive, whole

_IID, _UNEQUAL, _DIRICHLET = 0, 1, 2  # one stream each


def iid(rows: int, units: int, clients: int, seed: int) -> Ints:
    """Rows dealt at random; sizes differ by at most one.

    >>> np.bincount(iid(7, units=1, clients=3, seed=0)).tolist()
    [3, 2, 2]
    """
    total = _total(rows, units, clients)
    client_of_row = np.empty(rows, dtype=np.int64)
    client_of_row[_shuffled(rows, seed, _IID)] = np.arange(rows) % total
    return client_of_row


def unequal(rows: int, units: int, clients: int, seed: int) -> Ints:
    """Rows dealt at random, in shares proportional to exp(z), z standard normal.

    Every client gets one row first, so none is empty.

    >>> np.bincount(unequal(100, units=1, clients=4, seed=0)).min() >= 1
    np.True_
    """
    total = _total(rows, units, clients)
    z = generator(_seed(seed), Purpose.SPLIT, _UNEQUAL, 1).standard_normal(total)
    shares = np.exp(z - z.max())
    sizes = 1 + _apportion(rows - total, shares / shares.sum())
    client_of_row = np.empty(rows, dtype=np.int64)
    client_of_row[_shuffled(rows, seed, _UNEQUAL)] = np.repeat(np.arange(total), sizes)
    return client_of_row


def dirichlet(labels: ArrayLike, units: int, clients: int, seed: int, alpha: float) -> Ints:
    """Each label's rows are dealt in shares drawn from Dirichlet(alpha, ..., alpha) over all clients.

    A small alpha gives clients of nearly one label, a large one tends to equal shares. Small alphas leave
    clients without a row; the repair is deterministic and moves at most one row a client: each empty client,
    in the order of the numbers, takes the last row of whichever client is then the largest (the lowest number
    wins a tie).

    >>> np.bincount(dirichlet([0, 0, 1, 1, 1], units=1, clients=3, seed=0, alpha=1e-3)).tolist()
    [1, 3, 1]
    """
    alpha = positive("problem.alpha", alpha)
    y = np.asarray(labels)
    if y.ndim != 1 or (y.dtype.kind == "f" and not np.isfinite(y).all()):
        raise InputError("problem.label", "labels of the split", "must be one finite label a row")
    total = _total(len(y), units, clients)
    values, place = np.unique(y, return_inverse=True)
    client_of_row = np.empty(len(y), dtype=np.int64)
    for j in range(len(values)):
        g = generator(_seed(seed), Purpose.SPLIT, _DIRICHLET, j)
        rows = g.permutation(np.flatnonzero(place == j))
        client_of_row[rows] = np.repeat(np.arange(total), _apportion(len(rows), _shares(g, alpha, total)))
    return _fill_empty(client_of_row, total)


def _seed(seed: int) -> int:
    return whole("problem.seed", seed, 0)


def _total(rows: int, units: int, clients: int) -> int:
    """units * clients, if there is a row for every one of them."""
    total = whole("problem.units", units, 1) * whole("problem.clients", clients, 1)
    if rows < total:
        need = f"{units} units of {clients} clients need at least {total} rows and there are {rows}"
        raise InputError("problem.clients", clients, f"{need}; use fewer clients or more rows")
    return total


def _shuffled(rows: int, seed: int, stream: int) -> Ints:
    return generator(_seed(seed), Purpose.SPLIT, stream, 0).permutation(rows)


def _shares(g: np.random.Generator, alpha: float, total: int) -> Floats:
    """Dirichlet shares in the logarithm: at small alphas every gamma draw would underflow to zero.

    A Gamma(alpha) draw is a Gamma(alpha + 1) draw times U^(1/alpha).
    """
    log_gamma = np.log(g.standard_gamma(alpha + 1.0, total)) + np.log1p(-g.random(total)) / alpha
    gamma: Floats = np.exp(log_gamma - log_gamma.max())
    gamma /= gamma.sum()
    return gamma


def _apportion(rows: int, shares: Floats) -> Ints:
    """Whole sizes nearest to ``rows * shares`` with the right sum: largest remainders first.

    >>> _apportion(10, np.array([0.5, 0.26, 0.24])).tolist()
    [5, 3, 2]
    """
    exact = rows * shares
    sizes = np.floor(exact).astype(np.int64)
    order = np.argsort(sizes - exact, kind="stable")
    sizes[order[: rows - int(sizes.sum())]] += 1
    return sizes


def _fill_empty(client_of_row: Ints, total: int) -> Ints:
    sizes = np.bincount(client_of_row, minlength=total)
    empty = np.flatnonzero(sizes == 0)
    if not len(empty):
        return client_of_row
    by_client = np.argsort(client_of_row, kind="stable")
    last = np.cumsum(sizes) - 1  # place, in by_client, of each client's last row
    largest = [(-int(n), c) for c, n in enumerate(sizes) if n > 1]
    heapq.heapify(largest)
    for c in empty.tolist():
        n, donor = heapq.heappop(largest)
        client_of_row[by_client[last[donor]]] = c
        last[donor] -= 1
        if n < -2:
            heapq.heappush(largest, (n + 1, donor))
    return client_of_row
