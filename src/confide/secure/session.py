"""What all parties of a session agree on before and after keys are known: the task, its id, who is whose neighbour."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Final

import numpy as np

from confide.base.errors import InputError
from confide.base.validation import whole
from confide.secure.encoding import RINGS
from confide.secure.messages import SEALED_BYTES, Entry
from confide.secure.parameters import Parameters

PROTOCOL: Final = b"confide secure sum 1"


class RefusedError(ValueError):
    """A message that is not acceptable now; nothing has changed."""


class Why(StrEnum):
    """Why a session ended without a sum."""

    TOO_FEW_ADVERTISED = "fewer clients advertised keys than a sum needs"
    TOO_FEW_SHARED = "fewer clients shared their secrets than a sum needs"
    TOO_FEW_UPDATES = "fewer updates arrived than a sum needs"
    TOO_FEW_CONSENTS = "fewer clients signed the list of survivors than a sum needs"
    TOO_FEW_ANSWERS = "fewer shares arrived than put a secret together"
    WRONG_SHARE = "shares do not give the secret that was shared"
    NOT_LISTED = "the roster does not list this client with its own keys"
    BAD_ROSTER = "the roster is too large or too small, or lists a client or a key twice"
    BAD_SIGNATURE = "a signature is missing or not of the client that it names"
    BAD_KEY = "a public key admits no secret"
    BAD_SHARE = "a sealed share is not from a neighbour or comes twice"
    ALIVE_AND_DEAD = "the question lists a client twice"
    BAD_QUESTION = "the question names clients who did not share, or leaves out one who did"
    LEFT_OUT = "the sum is taken without this client"
    ASKED_TWICE = "a second question came in a session that was answered"
    ANSWERED_BEFORE = "this round was answered before, in another session"


@dataclass(frozen=True)
class Task:
    """One unit's sum in one round: whatever two parties see differently here, they see different sessions.

    Attributes:
        plan: hash of the privacy plan.
        unit, round: whose sum.
        model: hash of the model that was handed out; clients compute it from what they got.
        length: coordinates of an update; ring_bits: of the words (8 is a toy for tests).
    """

    plan: bytes = field(repr=False)
    unit: int
    round: int
    model: bytes = field(repr=False)
    parameters: Parameters
    length: int
    ring_bits: int = 32

    def __post_init__(self) -> None:
        if len(self.plan) != 32 or len(self.model) != 32:
            raise InputError("plan, model", "their lengths", "must be hashes of 32 bytes")
        whole("unit", self.unit, 0, 2**32 - 1)
        whole("round", self.round, 1, 2**32 - 1)
        whole("length", self.length, 1, 2**31)
        if self.ring_bits not in RINGS:
            raise InputError("ring_bits", self.ring_bits, "must be 32 or 64")

    @property
    def dtype(self) -> np.dtype[Any]:
        return RINGS[self.ring_bits]

    @cached_property
    def digest(self) -> bytes:
        p = self.parameters
        numbers = (self.unit, self.round, self.length, self.ring_bits)
        rules = (p.clients, p.degree, p.threshold, p.quorum, p.corrupted, p.server == "active")
        return _hash(PROTOCOL, self.plan, self.model, struct.pack("<10Q", *numbers, *rules))

    @property
    def largest_message(self) -> int:
        """Bytes of the longest message of a session, either way."""
        everyone = self.parameters.clients * (SEALED_BYTES + 96)
        return 1024 + everyone + self.length * self.dtype.itemsize


def advertisement(task: Task, entry: Entry) -> bytes:
    """What a client's identity signs to vouch for its keys, and for the model it was handed."""
    return _hash(b"advertise", task.digest, struct.pack("<I", entry.client), entry.mask_key, entry.channel_key)


def consent(session: bytes, alive: Iterable[int], dead: Iterable[int]) -> bytes:
    """What a client's identity signs to vouch for the question it was asked."""
    return _hash(b"consent", session, _ids(alive), _ids(dead))


def commitment(session: bytes, seed: bytes) -> bytes:
    return _hash(b"seed", session, seed)


class Session:
    """A task with its clients' keys: the id, and the random graph of neighbours that the id draws.

    On the sparse graph clients stand in a circle, in the order of words drawn from SHAKE-256(id), and each one's
    neighbours are the k/2 before and the k/2 after it. The id covers all keys, so nobody draws the graph alone (but see
    `parameters` on what an active server can try).
    """

    def __init__(self, task: Task, entries: Iterable[Entry]) -> None:
        self.task = task
        self.entries = {entry.client: entry for entry in sorted(entries)}
        content = b"".join(struct.pack("<I", e.client) + e.mask_key + e.channel_key for e in self.entries.values())
        self.id = _hash(b"session", task.digest, content)

    @cached_property
    def _circle(self) -> tuple[list[int], dict[int, int]]:
        words = np.frombuffer(hashlib.shake_256(self.id).digest(8 * len(self.entries)), "<u8")
        order = np.array(list(self.entries))[np.argsort(words, kind="stable")].tolist()
        return order, {client: place for place, client in enumerate(order)}

    def neighbours(self, client: int) -> list[int]:
        n, k = len(self.entries), self.task.parameters.degree
        if k >= n - 1:
            return [other for other in self.entries if other != client]
        order, place = self._circle
        at = place[client]
        return sorted(order[(at + step) % n] for step in range(-(k // 2), k // 2 + 1) if step)

    def holders(self, owner: int) -> list[int]:
        """Who has shares of this client's secrets; the place in this list is the point of the polynomial, less one."""
        return list(self.entries) if self.task.parameters.complete else self.neighbours(owner)


def _hash(*parts: bytes) -> bytes:
    """SHA-256 of the parts with their lengths, so that no two lists of parts read the same."""
    h = hashlib.sha256()
    for part in parts:
        h.update(struct.pack("<Q", len(part)))
        h.update(part)
    return h.digest()


def _ids(clients: Iterable[int]) -> bytes:
    found = sorted(clients)
    return struct.pack(f"<{len(found)}I", *found)
