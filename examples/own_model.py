"""A model of your own in ten lines: Huber regression, which the compiled engine does not know.

It runs on the reference round; everything else (graph, scheme, sampling, noise) stays as it is.
"""

import numpy as np

import confide


class Huber:
    """|residual| up to 1 counts squared, beyond it linearly."""

    rho = 0.1  # the regulariser rho |w|^2; the round adds its gradient

    def dimension(self, features):
        return features

    def loss(self, w, X, d):
        r = np.abs(d - X @ w)
        return np.where(r <= 1, r**2, 2 * r - 1) + self.rho * (w @ w)

    def gradients(self, w, X, d):
        return 2 * np.clip(X @ w - d, -1, 1)[:, None] * X

    def metrics(self, w, X, d):
        return {"mean_absolute_error": float(np.mean(np.abs(d - X @ w)))}


data = confide.problems.regression(units=5, clients=20, samples=30, test_rows=200)
problem = confide.problems.Problem(data.federation, Huber(), test=data.test, spec={"name": "huber"})
run = confide.simulate(problem, confide.Graph.ring(5), confide.GFL(sampled=5), rounds=60, repeats=2)
print(run)
assert run.final["test_metric"] < 0.5
