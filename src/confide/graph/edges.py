"""Edge lists: the user's pairs in canonical form, and random ones that are connected."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral

import numpy as np

from confide.base.arrays import Ints
from confide.base.errors import InputError
from confide.base.validation import whole

_DRAWS = 100  # of a random graph, before giving up on a connected one


def canonical(i: Ints, j: Ints) -> Ints:
    """Each pair once, i < j, in order; a server beside itself (a ring of one) drops out."""
    low, high = np.minimum(i, j), np.maximum(i, j)
    base = int(high.max(initial=0)) + 1
    keys = np.sort((low * base + high)[low < high])  # one number for a pair: far faster than sorting rows
    keys = keys[np.diff(keys, prepend=-1) > 0]  # np.unique loads numpy.ma, which takes memory in every client
    return np.stack(np.divmod(keys, base), axis=1).astype(np.int64)


def edge_array(P: int | None, edges: Iterable[Iterable[int]]) -> Ints:
    """The user's pairs, each checked, in canonical form."""
    last = 2**31 - 1 if P is None else whole("graph.P", P, 1) - 1
    try:
        pairs = [tuple(pair) for pair in (edges.tolist() if isinstance(edges, np.ndarray) else edges)]
    except TypeError:
        raise InputError("graph.edges", edges, "must be pairs of servers, such as [(0, 1), (1, 2)]") from None
    for k, pair in enumerate(pairs):
        field = f"graph.edges[{k}]"
        if len(pair) != 2 or not all(isinstance(p, Integral) and not isinstance(p, bool) for p in pair):
            raise InputError(field, pair, "must be a pair of whole numbers (i, j)")
        if not all(0 <= p <= last for p in pair):
            raise InputError(field, pair, f"servers are numbered from 0 to {last}")
        if pair[0] == pair[1]:
            raise InputError(field, pair, "joins a server to itself: leave it out, the rule sets own weights")
    return canonical(*np.array(pairs, dtype=np.int64).reshape(-1, 2).T)


def draw(generator: str, sizes: tuple[float, ...], seed: int, remedy: str) -> Ints:
    """The edges of the first connected graph that networkx draws from the stream of this seed."""
    import networkx as nx

    # one stream: redrawing with seed + 1, seed + 2, ... would give neighbouring seeds the same graph
    stream = nx.utils.create_py_random_state(whole("graph.seed", seed, 0))
    for _ in range(_DRAWS):
        g = getattr(nx, generator)(*sizes, seed=stream)
        if nx.is_connected(g):
            return canonical(*np.array(g.edges, dtype=np.int64).reshape(-1, 2).T)
    raise InputError("graph.seed", seed, f"no connected graph in {_DRAWS} draws; {remedy}")
