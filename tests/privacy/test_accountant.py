"""epsilon for a named adversary: numbers of docs/design/privacy.md, two accountants against each other, the loss."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from by_rows import account_by_rows
from confide.base.errors import InputError
from confide.graph.graph import Graph
from confide.laws.conversion import gaussian_epsilon, pure_epsilon, renyi_epsilon, zcdp_epsilon
from confide.plans import words
from confide.plans.words import Cap, Centroid, Colluders, ConvexGlm, Links, PublicPoint, Random, Regulariser
from confide.privacy import accountant
from confide.privacy.accountant import account, paper_theorem
from confide.privacy.course import Account
from confide.privacy.general import expose_each, rounds_of
from confide.privacy.reveal import Reveal
from confide.privacy.rounding import Rounding
from confide.privacy.sensitivity import Sensitivity
from confide.privacy.sum_noise import SumNoise
from confide.rounds.clipping import clip
from confide.rounds.schemes import Noise, Place, Scheme, scheme
from own_schemes import CORRELATED
from work import lines, peak_bytes

Floats = NDArray[np.float64]
ONE = Sensitivity(0.5, 1.0, level="unit", norm="l1")  # s = 1
RING = Graph.ring(4, weights="metropolis")
GRAPHS = {
    "ring": [Graph.ring(5)],
    "star": [Graph.star(5, weights="metropolis")],
    "random": [Graph.random(6, 0.5, seed=1)],
    "complete": [Graph.complete(4)],
    "turns": [Graph.ring(5), Graph.star(5, weights="metropolis")],
}


def gauss(name: str, sigma: float = 1.0, pair: float = 0.0) -> Scheme:
    return scheme(name, sigma, noise="gaussian", sigma_pair=pair)


def mu2(s: Scheme, T: int = 5, sens: Sensitivity = ONE, graph: Any = RING, **given: Any) -> float:
    a = account(s, graph, sens, rounds=T, **given)
    assert a.mu_gdp is not None
    assert a.rho == pytest.approx(a.mu_gdp**2 / 2)
    return a.mu_gdp**2


# Numbers of docs/design/privacy.md


def test_homomorphic_over_five_rounds() -> None:
    assert mu2(gauss("homomorphic")) == pytest.approx(55, abs=1e-10)
    assert mu2(gauss("homomorphic"), threat="neighbours") == pytest.approx(55, abs=1e-10)  # collusion-proof
    for sigma, mean in ((1.0, 56.5625), (0.1, 211.25)):  # s^2 T^2 / (P sigma)^2 more, of noise sigma on the mean
        assert 55 + (5 / 4 / sigma) ** 2 == mean
        # 3 of 4 shares put sigma on the mean: who knows one sees just that, who knows none sees 4/3 of the variance,
        # the neighbours of a server on the ring (shares sized for two) see what the two others put there.
        for threat, fraction in (("links", 4 / 3), ("colluders:2", 1.0), ("neighbours", 1.0)):
            found = mu2(gauss("homomorphic"), threat=threat, release=f"centroid:{sigma}")
            assert found == pytest.approx(55 + (mean - 55) / fraction, abs=1e-10)
        unforeseen = mu2(gauss("homomorphic"), threat="neighbours", release=Reveal(Centroid(sigma)))
        assert unforeseen == pytest.approx(55 + (mean - 55) * 3 / 2, abs=1e-10)  # shares sized for one server


def test_per_link_over_five_rounds() -> None:
    """18.58 is mu^2 with a_pp = 1/3: Metropolis on the ring of 4."""
    assert RING.own_weights[0] == pytest.approx(1 / 3)
    expected = 2 * sum(((1 - 3.0**-j) / (1 - 1 / 3)) ** 2 for j in range(1, 6))
    assert expected == pytest.approx(18.58, abs=0.005)
    for name in ("per-link", "per-link-clean"):
        assert mu2(gauss(name)) == pytest.approx(expected, abs=1e-10)


def test_pairwise_over_five_rounds() -> None:
    """20.0 and 5.38 are mu^2 with local noise 1/2 and edge noise 2 on the ring of 4."""
    s = gauss("pairwise", 0.5, 2.0)
    assert mu2(s) == pytest.approx(5.38, abs=0.005)
    assert mu2(s, threat="neighbours") == pytest.approx(20.0, abs=1e-10)
    assert mu2(s, threat="colluders:1") > mu2(s)
    assert mu2(gauss("pairwise", 0.5, 1e7)) == pytest.approx(5 / (4 * 0.25), rel=1e-6)  # central: s^2 / (P sigma_l^2)


def test_theorem_2_for_the_papers_experiment() -> None:
    sigma = math.sqrt(0.1)
    for i, printed in ((10, 344.0), (100, 3.2e4), (1000, 3.1e6)):
        epsilon, notes = paper_theorem(0.7, 1.0, sigma, i)
        assert epsilon == pytest.approx(printed, rel=0.02)
        assert "not a statement of confide" in notes[0]
        unit = Sensitivity(0.7, 1.0, level="unit", norm="l1")  # where it is true: unit level, B in l1
        a = account(scheme("homomorphic", sigma), RING, unit, rounds=i)
        assert a.epsilon_pure == pytest.approx(epsilon, rel=1e-12)
        assert a.epsilon is not None
        assert a.epsilon <= epsilon


@pytest.mark.parametrize(
    "given", [(0, 1, 1, 1), (1, -1, 1, 1), (1, 1, 0, 1), (1, 1, math.nan, 1), (1, 1, 1, 0), (1, 1, 1, 1.5)]
)
def test_theorem_2_of_nonsense(given: tuple[Any, ...]) -> None:
    with pytest.raises(InputError):
        paper_theorem(*given)


@pytest.mark.parametrize("T", [1, 10, 100])
@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_closed_forms_of_sections_1_2_and_4(T: int, gamma: float) -> None:
    mu, B, L, sigma, P = 0.5, 1.0, 2, 0.8, 5
    nu = (1 - gamma) / mu
    sens = Sensitivity(mu, B, sampled=L, proof=ConvexGlm(nu), dim=1, smoothness=1.0)
    g, s, j = Graph.ring(P), 2 * mu * B / L, np.arange(1, T + 1)
    b, a = sigma / math.sqrt(2), float(g.own_weights[0])

    def Delta(c: float) -> Floats:
        return s * (j if c * gamma == 1 else (1 - (c * gamma) ** j) / (1 - c * gamma))

    cases = {"homomorphic": (1.0, 1), "shared": (0.0, 1), "own-clean": (a, 1), "partial:0.3": (0.3, 1)}
    cases |= {"per-link": (a, 2), "per-link-clean": (a, 2)}
    for name, (c, copies) in cases.items():
        D = Delta(c) if c else np.full(T, s)
        got = account(gauss(name, sigma), g, sens, rounds=T)
        assert got.rho == pytest.approx(copies * float(np.sum(D**2)) / (2 * sigma**2), rel=1e-10)
        np.testing.assert_allclose(got.deltas, D, rtol=1e-10)
        pure = account(scheme(name, sigma), g, sens, rounds=T, noise="discrete-laplace")
        assert pure.epsilon_pure == pytest.approx(copies * float(np.sum(D)) / b, rel=1e-10)
        released = account(gauss(name, sigma), g, sens, rounds=T, release="centroid:0.3")
        extra = (c * D[-1] / P / 0.3) ** 2 / 2 * (P - 1) / P  # P - 1 of P shares have deviation 0.3 on the mean
        assert released.rho == pytest.approx((got.rho or 0) + extra, rel=1e-10)
        # Of pure epsilons the rho is at most their squares by half, and them; the release's noise is Gaussian.
        assert pure.rho == pytest.approx(copies * float(np.minimum((D / b) ** 2 / 2, D / b).sum()), rel=1e-10)
        released = account(scheme(name, sigma), g, sens, rounds=T, noise="discrete-laplace", release="centroid:0.3")
        assert released.rho == pytest.approx((pure.rho or 0) + extra, rel=1e-10)
        if c:
            assert released.epsilon_pure is None
            apart = (pure.epsilon_pure or 0.0) + zcdp_epsilon(extra, 1e-5)  # the messages at delta 0
            due = min(zcdp_epsilon(released.rho or 0.0, 1e-5), apart)
            if due < 40.0:  # beyond, the sampler's distance passes delta
                assert released.epsilon == pytest.approx(due, rel=1e-8)
            else:
                assert released.leak or released.epsilon == pytest.approx(due, rel=1e-8)
        else:
            assert (released.epsilon_pure, released.epsilon) == (pure.epsilon_pure, pure.epsilon)
    if gamma == 1.0:
        assert account(gauss("homomorphic", sigma), g, sens, rounds=T).rho == pytest.approx(
            s**2 * T * (T + 1) * (2 * T + 1) / (12 * sigma**2), rel=1e-10
        )
    else:
        linear = 2 * B / (nu * L * b) * (T - gamma * (1 - gamma**T) / (mu * nu))
        pure = account(scheme("homomorphic", sigma), g, sens, rounds=T, noise="discrete-laplace")
        assert pure.epsilon_pure == pytest.approx(linear, rel=1e-10)
    central = account(gauss("central", sigma), g, sens, rounds=T)
    assert central.rho == pytest.approx(T * (s / P) ** 2 / (2 * sigma**2), rel=1e-10)


@pytest.mark.parametrize("T", [3, 20])
def test_equal_budget_ratio_of_section_3(T: int) -> None:
    """Homomorphic needs (T + 1)/2 times the noise of shared for Laplace, sqrt((T + 1)(2T + 1)/6) for Gaussian."""
    one, other = (account(gauss(n), RING, ONE, rounds=T) for n in ("homomorphic", "shared"))
    assert (one.mu_gdp or 0) / (other.mu_gdp or 1) == pytest.approx(math.sqrt((T + 1) * (2 * T + 1) / 6))
    one, other = (
        account(scheme(n, 1.0), RING, ONE, rounds=T, noise="discrete-laplace") for n in ("homomorphic", "shared")
    )
    assert (one.epsilon_pure or 0) / (other.epsilon_pure or 1) == pytest.approx((T + 1) / 2)


# The named closed forms against the general accountant


@pytest.mark.parametrize("where", GRAPHS)
@pytest.mark.parametrize(
    "s",
    [
        gauss("homomorphic", 0.7),
        gauss("shared", 0.7),
        gauss("own-clean", 0.7),
        gauss("partial:0.3", 0.7),
        gauss("per-link", 0.7),
        gauss("per-link-clean", 0.7),
        gauss("central", 0.7),
        gauss("pairwise", 0.5, 2.0),
        gauss("local-only", 0.0),
        gauss("none", 0.0),
    ],
    ids=lambda s: s.name,
)
def test_named_and_general_agree(s: Scheme, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[object, Any] = {}

    def once(rounds: Any, targets: list[int], colluders: frozenset[int]) -> Any:
        """A view does not depend on the sensitivity."""
        if colluders not in seen:
            seen[colluders] = expose_each(rounds, targets, colluders)
        return seen[colluders]

    monkeypatch.setattr(accountant, "expose_each", once)
    graphs, T = GRAPHS[where], 5
    P = graphs[0].P
    rounds = rounds_of(s, [graphs[j % len(graphs)] for j in range(T)])
    public = Sensitivity(0.3, 1.0, sampled=2, proof=PublicPoint())
    glm = Sensitivity(0.3, 1.0, sampled=2, proof=ConvexGlm(0.5), smoothness=1.0)
    reg = Sensitivity(0.3, 1.0, sampled=2, proof=Regulariser(0.5))
    capped = Sensitivity(0.3, 1.0, sampled=2, proof=PublicPoint(), participation=Cap(2))
    for sens in (ONE, public, glm, reg, capped):
        for colluders in ((), (0,), (1, 2), tuple(range(P - 1))):
            threat = Colluders(frozenset(colluders)) if colluders else Links()
            named = account(s, graphs, sens, rounds=T, threat=threat)
            general = account_by_rows(rounds, sens, colluders=colluders)
            assert named.leak == general.leak == (s.name == "none")
            if named.leak:
                continue
            assert general.mu_gdp == pytest.approx(named.mu_gdp, rel=1e-10, abs=1e-12)
            assert general.epsilon == pytest.approx(named.epsilon, rel=1e-8, abs=1e-10)
            assert named.valid


def test_the_general_accountant_takes_failed_links_and_chosen_targets() -> None:
    s = gauss("own-clean")
    graphs = [Graph.ring(4), Graph.path(4), Graph.star(4)]
    rounds = rounds_of(s, graphs)
    each = [account_by_rows(rounds, ONE, targets=[p]).epsilon or 0.0 for p in range(4)]
    assert account_by_rows(rounds, ONE).epsilon == pytest.approx(max(each), rel=1e-12)
    assert max(each) > 1.01 * min(each)
    hidden = account_by_rows(rounds_of(gauss("per-link"), graphs), ONE)
    assert any("hidden noises were given to the adversary" in a for a in hidden.assumptions)


def test_a_partial_view_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a message between honest servers is missing from the view, the number would not be a bound."""
    rounds = rounds_of(gauss("shared"), [Graph.path(3)] * 2)
    partial = [r._replace(C=r.C[1:], N=(r.N[0][1:],)) for r in rounds]
    monkeypatch.setattr(accountant, "rounds_of", lambda *given: partial)
    with pytest.raises(InputError, match="beyond all messages"):
        account(CORRELATED, Graph.path(3), ONE, rounds=2)


