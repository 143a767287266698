"""`confide bench models` at a small size."""

from __future__ import annotations

import pytest

from confide.benchmarks import models


def test_it_says_what_it_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax")
    small = {"P": 2, "K": 2, "N": 6, "L": 2, "E": 2, "B": 3, "SIZES": (5, 4, 3), "TRIES": 3, "WIDE": 16, "MANY": 1}
    for name, value in small.items():
        monkeypatch.setattr(models, name, value)
    turns: list[None] = []
    numbers = models.bench(watch=lambda: turns.append(None))
    assert set(numbers) == {"updates_per_s", "sgemm_gflops", "sgemm_share", "sgemm_share_spread", "way"}
    assert numbers["updates_per_s"] > 0.0
    assert len(turns) == small["TRIES"]  # type: ignore[comparison-overlap]
