"""Shared by the tests: how Hypothesis draws, small ragged problems, and the command line in this process."""

from __future__ import annotations

import atexit
import itertools
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace

# Before NumPy is loaded: on matrices as small as these its threads wait for those of the other worker.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Where it is set (containers do), every process that a test starts compiles everything again, and is larger for it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Whoever starts the tests in the background has Ctrl-C ignored, and so would every process that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import numpy as np
import pytest
import typer
from hypothesis import HealthCheck, settings

import cases
from confide.commands import main as cli
from confide.problems.federation import Federation
from confide.problems.models import Linear, Logistic, Softmax
from confide.problems.problem import Problem

# The same examples in every run, so that a red one is about the change that it tests; `make explore` looks for others.
# No example has a deadline: how long one takes is the machine's affair.
anytime = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("steady", anytime, derandomize=True)
settings.register_profile("explore", anytime, print_blob=True)
settings.load_profile("explore" if "CONFIDE_EXPLORE" in os.environ else "steady")

# No test writes into a home: each has a state folder of its own, and what is shared by several a temporary one.
os.environ["CONFIDE_STATE"] = tempfile.mkdtemp(prefix="confide-state-")
STATES = Path(os.environ["CONFIDE_STATE"])
atexit.register(shutil.rmtree, STATES, ignore_errors=True)
counted = itertools.count()

Outcome = tuple[int, str, str]
commands = cache(typer.main.get_command)  # every call of the app would read all its options again


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`each_scheme` and its kind, `each_graph`, and both as the pairs of `cases`."""
    of = next((name for name in cases.SCHEMES if name in metafunc.fixturenames), None)
    on = "each_graph" if "each_graph" in metafunc.fixturenames else None
    if of and on:
        pairs = cases.pairs(cases.SCHEMES[of])
        names = [f"{cases.label(s)}-{spec}" for s, spec in pairs]
        metafunc.parametrize((of, on), [(s, cases.graph(spec)) for s, spec in pairs], ids=names)
    elif of:
        metafunc.parametrize(of, cases.SCHEMES[of], ids=cases.label)
    elif on:
        metafunc.parametrize(on, [cases.graph(spec) for spec in cases.GRAPHS], ids=cases.GRAPHS)


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this test's ledgers of data sets are. By a count: pytest would look through the folders of all others."""
    folder = STATES / str(next(counted))
    folder.mkdir()
    monkeypatch.setenv("CONFIDE_STATE", str(folder))
    return folder


@pytest.fixture(scope="session")
def ragged() -> Callable[..., Problem]:
    """A maker of small problems in which no two units or clients are alike: K_p of 3 to 6, N of 4 to 9."""

    @cache
    def make(P: int = 4, M: int = 2, model: str = "linear", rho: float = 0.1, test_rows: int = 20) -> Problem:
        rng = np.random.default_rng([P, M])
        w = rng.standard_normal(M)

        def samples(n: int) -> tuple[np.ndarray, np.ndarray]:
            X = rng.standard_normal((n, M)) * rng.uniform(0.3, 1.0, M)
            d = X @ w + 0.3 * rng.standard_normal(n)
            if model == "linear":
                return X, d
            return X, np.where(d > 0, 1.0, -1.0) if model == "logistic" else np.digitize(d, (-0.5, 0.5)).astype(float)

        K = [(3, 5, 4, 6)[p % 4] for p in range(P)]
        clients = [[samples(int(rng.integers(4, 10))) for _ in range(k)] for k in K]
        kind = {"linear": Linear(rho), "logistic": Logistic(rho), "softmax": Softmax(rho, classes=3)}[model]
        return Problem(Federation.from_clients(clients), kind, samples(test_rows) if test_rows else None)

    return make


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """`confide ARGUMENTS` in this process: (exit code, stdout, stderr)."""

    def call(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["confide", *map(str, arguments)])
        monkeypatch.setattr(typer.main, "get_command", commands)
        with pytest.raises(SystemExit) as done:
            cli.main()
        captured = capsys.readouterr()
        return done.value.code or 0, captured.out, captured.err

    return call


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`make test-busy` gives a seed: files in a random order, and the tests in each, so that none leans on another."""
    if seed := os.environ.get("CONFIDE_ORDER"):
        draw = random.Random(seed)  # noqa: S311 - no secret
        place = {path: draw.random() for path in dict.fromkeys(item.path for item in items)}
        items.sort(key=lambda item: (place[item.path], draw.random()))


@pytest.fixture(scope="session")
def histories() -> SimpleNamespace:
    """Histories of a server, as its transitions would write them, for every store."""
    import histories as h

    return SimpleNamespace(**vars(h))
