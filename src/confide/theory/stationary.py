"""The limit of the moments as the rounds go on, where there is one.

With G = W Phi the covariance solves S = G S G' + W blkdiag{C_p(S_pp)} W' + Q. Given its diagonal blocks that is a
Lyapunov equation; GMRES finds the P M(M+1)/2 numbers of the blocks, in few steps because C_p is small. The
(PM)^2 x (PM)^2 operator is never formed.

S = G S G' + Q, for many Q: S = sum_i G^i Q G'^i, where G^i decays (stability in the mean). Squared Smith sums 2^j terms
in j steps, whatever G is. Where Phi is positive definite (any step that is not large) G has the eigenvalues of the
symmetric Phi^1/2 W Phi^1/2, and dividing by 1 - lambda_i lambda_j is several times quicker.

The second-moment map S -> W (Phi S Phi' + blkdiag{C_p(S_pp)}) W' is positive, so its spectral radius is an eigenvalue,
the one of largest real part, and E|x|^2 stays bounded exactly where it is below 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs, gmres

from confide.base.arrays import Floats
from confide.base.errors import InputError, RunError
from confide.theory.moments import Moments, blocks
from confide.theory.packing import pack, unpack

LARGEST = 2500  # P M: a dozen matrices of this size are 600 MB
MARGIN = 1e-11  # a mode that loses less than this in a round is taken to stay for ever
SMALL = 1e-9  # of G^(2^j), which enters S twice: what the rest of the sum adds is below rounding
ACCURACY = 1e-11  # of the blocks
STEADY = 1e-10  # a spectral radius nearer to 1 than this is 1: a direction that is never forgotten


@dataclass(frozen=True, eq=False)
class Limit:
    """Mean and covariance of x in the limit, the covariance by its source; each includes the sampling that it feeds.

    Attributes:
        mean: m, (P, M): from local steps and unlike units, not from any draw.
        gradient: S that sampling of clients and batches would leave without privacy noise, (P, M, P, M).
        privacy: what privacy noise adds to it.
    """

    mean: Floats
    gradient: Floats
    privacy: Floats

    @property
    def second_moments(self) -> Floats:
        """E x_p x_p' of every server, (P, M, M)."""
        return blocks(self.gradient + self.privacy) + self.mean[:, :, None] * self.mean[:, None, :]


def limit(round: Moments) -> Limit | None:
    """The limit, or None where the second moments grow without bound (or stay, without being forgotten)."""
    feedback = Feedback(round)
    if not feedback.bounded():
        return None
    P, M = round.phi.shape
    rest = np.eye(P * M) - gain(round.W, round.Phi)
    m = np.asarray(np.linalg.solve(rest, (round.W @ round.phi).ravel()), dtype=np.float64).reshape(P, M)
    gradient = feedback.solve(spread(round, round.drawn(m)))
    Q = np.einsum("pq,ij->piqj", round.noise, np.eye(M))
    return Limit(m, gradient, feedback.solve(Q) if Q.any() else np.zeros_like(gradient))


def spread(round: Moments, C: Floats) -> Floats:
    """W blkdiag{C} W'"""
    P, M = round.phi.shape
    pairs = (round.W[:, None, :] * round.W[None, :, :]).reshape(P * P, P)
    return (pairs @ C.reshape(P, M * M)).reshape(P, P, M, M).transpose(0, 2, 1, 3)


class Feedback:
    """K: the diagonal blocks that the multiplicative noise of some diagonal blocks leaves, summed over all rounds.

    Second moments stay bounded if and only if the spectral radii of G and of K are below 1 (both are positive maps).
    """

    def __init__(self, round: Moments) -> None:
        self.round, self.lyapunov = round, lyapunov(round)

    def __call__(self, S_pp: Floats) -> Floats:
        return blocks(self.lyapunov.solve(spread(self.round, self.round.multiplied(S_pp))))

    def bounded(self) -> bool:
        """Whether E|x|^2 stays bounded over all rounds (and forgets where it began): whether both radii are below 1.

        That of K has a witness, X > 0 with K(X) < X, or one against it, with K(X) >= X. Powers of K on any X > 0 come
        to one of the two, soon unless the radius is near 1; then it is computed.
        """
        if not self.lyapunov.decays:
            return False
        P, M = self.round.phi.shape
        X = np.tile(np.eye(M), (P, 1, 1))
        for _ in range(3):
            next_X = self(X)
            ratios = relative(next_X, X)
            if ratios.max() < 1.0:
                return True
            if ratios.min() >= 1.0:
                return False
            # the identity keeps X inside the cone, where no ratio is lost in rounding
            X = next_X / ratios.max() + 1e-3 * np.eye(M)
        return radius(self.round) < 1.0 - STEADY

    def solve(self, Q: Floats) -> Floats:
        """S for one Q >= 0."""
        P, M = self.round.phi.shape
        direct = self.lyapunov.solve(Q)
        b = pack(blocks(direct))
        if not b.any():
            return direct

        def residual(v: Floats) -> Floats:
            v = v.reshape(P, -1)
            return np.asarray((v - pack(self(unpack(v, M)))).ravel())

        system = LinearOperator((b.size, b.size), matvec=residual, dtype=np.float64)
        v, left = gmres(system, b.ravel(), rtol=ACCURACY, restart=60, maxiter=20)
        if left:
            raise RunError("the steady state was not found (GMRES): the step is at the limit of stability; lower it")
        C = self.round.multiplied(unpack(v.reshape(P, -1), M))
        return direct + self.lyapunov.solve(spread(self.round, C))


def relative(Y: Floats, X: Floats) -> Floats:
    """The eigenvalues of X^-1/2 Y X^-1/2 for stacks of symmetric Y and positive X."""
    root = np.linalg.inv(np.linalg.cholesky(X))
    return np.asarray(np.linalg.eigvalsh(root @ Y @ root.swapaxes(-1, -2)))


def radius(round: Moments) -> float:
    """The spectral radius of the second-moment map."""
    P, M = round.phi.shape
    n = (P * M) ** 2

    def apply(v: Floats) -> Floats:
        S = v.reshape(P, M, P, M)
        return round.carry(S, round.multiplied(blocks(S))).ravel()

    start = np.eye(P * M).ravel()  # inside the cone of covariances, so not orthogonal to the eigenvector looked for
    if n <= 16:  # too small for ARPACK
        return float(np.abs(np.linalg.eigvals(np.stack([apply(e) for e in np.eye(n)]))).max())
    system = LinearOperator((n, n), matvec=apply, dtype=np.float64)
    try:
        found = eigs(system, k=1, which="LR", v0=start, tol=1e-9, return_eigenvectors=False, maxiter=1000)
    except ArpackNoConvergence:
        raise RunError("the spectral radius of a round was not found (ARPACK did not converge)") from None
    return float(np.abs(found[0]))


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
