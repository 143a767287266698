"""Proofs are licensed by the model, the clip and the step; constants are never read off the data."""

from __future__ import annotations

import numpy as np
import pytest

from confide.algorithm import GFL
from confide.clipping import Clip
from confide.errors import InputError
from confide.local import LocalTask
from confide.privacy.settings import Privacy
from confide.problems import regression
from confide.problems.problem import Problem

PROBLEM = regression(units=3, clients=4, samples=6, rho=0.1, covariance=(0.01, 0.05), seed=1)
CLIPPED = GFL(step=0.3, sampled=2, local_steps=(1, 4), batch=(2, 5), clip=Clip("example", 1.0))


def test_the_worst_client_counts() -> None:
    E, batch = CLIPPED.settle(PROBLEM.federation, 0)
    contracting = Privacy(proof="convex-glm:0.2", smoothness=2.0).sensitivity(PROBLEM, CLIPPED, 0)
    shrinking = Privacy(proof="regulariser:0.1").sensitivity(PROBLEM, CLIPPED, 0)
    assert contracting.local_steps == E.max() > shrinking.local_steps == E.min()
    assert contracting.batch == batch.min()
    # More steps contract less, fewer shrink less: whatever the draw, no client is worse than the one taken.
    assert all(contracting.contraction >= (1 - 0.3 * 0.2 / e) ** e - 1e-15 for e in E)


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
        ({"proof": "convex-glm:0.2"}, CLIPPED, "needs a declared bound on the smoothness of every loss: 2 R"),
        ({"proof": "convex-glm:0.2", "smoothness": 0.3}, CLIPPED, "is not true of sample"),
        (
            {"proof": "convex-glm:0.2", "smoothness": 10.0},
            CLIPPED,
            "for every client: at most",
        ),  # fine for the most steps
    ],
)
def test_what_no_proof_licenses_is_refused(settings: dict[str, object], algorithm: GFL, words: str) -> None:
    with pytest.raises(InputError, match=words.replace("(", r"\(")):
        Privacy(**settings).sensitivity(PROBLEM, algorithm, 0)  # type: ignore[arg-type]


def test_a_step_of_the_users_own_has_no_proof() -> None:
    def step(w: np.ndarray, X: np.ndarray, d: np.ndarray, task: LocalTask) -> np.ndarray:
        return -0.1 * w

    own = GFL(sampled=2, clip=Clip("update", 1.0), local=step)
    assert Privacy(level="unit").sensitivity(PROBLEM, own, 0).single == 2 * 0.7
    with pytest.raises(InputError, match="built-in local step only"):
        Privacy(proof="regulariser:0.1").sensitivity(PROBLEM, own, 0)


@pytest.mark.parametrize(
    "wrong",
    [{"delta": 0.0}, {"delta": 1.0}, {"epsilon": -1.0}, {"rho": float("nan")}, {"epsilon": 1.0, "rho": 1.0},
     {"level": "x"}, {"adjacency": "x"}, {"proof": "x"}, {"participation": "x"}, {"threat": "x"}, {"release": "x"},
     {"smoothness": 0.0}],
)  # fmt: skip
def test_nonsense_is_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong)) if len(wrong) == 1 else "rho"):
        Privacy(**wrong)  # type: ignore[arg-type]


def test_a_model_that_is_not_a_glm_has_no_convexity_proof() -> None:
    class Own:
        rho = 0.1

        def dimension(self, features: int) -> int:
            return features

    own = Problem(PROBLEM.federation, Own())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="linear and logistic models only"):
        Privacy(proof="convex-glm:0.2").sensitivity(own, CLIPPED, 0)
