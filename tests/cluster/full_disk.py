"""Run by `test_full_disk`: a network whose disk fills up, and which goes on after room is made.

python full_disk.py FOLDER small                on the small disk that is mounted at FOLDER
python full_disk.py FOLDER LIBRARY STEP...      on one disk a process that is full from its STEP-th write on
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import disk
from builders import reference_bits
from confide.cluster.layout import Layout, lay_out
from confide.cluster.processes import Cluster
from confide.cluster.try_out import TRY_OUT
from confide.plans.config import parse
from patience import LIMIT, SCALE
from ports import own_ports

SEED = 7
LONG = 180.0 * SCALE
ROUNDS = 12
ROOM = 500_000  # bytes: less than two servers write in so many rounds


def run(found: Layout, environment: dict[str, str] | None = None) -> tuple[int, str]:
    command = [sys.executable, "-m", "confide", "cluster", "--out", str(found.folder), "--test-seed", str(SEED)]
    done = subprocess.run(command, env=os.environ | (environment or {}), capture_output=True, text=True, timeout=LIMIT)
    return done.returncode, done.stdout + done.stderr


def main(folder: Path, library: str, *steps: str) -> None:
    clocks = {"adapt": LONG, "tick": 0.05, "exchange": LONG, "drain": LONG}
    config = parse(TRY_OUT, [f"seed={SEED}", "algorithm.aggregation=plain"])
    found = lay_out(folder / "net", config, 2, 1, rounds=ROUNDS, ports=own_ports, grace=0.5, **clocks)
    with nullcontext() if steps else disk.all_but(ROOM, folder):
        for step in map(int, steps or ("0", "0")):  # the small disk: twice, it is still full the second time
            code, said = run(found, disk.failing(Path(library), found.folder, "full", step) if steps else None)
            assert code == 1, said
            assert steps or "is full" in said, said  # else the log, on the same disk, may lack the reason
            assert "damaged" not in said, said
    code, said = run(found)
    assert code == 0, said
    assert "conserved to the last bit" in said
    assert "all settled at both ends" in said
    with Cluster(found) as cluster:
        models = [cluster.books(unit).w.tolist() for unit in found.units]
    assert models == reference_bits(found.experiment), f"seed {SEED}"
    print("goes on")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
