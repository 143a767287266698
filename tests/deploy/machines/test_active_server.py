"""An active server over several rounds: within one it learns a sum and no more, across rounds it can compare sums.

It hands out the same model in two rounds and says that a client dropped out of the second: where training is a function
of the model, the sums differ by that client's update. Against that only noise inside the sum is a proof. Without it the
statement promises a single round, and the clients' own clocks let the attack run no faster than the plan.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from confide.base.arrays import Floats
from confide.deploy.keys.announcement import agree
from confide.deploy.machines import client_messages as cm
from confide.deploy.machines.client import Client, ClientTerms, Reason
from confide.deploy.store.record import Record
from confide.laws.noise import discrete_gaussian
from confide.laws.secret_stream import SecretStream
from confide.plans.plan import Plan
from confide.plans.words import OwnServer
from confide.privacy.price import price
from confide.secure import messages, server
from confide.secure.client import Member
from confide.secure.encoding import signed, truncate
from confide.testing.rehearsal import client_identity, forged_units

K, M, ROUNDS, VICTIM, BEGIN = 6, 3, 20, 4, 1_000_000.0
CLOCKS = {"adapt": 60.0, "tick": 60.0, "exchange": 30.0, "start": BEGIN}
MODEL = np.array([40_000, -90_000, 123_457], "<i8").tobytes()
PEERS = {k: client_identity(0, k).public for k in range(K)}


def a_plan(sigma: float = 0.0, **clocks: float) -> Plan:
    config: dict[str, Any] = {
        "rounds": ROUNDS,
        "graph": {"topology": "path"},
        "problem": {"units": 2, "clients": K, "features": M, "rho": 0.0},
        "algorithm": {
            "step": 0.1, "sampled": K, "clip": "update", "bound": 5.0, "arithmetic": "fixed", "aggregation": "secure",
        },
        "secure": {"server": "active", "corrupted": 0.0, "dropped": 0.17, "sigma": sigma, "ring_bits": 64},
        "scheme": {"name": "shared", "sigma": 0.1, "noise": "gaussian"},
        "privacy": {"unprotected": True},
    }  # fmt: skip
    return agree(config, forged_units(2, K), **CLOCKS | clocks)


def update(k: int, weights: Floats) -> Floats:
    """Deterministic training: a function of the model."""
    return 0.05 * np.sin(weights * (k + 1) + k)


class Attacked:
    """Clients as they are, and a server that does what it likes."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.now = plan, BEGIN
        self.clients = {k: self._client(k) for k in range(K)}
        self.sums: list[np.ndarray] = []

    def _client(self, k: int) -> Client:
        terms = ClientTerms.of_plan(self.plan, 0, k)
        return Client(
            terms, lambda weights, *_: update(k, weights), Record(terms.owner), Member(k, client_identity(0, k), PEERS),
            noise=lambda _, size: discrete_gaussian(SecretStream(), terms.share_quanta, size), clock=lambda: self.now,
        )  # fmt: skip

    def sum(self, round: int, without: tuple[int, ...] = ()) -> np.ndarray | None:
        """The sum of a round with this model, of which the server says that these dropped out; None if it gets none."""
        terms = self.clients[0].terms
        task = terms.task(round, hashlib.sha256(MODEL).digest())
        state: server.State = server.start(task, range(K), PEERS)
        asks = dict.fromkeys(range(K), cm.encode(cm.Invite(terms.plan, round, 1, MODEL)))
        while asks:
            for k, ask in asks.items():
                for raw in self.clients[k].receive(ask):
                    reply = cm.from_client(raw, 1 << 20)
                    if isinstance(reply, cm.Reply) and not (isinstance(state, server.Masking) and k in without):
                        state = server.receive(state, k, messages.from_client(reply.payload, 1 << 20))
            state, told = server.close(state)
            asks = {k: cm.encode(cm.Step(round, 1, messages.encode(message))) for k, message in told.items()}
        if not isinstance(state, server.Summed):
            return None
        self.sums.append(signed(state.total))
        return self.sums[-1]


