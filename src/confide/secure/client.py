"""A client of a secure sum: pure transitions from state and message to state and reply.

    start -> Advertised -> Shared -> Sent -> (Consented) -> Answered
                        any of them -> Aborted(why)

`receive` raises `RefusedError` for a message that does not belong here and changes nothing; a server that breaks the
rules leads to `Aborted`, from which there is no way back. States are immutable and hold secrets: they print nothing
but names. What must outlive a crash is one number, the last round that was answered: it is to be on disk before an
`Answer` is sent, and every call is given it, so that no round is ever answered twice.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from confide.base.errors import InputError
from confide.secure import masks, messages, shares
from confide.secure.encoding import Words
from confide.secure.keys import (
    BadKeyError,
    Identity,
    KeyPair,
    Secret,
    channel_key,
    pair_mask_key,
    self_mask_key,
    signed_by,
)
from confide.secure.session import RefusedError, Session, Task, Why, advertisement, commitment, consent
from confide.secure.shares import SHARE_BYTES, Entropy

NONCE = bytes(12)  # every channel key seals one message


@dataclass(frozen=True)
class Member:
    """A client of a unit: its number, and with an active server its identity and everybody's public ones."""

    client: int
    identity: Identity | None = None
    peers: Mapping[int, bytes] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, repr=False)
class State:
    task: Task
    me: Member

    def __repr__(self) -> str:
        return f"{type(self).__name__}(unit {self.task.unit}, round {self.task.round}, client {self.me.client})"


@dataclass(frozen=True, repr=False)
class Advertised(State):
    mask: KeyPair
    channel: KeyPair
    words: Words  # the encoded update
    entropy: Entropy


@dataclass(frozen=True, repr=False)
class Shared(State):
    session: Session
    mask: KeyPair
    words: Words
    seed: Secret  # of the self-mask
    incoming: dict[int, Secret]  # channel keys by sender
    own: Secret | None  # the share of its own secrets, on the complete graph


@dataclass(frozen=True, repr=False)
class Sent(State):
    session: Session
    held: dict[int, Secret]  # by owner: its share of the owner's mask key, then of the owner's seed
    unopened: frozenset[int]  # who shared, but what cannot be opened


@dataclass(frozen=True, repr=False)
class Consented(Sent):
    question: messages.Question


@dataclass(frozen=True, repr=False)
class Answered(State):
    session: Session


@dataclass(frozen=True, repr=False)
class Aborted(State):
    why: Why

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}: {self.why})"


Reply = messages.FromClient | None


def start(
    task: Task, me: Member, words: Words, answered: int, entropy: Entropy = os.urandom
) -> tuple[Advertised, messages.Advertise]:
    """Join the sum with an encoded update, unless this round was answered before."""
    if task.round <= answered:
        raise RefusedError(Why.ANSWERED_BEFORE)
    if words.dtype != task.dtype or words.shape != (task.length,):
        remedy = f"must be {task.length} words of the {task.ring_bits}-bit ring"
        raise InputError("words", f"{words.dtype} of shape {words.shape}", remedy)
    if task.parameters.server == "active" and (me.identity is None or me.peers.get(me.client) != me.identity.public):
        raise InputError("identity", None, "an active server calls for signed keys: give an identity in the roster")
    mask, channel = KeyPair.of(entropy(32)), KeyPair.of(entropy(32))
    entry = messages.Entry(me.client, mask.public, channel.public, messages.UNSIGNED)
    if task.parameters.server == "active" and me.identity is not None:
        entry = entry._replace(signature=me.identity.sign(advertisement(task, entry)))
    return Advertised(task, me, mask, channel, words, entropy), messages.Advertise(task.digest, entry)


