"""The user's own table: named columns for unit, client, label and features become a Problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from confide.base.arrays import Floats
from confide.base.errors import InputError
from confide.base.files import Source
from confide.base.validation import number, one_of
from confide.problems.dealing import NO_TEST, Deal, DealtConfig, as_number, complete, in_order
from confide.problems.features import FeatureMap, column, listed, numbers, toml_key
from confide.problems.federation import Federation
from confide.problems.models import Linear, Logistic
from confide.problems.problem import Problem
from confide.problems.reading import absolute, plain, read_table

if TYPE_CHECKING:
    import polars as pl


class TableConfig(DealtConfig):
    labels: ClassVar = frozenset({"positive", "categories"})
    name: Literal["table"] = Field(description="a table of your own, one row an example")
    path: str = Field(description="CSV (.csv, .tsv, gzipped or not) or Parquet file")
    label: str = Field(description="column to predict")
    task: str = Field("regression", description="regression (any number) or binary (two labels)")
    positive: str | int | float | bool | None = Field(
        None, description="of a binary task: the label that becomes +1; the larger by default, or the last by alphabet"
    )
    numeric: list[str] = Field([], description="columns that are features as numbers")
    categorical: list[str] = Field([], description="columns that are features as categories")
    scaling: dict[str, list[float]] | None = Field(
        None,
        description="column = [centre, scale]; else it is computed from the rows, which no epsilon covers",
    )
    categories: dict[str, list[str | int | float | bool]] | None = Field(
        None, description="column = [values], likewise; for the label of a binary task its two"
    )
    top: int = Field(20, description="categories of a column that declares none: its most frequent values")
    rho: float = Field(0.0, description="regulariser rho |w|^2")

    def make(self, seed: int) -> Problem:
        return table(**self.arguments(seed))


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
    _check_columns(spec)
    _check_options(spec)
    how = Deal(unit, client, units, clients, split, alpha, test_fraction, seed)
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
    owners = how.owners(frame, d, classes=task == "binary")
    test = how.held_out(owners)

    made = FeatureMap.fit(
        frame.filter(~test),
        numeric=numeric,
        categorical=categorical,
        scaling=scaling,
        categories=declared,
        top=top,
    )
    X = made.apply(frame, "problem.path")
    notes = [FeatureMap.NOTE] if made.computed else []
    if test_fraction > 0 and not test.any():
        notes.append(NO_TEST)
    return Problem(
        Federation.from_assignment(X[~test], d[~test], owners.client_of_row[~test], owners.unit_of_client),
        model,
        (X[test], d[test]) if test.any() else None,
        plain(spec),
        tuple(notes),
        {**made.to_dict(), "label": {"name": label, "task": task, **named}, "units": owners.units},
        undeclared=_undeclared(made, label if named and classes is None else None) + how.undeclared,
        source=source,
    )


def _undeclared(made: FeatureMap, label: str | None) -> tuple[str, ...]:
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
    if not isinstance(asked["positive"], str | int | float | None):
        raise InputError("problem.positive", asked["positive"], "must be one of the two labels")
    for role in ("scaling", "categories"):
        if asked[role] is not None and not isinstance(asked[role], Mapping):
            raise InputError(f"problem.{role}", asked[role], "must be a table of column names")


def _labels(
    frame: pl.DataFrame, label: str, task: str, positive: object, declared: object
) -> tuple[Floats, dict[str, str]]:
    """Labels as numbers, and the texts of the two classes of a binary task, `declared` or found."""
    text = complete(frame, label, "problem.label", "have no label")
    if task == "regression":
        if positive is not None:
            raise InputError("problem.positive", positive, 'only a task = "binary" has a positive label')
        d = numbers(frame, label, "problem.label")
        if np.isnan(d).any():
            remedy = f"{int(np.isnan(d).sum())} labels are not numbers; mend them or drop the rows"
            raise InputError("problem.label", label, remedy)
        return d, {}
    found = in_order(text.unique() if declared is None else listed(f"problem.categories.{label}", declared))
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
        same = same or [v for v in found if as_number(asked) is not None and as_number(v) == as_number(asked)]
        if len(same) != 1:
            raise InputError("problem.positive", positive, f"must be one of the labels {' and '.join(found)}")
        found.sort(key=same[0].__eq__)  # the positive one last
    return np.where((text == found[1]).to_numpy(), 1.0, -1.0), {"negative": found[0], "positive": found[1]}
