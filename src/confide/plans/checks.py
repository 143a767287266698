"""Do the tables of a plan agree with each other? What a proof asks of them, `privacy.deviation` checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from confide.base import canonical
from confide.base.errors import InputError
from confide.plans.words import Consensus, Level, check_servers
from confide.rounds.algorithm import check_round
from confide.rounds.arithmetic import WEIGHT_BITS
from confide.rounds.schemes import Exchange, named

if TYPE_CHECKING:
    from confide.plans.plan import Plan
    from confide.secure.settings import SecureSum

LARGEST_ROSTER: Final = 10**6  # clients in all that are written one by one


def check(plan: Plan) -> None:
    """Refuse a plan that contradicts itself."""
    if len(plan.units) != plan.P:
        raise InputError("units", len(plan.units), f"the graph has {plan.P} servers, one for each unit")
    if sum(len(unit.clients) for unit in plan.units) > LARGEST_ROSTER:
        raise InputError("units", len(plan.units), f"at most {LARGEST_ROSTER} clients in all are written")
    for p, unit in enumerate(plan.units):
        if unit.size < plan.algorithm.sampled:
            remedy = f"unit {p} has only {unit.size} clients; sample at most that many, or enrol more"
            raise InputError("algorithm.sampled", plan.algorithm.sampled, remedy)
    check_servers(plan.privacy.threat, plan.P)
    _check_grid(plan)
    if plan.privacy.level is Level.EXAMPLE and plan.algorithm.replacement:
        remedy = "drawn with replacement, one example may fill a mini-batch; set algorithm.replacement = false"
        raise InputError("privacy.level", str(plan.privacy.level), remedy)
    if (part := plan.privacy.participation).by_chance and plan.privacy.level is Level.UNIT:
        raise InputError("privacy.participation", str(part), "a unit takes part in every round; use all")
    if plan.secure is not None:
        _check_secure(plan, plan.secure)
    if plan.deployment is not None:
        _check_deployment(plan)
    a, fixed = plan.algorithm, plan.algorithm.fraction_bits is not None
    check_round(plan.scheme, plan.graph.failures, a.clip, fixed=fixed, built_in=a.model.built_in)


def _check_grid(plan: Plan) -> None:
    """Fixed point draws noise on its grid and has weights that are multiples of 2^-16; floats know no grid."""
    noisy = bool(plan.scheme.sigma or plan.scheme.sigma_pair)
    if plan.algorithm.fraction_bits is None:
        if noisy and plan.scheme.law.on_grid:
            raise InputError("scheme.law", str(plan.scheme.law), "is drawn on a grid; use fixed arithmetic")
        return
    if noisy and not plan.scheme.law.on_grid:
        raise InputError("scheme.law", str(plan.scheme.law), f"fixed point draws {plan.scheme.law.discrete}")
    for graph in plan.graph.graphs:
        for name, weights in (("edge_weights", graph.edge_weights), ("own_weights", graph.own_weights)):
            off = np.flatnonzero(np.asarray(weights) * 2.0**WEIGHT_BITS % 1.0)
            if len(off):
                remedy = f"must be a multiple of 2^-{WEIGHT_BITS}, as confide.rounds.arithmetic.on_grid makes it"
                raise InputError(f"graph.graphs.{name}[{off[0]}]", float(weights[off[0]]), remedy)


def _check_secure(plan: Plan, secure: SecureSum) -> None:
    if secure.parameters.clients != plan.algorithm.sampled:
        remedy = f"must be the clients that are sampled, {plan.algorithm.sampled}"
        raise InputError("secure.parameters.clients", secure.parameters.clients, remedy)
    if plan.scheme.sigma_client:
        remedy = "is inside the secure sum, of which a plan has it on psi: secure.sigma; here 0"
        raise InputError("scheme.sigma_client", plan.scheme.sigma_client, remedy)
    if plan.algorithm.fraction_bits is None:
        remedy = "masks cancel in a ring of integers, not in floating point; use fixed"
        raise InputError("algorithm.arithmetic", "float", remedy)
    secure.encoding(plan.algorithm.update_bound, plan.algorithm.fraction_bits)


def _check_deployment(plan: Plan) -> None:
    """What real machines cannot do, or must be told."""
    a, failures = plan.algorithm, plan.graph.failures
    if len(plan.graph.graphs) != 1:
        raise InputError("graph.topology", len(plan.graph.graphs), "a deployment has one graph; name one")
    if failures:
        raise InputError("graph.link_failure", failures, "is for simulations; a real network fails by itself, set 0")
    if a.dropout:
        raise InputError("algorithm.dropout", a.dropout, "is for simulations; a real network fails by itself, set 0")
    if a.fraction_bits is None:
        raise InputError("algorithm.arithmetic", "float", "servers compute with integers; set 'fixed'")
    if a.model.undeclared:
        raise InputError("algorithm.model.undeclared", a.model.undeclared[0], "must be declared for a deployment")
    if a.model.kind == "own" and a.clip.kind != "update":
        remedy = "a train function of one's own is clipped as a whole: 'update'"
        raise InputError("algorithm.clip", a.clip.kind, remedy)
    if isinstance(plan.privacy.release, Consensus):
        remedy = "servers of a deployment send nothing without noise; release centroid:SIGMA"
        raise InputError("privacy.release", str(plan.privacy.release), remedy)
    if plan.scheme.exchange is not Exchange.GRAPH:
        raise InputError("scheme.name", plan.scheme.name, "its servers send each other nothing; deploy another")
    if not named(plan.scheme):
        raise InputError(
            "scheme.name", plan.scheme.name, "differs from the scheme of this name, which alone is deployed"
        )
    plan.scheme.only_plain("a deployment")
    if plan.scheme.sigma_client:
        remedy = "must be 0: clients of a deployment add noise inside a secure sum; algorithm.aggregation = 'secure'"
        raise InputError("scheme.sigma_client", plan.scheme.sigma_client, remedy)
    _check_roster(plan)


def _check_roster(plan: Plan) -> None:
    """Every unit and client has a key, and nobody is there twice."""
    places: dict[tuple[str, str], str] = {}

    def take(kind: str, value: str, place: str) -> None:
        if kind != "name" and not canonical.is_digest(value):
            raise InputError(place, value, "must be 32 bytes as 64 small hex digits")
        if (kind, value) in places:
            raise InputError(place, value, f"is that of {places[kind, value]} too; each has its own")
        places[kind, value] = place

    for p, unit in enumerate(plan.units):
        here = f"units[{p}]"
        if not (0 < len(unit.name) <= 200 and unit.name.isprintable()):
            raise InputError(f"{here}.name", unit.name, "must be a name of 1 to 200 printable letters")
        if unit.authority and not canonical.is_digest(unit.authority):
            raise InputError(f"{here}.authority", unit.authority, "must be 32 bytes as 64 small hex digits")
        take("name", unit.name, f"{here}.name")
        take("key", unit.identity, f"{here}.identity")
        take("agreement", unit.key_agreement, f"{here}.key_agreement")
        for k, client in enumerate(unit.clients):
            if client.count != 1:
                raise InputError(f"{here}.clients[{k}].count", client.count, "must be 1: every client has its own key")
            take("key", client.identity, f"{here}.clients[{k}].identity")
