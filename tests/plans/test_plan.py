"""One plan, one text, one hash: round trips to the last bit, and everything else refused by name."""

from __future__ import annotations

import copy
import json
import math
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import a_deployed_plan, a_plan, changed, forged_units, units
from confide.base import canonical
from confide.base.errors import InputError
from confide.graph import Graph
from confide.plans.plan import Clients, Clocks, Deployment, Learning, Model, Network, Plan, SecureSum, Unit
from confide.plans.privacy import Privacy
from confide.plans.text import encoded
from confide.rounds.algorithm import Failures
from confide.rounds.arithmetic import on_grid
from confide.rounds.clipping import Clip
from confide.rounds.schemes import Exchange, Noise, Place, Scheme, scheme
from confide.secure.parameters import Parameters

SUMS = SecureSum(Parameters(clients=3, degree=2, threshold=2, quorum=2, corrupted=0), sigma=0.25)


def plan(**changes: Any) -> Plan:
    return a_plan(**{"local_steps": (1, 10), "proof": "convex-glm:0.2", "ridge": 0.1, "epsilon": 4.0} | changes)


def secure(**changes: Any) -> Plan:
    return a_deployed_plan(**{"secure": SUMS} | changes)


def rewritten(plan: Plan, path: str, value: Any) -> str:
    """The text of a plan with one entry changed, such as units.0.name; None stands for null, and `...` for no key."""
    data = json.loads(plan.text)
    *inner, last = [int(x) if x.isdigit() else x for x in path.split(".")]
    at = data
    for step in inner:
        at = at[step]
    if value is ...:
        del at[last]
    else:
        at[last] = json.loads(canonical.dumps(value))
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


# ---- round trips

positive = st.floats(0.0, exclude_min=True, allow_infinity=False)
share = st.floats(0.0, 1.0)
small = st.floats(0.0, 1e6)  # fits a ring of integers with room
PROOFS = st.one_of(
    st.sampled_from(["none", "public-point"]),
    positive.map(lambda x: f"regulariser:{x!r}"),
    st.floats(0.0, 1e300).map(lambda x: f"convex-glm:{x!r}"),
)
ALONE = st.one_of(st.just("all"), st.integers(1, 2**50).map(lambda n: f"cap:{n}"))
PARTS = ALONE | st.tuples(st.sampled_from(["random", "amplified"]), st.floats(0, 1, exclude_min=True)).map(
    lambda both: f"{both[0]}:{both[1]!r}"
)
THREATS = st.one_of(
    st.sampled_from(["links", "neighbours", "own-client", "own-server"]),
    st.sets(st.integers(0, 3), min_size=1, max_size=3).map(lambda s: "colluders:" + ",".join(map(str, s))),
)
RELEASES = st.sampled_from(["none", "local"]) | st.floats(0.0, 1e300).map(lambda x: f"centroid:{x!r}")


@st.composite
def privacies(draw: Any) -> Privacy:
    level = draw(st.sampled_from(["unit", "client", "example"]))
    budget = draw(st.sampled_from([{}, {"epsilon": draw(positive)}, {"rho": draw(positive)}]))
    return Privacy(
        level=level,
        adjacency=draw(st.sampled_from(["replace", "zero-out"])),
        proof=draw(PROOFS),
        participation=draw(ALONE if level == "unit" else PARTS),
        smoothness=draw(st.none() | positive),
        threat=draw(THREATS),
        release=draw(RELEASES),
        releases=draw(st.integers(1, 2**40)),
        unprotected=draw(st.booleans()),
        delta=draw(st.floats(0, 1, exclude_min=True, exclude_max=True)),
        dataset=draw(st.none() | st.text(max_size=3)),
        **budget,
    )


@st.composite
def schemes(draw: Any, fixed: bool, deployed: bool) -> Scheme:
    if not deployed and draw(st.booleans()):
        taps = st.just([1.0]) if fixed else st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=3)
        rows = tuple(
            Noise(at, draw(small), tuple(draw(taps)))
            for at in draw(st.lists(st.sampled_from([Place.SERVER, Place.LINK, Place.EDGE]), unique=True))
        )
        made = Scheme("somebody's own é", draw(st.sampled_from(["laplace", "gaussian"])), rows, draw(st.none() | share))
    else:
        names = ["none", "homomorphic", "shared", "own-clean", "per-link", "pairwise", "partial:0.5"]
        more = [] if deployed else ["local-only"] if fixed else ["local-only", "central"]
        name = draw(st.sampled_from([*names, *more]))
        law = draw(st.sampled_from(["laplace", "gaussian"]))
        sigma = 0.0 if name in ("none", "local-only") else draw(small)
        made = scheme(name, sigma, noise=law, sigma_pair=draw(small) if name == "pairwise" else 0.0)
    return replace(made, law=made.law.discrete) if fixed else made


