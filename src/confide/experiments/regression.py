"""The paper's regression experiment: figures (a), (b), (c), and (e), which is ours.

The paper leaves the graph, its weights and the scale of the data open. The default reading is a random connected
graph with lazy Metropolis weights and independent noise on every link between servers; plain Metropolis weights and
the reading with noise on the links from clients are run too and shown in the numbers of the claims they decide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from confide.base.arrays import Floats
from confide.engines.driver import simulate
from confide.engines.run import Run
from confide.experiments.claims import Claim
from confide.experiments.predicted import Comparison, agreement, compare
from confide.figures import figures
from confide.graph.graph import Graph
from confide.problems import regression
from confide.rounds.algorithm import GFL
from confide.rounds.schemes import scheme
from confide.theory.prediction import Prediction, predict
from confide.theory.stability import max_stable_step

MU, VARIANCE = 0.7, 0.1  # of figure (a)
VARIANCES = (0.001, 0.01, 0.1, 1.0, 2.0, 10.0)  # of figure (b)
STEPS = (0.1, 0.5, 1.0, 5.0)  # of figure (c)
ARRIVED = 250  # rounds after which most predicted curves no longer move
SIGMA = r"$\sigma_g^2$"
PAIR = ("homomorphic", "per-link")  # what the sweeps compare
NAMES = {"none": "no perturbations", "homomorphic": "homomorphic", "per-link": "random (per link)"}
CLIENT_LINKS = "random, on client links too"  # the other reading of the paper's random perturbations
COLOURS = figures.COLOURS | {CLIENT_LINKS: "#e08214"}
PANELS = {
    "centroid_msd": "centroid (the network's mean model)",
    "individual_msd": "individual models (mean over servers)",
}


class Setting(NamedTuple):
    """One algorithm on one graph; figure (a) unless told otherwise."""

    name: str
    variance: float = VARIANCE
    mu: float = MU
    weights: str = "lazy"
    client_links: bool = False
    rounds: int | None = None

    @property
    def algorithm(self) -> GFL:
        sigma = math.sqrt(self.variance)
        return GFL(scheme=scheme(self.name, sigma, sigma_client=sigma if self.client_links else 0.0), step=self.mu)


@dataclass
class Regression:
    """Runs and predictions on one drawn problem; each is made when it is first asked for and kept.

    Arguments are those of `Setting`.
    """

    rounds: int
    repeats: int
    seed: int
    _runs: dict[Setting, Run] = field(default_factory=dict)
    _predictions: dict[Setting, Prediction] = field(default_factory=dict)

    @cached_property
    def problem(self) -> Any:
        return regression(seed=self.seed)

    @cached_property
    def stable_step(self) -> float:
        """The largest mean-square stable step; of the schemes shown only the weights matter, and they are the same."""
        return max_stable_step(self.problem, self.graph("lazy"), Setting("none", 0.0).algorithm, seed=self.seed)

    def graph(self, weights: str) -> Graph:
        return Graph.random(10, 0.4, seed=self.seed, weights=weights)

    def run(self, *args: Any, **kwargs: Any) -> Run:
        at = _setting(*args, **kwargs)
        if at not in self._runs:
            run = simulate(
                self.problem,
                self.graph(at.weights),
                at.algorithm,
                rounds=at.rounds or self.rounds,
                repeats=self.repeats,
                seed=self.seed,
                evaluate_every=at.rounds or self.rounds,  # the figures are of deviations, not of losses
            )
            if run.interrupted:
                raise KeyboardInterrupt  # figures already drawn are kept; half a figure is not
            self._runs[at] = run
        return self._runs[at]

    def prediction(self, *args: Any, **kwargs: Any) -> Prediction:
        """What theory expects of `run` with the same arguments."""
        at = _setting(*args, **kwargs)
        if at not in self._predictions:
            self._predictions[at] = self._predict(at, at.rounds or self.rounds)
        return self._predictions[at]

    def _predict(self, at: Setting, rounds: int) -> Prediction:
        """Of a curve that has arrived, no more rounds are computed."""
        short = min(rounds, ARRIVED)
        found = predict(self.problem, self.graph(at.weights), at.algorithm, rounds=short, seed=self.seed)
        if short == rounds:
            return found
        both = np.stack([found.centroid_msd, found.individual_msd])
        if not np.allclose(both[:, -1], both[:, -2], rtol=1e-9, atol=0.0):
            return predict(self.problem, self.graph(at.weights), at.algorithm, rounds=rounds, seed=self.seed)
        centroid, individual = np.pad(both, ((0, 0), (0, rounds - short)), "edge")
        return replace(found, centroid_msd=centroid, individual_msd=individual)

    def level(self, which: str, *args: Any, **kwargs: Any) -> float:
        """Steady state in dB; infinite for a run that diverged."""
        run = self.run(*args, **kwargs)
        state = run.steady_state
        return math.inf if run.diverged or state is None else state[f"{which}_db"]

    def compare(self, point: str, *args: Any, **kwargs: Any) -> list[Comparison]:
        """Predicted against measured; nothing where the step is not mean-square stable."""
        return compare(self.run(*args, **kwargs), self.prediction(*args, **kwargs), point)


def _setting(*args: Any, **kwargs: Any) -> Setting:
    at = Setting(*args, **kwargs)
    return at._replace(variance=0.0) if at.name == "none" else at


def figure_a(x: Regression, folder: Path) -> tuple[list[str], list[Claim]]:
    """Three algorithms, mu = 0.7, sigma_g^2 = 0.1."""
    shown = {name: Setting(name) for name in NAMES} | {CLIENT_LINKS: Setting("per-link", client_links=True)}
    runs = {label: x.run(*at) for label, at in shown.items()}
    predictions = {label: x.prediction(*at) for label, at in shown.items()}
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
    files = [
        *figures.save(figure, folder / "a_three_algorithms"),
        figures.save_csv(columns, folder / "a_three_algorithms.csv"),
    ]

    def levels(which: str, **reading: Any) -> dict[str, float]:
        return {name: x.level(which, name, **reading) for name in NAMES}

    lazy, metropolis = levels("centroid"), levels("centroid", weights="metropolis")
    gap = lazy["homomorphic"] - lazy["none"]
    loss = lazy["per-link"] - lazy["homomorphic"]
    # "our suggested scheme does a good job at tracking the performance of the original GFL algorithm": within 3 dB.
    # "random perturbations has lower performance compared to the other two algorithms": by at least 10 dB.
    return files, [
        Claim(
            "a1",
            "homomorphic perturbations track the noiseless algorithm: centroid within 3 dB in steady state",
            abs(gap) <= 3.0,
            {"centroid_db": lazy, "gap_db": gap, "with_metropolis_weights_db": metropolis},
        ),
        Claim(
            "a2",
            "random perturbations perform worse: centroid at least 10 dB above homomorphic",
            loss >= 10.0,
            {
                "loss_db": loss,
                "with_metropolis_weights_db": metropolis["per-link"] - metropolis["homomorphic"],
                "with_noise_on_client_links_db": x.level("centroid", "per-link", client_links=True),
            },
        ),
        _agreement("a3", "every scheme of figure (a), centroid and individual models", x, shown),
    ]


def figure_b(x: Regression, folder: Path) -> tuple[list[str], list[Claim]]:
    """The noise sweep, for the centroid and for the individual models."""
    files: list[str] = []
    columns: dict[str, Floats] = {}
    for which in ("centroid", "individual"):
        figure, drawn = _sweep(x, f"{which}_msd", SIGMA, "variance", VARIANCES)
        figure.suptitle(rf"(b) {which} models, $\mu$ = {MU}, {x.repeats} repetitions", fontsize=10)
        files += figures.save(figure, folder / f"b_noise_{which}")
        columns |= drawn
    files.append(figures.save_csv(columns, folder / "b_noise.csv"))

    def sweep(which: str, **reading: Any) -> dict[str, list[float]]:
        return {name: [x.level(which, name, v, **reading) for v in VARIANCES] for name in PAIR}

    def always_less(levels: dict[str, list[float]]) -> bool:
        return all(h < r for h, r in zip(levels["homomorphic"], levels["per-link"], strict=True))

    floor, centroid, individual = x.level("centroid", "none"), sweep("centroid"), sweep("individual")
    plain = sweep("individual", weights="metropolis")
    rise = {name: levels[VARIANCES.index(1.0)] - levels[0] for name, levels in centroid.items()}
    at = {  # "breaks down": the centroid 10 dB above the noiseless algorithm
        name: next((v for v, level in zip(VARIANCES, levels, strict=True) if level > floor + 10.0), math.inf)
        for name, levels in centroid.items()
    }
    points = {f"{name} {v:g}": Setting(name, v) for name in PAIR for v in VARIANCES}
    spread = {name: [float(x.run(name, v).levels("disagreement").mean()) for v in VARIANCES] for name in PAIR}
    return files, [
        # "the MSD of the algorithm with random perturbations increases significantly as opposed to ... homomorphic"
        Claim(
            "b1",
            "from sigma_g^2 = 0.001 to 1 the centroid rises by at least 20 dB with random perturbations "
            "and by less than half of that with homomorphic ones",
            rise["per-link"] >= 20.0 and math.inf > rise["homomorphic"] <= rise["per-link"] / 2,
            {"rise_db": rise, "variances": VARIANCES, "centroid_db": centroid, "noiseless_db": floor},
        ),
        # "at some point, while using random perturbations, the algorithm breaks down. ... homomorphic perturbations
        # delays that effect for much larger variance"
        Claim(
            "b2",
            "homomorphic breaks down (10 dB above noiseless) at a variance at least 100 times larger than random",
            at["per-link"] < math.inf and at["homomorphic"] >= 100 * at["per-link"],
            {"breaks_at_variance": at},
        ),
        # "for a fixed noise variance, homomorphic perturbations results in a better performance" (individual models)
        Claim(
            "b3",
            "individual models suffer in both schemes, less with homomorphic perturbations, at every variance",
            always_less(individual) and all(levels[-1] > levels[0] for levels in individual.values()),
            {
                "individual_db": individual,
                "with_metropolis_weights_db": plain,
                "holds_with_metropolis_weights": always_less(plain),
            },
        ),
        # "as we increase the noise variance, the network disagreement increases for both schemes"
        Claim(
            "b4",
            "network disagreement grows with the noise variance in both schemes",
            all(a < b for levels in spread.values() for a, b in pairwise(levels)),
            {"disagreement": spread},
        ),
        _agreement("b5", "every point of figure (b), centroid and individual models", x, points),
    ]


def figure_c(x: Regression, folder: Path) -> tuple[list[str], list[Claim]]:
    """The step-size sweep, sigma_g^2 = 0.1."""
    figure, columns = _sweep(x, "centroid_msd", r"$\mu$", "mu", STEPS)
    figure.suptitle(f"(c) centroid, {SIGMA} = {VARIANCE}, {x.repeats} repetitions", fontsize=10)
    files = figures.save(figure, folder / "c_step_size")
    files.append(figures.save_csv(columns, folder / "c_step_size.csv"))

    level = {name: [x.level("centroid", name, mu=mu) for mu in STEPS] for name in PAIR}
    inner = min(level["per-link"][1:3])
    points = {f"{name} {mu:g}": Setting(name, mu=mu) for name in PAIR for mu in STEPS}
    settle = {name: [_settling(x.run(name, mu=mu)) for mu in STEPS[:3]] for name in PAIR}
    return files, [
        # "as mu is increased, the final MSD increases" (homomorphic)
        Claim(
            "c1",
            "with homomorphic perturbations the steady state falls whenever mu falls",
            all(a < b for a, b in pairwise(level["homomorphic"])),
            {"steps": STEPS, "homomorphic_db": level["homomorphic"]},
        ),
        # "for significantly small or large mu, the performance of ... random perturbations decreases"
        Claim(
            "c2",
            "with random perturbations the smallest and the largest mu are worse than one between (U-shape)",
            level["per-link"][0] > inner and level["per-link"][-1] > inner,
            {"steps": STEPS, "per_link_db": level["per-link"]},
        ),
        # "the rate of convergence slows down as we decrease the step-size"
        Claim(
            "c3",
            "convergence slows down as mu falls from 1 to 0.1: rounds to come within 3 dB of the steady state",
            all(a > b for rounds in settle.values() for a, b in pairwise(rounds)),
            {"steps": STEPS[:3], "rounds": settle},
        ),
        _agreement("c4", "every step of figure (c), centroid and individual models", x, points),
    ]


def figure_e(x: Regression, folder: Path) -> tuple[list[str], list[Claim]]:
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
    files = [*figures.save(figure, folder / "e_final_sum"), figures.save_csv(columns, folder / "e_final_sum.csv")]

    recovered = x.level("individual", "homomorphic") - x.level("centroid", "homomorphic")
    left = x.level("centroid", "per-link") - floor
    # "the information of the true model is distributed in the network and can be retrieved ... when random
    # perturbations are used, reconstruction is not possible since the information has been lost"
    return files, [
        Claim(
            "e1",
            f"a final sum over servers recovers at least 20 dB from homomorphic models at sigma_g^2 = {VARIANCE}, "
            "and leaves models with random noise at least 10 dB above the noiseless sum",
            recovered >= 20.0 and left >= 10.0,
            {
                "recovered_db": recovered,
                "random_above_noiseless_db": left,
                "privacy": "not accounted; a sum revealed without noise of its own is a leak",
            },
        )
    ]


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


def _agreement(id: str, what: str, x: Regression, points: dict[str, Setting]) -> Claim:
    compared = {label: x.compare(label, *at) for label, at in points.items()}
    unstable = [label for label, found in compared.items() if not found]
    return agreement(id, what, [c for found in compared.values() for c in found], unstable, x.stable_step)


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


def _settling(run: Run) -> int:
    """First round whose mean MSD is within 3 dB above the steady state."""
    level = 10.0 * math.log10(float(np.mean(run.levels("centroid_msd"))))
    curve = figures.decibel(run.metrics["centroid_msd"].mean(axis=0))
    return int(np.argmax(curve <= level + 3.0)) + 1
