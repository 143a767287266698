"""What do flows do that arrive after a long cut? A ring of 8 is cut in halves for 40 rounds, with windows of 2 to 32.

While the cut lasts, each end offers its rounds on the cut edges until their windows are full; when it heals, those old
flows enter all at once. Printed: the mean squared distance of the servers' models from the optimum, in dB, in the five
rounds before the cut heals, in the round after, and ten rounds later. Every machine is real, time is virtual.
"""

import numpy as np

from confide.plans.config import parse
from confide.privacy.agreement import Unit, make, price
from confide.testing.network import Cut, Network, Weather
from confide.testing.rehearsal import rehearsal

P, ROUNDS, BEGIN, LASTS, SECONDS = 8, 90, 30, 40, 12.0


def experiment(scheme, sigma):
    return parse(
        {
            "rounds": ROUNDS,
            "graph": {"topology": "ring"},
            "problem": {"units": P, "clients": 10, "samples": 50, "features": 2},
            "algorithm": {"step": 0.3, "sampled": 5, "local_steps": 1, "batch": 5, "clip": "update", "bound": 5.0,
                          "arithmetic": "fixed"},
            "scheme": {"name": scheme, "sigma": sigma, "noise": "gaussian"},
            "privacy": {"unprotected": True},  # about flows: what noise this small hides has no proof here
        }
    ).build()  # fmt: skip


def distances(e, window, weather):
    """From the optimum after each round, in dB."""
    keys = (f"{n:064x}" for n in range(1, 1000))
    units = [Unit(f"unit {p}", next(keys), next(keys), tuple(next(keys) for _ in range(10))) for p in range(P)]
    prices = price(make(e, units, window=window, adapt=10.0, exchange=1.0, drain=60.0))
    box = rehearsal(prices, e.problem, e.seed)
    network, found = Network(box, weather), []
    for i in range(1, ROUNDS + 1):
        network.run(until=i * SECONDS)
        w = np.array([u.server.books.w for u in box]) * prices.deployed.arithmetic.quantum
        found.append(((w - e.problem.optimum) ** 2).sum(axis=1).mean())
    return 10 * np.log10(found)


def main():
    heals = BEGIN + LASTS
    across = [(3, 4), (4, 3), (7, 0), (0, 7)]
    cuts = [Cut(BEGIN * SECONDS, heals * SECONDS, ("server", a, 0), ("server", b, 0)) for a, b in across]
    print("scheme       window   before    after   ten later")
    for scheme, sigma, windows in (("homomorphic", 0.3, (4, 32)), ("shared", 0.05, (2, 4, 32))):
        for window in windows:
            db = distances(experiment(scheme, sigma), window, Weather(cuts=tuple(cuts)))
            before, later = db[heals - 5 : heals].mean(), db[heals + 10 : heals + 15].mean()
            print(f"{scheme:12} {window:6} {before:8.1f} {db[heals]:8.1f} {later:11.1f}")


if __name__ == "__main__":
    main()
