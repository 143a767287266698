"""A plan rehearsed in a box: `rehearse` lets clients train, on a problem's data or with a train function of one's own.

Everything is drawn from a seed, and what comes out is what `rounds.reference` gives, bit for bit. Below it, units ready
for `network.Network`: `training_units` are those of a rehearsal; those of `scripted` have clients that send arbitrary
numbers instead of training, summed in clear: as little work as possible around the exchange, so that faults can be
explored by the million.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from confide.base.arrays import Floats
from confide.base.errors import InputError
from confide.base.randomness import Purpose, below, key, words
from confide.deploy.machines import client_messages as messages
from confide.deploy.machines import own_training, training
from confide.deploy.machines.client import Client, ClientTerms
from confide.deploy.machines.exchange import Rules
from confide.deploy.machines.terms import Terms, integer_weights, neighbours, of_plan
from confide.deploy.machines.training import Trainer
from confide.deploy.node import seeded
from confide.deploy.store.books import Books, Vector, as_bytes
from confide.deploy.store.record import Record
from confide.deploy.store.store import MemoryStore, Store
from confide.graph.graph import Graph
from confide.plans.build import Announced, start_of
from confide.plans.plan import Clocks, Plan
from confide.privacy.ledger import Cost, Event
from confide.privacy.price import Price, agreed
from confide.problems.networks import network as networks
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL
from confide.rounds.arithmetic import FixedArithmetic, on_grid
from confide.rounds.local import LocalTask
from confide.rounds.noise import integer_noise
from confide.rounds.schemes import Scheme
from confide.secure.client import Member
from confide.secure.keys import Identity
from confide.testing.network import Network, Unit, Weather

LARGEST_UPDATE = 1000
PLAN = bytes(32)


def scripted_update(seed: int, i: int, p: int, length: int) -> Vector:
    """What the one client of unit p sends in round i."""
    return below(words(key(seed, Purpose.BATCHES, i, p), length), 2 * LARGEST_UPDATE + 1) - LARGEST_UPDATE


class ScriptedClient:
    """Answers every invitation with `scripted_update`, in clear, and remembers nothing."""

    def __init__(self, seed: int, p: int, length: int) -> None:
        self._seed, self._p, self._length = seed, p, length

    def hello(self) -> bytes:
        return messages.encode(messages.Enrol(1, PLAN, self._p, 0))

    def receive(self, raw: bytes) -> list[bytes]:
        invite = messages.from_server(raw, 1024 + 8 * self._length)
        if not isinstance(invite, messages.Invite):
            return []
        update = scripted_update(self._seed, invite.round, self._p, self._length)
        return [messages.encode(messages.Update(invite.round, invite.attempt, as_bytes(update)))]


@cache
def server_identity(p: int) -> Identity:
    """Of server p in a box: no secret."""
    return Identity.of(p.to_bytes(32, "big"))


def client_identity(p: int, k: int) -> Identity:
    """Of client k of unit p in a box: no secret."""
    return Identity.of(b"client" + p.to_bytes(13, "big") + k.to_bytes(13, "big"))


def forged_units(P: int, K: int | Sequence[int]) -> list[Announced]:
    """Units as `confide.deploy.announce` gives them, but with keys that anybody can compute: for plans of a box.

    Args:
        P: how many.
        K: clients of each unit, one number for all or a number for each.

    Returns:
        Units for `confide.deploy.agree`.

    >>> [(unit.name, len(unit.clients)) for unit in forged_units(2, [3, 5])]
    [('unit 0', 3), ('unit 1', 5)]
    """
    sizes = [K] * P if isinstance(K, int) else K
    return [
        Announced(
            f"unit {p}",
            server_identity(p).public.hex(),
            f"{p:064x}",
            tuple(client_identity(p, k).public.hex() for k in range(size)),
        )
        for p, size in zip(range(P), sizes, strict=True)
    ]


class Rehearsal:
    """A plan in a box, ready to be run; `rehearse` runs it to its end.

    Args:
        plan: of forged units, as `confide.deploy.agree` makes it.
        problem: on whose data the clients train the plan's model; its unit p has the clients of the plan's unit p.
        train: in place of a problem, "module:function", as a client's TOML names a train function of one's own.
        train_config: (unit, client) -> the client's `[train_config]`.
        weather: what goes wrong on the way; nothing by default.
        seed: of samples, batches, noise and weather.

    Attributes:
        network: the box; its clock is `network.now`, in virtual seconds since the plan's start.
        price: what the plan's publications cost.

    Raises:
        InputError: the plan is not of forged units, or there is not exactly one of problem and train.
        RunError: the train function fails; it is called once before the first round, since in a round its errors go to
            the client's log, and zeros to the sum.
    """

    def __init__(
        self,
        plan: Plan,
        problem: Problem | None = None,
        *,
        train: str | None = None,
        train_config: Callable[[int, int], Mapping[str, Any]] = lambda unit, client: {},
        weather: Weather | None = None,
        seed: int = 0,
    ) -> None:
        self.price = agreed(plan)
        source: Problem | Trainer
        if problem is not None and train is None:
            source = problem
        elif problem is None and train is not None:
            source = own_training.entry_point(train, plan.algorithm.clip, plan.algorithm.step)
        else:
            raise InputError("train", train, "give either a problem, or train = 'package.module:function'")
        units = training_units(self.price, source, seed, train_config=train_config)
        if not isinstance(source, Problem):
            source(np.zeros(plan.algorithm.model.length), 1, train_config(0, 0))
        self.network = Network(units, weather, seed)

    def run(self, until: float = math.inf) -> None:
        """On to a moment, in virtual seconds from the begin, or till all servers have finished."""
        self.network.run(until, self.network.finished)

    @property
    def finished(self) -> bool:
        """Whether every server has decided its last round and has nothing under way."""
        return self.network.finished()

    @property
    def models(self) -> Floats:
        """The model of every server as it stands, a row each; their mean is what a release would reveal, with noise."""
        states = np.array([unit.store.load().w for unit in self.network.units])
        return np.asarray(states * self.price.arithmetic.quantum)

    @property
    def ledgers(self) -> list[list[Event]]:
        """For every server its ledger: `kind`, `round` and `cost` of each event, from the first."""
        return [[entry.event for entry in unit.store.entries()] for unit in self.network.units]

    @property
    def failed(self) -> int:
        """How many trainings failed; the log says why."""
        machines = (machine for unit in self.network.units for machine in unit.machines)
        return sum(machine.failed for machine in machines if isinstance(machine, Client))


def rehearse(
    plan: Plan,
    problem: Problem | None = None,
    *,
    train: str | None = None,
    train_config: Callable[[int, int], Mapping[str, Any]] = lambda unit, client: {},
    weather: Weather | None = None,
    seed: int = 0,
) -> Rehearsal:
    """Run a plan in a box to its end: the machines, messages and sums of a deployment, in virtual time.

        played = rehearse(plan, problem, weather=Weather(loss=0.1, calm=600.0))
        played.models, played.ledgers, played.failed

    Args and Raises: those of `Rehearsal`, which can also be run step by step.

    Returns:
        The `Rehearsal` after its last round: `models`, `ledgers`, `failed`.
    """
    found = Rehearsal(plan, problem, train=train, train_config=train_config, weather=weather, seed=seed)
    found.run()
    return found


def scripted(
    graph: Graph,
    scheme: Scheme,
    *,
    rounds: int,
    length: int = 2,
    window: int = 4,
    seed: int = 0,
    allowed: int | None = None,
    store: Callable[[int, Books], Store] = lambda _, books: MemoryStore(books),
    **times: Any,
) -> list[Unit]:
    """A unit for each server of the graph, with one client that sends `scripted_update`, whatever the model.

        units = scripted(Graph.ring(4), scheme("homomorphic", sigma=0.5), rounds=20)

    A publication costs rho = 1 (a figure, not a bound).

    Args:
        length: numbers in the model.
        window: rounds that may be open on an edge.
        seed: of the updates and the noise.
        allowed: publications that the budget pays for; all by default.
        times: of `Clocks`, in virtual seconds.
    """
    g, arithmetic = on_grid(graph), FixedArithmetic(1, 10)
    noise = integer_noise(seed, arithmetic)
    identities = tuple(server_identity(q).public for q in range(g.P))
    units = []
    for p in range(g.P):
        weights = neighbours(g, p)
        terms = Terms(
            rules=Rules(p, PLAN, integer_weights(weights), rounds, window, length, 2**62, identities, scheme.by_link),
            clients=1,
            largest_update=LARGEST_UPDATE,
            scheme=scheme,
            arithmetic=arithmetic,
            own_weight=float(g.own_weights[p]),
            weights=weights,
            decays=(0.0,),
            costs=(Cost(1.0, None, 1.0, scheme.sigma, str(scheme.law.discrete)),) * rounds,
            allowed=rounds if allowed is None else allowed,
            edges=tuple((int(i), int(j)) for i, j in g.edges),
            clocks=Clocks(**{"adapt": 10.0, "tick": 10.0, "neighbours": 2.0, "drain": 20.0} | times),
        )
        books = Books.fresh(np.zeros(length, np.int64), tuple(weights))
        clients = [partial(ScriptedClient, seed, p, length)]
        units.append(Unit(terms, store(p, books), clients, noise, lambda _: (0,), server_identity(p).sign))
    return units


def training_units(
    price: Price,
    source: Problem | Trainer,
    seed: int,
    *,
    store: Callable[[int, Books], Store] = lambda _, books: MemoryStore(books),
    rounds: int | None = None,
    train_config: Callable[[int, int], Mapping[str, Any]] = lambda unit, client: {},
) -> list[Unit]:
    """The units of a plan of forged units, with clients that train.

    Args:
        price: of the plan.
        source: the problem on whose data they train the plan's model, or a train function of one's own.
        seed: of samples, batches and noise; those of repetition 0 of `reference.prepare` with this seed.
        rounds: publications that the budget still pays for; all by default.
        train_config: (unit, client) -> what a train function is told.
    """
    plan, arithmetic = price.plan, price.arithmetic
    noise = seeded.server_noise(seed, arithmetic)
    identities = tuple(server_identity(p).public for p in range(plan.P))
    units = []
    for p, K in enumerate(_checked_sizes(plan, source)):
        terms = of_plan(price, p, rounds)
        rules = terms.rules._replace(identities=identities)  # whomever the plan names: here the box signs
        terms = replace(terms, clocks=_virtual(terms.clocks), rules=rules)
        books = Books.fresh(_start(plan, arithmetic, source), tuple(terms.weights))
        clients = []
        for k in range(K):
            record = Record(ClientTerms.of_plan(plan, p, k).owner)
            trains = _on_data(plan, source, seed, p, k) if isinstance(source, Problem) else source
            clients.append(partial(_client, plan, seed, p, k, record, trains, train_config(p, k)))
        sample = seeded.sample(seed, p, arithmetic.L, K)
        units.append(Unit(terms, store(p, books), clients, noise, sample, server_identity(p).sign))
    return units


def _start(plan: Plan, arithmetic: FixedArithmetic, source: Problem | Trainer) -> Vector:
    """The model that every server begins with."""
    if isinstance(source, Problem):
        if start_of(source.model) != plan.algorithm.model.start:
            raise InputError("problem.model", type(source.model).__name__, "begins elsewhere than the plan")
        return arithmetic.state(source.start)
    if plan.algorithm.model.start is not None:
        remedy = "the plan has initial weights, which only a problem brings: rehearse it with one"
        raise InputError("train", None, remedy)
    return np.zeros(plan.algorithm.model.length, np.int64)


def _virtual(clocks: Clocks) -> Clocks:
    """Virtual seconds count from the plan's start."""
    return replace(clocks, begin=0.0)


