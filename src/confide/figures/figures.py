"""Pictures: learning curves in dB with confidence bands, drawn without any global state of matplotlib."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from confide.base.arrays import Floats
from confide.base.files import atomic_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

    from confide.engines.run import Run


MOST_POINTS = 2000  # of a curve; matplotlib fails on millions
# The paper's colours: no perturbations blue, homomorphic green, random red.
COLOURS = {"none": "#1f5fbf", "homomorphic": "#2a9134", "per-link": "#c8322b"}


class Band(NamedTuple):
    """A mean curve over repetitions with its 95% confidence band."""

    mean: Floats
    low: Floats
    high: Floats


def band(rows: Floats, *, ratio: bool = False) -> Band:
    """Mean over repetitions (rows) with its 95% band; no band from a single repetition.

    The band is mean +- 1.96 standard errors. For a positive quantity shown in dB (`ratio`) the error of its logarithm
    is used, mean * exp(+-1.96 se / mean): as wide to first order, symmetric in dB and never below zero.
    """
    mean = rows.mean(axis=0)
    if len(rows) < 2:
        return Band(mean, mean, mean)
    half = 1.96 * rows.std(axis=0, ddof=1) / np.sqrt(len(rows))
    if ratio:
        factor = np.exp(half / np.maximum(mean, 1e-300))
        return Band(mean, mean / factor, mean * factor)
    return Band(mean, mean - half, mean + half)


def decibel(x: Floats) -> Floats:
    """10 log10; an exact zero is drawn at -200 dB."""
    return np.asarray(10.0 * np.log10(np.maximum(x, 1e-20)))


def draw(
    axes: Axes, rounds: Floats, rows: Floats, label: str, colour: str, in_db: bool = True, **style: object
) -> None:
    """One curve with its band; of a long one as many points as a picture can show."""
    if len(rounds) > MOST_POINTS:
        shown = np.linspace(0, len(rounds) - 1, MOST_POINTS).astype(np.int64)
        rounds, rows = rounds[shown], rows[:, shown]
    b = band(rows, ratio=in_db)
    scale = decibel if in_db else np.asarray
    look = {"linewidth": 1.4} | style
    axes.plot(rounds, scale(b.mean), label=label, color=colour, **look)  # type: ignore[arg-type]
    axes.fill_between(rounds, scale(b.low), scale(b.high), color=colour, alpha=0.2, linewidth=0)


def draw_predicted(axes: Axes, curve: Floats, limit: float | None, colour: str) -> None:
    """An expected curve, thin and dashed on white so that it shows on the measured one, and the level it tends to."""
    from matplotlib.patheffects import Normal, Stroke

    seen = np.isfinite(curve)  # beyond mean-square stability it leaves every axis
    rounds, level = np.arange(1, len(curve) + 1, dtype=np.float64), decibel(curve[seen])
    halo = [Stroke(linewidth=2.4, foreground="white"), Normal()]
    axes.plot(rounds[seen], level, color=colour, linestyle=(0, (4, 2)), linewidth=1.2, zorder=4, path_effects=halo)
    if limit is not None:
        edge = axes.get_yaxis_transform()  # x as a share of the width
        axes.plot([0.988], decibel(np.array([limit])), marker="<", color=colour, markersize=5, transform=edge, zorder=5)


def log_rounds(axes: Axes) -> None:
    """Rounds on a logarithmic axis, in plain numbers: the transient is short and the steady state long."""
    from matplotlib.ticker import StrMethodFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


def legend_of(axes: Axes) -> list[Line2D]:
    """What the curves are, and one entry for all predictions."""
    from matplotlib.lines import Line2D

    handles = [h for h in axes.get_legend_handles_labels()[0] if isinstance(h, Line2D)]
    return [
        *handles,
        Line2D([], [], color="0.3", linestyle=(0, (4, 2)), linewidth=1.0, marker="<", markersize=4, label="predicted"),
    ]


def legend_below(figure: Figure, axes: Axes) -> None:
    handles = legend_of(axes)
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8)


def legend_beside(figure: Figure, axes: Axes, title: str) -> None:
    figure.legend(handles=legend_of(axes), title=title, loc="outside right upper", fontsize=8)


def dress(axes: Axes, title: str, xlabel: str, ylabel: str, legend: bool = True) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(alpha=0.25)
    if legend:
        axes.legend(fontsize=8, framealpha=0.9)


def save(figure: Figure, stem: Path) -> list[str]:
    """PNG and SVG, each all or nothing."""
    paths = []
    for suffix in (".png", ".svg"):
        path = stem.with_name(stem.name + suffix)
        with atomic_file(path) as temporary:
            figure.savefig(temporary, dpi=150, metadata={"Date": None} if suffix == ".svg" else None)
        paths.append(str(path))
    return paths


def save_csv(columns: Mapping[str, Iterable[float] | Sequence[str]], path: Path) -> str:
    """Columns side by side; a shorter one (of a run that diverged) ends in blanks."""
    import polars as pl

    lists = {name: list(values) for name, values in columns.items()}
    rows = max(map(len, lists.values()))
    with atomic_file(path) as temporary:
        pl.DataFrame({name: v + [None] * (rows - len(v)) for name, v in lists.items()}).write_csv(temporary)
    return str(path)


def plot_run(run: Run) -> Figure:
    """Learning curves of one run."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    rounds = np.arange(1, run.rounds + 1, dtype=np.float64)
    title = repr(run).splitlines()[0]
    title += "".join(f"\n{note}" for note in run.notes)
    if run.steady_state is not None:
        for metric, label, colour in (
            ("centroid_msd", "centroid", COLOURS["homomorphic"]),
            ("individual_msd", "individual models (mean)", COLOURS["per-link"]),
        ):
            draw(axes, rounds, run.metrics[metric], label, colour)
        dress(axes, title, "round", "MSD [dB]")
        return figure
    seen = np.flatnonzero(np.isfinite(run.metrics["train_loss"]).all(axis=0))
    draw(axes, rounds[seen], run.metrics["train_loss"][:, seen], "train loss", COLOURS["none"], in_db=False)
    dress(axes, title, "round", "loss")
    return figure
