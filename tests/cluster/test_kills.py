"""kill -9 of real processes: servers at every crash point (docs/design/flows.md, 5), clients in any phase, all at once.

Every network ends with the sum over servers conserved to the last bit and one row a round in every ledger; where
nothing was lost on the way, with the models of the reference.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import reference_bits
from confide.base.errors import RunError
from confide.cluster.layout import Layout, lay_out
from confide.cluster.processes import Cluster
from confide.cluster.try_out import TRY_OUT
from confide.deploy.keys.node_keys import NodeKeys
from confide.deploy.machines import epoch as epochs
from confide.deploy.node import control
from confide.deploy.store.books import Status
from confide.plans.config import parse
from confide.privacy.ledger import Cost, Event, dataset_id, write_events
from patience import LIMIT, SCALE, wait_finished, wait_round
from ports import own_ports
from soak import Auditor, settle_flows, settled

SEED = 5
PROMPT = {  # nothing is late and nothing is lost in a network whose servers come back at once
    "alpha": ("boot.loaded:0", "round.open.before:0", "publish.tx.ledger:0", "round.open.tx.applied:0"),
    "beta": ("boot.sent:0", "round.open.committed:0", "publish.tx.state:0", "round.open.tx.gc:0"),
    "gamma": ("adapt.handed_out:0", "publish.tx.commit:0", "publish.sent_first:0"),
    "delta": ("round.open.tx.commit:0", "publish.drawn:0", "publish.committed:0"),
    "epsilon": ("adapt.tx.commit:0", "publish.sent_all:0", "sync.replied:3"),
    "zeta": ("adapt.aggregated:0", "sync.received:4", "finish.drained:0"),
}
OTHERS = ("halt.budget", "skip.tx.commit", "skip.committed", "wait.deadline", "remove.tx.commit")  # below
ROUNDS = 25
LONG = 180.0 * SCALE  # seconds: nobody is ever so late
BUDGET = 1e5  # rho

soaking = pytest.mark.skipif("CONFIDE_SOAK" not in os.environ, reason="a minute of many processes: `make soak` runs it")


def network(
    folder: Path, units: int, clients: int, rounds: int, aggregation: str = "secure", privacy: Any = (), **times: float
) -> Layout:
    clock: dict[str, Any] = {"adapt": LONG, "tick": 0.05, "exchange": LONG, "drain": LONG} | times
    changed = {
        "seed": SEED,
        "algorithm": TRY_OUT["algorithm"] | {"aggregation": aggregation},
        "privacy": TRY_OUT["privacy"] | dict(privacy),
    }
    config = parse(TRY_OUT | changed)
    return lay_out(folder, config, units, clients, rounds=rounds, log="json", grace=1.0, ports=own_ports, **clock)


class Chain:
    """A node that dies at one crash point after the other, and is started again each time at once."""

    def __init__(self, cluster: Cluster, node: str, points: tuple[str, ...], died: Callable[[str], object]) -> None:
        self.cluster, self.node, self.died = cluster, node, died
        self.left = list(points)
        self.deaths: list[str] = []
        self.start()

    def start(self) -> None:
        self.cluster.start(self.node, crash=self.left[0] if self.left else None)

    def follow(self) -> int:
        """How many deaths are left."""
        if self.left and not self.cluster.alive(self.node):
            code = self.cluster.ended()[self.node]
            assert code == -signal.SIGKILL, f"{self.node} ended with {code}: {self.cluster.last_line(self.node)}"
            self.died(self.node)
            self.deaths.append(self.left.pop(0))
            self.start()
        return len(self.left)


def follow(cluster: Cluster, chains: list[Chain], left: int = 0) -> None:
    """Until no more deaths than these are left; raises if anybody else ends."""
    try:
        cluster.wait("all have died", lambda: sum(chain.follow() for chain in chains) <= left, LIMIT)
    except RunError as e:
        at = [(c.node, c.deaths, c.left, (cluster.status(c.node) or {}).get("round")) for c in chains]
        raise AssertionError(f"{e}; seed {SEED}, {cluster.layout.folder}: {at}") from e


def test_the_list_is_that_of_the_specification() -> None:
    """But for the transactions of SYNCs that nothing rides on: too rare to die in; the box has them."""
    named = {point.rpartition(":")[0] for points in PROMPT.values() for point in points} | set(OTHERS)
    assert named == {
        "boot.loaded", "boot.sent", "round.open.before", "round.open.committed", "adapt.handed_out",
        "adapt.aggregated", "publish.drawn", "publish.tx.ledger", "publish.tx.state", "publish.tx.commit",
        "publish.committed", "publish.sent_first", "publish.sent_all", "sync.received", "sync.replied",
        "wait.deadline", "skip.tx.commit", "skip.committed", "remove.tx.commit", "halt.budget", "finish.drained",
        "round.open.tx.commit", "round.open.tx.applied", "round.open.tx.gc", "adapt.tx.commit",  # the code has them
    }  # fmt: skip


@soaking
def test_servers_that_die_at_every_point_and_come_back_at_once_lose_nothing(tmp_path: Path) -> None:
    """And clients before they have given anything: the models are those of a run in which nobody died."""
    layout = network(tmp_path / "n", len(PROMPT), 3, ROUNDS)
    with Cluster(layout, test_seed=SEED) as cluster:
        auditor = Auditor(cluster)
        chains = [Chain(cluster, unit, points, auditor.look) for unit, points in PROMPT.items()]
        invited = ("client.received:0", "client.received:1")  # welcome, invitation
        chains.append(Chain(cluster, "alpha-c0", invited, str))
        for node in set(layout.nodes) - {chain.node for chain in chains}:
            cluster.start(node)
        follow(cluster, chains)
        wait_finished(cluster)
        cluster.wait("nothing is open", lambda: settled(cluster, PROMPT), LIMIT)
        cluster.stop_all()
        books = auditor.settle()
    assert [one.published for one in books] == [ROUNDS] * len(PROMPT)
    assert [one.w.tolist() for one in books] == reference_bits(layout.experiment, layout.plan.rounds)


def spent(layout: Layout, unit: str, publications: int) -> None:
    """Earlier runs on the same data have left budget for so many."""
    costs = [cost.rho or 0.0 for cost in layout.price.messages]
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


def test_servers_that_die_when_rounds_are_skipped_deadlines_pass_and_a_server_is_removed(tmp_path: Path) -> None:
    layout = network(
        tmp_path / "n", 3, 1, 5000, adapt=1.0 * SCALE, tick=0.1, exchange=0.5 * SCALE, aggregation="plain",
        privacy={"rho": BUDGET, "unprotected": True},
    )  # fmt: skip
    spent(layout, "alpha", 2)
    left = ("alpha", "beta")
    points = {
        # It keeps pace, and skips; then it hears of the removal.
        "alpha": ("halt.budget:0", "skip.tx.commit:0", "skip.committed:0", "remove.tx.commit:0"),
        "beta": ("wait.deadline:0",),  # since alpha takes its time
    }
    with Cluster(layout, test_seed=SEED) as cluster:
        auditor = Auditor(cluster)
        for node in layout.nodes:
            if node not in points:
                cluster.start(node)
        chains = [Chain(cluster, unit, todo, auditor.look) for unit, todo in points.items()]
        follow(cluster, chains, left=1)
        cluster.wait("beta publishes", lambda: (cluster.status("beta") or {"published": 0})["published"], LIMIT)
        cluster.kill("gamma")
        last = auditor.look("gamma").decided
        assert last < layout.plan.rounds, "the plan must not end before the removal"
        question = {"ask": "remove", "epoch": removal(layout, "gamma").hex()}
        assert list(control.ask(layout.socket("beta"), question, LIMIT)) == [{"done": {"epoch": 1}}]
        follow(cluster, chains)

        def known() -> bool:
            said = [cluster.status(unit) for unit in left]
            edges = [p["edge"] for one in said if one is not None for p in one["peers"] if p["unit"] == "gamma"]
            return edges == ["removed"] * len(left)

        cluster.wait("both know", known, LIMIT)
        settle_flows(cluster, left)
        cluster.stop_all(LIMIT)
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
def test_clients_that_die_in_every_phase_and_everybody_at_once(tmp_path: Path) -> None:
    """Each client in another phase of the secure sum: before it advertises, shares, masks and unmasks, and after."""
    layout = network(tmp_path / "n", 2, 4, 24, adapt=8.0 * SCALE, tick=0.3)
    with Cluster(layout, test_seed=SEED) as cluster:
        auditor = Auditor(cluster)
        chains = []
        for unit in layout.units:
            cluster.start(unit)
            for k, node in enumerate(layout.clients(unit)):
                where = "replying" if unit == "alpha" else "replied"
                chains.append(Chain(cluster, node, (f"client.{where}:{4 * k + k}",), str))  # in round k + 1, phase k
        follow(cluster, chains)
        cluster.stop_all(LIMIT)
        auditor.settle(drained=False)
    with Cluster(layout) as cluster:  # from here with real noise: a message that was drawn twice would raise an alarm
        auditor.cluster = cluster
        cluster.start_all()
        for _ in range(2):
            reached = max(len(rows) for rows in auditor.rows.values())
            for unit in layout.units:
                wait_round(cluster, unit, min(reached + 2, layout.plan.rounds))
            cluster.kill_all()
            for unit in layout.units:
                auditor.look(unit)
            cluster.start_all()
        wait_finished(cluster)
        cluster.stop_all(LIMIT)
        books = auditor.settle()
    assert [b.decided for b in books] == [layout.plan.rounds] * 2
    assert min(b.published for b in books) > 0  # how many, the machine says: who is late is a dropout
