"""A store that was restored: to which round it moves, what that costs, and how its edges come into use again."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from confide.deploy.machines import evidence, exchange, sync
from confide.deploy.machines.cohort import Kept
from confide.deploy.machines.exchange import ExchangeError, Reason
from confide.deploy.machines.neighbour import Neighbour
from confide.deploy.machines.ports import Desk, Phase
from confide.deploy.store.books import Changes, Pace, Status


class Rejoining:
    """Attributes:
    claims: by neighbour, the highest round that it speaks of.
    signed: the highest round that a signature shows, of any server.
    blank: who knows of no round, as its store may be lost as well.
    nonces: by neighbour, of the question for the balance: only an answer to the last one is taken.
    """

    def __init__(self, desk: Desk, neighbours: Mapping[int, Neighbour]) -> None:
        self.desk, self.neighbours = desk, neighbours
        self.claims: dict[int, int] = {}
        self.signed = evidence.furthest(desk.books.signed)
        self.blank: set[int] = set()
        self.nonces = {m: _nonce() for m in neighbours}

    def hear(self, message: sync.Sync) -> None:
        """While this server asks how far it may have been; of what may be true (`exchange.check`)."""
        m, rules = message.sender, self.desk.rules
        new = [p for p in message.shown if self.signed < p.round <= self.desk.clock.latest]
        if not all(evidence.holds(rules.plan, rules.identities, p) for p in new):
            raise ExchangeError(Reason.SIGNATURE)
        self.signed = max((p.round for p in new), default=self.signed)
        self.claims[m] = max(self.claims.get(m, 0), message.seen, message.decided)
        self.neighbours[m].heard = True
        if message.decided == 0:
            self.blank.add(m)

    @property
    def reached(self) -> int:
        """The highest round that a neighbour speaks of, as far as signatures show it and whoever skipped can have come.

        That takes `adapt` a round, and the last signed round cannot have been published before its time: so of what is
        true nothing is cut off, or a round of the lost store could be published again.
        """
        terms, now = self.desk.terms, self.desk.now
        since = Pace(self.signed, terms.clock_time(self.signed + 1))
        return min(max(self.claims.values(), default=0), self.signed + terms.clock(since, now).unsigned)

    def move(self) -> None:
        """Move to a round that this server cannot have passed before its store was lost, and pay for the gap.

        That is the round that was open, by the plan's clock. The leash holds as well, from what any neighbour ever
        said; not where one of them may have forgotten it, or is gone, nor where there is but one: it could say less
        than it saw, and be sent other messages of the same rounds.
        """
        desk, books, terms = self.desk, self.desk.books, self.desk.terms
        heard = {m for m, neighbour in self.neighbours.items() if neighbour.heard}
        known = len(books.neighbours) > 1 and heard - self.blank >= set(books.neighbours)
        reached = self.reached
        for m in sorted(m for m, claim in self.claims.items() if claim > reached):
            desk.alarm(f"{terms.who(m)} speaks of rounds that no signature shows; believed up to round {reached}")
        by_clock = max(books.decided, 1 + terms.clock_round(desk.now))  # nobody is further, and nobody believes it
        by_leash = max(reached, books.decided) + terms.leash
        to = min(desk.rules.rounds, by_clock, by_leash if known else by_clock)
        seen = terms.sums_cost and bool(books.transcript) and Kept.decode(books.transcript).reveals
        costs = [None] * seen + list(terms.costs[books.published : books.published + to - books.decided - seen])
        desk.commit(exchange.rejoin(books, desk.rules, to, costs, desk.now, desk.ports.sign), "rejoin")
        by = "neighbours" if known and by_leash < by_clock else "clock"
        desk.ports.log("rejoined", round=to, charged=len(costs) - seen, by=by)

    def ask_balance(self, message: sync.Sync) -> None:
        """Once the neighbour has closed every record from before, its balance will not change any more."""
        since = self.desk.books.rejoined
        if message.decided >= since and not any(i <= since for i, _ in message.open):
            self._ask(message.sender, 0)

    def _ask(self, m: int, echo: int) -> None:
        rules, since = self.desk.rules, self.desk.books.rejoined
        self.neighbours[m].send(sync.AskBalance(rules.plan, rules.me, m, since, self.nonces[m], echo))

    def on_ask(self, ask: sync.AskBalance) -> None:
        desk, m = self.desk, ask.sender
        if desk.phase is Phase.REJOIN:
            return
        if desk.books.status[m] is Status.ADRIFT:
            if changes := exchange.settle(desk.books, desk.rules, ask, self.nonces[m]):
                self._balanced(m, changes)
            elif desk.rules.me > m:
                self.nonces[m] = _nonce()  # no answer to an older question is taken any more
                self._ask(m, ask.nonce)
        if (tell := exchange.tell_balance(desk.books, desk.rules, ask)) is not None:
            if desk.books.status[m] is Status.SUSPECT:  # from here on both ends have the same balance
                desk.commit(Changes(status={m: Status.OPEN}), "balance")
            self.neighbours[m].send(tell)

    def on_balance(self, tell: sync.TellBalance) -> None:
        desk, m = self.desk, tell.sender
        if tell.nonce != self.nonces[m] or desk.phase is Phase.REJOIN:
            return
        if changes := exchange.on_balance(desk.books, desk.rules, tell):
            self._balanced(m, changes)

    def _balanced(self, m: int, changes: Changes) -> None:
        self.desk.commit(changes, "balance")
        self.desk.ports.log("balanced", neighbour=m)


def _nonce() -> int:
    return secrets.randbits(62) + 1
