"""What a process says about itself: every event in one place, as a line of the log and for whoever counts.

Events and fields are those of the machines: rounds, neighbours, reasons. Never a value that depends on data but what
was published anyway, and never a secret.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

Hook = Callable[[str, Mapping[str, Any]], None]
hooks: list[Hook] = []  # called with every event, on whatever thread it happens; they must be quick

_ERRORS: Final = {"alarm", "stopped", "failed"}
_WARNINGS: Final = {
    "down", "skipped", "halted", "epoch refused", "untold", "not released", "void", "differs", "refused", "clock",
    "expires", "unreachable", "reload failed", "test seed", "overrun",
}  # fmt: skip
_log = logging.getLogger("confide")


def observe(event: str, fields: Mapping[str, Any]) -> None:
    """One event of a machine or a process."""
    level = logging.ERROR if event in _ERRORS else logging.WARNING if event in _WARNINGS else logging.INFO
    _log.log(level, event, extra={"fields": dict(fields)})
    for hook in hooks:
        hook(event, fields)


class Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        said = " ".join(f"{name}={_plain(value)}" for name, value in fields.items())
        line = f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')} {record.levelname:7} {record.getMessage()} {said}"
        return line.rstrip() + (f"\n{self.formatException(record.exc_info)}" if record.exc_info else "")


class Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {name: _jsonable(value) for name, value in getattr(record, "fields", {}).items()}
        line = {"time": round(record.created, 3), "level": record.levelname.lower(), "event": record.getMessage()}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line | fields)


class LastError(logging.Handler):
    """Keeps the last line that told of something wrong, for `confide status`."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.text: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        said = " ".join(f"{name}={_plain(value)}" for name, value in getattr(record, "fields", {}).items())
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        self.text = f"{at} {record.getMessage()} {said}"[:500].rstrip()


def start(form: str) -> LastError:
    """The log on stderr, as text or JSON lines in UTC; what other libraries say below a warning is left out."""
    handler, last = logging.StreamHandler(sys.stderr), LastError()
    formatter = Json() if form == "json" else Text()
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler, last]
    root.setLevel(logging.WARNING)
    _log.setLevel(logging.INFO)
    return last


def _plain(value: object) -> str:
    """One word as it is; everything else as JSON, which has no line ends."""
    if isinstance(value, str) and value.isprintable() and value and " " not in value:
        return value
    return json.dumps(_jsonable(value))


def _jsonable(value: object) -> Any:
    """Plain data; JSON's names are strings."""
    if isinstance(value, Mapping):
        return {str(name): _jsonable(x) for name, x in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_jsonable(x) for x in value]
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)
