"""The general accountant: any linear scheme, any graphs, any view, by causal Gram-Schmidt (privacy.md, section 5).

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

from confide.graph import Graph
from confide.schemes import Matrices, Scheme, matrices, noise_owners

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

    def coefficients(self, k: Floats) -> tuple[Floats, Floats]:
        """k in the basis, and what is left of it; twice, because once is not orthogonal enough."""
        Q = self.Q[: self.n]
        c = Q @ k
        rest = k - c @ Q
        again = Q @ rest
        return c + again, rest - again @ Q

    def add(self, h: Floats, k: Floats) -> bool:
        """One row of the view; False when it leaks."""
        c, rest = self.coefficients(k)
        size = float(np.linalg.norm(rest))
        left = h - c @ self.H[: self.n]
        if size <= TOLERANCE * max(1.0, float(np.linalg.norm(k))):
            return bool(np.all(np.abs(left) <= TOLERANCE * max(1.0, float(np.abs(h).max(initial=0.0)))))
        if self.n == len(self.Q):
            self.Q, self.H = np.vstack([self.Q, np.zeros_like(self.Q)]), np.vstack([self.H, np.zeros_like(self.H)])
        self.Q[self.n], self.H[self.n] = rest / size, left / size
        self.n += 1
        return True


def expose(rounds: Sequence[Round], target: int, colluders: frozenset[int], gam: float = 1.0) -> Exposure:
    """The view of all messages plus the colluders' data, states and noises, on one target's updates."""
    T, P = len(rounds), rounds[0].matrices.W.shape[0]
    offsets = np.concatenate([[0], np.cumsum([len(r.owners) for r in rounds])])
    basis = _Basis(int(offsets[-1]), T)
    Gw, Kw = np.zeros((P, T)), np.zeros((P, int(offsets[-1])))
    honest = [p for p in range(P) if p not in colluders]
    leak, others, revealed = False, 0.0, 0
    G, state = np.zeros((T, T)), np.zeros((T, T))
    for j, (m, owners) in enumerate(rounds):
        z = slice(int(offsets[j]), int(offsets[j + 1]))
        Gpsi, Kpsi = gam * Gw, gam * Kw
        Gpsi[target, j] += 1.0
        # Only the target's u matters: the others' do not change at equal outputs, the colluders' are known.
        for n, names in enumerate(owners):
            if colluders.intersection(names):
                e = np.zeros(basis.size)
                e[z.start + n] = 1.0
                basis.add(np.zeros(T), e)
        rows = list(zip(m.C @ Gpsi, m.C @ Kpsi + _placed(m.N, z, basis.size), strict=True))
        Gw, Kw = m.W @ Gpsi, m.W @ Kpsi + _placed(m.R, z, basis.size)
        rows += [(Gpsi[q], Kpsi[q]) for q in sorted(colluders)] + [(Gw[q], Kw[q]) for q in sorted(colluders)]
        for h, k in rows:
            leak |= not basis.add(h, k)
        G[j] = gam * (state[j - 1] if j else 0.0)
        G[j, j] += 1.0
        for p in honest:
            c, rest = basis.coefficients(Kw[p])
            if np.linalg.norm(rest) > TOLERANCE:
                basis.add(np.zeros(T), rest)
                revealed += 1
                c, _ = basis.coefficients(Kw[p])
            carry = Gw[p] - c @ basis.H[: basis.n]
            if p == target:
                state[j] = carry
            else:
                others = max(others, float(np.abs(carry).max()))
    H = basis.H[: basis.n]
    inverse = np.linalg.inv(G)  # Delta psi = G Delta u
    return Exposure(inverse.T @ (H.T @ H) @ inverse, state @ inverse, leak, others, revealed)


def _placed(block: Floats, z: slice, size: int) -> Floats:
    wide = np.zeros((block.shape[0], size))
    wide[:, z.start : z.start + block.shape[1]] = block
    return wide
