"""Where a model begins: by digest and size in the plan, the same in a simulation and a deployment, bit for bit."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import confide
from confide.base.errors import InputError
from confide.plans.build import of_deployment, of_model, of_run, start_of
from confide.plans.plan import NETWORK, Model, Plan, Start
from confide.privacy import deviation
from confide.privacy.price import price
from confide.problems import start
from confide.problems.networks import tensors
from confide.problems.problem import Problem
from confide.rounds.reference import prepare
from confide.testing import forged_units, rehearse
from numpy_network import NumpyNetwork
from same_network import C, F

GRAPH = confide.Graph.path(2)
FLOATS = {"scheme": confide.scheme("shared", 0.5, noise="gaussian"), "step": 0.5, "sampled": 2, "batch": 2}
SETTINGS: dict[str, Any] = FLOATS | {"arithmetic": "fixed", "local_steps": 2, "replacement": False}
PRIVACY = confide.Privacy(unprotected=True)


def problem(network: NumpyNetwork, clients: int = 3) -> Problem:
    draws = np.random.default_rng(0)
    rows = [[(draws.normal(size=(6, F)), draws.integers(0, C, 6)) for _ in range(clients)] for _ in range(2)]
    return Problem(confide.Federation.from_clients(rows), network, private=False)  # type: ignore[arg-type]


def plans(network: NumpyNetwork, clip: str = "example") -> tuple[Plan, Plan]:
    """Of a simulation and of its deployment."""
    p, algorithm = problem(network), confide.GFL(**SETTINGS, clip=confide.Clip(clip, 1.0))
    simulated = of_run(p, [GRAPH], algorithm, 4, 0, PRIVACY)
    units, model = forged_units(2, 3), simulated.algorithm.model
    return simulated, of_deployment(units, [GRAPH], algorithm, model, 4, 0, PRIVACY, tick=10.0, adapt=10.0)


def test_a_plan_from_zero_has_the_text_that_it_ever_had() -> None:
    """So that stores and ledgers of plans that are older than initial weights are still those of these plans."""
    algorithm = confide.GFL(**FLOATS, clip=confide.Clip("update", 1.0))
    zero = of_run(confide.problems.regression(2, 3, 5), [GRAPH], algorithm, 4, 0, PRIVACY)
    assert "start" not in json.loads(zero.text)["algorithm"]["model"]
    assert Plan.from_text(zero.text) == zero
    told = json.loads(zero.text)
    told["algorithm"]["model"]["start"] = None
    with pytest.raises(InputError, match="is not the text that confide writes"):
        Plan.from_text(json.dumps(told, sort_keys=True, separators=(",", ":")))


def test_another_start_is_another_plan() -> None:
    simulated, deployed = plans(NumpyNetwork())
    assert Plan.from_text(simulated.text) == simulated
    begin = simulated.algorithm.model.start
    assert begin is not None
    assert begin == deployed.algorithm.model.start == start_of(NumpyNetwork())
    assert begin.digest == tensors.digest(NumpyNetwork().initial)
    assert begin.largest == np.abs(NumpyNetwork().start()).max()
    assert (begin.frozen, simulated.algorithm.model.kind) == ("", NETWORK)
    assert start_of(NumpyNetwork(frozen=True)) == replace(
        begin, frozen=tensors.digest(NumpyNetwork(frozen=True).frozen)
    )
    other, _ = plans(NumpyNetwork(seed=1))
    assert [line.partition(":")[0] for line in simulated.diff(other)] == [
        "algorithm.model.start.digest",
        "algorithm.model.start.largest",
    ]


@pytest.mark.parametrize(("name", "value"), [("digest", "x"), ("digest", ""), ("frozen", "y"), ("largest", -1.0)])
def test_a_start_that_is_none(name: str, value: object) -> None:
    given = {"digest": "0" * 64, "largest": 1.0} | {name: value}
    with pytest.raises(InputError, match=f"algorithm.model.start.{name}"):
        Start(**given)  # type: ignore[arg-type]


def test_an_optimiser_is_a_step_of_ones_own() -> None:
    length = NumpyNetwork().dimension(F)
    assert of_model(NumpyNetwork(rho=0.1), length, sgd=True) == Model(
        NETWORK, length, 0.1, start=start_of(NumpyNetwork())
    )
    own = plans(NumpyNetwork(optimizer=0.1, rho=0.1), "update")[0].algorithm.model
    assert (own.kind, own.built_in, own.ridge, own.start) == ("own", False, 0.0, start_of(NumpyNetwork()))


def test_initial_weights_of_other_models() -> None:
    class Elsewhere(confide.models.Linear):
        def start(self) -> np.ndarray[Any, Any]:
            return np.array([0.0, -3.0])

    found = start_of(Elsewhere())
    assert found == Start(tensors.digest({"w": np.array([0.0, -3.0])}), 3.0)
    assert start_of(confide.models.Linear()) is None


def test_the_range_of_the_states_counts_from_there() -> None:
    simulated, _ = plans(NumpyNetwork())
    begin = simulated.algorithm.model.start
    assert begin is not None
    grid = deviation.arithmetic(simulated)
    assert grid is not None
    model = replace(simulated.algorithm.model, start=None)
    zero = replace(simulated, algorithm=replace(simulated.algorithm, model=model))
    more = deviation.largest(simulated, grid) - deviation.largest(zero, grid)
    assert begin.largest <= more <= begin.largest + grid.quantum
    far = replace(simulated.algorithm.model, start=replace(begin, largest=2.0**40))
    with pytest.raises(InputError, match="overflow 64-bit states"):
        price(replace(simulated, algorithm=replace(simulated.algorithm, model=far))).statement()


@pytest.mark.parametrize("network", [NumpyNetwork(), NumpyNetwork(rho=0.05), NumpyNetwork(optimizer=0.2)])
def test_a_deployment_is_the_simulation(network: NumpyNetwork) -> None:
    """The machines of a deployment in a box and the reference, bit for bit, and at one price."""
    clip = "example" if network.optimizer is None else "update"
    simulated, deployed = plans(network, clip)
    same = replace(deployed, units=simulated.units, deployment=None)
    assert simulated.diff(same) == []
    p, algorithm = problem(network), confide.GFL(**SETTINGS, clip=confide.Clip(clip, 1.0))
    played = rehearse(deployed, p)
    assert played.failed == 0
    reference = prepare(p, [GRAPH], algorithm, 4, 0)(0)
    w = reference.start(np.tile(p.start, (2, 1)))
    for i in range(1, 5):
        w = reference.round(i, w).w
    assert np.array_equal(played.models, reference.arithmetic.value(w))
    moved = np.linalg.norm(played.models - p.start)
    assert moved > 0.0
    assert price(simulated).statement().accounts == price(same).statement().accounts


def test_a_rehearsal_begins_where_the_plan_does() -> None:
    _, deployed = plans(NumpyNetwork())
    with pytest.raises(InputError, match="begins elsewhere than the plan"):
        rehearse(deployed, problem(NumpyNetwork(seed=1)))
    _, own = plans(NumpyNetwork(optimizer=0.2), "update")
    with pytest.raises(InputError, match="only a problem brings"):
        rehearse(own, train="operator:setitem")


def test_tensors_are_one_vector_in_the_order_of_their_names() -> None:
    network = NumpyNetwork()
    assert np.array_equal(start.flat(start.tensors(network)), network.start())
