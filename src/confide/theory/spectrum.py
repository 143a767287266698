"""The spectral radius of what a round does to the covariance.

    S -> W (Phi S Phi' + blkdiag{C_p(S_pp)}) W'

is a positive map, so its spectral radius is an eigenvalue, the one of largest real part, and E|x|^2 stays bounded
exactly where it is below 1.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs

from confide.base.arrays import Floats
from confide.base.errors import RunError
from confide.theory.moments import Moments, blocks

STEADY = 1e-10  # a radius nearer to 1 than this is 1: a direction that is never forgotten


def radius(round: Moments) -> float:
    """The spectral radius of the second-moment map."""
    P, M = round.phi.shape
    n = (P * M) ** 2

    def apply(v: Floats) -> Floats:
        S = v.reshape(P, M, P, M)
        return round.carry(S, round.multiplied(blocks(S))).ravel()

    start = np.eye(P * M).ravel()  # inside the cone of covariances, so not orthogonal to the eigenvector looked for
    if n <= 16:  # too small for ARPACK
        return float(np.abs(np.linalg.eigvals(np.stack([apply(e) for e in np.eye(n)]))).max())
    system = LinearOperator((n, n), matvec=apply, dtype=np.float64)
    try:
        found = eigs(system, k=1, which="LR", v0=start, tol=1e-9, return_eigenvectors=False, maxiter=1000)
    except ArpackNoConvergence:
        raise RunError("the spectral radius of a round was not found (ARPACK did not converge)") from None
    return float(np.abs(found[0]))
