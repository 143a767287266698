"""Sanity check: what a server sees, and what anything prints, says nothing about a single client's update.

The first half plays the server in an 8-bit toy ring, with everything that it legitimately sees, and looks for a single
client's update by a chi-square test. That is a sanity check and no proof: it finds the mistakes that others made
(it rejects each of them here), not every mistake. The second half looks for secrets in all that is ever printed.
"""

from __future__ import annotations

import base64
import copy
import logging
import pickle
import pprint
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import msgpack
import numpy as np
import pytest
from rich.pretty import pretty_repr
from scipy import stats

from confide.secure import client, masks, messages, server, shares
from confide.secure.keys import Identity, KeyPair, pair_mask_key, self_mask_key
from confide.secure.messages import Answer, Inbox, Masked, Question, Roster
from confide.secure.parameters import Parameters
from confide.secure.session import Session, Why
from exploring import more
from sessions import IDENTITIES, Entropy, Trace, a_task, play

Words = np.ndarray


# --- the server tries -----------------------------------------------------------------------------------------------

SESSIONS, LENGTH = 200, 500
LATE = ((3, Masked),)  # the update of client 3 comes when its time is up, so that it counts as dropped
TOY = a_task(Parameters(4, 3, 3, 3, 0), length=LENGTH, ring_bits=8)
UPDATES = {i: np.full(LENGTH, value, "<u1") for i, value in enumerate((17, 200, 3, 99))}  # the same in every session
HONEST, BROKEN = 1e-4, 1e-30  # p-values; the draws are fixed, so that the tests are


class Server:
    """Reads what was sent to it, and takes off whatever masks the shares that it got allow."""

    def __init__(self, trace: Trace) -> None:
        roster: Roster = next(iter(trace.told[Roster].values()))
        self.session = Session(TOY, roster.entries)
        self.masked = {i: np.frombuffer(m.words, "<u1") for i, m in trace.said[Masked].items()}
        answers = trace.said[Answer].values()
        self.seeds = self._secrets([(a.client, a.seeds) for a in answers])
        self.keys = self._secrets([(a.client, a.keys) for a in answers])

    def _secrets(self, held: Iterable[tuple[int, messages.OpenShares]]) -> dict[int, bytes]:
        by_owner: dict[int, dict[int, bytes]] = {}
        for holder, pairs in held:
            for owner, share in pairs:
                by_owner.setdefault(owner, {})[self.session.holders(owner).index(holder) + 1] = share
        enough = {owner: dict(list(found.items())[:3]) for owner, found in by_owner.items() if len(found) >= 3}
        return {owner: shares.combine(tuple(f), [[s] for s in f.values()])[0] for owner, f in enough.items()}

    def hears(self, answers: Iterable[Answer]) -> None:
        """More answers than it should have got."""
        found = list(answers)
        self.seeds |= self._secrets([(a.client, a.seeds) for a in found])
        self.keys |= self._secrets([(a.client, a.keys) for a in found])

    def is_given(self, key: KeyPair, owner: int) -> None:
        self.keys[owner] = key.secret

    def residue(self, i: int) -> Words:
        """What is left of a masked update without the masks that can be computed."""
        left = self.masked[i].copy()
        if i in self.seeds:
            masks.apply(left, [], [self_mask_key(self.seeds[i], self.session.id, i)])
        for j in set(self.session.entries) - {i}:
            one, other = (i, j) if i in self.keys else (j, i)
            if one in self.keys:
                (agreed,) = KeyPair.of(self.keys[one]).agree([self.session.entries[other].mask_key])
                mask = [pair_mask_key(agreed, self.session.id, i, j)]
                masks.apply(left, *((mask, []) if i > j else ([], mask)))  # the greater of two has subtracted it
        return left


@cache
def sessions() -> list[Trace]:
    return [play(TOY, draw=draw, words=UPDATES, late=LATE) for draw in range(SESSIONS)]


def uniformity(words: Iterable[Words]) -> float:
    """p-value of the hypothesis that all 256 words are equally likely."""
    counts = np.bincount(np.concatenate(list(words)), minlength=256)
    assert counts.sum() == SESSIONS * LENGTH
    return float(stats.chisquare(counts).pvalue)


def test_sanity_check_the_test_tells_uniform_from_nearly_uniform() -> None:
    """It accepts the generator, and rejects one that never gives the top value, or a constant."""
    rng = np.random.default_rng(1)
    assert uniformity([rng.integers(0, 256, SESSIONS * LENGTH, np.uint8)]) > HONEST
    assert uniformity([rng.integers(0, 255, SESSIONS * LENGTH, np.uint8)]) < HONEST
    assert uniformity([np.full(SESSIONS * LENGTH, 3, np.uint8)]) < BROKEN


