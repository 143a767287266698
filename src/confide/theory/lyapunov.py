"""S = G S G' + Q for G = W Phi and many Q: S = sum_i G^i Q G'^i, where G^i decays (stability in the mean).

Squared Smith sums 2^j terms in j steps, whatever G is. Where Phi is positive definite (any step that is not large) G
has the eigenvalues of the symmetric Phi^1/2 W Phi^1/2, and dividing by 1 - lambda_i lambda_j is several times quicker.
"""

from __future__ import annotations

import numpy as np

from confide.base.arrays import Floats
from confide.base.errors import InputError
from confide.theory.moments import Moments

LARGEST = 2500  # P M: a dozen matrices of this size are 600 MB
MARGIN = 1e-11  # a mode that loses less than this in a round is taken to stay for ever
SMALL = 1e-9  # of G^(2^j), which enters S twice: what the rest of the sum adds is below rounding


class Doubling:
    """S_{j+1} = S_j + G^(2^j) S_j G'^(2^j)"""

    def __init__(self, round: Moments) -> None:
        power = gain(round.W, round.Phi)
        size, self.powers = float(np.abs(power).max()), list[Floats]()
        while SMALL < size < 1e100 and len(self.powers) < -np.log2(MARGIN) + 6:
            self.powers.append(power)
            power = power @ power
            size = float(np.abs(power).max())
        self.decays = size <= SMALL

    def solve(self, Q: Floats) -> Floats:
        n = Q.shape[0] * Q.shape[1]
        S = Q.reshape(n, n)
        for G in self.powers:
            S = S + G @ S @ G.T
        return S.reshape(Q.shape)


class Modes:
    """G = X diag(lambda) X^-1 with X = Phi^-1/2 U, U and lambda from Phi^1/2 W Phi^1/2 = U diag(lambda) U'."""

    def __init__(self, round: Moments) -> None:
        P, M = round.phi.shape
        values, axes = np.linalg.eigh(round.Phi)
        root = (axes * np.sqrt(values)[:, None, :]) @ axes.swapaxes(-1, -2)
        inverse = (axes / np.sqrt(values)[:, None, :]) @ axes.swapaxes(-1, -2)
        symmetric = root @ gain(round.W, root).reshape(P, M, P * M)
        eigenvalues, U = np.linalg.eigh(symmetric.reshape(P * M, P * M))
        self.decays = bool(np.abs(eigenvalues).max() < 1.0 - MARGIN)
        self.X = (inverse @ U.reshape(P, M, P * M)).reshape(P * M, P * M)
        self.X_inverse = (root @ U.reshape(P, M, P * M)).reshape(P * M, P * M).T
        self.rest = 1.0 - eigenvalues[:, None] * eigenvalues[None, :]

    def solve(self, Q: Floats) -> Floats:
        modes = self.X_inverse @ Q.reshape(self.rest.shape) @ self.X_inverse.T / self.rest
        return np.asarray(self.X @ modes @ self.X.T).reshape(Q.shape)


def lyapunov(round: Moments) -> Doubling | Modes:
    P, M = round.phi.shape
    if P * M > LARGEST:
        raise InputError("problem", f"P M = {P * M}", f"the steady state is computed up to P M = {LARGEST}")
    definite = bool(np.linalg.eigvalsh(round.Phi).min() > 1e-3)  # or dividing by Phi^1/2 would cost digits
    return Modes(round) if definite else Doubling(round)


def gain(W: Floats, Phi: Floats) -> Floats:
    """G = W blkdiag{Phi_p}, (PM, PM)."""
    P, M, _ = Phi.shape
    return (W[:, None, :, None] * Phi.transpose(1, 0, 2)[None]).reshape(P * M, P * M)
