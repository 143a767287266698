"""The schemes at equal true privacy: one (epsilon, delta) for all, the noise of each sized by the accountant.

Ours. Three problems on a ring of 10 servers with 20 clients each, all taking part in every round:
the paper's regression with its rows bounded, and logistic regression whose units are nearly alike (mild) or each look
along their own direction (strong). The adversary sees all links between servers, and what is released; one client's
data may be replaced by any other. Weights are plain Metropolis, those of the table in docs/design/privacy.md, 3;
lazy ones, which favour homomorphic noise, are run too and shown in the numbers of the claim that depends on them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from confide.base.arrays import Floats
from confide.base.randomness import Purpose, generator
from confide.engines.driver import simulate
from confide.experiments.claims import Claim, Condition, Outcome
from confide.figures import figures
from confide.figures.look import LOOKS, PAGE, Look, style
from confide.graph.graph import Graph
from confide.plans.privacy import Budget
from confide.plans.words import Centroid, ConvexGlm
from confide.privacy.accountant import account
from confide.privacy.calibrate import Calibrated, calibrate
from confide.privacy.sensitivity import Sensitivity
from confide.problems import Problem, regression
from confide.problems.federation import Federation
from confide.problems.models import Linear, Logistic
from confide.rounds.algorithm import GFL
from confide.rounds.clipping import Clip
from confide.rounds.schemes import Scheme, scheme

P, K, N, M = 10, 20, 20, 5  # servers, clients of each, samples of each, features of the logistic problems
MU, ROUNDS, DELTA = 0.5, 60, 1e-5
RELEASED, INDIVIDUAL = "equal_privacy_released", "equal_privacy_individual"  # the pictures
LABEL = rf"$\epsilon$ at $\delta = 10^{{{math.log10(DELTA):.0f}}}$"
EPSILONS, FEW = (1.0, 2.0, 4.38, 10.0, 20.0), (2.0, 10.0)  # 4.38, 10: rho 0.5 and 2, docs/design/privacy.md, 3
USUAL = 10.0  # the epsilon of a claim about one budget; in both grids


@dataclass(frozen=True)
class Task:
    """A problem with what is declared of it; every declared bound is enforced on the data or by the clip."""

    title: str
    problem: Problem
    bound: float  # B of the per-example clip
    smoothness: float  # delta of every sampled loss

    @property
    def sensitivity(self) -> Sensitivity:
        proof = ConvexGlm(2.0 * self.problem.model.rho)
        return Sensitivity(
            step=MU, bound=self.bound, sampled=K, clients=K, dim=self.problem.M, proof=proof, smoothness=self.smoothness
        )


def bounded_regression(seed: int) -> Task:
    """The paper's regression; a row (u, d) longer than |u| = 1 is scaled down to it, so that d = u'w* + v stays true.

    B = 2 is beyond the gradients near the optimum, 2 |u||u'(w* - w^o) + v|, for all but a few rows.
    """
    plain = regression(units=P, clients=K, samples=N, seed=seed)
    f, rho = plain.federation, plain.model.rho
    longer = np.maximum(1.0, np.linalg.norm(f.X, axis=1))
    rows = Federation(f.X / longer[:, None], f.d / longer, f.client_offsets, f.unit_offsets)
    problem = Problem(rows, Linear(rho), spec={**plain.spec, "name": "regression with |u| <= 1"}, private=False)
    return Task("regression, clipped", problem, bound=2.0, smoothness=2.0 + 2.0 * rho)


def logistic(seed: int, title: str, *, rho: float, size: float, spread: float, narrow: float) -> Task:
    """Labels drawn from a logistic model of each unit's own, |u| = 1, so that no gradient is longer than B = 1.

    Args:
        size, spread: the parameter of unit p is size (c + spread z_p), with c and z_p random directions.
        narrow: how much shorter all but one (random) axis of a unit's features are: 0 is alike in all directions.
    """
    rng = generator(seed, Purpose.DATA, 1)

    def directions(*shape: int) -> Floats:
        z = rng.standard_normal((*shape, M))
        return np.asarray(z / np.linalg.norm(z, axis=-1, keepdims=True))

    theta = size * (directions(1) + spread * directions(P))
    axes, _ = np.linalg.qr(rng.standard_normal((P, M, M)))
    lengths = np.where(np.arange(M) == 0, 1.0, 1.0 - narrow)
    u = np.einsum("pij,pnj->pni", axes * lengths, rng.standard_normal((P, K * N, M)))
    u /= np.linalg.norm(u, axis=2, keepdims=True)
    likely = 1.0 / (1.0 + np.exp(-np.einsum("pni,pi->pn", u, theta)))
    d = np.where(rng.random((P, K * N)) < likely, 1.0, -1.0)
    rows = Federation(u.reshape(-1, M), d.ravel(), np.arange(P * K + 1) * N, np.arange(P + 1) * K)
    return Task(
        title, Problem(rows, Logistic(rho), spec={"name": title}, private=False), bound=1.0, smoothness=0.25 + 2.0 * rho
    )


@dataclass(frozen=True)
class Way:
    """A scheme and what is revealed of its outcome, with how it is drawn."""

    scheme: str
    look: Look
    detail: str = ""
    fate: str = ""  # of the outcome, where it is not simply revealed
    release: str = "centroid"  # paid from the same budget, where it costs anything
    pair_ratio: float = 1.0  # sigma_pair / sigma

    @property
    def label(self) -> str:
        return f"{self.scheme}{self.detail}"

    @property
    def name(self) -> str:
        return f"{self.label} {self.fate}".strip()


HIDDEN = "(not released)"
WAYS = {
    "none": Way("none", LOOKS["none"]._replace(mark=""), ", not private", release="none"),
    "shared": Way("shared", Look("#f5a51d", "-", "D")),
    "per-link": Way("per-link", LOOKS["per-link"], fate=HIDDEN, release="none"),
    "homomorphic": Way("homomorphic", LOOKS["homomorphic"], fate=HIDDEN, release="none"),
    "released": Way("homomorphic", LOOKS["homomorphic"]._replace(dash="-", mark="o"), fate="+ release"),
    "local-only": Way("local-only", Look("#7b3fa0", "-", "v"), fate="+ release"),
    # The design's ratio k is one of variances: sigma_pair^2 = k sigma^2.
    "pairwise-2.6": Way("pairwise", Look("#66c2e0", (0, (3.0, 1.0)), "+"), ", k = 2.6", pair_ratio=math.sqrt(2.6)),
    "pairwise-30": Way("pairwise", Look("#1b6f9c", (0, (7.0, 1.5)), "x"), ", k = 30", pair_ratio=math.sqrt(30.0)),
    "central": Way("central", Look("black", (0, (5.0, 1.5, 1.0, 1.5)), "<"), ", yardstick"),
}
# A yardstick is not a candidate: it needs a secure sum over all servers in every round.
CANDIDATES = ("shared", "released", "local-only", "pairwise-2.6", "pairwise-30")
OWN = ("shared", "per-link", "homomorphic", "local-only", "pairwise-2.6", "pairwise-30")  # for individual models


class Point(NamedTuple):
    """One scheme on one problem at one epsilon; errors of the last round, one for each repetition."""

    calibrated: Calibrated | None  # None without noise
    epsilon: float | None  # accounted afresh, of the scheme that was run
    centroid: Floats
    released: Floats | None  # None where nothing is released
    individual: Floats

    @property
    def scheme(self) -> Scheme:
        return scheme("none") if self.calibrated is None else self.calibrated.scheme

    @property
    def learnt(self) -> Floats:
        """The error of the released model, or of the centroid where nothing is released."""
        return self.centroid if self.released is None else self.released


@dataclass
class EqualPrivacy:
    """Runs on problems drawn once; each is made when it is first asked for and kept."""

    epsilons: tuple[float, ...]
    repeats: int
    seed: int
    _points: dict[tuple[Any, ...], Point] = field(default_factory=dict)
    _runs: dict[tuple[Any, ...], tuple[Floats, Floats]] = field(default_factory=dict)

    @classmethod
    def sized(cls, quick: bool, repeats: int | None, seed: int) -> EqualPrivacy:
        return cls(FEW if quick else EPSILONS, repeats if repeats is not None else 10 if quick else 60, seed)

    @cached_property
    def tasks(self) -> dict[str, Task]:
        mild, strong = "logistic, mild heterogeneity", "logistic, strong heterogeneity"
        return {
            "regression": bounded_regression(self.seed),
            "mild": logistic(self.seed, mild, rho=0.1, size=5.0, spread=0.3, narrow=0.0),
            "strong": logistic(self.seed, strong, rho=0.02, size=15.0, spread=1.0, narrow=0.95),
        }

    def point(self, task: str, way: str, epsilon: float, weights: str = "metropolis") -> Point:
        key = (task, way, epsilon, weights)
        if key not in self._points:
            self._points[key] = self._measure(self.tasks[task], WAYS[way], epsilon, weights)
        return self._points[key]

    def error(self, which: str, task: str, way: str, epsilon: float, weights: str = "metropolis") -> float:
        """Mean squared error, "learnt" or "individual"."""
        return float(np.mean(getattr(self.point(task, way, epsilon, weights), which)))

    def ahead(self, which: str, task: str, way: str, other: str, weights: str = "metropolis") -> list[float]:
        """By how much the first beats the second, in dB, for each epsilon."""
        errors = [[self.error(which, task, w, e, weights) for e in self.epsilons] for w in (way, other)]
        return [10.0 * math.log10(theirs / ours) for ours, theirs in zip(*errors, strict=True)]

    def _measure(self, task: Task, way: Way, epsilon: float, weights: str) -> Point:
        graph = Graph.ring(P, weights=weights)
        if way.scheme == "none":
            centroid, individual = self._run(task, graph, scheme("none"))
            return Point(None, None, centroid, None, individual)
        s, budget = task.sensitivity, Budget(epsilon=epsilon, delta=DELTA)
        c = calibrate(way.scheme, graph, s, budget, rounds=ROUNDS, release=way.release, pair_ratio=way.pair_ratio)
        spent = account(c.scheme, graph, s, rounds=ROUNDS, release=c.release, delta=DELTA)
        centroid, individual = self._run(task, graph, c.scheme)
        # The noise of a release is independent of all else: it adds its variance, exactly.
        released = (
            centroid + task.problem.M * c.release.hidden(P, 0) ** 2 if isinstance(c.release.release, Centroid) else None
        )
        return Point(c, spent.epsilon, centroid, released, individual)

    def clip_costs(self, epsilon: float) -> float:
        """dB that the clip adds to homomorphic's centroid on the regression, with the same noise (not private)."""
        p, task = self.point("regression", "homomorphic", epsilon), self.tasks["regression"]
        free, _ = self._run(replace(task, bound=1e9), Graph.ring(P, weights="metropolis"), p.scheme)
        return 10.0 * math.log10(float(np.mean(p.centroid)) / float(np.mean(free)))

    def _run(self, task: Task, graph: Graph, noise: Scheme) -> tuple[Floats, Floats]:
        key = (task.title, task.bound, graph.weights, noise)
        if key not in self._runs:
            self._runs[key] = trained(task, graph, noise, K, self.repeats, self.seed)
        return self._runs[key]


