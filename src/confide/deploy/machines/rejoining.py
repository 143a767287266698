"""A store that was restored: to which round it moves, what that costs, and how its edges come into use again."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from confide.deploy.machines import exchange, sync
from confide.deploy.machines.cohort import Kept
from confide.deploy.machines.neighbour import Neighbour
from confide.deploy.machines.ports import Desk, Phase
from confide.deploy.store.books import Changes, Status


class Rejoining:
    """Attributes:
    reached: the highest round that anybody mentions.
    blank: who knows of no round, as its store may be lost as well.
    nonces: by neighbour, of the question for the balance: only an answer to the last one is taken.
    """

    def __init__(self, desk: Desk, neighbours: Mapping[int, Neighbour]) -> None:
        self.desk, self.neighbours = desk, neighbours
        self.reached = 0
        self.blank: set[int] = set()
        self.nonces = {m: _nonce() for m in neighbours}

    def hear(self, message: sync.Sync) -> None:
        """While this server asks how far it may have been."""
        exchange.check(self.desk.rules, message)
        self.reached = max(self.reached, message.seen, message.decided)
        self.neighbours[message.sender].heard = True
        if message.decided == 0:
            self.blank.add(message.sender)

    def move(self) -> None:
        """Move to a round that this server cannot have passed before its store was lost, and pay for the gap.

        The leash holds from what any neighbour ever said; where one of them may have forgotten it, or is gone, only the
        clock is left, and the round that was open.
        """
        desk, books, terms = self.desk, self.desk.books, self.desk.terms
        heard = {m for m, neighbour in self.neighbours.items() if neighbour.heard}
        known = bool(books.neighbours) and heard - self.blank >= set(books.neighbours)
        if known:
            to = max(self.reached, books.decided) + terms.leash
        else:
            to = max(self.reached, 1 + max(books.decided, terms.clock_round(desk.now)))
        to = min(desk.rules.rounds, to)
        seen = terms.sums_cost and bool(books.transcript) and Kept.decode(books.transcript).reveals
        costs = [None] * seen + list(terms.costs[books.published : books.published + to - books.decided - seen])
        desk.commit(exchange.rejoin(books, desk.rules, to, costs, int(desk.now)), "rejoin")
        desk.ports.log("rejoined", round=to, charged=len(costs) - seen, by="neighbours" if known else "clock")

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
