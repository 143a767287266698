"""Named arrays as safetensors files, and a digest of them for plans.

The format is eight bytes, a header in JSON and the numbers; a server reads it without any framework.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from confide.base.errors import InputError
from confide.base.files import atomic_file

Array = NDArray[Any]

LARGEST_HEADER: Final = 100_000_000  # of the format
_NUMPY: Final = {  # the format's words
    "BOOL": "bool", "F16": "float16", "F32": "float32", "F64": "float64",
    **{f"{kind[0].upper()}{bits}": f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
}  # fmt: skip
DTYPES: Final = {name: word for word, name in _NUMPY.items()} | {"bfloat16": "BF16"}


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
    try:
        with open(path, "rb") as file:
            parts, first = _parts(file)
            if expected is not None:
                for name, part in parts.items():
                    _check(path, name, part.dtype, part.shape, expected)
            found = {}
            for name, part in parts.items():
                file.seek(first + part.begin)
                found[name] = np.frombuffer(file.read(part.size), _dtype(part.dtype)).reshape(part.shape)
            return found
    except InputError:
        raise
    except (OSError, ImportError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise InputError("model.weights", str(path), f"cannot be read as a safetensors file ({e})") from None


class _Part(NamedTuple):
    """Where the file has one array, behind its header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    size: int


def _parts(file: BinaryIO) -> tuple[dict[str, _Part], int]:
    """What the header says, which must be all of the file and nothing else; and where the header ends."""
    length = int.from_bytes(file.read(8), "little")
    behind = os.fstat(file.fileno()).st_size - 8 - length
    if length > LARGEST_HEADER or behind < 0:
        raise ValueError("its header is cut off")
    header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    found = {}
    for name, said in header.items():
        begin, end = said["data_offsets"]
        found[name] = _Part(said["dtype"], tuple(said["shape"]), begin, end - begin)
    at = 0
    for name, part in sorted(found.items(), key=lambda item: item[1].begin):
        if part.begin != at or part.size != math.prod(part.shape) * _dtype(part.dtype).itemsize:
            raise ValueError(f"the bytes of {name!r} are not as many as its shape")
        at += part.size
    if at != behind:
        raise ValueError(f"it has {behind} bytes of numbers, its header speaks of {at}")
    return found, 8 + length


def _dtype(name: str) -> np.dtype[Any]:
    if name == "BF16":
        import ml_dtypes  # comes with JAX, which alone gives NumPy such numbers

        found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return found
    return np.dtype(_NUMPY[name]).newbyteorder("<")


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
    header: dict[str, Any] = {"__metadata__": dict(about)} if about else {}
    end, ordered = 0, sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))  # so all are aligned
    for name in ordered:
        a, begin, end = tensors[name], end, end + tensors[name].nbytes
        if str(a.dtype) not in DTYPES:
            raise InputError("model.weights", f"{name}: {a.dtype}", "has no place in a safetensors file")
        header[name] = {"dtype": DTYPES[str(a.dtype)], "shape": a.shape, "data_offsets": (begin, end)}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with atomic_file(path) as temporary, open(temporary, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in ordered:
            a = tensors[name]
            file.write((a if str(a.dtype) == "bfloat16" else a.astype(a.dtype.newbyteorder("<"))).tobytes())


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
