"""Figures of a running server for Prometheus: of the schedule and of the machine, never of data.

Three sources. Commits (`Metered`, around the store) count rounds and flows as the ledger and the books have them, since
a process started. Events (`observing.hooks`) give reasons. A snapshot, which is what `confide status` shows, gives the
rest. Labels come from the plan and from the machines' reasons: what a stranger sends makes no new series.

When a client answers tells how long it trained, which is why the server publishes at ticks (docs/design/flows.md, 7).
So whatever counts clients' messages, or commits that wait for them, shows when the round is decided and not before.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter as Bag
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from prometheus_client import Counter, Enum, Gauge, Histogram

from confide.base.errors import InputError
from confide.deploy.machines.cohort import Failure
from confide.deploy.machines.cohort import Reason as FromClient
from confide.deploy.machines.exchange import Reason as FromServer
from confide.deploy.machines.ports import Phase
from confide.deploy.machines.release import Reason as FromRelease
from confide.deploy.machines.rounds import Skip
from confide.deploy.node.node_metrics import NodeMetrics, each
from confide.deploy.node.observe import OTHER, count, flag, number
from confide.deploy.store.books import Books, Changes, Entry
from confide.deploy.store.store import Around, At, Store, nowhere
from confide.plans import words
from confide.privacy.paid import Terms
from confide.secure.session import Why

SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # of a commit

COMMITS: Final = (
    "round.open", "accuse", "adapt", "publish", "sync", "balance", "skip", "remove", "rejoin", "release",
    "result", "suspect", "overtaken",
)  # fmt: skip
SKIPS: Final = (*Skip, *Failure, *Why)
REFUSALS: Final = (*FromServer, *FromClient, *FromRelease)
STREAMS: Final = (
    "refused", "malformed", "oversized", "silent", "hurried", "differs", "replaced", "lost", "stopped", "failed",
    "dropped", "unsendable", "overrun",
)  # fmt: skip


class Metrics(NodeMetrics):
    """Args:
    neighbours: the names of the units at the other ends of this server's edges.
    clock: seconds, for differences.
    """

    def __init__(
        self, neighbours: Mapping[int, str] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self.clock = clock
        self._names = dict(neighbours or {})
        self._lock = threading.Lock()
        self._open: dict[tuple[int, int], bool] = {}  # (neighbour, round) -> applied
        self._decided_at: float | None = None
        self._held_commits: list[tuple[str, float]] = []
        self._held_messages: Bag[tuple[str, str]] = Bag()
        self._held_bytes: Bag[tuple[str, str]] = Bag()
        self._followed: dict[tuple[str, str], int] = {}
        self._make()

    def _make(self) -> None:
        r: Any = {"registry": self.registry}
        peer, names = ["neighbour"], self._names.values()
        self._round = Gauge("confide_round", "The last decided round, published or skipped.", **r)
        self._rounds = Gauge("confide_rounds", "Rounds of the plan.", **r)
        self._round_seconds = Gauge("confide_round_seconds", "From the last decision but one to the last.", **r)
        self._round_clients = Gauge("confide_round_clients", "Clients whose sum was published last.", **r)
        self._publications = Counter("confide_publications", "Rounds published by this process.", **r)
        self._sums = Counter("confide_sums_paid", "Sums paid for when they were asked for.", **r)
        self._charged = Counter("confide_charged_rounds", "Rounds paid for in a rejoin without being published.", **r)
        self._skipped = Counter("confide_skipped_rounds", "Rounds decided without a publication.", **r)
        self._skips = _fixed(Counter("confide_skips", "Decisions to skip.", ["reason"], **r), SKIPS)
        self._releases = Counter("confide_release_attempts", "Releases whose unmasking answer was paid for.", **r)
        self._paid = Gauge("confide_publications_paid", "Publications paid for in all of the run.", **r)
        self._allowed = Gauge("confide_publications_allowed", "Publications that the budget pays for.", **r)
        self._epsilon = Gauge(
            "confide_epsilon",
            "Epsilon so far, releases and earlier ledgers included; infinite for whom nothing is protected from.",
            ["adversary", "level", "adjacency", "delta"],
            **r,
        )
        self._applied = each(Counter("confide_flows_applied", "Flows that entered the model.", peer, **r), names)
        self._late = each(Counter("confide_flows_late", "Those that entered after their round.", peer, **r), names)
        self._void = each(Counter("confide_flows_void", "Flows that the neighbour never offered.", peer, **r), names)
        self._cut = each(Counter("confide_flows_dropped", "Closed by a removal or a rejoin.", peer, **r), names)
        self._suspended = each(Counter("confide_flows_suspended", "Not offered: full window.", peer, **r), names)
        self._pending = each(Gauge("confide_flows_pending", "Open records.", peer, **r), names)
        self._up = each(Gauge("confide_neighbour_up", "1 if rounds wait for it.", peer, **r), names)
        self._dialed = each(Gauge("confide_neighbour_connected", "1 if the way to it is open.", peer, **r), names)
        self._clients = Gauge("confide_clients_connected", "Clients that are connected.", **r)
        self._roster = Gauge("confide_clients", "Clients in the plan.", **r)
        self._alarms = Counter("confide_alarms", "Neighbours that contradicted themselves, and the like.", **r)
        self._refusals = _fixed(Counter("confide_refusals", "Messages not taken.", ["reason"], **r), REFUSALS)
        self._streams = _fixed(Counter("confide_streams", "Streams ended, messages dropped.", ["reason"], **r), STREAMS)
        self._seconds = _fixed(
            Histogram("confide_commit_seconds", "Durable transactions.", ["kind"], buckets=SECONDS, **r), COMMITS
        )
        ways = [(way, role) for way in ("in", "out") for role in ("client", "server")]
        labels = ["direction", "peer"]
        messages = Counter("confide_messages", "Messages.", labels, **r)
        size = Counter("confide_message_bytes", "Bytes of messages.", labels, **r)
        self._messages = {way: messages.labels(*way) for way in ways}
        self._bytes = {way: size.labels(*way) for way in ways}
        self._phase = Enum("confide_phase", "Of the server.", states=[*map(str, Phase), "not running"], **r)
        for gauge in self._up.values():
            gauge.set(1)

    # Events, on any thread

    def _happened(self, event: str, shown: Mapping[str, Any]) -> None:
        name = self._names.get(shown.get("neighbour", -1))
        match event:
            case "published":
                self._round_clients.set(shown.get("clients", math.nan))
                for m in shown.get("suspended", ()):
                    if m in self._names:
                        self._suspended[self._names[m]].inc()
            case "skipped":
                why, _, _ = shown.get("why", "").partition(": ")  # a damaged transcript says how
                self._skips[why if why in self._skips else OTHER].inc()
            case "applied" if name is not None and shown.get("late", 0) > 0:
                self._late[name].inc()
            case "up" | "down" if name is not None:
                self._up[name].set(event == "up")
            case "alarm":
                self._alarms.inc()

    def message(self, direction: str, peer: str, size: int) -> None:
        """direction: in, out.  peer: client, server."""
        way = direction, peer
        with self._lock:
            self._held_messages[way] += 1
            self._held_bytes[way] += size
            if peer != "client":
                self._show(way)

    # Commits, on the machine's thread

    def loaded(self, books: Books) -> None:
        with self._lock:
            self._open = {(m, i): flow.applied for m, flows in books.open.items() for i, flow in flows.items()}
            self._round.set(books.decided)
            self._show_pending()

    def committed(self, changes: Changes, name: str, seconds: float) -> None:
        with self._lock:
            if name == "adapt":  # at its moment the last client had answered
                self._held_commits.append((name, seconds))
            else:
                self._observe(name, seconds)
            self._count_entries(changes.entries)
            self._count_flows(changes)
            if changes.decided is not None:
                self._decided(changes.decided)

    def _observe(self, name: str, seconds: float) -> None:
        self._seconds[name if name in self._seconds else OTHER].observe(seconds)

    def _count_entries(self, entries: list[Entry]) -> None:
        for entry in entries:
            match entry.event.kind:
                case "message":
                    (self._publications if entry.event.sha256 is not None else self._charged).inc()
                case "sum":
                    self._sums.inc()
                case "skip":
                    self._skipped.inc()
                case "release":
                    self._releases.inc()

    def _count_flows(self, c: Changes) -> None:
        """A flow enters with a balance (which a rejoin sets, too, but then with a status); see `exchange.on_sync`."""
        entered = {m for m in c.balances if m not in c.status}
        closed = Bag(m for m, i in c.closed if not self._open.pop((m, i), False))
        for (m, i), flow in c.opened.items():
            if flow.applied and not self._open.get((m, i), False):
                entered.discard(m)
                self._flow(self._applied, m)
            self._open[m, i] = flow.applied
        for m in entered:  # it entered and was closed at once
            self._flow(self._applied, m)
            closed[m] -= 1
        lost = self._cut if c.rejoined is not None or c.epoch is not None else self._void
        for m, n in closed.items():
            self._flow(lost, m, n)
        if c.opened or c.closed:
            self._show_pending()

    def _flow(self, counters: Mapping[str, Any], m: int, n: int = 1) -> None:
        if m in self._names:
            counters[self._names[m]].inc(n)

    def _show_pending(self) -> None:
        pending = Bag(m for m, _ in self._open)
        for m, name in self._names.items():
            self._pending[name].set(pending[m])

    def _decided(self, round: int) -> None:
        now = self.clock()
        if self._decided_at is not None:
            self._round_seconds.set(now - self._decided_at)
        self._decided_at = now
        self._round.set(round)
        self._show_held()

    def _show_held(self) -> None:
        for name, seconds in self._held_commits:
            self._observe(name, seconds)
        self._held_commits.clear()
        for way in list(self._held_messages):
            self._show(way)

    def _show(self, way: tuple[str, str]) -> None:
        self._messages[way].inc(self._held_messages.pop(way))
        self._bytes[way].inc(self._held_bytes.pop(way))

    # The status, now and then

    def snapshot(self, status: Mapping[str, Any]) -> None:
        """What `confide status --json` shows."""
        for gauge, name in (
            (self._rounds, "rounds"), (self._paid, "published"), (self._allowed, "allowed"), (self._round, "round"),
        ):  # fmt: skip
            if (value := count(status.get(name))) is not None:
                gauge.set(value)
        self._show_epsilon(status)
        for gauge, name in ((self._clients, "connected"), (self._roster, "of")):
            if (value := count(status.get("clients", {}).get(name))) is not None:
                gauge.set(value)
        for peer in status.get("peers", ()):
            if (neighbour := self._names.get(peer.get("server"))) is not None:
                for gauges, key in ((self._up, "up"), (self._dialed, "dialed")):
                    if (yes := flag(peer.get(key))) is not None:
                        gauges[neighbour].set(yes)
        if (phase := status.get("phase")) in (*map(str, Phase), "not running"):
            self._phase.state(str(phase))
        if (until := status.get("certificate_until")) is not None:
            self.expires(datetime.fromisoformat(until))
        self._follow("streams", self._streams, status.get("network", {}))
        busy = phase == Phase.ADAPT
        refusals = status.get("refusals", {})
        self._follow(
            "refusals",
            self._refusals,
            {why: n for why, n in refusals.items() if why != "alarm" and not (busy and why.startswith("client"))},
        )
        if not busy:
            with self._lock:
                self._show_held()

    def _show_epsilon(self, status: Mapping[str, Any]) -> None:
        """A series for the plan's adversary, and one for each from whom nothing protects."""
        said = status.get("statement", {})
        open_to = [{**status, "epsilon": None, **r} for r in said.get("refused", ())]
        for a in [*said.get("accounts", ()), *open_to]:
            who, level, adjacency = (str(a.get(name)) for name in ("threat", "level", "adjacency"))
            delta, epsilon = number(a.get("delta")), a.get("epsilon")
            if delta is None or not _of_a_plan(who, level, adjacency):
                continue
            value = math.inf if epsilon is None else number(epsilon)
            self._epsilon.labels(who, level, adjacency, f"{delta:g}").set(math.nan if value is None else value)

    def _follow(self, kind: str, counters: Mapping[str, Any], totals: Mapping[str, int]) -> None:
        """Totals that another object counts; a lower one is of an object that began anew."""
        bag: Bag[str] = Bag()
        for why, n in totals.items():
            bag[why if why in counters else OTHER] += n
        for why, n in bag.items():
            before = self._followed.get((kind, why), 0)
            counters[why].inc(n - before if n >= before else n)
            self._followed[kind, why] = n


def _fixed(metric: Any, words: Any) -> dict[str, Any]:
    """A series for each word, and one for all others."""
    return each(metric, (*words, OTHER))


def _of_a_plan(threat: str, level: str, adjacency: str) -> bool:
    """Whether these are words of a plan: nothing else becomes a label."""
    with suppress(InputError):
        return len(threat) < 200 and str(words.threat(threat)) == threat and bool(Terms.parse(level, adjacency))
    return False


class Metered(Around):
    """A store that tells how long each commit took, and what it was."""

    def __init__(self, inner: Store, metrics: Metrics) -> None:
        super().__init__(inner)
        self._metrics = metrics

    def load(self) -> Books:
        books = super().load()
        self._metrics.loaded(books)
        return books

    def commit(self, changes: Changes, at: At = nowhere, name: str = "") -> None:
        begin = self._metrics.clock()
        super().commit(changes, at, name)
        self._metrics.committed(changes, name, self._metrics.clock() - begin)
