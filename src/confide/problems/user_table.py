"""The user's own table: named columns for unit, client, label and features become a Problem."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from confide.base.arrays import Floats, Ints
from confide.base.errors import InputError
from confide.base.files import Source
from confide.base.randomness import Purpose, generator
from confide.base.validation import number, one_of, positive_int, whole
from confide.problems import splits
from confide.problems.features import MISSING, FeatureMap, column, listed, numbers, toml_key, words
from confide.problems.federation import Federation
from confide.problems.models import Linear, Logistic
from confide.problems.problem import Problem
from confide.problems.problem_config import ProblemConfig
from confide.problems.reading import absolute, plain, read_table

if TYPE_CHECKING:
    import polars as pl


SPLITS: Final = ("columns", "iid", "dirichlet", "unequal")
_TEST = 3  # stream of Purpose.SPLIT; `splits` has 0 to 2


class TableConfig(ProblemConfig):
    one_release: ClassVar = True
    labels: ClassVar = frozenset({"positive", "categories"})
    name: Literal["table"] = Field(description="a table of your own, one row an example")
    path: str = Field(description="CSV (.csv, .tsv, gzipped or not) or Parquet file")
    label: str = Field(description="column to predict")
    task: str = Field("regression", description="regression (any number) or binary (two labels)")
    positive: str | int | float | bool | None = Field(
        None, description="of a binary task: the label that becomes +1; the larger by default, or the last by alphabet"
    )
    unit: str | None = Field(None, description="column that says whose a row is: the organisation")
    client: str | None = Field(None, description="column that says which client of its unit has a row")
    numeric: list[str] = Field([], description="columns that are features as numbers")
    categorical: list[str] = Field([], description="columns that are features as categories")
    units: int | None = Field(None, description="P, where split is not columns")
    clients: int | None = Field(None, description="K of each unit, where split is not columns")
    split: str = Field("columns", description="columns (unit and client), or for experiments iid, unequal or dirichlet")
    alpha: float | None = Field(None, description="of split = dirichlet: the smaller, the less alike the clients")
    scaling: dict[str, list[float]] | None = Field(
        None,
        description="column = [centre, scale]; else it is computed from the rows, which no epsilon covers",
    )
    categories: dict[str, list[str | int | float | bool]] | None = Field(
        None, description="column = [values], likewise; for the label of a binary task its two"
    )
    top: int = Field(20, description="categories of a column that declares none: its most frequent values")
    rho: float = Field(0.0, description="regulariser rho |w|^2")
    test_fraction: float = Field(0.2, description="share of every client's rows that is held out")
    seed: int | None = Field(None, description="of splits and held-out rows; the top-level seed by default")

    def make(self, seed: int) -> Problem:
        return table(**self.arguments(seed))

    def fixed(self, key: str) -> str | None:
        column = {"units": self.unit, "clients": self.client}[key]
        return None if column is None else f"the table has a column that says so, problem.{key[:-1]}"


def table(
    path: str | Path,
    *,
    label: str,
    task: str = "regression",
    positive: object = None,
    unit: str | None = None,
    client: str | None = None,
    numeric: Sequence[str] = (),
    categorical: Sequence[str] = (),
    units: int | None = None,
    clients: int | None = None,
    split: str = "columns",
    alpha: float | None = None,
    scaling: Mapping[str, Sequence[float]] | None = None,
    categories: Mapping[str, Sequence[object]] | None = None,
    top: int = 20,
    rho: float = 0.0,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Problem:
    """A CSV or Parquet file as a problem.

    One-hot blocks sum to the intercept, so a table with categories has a unique optimum only if ``rho > 0``.

    Args:
        path: of the file (.csv, .parquet); a config names it relative to where the command runs.
        label: name of the column to predict.
        task: "regression" (`Linear`, any finite label) or "binary" (`Logistic`, two distinct labels).
        positive: the label that becomes +1; the larger, or the last in sorted order, where not given.
        unit, client: with ``split = "columns"``, whose row it is; a client is a pair (unit, client).
        numeric, categorical: names of the columns that become features: numbers, and words as one-hot blocks.
        units, clients: with any other split, how many units and how many clients in each.
        alpha: concentration of ``split = "dirichlet"``, by label (tenths of the labels for a regression).
        scaling, categories: as in `FeatureMap.fit`, and `categories` the two labels of a binary task too; what they
            leave out is computed from everybody's rows, which no epsilon covers (`Problem.undeclared`).
        top: categories that are kept of a column, the most frequent; the others share one.
        rho: of the regulariser rho |w|^2, at least 0.
        test_fraction: held out of every client's rows, by their place alone; every client keeps a training row.
        seed: of the split and of what is held out.

    Returns:
        A problem on somebody's data (`Problem.private`).

    Raises:
        InputError: the file, a column or an option cannot be used.
    """
    spec = dict(locals(), name="table", path=absolute(path, "problem.path"))
    one_of("problem.task", task, ("regression", "binary"))
    one_of("problem.split", split, SPLITS)
    whole("problem.seed", seed, 0)
    if number("problem.test_fraction", test_fraction, 0.0) >= 1.0:
        raise InputError("problem.test_fraction", test_fraction, "must be below 1, or no row is left to train on")
    _check_columns(spec)
    _check_options(spec)
    model = (Linear if task == "regression" else Logistic)(number("problem.rho", rho, 0.0))

    import polars as pl

    source = Source.of(path)
    frame = read_table(path, "problem.path")
    source.check("problem.path")
    declared = dict(categories or {})
    classes = declared.pop(label, None) if task == "binary" else None
    d, named = _labels(frame, label, task, positive, classes)
    for name in numeric:  # parsed before the split, so that an error counts the file's rows
        frame = frame.with_columns(pl.Series(name, numbers(frame, name, "problem.numeric")))
    for name in categorical:
        column(frame, name, "problem.categorical")
    if split == "columns":
        unit_names, client_of_row, unit_of_client = _by_columns(frame, unit, client, units, clients)
    else:
        unit_names, client_of_row, unit_of_client = _by_split(d, task, split, units, clients, seed, alpha)
    held_out = _held_out(client_of_row, unit_of_client, test_fraction, seed)

    made = FeatureMap.fit(
        frame.filter(~held_out),
        numeric=numeric,
        categorical=categorical,
        scaling=scaling,
        categories=declared,
        top=top,
    )
    X = made.apply(frame, "problem.path")
    notes = [FeatureMap.NOTE] if made.computed else []
    if test_fraction > 0 and not held_out.any():
        notes.append("no test rows: every client is too small to spare one")
    return Problem(
        Federation.from_assignment(X[~held_out], d[~held_out], client_of_row[~held_out], unit_of_client),
        model,
        (X[held_out], d[held_out]) if held_out.any() else None,
        plain(spec),
        tuple(notes),
        {**made.to_dict(), "label": {"name": label, "task": task, **named}, "units": unit_names},
        undeclared=_undeclared(made, label if named and classes is None else None, split),
        source=source,
    )


def _undeclared(made: FeatureMap, label: str | None, split: str) -> tuple[str, ...]:
    """What one client's rows change for everybody else, and the line that mends it; no number or word of the data."""
    why = []
    for columns, what, key, example in (
        ([c.name for c in made.numeric if c.computed], "the scaling of {} is", "scaling", "[0, 1] (centre, scale)"),
        ([c.name for c in made.categorical if c.computed], "the categories of {} are", "categories", '["a", "b"]'),
        ([] if label is None else [label], "the two labels of {} are", "categories", '["no", "yes"]'),
    ):
        if columns:
            these = ", ".join(columns[:3]) + (f" and {len(columns) - 3} more" if len(columns) > 3 else "")
            why.append(
                f"{what.format(these)} computed from everybody's rows; declare what is known without them under "
                f"[problem.{key}]: {toml_key(columns[0])} = {example}"
            )
    if split != "columns":
        looks = "everybody's labels" if split == "dirichlet" else "the whole table: one row more moves others"
        why.append(
            f'split = "{split}" deals rows out by {looks}, for experiments; let columns say whose a row is: '
            'split = "columns", unit and client'
        )
    return tuple(why)


