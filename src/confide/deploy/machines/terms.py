"""What one server needs of the plan, worked out once."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from confide.deploy.machines.exchange import Clock, Rules
from confide.deploy.store.books import Pace
from confide.graph.graph import Graph
from confide.plans.plan import Clocks
from confide.privacy.ledger import Cost
from confide.rounds.arithmetic import WEIGHT_BITS, FixedArithmetic
from confide.rounds.local import remaining
from confide.rounds.schemes import Scheme
from confide.secure.session import Task
from confide.secure.settings import SecureSum

if TYPE_CHECKING:
    from confide.privacy.price import Price


@dataclass(frozen=True)
class Terms:
    """Of server `rules.me`.

    Attributes:
        rules: of the exchange.  clients: K_p.
        largest_update: nothing that an honest client adds has a coordinate beyond it, in quanta: no update, and in a
            secure sum no update with its share of noise.
        weights: a_pm by neighbour; own_weight: a_pp.
        decays: what each client's regulariser takes off the model, where the server does that.
        costs: of the j-th publication.  allowed: publications that the budget pays for.
        sums_cost: the price is that of the sums that the own server sees, which it pays for before it asks for them.
        edges: of all servers, for epochs.  names: of their units, where there are any.
        secure: None where updates are summed in clear.
    """

    rules: Rules
    clients: int
    largest_update: int
    scheme: Scheme
    arithmetic: FixedArithmetic
    own_weight: float
    weights: Mapping[int, float]
    decays: tuple[float, ...]
    costs: tuple[Cost, ...] = field(repr=False)
    allowed: int
    clocks: Clocks
    edges: tuple[tuple[int, int], ...] = field(repr=False)
    protocol: int = 1
    sums_cost: bool = False
    secure: SecureSum | None = None
    client_identities: Mapping[int, bytes] = field(default_factory=dict, repr=False)
    names: tuple[str, ...] = ()

    def who(self, server: int) -> str:
        """As people call it."""
        return self.names[server] if self.names else f"server {server}"

    def clock_round(self, now: float) -> int:
        """No honest server has decided more rounds by now (and one for clocks that differ)."""
        return min(self.rules.rounds, max(0, math.floor((now - self.clocks.begin) / self.clocks.tick)) + 1)

    def clock(self, pace: Pace | None, now: float) -> Clock:
        """What can be true of other servers now, if this one decided a round by itself at that time.

        Whoever skips takes `adapt` for a round, and signs nothing. W more are for the network's delays.
        """
        round, since = (0, self.clocks.begin) if pace is None else pace
        skipped = max(0, math.floor((now - since) / self.clocks.adapt))
        latest = min(self.rules.rounds, self.clock_round(now) + 1)
        return Clock(latest, round, self.rules.window + skipped)

    def clock_time(self, round: int) -> float:
        """When `clock_round` reaches this round."""
        return self.clocks.begin + (round - 1) * self.clocks.tick

    def shrink(self, sample: Collection[int], survivors: Collection[int]) -> float:
        """What the regulariser takes off the model, in the order in which the reference adds it up."""
        total = 0.0
        for k in sample:
            if k in survivors:
                total += self.decays[k] / self.arithmetic.L
        return total

    @property
    def quorum(self) -> int:
        """Clients without whom no round has a sum."""
        return 1 if self.secure is None else self.secure.parameters.quorum

    @property
    def leash(self) -> int:
        """A server publishes at most so many rounds beyond what a neighbour has decided, or after one kept up with it.

        This limits what a server pays for messages that no neighbour uses. It also limits how far a lost store can have
        been ahead of what its neighbours saw.
        """
        return 2 * self.rules.window

    def task(self, round: int, model: bytes) -> Task:
        """The secure sum of a round that begins with this model."""
        assert self.secure is not None  # noqa: S101 - only called for a secure sum
        sha = hashlib.sha256(model).digest()
        return self.secure.task(self.rules.plan, self.rules.me, round, sha, self.rules.length)

    @cached_property
    def largest_from_client(self) -> int:
        """Bytes of the longest message of a client."""
        return 1024 + (8 * self.rules.length if self.secure is None else self.task(1, b"").largest_message)

    @cached_property
    def largest_sync(self) -> int:
        """Bytes of the longest message between servers: an offer, or an epoch that everybody signed."""
        return 8192 + max(8 * self.rules.length, 80 * len(self.rules.identities))


def of_plan(price: Price, server: int, allowed: int | None = None) -> Terms:
    """What a plan, priced, means for one of its servers.

    Args:
        allowed: publications that the budget pays for, where earlier runs on the same data spent some of it.
    """
    plan, a, d, g = price.plan, price.plan.algorithm, price.plan.deployed(), price.plan.graph.graphs[0]
    arithmetic, weights, clients = price.arithmetic, neighbours(g, server), plan.units[server].clients
    hash, length = bytes.fromhex(plan.hash), a.model.length
    ridge = a.model.ridge if a.clip.kind == "example" else 0.0  # the server's part; else the update has it
    largest = math.ceil(price.largest / arithmetic.quantum)
    largest_update = math.ceil(a.update_bound / arithmetic.client_quantum)
    if plan.secure is not None:
        largest_update = plan.secure.encoding(a.update_bound, arithmetic.fraction_bits).summand
    return Terms(
        rules=Rules(
            server,
            hash,
            integer_weights(weights),
            plan.rounds,
            d.window,
            length,
            largest,
            tuple(bytes.fromhex(unit.identity) for unit in plan.units),
            price.scheme.by_link,
        ),
        clients=len(clients),
        largest_update=largest_update,
        scheme=price.scheme,
        arithmetic=arithmetic,
        own_weight=float(g.own_weights[server]),
        weights=weights,
        decays=tuple(1.0 - remaining(ridge, a.step, c.local_steps) for c in clients),
        costs=price.messages,
        allowed=plan.rounds if allowed is None else allowed,
        clocks=d.clocks,
        edges=tuple((int(i), int(j)) for i, j in g.edges),
        protocol=d.protocol,
        sums_cost=price.by_sums,
        secure=plan.secure,
        client_identities={k: bytes.fromhex(c.identity) for k, c in enumerate(clients)},
        names=tuple(unit.name for unit in plan.units),
    )


def neighbours(graph: Graph, p: int) -> dict[int, float]:
    """m -> a_pm."""
    found = {}
    for (i, j), a in zip(graph.edges.tolist(), graph.edge_weights.tolist(), strict=True):
        if p in (i, j):
            found[j if p == i else i] = a
    return dict(sorted(found.items()))


def integer_weights(weights: Mapping[int, float]) -> dict[int, int]:
    return {m: round(a * 2**WEIGHT_BITS) for m, a in weights.items()}
