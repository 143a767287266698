"""A client's samples from its own file, with NumPy alone: features X and a target y."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from confide.errors import DataError, InputError

Floats = NDArray[np.float64]


def read(path: Path, features: int) -> tuple[Floats, Floats]:
    """From an .npz with arrays X and y, or a .csv: features, then the target; its first line may be names.

    Errors name the file and the place, never a value: a `DataError` where the contents are wrong, any other where there
    is no file to be read.
    """
    X, y = _npz(path) if path.suffix == ".npz" else _csv(path)
    if X.ndim != 2 or y.shape != (len(X),) or not len(X):
        remedy = f"X has shape {X.shape} and y {y.shape}; one row of features and one target a sample are needed"
        raise DataError("data", str(path), remedy)
    if X.shape[1] != features:
        raise DataError("data", str(path), f"has {X.shape[1]} features; the plan's model has {features}")
    if not (np.isfinite(X).all() and np.isfinite(y).all()):
        raise DataError("data", str(path), "holds NaN or infinity; drop or fill in such samples")
    return X, y


def _npz(path: Path) -> tuple[Floats, Floats]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            for name in ("X", "y"):
                if name not in arrays:
                    raise DataError("data", str(path), f"has no array {name}; save it with np.savez(file, X=X, y=y)")
            return arrays["X"].astype(np.float64), arrays["y"].astype(np.float64)
    except DataError:
        raise
    except (FileNotFoundError, IsADirectoryError, PermissionError) as e:
        raise InputError("data", str(path), f"cannot be read ({e.strerror})") from None
    except Exception:  # whatever a file leads to
        remedy = "is no .npz of numbers (pickled objects are not read); save it with np.savez(file, X=X, y=y)"
        raise DataError("data", str(path), remedy) from None


def _csv(path: Path) -> tuple[Floats, Floats]:
    try:
        with open(path, encoding="utf-8") as file:
            first = file.readline()
        skip = 0 if _is_numbers(first) else 1
        rows = np.loadtxt(path, np.float64, delimiter=",", skiprows=skip, ndmin=2, encoding="utf-8")
    except OSError as e:
        raise InputError("data", str(path), f"cannot be read ({e.strerror})") from None
    except Exception:
        remedy = "is no table of numbers with commas; the first line may be names, the last column is the target"
        raise DataError("data", str(path), remedy) from None
    if rows.shape[1] < 2:
        raise DataError("data", str(path), "has a single column; features come first, the target last")
    return rows[:, :-1].copy(), rows[:, -1].copy()


def _is_numbers(line: str) -> bool:
    try:
        _ = [float(x) for x in line.split(",")]
    except ValueError:
        return False
    return True