@st.composite
def plans(draw: Any) -> Plan:
    """Everything that a plan may be."""
    deployed = draw(st.booleans())
    fixed = deployed or draw(st.booleans())
    kind = draw(st.sampled_from(["linear", "logistic", "own"]))
    clip = "update" if deployed and kind == "own" else draw(st.sampled_from(["example", "update"]))
    bound = draw(st.floats(1e-3, 8.0) if fixed else st.floats(1e-50, 1e300))
    step = draw(st.floats(1e-3, 8.0) if fixed else st.floats(1e-50, 1e300))
    privacy = draw(privacies())
    graphs = [Graph.random(4, seed=draw(st.integers(0, 9))) for _ in range(1 if deployed else draw(st.integers(1, 3)))]
    made = draw(schemes(fixed, deployed))
    failures = (
        Failures()
        if deployed or made.exchange is Exchange.AVERAGE
        else Failures(
            draw(share), draw(share), ((1, 0, 1),) * draw(st.integers(0, 2)), ((3, 2),) * draw(st.integers(0, 2))
        )
    )
    sums = None
    if fixed and draw(st.booleans()):
        parameters = replace(
            SUMS.parameters, server=draw(st.sampled_from(["curious", "active"])), threshold=3, quorum=3
        )
        sums = SecureSum(parameters, 64, draw(st.floats(0.0, 8.0)))
    if deployed:
        adapt = draw(st.floats(1e-3, 1e6))
        clocks = Clocks(
            draw(st.floats(1e-3, 1e10)), adapt, draw(st.floats(1e-4, adapt)), draw(positive), draw(positive)
        )
        names = draw(st.text("aé日 x", max_size=9))
        announced = [one._replace(name=one.name + names) for one in forged_units([3, 4, 3, 5], draw(st.booleans()))]
        roster = units(announced, draw(st.integers(1, 2**40)), draw(st.integers(1, 2**40)))
        deployment: Deployment | None = Deployment(clocks, draw(st.integers(2, 64)))
    else:
        rows = st.builds(Clients, st.integers(1, 2**40), st.integers(1, 2**40), st.integers(3, 2**40))
        roster = tuple(Unit(tuple(draw(st.lists(rows, min_size=1, max_size=3)))) for _ in range(4))
        deployment = None
    return Plan(
        rounds=draw(st.integers(1, 2**40)),
        graph=Network(tuple(map(on_grid, graphs) if fixed else graphs), failures),
        algorithm=Learning(
            Model(
                kind, draw(st.integers(1, 2**40)), draw(st.floats(0.0, 1e300)),
                draw(st.text(max_size=4)) if kind == "own" else "",
                clip == "example" or draw(st.booleans()),
                () if deployed else tuple(draw(st.lists(st.text(max_size=4), max_size=2))),
            ),
            step,
            3,
            Clip(clip, bound, draw(st.sampled_from(["l1", "l2"]))),
            replacement=False if privacy.level == "example" else draw(st.booleans()),
            dropout=0.0 if deployed else draw(share),
            fraction_bits=draw(st.integers(1, 40)) if fixed else None,
        ),
        scheme=made,
        privacy=privacy,
        units=roster,
        secure=sums,
        deployment=deployment,
    )  # fmt: skip


@given(plans())
def test_a_plan_comes_back_from_its_text(a: Plan) -> None:
    b = Plan.from_text(a.text)
    assert b == a
    assert b.text == a.text
    assert b.hash == a.hash == canonical.digest(a.text)
    assert a.diff(b) == []
    assert b.algorithm.step.hex() == a.algorithm.step.hex()
    assert replace(b, graph=a.graph, privacy=a.privacy) == replace(a, graph=b.graph)  # and its tables one by one
    for name in ("algorithm", "scheme", "privacy", "units", "secure", "deployment"):
        assert getattr(b, name) == getattr(a, name)


