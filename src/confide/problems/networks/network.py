"""A network as a model: one flat vector of what is trained, NumPy in and out, whatever framework computes.

Inside the framework numbers are float32, outside they are float64. This file needs NumPy alone.
"""

from __future__ import annotations

import fnmatch
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from confide.base.arrays import Floats
from confide.base.errors import InputError
from confide.base.randomness import below, choose, words
from confide.base.validation import number, positive_int, whole

if TYPE_CHECKING:
    from confide.problems.networks.built_in import Description
    from confide.rounds.local import LocalTask

Array = NDArray[Any]

CHUNK: Final = 256  # examples that are computed at once
CHUNK_BYTES: Final = 1 << 28  # of their gradients
SEEDS: Final = 2**32  # JAX's keys keep 32 bits of a seed
CHECKED: Final = 3  # examples on which a loss is tried
CLOSE: Final = 1e-2  # two ways to the same loss, in half precision perhaps


class Tensor(NamedTuple):
    """One array of a network's weights."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class Network(ABC):
    """A `Model` whose gradients a framework computes.

    Attributes:
        rho: strength of the regulariser rho |w|^2 of what is trained.
        classes: labels are whole numbers below it, given to the loss as integers; None where they are floats.
        tensors: what is trained, sorted by name: their order in w.
        optimizer: of a local step, or None: the paper's SGD.
        initial: what is trained, as it is at first, by name.
        frozen: arrays that stay as they are, by name.
        description: of a built-in network, which an engine may know a faster way for; None of any other.
    """

    framework: ClassVar[str]
    optimizers: ClassVar[str]  # in words: what an optimiser is there
    name: ClassVar[str] = "network"

    def __init__(
        self,
        trained: Mapping[str, Array],
        frozen: Mapping[str, Array],
        *,
        classes: int | None,
        rho: float,
        weights: str | Path | None,
        optimizer: Any,
    ) -> None:
        """With the initial weights, which a file may replace, frozen ones too."""
        self.classes = None if classes is None else whole("model.classes", classes, 2)
        self.rho = number("problem.rho", rho, 0.0)
        self.optimizer = optimizer
        if not trained:
            raise InputError("model.parameters", "none", "nothing is trained: give arrays of floats that may change")
        self.description: Description | None = None
        self.tensors = tuple(Tensor(n, tuple(trained[n].shape)) for n in sorted(trained))
        self.initial = {t.name: trained[t.name] for t in self.tensors}
        self.frozen = dict(frozen)
        if weights is not None:
            self._read(weights)

    def _read(self, weights: str | Path) -> None:
        from confide.problems.networks.tensors import fitting

        found = fitting(weights, self.initial, self.frozen)
        self.initial = {name: found[name] for name in self.initial}
        self.frozen = {name: found.get(name, a) for name, a in self.frozen.items()}

    def changed(self, *, weights: str | Path | None = None, rho: float | None = None) -> Self:
        """Another one like it: with the initial weights of a file, or another regulariser."""
        other = copy(self)
        for name in [n for n in vars(other) if isinstance(getattr(type(other), n, None), cached_property)]:
            del vars(other)[name]
        if weights is not None:
            other._read(weights)
        if rho is not None:
            other.rho = number("problem.rho", rho, 0.0)
        return other

    @abstractmethod
    def flat_loss(self) -> Callable[..., Any]:
        """In the framework, pure: (w of shape (M,), X of shape (B, F), d of shape (B,)) -> mean loss of the batch.

        The regulariser is not in it. A fourth argument is `held`, which a compiled program should be handed and not
        have inside; without it the loss takes it by itself, on the framework's default device.
        """

    @property
    @abstractmethod
    def held(self) -> dict[str, Any]:
        """What is frozen, in the framework."""

    @abstractmethod
    def _batch(self, w: Array, X: Array, d: Array) -> Array:
        """What the user's loss says of a batch, whatever shape that has."""

    @abstractmethod
    def _losses(self, w: Array, X: Array, d: Array) -> Array:
        """Of each example alone, (B,)."""

    @abstractmethod
    def _gradients(self, w: Array, X: Array, d: Array) -> Array:
        """Of each example alone, (B, M)."""

    @abstractmethod
    def _metrics(self, w: Array, X: Array, d: Array) -> dict[str, float]:
        """The user's, of a batch; none where there are none."""

    @abstractmethod
    def _stepper(self, w: Array) -> Callable[[Array, Array], Array]:
        """Of the optimiser with a state that begins anew: (w, gradient) -> the next w."""

    def dimension(self, features: int) -> int:
        return sum(tensor.size for tensor in self.tensors)

    def start(self) -> Floats:
        """The initial weights, (M,)."""
        return np.concatenate([np.asarray(self.initial[t.name], np.float64).ravel() for t in self.tensors])

    def named(self, w: Array) -> dict[str, Array]:
        """The trained tensors of a flat vector, by name, as views."""
        M = self.dimension(0)
        if w.shape != (M,):
            raise InputError("weights", w.shape, f"the network has {M} numbers")
        ends = np.cumsum([t.size for t in self.tensors])
        return {t.name: w[end - t.size : end].reshape(t.shape) for t, end in zip(self.tensors, ends, strict=True)}

    def whole(self, w: Array) -> dict[str, Array]:
        """All tensors with these weights, in their own types: what a file of the network holds."""
        return self.frozen | {name: a.astype(self.initial[name].dtype) for name, a in self.named(w).items()}

    def labels(self, d: Array) -> Array:
        """As the loss is given them."""
        return d.astype(np.float32 if self.classes is None else np.int32)

    def loss(self, w: Floats, X: Floats, d: Floats) -> Floats:
        found = [self._losses(*part) for part in self._parts(w, X, d, CHUNK)]
        return np.concatenate(found).astype(np.float64) + self.rho * float(w @ w)

    def gradients(self, w: Floats, X: Floats, d: Floats) -> Floats:
        at_once = max(1, min(CHUNK, CHUNK_BYTES // (4 * len(w))))
        return np.concatenate([self._gradients(*part) for part in self._parts(w, X, d, at_once)]).astype(np.float64)

    def metrics(self, w: Floats, X: Floats, d: Floats) -> dict[str, float]:
        """The user's, each a mean over examples, and the loss without its regulariser."""
        total: dict[str, float] = {}
        for part in self._parts(w, X, d, CHUNK):
            share = len(part[1]) / len(X)
            for name, value in (self._metrics(*part) | {"loss": float(np.mean(self._losses(*part)))}).items():
                total[name] = total.get(name, 0.0) + share * value
        return total

    def _parts(self, w: Floats, X: Floats, d: Floats, rows: int) -> Iterator[tuple[Array, Array, Array]]:
        few = w.astype(np.float32)
        for first in range(0, len(X), rows):
            part = slice(first, first + rows)
            yield few, X[part].astype(np.float32), self.labels(d[part])

    def local(self, w: Floats, X: Floats, d: Floats, task: LocalTask) -> Floats:
        """The local step of the network's own optimiser, on the mini-batches that the paper's SGD would draw."""
        draws = words(task.key, task.E * task.batch).reshape(task.E, task.batch)
        phi, step = w.astype(np.float32), self._stepper(w.astype(np.float32))
        with np.errstate(over="ignore", invalid="ignore"):
            for row in draws:
                b = below(row, len(d)) if task.replacement else choose(row, len(d))
                gradient = self.gradients(phi.astype(np.float64), X[b], d[b]).mean(axis=0) + 2.0 * self.rho * phi
                phi = step(phi, gradient.astype(np.float32))
        return phi - w

    def check_labels(self, d: Floats) -> None:
        """Refuse labels that are no classes."""
        if self.classes is None:
            return
        wrong = d[(d != np.floor(d)) | (d < 0) | (d >= self.classes)]
        if len(wrong):
            remedy = f"labels are the whole numbers 0 to {self.classes - 1} of model.classes"
            raise InputError("problem.label", float(wrong[0]), remedy)

    def check(self, X: Floats, d: Floats) -> None:
        """Refuse a loss that a round could not use, on the data that it will be given.

        Raises:
            InputError: it is not one finite number, not the same when asked again, or not the mean over examples.
        """
        n = min(CHECKED, len(X))
        w, rows, labels = next(self._parts(self.start(), X[:n], d[:n], n))
        self._scalar(w, rows[:1], labels[:1])
        whole_batch = self._scalar(w, rows, labels)
        if self._scalar(w, rows, labels) != whole_batch:
            remedy = (
                "is another number when it is asked again with the same batch: leave out dropout and whatever else is "
                "random (torch: module.eval(), or p = 0)"
            )
            raise InputError("model.loss", whole_batch, remedy)
        try:
            mean = float(np.mean(self._losses(w, rows, labels)))
            finite = bool(np.isfinite(self._gradients(w, rows, labels)).all())
        except Exception as e:
            raise InputError(
                "model.loss", type(e).__name__, f"cannot be taken example by example: {first_line(e)}"
            ) from e
        if abs(mean - whole_batch) > CLOSE * max(1.0, abs(mean)):
            remedy = (
                f"must be the mean of the losses of its examples, which is {mean:g}: use a mean, not a sum, and no "
                "layer that lets one example see another (batch normalisation)"
            )
            raise InputError("model.loss", whole_batch, remedy)
        if not finite:
            raise InputError("model.loss", whole_batch, "has a gradient that is not finite at the initial weights")
        if self.optimizer is None:
            return
        try:
            self._stepper(w)(w, np.zeros_like(w))
        except Exception as e:
            remedy = f"cannot make a step: {first_line(e)}; it must be {self.optimizers}"
            raise InputError("model.optimizer", type(e).__name__, remedy) from e

    def check_metrics(self, X: Floats, d: Floats) -> None:
        """Refuse metrics that the held-out rows cannot be given to: a run asks for them after its rounds."""
        try:
            self._metrics(*next(self._parts(self.start(), X, d, CHUNK)))
        except Exception as e:
            remedy = f"must give one number for each name, the mean over the examples: {first_line(e)}"
            raise InputError("model.metrics", type(e).__name__, remedy) from e

    def _scalar(self, w: Array, X: Array, d: Array) -> float:
        try:
            found = self._batch(w, X, d)
        except InputError:
            raise
        except Exception as e:
            remedy = f"raised on a batch of {len(X)} rows of {X.shape[1]} features: {first_line(e)}"
            if self.classes is None:
                remedy += "; labels are floats here: say classes = C where they are the whole numbers below C"
            raise InputError("model.loss", type(e).__name__, remedy) from e
        if found.dtype == object:
            kind = type(found.flat[0]).__name__
            raise InputError("model.loss", kind, f"must return one number as an array of {self.framework}")
        if found.shape != ():
            remedy = f"has this shape for a batch of {len(X)} examples; it must be one number, their mean loss"
            raise InputError("model.loss", found.shape, remedy)
        if not np.issubdtype(found.dtype, np.floating):
            raise InputError("model.loss", str(found.dtype), "must be a float")
        if not np.isfinite(found):
            raise InputError("model.loss", float(found), "is not finite at the initial weights")
        return float(found)


def chosen(patterns: Sequence[str] | None, names: Sequence[str], by_default: Sequence[str]) -> list[str]:
    """The names that are trained.

    >>> chosen(["head.*"], ["body.w", "head.w", "head.b"], [])
    ['head.w', 'head.b']
    """
    if patterns is None:
        return list(by_default)
    if isinstance(patterns, str) or not all(isinstance(p, str) for p in patterns):
        raise InputError("model.trainable", patterns, "must be a list of name patterns, such as ['head.*']")
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            some = ", ".join(sorted(names)[:8]) + (", ..." if len(names) > 8 else "")
            raise InputError("model.trainable", pattern, f"matches no parameter; there are {some}")
    return [name for name in names if any(fnmatch.fnmatchcase(name, p) for p in patterns)]


def first_line(error: Exception) -> str:
    """What a framework says; the rest of its words are a traceback."""
    return next(iter(str(error).strip().splitlines()), "no word about it")


def seed_of(seed: object) -> int:
    return whole("model.seed", seed, 0, SEEDS - 1)


def padded(n: int) -> int:
    """The next power of two: as many compiled programs as there are of those, not one for every batch size.

    >>> [padded(n) for n in (1, 2, 3, 200)]
    [1, 2, 4, 256]
    """
    return 1 << (positive_int("rows", n) - 1).bit_length()


STATISTICS: Final = (
    "keeps statistics of the data beside its weights: they would be neither clipped nor noised, and what it says of "
    "one example depends on others; use GroupNorm or LayerNorm instead"
)
