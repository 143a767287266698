"""Arrays by what they hold, for annotations; and as plain lists."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def plain(value: Any, digits: int | None = None) -> Any:
    """Numbers, lists and tables for JSON, which has no infinity and no NaN: they are None; to so many digits.

    >>> plain({"a": np.array([1.0, np.inf]), "b": (0.123456, True), "c": 1.23456e-9}, digits=4)
    {'a': [1.0, None], 'b': [0.1235, True], 'c': 1.235e-09}
    """
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(name): plain(v, digits) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v, digits) for v in value]
    if isinstance(value, float):
        finite = math.isfinite(value)
        return None if not finite else value if digits is None else float(f"{value:.{digits}g}")
    return value
