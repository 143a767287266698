"""What a user says about privacy beside an algorithm, and the sensitivity that follows from the two.

Facts that a proof uses (strong convexity, smoothness) are declared here or follow from the model's regulariser; they
are never measured on private data.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from confide.base.errors import InputError
from confide.base.validation import number, one_of, positive, positive_int
from confide.plans.threat import Release, Threat
from confide.privacy import monotone
from confide.privacy.calibrate import Budget
from confide.privacy.sensitivity import ADJACENCIES, LEVELS, Participation, Proof, Sensitivity
from confide.problems.models import GLM, Linear, Logistic
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL
from confide.rounds.local import sgd

BLOCK = 1 << 18  # rows that are checked at a time


@dataclass(frozen=True)
class Privacy:
    """Whose data, against whom, by which proof, within which budget.

    Attributes:
        level, adjacency, proof, participation: as in `confide account`.
        smoothness: declared bound on the smoothness of every sampled loss (for convex-glm, which credits more with
            it); it decides which steps are allowed, and a run whose data break it is refused.
        threat: the adversary that the budget is about; the statement names all.
        release: what is revealed at the end.
        releases: how many times the release may be made; each is paid for.
        unprotected: agree to a plan without a price for its own adversary or for links, or run a table that was
            prepared from everybody's rows; the statement says so first.
        dataset: name of the data, under which ledgers of several runs add up; without one they get a random id.
        epsilon, rho: budget, at most one; a run stops before the round that would pass it.
    """

    level: str = "client"
    adjacency: str = "replace"
    proof: str = "none"
    participation: str = "all"
    smoothness: float | None = None
    threat: str = "links"
    release: str = "none"
    releases: int = 1
    unprotected: bool = False
    delta: float = 1e-5
    epsilon: float | None = None
    rho: float | None = None
    dataset: str | None = None

    def __post_init__(self) -> None:
        one_of("privacy.level", self.level, LEVELS)
        one_of("privacy.adjacency", self.adjacency, ADJACENCIES)
        for name in ("smoothness", "epsilon", "rho"):
            if getattr(self, name) is not None:
                positive(f"privacy.{name}", getattr(self, name))
        if not 0.0 < number("privacy.delta", self.delta) < 1.0:
            raise InputError("privacy.delta", self.delta, "must lie strictly between 0 and 1")
        positive_int("privacy.releases", self.releases)
        if not isinstance(self.unprotected, bool):
            raise InputError("privacy.unprotected", self.unprotected, "must be true or false")
        Proof.parse(self.proof)
        Participation.parse(self.participation)
        Threat.parse(self.threat)
        Release.parse(self.release)
        if self.epsilon is not None and self.rho is not None:
            raise InputError("privacy.rho", self.rho, "give a budget either as epsilon or as rho")

    @property
    def budget(self) -> Budget | None:
        if self.epsilon is None and self.rho is None:
            return None
        return Budget(self.epsilon, self.rho, self.delta)

    @property
    def cap(self) -> int | None:
        """Rounds in which a client gives data at most; the engines see to it."""
        return Participation.parse(self.participation).cap

    def sensitivity(self, problem: Problem, algorithm: GFL, seed: int) -> Sensitivity:
        """Conditions of the proof are checked against the model, the clip and the step; the worst client counts."""
        if algorithm.clip is None:
            remedy = "without a clip nothing bounds a client's influence; set algorithm.clip and algorithm.bound"
            raise InputError("algorithm.clip", "none", remedy)
        if self.level == "example" and algorithm.replacement:
            remedy = "drawn with replacement, one example may fill a mini-batch; set algorithm.replacement = false"
            raise InputError("privacy.level", self.level, remedy)
        E, batch = algorithm.settle(problem.federation, seed)
        proof = Proof.parse(self.proof)
        _check_model(proof, problem, algorithm)
        if proof.kind == "convex-glm":
            if algorithm.dropout:  # L stays in the denominator: with fewer survivors a round contracts less
                remedy = f"{proof} counts on every sampled client in every round; set 0, or use another proof"
                raise InputError("algorithm.dropout", algorithm.dropout, remedy)
            if self.smoothness is None:
                _check_reach(problem)
            else:
                _check_smoothness(self.smoothness, problem)
                _check_step(algorithm.step, int(E.min()), self.smoothness, proof.constant)
        return Sensitivity(
            step=algorithm.step,
            bound=algorithm.clip.bound,
            norm=algorithm.clip.norm,
            level=self.level,
            adjacency=self.adjacency,
            sampled=algorithm.sampled,
            clients=int(problem.federation.K.min()),
            dim=problem.M,
            local_steps=(int(E.min()), int(E.max())),
            batch=int(batch.min()),
            proof=proof,
            participation=Participation.parse(self.participation),
            smoothness=self.smoothness,
            convex=_declared_convex(problem) if proof.kind == "convex-glm" else "",
            clip=algorithm.clip.kind,
            regulariser=float(problem.model.rho),
        )


def _declared_convex(problem: Problem) -> str:
    """Name of a model of the user's own, of which only its declaration says that the loss is convex."""
    return "" if type(problem.model) in (Linear, Logistic) else type(problem.model).__name__


