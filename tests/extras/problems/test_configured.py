"""Networks by the keys of a config, on the problems that take them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import confide
from confide.plans.config import load, parse
from confide.problems.array_file import COUNTED
from confide.problems.networks.network import Network


@pytest.fixture
def images(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 255, (60, 8, 8), dtype=np.uint8), rng.integers(0, 3, 60)
    np.savez(tmp_path / "images.npz", X=X, y=y)
    return tmp_path / "images.npz"


@pytest.fixture(autouse=True)
def path_of_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "my_networks", raising=False)


def arrays(path: Path, **more: Any) -> confide.problems.Problem:
    dealt = {"units": 2, "clients": 3, "split": "iid", "scale": 255.0}
    return parse({"problem": {"name": "arrays", "path": str(path), **dealt, **more}}).build().problem


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_arrays_with_a_built_in_network(images: Path, framework: str) -> None:
    p = arrays(images, model="mlp", hidden=[5], classes=3, framework=framework, rho=0.1)
    assert isinstance(p.model, Network)
    assert (p.model.framework, p.model.rho, p.M) == (framework, 0.1, 65 * 5 + 6 * 3)
    assert COUNTED not in p.undeclared
    assert p.start.any()
    cnn = arrays(images, model="cnn", classes=3, framework=framework)
    assert cnn.M == 9 * 16 + 16 + 9 * 16 * 3 + 3
    counted = arrays(images, model="mlp", framework=framework)
    assert COUNTED in counted.undeclared
    again = dict(p.spec)
    again.pop("name")
    assert np.array_equal(confide.problems.arrays(**again).start, p.start)


def test_digits_learn_with_a_built_in_network() -> None:
    config = parse({"problem": {"name": "digits", "model": "mlp", "hidden": [16], "units": 2, "clients": 4}})
    without = config.problem.without_data()
    assert without is not None
    p = config.build().problem
    assert np.array_equal(without[0].start(), p.start)  # type: ignore[attr-defined]
    algorithm = confide.GFL(confide.scheme("none"), step=1.0, sampled=4, local_steps=5, batch=20)
    run = confide.simulate(p, confide.Graph.complete(2), algorithm, rounds=40, evaluate_every=40)
    assert run.final["test_error"] is not None
    assert run.final["test_error"] < 0.25


OWN = """
from same_network import MAKERS
network = MAKERS["jax"](rho=0.25, classes=3)
"""


def toml(folder: Path, data: Path, more: str = "") -> Path:
    text = f"""
[problem]
name = "arrays"
path = "{data}"
model = "my_networks:network"
units = 2
clients = 3
split = "iid"
{more}
"""
    (folder / "run.toml").write_text(text)
    (folder / "my_networks.py").write_text(OWN)
    return folder / "run.toml"


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "rows.npz", X=rng.normal(size=(60, 6)), y=rng.integers(0, 3, 60))
    return tmp_path / "rows.npz"


def test_a_network_beside_the_config(rows: Path, tmp_path: Path) -> None:
    p = load(toml(tmp_path, rows)).build().problem
    assert isinstance(p.model, Network)
    assert p.model.rho == 0.25  # its own
    assert COUNTED not in p.undeclared
    assert load(toml(tmp_path, rows, "rho = 0.5")).build().problem.model.rho == 0.5
    confide.models.save(p.model, 2 * p.start, tmp_path / "w.safetensors")
    other = load(toml(tmp_path, rows, f'weights = "{tmp_path}/w.safetensors"')).build().problem
    np.testing.assert_allclose(other.start, 2 * p.start, rtol=1e-6)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"model": "softmax", "hidden": [3]}, "problem.hidden = [3]: is for mlp and cnn; leave it out with 'softmax'"),
        ({"model": "softmax", "framework": "jax"}, "problem.framework = 'jax': is for mlp and cnn"),
        ({"model": "linear", "weights": "w"}, "problem.weights = 'w': is for networks; leave it out with 'linear'"),
        ({"model": "mpl"}, "problem.model = 'mpl': did you mean 'mlp'? known: linear, logistic, softmax, mlp, cnn"),
        ({"model": "nowhere:network"}, "there is no module 'nowhere'; install it, or put it beside the config"),
        ({"model": "mlp", "framework": "tf", "classes": 3}, "problem.framework = 'tf'"),
        ({"model": "mlp", "weights": "none.safetensors", "classes": 3}, "problem.weights"),
        ({"model": "mlp", "classes": 2}, "labels are the whole numbers 0 to 1"),
        ({"model": "mlp", "classes": 3, "rho": -1.0}, "problem.rho = -1.0"),
    ],
)
def test_what_a_config_may_not_say(images: Path, keys: dict[str, Any], said: str) -> None:
    with pytest.raises(confide.InputError) as error:
        arrays(images, **keys)
    assert said in str(error.value)


def test_classes_that_the_network_does_not_have(rows: Path, tmp_path: Path) -> None:
    with pytest.raises(confide.InputError, match=r"problem.classes = 4: the network says classes = 3; leave it out"):
        load(toml(tmp_path, rows, "classes = 4")).build()
