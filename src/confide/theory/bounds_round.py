"""What one round does to (r_c, r_d), the root mean squares of the centroid's error and of the disagreement,

    r_c^2 = E|w_c - w^o|^2,     r_d^2 = (1/P) sum_p E|w_p - w_c|^2,     r_c^2 + r_d^2 = (1/P) sum_p E|w_p - w^o|^2:

    r_c+^2 <=        (phi r_c + kappa r_d + b_c)^2   + (S0_c + S1_c sqrt(r_c^2 + r_d^2))^2 + E|g|^2            (I)
    r_d+^2 <= iota^2 (gamma r_d + kappa r_c + b_d)^2 + (S0_d + S1_d sqrt(r_c^2 + r_d^2))^2 + E|g_d|^2          (II)

Both at once, entry by entry, with r = (r_c, r_d), C = ((phi, kappa), (iota kappa, iota gamma)), b = (b_c, iota b_d):

    r+^2 <= (C r + b)^2 + (S0 + S1 |r|)^2 + (E|g|^2, E|g_d|^2).

This replaces the recursions of Lemma 3 and Theorem 1. The paper splits psi_p = w_p - mu (grad J_p + s_p + q_p) and
takes s_p, of zero mean, to be uncorrelated with q_p; it is not, they share batches and clients. Here psi_p is split
into its conditional mean Psi_p(w_p) = E{psi_p | F_{i-1}} and the rest, which is. Every number is derived, none is O().

CLIENT k, local steps eta = mu/E from u_0 = w. Let T(u) = u - eta grad J_k(u), G = `centre`, s = `radius`, f = `share`.
T(u) - T(u') = (I - eta G)(u - u') + (at most eta s |u - u'|), so T is Lipschitz with gamma_k = |I - eta G| + eta s.
A step is u_{e+1} = T(u_e) - eta zeta_e, E{|zeta_e|^2 | u_e} = f V(u_e), and sqrt V(u) <= sqrt V(w^o) + omega |u - w^o|.
By Minkowski's inequality (roots of mean squares add), step by step, started at w^o:
    drift d = rms |u_e - w^o|   d+^2 = (gamma_k d + eta |grad J_k(w^o)|)^2 + eta^2 f (sqrt V(w^o) + omega d)^2
    variance v of u_e           v+   = gamma_k^2 v + eta^2 f (sqrt V(w^o) + omega d)^2, as Var T(u) <= gamma_k^2 Var u
    mean of u_E - w^o           t_k + (at most err_k),  t_k = -eta sum_{j<E} (I - eta G)^j grad J_k(w^o),
                                err+ = |I - eta G| err + eta s d
and of two runs with the same batches, started at w and w', per |w - w'|:
    rms distance ell^e          ell^2 = min{gamma_k^2 + eta^2 f omega^2, 1 - eta (2 - eta D) nu}, by co-coercivity with
                                D = f delta_example + (1 - f) delta  (delta in the place of nu when eta D > 2)
    mean of the difference      Phi_k (w - w') + (at most kappa_k |w - w'|),  Phi_k = (I - eta G)^E,
                                kappa+ = |I - eta G| kappa + eta s ell^e
    its variance y              y+ = (|I - eta G| sqrt y + eta s ell^e)^2 + eta^2 f omega^2 ell^2e; without eta s in
                                the first step, which starts from given points, and where nothing is drawn.
For squared loss s = 0: Phi_k and t_k are exact, and kappa_k = err_k = 0.
Started anywhere, a client drifts from w by at most d + tau |w - w^o|, tau+^2 = (gamma_k tau + eta delta)^2 +
eta^2 f omega^2 (1 + tau)^2: what the recursion makes of |grad J_k(w)| and sqrt V(w) is a norm, and subadditive. So
    sqrt E|q_k|^2 <= q0_k + q1_k |w - w^o|,   (q0_k, q1_k) = sqrt(delta^2 + f omega^2) (1/E) sum_{e<E} (d_e, tau_e).

UNIT p, L of K clients without replacement, each surviving with probability q (1 without dropout):
    Phi_p = I + q (mean_k Phi_k - I),   t_p = q mean_k t_k,   kappa_p and err_p likewise, and
    std psi_p(w_p) <= S0_p + S1_p |w_p - w^o|, with F = q^2 (K-L)/(K-1),
    L S0_p^2 = q mean v_k + q (1-q) mean (|t_k| + err_k)^2       + F (rms |t_k - mean t_k| + rms err_k)^2
    L S1_p^2 = q mean y_k + q (1-q) mean (|Phi_k - I| + kappa_k)^2 + F (spread Phi_k + rms kappa_k)^2.

NETWORK. w = W psi + noise, W doubly stochastic. Put w_p - w^o = (w_p - w_c) + (w_c - w^o) in Psi_p(w_p) - w^o. The
deviations w_p - w_c sum to zero, so that only Phi_p - Phi, with Phi = mean_p Phi_p, acts on them in the centroid, and
only it on w_c - w^o in the disagreement: kappa = sqrt lambda_max(mean_p (Phi_p - Phi)^2) + rms_p kappa_p. Then
    phi = |Phi| + mean_p kappa_p,      b_c = |mean_p t_p| + mean_p err_p,
    gamma = max_p (|Phi_p| + kappa_p), b_d = rms_p |t_p - mean t| + rms_p err_p,     iota = |W - 11'/P|.
Units draw independently: S0_c^2 = (1/P^2) sum_p S0_p^2, S1_c = max_p S1_p / sqrt P; with the column norms
h_p^2 = [W^2]_pp - 1/P <= iota^2 of W - 11'/P: S0_d^2 = (1/P) sum_p h_p^2 S0_p^2, S1_d = max_p h_p S1_p.

SQUARED LOSS, the centroid apart from the disagreement. Homomorphic noise is not in the centroid, but the disagreement
that it leaves is of order 1 in mu and enters through kappa = O(mu), and 1 - phi = O(mu): (I) and (II) end at O(1). But
a deviation is forgotten in 1/(1 - iota) rounds, where the centroid takes 1/mu. With d = col{w_p - w_c}, J = 11'/P and
any M x PM matrix T = (T_1, ..., T_P) whose blocks add up to 0, look at c = w_c - w^o - T d. Psi_p is affine, so that

    E{c+ | F} = F c + X d + tbar - T (W-J) t,      F = Phi - T (W-J) col{Phi_p},
                X = F T + row{(Phi_p - Phi)/P} - T (W-J) blkdiag{Phi_p},

and c+ has the rest sum_p U_p (psi_p - Psi_p) + sum_p (I/P - T_p) g_p, U_p = I/P - sum_m T_m (W-J)_mp. Of deviations
sqrt P r_d is the norm, so with tau = sqrt P |T| and r_c <= r~_c + tau r_d both recursions hold for r~ = (r~_c, r_d):
    C = ((|F|, sqrt P |X|), (iota kappa, iota (gamma + kappa tau))),   b_c = |tbar - T (W-J) t|,
    S0_c^2 = sum_p |U_p|^2 S0_p^2,   S1_c = sqrt P max_p |U_p| S1_p,   and |r| is that of (r~_c + tau r_d, r_d).
Any T gives a bound. That with Phi T = T (W-J) blkdiag{Phi_p} - row{(Phi_p - Phi)/P} is O(mu / (1 - iota)) and leaves
X = (F - Phi) T = O(mu^3): nothing but noise of variance O(mu^2) is left in c, against 1 - |F| = O(mu), and so

    limsup E|w_c - w^o|^2 <= (r~_c + tau r_d)^2 = O(mu)      for squared loss, where E|g|^2 = 0.

With curvature (s > 0) kappa_p cannot be taken out like this, and the limit is of order 1 (docs/theory.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from confide.base.arrays import Floats
from confide.graph.graph import Graph
from confide.rounds.algorithm import GFL
from confide.rounds.schemes import Exchange
from confide.theory.constants_clients import Clients

LONGEST = 3000  # iterations for T, which need not be exact


class Noise(NamedTuple):
    """Second moments of the noise that enters in a round; exact for every scheme."""

    units: Floats  # sigma_{g,p}^2: of w_p
    centroid: float  # E|g_i|^2  (23)
    disagreement: float  # (1/P) sum_p of its deviation from the centroid
    root: Floats  # a coordinate of it is this times independent draws of variance 1


def noise(graph: Graph, algorithm: GFL, M: int) -> Noise:
    """w = W psi + R z, with every surviving client's own noise in psi: covariance R R' + (q sigma_client^2/L) W W'."""
    wiring = algorithm.scheme.only_plain("the theory").wiring(graph)
    W, R = wiring.W, wiring.R[0]
    per_unit = (1.0 - algorithm.dropout) * algorithm.scheme.sigma_client**2 / algorithm.sampled
    P = graph.P

    def total(rows_R: Floats, rows_W: Floats) -> Floats:
        return np.asarray(M * (np.sum(rows_R**2, axis=-1) + per_unit * np.sum(rows_W**2, axis=-1)))

    centroid = total(R.mean(axis=0), W.mean(axis=0))
    apart = total(R - R.mean(axis=0), W - 1.0 / P)
    cancelled = float(centroid) <= 1e-28 * M * float(np.sum(R**2) + per_unit)  # (46) holds up to rounding
    root = np.hstack([R, np.sqrt(per_unit) * W])
    return Noise(total(R, W), 0.0 if cancelled else float(centroid), float(apart.mean()), root)


