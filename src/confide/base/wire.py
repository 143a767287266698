"""Messages as bytes: MessagePack for the form, pydantic for the meaning, a size limit before either.

A message is a frozen pydantic dataclass with strict fields; on the wire it is the list [kind, field, field, ...].
Whatever is not exactly such a list is a `MalformedError`, and nothing else is ever raised.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final, TypeVar, get_args

import msgpack
from pydantic import ConfigDict, ValidationError

STRICT = ConfigDict(strict=True)
Message = TypeVar("Message")
LONG: Final = 1 << 16  # bytes whose length MessagePack writes as four
_BIN: Final = struct.Struct(">BI")


class MalformedError(ValueError):
    """Bytes that are no message, or not one that is allowed here."""


def kinds(messages: Any, prefix: str = "") -> dict[str, Any]:
    """One kind of message, or a union of them, by the word that stands first on the wire."""
    return {prefix + kind.__name__: kind for kind in get_args(messages) or [messages]}


def encode(message: Any, prefix: str = "") -> bytes:
    values = [prefix + type(message).__name__, *(getattr(message, name) for name in message.__dataclass_fields__)]
    last = values[-1]
    if not isinstance(last, bytes) or len(last) < LONG:
        return bytes(msgpack.packb(values))
    packer = msgpack.Packer(autoreset=False)
    packer.pack_array_header(len(values))
    for value in values[:-1]:
        packer.pack(value)
    return b"".join((packer.bytes(), _BIN.pack(0xC6, len(last)), last))  # what is long is copied once


def decode(raw: bytes, kinds: Mapping[str, type[Message]], largest: int) -> Message:
    """The message, of one of the kinds that may come now and of at most `largest` bytes."""
    if len(raw) > largest:
        raise MalformedError(f"{len(raw)} bytes, at most {largest} are allowed")
    try:
        content = msgpack.unpackb(raw, use_list=False, max_ext_len=0, max_map_len=0)
    except (ValueError, msgpack.UnpackException, RecursionError) as e:
        raise MalformedError(f"no message: {type(e).__name__}") from None
    if not isinstance(content, tuple) or not content or not isinstance(content[0], str) or content[0] not in kinds:
        raise MalformedError(f"must be one of {', '.join(kinds)}")
    kind = kinds[content[0]]
    expected = len(kind.__dataclass_fields__)  # type: ignore[attr-defined] # `fields` makes a new tuple every time
    if len(content) - 1 != expected:
        raise MalformedError(f"{content[0]} has {expected} fields")
    try:
        return kind(*content[1:])
    except ValidationError as e:
        raise MalformedError(f"{content[0]}: {_places(e)}") from None  # places and reasons, never values


def _places(error: ValidationError) -> str:
    first = error.errors(include_input=False, include_context=False, include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
