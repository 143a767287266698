"""The record never falls, is durable before anybody relies on it, and refuses files that are not this client's."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from confide.base import canonical
from confide.base.errors import InputError, RunError
from confide.deploy.store import record
from confide.deploy.store.record import FileRecord, Owner, Record

OWNER = Owner(bytes(range(32)), 3, 5)


def last(path: Path) -> Any:
    """The last line of a record."""
    return json.loads(path.read_text().splitlines()[-1])


def test_it_outlives_the_process(tmp_path: Path) -> None:
    path = tmp_path / "new" / "client.record"
    with FileRecord(path, OWNER) as first:
        assert first.answered == 0
        for n in (1, 2, 2**32 - 1):
            first.write(n)
            assert first.answered == n
            assert last(path)["answered"] == n
    with FileRecord(path, OWNER) as second:
        assert second.answered == 2**32 - 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "new" / "client.record.lock").stat().st_mode) == 0o600
    assert sorted(p.name for p in path.parent.iterdir()) == ["client.record", "client.record.lock"]


@given(st.lists(st.integers(-5, 2**33), max_size=20))
def test_it_never_falls(rounds: list[int]) -> None:
    kept, best = Record(OWNER), 0
    for n in rounds:
        if best < n < 2**32:
            kept.write(n)
            best = n
        else:
            with pytest.raises(InputError, match="round = "):
                kept.write(n)
        assert kept.answered == best


def test_the_file_never_falls(tmp_path: Path) -> None:
    with FileRecord(tmp_path / "r", OWNER) as kept:
        kept.write(7)
        for n in (7, 6, 0, 2**32, True, 8.0):
            with pytest.raises(InputError, match="round = "):
                kept.write(n)  # type: ignore[arg-type]
    with FileRecord(tmp_path / "r", OWNER) as again:
        assert again.answered == 7


def test_content_then_name_then_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is synced, and when: the file before it takes the name, the folder after; then the file alone."""
    calls: list[tuple[str, Any]] = []
    sync, rename = os.fsync, os.replace

    def watched_sync(fd: int) -> None:
        calls.append(("sync", "folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else os.fstat(fd).st_size > 0))
        sync(fd)

    def watched_rename(source: Any, target: Any) -> None:
        calls.append(("rename", stat.S_IMODE(os.stat(source).st_mode)))
        rename(source, target)

    FileRecord(tmp_path / "r", OWNER).close()
    with FileRecord(tmp_path / "r", OWNER) as kept:
        monkeypatch.setattr(os, "fsync", watched_sync)
        monkeypatch.setattr(os, "replace", watched_rename)
        kept.write(1)
        kept.write(2)
    assert calls == [("sync", True), ("rename", 0o600), ("sync", "folder"), ("sync", True)]


@pytest.mark.parametrize(("at", "lines"), [("fsync", 1), ("fsync", 2), ("write", 2), ("replace", 1)])
@pytest.mark.parametrize(("number", "error"), [(errno.ENOSPC, (RunError, InputError)), (errno.EIO, InputError)])
def test_a_failed_write_leaves_the_old_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str, lines: int, number: int, error: type[Exception]
) -> None:
    """Of a file that begins anew, and of one that has lines already."""

    def fails(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    with FileRecord(tmp_path / "r", OWNER) as first:
        first.write(1)
    with FileRecord(tmp_path / "r", OWNER) as kept:
        if lines > 1:
            kept.count(1)
        with monkeypatch.context() as patch:
            patch.setattr(os, at, fails)
            with pytest.raises(error, match=str(tmp_path)):
                kept.write(2)
        assert kept.answered == 1
        assert last(tmp_path / "r")["answered"] in (1, 2)  # a line whose way to the disk failed may be there
        kept.write(2)
        assert kept.answered == 2
    with FileRecord(tmp_path / "r", OWNER) as again:
        assert again.answered == 2


def test_a_folder_that_cannot_be_synced_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync = os.fsync

    def fails(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(code, "no")
        sync(fd)

    monkeypatch.setattr(os, "fsync", fails)
    code = errno.EINVAL  # a file system without it
    FileRecord(tmp_path / "r", OWNER).close()
    with FileRecord(tmp_path / "r", OWNER) as kept:
        code = errno.EIO
        with pytest.raises(InputError, match="record = "):
            kept.write(2)
        assert kept.answered == 0  # the file may say 2 by now: the client then answers less, never more


def test_one_process_at_a_time(tmp_path: Path) -> None:
    path, link = tmp_path / "r", tmp_path / "link"
    first = FileRecord(path, OWNER)
    link.symlink_to(path)
    for name in (path, link):
        with pytest.raises(InputError, match="in use by another process"):
            FileRecord(name, OWNER)
    program = (
        "import sys; from confide.deploy.store.record import *\n"
        "FileRecord(sys.argv[1], Owner(bytes(range(32)), 3, 5)).write(9)"
    )
    run = [sys.executable, "-c", program, str(path)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert "in use by another process" in done.stderr
    first.close()
    subprocess.run(run, check=True)
    with pytest.raises(RunError, match="closed"):
        first.write(4)
    with FileRecord(path, OWNER) as again:
        assert again.answered == 9


def test_a_lock_ends_with_its_owner(tmp_path: Path) -> None:
    kept = FileRecord(tmp_path / "r", OWNER)
    del kept
    FileRecord(tmp_path / "r", OWNER).close()
    (tmp_path / "bad").write_text("x")
    with pytest.raises(InputError, match="damaged") as refused:
        FileRecord(tmp_path / "bad", OWNER)
    (tmp_path / "bad").unlink()
    FileRecord(tmp_path / "bad", OWNER).close()  # the refused one holds no lock, though its traceback lives on
    assert refused.tb is not None


def table(**changes: Any) -> str:
    content = {
        "answered": 4, "client": 5, "format": 3, "given": 2, "given_last": 3, "plan": OWNER.plan.hex(), "unit": 3,
    } | changes  # fmt: skip
    return canonical.dumps(content | {"sha256": canonical.digest(canonical.dumps(content))}) + "\n"


def padded(**changes: Any) -> str:
    return table(**changes)[:-1].ljust(511) + "\n"


def unhashed(text: str) -> str:
    return text.replace('"answered":4', '"answered":3')


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        (table(plan="00" * 32), "is of plan '0000"),
        (table(unit=4), "is of unit 4, not 3"),
        (table(client=6), "is of client 6, not 5"),
        (table(format=4), "has format 4; this confide reads 3: update"),
        (table(format=4, more="x"), "has format 4; this confide reads 3: update"),
        (table(format=1), "has format 1, of an earlier confide, and this one writes 3: begin a new plan"),
        (table(format=0), "is no record, or damaged"),
        (padded(answered=5) + padded(answered=4), "is no record, or damaged"),
        (padded(given_last=4) + padded(), "is no record, or damaged"),
        (padded() + unhashed(padded()), "is no record, or damaged"),
        (padded() + unhashed(padded()) + padded(answered=5), "is no record, or damaged"),
        (padded() + padded(client=6), "is of client 6, not 5"),
        (table(more=1), "is no record, or damaged"),
        (table(answered=-1), "must be"),
        (table(answered="4"), "must be"),
        (table(given=-1), "must be"),
        (table(given_last=None), "must be"),
        (unhashed(table()), "is no record, or damaged"),
        (table()[:40], "is no record, or damaged"),
        ("", "is no record, or damaged"),
        ("[1, 2]", "is no record, or damaged"),
        ("[1,2]", "is no record, or damaged"),
        ("[" * 3000, "is no record, or damaged"),
        ("x" * 2**21, "holds 2097152 bytes"),
        ("\udcff", "is not UTF-8"),
    ],
)
def test_files_that_are_not_this_clients(tmp_path: Path, text: str, remedy: str) -> None:
    path = tmp_path / "r"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InputError) as refused:
        FileRecord(path, OWNER)
    assert remedy in str(refused.value)
    assert refused.value.field in ("record", "record.answered", "record.given", "record.given_last")
    assert path.read_bytes() == text.encode(errors="surrogateescape")


def test_the_table_that_the_refusals_are_changes_of_is_read(tmp_path: Path) -> None:
    (tmp_path / "r").write_text(table())
    with FileRecord(tmp_path / "r", OWNER) as kept:
        assert (kept.answered, kept.given) == (4, (2, 3))


def test_the_last_line_holds_and_a_short_one_was_cut_off(tmp_path: Path) -> None:
    path, lines = tmp_path / "r", padded() + padded(answered=6)
    for cut in range(512):
        path.write_text(lines + padded(answered=7)[:cut])
        with FileRecord(path, OWNER) as kept:
            assert kept.answered == (6 if cut < 511 else 7)
    with FileRecord(path, OWNER) as kept:
        kept.write(8)
        assert path.read_text() == padded(answered=8)
        kept.write(9)
    assert path.read_text() == padded(answered=8) + padded(answered=9)


def test_a_record_of_the_format_before_is_read(tmp_path: Path) -> None:
    (tmp_path / "r").write_text(table(format=2))
    with FileRecord(tmp_path / "r", OWNER) as kept:
        assert (kept.answered, kept.given) == (4, (2, 3))
        kept.write(5)
    assert (tmp_path / "r").read_text() == padded(answered=5)


def test_it_begins_anew_when_it_is_long_or_was_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "MOST", 3)
    path = tmp_path / "r"
    with FileRecord(path, OWNER) as kept:
        sizes = []
        for n in range(1, 7):
            kept.write(n)
            sizes.append(path.stat().st_size // 512)
        assert sizes == [2, 3, 1, 2, 3, 1]
        path.unlink()
        kept.write(7)
        assert last(path)["answered"] == 7
        path.rename(tmp_path / "moved")
        path.write_text(padded())
        kept.write(8)
        assert last(path)["answered"] == 8


def test_a_line_is_one_sector_whatever_it_says(tmp_path: Path) -> None:
    largest = Owner(b"\xff" * 32, 2**31, 2**31)
    with FileRecord(tmp_path / "r", largest) as kept:
        kept.count(2**32 - 1)
        kept.write(2**32 - 1)
    assert (tmp_path / "r").stat().st_size == 3 * 512


def test_rounds_with_data_are_counted_once_each_beside_those_that_were_answered(tmp_path: Path) -> None:
    with FileRecord(tmp_path / "r", OWNER) as kept:
        assert kept.given == (0, 0)
        kept.count(2)
        kept.write(2)
        for n in (2, 1, 0, 2**32, True, 3.0):
            with pytest.raises(InputError, match="round = "):
                kept.count(n)  # type: ignore[arg-type]
        kept.count(9)
        assert (kept.answered, kept.given) == (2, (2, 9))
    with FileRecord(tmp_path / "r", OWNER) as again:
        assert (again.answered, again.given) == (2, (2, 9))
        again.write(3)
        assert again.given == (2, 9)
    with pytest.raises(RunError, match="closed"):
        again.count(10)


def a_folder(path: Path) -> None:
    path.mkdir()


def read_only(path: Path) -> None:
    path.write_text(table())
    path.chmod(0o400)


def under_a_file(path: Path) -> None:
    path.parent.rmdir()
    path.parent.write_text("")


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("make", [a_folder, read_only, under_a_file, a_pipe])
def test_places_where_no_record_can_be(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "folder" / "r"
    path.parent.mkdir()
    make(path)
    with pytest.raises(InputError) as refused:
        FileRecord(path, OWNER)
    assert str(refused.value).startswith(f"record = '{path}': ")


def test_a_folder_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(_: Any) -> None:
        raise InputError("output.folder", str(tmp_path), "cannot be written (Read-only file system); name another")

    monkeypatch.setattr(record, "check_writable", refuses)  # who runs the tests may be root
    with pytest.raises(InputError, match=r"record = .*Read-only file system"):
        FileRecord(tmp_path / "r", OWNER)
    assert not (tmp_path / "r").exists()
