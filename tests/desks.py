"""A desk at which one machine of a server can be driven alone, and everything that it does there, in order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from confide.deploy.machines import client_messages, sync
from confide.deploy.machines.evidence import Publication, sign
from confide.deploy.machines.exchange import balance_hash
from confide.deploy.machines.neighbour import Neighbour
from confide.deploy.machines.ports import Desk, Ports
from confide.deploy.store.books import TO_ALL
from confide.deploy.store.store import MemoryStore
from confide.graph.graph import Graph
from confide.rounds.schemes import scheme
from confide.testing.rehearsal import scripted, server_identity

ME = 1  # the middle of a path of three


def publication(plan: bytes, server: int, round: int, message: bytes, receiver: int = TO_ALL) -> Publication:
    """What the server of a box signs when it publishes this."""
    ((place, signed),) = sign(server_identity(server).sign, plan, server, round, {receiver: message}).items()
    return Publication(*place, *signed)


class Recorded(Desk):
    """Attributes:
    done: (what, with whom or which, details): "at" a point, "log", "say" to a neighbour, "tell" to a client.
    """

    def __init__(self, **changes: Any) -> None:
        unit = scripted(Graph.parse("path:3"), scheme("homomorphic", 0.5), rounds=9, window=2)[ME]
        self.done: list[tuple[str, Any, Any]] = []
        store = MemoryStore(unit.store.load())
        ports = Ports(self._say, self._tell, unit.noise, unit.sample, unit.sign, self._at, self._log)
        super().__init__(replace(unit.terms, **changes), store, ports)
        self.neighbours = {m: Neighbour(self, m) for m in self.rules.weights}
        self.attendance.connected(0)  # its only client

    def _say(self, m: int, raw: bytes) -> None:
        self.done.append(("say", m, sync.decode(raw, self.terms.largest_sync)))

    def _tell(self, k: int, raw: bytes) -> None:
        self.done.append(("tell", k, client_messages.from_server(raw, 10_000)))

    def _at(self, point: str) -> None:
        self.done.append(("at", point, None))

    def _log(self, event: str, **fields: Any) -> None:
        self.done.append(("log", event, fields))

    def taken(self) -> list[tuple[str, Any, Any]]:
        """What was done since the last time."""
        found, self.done[:] = list(self.done), []
        return found

    def steps(self) -> list[tuple[str, Any]]:
        """The same without details."""
        return [step[:2] for step in self.taken()]

    def hears(self, m: int, **changes: Any) -> sync.Sync:
        """What an honest neighbour might say that has nothing open; it signs what it offers."""
        if changes.get("offer") is not None:
            changes = {"shown": (publication(self.rules.plan, m, *changes["offer"]),)} | changes
        balance = None if "open" in changes else (self.books.balances[m].n, balance_hash(self.books, ME, m))
        return replace(sync.Sync(self.rules.plan, 0, m, ME, 0, (), None, False, 0, balance), **changes)
