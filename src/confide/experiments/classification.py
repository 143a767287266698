"""The paper's classification experiment, figure 5: click-through prediction on Avazu, or on a stand-in.

The paper gives P = 5, K = 10, rho = 0.03, mu = 0.5 and sigma_g^2 = 0.6. It leaves the graph, L, E and the batch open;
here: a ring with lazy weights, L = 5, E in 1..5, batches of 5 to 10, and one-hot rows not scaled to norm 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from confide.base.arrays import Floats
from confide.engines.driver import simulate
from confide.engines.run import Run
from confide.experiments.claims import Claim
from confide.experiments.regression import NAMES
from confide.experiments.regression_figures import curves
from confide.figures import figures
from confide.figures.look import LOOKS, PAGE, style
from confide.graph.graph import Graph
from confide.problems import clicks
from confide.rounds.algorithm import GFL
from confide.rounds.schemes import scheme

MU, VARIANCE, RHO = 0.5, 0.6, 0.03
METRICS = {"test_error": "test error", "test_auc": "AUC", "test_log_loss": "log-loss"}
CHANCE = {"test_error": 0.5, "test_auc": 0.5, "test_log_loss": math.log(2.0)}  # of balanced classes


@dataclass(frozen=True)
class Classification:
    rounds: int
    repeats: int
    seed: int
    data: Path | None

    @cached_property
    def runs(self) -> dict[str, Run]:
        problem = clicks(self.data, rho=RHO, seed=self.seed, unit_rows=False)
        graph = Graph.ring(problem.federation.P)
        found = {}
        for name in NAMES:
            algorithm = GFL(
                scheme=scheme(name, 0.0 if name == "none" else math.sqrt(VARIANCE)),
                step=MU,
                sampled=5,
                local_steps=(1, 5),
                batch=(5, 10),
            )
            found[name] = simulate(problem, graph, algorithm, rounds=self.rounds, repeats=self.repeats, seed=self.seed)
            if found[name].interrupted:
                raise KeyboardInterrupt
        return found


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


def claims_d(x: Classification) -> list[Claim]:
    """The centroid on clean held-out rows, over the last fifth of the rounds."""
    runs = x.runs
    notes = runs["none"].notes
    final = {metric: {name: _last_fifth(run.metrics[metric]) for name, run in runs.items()} for metric in METRICS}
    error = final["test_error"]
    kept, lost = error["homomorphic"] - error["none"], error["per-link"] - error["homomorphic"]
    numbers = {"error": error, "auc": final["test_auc"], "log_loss": final["test_log_loss"], "notes": list(notes)}
    return [
        # "the graph homorphic perturbations do not hinder the performance of the privatized model"
        Claim(
            "d1", "homomorphic perturbations cost at most 0.02 in test error", kept <= 0.02, {"cost": kept, **numbers}
        ),
        # "As for random perturbations, they significantly reduce the utility of the learnt model"
        Claim("d2", "random perturbations cost at least 0.03 in test error more", lost >= 0.03, {"cost": lost}),
    ]


def _last_fifth(rows: Floats) -> float:
    seen = np.flatnonzero(np.isfinite(rows).all(axis=0))
    return float(rows[:, seen[-max(1, len(seen) // 5) :]].mean())
