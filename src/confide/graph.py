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

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from confide.errors import InputError

if TYPE_CHECKING:
    import networkx as nx
    from scipy.sparse import csr_array

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RULES = ("lazy", "metropolis", "uniform", "constant", "given")
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
_DENSE = 1500  # servers up to which a dense eigensolver takes a second at most
_DRAWS = 100  # of a random graph, before giving up on a connected one


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """A connected graph of P servers with the weights a_pm that they give to each other's models.

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
        _check_rule(self.weights)
        _check_parts(self.edges, self.edge_weights, self.own_weights)
        for array in (self.edges, self.edge_weights, self.own_weights):
            _frozen(array)

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
        return _frozen(_edge_sums(self.P, self.edges))

    @cached_property
    def A(self) -> Floats:
        """The combination matrix, dense: P^2 numbers, so only where P is small."""
        return _frozen(_dense(self.edges, self.edge_weights, self.own_weights))

    @cached_property
    def eigenvalues(self) -> Floats:
        """The eigenvalues of A, largest first (dense): the first is 1."""
        return _frozen(np.linalg.eigvalsh(self.A)[::-1].copy())

    @cached_property
    def iota_2(self) -> float:
        """The second largest eigenvalue modulus of A: the spectral radius of A - 11'/P.

        >>> round(Graph.ring(4, weights="uniform").iota_2, 12)  # (1 + 2 cos(pi / 2)) / 3
        0.333333333333
        """
        if self.P == 1:
            return 0.0
        if self.P <= _DENSE:
            return float(np.abs(self.eigenvalues[1:]).max())
        return _leading(_sparse(self.edges, self.edge_weights, self.own_weights), bound=1.0)

    @property
    def spectral_gap(self) -> float:
        """1 - iota_2, above 0 unless A is given and alternates for ever, as [[0, 1], [1, 0]] does."""
        return 1.0 - self.iota_2

    def neighbours(self, p: int) -> Ints:
        """The servers that share an edge with p, in order.

        >>> Graph.path(4).neighbours(1)
        array([0, 2])
        """
        return self._neighbours[_whole("graph.server", p, 0, self.P - 1)]

    @cached_property
    def _neighbours(self) -> list[Ints]:
        ends = np.concatenate([self.edges, self.edges[:, ::-1]])
        ends = _frozen(ends[np.lexsort((ends[:, 1], ends[:, 0]))])
        return np.split(ends[:, 1], np.cumsum(self.degrees)[:-1])

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
        """The graph that `to_dict` wrote, checked again."""
        try:
            a, own = (np.array(data[key], dtype=np.float64) for key in ("edge_weights", "own_weights"))
            pairs, rule, name = data["edges"], data["weights"], str(data["name"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError("graph", data, f"must be what Graph.to_dict wrote ({error!r})") from None
        edges = _edge_array(own.size, pairs)
        if edges.tolist() != [list(pair) for pair in pairs]:  # or the weights would belong to other edges
            raise InputError("graph.edges", pairs, "must be in order, each once, with i < j")
        _check_connected(own.size, edges)
        return cls(edges, a, own, rule, name)

    # ---- fixed topologies, written as edge lists at once: networkx would need gigabytes for complete(5000)

    @classmethod
    def ring(cls, P: int, weights: str = "lazy") -> Self:
        """Server p beside p - 1 and p + 1, modulo P."""
        p = np.arange(_whole("graph.P", P))
        return cls._build(P, _canonical(p, np.roll(p, -1)), weights, f"ring:{P}")

    @classmethod
    def path(cls, P: int, weights: str = "lazy") -> Self:
        """A ring with one edge cut."""
        p = np.arange(_whole("graph.P", P))
        return cls._build(P, _canonical(p[:-1], p[1:]), weights, f"path:{P}")

    @classmethod
    def star(cls, P: int, weights: str = "lazy") -> Self:
        """Server 0 beside all others."""
        p = np.arange(_whole("graph.P", P))
        return cls._build(P, _canonical(0 * p, p), weights, f"star:{P}")

    @classmethod
    def complete(cls, P: int, weights: str = "lazy") -> Self:
        """All beside all; with weights="uniform" one combination is the exact average, A = 11'/P."""
        i, j = np.triu_indices(_whole("graph.P", P), 1)
        return cls._build(P, _canonical(i, j), weights, f"complete:{P}")

    @classmethod
    def grid(cls, rows: int, cols: int, weights: str = "lazy") -> Self:
        """Server cols * r + c at row r and column c, beside the four around it."""
        p = np.arange(_whole("graph.rows", rows) * _whole("graph.cols", cols)).reshape(rows, cols)
        edges = _canonical(np.r_[p[:-1].ravel(), p[:, :-1].ravel()], np.r_[p[1:].ravel(), p[:, 1:].ravel()])
        return cls._build(p.size, edges, weights, f"grid:{rows}x{cols}")

    @classmethod
    def torus(cls, rows: int, cols: int, weights: str = "lazy") -> Self:
        """A grid whose opposite sides touch."""
        p = np.arange(_whole("graph.rows", rows) * _whole("graph.cols", cols)).reshape(rows, cols)
        below, right = np.roll(p, -1, axis=0), np.roll(p, -1, axis=1)
        edges = _canonical(np.tile(p.ravel(), 2), np.r_[below.ravel(), right.ravel()])
        return cls._build(p.size, edges, weights, f"torus:{rows}x{cols}")

    @classmethod
    def hypercube(cls, dimension: int, weights: str = "lazy") -> Self:
        """2^dimension servers, beside those whose number differs in one bit."""
        bits = 1 << np.arange(_whole("graph.dimension", dimension, 0, 20))
        p = np.arange(2**dimension)
        edges = _canonical(np.repeat(p, dimension), (p[:, None] ^ bits).ravel())
        return cls._build(p.size, edges, weights, f"hypercube:{dimension}")

    # ---- random topologies: networkx draws until the graph is connected

    @classmethod
    def random(cls, P: int, probability: float = 0.4, seed: int = 0, weights: str = "lazy") -> Self:
        """Erdos-Renyi: each edge exists with this probability, redrawn until the graph is connected."""
        _whole("graph.P", P)
        if _fraction("graph.probability", probability) == 0:
            raise InputError("graph.probability", probability, "must be above 0")
        remedy = f"raise graph.probability, above about {math.log(P) / P:.2g} for {P} servers"
        edges = _draw("fast_gnp_random_graph", (P, probability), seed, remedy)
        return cls._build(P, edges, weights, f"random:{P}:{probability}")

    @classmethod
    def small_world(
        cls, P: int, neighbours: int = 4, rewire: float = 0.1, seed: int = 0, weights: str = "lazy"
    ) -> Self:
        """Watts-Strogatz: a ring with this many nearest neighbours, each edge rewired with a probability."""
        if _whole("graph.neighbours", neighbours, 2, _whole("graph.P", P, 3) - 1) % 2:
            raise InputError("graph.neighbours", neighbours, "must be even, as many on either side")
        _fraction("graph.rewire", rewire)
        remedy = "lower graph.rewire or raise graph.neighbours"
        edges = _draw("watts_strogatz_graph", (P, neighbours, rewire), seed, remedy)
        return cls._build(P, edges, weights, f"small-world:{P}:{neighbours}:{rewire}")

    @classmethod
    def regular(cls, P: int, degree: int, seed: int = 0, weights: str = "lazy") -> Self:
        """A random graph in which every server has the same degree."""
        if _whole("graph.degree", degree, 1, _whole("graph.P", P, 2) - 1) * P % 2:
            raise InputError("graph.degree", degree, f"must be even, as the number of servers ({P}) is odd")
        remedy = "raise graph.degree: from 3 on nearly every graph is connected"
        edges = _draw("random_regular_graph", (degree, P), seed, remedy)
        return cls._build(P, edges, weights, f"regular:{P}:{degree}")

    # ---- the user's own

    @classmethod
    def from_edges(cls, P: int | None, edges: Iterable[Iterable[int]], weights: str = "lazy") -> Self:
        """The graph of these pairs, in any order and direction, repeated or not; P=None: the largest + 1.

        >>> Graph.from_edges(None, [(0, 1), (2, 1)])
        Graph(edges:3, lazy, P=3, edges=2)
        """
        array = _edge_array(P, edges)
        P = int(array.max(initial=0)) + 1 if P is None else P
        _check_connected(P, array)
        return cls._build(P, array, weights, f"edges:{P}")

    @classmethod
    def from_matrix(cls, A: ArrayLike) -> Self:
        """The combination matrix itself: symmetric, nonnegative, connected, every row summing to 1.

        >>> Graph.from_matrix([[0.9, 0.2], [0.2, 0.8]])
        Traceback (most recent call last):
        confide.errors.InputError: graph.A[0].sum() = 1.1: every row must sum to 1
        """
        A = _symmetric(A)
        _check_sums(A.sum(axis=1))
        edges = np.argwhere(np.triu(A, 1))
        _check_connected(len(A), edges)
        return cls._build(len(A), edges, "given", f"matrix:{len(A)}", a=A[edges[:, 0], edges[:, 1]])

    @classmethod
    def from_networkx(cls, g: nx.Graph[Any], weights: str = "lazy") -> Self:
        """A networkx graph. Nodes 0..P-1 keep their numbers, others are numbered in the order of g.nodes."""
        if g.is_directed() or g.is_multigraph():
            raise InputError("graph", g, "must be undirected with single edges, such as networkx.Graph(g)")
        P = _whole("graph.P", len(g))
        numbered = set(g) == set(range(P))
        number = {node: int(node) if numbered else p for p, node in enumerate(g)}
        graph = cls.from_edges(P, [(number[u], number[v]) for u, v in g.edges], weights)
        return replace(graph, name=f"networkx:{P}")

    @classmethod
    def from_file(cls, path: str | Path, weights: str = "lazy", format: str = "auto") -> Self:
        """A text file of numbers separated by commas or spaces: a square matrix, or edges i,j one to a line.

        The first line may be a header, and # starts a comment. A matrix is the adjacency, 0 or 1 with its
        diagonal ignored; with weights="given" it is A itself. Under format="auto" two columns are edges,
        unless they are a symmetric 2x2 matrix of numbers from 0 to 1; "matrix" and "edges" settle it.
        """
        if format not in ("auto", "matrix", "edges"):
            raise InputError("graph.format", format, "must be auto, matrix or edges")
        table = _read_table(path)
        try:
            if format == "edges" or (format == "auto" and _looks_like_edges(table)):
                pairs = [[int(v) if v.is_integer() else v for v in row] for row in table.tolist()]
                graph = cls.from_edges(None, pairs, weights)
            elif weights == "given":
                graph = cls.from_matrix(table)
            else:
                graph = cls.from_edges(len(table), _adjacent_pairs(table), weights)
        except InputError as error:
            raise InputError("graph.file", str(path), str(error)) from None
        return replace(graph, name=f"file:{path}")

    @classmethod
    def parse(cls, spec: str, weights: str = "lazy", seed: int = 0) -> Self:
        """The graph of a few words, as on the command line; `seed` is for the random topologies.

        >>> Graph.parse("torus:3x4", weights="metropolis")
        Graph(torus:3x4, metropolis, P=12, edges=24)
        """
        kind, _, rest = str(spec).partition(":")
        if kind not in SPECS:
            near = difflib.get_close_matches(kind.lower(), SPECS, 1, cutoff=0.0)[0]
            remedy = f"unknown topology; the nearest is {SPECS[near][0]} (known: {', '.join(SPECS)})"
            raise InputError("graph", spec, remedy)
        usage, least, most = SPECS[kind]
        if kind == "file" and rest:
            return cls.from_file(rest, weights)
        numbers = [_number(text) for text in rest.split("x" if "x" in usage else ":")]
        if None in numbers or not least <= len(numbers) <= most:
            raise InputError("graph", spec, f"must be {usage}")
        drawn = {"seed": seed} if kind in ("random", "small-world", "regular") else {}
        build: Callable[..., Self] = getattr(cls, kind.replace("-", "_"))
        return build(*numbers, **drawn, weights=weights)

    @classmethod
    def _build(cls, P: int, edges: Ints, rule: str, name: str, a: Floats | None = None) -> Self:
        """Checked edges, with weights of the rule unless given; each server keeps the rest."""
        a = _rule_weights(P, edges, rule) if a is None else a
        # below 0 by a rounding only: at degree d_max under "constant", or where the given own weight is 0
        own = np.maximum(1.0 - _edge_sums(P, edges, a), 0.0)
        return cls(edges, a, own, rule, name)


