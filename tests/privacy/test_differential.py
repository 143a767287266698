"""The accountant against a second one that shares no line with it (`by_matrices`), on random configurations.

Every number is a bound: never below what the second accountant attains. Where the accountant says `all`, the two are
equal; under a cap, and for random participation where carries are neither 0 nor 1, it may be a little above.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from confide.base.errors import InputError
from confide.base.randomness import Purpose
from confide.graph.graph import Graph
from confide.plans import words
from confide.plans.words import Always, Amplified, Cap, Random
from confide.privacy.accountant import account
from confide.privacy.course import Account
from confide.privacy.sensitivity import Sensitivity
from confide.rounds.arithmetic import FloatArithmetic
from confide.rounds.combine import combine, publish
from confide.rounds.schemes import Scheme, scheme
from exploring import more

sys.path.insert(0, str(Path(__file__).parent))
import by_matrices as second

EACH = more(50, 400)  # configurations of each kind
DELTA = 1e-3  # so that draws can refute an epsilon
DRAWS = 100_000
SCHEMES = {
    "homomorphic": ("broadcast", 1.0),
    "shared": ("broadcast", 0.0),
    "own-clean": ("broadcast", None),
    "partial:0.3": ("broadcast", 0.3),
    "per-link": ("links", None),
    "per-link-clean": ("links", None),
    "pairwise": ("pairs", 0.0),
    "central": ("average", None),
    "local-only": ("silent", None),
}


class Case(NamedTuple):
    graphs: list[Graph]
    scheme: Scheme
    net: second.Network
    sensitivity: Sensitivity
    s: float  # what one round adds, written out again
    gamma: float
    threat: str
    release: str


def draw_case(rng: np.random.Generator, participation: str, law: str = "gaussian") -> Case:
    P, T = int(rng.integers(2, 6)), int(rng.integers(1, 5))
    graphs = [
        Graph.random(P, 0.5, seed=int(rng.integers(1000)), weights=str(rng.choice(["lazy", "metropolis"])))
        for _ in range(rng.integers(1, 3))
    ]
    name = str(rng.choice(list(SCHEMES)))
    sigma = float(10.0 ** rng.uniform(-0.7, 1.0))
    silent = name == "local-only"
    made = scheme(
        name, 0.0 if silent else sigma, noise=law, sigma_pair=sigma * rng.uniform(0.2, 3) if name == "pairwise" else 0.0
    )
    kind, carry = SCHEMES[name]
    net = second.Network(
        np.array([graphs[j % len(graphs)].A for j in range(T)]),
        _links_up(rng, T, P),
        kind,
        made.sigma,
        carry,
        own=name == "per-link",
        sigma_pair=made.sigma_pair,
    )
    sensitivity, s, gamma = _draw_sensitivity(rng, net, participation)
    return Case(graphs, made, net, sensitivity, s, gamma, _draw_threat(rng, P), _draw_release(rng))


def _links_up(rng: np.random.Generator, T: int, P: int) -> np.ndarray:
    up = np.triu(rng.random((T, P, P)) < rng.choice([1.0, 0.6]), 1)
    return up | up.transpose(0, 2, 1)


def _draw_threat(rng: np.random.Generator, P: int) -> str:
    kind = str(rng.choice(["links", "colluders", "neighbours", "own-client"]))
    if kind != "colluders":
        return kind
    chosen = rng.choice(P, size=rng.integers(1, P), replace=False)
    return "colluders:" + ",".join(map(str, sorted(chosen.tolist())))


def _draw_release(rng: np.random.Generator) -> str:
    kind = str(rng.choice(["none", "centroid", "local"], p=[0.4, 0.45, 0.15]))
    return f"centroid:{10.0 ** rng.uniform(-1.5, 0.5):.6g}" if kind == "centroid" else kind


def _draw_sensitivity(
    rng: np.random.Generator, net: second.Network, participation: str
) -> tuple[Sensitivity, float, float]:
    """The settings, and s and gamma from docs/design/privacy.md, 1.2, written out again."""
    mu, B, K, T = float(rng.uniform(0.05, 0.5)), float(rng.uniform(0.3, 2.0)), 10, net.T
    L, E, half = int(rng.integers(1, K + 1)), int(rng.integers(1, 5)), bool(rng.random() < 0.5)
    forgets = net.scheme in ("average", "pairs") or (net.scheme == "broadcast" and net.carry == 0.0)
    proofs = ["convex-glm", "public-point"] if participation != "all" or rng.random() < 0.6 else ["none", "regulariser"]
    kind = str(rng.choice([*proofs, "none"] if forgets else proofs))
    level = "unit" if kind in ("none", "regulariser") and not forgets else "client"
    if participation == "all" and rng.random() < 0.3:
        level = "unit"
    constant = {"regulariser": 0.2 * E, "convex-glm": 0.5 * E}.get(kind, 0.0) * float(rng.uniform(0.1, 1.0))
    proof = words.proof(f"{kind}:{constant!r}" if kind in ("regulariser", "convex-glm") else kind)
    s, gamma = (2.0 - half) * mu * B / (1 if level == "unit" else L), 1.0
    if kind == "regulariser" and not forgets:
        gamma = (1.0 - 2.0 * constant * mu / E) ** E
        s = B / constant * (1.0 - gamma) * ((1.0 - 0.5 * half) if level == "unit" else 1.0)
    if kind == "convex-glm" and not forgets:
        gamma = (1.0 - constant * mu / E) ** E
    part = {
        "all": Always(),
        "cap": Cap(int(rng.integers(1, T + 1))),
        "random": Random(L / K),
        "amplified": Amplified(L / K),
    }[participation]
    adjacency = "zero-out" if half else "replace"
    return (
        Sensitivity(
            mu,
            B,
            level=level,
            adjacency=adjacency,
            sampled=L,
            clients=K,
            local_steps=E,
            proof=proof,
            participation=part,
            smoothness=constant if kind == "convex-glm" else None,  # declared: the recursion is linear then
        ),
        s,
        gamma,
    )


def ask(c: Case, threat: str | None = None) -> Account:
    return account(
        c.scheme, c.graphs, c.sensitivity, rounds=c.net.T, threat=threat or c.threat, release=c.release, delta=DELTA
    )


def adversaries(c: Case) -> list[second.Adversary]:
    """The same adversary of every honest target, with its own shares of the release known."""
    P = c.net.P
    near = [frozenset(int(m) for g in c.graphs for m in g.neighbours(p)) for p in range(P)]
    named = frozenset(map(int, c.threat.split(":")[1].split(","))) if c.threat.startswith("colluders") else frozenset()
    sized = max(map(len, near)) if c.threat == "neighbours" else max(1, len(named))
    share = None
    if c.release.startswith("centroid"):
        share = float(c.release.split(":")[1]) / math.sqrt(P - min(sized, P - 1))
    return [
        second.Adversary(
            p,
            near[p] if c.threat == "neighbours" else named,
            models=c.threat == "own-client",
            centroid=share,
            local=c.release == "local",
        )
        for p in range(P)
        if p not in named
    ]


def worst(c: Case, most: int | None = None) -> float:
    """mu^2 of the worst target and the worst corner."""
    found = []
    for who in adversaries(c):
        rows = second.view(c.net, who, c.gamma)
        found += [second.mu_squared(rows, c.net.T, x) for x in second.corners(c.net.T, c.s, most)]
    return max(found)


def seeded(kind: str, seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, *kind.encode()])


def answered(c: Case) -> Account | None:
    """None where the accountant refuses, which is always allowed."""
    try:
        return ask(c)
    except InputError:
        return None


@pytest.mark.parametrize("name", SCHEMES)
def test_the_second_accountant_has_the_round_that_runs(name: str) -> None:
    """One round of it has the states of `publish` and `combine`: the same signal, the same covariance."""
    rng, c = seeded(name, 0), None
    while c is None or c.scheme.name != name or c.net.T != 1:
        c = draw_case(rng, "all")
    P, graph, nobody = c.net.P, c.graphs[0], np.ones(c.net.P, dtype=bool)
    up = np.array([c.net.up[0][i, j] for i, j in graph.edges.tolist()], dtype=bool)
    names: dict[tuple[Purpose, tuple[int, ...]], None] = {}

    def states(psi: np.ndarray, one: object = None) -> np.ndarray:
        """After a round with this psi, in which only the noise `one` is there, one standard deviation of it."""

        def draw(purpose: Purpose, ids: tuple[int, ...], sigma: float) -> np.ndarray:
            names[purpose, ids] = None
            return np.array([sigma * ((purpose, ids) == one)])

        arith = FloatArithmetic(1)
        return combine(c.scheme, graph, publish(c.scheme, graph, psi, draw, arith, nobody), arith, up)[:, 0]

    for p in range(P):
        rows = second.view(c.net, second.Adversary(p, local=True))[-P:]
        assert np.allclose(rows[:, 0], states(np.eye(P)[:, p : p + 1]))
    noises = np.array([states(np.zeros((P, 1)), one) for one in list(names)]).reshape(-1, P)
    assert np.allclose(rows[:, 1:] @ rows[:, 1:].T, noises.T @ noises)


@pytest.mark.parametrize("seed", range(EACH))
def test_everybody_takes_part(seed: int) -> None:
    c = draw_case(seeded("all", seed), "all")
    a, mu = answered(c), worst(c)
    if a is None:
        return
    if a.leak:
        # The model that a client is handed tells nothing before the second round, and a refusal to say so is allowed.
        assert mu == math.inf or (c.threat == "own-client" and c.net.T == 1)
        return
    assert a.epsilon is not None
    assert a.epsilon == pytest.approx(second.gaussian_epsilon(math.sqrt(mu), DELTA), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("seed", range(EACH))
def test_at_most_so_many_rounds(seed: int) -> None:
    c = draw_case(seeded("cap", seed), "cap")
    a = answered(c)
    if a is None or a.leak:
        return
    assert a.epsilon is not None
    capped = second.gaussian_epsilon(math.sqrt(worst(c, words.cap(c.sensitivity.participation))), DELTA)
    assert a.epsilon >= capped * (1 - 1e-6)
    assert a.epsilon <= second.gaussian_epsilon(math.sqrt(worst(c)), DELTA) * (1 + 1e-6)


DRAWN = [("random", seed) for seed in range(EACH)] + [("amplified", seed) for seed in range(more(EACH // 3, EACH))]


@pytest.mark.parametrize(("kind", "seed"), DRAWN)  # fewer of `amplified`: dp-accounting takes its time
def test_who_takes_part_is_drawn(kind: str, seed: int) -> None:
    rng = seeded(kind, seed)
    c = draw_case(rng, kind)
    a = answered(c)
    if a is None or a.leak:
        return
    assert a.epsilon is not None
    part, T, bounds = c.sensitivity.participation, c.net.T, []
    assert isinstance(part, Random | Amplified)
    q = part.rate
    present, weights = zip(*second.patterns(T, q), strict=True)
    for who in adversaries(c):
        rows = second.view(c.net, who, c.gamma)
        mus = [max(second.mu_squared(rows, T, x) for x in second.at_pattern(one, c.s)) for one in present]
        bounds.append(
            min(
                second.renyi_epsilon(np.array(weights), np.array(mus), DELTA),
                second.gaussian_epsilon(math.sqrt(max(mus)), DELTA),
            )
        )
        means = second.whitened(rows, T, [c.s * np.array(one, dtype=np.float64) for one in present])
        assert second.mixture_delta(np.array(weights), means, a.epsilon, rng, DRAWS) <= DELTA
    if kind == "random":
        steady = all(float(x).is_integer() for g in c.graphs for x in c.scheme.carries(g)) and c.gamma == 1.0
        assert max(bounds) * (1 - 1e-6) <= a.epsilon <= max(bounds) * (1.01 if steady else 1.1) + 1e-3
    else:
        assert a.epsilon <= max(bounds) * 1.1 + 1e-3


@pytest.mark.parametrize("seed", range(EACH))
def test_laplace_noise_without_a_delta(seed: int) -> None:
    c = draw_case(seeded("laplace", seed), "all", "laplace")
    c = c._replace(release="none", sensitivity=_one_dimension(c.sensitivity))
    a = answered(c)
    if a is None or a.leak or c.scheme.name == "pairwise":
        return
    found = []
    for who in adversaries(c):
        rows = second.view(c.net, who, c.gamma)
        found += [second.loss_l1(rows, c.net.T, x) for x in second.corners(c.net.T, c.s)]
    assert a.epsilon_pure == pytest.approx(math.sqrt(2.0) * max(found), rel=1e-9)


def _one_dimension(s: Sensitivity) -> Sensitivity:
    """l1 and l2 are one there."""
    return replace(s, dim=1)


def test_most_configurations_have_a_number() -> None:
    """A table of refusals would show nothing."""
    for kind, configurations in (("all", 60), ("cap", 60), ("random", 60), ("amplified", more(18, 60))):
        found = [answered(draw_case(seeded(kind, seed), kind)) for seed in range(configurations)]
        assert sum(a is not None and not a.leak for a in found) >= configurations // 3
