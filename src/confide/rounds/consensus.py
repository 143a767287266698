"""The paper's consensus-type step: after training the servers combine their models without noise, and come to agree.

With homomorphic noise the mean of the models is nearly without error, and t combinations w <- A w bring every server
near it. What they send then are their models in clear: `privacy.release = "consensus:T"` has its price, which is that
of showing every model to whoever listens (`local`), a leak where the state keeps a clean share (carry > 0).
`theory.prediction.after_consensus` has the expected error.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from confide.base.arrays import Floats
from confide.base.validation import whole
from confide.graph.graph import Graph


def consensus(models: Floats, graph: Graph | Sequence[Graph], combinations: int) -> Floats:
    """The models after so many clean combinations; their mean stays.

    Args:
        models: of all servers, shape (..., P, M), such as `Run.models`.
        graph: one, or several that take turns, which begin anew.

    >>> consensus(np.array([[0.0], [1.0]]), Graph.path(2, weights="metropolis"), 1)
    array([[0.5],
           [0.5]])
    """
    graphs = [graph] if isinstance(graph, Graph) else list(graph)
    w = np.moveaxis(np.array(models, dtype=np.float64), -2, 0)  # servers first
    for t in range(whole("combinations", combinations, 0)):
        g = graphs[t % len(graphs)]
        g.check_units(len(w))
        i, j = g.edges.T
        flow = g.edge_weights.reshape(-1, *[1] * (w.ndim - 1)) * (w[j] - w[i])
        np.add.at(w, i, flow)
        np.subtract.at(w, j, flow)
    return np.moveaxis(w, 0, -2)