def receive(state: State, message: messages.FromServer, answered: int) -> tuple[State, Reply]:
    """One transition; `answered` is the last round on this client's durable record."""
    if isinstance(state, Answered | Consented | Sent | Shared) and not isinstance(message, messages.Roster):
        if message.session != state.session.id:
            raise RefusedError("the message is of another session")
    elif isinstance(message, messages.Roster) and message.task != state.task.digest:
        raise RefusedError("the roster is of another task, round, model or plan")
    try:
        if isinstance(state, Advertised) and isinstance(message, messages.Roster):
            return _share(state, message)
        if isinstance(state, Shared) and isinstance(message, messages.Inbox):
            return _mask(state, message)
        if type(state) is Sent and isinstance(message, messages.Question):
            return _consider(state, message, answered)
        if isinstance(state, Consented) and isinstance(message, messages.Consents):
            return _check_consents(state, message, answered)
        if isinstance(state, Consented | Answered) and isinstance(message, messages.Question):
            raise _AbortError(Why.ASKED_TWICE)
    except _AbortError as abort:
        return Aborted(state.task, state.me, abort.why), None
    raise RefusedError(f"{type(message).__name__} is not for a client that is {type(state).__name__}")


class _AbortError(Exception):
    def __init__(self, why: Why) -> None:
        self.why = why


def _share(state: Advertised, roster: messages.Roster) -> tuple[Shared, messages.Shares]:
    """Check everybody's keys, then share the mask key and the seed among the neighbours."""
    task, me, parameters = state.task, state.me, state.task.parameters
    session = Session(task, roster.entries)
    mine = session.entries.get(me.client)
    if mine is None or (mine.mask_key, mine.channel_key) != (state.mask.public, state.channel.public):
        raise _AbortError(Why.NOT_LISTED)
    n, keys = len(roster.entries), {k for e in roster.entries for k in (e.mask_key, e.channel_key)}
    if not parameters.quorum <= n <= parameters.clients or len(session.entries) != n or len(keys) != 2 * n:
        raise _AbortError(Why.BAD_ROSTER)
    if parameters.server == "active":
        _check_signatures(task, me, session)
    neighbours = session.neighbours(me.client)
    try:
        agreed = state.channel.agree([session.entries[j].channel_key for j in neighbours])
    except BadKeyError:
        raise _AbortError(Why.BAD_KEY) from None
    seed, holders = Secret(state.entropy(32)), session.holders(me.client)
    parts = shares.share([state.mask.secret, seed], len(holders), parameters.threshold, state.entropy)
    by_holder = {j: Secret(b"".join(both)) for j, both in zip(holders, parts, strict=True)}
    own = by_holder.pop(me.client, None)
    sealed = tuple(
        (j, ChaCha20Poly1305(channel_key(secret, session.id, me.client, j)).encrypt(NONCE, by_holder[j], session.id))
        for j, secret in zip(neighbours, agreed, strict=True)
    )
    incoming = {j: channel_key(secret, session.id, j, me.client) for j, secret in zip(neighbours, agreed, strict=True)}
    shared = Shared(task, me, session, state.mask, state.words, seed, incoming, own)
    return shared, messages.Shares(session.id, me.client, commitment(session.id, seed), sealed)


def _check_signatures(task: Task, me: Member, session: Session) -> None:
    for entry in session.entries.values():
        if not signed_by(me.peers.get(entry.client), entry.signature, advertisement(task, entry)):
            raise _AbortError(Why.BAD_SIGNATURE)


