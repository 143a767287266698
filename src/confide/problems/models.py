"""Linear, logistic and softmax regression with the paper's regulariser rho |w|^2.

The first two are generalised linear: the loss of a sample (u, d) is ``l(u'w, d) + rho |w|^2`` and its gradient
``l'(u'w, d) u + 2 rho w``, so one function of the margin is all that tells them apart. Softmax has a margin for every
class.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, TypeGuard, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from confide.base.arrays import Bools, Floats, Ints
from confide.base.errors import InputError
from confide.base.lazy import lazy
from confide.base.validation import number, one_of, whole

if TYPE_CHECKING:
    from confide.problems.networks.constructors import jax as jax
    from confide.problems.networks.constructors import save as save
    from confide.problems.networks.constructors import torch as torch


@runtime_checkable
class Model(Protocol):
    """What a round needs to know of a model: gradients, example by example, and the regulariser."""

    @property
    def rho(self) -> float:
        """Strength of the regulariser rho |w|^2."""

    def dimension(self, features: int) -> int:
        """Length of w for this many features."""

    def loss(self, w: Floats, X: Floats, d: Floats) -> Floats:
        """Loss of each example, the regulariser included, shape (samples,)."""

    def gradients(self, w: Floats, X: Floats, d: Floats) -> Floats:
        """Gradient of each example WITHOUT the regulariser (that part is never clipped), (samples, M)."""

    def metrics(self, w: Floats, X: Floats, d: Floats) -> dict[str, float]:
        """What a user wants to read on held-out data; the first is the `test_metric` of a run."""


@runtime_checkable
class Started(Protocol):
    """A model with initial weights of its own; one without begins at zero."""

    def start(self) -> Floats:
        """w_0, shape (M,), the same in every call."""


@dataclass(frozen=True)
class Regression(ABC):
    """A loss of one margin u'w or several: what `Linear`, `Logistic` and `Softmax` share."""

    rho: float = 0.0
    curvature_bound: ClassVar[float]  # the least c for which every loss is (c |u|^2 + 2 rho)-smooth, for any label, w

    def __post_init__(self) -> None:
        number("problem.rho", self.rho, 0.0)

    @property
    @abstractmethod
    def labels(self) -> str:
        """What a label must be, in words."""

    @abstractmethod
    def readable(self, d: Floats) -> Bools:
        """Which labels are so."""

    @abstractmethod
    def dimension(self, features: int) -> int:
        """As in `Model`."""

    @abstractmethod
    def features(self, length: int) -> int:
        """With which w has this length.

        Raises:
            InputError: there is no such number.
        """

    @abstractmethod
    def loss(self, w: Floats, X: Floats, d: Floats) -> Floats:
        """As in `Model`."""

    @abstractmethod
    def gradients(self, w: Floats, X: Floats, d: Floats) -> Floats:
        """As in `Model`."""

    @abstractmethod
    def mean_gradient(self, w: Floats, X: Floats, d: Floats, weights: Floats) -> Floats:
        """weights' `gradients`, without the gradient of each example."""

    @abstractmethod
    def predict(self, w: Floats, X: Floats) -> Floats:
        """What a user wants to know of new samples, one row each."""

    @abstractmethod
    def metrics(self, w: Floats, X: Floats, d: Floats) -> dict[str, float]:
        """As in `Model`."""

    def smoothness(self, X: Floats) -> float:
        """delta: every sampled gradient is delta-Lipschitz, delta = c max |u|^2 + 2 rho  (14)."""
        return float(np.max(self.smoothness_of_each(X)))

    def smoothness_of_each(self, X: Floats) -> Floats:
        """The same, row by row."""
        squares = np.einsum("nm,nm->n", X, X, dtype=np.float64)  # X may be float32
        return np.asarray(self.curvature_bound * squares + 2 * self.rho)


@dataclass(frozen=True)
class GLM(Regression):
    """Shared by `Linear` and `Logistic`; l is the loss of a margin z = u'w."""

    name: ClassVar[str]

    @property
    def labels(self) -> str:
        return "numbers"

    def readable(self, d: Floats) -> Bools:
        return np.isfinite(d)

    @abstractmethod
    def link(self, z: Floats, d: Floats) -> Floats:
        """l(z, d)"""

    @abstractmethod
    def slope(self, z: Floats, d: Floats) -> Floats:
        """l'(z, d), the derivative in the margin."""

    @abstractmethod
    def curvature(self, z: Floats, d: Floats) -> Floats:
        """l''(z, d)"""

    def dimension(self, features: int) -> int:
        return features

    def features(self, length: int) -> int:
        return length

    def loss(self, w: Floats, X: Floats, d: Floats) -> Floats:
        return self.link(X @ w, d) + self.rho * float(w @ w)

    def gradients(self, w: Floats, X: Floats, d: Floats) -> Floats:
        return self.slope(X @ w, d)[:, None] * X

    def mean_gradient(self, w: Floats, X: Floats, d: Floats, weights: Floats) -> Floats:
        return X.T @ (weights * self.slope(X @ w, d))

    def hessian(self, w: Floats, X: Floats, d: Floats, weights: Floats) -> Floats:
        """Weighted Hessian of the data part plus 2 rho I (weights sum to 1)."""
        return (X * (weights * self.curvature(X @ w, d))[:, None]).T @ X + 2 * self.rho * np.eye(X.shape[1])