# Which server is the worst


@pytest.mark.parametrize("name", ["own-clean", "per-link", "pairwise"])
@pytest.mark.parametrize("threat", ["links", "neighbours", "colluders:0"])
def test_the_worst_target_is_found(name: str, threat: str) -> None:
    """Against every server alone, by the general accountant."""
    g = Graph.random(6, 0.4, seed=5, weights="metropolis")
    s = gauss(name, 0.5, 2.0 if name == "pairwise" else 0.0)
    found = account(s, g, ONE, rounds=4, threat=threat)
    rounds, worst = rounds_of(s, [g] * 4), 0.0
    for p in range(1 if threat == "colluders:0" else 0, 6):
        near = threat == "neighbours"
        against = g.neighbours(p).tolist() if near else sorted(words.colluders(words.threat(threat)))
        worst = max(worst, account_by_rows(rounds, ONE, colluders=against, targets=[p]).mu_gdp or 0.0)
    assert found.mu_gdp == pytest.approx(worst, rel=1e-10)


# Turns in which a server has no neighbour


def _sent(s: Scheme, graphs: list[Graph], rounds: int, target: int, push: float) -> float:
    """mu^2 of all messages that somebody receives, where data push psi of the target in every round alike."""
    P = graphs[0].P
    moved, drawn, rows = np.zeros(P), np.zeros((P, P * rounds)), []
    for j in range(rounds):
        g, z = graphs[j % len(graphs)], s.sigma * np.eye(P * rounds)[j * P : (j + 1) * P]
        moved[target] += push
        rows += [np.append(moved[p], (drawn + z)[p]) for p in range(P) if g.degrees[p]]
        moved, drawn = g.A @ moved, g.A @ drawn + (g.A - np.diag(s.carries(g))) @ z
    view = np.array(rows)
    mean, noise = view[:, 0], view[:, 1:]
    return float(mean @ np.linalg.pinv(noise @ noise.T, rcond=1e-11) @ mean)


