"""No interruption of an authority leaves half a node, or half an authority."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from confide.base.errors import RunError
from confide.deploy.keys.authentication import authenticate, load_revoked
from confide.deploy.keys.authority import Authority
from confide.deploy.keys.node_keys import NodeKeys

NOW = datetime(2030, 6, 1, 12, tzinfo=UTC)


class Killed(BaseException):
    """The process ends here: nothing that comes after is done, not even in a `finally`."""


STEPS = ("mkdir", "open", "fsync", "fchmod", "replace", "rename", "rmdir", "unlink")


def _dies_at(monkeypatch: pytest.MonkeyPatch, step: int, error: BaseException, dead: bool) -> Callable[[], bool]:
    """Lets the call of number `step` to the disk fail, and if `dead` every later one."""
    count, opening = 0, os.open

    def wrap(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            if real is opening and not args[1] & os.O_CREAT:  # reading changes nothing, and a full disk allows it
                return real(*args, **kwargs)
            count += 1
            if count == step or (dead and count > step):
                raise error
            return real(*args, **kwargs)

        return call

    for name in STEPS:
        monkeypatch.setattr(os, name, wrap(getattr(os, name)))
    return lambda: count >= step


ERRORS = {
    "Ctrl-C": (KeyboardInterrupt(), False),
    "full disk": (OSError(errno.ENOSPC, "No space left on device"), False),
    "kill -9": (Killed(), True),
}


def _whole(folder: Path) -> Authority:
    """The authority, after the checks that hold whatever happened to it."""
    authority = Authority.open(folder, lambda: NOW)
    entries = authority.entries()
    live = {e.prefix: e for e in entries if e.revoked is None}
    files = {p.stem for p in folder.iterdir() if p.suffix in (".crt", ".key", ".identity", ".exchange")} - {"ca"}
    assert files == {e.prefix for e in entries}
    assert not list(folder.glob(".pending-*"))
    revoked = load_revoked(folder / "crl.pem", authority.certificate, NOW).serials
    assert revoked == {int(e.serial, 16) for e in entries if e.revoked is not None}
    for prefix, entry in live.items():
        node = NodeKeys.load(folder / prefix)
        assert f"{node.serial:040x}" == entry.serial
        authenticate(node.certificate, {"alpha": authority.certificate}, {"alpha": revoked}, NOW)
    return authority


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize(
    ("what", "arguments"), [("issue", ("server", "new")), ("renew", ("one",)), ("revoke", ("one",))]
)
def test_no_interruption_leaves_half_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, what: str, arguments: tuple[str, ...]
) -> None:
    error, dead = ERRORS[kind]
    outcomes = set()
    first = Authority.create(tmp_path / "alpha", lambda: NOW)
    first.issue("client", "c1")
    first.issue("server", "one")
    for step in range(1, 200):
        folder = tmp_path / str(step) / "alpha"
        alpha = Authority.open(shutil.copytree(first.folder, folder), lambda: NOW)
        with monkeypatch.context() as m:
            reached = _dies_at(m, step, error, dead)
            expected = RunError if kind == "full disk" else type(error)
            with suppress(expected):
                getattr(alpha, what)(*arguments)
            interrupted = reached()
        entries = _whole(folder).entries()
        outcomes.add((len(entries), sum(e.revoked is not None for e in entries)))
        if not interrupted:
            break
    done = {"issue": (3, 0), "renew": (3, 1), "revoke": (2, 1)}[what]
    assert outcomes == {(2, 0), done}  # before or after, and nothing between


@pytest.mark.parametrize("kind", ["Ctrl-C", "full disk"])
def test_no_interruption_leaves_half_an_authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    for step in range(1, 100):
        folder = tmp_path / str(step) / "alpha"
        with monkeypatch.context() as m:
            reached = _dies_at(m, step, ERRORS[kind][0], False)
            with suppress(KeyboardInterrupt, RunError):
                Authority.create(folder, lambda: NOW)
            if not reached():
                return
        if folder.exists():
            _whole(folder)
        elif folder.parent.exists():
            assert list(folder.parent.iterdir()) == []
    raise AssertionError("never ended")
