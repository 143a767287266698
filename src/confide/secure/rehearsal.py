"""A whole session in one process, message by message as bytes: for tests, benchmarks and tutorials."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from numpy.typing import NDArray

from confide.secure import client, messages, server
from confide.secure.session import Task

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
    """How a session ended, and what it cost: bytes each client sent and got, seconds of computing."""

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
) -> Outcome:
    """Run a session in which each client of `drops` falls silent from its phase on."""
    drops = drops or {}
    peers = {m.client: m.identity.public for m in members if m.identity is not None}
    outcome = Outcome(server.start(task, [m.client for m in members], peers), {})
    clock = time.perf_counter

    def send(me: int, message: messages.FromClient | None) -> bytes | None:
        if message is None or PHASE_OF[type(message)] >= drops.get(me, len(Phase)):
            return None
        raw = messages.encode(message)
        outcome.sent[me] = outcome.sent.get(me, 0) + len(raw)
        return raw

    waiting: dict[int, bytes | None] = {}
    for m in members:
        begun = clock()
        outcome.clients[m.client], advertise = client.start(task, m, words[m.client], answered=0)
        waiting[m.client] = send(m.client, advertise)
        outcome.client_seconds[m.client] = clock() - begun
    while True:
        begun = clock()
        for me, raw in waiting.items():
            if raw is not None:
                message = messages.from_client(raw, task.largest_message)
                outcome.state = server.receive(outcome.state, me, message)
        outcome.state, outgoing = server.close(outcome.state)
        letters = {me: messages.encode(message) for me, message in outgoing.items()}
        outcome.server_seconds += clock() - begun
        if not letters:
            return outcome
        waiting = {}
        for me, raw in letters.items():
            begun = clock()
            outcome.got[me] = outcome.got.get(me, 0) + len(raw)
            news = messages.from_server(raw, task.largest_message)
            outcome.clients[me], reply = client.receive(outcome.clients[me], news, answered=0)
            waiting[me] = send(me, reply)
            outcome.client_seconds[me] += clock() - begun
