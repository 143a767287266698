"""Files that are on the disk when the call returns: after a power cut they are there, whole."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from confide.base.files import atomic_file, sync_folder


def create_file(path: Path, data: bytes, mode: int) -> None:
    """A new file that has its mode before it has its content, on the disk when this returns; or none."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with open(fd, "wb") as file:
            os.fchmod(fd, mode)  # whatever the umask
            flush(file, data)
    except BaseException:
        os.unlink(path)
        raise


def replace_file(path: Path, data: bytes, mode: int | None = None) -> None:
    """A file, old or new but never half, on the disk when this returns; a public one where no mode is given."""
    with atomic_file(path) as temporary, open(temporary, "wb") as file:
        if mode is not None:
            os.fchmod(file.fileno(), mode)
        flush(file, data)
    sync_folder(path.parent)


def flush(file: BinaryIO, data: bytes) -> None:
    """Onto the disk."""
    file.write(data)
    file.flush()
    os.fsync(file.fileno())
