"""`confide bench network`: the network in a box, every machine real, with its state in memory and in SQLite files.

Virtual time costs nothing, so what is measured is the work of all servers and clients in one thread: training of a
trivial model, sums in clear, noise, the exchange, and the store. A round is one round of the whole network.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from confide.base.errors import RunError
from confide.base.validation import whole
from confide.deploy.store.books import Books, Changes
from confide.deploy.store.sqlite import SqliteStore
from confide.deploy.store.store import Around, At, MemoryStore, Store, nowhere
from confide.graph.graph import Graph
from confide.plans.build import model_of, of_deployment
from confide.plans.config import Experiment
from confide.plans.privacy import Privacy
from confide.privacy.ledger import dataset_id
from confide.privacy.price import agreed
from confide.problems.federation import Federation
from confide.problems.models import Linear
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL
from confide.rounds.clipping import Clip
from confide.rounds.schemes import scheme
from confide.secure.settings import Secure
from confide.testing.network import Network
from confide.testing.rehearsal import forged_units, scripted, training_units

SMALL_SERVERS, SMALL_ROUNDS = 3, 300


def bench(servers: int, length: int, rounds: int, watch: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """The same rounds with both stores, and the share of the time that the file takes."""
    whole("servers", servers, 3, 1000)
    whole("length", length, 1, 10**7)
    whole("rounds", rounds, 1, 10**6)
    problem, graph, algorithm, _, _, seed, privacy = trivial(servers, 2, length, rounds)
    model, announced = model_of(problem, algorithm), forged_units(servers, 2)
    plan = of_deployment(
        announced, graph, algorithm, model, rounds, seed, privacy, adapt=10.0, exchange=2.0, drain=20.0
    )
    price = agreed(plan)
    memory = _Clocked()
    units = training_units(price, problem, 0, store=lambda _, books: _ClockedStore(MemoryStore(books), memory))
    memory_s, memory_sent = _timed(units, watch)
    with tempfile.TemporaryDirectory(prefix="confide-bench-") as folder:
        files = _Clocked()

        def create(p: int, books: Books) -> Store:
            path, text = Path(folder) / f"{p}.sqlite", price.plan.text
            store = SqliteStore.create(path, plan=text, server=p, dataset=dataset_id("bench"), books=books)
            return _ClockedStore(store, files)

        file_s, file_sent = _timed(training_units(price, problem, 0, store=create), watch)
    small_s, small_sent = _timed(
        scripted(Graph.ring(SMALL_SERVERS), scheme("homomorphic", 0.5), rounds=SMALL_ROUNDS), watch
    )
    return {
        "servers": servers,
        "length": length,
        "rounds": rounds,
        "rounds_per_s": rounds / file_s,
        "messages_per_s": file_sent / file_s,
        "store_share": files.seconds / file_s,
        "commits_per_round": files.commits / rounds,
        "commit_ms": 1e3 * files.seconds / files.commits,
        "publish_ms": 1e3 * files.publishing / (rounds * servers),
        "memory_rounds_per_s": rounds / memory_s,
        "memory_messages_per_s": memory_sent / memory_s,
        "memory_store_share": memory.seconds / memory_s,
        "ratio": file_s / memory_s,
        "small_server_rounds_per_s": SMALL_SERVERS * SMALL_ROUNDS / small_s,
        "small_messages_per_s": small_sent / small_s,
    }


def trivial(units: int, clients: int, length: int, rounds: int, aggregation: Secure | None = None) -> Experiment:
    """A ring of units, all of whose clients take part in every round, with a single step on a single sample."""
    rng = np.random.default_rng(0)
    rows = [[(rng.standard_normal((1, length)), rng.standard_normal(1)) for _ in range(clients)] for _ in range(units)]
    problem = Problem(Federation.from_clients(rows), Linear(0.0))
    algorithm = GFL(
        scheme("homomorphic", 0.3, noise="gaussian"),
        step=0.1,
        sampled=clients,
        local_steps=1,
        batch=1,
        clip=Clip("update", 1.0),
        arithmetic="fixed",
        fraction_bits=20,
        aggregation=aggregation,
    )
    return Experiment(problem, [Graph.ring(units)], algorithm, rounds, 1, 0, Privacy(unprotected=True))


def _timed(units: list[Any], watch: Callable[[], None]) -> tuple[float, int]:
    """Seconds, and messages between servers."""
    network, decided = Network(units), 0

    def progress() -> bool:
        nonlocal decided
        server = units[0].server
        if server is not None and server.books.decided > decided:
            decided = server.books.decided
            watch()
        return False  # a network in which nothing goes wrong ends by itself

    begun = time.perf_counter()
    network.run(done=progress)
    seconds = time.perf_counter() - begun
    if not all(u.server is not None and u.server.books.published == u.terms.rules.rounds for u in units):
        raise RunError("a server did not publish every round, though nothing went wrong")
    for unit in units:
        unit.store.close()
    return seconds, network.messages


class _Clocked:
    """Stores whose time is counted together."""

    def __init__(self) -> None:
        self.seconds = self.publishing = 0.0
        self.commits = 0


class _ClockedStore(Around):
    def __init__(self, inner: Store, clock: _Clocked) -> None:
        super().__init__(inner)
        self._clock = clock

    def commit(self, changes: Changes, at: At = nowhere, name: str = "") -> None:
        begun = time.perf_counter()
        super().commit(changes, at, name)
        took = time.perf_counter() - begun
        self._clock.seconds += took
        self._clock.commits += 1
        if name == "publish":
            self._clock.publishing += took