def test_sanity_check_a_single_survivors_update_is_uniform_to_the_server() -> None:
    seen = [Server(trace) for trace in sessions()]
    assert all(set(s.seeds) == {0, 1, 2} and set(s.keys) == {3} for s in seen)
    for i in range(3):
        assert uniformity(s.masked[i] for s in seen) > HONEST
        assert uniformity(s.residue(i) for s in seen) > HONEST


def test_sanity_check_of_several_survivors_only_the_sum_is_determined() -> None:
    """Two of three are jointly uniform, whatever combination of them one looks at; all three add up."""
    left = [[Server(trace).residue(i) for i in range(3)] for trace in sessions()]
    for a, b in ((0, 1), (1, 2), (2, 0)):
        for weight in (1, 3, 255):
            assert uniformity(r[a] + np.uint8(weight) * r[b] for r in left) > HONEST
        assert uniformity((r[a] & 0xF0) | (r[b] >> 4) for r in left) > HONEST
        assert uniformity((r[a] << 4) | (r[b] & 0x0F) for r in left) > HONEST
    total = UPDATES[0] + UPDATES[1] + UPDATES[2]
    assert all(np.array_equal(r[0] + r[1] + r[2], total) for r in left)


def test_sanity_check_a_late_update_is_uniform_although_its_key_is_revealed() -> None:
    """The self-mask is all that hides it: without that, the server reads the update."""
    seen = [Server(trace) for trace in sessions()]
    assert uniformity(s.residue(3) for s in seen) > HONEST
    for s, trace in zip(seen, sessions(), strict=True):
        s.seeds[3] = trace.clients[client.Shared][3].seed  # as if it had added none
    assert uniformity(s.residue(3) for s in seen) < BROKEN
    assert all(np.array_equal(s.residue(3), UPDATES[3]) for s in seen)


def test_sanity_check_one_colluding_client_is_not_enough() -> None:
    """Its keys take off its own masks only; with all others on its side the server needs no cryptography at all."""
    seen = [Server(trace) for trace in sessions()]
    for s, trace in zip(seen, sessions(), strict=True):
        s.is_given(trace.clients[client.Advertised][1].mask, 1)
    assert uniformity(s.residue(0) for s in seen) > HONEST
    assert uniformity(s.residue(2) for s in seen) > HONEST
    for s, trace in zip(seen, sessions(), strict=True):
        s.is_given(trace.clients[client.Advertised][2].mask, 2)
    assert all(np.array_equal(s.residue(0), UPDATES[0]) for s in seen)


def test_sanity_check_a_server_that_is_handed_every_private_key_unmasks_everyone() -> None:
    """The mistake of a peer: then it has the update of each, and the test notices."""
    seen = [Server(trace) for trace in sessions()]
    for s, trace in zip(seen, sessions(), strict=True):
        for i, state in trace.clients[client.Advertised].items():
            s.is_given(state.mask, i)
    for i in range(3):
        assert uniformity(s.residue(i) for s in seen) < BROKEN
        assert all(np.array_equal(s.residue(i), UPDATES[i]) for s in seen)


def test_sanity_check_shares_of_both_kinds_would_unmask_a_client() -> None:
    """Clients who answered once that 3 is alive and once that it is not: what the rules of the question prevent."""
    trace = play(TOY, draw="both", words=UPDATES)
    sent, question = trace.clients[client.Sent], trace.told[Question][0]
    assert question.alive == (0, 1, 2, 3)
    lie = replace(question, alive=(0, 1, 2), dead=(3,))
    again = {i: client.receive(sent[i], lie, 0)[1] for i in range(3)}  # only as if they had forgotten the first
    attack = Server(trace)
    assert len(np.unique(attack.residue(3))) > 128
    attack.hears(again.values())
    assert np.array_equal(attack.residue(3), UPDATES[3])

    for i in range(3):  # neither in one question, nor after an answer, nor with the record
        both = replace(question, alive=(0, 1, 2, 3), dead=(3,))
        for state, message, answered in (
            (sent[i], both, 0),
            (trace.clients[client.Answered][i], lie, 0),
            (sent[i], lie, TOY.round),
        ):
            after, reply = client.receive(state, message, answered)
            assert isinstance(after, client.Aborted)
            assert reply is None


