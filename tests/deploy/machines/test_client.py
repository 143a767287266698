"""The client's machine against servers that are honest, forgetful or hostile, over a network that is worse."""

from __future__ import annotations

import hashlib
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import builders
from builders import mutated
from confide.base.errors import InputError, RunError
from confide.base.randomness import Purpose, key
from confide.base.wire import MalformedError
from confide.deploy.machines.client import MODELS, Client, ClientTerms
from confide.deploy.machines.client_messages import (
    FROM_SERVER,
    Decline,
    Enrol,
    FromClient,
    Invite,
    Refusal,
    Reply,
    Step,
    Update,
    Welcome,
    encode,
    from_client,
    from_server,
)
from confide.deploy.machines.training import built_in
from confide.deploy.store.record import Owner, Record
from confide.graph.graph import Graph
from confide.laws.secret_stream import SecretStream
from confide.plans.plan import Plan
from confide.problems.federation import Federation
from confide.problems.models import Linear, Logistic
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL
from confide.rounds.arithmetic import FixedArithmetic
from confide.rounds.clipping import Clip
from confide.rounds.local import LocalTask
from confide.rounds.reference import Reference, prepare
from confide.rounds.schemes import scheme
from confide.secure import messages, server
from confide.secure.client import Answered, Member
from confide.secure.keys import Identity
from confide.secure.messages import Answer
from confide.secure.session import RefusedError, Task
from confide.secure.settings import Secure
from exploring import more

UNIT, K, M, ROUNDS, SEED = 1, 6, 3, 5, 11
SECURE = Secure(corrupted=0.0, dropped=0.34)  # 4 of 6 are enough
ACTIVE = Secure(corrupted=0.0, dropped=0.17, server="active")  # 5 of 6
IDENTITIES = {k: Identity.of(hashlib.sha256(b"client %d" % k).digest()) for k in range(K)}
PEERS = {k: identity.public for k, identity in IDENTITIES.items()}
LARGE = 1 << 20


@cache
def a_plan(**changes: Any) -> Plan:
    usual = {"graph": Graph.ring(3), "rounds": ROUNDS, "step": 0.3, "bound": 0.5, "local_steps": 2, "batch": 3}
    return builders.a_plan(**usual | {"sampled": K, "clients": K, "dim": M} | changes)


@cache
def a_problem(model: str) -> Problem:
    rng = np.random.default_rng(2)

    def samples(n: int) -> tuple[np.ndarray, np.ndarray]:
        X = rng.standard_normal((n, M))
        d = X @ np.array([1.0, -2.0, 0.5]) + 0.3 * rng.standard_normal(n)
        return X, d if model == "linear" else np.where(d > 0, 1.0, -1.0)

    clients = [[samples(int(rng.integers(4, 9))) for _ in range(K)] for _ in range(3)]
    return Problem(Federation.from_clients(clients), Linear(0.1) if model == "linear" else Logistic(0.1), None)


@cache
def a_reference(aggregation: Secure | None = SECURE, clip: str = "example", model: str = "linear") -> Reference:
    alg = GFL(
        scheme("homomorphic", 0.1, noise="gaussian"),
        step=0.3,
        sampled=K,
        local_steps=(1, 3),
        batch=(2, 4),
        clip=Clip(clip, 0.5),
        arithmetic="fixed",
        fraction_bits=16,
        aggregation=aggregation,
    )
    return prepare(a_problem(model), [Graph.ring(3)], alg, ROUNDS, SEED)(0)


def terms_of(reference: Reference, k: int) -> ClientTerms:
    alg, arith = reference.algorithm, reference.arithmetic
    assert isinstance(arith, FixedArithmetic)
    assert alg.clip is not None
    bound = alg.clip.update_bound(alg.step)
    secure = None if alg.aggregation is None else alg.aggregation.sums(K)
    return ClientTerms(a_plan().text, 1, ROUNDS, UNIT, k, arith.quantum, M, alg.fraction_bits, bound, secure)


def trainer_of(reference: Reference, k: int) -> Any:
    f, alg = reference.problem.federation, reference.algorithm
    c = int(f.unit_offsets[UNIT]) + k
    E, batch = int(reference.E[c]), int(reference.batch[c])
    task = LocalTask(reference.problem.model, alg.step, E, batch, alg.replacement, alg.clip, 0)
    return built_in(task, *f.client(UNIT, k), lambda i: key(reference.seed, Purpose.BATCHES, i, UNIT, k))


def member(k: int) -> Member:
    return Member(k, IDENTITIES[k], PEERS)


def a_client(reference: Reference, k: int, record: Record | None = None, **changes: Any) -> Client:
    terms = terms_of(reference, k)
    arguments: dict[str, Any] = {
        "trainer": trainer_of(reference, k),
        "record": record or Record(terms.owner),
        "member": member(k),
        "noise": lambda i, size: reference.client_noise(i, UNIT, k, size),
        "clock": count(1e6, 1000.0).__next__,  # rounds are far apart; their pace is in `test_active_server`
    }
    return Client(terms, **arguments | changes)


def everyone(reference: Reference) -> dict[int, Client]:
    return {k: a_client(reference, k) for k in range(K)}


def the_same_every_time(reference: Reference) -> dict[int, Client]:
    """With the same keys: what one of them is told is a message of the other's session."""
    return {k: a_client(reference, k, entropy=np.random.default_rng(k).bytes) for k in range(K)}


W = np.array([40_000, -90_000, 123_457], "<i8")  # a server's state


def invitation(round: int = 1, attempt: int = 1, model: np.ndarray = W, plan: bytes | None = None) -> bytes:
    return encode(Invite(plan or bytes.fromhex(a_plan().hash), round, attempt, model.astype("<i8").tobytes()))


def the_task(reference: Reference, round: int = 1, model: np.ndarray = W) -> Task:
    return terms_of(reference, 0).task(round, hashlib.sha256(model.astype("<i8").tobytes()).digest())


def heard(raw: bytes) -> FromClient:
    return from_client(raw, LARGE)


def only(replies: list[bytes]) -> FromClient:
    (raw,) = replies
    return heard(raw)


