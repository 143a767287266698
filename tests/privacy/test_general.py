"""The general accountant against closed forms, against a naive pseudoinverse, and against simulated messages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from confide.base.randomness import Purpose
from confide.graph.graph import Graph
from confide.privacy.general import Exposure, expose, expose_each, rounds_of
from confide.rounds.arithmetic import FloatArithmetic
from confide.rounds.combine import combine, publish
from confide.rounds.schemes import Exchange, Place, Scheme, Wiring, scheme

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
        K.append(m.C @ Kpsi + m.N[0] @ z)
        Gw, Kw = m.W @ Gpsi, m.W @ Kpsi + m.R[0] @ z
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
