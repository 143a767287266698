"""The round, beside the paper: straight NumPy loops, slow and obvious, the oracle of every test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from confide.base import randomness
from confide.base.arrays import Bools, Floats, Ints
from confide.base.errors import InputError
from confide.base.randomness import Purpose, choose, key, uniform, words
from confide.graph.graph import Graph
from confide.laws.law import GAUSSIAN
from confide.problems.problem import Problem
from confide.rounds.aggregate import PlainSum, SecureSum
from confide.rounds.algorithm import GFL, Failures
from confide.rounds.arithmetic import Arithmetic, FixedArithmetic, FloatArithmetic, State, check_range, on_grid
from confide.rounds.combine import combine, place, publish
from confide.rounds.local import LocalTask, SideBySide, shared_update, without_data
from confide.rounds.noise import NoiseSource, float_noise, integer_noise
from confide.rounds.schemes import Place

if TYPE_CHECKING:
    from confide.secure.secret import RunSecret, Streams


class Round(NamedTuple):
    """All of one round; rows are servers."""

    w: State  # after combination, w_{p,i}
    psi: State  # after aggregation, psi_{p,i}
    own: State  # s_p
    sent: State  # the messages
    participants: int  # who gave data
    drawn: State  # the last `memory` rounds' draws, this round's first: (memory, draws, M)


@dataclass
class Drawn:
    """How often each client was drawn in the first rounds, by (unit, client)."""

    rounds: int = 0
    times: Counter[tuple[int, int]] = field(default_factory=Counter)


@dataclass(frozen=True)
class Reference:
    """One repetition of a run: everything a round needs besides the states.

    Attributes:
        cap: rounds in which a client gives data at most, None for all. Being drawn counts, whatever becomes of the
            update; from then on a client gives zeros, while its noise and the server's decay for it stay.
    """

    problem: Problem
    graphs: tuple[Graph, ...]
    algorithm: GFL
    E: Ints
    batch: Ints
    seed: int | Streams  # of all draws but noise
    arithmetic: Arithmetic
    noise: NoiseSource
    cap: int | None = None
    _drawn: Drawn = field(default_factory=Drawn, init=False, repr=False, compare=False)

    def start(self, w0: Floats) -> State:
        return self.arithmetic.state(w0)

    @cached_property
    def rows(self) -> dict[tuple[Place, tuple[int, ...]], int]:
        """Of the draws that a scheme with memory keeps, those of all graphs that take turns."""
        if not self.algorithm.scheme.memory:
            return {}
        draws = dict.fromkeys(draw for g in self.graphs for draw in self.algorithm.scheme.wiring(g).draws)
        return {draw: row for row, draw in enumerate(draws)}

    def kept(self, M: int) -> tuple[int, int, int]:
        """The shape of what a round hands on to the next besides the states; zeros before the first."""
        return self.algorithm.scheme.memory, len(self.rows), M

    def round(self, i: int, w: State, past: State | None = None) -> Round:
        """Round i = 1, 2, ... from the states w_{p,i-1}; `past` is what the round before has `drawn`.

        An absent server draws nothing, which counts as zeros in later rounds.
        """
        alg, graph = self.algorithm, self.graphs[(i - 1) % len(self.graphs)]
        if past is None:
            if alg.scheme.memory and i > 1:
                remedy = "the scheme has memory: give what the round before has drawn"
                raise InputError("past", None, remedy)
            past = np.zeros(self.kept(w.shape[1]), w.dtype)
        now, taps = np.zeros_like(past[:1]), {n.at: n.taps for n in alg.scheme.noises}
        present = units_present(alg.failures, self.seed, i, graph.P)
        clients = {p: self.sample(i, p) for p in np.flatnonzero(present).tolist()}
        if alg.aggregation is not None:  # fewer survivors than a sum needs: the unit skips the round
            quorum = alg.aggregation.parameters(alg.sampled).quorum
            clients = {p: survivors for p, survivors in clients.items() if len(survivors) >= quorum}
            present = np.array([p in clients for p in range(graph.P)])
        up = links_up(alg.failures, self.seed, i, graph, present)

        if isinstance(alg.local, SideBySide):
            models = {p: self.arithmetic.value(w[p]) for p in clients}
            alg.local.begin(i, models, {p: [k for k in found if self.gives(i, p, k)] for p, found in clients.items()})

        psi = w.copy()
        for p, survivors in clients.items():
            psi[p] = self.adapt(i, p, w[p], survivors)

        def draw(purpose: Purpose, ids: tuple[int, ...], sigma: float) -> State:
            fresh, at = self.noise(purpose, (i, *ids), alg.scheme.law, sigma, w.shape[1]), place(purpose, ids)
            weights = taps[at]
            if weights == (1.0,):
                return fresh
            total = weights[0] * fresh
            if len(weights) > 1:
                row = self.rows[at, ids]
                now[0, row] = fresh
                for weight, before in zip(weights[1:], past[:, row], strict=False):
                    total = total + weight * before
            return total

        published = publish(alg.scheme, graph, psi, draw, self.arithmetic, present)
        combined = combine(alg.scheme, graph, published, self.arithmetic, up)
        participants = sum(self.gives(i, p, k) for p, survivors in clients.items() for k in survivors)
        drawn = np.concatenate([now, past[:-1]]) if alg.scheme.memory else past
        return Round(combined, psi, published.own, published.sent, participants, drawn)

    def sample(self, i: int, p: int) -> list[int]:
        """The clients that were drawn and do not drop out in this round."""
        chosen, dropout = self.draw(i, p), self.algorithm.dropout
        if dropout == 0.0:
            return chosen
        return [k for k in chosen if not happens(dropout, self.seed, Purpose.DROPOUT, i, p, k)]

    def draw(self, i: int, p: int) -> list[int]:
        """L of K clients without replacement."""
        stream = words(key(self.seed, Purpose.CLIENTS, i, p), self.algorithm.sampled)
        return [int(k) for k in choose(stream, int(self.problem.federation.K[p]))]

    def gives(self, i: int, p: int, k: int) -> bool:
        """Whether a client that was drawn gives data: not once it was drawn `cap` times before."""
        return self.cap is None or self._drawn_before(i)[p, k] < self.cap

    def _drawn_before(self, i: int) -> Counter[tuple[int, int]]:
        """How often each client was drawn before round i: a function of the seed, kept as the rounds go by."""
        kept = self._drawn
        if kept.rounds >= i:  # the run went back
            kept.rounds, kept.times = 0, Counter()
        while kept.rounds < i - 1:
            kept.rounds += 1
            present = units_present(self.algorithm.failures, self.seed, kept.rounds, self.graphs[0].P)
            for p in np.flatnonzero(present).tolist():
                kept.times.update((p, k) for k in self.draw(kept.rounds, p))
        return kept.times

    def adapt(self, i: int, p: int, w: State, clients: Sequence[int]) -> State:
        """psi_p = w_p + (1/L) sum of the survivors' updates; L stays fixed under dropout  (6), (7)."""
        alg, arith = self.algorithm, self.arithmetic
        handed_out = arith.value(w)
        total, shrink = SecureSum.of(alg, len(w)) if alg.aggregation else PlainSum(arith, np.zeros_like(w)), 0.0
        for k in clients:
            update, decayed = self.train(i, p, k, handed_out)
            shrink += decayed / alg.sampled
            total.add(update, self.client_noise(i, p, k, len(w)))
        return arith.add(w, total.value(), shrink)

    def train(self, i: int, p: int, k: int, handed_out: Floats) -> tuple[Floats, float]:
        """One client's update and the server's decay for it, see `shared_update`; without data where it gives none."""
        f, alg = self.problem.federation, self.algorithm
        c = int(f.unit_offsets[p]) + k
        task = LocalTask(
            self.problem.model,
            alg.step,
            int(self.E[c]),
            int(self.batch[c]),
            alg.replacement,
            alg.clip,
            key(self.seed, Purpose.BATCHES, i, p, k),
            (i, p, k),
        )
        fixed = alg.arithmetic == "fixed"
        if not self.gives(i, p, k):
            return without_data(handed_out, task, fixed)
        return shared_update(alg.local, handed_out, *f.client(p, k), task, fixed)

    def client_noise(self, i: int, p: int, k: int, size: int) -> State | None:
        """The paper's noise on client links; behind masks it is a share of the noise inside their sum."""
        alg = self.algorithm
        if alg.sums is not None:
            law, sigma = GAUSSIAN, alg.sums.share
        else:
            law, sigma = alg.scheme.law, alg.scheme.sigma_client
        return self.noise(Purpose.CLIENT_NOISE, (i, p, k), law, sigma, size) if sigma else None