def _check_columns(asked: Mapping[str, Any]) -> None:
    features = ("numeric", "categorical")
    for role in features:
        if isinstance(asked[role], str) or not isinstance(asked[role], Sequence):
            raise InputError(f"problem.{role}", asked[role], "must be a list of column names")
    if not (asked["numeric"] or asked["categorical"]):
        raise InputError("problem.numeric", [], "no features; name columns in numeric or categorical")
    named = [("label", asked["label"])]
    named += [(role, asked[role]) for role in ("unit", "client") if asked[role] is not None]
    named += [(role, column) for role in features for column in asked[role]]
    used: dict[str, str] = {}
    for role, value in named:
        if not (isinstance(value, str) and value):
            raise InputError(f"problem.{role}", value, "must be the name of a column")
        if value in used:
            raise InputError(f"problem.{role}", value, f"is used already, as {used[value]}; name it once")
        used[value] = role


def _check_options(asked: Mapping[str, Any]) -> None:
    split = asked["split"]
    if not isinstance(asked["positive"], str | int | float | None):
        raise InputError("problem.positive", asked["positive"], "must be one of the two labels")
    for role in ("unit", "client"):
        if split != "columns" and asked[role] is not None:
            remedy = f'split = "{split}" would ignore the column; leave it out or use split = "columns"'
            raise InputError(f"problem.{role}", asked[role], remedy)
    if split != "dirichlet" and asked["alpha"] is not None:
        raise InputError("problem.alpha", asked["alpha"], f'split = "{split}" has no alpha; leave it out')
    for role in ("scaling", "categories"):
        if asked[role] is not None and not isinstance(asked[role], Mapping):
            raise InputError(f"problem.{role}", asked[role], "must be a table of column names")


