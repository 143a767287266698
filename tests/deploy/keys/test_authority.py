"""An authority issues, renews and revokes for its own nodes only, and its index is believed only whole."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from confide.base import durable_files
from confide.base.errors import InputError
from confide.deploy.keys.authentication import authenticate, load_revoked
from confide.deploy.keys.authority import Authority
from confide.deploy.keys.certificates import Peer, RefusedPeer
from confide.deploy.keys.node_keys import NodeKeys
from patience import LIMIT


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _check(authority: Authority, data: bytes, revoked: frozenset[int] = frozenset()) -> Peer:
    return authenticate(data, {authority.org: authority.certificate}, {authority.org: revoked}, authority.clock())


# --- what is made ---


def test_an_authority_is_its_owners_alone_and_never_replaced(alpha: Authority) -> None:
    ca = x509.load_pem_x509_certificate((alpha.folder / "ca.crt").read_bytes())
    assert _mode(alpha.folder) == 0o700
    assert _mode(alpha.folder / "ca.key") == 0o600
    constraints = ca.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.value.ca, constraints.value.path_length, constraints.critical) == (True, 0, True)
    assert alpha.fingerprint == ca.fingerprint(hashes.SHA256()).hex() == Authority.open(alpha.folder).fingerprint
    with pytest.raises(InputError, match="exists"):
        Authority.create(alpha.folder)
    assert sorted(p.name for p in alpha.folder.parent.iterdir()) == ["alpha"]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_files_have_their_modes_whatever_the_umask(alpha: Authority, umask: int) -> None:
    before = os.umask(umask)
    try:
        alpha.issue("server", "one")
        alpha.issue("client", "c1")
    finally:
        os.umask(before)
    modes = {p.name: _mode(p) for p in alpha.folder.iterdir() if p.name[:6] in ("server", "client")}
    secret = {f"server-one{s}": 0o600 for s in (".key", ".identity", ".exchange")}
    secret |= {f"client-c1{s}": 0o600 for s in (".key", ".identity")}
    assert modes == secret | {"server-one.crt": 0o644, "client-c1.crt": 0o644}


def test_a_secret_is_never_readable_by_others_not_even_while_it_is_written(
    alpha: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    flush = durable_files.flush

    def watch(file: Any, data: bytes) -> None:
        if b"PRIVATE" in data:
            seen.append(stat.S_IMODE(os.fstat(file.fileno()).st_mode))
        flush(file, data)

    monkeypatch.setattr(durable_files, "flush", watch)
    alpha.issue("server", "one")
    assert seen == [0o600] * 3


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("role", ("servre", "x", {})),
        *(("name", ("client", name, {})) for name in ("", "A", "a_b", "../x", "-a", "a-", "a" * 64, "a\n", "ä")),
        ("days", ("client", "x", {"days": 0})),
        ("days", ("client", "x", {"days": 3651})),
        ("host", ("client", "x", {"hosts": ["a.example"]})),
        *(
            ("host", ("server", "x", {"hosts": [h]}))
            for h in ("", "a b", "a:80", "*.x", "300.1.2.3", "fe80::1%eth0", "a" * 64, "x\n", "ä.de", "a..b")
        ),
    ],
)
def test_bad_input_is_named_and_leaves_nothing(alpha: Authority, field: str, arguments: Any) -> None:
    role, name, options = arguments
    before = sorted(alpha.folder.iterdir())
    with pytest.raises(InputError) as e:
        alpha.issue(role, name, **options)
    assert e.value.field == field
    assert [p for p in sorted(alpha.folder.iterdir()) if p.name != ".lock"] == before
    assert alpha.entries() == ()


def test_no_certificate_outlives_its_authority(alpha: Authority) -> None:
    now = alpha.clock()
    old = Authority.open(alpha.folder, lambda: now + timedelta(days=3600))
    with pytest.raises(InputError, match="ends on"):
        old.issue("client", "x", days=365)
    old.issue("client", "x", days=50)


def test_a_name_is_one_nodes(alpha: Authority) -> None:
    alpha.issue("server", "one")
    for role in ("server", "client"):
        with pytest.raises(InputError, match="renew alpha one"):
            alpha.issue(role, "one")


def test_states(alpha: Authority) -> None:
    now = alpha.clock()
    entry = alpha.issue("client", "c1", days=100)
    at = [entry.state(now + timedelta(days=d)) for d in (0, 69, 70, 99, 100)]
    assert at == ["valid", "valid", "expires soon", "expires soon", "expired"]
    assert alpha.revoke("c1")[0].state(now) == "revoked"


# --- renewing and revoking ---


def test_a_renewal_keeps_the_identity_and_the_hosts_and_changes_the_rest(alpha: Authority) -> None:
    now = alpha.clock()
    old = alpha.issue("server", "one", hosts=["a.example"])
    before = NodeKeys.load(alpha.folder / "server-one")
    new = alpha.renew("one", days=30)
    after = NodeKeys.load(alpha.folder / "server-one")
    assert (new.identity, new.exchange_key, new.hosts) == (old.identity, old.exchange_key, old.hosts)
    assert after.key != before.key
    assert after.serial != before.serial
    assert after.identity.public == before.identity.public
    revoked = load_revoked(alpha.folder / "crl.pem", alpha.certificate, now).serials
    assert revoked == {before.serial}
    assert _check(alpha, after.certificate, revoked=revoked).serial == after.serial
    with pytest.raises(RefusedPeer, match="revoked"):
        _check(alpha, before.certificate, revoked=revoked)


def test_a_renewal_needs_no_secret_of_the_node(alpha: Authority) -> None:
    entry = alpha.issue("server", "one")
    for path in alpha.folder.glob("server-one.*"):
        path.unlink()  # moved to the server's machine
    assert alpha.renew("one").identity == entry.identity
    assert sorted(p.name for p in alpha.folder.glob("server-one.*")) == ["server-one.crt", "server-one.key"]


def test_a_renewal_can_keep_the_old_certificate_until_both_are_revoked(alpha: Authority) -> None:
    now = alpha.clock()
    old, new = alpha.issue("client", "c1"), alpha.renew("c1", keep=True)
    assert load_revoked(alpha.folder / "crl.pem", alpha.certificate, now).serials == frozenset()
    assert alpha.revoke(old.serial)[0].serial == old.serial
    assert [e.revoked is None for e in alpha.entries()] == [False, True]
    assert [e.serial for e in alpha.revoke("c1")] == [new.serial]


def test_what_is_revoked_is_neither_revoked_again_nor_renewed_but_issued_with_a_new_identity(alpha: Authority) -> None:
    old = alpha.issue("client", "c1")
    alpha.revoke("c1")
    for again in (alpha.revoke, alpha.renew):
        with pytest.raises(InputError, match="is revoked"):
            again("c1")
        with pytest.raises(InputError, match="never issued"):
            again("c2")
    assert alpha.issue("client", "c1").identity != old.identity
    NodeKeys.load(alpha.folder / "client-c1")


# --- the index ---


def test_an_index_restored_from_an_old_copy_does_not_reinstate_what_was_revoked(alpha: Authority) -> None:
    alpha.issue("client", "c1")
    old = (alpha.folder / "index.json").read_bytes()
    alpha.revoke("c1")
    (alpha.folder / "index.json").write_bytes(old)
    with pytest.raises(InputError, match="old copy"):
        alpha.entries()


@pytest.mark.parametrize(
    "change",
    [
        {"serial": "12"},
        {"serial": 12},
        {"role": "admin"},
        {"name": "../x"},
        {"not_after": "soon"},
        {"not_after": "2030-01-01T00:00:00"},
        {"revoked": 3},
        {"identity": "ab"},
        {"exchange_key": None},
        {"hosts": 3},
        {"more": 1},
    ],
)
def test_a_row_of_the_index_is_checked(alpha: Authority, change: dict[str, Any]) -> None:
    alpha.issue("server", "one")
    path = alpha.folder / "index.json"
    table = json.loads(path.read_text())
    table["certificates"][0] |= change
    path.write_text(json.dumps(table))
    with pytest.raises(InputError) as e:
        alpha.entries()
    assert e.value.field == "index"


def test_many_processes_issue_at_once(tmp_path: Path) -> None:
    Authority.create(tmp_path / "alpha")
    program = (
        "import sys; from confide.deploy.keys import authority\n"
        f"authority.LOCK_SECONDS = {LIMIT}\n"
        "a = authority.Authority.open(sys.argv[1])\n"
        "for n in range(8): a.issue('client', f'{sys.argv[2]}-{n}')"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "alpha")]
    running = [subprocess.Popen([*command, f"p{n}"]) for n in range(4)]
    assert [p.wait(LIMIT) for p in running] == [0] * 4
    entries = Authority.open(tmp_path / "alpha").entries()
    assert {e.name for e in entries} == {f"p{p}-{n}" for p in range(4) for n in range(8)}
    assert len({e.serial for e in entries}) == len({e.identity for e in entries}) == 32


def test_a_lock_that_is_held_too_long_is_told(alpha: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("confide.deploy.keys.authority.LOCK_SECONDS", 0.05)
    with alpha._locked(), pytest.raises(InputError, match="another process"):
        alpha.entries()


def test_an_index_of_before_requests_is_read(alpha: Authority) -> None:
    alpha.issue("client", "c1")
    path = alpha.folder / "index.json"
    table = json.loads(path.read_text())
    del table["certificates"][0]["requested"]
    path.write_text(json.dumps(table | {"format": 1}))
    assert [entry.requested for entry in alpha.entries()] == [False]
    alpha.issue("client", "c2")
    assert json.loads(path.read_text())["format"] == 2
