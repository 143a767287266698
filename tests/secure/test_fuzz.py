"""Whatever arrives, as bytes or as a message: the named errors and nothing else, and no state changes but by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import mutated
from confide.base.wire import MalformedError
from confide.secure import client, messages, server
from confide.secure.client import Advertised, Answered, Consented, Sent, Shared
from confide.secure.messages import (
    Advertise,
    Answer,
    Consent,
    Consents,
    Entry,
    FromClient,
    FromServer,
    Inbox,
    Masked,
    Question,
    Roster,
    Shares,
)
from confide.secure.parameters import Parameters
from confide.secure.session import RefusedError, Task, Why
from exploring import more
from sessions import PEERS, Entropy, a_member, a_task, snapshot

CASES = [
    Parameters(5, 4, 3, 3, 1),
    Parameters(5, 4, 4, 4, 1, "active"),
    Parameters(7, 4, 3, 5, 0),  # sparse
    Parameters(7, 4, 3, 5, 0, "active"),
]
ROUND = 5
NEXT = {Advertised: (Shared, Shares), Shared: (Sent, Masked)}
AFTER_SENT = {
    "curious": {Sent: (Answered, Answer)},
    "active": {Sent: (Consented, Consent), Consented: (Answered, Answer)},
}


@dataclass
class World:
    """Sessions of one kind: every state that either side passes through, and every message."""

    task: Task
    clients: list[client.State] = field(default_factory=list)
    servers: list[server.State] = field(default_factory=list)
    said: list[FromClient] = field(default_factory=list)
    told: list[FromServer] = field(default_factory=list)
    before: dict[int, Any] = field(default_factory=dict)  # the states as they were

    def pick(self, kind: type, name: str) -> list[Any]:
        """All values of a field in true messages of a type."""
        return [getattr(m, name) for m in (*self.said, *self.told) if isinstance(m, kind)]


def observe(world: World, task: Task, draw: str) -> None:
    """One session with one client that never shares, one that drops in the middle, and all messages kept."""
    n = task.parameters.clients
    state: server.State = server.start(task, range(n), PEERS)
    now: dict[int, tuple[client.State, FromClient | None]] = {}
    for i in range(n):
        words = np.arange(task.length, dtype=task.dtype)
        now[i] = client.start(task, a_member(task, i), words, 0, Entropy(draw, i))
    while now:
        world.servers.append(state)
        for i, (after, message) in now.items():
            world.clients.append(after)
            if message is None or (n > 5 and (type(message), i) in ((Shares, n - 1), (Masked, n - 2))):
                continue
            world.said.append(message)
            state = server.receive(state, i, message)
            if i == 1:
                world.servers.append(state)  # with two of the messages it waits for
        state, told = server.close(state)
        world.told += told.values()
        now = {i: client.receive(now[i][0], news, 0) for i, news in told.items()}
    world.servers.append(state)


@cache
def a_world(case: int) -> World:
    task = a_task(CASES[case], round=ROUND)
    world, elsewhere = World(task), World(task)
    observe(world, task, "a")
    me, aborted = world.clients[0].me, client.Aborted(task, world.clients[0].me, Why.BAD_ROSTER)
    assert me.client == 0
    world.clients = [s for s in world.clients if s.me.client in (0, 1)] + [aborted]
    world.servers.append(server.Aborted(task, Why.TOO_FEW_SHARED))
    world.before = {id(s): snapshot(s) for s in (*world.clients, *world.servers)}
    observe(elsewhere, task, "b")  # another session of the same round
    observe(elsewhere, replace(task, round=ROUND + 1), "a")
    world.said += elsewhere.said
    world.told += elsewhere.told
    return world


def poke_client(world: World, state: client.State, message: FromServer, answered: int = 0) -> client.State:
    """One message; every outcome that is not refused must be the next state with its reply, or a named end."""
    try:
        after, reply = client.receive(state, message, answered)
    except RefusedError:
        after, reply = state, None
    else:
        if isinstance(after, client.Aborted):
            assert isinstance(after.why, Why)
            assert reply is None
            assert not isinstance(state, client.Aborted)
        else:
            following = NEXT | AFTER_SENT[world.task.parameters.server]
            assert (type(after), type(reply)) == following[type(state)]
            assert not (isinstance(reply, Answer) and answered >= ROUND)
    if id(state) in world.before:
        assert snapshot(state) == world.before[id(state)]
    return after


def poke_server(world: World, state: server.State, sender: int, message: FromClient) -> server.State:
    try:
        after = server.receive(state, sender, message)
    except RefusedError:
        after = state
    else:
        assert type(after) is type(state)
        assert server.missing(after) == server.missing(state) - {sender} != server.missing(state)
    if id(state) in world.before:
        assert snapshot(state) == world.before[id(state)]
    return after


def sender_of(message: FromClient) -> int:
    return message.entry.client if isinstance(message, Advertise) else message.client


def poke_all(world: World, raw: bytes) -> None:
    """Bytes, to both decoders, and what they mean to every state of either side."""
    largest = world.task.largest_message
    try:
        told = messages.from_server(raw, largest)
    except MalformedError:
        pass
    else:
        for state in world.clients:
            poke_client(world, state, told)
    try:
        said = messages.from_client(raw, largest)
    except MalformedError:
        pass
    else:
        for state in world.servers:
            poke_server(world, state, sender_of(said), said)


# --- bytes ----------------------------------------------------------------------------------------------------------

cases = st.integers(0, len(CASES) - 1)


@given(cases, st.binary(max_size=200))
@settings(max_examples=more(200, 1000))
def test_random_bytes(case: int, raw: bytes) -> None:
    poke_all(a_world(case), raw)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.sampled_from([bytes(32), bytes(34), bytes(64), bytes(84)])
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=4))
    | st.datetimes().map(lambda _: msgpack.Timestamp(0, 0)),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3) | st.integers(0, 9), inner, max_size=2)
    ),
    max_leaves=12,
)
kinds = st.sampled_from([*messages.FROM_CLIENT, *messages.FROM_SERVER])


@given(cases, st.one_of(values, st.builds(lambda kind, rest: [kind, *rest], kinds, st.lists(values, max_size=5))))
@settings(max_examples=more(150, 600))
def test_random_values_that_are_no_messages(case: int, value: Any) -> None:
    poke_all(a_world(case), msgpack.packb(value))


@st.composite
def damaged(draw: st.DrawFn) -> tuple[int, bytes]:
    case = draw(cases)
    world = a_world(case)
    raw, *others = (messages.encode(draw(st.sampled_from([*world.said, *world.told]))) for _ in range(4))
    return case, mutated(draw(st.randoms(use_true_random=False)), raw, others)


@given(damaged())
@settings(max_examples=more(300, 1000))
def test_true_messages_that_were_damaged(damaged: tuple[int, bytes]) -> None:
    poke_all(a_world(damaged[0]), damaged[1])


@pytest.mark.parametrize("case", range(len(CASES)))
def test_every_true_message_cut_anywhere_is_malformed(case: int) -> None:
    world = a_world(case)
    one_of_each = {type(m): m for m in (*world.said, *world.told)}
    for message in one_of_each.values():
        raw = messages.encode(message)
        decode = messages.from_client if type(message).__name__ in messages.FROM_CLIENT else messages.from_server
        assert decode(raw, len(raw)) == message
        for end in range(len(raw)):
            with pytest.raises(MalformedError):
                decode(raw[:end], len(raw))
        for tail in (b"\0", b"\xc0", raw):
            with pytest.raises(MalformedError):
                decode(raw + tail, 10 * len(raw))
        with pytest.raises(MalformedError, match=f"at most {len(raw) - 1} are allowed"):
            decode(raw, len(raw) - 1)
        other = messages.from_server if decode is messages.from_client else messages.from_client
        with pytest.raises(MalformedError, match="must be one of"):
            other(raw, len(raw))


@pytest.mark.parametrize("decode", [messages.from_client, messages.from_server])
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x91" * 100_000,  # lists in lists
        b"\x91" * 500 + b"\x90",
        b"\xdd\xff\xff\xff\xff",  # a list of four thousand million
        b"\xdb\xff\xff\xff\xff",  # a text of that length
        b"\xc6\xff\xff\xff\xff",  # bytes of that length
        b"\xdf\xff\xff\xff\xff",  # a map of that length
        b"\x92\xa8Question\xdd\xff\xff\xff\xff",
        b"\xc1",  # never used
        b"\x94\xa8Question\xc4\x20" + bytes(32) + b"\xc0\xc0",
        b"\x91\xa2\xff\xff",  # not UTF-8
        b"\x91\xc7\x00\x01",
        b"\x91\xd6\xff\x00\x00\x00\x00",  # a time
        msgpack.packb(["Question", bytes(32), [True], [0]]),
        msgpack.packb(["Question", bytes(32), [0.0], [0]]),
        msgpack.packb(["Question", bytes(32), ["0"], [0]]),
        msgpack.packb(["Question", bytes(32), [2**32], [0]]),
        msgpack.packb(["Question", bytes(32), [-1], [0]]),
        msgpack.packb(["Question", bytes(31), [0], [1]]),
        msgpack.packb(["Question", "0" * 32, [0], [1]]),
        msgpack.packb(["Question", bytes(32), [0]]),
        msgpack.packb(["Question", bytes(32), [0], [1], []]),
        msgpack.packb(["Question", bytes(32), {}, [1]]),
        msgpack.packb(["Question", bytes(32), list(range(65_537)), []]),
        msgpack.packb(["Advertise", bytes(32), [1, bytes(32), bytes(32)]]),
        msgpack.packb(["Advertise", bytes(32), {}]),
        msgpack.packb(["Roster", bytes(32), [[1, bytes(32), bytes(32), bytes(65)]]]),
        msgpack.packb(["Answer", bytes(32), 1, [[1, bytes(33)]], []]),
        msgpack.packb([b"Question", bytes(32), [0], [1]]),
        msgpack.packb({"Question": 1}),
        msgpack.packb("Question"),
        msgpack.packb([]),
        msgpack.packb([[]]),
    ],
)
def test_bytes_that_were_made_to_hurt(raw: bytes, decode: Callable[[bytes, int], Any]) -> None:
    with pytest.raises(MalformedError):
        decode(raw, 1 << 20)


# --- well-formed messages that nobody would send --------------------------------------------------------------------


def often(good: list[Any], else_: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """True values most of the time."""
    return st.one_of(st.sampled_from(good), st.sampled_from(good), else_) if good else else_


@cache
def parts(case: int) -> dict[str, st.SearchStrategy[Any]]:
    """Strategies for the fields of messages, made of what was really said."""
    world = a_world(case)
    n, task = world.task.parameters.clients, world.task
    sessions = [s.session.id for s in world.clients if hasattr(s, "session")][:1]
    ids = st.integers(0, n) | st.sampled_from([99, 2**32 - 1])
    entries = [e for es in world.pick(Roster, "entries") for e in es]
    keys = [k for e in entries for k in (e.mask_key, e.channel_key)]
    sealed = [c for name in (Shares, Inbox) for pairs in world.pick(name, "sealed") for _, c in pairs]
    open_ = [c for name in ("seeds", "keys") for pairs in world.pick(Answer, name) for _, c in pairs]
    signatures = [s for pairs in world.pick(Consents, "signatures") for _, s in pairs]
    key = often([*keys, bytes(32), b"\1" + bytes(31)], st.binary(min_size=32, max_size=32))
    signature = often([*signatures, *(e.signature for e in entries)], st.binary(max_size=64))
    whole = often(signatures, st.binary(min_size=64, max_size=64))
    entry = often(entries, st.builds(Entry, ids, key, key, signature))

    def some(of: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.lists(of, max_size=n + 2).map(tuple)

    def some_of(name: type, place: str, else_: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        """A true list, or one in another order, or with some left out, or made up."""
        found = world.pick(name, place)
        if not found:
            return some(else_)
        part = st.sampled_from(found).flatmap(lambda true: st.permutations(true).map(tuple))
        cut = st.tuples(part, st.integers(0, n)).map(lambda both: tuple(sorted(both[0][: both[1]])))
        grown = st.tuples(st.sampled_from(found), else_).map(lambda both: (*both[0], both[1]))
        return st.one_of(st.sampled_from(found), part, cut, grown, some(else_))

    sides = st.lists(st.sampled_from(["alive", "alive", "dead", "none", "both"]), min_size=n, max_size=n)
    return {
        "task": often([task.digest], st.sampled_from(world.pick(Roster, "task"))),
        "session": often(sessions, st.sampled_from(world.pick(Inbox, "session")) | st.binary(min_size=32, max_size=32)),
        "client": ids,
        "entry": entry,
        "entries": some_of(Roster, "entries", entry),
        "commitment": st.binary(min_size=32, max_size=32),
        "sealed": some_of(Shares, "sealed", st.tuples(ids, often(sealed, st.binary(min_size=84, max_size=84))))
        | some_of(Inbox, "sealed", st.tuples(ids, often(sealed, st.binary(min_size=84, max_size=84)))),
        "words": often([bytes(12)], st.binary(max_size=20)),
        "alive": sides.map(lambda found: tuple(i for i, side in enumerate(found) if side in ("alive", "both")))
        | some_of(Question, "alive", ids),
        "dead": sides.map(lambda found: tuple(i for i, side in enumerate(found) if side in ("dead", "both")))
        | some_of(Question, "dead", ids),
        "signature": whole,
        "signatures": some_of(Consents, "signatures", st.tuples(ids, whole)),
        "seeds": some_of(Answer, "seeds", st.tuples(ids, often(open_, st.binary(min_size=34, max_size=34)))),
        "keys": some_of(Answer, "keys", st.tuples(ids, often(open_, st.binary(min_size=34, max_size=34)))),
    }


@cache
def made_up(case: int, kind: type) -> st.SearchStrategy[Any]:
    """Of that type: all fields drawn, or one field of a true message drawn anew."""
    world, found = a_world(case), parts(case)
    drawn = st.builds(kind, **{f.name: found[f.name] for f in fields(kind)})
    true = [m for m in (*world.said, *world.told) if isinstance(m, kind)]
    if not true:
        return drawn
    one = st.sampled_from([f.name for f in fields(kind)]).flatmap(
        lambda name: st.builds(lambda m, v: replace(m, **{name: v}), st.sampled_from(true), found[name])
    )
    return drawn | one


def of_every_kind(case: int, kinds: dict[str, type]) -> st.SearchStrategy[Any]:
    return st.sampled_from(list(kinds.values())).flatmap(lambda kind: made_up(case, kind))


told = cases.flatmap(lambda case: st.tuples(st.just(case), of_every_kind(case, messages.FROM_SERVER)))
said = cases.flatmap(lambda case: st.tuples(st.just(case), of_every_kind(case, messages.FROM_CLIENT)))


@given(told, st.sampled_from([0, 0, ROUND]))
@settings(max_examples=more(250, 1000))
def test_a_client_in_every_phase_is_told_something(news: tuple[int, FromServer], answered: int) -> None:
    case, message = news
    world = a_world(case)
    assert messages.from_server(messages.encode(message), world.task.largest_message) == message
    for state in world.clients:
        poke_client(world, state, message, answered)


@given(said, st.integers(-1, 7))
@settings(max_examples=more(250, 1000))
def test_a_server_in_every_phase_is_told_something(news: tuple[int, FromClient], who: int) -> None:
    case, message = news
    world = a_world(case)
    assert messages.from_client(messages.encode(message), world.task.largest_message) == message
    for state in world.servers:
        poke_server(world, state, sender_of(message) if who < 0 else who, message)


# --- long conversations ---------------------------------------------------------------------------------------------


@given(st.data(), cases)
@settings(max_examples=more(70, 200))
def test_a_client_hears_many_things(data: st.DataObject, case: int) -> None:
    """True messages in any order with made-up ones between; the end is one of the named ones."""
    world = a_world(case)
    state = data.draw(st.sampled_from(world.clients))
    anything = st.sampled_from(world.told) | of_every_kind(case, messages.FROM_SERVER)
    answers = 0
    for message in data.draw(st.lists(anything, min_size=3, max_size=12)):
        after = poke_client(world, state, message)
        answers += isinstance(after, Answered) and not isinstance(state, Answered)
        if isinstance(state, client.Aborted):
            assert after is state
        state = after
    assert answers <= 1


@given(st.data(), cases)
@settings(max_examples=more(100, 300))
def test_a_server_hears_many_things(data: st.DataObject, case: int) -> None:
    """Phases that end early, and messages in any order; no phase ends but in the next, a sum or a named abort."""
    world = a_world(case)
    phases = [server.Advertising, server.Sharing, server.Masking, server.Consenting, server.Unmasking]
    state = data.draw(st.sampled_from(world.servers))
    anything = of_every_kind(case, messages.FROM_CLIENT).map(lambda message: [message])
    everything = st.integers(1, 3).map(lambda step: world.said[::step])
    for heard in data.draw(st.lists(st.one_of(anything, everything, st.just([])), min_size=3, max_size=12)):
        for message in heard:
            state = poke_server(world, state, sender_of(message), message)
        if heard:
            continue
        if type(state) not in phases:
            with pytest.raises(RefusedError):
                server.close(state)
            continue
        after, letters = server.close(state)
        if letters:
            following = phases.index(type(state)) + 1
            skipped = isinstance(state, server.Masking) and world.task.parameters.server == "curious"
            assert type(after) is phases[following + skipped]
            assert letters.keys() == server.missing(after)
        else:
            assert isinstance(after, server.Aborted | server.Summed)
        state = after