def test_the_hash_of_a_plan_is_fixed() -> None:
    """A change here makes every deployed node and every old ledger disagree with the new code: raise the version."""
    assert plan().hash == "8f74ff3223de73d7e38d396dc9040f12fe4c4dab68d755adca336e58b8df8d9d"
    assert secure().hash == "1c43fa922ca5b2f716a7bae79a9ceead92dab9c2ce80b0b6e476cccfe2d754f8"


def test_the_graphs_come_back_bit_for_bit() -> None:
    """In their order: graphs that take turns in another order are another plan."""
    graphs = [Graph.random(8, seed=3), Graph.path(8)]
    a = plan(graph=graphs)
    for read, made in zip(Plan.from_text(a.text).graph.graphs, graphs, strict=True):
        assert np.array_equal(read.A, made.A)
        assert np.array_equal(read.edges, made.edges)
    assert a.P == 8
    assert len({a.hash, plan(graph=graphs[::-1]).hash, plan(graph=graphs[0]).hash, plan(graph=graphs[1]).hash}) == 4


def test_a_million_simulated_clients_are_a_few_rows() -> None:
    a = plan(clients=250_000)
    assert sum(unit.size for unit in a.units) == 10**6
    assert len(a.text) < 4000
    assert a.hash != plan(clients=250_001).hash
    assert Plan.from_text(a.text).fewest_clients == 250_000


# ---- what is in the hash


def tables(value: Any, path: str = "") -> Iterator[str]:
    """Every field of a plan's text, without the places in lists."""
    if isinstance(value, list):
        for x in value:
            yield from tables(x, path)
    if not isinstance(value, dict) and path:
        yield path
    if isinstance(value, dict):
        for name, x in value.items():
            yield from tables(x, f"{path}.{name}".removeprefix("."))


OTHER_UNIT = (replace(secure().units[0], name="elsewhere", identity="0" * 64), *secure().units[1:])
CHANGES: list[tuple[Callable[..., Plan], dict[str, Any]]] = [
    (plan, {"rounds": 101}),
    (plan, {"graph": Graph.ring(5)}),
    (plan, {"graph": Graph.ring(4, weights="metropolis")}),
    (plan, {"graph": Graph.path(4)}),
    (plan, {"graph": (Graph.ring(4), Graph.path(4))}),
    (plan, {"failures": Failures(link=0.1)}),
    (plan, {"failures": Failures(unit=0.1)}),
    (plan, {"failures": Failures(links=((1, 0, 1),))}),
    (plan, {"failures": Failures(units=((1, 0),))}),
    (plan, {"model": "logistic"}),
    (plan, {"dim": 4}),
    (plan, {"ridge": math.nextafter(0.1, 1)}),
    (partial(plan, model="own"), {"convex": "Own"}),
    (partial(plan, clip="update"), {"built_in": False}),
    (plan, {"undeclared": ("scaling was computed",)}),
    (plan, {"step": math.nextafter(0.1, 1)}),
    (plan, {"sampled": 6}),
    (plan, {"clip": "update"}),
    (plan, {"bound": 2.0}),
    (plan, {"norm": "l1"}),
    (plan, {"replacement": True}),
    (plan, {"dropout": 0.1}),
    (secure, {"fraction_bits": 23}),
    (plan, {"scheme": scheme("shared", sigma=0.3, noise="gaussian")}),
    (plan, {"scheme": scheme("central", sigma=0.3, noise="gaussian")}),
    (plan, {"scheme": scheme("none", noise="gaussian")}),
    (plan, {"law": "laplace"}),
    (plan, {"sigma": 0.31}),
    (plan, {"scheme": Scheme("homomorphic", "gaussian", (Noise(Place.SERVER, 0.3, (1.0, 0.5)),), 1.0)}),
    (plan, {"scheme": Scheme("homomorphic", "gaussian", (Noise(Place.LINK, 0.3),), 1.0)}),
    (plan, {"scheme": replace(scheme("homomorphic", 0.3, noise="gaussian"), receivers=lambda graph: graph.A)}),
    (plan, {"level": "unit"}),
    (plan, {"adjacency": "zero-out"}),
    (plan, {"proof": "public-point"}),
    (plan, {"participation": "cap:3"}),
    (plan, {"smoothness": 2.0}),
    (plan, {"threat": "colluders:1,2"}),
    (plan, {"release": "centroid:0.5"}),
    (plan, {"releases": 2}),
    (plan, {"unprotected": True}),
    (plan, {"delta": 1e-6}),
    (plan, {"epsilon": 5.0}),
    (plan, {"epsilon": None, "rho": 1.0}),
    (plan, {"clients": 21}),
    (plan, {"local_steps": 3}),
    (plan, {"batch": 7}),
    (secure, {"units": OTHER_UNIT}),
    (secure, {"units": units(forged_units([3] * 4, authority=True))}),
    (secure, {"units": (*secure().units[1:], secure().units[0])}),
    (secure, {"secure": None}),
    (secure, {"secure": replace(SUMS, ring_bits=64)}),
    (secure, {"secure": replace(SUMS, sigma=0.5)}),
    *(
        (secure, {"secure": replace(SUMS, parameters=replace(SUMS.parameters, **other))})
        for other in ({"threshold": 3, "quorum": 3}, {"quorum": 3}, {"corrupted": 1}, {"server": "active"})
    ),
    (secure, {"deployment": None}),
    (secure, {"window": 5}),
    (secure, {"begin": 2.0}),
    (secure, {"adapt": 61.0}),
    (secure, {"tick": 59.0}),
    (secure, {"neighbours": 31.0}),
    (secure, {"drain": 301.0}),
]
NOT_ALONE = {  # cannot change, or not without another field of the same table
    "version", "deployment.protocol", "secure.parameters.clients", "secure.parameters.degree",
}  # fmt: skip


