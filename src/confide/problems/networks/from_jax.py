"""A network in JAX: `init(key)` gives any pytree (dictionaries, a Flax NNX or Equinox module), `loss(params, batch)`.

Only a user of JAX imports this.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from confide.base.errors import InputError
from confide.problems.networks import constructors
from confide.problems.networks.built_in import Description
from confide.problems.networks.network import STATISTICS, Array, Network, chosen, first_line, padded, seed_of

Batch = tuple[Any, Any]  # features (B, F), labels (B,)


class JaxNetwork(Network):
    framework: ClassVar[str] = "jax"
    optimizers: ClassVar[str] = "of optax, such as optax.adam(1e-3)"

    def __init__(
        self,
        init: Callable[[Any], Any],
        loss: Callable[[Any, Batch], Any],
        *,
        metrics: Callable[[Any, Batch], Mapping[str, Any]] | None,
        trainable: Sequence[str] | None,
        classes: int | None,
        rho: float,
        seed: int,
        weights: str | Path | None,
        optimizer: Any,
    ) -> None:
        key = seed_of(seed)
        try:
            with jax.enable_x64(False):  # the same draws whatever the process is set to
                params = init(jax.random.key(key))
        except InputError:
            raise
        except Exception as e:
            raise InputError("model.init", type(e).__name__, f"init(key) raised: {first_line(e)}") from e
        self._loss, self._user_metrics = loss, metrics
        kinds = _flax_kinds(params)
        found, self._tree = jax.tree_util.tree_flatten_with_path(params)
        self._leaves: list[Any] = []  # in the tree's order
        self._names: list[str] = []
        arrays: dict[str, Any] = {}
        parameters: list[str] = []  # by default
        for path, leaf in found:
            name, kind = _name(path, kinds)
            self._leaves.append(leaf)
            self._names.append(name)
            if not isinstance(leaf, jax.Array | np.ndarray) or jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                continue
            if kind == "BatchStat" or path_root(path) == "batch_stats":
                raise InputError("model.parameters", name, STATISTICS)
            arrays[name] = leaf
            if kind in (None, "Param"):
                parameters.append(name)
        _refuse_layers(params)
        trained = chosen(trainable, list(arrays), parameters)
        for name in trained:
            if not jnp.issubdtype(arrays[name].dtype, jnp.floating):
                remedy = "is no float, so that it has no gradient; name what is trained in model.trainable"
                raise InputError("model.parameters", f"{name}: {arrays[name].dtype}", remedy)
        frozen = {name: np.asarray(a) for name, a in arrays.items() if name not in set(trained)}
        given = {name: np.asarray(arrays[name]) for name in trained}
        super().__init__(given, frozen, classes=classes, rho=rho, weights=weights, optimizer=optimizer)
        self._dtypes = {name: _narrow(a.dtype) for name, a in (given | frozen).items()}

    @cached_property
    def held(self) -> dict[str, Any]:
        with jax.ensure_compile_time_eval():  # this may be asked for while a function is traced
            return {name: jnp.asarray(a, self._dtypes[name]) for name, a in self.frozen.items()}

    def params(self, w: Any, held: Any = None) -> Any:
        """The user's pytree with these weights."""
        pieces, first = dict(self.held if held is None else held), 0
        for tensor in self.tensors:
            piece = w[first : first + tensor.size].reshape(tensor.shape)
            pieces[tensor.name] = piece.astype(self._dtypes[tensor.name])
            first += tensor.size
        leaves = [pieces.get(name, leaf) for name, leaf in zip(self._names, self._leaves, strict=True)]
        return jax.tree_util.tree_unflatten(self._tree, leaves)

    def flat_loss(self) -> Callable[..., Any]:
        def mean_loss(w: Any, X: Any, d: Any, held: Any = None) -> Any:
            return jnp.asarray(self._loss(self.params(w, held), (X, d))).astype(w.dtype)

        return mean_loss

    @cached_property
    def _compiled(self) -> dict[str, Callable[..., Any]]:
        mean_loss = self.flat_loss()

        def single(w: Any, x: Any, d: Any, held: Any) -> Any:
            return mean_loss(w, x[None], d[None], held)

        found: dict[str, Callable[..., Any]] = {
            "losses": jax.vmap(single, (None, 0, 0, None)),
            "gradients": jax.vmap(jax.grad(single), (None, 0, 0, None)),
        }
        if self._user_metrics is not None:
            metrics = self._user_metrics
            found["metrics"] = lambda w, X, d, held: dict(metrics(self.params(w, held), (X, d)))
        return {name: jax.jit(function) for name, function in found.items()}

    def _batch(self, w: Array, X: Array, d: Array) -> Array:
        # Traced anew each time, so that a random loss shows.
        loss = jax.jit(lambda w, X, d, held: self._loss(self.params(w, held), (X, d)))
        found = np.asarray(loss(w, X, d, self.held))
        return found.astype(np.float32) if jnp.issubdtype(found.dtype, jnp.floating) else found

    def _losses(self, w: Array, X: Array, d: Array) -> Array:
        return self._each("losses", w, X, d)

    def _gradients(self, w: Array, X: Array, d: Array) -> Array:
        return self._each("gradients", w, X, d)

    def _each(self, which: str, w: Array, X: Array, d: Array) -> Array:
        more = [(0, padded(len(X)) - len(X)), (0, 0)]
        found = self._compiled[which](w, np.pad(X, more, "edge"), np.pad(d, more[:1], "edge"), self.held)
        return np.asarray(found)[: len(X)]

    def _metrics(self, w: Array, X: Array, d: Array) -> dict[str, float]:
        if self._user_metrics is None:
            return {}
        return {name: float(value) for name, value in self._compiled["metrics"](w, X, d, self.held).items()}

    def _stepper(self, w: Array) -> Callable[[Array, Array], Array]:
        state = self.optimizer.init(self._split(w))
        update = jax.jit(self.optimizer.update)

        def step(w: Array, gradient: Array) -> Array:
            nonlocal state
            change, state = update(self._split(gradient), state, self._split(w))
            return np.asarray(w + np.concatenate([np.ravel(change[t.name]) for t in self.tensors]))

        return step

    def _split(self, w: Array) -> dict[str, Any]:
        return {name: jnp.asarray(a) for name, a in self.named(w).items()}


