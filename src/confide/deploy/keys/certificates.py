"""What a certificate says, and how it is made and read: the names of an organisation and its nodes, and their keys.

TLS needs ECDSA P-256 (grpcio refuses Ed25519), the protocol signs with Ed25519: so a certificate carries, besides the
TLS key, the node's identity in an extension, and its organisation, role and name in one address:
`confide://alpha/server/one`. Whether anybody vouches for what it says is the question of `authentication`.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID, NameOID

from confide.base.errors import InputError

IDENTITY_OID: Final = x509.ObjectIdentifier("2.25.23756579832487931342133021144581938422")
"""Of the extension that holds a node's Ed25519 key, as a SubjectPublicKeyInfo in DER; never critical, so that TLS
libraries pass over it. The number is the UUID 11df59d1-2552-4548-85ca-7b66fce41cf6 under the arc that ITU-T X.667 keeps
for UUIDs: nobody has to register it and nobody else has it, unlike a number under 1.3.6.1.4.1 that IANA did not give
us."""

INTERNAL: Final = ".confide.internal"  # a domain that ICANN keeps for private use: no resolver knows it
ROLES: Final = ("server", "client")
CA_DAYS: Final = 3650  # of an authority's certificate
SOON: Final = timedelta(days=30)
SKEW: Final = timedelta(minutes=5)  # clocks differ: a certificate made now is valid there too
LARGEST_PEM: Final = 2**16

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NAME = re.compile(_LABEL)
_ADDRESS = re.compile(rf"confide://({_LABEL})/(server|client)/({_LABEL})")
_HOST = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?(?:\.[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?)*"
)
USAGES: Final = {
    "server": (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH),  # it calls its neighbours too
    "client": (ExtendedKeyUsageOID.CLIENT_AUTH,),
}
_UNDERSTOOD = {
    ExtensionOID.BASIC_CONSTRAINTS,
    ExtensionOID.KEY_USAGE,
    ExtensionOID.EXTENDED_KEY_USAGE,
    ExtensionOID.SUBJECT_ALTERNATIVE_NAME,
    ExtensionOID.SUBJECT_KEY_IDENTIFIER,
    ExtensionOID.AUTHORITY_KEY_IDENTIFIER,
    IDENTITY_OID,
}


def utc_now() -> datetime:
    return datetime.now(UTC)


# --- names ---


def check_name(what: str, name: object) -> str:
    """A name that is a file name, a part of an address and a DNS label at once."""
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise InputError(what, name, "must be 1 to 63 small letters, digits and, inside, hyphens")


def server_host(org: str, name: str) -> str:
    """A DNS name in a server's certificate that no other node has: who dials asks TLS for it, whatever the address."""
    return f"{name}.server.{org}{INTERNAL}"


def check_hosts(role: str, hosts: Sequence[str]) -> tuple[str, ...]:
    """Where a server is reached, each host once and as its certificate writes it: this machine, if none is given."""
    if role == "client":
        if hosts:
            raise InputError("host", list(hosts), "a client listens nowhere; leave --host out")
        return ()
    found = []
    for host in hosts or ("localhost", "127.0.0.1"):
        try:
            known = str(ipaddress.ip_address(host))
            bad = "%" in known  # an IPv6 zone has a meaning on one machine only
        except ValueError:
            known = host.lower()
            bad = not _HOST.fullmatch(known) or known.rpartition(".")[2].isdigit()  # 300.1.2.3 is no name
        if bad:
            raise InputError("host", host, "must be a DNS name or an IP address, without a port")
        if known.endswith(INTERNAL):
            raise InputError("host", host, f"names that end in {INTERNAL} are given by the authority; leave it out")
        found.append(known)
    return tuple(dict.fromkeys(found))


# --- a node's certificate, as it is read ---


class RefusedPeer(ValueError):
    """A certificate that opens no door, and why."""


@dataclass(frozen=True)
class Peer:
    """Who is at the other end, as the authority of its organisation vouches; `identity` is its raw Ed25519 key."""

    org: str
    role: str
    name: str
    identity: bytes
    serial: int


def claim(data: bytes) -> tuple[x509.Certificate, Peer, frozenset[x509.ObjectIdentifier]]:
    """What a certificate says of itself and its extended usages; nobody has vouched for it yet."""
    pem = data.lstrip().startswith(b"-----BEGIN")
    cert = x509.load_pem_x509_certificate(data) if pem else x509.load_der_x509_certificate(data)
    der = cert.public_bytes(Encoding.DER)
    if not pem and der != data:
        raise RefusedPeer("the certificate is malformed (not in DER)")
    if der[-len(cert.signature) - 1]:  # unused bits of the signature, which no signature covers
        raise RefusedPeer("the certificate is malformed (signature)")
    _read_lazy(cert)
    found = {e.oid: e for e in cert.extensions}
    for oid, extension in found.items():
        if extension.critical and oid not in _UNDERSTOOD:
            raise RefusedPeer(f"the certificate has a critical extension that is not understood, {oid.dotted_string}")
    org, role, name = address_of(cert.extensions)
    if IDENTITY_OID not in found:
        raise RefusedPeer(f"{role} {name} of {org}: the certificate binds no identity key")
    if cert.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
        raise RefusedPeer(f"{role} {name} of {org}: the certificate is an authority's, not a node's")
    usage = cert.extensions.get_extension_for_class(x509.KeyUsage).value
    if not usage.digital_signature or usage.key_cert_sign or usage.crl_sign:
        raise RefusedPeer(f"{role} {name} of {org}: the certificate is not for the use of a {role}")
    extended = cert.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    return cert, Peer(org, role, name, identity_of(cert.extensions), cert.serial_number), frozenset(extended)


