"""Handwritten digits: 1,797 images of 8 x 8 pixels that come with scikit-learn, so that everybody has them."""

from __future__ import annotations

from typing import Any, Final, Literal

import numpy as np
from pydantic import Field

from confide.base.errors import InputError
from confide.base.validation import number, one_of
from confide.problems.array_file import parts
from confide.problems.dealing import NO_TEST, SPLITS, Deal
from confide.problems.models import Model, chosen
from confide.problems.problem import Problem
from confide.problems.problem_config import ProblemConfig

PIXELS: Final = 64
CLASSES: Final = 10
BRIGHTEST: Final = 16.0
PUBLIC: Final = "the digits are public: what is printed of their privacy is a demonstration"


class DigitsConfig(ProblemConfig):
    name: Literal["digits"] = Field("digits", description="handwritten digits (pip install 'confide[digits]')")
    units: int = Field(5, description="P")
    clients: int = Field(10, description="K, of each unit")
    split: str = Field("iid", description="iid, unequal or dirichlet (by digit)")
    alpha: float | None = Field(None, description="of split = dirichlet: the smaller, the less alike the clients")
    model: str = Field("softmax", description="the built-in model of ten classes")
    rho: float = Field(0.001, description="regulariser rho |w|^2")
    test_fraction: float = Field(0.2, description="share of every client's rows that is held out")
    seed: int | None = Field(None, description="of the split and of held-out rows; the top-level seed by default")

    def make(self, seed: int) -> Problem:
        return digits(**self.arguments(seed))

    def without_data(self) -> tuple[Model, int]:
        return _model(self.model, self.rho), PIXELS


def digits(
    units: int = 5,
    clients: int = 10,
    *,
    split: str = "iid",
    alpha: float | None = None,
    model: str = "softmax",
    rho: float = 0.001,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Problem:
    """Which digit an image of 8 x 8 pixels shows; a row is its 64 pixels, from 0 to 1.

    Args:
        units, clients: P, and K of every unit.
        split: "iid", "unequal", or "dirichlet" by digit.
        alpha: concentration of "dirichlet".
        model: "softmax".
        rho: of the regulariser rho |w|^2, at least 0.
        test_fraction: held out of every client's rows; every client keeps a training row.
        seed: of the split and of what is held out.

    Returns:
        A problem on data that are nobody's secret (`Problem.private` is False).

    Raises:
        InputError: scikit-learn is not installed, or an option cannot be used.
    """
    spec = dict(locals(), name="digits")
    one_of("problem.split", split, SPLITS[1:])
    how = Deal(None, None, units, clients, split, alpha, test_fraction, seed)
    made = _model(model, rho)
    X, d = _load()
    federation, test = parts(X, d, how, how.owners(None, d, classes=True), BRIGHTEST)
    notes = (PUBLIC, NO_TEST) if test is None and test_fraction > 0 else (PUBLIC,)
    return Problem(federation, made, test, spec, notes, private=False)


def _model(key: str, rho: float) -> Model:
    one_of("problem.model", key, ("softmax",))
    return chosen(key, number("problem.rho", rho, 0.0), CLASSES)


def _load() -> tuple[Any, Any]:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        remedy = "the images come with scikit-learn, which is not installed: pip install 'confide[digits]'"
        raise InputError("problem.name", "digits", remedy) from None
    X, d = load_digits(return_X_y=True)
    return X, d.astype(np.float64)
