"""A train function of one's own in a simulation: the rounds and the price of its deployment, without deploying."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import confide
from confide.base.errors import DataError, InputError
from confide.deploy import agree
from confide.engines.own import TrainingWarning
from confide.plans import config
from confide.plans.build import of_run
from confide.privacy.price import price
from confide.testing import forged_units, rehearse
from patience import SCALE, until

MODULE = """
import os, time
import numpy as np

def train(weights, round, config):
    return (config["goal"] + int(config["who"]["names"][0].replace("-", "")) - weights) * 0.3 / round

def fails(weights, round, config):
    match config["who"]["names"][0] if round == 1 else "well":
        case "0-0":
            os.abort()
        case "0-1":
            time.sleep(1000.0)
        case "1-0":
            return weights * np.nan
        case "1-1":
            return weights[:1]
        case "well":
            return np.ones(3)
    return np.array([1e300, 1.0, 1.0])

def hangs(weights, round, config):
    print(os.getpid(), flush=True)
    time.sleep(1000.0)
"""
TABLE: dict[str, Any] = {
    "rounds": 4,
    "graph": {"topology": "path"},
    "problem": {
        "name": "own", "units": 2, "clients": 3, "length": 3, "train": "owners_rounds:train",
        "train_config": {"goal": 2.0, "who": {"names": ["{unit}-{client}"]}},
    },
    "algorithm": {
        "step": 1.0, "sampled": 3, "clip": "update", "bound": 1.0, "arithmetic": "fixed", "aggregation": "secure",
        "local_steps": 1, "batch": 1,
    },
    "scheme": {"name": "shared", "noise": "gaussian", "sigma": 1.0},
    "privacy": {"unprotected": True},
}  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "owners_rounds.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def experiment(*changes: str, **problem: Any) -> config.Experiment:
    return config.parse(TABLE | {"problem": TABLE["problem"] | problem}, changes).build()


def test_it_is_what_a_deployment_computes_and_costs() -> None:
    """Bit for bit where nothing is drawn from a secret: here the run is not accounted, and its noise is the seed's."""
    e = experiment()
    plan = agree(TABLE, forged_units(2, 3))
    told = lambda p, k: {"goal": 2.0, "who": {"names": [f"{p}-{k}"]}}  # noqa: E731
    sys.path.append(str(Path.cwd()))
    try:
        deployed = rehearse(plan, train="owners_rounds:train", train_config=told)
    finally:
        sys.path.remove(str(Path.cwd()))
        sys.modules.pop("owners_rounds", None)
    run = confide.simulate(**(e._asdict() | {"privacy": None}))
    assert np.array_equal(run.models[0], deployed.models)
    assert any("24 trainings" in note for note in run.notes)

    simulated = of_run(e.problem, e.graph, e.algorithm, e.rounds, e.seed, e.privacy)  # type: ignore[arg-type]
    same = replace(plan, units=simulated.units, deployment=None)
    assert simulated.diff(same) == []
    assert simulated.algorithm.model.kind == "own"
    assert asdict(price(simulated).statement()) == asdict(price(plan).statement())


def test_a_training_that_fails_counts_as_zeros_and_is_told() -> None:
    e = experiment(train="owners_rounds:fails", train_timeout=3.0 * SCALE)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run = confide.simulate(**(e._asdict() | {"rounds": 2, "privacy": None}))
    told = {str(w.message) for w in seen if issubclass(w.category, TrainingWarning)}
    assert told == {
        "the process of owners_rounds:fails ended by SIGABRT",
        f"owners_rounds:fails did not end in {3.0 * SCALE:g} s and was killed",
        "owners_rounds:fails returned NaN or infinity: the training diverged",
        "owners_rounds:fails returned shape (1,); the weights have (3,)",
        "owners_rounds:fails: numbers of an update end as zero: one is beyond 1e100, and the bound leaves nothing of "
        "those beside it",
    }
    assert sum("counted as zeros" in note for note in run.notes) == 3
    assert "training failed 2 times more, for other reasons" in run.notes
    assert (run.metrics["participants"] == 6).all()
    assert np.linalg.norm(run.models) > 0.1


def test_a_capped_client_is_not_asked() -> None:
    e = experiment("privacy.participation=cap:1", "scheme.sigma=5.0")
    run = confide.simulate(**e._asdict())
    assert run.metrics["participants"].tolist() == [[6, 0, 0, 0]]
    assert any("6 trainings" in note for note in run.notes)


@pytest.mark.parametrize(
    ("train", "kind", "said"),
    [
        ("owners_rounds:absent", InputError, "gives no 'absent'"),
        ("absent:train", InputError, "there is no module 'absent'"),
        ("broken:train", DataError, "raised ZeroDivisionError"),
    ],
)
def test_what_cannot_be_loaded_is_said_before_the_first_round(train: str, kind: type, said: str) -> None:
    with pytest.raises(kind, match=said) as e:
        confide.simulate(**experiment(train=train)._asdict())
    assert e.value.field == "train"  # type: ignore[attr-defined]


@pytest.mark.parametrize("clip", ["none", "example"])
def test_it_is_clipped_as_a_whole(clip: str) -> None:
    e = experiment("algorithm.arithmetic=float", "algorithm.aggregation=plain")
    algorithm = replace(e.algorithm, clip=None if clip == "none" else confide.Clip(clip, 1.0))
    with pytest.raises(InputError, match="clipped as a whole"):
        confide.simulate(**(e._asdict() | {"algorithm": algorithm, "privacy": None}))


def test_only_the_users_own_config_names_code(folder: Path) -> None:
    """A run.json may come from anybody."""
    (folder / "run.json").write_text('{"config": {"problem": {"name": "own", "train": "evil:code"}}}')
    with pytest.raises(InputError, match="names code") as e:
        config.load(folder / "run.json")
    assert e.value.field == "problem.train"
    changes = ["problem.train=owners_rounds:train", "problem.units=1", "problem.clients=1", "problem.length=1"]
    assert config.load(folder / "run.json", changes).problem.train == "owners_rounds:train"  # type: ignore[attr-defined]


def test_ctrl_c_ends_the_pool(folder: Path) -> None:
    text = config.parse(TABLE | {"problem": TABLE["problem"] | {"train": "owners_rounds:hangs", "train_log": "said"}})
    code = (
        "import json, confide; from confide.plans import config; "
        "confide.simulate(**config.parse(json.load(open('config'))).build()._asdict())"
    )
    (folder / "config").write_text(text.model_dump_json(exclude_none=True))
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) as process:

        def begun() -> bool:
            assert process.poll() is None, process.stderr and process.stderr.read()
            return (folder / "said").exists() and (folder / "said").read_text().endswith("\n")

        until(begun, "a training")
        pids = [int(pid) for pid in (folder / "said").read_text().split()]
        process.send_signal(signal.SIGINT)
        assert b"KeyboardInterrupt" in process.communicate()[1]
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), "the end of the pool")
