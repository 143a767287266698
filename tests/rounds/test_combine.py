"""Publish and combine: the formulas of the paper, and sums that are conserved to the last bit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from confide.base.errors import InputError
from confide.base.randomness import Purpose
from confide.graph.graph import Graph
from confide.rounds.arithmetic import Arithmetic, FixedArithmetic, FloatArithmetic, on_grid
from confide.rounds.combine import Draw, Published, Sender, combine, publish
from confide.rounds.noise import float_noise, integer_noise
from confide.rounds.schemes import Exchange, Scheme, links, scheme

M = 3
FIXED = FixedArithmetic(L=3, fraction_bits=20)
CONSERVES_PSI = ("none", "local-only", "homomorphic")


class Noise:
    """A source that remembers: `g[purpose, ids]` is what was drawn there."""

    def __init__(self, seed: int, whole: bool = False) -> None:
        self.rng, self.whole = np.random.default_rng(seed), whole
        self.g: dict[tuple[Purpose, tuple[int, ...]], np.ndarray] = {}

    def __call__(self, purpose: Purpose, ids: tuple[int, ...], sigma: float) -> np.ndarray:
        assert (purpose, ids) not in self.g, "a noise is drawn once a round"
        noise = sigma * self.rng.standard_normal(M)
        self.g[purpose, ids] = np.rint(noise * 2**30).astype(np.int64) if self.whole else noise
        return self.g[purpose, ids]

    def of_servers(self, P: int) -> np.ndarray:
        return np.stack([self.g[Purpose.SERVER_NOISE, (p,)] for p in range(P)])

    def of_link(self, p: int, m: int) -> np.ndarray:
        """g_pm, in the message from p to m."""
        return self.g[Purpose.LINK_NOISE, (p, m)]


def one_round(
    s: Scheme, g: Graph, arith: Arithmetic, seed: int = 0, failures: float = 0.0
) -> tuple[np.ndarray, Published, np.ndarray, Noise, np.ndarray, np.ndarray]:
    """psi, what was published, w, the noise, who was present and which edges were up."""
    rng, fixed = np.random.default_rng(seed), isinstance(arith, FixedArithmetic)
    psi = rng.integers(-(2**40), 2**40, (g.P, M)) if fixed else rng.standard_normal((g.P, M))
    present = rng.random(g.P) >= failures
    ends = present[g.edges[:, 0]] & present[g.edges[:, 1]]
    up = ends & (rng.random(len(g.edges)) >= failures)
    noise = Noise(seed + 1, whole=fixed)
    published = publish(s, g, psi, noise, arith, present)
    return psi, published, combine(s, g, published, arith, up), noise, present, up


# ---- conservation


def test_the_sum_of_states_is_the_sum_of_own_states(each_scheme: Scheme, each_graph: Graph) -> None:
    _, published, w, *_ = one_round(each_scheme, each_graph, FloatArithmetic(1))
    np.testing.assert_allclose(w.sum(axis=0), published.own.sum(axis=0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("failures", [0.0, 0.4])
def test_in_integers_to_the_last_bit(each_fixed_scheme: Scheme, each_graph: Graph, failures: float) -> None:
    for seed in range(5):
        psi, published, w, *_ = one_round(each_fixed_scheme, on_grid(each_graph), FIXED, seed, failures)
        assert w.dtype == np.int64
        assert np.array_equal(w.sum(axis=0), published.own.sum(axis=0))
        if each_fixed_scheme.name in CONSERVES_PSI:
            assert np.array_equal(w.sum(axis=0), psi.sum(axis=0))


def test_only_homomorphic_noise_leaves_the_sum_of_psi(each_scheme: Scheme, each_graph: Graph) -> None:
    s = each_scheme
    psi, _, w, *_ = one_round(s, each_graph, FloatArithmetic(1))
    gap = np.abs(w.sum(axis=0) - psi.sum(axis=0)).max()
    only_pairs = s.name == "pairwise" and s.sigma == 0.0
    alone = each_graph.P == 1 and s.name in ("own-clean", "per-link-clean")  # a_pp = 1: no noise enters
    if s.name in CONSERVES_PSI or only_pairs or alone:
        assert gap < 1e-12
    else:
        assert gap > 1e-3


def test_pair_noise_alone_cancels_in_integers_unless_an_end_is_absent() -> None:
    s, g = scheme("pairwise", 0.0, sigma_pair=0.8), on_grid(Graph.ring(5))
    psi, published, w, *_ = one_round(s, g, FIXED)
    assert not np.array_equal(published.sent, psi)
    assert np.array_equal(w.sum(axis=0), psi.sum(axis=0))

    noise, present = Noise(1, whole=True), np.array([False, True, True, True, True])
    published = publish(s, g, psi, noise, FIXED, present)  # the neighbours of 0 keep their halves
    orphans = -noise.g[Purpose.PAIR_NOISE, (0, 1)] - noise.g[Purpose.PAIR_NOISE, (0, 4)]
    assert np.array_equal(published.own.sum(axis=0) - psi.sum(axis=0), orphans)


# ---- the formulas


def homomorphic(A: np.ndarray, psi: np.ndarray, noise: Noise) -> np.ndarray:
    """The paper's own message carries -(1 - a_pp)/a_pp g_p; we never divide, and get the same."""
    P = len(A)
    g, w = noise.of_servers(P), np.zeros_like(psi)
    for p in range(P):
        for m in range(P):
            own = -(1 - A[p, p]) / A[p, p] * g[p]
            w[p] += A[p, m] * (psi[m] + (own if m == p else g[m]))
    return w