@pytest.mark.parametrize("topology", ["ring:3", "ring:5", "star:4", "path:4"])
@pytest.mark.parametrize("name", ["shared", "partial:0.5", "own-clean", "homomorphic"])
def test_a_message_that_nobody_receives_is_counted_and_then_the_number_is_a_bound_only(
    name: str, topology: str
) -> None:
    graphs, s, T = Graph.parse(topology).matchings(), gauss(name, 0.7), 6
    found = account(s, graphs, ONE, rounds=T)
    attained = max(_sent(s, graphs, T, p, ONE.single) for p in range(graphs[0].P))
    assert found.mu_gdp is not None
    assert attained <= found.mu_gdp**2 * (1 + 1e-9)
    assert not found.exact or attained == pytest.approx(found.mu_gdp**2)


def test_so_it_is_by_the_rows_of_a_scheme_with_memory() -> None:
    s = Scheme("memory", "gaussian", (Noise(Place.SERVER, 0.7, (1.0, -0.5)),))
    ring = Graph.ring(3)
    assert [account(s, graphs, ONE, rounds=6).exact for graphs in ([ring], ring.matchings())] == [True, False]


# The privacy loss itself


def losses(law: str, directions: Callable[[Floats, int], tuple[Floats, Floats]], runs: int, sigma: float) -> Floats:
    """log p_D(o) / p_D'(o) of `runs` runs of homomorphic on the ring, with adaptive clipped nonlinear updates.

    Server 0's data changes; everything D' would have done is recomputed from the same messages.
    """
    rng, P, T, M, mu, B = np.random.default_rng(11), 4, 5, 2, 0.1, 1.0
    A = Graph.ring(P).A
    w, w_other = np.zeros((runs, P, M)), np.zeros((runs, M))
    total = np.zeros(runs)
    for j in range(T):
        u = mu * clip(5 * np.sin(3 * w + np.arange(P)[:, None]), B, "l1")  # the others: nonlinear, adaptive
        mine, theirs = directions(w[:, 0], j)[0], directions(w_other, j)[1]
        u[:, 0] = mu * clip(mine, B, "l1")
        psi, psi_other = w + u, w_other + mu * clip(theirs, B, "l1")
        shape = (runs, P, M)
        g = sigma * (rng.standard_normal(shape) if law == "gaussian" else rng.laplace(0, math.sqrt(0.5), shape))
        o = psi + g
        near, far = g[:, 0], o[:, 0] - psi_other
        if law == "gaussian":
            total += ((far**2 - near**2) / (2 * sigma**2)).sum(axis=1)
        else:
            total += ((np.abs(far) - np.abs(near)) * math.sqrt(2) / sigma).sum(axis=1)
        flow = np.einsum("pm,rmk->rpk", A - np.eye(P), o)
        w, w_other = psi + flow, psi_other + flow[:, 0]
    return total


