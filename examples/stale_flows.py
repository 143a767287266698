"""What do flows do that arrive after a long cut? A ring of 8 is cut in halves for 40 rounds, with windows of 2 to 32.

While the cut lasts, each side offers the cut edges until their windows are full; when it heals, those old flows enter
all at once. Printed: mean squared distance of the models from the optimum (dB) just before and after the cut heals,
the highest in the ten rounds after, and ten rounds later; "fresh" is the same run without any late flow (W flows void).
"""

import numpy as np

from confide.config import parse
from confide.deploy.agreement import Unit, make, price
from confide.deploy.box import rehearsal
from confide.deploy.network import Cut, Network

P, ROUNDS, BEGIN, LASTS, ROUND = 8, 120, 50, 40, 10.0  # a round takes 10 virtual seconds


def experiment(scheme, sigma):
    return parse(
        {
            "rounds": ROUNDS,
            "graph": {"topology": "ring"},
            "problem": {"units": P, "clients": 10, "samples": 50, "features": 2},
            "algorithm": {"step": 0.3, "sampled": 5, "local_steps": 1, "batch": 5, "clip": "update", "bound": 5.0,
                          "arithmetic": "fixed"},
            "scheme": {"name": scheme, "sigma": sigma, "noise": "gaussian"},
        }
    ).build()  # fmt: skip


def run(e, window, cuts):
    """Mean squared distance from the optimum after each round, over all servers."""
    keys = (f"{n:064x}" for n in range(1, 10_000))
    units = [Unit(f"unit {p}", next(keys), next(keys), tuple(next(keys) for _ in range(10))) for p in range(P)]
    prices = price(make(e, units, window=window, adapt=ROUND, exchange=1.0, drain=60.0))
    box = rehearsal(prices, e.problem, e.seed)
    network = Network(box, weather=cuts)
    quantum, optimum = prices.deployed.arithmetic.quantum, e.problem.optimum
    msd = []
    for i in range(1, ROUNDS + 1):
        network.run(until=i * (ROUND + 2.0))
        w = np.array([u.server.books.w for u in box if u.server]) * quantum
        msd.append(float(((w - optimum) ** 2).sum(axis=1).mean()))
    return np.array(msd)


def main():
    from confide.deploy.network import Weather

    edges = [(3, 4), (7, 0)]  # both ways across the middle of the ring
    ways = [(a, b) for a, b in edges] + [(b, a) for a, b in edges]
    times = BEGIN * (ROUND + 2.0), (BEGIN + LASTS) * (ROUND + 2.0)
    weather = Weather(cuts=tuple(Cut(*times, ("server", a, 0), ("server", b, 0)) for a, b in ways))
    print("scheme        window   before   after    worst   ten later   (dB)")
    for scheme, sigma in (("homomorphic", 0.3), ("shared", 0.05), ("none", 0.0)):
        for window in (2, 4, 8, 32):
            msd = 10 * np.log10(run(experiment(scheme, sigma), window, weather))
            heal = BEGIN + LASTS
            worst = msd[heal : heal + 10].max()
            print(f"{scheme:13} {window:6} {msd[heal - 5:heal].mean():8.1f} {msd[heal]:8.1f} {worst:8.1f} "
                  f"{msd[heal + 10:heal + 15].mean():8.1f}")  # fmt: skip


if __name__ == "__main__":
    main()
