"""Clients with train functions of their own, as real processes: what these do to themselves costs no round."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from confide.cluster.layout import Layout, lay_out
from confide.cluster.processes import Cluster
from confide.cluster.try_out import TRY_OUT
from confide.deploy.node.memory import resident
from confide.plans.config import parse
from patience import SCALE, until, wait_finished
from ports import own_ports

ROUNDS, MIB = 3, 2**20
LONG = 180.0 * SCALE  # seconds: nobody is ever so late
OWN = """
import multiprocessing, os, time
import numpy as np

def square(x):
    return x * x

def pool(weights, round, config):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return np.array(pool.map(square, weights + 1.0))

def hangs(weights, round, config):
    if round == 2:
        time.sleep(1e6)
    return weights + 1.0

def dies(weights, round, config):
    if round == 2:
        os.abort()
    return weights[:1] if round == 3 else weights * 0.0 + np.array([1e300, *weights[1:]])

def warns(weights, round, config):
    print("the patient 4711")
    if round == 3:
        raise KeyboardInterrupt
    return np.log(weights * 0.0) * 0.0 + 1.0 if round == 2 else weights + 1.0
"""
FUNCTIONS = ("pool", "hangs", "dies", "warns")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A unit whose clients have a function each, started where a file would replace NumPy."""
    (tmp_path / "away").mkdir()
    (tmp_path / "away" / "numpy.py").write_text("raise RuntimeError('of the working folder')")
    monkeypatch.chdir(tmp_path / "away")
    config = parse(TRY_OUT | {"algorithm": TRY_OUT["algorithm"] | {"clip": "update"}, "privacy": {"unprotected": True}})
    layout = lay_out(
        tmp_path / "n", config, 1, len(FUNCTIONS), rounds=ROUNDS, adapt=LONG, exchange=LONG, tick=0.05, log="json"
    )
    for node, name in zip(layout.clients("alpha"), FUNCTIONS, strict=True):
        (layout.place(node) / "mine.py").write_text(OWN)
        table = f'train = "mine:{name}"\ndataset = "{node}"\n'
        if name == "hangs":
            table += f'train_timeout = {5.0 * SCALE}\nmetrics = "127.0.0.1:{own_ports(1)[0]}"\n'
        path = layout.toml(node)
        path.write_text(path.read_text().replace('data = "data.npz"\n', table))
    with Cluster(layout) as found:
        yield found


def events(cluster: Cluster, node: str, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in cluster.log(node).splitlines() if line.startswith("{")]
    return [line["fields"] | {"trace": line.get("exception", [])} for line in lines if line["event"] == event]


def figures(layout: Layout, node: str) -> dict[str, float]:
    address = next(line for line in layout.toml(node).read_text().splitlines() if line.startswith("metrics"))
    with urllib.request.urlopen(f"http://{address.split(chr(34))[1]}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


def test_no_round_is_lost_to_what_train_functions_do(cluster: Cluster) -> None:
    layout = cluster.layout
    clients = dict(zip(FUNCTIONS, layout.clients("alpha"), strict=True))
    cluster.start_all()
    wait_finished(cluster)
    assert [line["clients"] for line in events(cluster, "alpha", "published")] == [len(FUNCTIONS)] * ROUNDS

    for node in clients.values():
        assert [line["round"] for line in events(cluster, node, "training")] == [1, 2, 3], cluster.log(node)
        ends = events(cluster, node, "trained")
        assert [line["round"] for line in ends] == [1, 2, 3]
        assert all(line["seconds"] >= 0.0 for line in ends)
        assert all(ends[0][memory] > 10 for memory in ("client_mib", "trainer_mib"))  # then once a minute
        assert "working folder" not in cluster.log(node)
    small = {name: resident(cluster.processes[clients[name]].pid) // MIB for name in FUNCTIONS if name != "hangs"}
    assert max(small.values()) < 80, small
    told = figures(layout, clients["hangs"])  # a port for figures takes some MiB
    assert (told["confide_training"], told["confide_training_seconds_count"]) == (0.0, 3.0)
    assert all(told[f'confide_resident_bytes{{process="{which}"}}'] > 10 * MIB for which in ("client", "trainer"))
    assert not any("fail" in series or "warned" in series for series, value in told.items() if value)
    why = {
        name: [(line["round"], line["why"]) for line in events(cluster, node, "training failed")]
        for name, node in clients.items()
    }
    assert why == {
        "pool": [],
        "hangs": [(2, f"mine:hangs did not end in {5.0 * SCALE:g} s and was killed")],
        "dies": [
            (2, "the process of mine:dies ended by SIGABRT"),
            (3, f"mine:dies returned shape (1,); the weights have ({layout.plan.algorithm.model.length},)"),
        ],
        "warns": [
            (2, "mine:warns returned NaN or infinity: the training diverged"),
            (3, "mine:warns raised KeyboardInterrupt in round 3"),
        ],
    }
    (zeros,) = events(cluster, clients["dies"], "zeros")
    assert zeros["round"] == 1
    assert {line["kind"] for line in events(cluster, clients["warns"], "training warned")} == {"RuntimeWarning"}
    assert "4711" not in cluster.log(clients["warns"])

    trainers = {name: _trainer(cluster, node) for name, node in clients.items()}
    cluster.kill(clients["pool"], signal.SIGKILL)
    until(lambda: not Path(f"/proc/{trainers['pool']}").exists(), "the end of a trainer whose client was killed")
    assert {code for node, code in cluster.stop_all().items() if node != clients["pool"]} == {0}
    assert not any(Path(f"/proc/{pid}").exists() for pid in trainers.values())


def _trainer(cluster: Cluster, node: str) -> int:
    """The process that trains for this client."""
    parent = cluster.processes[node].pid
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            state, above = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
        except FileNotFoundError:
            continue
        if int(above) == parent and state != "Z":
            found.append(int(pid))
    assert len(found) == 1
    return found[0]
