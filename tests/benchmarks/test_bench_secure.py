"""`confide bench secure`: what it reports, on sessions too small to say anything about speed."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from confide.base.errors import InputError
from confide.benchmarks import secure
from confide.benchmarks.secure import bench
from confide.secure import masks
from confide.secure.messages import SEALED_BYTES
from confide.secure.shares import SHARE_BYTES


@pytest.mark.parametrize("server", ["curious", "active"])
def test_ratios_are_those_of_the_figures_and_the_sum_is_exact(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "process_time", itertools.count(0.0).__next__)  # all clients alike
    figures = bench(10, 3000, 0.2, server)
    assert figures["exact"] is True
    for name in ("client", "server"):
        assert figures[f"{name}_s"] > 0
        assert figures[f"{name}_ratio"] == pytest.approx(figures[f"{name}_s"] / figures[f"{name}_floor_s"])
        assert figures[f"{name}_ratio_spread"] == pytest.approx(0.0)
    assert figures["bytes_ratio"] == pytest.approx(figures["bytes_per_client"] / figures["bytes_floor"])
    assert figures["bytes_floor"] == 4 * 3000 + 2 * 9 * SEALED_BYTES + 10 * SHARE_BYTES
    assert figures["dropped"] == 2


def test_long_updates_cost_little_more_than_their_own_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    masked, apply = [], masks.apply

    def counted(words: Any, plus: Sequence[bytes], minus: Sequence[bytes]) -> None:
        masked.append(len(plus) + len(minus))
        apply(words, plus, minus)

    monkeypatch.setattr(masks, "apply", counted)
    figures = bench(8, 200_000, 0.125)
    assert 1.0 < figures["bytes_ratio"] < 1.01
    unmasked = [7 + 7] * (1 + secure.UNMASKINGS)  # of 7 alive, and of the dead; then once more and again, to be timed
    assert masked == [8] * 8 + unmasked  # a client: of 7 neighbours and itself


def test_on_the_command_line(command: Callable[..., tuple[int, str, str]]) -> None:
    asked = ("bench", "secure", "--clients", "5", "--length", "50", "--dropout", "0.2")
    code, out, _ = command(*asked, "--json")
    assert code == 0
    assert {"client_ratio", "server_ratio", "bytes_ratio"} <= json.loads(out).keys()
    code, out, _ = command(*asked)
    assert code == 0
    assert "client_ratio" in out
    for flag, value in (("--clients", "2"), ("--length", "0"), ("--dropout", "1.5"), ("--server", "evil")):
        code, _, err = command(*asked, flag, value)
        assert code == 2
        assert flag[2:] in err


def test_dropping_more_than_the_graph_allows_is_refused() -> None:
    with pytest.raises(InputError, match=r"^dropped = 0\.9: of 10 clients 6 must answer"):
        bench(10, 10, 0.9)
