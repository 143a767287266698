"""What the paper leaves open, as readings: every claim is judged under all of them, and its verdict names what decides.

Two choices are crossed, because they act together: what "random perturbations" are (BASELINES) and the weights of the
graph. Topology, and the scale of the data, which the paper gives no more than those, are varied around the default.
For squared loss the error under a reading is predicted exactly, and is affine in the variance of the noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple, Protocol

import numpy as np

from confide.base.arrays import Floats
from confide.experiments.claims import WORDS, Claim, Condition, Outcome
from confide.experiments.predicted import DECIBEL
from confide.figures import figures
from confide.graph.graph import Graph
from confide.problems import Problem, regression
from confide.rounds.algorithm import GFL
from confide.rounds.schemes import Scheme, scheme
from confide.theory.prediction import Levels as Limits
from confide.theory.prediction import predict


class Baseline(NamedTuple):
    """One meaning of "random perturbations": a scheme, and whether the links from clients have noise too."""

    scheme: str
    client_links: bool = False

    def noisy(self, variance: float) -> Scheme:
        sigma = math.sqrt(variance)  # 0 for the scheme without noise
        return scheme(self.scheme, sigma, sigma_client=sigma if self.client_links else 0.0)


# The first is what (8) says to the letter: every g_pm is a draw of its own, also g_pp of the server's own message,
# which never leaves it. That one protects nobody from who hears the links, so that epsilon is the same without it;
# one draw for all receivers has a far smaller epsilon (claim p3).
BASELINES = {
    "literal": Baseline("per-link"),
    "own message clean": Baseline("per-link-clean"),
    "clean with client links": Baseline("per-link-clean", client_links=True),
    "literal with client links": Baseline("per-link", client_links=True),
    "one draw for all": Baseline("shared"),
}
WEIGHTS = ("lazy", "metropolis")
HOMOMORPHIC = Baseline("homomorphic")
# Sets of baselines that have a name of their own, as what is so "unless" and "with".
_CLEAN, _QUIET = frozenset({"own message clean", "clean with client links"}), frozenset({"own message clean"})
UNLESS = {
    _QUIET: "the own message is clean",
    _CLEAN: "the own message is clean, client links or not",
    frozenset({"one draw for all"}): "one draw is for all",
}
WITH = {
    frozenset(BASELINES) - _CLEAN: "noise on the own message",
    frozenset(BASELINES) - _QUIET: "noise on the own message or client links",
    frozenset({"one draw for all"}): "one draw for all",
}


@dataclass(frozen=True)
class Reading:
    """One way to fill the gaps; the default is the paper's own words where it has words."""

    baseline: str = "literal"
    weights: str = "lazy"
    topology: str = "random:10:0.4"
    covariance: tuple[float, float] = (0.05, 0.5)
    noise_variance: tuple[float, float] = (0.01, 0.1)
    scale: str = ""  # of the classification's features

    @property
    def aside(self) -> str:
        """What is neither baseline nor weights, where it is not the default."""
        parts = []
        if self.topology != DEFAULT.topology:
            parts.append(self.topology)
        if self.covariance != DEFAULT.covariance:
            parts.append("covariances in [{:g}, {:g}]".format(*self.covariance))
        if self.noise_variance != DEFAULT.noise_variance:
            parts.append("sigma_v^2 in [{:g}, {:g}]".format(*self.noise_variance))
        return ", ".join(filter(None, (*parts, self.scale)))

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.baseline, self.weights, self.aside)))


DEFAULT = Reading()
CROSSED = tuple(Reading(b, w) for b, w in product(BASELINES, WEIGHTS))
AROUND = (
    *(Reading(topology=t) for t in ("random:10:0.2", "ring:10", "star:10")),
    *(Reading(covariance=c) for c in ((0.01, 0.1), (0.1, 1.0), (0.2, 2.0))),
    Reading(noise_variance=(0.1, 1.0)),
)


class Level(NamedTuple):
    """A mean-square deviation, and how far chance alone could have moved it."""

    value: float
    error: float = 0.0