# ---- weights and spectra


def _edge_sums(P: int, edges: Ints, a: Floats | None = None) -> NDArray[Any]:
    """The sum of a over the edges of each server; without a, its degree."""
    return np.bincount(edges.ravel(), None if a is None else np.repeat(a, 2), minlength=P)


def _rule_weights(P: int, edges: Ints, rule: str) -> Floats:
    _check_rule(rule)
    if rule == "given":
        raise InputError("graph.weights", rule, "needs the matrix itself: Graph.from_matrix or a matrix file")
    if P == 1:
        return np.empty(0)
    d = _edge_sums(P, edges)
    if rule == "uniform":
        return np.full(len(edges), 1 / (1 + d.max()))
    if rule == "constant":
        l_2, l_P = _laplacian_ends(P, edges)
        return np.full(len(edges), min(2 / (l_2 + l_P), 1 / d.max()))
    metropolis: Floats = 1 / (1 + d[edges].max(axis=1))
    return metropolis / 2 if rule == "lazy" else metropolis


def _laplacian_ends(P: int, edges: Ints) -> tuple[float, float]:
    """The smallest eigenvalue of the Laplacian above 0, and the largest."""
    d = _edge_sums(P, edges).astype(np.float64)
    ones = np.ones(len(edges))
    if P <= _DENSE:
        values = np.linalg.eigvalsh(_dense(edges, -ones, d))
        return float(values[1]), float(values[-1])
    bound = float(d[edges].sum(axis=1).max())  # Anderson and Morley: l_P <= max over edges of d_p + d_m
    return bound - _leading(_sparse(edges, ones, bound - d), bound), _leading(_sparse(edges, -ones, d), bound)


