"""One small MLP, in NumPy by hand, in JAX and in PyTorch, with the same weights in the same order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import confide
from confide.problems.networks.network import Network

F, H, C = 6, 5, 3  # features, hidden, classes
SHAPES = {"a.bias": (H,), "a.weight": (H, F), "b.bias": (C,), "b.weight": (C, H)}  # sorted by name
Floats = NDArray[np.float64]
Loss = Callable[..., Any]  # what the framework asks for


class ByHand:
    """Softmax of one hidden layer of tanh, with its gradients written out."""

    rho = 0.0

    def __init__(self, rho: float = 0.0) -> None:
        self.rho = rho

    def dimension(self, features: int) -> int:
        return sum(int(np.prod(s)) for s in SHAPES.values())

    def split(self, w: Floats) -> dict[str, Floats]:
        parts = np.split(w, np.cumsum([int(np.prod(s)) for s in SHAPES.values()])[:-1])
        return {n: p.reshape(s) for (n, s), p in zip(SHAPES.items(), parts, strict=True)}

    def forward(self, w: Floats, X: Floats) -> tuple[Floats, Floats]:
        p = self.split(w)
        h = np.tanh(X @ p["a.weight"].T + p["a.bias"])
        z = h @ p["b.weight"].T + p["b.bias"]
        return h, z - np.log(np.exp(z).sum(axis=1, keepdims=True))

    def loss(self, w: Floats, X: Floats, d: Floats) -> Floats:
        return -self.forward(w, X)[1][np.arange(len(d)), d.astype(int)] + self.rho * float(w @ w)

    def gradients(self, w: Floats, X: Floats, d: Floats) -> Floats:
        h, log_p = self.forward(w, X)
        back = np.exp(log_p)
        back[np.arange(len(d)), d.astype(int)] -= 1.0
        down = (back @ self.split(w)["b.weight"]) * (1 - h**2)
        parts = [down, down[:, :, None] * X[:, None, :], back, back[:, :, None] * h[:, None, :]]
        return np.concatenate([p.reshape(len(d), -1) for p in parts], axis=1)

    def metrics(self, w: Floats, X: Floats, d: Floats) -> dict[str, float]:
        return {"error": float(np.mean(self.forward(w, X)[1].argmax(axis=1) != d))}


def as_it_is(loss: Loss) -> Loss:
    return loss


def in_jax(changed: Callable[[Loss], Loss] = as_it_is, **more: Any) -> Network:
    """With what `changed` makes of the loss."""
    import jax
    import jax.numpy as jnp

    def init(key: Any) -> Any:
        one, two = jax.random.split(key)
        return {
            "a": {"weight": 0.5 * jax.random.normal(one, (H, F)), "bias": jnp.zeros(H)},
            "b": {"weight": 0.5 * jax.random.normal(two, (C, H)), "bias": jnp.zeros(C)},
        }

    def outputs(p: Any, X: Any) -> Any:
        return jnp.tanh(X @ p["a"]["weight"].T + p["a"]["bias"]) @ p["b"]["weight"].T + p["b"]["bias"]

    def loss(p: Any, batch: Any) -> Any:
        X, y = batch
        return -jnp.take_along_axis(jax.nn.log_softmax(outputs(p, X)), y[:, None], 1).mean()

    def metrics(p: Any, batch: Any) -> Any:
        return {"error": (outputs(p, batch[0]).argmax(1) != batch[1]).mean()}

    return confide.models.jax(init, changed(loss), **{"metrics": metrics, "classes": C, **more})


def module() -> Any:
    import torch

    class MLP(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Linear(F, H), torch.nn.Linear(H, C)

        def forward(self, x: Any) -> Any:
            return self.b(torch.tanh(self.a(x)))

    return MLP()


def in_torch(changed: Callable[[Loss], Loss] = as_it_is, **more: Any) -> Network:
    """With what `changed` makes of the loss."""
    import torch

    return confide.models.torch(module, changed(torch.nn.functional.cross_entropy), **{"classes": C, **more})


MAKERS = {"jax": in_jax, "torch": in_torch}
