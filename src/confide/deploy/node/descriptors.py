"""How many descriptors a node may have, and how many of them are for others.

Whoever connects to a server takes one of its descriptors, before anybody knows who that is. So a part of them is kept
back: files, the store, the lists of revoked certificates and the server's own connections never run out.
"""

from __future__ import annotations

import resource
from contextlib import suppress
from typing import Final

from confide.base.errors import InputError

MOST: Final = 1 << 16  # a soft limit beyond any need, where the hard one has no end
OWN: Final = 128  # files, pipes, event loops, questions of the operator, and what libraries open


def raise_limit() -> None:
    """To what this process may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):  # then it stays
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def for_others(most: int, needed: int) -> int:
    """Connections that a listener may take.

    Args:
        most: of them.
        needed: nodes of the plan that connect, and are connected to.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return most
    left = soft - OWN - needed
    if left < 2 * needed:  # each of them, and again while it reconnects
        remedy = f"leaves {max(left, 0)} for connections, and this plan needs {2 * needed}; ulimit -n or LimitNOFILE"
        raise InputError("descriptors", soft, f"{remedy} = {OWN + 3 * needed} or more")
    return min(most, left)
