"""A released model as a file: what everybody may know, written whole and on the disk before it is acknowledged."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from confide.base.errors import InputError
from confide.base.files import atomic_file, sync_folder
from confide.problems.networks import tensors

FORMAT = 1
LATEST = "model.npz"


def write(folder: Path, weights: NDArray[np.float64], meta: Mapping[str, Any]) -> Path:
    """attempt-N.npz, and model.npz as the last of them; returns the path of the latter.

    Args:
        meta: what everybody may know of them: the format of this file, the plan's hash, kind and rho of the model,
            rounds, sigma of the noise on the mean, how many servers have a share in it, and which attempt it is; of a
            model that began with named weights its `tensors`, names and shapes, which are then in a .safetensors file
            beside each .npz.
    """
    for name in (f"attempt-{meta['attempt']}.npz", LATEST):
        with atomic_file(folder / name) as temporary, open(temporary, "wb") as file:
            np.savez(file, allow_pickle=False, weights=np.asarray(weights, np.float64), meta=np.array(json.dumps(meta)))
            file.flush()
            os.fsync(file.fileno())
        if "tensors" in meta:
            tensors.write((folder / name).with_suffix(".safetensors"), _named(weights, meta["tensors"]))
    sync_folder(folder)
    return folder / LATEST


def _named(weights: NDArray[np.float64], shapes: Sequence[tuple[str, Sequence[int]]]) -> dict[str, NDArray[Any]]:
    """A model's tensors, in single precision as its framework has them."""
    ends = np.cumsum([math.prod(shape) for _, shape in shapes])
    parts = np.split(np.asarray(weights, np.float32), ends[:-1])
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes, parts, strict=True)}


def holds(folder: Path, models: Sequence[tuple[NDArray[np.float64], Mapping[str, Any]]]) -> bool:
    """Whether these, of which the last is the latest, are what the folder has."""
    names = [f"attempt-{meta['attempt']}.npz" for _, meta in models]
    for name, (weights, meta) in zip([*names, LATEST], [*models, *models[-1:]], strict=bool(models)):
        try:
            found, said = read(folder / name)
        except InputError:
            return False
        if said != meta or not np.array_equal(found, weights):
            return False
    return True


def read(path: str | Path) -> tuple[NDArray[np.float64], dict[str, Any]]:
    """Weights and what is known of them."""
    try:
        # Opened here: NumPy leaves open what is no archive.
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            weights, meta = arrays["weights"], json.loads(str(arrays["meta"]))
        if meta["format"] != FORMAT or weights.ndim != 1 or weights.dtype != np.float64:
            raise ValueError("another format")
    except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile) as e:
        raise InputError("model", str(path), f"is no released model ({e}); `confide release` makes one") from None
    return weights, meta
