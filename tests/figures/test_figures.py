"""Figures: the numbers behind a curve by hand, and files that are whole or not there."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import polars as pl
import pytest
from matplotlib.figure import Figure
from PIL import Image

import confide
from confide.engines.run import Run
from confide.figures import figures
from confide.figures.figures import band, decibel, draw, log_spaced, save, save_csv
from confide.figures.look import LOOKS, STYLE
from confide.figures.page import caption

LOOK = LOOKS["homomorphic"]


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
    b = band(rows, ratio=True)
    draw(axes, np.array([1.0, 2.0]), b, LOOK, "curve")
    draw(axes, np.array([1.0, 2.0]), b, LOOK, "plain", in_db=False)
    first, second = axes.lines
    np.testing.assert_allclose(first.get_ydata(), 10 * np.log10([2.0, 20.0]))
    np.testing.assert_allclose(second.get_ydata(), [2.0, 20.0])
    edge = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert edge.max() == pytest.approx(10 * math.log10(b.high[1]))
    assert edge.min() == pytest.approx(10 * math.log10(b.low[0]))


@pytest.mark.parametrize("n", [1, 2, 7, 300, 1000, 1_000_001])
def test_stretches_of_rounds_are_equally_long_on_a_logarithmic_axis(n: int) -> None:
    rounds, ones = np.arange(1.0, n + 1), np.ones(n)
    x, mean, counted = log_spaced(rounds, ones, rounds)
    np.testing.assert_allclose(mean, 1.0)
    assert (np.diff(x) > 0).all()
    assert len(x) <= figures.PER_DECADE * max(1.0, math.log10(n)) + 1
    assert x[0] == 1 or n == 1
    last = rounds > n / 10 ** (1 / figures.PER_DECADE)  # whole, however the run ends: no lone round at the right
    assert counted[-1] == pytest.approx(rounds[last].mean())


def test_averages_of_stretches_by_hand() -> None:
    x, mean = log_spaced(np.array([10.0, 95.0, 100.0]), np.array([1.0, 2.0, 4.0]))  # 95 > 100 / 10^0.05
    np.testing.assert_allclose(x, [10.0, math.sqrt(9500)])
    np.testing.assert_allclose(mean, [1.0, 3.0])


def test_measured_are_marks_on_a_predicted_line() -> None:
    axes = Figure().subplots()
    figures.draw_measured(axes, np.ones((2, 3)), LOOK, (1, 2))
    figures.draw_predicted(axes, np.array([10.0, 1.0, np.inf]), LOOK)
    measured, predicted = axes.lines
    assert (measured.get_linestyle(), measured.get_marker(), measured.get_markevery()) == ("None", "s", (1, 2))
    assert predicted.get_xdata().tolist() == [1.0, 2.0]
    np.testing.assert_allclose(predicted.get_ydata(), [10.0, 0.0])
    assert predicted.is_dashed()
    assert predicted.get_marker() == "None"
    assert [entry.get_label() for entry in figures.what_is_what()] == ["measured", "predicted", "95% band, one round"]


def test_a_saved_figure_is_three_whole_files_with_their_caption(tmp_path: Path) -> None:
    figure = Figure()
    draw(figure.subplots(), np.array([1.0, 2.0]), band(np.ones((2, 2))), LOOK, "curve")
    names = save(figure, tmp_path / "new" / "a.b", "of μ & σ")
    assert names == [str(tmp_path / "new" / f"a.b.{suffix}") for suffix in ("png", "svg", "pdf")]
    assert sorted(os.listdir(tmp_path / "new")) == ["a.b.pdf", "a.b.png", "a.b.svg"]
    png, svg, pdf = map(Path, names)
    with Image.open(png) as picture:
        assert picture.text["Description"] == "of μ & σ"
        assert picture.info["dpi"] == pytest.approx((300, 300), rel=1e-3)
    assert caption(svg.read_text()) == "of μ & σ"
    assert svg.read_text().rstrip().endswith("</svg>")
    assert pdf.read_bytes().startswith(b"%PDF")


def test_the_same_figure_is_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    program = (
        "import sys, numpy as np\nfrom pathlib import Path\nfrom matplotlib.figure import Figure\n"
        "from confide.figures import figures\nfrom confide.figures.look import LOOKS, style\n"
        "with style():\n"
        "    figure = Figure()\n"
        "    axes = figure.subplots()\n"
        "    axes.set(title=r'$\\mu$ and $\\sigma_g^2$', xlabel='round')\n"
        "    b = figures.band(np.arange(1.0, 9.0).reshape(2, 4))\n"
        "    figures.draw(axes, np.arange(4.0), b, LOOKS['homomorphic'], 'homomorphic')\n"
        "    axes.legend()\n"
        "figures.save(figure, Path(sys.argv[1]) / 'a', 'caption')\n"
    )
    for n in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": n, "SOURCE_DATE_EPOCH": n}
        subprocess.run([sys.executable, "-c", program, str(tmp_path / n)], check=True, env=environment)
    for suffix in figures.FORMATS:
        assert (tmp_path / "1" / f"a{suffix}").read_bytes() == (tmp_path / "2" / f"a{suffix}").read_bytes(), suffix


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
    axes, said = run.plot().axes[0], "95% band, one round"
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["centroid", "individual models (mean)", said]
    for line, metric in zip(axes.lines, ("centroid_msd", "individual_msd"), strict=True):
        x, mean = log_spaced(np.arange(1.0, 9.0), run.metrics[metric].mean(axis=0))
        np.testing.assert_allclose(line.get_ydata(), decibel(mean))
        assert line.get_xdata().tolist() == x.tolist()


def test_a_run_without_an_optimum_plots_its_loss() -> None:
    problem = confide.problems.clicks(units=2, clients=3, rows=40, test_rows=0, rho=0.0)
    assert problem.optimum is None
    algorithm = confide.GFL(sampled=2)
    run = confide.simulate(problem, confide.Graph.ring(2), algorithm, rounds=8, repeats=2, evaluate_every=3)
    axes = run.plot().axes[0]
    assert axes.get_ylabel() == "train loss"
    np.testing.assert_allclose(axes.lines[0].get_xdata(), [3, 6, 8])
    assert "synthetic" in axes.get_title()


def test_settings_of_matplotlib_stay_the_users(run: Run, tmp_path: Path) -> None:
    before = {name: matplotlib.rcParams[name] for name in STYLE}
    save(run.plot(), tmp_path / "a")
    assert {name: matplotlib.rcParams[name] for name in STYLE} == before
