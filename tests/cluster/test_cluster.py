"""`confide cluster`: a whole network of real processes on this machine, its bits, and what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from builders import reference_bits
from confide.base.errors import InputError, RunError
from confide.cluster import layout
from confide.cluster import view as cluster_view
from confide.cluster.layout import Layout, free_ports, lay_out
from confide.cluster.processes import Cluster
from confide.cluster.try_out import TRY_OUT, deployable
from confide.deploy.keys.node_keys import NodeKeys
from confide.deploy.node.config import load_client, load_server
from confide.deploy.node.server_setup import ServerSetup
from confide.deploy.store import reconcile
from confide.plans.config import Config, load, parse
from confide.problems import model_file as released_model
from confide.testing.network import Network
from confide.testing.rehearsal import training_units
from invariants import BrokenError, balanced
from patience import LIMIT, SCALE, until
from ports import own_ports

SEED = 7
LONG = 180.0 * SCALE  # seconds: a deadline that a busy machine keeps too
CLOCKS = {"adapt": LONG, "tick": 0.05, "exchange": LONG, "drain": LONG}
OPTIONS = [x for name, seconds in CLOCKS.items() for x in (f"--{name}", str(seconds))]
OWN = ["--set", f"seed={SEED}", "--test-seed", str(SEED), *OPTIONS]


def command(*arguments: object) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "confide", "cluster", *map(str, arguments)]
    environment = os.environ | {"https_proxy": "http://127.0.0.1:1"}  # of which nothing on this machine is asked
    return subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, env=environment
    )


def done(process: subprocess.Popen[str]) -> tuple[str, str]:
    try:
        return process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.terminate()
        out, err = process.communicate(timeout=LIMIT)
        raise AssertionError(f"not within {LIMIT:g} s:\n{out}\n{err}") from None


def living(folder: Path) -> list[str]:
    """Processes that have a file of this folder on their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # it has just ended
            continue
        if f"{folder}/nodes/" in line:
            found.append(line)
    return found


def models(found: Layout) -> list[list[int]]:
    with Cluster(found) as cluster:
        return [cluster.books(unit).w.tolist() for unit in found.units]


def in_memory(found: Layout) -> list[list[int]]:
    units = training_units(found.price, found.experiment.problem, SEED)
    network = Network(units, seed=1)
    network.run(until=10_000.0, done=network.finished)
    return [u.server.books.w.tolist() for u in units if u.server is not None]


def small() -> Config:
    return parse(TRY_OUT, [f"seed={SEED}", "problem.units=2", "problem.clients=3", "problem.samples=10"])


def test_the_command_gives_the_bits_of_the_box_and_of_the_reference(tmp_path: Path) -> None:
    folder = tmp_path / "net"
    run = command("--units", 3, "--clients", 3, "--rounds", 3, "--release", "--out", folder, "--json", *OWN)
    out, err = done(run)
    assert run.returncode == 0, err
    told: dict[str, Any] = json.loads(out)
    units = ("alpha", "beta", "gamma")
    assert (told["units"], told["clients"], told["rounds"]) == (3, 9, 3), f"seed {SEED}"
    assert told["decided"] == told["published"] == dict.fromkeys(units, 3)
    assert [told[name] for name in ("conserved", "balanced", "ledgers", "open_flows", "failed")] == [
        True, True, True, 0, "",
    ]  # fmt: skip
    assert 0 < told["epsilon"] < told["epsilon_with_releases"]
    assert (told["releases"], told["threat"], told["level"], told["adjacency"]) == (1, "links", "client", "replace")
    spent = next(a for a in told["statement"]["accounts"] if a["threat"] == "links")
    assert spent["epsilon"] == pytest.approx(told["epsilon_with_releases"])
    assert told["disagreement"] > 0
    assert told["folder"] == str(folder)
    assert "set privacy.release = 'centroid:0.3'" in err
    assert "round 3 of 3" in err
    assert "nothing of this run is private" in err
    assert not living(folder)

    found = Layout.load(folder)
    assert found.units == units
    bits = models(found)
    assert bits == in_memory(found), f"seed {SEED}"
    assert bits == reference_bits(found.experiment), f"seed {SEED}"

    weights, meta = released_model.read(told["released"]["file"])
    mean = np.mean(bits, axis=0) * found.price.arithmetic.quantum
    assert meta["servers"] == 3
    assert np.abs(weights - mean).max() < 6 * 0.3
    test = found.experiment.problem.test
    assert test is not None
    assert told["released"]["test"] == found.experiment.problem.model.metrics(weights, *test)
    assert (folder / "nodes" / "gamma" / "ledger.jsonl").read_text().count('"kind":"message"') == 3

    with Cluster(found) as cluster:  # and what does not fit is found
        books = [cluster.books(unit) for unit in units]
        fits = cluster_view._ledgers
        assert fits(cluster, books) is True
        books[1].published -= 1
        assert "beta: the ledger's prices" in str(fits(cluster, books))
        books[0].decided += 1
        assert "alpha: 4 rounds are decided" in str(fits(cluster, books))

    # The config that was used is a config: the run can be simulated, or deployed again.
    assert load(folder / "cluster.json") == found.config


