"""What a node does at every look: files are read whatever happens, and each thing is said once."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from confide.base.descriptors import Reserve
from confide.deploy.keys import certificates
from confide.deploy.keys.authority import CRL, Authority
from confide.deploy.keys.lists import Lists
from confide.deploy.keys.node_keys import NodeKeys
from confide.deploy.node import watch as watching
from confide.deploy.node.observing import Observer
from confide.deploy.node.trust import Source, Trust
from confide.deploy.node.watch import DAY, Daily, Watch


class Node:
    """A watch over the files of a client, and what it told."""

    def __init__(self, folder: Path, days: int = 365) -> None:
        self.alpha = Authority.create(folder / "alpha")
        self.alpha.issue("client", "c0", days=days)
        self.prefix, self.lists = self.alpha.folder / "client-c0", folder / "record.lists"
        self.told: list[tuple[str, Mapping[str, Any]]] = []
        self.revoked: list[Mapping[str, frozenset[int]]] = []
        observer = Observer()
        observer.hooks.append(lambda event, fields: self.told.append((event, fields)))
        files = self.alpha.folder / "ca.crt", self.alpha.folder / CRL
        trust = Trust.load([Source("alpha", *files, ("authority", "crl"))], Lists(self.lists))
        keys = NodeKeys.load(self.prefix)
        self.watch = Watch(keys, trust, self.prefix, None, observer, lambda _, now: self.revoked.append(now.revoked))

    def events(self, kind: str) -> list[Mapping[str, Any]]:
        return [fields for event, fields in self.told if event == kind]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@contextmanager
def no_descriptors() -> Iterator[None]:
    """This process has as many open as it may."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, before[1]))
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_lists_are_read_although_descriptors_run_out(node: Node) -> None:
    entry = node.alpha.revoke(node.alpha.issue("client", "stolen").name)[0]
    with no_descriptors():
        with pytest.raises(OSError, match="Too many open files"):
            node.prefix.with_suffix(".crt").read_bytes()
        for _ in range(2):
            node.watch.look()
    assert node.revoked[-1]["alpha"] == {int(entry.serial, 16)}
    assert not node.events("reload failed")
    assert node.lists.exists()


def test_a_reserve_takes_back_what_it_lent() -> None:
    open_before = len(os.listdir("/proc/self/fd"))
    reserve = Reserve(3)
    for _ in range(2):
        with reserve:
            assert len(os.listdir("/proc/self/fd")) == open_before
        assert len(os.listdir("/proc/self/fd")) == open_before + 3
    reserve.__enter__()


def test_a_key_that_cannot_be_read_does_not_hide_who_was_revoked(node: Node) -> None:
    entry = node.alpha.revoke(node.alpha.issue("client", "stolen").name)[0]
    node.prefix.with_suffix(".key").chmod(0o644)
    node.watch.look()
    assert node.revoked[-1]["alpha"] == {int(entry.serial, 16)}
    node.watch.look()
    (failed,) = node.events("reload failed")  # once, not at every look
    assert "chmod 600" in failed["why"]
    node.prefix.with_suffix(".key").chmod(0o600)
    node.watch.look()
    node.prefix.with_suffix(".key").chmod(0o644)
    node.watch.look()
    assert len(node.events("reload failed")) == 2


def test_what_ends_soon_is_said_once_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moment = 0.0
    monkeypatch.setattr(watching, "Daily", lambda: Daily(lambda: moment))
    node = Node(tmp_path, days=20)
    for _ in range(3):
        node.watch.look()
    assert [said["certificate"] for said in node.events("expires")] == ["client-c0"]
    moment = DAY
    for _ in range(3):
        node.watch.look()
    assert len(node.events("expires")) == 2


def test_a_list_that_ends_is_told_before_and_counts_no_more_after(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    start = certificates.utc_now()
    for days, said in ((0, 0), (26, 1)):
        _later(monkeypatch, start + timedelta(days=days))
        node.watch.look()
        assert len(node.events("expires")) == said
        assert "alpha" in node.revoked[-1]
    _later(monkeypatch, start + timedelta(days=31))
    node.watch.look()
    assert node.revoked[-1] == {}
    assert node.events("reload failed")[-1]["effect"] == "the nodes of alpha are refused"


def _later(monkeypatch: pytest.MonkeyPatch, moment: Any) -> None:
    from confide.deploy.keys import lists
    from confide.deploy.node import trust

    for module in (certificates, lists, trust, watching):
        monkeypatch.setattr(module, "utc_now", lambda: moment)
