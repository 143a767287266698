"""Several works timed side by side."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

Name = TypeVar("Name")


def best(
    works: Mapping[Name, Callable[[], object]], tries: int, watch: Callable[[], None] = lambda: None
) -> dict[Name, float]:
    """The fewest seconds of each, in tries that take turns, so that a busy moment of the machine hits all alike."""
    found = dict.fromkeys(works, math.inf)
    for _ in range(tries):
        for name, work in works.items():
            began = time.perf_counter()
            work()
            found[name] = min(found[name], time.perf_counter() - began)
        watch()
    return found
