"""A scheme is data, and every row is one: its wiring is the round, an engine runs it, it has a price and a plan."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from confide.base.errors import InputError
from confide.base.randomness import Purpose
from confide.engines.driver import simulate
from confide.graph.graph import Graph
from confide.plans.config import Config
from confide.plans.plan import Plan
from confide.plans.privacy import Privacy
from confide.privacy.accountant import account
from confide.privacy.price import price
from confide.privacy.sensitivity import Sensitivity
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL
from confide.rounds.arithmetic import FloatArithmetic
from confide.rounds.clipping import Clip
from confide.rounds.combine import combine, place, publish
from confide.rounds.schemes import FAMILIES, KEYS, Exchange, Noise, Place, Scheme, links, scheme


def test_the_wiring_is_the_round(each_scheme: Scheme, each_graph: Graph) -> None:
    """psi = [I 0] and z_j = unit vector P + j: the messages are then [C N] and the states [W R]."""
    s, g, arith = each_scheme, each_graph, FloatArithmetic(1)
    m = s.wiring(g)
    P, noises = g.P, len(m.draws)
    psi = np.hstack([np.eye(P), np.zeros((P, noises))])

    def draw(purpose: Purpose, ids: tuple[int, ...], sigma: float) -> np.ndarray:
        return sigma * np.eye(P + noises)[P + m.draws.index((place(purpose, ids), ids))]

    published = publish(s, g, psi, draw, arith, np.ones(P, dtype=bool))
    w = combine(s, g, published, arith, np.ones(len(g.edges), dtype=bool))
    assert (m.W.shape, m.R[0].shape, m.C.shape[1]) == ((P, P), (P, noises), P)
    np.testing.assert_allclose(published.sent, np.hstack([m.C, m.N[0]]), rtol=0, atol=1e-12)
    np.testing.assert_allclose(w, np.hstack([m.W, m.R[0]]), rtol=0, atol=1e-12)


def test_noise_covariances_are_those_of_the_theory(each_graph: Graph) -> None:
    """R R' against the closed forms N_z of the exact predictions."""
    A, eye = each_graph.A, np.eye(each_graph.P)
    own = np.diag(np.diag(A))
    expected = {
        "none": 0 * A,
        "homomorphic": (A - eye) @ (A - eye).T,
        "shared": A @ A.T,
        "own-clean": (A - own) @ (A - own).T,
        "per-link": np.diag((A**2).sum(axis=1)),
        "per-link-clean": np.diag((A**2).sum(axis=1) - np.diag(A) ** 2),
        "partial:0.3": (A - 0.3 * eye) @ (A - 0.3 * eye).T,
    }
    for name, covariance in expected.items():
        R = scheme(name, 0.0 if name == "none" else 0.7).wiring(each_graph).R[0]
        np.testing.assert_allclose(R @ R.T, 0.49 * covariance, rtol=0, atol=1e-12, err_msg=name)


def test_pair_noise_is_invisible_to_the_sum_of_messages() -> None:
    g = Graph.random(6, 0.5, seed=2)
    N = scheme("pairwise", 0.0, sigma_pair=0.8).wiring(g).N[0]
    assert np.abs(N).sum() > 0
    np.testing.assert_allclose(N.sum(axis=0), 0.0, atol=1e-15)


def test_links_list_every_edge_in_both_directions() -> None:
    g = Graph.star(4)
    sender, receiver = links(g)
    pairs = set(zip(sender.tolist(), receiver.tolist(), strict=True))
    assert len(pairs) == len(sender) == 2 * len(g.edges)
    assert pairs == {(m, p) for p, m in pairs}
    assert np.array_equal(sender[: len(g.edges)], receiver[len(g.edges) :])


def test_owners_are_who_knows_a_draw(each_scheme: Scheme, each_graph: Graph) -> None:
    m = each_scheme.wiring(each_graph)
    for (at, ids), owners in zip(m.draws, m.owners, strict=True):
        assert owners == {Place.EDGE: ids, Place.NETWORK: ()}.get(at, ids[:1])
    assert len({(place, ids) for place, ids in m.draws}) == len(m.draws)


def test_noise_around_a_receiver_cancels_there_and_nowhere_else(each_graph: Graph) -> None:
    """Models are noise-free; each message has noise, but that of an only neighbour, and two servers know each draw."""
    g, s = each_graph, scheme("cancel-at-receiver", 0.7)
    m, (sender, receiver) = s.wiring(g), links(each_graph)
    np.testing.assert_allclose(m.R[0], 0.0, rtol=0, atol=1e-15)
    weighted = g.A[receiver, sender][:, None] * m.N[0]
    for r in range(g.P):
        np.testing.assert_allclose(weighted[receiver == r].sum(axis=0), 0.0, rtol=0, atol=1e-15)
    several = g.degrees[receiver] > 1
    np.testing.assert_allclose((weighted**2).sum(axis=1), np.where(several, 2 * 0.49, 0.0), rtol=1e-12, atol=1e-15)
    for (_, (p, r)), known in zip(m.draws, m.owners, strict=True):
        assert known[0] == p
        assert set(known) <= set(g.neighbours(r).tolist())
        assert len(set(known)) == min(2, g.degrees[r])


