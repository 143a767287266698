"""A graph in a text file: a square matrix, or one edge to a line."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from confide.base.arrays import Floats
from confide.base.errors import InputError
from confide.graph.checks import check_entries, symmetric


def read_table(path: str | Path) -> Floats:
    """The numbers of a text file, every line as long as the first."""

    def refusal(remedy: str) -> InputError:
        return InputError("graph.file", str(path), remedy)

    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise refusal(f"line {line} is not UTF-8 text: save it as UTF-8") from None
    except (OSError, TypeError, ValueError) as error:  # ValueError: a null byte in the path
        raise refusal(f"cannot be read ({error}): give the path of a text file") from None
    cells = [re.split(r"\s*,\s*|\s+", line.partition("#")[0].strip()) for line in lines]
    numbered = [(n, row) for n, row in enumerate(cells, start=1) if row != [""]]
    if numbered and all(number(cell) is None for cell in numbered[0][1]):
        del numbered[0]  # a header
    if not numbered:
        raise refusal("has no numbers: write a square matrix, or edges i,j one to a line")
    width = len(numbered[0][1])
    for n, row in numbered:
        if len(row) != width:
            raise refusal(f"line {n} has {len(row)} columns and the first row {width}: make them equal")
        for cell in row:
            if number(cell) is None:
                raise refusal(f"line {n}: {cell!r} is not a number")
    return np.array([row for _, row in numbered], dtype=np.float64)


def number(text: str) -> int | float | None:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


def looks_like_edges(table: Floats) -> bool:
    two_by_two = table.shape == (2, 2) and np.array_equal(table, table.T)
    return table.shape[1] == 2 and not (two_by_two and np.all((table >= 0) & (table <= 1)))


def adjacent_pairs(table: Floats) -> list[list[int]]:
    check_entries(table, np.isin(table, (0, 1)), 'must be 0 or 1 in an adjacency; for A itself, weights = "given"')
    pairs: list[list[int]] = np.argwhere(np.triu(symmetric(table), 1)).tolist()
    return pairs
