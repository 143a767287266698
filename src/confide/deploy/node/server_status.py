"""Where a server stands, for its operator: what its books say, and what the running machine adds."""

from __future__ import annotations

import hashlib
from typing import Any

from confide.deploy.machines.release import Kept
from confide.deploy.machines.server import Server
from confide.deploy.node.server_setup import ServerSetup
from confide.deploy.store.books import Books, as_bytes
from confide.secure.receipts import Receipt, to_dict


def machine_status(setup: ServerSetup, server: Server) -> dict[str, Any]:
    """What the machine's books say; nothing of it depends on data but by what was published."""
    found, cohort = books_status(setup, server.books), server.rounds.cohort
    return found | {
        "phase": str(server.phase),
        "why": server.why or server.rounds.waits,
        "clients": found["clients"] | {"waited": 0 if cohort is None else len(cohort.unheard)},
        "waits": _waits(setup, server),
        "alarms": server.alarms[-5:],
        "refusals": dict(server.refusals),
        "relaying": _relaying(server),
        "peers": [peer | {"up": server.neighbours[peer["server"]].up} for peer in found["peers"]],
    }


def _relaying(server: Server) -> dict[str, Any] | None:
    """The release that an operator asked of this server, until the next start."""
    relay = None if server.releases is None else server.releases.relay
    if relay is None:
        return None
    return {"stage": str(relay.stage), "attempt": relay.attempt, "failed": relay.failed}


def receipts_of(books: Books) -> list[dict[str, Any]]:
    """Who was told which result of a release, as both signed it."""
    return [to_dict(Receipt(*row[:3], *told)) for row, told in sorted(books.receipts.items())]


def _results(setup: ServerSetup, books: Books) -> list[dict[str, Any]]:
    """What was released: the hash that operators compare, and which units are known to have been told the same."""
    found = []
    for attempt, outcome in sorted(books.released.items()):
        sha = hashlib.sha256(as_bytes(outcome.total)).digest()
        same = {server for (a, _, server, _), told in books.receipts.items() if (a, told.sha256) == (attempt, sha)}
        told = [setup.plan.units[p].name for p in sorted(same)]
        found.append({"attempt": attempt, "servers": outcome.servers, "sha256": sha.hex(), "told": told})
    return found


def _waits(setup: ServerSetup, server: Server) -> str:
    """For what, and for whom by name; "" where it does not wait."""
    if (found := server.rounds.awaits) is None:
        return ""
    what, servers = found
    whom = ", ".join(setup.plan.units[m].name for m in servers)
    return f"{what}: {whom}" if whom else str(what)


def books_status(setup: ServerSetup, books: Books) -> dict[str, Any]:
    """What a store says when no server runs."""
    plan = setup.plan
    return {
        "running": False,
        "plan": plan.hash,
        "unit": setup.plan.units[setup.me].name,
        "server": setup.me,
        "phase": "not running",
        "overtaken": books.overtaken,
        "round": books.decided,
        "rounds": plan.rounds,
        "published": books.published,
        "allowed": setup.allowance.publications,
        "budget": setup.allowance.said,
        "delta": plan.privacy.delta,
        "releases": Kept.of(books).made,
        "results": _results(setup, books),
        "proofs": {setup.plan.units[m].name: raw.hex() for m, raw in books.proofs.items()},
        "peers": [
            {
                "unit": setup.plan.units[m].name,
                "server": m,
                "round": books.seen[m],
                "edge": str(books.status[m]),
                "open": sorted(books.open[m]),
            }
            for m in books.neighbours
        ],
        "clients": {"of": len(setup.plan.units[setup.me].clients)},
        "rho_spent_before": setup.allowance.spent,
    }
