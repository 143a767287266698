"""Lines of the log, written by a thread of their own: whoever has something to say never waits for who reads it.

A pipe that nobody reads is full after 64 KiB, a terminal can be held, a disk can be slow. Lines wait up to a bound;
what comes beyond it is counted, and said when there is room again.
"""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable
from typing import Final

ROOM: Final = 1 << 20  # bytes of lines that wait
PAUSE: Final = 0.05  # seconds in which further lines gather: to wake the thread for each costs more than to write it
LAST: Final = 1.0  # seconds for those that wait at the end


class LogWriter(logging.Handler):
    """Args:
    lost: told, on the writer's thread, how many lines were lost since the last time; it may log.
    fd: where the lines go.
    room: bytes of lines that wait, at most.
    """

    def __init__(self, lost: Callable[[int], None], fd: int = 2, room: int = ROOM) -> None:
        super().__init__()
        self._told, self._fd, self._room = lost, fd, room
        self._lines: list[bytes] = []
        self._size = self._lost = 0
        self._closing = threading.Event()
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = (self.format(record) + "\n").encode(errors="backslashreplace")
        except Exception:  # of a value that has no text; `logging` itself would write to standard error
            line = b""
        with self._change:
            if not line or self._size + len(line) > self._room:
                self._lost += 1
            else:
                self._lines.append(line)
                self._size += len(line)
                self._change.notify()

    def stop(self, patience: float = LAST) -> None:
        """Nothing is written any more, but for what waits, where somebody reads it soon."""
        with self._change:
            self._closing.set()
            self._change.notify()
        self._thread.join(patience)

    def _run(self) -> None:
        while lines := self._next():
            lost = self._write(b"".join(lines))
            with self._change:
                self._size -= sum(map(len, lines))
                self._lost += lost
                told, self._lost = (0, self._lost) if lost or self._lines else (self._lost, 0)
            if told:
                self._told(told)
            self._closing.wait(PAUSE)

    def _next(self) -> list[bytes]:
        """All that waits, when there is something; nothing at the end."""
        with self._change:
            self._change.wait_for(lambda: self._lines or self._closing.is_set())
            lines, self._lines = self._lines, []
        return lines

    def _write(self, lines: bytes) -> int:
        """How many of these were not taken, after a wait that has no end."""
        while lines:
            try:
                lines = lines[os.write(self._fd, lines) :]
            except BlockingIOError:  # whoever shares the descriptor has made it so
                select.select((), (self._fd,), ())
            except OSError:  # the reader has gone, or the disk is full
                break
        return lines.count(b"\n")