@dataclass
class Unit:
    """A server that plays by the rules, as far as one test needs it: one attempt of one round."""

    reference: Reference
    round: int = 1
    attempt: int = 1
    w: np.ndarray = field(default_factory=lambda: W)
    invited: Iterable[int] = range(K)
    state: server.State = field(init=False)
    asks: dict[int, bytes] = field(init=False)  # what each client was told last
    updates: dict[int, np.ndarray] = field(default_factory=dict)
    declined: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.asks = dict.fromkeys(self.invited, invitation(self.round, self.attempt, self.w))
        if self.reference.algorithm.aggregation is not None:
            self.state = server.start(the_task(self.reference, self.round, self.w), self.invited, PEERS)

    def receive(self, k: int, raw: bytes) -> None:
        said = heard(raw)
        if isinstance(said, Enrol) or (said.round, said.attempt) != (self.round, self.attempt):
            return
        if isinstance(said, Decline):
            self.declined[k] = said.why
        elif isinstance(said, Update):
            self.updates[k] = np.frombuffer(said.words, "<i8")
        else:
            with suppress(RefusedError):  # it came twice, or late
                self.state = server.receive(self.state, k, messages.from_client(said.payload, LARGE))

    @property
    def missing(self) -> frozenset[int]:
        return server.missing(self.state) - self.declined.keys()

    def close(self) -> bool:
        """The next phase; false when there is none."""
        self.state, told = server.close(self.state)
        self.asks = {k: encode(Step(self.round, self.attempt, messages.encode(message))) for k, message in told.items()}
        return bool(told)

    def total(self) -> np.ndarray:
        encoding = self.reference.algorithm.encoding()
        assert isinstance(self.state, server.Summed), self.state
        return encoding.decode(self.state.total)


def play(unit: Unit, clients: Mapping[int, Client], silent: Mapping[int, int] | None = None, phases: int = 9) -> int:
    """Phase by phase; a client of `silent` is not heard from that phase on. How many phases there were."""
    for phase in range(phases):
        for k, ask in unit.asks.items():
            if (silent or {}).get(k, 9) > phase:
                for raw in clients[k].receive(ask):
                    unit.receive(k, raw)
        if not unit.close():
            return phase + 1
    return phases


def expected(reference: Reference, survivors: Iterable[int], round: int = 1, w: np.ndarray = W) -> np.ndarray:
    """The sum that the reference works with."""
    alg, total = reference.algorithm, np.zeros(M, np.int64)
    for k in survivors:
        update, _ = reference.train(round, UNIT, k, reference.arithmetic.value(w))
        total += reference.arithmetic.encode(update)
        if alg.aggregation is not None and alg.aggregation.sigma:
            total += reference.client_noise(round, UNIT, k, M)
    return total


# ---- the same numbers as the reference


@pytest.mark.parametrize("model", ["linear", "logistic"])
@pytest.mark.parametrize("clip", ["example", "update"])
@pytest.mark.parametrize("sigma", [0.0, 0.02])
@pytest.mark.parametrize("kind", [SECURE, ACTIVE], ids=["curious", "active"])
def test_a_secure_round_is_the_references(model: str, clip: str, sigma: float, kind: Secure) -> None:
    reference = a_reference(replace(kind, sigma=sigma), clip, model)
    clients, w = everyone(reference), W
    for i in (1, 2):
        unit = Unit(reference, i, w=w)
        assert play(unit, clients) == (4 if kind is SECURE else 5)
        shrink = sum(reference.train(i, UNIT, k, reference.arithmetic.value(w))[1] for k in range(K)) / K
        psi = reference.adapt(i, UNIT, w, range(K))
        assert np.array_equal(reference.arithmetic.add(w, unit.total(), shrink), psi)
        assert (shrink > 0) == (clip == "example")
        assert not np.array_equal(psi, w)
        w = psi
    for client in clients.values():
        assert client.record.answered == 2
        assert not client.refusals
        assert not client.declined


@pytest.mark.parametrize("model", ["linear", "logistic"])
@pytest.mark.parametrize("clip", ["example", "update"])
def test_a_round_in_clear_is_the_references(model: str, clip: str) -> None:
    reference, w = a_reference(None, clip, model), W
    clients = everyone(reference)
    for i in (1, 2):
        unit = Unit(reference, i, w=w)
        for k, client in clients.items():
            unit.receive(k, *client.receive(invitation(i, 1, w)))
        shrink = sum(reference.train(i, UNIT, k, reference.arithmetic.value(w))[1] for k in range(K)) / K
        psi = reference.arithmetic.add(w, sum(unit.updates.values(), np.zeros(M, np.int64)), shrink)
        assert np.array_equal(psi, reference.adapt(i, UNIT, w, range(K)))
        w = psi
    assert {c.record.answered for c in clients.values()} == {2}  # an update in clear is the answer


@pytest.mark.parametrize("silent", [{0: 0}, {5: 1}, {2: 2}, {1: 3}, {0: 1, 3: 2}, {0: 2, 1: 3}, {4: 0, 5: 3}])
def test_whoever_drops_out_the_sum_is_of_the_rest(silent: dict[int, int]) -> None:
    reference = a_reference(replace(SECURE, sigma=0.02))
    clients = everyone(reference)
    unit = Unit(reference)
    play(unit, clients, silent)
    alive = [k for k in range(K) if silent.get(k, 9) > 2]
    assert np.array_equal(unit.total(), expected(reference, alive))
    for k, client in clients.items():
        assert client.record.answered == (k in alive and silent.get(k, 9) > 3)
    again = Unit(reference, 2)
    play(again, clients)  # all are well again
    assert np.array_equal(again.total(), expected(reference, range(K), 2))


def test_below_the_quorum_nobody_answers() -> None:
    reference = a_reference()
    clients = everyone(reference)
    unit = Unit(reference)
    play(unit, clients, {0: 2, 1: 2, 2: 2})
    assert isinstance(unit.state, server.Aborted)
    assert {c.record.answered for c in clients.values()} == {0}


# ---- attempts


@pytest.mark.parametrize("kind", [SECURE, ACTIVE], ids=["curious", "active"])
@pytest.mark.parametrize("phases", [0, 1, 2])
def test_a_server_that_crashed_before_its_question_begins_again(phases: int, kind: Secure) -> None:
    """With the same words and the same noise; masks are new."""
    reference, drawn = a_reference(replace(kind, sigma=0.02)), Counter[tuple[int, int]]()

    def counted(k: int) -> Callable[[int, int], Any]:
        def noise(i: int, size: int) -> Any:
            drawn[k, i] += 1
            return reference.client_noise(i, UNIT, k, size) + drawn[k, i] - 1  # a second draw would show

        return noise

    clients = {k: a_client(reference, k, noise=counted(k)) for k in range(K)}
    first = Unit(reference)
    play(first, clients, phases=phases)
    advertised = clients[0].receive(invitation(attempt=2))
    assert advertised == clients[0].receive(invitation(attempt=2))
    assert advertised != a_client(reference, 0).receive(invitation(attempt=2))
    second = Unit(reference, attempt=2)
    play(second, clients)
    assert np.array_equal(second.total(), expected(reference, range(K)))
    assert set(drawn.values()) == {1}


