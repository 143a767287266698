"""Lemmas 1 and 2: how large the gradient noise s_i and the incremental noise q_i are, given how far the models are.

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

import numpy as np

from confide.base.arrays import Floats
from confide.theory.constants import Terms


def gradient_noise(terms: Terms, centroid: Floats, disagreement: Floats) -> Floats:
    """E|s|^2 <= beta_s^2 E|w_c - w^o|^2 + sigma_s^2 + beta_d^2 (1/P) sum_p E|w_p - w_c|^2  (28)

    `terms` is one reading of the constants, `constants(...).repaired` or `.printed`; the formula is the same.
    """
    return np.asarray(terms.beta_s2 * centroid + terms.sigma_s2 + terms.beta_d2 * disagreement)
