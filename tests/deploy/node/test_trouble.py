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
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from confide.cluster.layout import Layout, lay_out
from confide.cluster.processes import Cluster
from confide.cluster.try_out import TRY_OUT
from confide.deploy.keys.authority import Authority
from confide.deploy.keys.certificates import utc_now
from confide.deploy.node import start
from confide.deploy.store.books import Books
from confide.plans.config import parse
from patience import LIMIT, SCALE, wait_round
from ports import own_ports
from soak import Auditor, events_of

NOBODY = 65534
LONG = 180.0 * SCALE  # seconds: nobody is so late that the silent client would be given up
WRONG_CLOCK = "one of the two clocks is wrong"
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
import confide.commands.deploy, confide.deploy.node.server_process
from confide.deploy.node.config import load_server
from confide.deploy.node.server_setup import ServerSetup
ServerSetup.load(load_server(sys.argv[2]))  # so that everything is imported: nobody may not read root's Python
os.setgid({NOBODY}); os.setuid({NOBODY})
"""


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """Two servers with a client each, whose update is summed in clear."""
    so_many = {"privacy": TRY_OUT["privacy"] | {"unprotected": True}}  # rounds that nobody runs leave no epsilon
    config = parse(TRY_OUT | so_many | {"algorithm": TRY_OUT["algorithm"] | {"aggregation": "plain"}})
    return lay_out(
        tmp_path / "n", config, 2, 1, rounds=5000, adapt=LONG, tick=0.1, exchange=LONG, ports=own_ports, log="json",
        grace=0.5, reload=0.3,
    )  # fmt: skip


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Every process that is started has a clock of its own; what is written into this file is added to it."""
    offset = tmp_path / "offset"
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(CLOCK.format(path=str(offset)))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    yield offset
    offset.unlink(missing_ok=True)


def test_signals_a_full_disk_and_a_clock_that_jumps_lose_nothing(layout: Layout, clock: Path) -> None:
    with Cluster(layout) as cluster:
        auditor = Auditor(cluster)
        cluster.start_all()
        go_on(cluster)
        jumps(cluster, clock)
        signalled(cluster, auditor, clock)
        full(cluster, auditor)
        cluster.stop(layout.nodes, LIMIT)
        assert set(cluster.ended().values()) == {0}
        books = auditor.settle(
            drained=False
        )  # which counts: a message or a skip for every round, and all are conserved
    assert all(5 < one.published <= one.decided for one in books)


def go_on(cluster: Cluster) -> None:
    """Both decide some rounds more."""
    for unit in cluster.layout.units:
        wait_round(cluster, unit, wait_round(cluster, unit, 0)["round"] + 2)


def jumps(cluster: Cluster, clock: Path) -> None:
    """An hour forward, then two back: deadlines are those of the monotonic clock, and the log has a word about it."""
    for seconds in (3600.0, -3600.0):
        clock.write_text(str(seconds))

        def noticed(seconds: float = seconds) -> bool:
            said = [line for line in events_of(cluster.log("alpha")) if line["event"] == "clock"]
            return any(abs(line["set_by_seconds"] - seconds) < 1800.0 for line in said)

        cluster.wait("alpha has noticed", noticed, LIMIT)
        go_on(cluster)


def signalled(cluster: Cluster, auditor: Auditor, clock: Path) -> None:
    """SIGTERM while the client of the round is silent: the round is given up, and taken up again.

    The first time the client may have answered before it was stopped, the second time it cannot. The clock that alpha
    starts with first is behind the plan: it believes nobody and decides nothing until it is started with a right one.
    """
    client = cluster.layout.clients("alpha")[0]
    cluster.kill(client, signal.SIGSTOP)
    decided = stopped(cluster, auditor).decided
    cluster.start("alpha")
    cluster.wait("alpha doubts a clock", lambda: WRONG_CLOCK in cluster.log("alpha"), LIMIT)
    auditor.rightly = (WRONG_CLOCK,)
    assert stopped(cluster, auditor).decided == decided
    clock.write_text("0")
    open_a_round(cluster)
    books = stopped(cluster, auditor)
    open_a_round(cluster)
    assert books.attempt is not None
    assert books.attempt.round == books.decided + 1
    cluster.kill(client, signal.SIGCONT)
    go_on(cluster)


