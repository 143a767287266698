"""The pictures of the paper's regression, figures 2, 3 and 4, and of a final sum, which is ours.

Each has its caption inside its files, and its numbers beside it as CSV.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from confide.base.arrays import Floats
from confide.base.errors import RunError
from confide.experiments import small_steps
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
from confide.figures import figures
from confide.figures.figures import Band, band
from confide.figures.look import COLUMN, LOOKS, PAGE, Look, shades, style
from confide.theory.prediction import Level, predict

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIGMA = r"$\sigma_g^2$"
SIGMA_IN_WORDS = "σ_g²"
SHOWN_LOOKS = LOOKS | {CLIENT_LINKS: Look("#f5a51d", (0, (6.0, 1.2, 1.2, 1.2)), "D")}
REFERENCE = Look("black", (0, (1.0, 1.0)))
PANELS = {"centroid_msd": "centroid", "individual_msd": "individual models"}
LEAST, BEFORE = 0.02, 0.003  # of the exact lines in figure 4: the first step, and where they end before the limit
THIN = 0.5  # lines of a part
GRID, STEEP = 24, 10  # steps, and more of them where the lines rise to infinity


def told(x: Regression) -> str:
    """What every caption says of the marks, the lines and the bands."""
    return (
        f"Marks: measured, means of {x.repeats} repetitions and of the rounds around each. Lines: the exact "
        f"prediction. Shaded: the 95% confidence band of a single round's mean. {drawn_once(x)}"
    )


def drawn_once(x: Regression) -> str:
    return (
        f"One drawn problem and graph (seed {x.seed}, random:10:0.4, lazy Metropolis weights): the bands tell nothing "
        "of others."
    )


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
        f"models (mean over servers), μ = {MU}, {SIGMA_IN_WORDS} = {VARIANCE}: without noise (none), with homomorphic "
        "noise, and with the paper's random perturbations (per-link), between servers alone or on the links from "
        f"clients too. {told(x)}"
    )
    return _files(figure, folder / "figure_2_three_algorithms", caption, columns)


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
        files += _sweep(x, metric, SIGMA, settings, Setting("none"), stem, caption)
    return files


def figure_c(x: Regression, folder: Path) -> list[str]:
    """Figure 4: the step-size sweep, sigma_g^2 = 0.1, as steady states and as learning curves."""
    caption = (
        "Mean-square deviation of the centroid for several steps, homomorphic and per-link (the paper's random "
        f"perturbations), {SIGMA_IN_WORDS} = {VARIANCE}. {told(x)}"
    )
    settings = {name: {f"{mu:g}": Setting(name, mu=mu) for mu in STEPS} for name in PAIR}
    stem = folder / "figure_4_learning_curves"
    return [*_steady_states(x, folder), *_sweep(x, "centroid_msd", r"$\mu$", settings, None, stem, caption)]


@style()
def _steady_states(x: Regression, folder: Path) -> list[str]:
    """Against mu: exact lines, measured marks, and at the left end what noise alone adds."""
    figure = Figure(figsize=(COLUMN, 3.6), layout="constrained")
    axes = figure.subplots()
    near = x.stable_step * (1.0 - np.geomspace(0.25, BEFORE, STEEP))
    steps = np.concatenate([np.geomspace(LEAST, near[0], GRID)[:-1], near])
    limits = {name: [_limit(x, name, float(mu)) for mu in steps] for name in PAIR}
    exact = {name: np.array([level.total for level in found]) for name, found in limits.items()}
    exact = {"none": np.array([level.total - level.privacy_noise for level in limits[PAIR[0]]])} | exact
    added = {name: np.array([level.privacy_noise for level in found]) for name, found in limits.items()}
    columns: dict[str, Any] = {"mu": steps} | exact | {f"{name}, added by noise": part for name, part in added.items()}
    for name, level in exact.items():
        axes.plot(steps, figures.decibel(level), color=LOOKS[name].colour, linestyle=LOOKS[name].dash)
    axes.plot(steps, figures.decibel(added["homomorphic"]), color=LOOKS["homomorphic"].colour, linewidth=THIN)

    stable = [mu for mu in STEPS if mu < x.stable_step]
    columns["measured at mu"] = stable
    for name in PAIR:
        b = _columns([band(x.run(name, mu=mu).levels("centroid_msd"), ratio=True) for mu in stable])
        _points(axes, np.array(stable), b, LOOKS[name])
        columns |= {f"{name}, measured {part}": values for part, values in b._asdict().items()}

    found = small_steps.fits(x)
    small = np.array(small_steps.STEPS)
    columns["added by noise at mu"] = small
    for name, fit in found.items():
        scale = VARIANCE / small_steps.VARIANCES[name]  # what noise adds is proportional to its variance
        factor = np.exp(1.96 * fit.relative_errors)
        b = Band(*(scale * values for values in (fit.level, fit.level / factor, fit.level * factor)))
        _points(axes, small, b, LOOKS[name], hollow=True)
        axes.plot(small, figures.decibel(scale * fit.asymptote), color="black", linestyle=":", linewidth=0.8, zorder=5)
        columns |= {f"{name}, added by noise, measured {part}": values for part, values in b._asdict().items()}
        columns[f"{name}, added by noise, closed form"] = scale * fit.asymptote
    axes.axvline(x.stable_step, color="0.5", linewidth=0.6)
    axes.annotate("limit of stability", (x.stable_step, 0.02), xycoords=axes.get_xaxis_transform(), rotation=90, fontsize=6, ha="right", va="bottom", color="0.35")  # fmt: skip # noqa: E501
    figures.plain_log(axes, (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5))
    axes.set(xlabel=r"step-size $\mu$", ylabel="steady-state MSD of the centroid [dB]")
    caption = (
        f"Steady state of the centroid against the step, {SIGMA_IN_WORDS} = {VARIANCE}, up to the limit of mean-square "
        f"stability (μ = {x.stable_step:.2f}). Lines: the exact limit; thin: the part of homomorphic noise in it. "
        f"Marks: measured (95%), {x.repeats} repetitions; hollow ones: what noise alone adds, i.e. the squared "
        "distance between two runs with the same draws, with and without noise. For per-link that is nearly all; for "
        f"homomorphic it was measured at {SIGMA_IN_WORDS} = {small_steps.VARIANCES['homomorphic']:g} and scaled, since "
        "it is proportional. Dotted: its closed form as μ falls, O(1/μ) for per-link and O(μ) for homomorphic. "
        f"{drawn_once(x)}"
    )
    keys = [
        figures.key(LOOKS["none"]._replace(mark=""), "none"),
        *(figures.key(LOOKS[name], name) for name in PAIR),
        figures.key(Look("0.35", "none", "o"), "measured"),
        figures.key(Look("0.35", "-", "o"), "noise alone", linewidth=THIN, markerfacecolor="white"),
        figures.key(Look("black", ":"), r"closed form, $\mu \to 0$"),
    ]
    figures.legend_below(figure, keys, 3)
    return _files(figure, folder / "figure_4_step_size", caption, columns)


@style()
def figure_e(x: Regression, folder: Path) -> list[str]:
    """Ours: what a final sum over the servers recovers from the individual models.

    The centroid of the last models is that sum. It is not private as it stands: revealing it without noise is a leak.
    """
    figure = Figure(figsize=(COLUMN, 2.9), layout="constrained")
    axes = figure.subplots()
    columns: dict[str, Any] = {"sigma_g^2": list(VARIANCES)}
    for name in PAIR:
        look = LOOKS[name]
        for which, word in (("individual", "before"), ("centroid", "after")):
            levels = np.stack([x.run(name, v).levels(f"{which}_msd") for v in VARIANCES], axis=1)
            columns |= curves({f"{name} {word} the sum": levels})
            face = look.colour if word == "after" else "white"
            b = band(levels, ratio=True)
            figures.draw(axes, np.array(VARIANCES), b, look, f"{name}, {word}", markerfacecolor=face)
    floor = x.level("centroid", "none")
    axes.axhline(floor, color=LOOKS["none"].colour, label="none, after", zorder=1)
    figures.plain_log(axes, VARIANCES)
    axes.set(xlabel=SIGMA, ylabel="MSD [dB]")
    figures.legend_below(figure, axes.get_legend_handles_labels()[0], 3)
    caption = (
        "What a final sum over the servers recovers: mean-square deviation in steady state of the individual models "
        f"(before, hollow) and of their mean (after), μ = {MU}. Measured, {x.repeats} repetitions; bands: 95%. The "
        f"sum is not private as it stands: revealed without noise it is a leak. {drawn_once(x)}"
    )
    return _files(figure, folder / "final_sum", caption, columns)


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
    return _files(figure, stem, caption, columns)


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


def _limit(x: Regression, name: str, mu: float) -> Level:
    """The steady state of the centroid, of a step that is mean-square stable."""
    limit = predict(x.problem, x.graph("lazy"), Setting(name, mu=mu).algorithm, seed=x.seed).limit
    if limit is None:
        raise RunError(f"step {mu:g} is not mean-square stable, so there is no level to draw")
    return limit.centroid


def _points(axes: Axes, x: Floats, b: Band, look: Look, hollow: bool = False) -> None:
    """Measured levels with their bands."""
    level, low, high = map(figures.decibel, b)
    face = "white" if hollow else look.colour
    axes.errorbar(
        x,
        level,
        (level - low, high - level),
        fmt=look.mark,
        color=look.colour,
        markerfacecolor=face,
        markeredgewidth=0.7,
        elinewidth=0.7,
        capsize=1.5,
        zorder=4,
    )


def _columns(bands: list[Band]) -> Band:
    return Band(*(np.array(part) for part in zip(*bands, strict=True)))


def _files(figure: Figure, stem: Path, caption: str, columns: dict[str, Any]) -> list[str]:
    return [*figures.save(figure, stem, caption), figures.save_csv(columns, stem.with_name(stem.name + ".csv"))]


def curves(rows: dict[str, Floats], *, ratio: bool = True) -> dict[str, Floats]:
    """Mean and band of each curve, as columns; `ratio` for what is drawn in dB."""
    columns: dict[str, Floats] = {}
    for name, values in rows.items():
        for part, of in band(values, ratio=ratio)._asdict().items():
            columns[f"{name} {part}"] = of
    return columns
