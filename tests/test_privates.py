"""Tests ask for what a room shows: reaches into what it keeps to itself are counted, and may only become fewer."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PUBLIC = {"_replace", "_asdict", "_fields", "_make"}  # of named tuples, whose own names these could be
ALLOWED = {  # folder: reaches; whoever removes some lowers the number
    "deploy/machines": 107,
    "deploy/store": 16,
    "": 57,
}


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC


def reaches(text: str) -> Iterator[str]:
    """`x._name` and `from confide... import _name`; a class that overrides a method may call the one it replaces."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Attribute(ast.Name(id="self" | "cls") | ast.Call(ast.Name(id="super")), _):
                pass
            case ast.Attribute(_, attr) if private(attr):
                yield f"{node.lineno}: .{attr}"
            case ast.ImportFrom(module=str(module)) if module.startswith("confide"):
                yield from (f"{node.lineno}: import {a.name}" for a in node.names if private(a.name))


@pytest.mark.parametrize("folder", ALLOWED)
def test_no_more_reaches_into_privates_than_there_were(folder: str) -> None:
    found = [
        f"{path.relative_to(TESTS)}:{reach}"
        for path in sorted(TESTS.rglob("*.py"))
        if next(f for f in ALLOWED if path.is_relative_to(TESTS / f)) == folder
        for reach in reaches(path.read_text(encoding="utf-8"))
    ]
    told = "\n".join(found)
    assert len(found) <= ALLOWED[folder], f"{len(found)} reaches into privates, {ALLOWED[folder]} are allowed:\n{told}"


def test_what_counts_as_a_reach() -> None:
    text = "from confide.a import _b, c\nx._y\nself._z\nt._replace(a=1)\nsuper()._w()\nx.__dict__\n_own\nself.x._v"
    assert sorted(reaches(text)) == ["1: import _b", "2: ._y", "8: ._v"]
