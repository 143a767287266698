"""What a process says about itself: every event in one place, as a line of the log and for whoever counts.

Events and fields are those of the machines: rounds, neighbours, reasons. Never a value that depends on data but what
was published anyway, and never a secret.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from confide.deploy.node.log_writer import LogWriter
from confide.deploy.node.observe import AllowList, Json, Text, said
from confide.deploy.node.warned import log_warnings

Hook = Callable[[str, Mapping[str, Any]], None]

_ERRORS: Final = {"alarm", "stopped", "failed"}
_WARNINGS: Final = {
    "down", "skipped", "halted", "epoch refused", "untold", "not released", "not kept", "not written", "void",
    "differs", "refused", "clock", "expires", "unreachable", "waiting", "reload failed", "test seed", "left out",
    "out of range", "busy", "log lost", "clocks differ",
}  # fmt: skip
_REPEATED: Final = {
    "alarm", "busy", "not kept", "not written", "refused", "differs", "stream closed", "no stream", "epoch refused",
    "clocks differ", "early", "aborted", "enrolled", "finished",
}  # fmt: skip
SILENCE: Final = 60.0  # seconds
KNOWN: Final = 32  # different lines of one event in that time
_log = logging.getLogger("confide")


class LastError(logging.Handler):
    """Keeps the last line that told of something wrong, for `confide status`."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.text: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        self.text = f"{at} {said(record)}"[:500]


class Repeats(logging.Filter):
    """What a peer can make us say again and again is said once a minute; the next line tells how often it was so.

    A peer that changes its words each time is heard so often a minute, and then counted too.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        # By event: its lines, when each was written, and how often it came since.
        self._written: dict[str, dict[str, tuple[float, int]]] = {event: {} for event in _REPEATED}
        self._more: Counter[str] = Counter()  # of each event, what was beyond that

    def filter(self, record: logging.LogRecord) -> bool:
        if record.msg not in _REPEATED:
            return True
        line, now, written = said(record), self._clock(), self._written[record.msg]
        at, again = written.get(line, (-math.inf, 0))
        if now - at < SILENCE:
            written[line] = at, again + 1
            return False
        if line not in written and len(written) >= KNOWN:
            old = [other for other, (then, _) in written.items() if now - then >= SILENCE]
            if not old:
                self._more[record.msg] += 1
                return False
            for other in old:
                self._more[record.msg] += written.pop(other)[1]
        written[line] = now, 0
        if again := again + self._more.pop(record.msg, 0):
            record.__dict__["fields"] = record.__dict__["fields"] | {"again": again}
        return True


class Observer:
    """Where one node's events go: to the log of its process, and to whoever counts them.

    Attributes:
        hooks: called with every event, on whatever thread it happens; they must be quick.
        allowed: what the log lets through.
        last_error: the last line that told of something wrong.
    """

    def __init__(self) -> None:
        self.hooks: list[Hook] = []
        self.allowed = AllowList()
        self.last_error = LastError()
        self._writer: LogWriter | None = None

    def counted_by(self, event: Hook, dropped: Callable[[Counter[str]], None]) -> None:
        """Metrics hear of every event, and of what the log did not show."""
        self.hooks.append(event)
        self.allowed.told = dropped

    def observe(self, event: str, fields: Mapping[str, Any]) -> None:
        """One event of a machine or a process."""
        level = logging.ERROR if event in _ERRORS else logging.WARNING if event in _WARNINGS else logging.INFO
        _log.log(level, event, extra={"fields": dict(fields)})
        for hook in self.hooks:
            hook(event, fields)

    def log(self, event: str, **fields: Any) -> None:
        """The same, where no field has the name of a Python word."""
        self.observe(event, fields)

    def start(self, form: str, node: str) -> None:
        """This process logs on stderr, as text or JSON lines in UTC; of other libraries only warnings and worse."""
        self._writer = handler = LogWriter(lambda lines: self.log("log lost", lines=lines))
        handler.setFormatter((Json if form == "json" else Text)(node, self.allowed))
        for each in (handler, self.last_error):
            each.addFilter(self.allowed)
        handler.addFilter(Repeats())
        root = logging.getLogger()
        log_warnings()
        root.handlers[:] = [handler, self.last_error]
        root.setLevel(logging.WARNING)
        _log.setLevel(logging.INFO)

    def stop(self) -> None:
        """The end of the log; what nobody reads is not waited for."""
        if self._writer is not None:
            self._writer.stop()
            logging.getLogger().removeHandler(self._writer)
