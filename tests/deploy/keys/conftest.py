"""An authority on a clock that stands still, and two organisations of today."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from confide.deploy.keys.authentication import load_revoked
from confide.deploy.keys.authority import Authority

NOW = datetime(2030, 6, 1, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here cuts the power: to wait for the disk would only take time."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture
def alpha(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "alpha", lambda: NOW)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Two organisations with a server and a client each, made now: TLS libraries look at the real clock."""
    folder = tmp_path_factory.mktemp("world")
    made = {org: Authority.create(folder / org) for org in ("alpha", "beta")}
    for authority in made.values():
        authority.issue("server", "one")
        authority.issue("client", "c1")
    pem = (folder / "alpha" / "server-one.crt").read_bytes()
    return {
        "folder": folder,
        "authorities": {org: a.certificate for org, a in made.items()},
        "revoked": {org: load_revoked(a.folder / "crl.pem", a.certificate).serials for org, a in made.items()},
        "der": x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER),
        **made,
    }
