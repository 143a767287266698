"""Histories of a server, as its transitions would write them, for every store."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from builders import a_plan
from confide.deploy.store.books import TO_ALL, Attempt, Balance, Books, Changes, Entry, Flow, Status
from confide.plans.plan import Plan
from confide.privacy.ledger import Cost, Event, dataset_id

DATASET = dataset_id("tests")
SERVER = 1
NEIGHBOURS = (0, 2)  # of server 1 on a ring of 4
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - for folders with a name of their own


def make_plan(M: int = 3, **changes: Any) -> Plan:
    return a_plan(dim=M, **changes)


def make_books(M: int = 3) -> Books:
    return Books.fresh(np.arange(M, dtype=np.int64) - 1, NEIGHBOURS)


def _vector(r: random.Random, M: int) -> np.ndarray:
    return np.frombuffer(r.randbytes(8 * M), np.int64)


def _entry(plan: Plan, kind: str, i: int, message: bytes = b"", offered: tuple[int, ...] = ()) -> Entry:
    if kind == "skip":
        return Entry(Event(plan.hash, kind, i, SERVER), offered)
    cost = Cost(0.1, None, 1.0, 0.3, "discrete-gaussian")
    return Entry(
        Event(plan.hash, kind, i, SERVER, cost, hashlib.sha256(message).hexdigest(), 1_800_000_000 + i), offered
    )


def publish(b: Books, plan: Plan, r: random.Random) -> Changes:
    i, M = b.decided + 1, len(b.contribution)
    offered = tuple(m for m in b.neighbours if b.status[m] is Status.OPEN and len(b.open[m]) < 4 and r.random() < 0.9)
    each = r.random() < 0.3
    receivers = offered if each else (TO_ALL,) if offered else ()
    out = {(i, to): r.randbytes(8 * M + 5) for to in receivers}
    message = next(iter(out.values()), b"lost")
    return Changes(
        decided=i,
        published=b.published + 1,
        contribution=_vector(r, M),
        entries=[_entry(plan, "message", i, message, offered)],
        open={m: {i: Flow()} for m in offered},
        out=out,
        transcript=b"",
    )


def skip(b: Books, plan: Plan, r: random.Random) -> Changes:
    k = b.decided + r.randint(1, 3)
    return Changes(decided=k, entries=[_entry(plan, "skip", i) for i in range(b.decided + 1, k + 1)])


def sync(b: Books, plan: Plan, r: random.Random) -> Changes:
    """Applies, flags, closes and drops, whatever the records of one edge allow."""
    m = r.choice(b.neighbours)
    c = Changes(seen={m: b.seen[m] + r.randint(0, 2)})
    flows: dict[int, Flow | None] = {}
    n, total = b.balances[m]
    for i, flow in b.open[m].items():
        applied, theirs = flow.applied or r.random() < 0.6, flow.peer_applied or r.random() < 0.5
        if applied and not flow.applied:
            n, total = n + 1, total + _vector(r, len(total))
            c.balances[m] = Balance(n, total)
        if applied and theirs:
            flows[i] = None
        elif (applied, theirs) != flow[:2]:
            flows[i] = Flow(applied, theirs, r.randbytes(32) if applied else b"")
    c.open = {m: flows} if flows else {}
    _drop(b, c)
    return c


def remove(b: Books, plan: Plan, r: random.Random) -> Changes:
    m = r.choice(b.neighbours)
    c = Changes(status={m: r.choice(list(Status))}, epoch=r.randbytes(20), open={m: dict.fromkeys(b.open[m])})
    _drop(b, c)
    return c


def small(b: Books, plan: Plan, r: random.Random) -> Changes:
    """The rows that hold no flows."""
    kind = r.randint(0, 3)
    if kind == 0:
        return Changes(attempt=Attempt(b.decided + 1, r.randint(0, 3), tuple(r.sample(range(20), 5))))
    if kind == 1:
        return Changes(transcript=r.randbytes(r.choice((0, 10, 9000))))
    if kind == 2 and b.decided:
        return Changes(release=r.randbytes(30), entries=[_entry(plan, "release", b.decided, b"r")])
    return Changes(rejoined=b.decided) if kind == 3 else Changes()


def _drop(b: Books, c: Changes) -> None:
    left = {(m, i) for m, flows in b.open.items() for i in flows} - set(c.closed)
    rounds = {i for _, i in left}
    c.out = {(i, to): None for i, to in b.out if (i not in rounds if to == TO_ALL else (to, i) not in left)}


ALL_KINDS = (publish, publish, skip, sync, sync, sync, remove, small)


def make_changes(
    b: Books, plan: Plan, r: random.Random, kinds: tuple[Callable[..., Changes], ...] = ALL_KINDS
) -> Changes:
    return r.choice(kinds)(b, plan, r)


def plain(b: Books) -> dict[str, Any]:
    """Books that can be compared."""
    balances = {m: (x.n, x.total.tolist()) for m, x in b.balances.items()}
    released = {attempt: (x.servers, x.total.tolist()) for attempt, x in b.released.items()}
    types = {type(x) for x in (b.decided, b.published, *b.seen.values())}, [type(s) for s in b.status.values()]
    shown = {"contribution": b.contribution.tolist(), "balances": balances, "released": released}
    return vars(b) | shown | {"types": types}
