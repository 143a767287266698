"""Named arrays as safetensors files, and a digest of them for plans."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from confide.base.errors import InputError
from confide.base.files import atomic_file

Array = NDArray[Any]

DTYPES: Final = {"float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64"}  # as the format says them


def digest(tensors: Mapping[str, Array]) -> str:
    """sha256 over names, dtypes, shapes and numbers, in the order of the names; in hex.

    >>> a, b = np.zeros((2, 1), np.float32), np.zeros(2, np.float32)
    >>> digest({"a": a, "b": b}) == digest({"b": b, "a": a}), digest({"a": a}) == digest({"a": b})
    (True, False)
    """
    found = hashlib.sha256()
    for name in sorted(tensors):
        a = np.ascontiguousarray(tensors[name])
        a = a.astype(a.dtype.newbyteorder("<")) if a.dtype.byteorder == ">" else a
        head = repr((name, str(a.dtype), a.shape)).encode()
        found.update(len(head).to_bytes(8, "little") + head + a.tobytes())
    return found.hexdigest()


def read(path: str | Path, expected: Mapping[str, Array] | None = None) -> dict[str, Array]:
    """The arrays of a safetensors file.

    Args:
        expected: arrays of the names, shapes and dtypes that may be there; others are refused before they are read.

    Raises:
        InputError: there is no such file, or it holds something else.
    """
    library = _library()
    try:
        with library.safe_open(str(path), "np") as file:
            if expected is not None:
                for name in file.keys():  # noqa: SIM118 - the file is no dictionary
                    part = file.get_slice(name)
                    _check(path, name, str(part.get_dtype()), tuple(part.get_shape()), expected)
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except InputError:
        raise
    except (OSError, library.SafetensorError, ValueError, TypeError) as e:
        raise InputError("model.weights", str(path), f"cannot be read as a safetensors file ({e})") from None


def fitting(path: str | Path, trained: Mapping[str, Array], frozen: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays of a file that has all that is trained, and of what is frozen what it likes."""
    found = read(path, {**frozen, **trained})
    missing = sorted(trained.keys() - found.keys())
    if missing:
        has = ", ".join(sorted(found)[:4]) or "nothing"
        raise InputError("model.weights", str(path), f"has no tensor {missing[0]!r}, which is trained; it has {has}")
    for name in trained:
        if not np.isfinite(found[name].astype(np.float64)).all():
            raise InputError("model.weights", str(path), f"{name!r} holds NaN or infinity")
    return found


def write(path: str | Path, tensors: Mapping[str, Array], about: Mapping[str, str] | None = None) -> None:
    """The whole file, or nothing."""
    data = _library().numpy.save({n: np.ascontiguousarray(a) for n, a in tensors.items()}, dict(about or {}))
    with atomic_file(path) as temporary:
        temporary.write_bytes(data)


def _check(path: str | Path, name: str, dtype: str, shape: tuple[int, ...], expected: Mapping[str, Array]) -> None:
    if name not in expected:
        import difflib

        near = difflib.get_close_matches(name, expected, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        remedy = f"has a tensor {name!r} that the network has not; {hint}the network's are {_some(expected)}"
        raise InputError("model.weights", str(path), remedy)
    wanted = expected[name]
    if shape != wanted.shape:
        remedy = f"{name!r} has shape {shape}, in the network it is {wanted.shape}"
        raise InputError("model.weights", str(path), remedy)
    kind = DTYPES.get(str(wanted.dtype))
    if kind is not None and dtype != kind:
        remedy = f"{name!r} holds {dtype}, in the network it is {kind}; convert the file"
        raise InputError("model.weights", str(path), remedy)


def _some(names: Mapping[str, Any]) -> str:
    return ", ".join(sorted(names)[:6]) + (", ..." if len(names) > 6 else "")


def _library() -> Any:
    try:
        import safetensors
        import safetensors.numpy
    except ModuleNotFoundError:
        remedy = "is not installed: pip install 'confide[jax]' or 'confide[torch]'"
        raise InputError("model.weights", "safetensors", remedy) from None
    return safetensors