class Levels(Protocol):
    """Steady states under one reading, measured or predicted; `random` stands for the reading's baseline."""

    def level(self, which: str, name: str, variance: float, mu: float) -> Level:
        """Of "centroid", "individual" or "disagreement", for "none", "homomorphic" or "random"."""

    def settling(self, name: str, mu: float) -> float | None:
        """Rounds until the centroid comes within 3 dB above its steady state; None where it begins or stays there."""

    def stable(self, mu: float) -> bool:
        """Whether the step is mean-square stable, so that there is a steady state."""


@dataclass
class Exact:
    """What prediction says of every reading of one seed; each part is computed once, whoever asks."""

    seed: int
    variance: float  # of the noise that is predicted; that of any other follows
    long: int  # rounds of a predicted curve
    _problems: dict[Any, Problem] = field(default_factory=dict)
    _limits: dict[Any, Limits | None] = field(default_factory=dict)
    _curves: dict[Any, Floats] = field(default_factory=dict)

    def under(self, reading: Reading) -> Predicted:
        return Predicted(self, reading)

    def limit(self, reading: Reading, noise: Baseline, mu: float) -> Limits | None:
        key = (self._place(reading), noise, mu)
        if key not in self._limits:
            self._limits[key] = predict(*self._run(reading, noise, mu), seed=self.seed).limit
        return self._limits[key]

    def curve(self, reading: Reading, noise: Baseline, mu: float) -> Floats:
        key = (self._place(reading), noise, mu)
        if key not in self._curves:
            run = self._run(reading, noise, mu)
            self._curves[key] = predict(*run, rounds=self.long, seed=self.seed).centroid_msd
        return self._curves[key]

    def _run(self, reading: Reading, noise: Baseline, mu: float) -> tuple[Problem, Graph, GFL]:
        scales = reading.covariance, reading.noise_variance
        if scales not in self._problems:
            self._problems[scales] = regression(covariance=scales[0], noise_variance=scales[1], seed=self.seed)
        graph = Graph.parse(reading.topology, weights=reading.weights, seed=self.seed)
        return self._problems[scales], graph, GFL(scheme=noise.noisy(self.variance), step=mu)

    def _place(self, reading: Reading) -> tuple[Any, ...]:
        return reading.weights, reading.topology, reading.covariance, reading.noise_variance


@dataclass(frozen=True)
class Predicted:
    """`Levels` without chance."""

    exact: Exact
    reading: Reading

    def level(self, which: str, name: str, variance: float, mu: float) -> Level:
        if which == "disagreement":  # (1/P) sum_p |w_p - w_c|^2 = (1/P) sum_p |w_p - w^o|^2 - |w_c - w^o|^2
            parts = (self.level(part, name, variance, mu).value for part in ("individual", "centroid"))
            return Level(next(parts) - next(parts))
        limit = self.exact.limit(self.reading, self._noise(name), mu)
        if limit is None:
            return Level(math.inf)
        sources = getattr(limit, which)
        noise = 0.0 if name == "none" else sources.privacy_noise * variance / self.exact.variance
        return Level(sources.bias_squared + sources.gradient_noise + noise)

    def settling(self, name: str, mu: float) -> float | None:
        level = self.level("centroid", name, self.exact.variance, mu).value
        return arrival(self.exact.curve(self.reading, self._noise(name), mu), level)

    def stable(self, mu: float) -> bool:
        return self.exact.limit(self.reading, HOMOMORPHIC, mu) is not None

    def _noise(self, name: str) -> Baseline:
        return BASELINES[self.reading.baseline] if name == "random" else HOMOMORPHIC


def gap(a: Level, b: Level) -> tuple[float, float]:
    """a over b in dB with its error: independent draws are assumed, and shared ones bring levels nearer together."""
    if not (a.value > 0.0 and 0.0 < b.value < math.inf):
        return math.nan if a.value <= 0.0 or math.isinf(a.value) else -math.inf, 0.0
    if math.isinf(a.value):
        return math.inf, 0.0
    return DECIBEL * math.log(a.value / b.value), DECIBEL * math.hypot(a.error / a.value, b.error / b.value)


