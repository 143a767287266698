"""Receipts of results go round the graph: each server tells its neighbours all that it knows, until they have it.

A relay can keep silent about whom it told what; those whom it told cannot be kept from telling each other. Receipts are
signed, so it does not matter by whom they come. A neighbour is told one message at a time, and the next when it has
taken that one; a message that it does not take is repeated, ever later.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from math import inf as NEVER
from typing import Final

from confide.deploy.machines import release_messages as messages
from confide.deploy.machines.release import Context, Reason
from confide.deploy.machines.release_messages import FromNeighbour
from confide.deploy.machines.results import Results, Row
from confide.deploy.store.books import Status

FIRST: Final = 64  # the first repetition comes after this part of the patience
LAST: Final = 4  # and the last ones are this part of it apart


@dataclass
class _Neighbour:
    """Attributes:
    has: the receipts that it is known to have.
    sent, rows: hash of the message that it has not taken yet, and what is in it.
    at, gap: when that is repeated.
    """

    gap: float
    has: set[Row] = field(default_factory=set)
    sent: bytes = b""
    rows: set[Row] = field(default_factory=set)
    at: float = NEVER


class Passing:
    """All but what is in the books is forgotten by a restart: then neighbours are told everything once more."""

    def __init__(self, context: Context, results: Results) -> None:
        self.context, self.desk, self.results = context, context.desk, results
        self._first = context.part.patience / FIRST
        self._neighbours = {m: _Neighbour(self._first) for m in self.desk.books.neighbours}

    @property
    def wake(self) -> float:
        return min((n.at for n in self._neighbours.values()), default=NEVER)

    def spread(self, now: float) -> None:
        """Whoever lacks something, and has nothing to take first, is told."""
        for m, n in self._neighbours.items():
            if n.at == NEVER and len(n.has) < len(self.desk.books.receipts) and not self._gone(m):
                self._say(now, m)

    def tick(self, now: float) -> None:
        for m, n in self._neighbours.items():
            if now >= n.at:
                self._say(now, m)

    def connected(self, now: float, m: int) -> None:
        """It may have missed everything that was on its way."""
        if m in self._neighbours and self._neighbours[m].at < NEVER:
            self._neighbours[m].gap = self._first
            self._say(now, m)

    def receive(self, now: float, message: FromNeighbour, raw: bytes) -> None:
        n = self._neighbours.get(message.sender)
        if n is None or self._gone(message.sender):
            self.context.refuse(Reason.STRANGER)
        elif isinstance(message, messages.Took):
            if message.sha256 == n.sent:
                n.has |= n.rows
                n.gap = self._first
                self._say(now, message.sender)
        elif (rows := self.results.hear(message.receipts)) is not None:
            n.has |= rows
            self._send(messages.Took(*self._names(message.sender), hashlib.sha256(raw).digest()), message.sender)

    def _say(self, now: float, m: int) -> None:
        n, receipts = self._neighbours[m], self.results.receipts
        rows = [row for row in receipts if row not in n.has][: messages.MOST_RECEIPTS]
        if not rows or self._gone(m):
            n.sent, n.at = b"", NEVER
            return
        raw = self._send(messages.Receipts(*self._names(m), tuple(receipts[row] for row in rows)), m)
        n.sent, n.rows, n.at = hashlib.sha256(raw).digest(), set(rows), now + n.gap
        n.gap = min(2.0 * n.gap, self.context.part.patience / LAST)

    def _send(self, message: FromNeighbour, m: int) -> bytes:
        raw = messages.encode(message)
        self.context.send(m, raw)
        return raw

    def _names(self, m: int) -> tuple[bytes, int, int, int]:
        return self.desk.rules.plan, self.desk.epoch_number, self.desk.rules.me, m

    def _gone(self, m: int) -> bool:
        return self.desk.books.status[m] is Status.REMOVED
