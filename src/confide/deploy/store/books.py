"""A server's durable state, and the only way in which it changes.

A transition (`exchange`) reads the `Books` and gives `Changes`; the store makes them durable in one transaction, and
`apply` carries them out here. The model is never stored: w = contribution + sum of the balances
(docs/design/flows.md, I2).
"""

# ruff: noqa: RUF009 - `kept` gives a dataclass field, as `dataclasses.field` does
from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, Generic, NamedTuple, Never, TypeVar

import numpy as np

from confide.deploy.store.columns import (
    BYTES,
    COUNT,
    FLAG,
    IDS,
    SECONDS,
    VECTOR,
    Vector,
    as_bytes,
    as_vector,
    word,
)
from confide.deploy.store.kept import Key, Table, copied, flat, joined, kept, merge, tables
from confide.privacy.ledger import Event

__all__ = ["Vector", "as_bytes", "as_vector"]  # and what is defined here

TO_ALL: Final = -1  # the receiver of a message that is the same for every neighbour
TO_NOBODY: Final = -2  # and of none: a restored store was moved to this round
Place = tuple[int, int, int]  # of a publication: server, round, receiver


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
    """Of an edge. Adrift: the store was restored, and the neighbour has not told the balance yet: no offers. Suspect:
    there was an alarm about it, and neither end has rejoined since: no offers either."""

    OPEN = "open"
    ADRIFT = "adrift"
    SUSPECT = "suspect"
    REMOVED = "removed"


class Attempt(NamedTuple):
    """A round that was opened: its clients stay the same however often the server starts again."""

    round: int
    number: int  # counts restarts, so that late messages of an earlier attempt are told apart
    sample: tuple[int, ...]


class Outcome(NamedTuple):
    """The sum of a release over so many servers, with its noise: what everybody may know."""

    servers: int
    total: Vector


class Told(NamedTuple):
    """What one server was told by one relay, as both signed it (`secure.receipts`)."""

    sha256: bytes
    signature: bytes
    countersignature: bytes


class Signed(NamedTuple):
    """What a server signed of a publication."""

    sha256: bytes  # of its message
    signature: bytes


class Pace(NamedTuple):
    """The last round that this server decided by itself, following nobody, and when."""

    round: int
    time: float


class Entry(NamedTuple):
    """A row of the ledger, with the neighbours to whom the round was offered."""

    event: Event
    offered: tuple[int, ...] = ()


Row = tuple[str, Key]  # the field, and which of its rows
Gone = TypeVar("Gone")  # None in `Changes`: as it was, or for a row: it goes. In `Books` there is no such value


@dataclass
class Durable(Generic[Gone]):
    """What a server must not forget: a line here is all that a durable field takes."""

    contribution: Vector | Gone = kept(lambda start: start, part="state", secret=True, total=VECTOR)
    decided: int | Gone = kept(0, table="state", decided=COUNT)  # the last round, published or skipped; never falls
    # Rounds that were paid for: those of a gap too, and sums that were seen and not published.
    published: int | Gone = kept(0, table="state", published=COUNT)
    rejoined: int | Gone = kept(0, table="state", rejoined=COUNT)  # the round to which a restored store was moved
    # The highest `decided` ever heard of each neighbour.
    seen: dict[int, int] = kept(0, by=("edge",), table="edges", seen=COUNT)
    status: dict[int, Status] = kept(Status.OPEN, by=("edge",), table="edges", status=word(Status))
    balances: dict[int, Balance] = kept(
        lambda start: Balance(0, np.zeros_like(start)),
        by=("edge",), part="applied", secret=True, make=Balance, n=COUNT, total=VECTOR,
    )  # fmt: skip
    open: dict[int, dict[int, Flow | Gone]] = kept(
        lambda _: {}, by=("edge", "round"), part="flagged",
        make=Flow, applied=FLAG, peer_applied=FLAG, peer_sha256=BYTES,
    )  # fmt: skip
    out: dict[tuple[int, int], bytes | Gone] = kept(by=("round", "receiver"), part="state", secret=True, message=BYTES)
    attempt: Attempt | Gone | None = kept(make=Attempt, round=COUNT, number=COUNT, sample=IDS)
    transcript: bytes | Gone = kept(b"", secret=True, words=BYTES)  # of the secure sum, from the question on
    epoch: bytes | Gone = kept(b"", words=BYTES)
    # The last attempt at a release, its words and how many were answered.
    release: bytes | Gone = kept(b"", secret=True, record=BYTES)
    # By attempt and relay, to which an answer may have left that makes the sum: the epoch.
    relays: dict[tuple[int, int], int | Gone] = kept(by=("attempt", "relay"), since=2, epoch=COUNT)
    released: dict[int, Outcome | Gone] = kept(by=("attempt",), since=2, make=Outcome, servers=COUNT, total=VECTOR)
    # By attempt, relay, server, and which of the relay's results it is: 1 is another than 0, and the evidence.
    receipts: dict[tuple[int, int, int, int], Told | Gone] = kept(
        by=("attempt", "relay", "server", "which"), since=2,
        make=Told, result=BYTES, signature=BYTES, countersignature=BYTES,
    )  # fmt: skip
    # The publications that servers signed, and against each server the first proof that it signed two for one place.
    signed: dict[Place, Signed | Gone] = kept(
        by=("server", "round", "receiver"), since=2, make=Signed, message=BYTES, signature=BYTES
    )
    proofs: dict[int, bytes | Gone] = kept(by=("server",), since=2, words=BYTES)
    pace: Pace | Gone | None = kept(since=2, make=Pace, round=COUNT, time=SECONDS)
    # A round that this server signed and this store does not know, as a neighbour has shown: it is an old store.
    overtaken: int | Gone = kept(0, since=2, round=COUNT)


