"""Proofs are licensed by the model, the clip and the step; constants are never read off the data."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from builders import a_shared_plan
from confide.base.errors import InputError
from confide.graph.graph import Graph
from confide.plans.build import of_run
from confide.plans.privacy import Privacy
from confide.plans.words import Amplified, ConvexGlm, Random
from confide.privacy import deviation
from confide.privacy.price import price
from confide.privacy.sensitivity import Sensitivity
from confide.problems import regression
from confide.problems.models import Linear, Logistic, Softmax
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL
from confide.rounds.clipping import Clip, clip
from confide.rounds.local import LocalTask

PROBLEM = regression(units=3, clients=4, samples=6, rho=0.1, covariance=(0.01, 0.05), seed=1)
RING = Graph.ring(3)
CLIPPED = GFL(step=0.3, sampled=2, local_steps=(1, 4), batch=(2, 5), clip=Clip("example", 1.0))


def licensed(privacy: Privacy, algorithm: GFL = CLIPPED, problem: Problem = PROBLEM) -> Sensitivity:
    """Of a run of these data, or why no proof holds."""
    plan = of_run(problem, [RING], algorithm, 10, 0, privacy)
    found = deviation.sensitivity(plan)
    deviation.check_data(plan, problem)
    return found


def test_the_worst_client_counts() -> None:
    E, batch = CLIPPED.settle(PROBLEM.federation, 0)
    contracting = licensed(Privacy(proof="convex-glm:0.2", smoothness=2.0))
    shrinking = licensed(Privacy(proof="regulariser:0.1"))
    assert contracting.local_steps == shrinking.local_steps == contracting.steps == (E.min(), E.max())
    assert E.min() < E.max()
    assert contracting.batch == batch.min()
    assert contracting.clients == 4  # the smallest unit, in which a client is drawn most often
    assert contracting.regulariser == shrinking.regulariser == 0.1  # of the model, whatever the proof
    # More steps contract less, fewer shrink more: whatever the draw, no client is worse than the one taken.
    kept = {int(e): (1 - 0.3 * 0.2 / e) ** e for e in E.ravel()}
    assert contracting.contraction == max(kept.values()) == kept[E.max()]
    assert shrinking.contraction == min(kept.values()) == kept[E.min()]
    most = shrinking.bound / 0.1  # beyond B / rho no deviation grows, below it who shrinks most adds most
    for apart in (0.0, 0.3 * most, most):
        reached = {g * apart + most * (1 - g) for g in kept.values()}
        assert max(reached) <= shrinking.contraction * apart + most * (1 - shrinking.contraction) + 1e-12


def test_one_example_has_its_share_of_the_batch_only_where_all_take_one_step() -> None:
    """2 mu B / L, and 1/batch of it where the other examples meet the same model under both data sets."""
    whole, batch = 2 * 0.3 * 1.0 / 2, 3
    for steps, proof, adjacency, expected in (
        (1, "none", "replace", whole / batch),
        (1, "none", "zero-out", whole / batch / 2),
        (1, "regulariser:0.1", "zero-out", whole / batch / 2),
        ((1, 4), "none", "replace", whole),
        ((1, 4), "none", "zero-out", whole),
        ((1, 4), "regulariser:0.1", "replace", whole),
        ((1, 4), "regulariser:0.1", "zero-out", whole),
        ((1, 4), "convex-glm:0.2", "replace", whole / batch),
        ((1, 4), "convex-glm:0.2", "zero-out", whole / batch / 2),
    ):
        one = replace(CLIPPED, local_steps=steps, batch=batch, replacement=False)
        smoothness = 2.0 if proof.startswith("convex") else None
        privacy = Privacy(level="example", proof=proof, adjacency=adjacency, smoothness=smoothness)
        assert licensed(privacy, one).single == pytest.approx(expected)


def test_a_decay_beyond_two_is_refused_whatever_the_proof() -> None:
    """2 rho mu / E with the fewest steps: rho 0.1, E = 1 and a step of 10."""
    for step, words in ((10.0, None), (10.01, "beyond 2, where clipping bounds nothing: at most 10")):
        algorithm = replace(CLIPPED, step=step, local_steps=(1, 4))
        assert algorithm.settle(PROBLEM.federation, 0)[0].min() == 1
        for level in ("unit", "client"):
            if words is None:
                licensed(Privacy(level=level), algorithm)
            else:
                with pytest.raises(InputError, match=words):
                    licensed(Privacy(level=level), algorithm)
    licensed(Privacy(), replace(CLIPPED, step=10.01, clip=Clip("update", 1.0)))  # clips the decay too


def test_a_rate_follows_from_the_roster() -> None:
    for kind in ("random", "amplified"):
        found = licensed(Privacy(participation=f"{kind}:0.5")).participation
        assert isinstance(found, Random | Amplified)
        assert found.rate == 0.5
        with pytest.raises(InputError, match=r"L = 2 of K = 4 gives 0\.5"):
            licensed(Privacy(participation=f"{kind}:0.4"))


@pytest.mark.parametrize(
    ("settings", "algorithm", "words"),
    [
        ({}, GFL(sampled=2), "algorithm.clip = 'none': without a clip"),
        ({"proof": "regulariser:0.2"}, CLIPPED, "the model's regulariser is rho = 0.1"),
        ({"proof": "convex-glm:0.3"}, CLIPPED, "only 2 rho = 0.2 strongly convex"),
        ({"proof": "public-point"}, CLIPPED, "not a function of the messages"),
        ({"level": "example"}, CLIPPED, "one example may fill a mini-batch"),
        (
            {"proof": "convex-glm:0.2", "smoothness": 2.0},
            GFL(sampled=2, clip=Clip("update", 1.0)),
            "clipping the whole update breaks",
        ),
        ({"proof": "convex-glm:0.2", "smoothness": 0.3}, CLIPPED, "is not true of sample"),
        (
            {"proof": "convex-glm:0.2", "smoothness": 10.0},
            CLIPPED,
            "mu/E <= 2/(delta + nu): a step of at most 0.196078",
        ),  # fine for the most steps
    ],
)
def test_what_no_proof_licenses_is_refused(settings: dict[str, object], algorithm: GFL, words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        licensed(Privacy(**settings), algorithm)  # type: ignore[arg-type]


def test_a_step_of_the_users_own_has_no_proof() -> None:
    def step(w: np.ndarray, X: np.ndarray, d: np.ndarray, task: LocalTask) -> np.ndarray:
        return -0.1 * w

    own = GFL(sampled=2, clip=Clip("update", 1.0), local=step)
    assert licensed(Privacy(level="unit"), own).single == 2 * 0.7
    with pytest.raises(InputError, match="built-in local step only"):
        licensed(Privacy(proof="regulariser:0.1"), own)


class Own:
    rho = 0.1

    def dimension(self, features: int) -> int:
        return features


class OwnConvex(Own):
    """Convex, but not a function of u'w: clipping its gradients leaves no gradient of a convex function."""

    convex = True


