"""The pictures of the paper's regression: (a), (b), (c), and (e), which is ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from confide.base.arrays import Floats
from confide.engines.run import Run
from confide.experiments.regression import CLIENT_LINKS, MU, NAMES, PAIR, SHOWN, STEPS, VARIANCE, VARIANCES, Regression
from confide.figures import figures
from confide.theory.prediction import Prediction

SIGMA = r"$\sigma_g^2$"
COLOURS = figures.COLOURS | {CLIENT_LINKS: "#e08214"}
PANELS = {
    "centroid_msd": "centroid (the network's mean model)",
    "individual_msd": "individual models (mean over servers)",
}


def figure_a(x: Regression, folder: Path) -> list[str]:
    """Three algorithms, mu = 0.7, sigma_g^2 = 0.1."""
    runs = {label: x.run(*at) for label, at in SHOWN.items()}
    predictions = {label: x.prediction(*at) for label, at in SHOWN.items()}
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    columns: dict[str, Any] = {"round": _rounds(runs["none"])}
    for axes, (metric, title) in zip(panels, PANELS.items(), strict=True):
        for label, run in runs.items():
            figures.draw(axes, _rounds(run), run.metrics[metric], NAMES.get(label, label), COLOURS[label], alpha=0.6)
            figures.draw_predicted(axes, *_predicted(predictions[label], metric), COLOURS[label])
            columns |= curves({f"{metric} {label}": run.metrics[metric]})
            columns[f"{metric} {label} predicted"] = getattr(predictions[label], metric)
        figures.dress(axes, title, "round", "MSD [dB]", legend=False)
        figures.log_rounds(axes)
    figure.suptitle(rf"(a) $\mu$ = {MU}, {SIGMA} = {VARIANCE}, {x.repeats} repetitions", fontsize=10)
    figures.legend_below(figure, panels[0])
    return [
        *figures.save(figure, folder / "a_three_algorithms"),
        figures.save_csv(columns, folder / "a_three_algorithms.csv"),
    ]


def figure_b(x: Regression, folder: Path) -> list[str]:
    """The noise sweep, for the centroid and for the individual models."""
    files: list[str] = []
    columns: dict[str, Floats] = {}
    for which in ("centroid", "individual"):
        figure, drawn = _sweep(x, f"{which}_msd", SIGMA, "variance", VARIANCES)
        figure.suptitle(rf"(b) {which} models, $\mu$ = {MU}, {x.repeats} repetitions", fontsize=10)
        files += figures.save(figure, folder / f"b_noise_{which}")
        columns |= drawn
    files.append(figures.save_csv(columns, folder / "b_noise.csv"))
    return files


def figure_c(x: Regression, folder: Path) -> list[str]:
    """The step-size sweep, sigma_g^2 = 0.1."""
    figure, columns = _sweep(x, "centroid_msd", r"$\mu$", "mu", STEPS)
    figure.suptitle(f"(c) centroid, {SIGMA} = {VARIANCE}, {x.repeats} repetitions", fontsize=10)
    return [*figures.save(figure, folder / "c_step_size"), figures.save_csv(columns, folder / "c_step_size.csv")]


def figure_e(x: Regression, folder: Path) -> list[str]:
    """Ours: what a final sum over the servers recovers from the individual models.

    The centroid of the last models is that sum. It is not private as it stands: revealing it without noise is a leak.
    """
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    columns: dict[str, Any] = {"sigma_g^2": list(VARIANCES)}
    for name in PAIR:
        for which, style, word in (("individual", "--", "before"), ("centroid", "-", "after")):
            levels = np.stack([x.run(name, v).levels(f"{which}_msd") for v in VARIANCES], axis=1)
            columns |= curves({f"{name} {word} the sum": levels})
            label, colour = f"{NAMES[name]}: {word} the sum", figures.COLOURS[name]
            figures.draw(axes, np.array(VARIANCES), levels, label, colour, linestyle=style, marker="o", markersize=4)
    floor = x.level("centroid", "none")
    axes.axhline(floor, color=figures.COLOURS["none"], linewidth=1, label="no perturbations: after the sum")
    axes.set_xscale("log")
    title = rf"(e) what a final sum over servers recovers, $\mu$ = {MU}, {x.repeats} repetitions"
    figures.dress(axes, title, SIGMA, "MSD [dB]")
    return [*figures.save(figure, folder / "e_final_sum"), figures.save_csv(columns, folder / "e_final_sum.csv")]


def _sweep(
    x: Regression, metric: str, symbol: str, swept: str, values: tuple[float, ...]
) -> tuple[Figure, dict[str, Floats]]:
    """Homomorphic beside random, one curve a value; also the rounds, the curves that did not diverge, the predicted."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    columns: dict[str, Floats] = {"round": np.arange(1, x.rounds + 1.0)}
    panels = figure.subplots(1, 2, sharey=True)
    for axes, name in zip(panels, PAIR, strict=True):
        shades = dict(zip(values, _shades(len(values)), strict=True))
        for value, shade in shades.items():
            run, prediction = x.run(name, **{swept: value}), x.prediction(name, **{swept: value})
            figures.draw(axes, _rounds(run), run.metrics[metric], f"{value:g}", shade, alpha=0.6)
            figures.draw_predicted(axes, *_predicted(prediction, metric), shade)
            if run.diverged is None:
                columns |= curves({f"{metric} {name} {value:g}": run.metrics[metric]})
            columns[f"{metric} {name} {value:g} predicted"] = getattr(prediction, metric)
        figures.dress(axes, NAMES[name], "round", "MSD [dB]", legend=False)
        figures.log_rounds(axes)
    figures.legend_beside(figure, panels[0], symbol)
    return figure, columns


def _predicted(prediction: Prediction, metric: str) -> tuple[Floats, float | None]:
    """The curve, and the level it tends to."""
    limit = prediction.limit
    level = None if limit is None else getattr(limit, metric.removesuffix("_msd")).total
    return getattr(prediction, metric), level


def _rounds(run: Run) -> Floats:
    return np.arange(1, run.rounds + 1, dtype=np.float64)


def curves(rows: dict[str, Floats], *, ratio: bool = True) -> dict[str, Floats]:
    """Mean and band of each curve, as columns; `ratio` for what is drawn in dB."""
    columns: dict[str, Floats] = {}
    for name, values in rows.items():
        b = figures.band(values, ratio=ratio)
        columns |= {f"{name} mean": b.mean, f"{name} low": b.low, f"{name} high": b.high}
    return columns


def _shades(n: int) -> list[str]:
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(c) for c in colormaps["viridis"](np.linspace(0.0, 0.9, n))]
