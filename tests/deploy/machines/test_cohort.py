"""One round with its clients: phases that end, words that are repeated, sums of whoever is left, and restarts."""

from __future__ import annotations

import copy
import hashlib
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, note, settings
from hypothesis import strategies as st

from builders import mutated
from confide.deploy.machines import client_messages as cm
from confide.deploy.machines.client import Client, ClientTerms
from confide.deploy.machines.cohort import REPEATS, Cohort, Kept
from confide.deploy.machines.exchange import Rules
from confide.deploy.machines.ports import Desk, Ports
from confide.deploy.machines.terms import Terms
from confide.deploy.store.books import Attempt, Books, as_bytes
from confide.deploy.store.record import Record
from confide.deploy.store.store import MemoryStore
from confide.graph.graph import Graph
from confide.rounds.arithmetic import FixedArithmetic
from confide.rounds.noise import integer_noise
from confide.rounds.schemes import scheme
from confide.secure import messages as secure_messages
from confide.secure import server as secure
from confide.secure.client import Member
from confide.secure.encoding import truncate
from confide.secure.keys import Identity
from confide.secure.parameters import choose
from confide.secure.session import Why
from confide.secure.settings import SecureSum
from confide.testing.rehearsal import scripted

TEXT = "the plan of these tests"
PLAN = hashlib.sha256(TEXT.encode()).digest()
UNIT, K, M, BITS, SECONDS, BEGIN = 3, 5, 4, 10, 10.0, 100.0
CURIOUS, ACTIVE = SecureSum(choose(K, 0.0, 0.4)), SecureSum(choose(K, 0.0, 0.2, "active"))
IDENTITIES = {k: Identity.of(hashlib.sha256(b"client %d" % k).digest()) for k in range(K)}
PEERS = {k: identity.public for k, identity in IDENTITIES.items()}
LARGEST = 1 << BITS
GRID = FixedArithmetic(1, BITS)
MODEL = np.arange(M, dtype=np.int64) * 1000 - 1234
ATTEMPT = Attempt(7, 2, tuple(range(K)))
PHASES = [secure.Advertising, secure.Sharing, secure.Masking, secure.Unmasking]

CLEAR_TERMS = replace(
    scripted(Graph.parse("path:2"), scheme("homomorphic", 0.5), rounds=100, adapt=SECONDS)[0].terms,
    rules=Rules(UNIT, PLAN, {}, 100, 4, M, 2**62, (), by_link=False),
    clients=K,
    largest_update=LARGEST,
)
SECURE_TERMS = replace(CLEAR_TERMS, secure=CURIOUS)
ACTIVE_TERMS = replace(SECURE_TERMS, secure=ACTIVE, client_identities=PEERS)
ALL_TERMS = {"clear": CLEAR_TERMS, "secure": SECURE_TERMS, "active": ACTIVE_TERMS}


def update(k: int) -> np.ndarray:
    return np.random.default_rng(k).uniform(-1, 1, M)


def plain_sum(clients: Iterable[int]) -> list[int]:
    return np.sum([truncate(update(k), BITS) for k in clients], axis=0).tolist()


def a_client(terms: Terms, k: int, record: Record | None = None) -> Client:
    mine = ClientTerms(TEXT, 1, 100, UNIT, k, 1.0, M, BITS, 1.0, terms.secure)
    member = Member(k, IDENTITIES[k], PEERS)
    entropy = np.random.default_rng(k).bytes
    return Client(mine, lambda *_: update(k), record or Record(mine.owner), member, entropy)


def a_desk(terms: Terms, model: np.ndarray, now: float, send: Callable[[int, bytes], None], kept: bytes) -> Desk:
    """At which all clients are connected."""
    books = Books.fresh(model, ())
    books.transcript = kept
    desk = Desk(
        terms, MemoryStore(books), Ports(lambda m, raw: None, send, integer_noise(0, GRID), lambda _: (), bytes)
    )
    desk.now = now
    for k in range(terms.clients):
        desk.attendance.connected(k)
    return desk


