"""The constants of the paper's analysis for a problem on a graph, as printed and as repaired.

Equation numbers count the paper's numbered lines, as in docs/symbols.md. mean_k is the mean over the clients of a
unit, g_k = grad J_{p,k}(w^o), V_k the variance of grad Q_{p,k}(w^o; x_n) over n, f_k = f/B_{p,k} with f = 1 for batches
with replacement and (N-B)/(N-1) without, F = (K-L)/(K-1). Of every line, printed first, then repaired, and why.

beta_{s,p}^2 (25)     (6 delta^2/L)(1 + mean_k 1/E)               (2/L) {mean_k f_k omega_k^2/E + F spread_p^2}
sigma_{s,p}^2 (26)    mean_k (12/E + 3)(1/LN) sum_n |grad Q|^2    (2/L) {mean_k f_k V_k/E + F mean_k |g_k - g_p|^2}
    True as printed, for batches of one. Repaired, they are twice the exact second moment of s_p(w^o) and, per
    |w - w^o|^2, a bound on that of s_p(w) - s_p(w^o): batches, sampling without replacement, variances instead of raw
    moments. spread_p bounds how far the Hessians of the clients are from that of their unit.
beta_s^2 (29)         (2/P) sum_p beta_{s,p}^2                    (2/P^2) sum_p beta_{s,p}^2
sigma_s^2 (29)        (1/P) sum_p sigma_{s,p}^2                   (1/P^2) sum_p sigma_{s,p}^2
    Units draw independently, so that their noises average out; Jensen's inequality loses a factor P.
lambda (35)           1 - 2 nu mu + 4 delta^2 mu^2                1 - 2 nu mu/E + 2 delta^2 mu^2/E^2
    The local step is mu/E, not mu: as printed it promises a contraction that does not happen.
a (32)                4 delta^2 mean_k sum_e sum_f lambda^f/E^2   the same with delta^4; f < e <= E
b_k (33)              {... - 2 lambda^{E+1}}/(E^2 (1-lambda)^3)   {... - 4 lambda^{E+1}}/..., times delta^4
c_k (34)              (E - 1)/(3E)                                the same with delta^2
    Units of measure ask for the powers of delta. With 4 the numerator of b_k is (1 - lambda)^3 times a sum,
    b_k = (4/E^2) sum_{e<=E} sum_{f<e} sum_{h<f} lambda^h, which is 0 for E = 1; with 2 it is of order mu^-3.
sigma_{q,p,k}^2 (36)  3 sum_n |grad Q(w^o_{p,k}; x_n)|^2          (3/N) sum_n: as printed it grows with the data
sigma_q^2 (38)        mean (b_k mu^4 + c_k mu^2) sigma_{q,p,k}^2  plain mean: (37) multiplies by O(mu^2) once more
sigma_{g,p}^2 (62)    sum_m a_pm (E|g_{m,k}|^2/L + E|g_pm|^2)     the variance of the noise that enters w_p
    The paper never defines it, and (62) has Jensen's inequality where independent terms add. For (47) it is
    M sigma_g^2 (1-a_pp)/a_pp, infinite for a_pp = 0; true is M sigma_g^2 {(1-a_pp)^2 + sum_{m!=p} a_pm^2}.
lambda_p (64)         sqrt(1 - 2 nu mu + delta^2 mu^2)            (|Phi_p| + kappa_p)^2 + S1_p^2
                      + beta_{s,p}^2 mu^2
lambda_c (42)         the same with beta_s^2                      phi^2 + S1_c^2
    Repaired: what multiplies E|w_p - w^o|^2 or E|w_c - w^o|^2 in `bounds_round` where there is nothing else. The
    O(mu^2) that the paper adds is left out of the printed ones.

With dropout pi the step is (1-pi) mu in effect, and s_p and q_p are those of the survivors' sum divided by (1-pi) L.
The repaired constants then have f_k omega_k^2/E + pi delta_k^2 and f_k V_k/E + pi |g_k|^2, and these, a, b_k and c_k
are divided by 1-pi.

Lemma 1, repaired. Given w = w_{p,i-1}, E|s_p|^2 is known: with v_k(w) the variance of grad Q_{p,k}(w; x_n) over n,
    E|s_p(w)|^2 = (1/L) {mean_k f_k v_k(w)/E_k + (K-L)/(K-1) mean_k |grad J_k(w) - grad J_p(w)|^2},
the mean square of a noise that is linear in the gradients. So sqrt E|s_p(w)|^2 is at most its value at w^o plus that
of the differences of gradients between w and w^o, and (x + y)^2 <= 2 x^2 + 2 y^2 gives (24). Units are independent:
E|s|^2 = (1/P^2) sum_p E|s_p|^2, and |w_p - w^o|^2 <= 2 |w_c - w^o|^2 + 2 |w_p - w_c|^2 gives (28).

Lemma 2, repaired. Let z_e = w_{p,k,e} - w^o_{p,k}, eta = mu/E, sigma^2 = (1/N) sum_n |grad Q(w^o_{p,k}; x_n)|^2. The
gradient g of a batch has E|g|^2 <= 2 delta^2 |z|^2 + 2 sigma^2 and a mean whose product with z is above nu |z|^2, so
    E|z_{e+1}|^2 <= lambda E|z_e|^2 + 2 eta^2 sigma^2,     E|w_{p,k,e} - w|^2 <= eta^2 e sum_{f<e} E|g_f|^2,
and E|q_k|^2 <= (delta^2/E) sum_{e<E} of the latter, as a step's batch is independent of where it begins. Inserting,
with e <= E, |z_0|^2 <= 2 |w - w^o|^2 + 2 xi^2 and 2 sigma^2 <= sigma_{q,p,k}^2, is (31) with repaired a, b_k, c_k.

Neither lemma limits the step. But (31) pays for the one least smooth example with delta^4 and is void unless mu delta
is small; `bounds` uses the incremental noise of `bounds_round`, from the same facts with less haste.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from confide.base.arrays import Floats, Ints, plain
from confide.base.errors import InputError
from confide.graph.graph import Graph
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL
from confide.rounds.schemes import Exchange, links
from confide.theory.bounds_round import Round, mixing, one_round, overflows
from confide.theory.constants_clients import Clients, clients


@dataclass(frozen=True, eq=False)
class Terms:
    """One reading of the constants, printed or repaired; see the table above."""

    beta_s2_units: Floats
    sigma_s2_units: Floats
    beta_s2: float
    beta_d2: float  # what multiplies the disagreement (30) in Lemma 1, with the largest beta_{s,p}^2
    sigma_s2: float
    lam: Floats  # a client each
    a: Floats  # a unit each, for E_{p,k} differ
    b: Floats
    c: Floats
    sigma_q2_clients: Floats
    sigma_q2_units: Floats
    sigma_q2: float
    sigma_g2_units: Floats
    sigma_g2: float  # the mean over units
    lambda_units: Floats
    lambda_c: float

    def gradient_noise(self, centroid: Floats, disagreement: Floats) -> Floats:
        """E|s|^2 <= beta_s^2 E|w_c - w^o|^2 + sigma_s^2 + beta_d^2 (1/P) sum_p E|w_p - w_c|^2  (28)"""
        return np.asarray(self.beta_s2 * centroid + self.sigma_s2 + self.beta_d2 * disagreement)


@dataclass(frozen=True, eq=False)
class Constants:
    """Assumptions 1 to 3 in numbers, and both readings of what follows from them.

    Attributes:
        nu, delta: strong convexity of every J_{p,k}, smoothness of every Q_{p,k}: the worst of the clients.
        nu_clients, delta_clients: those of the risk J_{p,k}.
        delta_examples: smoothness of the least smooth example of each client.
        xi, xi_clients: |w^o - w^o_{p,k}|, the largest and all  (assumption 3).
        local_optima: w^o_{p,k}.
        iota_2: of what the scheme does with the messages: 1 for local-only, 0 for central.
        g2: E|g_i|^2, the noise in the centroid  (23); 0 where it cancels.
        g2_disagreement: (1/P) sum_p of the noise's deviation from the centroid.
        gradient2_units: |grad J_p(w^o)|^2.
        error2: |w_0 - w^o|^2.
    """

    step: float
    nu: float
    delta: float
    nu_clients: Floats
    delta_clients: Floats
    delta_examples: Floats
    xi: float
    xi_clients: Floats
    local_optima: Floats
    iota_2: float
    g2: float
    g2_disagreement: float
    gradient2_units: Floats
    error2: float
    printed: Terms
    repaired: Terms

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and lists, for JSON; what is infinite is None."""
        return dict(plain(asdict(self)))