@pytest.mark.parametrize(("of", "changes"), CHANGES, ids=lambda x: "-".join(x) if isinstance(x, dict) else None)
def test_what_changes_is_in_the_hash_and_in_the_diff(of: Callable[..., Plan], changes: dict[str, Any]) -> None:
    a, b = of(), of(**changes)
    assert a.hash != b.hash
    assert a != b
    assert len(a.diff(b)) == len(b.diff(a)) > 0


def test_there_is_a_change_of_every_field() -> None:
    fields = set(tables(encoded(secure(failures=Failures())))) | set(tables(encoded(plan())))
    seen = set()
    for of, changes in CHANGES:
        for line in of().diff(of(**changes)):
            path = line.partition(":")[0]
            seen.add("".join(part.partition("]")[2] if n else part for n, part in enumerate(path.split("["))))
    missing = {f for f in fields - NOT_ALONE if not any(f == s or f.startswith(f"{s}.") for s in seen)}
    assert missing == set()


def test_the_name_of_the_data_is_no_part_of_a_plan() -> None:
    assert plan(dataset="wards").hash == plan().hash
    assert "wards" not in plan(dataset="wards").text


def test_words_have_one_spelling() -> None:
    assert str(plan(threat="colluders:2,1,2").privacy.threat) == "colluders:1,2"
    for one, other in (("colluders:2,1", "colluders:1,2"), ("colluders:01,2", "colluders:1,2")):
        assert plan(threat=one).hash == plan(threat=other).hash
    for one in ("convex-glm:0.20", "convex-glm:2e-1", "convex-glm:0.2"):
        assert plan(proof=one).hash == plan().hash
    assert plan(participation="cap:3e0").hash == plan(participation="cap:3").hash


def test_equal_numbers_make_equal_plans() -> None:
    a = plan(bound=1, smoothness=2, ridge=0, clients=20, scheme=scheme("shared", 1), failures=Failures(0, 0))
    b = plan(bound=1.0, smoothness=2.0, ridge=-0.0, scheme=scheme("shared", 1.0), failures=Failures(-0.0, 0.0))
    assert a.hash == b.hash
    assert a == b
    assert hash(a) == hash(b)
    assert Plan.from_text(a.text) == b
    taps = [Scheme("own", "gaussian", (Noise(Place.SERVER, one, (1, tap)),), carry) for one, tap, carry in
            ((1, 0, 0), (1.0, -0.0, 0.0))]  # fmt: skip
    assert plan(scheme=taps[0]).hash == plan(scheme=taps[1]).hash
    assert Plan.from_text(plan(scheme=taps[0]).text).scheme == taps[1]
    deployed = a_deployed_plan(adapt=60, tick=60, begin=1)
    assert deployed.hash == a_deployed_plan().hash
    assert Plan.from_text(deployed.text) == a_deployed_plan()


