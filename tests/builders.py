"""What tests of many rooms set up: plans, the keys of units, damaged bytes, and the bits of the reference.

A test names what it is about in flat words (`a_plan(rounds=4, level="unit")`); how a plan lays them out stands here.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from confide.graph import Graph
from confide.plans import words
from confide.plans.build import Announced, model_of, of_deployment
from confide.plans.config import Experiment
from confide.plans.plan import Clients, Clocks, Deployment, Learning, Model, Network, Plan, Unit
from confide.plans.privacy import Privacy
from confide.privacy.price import Price, price_run
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL
from confide.rounds.arithmetic import on_grid
from confide.rounds.clipping import Clip
from confide.rounds.reference import prepare
from confide.rounds.schemes import scheme

# ---- plans

# Where a flat word of a test stands in a plan: the tables on the way, then the field.
PLACES: Mapping[str, tuple[str, ...]] = (
    dict.fromkeys(("rounds", "scheme", "secure", "units", "privacy", "deployment", "algorithm"), ())
    | dict.fromkeys(("step", "sampled", "replacement", "dropout", "fraction_bits"), ("algorithm",))
    | dict.fromkeys(("bound", "norm"), ("algorithm", "clip"))
    | dict.fromkeys((f.name for f in fields(Privacy)), ("privacy",))
    | dict.fromkeys(("ridge", "convex", "undeclared", "built_in"), ("algorithm", "model"))
    | dict.fromkeys(("window", "protocol"), ("deployment",))
    | dict.fromkeys((f.name for f in fields(Clocks)), ("deployment", "clocks"))
)
OTHERS: Mapping[str, tuple[str, ...]] = {  # under another name
    "clip": ("algorithm", "clip", "kind"),
    "dim": ("algorithm", "model", "length"),
    "model": ("algorithm", "model", "kind"),
    "exchange": ("deployment", "clocks", "neighbours"),
    "start": ("deployment", "clocks", "begin"),
    "failures": ("graph", "failures"),
}
_USUAL = Plan(
    rounds=100,
    graph=Network((Graph.ring(4),)),
    algorithm=Learning(Model("linear", 3), 0.1, 5, Clip("example", 1.0), replacement=False),
    scheme=scheme("homomorphic", sigma=0.3, noise="gaussian"),
    privacy=Privacy(),
    units=(Unit((Clients(1, 8, 20),)),) * 4,
)


def a_plan(**changes: Any) -> Plan:
    """A plan of a simulation of four units of twenty clients."""
    return changed(_USUAL, **changes)


def a_shared_plan(**changes: Any) -> Plan:
    """Four rounds of noise that everybody hears, all five clients in each: its price is a line of arithmetic."""
    usual = {"graph": Graph.ring(3), "scheme": scheme("shared", sigma=1.0, noise="gaussian"), "rounds": 4}
    return a_plan(**usual | {"clients": 5, "dim": 2, "batch": 1} | changes)


def a_deployed_plan(**changes: Any) -> Plan:
    """A plan of a deployment of four units of three clients, who take one to ten steps on logistic losses."""
    made = changes.pop("scheme", scheme("homomorphic", sigma=0.3, noise="gaussian"))
    usual = {
        "graph": on_grid(Graph.ring(4)), "sampled": 3, "units": units(forged_units([3] * 4)), "model": "logistic",
        "ridge": 0.1, "fraction_bits": 24, "deployment": Deployment(Clocks(begin=1.0)),
        "scheme": replace(made, law=made.law.discrete),
    }  # fmt: skip
    return a_plan(**usual | changes)


def changed(plan: Plan, **changes: Any) -> Plan:
    """The plan with other words, as flat as a test writes them."""
    tables: dict[str, Any] = {f.name: getattr(plan, f.name) for f in fields(Plan)}
    if "graph" in changes:
        given = changes.pop("graph")
        graphs = (given,) if isinstance(given, Graph) else tuple(given)
        tables["graph"] = replace(plan.graph, graphs=graphs)
        tables["units"] = (plan.units * graphs[0].P)[: graphs[0].P] if plan.deployment is None else plan.units
    of_clients = {name: changes.pop(name) for name in ("clients", "local_steps", "batch") if name in changes}
    sizes = {name: changes.pop(name) for name in ("sigma", "sigma_pair", "sigma_client") if name in changes}
    law = changes.pop("law", None)
    for name, value in changes.items():
        *way, last = OTHERS.get(name, (*PLACES.get(name, ()), name))
        _set(tables, way, last, value)
    if of_clients:
        tables["units"] = tuple(replace(u, clients=_clients(u, **of_clients)) for u in tables["units"])
    if sizes:
        tables["scheme"] = tables["scheme"].resized(**sizes)
    if law is not None:
        tables["scheme"] = replace(tables["scheme"], law=law)
    return Plan(**tables)


def _set(tables: dict[str, Any], way: Sequence[str], last: str, value: Any) -> None:
    if not way:
        tables[last] = value
        return
    chain = [tables[way[0]]]
    for step in way[1:]:
        chain.append(getattr(chain[-1], step))
    made = replace(chain[-1], **{last: value})
    for table, step in zip(chain[-2::-1], reversed(way[1:]), strict=True):
        made = replace(table, **{step: made})
    tables[way[0]] = made


def _clients(unit: Unit, clients: int | None = None, local_steps: Any = None, batch: Any = None) -> tuple[Clients, ...]:
    """Equal clients; of a range (low, high) one client has the lowest and all others the highest."""
    first = unit.clients[0]
    K = unit.size if clients is None else clients
    ends = [x if isinstance(x, tuple) else (x, x) for x in (local_steps or first.local_steps, batch or first.batch)]
    low, high = zip(*ends, strict=True)
    if low == high:
        return (Clients(*low, count=K),)
    return (Clients(*low), Clients(*high, count=K - 1))


def deployed(e: Experiment, announced: Sequence[Announced] | None = None, **clocks: float) -> Plan:
    """The plan of this experiment between these units, by default between units that nobody can be."""
    announced = announced or forged_units(e.problem.federation.K.tolist())
    model = model_of(e.problem, e.algorithm)
    clocks = {"start": 1.0} | clocks
    return of_deployment(announced, e.graph, e.algorithm, model, e.rounds, e.seed, e.privacy, **clocks)


def priced(
    privacy: Privacy, problem: Problem, graphs: Sequence[Graph], algorithm: GFL, rounds: int, seed: int = 0
) -> Price:
    """As a simulation is priced before its first round."""
    return price_run(problem, graphs, algorithm, rounds, seed, privacy)


# ---- units


def key(n: int) -> str:
    """What has the form of a public key; nobody has the secret one."""
    return f"{n:064x}"


def forged_units(sizes: Sequence[int], authority: bool = False) -> list[Announced]:
    """Units of so many clients each, with keys that nobody can sign with."""
    apart = max(100, 10 + max(sizes))
    return [
        Announced(
            f"Klinik {p}",
            key(apart * p),
            key(apart * p + 1),
            tuple(key(apart * p + 10 + k) for k in range(K)),
            key(apart * p + 2) if authority else "",
        )
        for p, K in enumerate(sizes)
    ]


def units(announced: Sequence[Announced], local_steps: int = 2, batch: int = 8) -> tuple[Unit, ...]:
    """Units as a plan has them, each client with the same work."""
    return tuple(
        Unit(
            tuple(Clients(local_steps, batch, identity=one) for one in unit.clients), unit.name, unit.identity,
            unit.key_agreement, unit.authority,
        )
        for unit in announced
    )  # fmt: skip


# ---- runs


def reference_bits(e: Experiment, rounds: int | None = None) -> list[list[int]]:
    """The states of all units after these rounds of the reference engine, as whole numbers."""
    rounds, cap = rounds or e.rounds, None if e.privacy is None else words.cap(e.privacy.participation)
    r = prepare(e.problem, e.graph, e.algorithm, rounds, e.seed, cap=cap)(0)
    w = r.start(np.tile(e.problem.start, (e.graph[0].P, 1)))
    for i in range(1, rounds + 1):
        w = r.round(i, w).w
    found: list[list[int]] = np.asarray(w).tolist()
    return found


# ---- bytes


def mutated(r: random.Random, raw: bytes, others: Sequence[bytes] = ()) -> bytes:
    """Bytes cut, changed, added, taken out, doubled, or continued as one of the others is."""
    found = bytearray(raw)
    for _ in range(r.randint(1, 3)):
        at = r.randint(0, len(found))
        match r.randrange(7 + bool(others)):
            case 0:
                del found[at:]
            case 1:
                found[at : at + 1] = r.randbytes(1)
            case 2 if at < len(found):
                found[at] ^= 1 << r.randrange(8)
            case 3:
                found[at:at] = r.randbytes(r.randrange(1, 9))
            case 4:
                del found[at : at + r.randint(1, 40 if r.random() < 0.3 else 4)]
            case 5:
                found[at:at] = found[at : at + r.randint(1, 40)]
            case 6:
                found += r.randbytes(r.randrange(1, 9))
            case 7:
                other = r.choice(others)
                found[at:] = other[r.choice((at, r.randrange(len(other) + 1))) :]
    return bytes(found)
