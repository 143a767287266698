"""Whose a row of a file is: two columns say it, or the rows are dealt out; and which rows are held out."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from confide.base.arrays import Floats, Ints
from confide.base.errors import InputError
from confide.base.randomness import Purpose, generator
from confide.base.validation import number, one_of, positive, positive_int, whole
from confide.problems import splits
from confide.problems.features import MISSING, words
from confide.problems.problem_config import ProblemConfig

if TYPE_CHECKING:
    import polars as pl


SPLITS: Final = ("columns", "iid", "dirichlet", "unequal")
NO_TEST: Final = "no test rows: every client is too small to spare one"
_TEST = 3  # stream of Purpose.SPLIT; `splits` has 0 to 2


class DealtConfig(ProblemConfig):
    """The keys of a problem whose rows are in a file."""

    one_release: ClassVar = True
    path: str
    unit: str | None = Field(None, description="column that says whose a row is: the organisation")
    client: str | None = Field(None, description="column that says which client of its unit has a row")
    units: int | None = Field(None, description="P, where split is not columns")
    clients: int | None = Field(None, description="K of each unit, where split is not columns")
    split: str = Field("columns", description="columns (unit and client), or for experiments iid, unequal or dirichlet")
    alpha: float | None = Field(None, description="of split = dirichlet: the smaller, the less alike the clients")
    test_fraction: float = Field(0.2, description="share of every client's rows that is held out")
    seed: int | None = Field(None, description="of splits and held-out rows; the top-level seed by default")

    def fixed(self, key: str) -> str | None:
        column = {"units": self.unit, "clients": self.client}[key]
        return None if column is None else f"the file has a column that says so, problem.{key[:-1]}"


class Owners(NamedTuple):
    """Clients are numbered from 0, and those of a unit are neighbours."""

    units: list[str]  # their names
    client_of_row: Ints
    unit_of_client: Ints


@dataclass(frozen=True)
class Deal:
    """How rows are to be dealt, in the keys of `DealtConfig`.

    Raises:
        InputError: one is out of range, missing, or of another split.
    """

    unit: str | None
    client: str | None
    units: int | None
    clients: int | None
    split: str
    alpha: float | None
    test_fraction: float
    seed: int

    def __post_init__(self) -> None:
        split = one_of("problem.split", self.split, SPLITS)
        whole("problem.seed", self.seed, 0)
        if number("problem.test_fraction", self.test_fraction, 0.0) >= 1.0:
            remedy = "must be below 1, or no row is left to train on"
            raise InputError("problem.test_fraction", self.test_fraction, remedy)
        for role, name, count in (("unit", self.unit, self.units), ("client", self.client, self.clients)):
            if split == "columns" and name is None:
                needs = 'split = "columns" needs the columns of unit and client'
                raise InputError(f"problem.{role}", None, f"{needs}; name both, or choose another split")
            if split == "columns" and count is not None:
                raise InputError(f"problem.{role}s", count, 'split = "columns" counts them itself; leave it out')
            if split != "columns" and name is not None:
                remedy = f'split = "{split}" would ignore the column; leave it out or use split = "columns"'
                raise InputError(f"problem.{role}", name, remedy)
            if split != "columns" and count is None:
                raise InputError(f"problem.{role}s", None, f'split = "{split}" needs a number of {role}s')
            if split != "columns":
                positive_int(f"problem.{role}s", count)
        if split != "dirichlet" and self.alpha is not None:
            raise InputError("problem.alpha", self.alpha, f'split = "{split}" has no alpha; leave it out')
        if split == "dirichlet":
            remedy = 'split = "dirichlet" needs a positive alpha, such as 0.5'
            if self.alpha is None:
                raise InputError("problem.alpha", None, remedy)
            positive("problem.alpha", self.alpha)

    @property
    def undeclared(self) -> tuple[str, ...]:
        """What one client's rows change for everybody else, and the line that mends it."""
        if self.split == "columns":
            return ()
        looks = "everybody's labels" if self.split == "dirichlet" else "the whole table: one row more moves others"
        return (
            f'split = "{self.split}" deals rows out by {looks}, for experiments; let columns say whose a row is: '
            'split = "columns", unit and client',
        )

    def owners(self, frame: pl.DataFrame | None, d: Floats, *, classes: bool) -> Owners:
        """Whose every row is.

        Args:
            frame: of split = columns, a table that has the two columns.
            d: labels, by which split = dirichlet deals: by class, or by tenths of what is no class.
        """
        if frame is not None and self.split == "columns":
            return _by_columns(frame, str(self.unit), str(self.client))
        P, K = self.units or 0, self.clients or 0
        if self.split == "dirichlet":
            groups = d if classes else np.searchsorted(np.quantile(d, np.linspace(0.1, 0.9, 9)), d)
            client_of_row = splits.dirichlet(groups, P, K, self.seed, self.alpha or 0.0)
        else:
            client_of_row = (splits.iid if self.split == "iid" else splits.unequal)(len(d), P, K, self.seed)
        return Owners([str(p) for p in range(P)], client_of_row, np.repeat(np.arange(P), K))

    def held_out(self, owners: Owners) -> NDArray[np.bool_]:
        """A share of every client's rows, drawn from (seed, unit, client): nobody's rows decide what another trains on.

        Drawn by place, not by label: where one row's label changes, the client's other rows stay where they are.
        """
        _, client_of_row, unit_of_client = owners
        found = np.zeros(len(client_of_row), dtype=np.bool_)
        order = np.argsort(client_of_row, kind="stable")
        ends = np.cumsum(np.bincount(client_of_row, minlength=len(unit_of_client)))
        first = np.searchsorted(unit_of_client, unit_of_client)  # of the clients of the same unit
        for c, rows in enumerate(np.split(order, ends[:-1])):
            g = generator(self.seed, Purpose.SPLIT, _TEST, int(unit_of_client[c]), c - int(first[c]))
            count = min(int(len(rows) * self.test_fraction + g.random()), len(rows) - 1)
            found[rows[g.permutation(len(rows))[:count]]] = True
        return found


def _by_columns(frame: pl.DataFrame, unit: str, client: str) -> Owners:
    import polars as pl

    named = (("unit", unit), ("client", client))
    who = pl.DataFrame({role: complete(frame, name, f"problem.{role}", f"name no {role}") for role, name in named})
    names = in_order(who["unit"].unique())
    place = pl.DataFrame({"unit": names, "p": np.arange(len(names))})
    pairs = who.unique().join(place, on="unit").sort("p", "client").with_row_index("c")
    c = who.join(pairs, on=["unit", "client"], how="left", maintain_order="left")["c"]
    return Owners(names, c.to_numpy().astype(np.int64), pairs["p"].to_numpy().astype(np.int64))


def complete(frame: pl.DataFrame, name: str, field: str, lack: str) -> pl.Series:
    """A column as text, refused where a row has none."""
    text = words(frame, name, field)
    missing = int((text == MISSING).sum())
    if missing:
        raise InputError(field, name, f"{missing} rows {lack}; fill them in or drop the rows")
    return text


def in_order(values: Iterable[str]) -> list[str]:
    """Texts in the order of their numbers where all are numbers: unit 10 comes after unit 9."""
    texts = sorted(values)
    as_numbers = [as_number(v) for v in texts]
    if any(x is None or math.isnan(x) for x in as_numbers):
        return texts
    return sorted(texts, key=float)


def as_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
