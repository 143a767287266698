"""A second accountant, for tests: the view of an adversary as one Gaussian vector, written from the paper's round.

It imports nothing of `confide.privacy` and nothing of the schemes: every row of the view is `h u + k z`, with u_1..u_T
what the target's data add in each round, and z all noises, independent and standard normal. A pair of data sets moves
u by some Delta with |Delta_j| <= s in the rounds in which the target takes part, so that

    mu^2 = sup Delta' H' (K K')^+ H Delta        (a leak where H Delta is outside the range of K)

is reached at a corner of the box: with T <= 4 rounds all corners, and all patterns of participation, are tried.
Noise that a server keeps to itself may be cancelled by an adaptive update, so the view holds it
(docs/design/privacy.md, 2).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr, logsumexp

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Network:
    """One network and its noise, as the paper writes them.

    Attributes:
        weights: A of every round, (T, P, P).  up: which links carry a flow, (T, P, P), symmetric.
        scheme: "broadcast" (one noise a server), "links" (one a link), "pairs" (broadcast, and one an edge),
            "average" (one for the mean of all), "silent".
        carry: c of a broadcast; None is a_pp.  own: of "links", whether the own term has noise too.
    """

    weights: Floats
    up: NDArray[np.bool_]
    scheme: str
    sigma: float
    carry: float | None = None
    own: bool = False
    sigma_pair: float = 0.0

    @property
    def T(self) -> int:
        return len(self.weights)

    @property
    def P(self) -> int:
        return self.weights.shape[1]

    def neighbours(self, p: int) -> set[int]:
        """Of any round, also over links that fail."""
        return {m for m in range(self.P) if m != p and np.any(self.weights[:, p, m] > 0)}


@dataclass(frozen=True)
class Adversary:
    """Who looks at one target, beside all messages.

    Attributes:
        colluders: servers whose states and noises are known.  models: w_p of the rounds before the last is known too.
        centroid: standard deviation of one server's share of the release's noise on the mean, None without a release.
        local: all servers' last models are revealed.
    """

    target: int
    colluders: frozenset[int] = frozenset()
    models: bool = False
    centroid: float | None = None
    local: bool = False


class _Rows:
    """Linear forms in (u, z); z grows as noises are drawn."""

    def __init__(self, T: int, noises: int) -> None:
        self.T, self.size, self.used = T, T + noises, 0

    def noise(self) -> Floats:
        form = np.zeros(self.size)
        form[self.T + self.used] = 1.0
        self.used += 1
        return form

    def signal(self, j: int) -> Floats:
        form = np.zeros(self.size)
        form[j] = 1.0
        return form


def view(net: Network, who: Adversary, gamma: float = 1.0) -> Floats:
    """All that the adversary sees, a row each: T columns of u, then those of z."""
    T, P = net.T, net.P
    rows = _Rows(T, T * (P * P + P + 1) + P)
    seen: list[Floats] = []
    w = [np.zeros(rows.size) for _ in range(P)]
    for j in range(T):
        if who.models:
            seen.append(w[who.target])
        psi = [gamma * w[p] + (rows.signal(j) if p == who.target else 0.0) for p in range(P)]
        w = _round(net, j, psi, rows, seen, who)
        seen += [form for p in who.colluders for form in (psi[p], w[p])]
    if who.local:
        seen += w
    if who.centroid is not None:
        mean = sum(w) / P
        for p in range(P):
            share = rows.noise()
            mean = mean + who.centroid * share
            if p in who.colluders:
                seen.append(share)
        seen.append(mean)
    return np.array(seen).reshape(len(seen), rows.size)


def _round(net: Network, j: int, psi: list[Floats], rows: _Rows, seen: list[Floats], who: Adversary) -> list[Floats]:
    A, up, P = net.weights[j], net.up[j], net.P
    pairs = [(p, m) for p in range(P) for m in range(p + 1, P) if A[p, m] > 0]
    if net.scheme == "silent":
        return psi
    if net.scheme == "average":
        mean = sum(psi) / P + net.sigma * rows.noise()
        seen.append(mean)
        return [mean] * P
    if net.scheme == "links":
        return _links(net, A, up, pairs, psi, rows, seen, who)
    g = [net.sigma * rows.noise() for _ in range(P)]
    known = [g[p] for p in who.colluders]
    if net.scheme == "pairs":
        for p, m in pairs:
            shared = net.sigma_pair * rows.noise()
            g[p], g[m] = g[p] + shared, g[m] - shared
            known += [shared] if {p, m} & who.colluders else []
    seen += known
    o = [psi[p] + g[p] for p in range(P)]
    seen += o
    c = [A[p, p] if net.carry is None else net.carry for p in range(P)]
    w = [c[p] * psi[p] + (1.0 - c[p]) * o[p] for p in range(P)]
    for p, m in pairs:
        if up[p, m]:
            w[p], w[m] = w[p] + A[p, m] * (o[m] - o[p]), w[m] + A[p, m] * (o[p] - o[m])
    return w


def _links(
    net: Network,
    A: Floats,
    up: NDArray[np.bool_],
    pairs: list[tuple[int, int]],
    psi: list[Floats],
    rows: _Rows,
    seen: list[Floats],
    who: Adversary,
) -> list[Floats]:
    """Eq. 8 as printed: every link has its own noise, and so has the own term; a flow that fails stays at home."""
    w, sent = [x.copy() for x in psi], {}
    for p, m in pairs:
        for a, b in ((p, m), (m, p)):
            g = net.sigma * rows.noise()
            sent[a, b] = psi[a] + g
            w[a] = w[a] + A[p, m] * g
            seen += [sent[a, b]] + ([g] if a in who.colluders else [])
    for p in range(net.P):
        if net.own:
            g = net.sigma * rows.noise()
            seen.append(g)
            w[p] = w[p] + A[p, p] * g
    for p, m in pairs:
        if up[p, m]:
            flow = A[p, m] * (sent[m, p] - sent[p, m])
            w[p], w[m] = w[p] + flow, w[m] - flow
    return w


def corners(T: int, s: float, most: int | None = None) -> Iterator[Floats]:
    """Deviations of u at the corners of the box, up to an overall sign, non-zero in at most `most` rounds."""
    for present in itertools.product((False, True), repeat=T):
        if most is None or sum(present) <= most:
            yield from at_pattern(present, s)


def at_pattern(present: tuple[bool, ...], s: float) -> Iterator[Floats]:
    """Both signs in every round in which the target takes part."""
    for signs in itertools.product((1.0, -1.0), repeat=sum(present)):
        if not signs or signs[0] > 0:
            found = np.zeros(len(present))
            found[list(present)] = s * np.array(signs)
            yield found


def mu_squared(rows: Floats, T: int, shift: Floats) -> float:
    """mu^2 of one pair; infinite where it is seen without noise."""
    h, K = rows[:, :T] @ shift, rows[:, T:]
    z, *_ = np.linalg.lstsq(K, h, rcond=1e-11)
    if np.abs(K @ z - h).max(initial=0.0) > 1e-8 * np.abs(h).max(initial=1.0):
        return math.inf
    return float(z @ z)  # the least noise that explains the shift: h' (K K')^+ h


def loss_l1(rows: Floats, T: int, shift: Floats) -> float:
    """Of Laplace noise, in its scale: the view must determine every noise that explains the shift."""
    h, K = rows[:, :T] @ shift, rows[:, T:]
    used = np.flatnonzero(np.abs(K).sum(axis=0))
    if np.linalg.matrix_rank(K[:, used]) < len(used):
        raise ValueError("some noise stays hidden")
    z, *_ = np.linalg.lstsq(K[:, used], h, rcond=1e-11)
    if np.abs(K[:, used] @ z - h).max(initial=0.0) > 1e-8 * np.abs(h).max(initial=1.0):
        return math.inf
    return float(np.abs(z).sum())


def gaussian_delta(mu: float, epsilon: float) -> float:
    a, b = -epsilon / mu + mu / 2.0, -epsilon / mu - mu / 2.0
    return math.exp(log_ndtr(a)) - math.exp(epsilon + log_ndtr(b))


def gaussian_epsilon(mu: float, delta: float) -> float:
    if mu == 0.0 or gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(mu, high) > delta:
        high *= 2.0
    return float(brentq(lambda e: gaussian_delta(mu, e) - delta, 0.0, high, xtol=1e-12, rtol=1e-12))


def renyi_epsilon(weights: Floats, mus: Floats, delta: float) -> float:
    """Of a mixture over patterns, each mu^2-Gaussian, by exp((a - 1) D_a) being convex; over a dense grid of orders."""
    a = 1.0 + np.geomspace(1e-3, 4e3, 4000)[:, None]
    with np.errstate(divide="ignore"):
        curve = logsumexp(np.log(weights) + (a - 1.0) * a * mus / 2.0, axis=1) / (a[:, 0] - 1.0)
    a = a[:, 0]
    return max(0.0, float(np.min(curve + np.log1p(-1.0 / a) - (math.log(delta) + np.log(a)) / (a - 1.0))))


def patterns(T: int, q: float) -> Iterator[tuple[tuple[bool, ...], float]]:
    for present in itertools.product((False, True), repeat=T):
        yield present, math.prod(q if x else 1.0 - q for x in present)


def whitened(rows: Floats, T: int, shifts: list[Floats]) -> Floats:
    """The shifts as means of a standard normal view, one a row, in as many dimensions as they span."""
    K = rows[:, T:]
    U, d, _ = np.linalg.svd(K, full_matrices=False)
    keep = d > 1e-11 * d.max(initial=0.0)
    means = np.array([(U[:, keep].T @ (rows[:, :T] @ x)) / d[keep] for x in shifts])
    _, sizes, V = np.linalg.svd(means, full_matrices=False)
    return means @ V[sizes > 1e-12].T


def mixture_delta(weights: Floats, means: Floats, epsilon: float, rng: np.random.Generator, n: int) -> float:
    """A lower bound on delta(epsilon) between the mixture and the standard normal, either way round.

    Six standard errors below an estimate from n draws: a true epsilon fails with probability 1e-9.
    """
    which = rng.choice(len(weights), size=n, p=weights)
    mixed, plain = means[which] + rng.standard_normal((n, means.shape[1])), rng.standard_normal((n, means.shape[1]))

    def loss(x: Floats) -> Floats:
        with np.errstate(divide="ignore"):
            return np.asarray(logsumexp(np.log(weights) + x @ means.T - np.sum(means**2, axis=1) / 2.0, axis=1))

    both = -np.expm1(np.minimum(0.0, epsilon - loss(mixed))), -np.expm1(np.minimum(0.0, epsilon + loss(plain)))
    return max(float(x.mean() - 6.0 * x.std() / math.sqrt(n)) for x in both)
