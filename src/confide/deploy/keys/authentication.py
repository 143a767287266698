"""A peer at the door: who holds a certificate, as the authority of its organisation vouches and has not revoked."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

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
    """What a CRL says, and until when."""

    serials: frozenset[int]
    until: datetime


def load_revoked(path: str | Path, ca: bytes, now: datetime | None = None) -> Revoked:
    """A CRL that the authority `ca` (its certificate in PEM) has signed and that is not out of date."""
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
    authority = given_authority(ca)
    try:
        signed = crl.is_signature_valid(authority.public_key())  # type: ignore[arg-type]
    except (TypeError, ValueError, UnsupportedAlgorithm):
        signed = False
    if not signed:
        raise InputError("crl", str(path), f"was not signed by the authority {organisation_of(authority)}; {fresh}")
    if until is None or now >= until:
        raise InputError("crl", str(path), f"was to be replaced by {until}; {fresh}")
    if since > now + SKEW:
        raise InputError("crl", str(path), f"is of {since}, in the future; compare the clocks")
    return Revoked(serials, until)