def trained(task: Task, graph: Graph, noise: Scheme, sampled: int, repeats: int, seed: int) -> tuple[Floats, Floats]:
    """Squared errors of the mean and of the single models after all rounds, by repetition; all clients take part."""
    clip = Clip("example", task.bound)
    algorithm = GFL(scheme=noise, step=MU, sampled=sampled, local_steps=1, batch=N, replacement=False, clip=clip)
    run = simulate(
        task.problem,
        graph,
        algorithm,
        rounds=ROUNDS,
        repeats=repeats,
        seed=seed,
        evaluate_every=ROUNDS,
        progress=False,  # `reproduce` tells its own
    )
    if run.interrupted:
        raise KeyboardInterrupt  # figures already drawn are kept; half a figure is not
    return run.metrics["centroid_msd"][:, -1], run.metrics["individual_msd"][:, -1]


def figure_f(x: EqualPrivacy, folder: Path) -> tuple[list[str], list[Claim]]:
    """What is learnt: the error of the released model, and of a centroid that is not released."""
    files = draw_released(x, folder / RELEASED)

    usual, grid = x.epsilons.index(USUAL), {"epsilons": x.epsilons}
    off = max(abs(spent / e - 1.0) for e, spent in _accounts(x))
    lead = {task: x.ahead("learnt", task, "homomorphic", "shared") for task in x.tasks}
    clip_costs = x.clip_costs(USUAL)
    paid = x.ahead("learnt", "strong", "released", "shared")
    alone = {task: x.ahead("learnt", task, "local-only", "released") for task in ("regression", "mild")}
    rivals = {w: x.ahead("learnt", "strong", "pairwise-30", w) for w in CANDIDATES if w != "pairwise-30"}
    errors = {
        w: np.array([x.error("learnt", "strong", w, e) for e in x.epsilons]) for w in ("pairwise-30", "central", "none")
    }
    times = (errors["pairwise-30"] / (errors["central"] + errors["none"])).tolist()
    winners = {task: [_winners(x, "learnt", task, CANDIDATES, e) for e in x.epsilons] for task in x.tasks}
    named = {ways for rows in winners.values() for ways in rows}
    return files, [
        _claim(
            "f1",
            "the account of every point is the epsilon it is drawn at, within 0.1%",
            [Condition("relative difference", off, 1e-3, "", least=False)],
            {"largest_relative_difference": f"{off:.1e}", "delta": f"{DELTA:g}", **grid, "sigma": _sigmas(x)},
            "epsilon is what it is drawn at",
            RELEASED,
        ),
        _claim(
            "f2",
            "mild heterogeneity: homomorphic's centroid, not released, is at least 10 dB better than shared's at every "
            "epsilon",
            [Condition("homomorphic ahead of shared, least", min(lead["mild"]), 10.0)],
            {**grid, "ahead_db": lead["mild"]},
            "mild: homomorphic 10 dB ahead",
            RELEASED,
        ),
        _claim(
            "f3",
            f"clipped regression: at epsilon {USUAL:g} homomorphic's centroid, not released, is less than 1 dB better "
            "than shared's, because its noise drives gradients into the clip, which costs at least 10 dB",
            [
                Condition("homomorphic ahead of shared", lead["regression"][usual], 1.0, least=False),
                Condition("what the clip costs", clip_costs, 10.0),
            ],
            {**grid, "ahead_db": lead["regression"], "clip_costs_db": clip_costs},
            "regression: clipped, no lead",
            RELEASED,
        ),
        _claim(
            "f4",
            "regression and mild heterogeneity: once released, homomorphic is at least 2 dB worse, at every epsilon, "
            "than local training with one noisy sum at the end",
            [Condition("local-only ahead, least", min(map(min, alone.values())), 2.0)],
            {**grid, "local_only_ahead_db": alone},
            "released, local-only is better",
            RELEASED,
        ),
        _claim(
            "f5",
            f"strong heterogeneity, Metropolis weights: homomorphic's lead shrinks; at epsilon {USUAL:g} its centroid "
            "is less than 5 dB better than shared's, and less than 1 dB once released",
            [
                Condition("homomorphic ahead of shared", lead["strong"][usual], 5.0, least=False),
                Condition("ahead once released", paid[usual], 1.0, least=False),
            ],
            {
                **grid,
                "ahead_db": lead["strong"],
                "ahead_once_released_db": paid,
                "with_lazy_weights_db": x.ahead("learnt", "strong", "released", "shared", "lazy"),
            },
            "strong: homomorphic leads less",
            RELEASED,
        ),
        _claim(
            "f6",
            f"strong heterogeneity: pairwise (k = 30) beats every other scheme up to epsilon {USUAL:g}, and stays "
            "within twice the sum of central's error and the noiseless algorithm's",
            [
                Condition(
                    "pairwise ahead of others, least", min(min(row[: usual + 1]) for row in rivals.values()), 0.0
                ),
                Condition("times that sum", max(times), 2.0, "times", least=False),
            ],
            {**grid, "ahead_db": rivals, "times_that_sum": times},
            "strong: pairwise is best",
            RELEASED,
        ),
        Claim(
            "f7",
            f"what wins once released depends on the problem, and is never homomorphic alone: {_sentence(x, winners)}",
            not set.intersection(*map(set, named)) and ("released",) not in named,
            {**grid, "epsilon_of_pairwise_30_if_all_neighbours_collude": [_betrayed(x, e) for e in x.epsilons]},
            "no scheme is best everywhere",
            RELEASED,
        ),
    ]


