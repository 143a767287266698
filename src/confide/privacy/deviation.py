"""From a plan to the facts that bound one client's influence; here and nowhere else a proof's conditions are checked.

What a proof asks of the step, `Sensitivity` checks; what it asks of the model and the round, this file; that the data
at hand keep what was declared, `check_data`.
"""

from __future__ import annotations

from typing import Final, assert_never

import numpy as np

from confide.base.errors import InputError
from confide.plans.plan import NETWORK, Learning, Plan
from confide.plans.words import ClippingAlone, ConvexGlm, PublicPoint, Regulariser
from confide.privacy import monotone
from confide.privacy.closed_forms import covers
from confide.privacy.rounding import Rounding
from confide.privacy.sensitivity import WITHOUT, Sensitivity
from confide.problems.models import GLM, Linear, Logistic
from confide.problems.problem import Problem
from confide.rounds.arithmetic import FixedArithmetic, check_range
from confide.rounds.schemes import Exchange

BLOCK: Final = 1 << 18  # rows that are checked at a time


def sensitivity(plan: Plan) -> Sensitivity:
    """How far one client (unit, example) can move its server, as the plan's proof bounds it.

    Raises:
        InputError: the proof does not hold for this model, step or round.
    """
    _check_proof(plan)
    _check_absence(plan)
    a, p = plan.algorithm, plan.privacy
    return Sensitivity(
        step=a.step,
        bound=a.clip.bound,
        norm=a.clip.norm,
        level=p.level,
        adjacency=p.adjacency,
        sampled=a.sampled,
        clients=plan.fewest_clients,
        dim=a.model.length,
        local_steps=plan.local_steps,
        batch=plan.batches[0],
        proof=p.proof,
        participation=p.participation,
        smoothness=p.smoothness,
        convex=a.model.convex if isinstance(p.proof, ConvexGlm) else "",
        clip=a.clip.kind,
        regulariser=a.model.ridge,
        rounding=rounding(plan),
        network=a.model.kind == NETWORK,
        reached=a.model.kind == Linear.name,
    )


def arithmetic(plan: Plan) -> FixedArithmetic | None:
    """The grid of the plan's states; None for floating point."""
    a = plan.algorithm
    return None if a.fraction_bits is None else FixedArithmetic(a.sampled, a.fraction_bits)


def largest(plan: Plan, grid: FixedArithmetic) -> float:
    """What no state and no message exceeds in absolute value.

    Raises:
        InputError: it could leave 64 bits.
    """
    noise = 0 if plan.secure is None else plan.secure.encoding(plan.algorithm.update_bound, grid.fraction_bits).noise
    update = plan.algorithm.update_bound + noise * grid.client_quantum
    start = plan.algorithm.model.largest_start
    return max(check_range(grid, plan.scheme, graph, update, plan.rounds, start) for graph in plan.graph.graphs)


def rounding(plan: Plan) -> Rounding | None:
    """What the grid adds to a deviation; None for floating point.

    A sum may hold as few clients as its quorum; in clear as few as one, and none where a simulation has dropout. A
    simulation without dropout is priced like the deployment that it stands for.
    """
    a, grid = plan.algorithm, arithmetic(plan)
    if grid is None:
        return None
    survivors = plan.secure.parameters.quorum if plan.secure is not None else 0 if a.dropout else 1
    steps, batch = plan.local_steps[1], plan.batches[1]
    exact = isinstance(plan.privacy.proof, ConvexGlm)
    error = Rounding.error(steps, batch, a.model.length, exact, largest(plan, grid), a.update_bound)
    return Rounding(grid.quantum, survivors, a.clip.kind == "example" and a.model.ridge > 0.0, error)


def check_data(plan: Plan, problem: Problem) -> None:
    """Refuse data that break what `convex-glm` was told of them, and a table that was prepared from everybody's rows.

    Raises:
        InputError: it names the sample; keep it with the data.
    """
    if problem.undeclared and not plan.privacy.unprotected:
        otherwise = "or privacy.unprotected = true, and the run has no epsilon"
        remedy = "; ".join(("no epsilon covers how its rows were prepared", *problem.undeclared, otherwise))
        raise InputError("problem", problem.spec.get("name"), remedy)
    if not isinstance(plan.privacy.proof, ConvexGlm):
        return
    if plan.privacy.smoothness is None:
        _check_reach(problem)
    else:
        _check_smoothness(plan.privacy.smoothness, problem)


