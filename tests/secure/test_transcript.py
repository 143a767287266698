"""A server that starts again asks the question that it had written down, of the same clients, and gets the same sum."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace
from functools import cache
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import example, given, note, settings
from hypothesis import strategies as st

from confide.base.wire import MalformedError
from confide.secure import client, messages, server, transcript
from confide.secure.messages import Consents, Entry, FromServer, Question
from confide.secure.parameters import Parameters, choose
from confide.secure.server import Consenting, Summed, Unmasking
from confide.secure.session import RefusedError, Session, Task, Why
from sessions import PEERS, a_task, play

CASES = {
    "complete": choose(5, 0.0, 0.4),
    "active": choose(5, 0.0, 0.2, "active"),
    "sparse": Parameters(7, 4, 3, 5, 0),
    "sparse active": Parameters(7, 4, 3, 5, 0, "active"),
}
M = 3
Asking = Consenting | Unmasking


def words(i: int) -> np.ndarray:
    return np.array([i + 1, 2**32 - 1 - i, 1000 * i], np.uint32)


@cache
def asked(name: str, dead: tuple[int, ...] = ()) -> tuple[Asking, dict[int, client.State]]:
    """A server that has asked its question, and its clients as they were before they heard it."""
    task = a_task(CASES[name])
    drops = tuple((i, messages.Masked) for i in dead)
    trace = play(task, drops, words={i: words(i) for i in range(task.parameters.clients)})
    state = trace.begun[Consenting if task.parameters.server == "active" else Unmasking]
    return state, {i: trace.clients[client.Sent][i] for i in state.asked}


def finish(state: server.State, clients: dict[int, client.State], told: dict[int, FromServer]) -> server.State:
    """The same question, or what follows from it, to its end."""
    while told:
        for i, news in told.items():
            clients[i], said = client.receive(clients[i], news, 0)
            assert said is not None
            state = server.receive(state, i, said)
        state, told = server.close(state)
    return state


def back(state: Asking, task: Task | None = None) -> Asking:
    found, said = transcript.decode(transcript.encode(state), task or state.task, PEERS)
    assert said == found.question
    return found


@pytest.mark.parametrize("dead", [(), (1,)])
@pytest.mark.parametrize("name", CASES)
def test_it_comes_back_as_it_was_asked(name: str, dead: tuple[int, ...]) -> None:
    state, _ = asked(name, dead)
    found = back(state)
    assert type(found) is type(state)
    assert found.question == state.question
    assert set(found.question.dead) == set(dead)
    assert found.asked == state.asked == set(state.question.alive)
    assert found.session.id == state.session.id
    assert found.session.entries == state.session.entries
    assert found.commitments == state.commitments
    assert found.total.tobytes() == state.total.tobytes()
    assert found.total.dtype == state.total.dtype
    assert found.task == state.task
    assert server.missing(found) == found.asked
    assert transcript.encode(found) == transcript.encode(state)
    assert messages.encode(found.question) == messages.encode(state.question)  # clients know it by its bytes


@pytest.mark.parametrize("dead", [(), (1,)])
@pytest.mark.parametrize("name", CASES)
def test_the_sum_is_the_one_that_it_would_be(name: str, dead: tuple[int, ...]) -> None:
    state, clients = asked(name, dead)
    alive = state.question.alive
    for restarted in (state, back(state)):
        told: dict[int, FromServer] = dict.fromkeys(restarted.asked, restarted.question)
        ended = finish(restarted, dict(clients), told)
        assert isinstance(ended, Summed), ended
        assert ended.survivors == alive
        assert ended.total.tolist() == np.sum([words(i) for i in alive], axis=0, dtype=np.uint32).tolist()


@pytest.mark.parametrize("name", CASES)
def test_answers_that_had_come_are_not_in_it(name: str) -> None:
    """Nothing that clients open lies in the store: no share, no signature of the list."""
    state, clients = asked(name)
    raw = transcript.encode(state)
    later: server.State = state
    for i in sorted(state.asked)[:2]:
        _, said = client.receive(clients[i], state.question, 0)
        assert isinstance(said, messages.Consent | messages.Answer)
        later = server.receive(later, i, said)
    assert later is not state
    assert isinstance(later, Consenting | Unmasking)
    assert transcript.encode(later) == raw


@pytest.mark.parametrize("name", ["complete", "active"])
@pytest.mark.parametrize("change", [{"round": 6}, {"model": b"n" * 32}, {"plan": b"q" * 32}, {"unit": 3}])
def test_under_another_task_it_is_another_session(name: str, change: dict[str, Any]) -> None:
    """Clients do not answer it: a transcript serves the round, the model and the plan that it was kept for."""
    state, clients = asked(name)
    found = back(state, replace(state.task, **change))
    assert found.session.id != state.session.id
    for i in found.asked:
        with pytest.raises(RefusedError):
            client.receive(clients[i], found.question, 0)


def test_a_second_question_is_not_answered_though_the_first_one_was_lost() -> None:
    """Why it is kept: a server that forgot would ask about other survivors."""
    state, clients = asked("complete")
    assert isinstance(state, Unmasking)
    after, said = client.receive(clients[0], state.question, 0)
    assert isinstance(said, messages.Answer)
    other = Question(state.session.id, state.question.alive[:-1], state.question.alive[-1:])
    after, said = client.receive(after, other, 0)
    assert said is None
    assert isinstance(after, client.Aborted)
    assert after.why is Why.ASKED_TWICE


def consenting(name: str) -> tuple[Unmasking, Consents, dict[int, client.State]]:
    """An active server that has passed the consents on, of all but one; and its clients before they hear them."""
    state, clients = asked(name)
    clients, now = dict(clients), state  # type: dict[int, client.State], server.State
    for i in sorted(state.asked)[1:]:
        clients[i], said = client.receive(clients[i], state.question, 0)
        assert said is not None
        now = server.receive(now, i, said)
    unmasking, told = server.close(now)
    assert isinstance(unmasking, Unmasking)
    consents = next(iter(told.values()))
    assert isinstance(consents, Consents)
    return unmasking, consents, clients


@pytest.mark.parametrize("name", ["active", "sparse active"])
def test_the_consents_come_back_as_they_were_passed_on(name: str) -> None:
    state, consents, clients = consenting(name)
    raw = transcript.encode(state, consents)
    found, said = transcript.decode(raw, state.task, PEERS)
    assert isinstance(found, Unmasking)
    assert isinstance(said, Consents)
    assert messages.encode(said) == messages.encode(consents)
    assert found.asked == state.asked == {i for i, _ in consents.signatures}
    assert min(state.question.alive) not in found.asked
    assert found.question == state.question
    assert transcript.encode(found, said) == raw
    ended = finish(found, clients, dict.fromkeys(sorted(found.asked), said))
    assert isinstance(ended, Summed), ended
    expected = np.sum([words(i) for i in state.question.alive], axis=0, dtype=np.uint32)
    assert ended.total.tolist() == expected.tolist()


def test_the_total_may_be_worked_on() -> None:
    state, _ = asked("complete")
    found = back(state)
    found.total[:] += 1
    assert back(state).total.tobytes() == state.total.tobytes()


@pytest.mark.parametrize("n", [100, 3000])
def test_the_longest_is_read_back(n: int) -> None:
    """The limit of its size is made of the session's longest message: large numbers, signatures, nobody dead."""
    parameters = choose(n, 0.0, 0.05, "active")
    task = a_task(parameters, length=1)
    ids = range(2**32 - n, 2**32)
    entries = [Entry(i, i.to_bytes(32, "big"), (~i & 2**256 - 1).to_bytes(32, "big"), bytes(64)) for i in ids]
    session = Session(task, entries)
    question = Question(session.id, tuple(ids), ())
    total = np.zeros(1, np.uint32)
    state = Consenting(task, session, {}, dict.fromkeys(ids, bytes(32)), total, question, frozenset(ids))
    assert back(state).question == question
    consents = Consents(session.id, tuple((i, bytes(64)) for i in ids))
    raw = transcript.encode(state, consents)
    assert transcript.decode(raw, task, {})[1] == consents


