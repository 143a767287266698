"""Clients that break the rules, against the server: each message is refused and changes nothing, or ends by name."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

import sessions
from confide.base.errors import InputError
from confide.secure import client, server, shares
from confide.secure.keys import Identity, KeyPair, Secret
from confide.secure.messages import UNSIGNED, Advertise, Answer, Consent, Entry, FromClient, Masked, Shares
from confide.secure.parameters import Parameters
from confide.secure.server import Advertising, Consenting, Masking, Sharing, Unmasking
from confide.secure.session import RefusedError, Task, Why, advertisement, consent
from sessions import IDENTITIES, PEERS, Drops, Entropy, Trace, a_task, snapshot

CURIOUS, ACTIVE = Parameters(7, 6, 5, 5, 1), Parameters(7, 6, 5, 5, 1, "active")
SPARSE, SPARSE_ACTIVE = Parameters(8, 4, 3, 5, 0), Parameters(8, 4, 3, 5, 0, "active")
both = pytest.mark.parametrize("parameters", [CURIOUS, ACTIVE], ids=["curious", "active"])
every = pytest.mark.parametrize(
    "parameters", [CURIOUS, ACTIVE, SPARSE, SPARSE_ACTIVE], ids=["curious", "active", "sparse", "sparse-active"]
)
STRANGER = Identity.of(bytes(range(32)))
ONE_DROPS: Drops = ((4, Masked),)
SAYS = {Advertising: Advertise, Sharing: Shares, Masking: Masked, Consenting: Consent, Unmasking: Answer}


@cache
def play(task: Task, drops: Drops = ONE_DROPS, draw: str = "a") -> Trace:
    """An honest session; states are immutable, so tests share it."""
    return sessions.play(task, drops, draw)


def refuses(state: server.State, sender: int, message: FromClient, match: str | None = None) -> None:
    """Nothing has changed, so that the same state takes in the true message afterwards."""
    before = snapshot(state)
    with pytest.raises(RefusedError, match=match):
        server.receive(state, sender, message)
    assert snapshot(state) == before


def ends(state: server.State, why: Why, *liars: int) -> None:
    assert isinstance(state, server.Aborted)
    assert (state.why, state.liars) == (why, liars)


@every
def test_the_honest_session_ends_with_the_sum(parameters: Parameters) -> None:
    end = play(a_task(parameters)).end
    assert isinstance(end, server.Summed)
    assert end.survivors == tuple(i for i in range(parameters.clients) if i != 4)
    assert end.total[0] == 10 * sum(end.survivors)


# --- who may speak, and when ----------------------------------------------------------------------------------------


@every
def test_a_client_speaks_for_another(parameters: Parameters) -> None:
    trace = play(a_task(parameters))
    for phase, state in trace.begun.items():
        for i, message in trace.said[SAYS[phase]].items():
            refuses(state, (i + 1) % 7, message, "speaks for client")
            refuses(state, 99, message, "speaks for client")
            server.receive(state, i, message)


@every
def test_one_who_was_not_invited_speaks(parameters: Parameters) -> None:
    task = a_task(parameters)
    trace = play(task)
    for phase, state in trace.begun.items():
        message = trace.said[SAYS[phase]][0]
        if isinstance(message, Advertise):
            stranger = replace(message, entry=message.entry._replace(client=99))
        else:
            stranger = replace(message, client=99)
        refuses(state, 99, stranger, "client 99 is not expected")


@every
def test_one_who_dropped_out_speaks_again(parameters: Parameters) -> None:
    """Its late update would be in the sum although its key is about to be revealed."""
    trace = play(a_task(parameters))
    late = Masked(trace.begun[Masking].session.id, 4, bytes(12))
    for phase in (Consenting, Unmasking):
        if phase in trace.begun:
            refuses(trace.begun[phase], 4, late, "client 4 is not expected")
            refuses(trace.begun[phase], 4, replace(trace.said[SAYS[phase]][0], client=4), "client 4 is not expected")


def test_one_who_did_not_consent_answers() -> None:
    trace = sessions.play(a_task(ACTIVE), ((4, Masked), (3, Consent)))
    assert trace.begun[Unmasking].asked == {0, 1, 2, 5, 6}
    answer = play(a_task(ACTIVE)).said[Answer][3]  # the true one
    refuses(trace.begun[Unmasking], 3, answer, "client 3 is not expected")


@every
def test_a_message_comes_twice(parameters: Parameters) -> None:
    """The same again, or another in its place: the first one counts."""
    trace, other = play(a_task(parameters)), play(a_task(parameters), draw="b")
    for phase, state in trace.begun.items():
        for i, message in trace.said[SAYS[phase]].items():
            heard = server.receive(state, i, message)
            refuses(heard, i, message, "not expected")
            refuses(trace.heard[phase], i, message, "not expected")
            refuses(heard, i, other.said[SAYS[phase]][i])
    state, message = trace.begun[Masking], trace.said[Masked][0]
    heard = server.receive(state, 0, message)
    refuses(heard, 0, replace(message, words=bytes(12)), "not expected")


@every
def test_a_message_is_of_the_wrong_phase(parameters: Parameters) -> None:
    trace, tried = play(a_task(parameters)), 0
    for phase, state in trace.begun.items():
        for said in trace.said.values():
            for i, message in said.items():
                if not isinstance(message, SAYS[phase]):
                    refuses(state, i, message)
                    tried += 1
    assert tried > 50


@every
def test_a_message_is_of_another_session_round_or_unit(parameters: Parameters) -> None:
    trace = play(a_task(parameters))
    others = [
        play(a_task(parameters), draw="b"),
        play(a_task(parameters, round=4)),
        play(a_task(parameters, unit=9)),
        play(a_task(parameters, model=b"n" * 32)),
        play(a_task(parameters, plan=b"q" * 32)),
    ]
    for other in others:
        for phase, state in trace.begun.items():
            for i, message in other.said[SAYS[phase]].items():
                if phase is not Advertising:
                    refuses(state, i, message, "another session")
                elif other is not others[0]:
                    refuses(state, i, message, "another task, round, model or plan")


@every
def test_whatever_comes_after_the_end_is_refused(parameters: Parameters) -> None:
    trace = play(a_task(parameters))
    aborted, told = server.close(trace.begun[Masking])
    ends(aborted, Why.TOO_FEW_UPDATES)
    assert told == {}
    for state in (aborted, trace.end):
        for said in trace.said.values():
            for i, message in said.items():
                refuses(state, i, message)
        with pytest.raises(RefusedError, match="has nothing to close"):
            server.close(state)


# --- advertise ------------------------------------------------------------------------------------------------------


def advertised(parameters: Parameters) -> tuple[server.State, dict[int, Entry]]:
    """The server with the keys of client 0, and everybody's."""
    trace = play(a_task(parameters))
    state = server.receive(trace.begun[Advertising], 0, trace.said[Advertise][0])
    return state, {i: message.entry for i, message in trace.said[Advertise].items()}