def words(plan: Plan, k: int) -> np.ndarray:
    """What client k adds to a sum where there is no noise."""
    terms = ClientTerms.of_plan(plan, 0, k)
    return truncate(update(k, np.frombuffer(MODEL, "<i8") * terms.quantum), terms.fraction_bits)


def test_two_rounds_with_one_model_give_a_client_away_where_no_noise_is_in_the_sum() -> None:
    """To the last bit: this is why the statement promises a single round."""
    plan = a_plan()
    attacked = Attacked(plan)
    whole = attacked.sum(1)
    attacked.now += 60.0
    rest = attacked.sum(2, without=(VICTIM,))
    assert whole is not None
    assert rest is not None
    assert np.array_equal(whole - rest, words(plan, VICTIM))
    assert attacked.sum(2) is None  # within a round nobody answers twice
    said = str(price(plan).statement())
    assert "within one round only" in " ".join(said.split())


def test_with_noise_inside_the_sum_the_account_covers_it() -> None:
    plan = a_plan(sigma=0.5)
    attacked = Attacked(plan)
    whole = attacked.sum(1)
    attacked.now += 60.0
    rest = attacked.sum(2, without=(VICTIM,))
    assert whole is not None
    assert rest is not None
    terms = attacked.clients[0].terms
    error = (whole - rest - words(plan, VICTIM)) / terms.share_quanta  # eleven shares of noise
    assert np.abs(error).max() > 0.1
    prices = price(plan)
    spent = [prices.account(j, threat=OwnServer()) for j in (1, 2, ROUNDS)]
    assert [account.by for account in spent] == ["sum"] * 3
    epsilons = [account.epsilon for account in spent]
    assert all(epsilon is not None for epsilon in epsilons)
    assert epsilons == sorted(epsilons)  # type: ignore[type-var]
    said = " ".join(str(prices.statement()).split())
    assert "noise inside the secure sum" in said
    assert "within one round only" not in said


@pytest.mark.parametrize("ahead", [0.0, 30.0])  # the server's clock may be ahead by what servers' may differ
def test_the_clients_clocks_let_it_ask_no_faster_than_the_plan(ahead: float) -> None:
    """It asks for every round at every moment."""
    attacked = Attacked(a_plan())
    attacked.now -= ahead
    for n in range(40):
        for round in range(1, ROUNDS + 1):
            attacked.sum(round, without=(round % K,))
        elapsed = attacked.now - BEGIN
        assert len(attacked.sums) <= 1 + (elapsed + 30.0) // 60.0
        assert n or len(attacked.sums) == 1
        attacked.now += 15.0
    refused = {why for client in attacked.clients.values() for why in client.refusals}
    assert Reason.EARLY in refused


def test_rounds_that_were_held_back_are_not_asked_for_all_at_once() -> None:
    attacked = Attacked(a_plan())
    attacked.now += 15 * 60.0  # nothing was asked for a quarter of an hour, and all these rounds are due
    for n in range(5):
        for round in range(1, ROUNDS + 1):
            attacked.sum(round)
        assert len(attacked.sums) == 2 + n
        attacked.now += 60.0


def test_an_honest_server_is_never_early() -> None:
    """However late a round is heard and answered: the next one is opened a tick after it, and after the answer."""
    attacked = Attacked(a_plan(adapt=60.0, tick=1.0, exchange=37.0))
    random = np.random.default_rng(1)
    opened = BEGIN
    for round in range(1, ROUNDS + 1):
        late = float(random.choice([0.0, 0.2, 0.99, 5.0]))
        attacked.now = opened + late
        assert attacked.sum(round) is not None
        opened += max(1.0, np.ceil(late))
    assert not any(client.refusals for client in attacked.clients.values())
