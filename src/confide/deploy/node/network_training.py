"""A client's network, in the process that trains: the owner's module and data, and the plan's local steps on them.

Examples are clipped here, with the gradients that the owner's module computes; what comes out is clipped once more by
the client itself, which does not rely on this process for its bound.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from confide.base.arrays import Floats
from confide.base.errors import DataError, InputError
from confide.deploy.machines.own_training import shaped
from confide.deploy.node import client_data
from confide.privacy import monotone
from confide.problems.networks import tensors
from confide.problems.networks.network import CHECKED, Network
from confide.rounds.clipping import Clip
from confide.rounds.local import LocalTask, sgd


class Job(NamedTuple):
    """What a client tells its process of the plan and of its own TOML."""

    data: str
    weights: str | None
    length: int
    ridge: float | None  # None: the network's own, inside the step of its optimiser
    frozen: str
    step: float
    local_steps: int
    batch: int
    replacement: bool
    clip: tuple[str, float, str]


@dataclass(frozen=True)
class Fit:
    """A network's gradients, zero for the rows that fail a check, and for those on which the owner's loss raises.

    A row silences itself, and not the rows beside it: else one would move more than its part of a mini-batch.
    """

    network: Network

    @property
    def rho(self) -> float:
        return self.network.rho

    def dimension(self, features: int) -> int:
        return self.network.dimension(features)

    def loss(self, w: Floats, X: Floats, d: Floats) -> Floats:
        return self.network.loss(w, X, d)

    def gradients(self, w: Floats, X: Floats, d: Floats) -> Floats:
        bad, d = np.isnan(d), np.nan_to_num(d)
        try:
            found = self.network.gradients(w, X, d)
        except Exception:  # such as a token beyond an embedding
            found = np.concatenate([self._of_one(w, X[n : n + 1], d[n : n + 1]) for n in range(len(d))])
        return np.where(bad[:, None], 0.0, found) if bad.any() else found

    def _of_one(self, w: Floats, x: Floats, d: Floats) -> Floats:
        try:
            return self.network.gradients(w, x, d)
        except Exception as e:
            with suppress(Exception):  # of a standard error that the owner's module has closed
                traceback.print_exception(e)  # for the owner's file
            return np.zeros((1, len(w)))

    def metrics(self, w: Floats, X: Floats, d: Floats) -> dict[str, float]:
        return self.network.metrics(w, X, d)


class Trained:
    """A network on a client's samples.

    Attributes:
        bad: rows that count as nothing.  rows: of how many.

    Raises:
        InputError: the network or the files are not those of the plan; a `DataError` if it lies with the data.
    """

    def __init__(self, name: str, network: Network, job: Job) -> None:
        self._name, self._network = name, _of_plan(network, job)
        X, d = client_data.read(Path(job.data))
        fit = _fit(self._network, X, d)
        self.bad, self.rows = int((~fit).sum()), len(d)
        try:
            self._network.check(*_of_nobody(X.shape[1], self._network.classes))
        except InputError as e:  # how many features a row has is said by the data
            raise DataError(e.field, e.value, e.remedy) from None
        if self._network.optimizer is None:  # the rows stay in their places
            self._X, self._d = np.where(fit[:, None], X, 0.0), np.where(fit, d, np.nan)
        else:
            self._X, self._d = X[fit], d[fit]
        if len(self._d) < (1 if job.replacement else job.batch):
            remedy = f"there are only {len(self._d)} samples; use smaller batches or replacement = true"
            raise DataError("batch", job.batch, remedy)
        clip, fit_rows = Clip(*job.clip), Fit(self._network)
        self._task = LocalTask(fit_rows, job.step, job.local_steps, job.batch, job.replacement, clip, key=0)
        with suppress(Exception):  # what a framework compiles at first is not in a round; what fails, fails there
            self(self._network.start(), 0, {"key": 0})

    def __call__(self, weights: Floats, round: int, config: Mapping[str, Any], /) -> Floats:
        local = sgd if self._network.optimizer is None else self._network.local
        update = local(weights, self._X, self._d, self._task._replace(key=config["key"]))
        return shaped(self._name, update, weights.shape)


def _of_plan(network: Network, job: Job) -> Network:
    found = network.changed(rho=job.ridge)
    if job.weights is not None:
        given = tensors.read(job.weights, {**found.frozen, **found.initial})
        found.frozen = {name: given.get(name, a) for name, a in found.frozen.items()}
    if found.dimension(0) != job.length:
        remedy = f"trains {found.dimension(0)} numbers, the plan's network {job.length}"
        raise InputError("model", found.framework, remedy)
    if (found.optimizer is None) != (job.ridge is not None):
        which = "confide's own local steps: leave the optimiser out" if job.ridge is not None else "an optimiser"
        raise InputError("model.optimizer", found.optimizer, f"the plan was made for a network with {which}")
    if (tensors.digest(found.frozen) if found.frozen else "") != job.frozen:
        remedy = (
            "what of the network is not trained differs from the plan's; give weights = FILE.safetensors with those "
            "tensors, as they were when the plan was made"
        )
        raise InputError("weights", job.weights, remedy)
    return found


def _of_nobody(features: int, classes: int | None) -> tuple[Floats, Floats]:
    """Rows on which a network is tried: among its own a single one could have the whole client refused."""
    labels = np.arange(CHECKED, dtype=np.float64) % (CHECKED if classes is None else classes)
    return np.tile(1.0 - np.arange(features) % 2, (CHECKED, 1)), labels


def _fit(network: Network, X: Floats, d: Floats) -> NDArray[np.bool_]:
    """Rows that pass every check: within bounds (so finite), with a label of the network."""
    fit = monotone.within(X, d)
    if network.classes is not None:
        with np.errstate(invalid="ignore"):
            fit &= (d == np.floor(d)) & (d >= 0) & (d < network.classes)
    return fit
