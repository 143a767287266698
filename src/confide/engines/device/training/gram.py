"""A perceptron's local steps without any client's first layer: in Gram form.

A client's first weights are W - t W + X'D at any time: the unit's, a share t that the regulariser took, and a
combination D of the client's own rows X. What that layer makes of the rows is (1 - t) X W + X X' D. So one product of
all clients' rows with the unit's weights and one Gram matrix X X' of each client stand for all its steps, and the sum
of the updates is one product of all rows with all D. Norms come out of the same matrices: of an example's gradient
|delta| |x|, of an update tr D' X X' D with what the regulariser adds. The bias is a feature that is always 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final, NamedTuple

from confide.engines.device.backend import Array, Backend
from confide.engines.device.training.cohort import Cohort, Train
from confide.rounds.clipping import Clip

STEPS: Final = 16  # each step is a part of the program of its own
LEAST: Final = 1e-12  # of a bound: squares of what is near it must not vanish in float32

Layer = tuple[Array, Array]  # bias and weight, or how a client's differ from the unit's


class Rows(NamedTuple):
    """What the clients draw, step by step: (U, L, E, B, ...).

    Attributes:
        Z: what the unit's first layer makes of the rows.
        G: their products, and 1, with all E B rows that are drawn.
        truth: 1 at the label's class.
        size: norm of the row with its 1 (l1), or its square (l2); None where no example is clipped.
    """

    Z: Array
    G: Array
    truth: Array
    size: Array | None


def fits(steps: int, clip: Clip | None) -> bool:
    """Whether the Gram form does what is asked: an update's l1 norm needs the weights themselves."""
    bounded = clip is None or (clip.bound >= LEAST and (clip.kind, clip.norm) != ("update", "l1"))
    return bounded and steps <= STEPS


def fits_registers(b: Backend, sizes: Sequence[int], slots: int, rho: float, clip: Clip | None) -> bool:
    small = len(sizes) == 3 and slots <= 64 and sizes[1] <= 256 and sizes[2] <= 16
    return b.name == "jax" and b.device == "gpu" and clip is None and not rho and small


def gram(b: Backend, sizes: Sequence[int], rho: float, in_registers: bool = False) -> Train:
    """Training of relu layers of these widths, from the features to the classes, with the logarithmic loss.

    A weight is (inputs, outputs), and tensors stand in w as bias and weight, layer by layer.
    """
    return partial(_train, b, tuple(sizes), rho, in_registers)


def _train(
    b: Backend, sizes: tuple[int, ...], rho: float, in_registers: bool, w: Array, X: Array, d: Array, cohort: Cohort,
    clip: Clip | None,
) -> Array:  # fmt: skip
    xp = b.xp
    (bias, weight), *upper = _layers(xp, sizes, w)
    U, L, E, B = cohort.picks.shape
    rows, drawn = cohort.rows, xp.reshape(cohort.picks, (U, L, E * B))
    alone = (
        not in_registers and rows.shape[-1] >= E * B
    )  # few draws: each counts as a row of its own, and no others are looked at
    if alone:
        rows = b.along(rows, drawn, -1)
    x = b.rows(X, rows)  # (U, L, S, F)
    S, H, C = x.shape[2], bias.shape[-1], sizes[-1]
    flat = xp.reshape(x, (U, L * S, -1))
    Z = b.cast(xp.reshape(b.product(flat, weight), (U, L, S, H)) + bias[:, None, None], x.dtype)
    G = b.cast(b.product(x, xp.swapaxes(x, 2, 3)) + 1.0, x.dtype)
    if in_registers:
        total, changes = _in_registers(b, Z, G, d[rows], upper[0], cohort)
        taken = b.zeros((U, L), w.dtype)
    else:
        total, changes, taken = _steps(b, rho, x, Z, G, d[rows], upper, drawn, alone, cohort, clip, C)

    share = cohort.gives
    if clip is not None and clip.kind == "update":
        squares = xp.sum(total * b.product(G, total), axis=(2, 3))
        if rho:
            own = xp.sum(weight * weight, axis=(1, 2)) + xp.sum(bias * bias, axis=1)
            squares = squares + taken * (taken * own[:, None] - 2.0 * xp.sum(Z * total, axis=(2, 3)))
        for dc, dW in changes:
            squares = squares + xp.sum(dc * dc, axis=2) + xp.sum(dW * dW, axis=(2, 3))
        share = share * _scale(xp, xp.sqrt(squares), clip.bound)

    def shared(a: Array) -> Array:
        """Each client's with its share; nothing of one without, finite or not."""
        s = xp.reshape(share, (U, L, *(1,) * (len(a.shape) - 2)))
        return xp.where(s > 0.0, s * a, 0.0)

    total, taken = shared(total), xp.sum(shared(taken), axis=1)
    last = b.product(xp.swapaxes(flat, 1, 2), xp.reshape(total, (U, L * S, H)))
    found = [xp.sum(total, axis=(1, 2)), last]
    if rho:
        found = [found[0] - taken[:, None] * bias, last - taken[:, None, None] * weight]
    found += [xp.sum(shared(a), axis=1) for change in changes for a in change]
    return xp.concatenate(b.apart([xp.reshape(a, (U, -1)) for a in found]), axis=1)