def test_ctrl_c_leaves_no_process_and_the_run_goes_on(tmp_path: Path) -> None:
    """Interrupted in the middle, then to the end: the bits of a run that nobody interrupted."""
    folder = tmp_path / "net"
    config = parse(TRY_OUT, [f"seed={SEED}", "algorithm.aggregation=plain"])
    found = lay_out(folder, config, 2, 1, rounds=4, ports=own_ports, grace=0.5, **CLOCKS)
    command_line = ("--out", folder, "--test-seed", SEED)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # alpha's client reaches nobody: round 1 stays open there
        found.write({("alpha-c0", "alpha"): f"127.0.0.1:{silent.getsockname()[1]}"})
        run = command(*command_line)
        assert run.stderr is not None
        lines = []
        for line in run.stderr:
            lines.append(line)
            if line.startswith("round 0 to 1 of 4"):
                break
        assert len(living(folder)) == 4, lines
        os.killpg(run.pid, signal.SIGINT)  # as a terminal does it
        out, err = done(run)
    assert run.returncode == 130, err
    assert not living(folder)
    assert out == ""
    assert f"everything is in {folder}; to go on: confide cluster --out {folder}" in err, err
    with Cluster(found) as cluster:
        assert [cluster.books(unit).decided for unit in found.units] == [0, 1]
        for node in found.nodes:
            assert "Traceback" not in cluster.log(node), cluster.log(node)

    found.write()
    run = command(*command_line)
    out, err = done(run)
    assert run.returncode == 0, err
    assert "conserved to the last bit" in out
    assert "all settled at both ends" in out
    assert f"files          {folder}" in out
    assert models(found) == reference_bits(found.experiment), f"seed {SEED}"


def test_nodes_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    """However that ended."""
    lay_out(tmp_path / "net", small(), **CLOCKS)
    line = (
        "import sys, time\nfrom confide.cluster.layout import Layout\n"
        "from confide.cluster.processes import Cluster\n"
        "cluster = Cluster(Layout.load(sys.argv[1])); cluster.start('alpha-c0'); print(1, flush=True); time.sleep(3600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", line, tmp_path / "net"], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    try:
        parent.stdout.readline()
        until(lambda: len(living(tmp_path / "net")) == 1, "its start")
    finally:
        parent.kill()
        parent.communicate()
    until(lambda: not living(tmp_path / "net"), "its end")


# Without processes