@dataclass
class Room:
    """A cohort and its clients. What is said to a client lies in `inbox` until `deliver`."""

    terms: Terms
    attempt: Attempt = ATTEMPT
    kept: bytes = b""
    now: float = BEGIN
    clients: dict[int, Client] = field(default_factory=dict)
    inbox: list[tuple[int, bytes]] = field(default_factory=list)
    keeps: list[bytes] = field(default_factory=list)
    keeper: Callable[[bytes], None] | None = None
    refusals: Counter[str] = field(default_factory=Counter)
    cohort: Cohort = field(init=False)

    def __post_init__(self) -> None:
        self.clients = self.clients or {k: a_client(self.terms, k) for k in range(K)}
        desk = a_desk(self.terms, MODEL, self.now, self.send, self.kept)
        desk.refusals = self.refusals
        self.cohort = Cohort(desk, self.attempt, self.keep)

    def send(self, k: int, raw: bytes) -> None:
        self.inbox.append((k, raw))

    def keep(self, transcript: bytes) -> None:
        (self.keeper or self.keeps.append)(transcript)

    def take(self) -> list[tuple[int, bytes]]:
        found, self.inbox = self.inbox, []
        return found

    def say(self, k: int, message: cm.FromClient) -> None:
        self.cohort.receive(self.now, k, message)

    def deliver(self, to: Collection[int] = range(K)) -> None:
        """What was said so far, to these clients; the others' is lost."""
        for k, raw in self.take():
            if k in to:
                for reply in self.clients[k].receive(raw):
                    self.say(k, cm.from_client(reply, self.terms.largest_from_client))

    def pass_time(self) -> None:
        """Until something is done of itself."""
        self.now = self.cohort.wake
        self.cohort.tick(self.now)

    def run(self, silent: Mapping[int, int] | None = None, phases: int = 9) -> Room:
        """A client of `silent` is not heard from that phase on."""
        for phase in range(phases):
            if self.cohort.done:
                break
            state = self.cohort.session
            self.deliver([k for k in range(K) if (silent or {}).get(k, 99) > phase])
            while not self.cohort.done and (state is None or type(self.cohort.session) is type(state)):
                self.take()  # repetitions are lost too
                self.pass_time()
        return self

    @property
    def result(self) -> tuple[list[int], list[int]]:
        assert self.cohort.sum is not None, self.cohort.failed
        return self.cohort.sum.total.tolist(), sorted(self.cohort.sum.survivors)


def at_phase(n: int, terms: Terms = SECURE_TERMS) -> Room:
    room = Room(terms).run(phases=n)
    assert not room.cohort.done
    return room


# ---- phases


@pytest.mark.parametrize("name", ALL_TERMS)
def test_a_round_in_which_everybody_answers_takes_no_time(name: str) -> None:
    room = Room(ALL_TERMS[name])
    for _ in range({"clear": 1, "secure": 4, "active": 5}[name]):
        assert not room.cohort.done
        room.deliver()
    assert room.result == (plain_sum(range(K)), list(range(K)))
    assert room.now == BEGIN
    assert not room.refusals
    assert not room.cohort.failed


@pytest.mark.parametrize("phase", range(4))
def test_a_phase_ends_at_its_deadline_with_those_who_answered(phase: int) -> None:
    room = at_phase(phase)
    deadline = BEGIN + SECONDS * (0.6, 0.7, 0.8, 1.0)[phase]
    before = type(room.cohort.session)
    assert before is PHASES[phase]
    room.deliver(range(1, K))  # client 0 is silent
    assert type(room.cohort.session) is before
    room.cohort.tick(deadline - 1e-6)
    assert type(room.cohort.session) is before
    assert not room.cohort.done
    assert room.cohort.wake <= deadline
    room.cohort.tick(deadline)
    assert type(room.cohort.session) is not before


def test_a_round_in_clear_ends_before_the_time_of_the_round() -> None:
    room = Room(CLEAR_TERMS)
    room.deliver([1, 3])
    room.cohort.tick(BEGIN + 0.9 * SECONDS - 1e-6)
    assert not room.cohort.done
    room.cohort.tick(BEGIN + 0.9 * SECONDS)
    assert room.result == (plain_sum([1, 3]), [1, 3])


@pytest.mark.parametrize("name", ALL_TERMS)
def test_a_tick_far_too_late_ends_the_round_at_once(name: str) -> None:
    room = Room(ALL_TERMS[name])
    room.deliver([1, 2])
    room.cohort.tick(BEGIN + 1000 * SECONDS)
    assert room.cohort.done


