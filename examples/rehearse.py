"""Rehearse a train function before it meets real machines: a ring of three units with four clients each, in a box.

`train_numpy.py`, `train_sklearn.py` and `train_torch.py` call `learn`; do the same with yours. Machines, messages,
secure sums and clipping are those of a deployment. Time is virtual, and all noise comes from a seed: none of it hides
anything, so rehearse with data that need no protection.
"""

import tempfile
from pathlib import Path

import numpy as np

from confide.deploy import agree, price
from confide.testing import forged_units, rehearse

P, K, SAMPLES, ROUNDS = 3, 4, 100, 20


def learn(train, size, sample, score, bound):
    """The score before the first round and after the last, on samples of clients that took no part.

    Args:
        train: "module:function", as in a client's TOML.  size: numbers in its model.
        sample: (generator, n) -> features X and targets y.  score: (weights, X, y) -> a number to print.
        bound: no update is longer than this, whatever the data; with step = 1 it is the plan's B.
    """
    config = {
        "rounds": ROUNDS,
        "graph": {"topology": "ring"},
        "algorithm": {"step": 1.0, "bound": bound, "clip": "update", "sampled": K, "arithmetic": "fixed",
                      "aggregation": "secure", "local_steps": 1, "batch": 1},  # steps and batches are train's own
        # Homomorphic noise would cancel; what it hides of a client needs a proof that few models of one's own have.
        "scheme": {"name": "shared", "sigma": 0.1, "noise": "gaussian"},
        "privacy": {"unprotected": True},  # so few clients and so little noise hide nobody, and the table says so
    }  # fmt: skip
    plan = agree(config, forged_units(P, K), model="own", features=size)  # real units announce keys of their own
    print(f"the model has {size} numbers; {ROUNDS} rounds, {P} units with {K} clients each")
    print(f"so few clients hide nobody:\n{price(plan).statement()}\n")
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:

        def data(p, k):
            return f"{folder}/{p}-{k}.npz"

        for p in range(P):
            for k in range(K):
                X, y = sample(rng, SAMPLES)
                np.savez(Path(data(p, k)), X=X, y=y)
        found = rehearse(plan, train=train, train_config=lambda p, k: {"data": data(p, k)})
    assert not found.failed, f"{found.failed} trainings failed; the log says why"
    w = found.models.mean(axis=0)  # over servers, which is all that `confide release` reveals
    X, y = map(np.concatenate, zip(*(sample(rng, 20) for _ in range(100)), strict=True))
    return score(np.zeros(size), X, y), score(w, X, y)
