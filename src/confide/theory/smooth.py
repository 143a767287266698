"""What curvature adds to the linearised recursion: a spread around w^o makes a bias, of the order of its variance.

To second order the mean gradient of sample n at w^o + x is

    E grad = c_n + H_n E x + (1/2) l'''_n (u_n' E[x x'] u_n) u_n,

so a server whose model is spread by privacy noise is pulled as if c_n had grown by the last term. Summed over the
servers this moves the centroid too: homomorphic noise cancels from it only where losses are quadratic. The paper
overlooks this term, which does not vanish with the step: it is sigma^2/2 times the third derivative.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from confide.base.arrays import Floats
from confide.problems.models import GLM
from confide.theory.quadratics import LocalQuadratics

DIFFERENCE = 1e-3  # of the margin: truncation and rounding of a central difference both stay below 1e-6 of l'''


def third(model: GLM, z: Floats, d: Floats) -> Floats:
    """l'''(z, d), the derivative of `model.curvature` in the margin."""
    return (model.curvature(z + DIFFERENCE, d) - model.curvature(z - DIFFERENCE, d)) / (2.0 * DIFFERENCE)


def bent(quadratics: LocalQuadratics, second_moments: Floats) -> LocalQuadratics:
    """The quadratics with c_n + (1/2) l'''_n (u_n' X_p u_n) u_n for c_n, X_p = E[x_p x_p'] of the unit's server."""
    f = quadratics.federation
    s = quadratics.s + 0.0
    for p in range(f.P):
        clients = f.client_offsets[f.unit_offsets[p : p + 2]]
        rows = slice(int(clients[0]), int(clients[1]))
        u, d = f.X[rows], f.d[rows]
        bend = third(quadratics.model, u @ quadratics.optimum, d)
        s[rows] += 0.5 * bend * np.einsum("ni,ij,nj->n", u, second_moments[p], u)
    return replace(quadratics, s=s)
