"""What must hold of all stores of a network after every commit (docs/design/flows.md, I1 to I5), and of the bytes
that left.

Sums are over servers and modulo 2^64, to the last bit.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from confide.deploy.machines import release_messages, sync
from confide.deploy.machines.exchange import flow
from confide.deploy.machines.terms import Terms
from confide.deploy.store.books import TO_ALL, Books, Changes, Status, Vector, as_vector


class BrokenError(AssertionError):
    """An invariant does not hold."""


def require(holds: object, what: str) -> None:
    if not holds:
        raise BrokenError(what)


def digest(messages: Mapping[int, bytes]) -> str:
    """Of all messages of a round: the hash of the one, or of the list of those to each neighbour."""
    hashes = {m: hashlib.sha256(message).digest() for m, message in messages.items()}
    if hashes.keys() == {TO_ALL}:
        return hashes[TO_ALL].hex()
    each = (m.to_bytes(4, "little") + hashes[m] for m in sorted(hashes))
    return hashlib.sha256(b"per link" + b"".join(each)).hexdigest()


def pending(terms: Sequence[Terms], books: Sequence[Books]) -> Vector:
    """The flows that entered at exactly one end, each of which must be open at both ends with both messages kept (I2).

    An edge of a removed server, or of one whose store was restored, is not looked at.
    """
    total = np.zeros_like(books[0].contribution)
    for p, mine in enumerate(books):
        for m in (m for m in mine.neighbours if m > p):
            theirs = books[m]
            if mine.status[m] is not Status.OPEN or theirs.status[p] is not Status.OPEN:
                continue
            half = np.zeros_like(total)
            for i in mine.open[m].keys() | theirs.open[p].keys():
                a, b = mine.open[m].get(i), theirs.open[p].get(i)
                if a is None or b is None or a.applied == b.applied:
                    continue  # closed at one end: then it entered both or neither, or the balances will tell
                one, other = mine.message(i, m), theirs.message(i, p)
                require(one is not None and other is not None, f"I2: a message of round {i}, {p}-{m}, is gone")
                entered = flow(terms[p].rules.weights[m], as_vector(other or b""), as_vector(one or b""))
                half += entered if a.applied else -entered
            both = mine.balances[m].total + theirs.balances[p].total
            require(np.array_equal(both, half), f"I2: the balances of {p} and {m} do not differ by what is pending")
            total += half
    return total


def conserved(terms: Sequence[Terms], books: Sequence[Books]) -> None:
    """The sum of the models is the sum of the contributions, but for what is pending."""
    models = np.sum([b.w for b in books], axis=0)
    own = np.sum([b.contribution for b in books], axis=0)
    require(np.array_equal(models, own + pending(terms, books)), "the sum over servers is not conserved")


def bounded(terms: Terms, books: Books) -> None:
    """I5: at most W open records an edge, and exactly the messages that they need."""
    for m, records in books.open.items():
        require(len(records) <= terms.rules.window, f"I5: {len(records)} open records with {m}")
    needed = {(i, m) for m, records in books.open.items() for i in records}
    kept = {(i, m) for i, to in books.out for m in (books.neighbours if to < 0 else (to,)) if (i, m) in needed}
    require(kept == needed, "I5: a message of an open round is gone")
    for i, to in books.out:
        edges = books.neighbours if to < 0 else (to,)
        require(any((i, m) in needed for m in edges), f"I5: the message of round {i} is kept and nobody needs it")


class Watch:
    """Follows a network commit by commit and byte by byte; raises `BrokenError` at the first that is wrong."""

    def __init__(self, terms: Sequence[Terms], books: Sequence[Books]) -> None:
        self.terms = list(terms)
        self.books = [b.copy() for b in books]
        self.entered: dict[tuple[int, int, int], Vector] = {}  # (server, neighbour, round) -> flow
        self.published: dict[tuple[int, int], str | None] = {}  # (server, round) -> hash in the ledger
        self.seen: set[tuple[int, int]] = set()  # (server, round): its sum is paid for
        self.left: dict[tuple[int, int], dict[int, bytes]] = defaultdict(dict)  # (server, round) -> by receiver
        self.commits = 0

    def committed(self, p: int, c: Changes) -> None:
        self.commits += 1
        before, books = self.books[p], self.books[p].copy()
        books.apply(c)
        self._never_falls(p, before, books, c)
        self._once(p, before, books)
        self.books[p] = books
        bounded(self.terms[p], books)
        pending(self.terms, self.books)

    def settle(self) -> None:
        """At the end, or whenever it is worth the time: the sum over servers."""
        conserved(self.terms, self.books)

    def _never_falls(self, p: int, before: Books, after: Books, c: Changes) -> None:
        """I4: a round is decided once, and a contribution changes only with the row that pays for it."""
        require(after.decided >= before.decided, f"I4: server {p} fell back from round {before.decided}")
        rounds = [e.event.round for e in c.entries if e.event.kind in ("message", "skip")]
        expected = list(range(before.decided + 1, after.decided + 1))
        require(rounds == expected, f"I4: server {p} decided {expected} and wrote {rounds} in its ledger")
        seen = [e.event.round for e in c.entries if e.event.kind == "sum"]
        require(len(seen) <= 1 and not {(p, i) for i in seen} & self.seen, f"I4: server {p} paid for a sum twice")
        sent = [e.event for e in c.entries if e.event.kind == "message"]
        paid = len(seen) + sum((p, event.round) not in self.seen for event in sent)
        require(after.published == before.published + paid, f"I4: server {p} miscounts what it paid for")
        self.seen |= {(p, i) for i in seen}
        if c.contribution is not None:
            require(len(sent) == 1, f"I4: server {p} contributed without a row in its ledger")
        for event in sent:
            self.published[p, event.round] = event.sha256

    def _once(self, p: int, before: Books, after: Books) -> None:
        """I1: a flow enters each end at most once, and both ends reckon with the same two messages."""
        for m in after.neighbours:
            was, now = before.balances[m], after.balances[m]
            if now is was or before.status[m] is Status.ADRIFT:
                continue
            fresh = [
                i
                for i, r in after.open[m].items()
                if r.applied and not before.open[m].get(i, r._replace(applied=False)).applied
            ]
            gone = [i for i in before.open[m] if i not in after.open[m] and not before.open[m][i].applied]
            entered = now.total - was.total
            require(
                now.n == was.n + 1 and len(fresh) + len(gone) >= 1, f"I1: server {p} applied without a record of {m}"
            )
            i = fresh[0] if fresh else self._which(p, m, gone, entered)
            require((p, m, i) not in self.entered, f"I1: the flow of round {i} from {m} entered server {p} twice")
            self.entered[p, m, i] = entered
            other = self.entered.get((m, p, i))
            require(
                other is None or np.array_equal(other, -entered),
                f"I1: the ends of {p}-{m} reckon differently in round {i}",
            )

    def _which(self, p: int, m: int, gone: list[int], entered: Vector) -> int:
        """A record that was applied and closed in one transaction."""
        for i in gone:
            mine, theirs = (
                self.books[p].message(i, m),
                self.left.get((m, i), {}).get(p),
            )  # m may have lost its store since
            if (
                mine
                and theirs
                and np.array_equal(flow(self.terms[p].rules.weights[m], as_vector(theirs), as_vector(mine)), entered)
            ):
                return i
        raise BrokenError(f"I1: a flow entered server {p} from {m} that belongs to no open round")

    def sent(self, source: tuple[str, int, int], target: tuple[str, int, int], raw: bytes) -> None:
        """I3: one message a server and round, the same at every repetition, and in the ledger before it leaves."""
        if source[0] != "server" or target[0] != "server" or release_messages.is_one(raw):
            return
        p, m = source[1], target[1]
        message = sync.decode(raw, self.terms[p].largest_sync)
        if not isinstance(message, sync.Sync) or message.offer is None:
            return
        i, blob = message.offer
        require((p, i) in self.published, f"I3: server {p} sent round {i} before it was in its ledger")
        others = self.left[p, i]
        require(others.setdefault(m, blob) == blob, f"I3: server {p} sent other bytes to {m} for round {i}")
        if not self.terms[p].scheme.by_link:
            require(len({hashlib.sha256(b).digest() for b in others.values()}) == 1, f"I3: {p} told neighbours apart")
            sha = digest({-1: blob})
            require(self.published[p, i] == sha, f"I3: the ledger of {p} has another message for round {i}")


def balanced(terms: Sequence[Terms], books: Sequence[Books]) -> None:
    """L1 and L2, when all is over: nothing is open, and the ends of every edge agree."""
    for p, mine in enumerate(books):
        require(not any(mine.open.values()), f"L1: server {p} still has open records")
        for m in mine.neighbours:
            both = mine.balances[m].total + books[m].balances[p].total
            require(not both.any(), f"L2: the balances of {p} and {m} do not cancel")
    conserved(terms, books)
