"""One server, a tree, a graph and clients alone at equal privacy: the same data, the epsilon asked, true verdicts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from confide.experiments import architectures as k
from confide.privacy.accountant import account


@pytest.fixture(scope="module")
def x() -> k.Architectures:
    return k.Architectures(2, 0)


def test_the_same_clients_with_the_same_data(x: k.Architectures) -> None:
    all_rows = x.task.problem.federation.X
    for name, servers in zip(k.NETWORKS, (1, 10, 10, 200), strict=True):
        f = x.served(name).problem.federation
        assert (f.P, f.clients) == (servers, 200)
        np.testing.assert_array_equal(f.X, all_rows)
    tree = x.graphs["tree"]
    assert len(tree.edges) == tree.P - 1


@pytest.mark.parametrize("name", k.NETWORKS)
def test_every_network_has_the_epsilon_that_is_asked(x: k.Architectures, name: str) -> None:
    """Accounted afresh, of what the calibration gave."""
    graph, L = x.graphs[name], 200 // x.graphs[name].P
    s = replace(x.task.sensitivity, sampled=L, clients=L)
    c = x.sized(name, 4.38)
    spent = account(c.scheme, graph, s, rounds=k.ROUNDS, release=c.release, delta=k.DELTA)
    assert spent.epsilon == pytest.approx(4.38, rel=1e-3)


def test_the_noise_of_the_release_is_in_the_error(x: k.Architectures) -> None:
    """With one server it is all the noise there is."""
    c, task = x.sized("one server", 4.38), x.served("one server")
    quiet, _ = k.trained(task, x.graphs["one server"], c.scheme, k.CLIENTS, x.repeats, x.seed)
    hidden = c.release.hidden(1, 0)
    assert hidden > 0.0
    np.testing.assert_allclose(x.errors("one server", 4.38), quiet + task.problem.M * hidden**2)


def test_the_picture_and_its_numbers(x: k.Architectures, tmp_path: Path) -> None:
    names = {Path(file).name for file in k.figure_k(x, tmp_path)}
    assert names == {f"architectures{suffix}" for suffix in (".png", ".svg", ".pdf", ".csv")}
    table = pl.read_csv(tmp_path / "architectures.csv")
    assert table["epsilon"].to_list() == [*k.EPSILONS]
    np.testing.assert_allclose(table["graph: MSD"], [x.errors("graph", e).mean() for e in k.EPSILONS])


@pytest.mark.parametrize(
    ("db", "holds"),
    [
        ((-20.0, -10.0, -10.0, 5.0), (True, True)),
        ((-15.0, -10.0, -10.0, 5.0), (False, True)),
        ((-20.0, -10.0, -10.0, -5.0), (False, True)),
        ((-20.0, -8.0, -10.0, 5.0), (True, False)),
    ],
)
def test_its_claims_can_fail(db: tuple[float, ...], holds: tuple[bool, ...]) -> None:
    told = k.Architectures(1, 0)
    for name, level in zip(k.NETWORKS, db, strict=True):
        for epsilon in k.EPSILONS:
            told._errors[name, epsilon] = np.array([10.0 ** (level / 10.0)])
    assert tuple(claim.holds for claim in k.claims_k(told)) == holds
