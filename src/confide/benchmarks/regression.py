"""`confide bench regression`: the reference round, the engine and the arithmetic floor, in one process."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from confide.base.validation import whole
from confide.benchmarks import floor
from confide.benchmarks.timing import all_told, turns
from confide.engines.compiled import CompiledEngine
from confide.engines.driver import simulate
from confide.engines.plain import PlainEngine
from confide.engines.recording import Recording
from confide.graph.graph import Graph
from confide.problems import regression
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL

ROUNDS, REFERENCE_ROUNDS, TRIES = 2000, 10, 15


def bench(seed: int = 0, watch: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """The paper's regression (P=10, K=100, N=100, M=2, L=11) with homomorphic noise."""
    whole("seed", seed, 0, 2**63 - 1)
    problem, graph, algorithm = regression(seed=seed), Graph.random(10, 0.4, seed=seed), GFL()
    one = _engine(CompiledEngine(problem, [graph], algorithm, ROUNDS, seed), ROUNDS, problem.M)
    reference = _engine(PlainEngine(problem, [graph], algorithm, REFERENCE_ROUNDS, seed), REFERENCE_ROUNDS, problem.M)
    bare = _floor(problem, algorithm, seed)

    # As many repetitions as a config has by default: an even number, so that two threads have the same amount of work.
    run = partial(
        simulate, problem, graph, algorithm, rounds=ROUNDS, repeats=20, seed=seed, engine="compiled", progress=False
    )
    took = turns({"reference": reference, "engine": one, "floor": bare}, TRIES, watch)
    threads = {n: partial(run, threads=n) for n in (1, 2)}
    elapsed = turns(threads, TRIES, watch, time.perf_counter)
    rounds = {"reference": REFERENCE_ROUNDS, "engine": ROUNDS, "floor": ROUNDS}
    longer = ROUNDS / REFERENCE_ROUNDS
    return {
        **{f"{name}_rounds_per_s": count / took.median(name) for name, count in rounds.items()},
        **all_told(
            {
                "ratio": [longer * each for each in took.ratios("reference", "engine")],
                "floor_ratio": took.ratios("engine", "floor"),
                "threads_speedup": elapsed.ratios(1, 2),
            }
        ),
        "gradients_per_round": _gradients(problem, algorithm, seed),
    }


def _engine(engine: Any, rounds: int, M: int) -> Callable[[], None]:
    out = Recording.empty(1, rounds, M, max(1, rounds // 100))

    def work() -> None:
        engine.advance(0, engine.start(), 1, rounds, out)

    return work


def _gradients(problem: Problem, algorithm: GFL, seed: int) -> float:
    """Expected gradients of a round: each client takes part with probability L / K_p."""
    f = problem.federation
    E, batch = algorithm.settle(f, seed)
    chance = np.repeat(algorithm.sampled / f.K, f.K)
    return float(np.sum(chance * E * batch))


def _floor(problem: Problem, algorithm: GFL, seed: int) -> Callable[[], None]:
    f = problem.federation
    n = round(_gradients(problem, algorithm, seed))
    words = n + f.P * algorithm.sampled + f.P * f.M  # mini-batches, sampled clients, server noise
    X, d = np.ascontiguousarray(f.X[:n]), np.ascontiguousarray(f.d[:n])
    w, grad = np.zeros(f.M), np.zeros(f.M)

    def work() -> None:
        for i in range(ROUNDS):
            floor.draw_words(np.uint64(i), words)
            floor.gradients(X, d, w, grad)

    return work
