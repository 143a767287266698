"""Losses as quadratics around w^o: exact for squared loss, the linearised gradient for any other smooth model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from confide.base.arrays import Floats
from confide.base.errors import InputError
from confide.problems.federation import Federation
from confide.problems.models import GLM, Linear
from confide.problems.problem import Problem


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

    def samples(self, p: int) -> tuple[Floats, Floats, NDArray[np.int64]]:
        """u_n and a_n of unit p, one a row, and where the rows of each of its clients begin (and the last ends)."""
        f = self.federation
        offsets = f.client_offsets[f.unit_offsets[p] : f.unit_offsets[p + 1] + 1]
        rows = slice(int(offsets[0]), int(offsets[-1]))
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


def linearise(problem: Problem) -> LocalQuadratics:
    """The quadratics of a problem at its optimum; an error where there is no optimum to linearise at."""
    model, w = problem.model, problem.optimum
    if not isinstance(model, GLM):
        remedy = "predictions are known for linear and logistic models; measure your own by `confide.simulate`"
        raise InputError("problem.model", type(model).__name__, remedy)
    if w is None:
        remedy = "the optimum is not unique, so there is no error to predict; a positive regulariser gives one"
        raise InputError("problem.rho", model.rho, remedy)
    f = problem.federation
    z = f.X @ w
    return LocalQuadratics(f, model.curvature(z, f.d), model.slope(z, f.d), model, w)


def exact(of: Problem | LocalQuadratics) -> bool:
    """Whether `linearise` is the loss itself."""
    return isinstance(of.model, Linear)
