"""What one server that lies about rounds does to the others: it costs them W rounds, or its own signature.

The network began long ago by the plan's clock, which therefore bounds nothing here: what holds is what was signed.
"""

from __future__ import annotations

from typing import Any

import pytest

from confide.deploy.machines import evidence
from confide.deploy.machines.ports import Phase, Ports
from confide.deploy.machines.server import Server
from confide.deploy.machines.sync import Sync, decode, encode
from confide.deploy.store.books import Status
from confide.deploy.store.store import MemoryStore
from confide.graph.graph import Graph
from confide.rounds.schemes import scheme
from confide.testing.network import Network, Unit
from confide.testing.rehearsal import PLAN, scripted
from desks import publication

T, W, LIAR = 500, 4, 0
LATE = 1e6  # virtual seconds since the plan's start
MESSAGE = bytes(16)


def network(graph: str = "ring:5", **times: Any) -> Network:
    units = scripted(Graph.parse(graph), scheme("homomorphic", 0.5), rounds=T, window=W, **times)
    return Network(units, begin=LATE)


def server(net: Network, p: int) -> Server:
    found = net.units[p].server
    assert found is not None
    return found


def at_round(net: Network, i: int) -> None:
    net.run(done=lambda: all(u.server is not None and u.server.books.decided >= i for u in net.units))


def decided(net: Network) -> list[int]:
    return [unit.store.load().decided for unit in net.units]


def published(unit: Unit) -> list[int]:
    return [entry.event.round for entry in unit.store.entries() if entry.event.kind == "message"]


def lie(net: Network, to: int, **changes: Any) -> None:
    """What the network authenticated as the liar's, for it is."""
    seen = server(net, to).books.seen[LIAR]
    said: dict[str, Any] = {"decided": seen, "open": (), "seen": 0, "balance": None} | changes
    message = Sync(PLAN, 0, LIAR, to, said["decided"], said["open"], None, False, said["seen"], said["balance"])
    if "shown" in said:
        message = Sync(**vars(message) | {"shown": said["shown"]})
    net.at(net.now, server(net, to).from_server, net.now, LIAR, encode(message))


# Nothing but words


@pytest.mark.parametrize("opened", [((T, False),), ()])
def test_a_round_that_nobody_signed_moves_nobody_by_more_than_a_window(opened: tuple[tuple[int, bool], ...]) -> None:
    net = network()
    at_round(net, 3)
    lie(net, 1, decided=T, open=opened)
    net.run(until=net.now + 9.0)  # the tick of the next round has not come
    assert max(decided(net)) <= 3 + W
    assert "server 0 speaks of rounds that no signature shows" in server(net, 1).alarms[0]
    assert server(net, 1).books.seen[LIAR] <= 3 + W  # nor does it work later, when the true server is heard again
    net.kill(LIAR, away=3.0)
    net.run(until=net.now + 300.0)
    assert all(server(net, p).phase is not Phase.STOPPED for p in range(5))
    assert 30 <= max(decided(net)) <= 3 + W + 32
    assert max(decided(net)) - min(decided(net)) <= 1
    for unit in net.units:
        assert len(published(unit)) >= max(decided(net)) - W - 3


def test_a_round_that_a_server_has_not_signed_does_not_stop_it() -> None:
    net = network()
    at_round(net, 3)
    lie(net, 1, seen=T)
    net.run(until=net.now + 100.0)
    assert server(net, 1).phase is not Phase.STOPPED
    assert published(net.units[1]) == list(range(1, server(net, 1).books.decided + 1))
    assert any("shows no signature" in what for what in server(net, 1).alarms)


@pytest.mark.parametrize("claim", ["seen", "decided"])
def test_a_lie_moves_a_server_that_rejoins_no_further_than_signatures_and_time_explain(claim: str) -> None:
    """A round that is skipped takes `adapt`, and nothing signed shows it: so much is believed, and paid for."""
    unit = scripted(Graph.parse("path:3"), scheme("homomorphic", 0.5), rounds=T, window=W, tick=0.5)[1]
    ports = Ports(lambda *_: None, lambda *_: None, unit.noise, unit.sample, unit.sign)
    server, signed, now = Server(unit.terms, unit.store, ports), 195, 200.0
    server.boot(now, rejoin=True)
    true = Sync(PLAN, 0, 2, 1, signed, (), None, False, signed, None, (publication(PLAN, 2, signed, MESSAGE),))
    server.from_server(now, 2, encode(true))
    lie = {"decided": 1, "seen": 0, claim: server.clock.latest}
    server.from_server(now, 0, encode(Sync(PLAN, 0, 0, 1, lie["decided"], (), None, False, lie["seen"], None)))
    skipped = int((now - 0.5 * signed) / 10.0)
    assert server.books.rejoined == signed + W + skipped + server.terms.leash < server.clock.latest - 100
    (words,) = server.alarms
    assert words == f"server 0 speaks of rounds that no signature shows; believed up to round {signed + W + skipped}"


