"""Warnings of Python and its libraries, NumPy's too: told by kind and place, since their words may hold values."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import PurePath
from typing import Any, Final

MOST: Final = 256  # of one process
_log = logging.getLogger(__name__)


def log_warnings() -> None:
    """Into this process's log, where the list of what it may say holds for them too."""
    tell_warnings(lambda kind, at: _log.warning("a library warned: %s at %s", kind, at))


def tell_warnings(told: Callable[[str, str], None]) -> None:
    """From here on, each once, as (kind, place), in place of the words on stderr."""
    seen: set[tuple[str, str]] = set()

    def show(message: object, category: type[Warning], filename: str, lineno: int, *_: Any, **__: Any) -> None:
        what = category.__name__, f"{'/'.join(PurePath(filename).parts[-2:])}:{lineno}"
        if what not in seen and len(seen) < MOST:
            seen.add(what)
            told(*what)

    warnings.showwarning = show
