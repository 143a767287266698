"""Servers and clients as real processes on one machine: TLS, kills, signals, and the bits of the reference."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from confide import cli
from confide.config import Experiment, load
from confide.deploy import control, pki, released_model
from confide.deploy.node_config import load_server
from confide.deploy.server_setup import ServerSetup
from confide.deploy.sqlite import SqliteStore
from confide.privacy.ledger import write_events
from confide.reference import prepare

ROUNDS, SEED, UNITS, CLIENTS = 8, 5, ("alpha", "beta"), 3
BUDGET = 2.1  # rho: all rounds cost 0.91, a release 1.10
CONFIG = f"""
rounds = {ROUNDS}
repeats = 1
seed = {SEED}
[graph]
topology = "path"
[problem]
units = 2
clients = {CLIENTS}
samples = 12
features = 3
rho = 0.1
[algorithm]
step = 0.1
sampled = 3
clip = "example"
bound = 1.0
arithmetic = "fixed"
local_steps = [1, 4]
batch = [3, 5]
fraction_bits = 20
aggregation = "secure"
[scheme]
name = "homomorphic"
noise = "gaussian"
sigma = 2.0
[privacy]
proof = "regulariser:0.1"
release = "centroid:0.5"
rho = {BUDGET}
"""


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    """One of the commands, in a process of its own."""
    line = [sys.executable, "-m", "confide", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def until(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)
    return found


@dataclass
class Site:
    """A folder with everything that two organisations need; each test runs in a copy of its own."""

    folder: Path
    ports: dict[str, int] = field(default_factory=lambda: {name: free_port() for name in UNITS})
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def experiment(self) -> Experiment:
        return load(self.folder / "config.toml").build()

    def authority(self, org: str) -> pki.Authority:
        return pki.Authority.open(self.folder / org)

    def write(self) -> None:
        for p, name in enumerate(UNITS):
            other = UNITS[1 - p]
            authorities = "".join(
                f'[authorities.{org}]\ncertificate = "{org}/ca.crt"\ncrl = "{org}/crl.pem"\n' for org in UNITS
            )
            (self.folder / f"{name}.toml").write_text(
                f'plan = "plan.json"\nnode = "{name}/server-one"\nlisten = "127.0.0.1:{self.ports[name]}"\n'
                f'store = "{name}.db"\ndataset = "{name} 2026"\nreleased = "{name}-released"\npatience = 20\n'
                f'reload = 0.5\ngrace = 3\n{authorities}[servers.{other}]\norganisation = "{other}"\nname = "one"\n'
                f'addresses = ["127.0.0.1:{self.ports[other]}"]\n'
            )
            for k in range(CLIENTS):
                (self.folder / f"{name}-c{k}.toml").write_text(
                    f'plan = "plan.json"\nnode = "{name}/client-c{k}"\nrecord = "{name}-c{k}.record"\n'
                    f'data = "{name}-c{k}.npz"\nauthority = "{name}/ca.crt"\nlog = "json"\n[server]\n'
                    f'organisation = "{name}"\nname = "one"\naddresses = ["127.0.0.1:{self.ports[name]}"]\n'
                )

    def toml(self, name: str) -> Path:
        return self.folder / f"{name}.toml"

    def start(self, name: str, *options: str, crash: str = "") -> subprocess.Popen[bytes]:
        kind = "client" if "-" in name else "server"
        line = [sys.executable, "-m", "confide", kind, str(self.toml(name)), *options]
        environment = os.environ | ({"CONFIDE_CRASH_AT": crash} if crash else {})
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(line, stderr=log, stdout=log, env=environment)
        return self.processes[name]

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def status(self, name: str) -> dict[str, Any] | None:
        """None where no server answers."""
        try:
            lines = list(control.ask(self.folder / f"{name}.db.sock", {"ask": "status"}, 10.0))
        except control.NotRunningError:
            return None
        found: dict[str, Any] = lines[-1]["done"]
        return found

    def reached(self, name: str, round: int) -> Any:
        process = self.processes[name]

        def there() -> Any:
            assert process.poll() is None, self.log(name)
            found = self.status(name)
            return found is not None and found["round"] >= round and found

        return until(there)

    def stop(self) -> dict[str, int]:
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        return {name: process.wait(20) for name, process in self.processes.items()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Authorities, certificates, announcements, plan and data, by the commands where they are quick enough."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "config.toml").write_text(CONFIG)
    for name in UNITS:
        authority = pki.Authority.create(folder / name)
        authority.issue("server", "one")
        for k in range(CLIENTS):
            authority.issue("client", f"c{k}")
        done = command("pki", "announce", name, "--unit", name, "--dir", folder)
        assert done.returncode == 0, done.stderr
        (folder / f"{name}.json").write_text(done.stdout)
    federation = load(folder / "config.toml").build().problem.federation
    for p, name in enumerate(UNITS):
        for k in range(CLIENTS):
            X, y = federation.client(p, k)
            np.savez(folder / f"{name}-c{k}.npz", allow_pickle=False, X=X, y=y)
    units = [x for name in UNITS for x in ("--unit", folder / f"{name}.json")]
    clocks = ("--adapt", 40, "--tick", 0.05, "--exchange", 20, "--drain", 20)  # nothing is late here
    done = command("agree", folder / "config.toml", *units, "--out", folder / "plan.json", *clocks)
    assert done.returncode == 0, done.stderr
    assert "rho" in done.stdout or "epsilon" in done.stdout
    return folder


@pytest.fixture
def site(made: Path, tmp_path: Path) -> Iterator[Site]:
    folder = tmp_path / "site"
    subprocess.run(["cp", "-a", made, folder], check=True)
    found = Site(folder)
    found.write()
    yield found
    for process in found.processes.values():
        if process.poll() is None:
            process.kill()
            process.wait()


def reference(e: Experiment) -> list[list[int]]:
    r = prepare(e.problem, e.graph, e.algorithm, ROUNDS, e.seed)(0)
    w = r.start(np.zeros((len(UNITS), e.problem.M)))
    for i in range(1, ROUNDS + 1):
        w = r.round(i, w).w
    found: list[list[int]] = np.asarray(w).tolist()
    return found


def run_here(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """A command in this process, through the entry point that maps errors to exit codes."""
    before, sys.argv = sys.argv, ["confide", *map(str, arguments)]
    try:
        with pytest.raises(SystemExit) as ended:
            cli.main()
    finally:
        sys.argv = before
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_a_cluster_that_is_killed_and_stopped_equals_the_reference(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = ("--test-seed", str(SEED))
    for name in UNITS:
        for k in range(CLIENTS):
            site.start(f"{name}-c{k}", *seed)
    site.start("beta", *seed)
    crashing = site.start("alpha", *seed, crash="publish.committed:2")
    assert crashing.wait(30) == -signal.SIGKILL, site.log("alpha")

    # alpha is gone after its third publication, of which no byte has left; beta goes in good order meanwhile.
    with SqliteStore.open(site.folder / "alpha.db") as store:
        assert store.load().decided == 3
    site.start("alpha", *seed)
    site.processes["beta"].terminate()
    assert site.processes["beta"].wait(15) == 0, site.log("beta")
    site.start("beta", *seed)
    until(lambda: all((site.status(name) or {}).get("phase") == "finished" for name in UNITS))
    told = site.status("alpha")
    assert told is not None
    assert (told["round"], told["published"], told["alarms"]) == (ROUNDS, ROUNDS, [])
    assert told["clients"] == {"connected": CLIENTS, "of": CLIENTS}
    assert [(p["unit"], p["up"], p["dialed"], p["open"]) for p in told["peers"]] == [("beta", True, True, [])]
    assert told["epsilon"] > 0
    assert told["test_seed"]
    assert (site.folder / "alpha.db.sock").stat().st_mode & 0o777 == 0o600

    small = {name: _resident(p.pid) for name, p in site.processes.items() if "-" in name}
    assert max(small.values()) < 80 * 1024, small  # KiB

    code, out, err = run_here(capsys, "check", site.toml("alpha"), "--peers")
    assert code == 0, out + err
    assert "FAIL" not in out

    code, out, err = run_here(capsys, "status", site.toml("alpha"))
    assert (code, err) == (0, "")
    assert f"round     {ROUNDS} of {ROUNDS}" in out
    assert "nothing is private" in out

    code, out, err = run_here(capsys, "release", site.toml("beta"), "--json")
    assert code == 0, err
    facts = json.loads(out)
    weights, meta = released_model.read(facts["file"])
    assert (meta["attempt"], meta["servers"], meta["sigma"]) == (1, 2, 0.5)
    other, _ = released_model.read(site.folder / "alpha-released" / "model.npz")
    assert np.array_equal(weights, other)
    code, out, err = run_here(capsys, "release", site.toml("alpha"))  # the same attempt, not another
    assert code == 0, err
    assert np.array_equal(weights, released_model.read(site.folder / "alpha-released" / "model.npz")[0])
    code, _, err = run_here(capsys, "release", site.toml("alpha"), "--again")
    assert (code, "pays for 1 releases" in err) == (1, True), err

    site.authority("beta").revoke("c2")  # its list is read again every half second
    until(lambda: (site.status("beta") or {})["clients"]["connected"] == CLIENTS - 1)

    assert set(site.stop().values()) == {0}
    code, out, _ = run_here(capsys, "status", site.toml("beta"), "--json")  # of the store
    assert (code, json.loads(out)["running"], json.loads(out)["round"]) == (0, False, ROUNDS)
    models, scheme = [], site.experiment
    for name in UNITS:
        with SqliteStore.open(site.folder / f"{name}.db") as store:
            models.append(store.load().w.tolist())
            kinds = [entry.event.kind for entry in store.entries()]
            assert kinds == ["message"] * ROUNDS + ["release"]
        assert not (site.folder / f"{name}.db.sock").exists()
    assert models == reference(scheme)
    for name in site.processes:
        text = site.log(name)
        assert "Traceback" not in text, text
        assert "NOTHING OF THIS RUN IS PRIVATE" in text
    lines = [line for line in site.log("alpha-c0").splitlines() if line.startswith("{")]
    assert {"started", "connected", "enrolled", "ended"} <= {json.loads(line)["event"] for line in lines}


def _resident(pid: int) -> int:
    """KiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def test_a_client_loads_no_heavy_library() -> None:
    heavy = ("scipy", "numba", "networkx", "polars", "dp_accounting", "typer", "rich")
    program = (
        "import sys, confide.deploy.client_main, confide.deploy.client_process, confide.deploy.seeded, "
        f"confide.deploy.node_config; print(*(m for m in {heavy} if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == ""


def test_without_a_test_seed_nothing_repeats_and_nothing_crashes(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """The environment variable alone does nothing; a server alone waits for its neighbour, and ends when told."""
    site.start("alpha", crash="boot.loaded:0")
    found = site.reached("alpha", 0)
    assert not found["test_seed"]
    assert not found["peers"][0]["dialed"]
    assert found["clients"]["connected"] == 0
    second = command("server", site.toml("alpha"))  # the same store
    assert second.returncode == 2
    assert "in use by another process" in second.stderr
    assert second.stderr.count("\n") == 1

    taken = site.folder / "taken.toml"
    taken.write_text(site.toml("alpha").read_text().replace('"alpha.db"', '"other.db"'))
    third = command("server", taken)  # the same port
    assert third.returncode == 2
    assert "port" in third.stderr.splitlines()[-1]
    assert "in use" in third.stderr.splitlines()[-1]
    code, out, _ = run_here(capsys, "check", taken)
    assert code == 1
    assert "FAIL  port" in out

    code, _, err = run_here(capsys, "release", site.toml("beta"))
    assert (code, "no server runs" in err) == (1, True)
    site.processes["alpha"].send_signal(signal.SIGINT)
    assert site.processes["alpha"].wait(15) == 0, site.log("alpha")


def test_check_finds_what_is_wrong(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_here(capsys, "check", site.toml("alpha"), "--json")
    found = {row["check"]: row["level"] for row in json.loads(out)["checks"]}
    assert (code, err) == (0, "")
    assert found == {
        "plan": "ok", "budget": "ok", "certificate": "ok", "revocations": "ok", "store": "ok", "disk": "ok",
        "port": "ok", "released": "ok", "peer": "warn", "clocks": "skip",
    }  # fmt: skip
    assert run_here(capsys, "check", site.toml("alpha"), "--peers")[0] == 1
    site.authority("alpha").revoke("one")
    code, out, _ = run_here(capsys, "check", site.toml("alpha"))
    assert code == 1
    assert "was revoked" in out
    os.chmod(site.folder / "beta" / "server-one.key", 0o644)
    code, out, _ = run_here(capsys, "check", site.toml("beta"))
    assert code == 1
    assert "chmod 600" in out


def test_earlier_ledgers_reduce_what_may_be_published(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    from confide.privacy.ledger import Cost, Event, dataset_id

    setup = ServerSetup.load(load_server(site.toml("alpha")))
    assert setup.allowance.publications == ROUNDS
    each = setup.prices.messages[0].rho
    release = setup.prices.release
    assert each is not None
    assert release is not None
    assert release.rho is not None
    total = sum(cost.rho or 0.0 for cost in setup.prices.messages)
    room = BUDGET - total - release.rho  # of the budget

    def with_ledger(rho: float | None, name: str = "alpha 2026") -> ServerSetup:
        path = site.folder / "old.jsonl"
        path.unlink(missing_ok=True)
        cost = Cost(rho, None, 1.0, 1.0, "gaussian")
        write_events(path, dataset_id(name), setup.plan, [Event(setup.plan.hash, "message", 1, 7, cost)])
        toml = site.folder / "old.toml"
        toml.write_text('ledgers = ["old.jsonl"]\n' + site.toml("alpha").read_text())
        return ServerSetup.load(load_server(toml))

    assert with_ledger(room * 0.999).allowance.publications == ROUNDS
    costs = [cost.rho or 0.0 for cost in setup.prices.messages]
    short = with_ledger(room + costs[-1] * 0.5)
    assert short.allowance.publications == ROUNDS - 1
    assert short.terms.allowed == ROUNDS - 1
    assert short.allowance.releases == 1
    assert "earlier" in short.allowance.said
    spent = with_ledger(6.0)
    assert (spent.allowance.publications, spent.allowance.releases) == (0, 0)
    assert with_ledger(None).allowance.publications == 0  # without a bound
    code, out, _ = run_here(capsys, "check", site.folder / "old.toml")
    assert (code, "FAIL  budget" in out) == (1, True)
    with pytest.raises(ValueError, match="not of the data set"):
        with_ledger(0.1, "somebody else's")


def test_the_door_is_the_plans(site: Site) -> None:
    setup = ServerSetup.load(load_server(site.toml("alpha")))
    nodes = {
        (org, role, name): pki.Node.load(site.folder / org / f"{role}-{name}")
        for org, role, name in [
            ("alpha", "client", "c1"), ("beta", "client", "c1"), ("beta", "server", "one"), ("alpha", "server", "one")
        ]
    }  # fmt: skip

    def peer(org: str, role: str, name: str, vouched: str | None = None) -> pki.Peer:
        return pki.Peer(vouched or org, role, name, nodes[org, role, name].identity.public, 1)

    assert setup.door(peer("alpha", "client", "c1")) == ("client", 1)
    assert setup.door(peer("beta", "server", "one")) == ("server", 1)
    for stranger in (
        peer("beta", "client", "c1"),  # of the other unit
        peer("alpha", "server", "one"),  # itself
        peer("beta", "server", "one", "alpha"),  # our own authority may not vouch for another's server
        peer("alpha", "client", "c1", "beta"),  # nor the other's for our client
        pki.Peer("alpha", "client", "c9", bytes(32), 1),
    ):
        with pytest.raises(pki.RefusedPeer):
            setup.door(stranger)
