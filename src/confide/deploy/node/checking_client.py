"""`confide check` of a client: plan, certificate, data, record and the way to its server, before it takes part."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Final

from confide.base.errors import BusyError, DataError, InputError, RunError
from confide.deploy.node import client_data
from confide.deploy.node.client_main import own_process
from confide.deploy.node.client_setup import ClientSetup
from confide.deploy.node.config import ClientConfig, not_of_before
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
from confide.deploy.node.probing import probe
from confide.deploy.store.record import FORMAT, FileRecord
from confide.privacy.price import agreed

BAD_ROW: Final = (
    "not as many numbers as the plan has, NaN, a number beyond 1e100, a label that the plan's model does not have, or "
    "features longer than the declared smoothness allows"
)


def check(config: ClientConfig, *, strict_peers: bool = False) -> Iterator[Finding]:
    """Findings as they come; the first that makes the others meaningless is the last."""
    try:
        setup = ClientSetup.load(config)
        not_of_before(config.plan, setup.plan)
    except (InputError, RunError) as e:
        yield Finding("setup", FAIL, str(e))
        return
    name = setup.plan.units[setup.unit].name
    yield Finding(
        "plan", OK, f"{setup.plan.hash}: this is client {setup.client} of unit {name!r}; {spoken(setup.plan)}"
    )
    yield privacy(agreed(setup.plan))
    yield from certificates(setup.node, setup.trust)
    yield _data(setup)
    yield _ledger(setup)
    record, running = _record(setup)
    yield record
    if running:  # dialing again would take the place of the stream that is open
        return
    found = asyncio.run(probe(setup.credentials, setup.target, setup.common, setup.limits))
    yield Finding("server", FAIL if strict_peers and found.level == WARN else found.level, found.said)
    yield from clock(name, found.ahead)


def _data(setup: ClientSetup) -> Finding:
    """Errors name the file and the place, never a value."""
    config, doubts = setup.config, list[str]()
    try:
        with own_process(config) as process:
            told = f"{{}} of {{}} rows count as zeros: {BAD_ROW}"
            setup.trainer(None, lambda bad, rows: doubts.append(told.format(bad, rows)), process)
        if config.data is not None and client_data.begins_with_numbers(config.path(config.data)):
            doubts.append("the first line holds numbers but counts as names; put a line of names before it")
    except DataError as e:
        return Finding("data", FAIL, f"{e}; as it is, this client takes part and adds zeros")
    except (InputError, RunError) as e:
        return Finding("data", FAIL, str(e))
    if doubts:
        return Finding("data", WARN, f"{config.data}: {'; '.join(doubts)}")
    return Finding("data", OK, f"{config.data or config.train} fits the plan")


def _ledger(setup: ClientSetup) -> Finding:
    try:
        return Finding("ledger", OK, setup.enrolment.outlook(anew=setup.forgot))
    except (InputError, RunError) as e:
        return Finding("ledger", FAIL, str(e))


def _record(setup: ClientSetup) -> tuple[Finding, bool]:
    """Also whether a client runs that holds it."""
    path = setup.config.path(setup.config.record)
    if not os.path.lexists(path):
        return not_yet_made("record", path), False
    try:
        with FileRecord(path, setup.terms.owner) as record:
            return Finding("record", OK, f"round {record.answered} was answered last; format {FORMAT}"), False
    except BusyError:
        return Finding("record", OK, "in use: this client runs"), True
    except InputError as e:
        return Finding("record", FAIL, str(e)), False