def stopped(cluster: Cluster, auditor: Auditor) -> Books:
    """What alpha has on its disk once it has ended in peace."""
    cluster.stop(["alpha"], LIMIT)
    assert cluster.ended()["alpha"] == 0, cluster.log("alpha")
    return auditor.look("alpha")


def open_a_round(cluster: Cluster) -> None:
    cluster.start("alpha")
    cluster.wait("a round is open", lambda: (cluster.status("alpha") or {}).get("phase") == "adapt", LIMIT)


def full(cluster: Cluster, auditor: Auditor) -> None:
    """No file of beta's may grow any more."""
    pid = cluster.processes["beta"].pid
    wal = Path(f"{cluster.layout.store('beta')}-wal")
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (wal.stat().st_size + 1, resource.RLIM_INFINITY))
    code = cluster.processes["beta"].wait(LIMIT)
    assert code == 1, cluster.log("beta")
    said = cluster.last_line("beta")
    assert said.startswith("failed: ")
    assert "the disk refused" in said
    assert "nothing before this step is lost" in said
    auditor.look("beta")
    cluster.start("beta")
    go_on(cluster)


def test_an_expired_certificate_is_said_before_anything_is_dialed(
    layout: Layout,
    command: Callable[..., tuple[int, str, str]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")  # as a client would set it, and taken back
    before = utc_now() - timedelta(days=2)
    authority = replace(Authority.open(layout.authority("alpha")), clock=lambda: before)
    for name in ("one", "c0"):
        authority.renew(name, days=1, keep=True)
    server, _, server_said = command("server", layout.toml("alpha"))
    client = start.run("client", str(layout.toml("alpha-c0")))  # which `confide client` becomes
    for code, said, name in ((server, server_said, "one"), (client, capsys.readouterr().err, "c0")):
        assert code == 2
        assert "certificate expired on" in said.splitlines()[-1]
        assert f"confide pki renew alpha {name}" in said.splitlines()[-1]
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
    start = "sys.argv = ['confide', *sys.argv[1:]]\nconfide.commands.main.main()\n"
    program = f"import sys\nimport confide.commands.main\n{prelude}\n{start}"
    line = [sys.executable, "-c", program, "server", str(layout.toml("alpha"))]
    layout.place("alpha").chmod(0o500)
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=LIMIT, check=False)
    finally:
        layout.place("alpha").chmod(0o700)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "store" in done.stderr.splitlines()[-1]
    assert not layout.store("alpha").exists()


def test_clocks_that_differ_are_said_at_both_ends(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[..., tuple[int, str, str]]
) -> None:
    """Each hears the other's time when it dials it, and says it in the log and in the status."""
    (tmp_path / "behind").write_text("-30.0")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(CLOCK.format(path=str(tmp_path / "behind")))
    with Cluster(layout) as cluster:
        cluster.start("alpha")
        with monkeypatch.context() as m:
            m.setenv("PYTHONPATH", f"{tmp_path / 'site'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
            cluster.start("beta")
        for unit, other, ahead in (("alpha", "beta", -30.0), ("beta", "alpha", 30.0)):

            def said(unit: str = unit, other: str = other, ahead: float = ahead) -> bool:
                found = [line for line in events_of(cluster.log(unit)) if line["event"] == "clocks differ"]
                return any(x["with"] == other and x["ahead_by_seconds"] * ahead > 0 for x in found)

            cluster.wait(f"{unit} has noticed", said, LIMIT)
        code, told, _ = command("status", layout.toml("alpha"))
        assert (code, " s behind" in told) == (0, True), told
