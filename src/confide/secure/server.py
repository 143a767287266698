"""The server of a secure sum: it collects, passes on, and takes off the masks that it may.

    start -> Advertising -> Sharing -> Masking -> (Consenting) -> Unmasking -> Summed
                             any of them -> Aborted(why)

`receive` takes in one client's message (`sender` is whom the transport authenticated) and raises `RefusedError`,
changing nothing, for one that does not belong. `close` ends a phase with whoever has answered: the driver calls it
when nobody is `missing` any more, or at its deadline. States are immutable.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from confide.base.errors import InputError
from confide.secure import masks, messages
from confide.secure.encoding import Words
from confide.secure.keys import KeyPair, Secret, pair_mask_key, self_mask_key, signed_by, usable
from confide.secure.recovery import Recovery
from confide.secure.session import RefusedError, Session, Task, Why, advertisement, commitment, consent

Outgoing = dict[int, messages.FromServer]


@dataclass(frozen=True, repr=False)
class State:
    task: Task

    def __repr__(self) -> str:
        return f"{type(self).__name__}(unit {self.task.unit}, round {self.task.round})"


@dataclass(frozen=True, repr=False)
class Advertising(State):
    invited: frozenset[int]
    peers: Mapping[int, bytes]  # identities, with an active server
    entries: dict[int, messages.Entry] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class _InSession(State):
    session: Session
    peers: Mapping[int, bytes]


@dataclass(frozen=True, repr=False)
class Sharing(_InSession):
    shared: dict[int, messages.Shares] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class Masking(_InSession):
    commitments: dict[int, bytes]
    total: Words  # of the masked updates so far
    alive: dict[int, None] = field(default_factory=dict)  # a set that keeps its order


@dataclass(frozen=True, repr=False)
class _Asked(_InSession):
    commitments: dict[int, bytes]
    total: Words
    question: messages.Question
    asked: frozenset[int]


@dataclass(frozen=True, repr=False)
class Consenting(_Asked):
    signatures: dict[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class Unmasking(_Asked):
    answers: dict[int, messages.Answer] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class Summed(State):
    total: Words  # the sum of the survivors' words, nothing else
    survivors: tuple[int, ...]


@dataclass(frozen=True, repr=False)
class Aborted(State):
    why: Why
    liars: tuple[int, ...] = ()  # whose shares are wrong beyond doubt, see `recovery`

    def __repr__(self) -> str:
        who = "".join(f", client {liar}" for liar in self.liars)
        return f"{super().__repr__()[:-1]}: {self.why}{who})"


def start(task: Task, invited: Iterable[int], peers: Mapping[int, bytes] | None = None) -> Advertising:
    clients = frozenset(invited)
    if len(clients) > task.parameters.clients:
        raise InputError("invited", len(clients), f"the parameters are for at most {task.parameters.clients} clients")
    return Advertising(task, clients, peers or {})


def missing(state: State) -> frozenset[int]:
    """Clients whose message of this phase has not come."""
    expected, heard = _roll(state)
    return frozenset(expected) - heard.keys()


def enough(state: State) -> bool:
    """Whether this phase can end well with those who have answered, so that nobody else has to be waited for."""
    _, heard = _roll(state)
    p = state.task.parameters
    if not isinstance(state, Consenting | Unmasking):
        return len(heard) >= p.quorum
    owners = state.asked if isinstance(state, Consenting) else state.commitments
    return all(sum(j in heard for j in state.session.holders(owner)) >= p.threshold for owner in owners)


def _roll(state: State) -> tuple[Collection[int], Mapping[int, Any]]:
    """Who is to speak in this phase, and who has spoken."""
    match state:
        case Advertising():
            return state.invited, state.entries
        case Sharing():
            return state.session.entries, state.shared
        case Masking():
            return state.commitments, state.alive
        case Consenting():
            return state.asked, state.signatures
        case Unmasking():
            return state.asked, state.answers
        case _:
            return (), {}


def receive(state: State, sender: int, message: messages.FromClient) -> State:
    if isinstance(message, messages.Advertise):
        claimed = message.entry.client
    elif isinstance(state, _InSession) and message.session != state.session.id:
        raise RefusedError("the message is of another session")
    else:
        claimed = message.client
    if claimed != sender:
        raise RefusedError(f"client {sender} speaks for client {claimed}")
    expected, heard = _roll(state)
    if sender not in expected or sender in heard:
        raise RefusedError(f"client {sender} is not expected to say anything (now)")
    match state, message:
        case Advertising(), messages.Advertise():
            return _advertised(state, sender, message)
        case Sharing(), messages.Shares():
            return _shared(state, sender, message)
        case Masking(), messages.Masked():
            return _masked(state, sender, message)
        case Consenting(), messages.Consent():
            return _consented(state, sender, message)
        case Unmasking(), messages.Answer():
            return _answered(state, sender, message)
    raise RefusedError(f"{type(message).__name__} is not for a server that is {type(state).__name__}")


def _advertised(state: Advertising, sender: int, message: messages.Advertise) -> Advertising:
    if message.task != state.task.digest:
        raise RefusedError("the keys are for another task, round, model or plan")
    taken = {key for entry in state.entries.values() for key in (entry.mask_key, entry.channel_key)}
    if len(taken | {message.entry.mask_key, message.entry.channel_key}) != len(taken) + 2:
        raise RefusedError("a key is already in use")
    if not (usable(message.entry.mask_key) and usable(message.entry.channel_key)):
        raise RefusedError(Why.BAD_KEY)
    if state.task.parameters.server == "active":
        said = advertisement(state.task, message.entry)
        if not signed_by(state.peers.get(sender), message.entry.signature, said):
            raise RefusedError(Why.BAD_SIGNATURE)
    return replace(state, entries=state.entries | {sender: message.entry})


def _shared(state: Sharing, sender: int, message: messages.Shares) -> Sharing:
    if [to for to, _ in message.sealed] != state.session.neighbours(sender):
        raise RefusedError("shares must go to the neighbours, in order")
    return replace(state, shared=state.shared | {sender: message})


def _masked(state: Masking, sender: int, message: messages.Masked) -> Masking:
    if len(message.words) != state.total.nbytes:
        raise RefusedError(f"an update has {state.total.nbytes} bytes, not {len(message.words)}")
    total = state.total + np.frombuffer(message.words, state.total.dtype)
    return replace(state, total=total, alive=state.alive | {sender: None})


def _consented(state: Consenting, sender: int, message: messages.Consent) -> Consenting:
    statement = consent(state.session.id, state.question.alive, state.question.dead)
    if not signed_by(state.peers[sender], message.signature, statement):
        raise RefusedError(Why.BAD_SIGNATURE)
    return replace(state, signatures=state.signatures | {sender: message.signature})


def _answered(state: Unmasking, sender: int, message: messages.Answer) -> Unmasking:
    """Shares of what was asked for: of the seed of those alive, of the key of those dead. One that the client could not
    open is missing."""
    alive, dead = set(state.question.alive), set(state.question.dead)
    owned = {j for j in state.session.neighbours(sender) if j in state.commitments}
    if state.task.parameters.complete:
        owned.add(sender)
    for told, asked in ((message.seeds, owned & alive), (message.keys, owned & dead)):
        owners = [j for j, _ in told]
        if owners != sorted(asked.intersection(owners)):
            raise RefusedError(
                "an answer has at most one share of every neighbour, of the seed if alive, else of the key"
            )
    return replace(state, answers=state.answers | {sender: message})


def close(state: State) -> tuple[State, Outgoing]:
    """End the phase with those who have answered."""
    match state:
        case Advertising():
            return _send_roster(state)
        case Sharing():
            return _send_inboxes(state)
        case Masking():
            return _ask(state)
        case Consenting():
            return _send_consents(state)
        case Unmasking():
            return _unmask(state), {}
    raise RefusedError(f"a server that is {type(state).__name__} has nothing to close")


def _send_roster(state: Advertising) -> tuple[State, Outgoing]:
    if len(state.entries) < state.task.parameters.quorum:
        return Aborted(state.task, Why.TOO_FEW_ADVERTISED), {}
    session = Session(state.task, state.entries.values())
    roster = messages.Roster(state.task.digest, tuple(session.entries.values()))
    return Sharing(state.task, session, state.peers), dict.fromkeys(session.entries, roster)


def _send_inboxes(state: Sharing) -> tuple[State, Outgoing]:
    if len(state.shared) < state.task.parameters.quorum:
        return Aborted(state.task, Why.TOO_FEW_SHARED), {}
    letters: dict[int, list[tuple[int, bytes]]] = {client: [] for client in state.shared}
    for sender in sorted(state.shared):
        for to, sealed in state.shared[sender].sealed:
            if to in letters:
                letters[to].append((sender, sealed))
    commitments = {client: message.commitment for client, message in state.shared.items()}
    total = np.zeros(state.task.length, state.task.dtype)
    masking = Masking(state.task, state.session, state.peers, commitments, total)
    return masking, {client: messages.Inbox(state.session.id, tuple(found)) for client, found in letters.items()}


def _ask(state: Masking) -> tuple[State, Outgoing]:
    if len(state.alive) < state.task.parameters.quorum:
        return Aborted(state.task, Why.TOO_FEW_UPDATES), {}
    alive, dead = sorted(state.alive), sorted(state.commitments.keys() - state.alive.keys())
    question = messages.Question(state.session.id, tuple(alive), tuple(dead))
    kind = Consenting if state.task.parameters.server == "active" else Unmasking
    common = (state.task, state.session, state.peers, state.commitments, state.total, question)
    asking: State = kind(*common, frozenset(alive))
    return asking, dict.fromkeys(alive, question)


def _send_consents(state: Consenting) -> tuple[State, Outgoing]:
    if len(state.signatures) < state.task.parameters.threshold:
        return Aborted(state.task, Why.TOO_FEW_CONSENTS), {}
    consents = messages.Consents(state.session.id, tuple(sorted(state.signatures.items())))
    asked = frozenset(state.signatures)
    common = (state.task, state.session, state.peers, state.commitments, state.total, state.question)
    return Unmasking(*common, asked), dict.fromkeys(sorted(asked), consents)


def _unmask(state: Unmasking) -> Summed | Aborted:
    """Put together the seeds of the survivors and the keys of the dead, and subtract every mask left in the total."""
    task, session, alive = state.task, state.session, state.question.alive

    def mask_of(owner: int, seed: bytes) -> Secret | None:
        right = commitment(session.id, seed) == state.commitments[owner]
        return self_mask_key(seed, session.id, owner) if right else None

    def pair_of(owner: int, key: bytes) -> KeyPair | None:
        pair = KeyPair.of(key)
        return pair if pair.public == session.entries[owner].mask_key else None

    recovery = Recovery(session)
    masked = recovery.secrets(alive, {c: dict(a.seeds) for c, a in state.answers.items()}, mask_of)
    pairs = recovery.secrets(state.question.dead, {c: dict(a.keys) for c, a in state.answers.items()}, pair_of)
    if recovery.lost:
        return Aborted(task, recovery.why, recovery.liars)
    plus: list[bytes] = []
    minus: list[bytes] = [*masked.values()]
    living = set(alive)
    for owner, pair in pairs.items():
        others = [j for j in session.neighbours(owner) if j in living]
        agreed = pair.agree([session.entries[j].mask_key for j in others])  # all keys were usable when they came
        for j, secret in zip(others, agreed, strict=True):  # j added its mask with the owner if owner > j
            (minus if owner > j else plus).append(pair_mask_key(secret, session.id, owner, j))
    total = state.total.copy()
    masks.apply(total, plus, minus)
    return Summed(task, total, alive)