@pytest.mark.parametrize("name", ALL_TERMS)
def test_who_declines_is_not_waited_for(name: str) -> None:
    room = Room(ALL_TERMS[name])
    room.deliver(range(1, K))
    assert not room.cohort.done
    state = room.cohort.session
    room.say(0, cm.Decline(7, 2, "model"))
    assert room.cohort.done or room.cohort.session is not state
    assert room.now == BEGIN
    while not room.cohort.done:
        room.deliver()
    assert room.result == (plain_sum(range(1, K)), list(range(1, K)))


@pytest.mark.parametrize("phase", range(4))
def test_who_declines_in_the_middle_is_a_dropout(phase: int) -> None:
    room = at_phase(phase)
    room.say(4, cm.Decline(7, 2, "aborted"))
    while not room.cohort.done:
        room.deliver(range(4))
    assert room.now == BEGIN
    alive = list(range(K if phase == 3 else 4))
    assert room.result == (plain_sum(alive), alive)


@pytest.mark.parametrize("name", ALL_TERMS)
def test_if_all_decline_the_round_has_failed(name: str) -> None:
    room = Room(ALL_TERMS[name])
    for k in range(K):
        room.say(k, cm.Decline(7, 2, "plan"))
    assert room.cohort.failed == ("no update arrived" if name == "clear" else Why.TOO_FEW_ADVERTISED)
    assert room.cohort.sum is None


# ---- repetition


@pytest.mark.parametrize(("name", "phase"), [("clear", 0), *(("secure", n) for n in range(4)), ("active", 3)])
def test_only_the_missing_are_told_again_and_the_very_same_words(name: str, phase: int) -> None:
    room = at_phase(phase, ALL_TERMS[name])
    said = dict(room.inbox)
    assert set(said) == set(range(K))
    room.deliver([1, 4])
    assert room.take() == []
    for n in range(1, 4):
        room.cohort.tick(BEGIN + n * SECONDS / REPEATS)
        assert room.take() == [(k, said[k]) for k in (0, 2, 3)]
        room.cohort.tick(BEGIN + (n + 0.5) * SECONDS / REPEATS)
        assert room.take() == []
    room.say(2, cm.Decline(7, 2, "answered"))
    room.cohort.tick(BEGIN + 5 * SECONDS / REPEATS)
    assert room.take() == [(k, said[k]) for k in (0, 3)]


@pytest.mark.parametrize("phase", range(4))
def test_a_client_that_is_back_hears_the_last_word(phase: int) -> None:
    room = at_phase(phase)
    said = dict(room.take())
    room.cohort.enrolled(3)
    assert room.take() == [(3, said[3])]
    room.cohort.enrolled(K + 1)  # not sampled
    assert room.take() == []


def test_after_the_end_nothing_is_said() -> None:
    room = Room(SECURE_TERMS)
    while not room.cohort.done:
        room.deliver()
    for k in range(K):
        room.cohort.enrolled(k)
        room.say(k, cm.Decline(7, 2, "plan"))
    room.cohort.tick(BEGIN + 1000)
    assert room.take() == []
    assert not room.refusals
    assert room.result == (plain_sum(range(K)), list(range(K)))


# ---- sums of whoever is left


@pytest.mark.parametrize(
    "silent", [{0: 0}, {4: 1}, {2: 2}, {1: 3}, {0: 0, 1: 1}, {0: 1, 3: 2}, {0: 2, 1: 3}, {2: 3, 4: 3}]
)
def test_the_sum_is_that_of_the_survivors(silent: dict[int, int]) -> None:
    """Who has sent its masked update is in it, also if it is never heard of again."""
    room = Room(SECURE_TERMS).run(silent)
    alive = [k for k in range(K) if silent.get(k, 99) > 2]
    assert room.result == (plain_sum(alive), alive)


