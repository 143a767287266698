"""`confide check` of a server: everything that can go wrong at the start, looked at before anything is spent.

One finding a line, each with what to do. Nothing is written but a free port is bound for a moment and peers are dialed.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import time
from collections.abc import Iterator
from typing import Any, Final

from confide.base.errors import InputError, RunError
from confide.base.files import existing
from confide.deploy.machines.attendance import misfit
from confide.deploy.node import control
from confide.deploy.node.asking import last
from confide.deploy.node.config import ServerConfig, host_port, not_of_before
from confide.deploy.node.descriptors import raise_limit
from confide.deploy.node.findings import (
    FAIL,
    OK,
    WARN,
    Finding,
    certificates,
    clock,
    not_yet_made,
    privacy,
    spoken,
)
from confide.deploy.node.probing import PATIENCE, Reached, probe
from confide.deploy.node.server_process import open_store
from confide.deploy.node.server_setup import ServerSetup
from confide.deploy.store.sqlite_file import VERSION

LOG: Final = 64 << 20  # bytes of SQLite's log before it is written back
EVENT: Final = 1024  # bytes of a ledger's row, at most


def check(config: ServerConfig, *, strict_peers: bool = False) -> Iterator[Finding]:
    """Findings as they come; the first that makes the others meaningless is the last."""
    try:
        setup = ServerSetup.load(config)
        not_of_before(config.plan, setup.plan)
    except (InputError, RunError) as e:
        yield Finding("setup", FAIL, str(e))
        return
    yield from _plan(setup)
    yield from certificates(setup.node, setup.trust)
    running = _running(config)
    yield from _store(setup, running)
    yield _disk(setup)
    yield _port(setup, running)
    yield _descriptors(setup)
    yield from _released(setup)
    yield from _peers(setup, running, strict_peers)


def _plan(setup: ServerSetup) -> Iterator[Finding]:
    name, plan = setup.plan.units[setup.me].name, setup.plan
    yield Finding("plan", OK, f"{plan.hash}: this is server {setup.me}, unit {name!r}, of {plan.P}; {spoken(plan)}")
    yield privacy(setup.price)
    left = setup.allowance
    full = left.publications == plan.rounds and (setup.price.release is None or left.releases == plan.privacy.releases)
    level = OK if full else WARN if left.publications else FAIL
    yield Finding("budget", level, left.said if full else f"{left.said}; agree on fewer rounds or more noise")
    if why := misfit(setup.terms.clocks, secure=setup.plan.secure is not None):
        yield Finding("clocks", WARN, why)
    start = setup.terms.clocks.begin
    if start > time.time():
        yield Finding("start", OK, f"round 1 opens in {start - time.time():.0f} s")


def _running(config: ServerConfig) -> dict[str, Any] | None:
    """The status of this server, if it runs already."""
    try:
        return last(control.ask(config.control, {"ask": "status"}, PATIENCE))
    except (control.NotRunningError, RunError, InputError):
        return None


def _store(setup: ServerSetup, running: dict[str, Any] | None) -> Iterator[Finding]:
    path = setup.config.path(setup.config.store)
    if running is not None:
        yield Finding("store", OK, f"in use by this server, process {running['pid']}, at round {running['round']}")
        return
    if not os.path.lexists(path):
        yield not_yet_made("store", path)
        return
    try:
        store = open_store(setup, create=False)
    except (InputError, RunError) as e:
        yield Finding("store", FAIL, str(e))
        return
    with store:
        books, version = store.load(), store.version
    said = f"round {books.decided} of {setup.plan.rounds}, {books.published} published; version {version} of the file"
    if books.overtaken:
        old = f"older than what left, which was round {books.overtaken}: start once with --rejoin"
        yield Finding("store", FAIL, f"{said}; {old}")
        return
    if version < VERSION:
        said += f", which the next start makes {VERSION}: an earlier confide does not read it then"
    yield Finding("store", OK, said)


def _disk(setup: ServerSetup) -> Finding:
    rules = setup.terms.rules
    model = 8 * rules.length
    needed = model * (4 + rules.window * len(rules.weights)) + LOG + EVENT * rules.rounds
    free = shutil.disk_usage(existing(setup.config.path(setup.config.store).parent)).free
    said = f"{free / 2**20:,.0f} MiB free, at most {needed / 2**20:,.0f} needed"
    return (
        Finding("disk", OK, said) if free >= needed else Finding("disk", FAIL, f"{said}; make room or move the store")
    )


def _port(setup: ServerSetup, running: dict[str, Any] | None) -> Finding:
    address = setup.config.listen
    if running is not None:
        return Finding("port", OK, f"this server listens on {running['port']}")
    host, port = host_port("listen", address, listening=True)
    try:
        family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC does
            sock.bind(place)
    except OSError as e:
        remedy = "another process has the port, or the address is not this machine's; change listen"
        return Finding("port", FAIL, f"{address}: {e.strerror or e}; {remedy}")
    return Finding("port", OK, f"{address} is free")


def _descriptors(setup: ServerSetup) -> Finding:
    """As the server itself would have them, which raises the soft limit."""
    raise_limit()
    try:
        return Finding("descriptors", OK, f"enough for {setup.limits.connections} connections")
    except InputError as e:
        return Finding("descriptors", FAIL, str(e))


def _released(setup: ServerSetup) -> Iterator[Finding]:
    if setup.price.release is None:
        return
    folder = setup.config.path(setup.config.released)
    writable = os.access(existing(folder), os.W_OK | os.X_OK)
    said = str(folder) if writable else f"{folder} is not writable; a release could not be kept: change that"
    yield Finding("released", OK if writable else FAIL, said)


def _peers(setup: ServerSetup, running: dict[str, Any] | None, strict: bool) -> Iterator[Finding]:
    if running is not None:  # dialing again would take the place of the stream that is open
        for peer in running["peers"]:
            level = OK if peer["dialed"] else FAIL if strict else WARN
            yield Finding("peer", level, f"{peer['unit']}: " + (peer["why"] or f"connected, at round {peer['round']}"))
            yield from clock(peer["unit"], peer["clock"])
        return
    for m, (level, said, ahead) in sorted(asyncio.run(_dialed(setup)).items()):
        level = FAIL if strict and level == WARN else level
        yield Finding("peer", level, f"{setup.plan.units[m].name}: {said}")
        yield from clock(setup.plan.units[m].name, ahead)


async def _dialed(setup: ServerSetup) -> dict[int, Reached]:
    found = await asyncio.gather(
        *(probe(setup.dialing(m), peer, setup.common, setup.limits) for m, peer in setup.peers.items())
    )
    return dict(zip(setup.peers, found, strict=True))
