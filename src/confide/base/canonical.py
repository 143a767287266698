"""One text for one value: canonical JSON, its hash, and files that are read within bounds.

Keys are sorted, there are no spaces, the text is UTF-8. A float is ``{"$float": "0x1.8p+1"}``, its exact bits; a bare
number is a whole number of 64 bits. NaN and infinities have no text. What is read must be the very text that would
have been written, so that equal hashes and equal values are the same thing.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shlex
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from confide.base.errors import InputError, refused

FLOAT = "$float"
_ENCODER = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, check_circular=False
)


def dumps(value: object, field: str = "value") -> str:
    """The canonical text of None, booleans, whole numbers, floats, strings, lists (tuples) and dicts of them.

    >>> dumps({"sigma": 3.0, "L": 11})
    '{"L":11,"sigma":{"$float":"0x1.8000000000000p+1"}}'
    """
    try:
        text = _ENCODER.encode(_tagged(value, field))
        text.encode()
    except RecursionError:
        raise InputError(field, "...", "is nested too deeply") from None
    except UnicodeEncodeError:
        raise InputError(field, value, "holds half of a surrogate pair, which is not text") from None
    return text


def loads(text: str, field: str = "value") -> Any:
    """The value of a canonical text; any other spelling of the same value is refused."""
    value = parse(text, field)
    try:
        same = dumps(value, field) == text
    except InputError as e:
        raise InputError(field, text[:200], f"is not canonical JSON ({e})") from None
    if not same:
        raise InputError(field, text[:200], "is not canonical JSON (sorted keys, no spaces, each key once)")
    return value


def parse(text: str, field: str = "value") -> Any:
    """As `loads`, for callers who compare the text themselves."""
    try:
        return json.loads(text, object_hook=_untagged, parse_float=_bare, parse_constant=_bare)
    except (ValueError, OverflowError, RecursionError) as e:
        raise InputError(field, text[:200], f"is not canonical JSON ({e})") from None


def digest(text: str) -> str:
    """sha256 of the UTF-8 text, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def is_digest(value: object) -> bool:
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")


def check_keys(field: str, value: object, known: Iterable[str]) -> Mapping[str, Any]:
    """A mapping with exactly these keys; what is missing or unknown is named."""
    known = tuple(known)
    if not isinstance(value, Mapping):
        raise InputError(field, value, f"must be a table with {', '.join(known)}")
    for name in known:
        if name not in value:
            raise InputError(f"{field}.{name}", None, "is missing")
    for name in value:
        if name not in known:
            raise InputError(f"{field}.{name}", value[name], f"is unknown; known: {', '.join(known)}")
    return value


def open_regular(path: str | Path, field: str, flags: int, largest: int) -> int:
    """A descriptor of an existing plain file of at most `largest` bytes; never waits, as a pipe would."""
    try:
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as e:
        reason = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
        raise refused(field, str(path), f"cannot be opened ({reason})", "name another", e) from None
    info = os.fstat(fd)
    remedy = ""
    if not stat.S_ISREG(info.st_mode):
        remedy = "is not a file"
    elif info.st_size > largest:
        remedy = f"holds {info.st_size} bytes; at most {largest} are read"
    if remedy:
        os.close(fd)
        raise InputError(field, str(path), remedy)
    return fd


def read_private(path: str | Path, field: str, largest: int) -> bytes:
    """A file that only its owner can read."""
    with open(open_regular(path, field, os.O_RDONLY, largest), "rb") as file:
        if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
            raise InputError(field, str(path), f"can be read by others; chmod 600 {shlex.quote(str(path))}")
        return file.read(largest)


def read_bytes(path: str | Path, field: str, largest: int) -> bytes:
    """The whole of a file, or an error when it holds more than `largest` bytes."""
    with open(open_regular(path, field, os.O_RDONLY, largest), "rb") as file:
        try:
            data = file.read(largest + 1)
        except OSError as e:
            raise refused(field, str(path), f"cannot be read ({e.strerror})", "name another", e) from None
    if len(data) > largest:  # it grew since it was opened
        raise InputError(field, str(path), f"holds more than {largest} bytes")
    return data


def read_text(path: str | Path, field: str, largest: int) -> str:
    """The UTF-8 text of a file, without the end of its last line."""
    try:
        return read_bytes(path, field, largest).decode().removesuffix("\n")
    except UnicodeDecodeError:
        raise InputError(field, str(path), "is not UTF-8 text") from None


def _tagged(value: Any, field: str) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InputError(field, value, "must be finite")
        return {FLOAT: value.hex()}
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise InputError(field, "a whole number", "must fit in 64 bits")
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or key == FLOAT:
                raise InputError(field, key, f"a key must be a string other than {FLOAT!r}")
        return {key: _tagged(item, f"{field}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_tagged(item, f"{field}[{n}]") for n, item in enumerate(value)]
    raise InputError(field, value, f"a {type(value).__name__} has no canonical JSON")


def _untagged(table: dict[str, Any]) -> Any:
    if FLOAT not in table:
        return table
    if len(table) != 1 or not isinstance(table[FLOAT], str):
        raise ValueError(f"{FLOAT} stands alone, with the float's hex in a string")
    return float.fromhex(table[FLOAT])


def _bare(text: str) -> NoReturn:
    raise ValueError(f"{text[:40]} is written in decimals; floats are hex")
