"""A linear or logistic model's local steps on a GPU, a client in each lane: what it draws, adds up and moves stays in
registers.

The words are those of `base.randomness`, so that a run is draw for draw that of the other ways. XLA would write what
every client draws to memory, filled up to the largest E and batch, and read it again.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.experimental import pallas
from jax.experimental.pallas import triton

from confide.base.randomness import GAMMA
from confide.engines.device.backend import Array, Backend, signed
from confide.engines.device.streams import below, mix
from confide.engines.device.training.cohort import Cohort, Train
from confide.engines.device.training.margins import Slopes
from confide.rounds.clipping import Clip

SMALL: Final = 1e-15  # below it squares vanish, and the larger norm stands for the l2 norm
LANES: Final = 32  # of a program, whose clients wait for the longest of them


def registers(b: Backend, slopes: Slopes, rho: float, interpret: bool = False) -> Train:
    """Training of a model with few features that draws with replacement."""

    def train(w: Array, X: Array, d: Array, cohort: Cohort, clip: Clip | None) -> Array:
        with jax.enable_x64(True):  # the words are of 64 bits
            return side_by_side(w, X, d, cohort, clip)

    def side_by_side(w: Array, X: Array, d: Array, cohort: Cohort, clip: Clip | None) -> Array:
        U, L = cohort.eta.shape
        M, C = w.shape[1], U * L
        numbers = [X, d[:, None], *[d[:, None]] * (M % 2 == 0)]  # two of them in a word: what takes time is loads
        table = jax.lax.bitcast_convert_type(jnp.concatenate(numbers, axis=1).reshape(len(X), -1, 2), jnp.int64)
        programs = -(-C // LANES)

        def lanes(a: Array) -> Array:
            flat = a.reshape(*a.shape[: a.ndim - 2], C)
            return jnp.pad(flat, [(0, 0)] * (flat.ndim - 1) + [(0, programs * LANES - C)], mode="edge")

        a_lane, of_all = pallas.BlockSpec((LANES,), lambda n: (n,)), pallas.BlockSpec((M, LANES), lambda n: (0, n))
        call = pallas.pallas_call(
            partial(_client, b, slopes, rho, clip),
            out_shape=jax.ShapeDtypeStruct((M, programs * LANES), w.dtype),
            grid=(programs,),
            in_specs=[
                *[a_lane] * 6,
                of_all,
                pallas.BlockSpec(table.shape, lambda n: (0, 0)),
            ],
            out_specs=of_all,
            interpret=interpret,
            compiler_params=triton.CompilerParams(num_warps=LANES // 32, num_stages=1),
        )
        E, batch = cohort.E.astype(jnp.int32), cohort.batch.astype(jnp.int32)
        clients = (cohort.key, cohort.first, cohort.size, E, batch, cohort.eta)
        handed_out = jnp.broadcast_to(w.T[:, :, None], (M, U, L))
        delta = call(*(lanes(a) for a in clients), lanes(handed_out), table)[:, :C].reshape(M, U, L)
        return jnp.sum(jnp.where(cohort.gives > 0.0, delta, 0.0), axis=2).T

    return train


def _client(b: Backend, slopes: Slopes, rho: float, clip: Clip | None, *refs: Any) -> None:
    """LANES clients: E steps of size eta from w, each on a mini-batch of their rows, into `out`  (3)."""
    key, first, size, E, batch, eta, w, table, out = refs
    features = range(w.shape[0])
    start, row0, rows, B, steps = [w[m, :] for m in features], first[:], size[:], batch[:], E[:] * batch[:]
    shrink, share = eta[:], 1.0 / B.astype(w.dtype)

    def numbers(row: Array) -> list[Array]:
        """Of a row of the table: the features and the label."""
        found = []
        for n in range(table.shape[1]):
            both = table[row, n]
            halves = both, jax.lax.shift_right_logical(both, jnp.int64(32))
            found += [jax.lax.bitcast_convert_type(half.astype(jnp.int32), jnp.float32) for half in halves]
        return found

    def draw(n: Array, carry: Any) -> Any:
        key, so_far, deltas, sums = carry
        key = key + jnp.int64(signed(GAMMA))
        row = row0 + below(b, mix(b, key), rows).astype(row0.dtype)
        *x, label = numbers(row)[: len(start) + 1]
        phi = [a + delta for a, delta in zip(start, deltas, strict=True)]
        z = sum((u * a for u, a in zip(x[1:], phi[1:], strict=True)), x[0] * phi[0])
        slope = slopes(b, z[:, None], label).reshape(z.shape)
        if clip is not None and clip.kind == "example":
            inside = _inside(_norm(x, clip) * jnp.abs(slope), clip.bound)
            slope = jnp.where(inside > 0.0, slope * inside, 0.0)
        sums = [s + slope * u for s, u in zip(sums, x, strict=True)]
        so_far = so_far + 1
        full = so_far == B
        moved = [
            jnp.where(full & (n < steps), delta - shrink * (s * share + 2.0 * rho * a), delta)
            for delta, s, a in zip(deltas, sums, phi, strict=True)
        ]
        return key, jnp.where(full, 0, so_far), moved, [jnp.where(full, 0.0, s) for s in sums]

    nothing = [jnp.zeros_like(a) for a in start]
    deltas = jax.lax.fori_loop(0, jnp.max(steps), draw, (key[:], jnp.zeros_like(B), nothing, nothing))[2]
    if clip is not None and clip.kind == "update":
        inside = _inside(_norm(deltas, clip), clip.bound)
        deltas = [jnp.where(inside > 0.0, inside * a, 0.0) for a in deltas]
    for m in features:
        out[m, :] = deltas[m]


def _norm(v: list[Array], clip: Clip) -> Array:
    l1 = sum((jnp.abs(a) for a in v[1:]), jnp.abs(v[0]))
    if clip.norm == "l1":
        return l1
    l2 = jnp.sqrt(sum((a * a for a in v[1:]), v[0] * v[0]))
    return jnp.where(l2 < SMALL, l1, l2)


def _inside(norm: Array, bound: float) -> Array:
    return jnp.where(norm < jnp.inf, bound / jnp.maximum(norm, bound), 0.0)
