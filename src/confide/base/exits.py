"""How a process ends: a user's mistake is one line on stderr and an exit code, never a traceback."""

from __future__ import annotations

import errno
import os
import select
import sys
from collections.abc import Callable
from typing import Final

from confide.base.errors import PASSING, FinalError, InputError, PassingError, RunError

LONGEST: Final = 4000  # characters; a pipe that takes any takes as many bytes
PATIENCE: Final = 1.0  # seconds for a reader


def ended_by(error: BaseException) -> tuple[str, int] | None:
    """What to say of an error, and the exit code: 2 bad input or over for good, 1 failed, 130 interrupted.

    None: a defect of confide.
    """
    match error:
        case PassingError():
            return f"failed: {error}", 1
        case InputError():
            return f"error: {error}", 2
        case FinalError():
            return f"failed: {error}", 2
        case RunError():
            return f"failed: {error}", 1
        case MemoryError():
            return f"failed: not enough memory ({error}); make the run smaller", 1
        case KeyboardInterrupt():
            return "interrupted", 130
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return "failed: the disk is full, the output could not be written", 1
        case OSError(errno=code) if code in PASSING:
            return f"failed: {error}", 1
    return None


def say(line: str) -> None:
    """On stderr, whatever is in it as one line; not at all where nobody has read what was said before."""
    if _is_read():
        try:
            print(" ".join(line.split())[:LONGEST], file=sys.stderr, flush=True)
        except OSError:  # the reader has gone, or the disk is full: the exit code still says it
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # or Python ends with one of its own


def _is_read() -> bool:
    try:
        fd = sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):  # closed, or none of the system's
        return sys.stderr is not None
    waiting = select.poll()
    waiting.register(fd, select.POLLOUT)
    return bool(waiting.poll(1000.0 * PATIENCE))


def exit_code(run: Callable[[], object]) -> int:
    """Run a process to its end, and say of what it ended; a defect is raised on."""
    try:
        run()
    except (Exception, KeyboardInterrupt) as e:
        if (found := ended_by(e)) is None:
            raise
        line, code = found
        say(line)
        return code
    return 0
