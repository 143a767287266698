"""The noise that a budget asks for: the smallest sigma whose account stays within it.

That of the messages (`calibrate`), or that inside the secure sums (`calibrate_sum`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from confide.base.errors import InputError
from confide.graph.graph import Graph
from confide.laws.law import GAUSSIAN, Law
from confide.plans import words
from confide.plans.privacy import Budget
from confide.plans.words import Threat
from confide.privacy.accountant import account
from confide.privacy.course import Account
from confide.privacy.reveal import Reveal
from confide.privacy.sensitivity import Sensitivity
from confide.privacy.sum_noise import LEAST_SHARE, SumNoise
from confide.rounds.schemes import KEYS, Place, Scheme, scheme

PAIR_RATIO = 10.0  # sigma_pair / sigma of pairwise, where nothing else is said
SHARE = 0.5  # of rho that the messages get when a release is paid from the same budget, where nothing else is said


@dataclass(frozen=True)
class Calibrated:
    scheme: Scheme
    release: Reveal
    account: Account


def calibrate(
    name: str,
    graph: Graph | Sequence[Graph],
    sensitivity: Sensitivity,
    budget: Budget,
    *,
    rounds: int,
    noise: Law | str = GAUSSIAN,
    threat: Threat | str = "links",
    release: str = "none",
    pair_ratio: float = PAIR_RATIO,
    share: float = SHARE,
) -> Calibrated:
    """The scheme `name` with the least noise that the budget allows against this adversary.

    `release` is "none", "local", "consensus:T", "centroid:SIGMA" (its noise given) or "centroid": its noise is sized
    too, the messages getting `share` of the budget and the release the rest, unless one of the two costs nothing.
    """
    noise, graphs = Law.parse(noise), [graph] if isinstance(graph, Graph) else list(graph)
    threat = words.threat(threat)

    def done(sigma: float, released: str) -> Calibrated:
        s = _noisy(name, sigma, noise.continuous, pair_ratio)
        reveal = Reveal.sized(words.release(released), threat, graphs)
        spent = account(
            s, graphs, sensitivity, rounds=rounds, noise=noise, threat=threat, release=reveal, delta=budget.delta
        )
        return Calibrated(s, reveal, spent)

    def at(sigma: float, released: str) -> Account:
        return done(sigma, released).account

    noiseless = scheme(name).places.isdisjoint(KEYS["sigma"])
    if release != "centroid":
        sigma = 0.0 if noiseless else _least(lambda x: at(x, release), budget)
        found = done(sigma, release)
        if not budget.allows(found.account):
            raise InputError("scheme", name, f"has no noise to calibrate, and does not stay within {budget.limit:g}")
        return found
    if not at(0.0 if noiseless else 1.0, "centroid:0").leak:  # it costs nothing: the messages determine it
        return done(_least(lambda x: at(x, "none"), budget), "centroid:0")
    sigma = 0.0 if noiseless else _least(lambda x: at(x, "none"), budget.part(share))
    return done(sigma, f"centroid:{_least(lambda x: at(sigma, f'centroid:{x!r}'), budget)!r}")


def calibrate_sum(
    sensitivity: Sensitivity,
    budget: Budget,
    *,
    rounds: int,
    honest: int,
    fraction_bits: int = 24,
    corrupted: int = 0,
) -> tuple[SumNoise, Account]:
    """The least noise inside the secure sums that the budget allows against the own server, and so anybody.

    Args:
        honest: shares that count in every sum, `Parameters.honest_survivors`.

    >>> s = Sensitivity(0.1, 1.0, sampled=20, dim=10)
    >>> noise, _ = calibrate_sum(s, Budget(rho=0.5), rounds=100, honest=12)
    >>> round(noise.sigma, 6)  # sqrt(rounds) 2 mu B / L
    0.1
    """
    if sensitivity.sampled is None or sensitivity.dim is None:
        name = "sampled" if sensitivity.sampled is None else "dim"
        raise InputError(name, None, "noise inside a sum of L updates with M coordinates needs both; give L and M")
    L, M = sensitivity.sampled, sensitivity.dim

    def noise(sigma: float) -> SumNoise:
        return SumNoise.sized(sigma, honest, sampled=L, fraction_bits=fraction_bits, dim=M, corrupted=corrupted)

    def at(sigma: float) -> Account:
        alone, silent = Graph.path(1), scheme("none")
        return account(
            silent, alone, sensitivity, rounds=rounds, threat="own-server", delta=budget.delta, sum_noise=noise(sigma)
        )

    # Below this a share is narrower than the proof needs; a little more, for the division.
    least = LEAST_SHARE * math.sqrt(honest) / (L * 2.0**fraction_bits) * (1 + 1e-12)
    sigma = least if budget.allows(at(least)) else least * (1 + _least(lambda x: at(least * (1 + x)), budget))
    return noise(sigma), at(sigma)


def _least(spend: Callable[[float], Account], budget: Budget) -> float:
    """The smallest noise within the budget; epsilon falls as noise grows."""
    low, high = 1e-12, 1.0
    if spend(1e15).leak:
        raise InputError("threat", spend(1e15).threat, f"no noise helps: {spend(1e15).assumptions[0]}")
    while not budget.allows(spend(high)):
        low, high = high, high * 8.0
        if high > 1e15:
            raise InputError("epsilon", budget.limit, "no noise below 1e15 meets this budget")
    while budget.allows(spend(high / 8.0)) and high > 1e-9:
        high /= 8.0
    low = max(low, high / 8.0)
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if budget.allows(spend(middle)) else (middle, high)
        if high / low < 1 + 1e-9:
            break
    return high


def _noisy(name: str, sigma: float, law: Law, pair_ratio: float) -> Scheme:
    blank = scheme(name, noise=law).only_plain("sizing")
    pair = pair_ratio * sigma if Place.EDGE in blank.places else 0.0
    return blank.resized(sigma=sigma, sigma_pair=pair)