def test_sanity_check_two_sums_of_a_round_would_differ_by_a_client() -> None:
    """Why no round is answered twice: two true sums, over survivors that differ by one client."""
    first = play(TOY, draw="first", words=UPDATES)
    second = play(TOY, draw="second", words=UPDATES, late=LATE)
    one, other = first.servers[-1], second.servers[-1]
    assert isinstance(one, server.Summed)
    assert isinstance(other, server.Summed)
    assert np.array_equal(one.total - other.total, UPDATES[3])
    for i in range(3):
        after, reply = client.receive(second.clients[client.Sent][i], second.told[Question][i], TOY.round)
        assert isinstance(after, client.Aborted)
        assert (after.why, reply) == (Why.ANSWERED_BEFORE, None)


def test_sanity_check_no_two_sessions_have_a_mask_in_common() -> None:
    seen = [Server(trace) for trace in sessions()]
    for i in range(3):
        pairs = zip(seen, [*seen[1:], seen[0]], strict=True)
        assert uniformity(a.masked[i] - b.masked[i] for a, b in pairs) > HONEST
        pairs = zip(seen, [*seen[1:], seen[0]], strict=True)
        assert uniformity(a.residue(i) - b.residue(i) for a, b in pairs) > HONEST
    assert len({bytes(s.masked[i]) for s in seen for i in range(4)}) == 4 * SESSIONS


def test_sanity_check_the_same_keys_and_seeds_give_other_masks_in_another_session() -> None:
    """Client 3 is on one roster and never shares, on the other it is not; the others draw the same in both."""
    begun = {i: client.start(TOY, client.Member(i), UPDATES[i], 0, Entropy("same", i)) for i in range(4)}
    entries = [said.entry for _, said in begun.values()]
    masked = []
    for roster in (entries, entries[:3]):
        states = {
            i: client.receive(replace(begun[i][0], entropy=Entropy("seed", i)), Roster(TOY.digest, tuple(roster)), 0)
            for i in range(3)
        }
        assert states[0][0].seed == Entropy("seed", 0)(32)
        sealed = tuple((j, dict(said.sealed)[0]) for j, (_, said) in states.items() if j)
        masked.append(client.receive(states[0][0], Inbox(states[0][0].session.id, sealed), 0)[1])
    assert len(np.unique(np.subtract(*(np.frombuffer(m.words, "<u1") for m in masked)))) > 128


def test_sanity_check_each_pair_adds_what_the_other_subtracts_and_nothing_else_cancels() -> None:
    """Of the masked updates no proper subset of all four adds up to anything but noise."""
    seen = [Server(trace).masked for trace in sessions()]
    for subset in ((0, 1), (0, 2), (1, 2), (0, 1, 2), (0, 1, 2, 3)):  # of all four, the self-masks remain
        assert uniformity(sum(m[i] for i in subset) for m in seen) > HONEST


# --- nothing prints a secret ----------------------------------------------------------------------------------------


def found_in(text: str, secrets: dict[str, set[str]]) -> list[str]:
    text = re.sub(r" at 0x[0-9a-f]+", "", text)  # where an object lies is no secret, and might look like one
    return sorted(name for name, forms in secrets.items() if any(form in text for form in forms))


def forms(secret: bytes) -> set[str]:
    """How bytes might be printed, whole or in part."""
    said: set[str] = set()
    for part in (secret[:5], secret[5:10], secret[-5:]):
        numbers = list(part)
        said |= {part.hex(), part.hex().upper(), part.hex(" "), part.hex(":"), repr(part)[2:-1], str(numbers)[1:-1]}
        said |= {" ".join(map(str, numbers)), "".join(f"\\x{b:02x}" for b in part)}
        said.add(base64.b64encode(part).decode())
    for whole in (secret, secret[::-1]):
        said |= {str(int.from_bytes(whole, "little")), hex(int.from_bytes(whole, "little"))[2:]}
    said.add(base64.b64encode(secret).decode()[:12])
    return said


def forms_of_words(words: Words) -> set[str]:
    """Numbers of the update, each large enough not to turn up by chance, and their bytes."""
    return {str(int(w)) for w in words} | {str(int(w)) for w in words.view("<i4")} | forms(words.tobytes())


LARGE = Parameters(4, 3, 3, 3, 0), Parameters(4, 3, 3, 3, 0, "active")
both_servers = pytest.mark.parametrize("parameters", LARGE, ids=["curious", "active"])