def test_another_model_in_another_attempt_is_trained_on_and_the_first_is_remembered() -> None:
    reference, calls = a_reference(), []

    def train(weights: np.ndarray, round: int, config: Mapping[str, Any], /) -> np.ndarray:
        calls.append(weights.tolist())
        return np.full(M, 0.01 * len(calls))

    client = a_client(reference, 0, trainer=train)
    other = W + 1
    for attempt, model in enumerate([W, other, W, other, W], 1):
        only(client.receive(invitation(attempt=attempt, model=model)))
    assert calls == [reference.arithmetic.value(W).tolist(), reference.arithmetic.value(other).tolist()]
    only(client.receive(invitation(2, 1)))
    only(client.receive(invitation(2, 2)))
    assert len(calls) == 3  # a new round, once


def test_models_without_end_are_declined() -> None:
    client = a_client(a_reference(), 0)
    for attempt in range(1, MODELS + 1):
        assert isinstance(only(client.receive(invitation(attempt=attempt, model=W + attempt))), Reply)
    before = snapshot(client)
    assert only(client.receive(invitation(attempt=50, model=W))) == Decline(1, 50, "model")
    assert snapshot(client) == before
    assert isinstance(only(client.receive(invitation(attempt=51, model=W + 1))), Reply)
    assert isinstance(only(client.receive(invitation(2, model=W))), Reply)


def test_a_question_of_a_forgotten_session_is_not_answered_again() -> None:
    """Answered in attempt 1; the server forgot. Nobody takes part in that round again, not even after a restart."""
    reference = a_reference()
    records = {k: Record(terms_of(reference, k).owner) for k in range(K)}
    clients = {k: a_client(reference, k, records[k]) for k in range(K)}
    play(Unit(reference), clients)
    for k in range(K):
        before = snapshot(clients[k])
        assert only(clients[k].receive(invitation(attempt=2))) == Decline(1, 2, "answered")
        assert only(clients[k].receive(invitation(attempt=3, model=W + 1))) == Decline(1, 3, "answered")
        assert snapshot(clients[k]) == before
        reborn = a_client(reference, k, records[k])
        for attempt in (1, 2):
            assert only(reborn.receive(invitation(attempt=attempt))) == Decline(1, attempt, "answered")
    play(unit := Unit(reference, 2), clients)
    assert np.array_equal(unit.total(), expected(reference, range(K), 2))


def test_older_rounds_and_attempts_are_passed_over() -> None:
    client = a_client(a_reference(), 0)
    client.receive(invitation(3, 5))
    before = snapshot(client)
    for place in ((1, 1), (2, 9), (3, 4), (3, 1)):
        assert client.receive(invitation(*place)) == []
        assert client.receive(encode(Step(*place, b"anything"))) == []
    assert snapshot(client) == before
    assert not client.refusals
    assert not client.declined


# ---- repetitions


def test_the_last_message_is_answered_with_the_same_bytes_and_older_ones_not_at_all() -> None:
    reference = a_reference(ACTIVE)
    clients, told = everyone(reference), list[bytes]()
    unit = Unit(reference)
    while True:
        for k, ask in unit.asks.items():
            replies = clients[k].receive(ask)
            assert len(replies) == 1
            for _ in range(2):
                assert clients[k].receive(ask) == replies
            if k == 0:
                assert all(clients[0].receive(old) == [] for old in told)
                assert clients[0].receive(ask) == replies
                told.append(ask)
            unit.receive(k, *replies)
        if not unit.close():
            break
    assert len(told) == 5  # the question came once more after the answer, and did no harm
    assert np.array_equal(unit.total(), expected(reference, range(K)))
    assert isinstance(clients[0]._at.state, Answered)  # type: ignore[union-attr]


def test_an_update_in_clear_is_repeated() -> None:
    client = a_client(a_reference(None), 0)
    first = client.receive(invitation())
    assert client.receive(invitation()) == first
    again = only(client.receive(invitation(attempt=2)))
    assert isinstance(again, Update)
    assert again.words == heard(first[0]).words  # type: ignore[union-attr]


def test_in_clear_a_round_is_answered_once_for_one_model_whoever_asks_again() -> None:
    """A server that begins again gets the same words; one whose store was put back none, after a restart too."""
    reference = a_reference(None)
    client = a_client(reference, 0)
    said = {}
    for attempt, model in enumerate((W, 100 * W, W), 1):
        said[attempt] = only(client.receive(invitation(attempt=attempt, model=model)))
    assert isinstance(said[1], Update)
    assert isinstance(said[3], Update)
    assert said[1].words == said[3].words == expected(reference, [0], w=W).astype("<i8").tobytes()
    assert said[2] == Decline(1, 2, "answered")
    reborn = a_client(reference, 0, client.record)
    assert only(reborn.receive(invitation(attempt=4))) == Decline(1, 4, "answered")
    assert isinstance(only(reborn.receive(invitation(round=2))), Update)


def test_a_trainer_may_spoil_its_weights() -> None:
    """They are its own: the same model gives the same update again."""

    def spoils(weights: np.ndarray, round: int, config: Mapping[str, Any]) -> np.ndarray:
        update = 0.01 * weights
        weights[:] = 7.0
        return update

    client = a_client(a_reference(None), 0, trainer=spoils)
    words = [only(client.receive(invitation(round=i))).words for i in (1, 2)]  # type: ignore[union-attr]
    assert words[0] == words[1]
    assert any(words[0])


@settings(max_examples=more(25, 60))
@example(74089, ACTIVE, True)  # the crash falls into the phase in which the words are given
@given(st.integers(0, 2**64), st.sampled_from([SECURE, ACTIVE]), st.booleans())
def test_any_interleaving_with_loss_and_repetition_gives_the_same_sum(seed: int, kind: Secure, crash: bool) -> None:
    """Messages wait in a bag, are drawn in any order, stay in it or not, and survive a server's restart."""
    reference, rng = a_reference(kind), random.Random(seed)  # noqa: S311
    clients, bag = everyone(reference), list[tuple[str, int, bytes]]()
    unit = Unit(reference)
    crash_at = rng.randrange(60) if crash else -1
    # Later a second attempt finds clients that have given all that they give in this round.
    repeatable = server.Advertising | server.Sharing | (server.Masking if kind is SECURE else server.Sharing)
    for turn in range(20_000):
        if turn == crash_at and isinstance(unit.state, repeatable):
            unit = Unit(reference, attempt=2)
        if not unit.missing and not unit.close():
            break
        if not bag or rng.random() < 0.1:  # the server's timer
            bag += [("client", k, unit.asks[k]) for k in unit.missing]
        way, k, raw = place = bag[rng.randrange(len(bag))]
        if rng.random() < 0.7:
            bag.remove(place)
        if rng.random() < 0.15:
            continue  # lost, this time
        if way == "server":
            unit.receive(k, raw)
        else:
            bag += [("server", k, reply) for reply in clients[k].receive(raw)]
    assert np.array_equal(unit.total(), expected(reference, range(K)))
    for _, k, raw in bag:
        clients[k].receive(raw)  # whatever is still on its way
    for client in clients.values():
        assert client.record.answered == 1
        assert isinstance(client._at.state, Answered)  # type: ignore[union-attr]
        assert not client.declined


