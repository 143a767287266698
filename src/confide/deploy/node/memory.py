"""A node's memory: what it needs once does not stay, and what comes and goes in every round is kept.

Buffers are as long as the model. Left alone, the C library gives them back to the system and asks for them again, page
by page, and has a heap for each of gRPC's threads. Kept, in one heap, they cost less of both time and memory.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Final

from confide.base.errors import InputError, RunError

_TRIM, _MMAP, _ARENAS = -1, -3, -8  # <malloc.h> of glibc
KEPT: Final = 1 << 25  # bytes: a buffer that is longer goes back at once


def keep_buffers() -> None:
    """For the whole process, at its start; does nothing where the C library is not glibc."""
    with suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        for what, value in ((_ARENAS, 1), (_MMAP, KEPT), (_TRIM, 2 * KEPT)):
            mallopt(what, value)


def apart(work: Callable[..., None], *arguments: Any) -> None:
    """Do this in a child process, with which the libraries go that it loads; in this one where the system has no fork.

    Raises:
        InputError, RunError: of the work.
    """
    if "fork" not in multiprocessing.get_all_start_methods():
        work(*arguments)
        return
    forking = multiprocessing.get_context("fork")
    answer, theirs = forking.Pipe(duplex=False)
    child = forking.Process(target=_report, args=(theirs, work, arguments))
    child.start()
    theirs.close()
    try:
        said = json.loads(answer.recv_bytes())
    except EOFError:
        said = ["the process that reads the ledger failed, see the log"]
    child.join()
    if len(said) == 3:
        raise InputError(*said)
    if said:
        raise RunError(*said)


def _report(answer: Connection, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    said: list[str] = []
    try:
        work(*arguments)
    except InputError as e:
        said = [e.field, str(e.value), e.remedy]
    except RunError as e:
        said = [str(e)]
    answer.send_bytes(json.dumps(said).encode())
