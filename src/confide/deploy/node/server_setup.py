"""What a server's config stands for: plan, prices, keys and peers, each compared with the others before a byte leaves.

The certificate of a node says who it is, and its organisation's authority vouches for that; which authority may vouch
for whom says the plan, by fingerprint. Without that any trusted authority could issue a certificate with the identity
key of another organisation's node.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from confide.base.errors import InputError
from confide.deploy.keys.certificates import Peer, RefusedPeer, check_name, fingerprint
from confide.deploy.keys.lists import Lists
from confide.deploy.keys.node_keys import NodeKeys
from confide.deploy.machines import terms
from confide.deploy.machines.release import Circle
from confide.deploy.machines.terms import Terms
from confide.deploy.net.endpoints import Credentials, Limits, Node, Target
from confide.deploy.net.handshake import Common
from confide.deploy.node.config import ServerConfig, load_keys, load_plan
from confide.deploy.node.descriptors import for_others
from confide.deploy.node.trust import Trust
from confide.deploy.store.books import Vector
from confide.plans.plan import Plan
from confide.plans.words import Centroid
from confide.privacy.price import Price, agreed
from confide.privacy.spent import Allowance, allowance
from confide.problems import start
from confide.problems.networks.tensors import digest, read
from confide.secure.keys import Secret


@dataclass(frozen=True, repr=False)
class ServerSetup:
    config: ServerConfig
    plan: Plan
    price: Price
    me: int
    node: NodeKeys
    passphrase: Secret | None
    trust: Trust
    peers: dict[int, Target]
    allowance: Allowance
    _fingerprints: dict[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, config: ServerConfig) -> Self:
        plan, (node, passphrase) = load_plan(config), load_keys(config)
        me = _place(plan, node)
        trust = Trust.load(config.sources, Lists(config.lists))
        prints = {org: fingerprint(pem) for org, pem in trust.authorities.items()}
        check_authority(plan, me, node.org, prints.get(node.org), "node")
        price = agreed(plan)
        initial(config, plan)
        peers = _peers(config, plan, me, prints)
        left = allowance(price, config.dataset, [config.path(name) for name in config.ledgers])
        return cls(config, plan, price, me, node, passphrase, trust, peers, left, prints)

    def start(self) -> Vector:
        """The model that everybody begins with, on the plan's grid."""
        found = initial(self.config, self.plan)
        if found is None:
            return np.zeros(self.terms.rules.length, np.int64)
        return self.terms.arithmetic.state(start.flat(found))

    @cached_property
    def terms(self) -> Terms:
        return terms.of_plan(self.price, self.me, self.allowance.publications)

    @property
    def common(self) -> Common:
        return Common(self.terms.protocol, self.plan.text)

    @cached_property
    def limits(self) -> Limits:
        from_server = self.terms.largest_sync
        if (release := self.price.reveal_terms) is not None:
            from_server = max(from_server, Circle.of(self.terms.rules, release, None).largest_message)
        from_client = self.terms.largest_from_client
        outbox = max(Limits.outbox, 4 * max(from_server, from_client, 8 * self.terms.rules.length))
        connections = for_others(Limits.connections, len(self.plan.units[self.me].clients) + len(self.peers))
        return Limits(from_client=from_client, from_server=from_server, outbox=outbox, connections=connections)

    @property
    def listening(self) -> Credentials:
        return Credentials(self.node, self.trust.authorities, self.trust.revoked)

    def dialing(self, m: int) -> Credentials:
        org = self.peers[m].org
        return Credentials(self.node, {org: self.trust.authorities[org]}, self.trust.revoked)

    @property
    def edge_secrets(self) -> dict[tuple[int, int], Secret]:
        """Shared with each neighbour, for pair noise."""
        assert self.node.exchange is not None  # noqa: S101 - a server has one
        own, me = self.node.exchange, self.me
        keys = {m: bytes.fromhex(self.plan.units[m].key_agreement) for m in self.terms.weights}
        return {(min(me, m), max(me, m)): own.agree([public])[0] for m, public in keys.items()}

    def door(self, peer: Peer) -> Node:
        """Which node of the plan a peer is, whose certificate holds."""
        who = f"{peer.role} {peer.name} of {peer.org}"
        if peer.role == "client":
            if peer.identity not in self._clients:
                raise RefusedPeer(f"{who}: not a client of unit {self.plan.units[self.me].name!r} in this plan")
            self._vouched(self.me, peer, who)
            return Node("client", self._clients[peer.identity])
        m = self._servers.get(peer.identity)
        if m is None or m == self.me:
            raise RefusedPeer(f"{who}: not another server of this plan")
        if m not in self.terms.weights and self.price.reveal_terms is None:
            raise RefusedPeer(f"{who}: no neighbour of this server, and the plan has no release")
        self._vouched(m, peer, who)
        return Node("server", m)

    def _vouched(self, unit: int, peer: Peer, who: str) -> None:
        if self._fingerprints.get(peer.org) != self.plan.units[unit].authority:
            raise RefusedPeer(f"{who}: another authority vouches for this node than the plan has for its unit")

    @cached_property
    def _clients(self) -> dict[bytes, int]:
        return {bytes.fromhex(c.identity): k for k, c in enumerate(self.plan.units[self.me].clients)}

    @cached_property
    def _servers(self) -> dict[bytes, int]:
        return {bytes.fromhex(u.identity): m for m, u in enumerate(self.plan.units)}


