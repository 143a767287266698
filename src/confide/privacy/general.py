"""The general accountant: any linear scheme, any graphs, any view, by causal Gram-Schmidt (privacy.md, section 5).

    psi_j = gam w_{j-1} + u_j,   y_j = C_j psi_j + sum_k N_j[k] z_{j-k},   w_j = W_j psi_j + sum_k R_j[k] z_{j-k}

with independent z ~ N(0, I). Every row of the adversary's view is h u + k z. Orthogonalising the k in causal order
leaves a view that is equivalent to Hbar u + N(0, I); a row whose noise is already spanned but whose signal is not is a
leak. If a server's state has noise that the view does not determine, that noise is revealed (which only helps the
adversary): then the states are functions of data and view, and mu_GDP = sup |Hbar Delta u| holds for adaptive updates.

The view says what states and old draws are, but for a signal and for what is still open of the draws that the scheme
remembers. So a round takes the same work whatever went before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from confide.base.arrays import Floats
from confide.base.errors import InputError
from confide.graph.graph import Graph
from confide.rounds.schemes import Place, Scheme, Wiring

TOLERANCE = 1e-9  # noise that is less than this share of a row's is none
LOST = 1e-12  # likewise of its signal, beside what was taken off it
NEAR = 1e-5  # what of a scheme is nearer to 0 or to one another, and is not the same, might be lost
NOTHING = 1e-12  # a look beside another of the same round, whose square the doubles would lose


@dataclass(frozen=True)
class Exposure:
    """What a view knows of one target.

    Attributes:
        looks: independent looks at the target's deviations Delta of psi, a row each, in units of its noise.
        ends: how many of them there are after each round.
        kept: row j says how the deviation of the state after a round is made of those of psi:
            Delta w_j = kept[j] . Delta_{1..T}.
        leak: whether the view determines a noiseless function of the target's data.
        others: largest influence of the target on another honest server's state, given the view.
        revealed: noises that had to be revealed for adaptivity.
    """

    looks: Floats
    ends: tuple[int, ...]
    kept: Floats
    leak: bool
    others: float
    revealed: int

    @property
    def S(self) -> Floats:
        """mu^2 = Delta' S Delta, (T, T)."""
        return np.asarray(self.looks.T @ self.looks)


def rounds_of(scheme: Scheme, graphs: Sequence[Graph]) -> list[Wiring]:
    """A scheme over the graphs of successive rounds."""
    made = {id(g): scheme.wiring(g) for g in graphs}
    return [made[id(g)] for g in graphs]


def check_apart(scheme: Scheme, graphs: Sequence[Graph]) -> None:
    """Refuse a scheme that keeps or tells almost nothing: doubles could not tell it from one that does not.

    Two messages whose noises differ by a part in 1e10 give the model away, and a state that keeps a part in 1e13 of a
    deviation turns clipped gradients of others round.
    """
    for graph in graphs:
        kept = np.append(graph.own_weights if scheme.by_link else (), scheme.carries(graph))
        if np.any((kept > 0.0) & (kept < NEAR)):
            remedy = f"so little of the state has no proof: 0, or at least {NEAR:g}"
            raise InputError("scheme.carry", float(kept[kept > 0.0].min()), remedy)
        if scheme.receivers is None:
            continue
        each = np.sort(scheme.weights(graph, len(scheme.wiring(graph).draws)), axis=1)
        apart = np.diff(each, axis=1)
        if np.any((apart > 0.0) & (apart < NEAR * np.abs(each).max(axis=1, keepdims=True))):
            remedy = f"two receivers' weights of one draw are as good as the same: make them so, or {NEAR:g} apart"
            raise InputError("scheme.receivers", scheme.name, remedy)


Names = dict[tuple[Place, tuple[int, ...]], int]  # of draws, to rows


class _Vectors(NamedTuple):
    """Sums of noises: what the view says of each, as a signal, and what is left of it, in the directions still open."""

    said: Floats
    open: Floats

    def sums(self, weights: Floats) -> _Vectors:
        return _Vectors(weights @ self.said, weights @ self.open)


class _Span:
    """Orthonormal directions of noise that a round adds to the view, with the signal that each carries."""

    def __init__(self, directions: int, signals: int) -> None:
        self.Q, self.H = np.zeros((0, directions)), np.zeros((0, signals))

    def rest(self, k: Floats) -> tuple[Floats, Floats]:
        """Coefficients of k, and what is left of it; twice, because once is not orthogonal enough."""
        c = k @ self.Q.T
        rest = k - c @ self.Q
        again = rest @ self.Q.T
        return c + again, rest - again @ self.Q

    def add(self, h: Floats, k: Floats) -> Floats:
        """Rows of the view, in order; what they say without noise, zeros unless they leak."""
        clear = np.zeros(self.H.shape[1])
        for row, noise in zip(h, k, strict=True):
            c, rest = self.rest(noise)
            left, size = row - c @ self.H, float(np.linalg.norm(rest))
            if size <= TOLERANCE * max(1.0, float(np.linalg.norm(noise))):
                taken = float(np.max(np.abs(row) + np.abs(c) @ np.abs(self.H)))
                clear = np.maximum(clear, np.abs(left) * (np.abs(left) > LOST * max(1.0, taken)))
            else:
                self.Q, self.H = np.vstack([self.Q, rest / size]), np.vstack([self.H, left / size])
        return clear

    def beyond(self, v: _Vectors) -> _Vectors:
        """The same sums once these directions are in the view."""
        c, rest = self.rest(v.open)
        return _Vectors(v.said + c @ self.H, rest)


