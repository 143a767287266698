"""`make large-log`: figure 5's problem out of a gzipped log as long as Avazu's, in less than 2 GiB of memory.

The log is synthetic, with Avazu's columns, and is made piece by piece in a temporary folder (2.3 GB on the disk).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from confide.problems.click_log import synthetic_log

ROWS = 40_428_967  # of Kaggle's train.gz
PIECE = 250_000
MOST = 2048  # MiB
READ = """\
import re, sys, threading, time
from confide.problems import clicks

def own():  # without the pages of the file that the system keeps and can drop
    return int(re.search(r"RssAnon:\\s+([0-9]+)", open("/proc/self/status").read())[1]) / 1024

def watch():
    global peak
    while True:
        peak = max(peak, own())
        time.sleep(0.005)

peak = own()
threading.Thread(target=watch, daemon=True).start()
problem = clicks(sys.argv[1], unit_rows=False, balance=sys.argv[2] == "balanced")
print(problem.federation, *problem.notes, sep="; ")
print(peak)
"""


def make(path: Path, rows: int) -> None:
    with open(path, "wb") as file:
        packer = subprocess.Popen(["gzip", "-1", "-c"], stdin=subprocess.PIPE, stdout=file)
        assert packer.stdin is not None
        for first in range(0, rows, PIECE):
            piece, _ = synthetic_log(min(PIECE, rows - first), first // PIECE)
            piece.write_csv(packer.stdin, include_header=first == 0)
        packer.stdin.close()
        if packer.wait():
            sys.exit("gzip failed")
    print(f"{rows:,} rows, {path.stat().st_size / 2**20:.0f} MiB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.gz"
        make(path, arguments.rows)
        worst = 0.0
        for classes in ("balanced", "natural"):
            began = time.perf_counter()
            line = [sys.executable, "-c", READ, str(path), classes]
            said, peak = subprocess.run(line, capture_output=True, text=True, check=True).stdout.splitlines()
            worst = max(worst, float(peak))
            print(f"{classes:9} {time.perf_counter() - began:.0f} s, at most {float(peak):.0f} MiB: {said}")
    if worst > MOST:
        sys.exit(f"more than {MOST} MiB")


if __name__ == "__main__":
    main()
