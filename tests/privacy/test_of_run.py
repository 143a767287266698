"""An accounted run: it stops before its budget is passed, and its ledger says what every round cost."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from confide.algorithm import GFL
from confide.clipping import Clip
from confide.engines.driver import simulate
from confide.errors import InputError
from confide.graph import Graph
from confide.privacy.accountant import account
from confide.privacy.conversion import rho_epsilon, zcdp_epsilon
from confide.privacy.ledger import all_gaussian, compose, read
from confide.privacy.plan import Plan
from confide.privacy.settings import Privacy
from confide.privacy.sum_noise import SumNoise
from confide.problems import regression
from confide.run import Run
from confide.schemes import scheme
from confide.secure.settings import Secure

SMALL = (0.01, 0.05)  # covariances, so that the declared smoothness is true of the data
PROBLEM = regression(units=4, clients=6, samples=8, covariance=SMALL, seed=2)
GRAPH = Graph.ring(4)
BASE = GFL(
    scheme=scheme("homomorphic", 2.0, noise="gaussian"),
    step=0.3, sampled=3, local_steps=1, batch=4, clip=Clip("example", 1.0),
)  # fmt: skip
PRIVACY = Privacy(proof="convex-glm:0.2", smoothness=2.0)
SECURE = Secure(corrupted=0.0, dropped=0.25, sigma=0.2)
INSIDE = replace(BASE, sampled=5, arithmetic="fixed", fraction_bits=20, aggregation=SECURE)
SERVER = Privacy(threat="own-server")  # no proof is needed: the server sees fresh sums


def run(privacy: Privacy = PRIVACY, algorithm: GFL = BASE, rounds: int = 30) -> Run:
    return simulate(PROBLEM, GRAPH, algorithm, rounds=rounds, repeats=2, privacy=privacy)


def test_the_budget_stops_the_run_before_it_is_passed() -> None:
    free = run()
    whole = free.metrics["epsilon"][0]
    budget = float(whole[19])  # exactly what 20 rounds cost
    stopped = run(replace(PRIVACY, epsilon=budget))
    assert stopped.rounds == 20
    assert any("stopped before round 21 of 30" in note for note in stopped.notes)
    assert np.nanmax(stopped.metrics["epsilon"]) <= budget
    assert run(replace(PRIVACY, epsilon=budget * (1 - 1e-6))).rounds == 19
    shorter = simulate(PROBLEM, GRAPH, BASE, rounds=20, repeats=2)
    assert np.array_equal(stopped.models, shorter.models)  # the model of the last paid round


def test_epsilon_so_far_rises_and_ends_at_the_statement() -> None:
    done = run()
    so_far = done.metrics["epsilon"]
    assert np.all(np.diff(so_far[0]) > 0)
    assert np.array_equal(so_far[0], so_far[1])
    assert done.privacy is not None
    links = done.privacy["statement"]["accounts"][0]
    assert links["threat"] == "links"
    assert so_far[0, -1] == pytest.approx(links["epsilon"], rel=1e-12)


def test_a_budget_that_pays_for_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="does not pay for a single round"):
        run(replace(PRIVACY, epsilon=1e-6))
    with pytest.raises(InputError, match="a leak"):
        run(replace(PRIVACY, epsilon=1.0, release="local"))


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
@pytest.mark.parametrize("release", ["none", "centroid:0.5"])
def test_the_ledger_adds_up_to_the_account(tmp_path: Path, law: str, release: str) -> None:
    T = 30 if law == "gaussian" else 3  # Laplace noise is accounted by convolutions
    algorithm = replace(BASE, scheme=scheme("homomorphic", 2.0, noise=law))
    done = run(replace(PRIVACY, release=release), algorithm, T)
    done.save(tmp_path / "r")
    book = read(tmp_path / "r" / "ledger.jsonl")
    plan = Plan.load(tmp_path / "r" / "plan.json")
    assert len(book.events) == 4 * (T + (release != "none"))
    assert {e.plan for e in book.events} == {plan.hash}
    sensitivity = PRIVACY.sensitivity(PROBLEM, BASE, 0)
    whole = account(algorithm.scheme, GRAPH, sensitivity, rounds=T, release=release)
    for total in compose([book]).values():
        if law == "gaussian":
            assert total.rho == pytest.approx(whole.rho, rel=1e-9)
            assert rho_epsilon(total.rho or 0.0, 1e-5, all_gaussian([book])) == pytest.approx(whole.epsilon, rel=1e-6)
        else:
            assert total.epsilon == pytest.approx(whole.epsilon_pure, rel=1e-9)
    assert Run.load(tmp_path / "r").privacy == json.loads(json.dumps(done.privacy))


def test_what_has_no_bound_does_not_vanish_from_the_ledger(tmp_path: Path) -> None:
    for n, (privacy, algorithm) in enumerate(
        [
            (PRIVACY, replace(BASE, scheme=scheme("none"))),  # a leak
            (Privacy(), BASE),  # refused: carry > 0 without a proof
            (replace(PRIVACY, participation="random:0.5"), BASE),  # no price per round
        ]
    ):
        run(privacy, algorithm, rounds=5).save(tmp_path / str(n))
        totals = compose([read(tmp_path / str(n) / "ledger.jsonl")])
        assert all(t.rho is None and t.epsilon is None and t.events == 5 for t in totals.values())


@pytest.mark.parametrize("release", ["local", "centroid:0"])
def test_a_leaking_release_does_not_vanish_either(tmp_path: Path, release: str) -> None:
    run(replace(PRIVACY, release=release), rounds=5).save(tmp_path / "r")
    book = read(tmp_path / "r" / "ledger.jsonl")
    assert len(book.events) == 4 * 6
    assert all(t.rho is None and t.epsilon is None for t in compose([book]).values())
    shared = replace(BASE, scheme=scheme("shared", 2.0, noise="gaussian"))
    run(replace(PRIVACY, release=release), shared, rounds=5).save(tmp_path / "s")  # nothing new is revealed
    whole = account(shared.scheme, GRAPH, PRIVACY.sensitivity(PROBLEM, shared, 0), rounds=5)
    for total in compose([read(tmp_path / "s" / "ledger.jsonl")]).values():
        assert total.rho == pytest.approx(whole.rho, rel=1e-12)


# ---- noise inside the secure sums


def test_noise_inside_the_sums_gives_the_own_server_a_number() -> None:
    done = run(SERVER, INSIDE, rounds=10)
    assert done.privacy is not None
    said = {a["threat"].partition(":")[0]: a for a in done.privacy["statement"]["accounts"]}
    noise = SumNoise.of(SECURE, 5, 20, PROBLEM.M)
    assert noise.honest == SECURE.parameters(5).quorum
    rho = 10 * (2 * 0.3 / 5) ** 2 / (2 * 0.2**2)
    assert said["own-server"]["rho"] == pytest.approx(rho, rel=1e-6)
    assert said["own-server"]["epsilon"] == pytest.approx(zcdp_epsilon(rho, 1e-5), rel=1e-6)
    assert done.metrics["epsilon"][0, -1] == pytest.approx(said["own-server"]["epsilon"], rel=1e-12)
    assert not any(a["leak"] for a in said.values())
    assert said["own-client"]["rho"] > said["own-server"]["rho"]  # it knows its own share
    silent = run(SERVER, replace(INSIDE, aggregation=replace(SECURE, sigma=0.0)), rounds=3)
    assert silent.privacy is not None
    assert {a["threat"]: a["leak"] for a in silent.privacy["statement"]["accounts"]}["own-server"]


def test_the_noise_of_a_run_is_the_noise_that_is_accounted() -> None:
    """What the server adds to its model beyond the clean updates, all clients present: more shares than counted."""
    quiet, loud = (
        simulate(PROBLEM, Graph.ring(4), replace(INSIDE, aggregation=a, scheme=scheme("none")), rounds=1, repeats=200)
        for a in (replace(SECURE, sigma=0.0), SECURE)
    )
    spread = float(np.std((loud.models - quiet.models).mean(axis=1)))  # the mean over servers: no exchange changes it
    p = SECURE.parameters(5)
    expected = 0.2 * np.sqrt(5 / p.honest_survivors) / 2  # of 4 servers' mean
    assert spread == pytest.approx(expected, rel=0.1)
    assert spread != pytest.approx(expected * 1.5, rel=0.1)
    assert spread != pytest.approx(expected / 1.5, rel=0.1)


@pytest.mark.parametrize("release", ["none", "local", "centroid:0.5"])
def test_the_ledger_of_the_sums_adds_up(tmp_path: Path, release: str) -> None:
    privacy = replace(SERVER, release=release, epsilon=200.0)
    run(privacy, INSIDE, rounds=8).save(tmp_path / "r")
    book, plan = read(tmp_path / "r" / "ledger.jsonl"), Plan.load(tmp_path / "r" / "plan.json")
    whole = account(
        INSIDE.scheme,
        GRAPH,
        SERVER.sensitivity(PROBLEM, INSIDE, 0),
        rounds=8,
        threat="own-server",
        sum_noise=SumNoise.of(SECURE, 5, 20, PROBLEM.M),
    )
    assert len(book.events) == 4 * (8 + (release != "none"))
    assert {e.cost.law for e in book.events if e.kind == "message"} == {"discrete-gaussian"}
    assert {e.cost.sigma for e in book.events if e.kind == "message"} == {0.2}
    for total in compose([book]).values():
        assert total.rho == pytest.approx(whole.rho, rel=1e-9)
        assert rho_epsilon(total.rho or 0.0, 1e-5, all_gaussian([book])) == pytest.approx(whole.epsilon, rel=1e-6)
    p = SECURE.parameters(5)
    assert plan.aggregation == {
        "server": "curious",
        "ring_bits": 32,
        "fraction_bits": 20,
        "threshold": p.threshold,
        "quorum": p.quorum,
        "corrupted": 0,
        "sigma": 0.2,
    }
    assert plan.threat == "own-server"


def test_one_proof_prices_the_rounds_and_the_release(tmp_path: Path) -> None:
    """Messages that are cheap, a release that is dear: together the sums are cheaper, and they price everything."""
    dear = replace(Privacy(level="unit"), release="centroid:0.001")
    loud = replace(INSIDE, scheme=scheme("homomorphic", 500.0, noise="gaussian"))
    run(dear, loud, rounds=5).save(tmp_path / "sum")
    kept = replace(dear, release="centroid:100")
    run(kept, loud, rounds=5).save(tmp_path / "messages")
    s, noise = dear.sensitivity(PROBLEM, loud, 0), SumNoise.of(SECURE, 5, 20, PROBLEM.M)
    for name, privacy, law in (("sum", dear, "discrete-gaussian"), ("messages", kept, "gaussian")):
        whole = account(loud.scheme, GRAPH, s, rounds=5, release=privacy.release, sum_noise=noise)
        assert whole.by == name
        book = read(tmp_path / name / "ledger.jsonl")
        assert {e.cost.law for e in book.events} - {"none"} == {law}
        for total in compose([book]).values():
            assert total.rho == pytest.approx(whole.rho, rel=1e-9)


def test_a_budget_against_the_own_server_stops_the_run() -> None:
    whole = run(SERVER, INSIDE, rounds=10).metrics["epsilon"][0]
    assert run(replace(SERVER, epsilon=float(whole[5])), INSIDE, rounds=10).rounds == 6
    with pytest.raises(InputError, match="does not pay for a single round"):
        run(replace(SERVER, epsilon=1e-3), INSIDE)
    with pytest.raises(InputError, match="a leak"):
        run(replace(SERVER, epsilon=100.0), replace(INSIDE, aggregation=replace(SECURE, sigma=0.0)))


def test_one_data_set_one_name() -> None:
    a, b = run(rounds=3), simulate(PROBLEM, GRAPH, BASE, rounds=3, seed=9, privacy=PRIVACY)
    other = simulate(
        regression(units=4, clients=6, samples=8, covariance=SMALL, seed=3), GRAPH, BASE, rounds=3, privacy=PRIVACY
    )
    ids = [r.privacy["ledger"]["dataset"] for r in (a, b, other) if r.privacy is not None]
    assert ids[0] == ids[1] != ids[2]
    named = run(replace(PRIVACY, dataset="ward 7"), rounds=3)
    assert named.privacy is not None
    assert named.privacy["ledger"]["dataset"] not in ids


def test_graphs_that_take_turns_are_accounted() -> None:
    graphs = [Graph.ring(4), Graph.complete(4)]
    done = simulate(PROBLEM, graphs, BASE, rounds=6, privacy=PRIVACY)
    assert done.privacy is not None
    assert done.privacy["statement"]["accounts"][0]["epsilon"] == pytest.approx(
        account(BASE.scheme, graphs, PRIVACY.sensitivity(PROBLEM, BASE, 0), rounds=6).epsilon
    )
    assert done.privacy["ledger"] is None