def chaos(kind: Secure, rng: random.Random) -> tuple[dict[tuple[int, int], set[bytes]], Counter[str]]:
    """Servers restart whenever they like, clients crash whenever they like, every message is kept for ever.

    Returns the different answers by client and round, and the words with which clients declined.
    """
    reference = a_reference(kind)
    records = {k: Record(terms_of(reference, k).owner) for k in range(K)}
    clients = {k: a_client(reference, k, records[k]) for k in range(K)}
    units, said = [Unit(reference)], list[tuple[int, bytes]]()
    for _ in range(300):
        chance = rng.random()
        if chance < 0.03:
            last = rng.choice(units)
            round, attempt = (last.round, last.attempt + 1) if rng.random() < 0.8 else (min(last.round + 1, ROUNDS), 1)
            units.append(Unit(reference, round, attempt, rng.choice([W, W + 1])))
        elif chance < 0.04:
            k = rng.randrange(K)
            clients[k] = a_client(reference, k, records[k])
        elif chance < 0.25:
            unit = rng.choice(units[-2:])
            if len(unit.missing) <= rng.choice([0, 2]) and not isinstance(unit.state, server.Aborted | server.Summed):
                unit.close()
        elif chance < 0.4 and said:
            k, raw = rng.choice(said)
            for unit in units:
                unit.receive(k, raw)
        else:
            unit = rng.choice(units[-3:])
            for k in rng.sample(sorted(unit.asks), rng.randrange(len(unit.asks) + 1)):
                for raw in clients[k].receive(unit.asks[k]):
                    said.append((k, raw))
                    unit.receive(k, raw)
    answers: dict[tuple[int, int], set[bytes]] = {}
    last: dict[tuple[int, int], set[bytes]] = {}  # after this word a round is over for other attempts
    words = Counter[str]()
    for k, raw in said:
        reply = heard(raw)
        if isinstance(reply, Decline):
            words[reply.why] += 1
            continue
        inner = messages.from_client(reply.payload, LARGE)  # type: ignore[union-attr]
        if isinstance(inner, Answer):
            answers.setdefault((k, reply.round), set()).add(raw)  # type: ignore[union-attr]
        if isinstance(inner, messages.Masked if kind is ACTIVE else Answer):
            last.setdefault((k, reply.round), set()).add(raw)  # type: ignore[union-attr]
    assert all(len(different) == 1 for different in last.values())
    for k in range(K):
        assert records[k].answered == max((round for (who, round) in last if who == k), default=0)
    return answers, words


@pytest.mark.parametrize("kind", [SECURE, ACTIVE], ids=["curious", "active"])
def test_no_schedule_makes_a_client_answer_a_round_twice(kind: Secure) -> None:
    total, words = 0, Counter[str]()
    seeds = range(more(16, 40))
    for seed in seeds:
        answers, declined = chaos(kind, random.Random(seed))  # noqa: S311
        assert all(len(different) == 1 for different in answers.values())
        total, words = total + len(answers), words + declined
    assert total > 2 * len(seeds)  # so that the test says something
    assert words["answered"] > 2 * len(seeds)


# ---- crashes of the client, and of its disk


class Crash(BaseException):
    pass


class Dying(Record):
    """The process ends when the number is on disk."""

    def write(self, round: int) -> None:
        super().write(round)
        raise Crash


def test_a_crash_between_the_record_and_the_answer() -> None:
    reference = a_reference()
    dying = Dying(terms_of(reference, 0).owner)
    clients = everyone(reference) | {0: a_client(reference, 0, dying)}
    unit = Unit(reference)
    play(unit, clients, phases=3)
    with pytest.raises(Crash):
        clients[0].receive(unit.asks[0])
    assert dying.answered == 1
    reborn = Record(dying.owner)
    reborn.answered = dying.answered
    client = a_client(reference, 0, reborn)
    assert client.receive(unit.asks[0]) == []
    assert client.refusals == {"unexpected": 1}
    for attempt in (1, 2):
        assert only(client.receive(invitation(attempt=attempt))) == Decline(1, attempt, "answered")
    play(unit, clients | {0: client}, {0: 0})
    assert np.array_equal(unit.total(), expected(reference, range(K)))  # its update was in the sum already
    play(later := Unit(reference, 2), clients | {0: client})
    assert np.array_equal(later.total(), expected(reference, range(K), 2))


class Full(Record):
    room = False

    def write(self, round: int) -> None:
        if not self.room:
            raise RunError("the disk is full")
        super().write(round)


@pytest.mark.parametrize("kind", [SECURE, ACTIVE], ids=["curious", "active"])
def test_no_answer_leaves_while_the_disk_is_full(kind: Secure) -> None:
    reference = a_reference(kind)
    full = Full(terms_of(reference, 0).owner)
    clients = everyone(reference) | {0: a_client(reference, 0, full)}
    unit = Unit(reference)
    play(unit, clients, phases=3 if kind is SECURE else 2)  # an active server gets one masked update a round
    before = snapshot(clients[0])
    for _ in range(2):
        with pytest.raises(RunError, match="the disk is full"):
            clients[0].receive(unit.asks[0])
        assert snapshot(clients[0]) == before
    full.room = True
    play(unit, clients)
    assert np.array_equal(unit.total(), expected(reference, range(K)))
    assert full.answered == 1


def test_a_client_that_restarts_before_the_question_may_take_part_in_the_next_attempt() -> None:
    reference = a_reference()
    records = {k: Record(terms_of(reference, k).owner) for k in range(K)}
    play(Unit(reference), {k: a_client(reference, k, records[k]) for k in range(K)}, phases=3)
    clients = {k: a_client(reference, k, records[k]) for k in range(K)}
    play(unit := Unit(reference, attempt=2), clients)
    assert np.array_equal(unit.total(), expected(reference, range(K)))