def _checked_sizes(plan: Plan, source: Problem | Trainer) -> list[int]:
    """Clients of each unit."""
    if plan.deployment is None:
        raise InputError("plan", plan.hash, "is of a simulation; `confide.deploy.agree` makes one for a rehearsal")
    sizes = [unit.size for unit in plan.units]
    if plan.signed:
        forged = [[client_identity(p, k).public.hex() for k in range(K)] for p, K in enumerate(sizes)]
        if forged != [[client.identity for client in unit.clients] for unit in plan.units]:
            remedy = "clients sign their messages in this plan; agree on it with confide.testing.forged_units"
            raise InputError("plan", plan.hash, remedy)
    if isinstance(source, Problem) and source.federation.K.tolist() != sizes:
        raise InputError("problem", source.federation.K.tolist(), f"the plan's units have {sizes} clients")
    return sizes


def _on_data(plan: Plan, problem: Problem, seed: int, p: int, k: int) -> Trainer:
    X, d = problem.federation.client(p, k)
    key = seeded.batches(seed, p, k)
    if isinstance(problem.model, networks.Network):
        return training.of_network(plan, p, k, type(problem.model).__name__, _steps(plan, problem, p, k), key)
    return training.of_plan(plan, p, k, X, d, key=key)


def _steps(plan: Plan, problem: Problem, p: int, k: int) -> Trainer:
    """The local steps of a network, in this process."""
    a, own = plan.algorithm, plan.units[p].clients[k]
    task = LocalTask(problem.model, a.step, own.local_steps, own.batch, a.replacement, a.clip, key=0)
    local = GFL(step=a.step, clip=a.clip).on(problem.model).local

    def train(weights: Floats, round: int, config: Mapping[str, Any], /) -> Floats:
        return local(weights, *problem.federation.client(p, k), task._replace(key=config["key"]))

    return train


def _client(
    plan: Plan,
    seed: int,
    p: int,
    k: int,
    record: Record,
    trains: Trainer,
    config: Mapping[str, Any],
) -> Client:
    member = Member(k)
    if plan.signed:
        peers = {n: bytes.fromhex(client.identity) for n, client in enumerate(plan.units[p].clients)}
        member = Member(k, client_identity(p, k), peers)
    terms, noise = ClientTerms.of_plan(plan, p, k), seeded.client_noise(seed, plan, p, k)
    terms = replace(terms, clocks=_virtual(terms.clocks))
    return Client(terms, trains, record, member, noise=noise, config=config)
