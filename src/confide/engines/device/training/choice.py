"""Which of several ways of training is the fastest here, found by running each of them on a round's cohort.

No rule tells: side by side is best on a GPU and worst on a CPU, and the Gram form depends on clients' rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from confide.base.errors import InputError
from confide.engines.device.backend import Array, Backend
from confide.engines.device.training.cohort import Cohort, Train
from confide.rounds.clipping import Clip

TRIES: Final = 3  # after the one that compiles
HOPELESS: Final = 3.0  # times the best: not tried again


def fastest(
    b: Backend,
    ways: Mapping[str, Train],
    given: tuple[Array, Array, Array, Cohort],
    clip: Clip | None,
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[str, dict[str, float]]:
    """The name of the fastest way, and the fewest seconds of each that fits into memory.

    Args:
        given: w, X, d and the cohort, as a round gives them.
        rounds: of the run. Where trying the last way took longer than all of them will, no more are tried.
    """
    took: dict[str, float] = {}
    spent = 0.0
    for name, way in ways.items():
        if took and rounds * min(took.values()) < spent:
            break
        start = clock()
        program = b.jit(partial(trained, b, way, clip))
        try:
            b.to_numpy(program(*given)[:1, :1])
            for _ in range(TRIES):
                began = clock()
                b.to_numpy(program(*given)[:1, :1])
                took[name] = min(took.get(name, float("inf")), clock() - began)
                if took[name] > HOPELESS * min(took.values()):
                    break
        except RuntimeError as e:
            if not b.out_of_memory(e):
                raise
        spent = clock() - start
    if not took:
        remedy = "no way to train so many clients at once fits into memory; sample fewer, or use smaller batches"
        raise InputError("algorithm.sampled", given[3].eta.shape[1], remedy)
    return min(took, key=lambda name: took[name]), took


def trained(b: Backend, way: Train, clip: Clip | None, w: Array, X: Array, d: Array, cohort: Cohort) -> Array:
    """One training, as a round has it."""
    with b.training():
        return way(w, X, d, cohort, clip)
