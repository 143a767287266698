"""Certificates: a node gets through its own door and no other, and no interruption leaves half a node."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import pickle
import shutil
import ssl
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import given, settings
from hypothesis import strategies as st

from confide import cli_pki
from confide.deploy import pki
from confide.deploy.pki import Authority, Node, Peer, RefusedPeer, authenticate, load_revoked
from confide.errors import InputError, RunError
from confide.secure.keys import signed_by

NOW = datetime(2030, 6, 1, 12, tzinfo=UTC)
Outcome = tuple[int, str, str]


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
    return {
        "folder": folder,
        "authorities": {org: a.certificate for org, a in made.items()},
        "revoked": {org: load_revoked(a.folder / "crl.pem", a.certificate) for org, a in made.items()},
        "der": _der(made["alpha"], "server-one"),
        **made,
    }


def _der(authority: Authority, prefix: str) -> bytes:
    pem = (authority.folder / f"{prefix}.crt").read_bytes()
    return x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _check(authority: Authority, data: bytes, now: datetime = NOW, revoked: frozenset[int] = frozenset()) -> Peer:
    return authenticate(data, {authority.org: authority.certificate}, {authority.org: revoked}, now)


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
    flush = pki._flush

    def watch(file: Any, data: bytes) -> None:
        if b"PRIVATE" in data:
            seen.append(stat.S_IMODE(os.fstat(file.fileno()).st_mode))
        flush(file, data)

    monkeypatch.setattr(pki, "_flush", watch)
    alpha.issue("server", "one")
    assert seen == [0o600] * 3


def test_a_node_loads_what_was_issued(alpha: Authority) -> None:
    entry = alpha.issue("server", "one", hosts=["Node.Example.org", "10.0.0.7", "::1"])
    node = Node.load(alpha.folder / "server-one")
    assert (node.org, node.role, node.name) == ("alpha", "server", "one")
    assert node.identity.public.hex() == entry.identity
    assert node.exchange is not None
    assert node.exchange.public.hex() == entry.exchange_key
    assert signed_by(node.identity.public, node.identity.sign(b"x"), b"x")
    assert f"{node.serial:040x}" == entry.serial
    names = x509.load_pem_x509_certificate(node.certificate).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert names.value.get_values_for_type(x509.DNSName) == [
        "node.example.org",
        "one.server.alpha.confide.internal",  # that only this node has, for who dials it
    ]
    assert list(map(str, names.value.get_values_for_type(x509.IPAddress))) == ["10.0.0.7", "::1"]
    alpha.issue("client", "c1")
    assert Node.load(alpha.folder / "client-c1").exchange is None


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
    old = Authority.open(alpha.folder, lambda: NOW + timedelta(days=3600))
    with pytest.raises(InputError, match="ends on"):
        old.issue("client", "x", days=365)
    old.issue("client", "x", days=50)


def test_a_name_is_one_nodes(alpha: Authority) -> None:
    alpha.issue("server", "one")
    for role in ("server", "client"):
        with pytest.raises(InputError, match="renew alpha one"):
            alpha.issue(role, "one")


def test_states(alpha: Authority) -> None:
    entry = alpha.issue("client", "c1", days=100)
    at = [entry.state(NOW + timedelta(days=d)) for d in (0, 69, 70, 99, 100)]
    assert at == ["valid", "valid", "expires soon", "expires soon", "expired"]
    assert alpha.revoke("c1")[0].state(NOW) == "revoked"


# --- renewing and revoking ---


def test_a_renewal_keeps_the_identity_and_the_hosts_and_changes_the_rest(alpha: Authority) -> None:
    old = alpha.issue("server", "one", hosts=["a.example"])
    before = Node.load(alpha.folder / "server-one")
    new = alpha.renew("one", days=30)
    after = Node.load(alpha.folder / "server-one")
    assert (new.identity, new.exchange_key, new.hosts) == (old.identity, old.exchange_key, old.hosts)
    assert after.key != before.key
    assert after.serial != before.serial
    assert after.identity.public == before.identity.public
    revoked = load_revoked(alpha.folder / "crl.pem", alpha.certificate, NOW)
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
    old, new = alpha.issue("client", "c1"), alpha.renew("c1", keep=True)
    assert load_revoked(alpha.folder / "crl.pem", alpha.certificate, NOW) == frozenset()
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
    Node.load(alpha.folder / "client-c1")


def test_a_crl_is_believed_only_if_its_authority_signed_it_and_it_is_fresh(alpha: Authority, tmp_path: Path) -> None:
    beta = Authority.create(tmp_path / "beta", lambda: NOW)
    entry = alpha.issue("client", "c1")
    alpha.revoke("c1")
    path = alpha.folder / "crl.pem"
    assert load_revoked(path, alpha.certificate, NOW + timedelta(days=29)) == {int(entry.serial, 16)}
    for ca, now, why in (
        (beta.certificate, NOW, "not signed"),
        (alpha.certificate, NOW + timedelta(days=30), "replaced by"),
        (alpha.certificate, NOW - timedelta(hours=1), "future"),
        (b"nonsense", NOW, "no certificate"),
        ((alpha.folder / "client-c1.crt").read_bytes(), NOW, "a node's"),
    ):
        with pytest.raises(InputError, match=why):
            load_revoked(path, ca, now)
    namesake = Authority.create(tmp_path / "other" / "alpha", lambda: NOW)
    with pytest.raises(InputError, match="not signed"):
        load_revoked(path, namesake.certificate, NOW)
    with pytest.raises(InputError, match="cannot be opened"):
        load_revoked(tmp_path / "none.pem", alpha.certificate, NOW)
    later = Authority.open(alpha.folder, lambda: NOW + timedelta(days=40))
    assert later.sign_crl() == NOW + timedelta(days=70)
    assert load_revoked(path, alpha.certificate, NOW + timedelta(days=69)) == {int(entry.serial, 16)}


def test_no_flipped_bit_gets_into_a_crl(alpha: Authority) -> None:
    alpha.issue("client", "c1")
    alpha.revoke("c1")
    path = alpha.folder / "crl.pem"
    whole = load_revoked(path, alpha.certificate, NOW)
    text = path.read_bytes()
    for at in range(len(text)):
        path.write_bytes(text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :])
        with suppress(InputError):
            assert load_revoked(path, alpha.certificate, NOW) == whole  # only what PEM does not care about


def test_an_index_restored_from_an_old_copy_does_not_reinstate_what_was_revoked(alpha: Authority) -> None:
    alpha.issue("client", "c1")
    old = (alpha.folder / "index.json").read_bytes()
    alpha.revoke("c1")
    (alpha.folder / "index.json").write_bytes(old)
    with pytest.raises(InputError, match="old copy"):
        alpha.entries()


# --- at the door ---


@pytest.mark.parametrize("role", ["server", "client"])
def test_a_peer_is_known_by_its_certificate_in_pem_or_der(alpha: Authority, role: str) -> None:
    entry = alpha.issue(role, "n1")
    pem = (alpha.folder / f"{role}-n1.crt").read_bytes()
    expected = Peer("alpha", role, "n1", bytes.fromhex(entry.identity), int(entry.serial, 16))
    assert _check(alpha, pem) == _check(alpha, _der(alpha, f"{role}-n1")) == expected


def test_the_reasons_of_a_refusal(alpha: Authority, tmp_path: Path) -> None:
    beta = Authority.create(tmp_path / "beta", lambda: NOW)
    entry = alpha.issue("client", "c1", days=10)
    pem = (alpha.folder / "client-c1.crt").read_bytes()
    mine, nobody = {"alpha": alpha.certificate}, {"alpha": frozenset[int]()}
    namesake = Authority.create(tmp_path / "other" / "alpha", lambda: NOW)
    cases: list[tuple[str, Any, Any, datetime]] = [
        ("no authority of alpha", {"beta": beta.certificate}, nobody, NOW),
        ("did not sign", {"alpha": namesake.certificate}, nobody, NOW),
        ("another organisation's", {"alpha": beta.certificate}, nobody, NOW),
        ("no certificate of an authority", {"alpha": b"x"}, nobody, NOW),
        ("a node's certificate", {"alpha": pem}, nobody, NOW),
        ("has expired; renew", mine, nobody, NOW + timedelta(days=10)),
        ("authority of alpha has expired or", mine, nobody, NOW + timedelta(days=4000)),
        ("no list of revoked", mine, {}, NOW),
        ("was revoked", mine, {"alpha": frozenset([int(entry.serial, 16)])}, NOW),
    ]
    for why, authorities, revoked, now in cases:
        with pytest.raises(RefusedPeer, match=why):
            authenticate(pem, authorities, revoked, now)
    later = Authority.open(alpha.folder, lambda: NOW + timedelta(days=1))
    later.issue("client", "c2")
    with pytest.raises(RefusedPeer, match="not yet valid"):
        _check(alpha, _der(alpha, "client-c2"))


def test_an_authority_does_not_vouch_for_another_organisation(alpha: Authority, tmp_path: Path) -> None:
    beta = Authority.create(tmp_path / "beta", lambda: NOW)
    index = json.loads((alpha.folder / "index.json").read_text())
    (alpha.folder / "index.json").write_text(json.dumps(index | {"organisation": "beta"}))
    replace(alpha, org="beta").issue("server", "evil")  # alpha's key signs confide://beta/server/evil
    authorities = {"alpha": alpha.certificate, "beta": beta.certificate}
    with pytest.raises(RefusedPeer, match="authority of beta did not sign"):
        authenticate(_der(alpha, "server-evil"), authorities, {"alpha": frozenset(), "beta": frozenset()}, NOW)


def _forged(alpha: Authority, **changes: Any) -> bytes:
    """What alpha's key signs when it is in other hands than our code's; a change to None leaves an extension out."""
    key = ec.generate_private_key(ec.SECP256R1())
    signer = load_pem_private_key((alpha.folder / "ca.key").read_bytes(), None)
    ca = x509.load_pem_x509_certificate(alpha.certificate)
    identity = Ed25519PrivateKey.generate().public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    parts: dict[str, Any] = {
        "constraints": x509.BasicConstraints(ca=False, path_length=None),
        "usage": pki._key_usage(authority=False),
        "extended": x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]),
        "names": x509.SubjectAlternativeName([x509.UniformResourceIdentifier("confide://alpha/client/c1")]),
        "identity": x509.UnrecognizedExtension(pki.IDENTITY_OID, identity),
        "other": None,
    } | changes
    builder = x509.CertificateBuilder(
        ca.subject, ca.subject, key.public_key(), 7, NOW - timedelta(days=1), NOW + timedelta(days=1)
    )
    for name, extension in parts.items():
        if extension is not None:
            builder = builder.add_extension(extension, critical=name == "other")
    return builder.sign(signer, hashes.SHA256()).public_bytes(Encoding.DER)


def _names(*uris: str) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName([x509.DNSName("a"), *map(x509.UniformResourceIdentifier, uris)])


P256 = (
    ec.generate_private_key(ec.SECP256R1()).public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
)
CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH


@pytest.mark.parametrize(
    ("why", "changes"),
    [
        ("an authority's", {"constraints": x509.BasicConstraints(ca=True, path_length=None)}),
        ("malformed", {"constraints": None}),
        ("not for the use", {"usage": pki._key_usage(authority=True)}),
        ("malformed", {"usage": None}),
        ("not for the use of a client", {"extended": x509.ExtendedKeyUsage([SERVER])}),
        ("not for the use of a client", {"extended": x509.ExtendedKeyUsage([SERVER, CLIENT])}),
        ("not for the use of a server", {"names": _names("confide://alpha/server/c1")}),
        ("malformed", {"extended": None}),
        ("no address", {"names": None}),
        ("one address", {"names": _names()}),
        ("one address", {"names": _names("confide://alpha/client/a", "confide://alpha/client/b")}),
        ("one address", {"names": _names("confide://alpha/admin/a")}),
        ("one address", {"names": _names("confide://alpha/client/a/b")}),
        ("one address", {"names": _names("confide://alpha/client/a\n")}),
        ("one address", {"names": _names("https://alpha/client/a")}),
        ("binds no identity", {"identity": None}),
        ("not an Ed25519", {"identity": x509.UnrecognizedExtension(pki.IDENTITY_OID, P256)}),
        ("malformed", {"identity": x509.UnrecognizedExtension(pki.IDENTITY_OID, bytes(32))}),
        ("not understood", {"other": x509.UnrecognizedExtension(x509.ObjectIdentifier("2.25.1"), b"\x05\x00")}),
    ],
)
def test_a_certificate_that_the_authority_did_sign_must_still_be_a_nodes(
    alpha: Authority, why: str, changes: dict[str, Any]
) -> None:
    assert _check(alpha, _forged(alpha)).name == "c1"  # the forger's tools are right
    with pytest.raises(RefusedPeer, match=why):
        _check(alpha, _forged(alpha, **changes))


def test_the_authoritys_own_certificate_is_no_peer(alpha: Authority) -> None:
    with pytest.raises(RefusedPeer):
        _check(alpha, alpha.certificate)


def _refused(world: dict[str, Any], data: bytes) -> None:
    with pytest.raises(RefusedPeer):
        authenticate(data, world["authorities"], world["revoked"], pki.utc_now())


def test_every_flipped_bit_is_refused(world: dict[str, Any]) -> None:
    der = world["der"]
    assert authenticate(der, world["authorities"], world["revoked"], pki.utc_now()).name == "one"
    for at in range(len(der)):
        for bit in range(8):
            _refused(world, der[:at] + bytes([der[at] ^ 1 << bit]) + der[at + 1 :])


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_mutated_certificates_are_refused_and_nothing_else_is_raised(
    world: dict[str, Any], data: st.DataObject
) -> None:
    der = bytearray(world["der"])
    start = data.draw(st.integers(0, len(der)), "start")
    end = data.draw(st.integers(start, min(len(der), start + 40)), "end")
    other = data.draw(st.binary(max_size=40), "in its place")
    changed = bytes(der[:start]) + other + bytes(der[end:])
    if changed != der:
        _refused(world, changed)


def _tlv(tag: int, content: bytes) -> bytes:
    size = len(content)
    return bytes([tag, *([size] if size < 128 else [0x82, size >> 8, size & 255])]) + content


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_whatever_an_authority_signs_nothing_else_is_raised(world: dict[str, Any], data: st.DataObject) -> None:
    cert = x509.load_der_x509_certificate(world["der"])
    body = bytearray(cert.tbs_certificate_bytes)
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    signature = world["alpha"]._key.sign(bytes(body), ec.ECDSA(hashes.SHA256()))
    ecdsa_with_sha256 = bytes.fromhex("300a06082a8648ce3d040302")
    forged = _tlv(0x30, bytes(body) + ecdsa_with_sha256 + _tlv(3, b"\0" + signature))
    with suppress(RefusedPeer):
        assert authenticate(forged, world["authorities"], world["revoked"], pki.utc_now()).org == "alpha"


@settings(max_examples=200, deadline=None)
@given(junk=st.binary(max_size=600), pem=st.booleans())
def test_bytes_that_are_no_certificate_are_refused(world: dict[str, Any], junk: bytes, pem: bool) -> None:
    _refused(world, b"-----BEGIN CERTIFICATE-----\n" + junk if pem else junk)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_mutated_pem_is_refused_or_still_the_same_certificate(world: dict[str, Any], data: st.DataObject) -> None:
    pem = (world["alpha"].folder / "server-one.crt").read_bytes()
    at = data.draw(st.integers(0, len(pem) - 1))
    changed = pem[:at] + data.draw(st.binary(max_size=3)) + pem[at + 1 :]
    with suppress(RefusedPeer):
        peer = authenticate(changed, world["authorities"], world["revoked"], pki.utc_now())
        assert peer == authenticate(world["der"], world["authorities"], world["revoked"], pki.utc_now())


# --- files ---


@pytest.mark.parametrize("name", ["server-one.key", "server-one.identity", "server-one.exchange", "ca.key"])
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_key_that_others_can_read_is_refused_with_the_remedy(alpha: Authority, name: str, mode: int) -> None:
    alpha.issue("server", "one")
    path = alpha.folder / name
    path.chmod(mode)
    with pytest.raises(InputError, match=f"chmod 600 {path}"):
        Authority.open(alpha.folder) if name == "ca.key" else Node.load(alpha.folder / "server-one")


@pytest.mark.parametrize(
    "name", ["one.crt", "one.key", "one.identity", "one.exchange", "ca.key", "ca.crt", "index.json"]
)
@pytest.mark.parametrize("content", [b"", b"\xff\x00", b"{}", b"cut", b"another", None])
def test_a_damaged_or_missing_file_is_named(alpha: Authority, name: str, content: bytes | None) -> None:
    alpha.issue("server", "one")
    alpha.issue("server", "two")
    path = alpha.folder / (f"server-{name}" if name.startswith("one") else name)
    if content is None:
        path.unlink()
    else:
        cut = path.read_bytes()[: path.stat().st_size // 2]
        other = (alpha.folder / "server-two.identity").read_bytes()
        path.write_bytes({b"cut": cut, b"another": other}.get(content, content))
    with pytest.raises(InputError) as e:
        (Authority.open(alpha.folder).entries(), Node.load(alpha.folder / "server-one"))
    assert str(alpha.folder) in str(e.value.value)
    assert "PRIVATE" not in str(e.value)


def test_keys_of_another_node_are_not_taken_for_ones_own(alpha: Authority) -> None:
    for name in ("one", "two"):
        alpha.issue("server", name)
    for suffix in ("key", "identity"):
        path = alpha.folder / f"server-one.{suffix}"
        mine = path.read_bytes()
        path.write_bytes((alpha.folder / f"server-two.{suffix}").read_bytes())
        with pytest.raises(InputError, match=r"does not belong to server-one\.crt"):
            Node.load(alpha.folder / "server-one")
        path.write_bytes(mine)
    Node.load(alpha.folder / "server-one")


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


def test_secrets_do_not_print(alpha: Authority) -> None:
    alpha.issue("server", "one")
    node = Node.load(alpha.folder / "server-one")
    for thing in (node, alpha, node.identity, node.exchange, node.key):
        for text in (repr(thing), str(thing), f"{thing}"):
            assert "PRIVATE" not in text
            assert "BEGIN" not in text
    with pytest.raises(TypeError):
        pickle.dumps(node)


# --- interruptions ---


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
    revoked = load_revoked(folder / "crl.pem", authority.certificate, NOW)
    assert revoked == {int(e.serial, 16) for e in entries if e.revoked is not None}
    for prefix, entry in live.items():
        node = Node.load(folder / prefix)
        assert f"{node.serial:040x}" == entry.serial
        _check(authority, node.certificate, revoked=revoked)
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


def test_many_processes_issue_at_once(tmp_path: Path) -> None:
    Authority.create(tmp_path / "alpha")
    program = (
        "import sys; from confide.deploy.pki import Authority\n"
        "a = Authority.open(sys.argv[1])\n"
        "for n in range(8): a.issue('client', f'{sys.argv[2]}-{n}')"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "alpha")]
    running = [subprocess.Popen([*command, f"p{n}"]) for n in range(4)]
    assert [p.wait(60) for p in running] == [0] * 4
    entries = Authority.open(tmp_path / "alpha").entries()
    assert {e.name for e in entries} == {f"p{p}-{n}" for p in range(4) for n in range(8)}
    assert len({e.serial for e in entries}) == len({e.identity for e in entries}) == 32


def test_a_lock_that_is_held_too_long_is_told(alpha: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pki, "LOCK_SECONDS", 0.05)
    with alpha._locked(), pytest.raises(InputError, match="another process"):
        alpha.entries()


# --- TLS ---


def _context(folder: Path, prefix: str | None, trusts: str, *, server: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(folder / trusts / "ca.crt")
    context.load_verify_locations(folder / trusts / "crl.pem")
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF | ssl.VERIFY_X509_STRICT
    if prefix:
        context.load_cert_chain(folder / f"{prefix}.crt", folder / f"{prefix}.key")
    return context


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> bytes:
    """A handshake in memory; returns the client's certificate as the server sees it."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        server.wrap_bio(up, down, server_side=True),
        client.wrap_bio(down, up, server_hostname="localhost"),
    ]
    for _ in range(10):
        for end in ends:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    seen = ends[0].getpeercert(binary_form=True)
    assert seen is not None
    return seen


