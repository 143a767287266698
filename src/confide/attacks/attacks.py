"""Attacks that need no statistics: what messages, models and single updates give away, and what they do not.

Every attack reads a transcript of the reference round, never the noise. With o the messages, s = c psi + (1 - c) o the
own state and u_j = psi_j - w_{j-1} the update of server p,

    o_{p,j+1} - o_{p,j} - [(A - I) o_j]_p = u_{j+1} + g_{j+1} - c g_j                    (messages)
    w_{p,j} - w_{p,j-1} - [(A - I) o_j]_p = u_j + (1 - c) g_j                            (models and messages)

so that for homomorphic noise (c = 1) the first telescopes to the sum of the updates plus one single noise, whatever the
number of rounds, and the second is the sum of the updates itself. For shared noise (c = 0) every round adds its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from confide.attacks import lower
from confide.base.arrays import Floats
from confide.base.errors import RunError
from confide.base.randomness import Purpose, generator, key
from confide.graph.graph import Graph
from confide.laws.conversion import renyi_epsilon
from confide.laws.law import GAUSSIAN, Law
from confide.plans.words import Amplified
from confide.privacy.participation import amplified_curve
from confide.privacy.sensitivity import Sensitivity
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL, Failures
from confide.rounds.local import LocalTask, bounded, sgd
from confide.rounds.reference import prepare
from confide.rounds.schemes import scheme

VALUES = 40  # independent errors behind every point of a telescoping curve, at least
EXACT = 1e-10  # relative error below which a recovery counts as exact
SAME = 0.98  # cosine above which two feature vectors count as the same
LARGE = 100.0  # sigma that hides nothing in the leaks
TELESCOPED = {
    "homomorphic": "the messages of a server and its neighbours give the sum of its updates: in homomorphic noise with "
    "the error of one noise, however many rounds (so that of the average update falls as 1/rounds)",
    "shared": "in shared noise the error of the same estimate grows as sqrt(rounds), as from independent noises",
}
LEAKED = {
    "final model": "the messages and the model give the exact sum of a unit's clean updates over all rounds",
    "own client": "the messages and the model give the exact clean update of the unit in the round between two "
    "hand-outs",
}
NO_LEAK = "with shared noise the model is a function of the messages: it adds nothing to them"


@dataclass(frozen=True)
class Attack:
    """One attack and whether it went as the accountant says: `ok` is not "succeeded", a failure may be right."""

    name: str
    statement: str
    succeeds: bool
    should_succeed: bool
    numbers: dict[str, Any]

    @property
    def ok(self) -> bool:
        return self.succeeds == self.should_succeed

    @property
    def words(self) -> str:
        return ("succeeds" if self.succeeds else "fails") + (", as predicted" if self.ok else ", NOT AS PREDICTED")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"ok": self.ok}


class Transcript(NamedTuple):
    """A run as its adversaries may see it (sent, w, graphs) and as it was (updates)."""

    graphs: list[Graph]  # of each round
    sent: Floats  # (T, P, M)
    w: Floats  # (T + 1, P, M), the first is public
    updates: Floats  # (T, P, M)


def record(problem: Problem, graphs: Sequence[Graph], algorithm: GFL, rounds: int, seed: int) -> Transcript:
    """The reference round with all its messages; links and units do not fail here."""
    algorithm = replace(algorithm, failures=Failures(), arithmetic="float", aggregation=None)
    reference = prepare(problem, graphs, algorithm, rounds, seed)(0)
    w = [reference.start(np.tile(problem.start, (graphs[0].P, 1)))]
    sent, updates = [], []
    for i in range(1, rounds + 1):
        with np.errstate(over="ignore", invalid="ignore"):  # said below
            done = reference.round(i, w[-1])
        if not np.isfinite(done.w).all():
            raise RunError(f"the run to attack diverged in round {i}, with algorithm.step = {algorithm.step:g}")
        sent.append(done.sent)
        updates.append(done.psi - w[-1])
        w.append(done.w)
    turns = [graphs[i % len(graphs)] for i in range(rounds)]
    return Transcript(turns, np.array(sent), np.array(w), np.array(updates))


def flows(graphs: Sequence[Graph], sent: Floats, p: int) -> Floats:
    """[(A - I) o_j]_p of every round, from the messages of p and of its neighbours alone."""
    found = np.empty((len(sent), sent.shape[2]))
    for j, graph in enumerate(graphs):
        near = graph.neighbours(p)
        found[j] = graph.A[p, near] @ (sent[j, near] - sent[j, p])
    return found


def telescope(graphs: Sequence[Graph], sent: Floats, w0: Floats, p: int) -> Floats:
    """Estimates of u_1 + ... + u_t of server p for t = 1..T, from the messages of its neighbourhood  (messages)."""
    before = np.cumsum(flows(graphs, sent, p), axis=0) - flows(graphs, sent, p)
    return np.asarray(sent[:, p] - w0 - before)


def subtract_flows(graphs: Sequence[Graph], sent: Floats, start: Floats, end: Floats, p: int) -> Floats:
    """The sum of p's updates between two of its models, from the messages in between  (models and messages)."""
    return np.asarray(end - start - flows(graphs, sent, p).sum(axis=0))


