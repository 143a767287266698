"""Which steps are mean-square stable: those for which the second-moment map of a round shrinks.

Beyond the limit E|x|^2 grows, although typical paths may stay finite for up to about twice the step: averages over a
few runs read low there. Privacy noise has no part in it; of the scheme only W matters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
from scipy.optimize import brentq

from confide.base.errors import InputError, RunError
from confide.base.validation import whole
from confide.graph.graph import Graph
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL
from confide.rounds.schemes import Exchange
from confide.theory.foresight import contracts
from confide.theory.moments import Moments, check, cost, moments
from confide.theory.quadratics import LocalQuadratics, exact, linearise, optimum
from confide.theory.stationary import STEADY, Feedback, radius

SCAN = 8  # steps below the limit at which stability is looked at, lest it is lost and found again on the way
TRIALS = 30  # steps tried, at most or so, to find the limit
RADIUS = 60  # rounds in which a spectral radius is found, about
LARGE = 2e7  # numbers in the data that `explain` does not even read
AFFORDABLE = 1e9  # operations that `explain` may spend, about a second


def max_stable_step(problem: Problem, graph: Graph, algorithm: GFL, *, seed: int = 0) -> float:
    """The step up to which every step is mean-square stable, whatever `algorithm.step` is, to 6 digits.

    Stability need not be monotone: where clients take unlike numbers of local steps, longer steps can be stable
    again. Such islands do not count, but a gap before them that is narrower than an eighth may be overlooked.

    Args:
        problem, graph, algorithm: as in `confide.simulate`.
        seed: of the run: local steps and batch sizes are drawn from it where they are ranges.

    Returns:
        mu, in the units of `algorithm.step`.

    Raises:
        InputError: the settings are not predicted.
        RunError: no stable step was found, because the problem is too badly conditioned.

    >>> from confide.problems import regression
    >>> round(max_stable_step(regression(), Graph.random(10), GFL()), 1)
    6.8
    """
    quadratics = linearise(problem)
    check(problem.federation, graph, algorithm)
    whole("seed", seed, 0)

    def at(step: float) -> Moments:
        return moments(quadratics, graph, replace(algorithm, step=step), seed)

    @cache
    def excess(step: float) -> float:
        return math.log(radius(at(step)))

    stable, unstable = _bracket(lambda step: Feedback(at(step)).bounded(), _scale(quadratics, algorithm))
    if excess(stable) >= 0.0 or excess(unstable) <= 0.0:  # an end of the bracket is the limit, up to rounding
        return stable if excess(stable) >= 0.0 else unstable
    return float(brentq(excess, stable, unstable, rtol=1e-7))


def _bracket(is_stable: Callable[[float], bool], scale: float) -> tuple[float, float]:
    """A stable step, with no unstable one seen below it, and an unstable step within a tenth above it."""
    unstable = scale
    while is_stable(unstable):
        unstable *= 2.0
    stable = unstable / 2.0
    while not is_stable(stable):
        unstable, stable = stable, stable / 2.0
        if stable < 1e-9 * scale:
            raise RunError("no mean-square stable step was found: the problem is too badly conditioned to tell")
    for part in range(1, SCAN):  # stability may be lost and found again on the way up
        if not is_stable(stable * part / SCAN):
            stable, unstable = stable * max(part - 1, 0.01) / SCAN, stable * part / SCAN
            break
    while unstable > 1.1 * stable:
        middle = math.sqrt(stable * unstable)
        stable, unstable = (middle, unstable) if is_stable(middle) else (stable, middle)
    return stable, unstable


def _scale(quadratics: LocalQuadratics, algorithm: GFL) -> float:
    """1/lambda_max of the mean Hessian; an error where no step at all can be stable."""
    alone = algorithm.scheme.exchange == Exchange.NOTHING
    curvatures = np.linalg.eigvalsh(quadratics.hessians if alone else quadratics.hessians.mean(axis=0))
    if algorithm.dropout == 1.0:
        raise InputError("algorithm.dropout", 1.0, "no client ever takes part, so no step corrects anything; lower it")
    if curvatures.min() <= 1e-9 * curvatures.max():
        remedy = "some direction has no curvature, so no step corrects it; a positive regulariser gives one"
        raise InputError("problem.rho", quadratics.model.rho, remedy)
    return float(1.0 / curvatures.max())


def explain(problem: Problem, graph: Graph, algorithm: GFL, *, seed: int = 0) -> str | None:
    """Why this step diverges and what would be right, in a sentence; None where it does not, or nothing is known.

    Cheap enough for every run: one pass over the data for small steps, and nothing where it would cost more than
    about a second. Only for squared loss: a logistic gradient is bounded, and its linearised limit says nothing of
    models far away.

    Args:
        problem, graph, algorithm: as in `confide.simulate`.
        seed: of the run.

    Returns:
        A sentence, or None.
    """
    if not exact(problem) or problem.federation.samples * problem.M > LARGE:
        return None
    try:
        sure = sure_step(problem, algorithm, seed)
        operations = cost(problem, algorithm, seed, RADIUS)
        if algorithm.step <= sure or operations > AFFORDABLE:
            return None
        round = moments(linearise(problem), graph, algorithm, seed)
        if contracts(round) is not False or (growth := radius(round)) <= 1.0 + STEADY:
            return None
        most = max_stable_step(problem, graph, algorithm, seed=seed) if TRIALS * operations <= AFFORDABLE else None
    except (InputError, RuntimeError, np.linalg.LinAlgError):  # no answer (RunError, ARPACK's) stops no run
        return None
    right = f"a step up to {sure:.3g} certainly is" if most is None else f"the limit is {most:.4g}, half of it is safe"
    why = f"the expected error grows {growth:.3g}-fold in a round"
    return f"step {algorithm.step:g} is not mean-square stable, {why}; {right}"


def sure_step(problem: Problem, algorithm: GFL, seed: int) -> float:
    """A step up to which no local step on any batch expands: min_k 2 E_k / max_n (h_n |u_n|^2 + 2 rho)."""
    f, (model, _) = problem.federation, optimum(problem)
    E, _ = algorithm.settle(f, seed)
    return float(np.min(2.0 * E / np.maximum.reduceat(model.smoothness_of_each(f.X), f.client_offsets[:-1])))