def constants(problem: Problem, graph: Graph, algorithm: GFL, seed: int) -> Constants:
    """All constants of the paper, as printed and repaired.

    Args:
        problem, graph, algorithm: as in `confide.simulate`.
        seed: of the run, from which E_{p,k} and B_{p,k} are drawn when they are ranges.

    Returns:
        The constants, with `printed` and `repaired` for those that differ.

    Raises:
        InputError: there is no unique optimum, the graph has other servers than the problem, or local steps overflow.
    """
    graph.check_units(problem.federation.P)
    c = clients(problem, algorithm, seed)
    if overflows(c, algorithm.step):
        raise InputError("algorithm.step", algorithm.step, "a client's local steps overflow; must be smaller")
    return of_clients(c, one_round(c, graph, algorithm, algorithm.step), problem, graph, algorithm)


def of_clients(c: Clients, round: Round, problem: Problem, graph: Graph, algorithm: GFL) -> Constants:
    w = np.asarray(problem.optimum)
    drift = np.linalg.norm(c.optimum - w, axis=1)
    nu, delta = float(c.nu.min()), float(c.delta_example.max())
    return Constants(
        step=algorithm.step,
        nu=nu,
        delta=delta,
        nu_clients=c.nu,
        delta_clients=c.delta,
        delta_examples=c.delta_example,
        xi=float(drift.max()),
        xi_clients=drift,
        local_optima=c.optimum,
        iota_2=mixing(graph, algorithm),
        g2=round.noise.centroid,
        g2_disagreement=round.noise.disagreement,
        gradient2_units=np.sum(c.unit_mean(c.gradient) ** 2, axis=1),
        error2=float(np.sum((problem.start - w) ** 2)),
        printed=_printed(c, nu, delta, graph, algorithm, problem.M),
        repaired=_repaired(c, nu, delta, round, algorithm),
    )


