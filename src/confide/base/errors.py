"""What a user did wrong, in one line that says how to put it right."""

from __future__ import annotations


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


class RunError(RuntimeError):
    """The question was well posed, the run failed (it diverged, the disk is full)."""


def _short(value: object, limit: int = 120) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"
