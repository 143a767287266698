"""How a durable field is declared, and how its values become the rows of a table.

A field with keys is a dictionary with a row for each of them; the others have one row. Everything that is done to
durable fields is done to all of them, over `tables`: a declaration is all that a field takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from textwrap import fill
from typing import Any, NamedTuple

from confide.deploy.store.columns import Column, Vector

Key = tuple[int, ...]


@dataclass(frozen=True)
class Kept:
    """A declared field; see `kept`."""

    first: Any
    by: tuple[str, ...]
    table: str
    part: str
    since: int
    make: Any
    columns: Mapping[str, Column]

    def begin(self, start: Vector) -> Any:
        return self.first(start) if callable(self.first) else self.first

    def split(self, value: Any) -> Sequence[Any]:
        """The values of its columns."""
        return (value,) if self.make is None else value

    def place(self, into: dict[Any, Any], key: Key, value: Any) -> None:
        """A row into what the books have of the field."""
        if self.by == ("edge", "round"):
            into[key[0]][key[1]] = value
        else:
            into[key if len(key) > 1 else key[0]] = value


def kept(
    first: Any = None,
    *,
    by: tuple[str, ...] = (),
    table: str = "",
    part: str = "gc",
    since: int = 1,
    make: Any = None,
    secret: bool = False,
    **columns: Column,
) -> Any:
    """Declare a durable field. A new one takes a table of its own: files that lack it are opened with its first value.

    Args:
        first: its value in fresh books, or a function of the vector from which the server starts; where the first key
            is an edge, that of each edge. A field with one row has none while it is at its first value.
        by: the columns that name its rows. By edge and round it is a dictionary of dictionaries.
        table: where it stands in the file, if not under its own name. Fields of one table share its rows.
        part: of the transaction in which it is written (`store.parts`); rows with keys are removed in "gc".
        since: the version of the file that has it first: of a new field, the one after the last release's.
        make: of the values of its columns, where it has several.
        secret: not to be shown.
        columns: of its table.

    Example: `taps: dict[int, Vector] = kept(lambda start: start, by=("edge",), since=2, secret=True, taps=VECTOR)`.
    """
    empty: dict[str, Any] = {"default_factory": dict} if by else {"default": None}
    return field(**empty, repr=not secret, metadata={"kept": Kept(first, by, table, part, since, make, columns)})


class Table(NamedTuple):
    name: str
    by: tuple[str, ...]
    part: str
    since: int
    fields: dict[str, Kept]

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that name a row."""
        return self.by or ("id",)

    @property
    def columns(self) -> dict[str, Column]:
        """Those that do not name it."""
        return {name: column for f in self.fields.values() for name, column in f.columns.items()}

    def sql(self, *more: str) -> str:
        """The statement that makes it; `more` are columns for which there is no field."""
        one = f"{self.keys[0]} INTEGER PRIMARY KEY" + ("" if self.by else " CHECK (id = 0)")
        keys = [one] if len(self.keys) == 1 else [f"{name} INTEGER" for name in self.keys]
        own = [f"{name} {column.sql}" for name, column in self.columns.items()]
        last = [] if len(self.keys) == 1 else [f"PRIMARY KEY ({', '.join(self.keys)})"]
        unbroken = ", ".join(x.replace(" ", "\xa0") for x in (*keys, *own, *more, "sha256 BLOB NOT NULL", *last))
        return fill(f"CREATE TABLE {self.name} ({unbroken})", 119, subsequent_indent="    ").replace("\xa0", " ")

    def rows(self, source: object) -> dict[Key, dict[str, Any]]:
        """What books or changes hold for it, by key and field."""
        found: dict[Key, dict[str, Any]] = {}
        for name in self.fields:
            value = getattr(source, name)
            for key, x in flat(value) if self.by else [((0,), value)] if value is not None else []:
                found.setdefault(key, {})[name] = x
        return found

    def lacks(self, values: Mapping[str, Any]) -> bool:
        """Whether there is no row for these values: it goes, or the field is as in fresh books."""
        if len(self.fields) > 1:
            return False
        ((name, f),) = self.fields.items()
        value = values[name]
        return value is None if self.by else isinstance(value, type(f.first)) and bool(value == f.first)

    def write(self, values: Mapping[str, Any]) -> list[Any]:
        """The columns after the keys."""
        each = ((f, f.split(values[name])) for name, f in self.fields.items())
        return [column.write(x) for f, own in each for column, x in zip(f.columns.values(), own, strict=True)]

    def read(self, row: Sequence[Any]) -> dict[str, Any]:
        """The values by field of a row with its keys."""
        raw, found = iter(row[len(self.keys) :]), {}
        for name, f in self.fields.items():
            values = [column.read(next(raw)) for column in f.columns.values()]
            found[name] = values[0] if f.make is None else f.make(*values)
        return found


def tables(declared: type) -> list[Table]:
    """The tables of all fields of this class, in the order in which they are declared."""
    found: dict[str, Table] = {}
    for f in fields(declared):
        k: Kept = f.metadata["kept"]
        name = k.table or f.name
        table = found.setdefault(name, Table(name, k.by, k.part, k.since, {}))
        if table[1:4] != (k.by, k.part, k.since):
            raise TypeError(f"{f.name}: fields of one table are written together, by the same keys, since one version")
        table.fields[f.name] = k
    return list(found.values())


def flat(rows: Mapping[Any, Any], outer: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Every value with its whole key."""
    for key, value in rows.items():
        whole = (*outer, *map(int, key if isinstance(key, tuple) else (key,)))
        if isinstance(value, dict):
            yield from flat(value, whole)
        else:
            yield whole, value


def merge(into: dict[Any, Any], changes: Mapping[Any, Any]) -> None:
    """Put what is given, take away what is None; a `KeyError` where that is not there."""
    for key, value in changes.items():
        if value is None:
            del into[key]
        elif isinstance(value, dict):
            merge(into[key], value)
        else:
            into[key] = value


def joined(first: dict[Any, Any], second: Mapping[Any, Any]) -> dict[Any, Any]:
    """Changes one after the other, as one."""
    found = copied(first)
    for key, value in second.items():
        found[key] = joined(found.get(key) or {}, value) if isinstance(value, dict) else value
    return dict(found)


def copied(x: Any) -> Any:
    """Dictionaries all the way down are new; vectors and messages are shared, since nobody changes them in place."""
    return {key: copied(value) for key, value in x.items()} if isinstance(x, dict) else x
