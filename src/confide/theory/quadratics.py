"""Losses as quadratics around w^o: exact for squared loss, the linearised gradient for any other smooth model.

What curvature adds to the linearised recursion: a spread around w^o makes a bias, of the order of its variance. To
second order the mean gradient of sample n at w^o + x is

    E grad = c_n + H_n E x + (1/2) l'''_n (u_n' E[x x'] u_n) u_n,

so a server whose model is spread by privacy noise is pulled as if c_n had grown by the last term. Summed over the
servers this moves the centroid too: homomorphic noise cancels from it only where losses are quadratic. The paper
overlooks this term, which does not vanish with the step: it is sigma^2/2 times the third derivative.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from confide.base.arrays import Floats, Ints
from confide.base.errors import InputError
from confide.problems.federation import Federation
from confide.problems.models import GLM, Linear
from confide.problems.problem import Problem

DIFFERENCE = 1e-3  # of the margin: truncation and rounding of a central difference both stay below 1e-6 of l'''


@dataclass(frozen=True, eq=False)
class LocalQuadratics:
    """The gradient of sample n at w^o + x is H_n x + c_n, where

        H_n = h_n u_n u_n' + 2 rho I,   c_n = s_n u_n + 2 rho w^o.

    Both are one matrix on y = [x; 1]: V_n = [H_n, c_n] = u_n a_n' + 2 rho [I, w^o] with a_n = [h_n u_n; s_n].

    Attributes:
        h: l''(u_n'w^o, d_n), one a sample: 2 for squared loss.
        s: l'(u_n'w^o, d_n).
        model: the loss, and rho of the regulariser.
        optimum: w^o.
    """

    federation: Federation
    h: Floats
    s: Floats
    model: GLM
    optimum: Floats

    @property
    def M(self) -> int:
        return len(self.optimum)

    def rows(self, p: int) -> slice:
        """Of the samples of unit p."""
        first, end = self.federation.client_offsets[self.federation.unit_offsets[p : p + 2]].tolist()
        return slice(first, end)

    def samples(self, p: int) -> tuple[Floats, Floats, Ints]:
        """u_n and a_n of unit p, one a row, and where the rows of each of its clients begin (and the last ends)."""
        f, rows = self.federation, self.rows(p)
        offsets = f.client_offsets[f.unit_offsets[p] : f.unit_offsets[p + 1] + 1]
        u = np.asarray(f.X[rows], dtype=np.float64)
        return u, np.column_stack([self.h[rows, None] * u, self.s[rows]]), offsets - offsets[0]

    @cached_property
    def regulariser(self) -> Floats:
        """2 rho [I, w^o]: the part of V_n that no draw changes."""
        return 2.0 * self.model.rho * np.column_stack([np.eye(self.M), self.optimum])

    @cached_property
    def hessians(self) -> Floats:
        """H_p = (1/K_p) sum_k (1/N_pk) sum_n H_n, shape (P, M, M)."""
        found = np.empty((self.federation.P, self.M, self.M))
        for p in range(self.federation.P):
            u, a, offsets = self.samples(p)
            N = np.diff(offsets)
            weight = np.repeat(1.0 / (len(N) * N), N)
            found[p] = (weight[:, None] * u).T @ a[:, :-1] + self.regulariser[:, :-1]
        return found


def optimum(problem: Problem) -> tuple[GLM, Floats]:
    """The model and w^o, from which all of the theory measures; refused where there is none or it is not known."""
    model, w = problem.model, problem.optimum
    if not isinstance(model, GLM):
        remedy = "the theory knows linear and logistic models; measure others by `confide.simulate`"
        raise InputError("problem.model", type(model).__name__, remedy)
    if w is None:
        remedy = "the optimum is not unique, so there is no error to predict; a positive regulariser gives one"
        raise InputError("problem.rho", model.rho, remedy)
    return model, w


def linearise(problem: Problem) -> LocalQuadratics:
    """The quadratics of a problem at its optimum; an error where there is no optimum to linearise at."""
    model, w = optimum(problem)
    f = problem.federation
    z = f.X @ w
    return LocalQuadratics(f, model.curvature(z, f.d), model.slope(z, f.d), model, w)


def exact(of: Problem | LocalQuadratics) -> bool:
    """Whether `linearise` is the loss itself."""
    return isinstance(of.model, Linear)


def third(model: GLM, z: Floats, d: Floats) -> Floats:
    """l'''(z, d), the derivative of `model.curvature` in the margin."""
    return (model.curvature(z + DIFFERENCE, d) - model.curvature(z - DIFFERENCE, d)) / (2.0 * DIFFERENCE)


def bent(quadratics: LocalQuadratics, second_moments: Floats) -> LocalQuadratics:
    """The quadratics with c_n + (1/2) l'''_n (u_n' X_p u_n) u_n for c_n, X_p = E[x_p x_p'] of the unit's server."""
    f = quadratics.federation
    s = quadratics.s + 0.0
    for p in range(f.P):
        rows = quadratics.rows(p)
        u, d = f.X[rows], f.d[rows]
        bend = third(quadratics.model, u @ quadratics.optimum, d)
        s[rows] += 0.5 * bend * np.einsum("ni,ij,nj->n", u, second_moments[p], u)
    return replace(quadratics, s=s)
