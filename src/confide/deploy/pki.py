"""Who is who: an organisation's certificate authority, its nodes' certificates and keys, and how a peer is checked.

Every organisation has an authority of its own, in a folder that only its owner can enter. TLS needs ECDSA P-256
(grpcio refuses Ed25519), the protocol signs with Ed25519: so a certificate carries, besides the TLS key, the node's
identity in an extension, and its organisation, role and name in one address: `confide://alpha/server/one`.

The index says what was issued: a certificate exists once the index holds it. Its files are staged beside it first, and
put in place after; whoever takes the lock next completes or removes what an interruption left.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import ipaddress
import json
import os
import re
import shlex
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn, Self

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_public_key,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID, NameOID

from confide.errors import InputError, RunError
from confide.files import atomic_file
from confide.privacy import canonical
from confide.secure.keys import Identity, KeyPair, Secret
from confide.validation import one_of, whole

IDENTITY_OID: Final = x509.ObjectIdentifier("2.25.23756579832487931342133021144581938422")
"""Of the extension that holds a node's Ed25519 key, as a SubjectPublicKeyInfo in DER; never critical, so that TLS
libraries pass over it. The number is the UUID 11df59d1-2552-4548-85ca-7b66fce41cf6 under the arc that ITU-T X.667 keeps
for UUIDs: nobody has to register it and nobody else has it, unlike a number under 1.3.6.1.4.1 that IANA did not give
us."""

INTERNAL: Final = ".confide.internal"  # a domain that ICANN keeps for private use: no resolver knows it
ROLES: Final = ("server", "client")
DAYS: Final = 365  # of a node's certificate
CA_DAYS: Final = 3650
CRL_DAYS: Final = 30  # after them servers ask for a new list: an old one cannot be passed off for ever
SOON: Final = timedelta(days=30)
SKEW: Final = timedelta(minutes=5)  # clocks differ: a certificate made now is valid there too
LOCK_SECONDS: Final = 30.0
LARGEST_PEM: Final = 2**16
LARGEST_LIST: Final = 2**26  # bytes of the index and of the CRL
FORMAT: Final = 1
CA_CERT, CA_KEY, INDEX, CRL, LOCK, PENDING = "ca.crt", "ca.key", "index.json", "crl.pem", ".lock", ".pending-"

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NAME = re.compile(_LABEL)
_ADDRESS = re.compile(rf"confide://({_LABEL})/(server|client)/({_LABEL})")
_HOST = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?(?:\.[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?)*"
)
_USAGES = {
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

_KINDS: dict[str, type] = {
    "P-256": ec.EllipticCurvePrivateKey,
    "Ed25519": Ed25519PrivateKey,
    "X25519": X25519PrivateKey,
}
Staged = dict[str, tuple[bytes, int]]  # by the file's name: content and mode


def utc_now() -> datetime:
    return datetime.now(UTC)


# --- a peer at the door ---


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


def authenticate(
    certificate: bytes,
    authorities: Mapping[str, bytes],
    revoked: Mapping[str, frozenset[int]],
    now: datetime,
) -> Peer:
    """Who holds this certificate (PEM or DER); raises `RefusedPeer`, and nothing else, for any bytes whatever.

    Whether the peer may do what it asks is the caller's question: compare role and identity with the plan.

    Args:
        authorities: each organisation's CA certificate in PEM; it vouches for that organisation and for no other.
        revoked: each organisation's revoked serials, from `load_revoked`; one without a list is refused.
        now: with a time zone.
    """
    try:
        cert, peer, usages = _claim(certificate)
    except RefusedPeer:
        raise
    except Exception as e:  # whatever a parser says of a stranger's bytes, they open no door
        raise RefusedPeer(f"the certificate is malformed ({type(e).__name__})") from None
    who = f"{peer.role} {peer.name} of {peer.org}"
    if peer.org not in authorities:
        raise RefusedPeer(f"{who}: no authority of {peer.org} is known here")
    ca = _vouching(peer.org, authorities[peer.org], now)
    try:
        cert.verify_directly_issued_by(ca)
    except Exception:  # InvalidSignature, and others for an algorithm or key that does not fit
        raise RefusedPeer(f"{who}: the authority of {peer.org} did not sign this certificate") from None
    if now < cert.not_valid_before_utc:
        raise RefusedPeer(f"{who}: the certificate is not yet valid; compare the clocks")
    if now >= cert.not_valid_after_utc:
        raise RefusedPeer(f"{who}: the certificate has expired; renew it")
    if peer.org not in revoked:
        raise RefusedPeer(f"{who}: no list of revoked certificates of {peer.org} was loaded")
    if peer.serial in revoked[peer.org]:
        raise RefusedPeer(f"{who}: the certificate was revoked")
    if usages != frozenset(_USAGES[peer.role]):
        raise RefusedPeer(f"{who}: the certificate is not for the use of a {peer.role}")
    return peer


def _claim(data: bytes) -> tuple[x509.Certificate, Peer, frozenset[x509.ObjectIdentifier]]:
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
    org, role, name = _address(cert)
    if IDENTITY_OID not in found:
        raise RefusedPeer(f"{role} {name} of {org}: the certificate binds no identity key")
    if cert.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
        raise RefusedPeer(f"{role} {name} of {org}: the certificate is an authority's, not a node's")
    usage = cert.extensions.get_extension_for_class(x509.KeyUsage).value
    if not usage.digital_signature or usage.key_cert_sign or usage.crl_sign:
        raise RefusedPeer(f"{role} {name} of {org}: the certificate is not for the use of a {role}")
    extended = cert.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    return cert, Peer(org, role, name, _identity(cert), cert.serial_number), frozenset(extended)


def _read_lazy(cert: x509.Certificate) -> None:
    """What the parser looks at only when asked, it complains of here, where that is expected."""
    _ = cert.subject, cert.issuer, cert.not_valid_before_utc, cert.not_valid_after_utc, cert.public_key()


def _address(cert: x509.Certificate) -> tuple[str, str, str]:
    try:
        names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        raise RefusedPeer("the certificate has no address confide://ORG/ROLE/NAME") from None
    addresses = names.get_values_for_type(x509.UniformResourceIdentifier)
    match = _ADDRESS.fullmatch(addresses[0]) if len(addresses) == 1 else None
    if match is None:
        raise RefusedPeer("the certificate must have one address confide://ORG/ROLE/NAME")
    return match[1], match[2], match[3]


def _identity(cert: x509.Certificate) -> bytes:
    value = cert.extensions.get_extension_for_oid(IDENTITY_OID).value
    key = load_der_public_key(value.public_bytes())
    if not isinstance(key, Ed25519PublicKey):
        raise RefusedPeer("the certificate's identity key is not an Ed25519 key")
    return key.public_bytes_raw()


def _vouching(org: str, pem: bytes, now: datetime) -> x509.Certificate:
    """The certificate of this organisation's authority, if it is one and is valid."""
    try:
        ca = _authority(pem)
    except ValueError as e:
        raise RefusedPeer(f"the authority given for {org} {e}") from None
    if _organisation(ca) != org:
        raise RefusedPeer(f"the authority given for {org} is another organisation's")
    if not ca.not_valid_before_utc <= now < ca.not_valid_after_utc:
        raise RefusedPeer(f"the certificate of the authority of {org} has expired or is not yet valid")
    return ca


