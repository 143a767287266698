"""`python tests/tools/steady.py secure`: does a bench print the same ratios when it runs five times in a row?

A line is one ratio: its least, its median and its largest, and how far apart the ends are as a share of the median.
Exit 1 where one is beyond the bound. Words after `--` go to the bench: `steady.py secure --times 3 -- --length 100000`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median

from compare import BENCHES, told

HERE = Path(__file__).resolve().parents[2]


def main() -> None:
    parser = argparse.ArgumentParser(description="Ratios of benches, run several times in a row.")
    parser.add_argument("benches", nargs="*", metavar="BENCH", help=f"of {', '.join(BENCHES)}; all of them by default")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--within", type=float, default=0.1, help="largest minus least, as a share of the median")
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    arguments, options = parser.parse_args(sys.argv[1:at]), sys.argv[at + 1 :]
    worst = 0.0
    for name in arguments.benches or BENCHES:
        line = [sys.executable, "-m", "confide", "bench", name, "--json", *options]
        found: dict[str, list[float]] = {}
        for turn in range(arguments.times):
            print(f"{name}: run {turn + 1} of {arguments.times}", file=sys.stderr, flush=True)
            done = subprocess.run(line, cwd=HERE, check=True, stdout=subprocess.PIPE, text=True)
            for key, value in told(json.loads(done.stdout)).items():
                found.setdefault(key, []).append(value)
        for key, values in found.items():
            if key.endswith("_per_s"):  # as fast as the machine is at the moment
                continue
            apart = (max(values) - min(values)) / median(values)
            worst = max(worst, apart)
            flag = "" if apart <= arguments.within else "  !"
            print(
                f"{name:12} {key:30} {min(values):10.4g} {median(values):10.4g} {max(values):10.4g} {apart:7.1%}{flag}"
            )
    sys.exit(worst > arguments.within)


if __name__ == "__main__":
    main()