def arrival(curve: Floats, level: float) -> float | None:
    """When a curve comes within 3 dB of its level, between two rounds as a straight line in dB between them."""
    above = figures.decibel(curve) - 10.0 * math.log10(level) - 3.0
    near = int(np.argmax(above <= 0.0))
    if above[near] > 0.0 or near == 0:
        return None
    return near + 1.0 - float(above[near] / (above[near] - above[near - 1]))


@dataclass(frozen=True)
class Said:
    """One sentence of the paper, and how it is judged under one reading.

    Attributes:
        id, figure, line, statement: of its claim.
        judge: the conditions, from what is known of a reading.
        expected: what is known to come out under the default reading.
    """

    id: str
    figure: str
    line: str
    statement: str
    judge: Callable[..., Iterator[Condition]]
    expected: bool = True

    def claim(self, known: Mapping[Reading, Any], numbers: Mapping[str, Any]) -> Claim:
        """Judged by what is known of each reading, the default first, which is measured."""
        names = {r: f"{r} (measured)" if r == DEFAULT else str(r) for r in known}
        judged = [(r, Outcome(names[r], list(self.judge(x)))) for r, x in known.items()]
        outcomes = tuple(outcome for _, outcome in judged)
        first, words = outcomes[0], verdict(judged)
        found = {c.what: c.value for c in first.conditions} | dict(numbers)
        return Claim(
            self.id, self.statement, first.holds, found, self.line, self.figure, self.expected, words, outcomes
        )


def verdict(judged: Sequence[tuple[Reading, Outcome]]) -> str:
    """The choice that decides, in words: the default comes first."""
    found = {reading: outcome.holds for reading, outcome in judged}
    crossed = {(r.baseline, r.weights): holds for r, holds in found.items() if not r.aside}
    said = _crossed(crossed, found[DEFAULT])
    if found[DEFAULT] is None:
        return said
    other = [r.aside for r, holds in found.items() if r.aside and holds is not None and holds != found[DEFAULT]]
    if not other:
        return said
    aside = sum(bool(r.aside) for r in found)
    where = f"with {' or '.join(other)}" if len(other) < 3 else f"in {len(other)} of {aside} settings around it"
    return f"{said}; {'not' if found[DEFAULT] else 'but'} {where}"


def _crossed(found: dict[tuple[str, str], bool | None], default: bool | None) -> str:
    yes, no = ([cell for cell, holds in found.items() if holds is kind] for kind in (True, False))
    if default is None or not (no if default else yes):
        return WORDS[default]
    if default and (found_no := _rectangle(no)) and found_no[0] != frozenset(BASELINES):
        rows, weights = found_no
        parts = (UNLESS.get(rows) or f"the noise is {_listed(rows)}", weights and f"weights are {weights}")
        return f"holds unless {' and '.join(filter(None, parts))}"
    if found_yes := _rectangle(yes):
        rows, weights = found_yes
        noise = "" if rows == frozenset(BASELINES) else WITH.get(rows) or f"noise {_listed(rows)}"
        choices = " and ".join(filter(None, (weights and f"{weights} weights", noise)))
        return f"holds {'' if default else 'only '}with {choices}"
    return f"{WORDS[default]}, as in {len(yes if default else no)} of {len(found)} readings"


def _rectangle(cells: Sequence[tuple[str, str]]) -> tuple[frozenset[str], str] | None:
    """Cells as a set of baselines under one rule of weights, or under both (""); None where they are not."""
    rows, columns = frozenset(b for b, _ in cells), {w for _, w in cells}
    if len(rows) * len(columns) != len(cells):
        return None
    return rows, "" if len(columns) == len(WEIGHTS) else columns.pop()


def _listed(rows: frozenset[str]) -> str:
    return " or ".join(b for b in BASELINES if b in rows)