def _authority(pem: bytes) -> x509.Certificate:
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


def _organisation(ca: x509.Certificate) -> str | None:
    names = ca.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    return str(names[0].value) if len(names) == 1 else None


def fingerprint(ca: bytes) -> str:
    """sha256 of a CA certificate (PEM) as 64 hex digits: `authority` in the plan."""
    return hashlib.sha256(_given_authority(ca).public_bytes(Encoding.DER)).hexdigest()


def _given_authority(pem: bytes) -> x509.Certificate:
    try:
        return _authority(pem)
    except ValueError as e:
        raise InputError("authority", f"{len(pem)} bytes", f"{e}; give the ca.crt of the organisation") from None


def load_revoked(path: str | Path, ca: bytes, now: datetime | None = None) -> frozenset[int]:
    """The serials in a CRL that the authority `ca` (its certificate in PEM) has signed and that is not out of date."""
    now = now or utc_now()
    fresh = "run `confide pki crl ORG` at that organisation and copy its crl.pem here"
    try:
        crl = x509.load_pem_x509_crl(canonical.read_bytes(path, "crl", LARGEST_LIST))
        serials = frozenset(r.serial_number for r in crl)
        since, until = crl.last_update_utc, crl.next_update_utc
    except InputError:
        raise
    except Exception:  # of many types
        raise InputError("crl", str(path), f"is damaged, or no CRL in PEM; {fresh}") from None
    authority = _given_authority(ca)
    try:
        signed = crl.is_signature_valid(authority.public_key())  # type: ignore[arg-type]
    except (TypeError, ValueError, UnsupportedAlgorithm):
        signed = False
    if not signed:
        raise InputError("crl", str(path), f"was not signed by the authority {_organisation(authority)}; {fresh}")
    if until is None or now >= until:
        raise InputError("crl", str(path), f"was to be replaced by {until}; {fresh}")
    if since > now + SKEW:
        raise InputError("crl", str(path), f"is of {since}, in the future; compare the clocks")
    return serials


