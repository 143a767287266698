"""A whole session in one process, message by message as bytes: for tests, benchmarks and tutorials."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from numpy.typing import NDArray

from confide.secure import client, messages, server
from confide.secure.session import Task
from confide.secure.shares import Entropy

Words = NDArray[Any]


class Phase(IntEnum):
    ADVERTISE = 0
    SHARE = 1
    MASK = 2
    CONSENT = 3
    UNMASK = 4


PHASE_OF = {
    messages.Advertise: Phase.ADVERTISE,
    messages.Shares: Phase.SHARE,
    messages.Masked: Phase.MASK,
    messages.Consent: Phase.CONSENT,
    messages.Answer: Phase.UNMASK,
}


@dataclass
class Outcome:
    """How a session ended, and what it cost: bytes that each client sent and got, and seconds of processor time."""

    state: server.State
    clients: dict[int, client.State]
    sent: dict[int, int] = field(default_factory=dict)
    got: dict[int, int] = field(default_factory=dict)
    client_seconds: dict[int, float] = field(default_factory=dict)
    server_seconds: float = 0.0


def rehearse(
    task: Task,
    members: list[client.Member],
    words: Mapping[int, Words],
    drops: Mapping[int, Phase] | None = None,
    watch: Callable[[int, Outcome], None] = lambda *_: None,
    entropy: Entropy = os.urandom,
) -> Outcome:
    """Run a session in which each client of `drops` falls silent from its phase on.

    Args:
        watch: called after every turn of a client, with its number and what the session has come to.
        entropy: of all clients; a seeded one gives the same keys, neighbours and shares again.
    """
    peers = {m.client: m.identity.public for m in members if m.identity is not None}
    outcome = Outcome(server.start(task, [m.client for m in members], peers), {})
    silent, clock = drops or {}, time.process_time

    def tell_server(me: int, message: messages.FromClient | None, begun: float) -> None:
        raw = b"" if message is None else messages.encode(message)
        outcome.client_seconds[me] = outcome.client_seconds.get(me, 0.0) + clock() - begun
        if message is not None and PHASE_OF[type(message)] < silent.get(me, len(Phase)):
            outcome.sent[me] = outcome.sent.get(me, 0) + len(raw)
            begun = clock()
            outcome.state = server.receive(outcome.state, me, messages.from_client(raw, task.largest_message))
            outcome.server_seconds += clock() - begun
        watch(me, outcome)

    for m in members:
        begun = clock()
        outcome.clients[m.client], advertise = client.start(task, m, words[m.client], answered=0, entropy=entropy)
        tell_server(m.client, advertise, begun)
    while True:
        begun = clock()
        outcome.state, outgoing = server.close(outcome.state)
        encoded = {id(message): messages.encode(message) for message in outgoing.values()}  # most say the same to all
        outcome.server_seconds += clock() - begun
        if not outgoing:
            return outcome
        for me, message in outgoing.items():
            raw = encoded[id(message)]
            outcome.got[me] = outcome.got.get(me, 0) + len(raw)
            begun = clock()
            news = messages.from_server(raw, task.largest_message)
            outcome.clients[me], reply = client.receive(outcome.clients[me], news, answered=0)
            tell_server(me, reply, begun)
