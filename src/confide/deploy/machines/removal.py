"""Servers that are gone for good (T4): which signed epoch this server follows, and who is told of it."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf as NEVER

from confide.deploy.machines import epoch as epochs
from confide.deploy.machines import exchange, sync
from confide.deploy.machines.neighbour import Neighbour
from confide.deploy.machines.ports import Desk


class Removal:
    def __init__(self, desk: Desk, neighbours: Mapping[int, Neighbour]) -> None:
        self.desk, self.neighbours = desk, neighbours

    @property
    def gone(self) -> bool:
        """Whether this server itself was removed."""
        return self.desk.epoch is not None and self.desk.rules.me in self.desk.epoch.removed

    def follow(self, raw: bytes) -> bool:
        """A signed epoch, whoever passed it on: whether it is a new one. Raises `EpochError`."""
        desk = self.desk
        found = epochs.decode(raw)
        if found.number <= desk.epoch_number:
            return False
        epochs.check(found, desk.terms, desk.epoch)
        desk.commit(exchange.remove(desk.books, found.removed, raw), "remove")
        desk.epoch = found
        desk.ports.log("removed", servers=list(found.removed), epoch=found.number)
        for m, neighbour in self.neighbours.items():  # also those who are gone: they stop
            self.tell(neighbour)
            if m in found.removed:
                neighbour.resend_at = NEVER
            else:
                neighbour.later()
        return True

    def tell(self, neighbour: Neighbour) -> None:
        """What it does not know, if anybody was removed."""
        rules, raw = self.desk.rules, self.desk.books.epoch
        if raw:
            neighbour.send(sync.TellEpoch(rules.plan, rules.me, neighbour.m, raw))