@pytest.fixture(scope="module")
def laid(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    return lay_out(tmp_path_factory.mktemp("laid") / "net", small(), rounds=3, release=True, **CLOCKS, reload=0.5)


@pytest.fixture
def idle(laid: Layout) -> Iterator[Cluster]:
    with Cluster(laid) as cluster:
        yield cluster


def test_what_is_laid_out_is_what_the_nodes_read(laid: Layout) -> None:
    for p, unit in enumerate(laid.units):
        config = load_server(laid.toml(unit))
        setup = ServerSetup.load(config)
        assert (setup.me, setup.plan, config.reload) == (p, laid.plan, 0.5)
        assert config.listen == laid.address(unit)
        assert {m: peer.addresses for m, peer in setup.peers.items()} == {1 - p: (laid.address(laid.units[1 - p]),)}
        for k, node in enumerate(laid.clients(unit)):
            given = load_client(laid.toml(node))
            X, y = laid.experiment.problem.federation.client(p, k)
            with np.load(given.path(str(given.data))) as data:
                assert np.array_equal(data["X"], X)
                assert np.array_equal(data["y"], y)
            known = NodeKeys.load(given.path(given.node)).identity.public.hex()
            assert laid.plan.units[p].clients[k].identity == known
    assert stat.S_IMODE(laid.folder.stat().st_mode) == 0o700
    assert laid.nodes == ("alpha", "beta", "alpha-c0", "alpha-c1", "alpha-c2", "beta-c0", "beta-c1", "beta-c2")
    assert Layout.load(laid.folder) == laid


def test_a_link_through_a_proxy(laid: Layout) -> None:
    try:
        laid.write({("alpha", "beta"): "127.0.0.1:1", ("beta-c1", "beta"): "127.0.0.1:2"})
        assert load_server(laid.toml("alpha")).servers["beta"].addresses == ["127.0.0.1:1"]
        assert load_server(laid.toml("beta")).servers["alpha"].addresses == [laid.address("alpha")]
        assert load_client(laid.toml("beta-c1")).server.addresses == ["127.0.0.1:2"]
        assert load_client(laid.toml("beta-c0")).server.addresses == [laid.address("beta")]
        with pytest.raises(InputError, match="via"):
            laid.write({("alpha", "nobody"): "127.0.0.1:1"})
    finally:
        laid.write()


def test_ports_are_not_those_from_which_anybody_dials() -> None:
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ports = free_ports(50)
    assert len(set(ports)) == 50
    assert high - low > 50000 or not any(low <= port <= high for port in ports)


def test_ports_that_were_taken_meanwhile_are_replaced(tmp_path: Path) -> None:
    found = lay_out(tmp_path / "net", small(), **CLOCKS, reload=9.0)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", found.ports["beta"]))
        with Cluster(Layout.load(tmp_path / "net")) as cluster:
            again = cluster.layout.ports
    assert again["beta"] != found.ports["beta"]
    for loaded in (Layout.load(tmp_path / "net"), cluster.layout):
        assert loaded.ports == again
        assert load_server(loaded.toml("beta")).listen == f"127.0.0.1:{again['beta']}"
        assert load_server(loaded.toml("beta")).reload == 9.0


def test_what_is_refused_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="tick"):
        lay_out(tmp_path / "net", small(), adapt=1.0, tick=2.0)
    assert list((tmp_path / "net").iterdir()) == []
    lay_out(tmp_path / "net", small(), **CLOCKS)
    with pytest.raises(InputError, match="not empty"):
        lay_out(tmp_path / "net", small(), **CLOCKS)
    with pytest.raises(InputError, match="processes need about"):
        lay_out(tmp_path / "large", small(), units=10, clients=10**5)
    with pytest.raises(InputError, match=r"holds no cluster\.json"):
        Layout.load(tmp_path)
    (tmp_path / "net" / "cluster.json").write_text("{}")
    with pytest.raises(InputError, match="damaged"):
        Layout.load(tmp_path / "net")


def test_names_go_on_after_omega() -> None:
    names = layout.unit_names(26)
    assert (names[0], names[23:]) == ("alpha", ("omega", "unit-24", "unit-25"))
    assert len(set(names)) == 26


def test_the_simulations_default_is_made_deployable_and_said() -> None:
    used, notes = deployable(Config(), units=3, clients=4, rounds=2)  # type: ignore[call-arg]
    assert (used.problem.units, used.problem.clients, used.rounds, used.repeats) == (3, 4, 2, 1)
    a = used.algorithm
    assert (a.clip, a.bound, a.arithmetic, a.aggregation, a.sampled) == ("update", 1.0, "fixed", "secure", 4)
    assert [note.partition(" = ")[0] for note in notes] == [
        "algorithm.clip", "algorithm.bound", "algorithm.arithmetic", "algorithm.aggregation", "algorithm.sampled",
    ]  # fmt: skip
    assert deployable(used) == (used, ())


def test_what_was_deployable_keeps_its_settings() -> None:
    plain = parse(TRY_OUT, ["algorithm.aggregation=plain", "algorithm.dropout=0.1", "graph.link_failure=0.2"])
    used, notes = deployable(plain, release=True)
    assert used.algorithm.aggregation == "plain"
    assert (used.algorithm.dropout, used.graph.link_failure) == (0.0, 0.0)
    assert used.privacy.release == "centroid:0.3"
    assert len(notes) == 3
    kept, notes = deployable(parse(TRY_OUT, ["privacy.release=centroid:0.5"]), release=True)
    assert (kept.privacy.release, notes) == ("centroid:0.5", ())
    table = {"name": "table", "path": "x.csv", "label": "y", "unit": "clinic"}
    with pytest.raises(InputError, match=r"problem\.unit"):
        deployable(parse({"problem": table}), units=3)


