"""Graphs: weights, spectra and refusals, each against a value found another way."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from confide.base.errors import InputError
from confide.graph.graph import Graph, check_turns
from exploring import more
from work import peak_bytes

RULES = ["lazy", "metropolis", "uniform", "constant"]


def by_definition(g: nx.Graph, rule: str) -> np.ndarray:
    """A written entry by entry from the definitions, for a graph with nodes 0..P-1."""
    P = len(g)
    d = [g.degree(p) for p in range(P)]
    l = np.sort(np.linalg.eigvals(np.diag(d) - nx.to_numpy_array(g, nodelist=range(P))).real)  # noqa: E741
    A = np.zeros((P, P))
    for p in range(P):
        for m in g.neighbors(p):
            A[p, m] = {
                "metropolis": 1 / (1 + max(d[p], d[m])),
                "lazy": 1 / (1 + max(d[p], d[m])) / 2,
                "uniform": 1 / (1 + max(d)),
                "constant": min(2 / (l[1] + l[-1]), 1 / max(d)),
            }[rule]
    return A + np.diag(1 - A.sum(axis=1))


@st.composite
def connected(draw: st.DrawFn, most: int = 12) -> nx.Graph:
    """A random tree with extra edges."""
    P = draw(st.integers(1, most))
    g = nx.empty_graph(P)
    g.add_edges_from((draw(st.integers(0, p - 1)), p) for p in range(1, P))
    server = st.integers(0, P - 1)
    g.add_edges_from((i, j) for i, j in draw(st.lists(st.tuples(server, server), max_size=20)) if i != j)
    return g


# ---- weights and spectra


@given(connected(), st.sampled_from(RULES))
def test_every_rule_gives_the_matrix_of_its_definition(g: nx.Graph, rule: str) -> None:
    graph = Graph.from_networkx(g, rule)
    np.testing.assert_allclose(graph.A, by_definition(g, rule), atol=1e-12)
    assert np.array_equal(graph.A, graph.A.T)
    np.testing.assert_allclose(graph.A.sum(axis=1), 1, atol=1e-12)
    assert graph.A.min() >= 0
    assert graph.degrees.tolist() == [g.degree(p) for p in range(len(g))]
    assert all(graph.neighbours(p).tolist() == sorted(g.neighbors(p)) for p in g)


@given(connected(), st.sampled_from(RULES))
def test_iota_2_is_the_spectral_radius_of_A_less_the_average(g: nx.Graph, rule: str) -> None:
    graph = Graph.from_networkx(g, rule)
    away = graph.A - 1 / graph.P
    assert graph.iota_2 == pytest.approx(np.abs(np.linalg.eigvals(away)).max(), abs=1e-9)
    assert graph.iota_2 < 1
    assert graph.eigenvalues[0] == pytest.approx(1)
    assert np.all(np.diff(graph.eigenvalues) <= 0)
    if rule == "lazy":
        assert graph.eigenvalues.min() >= -1e-12


@pytest.mark.parametrize("P", [3, 4, 10, 11])
def test_ring_spectrum(P: int) -> None:
    k = np.arange(P)
    expected = np.sort((1 + 2 * np.cos(2 * np.pi * k / P)) / 3)[::-1]
    np.testing.assert_allclose(Graph.ring(P, weights="metropolis").eigenvalues, expected, atol=1e-12)
    np.testing.assert_allclose(Graph.ring(P).eigenvalues, (1 + expected) / 2, atol=1e-12)


def test_complete_uniform_averages_at_once() -> None:
    graph = Graph.complete(7, weights="uniform")
    np.testing.assert_allclose(graph.A, np.full((7, 7), 1 / 7), atol=1e-15)
    assert graph.iota_2 == pytest.approx(0, abs=1e-14)
    assert Graph.complete(7).iota_2 == pytest.approx(0.5)


@pytest.mark.parametrize("n", [1, 3, 5])
def test_hypercube_spectrum(n: int) -> None:
    """I - L/(n + 1): 1 - 2k/(n + 1), each binomial(n, k) times. Best constant: 2/(2 + 2n)."""
    values = Graph.hypercube(n, weights="uniform").eigenvalues
    expected = sorted((1 - 2 * p.bit_count() / (n + 1) for p in range(2**n)), reverse=True)
    np.testing.assert_allclose(values, expected, atol=1e-12)
    np.testing.assert_allclose(Graph.hypercube(n, weights="constant").edge_weights, 1 / (1 + n))


def test_constant_is_held_to_nonnegative_own_weights() -> None:
    """A star: l_2 = 1, l_P = P, so 2/(P + 1) would leave the hub less than nothing."""
    graph = Graph.star(8, weights="constant")
    np.testing.assert_allclose(graph.edge_weights, 1 / 7)
    assert 0 <= graph.own_weights[0] < 1e-15


# ---- topologies


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (Graph.ring(7), nx.cycle_graph(7)),
        (Graph.ring(2), nx.path_graph(2)),
        (Graph.path(5), nx.path_graph(5)),
        (Graph.star(6), nx.star_graph(5)),
        (Graph.complete(5), nx.complete_graph(5)),
        (Graph.hypercube(4), nx.convert_node_labels_to_integers(nx.hypercube_graph(4), ordering="sorted")),
        (Graph.grid(3, 4), nx.convert_node_labels_to_integers(nx.grid_2d_graph(3, 4), ordering="sorted")),
        (
            Graph.torus(3, 4),
            nx.convert_node_labels_to_integers(nx.grid_2d_graph(3, 4, periodic=True), ordering="sorted"),
        ),
        (Graph.torus(1, 5), nx.cycle_graph(5)),
        (Graph.torus(2, 2), nx.cycle_graph([0, 1, 3, 2])),
    ],
    ids=lambda value: value.name if isinstance(value, Graph) else "",
)
def test_fixed_topologies_are_those_of_networkx(graph: Graph, expected: nx.Graph) -> None:
    assert graph.edges.tolist() == sorted(sorted(edge) for edge in expected.edges)
    assert len(expected) == graph.P
    assert graph.edges.dtype == np.int64


ONE = [Graph.ring, Graph.path, Graph.star, Graph.complete, Graph.random]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("make", ONE, ids=lambda make: make.__name__)
def test_one_server_alone(make, rule: str) -> None:
    graph = make(1, weights=rule)
    assert (graph.P, graph.edges.shape, graph.A.tolist()) == (1, (0, 2), [[1.0]])
    assert graph.iota_2 == 0.0
    assert graph.degrees.tolist() == [0]
    assert graph.neighbours(0).size == 0


def test_one_server_in_other_ways() -> None:
    assert Graph.hypercube(0).P == Graph.grid(1, 1).P == Graph.torus(1, 1).P == Graph.from_matrix([[1]]).P == 1
    assert Graph.from_edges(None, []).P == Graph.from_dict(Graph.ring(1).to_dict()).P == 1
    assert Graph.from_networkx(Graph.ring(1).to_networkx()).P == 1


def test_random_graphs_repeat_with_their_seed_and_are_connected() -> None:
    for make in (
        lambda seed: Graph.random(12, 0.2, seed=seed),
        lambda seed: Graph.small_world(12, 4, 0.3, seed=seed),
        lambda seed: Graph.regular(12, 3, seed=seed),
    ):
        drawn = [make(seed).edges.tolist() for seed in range(8)]
        assert drawn == [make(seed).edges.tolist() for seed in range(8)]
        assert len({str(edges) for edges in drawn}) > 6
        assert all(nx.is_connected(make(seed).to_networkx()) for seed in range(8))
    assert set(Graph.regular(12, 3).degrees) == {3}
    assert len(Graph.small_world(12, 4, 0.3).edges) == 24
    assert Graph.small_world(9, 2, 0).edges.tolist() == Graph.ring(9).edges.tolist()
    assert len(Graph.random(6, 1).edges) == 15


def test_an_unconnected_draw_is_redrawn_from_the_same_stream() -> None:
    draws = {seed: nx.fast_gnp_random_graph(8, 0.2, seed=seed) for seed in range(20)}
    connected_at_once = [seed for seed, g in draws.items() if nx.is_connected(g)]
    assert 0 < len(connected_at_once) < 20
    for seed, g in draws.items():
        edges = sorted(sorted(edge) for edge in g.edges)
        assert (Graph.random(8, 0.2, seed=seed).edges.tolist() == edges) == (seed in connected_at_once)


def test_a_small_world_that_stays_unconnected_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("confide.graph.edges._DRAWS", 1)
    seed = next(s for s in range(99) if not nx.is_connected(nx.watts_strogatz_graph(60, 2, 1.0, seed=s)))
    with pytest.raises(InputError, match=r"no connected graph in 1 draws; lower graph.rewire or raise"):
        Graph.small_world(60, 2, 1.0, seed=seed)


# ---- large graphs


def test_large_torus_without_a_dense_matrix() -> None:
    made: list[Graph] = []

    def work() -> None:
        made.append(Graph.torus(50, 100, weights="metropolis"))
        assert made[0].iota_2 == pytest.approx(1 - 2 * (1 - np.cos(2 * np.pi / 100)) / 5, abs=1e-11)

    assert peak_bytes(work) < 8 * 5000**2 / 10  # a dense matrix of it takes ten times that
    assert "A" not in vars(made[0])


FEW_RINGS = [(1601, "metropolis"), (1601, "uniform"), (5000, "lazy"), (5000, "constant")]


@pytest.mark.parametrize(("P", "rule"), more(FEW_RINGS, list(product((1601, 5000), RULES))))
def test_large_ring_where_eigenvalues_crowd(P: int, rule: str) -> None:
    angles = 2 * np.pi * np.arange(1, P) / P
    laplacian = 2 - 2 * np.cos(angles)
    a = {"lazy": 1 / 6, "constant": 2 / (laplacian.min() + laplacian.max())}.get(rule, 1 / 3)
    graph = Graph.ring(P, weights=rule)
    assert graph.edge_weights[0] == pytest.approx(min(a, 1 / 2), rel=1e-11)
    gap = 1 - np.abs(1 - graph.edge_weights[0] * laplacian).max()
    assert 1 - graph.iota_2 == pytest.approx(gap, rel=1e-6)


def test_large_sparse_spectrum_matches_the_dense_one(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = [
        Graph.random(60, 0.1), Graph.star(60), Graph.small_world(80), Graph.path(90), Graph.complete(50)
    ]  # fmt: skip
    for graph in graphs:
        for rule in RULES:
            dense = graph.with_weights(rule)
            assert dense.P <= 1500
            with monkeypatch.context() as patch:
                patch.setattr("confide.graph.graph.DENSE", 1)
                patch.setattr("confide.graph.weights.DENSE", 1)
                sparse = Graph.from_edges(graph.P, graph.edges, weights=rule)
                assert sparse.iota_2 == pytest.approx(dense.iota_2, abs=1e-9)
            np.testing.assert_allclose(sparse.edge_weights, dense.edge_weights, rtol=1e-9)


def test_large_complete_uniform_and_alternating_matrix() -> None:
    assert Graph.complete(1600, weights="uniform").iota_2 == pytest.approx(0, abs=1e-12)
    ring = Graph.ring(1600)
    alternating = Graph(ring.edges, np.full(1600, 0.5), np.zeros(1600), "given", "alternating")
    assert alternating.iota_2 == pytest.approx(1, abs=1e-12)


# ---- given matrices


def test_a_given_matrix_is_kept() -> None:
    A = np.array([[0.5, 0.3, 0.2], [0.3, 0.7, 0], [0.2, 0, 0.8]])
    graph = Graph.from_matrix(A)
    np.testing.assert_allclose(graph.A, A, atol=1e-15)
    assert graph.edges.tolist() == [[0, 1], [0, 2]]
    assert graph.edge_weights.tolist() == [0.3, 0.2]
    assert (graph.weights, graph.name) == ("given", "matrix:3")
    assert graph.with_weights("given") is graph
    np.testing.assert_array_equal(graph.with_weights("lazy").A, Graph.star(3).A)
    assert Graph.from_matrix([[0, 1], [1, 0]], turn=True).iota_2 == pytest.approx(1)


def test_a_row_that_nearly_sums_to_one_gets_the_exact_rest() -> None:
    graph = Graph.from_matrix([[0.5 + 5e-10, 0.5], [0.5, 0.5]])
    assert graph.own_weights.tolist() == [0.5, 0.5]


MATRICES = [
    ([[0.5, 0.5]], r"graph.A.shape = (1, 2): must be square"),
    ([0.5, 0.5], r"graph.A.shape = (2,): must be square"),
    (np.zeros((0, 0)), r"graph.A.shape = (0, 0): must be square"),
    ([[1, 0], [0]], "graph.A = [[1, 0], [0]]: must be a square matrix of numbers"),
    ([["a", "b"], ["c", "d"]], "must be a square matrix of numbers"),
    ([[0.5, np.nan], [0.5, 0.5]], "graph.A[0,1] = nan: must be finite"),
    ([[0.5, 0.5], [0.5, np.inf]], "graph.A[1,1] = inf: must be finite"),
    ([[1.5, -0.5], [-0.5, 1.5]], "graph.A[0,1] = -0.5: must not be negative"),
    ([[0.5, 0.5], [0.4, 0.6]], "graph.A[0,1] = 0.5: must be symmetric, but across the diagonal is 0.4"),
    ([[0.5, 0.5], [0.5, 0.4]], "graph.A[1].sum() = 0.9: every row must sum to 1"),
    (np.eye(3), "3 servers, 0 edges': must be connected: [0] do not reach [1, 2]"),
    ([[0, 1], [1, 0]], "graph = '2 servers, 1 edges': must mix (iota_2 < 1): models only change sides and never agree"),
    (np.roll(np.eye(4), 1, 0) / 2 + np.roll(np.eye(4), -1, 0) / 2, "give one a weight for itself, or all of them by"),
]


@pytest.mark.parametrize(("matrix", "message"), MATRICES, ids=[message[:24] for _, message in MATRICES])
def test_a_wrong_matrix_is_refused_by_entry(matrix, message: str) -> None:
    with pytest.raises(InputError) as refusal:
        Graph.from_matrix(matrix)
    assert message in str(refusal.value)


@st.composite
def turns_of(draw: st.DrawFn) -> list[Graph]:
    """Symmetric means of permutations, most of which do not mix alone."""
    P = draw(st.integers(1, 5))
    found = []
    for _ in range(draw(st.integers(1, 3))):
        kinds = draw(st.lists(st.permutations(range(P)), min_size=1, max_size=2))
        A = np.mean([np.eye(P)[list(kind)] for kind in kinds], axis=0)
        found.append(Graph.from_matrix((A + A.T) / 2, turn=True))
    return found


@given(turns_of())
def test_turns_are_taken_if_and_only_if_their_product_mixes(graphs: list[Graph]) -> None:
    """By eigenvalues, which the check does without."""
    product = np.linalg.multi_dot([np.eye(graphs[0].P), *(g.A for g in graphs), np.eye(graphs[0].P)])
    radius = np.abs(np.linalg.eigvals(product - 1 / graphs[0].P)).max()
    if radius < 1 - 1e-6:
        check_turns(graphs)
    else:
        with pytest.raises(InputError, match=r"must be connected|must mix"):
            check_turns(graphs)


@given(connected(), st.sampled_from(["lazy", "metropolis", "uniform"]))
def test_matchings_take_turns(g: nx.Graph, rule: str) -> None:
    """Every edge once, in a turn of its own two ends, and they mix."""
    graph = Graph.from_networkx(g, rule)
    turns = graph.matchings()
    assert len(turns) <= max(1, 2 * graph.degrees.max(initial=0) - 1)
    assert all(turn.degrees.max(initial=0) <= 1 for turn in turns)
    assert sorted(edge for turn in turns for edge in turn.edges.tolist()) == graph.edges.tolist()
    assert all(turn.edge_weights.tolist() == [0.25 if rule == "lazy" else 0.5] * len(turn.edges) for turn in turns)
    check_turns(turns)


def test_matchings_of_a_given_matrix_keep_its_weights() -> None:
    turns = Graph.from_matrix([[0.5, 0.3, 0.2], [0.3, 0.7, 0], [0.2, 0, 0.8]]).matchings()
    assert [(t.edges.tolist(), t.edge_weights.tolist()) for t in turns] == [([[0, 1]], [0.3]), ([[0, 2]], [0.2])]
    assert [t.name for t in turns] == ["matrix:3, matching 1 of 2", "matrix:3, matching 2 of 2"]
    assert Graph.ring(1).matchings()[0].P == 1


def test_whole_swaps_do_not_mix_by_taking_turns() -> None:
    """The mean of two with "constant" weights is their swap, and permutations never mix."""
    with pytest.raises(InputError, match="2 graphs that take turns"):
        check_turns(Graph.path(4, weights="constant").matchings())
    for weights in ([0.5, 1.0], [1.0, 0.5]):
        check_turns([Graph.from_matrix([[1 - a, a], [a, 1 - a]], turn=True) for a in weights])


# ---- edges and networkx


def test_edges_in_any_order_direction_and_number() -> None:
    graph = Graph.from_edges(3, [(2, 1), (1, 0), (0, 1)])
    assert graph.edges.tolist() == [[0, 1], [1, 2]]
    assert Graph.from_edges(None, np.array([[2, 1], [1, 0]])).edges.tolist() == [[0, 1], [1, 2]]
    assert Graph.from_edges(None, ((p, p + 1) for p in range(3))).P == 4


EDGES = [
    ((3, [(0, 1), (1, 1)]), "graph.edges[1] = (1, 1): joins a server to itself"),
    ((3, [(0, 1), (1, 3)]), "graph.edges[1] = (1, 3): servers are numbered from 0 to 2"),
    ((3, [(0, -1)]), "graph.edges[0] = (0, -1): servers are numbered from 0 to 2"),
    ((None, [(0, 2**40)]), "servers are numbered from 0 to"),
    ((2, [(0, 1.0)]), "graph.edges[0] = (0, 1.0): must be a pair of whole numbers"),
    ((2, [(0, True)]), "graph.edges[0] = (0, True): must be a pair of whole numbers"),
    ((2, np.array([[0.0, 1.0]])), "must be a pair of whole numbers"),
    ((3, [(0, 1, 2)]), "graph.edges[0] = (0, 1, 2): must be a pair"),
    ((2, [0, 1]), "graph.edges = [0, 1]: must be pairs of servers"),
    ((2, None), "graph.edges = None: must be pairs of servers"),
    ((4, [(0, 1), (2, 3)]), "must be connected: [0, 1] do not reach [2, 3]; add an edge"),
    ((30, [(0, 1)]), "[0, 1] do not reach [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ...] (28 servers)"),
    ((None, [(1, 2)]), "[0] do not reach [1, 2]"),
    ((None, [(0, 1), (5, 2**31 - 1)]), "[0, 1] do not reach [2, 3,"),
    ((0, []), "graph.P = 0: must be at least 1"),
]


@pytest.mark.parametrize(("arguments", "message"), EDGES, ids=[message[:40] for _, message in EDGES])
def test_wrong_edges_are_refused(arguments, message: str) -> None:
    with pytest.raises(InputError) as refusal:
        Graph.from_edges(*arguments)
    assert message in str(refusal.value)


def test_networkx_there_and_back() -> None:
    graph = Graph.random(9, seed=4)
    g = graph.to_networkx()
    np.testing.assert_array_equal(nx.to_numpy_array(g), graph.A - np.diag(graph.own_weights))
    back = Graph.from_networkx(g)
    np.testing.assert_array_equal(back.A, graph.A)
    assert back.name == "networkx:9"


def test_networkx_nodes_keep_numbers_and_get_numbers() -> None:
    g = nx.Graph([(2, 0), (0, 1)])
    assert Graph.from_networkx(g).edges.tolist() == [[0, 1], [0, 2]]
    named = nx.Graph([("rome", "oslo"), ("oslo", "lima")])
    assert Graph.from_networkx(named).edges.tolist() == [[0, 1], [1, 2]]


@pytest.mark.parametrize(
    ("g", "message"),
    [
        (nx.DiGraph([(0, 1)]), "must be undirected with single edges"),
        (nx.MultiGraph([(0, 1)]), "must be undirected with single edges"),
        (nx.Graph([(0, 1), (1, 1)]), "joins a server to itself"),
        (nx.Graph(), "graph.P = 0: must be"),
        (nx.empty_graph(2), "must be connected: [0] do not reach [1]"),
    ],
)
def test_wrong_networkx_graphs_are_refused(g: nx.Graph, message: str) -> None:
    with pytest.raises(InputError) as refusal:
        Graph.from_networkx(g)
    assert message in str(refusal.value)


# ---- sizes and rules

SIZES = [
    (lambda: Graph.ring(0), "graph.P = 0: must be at least 1"),
    (lambda: Graph.ring(-3), "graph.P = -3:"),
    (lambda: Graph.ring(True), "graph.P = True:"),
    (lambda: Graph.path(2.0), "graph.P = 2.0:"),
    (lambda: Graph.star("5"), "graph.P = '5':"),
    (lambda: Graph.complete(float("nan")), "graph.P = nan:"),
    (lambda: Graph.complete(None), "graph.P = None:"),
    (lambda: Graph.grid(0, 3), "graph.rows = 0:"),
    (lambda: Graph.torus(3, -1), "graph.cols = -1:"),
    (lambda: Graph.hypercube(-1), "graph.dimension = -1: must be between 0 and 20"),
    (lambda: Graph.hypercube(64), "graph.dimension = 64:"),
    (lambda: Graph.random(5, 1.5), "graph.probability = 1.5: must be between 0 and 1"),
    (lambda: Graph.random(5, float("nan")), "graph.probability = nan:"),
    (lambda: Graph.random(5, True), "graph.probability = True:"),
    (lambda: Graph.random(5, "0.4"), "graph.probability = '0.4':"),
    (lambda: Graph.random(5, 0), "graph.probability = 0: must be above 0"),
    (
        lambda: Graph.random(50, 1e-4),
        "graph.seed = 0: no connected graph in 100 draws; raise graph.probability",
    ),
    (lambda: Graph.random(5, seed=-1), "graph.seed = -1:"),
    (lambda: Graph.random(5, seed=0.5), "graph.seed = 0.5:"),
    (lambda: Graph.small_world(10, 3), "graph.neighbours = 3: must be even"),
    (lambda: Graph.small_world(4), "graph.neighbours = 4: must be between 2 and 3"),
    (lambda: Graph.small_world(2, 2), "graph.P = 2: must be at least 3"),
    (lambda: Graph.small_world(10, 4, -0.1), "graph.rewire = -0.1:"),
    (lambda: Graph.regular(5, 3), "graph.degree = 3: must be even, as the number of servers (5) is odd"),
    (lambda: Graph.regular(5, 5), "graph.degree = 5: must be between 1 and 4"),
    (lambda: Graph.regular(8, 1), "no connected graph in 100 draws; raise graph.degree"),
    (
        lambda: Graph.ring(4, weights="lasy"),
        "graph.weights = 'lasy': must be one of lazy, metropolis, uniform",
    ),
    (lambda: Graph.ring(4, weights="given"), "graph.weights = 'given': needs the matrix itself"),
    (lambda: Graph.ring(1, weights="lasy"), "graph.weights = 'lasy':"),
    (lambda: Graph.ring(4).with_weights("given"), "graph.weights = 'given': needs the matrix"),
    (lambda: Graph.ring(4).neighbours(4), "graph.server = 4: must be between 0 and 3"),
    (lambda: Graph.ring(4).neighbours(-1), "graph.server = -1:"),
]


@pytest.mark.parametrize(("build", "message"), SIZES, ids=[message[:40] for _, message in SIZES])
def test_wrong_sizes_and_rules_are_refused(build, message: str) -> None:
    with pytest.raises(InputError) as refusal:
        build()
    assert message in str(refusal.value)


def test_arrays_are_read_only_and_the_rest_is_small() -> None:
    graph = Graph.ring(5)
    for array in (
        graph.edges, graph.edge_weights, graph.own_weights, graph.degrees, graph.A, graph.eigenvalues,
        graph.neighbours(2),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    assert repr(graph) == "Graph(ring:5, lazy, P=5, edges=5)"
    assert graph != Graph.ring(5)  # identity, as for any object that holds arrays
    assert Graph.ring(np.int64(5)).P == 5


# ---- saved runs


@given(connected(), st.sampled_from(RULES))
def test_json_round_trip_is_exact(g: nx.Graph, rule: str) -> None:
    graph = Graph.from_networkx(g, rule)
    back = Graph.from_dict(json.loads(json.dumps(graph.to_dict(), allow_nan=False)))
    for name in ("edges", "edge_weights", "own_weights"):
        assert getattr(back, name).tobytes() == getattr(graph, name).tobytes()
        assert getattr(back, name).dtype == getattr(graph, name).dtype
    assert (back.weights, back.name) == (graph.weights, graph.name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"own_weights": ["a"]}, "must be what Graph.to_dict wrote"),
        ({"edges": [[1, 0], [1, 2]]}, "graph.edges = [[1, 0], [1, 2]]: must be in order"),
        ({"edges": [[1, 2], [0, 1]]}, "must be in order"),
        ({"edges": [[0, 1], [1, 5]]}, "servers are numbered from 0 to 2"),
        ({"edge_weights": [0.1]}, "edges must be (E, 2), edge_weights (E,)"),
        ({"edge_weights": [0.1, -0.1]}, "graph = -0.1: edge weights must be positive"),
        ({"edge_weights": [0.1, float("nan")]}, "edge weights must be positive"),
        ({"own_weights": [0.5, 0.5, 0.5]}, "graph.A[0].sum() ="),
        ({"own_weights": []}, "graph.P = 0"),
        ({"weights": "odd"}, "graph.weights = 'odd'"),
        ({"edges": 3}, "must be pairs of servers"),
    ],
)
def test_a_damaged_save_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as refusal:
        Graph.from_dict(Graph.path(3).to_dict() | change)
    assert message in str(refusal.value)


def test_a_save_without_a_key_is_refused() -> None:
    with pytest.raises(InputError, match="'edge_weights'"):
        Graph.from_dict({"edges": [], "own_weights": [1.0]})


def test_parts_that_do_not_fit_are_no_graph() -> None:
    edges = np.array([[0, 1], [0, 1]])
    with pytest.raises(InputError, match="in order, each once"):
        Graph(edges, np.array([0.2, 0.2]), np.array([0.6, 0.6]), "given", "twice")


# ---- words


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("ring:10", Graph.ring(10)),
        ("path:5", Graph.path(5)),
        ("star:6", Graph.star(6)),
        ("complete:4", Graph.complete(4)),
        ("grid:3x4", Graph.grid(3, 4)),
        ("torus:3x4", Graph.torus(3, 4)),
        ("random:10", Graph.random(10, 0.4, seed=7)),
        ("random:10:0.25", Graph.random(10, 0.25, seed=7)),
        ("small-world:20", Graph.small_world(20, 4, 0.1, seed=7)),
        ("small-world:20:6:0.5", Graph.small_world(20, 6, 0.5, seed=7)),
        ("regular:10:3", Graph.regular(10, 3, seed=7)),
        ("hypercube:4", Graph.hypercube(4)),
    ],
)
def test_specs(spec: str, expected: Graph) -> None:
    graph = Graph.parse(spec, "metropolis", seed=7)
    np.testing.assert_array_equal(graph.edges, expected.edges)
    assert graph.weights == "metropolis"
    assert graph.name == expected.name
    np.testing.assert_array_equal(Graph.parse(graph.name, seed=7).edges, expected.edges)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("rnig:10", "graph = 'rnig:10': unknown topology; the nearest is ring:P"),
        ("Hyper-cube:3", "the nearest is hypercube:DIMENSION"),
        ("smallworld:9", "the nearest is small-world:P[:NEIGHBOURS[:REWIRE]]"),
        ("", "unknown topology"),
        (10, "graph = 10: unknown topology"),
        ("ring", "graph = 'ring': must be ring:P"),
        ("ring:", "must be ring:P"),
        ("ring:ten", "must be ring:P"),
        ("ring:3:4", "must be ring:P"),
        ("ring:2.5", "graph.P = 2.5: must be a whole number"),
        ("ring:nan", "graph.P = nan:"),
        ("ring:0", "graph.P = 0:"),
        ("grid:3", "must be grid:ROWSxCOLS"),
        ("grid:3:4", "must be grid:ROWSxCOLS"),
        ("random:5:0.4:1", "must be random:P[:PROBABILITY]"),
        ("random:5:2", "graph.probability = 2:"),
        ("regular:6", "must be regular:P:DEGREE"),
        ("file:", "must be file:PATH"),
        ("file:nowhere.csv", "graph.file = 'nowhere.csv': cannot be read"),
    ],
)
def test_wrong_specs_are_refused(spec: str, message: str) -> None:
    with pytest.raises(InputError) as refusal:
        Graph.parse(spec)
    assert message in str(refusal.value)


# ---- files


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "graph.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


PATH_3 = [[0, 1], [1, 2]]


@pytest.mark.parametrize(
    ("text", "edges"),
    [
        ("0,1\n1,2\n", PATH_3),
        ("\ufeff0,1\n1,2\n", PATH_3),
        ("from,to\n0,1\n1,2", PATH_3),
        ("\ufeff# a comment\n\n0\t1 # first\n2\t1\n", PATH_3),
        ("0 1\r\n1 2\r\n", PATH_3),
        ("0.0 1.0\n1.0 2.0e0\n", PATH_3),
        ("0,1,0\n1,0,1\n0,1,0\n", PATH_3),
        ("1 1 0\n1 1 1\n0 1 1\n", PATH_3),
        ("a, b, c\n0, 1, 0\n1, 0, 1\n0, 1, 0\n", PATH_3),
        ("0 1\n1 0\n", [[0, 1]]),
        ("1 1\n1 1\n", [[0, 1]]),
        ("0 1\n", [[0, 1]]),
        ("0\n", []),
    ],
)
def test_files(tmp_path: Path, text: str, edges: list[list[int]]) -> None:
    path = written(tmp_path, text)
    graph = Graph.from_file(path, "uniform")
    assert graph.edges.tolist() == edges
    np.testing.assert_array_equal(graph.A, Graph.path(len(edges) + 1, weights="uniform").A)
    assert graph.name == f"file:{path}"
    np.testing.assert_array_equal(Graph.parse(f"file:{path}", "uniform").A, graph.A)


def test_a_file_may_hold_the_matrix_itself(tmp_path: Path) -> None:
    A = np.array([[0.5, 0.3, 0.2], [0.3, 0.7, 0], [0.2, 0, 0.8]])
    path = tmp_path / "A.txt"
    np.savetxt(path, A)
    np.testing.assert_allclose(Graph.from_file(path, "given").A, A, atol=1e-15)
    np.testing.assert_array_equal(Graph.from_file(written(tmp_path, "0.75,0.25\n.25,.75"), "given").A[0], [0.75, 0.25])


def test_the_format_can_be_forced(tmp_path: Path) -> None:
    path = written(tmp_path, "0 1\n1 2\n")
    assert Graph.from_file(path, format="edges").P == 3
    with pytest.raises(InputError, match=r"graph.A\[1,1\] = 2.0: must be 0 or 1"):
        Graph.from_file(path, format="matrix")
    with pytest.raises(InputError, match=r"graph.edges\[0\] = \(1, 1\): joins"):
        Graph.from_file(written(tmp_path, "1 1\n1 1"), format="edges")
    with pytest.raises(InputError, match=r"graph.format = 'csv': must be auto, matrix or edges"):
        Graph.from_file(path, format="csv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no numbers: write a square matrix"),
        ("# nothing\n\n", "has no numbers"),
        ("from,to\n", "has no numbers"),
        (b"0,1\n\xff\xfe,2\n", "line 2 is not UTF-8 text"),
        ("0,1\n# two\n1,2,3\n", "line 3 has 3 columns and the first row 2"),
        ("0,1\n1,two\n", "line 2: 'two' is not a number"),
        ("0,1\n1,\n", "line 2: '' is not a number"),
        ("0,x\n1,2\n", "line 1: 'x' is not a number"),
        ("0,1\n1,2.5\n", "graph.edges[1] = (1, 2.5): must be a pair of whole numbers"),
        ("0,1\n1,nan\n2,3\n", "graph.edges[1] = (1, nan): must be a pair"),
        ("0,1\n2,3\n", "must be connected: [0, 1] do not reach [2, 3]"),
        ("0,1,0\n1,0,1\n", "graph.A.shape = (2, 3): must be square"),
        ("0,1,0\n0,0,1\n0,1,0\n", "graph.A[0,1] = 1.0: must be symmetric"),
        ("0,0.5,0\n0.5,0,1\n0,1,0\n", "graph.A[0,1] = 0.5: must be 0 or 1 in an adjacency; for A itself,"),
        ("0,nan,0\n1,0,1\n0,1,0\n", "graph.A[0,1] = nan: must be 0 or 1"),
    ],
)  # fmt: skip
def test_wrong_files_are_refused_by_line(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InputError) as refusal:
        Graph.from_file(path)
    assert refusal.value.field == "graph.file"
    assert refusal.value.value == str(path)
    assert message in str(refusal.value)


def test_files_that_cannot_be_read_and_edges_without_weights(tmp_path: Path) -> None:
    for path in (tmp_path / "none.csv", tmp_path, "a\0b", None):
        with pytest.raises(InputError, match="cannot be read"):
            Graph.from_file(path)
    with pytest.raises(InputError, match="needs the matrix itself"):
        Graph.from_file(written(tmp_path, "0,1\n1,2\n"), "given")


def test_importing_stays_light() -> None:
    code = "import sys, confide.graph.graph as g; g.Graph.ring(9, weights='constant').iota_2; "
    code += "print([m for m in ('scipy', 'networkx', 'numba') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
