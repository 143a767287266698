"""`confide bench noise`: what it reports, on samples too few to say anything about speed."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from confide.base.errors import InputError
from confide.benchmarks import noise
from confide.laws.noise import LAWS


def test_the_ratios_are_those_of_the_rates() -> None:
    seen: list[int] = []
    noise.bench(100, tries=2, watch=lambda: seen.append(1))
    assert len(seen) == 2
    figures = noise.bench(100, tries=1)
    ratios = []
    for law in LAWS:
        for exponent in noise.EXPONENTS:
            at = f"{law}_2^{exponent}"
            ratios.append(figures[f"{at}_ratio"])
            assert ratios[-1] == pytest.approx(figures[f"floor_{at}_per_s"] / figures[f"{at}_per_s"])
    assert figures["worst_ratio"] == max(ratios)
    assert min(ratios) > 0
    json.dumps(figures, allow_nan=False)


def test_the_floor_draws_as_many_rounded_numbers() -> None:
    drawn = noise._rounded(lambda mean, scale, size: [mean + scale * 0.4] * size, 10.0, 3)
    assert drawn.tolist() == [4, 4, 4]


def test_on_the_command_line(command: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "bench", lambda watch: {"worst_ratio": 3.5})
    code, out, _ = command("bench", "noise", "--json")
    assert (code, json.loads(out)) == (0, {"worst_ratio": 3.5})


def test_bad_sizes_are_refused() -> None:
    for wrong, place in (((0,), "samples = 0"), ((10, 0), "tries = 0")):
        with pytest.raises(InputError, match=f"^{place}"):
            noise.bench(*wrong)
