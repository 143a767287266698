"""What the paper derives and only tests compare with: the code has what a run, a price or a prediction needs."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from confide.graph.graph import Graph
from confide.problems.federation import Federation
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL
from confide.theory.constants import Constants, Terms
from confide.theory.moments import moments
from confide.theory.quadratics import bent, linearise
from confide.theory.stationary import limit, radius

Floats = NDArray[np.float64]


def sample_weights(f: Federation) -> Floats:
    """1 / (P K_p N_{p,k}) for each sample: units and clients weigh equally in the objective (1)."""
    return np.repeat(1.0 / (f.P * np.repeat(f.K, f.K) * f.N), f.N)


def spectral_radius(problem: Problem, graph: Graph, algorithm: GFL, *, seed: int = 0) -> float:
    """The factor by which E|x|^2 is multiplied in a round, in the long run; mean-square stable below 1."""
    return radius(moments(linearise(problem), graph, algorithm, seed))


def centroid_bias(problem: Problem, graph: Graph, algorithm: GFL, *, seed: int = 0) -> Floats:
    """What a spread does to the mean of the centroid in the limit, (M,): 0 for squared loss.

    With a small step and homomorphic noise it is

        -(sigma^2/2) Hbar^-1 (1/P) sum_p Z_pp sum_m d^2/dw_m^2 grad J_p(w^o),   Z = (I-A)(I+A)^-1 off consensus.
    """
    quadratics = linearise(problem)
    straight = limit(moments(quadratics, graph, algorithm, seed))
    assert straight is not None, "the step is not mean-square stable, so there is no limit"
    curved = limit(moments(bent(quadratics, straight.second_moments), graph, algorithm, seed))
    assert curved is not None, "only offsets have changed"
    return np.asarray((curved.mean - straight.mean).mean(axis=0))


# Lemmas 1 and 2. `terms` is one reading of the constants, `constants(...).repaired` or `.printed`.


def gradient_noise_units(terms: Terms, errors: Floats) -> Floats:
    """E|s_p|^2 <= beta_{s,p}^2 E|w_p - w^o|^2 + sigma_{s,p}^2 of every unit  (24), from E|w_p - w^o|^2."""
    return np.asarray(terms.beta_s2_units * errors + terms.sigma_s2_units)


def incremental_noise_units(f: Federation, c: Constants, terms: Terms, errors: Floats) -> Floats:
    """E|q_p|^2 <= a mu^2 (E|w_p - w^o|^2 + xi^2) + (1/K) sum_k (b_k mu^4 + c_k mu^2) sigma_{q,p,k}^2  (31)"""
    return np.asarray(terms.a * c.step**2 * (errors + c.xi**2) + _steps(f, c, terms))


def incremental_noise(f: Federation, c: Constants, terms: Terms, centroid: Floats, disagreement: Floats) -> Floats:
    """(37) with its O(mu) made explicit: (31) averaged over the units by Jensen's inequality,

    E|q|^2 <= mu^2 {mean_p a (2 E|w_c - w^o|^2 + xi^2) + 2 max_p a (1/P) sum_p E|w_p - w_c|^2}
              + (1/P) sum_p (1/K) sum_k (b_k mu^4 + c_k mu^2) sigma_{q,p,k}^2
    """
    moved = terms.a.mean() * (2.0 * centroid + c.xi**2) + 2.0 * terms.a.max() * disagreement
    return np.asarray(c.step**2 * moved + _steps(f, c, terms).mean())


def _steps(f: Federation, c: Constants, terms: Terms) -> Floats:
    """(1/K) sum_k (b_k mu^4 + c_k mu^2) sigma_{q,p,k}^2; a client without gradients adds none, whatever its b_k."""
    weight = terms.b * c.step**4 + terms.c * c.step**2
    with np.errstate(invalid="ignore"):
        added = np.where(terms.sigma_q2_clients > 0.0, weight * terms.sigma_q2_clients, 0.0)
    return np.asarray(np.add.reduceat(added, f.unit_offsets[:-1]) / f.K)


def appendix_d_factor(nu: float, delta: float, step: float, weight: float = 30.0) -> float:
    """lambda = alpha + 30 delta^2 mu^2 / (1 - alpha), alpha = sqrt(1 - 2 nu mu + delta^2 mu^2), on which Lemma 4 rests.

    With weight 6 it is lambda_{p,k}. Where alpha >= 1 the formula has no meaning, and the factor is infinite.
    """
    alpha = math.sqrt(1.0 - 2.0 * nu * step + (delta * step) ** 2)
    return alpha + weight * (delta * step) ** 2 / (1.0 - alpha) if alpha < 1.0 else math.inf
