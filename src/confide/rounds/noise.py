"""Where a round's noise comes from: a function of its purpose, here of a seed or of a run's secret.

A deployed server has another source, of discrete noise from the operating system (`deploy.machines.draws`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from confide.base import randomness
from confide.base.randomness import Purpose
from confide.rounds.arithmetic import FixedArithmetic, State

if TYPE_CHECKING:
    from confide.secure.secret import Streams

NoiseSource = Callable[[Purpose, tuple[int, ...], str, float, int], State]
"""(purpose, (round, ids...), law, sigma, size) -> noise as a state: floats, or int64 quanta in fixed point."""


def float_noise(streams: int | Streams) -> NoiseSource:
    """Noise for simulations, of a seed or of the run's secret."""
    laws = {"laplace": randomness.laplace_of, "gaussian": randomness.gaussian_of}

    def source(purpose: Purpose, ids: tuple[int, ...], law: str, sigma: float, size: int) -> State:
        drawn = randomness.stream(streams, purpose, ids, randomness.words_for(size))
        return sigma * laws[law](drawn, size)

    return source


def integer_noise(streams: int | Streams, arith: FixedArithmetic) -> NoiseSource:
    """The same rounded to the grid: for simulations; a deployment draws discrete noise from the OS instead."""
    draw = float_noise(streams)

    def source(purpose: Purpose, ids: tuple[int, ...], law: str, sigma: float, size: int) -> State:
        return np.rint(draw(purpose, ids, law, sigma, size) / arith.quantum).astype(np.int64)

    return source
