"""A disk that fails at any step of a life: afterwards the node starts, and has what it acknowledged."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import disk
from exploring import more

SCRIPT = Path(__file__).with_name("disk_faults.py")
EVERY = 1 if more([], [1]) else 13  # steps; the record's few are always all tried

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="a failing disk needs a C compiler")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return disk.built(tmp_path_factory.mktemp("disk"))


@pytest.mark.parametrize("fault", disk.FAULTS)
@pytest.mark.parametrize(("kept", "every", "lives"), [("store", EVERY, 110), ("record", 1, 20)])
def test_nothing_is_lost(library: Path, tmp_path: Path, fault: str, kept: str, every: int, lives: int) -> None:
    first = list(disk.FAULTS).index(fault) % every  # each fault at other steps, where not at all
    said = disk.under(library, SCRIPT, str(tmp_path), kept, fault, str(every), str(first)).splitlines()
    wrong = [line for line in said if not line.startswith("lives ")]
    assert not wrong, "\n".join(wrong)
    assert sum(int(line[6:]) for line in said) >= lives / every


@pytest.mark.parametrize("fault", disk.READS)
@pytest.mark.parametrize(("kept", "every"), [("store", 3), ("record", 1)])
def test_what_cannot_be_read_is_not_taken_for_damaged(
    library: Path, tmp_path: Path, fault: str, kept: str, every: int
) -> None:
    """To SQLite it is the same."""
    first = list(disk.READS).index(fault) % every
    said = disk.under(library, SCRIPT, str(tmp_path), kept, fault, str(every), str(first)).splitlines()
    wrong = [line for line in said if not line.startswith("lives ")]
    assert not wrong, "\n".join(wrong)
    assert sum(int(line[6:]) for line in said) >= (30 if kept == "store" else 1)


def test_nothing_is_lost_on_a_small_disk(tmp_path: Path) -> None:
    (small := tmp_path / "disk").mkdir()
    if not disk.mounting_is_allowed(small):
        pytest.skip("no file system may be mounted here: full disks are those of the failing writes alone")
    done = disk.on_small_disk(small, "2m", SCRIPT, str(tmp_path), "small", str(small))
    assert (done.returncode, done.stderr) == (0, "")
    said = done.stdout.splitlines()
    wrong = [line for line in said if not line.startswith("lives ")]
    assert not wrong, "\n".join(wrong)
    assert len(said) == 50
    assert "lives 1 0" in said  # full from the begin
    assert "lives 1 6" in said  # and never


def test_what_failed_commits_leave_in_the_log_is_not_taken_for_damage(library: Path, tmp_path: Path) -> None:
    said = disk.under(library, SCRIPT, str(tmp_path), "twice").splitlines()
    assert said == ["refused", "refused", "+", "seen 7"]


def test_a_lost_log_is_seen(library: Path, tmp_path: Path) -> None:
    """The test above can fail: the log of the killed store, in which its last commits are, is taken away."""
    said = disk.under(library, SCRIPT, str(tmp_path), "store", "lose", "1000", "0")
    assert "afterwards" in said
