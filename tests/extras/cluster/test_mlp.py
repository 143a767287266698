"""The same network in JAX and in PyTorch, from one definition each: simulated, and deployed as real processes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import confide
from confide.cluster.layout import lay_out
from confide.cluster.processes import Cluster
from confide.plans import config
from confide.privacy.price import price_run
from confide.problems import model_file
from patience import SCALE, wait_finished
from ports import own_ports

EXAMPLES = Path(__file__).parents[3] / "examples"
LONG = 180.0 * SCALE  # seconds: nobody is ever so late
SMALL = ("problem.clients=2", "algorithm.sampled=2", "algorithm.aggregation=plain", "rounds=6", "scheme.sigma=0.001")
CLOSE = 0.15  # of two accuracies on 359 digits, from other initial weights and other batches


@pytest.fixture(autouse=True)
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder."""
    for path in EXAMPLES.glob("mlp*"):
        shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_one_definition_from_simulation_to_deployment(examples: Path) -> None:
    accuracies: dict[str, list[float]] = {}
    statements: list[Any] = []
    for framework in ("jax", "torch"):
        changes = [*SMALL, f"problem.model=mlp_{framework}:network", "privacy.release=centroid:0.001"]
        parsed = config.load(examples / "mlp.toml", changes)
        e = parsed.build()
        assert e.problem.test is not None
        assert e.privacy is not None
        run = confide.simulate(**e._asdict())
        clocks = {"adapt": LONG, "exchange": LONG, "tick": 0.05}
        layout = lay_out(examples / framework, parsed, ports=own_ports, **clocks)
        with Cluster(layout) as cluster:
            cluster.start_all()
            wait_finished(cluster)
            cluster.release("alpha")
            assert set(cluster.stop_all().values()) == {0}
        assert not any("training failed" in cluster.log(node) for node in layout.nodes)
        released, meta = model_file.read(layout.released("alpha"))
        assert [name for name, _ in meta["tensors"]] == [tensor.name for tensor in e.problem.model.tensors]  # type: ignore[attr-defined]
        assert run.released is not None
        models = (run.released[0], released)
        accuracies[framework] = [e.problem.model.metrics(w, *e.problem.test)["accuracy"] for w in models]
        begin = e.problem.model.metrics(e.problem.start, *e.problem.test)["accuracy"]
        assert min(accuracies[framework]) > begin + 0.1
        simulated = price_run(e.problem, e.graph, e.algorithm, e.rounds, e.seed, e.privacy)
        for found in (simulated, layout.price):
            said = found.statement()
            statements.append(([(a.threat, a.epsilon, a.rho) for a in said.accounts], said.refused, said.unprotected))
    assert all(other == statements[0] for other in statements)
    assert np.ptp(list(accuracies.values())) < CLOSE, accuracies