def _printed(c: Clients, nu: float, delta: float, graph: Graph, algorithm: GFL, M: int) -> Terms:
    mu, L, mean, E = algorithm.step, algorithm.sampled, c.unit_mean, c.E.astype(float)
    beta, sigma = 6.0 * delta**2 / L * (1.0 + mean(1.0 / E)), mean((12.0 / E + 3.0) * c.second) / L
    lam = np.full(len(E), 1.0 - 2.0 * nu * mu + 4.0 * delta**2 * mu**2)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # many local steps, or lambda = 1
        double, triple = geometric(lam, c.E)
        misprint = 2.0 * lam ** (E + 1.0) / (E**2 * (1.0 - lam) ** 3)  # 4 - 2 of lambda^{E+1}, left in the numerator
        b = 4.0 / E**2 * triple + misprint
    b, c_k = np.where(np.isfinite(b), b, np.inf), (E - 1.0) / (3.0 * E)
    sigma_q = 3.0 * c.N * c.second_local
    contraction = float(np.sqrt(1.0 - 2.0 * nu * mu + delta**2 * mu**2))
    with np.errstate(invalid="ignore"):
        weighted = np.where(sigma_q > 0.0, (b * mu**4 + c_k * mu**2) * sigma_q, 0.0)
    noise = _printed_noise(graph, algorithm, M)
    return Terms(
        beta_s2_units=beta,
        sigma_s2_units=sigma,
        beta_s2=float(2.0 * beta.mean()),
        beta_d2=float(2.0 * beta.max()),
        sigma_s2=float(sigma.mean()),
        lam=lam,
        a=4.0 * delta**2 * mean(double / E**2),
        b=b,
        c=c_k,
        sigma_q2_clients=sigma_q,
        sigma_q2_units=mean(sigma_q),
        sigma_q2=float(mean(weighted).mean()),
        sigma_g2_units=noise,
        sigma_g2=float(noise.mean()),
        lambda_units=contraction + beta * mu**2,
        lambda_c=contraction + float(2.0 * beta.mean()) * mu**2,
    )


