"""A server's durable state, and the only way in which it changes.

A transition (`exchange`) reads the `Books` and gives `Changes`; the store makes them durable in one transaction, and
`apply` carries them out here. The model is never stored: w = contribution + sum of the balances
(docs/design/flows.md, I2).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from confide.privacy.ledger import Event

Vector = NDArray[np.int64]  # never changed in place, so that copies of the books may share it
TO_ALL: Final = -1  # the receiver of a message that is the same for every neighbour


class Flow(NamedTuple):
    """An open record: this round was offered on this edge, and not both ends are known to have applied it."""

    applied: bool = False
    peer_applied: bool = False
    peer_sha256: bytes = b""  # of the neighbour's message, once applied


class Balance(NamedTuple):
    """The sum of the flows that came in over an edge, and how many they were."""

    n: int
    total: Vector


class Status(StrEnum):
    """Of an edge. Adrift: the store was restored, and the neighbour has not told the balance yet: no offers."""

    OPEN = "open"
    ADRIFT = "adrift"
    REMOVED = "removed"


class Attempt(NamedTuple):
    """A round that was opened: its clients stay the same however often the server starts again."""

    round: int
    number: int  # counts restarts, so that late messages of an earlier attempt are told apart
    sample: tuple[int, ...]


class Entry(NamedTuple):
    """A row of the ledger, with the neighbours to whom the round was offered."""

    event: Event
    offered: tuple[int, ...] = ()


@dataclass
class Changes:
    """What one transition writes: all of it, or nothing."""

    decided: int | None = None
    published: int | None = None
    contribution: Vector | None = None
    entries: list[Entry] = field(default_factory=list)
    balances: dict[int, Balance] = field(default_factory=dict)
    seen: dict[int, int] = field(default_factory=dict)
    status: dict[int, Status] = field(default_factory=dict)
    opened: dict[tuple[int, int], Flow] = field(default_factory=dict)  # (neighbour, round): new or other flags
    closed: list[tuple[int, int]] = field(default_factory=list)  # (neighbour, round)
    out: dict[tuple[int, int], bytes] = field(default_factory=dict)  # (round, receiver) -> message
    dropped: list[tuple[int, int]] = field(default_factory=list)  # (round, receiver)
    attempt: Attempt | None = None
    transcript: bytes | None = None  # b"" removes it
    epoch: bytes | None = None
    rejoined: int | None = None
    release: bytes | None = None  # the record of the last attempt at a release

    def __bool__(self) -> bool:
        return any(bool(v) if isinstance(v, list | dict) else v is not None for v in vars(self).values())


@dataclass
class Books:
    """The image of a store in memory. Secret: the contribution, the balances' sum, the messages until they left."""

    contribution: Vector = field(repr=False)
    neighbours: tuple[int, ...]
    decided: int = 0  # the last decided round, published or skipped; never falls
    published: int = 0  # rounds that were paid for: those of a gap too, and sums that were seen and not published
    balances: dict[int, Balance] = field(default_factory=dict, repr=False)
    seen: dict[int, int] = field(default_factory=dict)  # the highest `decided` ever heard of each neighbour
    status: dict[int, Status] = field(default_factory=dict)
    open: dict[int, dict[int, Flow]] = field(default_factory=dict)  # by neighbour and round
    out: dict[tuple[int, int], bytes] = field(default_factory=dict, repr=False)
    attempt: Attempt | None = None
    transcript: bytes = field(default=b"", repr=False)  # of the secure sum, from the question on
    epoch: bytes = b""
    rejoined: int = 0  # the round to which the last restored store was moved
    release: bytes = field(default=b"", repr=False)  # the last attempt, its words and how many were answered

    @classmethod
    def fresh(cls, start: Vector, neighbours: tuple[int, ...]) -> Books:
        zero = np.zeros_like(start)
        return cls(
            start,
            neighbours,
            balances={m: Balance(0, zero) for m in neighbours},
            seen=dict.fromkeys(neighbours, 0),
            status=dict.fromkeys(neighbours, Status.OPEN),
            open={m: {} for m in neighbours},
        )

    @property
    def w(self) -> Vector:
        """The model: own contribution plus what came in over the edges."""
        total = self.contribution.copy()
        for balance in self.balances.values():
            total += balance.total
        return total

    def message(self, round: int, receiver: int) -> bytes | None:
        """What was published for this neighbour in this round, while it is kept."""
        return self.out.get((round, TO_ALL)) or self.out.get((round, receiver))

    def apply(self, c: Changes) -> None:
        if c.decided is not None:
            self.decided = c.decided
        if c.published is not None:
            self.published = c.published
        if c.contribution is not None:
            self.contribution = c.contribution
        self.balances.update(c.balances)
        self.seen.update(c.seen)
        self.status.update(c.status)
        for (m, i), flow in c.opened.items():
            self.open[m][i] = flow
        for m, i in c.closed:
            del self.open[m][i]
        self.out.update(c.out)
        for key in c.dropped:
            del self.out[key]
        if c.attempt is not None:
            self.attempt = c.attempt
        if c.transcript is not None:
            self.transcript = c.transcript
        if c.epoch is not None:
            self.epoch = c.epoch
        if c.rejoined is not None:
            self.rejoined = c.rejoined
        if c.release is not None:
            self.release = c.release

    def copy(self) -> Books:
        """Another image; vectors and messages are shared, since nobody changes them in place."""
        return Books(
            self.contribution,
            self.neighbours,
            self.decided,
            self.published,
            dict(self.balances),
            dict(self.seen),
            dict(self.status),
            {m: dict(flows) for m, flows in self.open.items()},
            dict(self.out),
            self.attempt,
            self.transcript,
            self.epoch,
            self.rejoined,
            self.release,
        )


def as_bytes(x: Vector) -> bytes:
    return x.astype("<i8", copy=False).tobytes()


def as_vector(raw: bytes) -> Vector:
    return np.frombuffer(raw, "<i8").astype(np.int64, copy=False)
