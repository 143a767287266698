"""Which way of training a model has on a device."""

from __future__ import annotations

from typing import Any

import numpy as np

from confide.engines.device.backend import Backend
from confide.engines.device.training import margins
from confide.engines.device.training.cohort import Train
from confide.engines.device.training.direct import direct
from confide.problems.models import Linear, Logistic, Model

SLOPES: dict[type[Any], margins.Slopes] = {Linear: margins.linear, Logistic: margins.logistic}


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
    return f"it trains linear and logistic models, and networks that are written in {framework}"


def labels(model: Model) -> type[Any] | None:
    """Whole numbers that the model's loss is given, or None: floats."""
    if getattr(model, "framework", None) is None or getattr(model, "classes", None) is None:
        return None
    return np.int32 if model.framework == "jax" else np.int64  # type: ignore[attr-defined]


def way(b: Backend, model: Any) -> Train:
    if closed_form(model):
        return margins.margins(b, SLOPES[type(model)], float(model.rho))
    return direct(b, model.flat_loss(), float(model.rho))
