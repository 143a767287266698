"""kill -9 of real processes: servers at every crash point of flows.md, clients in every phase, everybody at once.

Every network ends with the sum over servers conserved to the last bit and one row a round in every ledger; where
nothing was lost on the way, with the models of the reference.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from confide.config import parse
from confide.deploy.cluster.layout import Layout, lay_out
from confide.deploy.cluster.processes import Cluster
from confide.deploy.cluster.try_out import TRY_OUT
from confide.deploy.durable.books import Status
from confide.deploy.keys.node_keys import NodeKeys
from confide.deploy.machines import epoch as epochs
from confide.deploy.machines import exchange
from confide.errors import RunError
from confide.privacy.ledger import Cost, Event, dataset_id, write_events
from confide.reference import prepare

SEED = 5
PROMPT = {  # nothing is late and nothing is lost in a network whose servers come back at once
    "alpha": ("boot.loaded:0", "round.open.before:0", "publish.tx.ledger:0", "sync.tx.applied:0"),
    "beta": ("boot.sent:0", "round.open.committed:0", "publish.tx.state:0", "sync.tx.flagged:0"),
    "gamma": ("adapt.handed_out:0", "publish.tx.commit:0", "publish.sent_first:0", "sync.tx.commit:2"),
    "delta": ("round.open.tx.commit:0", "publish.drawn:0", "publish.committed:0", "early.tx.commit:0"),
    "epsilon": ("adapt.tx.commit:0", "publish.sent_all:0", "sync.tx.gc:0", "sync.replied:3"),
    "zeta": ("adapt.aggregated:0", "sync.received:4", "sync.committed:2", "finish.drained:0"),
}
OTHERS = ("halt.budget", "skip.tx.commit", "skip.committed", "wait.deadline", "remove.tx.commit")  # below
ROUNDS = 25
BUDGET = 1000.0  # rho

soaking = pytest.mark.skipif("CONFIDE_SOAK" not in os.environ, reason="a minute of many processes: `make soak` runs it")


def network(
    folder: Path, units: int, clients: int, rounds: int, aggregation: str = "secure", privacy: Any = (), **times: float
) -> Layout:
    clock = {"adapt": 100.0, "tick": 0.05, "exchange": 60.0, "drain": 60.0} | times
    changed = {
        "seed": SEED,
        "algorithm": TRY_OUT["algorithm"] | {"aggregation": aggregation},
        "privacy": TRY_OUT["privacy"] | dict(privacy),
    }
    return lay_out(folder, parse(TRY_OUT | changed), units, clients, rounds=rounds, log="json", grace=1.0, **clock)


def reference(layout: Layout) -> list[list[int]]:
    e = layout.experiment
    r = prepare(e.problem, e.graph, e.algorithm, layout.plan.rounds, e.seed)(0)
    w = r.start(np.zeros((len(layout.units), e.problem.M)))
    for i in range(1, layout.plan.rounds + 1):
        w = r.round(i, w).w
    found: list[list[int]] = np.asarray(w).tolist()
    return found


class Chain:
    """A node that dies at one crash point after the other, and is started again each time at once."""

    def __init__(self, cluster: Cluster, node: str, points: tuple[str, ...], died: Callable[[str], object]) -> None:
        self.cluster, self.node, self.died = cluster, node, died
        self.left = list(points)
        self.deaths: list[str] = []
        self.start()

    def start(self) -> None:
        self.cluster.start(self.node, crash=self.left[0] if self.left else None)

    def follow(self) -> bool:
        """Whether it has died for the last time."""
        if self.left and not self.cluster.alive(self.node):
            code = self.cluster.ended()[self.node]
            assert code == -signal.SIGKILL, f"{self.node} ended with {code}: {self.cluster.last_line(self.node)}"
            self.died(self.node)
            self.deaths.append(self.left.pop(0))
            self.start()
        return not self.left


def follow(cluster: Cluster, chains: list[Chain], seconds: float) -> None:
    """Until all have died of everything; raises if anybody else ends."""
    try:
        cluster.wait("all have died", lambda: not sum(not chain.follow() for chain in chains), seconds)
    except RunError as e:
        at = [(c.node, c.deaths, c.left, (cluster.status(c.node) or {}).get("round")) for c in chains]
        raise AssertionError(f"{e}; seed {SEED}, {cluster.layout.folder}: {at}") from e


def test_the_list_is_that_of_the_specification() -> None:
    named = {point.rpartition(":")[0] for points in PROMPT.values() for point in points} | set(OTHERS)
    assert named == {
        "boot.loaded", "boot.sent", "round.open.before", "round.open.committed", "adapt.handed_out",
        "adapt.aggregated", "publish.drawn", "publish.tx.ledger", "publish.tx.state", "publish.tx.commit",
        "publish.committed", "publish.sent_first", "publish.sent_all", "early.tx.commit", "sync.received",
        "sync.tx.applied", "sync.tx.flagged", "sync.tx.gc", "sync.tx.commit", "sync.committed", "sync.replied",
        "wait.deadline", "skip.tx.commit", "skip.committed", "remove.tx.commit", "halt.budget", "finish.drained",
        "round.open.tx.commit", "adapt.tx.commit",  # the code has them besides
    }  # fmt: skip


@soaking
def test_servers_that_die_at_every_point_and_come_back_at_once_lose_nothing(soak: ModuleType, tmp_path: Path) -> None:
    """And clients before they have given anything: the models are those of a run in which nobody died."""
    layout = network(tmp_path / "n", len(PROMPT), 3, ROUNDS)
    with Cluster(layout, test_seed=SEED) as cluster:
        auditor = soak.Auditor(cluster)
        chains = [Chain(cluster, unit, points, auditor.look) for unit, points in PROMPT.items()]
        invited = ("client.received:0", "client.received:1")  # welcome, invitation
        chains.append(Chain(cluster, "alpha-c0", invited, str))
        for node in set(layout.nodes) - {chain.node for chain in chains}:
            cluster.start(node)
        follow(cluster, chains, 240.0)
        cluster.wait_finished(60.0)
        cluster.wait("nothing is open", lambda: not any(p["open"] for u in PROMPT for p in told(cluster, u)), 60.0)
        cluster.stop_all()
        books = auditor.settle()
    assert [one.published for one in books] == [ROUNDS] * len(PROMPT)
    assert [one.w.tolist() for one in books] == reference(layout)


def told(cluster: Cluster, unit: str) -> Any:
    """What a server says about its neighbours."""
    return (cluster.status(unit) or {"peers": [{"unit": "gamma", "edge": "?", "open": "?"}]})["peers"]


def spent(layout: Layout, unit: str, publications: int) -> None:
    """Earlier runs on the same data have left budget for so many."""
    costs = [cost.rho or 0.0 for cost in layout.prices.messages]
    rho = BUDGET - sum(costs[:publications]) - costs[publications] / 2
    event = Event(layout.plan.hash, "message", 1, 7, Cost(rho, None, 1.0, 1.0, "gaussian"))
    place, toml = layout.place(unit), layout.toml(unit)
    write_events(place / "old.jsonl", dataset_id(f"{unit} {layout.dataset}"), layout.plan, [event])
    toml.write_text('ledgers = ["old.jsonl"]\n' + toml.read_text())


def removal(layout: Layout, gone: str) -> bytes:
    """All others sign."""
    plan, p = bytes.fromhex(layout.plan.hash), layout.number(gone)
    nodes = {u: NodeKeys.load(layout.authority(u) / "server-one") for u in layout.units if u != gone}
    signed = tuple(epochs.sign(node.identity, layout.number(u), plan, 1, [p]) for u, node in nodes.items())
    return epochs.encode(epochs.Epoch(plan, 1, (p,), signed))


def test_servers_that_die_when_rounds_are_skipped_deadlines_pass_and_a_server_is_removed(
    soak: ModuleType, tmp_path: Path
) -> None:
    layout = network(
        tmp_path / "n",
        3,
        1,
        300,
        adapt=1.5,
        tick=0.2,
        exchange=1.0,
        drain=15.0,
        aggregation="plain",
        privacy={"rho": BUDGET},
    )
    spent(layout, "alpha", 2)
    left = ("alpha", "beta")
    points = {
        "alpha": ("halt.budget:0", "skip.tx.commit:0", "skip.committed:0"),  # it keeps pace, and skips
        "beta": ("wait.deadline:0",),  # since alpha takes its time
    }
    with Cluster(layout, test_seed=SEED) as cluster:
        auditor = soak.Auditor(cluster)
        for node in layout.nodes:
            if node not in points:
                cluster.start(node)
        follow(cluster, [Chain(cluster, unit, todo, auditor.look) for unit, todo in points.items()], 120.0)
        cluster.stop(layout.units)
        last = auditor.look("gamma").decided
        assert last < layout.plan.rounds, "the plan must not end before the removal"
        with cluster.store("beta") as store:  # as its operator would have it
            raw = removal(layout, "gamma")
            store.commit(exchange.remove(store.load(), [layout.number("gamma")], raw), name="remove")
        chain = Chain(cluster, "alpha", ("remove.tx.commit:0",), auditor.look)
        cluster.start("beta")
        follow(cluster, [chain], 60.0)
        known = lambda: {str(p["edge"]) for u in left for p in told(cluster, u) if p["unit"] == "gamma"}  # noqa: E731
        cluster.wait("both know", lambda: known() == {"removed"}, 60.0)
        cluster.stop([layout.clients(unit)[0] for unit in left])  # nothing new is published then
        cluster.wait("nothing is open", lambda: not any(p["open"] for u in left for p in told(cluster, u)), 60.0)
        cluster.stop_all()
        books = auditor.settle(drained=False, removed=True)
    one, other, removed = books
    assert [b.status[layout.number("gamma")] for b in (one, other)] == [Status.REMOVED] * 2
    assert one.published == 2  # what the budget paid for
    assert other.published > 0
    assert removed.decided == last
    assert not one.open[1]
    assert not other.open[0]
    kept = one.balances[2].total + other.balances[2].total  # of the server that is gone: exact, and reported
    assert np.array_equal(one.w + other.w, one.contribution + other.contribution + kept)


@soaking
def test_clients_that_die_in_every_phase_and_everybody_at_once(soak: ModuleType, tmp_path: Path) -> None:
    """Each client in another phase of the secure sum: before it advertises, shares, masks and unmasks, and after."""
    layout = network(tmp_path / "n", 2, 4, 24, adapt=8.0, tick=0.3, exchange=20.0)
    with Cluster(layout, test_seed=SEED) as cluster:
        auditor = soak.Auditor(cluster)
        chains = []
        for unit in layout.units:
            cluster.start(unit)
            for k, node in enumerate(layout.clients(unit)):
                where = "replying" if unit == "alpha" else "replied"
                chains.append(Chain(cluster, node, (f"client.{where}:{4 * k + k}",), str))  # in round k + 1, phase k
        follow(cluster, chains, 120.0)
        cluster.stop_all()
        auditor.settle(drained=False)
    with Cluster(layout) as cluster:  # from here with real noise: a message that was drawn twice would raise an alarm
        auditor.cluster = cluster
        cluster.start_all()
        for _ in range(2):
            reached = max(len(rows) for rows in auditor.rows.values())
            for unit in layout.units:
                cluster.wait_round(unit, min(reached + 2, layout.plan.rounds), 60.0)
            cluster.kill_all()
            for unit in layout.units:
                auditor.look(unit)
            cluster.start_all()
        cluster.wait_finished(90.0)
        cluster.stop_all()
        books = auditor.settle()
    assert [b.decided for b in books] == [layout.plan.rounds] * 2
    assert min(b.published for b in books) >= layout.plan.rounds // 2
