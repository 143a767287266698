"""Nothing half-written is ever left: files and folders are made under a temporary name, then renamed."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Self

from confide.base.errors import InputError, RunError, refused

FULL = (errno.ENOSPC, errno.EDQUOT)  # of a disk


class Source(NamedTuple):
    """Where data are, and the digest of what is there; none of what is no file."""

    place: str
    digest: str | None

    @classmethod
    def of(cls, path: str | Path) -> Self:
        place = os.path.realpath(path)
        if not os.path.isfile(place):
            return cls(place, None)
        with open(place, "rb") as file:
            return cls(place, hashlib.file_digest(file, "sha256").hexdigest())

    def check(self, field: str) -> None:
        """Nothing was written there meanwhile: what was read is what the digest is of."""
        if Source.of(self.place) != self:
            raise InputError(field, self.place, "was changed while it was read; begin again")


@contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """Yields a temporary path beside `path`; on success it becomes `path`, otherwise it is removed.

    The temporary name keeps the suffix, because some writers choose their format by it.
    """
    path = Path(path)
    with _translated(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.stem}.", suffix=path.suffix, dir=path.parent)
        os.close(handle)
        os.chmod(name, 0o666 & ~_umask())  # mkstemp makes 0600; results are for sharing
        temporary = Path(name)
        try:
            yield temporary
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """The whole text, or nothing."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def atomic_folder(folder: str | Path, marker: str) -> Iterator[Path]:
    """Yields a temporary folder that becomes `folder`.

    An existing folder is replaced only if it is empty or holds the file `marker`, i.e. is an older result. There is one
    writer at a time: what the body reads of the old folder is what will be replaced.
    """
    folder = check_replaceable(folder, marker)
    with _translated(folder), locked(folder.with_name(f".{folder.name}.lock")):
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        os.chmod(temporary, 0o777 & ~_umask())
        try:
            yield temporary
            if folder.exists():
                _swap(temporary, folder)
            else:
                os.replace(temporary, folder)
        finally:
            with suppress(OSError):
                shutil.rmtree(temporary)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Held by one at a time, others wait. The file goes with its last holder; who waited for that one tries again."""
    if sys.platform == "win32":  # it has no flock
        yield
        return
    import fcntl

    while True:
        with open(path, "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                if os.stat(path).st_ino != os.fstat(file.fileno()).st_ino:
                    continue
            except FileNotFoundError:
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def check_replaceable(folder: str | Path, marker: str) -> Path:
    """Refuse before hours of work, not after: the folder, links followed, that `atomic_folder` may make or replace."""
    folder = Path(folder)
    with _translated(folder):
        folder = Path(os.path.realpath(folder))  # behind a link, what it points to is replaced, not the link
        if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / marker).exists())):
            remedy = f"is in use and holds no {marker}; name a new or empty folder"
            raise InputError("output.folder", str(folder), remedy)
        if folder.is_mount():
            raise InputError("output.folder", str(folder), "is a mount point; name a folder inside it")
    check_writable(folder.parent)
    return folder


def _swap(new: Path, folder: Path) -> None:
    """`new` takes the place of `folder`, which comes back if that fails."""
    holder = Path(tempfile.mkdtemp(prefix=f".{folder.name}.old.", dir=folder.parent))
    old = holder / folder.name
    try:
        os.replace(folder, old)
        try:
            os.replace(new, folder)
        except BaseException:
            os.replace(old, folder)
            raise
        shutil.rmtree(old)
    finally:
        with suppress(OSError):
            holder.rmdir()  # only if empty: never what could not be put back


def check_writable(folder: str | Path) -> None:
    """Can a file be made in this folder?"""
    folder = Path(folder)
    with _translated(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass


@contextmanager
def no_empty_folders(folder: str | Path) -> Iterator[None]:
    """If the work inside fails, the folders made for its results go again, unless something is in them."""
    folder = Path(folder).absolute()
    with _translated(folder):
        missing = [p for p in (folder, *folder.parents) if not p.exists()]
    try:
        yield
    except BaseException:
        for p in missing:
            with suppress(OSError):
                p.rmdir()
        raise


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """The operating system's refusals in our words: a wrong place is the user's, a full disk is the run's."""
    try:
        yield
    except OSError as e:
        if e.errno in FULL:
            raise RunError(f"{path}: the disk is full; nothing half-written was left") from e
        raise refused("output.folder", str(path), f"cannot be written ({e.strerror or e})", "name another", e) from e
    except Exception as e:
        if f"os error {errno.ENOSPC}" in str(e):  # how polars tells it
            raise RunError(f"{path}: the disk is full; nothing half-written was left") from e
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def existing(folder: Path) -> Path:
    """The nearest folder that exists: the rest is made when it is needed."""
    return folder if folder.exists() or folder == folder.parent else existing(folder.parent)


def sync_folder(folder: Path) -> None:
    """New names in it outlive a power cut."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:  # a folder that may not be read cannot be synced; the file is whole
        return
    try:
        os.fsync(fd)
    except OSError as e:
        if e.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot, and then need not
            raise
    finally:
        os.close(fd)
