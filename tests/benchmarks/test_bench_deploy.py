"""`confide bench deploy`: what it reports, on a model too small to say anything about speed; and a client's memory."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from confide.base.errors import InputError
from confide.benchmarks import deploy
from patience import LIMIT

LARGEST_CLIENT = 80.0  # MiB, with a small model


@pytest.fixture(scope="module")
def figures() -> dict[str, float]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deploy, "PATIENCE", LIMIT)  # less than a deadline of a round: no turn waits for one
        return deploy.bench(3, 100, turns=1)


def test_the_ratios_are_those_of_the_times(figures: dict[str, float]) -> None:
    assert (figures["clients"], figures["length"], figures["rounds"]) == (3, 100, deploy.ROUNDS)
    assert all(math.isfinite(value) and (value > 0 or name.endswith("_spread")) for name, value in figures.items())
    for name in ("plain", "secure"):
        assert figures[f"ratio_{name}"] == pytest.approx(figures[f"{name}_s"] / figures["floor_s"])
        assert figures[f"cpu_ratio_{name}"] == pytest.approx(figures[f"{name}_cpu_s"] / figures["floor_cpu_s"])
    assert figures["ratio_secure_short"] == pytest.approx(figures["secure_s"] / figures["floor_short_s"])
    json.dumps(figures, allow_nan=False)


def test_a_client_is_small(figures: dict[str, float]) -> None:
    assert 20 < figures["client_rss_mib"] < LARGEST_CLIENT


def test_processor_seconds_are_those_of_a_process_and_of_its_children() -> None:
    inner = "import sys; print('here', flush=True); sys.stdin.read()"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}], check=True)"
    with subprocess.Popen([sys.executable, "-c", outer], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert len(list(deploy.with_children([process.pid]))) == 2
        alone = time.clock_gettime((~process.pid << 3) | 2)
        assert deploy.processor_seconds([process.pid]) > alone > 0  # the child was busy, too
        process.communicate()


def test_on_the_command_line(command: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def bench(clients: int, length: int, **_: object) -> dict[str, float]:
        asked.append((clients, length))
        return {"ratio_secure": 3.5}

    monkeypatch.setattr(deploy, "bench", bench)
    code, out, _ = command("bench", "deploy", "--json")
    assert (code, json.loads(out)) == (0, {"ratio_secure": 3.5})
    assert command("bench", "deploy", "--clients", "4", "--length", "7")[0] == 0
    assert asked == [(10, 131_072), (4, 7)]


def test_bad_sizes_are_refused() -> None:
    for wrong, place in (((2, 10), "clients = 2"), ((5, 0), "length = 0"), ((5, 10, 0), "turns = 0")):
        with pytest.raises(InputError, match=f"^{place}"):
            deploy.bench(*wrong)