def shared(A: np.ndarray, psi: np.ndarray, noise: Noise) -> np.ndarray:
    return A @ (psi + noise.of_servers(len(A)))


def own_clean(A: np.ndarray, psi: np.ndarray, noise: Noise) -> np.ndarray:
    own = np.diag(np.diag(A))
    return own @ psi + (A - own) @ (psi + noise.of_servers(len(A)))


def partial(A: np.ndarray, psi: np.ndarray, noise: Noise) -> np.ndarray:
    o = psi + noise.of_servers(len(A))
    return 0.3 * psi + 0.7 * o + (A - np.eye(len(A))) @ o


def per_link(A: np.ndarray, psi: np.ndarray, noise: Noise, own: bool = True) -> np.ndarray:
    w = A @ psi
    for p in range(len(A)):
        for m in range(len(A)):
            if A[p, m] > 0 and (own or m != p):
                w[p] += A[p, m] * noise.of_link(m, p)
    return w


def per_link_clean(A: np.ndarray, psi: np.ndarray, noise: Noise) -> np.ndarray:
    assert not any(p == m for _, (p, m) in noise.g)
    return per_link(A, psi, noise, own=False)


def pairwise(A: np.ndarray, psi: np.ndarray, noise: Noise) -> np.ndarray:
    o = psi + noise.of_servers(len(A))
    for (purpose, ids), g in noise.g.items():
        if purpose == Purpose.PAIR_NOISE:
            o[ids[0]] += g
            o[ids[1]] -= g
    return A @ o


def central(A: np.ndarray, psi: np.ndarray, noise: Noise) -> np.ndarray:
    return np.tile(psi.mean(axis=0) + noise.g[Purpose.NETWORK_NOISE, ()], (len(A), 1))


FORMULAS: dict[str, Callable[[np.ndarray, np.ndarray, Noise], np.ndarray]] = {
    "none": lambda A, psi, noise: A @ psi,
    "local-only": lambda A, psi, noise: psi,
    "homomorphic": homomorphic,
    "shared": shared,
    "own-clean": own_clean,
    "partial:0.3": partial,
    "per-link": per_link,
    "per-link-clean": per_link_clean,
    "pairwise": pairwise,
    "central": central,
}


def test_every_scheme_is_its_formula(each_scheme: Scheme, each_graph: Graph) -> None:
    assert each_graph.own_weights.min() > 0
    psi, _, w, noise, *_ = one_round(each_scheme, each_graph, FloatArithmetic(1))
    np.testing.assert_allclose(w, FORMULAS[each_scheme.name](each_graph.A, psi, noise), rtol=0, atol=1e-12)


# ---- failures


