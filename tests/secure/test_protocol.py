"""Whole sessions: whoever drops out and whenever, the sum is exact or there is none, and the machines are pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from confide.base.errors import InputError
from confide.secure import client, messages, server
from confide.secure.encoding import Encoding
from confide.secure.keys import Identity
from confide.secure.messages import FromClient, FromServer, Question
from confide.secure.parameters import Parameters, choose
from confide.secure.session import Session, Task, Why
from confide.testing.secure_sessions import Outcome, Phase, rehearse
from exploring import more
from sessions import Entropy, a_task, snapshot

Words = np.ndarray
Drops = dict[int, Phase]
Talks = dict[Phase, set[int]]  # who has not dropped out yet
Replies = dict[int, tuple[client.State, bytes | None]]
PHASES = {"curious": [p for p in Phase if p is not Phase.CONSENT], "active": list(Phase)}


@cache
def identities(n: int) -> dict[int, Identity]:
    return {i: Identity.of(hashlib.sha256(b"identity %d" % i).digest()) for i in range(n)}


def members(task: Task) -> list[client.Member]:
    n = task.parameters.clients
    if task.parameters.server == "curious":
        return [client.Member(i) for i in range(n)]
    peers = {i: identity.public for i, identity in identities(n).items()}
    return [client.Member(i, identity, peers) for i, identity in identities(n).items()]


def peers_of(task: Task) -> dict[int, bytes]:
    return {m.client: m.identity.public for m in members(task) if m.identity is not None}


def updates(task: Task, seed: int = 0) -> dict[int, Words]:
    """Words over the whole ring, so that every sum wraps."""
    rng = np.random.default_rng([seed, task.parameters.clients, task.ring_bits])
    size = task.length * task.dtype.itemsize
    return {i: np.frombuffer(rng.bytes(size), task.dtype) for i in range(task.parameters.clients)}


def exact(task: Task, words: dict[int, Words], survivors: Iterable[int]) -> list[int]:
    """The sum of whole numbers, one by one, without NumPy's wrap-around."""
    chosen = sorted(survivors)
    return [sum(int(words[i][k]) for i in chosen) % (1 << task.ring_bits) for k in range(task.length)]


def rehearsed(
    task: Task, words: dict[int, Words], drops: Drops | None = None, who: list[client.Member] | None = None
) -> Outcome:
    """A session with the same keys, neighbours and shares in every run."""
    return rehearse(task, members(task) if who is None else who, words, drops, entropy=Entropy("rehearsed"))


# --- what must come out, said without the machines ------------------------------------------------------------------


@dataclass(frozen=True)
class Expected:
    why: Why | None
    survivors: tuple[int, ...] = ()


def expected(p: Parameters, session: Session | None, talks: Talks) -> Expected:
    if len(talks[Phase.ADVERTISE]) < p.quorum or session is None:
        return Expected(Why.TOO_FEW_ADVERTISED)
    holders = {i: set(session.holders(i)) for i in talks[Phase.ADVERTISE]}

    def enough(of: set[int]) -> set[int]:
        """Whose secrets these clients can put together."""
        return {i for i in holders if len(holders[i] & of) >= p.threshold}

    shared = talks[Phase.SHARE]
    if len(shared) < p.quorum:
        return Expected(Why.TOO_FEW_SHARED)
    masked = talks[Phase.MASK] & enough(shared)
    if len(masked) < p.quorum:
        return Expected(Why.TOO_FEW_UPDATES)
    answered = talks[Phase.UNMASK] & masked
    if p.server == "active":
        consented = talks[Phase.CONSENT] & masked
        if len(consented) < p.threshold:
            return Expected(Why.TOO_FEW_CONSENTS)
        answered &= enough(consented)
    if not shared <= enough(answered):
        return Expected(Why.TOO_FEW_ANSWERS)
    return Expected(None, tuple(sorted(masked)))


