"""JAX behind `Backend`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from confide.base.errors import InputError
from confide.engines.device.backend import Array, Backend, Pytree

IN_ONE_GRAPH: Final = {
    # A loop over rounds that runs on the GPU by itself: else the host is asked after each round whether another comes,
    # which took 25 of 65 microseconds of a round of the regression on an H200 (JAX 0.11.2, no training).
    "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,DYNAMIC_SLICE_FUSION,WHILE,CONDITIONAL",
    "xla_gpu_graph_min_graph_size": "1",
}


class JaxBackend(Backend):
    name = "jax"
    xp = jnp

    def __init__(self, device: str | None, float: type[np.floating[Any]]) -> None:
        self.float = float
        try:
            self._device = jax.devices(device)[0]
        except RuntimeError as e:
            remedy = f"JAX finds no GPU here ({str(e).splitlines()[0]}); use 'cpu', or install JAX with CUDA"
            raise InputError("device", device, remedy) from None
        self.device = "cpu" if self._device.platform == "cpu" else "gpu"
        self._options = IN_ONE_GRAPH if self.device == "gpu" else None

    def to_device(self, x: NDArray[Any]) -> Array:
        with self.exact():
            return jax.device_put(x.astype(self.float) if x.dtype.kind == "f" else x, self._device)

    def to_numpy(self, x: Array) -> NDArray[Any]:
        return np.asarray(x)

    def arange(self, n: int, dtype: Any = None) -> Array:
        return jnp.arange(n, dtype=jnp.int64 if dtype is None else dtype)

    def zeros(self, shape: Sequence[int], dtype: Any = None) -> Array:
        return jnp.zeros(tuple(shape), self.float if dtype is None else dtype)

    def cast(self, x: Array, dtype: Any) -> Array:
        return jnp.asarray(x).astype(dtype)

    def shift_right(self, x: Array, n: int) -> Array:
        return jax.lax.shift_right_logical(x, jnp.asarray(n, x.dtype))

    def max(self, x: Array, axis: int, keepdims: bool = False) -> Array:
        return jnp.max(x, axis=axis, keepdims=keepdims)

    def along(self, x: Array, at: Array, axis: int) -> Array:
        return jnp.take_along_axis(x, at, axis=axis, mode="promise_in_bounds")

    def added(self, x: Array, at: Array, values: Array) -> Array:
        before = tuple(jnp.arange(n).reshape(-1, *(1,) * (at.ndim - 1 - a)) for a, n in enumerate(at.shape[:-1]))
        return x.at[(*before, at)].add(values, mode="promise_in_bounds", unique_indices=True)

    def recorded(self, x: Array, n: Array, value: Array) -> Array:
        return jax.lax.dynamic_update_index_in_dim(x, value.astype(x.dtype), n, 0)

    def copied(self, x: Array) -> Array:
        return jnp.array(x, copy=True)

    def out_of_memory(self, e: Exception) -> bool:
        return isinstance(e, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(e)

    def einsum(self, formula: str, *x: Array) -> Array:
        return jnp.einsum(formula, *x)

    def product(self, x: Array, y: Array) -> Array:
        return jnp.matmul(x, y.astype(x.dtype), preferred_element_type=jnp.promote_types(x.dtype, jnp.float32))

    def apart(self, parts: list[Array]) -> list[Array]:
        found: list[Array] = jax.lax.optimization_barrier(parts)
        return found

    def rows(self, x: Array, at: Array) -> Array:
        return x.at[at].get(mode="promise_in_bounds")

    def vmap(self, f: Callable[..., Any], axes: Any = 0) -> Callable[..., Any]:
        mapped: Callable[..., Any] = jax.vmap(f, axes)
        return mapped

    def grad(self, f: Callable[..., Array]) -> Callable[..., Array]:
        found: Callable[..., Array] = jax.grad(f)
        return found

    def fold(self, n: Any, body: Callable[[Any, Pytree], Pytree], start: Pytree, unroll: bool = False) -> Pytree:
        if not unroll:
            return jax.lax.fori_loop(0, n, body, start)
        for i in range(n):
            start = body(i, start)
        return start

    def scan(self, body: Callable[[Pytree, Pytree], tuple[Pytree, Pytree]], start: Pytree, xs: Pytree) -> Any:
        return jax.lax.scan(body, start, xs)

    def jit(self, f: Callable[..., Any], donate: tuple[int, ...] = ()) -> Callable[..., Any]:
        compiled: Callable[..., Any] = jax.jit(f, donate_argnums=donate, compiler_options=self._options)
        return compiled

    @contextmanager
    def exact(self) -> Iterator[None]:
        # Only here and in this thread, so that the user's own JAX keeps the types that it has.
        with jax.enable_x64(True), jax.default_matmul_precision("highest"), jax.default_device(self._device):
            yield

    @contextmanager
    def training(self, precision: str = "full") -> Iterator[None]:
        multiplied = "highest" if precision == "full" else "default"
        with jax.enable_x64(self.float == np.float64), jax.default_matmul_precision(multiplied):
            yield