def _check_reach(problem: Problem) -> None:
    """Without a smoothness: gradients are monotone where none overflows, which confide knows of its own models."""
    model, f = problem.model, problem.federation
    if _declared_convex(problem):
        assert isinstance(model, GLM)  # noqa: S101 - checked
        remedy = (
            f"{type(model).__name__} only declares a convex loss: convex-glm then needs a declared bound on the "
            f"smoothness of every loss, {model.curvature_bound():g} R^2 + {2 * model.rho:g} for features of norm at "
            "most R"
        )
        raise InputError("privacy.smoothness", None, remedy)
    for start in range(0, len(f.X), BLOCK):
        inside = monotone.within(np.asarray(f.X[start : start + BLOCK]), np.asarray(f.d[start : start + BLOCK]))
        if not inside.all():
            row = start + int(np.argmin(inside))
            remedy = f"sample {row} is not within {monotone.LARGEST:g}, beyond which gradients overflow; scale the data"
            raise InputError("privacy.proof", "convex-glm", remedy)


def _check_smoothness(declared: float, problem: Problem) -> None:
    """The step's condition needs a bound on every loss's curvature: declared, and true of the data at hand."""
    model = problem.model
    assert isinstance(model, GLM)  # noqa: S101 - checked
    X = problem.federation.X
    for start in range(0, len(X), BLOCK):
        rows = np.asarray(X[start : start + BLOCK])
        delta = model.smoothness(rows)
        if delta > declared * (1 + 1e-12):
            row = start + int(np.argmax(np.einsum("nm,nm->n", rows, rows)))
            remedy = (
                f"is not true of sample {row}, whose loss has {delta:.4g}; scale or clip the features, or declare more"
            )
            raise InputError("privacy.smoothness", declared, remedy)


def _check_step(step: float, fewest: int, smoothness: float, nu: float) -> None:
    """Every local step mu/E_k must be at most 2/(delta + nu): the client with the fewest takes the largest."""
    largest = 2.0 * fewest / (smoothness + nu)
    if step > largest:
        remedy = f"convex-glm needs mu/E <= 2/(delta + nu) for every client: at most {largest:g} with E = {fewest}"
        raise InputError("algorithm.step", step, remedy)


def _check_model(proof: Proof, problem: Problem, algorithm: GFL) -> None:
    if proof.kind in ("none", "public-point"):
        if proof.kind == "public-point":
            remedy = (
                "clients here evaluate gradients at w_p, which is not a function of the messages; use another proof"
            )
            raise InputError("privacy.proof", str(proof), remedy)
        return
    model = problem.model
    if algorithm.local is not sgd:
        raise InputError("privacy.proof", str(proof), "holds for the built-in local step only; use none")
    if proof.kind == "regulariser" and abs(proof.constant - model.rho) > 1e-12 * model.rho:
        raise InputError("privacy.proof", str(proof), f"the model's regulariser is rho = {model.rho:g}")
    if proof.kind == "convex-glm":
        declared = isinstance(model, GLM) and getattr(model, "convex", False) is True
        if type(model) not in (Linear, Logistic) and not declared:
            remedy = (
                f"holds for a convex loss of u'w: exactly the linear and the logistic model, or a GLM that declares "
                f"convex = True; {type(model).__name__} does not"
            )
            raise InputError("privacy.proof", str(proof), remedy)
        if proof.constant > 2.0 * model.rho * (1 + 1e-12):
            remedy = f"every sampled loss is only 2 rho = {2 * model.rho:g} strongly convex"
            raise InputError("privacy.proof", str(proof), remedy)