def _dense(edges: Ints, off_diagonal: Floats, diagonal: Floats) -> Floats:
    M = np.diag(diagonal)
    i, j = edges.T
    M[i, j] = M[j, i] = off_diagonal
    return M


def _sparse(edges: Ints, off_diagonal: Floats, diagonal: Floats) -> csr_array[np.float64]:
    from scipy.sparse import coo_array

    i, j = edges.T
    p = np.arange(len(diagonal))
    values = np.r_[off_diagonal, off_diagonal, diagonal]
    return coo_array((values, (np.r_[i, j, p], np.r_[j, i, p])), shape=(p.size, p.size)).tocsr()


def _leading(M: csr_array[np.float64], bound: float) -> float:
    """The largest |eigenvalue| (at most `bound`) of M on the vectors orthogonal to 1, an eigenvector of M."""
    from scipy.sparse import eye_array
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh, splu

    P = M.shape[0]
    start = _centred(np.random.default_rng(0).standard_normal(P))  # fixed, for the same bits every time

    def lanczos(apply: Callable[[Floats], Any], restarts: int) -> float:
        operator = LinearOperator((P, P), lambda x: _centred(apply(_centred(x.ravel()))), dtype=np.float64)
        values, _ = eigsh(operator, k=1, v0=start, ncv=40, maxiter=restarts, tol=1e-12)
        return float(abs(values[0]))

    if np.abs(_centred(M @ start)).max() <= 1e-12 * bound * np.abs(start).max():
        return 0.0  # complete and uniform: Lanczos has nothing to work on
    try:
        return lanczos(lambda x: M @ x, restarts=50)
    except ArpackNoConvergence:
        # A ring or a grid: the eigenvalues crowd below the bound. Squaring folds both ends of the spectrum
        # onto one, inverting just above it pulls the crowd apart, and so few edges are cheap to factor.
        top = bound**2 * (1 + 1e-10)
        factors = splu((top * eye_array(P) - M @ M).tocsc())
        return math.sqrt(top - 1 / lanczos(factors.solve, restarts=1000))