# ---- a cap


class Counting:
    """A trainer that gives the same update in every round, and knows how often it was asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, weights: np.ndarray, round: int, config: Mapping[str, Any], /) -> np.ndarray:
        self.asked.append(round)
        return np.full(M, 2.0**-4) * (1.0 + weights[0])


def capped(reference: Reference, cap: int, record: Record | None = None, k: int = 0) -> tuple[Client, Counting]:
    terms, trains = replace(terms_of(reference, k), cap=cap), Counting()
    kept = record or Record(terms.owner)
    apart = count(1e6, 1000.0).__next__  # as in `a_client`
    return Client(terms, trains, kept, member(k), noise=lambda i, n: np.ones(n, int), clock=apart), trains


def gave(client: Client, *place: Any) -> np.ndarray:
    said = only(client.receive(invitation(*place)))
    assert isinstance(said, Update)
    return np.frombuffer(said.words, "<i8")


def test_data_are_given_in_as_many_rounds_as_the_cap_says() -> None:
    client, trains = capped(a_reference(None), 2)
    found = [gave(client, i).any() for i in (1, 3, 4, 5)]
    assert found == [True, True, False, False]
    assert trains.asked == [1, 3]
    assert client.record.given == (2, 3)
    assert not client.declined
    assert not client.refusals


@pytest.mark.parametrize("kind", [SECURE, ACTIVE], ids=["curious", "active"])
def test_who_gives_no_data_takes_part_with_its_noise(kind: Secure, caplog: pytest.LogCaptureFixture) -> None:
    reference = a_reference(replace(kind, sigma=0.02))
    made = {k: capped(reference, 1 if k else 3, k=k) for k in range(K)}
    clients = {k: client for k, (client, _) in made.items()}
    with caplog.at_level(logging.DEBUG):
        totals = []
        for i in (1, 2, 3):
            play(unit := Unit(reference, i), clients)
            totals.append(unit.total())
            assert not unit.declined
    one = terms_of(reference, 0).encoding.encode(Counting()(W * reference.arithmetic.quantum, 1, {}), None).words  # type: ignore[union-attr, attr-defined]
    each = terms_of(reference, 0).encoding.decode(one)  # type: ignore[union-attr]
    assert np.array_equal(totals[0], K * each + K)
    assert np.array_equal(totals[1], each + K)  # of client 0 alone, and everybody's share of noise
    assert np.array_equal(totals[2], each + K)
    assert not caplog.records  # nobody says why


def test_messages_with_and_without_data_look_alike() -> None:
    reference = a_reference()
    (one, _), (other, _) = capped(reference, 1), capped(reference, 9)
    for client in (one, other):
        client.receive(invitation(1))
    first, second = (client.receive(invitation(2)) for client in (one, other))
    assert [len(raw) for raw in first] == [len(raw) for raw in second]
    assert type(only(first)) is type(only(second)) is Reply


class CannotCount(Record):
    room = False

    def count(self, round: int) -> None:
        if not self.room:
            raise RunError("the disk is full")
        super().count(round)


def test_a_round_is_counted_before_anything_is_computed_or_leaves() -> None:
    reference = a_reference(None)
    record = CannotCount(terms_of(reference, 0).owner)
    client, trains = capped(reference, 1, record)
    for _ in range(2):
        with pytest.raises(RunError, match="the disk is full"):
            client.receive(invitation(1))
    assert (trains.asked, client._at) == ([], None)
    record.room = True
    assert gave(client, 1).any()
    assert record.given == (1, 1)
    record.room = False
    assert not gave(client, 2).any()  # there is nothing to count any more
    assert trains.asked == [1]


class DiesCounting(Record):
    def count(self, round: int) -> None:
        super().count(round)
        raise Crash


@pytest.mark.parametrize("dies", [False, True])
def test_a_client_that_starts_again_does_not_give_the_data_of_a_round_twice(dies: bool) -> None:
    """Its words are lost, new ones would be a second question to the data: fresh batches, and they may have left."""
    reference = a_reference(None)
    record: Record = (DiesCounting if dies else Record)(terms_of(reference, 0).owner)
    client, trains = capped(reference, 2, record)
    if dies:
        with pytest.raises(Crash):
            client.receive(invitation(1))
    else:
        assert gave(client, 1).any()
    reborn = Record(record.owner)
    reborn.given = record.given
    client, trains = capped(reference, 2, reborn)
    assert not gave(client, 1).any()  # the same attempt, said again
    assert not gave(client, 1, 2).any()
    assert reborn.given == (1, 1)
    assert gave(client, 2).any()
    assert not gave(client, 3).any()
    assert trains.asked == [2]


def test_attempts_of_a_round_carry_one_update_of_data() -> None:
    """A server that begins again with the same model gets the same words; with another model it gets zeros."""
    client, trains = capped(a_reference(), 2)
    for attempt, model in enumerate((W, W, W + 1, W + 2, W, W + 1), 1):
        assert isinstance(only(client.receive(invitation(1, attempt, model))), Reply)
    first, *others = (words for _, words in client._words)
    zeros = client.terms.encoding.encode(np.zeros(M))[0]  # type: ignore[union-attr]
    assert not np.array_equal(first, zeros)
    assert [np.array_equal(words, zeros) for words in others] == [True, True]
    assert (trains.asked, client.record.given) == ([1], (1, 1))


def test_a_training_that_fails_is_counted_all_the_same() -> None:
    """Whether data are given must not depend on them."""
    terms = replace(terms_of(a_reference(None), 0), cap=1)
    client = Client(terms, lambda w, i, c: np.full(M, np.nan), Record(terms.owner), member(0))
    assert not gave(client, 1).any()
    assert client.record.given == (1, 1)


def test_without_a_cap_nothing_is_counted() -> None:
    reference = a_reference(None)
    client = a_client(reference, 0, CannotCount(terms_of(reference, 0).owner))
    assert gave(client, 1).any()
    assert gave(client, 2, 1, W + 12345).any()


# ---- what is declined and refused


def snapshot(client: Client) -> Any:
    at = client._at
    words = {model: (id(w), w.tobytes()) for model, w in client._words}
    return at and (at.place, at.heard, at.reply, id(at.state)), words, client.record.answered, client.clipped


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (invitation(plan=bytes(32)), "plan"),
        (invitation(ROUNDS + 1), "round"),
        (invitation(model=W[:2]), "model"),
        (invitation(model=np.append(W, 1)), "model"),
        (encode(Invite(bytes.fromhex(a_plan().hash), 1, 1, W.tobytes()[:-1])), "model"),
    ],
)
@pytest.mark.parametrize("aggregation", [SECURE, None], ids=["secure", "clear"])
def test_invitations_that_are_declined_change_nothing(raw: bytes, why: str, aggregation: Secure | None) -> None:
    client = a_client(a_reference(aggregation), 0)
    before = snapshot(client)
    told = from_server(raw, LARGE)
    for n in (1, 2):
        assert only(client.receive(raw)) == Decline(told.round, told.attempt, why)  # type: ignore[union-attr, arg-type]
        assert client.declined == {why: n}
    assert snapshot(client) == before
    assert isinstance(only(client.receive(invitation())), Reply if aggregation else Update)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
@pytest.mark.parametrize("aggregation", [SECURE, None], ids=["secure", "clear"])
def test_an_update_that_is_not_finite(bad: float, aggregation: Secure | None, caplog: pytest.LogCaptureFixture) -> None:
    client = a_client(a_reference(aggregation), 0, trainer=lambda w, i, c: np.array([0.0, bad, 0.0]))
    zeros = a_client(a_reference(aggregation), 0, trainer=lambda w, i, c: np.zeros(3), entropy=lambda n: bytes(n))
    client._entropy = zeros._entropy
    (raw,) = client.receive(invitation())
    assert [raw] == zeros.receive(invitation())  # nobody can tell it from a client that has nothing to say
    assert client.receive(invitation()) == [raw]
    assert client.failed == 1  # it was not trained again for the repetition
    line = caplog.records[0]
    assert line.getMessage().endswith("zeros: the update is not finite, or far beyond its bound: the training diverged")
    assert [(model, w.tolist()) for model, w in client._words] == [(model, w.tolist()) for model, w in zeros._words]
    assert not client.declined


@pytest.mark.parametrize("error", [ValueError, SystemExit, MemoryError, InputError])
def test_the_owners_exception_stays_on_the_machine(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[BaseException | None] = [
        error("the patient", 7, "x") if error is InputError else error("the patient")
    ]
    answers.append(None)

    def train(weights: np.ndarray, round: int, config: Mapping[str, Any], /) -> np.ndarray:
        failure = answers.pop(0)
        if failure is not None:
            raise failure
        return np.zeros(M)

    client = a_client(a_reference(), 0, trainer=train)
    with caplog.at_level(logging.ERROR):
        (raw,) = client.receive(invitation())
    assert isinstance(heard(raw), Reply)
    assert client.failed == 1
    (line,) = caplog.records
    assert line.getMessage() == f"the training of round 1 failed, this client adds zeros: {error.__name__}"
    assert b"patient" not in raw
    assert "the patient" in caplog.text
    client.receive(invitation(attempt=2))
    assert len(answers) == 1  # the same words: what was encoded once stays


def test_an_update_that_ends_as_zeros_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Below the grid, or since a built-in training overflowed; where no data are asked for there is nothing to say."""
    quantum = 2.0 ** -a_client(a_reference(), 0).terms.fraction_bits
    for update, told in ((0.99 * quantum, 1), (-1.01 * quantum, 0), (0.0, 1)):
        client = a_client(a_reference(), 0, trainer=lambda w, i, c, x=update: np.array([0.0, x, 0.0]))
        caplog.clear()
        client.receive(invitation())
        lines = [record.getMessage() for record in caplog.records]
        assert len(lines) == told
        assert all(line.startswith("numbers of the update of round 1 end as zero: all of them") for line in lines)
    assert client.failed == 0


