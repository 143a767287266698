"""What to choose: the step, the noise, the weights (`confide.theory.fastest`).

The step. After T rounds the error is what is left of the start, about exp(-2 mu nu T), and what every round adds: a
limit that grows with mu, and with independent noise also as 1/mu. Where the noise cancels from the centroid
(homomorphic) or there is none, the limit falls all the way to mu = 0 and only a horizon, or a target, has a best step.

The noise. For squared loss the limit is affine in sigma^2, a line through two predictions,

    MSD(sigma) = MSD(0) + sigma^2 {MSD(1) - MSD(0)},

so sigma^2 = (target - MSD(0)) / {MSD(1) - MSD(0)}. With curvature it is not a line, and a root is looked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, repeat
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from confide.base.arrays import Floats
from confide.base.errors import InputError, RunError
from confide.base.validation import number, one_of, positive_int, whole
from confide.graph.graph import Graph
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL
from confide.rounds.schemes import KEYS
from confide.theory.fastest import Fastest, fastest_mixing
from confide.theory.moments import Moments
from confide.theory.prediction import course, decibels, deviations, levels, with_limit
from confide.theory.quadratics import LocalQuadratics, exact, linearise
from confide.theory.stability import max_stable_step
from confide.theory.stationary import Limit

__all__ = ["BestStep", "Fastest", "best_step", "fastest_mixing", "noise_allowed"]

WHICH = ("centroid", "individual")
COARSE = 2.0  # ratio of the steps that are looked at first
FINE = 0.02  # relative accuracy of a best step; the error is flat around it
RISEN = 10.0  # times the least error so far, twice: shorter steps only make it worse
SMALLEST = 2.0**-14  # of the largest stable step: a limit that still falls here falls to 0
LONGEST = 100_000  # rounds within which a target must be reached
SETTLED = 1e-6  # relative distance to the limit at which a transient is over
CANCELS = 1e-12  # share of the error, at sigma = 1, below which noise does not matter


class BestStep(NamedTuple):
    """`msd` is the predicted error after `rounds` rounds with this step; `rounds` is None for the limit."""

    step: float
    rounds: int | None
    msd: float

    @property
    def db(self) -> float | None:
        return decibels(self.msd)


def best_step(
    problem: Problem,
    graph: Graph,
    algorithm: GFL,
    *,
    seed: int = 0,
    which: str = "centroid",
    rounds: int | None = None,
    target_db: float | None = None,
    most: float | None = None,
) -> BestStep:
    """The best of the mean-square stable steps, to a fiftieth; `algorithm.step` itself does not matter.

    Args:
        problem, graph, algorithm: as in `confide.simulate`.
        seed: of the run.
        which: whose error: "centroid" or "individual".
        rounds: the step with the least error after so many rounds.
        target_db: or the step that reaches this error in the fewest rounds, and stays there. Without either, the
            step with the least limit, which is refused where the limit falls all the way to 0.
        most: the largest stable step, where it is known already.

    Returns:
        The step, the rounds it was chosen for, and the mean-square deviation that it leaves.

    Raises:
        InputError: the settings are not predicted, the limit falls all the way to step 0, or the target is not reached.

    >>> from confide.problems import regression
    >>> problem, graph = regression(units=4, clients=20), Graph.ring(4)
    >>> found = best_step(problem, graph, GFL(), target_db=-25.0)
    >>> found.rounds
    2
    """
    one_of("which", which, WHICH)
    if rounds is not None and target_db is not None:
        raise InputError("target_db", target_db, "give a number of rounds or a target, not both")
    most = max_stable_step(problem, graph, algorithm, seed=seed) if most is None else most
    course = _Course(problem, graph, algorithm, whole("seed", seed, 0), which)
    if target_db is not None:
        return _soonest(course, most, 10.0 ** (number("target_db", target_db, -1e3, 1e3) / 10.0))
    if rounds is not None:
        T = positive_int("rounds", rounds)
        step, msd = _least(lambda step: course.after(step, T), most, most / (10.0 * COARSE * T))
        return BestStep(step, T, msd)
    step, msd = _least(course.limit, most, most * SMALLEST)
    if step < most * SMALLEST * COARSE**2:
        remedy = f"the limit of the {which} error falls with the step down to 0; give rounds or target_db"
        raise InputError("rounds", None, remedy)
    return BestStep(step, None, msd)


@dataclass(frozen=True)
class _Course:
    """Predicted errors as functions of the step."""

    problem: Problem
    graph: Graph
    algorithm: GFL
    seed: int
    which: str

    @cached_property
    def quadratics(self) -> LocalQuadratics:
        return linearise(self.problem)

    def at(self, step: float) -> tuple[Moments, Limit | None]:
        return with_limit(self.quadratics, self.graph, replace(self.algorithm, step=step), self.seed)

    def level(self, end: Limit | None) -> float:
        return math.inf if end is None else float(getattr(levels(end), self.which).total)

    def limit(self, step: float) -> float:
        try:
            return self.level(self.at(step)[1])
        except RunError:  # at the very edge of stability
            return math.inf

    def after(self, step: float, rounds: int) -> float:
        try:
            round, end = self.at(step)
        except RunError:
            return math.inf
        return next(islice(self.errors(round, end), rounds - 1, None))

    def reached(self, step: float, target: float, most: float) -> float:
        """The rounds until the error is at the target, with a fraction; infinite where it does not stay there."""
        round, end = self.at(step)
        if self.level(end) > target:
            return math.inf
        before = math.inf
        for i, error in enumerate(self.errors(round, end), start=1):
            if error <= target:
                part = math.log(before / target) / math.log(before / error) if before < math.inf else 1.0
                return i - 1 + part
            if i > most:
                break
            before = error
        return math.inf

    def errors(self, round: Moments, end: Limit | None) -> Iterator[float]:
        """After rounds 1, 2, ...; for ever the limit once it is reached."""
        x0 = np.tile(self.problem.start - self.quadratics.optimum, (self.graph.P, 1))
        for i, (S, m) in enumerate(course(round, x0), start=1):
            yield deviations(S, m)[WHICH.index(self.which)]
            if i % 10 == 0 and _settled(end, S, m):
                break
        yield from repeat(self.level(end))


def _settled(end: Limit | None, S: Floats, m: Floats) -> bool:
    """Whether covariance and mean are those of the limit."""
    if end is None:
        return False
    scale = float(np.einsum("pii->", end.second_moments)) / len(end.mean)
    off = float(np.abs(S - (end.gradient + end.privacy)).max())
    return max(off, float(np.max((m - end.mean) ** 2)) / SETTLED) <= SETTLED * scale


def _least(f: Callable[[float], float], most: float, least: float) -> tuple[float, float]:
    """The step in [least, most) with the smallest f, and f there: a scan by factors, then a search between two."""
    steps, found, n = [0.98 * most], [f(0.98 * most)], 0
    while steps[-1] > COARSE * least and sum(later > RISEN * found[n] for later in found[n + 1 :]) < 2:
        steps.append(steps[-1] / COARSE)
        found.append(f(steps[-1]))
        n = int(np.argmin(found))
    if not math.isfinite(found[n]):
        raise RunError("no step has a finite predicted error")
    low, high = steps[min(n + 1, len(steps) - 1)], steps[max(n - 1, 0)]
    fine = minimize_scalar(
        lambda x: f(math.exp(x)), bounds=(math.log(low), math.log(high)), method="bounded", options={"xatol": FINE}
    )
    return min((steps[n], found[n]), (math.exp(fine.x), float(fine.fun)), key=lambda pair: pair[1])


def _soonest(course: _Course, most: float, target: float) -> BestStep:
    best, at = math.inf, 0.0
    steps = [most * 0.98 * COARSE**-n for n in range(round(-math.log(SMALLEST, COARSE)))]
    if not any(course.limit(step) <= target for step in steps):  # between two of them, perhaps
        step, msd = _least(course.limit, most, most * SMALLEST)
        if msd > target:
            lowest = f"the least that any step leaves is {10.0 * math.log10(msd):.2f} dB, at step {step:.3g}"
            raise InputError("target_db", 10.0 * math.log10(target), f"is not reached; {lowest}")
        steps = [step]
    for step in steps:
        rounds = course.reached(step, target, min(1.0 + 2.0 * best, LONGEST))
        if rounds < best:
            best, at = rounds, step
        elif best < math.inf:  # shorter steps take longer
            break
    if best == math.inf:
        remedy = f"no step reaches it within {LONGEST} rounds; raise it"
        raise InputError("target_db", 10.0 * math.log10(target), remedy)
    fine = minimize_scalar(
        lambda x: min(course.reached(math.exp(x), target, 2.0 * best), 2.0 * best),
        bounds=(math.log(at / COARSE), min(math.log(at * COARSE), math.log(0.98 * most))),
        method="bounded",
        options={"xatol": FINE},
    )
    if fine.fun < best:
        best, at = float(fine.fun), math.exp(fine.x)
    T = math.ceil(best - 1e-9)
    return BestStep(at, T, course.after(at, T))


def noise_allowed(
    problem: Problem, graph: Graph, algorithm: GFL, target_db: float, *, seed: int = 0, which: str = "centroid"
) -> float:
    """The `scheme.sigma` that makes the predicted limit of this error equal to a target.

    Args:
        problem, graph, algorithm: as in `confide.simulate`; `sigma_pair` and `sigma_client` stay as they are.
        target_db: of the error, 10 log10 of the mean-square deviation from the optimum.
        seed: of the run.
        which: whose error: "centroid" or "individual".

    Returns:
        A standard deviation per coordinate; infinite where the noise of a server does not enter this error at all.

    Raises:
        InputError: the error is above the target without this noise, or the step is not mean-square stable.

    >>> from confide.problems import regression
    >>> from confide.theory.prediction import predict
    >>> problem, graph = regression(units=4, clients=20), Graph.ring(4)
    >>> sigma = noise_allowed(problem, graph, GFL(), -20.0, which="individual")
    >>> noisy = replace(GFL(), scheme=GFL().scheme.resized(sigma=sigma))
    >>> round(predict(problem, graph, noisy).limit.db["individual_db"], 6)
    -20.0
    """
    one_of("which", which, WHICH)
    target = 10.0 ** (number("target_db", target_db, -1e3, 1e3) / 10.0)

    def msd(sigma: float) -> float:
        noisy = replace(algorithm, scheme=algorithm.scheme.resized(sigma=sigma))
        end = _Course(problem, graph, noisy, whole("seed", seed, 0), which).limit(algorithm.step)
        if end == math.inf:
            remedy = "is not mean-square stable, so no noise is small enough; take a smaller one"
            raise InputError("algorithm.step", algorithm.step, remedy)
        return end

    quiet = msd(0.0)
    if quiet > target:
        floor = f"the error is {10.0 * math.log10(quiet):.2f} dB without this noise; raise the target or lower the step"
        raise InputError("target_db", target_db, floor)
    if algorithm.scheme.places.isdisjoint(KEYS["sigma"]):
        return math.inf
    slope = msd(1.0) - quiet
    if slope <= CANCELS * (quiet + 1.0):
        return math.inf
    sigma = math.sqrt((target - quiet) / slope)
    if exact(problem) or sigma == 0.0:
        return sigma
    low, high = 0.0, sigma
    while msd(high) < target:
        low, high = high, 2.0 * high
    return float(brentq(lambda s: msd(s) - target, low, high, rtol=1e-9))
