"""Networks in a box, for tests, benchmarks and tutorials: units ready for `network.Network`.

`rehearsal` runs a plan with real clients on a problem's data, everything drawn from a test seed: what comes out is what
`rounds.reference` gives, bit for bit. `scripted` has clients that send arbitrary numbers instead of training, summed
in clear: as little work as possible around the exchange, so that faults can be explored by the million.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from confide.base.randomness import Purpose, below, choose, key, repetition_seed, words
from confide.deploy.machines import client_messages as messages
from confide.deploy.machines import training
from confide.deploy.machines.client import Client, ClientTerms
from confide.deploy.machines.cohort import CohortTerms
from confide.deploy.machines.exchange import Rules
from confide.deploy.machines.terms import Terms, integer_weights, neighbours, of_plan
from confide.deploy.machines.training import Trainer
from confide.deploy.store.books import Books, Vector, as_bytes
from confide.deploy.store.record import MemoryRecord, Record
from confide.deploy.store.store import MemoryStore, Store
from confide.graph.graph import Graph
from confide.plans.plan import Plan
from confide.privacy.agreement import Prices
from confide.privacy.ledger import Cost
from confide.problems.problem import Problem
from confide.rounds.arithmetic import FixedArithmetic, on_grid
from confide.rounds.noise import NoiseSource, integer_noise
from confide.rounds.schemes import Scheme
from confide.secure.client import Member
from confide.secure.keys import Identity
from confide.testing.network import Unit

LARGEST_UPDATE = 1000
PLAN = bytes(32)


def scripted_update(seed: int, i: int, p: int, length: int) -> Vector:
    """What the one client of unit p sends in round i."""
    return below(words(key(seed, Purpose.BATCHES, i, p), length), 2 * LARGEST_UPDATE + 1) - LARGEST_UPDATE


class ScriptedClient:
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


def server_identity(p: int) -> Identity:
    """Of a scripted server: no secret."""
    return Identity.of(p.to_bytes(32, "big"))


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
    """A unit for each server of the graph; a publication costs rho = 1 (a figure, not a bound).

    Args:
        allowed: publications that the budget pays for; all by default.
        times: adapt, tick, exchange, drain, start of `Terms`, in virtual seconds.
    """
    g, arithmetic = on_grid(graph), FixedArithmetic(1, 10)
    noise = integer_noise(seed, arithmetic)
    settings = {"adapt": 10.0, "tick": 10.0, "exchange": 2.0, "drain": 20.0, "start": 0.0} | times
    units = []
    for p in range(g.P):
        weights = neighbours(g, p)
        terms = Terms(
            rules=Rules(p, PLAN, integer_weights(weights), rounds, window, length, 2**62),
            cohort=CohortTerms(PLAN, p, 1, length, settings["adapt"], LARGEST_UPDATE),
            scheme=scheme,
            arithmetic=arithmetic,
            own_weight=float(g.own_weights[p]),
            weights=weights,
            decays=(0.0,),
            costs=(Cost(1.0, None, 1.0, scheme.sigma, f"discrete-{scheme.law}"),) * rounds,
            allowed=rounds if allowed is None else allowed,
            identities=tuple(server_identity(q).public for q in range(g.P)),
            edges=tuple((int(i), int(j)) for i, j in g.edges),
            plan_text="",
            **settings,
        )
        books = Books.fresh(np.zeros(length, np.int64), tuple(weights))
        units.append(Unit(terms, store(p, books), [partial(ScriptedClient, seed, p, length)], noise, lambda _: (0,)))
    return units


def rehearsal(
    prices: Prices,
    problem: Problem,
    seed: int,
    *,
    store: Callable[[int, Books], Store] = lambda _, books: MemoryStore(books),
    identities: Callable[[int, int], Identity] | None = None,
    rounds: int | None = None,
    trainer: Callable[[int, int], Trainer] | None = None,
) -> list[Unit]:
    """The units of a plan, their clients training on the problem's data.

    Args:
        prices: of the plan.
        seed: of samples, batches and noise; those of repetition 0 of `reference.prepare` with this seed.
        identities: (unit, client) -> the client's identity, where the plan's server is active.
        rounds: publications that the budget still pays for; all by default.
        trainer: (unit, client) -> what the client trains with, in place of a built-in model on the problem's data.
    """
    plan, deployed = prices.plan, prices.deployed
    own = repetition_seed(seed, 0)
    noise = integer_noise(own, deployed.arithmetic)
    K = [len(unit["clients"]) for unit in (plan.deployment or {})["units"]]
    units = []
    for p in range(plan.units):
        terms = of_plan(prices, p, rounds)
        books = Books.fresh(np.zeros(terms.rules.length, np.int64), tuple(terms.weights))
        records = [MemoryRecord(ClientTerms.of_plan(plan, p, k).owner) for k in range(K[p])]
        clients = [
            partial(_client, plan, problem, own, p, k, record, noise, identities, trainer)
            for k, record in enumerate(records)
        ]
        sample = partial(_sample, own, p, deployed.arithmetic.L, K[p])
        units.append(Unit(terms, store(p, books), clients, noise, sample))
    return units


def _sample(seed: int, p: int, L: int, K: int, i: int) -> tuple[int, ...]:
    return tuple(choose(words(key(seed, Purpose.CLIENTS, i, p), L), K).tolist())


def _client(
    plan: Plan,
    problem: Problem,
    seed: int,
    p: int,
    k: int,
    record: Record,
    noise: NoiseSource,
    identities: Callable[[int, int], Identity] | None,
    trainer: Callable[[int, int], Trainer] | None,
) -> Client:
    terms = ClientTerms.of_plan(plan, p, k)
    if trainer is not None:
        trains = trainer(p, k)
    else:
        X, d = problem.federation.client(p, k)
        trains = training.of_plan(plan, p, k, X, d, key=lambda i: key(seed, Purpose.BATCHES, i, p, k))
    member = Member(k)
    if identities is not None:
        roster = (plan.deployment or {})["units"][p]["clients"]
        member = Member(k, identities(p, k), {n: bytes.fromhex(c["identity"]) for n, c in enumerate(roster)})
    a = plan.aggregation
    share = 0.0 if a is None else a["sigma"] / math.sqrt(a["quorum"] - a["corrupted"])  # on psi, as `Secure.share`

    def draw(i: int, size: int) -> Vector:
        return np.asarray(noise(Purpose.CLIENT_NOISE, (i, p, k), "gaussian", share, size), np.int64)

    return Client(terms, trains, record, member, noise=draw if share else None)
