"""Breaks lines of `src`, one at a time, and tells which breaks the tests notice.

    python tests/tools/mutants.py --seed 0 --count 20 [--tree OTHER_CHECKOUT]

A mutant is one small change (a comparison turned, a sign, a constant, a condition). It is picked by the hash of its
seed, file and line, so that two trees that share most lines are given nearly the same mutants: before and
after a change of the tests, not fewer may be caught. Only the tests that mirror the file run: its test file and its own
doctests, or the tests of its folder where it has no file.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SRC = Path("src/confide")
SECONDS = 300  # for the tests of one file
LEFT_OUT = ("benchmarks", "figures", "__main__.py", "__init__.py")  # speed, pictures, lists of names
TURNED: dict[type[ast.AST], str] = {
    ast.Lt: ">=", ast.LtE: ">", ast.Gt: "<=", ast.GtE: "<", ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not",
    ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in", ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*",
}  # fmt: skip


class Mutant(NamedTuple):
    path: Path  # in the tree
    line: int  # from 1
    begin: int  # bytes in that line
    end: int
    new: str

    def text(self, source: str) -> str:
        lines = source.encode().splitlines(keepends=True)
        line = lines[self.line - 1]
        lines[self.line - 1] = line[: self.begin] + self.new.encode() + line[self.end :]
        return b"".join(lines).decode()


def mutants(path: Path, source: str) -> Iterator[Mutant]:
    tree = ast.parse(source)
    lines = source.encode().splitlines()
    skipped = {id(child) for node in ast.walk(tree) for child in _not_run(node)}
    for node in ast.walk(tree):
        if id(node) in skipped or getattr(node, "lineno", 0) != getattr(node, "end_lineno", -1):
            continue
        at = node.lineno, node.col_offset, node.end_col_offset  # type: ignore[attr-defined]
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield from _between(path, lines, node.left, node.comparators[0], node.ops[0])
        elif isinstance(node, ast.BinOp):
            yield from _between(path, lines, node.left, node.right, node.op)
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield Mutant(path, *at, str(not node.value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            yield Mutant(path, *at, f"({lines[at[0] - 1][at[1] : at[2]].decode()} + 1)")
        elif isinstance(node, ast.If | ast.IfExp | ast.While) and node.test.lineno == node.test.end_lineno:
            test = node.test
            old = lines[test.lineno - 1][test.col_offset : test.end_col_offset].decode()
            yield Mutant(path, test.lineno, test.col_offset, test.end_col_offset or 0, f"(not ({old}))")


def _between(path: Path, lines: list[bytes], left: ast.expr, right: ast.expr, op: ast.AST) -> Iterator[Mutant]:
    """The operator between two operands on one line."""
    if type(op) not in TURNED or left.end_lineno != right.lineno:
        return
    begin, end = left.end_col_offset or 0, right.col_offset
    between = lines[right.lineno - 1][begin:end].decode()
    if between.strip("() ") and "(" not in between and ")" not in between:
        yield Mutant(path, right.lineno, begin, end, f" {TURNED[type(op)]} ")


def _not_run(node: ast.AST) -> Iterator[ast.AST]:
    """Annotations and messages: no test is to hold them."""
    for name in ("annotation", "returns"):
        if isinstance(part := getattr(node, name, None), ast.AST):
            yield from ast.walk(part)
    if isinstance(node, ast.Raise | ast.Assert):
        yield from ast.walk(node)


def chosen(tree: Path, seed: int, count: int) -> list[Mutant]:
    found: dict[str, Mutant] = {}
    for path in sorted((tree / SRC).rglob("*.py")):
        inside = path.relative_to(tree / SRC)
        if inside.parts[0] in LEFT_OUT or inside.name in LEFT_OUT:
            continue
        source = path.read_text()
        lines = source.splitlines()
        for m in mutants(inside, source):
            words = f"{seed} {inside} {lines[m.line - 1].strip()} {m.begin} {m.new}"
            found[hashlib.sha256(words.encode()).hexdigest()] = m
    return [found[key] for key in sorted(found)[:count]]


def mirrors(tree: Path, inside: Path) -> list[str]:
    """Tests of the file: its own, else those of the nearest folder that has some, and its doctests."""
    own = Path("tests") / inside.parent / f"test_{inside.name}"
    if (tree / own).exists():
        return [str(own), str(SRC / inside)]
    room = Path("tests") / inside.parent
    while not list((tree / room).glob("test_*.py")):
        room = room.parent
    beside = [str(room)] if room != Path("tests") else [str(p.relative_to(tree)) for p in tree.glob("tests/test_*.py")]
    return [*beside, str(SRC / inside)]


def caught_by(tree: Path, m: Mutant) -> str:
    """The test that noticed, or nothing."""
    path = tree / SRC / m.path
    source = path.read_text()
    try:
        path.write_text(m.text(source))
        environment = os.environ | {"PYTHONPATH": str(tree / "src")}  # before the installed one
        line = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mirrors(tree, m.path)]
        with subprocess.Popen(
            line, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as run:
            try:
                out, _ = run.communicate(timeout=SECONDS)
            except subprocess.TimeoutExpired:  # a loop without an end is noticed, too
                os.killpg(run.pid, signal.SIGKILL)
                return f"no end within {SECONDS} s"
        told = [line.split(" - ")[0] for line in out.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return (told or ["all of them"])[0] if run.returncode else ""
    finally:
        path.write_text(source)


def main() -> None:
    parser = argparse.ArgumentParser(description="Which broken lines do the tests notice?")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--tree", type=Path, default=Path(__file__).resolve().parents[2])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", "results", ".hypothesis")
        shutil.copytree(arguments.tree, tree, ignore=ignored)
        noticed = 0
        picked = chosen(tree, arguments.seed, arguments.count)
        for m in picked:
            old = (tree / SRC / m.path).read_text().splitlines()[m.line - 1]
            new = m.text((tree / SRC / m.path).read_text()).splitlines()[m.line - 1]
            by = caught_by(tree, m)
            noticed += bool(by)
            print(f"{m.path}:{m.line}\n  - {old.strip()}\n  + {new.strip()}\n  {by or 'NOT NOTICED'}", flush=True)
        print(f"{noticed} of {len(picked)} caught (seed {arguments.seed})")


if __name__ == "__main__":
    main()
