"""Numbers at the corners of what doubles and plans can say: each was printed smaller than what the test attains."""

from __future__ import annotations

import numpy as np
import pytest

import confide
from builders import a_plan
from confide.base.errors import InputError
from confide.graph.graph import Graph
from confide.problems.federation import Federation
from confide.problems.models import Linear
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL
from confide.rounds.clipping import Clip, clip
from confide.rounds.schemes import scheme

PAIR = Graph.path(2)

# ---- what gets around a clip


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")  # of the risk, which nobody promises anything about
@pytest.mark.parametrize("engine", ["compiled", "reference"])
@pytest.mark.parametrize(("feature", "label"), [(1e-165, 1e167), (1e-160, 1e163), (1e-170, 1e200), (1e120, 1e120)])
def test_a_tiny_feature_with_a_huge_label_is_clipped(engine: str, feature: float, label: float) -> None:
    """The square of the feature vanished, and with it the norm that the gradient is held against."""

    def row(x: float, d: float) -> tuple[np.ndarray, np.ndarray]:
        return np.full((1, 1), x), np.array([d])

    algorithm = GFL(
        scheme("shared", 0.0, noise="gaussian"), step=0.1, sampled=1, local_steps=1, batch=1, clip=Clip("example", 1.0)
    )
    problem = Problem(Federation.from_clients([[row(feature, label)], [row(0.0, 0.0)]]), Linear(0.0), private=False)
    run = confide.simulate(problem, PAIR, algorithm, rounds=1, engine=engine, progress=False)
    assert run.diverged is None
    assert float(run.models[0].sum()) == pytest.approx(0.1)  # mu B, shared between the two


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("bound", [1e-100, 1e-15, 1.0])
@pytest.mark.parametrize("x", [1e-170, 1e-155, 1e-99, 1e160, 1.7e308])
def test_no_share_of_a_bound_is_lost(x: float, bound: float, norm: str) -> None:
    kept = clip(np.array([x]), bound, norm)
    assert float(kept[0]) == pytest.approx(min(x, bound), rel=1e-14, abs=0.0)


def test_a_bound_whose_square_vanishes_is_refused() -> None:
    with pytest.raises(InputError, match="squares of it vanish"):
        Clip("example", 1e-180)
    with pytest.raises(InputError, match=r"algorithm\.step"):
        a_plan(step=1e-60, bound=1e-60)
