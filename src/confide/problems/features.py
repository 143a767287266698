"""From the columns of a table to the columns of X, described by plain data that outlives the training set.

Numbers are centred and scaled, categories become one-hot blocks (a list of categories, "other" last) or are
hashed into shared buckets. What the description learnt from the data is marked: it is not private.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from confide.base.arrays import Floats, Ints
from confide.base.errors import InputError
from confide.base.validation import number, positive, positive_int

if TYPE_CHECKING:
    import polars as pl


MISSING: Final = "(missing)"
OTHER: Final = "other"
NOT_A_NUMBER: Final = ("", "na", "n/a", "nan", "null", "none")  # in a column of numbers these mean: missing


@dataclass(frozen=True)
class Numeric:
    """(value - centre) / scale; a missing value becomes 0, the centre."""

    name: str
    centre: float
    scale: float
    computed: bool = False

    def apply(self, frame: pl.DataFrame, table: str) -> Floats:
        x = numbers(frame, self.name, table)
        return np.nan_to_num((x - self.centre) / self.scale, nan=0.0)


@dataclass(frozen=True)
class Categorical:
    """One-hot over `categories` and "other", or hashed where `categories` is None.

    ``last = 2`` keeps the last two characters of a value: YYMMDDHH becomes the hour of the day. A missing
    value is the category "(missing)" where the list has it, "other" where not.
    """

    name: str
    categories: tuple[str, ...] | None
    last: int = 0
    computed: bool = False

    def codes(self, frame: pl.DataFrame, table: str, buckets: int) -> Ints:
        values = words(frame, self.name, table, self.last)
        if self.categories is None:
            known = values.unique().to_list()
            places = [bucket(self.name, v, buckets) for v in known]
            return _lookup(values, known, places, 0)
        return _lookup(values, self.categories, range(len(self.categories)), len(self.categories))


@dataclass(frozen=True)
class FeatureMap:
    """How X is made from a table; `to_dict` is JSON-able and needs no training data to be applied again.

    The columns of X are the numbers, then one one-hot block a category, then the hash buckets, then "1".
    With `unit_rows` the part made of F categorical fields is divided by sqrt F, so that it has norm 1 (more
    where two fields of a row share a bucket).

    >>> import polars as pl
    >>> log = pl.DataFrame({"age": [20.0, 40.0], "colour": ["red", "blue"]})
    >>> f = FeatureMap.fit(log, numeric=["age"], categorical=["colour"])
    >>> f.names
    ('age', 'colour=blue', 'colour=red', 'colour=other', '1')
    >>> f.apply(pl.DataFrame({"age": [None, 50.0], "colour": ["green", "red"]}))
    array([[0., 0., 0., 1., 1.],
           [2., 0., 1., 0., 1.]])
    """

    NOTE: ClassVar[str] = "scaling and categories computed from the data, not private"

    numeric: tuple[Numeric, ...]
    categorical: tuple[Categorical, ...]
    buckets: int = 0
    unit_rows: bool = False
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        names = [c.name for c in self.numeric]
        for c in self._listed:
            names += [f"{c.name}={v}" for v in (*(c.categories or ()), OTHER)]
        names += [f"bucket {b}" for b in range(self.buckets)]
        object.__setattr__(self, "names", (*names, "1"))

    @property
    def _listed(self) -> tuple[Categorical, ...]:
        return tuple(c for c in self.categorical if c.categories is not None)

    @property
    def computed(self) -> bool:
        """Whether anything here was read off the data instead of declared."""
        return any(c.computed for c in self.numeric) or any(c.computed for c in self.categorical)

    @classmethod
    def fit(
        cls,
        frame: pl.DataFrame,
        *,
        numeric: Sequence[str] = (),
        categorical: Sequence[str] = (),
        scaling: Mapping[str, Sequence[float]] | None = None,
        categories: Mapping[str, Sequence[object]] | None = None,
        top: int = 20,
        hashed: Sequence[str] = (),
        buckets: int = 0,
        last: Mapping[str, int] | None = None,
        unit_rows: bool = False,
        refuse_constant: bool = True,
    ) -> FeatureMap:
        """Take what is declared, without a look at the column, and compute the rest from `frame`.

        Args:
            scaling: column -> [centre, scale]; mean and standard deviation of `frame` where it is silent.
            categories: column -> list; the `top` most frequent values of `frame` where it is silent
                ("(missing)" is added to them where values are missing).
            hashed: categorical columns to hash into `buckets` shared columns; nothing of them is computed.
            last: categorical column -> number of final characters to keep.
            refuse_constant: an undeclared column with one value is a mistake (the model has its own intercept).
        """
        positive_int("problem.top", top)
        if hashed:
            positive_int("problem.buckets", buckets)
        scaling, categories, last = scaling or {}, categories or {}, last or {}
        _known("problem.scaling", scaling, numeric)
        _known("problem.categories", categories, categorical)
        return cls(
            tuple(_fit_numeric(frame, c, scaling.get(c), refuse_constant) for c in numeric),
            (
                *(
                    _fit_categorical(frame, c, categories.get(c), top, last.get(c, 0), refuse_constant)
                    for c in categorical
                ),
                *(Categorical(c, None, last.get(c, 0)) for c in hashed),
            ),
            buckets if hashed else 0,
            unit_rows,
        )

    def apply(self, frame: pl.DataFrame, table: str = "table") -> Floats:
        """X, shape (rows, len(names)); errors name the field `table`."""
        X = np.zeros((frame.height, len(self.names)))
        for j, number_column in enumerate(self.numeric):
            X[:, j] = number_column.apply(frame, table)
        value = 1.0 / math.sqrt(len(self.categorical)) if self.unit_rows and self.categorical else 1.0
        rows, start = np.arange(frame.height), len(self.numeric)
        for c in self._listed:
            X[rows, start + c.codes(frame, table, 0)] = value
            start += len(c.categories or ()) + 1
        for c in self.categorical:
            if c.categories is None:
                X[rows, start + c.codes(frame, table, self.buckets)] += value
        X[:, -1] = 1.0
        return X

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return {**plain, "note": self.NOTE if self.computed else ""}

    @classmethod
    def from_dict(cls, described: Mapping[str, Any]) -> FeatureMap:
        """The map that `to_dict` described; keys it does not know (the label's, say) are left alone."""
        try:
            return cls(
                tuple(Numeric(**c) for c in described["numeric"]),
                tuple(
                    Categorical(**{**c, "categories": c["categories"] and tuple(c["categories"])})
                    for c in described["categorical"]
                ),
                described["buckets"],
                described["unit_rows"],
            )
        except (KeyError, TypeError) as e:
            raise InputError("features", described, f"not a feature description ({e!r})") from None


def bucket(column: str, value: str, buckets: int) -> int:
    """blake2b of "column=value" modulo `buckets`: the same on every machine and in every process.

    >>> bucket("site_id", "85f751fd", 128)
    95
    """
    digest = blake2b(f"{column}={value}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % buckets


def numbers(frame: pl.DataFrame, name: str, table: str) -> Floats:
    """A column as floats, NaN where a value is missing; text that is no number and infinities are refused."""

    import polars as pl

    s = column(frame, name, table)
    if not (s.dtype.is_numeric() or s.dtype in (pl.String, pl.Boolean, pl.Null)):
        raise InputError(table, name, f"the column holds {s.dtype}, not numbers; name it as categorical")
    if s.dtype == pl.String:
        s = s.str.strip_chars()
        s = s.set(s.str.to_lowercase().is_in(NOT_A_NUMBER), None)
    x = s.cast(pl.Float64, strict=False)
    wrong = (x.is_null() & s.is_not_null()) | x.is_infinite().fill_null(False)
    if wrong.any():
        row = int(wrong.arg_true()[0])
        remedy = f"row {row + 1} holds {s[row]!r}; every value must be a finite number or missing"
        raise InputError(table, name, remedy)
    return x.fill_null(math.nan).to_numpy().astype(np.float64)


def words(frame: pl.DataFrame, name: str, table: str, last: int = 0) -> pl.Series:
    """A column as text, "(missing)" where a value is missing or empty."""

    import polars as pl

    s = column(frame, name, table)
    if s.dtype.is_float():
        s = s.fill_nan(None)
    if s.dtype.is_nested() or s.dtype in (pl.Binary, pl.Object):
        raise InputError(table, name, f"the column holds {s.dtype}; categories are text or numbers")
    text = s.cast(pl.String)
    if s.dtype.is_float():  # one value that is missing makes a column of whole numbers one of floats: "1", not "1.0"
        text = text.str.replace(r"^(-?\d+)\.0$", "$1")
    s = text
    if last:
        s = s.str.tail(last)
    return s.set(s == "", None).fill_null(MISSING)


def column(frame: pl.DataFrame, name: str, table: str) -> pl.Series:
    if name not in frame.columns:
        raise InputError(table, name, f"no such column; the table has {', '.join(frame.columns)}")
    return frame[name]


def _lookup(values: pl.Series, known: Iterable[str], places: Iterable[int], default: int) -> Ints:
    import polars as pl

    found = values.replace_strict(list(known), list(places), default=default, return_dtype=pl.Int64)
    return found.to_numpy().astype(np.int64)


def _known(name: str, declared: Mapping[str, object], columns: Sequence[str]) -> None:
    for c in declared:
        if c not in columns:
            raise InputError(name, c, f"not among the columns it could describe: {', '.join(columns) or 'none'}")


def _fit_numeric(frame: pl.DataFrame, name: str, declared: Any, refuse: bool) -> Numeric:
    if declared is not None:
        where = f"problem.scaling.{name}"
        if isinstance(declared, str) or not isinstance(declared, Sequence) or len(declared) != 2:
            raise InputError(where, declared, "must be two numbers [centre, scale]")
        return Numeric(name, number(where, declared[0]), positive(where, declared[1]))
    x = numbers(frame, name, "problem.numeric")
    x = x[~np.isnan(x)]
    if len(x) == 0:
        raise InputError("problem.numeric", name, "every value is missing; drop it from features")
    if refuse and x.min() == x.max():
        raise _constant("problem.numeric", name, x[0])
    with np.errstate(over="ignore", invalid="ignore"):
        centre, scale = float(x.mean()), float(x.std()) or 1.0
    if not (math.isfinite(centre) and math.isfinite(scale)):
        raise InputError("problem.numeric", name, "its values are too large to average; rescale the column")
    return Numeric(name, centre, scale, computed=True)


def _fit_categorical(frame: pl.DataFrame, name: str, declared: Any, top: int, last: int, refuse: bool) -> Categorical:
    if declared is not None:
        known = listed(f"problem.categories.{name}", declared)
        return Categorical(name, tuple(v for v in known if v != OTHER), last)
    values = words(frame, name, "problem.categorical", last)
    counts = values.rename("v").value_counts().sort(["count", "v"], descending=[True, False])["v"]
    if refuse and len(counts) == 1:
        raise _constant("problem.categorical", name, counts[0])
    found = [v for v in counts.to_list() if v not in (MISSING, OTHER)][:top]
    missing = [MISSING] if MISSING in counts else []
    return Categorical(name, (*found, *missing), last, computed=True)


def listed(where: str, declared: object) -> tuple[str, ...]:
    """Declared categories as the texts that `words` gives."""
    if isinstance(declared, str) or not isinstance(declared, Sequence) or not declared:
        raise InputError(where, declared, "must be a list of categories")
    texts = tuple(str(v).lower() if isinstance(v, bool) else str(v) for v in declared)
    if len(set(texts)) < len(texts):
        raise InputError(where, declared, "names a category twice")
    return texts


def toml_key(name: str) -> str:
    """A column's name as a key of TOML.

    >>> toml_key("age"), toml_key("length of stay")
    ('age', '"length of stay"')
    """
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def _constant(where: str, name: str, value: object) -> InputError:
    remedy = f"has one value only ({value}); drop it from features (the model has its own intercept)"
    return InputError(where, name, remedy)
