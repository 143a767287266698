"""A client's samples from its own file, with NumPy alone: features X and a target y.

No row decides over the others. What is refused as a whole is decided by what is no row: the names of a .csv, the shapes
and types of an .npz. A line that cannot be read becomes a row of NaN, which `training.of_plan` takes for zeros.
"""

from __future__ import annotations

import math
from array import array
from pathlib import Path

import numpy as np

from confide.base.arrays import Floats
from confide.base.errors import DataError, InputError


def read(path: Path, features: int | None = None) -> tuple[Floats, Floats]:
    """From an .npz with arrays X and y, or a .csv: a line of names, then one line a row: features, then the target.

    Args:
        features: of the plan's model; any where it does not say.

    Errors name the file and the place, never a value: a `DataError` where the contents are wrong, any other where there
    is no file to be read.
    """
    X, y = _npz(path) if path.suffix == ".npz" else _csv(path, features)
    if X.ndim != 2 or y.shape != (len(X),) or not len(X):
        remedy = f"X has shape {X.shape} and y {y.shape}; one row of features and one target a sample are needed"
        raise DataError("data", str(path), remedy)
    if features is not None and X.shape[1] != features:
        raise DataError("data", str(path), f"has {X.shape[1]} features; the plan's model has {features}")
    return X, y


def begins_with_numbers(path: Path) -> bool:
    """Whether the names of a .csv look like a row: they were forgotten."""
    if path.suffix == ".npz":
        return False
    with open(path, encoding="utf-8", errors="replace") as file:
        first = file.readline()
    return not math.isnan(_numbers(first, first.count(",") + 1)[0])


def _npz(path: Path) -> tuple[Floats, Floats]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            for name in ("X", "y"):
                if name not in arrays:
                    raise DataError("data", str(path), f"has no array {name}; save it with np.savez(file, X=X, y=y)")
                if arrays[name].dtype.kind not in "fiub":  # of texts one might be no number
                    raise DataError("data", str(path), f"{name} is of {arrays[name].dtype}; save an array of numbers")
            with np.errstate(over="ignore"):
                return arrays["X"].astype(np.float64), arrays["y"].astype(np.float64)
    except DataError:
        raise
    except (FileNotFoundError, IsADirectoryError, PermissionError) as e:
        raise InputError("data", str(path), f"cannot be read ({e.strerror})") from None
    except Exception:  # whatever a file leads to
        remedy = "is no .npz of numbers (pickled objects are not read); save it with np.savez(file, X=X, y=y)"
        raise DataError("data", str(path), remedy) from None


def _csv(path: Path, features: int | None) -> tuple[Floats, Floats]:
    """Every line after the first is a row, whatever it holds, a lone carriage return included."""
    rows = array("d")
    try:
        with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
            columns = file.readline().count(",") + 1
            if features is not None and columns != features + 1:
                remedy = f"its first line has {columns} names; the plan's model has {features} features and a target"
                raise DataError("data", str(path), remedy)
            for line in file:
                rows.extend(_numbers(line, columns))
    except OSError as e:
        raise InputError("data", str(path), f"cannot be read ({e.strerror})") from None
    table = np.array(rows, np.float64).reshape(-1, columns)
    return table[:, :-1].copy(), table[:, -1].copy()


def _numbers(line: str, columns: int) -> list[float]:
    """NaN where these are not so many numbers."""
    try:
        found = [float(x) for x in line.split(",")]
    except ValueError:
        found = []
    return found if len(found) == columns else [math.nan] * columns
