"""What the round needs of a framework, so that it is written once.

`xp` is the framework's own module of array functions. Both have under one name, with `axis` and `keepdims`: where, abs,
sqrt, log, exp, cos, sin, isfinite, sum, mean, any, stack, concatenate, broadcast_to, reshape, swapaxes, zeros_like; and
arrays index each other. What they name or mean differently is a method here.

Whole numbers are int64 that wrap around, as PyTorch has no others of 64 bits, and int32 where they are counts or rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from confide.base.errors import InputError

Array = Any  # of the framework
Pytree = Any  # tuples, lists and dicts of arrays


class Backend(ABC):
    """Arrays of one framework on one device, with numbers of one width.

    Attributes:
        float: type of the states: float64 where a run agrees with the reference, else float32.
        device: "cpu" or "gpu".
    """

    name: ClassVar[str]
    xp: Any
    float: Any
    device: str

    # ---- arrays

    @abstractmethod
    def to_device(self, x: NDArray[Any]) -> Array:
        """Of the same type; doubles become `float`."""

    @abstractmethod
    def to_numpy(self, x: Array) -> NDArray[Any]:
        """Once it has been computed."""

    @abstractmethod
    def arange(self, n: int, dtype: Any = None) -> Array:
        """0, ..., n - 1; int64 if not told otherwise."""

    @abstractmethod
    def zeros(self, shape: Sequence[int], dtype: Any = None) -> Array:
        """Of `float` if not told otherwise."""

    @abstractmethod
    def cast(self, x: Array, dtype: Any) -> Array: ...

    @abstractmethod
    def shift_right(self, x: Array, n: int) -> Array:
        """Zeros come in at the left, whatever the sign."""

    @abstractmethod
    def max(self, x: Array, axis: int, keepdims: bool = False) -> Array:
        """NaN where one is among them."""

    @abstractmethod
    def along(self, x: Array, at: Array, axis: int) -> Array:
        """x[..., at[..., n], ...] of one axis, all other axes alike."""

    @abstractmethod
    def added(self, x: Array, at: Array, values: Array) -> Array:
        """x with values added at distinct places of its last axis; all other axes alike. For counts, not for steps."""

    @abstractmethod
    def recorded(self, x: Array, n: Array, value: Array) -> Array:
        """x with x[n] = value, for the one number n."""

    @abstractmethod
    def rows(self, x: Array, at: Array) -> Array:
        """x[at], for rows that exist."""

    @abstractmethod
    def einsum(self, formula: str, *x: Array) -> Array: ...

    @abstractmethod
    def product(self, x: Array, y: Array) -> Array:
        """Of matrices in the last two axes, in the type of x, which may be narrower; sums are float32 at least."""

    @abstractmethod
    def copied(self, x: Array) -> Array: ...

    @property
    def width(self) -> int:
        """Bytes of a number."""
        return 8 if self.float in (np.float64, self.xp.float64) else 4

    @abstractmethod
    def apart(self, parts: list[Array]) -> list[Array]:
        """Each computed by itself: a compiler that fuses them into what joins them makes each number several times."""

    # ---- programs

    @abstractmethod
    def vmap(self, f: Callable[..., Any], axes: Any = 0) -> Callable[..., Any]:
        """f over the first axis of each argument, or where `axes` says None over one argument for all."""

    @abstractmethod
    def grad(self, f: Callable[..., Array]) -> Callable[..., Array]:
        """Of a number in the first argument."""

    @abstractmethod
    def fold(self, n: Any, body: Callable[[Any, Pytree], Pytree], start: Pytree, unroll: bool = False) -> Pytree:
        """body(n - 1, ... body(1, body(0, start))); n may be an array where nothing is unrolled."""

    @abstractmethod
    def scan(self, body: Callable[[Pytree, Pytree], tuple[Pytree, Pytree]], start: Pytree, xs: Pytree) -> Any:
        """(last carry, results one under the other) of body(carry, x) over the first axis of xs."""

    @abstractmethod
    def jit(self, f: Callable[..., Any], donate: tuple[int, ...] = ()) -> Callable[..., Any]:
        """Compiled where the framework does; arguments in `donate` may not be used again."""

    @abstractmethod
    def out_of_memory(self, e: Exception) -> bool: ...

    # ---- numbers

    @abstractmethod
    def exact(self) -> AbstractContextManager[object]:
        """Where the engine works: whole numbers of 64 bits, products of matrices at the states' full precision."""

    @abstractmethod
    def training(self, precision: str = "full") -> AbstractContextManager[object]:
        """Where models are trained, inside `exact`: the framework as its users have it.

        Args:
            precision: of products of matrices, "full" or "fast": what the device does best with float32.
        """


def signed(word: int) -> int:
    """The int64 with these 64 bits.

    >>> signed(2**64 - 1)
    -1
    """
    return word - 2**64 if word >= 2**63 else word


def backend(name: str, device: str | None = None, float: type[np.floating[Any]] = np.float32) -> Backend:
    """The framework of this name: "jax" or "torch".

    Args:
        device: "cpu" or "gpu"; None: a GPU where there is one.

    Raises:
        InputError: it is not installed, or there is no such device.
    """
    if find_spec(name) is None:
        raise InputError("engine", name, f"is not installed: pip install 'confide[{name}]'")
    if name == "jax":
        from confide.engines.device.jax_backend import JaxBackend

        return JaxBackend(device, float)
    from confide.engines.device.torch_backend import TorchBackend

    return TorchBackend(device, float)