# --- a node's own keys ---


@dataclass(frozen=True, repr=False)
class Node:
    """A node's certificate and keys. `key` is a Secret; grpcio wants plain bytes: `bytes(node.key)`."""

    org: str
    role: str
    name: str
    serial: int
    not_after: datetime
    certificate: bytes
    key: Secret
    identity: Identity
    exchange: KeyPair | None

    @classmethod
    def load(cls, prefix: str | Path) -> Self:
        """From PREFIX.crt, .key, .identity and, of a server, .exchange: `Node.load("alpha/server-one")`."""
        path = Path(f"{prefix}.crt")
        pem = canonical.read_bytes(path, "certificate", LARGEST_PEM)
        try:
            cert, peer, _ = _claim(pem)
        except Exception as e:  # of many types
            why = str(e) if isinstance(e, RefusedPeer) else f"it is damaged ({type(e).__name__})"
            raise InputError("certificate", str(path), f"is not a node's: {why}") from None
        secret, key = _private(Path(f"{prefix}.key"), "key", "P-256")
        mend = "copy all files of the node again, after `confide pki list`, which completes what was interrupted"
        if key.public_key() != cert.public_key():
            raise InputError("key", f"{prefix}.key", f"does not belong to {path.name}; {mend}")
        _, signing = _private(Path(f"{prefix}.identity"), "identity", "Ed25519")
        identity = Identity.of(signing.private_bytes_raw())
        if identity.public != peer.identity:
            raise InputError("identity", f"{prefix}.identity", f"does not belong to {path.name}; {mend}")
        exchange = None
        if peer.role == "server":
            _, agreeing = _private(Path(f"{prefix}.exchange"), "exchange", "X25519")
            exchange = KeyPair.of(agreeing.private_bytes_raw())
        until = cert.not_valid_after_utc
        return cls(peer.org, peer.role, peer.name, peer.serial, until, pem, secret, identity, exchange)

    def __repr__(self) -> str:
        return f"Node(confide://{self.org}/{self.role}/{self.name}, {self.identity!r})"


def _private(path: Path, name: str, kind: str) -> tuple[Secret, Any]:
    """A private key's PEM and the key; a file that others can read is refused, and none is quoted in an error."""
    with open(canonical.open_regular(path, name, os.O_RDONLY, LARGEST_PEM), "rb") as file:
        if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
            raise InputError(name, str(path), f"can be read by others; chmod 600 {shlex.quote(str(path))}")
        pem = Secret(file.read(LARGEST_PEM))
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: it has a password
        key = None
    if not isinstance(key, _KINDS[kind]):
        remedy = f"is damaged, or no {kind} key in PEM without a password; restore it from a copy"
        raise InputError(name, str(path), remedy)
    return pem, key


