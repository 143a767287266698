"""Float and fixed point behind one small interface, so that the round is written once.

Fixed point (docs/design/arithmetic.md, 1 and 2): states are int64 multiples of the server's quantum 2^-f / L. A
client's update is truncated toward zero onto multiples of 2^-f, so its norm cannot grow. Edge weights are multiples of
2^-16. Every product is rounded half away from zero, an odd rule: what one end of an edge gains the other loses, to the
last bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from confide.base.arrays import Floats
from confide.base.errors import InputError
from confide.graph.graph import Graph
from confide.rounds.schemes import Scheme
from confide.secure.encoding import truncate

State = NDArray[Any]  # float64 or int64
WEIGHT_BITS = 16
DECAY_BITS = 32  # a regulariser acts every round, so its factor is kept finer than a weight
TAIL = 64.0  # noise beyond 64 standard deviations has probability below 1e-39 for either law


@dataclass(frozen=True)
class FloatArithmetic:
    """What each function means is said here; in `FixedArithmetic` a state is not the number but its multiple."""

    L: int

    def state(self, w: Floats) -> State:
        """Numbers as states."""
        return w.astype(np.float64)

    def value(self, state: State) -> Floats:
        """States as numbers."""
        return state

    def encode(self, update: Floats) -> State:
        """A client's update as the integer it sends, or as it is."""
        return update

    def add(self, w: State, total: State, shrink: float) -> State:
        """psi = (1 - shrink) w + total / L."""
        return w + (total / self.L - shrink * w)

    def weigh(self, weight: float, x: State) -> State:
        """weight times x, an odd function of x."""
        return weight * x


@dataclass(frozen=True)
class FixedArithmetic:
    L: int
    fraction_bits: int

    @property
    def client_quantum(self) -> float:
        return 2.0**-self.fraction_bits

    @property
    def quantum(self) -> float:
        """Of a server's state: with it, adding the mean of L updates is integer addition."""
        return self.client_quantum / self.L

    def state(self, w: Floats) -> State:
        return np.rint(w / self.quantum).astype(np.int64)

    def value(self, state: State) -> Floats:
        return state * self.quantum

    def encode(self, update: Floats) -> State:
        return truncate(update, self.fraction_bits)

    def add(self, w: State, total: State, shrink: float) -> State:
        factor = round(shrink * 2**DECAY_BITS)
        return w + total - scaled(factor, w, DECAY_BITS)

    def weigh(self, weight: float, x: State) -> State:
        return scaled(round(weight * 2**WEIGHT_BITS), x, WEIGHT_BITS)


Arithmetic = FloatArithmetic | FixedArithmetic


def scaled(factor: int, x: NDArray[np.int64], bits: int) -> NDArray[np.int64]:
    """factor x / 2^bits, rounded half away from zero, with the 128-bit product in two halves (bits <= 32).

    >>> scaled(1, np.array([1, 2, 3, -1, -3]), 1)
    array([ 1,  1,  2, -1, -2])
    """
    if not 0 <= factor <= 1 << bits:
        raise InputError("weight", factor / 2**bits, "must lie in [0, 1]")
    if factor in (0, 1 << bits):
        return x * (factor >> bits)
    size, shift, f = np.abs(x).view(np.uint64), np.uint64(bits), np.uint64(factor)
    low = size & np.uint64((1 << bits) - 1)  # from here on in place: a model is long
    low *= f
    low += np.uint64(1 << (bits - 1))
    low >>= shift
    size >>= shift
    size *= f
    size += low
    product = size.view(np.int64)
    return np.negative(product, out=product, where=x < 0)


def on_grid(graph: Graph) -> Graph:
    """The graph with weights that are multiples of 2^-16, the own weight being the exact rest."""
    weights = np.rint(graph.edge_weights * 2**WEIGHT_BITS)
    if len(weights) and weights.min() < 1:
        e = int(np.argmin(weights))
        remedy = f"edge {tuple(int(v) for v in graph.edges[e])} is below 2^-17 and would vanish in fixed point"
        raise InputError("graph.weights", float(graph.edge_weights[e]), remedy)
    own = np.full(graph.P, 2.0**WEIGHT_BITS)
    np.subtract.at(own, graph.edges[:, 0], weights)
    np.subtract.at(own, graph.edges[:, 1], weights)
    short = np.flatnonzero(own < 0)
    if len(short):
        remedy = f"server {short[0]} has no weight left for itself after rounding to 2^-16; use lazy weights"
        raise InputError("graph.weights", float(graph.own_weights[short[0]]), remedy)
    return replace(graph, edge_weights=weights / 2**WEIGHT_BITS, own_weights=own / 2**WEIGHT_BITS)


def scheme_on_grid(scheme: Scheme) -> Scheme:
    """With the carry of the integers: what is weighed with 1 - c is an integer times a multiple of 2^-16."""
    if scheme.carry is None:
        return scheme
    return replace(scheme, carry=1.0 - round((1.0 - scheme.carry) * 2**WEIGHT_BITS) / 2**WEIGHT_BITS)


def check_range(
    a: FixedArithmetic, scheme: Scheme, graph: Graph, update: float, rounds: int, start: float = 0.0
) -> float:
    """What no state and no message exceeds in absolute value in `rounds` rounds; a server refuses a message beyond it.

    A round adds at most `update` (mu B), with R the scheme's noise matrix |R|_inf times a noise tail, and half a
    quantum for each product that is rounded: a flow and at most one share of noise for each neighbour, and the own.

    Args:
        start: the largest |w_0| of a number.

    Raises:
        InputError: a state or a difference of messages could leave int64.
    """
    m = scheme.only_plain("fixed point").wiring(graph)
    message = float(np.abs(m.N[0]).sum(axis=1).max(initial=0.0)) * TAIL
    kept = float(np.abs(m.R[0]).sum(axis=1).max(initial=0.0)) * TAIL + message  # a failed link keeps the message noise
    rounding = (int(graph.degrees.max(initial=0)) + 1) * a.quantum
    largest = math.ceil(start / a.quantum) * a.quantum + rounds * (update + kept + rounding) + update + message
    if 2.0 * largest / a.quantum >= 2.0**63:
        bits = a.fraction_bits - int(np.ceil(np.log2(2.0 * largest / a.quantum / 2.0**63))) - 1
        advice = f"use at most {bits}" if bits >= 1 else "no grid is coarse enough; run fewer rounds or add less noise"
        remedy = f"{rounds} rounds could overflow 64-bit states; {advice}"
        raise InputError("algorithm.fraction_bits", a.fraction_bits, remedy)
    return largest
