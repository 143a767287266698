"""`confide bench models`: clients' updates of a perceptron on this machine's cores, beside its products of matrices.

784 features, 200 hidden, 10 classes, 60 samples a client, 5 steps of batch 20, 10 units with 10 sampled clients each.
The rate of products is that of NumPy's or of JAX's own, whichever is higher, and an update counts the products that its
steps have when every client's weights are made: 2 of the first layer and 3 of the second, 2 for each multiplication.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

from confide.base.errors import InputError
from confide.benchmarks.timing import all_told, turns
from confide.engines.device.engine import DeviceEngine
from confide.graph.graph import Graph
from confide.problems.federation import Federation
from confide.problems.networks.named import built_in
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL

P, K, N, L, E, B = 10, 20, 60, 10, 5, 20
SIZES = (784, 200, 10)
TRIES, WIDE = 15, 2048
MANY = 10**6  # rounds: every way to train is tried


def bench(watch: Callable[[], None] = lambda: None) -> dict[str, Any]:
    if find_spec("jax") is None:
        raise InputError("bench", "models", "needs JAX: pip install 'confide[jax]'")
    import jax
    import jax.numpy as jnp

    rng = np.random.default_rng(0)
    X, d = rng.standard_normal((P * K * N, SIZES[0])), rng.integers(0, SIZES[-1], P * K * N).astype(float)
    model = built_in("mlp", features=SIZES[0], classes=SIZES[-1], hidden=[SIZES[1]], framework="jax")
    problem = Problem(Federation(X, d, np.arange(P * K + 1) * N, np.arange(P + 1) * K), model, private=False)
    algorithm = GFL(step=0.1, sampled=L, local_steps=E, batch=B)
    engine = DeviceEngine(problem, [Graph.ring(P)], algorithm, MANY, 0, framework="jax", device="cpu")
    train = engine.trial(engine.start())
    a = rng.standard_normal((WIDE, WIDE)).astype(np.float32)
    b, product = jnp.asarray(a), jax.jit(jnp.matmul)
    took = turns(
        {
            "updates": train,
            "NumPy's product": lambda: a @ a,
            "JAX's product": lambda: product(b, b).block_until_ready(),
        },
        TRIES,
        watch,
        time.perf_counter,
    )
    hidden, classes = SIZES[1:]
    flops = P * L * E * B * (2 * 2 * SIZES[0] * hidden + 3 * 2 * hidden * classes)
    best = min(("NumPy's product", "JAX's product"), key=took.median)
    share = [flops / (2.0 * WIDE**3) * each for each in took.ratios(best, "updates")]
    return {
        "updates_per_s": P * L / took.median("updates"),
        "sgemm_gflops": 2e-9 * WIDE**3 / took.median(best),
        **all_told({"sgemm_share": share}),
        "way": engine.notes[0] if engine.notes else "",
    }
