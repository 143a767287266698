"""The paper's classification experiment, figure 5: click-through prediction on Avazu, or on a stand-in.

The paper gives P = 5, K = 10, rho = 0.03, mu = 0.5 and sigma_g^2 = 0.6. It leaves the graph, L, E and the batch open;
here: a ring with lazy weights, L = 5, E in 1..5, batches of 5 to 10, and one-hot rows not scaled to norm 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from confide.base.arrays import Floats
from confide.engines.driver import simulate
from confide.engines.run import Run
from confide.experiments.readings import BASELINES, HOMOMORPHIC, Baseline
from confide.experiments.regression_figures import curves
from confide.figures import figures
from confide.figures.look import LOOKS, PAGE, style
from confide.graph.graph import Graph
from confide.problems import Problem, clicks
from confide.rounds.algorithm import GFL

MU, VARIANCE, RHO = 0.5, 0.6, 0.03
METRICS = {"test_error": "test error", "test_auc": "AUC", "test_log_loss": "log-loss"}
CHANCE = {"test_error": 0.5, "test_auc": 0.5, "test_log_loss": math.log(2.0)}  # of balanced classes


SHOWN = {"none": Baseline("none"), "homomorphic": HOMOMORPHIC, "per-link": BASELINES["literal"]}  # in the figure
FEW = 10  # repetitions of what no figure shows


@dataclass
class Classification:
    """Runs on one drawn log; each is made when it is first asked for and kept."""

    rounds: int
    repeats: int
    seed: int
    data: Path | None
    _problems: dict[bool, Problem] = field(default_factory=dict)
    _runs: dict[tuple[Any, ...], Run] = field(default_factory=dict)

    @property
    def runs(self) -> dict[str, Run]:
        """Those of the figure."""
        return {name: self.run(noise) for name, noise in SHOWN.items()}

    def problem(self, unit_rows: bool = False) -> Problem:
        if unit_rows not in self._problems:
            self._problems[unit_rows] = clicks(self.data, rho=RHO, seed=self.seed, unit_rows=unit_rows)
        return self._problems[unit_rows]

    def run(self, noise: Baseline, variance: float = VARIANCE, weights: str = "lazy", unit_rows: bool = False) -> Run:
        variance = 0.0 if noise.scheme == "none" else variance
        key = noise, variance, weights, unit_rows
        if key not in self._runs:
            shown = noise in SHOWN.values() and variance in (0.0, VARIANCE) and (weights, unit_rows) == ("lazy", False)
            problem = self.problem(unit_rows)
            run = simulate(
                problem,
                Graph.ring(problem.federation.P, weights=weights),
                GFL(scheme=noise.noisy(variance), step=MU, sampled=5, local_steps=(1, 5), batch=(5, 10)),
                rounds=self.rounds,
                repeats=self.repeats if shown else min(self.repeats, FEW),
                seed=self.seed,
                evaluate_every=None if shown else self.rounds,
            )
            if run.interrupted:
                raise KeyboardInterrupt
            self._runs[key] = run
        return self._runs[key]


@style()
def figure_d(x: Classification, folder: Path) -> list[str]:
    """Figure 5: test error, AUC and log-loss of the centroid on clean held-out rows."""
    runs = x.runs
    figure = Figure(figsize=(PAGE, 2.3), layout="constrained")
    columns: dict[str, Floats] = {}
    panels = figure.subplots(1, len(METRICS))
    for axes, (metric, label) in zip(panels, METRICS.items(), strict=True):
        for turn, (name, run) in enumerate(runs.items()):
            seen = np.flatnonzero(np.isfinite(run.metrics[metric]).all(axis=0))
            rounds, rows = (seen + 1).astype(np.float64), run.metrics[metric][:, seen]
            at, *b = figures.log_spaced(rounds, *figures.band(rows))
            figures.draw(axes, at, figures.Band(*b), LOOKS[name], name, in_db=False, markevery=(turn, len(runs)))
            columns |= {"round": rounds} | curves({f"{name} {metric}": rows}, ratio=False)
        axes.axhline(CHANCE[metric], color="black", linewidth=0.8, linestyle=":", label="chance (balanced classes)")
        figures.plain_log(axes)
        axes.set_ylabel(label)
    panels[1].set_xlabel("round")
    figures.legend_below(figure, panels[0].get_legend_handles_labels()[0], len(runs) + 1)
    caption = (
        f"Click-through prediction, μ = {MU}, σ_g² = {VARIANCE}: the centroid on clean held-out rows, without "
        "noise (none), with homomorphic noise, and with the paper's random perturbations (per-link). Classes are "
        "balanced; dotted: what chance alone gives (1/2, and ln 2 for the log-loss). "
        f"Means of {x.repeats} repetitions and of the rounds around each mark; shaded: the 95% confidence band of a "
        f"single round's mean. One drawn problem (seed {x.seed}) on a ring: the bands tell nothing of others. "
        + "".join(f"Note: {note}. " for note in runs["none"].notes)
    )
    return figures.save_with_numbers(figure, folder / "figure_5_clicks", caption, columns)
