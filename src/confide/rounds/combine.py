"""Publish and combine: own state and edge flows, w_p = s_p + sum_m a_pm (o_m - o_p).

Written with an `Arithmetic`, so the same lines are the float reference and the exact fixed-point round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import NamedTuple, assert_never

import numpy as np

from confide.base.arrays import Bools
from confide.base.errors import InputError
from confide.base.randomness import Purpose
from confide.graph.graph import Graph
from confide.rounds.arithmetic import Arithmetic, State
from confide.rounds.schemes import Exchange, Place, Scheme, links, next_around

Draw = Callable[[Purpose, tuple[int, ...], float], State]  # (purpose, ids within the round, sigma) -> noise
Weight = Callable[[Place, tuple[int, ...], int], float]  # (place, ids, receiver) -> weight of the draw in its message
PURPOSE = {
    Place.SERVER: Purpose.SERVER_NOISE,
    Place.LINK: Purpose.LINK_NOISE,
    Place.OWN: Purpose.LINK_NOISE,
    Place.EDGE: Purpose.PAIR_NOISE,
    Place.AROUND: Purpose.AROUND_NOISE,
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


class Sender(NamedTuple):
    """One server with its own row of the graph alone, as it publishes."""

    scheme: Scheme
    p: int
    own_weight: float  # a_pp
    neighbours: Mapping[int, float]  # m -> a_pm
    psi: State
    draw: Draw
    arith: Arithmetic
    weight: Weight | None = None  # None: all receive the same
    before: Mapping[int, int] = {}  # m -> the neighbour of m before p, where noise goes around m

    def perturb(self) -> Perturbed:
        """Server p's part of publishing.

        Every noise of the row is drawn, whoever is up: what is kept and what it costs do not depend on failures.
        """
        if self.scheme.exchange != Exchange.GRAPH:
            raise InputError("scheme.name", self.scheme.name, "this scheme sends no messages between servers")
        if self.scheme.only_plain("a server on its own").by_link:
            return self.to_each()
        own, message = self.to_all()
        return Perturbed(own, dict.fromkeys(self.neighbours, message))

    def to_all(self) -> tuple[State, State]:
        """s_p = c psi_p + (1 - c) o_p and the one message o_p, which a server without neighbours has too."""
        g = self._noise(self.p)
        if g is None:
            return self.psi.copy(), self.psi.copy()
        return self.psi + self.arith.weigh(1.0 - self._carry, g), self.psi + g

    def to_each(self) -> Perturbed:
        """Every message has its own noise, the paper's g_pm, and s_p = psi_p + sum_m a_pm n_pm + (a_pp - c_p) n_pp."""
        own, sent = self.psi.copy(), {}
        for m in sorted(self.neighbours, key=lambda m: (m < self.p, m)):  # as in `links`: sums of floats have an order
            g = self._noise(m)
            sent[m] = self.psi.copy() if g is None else self.psi + g
            if g is not None:
                own += self.arith.weigh(self.neighbours[m], g)
        g = self._noise(self.p)
        if g is not None:
            share = self.own_weight - self._carry
            own += self.arith.weigh(abs(share), g if share >= 0.0 else -g)
        return Perturbed(own, sent)

    @property
    def _carry(self) -> float:
        return self.own_weight if self.scheme.carry is None else self.scheme.carry

    def _noise(self, to: int) -> State | None:
        """n_pm of the message to m, or n_pp of the own term; None where there is none."""
        total: State | None = None
        if self.scheme.size(*PURPOSE) == 0.0:
            return None
        for at, ids, sign, sigma in self._drawn(to):
            g = self.draw(PURPOSE[at], ids, sigma)
            g = g if sign > 0 else -g
            if at == Place.AROUND:
                g = g / self.neighbours[to]
            if self.weight is not None:
                g = self.weight(at, ids, to) * g
            total = g if total is None else total + g
        return total

    def _drawn(self, to: int) -> Iterator[tuple[Place, tuple[int, ...], int, float]]:
        """The draws of n_pm: where, whose, with which sign and which standard deviation."""
        p = self.p
        for noise in self.scheme.noises:
            match noise.at:
                case Place.SERVER:
                    yield noise.at, (p,), 1, noise.sigma
                case Place.EDGE:  # both ends know this draw and add it with opposite signs
                    for m in sorted(self.neighbours):
                        yield noise.at, (min(p, m), max(p, m)), 1 if p < m else -1, noise.sigma
                case Place.AROUND:
                    if to != p:
                        yield noise.at, (p, to), 1, noise.sigma
                        yield noise.at, (self.before[to], to), -1, noise.sigma
                case Place.LINK | Place.OWN:
                    if (to == p) == (noise.at == Place.OWN):
                        yield noise.at, (p, to), 1, noise.sigma
                case Place.CLIENT | Place.NETWORK:  # in psi already; and of no server
                    pass
                case _:
                    assert_never(noise.at)


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
    circles: list[dict[int, int]] = [{} for _ in range(graph.P)]
    if Place.AROUND in scheme.places:
        for (p, m), q in next_around(graph).items():
            circles[q][m] = p
    place = {}
    both_ways = np.concatenate([graph.edge_weights, graph.edge_weights])
    for n, (p, m, a) in enumerate(zip(senders.tolist(), receivers.tolist(), both_ways.tolist(), strict=True)):
        rows[p][m], place[p, m] = a, n
    for p in np.flatnonzero(present).tolist():
        sender = Sender(scheme, p, float(graph.own_weights[p]), rows[p], psi[p], once, arith, weight, circles[p])
        if scheme.by_link:
            own[p], messages = sender.to_each()
            for m, message in messages.items():
                sent[place[p, m]] = message
        else:
            own[p], sent[p] = sender.to_all()
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