TABLES: Final[list[Table]] = tables(Durable)


@dataclass
class Changes(Durable[None]):
    """What one transition writes: all of it, or nothing. A field that is not named stays, a row that is None goes."""

    entries: list[Entry] = field(default_factory=list)

    def __bool__(self) -> bool:
        return any(bool(v) if isinstance(v, list | dict) else v is not None for v in vars(self).values())

    def then(self, after: Changes) -> Changes:
        """Both in one transaction. No row that this one makes may go in the other."""
        both = replace(self, entries=[*self.entries, *after.entries])
        for name, change in vars(after).items():
            if isinstance(change, dict):
                if change:
                    setattr(both, name, joined(getattr(self, name), change))
            elif change is not None and name != "entries":
                setattr(both, name, change)
        return both

    def new_in(self, books: Books) -> set[Row]:
        """Rows that these books do not have yet."""
        there = {name: dict(flat(getattr(books, name))) for name, rows in self._rows() if rows}
        return {
            (name, key) for name, rows in self._rows() for key, x in rows if x is not None and key not in there[name]
        }

    @property
    def rows_that_go(self) -> set[Row]:
        return {(name, key) for name, rows in self._rows() for key, x in rows if x is None}

    def _rows(self) -> list[tuple[str, list[tuple[Key, Any]]]]:
        return [(name, list(flat(rows))) for name, rows in vars(self).items() if isinstance(rows, dict)]

    @property
    def opened(self) -> dict[tuple[int, int], Flow]:
        """Records that are new or have other flags, by neighbour and round."""
        return {(m, i): flow for m, flows in self.open.items() for i, flow in flows.items() if flow is not None}

    @property
    def closed(self) -> list[tuple[int, int]]:
        return [(m, i) for m, flows in self.open.items() for i, flow in flows.items() if flow is None]

    @property
    def dropped(self) -> list[tuple[int, int]]:
        """Messages that go, by round and receiver."""
        return [key for key, message in self.out.items() if message is None]


@dataclass
class Books(Durable[Never]):
    """The image of a store in memory."""

    neighbours: tuple[int, ...] = ()

    @classmethod
    def fresh(cls, start: Vector, neighbours: tuple[int, ...]) -> Books:
        books = cls(neighbours=neighbours)
        for table in TABLES:
            for name, f in table.fields.items():
                if not table.by:
                    setattr(books, name, f.begin(start))
                elif table.by[0] == "edge":
                    setattr(books, name, {m: f.begin(start) for m in neighbours})
        return books

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
        for name, change in vars(c).items():
            if change is None or name == "entries":
                continue
            if not isinstance(change, dict):
                setattr(self, name, change)
            elif change:  # most transitions change a few fields
                merge(getattr(self, name), change)

    def after(self, c: Changes) -> Books:
        """A copy in which these changes are carried out."""
        books = self.copy()
        books.apply(c)
        return books

    def copy(self) -> Books:
        return Books(**{name: copied(value) for name, value in vars(self).items()})