def _centred(x: Any) -> Floats:
    return np.asarray(x - x.mean(), dtype=np.float64)


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.setflags(write=False)
    return array


# ---- edges


def _canonical(i: Ints, j: Ints) -> Ints:
    """Each pair once, i < j, in order; a server beside itself (a ring of one) drops out."""
    low, high = np.minimum(i, j), np.maximum(i, j)
    base = int(high.max(initial=0)) + 1
    keys = np.unique((low * base + high)[low < high])  # one number for a pair: far faster than sorting rows
    return np.stack(np.divmod(keys, base), axis=1).astype(np.int64)


def _edge_array(P: int | None, edges: Iterable[Iterable[int]]) -> Ints:
    """The user's pairs, each checked, in canonical form."""
    last = 2**31 - 1 if P is None else _whole("graph.P", P) - 1
    try:
        pairs = [tuple(pair) for pair in (edges.tolist() if isinstance(edges, np.ndarray) else edges)]
    except TypeError:
        raise InputError("graph.edges", edges, "must be pairs of servers, such as [(0, 1), (1, 2)]") from None
    for k, pair in enumerate(pairs):
        field = f"graph.edges[{k}]"
        if len(pair) != 2 or not all(_is_whole(p) for p in pair):
            raise InputError(field, pair, "must be a pair of whole numbers (i, j)")
        if not all(0 <= p <= last for p in pair):
            raise InputError(field, pair, f"servers are numbered from 0 to {last}")
        if pair[0] == pair[1]:
            raise InputError(field, pair, "joins a server to itself: leave it out, the rule sets own weights")
    return _canonical(*np.array(pairs, dtype=np.int64).reshape(-1, 2).T)


