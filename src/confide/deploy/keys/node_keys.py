"""A node's own certificate and keys, as files that nobody else can read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from confide.base import canonical
from confide.base.errors import InputError
from confide.deploy.keys.certificates import LARGEST_PEM, RefusedPeer, claim
from confide.deploy.keys.passphrase import SOURCES
from confide.secure.keys import Identity, KeyPair, Secret

Key = ec.EllipticCurvePrivateKey | Ed25519PrivateKey | X25519PrivateKey
_KINDS: dict[str, type] = {
    "P-256": ec.EllipticCurvePrivateKey,
    "Ed25519": Ed25519PrivateKey,
    "X25519": X25519PrivateKey,
}


@dataclass(frozen=True, repr=False)
class NodeKeys:
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
    def load(cls, prefix: str | Path, passphrase: Secret | None = None) -> Self:
        """From PREFIX.crt, .key, .identity and, of a server, .exchange: `NodeKeys.load("alpha/server-one")`."""
        path = Path(f"{prefix}.crt")
        pem = canonical.read_bytes(path, "certificate", LARGEST_PEM)
        try:
            cert, peer, _ = claim(pem)
        except Exception as e:  # of many types
            why = str(e) if isinstance(e, RefusedPeer) else f"it is damaged ({type(e).__name__})"
            raise InputError("certificate", str(path), f"is not a node's: {why}") from None
        secret, key = read_private_key(Path(f"{prefix}.key"), "key", "P-256", passphrase)
        mend = "copy all files of the node again, after `confide pki list`, which completes what was interrupted"
        if key.public_key() != cert.public_key():
            raise InputError("key", f"{prefix}.key", f"does not belong to {path.name}; {mend}")
        _, signing = read_private_key(Path(f"{prefix}.identity"), "identity", "Ed25519", passphrase)
        identity = Identity.of(signing.private_bytes_raw())
        if identity.public != peer.identity:
            raise InputError("identity", f"{prefix}.identity", f"does not belong to {path.name}; {mend}")
        exchange = None
        if peer.role == "server":
            _, agreeing = read_private_key(Path(f"{prefix}.exchange"), "exchange", "X25519", passphrase)
            exchange = KeyPair.of(agreeing.private_bytes_raw())
        until = cert.not_valid_after_utc
        return cls(peer.org, peer.role, peer.name, peer.serial, until, pem, secret, identity, exchange)

    def prove(self, statement: bytes) -> bytes:
        """A signature by the certificate's own key: who shows the certificate of another does not have it."""
        return self._signer.sign(statement, ec.ECDSA(hashes.SHA256()))

    @cached_property
    def _signer(self) -> ec.EllipticCurvePrivateKey:
        key = load_pem_private_key(self.key, password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)  # noqa: S101 - `load` has looked
        return key

    def __repr__(self) -> str:
        return f"NodeKeys(confide://{self.org}/{self.role}/{self.name}, {self.identity!r})"


def read_private_key(path: Path, name: str, kind: str, passphrase: Secret | None = None) -> tuple[Secret, Any]:
    """A private key's PEM, as gRPC takes it, and the key; none is quoted in an error.

    A file that others can read is refused. The passphrase is for a key that is encrypted, and for no other.
    """
    pem = Secret(canonical.read_private(path, name, LARGEST_PEM))
    encrypted = pem.find(b"ENCRYPTED") >= 0
    if encrypted and passphrase is None:
        raise InputError(name, str(path), f"is encrypted; say where its passphrase is: {SOURCES}")
    try:
        key = load_pem_private_key(pem, password=passphrase if encrypted else None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Key) or not isinstance(key, _KINDS[kind]):
        wrong = ", or the passphrase is another" if encrypted else ""
        raise InputError(name, str(path), f"is damaged, or no {kind} key in PEM{wrong}; restore it from a copy")
    return private_pem(key) if encrypted else pem, key


def private_pem(key: Key, passphrase: Secret | None = None) -> Secret:
    hidden = NoEncryption() if passphrase is None else BestAvailableEncryption(bytes(passphrase))
    return Secret(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, hidden))
