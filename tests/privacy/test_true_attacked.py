"""What fresh attackers found in the mended code: numbers that another door printed smaller than the truth."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import builders
import confide
from builders import changed
from confide.base.errors import InputError
from confide.laws.conversion import MANY_DRAWS, zcdp_epsilon
from confide.plans.config import parse
from confide.plans.plan import Plan
from confide.plans.privacy import Budget
from confide.privacy.accountant import account
from confide.privacy.bundle import _statement
from confide.privacy.ledger import Book, Cost, Event, Header, Part, Promise, dataset_id, paid_by, write_events
from confide.privacy.paid import Paid, Terms
from confide.privacy.price import agreed
from confide.privacy.sensitivity import Sensitivity
from confide.privacy.spent import allowance, status_of
from confide.problems.features import MISSING, words


def deployed(name: str = "shared", **privacy: Any) -> Plan:
    config = parse(
        {
            "rounds": 8,
            "graph": {"topology": "ring"},
            "problem": {"name": "regression", "units": 4, "clients": 6, "samples": 20, "features": 2},
            "algorithm": {"step": 0.1, "sampled": 5, "local_steps": 1, "batch": 5, "clip": "example", "bound": 1.0,
                          "arithmetic": "fixed", "aggregation": "secure"},
            "scheme": {"name": name, "noise": "gaussian", "sigma": 3.0},
            "privacy": privacy,
        }
    )  # fmt: skip
    return builders.deployed(config.build())


def book(law: str, rho: float) -> Book:
    event = Event("0" * 64, "message", 1, 0, Cost(rho, None, 1.0, 1.0, law))
    return Book(
        "x", (Part(Header("0" * 64, Promise(Terms.parse("client", "replace"), "links")), (event,)),), ("0" * 64,)
    )


def test_after_a_release_without_a_price_the_running_number_is_none() -> None:
    """The row about links without the release stood in for the one with it."""
    prices = agreed(deployed("homomorphic", level="unit", release="centroid:1e-9", unprotected=True))
    assert prices.release is not None
    assert prices.release.rho is None
    assert status_of(prices, 8, 0, 0.0)["epsilon"] is not None
    assert status_of(prices, 8, 1, 0.0)["epsilon"] is None


def test_a_ledger_of_discrete_noise_pays_for_its_sampler() -> None:
    """108.68 was printed where the plan's own statement says that no epsilon holds."""
    assert paid_by([book("discrete-gaussian", 0.5)]).at(1e-5) == pytest.approx(zcdp_epsilon(0.5, 1e-5))
    assert paid_by([book("discrete-gaussian", 60.0)]).at(1e-5) is None
    assert paid_by([book("gaussian", 60.0)]).at(1e-5) is not None


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": 1e-9},
        {"rho": 1e-9},
        {"mu_gdp": 1e-9},
        {"success_at_1_percent": 0.01},
        {"assumptions": []},
        {"exact": True},
        {"conversion": "magic"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_fact_of_a_stated_account_is_compared(change: dict[str, Any]) -> None:
    true = agreed(deployed()).statement().to_dict()
    empty = replace(book("gaussian", 0.5), runs=())
    assert _statement(true | {"totals": []}, empty, true).ok
    false = true | {"accounts": [true["accounts"][0] | change, *true["accounts"][1:]], "totals": []}
    assert _statement(false, empty, true).ok is False
    assert _statement(true | {"totals": [], "epsilon": 1e-9}, empty, true).ok is False
    assert _statement(true | {"totals": [], "refused": [{"threat": "x", "reason": "y"}]}, empty, true).ok is False
    assert _statement({"text": "epsilon 0.001 against everybody", "totals": []}, empty, true).ok is None


def test_a_deployed_plan_has_one_graph_and_declared_data() -> None:
    plan = deployed()
    with pytest.raises(InputError, match=r"algorithm\.model\.undeclared = 'x'"):
        changed(plan, undeclared=("x",))
    with pytest.raises(InputError, match=r"graph\.topology = 2: a deployment has one graph"):
        changed(plan, graph=plan.graph.graphs * 2)


def test_one_missing_cell_does_not_change_what_others_words_are() -> None:
    """A Parquet column of whole numbers becomes one of floats as soon as one value is missing: 33.1 was attained."""
    whole, missing = pl.DataFrame({"c": [1, 2, 1]}), pl.DataFrame({"c": [None, 2.0, 1.0]})
    assert words(whole, "c", "x").to_list() == ["1", "2", "1"]
    assert words(missing, "c", "x").to_list() == [MISSING, "2", "1"]
    assert words(pl.DataFrame({"c": [1.5, 1e20, -3.0]}), "c", "x").to_list()[::2] == ["1.5", "-3"]


def test_runs_that_share_a_seed_have_no_sum() -> None:
    """Twice the one less the other is a model without noise."""

    def named(run: str, plan: str) -> Book:
        made = book("gaussian", 0.1)
        (part,) = made.runs
        events = tuple(replace(e, plan=plan * 64) for e in part.events)
        return replace(made, runs=(Part(replace(part.header, run=run), events),))

    assert paid_by([named("seed 0", "a"), named("seed 0", "b")]).at(1e-5) is None
    for other in (named("seed 1", "b"), named("seed 0", "a"), named("6f", "b")):
        assert paid_by([named("seed 0", "a"), other]).at(1e-5) is not None


def test_the_last_epsilon_of_a_run_counts_its_release() -> None:
    problem = confide.problems.regression(units=4, clients=5, samples=5, seed=1)
    noise, clip = confide.scheme("homomorphic", 30.0, noise="gaussian"), confide.Clip("example", bound=1.0)
    algorithm = confide.GFL(scheme=noise, step=0.1, sampled=5, local_steps=1, clip=clip)
    privacy = confide.Privacy(level="unit", threat="neighbours", release="centroid:0.5")
    run = confide.simulate(problem, confide.Graph.complete(4), algorithm, rounds=20, privacy=privacy)
    assert run.privacy is not None
    rows = {a["threat"]: a["epsilon"] for a in run.privacy["statement"]["accounts"]}
    assert run.final["epsilon"] == pytest.approx(rows["neighbours"])


def test_a_centre_is_among_the_assumptions() -> None:
    unit = Sensitivity(0.1, 1.0, level="unit")
    found = account(confide.scheme("central", 1.0, noise="gaussian"), confide.Graph.ring(4), unit, rounds=1)
    assert any("trusted centre" in x for x in found.assumptions)


@pytest.mark.parametrize(
    ("changes", "exact"),
    [
        ({"level": "unit"}, True),
        ({"sampled": 5, "clients": 5}, True),
        ({"sampled": 5, "clients": 6}, False),  # who was drawn is hidden
        ({"sampled": 5, "clients": 5, "local_steps": 3}, False),  # a gradient may vanish on the way
        ({"sampled": 5, "clients": 5, "level": "example", "batch": 4}, False),  # it is not in every batch
    ],
)
def test_what_no_data_attain_is_not_called_exact(changes: dict[str, Any], exact: bool) -> None:
    s = Sensitivity(**({"step": 0.1, "bound": 1.0} | changes))
    noise = confide.scheme("shared", 1.0, noise="gaussian")
    assert account(noise, confide.Graph.ring(4), s, rounds=2).exact is exact


def test_a_budget_in_epsilon_pays_for_the_sampler_too(tmp_path: Path) -> None:
    """Of a bundle, and of a server that earlier ledgers have cost something."""
    assert Paid(60.0, None).used(Budget(epsilon=200.0)) < 200.0  # continuous noise
    assert Paid(60.0, None, draws=MANY_DRAWS).used(Budget(epsilon=200.0)) == math.inf
    assert zcdp_epsilon(60.0, 1e-5) < 200.0
    for budget, rho, paid in (({"rho": 70.0}, 60.0, 8), ({"epsilon": 200.0}, 0.5, 8), ({"epsilon": 200.0}, 60.0, 0)):
        price = agreed(deployed(**budget))
        (event,) = book("discrete-gaussian", rho).events
        earlier = tmp_path / f"{budget}{rho}"
        write_events(earlier, dataset_id("x"), price.plan, [replace(event, plan=price.plan.hash)])
        assert allowance(price, "x", [earlier]).publications == paid
