"""A network in PyTorch, 64-32-10: defined once, simulated and deployed. `mlp_jax.py` is the same one in JAX.

    confide simulate mlp.toml --set problem.model=mlp_torch:network             in this folder
    confide cluster mlp.toml --release --set problem.model=mlp_torch:network    a process for every server and client

In a deployment a client's TOML says `model = "mlp_torch:network"`, with this file beside it.
"""

import torch
from torch import nn

import confide

FEATURES, HIDDEN, CLASSES = 64, 32, 10


def module():
    """Begins as `mlp_jax.py` does, but for the draws."""
    made = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
    for layer in (made[0], made[2]):
        nn.init.normal_(layer.weight, std=1.0 / 8.0)
        nn.init.zeros_(layer.bias)
    return made


def metrics(outputs, y):
    return {"accuracy": (outputs.argmax(axis=1) == y).to(torch.float32).mean()}


network = confide.models.torch(module, nn.functional.cross_entropy, metrics=metrics, classes=CLASSES)
