"""The table `deployment`: one text for one table, every contradiction refused by the name of its field."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import a_deployed_plan, a_deployment, key
from confide.base import canonical
from confide.base.errors import InputError
from confide.graph.graph import Graph
from confide.plans import plan_deployment
from confide.plans.plan import Plan, scheme_fields
from confide.rounds import arithmetic
from confide.rounds.schemes import scheme

SECURE = {
    "server": "curious", "ring_bits": 32, "fraction_bits": 24, "threshold": 3, "quorum": 4, "corrupted": 1,
    "sigma": 0.01,
}  # fmt: skip
GRID = arithmetic.on_grid(Graph.ring(4)).to_dict()


def changed(path: str, value: Any) -> dict[str, Any]:
    """The table with one entry changed, such as units.0.name."""
    whole: Any = copy.deepcopy(a_deployment())
    *inner, last = [int(x) if x.isdigit() else x for x in path.split(".")]
    at = whole
    for step in inner:
        at = at[step]
    at[last] = value
    return dict(whole)


def test_the_grid_of_weights_is_that_of_the_arithmetic() -> None:
    assert plan_deployment.WEIGHT_BITS == arithmetic.WEIGHT_BITS


def test_plans_without_a_deployment_do_not_name_it() -> None:
    old = {"sampled": 5, "clients": 20, "proof": "convex-glm:0.2", "budget": {"epsilon": 4.0, "rho": None}}
    old |= {"facts": {"feature_norm": 1.0}, "deployment": None, "graph": Graph.ring(4).to_dict()}
    old["scheme"] = scheme_fields(scheme("homomorphic", sigma=0.3, noise="gaussian"))
    assert a_deployed_plan(**old).hash == "ccb28180206c562252583a0fd035f6e2af264966a692d9e852f3f4256fcbe319"
    secure = a_deployed_plan(**old, aggregation=SECURE)
    assert secure.hash == "64123d689f2416d6a7288f1d696e83fd8d03c6f61d37a876e338e4813683dfc8"
    assert "deployment" not in secure.to_json()
    assert Plan.from_json(secure.to_json()).deployment is None
    with pytest.raises(InputError, match=r"plan\.deployment = None: must be left out"):
        Plan.from_json(canonical.dumps(secure.to_dict() | {"deployment": None}))


def test_the_text_of_a_deployment_never_changes() -> None:
    """Golden: hashes in ledgers rest on it."""
    assert a_deployed_plan().hash == "c1e65504ed185e19639ab8d46f35398121ea05a5790400d0ce441fc6f23948de"


identities = st.lists(st.integers(0, 2**256 - 1).map(key), min_size=24, max_size=24, unique=True)
seconds = st.floats(1e-3, 1e6)


@given(
    identities, st.integers(1, 52), st.integers(2, 64), seconds, st.floats(0.0, 1.0), seconds, st.booleans(),
    st.integers(1, 10), st.sampled_from(["", key(7)]), st.text("aé日 x", min_size=1, max_size=9),
)  # fmt: skip
def test_round_trip(
    keys: list[str], bits: int, window: int, adapt: float, share: float, drain: float, replacement: bool, E: int,
    authority: str, name: str,
) -> None:  # fmt: skip
    left = iter(keys)
    units = []
    for p in range(4):
        clients = [{"identity": next(left), "local_steps": E, "batch": 8} for _ in range(3)]
        one = {"name": f"{name}{p}", "identity": next(left), "exchange_key": next(left), "authority": authority}
        units.append(one | {"clients": clients})
    tick = max(adapt * share, 1e-6)
    d = a_deployment(fraction_bits=bits, window=window, adapt=adapt, tick=tick, drain=drain, replacement=replacement)
    a = a_deployed_plan(deployment=d | {"units": units})
    b = Plan.from_json(a.to_json())
    assert a == b
    assert a.hash == b.hash
    assert a.diff(b) == []
    assert canonical.dumps(b.to_dict()) == a.to_json()


def test_whole_seconds_are_floats_in_the_text() -> None:
    assert a_deployed_plan(adapt=60, tick=60).hash == a_deployed_plan().hash
    signed, plain = (a_deployed_plan(deployment=changed("model.rho", zero)) for zero in (-0.0, 0))
    assert signed.hash == plain.hash


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("protocol", 2, "= 2: this confide speaks 1"),
        ("protocol", True, "speaks 1"),
        ("protocol", 1.0, "speaks 1"),
        ("fraction_bits", 0, "between 1 and 52"),
        ("fraction_bits", 53, "between 1 and 52"),
        ("window", 1, "between 2 and 64"),
        ("window", 65, "between 2 and 64"),
        ("start", -1.0, "at least 0"),
        ("degree", -1, "at least 0"),
        ("adapt", 0.0, "positive"),
        ("tick", 61.0, "must not exceed adapt, which is 60 s"),
        ("tick", -1.0, "positive"),
        ("exchange", 0, "positive"),
        ("drain", float("inf"), "finite"),
        ("drain", "soon", "number"),
        ("model", {"kind": "linear"}, r"rho = None: is missing"),
        ("model.kind", "deep", "linear"),
        ("model.rho", -0.1, "at least 0"),
        ("model", {"kind": "own", "rho": 0.1}, "must be 0"),
        ("replacement", 1, "true or false"),
        ("units", {}, "must be a list"),
        ("units.0.name", "", "1 to 200"),
        ("units.0.name", "a\nb", "printable"),
        ("units.1.identity", "ab", "64 small hex"),
        ("units.1.identity", key(11).replace("b", "B"), "64 small hex"),
        ("units.1.exchange_key", 3, "64 small hex"),
        ("units.2.authority", "x", "64 small hex"),
        ("units.2.clients", "all", "must be a list"),
        ("units.2.clients.1.identity", None, "64 small hex"),
        ("units.2.clients.1.local_steps", 0, "at least 1"),
        ("units.2.clients.1.batch", 2.5, "whole number"),
        ("units.2.clients.1.local_steps", 11, r"within plan\.local_steps = \(1, 10\)"),
        ("units.2.clients.1.batch", 7, r"within plan\.batch = 8"),
        ("units.3.name", "Klinik 0", r"units\[0\]\.name too"),
        ("units.3.identity", key(0), r"units\[0\]\.identity too"),
        ("units.3.clients.0.identity", key(0), r"units\[0\]\.identity too"),
        ("units.3.clients.0.identity", key(110), r"units\[1\]\.clients\[0\]\.identity too"),
        ("units.3.exchange_key", key(101), r"units\[1\]\.exchange_key too"),
        ("units.3.clients", [], r"plan\.sampled = 3"),
        ("units", [], "one for each unit"),
    ],
)  # fmt: skip
def test_a_wrong_entry_is_refused_by_name(path: str, value: Any, words: str) -> None:
    with pytest.raises(InputError, match=words) as refused:
        a_deployed_plan(deployment=changed(path, value))
    place = "".join(f"[{x}]" if x.isdigit() else f".{x}" for x in path.split("."))
    assert refused.value.field.startswith(f"plan.deployment{place}")


def test_missing_and_unknown_keys_are_named() -> None:
    for path in ("window", "units.0.authority", "units.0.clients.2.batch"):
        whole: Any = copy.deepcopy(a_deployment())
        *inner, last = [int(x) if x.isdigit() else x for x in path.split(".")]
        at = whole
        for step in inner:
            at = at[step]
        del at[last]
        with pytest.raises(InputError, match="is missing") as refused:
            a_deployed_plan(deployment=whole)
        assert refused.value.field.endswith(f".{last}")
    for path in ("speed", "units.0.speed", "units.0.clients.2.speed", "model.speed"):
        with pytest.raises(InputError, match="is unknown"):
            a_deployed_plan(deployment=changed(path, 1))


def test_a_roster_beyond_every_purpose_is_refused_before_it_is_read() -> None:
    with pytest.raises(InputError, match="at most 1000000 clients"):
        a_deployed_plan(deployment=changed("units.2.clients", [None] * (10**6 - 5)))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"graph": Graph.ring(4, weights="metropolis").to_dict()}, r"plan\.graph\.edge_weights\[0\]"),
        ({"graph": GRID | {"own_weights": [*GRID["own_weights"][:3], 0.25]}}, r"plan\.graph\.own_weights\[3\]"),
        ({"scheme": scheme_fields(scheme("shared", 0.3))}, r"plan\.scheme\.law"),
        ({"scheme": scheme_fields(scheme("local-only"))}, r"plan\.scheme\.name"),
        ({"scheme": scheme_fields(scheme("central", 0.3), "discrete-gaussian")}, r"plan\.scheme\.name"),
        (
            {"scheme": scheme_fields(scheme("per-link", 0.3, sigma_client=0.1), "discrete-laplace")},
            r"plan\.scheme\.sigma_client",
        ),
        ({"clip": "none", "bound": None}, r"plan\.clip"),
        ({"sampled": None}, r"plan\.sampled"),
        ({"dim": None}, r"plan\.dim"),
        ({"delta": 0.0}, r"plan\.delta"),
        ({"clients": 2, "sampled": 2}, r"plan\.clients"),
        ({"batch": None}, r"plan\.deployment\.units\[0\]\.clients\[0\]\.batch"),
        ({"aggregation": SECURE | {"fraction_bits": 20}}, r"plan\.deployment\.fraction_bits"),
        ({"deployment": a_deployment(model={"kind": "own", "rho": 0.0})}, r"plan\.clip"),
    ],
)
def test_what_contradicts_the_rest_of_the_plan_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError, match=rf"^{field} = "):
        a_deployed_plan(**changes)
    a_deployed_plan(**{**changes, "deployment": None})  # as a simulation it is a plan


def test_what_a_deployment_may_be() -> None:
    a_deployed_plan(scheme=scheme_fields(scheme("none")))  # without noise the law means nothing
    a_deployed_plan(aggregation=SECURE, degree=2)
    with pytest.raises(InputError, match="summed in clear"):
        a_deployed_plan(degree=2)
    a_deployed_plan(clip="update", model={"kind": "own", "rho": 0.0})
    a_deployed_plan(clients=None)


def test_a_difference_is_named_down_to_the_client() -> None:
    a = a_deployed_plan()
    assert replace(a, deployment=None).diff(a)[0].startswith("deployment: (absent) != {")
    assert a.diff(a_deployed_plan(window=5)) == ["deployment.window: 4 != 5"]
    other = changed("units.2.clients.1.local_steps", 3)
    found = "deployment.units[2].clients[1].local_steps: 2 != 3"
    assert a.diff(a_deployed_plan(deployment=other)) == [found]
    other["units"][3]["name"] = "elsewhere"
    assert a.diff(a_deployed_plan(deployment=other)) == [f"{found} (and 1 more)"]
    other = changed("units.0.name", "x")
    assert a.diff(a_deployed_plan(deployment=other)) == ["deployment.units[0].name: 'Klinik 0' != 'x'"]