def figure_g(x: EqualPrivacy, folder: Path) -> tuple[list[str], list[Claim]]:
    """The servers' own models; those of local-only, homomorphic and per-link noise must not leave their server."""
    caption = _caption(x, "the servers' own models (mean)")
    files = figures.save(_panels(x, "individual"), folder / INDIVIDUAL, caption)
    behind = {task: x.ahead("individual", task, "shared", "homomorphic") for task in x.tasks}
    winners = {task: [_winners(x, "individual", task, OWN, e) for e in x.epsilons] for task in x.tasks}
    named = {way for rows in winners.values() for ways in rows for way in ways}
    alone = {task: x.ahead("individual", task, "local-only", "shared") for task in x.tasks}
    return files, [
        _claim(
            "g1",
            "homomorphic's individual models are at least 10 dB worse than shared's, on every problem and at every "
            "epsilon",
            [Condition("homomorphic behind shared, least", min(map(min, behind.values())), 10.0)],
            {"epsilons": x.epsilons, "behind_db": behind},
            "homomorphic: worse own models",
            INDIVIDUAL,
        ),
        Claim(
            "g2",
            f"of individual models those of homomorphic win nowhere: {_sentence(x, winners, own=True)}",
            "homomorphic" not in named,
            {"epsilons": x.epsilons, "local_only_ahead_of_shared_db": alone},
            "homomorphic models win nowhere",
            INDIVIDUAL,
        ),
    ]


