"""The transitions T1 to T5 (docs/design/flows.md, 4): pure functions from books and message to changes.

Nothing here sends, draws or reads a clock. What a neighbour may not say is an `ExchangeError`, and changes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from confide.deploy.machines.sync import AskBalance, Sync, TellBalance
from confide.deploy.store.books import TO_ALL, Balance, Books, Changes, Entry, Flow, Status, Vector, as_bytes, as_vector
from confide.privacy.ledger import FREE, Cost, Event
from confide.rounds.arithmetic import WEIGHT_BITS, scaled

Weights = Mapping[int, int]  # of each neighbour's edge, in 2^-16


class Reason(StrEnum):
    """Why a server's message is not taken."""

    MALFORMED = "server: malformed"
    PLAN = "server: of another plan"
    NAMES = "server: not from whom it says, or not for this server"
    STRANGER = "server: from a server that is no neighbour"
    REMOVED = "server: from a server that was removed"
    EPOCH = "server: an epoch that does not hold"
    RECORDS = "server: open records must be few, in order, each once"
    ROUND = "server: a round that is not decided or not in the plan"
    UNLISTED = "server: an offer that is not among the sender's open records"
    LENGTH = "server: an offer of another length"
    RANGE = "server: an offer is beyond the range that the plan proves"
    BALANCE_LENGTH = "server: a balance of another length"
    BALANCE_COUNT = "server: a balance of more flows than rounds"


class ExchangeError(ValueError):
    """A message that is not acceptable; nothing has changed."""


class OtherBytesError(ExchangeError):
    """A second message for a round that was offered before."""


class Rules(NamedTuple):
    """What the plan says about the exchange, as server `me` sees it."""

    me: int
    plan: bytes
    weights: Weights
    rounds: int  # T
    window: int  # W
    length: int  # M
    largest: int  # no message has a coordinate beyond it


@dataclass
class Heard:
    """What a SYNC led to."""

    changes: Changes = field(default_factory=Changes)
    early: tuple[int, bytes] | None = None  # an offer for a round that is not decided here yet
    applied: int | None = None  # the round whose flow entered
    void: list[int] = field(default_factory=list)  # rounds that the neighbour never offered
    unbalanced: bool = False  # a settled neighbour has more flows than this end, or as many but not the same


def flow(weight: int, theirs: Vector, mine: Vector) -> Vector:
    """What comes in over an edge: odd in the difference, so that the other end gets exactly its negative."""
    return scaled(weight, theirs - mine, WEIGHT_BITS)


def reveal(books: Books, rules: Rules, cost: Cost, time: int) -> Changes:
    """The own server is about to see the sum of the round after the last, which is paid for whatever becomes of it."""
    event = Event(rules.plan.hex(), "sum", books.decided + 1, rules.me, cost, None, time)
    return Changes(published=books.published + 1, entries=[Entry(event)])


def publish(
    books: Books, rules: Rules, own: Vector, sent: Mapping[int, Vector], cost: Cost | None, time: int
) -> Changes:
    """T1: the round after the last, with what is kept and what is sent to each neighbour.

    An edge with a full window is suspended: not offered in this round, and paid for all the same.

    Args:
        cost: None where the round's sum is paid for: what is made of it is free.
    """
    i = books.decided + 1
    offered = tuple(m for m in books.neighbours if books.status[m] is Status.OPEN and len(books.open[m]) < rules.window)
    messages = {m: as_bytes(x) for m, x in sent.items()} if _differ(sent) else {}
    out: dict[tuple[int, int], bytes | None] = {(i, m): messages[m] for m in offered if messages}
    if not messages and sent:
        one = as_bytes(next(iter(sent.values())))
        messages = {TO_ALL: one}
        out = {(i, TO_ALL): one} if offered else {}
    event = Event(rules.plan.hex(), "message", i, rules.me, FREE if cost is None else cost, digest(messages), time)
    return Changes(
        decided=i,
        published=None if cost is None else books.published + 1,
        contribution=books.contribution + (own - books.w),
        entries=[Entry(event, offered)],
        open={m: {i: Flow()} for m in offered},
        out=out,
        transcript=b"" if books.transcript else None,
    )


def _differ(sent: Mapping[int, Vector]) -> bool:
    return len({id(x) for x in sent.values()}) > 1


def digest(messages: Mapping[int, bytes]) -> str:
    """Of all messages of a round: the hash of the one, or of the list of those to each neighbour."""
    if messages.keys() == {TO_ALL}:
        return hashlib.sha256(messages[TO_ALL]).hexdigest()
    h = hashlib.sha256(b"per link")
    for m in sorted(messages):
        h.update(m.to_bytes(4, "little") + hashlib.sha256(messages[m]).digest())
    return h.hexdigest()


