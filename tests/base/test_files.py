"""All or nothing: what an exception, a full disk or a wrong place leaves behind."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from confide.base.errors import InputError, RunError
from confide.base.files import atomic_file, atomic_folder, check_writable

Atomic = Callable[[Path], AbstractContextManager[Path]]


@contextmanager
def folder_of_one(path: Path) -> Iterator[Path]:
    """`atomic_folder` as a file: what is written to the yielded path is `path / marker`."""
    with atomic_folder(path, "marker") as temporary:
        yield temporary / "marker"


@pytest.fixture(params=["file", "folder"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def atomic(kind: str) -> Atomic:
    return atomic_file if kind == "file" else folder_of_one


def content(path: Path) -> str:
    return (path / "marker" if path.is_dir() else path).read_text()


def everything(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def failing(number: int, after: int = 0) -> Callable[..., object]:
    """An os function that works `after` times, then fails as the operating system would."""
    calls, real = iter(range(after)), os.replace

    def call(*args: object, **options: object) -> object:
        if next(calls, None) is None:
            raise OSError(number, os.strerror(number))
        return real(*args, **options)

    return call


# ---- success


def test_the_name_appears_only_when_all_is_written(atomic: Atomic, tmp_path: Path) -> None:
    target = tmp_path / "new" / "result.csv"
    with atomic(target) as temporary:
        temporary.write_text("new")
        assert not target.exists()
    assert content(target) == "new"
    assert len(list(target.parent.iterdir())) == 1


def test_an_older_result_is_replaced_whole(atomic: Atomic, tmp_path: Path) -> None:
    target = tmp_path / "result"
    for text in ("old", "new"):
        with atomic(target) as temporary:
            temporary.write_text(text)
            if text == "new":
                assert content(target) == "old"
    assert content(target) == "new"
    assert os.listdir(tmp_path) == ["result"]


def test_the_temporary_file_keeps_the_suffix_and_the_folder(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "figure.svg") as temporary:
        assert temporary.suffix == ".svg"
        assert temporary.parent == tmp_path
        assert temporary.name.startswith(".")


def test_a_replaced_folder_keeps_nothing_of_the_old(tmp_path: Path) -> None:
    old = tmp_path / "out"
    old.mkdir()
    (old / "marker").write_text("old")
    (old / "extra").mkdir()
    (old / "extra" / "file").write_text("old")
    with folder_of_one(old) as temporary:
        temporary.write_text("new")
    assert everything(tmp_path) == ["out", "out/marker"]


def test_an_empty_folder_may_be_used(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with folder_of_one(tmp_path / "out") as temporary:
        temporary.write_text("new")
    assert everything(tmp_path) == ["out", "out/marker"]


def test_behind_a_link_the_linked_folder_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    for text in ("old", "new"):
        with folder_of_one(tmp_path / "out") as temporary:
            temporary.write_text(text)
    assert (tmp_path / "out").is_symlink()
    assert (tmp_path / "disk" / "marker").read_text() == "new"
    assert sorted(os.listdir(tmp_path)) == ["disk", "out"]


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_permissions_follow_the_umask(atomic: Atomic, kind: str, tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        with atomic(tmp_path / "result") as temporary:
            temporary.write_text("x")
        assert os.umask(mask) == mask  # and the umask is what it was
    finally:
        os.umask(before)
    full = 0o666 if kind == "file" else 0o777
    assert stat.S_IMODE((tmp_path / "result").stat().st_mode) == full & ~mask


# ---- failure inside


def write_and_raise(opened: AbstractContextManager[Path], error: BaseException) -> None:
    with opened as temporary:
        temporary.write_text("half")
        raise error


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("existing", [False, True])
def test_an_exception_leaves_what_was_there(
    atomic: Atomic, tmp_path: Path, error: type[BaseException], existing: bool
) -> None:
    target = tmp_path / "result"
    if existing:
        with atomic(target) as temporary:
            temporary.write_text("old")
    before = everything(tmp_path)
    with pytest.raises(error):
        write_and_raise(atomic(target), error())
    assert everything(tmp_path) == before
    assert not existing or content(target) == "old"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_a_failed_run(atomic: Atomic, tmp_path: Path, number: int) -> None:
    target = tmp_path / "result"
    with atomic(target) as temporary:
        temporary.write_text("old")
    with pytest.raises(RunError, match="result: the disk is full; nothing half-written was left") as caught:
        write_and_raise(atomic(target), OSError(number, os.strerror(number)))
    assert isinstance(caught.value.__cause__, OSError)
    assert os.listdir(tmp_path) == ["result"]
    assert content(target) == "old"


def test_a_disk_full_from_the_start_leaves_nothing(
    atomic: Atomic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for make in ("mkstemp", "mkdtemp"):
        monkeypatch.setattr(f"tempfile.{make}", failing(errno.ENOSPC))
    with pytest.raises(RunError, match="the disk is full"), atomic(tmp_path / "result"):
        pytest.fail("there was nowhere to write")
    assert everything(tmp_path) == []


@pytest.mark.parametrize("after", [0, 1])
def test_a_rename_that_fails_brings_the_old_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    with folder_of_one(tmp_path / "out") as temporary:
        temporary.write_text("old")
    real, fail = os.replace, failing(errno.EIO, after)
    failed = []

    def replace(a: Path, b: Path) -> None:
        if failed:  # the way back works
            return real(a, b)
        try:
            fail(a, b)
        except OSError:
            failed.append(b)
            raise

    monkeypatch.setattr("os.replace", replace)
    with pytest.raises(InputError, match="cannot be written"), folder_of_one(tmp_path / "out") as temporary:
        temporary.write_text("new")
    assert len(failed) == 1
    assert everything(tmp_path) == ["out", "out/marker"]
    assert content(tmp_path / "out") == "old"


def test_what_cannot_be_put_back_is_not_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with folder_of_one(tmp_path / "out") as temporary:
        temporary.write_text("old")
    monkeypatch.setattr("os.replace", failing(errno.EIO, after=1))
    with pytest.raises(InputError, match="cannot be written"), folder_of_one(tmp_path / "out") as temporary:
        temporary.write_text("new")
    assert [p.read_text() for p in tmp_path.rglob("marker")] == ["old"]


# ---- wrong places


def test_a_folder_of_something_else_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").write_text("years of work")
    (tmp_path / "note").write_text("a file")
    for name in ("thesis", "note"):
        message = f"output.folder = .*{name}'?: is in use and holds no marker; name a new or empty folder"
        with pytest.raises(InputError, match=message), folder_of_one(tmp_path / name):
            pytest.fail("refused before any work")
    assert everything(tmp_path) == ["note", "thesis", "thesis/chapter"]
    assert (tmp_path / "thesis" / "chapter").read_text() == "years of work"


def test_a_file_does_not_replace_a_folder(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError, match="cannot be written"), atomic_file(tmp_path / "out") as temporary:
        temporary.write_text("new")
    assert everything(tmp_path) == ["out"]


@pytest.mark.parametrize("place", ["file/result", "x" * 300])
def test_a_place_that_cannot_be_written_is_refused_in_one_line(atomic: Atomic, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("in the way")
    for attempt in (atomic, check_writable):
        with pytest.raises(InputError, match=r"output\.folder = .*cannot be written \(.+\); name another"):
            with_nothing_inside(attempt, tmp_path / place)
    assert everything(tmp_path) == ["file"]


def with_nothing_inside(attempt: Callable[[Path], object], path: Path) -> None:
    opened = attempt(path)
    if opened is not None:
        with opened:
            pytest.fail("refused before any work")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EPERM])
def test_a_forbidden_place_is_the_users_to_change(
    atomic: Atomic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Simulated: the tests may run as root, whom no permission stops."""
    for make in ("mkstemp", "mkdtemp", "TemporaryFile"):
        monkeypatch.setattr(f"tempfile.{make}", failing(number))
    for attempt in (atomic, check_writable):
        with pytest.raises(InputError, match=os.strerror(number)):
            with_nothing_inside(attempt, tmp_path / "result")


@pytest.fixture
def forbidden(tmp_path: Path) -> Iterator[Path]:
    """A folder this process may not enter. No permission stops root, so root becomes nobody for a while."""
    (tmp_path / "locked").mkdir(mode=0o000)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield tmp_path / "locked"
    finally:
        if root:
            os.seteuid(0)
        (tmp_path / "locked").chmod(0o700)


def test_a_folder_that_may_not_be_entered_is_refused(atomic: Atomic, forbidden: Path) -> None:
    for attempt in (atomic, check_writable):
        with pytest.raises(InputError, match=r"cannot be written \(Permission denied\)"):
            with_nothing_inside(attempt, forbidden / "result")


def test_an_error_without_a_number_is_still_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the writer's own words"), atomic_file(tmp_path / "x"):
        raise OSError("the writer's own words")


def test_checking_leaves_nothing_but_the_folder(tmp_path: Path) -> None:
    check_writable(tmp_path / "a" / "b")
    check_writable(tmp_path / "a" / "b")
    assert everything(tmp_path) == ["a", "a/b"]
