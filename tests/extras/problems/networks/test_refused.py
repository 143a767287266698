"""What a network may not be, and what is said of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import confide
from confide.problems.networks.network import STATISTICS
from same_network import MAKERS, C, F

frameworks = pytest.mark.parametrize("framework", sorted(MAKERS))


def data() -> confide.Federation:
    rng = np.random.default_rng(0)
    return confide.Federation.from_clients([[(rng.normal(size=(5, F)), rng.integers(0, C, 5))]] * 2)


def refused(model: Any) -> str:
    with pytest.raises(confide.InputError) as error:
        confide.problems.Problem(data(), model() if callable(model) else model)
    return str(error.value)


def with_loss(framework: str, of: Any, **more: Any) -> Any:
    """The same network with `of(loss)`: functions of what a loss is given."""
    return MAKERS[framework](lambda plain: lambda *given: of(plain(*given), *given), **more)


@frameworks
def test_a_loss_that_is_no_number(framework: str) -> None:
    """One for each example is the usual mistake; on a batch of one it would look like a number."""
    each = with_loss(framework, lambda loss, p, batch: loss + 0.0 * (batch[1] if framework == "jax" else batch))
    assert "model.loss = (1,): has this shape for a batch of 1 examples; it must be one number" in refused(each)


@frameworks
def test_a_loss_that_changes_its_shape(framework: str) -> None:
    def squeezed(loss: Any, p: Any, batch: Any) -> Any:
        return (loss + 0.0 * (batch[1] if framework == "jax" else batch)).squeeze()

    assert "model.loss = (3,): has this shape for a batch of 3 examples" in refused(with_loss(framework, squeezed))


@frameworks
def test_a_loss_that_is_nan_at_the_start(framework: str) -> None:
    assert "model.loss = nan: is not finite at the initial weights" in refused(
        with_loss(framework, lambda loss, *_: loss * np.float32(np.nan))
    )


@frameworks
def test_a_sum_is_no_mean(framework: str) -> None:
    def total(loss: Any, p: Any, batch: Any) -> Any:
        return loss * len(batch[1] if framework == "jax" else batch)

    assert "must be the mean of the losses of its examples" in refused(with_loss(framework, total))


@frameworks
def test_a_random_loss(framework: str) -> None:
    draw = np.random.default_rng(0)
    said = refused(with_loss(framework, lambda loss, *_: loss + draw.random()))
    assert "is another number when it is asked again with the same batch: leave out dropout" in said


@frameworks
def test_a_loss_that_raises(framework: str) -> None:
    def broken(*_: Any) -> Any:
        raise ValueError("seven")

    assert "model.loss = 'ValueError': raised on a batch of 1 rows of 6 features: seven" in refused(
        with_loss(framework, broken)
    )


@frameworks
def test_labels_that_are_floats_where_the_loss_asks_for_classes(framework: str) -> None:
    said = refused(MAKERS[framework](classes=None))
    assert said.endswith("; labels are floats here: say classes = C where they are the whole numbers below C")


@frameworks
def test_a_loss_that_is_no_array(framework: str) -> None:
    said = refused(with_loss(framework, lambda *_: None))
    assert f"model.loss = 'NoneType': must return one number as an array of {framework}" in said


def test_a_loss_that_forgets_how_it_was_computed() -> None:
    assert "model.loss = 'float': must return" in refused(with_loss("torch", lambda loss, *_: loss.item()))


@frameworks
def test_metrics_that_are_no_numbers(framework: str) -> None:
    """Tried before the first round: they are asked for after it."""
    network, given = MAKERS[framework](metrics=lambda outputs, _: {"all": outputs}), data()
    with pytest.raises(confide.InputError, match=r"^model.metrics = .*: must give one number for each name"):
        confide.problems.Problem(given, network, test=(given.X, given.d))


@frameworks
@pytest.mark.parametrize("given", ["adam", 3, list], ids=str)
def test_what_is_no_optimiser(framework: str, given: object) -> None:
    said = refused(MAKERS[framework](optimizer=given))
    assert said.startswith("model.optimizer = ")
    assert "cannot make a step" in said
    assert {"jax": "optax.adam(1e-3)", "torch": "torch.optim.Adam(params, lr=1e-3)"}[framework] in said


@frameworks
@pytest.mark.parametrize("wrong", [-1.0, C, 0.5])
def test_labels_that_are_no_classes(framework: str, wrong: float) -> None:
    given = data()
    given.d[3] = wrong
    with pytest.raises(confide.InputError, match=r"problem.label = .*: labels are the whole numbers 0 to 2"):
        confide.problems.Problem(given, MAKERS[framework]())
    with pytest.raises(confide.InputError, match=r"problem.label = .*: labels are the whole numbers 0 to 2"):
        confide.problems.Problem(data(), MAKERS[framework](), test=(given.X, given.d))


@frameworks
def test_patterns(framework: str) -> None:
    make = MAKERS[framework]
    assert "model.trainable = 'head.*': matches no parameter; there are a.bias, a.weight" in refused(
        lambda: make(trainable=["a.*", "head.*"])
    )
    assert "must be a list of name patterns" in refused(lambda: make(trainable="a.*"))
    assert "model.parameters = 'none': nothing is trained" in refused(lambda: make(trainable=[]))
    assert [t.name for t in make(trainable=["b.*"]).tensors] == ["b.bias", "b.weight"]


@frameworks
def test_numbers_out_of_range(framework: str) -> None:
    make = MAKERS[framework]
    assert "model.classes = 1: must be at least 2" in refused(lambda: make(classes=1))
    assert "problem.rho = -1" in refused(lambda: make(rho=-1))


# JAX


def jax_loss(p: Any, batch: Any) -> Any:
    return ((batch[0] @ p["w"] - batch[1]) ** 2).mean()


def test_integer_parameters_of_jax() -> None:
    import jax.numpy as jnp

    def init(key: Any) -> Any:
        return {"w": jnp.zeros(F), "n": jnp.arange(3)}

    assert "model.parameters = 'n: int32': is no float" in refused(lambda: confide.models.jax(init, jax_loss))
    assert confide.models.jax(init, jax_loss, trainable=["w"]).frozen.keys() == {"n"}


@pytest.mark.parametrize("params", [{}, {"w": 1.0}])
def test_nothing_to_train_in_jax(params: Any) -> None:
    assert "nothing is trained" in refused(lambda: confide.models.jax(lambda key: params, jax_loss))


def test_an_init_that_raises() -> None:
    assert "model.init = 'ZeroDivisionError': init(key) raised" in refused(
        lambda: confide.models.jax(lambda key: 1 / 0, jax_loss)
    )


def test_statistics_of_flax() -> None:
    from flax import nnx

    class Normed(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.norm = nnx.BatchNorm(F, rngs=rngs)

    assert f"model.parameters = 'norm.mean': {STATISTICS}" in refused(
        lambda: confide.models.jax(lambda key: Normed(nnx.Rngs(key)), jax_loss)
    )
    linen = {"params": {"w": np.zeros(F, np.float32)}, "batch_stats": {"mean": np.zeros(F, np.float32)}}
    assert f"model.parameters = 'batch_stats.mean': {STATISTICS}" in refused(
        lambda: confide.models.jax(lambda key: linen, jax_loss)
    )


def test_statistics_of_equinox() -> None:
    import equinox as eqx

    def init(key: Any) -> Any:
        return eqx.nn.make_with_state(eqx.nn.BatchNorm)(F, axis_name="batch", mode="batch")[0]

    assert STATISTICS in refused(lambda: confide.models.jax(init, jax_loss))


def test_dropout_of_flax() -> None:
    """Its mask would be the same in every batch, silently."""
    from flax import nnx

    class Dropped(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.drop, self.out = nnx.Dropout(0.5, rngs=rngs), nnx.Linear(F, 1, rngs=rngs)

    def init(key: Any) -> Any:
        return Dropped(nnx.Rngs(key))

    assert "model.init = 'dropout at drop': a network must say the same" in refused(
        lambda: confide.models.jax(init, jax_loss)
    )

    def evaluated(key: Any) -> Any:
        model = init(key)
        model.eval()
        return model

    assert [t.name for t in confide.models.jax(evaluated, jax_loss).tensors] == ["out.bias", "out.kernel"]


# PyTorch


def test_batch_normalisation_in_torch() -> None:
    import torch

    for layer in (
        torch.nn.BatchNorm1d(F),
        torch.nn.BatchNorm1d(F, track_running_stats=False),
        torch.nn.InstanceNorm1d(F, track_running_stats=True),
    ):
        module = torch.nn.Sequential(layer, torch.nn.Linear(F, C))
        said = refused(lambda module=module: confide.models.torch(module, torch.nn.functional.cross_entropy))
        assert f"model.parameters = '0: {type(layer).__name__}': {STATISTICS}" in said


@pytest.mark.parametrize("in_place", [True, False])
def test_a_buffer_that_changes(in_place: bool) -> None:
    import torch

    class Counting(torch.nn.Linear):
        def __init__(self) -> None:
            super().__init__(F, C)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: Any) -> Any:
            if in_place:
                self.seen += len(x)
            else:
                self.seen = self.seen + len(x)
            return super().forward(x)

    module = Counting()
    said = refused(lambda: confide.models.torch(module, torch.nn.functional.cross_entropy, classes=C))
    assert "model.parameters = 'seen': changes when the network is used" in said
    assert float(module.seen) == 0.0  # the user's own module is as it was


def test_dropout_in_torch() -> None:
    import torch

    module = torch.nn.Sequential(torch.nn.Linear(F, 50), torch.nn.Dropout(0.5), torch.nn.Linear(50, C))
    network = confide.models.torch(module, torch.nn.functional.cross_entropy, classes=C)
    assert "asked again with the same batch" in refused(network)
    module.eval()
    confide.problems.Problem(data(), network)


def test_integer_parameters_of_torch() -> None:
    import torch

    module = torch.nn.Linear(F, C)
    module.codes = torch.nn.Parameter(torch.arange(3), requires_grad=False)
    loss = torch.nn.functional.cross_entropy
    assert "model.parameters = 'codes: torch.int64': is no float" in refused(
        lambda: confide.models.torch(module, loss, trainable=["codes", "weight"])
    )
    confide.problems.Problem(data(), confide.models.torch(module, loss, classes=C))


def test_what_is_no_module() -> None:
    import torch

    loss = torch.nn.functional.cross_entropy
    assert "must be an nn.Module, or a function" in refused(lambda: confide.models.torch(3, loss))
    assert "must return an nn.Module" in refused(lambda: confide.models.torch(lambda: 3, loss))
    assert "making the module raised" in refused(lambda: confide.models.torch(lambda: 1 / 0, loss))
    frozen = torch.nn.Linear(F, C).requires_grad_(False)
    assert "nothing is trained" in refused(lambda: confide.models.torch(frozen, loss))


# Files


@frameworks
def test_weights_that_do_not_fit(framework: str, tmp_path: Path) -> None:
    from confide.problems.networks.tensors import write

    make = MAKERS[framework]
    right = {n: a.astype(np.float32) for n, a in make().named(make().start()).items()}
    path = tmp_path / "w.safetensors"

    def said(tensors: Any) -> str:
        write(path, tensors)
        return refused(lambda: make(weights=path))

    assert "'a.bias' has shape (7,), in the network it is (5,)" in said(right | {"a.bias": np.zeros(7, np.float32)})
    assert "has a tensor 'a.bais' that the network has not; did you mean 'a.bias'?" in said(
        right | {"a.bais": np.zeros(5, np.float32)}
    )
    assert "'a.bias' holds F64, in the network it is F32; convert the file" in said(right | {"a.bias": np.zeros(5)})
    assert "has no tensor 'b.weight', which is trained; it has a.bias" in said(
        {n: a for n, a in right.items() if n != "b.weight"}
    )
    assert "'a.bias' holds NaN or infinity" in said(right | {"a.bias": np.full(5, np.nan, np.float32)})
    path.write_bytes(b"junk")
    assert "cannot be read as a safetensors file" in refused(lambda: make(weights=path))
    assert "cannot be read as a safetensors file" in refused(lambda: make(weights=tmp_path / "none"))


@frameworks
def test_weights_in(framework: str, tmp_path: Path) -> None:
    """The trained ones take the place of the seed's; of frozen ones those that the file has."""
    from confide.problems.networks.tensors import write

    make = MAKERS[framework]
    other = make(seed=9)
    tensors = {n: a.astype(np.float32) for n, a in other.named(other.start()).items()}
    write(tmp_path / "w.safetensors", tensors)
    assert np.array_equal(make(weights=tmp_path / "w.safetensors").start(), other.start())
    head = make(weights=tmp_path / "w.safetensors", trainable=["b.*"])
    assert np.array_equal(head.frozen["a.weight"], tensors["a.weight"])
    X, d = data().X, data().d
    np.testing.assert_allclose(head.loss(head.start(), X, d), other.loss(other.start(), X, d), rtol=1e-6)