def _read_lazy(cert: x509.Certificate) -> None:
    """What the parser looks at only when asked, it complains of here, where that is expected."""
    _ = cert.subject, cert.issuer, cert.not_valid_before_utc, cert.not_valid_after_utc, cert.public_key()


def address_of(extensions: x509.Extensions) -> tuple[str, str, str]:
    """Organisation, role and name."""
    try:
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        raise RefusedPeer("the certificate has no address confide://ORG/ROLE/NAME") from None
    addresses = names.get_values_for_type(x509.UniformResourceIdentifier)
    match = _ADDRESS.fullmatch(addresses[0]) if len(addresses) == 1 else None
    if match is None:
        raise RefusedPeer("the certificate must have one address confide://ORG/ROLE/NAME")
    return match[1], match[2], match[3]


def given_hosts(extensions: x509.Extensions) -> tuple[str, ...]:
    """Where a server is reached, by its own words."""
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    found = (*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress)))
    return tuple(host for host in found if not host.endswith(INTERNAL))


def identity_of(extensions: x509.Extensions) -> bytes:
    """The raw Ed25519 key."""
    value = extensions.get_extension_for_oid(IDENTITY_OID).value
    key = load_der_public_key(value.public_bytes())
    if not isinstance(key, Ed25519PublicKey):
        raise RefusedPeer("the certificate's identity key is not an Ed25519 key")
    return key.public_bytes_raw()


# --- an authority's certificate, as it is read ---


def read_authority_certificate(pem: bytes) -> x509.Certificate:
    """Raises a ValueError that ends a sentence."""
    try:
        ca = x509.load_pem_x509_certificate(pem)
        constraints = ca.extensions.get_extension_for_class(x509.BasicConstraints).value
        usage = ca.extensions.get_extension_for_class(x509.KeyUsage).value
        _read_lazy(ca)
    except Exception:  # the parser has many, and no common, exceptions
        raise ValueError("is no certificate of an authority in PEM") from None
    if not (constraints.ca and usage.key_cert_sign):
        raise ValueError("is a node's certificate, not an authority's")
    return ca


def organisation_of(ca: x509.Certificate) -> str | None:
    names = ca.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    return str(names[0].value) if len(names) == 1 else None


def fingerprint(ca: bytes) -> str:
    """sha256 of a CA certificate (PEM) as 64 hex digits: `authority` in the plan."""
    return hashlib.sha256(given_authority(ca).public_bytes(Encoding.DER)).hexdigest()


def given_authority(pem: bytes) -> x509.Certificate:
    try:
        return read_authority_certificate(pem)
    except ValueError as e:
        raise InputError("authority", f"{len(pem)} bytes", f"{e}; give the ca.crt of the organisation") from None


# --- how they are made ---


def make_authority_certificate(org: str, key: ec.EllipticCurvePrivateKey, now: datetime) -> x509.Certificate:
    subject = distinguished(org, "confide authority")
    builder = x509.CertificateBuilder(
        subject, subject, key.public_key(), x509.random_serial_number(), now - SKEW, now + timedelta(days=CA_DAYS)
    )
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(authority=True), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return builder.sign(key, hashes.SHA256())


def make_node_certificate(
    node: Peer,
    hosts: Sequence[str],
    key: ec.EllipticCurvePublicKey,
    issuer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey],
    valid: tuple[datetime, datetime],
) -> x509.Certificate:
    """One that `claim` reads as this peer."""
    ca, signer = issuer
    own = (server_host(node.org, node.name),) if node.role == "server" else ()
    subject = distinguished(node.org, node.name)
    builder = x509.CertificateBuilder(ca.subject, subject, key, node.serial, *valid)
    for extension, critical in (
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_key_usage(authority=False), True),
        (x509.ExtendedKeyUsage(USAGES[node.role]), False),
        (alternative_names(node.org, node.role, node.name, (*hosts, *own)), False),
        (x509.SubjectKeyIdentifier.from_public_key(key), False),
        (issued_by(ca), False),
        (identity_extension(Ed25519PublicKey.from_public_bytes(node.identity)), False),
    ):
        builder = builder.add_extension(extension, critical)
    return builder.sign(signer, hashes.SHA256())


def alternative_names(org: str, role: str, name: str, hosts: Sequence[str]) -> x509.SubjectAlternativeName:
    """The node's address, and where it is reached."""
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(f"confide://{org}/{role}/{name}")]
    for host in hosts:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    return x509.SubjectAlternativeName(names)


def identity_extension(key: Ed25519PublicKey) -> x509.UnrecognizedExtension:
    bound = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return x509.UnrecognizedExtension(IDENTITY_OID, bound)


def distinguished(org: str, common: str) -> x509.Name:
    attributes = ((NameOID.ORGANIZATION_NAME, org), (NameOID.COMMON_NAME, common))
    return x509.Name([x509.NameAttribute(oid, value) for oid, value in attributes])


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def issued_by(ca: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    own = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own)
