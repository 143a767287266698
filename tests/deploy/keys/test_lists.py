"""A list of revoked certificates is replaced by newer ones alone, also after a start."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import pytest

from confide.base.errors import InputError
from confide.deploy.keys.authentication import load_revoked
from confide.deploy.keys.authority import CRL, CRL_DAYS, Authority
from confide.deploy.keys.lists import Lists
from deploy.keys.conftest import NOW


@pytest.fixture
def path(alpha: Authority) -> Path:
    return alpha.folder / CRL


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return tmp_path / "store.db.lists"


def revoke(alpha: Authority, name: str) -> int:
    return int(alpha.revoke(alpha.issue("client", name).name)[0].serial, 16)


def test_an_older_list_over_a_newer_one_changes_nothing_across_starts(alpha: Authority, path: Path, own: Path) -> None:
    lists, older = Lists(own), path.read_bytes()
    held, trouble = lists.look("alpha", path, alpha.certificate, NOW)
    assert held is not None
    assert (held.serials, trouble) == (frozenset(), None)
    stolen = revoke(alpha, "c1")
    lists.look("alpha", path, alpha.certificate, NOW)
    lists.keep()
    path.write_bytes(older)
    for known in (lists, Lists(own)):  # and of a process that was started meanwhile
        held, trouble = known.look("alpha", path, alpha.certificate, NOW)
        assert held is not None
        assert held.serials == {stolen}
        assert trouble is not None
        assert "older than a list that this node has seen" in trouble.remedy
    assert own.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [None, b"", b"cut"])
def test_the_newest_list_counts_while_it_is_good_whatever_the_file_says(
    alpha: Authority, path: Path, own: Path, content: bytes | None
) -> None:
    lists, stolen = Lists(own), revoke(alpha, "c1")
    lists.look("alpha", path, alpha.certificate, NOW)
    if content is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:100] if content == b"cut" else content)
    held, trouble = lists.look("alpha", path, alpha.certificate, NOW)
    assert trouble is not None
    assert held is not None
    assert held.serials == {stolen}
    assert lists.look("alpha", path, alpha.certificate, NOW + timedelta(days=CRL_DAYS))[0] is None


def test_what_was_seen_is_not_written_before_it_is_kept(alpha: Authority, path: Path, own: Path) -> None:
    """`confide check` looks, and changes nothing."""
    lists = Lists(own)
    lists.look("alpha", path, alpha.certificate, NOW)
    assert not own.exists()
    lists.keep()
    written = own.stat().st_mtime_ns
    lists.look("alpha", path, alpha.certificate, NOW)
    lists.keep()
    assert own.stat().st_mtime_ns == written


def test_an_authority_whose_clock_went_back_numbers_on(
    alpha: Authority, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = load_revoked(path, alpha.certificate, NOW).number
    monkeypatch.setattr(time, "time_ns", lambda: 7)
    alpha.sign_crl()
    assert load_revoked(path, alpha.certificate, NOW).number == before + 1


def test_a_damaged_list_in_the_memory_is_named(alpha: Authority, path: Path, own: Path) -> None:
    lists = Lists(own)
    lists.look("alpha", path, alpha.certificate, NOW)
    lists.keep()
    own.write_text(own.read_text().replace("X509", "X5O9"))
    with pytest.raises(InputError, match=r"lists = .*no list of alpha.*remove this file"):
        Lists(own).look("alpha", path, alpha.certificate, NOW)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 2, "lists": {}}', '{"format": 1, "lists": {"a": 1}}'])
def test_a_damaged_memory_is_named(own: Path, text: str) -> None:
    own.write_text(text)
    with pytest.raises(InputError, match="is damaged"):
        Lists(own)
