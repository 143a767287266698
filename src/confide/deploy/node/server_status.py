"""Where a server stands, for its operator: what its books say, and what the running machine adds."""

from __future__ import annotations

from typing import Any

from confide.deploy.machines.release import Kept
from confide.deploy.machines.server import Server
from confide.deploy.node.server_setup import ServerSetup
from confide.deploy.store.books import Books


def machine_status(setup: ServerSetup, server: Server) -> dict[str, Any]:
    """What the machine's books say; nothing of it depends on data but by what was published."""
    found, cohort = books_status(setup, server.books), server.rounds.cohort
    return found | {
        "phase": str(server.phase),
        "why": server.why or server.rounds.waits,
        "clients": found["clients"] | {"waited": 0 if cohort is None else len(cohort.unheard)},
        "alarms": server.alarms[-5:],
        "refusals": dict(server.refusals),
        "peers": [peer | {"up": server.neighbours[peer["server"]].up} for peer in found["peers"]],
    }


def books_status(setup: ServerSetup, books: Books) -> dict[str, Any]:
    """What a store says when no server runs."""
    plan = setup.plan
    return {
        "running": False,
        "plan": plan.hash,
        "unit": setup.plan.units[setup.me].name,
        "server": setup.me,
        "phase": "not running",
        "round": books.decided,
        "rounds": plan.rounds,
        "published": books.published,
        "allowed": setup.allowance.publications,
        "budget": setup.allowance.said,
        "delta": plan.privacy.delta,
        "releases": Kept.of(books).made,
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