# --- an organisation's authority ---


@dataclass(frozen=True)
class Entry:
    """One certificate in the index; keys as 64 hex digits, the serial as 40, times in ISO 8601."""

    serial: str
    role: str
    name: str
    hosts: tuple[str, ...]
    not_after: str
    revoked: str | None
    identity: str
    exchange_key: str | None

    def state(self, now: datetime) -> str:
        """revoked, expired, expires soon or valid."""
        left = datetime.fromisoformat(self.not_after) - now
        if self.revoked is not None:
            return "revoked"
        return "expired" if left <= timedelta(0) else "expires soon" if left <= SOON else "valid"

    @property
    def prefix(self) -> str:
        """Of the names of its files."""
        return f"{self.role}-{self.name}"


@dataclass(frozen=True)
class Authority:
    """Issues, renews and revokes the certificates of one organisation. Everything it knows is in its folder."""

    folder: Path
    org: str
    certificate: bytes = field(repr=False)
    _ca: x509.Certificate = field(repr=False)
    _key: ec.EllipticCurvePrivateKey = field(repr=False)
    clock: Callable[[], datetime] = field(repr=False)

    @classmethod
    def create(cls, folder: str | Path, clock: Callable[[], datetime] = utc_now) -> Self:
        """A new authority, whose organisation is the folder's name."""
        folder = Path(folder)
        org = check_name("organisation", folder.name)
        if os.path.lexists(folder):
            raise InputError("organisation", str(folder), "exists; an authority is never replaced, choose another name")
        key = ec.generate_private_key(ec.SECP256R1())
        ca = _ca_certificate(org, key, clock().replace(microsecond=0))
        pem = ca.public_bytes(Encoding.PEM)
        with _disk(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            stage = Path(tempfile.mkdtemp(prefix=f".{org}.", dir=folder.parent))  # made 0700
            try:
                made = cls(stage, org, pem, ca, key, clock)
                _create(stage / CA_KEY, _pem(key), 0o600)
                _create(stage / CA_CERT, pem, 0o644)
                made._write_index([])
                made._sign_crl([])
                os.rename(stage, folder)
            except OSError as e:
                if e.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):  # somebody else was faster
                    raise InputError("organisation", str(folder), "exists; choose another name") from None
                raise
            finally:
                shutil.rmtree(stage, ignore_errors=True)
            _sync(folder.parent)
        return replace(made, folder=folder)

    @classmethod
    def open(cls, folder: str | Path, clock: Callable[[], datetime] = utc_now) -> Self:
        folder = Path(folder)
        if not (folder / CA_CERT).exists():
            remedy = "holds no authority; make one with `confide pki init NAME`, or say where it is with --dir"
            raise InputError("organisation", str(folder), remedy)
        pem = canonical.read_bytes(folder / CA_CERT, "authority", LARGEST_PEM)
        try:
            ca = _authority(pem)
        except ValueError as e:
            raise InputError("authority", str(folder / CA_CERT), f"{e}; restore it from a copy") from None
        _, key = _private(folder / CA_KEY, "authority key", "P-256")
        org = _organisation(ca)
        if key.public_key() != ca.public_key() or org is None:
            raise InputError("authority key", str(folder / CA_KEY), f"does not belong to {CA_CERT}; restore both")
        return cls(folder, org, pem, ca, key, clock)

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.certificate)

    @property
    def not_after(self) -> datetime:
        return self._ca.not_valid_after_utc

    def entries(self) -> tuple[Entry, ...]:
        """Every certificate ever issued, in order."""
        with self._locked() as entries:
            return tuple(entries)

    def issue(self, role: str, name: str, *, hosts: Sequence[str] = (), days: int = DAYS) -> Entry:
        """A certificate and keys for a new node. `hosts` are where a server is reached: this machine, if none."""
        one_of("role", role, ROLES)
        check_name("name", name)
        checked = _hosts(role, hosts)
        with self._locked() as entries:
            if any(e.name == name and e.revoked is None for e in entries):
                remedy = f"has a certificate; `confide pki renew {self.org} {name}`, or revoke it, or choose another"
                raise InputError("name", name, remedy)
            identity, exchange = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
            own: Staged = {".identity": (_pem(identity), 0o600)}
            exchange_key = None
            if role == "server":
                own[".exchange"] = (_pem(exchange), 0o600)
                exchange_key = exchange.public_key().public_bytes_raw().hex()
            public = identity.public_key().public_bytes_raw().hex()
            node = Entry("", role, name, checked, "", None, public, exchange_key)
            entry, made = self._certify(node, days)
            self._commit([*entries, entry], entry, made | own)
        return entry

    def renew(self, name: str, *, days: int = DAYS, keep: bool = False) -> Entry:
        """A new certificate and TLS key for the same identity, so that the plan stays valid.

        The old certificate is revoked, unless it is to be kept until the node has the new one.
        """
        with self._locked() as entries:
            live = [e for e in entries if e.name == name and e.revoked is None]
            if not live:
                self._unknown(name, entries)
            entry, made = self._certify(live[-1], days)
            if not keep:
                entries = self._marked(entries, live)
            self._commit([*entries, entry], entry, made)
        return entry

    def revoke(self, which: str) -> tuple[Entry, ...]:
        """Revoke the certificates of this name, or the one of this serial; servers learn it from the new CRL."""
        with self._locked() as entries:
            live = [e for e in entries if which in (e.name, e.serial) and e.revoked is None]
            if not live:
                self._unknown(which, entries)
            marked = self._marked(entries, live)
            try:
                self._write_index(marked)
            finally:
                self._settle()
        serials = {e.serial for e in live}
        return tuple(e for e in marked if e.serial in serials)

    def sign_crl(self) -> datetime:
        """The list of revoked certificates, signed anew; returns until when servers take it."""
        with self._locked() as entries:
            return self._sign_crl(entries)

    def _unknown(self, which: str, entries: Sequence[Entry]) -> NoReturn:
        if any(which in (e.name, e.serial) for e in entries):
            remedy = "is revoked; `confide pki issue` makes a new certificate, with a new identity"
        else:
            remedy = f"was never issued; `confide pki list {self.org}` shows names and serials"
        raise InputError("name", which, remedy)

    def _marked(self, entries: Sequence[Entry], revoked: Sequence[Entry]) -> list[Entry]:
        at = self.clock().replace(microsecond=0).isoformat()
        return [replace(e, revoked=at) if e in revoked else e for e in entries]

    def _certify(self, node: Entry, days: int) -> tuple[Entry, Staged]:
        """The entry of a new certificate for this node, and its files by suffix."""
        now = self.clock().replace(microsecond=0)
        until = now + timedelta(days=whole("days", days, 1, CA_DAYS))
        if until > self.not_after:
            remedy = f"the authority itself ends on {self.not_after:%Y-%m-%d}; give fewer, or make a new authority"
            raise InputError("days", days, remedy)
        key = ec.generate_private_key(ec.SECP256R1())
        serial = x509.random_serial_number()
        cert = _node_certificate(self.org, node, key, (self._ca, self._key), serial, (now - SKEW, until))
        entry = replace(node, serial=f"{serial:040x}", not_after=until.isoformat(), revoked=None)
        return entry, {".key": (_pem(key), 0o600), ".crt": (cert.public_bytes(Encoding.PEM), 0o644)}

    def _commit(self, entries: Sequence[Entry], entry: Entry, files: Staged) -> None:
        """Stage, then write the index: from then on the certificate exists, and `_settle` has the rest to do."""
        stage = self.folder / f"{PENDING}{entry.serial}"
        try:
            stage.mkdir(mode=0o700)
            for suffix, (data, mode) in files.items():
                _create(stage / (entry.prefix + suffix), data, mode)
            _sync(stage)
            self._write_index(entries)
        finally:
            self._settle()  # by the index as it is on the disk, however far we came

    def _settle(self) -> list[Entry]:
        """The index; what an interruption left is completed if the index knows of it, and removed otherwise."""
        entries = self._read_index()
        known = {PENDING + e.serial for e in entries}
        for stage in self.folder.glob(f"{PENDING}*"):
            if stage.name in known:
                for file in list(stage.iterdir()):
                    os.replace(file, self.folder / file.name)
            shutil.rmtree(stage)
            _sync(self.folder)
        revoked = {int(e.serial, 16) for e in entries if e.revoked is not None}
        listed = self._listed()
        if listed is not None and listed - revoked:
            remedy = f"{CRL} holds revoked certificates that it does not; it is an old copy, restore a newer one"
            raise InputError("index", str(self.folder / INDEX), remedy)
        if listed != revoked:
            self._sign_crl(entries)
        return entries

    def _listed(self) -> set[int] | None:
        """The serials in our CRL; None if there is none, or it is damaged."""
        try:
            crl = x509.load_pem_x509_crl(canonical.read_bytes(self.folder / CRL, "crl", LARGEST_LIST))
            return {r.serial_number for r in crl} if crl.is_signature_valid(self._key.public_key()) else None
        except Exception:  # of many types; it is signed anew
            return None

    def _sign_crl(self, entries: Sequence[Entry]) -> datetime:
        now = self.clock().replace(microsecond=0)
        until = now + timedelta(days=CRL_DAYS)
        builder = x509.CertificateRevocationListBuilder(self._ca.subject, now, until)
        for e in entries:
            if e.revoked is not None:
                one = x509.RevokedCertificateBuilder(int(e.serial, 16), datetime.fromisoformat(e.revoked))
                builder = builder.add_revoked_certificate(one.build())
        builder = builder.add_extension(_issued_by(self._ca), critical=False)
        builder = builder.add_extension(x509.CRLNumber(time.time_ns()), critical=False)  # it only ever grows
        try:
            _replace(self.folder / CRL, builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))
        except RunError as e:
            raise RunError(f"{e}; what is revoked is in the index, run `confide pki crl {self.org}` again") from None
        return until

    def _write_index(self, entries: Sequence[Entry]) -> None:
        table = {"format": FORMAT, "organisation": self.org, "certificates": [asdict(e) for e in entries]}
        _replace(self.folder / INDEX, (json.dumps(table, indent=1) + "\n").encode())

    def _read_index(self) -> list[Entry]:
        path = self.folder / INDEX
        text = canonical.read_text(path, "index", LARGEST_LIST)
        try:
            table = json.loads(text)
            canonical.check_keys("index", table, ("format", "organisation", "certificates"))
            if table["format"] != FORMAT or table["organisation"] != self.org:
                raise ValueError(f"format {table['format']!r} of {table['organisation']!r}")
            return [_entry(row) for row in table["certificates"]]
        except (ValueError, TypeError, KeyError, RecursionError) as e:
            remedy = f"is damaged, or of another authority ({e}); restore it from a copy"
            raise InputError("index", str(path), remedy) from None

    @contextmanager
    def _locked(self) -> Iterator[list[Entry]]:
        """One process at a time; the lock goes with the descriptor, however the process ends."""
        with _disk(self.folder):
            fd = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                _wait_for(fd, self.folder)
                yield self._settle()
            finally:
                os.close(fd)