def test_another_zero_in_a_file_is_refused() -> None:
    for path in ("algorithm.dropout", "graph.failures.link"):
        with pytest.raises(InputError, match="is not the text that confide writes for this plan") as e:
            Plan.from_text(rewritten(plan(), path, -0.0))
        assert e.value.field == "plan"
        assert path in str(e.value)


# ---- differences


def test_diff_names_what_differs() -> None:
    a = plan()
    ring = a.graph.graphs[0]
    half = Graph(ring.edges, ring.edge_weights * 0.5, ring.own_weights + ring.edge_weights[0], "given", ring.name)
    lines = a.diff(plan(graph=half, step=0.2, sigma=0.5, smoothness=2.0))
    assert lines[0] == "algorithm.step: 0.1 != 0.2"
    assert lines[-2:] == ["privacy.smoothness: None != 2.0", "scheme.noises[0].sigma: 0.3 != 0.5"]
    one, other = (g.edge_weights.tolist()[0] for g in (ring, half))
    assert f"graph.graphs[0].edge_weights[0]: {one!r} != {other!r} (and 3 more)" in lines


def test_diff_of_lists_is_short_and_different_on_both_sides() -> None:
    found = plan(graph=Graph.complete(30)).diff(plan(graph=Graph.complete(31)))
    assert "graph.graphs[0].edges: 435 entries != 465 entries" in found
    assert "graph.graphs[0].name: 'complete:30' != 'complete:31'" in found
    assert "units: 30 entries != 31 entries" in found
    assert max(map(len, found)) < 200


def test_a_difference_is_named_down_to_the_client() -> None:
    a = a_deployed_plan()
    assert a_deployed_plan(deployment=None).diff(a)[0].startswith("deployment: None != {")
    assert a.diff(a_deployed_plan(window=5)) == ["deployment.window: 4 != 5"]
    one = replace(a.units[2].clients[1], local_steps=3)
    other = replace(a.units[2], clients=(a.units[2].clients[0], one, a.units[2].clients[2]))
    found = "units[2].clients[1].local_steps: 2 != 3"
    assert a.diff(changed(a, units=(*a.units[:2], other, a.units[3]))) == [found]
    renamed = replace(a.units[3], name="elsewhere")
    assert a.diff(changed(a, units=(*a.units[:2], other, renamed))) == [f"{found} (and 1 more)"]
    assert a.diff(changed(a, units=(*a.units[:3], renamed))) == ["units[3].name: 'Klinik 3' != 'elsewhere'"]


# ---- nobody changes a plan


def test_a_plan_cannot_be_changed() -> None:
    a = plan()
    before = a.hash
    for table, name in ((a, "rounds"), (a.algorithm, "step"), (a.privacy, "epsilon"), (a.units[0], "clients")):
        with pytest.raises(FrozenInstanceError):
            setattr(table, name, 2.0)
    with pytest.raises(ValueError, match="read-only"):
        a.graph.graphs[0].edge_weights[0] = 0.5
    assert canonical.digest(canonical.dumps(encoded(a))) == before


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda p: pickle.loads(pickle.dumps(p))])  # noqa: S301
def test_plans_travel_between_processes(copied: Any) -> None:
    assert copied(plan()) == plan()
    assert copied(plan()).hash == plan().hash


