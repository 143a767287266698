"""A node's memory: what it needs once does not stay, and what comes and goes in every round is kept.

Buffers are as long as the model. Left alone, the C library gives them back to the system and asks for them again, page
by page, and has a heap for each of gRPC's threads. Kept, in one heap, they cost less of both time and memory.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from confide.base.errors import InputError, PassingError, RunError

_TRIM, _MMAP, _ARENAS = -1, -3, -8  # <malloc.h> of glibc
_KINDS: Final = {kind.__name__: kind for kind in (InputError, PassingError, RunError)}
KEPT: Final = 1 << 25  # bytes: a buffer that is longer goes back at once


def keep_buffers() -> None:
    """For the whole process, at its start; does nothing where the C library is not glibc."""
    with suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        for what, value in ((_ARENAS, 1), (_MMAP, KEPT), (_TRIM, 2 * KEPT)):
            mallopt(what, value)


def resident(pid: int) -> int:
    """Bytes that a process has in memory; 0 where the system does not say."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def apart(work: Callable[[], None]) -> None:
    """Do this in a child process, with which the libraries go that it loads.

    Raises:
        InputError, RunError: of the work.
    """
    answer, theirs = os.pipe()
    child = os.fork()  # `multiprocessing` would stay in memory, which is what this is about
    if child == 0:
        try:
            os.close(answer)
            os.write(theirs, json.dumps(_said(work)).encode())
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(0)
    os.close(theirs)
    with open(answer, "rb") as file:
        raw = file.read()
    os.waitpid(child, 0)
    said = json.loads(raw) if raw else ["RunError", "the process that reads the ledger failed, see the log"]
    if said:
        raise _KINDS[said[0]](*said[1:])


def _said(work: Callable[[], None]) -> list[str]:
    """The error of the work, in words; nothing where there was none."""
    try:
        work()
    except InputError as e:
        kind = PassingError if isinstance(e, PassingError) else InputError
        return [kind.__name__, e.field, str(e.value), e.remedy]
    except (RunError, OSError, MemoryError) as e:
        return [RunError.__name__, str(e)]
    return []
