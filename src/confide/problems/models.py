"""Linear and logistic regression with the paper's regulariser rho |w|^2.

Both are generalised linear: the loss of a sample (u, d) is ``l(u'w, d) + rho |w|^2`` and its gradient
``l'(u'w, d) u + 2 rho w``, so one function of the margin is all that tells them apart.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from confide.base.arrays import Floats
from confide.base.lazy import lazy
from confide.base.validation import number

if TYPE_CHECKING:
    from confide.problems.networks.constructors import jax as jax
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
class GLM(ABC):
    """Shared by `Linear` and `Logistic`; l is the loss of a margin z = u'w."""

    rho: float = 0.0
    name: ClassVar[str]
    curvature_bound: ClassVar[float]  # sup l''

    def __post_init__(self) -> None:
        number("problem.rho", self.rho, 0.0)

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

    def loss(self, w: Floats, X: Floats, d: Floats) -> Floats:
        return self.link(X @ w, d) + self.rho * float(w @ w)

    def gradients(self, w: Floats, X: Floats, d: Floats) -> Floats:
        return self.slope(X @ w, d)[:, None] * X

    def hessian(self, w: Floats, X: Floats, d: Floats, weights: Floats) -> Floats:
        """Weighted Hessian of the data part plus 2 rho I (weights sum to 1)."""
        return (X * (weights * self.curvature(X @ w, d))[:, None]).T @ X + 2 * self.rho * np.eye(X.shape[1])

    @abstractmethod
    def predict(self, w: Floats, X: Floats) -> Floats:
        """What a user wants to know of new samples."""

    @abstractmethod
    def metrics(self, w: Floats, X: Floats, d: Floats) -> dict[str, float]:
        """As in `Model`."""

    def smoothness(self, X: Floats) -> float:
        """delta: every sampled gradient is delta-Lipschitz, delta = sup l'' max |u|^2 + 2 rho  (14)."""
        return float(np.max(self.smoothness_of_each(X)))

    def smoothness_of_each(self, X: Floats) -> Floats:
        """The same, row by row."""
        return np.asarray(self.curvature_bound * np.einsum("nm,nm->n", X, X) + 2 * self.rho)


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


MODELS: Final[dict[str, type[GLM]]] = {kind.name: kind for kind in (Linear, Logistic)}
OWN: Final = "own"  # in a plan and on the command line: the model of a train function that only the clients have


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


def _sigmoid(z: Floats) -> Floats:
    e = np.exp(-np.abs(z))  # never overflows
    return np.where(z >= 0, 1.0, e) / (1.0 + e)


NETWORKS: Final = ("jax", "torch")
__getattr__, _ = lazy(__name__, dict.fromkeys(NETWORKS, "confide.problems.networks.constructors"))