def _claim(
    id: str, statement: str, conditions: list[Condition], numbers: dict[str, Any], line: str, figure: str
) -> Claim:
    outcome = Outcome("as simulated", conditions)
    return Claim(id, statement, outcome.holds, numbers, line, figure, readings=(outcome,))


def draw_released(x: EqualPrivacy, stem: Path) -> list[str]:
    """What is learnt, as pictures, and every number, as CSV."""
    caption = _caption(x, "the released model, or of the centroid where nothing is released,")
    return figures.save_with_numbers(_panels(x, "learnt"), stem, caption, _table(x))


@style()
def _panels(x: EqualPrivacy, which: str) -> Figure:
    """One panel a problem, one curve a scheme; epsilon and error on logarithmic scales."""
    figure = Figure(figsize=(PAGE, 3.0), layout="constrained")
    panels, at, learnt = figure.subplots(1, len(x.tasks)), np.array(x.epsilons), which == "learnt"
    for axes, (name, task) in zip(panels, x.tasks.items(), strict=True):
        lowest = math.inf
        for key, way in WAYS.items():
            if key == "released" and not learnt:
                continue  # the same models, with less of the budget
            rows = np.stack([getattr(x.point(name, key, e), which) for e in x.epsilons], axis=1)
            order = 1.5 if key == "central" else 2.0  # a yardstick lies behind what it measures
            b = figures.band(rows, ratio=True)
            figures.draw(axes, at, b, way.look, way.name if learnt else way.label, zorder=order)
            if key != "none":
                lowest = min(lowest, float(figures.decibel(rows.mean(axis=0)).min()))
        floor = 10.0 * math.log10(x.error(which, name, "none", x.epsilons[0]))
        if floor < lowest - 15.0:  # far below all else: said, not drawn to scale
            axes.set_ylim(bottom=lowest - 6.0)
            axes.annotate(
                f"none: {floor:.0f} dB".replace("-", "\N{MINUS SIGN}"),
                (0.02, 0.02),
                xycoords="axes fraction",
                fontsize=7,
            )
        optimum = task.problem.optimum
        if optimum is not None:
            zero = 10.0 * math.log10(float(optimum @ optimum))
            axes.axhline(zero, color="black", linewidth=0.6, linestyle=(0, (1, 4)), label="the model w = 0")
        figures.plain_log(axes, x.epsilons)
        axes.set_title(task.title)
    panels[0].set_ylabel("MSD [dB]")
    panels[1].set_xlabel(LABEL)
    figures.legend_below(figure, panels[0].get_legend_handles_labels()[0], 4)
    return figure


