"""Privacy schemes of your own: a scheme is data, so rows of noise are enough. See docs/adding-a-scheme.md."""

import confide
from confide.laws.law import GAUSSIAN
from confide.rounds.schemes import Noise, Place, Scheme

# Keep a quarter of the clean model in the own state, publish with Gaussian noise.
quarter = Scheme("quarter", GAUSSIAN, (Noise(Place.SERVER, 0.3),), carry=0.25)

graph = confide.Graph.ring(10)
run = confide.simulate(confide.problems.regression(), graph, confide.GFL(scheme=quarter), rounds=300, repeats=4)
print(run)
print("noise that reaches each state, by server drawn:\n", quarter.wiring(graph).R[0][0].round(3))

# Noise that takes most of the last round's back: the reference engine runs it, the general accountant prices it.
correlated = Scheme("correlated", "gaussian", (Noise(Place.SERVER, 0.3, taps=(1.0, -0.9)),))
algorithm = confide.GFL(scheme=correlated, step=0.1, clip=confide.Clip("example", 1.0))
settings = confide.Privacy(level="unit")
print(confide.simulate(confide.problems.regression(), graph, algorithm, rounds=30, privacy=settings))