# ---- refused by name


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"rounds": 0}, "rounds"),
        ({"rounds": 1.5}, "rounds"),
        ({"step": 0.0}, "algorithm.step"),
        ({"step": math.inf}, "algorithm.step"),
        ({"bound": None}, "algorithm.bound"),
        ({"bound": -1.0}, "algorithm.bound"),
        ({"norm": "l3"}, "algorithm.norm"),
        ({"clip": "both"}, "algorithm.clip"),
        ({"clip": "none"}, "algorithm.clip"),
        ({"sampled": 21}, "algorithm.sampled"),
        ({"sampled": 0}, "algorithm.sampled"),
        ({"fraction_bits": 0}, "algorithm.fraction_bits"),
        ({"fraction_bits": 53}, "algorithm.fraction_bits"),
        ({"dropout": 1.5}, "algorithm.dropout"),
        ({"dim": "3"}, "algorithm.model.length"),
        ({"dim": 0}, "algorithm.model.length"),
        ({"model": "deep"}, "algorithm.model.kind"),
        ({"ridge": -0.1}, "algorithm.model.ridge"),
        ({"clients": 0}, "units.clients.count"),
        ({"local_steps": (0, 1)}, "units.clients.local_steps"),
        ({"batch": 2.5}, "units.clients.batch"),
        ({"graph": ()}, "graph.topology"),
        ({"graph": (Graph.ring(4), Graph.ring(5))}, "graph.topology"),
        ({"graph": Graph.ring(4).matchings()[:1]}, "graph"),
        ({"scheme": scheme("shared", 0.3, noise="gaussian"), "law": "discrete-gaussian"}, "scheme.law"),
        ({"level": "server"}, "privacy.level"),
        ({"adjacency": "zero_out"}, "privacy.adjacency"),
        ({"proof": "convex-glm"}, "proof"),
        ({"proof": "convex-glm:nan"}, "proof"),
        ({"proof": "convex-glm:1_0"}, "proof"),
        ({"proof": "convex-glm:1e999"}, "proof"),
        ({"proof": "regulariser:0"}, "proof"),
        ({"proof": "none:1"}, "proof"),
        ({"proof": 3}, "proof"),
        ({"participation": "cap:0"}, "participation"),
        ({"participation": "cap:1.5"}, "participation"),
        ({"participation": "random:1.1"}, "participation"),
        ({"participation": "amplified:0"}, "participation"),
        ({"participation": "some"}, "participation"),
        ({"participation": "random:0.5", "level": "unit"}, "privacy.participation"),
        ({"level": "example", "replacement": True}, "privacy.level"),
        ({"threat": ""}, "threat"),
        ({"threat": "Eve Dropper"}, "threat"),
        ({"threat": "nobody"}, "threat"),
        ({"threat": "colluders"}, "threat"),
        ({"threat": "colluders:4"}, "threat"),
        ({"threat": "colluders:0,1,2,3"}, "threat"),
        ({"threat": "links:1"}, "threat"),
        ({"release": "centroid"}, "release"),
        ({"release": "centroid:-1"}, "release"),
        ({"release": "consensus:0"}, "release"),
        ({"releases": 0}, "privacy.releases"),
        ({"releases": True}, "privacy.releases"),
        ({"unprotected": 1}, "privacy.unprotected"),
        ({"delta": 1.0}, "privacy.delta"),
        ({"delta": 0.0}, "privacy.delta"),
        ({"delta": -1e-9}, "privacy.delta"),
        ({"epsilon": math.nan}, "privacy.epsilon"),
        ({"epsilon": 1.0, "rho": 1.0}, "privacy.rho"),
        ({"undeclared": ("\ud800",)}, "plan"),
    ],
)
def test_refused_by_name(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as e:
        plan(**changes)
    assert e.value.field == field


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("version", 1, "plan.version"),
        ("version", 2, "plan.version"),
        ("version", 4, "plan.version"),
        ("version", True, "plan.version"),
        ("version", 3.0, "version"),
        ("rounds", 100.0, "rounds"),
        ("rounds", "100", "rounds"),
        ("rounds", None, "rounds"),
        ("rounds", True, "rounds"),
        ("algorithm.step", 1, "algorithm.step"),
        ("algorithm.replacement", 0, "algorithm.replacement"),
        ("algorithm.fraction_bits", 24.0, "algorithm.fraction_bits"),
        ("algorithm.clip", None, "algorithm.clip"),
        ("algorithm.clip.bound", 1, "algorithm.clip.bound"),
        ("algorithm.model.undeclared", "why", "algorithm.model.undeclared"),
        ("algorithm.model.undeclared", [1], "algorithm.model.undeclared[0]"),
        ("units", {}, "units"),
        ("units.0", [], "units[0]"),
        ("units.0.name", None, "units[0].name"),
        ("units.0.clients", "all", "units[0].clients"),
        ("units.0.clients.1.batch", 2.5, "units[0].clients[1].batch"),
        ("units.0.clients.1.batch", None, "units[0].clients[1].batch"),
        ("scheme.law", "cauchy", "scheme.law"),
        ("scheme.law", 3, "scheme.law"),
        ("scheme.exchange", "cloud", "scheme.exchange"),
        ("scheme.noises.0.at", "cloud", "scheme.noises[0].at"),
        ("scheme.noises.0.sigma", -1.0, "scheme.noises.sigma"),
        ("scheme.noises.0.taps", [], "scheme.noises.taps"),
        ("scheme.carry", 1.5, "scheme.carry"),
        ("scheme.receivers", 3, "scheme.receivers"),
        ("privacy.level", "server", "privacy.level"),
        ("privacy.level", 3, "privacy.level"),
        ("privacy.proof", "convex-glm:0.20", "privacy.proof"),
        ("privacy.proof", "convex-glm", "privacy.proof"),
        ("privacy.proof", None, "privacy.proof"),
        ("privacy.threat", "colluders:2,1", "privacy.threat"),
        ("privacy.threat", "nobody", "privacy.threat"),
        ("privacy.participation", "cap:3.0", "privacy.participation"),
        ("privacy.release", "centroid", "privacy.release"),
        ("privacy.epsilon", 4, "privacy.epsilon"),
        ("graph.failures.links", [[1, 0]], "graph.failures.links[0]"),
        ("graph.failures.links", [[1, 0, 1.0]], "graph.failures.links[0][2]"),
        ("graph.graphs", [], "graph.topology"),
        ("graph.graphs", [3], "graph"),
        ("graph.graphs.0.name", 3, "plan"),
        ("graph.graphs.0.speed", 3, "plan"),
        ("graph.graphs.0.edges", [[0, 1], [0, 1], [1, 2], [2, 3]], "graph.edges"),
        ("graph.graphs.0.edges", [[1, 0], [0, 3], [1, 2], [2, 3]], "graph.edges"),
        ("graph.graphs.0.edges", [[0, 1], [0, 4], [1, 2], [2, 3]], "graph.edges[1]"),
        ("graph.graphs.0.edges", [[0, 1]], "graph"),
        ("graph.graphs.0", Graph.from_edges(4, [(0, 1), (2, 3)], turn=True).to_dict(), "graph"),
        ("graph.graphs.0.edges", [[0], [1], [2], [3]], "graph.edges[0]"),
        ("graph.graphs.0.edges", "0123", "graph.edges[0]"),
        ("graph.graphs.0.edge_weights", [0.1, -0.1, 0.1, 0.1], "graph"),
        ("graph.graphs.0.own_weights", [], "graph.P"),
        ("graph.graphs.0.own_weights", [0.5, 0.5, "x", 0.5], "graph"),
    ],
)
def test_a_wrong_entry_of_a_file_is_refused_by_name(path: str, value: Any, field: str) -> None:
    with pytest.raises(InputError) as e:
        Plan.from_text(rewritten(plan(), path, value))
    assert e.value.field == field


