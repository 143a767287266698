"""A disk that fails: writes that are refused, cut short or never return, one step after the other, in real files.

`disk.c` stands below everything that a process links (LD_PRELOAD) and counts what is written and synced under one
folder. A step can end with no space, with an error, with half of its bytes, or with the process; from there on the disk
can refuse to grow, to sync, or to do anything.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

FAULTS: Final = {"full": 1, "error": 2, "short": 3, "kill": 4, "torn": 5, "unsynced": 6, "dead": 7}
READS: Final = {"unread": 8, "unreadable": 9}  # one of them fails, or all from one on
_FAILED: Final = 9  # how a child ends that could not go on, in its own words


def built(folder: Path) -> Path:
    """The library, compiled into this folder."""
    library = folder / "disk.so"
    source = Path(__file__).with_name("disk.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


def under(library: Path, script: Path, *arguments: str) -> str:
    """What a script says that runs on such a disk."""
    environment = os.environ | {"LD_PRELOAD": str(library)}
    command = [sys.executable, str(script), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def failing(library: Path, folder: Path, fault: str, step: int) -> dict[str, str]:
    """The environment in which every process has a disk of its own that fails at this step under the folder."""
    number = str((FAULTS | READS)[fault])
    return {"LD_PRELOAD": str(library), "DISK_UNDER": f"{folder}/", "DISK_FAULT": number, "DISK_STEP": str(step)}


def on_small_disk(folder: Path, size: str, script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A script, with a small file system of its own (tmpfs) at this folder, which nobody else sees."""
    mount = ["unshare", "-Urm", "sh", "-c", 'mount -t tmpfs -o "size=$1" small "$2" && shift 2 && exec "$@"', "sh"]
    command = [*mount, size, str(folder), sys.executable, str(script), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def mounting_is_allowed(folder: Path) -> bool:
    return shutil.which("unshare") is not None and not on_small_disk(folder, "1m", Path(os.devnull)).returncode


@contextmanager
def all_but(room: int, folder: Path) -> Iterator[None]:
    """The disk of this folder is full, but for so many bytes."""
    filler = folder / ".filler"
    with open(filler, "wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(2**12)):
            pass
    try:
        os.truncate(filler, max(0, filler.stat().st_size - room))
        yield
    finally:
        filler.unlink()


def arm(folder: Path, fault: str | None = None, step: int = -1) -> None:
    """From now on this process's disk fails at this step under the folder (None: it only counts)."""
    ctypes.CDLL(None).disk_arm(os.fsencode(folder) + b"/", (FAULTS | READS)[fault] if fault else 0, ctypes.c_long(step))


def steps() -> int:
    """How many there were since `arm`."""
    count = ctypes.CDLL(None).disk_steps
    count.restype = ctypes.c_long
    return int(count())


def forked(life: Callable[[Callable[[str], None]], None]) -> tuple[str, int]:
    """What a child said with the function that it is given, and its exit status (negative: the signal)."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        status = 0
        try:
            life(lambda word: os.write(write, f"{word}\n".encode()))
        except BaseException as e:
            os.write(write, f"! {type(e).__name__}: {e}\n".encode())
            status = _FAILED
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as pipe:
        said = pipe.read()
    return said, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
