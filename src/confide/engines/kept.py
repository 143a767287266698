"""The same run again is no other release: its folder hands out what it keeps, and nothing is drawn anew.

Noise on somebody's data is new in every run, so that a second one would tell more than the first. Whether the data are
the same is seen by a digest under a random key; both are in one file that only its owner can read, for a digest
without a key would tell two candidate data sets apart to whoever has a record or a bundle.
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from confide.base.durable_files import create_file
from confide.base.errors import InputError
from confide.engines.run import RECORD, Run, versions
from confide.graph.graph import Graph
from confide.problems.problem import Problem
from confide.problems.train_function import Own

SAME: Final = "same_data.json"
BLOCK: Final = 1 << 16  # rows at a time: data may be mapped from a file


def keep(folder: Path, problem: Problem, graphs: Sequence[Graph]) -> str:
    """Beside a finished run: by what the same data will be known. Returns the file's path."""
    key = os.urandom(32)
    same = {"key": key.hex(), "digest": _digest(key, problem, graphs)}
    create_file(folder / SAME, json.dumps(same).encode(), 0o600)
    return str(folder / SAME)


def kept(folder: Path, config: Mapping[str, Any], problem: Problem, graphs: Sequence[Graph]) -> Run | None:
    """The finished run of the same config, data and version in this folder, if there is one."""
    if isinstance(problem.model, Own):  # what its function reads is not known
        return None
    if not (folder / RECORD).is_file() or not (folder / SAME).is_file():
        return None
    try:
        run = Run.load(folder)
    except InputError:  # not whole: another run takes its place
        return None
    whole = run.guarded and not run.interrupted and run.diverged is None and run.config is not None
    if not whole or _settings(run.config or {}) != _settings(config):
        return None
    if (run.versions or {}).get("confide") != versions()["confide"]:
        return None
    try:
        noted = json.loads((folder / SAME).read_text(encoding="utf-8"))
        same = hmac.compare_digest(noted["digest"], _digest(bytes.fromhex(noted["key"]), problem, graphs))
    except (ValueError, KeyError, TypeError):
        return None
    return run if same else None


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config but for where its results go."""
    output = {name: value for name, value in config.get("output", {}).items() if name != "folder"}
    return {**config, "output": output}


def _digest(key: bytes, problem: Problem, graphs: Sequence[Graph]) -> str:
    """HMAC-SHA256 of all that a run reads from files."""
    f = problem.federation
    arrays = [f.X, f.d, f.client_offsets, f.unit_offsets, *(problem.test or ())]
    told = {
        "features": problem.features,
        "graphs": [g.to_dict() for g in graphs],
        "arrays": [(str(a.dtype), a.shape) for a in arrays],
    }
    found = hmac.new(key, json.dumps(told, sort_keys=True, default=str).encode(), "sha256")
    for a in arrays:
        for start in range(0, len(a), BLOCK):
            found.update(np.ascontiguousarray(a[start : start + BLOCK]).tobytes())
    return found.hexdigest()
