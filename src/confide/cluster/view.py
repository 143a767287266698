"""A network on one machine, to look at: a row for each unit while it runs, and what must hold when it has stopped."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table

from confide.base.errors import InputError, RunError
from confide.cluster.processes import Cluster
from confide.deploy.machines.release import Kept
from confide.deploy.store.books import Books
from confide.deploy.store.reconcile import balanced, conserved
from confide.privacy import ledger
from confide.privacy.spent import promise, status_of
from confide.privacy.statement import rounded_up
from confide.problems import model_file as released_model

_STAMP = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+Z? ([A-Z]+) +\S+ ")  # of a line of the log
QUIET = 10.0  # seconds in which nothing moves
SHOWN = 4  # nodes in trouble


def statuses(cluster: Cluster) -> dict[str, dict[str, Any] | None]:
    found: dict[str, dict[str, Any] | None] = {}
    for unit in cluster.layout.units:
        try:
            found[unit] = cluster.status(unit)
        except RunError:  # it answered, and not what was asked: on its way out
            found[unit] = None
    return found


def table(cluster: Cluster, found: dict[str, dict[str, Any] | None]) -> Table:
    up = next((s for s in found.values() if s is not None), None)
    made = Table(
        title=f"{len(cluster.layout.nodes)} processes, {cluster.layout.folder}",
        caption=None if up is None else f"epsilon {promise(up)}",
        title_justify="left",
        caption_justify="left",
        expand=True,
    )
    for name in ("unit", "phase", "round", "epsilon", "neighbours", "clients", "open"):
        made.add_column(name, no_wrap=True)
    made.add_column("last event", no_wrap=True, overflow="ellipsis", ratio=1)  # the others are never cut for it
    for unit, s in found.items():
        event = escape(_STAMP.sub("", cluster.last_line(unit)))
        if s is None:
            made.add_row(unit, "starting" if cluster.alive(unit) else "[red]gone[/red]", *[""] * 5, event)
            continue
        down = [p["unit"] for p in s["peers"] if not p["up"] or not p["dialed"]]
        neighbours = f"{len(s['peers']) - len(down)} up" + (f", [red]{' '.join(down)} down[/red]" if down else "")
        made.add_row(
            unit,
            s["phase"],
            f"{s['round']}/{s['rounds']}",
            "no bound" if s["epsilon"] is None else rounded_up(s["epsilon"]),
            neighbours,
            f"{s['clients']['connected']}/{s['clients']['of']}",
            str(sum(len(p["open"]) for p in s["peers"])),
            event,
        )
    return made


def line(found: dict[str, dict[str, Any] | None]) -> str:
    """The same in one line, for a log; the same text as long as nothing has changed."""
    up = [s for s in found.values() if s is not None]
    if len(up) < len(found):
        return f"{len(up)} of {len(found)} servers up"
    rounds = [s["round"] for s in up]
    span = f"{min(rounds)}" if min(rounds) == max(rounds) else f"{min(rounds)} to {max(rounds)}"
    spent = [s["epsilon"] for s in up]
    epsilon = "no bound" if None in spent else rounded_up(max(spent))
    return f"round {span} of {up[0]['rounds']}, epsilon {epsilon} {promise(up[0])}"


class Troubles:
    """What nodes have said last, where that is a trouble and nothing has moved for a while."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster, self._clock = cluster, clock
        self._line, self._since = "", clock()

    def look(self, now: str) -> list[str]:
        """Args: now: the network in one line."""
        if now != self._line:
            self._line, self._since = now, self._clock()
        elif self._clock() - self._since >= QUIET:
            self._since = self._clock()
            return self._said()
        return []

    def _said(self) -> list[str]:
        found = []
        for node in self._cluster.layout.nodes:
            last = self._cluster.last_line(node)
            if (stamp := _STAMP.match(last)) is not None and stamp[1] in ("WARNING", "ERROR"):
                found.append(f"{node}: {last[stamp.end() :]}")
        more = [f"{len(found) - SHOWN} more nodes are in trouble, see their logs"] if len(found) > SHOWN else []
        return found[:SHOWN] + more


def findings(cluster: Cluster) -> dict[str, Any]:
    """What the stores say after all servers have stopped; writes each unit's ledger.jsonl beside its store.

    A check that fails is a sentence in place of true.
    """
    layout = cluster.layout
    books = [cluster.books(unit) for unit in layout.units]
    weights = [layout.terms(unit).rules.weights for unit in layout.units]
    quantum = layout.price.arithmetic.quantum
    models = np.array([b.w for b in books]) * quantum
    epsilons = [layout.price.after(b.published) for b in books]
    releases = max(Kept.of(b).made for b in books)
    so_far = status_of(layout.price, max(b.published for b in books), releases, 0.0)
    return {
        "plan": layout.plan.hash,
        "units": len(layout.units),
        "clients": sum(len(layout.clients(unit)) for unit in layout.units),
        "rounds": layout.plan.rounds,
        "decided": {unit: b.decided for unit, b in zip(layout.units, books, strict=True)},
        "published": {unit: b.published for unit, b in zip(layout.units, books, strict=True)},
        "open_flows": sum(len(flows) for b in books for flows in b.open.values()),
        "epsilon": None if None in epsilons else max(e for e in epsilons if e is not None),
        "epsilon_with_releases": so_far["epsilon"],
        **{name: so_far[name] for name in ("threat", "adversary", "level", "adjacency", "delta", "statement")},
        "releases": releases,
        "disagreement": float(np.linalg.norm(models - models.mean(axis=0), axis=1).max()),
        "conserved": conserved(weights, books),
        "balanced": balanced(weights, books),
        "ledgers": _ledgers(cluster, books),
    }


def _ledgers(cluster: Cluster, books: Sequence[Books]) -> bool | str:
    """Each is a whole chain, has every decided round once, and the price of the plan on every event."""
    layout = cluster.layout
    for unit, b in zip(layout.units, books, strict=True):
        path = layout.place(unit) / "ledger.jsonl"
        with cluster.store(unit) as store:
            store.export_ledger(path)
            head = store.head
        try:
            events = ledger.read(path, head).events
        except InputError as e:
            return f"{unit}: {e}"
        rounds = [e.round for e in events if e.kind in ("message", "skip")]
        costs = [e.cost for e in events if e.kind in ("message", "sum") and e.cost != ledger.FREE]
        if rounds != list(range(1, b.decided + 1)):
            return f"{unit}: {b.decided} rounds are decided, the ledger has {rounds}"
        if costs != list(layout.price.messages[: len(costs)]) or len(costs) != b.published:
            return f"{unit}: the ledger's prices are not the plan's"
        if any(e.cost != layout.price.release_after(b.published) for e in events if e.kind == "release"):
            return f"{unit}: the ledger's price of a release is not the plan's"
    return True


def released(cluster: Cluster, unit: str) -> dict[str, Any] | None:
    """The model that this unit's server has from the last release, and how good it is on the problem's test data."""
    path = cluster.layout.released(unit)
    if not path.exists():
        return None
    weights, meta = released_model.read(path)
    problem = cluster.layout.experiment.problem
    test = None if problem.test is None else problem.model.metrics(weights, *problem.test)
    return {"file": str(path), "attempt": meta["attempt"], "sigma": meta["sigma"], "test": test}
