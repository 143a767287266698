"""What a log may say: a list of events and fields, each with the kind of its value. All else is dropped, and counted.

A log leaves the machine, to collectors and to people who have no business with the data. So nothing gets into it
because somebody passed it: only what stands in `EVENTS` does, by name and by exact type. A vector, bytes or a key is of
no kind here, whatever the field is called, and an exception is shown by its type and place, never by its words.

Why the fields are public (docs/design/flows.md, 7: H is what was published and the schedule, and the theorem gives H
away):

    round, neighbour, offered, suspended, late, pending, charged    the schedule: which round, edge and flow, and when
    clients, waited                         how many answered, or did not; dropouts do not depend on data
    needed                                  from the plan
    servers, epoch, attempt, sigma, plan, unit, server, client, budget      from the plan, or signed by operators
    port, grace, set_by_seconds, ahead_by_seconds, certificate, on, certificate_until, whole, logger      the machine's
    client_mib, trainer_mib                 the machine's; seconds is of a client's training, see below
    again                                   how often a line was left out, see `observing.Repeats`
    lines                                   how many nobody read in time, see `log_writer`
    to, from, with, name, names             names in the plan or in certificates
    why, what, effect, warning, kind        our words around such numbers, or what a stranger wrote: cut, on one line

Of a client's own log some lines do depend on data: that its training failed, warned, took so many seconds or ended as
zeros, and that its data, or rows of them, failed a check. What failed counts as zeros, so the sum hides it from
everybody else. No metric counts what failed; how long trainings take is a metric of the client's own port.
One of a server's log may: that a sum was out of range, which a lying client can make depend on the others' updates. It
is in the log of the server that saw the sum, and no metric counts it.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import PurePath
from typing import Any, Final

from confide.base.errors import RunError

LONGEST: Final = 500  # characters of a text
MOST: Final = 1024  # items of a list
FRAMES: Final = 12  # of an exception
OTHER: Final = "other"  # the event of a line that is not in the list
OURS: Final = (  # errors whose words are ours
    "InputError", "BusyError", "PassingError", "RunError", "FinalError", "StoreError",
)  # fmt: skip

Kind = Callable[[object], Any]  # the value as plain data, None if it is not of this kind


def count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 2**53 else None


def number(value: object) -> float | None:
    return value if type(value) in (int, float) and math.isfinite(value) else None  # type: ignore[arg-type,return-value]


def flag(value: object) -> bool | None:
    return value if type(value) is bool else None


def text(value: object) -> str | None:
    """On one line, not too long, and without what looks like a key."""
    if isinstance(value, StrEnum):
        value = str(value)
    if type(value) is not str:
        return None
    shown = "".join(c if c.isprintable() else " " for c in value[: 2 * LONGEST])
    return _KEY.sub("[cut]", " ".join(shown.split()))[:LONGEST]


def digest(value: object) -> str | None:
    """The first quarter, as `confide status` shows it: a key in its place would not be given away."""
    return value[:16] if type(value) is str and re.fullmatch("[0-9a-f]{64}", value) else None


def numbers(value: object) -> list[int] | None:
    return _each(count, value)


def lines(value: object) -> list[str] | None:
    return _each(text, [value] if type(value) is str else value)


def flows(value: object) -> dict[str, list[int]] | None:
    """Rounds by neighbour."""
    if type(value) is not dict or len(value) > MOST:
        return None
    found = {str(m): numbers(rounds) for m, rounds in value.items() if count(m) is not None}
    return None if len(found) < len(value) or None in found.values() else found  # type: ignore[return-value]


def ending(value: object) -> str | None:
    """Of a session of the secure sum: one of the fixed reasons."""
    why = getattr(value, "why", None)
    return text(why) if isinstance(why, StrEnum) else None


def _each(kind: Callable[[object], Any], value: object) -> list[Any] | None:
    if type(value) not in (list, tuple) or len(value) > MOST:  # type: ignore[arg-type]
        return None
    found = [kind(x) for x in value]  # type: ignore[attr-defined]
    return None if None in found else found


_KEY: Final = re.compile(r"[0-9A-Fa-f]{32,}|[0-9A-Za-z+=]{48,}|-----BEGIN.*")

EVENTS: Final[Mapping[str, Mapping[str, Kind]]] = {
    # a server's machine
    "published": {"round": count, "clients": count, "offered": numbers, "suspended": numbers},
    "skipped": {"round": count, "why": text, "waited": count},
    "waiting": {"round": count, "clients": count, "needed": count, "what": text, "servers": numbers, "names": lines},
    "left out": {"client": count, "round": count},
    "out of range": {"round": count},
    "halted": {"round": count, "why": text},
    "applied": {"neighbour": count, "name": text, "round": count, "late": count},
    "void": {"neighbour": count, "name": text, "round": count},
    "up": {"neighbour": count, "name": text, "round": count},
    "down": {"neighbour": count, "name": text, "round": count},
    "finished": {"pending": flows},
    "rejoined": {"round": count, "charged": count, "by": text},
    "balanced": {"neighbour": count, "name": text},
    "removed": {"servers": numbers, "names": lines, "epoch": count},
    "epoch refused": {"why": text},
    "alarm": {"what": text},
    "stopped": {"why": text},
    "releasing": {"attempt": count, "servers": numbers, "names": lines},
    "released": {"attempt": count, "servers": count, "sigma": number},
    "not released": {"why": text},
    "untold": {"servers": numbers, "names": lines},
    "not kept": {"why": text},
    "not written": {"why": text},
    # the processes
    "started": {
        "plan": digest, "unit": text, "server": count, "client": count, "port": count, "round": count, "budget": text,
    },
    "ended": {"round": count, "whole": flag},
    "busy": {"why": text},
    "log lost": {"lines": count},
    "stopping": {"grace": number},
    "failed": {"why": text, "kind": text},
    "connected": {"to": text, "from": text},
    "disconnected": {"to": text, "from": text},
    "enrolled": {"unit": text, "client": count},
    "refused": {"why": lines},
    "differs": {"with": text, "what": lines},
    "unreachable": {"why": text},
    "clock": {"set_by_seconds": number, "effect": text},
    "clocks differ": {"with": text, "ahead_by_seconds": number, "effect": text},
    "expires": {"certificate": text, "on": text},
    "reload failed": {"why": text, "effect": text},
    "reloaded": {"certificate_until": text},
    "test seed": {"warning": text},
    # lines that are written as text, see `LINES`
    "no stream": {"to": text, "why": text},
    "stream closed": {"from": text, "why": text},
    "stream failed": {"to": text},
    "writing ended": {"kind": text},
    "mishandled": {},
    "training": {"round": count},
    "trained": {"round": count, "seconds": number, "client_mib": count, "trainer_mib": count},
    "training failed": {"round": count, "why": text},
    "training warned": {"kind": text, "at": text},
    "warned": {"kind": text, "at": text},
    "zeros": {"round": count, "why": text},
    "unusable data": {"effect": text},
    "early": {"round": count},
    "aborted": {"round": count, "attempt": count, "why": ending},
    OTHER: {"logger": text},
}  # fmt: skip

LINES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "no stream to %s: %s": ("no stream", ("to", "why")),
    "%s: the stream was closed: %s": ("stream closed", ("from", "why")),
    "a stream to %s failed": ("stream failed", ("to",)),
    "writing ended: %s": ("writing ended", ("kind",)),
    "a message could not be handled": ("mishandled", ()),
    "the training of round %d failed, this client adds zeros: %s": ("training failed", ("round", "why")),
    "the training warned: %s at %s": ("training warned", ("kind", "at")),
    "a library warned: %s at %s": ("warned", ("kind", "at")),
    "numbers of the update of round %d end as zero: %s": ("zeros", ("round", "why")),
    "the data fail a check: %s": ("unusable data", ("effect",)),
    "round %d, attempt %d: %r": ("aborted", ("round", "attempt", "why")),
    "round %d came before its time by this client's clock": ("early", ("round",)),
}


def public(event: str, fields: Mapping[str, Any]) -> tuple[str, dict[str, Any], Counter[str]]:
    """The event and the fields that may be shown, and what was dropped: "event", "field"."""
    kinds = EVENTS.get(event) if type(event) is str else None
    if kinds is None:
        return OTHER, {}, Counter(event=1, field=len(fields))
    shown = {name: kinds[name](value) for name, value in fields.items() if name in kinds}
    if event == "failed" and shown.get("kind") not in OURS:  # of any library, about any value
        shown["why"] = None
    shown = {name: value for name, value in shown.items() if value is not None}
    return event, shown, Counter(field=len(fields) - len(shown))


class ElsewhereError(RunError):
    """It failed in another process: why, in our words, and what `trace` said of the error there."""

    def __init__(self, why: str, places: Sequence[str]) -> None:
        super().__init__(why)
        self.places = tuple(places)


class AllowList(logging.Filter):
    """Leaves of a record what is public; belongs to every handler. A record that passes twice does not change.

    Attributes:
        dropped: how many "event", "field" and "line" were not in the list.
        told: called with what is added to it.
    """

    def __init__(self, told: Callable[[Counter[str]], None] = lambda _: None) -> None:
        super().__init__()
        self.dropped: Counter[str] = Counter()
        self.told = told

    def filter(self, record: logging.LogRecord) -> bool:
        if record.__dict__.get("passed") is not _PASSED:
            self._reduce(record)
        return True

    def _reduce(self, record: logging.LogRecord) -> None:
        fields = record.__dict__.get("fields")
        if isinstance(fields, Mapping) and not record.args:
            event, shown, dropped = public(record.msg, fields)
        elif type(record.msg) is str and record.msg in LINES:
            name, names = LINES[record.msg]
            given = record.args if isinstance(record.args, tuple) else ()
            event, shown, dropped = public(name, dict(zip(names, given, strict=False)))
        else:
            event, shown, dropped = OTHER, {"logger": text(record.name)}, Counter(line=1)
        record.msg, record.args, record.exc_text, record.stack_info = event, (), None, None
        record.__dict__.update(fields=shown, trace=trace(record.exc_info), passed=_PASSED)
        record.exc_info = None
        if dropped := +dropped:
            self.dropped.update(dropped)
            self.told(dropped)


_PASSED: Final = object()


def trace(exc_info: object) -> list[str]:
    """Types and places of an exception and of what led to it: no words, no values, no lines of code."""
    error = exc_info[1] if isinstance(exc_info, tuple) and len(exc_info) == 3 else exc_info
    found: list[str] = []
    seen: set[int] = set()
    while isinstance(error, BaseException) and id(error) not in seen and len(found) < FRAMES:
        seen.add(id(error))
        places, tb = [], error.__traceback__
        while tb is not None:
            code = tb.tb_frame.f_code
            places.append(f"{'/'.join(PurePath(code.co_filename).parts[-2:])}:{tb.tb_lineno} {code.co_name}")
            tb = tb.tb_next
        if isinstance(error, ElsewhereError):  # where, in this process, tells nothing
            return [*found, *(shown for place in error.places[: 2 * FRAMES] if (shown := text(place)))]
        found += [type(error).__name__, *reversed(places[-FRAMES:])]
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return found[: 2 * FRAMES]


class _Formatter(logging.Formatter):
    """Of a node; passes every record through the list, also where the handler has no filter."""

    def __init__(self, node: str, allowed: AllowList | None = None) -> None:
        super().__init__()
        self._node, self._allowed = node, allowed or AllowList()

    def format(self, record: logging.LogRecord) -> str:
        self._allowed.filter(record)
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields: dict[str, Any] = record.__dict__["fields"]
        return self._line(moment.replace("+00:00", "Z"), record, fields, record.__dict__["trace"])

    def _line(self, moment: str, record: logging.LogRecord, fields: dict[str, Any], trace: list[str]) -> str:
        raise NotImplementedError


class Json(_Formatter):
    """One object a line: time (ISO 8601, UTC), level, node, event, fields, and exception where there was one."""

    def _line(self, moment: str, record: logging.LogRecord, fields: dict[str, Any], trace: list[str]) -> str:
        line = {"time": moment, "level": record.levelname.lower(), "node": self._node, "event": record.msg}
        return json.dumps(line | {"fields": fields} | ({"exception": trace} if trace else {}))


class Text(_Formatter):
    """For people; still one line each, and what a stranger wrote stands in quotes."""

    def _line(self, moment: str, record: logging.LogRecord, fields: dict[str, Any], trace: list[str]) -> str:
        line = f"{moment} {record.levelname:7} {self._node} {said(record)}"
        return f"{line} exception={_plain(' < '.join(trace))}" if trace else line


def said(record: logging.LogRecord) -> str:
    """The event and its fields, of a record that has passed."""
    fields = record.__dict__["fields"]
    return " ".join([record.msg, *(f"{name}={_plain(value)}" for name, value in fields.items())])


def _plain(value: object) -> str:
    if isinstance(value, str) and re.fullmatch(r"[\w.:/+-]+", value):
        return value
    return json.dumps(value, ensure_ascii=not isinstance(value, str), separators=(",", ":"))
