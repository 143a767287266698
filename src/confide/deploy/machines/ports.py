"""Where a server stands, and what it does to the world."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from confide.deploy.machines.release import Part
from confide.deploy.store.store import At, nowhere
from confide.rounds.noise import NoiseSource


class Phase(StrEnum):
    BOOT = "boot"  # until every neighbour was heard, or a deadline
    WAIT = "wait"  # for the neighbours' messages of the last decided round, or a deadline
    ADAPT = "adapt"  # with the clients, until the tick at which the sum is published
    DRAIN = "drain"  # the last round is decided; open flows are settled
    FINISHED = "finished"  # still answers
    REJOIN = "rejoin"  # a restored store: until every neighbour was heard
    STOPPED = "stopped"


def _silent(_: str, **__: Any) -> None:
    pass


@dataclass
class Ports:
    """What a server does to the world.

    Attributes:
        to_server, to_client: hand bytes to the network.
        noise: see `draws`.  sample: the clients of a round; drawn once, then stored.
        at: told every crash point.
        log: (event, fields); never anything that depends on data but what was published.
        release: how the server takes part in releases, where the plan has them.
    """

    to_server: Callable[[int, bytes], None]
    to_client: Callable[[int, bytes], None]
    noise: NoiseSource = field(repr=False)
    sample: Callable[[int], tuple[int, ...]]
    at: At = nowhere
    log: Callable[..., None] = _silent
    release: Part | None = None
