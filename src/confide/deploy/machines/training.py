"""What a client computes in a round: here a built-in model on its own samples, in `own_training` its owner's function.

Whichever it is, the update that comes out is clipped: a client does not rely on others for its bound.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from confide.base.arrays import Floats
from confide.base.errors import DataError, InputError
from confide.base.validation import positive, positive_int
from confide.deploy.machines import own_training
from confide.plans.plan import Plan
from confide.plans.words import ConvexGlm
from confide.privacy import monotone
from confide.problems.models import GLM, Linear, Model, Regression, named
from confide.rounds.local import LocalTask, sgd, shared_update


class Trainer(Protocol):
    def __call__(self, weights: Floats, round: int, config: Mapping[str, Any], /) -> Floats:
        """The client's part of the sum: an update from these weights, which are its to change, within its bound."""


def fresh_key(round: int) -> int:
    """Batches that nobody can foresee; a test gives `randomness.key(seed, Purpose.BATCHES, round, unit, client)`."""
    return secrets.randbits(64)


def built_in(task: LocalTask, X: Floats, d: Floats, key: Callable[[int], int] = fresh_key) -> Trainer:
    """Local steps of `confide.rounds.local` on these samples.

    Args:
        task: model and settings; its key is replaced, round by round, by `key(round)`.
    """
    X, d = np.array(X, np.float64), np.array(d, np.float64)
    if X.ndim != 2 or d.shape != (len(X),) or not len(X):
        raise DataError("data", f"{X.shape} and {d.shape}", "must be one row of features and one target a sample")
    if not (np.isfinite(X).all() and np.isfinite(d).all()):
        raise DataError("data", "NaN or infinity", "must be finite; drop or fill in such samples")
    if task.clip is None:
        raise InputError("clip", None, "a deployed client bounds what it gives: 'example' or 'update'")
    positive("step", task.step)
    positive_int("local_steps", task.E)
    if positive_int("batch", task.batch) > len(X) and not task.replacement:
        remedy = f"there are only {len(X)} samples; use smaller batches or replacement = true"
        raise DataError("batch", task.batch, remedy)

    def train(weights: Floats, round: int, config: Mapping[str, Any], /) -> Floats:
        update, _ = shared_update(sgd, weights, X, d, task._replace(key=key(round)), fixed=True)
        return update

    return train


def of_plan(
    plan: Plan, unit: int, client: int, X: Floats, d: Floats, key: Callable[[int], int] = fresh_key,
    told: Callable[[int, int], None] = lambda bad, rows: None,
) -> Trainer:  # fmt: skip
    """The plan's built-in model on this client's samples.

    A row that fails a check keeps its place as a row of zeros, whose gradient is 0: it may silence itself, not the
    other rows, or one example would move more than its part of a mini-batch.

    Args:
        told: called with how many rows were taken for zeros, and of how many, if there are any.
    """
    task, X, d = _task(plan, unit, client), np.asarray(X, np.float64), np.asarray(d, np.float64)
    if X.ndim == 2 and d.shape == X.shape[:1]:  # `built_in` refuses others
        fit = _fit(plan, task.model, X, d)
        if not fit.all():
            told(int((~fit).sum()), len(d))
            X, d = np.where(fit[:, None], X, 0.0), np.where(fit, d, 0.0)
    return built_in(task, X, d, key)


def of_network(
    plan: Plan, unit: int, client: int, name: str, elsewhere: Trainer, key: Callable[[int], int] = fresh_key
) -> Trainer:
    """The plan's network, whose local steps are taken elsewhere, in a process of its own; clipped here once more.

    Args:
        elsewhere: told the `key` of each round's mini-batches.
    """
    a, own = plan.algorithm, plan.units[unit].clients[client]
    rho = Linear(a.model.ridge)  # all that is asked of the model here
    task = LocalTask(rho, a.step, own.local_steps, own.batch, a.replacement, a.clip, key=0)

    def train(weights: Floats, round: int, config: Mapping[str, Any], /) -> Floats:
        def step(w: Floats, X: Floats, d: Floats, task: LocalTask) -> Floats:
            update = elsewhere(w, round, {"key": task.key})
            own_training.largest_of(name, update)  # one that is not finite is told, and no update
            return update

        nothing = np.zeros((0, 0))
        update, _ = shared_update(step, weights, nothing, nothing, task._replace(key=key(round)), fixed=True)
        return update

    return train


def _fit(plan: Plan, model: Model, X: Floats, d: Floats) -> NDArray[np.bool_]:
    """Rows that pass every check: within `LARGEST` (so finite), with a label of the model, as smooth as declared."""
    fit, declared = monotone.within(X, d), plan.privacy.smoothness
    if isinstance(model, Regression):
        fit &= model.readable(d)
    if isinstance(plan.privacy.proof, ConvexGlm) and declared is not None and isinstance(model, GLM):
        with np.errstate(over="ignore", invalid="ignore"):
            fit &= model.smoothness_of_each(X) <= declared * (1 + 1e-12)
    return fit


def without_data(plan: Plan, unit: int, client: int) -> Trainer:
    """Zeros, for a client whose data fail a check as a whole, after the work that data would have made.

    So its time tells nothing. How long a train function of its owner's would have taken is not known.
    """
    model = plan.algorithm.model
    if model.features is None:
        return lambda weights, round, config: np.zeros(len(weights))
    task = _task(plan, unit, client)
    train = built_in(task, np.zeros((task.batch, model.features)), np.ones(task.batch))
    return lambda weights, round, config: np.zeros_like(train(weights, round, config))


def _task(plan: Plan, unit: int, client: int) -> LocalTask:
    a, own = plan.algorithm, plan.units[unit].clients[client]
    model = named(a.model.kind, a.model.ridge)
    if model is None:
        remedy = "is not built in; name your network or your train function, package.module:name"
        raise InputError("algorithm.model.kind", a.model.kind, remedy)
    return LocalTask(model, a.step, own.local_steps, own.batch, a.replacement, a.clip, key=0)