class Local(NamedTuple):
    """A client's E steps: the fields are named as above."""

    Phi: Floats
    pull: Floats  # |Phi - I|
    t: Floats
    kappa: Floats
    err: Floats
    v: Floats
    y: Floats
    q0: Floats
    q1: Floats


def overflows(c: Clients, step: float) -> bool:
    """Whether E steps can multiply by more than e^300."""
    return bool(np.max(c.E * np.log(np.maximum(2.0 * step / c.E * c.delta_example, 1.0))) > 300.0)


def local(c: Clients, step: float) -> Local:
    eta = step / c.E
    factors = 1.0 - eta[:, None] * c.curvature
    centre, slack = np.abs(factors).max(axis=1), eta * c.radius
    gamma = centre + slack
    D = c.share * c.delta_example + (1.0 - c.share) * c.delta
    convex = 1.0 - eta * (2.0 - eta * D) * np.where(eta * D <= 2.0, c.nu, c.delta)
    drawn = eta**2 * c.share
    ell = np.sqrt(np.minimum(gamma**2 + drawn * c.omega**2, np.maximum(convex, 0.0)))

    size, std = np.linalg.norm(c.gradient, axis=1), np.sqrt(c.variance)
    geometric = np.zeros_like(factors)  # sum_{j<E} (I - eta G)^j, on the axes of G
    distance = np.ones(len(eta))  # ell^e
    d, tau, v, err, kappa, y, q0, q1 = np.zeros((8, len(eta)))
    for e in range(int(c.E.max())):
        on = e < c.E
        q0, q1 = q0 + np.where(on, d, 0.0), q1 + np.where(on, tau, 0.0)
        geometric = np.where(on[:, None], 1.0 + factors * geometric, geometric)
        err = np.where(on, centre * err + slack * d, err)
        noisy = drawn * (std + c.omega * d) ** 2
        v = np.where(on, gamma**2 * v + noisy, v)
        d = np.where(on, np.sqrt((gamma * d + eta * size) ** 2 + noisy), d)
        tau = np.where(on, np.sqrt((gamma * tau + eta * c.delta) ** 2 + drawn * (c.omega * (1.0 + tau)) ** 2), tau)
        kappa = np.where(on, centre * kappa + slack * distance, kappa)
        random = slack * distance * (drawn > 0.0) * (e > 0)  # none before anything is drawn
        y = np.where(on, (centre * np.sqrt(y) + random) ** 2 + drawn * (c.omega * distance) ** 2, y)
        distance = distance * ell
    Phi = c.on_axes(factors ** c.E[:, None])
    t = -eta[:, None] * np.einsum("cij,cj->ci", c.on_axes(geometric), c.gradient)
    pull = np.abs(factors ** c.E[:, None] - 1.0).max(axis=1)
    steep = np.sqrt(c.delta**2 + c.share * c.omega**2) / c.E
    return Local(Phi, pull, t, kappa, err, v, y, steep * q0, steep * q1)


