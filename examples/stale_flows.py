"""What do flows do that arrive after a long cut? A ring of 8 is cut in halves for 40 rounds, with windows of 2 to 32.

While the cut lasts, each end offers its rounds on the cut edges until their windows are full; when it heals, those old
flows enter all at once. Printed: the mean squared distance of the servers' models from the optimum, in dB, in the five
rounds before the cut heals, in the round after, and ten rounds later. Every machine is real, time is virtual.
"""

import numpy as np

from confide import problems
from confide.deploy import agree
from confide.testing import Cut, Rehearsal, Weather, forged_units

P, K, ROUNDS, BEGIN, LASTS, SECONDS = 8, 10, 90, 30, 40, 12.0
PROBLEM = problems.regression(units=P, clients=K, samples=50, features=2)


def config(scheme, sigma):
    return {
        "rounds": ROUNDS,
        "graph": {"topology": "ring"},
        "problem": {"features": 2},
        "algorithm": {"step": 0.3, "sampled": 5, "local_steps": 1, "batch": 5, "clip": "update", "bound": 5.0,
                      "arithmetic": "fixed"},
        "scheme": {"name": scheme, "sigma": sigma, "noise": "gaussian"},
        "privacy": {"unprotected": True},  # about flows: what noise this small hides has no proof here
    }  # fmt: skip


def distances(config, window, weather):
    """From the optimum after each round, in dB."""
    plan = agree(config, forged_units(P, K), window=window, adapt=10.0, exchange=1.0, drain=60.0)
    box, found = Rehearsal(plan, PROBLEM, weather=weather), []
    for i in range(1, ROUNDS + 1):
        box.run(until=i * SECONDS)
        found.append(((box.models - PROBLEM.optimum) ** 2).sum(axis=1).mean())
    return 10 * np.log10(found)


def main():
    heals = BEGIN + LASTS
    across = [(3, 4), (4, 3), (7, 0), (0, 7)]
    cuts = [Cut(BEGIN * SECONDS, heals * SECONDS, ("server", a, 0), ("server", b, 0)) for a, b in across]
    print("scheme       window   before    after   ten later")
    for scheme, sigma, windows in (("homomorphic", 0.3, (4, 32)), ("shared", 0.05, (2, 4, 32))):
        for window in windows:
            db = distances(config(scheme, sigma), window, Weather(cuts=tuple(cuts)))
            before, later = db[heals - 5 : heals].mean(), db[heals + 10 : heals + 15].mean()
            print(f"{scheme:12} {window:6} {before:8.1f} {db[heals]:8.1f} {later:11.1f}")


if __name__ == "__main__":
    main()
