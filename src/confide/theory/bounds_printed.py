"""The limits that the paper prints, for comparison: their explicit terms, and by name the O(.) that are left out.

What is wrong with them, each shown by a test in tests/theory/test_bounds.py:

Lemma 3 (41)    the limit has lost 2 mu^2 iota_2 |grad J_p(w^o)|^2 / (1 - iota_2)^2, which (40) still has and which is
                not zero when units differ; the sum lacks brackets (read with them here); iota_2 = 0 divides by zero.
Theorem 1 (42)  takes s_i, of zero mean, to be uncorrelated with q_i. They share batches and clients.
(60), (61)      say of every unit alone what holds for all together: Lambda A is written for A Lambda, Lambda^i A^i
                for (A Lambda)^i, and A^i is then dropped; grad J_m(w^o) is taken for zero, which only their mean is.
Appendix D      Lemma 4 needs alpha + 30 delta^2 mu^2 / (1 - alpha) < 1 with alpha = sqrt(1 - 2 nu mu + delta^2 mu^2).
                No step gives it, not even with 6 for 30: that would need (1 - alpha)^2 > 6 delta^2 mu^2, but
                alpha >= |1 - nu mu| as nu <= delta, so 1 - alpha <= nu mu <= delta mu. No bound B on gradients
                follows; clip.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq

from confide.base.arrays import Floats
from confide.base.errors import InputError
from confide.theory.constants import Constants

NO_MEMORY = 1e-9  # iota_2 of a graph that averages exactly, rounding included


class Printed(NamedTuple):
    """The limit of one printed bound, and the terms that are not in it."""

    limit: Floats
    leaves_out: tuple[str, ...]


def printed_centroid(c: Constants) -> Printed:
    """Theorem 1 (43), and its corollary (50) where E|g|^2 = 0: (mu^2 sigma_s^2 + E|g|^2) / (1 - lambda_c) + ..."""
    _check(c, c.printed.beta_s2)
    source = c.step**2 * c.printed.sigma_s2 + c.g2
    left = ("O(mu) disagreement", "O(mu^2) xi^2", "O(mu^3) sigma_q^2", "sum_p O(1) sigma_{g,p}^2", "O(mu)")
    return Printed(np.asarray(source / (1.0 - c.printed.lambda_c)), (*left, "O(mu^2) in lambda_c"))


def printed_individual(c: Constants) -> Printed:
    """Appendix A (61), one a unit: (mu^2 sigma_{s,p}^2 + sigma_{g,p}^2 + ...) / (1 - lambda_p)"""
    _check(c, float(c.printed.beta_s2_units.max()))
    source = c.step**2 * c.printed.sigma_s2_units + c.printed.sigma_g2_units
    left = ("O(mu^2) xi^2", "O(mu^3) sigma_{q,p}^2", "O(mu^2) in lambda_p")
    return Printed(source / (1.0 - c.printed.lambda_units), left)


def printed_disagreement(c: Constants) -> Printed:
    """Lemma 3 (41)."""
    _check(c, float(c.printed.beta_s2_units.max()))
    iota, terms = c.iota_2, c.printed
    if iota < NO_MEMORY:
        raise InputError("graph.iota_2", iota, "the printed Lemma 3 divides by it; `bounds` has the exact limit")
    if iota >= 1.0:
        raise InputError("graph.iota_2", iota, "must be below 1: the graph does not mix  (11)")
    limit = iota**2 / (1.0 - iota) * np.mean(c.step**2 * terms.sigma_s2_units + terms.sigma_g2_units / iota**2)
    inside = ("O(mu^3) error", "O(mu^3) xi^2", "O(mu^4) sigma_{q,p}^2", "O(mu^2) in lambda_p")
    return Printed(np.asarray(limit), (*inside, "O(mu) sigma_{g,p}^2", "O(mu^3)"))


def _check(c: Constants, beta2: float) -> None:
    """(64) below 1: sqrt(1 - 2 nu mu + delta^2 mu^2) + beta^2 mu^2 is convex in mu and 1 at 0, so it is 1 once more."""
    if c.nu == 0.0:
        remedy = "assumption 2 needs strongly convex risks; a positive regulariser makes them so"
        raise InputError("problem.rho", "nu = 0", remedy)

    def excess(mu: float) -> float:
        return math.sqrt(1.0 - 2.0 * c.nu * mu + (c.delta * mu) ** 2) + beta2 * mu**2 - 1.0

    if excess(c.step) >= 0.0:
        high = 2.0 * c.nu / c.delta**2  # there the root alone is back at 1
        low = high
        while excess(low) >= 0.0:
            low /= 2.0
        most = brentq(excess, low, high, xtol=1e-15, rtol=1e-9)
        raise InputError("algorithm.step", c.step, f"the printed bound needs lambda < 1, a step below {most:.4g}")
