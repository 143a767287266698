"""A network that the clients' owners bring, as real processes: the bits of the simulation, and what is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import reference_bits
from confide.base.errors import InputError
from confide.cluster.layout import Layout, lay_out
from confide.cluster.processes import Cluster
from confide.deploy import agree, write_start
from confide.deploy.node.config import load_client, load_server
from confide.deploy.node.server_setup import ServerSetup, initial
from confide.engines.run import Run
from confide.plans import config
from confide.problems import model_file, start
from confide.problems.networks import tensors
from confide.testing import forged_units
from numpy_network import NumpyNetwork
from patience import SCALE, wait_finished
from ports import own_ports
from same_network import SHAPES

SEED, ROUNDS = 5, 3
LONG = 180.0 * SCALE
TABLE: dict[str, Any] = {
    "rounds": ROUNDS,
    "seed": SEED,
    "graph": {"topology": "path"},
    "problem": {"name": "rows", "model": "users_network:frozen"},
    "algorithm": {
        "step": 0.5, "sampled": 3, "clip": "example", "bound": 1.0, "arithmetic": "fixed", "aggregation": "secure",
        "local_steps": 2, "batch": 4,
    },
    "scheme": {"name": "shared", "noise": "gaussian", "sigma": 1.0},
    "privacy": {"unprotected": True, "release": "centroid:0.5"},
}  # fmt: skip
TESTS = Path(__file__).parent.parent
MODULE = f"import sys\nsys.path.append({str(TESTS)!r})\nfrom numpy_network import *\n"


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path with the user's module, and a package that announces the problem."""
    place = tmp_path / "here"
    announced = place / "rows-1.0.dist-info"
    announced.mkdir(parents=True)
    (announced / "METADATA").write_text("Metadata-Version: 2.1\nName: rows\nVersion: 1.0\n")
    (announced / "entry_points.txt").write_text("[confide.problems]\nrows = rows_problem:Rows\n")
    (place / "users_network.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def laid_out(tmp_path: Path) -> Callable[..., Layout]:
    def make(*changes: str, **options: Any) -> Layout:
        clocks = {"adapt": LONG, "tick": 0.05, "exchange": LONG}
        return lay_out(tmp_path / "net", config.parse(TABLE, changes), ports=own_ports, **clocks, **options)

    return make


def test_real_processes_give_the_bits_of_the_simulation(laid_out: Callable[..., Layout]) -> None:
    """The update of a client is clipped in the process that trains, and once more by the client itself."""
    layout = laid_out()
    with Cluster(layout, test_seed=SEED) as cluster:
        cluster.start_all()
        wait_finished(cluster)
        cluster.release("alpha")
        assert set(cluster.stop_all().values()) == {0}
        bits = [cluster.books(unit).w.tolist() for unit in layout.units]
    assert bits == reference_bits(layout.experiment), f"seed {SEED}"
    assert not any("training failed" in cluster.log(node) for node in layout.nodes)
    released, meta = model_file.read(layout.released("beta"))
    assert meta["tensors"] == [[name, list(SHAPES[name])] for name in sorted(SHAPES)]
    beside = tensors.read(layout.released("beta").with_suffix(".safetensors"))
    np.testing.assert_allclose(start.flat(beside), released, rtol=1e-6)
    assert {name: a.shape for name, a in beside.items()} == SHAPES


def test_what_a_node_lacks_is_said(laid_out: Callable[..., Layout], command: Callable[..., Any]) -> None:
    layout = laid_out()
    server, client = layout.toml("alpha"), layout.toml("alpha-c0")

    def said(path: Path, old: str, new: str) -> str:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        code, out, err = command("check", path)
        path.write_text(text)
        assert (code, "checks failed" in err) == (1, True)
        return " ".join(out.split())

    code, out, err = command("check", client)
    assert code == 0, out + err
    assert "data.npz fits the plan" in out
    weights = f'weights = "../../{start.FILE}"\n'
    assert "name the start.safetensors that was made with it" in said(server, weights, "")
    tensors.write(layout.place("alpha") / "other.safetensors", NumpyNetwork(seed=1).initial)
    assert "its digest is" in said(server, weights, 'weights = "other.safetensors"\n')
    tensors.write(layout.place("alpha") / "short.safetensors", {"a": np.zeros(3, np.float32)})
    assert "has 3 numbers, the plan's model" in said(server, weights, 'weights = "short.safetensors"\n')
    frozen, model = f'weights = "../../{start.FROZEN}"\n', 'model = "users_network:frozen"\n'
    assert "model = 'package.module:network'" in said(client, model + frozen, "")
    assert "there is no module 'absent'" in said(client, "users_network:frozen", "absent:frozen")
    assert "is a int; it must be what confide.models" in said(client, "users_network:frozen", "users_network:NOTHING")
    assert "what of the network is not trained differs" in said(
        client, model + frozen, 'model = "users_network:network"\n'
    )
    tensors.write(layout.place("alpha-c0") / "base.safetensors", {"base": np.zeros(2, np.float32)})
    assert "what of the network is not trained differs" in said(client, frozen, 'weights = "base.safetensors"\n')
    assert "the plan was made for a network with confide's own local steps" in said(
        client, model + frozen, 'model = "users_network:optimised"\n'
    )
    np.savez(layout.place("alpha-c0") / "wide.npz", X=np.zeros((4, 40)), y=np.zeros(4))
    wide = said(client, "data.npz", "wide.npz")
    assert "this client takes part and adds zeros" in wide
    np.savez(layout.place("alpha-c0") / "bad.npz", X=np.full((4, 6), np.nan), y=np.zeros(4))
    code, out, _ = command("check", _with(client, "data.npz", "bad.npz"))
    assert "4 of 4 rows count as zeros" in out


def _with(path: Path, old: str, new: str) -> Path:
    other = path.with_name("other.toml")
    other.write_text(path.read_text().replace(old, new))
    return other


def test_the_store_begins_there(laid_out: Callable[..., Layout]) -> None:
    layout = laid_out()
    setup = ServerSetup.load(load_server(layout.toml("beta")))
    network = NumpyNetwork()
    quantum = setup.terms.arithmetic.quantum
    assert np.array_equal(setup.start(), np.rint(network.start() / quantum).astype(np.int64))


@pytest.mark.parametrize("largest", [0.0, 0.5])
def test_a_plan_that_calls_its_start_smaller_than_it_is(laid_out: Callable[..., Layout], largest: float) -> None:
    """The range of the states and the price of roundings rest on the size that the plan says."""
    setup = ServerSetup.load(load_server(laid_out().toml("beta")))
    learning = setup.plan.algorithm
    assert learning.model.start is not None
    assert initial(setup.config, setup.plan) is not None
    small = replace(learning.model, start=replace(learning.model.start, largest=largest))
    with pytest.raises(InputError, match=f"the plan says that none is beyond {largest:g}"):
        initial(setup.config, replace(setup.plan, algorithm=replace(learning, model=small)))


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ('train = "users_network:train"\ndataset = "x"', "a train function has its own"),
        ('weights = "data.npz"', "name it, model ="),
        ('model = "users_network:network"\nweights = "absent"', "copy the file here"),
        ('model = "users_network:network"\n[train_config]\nx = 1', "is for a train function"),
    ],
)
def test_a_client_says_what_goes_together(laid_out: Callable[..., Layout], line: str, remedy: str) -> None:
    path = laid_out().toml("alpha-c0")
    kept = [x for x in path.read_text().splitlines() if not x.startswith(("model", "weights"))]
    if "train =" in line:
        kept = ['model = "users_network:network"', *(x for x in kept if not x.startswith("data"))]
    table = kept.index("[server]")
    path.write_text("\n".join([*kept[:table], line, *kept[table:]]))
    with pytest.raises(InputError, match=remedy):
        load_client(path)