def skip(books: Books, rules: Rules, to: int, time: int) -> Changes:
    """T2: rounds up to `to` are decided without a message, and never published later; a sum that was seen is paid."""
    rounds = range(books.decided + 1, to + 1)
    entries = [Entry(Event(rules.plan.hex(), "skip", i, rules.me, time=time)) for i in rounds]
    return Changes(decided=to, entries=entries, transcript=b"" if books.transcript else None)


def on_sync(books: Books, rules: Rules, sync: Sync) -> Heard:
    """T3: apply an offer, note what the neighbour applied, forget what both have."""
    m, heard = sync.sender, Heard()
    check(rules, sync)
    if books.status[m] is Status.ADRIFT:
        if sync.decided > books.seen[m]:
            heard.changes.seen[m] = sync.decided
        return heard
    records = dict(books.open[m])
    _take_offer(books, rules, sync, records, heard)
    c, theirs = heard.changes, dict(sync.open)
    flows: dict[int, Flow | None] = {}
    for i, record in records.items():
        if theirs.get(i):
            record = record._replace(peer_applied=True)
        if (record.applied and record.peer_applied) or (i not in theirs and i <= sync.decided):
            if not record.applied:
                heard.void.append(i)
            flows[i] = None
        elif record != books.open[m][i]:
            flows[i] = record
    c.open = {m: flows} if flows else {}
    c.out = unneeded(books, c.closed)
    if sync.decided > books.seen[m]:
        c.seen[m] = sync.decided
    if sync.balance is not None and heard.applied is None:
        n, theirs_hash = sync.balance
        own = books.balances[m].n
        heard.unbalanced = n > own or (n == own and theirs_hash != balance_hash(books, rules.me, m))
    return heard


def check(rules: Rules, sync: Sync) -> None:
    """What no honest neighbour says: rounds that cannot be, an offer that it does not list."""
    rounds = [i for i, _ in sync.open]
    if len(rounds) > rules.window or rounds != sorted(set(rounds)):
        raise ExchangeError(Reason.RECORDS)
    if sync.decided > rules.rounds or any(not 1 <= i <= sync.decided for i in rounds):
        raise ExchangeError(Reason.ROUND)
    if sync.offer is not None:
        i, blob = sync.offer
        if i not in rounds:
            raise ExchangeError(Reason.UNLISTED)
        if len(blob) != 8 * rules.length:
            raise ExchangeError(Reason.LENGTH)
        values = as_vector(blob)
        if int(values.max()) > rules.largest or int(values.min()) < -rules.largest:
            raise ExchangeError(Reason.RANGE)


def _take_offer(books: Books, rules: Rules, sync: Sync, records: dict[int, Flow], heard: Heard) -> None:
    if sync.offer is None:
        return
    m, (i, blob) = sync.sender, sync.offer
    if i > books.decided:
        heard.early = sync.offer
    elif i in records and not records[i].applied:
        records[i], heard.changes.balances[m] = _enter(books, rules, m, i, blob)
        heard.applied = i
    elif i in records and records[i].peer_sha256 != hashlib.sha256(blob).digest():
        raise OtherBytesError(f"other bytes for round {i}, which was applied")


def on_early(books: Books, rules: Rules, m: int, i: int, blob: bytes) -> Changes:
    """T3 for an offer that came before its round was decided here: nothing, or its flow."""
    record = books.open[m].get(i)
    if record is None or record.applied:
        return Changes()
    applied, balance = _enter(books, rules, m, i, blob)
    return Changes(balances={m: balance}, open={m: {i: applied}})


def _enter(books: Books, rules: Rules, m: int, i: int, blob: bytes) -> tuple[Flow, Balance]:
    mine = books.out[i, TO_ALL if (i, TO_ALL) in books.out else m]  # I5: the message of an open round is kept
    n, total = books.balances[m]
    entering = flow(rules.weights[m], as_vector(blob), as_vector(mine))
    return books.open[m][i]._replace(applied=True, peer_sha256=hashlib.sha256(blob).digest()), Balance(
        n + 1, total + entering
    )


