"""What the theory needs of every client: the curvature of its risk, and its gradients at w^o and at its own optimum.

A generalised linear model has the Hessians l'' u_n u_n' + 2 rho I of single examples, 0 <= l'' <= l''_max, so

    J_{p,k}             has Hessians within `radius` of the matrix `centre`, in spectral norm, whatever w:
                        squared loss (H_k, 0) exactly, any other ((delta + nu)/2 I, (delta - nu)/2);
    Var_n{grad Q(w; x_n) - grad Q(w'; x_n)}  <=  omega^2 |w - w'|^2,
                        omega^2 = l''_max^2 lambda_max((1/N) sum |u|^2 uu'), less (2 R)^2 inside for squared loss:
                        the regulariser is the same for every example and does not vary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from confide.base.arrays import Floats, Ints
from confide.base.errors import InputError
from confide.problems.federation import Federation
from confide.problems.models import GLM, Linear
from confide.problems.optimum import TOLERANCE
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL
from confide.theory.quadratics import optimum

SINGULAR = 1e-12  # eigenvalues of a client's Hessian below this share of the largest are rounding


@dataclass(frozen=True, eq=False)
class Clients:
    """Arrays over all clients, in the order of the federation.

    Attributes:
        offsets: where the clients of each unit begin, and the last ends.
        N, E: samples and local steps.
        share: f/B, the part of the variance of an example that a batch of B keeps; f = 1 with replacement,
            (N - B)/(N - 1) without.
        curvature, axes: eigenvalues and eigenvectors of `centre`, see above.
        radius: see above.
        nu, delta: strong convexity and smoothness of the risk J_{p,k}.
        delta_example: smoothness of the least smooth example, max_n (l''_max |u_n|^2 + 2 rho)  (14).
        omega: Lipschitz constant of the standard deviation of an example's gradient.
        gradient: grad J_{p,k}(w^o).
        variance: of grad Q_{p,k}(w^o; x_n) over n.
        second: (1/N) sum_n |grad Q_{p,k}(w^o; x_n)|^2.
        optimum: w^o_{p,k}; where J_{p,k} has many minimisers (squared loss, rho = 0, singular covariance), the
            nearest to w^o, which is all that assumption 3 and Lemma 2 ask of it.
        second_local: (1/N) sum_n |grad Q_{p,k}(w^o_{p,k}; x_n)|^2.
    """

    offsets: Ints
    N: Ints
    E: Ints
    share: Floats
    curvature: Floats
    axes: Floats
    radius: Floats
    nu: Floats
    delta: Floats
    delta_example: Floats
    omega: Floats
    gradient: Floats
    variance: Floats
    second: Floats
    optimum: Floats
    second_local: Floats

    @property
    def centre(self) -> Floats:
        return self.on_axes(self.curvature)

    def on_axes(self, diagonal: Floats) -> Floats:
        """The symmetric matrix of every client that has these eigenvalues and the axes of its centre."""
        return np.asarray((self.axes * diagonal[:, None, :]) @ self.axes.transpose(0, 2, 1))

    def unit_mean(self, values: Floats) -> Floats:
        """(1/K_p) sum_k of values that have the clients on their first axis."""
        K = np.diff(self.offsets).astype(float).reshape(-1, *[1] * (values.ndim - 1))
        return np.asarray(np.add.reduceat(values, self.offsets[:-1], axis=0) / K)

    def spread(self, matrices: Floats) -> Floats:
        """sqrt lambda_max((1/K_p) sum_k (X_k - X_p)^2) of symmetric matrices, X_p their mean: one number a unit."""
        apart = matrices - np.repeat(self.unit_mean(matrices), np.diff(self.offsets), axis=0)
        return np.asarray(np.sqrt(np.maximum(np.linalg.eigvalsh(self.unit_mean(apart @ apart))[:, -1], 0.0)))


def clients(problem: Problem, algorithm: GFL, seed: int) -> Clients:
    """One pass over the data."""
    f, (model, w) = problem.federation, optimum(problem)
    if algorithm.dropout == 1.0:
        remedy = "no client survives, so nothing is learned; must be below 1"
        raise InputError("algorithm.dropout", algorithm.dropout, remedy)
    E, batch = algorithm.settle(f, seed)
    rows = [_facts(model, f, p, k, w) for p in range(f.P) for k in range(int(f.K[p]))]
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    kept = np.ones(f.clients) if algorithm.replacement else (f.N - batch) / np.maximum(f.N - 1, 1)
    return Clients(f.unit_offsets, f.N, E, kept / batch, *columns)


def _facts(model: GLM, f: Federation, p: int, k: int, w: Floats) -> tuple[Floats | float, ...]:
    """The fields of `Clients` from `curvature` on, in their order."""
    X, d = (np.asarray(a, dtype=np.float64) for a in f.client(p, k))
    top, rho, squares = model.curvature_bound, model.rho, np.einsum("nm,nm->n", X, X)
    R, fourth = X.T @ X / len(X), (X * squares[:, None]).T @ X / len(X)
    if isinstance(model, Linear):
        variances, axes = np.linalg.eigh(R)
        curvature = top * np.where(variances > SINGULAR * variances[-1], variances, 0.0) + 2.0 * rho
        nu, delta, radius = float(curvature[0]), float(curvature[-1]), 0.0
        fourth = fourth - R @ R
    else:
        nu, delta = 2.0 * rho, top * float(np.linalg.eigvalsh(R)[-1]) + 2.0 * rho
        curvature, axes, radius = np.full(f.M, (nu + delta) / 2.0), np.eye(f.M), (delta - nu) / 2.0
    omega = top * float(np.sqrt(max(np.linalg.eigvalsh(fourth)[-1], 0.0)))

    def gradients(at: Floats) -> Floats:
        return model.gradients(at, X, d) + 2.0 * rho * at

    here = gradients(w)
    gradient, second = here.mean(axis=0), float(np.mean(np.sum(here**2, axis=1)))
    if isinstance(model, Linear):  # one Newton step, along the axes on which J_{p,k} is not flat
        steps = np.divide(axes.T @ gradient, curvature, out=np.zeros(f.M), where=curvature > 0.0)
        own = w - axes @ steps
    else:
        own = _local_optimum(model, X, d, w, f"client {k} of unit {p}")
    second_local = float(np.mean(np.sum(gradients(own) ** 2, axis=1)))
    variance = float(np.mean(np.sum((here - gradient) ** 2, axis=1)))
    example = top * float(squares.max()) + 2.0 * rho
    return curvature, axes, radius, nu, delta, example, omega, gradient, variance, second, own, second_local


def _local_optimum(model: GLM, X: Floats, d: Floats, w: Floats, who: str) -> Floats:
    """Newton's method from w^o, a step halved until it gains."""
    weights = np.full(len(d), 1.0 / len(d))

    def risk(at: Floats) -> float:
        return float(weights @ model.loss(at, X, d))

    for _ in range(100):
        gradient = weights @ model.gradients(w, X, d) + 2.0 * model.rho * w
        hessian = model.hessian(w, X, d, weights)
        nu = float(np.linalg.eigvalsh(hessian)[0])
        if nu <= SINGULAR:  # the loss is flat far out: the minimum is at infinity, or a line
            break
        if np.linalg.norm(gradient) / nu <= TOLERANCE:  # |w - w^o_{p,k}| to first order
            return w
        step, size = np.linalg.solve(hessian, gradient), 1.0
        while risk(w - size * step) > risk(w) * (1.0 + 1e-12):  # below that, rounding
            size /= 2.0
        w = w - size * step
    remedy = f"{who} has no unique optimum w^o_{{p,k}} of its own; a positive regulariser gives it one"
    raise InputError("problem.rho", model.rho, remedy)