def check(task: Task, words: dict[int, Words], state: server.State, wanted: Expected) -> None:
    if wanted.why is None:
        assert isinstance(state, server.Summed), (state, wanted)
        assert state.survivors == wanted.survivors
        assert state.total.dtype == task.dtype
        assert state.total.tolist() == exact(task, words, wanted.survivors)
    else:
        assert isinstance(state, server.Aborted), (state, wanted)
        assert state.why is wanted.why
        assert not state.liars
        assert {f.name for f in fields(state)} == {"task", "why", "liars"}  # nothing is left to release


# --- every dropout pattern ------------------------------------------------------------------------------------------

RINGS = (8, 32, 64)
SMALL = [  # and the ring; the modes, graphs and rings meet in all combinations for the smallest cohorts
    *((p, ring) for p in (Parameters(2, 1, 2, 2, 0), Parameters(2, 1, 2, 2, 0, "active")) for ring in RINGS),
    *((p, ring) for p in (Parameters(3, 2, 2, 2, 0), Parameters(3, 2, 3, 3, 0, "active")) for ring in RINGS),
    *(
        (p, ring)
        for p in (Parameters(4, 3, 3, 3, 1), Parameters(4, 3, 3, 4, 0, "active"))
        for ring in more((32,), RINGS)
    ),
    *((p, ring) for p in (Parameters(4, 2, 2, 3, 0), Parameters(4, 2, 2, 3, 0, "active")) for ring in RINGS),
    (Parameters(5, 4, 3, 3, 1), 32),
    (Parameters(5, 4, 4, 4, 1, "active"), 8),
    (Parameters(5, 4, 3, 4, 2), 64),
    (Parameters(5, 2, 2, 3, 0), 32),
    (Parameters(6, 5, 4, 4, 1), 32),
    (Parameters(6, 5, 4, 5, 2), 64),
    (Parameters(6, 5, 5, 5, 1, "active"), 32),
    (Parameters(6, 2, 2, 3, 0), 8),
    (Parameters(6, 4, 3, 5, 0), 32),
    more((Parameters(5, 2, 2, 3, 0, "active"), 64), (Parameters(6, 2, 2, 3, 0, "active"), 64)),
]


def label(p: Parameters | int) -> str:
    return str(p) if isinstance(p, int) else f"{p.server}-n{p.clients}-k{p.degree}-t{p.threshold}-q{p.quorum}"


def subsets(of: set[int]) -> Iterator[set[int]]:
    for size in range(len(of) + 1):
        yield from map(set, combinations(sorted(of), size))


def step(task: Task, state: server.State, replies: Replies, talking: set[int]) -> tuple[server.State, Replies]:
    """One phase, as bytes, with those who still talk."""
    for i in sorted(talking & replies.keys()):
        raw = replies[i][1]
        if raw is not None:
            state = server.receive(state, i, messages.from_client(raw, task.largest_message))
    state, told = server.close(state)
    found: Replies = {}
    for i, message in told.items():
        news = messages.from_server(messages.encode(message), task.largest_message)
        after, said = client.receive(replies[i][0], news, 0)
        found[i] = after, None if said is None else messages.encode(said)
    return state, found


def begin(task: Task, words: dict[int, Words], *draw: object) -> tuple[server.State, Replies]:
    begun = {m.client: client.start(task, m, words[m.client], 0, Entropy(m.client, *draw)) for m in members(task)}
    replies: Replies = {i: (state, messages.encode(said)) for i, (state, said) in begun.items()}
    return server.start(task, begun, peers_of(task)), replies


@pytest.mark.parametrize(("parameters", "ring_bits"), SMALL, ids=label)
def test_the_sum_is_exact_or_there_is_none_under_every_dropout_pattern(parameters: Parameters, ring_bits: int) -> None:
    """Every assignment of a phase to drop in, or none, to every client.

    The patterns are walked as a tree, and what begins alike is played once: transitions are pure, so that the states
    at a node serve all branches below it. Whoever drops is silent from then on, so those who talk are nested sets and
    an assignment is one path; where the server has aborted, all assignments below are the same session.
    """
    task = a_task(parameters, length=2, ring_bits=ring_bits)
    words, phases, patterns = updates(task), PHASES[parameters.server], 0

    def walk(state: server.State, replies: Replies, talks: Talks, session: Session | None) -> None:
        nonlocal patterns
        phase, later = phases[len(talks)], len(phases) - len(talks) - 1
        for talking in subsets(talks[phases[len(talks) - 1]] if talks else set(replies)):
            after, found = step(task, state, replies, talking)
            path = talks | {phase: talking}
            if found:
                walk(after, found, path, after.session if isinstance(after, server.Sharing) else session)
            else:
                patterns += (later + 1) ** len(talking)
                check(task, words, after, expected(parameters, session, dict.fromkeys(Phase, talking) | path))

    walk(*begin(task, words), {}, None)
    assert patterns == (len(phases) + 1) ** parameters.clients


