"""What a unit has spent so far: the plan's statement, with the number of what has left in place of the plan's own."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final

from confide.laws.conversion import summed_epsilon
from confide.plans.threat import Threat
from confide.privacy.accountant import Account
from confide.privacy.agreement import Prices
from confide.privacy.statement import rounded_up, strength

ADDED_UP: Final = "rho of messages, releases and earlier ledgers added up, then as zero-concentrated privacy"


def so_far(prices: Prices, published: int, releases: int, earlier: float | None) -> dict[str, Any]:
    """A statement as plain data, for `privacy.statement`: one number, and who is not protected at all.

    The number is about the plan's own adversary, whose prices are those of the ledgers. Messages alone have the finer
    account of `Prices.epsilon_after`; with releases or earlier ledgers all is added up as rho. Without earlier ledgers
    it is never more than what the plan promises for all that it allows.

    Args:
        published: publications that were paid for.  releases: likewise.
        earlier: rho of earlier ledgers on the same data; None where they have no bound.
    """
    plan, said = prices.plan, prices.statement
    parts = [earlier, *(cost.rho for cost in prices.messages[:published])]
    if releases:
        parts += [None if prices.release is None else prices.release.rho] * releases
    rho = None if None in parts else sum(x for x in parts if x is not None)
    # Only a row that counts the release says what is promised after it.
    promised = [
        a for a in said.accounts if a.threat == plan.threat and (plan.release == "none" or "release" in a.adversary)
    ]
    if releases == 0 and earlier == 0.0:
        epsilon = prices.epsilon_after(published)
    else:
        epsilon = None if rho is None else summed_epsilon(rho, plan.delta)
        epsilon = None if epsilon == math.inf else epsilon
        if earlier == 0.0 and releases <= plan.releases and promised and promised[-1].epsilon is not None:
            epsilon = promised[-1].epsilon if epsilon is None else min(epsilon, promised[-1].epsilon)
    words = Threat.parse(plan.threat).words
    last = promised[-1] if promised else Account(plan.threat, words, plan.level, plan.adjacency, None, plan.delta)
    spent = replace(last, epsilon=epsilon, rho=rho, mu_gdp=None, epsilon_pure=None, exact=False)
    refused = [{"threat": who, "reason": why} for who, why in said.refused if who == plan.threat]
    if epsilon is None and not last.leak and not refused:
        refused = [{"threat": plan.threat, "reason": "what was spent has no bound"}]
    leaks = [a for a in said.accounts if a.leak]
    shown = leaks if epsilon is None else [spent, *(a for a in leaks if a.threat != plan.threat)]
    accounts = [a.to_dict() for a in shown]
    if releases or earlier != 0.0:
        accounts = [
            a | {"conversion": ADDED_UP} if a["threat"] == plan.threat and not a["leak"] else a for a in accounts
        ]
    return {
        "rounds": published,
        "noise": said.noise,
        "level": plan.level,
        "adjacency": plan.adjacency,
        "delta": plan.delta,
        "accounts": accounts,
        "refused": [] if epsilon is not None else refused,
        "unprotected": list(said.unprotected),
    }


def status_of(prices: Prices, published: int, releases: int, earlier: float | None) -> dict[str, Any]:
    """What a server's status says of it: the number, whose it is, and the statement."""
    plan, said = prices.plan, so_far(prices, published, releases, earlier)
    own = next((a for a in said["accounts"] if a["threat"] == plan.threat and not a["leak"]), None)
    return {
        "epsilon": None if own is None else own["epsilon"],
        "rho": None if own is None else own["rho"],
        "threat": plan.threat,
        "adversary": Threat.parse(plan.threat).words if own is None else own["adversary"],
        "level": plan.level,
        "adjacency": plan.adjacency,
        "delta": plan.delta,
        "statement": said,
    }


def promise(status: dict[str, Any]) -> str:
    """Beside an epsilon: against whom it is, and what may change."""
    return f"against {status['threat']}, {status['level']} level, {status['adjacency']}, delta {status['delta']:g}"


def number(epsilon: float | None) -> str:
    return "no bound" if epsilon is None else f"{rounded_up(epsilon)} ({strength(epsilon)})"
