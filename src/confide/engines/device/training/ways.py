"""Which ways of training a model has on a device."""

from __future__ import annotations

from typing import Any

import numpy as np

from confide.engines.device.backend import Backend
from confide.engines.device.tables import Rule
from confide.engines.device.training import margins
from confide.engines.device.training.cohort import Train
from confide.engines.device.training.direct import direct
from confide.engines.device.training.forms import by_client, by_unit, fast
from confide.engines.device.training.gram import fits, gram
from confide.problems.models import Linear, Logistic, Model, Softmax
from confide.problems.networks.built_in import MLP

FEATURES = 8  # of a model whose clients fit into registers
SLOPES: dict[type[Any], margins.Slopes] = {
    Linear: margins.linear,
    Logistic: margins.logistic,
    Softmax: margins.softmax,
}


def closed_form(model: Model) -> bool:
    """Whether gradients are written here; then a CPU computes in float64 and agrees with the reference."""
    return type(model) in SLOPES


def unable(model: Model, framework: str) -> str | None:
    """Why a model cannot be trained in a framework; None where it can."""
    written = getattr(model, "framework", None)
    if closed_form(model) or written == framework:
        return None
    if written is not None:
        return f"the network is written in {written}"
    return f"it trains linear, logistic and softmax models, and networks that are written in {framework}"


def labels(model: Model) -> type[Any] | None:
    """Whole numbers that the model's loss is given, or None: floats."""
    if getattr(model, "framework", None) is None or getattr(model, "classes", None) is None:
        return None
    return np.int32 if model.framework == "jax" else np.int64  # type: ignore[attr-defined]


def ways(b: Backend, model: Any, rule: Rule) -> dict[str, Train]:
    """All ways to train the model on this device, by name: the first is the one to take if no other is tried."""
    on_gpu = b.name == "jax" and b.device == "gpu"  # where there are kernels
    if closed_form(model):
        found = {"closed form": margins.margins(b, SLOPES[type(model)], rule.rho, getattr(model, "classes", 1))}
        if on_gpu and rule.replacement and rule.M <= FEATURES and not isinstance(model, Softmax):
            from confide.engines.device.training.registers import registers

            return {"in registers": registers(b, SLOPES[type(model)], rule.rho), **found}
        return found
    plain = direct(b, model.flat_loss(), rule.rho)
    found, description = {"direct": plain}, getattr(model, "description", None)
    if isinstance(description, MLP) and fits(rule.steps, rule.clip):
        found = {"Gram form": gram(b, description.sizes, rule.rho), **found}
    if b.device == "gpu":
        found = {name: fast(b, train) for name, train in found.items()}
    by = {f"{name}, unit by unit": by_unit(b, train) for name, train in found.items()}
    by["direct, client by client"] = by_client(b, found["direct"])
    return {**found, **by} if b.device == "gpu" else {**by, **found}