def rejoined(graph: str, me: int, seen: dict[int, int], now: float) -> Server:
    """By what its neighbours say that they saw of it, and decided themselves."""
    unit = scripted(Graph.parse(graph), scheme("homomorphic", 0.5), rounds=T, window=W)[me]
    ports = Ports(lambda *_: None, lambda *_: None, unit.noise, unit.sample, unit.sign)
    server = Server(unit.terms, unit.store, ports)
    server.boot(now, rejoin=True)
    for m, i in seen.items():
        server.from_server(now, m, encode(Sync(PLAN, 0, m, me, i, (), None, False, i, None)))
    return server


def test_an_only_neighbour_that_says_less_than_it_saw_gets_no_round_twice() -> None:
    """It has every message of a server whose store is lost, and would like others of the same rounds."""
    server = rejoined("path:2", 1, {LIAR: 1}, 1000.0)
    assert server.books.rejoined == 1 + server.terms.clock_round(1000.0)


def test_of_two_neighbours_one_that_says_less_than_it_saw_needs_another_that_was_out_of_touch() -> None:
    """What is taken for granted: one of them at least saw what the others did, and says so."""
    truth, late = 100, 10
    honest = rejoined("path:3", 1, {0: 1, 2: truth}, 1005.0)
    assert honest.books.rejoined >= truth
    assert rejoined("path:3", 1, {0: 1, 2: late}, 1005.0).books.rejoined == late + honest.terms.leash


# What is signed


def test_a_server_that_signs_its_lie_is_followed_and_everybody_keeps_the_signature() -> None:
    """It is a publication that its own ledger has to show: the price of ending the plan for others."""
    net = network()
    at_round(net, 3)
    signed = publication(PLAN, LIAR, 300, MESSAGE)
    lie(net, 1, decided=300, shown=(signed,), balance=(0, bytes(32)))  # else it were one that rejoined, and waits
    net.run(until=net.now + 60.0)
    assert server(net, 1).books.decided > 300
    kept = [p for p in range(1, 5) if signed.place in net.units[p].store.load().signed]
    assert 1 in kept


def test_two_signed_messages_for_a_round_are_proof_and_it_is_kept() -> None:
    net = network()
    at_round(net, 3)
    lie(net, 1, shown=(publication(PLAN, LIAR, 3, MESSAGE),))
    net.run(until=net.now + 1.0)
    (words,) = server(net, 1).alarms
    assert words == "server 0 sent other bytes for round 3: it signed both, and the store keeps the proof"
    raw = net.units[1].store.load().proofs[LIAR]
    proof, identities = evidence.decode(raw), net.units[1].terms.rules.identities
    assert proof.holds(identities)
    assert (proof.one.server, proof.one.round) == (LIAR, 3)
    assert not evidence.Proof(proof.plan, proof.one, proof.one).holds(identities)
    assert not evidence.Proof(bytes(31) + b"x", proof.one, proof.other).holds(identities)
    forged = proof.other._replace(signature=proof.one.signature)
    assert not evidence.Proof(proof.plan, proof.one, forged).holds(identities)
    lie(net, 1, shown=(publication(PLAN, LIAR, 3, bytes(8)),))
    net.run(until=net.now + 1.0)
    assert net.units[1].store.load().proofs == {LIAR: raw}  # the first is enough


def test_who_was_proved_to_lie_is_followed_no_more() -> None:
    net = network("path:2")
    at_round(net, 3)
    net.kill(LIAR, away=1e9)  # from here on it says what is written here
    for round in (3, 300):
        lie(net, 1, decided=round, shown=(publication(PLAN, LIAR, round, MESSAGE),), balance=(0, bytes(32)))
        net.run(until=net.now + 1.0)
    taker = server(net, 1)
    assert taker.books.status[LIAR] is Status.SUSPECT
    assert (taker.books.seen[LIAR], taker.books.decided) == (300, 3)
    net.run(until=net.now + 100.0)
    assert taker.books.decided <= 3 + 11  # at its own pace


