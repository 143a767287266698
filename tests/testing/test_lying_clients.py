"""Issue 25, item 7: one client lies in the secure sum, and its unit goes on, and so does everybody's release."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from builders import deployed
from confide.deploy.machines import client_messages
from confide.deploy.machines.release import Part, Released
from confide.deploy.machines.rounds import LEFT_OUT
from confide.deploy.node import seeded
from confide.plans.config import parse
from confide.privacy import price
from confide.secure import messages
from confide.secure.messages import Answer, FromClient, Masked, Shares
from confide.testing.network import Client, Network, Unit
from confide.testing.rehearsal import forged_units, server_identity, training_units
from invariants import Watch, balanced

ROUNDS, CLIENTS, UNIT, LIAR = 6, 5, 1, 2
BASE: dict[str, Any] = {
    "rounds": ROUNDS,
    "repeats": 1,
    "graph": {"topology": "path"},
    "problem": {"units": 3, "clients": CLIENTS, "samples": 12, "features": 2},
    "algorithm": {"step": 0.1, "sampled": CLIENTS, "clip": "example", "bound": 1.0, "arithmetic": "fixed",
                  "aggregation": "secure", "fraction_bits": 20},
    "scheme": {"name": "homomorphic", "sigma": 0.2, "noise": "gaussian"},
    "privacy": {"release": "centroid:0.5", "unprotected": True},
}  # fmt: skip

Lie = Callable[[FromClient], FromClient]


@dataclass
class Liar:
    """An honest client whose words are changed on their way; `lies` are said in these rounds."""

    inner: Client
    lie: Lie
    rounds: range = range(1, ROUNDS + 1)

    @property
    def clock(self) -> Callable[[], float]:
        return self.inner.clock  # type: ignore[attr-defined]

    @clock.setter
    def clock(self, clock: Callable[[], float]) -> None:
        self.inner.clock = clock  # type: ignore[attr-defined]

    def hello(self) -> bytes:
        return self.inner.hello()

    def receive(self, raw: bytes) -> list[bytes]:
        return [self.changed(reply) for reply in self.inner.receive(raw)]

    def changed(self, raw: bytes) -> bytes:
        reply = client_messages.from_client(raw, 1 << 20)
        if not isinstance(reply, client_messages.Reply) or reply.round not in self.rounds:
            return raw
        said = messages.encode(self.lie(messages.from_client(reply.payload, 1 << 20)))
        return client_messages.encode(replace(reply, payload=said))


def wrong_shares(said: FromClient) -> FromClient:
    if not isinstance(said, Answer):
        return said
    return replace(said, seeds=tuple((j, share[:-1] + bytes([share[-1] ^ 1])) for j, share in said.seeds))


def bad_seals(said: FromClient) -> FromClient:
    """None of its seals can be opened: its secret is lost, whatever the others do."""
    if not isinstance(said, Shares):
        return said
    return replace(said, sealed=tuple((j, bytes(len(sealed))) for j, sealed in said.sealed))


def one_bad_seal(said: FromClient) -> FromClient:
    if not isinstance(said, Shares):
        return said
    (j, sealed), *rest = said.sealed
    return replace(said, sealed=((j, bytes(len(sealed))), *rest))


def wrong_commitment(said: FromClient) -> FromClient:
    return replace(said, commitment=bytes(32)) if isinstance(said, Shares) else said


def poison(said: FromClient, ring_bits: int = 32, sign: int = 1) -> FromClient:
    """As far as the ring goes, and a little differently in each coordinate."""
    if not isinstance(said, Masked):
        return said
    words = np.frombuffer(said.words, f"<u{ring_bits // 8}")
    much = np.array((1 << (ring_bits - 2)) - 17 * np.arange(len(words)), words.dtype)
    return replace(said, words=(words + much if sign > 0 else words - much).tobytes())


@dataclass
class Played:
    network: Network
    units: list[Unit]
    watch: Watch
    prices: price.Price
    events: list[tuple[int, str, dict[str, Any]]]
    released: dict[int, list[Released]] = field(default_factory=dict)

    def published(self, p: int) -> int:
        return sum(entry.event.kind == "message" for entry in self.units[p].store.entries())

    def of(self, event: str) -> list[tuple[int, dict[str, Any]]]:
        return [(p, fields) for p, name, fields in self.events if name == event]


def play(lie: Lie | None, rounds: int = ROUNDS, lies_in: range | None = None, **tables: Any) -> Played:
    """A network with one liar, to the end of its rounds."""
    config = BASE | {"rounds": rounds}
    e = parse(config | {name: BASE.get(name, {}) | table for name, table in tables.items()}).build()
    announced = forged_units(e.problem.federation.P, e.problem.federation.K.tolist())
    prices = price.agreed(deployed(e, announced, adapt=10.0, exchange=2.0, drain=20.0))
    units = training_units(prices, e.problem, e.seed)
    found = Played(None, units, None, prices, [])  # type: ignore[arg-type]
    assert prices.reveal_terms is not None
    for p, unit in enumerate(units):
        told = found.released.setdefault(p, [])
        share = seeded.release_share(1, p)
        unit.release = Part(
            prices.reveal_terms, prices.release_after, planned=1, attempts=1, identity=server_identity(p), share=share,
            patience=60.0, released=told.append,
        )  # fmt: skip
    if lie is not None:
        make, when = units[UNIT].clients[LIAR], lies_in or range(1, rounds + 1)
        units[UNIT].clients[LIAR] = lambda: Liar(make(), lie, when)  # type: ignore[index]
    found.watch = Watch([u.terms for u in units], [u.store.load() for u in units])
    found.network = Network(
        units, seed=1, committed=found.watch.committed, sent=found.watch.sent,
        log=lambda p, event, **fields: found.events.append((p, event, fields)),
    )  # fmt: skip
    found.network.run(until=100.0 * rounds, done=found.network.finished)
    assert found.network.finished(), [u.server and (u.server.phase, u.server.pending) for u in units]
    balanced(found.watch.terms, found.watch.books)
    return found


def models(found: Played) -> list[list[int]]:
    return [unit.store.load().w.tolist() for unit in found.units]


@pytest.mark.parametrize("server", ["curious", "active"])
@pytest.mark.parametrize("lie", [wrong_shares, one_bad_seal])
def test_a_round_ends_with_the_sum_that_it_would_have_had(lie: Lie, server: str) -> None:
    secure = {"server": server, "corrupted": 0.0, "dropped": 0.2}
    honest, lied = play(None, secure=secure), play(lie, secure=secure)
    assert [lied.published(p) for p in range(3)] == [ROUNDS] * 3
    assert models(lied) == models(honest)
    assert not lied.of("left out")


@pytest.mark.parametrize("server", ["curious", "active"])
@pytest.mark.parametrize("lie", [bad_seals, wrong_commitment])
def test_who_makes_a_round_fail_is_left_out_of_the_next(lie: Lie, server: str) -> None:
    found = play(lie, secure={"server": server, "corrupted": 0.0, "dropped": 0.2})
    assert [found.published(p) for p in range(3)] == [ROUNDS, ROUNDS - 1, ROUNDS]
    assert found.of("left out") == [(UNIT, {"client": LIAR, "round": 1 + LEFT_OUT})]
    counts = [fields["clients"] for p, fields in found.of("published") if p == UNIT]
    assert counts == [CLIENTS - 1] * (ROUNDS - 1)
    attempt = found.units[UNIT].store.load().attempt
    assert attempt is not None
    assert set(attempt.sample) == set(range(CLIENTS))  # it stays in the draw


def test_it_comes_back_after_some_rounds() -> None:
    rounds = LEFT_OUT + 4
    found = play(bad_seals, rounds, range(1, 2), secure={"corrupted": 0.0})
    counts = [fields["clients"] for p, fields in found.of("published") if p == UNIT]
    assert counts == [CLIENTS - 1] * LEFT_OUT + [CLIENTS] * (rounds - LEFT_OUT - 1)


@pytest.mark.parametrize("sigma", [0.0, 0.2], ids=["sums in clear", "noise inside"])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("ring_bits", [32, 64])
def test_a_poisoned_sum_stays_in_range(ring_bits: int, sign: int, sigma: float) -> None:
    """Every flow closes, every state is one that a release takes, and the release is the same everywhere."""
    algorithm = {"fraction_bits": 20 if sigma == 0.0 or ring_bits == 64 else 16}
    secure = {"ring_bits": ring_bits, "sigma": sigma, "corrupted": 0.0}
    found = play(partial(poison, ring_bits=ring_bits, sign=sign), secure=secure, algorithm=algorithm)
    assert [found.published(p) for p in range(3)] == [ROUNDS] * 3
    assert Counter(p for p, _ in found.of("out of range")) == {UNIT: ROUNDS}
    for unit in found.units:
        assert unit.server is not None
        assert not unit.server.alarms
        assert not [why for why in unit.server.refusals if why.startswith("server")]
        assert np.abs(unit.store.load().w).max() <= unit.terms.rules.largest
    found.network.release(0)
    found.network.run(until=found.network.now + 600.0)
    told = [result for results in found.released.values() for result in results]
    assert len(told) == len(found.units)
    assert len({result.total.tobytes() for result in told}) == 1
    mean = np.mean([unit.store.load().w for unit in found.units], axis=0) * found.prices.arithmetic.quantum
    assert np.abs(told[0].mean - mean).max() < 10 * 0.5


def test_an_honest_network_is_never_out_of_range() -> None:
    """However large the updates: they are clipped to the bound that the clamp knows."""
    found = play(None, secure={"sigma": 0.2, "corrupted": 0.0}, algorithm={"step": 5.0, "fraction_bits": 14})
    assert not found.of("out of range")
    assert not found.of("left out")
