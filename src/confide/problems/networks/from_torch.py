"""A network in PyTorch: an `nn.Module`, or a function that makes one, and `loss(outputs, y)`.

Only a user of PyTorch imports this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch.func import functional_call, grad, vmap

from confide.base.errors import InputError
from confide.problems.networks import constructors
from confide.problems.networks.built_in import Description
from confide.problems.networks.network import STATISTICS, Array, Network, chosen, first_line, seed_of


class TorchNetwork(Network):
    framework: ClassVar[str] = "torch"
    optimizers: ClassVar[str] = "a function such as lambda params: torch.optim.Adam(params, lr=1e-3)"

    def __init__(
        self,
        module: Any,
        loss: Callable[[Any, Any], Any],
        *,
        metrics: Callable[[Any, Any], Mapping[str, Any]] | None,
        trainable: Sequence[str] | None,
        classes: int | None,
        rho: float,
        seed: int,
        weights: str | Path | None,
        optimizer: Any,
    ) -> None:
        self._module = module if isinstance(module, torch.nn.Module) else _made(module, seed_of(seed))
        self._loss, self._user_metrics = loss, metrics
        _refuse_statistics(self._module)
        arrays = dict(self._module.named_parameters())
        trained = chosen(trainable, list(arrays), [n for n, p in arrays.items() if p.requires_grad])
        for name in trained:
            if not arrays[name].is_floating_point():
                remedy = "is no float, so that it has no gradient; name what is trained in model.trainable"
                raise InputError("model.parameters", f"{name}: {arrays[name].dtype}", remedy)
        frozen = {n: p for n, p in arrays.items() if n not in set(trained)} | dict(self._module.named_buffers())
        given = {n: _numpy(arrays[n]) for n in trained}
        super().__init__(
            given,
            {n: _numpy(p) for n, p in frozen.items()},
            classes=classes,
            rho=rho,
            weights=weights,
            optimizer=optimizer,
        )
        self._dtypes = {n: torch.float32 if arrays[n].dtype == torch.float64 else arrays[n].dtype for n in trained}
        self._held_dtypes = {n: torch.float32 if p.dtype == torch.float64 else p.dtype for n, p in frozen.items()}

    def whole(self, w: Array) -> dict[str, Array]:
        """Without buffers that PyTorch does not keep either."""
        kept = self._module.state_dict().keys()
        return {name: a for name, a in super().whole(w).items() if name in kept}

    def labels(self, d: Array) -> Array:
        return d.astype(np.float32 if self.classes is None else np.int64)  # as PyTorch's losses ask

    @cached_property
    def held(self) -> dict[str, Any]:
        return {n: torch.from_numpy(a.copy()).to(self._held_dtypes[n]) for n, a in self.frozen.items()}

    def params(self, w: Any, held: Any = None) -> dict[str, Any]:
        """All parameters and buffers of the module with these weights."""
        pieces, first = dict(self.held if held is None else held), 0
        for tensor in self.tensors:
            piece = w[first : first + tensor.size].reshape(tensor.shape)
            pieces[tensor.name] = piece.to(self._dtypes[tensor.name])
            first += tensor.size
        return pieces

    def flat_loss(self) -> Callable[..., Any]:
        def mean_loss(w: Any, X: Any, d: Any, held: Any = None) -> Any:
            return self._loss(functional_call(self._module, self.params(w, held), (X,)), d).to(w.dtype)

        return mean_loss

    @cached_property
    def _each(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        mean_loss = self.flat_loss()

        def single(w: Any, x: Any, d: Any) -> Any:
            return mean_loss(w, x[None], d[None])

        return vmap(single, (None, 0, 0)), vmap(grad(single), (None, 0, 0))

    def _batch(self, w: Array, X: Array, d: Array) -> Array:
        weights, rows, labels = _tensors(w, X, d)
        given = self.params(weights)
        before = {name: given[name].clone() for name, _ in self._module.named_buffers()}
        with torch.no_grad():
            found = self._loss(functional_call(self._module, given, (rows,)), labels)
        for name, buffer in before.items():
            if not torch.equal(given[name], buffer):
                raise InputError("model.parameters", name, f"changes when the network is used: it {STATISTICS}")
        return _numpy(found) if isinstance(found, torch.Tensor) else np.array(found, object)

    def _losses(self, w: Array, X: Array, d: Array) -> Array:
        with torch.no_grad():
            return np.asarray(self._each[0](*_tensors(w, X, d)).numpy())

    def _gradients(self, w: Array, X: Array, d: Array) -> Array:
        return np.asarray(self._each[1](*_tensors(w, X, d)).detach().numpy())

    def _metrics(self, w: Array, X: Array, d: Array) -> dict[str, float]:
        weights, rows, labels = _tensors(w, X, d)
        with torch.no_grad():
            outputs = functional_call(self._module, self.params(weights), (rows,))
            if self._user_metrics is not None:
                return {name: float(value) for name, value in self._user_metrics(outputs, labels).items()}
            if self.classes is not None and outputs.shape == (len(X), self.classes):
                return {"error": float((outputs.argmax(1) != labels).float().mean())}
        return {}

    def _stepper(self, w: Array) -> Callable[[Array, Array], Array]:
        params = {n: torch.nn.Parameter(torch.from_numpy(a.copy())) for n, a in self.named(w).items()}
        optimizer = self.optimizer(list(params.values()))

        def step(w: Array, gradient: Array) -> Array:
            for name, g in self.named(gradient).items():
                params[name].grad = torch.from_numpy(g.copy())
            optimizer.step()
            return np.concatenate([p.detach().numpy().ravel() for p in params.values()])

        return step


def built_in(description: Description, start: Mapping[str, Array], **more: Any) -> TorchNetwork:
    """A built-in network with these initial weights."""

    class Described(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            for name, a in start.items():
                layer, _, which = name.partition(".")
                if layer not in self._modules:
                    self.add_module(layer, torch.nn.Module())
                self._modules[layer].register_parameter(which, torch.nn.Parameter(torch.from_numpy(a.copy())))

        def forward(self, X: Any) -> Any:
            return description.outputs(torch, dict(self.named_parameters()), X)

    loss = torch.nn.functional.cross_entropy
    return constructors.torch(Described(), loss, classes=description.classes, **more)


def _made(make: Any, seed: int) -> Any:
    """The module that the function makes from this seed; PyTorch's own random state stays as it was."""
    if not callable(make):
        raise InputError("model.module", type(make).__name__, "must be an nn.Module, or a function that makes one")
    try:
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.default_generator.manual_seed(seed)
            module = make()
    except Exception as e:
        raise InputError("model.module", type(e).__name__, f"making the module raised: {first_line(e)}") from e
    if not isinstance(module, torch.nn.Module):
        raise InputError("model.module", type(module).__name__, "the function must return an nn.Module")
    return module


def _refuse_statistics(module: Any) -> None:
    for name, layer in module.named_modules():
        batch = isinstance(layer, torch.nn.modules.batchnorm._BatchNorm)
        if batch or getattr(layer, "track_running_stats", False) or getattr(layer, "running_mean", None) is not None:
            raise InputError("model.parameters", f"{name}: {type(layer).__name__}", STATISTICS)


def _numpy(p: Any) -> Array:
    p = p.detach().cpu()
    return np.asarray((p.float() if p.dtype == torch.bfloat16 else p).numpy())  # NumPy has no bfloat16


def _tensors(w: Array, X: Array, d: Array) -> tuple[Any, Any, Any]:
    return torch.from_numpy(w), torch.from_numpy(X), torch.from_numpy(d)
