"""`python tests/tools/performance.py`: runs the benches and writes their numbers into docs/performance.md.

    python tests/tools/performance.py                          every bench whose table the page has
    python tests/tools/performance.py regression secure        these alone; all other tables stay
    python tests/tools/performance.py --gpu gpu.json           what `bench/gpu.py --json` printed elsewhere

Nobody types a number of that page. On a quiet machine: each table says how busy it was before its bench began.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from compare import HERE

PAGE = HERE / "docs" / "performance.md"
TABLE = re.compile(
    r"(?P<begin><!-- numbers of (?P<name>\w+)(?:, (?P<some>\w+) alone)? -->\n).*?(?P<end><!-- end -->)", re.DOTALL
)
BUT_THE_PAGE = ("--", ".", f":!{PAGE.relative_to(HERE)}")
PACKAGES = ("numpy", "numba", "cryptography", "grpcio", "jax", "torch")


def table(about: str, command: str, numbers: dict[str, Any], some: str) -> str:
    """What a bench printed: a line a figure (with `some` in its name), its spread beside it."""
    lines = [f"{about}\n", f"    {command}\n", "| figure | value | spread |", "|---|---:|---:|"]
    for name, value in flat(numbers).items():
        if some in name and not name.endswith("_spread"):
            spread = flat(numbers).get(f"{name}_spread")
            lines.append(f"| {name} | {shown(value)} | {'' if spread is None else f'{spread:.1%}'} |")
    return "\n".join([*lines, ""])


def flat(numbers: dict[str, Any], within: str = "") -> dict[str, Any]:
    """Tables in tables as one, with dots in its names."""
    found = {}
    for name, value in numbers.items():
        found |= flat(value, f"{within}{name}.") if isinstance(value, dict) else {within + name: value}
    return found


def shown(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 1000 else f"{value:.4g}"


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=HERE, check=True, capture_output=True, text=True).stdout.strip()


def here() -> str:
    """When, what and where, before a bench begins."""
    commit = git("rev-parse", "--short", "HEAD") + " and changes" * bool(git("status", "--porcelain", *BUT_THE_PAGE))
    processor = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    machine = f"{os.cpu_count()} cores, {processor[1] if processor else platform.processor()}"
    busy = f"{os.getloadavg()[0]:.1f} processes at work before it"
    return f"{datetime.now(UTC):%Y-%m-%d}, confide {commit}, {versions()}; {machine}; {busy}."


def versions() -> str:
    found = [f"Python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def write(name: str, about: str, command: str, numbers: dict[str, Any]) -> None:
    """The page, with these numbers in the place of the old ones."""

    def one(old: re.Match[str]) -> str:
        if old["name"] != name:
            return old[0]
        return old["begin"] + table(about, command, numbers, old["some"] or "") + old["end"]

    PAGE.write_text(TABLE.sub(one, PAGE.read_text("utf-8")), "utf-8")


def main() -> None:
    names = [found["name"] for found in TABLE.finditer(PAGE.read_text("utf-8"))]
    benches = [name for name in names if name != "gpu"]
    parser = argparse.ArgumentParser(description="Fill the tables of docs/performance.md.")
    parser.add_argument("benches", nargs="*", metavar="BENCH", help=f"of {', '.join(benches)}; all of them by default")
    parser.add_argument("--gpu", type=Path, help="the JSON of bench/gpu.py, with its date, machine and versions")
    arguments = parser.parse_args()
    for name in arguments.benches or (() if arguments.gpu else benches):
        if name not in benches:
            parser.error(f"{name}: docs/performance.md has tables of {', '.join(benches)}")
        print(name, file=sys.stderr, flush=True)
        about, line = here(), ["confide", "bench", name, "--json"]
        done = subprocess.run([sys.executable, "-m", *line], cwd=HERE, check=True, stdout=subprocess.PIPE, text=True)
        write(name, about, " ".join(line), json.loads(done.stdout))
    if arguments.gpu:
        numbers = json.loads(arguments.gpu.read_text("utf-8"))
        if missing := [key for key in ("date", "machine", "versions") if key not in numbers]:
            parser.error(f"{arguments.gpu}: no {', '.join(missing)} in it")
        about = f"{numbers.pop('date')}, {numbers.pop('versions')}; {numbers.pop('machine')}."
        write("gpu", about, "python bench/gpu.py --json", numbers)


if __name__ == "__main__":
    main()
