"""The passphrase of encrypted keys: from a file, from a descriptor that whoever starts the process opens, or typed."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Final

from confide.base import canonical
from confide.base.errors import InputError
from confide.secure.keys import Secret

SOURCES: Final = "file:PATH, fd:NUMBER or prompt"
LEAST: Final = 20  # bytes of a new one: the format of the key files makes a guess cheap
LARGEST: Final = 1023  # bytes, of what OpenSSL takes


def new_passphrase(source: str) -> Secret:
    """As `read_passphrase`, for keys that are made: typed twice, and not so short that it could be guessed."""
    found = read_passphrase(source, twice=True)
    if len(found) < LEAST:
        drawn = f"draw one of {LEAST} or more, `openssl rand -base64 24`: whoever gets the key's file may try them all"
        raise InputError("passphrase", source, f"has {len(found)} bytes; {drawn}")
    return found


def read_passphrase(source: str, folder: Path = Path(), *, twice: bool = False) -> Secret:
    """Without the end of its last line.

    Args:
        source: file:PATH (relative to `folder`), fd:NUMBER or prompt.
        twice: a slip is noticed.
    """
    kind, _, where = source.partition(":")
    if kind == "file" and where:
        raw = canonical.read_private(folder / Path(where).expanduser(), "passphrase", LARGEST + 2)
    elif kind == "fd" and where.isdecimal() and where.isascii():
        raw = _of_descriptor(int(where))
    elif source == "prompt":
        raw = _typed(twice)
    else:
        raise InputError("passphrase", source, f"must be {SOURCES}")
    found = Secret(raw.removesuffix(b"\n").removesuffix(b"\r"))
    if not 0 < len(found) <= LARGEST:
        raise InputError("passphrase", source, f"must have 1 to {LARGEST} bytes, not {len(found)}")
    return found


def _of_descriptor(number: int) -> bytes:
    """All of it; the descriptor is closed, and nobody reads it again."""
    try:
        with open(number, "rb") as file:
            return file.read(LARGEST + 3)
    except OSError as e:
        remedy = f"cannot be read ({e.strerror}); open it for the process, as in `3< FILE`"
        raise InputError("passphrase", f"fd:{number}", remedy) from None


def _typed(twice: bool) -> bytes:
    if not sys.stdin.isatty():
        raise InputError("passphrase", "prompt", "there is no terminal to type it on; give file:PATH or fd:NUMBER")
    found = getpass.getpass("passphrase of the keys: ")
    if twice and getpass.getpass("once more: ") != found:
        raise InputError("passphrase", "prompt", "the two were not the same; try again")
    return found.encode()
