"""What befalls machines: a signal in the middle of a round, a full disk, a clock that is set, permissions, expiry.

The process says what is wrong and what to do, nothing is lost, and it goes on when it can. A port in use is in
`test_processes`.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from confide.config import parse
from confide.deploy.cluster.layout import Layout, lay_out
from confide.deploy.cluster.processes import Cluster
from confide.deploy.cluster.try_out import TRY_OUT
from confide.deploy.keys.authority import Authority
from confide.deploy.keys.certificates import utc_now

NOBODY = 65534
CLOCK = """\
import time
_true = time.time
def _set():
    try:
        with open({path!r}) as file:
            return _true() + float(file.read())
    except (OSError, ValueError):
        return _true()
time.time = _set
"""
AS_NOBODY = f"""\
import os
import confide.cli_deploy, confide.deploy.node.server_process
from confide.deploy.node.config import load_server
from confide.deploy.node.server_setup import ServerSetup
ServerSetup.load(load_server(sys.argv[2]))  # so that everything is imported: nobody may not read root's Python
os.setgid({NOBODY}); os.setuid({NOBODY})
"""


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """Two servers with a client each, whose update is summed in clear."""
    config = parse(TRY_OUT | {"algorithm": TRY_OUT["algorithm"] | {"aggregation": "plain"}})
    return lay_out(
        tmp_path / "n", config, 2, 1, rounds=300, adapt=30.0, tick=0.2, exchange=20.0, log="json", grace=1.0, reload=0.3
    )


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Every process that is started has a clock of its own; what is written into this file is added to it."""
    offset = tmp_path / "offset"
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(CLOCK.format(path=str(offset)))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    yield offset
    offset.unlink(missing_ok=True)


def test_signals_a_full_disk_and_a_clock_that_jumps_lose_nothing(soak: ModuleType, layout: Layout, clock: Path) -> None:
    with Cluster(layout) as cluster:
        auditor = soak.Auditor(cluster)
        cluster.start_all()
        for unit in layout.units:
            cluster.wait_round(unit, 2, 90.0)
        signalled(cluster, auditor)
        full(cluster, auditor)
        jumps(cluster, clock, soak)
        cluster.stop(layout.nodes)
        assert set(cluster.ended().values()) == {0}
        auditor.settle(drained=False)
        for unit in layout.units:  # alone: nothing new is published, and what is open is settled
            cluster.start(unit)
        cluster.wait("nothing is open", lambda: settled(cluster), 60.0)
        cluster.stop_all()
        books = auditor.settle()
    assert min(one.published for one in books) > 5
    assert all(one.published == one.decided for one in books)  # no round was lost by any of it


def settled(cluster: Cluster) -> bool:
    told = [cluster.status(unit) for unit in cluster.layout.units]
    return all(one is not None and not any(peer["open"] for peer in one["peers"]) for one in told)


def signalled(cluster: Cluster, auditor: Any) -> None:
    """SIGTERM while the clients of the round are silent: the round is given up, and taken up again."""
    client = cluster.layout.clients("alpha")[0]
    cluster.kill(client, signal.SIGSTOP)

    def stuck() -> bool:
        """The client may have answered before it was stopped: then a tick later the next round is open."""
        looks = []
        for _ in range(2):
            found = cluster.status("alpha") or {}
            looks.append((found.get("phase"), found.get("round")))
            time.sleep(1.0)
        return looks[0] == looks[1] and looks[0][0] == "adapt"

    cluster.wait("a round is open and nobody answers", stuck, 30.0)
    cluster.stop(["alpha"], grace=30.0)
    assert cluster.ended()["alpha"] == 0, cluster.log("alpha")
    books = auditor.look("alpha")
    assert books.attempt is not None
    assert books.attempt.round == books.decided + 1
    cluster.kill(client, signal.SIGCONT)
    cluster.start("alpha")
    cluster.wait_round("alpha", books.decided + 2, 60.0)


def full(cluster: Cluster, auditor: Any) -> None:
    """No file of beta's may grow any more."""
    pid = cluster.processes["beta"].pid
    wal = Path(f"{cluster.layout.store('beta')}-wal")
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (wal.stat().st_size + 1, resource.RLIM_INFINITY))
    code = cluster.processes["beta"].wait(60)
    assert code == 1, cluster.log("beta")
    said = cluster.last_line("beta")
    assert said.startswith("failed: ")
    assert "the disk refused" in said
    assert "nothing before this step is lost" in said
    before = auditor.look("beta")
    cluster.start("beta")
    cluster.wait_round("beta", before.decided + 2, 60.0)


def jumps(cluster: Cluster, clock: Path, soak: ModuleType) -> None:
    """An hour forward, then two back: deadlines are those of the monotonic clock, and the log has a word about it."""
    for seconds in (3600.0, -3600.0):
        clock.write_text(str(seconds))

        def noticed(seconds: float = seconds) -> bool:
            said = [line for line in soak.events_of(cluster.log("alpha")) if line["event"] == "clock"]
            return any(abs(line["set_by_seconds"] - seconds) < 60.0 for line in said)

        cluster.wait("alpha has noticed", noticed, 30.0)
        for unit in cluster.layout.units:
            cluster.wait_round(unit, (cluster.wait_round(unit, 0))["round"] + 3, 30.0)
    cluster.stop(["alpha"])  # a start with a clock that is behind its own ledger
    cluster.start("alpha")
    for unit in cluster.layout.units:
        cluster.wait_round(unit, (cluster.wait_round(unit, 0))["round"] + 3, 60.0)


def ended(layout: Layout, node: str, prelude: str = "") -> tuple[int, str]:
    """A node that is to end by itself: exit code and last line."""
    kind = "server" if node in layout.units else "client"
    program = f"import sys\nimport confide.cli\n{prelude}\nsys.argv = ['confide', *sys.argv[1:]]\nconfide.cli.main()\n"
    line = [sys.executable, "-c", program, kind, str(layout.toml(node))]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stderr.splitlines()[-1]


def test_an_expired_certificate_is_said_before_anything_is_dialed(layout: Layout) -> None:
    before = utc_now() - timedelta(days=2)
    authority = replace(Authority.open(layout.authority("alpha")), clock=lambda: before)
    for name in ("one", "c0"):
        authority.renew(name, days=1, keep=True)
    for node, name in (("alpha", "one"), ("alpha-c0", "c0")):
        code, said = ended(layout, node)
        assert code == 2
        assert "certificate expired on" in said
        assert f"confide pki renew alpha {name}" in said
    assert not layout.store("alpha").exists()


def test_a_store_that_may_not_be_written(layout: Layout, tmp_path: Path) -> None:
    """Root may write everywhere, so root becomes somebody else."""
    prelude = ""
    if os.geteuid() == 0:
        prelude = AS_NOBODY
        for path in (tmp_path, *tmp_path.parents):
            if path.stat().st_uid == 0 and not path.stat().st_mode & 0o001:
                path.chmod(path.stat().st_mode | 0o011)
        for path in (layout.folder, *layout.folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
    layout.place("alpha").chmod(0o500)
    try:
        code, said = ended(layout, "alpha", prelude)
    finally:
        layout.place("alpha").chmod(0o700)
    assert code == 2, said
    assert "store" in said
    assert not layout.store("alpha").exists()