def test_of_updates_that_end_as_zeros_one_after_the_other_the_first_is_told(caplog: pytest.LogCaptureFixture) -> None:
    client = a_client(a_reference(), 0, trainer=lambda w, i, c: np.full(3, 1.0 if i == 3 else 0.0))
    for round in range(1, 6):
        client.receive(invitation(round))
    assert [record.args for record in caplog.records if record.args] == [
        (i, "all of them, since none is as large as the plan's quantum") for i in (1, 4)
    ]


def test_a_failed_training_does_not_forget_what_was_encoded() -> None:
    weights_seen = []

    def train(weights: np.ndarray, round: int, config: Mapping[str, Any], /) -> np.ndarray:
        weights_seen.append(weights[0])
        return np.full(M, 0.0 if len(weights_seen) != 2 else np.nan)

    client = a_client(a_reference(), 0, trainer=train)
    for attempt, model in enumerate([W, W + 1, W], 1):
        client.receive(invitation(attempt=attempt, model=model))
    assert len(weights_seen) == 2
    assert client.failed == 1


@pytest.mark.parametrize("result", [np.zeros(M + 1), np.zeros((1, M)), np.zeros(M, np.float32), [0.0] * M, None])
def test_results_that_are_no_update(result: Any) -> None:
    client = a_client(a_reference(), 0, trainer=lambda w, i, c: result)
    assert isinstance(only(client.receive(invitation())), Reply)
    assert client.failed == 1


def test_ctrl_c_during_training_changes_nothing() -> None:
    def train(weights: np.ndarray, round: int, config: Mapping[str, Any], /) -> np.ndarray:
        raise KeyboardInterrupt

    client = a_client(a_reference(), 0, trainer=train)
    with pytest.raises(KeyboardInterrupt):
        client.receive(invitation())
    assert client._at is None
    assert not client.declined


def test_the_trainer_gets_its_own_configuration() -> None:
    seen = []
    client = a_client(
        a_reference(), 0, trainer=lambda w, i, c: seen.append((w, i, dict(c))) or np.zeros(M), config={"rate": 0.1}
    )
    client.receive(invitation(2))
    ((weights, round, config),) = seen
    assert np.array_equal(weights, W * a_reference().arithmetic.quantum)  # type: ignore[attr-defined]
    assert (round, config) == (2, {"rate": 0.1})


def test_what_is_clipped_stays_in_the_client() -> None:
    bound = terms_of(a_reference(), 0).encoding.bound  # type: ignore[union-attr]
    client = a_client(a_reference(), 0, trainer=lambda w, i, c: np.array([2 * bound, -3 * bound, 0.0]))
    client.receive(invitation())
    assert client.clipped == 2
    client.receive(invitation(attempt=2))
    assert client.clipped == 2
    client.receive(invitation(2))
    assert client.clipped == 4


def test_one_attempt_with_two_models_is_a_contradiction() -> None:
    client = a_client(a_reference(), 0)
    client.receive(invitation())
    before = snapshot(client)
    assert client.receive(invitation(model=W + 1)) == []
    assert client.refusals == {"contradiction": 1}
    assert snapshot(client) == before


