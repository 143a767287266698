"""Servers and clients as real processes on one machine: TLS, kills, signals, and the bits of the reference."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import reference_bits
from confide.base.errors import InputError, RunError
from confide.commands import main as cli
from confide.deploy.keys.authority import Authority
from confide.deploy.keys.certificates import Peer, RefusedPeer
from confide.deploy.keys.node_keys import NodeKeys
from confide.deploy.node import control, probing
from confide.deploy.node.client_process import ClientProcess
from confide.deploy.node.client_setup import ClientSetup
from confide.deploy.node.config import load_client, load_server
from confide.deploy.node.observing import Observer
from confide.deploy.node.server_process import TWICE, open_store
from confide.deploy.node.server_setup import ServerSetup
from confide.deploy.node.training_process import TrainingProcess
from confide.deploy.store.sqlite import SqliteStore
from confide.plans.config import Experiment, load
from confide.plans.plan import Plan
from confide.privacy.ledger import write_events
from confide.problems import model_file as released_model
from confide.problems.federation import Federation
from confide.rounds.reference import Reference
from patience import LIMIT, SCALE, until
from ports import own_ports

ROUNDS, SEED, UNITS, CLIENTS = 8, 5, ("alpha", "beta"), 3
BUDGET = 1.5  # rho: all rounds cost 0.91, a release 0.55 for who knows none of its two shares
LONG = 180.0 * SCALE  # seconds: nobody is ever so late
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


def alive(port: int) -> bytes:
    """What a probe without a certificate is told."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=LIMIT) as answer:
        found: bytes = answer.read()
    return found


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    """One of the commands, in a process of its own."""
    line = [sys.executable, "-m", "confide", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=LIMIT, check=False)


def run_here(*arguments: object) -> tuple[int, str, str]:
    """A command in this process, through the entry point that maps errors to exit codes."""
    before, sys.argv = sys.argv, ["confide", *map(str, arguments)]
    out, err = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            cli.main()
    finally:
        sys.argv = before
    return int(ended.value.code or 0), out.getvalue(), err.getvalue()


@dataclass
class Site:
    """A folder with everything that two organisations need; each test runs in a copy of its own."""

    folder: Path
    ports: dict[str, int] = field(default_factory=lambda: dict(zip(UNITS, own_ports(len(UNITS)), strict=True)))
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    probes: dict[str, int] = field(default_factory=lambda: dict(zip(("alpha", "alpha-c0"), own_ports(2), strict=True)))

    def health(self, name: str) -> str:
        return f'health = "127.0.0.1:{self.probes[name]}"\n' if name in self.probes else ""

    @property
    def experiment(self) -> Experiment:
        return load(self.folder / "config.toml").build()

    def authority(self, org: str) -> Authority:
        return Authority.open(self.folder / org)

    def write(self) -> None:
        for p, name in enumerate(UNITS):
            other = UNITS[1 - p]
            authorities = "".join(
                f'[authorities.{org}]\ncertificate = "{org}/ca.crt"\ncrl = "{org}/crl.pem"\n' for org in UNITS
            )
            (self.folder / f"{name}.toml").write_text(
                f'plan = "plan.json"\nnode = "{name}/server-one"\nlisten = "127.0.0.1:{self.ports[name]}"\n'
                f'store = "{name}.db"\ndataset = "{name} 2026"\nreleased = "{name}-released"\npatience = {LONG}\n'
                f"reload = 0.3\ngrace = 3\n{self.health(name)}{authorities}"
                f'[servers.{other}]\norganisation = "{other}"\nname = "one"\n'
                f'addresses = ["127.0.0.1:{self.ports[other]}"]\n'
            )
            for k in range(CLIENTS):
                (self.folder / f"{name}-c{k}.toml").write_text(
                    f'plan = "plan.json"\nnode = "{name}/client-c{k}"\nrecord = "{name}-c{k}.record"\n'
                    f'data = "{name}-c{k}.npz"\nauthority = "{name}/ca.crt"\ncrl = "{name}/crl.pem"\nlog = "json"\n'
                    f"reload = 0.3\n{self.health(f'{name}-c{k}')}[server]\n"
                    f'organisation = "{name}"\nname = "one"\naddresses = ["127.0.0.1:{self.ports[name]}"]\n'
                )

    def toml(self, name: str) -> Path:
        return self.folder / f"{name}.toml"

    def start(self, name: str, *options: str, crash: str = "") -> subprocess.Popen[bytes]:
        """One client of each unit by its command, the others at once as what the command becomes: that is quicker."""
        command = ("confide", "client" if "-" in name else "server")
        module = ("confide.deploy.node.start", "client") if name.endswith(("-c1", "-c2")) else command
        line = [sys.executable, "-m", *module, str(self.toml(name)), *options]
        environment = os.environ | ({"CONFIDE_CRASH_AT": crash} if crash else {})
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(line, stderr=log, stdout=log, env=environment)
        return self.processes[name]

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def status(self, name: str) -> dict[str, Any] | None:
        """None where no server answers."""
        try:
            lines = list(control.ask(self.folder / f"{name}.db.sock", {"ask": "status"}, LIMIT))
        except (control.NotRunningError, RunError):  # not yet, or not any more
            return None
        found: dict[str, Any] = lines[-1]["done"]
        return found

    def reached(self, name: str, round: int) -> Any:
        process = self.processes[name]

        def there() -> Any:
            assert process.poll() is None, self.log(name)
            found = self.status(name)
            return found is not None and found["round"] >= round and found

        return until(there, f"round {round} of {name}")

    def finished(self, name: str) -> Any:
        return until(lambda: (s := self.status(name)) and s["phase"] == "finished" and s, f"the end of {name}")

    def ended(self, name: str) -> int:
        return self.processes[name].wait(LIMIT)

    def stop(self) -> dict[str, int]:
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        return {name: self.ended(name) for name in self.processes}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Authorities, certificates, announcements, plan and data, by the commands where they are quick enough."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "config.toml").write_text(CONFIG)
    for name in UNITS:
        authority = Authority.create(folder / name)
        authority.issue("server", "one")
        for k in range(CLIENTS):
            authority.issue("client", f"c{k}")
        code, out, err = run_here("pki", "announce", name, "--unit", name, "--dir", folder)
        assert code == 0, err
        (folder / f"{name}.json").write_text(out)
    federation = load(folder / "config.toml").build().problem.federation
    for p, name in enumerate(UNITS):
        for k in range(CLIENTS):
            X, y = federation.client(p, k)
            np.savez(folder / f"{name}-c{k}.npz", allow_pickle=False, X=X, y=y)
    agree(folder, "--adapt", LONG, "--tick", 0.05, "--exchange", LONG, "--drain", LONG)  # nothing is late here
    return folder


