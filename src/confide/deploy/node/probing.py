"""Is a server there, and is it who it should be? One dial, for `confide check`; the stream is closed at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from confide.deploy.keys.certificates import SKEW
from confide.deploy.net.dialer import Dialer
from confide.deploy.net.endpoints import Credentials, Limits, Target
from confide.deploy.net.handshake import Common

OK, WARN, FAIL = "ok", "warn", "FAIL"
PATIENCE: Final = 5.0  # seconds for a peer to answer
CLOSE: Final = 2.0  # seconds by which clocks may differ, the way of a message included


@dataclass(frozen=True)
class Finding:
    """One line of `confide check`."""

    check: str
    level: str
    said: str


class Reached(NamedTuple):
    level: str
    said: str
    ahead: float | None = None  # seconds by which the server's clock is ahead


async def probe(
    addresses: Sequence[str], credentials: Credentials, server: Target, common: Common, limits: Limits
) -> Reached:
    """TLS both ways, the plan's hash and the server's identity, at one address after the other."""
    why = []
    for address in addresses:
        found = await _probe_at(address, credentials, server, common, replace(limits, connect=PATIENCE))
        if found.level != WARN:
            return found
        why.append(f"{address}: {found.said}")
    remedy = "is its server running, and its port open? This node starts without it"
    return Reached(WARN, f"not reached ({'; '.join(why)}); {remedy}")


async def _probe_at(address: str, credentials: Credentials, server: Target, common: Common, limits: Limits) -> Reached:
    answer: list[tuple[str, str]] = []
    dialer = Dialer(
        [address],
        credentials,
        server,
        common,
        lambda _: None,
        lambda: answer.append((OK, f"reached at {address}; same plan, and it has the identity of the plan")),
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


def clock(unit: str, ahead: float | None) -> Iterator[Finding]:
    """Rounds are paced by each server's own clock, and certificates begin and end by it.

    >>> [finding.level for ahead in (None, -0.1, 60.0, -3600.0) for finding in clock("beta", ahead)]
    ['ok', 'warn', 'FAIL']
    """
    if ahead is None:  # not reached, which is said
        return
    if abs(ahead) <= CLOSE:
        yield Finding("clock", OK, f"{unit}: within {CLOSE:g} s of this machine")
        return
    level = FAIL if abs(ahead) > SKEW.total_seconds() else WARN
    said = f"{unit}: {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} this machine"
    yield Finding("clock", level, f"{said}; set both by NTP, or rounds and certificates begin and end apart")
