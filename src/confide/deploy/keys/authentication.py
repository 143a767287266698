"""A peer at the door: who holds a certificate, as the authority of its organisation vouches and has not revoked."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from confide.base import canonical
from confide.base.errors import InputError
from confide.deploy.keys.certificates import (
    SKEW,
    USAGES,
    Peer,
    RefusedPeer,
    claim,
    given_authority,
    organisation_of,
    read_authority_certificate,
    utc_now,
)

LARGEST_LIST: Final = 2**26  # bytes of a CRL, and of the index that it is made from
FRESH: Final = "run `confide pki crl ORG` at that organisation and copy its crl.pem here"


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
        cert, peer, usages = claim(certificate)
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
    if usages != frozenset(USAGES[peer.role]):
        raise RefusedPeer(f"{who}: the certificate is not for the use of a {peer.role}")
    return peer


def shown_by_owner(certificate: bytes, signature: bytes, statement: bytes) -> bool:
    """Whether the key of this certificate (PEM or DER) signed the statement; no bytes whatever raise anything."""
    try:
        key = claim(certificate)[0].public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            return False
        key.verify(signature, statement, ec.ECDSA(hashes.SHA256()))
    except Exception:  # a wrong signature, and whatever a parser says of a stranger's bytes
        return False
    return True


def _vouching(org: str, pem: bytes, now: datetime) -> x509.Certificate:
    """The certificate of this organisation's authority, if it is one and is valid."""
    try:
        ca = read_authority_certificate(pem)
    except ValueError as e:
        raise RefusedPeer(f"the authority given for {org} {e}") from None
    if organisation_of(ca) != org:
        raise RefusedPeer(f"the authority given for {org} is another organisation's")
    if not ca.not_valid_before_utc <= now < ca.not_valid_after_utc:
        raise RefusedPeer(f"the certificate of the authority of {org} has expired or is not yet valid")
    return ca


class Revoked(NamedTuple):
    """What a CRL says.

    Attributes:
        until: it counts before this moment.
        number: of the list; an authority gives each a higher one.
        pem: the list itself.
    """

    serials: frozenset[int]
    since: datetime
    until: datetime
    number: int
    pem: bytes


def load_revoked(path: str | Path, ca: bytes, now: datetime | None = None) -> Revoked:
    """A CRL that the authority `ca` (its certificate in PEM) has signed and that is not out of date."""
    now = now or utc_now()
    found = read_revoked(canonical.read_bytes(path, "crl", LARGEST_LIST), ca, path)
    if now >= found.until:
        raise InputError("crl", str(path), f"was to be replaced by {found.until}; {FRESH}")
    if found.since > now + SKEW:
        raise InputError("crl", str(path), f"is of {found.since}, in the future; compare the clocks")
    return found


def read_revoked(pem: bytes, ca: bytes, path: str | Path) -> Revoked:
    """A CRL that this authority has signed, whether or not it still counts; `path` is where it is from."""
    try:
        crl = x509.load_pem_x509_crl(pem)
        serials = frozenset(r.serial_number for r in crl)
        since, until = crl.last_update_utc, crl.next_update_utc
        number = crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        if until is None:
            raise ValueError("it has no end")
    except Exception:  # of many types
        raise InputError("crl", str(path), f"is damaged, or no CRL in PEM with a number and an end; {FRESH}") from None
    authority = given_authority(ca)
    try:
        signed = crl.is_signature_valid(authority.public_key())  # type: ignore[arg-type]
    except (TypeError, ValueError, UnsupportedAlgorithm):
        signed = False
    if not signed:
        raise InputError("crl", str(path), f"was not signed by the authority {organisation_of(authority)}; {FRESH}")
    return Revoked(serials, since, until, number, crl.public_bytes(Encoding.PEM))
