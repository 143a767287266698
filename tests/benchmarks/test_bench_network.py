"""The bench of the network in a box: its figures fit together, and bad sizes are refused."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable

import pytest

from confide.base.errors import InputError
from confide.benchmarks.network import bench


def test_the_figures_fit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter", itertools.count(0.0).__next__)  # all rounds alike
    seen = []
    found = bench(3, 50, 4, lambda: seen.append(1))
    assert found["commits_per_round"] <= 3 * 3  # open and publish; flows and what closes records ride along
    assert 0.0 < found["store_share"] < 1.0
    assert 0.0 < found["memory_store_share"] < 1.0
    assert found["ratio"] == pytest.approx(found["memory_rounds_per_s"] / found["rounds_per_s"])
    assert found["messages_per_s"] / found["rounds_per_s"] == pytest.approx(
        found["memory_messages_per_s"] / found["memory_rounds_per_s"]
    )
    assert found["ratio_spread"] == 0.0
    assert len(seen) == 2 * 4 + 300


@pytest.mark.parametrize(("servers", "length", "rounds"), [(2, 10, 1), (3, 0, 1), (3, 10, 0)])
def test_sizes_that_make_no_network(servers: int, length: int, rounds: int) -> None:
    with pytest.raises(InputError):
        bench(servers, length, rounds)


def test_the_command(command: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = command("bench", "network", "--servers", 3, "--length", 20, "--rounds", 2, "--json")
    assert code == 0
    assert json.loads(out)["servers"] == 3
