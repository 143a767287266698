"""Publish and combine: own state and edge flows, w_p = s_p + sum_m a_pm (o_m - o_p).

Written with an `Arithmetic`, so the same lines are the float reference and the exact fixed-point round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import NamedTuple, assert_never

import numpy as np

from confide.base.arrays import Bools
from confide.base.errors import InputError
from confide.base.randomness import Purpose
from confide.graph.graph import Graph
from confide.rounds.arithmetic import Arithmetic, State
from confide.rounds.schemes import Exchange, Place, Scheme, links

Draw = Callable[[Purpose, tuple[int, ...], float], State]  # (purpose, ids within the round, sigma) -> noise
Weight = Callable[[Place, tuple[int, ...], int], float]  # (place, ids, receiver) -> weight of the draw in its message
PURPOSE = {
    Place.SERVER: Purpose.SERVER_NOISE,
    Place.LINK: Purpose.LINK_NOISE,
    Place.OWN: Purpose.LINK_NOISE,
    Place.EDGE: Purpose.PAIR_NOISE,
    Place.NETWORK: Purpose.NETWORK_NOISE,
}


def place(purpose: Purpose, ids: tuple[int, ...]) -> Place:
    """Where a draw is: noise of links and of the own term have one purpose."""
    if purpose == Purpose.LINK_NOISE and ids[0] == ids[1]:
        return Place.OWN
    return next(at for at, given in PURPOSE.items() if given == purpose)


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
    if scheme.exchange != Exchange.GRAPH:
        raise InputError("scheme.name", scheme.name, "this scheme sends no messages between servers")
    if scheme.only_plain("a server on its own").by_link:
        return _perturb_links(scheme, p, own_weight, neighbours, psi, draw, arith, None)
    own, message = _perturb_server(scheme, p, own_weight, neighbours, psi, draw, arith)
    return Perturbed(own, dict.fromkeys(neighbours, message))


def _noise(
    scheme: Scheme, p: int, to: int, neighbours: Iterable[int], draw: Draw, weight: Weight | None = None
) -> State | None:
    """n_pm of the message to m, or n_pp of the own term; None where there is none."""
    total: State | None = None
    if scheme.size(*PURPOSE) == 0.0:
        return None
    for at, ids, sign, sigma in _drawn(scheme, p, to, neighbours):
        g = draw(PURPOSE[at], ids, sigma)
        g = g if sign > 0 else -g
        if weight is not None:
            g = weight(at, ids, to) * g
        total = g if total is None else total + g
    return total


def _drawn(
    scheme: Scheme, p: int, to: int, neighbours: Iterable[int]
) -> Iterator[tuple[Place, tuple[int, ...], int, float]]:
    """The draws of n_pm: where, whose, with which sign and which standard deviation."""
    for noise in scheme.noises:
        match noise.at:
            case Place.SERVER:
                yield noise.at, (p,), 1, noise.sigma
            case Place.EDGE:  # both ends know this draw and add it with opposite signs
                for m in sorted(neighbours):
                    yield noise.at, (min(p, m), max(p, m)), 1 if p < m else -1, noise.sigma
            case Place.LINK | Place.OWN:
                if (to == p) == (noise.at == Place.OWN):
                    yield noise.at, (p, to), 1, noise.sigma
            case Place.CLIENT | Place.NETWORK:  # in psi already; and of no server
                pass
            case _:
                assert_never(noise.at)


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
    g = _noise(scheme, p, p, neighbours, draw)
    if g is None:
        return psi.copy(), psi.copy()
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
    weight: Weight | None,
) -> Perturbed:
    """Every message has its own noise, the paper's g_pm, and s_p = psi_p + sum_m a_pm n_pm + (a_pp - c_p) n_pp."""
    own, sent = psi.copy(), {}
    for m in sorted(neighbours, key=lambda m: (m < p, m)):  # as in `links`: sums of floats depend on the order
        g = _noise(scheme, p, m, neighbours, draw, weight)
        sent[m] = psi.copy() if g is None else psi + g
        if g is not None:
            own += arith.weigh(neighbours[m], g)
    g = _noise(scheme, p, p, neighbours, draw, weight)
    if g is not None:
        share = own_weight - (own_weight if scheme.carry is None else scheme.carry)
        own += arith.weigh(abs(share), g if share >= 0.0 else -g)
    return Perturbed(own, sent)


def publish(scheme: Scheme, graph: Graph, psi: State, draw: Draw, arith: Arithmetic, present: Bools) -> Published:
    """Perturb at every server: the messages o and the own states s of a round.

    An absent server draws nothing and keeps psi.
    """
    if scheme.exchange == Exchange.NOTHING:
        return Published(psi.copy(), psi[:0])
    if scheme.exchange == Exchange.AVERAGE:
        own = psi + draw(Purpose.NETWORK_NOISE, (), scheme.sigma) if scheme.sigma else psi.copy()
        return Published(own, own.mean(axis=0, keepdims=True))
    once = cache(draw)  # the noise of an edge is one draw, though both of its ends ask for it
    weight = weights(scheme, graph)
    senders, receivers = links(graph)
    own, sent = psi.copy(), psi[senders] if scheme.by_link else psi.copy()
    rows: list[dict[int, float]] = [{} for _ in range(graph.P)]
    place = {}
    both_ways = np.concatenate([graph.edge_weights, graph.edge_weights])
    for n, (p, m, a) in enumerate(zip(senders.tolist(), receivers.tolist(), both_ways.tolist(), strict=True)):
        rows[p][m], place[p, m] = a, n
    for p in np.flatnonzero(present).tolist():
        row = (scheme, p, float(graph.own_weights[p]), rows[p], psi[p], once, arith)
        if scheme.by_link:
            own[p], messages = _perturb_links(*row, weight)
            for m, message in messages.items():
                sent[place[p, m]] = message
        else:
            own[p], sent[p] = _perturb_server(*row)
    return Published(own, sent)


def weights(scheme: Scheme, graph: Graph) -> Weight | None:
    """What a receiver's copy of a draw is multiplied with; None where all receive the same."""
    if scheme.receivers is None:
        return None
    draws = scheme.wiring(graph).draws
    table, row = scheme.weights(graph, len(draws)), {draw: n for n, draw in enumerate(draws)}
    return lambda at, ids, receiver: float(table[row[at, ids], receiver])


def combine(scheme: Scheme, graph: Graph, published: Published, arith: Arithmetic, up: Bools) -> State:
    """Each edge that is up carries one flow, added at one end and subtracted at the other  (8)."""
    own, sent = published
    if scheme.exchange == Exchange.NOTHING:
        return own.copy()
    if scheme.exchange == Exchange.AVERAGE:
        return np.broadcast_to(own.mean(axis=0), own.shape).copy()
    w, n_edges = own.copy(), len(graph.edges)
    for e in np.flatnonzero(up).tolist():
        i, j = graph.edges[e]
        from_i, from_j = (sent[e], sent[n_edges + e]) if scheme.by_link else (sent[i], sent[j])
        flow = arith.weigh(float(graph.edge_weights[e]), from_j - from_i)
        w[i] += flow
        w[j] -= flow
    return w
