"""What the paper says of privacy, judged: by an attack, by its own theorem, and by the accountant.

These verdicts never change the exit status: they are about the paper's words, and what confide promises is accounted
elsewhere. The comparison at equal privacy is a short form of figures (f) and (g).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np

from confide.attacks.attacks import LARGE, record, subtract_flows
from confide.base.errors import InputError
from confide.experiments import equal_privacy as q
from confide.experiments.claims import Claim, Condition, Outcome
from confide.experiments.predicted import chance
from confide.experiments.readings import BASELINES, HOMOMORPHIC, WEIGHTS, Baseline, Level, gap
from confide.experiments.regression import MU, VARIANCE, Setting
from confide.graph.graph import Graph
from confide.laws.law import GAUSSIAN, LAPLACE, Law
from confide.plans import words
from confide.privacy.accountant import account, paper_theorem
from confide.privacy.sensitivity import Sensitivity
from confide.privacy.statement import WORDS
from confide.problems import regression
from confide.rounds.schemes import scheme

HEARD = 50  # rounds that the attack hears
BOUND = 1.0  # B: the paper names none
SAMPLED, CLIENTS = 11, 100  # L and K of the paper's experiment
END = 1000  # rounds of the paper's experiment, as its figures go
WEAK = WORDS[-1][0]  # epsilon beyond which a privacy statement says "practically none"
# Equal noise, unequal privacy: large enough to have an epsilon that means something.
SIGMA, LONG = 30.0, 60
SHORT = (1.0, 4.38, 20.0)  # epsilons of the comparison


@dataclass(frozen=True)
class Privacy:
    """What is asked of the accountant and of an attack, and the runs at equal privacy."""

    repeats: int
    seed: int

    @cached_property
    def equal(self) -> q.EqualPrivacy:
        return q.EqualPrivacy(SHORT, self.repeats, self.seed)

    def graph(self, weights: str = "lazy") -> Graph:
        return Graph.random(10, 0.4, seed=self.seed, weights=weights)

    def epsilon(
        self,
        noise: Baseline,
        sigma: float,
        rounds: int,
        law: Law = GAUSSIAN,
        weights: str = "lazy",
        level: words.Level = words.Level.UNIT,
        dim: int | None = None,
    ) -> float:
        """Against who hears all links, the data of one unit (or client) replaced."""
        s = Sensitivity(step=MU, bound=BOUND, level=level, sampled=SAMPLED, clients=CLIENTS, dim=dim)
        made = scheme(noise.scheme, sigma, noise=law, sigma_client=sigma if noise.client_links else 0.0)
        # noise on the links from clients is in the clear, as in (7)
        found = account(made, self.graph(weights), s, rounds=rounds, secure=not noise.client_links).epsilon
        return math.inf if found is None else found

    def residual(self) -> float:
        """The largest error, over the units, of the sum of a unit's clean updates, from one final model of it.

        The attack knows the messages, which anybody on the links hears, and that model.
        """
        algorithm = Setting("homomorphic", LARGE**2).algorithm
        t = record(regression(seed=self.seed), [self.graph()], algorithm, HEARD, self.seed)
        guesses = [subtract_flows(t.graphs, t.sent, t.w[0, p], t.w[-1, p], p) for p in range(t.updates.shape[1])]
        return float(np.linalg.norm(guesses - t.updates.sum(axis=0), axis=1).max())

    def ahead(self, which: str, way: str) -> tuple[float, float]:
        """By how much homomorphic beats another way, in dB, where it does least, with the Monte-Carlo error."""

        def level(task: str, way: str, epsilon: float) -> Level:
            errors = getattr(self.equal.point(task, way, epsilon), which)
            return Level(float(errors.mean()), chance(errors))

        places = product(self.equal.tasks, SHORT)
        return min(gap(level(t, way, e), level(t, "homomorphic", e)) for t, e in places)


def figure_i(x: Privacy, folder: Path) -> list[str]:
    """Error against true epsilon for every scheme."""
    return q.draw_released(x.equal, folder / "equal_privacy_in_short")


def claims_i(x: Privacy) -> list[Claim]:
    return [*_no_information(x), *_theorem(x), *_equal_noise(x), *_time(x), *_equal_privacy(x)]


def _claim(id: str, line: str, statement: str, outcomes: list[Outcome], expected: bool, **numbers: Any) -> Claim:
    first = outcomes[0]
    found = {c.what: c.value for c in first.conditions} | numbers
    return Claim(id, statement, first.holds, found, line, None, expected, readings=tuple(outcomes), privacy=True)


def _no_information(x: Privacy) -> Iterator[Claim]:
    # "At that point, the local models no longer contain information about the local data, and thus agents can safely
    # share their models."
    yield _claim(
        "p1",
        "final models tell nothing",
        "after training a server's model contains no information about its unit's data: who heard the messages and "
        f"sees it knows the sum of the unit's clean updates no better than to one noise, sigma_g = {LARGE:g} "
        f"({HEARD} rounds)",
        [Outcome("messages and one final model", [Condition("error of the sum of updates", x.residual(), LARGE, "")])],
        False,
    )


def _theorem(x: Privacy) -> Iterator[Claim]:
    # Theorem 2: "then it is epsilon(i)-differentially private, at time i for a standard deviation of
    # sigma_g = sqrt 2 mu B (1 + i) i / epsilon(i)"
    sigma, rounds = math.sqrt(VARIANCE), (10, 100, END)
    printed = {i: paper_theorem(MU, BOUND, sigma, i)[0] for i in rounds}
    repaired = {i: x.epsilon(HOMOMORPHIC, sigma, i, LAPLACE, dim=2) for i in rounds}
    try:
        one_client: Any = x.epsilon(HOMOMORPHIC, sigma, END, LAPLACE, level=words.Level.CLIENT, dim=2)
    except InputError as e:
        one_client = f"refused: {e}"
    yield _claim(
        "p2",
        "Theorem 2 gives privacy",
        f"Theorem 2 makes the experiment private: after {END} rounds with mu = {MU}, sigma_g^2 = {VARIANCE} and "
        f"B = {BOUND:g} its epsilon is at most {WEAK:g}, beyond which there is practically none",
        [
            Outcome("as printed", [Condition("epsilon", printed[END], WEAK, "", least=False)]),
            Outcome("repaired", [Condition("epsilon", repaired[END], WEAK, "", least=False)]),
        ],
        False,
        epsilon_printed=printed,
        epsilon_repaired_for_an_l2_bound=repaired,
        one_client=one_client,
    )


def _equal_noise(x: Privacy) -> Iterator[Claim]:
    # "our suggested scheme does a good job at tracking the performance ..., while not compromising with the privacy
    # level"
    outcomes, found = [], {}
    for weights in WEIGHTS:
        ours = x.epsilon(HOMOMORPHIC, SIGMA, LONG, weights=weights)
        for name, noise in BASELINES.items():
            theirs = found[f"{name}, {weights}"] = x.epsilon(noise, SIGMA, LONG, weights=weights)
            condition = Condition("epsilon of homomorphic, of random", ours, theirs, "", least=False)
            outcomes.append(Outcome(f"{name}, {weights}", [condition]))
    yield _claim(
        "p3",
        "equal noise, equal privacy",
        f"at the same sigma_g homomorphic perturbations are as private as random ones (Gaussian, sigma_g = {SIGMA:g}, "
        f"mu = {MU}, B = {BOUND:g}, {LONG} rounds, one unit replaced, all links heard)",
        outcomes,
        False,
        epsilon_of_random=found,
    )


def _time(x: Privacy) -> Iterator[Claim]:
    # "if we fix the added noise, then as time passes, the algorithm becomes less private"
    spent = {i: x.epsilon(HOMOMORPHIC, SIGMA, i) for i in (1, 10, LONG)}
    least = min(b - a for a, b in pairwise(spent.values()))
    yield _claim(
        "p4",
        "less private as time passes",
        "with fixed noise the algorithm becomes less private as time passes: epsilon grows with the rounds",
        [Outcome("homomorphic", [Condition("least growth of epsilon", least, 0.0, "")])],
        True,
        epsilon_after_rounds=spent,
    )


def _equal_privacy(x: Privacy) -> Iterator[Claim]:
    # "we no longer have to choose what to prioritize, and instead, we can have both a highly privatized algorithm with
    # a good model utility": what claims a2 and b3 say at equal noise
    ways = {"literal": "per-link", "one draw for all": "shared"}
    for id, which, least, line, models in (
        ("p5", "centroid", 10.0, "better at equal epsilon", "the centroid of random perturbations is 10 dB above that"),
        ("p6", "individual", 0.0, "models too", "the individual models of random perturbations are worse than those"),
    ):
        outcomes = []
        for name, way in ways.items():
            ahead, error = x.ahead(which, way)
            condition = Condition("random above homomorphic, where it is least", ahead, least, error=error)
            outcomes.append(Outcome(name, [condition]))
        measure = "learnt" if which == "centroid" else which
        yield _claim(
            id,
            line,
            f"at equal true epsilon {models} of homomorphic ones, on every problem and at every epsilon, as at equal "
            "noise; the centroid is not released",
            outcomes,
            False,
            epsilons=SHORT,
            random_above_homomorphic_db={
                name: {task: x.equal.ahead(measure, task, "homomorphic", way) for task in x.equal.tasks}
                for name, way in ways.items()
            },
        )
