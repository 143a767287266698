"""The benchmark: what it reports, on a work too small to say anything about speed."""

from __future__ import annotations

import json
import math

import pytest

from confide.base.errors import InputError
from confide.benchmarks import regression as bench
from confide.problems import regression
from confide.rounds.algorithm import GFL


@pytest.fixture
def numbers(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    for name, value in (("ROUNDS", 40), ("REFERENCE_ROUNDS", 1), ("TRIES", 1)):
        monkeypatch.setattr(bench, name, value)
    return bench.bench(seed=1)


def test_the_ratios_are_those_of_the_rates(numbers: dict[str, float]) -> None:
    ratios = ("ratio", "floor_ratio", "threads_speedup")
    assert list(numbers) == [
        *("reference_rounds_per_s", "engine_rounds_per_s", "floor_rounds_per_s"),
        *(key for ratio in ratios for key in (ratio, f"{ratio}_spread")),
        "gradients_per_round",
    ]
    assert all(math.isfinite(v) and (v > 0 or key.endswith("_spread")) for key, v in numbers.items())
    assert numbers["ratio"] == pytest.approx(numbers["engine_rounds_per_s"] / numbers["reference_rounds_per_s"])
    assert numbers["floor_ratio"] == pytest.approx(numbers["floor_rounds_per_s"] / numbers["engine_rounds_per_s"])
    json.dumps(numbers, allow_nan=False)


def test_the_gradients_of_a_round_by_hand() -> None:
    problem = regression(units=2, clients=4, samples=5)
    assert bench._gradients(problem, GFL(sampled=3, local_steps=2, batch=7), 0) == pytest.approx(2 * 3 * 2 * 7)


def test_a_wrong_seed_is_refused() -> None:
    with pytest.raises(InputError, match=r"^seed = -1"):
        bench.bench(seed=-1)
