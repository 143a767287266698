"""A perceptron's local steps without any client's first layer: in Gram form.

A client's first weights are W - t W + X'D at any time: the unit's, a share t that the regulariser took, and a
combination D of the client's own rows X. What that layer makes of the rows is (1 - t) X W + X X' D. So one product of
all clients' rows with the unit's weights and one Gram matrix X X' of each client stand for all its steps, and the sum
of the updates is one product of all rows with all D. Norms come out of the same matrices: of an example's gradient
|delta| |x|, of an update tr D' X X' D with what the regulariser adds. The bias is a feature that is always 1.

A clip holds for any data. Rows that nearly cancel leave nothing of tr D' X X' D but what the Gram matrix was rounded
by, so that the norm of an update has the most that this may be on top; a row whose square is infinite counts as none.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from confide.engines.device.backend import Array, Backend
from confide.engines.device.clipping import spread
from confide.engines.device.training.cohort import Cohort, Train
from confide.rounds.clipping import Clip

STEPS: Final = 16  # each step is a part of the program of its own
L2: Final = Clip("update", 1.0)
LEAST: Final = 1e-12  # of a bound: squares of what is near it must not vanish in float32

Layer = tuple[Array, Array]  # bias and weight, or how a client's differ from the unit's


class Answers(NamedTuple):
    """What the unit's first layer and the Gram matrix say of clients' rows.

    Attributes:
        x: the rows, (U, L, S, F).
        Z: what the layer makes of them, (U, L, S, H).
        G: their products, and 1, (U, L, S, S).
        labels: (U, L, S).
        picks: which of them are drawn in which step, (U, L, E, B); None: all, in their order.
        fit: whether their squares are numbers, (U, L, S); None without a clip.
    """

    x: Array
    Z: Array
    G: Array
    labels: Array
    picks: Array | None
    fit: Array | None


class Moved(NamedTuple):
    """How clients differ from their unit after their steps.

    Attributes:
        D: by row, (U, L, S, H).
        upper: of each other layer, (U, L, C) and (U, L, H, C).
        taken: t, (U, L).
    """

    D: Array
    upper: list[Layer]
    taken: Array


def fits(steps: int, clip: Clip | None) -> bool:
    """Whether the Gram form does what is asked: an update's l1 norm needs the weights themselves."""
    bounded = clip is None or (clip.bound >= LEAST and (clip.kind, clip.norm) != ("update", "l1"))
    return bounded and steps <= STEPS


def gram(b: Backend, sizes: Sequence[int], rho: float) -> Train:
    """Training of relu layers of these widths, from the features to the classes, with the logarithmic loss.

    A weight is (inputs, outputs), and tensors stand in w as bias and weight, layer by layer.
    """

    def train(w: Array, X: Array, d: Array, cohort: Cohort, clip: Clip | None) -> Array:
        xp, (first, *upper) = b.xp, _layers(b.xp, tuple(sizes), w)
        answers = _answers(b, first, X, d, cohort, clip)
        moved = _steps(b, rho, answers, upper, cohort, clip)
        share = cohort.gives
        if answers.fit is not None and clip is not None and clip.kind == "update":
            whole = xp.where(xp.any(~answers.fit, axis=2), 0.0, share)
            share = whole * _scale(xp, xp.sqrt(_squares(b, rho, answers, first, moved)), clip.bound)
        return _summed(b, rho, answers, first, moved, share)

    return train


def _answers(b: Backend, first: Layer, X: Array, d: Array, cohort: Cohort, clip: Clip | None) -> Answers:
    xp, (U, L, E, B), (bias, weight) = b.xp, cohort.picks.shape, first
    rows, picks = cohort.rows, cohort.picks
    if rows.shape[-1] >= E * B:  # few draws: each counts as a row, and no others are looked at
        rows, picks = b.along(rows, xp.reshape(picks, (U, L, E * B)), -1), None
    x, fit = b.rows(X, rows), None
    if clip is not None:
        fit = xp.isfinite(xp.sum(x * x, axis=3))
        x = xp.where(fit[..., None], x, 0.0)
    flat = xp.reshape(x, (U, -1, x.shape[-1]))
    Z = xp.reshape(b.product(flat, weight), (*rows.shape, -1)) + bias[:, None, None]
    G = b.product(x, xp.swapaxes(x, 2, 3)) + 1.0
    return Answers(x, b.cast(Z, x.dtype), b.cast(G, x.dtype), b.rows(d, rows), picks, fit)