def _draw(generator: str, sizes: tuple[float, ...], seed: int, remedy: str) -> Ints:
    """The edges of the first connected graph that networkx draws from the stream of this seed."""
    import networkx as nx

    # one stream: redrawing with seed + 1, seed + 2, ... would give neighbouring seeds the same graph
    stream = nx.utils.create_py_random_state(_whole("graph.seed", seed, 0))
    for _ in range(_DRAWS):
        g = getattr(nx, generator)(*sizes, seed=stream)
        if nx.is_connected(g):
            return _canonical(*np.array(g.edges, dtype=np.int64).reshape(-1, 2).T)
    raise InputError("graph.seed", seed, f"no connected graph in {_DRAWS} draws; {remedy}")


# ---- refusals


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _whole(field: str, value: int, low: int = 1, high: int | None = None) -> int:
    if not _is_whole(value) or value < low or (high is not None and value > high):
        bounds = f"{low} or more" if high is None else f"from {low} to {high}"
        raise InputError(field, value, f"must be a whole number, {bounds}")
    return int(value)


def _fraction(field: str, value: Any) -> float:
    if not (_is_whole(value) or isinstance(value, float | np.floating)) or not 0 <= value <= 1:
        raise InputError(field, value, "must be a number from 0 to 1")
    return float(value)


def _check_rule(rule: str) -> None:
    if rule not in RULES:
        raise InputError("graph.weights", rule, f"must be one of {', '.join(RULES)}")


def _check_sums(sums: Floats) -> None:
    wrong = int(np.abs(sums - 1).argmax())
    if not abs(sums[wrong] - 1) <= 1e-9:  # so written, NaN is refused
        raise InputError(f"graph.A[{wrong}].sum()", round(float(sums[wrong]), 12), "every row must sum to 1")


