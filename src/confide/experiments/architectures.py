"""The paper's comparators at equal true privacy: one server, a tree of servers, a graph of servers, clients alone.

The same 200 clients with the same data (the paper's regression with bounded rows) are served by one server, by ten on a
tree, by ten on a random graph, or by nobody, each a server of its own on a sparse graph. Between servers goes `shared`
noise, and the mean model is released at the end; both are sized by the accountant, for any client's data replaced, all
links seen, and everybody who receives the release. All clients take part in every round, and servers see their own
clients' updates in clear: who trusts its server least pays most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from matplotlib.figure import Figure

from confide.base.arrays import Floats
from confide.experiments.claims import Claim, Condition, Outcome, all_hold
from confide.experiments.equal_privacy import DELTA, LABEL, ROUNDS, K, P, Task, bounded_regression, trained
from confide.figures import figures
from confide.figures.look import COLUMN, shades, style
from confide.graph.graph import Graph
from confide.plans.privacy import Budget
from confide.plans.words import Centroid
from confide.privacy.calibrate import Calibrated, calibrate

EPSILONS = (1.0, 4.38, 20.0)
CLIENTS = P * K
STEM = "architectures"  # of the picture
NETWORKS = ("one server", "tree", "graph", "clients alone")
LOOKS = dict(zip(NETWORKS, shades(len(NETWORKS)), strict=True))
CAPTION = (
    "Squared error of the released model at equal true epsilon: the same 200 clients with one server, a tree of ten "
    "servers, a random graph of ten, and each on its own in a regular graph of degree 4. Noise between servers is "
    "shared; where tree and graph coincide, the graph is in front; bands are 95% over repetitions on one drawn problem."
)


@dataclass
class Architectures:
    """Runs on one drawn problem; each is made when it is first asked for and kept."""

    repeats: int
    seed: int
    _errors: dict[tuple[str, float], Floats] = field(default_factory=dict)

    @cached_property
    def task(self) -> Task:
        return bounded_regression(self.seed)

    @cached_property
    def graphs(self) -> dict[str, Graph]:
        made = (
            Graph.path(1),
            Graph.from_networkx(nx.Graph(list(nx.full_rary_tree(2, P).edges)), weights="metropolis"),
            Graph.random(P, 0.4, seed=self.seed, weights="metropolis"),
            Graph.regular(CLIENTS, 4, seed=self.seed, weights="metropolis"),
        )
        return dict(zip(NETWORKS, made, strict=True))

    def served(self, name: str) -> Task:
        """The same clients, dealt out to as many servers as the network has."""
        per = CLIENTS // self.graphs[name].P
        f = self.task.problem.federation
        dealt = replace(f, unit_offsets=np.arange(0, CLIENTS + 1, per))
        problem = replace(self.task.problem, federation=dealt, spec={"name": name})
        return replace(self.task, problem=problem)

    def errors(self, name: str, epsilon: float) -> Floats:
        """Of the released model, by repetition."""
        if (name, epsilon) not in self._errors:
            self._errors[name, epsilon] = self._measure(name, epsilon)
        return self._errors[name, epsilon]

    def sized(self, name: str, epsilon: float) -> Calibrated:
        """The noise of messages and release that this epsilon allows."""
        graph = self.graphs[name]
        s = replace(self.task.sensitivity, sampled=CLIENTS // graph.P, clients=CLIENTS // graph.P)
        way = "none" if graph.P == 1 else "shared"  # of one server no message leaves: the release is all
        return calibrate(way, graph, s, Budget(epsilon=epsilon, delta=DELTA), rounds=ROUNDS, release="centroid")

    def _measure(self, name: str, epsilon: float) -> Floats:
        task, graph, c = self.served(name), self.graphs[name], self.sized(name, epsilon)
        L = CLIENTS // graph.P
        centroid, _ = trained(task, graph, c.scheme, L, self.repeats, self.seed)
        # The noise of a release is independent of all else: it adds its variance, exactly.
        hidden = c.release.hidden(graph.P, 0) if isinstance(c.release.release, Centroid) else 0.0
        return centroid + task.problem.M * hidden**2

    def db(self, name: str) -> list[float]:
        """For each epsilon."""
        return [10.0 * math.log10(float(self.errors(name, e).mean())) for e in EPSILONS]


@style()
def figure_k(x: Architectures, folder: Path) -> list[str]:
    """Error against true epsilon."""
    figure = Figure(figsize=(COLUMN, 2.8), layout="constrained")
    axes = figure.subplots()
    columns: dict[str, Any] = {"epsilon": [*EPSILONS]}
    for name, look in LOOKS.items():
        rows = np.stack([x.errors(name, e) for e in EPSILONS], axis=1)
        figures.draw(axes, np.array(EPSILONS), figures.band(rows, ratio=True), look, name)
        columns[f"{name}: MSD"] = rows.mean(axis=0)
    figures.plain_log(axes, EPSILONS)
    axes.set(xlabel=LABEL, ylabel="MSD of the released model [dB]")
    axes.legend()
    return figures.save_with_numbers(figure, folder / STEM, CAPTION, columns)


def claims_k(x: Architectures) -> list[Claim]:
    """What trust costs; the sentences are ours."""
    db = {name: x.db(name) for name in NETWORKS}
    numbers = {"epsilons": EPSILONS, "msd_db": db}

    def behind(one: str, other: str) -> list[float]:
        return [a - b for a, b in zip(db[one], db[other], strict=True)]

    servers = Condition("graph behind one server", min(behind("graph", "one server")), 6.0)
    alone = Condition("clients alone behind the graph", min(behind("clients alone", "graph")), 6.0)
    apart = Condition("tree and graph apart", max(map(abs, behind("tree", "graph"))), 1.0, least=False)
    return [
        Claim(
            "k1",
            "at every epsilon ten servers on a graph are at least 6 dB behind one server that everybody trusts, and "
            "clients that trust nobody at least 6 dB behind them",
            all_hold(c.holds for c in (servers, alone)),
            numbers,
            line="who trusts fewer pays more",
            figure=STEM,
            readings=(Outcome("as simulated", [servers, alone]),),
        ),
        Claim(
            "k2",
            "at every epsilon a tree of servers is within 1 dB of a graph of servers",
            apart.holds,
            numbers,
            line="a tree learns like a graph",
            figure=STEM,
            readings=(Outcome("as simulated", [apart]),),
        ),
    ]
