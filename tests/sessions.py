"""Secure sums for tests: the same keys and the same bytes in every run, and a session with all that was said in it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np

from confide.secure import client, server
from confide.secure.keys import Identity
from confide.secure.messages import FromClient, FromServer
from confide.secure.parameters import Parameters
from confide.secure.session import Session, Task

IDENTITIES = {i: Identity.of(hashlib.sha256(b"identity %d" % i).digest()) for i in range(8)}
PEERS = {i: identity.public for i, identity in IDENTITIES.items()}
Drops = tuple[tuple[int, type], ...]  # a client, and the type of the message before which it falls silent
Change = Callable[[int, FromClient], FromClient]


def a_task(parameters: Parameters, **changes: Any) -> Task:
    usual = {"plan": b"p" * 32, "unit": 2, "round": 5, "model": b"m" * 32, "length": 3}
    return Task(**usual | {"parameters": parameters} | changes)


def a_member(task: Task, i: int) -> client.Member:
    return client.Member(i) if task.parameters.server == "curious" else client.Member(i, IDENTITIES[i], PEERS)


class Entropy:
    """Reproducible bytes, other ones in every call; to read them again, set `calls` back."""

    def __init__(self, *label: object) -> None:
        self.label, self.calls = label, 0

    def __call__(self, n: int) -> bytes:
        self.calls += 1
        return hashlib.shake_256(f"{self.label} {self.calls}".encode()).digest(n)


def updates(task: Task) -> dict[int, np.ndarray]:
    return {i: (np.arange(task.length) + 10 * i).astype(task.dtype) for i in range(task.parameters.clients)}


@dataclass
class Trace:
    """A session: each side's states and messages by type; states are immutable, so tests may share it."""

    begun: dict[type, Any] = field(default_factory=dict)  # the server as each phase begins
    heard: dict[type, Any] = field(default_factory=dict)  # and as it ends
    servers: list[server.State] = field(default_factory=list)  # and after every message
    clients: dict[type, dict[int, Any]] = field(default_factory=dict)
    said: dict[type, dict[int, Any]] = field(default_factory=dict)
    told: dict[type, dict[int, Any]] = field(default_factory=dict)
    end: Any = None

    def every_told(self) -> list[FromServer]:
        return [message for found in self.told.values() for message in found.values()]


def play(
    task: Task,
    drops: Drops = (),
    draw: object = "a",
    *,
    words: Mapping[int, np.ndarray] | None = None,
    late: Drops = (),
    change: Change = lambda _, message: message,
) -> Trace:
    """A session. What is `late` is said and not heard; `change` is what a hostile client does to its messages."""
    trace, silent, missed = Trace(), dict(drops), dict(late)
    words = updates(task) if words is None else words
    state: server.State = server.start(task, words, PEERS)
    now: dict[int, tuple[client.State, FromClient | None]] = {
        i: client.start(task, a_member(task, i), words[i], 0, Entropy(draw, i)) for i in words
    }
    while now:
        trace.begun[type(state)] = state
        trace.servers.append(state)
        for i, (after, message) in now.items():
            trace.clients.setdefault(type(after), {})[i] = after
            if message is None or isinstance(message, silent.get(i, ())):
                continue
            trace.said.setdefault(type(message), {})[i] = change(i, message)
            if not isinstance(message, missed.get(i, ())):
                state = server.receive(state, i, trace.said[type(message)][i])
                trace.servers.append(state)
        trace.heard[type(state)] = state
        state, told = server.close(state)
        for i, news in told.items():
            trace.told.setdefault(type(news), {})[i] = news
        now = {i: client.receive(now[i][0], news, 0) for i, news in told.items()}
    trace.servers.append(state)
    trace.end = state
    return trace


def snapshot(thing: Any) -> Any:
    """Everything a state consists of, by value."""
    match thing:
        case Session():
            return thing.id, snapshot(thing.task), snapshot(thing.entries)
        case np.ndarray():
            return thing.dtype.str, thing.tobytes()
        case bytes():
            return bytes(thing)
        case dict():
            return [(key, snapshot(value)) for key, value in thing.items()]
        case tuple() | list():
            return [snapshot(one) for one in thing]
        case Entropy():
            return thing.label  # how often it was called is not the state's
    if is_dataclass(thing):
        return type(thing), [(f.name, snapshot(getattr(thing, f.name))) for f in fields(thing)]
    return thing
