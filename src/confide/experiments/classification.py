"""The paper's classification experiment, figure (d): click-through prediction on Avazu, or on a stand-in.

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
from confide.graph.graph import Graph
from confide.problems import clicks
from confide.rounds.algorithm import GFL
from confide.rounds.schemes import scheme

MU, VARIANCE, RHO = 0.5, 0.6, 0.03
METRICS = {"test_error": "test error", "test_auc": "AUC", "test_log_loss": "log-loss"}


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


def figure_d(x: Classification, folder: Path) -> list[str]:
    """Test error, AUC and log-loss of the centroid on clean held-out rows."""
    runs = x.runs
    notes = runs["none"].notes
    figure = Figure(figsize=(13, 4.2), layout="constrained")
    columns: dict[str, Floats] = {}
    for axes, (metric, label) in zip(figure.subplots(1, len(METRICS)), METRICS.items(), strict=True):
        for name, run in runs.items():
            seen = np.flatnonzero(np.isfinite(run.metrics[metric]).all(axis=0))
            rounds, rows = (seen + 1).astype(np.float64), run.metrics[metric][:, seen]
            figures.draw(axes, rounds, rows, NAMES[name], figures.COLOURS[name], in_db=False)
            columns |= {"round": rounds} | curves({f"{name} {metric}": rows}, ratio=False)
        figures.dress(axes, label, "round", label)
    title = rf"(d) clicks, $\mu$ = {MU}, $\sigma_g^2$ = {VARIANCE}, {x.repeats} repetitions"
    figure.suptitle("\n".join([title, *notes]), fontsize=10)
    return [*figures.save(figure, folder / "d_clicks"), figures.save_csv(columns, folder / "d_clicks.csv")]


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