def _steps(b: Backend, rho: float, of: Answers, upper: list[Layer], cohort: Cohort, clip: Clip | None) -> Moved:
    """E steps of size eta on mini-batches  (3)."""
    xp, kind, narrow = b.xp, cohort.eta.dtype, of.x.dtype
    U, L, E, B = cohort.picks.shape
    S, C = of.x.shape[2], upper[-1][0].shape[-1] if upper else of.Z.shape[-1]
    drawn = None if of.picks is None else xp.reshape(of.picks, (U, L, E * B))
    where = None if drawn is None else b.cast(drawn[..., None] == b.arange(S, drawn.dtype), narrow)  # (U, L, E B, S)

    def step_by_step(a: Array) -> Array:
        """Of the rows that are drawn, (U, L, E, B, ...)."""
        if drawn is not None:
            a = b.along(a, xp.reshape(drawn, (U, L, E * B, *(1,) * (len(a.shape) - 3))), 2)
        return xp.reshape(a, (U, L, E, B, *a.shape[3:]))

    among = of.G if where is None else b.cast(b.product(of.G, xp.swapaxes(where, 2, 3)), narrow)
    Z, G = step_by_step(of.Z), step_by_step(among)
    truth = step_by_step(b.cast(xp.where(b.arange(C, of.labels.dtype) == of.labels[..., None], 1.0, 0.0), kind))
    size = None
    if clip is not None and clip.kind == "example":
        size = step_by_step(xp.where(of.fit, _size(xp, of.x, clip), np.inf))
    eta = xp.where(cohort.weights[..., 0] > 0.0, cohort.eta[..., None], b.zeros((), kind))  # 0 of a step that is not

    taken = b.zeros((U, L), kind)
    changes = [(b.zeros((U, L, *c.shape[1:]), kind), b.zeros((U, L, *W.shape[1:]), kind)) for c, W in upper]
    D: list[Array] = []  # of the steps so far
    for e in range(E):
        a = Z[:, :, e]
        if rho:
            a = a - taken[..., None, None] * a
        if D:
            a = a + b.product(G[:, :, e, :, : e * B], xp.concatenate(D, axis=2))
        layers = [(c[:, None] + dc, W[:, None] + dW) for (c, W), (dc, dW) in zip(upper, changes, strict=True)]
        inputs, deltas = _gradients(b, narrow, a, layers, truth[:, :, e])
        factor = cohort.weights[:, :, e] * eta[:, :, e, None]
        if clip is not None and size is not None:
            factor = factor * _inside(b, deltas, inputs, size[:, :, e], clip)
        deltas = [xp.where(factor[..., None] > 0.0, delta * factor[..., None], 0.0) for delta in deltas]
        if rho:
            gone = 2.0 * rho * eta[:, :, e]
            D = [part * (1.0 - gone)[..., None, None] for part in D]
            taken = taken + gone * (1.0 - taken)
            changes = [
                (dc - gone[..., None] * c, dW - gone[..., None, None] * W)
                for (dc, dW), (c, W) in zip(changes, layers, strict=True)
            ]
        D.append(b.cast(-deltas[0], narrow))
        changes = [
            (dc - xp.sum(delta, axis=2), dW - b.product(xp.swapaxes(h, 2, 3), delta))
            for (dc, dW), h, delta in zip(changes, inputs, deltas[1:], strict=True)
        ]
    total = xp.concatenate(D, axis=2)
    return Moved(total if where is None else b.product(xp.swapaxes(where, 2, 3), total), changes, taken)


def _squares(b: Backend, rho: float, of: Answers, first: Layer, moved: Moved) -> Array:
    """Squared l2 norms of the updates and the most that they were rounded by, (U, L)."""
    xp, (bias, weight), D = b.xp, first, moved.D
    found, reach = xp.sum(D * b.product(of.G, D), axis=(2, 3)), xp.sum(_norm(b, D, L2) * _size(xp, of.x, L2), axis=2)
    if rho:
        own = xp.sum(weight * weight, axis=(1, 2)) + xp.sum(bias * bias, axis=1)
        reach = reach + moved.taken * xp.sqrt(own)[:, None]
        found = found + moved.taken * (moved.taken * own[:, None] - 2.0 * xp.sum(of.Z * D, axis=(2, 3)))
    for dc, dW in moved.upper:
        found = found + xp.sum(dc * dc, axis=2) + xp.sum(dW * dW, axis=(2, 3))
    additions = (
        of.x.shape[2] + of.x.shape[3]
    )  # in sums of products, each of which is rounded by an epsilon of its terms
    return found + additions * 0.5 ** (53 if b.width == 8 else 24) * reach * reach