@cache
def observed(parameters: Parameters) -> tuple[Trace, dict[str, set[str]]]:
    """A session with a dropout and large numbers in the updates, and all that must not be printed."""
    rng = np.random.default_rng(5)
    words = {i: rng.integers(10**8, 2**32 - 10**8, 5, np.uint32).astype("<u4") for i in range(4)}
    task = a_task(parameters, length=5)
    trace = play(task, draw="prints", words=words, late=LATE)
    secrets: dict[str, set[str]] = {}
    for i in range(4):
        begun, shared = trace.clients[client.Advertised][i], trace.clients[client.Shared][i]
        sent = trace.clients[client.Sent][i]
        secrets[f"update {i}"] = forms_of_words(words[i])
        secrets[f"mask key {i}"] = forms(begun.mask.secret)
        secrets[f"channel key {i}"] = forms(begun.channel.secret)
        secrets[f"seed {i}"] = forms(shared.seed)
        secrets[f"self mask {i}"] = forms(self_mask_key(shared.seed, shared.session.id, i))
        secrets[f"own share {i}"] = forms(shared.own[:34]) | forms(shared.own[34:])
        secrets[f"masked {i}"] = forms_of_words(np.frombuffer(trace.said[Masked][i].words, "<u4"))
        if parameters.server == "active":
            secrets[f"identity {i}"] = forms(IDENTITIES[i].secret)
        for j, key in shared.incoming.items():
            secrets[f"channel {j} to {i}"] = forms(key)
            (agreed,) = begun.mask.agree([shared.session.entries[j].mask_key])
            secrets[f"agreed {i} {j}"] = forms(agreed)
            secrets[f"pair mask {i} {j}"] = forms(pair_mask_key(agreed, shared.session.id, i, j))
        for j, held in sent.held.items():
            secrets[f"share of {j} at {i}"] = forms(held[:34]) | forms(held[34:])
    for state in trace.servers:
        if hasattr(state, "total") and state.total.any():
            secrets.setdefault("totals", set()).update(forms_of_words(state.total))
    assert len(secrets) > 60
    return trace, secrets


def everything(trace: Trace) -> Iterator[Any]:
    """Every state and message of either side, and what they are made of where that has a name."""
    for by_client in (*trace.said.values(), *trace.told.values(), *trace.clients.values()):
        yield from by_client.values()
    yield from trace.servers
    for state in trace.clients[client.Advertised].values():
        yield from (state.task, state.me, state.mask, state.channel, state.mask.secret)
        yield client.Aborted(state.task, state.me, Why.BAD_KEY)
        yield server.Aborted(state.task, Why.WRONG_SHARE, (1,))
        if state.me.identity is not None:
            yield from (state.me.identity, state.me.identity.secret)
    for state in trace.clients[client.Shared].values():
        yield from (state.session, state.seed, state.incoming, *state.session.entries.values())


def printed(thing: Any) -> Iterator[str]:
    yield from (repr(thing), str(thing), f"{thing}", f"{thing!r}", ascii(thing), "%s" % (thing,))  # noqa: UP031
    yield from ("{}".format(thing), pprint.pformat(thing), pretty_repr(thing))  # noqa: UP032
    yield from (repr([thing]), str({"it": thing}), str((thing,)))


@both_servers
def test_the_search_finds_what_is_printed(parameters: Parameters) -> None:
    """Or the tests below would pass for nothing."""
    trace, secrets = observed(parameters)
    begun, sent = trace.clients[client.Advertised][0], trace.clients[client.Sent][0]
    key = bytes(begun.mask.secret)
    for text in (key.hex(), repr(key), str(list(key)), base64.b64encode(key).decode(), f"... {key[:8].hex()} ..."):
        assert "mask key 0" in found_in(text, secrets)
    assert found_in(str(begun.words), secrets) == found_in(repr(begun.words.tolist()), secrets) == ["update 0"]
    assert "share of 2 at 0" in found_in(repr({j: bytes(both) for j, both in sent.held.items()}), secrets)
    assert "share of 2 at 0" in found_in(str(trace.said[Answer][0].seeds), secrets)
    assert found_in(repr(vars(trace.said[Masked][1])), secrets) == ["masked 1"]


@both_servers
def test_no_state_or_message_prints_a_secret(parameters: Parameters) -> None:
    trace, secrets = observed(parameters)
    seen = set()
    for thing in everything(trace):
        seen.add(type(thing).__name__)
        assert found_in("\n".join(printed(thing)), secrets) == [], type(thing)
    assert {"Advertised", "Shared", "Sent", "Answered", "Aborted"} <= seen
    assert {"Advertising", "Sharing", "Masking", "Unmasking", "Summed"} <= seen
    assert {"Advertise", "Roster", "Shares", "Inbox", "Masked", "Question", "Answer"} <= seen