def _complete(frame: pl.DataFrame, name: str, field: str, lack: str) -> pl.Series:
    """A column as text, refused where a row has none."""
    text = words(frame, name, field)
    missing = int((text == MISSING).sum())
    if missing:
        raise InputError(field, name, f"{missing} rows {lack}; fill them in or drop the rows")
    return text


def _labels(
    frame: pl.DataFrame, label: str, task: str, positive: object, declared: object
) -> tuple[Floats, dict[str, str]]:
    """Labels as numbers, and the texts of the two classes of a binary task, `declared` or found."""
    text = _complete(frame, label, "problem.label", "have no label")
    if task == "regression":
        if positive is not None:
            raise InputError("problem.positive", positive, 'only a task = "binary" has a positive label')
        d = numbers(frame, label, "problem.label")
        if np.isnan(d).any():
            remedy = f"{int(np.isnan(d).sum())} labels are not numbers; mend them or drop the rows"
            raise InputError("problem.label", label, remedy)
        return d, {}
    found = _sorted(text.unique() if declared is None else listed(f"problem.categories.{label}", declared))
    if len(found) != 2:
        shown = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "")
        remedy = f"a binary task needs two distinct labels, found {len(found)}: {shown}"
        raise InputError("problem.label", label, remedy)
    strange = (~text.is_in(found)).arg_true()
    if len(strange):
        row = int(strange[0])
        remedy = f"row {row + 1} holds {text[row]!r}; declared are {' and '.join(found)}"
        raise InputError("problem.label", label, remedy)
    if positive is not None:
        asked = str(positive)
        same = [v for v in found if v == asked] or [v for v in found if v.lower() == asked.lower()]
        same = same or [v for v in found if _number(asked) is not None and _number(v) == _number(asked)]
        if len(same) != 1:
            raise InputError("problem.positive", positive, f"must be one of the labels {' and '.join(found)}")
        found.sort(key=same[0].__eq__)  # the positive one last
    return np.where((text == found[1]).to_numpy(), 1.0, -1.0), {"negative": found[0], "positive": found[1]}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _sorted(values: Iterable[str]) -> list[str]:
    """Texts in the order of their numbers where all are numbers: unit 10 comes after unit 9."""
    texts = sorted(values)
    as_numbers = [_number(v) for v in texts]
    if any(x is None or math.isnan(x) for x in as_numbers):
        return texts
    return sorted(texts, key=float)


