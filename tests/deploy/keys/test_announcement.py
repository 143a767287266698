"""Units announce themselves, and a config without data becomes the plan that the same config with data would give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builders import deployed, forged_units
from confide.base.errors import InputError
from confide.deploy.keys.announcement import agree, announce, described, known_keys, other_sizes, read
from confide.deploy.keys.authority import Authority
from confide.deploy.keys.request import request
from confide.plans.build import Announced
from confide.plans.config import parse
from confide.plans.plan import Model

BASE: dict[str, Any] = {
    "rounds": 6,
    "repeats": 1,
    "seed": 3,
    "graph": {"topology": "ring"},
    "problem": {"units": 4, "clients": 5, "samples": 12, "features": 3, "rho": 0.1},
    "algorithm": {
        "step": 0.1, "sampled": 4, "clip": "example", "bound": 1.0, "arithmetic": "fixed", "local_steps": [1, 4],
        "batch": [3, 5],
    },
    "scheme": {"name": "shared", "noise": "gaussian", "sigma": 0.3},
}  # fmt: skip


def units(sizes: list[int]) -> list[Announced]:
    return forged_units(sizes, authority=True)


def config(**tables: dict[str, Any]) -> Any:
    return parse({name: BASE.get(name, {}) | tables.get(name, {}) for name in BASE if isinstance(BASE[name], dict)}
                 | {name: x for name, x in BASE.items() if not isinstance(x, dict)}
                 | {name: x for name, x in tables.items() if name not in BASE})  # fmt: skip


@pytest.mark.parametrize(
    "tables",
    [
        {},
        {"algorithm": {"aggregation": "secure", "replacement": False}, "privacy": {"level": "example"}},
        {"privacy": {"proof": "convex-glm:0.2", "smoothness": 30.0}, "algorithm": {"step": 0.05}},
        {"privacy": {"release": "centroid:0.5"}},
        {"problem": {"name": "clicks", "units": 4, "clients": 5, "rows": 400, "test_rows": 10}},
    ],
    ids=["plain", "without replacement", "smooth", "release", "clicks"],
)
def test_the_plan_is_that_of_the_data(tables: dict[str, Any]) -> None:
    c = parse({**BASE, "problem": tables["problem"]}) if "problem" in tables else config(**tables)
    built = c.build()
    sizes = built.problem.federation.K.tolist()
    with_data, without = deployed(built, units(sizes)), agree(c, units(sizes), start=1.0)
    assert without.diff(with_data) == []
    assert other_sizes(c, units(sizes)) == ""


def test_who_is_announced_counts_and_not_whom_the_config_simulates() -> None:
    us = units([6, 4])
    c = config(graph={"topology": "path"})
    plan = agree(c, us)
    assert (plan.P, plan.fewest_clients, plan.algorithm.model.length) == (2, 4, 3)
    assert "4 units of 5 clients" in other_sizes(c, us)
    with pytest.raises(InputError, match="sample at most"):
        agree(c, units([3, 3]))


def test_a_model_of_ones_own_and_one_whose_data_are_elsewhere() -> None:
    us = units([5] * 4)
    away = parse({**BASE, "problem": {"name": "table", "path": "/nowhere.csv", "label": "y", "rho": 0.5}})
    with pytest.raises(InputError, match="--model, --features and --rho"):
        agree(away, us)
    plan = agree(away, us, model="logistic", features=7)
    assert plan.algorithm.model == Model("logistic", 7, 0.5)
    classes = agree(away, us, model="softmax:10", features=7)
    assert classes.algorithm.model == Model("softmax:10", 70, 0.5)
    made = agree(config(), us, features=2, rho=0.4)
    assert made.algorithm.model == Model("linear", 2, 0.4)
    with pytest.raises(InputError, match=r"^--rho = -1"):
        agree(config(), us, rho=-1.0)
    own = agree(config(algorithm={"clip": "update"}), us, model="own", features=50)
    assert own.algorithm.model == Model("own", 50, built_in=False)
    with pytest.raises(InputError, match="--features"):
        agree(away, us, model="logistic")
    with pytest.raises(InputError, match="known: linear"):
        agree(away, us, model="tree", features=3)
    with pytest.raises(InputError, match="regulariser inside"):
        agree(away, us, model="own", features=3, rho=0.1)
    with pytest.raises(InputError, match="a train function of one's own is clipped as a whole"):
        agree(config(), us, model="own", features=3)


def test_a_unit_announces_its_live_nodes_in_order(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "alpha")
    with pytest.raises(InputError, match="pki request alpha server"):
        announce(authority, "unit a")
    authority.issue("server", "one")
    with pytest.raises(InputError, match="pki request alpha client"):
        announce(authority, "unit a")
    keys = {name: authority.issue("client", name).identity for name in ("c", "a", "b", "gone")}
    authority.revoke("gone")
    authority.renew("c", keep=True)  # an older and a newer certificate of one client
    authority.renew("a")
    found = described(authority, "unit a", None, ())
    assert sorted(c["name"] for c in found["clients"]) == ["a", "b", "c"]
    assert {c["name"]: c["identity"] for c in found["clients"]} == {n: keys[n] for n in ("a", "b", "c")}
    assert found["authority"] == authority.fingerprint
    chosen = described(authority, "unit a", None, ["b", "c"])
    assert [c["name"] for c in chosen["clients"]] == ["b", "c"]
    with pytest.raises(InputError, match="no such client"):
        announce(authority, "unit a", clients=["gone"])
    authority.issue("server", "two")
    with pytest.raises(InputError, match="name one with --server: one, two"):
        announce(authority, "unit a")
    assert described(authority, "unit a", "two", ())["server"] == "two"
    assert set(announce(authority, "unit a", server="two").clients) == {keys[name] for name in "abc"}

    path = tmp_path / "alpha.json"
    unit = announce(authority, "unit a", server="one", clients=["b", "c"], out=path)
    assert json.loads(path.read_text()) == chosen
    assert read(path) == unit
    assert (unit.name, unit.clients, unit.authority) == ("unit a", (keys["b"], keys["c"]), authority.fingerprint)
    for change in ({"identity": "x"}, {"format": 2}, {"clients": [{}]}, {"clients": 4}, {"more": 1}):
        path.write_text(json.dumps(chosen | change))
        with pytest.raises(InputError):
            read(path)
    path.write_text("[" * 100_000)
    with pytest.raises(InputError, match="is no announcement"):
        read(path)


def test_a_plan_that_counts_on_keys_which_an_authority_made_says_so(alpha: Authority, tmp_path: Path) -> None:
    alpha.issue("server", "one")
    alpha.issue("client", "c1")
    alpha.sign(request(tmp_path / "c2", "alpha", "client", "c2"))
    announced = tmp_path / "alpha.json"
    announce(alpha, "alpha", out=announced)
    secure = {"aggregation": "secure", "replacement": False}
    active = config(algorithm=secure, privacy={"level": "example"}, secure={"server": "active"})
    assert known_keys(active, [announced]).startswith("authorities made the keys of c1 of alpha: against a server")
    assert known_keys(config(algorithm=secure, privacy={"level": "example"}), [announced]) == ""
    announce(alpha, "alpha", clients=["c2"], out=announced)
    assert known_keys(active, [announced]) == ""