def opposite(w: Floats, j: int) -> tuple[Floats, Floats]:
    e = np.zeros_like(w)
    e[:, 0] = 9.0
    return e, -e


def wild(w: Floats, j: int) -> tuple[Floats, Floats]:
    return 4 * np.cos(5 * w + j), -3 * np.sin(2 * w) + 1


def test_laplace_loss_never_passes_epsilon_and_reaches_it() -> None:
    sens = Sensitivity(0.1, 1.0, level="unit", norm="l1")
    a = account(scheme("homomorphic", 2.0), Graph.ring(4), sens, rounds=5)
    assert a.epsilon_pure is not None
    assert a.epsilon_pure == pytest.approx(0.1 * 5 * 6 * math.sqrt(2) / 2.0)
    loss = losses("laplace", opposite, 60_000, 2.0)
    assert loss.max() <= a.epsilon_pure + 1e-9
    assert loss.max() == pytest.approx(a.epsilon_pure, rel=1e-9)  # tight
    assert np.exp(-loss).mean() == pytest.approx(1.0, abs=0.03)  # it is a likelihood ratio
    assert np.abs(losses("laplace", wild, 20_000, 2.0)).max() <= a.epsilon_pure + 1e-9
    for epsilon in (0.3, 0.6, 0.9):  # and composed: delta at our epsilon(delta)
        delta = float(np.maximum(0, 1 - np.exp(epsilon - loss)).mean())
        ours = account(scheme("homomorphic", 2.0), Graph.ring(4), sens, rounds=5, delta=delta).epsilon
        assert ours is not None
        assert ours == pytest.approx(epsilon, rel=0.05)  # one coordinate: privacy loss distributions are exact


def test_gaussian_loss_is_that_of_its_mu() -> None:
    sens = Sensitivity(0.1, 1.0, level="unit", norm="l1")
    a = account(gauss("homomorphic", 1.5), Graph.ring(4), sens, rounds=5)
    assert a.mu_gdp is not None
    loss = losses("gaussian", opposite, 40_000, 1.5)
    assert loss.mean() == pytest.approx(a.mu_gdp**2 / 2, rel=0.03)
    assert loss.std() == pytest.approx(a.mu_gdp, rel=0.01)
    assert np.exp(-loss).mean() == pytest.approx(1.0, abs=0.03)
    other = losses("gaussian", wild, 40_000, 1.5)
    assert other.mean() <= a.mu_gdp**2 / 2
    assert other.std() <= a.mu_gdp


def test_one_look_at_the_model_gives_the_clean_updates() -> None:
    """docs/design/privacy.md, 4: sigma = 100, and the sum of all clean updates of p to 1e-12."""
    rng, g, T = np.random.default_rng(3), Graph.ring(4), 30
    w, clean, flows = np.zeros((4, 2)), np.zeros(2), np.zeros(2)
    for _ in range(T):
        u = 0.1 * np.sin(w + 1)
        clean += u[0]
        o = w + u + 100 * rng.standard_normal((4, 2))
        flow = (g.A - np.eye(4)) @ o
        flows += flow[0]
        w = w + u + flow
    np.testing.assert_allclose(w[0] - flows, clean, atol=1e-9)
    assert account(gauss("homomorphic", 100.0), g, ONE, rounds=T, release="local").leak
    assert account(gauss("homomorphic", 100.0), g, ONE, rounds=T, threat="own-client").leak


# Leaks


@pytest.mark.parametrize("P", [1, 4])
def test_what_leaks(P: int) -> None:
    g = Graph.ring(P) if P > 1 else Graph.path(1)
    for name in ("homomorphic", "shared", "own-clean", "per-link", "pairwise", "central", "local-only", "none"):
        s = gauss(name, 0.0 if name in ("local-only", "none") else 1.0, 1.0 if name == "pairwise" else 0.0)
        assert account(s, g, ONE, rounds=3, threat="own-server").leak
        keeps = name in ("homomorphic", "own-clean", "per-link", "local-only") or P == 1
        if name == "none" and P > 1:
            assert account(s, g, ONE, rounds=3).leak
            continue
        for given in ({"threat": "own-client"}, {"release": "local"}, {"release": "centroid:0"}):
            if name == "per-link" and given != {"release": "centroid:0"}:
                with pytest.raises(InputError, match="no bound is known for per-link"):
                    account(s, g, ONE, rounds=3, **given)
                continue
            a = account(s, g, ONE, rounds=3, **given)
            assert a.leak == keeps, (name, given)
            assert (a.epsilon is None) == keeps
        if P == 1:
            with pytest.raises(InputError, match="there are no links"):
                account(s, g, ONE, rounds=3)
            continue
        a = account(s, g, ONE, rounds=3)
        assert not a.leak
        assert (a.epsilon == 0.0) == (name == "local-only")


def test_messages_without_noise_and_pairs_without_local_noise() -> None:
    for name in ("homomorphic", "shared", "per-link", "central", "none"):
        a = account(scheme(name), RING, ONE, rounds=2)
        assert a.leak
        assert a.assumptions[0] == "leak: messages carry no noise"
    a = account(gauss("pairwise", 0.0, 5.0), RING, ONE, rounds=2)
    assert a.leak
    assert a.epsilon is None
    assert "their sum reveals the sum of the models" in a.assumptions[0]
    assert a.success == 1.0


