"""Who told whom which result of a release: the relay signs the result, and whom it told signs that it was told.

An honest relay signs one result of an attempt, ever (`deploy.machines.results`). So two that one relay signed are the
evidence that it lied, whoever shows them, and two that two relays signed show that one of them lied, or that a server
sent them different words. Equal ones show that everybody was told the same. They do not show that it is the sum: a
relay that tells everybody the same wrong one is not found out here.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError

from confide.base import canonical
from confide.base.errors import InputError
from confide.secure.keys import Identity, signed_by
from confide.secure.messages import Hash, Signature

RESULT: Final = b"confide result"
TOLD: Final = b"confide told"
Server = Annotated[int, Field(ge=0, lt=2**16)]


class Receipt(NamedTuple):
    """`server` was told by `relay` that the sum of an attempt has this hash; both signed it."""

    attempt: Annotated[int, Field(ge=1, lt=2**32)]
    relay: Server
    server: Server
    sha256: Hash
    signature: Signature  # the relay's, under the result
    countersignature: Signature  # the server's


def to_dict(receipt: Receipt) -> dict[str, Any]:
    """For JSON, with bytes in hex."""
    return {name: x.hex() if isinstance(x, bytes) else x for name, x in receipt._asdict().items()}


def of_dict(field: str, value: object) -> Receipt:
    """What `to_dict` gave; raises `InputError` for anything else."""
    found: Mapping[str, Any] = canonical.check_keys(field, value, Receipt._fields)
    try:
        numbers = (found["attempt"], found["relay"], found["server"])
        signed = (bytes.fromhex(found[name]) for name in ("sha256", "signature", "countersignature"))
        return _RECEIPT.validate_python((*numbers, *signed), strict=True)
    except (ValidationError, ValueError, TypeError):
        raise InputError(
            field, None, "is not the receipt of a result, as `confide ledger --receipts` writes it"
        ) from None


_RECEIPT: Final = TypeAdapter(Receipt)


def _statement(use: bytes, plan: bytes, attempt: int, sha256: bytes, *servers: int) -> bytes:
    return hashlib.sha256(use + plan + struct.pack(f"<{1 + len(servers)}I", attempt, *servers) + sha256).digest()


def sign(identity: Identity, plan: bytes, attempt: int, relay: int, sha256: bytes) -> bytes:
    """The relay's signature under a result."""
    return identity.sign(_statement(RESULT, plan, attempt, sha256, relay))


def is_signed(public: bytes, signature: bytes, plan: bytes, attempt: int, relay: int, sha256: bytes) -> bool:
    return signed_by(public, signature, _statement(RESULT, plan, attempt, sha256, relay))


def countersign(identity: Identity, plan: bytes, attempt: int, relay: int, server: int, sha256: bytes) -> bytes:
    """The signature of a server that was told this result."""
    return identity.sign(_statement(TOLD, plan, attempt, sha256, relay, server))


def holds(receipt: Receipt, plan: bytes, identities: Sequence[bytes]) -> bool:
    """Whether both are servers of the plan, with these identities, and signed it."""
    attempt, relay, server, sha256, signature, countersignature = receipt
    if max(relay, server) >= len(identities):
        return False
    told = _statement(TOLD, plan, attempt, sha256, relay, server)
    return is_signed(identities[relay], signature, plan, attempt, relay, sha256) and signed_by(
        identities[server], countersignature, told
    )


def disputes(receipts: Iterable[Receipt]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Attempts of which different results were signed, and by whom: one relay that lied, or several of whom one may."""
    signed: dict[int, dict[int, set[bytes]]] = {}
    for receipt in receipts:
        signed.setdefault(receipt.attempt, {}).setdefault(receipt.relay, set()).add(receipt.sha256)
    for attempt, by in sorted(signed.items()):
        yield from ((attempt, (relay,)) for relay, found in sorted(by.items()) if len(found) > 1)
        single = {relay: found for relay, found in sorted(by.items()) if len(found) == 1}
        if len(set().union(*single.values())) > 1:
            yield attempt, tuple(single)
