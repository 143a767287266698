"""Where a model begins, as named arrays: what the file `start.safetensors` of a deployment holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from confide.base.arrays import Floats
from confide.problems.models import Model, Started
from confide.problems.networks import tensors as safetensors
from confide.problems.networks.network import Network

FILE: Final = "start.safetensors"
FROZEN: Final = "frozen.safetensors"


@runtime_checkable
class Named(Protocol):
    """A model that knows its initial weights by name."""

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """In the precision that they have."""


def tensors(model: Started) -> Mapping[str, NDArray[Any]]:
    """The initial weights by name, in the precision that they have."""
    if isinstance(model, Network):
        return model.initial
    if isinstance(model, Named):
        return model.arrays()
    return {"w": model.start()}


def write(model: Model, folder: Path) -> list[Path]:
    """The files of a model's start, those of what is trained and of what is not."""
    found = {FILE: tensors(model)} if isinstance(model, Started) else {}
    if isinstance(model, Network) and model.frozen:
        found[FROZEN] = model.frozen
    for name, arrays in found.items():
        safetensors.write(folder / name, arrays)
    return [folder / name for name in found]


def flat(found: Mapping[str, NDArray[Any]]) -> Floats:
    """As one vector: the names in order.

    >>> flat({"b": np.ones((1, 2)), "a": np.zeros(1)})
    array([0., 1., 1.])
    """
    return np.concatenate([np.asarray(found[name], np.float64).ravel() for name in sorted(found)])
