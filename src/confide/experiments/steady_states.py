"""Figure 4: the centroid's steady state against the step, where random perturbations make a U, and its left end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from confide.base.arrays import Floats
from confide.base.errors import RunError
from confide.experiments import small_steps
from confide.experiments.captions import SIGMA, drawn_once
from confide.experiments.regression import PAIR, STEPS, VARIANCE, Regression, Setting
from confide.figures import figures
from confide.figures.figures import Band, band
from confide.figures.look import COLUMN, LOOKS, Look, style
from confide.theory.prediction import Level, predict

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEAST, BEFORE = 0.02, 0.003  # the first step of the exact lines, and their distance to the limit at the end
GRID, STEEP = 24, 10  # steps, and more of them where the lines rise to infinity
TICKS = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
THIN = 0.5


@style()
def figure_4(x: Regression, folder: Path) -> list[str]:
    """Exact lines, measured marks, and at the left end what noise alone adds."""
    figure = Figure(figsize=(COLUMN, 3.6), layout="constrained")
    axes = figure.subplots()
    columns = _exact(axes, x) | _measured(axes, x) | _noise_alone(axes, x)
    axes.axvline(x.stable_step, color="0.5", linewidth=THIN)
    edge = axes.get_xaxis_transform()  # y as a share of the height
    axes.text(
        x.stable_step,
        0.02,
        "limit of stability",
        transform=edge,
        rotation=90,
        size=6,
        ha="right",
        va="bottom",
        color="0.35",
    )
    figures.plain_log(axes, TICKS)
    axes.set(xlabel=r"step-size $\mu$", ylabel="steady-state MSD of the centroid [dB]")
    keys = [
        figures.key(LOOKS["none"]._replace(mark=""), "none"),
        *(figures.key(LOOKS[name], name) for name in PAIR),
        figures.key(Look("0.35", "none", "o"), "measured"),
        figures.key(Look("0.35", "-", "o"), "noise alone", linewidth=THIN, markerfacecolor="white"),
        figures.key(Look("black", ":"), r"closed form, $\mu \to 0$"),
    ]
    figures.legend_below(figure, keys, 3)
    caption = (
        f"Steady state of the centroid against the step, {SIGMA} = {VARIANCE}, up to the limit of mean-square "
        f"stability (μ = {x.stable_step:.2f}). Lines: the exact limit; thin: the part of homomorphic noise in it. "
        f"Marks: measured (95%), {x.repeats} repetitions; hollow ones: what noise alone adds, i.e. the squared "
        "distance between two runs with the same draws, with and without noise. For per-link that is nearly all; for "
        f"homomorphic it was measured at {SIGMA} = {small_steps.VARIANCES['homomorphic']:g} and scaled, since it is "
        f"proportional. Dotted: its closed form as μ falls, O(1/μ) for per-link and O(μ) for homomorphic. "
        f"{drawn_once(x)}"
    )
    return figures.save_with_numbers(figure, folder / "figure_4_step_size", caption, columns)


def _exact(axes: Axes, x: Regression) -> dict[str, Floats]:
    near = x.stable_step * (1.0 - np.geomspace(0.25, BEFORE, STEEP))
    steps = np.concatenate([np.geomspace(LEAST, near[0], GRID)[:-1], near])
    limits = {name: [_limit(x, name, float(mu)) for mu in steps] for name in PAIR}
    noise = {name: np.array([level.privacy_noise for level in found]) for name, found in limits.items()}
    total = {name: np.array([level.total for level in found]) for name, found in limits.items()}
    total = {"none": total[PAIR[0]] - noise[PAIR[0]]} | total
    for name, level in total.items():
        axes.plot(steps, figures.decibel(level), color=LOOKS[name].colour, linestyle=LOOKS[name].dash)
    axes.plot(steps, figures.decibel(noise["homomorphic"]), color=LOOKS["homomorphic"].colour, linewidth=THIN)
    return {"mu": steps} | total | {f"{name}, added by noise": part for name, part in noise.items()}


def _limit(x: Regression, name: str, mu: float) -> Level:
    limit = predict(x.problem, x.graph("lazy"), Setting(name, mu=mu).algorithm, seed=x.seed).limit
    if limit is None:
        raise RunError(f"step {mu:g} is not mean-square stable, so there is no level to draw")
    return limit.centroid


def _measured(axes: Axes, x: Regression) -> dict[str, Floats]:
    """At those of the paper's steps that have a steady state."""
    steps = [mu for mu in STEPS if mu < x.stable_step]
    columns = {"measured at mu": np.array(steps)}
    for name in PAIR:
        bands = [band(x.run(name, mu=mu).levels("centroid_msd"), ratio=True) for mu in steps]
        b = Band(*map(np.array, zip(*bands, strict=True)))
        columns |= _points(axes, columns["measured at mu"], b, LOOKS[name], f"{name}, measured")
    return columns


def _noise_alone(axes: Axes, x: Regression) -> dict[str, Floats]:
    """For small steps, beside its closed form; in proportion to the variance, which was another for homomorphic."""
    steps = np.array(small_steps.STEPS)
    columns = {"added by noise at mu": steps}
    for name, fit in small_steps.fits(x).items():
        scale, factor = VARIANCE / small_steps.VARIANCES[name], np.exp(1.96 * fit.relative_errors)
        b = Band(*(scale * values for values in (fit.level, fit.level / factor, fit.level * factor)))
        columns |= _points(axes, steps, b, LOOKS[name], f"{name}, added by noise, measured", markerfacecolor="white")
        form = columns[f"{name}, added by noise, closed form"] = scale * fit.asymptote
        axes.plot(steps, figures.decibel(form), color="black", linestyle=":", linewidth=0.8, zorder=5)
    return columns


def _points(axes: Axes, x: Floats, b: Band, look: Look, name: str, **own: Any) -> dict[str, Floats]:
    """Measured levels with their bands; also as columns."""
    level, low, high = map(figures.decibel, b)
    marks: dict[str, Any] = {"fmt": look.mark, "color": look.colour, "markeredgewidth": 0.7, "elinewidth": 0.7}
    axes.errorbar(x, level, (level - low, high - level), capsize=1.5, zorder=4, **marks, **own)
    return {f"{name} {part}": values for part, values in b._asdict().items()}
