"""One plan, one text, one hash: round trips to the last bit, and everything else refused by name."""

from __future__ import annotations

import copy
import json
import math
import pickle
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import a_plan
from confide.base import canonical
from confide.base.errors import InputError
from confide.graph.graph import Graph
from confide.plans.plan import Plan, scheme_fields
from confide.rounds.schemes import scheme

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])).filter(lambda k: k != "$float"), inner)
    ),
    max_leaves=12,
)


def plan(**changes: Any) -> Plan:
    usual = {"local_steps": (1, 10), "batch": 8, "proof": "convex-glm:0.2", "facts": {"feature_norm": 1.0}}
    return a_plan(**usual | {"budget": {"epsilon": 4.0, "rho": None}} | changes)


def same(a: Any, b: Any) -> bool:
    """Equal in value, type and bits: 1 is not 1.0, 0.0 is not -0.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a.hex() == b.hex() if isinstance(a, float) else a == b


# ---- canonical JSON


@given(PLAIN)
def test_canonical_round_trip(value: Any) -> None:
    text = canonical.dumps(value)
    assert same(canonical.loads(text), value)
    assert canonical.dumps(canonical.loads(text)) == text
    json.loads(text)  # it is JSON
    text.encode()


@given(PLAIN, PLAIN)
def test_other_values_have_other_texts(a: Any, b: Any) -> None:
    assert (canonical.dumps(a) == canonical.dumps(b)) == same(a, b)


def test_canonical_text_is_fixed() -> None:
    """Hashes in ledgers and bundles rest on these bytes: they never change."""
    assert canonical.dumps({"b": [1, -0.0, True, None], "a": "é\n\"'"}) == (
        '{"a":"é\\n\\"\'","b":[1,{"$float":"-0x0.0p+0"},true,null]}'
    )
    assert canonical.digest("é") == "4a99557e4033c3539de2eb65472017cad5f9557f7a0625a09f1c3f6e2ba69c4c"


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        {"a": [-math.inf]},
        {1: 2},
        {None: 2},
        {"$float": "0x1p+0"},
        2**63,
        -(2**63) - 1,
        10**5000,
        {1, 2},
        b"x",
        object(),
        np.int64(3),
        "\ud800",
        {"\udfff": 1},
        1j,
    ],
    ids=lambda value: type(value).__name__,
)
def test_canonical_refuses(value: Any) -> None:
    with pytest.raises(InputError):
        canonical.dumps(value)


def test_canonical_names_the_place() -> None:
    with pytest.raises(InputError, match=r"plan\.facts\[1\]\.x = nan: must be finite"):
        canonical.dumps({"facts": [0, {"x": math.nan}]}, "plan")


def test_deep_nesting_is_an_input_error() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InputError, match="deep"):
        canonical.dumps(deep)
    with pytest.raises(InputError, match="not canonical"):
        canonical.loads("[" * 100_000 + "]" * 100_000)
    while deep:  # taken apart here: the interpreter would do it by recursion
        deep = deep[0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "1.5",
        "1e3",
        "NaN",
        "-Infinity",
        '{"a": 1}',
        '{"b":1,"a":1}',
        '{"a":1,"a":1}',
        "[1,]",
        " 1",
        "1\n",
        "-0",
        '"\\u0041"',
        '{"$float":"0x1p0"}',
        '{"$float":"0x1.8p+1"}',
        '{"$float":"nan"}',
        '{"$float":"inf"}',
        '{"$float":"0x1p+99999"}',
        '{"$float":1}',
        '{"$float":"0x0.0p+0","a":1}',
        '{"$float":"1.5"}',
        "9223372036854775808",
        "1" * 5000,
        '"\\ud800"',
        "\ufeff1",
    ],
)
def test_only_canonical_text_is_read(text: str) -> None:
    with pytest.raises(InputError, match="not canonical JSON"):
        canonical.loads(text)


# ---- plans


@given(
    step=st.floats(0, exclude_min=True, allow_infinity=False),
    sigma=st.floats(0, allow_infinity=False),
    rounds=st.integers(1, 2**40),
    carry=st.none() | st.floats(0, 1),
    budget=st.none() | st.floats(0, allow_infinity=False),
    facts=st.dictionaries(st.text("abc_", min_size=1), st.booleans() | st.floats(-1e300, 1e300) | st.text("xyz é")),
)
def test_plan_round_trip(
    step: float, sigma: float, rounds: int, carry: float | None, budget: float | None, facts: dict[str, Any]
) -> None:
    settings = dict(plan().scheme) | {"sigma": sigma, "carry": carry}
    a = plan(step=step, scheme=settings, rounds=rounds, facts=facts, budget={"epsilon": budget, "rho": budget})
    b = Plan.from_json(a.to_json())
    assert b == a
    assert b.hash == a.hash == canonical.digest(a.to_json())
    assert a.diff(b) == []
    assert b.step.hex() == step.hex()


def test_plan_hash_is_fixed() -> None:
    """A change here makes every deployed node and every old ledger disagree with the new code: raise the version."""
    assert plan().hash == "ccb28180206c562252583a0fd035f6e2af264966a692d9e852f3f4256fcbe319"


def test_the_graph_comes_back_bit_for_bit() -> None:
    graph = Graph.random(8, seed=3)
    again = Graph.from_dict(Plan.from_json(plan(graph=graph.to_dict()).to_json()).graph)
    assert np.array_equal(again.A, graph.A)
    assert np.array_equal(again.edges, graph.edges)
    assert plan(graph=graph.to_dict()).units == 8


CHANGES: dict[str, Any] = {
    "graph": Graph.ring(5).to_dict(),
    "scheme": scheme_fields(scheme("homomorphic", sigma=0.31, noise="gaussian")),
    "rounds": 101,
    "step": math.nextafter(0.1, 1),
    "bound": 2,
    "norm": "l1",
    "clip": "update",
    "sampled": 6,
    "clients": None,
    "dim": 4,
    "local_steps": 3,
    "batch": None,
    "level": "unit",
    "adjacency": "zero-out",
    "proof": "public-point",
    "participation": "cap:3",
    "threat": "colluders:1,2",
    "release": "centroid:0.5",
    "releases": 2,
    "unprotected": True,
    "delta": 0,
    "budget": {"epsilon": None, "rho": 1.0},
    "facts": {},
    "aggregation": {
        "server": "curious",
        "ring_bits": 32,
        "fraction_bits": 24,
        "threshold": 3,
        "quorum": 4,
        "corrupted": 1,
        "sigma": 0.25,
    },
    "turns": [Graph.complete(4).to_dict(), Graph.path(4).to_dict()],
}
SECURE = CHANGES["aggregation"]


@pytest.mark.parametrize("name", [f.name for f in fields(Plan) if f.name not in ("version", "deployment")])
def test_every_field_is_in_the_hash_and_in_the_diff(name: str) -> None:
    a = plan(proof="none")
    b = replace(a, **{name: CHANGES[name]})
    assert a.hash != b.hash
    assert a != b
    assert a.diff(b)
    assert all(line.startswith(name) for line in a.diff(b))
    assert len(b.diff(a)) == len(a.diff(b))


def test_secure_sums_are_in_a_plan_only_where_there_are_any() -> None:
    """So that plans from before have the text and hash that they had."""
    assert "aggregation" not in plan().to_json()
    assert plan(aggregation=None).hash == plan().hash
    a = plan(aggregation=dict(SECURE) | {"sigma": 1})
    assert a.aggregation is not None
    assert a.aggregation["sigma"].hex() == "0x1.0000000000000p+0"
    assert Plan.from_json(a.to_json()) == a
    assert plan().diff(a)[0].startswith("aggregation: (absent) != {")
    assert plan(aggregation=SECURE).diff(a) == ["aggregation.sigma: 0.25 != 1.0"]
    text = canonical.dumps(plan().to_dict() | {"aggregation": None})
    with pytest.raises(InputError, match=r"plan\.aggregation = None: must be left out"):
        Plan.from_json(text)


def test_graphs_that_take_turns_are_in_a_plan_only_where_there_are_any() -> None:
    """In their order and bit for bit; a plan with one graph has the text and hash that it always had."""
    assert "turns" not in plan().to_json()
    assert plan(turns=()).hash == plan(turns=[]).hash == plan().hash
    graphs = [Graph.random(4, seed=3), Graph.path(4)]
    a = plan(turns=[g.to_dict() for g in graphs])
    b = Plan.from_json(a.to_json())
    assert b == a
    assert b.hash == a.hash
    for read, made in zip(b.turns, graphs, strict=True):
        assert np.array_equal(Graph.from_dict(read).A, made.A)
        assert np.array_equal(Graph.from_dict(read).edges, made.edges)
    assert len({a.hash, plan().hash, plan(turns=a.turns[::-1]).hash, plan(turns=a.turns[:1]).hash}) == 4
    assert plan().diff(a) == ["turns: (absent) != 2 entries"]
    weights = list(a.turns[1]["own_weights"])
    weights[2] = 0.125
    other = plan(turns=[a.turns[0], dict(a.turns[1]) | {"own_weights": weights}])
    assert other.diff(a) == [f"turns[1].own_weights[2]: 0.125 != {a.turns[1]['own_weights'][2]!r}"]
    for empty in (None, []):
        with pytest.raises(InputError, match=r"plan\.turns = None: must be left out"):
            Plan.from_json(canonical.dumps(plan().to_dict() | {"turns": empty}))


@pytest.mark.parametrize(
    ("turns", "field"),
    [
        ("ring", "plan.turns"),
        (None, "plan.turns"),
        (Graph.path(4).to_dict(), "plan.turns"),
        ([Graph.path(5).to_dict()], "plan.turns"),
        ([Graph.path(4).to_dict(), Graph.path(3).to_dict()], "plan.turns"),
        ([3], "plan.graph"),
        ([{}], "plan.graph.name"),
        ([Graph.path(4).to_dict() | {"edges": [[0, 1]]}], "plan.graph"),
        ([Graph.path(4).to_dict() | {"edges": [[0, 1], [0, 4], [1, 2]]}], "plan.graph.edges[1]"),
    ],
)
def test_turns_refused_by_name(turns: Any, field: str) -> None:
    with pytest.raises(InputError) as e:
        plan(turns=turns)
    assert e.value.field == field


def test_a_threat_has_one_spelling() -> None:
    assert plan(threat="colluders:2,1,2").threat == "colluders:1,2"
    assert plan(threat="colluders:2,1").hash == plan(threat="colluders:1,2").hash
    for known in ("links", "neighbours", "own-client", "own-server"):
        assert plan(threat=known).threat == known


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("server", "kind"),
        ("ring_bits", 16),
        ("ring_bits", 32.0),
        ("fraction_bits", 0),
        ("threshold", 0),
        ("quorum", 1),
        ("corrupted", -1),
        ("sigma", -0.1),
        ("sigma", math.nan),
        ("colour", 1),
    ],
)
def test_secure_sums_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(InputError) as e:
        plan(aggregation=dict(SECURE) | {key: value})
    assert e.value.field == f"plan.aggregation.{key}"
    for wrong in ({}, "secure", 3):
        with pytest.raises(InputError, match=r"plan\.aggregation"):
            plan(aggregation=wrong)


def test_diff_names_what_differs() -> None:
    a = plan()
    weights = list(a.graph["edge_weights"])
    weights[2] = 0.125
    b = plan(
        step=0.2,
        scheme=dict(a.scheme) | {"sigma": 0.5},
        facts={"smoothness": 2.0},
        graph=dict(a.graph) | {"edge_weights": weights},
    )
    assert a.diff(b) == [
        "facts.feature_norm: 1.0 != (absent)",
        "facts.smoothness: (absent) != 2.0",
        f"graph.edge_weights[2]: {a.graph['edge_weights'][2]!r} != 0.125",
        "scheme.sigma: 0.3 != 0.5",
        "step: 0.1 != 0.2",
    ]


def test_diff_of_lists_is_short_and_different_on_both_sides() -> None:
    [*_, edges, name, own] = plan(graph=Graph.complete(30).to_dict()).diff(plan(graph=Graph.complete(31).to_dict()))
    assert edges == "graph.edges: 435 entries != 465 entries"
    assert name == "graph.name: 'complete:30' != 'complete:31'"
    assert own == "graph.own_weights: 30 entries != 31 entries"


def test_equal_numbers_make_equal_plans() -> None:
    a = plan(bound=1, facts={"feature_norm": 1}, local_steps=[4, 4], delta=0, budget={"epsilon": 4, "rho": None})
    b = plan(bound=1.0, local_steps=np.int64(4), delta=-0.0)
    assert a.hash == b.hash
    assert a == b
    assert hash(a) == hash(b)
    assert a.local_steps == 4


def test_a_plan_cannot_be_changed() -> None:
    a = plan()
    before = a.hash
    with pytest.raises(AttributeError):
        a.step = 2.0  # type: ignore[misc]
    for change in (
        lambda: a.scheme.__setitem__("sigma", 0.0),  # type: ignore[attr-defined]
        lambda: a.budget.update(epsilon=9.0),  # type: ignore[attr-defined]
        lambda: a.facts.clear(),  # type: ignore[attr-defined]
        lambda: a.scheme.pop("sigma"),  # type: ignore[attr-defined]
    ):
        with pytest.raises(TypeError, match="frozen"):
            change()
    assert isinstance(a.graph["edges"], tuple)
    assert canonical.digest(canonical.dumps(a.to_dict())) == before


def test_the_makers_tables_are_copied() -> None:
    facts = {"feature_norm": 1.0}
    a = plan(facts=facts)
    facts["feature_norm"] = 7.0
    assert a.facts == {"feature_norm": 1.0}


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda p: pickle.loads(pickle.dumps(p))])  # noqa: S301
def test_plans_travel_between_processes(copied: Any) -> None:
    assert copied(plan()) == plan()
    assert copied(plan()).hash == plan().hash


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"version": 1}, "plan.version"),
        ({"version": True}, "plan.version"),
        ({"version": 2.0}, "plan.version"),
        ({"rounds": 0}, "plan.rounds"),
        ({"rounds": 1.5}, "plan.rounds"),
        ({"step": 0.0}, "plan.step"),
        ({"step": math.inf}, "plan.step"),
        ({"bound": None}, "plan.bound"),
        ({"clip": "none"}, "plan.bound"),
        ({"bound": -1.0}, "plan.bound"),
        ({"norm": "l3"}, "plan.norm"),
        ({"clip": "both"}, "plan.clip"),
        ({"clip": "update"}, "plan.proof"),
        ({"sampled": 21}, "plan.sampled"),
        ({"clients": 0}, "plan.clients"),
        ({"dim": "3"}, "plan.dim"),
        ({"local_steps": (3, 1)}, "plan.local_steps"),
        ({"local_steps": (1, 2, 3)}, "plan.local_steps"),
        ({"local_steps": None}, "plan.local_steps"),
        ({"batch": 0}, "plan.batch"),
        ({"level": "server"}, "plan.level"),
        ({"adjacency": "zero_out"}, "plan.adjacency"),
        ({"proof": "convex-glm"}, "plan.proof"),
        ({"proof": "convex-glm:nan"}, "plan.proof"),
        ({"proof": "convex-glm:1_0"}, "plan.proof"),
        ({"proof": "convex-glm:1e999"}, "plan.proof"),
        ({"proof": "regulariser:0"}, "plan.proof"),
        ({"proof": "none:1"}, "plan.proof"),
        ({"proof": 3}, "plan.proof"),
        ({"participation": "cap:0"}, "plan.participation"),
        ({"participation": "cap:1.5"}, "plan.participation"),
        ({"participation": "random:1.1"}, "plan.participation"),
        ({"participation": "amplified:0"}, "plan.participation"),
        ({"participation": "some"}, "plan.participation"),
        ({"threat": ""}, "plan.threat"),
        ({"threat": "Eve Dropper"}, "plan.threat"),
        ({"threat": "nobody"}, "plan.threat"),
        ({"threat": "colluders"}, "plan.threat"),
        ({"threat": "colluders:4"}, "plan.threat"),
        ({"threat": "colluders:0,1,2,3"}, "plan.threat"),
        ({"threat": "links:1"}, "plan.threat"),
        ({"release": "centroid"}, "plan.release"),
        ({"releases": 0}, "plan.releases"),
        ({"releases": True}, "plan.releases"),
        ({"unprotected": 1}, "plan.unprotected"),
        ({"release": "centroid:-1"}, "plan.release"),
        ({"delta": 1.0}, "plan.delta"),
        ({"delta": -1e-9}, "plan.delta"),
        ({"budget": {"epsilon": 1.0}}, "plan.budget.rho"),
        ({"budget": {"epsilon": 1.0, "rho": None, "mu": 1.0}}, "plan.budget.mu"),
        ({"budget": {"epsilon": math.nan, "rho": None}}, "plan.budget.epsilon"),
        ({"budget": None}, "plan.budget"),
        ({"facts": {"a": [1]}}, "plan.facts.a"),
        ({"facts": {"a": None}}, "plan.facts.a"),
        ({"facts": {1: 1.0}}, "plan.facts"),
        ({"facts": {"a": "\ud800"}}, "plan"),
        ({"scheme": {"name": "shared"}}, "plan.scheme.law"),
        ({"scheme": None}, "plan.scheme"),
    ],
)
def test_refused_by_name(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as e:
        plan(**changes)
    assert e.value.field == field


@pytest.mark.parametrize(
    ("key", "value", "field"),
    [
        ("name", 3, "plan.graph.name"),
        ("edges", [[0, 1], [0, 1], [1, 2], [2, 3]], "plan.graph.edges[1]"),
        ("edges", [[1, 0], [0, 3], [1, 2], [2, 3]], "plan.graph.edges[0]"),
        ("edges", [[0, 1], [0, 4], [1, 2], [2, 3]], "plan.graph.edges[1]"),
        ("edges", [[0, 1]], "plan.graph"),
        ("edges", [[0], [1], [2], [3]], "plan.graph.edges[0]"),
        ("edges", "0123", "plan.graph.edges"),
        ("edge_weights", [0.1, -0.1, 0.1, 0.1], "plan.graph.edge_weights[1]"),
        ("own_weights", [], "plan.graph"),
        ("own_weights", [0.5, 0.5, "x", 0.5], "plan.graph.own_weights[2]"),
    ],
)
def test_graphs_refused_by_name(key: str, value: Any, field: str) -> None:
    with pytest.raises(InputError) as e:
        plan(graph=Graph.ring(4).to_dict() | {key: value})
    assert e.value.field == field


@pytest.mark.parametrize(
    ("key", "value"),
    [("name", "No Name"), ("law", "cauchy"), ("carry", 1.5), ("noise_on", "cloud"), ("sigma", -1.0), ("colour", 1)],
)
def test_schemes_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(InputError) as e:
        plan(scheme=dict(plan().scheme) | {key: value})
    assert e.value.field == f"plan.scheme.{key}"


@pytest.mark.parametrize("name", [f.name for f in fields(Plan) if f.name not in ("aggregation", "deployment", "turns")])
def test_missing_fields_are_named(name: str) -> None:
    data = json.loads(plan().to_json())
    del data[name]
    with pytest.raises(InputError, match=rf"plan\.{name} = None: is missing"):
        Plan.from_json(json.dumps(data, sort_keys=True, separators=(",", ":")))


def test_unknown_fields_are_named() -> None:
    data = json.loads(plan().to_json()) | {"zeal": 1}
    with pytest.raises(InputError, match=r"plan\.zeal = 1: is unknown"):
        Plan.from_json(json.dumps(data, sort_keys=True, separators=(",", ":")))


def test_a_whole_number_is_not_a_float_in_a_file() -> None:
    text = plan(step=1.0).to_json().replace('"step":{"$float":"0x1.0000000000000p+0"}', '"step":1')
    with pytest.raises(InputError, match=r"plan\.step"):
        Plan.from_json(text)


@pytest.mark.parametrize("text", ["[]", "null", '"x"', "{}", "not json"])
def test_what_is_no_plan(text: str) -> None:
    with pytest.raises(InputError, match="plan"):
        Plan.from_json(text)


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


def test_without_clipping_there_is_no_bound() -> None:
    assert plan(clip="none", bound=None).bound is None


def test_scheme_fields_follow_the_scheme() -> None:
    s = scheme("pairwise", 0.5, noise="gaussian", sigma_pair=2.0)
    a = plan(scheme=scheme_fields(s, law="discrete-gaussian"))
    assert (a.scheme["law"], a.scheme["sigma_pair"], a.scheme["carry"]) == ("discrete-gaussian", 2.0, 0.0)
    assert plan(scheme=scheme_fields(scheme("own-clean", 1.0))).scheme["carry"] is None


def test_importing_is_light() -> None:
    """A deployed client and an auditor load none of the heavy libraries."""
    heavy = "numpy scipy numba networkx polars cryptography pydantic"
    modules = "confide.base.canonical, confide.plans.plan, confide.privacy.ledger, confide.privacy.bundle"
    code = f"import sys, {modules}; print([m for m in {heavy!r}.split() if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
