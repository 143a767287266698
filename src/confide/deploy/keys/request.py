"""A node's request for a certificate: its keys are made where they live, and its authority sees the public halves.

The request (PKCS #10) is signed by the TLS key. It carries the node's address, identity and exchange key, and a
signature of the identity over all of them: nobody can ask for a certificate with keys that he does not hold. (An X25519
key cannot sign; the identity vouches for it.) The authority decides the rest: times, usages, the serial.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from confide.base import canonical
from confide.base.durable_files import create_file
from confide.base.errors import InputError
from confide.base.files import sync_folder
from confide.base.validation import one_of
from confide.deploy.keys.certificates import (
    IDENTITY_OID,
    LARGEST_PEM,
    ROLES,
    RefusedPeer,
    address_of,
    alternative_names,
    check_hosts,
    check_name,
    distinguished,
    given_hosts,
    identity_extension,
    identity_of,
)
from confide.deploy.keys.node_keys import Key, NodeKeys, private_pem
from confide.secure.keys import Secret, signed_by, usable

EXCHANGE_OID: Final = x509.ObjectIdentifier(f"{IDENTITY_OID.dotted_string}.1")  # the raw X25519 key of a server
PROOF_OID: Final = x509.ObjectIdentifier(f"{IDENTITY_OID.dotted_string}.2")  # the signature of the identity
CSR: Final = ".csr"


@dataclass(frozen=True)
class Request:
    """What a node asks for; the signatures hold.

    Attributes:
        identity, exchange: raw public keys; a client has no exchange key.
        key: the public half of the TLS key.
    """

    org: str
    role: str
    name: str
    hosts: tuple[str, ...]
    identity: bytes
    exchange: bytes | None
    key: ec.EllipticCurvePublicKey

    @property
    def fingerprint(self) -> str:
        """sha256 of the TLS key."""
        return hashlib.sha256(_spki(self.key)).hexdigest()


def request(
    prefix: str | Path,
    org: str,
    role: str,
    name: str,
    *,
    hosts: Sequence[str] = (),
    passphrase: Secret | None = None,
    renew: NodeKeys | None = None,
) -> Request:
    """Make a node's keys, 0600, and the request for its certificate: PREFIX.key, .identity, .exchange and .csr.

    Args:
        prefix: path of these files without their endings; a client has no .exchange.
        org, role, name: as its authority will know it; the role is "server" or "client".
        hosts: where a server is reached: this machine, if none.
        passphrase: encrypts the keys.
        renew: the node's keys of before: identity and exchange key stay, and only the TLS key is new.

    Returns:
        What it asks for, as `read_request` reads it from PREFIX.csr.

    Raises:
        InputError: a name or a host is refused, or a file exists already: keys are never replaced.
    """
    check_name("organisation", org)
    one_of("role", role, ROLES)
    check_name("name", name)
    own = _keys(role, renew, (org, role, name))
    made = _request((org, role, name), check_hosts(role, hosts), own)
    prefix, written = Path(prefix), list[Path]()
    try:
        prefix.parent.mkdir(parents=True, exist_ok=True)
        for suffix, key in own.items():
            written.append(_create(prefix, suffix, private_pem(key, passphrase), 0o600))
        written.append(_create(prefix, CSR, made.public_bytes(Encoding.PEM), 0o644))
        sync_folder(prefix.parent)
    except BaseException as e:
        for path in written:
            with suppress(OSError):
                path.unlink()
        if isinstance(e, OSError):
            raise InputError("--out", str(prefix), f"cannot be written ({e.strerror or e}); name another") from None
        raise
    return _read(made)


def read_request(path: str | Path) -> Request:
    """What a node asks for.

    Args:
        path: the .csr that `request` made.

    Returns:
        The request, for `Authority.sign`.

    Raises:
        InputError: the file is no request, or a signature in it does not hold.
    """
    raw = canonical.read_bytes(path, "request", LARGEST_PEM)
    try:
        return _read(x509.load_pem_x509_csr(raw))
    except Exception as e:  # whatever a parser says of a stranger's bytes
        why = str(e) if type(e) in (ValueError, InputError, RefusedPeer) else type(e).__name__
        remedy = f"is no request that can be signed ({why}); `confide pki request` at the node makes one"
        raise InputError("request", str(path), remedy) from None


def _keys(role: str, renew: NodeKeys | None, who: tuple[str, str, str]) -> dict[str, Key]:
    identity, exchange = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
    if renew is not None:
        if (renew.org, renew.role, renew.name) != who:
            remedy = f"are of {renew.role} {renew.name} of {renew.org}; a renewal keeps the name"
            raise InputError("--renew", "the keys", remedy)
        identity = Ed25519PrivateKey.from_private_bytes(renew.identity.secret)
        if renew.exchange is not None:
            exchange = X25519PrivateKey.from_private_bytes(renew.exchange.secret)
    found: dict[str, Key] = {".identity": identity, ".key": ec.generate_private_key(ec.SECP256R1())}
    return found | ({".exchange": exchange} if role == "server" else {})


def _request(who: tuple[str, str, str], hosts: Sequence[str], own: dict[str, Any]) -> x509.CertificateSigningRequest:
    org, _, name = who
    identity, key = own[".identity"], own[".key"]
    exchange = own[".exchange"].public_key().public_bytes_raw() if ".exchange" in own else b""
    proof = identity.sign(_statement(who, hosts, exchange, key.public_key()))
    builder = x509.CertificateSigningRequestBuilder(distinguished(org, name))
    builder = builder.add_extension(alternative_names(*who, hosts), critical=False)
    builder = builder.add_extension(identity_extension(identity.public_key()), critical=False)
    builder = builder.add_extension(x509.UnrecognizedExtension(EXCHANGE_OID, exchange), critical=False)
    builder = builder.add_extension(x509.UnrecognizedExtension(PROOF_OID, proof), critical=False)
    return builder.sign(key, hashes.SHA256())


def _read(csr: x509.CertificateSigningRequest) -> Request:
    """Raises a ValueError that ends a sentence, and others."""
    key = csr.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ValueError("its TLS key is not P-256")
    if not csr.is_signature_valid:
        raise ValueError("its TLS key did not sign it")
    who = address_of(csr.extensions)
    hosts = given_hosts(csr.extensions)
    if hosts != (check_hosts(who[1], hosts) if hosts else ()):
        raise ValueError("its hosts are not as they are written in a certificate")
    identity = identity_of(csr.extensions)
    exchange, proof = (_raw(csr.extensions, oid) for oid in (EXCHANGE_OID, PROOF_OID))
    if who[1] == "server" and not (len(exchange) == 32 and usable(exchange)):
        raise ValueError("its exchange key is none")
    if not signed_by(identity, proof, _statement(who, hosts, exchange, key)):
        raise ValueError("its identity key did not sign it")
    return Request(*who, hosts, identity, exchange or None, key)


def _statement(who: Sequence[str], hosts: Sequence[str], exchange: bytes, key: ec.EllipticCurvePublicKey) -> bytes:
    said = canonical.dumps({"who": list(who), "hosts": list(hosts), "exchange": exchange.hex()})
    return b"\0".join((b"confide request", hashlib.sha256(_spki(key)).digest(), said.encode()))


def _raw(extensions: x509.Extensions, oid: x509.ObjectIdentifier) -> bytes:
    value = extensions.get_extension_for_oid(oid).value
    assert isinstance(value, x509.UnrecognizedExtension)  # noqa: S101 - nobody else knows our number
    return value.value


def _spki(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _create(prefix: Path, suffix: str, data: bytes, mode: int) -> Path:
    path = Path(f"{prefix}{suffix}")
    if os.path.lexists(path):
        raise InputError("--out", str(path), "exists; keys are never replaced, name another place")
    create_file(path, data, mode)
    return path
