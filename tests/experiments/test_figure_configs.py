"""`confide simulate figures/N.toml` is the run behind a curve of that figure, to the last bit."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from confide.engines.driver import simulate
from confide.engines.run import Run
from confide.experiments.classification import Classification
from confide.experiments.regression import MU, NAMES, STEPS, VARIANCE, VARIANCES, Regression
from confide.plans.config import load

FIGURES = Path(__file__).parents[2] / "figures"
ROUNDS, REPEATS = 5, 2


def run(figure: int, *changes: str, evaluate_every: int | None = ROUNDS) -> Run:
    sizes = (f"rounds={ROUNDS}", f"repeats={REPEATS}")
    config = load(FIGURES / f"{figure}.toml", [*sizes, *changes])
    return simulate(**config.build()._asdict(), evaluate_every=evaluate_every)


@pytest.fixture(scope="module")
def paper() -> Regression:
    return Regression(ROUNDS, REPEATS, 0)


def the_same(one: Run, other: Run, metric: str) -> None:
    np.testing.assert_array_equal(one.metrics[metric], other.metrics[metric])
    np.testing.assert_array_equal(one.models, other.models)


@pytest.mark.parametrize("name", NAMES)
def test_figure_2(paper: Regression, name: str) -> None:
    the_same(run(2, f"scheme.name={name}", *silent(name)), paper.run(name), "centroid_msd")


def silent(name: str) -> tuple[str, ...]:
    return ("scheme.sigma=0",) if name == "none" else ()


@pytest.mark.parametrize("variance", [VARIANCE, VARIANCES[0], VARIANCES[-1]])
def test_figure_3(paper: Regression, variance: float) -> None:
    made = run(3, f"scheme.sigma={math.sqrt(variance)!r}", "scheme.name=per-link")
    the_same(made, paper.run("per-link", variance), "individual_msd")


@pytest.mark.parametrize("mu", [MU, *STEPS[:3]])
def test_figure_4(paper: Regression, mu: float) -> None:
    the_same(run(4, f"algorithm.step={mu!r}"), paper.run("homomorphic", mu=mu), "centroid_msd")


def test_figure_5() -> None:
    curves = Classification(ROUNDS, REPEATS, 0, None).runs
    for name in NAMES:
        the_same(run(5, f"scheme.name={name}", *silent(name), evaluate_every=None), curves[name], "test_error")


@pytest.mark.parametrize("path", sorted(FIGURES.glob("*.toml")), ids=lambda path: path.stem)
def test_the_commands_in_a_file_are_as_typed(path: Path) -> None:
    """Each names its own file, and its changes are keys of the config."""
    typed = [line.split() for line in path.read_text().splitlines() if line.startswith("#   confide simulate")]
    assert typed
    for _, _, _, file, *options in typed:
        assert Path(file).name == path.name
        load(
            path, [change for flag, change in zip(options[::2], options[1::2], strict=True) if flag == "--set"]
        ).build()
