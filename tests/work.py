"""How much work something is, counted and not timed: what a test may bound on any machine."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines(work: Callable[[], object], file: str | None = None) -> int:
    """Lines of Python that are run, of this file or of all: a loop, or a comprehension, counts each turn."""
    ran = 0

    def watch(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal ran
        if file is not None and frame.f_code.co_filename != file:
            return None
        ran += event == "line"
        return watch

    before = sys.gettrace()
    gc.disable()  # it calls back as often as it likes
    sys.settrace(watch)
    try:
        work()
    finally:
        sys.settrace(before)
        gc.enable()
    return ran


def peak_bytes(work: Callable[[], object]) -> int:
    """The most memory that is held at once, arrays of NumPy included."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