def prepare(
    problem: Problem,
    graphs: Sequence[Graph],
    algorithm: GFL,
    rounds: int,
    seed: int,
    noise: NoiseSource | None = None,
    cap: int | None = None,
    secret: RunSecret | None = None,
) -> Callable[[int], Reference]:
    """Check everything once; the result makes the Reference of a repetition, one for each.

    With a secret, noise comes from it, and all other draws where it says so.
    """
    algorithm = algorithm.on(problem.model)
    E, batch = algorithm.settle(problem.federation, seed)
    fixed = algorithm.arithmetic == "fixed"
    arith: Arithmetic
    if fixed:
        arith = FixedArithmetic(algorithm.sampled, algorithm.fraction_bits)
        graphs = [on_grid(g) for g in graphs]
        assert algorithm.clip is not None  # noqa: S101 - GFL refuses fixed point without a clip
        bound = algorithm.clip.update_bound(algorithm.step)
        if algorithm.clip.kind == "example" and 2.0 * problem.model.rho * algorithm.step > E.min():
            most = E.min() / (2.0 * problem.model.rho)
            remedy = f"the server's decay must lie in [0, 1]: with this regulariser at most {most:g}"
            raise InputError("algorithm.step", algorithm.step, remedy)
        if algorithm.aggregation is not None:
            bound += algorithm.encoding().noise * arith.client_quantum
        start = float(np.abs(problem.start).max())
        for g in graphs:
            check_range(arith, algorithm.scheme, g, bound, rounds, start)
    else:
        arith = FloatArithmetic(algorithm.sampled)

    @cache
    def repetition(r: int) -> Reference:
        own_seed = randomness.repetition_seed(seed, r)
        streams = own_seed if secret is None else secret.streams(r)
        source = noise or (
            integer_noise(streams, arith) if isinstance(arith, FixedArithmetic) else float_noise(streams)
        )
        drawn = streams if secret is not None and secret.draws else own_seed
        return Reference(problem, tuple(graphs), algorithm, E, batch, drawn, arith, source, cap)

    return repetition


