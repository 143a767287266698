"""A released model as a file: what everybody may know, written whole and on the disk before it is acknowledged."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from confide.base.errors import InputError
from confide.base.files import atomic_file, sync_folder
from confide.deploy.machines.release import Released
from confide.plans.plan import Plan

FORMAT = 1
LATEST = "model.npz"


def write(folder: Path, plan: Plan, released: Released) -> Path:
    """attempt-N.npz, and model.npz as the last of them; returns the path of the latter."""
    meta = describe(plan, released)
    for name in (f"attempt-{released.attempt}.npz", LATEST):
        with atomic_file(folder / name) as temporary, open(temporary, "wb") as file:
            weights = np.asarray(released.mean, np.float64)
            np.savez(file, allow_pickle=False, weights=weights, meta=np.array(json.dumps(meta)))
            file.flush()
            os.fsync(file.fileno())
    sync_folder(folder)
    return folder / LATEST


def describe(plan: Plan, released: Released) -> dict[str, Any]:
    assert plan.deployment is not None  # noqa: S101 - a released plan is a deployed one
    return {
        "format": FORMAT,
        "plan": plan.hash,
        "model": dict(plan.deployment["model"]),
        "rounds": plan.rounds,
        "sigma": released.sigma,
        "servers": released.servers,
        "attempt": released.attempt,
    }


def read(path: str | Path) -> tuple[NDArray[np.float64], dict[str, Any]]:
    """Weights and what is known of them."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            weights, meta = arrays["weights"], json.loads(str(arrays["meta"]))
        if meta["format"] != FORMAT or weights.ndim != 1 or weights.dtype != np.float64:
            raise ValueError("another format")
    except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile) as e:
        raise InputError("model", str(path), f"is no released model ({e}); `confide release` makes one") from None
    return weights, meta