def test_tls_between_two_nodes(world: dict[str, Any]) -> None:
    folder = world["folder"]
    for prefix, trusts in (("alpha/client-c1", "alpha"), ("beta/server-one", "beta")):
        listening = _context(folder, "alpha/server-one", trusts, server=True)
        seen = _handshake(listening, _context(folder, prefix, "alpha", server=False))
        peer = authenticate(seen, world["authorities"], world["revoked"], pki.utc_now())
        assert f"{peer.org}/{peer.role}-{peer.name}" == prefix


@pytest.mark.parametrize(
    ("why", "listens", "calls", "trusted_by_caller"),
    [
        ("no certificate", "alpha/server-one", None, "alpha"),
        ("another organisation's client", "alpha/server-one", "beta/client-c1", "alpha"),
        ("another organisation's server", "beta/server-one", "alpha/client-c1", "alpha"),
        ("a client that plays the server", "alpha/client-c1", "alpha/client-c1", "alpha"),
    ],
)
def test_tls_refuses(world: dict[str, Any], why: str, listens: str, calls: str | None, trusted_by_caller: str) -> None:
    folder = world["folder"]
    listening = _context(folder, listens, "alpha", server=True)
    calling = _context(folder, calls, trusted_by_caller, server=False)
    with pytest.raises(ssl.SSLError):
        _handshake(listening, calling)


