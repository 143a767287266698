"""Schemes with memory or with noise that depends on the receiver, which no part takes but the general ones."""

from __future__ import annotations

import numpy as np

from confide.graph.graph import Graph
from confide.rounds.schemes import Noise, Place, Scheme, scheme


def elsewhere(graph: Graph) -> np.ndarray:
    """An edge's noise reaches those who are not at its ends: where all weights are equal it cancels at each of them."""
    weights = np.ones((len(graph.edges), graph.P))
    weights[np.arange(len(graph.edges))[:, None], graph.edges] = 0.0
    return weights


def uneven(graph: Graph) -> np.ndarray:
    return np.random.default_rng(3).uniform(-1.0, 2.0, (graph.P, graph.P))


CANCELS = Scheme("cancels", "gaussian", (Noise(Place.EDGE, 0.8),), receivers=elsewhere)
CORRELATED = Scheme("correlated", "gaussian", (Noise(Place.SERVER, 0.7, taps=(1.0, -0.9)),))
CANCELS_EVERYWHERE = scheme("cancel-at-receiver", 0.7, noise="gaussian")  # whatever the graph
OWN = [
    CANCELS,
    CANCELS_EVERYWHERE,
    CORRELATED,
    Scheme("keeps", "gaussian", (Noise(Place.SERVER, 0.7, taps=(0.5, -0.2, 0.4)),), carry=None),
    Scheme("links", "gaussian", (Noise(Place.LINK, 0.7, taps=(1.0, -0.9)), Noise(Place.OWN, 0.3, taps=(1.0, 0.5)))),
    Scheme("pairs", "gaussian", (Noise(Place.SERVER, 0.7), Noise(Place.EDGE, 1.5, taps=(1.0, 0.5))), carry=0.3),
    Scheme("uneven", "gaussian", (Noise(Place.SERVER, 0.7, taps=(1.0, -0.9)),), carry=0.3, receivers=uneven),
    Scheme("around", "gaussian", (Noise(Place.AROUND, 0.7, taps=(1.0, 0.5)), Noise(Place.SERVER, 0.4)), carry=0.3),
    Scheme("mixed", "gaussian", (Noise(Place.LINK, 0.7), Noise(Place.SERVER, 0.4)), carry=0.3),
]
