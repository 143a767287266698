"""Membership: from the messages alone, did the canary take part? A lower bound on what any account may claim.

The canary adds the same bounded number to the target's psi in every round, everything else is fixed, and the noise,
the messages and the combination are those of every run (`reference.float_noise`, `combine.publish`, `combine.combine`)
with one independent run a column. The adversary works out from the same public code how its view responds to each
noise and to the canary, undoes the memory of the view in causal order, and takes the likelihood ratio. A test that is
not the best one only lowers the bound, so nothing here has to be trusted for the bound to be true.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from confide.arithmetic import FloatArithmetic
from confide.combine import combine, publish
from confide.graph import Graph
from confide.randomness import Purpose, generator, key
from confide.reference import NoiseSource, float_noise
from confide.schemes import Scheme, links

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bound = Callable[[Floats, Floats], Floats]  # (false positive rate, false negative rate) -> lower bound

STREAM: Final = 7001  # of the audit, under Purpose.DATA
CONFIDENCE: Final = 0.95
CAUTION: Final = 1.0 - 1e-6  # in choosing a threshold: extreme ones look good by luck
CHUNK: Final = 1 << 21  # numbers of a view at a time


@dataclass(frozen=True)
class Canary:
    """One scheme, one target, one adversary and the two worlds that it has to tell apart.

    Attributes:
        amounts: what the canary adds to every coordinate of the target's psi in a round, in either world: (without,
            with) it: (-x, x) for replace, (0, x) for zero-out.
        others: what everybody else adds, fixed, (P, coordinates).
        colluders: servers whose noises the adversary knows. It subtracts them, so here they are not drawn at all.
        own_noise_known: the noise g_pp of per-link is given away too, as the account does to allow adaptive updates.
        release: standard deviation of the Gaussian noise on the mean of the final models, without the shares of it that
            the adversary knows; None when they stay secret.
        participation: probability that the canary takes part in a round, hidden.
    """

    scheme: Scheme
    graphs: tuple[Graph, ...]
    rounds: int
    target: int
    amounts: tuple[float, float]
    others: Floats
    colluders: frozenset[int] = frozenset()
    own_noise_known: bool = False
    release: float | None = None
    participation: float = 1.0

    @property
    def coordinates(self) -> int:
        return int(self.others.shape[1])

    def view(self, added: Floats, noise: NoiseSource) -> Floats:
        """All that the adversary sees: a row a message, a column a coordinate of a run.

        Args:
            added: what the canary adds in each round, (rounds, columns).
        """
        columns = added.shape[1]
        others = np.tile(self.others, columns // self.coordinates)
        w, seen = np.zeros_like(others), []
        for i, own in enumerate(added, start=1):
            total = others.copy()
            total[self.target] += own
            heard, w = self._round(i, w, total, noise)
            seen.append(heard)
        if self.release is not None:
            last = noise(Purpose.NETWORK_NOISE, (self.rounds + 1,), "gaussian", self.release, columns)
            seen.append(w.mean(axis=0, keepdims=True) + last)
        return np.concatenate(seen)

    def _round(self, i: int, w: Floats, total: Floats, noise: NoiseSource) -> tuple[Floats, Floats]:
        graph, arith = self.graphs[(i - 1) % len(self.graphs)], FloatArithmetic(1)

        def draw(purpose: Purpose, ids: tuple[int, ...], sigma: float) -> Floats:
            if self._known(purpose, ids):
                return np.zeros(w.shape[1])
            return noise(purpose, (i, *ids), self.scheme.law, sigma, w.shape[1])

        psi = arith.add(w, total, 0.0)
        published = publish(self.scheme, graph, psi, draw, arith, np.ones(graph.P, dtype=bool))
        after = combine(self.scheme, graph, published, arith, np.ones(len(graph.edges), dtype=bool))
        return published.sent[self._heard(graph)], after

    def _known(self, purpose: Purpose, ids: tuple[int, ...]) -> bool:
        """An edge's noise is known to both of its ends, any other to who drew it."""
        if self.own_noise_known and purpose is Purpose.LINK_NOISE and ids[0] == ids[1]:
            return True
        owners = ids if purpose is Purpose.PAIR_NOISE else ids[:1]
        return not self.colluders.isdisjoint(owners)

    def _heard(self, graph: Graph) -> Ints:
        """Messages of honest servers: those of colluders follow from what they know."""
        if self.scheme.exchange != "graph":
            return np.arange(1 if self.scheme.exchange == "average" else 0)
        sender = links(graph)[0] if self.scheme.noise_on == "link" else np.arange(graph.P)
        return np.flatnonzero(~np.isin(sender, sorted(self.colluders)))


