"""How much of the plan's budget is left for a server whose data earlier runs have used.

Earlier ledgers are added up as rho (zCDP), which composes by addition whatever the noise was; the plan's own account
may be finer, so what this says is never too much. Without earlier spending the plan pays for all of its rounds and all
of its releases: `agreement.price` has proved it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from confide.base.errors import InputError
from confide.plans.plan import Plan
from confide.privacy import ledger
from confide.privacy.agreement import Prices
from confide.privacy.ledger import Book, Promise, broken, dataset_id, promise_of, read_all


class Allowance(NamedTuple):
    """Attributes:
    publications: that the budget pays for, after what was spent and before one release.
    releases: of those that the plan allows, that the budget pays for then.
    spent: rho of the earlier ledgers, None where some of them have no bound.
    said: for people.
    """

    publications: int
    releases: int
    spent: float | None
    said: str


def allowance(prices: Prices, dataset: str, ledgers: Sequence[Path]) -> Allowance:
    plan = prices.plan
    books = _books(plan, dataset, ledgers)
    spent = ledger.spent(books).rho
    rounds = plan.rounds
    limits = {name: limit for name, limit in plan.budget.items() if limit is not None}
    if not limits:
        earlier = f"; earlier ledgers spent rho {_shown(spent)}" if books else ""
        said = f"the plan has no budget: all {rounds} rounds"
        said += "" if prices.release is None else f" and {_counted(plan.releases)}"
        return Allowance(rounds, plan.releases, spent, said + earlier)
    (name, limit), *_ = limits.items()
    release = 0.0 if prices.release is None else prices.release.rho
    costs = [cost.rho for cost in prices.messages]

    def pays(publications: int, releases: int) -> bool:
        parts = [spent, release if releases else 0.0, *costs[:publications]]
        if any(x is None for x in parts):
            return False
        rho = spent + releases * (release or 0.0) + sum(costs[:publications])  # type: ignore[operator, arg-type]
        return _in_terms_of(name, rho, plan.delta) <= limit * (1 + 1e-12)

    one = 0 if prices.release is None else 1
    if books:
        left = _most(rounds, lambda j: pays(j, one))
        releases = _most(one * plan.releases, lambda a: pays(left, a))
    else:
        left, releases = rounds, one * plan.releases
    said = f"{name} {limit:g} pays for {left} of {rounds} rounds"
    if books:
        said += f", since {len(books)} earlier ledgers spent rho {_shown(spent)}"
    if one:
        said += f", and for {_counted(releases)}"
    return Allowance(left, releases, spent, said)


def _counted(releases: int) -> str:
    return f"{releases} release{'s' * (releases != 1)}"


def _books(plan: Plan, dataset: str, ledgers: Sequence[Path]) -> list[Book]:
    """The earlier ledgers, each of these data and with the promise of the plan: what is unlike has no sum."""
    found = read_all(ledgers)
    for book in found:
        reason = broken(promise_of(book), "the ledger", Promise.of(plan), "the plan")
        if book.dataset != dataset_id(dataset):
            reason = f"is not of the data set {dataset!r}; only ledgers of the same data are added up, name those"
        if reason is not None:
            raise InputError("ledgers", book.where, reason)
    return found


def _in_terms_of(name: str, rho: float, delta: float) -> float:
    from confide.laws.conversion import summed_epsilon

    return rho if name == "rho" else summed_epsilon(rho, delta)


def _most(most: int, holds: Callable[[int], bool]) -> int:
    """The largest n <= most that holds, 0 if none: what is paid for n is paid for fewer."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _shown(rho: float | None) -> str:
    return "without bound" if rho is None else f"{rho:.4g}"