@pytest.mark.parametrize("silent", [{}, {4: 1}, {0: 0, 3: 2}])
def test_a_sum_is_clamped_to_what_its_survivors_can_add_up_to(silent: dict[int, int]) -> None:
    """Also if fewer survive than the ring allows for. What it is clamped from nobody is told."""
    alive = [k for k in range(K) if k not in silent]
    largest = max(map(abs, plain_sum(alive))) // (2 * len(alive))
    for terms, clamped in ((SECURE_TERMS, False), (replace(SECURE_TERMS, largest_update=largest), True)):
        room, most = Room(terms).run(silent), len(alive) * terms.largest_update
        assert room.result == ([min(max(x, -most), most) for x in plain_sum(alive)], alive)
        assert room.cohort.sum is not None
        assert room.cohort.sum.out_of_range is clamped


def test_who_is_left_out_is_not_asked_and_not_heard() -> None:
    room = Room(SECURE_TERMS)
    desk = a_desk(SECURE_TERMS, MODEL, BEGIN, room.send, b"")
    room.take()
    room.cohort = Cohort(desk, ATTEMPT, room.keep, {1})
    assert [k for k, _ in room.inbox] == [0, 2, 3, 4]
    room.clients[1].receive(room.inbox[0][1])
    room.cohort.enrolled(1)
    assert 1 not in [k for k, _ in room.inbox]
    while not room.cohort.done:
        room.deliver()
    assert room.result == (plain_sum([0, 2, 3, 4]), [0, 2, 3, 4])


@pytest.mark.parametrize("silent", [{0: 0}, {4: 1}, {2: 2}, {1: 3}, {3: 4}])
def test_the_sum_with_an_active_server(silent: dict[int, int]) -> None:
    room = Room(ACTIVE_TERMS).run(silent)
    alive = [k for k in range(K) if silent.get(k, 99) > 2]
    assert room.result == (plain_sum(alive), alive)


@pytest.mark.parametrize("survivors", [[0], [1, 2], [0, 1, 2, 3]])
def test_the_sum_in_clear_is_that_of_the_survivors(survivors: list[int]) -> None:
    room = Room(CLEAR_TERMS)
    room.deliver(survivors)
    room.cohort.tick(BEGIN + SECONDS)
    assert room.result == (plain_sum(survivors), survivors)


@pytest.mark.parametrize(
    ("phase", "why"),
    list(enumerate([Why.TOO_FEW_ADVERTISED, Why.TOO_FEW_SHARED, Why.TOO_FEW_UPDATES, Why.TOO_FEW_ANSWERS])),
)
def test_below_the_quorum_the_round_fails_with_the_reason(phase: int, why: Why) -> None:
    room = Room(SECURE_TERMS).run({0: phase, 1: phase, 2: phase})
    assert room.cohort.done
    assert room.cohort.sum is None
    assert room.cohort.failed == why
    assert room.now == BEGIN + SECONDS * (0.6, 0.7, 0.8, 1.0)[phase]


def test_below_the_threshold_of_consents_the_round_fails() -> None:
    room = Room(ACTIVE_TERMS).run({0: 3, 1: 3})
    assert room.cohort.failed == Why.TOO_FEW_CONSENTS


def test_nobody_in_clear() -> None:
    room = Room(CLEAR_TERMS).run(dict.fromkeys(range(K), 0))
    assert room.cohort.failed == "no update arrived"


def test_only_the_sampled_are_invited_and_summed() -> None:
    room = Room(CLEAR_TERMS, Attempt(7, 2, (1, 3)))
    assert [k for k, _ in room.inbox] == [1, 3]
    room.say(0, cm.Update(7, 2, as_bytes(np.ones(M, np.int64))))
    assert room.refusals == {"client: not sampled": 1}
    room.deliver()
    assert room.result == (plain_sum([1, 3]), [1, 3])


# ---- the model


@pytest.mark.parametrize("name", ALL_TERMS)
def test_everybody_is_handed_the_same_model(name: str) -> None:
    room = Room(ALL_TERMS[name])
    assert len({raw for _, raw in room.inbox}) == 1
    invite = cm.from_server(room.inbox[0][1], 10_000)
    assert invite == cm.Invite(PLAN, 7, 2, as_bytes(MODEL))


def test_a_client_that_was_handed_another_model_is_in_another_session() -> None:
    """The sum's task names the hash of the model: keys for another one are not taken."""
    room = Room(SECURE_TERMS)
    assert room.cohort.session is not None
    assert room.cohort.session.task.model == hashlib.sha256(as_bytes(MODEL)).digest()
    (_, raw), *rest = room.take()
    other = cm.encode(cm.Invite(PLAN, 7, 2, as_bytes(MODEL + 1)))
    room.inbox = [(0, other), *rest]
    room.deliver()
    assert room.refusals == {"client: refused by the secure sum": 1}
    assert room.cohort.waiting_for == [0]
    assert raw != other