def _steps(
    b: Backend, rho: float, x: Array, Z: Array, G: Array, labels: Array, upper: list[Layer], drawn: Array, alone: bool,
    cohort: Cohort, clip: Clip | None, C: int,
) -> tuple[Array, list[Layer], Array]:  # fmt: skip
    xp, kind, (U, L, E, B), S = b.xp, cohort.eta.dtype, cohort.picks.shape, x.shape[2]
    where = None if alone else b.cast(drawn[..., None] == b.arange(S, drawn.dtype), x.dtype)  # (U, L, E B, S)

    def steps(a: Array) -> Array:
        """From the slots of the rows to the draws."""
        found = a if alone else b.along(a, xp.reshape(drawn, (U, L, E * B, *(1,) * (len(a.shape) - 3))), 2)
        return xp.reshape(found, (U, L, E, B, *a.shape[3:]))

    among = G if where is None else b.cast(b.product(G, xp.swapaxes(where, 2, 3)), x.dtype)
    truth = xp.where(b.arange(C, labels.dtype) == labels[..., None], 1.0, 0.0)
    size = None if clip is None or clip.kind != "example" else _size(xp, b.cast(x, kind), clip)
    asked = Rows(steps(Z), steps(among), steps(b.cast(truth, kind)), None if size is None else steps(size))

    eta = xp.where(
        cohort.weights[..., 0] > 0.0, cohort.eta[..., None], b.zeros((), kind)
    )  # (U, L, E): some do not exist
    taken = b.zeros((U, L), kind)  # t
    changes = [(b.zeros((U, L, *c.shape[1:]), kind), b.zeros((U, L, *W.shape[1:]), kind)) for c, W in upper]
    D: list[Array] = []  # of the steps so far
    for e in range(E):
        a = asked.Z[:, :, e]
        if rho:
            a = a - taken[..., None, None] * a
        if D:
            a = a + b.product(asked.G[:, :, e, :, : e * B], xp.concatenate(D, axis=2))
        layers = [(c[:, None] + dc, W[:, None] + dW) for (c, W), (dc, dW) in zip(upper, changes, strict=True)]
        inputs, deltas = _gradients(b, x.dtype, a, layers, asked.truth[:, :, e])
        factor = cohort.weights[:, :, e] * eta[:, :, e, None]
        if asked.size is not None and clip is not None:
            factor = factor * _inside(xp, deltas, inputs, asked.size[:, :, e], clip)
        deltas = [xp.where(factor[..., None] > 0.0, delta * factor[..., None], 0.0) for delta in deltas]
        if rho:
            gone = 2.0 * rho * eta[:, :, e]
            D = [part * (1.0 - gone)[..., None, None] for part in D]
            taken = taken + gone * (1.0 - taken)
            changes = [
                (dc - gone[..., None] * c, dW - gone[..., None, None] * W)
                for (dc, dW), (c, W) in zip(changes, layers, strict=True)
            ]
        D.append(b.cast(-deltas[0], x.dtype))
        changes = [
            (dc - xp.sum(delta, axis=2), dW - b.product(xp.swapaxes(h, 2, 3), delta))
            for (dc, dW), h, delta in zip(changes, inputs, deltas[1:], strict=True)
        ]
    total = xp.concatenate(D, axis=2)
    if where is not None:
        total = b.product(xp.swapaxes(where, 2, 3), total)  # by slot: (U, L, S, H)

    return total, changes, taken


def _in_registers(
    b: Backend, Z: Array, G: Array, labels: Array, upper: Layer, cohort: Cohort
) -> tuple[Array, list[Layer]]:
    from confide.engines.device.training.gram_kernel import steps

    U, L, S, H = Z.shape
    hit = cohort.picks[..., None] == b.arange(S, cohort.picks.dtype)
    counts = b.xp.sum(b.xp.where(hit, (cohort.weights * cohort.eta[..., None, None])[..., None], 0.0), axis=3)
    Z, G, counts, labels = (a.reshape(U * L, *a.shape[2:]) for a in (Z, G, counts, labels))
    total, change_bias, change = steps(Z, G, counts, labels, *upper)
    return total.reshape(U, L, S, H), [(change_bias.reshape(U, L, -1), change.reshape(U, L, H, -1))]


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
    return (xp.sum(xp.abs(x), axis=3) if clip.norm == "l1" else xp.sum(x * x, axis=3)) + 1.0


def _inside(xp: Array, deltas: list[Array], inputs: list[Array], size: Array, clip: Clip) -> Array:
    """What scales each example's gradient, a product of a delta and an input in every layer, into the bound."""
    sizes = [size, *(_size(xp, h, clip) for h in inputs)]
    if clip.norm == "l1":
        parts = [xp.sum(xp.abs(delta), axis=3) * of for delta, of in zip(deltas, sizes, strict=True)]
        return _scale(xp, sum(parts[1:], parts[0]), clip.bound)
    parts = [xp.sum(delta * delta, axis=3) * of for delta, of in zip(deltas, sizes, strict=True)]
    return _scale(xp, xp.sqrt(sum(parts[1:], parts[0])), clip.bound)


def _scale(xp: Array, norm: Array, bound: float) -> Array:
    """min(1, bound / norm); 0 where the norm, or its square, is not finite."""
    return xp.where(xp.isfinite(norm), bound / xp.where(norm > bound, norm, bound), 0.0)
