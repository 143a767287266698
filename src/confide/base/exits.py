"""How a process ends: a user's mistake is one line on stderr and an exit code, never a traceback."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable

from confide.base.errors import InputError, RunError


def ended_by(error: BaseException) -> tuple[str, int] | None:
    """What to say of an error, and the exit code: 2 bad input, 1 failed, 130 interrupted. None: a defect of confide."""
    match error:
        case InputError():
            return f"error: {error}", 2
        case RunError():
            return f"failed: {error}", 1
        case MemoryError():
            return f"failed: not enough memory ({error}); make the run smaller", 1
        case KeyboardInterrupt():
            return "interrupted", 130
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return "failed: the disk is full, the output could not be written", 1
    return None


def say(line: str) -> None:
    """On stderr, whatever is in it as one line."""
    print(" ".join(line.split()), file=sys.stderr)


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
