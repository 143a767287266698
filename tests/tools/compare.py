"""`make compare BASE=commit`: is this tree slower than that commit?

Both trees do the same work in turns, because the speed of a machine changes from minute to minute: `make run`, every
`confide bench`, and the tests. A line is one measure: its median in the base, its median here, and the median of the
ratios of the turns (here / base). CPU seconds are those of the command and of all processes it waited for.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

BENCHES = ("regression", "secure", "network", "deploy", "accountant", "noise")
PARTS = ("run", "bench", "tests")
TOLD = ("ratio", "speedup", "per_s")  # numbers of a bench that are compared
HERE = Path(__file__).resolve().parents[2]
Measured = dict[str, float]


def told(numbers: dict[str, float]) -> Measured:
    """What is compared of a bench's numbers: no spread, which is about the run alone."""
    return {k: float(v) for k, v in numbers.items() if any(word in k for word in TOLD) and not k.endswith("_spread")}


@contextmanager
def worktree(commit: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "base"
        git = ["git", "-C", str(HERE), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def do(tree: Path, *line: str) -> tuple[int, Measured, str]:
    """Exit code, seconds and what it printed; stderr goes to the user only if it failed."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # each tree runs its own code
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        began = time.perf_counter()
        process = subprocess.Popen(line, cwd=tree, stdout=out, stderr=err, env=own | {"MAKEFLAGS": ""})
        _, status, used = os.wait4(process.pid, 0)
        took = {"seconds": time.perf_counter() - began, "CPU seconds": used.ru_utime + used.ru_stime}
        for stream in (out, err):
            stream.seek(0)
        code, printed = os.waitstatus_to_exitcode(status), out.read()
        if code:
            print(f"! {' '.join(line)} in {tree} ended with {code}\n{(printed + err.read())[-1000:]}", file=sys.stderr)
        return code, took, printed


def measure(tree: Path, parts: list[str]) -> Iterator[tuple[str, Measured]]:
    if "run" in parts:
        yield "make run", do(tree, "make", "run")[1]
    if "bench" in parts:
        for name in BENCHES:
            code, took, printed = do(tree, ".venv/bin/confide", "bench", name, "--json")
            if code == 0:
                yield f"bench {name}", {"CPU seconds": took["CPU seconds"]} | told(json.loads(printed))
    if "tests" in parts:
        code, took, printed = do(tree, "make", "test")
        print(f"  {(printed.splitlines() or ['no output'])[-1]}", flush=True)
        yield "make test", took


def main() -> None:
    parser = argparse.ArgumentParser(description="This tree against a commit, in turns.")
    parser.add_argument("base", help="a commit")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    arguments = parser.parse_args()
    found: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: {"base": [], "here": []})
    with worktree(arguments.base) as base:
        trees = {"base": base, "here": HERE}
        for tree in trees.values():
            if do(tree, "make", ".venv/.dev")[0] or do(tree, ".venv/bin/confide", "reproduce", "--quick")[0]:
                sys.exit(f"{tree} could not be set up")
        for turn in range(arguments.times):
            for name in sorted(trees, reverse=turn % 2 == 1):
                print(f"turn {turn + 1} of {arguments.times}: {name}", flush=True)
                for part, numbers in measure(trees[name], arguments.parts):
                    for key, value in numbers.items():
                        found[part, key][name].append(value)
    print(f"\n{'':18} {'':28} {'base':>12} {'here':>12} {'here/base':>10}")
    for (part, key), by in found.items():
        if not by["base"] or not by["here"]:
            only = "base" if by["base"] else "here"
            print(f"{part:18} {key:28} {'only ' + only:>12} {median(by[only]):12.4g}")
            continue
        pairs = [h / b for b, h in zip(by["base"], by["here"], strict=False) if b]
        ratio = f"{median(pairs):10.3f}" if pairs else f"{'-':>10}"
        print(f"{part:18} {key:28} {median(by['base']):12.4g} {median(by['here']):12.4g} {ratio}")


if __name__ == "__main__":
    main()
