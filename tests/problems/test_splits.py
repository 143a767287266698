from __future__ import annotations

import numpy as np
import pytest

from confide.base.errors import InputError
from confide.problems import splits


def skew(client_of_row: np.ndarray, labels: np.ndarray) -> float:
    """Mean over clients of the total variation between their labels and everybody's."""
    overall = np.bincount(labels) / len(labels)
    distances = []
    for c in range(client_of_row.max() + 1):
        mine = labels[client_of_row == c]
        distances.append(np.abs(np.bincount(mine, minlength=len(overall)) / len(mine) - overall).sum() / 2)
    return float(np.mean(distances))


def test_iid_deals_every_row_in_sizes_that_differ_by_one() -> None:
    c = splits.iid(103, units=4, clients=5, seed=1)
    sizes = np.bincount(c, minlength=20)
    assert c.dtype == np.int64
    assert sorted(sizes) == [5] * 17 + [6] * 3
    assert not np.array_equal(c, np.sort(c))


def test_unequal_sizes_are_unequal_and_none_is_empty() -> None:
    sizes = np.bincount(splits.unequal(5101, 5, 10, seed=0), minlength=50)
    assert sizes.sum() == 5101
    assert sizes.min() >= 1
    assert sizes.max() > 4 * np.median(sizes)


def test_dirichlet_skew_falls_with_alpha() -> None:
    labels = np.arange(6000) % 3
    by_alpha = [skew(splits.dirichlet(labels, 4, 5, 0, alpha), labels) for alpha in (0.05, 1.0, 1000.0)]
    assert by_alpha[0] > 0.45
    assert 0.15 < by_alpha[1] < 0.45
    assert by_alpha[2] < 0.05


@pytest.mark.parametrize("alpha", [1e-300, 1e-6, 0.01])
def test_dirichlet_repairs_empty_clients(alpha: float) -> None:
    labels = np.repeat([0, 1], 60)
    c = splits.dirichlet(labels, 5, 20, 3, alpha)
    assert np.bincount(c, minlength=100).min() >= 1
    assert len(c) == 120
    assert np.array_equal(c, splits.dirichlet(labels, 5, 20, 3, alpha))


def test_dirichlet_repair_moves_one_row_to_each_empty_client() -> None:
    before = np.array([2, 2, 2, 2, 0, 0, 0])
    assert splits._fill_empty(before.copy(), 4).tolist() == [2, 2, 2, 1, 0, 0, 3]


def test_as_many_rows_as_clients() -> None:
    for c in (
        splits.iid(6, 2, 3, 0),
        splits.unequal(6, 2, 3, 0),
        splits.dirichlet(np.zeros(6), 2, 3, 0, 0.1),
    ):
        assert sorted(c) == list(range(6))


def test_the_seed_decides() -> None:
    labels = np.arange(300) % 2
    for split in (
        lambda s: splits.iid(300, 2, 5, s),
        lambda s: splits.unequal(300, 2, 5, s),
        lambda s: splits.dirichlet(labels, 2, 5, s, 1.0),
    ):
        assert np.array_equal(split(1), split(1))
        assert not np.array_equal(split(1), split(2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: splits.iid(9, 2, 5, 0), r"problem.clients = 5: 2 units of 5 clients need at least 10 rows"),
        (lambda: splits.iid(9, 0, 5, 0), r"problem.units = 0: must be at least 1"),
        (lambda: splits.iid(9, 1, True, 0), r"problem.clients = True: must be a whole number"),
        (lambda: splits.iid(9, 1, 2.0, 0), r"problem.clients = 2.0: must be a whole number"),
        (lambda: splits.iid(9, 1, 2, -1), r"problem.seed = -1"),
        (lambda: splits.unequal(9, 2, 5, 0), r"need at least 10 rows and there are 9"),
        (lambda: splits.dirichlet([0, 1], 1, 2, 0, 0.0), r"problem.alpha = 0.0: must be positive"),
        (lambda: splits.dirichlet([0, 1], 1, 2, 0, float("inf")), r"problem.alpha = inf: must be finite"),
        (lambda: splits.dirichlet([0, float("nan")], 1, 2, 0, 1.0), r"problem.label"),
    ],
)
def test_refusals(call, message) -> None:
    with pytest.raises(InputError, match=message):
        call()
