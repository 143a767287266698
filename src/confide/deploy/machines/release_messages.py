"""What is said about a release at the end of learning. R: the server that relays, S: every server, R included.

R                 S
AskReady     ->   Ready       has everybody finished, and is nothing open between servers?
Invite       ->   Said        to an attempt; the answer holds the first word of a secure sum
Told         ->   Said        word by word of that sum (`secure.messages`), until the relay has it
any of them  ->   Refusal
Result       ->   Got         the released mean, for everybody; the relay signs it

neighbour         neighbour
Receipts     ->   Took        who was told which result, signed by both (`secure.receipts`)

A run is one session of one relay, drawn anew whenever a session begins: what is late from an earlier one is told apart.
"""

from __future__ import annotations

from typing import Annotated, Final

from annotated_types import Len, Predicate
from pydantic import FailFast, Field
from pydantic.dataclasses import dataclass

from confide.base import wire
from confide.deploy.machines.sync import LARGEST_WINDOW, Round, Server
from confide.secure.messages import Hash, Signature
from confide.secure.receipts import Receipt

RUN_BYTES: Final = 16
LONGEST_WHY: Final = 400
MOST_RECEIPTS: Final = 32  # in one message, which is shorter than any word of a sum may be
LARGEST_PENDING: Final = 4 * LARGEST_WINDOW  # of those listed; a server may have more
PREFIX: Final = "Release"  # of every kind on the wire: tells these messages from those of the exchange
Run = Annotated[bytes, Len(RUN_BYTES, RUN_BYTES)]
Attempt = Annotated[int, Field(ge=1, lt=2**32)]
Why = Annotated[str, Len(0, LONGEST_WHY), Predicate(str.isprintable)]  # it is shown to people


@dataclass(frozen=True, config=wire.STRICT)
class _Named:
    plan: Annotated[Hash, Field(repr=False)]
    epoch: Round  # of the sender: it says which servers take part
    sender: Server
    receiver: Server


@dataclass(frozen=True, config=wire.STRICT)
class _Message(_Named):
    run: Run


@dataclass(frozen=True, config=wire.STRICT)
class AskReady(_Message):
    pass


@dataclass(frozen=True, config=wire.STRICT)
class Ready(_Message):
    decided: Round
    published: Round
    finished: bool  # its last round is decided, and it has heard its neighbours since it was started
    pending: Annotated[tuple[tuple[Server, Round], ...], Len(0, LARGEST_PENDING), FailFast()]  # (neighbour, round)
    attempt: Round  # its last one; 0: none
    of_epoch: Round  # in which that one was
    answered: bool  # its own unmasking answer to that one may have left
    left: Round  # attempts that it may still join beside that one
    never: Why  # why it takes part in no release; "" if it does


@dataclass(frozen=True, config=wire.STRICT)
class Invite(_Message):
    attempt: Attempt


@dataclass(frozen=True, config=wire.STRICT)
class Told(_Message):
    attempt: Attempt
    word: Annotated[bytes, Field(repr=False)]  # of `secure.messages.FromServer`


@dataclass(frozen=True, config=wire.STRICT)
class Said(_Message):
    attempt: Attempt
    word: Annotated[bytes, Field(repr=False)]  # of `secure.messages.FromClient`


@dataclass(frozen=True, config=wire.STRICT)
class Refusal(_Message):
    attempt: Attempt
    why: Why
    for_now: bool  # another session of the same attempt may do better


@dataclass(frozen=True, config=wire.STRICT)
class Result(_Message):
    attempt: Attempt
    total: Annotated[bytes, Field(repr=False)]  # of all states and shares of noise, in quanta
    signature: Annotated[Signature, Field(repr=False)]  # the relay's: it is a result of no other


@dataclass(frozen=True, config=wire.STRICT)
class Got(_Message):
    attempt: Attempt


@dataclass(frozen=True, config=wire.STRICT)
class Receipts(_Named):
    receipts: Annotated[tuple[Receipt, ...], Len(1, MOST_RECEIPTS), FailFast(), Field(repr=False)]


@dataclass(frozen=True, config=wire.STRICT)
class Took(_Named):
    sha256: Hash  # of the message with the receipts


FromRelay = AskReady | Invite | Told | Result
FromServer = Ready | Said | Refusal | Got
FromNeighbour = Receipts | Took
Message = FromRelay | FromServer | FromNeighbour
KINDS: Final[dict[str, type[Message]]] = wire.kinds(Message, prefix=PREFIX)


def encode(message: Message) -> bytes:
    return wire.encode(message, PREFIX)


def decode(raw: bytes, largest: int) -> Message:
    return wire.decode(raw, KINDS, largest)


def is_one(raw: bytes) -> bool:
    """Whether these bytes begin as `encode` begins them: a short list whose first item is a short text."""
    return raw[2 : 2 + len(PREFIX)] == PREFIX.encode()
