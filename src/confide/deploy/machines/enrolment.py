"""What a server answers to a client that says who it is."""

from __future__ import annotations

from confide.deploy.machines.client_messages import Enrol, Refusal, Welcome
from confide.deploy.machines.cohort import Reason
from confide.deploy.machines.terms import Terms
from confide.deploy.store.books import Books


def answer(terms: Terms, books: Books, client: int, said: Enrol) -> tuple[Welcome | Refusal, Reason | None]:
    """The answer, and why the client is refused; None where it is not.

    What differs in another plan was told before, where the stream was opened (`net.handshake`).
    """
    if (said.protocol, said.plan) != (terms.protocol, terms.rules.plan):
        return Refusal(f"another plan than this unit's, or not version {terms.protocol} of the protocol"), Reason.PLAN
    if (said.unit, said.client) != (terms.rules.me, client) or client >= terms.clients:
        return Refusal("not in this unit's roster"), Reason.NAMES
    return welcome(terms, books), None


def welcome(terms: Terms, books: Books) -> Welcome:
    """The round that is open or the next, and whether there is none any more."""
    d, T = books.decided, terms.rules.rounds
    return Welcome(terms.rules.plan, min(d + 1, T), finished=d == T)