class Listener(NamedTuple):
    """What the adversary prepares: the view in units of its own independent noises, and the canary's trace in it."""

    whiten: Floats  # (numbers, rows of the view)
    response: Floats  # (numbers, rounds): to one unit added in that round
    mean: Floats  # (rows of the view, coordinates): without canary and noise
    gaussian: NDArray[np.bool_]  # (numbers,): the law of each, else it is Laplace's


def listen(canary: Canary) -> Listener:
    """Run the public code on single noises and single contributions."""
    from scipy.linalg import solve_triangular

    quiet = replace(canary, others=np.zeros((canary.graphs[0].P, 1)))
    T, sizes = canary.rounds, list[float]()

    def silence(purpose: Purpose, ids: tuple[int, ...], law: str, sigma: float, size: int) -> Floats:
        sizes.append(sigma)
        return np.zeros(size)

    response = quiet.view(np.eye(T), silence)
    count, turn = len(sizes), itertools.count()

    def impulse(purpose: Purpose, ids: tuple[int, ...], law: str, sigma: float, size: int) -> Floats:
        return np.where(np.arange(size) == next(turn), sigma, 0.0)

    K = quiet.view(np.zeros((T, count)), impulse)
    # A view whose every number has fresh noise has a triangular K, which then is this factor: rows of `whiten` are
    # the very noises that were drawn.
    whiten = solve_triangular(np.linalg.cholesky(K @ K.T), np.eye(len(K)), lower=True)
    traces = whiten @ response
    telling = np.abs(traces).max(axis=1) > 1e-9 * np.abs(traces).max()
    mean = canary.view(np.zeros((T, canary.coordinates)), silence)
    gaussian = np.full(len(K), canary.scheme.law == "gaussian")
    gaussian[-1] |= canary.release is not None  # whatever the law of the messages
    return Listener(whiten[telling], traces[telling], mean, gaussian[telling])


