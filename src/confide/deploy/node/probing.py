"""Is a server there, and is it who it should be? One dial, for `confide check`; the stream is closed at once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final, NamedTuple

from confide.deploy.net.dialer import Dialer
from confide.deploy.net.endpoints import Credentials, Limits, Target
from confide.deploy.net.handshake import Common
from confide.deploy.node.findings import FAIL, OK, WARN

PATIENCE: Final = 5.0  # seconds for a peer to answer


class Reached(NamedTuple):
    level: str
    said: str
    ahead: float | None = None  # seconds by which the server's clock is ahead


async def probe(credentials: Credentials, server: Target, common: Common, limits: Limits) -> Reached:
    """TLS both ways, the plan's hash and the server's identity, at one address after the other."""
    why = []
    for address in server.addresses:
        one = replace(server, addresses=(address,))
        found = await _probe_one(credentials, one, common, replace(limits, connect=PATIENCE))
        if found.level != WARN:
            return found
        why.append(found.said if address in found.said else f"{address}: {found.said}")
    remedy = "is its server running, and its port open? This node starts without it"
    return Reached(WARN, f"not reached ({'; '.join(why)}); {remedy}")


async def _probe_one(credentials: Credentials, server: Target, common: Common, limits: Limits) -> Reached:
    answer: list[tuple[str, str]] = []
    reached = f"reached at {server.addresses[0]}; same plan, and it has the identity of the plan"
    dialer = Dialer(
        credentials,
        server,
        common,
        lambda _: None,
        lambda: answer.append((OK, reached)),
        lambda: None,
        lambda lines: answer.append((FAIL, "has another plan: " + "; ".join(lines))),
        limits,
    )
    untried = dialer.why
    dialer.start()
    try:
        async with asyncio.timeout(2.0 * PATIENCE):
            while not answer and dialer.why == untried:
                await asyncio.sleep(0.02)
    except TimeoutError:
        return Reached(WARN, f"no answer within {2.0 * PATIENCE:g} s")
    finally:
        await dialer.stop()
    if answer:
        return Reached(*answer[0], dialer.ahead)
    if any(word in dialer.why for word in ("PERMISSION_DENIED", "UNAUTHENTICATED", "does not have the identity")):
        return Reached(FAIL, f"{dialer.why}; compare certificates and plans with that operator")
    return Reached(WARN, dialer.why)
