"""How `confide status` and `confide release` talk to a running server: a Unix socket that only its owner can open.

One line of JSON asks, lines of JSON answer; the last has the key "done" or "failed".
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from confide.base.errors import InputError, RunError

LONGEST: Final = 1 << 20  # bytes of a line
ROOM: Final = 100  # bytes of a socket's address, on every system
Answer = Callable[[dict[str, Any]], AsyncIterator[dict[str, Any]]]


class NotRunningError(Exception):
    """Nobody answers at this socket."""


@contextmanager
def _address(path: Path) -> Iterator[str]:
    """A socket's path is short by law; Linux has a short way to every folder."""
    if len(os.fsencode(path)) <= ROOM:
        yield str(path)
        return
    try:
        fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as e:
        raise InputError("socket", str(path), f"its folder cannot be opened ({e.strerror})") from None
    try:
        short = f"/proc/self/fd/{fd}/{path.name}"
        if not os.path.exists(f"/proc/self/fd/{fd}") or len(os.fsencode(short)) > ROOM:
            raise InputError("socket", str(path), "is too long; set socket = '/run/confide.sock', or the like")
        yield short
    finally:
        os.close(fd)


def bind(path: Path) -> socket.socket:
    """A new socket in place of a dead one; whoever calls holds the store, so no other server lives."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise InputError("socket", str(path), "is a file of another kind; name another place")
        path.unlink()
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        with _address(path) as address:
            found.bind(address)
        found.listen(16)  # who asks before the server is ready waits
    except OSError as e:
        found.close()
        raise InputError("socket", str(path), f"cannot be made ({e.strerror}); name another place") from None
    finally:
        os.umask(mask)
    return found


async def serve(sock: socket.socket, answer: Answer) -> asyncio.Server:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            try:
                question = json.loads(await asyncio.wait_for(reader.readline(), 5.0))
                async for line in answer(question):
                    writer.write(json.dumps(line).encode() + b"\n")
                    await writer.drain()
            except (ValueError, TimeoutError):
                writer.write(b'{"failed": "not a question in JSON"}\n')
            finally:
                writer.close()
                await writer.wait_closed()

    return await asyncio.start_unix_server(talk, sock=sock, limit=LONGEST)


def ask(path: Path, question: dict[str, Any], patience: float) -> Iterator[dict[str, Any]]:
    """The lines of the answer; raises `NotRunningError` if no server runs there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(patience)
        try:
            with _address(path) as address:
                sock.connect(address)
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            raise NotRunningError(str(path)) from None
        except PermissionError:
            raise InputError("socket", str(path), "is another user's; ask as the user who runs the server") from None
        except OSError as e:
            raise InputError("socket", str(path), f"cannot be reached ({e.strerror or e})") from None
        try:
            sock.sendall(json.dumps(question).encode() + b"\n")
            with sock.makefile("rb") as lines:
                for line in lines:
                    yield json.loads(line)
        except (OSError, ValueError) as e:
            raise RunError(f"{path}: the server does not answer ({e}); look at its log") from None
