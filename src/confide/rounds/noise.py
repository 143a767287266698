"""Where a round's noise comes from: a function of its purpose, here of a seed or of a run's secret.

A deployed server has another source, of discrete noise from the operating system (`deploy.machines.draws`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from confide.base import randomness
from confide.base.randomness import Purpose
from confide.laws.law import Law
from confide.rounds.arithmetic import FixedArithmetic, State

if TYPE_CHECKING:
    from confide.secure.secret import Streams

NoiseSource = Callable[[Purpose, tuple[int, ...], Law, float, int], State]
"""(purpose, (round, ids...), law, sigma, size) -> noise as a state: floats, or int64 quanta in fixed point."""


def float_noise(streams: int | Streams) -> NoiseSource:
    """Noise for simulations, of a seed or of the run's secret."""

    def source(purpose: Purpose, ids: tuple[int, ...], law: Law, sigma: float, size: int) -> State:
        drawn = randomness.stream(streams, purpose, ids, randomness.words_for(size))
        return sigma * law.reals(drawn, size)

    return source


def integer_noise(streams: int | Streams, arith: FixedArithmetic) -> NoiseSource:
    """The law's discrete form, by the sampler of a deployment, on a stream of the seed or of the run's secret."""
    from confide.laws.secret_stream import SecretStream  # a cipher, which rounds in floating point do without

    def source(purpose: Purpose, ids: tuple[int, ...], law: Law, sigma: float, size: int) -> State:
        drawn = SecretStream.of(randomness.stream(streams, purpose, ids, 4))
        return law.discrete.integers(drawn, sigma, arith.quantum, size)

    return source
