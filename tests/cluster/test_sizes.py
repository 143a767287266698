"""How big it gets: a server that holds a thousand idle clients, and fifty clients of five units on one machine.

Minutes of many processes, so `make soak` runs it and the default run does not. It prints what it measured (-s).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from confide.cluster.layout import Layout, lay_out
from confide.cluster.processes import Cluster
from confide.cluster.try_out import TRY_OUT
from confide.plans.config import parse
from patience import LIMIT, SCALE, wait_finished, wait_round

pytestmark = pytest.mark.skipif("CONFIDE_SOAK" not in os.environ, reason="minutes of many processes: `make soak`")
IDLE, PROCESSES = 1000, 4
LONG = 180.0 * SCALE  # seconds: nobody is ever so late

# Connects the clients FIRST, FIRST + STEP, ... of a unit, says how many are connected once all are, and stays.
CLIENTS = """
import asyncio, sys
from pathlib import Path
from confide.deploy.node.client_setup import ClientSetup
from confide.deploy.net.dialer import Dialer
from confide.deploy.node.config import load_client

async def main(folder, first, step, last):
    up = set()
    def dialer(k):
        setup = ClientSetup.load(load_client(Path(folder) / f"alpha-c{k}" / "client.toml"))
        return Dialer(
            setup.credentials, setup.target, setup.common, lambda _: None,
            lambda: up.add(k), lambda: up.discard(k), lambda lines: None, setup.limits,
        )
    mine = range(int(first), int(last), int(step))
    dialers = [dialer(k) for k in mine]
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    for each in dialers:
        each.start()
    while len(up) < len(mine):
        await asyncio.sleep(0.05)
    print(len(up), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print(len(up), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


def peak(pid: int) -> float:
    """MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def config(**algorithm: Any) -> Any:
    return parse(TRY_OUT | {"algorithm": TRY_OUT["algorithm"] | algorithm})


@pytest.fixture
def crowd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Layout, list[subprocess.Popen[str]]]]:
    """A unit of a thousand clients, whose channels are in a few processes that wait for a word."""
    monkeypatch.setattr("confide.cluster.layout.PROCESS", 0)  # not one for each of them
    layout = lay_out(tmp_path / "n", config(sampled=4), 1, IDLE, rounds=5, adapt=600.0, tick=600.0)
    line = [sys.executable, "-c", CLIENTS, str(layout.folder / "nodes")]
    found = [
        subprocess.Popen(
            [*line, str(n), str(PROCESSES), str(IDLE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for n in range(PROCESSES)
    ]
    yield layout, found
    for process in found:
        process.kill()
        process.communicate()


def say(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()


def hear(processes: list[subprocess.Popen[str]]) -> list[str]:
    return [process.stdout.readline().strip() for process in processes if process.stdout is not None]


def test_one_server_holds_a_thousand_idle_clients(crowd: tuple[Layout, list[subprocess.Popen[str]]]) -> None:
    layout, processes = crowd
    assert hear(processes) == ["ready"] * PROCESSES
    with Cluster(layout) as cluster:
        cluster.start("alpha")
        wait_round(cluster, "alpha", 0)
        began = time.monotonic()
        say(processes)
        assert sum(map(int, hear(processes))) == IDLE
        took = time.monotonic() - began
        cluster.wait("all are counted", lambda: connected(cluster) == IDLE, LIMIT)
        time.sleep(40.0)  # longer than a ping and its answer
        asked = time.monotonic()
        assert connected(cluster) == IDLE
        answered = time.monotonic() - asked
        say(processes)
        assert sum(map(int, hear(processes))) == IDLE
        memory = peak(cluster.processes["alpha"].pid)
    print(f"{IDLE} idle clients: connected after {took:.1f} s, server {memory:.0f} MiB, status in {answered:.3f} s")
    assert memory < 400.0


def connected(cluster: Cluster) -> int:
    found = cluster.status("alpha")
    return 0 if found is None else int(found["clients"]["connected"])


def test_five_units_of_ten_clients_run_on_this_machine(tmp_path: Path) -> None:
    rounds = 20
    layout = lay_out(
        tmp_path / "n", config(sampled=10), 5, 10, rounds=rounds, adapt=LONG, exchange=LONG, tick=0.05, log="json"
    )
    with Cluster(layout) as cluster:
        cluster.start_all()
        wait_finished(cluster)
        memory = {node: peak(process.pid) for node, process in cluster.processes.items()}
        at = published(cluster.log("alpha"))
        cluster.stop_all()
        for unit in layout.units:
            assert cluster.books(unit).published == rounds
    each = (at[-1] - at[4]) / (len(at) - 5)
    servers = max(size for node, size in memory.items() if node in layout.units)
    clients = max(size for node, size in memory.items() if node not in layout.units)
    print(f"5 units of 10 clients: {each:.2f} s a round, server {servers:.0f} MiB, client {clients:.1f} MiB")
    assert len(at) == rounds
    assert clients < 80.0


def published(log: str) -> list[float]:
    from datetime import datetime

    events = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    return [datetime.fromisoformat(e["time"]).timestamp() for e in events if e["event"] == "published"]
