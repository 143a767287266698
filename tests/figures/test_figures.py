"""Figures: the numbers behind a curve by hand, and files that are whole or not there."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from matplotlib.figure import Figure

import confide
from confide.engines.run import Run
from confide.figures import figures
from confide.figures.figures import band, decibel, draw, save, save_csv


def test_a_band_by_hand() -> None:
    b = band(np.array([[1.0, 5.0], [3.0, 5.0], [8.0, 5.0]]))
    error = math.sqrt(((1 - 4) ** 2 + (3 - 4) ** 2 + (8 - 4) ** 2) / 2) / math.sqrt(3)
    np.testing.assert_allclose(b.mean, [4.0, 5.0])
    np.testing.assert_allclose(b.low, [4.0 - 1.96 * error, 5.0])
    np.testing.assert_allclose(b.high, [4.0 + 1.96 * error, 5.0])


def test_a_band_in_decibel_is_symmetric_and_positive() -> None:
    rows = np.array([[0.001, 2.0], [1.0, 4.0]])  # mean - 1.96 errors would be negative
    b = band(rows, ratio=True)
    half = 1.96 * rows.std(axis=0, ddof=1) / math.sqrt(2)
    np.testing.assert_allclose(b.high / b.mean, np.exp(half / rows.mean(axis=0)))
    np.testing.assert_allclose(b.mean / b.low, b.high / b.mean)
    assert (b.low > 0).all()
    assert (band(rows).low < 0).any()


def test_one_repetition_has_no_band() -> None:
    for ratio in (False, True):
        b = band(np.array([[1.0, 2.0]]), ratio=ratio)
        assert np.array_equal(b.low, b.mean)
        assert np.array_equal(b.high, b.mean)


def test_a_band_of_zeros_stays_zero() -> None:
    b = band(np.zeros((3, 2)), ratio=True)
    assert not np.any(b)


def test_decibel() -> None:
    np.testing.assert_allclose(decibel(np.array([1.0, 10.0, 0.001, 2.0])), [0, 10, -30, 10 * math.log10(2)])
    assert decibel(np.zeros(1)) == pytest.approx([-200.0])


def test_a_curve_is_drawn_in_decibel_with_its_band() -> None:
    axes = Figure().subplots()
    rows = np.array([[1.0, 10.0], [3.0, 30.0]])
    draw(axes, np.array([1.0, 2.0]), rows, "curve", "red")
    draw(axes, np.array([1.0, 2.0]), rows, "plain", "blue", in_db=False)
    first, second = axes.lines
    np.testing.assert_allclose(first.get_ydata(), 10 * np.log10([2.0, 20.0]))
    np.testing.assert_allclose(second.get_ydata(), [2.0, 20.0])
    edge = axes.collections[0].get_paths()[0].vertices[:, 1]
    b = band(rows, ratio=True)
    assert edge.max() == pytest.approx(10 * math.log10(b.high[1]))
    assert edge.min() == pytest.approx(10 * math.log10(b.low[0]))


def test_a_predicted_curve_with_its_limit() -> None:
    axes = Figure().subplots()
    draw(axes, np.array([1.0, 2.0, 3.0]), np.ones((2, 3)), "measured", "red")
    figures.draw_predicted(axes, np.array([10.0, 1.0, np.inf]), 0.1, "red")
    figures.draw_predicted(axes, np.array([10.0, 1.0]), None, "red")
    _, curve, mark, alone = axes.lines
    assert curve.get_xdata().tolist() == [1.0, 2.0]
    np.testing.assert_allclose(curve.get_ydata(), [10.0, 0.0])
    np.testing.assert_allclose(mark.get_ydata(), [-10.0])
    assert alone.is_dashed()
    figures.log_rounds(axes)
    assert [line.get_label() for line in figures.legend_of(axes)] == ["measured", "predicted"]


def test_a_very_long_curve_is_thinned_from_end_to_end(tmp_path: Path) -> None:
    n = 1_000_001
    figure = Figure()
    axes = figure.subplots()
    rng = np.random.default_rng(0)
    rows = rng.uniform(0.5, 1.5, (2, n))
    draw(axes, np.arange(1.0, n + 1), rows, "long", "red")
    figures.dress(axes, "title", "x", "y")
    x, y = axes.lines[0].get_data()
    assert len(x) == figures.MOST_POINTS
    assert (x[0], x[-1]) == (1, n)
    np.testing.assert_allclose(y, decibel(rows.mean(axis=0)[x.astype(int) - 1]))
    assert len(save(figure, tmp_path / "long")) == 2


def test_a_saved_figure_is_two_whole_files(tmp_path: Path) -> None:
    figure = Figure()
    draw(figure.subplots(), np.array([1.0, 2.0]), np.ones((2, 2)), "curve", "red")
    names = save(figure, tmp_path / "new" / "a.b")
    assert names == [str(tmp_path / "new" / "a.b.png"), str(tmp_path / "new" / "a.b.svg")]
    assert sorted(os.listdir(tmp_path / "new")) == ["a.b.png", "a.b.svg"]
    assert Path(names[0]).read_bytes().startswith(b"\x89PNG")
    assert Path(names[1]).read_text().rstrip().endswith("</svg>")


def test_a_figure_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(self: Figure, path: Path, **options: object) -> None:
        Path(path).write_text("half")
        raise RuntimeError("out of ink")

    monkeypatch.setattr(Figure, "savefig", half)
    with pytest.raises(RuntimeError, match="out of ink"):
        save(Figure(), tmp_path / "a")
    assert os.listdir(tmp_path) == []


def test_a_table_of_columns(tmp_path: Path) -> None:
    path = save_csv({"round": np.array([1.0, 2.0]), "name": ["a", "b"]}, tmp_path / "t.csv")
    assert pl.read_csv(path).to_dict(as_series=False) == {"round": [1.0, 2.0], "name": ["a", "b"]}
    assert os.listdir(tmp_path) == ["t.csv"]
    save_csv({"round": [1.0, 2.0], "cut short": [3.0]}, tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text() == "round,cut short\n1.0,3.0\n2.0,\n"


@pytest.fixture(scope="module")
def run() -> Run:
    problem = confide.problems.regression(units=3, clients=4, samples=5)
    return confide.simulate(problem, confide.Graph.ring(3), confide.GFL(sampled=2), rounds=8, repeats=3)


def test_a_run_plots_its_two_errors(run: Run) -> None:
    axes = run.plot().axes[0]
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["centroid", "individual models (mean)"]
    for line, metric in zip(axes.lines, ("centroid_msd", "individual_msd"), strict=True):
        np.testing.assert_allclose(line.get_ydata(), decibel(run.metrics[metric].mean(axis=0)))
        assert line.get_xdata().tolist() == list(range(1, 9))


def test_a_run_without_an_optimum_plots_its_loss() -> None:
    problem = confide.problems.clicks(units=2, clients=3, rows=40, test_rows=0, rho=0.0)
    assert problem.optimum is None
    algorithm = confide.GFL(sampled=2)
    run = confide.simulate(problem, confide.Graph.ring(2), algorithm, rounds=8, repeats=2, evaluate_every=3)
    axes = run.plot().axes[0]
    assert axes.get_ylabel() == "loss"
    assert axes.lines[0].get_xdata().tolist() == [3, 6, 8]
    assert "synthetic" in axes.get_title()