@pytest.mark.parametrize("kind", ["linear", "softmax:3", "network"])
def test_nobody_declares_convexity_of_what_is_no_model_of_ones_own(kind: str) -> None:
    """Clipped gradients of softmax and of networks are not monotone, whatever a plan's file says of them."""
    known = plan(model=kind, proof="none")
    with pytest.raises(InputError, match="is declared of a model of kind 'own' alone") as e:
        Plan.from_text(rewritten(known, "algorithm.model.convex", "Own"))
    assert e.value.field == "algorithm.model.convex"


@pytest.mark.parametrize("version", [1, 2])
def test_an_older_plan_is_refused_with_a_word_on_a_new_one(version: int, tmp_path: Path) -> None:
    """Whatever its tables were."""
    for text in (rewritten(plan(), "version", version), f'{{"facts":{{}},"version":{version}}}'):
        (tmp_path / "plan.json").write_text(text + "\n")
        with pytest.raises(InputError, match="reads version 3; make the plan again from its config") as e:
            Plan.load(tmp_path / "plan.json")
        assert (e.value.field, e.value.value) == ("plan.version", version)


@pytest.mark.parametrize("path", sorted(set(tables(encoded(secure()))) - {"version"}))
def test_missing_keys_are_named(path: str) -> None:
    inside = path.replace("units.", "units.0.").replace("clients.", "clients.0.").replace("noises.", "noises.0.")
    inside = inside.replace("graphs.", "graphs.0.").replace("parameters.clients.0.", "parameters.clients.")
    with pytest.raises(InputError, match=r"is missing|KeyError") as e:
        Plan.from_text(rewritten(secure(), inside, ...))
    named = "".join(f"[{x}]" if x.isdigit() else f".{x}" for x in inside.split("."))[1:]
    assert e.value.field == named or named.startswith("graph.graphs[0]")