@both_servers
def test_nothing_is_logged_and_logging_a_state_is_safe(
    parameters: Parameters, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, secrets = observed(parameters)
    with caplog.at_level(logging.DEBUG):
        words = {i: s.words for i, s in trace.clients[client.Advertised].items()}
        again = play(trace.servers[0].task, draw="log", words=words, late=LATE)
        assert caplog.text == ""
        assert capsys.readouterr() == ("", "")
        for thing in everything(trace):
            logging.getLogger("confide").info("%s and %r", thing, thing)
    assert isinstance(again.servers[-1], server.Summed)
    assert len(caplog.records) > 50
    assert found_in(caplog.text, secrets) == []


def raised(call: Callable[[], object]) -> Iterator[str]:
    """All that an exception says, or nothing where there is none."""
    try:
        call()
    except Exception as e:
        yield from (str(e), repr(e), repr(e.args), "".join(traceback.format_exception(e)), repr(vars(e)))


def misshapen(content: Any) -> Iterator[Any]:
    """With one of its parts too long, too short, of another type or not there."""
    if isinstance(content, list):
        for at, part in enumerate(content):
            for other in misshapen(part):
                yield [*content[:at], other, *content[at + 1 :]]
        yield content[:-1]
        yield [*content, *content]
    if isinstance(content, bytes):
        yield from (content[:-1], content + content, content.hex(), list(content))
    yield from (None, [content], {}, -1)


def damaged(raw: bytes) -> Iterator[bytes]:
    """A message with a part of another shape, or with a byte lost, added or changed."""
    yield from map(msgpack.packb, misshapen(msgpack.unpackb(raw)))
    for at in range(0, len(raw), more(7, 3)):
        yield raw[:at]
        yield raw[:at] + raw[at + 1 :]
        yield raw[:at] + b"\xc0" + raw[at:]
        yield raw[:at] + bytes([raw[at] ^ 0x21]) + raw[at + 1 :]


@both_servers
def test_no_exception_shows_a_secret(parameters: Parameters) -> None:
    """Every message to every state of the other side, and every message damaged, on its way to the decoder."""
    trace, secrets = observed(parameters)
    task, texts = trace.servers[0].task, []
    said = [message for found in trace.said.values() for message in found.values()]
    told = [message for found in trace.told.values() for message in found.values()]
    for found in trace.clients.values():
        for state in found.values():
            for news in told:
                texts += raised(lambda state=state, news=news: client.receive(state, news, 0))
    for state in trace.servers:
        texts += raised(lambda state=state: server.close(state))
        for message in said:
            for sender in (0, 3):
                texts += raised(lambda s=state, i=sender, m=message: server.receive(s, i, m))
    refused = len(texts)
    for message in {type(m): m for m in (*said, *told)}.values():
        decode = messages.from_client if type(message).__name__ in messages.FROM_CLIENT else messages.from_server
        for raw in damaged(messages.encode(message)):
            texts += raised(lambda raw=raw, decode=decode: decode(raw, task.largest_message))
        texts += raised(lambda decode=decode, m=message: decode(messages.encode(m), 20))
    assert refused > 1000
    assert len(texts) - refused > 1000
    assert found_in("\n".join(set(texts)), secrets) == []


@both_servers
def test_an_update_that_cannot_be_taken_is_not_shown(parameters: Parameters) -> None:
    trace, secrets = observed(parameters)
    begun = trace.clients[client.Advertised][0]
    for bad in (begun.words[:3], begun.words.astype("<u8"), begun.words.astype(float), begun.words[None]):
        texts = list(raised(lambda bad=bad: client.start(begun.task, begun.me, bad, 0)))
        assert texts
        assert all(found_in(text, secrets) == [] for text in texts)
    for call in (
        lambda: KeyPair.of(begun.mask.secret[:31]),
        lambda: begun.mask.agree([bytes(32)]),
        lambda: Identity.of(begun.mask.secret[:31]),
        lambda: shares.share([begun.mask.secret[:31]], 3, 2, Entropy()),
        lambda: shares.unpack([trace.said[Answer][0].seeds[0][1] + b"0"]),
    ):
        texts = list(raised(call))
        assert texts
        assert all(found_in(text, secrets) == [] for text in texts)


def test_secrets_are_not_copied_or_pickled() -> None:
    trace, _ = observed(LARGE[0])
    shared = trace.clients[client.Shared][0]
    for secret in (shared.seed, shared.mask.secret, *shared.incoming.values()):
        for copying in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="neither copied nor pickled"):
                copying(secret)
    for state in (shared, trace.clients[client.Advertised][0]):
        with pytest.raises(TypeError, match="neither copied nor pickled"):
            copy.deepcopy(state)