@dataclass(frozen=True, eq=False)
class Round:
    """The coefficients of (I) and (II), and those of single units; sqrt E|q_p|^2 <= q0_p + q1_p |w_p - w^o|."""

    W: Floats
    noise: Noise
    Phi: Floats
    t: Floats
    C: Floats
    b: Floats
    S0_cd: Floats  # (S0_c, S0_d)
    S1_cd: Floats
    factor: Floats  # |Phi_p| + kappa_p
    bias: Floats  # |t_p| + err_p
    S0: Floats
    S1: Floats
    q0: Floats
    q1: Floats
    tau: float = 0.0  # r_c <= r~_c + tau r_d; 0 where r_c itself is looked at

    def errors(self, r: Floats) -> Floats:
        """(r_c, r_d) of (r~_c, r_d); rounds, if any, on the first axis."""
        return np.stack([r[..., 0] + self.tau * r[..., 1], r[..., 1]], axis=-1)

    def slope(self, r: Floats) -> Floats:
        """Of |(r_c, r_d)|."""
        errors = self.errors(r)
        far = float(np.hypot(*errors))
        return np.array([errors[0], self.tau * errors[0] + errors[1]]) / far if far else np.zeros(2)

    def advance(self, r: Floats, constants: bool = True) -> Floats:
        """(I) and (II) for r = (r_c, r_d); without the constants, what remains of them for large r."""
        one, far = float(constants), float(np.hypot(*self.errors(r)))
        mean, spread = self.C @ r + one * self.b, one * self.S0_cd + self.S1_cd * far
        noise = one * np.sqrt([self.noise.centroid, self.noise.disagreement])
        return np.asarray(np.linalg.norm([mean, spread, noise], axis=0))

    def advance_units(self, r: Floats) -> Floats:
        """The same for r_p = sqrt E|w_p - w^o|^2 of every unit, what (60) should be:

        r_p+^2 <= (sum_m w_pm {(|Phi_m| + kappa_m) r_m + |t_m| + err_m})^2
                  + sum_m w_pm^2 (S0_m + S1_m r_m)^2 + sigma_{g,p}^2
        """
        mean = self.W @ (self.factor * r + self.bias)
        return np.sqrt(mean**2 + self.W**2 @ (self.S0 + self.S1 * r) ** 2 + self.noise.units)


