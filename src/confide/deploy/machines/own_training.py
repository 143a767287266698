"""A train function of the client's owner: loaded by its name, called, and what it returns checked and clipped.

Little is imported here: this is all of confide that the process of such a function needs.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from confide.base.arrays import Floats
from confide.base.entry_points import loaded
from confide.base.errors import InputError, RunError
from confide.base.validation import positive
from confide.rounds.clipping import Clip, clip

if TYPE_CHECKING:
    from confide.deploy.machines.training import Trainer

FAR: Final = 1e100  # a number of an update that is no step any more
LOST: Final = "one is beyond 1e100, and the bound leaves nothing of those beside it"
_log = logging.getLogger(__name__)


def entry_point(name: str, bound: Clip, step: float) -> Trainer:
    """The owner's own `train(weights, round, config) -> update`, named "package.module:function", in this process."""
    _largest(name, bound, step)  # before its module is loaded
    return within(name, bound, step, called(name))


def within(name: str, bound: Clip, step: float, own: Trainer) -> Trainer:
    """The owner's own training, whose updates are finite, and clipped to mu B as a whole.

    Its errors name the entry point; they are for this machine's log.
    """
    largest = _largest(name, bound, step)

    def train(weights: Floats, round: int, config: Mapping[str, Any], /) -> Floats:
        update = own(weights, round, config)
        if largest_of(name, update) > FAR:
            _log.warning("numbers of the update of round %d end as zero: %s", round, LOST)
        return clip(update, largest, bound.norm)

    return train


def check_clip(name: str, bound: Clip) -> None:
    if bound.kind != "update":
        raise InputError("clip", bound.kind, f"{name} is a step of its own, which is clipped as a whole: use 'update'")


def _largest(name: str, bound: Clip, step: float) -> float:
    check_clip(name, bound)
    return bound.update_bound(positive("step", step))


def largest_of(name: str, update: Floats) -> float:
    """The largest absolute number; beyond `FAR` it leaves nothing of those beside it.

    Raises:
        RunError: one is not finite.
    """
    found = float(np.maximum(update.max(initial=0.0), -update.min(initial=0.0)))
    if not found < np.inf:  # nor is NaN
        raise RunError(f"{name} returned NaN or infinity: the training diverged")
    return found


def called(name: str) -> Trainer:
    """What the owner's function returns, as doubles of the right shape; nothing bounds them yet."""
    call = _loaded(name)

    def train(weights: Floats, round: int, config: Mapping[str, Any], /) -> Floats:
        shape = weights.shape
        try:
            update = call(weights, round, config)
        except (Exception, SystemExit) as e:
            raise RunError(f"{name} raised {type(e).__name__} in round {round}") from e
        return shaped(name, update, shape)

    return train


def _loaded(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = loaded("train", name, "the client's TOML")
    if not callable(found):
        raise InputError("train", name, f"is a {type(found).__name__}, not a function")
    try:
        inspect.signature(found).bind(None, None, None)
    except TypeError:
        raise InputError("train", name, "must take three arguments: weights, round, config") from None
    except ValueError:
        pass  # a compiled function without a signature
    return found


def shaped(name: str, update: object, shape: tuple[int, ...]) -> Floats:
    """What a function returned, as an update of this shape.

    Raises:
        RunError: it is none.
    """
    if not isinstance(update, np.ndarray) or not np.issubdtype(update.dtype, np.floating):
        got = f"an array of {update.dtype}" if isinstance(update, np.ndarray) else f"a {type(update).__name__}"
        raise RunError(f"{name} returned {got}; an update is a NumPy array of floats")
    if update.shape != shape:
        raise RunError(f"{name} returned shape {update.shape}; the weights have {shape}")
    return update.astype(np.float64, copy=False)
