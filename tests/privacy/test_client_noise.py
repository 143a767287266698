"""Noise on client links: what its price is, by formulas of its own, and where it stands in ledgers and plans."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import confide
from builders import a_plan, deployed, priced
from confide.base.errors import InputError
from confide.graph.graph import Graph
from confide.laws.law import LAPLACE
from confide.plans.config import parse
from confide.plans.plan import Plan
from confide.plans.words import OwnServer
from confide.privacy.accountant import account
from confide.privacy.course import Account
from confide.privacy.price import Price, agreed, price
from confide.privacy.sensitivity import Sensitivity
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL, Failures
from confide.rounds.clipping import Clip
from confide.rounds.noise import NoiseSource, float_noise
from confide.rounds.reference import prepare
from confide.rounds.schemes import Scheme, scheme
from confide.secure.settings import Secure

RING, T, L, S = Graph.ring(4), 6, 5, 3.0
CLIENT = Sensitivity(0.5, 1.0, sampled=L, clients=20, dim=3)  # an update moves by 2 mu B = 1
SEEN = {"own-server": 1, "own-client": L - 1, "links": L, "neighbours": L, "colluders:1": L}  # draws before each


def spend(threat: str, s: Sensitivity = CLIENT, law: str = "gaussian", rounds: int = T, **given: Any) -> Account:
    made = scheme("homomorphic", 0.1, noise=law, sigma_client=S)
    return account(made, RING, s, rounds=rounds, threat=threat, secure=False, **given)


# ---- what it costs


@pytest.mark.parametrize("threat", SEEN)
def test_every_round_is_a_fresh_query_behind_so_many_draws(threat: str) -> None:
    a = spend(threat)
    assert (a.by, a.leak, a.valid, a.exact) == ("clients", False, True, False)  # who was drawn is hidden
    assert a.mu_gdp == pytest.approx(math.sqrt(T / SEEN[threat]) / S)
    assert a.rho == pytest.approx(math.fsum(a.costs)) == pytest.approx(T / SEEN[threat] / S**2 / 2)
    half = spend(threat, replace(CLIENT, adjacency="zero-out"))
    assert half.mu_gdp == pytest.approx(a.mu_gdp / 2)


def test_where_clients_may_vanish_the_targets_own_draw_counts() -> None:
    assert {spend(threat, dropout=True).rho for threat in SEEN} == {spend("own-server").rho}
    unit = replace(CLIENT, level="unit")
    assert [spend("own-server", unit, dropout=may).exact for may in (False, True)] == [True, False]


def test_one_client_a_round_is_alone_with_its_draw() -> None:
    alone = replace(CLIENT, sampled=1)
    assert len({spend(threat, alone).rho for threat in SEEN}) == 1


@pytest.mark.parametrize("threat", SEEN)
def test_a_unit_has_all_its_updates_moved(threat: str) -> None:
    """Seen one by one, or L times as far behind the sum of L draws: the same number."""
    a = spend(threat, replace(CLIENT, level="unit"))
    assert a.mu_gdp == pytest.approx(math.sqrt(T * L) / S)
    assert a.exact == (threat == "own-server")


@pytest.mark.parametrize("threat", SEEN)
def test_laplace_noise_counts_one_draw(threat: str) -> None:
    each = math.sqrt(3.0) * math.sqrt(2.0) / S  # of an l2 clip in three coordinates
    assert spend(threat, law="laplace").epsilon_pure == pytest.approx(T * each)
    assert spend(threat, replace(CLIENT, norm="l1"), law="laplace").epsilon_pure == pytest.approx(T * math.sqrt(2) / S)
    assert spend(threat, replace(CLIENT, level="unit"), law="laplace").epsilon_pure == pytest.approx(T * L * each)


def test_a_cap_and_chance() -> None:
    whole = spend("own-server")
    assert spend("own-server", replace(CLIENT, participation="cap:2")).rho == pytest.approx(whole.rho / 3)
    for part in ("random:0.25", "amplified:0.25"):
        drawn = spend("own-server", replace(CLIENT, participation=part))
        assert drawn.rho is None
        assert drawn.epsilon < whole.epsilon
        # Behind its own draw, who was drawn being known: E over the pattern of exp((a - 1) a n / 2 S^2).
        orders = np.linspace(1.01, 100.0, 4000)
        moments = T * np.log1p(0.25 * np.expm1((orders - 1) * orders / (2 * S**2)))
        shortest = (moments + np.log(1e5) + (orders - 1) * np.log1p(-1 / orders) - np.log(orders)) / (orders - 1)
        assert drawn.epsilon == pytest.approx(np.nanmin(shortest), rel=0.01)


@pytest.mark.parametrize("part", ["all", "cap:2", "random:0.25", "amplified:0.25"])
def test_too_little_noise_is_refused(part: str) -> None:
    thin = scheme("homomorphic", 0.1, noise="gaussian", sigma_client=1e-160)
    with pytest.raises(InputError, match="epsilon overflows"):
        account(thin, RING, replace(CLIENT, participation=part), rounds=T, threat="own-server", secure=False)


def test_who_drops_out_is_said_where_all_draws_count() -> None:
    says = {may: " ".join(spend("links", dropout=may).assumptions) for may in (False, True)}
    assert "no client that was drawn drops out" in says[False]
    assert "since clients may drop out" in says[True]
    assert "no client that was drawn drops out" not in says[True]


def test_one_example_of_a_batch() -> None:
    one = replace(CLIENT, level="example", batch=4)
    assert spend("own-server", one).mu_gdp == pytest.approx(spend("own-server").mu_gdp / 4)


def test_the_smaller_of_two_proofs_is_the_answer_and_neither_is_attained_any_more() -> None:
    unit = replace(CLIENT, level="unit")
    made = scheme("shared", 50.0, noise="gaussian")
    alone = account(made, RING, unit, rounds=T)
    both = account(made.resized(sigma_client=S), RING, unit, rounds=T, secure=False)
    assert (both.by, both.epsilon, alone.exact, both.exact) == ("messages", alone.epsilon, True, False)
    assert "that on client links alone would give epsilon" in both.assumptions[-1]
    assert account(made.resized(sigma=0.1, sigma_client=S), RING, unit, rounds=T, secure=False).by == "clients"


@pytest.mark.parametrize("release", ["local", "centroid:0"])
def test_models_and_means_are_functions_of_the_noisy_updates(release: str) -> None:
    silent = scheme("none", noise="gaussian").resized(sigma_client=S)
    for made in (silent, scheme("homomorphic", 1.0, noise="gaussian", sigma_client=S), silent.resized()):
        a = account(made, RING, CLIENT, rounds=T, secure=False, release=release)
        assert (a.leak, a.rho) == (False, pytest.approx(T / L / S**2 / 2))


def test_what_has_no_price() -> None:
    with pytest.raises(InputError, match="a proof for real numbers alone"):
        spend("own-server", law="discrete-gaussian".removeprefix("discrete-"), noise="discrete-gaussian")
    with pytest.raises(InputError) as refused:
        spend("own-server", replace(CLIENT, level="unit", sampled=None))
    assert refused.value.field == "sampled"


# ---- the whole view at once


@pytest.mark.parametrize("carry", [0.0, 0.4, 1.0])
def test_the_covariance_of_the_whole_view_is_never_beyond_the_price(carry: float) -> None:
    """All messages of T rounds, and the models of server 0 for its own client, when its psi is pushed by s in each."""
    P, s, sigma = 4, 2 * 0.5, 0.7  # of a unit's psi; of the servers' noise
    A, rounds = RING.A, 5
    on_psi = S / math.sqrt(L)
    draws = 2 * P * rounds
    push, noise = np.zeros(P), np.zeros((P, draws))  # of the states: what the data move, and what the draws do
    rows: dict[str, list[tuple[float, np.ndarray]]] = {"links": [], "own-client": []}
    for j in range(rounds):
        g, n = (np.eye(draws)[at * P * rounds + j * P :][:P] for at in (0, 1))
        psi, of_psi = push + s * np.eye(P)[0], noise + on_psi * n
        sent = [(x, row) for x, row in zip(psi, of_psi + sigma * g, strict=True)]
        push, noise = A @ psi, A @ of_psi + sigma * (A - carry * np.eye(P)) @ g
        rows["links"] += sent
        rows["own-client"] += [*sent, (push[0], noise[0])]
    made = scheme(f"partial:{carry}", sigma, noise="gaussian", sigma_client=S)
    unit = replace(CLIENT, level="unit")
    for threat, view in rows.items():
        mean, K = np.array([x for x, _ in view]), np.array([row for _, row in view])
        truth = float(mean @ np.linalg.pinv(K @ K.T, rcond=1e-10) @ mean)
        price = account(made, RING, unit, rounds=rounds, threat=threat, secure=False)
        assert truth <= 2 * price.rho * (1 + 1e-9)
        if carry == 1.0 and threat == "own-client":  # who subtracts the messages has the noisy sums themselves
            assert truth == pytest.approx(2 * price.rho) == pytest.approx(rounds * L / S**2)


# ---- the round itself


def test_a_noisy_update_is_all_that_a_client_adds(ragged: Callable[..., Problem]) -> None:
    """psi - w is the mean of clipped updates, each with a draw of its own, whatever the scheme."""
    problem, bound, L = ragged(), 0.4, 3
    for name in ("homomorphic", "shared", "local-only"):
        silent = GFL(scheme(name), step=0.3, sampled=L, local_steps=2, batch=1, clip=Clip("update", bound))
        loud = replace(silent, scheme=silent.scheme.resized(sigma_client=0.5))
        drawn: dict[tuple[int, ...], np.ndarray] = {}

        def source(seed: int, kept: dict[tuple[int, ...], np.ndarray] = drawn) -> NoiseSource:
            plain = float_noise(seed)

            def kept_noise(purpose: Any, ids: Any, law: Any, sigma: float, size: int) -> np.ndarray:
                kept[purpose, *ids] = plain(purpose, ids, law, sigma, size)
                return kept[purpose, *ids]

            return kept_noise

        quiet, noisy = (prepare(problem, [RING], a, 1, 0, source(1))(0) for a in (silent, loud))
        w = quiet.start(np.zeros((4, problem.M)))
        apart = noisy.round(1, w).psi - quiet.round(1, w).psi
        for p in range(4):
            own = [x for (_, _, unit, *_), x in drawn.items() if unit == p]
            assert len(own) == L
            np.testing.assert_allclose(apart[p], np.sum(own, axis=0) / L, atol=1e-12)


# ---- plans, ledgers, and the other spelling


def price_of(**changes: Any) -> Price:
    made = scheme("homomorphic", 0.01, noise="gaussian", sigma_client=5.0)
    return price(a_plan(scheme=made, rounds=T, **changes))


def test_a_ledger_adds_up_to_the_statement() -> None:
    for changes in ({}, {"release": "centroid:0.5"}, {"law": LAPLACE}, {"threat": "own-server"}, {"level": "unit"}):
        found = price_of(**changes)
        total = found.account(T, found.releases)
        assert total.by == "clients"
        assert not found.by_sums
        spent = [*found.messages, *([found.release] if found.release else [])]
        pure = total.rho is None or found.plan.scheme.law.pure
        added = math.fsum(c.epsilon if pure else c.rho for c in spent)
        assert added == pytest.approx(total.epsilon_pure if pure else total.rho)
        assert {c.sigma for c in found.messages} == {5.0}
        each = found.spent(T)  # what the ledger of the data has of everybody
        assert each["own-server"].rho == pytest.approx(found.account(T, found.releases, OwnServer()).rho)
        assert all(one.rho is not None for one in each.values())


def test_a_statement_protects_from_everybody_and_a_plan_says_it_again(ragged: Callable[..., Problem]) -> None:
    made = scheme("homomorphic", 0.3, noise="gaussian", sigma_client=5.0)
    alg = GFL(made, step=0.1, sampled=3, clip=Clip("example", 1.0), dropout=0.2, failures=Failures(link=0.2))
    run = confide.simulate(ragged(), RING, alg, rounds=4, privacy=confide.Privacy(epsilon=5.0), progress=False)
    assert not any(a["leak"] for a in run.privacy["statement"]["accounts"])
    assert {a["by"] for a in run.privacy["statement"]["accounts"]} == {"clients"}
    assert "noise on client" in str(run)
    plan = Plan.from_text(run.privacy["ledger"]["plan"])
    assert (
        price(plan).statement().to_dict()
        == priced(confide.Privacy(epsilon=5.0), ragged(), [RING], alg, 4).statement().to_dict()
    )
    assert run.metrics["epsilon"][0, -1] == run.privacy["statement"]["accounts"][0]["epsilon"]


def masked(s: Scheme, **of_sum: Any) -> GFL:
    return GFL(
        s, step=0.1, sampled=4, local_steps=1, batch=1, clip=Clip("example", 1.0), arithmetic="fixed", fraction_bits=16,
        aggregation=Secure(**of_sum),
    )  # fmt: skip


@pytest.mark.parametrize("name", ["homomorphic", "per-link"])
def test_behind_masks_it_is_the_share_of_the_sums_noise(name: str) -> None:
    """One noise with two spellings: the same bits, plan and price."""
    made, problem = scheme(name, 0.1, noise="gaussian"), confide.problems.regression(units=4, clients=6, samples=5)
    said = masked(made.resized(sigma_client=0.4))
    on_psi = 0.4 * math.sqrt(said.sums.parameters.honest_survivors) / 4
    same = masked(made, sigma=on_psi)
    assert said.sums.share == pytest.approx(0.4 / 4)
    runs = [confide.simulate(problem, RING, alg, rounds=3, progress=False) for alg in (said, same)]
    assert np.array_equal(runs[0].models, runs[1].models)
    prices = [priced(confide.Privacy(), problem, [RING], alg, 3) for alg in (said, same)]
    assert prices[0].plan.secure == prices[1].plan.secure
    assert prices[0].plan.scheme.sigma_client == 0.0
    assert prices[0].statement().to_dict() == prices[1].statement().to_dict()
    if name == "homomorphic":
        assert prices[0].plan.hash == prices[1].plan.hash


def test_a_deployment_takes_it_inside_its_sums() -> None:
    problem = {"units": 3, "clients": 6, "samples": 5}
    algorithm = {"sampled": 4, "clip": "example", "bound": 1.0, "arithmetic": "fixed", "fraction_bits": 20, "batch": 2}
    tree = {"rounds": 3, "graph": {"topology": "ring"}, "problem": problem, "algorithm": algorithm}
    tree |= {"scheme": {"sigma": 1.0, "noise": "gaussian", "sigma_client": 2.0}, "privacy": {"threat": "own-server"}}
    plan = deployed(parse(tree, ["algorithm.aggregation='secure'"]).build())
    assert plan.secure is not None
    assert plan.secure.share == pytest.approx(2.0 / 4)
    assert agreed(plan).by_sums
    with pytest.raises(InputError) as refused:
        parse(tree).build()
    assert refused.value.field == "scheme.sigma_client"


@pytest.mark.parametrize(
    ("made", "field"),
    [
        (lambda: masked(scheme("homomorphic", 0.1, noise="gaussian", sigma_client=0.4), sigma=0.1), "secure.sigma"),
        (lambda: masked(scheme("homomorphic", 0.1, noise="laplace", sigma_client=0.4)), "scheme.noise"),
        (
            lambda: replace(masked(scheme("shared", 0.1, noise="gaussian", sigma_client=0.4)), aggregation=None),
            "scheme.sigma_client",
        ),
        (
            lambda: replace(
                priced(confide.Privacy(unprotected=True), confide.problems.regression(units=4, clients=6), [RING],
                       masked(scheme("shared", 0.1, noise="gaussian")), 3).plan,
                scheme=replace(scheme("shared", 0.1, noise="gaussian", sigma_client=0.4), law="discrete-gaussian"),
            ),
            "scheme.sigma_client",
        ),
    ],
    ids=["twice", "laplace behind masks", "fixed point in clear", "twice in a plan"],
)  # fmt: skip
def test_what_is_refused(made: Callable[[], object], field: str) -> None:
    with pytest.raises(InputError) as refused:
        made()
    assert refused.value.field == field
