"""Removing servers for good: an epoch names all who are gone, and a majority of the plan's servers signs it.

The weights of the other edges do not change: a removed neighbour's weight returns to a server's own message, as that of
a neighbour that is down (docs/design/flows.md, T4). So a record of an older epoch keeps its weight by construction.

More than half of ALL servers of the plan sign, those that are gone included in the count, so that any two valid epochs
share a signer. An operator therefore signs rising numbers only, each for a set that strictly contains all that it
signed before: then of any two valid epochs the later contains the earlier, and a server may miss any of them.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Annotated, Final

from annotated_types import Len
from pydantic import AfterValidator, FailFast, Field
from pydantic.dataclasses import dataclass

from confide.base import wire
from confide.base.errors import InputError
from confide.base.validation import whole
from confide.deploy.machines.terms import Terms
from confide.secure.keys import Identity, signed_by
from confide.secure.messages import Hash, Signature

LARGEST_SERVERS: Final = 1 << 16
LARGEST_BYTES: Final = 128 + 80 * LARGEST_SERVERS  # a removed server takes at most 3 bytes, a signature 70
USE: Final = b"confide epoch"
Server = Annotated[int, Field(ge=0, lt=LARGEST_SERVERS)]


class EpochError(ValueError):
    """An epoch that a server does not follow, and why."""


def _increasing(removed: tuple[int, ...]) -> tuple[int, ...]:
    if any(a >= b for a, b in pairwise(removed)):
        raise ValueError("must be in order, each once")
    return removed


@dataclass(frozen=True, config=wire.STRICT)
class Epoch:
    plan: Hash
    number: Annotated[int, Field(ge=1, lt=2**32)]  # the plan itself is epoch 0
    removed: Annotated[tuple[Server, ...], Len(1, LARGEST_SERVERS), FailFast(), AfterValidator(_increasing)]  # all ever
    signatures: Annotated[tuple[tuple[Server, Signature], ...], Len(1, LARGEST_SERVERS), FailFast()]


KINDS: Final[dict[str, type[Epoch]]] = wire.kinds(Epoch)
encode = wire.encode


def decode(raw: bytes) -> Epoch:
    """Its form alone; whether it holds is for `check`."""
    return wire.decode(raw, KINDS, LARGEST_BYTES)


def statement(plan: bytes, number: int, removed: Iterable[int]) -> bytes:
    """What a server's operator signs: of this plan, with this number, exactly this set is gone."""
    if len(plan) != 32:
        raise InputError("plan", f"{len(plan)} bytes", "must be a hash of 32 bytes")
    whole("number", number, 1, 2**32 - 1)
    gone = sorted({whole("removed", p, 0, LARGEST_SERVERS - 1) for p in removed})
    return hashlib.sha256(USE + plan + struct.pack(f"<I{len(gone)}I", number, *gone)).digest()


def sign(identity: Identity, server: int, plan: bytes, number: int, removed: Iterable[int]) -> tuple[int, bytes]:
    """An entry of `Epoch.signatures`."""
    return server, identity.sign(statement(plan, number, removed))


def check(epoch: Epoch, terms: Terms, previous: Epoch | None) -> None:
    """Raise `EpochError` unless this epoch follows the previous one; servers may have missed epochs between.

    Args:
        epoch: as received.
        terms: of the server; they name the keys of all servers of the plan, those that are gone included.
        previous: the last epoch that the server followed, if any.
    """
    if epoch.plan != terms.rules.plan:
        raise EpochError("it is of another plan")
    _check_order(epoch, previous)
    _check_remaining(epoch.removed, len(terms.rules.identities), terms.edges)
    _check_signatures(epoch, terms.rules.identities)


def _check_order(epoch: Epoch, previous: Epoch | None) -> None:
    if previous is None:
        return
    if epoch.number <= previous.number:
        raise EpochError(f"its number is {epoch.number}, and epoch {previous.number} is already followed")
    back = set(previous.removed) - set(epoch.removed)
    if back:
        raise EpochError(f"server {min(back)} was removed before, and a removed server never returns")
    if len(epoch.removed) == len(previous.removed):
        raise EpochError(f"it removes nobody whom epoch {previous.number} did not remove")


def _check_remaining(removed: tuple[int, ...], P: int, edges: Iterable[tuple[int, int]]) -> None:
    if removed[-1] >= P:
        raise EpochError(f"it removes server {removed[-1]}; the plan has 0 to {P - 1}")
    remaining = set(range(P)) - set(removed)
    if len(remaining) < 2:
        raise EpochError("fewer than two servers remain: make a new plan")
    unreached = _unreached(remaining, edges)
    if unreached:
        raise EpochError(f"server {min(unreached)} no longer reaches server {min(remaining)}: make a new plan")


def _check_signatures(epoch: Epoch, identities: Sequence[bytes]) -> None:
    """All that is cheap first, so that what is refused for it costs no signature check."""
    P, removed = len(identities), set(epoch.removed)
    signers = [server for server, _ in epoch.signatures]
    if len(set(signers)) < len(signers):
        raise EpochError("a server signed it twice")
    if max(signers) >= P:
        raise EpochError(f"server {max(signers)} signed it; the plan has 0 to {P - 1}")
    gone = removed & set(signers)
    if gone:
        raise EpochError(f"server {min(gone)} signed it, and is removed by it")
    if 2 * len(signers) <= P:
        raise EpochError(f"{len(signers)} of {P} servers signed it; more than half must")
    said = statement(epoch.plan, epoch.number, epoch.removed)
    for server, signature in epoch.signatures:
        if not signed_by(identities[server], signature, said):
            raise EpochError(f"the signature of server {server} is not valid")


def _unreached(servers: set[int], edges: Iterable[tuple[int, int]]) -> set[int]:
    """Those that no path inside `servers` joins to the first."""
    beside: dict[int, list[int]] = {p: [] for p in servers}
    for i, j in edges:
        if i in servers and j in servers:
            beside[i].append(j)
            beside[j].append(i)
    rest, todo = set(servers), [min(servers)]
    while todo:
        p = todo.pop()
        if p in rest:
            rest.remove(p)
            todo += beside[p]
    return rest