def _repaired(c: Clients, nu: float, delta: float, round: Round, algorithm: GFL) -> Terms:
    mu, L, mean, E = algorithm.step, algorithm.sampled, c.unit_mean, c.E.astype(float)
    K, P, lost, alive = np.diff(c.offsets), len(round.W), algorithm.dropout, 1.0 - algorithm.dropout
    finite = (K - L) / np.maximum(K - 1, 1)
    apart = c.gradient - np.repeat(mean(c.gradient), K, axis=0)
    unlike = c.spread(c.centre) + np.sqrt(mean(c.radius**2))
    beta = 2.0 / L * (mean(c.share * c.omega**2 / E + lost * c.delta**2) / alive + finite * unlike**2)
    raw = c.share * c.variance / E + lost * np.sum(c.gradient**2, axis=1)
    sigma = 2.0 / L * (mean(raw) / alive + finite * mean(np.sum(apart**2, axis=1)))
    lam = 1.0 - 2.0 * nu * mu / E + 2.0 * (delta * mu / E) ** 2
    double, triple = geometric(lam, c.E)
    sigma_q, noise = 3.0 * c.second_local, round.noise.units
    return Terms(
        beta_s2_units=beta,
        sigma_s2_units=sigma,
        beta_s2=float(2.0 * beta.mean() / P),
        beta_d2=float(2.0 * beta.max() / P),
        sigma_s2=float(sigma.mean() / P),
        lam=lam,
        a=4.0 * delta**4 * mean(double / E**2) / alive,
        b=4.0 * delta**4 / E**2 * triple / alive,
        c=delta**2 * (E - 1.0) / (3.0 * E) / alive,
        sigma_q2_clients=sigma_q,
        sigma_q2_units=mean(sigma_q),
        sigma_q2=float(mean(sigma_q).mean()),
        sigma_g2_units=noise,
        sigma_g2=float(noise.mean()),
        lambda_units=round.factor**2 + round.S1**2,
        lambda_c=float(round.C[0, 0] ** 2 + round.S1_cd[0] ** 2),
    )


def geometric(lam: Floats, E: Ints) -> tuple[Floats, Floats]:
    """sum_{e<=E} sum_{f<e} lambda^f and sum_{e<=E} sum_{f<e} sum_{h<f} lambda^h, without dividing by 1 - lambda.

    >>> geometric(np.array([0.5]), np.array([3]))  # 1 + 1.5 + 1.75, and 0 + 1 + 2.5
    (array([4.25]), array([3.5]))
    """
    power, single, inner, double, triple = np.ones_like(lam), *np.zeros((4, len(lam)))
    for e in range(int(E.max())):
        on = e < E
        inner = inner + single  # sum_{f<e+1} sum_{h<f} lambda^h
        single, power = single + power, power * lam
        double, triple = double + np.where(on, single, 0.0), triple + np.where(on, inner, 0.0)
    return double, triple


def _printed_noise(graph: Graph, algorithm: GFL, M: int) -> Floats:
    """sum_m a_pm (sigma_client^2 M/L + E|g_pm|^2), g_pp being whatever makes (8) the scheme's combination."""
    scheme = algorithm.scheme
    m = scheme.only_plain("the theory").wiring(graph)
    N, W, R = m.N[0], m.W, m.R[0]
    if scheme.exchange != Exchange.GRAPH:  # the baselines are not in the paper; there is nothing to misread
        return np.asarray(M * np.sum(R**2, axis=1))
    sender, receiver = links(graph)
    flow = np.zeros((graph.P, len(sender)))
    flow[receiver, np.arange(len(sender))] = W[receiver, sender]
    received = N if scheme.by_link else N[sender]  # a row a link
    sent, own = flow @ np.sum(received**2, axis=1), R - flow @ received
    square, weight = np.sum(own**2, axis=1), np.diag(W)
    with np.errstate(divide="ignore", invalid="ignore"):
        self_term = np.where(square > 0.0, square / weight, 0.0)
    return np.asarray(M * (scheme.sigma_client**2 / algorithm.sampled + sent + self_term))
