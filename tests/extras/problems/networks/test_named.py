"""The networks that a config can name, in both frameworks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import confide
from confide.problems.networks.named import built_in, from_entry_point

frameworks = pytest.mark.parametrize("framework", ["jax", "torch"])


@pytest.mark.parametrize(("name", "hidden"), [("mlp", None), ("mlp", [7, 5]), ("cnn", None), ("cnn", [3])])
def test_the_built_in_networks_are_the_same_in_both(name: str, hidden: list[int] | None) -> None:
    one, other = (built_in(name, features=64, classes=10, hidden=hidden, framework=f, seed=2) for f in ("jax", "torch"))
    assert (one.framework, other.framework) == ("jax", "torch")
    assert one.tensors == other.tensors
    assert one.description == other.description
    w = one.start()
    assert np.array_equal(w, other.start())
    assert not np.array_equal(w, built_in(name, features=64, classes=10, hidden=hidden, seed=3).start())
    rng = np.random.default_rng(0)
    X, d = rng.random((9, 64)), rng.integers(0, 10, 9).astype(float)
    np.testing.assert_allclose(one.loss(w, X, d), other.loss(w, X, d), rtol=1e-5)
    np.testing.assert_allclose(one.gradients(w, X, d), other.gradients(w, X, d), atol=2e-5)
    assert one.metrics(w, X, d) == pytest.approx(other.metrics(w, X, d), rel=1e-5)
    assert 1.0 < one.metrics(w, X, d)["loss"] < 20.0


def test_a_convolution_is_what_pytorch_calls_one() -> None:
    import torch
    from torch.nn.functional import conv2d, max_pool2d

    network = built_in("cnn", features=28 * 28, classes=10, framework="torch")
    p = {n: torch.tensor(a).float() for n, a in network.named(network.start()).items()}
    X = torch.rand(3, 28 * 28)
    h = X.reshape(-1, 1, 28, 28)
    for n, channels in enumerate((1, 16)):
        kernel = p[f"{n}.weight"].reshape(5, 5, channels, -1).permute(3, 2, 0, 1)
        h = max_pool2d(conv2d(h, kernel, p[f"{n}.bias"]), 2).relu()
    expected = h.permute(0, 2, 3, 1).reshape(3, -1) @ p["2.weight"] + p["2.bias"]
    assert network.description is not None
    torch.testing.assert_close(network.description.outputs(torch, p, X), expected, rtol=1e-4, atol=1e-4)


@frameworks
def test_a_file_in_place_of_the_seed(framework: str, tmp_path: Path) -> None:
    from confide.problems.networks.tensors import write

    other = built_in("mlp", features=4, classes=3, framework=framework, seed=8)
    write(tmp_path / "w.safetensors", other.initial)
    network = built_in("mlp", features=4, classes=3, framework=framework, weights=tmp_path / "w.safetensors")
    assert np.array_equal(network.start(), other.start())


OWN = """
import confide
from same_network import MAKERS
network = MAKERS[{framework!r}]({more})
def maker():
    return network
def broken():
    raise RuntimeError("seven")
number = 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(framework: str, more: str = "") -> None:
        (tmp_path / "my_module.py").write_text(OWN.format(framework=framework, more=more))
        monkeypatch.delitem(sys.modules, "my_module", raising=False)

    return write


@frameworks
def test_an_entry_point(framework: str, own: Any, tmp_path: Path) -> None:
    from confide.problems.networks.tensors import write

    own(framework, "trainable=['b.*']")
    network = from_entry_point("my_module:network")
    assert np.array_equal(from_entry_point("my_module:maker").start(), network.start())
    X, d = np.random.default_rng(0).random((5, 6)), np.zeros(5)
    before = network.loss(network.start(), X, d)
    write(tmp_path / "w.safetensors", {n: 2 * a for n, a in (network.initial | network.frozen).items()})
    other = from_entry_point("my_module:network", weights=tmp_path / "w.safetensors", rho=0.5)
    assert np.array_equal(other.start(), 2 * network.start())
    assert other.rho == 0.5
    assert np.abs(other.loss(other.start(), X, d) - before).min() > 1e-3
    assert np.array_equal(network.loss(network.start(), X, d), before)  # the user's own is as it was
    assert network.rho == 0.0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("my_module", "must be written package.module:name"),
        ("my_modul:network", "there is no module 'my_modul'; install it, or put it beside the config"),
        ("my_module:net", "module 'my_module' could be loaded but gives no 'net'"),
        ("my_module:number", "is a int; it must be what confide.models.jax or confide.models.torch returns"),
        ("my_module:broken", "raised RuntimeError: seven"),
    ],
)
def test_an_entry_point_that_is_none(own: Any, name: str, said: str) -> None:
    own("jax")
    with pytest.raises(confide.InputError, match=r"problem\.model") as error:
        from_entry_point(name)
    assert said in str(error.value)


def test_a_module_that_does_not_load(own: Any) -> None:
    own("jax", "trainable=['c']")
    with pytest.raises(confide.InputError, match=r"loading 'my_module' raised InputError: model\.trainable = 'c'"):
        from_entry_point("my_module:network")


def test_the_framework_is_chosen() -> None:
    assert built_in("mlp", features=4, classes=3).framework == "jax"
    with pytest.raises(confide.InputError, match=r"problem.framework = 'torhc': did you mean 'torch'\?"):
        built_in("mlp", features=4, classes=3, framework="torhc")
