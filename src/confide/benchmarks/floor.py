"""The random words of a round, and its gradient arithmetic on data that lies in order, for a model of any length.

Nothing else of a round is in it; but loops over the two numbers of the paper's model cost most of it, and the engine,
which unrolls them for short models, can be below it.
"""

from __future__ import annotations

import numpy as np

from confide.engines.kernel import _GAMMA, compiled, compiled_reordering, mix


@compiled
def draw_words(key, count):
    """`count` random words, folded into one so that none can be left out."""
    total = np.uint64(0)
    for _ in range(count):
        key += _GAMMA
        total ^= mix(key)
    return total


@compiled_reordering
def gradients(X, d, w, grad):
    """The squared-loss gradient, sample after sample in the order of memory."""
    for n in range(X.shape[0]):
        z = 0.0
        for m in range(X.shape[1]):
            z += X[n, m] * w[m]
        s = 2.0 * (z - d[n])
        for m in range(X.shape[1]):
            grad[m] += s * X[n, m]
    return grad[0]