def _mask(state: Shared, inbox: messages.Inbox) -> tuple[Sent, messages.Masked]:
    """Open the neighbours' shares and send  words + PRG(b) + sum_{j>i} PRG(s_ij) - sum_{j<i} PRG(s_ij).

    One who sealed what cannot be opened is in the session all the same: it shares masks with everybody, and others may
    hold what puts its secrets together.
    """
    me, session = state.me.client, state.session
    held: dict[int, Secret] = {} if state.own is None else {me: state.own}
    others = [sender for sender, _ in inbox.sealed]
    if len(set(others)) != len(others) or not state.incoming.keys() >= set(others):
        raise _AbortError(Why.BAD_SHARE)
    for sender, sealed in inbox.sealed:
        if (opened := _opened(state.incoming[sender], sealed, session.id)) is not None:
            held[sender] = opened
    if len(held) < state.task.parameters.threshold:
        raise _AbortError(Why.TOO_FEW_SHARED)
    try:
        agreed = state.mask.agree([session.entries[j].mask_key for j in others])
    except BadKeyError:
        raise _AbortError(Why.BAD_KEY) from None
    keys = {j: pair_mask_key(secret, session.id, me, j) for j, secret in zip(others, agreed, strict=True)}
    plus = [self_mask_key(state.seed, session.id, me), *(key for j, key in keys.items() if j > me)]
    words = state.words.copy()
    masks.apply(words, plus, [key for j, key in keys.items() if j < me])
    sent = Sent(state.task, state.me, session, held, frozenset(others) - held.keys())
    return sent, messages.Masked(session.id, me, words.tobytes())


def _consider(state: Sent, question: messages.Question, answered: int) -> tuple[State, messages.FromClient]:
    """Is this a question that an honest server could ask? Every neighbour must be in the sum or out of it, not both."""
    me, session = state.me, state.session
    alive, dead = set(question.alive), set(question.dead)
    if len(alive) + len(dead) != len(question.alive) + len(question.dead) or alive & dead:
        raise _AbortError(Why.ALIVE_AND_DEAD)
    shared = state.held.keys() | state.unopened
    unheard = set(session.neighbours(me.client)) - shared
    if not shared <= alive | dead | {me.client} or not alive | dead <= set(session.entries) - unheard:
        raise _AbortError(Why.BAD_QUESTION)
    if me.client not in alive:
        raise _AbortError(Why.LEFT_OUT)
    if len(alive) < state.task.parameters.quorum:
        raise _AbortError(Why.TOO_FEW_UPDATES)
    if state.task.parameters.server == "curious":
        return _answer(state, question, answered)
    if me.identity is None:  # `start` has refused an active server then
        raise _AbortError(Why.BAD_SIGNATURE)
    signature = me.identity.sign(consent(session.id, question.alive, question.dead))
    consented = Consented(state.task, me, session, state.held, state.unopened, question)
    return consented, messages.Consent(session.id, me.client, signature)


def _check_consents(state: Consented, consents: messages.Consents, answered: int) -> tuple[Answered, messages.Answer]:
    """At least t holders of this client's secrets must have been asked the same question."""
    me, session, question = state.me, state.session, state.question
    statement = consent(session.id, question.alive, question.dead)
    signers = {client for client, _ in consents.signatures}
    if len(signers) != len(consents.signatures) or not signers <= set(question.alive):
        raise _AbortError(Why.BAD_SIGNATURE)
    for client, signature in consents.signatures:
        if not signed_by(me.peers.get(client), signature, statement):
            raise _AbortError(Why.BAD_SIGNATURE)
    if len(signers & set(session.holders(me.client))) < state.task.parameters.threshold:
        raise _AbortError(Why.TOO_FEW_CONSENTS)
    return _answer(state, question, answered)


def _answer(state: Sent, question: messages.Question, answered: int) -> tuple[Answered, messages.Answer]:
    """For every owner exactly one kind of share: of the seed if it is in the sum, of the mask key if it is not."""
    if state.task.round <= answered:
        raise _AbortError(Why.ANSWERED_BEFORE)
    alive = set(question.alive)
    seeds = tuple((owner, both[SHARE_BYTES:]) for owner, both in sorted(state.held.items()) if owner in alive)
    keys = tuple((owner, both[:SHARE_BYTES]) for owner, both in sorted(state.held.items()) if owner not in alive)
    done = Answered(state.task, state.me, state.session)
    return done, messages.Answer(state.session.id, state.me.client, seeds, keys)


def _opened(key: Secret, sealed: bytes, session: bytes) -> Secret | None:
    try:
        return Secret(ChaCha20Poly1305(key).decrypt(NONCE, sealed, session))
    except InvalidTag:
        return None
