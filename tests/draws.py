"""How far a draw is from its law, and the law's variance: counted from the dice that are thrown."""

from __future__ import annotations

import math

from confide.laws.noise import MASS_BITS, Law, _dice


def statistical_distance(law: Law, scale: float) -> float:
    """An upper bound of the total variation distance of one sample from its law; `confide.laws.noise` proves it.

    >>> math.log2(statistical_distance("gaussian", 2.0**30)) < -108
    True
    """
    dice = _dice(law, scale)
    joins = len(dice) - 1 if law == "gaussian" else 0
    bound = sum(die.tail + (2 * die.radius + 1) * 2.0**-MASS_BITS for die in dice) + joins * 2.0**-112
    return bound * (1 + 2.0**-40)  # what the sum of floats may have lost


def variance(law: Law, s: float) -> float:
    """The exact variance: Laplace 2q / (1 - q)^2; Gaussian by its series, or its Poisson dual where that is short.

    >>> [round(variance("laplace", s), 6) for s in (0.5, 1, 8)]
    [0.362031, 1.841347, 127.833463]
    >>> [round(variance("gaussian", s), 6) for s in (0.5, 1, 8)]
    [0.215013, 1.0, 64.0]
    """
    if law == "laplace":
        return 2 * math.exp(-1 / s) / math.expm1(-1 / s) ** 2
    if s < 1:
        weights = [(x, math.exp(-0.5 * (x / s) * (x / s))) for x in range(1, 40)]
        return 2 * sum(x * x * w for x, w in weights) / (1 + 2 * sum(w for _, w in weights))
    dual = [(j, math.exp(-2 * (math.pi * s * j) ** 2)) for j in range(1, 4)]
    below = 8 * (math.pi * s) ** 2 * sum(j * j * w for j, w in dual) / (1 + 2 * sum(w for _, w in dual))
    return s * s * (1 - below)
