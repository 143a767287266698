"""What stands in a column of a store: its type in SQL, what is written of a value and what is read back."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from confide.base import canonical

Vector = NDArray[np.int64]  # never changed in place, so that copies of the books may share it


def as_bytes(x: Vector) -> bytes:
    return x.astype("<i8", copy=False).tobytes()


def as_vector(raw: bytes) -> Vector:
    return np.frombuffer(raw, "<i8").astype(np.int64, copy=False)


class Column(NamedTuple):
    sql: str
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]  # raises `ValueError` for what cannot be


def _count(n: int) -> int:
    if n < 0:
        raise ValueError(f"counts {n}")
    return n


COUNT: Final = Column("INTEGER", int, _count)
SECONDS: Final = Column("REAL", float, float)
FLAG: Final = Column("INTEGER", int, bool)
BYTES: Final = Column("BLOB", bytes, bytes)
VECTOR: Final = Column("BLOB", as_bytes, as_vector)
IDS: Final = Column("TEXT", lambda x: canonical.dumps([int(k) for k in x]), lambda text: tuple(canonical.loads(text)))


def word(kind: type[StrEnum]) -> Column:
    return Column("TEXT", lambda x: kind(x).value, kind)