class Steeper(Linear):
    """Linear in name only: nobody has shown that its loss is convex."""


@pytest.mark.parametrize("model", [Own(), OwnConvex(), Steeper(0.1)])
def test_a_model_that_is_not_linear_or_logistic_has_no_convexity_proof(model: Any) -> None:
    own, given = Problem(PROBLEM.federation, model), Privacy(proof="convex-glm:0.2", smoothness=2.0)
    words = "exactly the linear and the logistic model, or .* convex = True; this model does not"
    with pytest.raises(InputError, match=words):
        licensed(given, problem=own)
    assert isinstance(licensed(given, problem=Problem(PROBLEM.federation, Linear(0.1))).proof, ConvexGlm)


SOFTMAX = Problem(replace(PROBLEM.federation, d=np.arange(PROBLEM.federation.samples) % 3.0), Softmax(0.1, classes=3))


@pytest.mark.parametrize("smoothness", [None, 2.0])
def test_a_softmax_model_has_no_convexity_proof_and_is_told_what_remains(smoothness: float | None) -> None:
    with pytest.raises(InputError, match=r"one margin u'w: .*carry 0.*level 'unit'.*regulariser:RHO.*secure sums"):
        licensed(Privacy(proof="convex-glm:0.2", smoothness=smoothness), problem=SOFTMAX)
    for given, algorithm in (
        (Privacy(proof="regulariser:0.1"), CLIPPED),
        (Privacy(proof="none", level="unit"), replace(CLIPPED, clip=Clip("update", 1.0))),
    ):
        found = licensed(given, algorithm, SOFTMAX)
        assert replace(found, dim=2, reached=True) == licensed(given, algorithm)  # whatever the loss


@pytest.mark.parametrize(("convex", "holds"), [(True, True), (False, False)])
def test_who_declares_convexity_answers_for_it(convex: bool, holds: bool) -> None:
    model = type("Declared", (Linear,), {"convex": convex})(0.1)
    own, given = Problem(PROBLEM.federation, model), Privacy(proof="convex-glm:0.2", smoothness=2.0)
    if holds:
        assert isinstance(licensed(given, problem=own).proof, ConvexGlm)
    else:
        with pytest.raises(InputError, match="this model does not"):
            licensed(given, problem=own)


def test_only_squared_losses_are_said_to_attain_the_bound() -> None:
    """At one model, over labels and features from tiny to huge, no two gradients of the others are 2 B apart."""
    u = np.repeat(np.concatenate([-np.geomspace(1e-3, 1e3, 99), np.geomspace(1e-3, 1e3, 99)]), 3)[:, None]
    n = np.arange(len(u))
    for model, w, d, least, most in (
        (Linear(), [2.0], 1e9 * (n % 3 - 1.0), 2.0 - 1e-9, 2.0 + 1e-9),
        (Logistic(), [2.0], np.where(n % 3, 1.0, -1.0), 1.0, 1.5),
        (Softmax(classes=3), [2.0, 0.0, -2.0], n % 3.0, 1.0, 1.8),
    ):
        g = clip(model.gradients(np.array(w), u, d), 1.0)
        assert least <= np.linalg.norm(g[:, None] - g[None], axis=2).max() <= most
    for kind in ("linear", "logistic", "softmax:3", "network", "own"):
        found = price(a_shared_plan(model=kind, dim=3, level="unit", clip="update")).account(4)
        assert found.exact == (kind == "linear")
