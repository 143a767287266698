"""Keys of a session: who agrees on what with whom, and secrets that do not print.

Every key comes from an X25519 agreement (or a random seed) through HKDF-SHA256, salted with the session's id and bound
to its use and to the pair, so that no key serves twice: not in another round, not in another direction.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NoReturn, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
PAIR_MASK, SELF_MASK, CHANNEL = b"confide pair mask", b"confide self mask", b"confide channel"


class Secret(bytes):
    """Bytes that no log, repr, exception or pickle shows."""

    def __repr__(self) -> str:
        return "Secret(...)"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a Secret is neither copied nor pickled")


class BadKeyError(ValueError):
    """A public key with which no agreement is possible."""


@dataclass(frozen=True, repr=False)
class _Pair:
    secret: Secret
    public: bytes

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.public.hex()[:8]})"


class KeyPair(_Pair):
    """Of one session, to agree on secrets with (X25519)."""

    @classmethod
    def of(cls, secret: bytes) -> Self:
        own = X25519PrivateKey.from_private_bytes(secret)
        pair = cls(Secret(secret), own.public_key().public_bytes_raw())
        pair.__dict__["_own"] = own
        return pair

    @cached_property
    def _own(self) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(self.secret)

    def agree(self, others: list[bytes]) -> list[Secret]:
        """The shared secret with each of the others."""
        own = self._own
        try:
            return [Secret(own.exchange(X25519PublicKey.from_public_bytes(other))) for other in others]
        except ValueError:  # a point of small order, whose "secret" everybody knows
            raise BadKeyError("a public key admits no secret") from None


_PROBE: Final = KeyPair.of(bytes(KEY_BYTES))


def usable(public: bytes) -> bool:
    """Whether this is a key with which a secret can be shared: no point of small order."""
    try:
        _PROBE.agree([public])
    except BadKeyError:
        return False
    return True


def derive(shared: bytes, session: bytes, use: bytes, *ids: int) -> Secret:
    info = use + struct.pack(f"<{len(ids)}I", *ids)
    return Secret(HKDF(hashes.SHA256(), KEY_BYTES, salt=session, info=info).derive(shared))


def pair_mask_key(shared: bytes, session: bytes, one: int, other: int) -> Secret:
    return derive(shared, session, PAIR_MASK, min(one, other), max(one, other))


def self_mask_key(seed: bytes, session: bytes, owner: int) -> Secret:
    return derive(seed, session, SELF_MASK, owner)


def channel_key(shared: bytes, session: bytes, sender: int, receiver: int) -> Secret:
    return derive(shared, session, CHANNEL, sender, receiver)


class Identity(_Pair):
    """The long-term Ed25519 key of a client or a server; the public halves are in the plan's roster."""

    @classmethod
    def of(cls, secret: bytes) -> Self:
        return cls(Secret(secret), Ed25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw())

    @cached_property
    def _own(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.secret)

    def sign(self, statement: bytes) -> bytes:
        return self._own.sign(statement)


def signed_by(public: bytes | None, signature: bytes, statement: bytes) -> bool:
    """Whether the owner of this identity signed it; nobody did where no identity is known."""
    try:
        Ed25519PublicKey.from_public_bytes(public or b"").verify(signature, statement)
    except (InvalidSignature, ValueError):
        return False
    return True
