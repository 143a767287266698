"""PyTorch behind `Backend`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils import _pytree as pytree

from confide.base.errors import InputError
from confide.engines.device.backend import Array, Backend, Pytree


class TorchBackend(Backend):
    name = "torch"
    xp = torch

    def __init__(self, device: str | None, float: type[np.floating[Any]]) -> None:
        if device == "gpu" and not torch.cuda.is_available():
            remedy = "PyTorch finds no GPU here; use 'cpu', or install PyTorch with CUDA"
            raise InputError("device", device, remedy)
        self.device = device or ("gpu" if torch.cuda.is_available() else "cpu")
        self.float = torch.float64 if float is np.float64 else torch.float32
        self._device = torch.device("cuda" if self.device == "gpu" else "cpu")

    def to_device(self, x: NDArray[Any]) -> Array:
        found = torch.from_numpy(np.array(x))  # a copy: the array may be mapped from a file, which nobody may write to
        return found.to(self._device, self.float if x.dtype.kind == "f" else None)

    def to_numpy(self, x: Array) -> NDArray[Any]:
        return np.asarray(x.detach().cpu().numpy())

    def arange(self, n: int, dtype: Any = None) -> Array:
        return torch.arange(n, dtype=dtype or torch.int64, device=self._device)

    def zeros(self, shape: Sequence[int], dtype: Any = None) -> Array:
        return torch.zeros(tuple(shape), dtype=dtype or self.float, device=self._device)

    def cast(self, x: Array, dtype: Any) -> Array:
        return torch.as_tensor(x, device=self._device).to(dtype)

    def shift_right(self, x: Array, n: int) -> Array:
        bits = 64 if x.dtype == torch.int64 else 32
        return (x >> n) & ((1 << (bits - n)) - 1)

    def max(self, x: Array, axis: int, keepdims: bool = False) -> Array:
        return torch.amax(x, dim=axis, keepdim=keepdims)

    def along(self, x: Array, at: Array, axis: int) -> Array:
        return torch.take_along_dim(x, at.long(), dim=axis)

    def added(self, x: Array, at: Array, values: Array) -> Array:
        return x.scatter_add_(-1, at.long(), values)

    def recorded(self, x: Array, n: Array, value: Array) -> Array:
        x[n] = value
        return x

    def copied(self, x: Array) -> Array:
        return x.clone()

    def out_of_memory(self, e: Exception) -> bool:
        return isinstance(e, torch.OutOfMemoryError) or "allocate memory" in str(e)

    def einsum(self, formula: str, *x: Array) -> Array:
        return torch.einsum(formula, *x)

    def product(self, x: Array, y: Array) -> Array:
        found = torch.matmul(x, y.to(x.dtype))
        return found if x.dtype == self.float else found.to(self.float)

    def apart(self, parts: list[Array]) -> list[Array]:
        return parts

    def rows(self, x: Array, at: Array) -> Array:
        return x[at]

    def vmap(self, f: Callable[..., Any], axes: Any = 0) -> Callable[..., Any]:
        mapped: Callable[..., Any] = torch.func.vmap(f, axes)
        return mapped

    def grad(self, f: Callable[..., Array]) -> Callable[..., Array]:
        found: Callable[..., Array] = torch.func.grad(f)
        return found

    def fold(self, n: Any, body: Callable[[Any, Pytree], Pytree], start: Pytree, unroll: bool = False) -> Pytree:
        for i in range(int(n)):
            start = body(i, start)
        return start

    def scan(self, body: Callable[[Pytree, Pytree], tuple[Pytree, Pytree]], start: Pytree, xs: Pytree) -> Any:
        leaves, spec = pytree.tree_flatten(xs)
        carry, found = start, []
        for n in range(len(leaves[0])):
            carry, one = body(
                carry, pytree.tree_unflatten([None if leaf is None else leaf[n] for leaf in leaves], spec)
            )
            found.append(one)
        return carry, pytree.tree_map(lambda *each: torch.stack(each), *found)

    def jit(self, f: Callable[..., Any], donate: tuple[int, ...] = ()) -> Callable[..., Any]:
        return f

    @contextmanager
    def exact(self) -> Iterator[None]:
        with torch.no_grad(), _products("highest"):
            yield

    @contextmanager
    def training(self, precision: str = "full") -> Iterator[None]:
        with _products("highest" if precision == "full" else "high"):
            yield


@contextmanager
def _products(precision: str) -> Iterator[None]:
    """How float32 matrices are multiplied meanwhile; afterwards it is as the user had it."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
