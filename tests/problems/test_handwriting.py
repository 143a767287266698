"""The digits: everybody's data, dealt out by the seed."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from sklearn.datasets import load_digits

import confide
from confide.base.errors import InputError
from confide.plans.config import parse
from confide.problems import digits
from confide.problems.models import Softmax

X, D = load_digits(return_X_y=True)


def test_every_image_is_dealt_once_and_pixels_end_at_one() -> None:
    p = digits()
    assert p.test is not None
    assert (p.federation.P, p.federation.K.tolist(), p.M) == (5, [10] * 5, 640)
    assert p.model == Softmax(0.001, classes=10)
    found = np.column_stack([np.vstack([p.federation.X, p.test[0]]), np.concatenate([p.federation.d, p.test[1]])])
    everything = np.column_stack([X / 16.0, D])
    assert sorted(map(tuple, found)) == sorted(map(tuple, everything))
    assert len(p.test[1]) == pytest.approx(0.2 * len(D), abs=50)
    assert np.array_equal(digits().federation.X, p.federation.X)
    assert not np.array_equal(digits(seed=1).federation.X, p.federation.X)


def test_they_are_nobodys_secret_and_every_output_says_so() -> None:
    p = digits(test_fraction=0)
    assert not p.private
    assert p.test is None
    assert p.undeclared == ()
    assert p.notes == ("the digits are public: what is printed of their privacy is a demonstration",)
    again = dict(p.spec)
    assert again.pop("name") == "digits"
    assert np.array_equal(digits(**again).federation.d, p.federation.d)


def test_the_clients_of_a_small_alpha_know_few_digits() -> None:
    kinds = [
        np.mean(
            [
                len(np.unique(digits(split="dirichlet", alpha=a).federation.client(p, k)[1]))
                for p in range(5)
                for k in range(10)
            ]
        )
        for a in (0.05, 100.0)
    ]
    assert kinds[0] < 4 < 8 < kinds[1]


def test_a_config_learns_to_read_them() -> None:
    config = parse({"problem": {"name": "digits"}, "rounds": 60, "repeats": 1, "graph": {"topology": "ring"}})
    assert config.problem.without_data() == (Softmax(0.001, classes=10), 64)
    e = config.build()
    run = confide.simulate(
        e.problem,
        e.graph,
        confide.GFL(confide.scheme("none"), step=2.0, sampled=10, local_steps=2, batch=10),
        rounds=60,
    )
    assert run.final["test_error"] is not None
    assert run.final["test_error"] < 0.15
    assert e.problem.optimum is not None
    assert run.metrics["centroid_msd"][0, -1] < run.metrics["centroid_msd"][0, 0]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"split": "columns"}, r"problem.split = 'columns'"),
        ({"split": "dirichlet"}, r"problem.alpha = None"),
        ({"alpha": 1.0}, r"problem.alpha = 1.0"),
        ({"model": "linear"}, r"problem.model = 'linear'"),
        ({"clients": 400}, r"need at least 2000 rows and there are 1797"),
        ({"units": 0}, r"problem.units = 0"),
        ({"test_fraction": 1.0}, r"problem.test_fraction = 1.0"),
        ({"rho": -1.0}, r"problem.rho = -1.0"),
        ({"seed": -1}, r"problem.seed = -1"),
    ],
)
def test_refusals(how: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        digits(**how)  # type: ignore[arg-type]


def test_without_scikit_learn_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(InputError, match=r"problem\.name = 'digits': .*pip install 'confide\[digits\]'"):
        digits()
