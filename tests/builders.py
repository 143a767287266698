"""What tests of many rooms set up: plans, the keys of units, damaged bytes, and the bits of the reference.

A test names what it is about in flat words (`a_plan(rounds=4, level="unit")`); how a plan lays them out stands here.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from confide.privacy.agreement import Unit, make

from confide.graph.graph import Graph
from confide.plans.config import Experiment
from confide.plans.plan import Plan, scheme_fields
from confide.rounds.arithmetic import on_grid
from confide.rounds.reference import prepare
from confide.rounds.schemes import Scheme, scheme

# ---- plans


def a_plan(**changes: Any) -> Plan:
    """A plan of a simulation of four units; `graph` and `scheme` may be objects or what a plan makes of them."""
    usual: dict[str, Any] = {
        "graph": Graph.ring(4),
        "scheme": scheme("homomorphic", sigma=0.3, noise="gaussian"),
        "rounds": 100,
        "step": 0.1,
        "bound": 1.0,
        "norm": "l2",
        "clip": "example",
        "sampled": 5,
        "clients": 20,
        "dim": 3,
        "local_steps": 1,
        "batch": None,
        "level": "client",
        "adjacency": "replace",
        "proof": "none",
        "participation": "all",
        "threat": "links",
        "release": "none",
        "delta": 1e-5,
    }
    return Plan(**_laid_out(usual | changes))


def a_shared_plan(**changes: Any) -> Plan:
    """Four rounds of noise that everybody hears, all five clients in each: its price is a line of arithmetic."""
    usual = {"graph": Graph.ring(3), "scheme": scheme("shared", sigma=1.0, noise="gaussian"), "rounds": 4}
    return a_plan(**usual | {"clients": 5, "dim": 2, "batch": 1} | changes)


def a_deployed_plan(**changes: Any) -> Plan:
    """A plan of a deployment of four units of three clients; entries of its deployment are words like the others."""
    law = "discrete-" + str(getattr(changes.get("scheme"), "law", "gaussian"))
    usual = {"graph": on_grid(Graph.ring(4)), "sampled": 3, "clients": 3, "local_steps": (1, 10), "batch": 8}
    plan = usual | {"deployment": a_deployment(**{n: changes.pop(n) for n in list(changes) if n in DEPLOYMENT})}
    return a_plan(**_laid_out({"scheme": scheme("homomorphic", sigma=0.3)} | plan | changes, law))


def changed(plan: Plan, **changes: Any) -> Plan:
    """The plan with other words, those of its deployment and of its scheme among them."""
    inner = {name: changes.pop(name) for name in list(changes) if name in DEPLOYMENT}
    noise = {name: changes.pop(name) for name in list(changes) if name in plan.scheme}
    if inner:
        changes["deployment"] = dict(plan.deployment or {}) | inner
    if noise:
        changes["scheme"] = dict(plan.scheme) | noise
    return replace(plan, **_laid_out(changes))


def deployed(e: Experiment, **clocks: float) -> Plan:
    """The plan of this experiment between units that nobody can be."""
    return make(e, forged_units(e.problem.federation.K.tolist()), **clocks)


def _laid_out(words: dict[str, Any], law: str | None = None) -> dict[str, Any]:
    made = dict(words)
    if isinstance(words.get("graph"), Graph):
        made["graph"] = words["graph"].to_dict()
    if isinstance(words.get("scheme"), Scheme):
        made["scheme"] = scheme_fields(words["scheme"], law)
    return made


# ---- deployments

DEPLOYMENT: dict[str, Any] = {
    "protocol": 1,
    "fraction_bits": 24,
    "window": 4,
    "start": 0.0,
    "degree": 0,
    "adapt": 60.0,
    "tick": 60.0,
    "exchange": 30.0,
    "drain": 300.0,
    "model": {"kind": "logistic", "rho": 0.1},
    "replacement": False,
    "units": (),
}


def a_deployment(**changes: Any) -> dict[str, Any]:
    """The table `deployment` of a plan, of four units of three clients."""
    return DEPLOYMENT | {"units": announced(forged_units([3] * 4))} | changes


def key(n: int) -> str:
    """What has the form of a public key; nobody has the secret one."""
    return f"{n:064x}"


def forged_units(sizes: Sequence[int], authority: bool = False) -> list[Unit]:
    """Units of so many clients each, with keys that nobody can sign with."""
    apart = max(100, 10 + max(sizes))
    return [
        Unit(
            f"Klinik {p}",
            key(apart * p),
            key(apart * p + 1),
            tuple(key(apart * p + 10 + k) for k in range(K)),
            key(apart * p + 2) if authority else "",
        )
        for p, K in enumerate(sizes)
    ]


def announced(units: Sequence[Unit], local_steps: int = 2, batch: int = 8) -> list[dict[str, Any]]:
    """Units as a deployment lists them, each client with the same work."""
    return [
        {name: getattr(unit, name) for name in ("name", "identity", "exchange_key", "authority")}
        | {"clients": [{"identity": one, "local_steps": local_steps, "batch": batch} for one in unit.clients]}
        for unit in units
    ]


# ---- runs


def reference_bits(e: Experiment, rounds: int | None = None) -> list[list[int]]:
    """The states of all units after these rounds of the reference engine, as whole numbers."""
    rounds, cap = rounds or e.rounds, None if e.privacy is None else e.privacy.cap
    r = prepare(e.problem, e.graph, e.algorithm, rounds, e.seed, cap=cap)(0)
    w = r.start(np.zeros((e.graph[0].P, e.problem.M)))
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