# --- larger cohorts -------------------------------------------------------------------------------------------------


def outcome_is_right(task: Task, drops: Drops, seed: int = 0) -> Outcome:
    words = updates(task, seed)
    outcome = rehearsed(task, words, drops)
    talks = {phase: {i for i in words if drops.get(i, len(Phase)) > phase} for phase in Phase}
    session = next((s.session for s in outcome.clients.values() if hasattr(s, "session")), None)
    check(task, words, outcome.state, expected(task.parameters, session, talks))
    return outcome


def random_drops(parameters: Parameters, n: int, seed: int) -> Drops:
    rng = np.random.default_rng(seed)
    who, phases = rng.choice(parameters.clients, n, replace=False), PHASES[parameters.server]
    return {int(i): phases[int(rng.integers(len(phases)))] for i in who}


LARGE = more(
    [
        (choose(101, 0.05, 0.1), 32),
        (Parameters(50, 10, 6, 38, 2), 8),
        (Parameters(30, 10, 6, 23, 1, "active"), 32),
        (Parameters(15, 14, 11, 11, 3, "active"), 64),
        (Parameters(20, 19, 11, 11, 4), 64),
        (Parameters(20, 19, 11, 14, 4), 8),
    ],
    [
        (choose(150, 0.05, 0.1), 32),
        (Parameters(120, 20, 11, 95, 2), 8),
        (Parameters(120, 20, 11, 95, 2), 64),
        (Parameters(50, 10, 6, 38, 1, "active"), 32),
        (Parameters(30, 29, 21, 21, 3, "active"), 64),
        (Parameters(45, 44, 23, 23, 4), 64),
        (Parameters(45, 44, 23, 30, 4), 8),
    ],
)


