"""Units, clients and samples in flat arrays: client c owns the rows client_offsets[c] to client_offsets[c + 1].

Ragged, memory-mappable, and a million clients are two integer arrays, not a million objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from confide.base.arrays import Floats, Ints
from confide.base.errors import InputError
from confide.base.files import atomic_file


@dataclass(frozen=True, eq=False)
class Federation:
    """P units, each with its clients, each with its samples.

    Attributes:
        X: features u, one row a sample, shape (samples, M).
        d: labels, shape (samples,).
        client_offsets: rows of client c are ``client_offsets[c]:client_offsets[c+1]``.
        unit_offsets: clients of unit p are ``unit_offsets[p]:unit_offsets[p+1]``.

    >>> f = Federation.from_clients([[(np.ones((2, 1)), [0., 1.])], [(np.ones((3, 1)), [0., 1., 2.])]])
    >>> f
    Federation(units=2, clients=2, samples=5, features=1)
    """

    X: Floats
    d: Floats
    client_offsets: Ints
    unit_offsets: Ints

    def __post_init__(self) -> None:
        for name, a in (("X", self.X), ("d", self.d)):
            if not np.issubdtype(a.dtype, np.floating):
                raise InputError(f"federation.{name}", a.dtype, "must hold floating-point numbers")
        if self.X.ndim != 2 or self.X.shape[1] == 0:
            raise InputError("federation.X", self.X.shape, "must be a table of samples by at least one feature")
        if self.d.shape != (self.X.shape[0],):
            raise InputError("federation.d", self.d.shape, f"must hold one label a sample, shape ({self.X.shape[0]},)")
        for name, total in (("client_offsets", self.samples), ("unit_offsets", self.clients)):
            o = getattr(self, name)
            whole = np.issubdtype(o.dtype, np.integer)
            if not whole or o.ndim != 1 or len(o) < 2 or o[0] != 0 or o[-1] != total or np.any(np.diff(o) < 0):
                raise InputError(f"federation.{name}", o, f"must rise from 0 to {total} in whole numbers")
        empty_unit = np.flatnonzero(self.K == 0)
        if len(empty_unit):
            raise InputError("federation.unit_offsets", f"unit {empty_unit[0]}", "has no client; every unit needs one")
        empty = np.flatnonzero(self.N == 0)
        if len(empty):
            p = int(np.searchsorted(self.unit_offsets, empty[0], side="right")) - 1
            k = int(empty[0] - self.unit_offsets[p])
            raise InputError(
                "federation.client_offsets", f"client {k} of unit {p}", "has no sample; every client needs one"
            )
        # A memory-mapped federation is checked in blocks, so that it never has to fit into memory.
        for start in range(0, self.samples, 1 << 20):
            block = slice(start, start + (1 << 20))
            for name, a in (("X", self.X[block]), ("d", self.d[block])):
                if not np.isfinite(a).all():
                    at = tuple(int(i) for i in np.argwhere(~np.isfinite(a))[0])
                    raise InputError(f"federation.{name}", a[at], f"row {start + at[0]} is not a finite number")

    @property
    def P(self) -> int:
        return len(self.unit_offsets) - 1

    @property
    def M(self) -> int:
        return int(self.X.shape[1])

    @property
    def clients(self) -> int:
        """Number of clients over all units."""
        return len(self.client_offsets) - 1

    @property
    def samples(self) -> int:
        return int(self.X.shape[0])

    @property
    def K(self) -> Ints:
        """Clients of each unit."""
        return np.diff(self.unit_offsets)

    @property
    def N(self) -> Ints:
        """Samples of each client, in the order of the clients."""
        return np.diff(self.client_offsets)

    def client(self, p: int, k: int) -> tuple[Floats, Floats]:
        """Features (N, M) and labels (N,) of client k of unit p, as views.

        >>> f = Federation.from_clients([[(np.ones((2, 1)), [0., 1.])], [(np.ones((3, 1)), [5., 6., 7.])]])
        >>> f.client(1, 0)[1]
        array([5., 6., 7.])
        """
        c = int(self.unit_offsets[p]) + k
        rows = slice(int(self.client_offsets[c]), int(self.client_offsets[c + 1]))
        return self.X[rows], self.d[rows]

    def __repr__(self) -> str:
        return f"Federation(units={self.P}, clients={self.clients}, samples={self.samples}, features={self.M})"

    @classmethod
    def from_clients(cls, units: Sequence[Sequence[tuple[ArrayLike, ArrayLike]]]) -> Federation:
        """From nested lists.

        Args:
            units: ``units[p][k]`` is (features, labels) of client k of unit p: a table of N rows and M columns, the
                same M for all, and N numbers.

        Returns:
            A federation with a copy of the data.

        Raises:
            InputError: a unit has no client or a client no sample, shapes differ, or a number is not finite.
        """
        parts = [(np.atleast_2d(np.asarray(X, float)), np.asarray(d, float)) for u in units for X, d in u]
        if not parts:
            raise InputError("federation.units", len(units), "at least one unit with one client is needed")
        widths = {X.shape[1] for X, _ in parts}
        if len(widths) > 1:
            raise InputError("federation.X", sorted(widths), "every client must have the same number of features")
        for c, (X, d) in enumerate(parts):
            if X.ndim != 2 or d.shape != X.shape[:1]:
                remedy = f"the features of client {c} (over all units) have shape {X.shape}; give one label a row"
                raise InputError("federation.d", d.shape, remedy)
        return cls(
            np.concatenate([X for X, _ in parts]),
            np.concatenate([d for _, d in parts]),
            _offsets([len(d) for _, d in parts]),
            _offsets([len(u) for u in units]),
        )

    @classmethod
    def from_assignment(cls, X: Floats, d: Floats, client: Ints, unit_of_client: Ints) -> Federation:
        """From rows in any order.

        Args:
            X: features, one row a sample, shape (samples, M).
            d: labels, shape (samples,).
            client: the client of every row, a number from 0.
            unit_of_client: the unit of every client, a number from 0.

        Returns:
            A federation in which the clients of a unit are neighbours; within a client rows keep their order.

        Raises:
            InputError: a unit has no client or a client no row, a number is out of range or not finite.

        >>> X, d = np.arange(4.0)[:, None], np.zeros(4)
        >>> f = Federation.from_assignment(X, d, client=np.array([1, 0, 1, 0]), unit_of_client=np.array([0, 0]))
        >>> f.client(0, 1)[0].ravel()
        array([0., 2.])
        """
        if client.shape != X.shape[:1]:
            raise InputError("federation.client", client.shape, f"must hold one client a row, shape ({len(X)},)")
        rows, *offsets = arranged(client, unit_of_client)
        return cls(
            np.ascontiguousarray(X[rows], dtype=np.float64), np.ascontiguousarray(d[rows], dtype=np.float64), *offsets
        )

    def save(self, folder: str | Path) -> None:
        """Four .npy files that `load` maps into memory instead of reading."""
        for name in ("X", "d", "client_offsets", "unit_offsets"):
            with atomic_file(Path(folder) / f"{name}.npy") as temporary:  # self may be mapped to the file it replaces
                np.save(temporary, getattr(self, name), allow_pickle=False)

    @classmethod
    def load(cls, folder: str | Path) -> Federation:
        """What `save` wrote, mapped into memory: larger data than memory can be used.

        Raises:
            InputError: a file is missing or does not hold what it should.
        """
        folder = Path(folder)
        arrays = []
        for name in ("X", "d", "client_offsets", "unit_offsets"):
            try:
                arrays.append(np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False))
            except (OSError, ValueError, EOFError) as e:
                raise InputError("federation.folder", str(folder), f"{name}.npy cannot be read ({e})") from None
        return cls(*arrays)


def arranged(client: Ints, unit_of_client: Ints) -> tuple[Ints, Ints, Ints]:
    """The rows in the order of a federation, and its `client_offsets` and `unit_offsets`; see `from_assignment`."""
    if client.size and not 0 <= client.min() <= client.max() < len(unit_of_client):
        strange = client.min() if client.min() < 0 else client.max()
        raise InputError("federation.client", int(strange), f"must be a client in 0 to {len(unit_of_client) - 1}")
    order_of_clients = np.argsort(unit_of_client, kind="stable")
    rank = np.empty_like(order_of_clients)
    rank[order_of_clients] = np.arange(len(order_of_clients))
    of_row = rank[client]
    return (
        np.argsort(of_row, kind="stable"),
        _offsets(np.bincount(of_row, minlength=len(unit_of_client))),
        _offsets(np.bincount(unit_of_client)),
    )


def _offsets(sizes: ArrayLike) -> Ints:
    return np.concatenate([[0], np.cumsum(np.asarray(sizes, dtype=np.int64))]).astype(np.int64)