def happens(probability: float, seed: int | Streams, purpose: Purpose, *ids: int) -> bool:
    return bool(uniform(words(key(seed, purpose, *ids), 1))[0] < probability)


def units_present(failures: Failures, seed: int | Streams, i: int, P: int) -> Bools:
    scheduled = {p for at, p in failures.units if at == i}
    return np.array(
        [
            p not in scheduled and not (failures.unit and happens(failures.unit, seed, Purpose.UNIT_FAILURE, i, p))
            for p in range(P)
        ]
    )


def links_up(failures: Failures, seed: int | Streams, i: int, graph: Graph, present: Bools) -> Bools:
    scheduled = {(min(p, m), max(p, m)) for at, p, m in failures.links if at == i}
    return np.array(
        [
            bool(present[p] and present[m])
            and (p, m) not in scheduled
            and not (failures.link and happens(failures.link, seed, Purpose.LINK_FAILURE, i, p, m))
            for p, m in graph.edges.tolist()
        ],
        dtype=bool,
    )


def check_failures(failures: Failures, graphs: Sequence[Graph], rounds: int) -> None:
    """Scheduled failures must name rounds of the run, servers and edges that exist."""
    for at, p in failures.units:
        if at > rounds or p >= graphs[0].P:
            raise InputError("failures.units", (at, p), f"there are {rounds} rounds and servers 0 to {graphs[0].P - 1}")
    for at, p, m in failures.links:
        graph = graphs[(at - 1) % len(graphs)]
        if at > rounds or not np.any((graph.edges == (min(p, m), max(p, m))).all(axis=1)):
            remedy = f"no such round or edge; there are {rounds} rounds and {len(graph.edges)} edges in that round"
            raise InputError("failures.links", (at, p, m), remedy)