def one_round(c: Clients, graph: Graph, algorithm: GFL, step: float) -> Round:
    """The coefficients for this step-size; those of `algorithm` otherwise."""
    mine, alive, L = local(c, step), 1.0 - algorithm.dropout, algorithm.sampled
    K, mean = np.diff(c.offsets), c.unit_mean
    finite = alive**2 * (K - L) / np.maximum(K - 1, 1)
    eye = np.eye(mine.t.shape[1])

    Phi, t = eye + alive * (mean(mine.Phi) - eye), alive * mean(mine.t)
    kappa, err = alive * mean(mine.kappa), alive * mean(mine.err)
    moved = np.linalg.norm(mine.t, axis=1) + mine.err
    between = np.sqrt(mean(np.sum((mine.t - np.repeat(mean(mine.t), K, axis=0)) ** 2, axis=1)))
    S0 = np.sqrt((
        alive * mean(mine.v)
        + alive * (1.0 - alive) * mean(moved**2)
        + finite * (between + np.sqrt(mean(mine.err**2))) ** 2
    ) / L)  # fmt: skip
    S1 = np.sqrt((
        alive * mean(mine.y)
        + alive * (1.0 - alive) * mean((mine.pull + mine.kappa) ** 2)
        + finite * (c.spread(mine.Phi) + np.sqrt(mean(mine.kappa**2))) ** 2
    ) / L)  # fmt: skip

    W = algorithm.scheme.wiring(graph).W
    P, centre = graph.P, Phi.mean(axis=0)
    apart = Phi - centre
    unlike = np.sqrt(max(float(np.linalg.eigvalsh((apart @ apart).mean(axis=0))[-1]), 0.0))
    factor, off = np.linalg.norm(Phi, 2, axis=(1, 2)) + kappa, t - t.mean(axis=0)
    column = np.sqrt(np.maximum(np.sum(W**2, axis=0) - 1.0 / P, 0.0))
    iota, phi, gamma = mixing(graph, algorithm), np.linalg.norm(centre, 2) + kappa.mean(), factor.max()
    coupled = unlike + _rms(kappa)
    b_c, b_d = np.linalg.norm(t.mean(axis=0)) + err.mean(), _rms(np.linalg.norm(off, axis=1)) + _rms(err)
    return Round(
        W=W,
        noise=noise(graph, algorithm, len(eye)),
        Phi=Phi,
        t=t,
        C=np.array([[phi, coupled], [iota * coupled, iota * gamma]]),
        b=np.array([b_c, iota * b_d]),
        S0_cd=np.array([np.linalg.norm(S0) / P, _rms(column * S0)]),
        S1_cd=np.array([S1.max() / np.sqrt(P), (column * S1).max()]),
        factor=factor,
        bias=np.linalg.norm(t, axis=1) + err,
        S0=S0,
        S1=S1,
        q0=np.sqrt(mean(mine.q0**2) / alive),
        q1=np.sqrt(mean(mine.q1**2) / alive),
    )


