"""The steps of the Gram form on a GPU with all that a client moves in registers: one hidden layer, no clip.

A program is a client. It takes every step over all rows of the client, each weighted by how often it was drawn.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.experimental import pallas
from jax.experimental.pallas import triton

Array = Any
WARPS: Final = 8
MOST: Final = (64, 256, 16)  # rows, hidden, classes: what registers hold


def steps(
    Z: Array,
    G: Array,
    counts: Array,
    labels: Array,
    bias: Array,
    weight: Array,
    *,
    interpret: bool = False,
    warps: int = WARPS,
) -> tuple[Array, Array, Array]:
    """What a client's rows are combined with, (n, S, H), and how its upper layer changes, (n, C) and (n, H, C).

    Args:
        Z: what the unit's first layer makes of the rows, (n, S, H).
        G: products of the rows, and 1, (n, S, S).
        counts: weight of each row in each step, times eta, (n, E, S).
        labels: (n, S).
        bias, weight: of the units' upper layers, (U, C) and (U, H, C); client n is of unit n U // n.
    """
    n, S, H = Z.shape
    U, C = bias.shape
    wide = [max(16, 1 << (size - 1).bit_length()) for size in (S, H, C)]

    def whole(a: Array) -> pallas.BlockSpec:
        return pallas.BlockSpec((1, *a.shape[1:]), lambda c: (c, *(0,) * (a.ndim - 1)))

    def of_unit(a: Array) -> pallas.BlockSpec:
        return pallas.BlockSpec((1, *a.shape[1:]), lambda c: (c // (n // U), *(0,) * (a.ndim - 1)))

    shapes = [
        jax.ShapeDtypeStruct(s, k) for s, k in (((n, S, H), Z.dtype), ((n, C), bias.dtype), ((n, H, C), bias.dtype))
    ]
    call = pallas.pallas_call(
        partial(_client, *wide),
        out_shape=shapes,
        grid=(n,),
        in_specs=[*(whole(a) for a in (Z, G, counts, labels)), of_unit(bias), of_unit(weight)],
        out_specs=[whole(a) for a in shapes],
        interpret=interpret,
        compiler_params=triton.CompilerParams(num_warps=warps, num_stages=1),
    )
    total, change_bias, change = call(Z, G, counts, labels, bias, weight)
    return total, change_bias, change


def _client(
    Sw: int, Hw: int, Cw: int, Z: Any, G: Any, counts: Any, labels: Any, bias: Any, weight: Any, *out: Any
) -> None:
    (_, S, H), (_, E, _), C, kind = Z.shape, counts.shape, bias.shape[1], Z.dtype
    s, s2, h, c = jnp.arange(Sw)[:, None], jnp.arange(Sw)[None, :], jnp.arange(Hw)[None, :], jnp.arange(Cw)[None, :]
    h2 = jnp.arange(Hw)[:, None]

    def load(ref: Any, at: tuple[Array, ...], mask: Array, other: Any = 0.0) -> Array:
        return triton.load(ref.at[(0, *at)], mask=mask, other=other)

    gram = load(G, (s, s2), (s < S) & (s2 < S))
    first = load(Z, (s, h), (s < S) & (h < H))
    own = load(labels, (jnp.arange(Sw),), jnp.arange(Sw) < S, -1)[:, None] == c
    W = load(weight, (h2, c), (h2 < H) & (c < C))
    b0 = load(bias, (jnp.arange(Cw),), jnp.arange(Cw) < C, -1e30)
    D = jnp.zeros((Sw, Hw), W.dtype)
    for e in range(E):
        a = first.astype(W.dtype)
        if e:
            a = a + jnp.dot(gram, D.astype(kind), preferred_element_type=jnp.float32)
        inside = jnp.maximum(a, 0.0).astype(kind)
        z = jnp.dot(inside, W.astype(kind), preferred_element_type=jnp.float32) + b0[None, :]
        z = jnp.exp(z - jnp.max(z, axis=1)[:, None])
        factor = load(counts, (e, jnp.arange(Sw)), jnp.arange(Sw) < S)
        off = (jnp.where(own, 1.0, 0.0) - z / jnp.sum(z, axis=1)[:, None]) * factor[:, None]  # minus the gradient
        narrow = off.astype(kind)
        back = jnp.dot(narrow, W.astype(kind).T, preferred_element_type=jnp.float32)
        D = D + jnp.where(a > 0.0, back, 0.0)
        W = W + jnp.dot(inside.T, narrow, preferred_element_type=jnp.float32)
        b0 = b0 + jnp.sum(off, axis=0)
    total, change_bias, change = out
    triton.store(total.at[0, s, h], D.astype(kind), mask=(s < S) & (h < H))
    was = load(bias, (jnp.arange(Cw),), jnp.arange(Cw) < C)
    triton.store(change_bias.at[0, jnp.arange(Cw)], b0 - was, mask=jnp.arange(Cw) < C)
    triton.store(change.at[0, h2, c], W - load(weight, (h2, c), (h2 < H) & (c < C)), mask=(h2 < H) & (c < C))
