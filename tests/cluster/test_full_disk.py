"""`confide cluster --out X` on a disk that fills up ends with 1, and goes on to the same bits after room is made."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import disk

SCRIPT = Path(__file__).with_name("full_disk.py")
STEPS = ["70", "10", "40", "90"]  # writes of a process: in the first rounds, at the start of a server, in between


@pytest.mark.skipif(shutil.which("gcc") is None, reason="a disk that fails needs a C compiler")
def test_a_network_whose_writes_are_refused_goes_on(tmp_path: Path) -> None:
    library = disk.built(tmp_path)
    command = [sys.executable, SCRIPT, tmp_path, library, *STEPS[: 4 if "CONFIDE_SOAK" in os.environ else 1]]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "goes on\n"), done.stderr


@pytest.mark.skipif("CONFIDE_SOAK" not in os.environ, reason="three times all processes: `make soak` runs it")
def test_a_network_on_a_small_disk_goes_on(tmp_path: Path) -> None:
    if not disk.mounting_is_allowed(tmp_path):
        pytest.skip("no file system may be mounted here: full disks are those of the failing writes alone")
    done = disk.on_small_disk(tmp_path, "4m", SCRIPT, str(tmp_path), "small")
    assert (done.returncode, done.stdout) == (0, "goes on\n"), done.stderr