def _caption(x: EqualPrivacy, what: str) -> str:
    return (
        f"Squared error of {what} at equal true privacy: the noise of every scheme is sized by the accountant for the "
        "same epsilon, against an adversary who sees all links, any client replaced. A ring of "
        f"{P} with Metropolis weights, {K} clients each, {ROUNDS} rounds. Means of {x.repeats} repetitions with their "
        f"95% bands, on problems drawn once (seed {x.seed}): the bands tell nothing of others. k: the variance of the "
        "noises on edges over that of a server's own; central: the mean of all models with one noise. Where none is "
        "named in a corner, its error is far below the axes."
    )


def _table(x: EqualPrivacy) -> dict[str, list[Any]]:
    """Every number: one row a problem, scheme and epsilon."""
    rows = []
    for task, way, e in product(x.tasks, WAYS, x.epsilons):
        p = x.point(task, way, e)
        row = {"problem": task, "scheme": way, "epsilon": e, "accounted epsilon": p.epsilon}
        row |= {"sigma": p.scheme.sigma, "sigma_pair": p.scheme.sigma_pair}
        row |= {"sigma of the release": p.calibrated.release.sigma if p.calibrated else 0.0}
        for name in ("centroid", "released", "individual"):
            values = getattr(p, name)
            b = (None,) * 3 if values is None else map(float, figures.band(values, ratio=True))
            row |= {f"{name} {part}": v for part, v in zip(("mean", "low", "high"), b, strict=True)}
        rows.append(row)
    return {name: [row[name] for row in rows] for name in rows[0]}