def telescoping(problem: Problem, graphs: Sequence[Graph], algorithm: GFL, rounds: int, seed: int) -> Iterator[Attack]:
    """The error of the recovered sum against the rounds, for homomorphic and for shared noise.

    The attack succeeds when the error of the sum does not grow, so that the error of the average update falls as
    1 / rounds; it fails when the sum's error grows as sqrt(rounds), which is what independent noise allows anyway.
    """
    sigma, law = algorithm.scheme.sigma or math.sqrt(0.1), algorithm.scheme.law
    repeats = min(20, math.ceil(VALUES / (graphs[0].P * problem.M)))
    at = np.unique(np.rint(np.geomspace(1, rounds, math.ceil(math.log2(rounds)) + 1)).astype(int))
    for name, statement in TELESCOPED.items():
        noisy = replace(algorithm, scheme=scheme(name, sigma, noise=law))
        squares, relative = np.zeros(len(at)), []
        for r in range(repeats):
            t = record(problem, graphs, noisy, rounds, key(seed, Purpose.DATA, r))
            for p in range(graphs[0].P):
                truth = np.cumsum(t.updates[:, p], axis=0)[at - 1]
                error = telescope(t.graphs, t.sent, t.w[0, p], p)[at - 1] - truth
                squares += np.mean(error**2, axis=1)
                relative.append(np.linalg.norm(error, axis=1) / np.linalg.norm(truth, axis=1))
        rms = np.sqrt(squares / (repeats * graphs[0].P))
        slope = float(np.polyfit(np.log(at), np.log(rms), 1)[0])
        numbers = {
            "sigma": sigma,
            "rounds": at.tolist(),
            "sum_error_over_sigma": (rms / sigma).tolist(),
            "mean_error_over_sigma": (rms / sigma / at).tolist(),
            "relative_sum_error": np.median(relative, axis=0).tolist(),
            "sum_error_exponent": slope,
            "mean_error_exponent": slope - 1.0,
        }
        yield Attack(f"telescoping, {name}", statement, slope < 0.25, name == "homomorphic", numbers)


