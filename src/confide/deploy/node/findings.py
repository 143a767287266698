"""Lines of `confide check`, each with what to do: those that a server's check and a client's have in common."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from confide.base.files import existing
from confide.deploy.keys.certificates import SKEW, SOON, utc_now
from confide.deploy.keys.node_keys import NodeKeys
from confide.deploy.node.trust import Trust
from confide.deploy.node.watch import LIST_SOON
from confide.plans.plan import Plan
from confide.privacy.price import Price

OK, WARN, FAIL = "ok", "warn", "FAIL"
CLOSE: Final = 2.0  # seconds by which clocks may differ, the way of a message included


@dataclass(frozen=True)
class Finding:
    """One line of `confide check`."""

    check: str
    level: str
    said: str


def spoken(plan: Plan) -> str:
    """Which of the protocols; the plan names it, and all its nodes need a confide that speaks it."""
    return f"protocol {plan.deployed().protocol}"


def privacy(price: Price) -> Finding:
    """The statement that follows from the plan; a warning where it says NOT PROTECTED of anybody."""
    said = price.statement()
    level = WARN if said.exposed else OK
    return Finding("privacy", level, f"what the plan protects from whom, and what not:\n{said}\n")


def _own(node: NodeKeys) -> Finding:
    """Until when the node's own is good."""
    left, when = node.not_after - utc_now(), f"{node.not_after:%Y-%m-%d}"
    renew = f"run `confide pki renew {node.org} {node.name}`"
    if left <= timedelta(0):
        return Finding("certificate", FAIL, f"expired on {when}; {renew}")
    if left < SOON:
        return Finding("certificate", WARN, f"expires on {when}; {renew}")
    said = f"{node.role} {node.name} of {node.org} until {when}, keys match the plan, 0600"
    return Finding("certificate", OK, said)


def certificates(node: NodeKeys, trust: Trust) -> Iterator[Finding]:
    """How long its own and each list of revoked ones is good, and whether one has the node itself."""
    yield _own(node)
    now = utc_now()
    for org, held in trust.lists.items():
        days, level = (held.until - now).days, WARN if held.until - now < LIST_SOON else OK
        said = f"of {org}: good for {days} days" + ("; get a new one, `confide pki crl`" if level == WARN else "")
        yield Finding("revocations", level, said)
    for trouble in trust.troubles.values():
        yield Finding("revocations", WARN, f"{trouble}; until then a list that this node has seen counts")
    if node.serial in trust.revoked.get(node.org, frozenset()):
        yield Finding("certificate", FAIL, f"was revoked by {node.org}; get a new one")


def not_yet_made(check: str, path: Path) -> Finding:
    """What the first start makes, if it can."""
    if os.access(existing(path.parent), os.W_OK | os.X_OK):
        return Finding(check, OK, f"{path} is made at the first start")
    return Finding(check, FAIL, f"{path}: its folder is not writable; change that, or name another place")


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