@pytest.mark.parametrize(
    "table", ["", "algorithm.", "privacy.", "units.0.", "units.0.clients.2.", "deployment.clocks."]
)
def test_unknown_keys_are_named(table: str) -> None:
    with pytest.raises(InputError, match="is unknown; known: ") as e:
        Plan.from_text(rewritten(secure(), f"{table}speed", 1))
    assert e.value.field.endswith("speed")


@pytest.mark.parametrize("text", ["[]", "null", '"x"', "{}", "not json", '{"version":3}'])
def test_what_is_no_plan(text: str) -> None:
    with pytest.raises(InputError):
        Plan.from_text(text)


def test_another_spelling_of_the_text_is_refused() -> None:
    text = plan().text
    for other in (
        text + "\n",
        " " + text,
        text.replace('","', '", "', 1),
        text.replace('"rounds":100', '"rounds":1e2'),
    ):
        assert other != text
        with pytest.raises(InputError, match="not canonical"):
            Plan.from_text(other)


def all_alike(by: float) -> Callable[[Graph], Any]:
    return lambda graph: np.full((graph.P, graph.P), by)


def test_a_function_of_ones_own_is_named_and_whoever_reads_it_never_calls_it() -> None:
    a, other = (plan(scheme=replace(plan().scheme, receivers=all_alike(by))) for by in (1.0, 2.0))
    assert len({a.hash, other.hash, plan().hash}) == 3  # both have one name
    assert a.diff(other)
    b = Plan.from_text(a.text)
    assert (b, b.text) == (a, a.text)
    with pytest.raises(InputError, match="the plan only names") as e:
        b.scheme.wiring(Graph.ring(4))
    assert e.value.field == "scheme.receivers"


def test_save_and_load(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan().save(path)
    assert Plan.load(path) == plan()
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(InputError, match=r"plan\.json"):
        Plan.load(path)
    with pytest.raises(InputError, match="cannot be opened"):
        Plan.load(tmp_path / "missing.json")
    with pytest.raises(InputError, match="is not a file"):
        Plan.load(tmp_path)
    path.write_bytes(b"\xff")
    with pytest.raises(InputError, match="UTF-8"):
        Plan.load(path)


def test_what_is_computed_of_all_clients() -> None:
    a = a_plan(graph=Graph.path(2)).units[0]
    made = replace(a, clients=(Clients(2, 5, 7), Clients(9, 3, 1)))
    b = replace(a_plan(graph=Graph.path(2)), units=(a, made))
    assert (b.P, b.fewest_clients, b.local_steps, b.batches) == (2, 8, (1, 9), (3, 8))
    with pytest.raises(InputError, match="the plan of a simulation"):
        b.deployed()
    assert not a_deployed_plan().signed
    assert secure(
        secure=replace(SUMS, parameters=replace(SUMS.parameters, server="active", threshold=3, quorum=3))
    ).signed


def test_importing_is_light() -> None:
    """A deployed client and an auditor load none of the heavy libraries."""
    heavy = "scipy numba polars networkx pydantic matplotlib dp_accounting"
    modules = "confide.plans.build, confide.plans.plan, confide.plans.privacy, confide.plans.words, confide.laws.law"
    modules += ", confide.base.canonical, confide.privacy.ledger, confide.privacy.bundle"
    code = f"import sys, {modules}; print([m for m in {heavy!r}.split() if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_plan_of_the_protocol_before_is_read_also_without_a_start() -> None:
    """For the ledger of its store, and for its bundle: no node runs it (`config.not_of_before`)."""
    old = rewritten(secure(), "deployment.protocol", 1)
    assert Plan.from_text(old).deployed().protocol == 1
    text = rewritten(Plan.from_text(old), "deployment.clocks.begin", 0.0)
    assert Plan.from_text(text).deployed().clocks.begin == 0.0
    with pytest.raises(InputError, match=r"deployment\.clocks\.begin"):
        Plan.from_text(rewritten(secure(), "deployment.clocks.begin", 0.0))
