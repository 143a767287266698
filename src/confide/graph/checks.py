"""What a graph must be: whole numbers, pairs of servers, symmetric weights that sum to 1, connected."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from confide.base.arrays import Bools, Floats, Ints
from confide.base.errors import InputError

RULES = ("lazy", "metropolis", "uniform", "constant", "given")


def check_rule(rule: str) -> None:
    if rule not in RULES:
        raise InputError("graph.weights", rule, f"must be one of {', '.join(RULES)}")


def check_sums(sums: Floats) -> None:
    wrong = int(np.abs(sums - 1).argmax())
    if not abs(sums[wrong] - 1) <= 1e-9:  # so written, NaN is refused
        raise InputError(f"graph.A[{wrong}].sum()", round(float(sums[wrong]), 12), "every row must sum to 1")


def edge_sums(P: int, edges: Ints, a: Floats | None = None) -> NDArray[Any]:
    """The sum of a over the edges of each server; without a, its degree."""
    return np.bincount(edges.ravel(), None if a is None else np.repeat(a, 2), minlength=P)


def check_parts(edges: Ints, a: Floats, own: Floats) -> None:
    """What makes a Graph, except that it mixes: the constructors know or check that."""
    shapes = (edges.shape, a.shape, own.shape)
    if own.ndim != 1 or not own.size or shapes[:2] != ((a.size, 2), (a.size,)):
        raise InputError("graph", shapes, "edges must be (E, 2), edge_weights (E,), own_weights (P,)")
    i, j = edges.T
    inside = np.all((i >= 0) & (i < j) & (j < own.size))
    if not inside or np.any(np.diff(i * own.size + j) <= 0):
        raise InputError("graph.edges", edges.tolist(), "must be in order, each once, with 0 <= i < j < P")
    if not (np.all(a > 0) and np.all(own >= 0)):
        lowest = float(np.append(a, own).min())
        raise InputError("graph", lowest, "edge weights must be positive, own weights not negative")
    check_sums(own + edge_sums(own.size, edges, a))


def check_mixing(P: int, turns: Sequence[tuple[Ints, Bools | None]]) -> None:
    """Refuse graphs whose product over a period does not mix: assumption 1, iota_2 < 1, without eigenvalues.

    A product of nonnegative doubly stochastic matrices mixes if and only if the walk over (turn, server) reaches all,
    and its cycles have no common divisor but the number of turns. For one graph: it is connected, and some server keeps
    a weight for itself or some cycle is odd.

    Args:
        turns: of each the edges, and which servers keep a weight for themselves; None: all.
    """
    n, beside = len(turns), [defaultdict[int, list[int]](list) for _ in turns]
    for near, (edges, _) in zip(beside, turns, strict=True):
        for i, j in edges.tolist():
            near[i].append(j)
            near[j].append(i)
    steps, left, divisor = {(0, 0): 0}, [(0, 0)], 0
    while left:  # every client reads the plan's graph: networkx would be most of its memory
        turn, p = here = left.pop()
        keeps = turns[turn][1]
        for m in (*beside[turn][p], *([p] if keeps is None or keeps[p] else [])):
            there = ((turn + 1) % n, m)
            if there not in steps:
                steps[there] = steps[here] + 1
                left.append(there)
            divisor = math.gcd(divisor, steps[here] + 1 - steps[there])
    reached = {p for turn, p in steps if turn == 0}
    what = f"{P} servers, {len(turns[0][0])} edges" if n == 1 else f"{n} graphs that take turns"
    if len(reached) < P:
        inside = _some(sorted(reached), len(reached))
        outside = _some((p for p in range(P) if p not in reached), P - len(reached))
        must = "must be connected" if n == 1 else "must mix over a period"
        raise InputError("graph", what, f"{must}: {inside} do not reach {outside}; add an edge between them")
    if divisor != n:
        remedy = "must mix (iota_2 < 1): models only change sides and never agree, as no server keeps a part of its own"
        raise InputError("graph", what, f"{remedy}; give one a weight for itself, or all of them by weights = 'lazy'")


def _some(servers: Iterable[int], count: int, most: int = 10) -> str:
    shown = ", ".join(map(str, islice(servers, most)))
    return f"[{shown}]" if count <= most else f"[{shown}, ...] ({count} servers)"


def symmetric(matrix: ArrayLike) -> Floats:
    """A finite, nonnegative, symmetric matrix; what is off by no more than 1e-12 is put right."""
    try:
        A = np.array(matrix, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("graph.A", matrix, "must be a square matrix of numbers") from None
    if A.ndim != 2 or A.shape[0] != A.shape[1] or not A.size:
        raise InputError("graph.A.shape", A.shape, "must be square, a row and a column for each server")
    check_entries(A, np.isfinite(A), "must be finite")
    check_entries(A, A >= -1e-12, "must not be negative")
    check_entries(A, np.abs(A - A.T) <= 1e-12, "must be symmetric, but across the diagonal is {across}")
    return np.maximum((A + A.T) / 2, 0.0)


def check_entries(A: Floats, good: NDArray[np.bool_], remedy: str) -> None:
    if not good.all():
        i, j = map(int, np.argwhere(~good)[0])
        raise InputError(f"graph.A[{i},{j}]", float(A[i, j]), remedy.format(across=float(A[j, i])))