def test_noise_that_cancels_at_each_receiver_leaves_the_run_as_it_was(ragged: Callable[..., Problem]) -> None:
    graphs = [Graph.random(4, 0.6, seed=1), Graph.star(4)]
    quiet, noisy = (
        simulate(ragged(), graphs, GFL(s, step=0.1, sampled=3), rounds=8, engine=engine, progress=False)
        for s, engine in ((scheme("none"), "reference"), (scheme("cancel-at-receiver", 5.0), "auto"))
    )
    np.testing.assert_allclose(noisy.models, quiet.models, rtol=0, atol=1e-12)


def test_who_listens_on_all_links_solves_for_every_model() -> None:
    """As many sums as servers, and here the weights off the diagonal of A have an inverse."""
    g, arith, rng = Graph.random(6, 0.5, seed=1), FloatArithmetic(1), np.random.default_rng(0)
    psi, (sender, receiver) = rng.standard_normal((6, 2)), links(g)

    def draw(purpose: Purpose, ids: tuple[int, ...], sigma: float) -> np.ndarray:
        return sigma * rng.standard_normal(2)

    sent = publish(scheme("cancel-at-receiver", 5.0), g, psi, draw, arith, np.ones(6, dtype=bool)).sent
    assert np.abs(sent - psi[sender])[g.degrees[receiver] > 1].min() > 1e-3
    sums = np.zeros((6, 2))
    np.add.at(sums, receiver, g.A[receiver, sender][:, None] * sent)
    np.testing.assert_allclose(np.linalg.solve(g.A - np.diag(g.own_weights), sums), psi, rtol=0, atol=1e-10)


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
def test_noise_that_cancels_at_each_receiver_protects_nobody(law: str) -> None:
    """By any law; noise of servers beside it has a price."""
    unit, graph = Sensitivity(0.1, 1.0, level="unit"), Graph.star(4)
    s = scheme("cancel-at-receiver", 9.0, noise=law)
    for threat in ("links", "colluders:1", "neighbours", "own-client", "own-server"):
        found = account(s, graph, unit, rounds=3, threat=threat)
        assert found.leak
        assert threat == "own-server" or "cancels at each receiver" in found.assumptions[0]
    beside = replace(s, law="gaussian", noises=(*s.noises, Noise(Place.SERVER, 9.0)))
    assert not account(beside, Graph.complete(4), unit, rounds=3).leak


# ---- the contract of every row, without its name


def test_a_row_is_run_priced_planned_and_named(each_scheme: Scheme, ragged: Callable[..., Problem]) -> None:
    s, g = replace(each_scheme, law="gaussian"), Graph.ring(4)
    alg = GFL(s, step=0.1, sampled=3, clip=Clip("example", 1.0))
    run = simulate(ragged(), g, alg, rounds=3, privacy=Privacy(unprotected=True), progress=False)
    assert run.rounds == 3
    priced = account(s, g, Sensitivity(0.1, 1.0, level="unit"), rounds=3)
    silent = s.sigma == 0.0 and s.exchange != Exchange.NOTHING
    assert priced.leak == silent
    plan = Plan.from_text(run.privacy["ledger"]["plan"])
    assert price(plan).scheme == s
    table = {"name": s.name, "noise": str(s.law)} | {key: getattr(s, key) for key in KEYS}
    assert Config.model_validate({"scheme": table}).build().algorithm.scheme == s


# ---- names and refusals


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_found_by_its_name(name: str) -> None:
    assert scheme(name) == FAMILIES[name]
    assert scheme(name).name == name


def test_carries() -> None:
    g = Graph.star(5)
    assert np.array_equal(scheme("homomorphic").carries(g), np.ones(5))
    assert np.array_equal(scheme("shared").carries(g), np.zeros(5))
    assert np.array_equal(scheme("own-clean").carries(g), np.diag(g.A))
    assert np.array_equal(scheme("partial:0.25").carries(g), np.full(5, 0.25))


@pytest.mark.parametrize(("c", "other"), [(1.0, "homomorphic"), (0.0, "shared")])
def test_partial_meets_its_ends(c: float, other: str) -> None:
    g = Graph.random(6, 0.5, seed=1)
    ours, theirs = scheme(f"partial:{c}", 0.4).wiring(g), scheme(other, 0.4).wiring(g)
    for field in ("C", "N", "W", "R"):
        assert np.array_equal(getattr(ours, field), getattr(theirs, field))


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"name": "partial:1.5"}, "scheme.name"),
        ({"name": "partial:nan"}, "scheme.name"),
        ({"name": "partial:x"}, "scheme.name"),
        ({"name": "partial:C"}, "scheme.name"),
        ({"name": "homomorfic"}, "scheme.name"),
        ({"name": 3}, "scheme.name"),
        ({"name": "shared", "sigma": -1.0}, "scheme.sigma"),
        ({"name": "shared", "sigma": math.nan}, "scheme.sigma"),
        ({"name": "shared", "sigma": "1"}, "scheme.sigma"),
        ({"name": "shared", "noise": "cauchy"}, "scheme.noise"),
        ({"name": "none", "sigma": 0.1}, "scheme.sigma"),
        ({"name": "local-only", "sigma": 0.1}, "scheme.sigma"),
        ({"name": "shared", "sigma_pair": 0.1}, "scheme.sigma_pair"),
        ({"name": "homomorphic", "sigma_client": -0.1}, "scheme.sigma_client"),
    ],
)
def test_what_a_scheme_refuses(arguments: dict, field: str) -> None:
    with pytest.raises(InputError) as refusal:
        scheme(**arguments)
    assert refusal.value.field == field
