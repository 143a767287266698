"""Pictures: curves with confidence bands, in dB or plain, and files of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from confide.base.arrays import Floats
from confide.base.files import atomic_file
from confide.figures.look import COLUMN, Look, shades, style

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

    from confide.engines.run import Run


PER_DECADE = 20  # points of a learning curve: the same distance apart on a logarithmic axis, however long the run
FORMATS = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}  # no dates: the same bytes again
CAPTION = {".png": "Description", ".svg": "Description", ".pdf": "Subject"}  # where a file keeps it


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


def log_spaced(rounds: Floats, *curves: Floats) -> list[Floats]:
    """Rounds and curves, averaged over stretches that are equally long on a logarithmic axis, from the last round back.

    Of a band this is the mean band of a single round, not the narrower one of the average.
    """
    stretch = np.floor(PER_DECADE * np.log10(rounds[-1] / rounds))
    starts = np.flatnonzero(np.diff(stretch, prepend=np.inf))
    count = np.diff(starts, append=len(rounds))
    centres, *averages = (np.add.reduceat(values, starts) / count for values in (np.log(rounds), *curves))
    return [np.exp(centres), *averages]


def draw(axes: Axes, x: Floats, b: Band, look: Look, label: str = "", in_db: bool = True, **own: Any) -> None:
    """One curve with its band."""
    scale = decibel if in_db else np.asarray
    drawn = {"color": look.colour, "linestyle": look.dash, "marker": look.mark, "label": label} | own
    axes.plot(x, scale(b.mean), **drawn)
    axes.fill_between(x, scale(b.low), scale(b.high), color=look.colour, alpha=0.18, linewidth=0)


def draw_measured(axes: Axes, rows: Floats, look: Look, turn: tuple[int, int] = (0, 1)) -> None:
    """A learning curve from round 1 on as marks, for a line is what theory expects of it.

    Args:
        turn: which curve of how many: where curves coincide, their marks come one after the other.
    """
    x, *b = log_spaced(np.arange(1.0, rows.shape[1] + 1), *band(rows, ratio=True))
    marks: dict[str, Any] = {
        "linestyle": "none",
        "markevery": turn,
        "markeredgecolor": "white",
        "markeredgewidth": 0.3,
        "zorder": 4,
    }
    draw(axes, x, Band(*b), look, **marks)


def draw_predicted(axes: Axes, curve: Floats, look: Look) -> None:
    """An expected learning curve; beyond mean-square stability it leaves every axis."""
    rounds = np.arange(1.0, len(curve) + 1)
    x, mean = log_spaced(rounds, curve)
    seen = np.isfinite(mean)
    axes.plot(x[seen], decibel(mean[seen]), color=look.colour, linestyle=look.dash, zorder=3)


def plain_log(axes: Axes, at: Sequence[float] | None = None) -> None:
    """A logarithmic x-axis in plain numbers."""
    from matplotlib.ticker import NullFormatter, StrMethodFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    if at is not None:
        axes.set_xticks(at)
        axes.minorticks_off()


def key(look: Look, label: str, **own: Any) -> Artist:
    """An entry of a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=look.colour, linestyle=look.dash, marker=look.mark, label=label, **own)


def what_is_what(band: str = "95% band, one round") -> list[Artist]:
    """Entries of a legend: marks, lines and bands of learning curves."""
    from matplotlib.patches import Patch

    grey = "0.35"
    return [
        key(Look(grey, "none", "o"), "measured"),
        key(Look(grey), "predicted"),
        Patch(color=grey, alpha=0.25, linewidth=0, label=band),
    ]


def legend_below(figure: Figure, handles: Sequence[Artist], columns: int) -> None:
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, columnspacing=1.2, handlelength=2.6)


@style()
def save(figure: Figure, stem: Path, caption: str = "") -> list[str]:
    """PNG, SVG and PDF, each all or nothing, with the caption inside."""
    figure.draw_without_rendering()
    figure.set_layout_engine(None)  # laid out once for all; a format would do it again
    paths = []
    for suffix, metadata in FORMATS.items():
        path = stem.with_name(stem.name + suffix)
        with atomic_file(path) as temporary:
            figure.savefig(temporary, dpi=300, metadata=metadata | {CAPTION[suffix]: caption})
        paths.append(str(path))
    return paths


def save_with_numbers(
    figure: Figure, stem: Path, caption: str, columns: Mapping[str, Iterable[float] | Sequence[str]]
) -> list[str]:
    """The pictures, and what they show as CSV."""
    return [*save(figure, stem, caption), save_csv(columns, stem.with_name(stem.name + ".csv"))]


def save_csv(columns: Mapping[str, Iterable[float] | Sequence[str]], path: Path) -> str:
    """Columns side by side; a shorter one (of a run that diverged) ends in blanks."""
    import polars as pl

    lists = {name: list(values) for name, values in columns.items()}
    rows = max(map(len, lists.values()))
    with atomic_file(path) as temporary:
        pl.DataFrame({name: v + [None] * (rows - len(v)) for name, v in lists.items()}).write_csv(temporary)
    return str(path)


@style()
def plot_run(run: Run) -> Figure:
    """Learning curves of one run."""
    figure = Figure(figsize=(COLUMN, 2.6), layout="constrained")
    axes = figure.subplots()
    rounds = np.arange(1.0, run.rounds + 1)
    axes.set_title("\n".join([repr(run).splitlines()[0], *run.notes]), fontsize=6, wrap=True)
    if run.steady_state is not None:
        shown = {"centroid_msd": "centroid", "individual_msd": "individual models (mean)"}
        for (metric, label), look in zip(shown.items(), shades(2), strict=True):
            x, *b = log_spaced(rounds, *band(run.metrics[metric], ratio=True))
            draw(axes, x, Band(*b), look._replace(mark=""), label)
        axes.set_ylabel("MSD [dB]")
        axes.legend(handles=[*axes.lines, what_is_what()[-1]])
    else:
        known = np.isfinite(run.metrics["train_loss"]).all(axis=0).any()  # not of a train function of one's own
        metric = "train_loss" if known else "disagreement"
        seen = np.flatnonzero(np.isfinite(run.metrics[metric]).all(axis=0))
        x, *b = log_spaced(rounds[seen], *band(run.metrics[metric][:, seen]))
        draw(axes, x, Band(*b), shades(1)[0]._replace(mark=""), in_db=False)
        axes.set_ylabel(metric.replace("_", " "))
    plain_log(axes)
    axes.set_xlabel("round")
    return figure
