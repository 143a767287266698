"""What `make explore` tries and `make test` does not: cases that only repeat what others in the same table show."""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")


def more(few: T, all: T) -> T:
    return all if "CONFIDE_EXPLORE" in os.environ else few
