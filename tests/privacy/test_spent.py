"""What a unit has spent so far: messages, releases and earlier ledgers, with whose number it is beside it."""

from __future__ import annotations

import pytest

from builders import deployed
from confide.laws.conversion import zcdp_epsilon
from confide.plans.config import parse
from confide.privacy.price import Price, price
from confide.privacy.spent import number, promise, so_far, status_of
from confide.privacy.statement import table

CONFIG = {
    "rounds": 6,
    "repeats": 1,
    "graph": {"topology": "path"},
    "problem": {"name": "regression", "units": 2, "clients": 3, "rho": 0.1},
    "algorithm": {"step": 0.1, "sampled": 3, "clip": "example", "bound": 1.0, "arithmetic": "fixed",
                  "aggregation": "secure"},
    "scheme": {"name": "homomorphic", "noise": "gaussian", "sigma": 2.0},
    "privacy": {"proof": "regulariser:0.1", "threat": "neighbours", "release": "centroid:0.5"},
}  # fmt: skip


@pytest.fixture(scope="module")
def prices() -> Price:
    return price(deployed(parse(CONFIG).build()))


def test_messages_alone_have_the_finer_account(prices: Price) -> None:
    for j in range(7):
        assert status_of(prices, j, 0, 0.0)["epsilon"] == prices.after(j)


def test_releases_and_earlier_ledgers_are_included(prices: Price) -> None:
    """Read as a promise, an epsilon of the messages alone is too small as soon as anything else has left."""
    assert prices.release is not None
    messages = sum(cost.rho or 0.0 for cost in prices.messages[:4])
    release = prices.release_after(4).rho or 0.0
    assert release > 0.0
    for releases, earlier in ((1, 0.0), (0, 0.3), (1, 0.3)):
        found = status_of(prices, 4, releases, earlier)
        rho = messages + releases * release + earlier
        assert found["rho"] == pytest.approx(rho)
        assert prices.after(4) < found["epsilon"] <= zcdp_epsilon(rho, 1e-5) * (1 + 1e-8)
    assert status_of(prices, 4, 1, 0.3)["epsilon"] == pytest.approx(zcdp_epsilon(messages + release + 0.3, 1e-5))


def test_all_that_the_plan_allows_costs_no_more_than_it_promises(prices: Price) -> None:
    promised = next(a for a in prices.statement().accounts if a.threat == "neighbours")
    assert status_of(prices, 6, 1, 0.0)["epsilon"] <= (promised.epsilon or 0.0)


def test_whose_number_it_is_stands_beside_it(prices: Price) -> None:
    found = status_of(prices, 4, 1, 0.0)
    assert promise(found) == "against neighbours, client level, replace, delta 1e-05"
    assert found["adversary"].startswith("all neighbours of the server")
    said = "\n".join(table(found["statement"]))
    assert said.startswith("Level client, adjacency replace: all data of one client is replaced by any other.\n")
    assert said.count("NOT PROTECTED") == 2  # own clients and the own server
    own = [a for a in found["statement"]["accounts"] if not a["leak"]]
    assert [(a["threat"], a["epsilon"]) for a in own] == [("neighbours", found["epsilon"])]
    assert number(found["epsilon"]).endswith(")")


def test_what_has_no_bound_has_no_number(prices: Price) -> None:
    """Not even the plan's own: what earlier ledgers spent without a bound stays spent."""
    found = so_far(prices, 4, 0, None).to_dict()
    assert found["refused"] == [{"threat": "neighbours", "reason": "what was spent has no bound"}]
    assert all(a["leak"] for a in found["accounts"])
    assert status_of(prices, 4, 0, None)["epsilon"] is None
    assert number(None) == "no bound"
