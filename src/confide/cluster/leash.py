"""Runs a node that ends with the process that started it, however that ended: by a pipe whose other end it holds."""

from __future__ import annotations

import os
import signal
import sys
import threading

from confide.deploy.node import start


def main(arguments: list[str]) -> int:
    """FD server|client CONFIG [OPTION ...]; FD is the end of the pipe from which nothing ever comes."""
    fd, *node = arguments
    threading.Thread(target=_watch, args=(int(fd),), name="leash", daemon=True).start()
    return start.main(node)


def _watch(fd: int) -> None:
    os.read(fd, 1)  # returns when nobody holds the other end
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
