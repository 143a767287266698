"""What a user did wrong, in one line that says how to put it right."""

from __future__ import annotations

import errno
from typing import Final

# What the machine refuses for now, whatever was asked of it: a disk, memory, descriptors.
PASSING: Final = frozenset(
    (
        errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ESTALE,
        errno.ETIMEDOUT,
    )
)  # fmt: skip


class InputError(ValueError):
    """A value that cannot be used: names the field, the value and what would be right.

    >>> raise InputError("algorithm.step", -1, "must be positive")
    Traceback (most recent call last):
    confide.base.errors.InputError: algorithm.step = -1: must be positive
    """

    def __init__(self, field: str, value: object, remedy: str) -> None:
        self.field, self.value, self.remedy = field, value, remedy
        super().__init__(f"{field} = {_short(value)}: {remedy}")


class DataError(InputError):
    """The data themselves cannot be used. A deployed client with such data takes part and adds zeros: its absence would
    tell of them."""


class BusyError(InputError):
    """Somebody else has what this process needs; a predecessor that is still ending, perhaps."""


class PassingError(InputError):
    """The value may be right: the machine refused it, for now."""


class RunError(RuntimeError):
    """The question was well posed, the run failed (it diverged, the disk is full)."""


class FinalError(RunError):
    """It ended, and would end again if it were started again as it is."""


def refused(field: str, value: object, said: str, remedy: str, error: Exception) -> InputError:
    """Of an operation that the system refused: the user's mistake, with the remedy, or the machine's trouble."""
    if isinstance(error, OSError) and error.errno in PASSING:
        return PassingError(field, value, f"{said}; see to the machine, and try again")
    return InputError(field, value, f"{said}; {remedy}")


def _short(value: object, limit: int = 120) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"
