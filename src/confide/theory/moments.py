"""What one round does to the mean m = E x and the covariance S of x = col{w_p - w^o}, for quadratic losses.

A round is a random affine map of x, so its first two moments close. With y = [x; 1] throughout:

client   a local step is y -> T_b y with T_b = I - eta [V_b; 0], eta = mu/E, V_b the mean of V_n over the batch:
             E[T_b Y T_b'] = Tbar Y Tbar' + eta^2 (f/B) Cov_n(V)(Y),   f = 1, or (N-B)/(N-1) without replacement.
         E of them are Phi_k = Tbar^E in the mean, and F_k = E[T_b (x) T_b]^E in the second moment.
server   psi = w + (1/L) (sum of the survivors' updates), L of K drawn without replacement, each surviving with
         probability q, is in the mean y -> Phi_p y, Phi_p = I + q (mean_k Phi_k - I), and has the covariance
             C_p(Y) = (1/L) mean_k { q (F_k(Y) - Phi_k Y Phi_k') + q (1-q) (Phi_k - I) Y (Phi_k - I)' }
                    + (q^2/L) (K-L)/(K-1) mean_k { (Phi_k - Phibar) Y (Phi_k - Phibar)' }.
network  w = W psi + R z (see `rounds.schemes.Wiring`), so with blkdiag{.} over the servers and Y_p = E y_p y_p'
             m+ = W Phi m + ...,   S+ = W (Phi S Phi' + blkdiag{C_p(Y_p)} + (q sigma_client^2 / L) I) W' + R R'.

A fresh batch in every step is assumed, which is what `rounds.local.sgd` draws. "fixed" arithmetic is read as float:
its rounding, of 2^-fraction_bits, is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from confide.base.arrays import Floats, Ints
from confide.base.errors import InputError
from confide.graph.graph import Graph
from confide.problems.federation import Federation
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL
from confide.rounds.local import sgd
from confide.theory.packing import congruence, pack, packed_squares, pairs, unpack
from confide.theory.quadratics import LocalQuadratics

DENSE = 12  # up to this M, C_p is a matrix on packed Y; beyond it, matrices of size M^2/2 cost more than the samples
CHUNK = 1 << 22  # numbers held in one stack of clients' matrices


@dataclass(frozen=True, eq=False)
class Moments:
    """One round as a map of (m, S); m has shape (P, M), S (P, M, P, M).

    Attributes:
        W: psi to w, (P, P).
        noise: covariance over servers of the privacy noise in a coordinate of w, (P, P).
        Phi: mean map of every server, (P, M, M), and its offset `phi`, (P, M).
        sampling: Y of every server, (P, M+1, M+1), to C_p(Y_p), (P, M, M): clients, batches and dropout.
    """

    W: Floats
    noise: Floats
    Phi: Floats
    phi: Floats
    sampling: Callable[[Floats], Floats]

    def mean(self, m: Floats) -> Floats:
        """m+"""
        return self.W @ ((self.Phi @ m[..., None])[..., 0] + self.phi)

    def covariance(self, S: Floats, m: Floats) -> Floats:
        """S+"""
        P, M = m.shape
        Y = np.ones((P, M + 1, M + 1))  # E y_p y_p': asked once, sampling takes half the time
        Y[:, :M, :M] = blocks(S) + m[:, :, None] * m[:, None, :]
        Y[:, :M, M] = Y[:, M, :M] = m
        S = self.carry(S, self.sampling(Y))
        S[:, range(M), :, range(M)] += self.noise
        return S

    def carry(self, S: Floats, C: Floats) -> Floats:
        """W (Phi S Phi' + blkdiag{C}) W'"""
        P, M = self.phi.shape
        for _ in range(2):  # from the left; then the transpose from the left, S being symmetric
            S = (self.Phi @ S.reshape(P, M, P * M)).reshape(P * M, P * M).T
        S = np.array(S).reshape(P, M, P, M)
        S[range(P), :, range(P), :] += C
        for _ in range(2):
            S = (self.W @ S.reshape(P, M * P * M)).reshape(P * M, P * M).T
        return S.reshape(P, M, P, M)

    def drawn(self, m: Floats) -> Floats:
        """C_p of a known x = m: the gradient noise that does not wait for a spread."""
        y = np.column_stack([m, np.ones(len(m))])
        return self.sampling(y[:, :, None] * y[:, None, :])

    def multiplied(self, S_pp: Floats) -> Floats:
        """C_p of the spread alone, (P, M, M) to (P, M, M): linear, and positive."""
        return self.sampling(np.pad(S_pp, ((0, 0), (0, 1), (0, 1))))


def blocks(S: Floats) -> Floats:
    """The diagonal blocks S_pp."""
    p = np.arange(S.shape[0])
    return np.asarray(S[p, :, p, :])


def moments(quadratics: LocalQuadratics, graph: Graph, algorithm: GFL, seed: int) -> Moments:
    """The moments of a round, given the E and batch that `algorithm.settle` draws from this seed."""
    check(quadratics.federation, graph, algorithm)
    f = quadratics.federation
    E, batch = algorithm.settle(f, seed)
    units = [of_unit(quadratics, algorithm, p, E, batch) for p in range(f.P)]
    operators = np.stack([_operator(quadratics, u) for u in units]) if quadratics.M <= DENSE else None

    def sampling(Y: Floats) -> Floats:
        if operators is None:
            return np.stack([_run(quadratics, u, Y[u.p]) for u in units])
        return unpack((operators @ pack(Y)[..., None])[..., 0], quadratics.M)

    eye = np.eye(quadratics.M + 1)
    Phi = np.stack([eye + u.q * (u.Phi.mean(axis=0) - eye) for u in units])
    s = algorithm.scheme.only_plain("the theory").wiring(graph)
    client_noise = (1.0 - algorithm.dropout) * algorithm.scheme.sigma_client**2 / algorithm.sampled
    return Moments(
        W=s.W,
        noise=s.R[0] @ s.R[0].T + client_noise * s.W @ s.W.T,
        Phi=np.ascontiguousarray(Phi[:, :-1, :-1]),
        phi=np.ascontiguousarray(Phi[:, :-1, -1]),
        sampling=sampling,
    )


def check(federation: Federation, graph: Graph, algorithm: GFL) -> None:
    """What neither predictions nor bounds are known for is refused by name."""
    if not isinstance(graph, Graph):
        raise InputError("graph", graph, "the theory is for one graph; of several that take turns, give one")
    graph.check_units(federation.P)
    if algorithm.clip is not None:
        remedy = "clipping is not linear; where it never acts, predict with clip=None (and float arithmetic)"
        raise InputError("algorithm.clip", algorithm.clip.kind, remedy)
    if algorithm.failures:
        raise InputError("failures", "of links or units", "the theory assumes that links and units stay up; drop them")
    if algorithm.local is not sgd:
        raise InputError("algorithm.local", algorithm.local, "the theory is for the built-in local step")


def cost(problem: Problem, algorithm: GFL, seed: int, rounds: int) -> float:
    """Operations to make the moments and to carry a covariance so many rounds, roughly; each NumPy call counts 1e4."""
    f, M = problem.federation, problem.M
    E, _ = algorithm.settle(f, seed)
    D = (M + 1) * (M + 2) / 2
    per_client = np.log2(2.0 * E) * D**3 if M <= DENSE else rounds * E * (f.N * M**2 + 2e4)
    return float(f.samples * D**2 + np.sum(per_client + 1e4) + rounds * ((f.P * M) ** 2 * (M + f.P) + 1e5))


class Unit(NamedTuple):
    """The clients of one unit, a row each."""

    p: int
    V: Floats  # mean over n of u_n a_n', (K, M, M+1): the data's part, all of V that varies
    T: Floats  # Tbar, (K, M+1, M+1)
    Phi: Floats  # Tbar^E
    kappa: Floats  # eta^2 f / B
    E: Ints
    L: int
    q: float

    @property
    def unlike(self) -> float:
        """Weight of the differences between clients, with the finite-population factor."""
        K = len(self.E)
        return self.q**2 * (K - self.L) / (K - 1) if K > 1 else 0.0


def of_unit(quadratics: LocalQuadratics, algorithm: GFL, p: int, E: Ints, batch: Ints) -> Unit:
    """The clients of unit p; `E` and `batch` are those of all clients."""
    f, M = quadratics.federation, quadratics.M
    clients = slice(int(f.unit_offsets[p]), int(f.unit_offsets[p + 1]))
    E, B, N = E[clients], batch[clients], f.N[clients]
    eta = algorithm.step / E
    population = np.ones(len(N)) if algorithm.replacement else (N - B) / np.maximum(N - 1, 1)
    u, a, offsets = quadratics.samples(p)
    V = client_means(u, a, offsets)
    T = np.tile(np.eye(M + 1), (len(N), 1, 1))
    T[:, :M] -= eta[:, None, None] * (V + quadratics.regulariser)
    return Unit(p, V, T, _powers(T, E), eta**2 * population / B, E, algorithm.sampled, 1.0 - algorithm.dropout)


def client_means(left: Floats, right: Floats, offsets: Ints) -> Floats:
    """The mean over each client's rows of left_n right_n'."""
    N = np.diff(offsets)
    if np.ptp(N) == 0:  # one call for all clients: a call each takes longer than its product
        each = (len(N), int(N[0]), -1)
        left, right = (v[offsets[0] : offsets[-1]].reshape(each) for v in (left, right))
        return np.asarray(left.transpose(0, 2, 1) @ right / N[0])
    ends = zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
    return np.stack([left[i:j].T @ right[i:j] / (j - i) for i, j in ends])


def _powers(T: Floats, E: Ints) -> Floats:
    """T_k^E_k"""
    found = np.empty_like(T)
    for e in np.unique(E).tolist():
        found[e == E] = np.linalg.matrix_power(T[e == E], e)
    return found


def _operator(quadratics: LocalQuadratics, unit: Unit) -> Floats:
    """C_p as a matrix on packed Y."""
    M, K, q = quadratics.M, len(unit.E), unit.q
    u, a, offsets = quadratics.samples(unit.p)
    i, j, _ = pairs(M + 1)
    inside = np.flatnonzero((i < M) & (j < M))  # the rest of y is the constant 1
    uu, aa = packed_squares(u), packed_squares(a)
    eye, Phibar = np.eye(M + 1), unit.Phi.mean(axis=0)
    total = np.zeros((len(inside), len(i)))
    size = max(1, CHUNK // len(i) ** 2)
    for first in range(0, K, size):
        k = slice(first, min(first + size, K))
        Phi = unit.Phi[k]
        # Cov_n(V) as a matrix: V_n Y V_n' = u_n (a_n' Y a_n) u_n', and a' Y a = pack(a a') . pack(Y)
        spread = client_means(uu, aa, offsets[first : k.stop + 1]) - congruence(unit.V[k])
        second = congruence(unit.T[k])
        second[:, inside] += unit.kappa[k, None, None] * spread
        F = _powers(second, unit.E[k])[:, inside]
        total += q * np.sum(F - congruence(Phi, rows=M), axis=0)
        if q < 1.0:
            total += q * (1.0 - q) * np.sum(congruence(Phi - eye, rows=M), axis=0)
        if unit.unlike:
            total += unit.unlike * np.sum(congruence(Phi - Phibar, rows=M), axis=0)
    return total / (K * unit.L)


def _run(quadratics: LocalQuadratics, unit: Unit, Y: Floats) -> Floats:
    """C_p(Y) by running every client on Y: no matrix larger than M x M."""
    M, q = quadratics.M, unit.q
    eye, Phibar = np.eye(M + 1), unit.Phi.mean(axis=0)
    u, a, offsets = quadratics.samples(unit.p)
    total = np.zeros((M + 1, M + 1))
    for k, E in enumerate(unit.E.tolist()):
        rows = slice(int(offsets[k]), int(offsets[k + 1]))
        u_k, a_k, V, T, Phi = u[rows], a[rows], unit.V[k], unit.T[k], unit.Phi[k]
        seen, spread = Y, np.zeros_like(Y)  # Tbar^e Y Tbar'^e, and what the batches add to it
        for _ in range(E):
            now = seen + spread
            draw = (u_k.T * (np.einsum("ni,ni->n", a_k @ now, a_k) / len(a_k))) @ u_k - V @ now @ V.T
            seen, spread = T @ seen @ T.T, T @ spread @ T.T
            spread[:M, :M] += unit.kappa[k] * draw
        total += q * spread + unit.unlike * (Phi - Phibar) @ Y @ (Phi - Phibar).T
        if q < 1.0:
            total += q * (1.0 - q) * (Phi - eye) @ Y @ (Phi - eye).T
    return total[:M, :M] / (len(unit.E) * unit.L)
