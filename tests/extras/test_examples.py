"""The examples that need a framework."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

import confide
from confide.problems.networks import tensors

FOLDER = Path(__file__).parents[2] / "examples"


def test_lora_moves_exactly_the_thin_matrices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = runpy.run_path(str(FOLDER / "lora.py"), run_name="__main__")
    network, run, problem = made["network"], made["run"], made["problem"]
    assert "1024 of 9984 numbers are trained" in capsys.readouterr().out
    names = {f"lora.{projection}.{which}" for projection in made["PROJECTIONS"] for which in "ab"}
    assert {t.name for t in network.tensors} == names
    assert problem.M == run.models.shape[2] == sum(t.size for t in network.tensors) == 1024  # all that travels
    confide.models.save(network, run, tmp_path / "after.safetensors")
    after = tensors.read(tmp_path / "after.safetensors")
    before = network.initial | network.frozen
    assert after.keys() == before.keys()
    for name, a in before.items():
        assert np.array_equal(after[name], a) == (name not in names), name
    for name, a in made["base"].items():
        assert np.array_equal(after[f"base.{name}"], a)


def test_what_lora_computes_has_the_frozen_part_in_it(tmp_path: Path) -> None:
    """Two bases, the same thin matrices: another loss, and gradients for the thin matrices alone."""
    import jax.numpy as jnp

    def network(scale: float) -> confide.problems.models.Model:
        def init(key: object) -> dict[str, object]:
            return {"base": {"w": scale * jnp.ones((3, 2))}, "lora": {"a": jnp.ones((3, 1)), "b": jnp.ones((1, 2))}}

        def loss(p: dict[str, dict[str, object]], batch: tuple[object, object]) -> object:
            z = batch[0] @ (p["base"]["w"] + p["lora"]["a"] @ p["lora"]["b"])
            return ((z.sum(axis=1) - batch[1]) ** 2).mean()

        return confide.models.jax(init, loss, trainable=["lora.*"])

    X, d = np.ones((4, 3)), np.zeros(4)
    one, other = network(1.0), network(2.0)
    w = one.start()
    assert one.gradients(w, X, d).shape == (4, 5)
    np.testing.assert_allclose(one.loss(w, X, d), 144.0)
    np.testing.assert_allclose(other.loss(w, X, d), 324.0)
