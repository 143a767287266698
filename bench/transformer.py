"""A decoder of about ten million parameters on tokens, in plain JAX, as a user would write it."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Array = Any


class Sizes(NamedTuple):
    tokens: int = 256
    width: int = 512
    blocks: int = 3
    heads: int = 8
    length: int = 128
    half: bool = False  # activations in bfloat16

    def init(self, key: Array) -> Any:
        D = self.width
        keys = iter(jax.random.split(key, 2 + 4 * self.blocks))

        def matrix(*shape: int) -> Array:
            return 0.02 * jax.random.normal(next(keys), shape, jnp.float32)

        blocks = [
            {
                "attend": {"norm": jnp.ones(D), "in": matrix(D, 3 * D), "out": matrix(D, D)},
                "think": {"norm": jnp.ones(D), "in": matrix(D, 4 * D), "out": matrix(4 * D, D)},
            }
            for _ in range(self.blocks)
        ]
        return {
            "embed": matrix(self.tokens, D),
            "places": matrix(self.length, D),
            "blocks": blocks,
            "norm": jnp.ones(D),
        }

    def loss(self, params: Any, batch: tuple[Array, Array]) -> Array:
        """Of the next token; a row of X is length + 1 tokens."""
        kind = jnp.bfloat16 if self.half else jnp.float32
        params = jax.tree.map(lambda a: a.astype(kind), params)
        said, (T, D, heads) = batch[0].astype(jnp.int32), (self.length, self.width, self.heads)
        B, mask = said.shape[0], jnp.tril(jnp.ones((T, T), bool))
        x = jax.nn.one_hot(said[:, :-1], self.tokens, dtype=kind) @ params["embed"] + params["places"]
        for block in params["blocks"]:
            a, t = block["attend"], block["think"]
            q, k, v = jnp.moveaxis((norm(x, a["norm"]) @ a["in"]).reshape(B, T, 3, heads, D // heads), 2, 0)
            score = jnp.einsum("bthd,bshd->bhts", q, k).astype(jnp.float32) * (D // heads) ** -0.5
            share = jax.nn.softmax(jnp.where(mask, score, -1e9), axis=-1).astype(kind)
            x = x + jnp.einsum("bhts,bshd->bthd", share, v).reshape(B, T, D) @ a["out"]
            x = x + jax.nn.gelu(norm(x, t["norm"]) @ t["in"]) @ t["out"]
        z = (norm(x, params["norm"]) @ params["embed"].T).astype(jnp.float32)
        truth = jax.nn.one_hot(said[:, 1:], self.tokens, dtype=z.dtype)
        return jnp.mean(jax.nn.logsumexp(z, axis=-1) - jnp.sum(z * truth, axis=-1))

    @property
    def flops(self) -> int:
        """Of one row forward and backward: products alone, 2 for a multiplication and its sum."""
        D, T = self.width, self.length
        return 3 * T * 2 * (12 * D * D * self.blocks + 2 * self.tokens * D + 2 * T * D * self.blocks)


def norm(x: Array, scale: Array) -> Array:
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-6)).astype(x.dtype) * scale
