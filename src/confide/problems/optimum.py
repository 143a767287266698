"""The optimum w^o of (1): closed form for squared loss, a second-order solver for any other convex model."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from confide.base.arrays import Floats
from confide.base.errors import InputError
from confide.problems.federation import Federation
from confide.problems.models import GLM, Linear, Model, Regression, Softmax

TOLERANCE = 1e-10  # on |w - w^o|
MOST = 1e100  # of the rho of a softmax model, far from overflow
LARGEST = 2e7  # samples times weights of a softmax model, beyond which its optimum takes more than seconds
BLOCK = 1 << 18  # rows held in memory at once, so that a mapped federation need not fit


class NoUniqueOptimumError(InputError):
    """Learning is possible without one, a mean-square deviation is not."""


class Quadratic(NamedTuple):
    """The squared-loss objective as w'Rw - 2 r'w + c + rho |w|^2, all a linear problem's risk depends on."""

    R: Floats  # the paper's R_u, equation (dfRu)
    r: Floats
    c: float
    rho: float

    def value(self, w: Floats) -> float:
        return float(w @ self.R @ w - 2 * self.r @ w + self.c + self.rho * (w @ w))


def quadratic(f: Federation, model: Linear) -> Quadratic:
    R, r, c = np.zeros((f.M, f.M)), np.zeros(f.M), 0.0
    for X, d, weight in _blocks(f):
        R += (X * weight[:, None]).T @ X
        r += X.T @ (weight * d)
        c += float(weight @ d**2)
    return Quadratic(R, r, c, model.rho)


def risk(f: Federation, model: Model, w: Floats) -> float:
    """J(w) = (1/P) sum_p (1/K_p) sum_k J_{p,k}(w)"""
    return sum(float(weight @ model.loss(w, X, d)) for X, d, weight in _blocks(f))


def gradient(f: Federation, model: Regression, w: Floats) -> Floats:
    total = 2 * model.rho * w
    for X, d, weight in _blocks(f):
        total = total + model.mean_gradient(w, X, d, weight)
    return total


def hessian(f: Federation, model: GLM, w: Floats) -> Floats:
    total = 2 * model.rho * np.eye(f.M)
    for X, d, weight in _blocks(f):
        total += (X * (weight * model.curvature(X @ w, d))[:, None]).T @ X
    return total


def solve(f: Federation, model: Regression) -> Floats:
    """w^o with |w - w^o| <= 1e-10, or an error where there is no unique finite optimum."""
    if isinstance(model, Linear):
        return _closed_form(f, model)
    if isinstance(model, Softmax):
        return _by_products(f, model)
    if isinstance(model, GLM):
        return solve_iteratively(f, model)
    raise NoUniqueOptimumError("problem.model", type(model).__name__, "is not known to have an optimum")


def solve_iteratively(f: Federation, model: GLM) -> Floats:
    """Trust-region Newton (scipy), then plain Newton steps, which converge quadratically from there."""
    from scipy.optimize import minimize

    with np.errstate(over="ignore", invalid="ignore"):
        if not np.isfinite(hessian(f, model, np.zeros(f.M))).all():
            remedy = "the features are so large that the curvature overflows; scale them"
            raise NoUniqueOptimumError("problem.rho", model.rho, remedy)
    found = minimize(  # type: ignore[call-overload]
        lambda w: risk(f, model, w),
        np.zeros(f.M),
        jac=lambda w: gradient(f, model, w),
        hess=lambda w: hessian(f, model, w),
        method="trust-exact",
        options={"gtol": 1e-8, "maxiter": 500},
    )
    w: Floats = np.asarray(found.x, dtype=np.float64)
    for _ in range(8):
        H, g = hessian(f, model, w), gradient(f, model, w)
        nu = float(np.linalg.eigvalsh(H)[0])
        if nu <= 1e-12 or not np.isfinite(g).all() or np.linalg.norm(w) > 1e6:
            break
        if np.linalg.norm(g) / nu <= TOLERANCE / 10:  # |w - w^o| <= |grad| / nu to first order
            return w
        w = w - np.linalg.solve(H, g)
    raise NoUniqueOptimumError("problem.rho", model.rho, "no unique finite optimum; a positive regulariser gives one")