def _summed(b: Backend, rho: float, of: Answers, first: Layer, moved: Moved, share: Array) -> Array:
    """The updates, each with its client's share, added up, (U, M)."""
    xp, (U, L), (bias, weight) = b.xp, share.shape, first

    def shared(a: Array) -> Array:
        """Nothing of a client without a share, be it finite or not."""
        s = xp.reshape(share, (U, L, *(1,) * (len(a.shape) - 2)))
        return xp.where(s > 0.0, s * a, 0.0)

    D, flat = shared(moved.D), xp.reshape(of.x, (U, -1, of.x.shape[-1]))
    found = [xp.sum(D, axis=(1, 2)), b.product(xp.swapaxes(flat, 1, 2), xp.reshape(D, (U, -1, D.shape[-1])))]
    if rho:
        taken = xp.sum(shared(moved.taken), axis=1)
        found = [found[0] - taken[:, None] * bias, found[1] - taken[:, None, None] * weight]
    found += [xp.sum(shared(a), axis=1) for change in moved.upper for a in change]
    return xp.concatenate(b.apart([xp.reshape(a, (U, -1)) for a in found]), axis=1)


def _layers(xp: Array, sizes: tuple[int, ...], w: Array) -> list[Layer]:
    found, at = [], 0
    for a, c in pairwise(sizes):
        found.append((w[:, at : at + c], xp.reshape(w[:, at + c : at + c + a * c], (-1, a, c))))
        at += (a + 1) * c
    return found


def _gradients(b: Backend, kind: Any, a: Array, layers: list[Layer], truth: Array) -> tuple[list[Array], list[Array]]:
    """Inputs of the upper layers, and the gradients in what each layer puts out, the first in `a`."""
    xp, gates, inputs = b.xp, [], []
    for bias, weight in layers:
        gates.append(a > 0.0)
        inputs.append(b.cast(xp.where(gates[-1], a, 0.0), kind))
        a = b.product(inputs[-1], weight) + bias[:, :, None]
    e = xp.exp(a - b.max(a, -1, keepdims=True))
    deltas = [e / xp.sum(e, axis=-1, keepdims=True) - truth]
    for gate, (_, weight) in zip(reversed(gates), reversed(layers), strict=True):
        deltas.append(xp.where(gate, b.product(b.cast(deltas[-1], kind), xp.swapaxes(weight, 2, 3)), 0.0))
    return inputs, deltas[::-1]


def _size(xp: Array, x: Array, clip: Clip) -> Array:
    """The norms of inputs and their 1."""
    return xp.sum(xp.abs(x), axis=3) + 1.0 if clip.norm == "l1" else xp.sqrt(xp.sum(x * x, axis=3) + 1.0)


def _norm(b: Backend, x: Array, clip: Clip) -> Array:
    """Of the last axis, which no square makes vanish: a small delta may stand beside a large input."""
    largest, size = spread(b, x, clip.norm)
    return (largest * size)[..., 0]


def _inside(b: Backend, deltas: list[Array], inputs: list[Array], size: Array, clip: Clip) -> Array:
    """What scales each example's gradient, a product of a delta and an input in every layer, into the bound."""
    sizes = [size, *(_size(b.xp, h, clip) for h in inputs)]
    parts = [_norm(b, delta, clip) * of for delta, of in zip(deltas, sizes, strict=True)]
    return _scale(b.xp, _norm(b, b.xp.stack(parts, axis=-1), clip), clip.bound)


def _scale(xp: Array, norm: Array, bound: float) -> Array:
    """min(1, bound / norm); 0 where the norm, or its square, is not finite."""
    return xp.where(xp.isfinite(norm), bound / xp.where(norm > bound, norm, bound), 0.0)
