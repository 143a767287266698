"""The pictures of the paper's regression, figures 2, 3 and 4, and of its consensus-type step.

Each has its caption inside its files, and its numbers beside it as CSV.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from confide.base.arrays import Floats
from confide.experiments.captions import SIGMA, drawn_once, told
from confide.experiments.regression import (
    CLIENT_LINKS,
    MU,
    PAIR,
    SHOWN,
    STEPS,
    VARIANCE,
    VARIANCES,
    Regression,
    Setting,
)
from confide.experiments.steady_states import figure_4
from confide.figures import figures
from confide.figures.figures import band
from confide.figures.look import COLUMN, LOOKS, PAGE, Look, shades, style
from confide.rounds.consensus import consensus
from confide.theory.prediction import after_consensus

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COMBINATIONS = (0, 1, 2, 3, 5, 7, 10, 14, 20, 28, 40)
SYMBOL = r"$\sigma_g^2$"
SHOWN_LOOKS = LOOKS | {CLIENT_LINKS: Look("#f5a51d", (0, (6.0, 1.2, 1.2, 1.2)), "D")}
REFERENCE = Look("black", (0, (1.0, 1.0)))
PANELS = {"centroid_msd": "centroid", "individual_msd": "individual models"}


@style()
def figure_a(x: Regression, folder: Path) -> list[str]:
    """Figure 2: three algorithms, mu = 0.7, sigma_g^2 = 0.1."""
    figure = Figure(figsize=(COLUMN, 4.0), layout="constrained")
    columns: dict[str, Any] = {"round": np.arange(1.0, x.rounds + 1)}
    panels = figure.subplots(2, 1, sharex=True)
    for axes, (metric, title) in zip(panels, PANELS.items(), strict=True):
        columns |= _learning(axes, x, metric, SHOWN, SHOWN_LOOKS)
        axes.set_title(title)
    panels[-1].set_xlabel("round")
    figure.supylabel("MSD [dB]", y=0.62, fontsize="medium")
    keys = [figures.key(look, label) for label, look in SHOWN_LOOKS.items()]
    figures.legend_below(figure, [*keys, *figures.what_is_what()], 2)
    caption = (
        "Mean-square deviation from the optimum of the centroid (the network's mean model) and of the individual "
        f"models (mean over servers), μ = {MU}, {SIGMA} = {VARIANCE}: without noise (none), with homomorphic "
        "noise, and with the paper's random perturbations (per-link), between servers alone or on the links from "
        f"clients too. {told(x)}"
    )
    return figures.save_with_numbers(figure, folder / "figure_2_three_algorithms", caption, columns)


def figure_b(x: Regression, folder: Path) -> list[str]:
    """Figure 3: the noise sweep, (a) for the centroid and (b) for the individual models."""
    files: list[str] = []
    for part, (metric, which) in zip("ab", PANELS.items(), strict=True):
        caption = (
            f"Mean-square deviation of the {which} for several variances of the noise, homomorphic and per-link (the "
            f"paper's random perturbations), μ = {MU}; black: the prediction without noise. {told(x)}"
        )
        stem = folder / f"figure_3{part}_noise_{which.split()[0]}"
        settings = {name: {f"{v:g}": Setting(name, v) for v in VARIANCES} for name in PAIR}
        files += _sweep(x, metric, SYMBOL, settings, Setting("none"), stem, caption)
    return files


def figure_c(x: Regression, folder: Path) -> list[str]:
    """Figure 4: the step-size sweep, sigma_g^2 = 0.1, as steady states and as learning curves."""
    caption = (
        "Mean-square deviation of the centroid for several steps, homomorphic and per-link (the paper's random "
        f"perturbations), {SIGMA} = {VARIANCE}. {told(x)}"
    )
    settings = {name: {f"{mu:g}": Setting(name, mu=mu) for mu in STEPS} for name in PAIR}
    stem = folder / "figure_4_learning_curves"
    return [*figure_4(x, folder), *_sweep(x, "centroid_msd", r"$\mu$", settings, None, stem, caption)]


@style()
def figure_e(x: Regression, folder: Path) -> list[str]:
    """Not in the paper, which only describes it: what its consensus-type step makes of the last models."""
    figure = Figure(figsize=(COLUMN, 2.9), layout="constrained")
    axes = figure.subplots()
    columns: dict[str, Any] = {"t": COMBINATIONS}
    graph, optimum = x.graph("lazy"), x.problem.optimum
    for turn, (name, look) in enumerate(LOOKS.items()):
        at = Setting(name, 0.0 if name == "none" else VARIANCE)
        models = x.run(*at).models
        errors = [np.sum((consensus(models, graph, t) - optimum) ** 2, axis=2).mean(axis=1) for t in COMBINATIONS]
        rows = np.stack(errors, axis=1)
        figures.draw(axes, np.array(COMBINATIONS), band(rows, ratio=True), look, linestyle="none", zorder=6 - turn)
        columns |= curves({name: rows})
        found = after_consensus(x.problem, graph, at.algorithm, COMBINATIONS, seed=x.seed)
        if found is not None:
            columns[f"{name} predicted"] = np.array([levels.individual.total for levels in found])
            level = figures.decibel(columns[f"{name} predicted"])
            axes.plot(COMBINATIONS, level, color=look.colour, linestyle=look.dash)
    axes.set(xlabel="clean combinations $t$ after training", ylabel="MSD of the individual models [dB]")
    keys = [*(figures.key(look, name) for name, look in LOOKS.items()), *figures.what_is_what()[:2]]
    figures.legend_below(figure, keys, 3)
    caption = (
        "The consensus-type step: mean-square deviation of the individual models after t clean combinations of the "
        f"last ones, μ = {MU}, {SIGMA} = {VARIANCE}. It falls to the level of the centroid, which homomorphic noise "
        f"leaves nearly alone and per-link noise does not. Marks: measured, {x.repeats} repetitions, 95% bands. Lines: "
        "the exact prediction. Models are sent in clear for this: a leak where servers keep a clean share of theirs. "
        f"{drawn_once(x)}"
    )
    return figures.save_with_numbers(figure, folder / "consensus_step", caption, columns)


@style()
def _sweep(
    x: Regression,
    metric: str,
    symbol: str,
    settings: dict[str, dict[str, Setting]],
    reference: Setting | None,
    stem: Path,
    caption: str,
) -> list[str]:
    """Homomorphic beside per-link, one curve a value; and the prediction of a run that is one for all of them."""
    figure = Figure(figsize=(PAGE, 2.7), layout="constrained")
    columns: dict[str, Any] = {"round": np.arange(1.0, x.rounds + 1)}
    looks = dict(zip(settings[PAIR[0]], shades(len(settings[PAIR[0]])), strict=True))
    keys = [figures.key(look, f"{symbol} = {label}") for label, look in looks.items()]
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (name, at) in zip(panels, settings.items(), strict=True):
        columns |= _learning(axes, x, metric, at, looks, name)
        axes.set_title(name)
        if reference is not None:
            figures.draw_predicted(axes, getattr(x.prediction(*reference), metric), REFERENCE)
    if reference is not None:
        keys.append(figures.key(REFERENCE, reference.name))
    panels[0].set_ylabel(f"MSD of the {PANELS[metric]} [dB]")
    figure.supxlabel("round", x=0.45, fontsize="medium")  # between the panels: the legend is beside them
    figure.legend(handles=[*keys, *figures.what_is_what()], loc="outside right upper")
    return figures.save_with_numbers(figure, stem, caption, columns)


def _learning(
    axes: Axes, x: Regression, metric: str, at: dict[str, Setting], looks: dict[str, Look], prefix: str = ""
) -> dict[str, Floats]:
    """Measured and predicted learning curves into one panel; as columns, without those that diverged."""
    columns: dict[str, Floats] = {}
    for turn, (label, setting) in enumerate(at.items()):
        rows, predicted = x.run(*setting).metrics[metric], getattr(x.prediction(*setting), metric)
        figures.draw_measured(axes, rows, looks[label], (turn, len(at)))
        figures.draw_predicted(axes, predicted, looks[label])
        name = " ".join(filter(None, (metric, prefix, label)))
        if x.run(*setting).diverged is None:
            columns |= curves({name: rows})
        columns[f"{name} predicted"] = predicted
    figures.plain_log(axes)
    return columns


def curves(rows: dict[str, Floats], *, ratio: bool = True) -> dict[str, Floats]:
    """Mean and band of each curve, as columns; `ratio` for what is drawn in dB."""
    columns: dict[str, Floats] = {}
    for name, values in rows.items():
        for part, of in band(values, ratio=ratio)._asdict().items():
            columns[f"{name} {part}"] = of
    return columns
