"""The transitions T1 to T5 (docs/design/flows.md, 4): pure functions from books and message to changes.

Nothing here sends, draws or reads a clock. What a neighbour may not say is an `ExchangeError`, and changes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from confide.deploy.machines import evidence
from confide.deploy.machines.evidence import Proof, Publication, Sign
from confide.deploy.machines.sync import AskBalance, Sync, TellBalance
from confide.deploy.store.books import (
    TO_ALL,
    TO_NOBODY,
    Balance,
    Books,
    Changes,
    Entry,
    Flow,
    Pace,
    Place,
    Signed,
    Status,
    Vector,
    as_bytes,
    as_vector,
)
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
    RECORDS = "server: open rounds must be sorted, unique and at most as many as the window"
    ROUND = "server: a round that is not decided or not in the plan"
    UNLISTED = "server: an offer that is not among the sender's open records"
    LENGTH = "server: an offer of another length"
    RANGE = "server: an offer is beyond the range that the plan proves"
    UNSIGNED = "server: an offer without its signature"
    SIGNATURE = "server: a signature that does not hold"
    CLOCK = "server: a round that this clock has not reached; one of the two clocks is wrong, or it lies"
    UNSEEN = "server: it has seen a round of this server, it says, and shows no signature of it"
    BALANCE_LENGTH = "server: a balance of another length"
    BALANCE_COUNT = "server: a balance of more flows than rounds"
    BALANCE_RANGE = "server: a balance beyond what so many flows can add up to"
    FELL = "server: its rounds fell back, so its store is older than what left"


class ExchangeError(ValueError):
    """A message that is not acceptable; nothing has changed."""


class LieError(ExchangeError):
    """One of which the operator hears: no honest server says it, as far as clocks are right."""


class OtherBytesError(ExchangeError):
    """A second message for a round that was offered before; with both signatures, if there are two."""

    def __init__(self, what: str, proof: Proof | None = None) -> None:
        super().__init__(what)
        self.proof = proof


class Rules(NamedTuple):
    """What the plan says about the exchange, as server `me` sees it."""

    me: int
    plan: bytes
    weights: Weights
    rounds: int  # T
    window: int  # W
    length: int  # M
    largest: int  # no message has a coordinate beyond it
    identities: Sequence[bytes]  # of all servers
    by_link: bool  # each neighbour has a message of its own


class Clock(NamedTuple):
    """What a moment allows.

    Attributes:
        latest: no honest server speaks of a round beyond it.
        own: the last round that this server decided by itself.
        unsigned: nor does one speak of so many rounds beyond that and beyond what anybody has signed.
    """

    latest: int
    own: int
    unsigned: int


@dataclass
class Heard:
    """What a SYNC led to."""

    changes: Changes = field(default_factory=Changes)
    early: tuple[int, bytes] | None = None  # an offer for a round that is not decided here yet
    applied: int | None = None  # the round whose flow entered
    believed: int = 0  # how far the neighbour is, as far as signatures and the clock show it
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
    books: Books, rules: Rules, own: Vector, sent: Mapping[int, Vector], cost: Cost | None, time: float, sign: Sign
) -> Changes:
    """T1: the round after the last, with what is kept and what is sent to each neighbour.

    An edge with a full window or after an alarm is suspended: not offered in this round, and paid for all the same.

    Args:
        cost: None where the round's sum is paid for: what is made of it is free.
        sign: with this server's identity. What is not offered is signed, too: it shows how far the server is.
    """
    i = books.decided + 1
    offered = tuple(m for m in books.neighbours if books.status[m] is Status.OPEN and len(books.open[m]) < rules.window)
    messages = {m: as_bytes(x) for m, x in sent.items()} if len({id(x) for x in sent.values()}) > 1 else {}
    out: dict[tuple[int, int], bytes | None] = {(i, m): messages[m] for m in offered if messages}
    if not messages and sent:
        one = as_bytes(next(iter(sent.values())))
        messages = {TO_ALL: one}
        out = {(i, TO_ALL): one} if offered else {}
    price = FREE if cost is None else cost
    signed = evidence.sign(sign, rules.plan, rules.me, i, messages)
    hashes = {receiver: s.sha256 for (_, _, receiver), s in signed.items()}
    event = Event(rules.plan.hex(), "message", i, rules.me, price, _together(hashes), int(time))
    return Changes(
        decided=i,
        published=None if cost is None else books.published + 1,
        contribution=books.contribution + (own - books.w),
        entries=[Entry(event, offered)],
        open={m: {i: Flow()} for m in offered},
        out=out,
        transcript=b"" if books.transcript else None,
        signed=evidence.kept(books, rules.me, rules.window, signed),
        pace=Pace(i, time),
    )


def _together(hashes: Mapping[int, bytes]) -> str:
    if hashes.keys() == {TO_ALL}:
        return hashes[TO_ALL].hex()
    h = hashlib.sha256(b"per link")
    for m in sorted(hashes):
        h.update(m.to_bytes(4, "little") + hashes[m])
    return h.hexdigest()


def skip(books: Books, rules: Rules, to: int, time: float, *, following: bool = False) -> Changes:
    """T2: rounds up to `to` are decided without a message, and never published later; a sum that was seen is paid.

    Args:
        following: neighbours are there already; else this server's own deadline has passed.
    """
    rounds = range(books.decided + 1, to + 1)
    entries = [Entry(Event(rules.plan.hex(), "skip", i, rules.me, time=int(time))) for i in rounds]
    pace = None if following else Pace(to, time)
    return Changes(decided=to, entries=entries, transcript=b"" if books.transcript else None, pace=pace)


def on_sync(books: Books, rules: Rules, sync: Sync, clock: Clock) -> Heard:
    """T3: apply an offer, note what the neighbour applied, forget what both have. For a SYNC that `check` lets pass."""
    m, heard = sync.sender, Heard()
    c = heard.changes
    if fresh := _news(books, rules, sync, clock):
        c.signed = evidence.kept(books, rules.me, rules.window, fresh)
    shown = clock.own
    if sync.decided > shown + clock.unsigned:
        shown = max(shown, evidence.furthest((*books.signed, *fresh)))
    heard.believed = min(sync.decided, shown + clock.unsigned)
    if heard.believed > books.seen[m]:
        c.seen[m] = heard.believed
    if books.status[m] is Status.ADRIFT:
        return heard
    records = dict(books.open[m])
    _take_offer(books, rules, sync, records, heard)
    theirs = dict(sync.open)
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
    if sync.balance is not None and heard.applied is None:
        n, theirs_hash = sync.balance
        own = books.balances[m].n
        heard.unbalanced = n > own or (n == own and theirs_hash != balance_hash(books, rules.me, m))
    return heard


def check(rules: Rules, sync: Sync, clock: Clock) -> None:
    """What no honest neighbour says: rounds that cannot be, an offer that it does not list or sign."""
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
        signed = signature_of(rules, sync)
        if signed is None or signed.sha256 != hashlib.sha256(blob).digest():
            raise ExchangeError(Reason.UNSIGNED)
    shown = [p.round for p in sync.shown if p.server in (sync.sender, rules.me)]  # of others it may be their lie
    if max(sync.decided, sync.seen, *shown) > clock.latest:
        raise LieError(Reason.CLOCK)


def signature_of(rules: Rules, sync: Sync) -> Publication | None:
    """That of the offer. Where all get the same, a signature for one of them is none."""
    i = 0 if sync.offer is None else sync.offer[0]
    to = (TO_ALL, rules.me) if rules.by_link else (TO_ALL,)
    places = [(sync.sender, i, receiver) for receiver in to]
    return next((p for p in sync.shown if p.place in places), None)


def own_beyond(books: Books, rules: Rules, sync: Sync) -> int:
    """The highest round beyond the last that this server signed, as the neighbour shows; 0 if there is none."""
    mine = [p for p in sync.shown if p.server == rules.me and p.round > books.decided]
    if any(not evidence.holds(rules.plan, rules.identities, p) for p in mine):
        raise ExchangeError(Reason.SIGNATURE)
    if not mine and sync.seen > books.decided:
        raise LieError(Reason.UNSEEN)
    return max((p.round for p in mine), default=0)


def _news(books: Books, rules: Rules, sync: Sync, clock: Clock) -> dict[Place, Signed]:
    """What is shown here for the first time and of use; a signature beside another for the same place is a proof."""
    m, fresh, offered = sync.sender, dict[Place, Signed](), 0 if sync.offer is None else sync.offer[0]
    known = books.signed
    unknown = [p for p in sync.shown if p.place not in known or known[p.place].sha256 != p.sha256]
    if not unknown:
        return fresh
    taken = offered > books.decided or not books.open[m].get(offered, Flow(applied=True)).applied
    last, furthest = evidence.furthest(known, m), evidence.furthest(known)
    far = sync.decided > max(clock.own, furthest) + clock.unsigned
    for p in unknown:
        of_offer = p.server == m and p.round == offered and taken
        newer = p.round > last if p.server == m else far and furthest < p.round <= clock.latest
        if p.place not in known and not of_offer and not newer:
            continue
        if not evidence.holds(rules.plan, rules.identities, p):
            raise ExchangeError(Reason.SIGNATURE)
        if p.place in known:
            proof = Proof(rules.plan, Publication(*p.place, *known[p.place]), p)
            raise OtherBytesError(f"other bytes for round {p.round}", proof)
        fresh[p.place] = p.signed
    return fresh


def _take_offer(books: Books, rules: Rules, sync: Sync, records: dict[int, Flow], heard: Heard) -> None:
    if sync.offer is None:
        return
    m, (i, blob), signed = sync.sender, sync.offer, signature_of(rules, sync)
    assert signed is not None  # noqa: S101 - `check` has seen it
    if i > books.decided:
        heard.early = sync.offer
    elif i in records and not records[i].applied:
        records[i], heard.changes.balances[m] = _enter(books, rules, m, i, blob, signed.sha256)
        heard.applied = i
    elif i in records and records[i].peer_sha256 != signed.sha256:
        raise OtherBytesError(f"other bytes for round {i}, which was applied")


def on_early(books: Books, rules: Rules, m: int, i: int, blob: bytes) -> Changes:
    """T3 for an offer that came before its round was decided here: nothing, or its flow."""
    record = books.open[m].get(i)
    if record is None or record.applied:
        return Changes()
    applied, balance = _enter(books, rules, m, i, blob, hashlib.sha256(blob).digest())
    return Changes(balances={m: balance}, open={m: {i: applied}})


def _enter(books: Books, rules: Rules, m: int, i: int, blob: bytes, sha256: bytes) -> tuple[Flow, Balance]:
    mine = books.out[i, TO_ALL if (i, TO_ALL) in books.out else m]  # I5: the message of an open round is kept
    n, total = books.balances[m]
    entering = flow(rules.weights[m], as_vector(blob), as_vector(mine))
    return books.open[m][i]._replace(applied=True, peer_sha256=sha256), Balance(n + 1, total + entering)


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


def rejoin(books: Books, rules: Rules, to: int, costs: Collection[Cost | None], time: float, sign: Sign) -> Changes:
    """A restored store moves to a round that it cannot have passed; the gap is charged as if it had been published.

    Args:
        costs: of its rounds; None where the sum is paid for.
        sign: the server says by it that it moved, so that neighbours believe it.
    """
    gap = list(range(books.decided + 1, to + 1))
    entries = [
        Entry(Event(rules.plan.hex(), "message", i, rules.me, FREE if cost is None else cost, None, int(time)))
        for i, cost in zip(gap, costs, strict=True)
    ]
    kept = [m for m in books.neighbours if books.status[m] is not Status.REMOVED]
    moved = evidence.sign(sign, rules.plan, rules.me, to, {TO_NOBODY: b""})
    return Changes(
        decided=to,
        published=books.published + sum(cost is not None for cost in costs),
        entries=entries,
        open={m: dict.fromkeys(flows) for m, flows in books.open.items() if flows},
        out=dict.fromkeys(books.out),
        status=dict.fromkeys(kept, Status.ADRIFT),
        transcript=b"" if books.transcript else None,
        rejoined=to,
        signed=evidence.kept(replace(books, out={}), rules.me, rules.window, moved),
        pace=Pace(to, time),
        overtaken=0,
    )


def tell_balance(books: Books, rules: Rules, ask: AskBalance) -> TellBalance | None:
    """What a neighbour with a restored store may rely on: nothing up to its round is open here any more."""
    m = ask.sender
    ready = books.decided >= ask.decided <= books.seen[m] and not any(i <= ask.decided for i in books.open[m])
    if not ready or books.status[m] not in (Status.OPEN, Status.SUSPECT):
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
    total = as_vector(tell.total)
    most = tell.n * ((2 * rules.largest * rules.weights[m] >> WEIGHT_BITS) + 1)
    if int(total.max()) > most or int(total.min()) < -most:
        raise LieError(Reason.BALANCE_RANGE)
    total = np.negative(total)
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


def make_sync(
    books: Books, rules: Rules, m: int, *, epoch: int, offer: int | None = None, ask: bool = False, made: int = 0
) -> Sync:
    """What the committed books say to a neighbour.

    Args:
        made: the moment, in microseconds.
    """
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
        if records or books.status[m] not in (Status.OPEN, Status.SUSPECT)
        else (books.balances[m].n, balance_hash(books, rules.me, m)),
        shown=evidence.shown(books, rules.me, m, offer),
        made=made,
    )
