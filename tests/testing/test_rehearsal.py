"""`confide.testing` as a user meets it: forged units, a plan rehearsed, what it shows and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from confide import problems
from confide.base.errors import InputError, RunError
from confide.deploy import Plan, agree
from confide.plans.config import parse
from confide.rounds.reference import prepare
from confide.testing import Cut, Rehearsal, Weather, forged_units, rehearse

P, K, ROUNDS = 3, 4, 5
CONFIG: dict[str, Any] = {
    "rounds": ROUNDS,
    "seed": 3,
    "graph": {"topology": "ring"},
    "problem": {"units": P, "clients": K, "samples": 12, "features": 2},
    "algorithm": {"step": 0.1, "sampled": 3, "clip": "update", "bound": 1.0, "arithmetic": "fixed"},
    "scheme": {"name": "shared", "sigma": 0.1, "noise": "gaussian"},
    "privacy": {"unprotected": True},
}
CLOCKS = {"adapt": 10.0, "exchange": 2.0, "drain": 20.0}
PROBLEM = problems.regression(units=P, clients=K, samples=12, features=2, seed=3)
OWN = CONFIG | {"algorithm": CONFIG["algorithm"] | {"local_steps": 1, "batch": 1}}


@pytest.fixture
def plan() -> Plan:
    return agree(CONFIG, forged_units(P, K), **CLOCKS)


def test_a_rehearsal_is_the_reference(plan: Plan) -> None:
    e = parse(CONFIG).build()
    r = prepare(e.problem, e.graph, e.algorithm, ROUNDS, e.seed)(0)
    w = r.start(np.zeros((P, 2)))
    for i in range(1, ROUNDS + 1):
        w = r.round(i, w).w
    found = rehearse(plan, PROBLEM, seed=3)
    assert found.finished
    assert found.failed == 0
    assert np.array_equal(found.models, r.arithmetic.value(w))
    for ledger in found.ledgers:
        assert [(event.kind, event.round) for event in ledger] == [("message", i) for i in range(1, ROUNDS + 1)]
        assert tuple(event.cost for event in ledger) == found.price.messages


def test_step_by_step_under_a_cut(plan: Plan) -> None:
    cuts = tuple(Cut(15.0, 35.0, ("server", a, 0), ("server", b, 0)) for a, b in ((0, 1), (1, 0)))
    box = Rehearsal(plan, PROBLEM, weather=Weather(cuts=cuts), seed=3)
    box.run(until=25.0)
    assert box.network.now == 25.0
    assert not box.finished
    before = box.models
    assert before.any()
    box.run()
    assert box.finished
    assert not np.array_equal(box.models, before)
    assert not np.array_equal(box.models, rehearse(plan, PROBLEM, seed=4).models)


def test_units_differ_in_all_their_keys() -> None:
    units = forged_units(3, [2, 5, 1])
    assert [len(unit.clients) for unit in units] == [2, 5, 1]
    keys = [key for unit in units for key in (unit.identity, *unit.clients)]
    assert len(set(keys)) == len(keys)
    assert units == forged_units(3, [2, 5, 1])
    with pytest.raises(ValueError, match="shorter"):
        forged_units(3, [2, 5])


def test_clients_that_sign_are_forged_too() -> None:
    config = CONFIG | {
        "algorithm": CONFIG["algorithm"] | {"aggregation": "secure", "sampled": 4},
        "secure": {"server": "active", "corrupted": 0.0},
    }
    units = forged_units(P, K)
    assert rehearse(agree(config, units, **CLOCKS), PROBLEM).finished
    swapped = [units[1], units[0], units[2]]
    with pytest.raises(InputError, match="forged_units"):
        rehearse(agree(config, swapped, **CLOCKS), PROBLEM)


TRAIN = """
def steps(w, i, config):
    return config["by"] + 0.0 * w

def sometimes(w, i, config):
    if i == 2:
        raise ValueError
    return 0.0 * w

def never(w, i, config):
    raise ValueError
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    (tmp_path / "rehearsed_training.py").write_text(TRAIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    return agree(OWN, forged_units(P, K), model="own", features=7, **CLOCKS)


def test_a_train_function_of_ones_own(own: Plan) -> None:
    up, down = (
        rehearse(
            own, train="rehearsed_training:steps", train_config=lambda p, k, by=by: {"by": by * (p + k + 1)}
        ).models
        for by in (1e6, -1e6)
    )
    assert up.shape == (P, 7)
    apart = ROUNDS * 2 * CONFIG["algorithm"]["step"] / np.sqrt(7)  # what each was told arrived, and was clipped
    np.testing.assert_allclose(up - down, apart, atol=1e-3)  # with the same noise
    assert rehearse(own, train="rehearsed_training:sometimes").failed == 3 * P  # of those that were drawn
    with pytest.raises(RunError, match="rehearsed_training:never raised ValueError in round 1"):
        rehearse(own, train="rehearsed_training:never")


def test_what_is_refused(plan: Plan) -> None:
    for given in ({}, {"problem": PROBLEM, "train": "a:b"}):
        with pytest.raises(InputError, match="either a problem, or train"):
            rehearse(plan, **given)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="the plan's units have"):
        rehearse(plan, problems.regression(units=P, clients=K + 1, samples=12, features=2))
    with pytest.raises(InputError, match="there is no module"):
        rehearse(plan, train="no_such_module:train")