def _check_parts(edges: Ints, a: Floats, own: Floats) -> None:
    """What makes a Graph, except that it is connected: the constructors know or check that."""
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
    _check_sums(own + _edge_sums(own.size, edges, a))


def _check_connected(P: int, edges: Ints) -> None:
    import networkx as nx

    g: nx.Graph[int] = nx.empty_graph(1)
    g.add_edges_from(edges.tolist())
    reached = nx.node_connected_component(g, 0)
    if len(reached) < P:
        inside = _some(sorted(reached), len(reached))
        outside = _some((p for p in range(P) if p not in reached), P - len(reached))
        remedy = f"must be connected: {inside} do not reach {outside}; add an edge between them"
        raise InputError("graph", f"{P} servers, {len(edges)} edges", remedy)


def _some(servers: Iterable[int], count: int, most: int = 10) -> str:
    shown = ", ".join(map(str, islice(servers, most)))
    return f"[{shown}]" if count <= most else f"[{shown}, ...] ({count} servers)"


def _symmetric(matrix: ArrayLike) -> Floats:
    """A finite, nonnegative, symmetric matrix; what is off by no more than 1e-12 is put right."""
    try:
        A = np.array(matrix, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("graph.A", matrix, "must be a square matrix of numbers") from None
    if A.ndim != 2 or A.shape[0] != A.shape[1] or not A.size:
        raise InputError("graph.A.shape", A.shape, "must be square, a row and a column for each server")
    _check_entries(A, np.isfinite(A), "must be finite")
    _check_entries(A, A >= -1e-12, "must not be negative")
    _check_entries(A, np.abs(A - A.T) <= 1e-12, "must be symmetric, but across the diagonal is {across}")
    return np.maximum((A + A.T) / 2, 0.0)


def _check_entries(A: Floats, good: NDArray[np.bool_], remedy: str) -> None:
    if not good.all():
        i, j = map(int, np.argwhere(~good)[0])
        raise InputError(f"graph.A[{i},{j}]", float(A[i, j]), remedy.format(across=float(A[j, i])))


# ---- files


def _read_table(path: str | Path) -> Floats:
    """The numbers of a text file, every line as long as the first."""

    def refusal(remedy: str) -> InputError:
        return InputError("graph.file", str(path), remedy)

    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise refusal(f"line {line} is not UTF-8 text: save it as UTF-8") from None
    except (OSError, TypeError, ValueError) as error:  # ValueError: a null byte in the path
        raise refusal(f"cannot be read ({error}): give the path of a text file") from None
    cells = [re.split(r"\s*,\s*|\s+", line.partition("#")[0].strip()) for line in lines]
    numbered = [(n, row) for n, row in enumerate(cells, start=1) if row != [""]]
    if numbered and all(_number(cell) is None for cell in numbered[0][1]):
        del numbered[0]  # a header
    if not numbered:
        raise refusal("has no numbers: write a square matrix, or edges i,j one to a line")
    width = len(numbered[0][1])
    for n, row in numbered:
        if len(row) != width:
            raise refusal(f"line {n} has {len(row)} columns and the first row {width}: make them equal")
        for cell in row:
            if _number(cell) is None:
                raise refusal(f"line {n}: {cell!r} is not a number")
    return np.array([row for _, row in numbered], dtype=np.float64)


def _number(text: str) -> int | float | None:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


def _looks_like_edges(table: Floats) -> bool:
    two_by_two = table.shape == (2, 2) and np.array_equal(table, table.T)
    return table.shape[1] == 2 and not (two_by_two and np.all((table >= 0) & (table <= 1)))


def _adjacent_pairs(table: Floats) -> list[list[int]]:
    _check_entries(table, np.isin(table, (0, 1)), 'must be 0 or 1 in an adjacency; for A itself, weights = "given"')
    pairs: list[list[int]] = np.argwhere(np.triu(_symmetric(table), 1)).tolist()
    return pairs