def test_a_missing_neighbours_weight_returns_to_the_own_message(each_broadcast: Scheme, each_graph: Graph) -> None:
    """With A' the matrix of the edges that are up: w = s + (A' - I) o, the carry untouched by failures."""
    g = each_graph
    for seed in range(3):
        psi, (own, sent), w, _, present, up = one_round(each_broadcast, g, FloatArithmetic(1), seed, 0.4)
        A = np.zeros((g.P, g.P))
        for (i, j), a in zip(g.edges[up], g.edge_weights[up], strict=True):
            A[i, j] = A[j, i] = a
        A += np.diag(1 - A.sum(axis=1))
        np.testing.assert_allclose(w, own + (A - np.eye(g.P)) @ sent, rtol=0, atol=1e-12)
        c = each_broadcast.carries(g)[:, None]
        np.testing.assert_allclose(own, c * psi + (1 - c) * sent, rtol=0, atol=1e-12)
        assert np.array_equal(w[~present], psi[~present])


def test_a_failed_link_keeps_the_noise_of_its_message() -> None:
    """per-link: the base is psi + a_pp g_pp + sum_m a_pm g_pm whatever arrives, so cost does not depend on it."""
    g = Graph.ring(5)
    psi, (own, _), w, noise, *_ = one_round(scheme("per-link", 0.7), g, FloatArithmetic(1))
    base = psi.copy()
    for p in range(g.P):
        for m in (p, *g.neighbours(p).tolist()):
            base[p] += g.A[p, m] * noise.of_link(p, m)
    np.testing.assert_allclose(own, base, rtol=0, atol=1e-12)
    nothing = combine(scheme("per-link", 0.7), g, Published(own, w), FloatArithmetic(1), np.zeros(5, dtype=bool))
    assert np.array_equal(nothing, own)


def test_an_absent_server_draws_nothing_and_keeps_psi(each_fixed_scheme: Scheme) -> None:
    g, noise = Graph.complete(4), Noise(0)
    psi = np.random.default_rng(0).standard_normal((4, M))
    present = np.array([True, True, False, True])
    own, sent = publish(each_fixed_scheme, g, psi, noise, FloatArithmetic(1), present)
    assert np.array_equal(own[2], psi[2])
    secret = [ids for purpose, ids in noise.g if purpose != Purpose.PAIR_NOISE]
    assert all(ids[0] != 2 for ids in secret)
    if not each_fixed_scheme.by_link and each_fixed_scheme.exchange == Exchange.GRAPH:
        assert np.array_equal(sent[2], psi[2])


def test_arguments_are_left_alone(each_scheme: Scheme) -> None:
    g, arith, all_up = Graph.ring(5), FloatArithmetic(1), np.ones(5, dtype=bool)
    psi = np.random.default_rng(0).standard_normal((5, M))
    before = psi.copy()
    published = publish(each_scheme, g, psi, Noise(0), arith, all_up)
    copies = [x.copy() for x in published]
    w = combine(each_scheme, g, published, arith, all_up)
    w += 1.0
    assert np.array_equal(psi, before)
    for x, copy in zip(published, copies, strict=True):
        assert np.array_equal(x, copy)


# ---- a server alone


def keyed(s: Scheme, seed: int, fixed: bool) -> Draw:
    """Noise that depends on its name alone, so that servers on their own draw what `publish` draws."""
    source = integer_noise(seed, FIXED) if fixed else float_noise(seed)
    return lambda purpose, ids, sigma: source(purpose, (1, *ids), s.law, sigma, M)


