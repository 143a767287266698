"""The weights that mix fastest: least iota_2 over all symmetric doubly stochastic A >= 0 on the edges of a graph.

Boyd, Diaconis and Xiao (2004) write it as a semidefinite program in the edge weights w_e and s,

    minimise s   with   -s I <= A - 11'/P <= s I,   A = I - sum_e w_e b_e b_e',   w >= 0,   A_pp >= 0,

where b_e = e_i - e_j. Newton's method on its logarithmic barrier solves it: with Z = (sI - X)^-1 + ..., X = A - 11'/P,
the Hessian has the entries (b_e' Z b_f)^2, so nothing larger than edges x edges is formed.

Certificate. For any Y with Y1 = 0 and nuclear norm 1, and any z with z_i + z_j <= 2 Y_ij on edges and z_i <= Y_ii,

    |A - 11'/P|  >=  <Y, A>  =  sum_i A_ii Y_ii + sum_{ij} 2 A_ij Y_ij  >=  sum_i z_i

for every such A. Y = Z1 - Z2 from the last step and the best z, a linear program, come close to the optimum.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from confide.base.arrays import Floats, Ints
from confide.base.errors import InputError
from confide.graph.checks import edge_sums
from confide.graph.graph import Graph
from confide.graph.weights import dense

RULES = ("lazy", "metropolis", "uniform", "constant")
EDGES = 1500  # a Newton step solves a system of this size, some fifty times: 15 s at most
GAP = 1e-6  # of iota_2, at which the barrier stops
ROUNDING = 1e-13  # of a sum of logarithms


class Fastest(NamedTuple):
    """`graph` has the weights, `bound` is a proof: no weights on these edges have a smaller iota_2."""

    graph: Graph
    bound: float


def fastest_mixing(graph: Graph) -> Fastest:
    """The fastest-mixing symmetric weights on the edges of `graph`, and how small iota_2 can be at all.

    Fast mixing makes models agree; it is not the least noise: weights that keep eigenvalues positive (lazy) let less
    homomorphic noise into the individual models.

    Returns:
        The graph with these weights, and a number below which no weights can bring iota_2.

    Raises:
        InputError: the graph has too many edges.

    >>> found = fastest_mixing(Graph.path(3))  # 1/2 on either edge: iota_2 = cos(pi / 3)
    >>> round(found.graph.iota_2, 6), round(found.bound, 6)
    (0.5, 0.5)
    """
    if graph.P == 1:
        return Fastest(graph, 0.0)
    known = min((graph.with_weights(rule) for rule in RULES), key=lambda g: g.iota_2)
    if known.iota_2 < 1e-12:  # the exact average
        return Fastest(known, 0.0)
    if len(graph.edges) > EDGES:
        what = f"{graph.name} with {len(graph.edges)} edges"
        raise InputError("graph", what, f"the fastest weights are computed for up to {EDGES} edges")
    w, Y = _barrier(graph)
    own = np.maximum(1.0 - edge_sums(graph.P, graph.edges, w), 0.0)
    found = replace(graph, edge_weights=w, own_weights=own, weights="given")
    best = found if found.iota_2 < known.iota_2 else known
    return Fastest(best, min(_bound(graph, Y), best.iota_2))


def _barrier(graph: Graph) -> tuple[Floats, Floats]:
    """Edge weights strictly inside, and Y of the certificate."""
    P, edges = graph.P, graph.edges
    i, j = edges.T
    w = np.asarray(graph.with_weights("lazy").edge_weights)
    s = 1.1
    theta = 3 * P + len(w)  # logarithms in the barrier: at its minimum s is at most theta/t above the optimum

    def across(Z: Floats) -> Floats:
        """b_e' Z b_f"""
        half = Z[i] - Z[j]
        return np.asarray(half[:, i] - half[:, j])

    def state(s: float, w: Floats) -> tuple[float, Floats, Floats, Floats] | None:
        """-log of all slacks, and Z1, Z2, own weights; None outside."""
        own = 1.0 - edge_sums(P, edges, w)
        if w.min() <= 0.0 or own.min() <= 0.0:
            return None
        values, axes = np.linalg.eigh(dense(edges, w, own) - 1.0 / P)
        if s <= np.abs(values).max():
            return None
        phi = -np.log(s - values).sum() - np.log(s + values).sum() - np.log(w).sum() - np.log(own).sum()
        return float(phi), (axes / (s - values)) @ axes.T, (axes / (s + values)) @ axes.T, own

    t, now = float(theta), state(s, w)
    assert now is not None  # noqa: S101 - lazy weights are inside
    for _ in range(300):
        phi, Z1, Z2, own = now
        B1, B2 = across(Z1), across(Z2)
        gradient = np.append(
            t - np.trace(Z1 + Z2), np.diag(B2) - np.diag(B1) - 1.0 / w + (1.0 / own)[edges].sum(axis=1)
        )
        H = np.empty((len(w) + 1, len(w) + 1))
        H[0, 0] = np.sum(Z1 * Z1) + np.sum(Z2 * Z2)
        H[0, 1:] = H[1:, 0] = _diagonal(Z1 @ Z1, edges) - _diagonal(Z2 @ Z2, edges)
        H[1:, 1:] = B1**2 + B2**2 + _shared(edges, 1.0 / own**2)
        H[range(1, len(H)), range(1, len(H))] += 1.0 / w**2
        scale = 1.0 / np.sqrt(np.diag(H))  # entries range over many powers of ten near the end
        move = -scale * np.linalg.solve(H * scale[:, None] * scale, scale * gradient)
        decrement = float(-gradient @ move)
        last = theta / t < GAP
        if last and decrement < 1e-6:  # at the minimum, for the certificate
            break
        if not last and decrement < 1.0:  # near enough to the path of minima
            t *= 4.0
            continue
        size = 1.0
        while size > 1e-10:
            new = state(s + size * move[0], w + size * move[1:])
            if new is not None and t * size * move[0] + new[0] - phi <= -0.1 * size * decrement + ROUNDING * abs(phi):
                break
            size /= 2.0
        else:  # rounding: what was reached is good, and the certificate says how good
            break
        s, w, now = s + size * float(move[0]), w + size * move[1:], new
    _, Z1, Z2, _ = now
    return w, Z1 - Z2


