"""Ports for servers that a test starts, ends and starts again: nobody else takes them meanwhile.

`free_ports` of the product and the system itself choose from above these, and two tests at a time never get the same.
"""

from __future__ import annotations

import random
import socket

from confide.cluster.layout import is_free

RANGE = range(5000, 10000)
_locks: list[socket.socket] = []  # names that only one process can have, until it ends


def own_ports(n: int) -> list[int]:
    found: list[int] = []
    for port in random.SystemRandom().sample(RANGE, len(RANGE)):
        if len(found) == n:
            return found
        lock = socket.socket(socket.AF_UNIX)
        try:
            lock.bind(f"\0confide-test-port-{port}")
        except OSError:
            lock.close()
            continue
        if is_free(port):
            _locks.append(lock)
            found.append(port)
        else:
            lock.close()
    raise AssertionError(f"{n} ports are not free on this machine")
