"""From what a user writes (objects or a config, and announced units) to the plan."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from confide.base.arrays import Ints
from confide.base.errors import InputError
from confide.graph import Graph
from confide.plans.plan import NETWORK, Clients, Clocks, Deployment, Learning, Model, Network, Plan, Start, Unit
from confide.plans.privacy import Privacy
from confide.problems import start
from confide.problems.models import GLM, OWN, Started, is_built_in
from confide.problems.models import Model as AnyModel
from confide.problems.networks import network as networks
from confide.problems.networks import tensors
from confide.problems.problem import Problem
from confide.problems.train_function import Own
from confide.rounds.algorithm import GFL
from confide.rounds.arithmetic import on_grid
from confide.rounds.local import sgd


class Announced(NamedTuple):
    """A unit as its organisation announces it: names and public keys, nothing else.

    Attributes:
        name: of the unit in the plan.
        identity, key_agreement: of its server, 32 bytes in hex.  clients: identities, likewise.
        authority: sha256 of the unit's CA certificate, if it has one.
    """

    name: str
    identity: str
    key_agreement: str
    clients: tuple[str, ...]
    authority: str = ""


def of_run(problem: Problem, graphs: Sequence[Graph], algorithm: GFL, rounds: int, seed: int, privacy: Privacy) -> Plan:
    """The plan of a simulation.

    Raises:
        InputError: nothing bounds a client's influence, or the settings contradict each other.
    """
    E, batch = algorithm.settle(problem.federation, seed)
    units = [
        Unit(_counted(E[first:last], batch[first:last]))
        for first, last in zip(problem.federation.unit_offsets, problem.federation.unit_offsets[1:], strict=False)
    ]
    return _assembled(graphs, algorithm, model_of(problem, algorithm), units, rounds, privacy, None)


def of_deployment(
    announced: Sequence[Announced],
    graphs: Sequence[Graph],
    algorithm: GFL,
    model: Model,
    rounds: int,
    seed: int,
    privacy: Privacy | None,
    *,
    window: int = 4,
    adapt: float = 60.0,
    tick: float | None = None,
    exchange: float = 30.0,
    drain: float = 300.0,
    start: float | None = None,
) -> Plan:
    """The plan of a deployment among these units, whose data nobody has in one place.

    Args:
        seed: of clients' local steps and batches, where these are drawn from a range.
        window: rounds that may be open on an edge.
        adapt, tick, exchange, drain, start: of `Clocks`, in seconds; `tick` is `adapt` by default, so that a round is
            published at the same instant however long training took. `start`, when round 1 opens, is now by default.

    Raises:
        InputError: real machines cannot do what the settings ask.
    """
    if privacy is None:
        raise InputError("privacy", None, "a deployment states what it protects: set algorithm.clip and [privacy]")
    E, batch = algorithm.per_client(sum(len(unit.clients) for unit in announced), seed)
    units, c = [], 0
    for unit in announced:
        clients = tuple(Clients(int(E[c + k]), int(batch[c + k]), identity=key) for k, key in enumerate(unit.clients))
        units.append(Unit(clients, unit.name, unit.identity, unit.key_agreement, unit.authority))
        c += len(clients)
    begin = float(math.ceil(time.time())) if start is None else float(start)
    clocks = Clocks(begin, float(adapt), float(adapt if tick is None else tick), float(exchange), float(drain))
    return _assembled(graphs, algorithm, model, units, rounds, privacy, Deployment(clocks, window))


def _assembled(
    graphs: Sequence[Graph],
    algorithm: GFL,
    model: Model,
    units: Sequence[Unit],
    rounds: int,
    privacy: Privacy,
    deployment: Deployment | None,
) -> Plan:
    if algorithm.clip is None:
        remedy = "without a clip nothing bounds a client's influence; set algorithm.clip and algorithm.bound"
        raise InputError("algorithm.clip", "none", remedy)
    fixed, scheme, sums = algorithm.arithmetic == "fixed", algorithm.scheme, algorithm.sums
    if sums is not None and scheme.sigma_client:  # which is in the sums
        scheme = scheme.of_servers
    return Plan(
        rounds=rounds,
        graph=Network(tuple(on_grid(g) for g in graphs) if fixed else tuple(graphs), algorithm.failures),
        algorithm=Learning(
            model,
            float(algorithm.step),
            int(algorithm.sampled),
            algorithm.clip,
            algorithm.replacement,
            float(algorithm.dropout),
            algorithm.fraction_bits if fixed else None,
        ),
        scheme=replace(scheme, law=scheme.law.discrete) if fixed else scheme,
        privacy=privacy,
        units=tuple(units),
        secure=sums,
        deployment=deployment,
    )


def model_of(problem: Problem, algorithm: GFL) -> Model:
    """What a plan says of a problem: nothing of its data, but why they have no price."""
    return of_model(problem.model, problem.M, algorithm.on(problem.model).local is sgd, problem.undeclared)


def of_model(model: AnyModel, length: int, sgd: bool, undeclared: tuple[str, ...] = ()) -> Model:
    """The same of a model with so many numbers; `sgd`: clients take confide's own local step with its gradients."""
    built_in, network = sgd and not isinstance(model, Own), isinstance(model, networks.Network)
    declared = isinstance(model, GLM) and getattr(model, "convex", False) is True
    return Model(
        kind=NETWORK if network and built_in else model.name if is_built_in(model) and built_in else OWN,
        length=length,
        ridge=float(model.rho) if built_in else 0.0,  # a function of one's own has its regulariser inside
        convex="" if is_built_in(model) or not declared else type(model).__name__,
        built_in=built_in,
        undeclared=undeclared,
        start=start_of(model),
    )


def start_of(model: AnyModel) -> Start | None:
    """What a plan says of where a model begins; the weights themselves are in a file."""
    if not isinstance(model, Started):
        return None
    found, network = start.tensors(model), isinstance(model, networks.Network)
    largest = float(np.abs(start.flat(found)).max())
    frozen = tensors.digest(model.frozen) if isinstance(model, networks.Network) and model.frozen else ""
    return Start(tensors.digest(found), largest, frozen) if network or largest else None


def _counted(E: Ints, batch: Ints) -> tuple[Clients, ...]:
    """Equal clients in one row: a million of them are a few rows."""
    counts = Counter(zip(E.tolist(), batch.tolist(), strict=True))
    return tuple(Clients(steps, size, n) for (steps, size), n in sorted(counts.items()))