def test_a_free_release_costs_nothing_and_a_release_adds() -> None:
    for name in ("shared", "central"):
        assert mu2(gauss(name), release="centroid:0.001") == mu2(gauss(name))
        assert mu2(gauss(name), release="local") == mu2(gauss(name))
    for name in ("homomorphic", "own-clean", "per-link"):
        assert mu2(gauss(name), release="centroid:0.1") > mu2(gauss(name)) * 1.001
    seen = 5 / 4 / (0.5 * math.sqrt(4 / 3))  # through all four shares, three of which put 0.5 on the mean
    alone = account(gauss("local-only", 0.0), RING, ONE, rounds=5, release="centroid:0.5")
    assert alone.mu_gdp == pytest.approx(seen)
    alone = account(scheme("local-only"), RING, ONE, rounds=5, release="centroid:0.5")  # Gaussian all the same
    assert alone.rho == pytest.approx(seen**2 / 2)
    assert alone.epsilon_pure is None
    assert alone.epsilon == pytest.approx(zcdp_epsilon(seen**2 / 2, 1e-5))


@pytest.mark.parametrize("P", [3, 4, 6])
@pytest.mark.parametrize("kind", ["path", "star", "turns"])
@pytest.mark.parametrize("name", ["homomorphic", "own-clean"])
def test_the_worst_target_of_a_release_is_who_has_most_neighbours(P: int, kind: str, name: str) -> None:
    """Neighbours know their shares of a release's noise, so that the number of them counts, over all graphs that take
    turns; the servers' messages alone may be equally dear."""
    hub = P - 1  # the last, so that the first of equals is not the worst
    star = Graph.from_edges(P, [(hub, p) for p in range(hub)])
    other = Graph.from_edges(P, [*((p, p + 1) for p in range(P - 2)), (0, hub)])
    graphs = {"path": [Graph.path(P)], "star": [star], "turns": [Graph.path(P), other]}[kind]
    s, T, sigma, mu = gauss(name, 3.0), 4, 0.5, 0.1
    found = account(
        s, graphs, Sensitivity(mu, 1.0, level="unit"), rounds=T, threat="neighbours", release=f"centroid:{sigma}"
    )
    around = [{m for g in graphs for m in range(P) if m != p and g.A[p, m] > 0} for p in range(P)]
    share = (P * sigma) ** 2 / (P - max(map(len, around)))  # variance of one share on the sum
    rhos = []
    for p in range(P):
        x, rho = 0.0, 0.0
        for j in range(T):
            x = x + 2 * mu
            rho += (x / 3.0) ** 2 / 2
            x *= s.carries(graphs[j % len(graphs)])[p]
        rhos.append(rho + x**2 / ((P - len(around[p])) * share) / 2)
    assert found.rho == pytest.approx(max(rhos), rel=1e-12)
    assert found.target is not None
    assert rhos[found.target] == pytest.approx(max(rhos), rel=1e-12)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_a_release_under_random_participation_costs_as_it_should(noise: str) -> None:
    """q = 1 has the answer in closed form; the release is Gaussian also where messages would be Laplace."""
    always = Sensitivity(
        0.5,
        1.0,
        norm="l1",
        sampled=1,
        clients=1,
        proof=PublicPoint(),
        participation=Random(1.0),
    )
    free = scheme("local-only", noise=noise)
    a = account(free, RING, always, rounds=3, release="centroid:0.5")
    ratio = 3 / 4 / (0.5 * math.sqrt(4 / 3))
    rho = ratio**2 / 2
    expected = gaussian_epsilon(ratio, 1e-5) if noise == "gaussian" else zcdp_epsilon(rho, 1e-5)
    assert a.epsilon == pytest.approx(expected, rel=1e-9)  # the smallest bound is that for one who is always there
    half = replace(always, clients=2, participation=Random(0.5))
    found = account(free, RING, half, rounds=3, release="centroid:0.5")

    def curve(orders: Floats) -> Floats:
        """Nothing but the release, after n of 3 rounds: D_a = a rho (n / 3)^2, each n with its probability."""
        weights, n = np.array([1, 3, 3, 1]) / 8, np.arange(4)
        exponents = np.log(weights) + np.multiply.outer((orders - 1) * orders, rho * (n / 3) ** 2)
        return np.asarray(np.logaddexp.reduce(exponents, axis=1) / (orders - 1))

    assert found.epsilon == pytest.approx(min(expected, renyi_epsilon(curve, 1e-5)), rel=1e-9)
    assert (found.epsilon or 0.0) < expected


def test_a_release_on_a_grid_is_no_gaussian() -> None:
    """Its shares are integers: wide ones are Gaussian but for 9 quanta^2, of narrow ones only the rho is known."""
    unit = Sensitivity(0.1, 1.0, level="unit", dim=3)
    grid = replace(unit, rounding=Rounding(2.0**-20, 1, False))
    coarse = replace(unit, rounding=Rounding(2.0**-4, 1, False))
    fine, narrow, real = (
        account(gauss("homomorphic"), RING, s, rounds=5, release="centroid:0.5") for s in (grid, coarse, unit)
    )
    assert fine.rho == pytest.approx(real.rho, rel=1e-4)
    assert (fine.mu_gdp, fine.exact) == (pytest.approx(math.sqrt(2 * (fine.rho or 0.0)), rel=1e-9), False)
    assert fine.epsilon == pytest.approx(real.epsilon, rel=1e-4)
    assert (narrow.mu_gdp, narrow.exact) == (None, False)
    assert narrow.epsilon == pytest.approx(zcdp_epsilon(narrow.rho or 0.0, 1e-5), rel=1e-12)
    assert (narrow.epsilon or 0.0) > (real.epsilon or 0.0)
    messages = account(gauss("homomorphic"), RING, grid, rounds=5)  # rounded after real noise was added
    assert messages.epsilon == pytest.approx(gaussian_epsilon(messages.mu_gdp or 0.0, 1e-5), rel=1e-12)
    assert not messages.exact