def _by_columns(
    frame: pl.DataFrame, unit: str | None, client: str | None, units: int | None, clients: int | None
) -> tuple[list[str], Ints, Ints]:
    import polars as pl

    for role, count in (("units", units), ("clients", clients)):
        if count is not None:
            raise InputError(f"problem.{role}", count, 'split = "columns" counts them itself; leave it out')
    texts: dict[str, pl.Series] = {}
    for role, name in (("unit", unit), ("client", client)):
        if name is None:
            needs = 'split = "columns" needs the columns of unit and client'
            raise InputError(f"problem.{role}", None, f"{needs}; name both, or choose another split")
        texts[role] = _complete(frame, name, f"problem.{role}", f"name no {role}")
    who = pl.DataFrame(texts)
    names = _sorted(who["unit"].unique())
    place = pl.DataFrame({"unit": names, "p": np.arange(len(names))})
    pairs = who.unique().join(place, on="unit").sort("p", "client").with_row_index("c")
    c = who.join(pairs, on=["unit", "client"], how="left", maintain_order="left")["c"]
    return names, c.to_numpy().astype(np.int64), pairs["p"].to_numpy().astype(np.int64)


def _by_split(
    d: Floats, task: str, split: str, units: int | None, clients: int | None, seed: int, alpha: float | None
) -> tuple[list[str], Ints, Ints]:
    for role, count in (("units", units), ("clients", clients)):
        if count is None:
            raise InputError(f"problem.{role}", None, f'split = "{split}" needs a number of {role}')
    P, K = positive_int("problem.units", units), positive_int("problem.clients", clients)
    if split == "dirichlet":
        if alpha is None:
            raise InputError("problem.alpha", None, 'split = "dirichlet" needs a positive alpha, such as 0.5')
        tenths = np.searchsorted(np.quantile(d, np.linspace(0.1, 0.9, 9)), d)
        client_of_row = splits.dirichlet(tenths if task == "regression" else d, P, K, seed, alpha)
    else:
        client_of_row = (splits.iid if split == "iid" else splits.unequal)(len(d), P, K, seed)
    return [str(p) for p in range(P)], client_of_row, np.repeat(np.arange(P), K)


def _held_out(client_of_row: Ints, unit_of_client: Ints, fraction: float, seed: int) -> NDArray[np.bool_]:
    """A share of every client's rows, drawn from (seed, unit, client): nobody's rows decide what another trains on.

    Drawn by place, not by label: where one row's label changes, the client's other rows stay where they are.
    """
    held_out = np.zeros(len(client_of_row), dtype=np.bool_)
    order = np.argsort(client_of_row, kind="stable")
    ends = np.cumsum(np.bincount(client_of_row, minlength=len(unit_of_client)))
    first = np.searchsorted(unit_of_client, unit_of_client)  # of the clients of the same unit
    for c, rows in enumerate(np.split(order, ends[:-1])):
        g = generator(seed, Purpose.SPLIT, _TEST, int(unit_of_client[c]), c - int(first[c]))
        count = min(int(len(rows) * fraction + g.random()), len(rows) - 1)
        held_out[rows[g.permutation(len(rows))[:count]]] = True
    return held_out