def apart(step: Round) -> Round:
    """A round of squared loss, its centroid apart from the disagreement."""
    P, M = step.t.shape
    eye, centre, mixed = np.eye(M), step.Phi.mean(axis=0), step.W - 1.0 / P
    unlike = (step.Phi - centre) / P

    def passed(T: Floats) -> Floats:
        """T (W-J)"""
        return np.asarray((mixed.T @ T.reshape(P, -1)).reshape(T.shape))

    T, inverse = np.zeros_like(unlike), np.linalg.pinv(centre)
    for _ in range(LONGEST):
        before, T = T, inverse @ (passed(T) @ step.Phi - unlike)
        T -= T.mean(axis=0)
        if np.abs(T - before).max() <= 1e-6 * np.abs(T).max():
            break
        if not np.abs(T).max() < 1.0:  # for a long step it may have no end: any T will do, also 0
            T = np.zeros_like(unlike)
            break
    U, V = eye / P - passed(T), eye / P - T
    F = centre - np.einsum("pij,pjk->ik", passed(T), step.Phi)
    X = F @ T + unlike - passed(T) @ step.Phi
    X -= X.mean(axis=0)  # deviations add up to 0
    tau, size = np.sqrt(P) * _row(T), np.linalg.norm(U, 2, axis=(1, 2))
    bias = step.t.mean(axis=0) - np.einsum("pij,pj->i", passed(T), step.t)
    to, own = step.C[1]
    entering = float(np.sum(np.einsum("pij,pz->zij", V, step.noise.root) ** 2))
    return replace(
        step,
        noise=step.noise._replace(centroid=entering),
        C=np.array([[np.linalg.norm(F, 2), np.sqrt(P) * _row(X)], [to, own + to * tau]]),
        b=np.array([np.linalg.norm(bias), step.b[1]]),
        S0_cd=np.array([np.linalg.norm(size * step.S0), step.S0_cd[1]]),
        S1_cd=np.array([np.sqrt(P) * np.max(size * step.S1), step.S1_cd[1]]),
        tau=float(tau),
    )


def _row(blocks: Floats) -> float:
    """|(B_1, ..., B_P)|"""
    return float(np.linalg.norm(np.concatenate(list(blocks), axis=1), 2))


def mixing(graph: Graph, algorithm: GFL) -> float:
    """iota_2 = |W - 11'/P| of what the scheme does with the messages: A, the exact mean, or nothing  (11)."""
    if algorithm.scheme.exchange == Exchange.AVERAGE:
        return 0.0
    if algorithm.scheme.exchange == Exchange.NOTHING:
        return 0.0 if graph.P == 1 else 1.0
    return graph.iota_2


def _rms(values: Floats) -> float:
    return float(np.sqrt(np.mean(values**2)))
