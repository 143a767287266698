"""A local step of your own in ten lines: FedProx, SGD that is pulled back to the model it started from."""

import numpy as np

import confide
from confide.base.randomness import below, words


def fedprox(w, X, d, task, pull=0.5):
    """(model handed out, features, labels, task) -> update; `task.key` is this client's random stream."""
    phi, draws = w.copy(), words(task.key, task.E * task.batch).reshape(task.E, task.batch)
    for row in draws:
        b = below(row, len(d))
        gradient = task.model.gradients(phi, X[b], d[b]).mean(axis=0) + 2 * task.model.rho * phi
        phi -= task.step / task.E * (gradient + pull * (phi - w))
    return phi - w


problem = confide.problems.regression(units=5, clients=20, samples=30)
algorithm = confide.GFL(sampled=5, local=fedprox)
run = confide.simulate(problem, confide.Graph.ring(5), algorithm, rounds=60, repeats=2)
print(run)
assert np.isfinite(run.models).all()
assert run.steady_state["centroid_db"] < -20
