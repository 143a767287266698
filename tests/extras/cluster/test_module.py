"""A built-in network at a client: the module that `confide cluster` writes names the same one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from confide.cluster.layout import Layout, lay_out
from confide.cluster.module import BUILT_IN, code_of, put_code
from confide.plans import config
from confide.problems.gaussian_config import RegressionConfig
from confide.problems.networks.named import built_in, from_entry_point
from ports import own_ports

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize(("name", "hidden"), [("mlp", [5, 4]), ("cnn", [3]), ("cnn", None)])
@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_a_built_in_network_is_written_down(
    name: str, hidden: list[int] | None, framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = RegressionConfig()
    assert code_of(problem, tmp_path) is None
    network = built_in(name, features=64, classes=10, hidden=hidden, framework=framework, seed=3)
    put_code(problem, network, tmp_path)
    assert code_of(problem, tmp_path) == f"{BUILT_IN}:network"
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, BUILT_IN, raising=False)
    found = from_entry_point(f"{BUILT_IN}:network")
    assert (found.framework, found.description, found.tensors) == (framework, network.description, network.tensors)


def test_a_cluster_that_goes_on_finds_its_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder has the user's module: where the config was, nobody says again."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "mlp_going_on.py").write_text((EXAMPLES / "mlp_torch.py").read_text())
    changes = ["problem.model=mlp_going_on:network", "problem.clients=3", "algorithm.sampled=3"]
    (mine / "run.toml").write_text((EXAMPLES / "mlp.toml").read_text())
    folder = lay_out(tmp_path / "cluster", config.load(mine / "run.toml", changes), ports=own_ports).folder
    sys.path.remove(str(mine))
    monkeypatch.delitem(sys.modules, "mlp_going_on")
    assert Layout.load(folder).experiment.problem.model.framework == "torch"  # type: ignore[attr-defined]