def scores(canary: Canary, listener: Listener, present: bool, runs: int, seed: int) -> Floats:
    """The log-likelihood ratio of "with" to "without" in independent runs of one of the two worlds."""
    C, T, found = canary.coordinates, canary.rounds, []
    step = max(1, CHUNK // (C * max(len(listener.mean), canary.graphs[0].P)))
    for n, start in enumerate(range(0, runs, step)):
        size = min(step, runs - start)
        stream = key(seed, Purpose.DATA, STREAM, int(present), n)
        added = np.full((T, size), canary.amounts[present])
        if canary.participation < 1.0:
            added *= generator(stream, Purpose.CLIENTS).random((T, size)) < canary.participation
        seen = canary.view(np.repeat(added, C, axis=1), float_noise(stream))
        z = listener.whiten @ (seen - np.tile(listener.mean, size))
        found.append(_log_likelihood(canary, listener, z, True) - _log_likelihood(canary, listener, z, False))
    return np.concatenate(found)


def _log_likelihood(canary: Canary, listener: Listener, z: Floats, present: bool) -> Floats:
    """Of the whitened view under one hypothesis: a mixture over the canary's hidden participations."""
    T, q, amount = canary.rounds, canary.participation, canary.amounts[present]
    patterns = np.ones((1, T))
    if q < 1.0 and amount != 0.0:
        patterns = np.array(list(itertools.product((0.0, 1.0), repeat=T)))
    total = np.full(z.shape[1] // canary.coordinates, -np.inf)
    for took_part in patterns:
        weight = 0.0
        if len(patterns) > 1:
            weight = took_part.sum() * math.log(q) + (T - took_part.sum()) * math.log1p(-q)
        rest = z - (listener.response @ took_part * amount)[:, None]
        one = np.where(listener.gaussian[:, None], -0.5 * np.square(rest), -math.sqrt(2.0) * np.abs(rest))
        total = np.logaddexp(total, weight + one.sum(axis=0).reshape(-1, canary.coordinates).sum(axis=1))
    return total


def rate_limit(errors: Ints, runs: int, confidence: float = CONFIDENCE) -> Floats:
    """Clopper and Pearson's upper limit of an error rate; two rates hold together with this confidence.

    >>> float(rate_limit(np.array(0), 10_000).round(6))
    0.000369
    """
    from scipy.stats import beta

    errors = np.asarray(errors)
    certain = errors >= runs
    limit = beta.ppf((1.0 + confidence) / 2.0, errors + 1, np.where(certain, 1, runs - errors))
    return np.asarray(np.where(certain, 1.0, limit))


def mu_bound(fpr: Floats, fnr: Floats) -> Floats:
    """The least mu_GDP that allows a test with these error rates: Phi^-1(1 - FPR) - Phi^-1(FNR), at least 0.

    >>> float(mu_bound(np.array(0.158655), np.array(0.158655)).round(4))
    2.0
    """
    from scipy.stats import norm

    separate = fpr + fnr < 1.0  # otherwise it is no better than guessing
    return np.asarray(norm.isf(np.where(separate, fpr, 0.5)) - norm.ppf(np.where(separate, fnr, 0.5)))


def epsilon_bound(fpr: Floats, fnr: Floats, delta: float) -> Floats:
    """The least epsilon at `delta`: log((1 - delta - FNR) / FPR), or with the two rates exchanged; at least 0."""

    def one_way(a: Floats, b: Floats) -> Floats:
        return np.asarray(np.log(np.maximum(1.0 - delta - b, 1e-300) / a))

    return np.maximum(np.maximum(one_way(fpr, fnr), one_way(fnr, fpr)), 0.0)


class Measured(NamedTuple):
    """A test's errors on `runs` runs of each kind."""

    threshold: float
    runs: int
    false_positives: int
    false_negatives: int

    @property
    def limits(self) -> tuple[Floats, Floats]:
        """What the two error rates are at most."""
        errors = (self.false_positives, self.false_negatives)
        fpr, fnr = (rate_limit(np.array(n), self.runs) for n in errors)
        return fpr, fnr


def measure(canary: Canary, bound: Bound, *, runs: int, trials: int, seed: int) -> Measured:
    """Fix the threshold that promises the best bound on `trials` runs of each kind, then count errors on fresh ones."""
    listener = listen(canary)
    with_it, without = (scores(canary, listener, present, trials, fresh(seed, 0)) for present in (True, False))
    steps = np.unique(np.quantile(np.concatenate([with_it, without]), np.linspace(0.0, 1.0, 401)))
    false_positives = trials - np.searchsorted(np.sort(without), steps, side="right")
    false_negatives = np.searchsorted(np.sort(with_it), steps, side="right")
    limits = (rate_limit(np.asarray(n), trials, CAUTION) for n in (false_positives, false_negatives))
    threshold = float(steps[np.argmax(bound(*limits))])
    with_it, without = (scores(canary, listener, present, runs, fresh(seed, 1)) for present in (True, False))
    return Measured(threshold, runs, int(np.sum(without > threshold)), int(np.sum(with_it <= threshold)))


def fresh(seed: int, *ids: int) -> int:
    """A seed of the audit that no other use of the seed shares."""
    return key(seed, Purpose.DATA, STREAM, *ids)