def _diagonal(Z: Floats, edges: Ints) -> Floats:
    """b_e' Z b_e"""
    i, j = edges.T
    return np.asarray(Z[i, i] + Z[j, j] - 2.0 * Z[i, j])


def _shared(edges: Ints, at: Floats) -> Floats:
    """The sum over the servers that edges e and f have in common."""
    incidence = _incidence(edges, len(at))
    return np.asarray((incidence * at) @ incidence.T)


def _incidence(edges: Ints, P: int) -> Floats:
    """1 where an edge (row) ends at a server (column)."""
    incidence = np.zeros((len(edges), P))
    incidence[np.arange(len(edges))[:, None], edges] = 1.0
    return incidence


def _bound(graph: Graph, Y: Floats) -> float:
    from scipy.optimize import linprog

    Y = Y - Y.mean(axis=0)
    Y = Y - Y.mean(axis=1)[:, None]
    Y = Y / np.abs(np.linalg.eigvalsh((Y + Y.T) / 2.0)).sum()
    i, j = graph.edges.T
    most = [(None, y) for y in np.diag(Y).tolist()]
    found = linprog(-np.ones(graph.P), _incidence(graph.edges, graph.P), 2.0 * Y[i, j], bounds=most)
    if found.x is None:
        return 0.0
    z = np.minimum(found.x, np.diag(Y))
    excess = np.maximum((z[i] + z[j] - 2.0 * Y[i, j]).max(), 0.0)  # the solver's tolerance
    return float(max(z.sum() - graph.P * excess / 2.0, 0.0))
