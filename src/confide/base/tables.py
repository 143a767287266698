"""The tables of a TOML file: their base class, and the first mistake in one as a line of ours."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from confide.base.errors import InputError


class Table(BaseModel):
    """A table whose keys are all known, with values of exactly their types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


Kind = TypeVar("Kind", bound=Table)


def checked(kind: type[Kind], content: Mapping[str, Any]) -> Kind:
    """The content as a table of this kind.

    Raises:
        InputError: for the first mistake; it names the key, the value and what would be right.

    >>> class Walk(Table):
    ...     steps: int
    >>> checked(Walk, {"step": 3, "steps": 4})
    Traceback (most recent call last):
    confide.base.errors.InputError: step = 3: unknown key; did you mean 'steps'? known here: steps
    """
    try:
        return kind.model_validate(content)
    except ValidationError as e:
        raise _first_mistake(e.errors(), kind) from None


def _first_mistake(mistakes: Sequence[ErrorDetails], kind: type[Table]) -> InputError:
    first = mistakes[0]
    place, table, branch = _located(kind, first["loc"])
    field, value = ".".join(place), first["input"]
    known = {name: info for name, info in table.model_fields.items() if not info.exclude}
    match first["type"]:
        case "extra_forbidden":
            near = difflib.get_close_matches(place[-1], known, n=1, cutoff=0.5)
            hint = f"did you mean {'.'.join([*place[:-1], near[0]])!r}? " if near else ""
            return InputError(field, value, f"unknown key; {hint}known here: {', '.join(known)}")
        case "missing":
            return InputError(field, None, f"is missing: {known[place[-1]].description or 'it has no default'}")
        case "model_type" | "model_attributes_type" | "dict_type":
            return InputError(field, value, f"must be a table, written [{field}]")
    # A union (a number or a list) gives one message for each branch; together they say what would be right.
    said = [m["msg"] for m in mistakes if branch and m["loc"][: len(first["loc"]) - 1] == first["loc"][:-1]]
    lines = dict.fromkeys(line[0].lower() + line[1:] for line in said or [first["msg"]])
    return InputError(field, value, "; or ".join(lines))


def _located(kind: type[Table], path: Sequence[int | str]) -> tuple[list[str], type[Table], bool]:
    """The keys of pydantic's path, the innermost table around it, and whether its last word is a branch of a union.

    The branches of a union are no keys. Where they are tables, their key `name` tells them apart.
    """
    place: list[str] = []
    table, branch = kind, False
    here: Any = kind
    for part in path:
        branches = _branches(here)
        branch = len(branches) > 1
        if branch:
            tables = [b for b in branches if _is_table(b)]
            here = next((t for t in tables if part in get_args(t.model_fields["name"].annotation)), None)
            continue
        place.append(str(part))
        here = branches[0]
        if _is_table(here):
            table = here
            here = table.model_fields[part].annotation if part in table.model_fields else None
        else:
            here = get_args(here)[-1] if get_args(here) else None  # what a list or a mapping holds
    return place, table, branch


def _branches(annotation: Any) -> list[Any]:
    if get_origin(annotation) not in (Union, UnionType):
        return [annotation]
    return [branch for branch in get_args(annotation) if branch is not NoneType]


def _is_table(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Table)