# ---- restarts


@pytest.mark.parametrize("name", ["secure", "active"])
def test_the_transcript_is_kept_before_the_question_leaves(name: str) -> None:
    room = at_phase(2, ALL_TERMS[name])
    assert room.keeps == []

    def keep(transcript: bytes) -> None:
        assert not room.inbox  # nothing has left
        room.keeps.append(transcript)

    room.keeper = keep
    room.deliver([0, 1, 2, 3])
    room.cohort.tick(BEGIN + 0.8 * SECONDS)
    assert len(room.keeps) == 1
    assert {k for k, _ in room.inbox} == {0, 1, 2, 3}
    while not room.cohort.done:
        room.deliver()
    assert len(room.keeps) == (1 if name == "secure" else 2)  # the consents are a word that cannot be taken back either


def test_a_crash_instead_of_the_keeping_leaves_no_question() -> None:
    room = at_phase(2)

    class Crash(BaseException):
        pass

    def keep(_: bytes) -> None:
        raise Crash

    room.keeper = keep
    with pytest.raises(Crash):
        room.deliver()
    assert room.inbox == []


@pytest.mark.parametrize("name", ["secure", "active"])
@pytest.mark.parametrize("dead", [[], [2], [0]])
def test_a_restarted_server_asks_the_very_same_question(name: str, dead: list[int]) -> None:
    """Of the same clients, about the same survivors, with the model of then; the sum is the one that it would be."""
    first = at_phase(2, ALL_TERMS[name])
    first.deliver([k for k in range(K) if k not in dead])
    if dead:
        first.cohort.tick(BEGIN + 0.8 * SECONDS)
    (kept,), asked = first.keeps, first.take()
    again = Room(first.terms, kept=kept, now=BEGIN + 50, clients=first.clients)
    assert again.inbox == asked
    assert np.array_equal(again.cohort.model, MODEL)
    assert again.keeps == []
    while not again.cohort.done:
        again.deliver()
    assert len(again.keeps) == (name == "active")
    alive = [k for k in range(K) if k not in dead]
    assert again.result == (plain_sum(alive), alive)


def test_the_model_of_a_kept_round_is_the_one_that_was_handed_out() -> None:
    """Flows may have come in since: the model that a restarted server has now is another one."""
    first = at_phase(3)
    again = Cohort(a_desk(SECURE_TERMS, MODEL + 99, BEGIN, first.send, first.keeps[0]), ATTEMPT, first.keep)
    assert np.array_equal(again.model, MODEL)
    assert again.session is not None
    assert first.cohort.session is not None
    assert again.session.task == first.cohort.session.task


def test_those_who_have_answered_answer_a_restarted_server_again() -> None:
    first = at_phase(3)
    asked = list(first.inbox)
    first.deliver([0, 1])  # the answers die with the server
    again = Room(first.terms, kept=first.keeps[0], clients=first.clients)
    assert again.inbox == asked
    again.deliver()
    assert again.result == (plain_sum(range(K)), list(range(K)))


def test_those_who_have_answered_answer_a_restarted_active_server_again() -> None:
    first = at_phase(4, ACTIVE_TERMS)
    first.deliver([0, 1])
    again = Room(first.terms, kept=first.keeps[-1], clients=first.clients).run()
    assert again.result == (plain_sum(range(K)), list(range(K)))


def test_who_was_not_asked_is_not_asked_by_a_restarted_server() -> None:
    first = at_phase(2)
    first.deliver([0, 1, 2])
    first.cohort.tick(BEGIN + 0.8 * SECONDS)
    again = Room(first.terms, kept=first.keeps[0], clients=first.clients)
    again.cohort.tick(BEGIN + SECONDS / REPEATS)
    assert {k for k, _ in again.inbox} == {0, 1, 2}
    again.cohort.enrolled(4)
    assert {k for k, _ in again.inbox} == {0, 1, 2}