def test_one_network_a_folder(idle: Cluster) -> None:
    with pytest.raises(InputError, match="runs there already"):
        Cluster(idle.layout)


def test_a_crash_needs_a_test_seed(idle: Cluster) -> None:
    with pytest.raises(InputError, match="test seed"):
        idle.start("alpha", crash="publish.committed:0")
    with pytest.raises(InputError, match="is none of this network"):
        idle.start("omega")
    assert idle.processes == {}


def test_a_process_that_ends_by_itself_is_told_with_its_last_line(idle: Cluster) -> None:
    toml = idle.layout.toml("beta-c2")
    before = toml.read_text()
    toml.write_text(before.replace("data.npz", "nothing.npz"))
    try:
        idle.start("beta-c2")
        with pytest.raises(RunError, match=r"beta-c2 ended with 2: error: data = .*nothing\.npz"):
            idle.wait("it never happens", lambda: False, LIMIT)
        del idle.processes["beta-c2"]
        with pytest.raises(RunError, match="not within 0 s: it"):
            idle.wait("it", lambda: False, 0.0)
    finally:
        toml.write_text(before)


def test_the_table_shows_who_is_down(idle: Cluster) -> None:
    peer = {"unit": "beta", "up": False, "dialed": True, "open": [3, 4]}
    status = {
        "phase": "wait", "round": 3, "rounds": 9, "epsilon": 1.25, "peers": [peer],
        "clients": {"connected": 2, "of": 3},
        "threat": "links", "level": "client", "adjacency": "replace", "delta": 1e-5,
    }  # fmt: skip
    console = Console(width=120, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(cluster_view.table(idle, {"alpha": status, "beta": None}))
    console.file.close()
    text = console.export_text()
    row = next(line for line in text.splitlines() if "alpha" in line and "wait" in line)
    assert [cell.strip() for cell in row.split("│")[1:8]] == [
        "alpha", "wait", "3/9", "1.25", "0 up, beta down", "2/3", "2",
    ]  # fmt: skip
    assert "gone" in text
    assert cluster_view.line({"alpha": status, "beta": status | {"round": 5, "epsilon": None}}) == (
        "round 3 to 5 of 9, epsilon no bound against links, client level, replace, delta 1e-05"
    )
    assert cluster_view.line({"alpha": status, "beta": None}) == "1 of 2 servers up"


def test_what_nodes_have_said_last_is_repeated_where_nothing_moves(idle: Cluster) -> None:
    now = 0.0
    troubles = cluster_view.Troubles(idle, lambda: now)
    said = "2026-11-19T15:06:55.975Z {:7} {} {}\n"
    for node, level, what in (
        ("alpha", "WARNING", 'no stream to=beta why="127.0.0.1:1: nobody listens there"'),
        ("beta", "INFO", "connected to=alpha"),
        ("alpha-c0", "ERROR", "failed why=so"),
    ):
        (idle.logs / f"{node}.log").write_text(said.format(level, node, what))
    assert troubles.look("0 of 2 servers up") == []
    now = 9.0
    assert troubles.look("1 of 2 servers up") == []
    now = 18.0
    assert troubles.look("1 of 2 servers up") == []
    now = 19.0
    first, second = troubles.look("1 of 2 servers up")
    assert first == 'alpha: no stream to=beta why="127.0.0.1:1: nobody listens there"'
    assert second == "alpha-c0: failed why=so"
    assert troubles.look("1 of 2 servers up") == []
    for node in ("alpha", "beta", "alpha-c0"):
        (idle.logs / f"{node}.log").unlink()


def test_a_sum_that_is_not_conserved_is_found(laid: Layout) -> None:
    units = training_units(laid.price, laid.experiment.problem, SEED)
    network = Network(units, seed=1)
    network.run(until=10_000.0, done=network.finished)
    terms, books = [u.terms for u in units], [u.store.load() for u in units]
    weights = [of.rules.weights for of in terms]
    assert reconcile.balanced(weights, books) is True
    m = books[0].neighbours[0]
    books[0].balances[m] = books[0].balances[m]._replace(total=books[0].balances[m].total + 1)
    assert reconcile.balanced(weights, books) == f"the balances of servers 0 and {m} do not cancel"
    assert reconcile.conserved(weights, books) == (
        f"the balances of servers 0 and {m} do not differ by the flows that are under way"
    )
    with pytest.raises(BrokenError):
        balanced(terms, books)