def test_tls_refuses_what_is_revoked(tmp_path: Path) -> None:
    alpha = Authority.create(tmp_path / "alpha")
    alpha.issue("server", "one")
    alpha.issue("client", "c1")
    calling = _context(tmp_path, "alpha/client-c1", "alpha", server=False)
    _handshake(_context(tmp_path, "alpha/server-one", "alpha", server=True), calling)
    alpha.revoke("c1")
    with pytest.raises(ssl.SSLError, match="revoked"):
        _handshake(_context(tmp_path, "alpha/server-one", "alpha", server=True), calling)


def test_grpc_between_two_nodes(world: dict[str, Any]) -> None:
    grpc = pytest.importorskip("grpc")
    folder, authorities = world["folder"], world["authorities"]
    listens = Node.load(folder / "alpha/server-one")

    async def whoami(request: bytes, context: Any) -> bytes:
        pem = context.auth_context()["x509_pem_cert"][0]
        peer = authenticate(pem, authorities, world["revoked"], pki.utc_now())
        return f"{peer.org}/{peer.role}-{peer.name} {peer.identity.hex()}".encode()

    async def call(port: int, prefix: str | None, trusts: str) -> str:
        caller = Node.load(folder / prefix) if prefix else None
        pair = (bytes(caller.key), caller.certificate) if caller else (None, None)
        credentials = grpc.ssl_channel_credentials(authorities[trusts], *pair)
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
            answer = await channel.unary_unary("/confide.Test/Whoami")(b"", timeout=5)
        return str(answer.decode())

    async def scene() -> None:
        server = grpc.aio.server()
        handler = {"Whoami": grpc.unary_unary_rpc_method_handler(whoami)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("confide.Test", handler),))
        roots = b"".join(authorities.values())
        credentials = grpc.ssl_server_credentials([(bytes(listens.key), listens.certificate)], roots, True)
        port = server.add_secure_port("127.0.0.1:0", credentials)
        await server.start()
        try:
            for prefix in ("alpha/client-c1", "beta/server-one"):
                identity = Node.load(folder / prefix).identity.public.hex()
                assert await call(port, prefix, "alpha") == f"{prefix} {identity}"
            for prefix, trusts in ((None, "alpha"), ("alpha/client-c1", "beta")):
                with pytest.raises(grpc.aio.AioRpcError) as e:
                    await call(port, prefix, trusts)
                assert e.value.code() == grpc.StatusCode.UNAVAILABLE
        finally:
            await server.stop(None)

    asyncio.run(scene())