def leaks(problem: Problem, graphs: Sequence[Graph], algorithm: GFL, rounds: int, seed: int) -> Iterator[Attack]:
    """The final model, and two hand-outs of a unit's model to a client, with the messages, at sigma = 100."""
    spans = {"final model": (0, rounds), "own client": (rounds // 2, rounds // 2 + 1)}
    for name in ("homomorphic", "shared"):
        noisy = replace(algorithm, scheme=scheme(name, LARGE, noise=algorithm.scheme.law))
        t = record(problem, graphs, noisy, rounds, seed)
        for what, (a, b) in spans.items():
            errors, truths, known = [], [], []
            for p in range(graphs[0].P):
                truth = t.updates[a:b, p].sum(axis=0)
                guess = subtract_flows(t.graphs[a:b], t.sent[a:b], t.w[a, p], t.w[b, p], p)
                of_messages = t.sent[b - 1, p] + flows(t.graphs[b - 1 : b], t.sent[b - 1 : b], p)[0]
                truths.append(np.linalg.norm(truth))
                errors.append(np.linalg.norm(guess - truth))
                known.append(np.linalg.norm(t.w[b, p] - of_messages) / np.linalg.norm(t.w[b, p]))
            relative = float(np.max(np.array(errors) / np.array(truths)))
            numbers = {
                "sigma": LARGE,
                "rounds": b - a,
                "relative_error": relative,
                "error_over_sigma": float(np.mean(errors)) / LARGE,
                "model_is_function_of_messages": bool(max(known) <= EXACT),
            }
            leaky = name == "homomorphic"
            yield Attack(f"{what}, {name}", LEAKED[what] if leaky else NO_LEAK, relative <= EXACT, leaky, numbers)


def recover_features(update: Floats, w: Floats, step: float, rho: float, intercept: int | None = None) -> Floats:
    """A sample's features from one step on it: update / mu = -slope u - 2 rho w; up to scale without an intercept."""
    direction = -update / step - 2.0 * rho * w
    return direction / (np.linalg.norm(direction) if intercept is None else direction[intercept])


def features(problem: Problem, step: float, sampled: int, seed: int) -> list[Attack]:
    """What one client's logistic update shows of its sample, alone and in the sum of several clients.

    One local step on one sample (E = 1, batch 1), unclipped, at a model that the client was handed. The problem's last
    constant feature, 1 in every sample, is the intercept.
    """
    f, model = problem.federation, problem.model
    w = 0.1 * generator(seed, Purpose.DATA, 7002).standard_normal(problem.M)
    intercept = int(np.flatnonzero(np.all(f.X == 1.0, axis=0))[-1])
    p, updates, samples = int(np.argmax(f.K)), [], []
    together = min(max(5, sampled), int(f.K[p]))
    for k in range(together):
        X, d = f.client(p, k)
        task = LocalTask(model, step, 1, 1, True, None, key(seed, Purpose.BATCHES, 1, p, k))
        updates.append(bounded(sgd, w, X[:1], d[:1], task))
        samples.append(X[0])
    alone = [recover_features(u, w, step, model.rho, intercept) for u in updates]
    summed = recover_features(np.mean(updates, axis=0), w, step, model.rho)
    private = np.arange(problem.M) != intercept  # which everybody knows
    single = [_alike(a[private], u[private]) for a, u in zip(alone, samples, strict=True)]
    mixed = [_alike(summed[private], u[private]) for u in samples]
    off = max(np.linalg.norm(a - u) / np.linalg.norm(u) for a, u in zip(alone, samples, strict=True))
    return [
        Attack(
            "features, one client",
            "an update that is not masked shows the client's feature vector exactly (the intercept gives the scale)",
            min(single) > 1.0 - EXACT,
            True,
            {"features": problem.M, "cosine": min(single), "relative_error": float(off)},
        ),
        Attack(
            f"features, sum of {together}",
            "the sum of several clients' updates shows no client's feature vector",
            max(mixed) > SAME,
            False,
            {"clients": together, "cosine_largest": max(mixed), "cosine_mean": float(np.mean(mixed))},
        ),
    ]


def naive_amplification(chance: float = 0.25, rounds: int = 8, moved: float = 0.3, delta: float = 1e-5) -> Attack:
    """A client that takes part by chance in homomorphic rounds, and moves psi by `moved` sigma each time it does.

    The last message and the flows before it show the sum of all updates through one noise: a mixture over how often the
    client was there, told from a client that never was.
    """
    from scipy.stats import binom

    n = np.arange(rounds + 1)
    there = list(zip(binom.pmf(n, rounds, chance).tolist(), (moved * n).tolist(), strict=True))
    attained = lower.epsilon_of([lower.mixture_look(there, [(1.0, 0.0)])], delta)
    part = Amplified(chance)
    s = Sensitivity(moved / 2.0, 1.0, sampled=1, clients=round(1.0 / chance), participation=part)
    curve = amplified_curve(s, chance, GAUSSIAN, np.ones(rounds))[0](0)[:, -1]
    naive = renyi_epsilon(lambda orders: curve, delta)
    return Attack(
        "naive amplification, homomorphic",
        "amplification by subsampling, round by round, is refuted where the state remembers: more than it says is "
        "attained",
        attained > naive,
        True,
        {"participation": chance, "rounds": rounds, "attained": attained, "naive": naive},
    )


def demonstrations(graphs: Sequence[Graph], law: Law, seed: int) -> list[Attack]:
    """All of them on the graphs of a run and data of our own: nobody's data are read."""
    from confide.problems import clicks, regression

    problem = regression(units=graphs[0].P, clients=5, samples=20, seed=seed)
    algorithm = GFL(scheme("homomorphic", math.sqrt(0.1), noise=law), step=0.3, sampled=5, local_steps=1, batch=5)
    return [
        *telescoping(problem, graphs, algorithm, 32, seed),
        *leaks(problem, graphs, algorithm, 20, seed),
        *features(clicks(units=2, clients=10, rows=600, seed=seed), 0.3, 10, seed),
        naive_amplification(),
    ]


def _alike(a: Floats, b: Floats) -> float:
    return float(abs(a @ b) / (np.linalg.norm(a) * np.linalg.norm(b)))