def unneeded(books: Books, closed: Collection[tuple[int, int]]) -> dict[tuple[int, int], bytes | None]:
    """Messages that no edge needs any more once these records are closed: they go."""
    gone = set(closed)

    def needed(i: int, to: int) -> bool:
        edges = books.neighbours if to == TO_ALL else (to,)
        return any(i in books.open[m] and (m, i) not in gone for m in edges)

    rounds = {i for _, i in gone}
    return {(i, to): None for i, to in books.out if i in rounds and not needed(i, to)}


def balance_hash(books: Books, me: int, m: int) -> bytes:
    """The same at both ends when they have applied the same flows: in the sign of the lower id."""
    total = books.balances[m].total
    return hashlib.sha256(as_bytes(total if me < m else -total)).digest()


def rejoin(books: Books, rules: Rules, to: int, costs: Collection[Cost | None], time: int) -> Changes:
    """A restored store moves to a round that it cannot have passed; the gap is charged as if it had been published.

    Args:
        costs: of its rounds; None where the sum is paid for.
    """
    gap = list(range(books.decided + 1, to + 1))
    entries = [
        Entry(Event(rules.plan.hex(), "message", i, rules.me, FREE if cost is None else cost, None, time))
        for i, cost in zip(gap, costs, strict=True)
    ]
    kept = [m for m in books.neighbours if books.status[m] is not Status.REMOVED]
    return Changes(
        decided=to,
        published=books.published + sum(cost is not None for cost in costs),
        entries=entries,
        open={m: dict.fromkeys(flows) for m, flows in books.open.items() if flows},
        out=dict.fromkeys(books.out),
        status=dict.fromkeys(kept, Status.ADRIFT),
        transcript=b"" if books.transcript else None,
        rejoined=to,
    )


def tell_balance(books: Books, rules: Rules, ask: AskBalance) -> TellBalance | None:
    """What a neighbour with a restored store may rely on: nothing up to its round is open here any more."""
    m = ask.sender
    ready = books.decided >= ask.decided <= books.seen[m] and not any(i <= ask.decided for i in books.open[m])
    if not ready or books.status[m] is not Status.OPEN:
        return None
    n, total = books.balances[m]
    return TellBalance(rules.plan, rules.me, m, ask.decided, ask.nonce, n, as_bytes(total))


def settle(books: Books, rules: Rules, ask: AskBalance, nonce: int) -> Changes | None:
    """Both stores were restored: the lower id's balance holds, once the other is known to take no older answer.

    The question repeats the nonce of this machine, so that it was asked since; and its own nonce is new since.
    """
    m = ask.sender
    ready = books.decided >= ask.decided and books.seen[m] >= max(ask.decided, books.rejoined)
    if not ready or books.status[m] is not Status.ADRIFT or rules.me > m or ask.echo != nonce:
        return None
    return Changes(status={m: Status.OPEN})


def on_balance(books: Books, rules: Rules, tell: TellBalance) -> Changes | None:
    """The other end's balance, negated, is ours: then the edge is in use again."""
    m = tell.sender
    if books.status[m] is not Status.ADRIFT or tell.decided != books.rejoined:
        return None
    if len(tell.total) != 8 * rules.length:
        raise ExchangeError(Reason.BALANCE_LENGTH)
    if tell.n > tell.decided:
        raise ExchangeError(Reason.BALANCE_COUNT)
    total = np.negative(as_vector(tell.total))
    return Changes(balances={m: Balance(tell.n, total)}, status={m: Status.OPEN})


def remove(books: Books, removed: Collection[int], epoch: bytes) -> Changes:
    """T4: the edges to these servers are closed for good; what had come in over them stays (and is reported)."""
    gone = [m for m in books.neighbours if m in removed and books.status[m] is not Status.REMOVED]
    return Changes(
        open={m: dict.fromkeys(books.open[m]) for m in gone if books.open[m]},
        out=unneeded(books, [(m, i) for m in gone for i in books.open[m]]),
        status=dict.fromkeys(gone, Status.REMOVED),
        epoch=epoch,
    )


def make_sync(books: Books, rules: Rules, m: int, *, epoch: int, offer: int | None = None, ask: bool = False) -> Sync:
    """What the committed books say to a neighbour."""
    records = books.open[m]
    blob = None if offer is None else books.message(offer, m)
    return Sync(
        plan=rules.plan,
        epoch=epoch,
        sender=rules.me,
        receiver=m,
        decided=books.decided,
        open=tuple((i, records[i].applied) for i in sorted(records)),
        offer=None if offer is None or blob is None else (offer, blob),
        ask=ask,
        seen=books.seen[m],
        balance=None
        if records or books.status[m] is not Status.OPEN
        else (books.balances[m].n, balance_hash(books, rules.me, m)),
    )
