"""Tells two processes that hold one node's keys from one that comes again.

A process draws a number when it starts, its life, and says it whenever it dials. Somebody whose connection was lost
comes with the same life; somebody who was started anew comes with another one, and the one of before is never seen
again. So a life that comes back after another has been there is alive together with it.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from confide.deploy.net.endpoints import Node

KNOWN: Final = 16  # lives of a node that are remembered


class Lives:
    def __init__(self) -> None:
        self._seen: dict[Node, deque[bytes]] = {}

    def back(self, node: Node, life: bytes) -> bool:
        """Note that this life has come; whether it is back after another one.

        >>> lives, node = Lives(), Node("client", 0)
        >>> [lives.back(node, life) for life in (b"one", b"one", b"two", b"two", b"one", b"one")]
        [False, False, False, False, True, False]
        """
        seen = self._seen.setdefault(node, deque(maxlen=KNOWN))
        if seen and seen[-1] == life:
            return False
        again = life in seen
        seen.append(life)
        return again