def test_a_server_that_breaks_the_rules_is_left_alone() -> None:
    reference = a_reference()
    clients, unit = everyone(reference), Unit(reference)
    play(unit, clients, phases=3)
    question = messages.from_server(from_server(unit.asks[0], LARGE).payload, LARGE)  # type: ignore[union-attr]
    assert isinstance(question, messages.Question)
    bad = encode(Step(1, 1, messages.encode(replace(question, dead=(1,)))))
    assert clients[0].receive(bad) == clients[0].receive(bad) == [encode(Decline(1, 1, "aborted"))]
    assert clients[0].declined == {"aborted": 1}
    assert clients[0].receive(unit.asks[0]) == []  # there is no way back
    assert clients[0].refusals == {"unexpected": 1}
    assert clients[0].record.answered == 0
    assert isinstance(only(clients[0].receive(invitation(attempt=2))), Reply)
    play(unit, clients, {0: 0})
    other = encode(Step(1, 1, messages.encode(replace(question, alive=question.alive[:-1], dead=question.alive[-1:]))))
    assert only(clients[1].receive(other)) == Decline(1, 1, "aborted")  # a second question
    assert only(clients[1].receive(invitation(attempt=2))) == Decline(1, 2, "answered")


# ---- enrolment


def test_hello_and_welcome() -> None:
    client = a_client(a_reference(), 2)
    assert heard(client.hello()) == Enrol(1, bytes.fromhex(a_plan().hash), UNIT, 2)
    assert client.hello() == client.hello()
    assert not client.enrolled
    assert client.receive(encode(Welcome(bytes(32), 1, False))) == []
    assert not client.enrolled
    assert client.refusals == {"plan": 1}
    assert client.receive(encode(Welcome(bytes.fromhex(a_plan().hash), 1, False))) == []
    assert client.enrolled
    assert not client.finished
    client.receive(encode(Welcome(bytes.fromhex(a_plan().hash), 5, True)))
    assert client.finished


def test_a_refusal_is_kept_until_a_welcome() -> None:
    client = a_client(a_reference(), 0)
    assert client.receive(encode(Refusal("another plan"))) == []
    assert client.refused == ["another plan"]
    assert not client.enrolled
    client.receive(encode(Welcome(bytes.fromhex(a_plan().hash), 1, False)))
    assert client.refused == []
    client.receive(msgpack.packb(["Refusal", "x\x1b[2J"]))  # it would be shown to people
    assert client.refusals == {"malformed": 1}


# ---- construction


def test_terms_that_cannot_be() -> None:
    good = terms_of(a_reference(replace(SECURE, sigma=0.02)), 0)
    assert '"algorithm"' not in repr(good)
    for changes, message in [
        ({"rounds": 0}, "rounds = 0"),
        ({"rounds": 2**32}, "rounds = 4294967296"),
        ({"length": 0}, "length = 0"),
    ]:
        with pytest.raises(InputError) as refused:
            replace(good, **changes)  # type: ignore[arg-type]
        assert str(refused.value).startswith(message), refused.value


def test_a_client_with_other_peoples_things() -> None:
    reference = a_reference(ACTIVE)
    with pytest.raises(InputError, match="record = "):
        a_client(reference, 0, Record(terms_of(reference, 1).owner))
    with pytest.raises(InputError, match="record = "):
        a_client(reference, 0, Record(Owner(bytes(32), UNIT, 0)))
    with pytest.raises(InputError, match="member = 1"):
        a_client(reference, 0, member=member(1))
    for wrong in (Member(0), Member(0, IDENTITIES[0]), Member(0, IDENTITIES[1], PEERS)):
        with pytest.raises(InputError, match="identity = None"):
            a_client(reference, 0, member=wrong)
    a_client(a_reference(SECURE), 0, member=Member(0))


def test_nothing_secret_is_printed() -> None:
    reference = a_reference(ACTIVE)
    clients = everyone(reference)
    assert repr(clients[0]) == "Client(unit 1, client 0, round 0, attempt 0)"
    play(Unit(reference), clients)
    assert repr(clients[0]) == "Client(unit 1, client 0, round 1, attempt 1)"
    for message in (Reply(1, 1, b"secret"), Update(1, 1, b"secret"), Step(1, 1, b"secret")):
        assert "secret" not in repr(message)
    assert "secret" not in repr(Invite(bytes(32), 1, 1, b"secret"))


def test_the_default_noise_is_secret_and_of_the_right_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """From streams without a key, which the system would give; here they are numbered, and so always the same."""
    streams = (SecretStream(n.to_bytes(32, "big")) for n in count())
    monkeypatch.setattr("confide.deploy.machines.client.SecretStream", lambda: next(streams))
    reference = a_reference(replace(SECURE, sigma=0.02))
    terms = terms_of(reference, 0)
    found = []
    for _ in range(300):
        client = a_client(reference, 0, noise=None, trainer=lambda w, i, c: np.zeros(M))
        client.receive(invitation())
        found.append(terms.encoding.decode(*(w for _, w in client._words)))  # type: ignore[union-attr]
    deviation = float(np.std(found))
    assert deviation == pytest.approx(terms.share_quanta, rel=0.12)  # 5 standard errors


# ---- garbage

KINDS = [SECURE, ACTIVE, None]


@cache
def stages(which: int) -> list[tuple[Client, Any]]:
    """Client 0 at every stage of a round, and how to put it back there."""
    reference = a_reference(KINDS[which])
    found: list[tuple[Client, Any]] = []
    for phases in range(6):
        clients, unit = the_same_every_time(reference), Unit(reference)
        if KINDS[which] is None:
            if phases:
                clients[0].receive(invitation())
        else:
            play(unit, clients, phases=phases)
        found.append((clients[0], (clients[0]._at, clients[0]._words, clients[0].record.answered)))
    return found


@cache
def truths(which: int) -> list[bytes]:
    """Messages of a true round, and of its neighbours."""
    reference = a_reference(KINDS[which])
    clients, unit = the_same_every_time(reference), Unit(reference)
    found = [encode(Welcome(bytes.fromhex(a_plan().hash), 1, False)), encode(Refusal("no"))]
    found += [invitation(), invitation(attempt=2), invitation(2), invitation(plan=bytes(32)), clients[0].hello()]
    if KINDS[which] is not None:
        for _ in range(5):
            found.append(unit.asks[0])
            play(unit, clients, phases=1)
            if not unit.asks:
                break
    return found


