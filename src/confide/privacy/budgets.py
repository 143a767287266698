"""Does an account stay within a budget?"""

from __future__ import annotations

import math

from confide.base.errors import InputError
from confide.plans.privacy import Budget
from confide.privacy.course import Account


def used(budget: Budget, a: Account) -> float:
    """What an account uses, in the budget's own unit."""
    value = a.epsilon if budget.rho is None else a.rho
    if a.leak and value is None:  # noise that is too thin for an epsilon still has a rho
        return math.inf
    if value is None:
        raise InputError("rho", budget.rho, f"the account of {a.threat} has no rho; give epsilon and delta instead")
    return value


def allows(budget: Budget, a: Account) -> bool:
    return budget.allows(used(budget, a))
