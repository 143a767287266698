"""Whether a run will diverge, asked before every run: cheap, silent where nothing is known, and without scipy.

Most steps are proven stable by carrying the covariance I through a few rounds; only where that fails does
`confide.theory.stability` have the word.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from confide.graph.graph import Graph
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL
from confide.theory.moments import DENSE, Moments, blocks, cost, moments
from confide.theory.quadratics import exact, linearise

CHEAP = 1e8  # operations it may cost, about a tenth of a second; a NumPy call counts 1e4
FEW = 20  # rounds


def foresee(problem: Problem, graphs: Sequence[Graph], algorithm: GFL, seed: int) -> str | None:
    """Why the step is not mean-square stable, in a sentence; None where it is, or where it is not known cheaply."""
    if len(graphs) > 1 or not exact(problem) or problem.M > DENSE:
        return None
    try:
        eigenvalues = FEW * (problem.federation.P * problem.M) ** 3
        if cost(problem, algorithm, seed, FEW) + eigenvalues > CHEAP:
            return None
        with np.errstate(all="ignore"):
            shrinks = contracts(moments(linearise(problem), graphs[0], algorithm, seed))
            if shrinks:
                return None
            from confide.theory.stability import explain, max_stable_step

            if shrinks is False:
                return explain(problem, graphs[0], algorithm, seed=seed)
            most = max_stable_step(problem, graphs[0], algorithm, seed=seed)
            step = f"step {algorithm.step:g} is not mean-square stable, the expected error overflows"
            return f"{step}; the limit is {most:.4g}, half of it is safe" if algorithm.step > most else None
    except (ValueError, ArithmeticError, RuntimeError, np.linalg.LinAlgError):  # no answer is no reason to stop a run
        return None


def contracts(round: Moments) -> bool | None:
    """Whether a few rounds carry the covariance I below I, which proves stability; None where they overflow.

    A round T is a positive map of covariances, so T^n(I) <= c I with c < 1 gives T^in(S) <= c^i |S| I for every S.
    False is no proof of the contrary.
    """
    P, M = round.phi.shape
    S = np.eye(P * M).reshape(P, M, P, M)
    for _ in range(FEW):
        S = round.carry(S, round.multiplied(blocks(S)))
        if not np.isfinite(S).all():
            return None
        if np.linalg.eigvalsh(S.reshape(P * M, P * M))[-1] < 1.0 - 1e-9:
            return True
    return False