def check_name(what: str, name: object) -> str:
    """A name that is a file name, a part of an address and a DNS label at once."""
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise InputError(what, name, "must be 1 to 63 small letters, digits and, inside, hyphens")


def server_host(org: str, name: str) -> str:
    """A DNS name in a server's certificate that no other node has: who dials asks TLS for it, whatever the address."""
    return f"{name}.server.{org}{INTERNAL}"


def _hosts(role: str, hosts: Sequence[str]) -> tuple[str, ...]:
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


def _entry(row: object) -> Entry:
    """One row of the index; any error is a ValueError, TypeError or KeyError."""
    d = canonical.check_keys("certificates", row, Entry.__dataclass_fields__)
    entry = Entry(**{**d, "hosts": tuple(d["hosts"])})
    one_of("role", entry.role, ROLES)
    check_name("name", entry.name)
    for moment in (entry.not_after, entry.revoked):
        if moment is not None and datetime.fromisoformat(moment).tzinfo is None:
            raise ValueError(f"{moment} has no time zone")
    keys = (entry.identity, entry.exchange_key) if entry.role == "server" else (entry.identity,)
    if not all(canonical.is_digest(key) for key in keys) or not re.fullmatch("[0-9a-f]{40}", entry.serial):
        raise ValueError(f"a key or the serial of {entry.name}")
    return entry


