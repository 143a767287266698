"""A plan as plain data and back: written once, over the fields of its tables.

    dataclass -> table      word, law -> text      graph -> `Graph.to_dict`      tuple -> list      the rest -> itself
    function -> its name (and what `Plan` adds to it), and back to `Elsewhere`

What is read must be exactly what would have been written: each table with its own keys and no others, each value in the
type of its field. A refusal names the key, `privacy.delta`, as a config would.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from confide.base import canonical
from confide.base.errors import InputError
from confide.graph import Graph
from confide.laws.law import Law
from confide.plans.words import Word, parse

HIDDEN = {"plan": False}  # metadata of a field that is no part of the plan's text
GIVEN = {"plan": "given"}  # and of one that is in it only where it is not None: a plan without it has one text, as ever


@dataclass(frozen=True)
class Elsewhere:
    """A function of somebody's own, which a plan's text only names: nothing that is read is ever executed."""

    name: str
    field: str

    def __str__(self) -> str:
        return self.name

    def __call__(self, *_: object) -> Any:
        raise InputError(self.field, self.name, "is a function that the plan only names; price it where it was run")


def encoded(value: Any, wanted: Any = Any) -> Any:
    """Plain data; a field of type float is written as one, whole or not, so that equal numbers have equal hashes."""
    if isinstance(value, Word | Law | Elsewhere):
        return str(value)
    if isinstance(value, Graph):
        return value.to_dict()
    if is_dataclass(value) and not isinstance(value, type):
        hints = _hints(type(value))
        told = [f for f in _written(type(value)) if not _may_lack(f) or getattr(value, f.name) is not None]
        return {f.name: encoded(getattr(value, f.name), hints[f.name]) for f in told}
    if isinstance(value, tuple | list):
        return [encoded(x, next(iter(get_args(wanted)), Any)) for x in value]
    if isinstance(value, StrEnum):
        return str(value)
    if callable(value):  # named, so that another function is another plan
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, float) or (type(value) is int and float in (wanted, *get_args(wanted))):
        return value + 0.0  # -0.0 becomes 0.0
    return value


def decoded(wanted: Any, value: Any, path: str) -> Any:
    """The value of this type that `encoded` writes like this.

    Raises:
        InputError: a key is missing or unknown, or a value is of another type or spelling.
    """
    if get_origin(wanted) in (Union, types.UnionType):
        return _one_of(get_args(wanted), wanted, value, path)
    if get_origin(wanted) is tuple:
        if not isinstance(value, list | tuple):
            raise InputError(path, value, "must be a list")
        kinds = get_args(wanted)
        if kinds[-1] is not ... and len(kinds) != len(value):
            raise InputError(path, value, f"must have {len(kinds)} entries")
        each = [kinds[0]] * len(value) if kinds[-1] is ... else kinds
        return tuple(decoded(kind, x, f"{path}[{n}]") for n, (kind, x) in enumerate(zip(each, value, strict=True)))
    if wanted is Law:
        return Law.parse(value, path)
    if wanted is Graph:
        return Graph.from_dict(value)
    if is_dataclass(wanted) and isinstance(wanted, type):
        return _table(wanted, value, path)
    if isinstance(wanted, type) and issubclass(wanted, StrEnum):
        if not isinstance(value, str) or value not in tuple(wanted):
            raise InputError(path, value, f"must be one of {', '.join(wanted)}")
        return wanted(value)
    if get_origin(wanted) is Callable:
        return Elsewhere(decoded(str, value, path), path)
    if type(value) is not wanted:
        raise InputError(path, value, f"must be {_NAMES.get(wanted, wanted)}")
    return value


_NAMES = {int: "a whole number", float: "a number with a point", str: "text", bool: "true or false"}


def _one_of(kinds: tuple[Any, ...], union: Any, value: Any, path: str) -> Any:
    if all(isinstance(kind, type) and issubclass(kind, Word) for kind in kinds):
        if not isinstance(value, str) or str(word := parse(union, value, path)) != value:
            raise InputError(path, value, "must be a word as the plan spells it")
        return word
    left = [kind for kind in kinds if kind is not types.NoneType]
    if value is None and len(left) < len(kinds):
        return None
    return decoded(left[0] if len(left) == 1 else Union[tuple(left)], value, path)  # noqa: UP007 - made of a tuple


def _table(kind: type, value: Any, path: str) -> Any:
    written = _written(kind)
    if not isinstance(value, Mapping):
        raise InputError(path or "plan", value, "must be a table")
    for name in (f.name for f in written if f.name not in value and not _may_lack(f)):
        raise InputError(_key(path, name), None, "is missing")
    for name in value.keys() - {f.name for f in written}:
        known = ", ".join(f.name for f in written)
        raise InputError(_key(path, name), value[name], f"is unknown; known: {known}")
    hints = _hints(kind)
    told = [f for f in written if f.name in value]
    return kind(**{f.name: decoded(hints[f.name], value[f.name], _key(path, f.name)) for f in told})


def _key(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _may_lack(f: Field[Any]) -> bool:
    return f.metadata.get("plan") == GIVEN["plan"]


@cache
def _written(kind: type) -> tuple[Field[Any], ...]:
    return tuple(f for f in fields(kind) if f.metadata.get("plan", True))


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def differences(name: str, a: Any, b: Any) -> list[str]:
    """Where two plain values differ, a line each; of a list that differs the first entry."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        found = []
        for key in sorted(a.keys() | b.keys()):
            if key in a and key in b:
                found += differences(_key(name, key), a[key], b[key])
            else:
                one, other = (_shown(x[key]) if key in x else "(absent)" for x in (a, b))
                found.append(f"{_key(name, key)}: {one} != {other}")
        return found
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        wrong = [n for n, (x, y) in enumerate(zip(a, b, strict=True)) if canonical.dumps(x) != canonical.dumps(y)]
        if not wrong:
            return []
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        *inner, last = differences(f"{name}[{wrong[0]}]", a[wrong[0]], b[wrong[0]])
        return [*inner, last + more]
    return [f"{name}: {_shown(a)} != {_shown(b)}"] if canonical.dumps(a) != canonical.dumps(b) else []


def _shown(value: Any) -> str:
    text = repr(value)
    if len(text) <= 80:
        return text
    return f"{len(value)} entries" if isinstance(value, list) else text[:79] + "…"