def test_a_node_loads_no_heavy_library_for_its_keys() -> None:
    heavy = ("numpy", "scipy", "numba", "networkx", "polars", "dp_accounting", "pydantic")
    program = f"import sys, confide.deploy.pki; print(*(m for m in {heavy} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


# --- the command ---


def test_the_command_from_init_to_revoke(tmp_path: Path, command: Callable[..., Outcome]) -> None:
    def pki_json(*arguments: object) -> dict[str, Any]:
        code, out, err = command("pki", *arguments, "--dir", tmp_path, "--json")
        assert (code, err) == (0, "")
        texts.append(out)
        return dict(json.loads(out))

    texts: list[str] = []
    made = pki_json("init", "alpha")
    assert made["authority"] == pki.fingerprint((tmp_path / "alpha/ca.crt").read_bytes())
    server = pki_json("issue", "alpha", "server", "one", "--host", "a.example", "--host", "10.0.0.1")
    assert server["hosts"] == ["a.example", "10.0.0.1"]
    assert all(Path(f).exists() for f in server["files"])
    node = Node.load(tmp_path / "alpha/server-one")
    assert node.exchange is not None
    assert (server["identity"], server["exchange_key"]) == (node.identity.public.hex(), node.exchange.public.hex())
    client = pki_json("issue", "alpha", "client", "c1", "--days", 20)
    assert client["exchange_key"] is None
    assert [c["state"] for c in pki_json("list", "alpha")["certificates"]] == ["valid", "expires soon"]
    assert pki_json("renew", "alpha", "one")["identity"] == server["identity"]
    assert [e["name"] for e in pki_json("revoke", "alpha", "c1")["revoked"]] == ["c1"]
    assert [c["state"] for c in pki_json("list", "alpha")["certificates"]] == ["revoked", "revoked", "valid"]
    assert pki_json("crl", "alpha")["crl"] == str(tmp_path / "alpha/crl.pem")
    secrets = [node.identity.secret.hex(), node.exchange.secret.hex()]
    assert not any(word in text for text in texts for word in [*secrets, "PRIVATE"])


