"""Released models: kept in the store first, written when they can be; and what strangers and operators do meanwhile."""

from __future__ import annotations

import asyncio
import hashlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from confide.base.errors import RunError
from confide.cluster.layout import Layout, lay_out
from confide.cluster.processes import Cluster
from confide.cluster.try_out import TRY_OUT
from confide.deploy.machines import release_messages as messages
from confide.deploy.machines.release import Reason, Released
from confide.deploy.net.dialer import Dialer
from confide.deploy.node import asking
from confide.deploy.node.config import load_server
from confide.deploy.node.released import ReleasedFolder
from confide.deploy.node.server_setup import ServerSetup
from confide.plans.config import parse
from confide.problems import model_file
from confide.secure import receipts
from patience import LIMIT, SCALE, until, wait_finished
from ports import own_ports

LONG = 180.0 * SCALE


def released(attempt: int, value: float) -> Released:
    total = np.full(3, int(value))
    return Released(attempt, 2, 0.5, total, total * 1.0)


def described(found: Released) -> dict[str, Any]:
    return {"format": model_file.FORMAT, "attempt": found.attempt, "sha256": found.sha256}


def test_a_folder_that_cannot_be_written_is_written_later(tmp_path: Path) -> None:
    folder = tmp_path / "released"
    folder.write_text("a file in its place")
    found = ReleasedFolder(folder, described, [released(1, 1.0)])
    assert str(folder) in found.look()
    found.add(released(2, 2.0))
    assert found.look() == found.why != ""
    folder.unlink()
    assert found.look() == found.why == ""
    assert [model_file.read(folder / f"{name}.npz")[0][0] for name in ("attempt-1", "attempt-2", "model")] == [1, 2, 2]


def test_what_is_there_is_not_written_again_and_what_is_another_is(tmp_path: Path) -> None:
    kept = [released(1, 1.0), released(2, 2.0)]
    assert ReleasedFolder(tmp_path, described, kept).look() == ""
    before = {path.name: path.stat().st_ino for path in tmp_path.iterdir()}
    assert ReleasedFolder(tmp_path, described, kept).look() == ""
    assert {path.name: path.stat().st_ino for path in tmp_path.iterdir()} == before
    for changed in ("attempt-1.npz", "model.npz"):  # of an earlier plan, say, or gone
        (tmp_path / changed).write_bytes((tmp_path / "attempt-2.npz").read_bytes()[:100])
        assert ReleasedFolder(tmp_path, described, kept).look() == ""
        assert model_file.read(tmp_path / "attempt-1.npz")[0][0] == 1
        assert model_file.read(tmp_path / "model.npz")[0][0] == 2
    empty = tmp_path / "none"
    assert ReleasedFolder(empty, described, []).look() == ""
    assert not empty.exists()


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """Two servers with a client each, whose update is summed in clear."""
    privacy = TRY_OUT["privacy"] | {"unprotected": True}
    config = parse(TRY_OUT | {"privacy": privacy, "algorithm": TRY_OUT["algorithm"] | {"aggregation": "plain"}})
    return lay_out(
        tmp_path / "n", config, 2, 1, rounds=2, release=True, adapt=LONG, tick=0.05, exchange=LONG, drain=LONG,
        ports=own_ports, log="json", grace=0.5, reload=0.2,
    )  # fmt: skip


@pytest.fixture
def cluster(layout: Layout) -> Iterator[Cluster]:
    with Cluster(layout) as found:
        yield found


def test_a_released_model_survives_a_folder_a_kill_and_a_member_that_lies(layout: Layout, cluster: Cluster) -> None:
    cluster.start_all()
    wait_finished(cluster)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        interrupted(layout, cluster, number)
    folder = layout.released("alpha").parent
    folder.write_text("not a folder")  # as good as one that cannot be written, whoever asks
    with pytest.raises(RunError, match="the model is in the store, and not lost"):
        cluster.release("alpha")
    assert all(cluster.alive(unit) for unit in layout.units)
    folder.unlink()
    model = layout.released("alpha")
    until(model.exists, "the next look")
    weights, meta = model_file.read(model)
    assert np.array_equal(weights, model_file.read(layout.released("beta"))[0])
    told = until(lambda: (s := cluster.status("alpha")) and len(s["results"][0]["told"]) == 2 and s, "both receipts")
    assert told["results"] == [{"attempt": 1, "servers": 2, "sha256": meta["sha256"], "told": ["alpha", "beta"]}]

    cluster.kill("alpha", signal.SIGKILL)
    cluster.kill("beta", signal.SIGKILL)
    cluster.start("alpha")
    until(lambda: cluster.status("alpha"), "alpha is there again")
    before = model.read_bytes()
    asyncio.run(lie(layout, cluster))
    found = cluster.status("alpha")
    assert found is not None
    assert (found["results"], found["alarms"]) == (told["results"], [])
    assert model.read_bytes() == before

    cluster.start("beta")
    until(lambda: (s := cluster.status("alpha")) and s["peers"][0]["up"] and s["phase"] == "finished", "beta is back")
    until(lambda: (s := cluster.status("beta")) and s["phase"] == "finished", "and has heard alpha")
    again = cluster.release("beta")
    assert (again["sha256"], again["unheard"]) == (meta["sha256"], [])
    assert model.read_bytes() == before
    cluster.stop(layout.nodes, LIMIT)


def interrupted(layout: Layout, cluster: Cluster, number: signal.Signals) -> None:
    """Ctrl-C, or a terminal that is closed, while the relay asks whether everybody is ready: it stops, and says so."""
    cluster.kill("beta", signal.SIGSTOP)
    config = layout.toml("alpha")
    line = [sys.executable, "-m", "confide", "release", str(config)]
    command = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: (s := cluster.status("alpha")) and (s["relaying"] or {}).get("stage") == "ask", "alpha asks")
    assert command.stderr is not None
    assert "ask: is everybody ready?" in command.stderr.readline()
    command.send_signal(number)
    _, err = command.communicate(timeout=LIMIT)
    assert "stopped: nothing was begun, and nothing is paid for" in err
    assert command.returncode == 130
    found = cluster.status("alpha")
    assert found is not None
    assert found["relaying"]["failed"].startswith("its operator stopped it")
    assert asking.stop_release(config) == {"stopped": True}
    cluster.kill("beta", signal.SIGCONT)


async def lie(layout: Layout, cluster: Cluster) -> None:
    """With all keys of beta, which did not relay: a result of its own, on a stream that alpha takes for beta's."""
    beta = ServerSetup.load(load_server(layout.toml("beta")))
    plan, total = beta.terms.rules.plan, bytes(8 * beta.terms.rules.length)
    signature = receipts.sign(beta.node.identity, plan, 1, 1, hashlib.sha256(total).digest())
    raw = messages.encode(messages.Result(plan, 0, 1, 0, bytes(16), 1, total, signature))
    open = asyncio.Event()
    dialer = Dialer(
        beta.dialing(0), beta.peers[0], beta.common, lambda _: None, open.set, lambda: None, lambda _: None, beta.limits
    )
    dialer.start()
    try:
        await asyncio.wait_for(open.wait(), LIMIT)
        assert dialer.send(raw)

        def refused() -> Any:
            return ((cluster.status("alpha") or {}).get("refusals") or {}).get(Reason.RELAY)

        assert await asyncio.to_thread(until, refused, "alpha has refused it") == 1
    finally:
        await dialer.stop()
