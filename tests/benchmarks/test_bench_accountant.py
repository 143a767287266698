"""`confide bench accountant`: what it reports, on questions too small to say anything about speed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest

from confide.base.errors import InputError
from confide.benchmarks import accountant

SMALL = {"servers": 6, "rounds": 4, "few_servers": 3, "few_rounds": 3, "events": 5, "tries": 1}


@pytest.fixture(scope="module")
def figures() -> dict[str, float]:
    return accountant.bench(**SMALL)


def test_the_ratios_are_those_of_the_times(figures: dict[str, float]) -> None:
    json.dumps(figures, allow_nan=False)
    accounts = {name: figures[f"account_{name}_s"] for name in accountant.SCHEMES}
    slowest = max(accounts, key=accounts.__getitem__)
    assert figures["account_worst"] in {f"{slowest} on {graph}" for graph in accountant.GRAPHS}
    pairs = {"account": (accounts[slowest], figures["floor_s"])}
    pairs["statement"] = figures["statement_s"], figures["floor_s"]
    pairs["ledger"] = figures["ledger_s"], figures["ledger_floor_s"]
    pairs["import"] = figures["import_s"], figures["interpreter_s"]
    for name, (ours, floor) in pairs.items():
        assert math.isfinite(ours)
        assert floor > 0
        assert figures[f"{name}_ratio"] == pytest.approx(ours / floor)


def test_the_general_accountant_says_what_the_closed_form_says(figures: dict[str, float]) -> None:
    for name in accountant.GENERAL:
        assert figures[f"general_{name}_s"] > 0
        assert figures[f"general_{name}_ratio"] > 0
        assert figures[f"general_{name}_difference"] < 1e-10


def test_every_try_is_watched() -> None:
    seen: list[int] = []
    accountant.bench(**SMALL | {"tries": 2}, watch=lambda: seen.append(1))
    assert len(seen) == 2


def test_on_the_command_line(command: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    monkeypatch.setattr(accountant, "bench", lambda watch: {"account_worst": "shared on ring", "account_ratio": 8.5})
    code, out, _ = command("bench", "accountant", "--json")
    assert (code, json.loads(out)) == (0, {"account_worst": "shared on ring", "account_ratio": 8.5})
    assert "account_ratio" in command("bench", "accountant")[1]


@pytest.mark.parametrize("name", SMALL)
def test_bad_sizes_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"^{name} = 0"):
        accountant.bench(**SMALL | {name: 0})
