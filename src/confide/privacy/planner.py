"""Which scheme, and how much noise: every scheme calibrated to one budget, compared by the error it leaves.

Without a simulation the error is that of a quadratic with Hessian h (docs/design/privacy.md, 3): with W the combination
matrix of the scheme, g = 1 - mu h and noise covariance N = R R', the deviation of the states after T rounds is
sum_t (g W)^t N (g W')^t, its mean over servers the centroid's. It leaves out clipping and heterogeneity; with a config
the schemes are run instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from confide.base.errors import InputError
from confide.graph.graph import Graph
from confide.laws.law import GAUSSIAN, Law
from confide.plans.privacy import Budget
from confide.privacy.calibrate import Calibrated, calibrate
from confide.privacy.sensitivity import Sensitivity
from confide.privacy.statement import Statement, statement
from confide.rounds.schemes import Scheme

BASELINES = {  # shown, never recommended: no deployment runs them
    "central": "needs a sum over all servers in every round",
    "local-only": "its servers exchange nothing; a deployment has flows on edges",
    "pairwise": "edge noise on a grid, which a deployment draws, has no proof",
}
SHARES = 0.05, 0.999  # of the budget for the messages, at least and at most: single models are to be of use, too
MEASURED = 0.2, 0.4  # shares at which the error is measured
CANDIDATES = ("homomorphic", "shared", "own-clean", "per-link", "pairwise", "central", "local-only")


@dataclass(frozen=True)
class Option:
    """One scheme at the budget: its noise, and the squared error of what comes out."""

    name: str
    calibrated: Calibrated | None = None
    released: float | None = None  # error of the released (or unreleased) centroid, its noise included
    individual: float | None = None
    reason: str = ""  # why there is no number
    statement: Statement | None = None  # against everybody, not only the adversary that the noise is sized for

    def to_dict(self) -> dict[str, Any]:
        c = self.calibrated
        noise = (
            {} if c is None else {"sigma": c.scheme.sigma, "sigma_pair": c.scheme.sigma_pair, "release": str(c.release)}
        )
        return {
            "scheme": self.name,
            **noise,
            "released_error": self.released,
            "individual_error": self.individual,
            "reason": self.reason,
            "only_simulated": BASELINES.get(self.name),
            "statement": None if self.statement is None else self.statement.to_dict(),
        }


Measure = Callable[[Calibrated], tuple[float, float]]  # -> (centroid error without release noise, individual error)


def plan(
    graph: Graph | Sequence[Graph],
    sensitivity: Sensitivity,
    budget: Budget,
    *,
    rounds: int,
    scheme: str = "auto",
    noise: Law | str = GAUSSIAN,
    threat: str = "links",
    release: str = "centroid",
    hessian: float = 1.0,
    measure: Measure | None = None,
) -> list[Option]:
    """Every scheme (or one) at the same budget, the best first, then baselines, then those that cannot meet it and why.

    With a release the released model decides; without one there are only the individual models.

    Args:
        graph: the servers' graph, or several that take turns, which need a `measure`.
        sensitivity: how far one client (example, unit) can move its server.
        budget: epsilon at a delta, or rho.
        rounds: T, that the budget pays for.
        scheme: a scheme's name, or "auto" for all.
        noise: the law of every draw, or its name.
        threat: the adversary that the budget is about.
        release: none, centroid (its noise is sized too), centroid:SIGMA or local.
        hessian: of the quadratic by whose error they are compared, where no other `measure` is given.
        measure: the squared errors of the mean of the models, without the release's noise, and of single models.

    Returns:
        Options with `name`, `calibrated` (the sized scheme and its account), the squared errors `released` and
        `individual`, and `reason` where a scheme has no number.

    Raises:
        InputError: the step is not stable for `hessian`, or a name is not known.

    >>> from confide.privacy.sensitivity import Sensitivity
    >>> plan(Graph.ring(4), Sensitivity(0.1, 1.0, level="unit"), Budget(rho=1.0), rounds=50)[0].name
    'shared'
    """
    graphs, dim = [graph] if isinstance(graph, Graph) else list(graph), sensitivity.dim or 1
    if measure is None:
        if len(graphs) > 1:
            raise InputError(
                "graph", len(graphs), "the formula is about one graph; graphs that take turns are measured"
            )
        measure = by_formula(graphs[0], sensitivity.step, hessian, rounds, dim)

    def sized(name: str, share: float = 0.5) -> Calibrated:
        return calibrate(
            name, graphs, sensitivity, budget, rounds=rounds, noise=noise, threat=threat, release=release, share=share
        )

    def of_release(c: Calibrated) -> float:
        return dim * c.release.hidden(graphs[0].P, 0) ** 2  # all shares

    found = []
    for name in CANDIDATES if scheme == "auto" else (scheme,):
        if release == "none" and name == "local-only":
            found.append(Option(name, reason="its servers send nothing: without a release nothing is learnt together"))
            continue
        try:
            c = sized(name)
            if release == "centroid" and c.scheme.sigma and c.release.sigma:
                c = sized(name, best_split(partial(sized, name), measure, of_release))
            centroid, individual = measure(c)
        except InputError as e:
            found.append(Option(name, reason=str(e)))
            continue
        said = statement(
            c.scheme, graphs, sensitivity, rounds=rounds, noise=noise, release=c.release, delta=budget.delta
        )  # fmt: skip
        found.append(Option(name, c, centroid + of_release(c), individual, statement=said))

    def order(o: Option) -> tuple[bool, bool, float]:
        error = o.individual if release == "none" else o.released
        return error is None, o.name in BASELINES, error or 0.0

    return sorted(found, key=order)


def best_split(
    sized: Callable[[float], Calibrated], measure: Measure, of_release: Callable[[Calibrated], float]
) -> float:
    """The share of the budget for the messages that leaves the least error in the released model.

    Noise in the messages adds its variance to the error, so that two measurements give the error at any share; of other
    laws than the Gaussian, whose accounts take long, the better of the two is taken.
    """
    two = [sized(share) for share in MEASURED]
    variances, errors = [c.scheme.sigma**2 for c in two], [measure(c)[0] for c in two]
    if not two[0].scheme.law.normal:  # seconds for every share that is tried
        return min(zip(MEASURED, two, errors, strict=True), key=lambda x: x[2] + of_release(x[1]))[0]
    slope = max(0.0, (errors[0] - errors[1]) / (variances[0] - variances[1]))

    def error(odds: float) -> float:
        try:
            c = sized(1.0 / (1.0 + math.exp(-odds)))
        except InputError:  # what is left pays for no release
            return 1e300
        return slope * c.scheme.sigma**2 + of_release(c)

    from scipy.optimize import minimize_scalar

    least, most = (math.log(share / (1.0 - share)) for share in SHARES)
    found = minimize_scalar(error, bounds=(least, most), method="bounded", options={"xatol": 0.02})
    return 1.0 / (1.0 + math.exp(-float(found.x)))


def by_formula(graph: Graph, step: float, hessian: float, rounds: int, dim: int) -> Measure:
    """Variances of a quadratic, in closed form."""
    g = 1.0 - step * hessian
    if not abs(g) < 1.0:
        raise InputError("hessian", hessian, f"the step {step:g} is not stable for it; mu h must lie in (0, 2)")

    def measure(c: Calibrated) -> tuple[float, float]:
        return tuple(dim * v for v in noise_variance(c.scheme, graph, g, rounds))  # type: ignore[return-value]

    return measure


def noise_variance(scheme: Scheme, graph: Graph, g: float, rounds: int) -> tuple[float, float]:
    """(centroid, mean individual) variance per coordinate that the scheme's noise leaves after `rounds` rounds."""
    m = scheme.only_plain("the formula of a plan").wiring(graph)
    R = m.R[0]
    eigenvalues, V = np.linalg.eigh(m.W)
    shares = np.sum((V.T @ R) ** 2, axis=1)  # v_k' N v_k
    x = (g * eigenvalues) ** 2
    series = np.where(x < 1.0, (1.0 - x**rounds) / np.maximum(1.0 - x, 1e-300), float(rounds))
    mean = np.full(graph.P, 1.0 / graph.P)
    centroid = float(np.sum((mean @ R) ** 2)) * (1.0 - g ** (2 * rounds)) / (1.0 - g * g)
    return centroid, float(np.sum(shares * series) / graph.P)
