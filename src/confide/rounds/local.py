"""One client's local update, in NumPy: used by the reference round and by deployed clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from confide.base.arrays import Floats
from confide.base.errors import InputError
from confide.base.randomness import below, choose, words
from confide.problems.models import Model
from confide.rounds.clipping import Clip, clip


class LocalTask(NamedTuple):
    """What a client is told: its settings, and the key of its random stream for this round."""

    model: Model
    step: float  # mu
    E: int
    batch: int
    replacement: bool
    clip: Clip | None
    key: int
    at: tuple[int, int, int] = (0, 0, 0)  # round, unit and client


LocalStep = Callable[[Floats, Floats, Floats, LocalTask], Floats]  # (w, X, d, task) -> update


@runtime_checkable
class SideBySide(Protocol):
    """A local step that can take several clients' steps at once."""

    def begin(self, round: int, models: Mapping[int, Floats], clients: Mapping[int, Sequence[int]]) -> None:
        """What it will be asked for in this round, by unit: the model that is handed out, and who trains from it."""


def sgd(w: Floats, X: Floats, d: Floats, task: LocalTask) -> Floats:
    """E steps of size mu/E, each on a fresh mini-batch; returns the update w_{p,k,E} - w_{p,i-1}  (3), (6)."""
    model, eta = task.model, task.step / task.E
    draws = words(task.key, task.E * task.batch).reshape(task.E, task.batch)
    phi = w.copy()  # w_{p,k,0} = w_{p,i-1}
    with np.errstate(over="ignore", invalid="ignore"):  # `clip` makes zero of what is not finite
        for e in range(task.E):
            b = below(draws[e], len(d)) if task.replacement else choose(draws[e], len(d))
            gradients = model.gradients(phi, X[b], d[b])
            if task.clip is not None and task.clip.kind == "example":
                gradients = clip(gradients, task.clip.bound, task.clip.norm)
            phi = phi - eta * (gradients.mean(axis=0) + 2.0 * model.rho * phi)  # (3)
    return phi - w


def bounded(local: LocalStep, w: Floats, X: Floats, d: Floats, task: LocalTask) -> Floats:
    """Any local step, its whole update clipped to mu B where the clip asks for that."""
    update = local(w, X, d, task)
    if task.clip is None or task.clip.kind == "example":  # the step clips its gradients
        return update
    if task.clip.kind == "update":
        return clip(update, task.clip.update_bound(task.step), task.clip.norm)
    raise InputError("algorithm.clip", task.clip.kind, "is not taught to the local step, which would clip nothing")


def shared_update(
    local: LocalStep, handed_out: Floats, X: Floats, d: Floats, task: LocalTask, fixed: bool
) -> tuple[Floats, float]:
    """What a client gives into the sum, and how much of the model its regulariser takes away where the server does it.

    In fixed point with clipped examples only the data's part, at most mu B, is encoded and summed; the server adds the
    decay. Everywhere else the update is summed whole and the second number is 0.
    """
    update = bounded(local, handed_out, X, d, task)
    if not fixed or task.clip is None or task.clip.kind != "example":
        return update, 0.0
    gone = 1.0 - decay(task)
    return clip(update + gone * handed_out, task.clip.update_bound(task.step), task.clip.norm), gone


def without_data(handed_out: Floats, task: LocalTask, fixed: bool) -> tuple[Floats, float]:
    """The same of a client that gives no data: zeros, and what its regulariser takes away where no clip bounds that."""
    nothing = np.zeros(len(handed_out))
    if task.clip is not None and task.clip.kind == "update":
        return nothing, 0.0
    gone = 1.0 - decay(task)
    return (nothing, gone) if fixed else (-gone * handed_out, 0.0)


def decay(task: LocalTask) -> float:
    """(1 - 2 rho mu/E)^E: what the regulariser alone leaves of w. The rest of the update is the data's part."""
    return remaining(task.model.rho, task.step, task.E)


def remaining(rho: float, step: float, E: int) -> float:
    """The same, for a server that knows a client's settings from the plan."""
    return float((1.0 - 2.0 * rho * step / E) ** E)