def test_without_a_transcript_a_round_begins_again_under_the_next_attempt() -> None:
    """The first attempt's messages are told apart, and the sum is the same."""
    first = at_phase(2)
    late = [(k, cm.from_client(reply, 10_000)) for k, raw in first.take() for reply in first.clients[k].receive(raw)]
    again = Room(SECURE_TERMS, ATTEMPT._replace(number=3), clients=first.clients)
    for k, message in late:
        again.say(k, message)
    assert again.refusals == {"client: another round or attempt": K}
    while not again.cohort.done:
        again.deliver()
    assert again.result == (plain_sum(range(K)), list(range(K)))


def test_a_restarted_active_server_passes_the_very_same_consents_on() -> None:
    """From those who had signed by then, whoever else signs later."""
    first = at_phase(3, ACTIVE_TERMS)
    first.deliver([0, 1, 2, 3])
    first.cohort.tick(BEGIN + 0.9 * SECONDS)
    passed_on = first.take()
    assert [k for k, _ in passed_on] == [0, 1, 2, 3]
    again = Room(first.terms, kept=first.keeps[-1], clients=first.clients)
    assert sorted(again.inbox) == passed_on
    again.deliver()
    assert again.result == (plain_sum(range(K)), list(range(K)))
    assert again.keeps == []


@pytest.mark.parametrize("damage", [lambda t: t[:-1], lambda t: b"", lambda t: t + b"x", lambda t: bytes(len(t))])
def test_a_damaged_transcript_ends_the_round_and_asks_nothing(damage: Callable[[bytes], bytes]) -> None:
    first = at_phase(3)
    kept = Kept.decode(first.keeps[0])
    again = Room(SECURE_TERMS, kept=kept._replace(transcript=damage(kept.transcript)).encode())
    assert "damaged" in again.cohort.failed
    assert again.cohort.done
    assert again.inbox == []
    again.cohort.tick(BEGIN + 1000)
    assert again.inbox == []
    assert again.cohort.sum is None


def test_new_words_are_not_repeated_at_once() -> None:
    room = at_phase(2)
    room.deliver(range(1, K))
    room.cohort.tick(BEGIN + 0.8 * SECONDS)
    assert [k for k, _ in room.take()] == [1, 2, 3, 4]


def test_a_kept_transcript_comes_back() -> None:
    for kept in (Kept(0.0, 1.5, b"", b""), Kept(-1.0, 2.0, b"model", b"transcript"), Kept(3.0, 3.0, bytes(1000), b"x")):
        assert Kept.decode(kept.encode()) == kept


# ---- messages of hostile clients

Fuzzed = tuple[Room, list[tuple[int, cm.FromClient]]]


def every_moment(terms: Terms) -> tuple[list[Room], list[tuple[int, cm.FromClient]]]:
    """A room in each phase, before and after two have answered; and all that was said in them."""
    phases, said = {"clear": 1, "curious": 4, "active": 5}, list[tuple[int, cm.FromClient]]()
    kind = "clear" if terms.secure is None else terms.secure.parameters.server
    room, rooms = Room(terms), list[Room]()
    for _ in range(phases[kind]):
        rooms.append(copied(room))
        for n, (k, raw) in enumerate(room.take()):
            if n == 2:
                rooms.append(copied(room))
            for reply in room.clients[k].receive(raw):
                said.append((k, cm.from_client(reply, terms.largest_from_client)))
                room.say(*said[-1])
    rooms.append(copied(room))
    assert room.cohort.done
    return rooms, said


def copied(room: Room) -> Room:
    same = {id(x): x for x in (room.terms, room.terms.secure, room.clients)}
    return copy.deepcopy(room, same | {id(room.cohort.session): room.cohort.session})


def facts(room: Room) -> Any:
    c = room.cohort
    updates = set(c.survivors), None if c.total is None else c.total.tobytes()
    total = c.sum and (c.sum.total.tobytes(), c.sum.survivors)
    return id(c.session), updates, dict(c.said), set(c.gone), total, c.failed, list(room.inbox), list(room.keeps)