def expose_each(
    rounds: Sequence[Wiring], targets: Sequence[int], colluders: frozenset[int], gam: float = 1.0
) -> list[Exposure]:
    """The view of all messages plus the colluders' data, states and noises, on the updates of each of these targets.

    The noise is orthogonalised once, each target has its own signal columns.
    """
    T, P, n = len(rounds), rounds[0].W.shape[0], len(targets)
    # In units of the largest noise, so that the tolerance means the same for any sigma.
    unit = max((float(np.abs(x).max(initial=0.0)) for r in rounds for x in (*r.N, *r.R)), default=0.0) or 1.0
    honest, caught = [p for p in range(P) if p not in colluders], sorted(colluders)
    others, revealed, clear = np.zeros(n), 0, np.zeros(n * T)
    looks: list[list[Floats]] = [[] for _ in targets]
    ends: list[list[int]] = [[0] for _ in targets]
    state, past = np.zeros((P, n * T)), list[tuple[Names, _Vectors]]()  # draws of the rounds before
    kept = np.zeros((n, T, T))
    for j, m in enumerate(rounds):
        # Only the target's u matters: the others' do not change at equal outputs, the colluders' are known.
        psi = gam * state
        psi[targets, np.arange(n) * T + j] += 1.0
        fresh, old = len(m.draws), past[0][1].open.shape[1] if past else 0
        now = _Vectors(np.zeros((fresh, n * T)), np.eye(fresh, old + fresh, old))
        past = [({draw: i for i, draw in enumerate(m.draws)}, now)] + [
            (names, _Vectors(v.said, np.pad(v.open, ((0, 0), (0, fresh))))) for names, v in past
        ]
        drawn = [_named(m, names, v) for names, v in past]
        sent, own = (_total([v.sums(x / unit) for v, x in zip(drawn, parts, strict=False)]) for parts in (m.N, m.R))
        known = [i for i, names in enumerate(m.owners) if colluders.intersection(names)]
        left = m.W @ psi - own.said
        span = _Span(old + fresh, n * T)
        h = np.vstack([now.said[known], m.C @ psi - sent.said, psi[caught], left[caught]])
        k = np.vstack([now.open[known], sent.open, np.zeros((len(caught), old + fresh)), own.open[caught]])
        clear = np.maximum(clear, span.add(h, k))
        seen = len(span.Q)
        _, hidden = span.rest(own.open[honest])
        span.add(np.zeros((len(honest), n * T)), hidden)  # noise of the states that the view does not determine
        revealed += len(span.Q) - seen
        state = m.W @ psi - span.beyond(own).said
        past = _compressed([(names, span.beyond(v)) for names, v in past[: len(m.N) - 1]])
        of = state.reshape(P, n, T)
        for i, target in enumerate(targets):
            kept[i, j] = of[target, i]
            rest = [p for p in honest if p != target]
            others[i] = max(others[i], float(np.abs(of[rest, i]).max(initial=0.0)))
            rows = span.H[:, i * T : (i + 1) * T]
            most = np.abs(rows).max(axis=1, initial=0.0)
            looks[i].append(rows[most > NOTHING * most.max(initial=0.0)])
            ends[i].append(ends[i][-1] + len(looks[i][-1]))
    found = []
    for i in range(n):
        before = gam * np.vstack([np.zeros(T), kept[i, :-1]])
        inverse = np.linalg.inv(np.eye(T) + before)  # Delta psi = (I + before) Delta u
        leak = bool(np.any(clear[i * T : (i + 1) * T] > 0.0))
        seen_of = np.vstack(looks[i]) / unit @ inverse
        found.append(Exposure(seen_of, tuple(ends[i][1:]), kept[i] @ inverse, leak, float(others[i]), revealed))
    return found


def _named(m: Wiring, names: Names, v: _Vectors) -> _Vectors:
    """An earlier round's draws in the order of this round's; a draw that was not there is zero."""
    found = _Vectors(*(np.zeros((len(m.draws), x.shape[1])) for x in v))
    for i, draw in enumerate(m.draws):
        if draw in names:
            found.said[i], found.open[i] = v.said[names[draw]], v.open[names[draw]]
    return found


def _total(parts: list[_Vectors]) -> _Vectors:
    return _Vectors(*(np.asarray(sum(x)) for x in zip(*parts, strict=True)))


def _compressed(past: list[tuple[Names, _Vectors]]) -> list[tuple[Names, _Vectors]]:
    """With no more open directions than what is remembered spans."""
    if not past:
        return []
    _, sizes, V = np.linalg.svd(np.vstack([v.open for _, v in past]), full_matrices=False)
    V = V[sizes > TOLERANCE]
    return [(names, _Vectors(v.said, v.open @ V.T)) for names, v in past]
