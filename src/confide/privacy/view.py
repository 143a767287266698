"""The general accountant: any linear scheme, any graphs, any view, by causal Gram-Schmidt.

Its proof is docs/design/privacy.md, 5. A scheme is

    psi_j = gam w_{j-1} + u_j,    y_j = C_j psi_j + N_j z_j,    w_j = W_j psi_j + R_j z_j,    z ~ N(0, I)

Every row of the adversary's view is h u + k z. Orthogonalising the k in causal order leaves a view that is
equivalent to Hbar u + N(0, I); a row whose noise is already spanned but whose signal is not is a leak. If a server's
state has noise that the view does not determine, that noise is revealed (which only helps the adversary): then the
states are functions of data and view, and mu_GDP = sup |Hbar Delta u| holds for adaptive updates too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from confide.graph.graph import Graph
from confide.rounds.schemes import Matrices, Scheme, matrices, noise_owners

Floats = NDArray[np.float64]
TOLERANCE = 1e-9


class Round(NamedTuple):
    """One round of a linear scheme, and who knows which of its noises."""

    matrices: Matrices
    owners: tuple[tuple[int, ...], ...]  # for each noise, the servers that drew or share it


class Exposure(NamedTuple):
    """What a view knows of one target.

    mu^2 = Delta' S Delta for the target's deviations Delta of psi, and `kept[j]` says how the deviation of the state
    after round j is made of those of psi: Delta w_j = kept[j] . Delta_{1..T}.
    """

    S: Floats  # (T, T)
    kept: Floats  # (T, T)
    leak: bool
    others: float  # largest influence of the target on another honest server's state, given the view
    revealed: int  # noises that had to be revealed for adaptivity


def rounds_of(scheme: Scheme, graphs: Sequence[Graph]) -> list[Round]:
    """A scheme over the graphs of successive rounds."""
    return [Round(matrices(scheme, g), noise_owners(scheme, g)) for g in graphs]


@dataclass
class _Basis:
    """Orthonormal noise directions with the signal that each carries."""

    size: int
    signals: int
    Q: Floats = field(init=False)
    H: Floats = field(init=False)
    n: int = 0

    def __post_init__(self) -> None:
        self.Q, self.H = np.zeros((16, self.size)), np.zeros((16, self.signals))

    def coefficients(self, k: Floats, first: int = 0) -> tuple[Floats, Floats]:
        """Rows k in the basis from `first` on, and what is left; twice, because once is not orthogonal enough."""
        Q = self.Q[first : self.n]
        c = k @ Q.T
        rest = k - c @ Q
        again = rest @ Q.T
        return c + again, rest - again @ Q

    def add(self, h: Floats, k: Floats) -> Floats:
        """Rows of the view, in order; what they say without noise, zeros unless they leak."""
        before, clear = self.n, np.zeros(self.signals)
        c, rests = self.coefficients(k)  # all rows at once against the past, then one by one against each other
        lefts, sizes = h - c @ self.H[:before], np.linalg.norm(k, axis=1)
        for row, rest, left, length in zip(h, rests, lefts, sizes, strict=True):
            c, rest = self.coefficients(rest, before)
            left = left - c @ self.H[before : self.n]
            size = float(np.linalg.norm(rest))
            if size <= TOLERANCE * max(1.0, float(length)):
                clear = np.maximum(clear, np.abs(left) * (np.abs(left) > TOLERANCE * max(1.0, np.abs(row).max())))
                continue
            if self.n == len(self.Q):
                self.Q, self.H = np.vstack([self.Q, 0.0 * self.Q]), np.vstack([self.H, 0.0 * self.H])
            self.Q[self.n], self.H[self.n] = rest / size, left / size
            self.n += 1
        return clear


def expose(rounds: Sequence[Round], target: int, colluders: frozenset[int], gam: float = 1.0) -> Exposure:
    """The view of all messages plus the colluders' data, states and noises, on one target's updates."""
    return expose_each(rounds, [target], colluders, gam)[0]


def expose_each(
    rounds: Sequence[Round], targets: Sequence[int], colluders: frozenset[int], gam: float = 1.0
) -> list[Exposure]:
    """`expose` for several targets: the noise is orthogonalised once, each target has its own signal columns."""
    T, P, n = len(rounds), rounds[0].matrices.W.shape[0], len(targets)
    offsets = np.concatenate([[0], np.cumsum([len(r.owners) for r in rounds])])
    basis = _Basis(int(offsets[-1]), n * T)
    # In units of the largest noise, so that the tolerance means the same for any sigma.
    unit = max((float(np.abs(x).max(initial=0.0)) for r in rounds for x in (r.matrices.N, r.matrices.R)), default=0.0)
    unit = unit or 1.0
    Gw, Kw = np.zeros((P, n * T)), np.zeros((P, int(offsets[-1])))
    honest, caught = [p for p in range(P) if p not in colluders], sorted(colluders)
    clear, others, revealed = np.zeros(n * T), np.zeros(n), 0
    G, state = np.zeros((n, T, T)), np.zeros((n, T, T))
    for j, (m, owners) in enumerate(rounds):
        z = slice(int(offsets[j]), int(offsets[j + 1]))
        Gpsi, Kpsi = gam * Gw, gam * Kw
        # Only the target's u matters: the others' do not change at equal outputs, the colluders' are known.
        Gpsi[targets, np.arange(n) * T + j] += 1.0
        known = [i for i, names in enumerate(owners) if colluders.intersection(names)]
        sent, noise = m.C @ Gpsi, m.C @ Kpsi + _placed(m.N / unit, z, basis.size)
        Gw, Kw = m.W @ Gpsi, m.W @ Kpsi + _placed(m.R / unit, z, basis.size)
        h = np.vstack([np.zeros((len(known), n * T)), sent, Gpsi[caught], Gw[caught]])
        k = np.vstack([_placed(np.eye(len(owners))[known], z, basis.size), noise, Kpsi[caught], Kw[caught]])
        clear = np.maximum(clear, basis.add(h, k))
        G[:, j] = gam * state[:, j - 1] if j else 0.0
        G[:, j, j] += 1.0
        before, (_, hidden) = basis.n, basis.coefficients(Kw[honest])
        basis.add(np.zeros((len(honest), n * T)), hidden)  # noise of the states that the view does not determine
        revealed += basis.n - before
        c, _ = basis.coefficients(Kw[honest])
        carry = (Gw[honest] - c @ basis.H[: basis.n]).reshape(len(honest), n, T)
        for i, target in enumerate(targets):
            own = honest.index(target)
            state[i, j] = carry[own, i]
            others[i] = max(others[i], float(np.abs(np.delete(carry[:, i], own, axis=0)).max(initial=0.0)))
    found = []
    for i in range(n):
        H = basis.H[: basis.n, i * T : (i + 1) * T] / unit
        inverse = np.linalg.inv(G[i])  # Delta psi = G Delta u
        leak = bool(np.any(clear[i * T : (i + 1) * T] > 0.0))
        S = inverse.T @ (H.T @ H) @ inverse
        found.append(Exposure(S, state[i] @ inverse, leak, float(others[i]), revealed))
    return found


def _placed(block: Floats, z: slice, size: int) -> Floats:
    wide = np.zeros((block.shape[0], size))
    wide[:, z.start : z.start + block.shape[1]] = block
    return wide
