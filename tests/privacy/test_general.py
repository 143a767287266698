"""The general accountant against closed forms, against a naive pseudoinverse, and against simulated messages."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from by_rows import expose
from confide.base.errors import InputError
from confide.base.randomness import Purpose
from confide.engines.driver import simulate
from confide.graph.graph import Graph
from confide.plans.build import of_run
from confide.plans.plan import Plan
from confide.plans.privacy import Privacy
from confide.plans.words import Cap, PublicPoint, Random, Regulariser
from confide.privacy import accountant, deviation
from confide.privacy.accountant import account
from confide.privacy.course import Account
from confide.privacy.general import Exposure, expose_each, rounds_of
from confide.privacy.price import price
from confide.privacy.rounding import Rounding
from confide.privacy.sensitivity import Sensitivity
from confide.problems import regression
from confide.problems.federation import Federation
from confide.problems.models import Linear
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL, Failures
from confide.rounds.arithmetic import FloatArithmetic
from confide.rounds.clipping import Clip
from confide.rounds.combine import combine, publish
from confide.rounds.local import LocalTask
from confide.rounds.reference import prepare
from confide.rounds.schemes import Exchange, Noise, Place, Scheme, Wiring, scheme
from own_schemes import CANCELS, CANCELS_EVERYWHERE, CORRELATED, OWN, elsewhere

Floats = NDArray[np.float64]
SCHEMES = [
    scheme("homomorphic", 0.7),
    scheme("shared", 0.7),
    scheme("own-clean", 0.7),
    scheme("partial:0.3", 0.7),
    scheme("per-link", 0.7),
    scheme("per-link-clean", 0.7),
    scheme("pairwise", 0.5, sigma_pair=2.0),
    scheme("pairwise", 0.7),
    scheme("central", 0.7),
    scheme("local-only"),
]
GRAPHS = [
    [Graph.ring(5)],
    [Graph.star(5, weights="metropolis")],
    [Graph.random(6, 0.5, seed=1)],
    [Graph.complete(4, weights="metropolis")],
    [Graph.ring(5), Graph.star(5, weights="metropolis")],  # taking turns
    Graph.ring(5, weights="metropolis").matchings(),
]


def named(s: Scheme) -> str:
    return s.name + ("+pairs" if s.sigma_pair else "")


def listed(graphs: list[Graph]) -> str:
    return "-".join(g.name for g in graphs)


def over(graphs: Sequence[Graph], T: int) -> list[Graph]:
    return [graphs[j % len(graphs)] for j in range(T)]


def closed_form(s: Scheme, g: Graph, p: int, colluders: frozenset[int]) -> tuple[float, float]:
    """(carry, precision) of docs/design/privacy.md, 1, 2 and 5, written out again."""
    a = float(g.A[p, p])
    if s.name == "local-only":
        return 1.0, 0.0
    if s.name == "central":
        return 0.0, 1 / (g.P * s.sigma) ** 2
    if s.name.startswith("per-link"):
        return a, np.count_nonzero(np.delete(g.A[p], p)) / s.sigma**2
    if s.name == "pairwise":
        honest = [q for q in range(g.P) if q not in colluders]
        adjacency = (g.A[np.ix_(honest, honest)] > 0).astype(float)
        np.fill_diagonal(adjacency, 0.0)
        L = np.diag(adjacency.sum(axis=0)) - adjacency
        V = s.sigma**2 * np.eye(len(honest)) + s.sigma_pair**2 * L
        return 0.0, float(np.linalg.inv(V)[honest.index(p), honest.index(p)])
    carry = {"homomorphic": 1.0, "shared": 0.0, "own-clean": a, "partial:0.3": 0.3}[s.name]
    return carry, s.sigma**-2


@pytest.mark.parametrize("s", SCHEMES, ids=named)
@pytest.mark.parametrize("graphs", GRAPHS, ids=listed)
def test_closed_forms(s: Scheme, graphs: list[Graph]) -> None:
    T, P = 6, graphs[0].P
    turns = over(graphs, T)
    for colluders in (frozenset(), frozenset({0}), frozenset({1, 2}), frozenset(range(P - 1))):
        honest = [p for p in range(P) if p not in colluders]
        for p, e in zip(honest, expose_each(rounds_of(s, turns), honest, colluders), strict=True):
            forms = np.array([closed_form(s, g, p, colluders) for g in turns])
            np.testing.assert_allclose(e.S, np.diag(forms[:, 1]), rtol=0, atol=1e-10 * max(1.0, forms[:, 1].max()))
            np.testing.assert_allclose(e.kept, np.diag(forms[:, 0]), rtol=0, atol=1e-10)
            assert not e.leak
            assert e.others < 1e-10
            assert (e.revealed > 0) == (s.name == "per-link")


@pytest.mark.parametrize("s", SCHEMES, ids=named)
@pytest.mark.parametrize("sigma", [1e-9, 1e-4, 1e6, 1e12])
def test_any_size_of_noise(s: Scheme, sigma: float) -> None:
    """The precision scales exactly; neither tiny nor huge noise is mistaken for none, or for hidden noise."""
    if s.name == "local-only":
        return
    scaled = scheme(s.name, sigma * s.sigma, sigma_pair=sigma * s.sigma_pair)
    g = Graph.random(5, 0.6, seed=3)
    e, one = expose(rounds_of(scaled, [g] * 8), 2, frozenset()), expose(rounds_of(s, [g] * 8), 2, frozenset())
    assert not e.leak
    assert e.revealed == one.revealed
    np.testing.assert_allclose(e.S * sigma**2, one.S, atol=1e-9)
    np.testing.assert_allclose(e.kept, one.kept, atol=1e-10)


@pytest.mark.parametrize("s", SCHEMES, ids=named)
@pytest.mark.parametrize("gam", [0.9, 0.5])
def test_contraction_does_not_change_what_psi_costs(s: Scheme, gam: float) -> None:
    """Written in deviations of psi the view is the same: gamma belongs to the sensitivity."""
    rounds = rounds_of(s, [Graph.star(4)] * 5)
    plain, shrunk = expose(rounds, 1, frozenset()), expose(rounds, 1, frozenset(), gam)
    np.testing.assert_allclose(shrunk.S, plain.S, atol=1e-10)
    np.testing.assert_allclose(shrunk.kept, plain.kept, atol=1e-10)


def test_several_targets_at_once_are_each_alone() -> None:
    rounds = rounds_of(scheme("pairwise", 0.5, sigma_pair=2.0), over([Graph.star(5), Graph.ring(5)], 4))
    together = expose_each(rounds, [1, 3, 4], frozenset({0}))
    for p, e in zip([1, 3, 4], together, strict=True):
        alone = expose(rounds, p, frozenset({0}))
        np.testing.assert_allclose(e.S, alone.S, atol=1e-12)
        np.testing.assert_allclose(e.kept, alone.kept, atol=1e-12)


# The naive formula: S = H' (K K')^+ H with the range test


def naive(
    rounds: Sequence[Wiring], target: int, colluders: frozenset[int], gam: float = 1.0, reveal: Sequence[int] = ()
) -> tuple[Floats, Floats, bool]:
    """Every row of the view at once: (K, S in terms of u, leak). `reveal`: noises of each round given away besides."""
    T, P, Z = len(rounds), rounds[0].W.shape[0], len(rounds[0].owners)
    H, K = [], []
    Gw, Kw = np.zeros((P, T)), np.zeros((P, Z * T))
    for j, m in enumerate(rounds):
        z = np.eye(Z * T)[j * Z : (j + 1) * Z]
        Gpsi, Kpsi = gam * Gw, gam * Kw
        Gpsi[target, j] += 1.0
        H.append(m.C @ Gpsi)
        K.append(m.C @ Kpsi + lagged(m.N, j, Z, T))
        Gw, Kw = m.W @ Gpsi, m.W @ Kpsi + lagged(m.R, j, Z, T)
        for q in colluders:
            H += [Gpsi[q : q + 1], Gw[q : q + 1]]
            K += [Kpsi[q : q + 1], Kw[q : q + 1]]
        for n, names in enumerate(m.owners):
            if colluders & set(names) or n in reveal:
                H.append(np.zeros((1, T)))
                K.append(z[n : n + 1])
    h, k = np.vstack(H), np.vstack(K)
    inverse = np.linalg.pinv(k @ k.T, rcond=1e-10, hermitian=True)
    leak = bool(np.abs(h - k @ k.T @ inverse @ h).max() > 1e-7)
    return k, h.T @ inverse @ h, leak


def lagged(parts: tuple[Floats, ...], j: int, Z: int, T: int) -> Floats:
    """Columns of the draws of round j and of those before, Z in every round."""
    found = np.zeros((len(parts[0]), Z * T))
    for lag, part in enumerate(parts[: j + 1]):
        found[:, (j - lag) * Z : (j - lag + 1) * Z] = part
    return found


def in_updates(e: Exposure, gam: float) -> Floats:
    """S in terms of u: Delta psi_j = u_j + gam kept[j-1] . Delta psi."""
    T = len(e.S)
    G = np.linalg.inv(np.eye(T) - gam * np.vstack([np.zeros(T), e.kept[:-1]]))
    return np.asarray(G.T @ e.S @ G)


@pytest.mark.parametrize("s", [s for s in SCHEMES if s.name != "local-only"], ids=named)
@pytest.mark.parametrize("graph", [Graph.ring(4), Graph.star(4), Graph.random(5, 0.5, seed=2)], ids=lambda g: g.name)
def test_naive_pseudoinverse(s: Scheme, graph: Graph) -> None:
    own = len(s.wiring(graph).draws)  # per-link: the noise kept at home comes last, and must be given away
    reveal = range(own - graph.P, own) if s.name == "per-link" else ()
    rounds = rounds_of(s, [graph] * 5)
    for gam in (1.0, 0.8):
        for colluders in (frozenset(), frozenset({1}), frozenset({1, 2})):
            _, S, leak = naive(rounds, 0, colluders, gam, reveal)
            e = expose(rounds, 0, colluders, gam)
            assert not leak
            np.testing.assert_allclose(in_updates(e, gam), S, atol=1e-9 * np.abs(S).max())


def test_hidden_noise_of_per_link_is_not_credited() -> None:
    """docs/design/privacy.md, 2: 18.58 with it given away, and the 13.90 that an adaptive update can pass."""
    graph = Graph.ring(4, weights="metropolis")
    rounds = rounds_of(scheme("per-link", 1.0), [graph] * 5)
    ones = np.ones(5)
    _, hidden, _ = naive(rounds, 0, frozenset())
    assert ones @ hidden @ ones == pytest.approx(13.90, abs=0.005)
    e = expose(rounds, 0, frozenset())
    assert ones @ in_updates(e, 1.0) @ ones == pytest.approx(18.58, abs=0.005)
    assert e.revealed == 4 * 5


# Leaks


@pytest.mark.parametrize("name", ["none", "homomorphic", "shared", "own-clean", "per-link", "central"])
def test_messages_without_noise_leak(name: str) -> None:
    rounds = rounds_of(scheme(name), [Graph.ring(4)] * 3)
    assert expose(rounds, 0, frozenset()).leak
    assert naive(rounds, 0, frozenset())[2]


@pytest.mark.parametrize("graph", [Graph.ring(4), Graph.star(5), Graph.complete(4)], ids=lambda g: g.name)
def test_pairwise_without_local_noise_leaks(graph: Graph) -> None:
    """Each message looks noisy; their sum is the sum of the models."""
    rounds = rounds_of(scheme("pairwise", 0.0, sigma_pair=5.0), [graph] * 2)
    assert expose(rounds, 0, frozenset()).leak
    assert naive(rounds, 0, frozenset())[2]
    assert not expose(rounds_of(scheme("pairwise", 0.01, sigma_pair=5.0), [graph] * 2), 0, frozenset()).leak


@pytest.mark.parametrize("name", ["homomorphic", "own-clean", "per-link-clean", "partial:0.5"])
def test_a_revealed_state_leaks_and_of_shared_does_not(name: str) -> None:
    """docs/design/privacy.md, 4: one look at w_p after training, whatever the noise was."""
    for scheme_name, leaks in ((name, True), ("shared", False)):
        rounds = rounds_of(scheme(scheme_name, 100.0), [Graph.ring(4)] * 3)
        m = rounds[-1]
        C, N = np.vstack([m.C, m.W[:1]]), np.vstack([m.N[0], m.R[0][:1]])  # w_0 is sent in the last round
        rounds[-1] = m._replace(C=C, N=(N,))
        assert expose(rounds, 0, frozenset()).leak is leaks


def test_noiseless_centroid_leaks_and_a_noisy_one_costs_what_section_4_says() -> None:
    for sigma_c, extra in ((0.0, None), (1.0, 1.5625), (0.1, 156.25)):
        rounds = rounds_of(scheme("homomorphic", 1.0), [Graph.ring(4)] * 5)
        m = rounds[-1]
        widths = ((0, 0), (0, 1))
        C = np.vstack([m.C, m.W.mean(axis=0)])
        N = np.vstack([np.pad(m.N[0], widths), np.append(m.R[0].mean(axis=0), sigma_c)])
        draws = (*m.draws, (Place.NETWORK, ()))
        rounds[-1] = m._replace(C=C, N=(N,), R=(np.pad(m.R[0], widths),), draws=draws)
        e = expose(rounds, 0, frozenset())
        assert e.leak is (extra is None)
        if extra is not None:
            Delta = np.arange(1.0, 6.0)
            assert Delta @ e.S @ Delta == pytest.approx(55 + extra, abs=1e-10)  # 56.5625 and 211.25


def test_a_partial_view_is_not_called_a_bound() -> None:
    """If a message between honest servers is missing from the view, others' states change with the target's data."""
    m = rounds_of(scheme("shared", 1.0), [Graph.path(3)])[0]
    partial = m._replace(C=m.C[1:], N=(m.N[0][1:],))  # server 0's message is not seen
    assert expose([partial] * 3, 0, frozenset()).others > 0.01


# Simulated messages


def test_simulated_messages_have_the_covariance(each_scheme: Scheme, each_graph: Graph) -> None:
    """publish and combine with Gaussian noise, a coordinate a sample: the covariance of the messages is K K'."""
    if each_graph.P > 5 or each_graph.P == 1 or each_scheme.exchange == Exchange.NOTHING:
        return
    T, samples, rng = 3, 20_000, np.random.default_rng(7)
    arith, up = FloatArithmetic(1), np.ones(len(each_graph.edges), dtype=bool)
    present = np.ones(each_graph.P, dtype=bool)

    def draw(purpose: Purpose, ids: tuple[int, ...], sigma: float) -> Floats:
        return sigma * rng.standard_normal(samples)

    w, seen = np.zeros((each_graph.P, samples)), []
    for _ in range(T):
        published = publish(each_scheme, each_graph, w, draw, arith, present)
        seen.append(published.sent)
        w = combine(each_scheme, each_graph, published, arith, up)
    y = np.vstack(seen)
    K, _, _ = naive(rounds_of(each_scheme, [each_graph] * T), 0, frozenset())
    V = K @ K.T
    d = np.sqrt(np.maximum(np.outer(np.diag(V), np.diag(V)), 1e-300))
    assert np.all(np.abs(y @ y.T / samples - V) <= 6 * d * np.sqrt(2 / samples) + 1e-12)


