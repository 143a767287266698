"""What the paper says of its classification, judged on models that are told, and on a few rounds."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from confide.experiments import classification as c
from confide.experiments import classification_claims as d
from confide.experiments.readings import BASELINES, CROSSED, DEFAULT, HOMOMORPHIC, Baseline

ROWS, REPEATS = 1000, 8


def told(error: float, log_loss: float = 0.6, spread: float = 0.0) -> d.Told:
    """The first rows are wrong, in every repetition but for a spread: rows differ only where the rates do."""
    rates = error + spread * np.linspace(-1.0, 1.0, REPEATS)
    wrong = (np.arange(ROWS)[:, None] < ROWS * rates).astype(np.float64)
    return d.Told(wrong, np.full((ROWS, REPEATS), log_loss))


class Made(d.Trained):
    """Error rates without noise, with homomorphic and with random noise, and the log-loss of random."""

    def __init__(self, *rates: float, log_loss: float = 0.6, spread: float = 0.0) -> None:
        self.models = [told(rate) for rate in rates[:2]] + [told(rates[2], log_loss, spread)]

    def none(self) -> d.Told:
        return self.models[0]

    def homomorphic(self) -> d.Told:
        return self.models[1]

    def random(self) -> d.Told:
        return self.models[2]


def verdicts(x: d.Trained) -> tuple[bool | None, ...]:
    return tuple(next(said.judge(x)).holds for said in d.SAID.values())


@pytest.mark.parametrize(
    ("x", "holds"),
    [
        (Made(0.30, 0.301, 0.45), (True, True, True)),
        (Made(0.30, 0.301, 0.45, log_loss=1.3), (False, True, True)),
        (Made(0.30, 0.301, 0.45, log_loss=0.7), (False, True, True)),
        (Made(0.30, 0.37, 0.50), (True, False, True)),
        (Made(0.30, 0.29, 0.50), (True, True, True)),  # it may help
        (Made(0.30, 0.301, 0.31), (True, True, False)),
        (Made(0.30, 0.301, 0.37, spread=0.2), (True, True, None)),  # repetitions differ
        (Made(0.30, 0.32, 0.45), (True, None, True)),  # 20 of 1000 rows are too few
    ],
)
def test_every_verdict_of_figure_d(x: Made, holds: tuple[bool | None, ...]) -> None:
    assert verdicts(x) == holds


def test_differences_are_paired() -> None:
    """The same rows are wrong in both: neither rows nor repetitions leave any doubt."""
    apart, error = told(0.3, spread=0.1).difference(told(0.3, spread=0.1))
    assert (apart, error) == (0.0, 0.0)
    apart, error = told(0.31).difference(told(0.3))
    assert apart == pytest.approx(0.01)
    assert 0.0 < error < 0.0129, "of 1000 rows; as independent samples it would be six times as much"


def test_fewer_repetitions_are_the_first() -> None:
    x = c.Classification(3, c.FEW + 2, 0, None)
    whole, few = x.run(HOMOMORPHIC), x.run(HOMOMORPHIC, weights="metropolis")
    assert (whole.repeats, few.repeats) == (c.FEW + 2, c.FEW)
    rows = d.Rows(x)
    assert rows.told(HOMOMORPHIC, DEFAULT).wrong.shape == (d.FRESH, c.FEW + 2)
    cost, _ = rows.told(HOMOMORPHIC, DEFAULT).difference(rows.told(HOMOMORPHIC, CROSSED[1]))
    assert math.isfinite(cost)
    assert x.run(Baseline("none"), 0.1) is x.run(Baseline("none")), "without noise there is no variance"
    assert x.run(HOMOMORPHIC) is whole


def test_fresh_rows_are_balanced_and_clean() -> None:
    x = c.Classification(2, 1, 0, None)
    (X, labels), (unit, same) = d.Rows(x).of(False), d.Rows(x).of(True)
    test = x.problem().test
    assert test is not None
    assert X.shape == (d.FRESH, test[0].shape[1])
    assert labels.sum() == 0.0
    np.testing.assert_allclose(np.linalg.norm(X, axis=1), math.sqrt(21.0))
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), math.sqrt(2.0))  # with the intercept
    np.testing.assert_array_equal(labels, same)


def test_claims_on_a_few_rounds() -> None:
    claims = d.claims_d(c.Classification(2, 1, 0, None))
    assert [(claim.id, claim.figure, claim.holds) for claim in claims] == [
        ("d0", "5", None),
        ("d1", "5", None),
        ("d2", "5", None),
    ], "one repetition decides nothing"
    assert [claim.expected for claim in claims] == [False, True, True]
    d0, d1, _ = claims
    assert any("synthetic" in n for n in d1.numbers["notes"])
    assert d1.numbers["rows"] == d.FRESH
    assert set(d0.numbers["log_loss_by_variance"]) == {"rows of norm sqrt 21", "rows of norm 1"}
    for claim in claims:
        plain = claim.to_dict()
        assert json.loads(json.dumps(plain, allow_nan=False)) == plain
        assert [r["name"] for r in plain["readings"]] == [
            "literal, lazy (measured)",
            *map(str, CROSSED[1:]),
            "literal, lazy, rows of norm 1",
        ]
    assert set(BASELINES) <= {str(q).split(",")[0] for q in CROSSED}