def signed(task: Task, entry: Entry, identity: Identity) -> Advertise:
    return Advertise(task.digest, entry._replace(signature=identity.sign(advertisement(task, entry))))


@both
def test_a_key_is_already_in_use(parameters: Parameters) -> None:
    """Another's, or its own for both purposes; whether signed or not."""
    state, entries = advertised(parameters)
    zero, one = entries[0], entries[1]
    for bad in (
        one._replace(mask_key=zero.mask_key),
        one._replace(mask_key=zero.channel_key),
        one._replace(channel_key=zero.mask_key),
        one._replace(channel_key=zero.channel_key),
        one._replace(channel_key=one.mask_key),
        one._replace(mask_key=zero.mask_key, channel_key=zero.channel_key),
    ):
        refuses(state, 1, signed(state.task, bad, IDENTITIES[1]), "a key is already in use")
    server.receive(state, 1, Advertise(state.task.digest, one))


def test_keys_are_not_signed() -> None:
    state, entries = advertised(ACTIVE)
    one, other = entries[1], a_task(ACTIVE, round=4)
    made_up = KeyPair.of(bytes(range(1, 33))).public
    old = one._replace(signature=IDENTITIES[1].sign(advertisement(other, one)))
    for bad in (
        Advertise(state.task.digest, one._replace(signature=UNSIGNED)),
        Advertise(state.task.digest, one._replace(signature=bytes(64))),
        Advertise(state.task.digest, one._replace(signature=one.signature[:-1])),
        Advertise(state.task.digest, one._replace(mask_key=made_up)),
        Advertise(state.task.digest, one._replace(channel_key=made_up)),
        Advertise(state.task.digest, one._replace(mask_key=one.channel_key, channel_key=one.mask_key)),
        Advertise(state.task.digest, old),
        signed(state.task, one, STRANGER),
        signed(state.task, one, IDENTITIES[2]),
    ):
        refuses(state, 1, bad, "signature")
    server.receive(state, 1, Advertise(state.task.digest, one))