# Noise inside the secure sum


INSIDE = SumNoise.sized(0.05, 5, sampled=10, fraction_bits=24, dim=3, corrupted=2)
PLAIN = Sensitivity(0.1, 1.0, sampled=10, dim=3)  # a client, no proof
EVERYBODY = ("links", "colluders:1", "neighbours", "own-client", "own-server")


def inside(s: Scheme, sens: Sensitivity = PLAIN, T: int = 20, noise: SumNoise = INSIDE, **given: Any) -> Account:
    return account(s, RING, sens, rounds=T, sum_noise=noise, **given)


@pytest.mark.parametrize("level", ["unit", "client", "example"])
@pytest.mark.parametrize("adjacency", ["replace", "zero-out"])
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_the_own_server_has_a_number(level: str, adjacency: str, norm: str) -> None:
    sens = Sensitivity(0.1, 1.0, norm=norm, level=level, adjacency=adjacency, sampled=10, dim=3, batch=4)
    a = inside(gauss("homomorphic"), sens, threat="own-server")
    moved = {"unit": 0.2, "client": 0.02, "example": 0.005}[level] / (2 if adjacency == "zero-out" else 1)
    assert a.rho == pytest.approx(20 * moved**2 / (2 * 0.05**2), rel=1e-4)
    thin = level == "unit"  # so little noise for a whole unit that the sampler's distance passes delta
    assert (a.leak, a.exact, a.valid, a.epsilon_pure, a.by) == (thin, False, True, None, "sum")
    assert a.mu_gdp == pytest.approx(math.sqrt(2 * (a.rho or 0.0)), rel=1e-9)  # shares are wide
    assert a.epsilon == (None if thin else pytest.approx(gaussian_epsilon(a.mu_gdp or 0.0, 1e-5), rel=1e-12))
    assert math.fsum(a.costs) == pytest.approx(a.rho, rel=1e-12)
    assert len(a.deltas) == 20
    assert a.adversary == "the unit's own server, with up to 2 corrupted clients"
    said = " | ".join(a.assumptions)
    for part in ("at least 5 honest clients", "one sum a round", "Kairouz", "clips and truncates", "drops out"):
        assert part in said
    assert ("but those of the adversary's own" in said) == (level == "unit")
    assert ("takes part all the same" in said) == (adjacency == "zero-out")
    assert ("l1 clipping" in said) == (norm == "l1")


@pytest.mark.parametrize("name", ["homomorphic", "shared", "per-link", "pairwise", "central", "local-only", "none"])
@pytest.mark.parametrize("release", ["none", "local", "centroid:0", "centroid:0.01"])
def test_nobody_sees_more_than_the_sums(name: str, release: str) -> None:
    """With or without a proof, a scheme's noise or a release: the own server's number holds against everybody."""
    s = gauss(name, 0.0 if name in ("local-only", "none") else 1.0, 1.0 if name == "pairwise" else 0.0)
    bound = inside(s, threat="own-server").epsilon or 0.0
    for threat in EVERYBODY:
        a = inside(s, threat=threat, release=release)
        assert not a.leak
        assert a.epsilon is not None
        assert a.epsilon <= bound
        try:
            alone = account(s, RING, PLAIN, rounds=20, threat=threat, release=release)
        except InputError:
            alone = None
        if alone is None or alone.leak:
            assert (a.by, a.epsilon) == ("sum", bound)
        else:
            assert a.epsilon == min(bound, alone.epsilon or 0.0)


def test_the_smaller_of_two_proofs_says_which() -> None:
    loud = inside(gauss("shared", 10.0))
    alone = account(gauss("shared", 10.0), RING, PLAIN, rounds=20)
    assert (loud.by, loud.epsilon, loud.mu_gdp, loud.costs) == ("messages", alone.epsilon, alone.mu_gdp, alone.costs)
    assert "inside the secure sum alone would give epsilon" in loud.assumptions[-1]
    quiet = inside(gauss("shared", 0.001))
    assert quiet.by == "sum"
    assert "messages' own noise alone would give epsilon" in quiet.assumptions[-1]
    leak = inside(gauss("homomorphic"), release="local")
    assert "does not hold this adversary off: a local model" in leak.assumptions[-1]
    refused = inside(gauss("homomorphic"))
    assert "gives no number here: proof = 'none'" in refused.assumptions[-1]
    unit = Sensitivity(0.1, 1.0, level="unit", dim=3)
    silent = inside(gauss("local-only", 0.0), unit)  # nothing is sent: nothing is learnt from the links
    assert (silent.by, silent.epsilon) == ("messages", 0.0)


@pytest.mark.parametrize("participation", ["random:0.1", "amplified:0.1"])
def test_who_takes_part_is_no_secret_inside_the_unit(participation: str) -> None:
    """The own server and own clients see the list: what holds given the list is credited, amplification is not."""
    sens = replace(PLAIN, clients=100, participation=words.participation(participation))
    T, noise, every = 20, gauss("homomorphic"), inside(gauss("homomorphic"), threat="own-server")
    each = every.costs[0]
    assert every.costs == (each,) * T

    def curve(orders: Floats) -> Floats:
        """Of n rounds with the client, binomially: a zero-concentrated sum each."""
        n = np.arange(T + 1)
        weights = [math.log(math.comb(T, k)) + k * math.log(0.1) + (T - k) * math.log(0.9) for k in n]
        exponents = np.array(weights) + np.multiply.outer((orders - 1) * orders, n * each)
        return np.asarray(np.logaddexp.reduce(exponents, axis=1) / (orders - 1))

    expected = renyi_epsilon(curve, 1e-5)
    assert expected < 0.7 * (every.epsilon or 0.0)
    for threat in ("own-server", "own-client", "links"):
        a = inside(noise, sens, threat=threat)
        assert (a.by, a.rho, a.costs) == ("sum", None, ())
        assert a.epsilon == pytest.approx(expected, rel=1e-9)
        assert any("who took part may become known; a client that is always there" in x for x in a.assumptions)
    active = replace(INSIDE, server="active")  # who chooses the sample
    with pytest.raises(InputError, match="an active server chooses who takes part"):
        inside(noise, sens, noise=active, threat="own-server")
    crowded = replace(sens, sampled=10, clients=10, participation=type(sens.participation)(1.0))
    assert inside(noise, crowded, threat="own-server").epsilon == every.epsilon