# ---- bytes that are none


def survives(raw: bytes, task: Task) -> Asking | None:
    try:
        return transcript.decode(raw, task, PEERS)[0]
    except MalformedError:
        return None


@pytest.mark.parametrize("name", ["complete", "sparse active"])
def test_no_part_of_it_is_one(name: str) -> None:
    state, _ = asked(name)
    raw = transcript.encode(state)
    for n in range(len(raw)):
        assert survives(raw[:n], state.task) is None
    assert survives(raw + b"\x00", state.task) is None
    assert survives(messages.encode(state.question), state.task) is None
    assert survives(raw, state.task) is not None


def fields_of(raw: bytes) -> list[Any]:
    return list(msgpack.unpackb(raw, use_list=False))


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (1, None),
        (1, ((0, b"short", b"short", b""),)),
        (2, ((0, b"short"),)),
        (3, "words"),
        (4, (-1,)),
        (4, (2**32,)),
        (5, (True,)),
        (5, None),
        (6, None),
        (6, ((0, b"short"),)),
    ],
)
def test_fields_that_cannot_be(at: int, value: Any) -> None:
    state, _ = asked("complete")
    content = fields_of(transcript.encode(state))
    assert survives(msgpack.packb(content), state.task) is not None
    content[at] = value
    assert survives(msgpack.packb(content), state.task) is None


@pytest.mark.parametrize("total", [b"", bytes(4 * M - 1), bytes(4 * M - 4), bytes(4 * M + 4)], ids=len)
def test_a_total_of_another_length(total: bytes) -> None:
    state, _ = asked("complete")
    content = fields_of(transcript.encode(state))
    content[3] = total
    assert survives(msgpack.packb(content), state.task) is None


def odd(r: random.Random, likely: Collection[Any], depth: int = 0) -> Any:
    if depth < 3 and r.random() < 0.4:
        return [odd(r, likely, depth + 1) for _ in range(r.randrange(4))]
    return r.choice([*likely])


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.sampled_from(sorted(CASES)))
@example(0, "complete")
def test_thousands_of_bytes_and_contents(seed: int, name: str) -> None:
    r, (state, _) = random.Random(seed), asked(name)  # noqa: S311 - a test
    raw, task = transcript.encode(state), state.task
    likely = (None, True, 0, 1, 6, -1, 2**32, 0.5, "", b"", bytes(32), bytes(64), "Transcript")
    for case in range(100):
        content = fields_of(raw)
        content[r.choice((0, 1, 2, 4, 5, 6))] = odd(r, likely)
        bad = r.choice((r.randbytes(r.randrange(80)), msgpack.packb(content), raw[: r.randrange(len(raw))]))
        note(f"case {case}: {bad!r}")
        found = survives(bad, task)
        assert found is None or found.total.tobytes() == state.total.tobytes()
