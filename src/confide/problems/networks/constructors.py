"""`confide.models.jax`, `torch` and `save`: a network of the user's own as a model, and what it learned as a file.

The frameworks are imported when one of them is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from confide.base.arrays import Floats
from confide.base.errors import InputError
from confide.problems.networks import tensors

if TYPE_CHECKING:
    from confide.problems.networks.from_jax import JaxNetwork
    from confide.problems.networks.from_torch import TorchNetwork
    from confide.problems.networks.network import Network


def jax(
    init: Callable[[Any], Any],
    loss: Callable[[Any, tuple[Any, Any]], Any],
    *,
    metrics: Callable[[Any, tuple[Any, Any]], Mapping[str, Any]] | None = None,
    trainable: Sequence[str] | None = None,
    classes: int | None = None,
    rho: float = 0.0,
    seed: int = 0,
    weights: str | Path | None = None,
    optimizer: Any = None,
) -> JaxNetwork:
    """A network in JAX.

    Args:
        init: `init(key)` gives the parameters: any pytree, a Flax NNX or Equinox module among them. Arrays of floats
            are trained, everything else in it stays as it is. It is called with `jax.random.key(seed)`.
        loss: `loss(params, (X, y))` is the mean loss of a batch; X is float32, (B, F), and y is (B,).
        metrics: `metrics(params, (X, y))` gives numbers by name, each a mean over the batch; the first is the
            `test_metric`.
        trainable: patterns of names such as "head.*": what is trained, everything else is frozen.
        classes: labels are 0 to classes - 1 and given as integers; None: as floats.
        rho: strength of the regulariser rho |w|^2 of what is trained.
        weights: a safetensors file with the initial weights, in place of those of `init`.
        optimizer: of optax, for the local step; its state begins anew each round. None: the paper's SGD.

    Raises:
        InputError: JAX is not installed, or the network cannot be trained as it is.
    """
    given = {"metrics": metrics, "trainable": trainable, "classes": classes, "rho": rho, "seed": seed}
    found: JaxNetwork = home("jax").JaxNetwork(init, loss, weights=weights, optimizer=optimizer, **given)
    return found


def torch(
    module: Any,
    loss: Callable[[Any, Any], Any],
    *,
    metrics: Callable[[Any, Any], Mapping[str, Any]] | None = None,
    trainable: Sequence[str] | None = None,
    classes: int | None = None,
    rho: float = 0.0,
    seed: int = 0,
    weights: str | Path | None = None,
    optimizer: Callable[[list[Any]], Any] | None = None,
) -> TorchNetwork:
    """A network in PyTorch.

    Args:
        module: an `nn.Module`, which starts with the weights that it has, or a function that makes one from `seed`.
        loss: `loss(outputs, y)` is the mean loss of a batch; outputs are `module(X)` with X float32, (B, F).
        metrics: `metrics(outputs, y)` gives numbers by name, each a mean over the batch; the first is `test_metric`.
        trainable: patterns of names such as "head.*"; None: what has `requires_grad`. Everything else is frozen.
        classes: labels are 0 to classes - 1 and given as integers; None: as floats.
        rho: strength of the regulariser rho |w|^2 of what is trained.
        weights: a safetensors file with the initial weights, in place of the module's.
        optimizer: from a list of parameters to a `torch.optim` optimiser, for the local step; its state begins anew
            each round. None: the paper's SGD.

    Raises:
        InputError: PyTorch is not installed, or the network cannot be trained as it is.
    """
    given = {"metrics": metrics, "trainable": trainable, "classes": classes, "rho": rho, "seed": seed}
    found: TorchNetwork = home("torch").TorchNetwork(module, loss, weights=weights, optimizer=optimizer, **given)
    return found


class Learned(Protocol):
    def learned(self) -> Floats:
        """One model, (M,)."""


def save(network: Network, weights: Learned | Floats | str | Path, path: str | Path) -> None:
    """Write a network with these weights as a safetensors file: all its tensors by name, the frozen ones too.

    Args:
        weights: a `Run` (what it released, or the mean of the servers' models), a vector of (M,) numbers, or the
            `model.npz` that a deployment released.

    Raises:
        InputError: the weights are not this network's, or the file cannot be written.
    """
    if isinstance(weights, str | Path):
        from confide.problems import model_file

        w, _ = model_file.read(weights)
    else:
        w = weights.learned() if hasattr(weights, "learned") else np.asarray(weights)
    tensors.write(path, network.whole(w))


def home(framework: str) -> Any:
    """The module that speaks with a framework, if that is installed."""
    try:
        return import_module(f"confide.problems.networks.from_{framework}")
    except ModuleNotFoundError as e:
        if e.name is None or e.name.partition(".")[0] != framework:
            raise
        remedy = f"is not installed: pip install 'confide[{framework}]'"
        raise InputError("model.framework", framework, remedy) from None
