"""The paper's regression: d = u'w* + v, every client with its own covariance and noise variance.

The paper gives neither the scale of the covariances nor of the noise. Eigenvalues in [0.05, 0.5] are the
reading under which all its step-sizes, up to mu = 5, converge (docs/design/algorithm.md, 2).
"""

from __future__ import annotations

import numpy as np

from confide.base.arrays import Floats, Ints
from confide.base.randomness import Purpose, generator
from confide.base.validation import number, positive_int, positive_range, whole
from confide.problems.federation import Federation
from confide.problems.models import Linear
from confide.problems.problem import Problem


def regression(
    units: int = 10,
    clients: int = 100,
    samples: int = 100,
    features: int = 2,
    *,
    rho: float = 0.1,
    covariance: tuple[float, float] = (0.05, 0.5),
    noise_variance: tuple[float, float] = (0.01, 0.1),
    test_rows: int = 0,
    seed: int = 0,
) -> Problem:
    """P units of K clients of N samples with M features, and the closed-form optimum.

    Args:
        units, clients, samples, features: P, K of every unit, N of every client, M.
        rho: of the regulariser rho |w|^2, at least 0.
        covariance: range of the eigenvalues of each client's covariance R_{u_{p,k}}; its axes are random.
        noise_variance: range of each client's sigma_v^2.
        test_rows: held-out samples drawn from the clients in turn.
        seed: of all data.

    Returns:
        A problem whose data are nobody's, so that runs on it need no accounting.

    Raises:
        InputError: a number is out of its range.

    >>> regression(units=3, clients=4, samples=5, seed=1).federation
    Federation(units=3, clients=12, samples=60, features=2)
    """
    units, clients = positive_int("problem.units", units), positive_int("problem.clients", clients)
    samples, features = positive_int("problem.samples", samples), positive_int("problem.features", features)
    test_rows, seed = whole("problem.test_rows", test_rows, 0), whole("problem.seed", seed, 0)
    rho = number("problem.rho", rho, 0.0)
    low, high = positive_range("problem.covariance", covariance)
    v_low, v_high = positive_range("problem.noise_variance", noise_variance)

    total = units * clients
    rng = generator(seed, Purpose.DATA)
    w_star = rng.standard_normal(features)
    w_star *= np.sqrt(features) / np.linalg.norm(w_star)  # a size that every seed shares: |w*|^2 = M
    eigenvalues = rng.uniform(low, high, (total, features))
    axes, _ = np.linalg.qr(rng.standard_normal((total, features, features)))
    root = axes * np.sqrt(eigenvalues)[:, None, :]  # root @ root' = R_{u_{p,k}}
    sigma_v = np.sqrt(rng.uniform(v_low, v_high, total))

    def draw(client: Ints) -> tuple[Floats, Floats]:
        """One sample of each listed client (sorted, each equally often, for the training data)."""
        z = rng.standard_normal((len(client), features))
        u = np.empty_like(z)
        for block in np.array_split(np.arange(len(client)), 1 + len(client) // 65536):
            u[block] = np.einsum("nij,nj->ni", root[client[block]], z[block])
        return u, u @ w_star + sigma_v[client] * rng.standard_normal(len(client))

    X, d = draw(np.repeat(np.arange(total), samples))
    offsets = np.arange(total + 1, dtype=np.int64) * samples
    federation = Federation(X, d, offsets, np.arange(units + 1, dtype=np.int64) * clients)
    test = draw(np.arange(test_rows) % total) if test_rows else None
    spec = {
        "name": "regression", "units": units, "clients": clients, "samples": samples, "features": features,
        "rho": rho, "covariance": [low, high], "noise_variance": [v_low, v_high], "test_rows": test_rows, "seed": seed,
    }  # fmt: skip
    return Problem(federation, Linear(rho), test, spec, private=False)
