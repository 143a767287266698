"""What a client computes in a round: a built-in model on its own samples, or a function of its owner's.

Whichever it is, the update that comes out is clipped here: a client does not rely on others for its bound.
"""

from __future__ import annotations

import inspect
import re
import secrets
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from confide.base.arrays import Floats
from confide.base.errors import DataError, InputError, RunError
from confide.base.validation import positive, positive_int
from confide.plans.plan import Plan
from confide.plans.words import ConvexGlm
from confide.privacy import monotone
from confide.problems.models import GLM, MODELS, Logistic, Model
from confide.rounds.clipping import Clip, clip
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


def _fit(plan: Plan, model: Model, X: Floats, d: Floats) -> NDArray[np.bool_]:
    """Rows that pass every check: within `LARGEST` (so finite), with a label of the model, as smooth as declared."""
    fit, declared = monotone.within(X, d), plan.privacy.smoothness
    if isinstance(model, Logistic):
        fit &= np.abs(d) == 1.0
    if isinstance(plan.privacy.proof, ConvexGlm) and declared is not None and isinstance(model, GLM):
        with np.errstate(over="ignore", invalid="ignore"):
            fit &= model.smoothness_of_each(X) <= declared * (1 + 1e-12)
    return fit


def without_data(plan: Plan, unit: int, client: int) -> Trainer:
    """Zeros, for a client whose data fail a check as a whole, after the work that data would have made.

    So its time tells nothing. How long a train function of its owner's would have taken is not known.
    """
    if plan.algorithm.model.kind not in MODELS:
        return lambda weights, round, config: np.zeros(len(weights))
    task = _task(plan, unit, client)
    train = built_in(task, np.zeros((task.batch, plan.algorithm.model.length)), np.ones(task.batch))
    return lambda weights, round, config: np.zeros_like(train(weights, round, config))


def _task(plan: Plan, unit: int, client: int) -> LocalTask:
    a, own = plan.algorithm, plan.units[unit].clients[client]
    if a.model.kind not in MODELS:
        remedy = "is not built in; name your train function, package.module:function"
        raise InputError("algorithm.model.kind", a.model.kind, remedy)
    model = MODELS[a.model.kind](a.model.ridge)
    return LocalTask(model, a.step, own.local_steps, own.batch, a.replacement, a.clip, key=0)


def entry_point(name: str, bound: Clip, step: float) -> Trainer:
    """The owner's own `train(weights, round, config) -> update`, named "package.module:function".

    What it returns is clipped to mu B as a whole. Its errors name the entry point; they are for this machine's log.
    """
    if bound.kind != "update":
        raise InputError("clip", bound.kind, f"{name} is a step of its own, which is clipped as a whole: use 'update'")
    largest, call = bound.update_bound(positive("step", step)), _loaded(name)

    def train(weights: Floats, round: int, config: Mapping[str, Any], /) -> Floats:
        shape = weights.shape
        try:
            update = call(weights, round, config)
        except (Exception, SystemExit) as e:
            raise RunError(f"{name} raised {type(e).__name__} in round {round}") from e
        return clip(_checked(name, update, shape), largest, bound.norm)

    return train


def _loaded(name: str) -> Callable[..., Any]:
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", name):
        raise InputError("train", name, "must be written package.module:function")
    module, _, function = name.partition(":")
    try:
        found = getattr(import_module(module), function)
    except ModuleNotFoundError as e:
        what = f"there is no module {e.name!r}" if e.name else "a module is missing"
        raise InputError("train", name, f"{what}; install it, or put its folder on PYTHONPATH") from None
    except AttributeError:
        raise InputError("train", name, f"module {module!r} could be loaded but gives no {function!r}") from None
    except (ImportError, SyntaxError) as e:
        raise InputError("train", name, f"loading {module!r} raised {type(e).__name__}: {e}") from e
    except (Exception, SystemExit) as e:  # it may have looked at the data
        raise DataError("train", name, f"loading {module!r} raised {type(e).__name__}: {e}") from e
    if not callable(found):
        raise InputError("train", name, f"is a {type(found).__name__}, not a function")
    try:
        inspect.signature(found).bind(None, None, None)
    except TypeError:
        raise InputError("train", name, "must take three arguments: weights, round, config") from None
    except ValueError:
        pass  # a compiled function without a signature
    return found  # type: ignore[no-any-return]


def _checked(name: str, update: object, shape: tuple[int, ...]) -> Floats:
    if not isinstance(update, np.ndarray) or not np.issubdtype(update.dtype, np.floating):
        got = f"an array of {update.dtype}" if isinstance(update, np.ndarray) else f"a {type(update).__name__}"
        raise RunError(f"{name} returned {got}; an update is a NumPy array of floats")
    if update.shape != shape:
        raise RunError(f"{name} returned shape {update.shape}; the weights have {shape}")
    found = update.astype(np.float64, copy=False)
    if not np.isfinite(found).all():
        raise RunError(f"{name} returned NaN or infinity: the training diverged")
    return found
