"""Descriptors that a process must have: the standard ones, and some for the moment when it has no others left."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Final

SPARE: Final = 8


def open_standard() -> None:
    """Those of 0, 1 and 2 that are closed lead nowhere from here on.

    Else the next file that is opened takes the number: the log would be written into a client's record.
    """
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free, so this one
            setattr(sys, name, open(fd, "w" if fd else "r", closefd=False))  # noqa: SIM115 - as long as the process


class Reserve:
    """Lends its descriptors to whoever reads files inside `with reserve:`, and takes as many again afterwards.

    A flood of connections takes every descriptor that a process may have. What has to be read all the same (who was
    revoked, for one) is read with these.
    """

    def __init__(self, spare: int = SPARE) -> None:
        self._spare = spare
        self._held: list[int] = []
        self._fill()

    def __enter__(self) -> None:
        while self._held:
            os.close(self._held.pop())

    def __exit__(self, *_: object) -> None:
        self._fill()

    def _fill(self) -> None:
        with suppress(OSError):  # somebody was faster; the next time, perhaps
            while len(self._held) < self._spare:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
