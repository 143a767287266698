"""A built-in network at a client: the module that `confide cluster` writes names the same one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from confide.cluster.module import BUILT_IN, code_of, put_code
from confide.problems.gaussian_config import RegressionConfig
from confide.problems.networks.named import built_in, from_entry_point


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
