"""A server whose descriptors are all taken by strangers still learns who was revoked, and shows him the door.

`test_watch` has the same without processes, in the default run.
"""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from confide.cluster.layout import Layout, lay_out
from confide.cluster.processes import Cluster
from confide.cluster.try_out import TRY_OUT
from confide.deploy.keys.authority import Authority
from confide.plans.config import parse
from patience import LIMIT, SCALE
from ports import own_ports

LONG = 180.0 * SCALE  # seconds: nobody is ever so late
pytestmark = pytest.mark.skipif("CONFIDE_SOAK" not in os.environ, reason="a real flood: `make soak` runs it")
ROOM = 8  # descriptors that the server may open besides those that it has


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    config = parse(TRY_OUT | {"privacy": TRY_OUT["privacy"] | {"unprotected": True}})
    return lay_out(tmp_path / "n", config, 1, 4, rounds=3, adapt=LONG, exchange=LONG, ports=own_ports, reload=0.3)


@contextmanager
def flooded(pid: int, port: int) -> Iterator[None]:
    """Every descriptor that the process may have is taken, and more strangers wait at its port."""
    folder = Path(f"/proc/{pid}/fd")
    most = max(int(path.name) for path in folder.iterdir()) + 1 + ROOM
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    strangers: list[socket.socket] = []
    try:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, before[1]))
        for _ in range(64 + ROOM):
            strangers.append(socket.socket())
            strangers[-1].setblocking(False)
            with suppress(BlockingIOError):
                strangers[-1].connect(("127.0.0.1", port))
        yield
    finally:
        for one in strangers:
            one.close()
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def test_a_flood_of_connections_does_not_keep_a_revoked_client_in(layout: Layout) -> None:
    with Cluster(layout) as cluster:
        cluster.start_all()
        (unit,) = layout.units
        cluster.wait("all are there", lambda: (cluster.status(unit) or {}).get("phase") == "finished", LIMIT)
        pid = cluster.processes[unit].pid
        with flooded(pid, layout.ports[unit]):
            cluster.wait("all are taken", lambda: _taken(pid), LIMIT)
            Authority.open(layout.authority(unit)).revoke("c0")
            cluster.wait("c0 is gone", lambda: "c0 of alpha: the certificate was revoked" in cluster.log(unit), LIMIT)


def _taken(pid: int) -> bool:
    return len(os.listdir(f"/proc/{pid}/fd")) >= resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]