def test_what_is_kept_is_bounded() -> None:
    """The last W rounds of this server and of each neighbour, and one of somebody else."""
    net = network("star:4")
    at_round(net, 60)
    for unit in net.units:
        books = unit.store.load()
        assert len(books.signed) <= (len(books.neighbours) + 1) * W + 1
        assert not books.proofs


# Honest servers that were away


def back_after(graph: str, away: float) -> Network:
    net = network(graph, tick=1.0)
    at_round(net, 3)
    net.kill(1, away)
    net.run(until=net.now + away - 1.0)
    return net


def test_one_that_was_away_catches_up_with_those_who_published() -> None:
    net = back_after("ring:5", 400.0)
    there = max(decided(net))
    assert there > 60
    net.run(until=net.now + 10.0)
    assert server(net, 1).books.decided >= there
    net.run(until=net.now + 40.0)
    assert published(net.units[1])[-1] > there
    assert not any(unit.server.alarms or unit.server.refusals for unit in net.units if unit.server)


def test_one_that_was_away_catches_up_with_one_that_could_only_skip() -> None:
    """It published a leash beyond what the other knew, and skipped: nothing signed shows it, but the own clock does."""
    net = back_after("path:2", 400.0)
    there = server(net, 0).books.decided
    assert published(net.units[0])[-1] <= 3 + 2 * W < there - 2 * W
    net.run(until=net.now + 25.0)
    assert server(net, 1).books.decided >= there
    net.run(until=net.now + 60.0)
    for unit in net.units:
        assert published(unit)[-1] > there
    assert not any(unit.server.alarms for unit in net.units if unit.server)


def test_a_store_that_is_put_back_stops_by_its_own_signature() -> None:
    net = network("path:2")
    at_round(net, 3)
    old = MemoryStore(net.units[1].store.load())
    old._entries = list(net.units[1].store.entries())
    at_round(net, 6)
    net.units[1].store = old
    net.kill(1, away=0.5)
    net.run(until=net.now + 20.0)
    assert server(net, 1).phase is Phase.STOPPED
    assert "signature of this server" in server(net, 1).why
    assert "older than what left" in server(net, 1).why


def test_signatures_that_come_in_falling_order_are_bounded_as_well() -> None:
    """While the sum waits for its tick a server follows nobody, and offers of later rounds are early ones."""
    net = network("path:2")
    at_round(net, 3)
    taker = server(net, 1)
    net.run(done=lambda: taker.rounds.cohort is not None and taker.rounds.cohort.sum is not None)
    for i in range(400, taker.books.decided + 1, -1):
        signed = (publication(PLAN, LIAR, i, MESSAGE),)
        said = Sync(PLAN, 0, LIAR, 1, i, ((i, False),), (i, MESSAGE), False, 0, None, signed)
        taker.from_server(net.now, LIAR, encode(said))
    taker.settle()
    assert sum(place[0] == LIAR for place in net.units[1].store.load().signed) <= W


def test_who_passes_on_what_another_signed_too_far_ahead_is_not_refused() -> None:
    """Server 2 signs the last round that the clock of server 1 allows; that of server 0 is half a second behind."""
    units = scripted(Graph.parse("path:3"), scheme("homomorphic", 0.5), rounds=T, window=W)
    said: list[tuple[int, bytes]] = []
    first, middle = (
        Server(
            u.terms, u.store, Ports(lambda m, raw: said.append((m, raw)), lambda *_: None, u.noise, u.sample, u.sign)
        )
        for u in units[:2]
    )
    now = 100.2
    first.boot(now - 0.5)
    middle.boot(now)
    far = publication(PLAN, 2, middle.clock.latest, MESSAGE)
    middle.from_server(now, 2, encode(Sync(PLAN, 0, 2, 1, far.round, (), None, False, 0, None, (far,))))
    said.clear()
    middle.connected(now, 0)
    for to, raw in said:
        if to == 0:
            assert far in decode(raw, 10**6).shown  # type: ignore[union-attr]
            first.from_server(now - 0.5, 1, raw)
    assert not first.alarms
    assert not first.refusals
    assert far.place not in first.books.signed  # it comes again, and is then of use
