"""Shared by the tests: every scheme, a handful of graphs, and small ragged problems."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace

# Before NumPy is loaded: on matrices as small as these its threads wait for those of the other worker.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pytest
import typer
from hypothesis import HealthCheck, settings

from confide.commands import main as cli
from confide.graph.graph import Graph
from confide.problems.federation import Federation
from confide.problems.models import Linear, Logistic
from confide.problems.problem import Problem
from confide.rounds.schemes import FAMILIES, KEYS, Exchange, Scheme, scheme
from exploring import more

# The same examples in every run, so that a red one is about the change that it tests; `make explore` looks for others.
# No example has a deadline: how long one takes is the machine's affair.
anytime = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("steady", anytime, derandomize=True)
settings.register_profile("explore", anytime, print_blob=True)
settings.load_profile("explore" if "CONFIDE_EXPLORE" in os.environ else "steady")

Outcome = tuple[int, str, str]
commands = cache(typer.main.get_command)  # every call of the app would read all its options again


def every_scheme() -> list[Scheme]:
    """Each family with its noise on, so that a new row of FAMILIES is tested without being named here."""
    plain = [scheme(name, sigma=0.0 if s.places.isdisjoint(KEYS["sigma"]) else 0.7) for name, s in FAMILIES.items()]
    pairs = [scheme("pairwise", sigma, sigma_pair=0.8) for sigma in (0.0, 0.7)]
    return [*plain, *pairs, scheme("partial:0.3", 0.7)]


def label(s: Scheme) -> str:
    noises = f"{'-g' if s.sigma else ''}{'-pairs' if s.sigma_pair else ''}" if s.name == "pairwise" else ""
    return s.name + noises


@pytest.fixture(params=every_scheme(), ids=label)
def each_scheme(request: pytest.FixtureRequest) -> Scheme:
    return request.param


@pytest.fixture(params=[s for s in every_scheme() if s.exchange != Exchange.AVERAGE], ids=label)
def each_fixed_scheme(request: pytest.FixtureRequest) -> Scheme:
    """Those that run in fixed point and with failures: all but the baseline 'central'."""
    return request.param


# What a scheme does on a shape shows with one rule of weights; the other rule gives only other numbers.
SHAPES = {
    "ring:5": "lazy",
    "star:5": "metropolis",
    "random:6:0.5": "lazy",
    "complete:4": "metropolis",
    "path:2": "lazy",
    "path:1": "lazy",
}


@pytest.fixture(
    params=more(
        [f"{shape}/{rule}" for shape, rule in SHAPES.items()],
        [f"{shape}/{rule}" for shape in SHAPES for rule in ("lazy", "metropolis")],
    )
)
def each_graph(request: pytest.FixtureRequest) -> Graph:
    spec, rule = request.param.split("/")
    return Graph.parse(spec, weights=rule, seed=1)


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
            return X, d if model == "linear" else np.where(d > 0, 1.0, -1.0)

        K = [(3, 5, 4, 6)[p % 4] for p in range(P)]
        clients = [[samples(int(rng.integers(4, 10))) for _ in range(k)] for k in K]
        kind = Linear(rho) if model == "linear" else Logistic(rho)
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
