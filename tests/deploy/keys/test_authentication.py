"""A node gets through its own door and no other, whatever a certificate or a list of revoked ones holds."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
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

from confide.base.errors import InputError
from confide.deploy.keys import certificates
from confide.deploy.keys.authentication import authenticate, load_revoked
from confide.deploy.keys.authority import Authority
from confide.deploy.keys.certificates import IDENTITY_OID, Peer, RefusedPeer, utc_now


def _der(authority: Authority, prefix: str) -> bytes:
    pem = (authority.folder / f"{prefix}.crt").read_bytes()
    return x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)


def _check(authority: Authority, data: bytes, revoked: frozenset[int] = frozenset()) -> Peer:
    return authenticate(data, {authority.org: authority.certificate}, {authority.org: revoked}, authority.clock())


# --- who is at the door ---


@pytest.mark.parametrize("role", ["server", "client"])
def test_a_peer_is_known_by_its_certificate_in_pem_or_der(alpha: Authority, role: str) -> None:
    entry = alpha.issue(role, "n1")
    pem = (alpha.folder / f"{role}-n1.crt").read_bytes()
    expected = Peer("alpha", role, "n1", bytes.fromhex(entry.identity), int(entry.serial, 16))
    assert _check(alpha, pem) == _check(alpha, _der(alpha, f"{role}-n1")) == expected


def test_the_reasons_of_a_refusal(alpha: Authority, tmp_path: Path) -> None:
    now = alpha.clock()
    beta = Authority.create(tmp_path / "beta", alpha.clock)
    entry = alpha.issue("client", "c1", days=10)
    pem = (alpha.folder / "client-c1.crt").read_bytes()
    mine, nobody = {"alpha": alpha.certificate}, {"alpha": frozenset[int]()}
    namesake = Authority.create(tmp_path / "other" / "alpha", alpha.clock)
    cases: list[tuple[str, Any, Any, datetime]] = [
        ("no authority of alpha", {"beta": beta.certificate}, nobody, now),
        ("did not sign", {"alpha": namesake.certificate}, nobody, now),
        ("another organisation's", {"alpha": beta.certificate}, nobody, now),
        ("no certificate of an authority", {"alpha": b"x"}, nobody, now),
        ("a node's certificate", {"alpha": pem}, nobody, now),
        ("has expired; renew", mine, nobody, now + timedelta(days=10)),
        ("authority of alpha has expired or", mine, nobody, now + timedelta(days=4000)),
        ("no list of revoked", mine, {}, now),
        ("was revoked", mine, {"alpha": frozenset([int(entry.serial, 16)])}, now),
    ]
    for why, authorities, revoked, at in cases:
        with pytest.raises(RefusedPeer, match=why):
            authenticate(pem, authorities, revoked, at)
    later = Authority.open(alpha.folder, lambda: now + timedelta(days=1))
    later.issue("client", "c2")
    with pytest.raises(RefusedPeer, match="not yet valid"):
        _check(alpha, _der(alpha, "client-c2"))


def test_an_authority_does_not_vouch_for_another_organisation(alpha: Authority, tmp_path: Path) -> None:
    now = alpha.clock()
    beta = Authority.create(tmp_path / "beta", alpha.clock)
    index = json.loads((alpha.folder / "index.json").read_text())
    (alpha.folder / "index.json").write_text(json.dumps(index | {"organisation": "beta"}))
    replace(alpha, org="beta").issue("server", "evil")  # alpha's key signs confide://beta/server/evil
    authorities = {"alpha": alpha.certificate, "beta": beta.certificate}
    with pytest.raises(RefusedPeer, match="authority of beta did not sign"):
        authenticate(_der(alpha, "server-evil"), authorities, {"alpha": frozenset(), "beta": frozenset()}, now)


def _forged(alpha: Authority, **changes: Any) -> bytes:
    """What alpha's key signs when it is in other hands than our code's; a change to None leaves an extension out."""
    now = alpha.clock()
    key = ec.generate_private_key(ec.SECP256R1())
    signer = load_pem_private_key((alpha.folder / "ca.key").read_bytes(), None)
    ca = x509.load_pem_x509_certificate(alpha.certificate)
    identity = Ed25519PrivateKey.generate().public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    parts: dict[str, Any] = {
        "constraints": x509.BasicConstraints(ca=False, path_length=None),
        "usage": certificates._key_usage(authority=False),
        "extended": x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]),
        "names": x509.SubjectAlternativeName([x509.UniformResourceIdentifier("confide://alpha/client/c1")]),
        "identity": x509.UnrecognizedExtension(IDENTITY_OID, identity),
        "other": None,
    } | changes
    builder = x509.CertificateBuilder(
        ca.subject, ca.subject, key.public_key(), 7, now - timedelta(days=1), now + timedelta(days=1)
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
        ("not for the use", {"usage": certificates._key_usage(authority=True)}),
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
        ("not an Ed25519", {"identity": x509.UnrecognizedExtension(IDENTITY_OID, P256)}),
        ("malformed", {"identity": x509.UnrecognizedExtension(IDENTITY_OID, bytes(32))}),
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
        authenticate(data, world["authorities"], world["revoked"], utc_now())


def test_every_flipped_bit_is_refused(world: dict[str, Any]) -> None:
    der = world["der"]
    assert authenticate(der, world["authorities"], world["revoked"], utc_now()).name == "one"
    for at in range(len(der)):
        for bit in range(8):
            _refused(world, der[:at] + bytes([der[at] ^ 1 << bit]) + der[at + 1 :])


@settings(max_examples=300)
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


@settings(max_examples=300)
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
        assert authenticate(forged, world["authorities"], world["revoked"], utc_now()).org == "alpha"


@settings(max_examples=200)
@given(junk=st.binary(max_size=600), pem=st.booleans())
def test_bytes_that_are_no_certificate_are_refused(world: dict[str, Any], junk: bytes, pem: bool) -> None:
    _refused(world, b"-----BEGIN CERTIFICATE-----\n" + junk if pem else junk)


@settings(max_examples=200)
@given(data=st.data())
def test_a_mutated_pem_is_refused_or_still_the_same_certificate(world: dict[str, Any], data: st.DataObject) -> None:
    pem = (world["alpha"].folder / "server-one.crt").read_bytes()
    at = data.draw(st.integers(0, len(pem) - 1))
    changed = pem[:at] + data.draw(st.binary(max_size=3)) + pem[at + 1 :]
    with suppress(RefusedPeer):
        peer = authenticate(changed, world["authorities"], world["revoked"], utc_now())
        assert peer == authenticate(world["der"], world["authorities"], world["revoked"], utc_now())


# --- what is revoked ---


def test_a_crl_is_believed_only_if_its_authority_signed_it_and_it_is_fresh(alpha: Authority, tmp_path: Path) -> None:
    now = alpha.clock()
    beta = Authority.create(tmp_path / "beta", alpha.clock)
    entry = alpha.issue("client", "c1")
    alpha.revoke("c1")
    path = alpha.folder / "crl.pem"
    assert load_revoked(path, alpha.certificate, now + timedelta(days=29)).serials == {int(entry.serial, 16)}
    for ca, at, why in (
        (beta.certificate, now, "not signed"),
        (alpha.certificate, now + timedelta(days=30), "replaced by"),
        (alpha.certificate, now - timedelta(hours=1), "future"),
        (b"nonsense", now, "no certificate"),
        ((alpha.folder / "client-c1.crt").read_bytes(), now, "a node's"),
    ):
        with pytest.raises(InputError, match=why):
            load_revoked(path, ca, at)
    namesake = Authority.create(tmp_path / "other" / "alpha", alpha.clock)
    with pytest.raises(InputError, match="not signed"):
        load_revoked(path, namesake.certificate, now)
    with pytest.raises(InputError, match="cannot be opened"):
        load_revoked(tmp_path / "none.pem", alpha.certificate, now)
    later = Authority.open(alpha.folder, lambda: now + timedelta(days=40))
    assert later.sign_crl() == now + timedelta(days=70)
    assert load_revoked(path, alpha.certificate, now + timedelta(days=69)).serials == {int(entry.serial, 16)}


def test_no_flipped_bit_gets_into_a_crl(alpha: Authority) -> None:
    now = alpha.clock()
    alpha.issue("client", "c1")
    alpha.revoke("c1")
    path = alpha.folder / "crl.pem"
    whole = load_revoked(path, alpha.certificate, now)
    text = path.read_bytes()
    for at in range(len(text)):
        path.write_bytes(text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :])
        with suppress(InputError):
            assert load_revoked(path, alpha.certificate, now) == whole  # only what PEM does not care about
