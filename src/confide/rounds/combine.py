"""Publish and combine: own state and edge flows, w_p = s_p + sum_m a_pm (o_m - o_p).

Written with an `Arithmetic`, so the same lines are the float reference and the exact fixed-point round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from confide.base.errors import InputError
from confide.base.randomness import Purpose
from confide.graph.graph import Graph
from confide.rounds.arithmetic import Arithmetic, State
from confide.rounds.schemes import Scheme, links

Bools = NDArray[np.bool_]
Draw = Callable[[Purpose, tuple[int, ...], float], State]  # (purpose, ids within the round, sigma) -> noise


class Perturbed(NamedTuple):
    own: State  # s_p, kept
    sent: dict[int, State]  # the message to each neighbour: one array for all where noise is per server


class Published(NamedTuple):
    own: State  # s_p, kept
    sent: State  # what left: a row a server, or a directed link in the order of `links`; central one, local-only none


def perturb(
    scheme: Scheme,
    p: int,
    own_weight: float,
    neighbours: Mapping[int, float],
    psi: State,
    draw: Draw,
    arith: Arithmetic,
) -> Perturbed:
    """Server p's part of publishing, from its own row alone: a_pp, m -> a_pm and psi_p.

    Every noise of the row is drawn, whoever is up: what is kept and what it costs do not depend on failures.
    """
    if scheme.exchange != "graph":
        raise InputError("scheme.name", scheme.name, "this scheme sends no messages between servers")
    if scheme.noise_on == "link":
        return _perturb_links(scheme, p, own_weight, neighbours, psi, draw, arith)
    own, message = _perturb_server(scheme, p, own_weight, neighbours, psi, draw, arith)
    return Perturbed(own, dict.fromkeys(neighbours, message))


def _perturb_server(
    scheme: Scheme,
    p: int,
    own_weight: float,
    neighbours: Iterable[int],
    psi: State,
    draw: Draw,
    arith: Arithmetic,
) -> tuple[State, State]:
    """s_p = c psi_p + (1 - c) o_p and the one message o_p, which a server without neighbours has too."""
    if scheme.sigma == scheme.sigma_pair == 0.0:
        return psi.copy(), psi.copy()
    g = draw(Purpose.SERVER_NOISE, (p,), scheme.sigma)
    if scheme.sigma_pair:
        for m in sorted(neighbours):  # both ends know this draw and add it with opposite signs
            shared = draw(Purpose.PAIR_NOISE, (min(p, m), max(p, m)), scheme.sigma_pair)
            g = g + shared if p < m else g - shared
    c = own_weight if scheme.carry is None else scheme.carry
    return psi + arith.weigh(1.0 - c, g), psi + g


def _perturb_links(
    scheme: Scheme,
    p: int,
    own_weight: float,
    neighbours: Mapping[int, float],
    psi: State,
    draw: Draw,
    arith: Arithmetic,
) -> Perturbed:
    """The paper's literal g_pm: every message has its own noise, and s_p = psi_p + sum_m a_pm g_pm (+ a_pp g_pp)."""
    if scheme.sigma == 0.0:
        return Perturbed(psi.copy(), {m: psi.copy() for m in neighbours})
    own, sent = psi.copy(), {}
    for m in sorted(neighbours, key=lambda m: (m < p, m)):  # as in `links`: sums of floats depend on the order
        g = draw(Purpose.LINK_NOISE, (p, m), scheme.sigma)
        sent[m] = psi + g
        own += arith.weigh(neighbours[m], g)
    if scheme.own_noise:
        own += arith.weigh(own_weight, draw(Purpose.LINK_NOISE, (p, p), scheme.sigma))
    return Perturbed(own, sent)


def publish(scheme: Scheme, graph: Graph, psi: State, draw: Draw, arith: Arithmetic, present: Bools) -> Published:
    """Perturb at every server: the messages o and the own states s of a round.

    An absent server draws nothing and keeps psi.
    """
    if scheme.exchange == "nothing":
        return Published(psi.copy(), psi[:0])
    if scheme.exchange == "average":
        own = psi + draw(Purpose.NETWORK_NOISE, (), scheme.sigma) if scheme.sigma else psi.copy()
        return Published(own, own.mean(axis=0, keepdims=True))
    once = cache(draw)  # the noise of an edge is one draw, though both of its ends ask for it
    by_link = scheme.noise_on == "link"
    senders, receivers = links(graph)
    own, sent = psi.copy(), psi[senders] if by_link else psi.copy()
    rows: list[dict[int, float]] = [{} for _ in range(graph.P)]
    place = {}
    weights = np.concatenate([graph.edge_weights, graph.edge_weights])
    for n, (p, m, a) in enumerate(zip(senders.tolist(), receivers.tolist(), weights.tolist(), strict=True)):
        rows[p][m], place[p, m] = a, n
    for p in np.flatnonzero(present).tolist():
        row = (scheme, p, float(graph.own_weights[p]), rows[p], psi[p], once, arith)
        if by_link:
            own[p], messages = perturb(*row)
            for m, message in messages.items():
                sent[place[p, m]] = message
        else:
            own[p], sent[p] = _perturb_server(*row)
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