def _accounts(x: EqualPrivacy) -> Iterator[tuple[float, float]]:
    """(epsilon asked, epsilon accounted) of every private point; a leak counts as infinite."""
    for task, way, e in product(x.tasks, WAYS, x.epsilons):
        p = x.point(task, way, e)
        if p.calibrated is not None:
            yield e, math.inf if p.epsilon is None else p.epsilon


def _sigmas(x: EqualPrivacy) -> dict[str, dict[str, list[float]]]:
    """Noise of the messages for each epsilon: what the same privacy costs each scheme."""

    def row(task: str, way: str) -> list[float]:
        return [c.scheme.sigma for e in x.epsilons if (c := x.point(task, way, e).calibrated)]

    return {task: {way: row(task, way) for way in ("homomorphic", "shared", "pairwise-30")} for task in x.tasks}


def _winners(x: EqualPrivacy, which: str, task: str, ways: tuple[str, ...], epsilon: float) -> tuple[str, ...]:
    """The scheme with the least error, and those whose band reaches down to its band."""
    bands = {way: figures.band(getattr(x.point(task, way, epsilon), which), ratio=True) for way in ways}
    first = min(bands, key=lambda way: float(bands[way].mean))
    return tuple(way for way in ways if way == first or bands[way].low <= bands[first].high)


def _sentence(x: EqualPrivacy, winners: dict[str, list[tuple[str, ...]]], own: bool = False) -> str:
    """Who wins where, in words, from the numbers; "or" where the bands overlap."""
    parts = []
    for task, rows in winners.items():
        said = []
        for ways, stretch in groupby(zip(x.epsilons, rows, strict=True), key=lambda pair: pair[1]):
            at = [f"{e:g}" for e, _ in stretch]
            where = (
                "every epsilon" if len(at) == len(rows) else f"epsilon {' to '.join(dict.fromkeys((at[0], at[-1])))}"
            )
            said.append(f"{' or '.join(WAYS[w].label if own else WAYS[w].name for w in ways)} at {where}")
        parts.append(f"{x.tasks[task].title}: {', '.join(said)}")
    return "; ".join(parts)


def _betrayed(x: EqualPrivacy, epsilon: float) -> float | None:
    """What pairwise rests on: its epsilon where all neighbours of a server join the eavesdropper."""
    c, s = x.point("strong", "pairwise-30", epsilon).calibrated, x.tasks["strong"].sensitivity
    graph = Graph.ring(P, weights="metropolis")
    return account(c.scheme, graph, s, rounds=ROUNDS, threat="neighbours", delta=DELTA).epsilon if c else None