@dataclass(frozen=True)
class Linear(GLM):
    """Squared loss (d - u'w)^2 + rho |w|^2; no 1/2, so the gradient carries a factor 2.

    >>> Linear(rho=0.1).gradients(np.zeros(1), np.ones((1, 1)), np.ones(1))
    array([[-2.]])
    """

    name: ClassVar[str] = "linear"
    curvature_bound: ClassVar[float] = 2.0

    def link(self, z: Floats, d: Floats) -> Floats:
        return (d - z) ** 2

    def slope(self, z: Floats, d: Floats) -> Floats:
        return 2.0 * (z - d)

    def curvature(self, z: Floats, d: Floats) -> Floats:
        return np.full_like(z, 2.0)

    def predict(self, w: Floats, X: Floats) -> Floats:
        return X @ w

    def metrics(self, w: Floats, X: Floats, d: Floats) -> dict[str, float]:
        return {"mse": float(np.mean((d - X @ w) ** 2))}


@dataclass(frozen=True)
class Logistic(GLM):
    """log(1 + exp(-d u'w)) + rho |w|^2 for labels d in {-1, +1}.

    >>> Logistic().loss(np.zeros(1), np.ones((1, 1)), np.ones(1)).round(4)
    array([0.6931])
    """

    name: ClassVar[str] = "logistic"
    curvature_bound: ClassVar[float] = 0.25

    @property
    def labels(self) -> str:
        return "-1 and +1"

    def readable(self, d: Floats) -> Bools:
        return np.asarray(np.abs(d) == 1.0)

    def link(self, z: Floats, d: Floats) -> Floats:
        return np.logaddexp(0.0, -d * z)

    def slope(self, z: Floats, d: Floats) -> Floats:
        return -d * _sigmoid(-d * z)

    def curvature(self, z: Floats, d: Floats) -> Floats:
        s = _sigmoid(z)
        return s * (1.0 - s)

    def predict(self, w: Floats, X: Floats) -> Floats:
        """Probability of the label +1."""
        return _sigmoid(X @ w)

    def metrics(self, w: Floats, X: Floats, d: Floats) -> dict[str, float]:
        z = X @ w
        return {
            "error": float(np.mean(np.where(z > 0, 1.0, -1.0) != d)),
            "auc": auc(z, d > 0),
            "log_loss": float(np.mean(np.logaddexp(0.0, -d * z))),
        }