# ---- the fallback of `account`

GAUSSIAN = [replace(s, law="gaussian") for s in SCHEMES]
UNIT = Sensitivity(0.3, 1.0, level="unit")
CLIENT = Sensitivity(0.3, 1.0, sampled=2, clients=4, proof=PublicPoint())
THREATS = ("links", "colluders:0", "colluders:1,2", "neighbours", "own-client", "own-server")
RELEASES = ("none", "centroid:0.5", "centroid:0", "local")


def asked(s: Scheme, graphs: list[Graph], threat: str, release: str, sensitivity: Sensitivity) -> Account | str:
    try:
        return account(s, graphs, sensitivity, rounds=4, threat=threat, release=release)
    except InputError as e:
        return e.field


@pytest.mark.parametrize("graphs", GRAPHS, ids=listed)
@pytest.mark.parametrize("s", GAUSSIAN, ids=named)
def test_the_fallback_is_the_closed_form(s: Scheme, graphs: list[Graph], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every adversary and every release, round by round, with and without a cap and a contraction."""
    capped = replace(CLIENT, participation=Cap(2))
    both = [(threat, release, UNIT) for threat in THREATS for release in RELEASES]
    both += [("links", "none", capped), ("neighbours", "centroid:0.5", capped)]
    both += [("colluders:0", "centroid:0.5", replace(CLIENT, proof=Regulariser(0.5)))]
    closed = [asked(s, graphs, *what) for what in both]
    monkeypatch.setattr(accountant, "covers", lambda _: False)
    for what, known, general in zip(both, closed, (asked(s, graphs, *what) for what in both), strict=True):
        if isinstance(known, str) or isinstance(general, str):
            assert known == general, what
            continue
        assert known.leak == general.leak, what
        if known.leak:
            continue
        assert general.mu_gdp == pytest.approx(known.mu_gdp, rel=1e-9, abs=1e-12), what
        assert general.epsilon == pytest.approx(known.epsilon, rel=1e-7, abs=1e-9), what
        np.testing.assert_allclose(general.costs, known.costs, rtol=1e-9, atol=1e-12, err_msg=str(what))


def test_closed_forms_cover_rows_and_not_names() -> None:
    for s in GAUSSIAN:
        assert accountant.covers(replace(s, name="mine"))
        assert accountant.covers(s.resized(sigma_client=1.0))  # which precedes psi
    for s in OWN:
        assert not accountant.covers(replace(s, name="shared"))
    for other in (
        Scheme("pairwise", "gaussian", (Noise(Place.SERVER, 1.0), Noise(Place.EDGE, 1.0)), carry=0.5),
        Scheme("per-link", "gaussian", (Noise(Place.LINK, 1.0), Noise(Place.OWN, 2.0))),
        Scheme("per-link", "gaussian", (Noise(Place.LINK, 1.0),), carry=0.5),
        Scheme("shared", "gaussian", (Noise(Place.SERVER, 1.0, taps=(0.5,)),)),
        Scheme("pairwise", "gaussian", (Noise(Place.EDGE, 1.0),)),
    ):
        assert not accountant.covers(other)
    half = Scheme("shared", "gaussian", (Noise(Place.SERVER, 1.0, taps=(0.5,)),))
    less = account(scheme("shared", 0.5, noise="gaussian"), Graph.ring(4), UNIT, rounds=3)
    assert account(half, Graph.ring(4), UNIT, rounds=3).epsilon == pytest.approx(less.epsilon)


# ---- schemes of one's own, against the covariance of the whole view


@pytest.mark.parametrize("s", OWN, ids=named)
@pytest.mark.parametrize("colluders", [(), (1,)])
def test_schemes_of_ones_own_against_the_naive_formula(s: Scheme, colluders: tuple[int, ...]) -> None:
    graph = Graph.complete(4, weights="metropolis")
    rounds = rounds_of(s, [graph] * 4)
    hidden = [n for n, (at, _) in enumerate(rounds[0].draws) if at == Place.OWN]
    _, S, leak = naive(rounds, 0, frozenset(colluders), reveal=hidden)
    e = expose(rounds, 0, frozenset(colluders))
    cancelled = s in (CANCELS, CANCELS_EVERYWHERE) or s.name == "uneven"
    assert e.leak == leak == cancelled  # who listens on all links can combine them
    if leak:
        return
    assert e.others < 1e-10
    assert (e.revealed > 0) == (s.name in ("links", "mixed"))
    found = in_updates(e, 1.0)
    if s.name == "mixed":  # what a server keeps of its own draw was given away in the one, not in the other
        assert np.linalg.eigvalsh(found - S).min() > -1e-9
    else:
        np.testing.assert_allclose(found, S, atol=1e-8 * np.abs(S).max())


def of_one_server(taps: tuple[float, ...], sigma: float, carry: float, T: int) -> tuple[Floats, Floats]:
    """By hand, given all messages: the deviations of psi_1.. made of those of u_1.., and its noise.s covariance."""
    m = np.zeros((T, T))  # noise of the message of round j, by the round in which it was drawn
    for j in range(T):
        for lag, tap in enumerate(taps[: j + 1]):
            m[j, j - lag] = sigma * tap
    return np.linalg.inv(np.eye(T) - carry * np.eye(T, k=-1)), m @ m.T


@pytest.mark.parametrize("carry", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("taps", [(1.0, -0.9), (1.0, 0.9), (1.0, 0.5, -0.3)])
def test_correlated_noise_has_the_price_of_its_covariance(taps: tuple[float, ...], carry: float) -> None:
    """mu^2 = max h' Sigma^-1 h over the corners of what the data add."""
    sigma, T = 0.5, 5
    psi, covariance = of_one_server(taps, sigma, carry, T)
    size = UNIT.added(carry > 0)
    corners = [psi @ (size * np.array(x)) for x in itertools.product((-1.0, 1.0), repeat=T)]
    worst = max(float(h @ np.linalg.solve(covariance, h)) for h in corners)
    s = Scheme("correlated", "gaussian", (Noise(Place.SERVER, sigma, taps),), carry)
    found = account(s, Graph.ring(4), UNIT, rounds=T)
    assert found.mu_gdp is not None
    if carry == 0.0 or taps == (1.0, -0.9):  # all signs agree, so that the bound on each round is a corner
        assert found.mu_gdp**2 == pytest.approx(worst, rel=1e-9)
        assert sum(found.costs) == pytest.approx(found.rho, rel=1e-9)
    assert found.mu_gdp**2 >= worst * (1 - 1e-9)
    assert sum(found.costs) >= found.rho * (1 - 1e-9)  # a ledger pays for every look at its worst
    plain = account(replace(s, noises=(Noise(Place.SERVER, sigma),)), Graph.ring(4), UNIT, rounds=T)
    assert found.mu_gdp != pytest.approx(plain.mu_gdp, rel=0.05)


def test_the_best_attack_on_correlated_noise_is_as_good_as_its_price() -> None:
    """Runs with and without a unit's data, a coordinate a sample: the optimal test of the messages moves by mu."""
    T, sigma, carry, taps, added, samples = 5, 0.5, 0.4, (1.0, -0.9), 0.3, 20_000
    graph, s = Graph.complete(4), Scheme("correlated", "gaussian", (Noise(Place.SERVER, sigma, taps),), carry)
    blank = Federation.from_clients([[(np.zeros((1, samples)), [float(p)])] for p in range(4)])
    psi, covariance = of_one_server(taps, sigma, carry, T)
    shift = psi @ np.full(T, added)
    best = np.linalg.solve(covariance, shift)

    def statistic(with_data: bool, seed: int) -> Floats:
        def local(w: Floats, X: Floats, d: Floats, task: LocalTask) -> Floats:
            return np.full(samples, added if with_data and d[0] == 0.0 else 0.0)

        alg = GFL(s, step=0.1, sampled=1, local_steps=1, batch=1, local=local)
        reference = prepare(Problem(blank, Linear(0.0)), [graph], alg, T, seed)(0)
        w, past, seen, guess = np.zeros((4, samples)), None, [], np.zeros(samples)
        for i in range(1, T + 1):
            done = reference.round(i, w, past)
            w, past, o = done.w, done.drawn, done.sent
            seen.append(o[0] - guess)  # had the unit added nothing, psi_0 would be the guess
            guess = carry * guess + (1.0 - carry) * o[0] + graph.A[0] @ (o - o[0])
        return best @ np.array(seen)

    one, other = statistic(True, 1), statistic(False, 2)
    mu_squared = float(shift @ best)
    exact = account(s, graph, replace(UNIT, step=added / 2.0), rounds=T).mu_gdp  # replace: twice what a unit adds
    assert exact == pytest.approx(math.sqrt(mu_squared), rel=1e-9)
    error = 5 * math.sqrt(mu_squared / samples)
    assert one.mean() == pytest.approx(mu_squared, abs=error)
    assert other.mean() == pytest.approx(0.0, abs=error)
    assert np.var(one) == pytest.approx(mu_squared, rel=0.06)
    assert np.var(other) == pytest.approx(mu_squared, rel=0.06)


def test_noise_that_cancels_at_receivers_and_some_that_does_not() -> None:
    """Who listens on all links can solve for noise that reaches each receiver in another mix: it protects nobody."""
    graph = Graph.complete(4, weights="metropolis")
    edges = replace(CANCELS, noises=(Noise(Place.EDGE, 5.0),))
    assert account(edges, graph, UNIT, rounds=3).leak
    with_own = Scheme("both", "gaussian", (Noise(Place.SERVER, 0.5), Noise(Place.EDGE, 5.0)), receivers=both)
    shared = account(scheme("shared", 0.5, noise="gaussian"), graph, UNIT, rounds=3, threat="links")
    for who in ("links", "neighbours", "colluders:1"):
        assert account(with_own, graph, UNIT, rounds=3, threat=who).mu_gdp == pytest.approx(shared.mu_gdp)
    # Sent to all alike, the same noise counts.
    alike = account(replace(with_own, receivers=None, carry=0.2), graph, UNIT, rounds=3)
    assert alike.mu_gdp is not None
    assert alike.mu_gdp < 0.9 * (shared.mu_gdp or 0.0)


def both(graph: Graph) -> Floats:
    return np.vstack([np.ones((graph.P, graph.P)), elsewhere(graph)])


# ---- what the fallback refuses


@pytest.mark.parametrize("s", [x for x in OWN if x not in (CANCELS, CANCELS_EVERYWHERE)], ids=named)
def test_without_a_proof_there_is_no_price(s: Scheme) -> None:
    g, on_grid = Graph.complete(4), replace(UNIT, dim=3, rounding=Rounding(1e-6, 1, False))
    for field, ask in [
        ("noise", lambda: account(replace(s, law="laplace"), g, UNIT, rounds=3)),
        ("noise", lambda: account(s, g, UNIT, rounds=3, noise="discrete-gaussian")),
        ("algorithm.arithmetic", lambda: account(s, g, on_grid, rounds=3)),
        ("participation", lambda: account(s, g, replace(CLIENT, participation=Random(0.5)), rounds=3)),
        ("rounds", lambda: account(s, g, UNIT, rounds=100_000)),
    ]:
        with pytest.raises(InputError, match=f"'{s.name}' has no closed form") as refusal:
            ask()
        assert refusal.value.field == field
    assert account(s, g, UNIT, rounds=3, threat="own-server").leak


def test_a_long_run_is_priced_in_a_moment() -> None:
    """And its first rounds cost what a short run costs, so that a ledger may end after every one."""
    s = Scheme("correlated", "gaussian", (Noise(Place.SERVER, 0.5, (1.0, -0.9)),), 0.5)
    long, short = (account(s, Graph.ring(4), UNIT, rounds=T) for T in (300, 20))
    np.testing.assert_allclose(long.costs[:20], short.costs, rtol=1e-9)
    assert sum(long.costs) == pytest.approx(long.rho)


# ---- runs


def test_a_run_says_what_its_own_scheme_costs() -> None:
    problem, graph = regression(units=4, clients=5, samples=10), Graph.ring(4)
    alg = GFL(CORRELATED, step=0.1, sampled=5, clip=Clip("example", 1.0))
    settings = Privacy(level="unit", epsilon=1e5, release="centroid:0.5")
    run = simulate(problem, graph, alg, rounds=6, privacy=settings, progress=False)
    s = deviation.sensitivity(of_run(problem, [graph], alg, 6, 0, settings))
    links = next(a for a in run.privacy["statement"]["accounts"] if a["threat"] == "links")
    assert links["epsilon"] == pytest.approx(account(CORRELATED, graph, s, rounds=6).epsilon)
    plan = Plan.from_text(run.privacy["ledger"]["plan"])
    assert plan.scheme == CORRELATED
    assert price(plan).statement(6).to_dict() == run.privacy["statement"]  # from the file alone
    disguised = price(replace(plan, scheme=replace(CORRELATED, name="shared")))  # a name is no price: rows are
    assert disguised.account(6).epsilon == links["epsilon"]
    for broken in ({"failures": Failures(unit=0.1)}, {"failures": Failures(link=0.1)}):
        with pytest.raises(InputError, match="has no closed form"):
            simulate(problem, graph, replace(alg, **broken), rounds=6, privacy=settings, progress=False)
