"""How much of the plan's budget is left for a server whose data earlier runs have used, and what it has spent so far.

Earlier ledgers are added up as rho (zCDP), which composes by addition whatever the noise was; the plan's own account
may be finer, so what this says is never too much. Without earlier spending the plan pays for all of its rounds and all
of its releases: `price.agreed` has proved it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from confide.base.errors import InputError
from confide.laws.conversion import MANY_DRAWS
from confide.plans.plan import Plan
from confide.privacy.course import Account
from confide.privacy.ledger import Book, Promise, broken, dataset_id, paid_by, promise_of, read_all
from confide.privacy.paid import Paid
from confide.privacy.price import Price, largest
from confide.privacy.statement import Statement, rounded_up, strength

ADDED_UP: Final = "rho of messages, releases and earlier ledgers added up, then as zero-concentrated privacy"


class Allowance(NamedTuple):
    """What the budget pays for.

    Attributes:
        publications: after what was spent and before one release.
        releases: of those that the plan allows, then.
        spent: rho of the earlier ledgers, None where some of them have no bound.
        said: for people.
    """

    publications: int
    releases: int
    spent: float | None
    said: str


def allowance(price: Price, dataset: str, ledgers: Sequence[Path]) -> Allowance:
    plan, budget, allowed = price.plan, price.plan.privacy.budget, price.releases
    books = _books(plan, dataset, ledgers)
    spent = paid_by(books).rho
    shown = "without bound" if spent is None else f"{spent:.4g}"
    rounds = plan.rounds
    if budget is None:
        earlier = f"; earlier ledgers spent rho {shown}" if books else ""
        said = f"the plan has no budget: all {rounds} rounds" + (f" and {_counted(allowed)}" if allowed else "")
        return Allowance(rounds, plan.privacy.releases, spent, said + earlier)

    def pays(publications: int, releases: int) -> bool:
        return budget.allows(_total(price, spent, publications, releases))

    left, releases = rounds, allowed
    if books:
        left = largest(rounds, lambda j: pays(j, min(1, allowed)))
        releases = largest(allowed, lambda a: pays(left, a))
    name = "epsilon" if budget.rho is None else "rho"
    said = f"{name} {budget.limit:g} pays for {left} of {rounds} rounds"
    if books:
        said += f", since {len(books)} earlier ledgers spent rho {shown}"
    return Allowance(left, releases, spent, said + (f", and for {_counted(releases)}" if allowed else ""))


def so_far(price: Price, published: int, releases: int, earlier: float | None) -> Statement:
    """One number, and who is not protected at all.

    The number is about the plan's own adversary, whose prices are those of the ledgers. Messages alone have the finer
    account of `Price.after`; with releases or earlier ledgers all is added up as rho. Without earlier ledgers it is
    never more than what the plan promises for all that it allows.

    Args:
        published: publications that were paid for.  releases: likewise.
        earlier: rho of earlier ledgers on the same data; None where they have no bound.
    """
    said, p = price.statement(), price.plan.privacy
    total, alone = _total(price, earlier, published, releases), releases == 0 and earlier == 0.0
    threat = str(p.threat)
    # Only a row that counts the release says what is promised after it.
    promised = [a for a in said.accounts if a.threat == threat and (not price.releases or "release" in a.adversary)]
    blank = Account(threat, p.threat.adversary, str(p.level), str(p.adjacency), None, p.delta)
    last = promised[-1] if promised else blank
    epsilon = price.after(published) if alone else total.at(p.delta)
    if not alone and earlier == 0.0 and releases <= p.releases and last.epsilon is not None:
        epsilon = last.epsilon if epsilon is None else min(epsilon, last.epsilon)
    by = last.conversion if alone or last.leak else ADDED_UP
    spent = replace(last, epsilon=epsilon, rho=total.rho, mu_gdp=None, epsilon_pure=None, exact=False, conversion=by)
    refused = tuple((who, why) for who, why in said.refused if who == threat)
    if epsilon is None and not last.leak and not refused:
        refused = ((threat, "what was spent has no bound"),)
    leaks = tuple(a for a in said.accounts if a.leak)
    if epsilon is None:
        return replace(said, rounds=published, accounts=leaks, refused=refused)
    return replace(said, rounds=published, accounts=(spent, *(a for a in leaks if a.threat != threat)), refused=())


def status_of(price: Price, published: int, releases: int, earlier: float | None) -> dict[str, Any]:
    """What a server's status says of it: the number, whose it is, and the statement."""
    p, said = price.plan.privacy, so_far(price, published, releases, earlier)
    own = next((a for a in said.accounts if a.threat == str(p.threat) and not a.leak), None)
    return {
        "epsilon": None if own is None else own.epsilon,
        "rho": None if own is None else own.rho,
        "threat": str(p.threat),
        "adversary": p.threat.adversary if own is None else own.adversary,
        "level": said.level,
        "adjacency": said.adjacency,
        "delta": p.delta,
        "statement": said.to_dict(),
    }


def promise(status: dict[str, Any]) -> str:
    """Beside an epsilon: against whom it is, and what may change."""
    return f"against {status['threat']}, {status['level']} level, {status['adjacency']}, delta {status['delta']:g}"


def number(epsilon: float | None) -> str:
    return "no bound" if epsilon is None else f"{rounded_up(epsilon)} ({strength(epsilon)})"


def _total(price: Price, earlier: float | None, published: int, releases: int) -> Paid:
    """All of it as rho."""
    parts = [cost.rho for cost in price.messages[:published]] + [price.release_after(published).rho] * releases
    known = [x for x in (earlier, *parts) if x is not None]
    return Paid(sum(known) if len(known) == len(parts) + 1 else None, None, draws=MANY_DRAWS)


def _counted(releases: int) -> str:
    return f"{releases} release{'s' * (releases != 1)}"


def _books(plan: Plan, dataset: str, ledgers: Sequence[Path]) -> list[Book]:
    """The earlier ledgers, each of these data and with the promise of the plan: what is unlike has no sum."""
    found = read_all(ledgers)
    for book in found:
        reason = broken(promise_of(book), "the ledger", Promise.of(plan.privacy), "the plan")
        if book.dataset != dataset_id(dataset):
            reason = f"is not of the data set {dataset!r}; only ledgers of the same data are added up, name those"
        if reason is not None:
            raise InputError("ledgers", book.where, reason)
    return found
