"""How long a test waits for an event: one limit for all of them, so that a slow machine is slow and not red.

A test asserts what happens, never when. `CONFIDE_PATIENCE=5` waits five times as long.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from confide.cluster.processes import Cluster

SCALE: Final = float(os.environ.get("CONFIDE_PATIENCE", "1"))
LIMIT: Final = 300.0 * SCALE  # seconds; whoever needs them all has hung

T = TypeVar("T")


def until(condition: Callable[[], T], what: object = "it", pause: float = 0.05) -> T:
    """Waits until `condition` is true and returns what it found."""
    end = time.monotonic() + LIMIT
    while not (found := condition()):
        assert time.monotonic() < end, f"{what() if callable(what) else what} did not happen in {LIMIT:g} s"
        time.sleep(pause)
    return found


def wait_round(cluster: Cluster, unit: str, round: int) -> dict[str, Any]:
    """The server's status once it has reached this round."""

    def reached() -> Any:
        found = cluster.status(unit)
        return found is not None and found["round"] >= round and found

    found: dict[str, Any] = cluster.wait(f"round {round} of {unit}", reached, LIMIT)
    return found


def wait_finished(cluster: Cluster) -> None:
    """Until every server has decided the last round and settled its flows, or given up on them."""

    def finished() -> bool:
        return all((cluster.status(unit) or {}).get("phase") == "finished" for unit in cluster.layout.units)

    cluster.wait("all servers have finished", finished, LIMIT)