def test_a_curious_clients_own_share_does_not_count() -> None:
    alone = SumNoise.sized(0.05, 5, sampled=10, fraction_bits=24, dim=3)
    assert inside(gauss("none", 0.0), noise=alone, threat="own-server").adversary.endswith("no corrupted client")
    rho = {t: inside(gauss("none", 0.0), noise=alone, threat=t).rho or 0.0 for t in EVERYBODY}
    assert rho.pop("own-client") == pytest.approx(5 / 4 * rho["own-server"], rel=1e-12)
    assert set(rho.values()) == {rho["own-server"]}
    one = SumNoise.sized(0.05, 1, sampled=10, fraction_bits=24, dim=3)
    with pytest.raises(InputError, match="knows them all"):
        inside(gauss("homomorphic"), noise=one, threat="own-client")
    shared = inside(gauss("shared", 1.0), noise=one, threat="own-client")  # the messages' noise still holds
    assert shared.by == "messages"


def test_noise_inside_must_be_of_the_same_model() -> None:
    with pytest.raises(InputError, match="has 3 coordinates"):
        inside(gauss("shared"), Sensitivity(0.1, 1.0, sampled=10, dim=4))


# Laws


def test_discrete_noise_says_less() -> None:
    continuous = account(gauss("homomorphic", 4.0), RING, ONE, rounds=5)
    discrete = account(gauss("homomorphic", 4.0), RING, ONE, rounds=5, noise="discrete-gaussian")
    assert discrete.mu_gdp is None
    assert discrete.rho == continuous.rho
    assert discrete.epsilon == pytest.approx(zcdp_epsilon(continuous.rho or 0, 1e-5), rel=1e-8)
    assert (discrete.epsilon or 0) > (continuous.epsilon or 0) == gaussian_epsilon(continuous.mu_gdp or 0, 1e-5)
    assert not discrete.exact
    laplace = account(scheme("shared", 20.0), RING, ONE, rounds=50)
    integer = account(scheme("shared", 20.0), RING, ONE, rounds=50, noise="discrete-laplace")
    assert laplace.epsilon_pure == integer.epsilon_pure
    assert integer.epsilon == pure_epsilon(np.full(50, math.sqrt(2) / 20), 1e-5)
    assert (laplace.epsilon or 0) <= (integer.epsilon or 0) < (integer.epsilon_pure or 0)
    assert any("integer grid" in a for a in integer.assumptions)
    shares = account(gauss("homomorphic"), RING, ONE, rounds=5, noise="discrete-gaussian", release="centroid:1")
    assert any("release_rho" in a for a in shares.assumptions)
    assert not any("release_rho" in a for a in discrete.assumptions)
    for noise in ("laplace", "discrete-gaussian", "discrete-laplace"):
        with pytest.raises(InputError, match="proof for Gaussian noise only"):
            account(gauss("pairwise", 1.0, 1.0), RING, ONE, rounds=2, noise=noise)


def test_l2_clipping_with_laplace_costs_a_root_of_the_dimension() -> None:
    s, wide = scheme("shared", 1.0), Sensitivity(0.5, 1.0, level="unit", dim=16)
    assert account(s, RING, wide, rounds=2).epsilon_pure == pytest.approx(4 * 2 * math.sqrt(2))
    assert account(s, RING, ONE, rounds=2).epsilon_pure == pytest.approx(2 * math.sqrt(2))
    with pytest.raises(InputError, match=r"sqrt\(M\)"):
        account(s, RING, Sensitivity(0.5, 1.0, level="unit"), rounds=2)


# Refusals


def test_a_clients_share_needs_a_proof() -> None:
    plain = Sensitivity(0.5, 1.0, sampled=10)
    for name in ("homomorphic", "own-clean", "per-link", "local-only"):
        with pytest.raises(InputError, match="needs a proof") as e:
            account(gauss(name, 0.0 if name == "local-only" else 1.0), RING, plain, rounds=3)
        assert e.value.field == "proof"
    assert account(gauss("shared"), RING, plain, rounds=3).mu_gdp == pytest.approx(0.1 * math.sqrt(3))