def _check_proof(plan: Plan) -> None:
    a, p = plan.algorithm, plan.privacy
    model, proof, fewest = a.model, p.proof, plan.local_steps[0]
    if a.clip.kind == "example" and 2.0 * model.ridge * a.step > fewest and plan.deployment is not None:
        remedy = (
            f"the server's decay must lie in [0, 1]: with this regulariser at most {fewest / (2.0 * model.ridge):g}"
        )
        raise InputError("algorithm.step", a.step, remedy)
    match proof:
        case ClippingAlone():
            return
        case PublicPoint():
            remedy = "clients evaluate gradients at w_p, which is not a function of the messages; use another proof"
            raise InputError("privacy.proof", str(proof), remedy)
        case Regulariser():
            _needs_built_in(a, str(proof))
            if abs(proof.ridge - model.ridge) > 1e-12 * model.ridge:
                raise InputError("privacy.proof", str(proof), f"the model's regulariser is rho = {model.ridge:g}")
        case ConvexGlm():
            _needs_built_in(a, str(proof))
            if model.kind not in (Linear.name, Logistic.name) and not model.convex:
                remedy = (
                    "holds for a convex loss of one margin u'w: exactly the linear and the logistic model, or a GLM "
                    f"that declares convex = True; this model does not. {WITHOUT}"
                )
                raise InputError("privacy.proof", str(proof), remedy)
            if proof.convexity > 2.0 * model.ridge * (1 + 1e-12):
                remedy = f"every sampled loss is only 2 rho = {2 * model.ridge:g} strongly convex"
                raise InputError("privacy.proof", str(proof), remedy)
            if a.dropout:  # L stays in the denominator: with fewer survivors a round contracts less
                remedy = f"{proof} counts on every sampled client in every round; set 0, or use another proof"
                raise InputError("algorithm.dropout", a.dropout, remedy)
        case _:
            assert_never(proof)


def _needs_built_in(a: Learning, proof: str) -> None:
    if not a.model.built_in:
        raise InputError("privacy.proof", proof, "holds for the built-in local step only; use none")


def _check_absence(plan: Plan) -> None:
    """An absent unit keeps its whole deviation, which a graph with a smaller own weight would have shrunk."""
    failures, graphs, scheme = plan.graph.failures, plan.graph.graphs, plan.scheme
    absent = failures.unit or failures.units or (plan.secure is not None and plan.algorithm.dropout)
    if failures and not covers(scheme):
        remedy = "has no closed form, and the general accountant knows rounds in which all servers and links are up"
        raise InputError("scheme.name", scheme.name, remedy)
    by_graph = scheme.exchange is Exchange.GRAPH and (scheme.by_link or scheme.carry is None)
    if absent and by_graph and any((g.own_weights != graphs[0].own_weights).any() for g in graphs[1:]):
        remedy = (
            f"takes turns between graphs with other own weights: what a unit that misses a round keeps has no bound "
            f"with scheme {scheme.name}; use one graph, or a scheme whose carry does not depend on it"
        )
        raise InputError("graph.topology", graphs[0].name, remedy)


def _check_reach(problem: Problem) -> None:
    """Without a smoothness: gradients are monotone where none overflows, which confide knows of its own models."""
    model, f = problem.model, problem.federation
    if isinstance(model, GLM) and getattr(model, "convex", False) is True:
        remedy = (
            f"{type(model).__name__} only declares a convex loss: convex-glm then needs a declared bound on the "
            f"smoothness of every loss, {model.curvature_bound:g} R^2 + {2 * model.rho:g} for features of norm at "
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
    if not isinstance(model, GLM):
        raise InputError("privacy.proof", "convex-glm", f"holds for generalised linear models. {WITHOUT}")
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