MOMENTS = {name: every_moment(terms) for name, terms in ALL_TERMS.items()}


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.sampled_from(sorted(ALL_TERMS)))
@example(0, "clear")
@example(0, "secure")
@example(0, "active")
def test_any_message_at_any_moment(seed: int, name: str) -> None:
    """It is taken as an answer of its sender, or counted and nothing changes; a sum is never of strangers."""
    r = random.Random(seed)  # noqa: S311 - a test
    rooms, said = MOMENTS[name]
    for room in map(copied, rooms):
        for case in range(12):
            k, message = r.choice(said)
            if isinstance(message, cm.Reply) and r.random() < 0.6:
                message = replace(message, payload=mutated(r, message.payload))
            if isinstance(message, cm.Update) and r.random() < 0.6:
                message = replace(message, words=mutated(r, message.words))
            if not isinstance(message, cm.Enrol) and r.random() < 0.2:
                place = r.choice(((7, 1), (7, 3), (6, 2), (8, 2), (1, 1), (2**32 - 1, 2**31)))
                message = replace(message, round=place[0], attempt=place[1])
            if r.random() < 0.05:
                message = r.choice((cm.Decline(7, 2, "round"), cm.Enrol(1, PLAN, UNIT, k), cm.Reply(7, 2, b"")))
            if r.random() < 0.2:
                k = r.choice((0, 1, K - 1, K, 99))
            note(f"{name}, {room.cohort.session!r}, case {case}: client {k} says {message!r}")
            before, counted, was_done = facts(room), room.refusals.total(), room.cohort.done
            expected = set(room.cohort.waiting_for) if not was_done else set()
            room.say(k, message)
            counts = room.refusals.total() - counted
            if was_done or isinstance(message, cm.Enrol):
                assert counts == 0
                assert facts(room) == before
            elif counts:
                assert counts == 1
                assert facts(room) == before
            elif facts(room) != before:
                assert k in room.attempt.sample
                assert (message.round, message.attempt) == (7, 2)
                assert isinstance(message, cm.Decline) or k in expected or k in before[3]
        assert room.cohort.sum is None or room.cohort.sum.survivors <= set(range(K))


def test_a_client_does_not_speak_for_another() -> None:
    rooms, said = MOMENTS["secure"]
    for room in map(copied, rooms[:-1]):
        for k, message in said:
            before = facts(room)
            room.say((k + 1) % K, message)
            assert facts(room) == before
        assert set(room.refusals) == {"client: refused by the secure sum"}


def test_values_at_and_beyond_the_bound_in_clear() -> None:
    room = Room(CLEAR_TERMS)
    for x in (LARGEST + 1, -LARGEST - 1, 2**63 - 1, -(2**63)):
        words = np.zeros(M, np.int64)
        words[-1] = x
        room.say(0, cm.Update(7, 2, as_bytes(words)))
    assert room.refusals == {"client: an update beyond its bound": 4}
    for k, x in enumerate((LARGEST, -LARGEST, LARGEST, 0, LARGEST)):
        room.say(k, cm.Update(7, 2, as_bytes(np.full(M, x))))
    assert room.result == ([2 * LARGEST] * M, list(range(K)))


def test_many_clients_in_one_phase() -> None:
    """A thousand at once, each twice, some of them with nonsense."""
    n = 1000
    room = Room(replace(CLEAR_TERMS, clients=n), Attempt(7, 2, tuple(range(n))))
    one = as_bytes(np.ones(M, np.int64))
    for k in range(n):
        room.say(k, cm.Reply(7, 2, b""))
        room.say(k, cm.Update(7, 2, one))
        room.say(k, cm.Update(7, 2, as_bytes(np.full(M, 2))))
    assert room.result == ([n] * M, list(range(n)))
    assert room.refusals == {"client: a secure message, but sums are in clear": n}


def test_secure_messages_have_a_size() -> None:
    room = at_phase(2)
    state = room.cohort.session
    assert isinstance(state, secure.Masking)
    for words in (b"", bytes(4 * M - 1), bytes(4 * M + 1), bytes(4 * M + 4)):
        masked = secure_messages.Masked(state.session.id, 0, words)
        room.say(0, cm.Reply(7, 2, secure_messages.encode(masked)))
    room.say(0, cm.Reply(7, 2, bytes(SECURE_TERMS.largest_from_client)))
    assert room.refusals == {"client: refused by the secure sum": 4, "client: malformed": 1}
    assert room.cohort.session is state