def _ca_certificate(org: str, key: ec.EllipticCurvePrivateKey, now: datetime) -> x509.Certificate:
    subject = _subject(org, "confide authority")
    builder = x509.CertificateBuilder(
        subject, subject, key.public_key(), x509.random_serial_number(), now - SKEW, now + timedelta(days=CA_DAYS)
    )
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(authority=True), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return builder.sign(key, hashes.SHA256())


def _node_certificate(
    org: str,
    node: Entry,
    key: ec.EllipticCurvePrivateKey,
    issuer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey],
    serial: int,
    valid: tuple[datetime, datetime],
) -> x509.Certificate:
    ca, signer = issuer
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(f"confide://{org}/{node.role}/{node.name}")]
    for host in node.hosts:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    if node.role == "server":
        names.append(x509.DNSName(server_host(org, node.name)))
    identity = Ed25519PublicKey.from_public_bytes(bytes.fromhex(node.identity))
    bound = identity.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    builder = x509.CertificateBuilder(ca.subject, _subject(org, node.name), key.public_key(), serial, *valid)
    for extension, critical in (
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_key_usage(authority=False), True),
        (x509.ExtendedKeyUsage(_USAGES[node.role]), False),
        (x509.SubjectAlternativeName(names), False),
        (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
        (_issued_by(ca), False),
        (x509.UnrecognizedExtension(IDENTITY_OID, bound), False),
    ):
        builder = builder.add_extension(extension, critical)
    return builder.sign(signer, hashes.SHA256())