@pytest.mark.parametrize("fixed", [False, True])
def test_servers_alone_do_what_publish_and_combine_do(
    each_fixed_scheme: Scheme, each_graph: Graph, fixed: bool
) -> None:
    """Every server perturbs its own row, and each end of an edge computes its flow by itself: to the last bit."""
    if each_fixed_scheme.exchange == Exchange.NOTHING:
        return
    g, arith = (on_grid(each_graph), FIXED) if fixed else (each_graph, FloatArithmetic(1))
    silent = each_fixed_scheme.resized(sigma=0.0, sigma_pair=0.0)
    for seed, s in [*((seed, each_fixed_scheme) for seed in range(4)), (4, silent)]:
        rng = np.random.default_rng(seed)
        psi = rng.integers(-(2**40), 2**40, (g.P, M)) if fixed else rng.standard_normal((g.P, M))
        present = rng.random(g.P) >= 0.3 * (seed > 0)
        up = present[g.edges].all(axis=1) & (rng.random(len(g.edges)) >= 0.3 * (seed > 0))
        published = publish(s, g, psi, keyed(s, seed, fixed), arith, present)
        w = combine(s, g, published, arith, up)

        own = psi.copy()
        sent: dict[tuple[int, int], np.ndarray] = {}
        for p in np.flatnonzero(present).tolist():
            neighbours = {int(m): float(g.A[p, m]) for m in rng.permutation(g.neighbours(p).tolist())}
            own[p], messages = Sender(
                s, p, float(g.own_weights[p]), neighbours, psi[p], keyed(s, seed, fixed), arith
            ).perturb()
            assert messages.keys() == neighbours.keys()
            assert s.by_link or len({id(message) for message in messages.values()}) <= 1
            sent |= {(p, m): message for m, message in messages.items()}
        assert np.array_equal(own, published.own)
        for n, (p, m) in enumerate(zip(*links(g), strict=True)):
            if present[p]:
                assert np.array_equal(sent[p, m], published.sent[n if s.by_link else p])

        state = own.copy()
        for p, m in g.edges[up].tolist():
            for here, there in ((p, m), (m, p)):
                state[here] += arith.weigh(float(g.A[here, there]), sent[there, here] - sent[here, there])
        assert np.array_equal(state, w)
        if fixed:
            assert np.array_equal(state.sum(axis=0), own.sum(axis=0))


def test_a_server_draws_its_own_row_and_no_more() -> None:
    """Whoever is up: noise that depended on failures would change what a round costs."""

    def drawn(s: Scheme) -> list[tuple[Purpose, tuple[int, ...]]]:
        noise = Noise(0)
        Sender(s, 2, 0.4, {5: 0.1, 0: 0.2, 3: 0.3}, np.zeros(M), noise, FloatArithmetic(1)).perturb()
        return sorted(noise.g)

    server, pair, link = Purpose.SERVER_NOISE, Purpose.PAIR_NOISE, Purpose.LINK_NOISE
    pairs, out = [(pair, ids) for ids in ((0, 2), (2, 3), (2, 5))], [(link, (2, m)) for m in (0, 3, 5)]
    assert drawn(scheme("shared", 0.7)) == [(server, (2,))]
    assert drawn(scheme("pairwise", 0.7, sigma_pair=0.8)) == [(server, (2,)), *pairs]
    assert drawn(scheme("per-link-clean", 0.7)) == out
    assert drawn(scheme("per-link", 0.7)) == sorted([(link, (2, 2)), *out])
    assert drawn(scheme("none")) == drawn(scheme("per-link")) == drawn(scheme("pairwise")) == []


def test_perturb_keeps_its_arguments_and_what_is_kept_is_not_what_is_sent(each_broadcast: Scheme) -> None:
    for s in (each_broadcast, scheme("per-link", 0.7), scheme("per-link")):
        psi, noise = np.ones(M), Noise(0)
        own, sent = Sender(s, 0, 0.5, {1: 0.25, 2: 0.25}, psi, noise, FloatArithmetic(1)).perturb()
        drawn = {name: g.copy() for name, g in noise.g.items()}
        before = {m: message.copy() for m, message in sent.items()}
        own += 1.0
        assert np.array_equal(psi, np.ones(M))
        assert all(np.array_equal(message, before[m]) for m, message in sent.items())
        for message in sent.values():
            message += 1.0
        assert np.array_equal(psi, np.ones(M))
        assert all(np.array_equal(g, drawn[name]) for name, g in noise.g.items())


@pytest.mark.parametrize("name", ["central", "local-only"])
def test_who_sends_nothing_has_nothing_to_perturb(name: str) -> None:
    with pytest.raises(InputError, match="sends no messages between servers"):
        Sender(scheme(name), 0, 1.0, {}, np.zeros(M), Noise(0), FloatArithmetic(1)).perturb()
