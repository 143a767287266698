"""Lemma 3, Theorem 1 with its corollary, and the individual errors of appendix A, as bounds that hold round by round.

`bounds_round` proves r(i) <= G(r(i-1)) for r = (r_c, r_d), the roots of the centroid's mean-square error and of the
disagreement. G is increasing, so iterating it from r(0) = (|w_0 - w^o|, 0) bounds every round. For squared loss a
second such recursion looks at the centroid apart from the disagreement (`apart`); both hold, and the smaller is given:
with homomorphic noise it is O(mu). Nothing is left out: all that the paper writes as O(.) is in the coefficients, and
the corollary is the case in which the noise of the centroid, E|g|^2, is zero.

Step condition. For large r, G(r) is G_inf(r), its homogeneous part. The bounds have a limit if some direction has
G_inf(x) < x, that is, if

    radius = min over t > 0 of max{ G_inf,c(1, t),  G_inf,d(1, t) / t }  <  1;

G_inf,c(1, t) rises with t and G_inf,d(1, t)/t falls, so the minimum is where they cross. Then G(r) <= G_inf(r) + G(0)
makes a large multiple of x a point below which G stays, and, G being convex, its iterates tend to one fixed point.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq

from confide.base.arrays import Floats
from confide.base.errors import InputError
from confide.base.validation import positive_int
from confide.graph.graph import Graph
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL
from confide.rounds.schemes import Exchange
from confide.theory.bounds_round import Round, apart, mixing, one_round, overflows
from confide.theory.constants import of_clients
from confide.theory.constants_clients import Clients, clients
from confide.theory.moments import check

NOT_MIXING = 1.0 - 1e-12


@dataclass(frozen=True, eq=False)
class Bounds:
    """Upper bounds on expectations; index i of an array is round i, and 0 the start.

    Attributes:
        centroid: E|w_{c,i} - w^o|^2, Theorem 1 (42), (43) and its corollary (49), (50).
        disagreement: (1/P) sum_p E|w_{p,i} - w_{c,i}|^2, Lemma 3 (40), (41).
        individual: (1/P) sum_p E|w_{p,i} - w^o|^2, exactly the sum of the two above.
        individual_units: E|w_{p,i} - w^o|^2 of every unit, (60): the smaller of a recursion over the units and
            (r_c + sqrt(P-1) r_d)^2.
        limits: the same names as the rounds go on, and `gradient_noise`, E|s|^2 of (28), and `incremental_noise`,
            E|q|^2 of (37) with q0, q1 of `bounds_round`.
        radius: of the step condition; the errors shrink by about this factor a round (their squares by its square).
    """

    centroid: Floats
    disagreement: Floats
    individual: Floats
    individual_units: Floats
    limits: Mapping[str, Any]
    radius: float


def bounds(problem: Problem, graph: Graph, algorithm: GFL, rounds: int, seed: int) -> Bounds:
    """All bounds for rounds 0 to `rounds` and in the limit.

    Args:
        problem, graph, algorithm: as in `confide.simulate`, without clip, failures or a local step of one's own.
        rounds: T.
        seed: of the run: local steps and batch sizes are drawn from it where they are ranges.

    Returns:
        Mean-square errors (not dB) that no run of these settings exceeds on average.

    Raises:
        InputError: the proofs do not cover the settings, or the step is too long; then the message names the longest.
    """
    positive_int("rounds", rounds)
    c = _checked(problem, graph, algorithm, seed)
    if overflows(c, algorithm.step):
        raise _refusal(problem, graph, algorithm, seed)
    step = one_round(c, graph, algorithm, algorithm.step)
    size = radius(step)
    if size >= 1.0:
        raise _refusal(problem, graph, algorithm, seed)
    known = of_clients(c, step, problem, graph, algorithm)

    start, units = math.sqrt(known.error2), np.empty((rounds + 1, graph.P))
    r, last, units[0] = _course(step, start, rounds), fixed_point(step), start
    if not c.radius.any() and radius(aside := apart(step)) < 1.0:  # both hold
        r = np.minimum(r, aside.errors(_course(aside, start, rounds)))
        last = np.minimum(last, aside.errors(fixed_point(aside)))
    for i in range(1, rounds + 1):
        units[i] = np.minimum(step.advance_units(units[i - 1]), _any_unit(r[i], graph.P))
    last_units = np.full(graph.P, _any_unit(last, graph.P))
    for _ in range(10_000):  # whatever is above the limit superior stays above it; stopping early only loosens
        before, last_units = last_units, np.minimum(step.advance_units(last_units), last_units)
        if np.allclose(before, last_units, rtol=1e-12, atol=0.0):
            break

    limits = _squares(last, last_units)
    noises = {
        "gradient_noise": known.repaired.gradient_noise(limits["centroid"], limits["disagreement"]),
        # E|q|^2 <= (1/P) sum_p E|q_p|^2 <= (rms_p q0_p + max_p q1_p sqrt((1/P) sum_p E|w_p - w^o|^2))^2
        "incremental_noise": (np.sqrt(np.mean(step.q0**2)) + step.q1.max() * np.sqrt(limits["individual"])) ** 2,
    }
    return Bounds(**_squares(r, units), limits=limits | noises, radius=size)


def _course(step: Round, start: float, rounds: int) -> Floats:
    """r(0), r(1), ..., where all servers begin at this distance from w^o."""
    r = np.array([[start, 0.0]] * (rounds + 1))
    for i in range(1, rounds + 1):
        r[i] = step.advance(r[i - 1])
    return r


def _squares(r: Floats, units: Floats) -> dict[str, Floats]:
    """The errors of rounds, or of the limit, from their roots: (r_c, r_d), and that of every unit."""
    u = r**2
    return {
        "centroid": u[..., 0],
        "disagreement": u[..., 1],
        "individual": u.sum(axis=-1),
        "individual_units": units**2,
    }


def largest_step(problem: Problem, graph: Graph, algorithm: GFL, seed: int) -> float:
    """The step below which the bounds hold, everything else as in `algorithm`: where the radius first reaches 1.

    Raises:
        InputError: the proofs do not cover the settings, or the network's risk is not strongly convex.
    """
    c = _checked(problem, graph, algorithm, seed)

    def excess(step: float) -> float:
        return radius(one_round(c, graph, algorithm, step)) - 1.0

    low = 1e-3 / float(c.delta.max())
    for _ in range(40):
        if excess(low) < 0.0:
            break
        low /= 2.0
    else:
        remedy = "the network's risk is not known to be strongly convex, so no step contracts; raise the regulariser"
        raise InputError("problem.rho", problem.model.rho, remedy)
    high = 2.0 * low
    while excess(high) < 0.0:
        low, high = high, 2.0 * high
    return float(brentq(excess, low, high, xtol=1e-12, rtol=1e-9))


def _refusal(problem: Problem, graph: Graph, algorithm: GFL, seed: int) -> InputError:
    most = largest_step(problem, graph, algorithm, seed)
    remedy = f"the bounds do not contract; they need a step below {most:.4g} (the run itself may well converge)"
    return InputError("algorithm.step", algorithm.step, remedy)


def _any_unit(r: Floats, P: int) -> float:
    """sqrt E|w_p - w^o|^2 <= r_c + sqrt(P-1) r_d, for any p: deviations that sum to zero have

    |w_p - w_c|^2 <= ((P-1)/P) sum_m |w_m - w_c|^2.
    """
    return float(r[0] + math.sqrt(P - 1) * r[1])


def radius(step: Round) -> float:
    def two(t: float) -> Floats:
        return step.advance(np.array([1.0, t]), constants=False) / (1.0, t)

    low, high = 1e-9, 1e9
    if two(low)[0] >= two(low)[1]:
        return float(two(low)[0])
    if two(high)[0] <= two(high)[1]:
        return float(two(high)[1])
    t = math.exp(brentq(lambda s: float(np.subtract(*two(math.exp(s)))), math.log(low), math.log(high)))
    return float(two(t).max())


def fixed_point(step: Round) -> Floats:
    """The limit of r. Newton's method from zero: G is convex, so it rises to the limit and never passes it."""
    r = np.zeros(2)
    for _ in range(100):
        G, jacobian = step.advance(r), _jacobian(step, r)
        new = np.linalg.solve(np.eye(2) - jacobian, G - jacobian @ r)
        if np.allclose(new, r, rtol=1e-14, atol=0.0):
            break
        r = np.maximum(new, r)
    return np.asarray(r)


def _jacobian(step: Round, r: Floats) -> Floats:
    G, far = step.advance(r), float(np.hypot(*step.errors(r)))
    mean, spread = step.C @ r + step.b, step.S0_cd + step.S1_cd * far
    slopes = mean[:, None] * step.C + np.outer(spread * step.S1_cd, step.slope(r))
    return np.divide(slopes, G[:, None], out=np.zeros((2, 2)), where=G[:, None] > 0.0)


def _checked(problem: Problem, graph: Graph, algorithm: GFL, seed: int) -> Clients:
    """Refuse what the proofs do not cover."""
    check(problem.federation, graph, algorithm)
    if mixing(graph, algorithm) >= NOT_MIXING:
        if algorithm.scheme.exchange == Exchange.NOTHING:
            remedy = "the servers never exchange, so nothing makes them agree (iota_2 = 1); choose another scheme"
            raise InputError("scheme.name", algorithm.scheme.name, remedy)
        remedy = "does not mix, iota_2 = 1, so nothing makes the models agree; lazy weights do"
        raise InputError("graph", graph.name, remedy)
    return clients(problem, algorithm, seed)
