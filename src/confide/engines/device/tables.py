"""The objects a user makes, turned into the arrays and numbers that a round on a device reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from confide.base.arrays import Floats
from confide.base.errors import InputError
from confide.engines.device.backend import Array, Backend
from confide.graph.graph import Graph
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL, Failures
from confide.rounds.clipping import Clip
from confide.rounds.local import remaining
from confide.rounds.schemes import Place, Scheme, links

BLOCK: Final = 1 << 18  # rows that are checked at a time


class Tables(NamedTuple):
    """Arrays that a program is given, so that it holds none. The first axis of those of graphs is the graph's."""

    X: Array
    d: Array
    first: Array  # row of each client, int32
    size: Array  # samples of each client
    unit: Array  # first client of each unit
    K: Array
    E: Array
    batch: Array
    left: Array  # of w by a client's regulariser alone
    optimum: Array  # NaN where unknown
    near: Array  # the neighbours m of each server, shorter lists filled up, (G, P, most)
    flow: Array  # a_pm, and 0 where filled up
    edge: Array  # number of the edge to m
    side: Array  # +1 at the first and -1 at the second end of it, 0 where filled up
    edges: Array  # (G, edges, 2), the shorter lists filled up
    share: Array  # of noise that all receive alike, kept: 1 - c_p; of a server's own term: a_pp - c_p
    sender: Array  # of a directed link, as in `links`, (G, 2 edges): both directions of edge e lie at e and edges + e
    receiver: Array
    down_edges: Array  # scheduled failures (round, edge)
    down_units: Array  # (round, unit)


class Rule(NamedTuple):
    """The algorithm, its scheme and the sizes of arrays, as numbers that a program is made for."""

    P: int
    M: int
    sampled: int
    slots: int
    steps: int
    batch: int
    rho: float
    step: float
    replacement: bool
    clip: Clip | None  # of updates: to mu B
    dropout: float
    cap: int | None
    scheme: Scheme
    failures: Failures

    def sigma(self, place: Place) -> float:
        return self.scheme.size(place)


def rule_of(problem: Problem, algorithm: GFL, seed: int, cap: int | None) -> Rule:
    clip, (E, batch) = algorithm.clip, algorithm.settle(problem.federation, seed)
    if clip is not None and clip.kind == "update":
        clip = Clip(clip.kind, clip.update_bound(algorithm.step), clip.norm)
    return Rule(
        P=problem.federation.P,
        M=problem.M,
        sampled=int(algorithm.sampled),
        slots=int(problem.federation.N.max()),
        steps=int(E.max()),
        batch=int(batch.max()),
        rho=float(problem.model.rho),
        step=float(algorithm.step),
        replacement=algorithm.replacement,
        clip=clip,
        dropout=float(algorithm.dropout),
        cap=cap,
        scheme=algorithm.scheme,
        failures=algorithm.failures,
    )


def tables_of(
    b: Backend, problem: Problem, graphs: Sequence[Graph], algorithm: GFL, seed: int, labels: type[Any] | None
) -> Tables:
    """On the device.

    Args:
        labels: whole numbers that the model's loss is given, or None: floats.
    """
    f = problem.federation
    E, batch = algorithm.settle(f, seed)
    d = np.asarray(f.d) if labels is None else np.asarray(f.d).astype(labels)
    left = np.array([remaining(problem.model.rho, algorithm.step, int(steps)) for steps in range(1, E.max() + 1)])[
        E - 1
    ]
    optimum = problem.optimum if problem.optimum is not None else np.full(problem.M, np.nan)
    small = (f.client_offsets[:-1], f.N, f.unit_offsets[:-1], f.K, E, batch)
    whole = [np.asarray(x).astype(np.int32 if n == 0 else np.int64) for n, x in enumerate(small)]
    if b.width == 4:
        _fits_single(f.X)
        _fits_single(f.d[:, None])
    arrays = (np.asarray(f.X), d, *whole, left, optimum, *_network(graphs, algorithm))
    return Tables(*(b.to_device(np.ascontiguousarray(x)) for x in arrays))


def _fits_single(rows: Floats) -> None:
    """Refuse rows that overflow on the device: 0 times infinity is a number of no clip."""
    for start in range(0, len(rows), BLOCK):
        inside = (np.abs(rows[start : start + BLOCK]) <= np.finfo(np.float32).max).all(axis=1)
        if not inside.all():
            row = start + int(np.argmin(inside))
            remedy = f"sample {row} holds a number beyond single precision, in which this engine computes; scale it"
            raise InputError("engine", "float32", remedy)


def _network(graphs: Sequence[Graph], algorithm: GFL) -> tuple[NDArray[Any], ...]:
    G, P, scheme = len(graphs), graphs[0].P, algorithm.scheme
    most, widest = max(len(g.edges) for g in graphs), max(int(g.degrees.max(initial=0)) for g in graphs)
    near, edge = np.zeros((G, P, widest), np.int64), np.zeros((G, P, widest), np.int64)
    flow, side, share = np.zeros((G, P, widest)), np.zeros((G, P, widest)), np.zeros((G, P))
    edges = np.zeros((G, most, 2), np.int64)
    sender, receiver = np.zeros((G, 2 * most), np.int64), np.zeros((G, 2 * most), np.int64)
    for n, g in enumerate(graphs):
        e = np.arange(len(g.edges))
        edges[n, e] = g.edges
        share[n] = (g.own_weights if scheme.by_link else 1.0) - scheme.carries(g)
        row = np.concatenate([e, most + e])
        sender[n, row], receiver[n, row] = links(g)
        p, of = np.concatenate(g.edges.T), np.tile(e, 2)
        order = np.lexsort((of, p))
        place = np.arange(len(p)) - np.searchsorted(p[order], p[order])  # in the list of its server
        at = n, p[order], place
        near[at], edge[at] = np.concatenate(g.edges.T[::-1])[order], of[order]
        flow[at], side[at] = g.edge_weights[of[order]], np.where(order < len(e), 1.0, -1.0)
    down = (_down_edges(algorithm.failures, graphs), np.array(algorithm.failures.units, np.int64).reshape(-1, 2))
    return near, flow, edge, side, edges, share, sender, receiver, *down


def _down_edges(failures: Failures, graphs: Sequence[Graph]) -> NDArray[np.int64]:
    place = [{(i, j): e for e, (i, j) in enumerate(g.edges.tolist())} for g in graphs] if failures.links else []
    found = [(at, place[(at - 1) % len(graphs)][min(p, m), max(p, m)]) for at, p, m in failures.links]
    return np.array(found, np.int64).reshape(-1, 2)
