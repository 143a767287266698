"""Handwritten digits: 1,797 images of 8 x 8 pixels that come with scikit-learn, so that everybody has them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

import numpy as np
from pydantic import Field

from confide.base.errors import InputError
from confide.base.validation import number, one_of
from confide.problems.array_file import FRAMEWORK, HIDDEN, WEIGHTS, parts
from confide.problems.dealing import NO_TEST, SPLITS, Deal
from confide.problems.models import Model
from confide.problems.networks import named
from confide.problems.problem import Problem
from confide.problems.problem_config import ProblemConfig
from confide.problems.reading import absolute, plain

PIXELS: Final = 64
CLASSES: Final = 10
BRIGHTEST: Final = 16.0
RHO: Final = 0.001  # of softmax, so that its optimum is unique
PUBLIC: Final = "the digits are public: what is printed of their privacy is a demonstration"


class DigitsConfig(ProblemConfig):
    entry_points: ClassVar = frozenset({"model"})
    name: Literal["digits"] = Field("digits", description="handwritten digits (pip install 'confide[digits]')")
    units: int = Field(5, description="P")
    clients: int = Field(10, description="K, of each unit")
    split: str = Field("iid", description="iid, unequal or dirichlet (by digit)")
    alpha: float | None = Field(None, description="of split = dirichlet: the smaller, the less alike the clients")
    model: str = Field("softmax", description="softmax, mlp, cnn or my_module:network")
    hidden: list[int] | None = Field(None, description=HIDDEN)
    framework: str | None = Field(None, description=FRAMEWORK)
    weights: str | None = Field(None, description=WEIGHTS)
    rho: float | None = Field(
        None, description="regulariser rho |w|^2; by default 0.001 of softmax, else 0 or what a network of yours says"
    )
    test_fraction: float = Field(0.2, description="share of every client's rows that is held out")
    seed: int | None = Field(None, description="of the split and of held-out rows; the top-level seed by default")

    def make(self, seed: int) -> Problem:
        return digits(**self.arguments(seed))

    def without_data(self) -> tuple[Model, int]:
        return _model(self.model, self.rho, self.hidden, self.framework, self.weights), PIXELS


def digits(
    units: int = 5,
    clients: int = 10,
    *,
    split: str = "iid",
    alpha: float | None = None,
    model: str = "softmax",
    hidden: Sequence[int] | None = None,
    framework: str | None = None,
    weights: str | Path | None = None,
    rho: float | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Problem:
    """Which digit an image of 8 x 8 pixels shows; a row is its 64 pixels, from 0 to 1.

    Args:
        units, clients: P, and K of every unit.
        split: "iid", "unequal", or "dirichlet" by digit.
        alpha: concentration of "dirichlet".
        model: "softmax", "mlp", "cnn", or the name of your own, "my_module:network".
        hidden: widths of the layers of "mlp", (200,) by default; of "cnn" the channels of its convolutions.
        framework: "jax" or "torch", for "mlp" and "cnn".
        weights: safetensors file with the first weights of a network.
        rho: of the regulariser rho |w|^2, at least 0; by default 0.001 of "softmax", else 0 or what your network says.
        test_fraction: held out of every client's rows; every client keeps a training row.
        seed: of the split and of what is held out.

    Returns:
        A problem on data that are nobody's secret (`Problem.private` is False).

    Raises:
        InputError: scikit-learn is not installed, or an option cannot be used.
    """
    spec = dict(locals(), name="digits", weights=weights and absolute(weights, "problem.weights"))
    one_of("problem.split", split, SPLITS[1:])
    how = Deal(None, None, units, clients, split, alpha, test_fraction, seed)
    made = _model(model, rho, hidden, framework, weights)
    X, d = _load()
    federation, test = parts(X, d, how, how.owners(None, d, classes=True), BRIGHTEST)
    notes = (PUBLIC, NO_TEST) if test is None and test_fraction > 0 else (PUBLIC,)
    return Problem(federation, made, test, plain(spec), notes, private=False)


def _model(
    key: str,
    rho: float | None,
    hidden: Sequence[int] | None,
    framework: str | None,
    weights: str | Path | None,
) -> Model:
    if rho is not None:
        number("problem.rho", rho, 0.0)
    elif key == "softmax":
        rho = RHO
    if key in ("linear", "logistic"):
        raise InputError("problem.model", key, "is not for ten classes; use softmax, mlp, cnn or my_module:network")
    more = {"hidden": hidden, "framework": framework, "weights": weights}
    return named.model(key, features=PIXELS, classes=CLASSES, rho=rho, **more)  # type: ignore[arg-type]


def _load() -> tuple[Any, Any]:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        remedy = "the images come with scikit-learn, which is not installed: pip install 'confide[digits]'"
        raise InputError("problem.name", "digits", remedy) from None
    X, d = load_digits(return_X_y=True)
    return X, d.astype(np.float64)
