"""Tables of a plan that contradict each other are refused by the name of the key, of a simulation and a deployment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from builders import a_deployed_plan, a_plan, changed, forged_units, key, units
from confide.base.errors import InputError
from confide.graph import Graph
from confide.plans import checks
from confide.plans.plan import Clients, Plan, SecureSum, Unit
from confide.rounds.algorithm import Failures
from confide.rounds.arithmetic import on_grid
from confide.rounds.schemes import scheme
from confide.secure.parameters import Parameters

SUMS = SecureSum(Parameters(clients=3, degree=2, threshold=2, quorum=2, corrupted=0), sigma=0.01)
DISCRETE = {"law": "discrete-gaussian"}


def fixed(**changes: Any) -> Plan:
    """A simulated plan in fixed point."""
    return a_plan(**{"graph": on_grid(Graph.ring(4)), "fraction_bits": 24, "law": "discrete-gaussian"} | changes)


def discrete(name: str, sigma: float = 0.0, **sizes: float) -> Any:
    made = scheme(name, sigma, **sizes)
    return replace(made, law=made.law.discrete)


def with_unit(p: int, **fields: Any) -> tuple[Unit, ...]:
    made = list(a_deployed_plan().units)
    made[p] = replace(made[p], **fields)
    return tuple(made)


def with_client(p: int, k: int, **fields: Any) -> tuple[Unit, ...]:
    clients = list(a_deployed_plan().units[p].clients)
    clients[k] = replace(clients[k], **fields)
    return with_unit(p, clients=tuple(clients))


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"protocol": 3}, "deployment.protocol", "this confide speaks 2"),
        ({"start": 0.0}, "deployment.clocks.begin", "must say when round 1 opens"),
        ({"window": 1}, "deployment.window", "between 2 and 64"),
        ({"window": 65}, "deployment.window", "between 2 and 64"),
        ({"begin": -1.0}, "deployment.clocks.begin", "at least 0"),
        ({"adapt": 0.0}, "deployment.clocks.adapt", "positive"),
        ({"tick": 61.0}, "deployment.clocks.tick", "must not exceed adapt, which is 60 s"),
        ({"tick": -1.0}, "deployment.clocks.tick", "positive"),
        ({"neighbours": 0.0}, "deployment.clocks.neighbours", "positive"),
        ({"drain": float("inf")}, "deployment.clocks.drain", "finite"),
        ({"model": "deep"}, "algorithm.model.kind", "linear"),
        ({"ridge": -0.1}, "algorithm.model.ridge", "at least 0"),
        ({"units": with_unit(0, name="")}, "units[0].name", "1 to 200"),
        ({"units": with_unit(0, name="a\nb")}, "units[0].name", "printable"),
        ({"units": with_unit(0, name="a" * 201)}, "units[0].name", "1 to 200"),
        ({"units": with_unit(1, identity="ab")}, "units[1].identity", "64 small hex"),
        ({"units": with_unit(1, identity=key(11).replace("b", "B"))}, "units[1].identity", "64 small hex"),
        ({"units": with_unit(1, key_agreement="")}, "units[1].key_agreement", "64 small hex"),
        ({"units": with_unit(2, authority="x")}, "units[2].authority", "64 small hex"),
        ({"units": with_client(2, 1, identity="")}, "units[2].clients[1].identity", "64 small hex"),
        ({"units": with_client(2, 1, count=2)}, "units[2].clients[1].count", "every client has its own key"),
        ({"units": with_unit(3, name="Klinik 0")}, "units[3].name", r"units\[0\].name too"),
        ({"units": with_unit(3, identity=key(0))}, "units[3].identity", r"units\[0\].identity too"),
        ({"units": with_client(3, 0, identity=key(0))}, "units[3].clients[0].identity", r"units\[0\].identity too"),
        (
            {"units": with_client(3, 0, identity=key(110))},
            "units[3].clients[0].identity",
            r"units\[1\].clients\[0\].identity too",
        ),
        ({"units": with_unit(3, key_agreement=key(101))}, "units[3].key_agreement", r"units\[1\].key_agreement too"),
        ({"units": with_unit(3, clients=())}, "algorithm.sampled", "unit 3 has only 0 clients"),
        ({"units": ()}, "units", "4 servers, one for each unit"),
        ({"scheme": discrete("central", 0.3)}, "scheme.name", "send each other nothing"),
        ({"units": units(forged_units([3] * 5))}, "units", "4 servers, one for each unit"),
    ],
)
def test_a_wrong_entry_of_a_deployment_is_refused_by_name(changes: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as refused:
        a_deployed_plan(**changes)
    assert refused.value.field == field


def test_what_is_no_whole_number_is_refused_too() -> None:
    for wrong, field in (({"local_steps": 0}, "local_steps"), ({"batch": 2.5}, "batch"), ({"count": True}, "count")):
        with pytest.raises(InputError) as refused:
            with_client(2, 1, **wrong)
        assert refused.value.field == f"units.clients.{field}"


def test_a_roster_beyond_every_purpose_is_refused() -> None:
    one = Clients(1, 1, identity=key(1))
    with pytest.raises(InputError, match="at most 1000000 clients"):
        a_deployed_plan(units=with_unit(2, clients=(one,) * (checks.LARGEST_ROSTER - 5)))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"graph": (on_grid(Graph.ring(4)), on_grid(Graph.path(4)))}, "graph.topology"),
        ({"failures": Failures(link=0.1)}, "graph.link_failure"),
        ({"dropout": 0.1}, "algorithm.dropout"),
        ({"fraction_bits": None, "law": "gaussian"}, "algorithm.arithmetic"),
        ({"undeclared": ("scaling was computed",)}, "algorithm.model.undeclared"),
        ({"model": "own"}, "algorithm.clip"),
        ({"release": "consensus:2"}, "privacy.release"),
        ({"scheme": discrete("local-only")}, "scheme.name"),
        ({"scheme": discrete("per-link", 0.3, sigma_client=0.1)}, "scheme.sigma_client"),
        ({"units": with_unit(0, name="")}, "units[0].name"),
    ],
)
def test_what_a_deployment_alone_refuses(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as refused:
        a_deployed_plan(**changes)
    assert refused.value.field == field
    a_deployed_plan(**changes, deployment=None)  # as a simulation it is a plan


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"graph": Graph.ring(4, weights="metropolis")}, "graph.graphs.edge_weights[0]"),
        ({"law": "gaussian"}, "scheme.law"),
        ({"scheme": scheme("shared", 0.3), "law": "laplace"}, "scheme.law"),
        ({"scheme": scheme("pairwise", 0.0, sigma_pair=0.3), "law": "laplace"}, "scheme.law"),
        ({"fraction_bits": None}, "scheme.law"),
        ({"secure": SUMS, "sampled": 2}, "secure.parameters.clients"),
        ({"secure": SUMS, "fraction_bits": None, "law": "gaussian"}, "algorithm.arithmetic"),
        ({"secure": SUMS, "bound": 2.0**20}, "algorithm.fraction_bits"),
    ],
)
def test_fixed_point_is_the_same_for_both_doors(changes: dict[str, Any], field: str) -> None:
    for door in (fixed, a_deployed_plan):
        with pytest.raises(InputError) as refused:
            door(**{"sampled": 3} | changes)
        assert refused.value.field == field


def test_a_weight_off_the_grid_is_named() -> None:
    ring = on_grid(Graph.ring(4))
    own = ring.own_weights + 2.0**-40 * (np.arange(4) == 3)
    moved = Graph(ring.edges, ring.edge_weights, own, "given", "x")
    with pytest.raises(InputError, match=r"must be a multiple of 2\^-16") as refused:
        a_deployed_plan(graph=moved)
    assert refused.value.field == "graph.graphs.own_weights[3]"


def test_a_sum_that_could_wrap_is_refused() -> None:
    fixed(sampled=3, secure=SUMS, bound=8.0)
    for changes in ({"bound": 2.0**20}, {"secure": replace(SUMS, sigma=1e4)}):
        with pytest.raises(InputError):
            fixed(**{"sampled": 3, "secure": SUMS} | changes)
        fixed(**{"sampled": 3, "secure": replace(changes.get("secure", SUMS), ring_bits=64)} | {
            name: x for name, x in changes.items() if name != "secure"
        })  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"ring_bits": 16}, "secure.ring_bits"),
        ({"ring_bits": 32.5}, "secure.ring_bits"),
        ({"sigma": -0.1}, "secure.sigma"),
        ({"sigma": float("nan")}, "secure.sigma"),
    ],
)
def test_secure_sums_are_refused_by_name(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as refused:
        replace(SUMS, **wrong)
    assert refused.value.field == field


@pytest.mark.parametrize("wrong", [{"server": "kind"}, {"threshold": 0}, {"quorum": 1}, {"corrupted": -1}])
def test_parameters_of_a_secure_sum_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError) as refused:
        replace(SUMS.parameters, **wrong)
    assert refused.value.field == next(iter(wrong))


def test_what_a_deployment_may_be() -> None:
    a_deployed_plan(scheme=scheme("none"))  # without noise the law means nothing
    a_deployed_plan(secure=SUMS)
    a_deployed_plan(clip="update", model="own", ridge=0.0)
    a_deployed_plan(units=units(forged_units([3, 4, 5, 3]), local_steps=7, batch=2))


def test_simulations_and_deployments_share_everything_but_keys_and_clocks() -> None:
    """The same round, and so the same price: where the tables below differ, `docs/design/plan.md` says why."""
    real = a_deployed_plan(secure=SUMS)
    played = changed(real, deployment=None)
    assert {line.partition(":")[0] for line in real.diff(played)} == {"deployment"}
