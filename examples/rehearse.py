"""Rehearse a train function before it meets real machines: a ring of three units with four clients each, in a box.

`train_numpy.py`, `train_sklearn.py` and `train_torch.py` call `learn`; do the same with yours. Machines, messages,
secure sums and clipping are those of a deployment. Time is virtual, and all noise comes from a seed: none of it hides
anything, so rehearse with data that need no protection.
"""

import tempfile
from pathlib import Path

import numpy as np

from confide.deploy.keys.announcement import experiment
from confide.deploy.machines.training import entry_point
from confide.plans.config import parse
from confide.privacy.agreement import Unit, make, price
from confide.privacy.statement import table
from confide.rounds.clipping import Clip
from confide.testing.network import Network
from confide.testing.rehearsal import rehearsal

P, K, SAMPLES, ROUNDS = 3, 4, 100, 20


def learn(train, size, sample, score, bound):
    """The score before the first round and after the last, on samples of clients that took no part.

    Args:
        train: "module:function", as in a client's TOML.  size: numbers in its model.
        sample: (generator, n) -> features X and targets y.  score: (weights, X, y) -> a number to print.
        bound: no update is longer than this, whatever the data; with step = 1 it is the plan's B.
    """
    config = parse(
        {
            "rounds": ROUNDS,
            "graph": {"topology": "ring"},
            "algorithm": {"step": 1.0, "bound": bound, "clip": "update", "sampled": K, "arithmetic": "fixed",
                          "aggregation": "secure", "local_steps": 1, "batch": 1},  # steps and batches are train's own
            # Homomorphic noise would cancel; what it hides of a client needs a proof that few models of one's own have.
            "scheme": {"name": "shared", "sigma": 0.1, "noise": "gaussian"},
            "privacy": {"unprotected": True},  # so few clients and so little noise hide nobody, and the table says so
        }
    )  # fmt: skip
    keys = (f"{n:064x}" for n in range(1, 1000))  # real units announce real ones
    units = [Unit(f"unit {p}", next(keys), next(keys), tuple(next(keys) for _ in range(K))) for p in range(P)]
    agreed = experiment(config, units, model="own", features=size)  # what `confide agree --model own` does
    prices = price(make(agreed, units))
    print(f"the model has {prices.plan.dim} numbers; {ROUNDS} rounds, {P} units with {K} clients each")
    print("\n".join(["so few clients hide nobody:", *table(prices.statement.to_dict()), ""]))
    call = entry_point(train, Clip("update", bound), step=1.0)
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        for p in range(P):
            for k in range(K):
                X, y = sample(rng, SAMPLES)
                np.savez(Path(folder, f"{p}-{k}.npz"), X=X, y=y)

        def trainer(p, k):  # each client with a [train_config] of its own
            return lambda w, i, _: call(w, i, {"data": f"{folder}/{p}-{k}.npz"})

        # Once outside a round, for its errors to show: in a round they go to the client's log, and zeros to the sum.
        trainer(0, 0)(np.zeros(size), 1, {})
        box = rehearsal(prices, agreed.problem, seed=0, trainer=trainer)
        network = Network(box)
        network.run(done=network.finished)
    failed = sum(client.failed for unit in box for client in unit.machines)
    assert not failed, f"{failed} trainings failed; the log says why"
    # The mean over servers, which is all that `confide release` reveals.
    w = np.mean([unit.server.books.w for unit in box], axis=0) * prices.deployed.arithmetic.quantum
    X, y = map(np.concatenate, zip(*(sample(rng, 20) for _ in range(100)), strict=True))
    return score(np.zeros(size), X, y), score(w, X, y)