def test_one_who_is_not_among_the_peers_is_refused() -> None:
    task = a_task(ACTIVE)
    message = play(task).said[Advertise][1]
    refuses(server.start(task, range(7), {i: PEERS[i] for i in (0, 2, 3, 4, 5, 6)}), 1, message, "signature")
    refuses(server.start(task, range(7)), 1, message, "signature")
    refuses(server.start(task, range(7), PEERS | {1: b"no key"}), 1, message, "signature")


def test_an_active_server_is_not_joined_without_an_identity_that_the_others_know() -> None:
    task, words = a_task(ACTIVE), np.zeros(3, "<u4")
    for me in (
        client.Member(1),
        client.Member(1, None, PEERS),
        client.Member(1, IDENTITIES[1]),
        client.Member(1, STRANGER, PEERS),
        client.Member(1, IDENTITIES[2], PEERS),
        client.Member(9, IDENTITIES[1], PEERS),
    ):
        with pytest.raises(InputError, match="identity"):
            client.start(task, me, words, 0)


# --- share ----------------------------------------------------------------------------------------------------------


@every
def test_shares_go_to_the_wrong_clients(parameters: Parameters) -> None:
    trace = play(a_task(parameters))
    state, message = trace.begun[Sharing], trace.said[Shares][1]
    sealed = message.sealed
    to = [j for j, _ in sealed]
    assert to == state.session.neighbours(1)
    stranger = next(j for j in (*range(8), 99) if j not in to)
    for bad in (
        (),
        sealed[:-1],  # one is missing
        sealed[1:],
        sealed[::-1],  # another order
        (sealed[1], sealed[0], *sealed[2:]),
        (*sealed, sealed[-1]),  # one twice
        (sealed[0], *sealed[:-1]),
        (*sealed, (stranger, sealed[0][1])),  # one more
        (*sealed[:-1], (99, sealed[0][1])),
        (*sealed[:-1], (1, sealed[0][1])),  # itself
    ):
        refuses(state, 1, replace(message, sealed=tuple(bad)), "to the neighbours, in order")
    server.receive(state, 1, message)


def shown(trace: Trace, liar: int) -> tuple[int, ...]:
    """Who is named: the liar if more than a threshold have answered, since then one wrong share does not matter."""
    answered = [j for j in trace.begun[Unmasking].session.holders(liar) if j in trace.said[Answer]]
    return (liar,) if len(answered) > trace.end.task.parameters.threshold else ()


@every
def test_a_wrong_commitment_is_found_when_the_seed_is_put_together(parameters: Parameters) -> None:
    """It is client 2 who is named, unless a single holder could have made it look so."""

    def lie(i: int, message: FromClient) -> FromClient:
        return replace(message, commitment=bytes(32)) if i == 2 and isinstance(message, Shares) else message

    trace = sessions.play(a_task(parameters), ONE_DROPS, change=lie)
    ends(trace.end, Why.WRONG_SHARE, *shown(trace, 2))


@every
def test_the_commitment_of_one_who_drops_out_is_never_needed(parameters: Parameters) -> None:
    def lie(i: int, message: FromClient) -> FromClient:
        return replace(message, commitment=bytes(32)) if i == 4 and isinstance(message, Shares) else message

    trace = sessions.play(a_task(parameters), ONE_DROPS, change=lie)
    assert trace.end.total.tolist() == play(a_task(parameters)).end.total.tolist()