NONSENSE: list[tuple[str, Callable[[], object]]] = [
    ("delta", lambda: account(gauss("shared"), RING, ONE, rounds=2, delta=0.0)),
    ("delta", lambda: account(gauss("shared"), RING, ONE, rounds=2, delta=1.0)),
    ("delta", lambda: account(gauss("shared"), RING, ONE, rounds=2, delta=-1e-5)),
    ("delta", lambda: account(gauss("shared"), RING, ONE, rounds=2, delta=math.nan)),
    ("delta", lambda: account(gauss("shared"), RING, ONE, rounds=2, delta="small")),  # type: ignore[arg-type]
    ("rounds", lambda: account(gauss("shared"), RING, ONE, rounds=0)),
    ("rounds", lambda: account(gauss("shared"), RING, ONE, rounds=-3)),
    ("rounds", lambda: account(gauss("shared"), RING, ONE, rounds=2.5)),  # type: ignore[arg-type]
    ("rounds", lambda: account(gauss("shared"), RING, ONE, rounds=math.nan)),  # type: ignore[arg-type]
    ("noise", lambda: account(gauss("shared"), RING, ONE, rounds=2, noise="uniform")),
    ("threat", lambda: account(gauss("shared"), RING, ONE, rounds=2, threat="colluders:4")),
    ("threat", lambda: account(gauss("shared"), RING, ONE, rounds=2, threat="colluders:-1")),
    ("threat", lambda: account(gauss("shared"), RING, ONE, rounds=2, threat="colluders:0,1,2,3")),
    ("threat", lambda: account(gauss("shared"), RING, ONE, rounds=2, threat="god")),
    ("release", lambda: account(gauss("shared"), RING, ONE, rounds=2, release="centroid:nan")),
    ("release", lambda: account(gauss("shared"), RING, ONE, rounds=2, release="centroid:-1")),
    ("graph", lambda: account(gauss("shared"), [], ONE, rounds=2)),
    ("graph", lambda: account(gauss("shared"), [RING, Graph.ring(5)], ONE, rounds=2)),
    ("scheme.sigma", lambda: gauss("shared", -1.0)),
    ("scheme.sigma", lambda: gauss("shared", math.nan)),
    ("scheme.sigma", lambda: gauss("shared", math.inf)),
    ("scheme.sigma_pair", lambda: gauss("pairwise", 1.0, math.nan)),
    ("scheme.name", lambda: gauss("partial:1.5")),
    ("scheme.name", lambda: gauss("partial:nan")),
    ("scheme.carry", lambda: Scheme("mine", carry=-0.1)),
    ("graph", lambda: Graph.from_edges(4, [(0, 1), (2, 3)])),
    ("graph", lambda: Graph.from_matrix([[1.0, math.nan], [math.nan, 1.0]])),
    ("sigma", lambda: account(gauss("shared", 1e-200), RING, ONE, rounds=2)),
    ("sigma", lambda: account(scheme("shared", 1e-320), RING, ONE, rounds=2)),
]


@pytest.mark.parametrize(("field", "ask"), NONSENSE, ids=[f"{n}-{f}" for n, (f, _) in enumerate(NONSENSE)])
def test_nonsense_is_refused_by_name(field: str, ask: Callable[[], object]) -> None:
    with pytest.raises(InputError) as e:
        ask()
    assert e.value.field.startswith(field)


@pytest.mark.parametrize("sigma", [1e-100, 1e-12, 1e-3, 1e3, 1e12, 1e100])
@pytest.mark.parametrize("noise", ["gaussian", "laplace", "discrete-gaussian", "discrete-laplace"])
@pytest.mark.parametrize("participation", ["all", "random:0.5"])
def test_any_noise_has_a_finite_number(sigma: float, noise: str, participation: str) -> None:
    sens = Sensitivity(
        0.5,
        1.0,
        norm="l1",
        sampled=1,
        clients=2,
        proof=PublicPoint(),
        participation=words.participation(participation),
    )
    s = scheme("homomorphic", sigma, noise=noise.removeprefix("discrete-"))
    a = account(s, RING, sens, rounds=3, noise=noise, release=f"centroid:{sigma!r}")
    if noise.startswith("discrete") and sigma < 1:  # so thin that the sampler's distance passes delta
        assert (a.leak, a.epsilon, a.success) == (True, None, 1.0)
        assert "no epsilon holds at delta 1e-05" in a.assumptions[0]
        assert (a.rho is None) == (participation != "all")
        return
    assert a.epsilon is not None
    assert math.isfinite(a.epsilon)
    assert a.epsilon >= (0.999 * (a.rho or 0.0) if sigma < 1 else 0.0)
    assert 0.01 - 1e-12 <= a.success <= 1.0
    json.dumps(a.to_dict(), allow_nan=False)


def test_an_account_as_plain_data() -> None:
    plain = account(gauss("homomorphic"), RING, ONE, rounds=5).to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["leak"] is False
    assert plain["threat"] == "links"
    leak = account(gauss("homomorphic"), RING, ONE, rounds=5, threat="own-server").to_dict()
    assert leak["epsilon"] is None
    assert leak["leak"] is True
    json.dumps(leak, allow_nan=False)
    released = account(gauss("homomorphic"), RING, ONE, rounds=5, release=Reveal(Centroid(1.0)))
    assert "and the release (centroid:1)" in released.adversary


# Work


@pytest.mark.parametrize(
    "name", ["homomorphic", "shared", "own-clean", "per-link", "pairwise", "central", "partial:0.5"]
)
@pytest.mark.parametrize("kind", ["ring", "complete", "random"])
def test_work_grows_with_rounds_and_servers_and_not_with_their_squares(name: str, kind: str) -> None:
    """Four times as much of either is less than five times the work; `confide bench accountant` has the seconds."""
    s = gauss(name, 1.0, 2.0 if name == "pairwise" else 0.0)

    def asked(servers: int, rounds: int) -> Callable[[], Account]:
        graph = Graph.parse(f"{kind}:{servers}")
        return lambda: account(s, graph, ONE, rounds=rounds)

    asked(25, 2)()  # imports
    few = lines(asked(25, 100))
    assert lines(asked(25, 400)) < 5 * few
    assert lines(asked(100, 100)) < 5 * few
    assert peak_bytes(asked(25, 400)) < 5 * peak_bytes(asked(25, 100))


@pytest.mark.parametrize("name", ["homomorphic", "pairwise"])
def test_the_general_machinery_over_many_rounds(name: str) -> None:
    """What rounding does to orthogonality adds up; every noise is orthogonalised once, for all targets together."""
    s = gauss(name, 1.0, 2.0 if name == "pairwise" else 0.0)
    rounds = rounds_of(s, [Graph.ring(4)] * 50)
    assert account_by_rows(rounds, ONE).mu_gdp == pytest.approx(account(s, RING, ONE, rounds=50).mu_gdp, rel=1e-10)
    one = lines(lambda: account_by_rows(rounds[:10], ONE, targets=[0]))
    assert lines(lambda: account_by_rows(rounds[:10], ONE)) < 2 * one
    assert lines(lambda: account_by_rows(rounds[:40], ONE, targets=[0])) < 4 * one
