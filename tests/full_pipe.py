"""A pipe that nobody reads."""

from __future__ import annotations

import os
from contextlib import suppress


def fill(fd: int) -> int:
    """Until it takes nothing more; how many bytes that were."""
    os.set_blocking(fd, False)
    size = 0
    for piece in (b"x" * 4096, b"x"):
        with suppress(BlockingIOError):
            while True:
                size += os.write(fd, piece)
    os.set_blocking(fd, True)
    return size