@dataclass(frozen=True)
class Softmax(Regression):
    """logsumexp(W u) - (W u)_d + rho |w|^2 for labels d in {0, ..., C-1}, C classes.

    w holds a row of F numbers a class, one row after the other: W = w.reshape(C, F). The gradient of a sample is
    (p - e_d) u', p = softmax(W u), and its Hessian (diag(p) - p p') x u u'. The largest eigenvalue of the first factor
    is at most 1/2: for |v| = 1, v'(diag(p) - p p')v is the variance of numbers v_c drawn with p, so at most a quarter
    of their squared range (Popoviciu), and (v_a - v_b)^2 <= 2 (v_a^2 + v_b^2) <= 2. It is reached at p = (1/2, 1/2).

    Adding one vector to all rows changes no probability: only rho > 0 makes the optimum unique.

    >>> Softmax(classes=2).loss(np.zeros(2), np.ones((1, 1)), np.ones(1)).round(4)
    array([0.6931])
    """

    classes: int = field(kw_only=True)
    curvature_bound: ClassVar[float] = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("problem.classes", self.classes, 2)

    @property
    def name(self) -> str:
        return f"softmax:{self.classes}"

    @property
    def labels(self) -> str:
        return f"whole numbers from 0 to {self.classes - 1}"

    def readable(self, d: Floats) -> Bools:
        with np.errstate(invalid="ignore"):
            return np.asarray((d >= 0.0) & (d < self.classes) & (d == np.floor(d)))

    def dimension(self, features: int) -> int:
        return self.classes * features

    def features(self, length: int) -> int:
        if length % self.classes:
            raise InputError("algorithm.model.length", length, f"must be a multiple of the {self.classes} classes")
        return length // self.classes

    def loss(self, w: Floats, X: Floats, d: Floats) -> Floats:
        return self._surprise(self._margins(w, X), d) + self.rho * float(w @ w)

    def gradients(self, w: Floats, X: Floats, d: Floats) -> Floats:
        return np.asarray((self._off(w, X, d)[:, :, None] * X[:, None, :]).reshape(len(X), -1))

    def mean_gradient(self, w: Floats, X: Floats, d: Floats, weights: Floats) -> Floats:
        return np.asarray(((weights[:, None] * self._off(w, X, d)).T @ X).ravel())

    def hessian_times(self, w: Floats, X: Floats, weights: Floats, v: Floats) -> Floats:
        """The weighted Hessian of the data part, times v."""
        p, change = self.predict(w, X), self._margins(v, X)
        turned = p * (change - np.einsum("nc,nc->n", p, change)[:, None])
        return np.asarray(((weights[:, None] * turned).T @ X).ravel())

    def predict(self, w: Floats, X: Floats) -> Floats:
        """Probability of every class, (samples, C)."""
        z = self._margins(w, X)
        e = np.exp(z - z.max(axis=1, keepdims=True))  # never overflows
        return np.asarray(e / e.sum(axis=1, keepdims=True))

    def metrics(self, w: Floats, X: Floats, d: Floats) -> dict[str, float]:
        z = self._margins(w, X)
        return {"error": float(np.mean(z.argmax(axis=1) != d)), "log_loss": float(np.mean(self._surprise(z, d)))}

    def _margins(self, w: Floats, X: Floats) -> Floats:
        return X @ w.reshape(self.classes, -1).T

    def _off(self, w: Floats, X: Floats, d: Floats) -> Floats:
        """p - e_d, one row a sample."""
        off = self.predict(w, X)
        off[np.arange(len(d)), _whole(d)] -= 1.0
        return off

    def _surprise(self, z: Floats, d: Floats) -> Floats:
        """-log p_d"""
        highest = z.max(axis=1)
        spread = np.log(np.exp(z - highest[:, None]).sum(axis=1))
        return np.asarray(spread + (highest - z[np.arange(len(d)), _whole(d)]))


BuiltIn = Linear | Logistic | Softmax
NAMES: Final = (Linear.name, Logistic.name, "softmax:CLASSES")
KEYS: Final = (Linear.name, Logistic.name, "softmax")  # of a config
OWN: Final = "own"  # in a plan and on the command line: the model of a train function that only the clients have


def named(name: str, rho: float = 0.0) -> BuiltIn | None:
    """The model of one of the `NAMES`; None where there is none.

    >>> named("softmax:10")
    Softmax(rho=0.0, classes=10)
    """
    if name in (Linear.name, Logistic.name):
        return Linear(rho) if name == Linear.name else Logistic(rho)
    kind, colon, classes = name.partition(":")
    if kind == "softmax" and colon and re.fullmatch("[1-9][0-9]{0,8}", classes) and int(classes) > 1:
        return Softmax(rho, classes=int(classes))
    return None


def chosen(key: str, rho: float, classes: int | None) -> BuiltIn:
    """The model that a config names in `problem.model`, of so many classes where it has any.

    Raises:
        InputError: there is no such model, or it has no classes.
    """
    if one_of("problem.model", key, KEYS) == "softmax":
        return Softmax(rho, classes=classes)  # type: ignore[arg-type]  # None is refused there
    if classes is not None:
        raise InputError("problem.classes", classes, 'only model = "softmax" has classes; leave it out')
    return Linear(rho) if key == Linear.name else Logistic(rho)


def is_built_in(model: Model) -> TypeGuard[BuiltIn]:
    """Whether it is confide's own, and not a model that only resembles one."""
    return type(model) in (Linear, Logistic, Softmax)


def auc(score: Floats, positive: NDArray[np.bool_]) -> float:
    """Area under the ROC curve: P(score+ > score-) + P(tie)/2; 1/2 when a class is missing.

    >>> auc(np.array([0.1, 0.4, 0.4, 0.9]), np.array([False, False, True, True]))
    0.875
    """
    n_pos, n_neg = int(positive.sum()), int((~positive).sum())
    if n_pos == 0 or n_neg == 0:
        return 0.5
    values, place = np.unique(score, return_inverse=True)
    negatives = np.bincount(place[~positive], minlength=len(values))
    below = np.concatenate([[0], np.cumsum(negatives)[:-1]])
    return float(np.sum(below[place[positive]] + 0.5 * negatives[place[positive]]) / (n_pos * n_neg))


def _whole(d: Floats) -> Ints:
    return d.astype(np.int64)


def _sigmoid(z: Floats) -> Floats:
    e = np.exp(-np.abs(z))  # never overflows
    return np.where(z >= 0, 1.0, e) / (1.0 + e)


NETWORKS: Final = ("jax", "save", "torch")
__getattr__, _ = lazy(__name__, dict.fromkeys(NETWORKS, "confide.problems.networks.constructors"))
