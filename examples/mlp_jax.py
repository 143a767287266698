"""A network in JAX, 64-32-10: defined once, simulated and deployed. `mlp_torch.py` is the same one in PyTorch.

    confide simulate mlp.toml --set problem.model=mlp_jax:network             in this folder
    confide cluster mlp.toml --release --set problem.model=mlp_jax:network    a process for every server and client

In a deployment a client's TOML says `model = "mlp_jax:network"`, with this file beside it.
"""

import jax
import jax.numpy as jnp

import confide

FEATURES, HIDDEN, CLASSES = 64, 32, 10


def init(key):
    first, second = jax.random.split(key)
    return {
        "hidden": {"w": jax.random.normal(first, (FEATURES, HIDDEN)) / 8.0, "b": jnp.zeros(HIDDEN)},
        "output": {"w": jax.random.normal(second, (HIDDEN, CLASSES)) / 8.0, "b": jnp.zeros(CLASSES)},
    }


def outputs(params, X):
    hidden = jax.nn.relu(X @ params["hidden"]["w"] + params["hidden"]["b"])
    return hidden @ params["output"]["w"] + params["output"]["b"]


def loss(params, batch):
    X, y = batch
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(outputs(params, X)), y[:, None], axis=1))


def metrics(params, batch):
    X, y = batch
    return {"accuracy": jnp.mean(outputs(params, X).argmax(axis=1) == y)}


network = confide.models.jax(init, loss, metrics=metrics, classes=CLASSES)