def agree(folder: Path, *options: object, config: str = "config.toml") -> None:
    units = [x for unit in UNITS for x in ("--unit", folder / f"{unit}.json")]
    code, out, err = run_here("agree", folder / config, *units, "--out", folder / "plan.json", *options)
    assert code == 0, err
    assert "NOT PROTECTED" in out or "NO NUMBER" in out
    assert "what protects" in out
    assert f"hash {Plan.load(folder / 'plan.json').hash}" in out


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


def without(e: Experiment, empty: Sequence[tuple[int, int]]) -> Experiment:
    """`empty`: (unit, client) without a data gradient; what the server does for it stays."""
    f = e.problem.federation
    X, d = np.array(f.X), np.array(f.d)
    for p, k in empty:
        c = int(f.unit_offsets[p]) + k
        rows = slice(int(f.client_offsets[c]), int(f.client_offsets[c + 1]))
        X[rows], d[rows] = 0.0, 0.0
    return e._replace(problem=replace(e.problem, federation=Federation(X, d, f.client_offsets, f.unit_offsets)))


def test_a_cluster_that_is_killed_and_stopped_equals_the_reference(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = ("--test-seed", str(SEED))
    for name in UNITS:
        for k in range(CLIENTS):
            site.start(f"{name}-c{k}", *seed)
    site.start("beta", *seed)
    site.start("alpha", *seed, crash="publish.committed:2")
    assert site.ended("alpha") == -signal.SIGKILL, site.log("alpha")

    # alpha is gone after its third publication, of which no byte has left; beta goes in good order meanwhile.
    with SqliteStore.open(site.folder / "alpha.db") as store:
        assert store.load().decided == 3
    site.start("alpha", *seed)
    site.processes["beta"].terminate()
    assert site.ended("beta") == 0, site.log("beta")
    site.start("beta", *seed)
    site.finished("beta")
    told = site.finished("alpha")
    assert (told["round"], told["published"], told["alarms"]) == (ROUNDS, ROUNDS, [])
    assert told["clients"] == {"connected": CLIENTS, "of": CLIENTS, "waited": 0}
    assert [(p["unit"], p["up"], p["dialed"], p["open"]) for p in told["peers"]] == [("beta", True, True, [])]
    assert told["epsilon"] > 0
    own = next(a for a in told["statement"]["accounts"] if a["threat"] == told["threat"])
    assert (own["epsilon"], own["level"], own["adjacency"]) == (told["epsilon"], told["level"], told["adjacency"])
    assert told["test_seed"]
    assert (site.folder / "alpha.db.sock").stat().st_mode & 0o777 == 0o600

    assert [alive(port) for port in site.probes.values()] == [b"alive\n"] * 2

    small = {name: _resident(p.pid) for name, p in site.processes.items() if "-" in name}
    assert max(small.values()) < 80 * 1024, small  # KiB

    monkeypatch.setattr(probing, "PATIENCE", LIMIT)
    code, out, err = run_here("check", site.toml("alpha"), "--peers")
    assert code == 0, out + err
    assert "FAIL" not in out
    clock = (
        "ok    clock        beta: within 2 s of|warn  clock        beta: .* s behind"  # since the answer took so long
    )
    assert re.search(f"^({clock}) this machine", out, re.M)
    code, out, err = run_here("check", site.toml("alpha-c0"))
    assert (code, "in use: this client runs" in out) == (0, True), out + err

    code, out, err = run_here("status", site.toml("alpha"))
    assert (code, err) == (0, "")
    assert f"round     {ROUNDS} of {ROUNDS}" in out
    assert "nothing is private" in out

    code, out, err = run_here("release", site.toml("beta"), "--json")
    assert code == 0, err
    facts = json.loads(out)
    weights, meta = released_model.read(facts["file"])
    assert (meta["attempt"], meta["servers"], meta["sigma"]) == (1, 2, 0.5)
    other, _ = released_model.read(site.folder / "alpha-released" / "model.npz")
    assert np.array_equal(weights, other)
    code, out, err = run_here("release", site.toml("alpha"))  # the same attempt, not another
    assert code == 0, err
    assert np.array_equal(weights, released_model.read(site.folder / "alpha-released" / "model.npz")[0])
    code, _, err = run_here("release", site.toml("alpha"), "--again")
    assert (code, "as many releases as its plan and budget allow" in err) == (1, True), err

    code, out, err = run_here("ledger", site.toml("alpha"), "--out", site.folder / "led.jsonl", "--json")
    assert (code, json.loads(out)["events"]) == (0, ROUNDS + 1), err
    assert run_here("ledger", site.toml("alpha"), "--out", site.folder / "led.jsonl")[0] == 2
    audited(site)

    copied = site.toml("beta-c1").read_text().replace("beta-c1.record", "second.record")
    site.toml("second-c1").write_text('ledger = "second.jsonl"\n' + copied)
    site.start("second-c1", *seed)  # on another machine, perhaps, with the same keys
    told = until(lambda: (s := site.status("beta")) and s["alarms"], lambda: site.log("second-c1"))
    assert told == [f"client c1 of beta runs twice: {TWICE}"]
    site.processes["second-c1"].terminate()
    assert site.ended("second-c1") == 0

    site.authority("beta").revoke("c2")  # its list is read again now and then
    until(lambda: (s := site.status("beta")) and s["clients"]["connected"] == CLIENTS - 1, "c2 is shown the door")
    site.authority("beta").revoke("one")  # its neighbour and its clients leave it
    why = "the certificate was revoked"
    until(lambda: (s := site.status("alpha")) and why in s["peers"][0]["why"], "alpha leaves beta")
    until(lambda: why in site.log("beta-c0"), "c0 leaves beta")
    until(lambda: (s := site.status("beta")) and s["clients"]["connected"] == 0, "all clients leave beta")

    assert set(site.stop().values()) == {0}
    code, out, _ = run_here("status", site.toml("beta"), "--json")  # of the store
    assert (code, json.loads(out)["running"], json.loads(out)["round"]) == (0, False, ROUNDS)
    code, out, err = run_here("ledger", site.toml("alpha"), "--out", site.folder / "stopped.jsonl")
    assert code == 0, err
    assert (site.folder / "stopped.jsonl").read_bytes() == (site.folder / "led.jsonl").read_bytes()
    models, scheme = [], site.experiment
    for name in UNITS:
        with SqliteStore.open(site.folder / f"{name}.db") as store:
            models.append(store.load().w.tolist())
            kinds = [entry.event.kind for entry in store.entries()]
            assert kinds == ["message"] * ROUNDS + ["release"]
        assert not (site.folder / f"{name}.db.sock").exists()
    assert models == reference_bits(scheme, ROUNDS)
    for name in site.processes:
        text = site.log(name)
        assert "Traceback" not in text, text
        assert "NOTHING HERE IS PRIVATE" in text
        assert ("NOTHING OF THIS RUN IS PRIVATE" in text) == (not name.endswith(("-c1", "-c2")))  # the command says so
    lines = [line for line in site.log("alpha-c0").splitlines() if line.startswith("{")]
    assert {"started", "connected", "enrolled", "ended"} <= {json.loads(line)["event"] for line in lines}


def audited(site: Site) -> None:
    """What an auditor gets: that both servers were told the same by both relays, as they and the relays signed it."""
    folder = site.folder

    def told() -> int:
        (folder / "b.jsonl").unlink(missing_ok=True)
        said = run_here(
            "ledger", site.toml("beta"), "--out", folder / "b.jsonl", "--receipts", folder / "told.json", "--json"
        )
        return int(json.loads(said[1])["receipts"])

    until(lambda: told() == 4, "beta knows what two relays told two servers")
    files = ("--plan", folder / "plan.json", "--ledger", folder / "b.jsonl", "--receipts", folder / "told.json")
    code, _, err = run_here("bundle", *files, "--key", folder / "audit.pem", "--out", folder / "bundle.json")
    assert code == 0, err
    code, out, err = run_here("verify", folder / "bundle.json", "--json")
    assert code == 0, err
    found = {check["name"]: (check["ok"], check["reason"]) for check in json.loads(out)["checks"]}
    assert found["receipts"] == (True, "4 are signed by the server that told and the one that was told")
    assert found["results"] == (
        True, "were told alike, which does not show that the sum is right (attempt 1: 2 of 2 servers)",
    )  # fmt: skip


def _resident(pid: int) -> int:
    """KiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def test_a_client_loads_no_heavy_library(site: Site) -> None:
    """Neither when it is imported nor for its plan and its trainer."""
    heavy = ("scipy", "numba", "networkx", "polars", "dp_accounting", "typer", "rich")
    program = (
        "import sys, confide.deploy.node.client_process; from confide.deploy.node.client_main import Client; "
        "from confide.deploy.node.client_setup import ClientSetup; "
        "ClientSetup.load(Client(sys.argv[1]).config).trainer(1); "
        f"print(*(m for m in {heavy} if m in sys.modules))"
    )
    command = [sys.executable, "-c", program, site.toml("alpha-c0")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == ""


def test_a_server_loads_no_oracle() -> None:
    """Nothing that only tests and simulations need, nor the command line's libraries."""
    foreign = ("confide.testing", "confide.rounds.reference", "confide.engines", "confide.attacks", "confide.commands")
    program = (
        "import sys, confide.deploy.node.server_main, confide.deploy.node.server_process, confide.deploy.node.metrics; "
        f"print(*(m for m in sys.modules if m.startswith({(*foreign, 'typer', 'rich')})))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == ""


def alone(site: Site) -> None:
    """Without a test seed the environment variable does nothing; a server alone waits for its neighbour."""
    site.start("beta", crash="boot.loaded:0")
    found = site.reached("beta", 0)
    assert not found["test_seed"]
    assert not found["peers"][0]["dialed"]
    assert found["clients"]["connected"] == 0
    code, _, err = run_here("server", site.toml("beta"))  # the same store
    assert (code, "in use by another process" in err) == (2, True), err
    assert err.count("\n") == 1

    taken = site.folder / "taken.toml"
    taken.write_text(site.toml("beta").read_text().replace('"beta.db"', '"other.db"'))
    other = command("server", taken)  # the same port
    assert other.returncode == 2
    assert "port" in other.stderr.splitlines()[-1]
    assert "in use" in other.stderr.splitlines()[-1]
    code, out, _ = run_here("check", taken)
    assert code == 1
    assert "FAIL  port" in out
    code, _, err = run_here("release", site.toml("alpha"))
    assert (code, "no server runs" in err) == (1, True)


def test_real_noise_an_active_server_and_a_store_that_was_lost(site: Site) -> None:
    """Noise of pairs and of the operating system; the sum is conserved all the same. A lost store is not replaced."""
    rounds = 3
    (site.folder / "plan.json").unlink()
    (site.folder / "pairs.toml").write_text(CONFIG.replace(f"rho = {BUDGET}\n", ""))  # no proof, so no budget
    changes = (
        "scheme.name=pairwise", "scheme.sigma_pair=3", "secure.server=active", f"rounds={rounds}",
        "privacy.unprotected=true",
    )  # fmt: skip
    # A server that is to end when it has finished stays for two exchange times, so that is short: a slow machine may
    # skip a round.
    clocks = ("--adapt", LONG, "--tick", 0.05, "--exchange", 1.0 * SCALE, "--drain", LONG)
    agree(site.folder, *clocks, *(x for change in changes for x in ("--set", change)), config="pairs.toml")
    alone(site)
    for name in UNITS:
        for k in range(CLIENTS):
            site.start(f"{name}-c{k}", "--until-finished")
    site.start("alpha", "--until-finished")
    assert site.ended("alpha") == 0, site.log("alpha")
    for k in range(CLIENTS):
        assert site.ended(f"alpha-c{k}") == 0, site.log(f"alpha-c{k}")
        assert '"event": "finished"' in site.log(f"alpha-c{k}")
    site.finished("beta")
    with SqliteStore.open(site.folder / "alpha.db") as store:
        one = store.load()
        kinds = [e.event.kind for e in store.entries()]
    assert (len(kinds), kinds.count("message"), kinds.count("skip")) == (rounds, one.published, rounds - one.published)

    for end in ("", "-wal", "-shm"):
        (site.folder / f"alpha.db{end}").unlink(missing_ok=True)
    site.start("alpha")
    assert site.ended("alpha") == 2  # there is no use in trying again
    assert "older than what left; rejoin with a new store" in site.log("alpha").splitlines()[-1]
    site.start("alpha", "--rejoin")
    again = site.finished("alpha")
    until(lambda: (s := site.status("alpha")) and s["peers"][0]["edge"] == "open", "beta has told the balance")
    assert (again["round"], again["published"]) == (rounds, rounds)  # paid for: nobody knows what was published
    site.processes["beta"].send_signal(signal.SIGINT)
    assert set(site.stop().values()) == {0}
    with SqliteStore.open(site.folder / "beta.db") as store:
        other = store.load()
    assert other.published <= other.decided == rounds
    assert np.array_equal(one.balances[1].total, -other.balances[0].total)
    with SqliteStore.open(site.folder / "alpha.db") as store:
        assert np.array_equal(store.load().balances[1].total, one.balances[1].total)


def test_check_finds_what_is_wrong(site: Site) -> None:
    code, out, err = run_here("check", site.toml("alpha"), "--json")
    found = {row["check"]: row["level"] for row in json.loads(out)["checks"]}
    assert (code, err) == (0, "")
    assert found == {
        "plan": "ok", "privacy": "warn", "budget": "ok", "certificate": "ok", "revocations": "ok", "store": "ok",
        "disk": "ok", "port": "ok", "descriptors": "ok", "released": "ok", "peer": "warn",
    }  # fmt: skip
    assert run_here("check", site.toml("alpha"), "--peers")[0] == 1
    site.authority("alpha").revoke("one")
    code, out, _ = run_here("check", site.toml("alpha"))
    assert code == 1
    assert "was revoked" in out
    os.chmod(site.folder / "beta" / "server-one.key", 0o644)
    code, out, _ = run_here("check", site.toml("beta"))
    assert code == 1
    assert "chmod 600" in out


def test_clocks_that_do_not_fit_are_told_by_agree_and_check(site: Site) -> None:
    units = [x for unit in UNITS for x in ("--unit", site.folder / f"{unit}.json")]
    short = ("--adapt", 10, "--tick", 0.5, "--exchange", 5)
    code, _, err = run_here("agree", site.folder / "config.toml", *units, "--out", site.folder / "short.json", *short)
    assert (code, "agree on exchange = 6.5 or more" in err) == (0, True), err
    toml = site.folder / "alpha.toml"
    toml.write_text(toml.read_text().replace("plan.json", "short.json"))
    _, out, _ = run_here("check", toml)
    assert re.search("^warn  clocks .* agree on exchange = 6.5 or more", out, re.M), out


def test_check_of_a_client(site: Site) -> None:
    def checked() -> tuple[int, dict[str, tuple[str, str]]]:
        code, out, _ = run_here("check", site.toml("alpha-c0"), "--json")
        return code, {row["check"]: (row["level"], row["said"]) for row in json.loads(out)["checks"]}

    code, found = checked()
    assert code == 0
    assert {name: level for name, (level, _) in found.items()} == {
        "plan": "ok", "privacy": "warn", "certificate": "ok", "revocations": "ok", "data": "ok", "ledger": "ok",
        "record": "ok", "server": "warn",
    }  # fmt: skip
    assert "not reached" in found["server"][1]
    assert not (site.folder / "alpha-c0.record").exists()
    assert run_here("check", site.toml("alpha-c0"), "--peers")[0] == 1
    np.savez(site.folder / "alpha-c0.npz", allow_pickle=False, X=np.zeros((2, 1)), y=np.zeros(2))
    code, found = checked()
    assert (code, found["data"][0]) == (1, "FAIL")
    assert "the plan's model has" in found["data"][1]
    site.toml("alpha-c0").write_text(site.toml("alpha-c0").read_text().replace("alpha/client-c0", "beta/client-c0"))
    code, found = checked()
    assert (code, list(found)) == (1, ["setup"])


def test_earlier_ledgers_reduce_what_may_be_published(site: Site) -> None:
    from confide.privacy.ledger import Cost, Event, dataset_id

    setup = ServerSetup.load(load_server(site.toml("alpha")))
    assert setup.allowance.publications == ROUNDS
    each = setup.price.messages[0].rho
    release = setup.price.release
    assert each is not None
    assert release is not None
    assert release.rho is not None
    total = sum(cost.rho or 0.0 for cost in setup.price.messages)
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
    costs = [cost.rho or 0.0 for cost in setup.price.messages]
    short = with_ledger(room + costs[-1] * 0.5)
    assert short.allowance.publications == ROUNDS - 1
    assert short.terms.allowed == ROUNDS - 1
    assert short.allowance.releases == 1
    assert "earlier" in short.allowance.said
    spent = with_ledger(6.0)
    assert (spent.allowance.publications, spent.allowance.releases) == (0, 0)
    assert with_ledger(None).allowance.publications == 0  # without a bound
    code, out, _ = run_here("check", site.folder / "old.toml")
    assert (code, "FAIL  budget" in out) == (1, True)
    with pytest.raises(ValueError, match="not of the data set"):
        with_ledger(0.1, "somebody else's")


def test_the_door_is_the_plans(site: Site) -> None:
    setup = ServerSetup.load(load_server(site.toml("alpha")))
    nodes = {
        (org, role, name): NodeKeys.load(site.folder / org / f"{role}-{name}")
        for org, role, name in [
            ("alpha", "client", "c1"), ("beta", "client", "c1"), ("beta", "server", "one"), ("alpha", "server", "one")
        ]
    }  # fmt: skip

    def peer(org: str, role: str, name: str, vouched: str | None = None) -> Peer:
        return Peer(vouched or org, role, name, nodes[org, role, name].identity.public, 1)

    assert setup.door(peer("alpha", "client", "c1")) == ("client", 1)
    assert setup.door(peer("beta", "server", "one")) == ("server", 1)
    for stranger in (
        peer("beta", "client", "c1"),  # of the other unit
        peer("alpha", "server", "one"),  # itself
        peer("beta", "server", "one", "alpha"),  # our own authority may not vouch for another's server
        peer("alpha", "client", "c1", "beta"),  # nor the other's for our client
        Peer("alpha", "client", "c9", bytes(32), 1),
    ):
        with pytest.raises(RefusedPeer):
            setup.door(stranger)


def edited(site: Site, name: str, old: str, new: str) -> Path:
    path = site.folder / "edited.toml"
    text = site.toml(name).read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return path


def test_a_server_whose_parts_do_not_fit_is_refused(site: Site) -> None:
    def refused(old: str, new: str, field: str, remedy: str) -> None:
        path = edited(site, "alpha", old, new)
        with pytest.raises(InputError) as e:
            ServerSetup.load(load_server(path))
        assert (e.value.field, remedy in e.value.remedy) == (field, True), e.value
        code, _, err = run_here("server", path)  # the command says the same, in one line
        assert (code, err.splitlines()[-1].startswith("error: ")) == (2, True), err
        assert "Traceback" not in err

    refused("servers.beta", "servers.gamma", "servers.gamma", "no other unit of the plan; those are: beta")
    refused("servers.beta", "servers.alpha", "servers.alpha", "no other unit")
    table = site.toml("alpha").read_text().partition("[servers.beta]")
    refused(table[1] + table[2], "", "servers.beta", "is missing: it is a neighbour")
    refused('organisation = "beta"', 'organisation = "alpha"', "servers.beta.organisation", "get the right ca.crt")
    refused('"beta/ca.crt"', '"alpha/ca.crt"', "authorities.beta.crl", "not signed by the authority")
    refused('name = "one"', 'name = "O N E"', "servers.beta.name", "small letters")
    refused('"plan.json"', '"config.toml"', "plan", "canonical JSON")
    other = Authority.create(site.folder / "elsewhere" / "alpha")
    other.issue("server", "one")
    refused('"alpha/server-one"', '"elsewhere/alpha/server-one"', "node", "of no unit in the plan (alpha, beta)")
    refused('"alpha/server-one"', '"elsewhere/alpha/server-two"', "node", "copy all files")
    (site.folder / "alpha" / "crl.pem").write_text("x")
    refused("grace = 3", "grace = 4", "authorities.alpha.crl", "no CRL in PEM")


def test_a_store_of_other_data_or_another_plan_is_refused(site: Site) -> None:
    setup = ServerSetup.load(load_server(site.toml("alpha")))
    open_store(setup).close()
    with pytest.raises(InputError, match="another data set"):
        open_store(ServerSetup.load(load_server(edited(site, "alpha", "alpha 2026", "alpha 2027"))))
    (site.folder / "plan.json").rename(site.folder / "old.json")
    agree(site.folder, "--set", "rounds=7")
    with pytest.raises(InputError, match=r"is of another plan: .*rounds: 8 != 7"):
        open_store(ServerSetup.load(load_server(site.toml("alpha"))))
    with pytest.raises(InputError, match="first start of the server makes it"):
        open_store(ServerSetup.load(load_server(site.toml("beta"))), create=False)


def test_clients_whose_data_fail_a_check_take_part_and_add_zeros(site: Site) -> None:
    """To stay away would tell of the data: the server would leave out their share of the decay, which nothing clips."""
    X, y = np.ones((6, 3)), np.ones(6)
    spoiled = {"alpha-c1": (X * np.nan, y), "alpha-c2": (X[:2, :2], y[:2]), "beta-c0": (X[:0], y[:0])}
    for name, (features, target) in spoiled.items():
        np.savez(site.folder / f"{name}.npz", allow_pickle=False, X=features, y=target)
    seed = ("--test-seed", str(SEED))
    for name in UNITS:
        for k in range(CLIENTS):
            site.start(f"{name}-c{k}", *seed)
        site.start(name, *seed)
    for name in UNITS:
        told = site.finished(name)
        assert (told["published"], told["alarms"]) == (ROUNDS, [])
        assert told["clients"] == {"connected": CLIENTS, "of": CLIENTS, "waited": 0}
    for name in [f"{unit}-c{k}" for unit in UNITS for k in range(CLIENTS)]:
        assert ('"unusable data"' in site.log(name)) == (name in spoiled)  # its operator is told, and nobody else
        assert "nan" not in site.log(name).lower()
    for name in UNITS:
        assert "unusable" not in site.log(name)
        assert f"clients={CLIENTS}" in site.log(name)
    for name in spoiled:
        code, out, _ = run_here("check", site.toml(name))
        rows = name == "alpha-c1"  # each of them fails on its own
        assert code == (0 if rows else 1)
        assert ("6 of 6 rows count as zeros" if rows else "as it is, this client takes part and adds zeros") in out
    assert set(site.stop().values()) == {0}
    found = []
    for name in UNITS:
        with SqliteStore.open(site.folder / f"{name}.db") as store:
            found.append(store.load().w.tolist())
    assert found == reference_bits(without(site.experiment, [(0, 1), (0, 2), (1, 0)]), ROUNDS)
    assert found != reference_bits(site.experiment, ROUNDS)


def test_a_client_killed_after_it_counted_gives_no_data_in_that_round_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed when its count was on disk and nothing had left: it takes part again, and data went into two rounds."""
    (site.folder / "plan.json").unlink()
    changes = ("scheme.name=shared", "privacy.proof=none", "privacy.participation=cap:3", "privacy.rho=50")
    clocks = ("--adapt", LONG, "--tick", 0.05, "--exchange", LONG, "--drain", LONG)
    agree(site.folder, *clocks, *(x for change in changes for x in ("--set", change)))
    seed = ("--test-seed", str(SEED))
    site.start("alpha-c1", *seed, crash="client.replying:0")
    for name in [f"{unit}-c{k}" for unit in UNITS for k in range(CLIENTS) if (unit, k) != ("alpha", 1)]:
        site.start(name, *seed)
    for name in UNITS:
        site.start(name, *seed)
    assert site.ended("alpha-c1") == -signal.SIGKILL, site.log("alpha-c1")
    kept = json.loads((site.folder / "alpha-c1.record").read_text().splitlines()[-1])
    assert (kept["answered"], kept["given"], kept["given_last"]) == (0, 1, 1)
    site.start("alpha-c1", *seed)
    for name in UNITS:
        site.finished(name)
    assert set(site.stop().values()) == {0}
    for name in [f"{unit}-c{k}" for unit in UNITS for k in range(CLIENTS)]:
        kept = json.loads((site.folder / f"{name}.record").read_text().splitlines()[-1])
        assert (kept["answered"], kept["given"], kept["given_last"]) == (ROUNDS, 3, 3)
    found = []
    for name in UNITS:
        with SqliteStore.open(site.folder / f"{name}.db") as store:
            found.append(store.load().w.tolist())
    e = load(site.folder / "config.toml", changes).build()
    gives = Reference.gives
    monkeypatch.setattr(Reference, "gives", lambda r, i, p, k: gives(r, i, p, k) and (i, p, k) != (1, 0, 1))
    assert found == reference_bits(e, ROUNDS)
    monkeypatch.undo()
    assert found != reference_bits(e, ROUNDS)


def test_bad_data_are_told_to_the_operator_and_counted_nowhere(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []
    observer = Observer()
    observer.hooks.append(lambda event, fields: seen.append(event))
    for text in ("", "a,b\n", "a,b\n1,2\n", "\x00"):
        path = edited(site, "alpha-c1", '"alpha-c1.npz"', '"alpha-c1.csv"')
        (site.folder / "alpha-c1.csv").write_text(text)
        setup = ClientSetup.load(load_client(path))
        caplog.clear()
        process = ClientProcess(setup, observer=observer)
        process._record.close()
        (line,) = caplog.records
        assert line.levelname == "ERROR"
        assert line.getMessage().startswith("the data fail a check: this client takes part and adds zeros")
    names = "a," * setup.plan.algorithm.model.length + "y\n"
    (site.folder / "alpha-c1.csv").write_text(names + "1,2\n" * 9)
    caplog.clear()
    ClientProcess(setup, observer=observer)._record.close()
    (line,) = caplog.records
    assert line.getMessage().startswith("the data fail a check: rows that do count as zeros")
    assert not seen
    with pytest.raises(InputError, match="is no file"):  # no data is not bad data: the config is wrong
        ClientProcess(ClientSetup.load(load_client(edited(site, "alpha-c1", "alpha-c1.npz", "nowhere.npz"))))


def test_a_client_reads_what_it_paid_for(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """LOST SPENDING: other data were put there after it had paid."""
    setup, data = ClientSetup.load(load_client(site.toml("alpha-c1"))), site.folder / "alpha-c1.npz"
    monkeypatch.setattr(ClientSetup, "pay", lambda _: data.write_bytes(b"others"))
    with pytest.raises(InputError, match="was changed while it was read"):
        ClientProcess(setup)


def test_a_client_whose_parts_do_not_fit_is_refused(site: Site) -> None:
    def load(old: str, new: str) -> ClientSetup:
        return ClientSetup.load(load_client(edited(site, "alpha-c1", old, new)))

    setup = ClientSetup.load(load_client(site.toml("alpha-c1")))
    assert (setup.unit, setup.client) == (0, 1)
    for old, new, remedy in (
        ('"alpha/ca.crt"', '"beta/ca.crt"', "not the authority that the plan has"),
        ('"alpha/client-c1"', '"beta/client-c1"', "not the authority that the plan has"),
        ('organisation = "alpha"', 'organisation = "beta"', "this client is of alpha"),
        ('"plan.json"', '"config.toml"', "canonical JSON"),
    ):
        with pytest.raises(InputError, match=remedy):
            load(old, new)
    Authority.open(site.folder / "alpha").issue("client", "late")
    with pytest.raises(InputError, match="of no client in the plan"):
        load("client-c1", "client-late")
    with pytest.raises(InputError, match="not a client's certificate"):
        load("client-c1", "server-one")
    with pytest.raises(InputError, match="give data"):  # the plan's clip is by example
        load('data = "alpha-c1.npz"', 'train = "math:fsum"\ndataset = "none"').trainer(None)


def test_a_train_function_of_ones_own(site: Site) -> None:
    (site.folder / "plan.json").unlink()
    changes = ("algorithm.clip=update", "privacy.level=unit", "privacy.proof=none", "privacy.rho=500")
    agree(site.folder, "--model", "own", "--features", 5, *(x for change in changes for x in ("--set", change)))
    (site.folder / "mine.py").write_text("def train(weights, round, config):\n    return weights * 0 + config['x']\n")
    path = edited(site, "alpha-c1", 'data = "alpha-c1.npz"', 'train = "mine:train"\ndataset = "ones"')
    path.write_text(path.read_text() + "[train_config]\nx = 0.02\n")
    setup = ClientSetup.load(load_client(path))
    with TrainingProcess.of(setup.config) as process:  # it finds the function beside the TOML
        update = setup.trainer(None, process=process)(np.ones(5), 1, setup.config.train_config)
        assert process.timeout == setup.plan.deployed().clocks.adapt / 2  # zeros come in time
    assert np.allclose(update, 0.02)
    code, out, err = run_here("check", path)
    assert (code, "ok    data         mine:train fits the plan" in out) == (0, True), out + err
    with pytest.raises(InputError, match="no built-in model"):
        ClientSetup.load(load_client(site.toml("alpha-c1"))).trainer(None)


def test_questions_at_a_long_way_and_wrong_ones(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    path = folder / "store.db.sock"

    async def answer(question: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        yield {"stage": 1}
        yield {"done": question}

    def asked(sent: bytes | None = None) -> list[dict[str, Any]]:
        if sent is None:
            return list(control.ask(path, {"ask": "x"}, LIMIT))
        with control._address(path) as address, socket.socket(socket.AF_UNIX) as sock:
            sock.connect(address)
            sock.sendall(sent)
            return [json.loads(line) for line in sock.makefile("rb")]

    async def main() -> None:
        for _ in range(2):  # the second takes the place of a dead one
            serving = await control.serve(control.bind(path), answer)
            assert path.stat().st_mode & 0o777 == 0o600
            assert await asyncio.to_thread(asked) == [{"stage": 1}, {"done": {"ask": "x"}}]
            assert "failed" in (await asyncio.to_thread(asked, b"nonsense\n"))[0]
            serving.close()
            await serving.wait_closed()

    with pytest.raises(control.NotRunningError):
        list(control.ask(path, {}, LIMIT))
    asyncio.run(main())
    with pytest.raises(control.NotRunningError):
        list(control.ask(path, {}, LIMIT))
    path.unlink()
    path.touch()
    with pytest.raises(InputError, match="another kind"):
        control.bind(path)