@every
@pytest.mark.parametrize("wrong", ["seed", "key"])
def test_a_client_shares_another_secret_than_its_own(parameters: Parameters, wrong: str) -> None:
    """The shares are good ones, sealed as they should be, but of something else."""
    liar = 2 if wrong == "seed" else 4  # 4 drops out, so that its key is put together
    task = a_task(parameters)
    trace = play(task)
    state = trace.clients[client.Shared][liar]
    other = Secret(b"another secret of thirty-two byt")
    key, seed = (state.mask.secret, other) if wrong == "seed" else (other, state.seed)
    holders = state.session.holders(liar)
    parts = shares.share([key, seed], len(holders), parameters.threshold, Entropy("liar"))
    lies = {j: one + two for j, (one, two) in zip(holders, parts, strict=True)}
    ends(run_from_shares(trace, liar, lies), Why.WRONG_SHARE, *shown(trace, liar))
    assert isinstance(run_from_shares(trace, liar, {}), server.Summed)


@every
@pytest.mark.parametrize("liar", [2, 4])
def test_a_client_seals_what_is_no_share(parameters: Parameters, liar: int) -> None:
    trace = play(a_task(parameters))
    lies = dict.fromkeys(trace.clients[client.Shared][liar].session.holders(liar), b"\xff" * 68)
    ends(run_from_shares(trace, liar, lies), Why.WRONG_SHARE, liar)


@every
@pytest.mark.parametrize("field", ["mask_key", "channel_key"])
@pytest.mark.parametrize("key", [bytes(32), b"\x01" + bytes(31)])
def test_a_key_of_small_order_is_refused_and_the_others_go_on(parameters: Parameters, field: str, key: bytes) -> None:
    """Passed on, it would make every other client abort."""
    task = a_task(parameters)
    trace = play(task)
    said = next(iter(trace.said[Advertise].values()))
    fresh = server.start(task, trace.said[Advertise], {i: m.public for i, m in IDENTITIES.items()})
    refuses(fresh, said.entry.client, replace(said, entry=said.entry._replace(**{field: key})), str(Why.BAD_KEY))
    server.receive(fresh, said.entry.client, said)


def run_from_shares(trace: Trace, liar: int, lies: dict[int, bytes]) -> server.State:
    """The rest of a session from the second phase on, with other contents in what one client seals for the others.

    Client 4 drops before masking. What the server refuses has not been said.
    """
    state, clients = trace.begun[Sharing], dict(trace.clients[client.Shared])
    session, channel = clients[liar].session, trace.clients[client.Advertised][liar].channel
    sealed = []
    for j, honest in trace.said[Shares][liar].sealed:
        (agreed,) = channel.agree([session.entries[j].channel_key])
        key = client.channel_key(agreed, session.id, liar, j)
        sealed.append((j, ChaCha20Poly1305(key).encrypt(client.NONCE, lies[j], session.id) if lies else honest))
    clients[liar] = replace(clients[liar], own=lies.get(liar, clients[liar].own))
    said = trace.said[Shares] | {liar: replace(trace.said[Shares][liar], sealed=tuple(sealed))}
    while True:
        for i, message in said.items():
            if message is not None and not (i == 4 and isinstance(message, Masked)):
                with suppress(RefusedError):
                    state = server.receive(state, i, message)
        state, told = server.close(state)
        if not told:
            return state
        said = {}
        for i, news in told.items():
            clients[i], said[i] = client.receive(clients[i], news, 0)