def _subject(org: str, common: str) -> x509.Name:
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


def _issued_by(ca: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    own = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own)


# --- files ---


def _pem(key: ec.EllipticCurvePrivateKey | Ed25519PrivateKey | X25519PrivateKey) -> Secret:
    return Secret(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def _create(path: Path, data: bytes, mode: int) -> None:
    """A new file that has its mode before it has its content, on the disk when this returns."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(fd, "wb") as file:
        os.fchmod(fd, mode)  # whatever the umask
        _flush(file, data)


def _replace(path: Path, data: bytes) -> None:
    """A public file, old or new but never half, on the disk when this returns."""
    with atomic_file(path) as temporary, open(temporary, "wb") as file:
        _flush(file, data)
    _sync(path.parent)


def _flush(file: BinaryIO, data: bytes) -> None:
    file.write(data)
    file.flush()
    os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _wait_for(fd: int, folder: Path) -> None:
    end = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > end:
                remedy = f"has been in use by another process for {LOCK_SECONDS:g} s; try again when that has ended"
                raise InputError("organisation", str(folder), remedy) from None
            time.sleep(0.02)


@contextmanager
def _disk(folder: Path) -> Iterator[None]:
    """The operating system's refusals in our words."""
    try:
        yield
    except OSError as e:
        if e.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise RunError(f"{folder}: {e.strerror}; no node is half issued, make room and try again") from None
        raise InputError(
            "organisation", str(folder), f"cannot be used ({e.strerror or e}); --dir names another place"
        ) from None
