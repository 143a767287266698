"""A network as a safetensors file, out and in, and as the frameworks' own users read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import confide
from confide.engines.predict import predict
from confide.problems import model_file
from confide.problems.networks import tensors
from same_network import MAKERS, SHAPES, F

frameworks = pytest.mark.parametrize("framework", sorted(MAKERS))


@frameworks
def test_out_and_in(framework: str, tmp_path: Path) -> None:
    """The frozen ones too, so that a file is whole."""
    make, path = MAKERS[framework], tmp_path / "w.safetensors"
    network = make(trainable=["b.*"])
    w = np.random.default_rng(0).normal(size=network.dimension(F)).astype(np.float32).astype(float)
    confide.models.save(network, w, path)
    found = tensors.read(path)
    assert {n: a.shape for n, a in found.items()} == SHAPES
    again = make(trainable=["b.*"], weights=path)
    assert np.array_equal(again.start(), w)
    assert tensors.digest(again.initial | again.frozen) == tensors.digest(found)
    whole = make(weights=path)
    X, d = np.random.default_rng(1).normal(size=(4, F)), np.zeros(4)
    np.testing.assert_allclose(whole.loss(whole.start(), X, d), network.loss(w, X, d), rtol=1e-6)


def test_pytorch_reads_it(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    from same_network import module

    network = MAKERS["torch"]()
    confide.models.save(network, network.start(), tmp_path / "w.safetensors")
    own = module()
    own.load_state_dict(load_file(tmp_path / "w.safetensors"))
    X = torch.rand(4, F)
    given = torch.func.functional_call(own, network.params(torch.from_numpy(network.start()).float()), (X,))
    torch.testing.assert_close(own(X), given)


def test_a_buffer_that_is_not_kept(tmp_path: Path) -> None:
    import torch

    own = torch.nn.Linear(F, 2)
    own.register_buffer("kept", torch.ones(2))
    own.register_buffer("passing", torch.ones(2), persistent=False)
    network = confide.models.torch(own, torch.nn.functional.cross_entropy, classes=2)
    confide.models.save(network, network.start(), tmp_path / "w.safetensors")
    assert tensors.read(tmp_path / "w.safetensors").keys() == {"weight", "bias", "kept"}


@frameworks
def test_what_was_released(framework: str, tmp_path: Path) -> None:
    network = MAKERS[framework]()
    w = np.random.default_rng(0).normal(size=network.dimension(F))
    model_file.write(tmp_path, w, {"format": 1, "attempt": 1})
    confide.models.save(network, tmp_path / "model.npz", tmp_path / "w.safetensors")
    np.testing.assert_allclose(MAKERS[framework](weights=tmp_path / "w.safetensors").start(), w, rtol=1e-6)
    with pytest.raises(confide.InputError, match=rf"weights = \(3,\): the network has {len(w)} numbers"):
        confide.models.save(network, np.zeros(3), tmp_path / "w.safetensors")


@frameworks
def test_a_run(framework: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    clients: list[Any] = [[(rng.normal(size=(5, F)), rng.integers(0, 3, 5))] for _ in range(2)]
    network = MAKERS[framework]()
    problem = confide.problems.Problem(confide.Federation.from_clients(clients), network, private=False)
    chosen = confide.GFL(sampled=1, scheme=confide.scheme("none"))
    run = confide.simulate(problem, confide.Graph.complete(2), chosen, rounds=2)
    confide.models.save(network, run, tmp_path / "w.safetensors")
    found = MAKERS[framework](weights=tmp_path / "w.safetensors").start()
    np.testing.assert_allclose(found, run.centroids[0], rtol=1e-6)
    run.save(tmp_path / "run")
    with pytest.raises(confide.InputError, match=r"confide\.models\.save\(network, run, 'learned\.safetensors'\)"):
        predict(tmp_path / "run", tmp_path / "new.csv")


def test_digests() -> None:
    """Of names, types, shapes and numbers; not of how they lie in memory."""
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    same = tensors.digest({"a": a})
    assert same == tensors.digest({"a": np.asfortranarray(a)}) == tensors.digest({"a": a.astype(">f4")})
    others = [{"b": a}, {"a": a.astype(float)}, {"a": a.T}, {"a": a + 1}, {"a": a, "b": a}, {}]
    assert len({same, *map(tensors.digest, others)}) == len(others) + 1


@frameworks
@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_half_precision(framework: str, half: str, tmp_path: Path) -> None:
    """A parameter keeps its type in the network and, where NumPy has it, in the file."""
    X, d = np.random.default_rng(0).normal(size=(8, F)), np.zeros(8)
    if framework == "jax":
        import jax.numpy as jnp

        def loss(p: Any, batch: Any) -> Any:
            return ((batch[0].astype(p["a"].dtype) @ (p["a"] + p["b"]) - batch[1]) ** 2).mean()

        def make(**more: Any) -> Any:
            given = {"a": jnp.full(F, 1.5, half), "b": jnp.ones(F, half)}
            return confide.models.jax(lambda key: given, loss, trainable=["a"], **more)
    else:
        import torch

        def make(**more: Any) -> Any:
            module = torch.nn.Linear(F, 1).to(getattr(torch, half))
            torch.nn.init.constant_(module.weight, 1.5)
            torch.nn.init.ones_(module.bias)
            rows = torch.nn.Sequential(Half(module.weight.dtype), module)
            return confide.models.torch(rows, lambda out, y: (out[:, 0] ** 2).mean(), trainable=["1.weight"], **more)

        class Half(torch.nn.Module):
            def __init__(self, kind: Any) -> None:
                super().__init__()
                self.kind = kind

            def forward(self, x: Any) -> Any:
                return x.to(self.kind)

    network = make()
    confide.problems.Problem(confide.Federation.from_clients([[(X, d)]]), network)
    assert np.array_equal(network.start(), np.full(F, 1.5))
    assert np.isfinite(network.gradients(network.start(), X, d)).all()
    confide.models.save(network, network.start() * 2, tmp_path / "w.safetensors")
    again = make(weights=tmp_path / "w.safetensors")
    assert np.array_equal(again.start(), np.full(F, 3.0))
    assert np.abs(again.loss(again.start(), X, d) - network.loss(network.start(), X, d)).max() > 0.1


def test_the_library_reads_what_is_written(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    given = {"b": np.arange(3.0), "a": np.ones((2, 2), np.float32), "c": np.array(3, np.int64)}
    tensors.write(tmp_path / "w.safetensors", given)
    found = load_file(tmp_path / "w.safetensors")
    assert found.keys() == given.keys()
    assert all(np.array_equal(found[n], a) and found[n].dtype == a.dtype for n, a in given.items())
