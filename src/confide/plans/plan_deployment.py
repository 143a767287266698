"""The table `deployment` of a plan: who takes part with which keys, on which grid, and the clocks that all share.

Pure checks of plain data (nothing heavy is imported): shapes and ranges by `table`, agreement with the rest of the
plan by `agrees`. Whether the numbers add up to a budget is the accountant's question (`confide.privacy.agreement`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from confide.base import canonical
from confide.base.errors import InputError
from confide.base.validation import number, one_of, positive, positive_int, whole
from confide.laws.law import LAWS

if TYPE_CHECKING:
    from confide.plans.plan import Plan

PROTOCOL = 1
MODELS = ("linear", "logistic", "own")
LARGEST_ROSTER = 10**6  # clients in all
LARGEST_WINDOW = 64  # open records of an edge
WEIGHT_BITS = 16  # `arithmetic.WEIGHT_BITS`, which would bring NumPy along
_TABLE = (
    "protocol", "fraction_bits", "window", "start", "adapt", "tick", "exchange", "drain", "degree", "model",
    "replacement", "units",
)  # fmt: skip
_UNIT = ("name", "identity", "exchange_key", "authority", "clients")
_CLIENT = ("identity", "local_steps", "batch")
_EDGELESS = ("local-only", "central")


def table(name: str, value: object) -> dict[str, Any]:
    """The table in the types in which it is hashed."""
    d = canonical.check_keys(name, value, _TABLE)
    if isinstance(d["protocol"], bool) or d["protocol"] != PROTOCOL or not isinstance(d["protocol"], int):
        raise InputError(f"{name}.protocol", d["protocol"], f"this confide speaks {PROTOCOL}")
    if not isinstance(d["replacement"], bool):
        raise InputError(f"{name}.replacement", d["replacement"], "must be true or false")
    clocks = {key: positive(f"{name}.{key}", d[key]) for key in ("adapt", "tick", "exchange", "drain")}
    if clocks["tick"] > clocks["adapt"]:
        raise InputError(f"{name}.tick", d["tick"], f"must not exceed adapt, which is {clocks['adapt']:g} s")
    return clocks | {
        "protocol": PROTOCOL,
        "fraction_bits": whole(f"{name}.fraction_bits", d["fraction_bits"], 1, 52),
        "window": whole(f"{name}.window", d["window"], 2, LARGEST_WINDOW),
        "start": number(f"{name}.start", d["start"], 0.0) + 0.0,
        "degree": whole(f"{name}.degree", d["degree"], 0),
        "model": _model(f"{name}.model", d["model"]),
        "replacement": d["replacement"],
        "units": _units(f"{name}.units", d["units"]),
    }


def agrees(plan: Plan) -> None:
    """Refuse a plan whose deployment contradicts the rest of it, or leaves open what a node must know."""
    d = plan.deployment
    assert d is not None  # noqa: S101 - only called for a plan that has one
    if plan.turns:
        raise InputError("plan.turns", len(plan.turns), "a deployment has one graph; leave it out")
    _has_what_nodes_need(plan)
    _speaks_of_one_network(plan, d)
    for field in ("edge_weights", "own_weights"):
        for n, x in enumerate(plan.graph[field]):
            if not (x * 2.0**WEIGHT_BITS).is_integer():
                remedy = f"must be a multiple of 2^-{WEIGHT_BITS}, as confide.rounds.arithmetic.on_grid makes it"
                raise InputError(f"plan.graph.{field}[{n}]", x, remedy)
    _rows_sum_to_one(plan.graph)
    if plan.aggregation is not None and plan.aggregation["fraction_bits"] != d["fraction_bits"]:
        remedy = f"must be the grid of the secure sums, plan.aggregation.fraction_bits = {_bits(plan.aggregation)}"
        raise InputError("plan.deployment.fraction_bits", d["fraction_bits"], remedy)
    if (plan.aggregation is None) != (d["degree"] == 0):
        remedy = "is the number of neighbours of a client in a secure sum; 0 where updates are summed in clear"
        raise InputError("plan.deployment.degree", d["degree"], remedy)
    if d["model"]["kind"] == "own" and plan.clip != "update":
        raise InputError("plan.clip", plan.clip, "a train function of one's own is clipped as a whole: 'update'")
    for p, unit in enumerate(d["units"]):
        for k, client in enumerate(unit["clients"]):
            for field, given in (("local_steps", plan.local_steps), ("batch", plan.batch)):
                low, high = given if isinstance(given, tuple) else (given, given)
                if low is None or not low <= client[field] <= high:
                    place = f"plan.deployment.units[{p}].clients[{k}].{field}"
                    raise InputError(place, client[field], f"must lie within plan.{field} = {given}")


def _has_what_nodes_need(plan: Plan) -> None:
    s = plan.scheme
    if "rows" in s:
        raise InputError("plan.scheme.name", s["name"], "is not the scheme of this name; deploy one of confide's own")
    if s["name"] in _EDGELESS or s["noise_on"] == "network":
        raise InputError("plan.scheme.name", s["name"], "has no flows on edges; deploy a scheme that has")
    if (s["sigma"] or s["sigma_pair"]) and not LAWS[s["law"]].on_grid:
        remedy = f"noise that leaves a machine is drawn on the grid: {LAWS[s['law']].discrete}"
        raise InputError("plan.scheme.law", s["law"], remedy)
    if s["sigma_client"]:
        remedy = "must be 0: in a deployment the secure sum hides the clients"
        raise InputError("plan.scheme.sigma_client", s["sigma_client"], remedy)
    if plan.clip == "none":
        raise InputError(
            "plan.clip", plan.clip, "must be 'example' or 'update': nothing else bounds what a client adds"
        )
    for name in ("sampled", "dim"):
        if getattr(plan, name) is None:
            raise InputError(f"plan.{name}", None, "must be stated in a deployment")
    if plan.delta == 0.0:
        raise InputError("plan.delta", plan.delta, "must be positive in a deployment")


def _speaks_of_one_network(plan: Plan, d: Mapping[str, Any]) -> None:
    """As many units as servers, as many clients as the plan says, and nobody twice."""
    units = d["units"]
    if len(units) != plan.units:
        raise InputError("plan.deployment.units", len(units), f"the graph has {plan.units} servers, one for each unit")
    sizes = [len(u["clients"]) for u in units]
    assert plan.sampled is not None  # noqa: S101 - checked
    for p, size in enumerate(sizes):
        if size < plan.sampled:
            remedy = f"plan.sampled = {plan.sampled} clients are drawn in every round; enrol at least as many"
            raise InputError(f"plan.deployment.units[{p}].clients", size, remedy)
    if plan.clients is not None and plan.clients != min(sizes):
        raise InputError("plan.clients", plan.clients, f"the smallest unit has {min(sizes)}")
    places: dict[tuple[str, str], str] = {}
    for p, unit in enumerate(units):
        here = f"plan.deployment.units[{p}]"
        keys = [("name", unit["name"], f"{here}.name"), ("key", unit["identity"], f"{here}.identity")]
        keys.append(("exchange", unit["exchange_key"], f"{here}.exchange_key"))
        keys += [("key", c["identity"], f"{here}.clients[{k}].identity") for k, c in enumerate(unit["clients"])]
        for kind, value, place in keys:
            if (kind, value) in places:
                raise InputError(place, value, f"is that of {places[kind, value]} too; each has its own")
            places[kind, value] = place


def _rows_sum_to_one(graph: Mapping[str, Any]) -> None:
    """Sums of multiples of 2^-16 are exact, and so is this."""
    rows = list(graph["own_weights"])
    for (i, j), a in zip(graph["edges"], graph["edge_weights"], strict=True):
        rows[i] += a
        rows[j] += a
    wrong = [p for p, total in enumerate(rows) if total != 1.0]
    if wrong:
        remedy = f"with its edges server {wrong[0]} has weight {rows[wrong[0]]!r}; it must be exactly 1"
        raise InputError(f"plan.graph.own_weights[{wrong[0]}]", graph["own_weights"][wrong[0]], remedy)


def _bits(aggregation: Mapping[str, Any]) -> int:
    return int(aggregation["fraction_bits"])


def _model(name: str, value: object) -> dict[str, Any]:
    m = canonical.check_keys(name, value, ("kind", "rho"))
    kind = one_of(f"{name}.kind", m["kind"], MODELS)
    rho = number(f"{name}.rho", m["rho"], 0.0) + 0.0  # -0.0 becomes 0.0
    if kind == "own" and rho:
        raise InputError(f"{name}.rho", m["rho"], "must be 0: a train function of one's own has its regulariser inside")
    return {"kind": kind, "rho": rho}


def _units(name: str, value: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    total = 0
    for p, entry in enumerate(_list(name, value)):
        here = f"{name}[{p}]"
        u = canonical.check_keys(here, entry, _UNIT)
        clients = _list(f"{here}.clients", u["clients"])
        total += len(clients)
        if total > LARGEST_ROSTER:  # before they are looked at one by one
            raise InputError(f"{here}.clients", total, f"at most {LARGEST_ROSTER} clients in all are read")
        authority = u["authority"] if u["authority"] == "" else _hex(f"{here}.authority", u["authority"])
        found.append(
            {
                "name": _name(f"{here}.name", u["name"]),
                "identity": _hex(f"{here}.identity", u["identity"]),
                "exchange_key": _hex(f"{here}.exchange_key", u["exchange_key"]),
                "authority": authority,
                "clients": [_client(f"{here}.clients[{k}]", client) for k, client in enumerate(clients)],
            }
        )
    return found


def _client(name: str, value: object) -> dict[str, Any]:
    c = canonical.check_keys(name, value, _CLIENT)
    checks: dict[str, Callable[[str, object], Any]] = {
        "identity": _hex, "local_steps": positive_int, "batch": positive_int,
    }  # fmt: skip
    return {key: check(f"{name}.{key}", c[key]) for key, check in checks.items()}


def _list(name: str, value: object) -> list[Any] | tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise InputError(name, value, "must be a list")
    return value


def _hex(name: str, value: object) -> str:
    if not canonical.is_digest(value):
        raise InputError(name, value, "must be 32 bytes as 64 small hex digits")
    return str(value)


def _name(name: str, value: object) -> str:
    if isinstance(value, str) and 0 < len(value) <= 200 and value.isprintable():
        return value
    raise InputError(name, value, "must be a name of 1 to 200 printable letters")