def initial(config: ServerConfig, plan: Plan) -> dict[str, NDArray[Any]] | None:
    """The initial weights by name, which are those of the plan; None where it begins at zero.

    Raises:
        InputError: they are others, or their file is missing.
    """
    wanted = plan.algorithm.model.start
    if wanted is None:
        if config.weights is not None:
            raise InputError("weights", config.weights, "the plan begins at zero; leave it out")
        return None
    if config.weights is None:
        remedy = f"the plan has initial weights ({wanted.digest[:16]}…): name the {start.FILE} that was made with it"
        raise InputError("weights", None, remedy)
    try:
        found = read(config.path(config.weights))
    except InputError as e:
        raise InputError("weights", e.value, e.remedy) from None
    length, numbers = plan.algorithm.model.length, sum(a.size for a in found.values())
    if numbers != length:
        raise InputError("weights", config.weights, f"has {numbers} numbers, the plan's model {length}")
    if (other := digest(found)) != wanted.digest:
        remedy = f"its digest is {other[:16]}…, the plan has {wanted.digest[:16]}…; copy the {start.FILE} made with it"
        raise InputError("weights", config.weights, remedy)
    size = float(np.abs(start.flat(found)).max())
    if not size <= wanted.largest:  # nor is NaN; the range of states and the rounding that is priced rest on it
        remedy = f"has a number of size {size:g}, the plan says that none is beyond {wanted.largest:g}; make another"
        raise InputError("weights", config.weights, remedy)
    return found


def _place(plan: Plan, node: NodeKeys) -> int:
    """Which server of the plan this is, by its keys."""
    if node.role != "server":
        raise InputError("node", f"{node.role} {node.name} of {node.org}", "is not a server's certificate; name one")
    for p, unit in enumerate(plan.units):
        if unit.identity == node.identity.public.hex():
            if node.exchange is None or node.exchange.public.hex() != unit.key_agreement:
                raise InputError("node", node.name, "its exchange key is not the plan's; copy all files of the node")
            return p
    names = ", ".join(unit.name for unit in plan.units)
    remedy = f"its identity key is of no unit in the plan ({names}); use the plan that was made with it"
    raise InputError("node", f"server {node.name} of {node.org}", remedy)


def check_authority(plan: Plan, unit: int, org: str, found: str | None, field: str) -> None:
    wanted, name = plan.units[unit].authority, plan.units[unit].name
    if not wanted:
        remedy = "is empty: nobody could tell whose certificates count; announce units with `confide pki announce`"
        raise InputError(f"units[{unit}].authority", "", remedy)
    if found is None:
        raise InputError(field, org, f"has no table [authorities.{org}]; add one, with its certificate and crl")
    if found != wanted:
        remedy = f"its authority is {found[:16]}…, the plan has {wanted[:16]}… for unit {name!r}; get the right ca.crt"
        raise InputError(field, org, remedy)


def _peers(config: ServerConfig, plan: Plan, me: int, prints: dict[str, str]) -> dict[int, Target]:
    """All other servers that this one has to reach: neighbours, and everybody where there is a release."""
    names = [unit.name for unit in plan.units]
    for name in config.servers:
        if name not in names or names.index(name) == me:
            others = ", ".join(n for p, n in enumerate(names) if p != me)
            raise InputError(f"servers.{name}", name, f"is no other unit of the plan; those are: {others}")
    linked = {i + j - me for i, j in plan.graph.graphs[0].edges.tolist() if me in (i, j)}
    found = {}
    for m, unit in enumerate(plan.units):
        if m == me:
            continue
        given = config.servers.get(unit.name)
        if given is None:
            if m in linked or isinstance(plan.privacy.release, Centroid):
                why = "it is a neighbour" if m in linked else "a release needs every server"
                raise InputError(f"servers.{unit.name}", None, f"is missing: {why}; add its name and addresses")
            continue
        org = given.organisation
        check_authority(plan, m, org, prints.get(org), f"servers.{unit.name}.organisation")
        check_name(f"servers.{unit.name}.name", given.name)
        found[m] = Target(org, given.name, bytes.fromhex(unit.identity), tuple(given.addresses))
    return found