def built_in(description: Description, start: Mapping[str, Array], **more: Any) -> JaxNetwork:
    """A built-in network with these initial weights."""

    def loss(w: Any, batch: Batch) -> Any:
        a = description.outputs(jnp, w, batch[0])
        truth = jnp.take_along_axis(a, batch[1][:, None], axis=-1)[:, 0]
        return jnp.mean(jax.nn.logsumexp(a, axis=-1) - truth)

    def metrics(w: Any, batch: Batch) -> dict[str, Any]:
        return {"error": jnp.mean(description.outputs(jnp, w, batch[0]).argmax(-1) != batch[1])}

    def init(key: Any) -> dict[str, Any]:
        return {name: jnp.asarray(a) for name, a in start.items()}

    return constructors.jax(init, loss, metrics=metrics, classes=description.classes, **more)


def path_root(path: Any) -> str:
    return str(jax.tree_util.keystr(path[:1], simple=True))


def _name(path: Any, kinds: Mapping[str, str]) -> tuple[str, str | None]:
    """As a user would say it, "layers.0.weight"; and what Flax calls it. A variable of Flax is one name, not two."""
    holder = jax.tree_util.keystr(path[:-1], simple=True, separator=".")
    if holder in kinds:
        return holder, kinds[holder]
    return jax.tree_util.keystr(path, simple=True, separator=".") or "params", None


def _flax_kinds(params: Any) -> dict[str, str]:
    """Of every variable of Flax NNX in it: "Param", "BatchStat", or another."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        return {}
    variables, _ = jax.tree_util.tree_flatten_with_path(params, is_leaf=lambda x: isinstance(x, nnx.Variable))
    known = (nnx.BatchStat, nnx.Param)
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): next(
            (kind.__name__ for kind in known if isinstance(x, kind)), type(x).__name__
        )
        for path, x in variables
        if isinstance(x, nnx.Variable)
    }


def _refuse_layers(params: Any) -> None:
    """Layers that would be silently another thing: dropout with a constant mask, statistics of Equinox."""
    nnx, equinox = sys.modules.get("flax.nnx"), sys.modules.get("equinox")
    if nnx is not None and isinstance(params, nnx.Module):
        for path, layer in nnx.iter_graph(params):
            if isinstance(layer, nnx.Dropout) and layer.rate > 0 and not layer.deterministic:
                remedy = (
                    "a network must say the same of a batch whenever it is asked: call model.eval(), or leave it out"
                )
                raise InputError("model.init", f"dropout at {'.'.join(map(str, path))}", remedy)
    if equinox is not None:
        normal = equinox.nn.BatchNorm
        for x in jax.tree_util.tree_leaves(params, is_leaf=lambda x: isinstance(x, normal)):
            if isinstance(x, normal):
                raise InputError("model.parameters", "equinox.nn.BatchNorm", STATISTICS)


def _narrow(dtype: Any) -> Any:
    return jnp.float32 if dtype == np.float64 else dtype