def test_agree_writes_where_it_begins(tmp_path: Path, installed: Path) -> None:
    plan = agree(TABLE, forged_units(2, 3))
    begin = plan.algorithm.model.start
    assert begin is not None
    trained, rest = write_start(TABLE, tmp_path)
    assert (trained.name, rest.name) == (start.FILE, start.FROZEN)
    assert tensors.digest(tensors.read(trained)) == begin.digest
    assert tensors.digest(tensors.read(rest)) == begin.frozen
    assert write_start({"problem": {"units": 2}}, tmp_path) == []
    again = agree(TABLE | {"problem": TABLE["problem"] | {"weights": str(_whole(tmp_path))}}, forged_units(2, 3))
    assert again.algorithm.model.start == begin


def _whole(folder: Path) -> Path:
    network = NumpyNetwork(frozen=True)
    tensors.write(folder / "whole.safetensors", network.whole(network.start()))
    return folder / "whole.safetensors"


def test_a_run_json_loads_no_network(installed: Path, command: Callable[..., Any]) -> None:
    code, _, err = command("simulate", _toml(installed), "--set", "rounds=1", "--out", installed / "run")
    assert code == 0, err
    assert Run.load(installed / "run").config["problem"]["model"] == "users_network:frozen"  # type: ignore[index]
    shutil.copy(installed / "run" / "run.json", installed / "theirs.json")
    code, _, err = command("simulate", installed / "theirs.json", "--out", installed / "again")
    assert (code, "problem.model = 'users_network:frozen': names code" in err) == (2, True)


def _toml(folder: Path) -> Path:
    text = "".join(
        f"[{name}]\n"
        + "".join(f"{key} = {str(x).lower() if isinstance(x, bool) else repr(x)}\n" for key, x in t.items())
        for name, t in TABLE.items()
        if isinstance(t, dict)
    )
    (folder / "run.toml").write_text(f"rounds = {ROUNDS}\nrepeats = 1\n{text}")
    return folder / "run.toml"
