"""Attacks on a price: of few publications and a release, of a run that ends early, of data that break a proof."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from builders import a_deployed_plan, a_plan, changed
from confide.attacks.audit import audit
from confide.base.errors import InputError
from confide.engines.driver import simulate
from confide.graph import Graph
from confide.plans import words
from confide.plans.config import load
from confide.plans.plan import Plan
from confide.privacy.asked import price_config
from confide.privacy.bundle import generate_key, load_key, make_bundle
from confide.privacy.ledger import Cost, Event, dataset_id, write_events
from confide.privacy.price import agreed, price
from confide.privacy.spent import so_far
from confide.rounds.arithmetic import on_grid
from confide.rounds.schemes import Noise, Place, Scheme, scheme

ROUNDS = 20


def two_targets() -> Plan:
    """Of whom one is the worst early and the other late.

    Rounds may be skipped, so that a release follows few publications. The ends of a path keep most of their deviation,
    which their models tell at once; its middle sends most copies, which tell more once there are many.
    """
    return a_deployed_plan(
        graph=on_grid(Graph.parse("path:4", weights="metropolis")), rounds=ROUNDS, bound=0.3, step=0.3,
        scheme=scheme("per-link", sigma=2.0, noise="gaussian"), proof=words.proof("convex-glm:0.2"),
        release=words.release("centroid:0.1"),
    )  # fmt: skip


@pytest.mark.parametrize("published", [1, 3, 6, ROUNDS])
def test_a_release_after_few_publications_is_paid_in_full(published: int) -> None:
    p = agreed(two_targets())
    true = p.account(published, 1).rho
    paid = sum(cost.rho for cost in p.messages[:published]) + p.release_after(published).rho
    assert paid == pytest.approx(true, rel=1e-9)
    [shown] = [a for a in so_far(p, published, 1, 0.0).accounts if a.threat == "links"]
    assert shown.rho == pytest.approx(true, rel=1e-9)
    assert shown.epsilon >= p.account(published, 1).epsilon * (1 - 1e-9)


def test_the_price_of_the_whole_plan_would_be_too_small() -> None:
    """Else the test above shows nothing."""
    p = agreed(two_targets())
    found = [p.account(j, 1).rho / (sum(c.rho for c in p.messages[:j]) + p.release.rho) for j in range(1, ROUNDS + 1)]
    assert max(found) > 1.05


def test_a_bundle_refuses_a_release_at_the_price_of_more_rounds(tmp_path: Path) -> None:
    p = agreed(two_targets())
    generate_key(tmp_path / "key")

    def signed(name: str, cost: Cost | None) -> str:
        events = [Event(p.plan.hash, "message", i, 0, p.messages[i - 1]) for i in range(1, 7)]
        events.append(Event(p.plan.hash, "release", ROUNDS, 0, cost))
        write_events(tmp_path / name, dataset_id("d"), p.plan, events)
        return make_bundle(p.plan, tmp_path / name, {}, {}, load_key(tmp_path / "key"))

    assert signed("true", p.release_after(6))
    with pytest.raises(InputError, match=r"a release of unit 0: (rho|sensitivity)"):
        signed("false", p.release)


@pytest.mark.parametrize("name", ["per-link", "own-clean"])
def test_a_run_with_a_budget_may_end_after_any_round(name: str) -> None:
    """Ctrl-C ends it, and the release is made all the same.

    Where graphs take turns, fewer rounds may cost more: a release tells of what is kept, 3/4 of the deviation by the
    leaf of a star, 1/4 in the complete graph.
    """
    graphs = [Graph.parse(shape, weights="metropolis") for shape in ("star:4", "complete:4")]
    made = scheme(name, sigma=20.0, noise="gaussian")
    level, release = words.Level.UNIT, words.release("centroid:0.2")
    plan = a_plan(graph=graphs, rounds=9, scheme=made, level=level, release=release, step=0.2)
    each = [price(plan).account(j, 1).epsilon or math.inf for j in range(1, 10)]
    assert each[1] < 0.6 * each[0]  # else nothing is shown
    for limit in (each[0] * 1.01, each[2] * 1.01, each[4] * 1.001):
        p = price(changed(plan, epsilon=limit))
        allowed = p.affordable(9)
        assert allowed < 9
        assert max(each[:allowed]) <= limit < max(each[: allowed + 1])
    with pytest.raises(InputError, match="does not pay for a single round"):
        price(changed(plan, epsilon=each[1] * 1.1)).affordable(9)


def test_of_two_targets_one_leaks() -> None:
    """Whose draws nobody hears. The worst of both is a leak, whatever the other one costs."""

    def deaf(g: Graph) -> np.ndarray:
        return np.array([[float(p > 0)] * g.P for p in range(g.P)])

    made = Scheme("deaf", "gaussian", (Noise(Place.SERVER, 0.5),), receivers=deaf)
    p = price(a_plan(graph=Graph.parse("path:4"), scheme=made, level=words.Level.UNIT, rounds=3))
    assert p.account(3).leak
    assert {cost.rho for cost in p.messages} == {None}


@pytest.mark.parametrize("rounds", [0, 101])
def test_rounds_that_the_plan_does_not_have_cost_nothing_known(rounds: int) -> None:
    p = price(a_plan(level=words.Level.UNIT, release=words.release("centroid:1")))
    with pytest.raises(InputError, match="rounds"):
        p.account(rounds, 1)


DATA = """
rounds = 5
repeats = 1
problem = {units = 3, clients = 6, samples = 20}
graph = {topology = "ring"}
algorithm = {sampled = 3, local_steps = 1, batch = 4, step = 0.05, clip = "example", bound = 1.0, replacement = false}
scheme = {name = "homomorphic", noise = "gaussian", sigma = 1.0}
privacy = {proof = "convex-glm:0", smoothness = 0.3}
"""


def test_data_that_break_a_declaration_have_no_epsilon(tmp_path: Path) -> None:
    """Neither from the run, nor from who prices its config or attacks it."""
    path = tmp_path / "run.toml"
    path.write_text(DATA)
    parsed = load(path)
    x = parsed.build()
    for ask in (
        lambda: simulate(x.problem, x.graph, x.algorithm, rounds=x.rounds, privacy=x.privacy),
        lambda: price_config(path),
        lambda: audit(parsed),
    ):
        with pytest.raises(InputError, match="is not true of sample"):
            ask()
