"""The graph of servers and its combination matrix A: symmetric, doubly stochastic, stored as an edge list.

Servers are numbered from 0. With d_p the degree of server p (itself not counted), the weight rules are

    metropolis   a_pm = 1 / (1 + max(d_p, d_m))
    lazy         (I + metropolis) / 2: no negative eigenvalue; the default
    uniform      a_pm = 1 / (1 + d_max)
    constant     a_pm = min(2 / (l_2 + l_P), 1 / d_max), l the eigenvalues of the Laplacian
    given        the matrix as supplied

and a server keeps the rest, a_pp = 1 - sum over its neighbours of a_pm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from confide.base import validation
from confide.base.arrays import Floats, Ints
from confide.base.errors import InputError
from confide.base.validation import positive_int, whole
from confide.graph.checks import check_mixing, check_parts, check_rule, check_sums, edge_sums, symmetric
from confide.graph.edges import canonical, draw, edge_array
from confide.graph.file import adjacent_pairs, looks_like_edges, number, read_table
from confide.graph.weights import DENSE, dense, frozen, leading, rule_weights, sparse

if TYPE_CHECKING:
    import networkx as nx


SPECS = {  # what `Graph.parse` understands, with the least and the most numbers after the name
    "ring": ("ring:P", 1, 1),
    "path": ("path:P", 1, 1),
    "star": ("star:P", 1, 1),
    "complete": ("complete:P", 1, 1),
    "grid": ("grid:ROWSxCOLS", 2, 2),
    "torus": ("torus:ROWSxCOLS", 2, 2),
    "random": ("random:P[:PROBABILITY]", 1, 2),
    "small-world": ("small-world:P[:NEIGHBOURS[:REWIRE]]", 1, 3),
    "regular": ("regular:P:DEGREE", 2, 2),
    "hypercube": ("hypercube:DIMENSION", 1, 1),
    "file": ("file:PATH", 1, 1),
}


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """A graph of P servers with the weights a_pm that they give to each other's models; A mixes (assumption 1).

    Of several that take turns only the product over a period must: such a one is made with `turn`, and whoever takes
    the graphs asks `check_turns`. Every way to make one takes `weights`, the rule of the a_pm ("lazy", "metropolis",
    "uniform" or "constant"), and raises `InputError` where a number is out of its range or no connected graph comes
    of it.

    >>> Graph.path(3).A.round(4)
    array([[0.8333, 0.1667, 0.    ],
           [0.1667, 0.6667, 0.1667],
           [0.    , 0.1667, 0.8333]])
    """

    edges: Ints  # (E, 2), each row i < j, sorted, unique
    edge_weights: Floats  # (E,), a_pm > 0
    own_weights: Floats  # (P,), a_pp >= 0
    weights: str  # the rule
    name: str

    def __post_init__(self) -> None:
        check_rule(self.weights)
        check_parts(self.edges, self.edge_weights, self.own_weights)
        for array in (self.edges, self.edge_weights, self.own_weights):
            frozen(array)

    def __repr__(self) -> str:
        return f"Graph({self.name}, {self.weights}, P={self.P}, edges={len(self.edges)})"

    # ---- facts

    @property
    def P(self) -> int:
        """The number of servers."""
        return len(self.own_weights)

    @cached_property
    def degrees(self) -> Ints:
        """d_p, the number of neighbours of each server, itself not counted."""
        return frozen(edge_sums(self.P, self.edges))

    @cached_property
    def A(self) -> Floats:
        """The combination matrix, dense: P^2 numbers, so only where P is small."""
        return frozen(dense(self.edges, self.edge_weights, self.own_weights))

    @cached_property
    def eigenvalues(self) -> Floats:
        """The eigenvalues of A, largest first (dense): the first is 1."""
        return frozen(np.linalg.eigvalsh(self.A)[::-1].copy())

    @cached_property
    def iota_2(self) -> float:
        """The second largest eigenvalue modulus of A: the spectral radius of A - 11'/P.

        >>> round(Graph.ring(4, weights="uniform").iota_2, 12)  # (1 + 2 cos(pi / 2)) / 3
        0.333333333333
        """
        if self.P == 1:
            return 0.0
        if self.P <= DENSE:
            return float(np.abs(self.eigenvalues[1:]).max())
        return leading(sparse(self.edges, self.edge_weights, self.own_weights), bound=1.0)

    def neighbours(self, p: int) -> Ints:
        """The servers that share an edge with server p, in order.

        >>> Graph.path(4).neighbours(1)
        array([0, 2])
        """
        return self._neighbours[whole("graph.server", p, 0, self.P - 1)]

    @cached_property
    def _neighbours(self) -> list[Ints]:
        ends = np.concatenate([self.edges, self.edges[:, ::-1]])
        ends = frozen(ends[np.lexsort((ends[:, 1], ends[:, 0]))])
        return np.split(ends[:, 1], np.cumsum(self.degrees)[:-1])

    def check_units(self, units: int) -> None:
        """Refuse a problem of so many units where that is not one for each server."""
        if units != self.P:
            remedy = f"the problem has {units} units; the graph needs one server for each"
            raise InputError("graph", f"{self.name} with {self.P} servers", remedy)

    def matchings(self) -> list[Self]:
        """Gossip: its edges as graphs that take turns, in each of which a server has one neighbour at most.

        An edge comes in the first turn in which both of its ends are free, which makes fewer turns than twice the
        largest degree. The rule is asked again in each: "metropolis" is the mean of two.

        >>> [g.edges.tolist() for g in Graph.path(4).matchings()]
        [[[0, 1], [2, 3]], [[1, 2]]]
        """
        if not len(self.edges):
            return [self]
        turns, busy = list[list[int]](), list[set[int]]()
        for e, ends in enumerate(self.edges.tolist()):
            free = next((n for n, taken in enumerate(busy) if taken.isdisjoint(ends)), len(turns))
            if free == len(turns):
                turns.append([])
                busy.append(set())
            turns[free].append(e)
            busy[free].update(ends)
        names = [f"{self.name}, matching {n} of {len(turns)}" for n in range(1, len(turns) + 1)]
        given = self.weights == "given"
        return [
            self._build(self.P, self.edges[e], self.weights, name, self.edge_weights[e] if given else None)
            for e, name in zip(turns, names, strict=True)
        ]

    # ---- other forms

    def with_weights(self, rule: str) -> Self:
        """The same edges under another weight rule."""
        return self if rule == self.weights else self._build(self.P, self.edges, rule, self.name)

    def to_networkx(self) -> nx.Graph[int]:
        """The networkx graph, with a_pm in the edge attribute "weight"."""
        import networkx as nx

        g: nx.Graph[int] = nx.empty_graph(self.P)
        i, j = self.edges.T.tolist()
        g.add_weighted_edges_from(zip(i, j, self.edge_weights.tolist(), strict=True))
        return g

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and strings, for JSON; `from_dict` gives back the same bits."""
        arrays = {key: getattr(self, key).tolist() for key in ("edges", "edge_weights", "own_weights")}
        return {"name": self.name, "weights": self.weights} | arrays

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The graph that `to_dict` wrote, checked again but for its mixing: it may be one of several."""
        try:
            a, own = (np.array(data[key], dtype=np.float64) for key in ("edge_weights", "own_weights"))
            pairs, rule, name = data["edges"], data["weights"], str(data["name"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError("graph", data, f"must be what Graph.to_dict wrote ({error!r})") from None
        edges = edge_array(own.size, pairs)
        if edges.tolist() != [list(pair) for pair in pairs]:  # or the weights would belong to other edges
            raise InputError("graph.edges", pairs, "must be in order, each once, with i < j")
        return cls(edges, a, own, rule, name)

    # ---- fixed topologies, written as edge lists at once: networkx would need gigabytes for complete(5000)

    @classmethod
    def ring(cls, P: int, weights: str = "lazy") -> Self:
        """Server p beside p - 1 and p + 1, modulo P.

        Args:
            P: number of servers.
            weights: the rule, "lazy", "metropolis", "uniform" or "constant"; of all topologies.
        """
        p = np.arange(positive_int("graph.P", P))
        return cls._build(P, canonical(p, np.roll(p, -1)), weights, f"ring:{P}")

    @classmethod
    def path(cls, P: int, weights: str = "lazy") -> Self:
        """A ring with one edge cut."""
        p = np.arange(positive_int("graph.P", P))
        return cls._build(P, canonical(p[:-1], p[1:]), weights, f"path:{P}")

    @classmethod
    def star(cls, P: int, weights: str = "lazy") -> Self:
        """Server 0 beside all others."""
        p = np.arange(positive_int("graph.P", P))
        return cls._build(P, canonical(0 * p, p), weights, f"star:{P}")

    @classmethod
    def complete(cls, P: int, weights: str = "lazy") -> Self:
        """All beside all; with weights="uniform" one combination is the exact average, A = 11'/P."""
        i, j = np.triu_indices(positive_int("graph.P", P), 1)
        return cls._build(P, canonical(i, j), weights, f"complete:{P}")

    @classmethod
    def grid(cls, rows: int, cols: int, weights: str = "lazy") -> Self:
        """Server cols * r + c at row r and column c, beside the four around it.

        >>> Graph.grid(2, 3).neighbours(1)
        array([0, 2, 4])
        """
        p = np.arange(positive_int("graph.rows", rows) * positive_int("graph.cols", cols)).reshape(rows, cols)
        edges = canonical(np.r_[p[:-1].ravel(), p[:, :-1].ravel()], np.r_[p[1:].ravel(), p[:, 1:].ravel()])
        return cls._build(p.size, edges, weights, f"grid:{rows}x{cols}")

    @classmethod
    def torus(cls, rows: int, cols: int, weights: str = "lazy") -> Self:
        """A grid whose opposite sides touch."""
        p = np.arange(positive_int("graph.rows", rows) * positive_int("graph.cols", cols)).reshape(rows, cols)
        below, right = np.roll(p, -1, axis=0), np.roll(p, -1, axis=1)
        edges = canonical(np.tile(p.ravel(), 2), np.r_[below.ravel(), right.ravel()])
        return cls._build(p.size, edges, weights, f"torus:{rows}x{cols}")

    @classmethod
    def hypercube(cls, dimension: int, weights: str = "lazy") -> Self:
        """2^dimension servers, beside those whose number differs in one bit."""
        bits = 1 << np.arange(whole("graph.dimension", dimension, 0, 20))
        p = np.arange(2**dimension)
        edges = canonical(np.repeat(p, dimension), (p[:, None] ^ bits).ravel())
        return cls._build(p.size, edges, weights, f"hypercube:{dimension}")

    # ---- random topologies: networkx draws until the graph is connected

    @classmethod
    def random(cls, P: int, probability: float = 0.4, seed: int = 0, weights: str = "lazy") -> Self:
        """Erdos-Renyi: each edge exists with a probability, redrawn until the graph is connected.

        Args:
            P: number of servers.
            probability: of an edge between two servers, above 0 and at most 1.
            seed: of the drawing; the same seed gives the same graph.
            weights: the rule.

        Returns:
            The first connected graph that is drawn.

        Raises:
            InputError: none is connected, which happens below a probability of about log(P) / P.
        """
        positive_int("graph.P", P)
        if validation.probability("graph.probability", probability) == 0:
            raise InputError("graph.probability", probability, "must be above 0")
        remedy = f"raise graph.probability, above about {math.log(P) / P:.2g} for {P} servers"
        edges = draw("fast_gnp_random_graph", (P, probability), seed, remedy)
        return cls._build(P, edges, weights, f"random:{P}:{probability}")

    @classmethod
    def small_world(
        cls, P: int, neighbours: int = 4, rewire: float = 0.1, seed: int = 0, weights: str = "lazy"
    ) -> Self:
        """Watts-Strogatz: a ring with some nearest neighbours, each edge rewired with a probability.

        Args:
            P: number of servers, at least 3.
            neighbours: of every server before edges are rewired, an even number.
            rewire: probability that an edge gets another end.
            seed: of the drawing.
            weights: the rule.

        Returns:
            The first connected graph that is drawn.

        Raises:
            InputError: `neighbours` is odd, or none is connected.
        """
        if whole("graph.neighbours", neighbours, 2, whole("graph.P", P, 3) - 1) % 2:
            raise InputError("graph.neighbours", neighbours, "must be even, as many on either side")
        validation.probability("graph.rewire", rewire)
        remedy = "lower graph.rewire or raise graph.neighbours"
        edges = draw("watts_strogatz_graph", (P, neighbours, rewire), seed, remedy)
        return cls._build(P, edges, weights, f"small-world:{P}:{neighbours}:{rewire}")

    @classmethod
    def regular(cls, P: int, degree: int, seed: int = 0, weights: str = "lazy") -> Self:
        """A random graph in which every server has the same degree.

        Args:
            P: number of servers.
            degree: neighbours of each server; even where P is odd.
            seed: of the drawing.
            weights: the rule.

        Returns:
            The first connected graph that is drawn.

        Raises:
            InputError: there is no such graph, or none is connected; from degree 3 on nearly every one is.
        """
        if whole("graph.degree", degree, 1, whole("graph.P", P, 2) - 1) * P % 2:
            raise InputError("graph.degree", degree, f"must be even, as the number of servers ({P}) is odd")
        remedy = "raise graph.degree: from 3 on nearly every graph is connected"
        edges = draw("random_regular_graph", (degree, P), seed, remedy)
        return cls._build(P, edges, weights, f"regular:{P}:{degree}")

    # ---- the user's own

    @classmethod
    def from_edges(
        cls, P: int | None, edges: Iterable[Iterable[int]], weights: str = "lazy", *, turn: bool = False
    ) -> Self:
        """The graph of these pairs.

        Args:
            P: number of servers; None for the largest number in a pair, plus 1.
            edges: pairs of server numbers from 0, in any order and direction, repeated or not.
            weights: the rule.
            turn: it is one of several graphs that take turns, and need not be connected.

        Returns:
            The graph with each edge once.

        Raises:
            InputError: a pair is no pair of servers, or the graph is not connected.

        >>> Graph.from_edges(None, [(0, 1), (2, 1)])
        Graph(edges:3, lazy, P=3, edges=2)
        """
        array = edge_array(P, edges)
        P = int(array.max(initial=0)) + 1 if P is None else P
        if not turn:
            check_mixing(P, [(array, None)])
        return cls._build(P, array, weights, f"edges:{P}")

    @classmethod
    def from_matrix(cls, A: ArrayLike, *, turn: bool = False) -> Self:
        """The combination matrix itself: symmetric, nonnegative, every row summing to 1; it must mix but in a `turn`.

        >>> Graph.from_matrix([[0.9, 0.2], [0.2, 0.8]])
        Traceback (most recent call last):
        confide.base.errors.InputError: graph.A[0].sum() = 1.1: every row must sum to 1
        """
        A = symmetric(A)
        check_sums(A.sum(axis=1))
        edges = np.argwhere(np.triu(A, 1))
        if not turn:
            check_mixing(len(A), [(edges, A.diagonal() > 0)])
        return cls._build(len(A), edges, "given", f"matrix:{len(A)}", a=A[edges[:, 0], edges[:, 1]])

    @classmethod
    def from_networkx(cls, g: nx.Graph[Any], weights: str = "lazy") -> Self:
        """A networkx graph. Nodes 0..P-1 keep their numbers, others are numbered in the order of g.nodes."""
        if g.is_directed() or g.is_multigraph():
            raise InputError("graph", g, "must be undirected with single edges, such as networkx.Graph(g)")
        P = positive_int("graph.P", len(g))
        numbered = set(g) == set(range(P))
        number = {node: int(node) if numbered else p for p, node in enumerate(g)}
        graph = cls.from_edges(P, [(number[u], number[v]) for u, v in g.edges], weights)
        return replace(graph, name=f"networkx:{P}")

    @classmethod
    def from_file(cls, path: str | Path, weights: str = "lazy", format: str = "auto", *, turn: bool = False) -> Self:
        """A text file of numbers separated by commas or spaces: a square matrix, or edges i,j one to a line.

        Args:
            path: of the file. Its first line may be a header, and # starts a comment.
            weights: the rule. A matrix is the adjacency, 0 or 1 with its diagonal ignored; with "given" it is A itself.
            format: "matrix", "edges" or "auto": two columns are edges, unless they are a symmetric 2x2 matrix of
                numbers from 0 to 1.
            turn: it is one of several graphs that take turns, and need not mix.

        Returns:
            The graph, named after the file.

        Raises:
            InputError: the file cannot be read as either, or the graph does not mix.
        """
        if format not in ("auto", "matrix", "edges"):
            raise InputError("graph.format", format, "must be auto, matrix or edges")
        table = read_table(path)
        try:
            if format == "edges" or (format == "auto" and looks_like_edges(table)):
                pairs = [[int(v) if v.is_integer() else v for v in row] for row in table.tolist()]
                graph = cls.from_edges(None, pairs, weights, turn=turn)
            elif weights == "given":
                graph = cls.from_matrix(table, turn=turn)
            else:
                graph = cls.from_edges(len(table), adjacent_pairs(table), weights, turn=turn)
        except InputError as error:
            raise InputError("graph.file", str(path), str(error)) from None
        return replace(graph, name=f"file:{path}")

    @classmethod
    def parse(cls, spec: str, weights: str = "lazy", seed: int = 0, *, turn: bool = False) -> Self:
        """The graph of a few words, as on the command line.

        Args:
            spec: such as "ring:10", "grid:3x4", "random:10:0.4" or "file:PATH"; all are in `confide.graph.graph.SPECS`.
            weights: the rule.
            seed: of the random topologies.
            turn: it is one of several graphs that take turns: that of a file need not mix.

        Returns:
            The graph, named by `spec`.

        Raises:
            InputError: the topology is not known, and the message names the nearest; or its numbers are wrong.

        >>> Graph.parse("torus:3x4", weights="metropolis")
        Graph(torus:3x4, metropolis, P=12, edges=24)
        """
        kind, _, rest = str(spec).partition(":")
        if kind not in SPECS:
            import difflib

            near = difflib.get_close_matches(kind.lower(), SPECS, 1, cutoff=0.0)[0]
            remedy = f"unknown topology; the nearest is {SPECS[near][0]} (known: {', '.join(SPECS)})"
            raise InputError("graph", spec, remedy)
        usage, least, most = SPECS[kind]
        if kind == "file" and rest:
            return cls.from_file(rest, weights, turn=turn)
        numbers = [number(text) for text in rest.split("x" if "x" in usage else ":")]
        if None in numbers or not least <= len(numbers) <= most:
            raise InputError("graph", spec, f"must be {usage}")
        drawn = {"seed": seed} if kind in ("random", "small-world", "regular") else {}
        build: Callable[..., Self] = getattr(cls, kind.replace("-", "_"))
        return build(*numbers, **drawn, weights=weights)

    @classmethod
    def _build(cls, P: int, edges: Ints, rule: str, name: str, a: Floats | None = None) -> Self:
        """Checked edges, with weights of the rule unless given; each server keeps the rest."""
        a = rule_weights(P, edges, rule) if a is None else a
        # below 0 by a rounding only: at degree d_max under "constant", or where the given own weight is 0
        own = np.maximum(1.0 - edge_sums(P, edges, a), 0.0)
        return cls(edges, a, own, rule, name)


def check_turns(graphs: Sequence[Graph]) -> None:
    """Refuse graphs that take turns, or one alone, whose product over a period does not mix."""
    check_mixing(graphs[0].P, [(g.edges, g.own_weights > 0.0) for g in graphs])