def test_the_command_for_people(tmp_path: Path, command: Callable[..., Outcome]) -> None:
    said = ""
    for line in ("init alpha", "issue alpha server one", "issue alpha client c1 --days 3", "renew alpha one --keep"):
        code, out, err = command("pki", *line.split(), "--dir", tmp_path)
        assert (code, err) == (0, "")
        said += out
    entries = Authority.open(tmp_path / "alpha").entries()
    assert all(e.identity in said for e in entries)
    listed = command("pki", "list", "alpha", "--dir", tmp_path)[1]
    assert all(e.serial in listed for e in entries)
    assert "expires soon" in listed
    assert command("pki", "revoke", "alpha", entries[0].serial, "--dir", tmp_path)[0] == 0
    assert "good until" in command("pki", "crl", "alpha", "--dir", tmp_path)[1]
    assert "PRIVATE" not in said


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("init Alpha", "organisation"),
        ("init ../x", "organisation"),
        ("list nobody", "organisation"),
        ("issue alpha admin x", "role"),
        ("issue alpha client x --host a", "host"),
        ("revoke alpha x", "name"),
        ("renew alpha x", "name"),
        ("list gamma", "organisation"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(
    tmp_path: Path, command: Callable[..., Outcome], line: str, field: str
) -> None:
    Authority.create(tmp_path / "alpha")
    Authority.create(tmp_path / "beta").folder.rename(tmp_path / "gamma")
    code, out, err = command("pki", *line.split(), "--dir", tmp_path)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: {field} = ")


def test_the_default_of_the_command_is_the_librarys() -> None:
    assert cli_pki.YEAR == pki.DAYS
