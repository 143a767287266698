"""The paper's opening claim, robustness, as a figure of ours: what is lost when servers fail.

The same clients with the same data are served by one server, by a tree of ten and by a random graph of ten (the paper's
regression, without noise; as many clients are drawn in all). Left: every server is absent from a round with some
probability; that costs one server no more rounds than ten, whose models are stale where they were absent. Right: one
server fails for good. With one server learning ends; a tree falls apart into parts that no longer hear each other; the
graph hears of all other units as before. Lazy Metropolis weights, averages over which of the ten it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from matplotlib.figure import Figure

from confide.base.arrays import Floats
from confide.engines.driver import simulate
from confide.experiments.claims import Claim, Condition, Outcome
from confide.figures import figures
from confide.figures.look import PAGE, shades, style
from confide.graph.graph import Graph
from confide.problems import Problem, regression
from confide.rounds.algorithm import GFL, Failures
from confide.rounds.schemes import scheme

MU, P, L, ROUNDS = 0.1, 10, 10, 400
ABSENT = (0.0, 0.1, 0.2, 0.4, 0.6)  # probabilities
DIES = (2, 10, 20, 50, 100)  # rounds
NEAR_DB = 3.0
NETWORKS = ("one server", "tree", "graph")
LOOKS = dict(zip(NETWORKS, shades(len(NETWORKS)), strict=True))
CAPTION = (
    "What is lost when servers fail, without noise: one server, a tree and a random graph of ten serve the same "
    "clients. Left: rounds until the models are within 3 dB of their end, where every server is absent now and then. "
    "Right: mean error of the servers that are left when one fails for good, with its 95% band over repetitions."
)


@dataclass
class Robustness:
    """Runs of three networks on the data of one drawn problem."""

    repeats: int
    seed: int

    @cached_property
    def problems(self) -> dict[str, Problem]:
        """The units' clients as they are, and all of them at one server."""
        many = regression(units=P, clients=20, seed=self.seed)
        f = many.federation
        one = replace(many, federation=replace(f, unit_offsets=np.array([0, f.clients])), private=False)
        return {"one server": one, "tree": many, "graph": many}

    @cached_property
    def graphs(self) -> dict[str, Graph]:
        tree = nx.Graph(list(nx.full_rary_tree(2, P).edges))
        return {
            "one server": Graph.path(1),
            "tree": Graph.from_networkx(tree),
            "graph": Graph.random(P, 0.4, seed=self.seed),
        }

    def run(self, name: str, failures: Failures) -> Any:
        graph = self.graphs[name]
        algorithm = GFL(scheme=scheme("none"), step=MU, sampled=L * P // graph.P, failures=failures)
        run = simulate(
            self.problems[name], graph, algorithm, rounds=ROUNDS, repeats=self.repeats, seed=self.seed,
            evaluate_every=ROUNDS,
        )  # fmt: skip
        if run.interrupted:
            raise KeyboardInterrupt  # half a figure is none
        return run

    def rounds_to_settle(self, name: str, absent: float, level: float) -> float:
        """Until the servers' models are on average within 3 dB of a level; infinite where they never are."""
        curve = figures.decibel(self.run(name, Failures(unit=absent)).metrics["individual_msd"].mean(axis=0))
        near = np.flatnonzero(curve <= level + NEAR_DB)
        return float(near[0]) + 1.0 if len(near) else math.inf

    @cached_property
    def settling(self) -> dict[str, list[float]]:
        """For each probability of absence; the level is that of the network when nothing fails."""
        found = {}
        for name in LOOKS:
            rows = self.run(name, Failures()).metrics["individual_msd"]
            level = float(figures.decibel(np.array([rows[:, -ROUNDS // 5 :].mean()]))[0])
            found[name] = [self.rounds_to_settle(name, absent, level) for absent in ABSENT]
        return found

    @cached_property
    def survivors(self) -> dict[str, Floats]:
        """Mean-square deviation of the servers that are left in the end, by repetition and round of the failure."""
        return {name: np.stack([self._left(name, first) for first in DIES], axis=1) for name in LOOKS}

    def _left(self, name: str, first: int) -> Floats:
        """With one server, of the model that its clients are left with."""
        servers, optimum = range(self.graphs[name].P), self.problems[name].optimum
        errors = []
        for gone in servers:
            models = self.run(name, Failures(units=tuple((i, gone) for i in range(first, ROUNDS + 1)))).models
            left = models if len(servers) == 1 else np.delete(models, gone, axis=1)
            errors.append(np.sum((left - optimum) ** 2, axis=2).mean(axis=1))
        return np.asarray(np.mean(errors, axis=0))


@style()
def figure_j(x: Robustness, folder: Path) -> list[str]:
    """When servers are absent now and then, and when one fails for good."""
    figure = Figure(figsize=(PAGE, 2.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    columns: dict[str, Any] = {"absent": [*ABSENT], "failed from round": [*DIES]}
    for name, look in LOOKS.items():
        left.plot(ABSENT, x.settling[name], color=look.colour, linestyle=look.dash, marker=look.mark, label=name)
        figures.draw(right, np.array(DIES, dtype=np.float64), figures.band(x.survivors[name], ratio=True), look)
        columns[f"{name}: rounds"] = x.settling[name]
        columns[f"{name}: MSD"] = x.survivors[name].mean(axis=0)
    left.set(title="servers absent now and then", xlabel="probability of absence", ylabel="rounds until settled")
    right.set(title="one server fails for good", xlabel="from round", ylabel=f"MSD of the others, round {ROUNDS} [dB]")
    figures.plain_log(right, DIES)
    left.legend()
    return figures.save_with_numbers(figure, folder / "robustness", CAPTION, columns)


def claims_j(x: Robustness) -> list[Claim]:
    """What the figure is to show; no sentence of the paper has a number."""
    db = {name: figures.decibel(rows.mean(axis=0)).tolist() for name, rows in x.survivors.items()}
    lost = {name: [rounds / row[0] for rounds in row] for name, row in x.settling.items()}
    early, some = DIES.index(10), ABSENT.index(0.2)
    ahead = Condition("others ahead of one server", db["one server"][early] - db["graph"][early], 10.0)
    more = Condition("times the rounds", lost["graph"][some], 1.5, "", least=False)
    return [
        Claim(
            "j1",
            "when a server fails for good in round 10, the other servers of the graph end at least 10 dB better than "
            "the clients of one server",
            ahead.holds,
            {"failed_from_round": DIES, "msd_db": db},
            line="the graph goes on without a server, one server does not",
            readings=(Outcome("as simulated", [ahead]),),
        ),
        Claim(
            "j2",
            "servers that are absent from 20% of the rounds cost the graph at most half again as many rounds",
            more.holds,
            {"absent": ABSENT, "times_the_rounds": lost, "rounds": x.settling},
            line="absences now and then cost the graph few rounds",
            readings=(Outcome("as simulated", [more]),),
        ),
    ]
