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
    """Numbers, lists and tables for JSON, which has no infinity and no NaN: they are None.

    >>> plain({"a": np.array([1.0, np.inf]), "b": (0.123456, True)}, digits=4)
    {'a': [1.0, None], 'b': [0.1235, True]}
    """
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(name): plain(v, digits) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v, digits) for v in value]
    if isinstance(value, float):
        finite = math.isfinite(value)
        return None if not finite else value if digits is None else round(value, digits)
    return value
