"""How long a test waits for an event: one limit for all of them, so that a slow machine is slow and not red.

A test asserts what happens, never when. `CONFIDE_PATIENCE=5` waits five times as long.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final, TypeVar

SCALE: Final = float(os.environ.get("CONFIDE_PATIENCE", "1"))
LIMIT: Final = 300.0 * SCALE  # seconds; whoever needs them all has hung

T = TypeVar("T")


def until(condition: Callable[[], T], what: object = "it", pause: float = 0.05) -> T:
    """Waits until `condition` is true and returns what it found."""
    end = time.monotonic() + LIMIT
    while not (found := condition()):
        assert time.monotonic() < end, f"{what() if callable(what) else what} did not happen in {LIMIT:g} s"
        time.sleep(pause)
    return found
