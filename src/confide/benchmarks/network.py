"""`confide bench network`: the network in a box, every machine real, with its state in memory and in SQLite files.

Virtual time costs nothing, so what is measured is the work of all servers and clients in one thread: training of a
trivial model, sums in clear, noise, the exchange, and the store. A round is one round of the whole network. Both
networks live at the same time and take turns, a round each; what is printed are medians of rounds, without the first.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from confide.base.errors import RunError
from confide.base.validation import whole
from confide.benchmarks.timing import Turns, all_told
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
from confide.testing.network import Network, Unit
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

    def box(store: Callable[[int, Books], Store]) -> _Box:
        clock = _Clock()
        units = training_units(price, problem, 0, store=lambda p, books: _ClockedStore(store(p, books), clock))
        return _Box(units, clock)

    with tempfile.TemporaryDirectory(prefix="confide-bench-") as folder:

        def create(p: int, books: Books) -> Store:
            path, text = Path(folder) / f"{p}.sqlite", price.plan.text
            return SqliteStore.create(path, plan=text, server=p, dataset=dataset_id("bench"), books=books)

        files, memory = box(create), box(lambda _, books: MemoryStore(books))
        for turn in range(rounds):
            for each in (files, memory)[:: -1 if turn % 2 else 1]:
                each.round()
                watch()
        for each in (files, memory):
            each.end()
    small = _Box(scripted(Graph.ring(SMALL_SERVERS), scheme("homomorphic", 0.5), rounds=SMALL_ROUNDS), _Clock())
    for _ in range(SMALL_ROUNDS):
        small.round()
        watch()
    small.end()
    took = Turns({"files": files.seconds, "stored": files.stored, "memory": memory.seconds, "kept": memory.stored})
    file_s, memory_s = took.median("files"), took.median("memory")
    small_s = statistics.median(small.seconds)
    return {
        "servers": servers,
        "length": length,
        "rounds": rounds,
        "rounds_per_s": 1.0 / file_s,
        "messages_per_s": files.messages / rounds / file_s,
        "commits_per_round": files.clock.commits / rounds,
        "commit_ms": 1e3 * files.clock.seconds / files.clock.commits,
        "publish_ms": 1e3 * files.clock.publishing / (rounds * servers),
        "memory_rounds_per_s": 1.0 / memory_s,
        "memory_messages_per_s": memory.messages / rounds / memory_s,
        **all_told(
            {
                "ratio": took.ratios("files", "memory"),
                "store_share": took.ratios("stored", "files"),
                "memory_store_share": took.ratios("kept", "memory"),
            }
        ),
        "small_server_rounds_per_s": SMALL_SERVERS / small_s,
        "small_messages_per_s": small.messages / SMALL_ROUNDS / small_s,
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


class _Clock:
    """Stores whose time is counted together."""

    def __init__(self) -> None:
        self.seconds = self.publishing = 0.0
        self.commits = 0


class _Box:
    """A network that goes on by a round at a time.

    Attributes:
        seconds: of every round, but of the first only where it is the only one: then all connect.
        stored: seconds of these in the store.
    """

    def __init__(self, units: list[Unit], clock: _Clock) -> None:
        self.clock = clock
        self._units, self._network, self._rounds = units, Network(units), 0
        self.seconds: list[float] = []
        self.stored: list[float] = []

    @property
    def messages(self) -> int:
        """Between servers, and between them and their clients, so far."""
        return self._network.messages

    def round(self) -> None:
        if self._rounds == 1:
            self.seconds.clear()
            self.stored.clear()
        begun, stored = time.perf_counter(), self.clock.seconds
        self._network.run(done=lambda: self._decided > self._rounds)
        self.seconds.append(time.perf_counter() - begun)
        self.stored.append(self.clock.seconds - stored)
        self._rounds = self._decided

    @property
    def _decided(self) -> int:
        server = self._units[0].server
        return 0 if server is None else server.books.decided

    def end(self) -> None:
        self._network.run()  # a network in which nothing goes wrong ends by itself
        if not all(u.server is not None and u.server.books.published == u.terms.rules.rounds for u in self._units):
            raise RunError("a server did not publish every round, though nothing went wrong")
        for unit in self._units:
            unit.store.close()


class _ClockedStore(Around):
    def __init__(self, inner: Store, clock: _Clock) -> None:
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
