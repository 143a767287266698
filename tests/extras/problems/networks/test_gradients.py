"""What a network in a framework says is what the same network says that is written out by hand in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import confide
from confide.problems.models import Model
from confide.problems.networks import network as of
from same_network import MAKERS, SHAPES, ByHand, C, F

pytestmark = pytest.mark.parametrize("framework", sorted(MAKERS))


def data(n: int = 37) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, F)), rng.integers(0, C, n).astype(float)


def test_it_is_a_model_with_named_tensors(framework: str) -> None:
    network = MAKERS[framework]()
    assert isinstance(network, Model)
    assert network.framework == framework
    assert {t.name: t.shape for t in network.tensors} == SHAPES
    assert [t.name for t in network.tensors] == sorted(SHAPES)
    assert network.dimension(F) == len(network.start()) == ByHand().dimension(F)


@pytest.mark.parametrize("rho", [0.0, 0.3])
def test_losses_gradients_and_metrics(framework: str, rho: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of, "CHUNK", 16)  # so that there are several
    network, by_hand, (X, d) = MAKERS[framework](rho=rho), ByHand(rho), data()
    w = np.random.default_rng(1).normal(size=network.dimension(F))
    np.testing.assert_allclose(network.loss(w, X, d), by_hand.loss(w, X, d), rtol=1e-4)
    np.testing.assert_allclose(network.gradients(w, X, d), by_hand.gradients(w, X, d), atol=1e-5)
    assert network.gradients(w, X, d).dtype == network.loss(w, X, d).dtype == np.float64
    found = network.metrics(w, X, d)
    assert list(found) == ["error", "loss"]
    assert found["error"] == pytest.approx(by_hand.metrics(w, X, d)["error"])
    assert found["loss"] == pytest.approx(float(ByHand().loss(w, X, d).mean()), rel=1e-5)


def test_the_memory_of_gradients_is_bounded(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many examples at once as fit, one at least; the result is the same."""
    network, (X, d) = MAKERS[framework](), data()
    w, asked = network.start(), []
    whole = network.gradients(w, X, d)

    class Counting(type(network)):  # type: ignore[misc]
        def _gradients(self, w: Any, X: Any, d: Any) -> Any:
            asked.append(len(X))
            return super()._gradients(w, X, d)

    network.__class__ = Counting
    monkeypatch.setattr(of, "CHUNK_BYTES", 4 * len(w) * 5)
    np.testing.assert_allclose(network.gradients(w, X, d), whole, atol=1e-6)
    assert max(asked) == 5
    monkeypatch.setattr(of, "CHUNK_BYTES", 1)
    asked.clear()
    network.gradients(w, X[:3], d[:3])
    assert asked == [1, 1, 1]


def test_the_flat_loss_is_the_mean_in_the_framework(framework: str) -> None:
    network, (X, d) = MAKERS[framework](), data(8)
    w = network.start()
    loss = network.flat_loss()
    if framework == "jax":
        import jax.numpy as jnp

        found = float(loss(jnp.asarray(w, jnp.float32), jnp.asarray(X, jnp.float32), jnp.asarray(d, jnp.int32)))
    else:
        import torch

        found = float(loss(torch.tensor(w).float(), torch.tensor(X).float(), torch.tensor(d).long()))
    assert found == pytest.approx(float(network.loss(w, X, d).mean()), rel=1e-5)


def test_the_start_is_the_seeds(framework: str) -> None:
    make = MAKERS[framework]
    assert np.array_equal(make(seed=3).start(), make(seed=3).start())
    assert not np.array_equal(make(seed=3).start(), make(seed=4).start())
    assert make().start().any()
    with pytest.raises(confide.InputError, match=r"model.seed = 4294967296: must be between 0 and 4294967295"):
        make(seed=2**32)


def test_random_states_stay_as_they_were(framework: str) -> None:
    """And the start is the same whatever the process is set to."""
    make = MAKERS[framework]
    if framework == "torch":
        import torch

        torch.manual_seed(5)
        before = torch.get_rng_state()
        make()
        assert torch.equal(torch.get_rng_state(), before)
    else:
        import jax

        w = make().start()
        with jax.enable_x64(True):
            assert np.array_equal(make().start(), w)
