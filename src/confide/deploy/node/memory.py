"""How the C library keeps memory for a node, whose buffers are as long as the model and come and go in every round.

Left alone it gives them back to the system and asks for them again, page by page, and has a heap for each of gRPC's
threads. Kept, in one heap, they cost less of both time and memory.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Final

_TRIM, _MMAP, _ARENAS = -1, -3, -8  # <malloc.h> of glibc
KEPT: Final = 1 << 25  # bytes: a buffer that is longer goes back at once


def keep_buffers() -> None:
    """For the whole process, at its start; does nothing where the C library is not glibc."""
    with suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        for what, value in ((_ARENAS, 1), (_MMAP, KEPT), (_TRIM, 2 * KEPT)):
            mallopt(what, value)
