"""What a server answers to a client that says who it is."""

from __future__ import annotations

from confide.deploy.machines.client_messages import LARGEST_PLAN, Enrol, Refusal, Welcome
from confide.deploy.machines.cohort import Reason
from confide.deploy.machines.terms import Terms
from confide.deploy.store.books import Books


def answer(terms: Terms, books: Books, client: int, said: Enrol) -> tuple[Welcome | Refusal, Reason | None]:
    """The answer, and why the client is refused; None where it is not."""
    if said.protocol != terms.protocol:
        why = f"this server speaks version {terms.protocol} of the protocol, not {said.protocol}"
        return _other(terms, why), Reason.PLAN
    if said.plan != terms.rules.plan:
        return _other(terms, "this unit runs another plan"), Reason.PLAN
    if (said.unit, said.client) != (terms.rules.me, client) or client >= terms.clients:
        return Refusal("not in this unit's roster", ""), Reason.NAMES
    return welcome(terms, books), None


def welcome(terms: Terms, books: Books) -> Welcome:
    """The round that is open or the next, and whether there is none any more."""
    d, T = books.decided, terms.rules.rounds
    return Welcome(terms.rules.plan, min(d + 1, T), finished=d == T)


def _other(terms: Terms, why: str) -> Refusal:
    """With the server's plan, so that differences can be named."""
    return Refusal(why, terms.plan_text if len(terms.plan_text) <= LARGEST_PLAN else "")