# --- mask -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ring_bits", [8, 32, 64])
@both
def test_an_update_has_the_wrong_number_of_words(parameters: Parameters, ring_bits: int) -> None:
    trace = play(a_task(parameters, ring_bits=ring_bits))
    state, message = trace.begun[Masking], trace.said[Masked][1]
    size = 3 * ring_bits // 8
    assert len(message.words) == size
    for n in {0, 1, size - 1, size + 1, size - ring_bits // 8, size + ring_bits // 8, 2 * size}:
        refuses(state, 1, replace(message, words=bytes(n)), f"an update has {size} bytes, not {n}")
    server.receive(state, 1, message)


# --- consent --------------------------------------------------------------------------------------------------------


def test_a_consent_is_not_to_this_question_or_not_of_this_client() -> None:
    task = a_task(ACTIVE)
    trace, other = play(task), play(task, draw="b")
    state, message = trace.begun[Consenting], trace.said[Consent][1]
    session, alive, dead = state.session.id, state.question.alive, state.question.dead
    for bad in (
        bytes(64),
        message.signature[:-1] + bytes([message.signature[-1] ^ 1]),
        trace.said[Consent][2].signature,
        other.said[Consent][1].signature,
        trace.said[Advertise][1].entry.signature,
        STRANGER.sign(consent(session, alive, dead)),
        IDENTITIES[1].sign(consent(session, (*alive, *dead), ())),
        IDENTITIES[1].sign(consent(session, alive, ())),
        IDENTITIES[1].sign(consent(session, dead, alive)),
        IDENTITIES[1].sign(consent(other.begun[Consenting].session.id, alive, dead)),
    ):
        refuses(state, 1, replace(message, signature=bad), "signature")
    server.receive(state, 1, message)


# --- unmask ---------------------------------------------------------------------------------------------------------


@every
def test_an_answer_has_shares_of_the_wrong_clients_or_of_the_wrong_kind(parameters: Parameters) -> None:
    trace = play(a_task(parameters))
    state = trace.begun[Unmasking]
    me = next(i for i in trace.said[Answer] if trace.said[Answer][i].keys)
    answer: Answer = trace.said[Answer][me]
    seeds, keys = answer.seeds, answer.keys
    assert [j for j, _ in keys] == [4]
    for bad in (
        replace(answer, seeds=seeds[::-1]),  # another order
        replace(answer, seeds=(*seeds, seeds[-1])),  # one twice
        replace(answer, keys=keys * 2),
        replace(answer, seeds=keys, keys=seeds),  # the other kind
        replace(answer, seeds=(*seeds, *keys)),  # both kinds
        replace(answer, keys=tuple(sorted((*keys, seeds[0])))),
        replace(answer, seeds=(*seeds[:-1], (99, seeds[-1][1]))),  # of a stranger
        replace(answer, keys=((99, keys[0][1]),)),
    ):
        refuses(state, me, bad, "at most one share of every neighbour")
    server.receive(state, me, answer)


@every
def test_an_answer_lacks_shares_that_could_not_be_opened(parameters: Parameters) -> None:
    """Those of the others are enough, if they are; if not, nobody is named for it."""
    trace = play(a_task(parameters))
    begun = trace.begun[Unmasking]
    for i, answer in trace.said[Answer].items():
        for less in (replace(answer, seeds=answer.seeds[1:]), replace(answer, keys=()), replace(answer, seeds=())):
            after = begun
            for j, honest in trace.said[Answer].items():
                after = server.receive(after, j, less if j == i else honest)
            end, _ = server.close(after)
            if parameters.complete:
                assert end.total.tolist() == trace.end.total.tolist()
            elif isinstance(end, server.Aborted):
                ends(end, Why.TOO_FEW_ANSWERS)


@every
@pytest.mark.parametrize("bad", [b"\xff" * 34, b"\xff" * 3 + bytes(31), bytes(31) + b"\xff" * 3])
def test_a_share_is_no_share(parameters: Parameters, bad: bytes) -> None:
    """Some of its numbers are beyond the field: the owner of the secret is named, others are not made to suffer."""
    trace = play(a_task(parameters))
    for kind in ("seeds", "keys"):
        for owner in {owner for answer in trace.said[Answer].values() for owner, _ in getattr(answer, kind)}:
            after = trace.begun[Unmasking]
            for i, answer in trace.said[Answer].items():
                told = tuple((j, bad if j == owner else share) for j, share in getattr(answer, kind))
                after = server.receive(after, i, replace(answer, **{kind: told}))
            ends(server.close(after)[0], Why.WRONG_SHARE, owner)


def off_by_one(share: bytes, word: int) -> bytes:
    values = shares.unpack([share])
    values[0, word] = (values[0, word] + 1) % shares.PRIME
    return shares.pack(values)[0]


def answered(trace: Trace, lies: Mapping[int, Answer]) -> server.State:
    """The end, where some answer otherwise."""
    state = trace.begun[Unmasking]
    for i, honest in trace.said[Answer].items():
        state = server.receive(state, i, lies.get(i, honest))
    end, letters = server.close(state)
    assert letters == {}
    return end


@every
@pytest.mark.parametrize("kind", ["seeds", "keys"])
def test_a_wrong_share_does_no_harm_where_enough_others_are_there(parameters: Parameters, kind: str) -> None:
    """Every holder lies about every owner, by one in one of sixteen numbers: no wrong sum comes out, and nobody is
    named, since the owner could have dealt that share."""
    trace = play(a_task(parameters))
    state, right, harmless = trace.begun[Unmasking], trace.end.total.tolist(), 0
    for liar, answer in trace.said[Answer].items():
        for place, (owner, share) in enumerate(getattr(answer, kind)):
            told = list(getattr(answer, kind))
            told[place] = owner, off_by_one(share, (liar + owner) % 16)
            end = answered(trace, {liar: replace(answer, **{kind: tuple(told)})})
            if sum(j in trace.said[Answer] for j in state.session.holders(owner)) > parameters.threshold:
                assert end.total.tolist() == right
                harmless += 1
            else:
                ends(end, Why.WRONG_SHARE)
    assert harmless


@both
def test_a_holder_lies_about_everybody(parameters: Parameters) -> None:
    """Whoever answers besides: one who lies about all secrets takes nothing but its own answer."""
    trace, other = play(a_task(parameters)), play(a_task(parameters), draw="b")
    for liar, answer in trace.said[Answer].items():
        (a, of_a), (b, of_b), *rest = answer.seeds
        swapped = replace(answer, seeds=((a, of_b), (b, of_a), *rest))
        made_up = replace(answer, seeds=tuple((j, off_by_one(share, j)) for j, share in answer.seeds))
        old = replace(other.said[Answer][liar], session=answer.session)
        for lie in (swapped, made_up, old):
            assert answered(trace, {liar: lie}).total.tolist() == trace.end.total.tolist()


@both
def test_a_share_that_would_make_a_word_beyond_sixteen_bits_is_noticed(parameters: Parameters) -> None:
    """Shares that put together give 2^16, which no word of a secret is: others are tried."""
    trace = play(a_task(parameters))
    state = trace.begun[Unmasking]
    points = tuple(x for x, j in enumerate(state.session.holders(0), 1) if j in trace.said[Answer])[:5]
    values = shares.unpack([dict(trace.said[Answer][j].seeds)[0] for j in trace.said[Answer]][:5])
    weights = shares.lagrange(points)
    liar = min(trace.said[Answer])
    short = int(shares.PRIME - 1 - (weights @ values)[0] % shares.PRIME)
    values[0, 0] = (values[0, 0] + short * pow(int(weights[0]), -1, shares.PRIME)) % shares.PRIME
    assert (weights @ values)[0] % shares.PRIME == shares.PRIME - 1
    answer = trace.said[Answer][liar]
    seeds = tuple((j, shares.pack(values)[0] if j == 0 else share) for j, share in answer.seeds)
    end = answered(trace, {liar: replace(answer, seeds=seeds)})
    assert end.total.tolist() == trace.end.total.tolist()


@every
def test_a_server_to_which_all_this_happens_still_finishes(parameters: Parameters) -> None:
    """Everything that is refused comes before each true message; the sum is what it would have been."""
    task = a_task(parameters)
    trace, other = play(task), play(a_task(parameters, unit=9))
    noise = [(i, m) for said in other.said.values() for i, m in said.items()]
    state: server.State = server.start(task, range(parameters.clients), PEERS)
    while not isinstance(state, server.Summed):
        for i, message in trace.said[SAYS[type(state)]].items():
            for sender, bad in (*noise, ((i + 1) % 8, message)):
                with pytest.raises(RefusedError):
                    server.receive(state, sender, bad)
            state = server.receive(state, i, message)
        state, _ = server.close(state)
    assert state.total.tolist() == trace.end.total.tolist()