def _by_products(f: Federation, model: Softmax) -> Floats:
    """The same without a Hessian, of which only products are taken: it has (C F)^2 numbers.

    The objective is 2 rho-strongly convex, so that |w - w^o| <= |gradient| / (2 rho), wherever w is.
    """
    from scipy.optimize import minimize
    from scipy.sparse.linalg import LinearOperator, cg

    M = model.dimension(f.M)
    if model.rho == 0.0:
        remedy = "one vector added to the rows of all classes changes nothing; a positive regulariser gives one optimum"
        raise NoUniqueOptimumError("problem.rho", model.rho, remedy)
    if f.samples * M > LARGEST:
        remedy = f"the optimum is not solved for beyond {LARGEST:.0e} samples times weights, here {f.samples} x {M}"
        raise NoUniqueOptimumError("problem", M, remedy)

    length = np.sqrt(sum(float(weight @ np.einsum("nm,nm->n", X, X)) for X, _, weight in _blocks(f)))
    least = np.finfo(np.float64).eps * length / (8 * TOLERANCE)  # a gradient of 2 rho times the tolerance is rounding
    if not least <= model.rho <= MOST:
        remedy = f"the optimum is lost in rounding: it is known for rho from {least:.1g} to {MOST:g}"
        raise NoUniqueOptimumError("problem.rho", model.rho, remedy)

    def times(w: Floats, v: Floats) -> Floats:
        total = 2 * model.rho * v
        for X, _, weight in _blocks(f):
            total = total + model.hessian_times(w, X, weight, v)
        return total

    found = minimize(  # type: ignore[call-overload]
        lambda w: risk(f, model, w),
        np.zeros(M),
        jac=lambda w: gradient(f, model, w),
        hessp=times,
        method="trust-ncg",
        options={"gtol": 1e-6, "maxiter": 500},
    )
    w: Floats = np.asarray(found.x, dtype=np.float64)
    for _ in range(8):
        g = gradient(f, model, w)
        if np.linalg.norm(g) <= 2 * model.rho * TOLERANCE:
            return w
        hessian_at_w = LinearOperator((M, M), partial(times, w), dtype=np.float64)
        w = w - cg(hessian_at_w, g, rtol=1e-6)[0]
    raise NoUniqueOptimumError("problem.rho", model.rho, "the optimum was not found; use a larger one")


def _closed_form(f: Federation, model: Linear) -> Floats:
    """w^o = (R_u + rho I)^-1 (R_u w* + r_uv), (55), as least squares: a QR factor gathered block by block.

    The paper's normal equations would lose twice as many digits when features are nearly dependent.
    """
    factor = np.hstack([np.sqrt(model.rho) * np.eye(f.M), np.zeros((f.M, 1))])
    for X, d, weight in _blocks(f):
        rows = np.sqrt(weight)[:, None] * np.column_stack([X, d])
        factor = np.asarray(np.linalg.qr(np.vstack([factor, rows]), mode="r"))
    R, r = factor[: f.M, : f.M], factor[: f.M, f.M]
    singular = np.linalg.svd(R, compute_uv=False)
    if singular[-1] <= 1e-6 * singular[0]:  # beyond this the promised digits are not there
        remedy = (
            "the features are (nearly) linearly dependent, so the optimum is not unique; use a positive regulariser"
        )
        raise NoUniqueOptimumError("problem.rho", model.rho, remedy)
    return np.asarray(np.linalg.solve(R, r), dtype=np.float64)


def _blocks(f: Federation) -> Iterator[tuple[Floats, Floats, Floats]]:
    per_client = 1.0 / (f.P * np.repeat(f.K, f.K) * f.N)
    for start in range(0, f.samples, BLOCK):
        stop = min(start + BLOCK, f.samples)
        client = np.searchsorted(f.client_offsets, np.arange(start, stop), side="right") - 1
        yield f.X[start:stop], f.d[start:stop], per_client[client]
