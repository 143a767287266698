"""A privacy scheme of your own: a scheme is data, so a row is enough. See docs/adding-a-scheme.md."""

import confide
from confide.laws.law import GAUSSIAN
from confide.rounds.schemes import Noise, Place, Scheme

# Keep a quarter of the clean model in the own state, publish with Gaussian noise.
quarter = Scheme("quarter", GAUSSIAN, (Noise(Place.SERVER, 0.3),), carry=0.25)

graph = confide.Graph.ring(10)
run = confide.simulate(confide.problems.regression(), graph, confide.GFL(scheme=quarter), rounds=300, repeats=4)
print(run)
print("noise that reaches each state, by server drawn:\n", quarter.wiring(graph).R[0][0].round(3))
