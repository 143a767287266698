"""The compiled engine: the objects a user makes, turned into the plain arrays the kernel reads."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from confide.base.arrays import Floats, Ints
from confide.base.errors import InputError
from confide.base.randomness import Purpose, mix, repetition_seed, words_for
from confide.engines import kernel
from confide.engines.engine import Engine
from confide.engines.recording import Recording
from confide.graph.graph import Graph
from confide.laws.law import Law
from confide.problems.models import Linear, Logistic, Softmax
from confide.problems.problem import Problem
from confide.rounds import clipping
from confide.rounds.algorithm import GFL, Failures
from confide.rounds.local import sgd
from confide.rounds.schemes import Exchange, Place

Counts = NDArray[np.int32]
EXCHANGES = {
    Exchange.GRAPH: kernel.GRAPH,
    Exchange.AVERAGE: kernel.AVERAGE,
    Exchange.NOTHING: kernel.NOTHING,
}
MODELS: dict[type[Any], int] = {Linear: kernel.LINEAR, Logistic: kernel.LOGISTIC, Softmax: kernel.SOFTMAX}


def unable(problem: Problem, algorithm: GFL) -> str | None:
    """What this engine has not been taught about a run, None where it runs it."""
    if type(problem.model) not in MODELS or algorithm.arithmetic != "float" or algorithm.local is not sgd:
        return "it runs linear, logistic and softmax models in float with the built-in local step"
    s, places = algorithm.scheme, algorithm.scheme.places - {Place.CLIENT}
    if not s.plain:
        return "it draws noise without memory that is the same for all receivers"
    if not s.by_link:
        known = places <= {Place.SERVER, Place.EDGE, Place.NETWORK}
    else:
        alike = Place.OWN not in places or s.size(Place.OWN) == s.size(Place.LINK)
        known = alike and s.carry == 0.0 and places <= {Place.LINK, Place.OWN}
    return None if known else "it draws other noises than these: of servers and edges, or of links and own terms alike"


class CompiledEngine(Engine):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.data = _data(self.problem, self.algorithm, self.seed)
        self.rule = _rule(self.problem, self.algorithm, self.cap)
        self.network = _network(self.graphs, self.algorithm, self.rounds)
        self.most_edges = max(len(g.edges) for g in self.graphs)
        self._own = threading.local()
        self._drawn: dict[int, tuple[int, Counts]] = {}  # under a cap, by repetition: after which round, how often each

    def start(self) -> Floats:
        return np.tile(self.problem.start, (self.P, 1))

    def advance(self, repetition: int, w: Floats, first: int, last: int, out: Recording) -> tuple[int, int] | None:
        if not hasattr(self._own, "scratch"):
            self._own.scratch, self._own.words = self._scratch(), self._words()
        row = kernel.Out._make([*(array[repetition] for array in out[:-1]), out.every])  # the fields of `Recording`
        source = self._source(repetition)
        drawn = self._drawn_before(repetition, source, first)
        broke: int = kernel.advance(
            source, first, last, self.rounds, self.rule, self.data, self.network, w, drawn, self._own.scratch, row
        )
        if self.rule.cap:
            self._drawn[repetition] = broke or last, drawn
        return (broke, repetition) if broke else None

    def _drawn_before(self, repetition: int, source: kernel.Source, first: int) -> Counts:
        """How often each client was drawn before this round: a function of the seed, so that a run may go back."""
        if not self.rule.cap:
            return np.empty(0, np.int32)
        after, drawn = self._drawn.get(repetition, (0, np.zeros(len(self.data.E), np.int32)))
        if after >= first:
            after = 0
            drawn[:] = 0
        if after < first - 1:
            kernel.count(source, after + 1, first - 1, self.rule, self.data, self.network, drawn, self._own.scratch)
        return drawn

    def models(self, w: Floats) -> Floats:
        return w

    def _source(self, repetition: int) -> kernel.Source:
        root, secret = np.uint64(mix(repetition_seed(self.seed, repetition))), self.secret
        if secret is None:
            return kernel.Source(root, False, False, *self._own.words)
        keys, *scratch = self._own.words
        keys[:] = secret.streams(repetition).table()
        return kernel.Source(root, True, secret.draws, keys, *scratch)

    def _words(self) -> tuple[NDArray[Any], ...]:
        """Keys and scratch of `kernel.Source`."""
        blocks = words_for(self.M) // 8 + 1
        return np.zeros((max(Purpose) + 1, 8), np.uint32), np.zeros((2, 16), np.uint32), np.zeros(8 * blocks, np.uint64)

    def _scratch(self) -> kernel.Scratch:
        P, M, edges = self.P, self.M, self.most_edges
        sizes = np.diff(self.data.unit_offsets)
        clients = np.arange(sizes.sum()) - np.repeat(self.data.unit_offsets[:-1], sizes)  # 0..K_p-1 in every unit
        largest, batch = int(np.diff(self.data.client_offsets).max()), int(self.data.batch.max())
        C = M // self.problem.federation.M  # margins of a sample: classes, or 1
        phi, grad = np.empty(M), np.empty(M)
        return kernel.Scratch(
            clients=clients,
            rows=np.arange(largest),
            swaps=np.empty(self.rule.sampled, np.int64),
            chosen=np.empty(self.rule.sampled, np.int64),
            row_swaps=np.empty(batch, np.int64),
            picked=np.empty(int((self.data.E * self.data.batch).max()), np.int64),
            phi=phi,
            grad=grad,
            phi_by_class=phi.reshape(C, -1),
            grad_by_class=grad.reshape(C, -1),
            slopes=np.empty(max(batch, C)),
            noise=np.empty(M),
            psi=np.empty((P, M)),
            sent=np.empty((max(P, 2 * edges), M)),
            own=np.empty((P, M)),
            present=np.empty(P, np.int64),
            up=np.empty(edges, np.int64),
        )


def _readonly(a: NDArray[Any]) -> NDArray[Any]:
    """Plain and memory-mapped arrays look alike to Numba, so that one compiled kernel serves both."""
    view = np.asarray(a).view(np.ndarray)  # never `a` itself, whose flag is not ours to change
    view.flags.writeable = False
    return view


def _data(problem: Problem, algorithm: GFL, seed: int) -> kernel.Data:
    f = problem.federation
    E, batch = algorithm.settle(f, seed)
    X, d = (np.ascontiguousarray(a, dtype=np.float64) for a in (f.X, f.d))
    norms = np.empty(0)
    if algorithm.clip is not None and algorithm.clip.kind == "example":
        norms = clipping.norms(X, algorithm.clip.norm)[
            :, 0
        ]  # of the numbers that are clipped, not of a float32's square
    optimum = problem.optimum if problem.optimum is not None else np.full(problem.M, np.nan)
    offsets = (np.ascontiguousarray(o, dtype=np.int64) for o in (f.client_offsets, f.unit_offsets))
    arrays = (X, d, norms, *offsets, E, batch, optimum)
    return kernel.Data(*(_readonly(a) for a in arrays))


def _rule(problem: Problem, algorithm: GFL, cap: int | None) -> kernel.Rule:
    s, clip = algorithm.scheme, algorithm.clip
    kinds = {None: kernel.NO_CLIP, "example": kernel.CLIP_EXAMPLE, "update": kernel.CLIP_UPDATE}
    return kernel.Rule(
        model=MODELS[type(problem.model)],
        rho=float(problem.model.rho),
        step=float(algorithm.step),
        sampled=int(algorithm.sampled),
        cap=min(cap or 0, 2**31 - 1),
        replacement=algorithm.replacement,
        clip=kinds[clip.kind if clip else None],
        bound=float(clip.bound) if clip else 0.0,
        l1=clip is not None and clip.norm == "l1",
        dropout=float(algorithm.dropout),
        law=_number(s.law),
        noise_on=kernel.ON_LINK if s.by_link else kernel.ON_NETWORK if Place.NETWORK in s.places else kernel.ON_SERVER,
        exchange=EXCHANGES[s.exchange],
        own_noise=Place.OWN in s.places,
        sigma=float(s.sigma),
        sigma_pair=float(s.sigma_pair),
        sigma_client=float(s.sigma_client),
    )


def _number(law: Law) -> int:
    """Of a law in the kernel, whose last branch is the Gaussian."""
    if law.kernel not in (kernel.LAPLACE, kernel.GAUSSIAN):
        raise InputError("scheme.noise", law.name, "the compiled engine does not draw it; use engine 'reference'")
    return law.kernel


def _network(graphs: Sequence[Graph], algorithm: GFL, rounds: int) -> kernel.Network:
    offsets = np.concatenate([[0], np.cumsum([len(g.edges) for g in graphs])]).astype(np.int64)
    down_edges, down_edge_offsets, down_units, down_unit_offsets = _schedule(algorithm.failures, graphs, rounds)
    return kernel.Network(
        edges=np.concatenate([g.edges for g in graphs]).astype(np.int64).reshape(-1, 2),
        weights=np.concatenate([g.edge_weights for g in graphs]).astype(np.float64),
        graph_offsets=offsets,
        own_weights=np.stack([g.own_weights for g in graphs]),
        carry=np.stack([algorithm.scheme.carries(g) for g in graphs]),
        link_failure=float(algorithm.failures.link),
        unit_failure=float(algorithm.failures.unit),
        down_edges=down_edges,
        down_edge_offsets=down_edge_offsets,
        down_units=down_units,
        down_unit_offsets=down_unit_offsets,
    )


def _schedule(failures: Failures, graphs: Sequence[Graph], rounds: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Scheduled failures as (edges, offsets by round, units, offsets by round)."""
    place = [{(int(i), int(j)): e for e, (i, j) in enumerate(g.edges)} for g in graphs] if failures.links else []
    links = sorted((at, place[(at - 1) % len(graphs)][min(p, m), max(p, m)]) for at, p, m in failures.links)
    units = sorted(failures.units)

    def columns(rows: Sequence[tuple[int, int]]) -> tuple[Ints, Ints]:
        at = np.array([r for r, _ in rows], dtype=np.int64)
        return np.array([x for _, x in rows], dtype=np.int64), np.searchsorted(at, np.arange(1, rounds + 2))

    return *columns(links), *columns(units)