@pytest.mark.parametrize(("parameters", "ring_bits"), LARGE, ids=label)
def test_a_larger_cohort_finishes_while_no_more_than_planned_drop_out(parameters: Parameters, ring_bits: int) -> None:
    """In these draws: on a small sparse graph a secret may be out of reach, in one of about forty others."""
    task = a_task(parameters, length=5, ring_bits=ring_bits)
    spare = parameters.clients - parameters.quorum
    outcome = outcome_is_right(task, random_drops(parameters, spare if parameters.complete else spare // 2, seed=1))
    assert isinstance(outcome.state, server.Summed)
    assert len(outcome.state.survivors) >= parameters.quorum


@pytest.mark.parametrize("seed", [4, 11])
@pytest.mark.parametrize(("parameters", "ring_bits"), LARGE[1:], ids=label)
def test_a_larger_cohort_with_random_dropouts_ends_as_it_must(
    parameters: Parameters, ring_bits: int, seed: int
) -> None:
    """About as many as there is room for, so that some of these finish and some abort."""
    task = a_task(parameters, ring_bits=ring_bits)
    n = np.random.default_rng(seed).integers(parameters.clients - parameters.quorum, parameters.clients // 2 + 1)
    outcome_is_right(task, random_drops(parameters, int(n), seed), seed)


@pytest.mark.parametrize("ring_bits", [8, 32, 64])
@pytest.mark.parametrize("server_is", ["curious", "active"])
def test_a_long_vector_is_summed_as_a_short_one(server_is: str, ring_bits: int) -> None:
    """Longer than one piece of the keystream buffer, and not a multiple of a cipher block."""
    task = a_task(Parameters(4, 3, 3, 3, 0, server_is), length=140_001, ring_bits=ring_bits)
    words = updates(task)
    outcome = rehearsed(task, words, {2: Phase.MASK})
    assert isinstance(outcome.state, server.Summed)
    assert np.array_equal(outcome.state.total, words[0] + words[1] + words[3])


# --- named cases ----------------------------------------------------------------------------------------------------

BOTH = [Parameters(7, 6, 5, 5, 1), Parameters(7, 6, 5, 5, 1, "active")]
each_server = pytest.mark.parametrize("parameters", BOTH, ids=lambda p: p.server)


@each_server
@pytest.mark.parametrize(
    ("phase", "why"),
    [
        (Phase.ADVERTISE, Why.TOO_FEW_ADVERTISED),
        (Phase.SHARE, Why.TOO_FEW_SHARED),
        (Phase.MASK, Why.TOO_FEW_UPDATES),
        (Phase.CONSENT, Why.TOO_FEW_CONSENTS),
        (Phase.UNMASK, Why.TOO_FEW_ANSWERS),
    ],
)
def test_when_all_clients_drop_there_is_no_sum(parameters: Parameters, phase: Phase, why: Why) -> None:
    if phase is Phase.CONSENT and parameters.server == "curious":
        why = Why.TOO_FEW_ANSWERS  # the next phase in which anybody would talk
    task = a_task(parameters)
    outcome = rehearsed(task, updates(task), dict.fromkeys(range(7), phase))
    assert isinstance(outcome.state, server.Aborted)
    assert outcome.state.why is why


@each_server
def test_nobody_is_invited(parameters: Parameters) -> None:
    state, told = server.close(server.start(a_task(parameters), [], {}))
    assert (state.why, told) == (Why.TOO_FEW_ADVERTISED, {})


@pytest.mark.parametrize("server_is", ["curious", "active"])
def test_one_client_is_no_cohort(server_is: str) -> None:
    with pytest.raises(InputError, match="clients = 1"):
        Parameters(1, 0, 1, 1, 0, server_is)
    with pytest.raises(InputError, match="clients = 1"):
        choose(1, 0.0, 0.0, server_is)


@each_server
def test_one_of_several_comes_and_learns_nothing_about_the_others(parameters: Parameters) -> None:
    outcome = outcome_is_right(a_task(parameters), dict.fromkeys(range(1, 7), Phase.ADVERTISE))
    assert outcome.state.why is Why.TOO_FEW_ADVERTISED
    assert isinstance(outcome.clients[0], client.Advertised)  # it has sent two public keys and nothing else


@each_server
def test_who_drops_before_sharing_is_simply_not_in_the_session(parameters: Parameters) -> None:
    task = a_task(parameters)
    state, replies = begin(task, updates(task))
    state, replies = step(task, state, replies, set(range(7)))
    state, replies = step(task, state, replies, {0, 2, 3, 4, 5, 6})  # 1 is on the roster and silent
    assert set(replies) == server.missing(state) == {0, 2, 3, 4, 5, 6}
    state, told = step(task, state, replies, {0, 2, 3, 5, 6})
    assert state.question == Question(state.session.id, (0, 2, 3, 5, 6), (4,))  # 1 is neither alive nor dead
    while told:
        for after, _ in told.values():
            assert not isinstance(after, client.Aborted)
        state, told = step(task, state, told, {0, 2, 3, 5, 6})
    check(task, updates(task), state, Expected(None, (0, 2, 3, 5, 6)))


@each_server
def test_a_roster_may_be_smaller_than_the_cohort_invited(parameters: Parameters) -> None:
    outcome = outcome_is_right(a_task(parameters), {0: Phase.ADVERTISE, 4: Phase.ADVERTISE})
    assert outcome.state.survivors == (1, 2, 3, 5, 6)
    assert sorted(outcome.clients[1].session.entries) == [1, 2, 3, 5, 6]


@each_server
def test_fewer_may_be_invited_than_the_parameters_are_for(parameters: Parameters) -> None:
    task = a_task(parameters)
    words = updates(task)
    outcome = rehearsed(task, words, who=members(task)[1:])
    check(task, words, outcome.state, Expected(None, (1, 2, 3, 4, 5, 6)))


def every_sparse(clients: int) -> Iterator[Parameters]:
    """All that `Parameters` admits."""
    for degree, threshold, quorum in product(range(2, clients - 1), range(1, clients), range(1, clients)):
        with suppress(InputError):
            yield Parameters(clients, degree, threshold, quorum, 0)


@pytest.mark.parametrize("clients", [5, 6, 7, 8])
def test_a_sparse_roster_may_be_as_small_as_the_quorum(clients: int) -> None:
    """A roster of q clients leaves everybody at most q - 1 neighbours to share with."""
    found = list(every_sparse(clients))
    assert found
    for parameters in found:
        task = a_task(parameters)
        words = updates(task)
        outcome = rehearsed(task, words, who=members(task)[: parameters.quorum])
        assert isinstance(outcome.state, server.Summed | server.Aborted), parameters


@each_server
def test_no_more_may_be_invited_than_the_parameters_are_for(parameters: Parameters) -> None:
    with pytest.raises(InputError, match="invited = 8"):
        server.start(a_task(parameters), range(8), {})


@each_server
@pytest.mark.parametrize("ids", [(4_294_967_295, 3, 77, 2_000_000_000, 0, 65_536, 65_535)])
def test_clients_may_have_any_numbers(parameters: Parameters, ids: tuple[int, ...]) -> None:
    task = a_task(parameters)
    named = dict(zip(ids, members(task), strict=True))
    peers = {i: m.identity.public for i, m in named.items() if m.identity is not None}
    everyone = [client.Member(i, m.identity, peers) for i, m in named.items()]
    words = dict(zip(ids, updates(task).values(), strict=True))
    outcome = rehearsed(task, words, {77: Phase.MASK, 3: Phase.SHARE}, everyone)
    check(task, words, outcome.state, Expected(None, (0, 65_535, 65_536, 2_000_000_000, 4_294_967_295)))


@pytest.mark.parametrize("ring_bits", [32, 64])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_decoded_sum_is_the_integer_sum_at_the_edge_of_the_ring(ring_bits: int, sign: int) -> None:
    """Everybody beyond the clip in the same direction, and a bound that just fits the ring (or the doubles)."""
    parameters = Parameters(6, 5, 4, 4, 1)
    bound = min(((1 << (ring_bits - 1)) - 1) // 6, 2**53 - 1)
    encoding = Encoding(ring_bits, 0, float(bound), clients=6)
    task = a_task(parameters, length=3, ring_bits=ring_bits)
    update = sign * np.array([2.0 * bound, float(bound), 1.0])
    words = {i: encoding.encode(update).words for i in range(6)}
    outcome = rehearsed(task, words, {5: Phase.UNMASK})
    assert encoding.decode(outcome.state.total).tolist() == [sign * 6 * bound, sign * 6 * bound, sign * 6]
    outcome = rehearsed(task, words, {5: Phase.MASK})
    assert encoding.decode(outcome.state.total).tolist() == [sign * 5 * bound, sign * 5 * bound, sign * 5]


# --- purity ---------------------------------------------------------------------------------------------------------


PURE = [*BOTH, Parameters(6, 4, 3, 5, 0), Parameters(6, 4, 3, 5, 0, "active")]


@pytest.mark.parametrize("parameters", PURE, ids=label)
def test_transitions_leave_their_arguments_alone_and_can_be_replayed(parameters: Parameters) -> None:
    task = a_task(parameters)
    words = updates(task)
    drops = {1: Phase.MASK}
    seen: list[tuple[Any, Any]] = []  # every state and message ever, with its first snapshot

    def keep(thing: Any) -> Any:
        seen.append((thing, snapshot(thing)))
        return thing

    def told(i: int, state: client.State, message: FromServer) -> tuple[client.State, FromClient | None]:
        calls = sources[i].calls
        first = client.receive(state, message, 0)
        sources[i].calls = calls  # the only thing that a state does not hold
        second = client.receive(state, message, 0)
        assert snapshot(second) == snapshot(first)
        return keep(first[0]), keep(first[1])

    sources = {i: Entropy(i) for i in words}
    begun = {m.client: client.start(task, m, words[m.client], 0, sources[m.client]) for m in members(task)}
    clients = {i: keep(state) for i, (state, _) in begun.items()}
    said = {i: keep(message) for i, (_, message) in begun.items()}
    state = keep(server.start(task, words, peers_of(task)))
    for phase in PHASES[parameters.server]:
        for i, message in said.items():
            if message is not None and drops.get(i, len(Phase)) > phase:
                after = keep(server.receive(state, i, message))
                assert snapshot(server.receive(state, i, message)) == snapshot(after)
                state = after
        after, news = server.close(state)
        assert snapshot(server.close(state)) == snapshot((after, news))
        state = keep(after)
        for i, message in news.items():
            clients[i], said[i] = told(i, clients[i], keep(message))
        said = {i: said[i] for i in news}
    assert isinstance(state, server.Summed)
    assert state.total.tolist() == exact(task, words, words.keys() - {1})
    assert len(seen) > 60
    for thing, first in seen:
        assert snapshot(thing) == first
    for i, w in updates(task).items():
        assert np.array_equal(words[i], w)


def transcript(task: Task, draw: object, order: Iterable[int]) -> tuple[list[bytes], list[int]]:
    """All messages in the order of client and phase, and the sum; messages arrive in the given order."""
    words, said = updates(task), []
    state, replies = begin(task, words, draw)
    while replies:
        said += [replies[i][1] for i in sorted(replies)]
        state, replies = step(task, state, {i: replies[i] for i in order if i in replies}, set(replies))
    return [raw for raw in said if raw is not None], state.total.tolist()


@pytest.mark.parametrize("parameters", PURE, ids=label)
def test_a_session_is_determined_by_its_entropy_and_not_by_who_comes_first(parameters: Parameters) -> None:
    task = a_task(parameters)
    said, total = transcript(task, "a", range(7))
    assert transcript(task, "a", (3, 1, 5, 0, 6, 2, 4)) == (said, total)
    others, same = transcript(task, "b", range(7))
    assert same == total
    assert not set(others) & set(said)


@each_server
def test_without_given_entropy_no_two_sessions_are_alike(parameters: Parameters) -> None:
    task, me = a_task(parameters), members(a_task(parameters))[0]
    (one, first), (other, second) = (client.start(task, me, updates(task)[0], 0) for _ in range(2))
    assert first.entry.mask_key != second.entry.mask_key
    assert first.entry.channel_key != second.entry.channel_key
    assert len({one.mask.secret, one.channel.secret, other.mask.secret, other.channel.secret}) == 4


@each_server
def test_the_caller_keeps_its_words(parameters: Parameters) -> None:
    """The masked update is another array, and the words may come as a view with gaps."""
    task = a_task(parameters)
    wide = {i: np.repeat(w, 2) for i, w in updates(task).items()}
    before = {i: w.copy() for i, w in wide.items()}
    outcome = rehearsed(task, {i: w[::2] for i, w in wide.items()})
    assert outcome.state.total.tolist() == exact(task, updates(task), range(7))
    assert all(np.array_equal(wide[i], before[i]) for i in wide)


@each_server
@pytest.mark.parametrize(
    "words", [np.zeros(3, "<u8"), np.zeros(3, "<i4"), np.zeros(2, "<u4"), np.zeros((3, 1), "<u4"), np.zeros(3)]
)
def test_words_of_another_ring_or_length_are_refused(parameters: Parameters, words: Words) -> None:
    task = a_task(parameters)
    with pytest.raises(InputError, match="must be 3 words of the 32-bit ring"):
        client.start(task, members(task)[0], words, 0)


def test_nobody_is_missing_when_all_have_spoken() -> None:
    task = a_task(BOTH[1])
    state, replies = begin(task, updates(task))
    for _ in Phase:
        assert server.missing(state) == set(replies)
        for i, (_, raw) in replies.items():
            assert i in server.missing(state)
            state = server.receive(state, i, messages.from_client(raw, task.largest_message))
            assert i not in server.missing(state)
        state, replies = step(task, state, replies, set())
    assert isinstance(state, server.Summed)
    assert server.missing(state) == set()
