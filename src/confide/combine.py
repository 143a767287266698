"""Publish and combine: own state and edge flows, w_p = s_p + sum_m a_pm (o_m - o_p).

Written with an `Arithmetic`, so the same lines are the float reference and the exact fixed-point round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from confide.arithmetic import Arithmetic, State
from confide.graph import Graph
from confide.randomness import Purpose
from confide.schemes import Scheme, links

Bools = NDArray[np.bool_]
Draw = Callable[[Purpose, tuple[int, ...], float], State]  # (purpose, ids within the round, sigma) -> noise


class Published(NamedTuple):
    own: State  # s_p, kept
    sent: State  # what left: a row a server, or a directed link in the order of `links`; central one, local-only none


def publish(scheme: Scheme, graph: Graph, psi: State, draw: Draw, arith: Arithmetic, present: Bools) -> Published:
    """Perturb: the messages o and the own states s of a round. An absent server draws nothing and keeps psi."""
    if scheme.exchange == "nothing":
        return Published(psi.copy(), psi[:0])
    if scheme.exchange == "average":
        own = psi + draw(Purpose.NETWORK_NOISE, (), scheme.sigma) if scheme.sigma else psi.copy()
        return Published(own, own.mean(axis=0, keepdims=True))
    if scheme.sigma == scheme.sigma_pair == 0.0:
        sender = links(graph)[0] if scheme.noise_on == "link" else np.arange(graph.P)
        return Published(psi.copy(), psi[sender])
    if scheme.noise_on == "link":
        return _publish_links(scheme, graph, psi, draw, arith, present)
    g = np.zeros_like(psi)
    for p in np.flatnonzero(present):
        g[p] = draw(Purpose.SERVER_NOISE, (int(p),), scheme.sigma)
    if scheme.sigma_pair:
        for a, b in graph.edges.tolist():  # both ends know this draw and add it with opposite signs
            shared = draw(Purpose.PAIR_NOISE, (a, b), scheme.sigma_pair)
            g[a] += shared * present[a]
            g[b] -= shared * present[b]
    own = psi.copy()
    for server, c in enumerate(scheme.carries(graph)):
        own[server] += arith.weigh(1.0 - float(c), g[server])  # s_p = c psi_p + (1 - c) o_p
    return Published(own, psi + g)


def _publish_links(
    scheme: Scheme, graph: Graph, psi: State, draw: Draw, arith: Arithmetic, present: Bools
) -> Published:
    """The paper's literal g_pm: every message has its own noise, and s_p = psi_p + sum_m a_pm g_pm (+ a_pp g_pp)."""
    own, sent = psi.copy(), np.empty((2 * len(graph.edges), psi.shape[1]), psi.dtype)
    weights = np.concatenate([graph.edge_weights, graph.edge_weights])
    for n, (p, m) in enumerate(zip(*(side.tolist() for side in links(graph)), strict=True)):
        sent[n] = psi[p]
        if present[p]:
            g = draw(Purpose.LINK_NOISE, (p, m), scheme.sigma)
            sent[n] += g
            own[p] += arith.weigh(float(weights[n]), g)
    if scheme.own_noise:
        for p in np.flatnonzero(present).tolist():
            own[p] += arith.weigh(float(graph.own_weights[p]), draw(Purpose.LINK_NOISE, (p, p), scheme.sigma))
    return Published(own, sent)


def combine(scheme: Scheme, graph: Graph, published: Published, arith: Arithmetic, up: Bools) -> State:
    """Each edge that is up carries one flow, added at one end and subtracted at the other  (8)."""
    own, sent = published
    if scheme.exchange == "nothing":
        return own.copy()
    if scheme.exchange == "average":
        return np.broadcast_to(own.mean(axis=0), own.shape).copy()
    w, n_edges = own.copy(), len(graph.edges)
    for e in np.flatnonzero(up).tolist():
        i, j = graph.edges[e]
        from_i, from_j = (sent[e], sent[n_edges + e]) if scheme.noise_on == "link" else (sent[i], sent[j])
        flow = arith.weigh(float(graph.edge_weights[e]), from_j - from_i)
        w[i] += flow
        w[j] -= flow
    return w
