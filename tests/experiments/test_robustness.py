"""The figure of failures: what it is made of, and that each of its claims can be no."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from confide.experiments import robustness as r


@pytest.fixture(scope="module")
def x() -> r.Robustness:
    with pytest.MonkeyPatch.context() as short:
        short.setattr(r, "ROUNDS", 12)
        short.setattr(r, "DIES", (2, 10))
        made = r.Robustness(1, 0)
        assert set(made.survivors) == set(made.settling) == set(r.NETWORKS)
        return made


def test_the_same_clients_with_the_same_data(x: r.Robustness) -> None:
    one, many = x.problems["one server"].federation, x.problems["graph"].federation
    assert (one.P, many.P) == (1, r.P)
    np.testing.assert_array_equal(one.X, many.X)
    np.testing.assert_array_equal(one.client_offsets, many.client_offsets)
    np.testing.assert_allclose(x.problems["one server"].optimum, x.problems["graph"].optimum)


def test_a_tree_is_one(x: r.Robustness) -> None:
    tree = x.graphs["tree"]
    assert tree.P == len(tree.edges) + 1 == r.P
    assert max(tree.degrees) == 3


def test_one_server_that_fails_leaves_what_was_learnt_before(x: r.Robustness) -> None:
    from confide.engines.driver import simulate
    from confide.rounds.algorithm import GFL
    from confide.rounds.schemes import scheme

    problem = x.problems["one server"]
    algorithm = GFL(scheme=scheme("none"), step=r.MU, sampled=r.L * r.P)
    models = simulate(problem, x.graphs["one server"], algorithm, rounds=1, repeats=1).models
    np.testing.assert_allclose(x.survivors["one server"][0, 0], np.sum((models[0, 0] - problem.optimum) ** 2))


def test_the_figure_and_its_data(x: r.Robustness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(r, "DIES", (2, 10))
    names = {Path(file).name for file in r.figure_j(x, tmp_path)}
    assert {"robustness.png", "robustness.svg", "robustness.pdf", "robustness.csv"} <= names
    table = pl.read_csv(tmp_path / "robustness.csv")
    assert table["absent"].to_list() == [*r.ABSENT]


@pytest.mark.parametrize(
    ("graph_db", "rounds", "holds"), [(-40.0, 80, (True, True)), (-12.0, 80, (False, True)), (-40.0, 95, (True, False))]
)
def test_its_claims_can_fail(graph_db: float, rounds: float, holds: tuple[bool, ...]) -> None:
    level = {"one server": -5.0, "tree": -30.0, "graph": graph_db}
    told = r.Robustness(1, 0)
    told.survivors = {name: np.full((1, len(r.DIES)), 10.0 ** (db / 10.0)) for name, db in level.items()}
    told.settling = {name: [60.0, 65.0, float(rounds), 100.0, math.inf] for name in level}
    assert tuple(claim.holds for claim in r.claims_j(told)) == holds