def damaged(rng: random.Random, raw: bytes) -> bytes:
    """Other bytes; or a field replaced by something else."""
    how = rng.randrange(6)
    if how < 4:
        return mutated(rng, raw)
    content = msgpack.unpackb(raw, use_list=True)
    if how == 4 and isinstance(content[-1], bytes) and content[0] == "Step":
        content[-1] = damaged(rng, content[-1]) if content[-1] else b"x"
    else:
        odd = [None, True, -1, 0, 1, 2**31, 2**32, 2**63, 1.5, "", "x" * 600, b"", bytes(32), [], [[]], {}]
        content[rng.randrange(len(content))] = rng.choice(odd)
    return bytes(msgpack.packb(content))


def check(client: Client, raw: bytes) -> None:
    """No exception; what is refused or declined by the rules changes nothing and says nothing of its own."""
    before, refusals = snapshot(client), client.refusals.total()
    replies = client.receive(raw)
    assert len(replies) <= 1
    said = only(replies) if replies else None
    if client.refusals.total() > refusals:
        assert replies == []
        assert snapshot(client) == before
    elif isinstance(said, Decline) and said.why != "aborted":
        assert snapshot(client) == before


@pytest.mark.parametrize("which", range(3), ids=["curious", "active", "clear"])
@pytest.mark.parametrize("stage", range(6))
def test_mutations_of_true_messages(which: int, stage: int) -> None:
    client, (at, words, answered) = stages(which)[stage]
    rng = random.Random(100 * which + stage)  # noqa: S311
    reasons = client.refusals.total()
    for _ in range(400):
        raw = damaged(rng, rng.choice(truths(which)))
        check(client, raw)
        client._at, client._words, client.record.answered = at, words, answered  # type: ignore[misc]
    assert client.refusals.total() > reasons + 200


@settings(max_examples=more(100, 300))
@given(st.binary(max_size=300), st.integers(0, 2), st.integers(0, 5))
def test_random_bytes(raw: bytes, which: int, stage: int) -> None:
    client, _ = stages(which)[stage]
    before, count = snapshot(client), client.refusals["malformed"]
    assert client.receive(raw) == []
    assert client.refusals["malformed"] == count + 1
    assert snapshot(client) == before


@pytest.mark.parametrize("which", range(3), ids=["curious", "active", "clear"])
def test_what_is_too_long_is_not_even_read(which: int, monkeypatch: pytest.MonkeyPatch) -> None:
    client, _ = stages(which)[2]
    largest = client.terms.largest
    assert largest < 20_000
    before = snapshot(client)
    unread = client.refusals["oversized"]
    with monkeypatch.context() as patch:
        patch.setattr("confide.deploy.machines.client_messages.from_server", lambda *_: pytest.fail("it was read"))
        patch.setattr("confide.deploy.machines.client.hashlib", None)
        assert client.receive(bytes(largest + 1)) == []
    assert client.refusals["oversized"] == unread + 1
    client.receive(bytes(largest))
    assert client.refusals["oversized"] == unread + 1
    assert snapshot(client) == before


def test_every_message_of_a_true_session_is_within_the_bound() -> None:
    for which in range(3):
        client, _ = stages(which)[0]
        assert max(map(len, truths(which))) < client.terms.largest
    plan = replace(terms_of(a_reference(), 0), length=10**6)
    assert plan.largest > len(encode(Invite(bytes(32), 1, 1, bytes(8 * 10**6))))
    assert len(encode(Refusal("x" * 500))) <= terms_of(a_reference(None), 0).largest


@pytest.mark.parametrize("which", range(3), ids=["curious", "active", "clear"])
def test_steps_that_nobody_expects(which: int) -> None:
    step = next((raw for raw in truths(which) if type_of(raw) == "Step"), encode(Step(1, 1, b"")))
    client = a_client(a_reference(KINDS[which]), 0)
    assert client.receive(step) == []
    assert client.refusals == {"unexpected": 1}
    client.receive(invitation())
    for place in ((1, 2), (2, 1)):
        assert client.receive(encode(Step(*place, b"later"))) == []
    assert client.refusals == {"unexpected": 3}
    assert client.receive(encode(Step(1, 1, b"no message"))) == []
    assert client.refusals == ({"unexpected": 4} if which == 2 else {"unexpected": 3, "malformed": 1})


def type_of(raw: bytes) -> str:
    return str(msgpack.unpackb(raw)[0])


# ---- the messages themselves

HASH = bytes(32)
GOOD: list[Any] = [
    Enrol(1, HASH, 0, 2**32 - 1),
    Reply(1, 1, b"x"),
    Update(2**32 - 1, 2**31, b""),
    Decline(1, 1, "answered"),
    Welcome(HASH, 1, False),
    Refusal("why"),
    Invite(HASH, 1, 1, b""),
    Step(1, 1, b""),
]


def test_messages_come_back_as_they_were_and_only_to_whom_they_are_for() -> None:
    for message in GOOD:
        raw, mine = encode(message), type(message).__name__ in FROM_SERVER
        assert (from_server if mine else from_client)(raw, LARGE) == message
        with pytest.raises(MalformedError):
            (from_client if mine else from_server)(raw, LARGE)
        with pytest.raises(MalformedError, match="at most"):
            (from_server if mine else from_client)(raw, len(raw) - 1)


@pytest.mark.parametrize(
    "content",
    [
        ["Enrol", 1, HASH[1:], 0, 0],
        ["Enrol", 1, HASH, -1, 0],
        ["Enrol", 1, HASH, 0, 2**32],
        ["Enrol", True, HASH, 0, 0],
        ["Enrol", 1, HASH, 0],
        ["Reply", 0, 1, b""],
        ["Reply", 2**32, 1, b""],
        ["Reply", 1, 0, b""],
        ["Reply", 1, 2**31 + 1, b""],
        ["Reply", 1, 1, "text"],
        ["Update", 1, 1.0, b""],
        ["Decline", 1, 1, "because"],
        ["Decline", 1, 1, b"plan"],
        ["Welcome", HASH, 0],
        ["Refusal", "x" * 501],
        ["Refusal", "x\n"],
        ["Refusal", "x", ""],
        ["Refusal", None],
        ["Invite", HASH, 1, 1, None],
        ["Invite", HASH, 1, 1, b"", b""],
        ["Step", 1, 1, [b""]],
    ],
)
def test_messages_that_are_none(content: list[Any]) -> None:
    raw = msgpack.packb(content)
    for read in (from_client, from_server):
        with pytest.raises(MalformedError):
            read(raw, 2**21)
