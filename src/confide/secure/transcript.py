"""What a server keeps from the question on, so that after a crash it can only go on asking that very question.

The shares that answer a question put masks away for one list of survivors. A server that forgot its question and asked
about another list would learn the difference of two sums: a client answers one question a round, and a server that
starts again asks the one that it wrote down before it left.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import numpy as np
from annotated_types import Len
from pydantic import FailFast, Field
from pydantic.dataclasses import dataclass

from confide.base import wire
from confide.secure.messages import Client, Clients, Consents, Entry, Hash, Question, Signature
from confide.secure.parameters import LARGEST_COHORT
from confide.secure.server import Consenting, Unmasking
from confide.secure.session import Session, Task


@dataclass(frozen=True, config=wire.STRICT)
class Transcript:
    entries: Annotated[tuple[Entry, ...], Len(0, LARGEST_COHORT), FailFast()]
    commitments: Annotated[tuple[tuple[Client, Hash], ...], Len(0, LARGEST_COHORT), FailFast()]
    total: Annotated[bytes, Field(repr=False)]  # of the masked updates
    alive: Clients
    dead: Clients
    signatures: Annotated[tuple[tuple[Client, Signature], ...], Len(0, LARGEST_COHORT), FailFast()]  # of the consents


KINDS: Final[dict[str, type[Transcript]]] = wire.kinds(Transcript)


def encode(state: Consenting | Unmasking, consents: Consents | None = None) -> bytes:
    """Of a server that has asked, or (with the consents) that passes on what an active one's clients signed."""
    q = state.question
    entries = tuple(state.session.entries.values())
    signatures = () if consents is None else consents.signatures
    kept = Transcript(entries, tuple(state.commitments.items()), state.total.tobytes(), q.alive, q.dead, signatures)
    return wire.encode(kept)


def decode(raw: bytes, task: Task, peers: Mapping[int, bytes]) -> tuple[Consenting | Unmasking, Question | Consents]:
    """The server as it was when it spoke last, and what it said: answers that had come are to come again."""
    kept = wire.decode(raw, KINDS, 2 * task.largest_message)
    if len(kept.total) != task.length * task.dtype.itemsize:
        raise wire.MalformedError("a total of another length")
    session = Session(task, kept.entries)
    total = np.frombuffer(kept.total, task.dtype).copy()
    question = Question(session.id, kept.alive, kept.dead)
    common = (task, session, peers, dict(kept.commitments), total, question)
    if kept.signatures:
        consents = Consents(session.id, kept.signatures)
        return Unmasking(*common, frozenset(client for client, _ in kept.signatures)), consents
    kind = Consenting if task.parameters.server == "active" else Unmasking
    return kind(*common, frozenset(kept.alive)), question
