"""Nodes that lie, as real processes with real keys: a server to its neighbours, a client to its server (`chaos.py`).

    python liars.py FD server|client CONFIG SEED TAP

They are honest nodes whose words are changed on the way out, so that they keep up with whom they lie to. FD is the end
of a pipe: who started them holds the other one (`confide.cluster.leash`). A server writes what its neighbours send it
to the file TAP, one JSON line for each message of a round: bytes from the wire, as somebody else than their sender saw
them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from confide.base.exits import exit_code
from confide.base.wire import MalformedError
from confide.deploy.machines import client_messages, evidence, sync
from confide.deploy.machines.client_messages import Reply
from confide.deploy.machines.evidence import Publication
from confide.deploy.machines.sync import AskBalance, Sync, TellBalance
from confide.deploy.net.endpoints import Node
from confide.deploy.node.client_process import ClientProcess
from confide.deploy.node.client_setup import ClientSetup
from confide.deploy.node.config import load_client, load_server
from confide.deploy.node.life import begin
from confide.deploy.node.server_process import ServerProcess
from confide.deploy.node.server_setup import ServerSetup
from confide.secure import messages
from confide.secure.messages import Answer, FromClient, Masked, Shares

EVERY: Final = 2.0  # seconds between two lies of a server, on the average
LARGEST: Final = 1 << 22


class Lies:
    """What a server may say beside the truth, made of the truth.

    Attributes:
        said, offered: the last SYNC to each neighbour, and the last with a message of a round.
    """

    def __init__(self, server: ServerProcess, seed: int) -> None:
        self.setup, self.server = server.setup, server.server
        self.said: dict[int, Sync] = {}
        self.offered: dict[int, Sync] = {}
        self.random = random.Random(seed)  # noqa: S311

    def note(self, m: int, message: Sync) -> None:
        self.said[m] = message
        if message.offer is not None:
            self.offered[m] = message

    def one(self, now: float) -> tuple[int, str, bytes] | None:
        """To whom, which, and its bytes."""
        lies: list[Callable[[int, float], bytes]] = [
            self.end, self.ahead, self.seen, self.other_bytes, self.unsigned, self.out_of_range, self.backward,
            self.balance, self.garbage, self.another, self.tell,
        ]  # fmt: skip
        m, lie = self.random.choice(sorted(self.setup.terms.weights)), self.random.choice(lies)
        return (m, lie.__name__, lie(m, now)) if m in self.offered else None

    def changed(self, m: int, **fields: Any) -> bytes:
        return sync.encode(replace(self.said[m], **{"offer": None, "balance": None} | fields))

    def end(self, m: int, _: float) -> bytes:
        last = self.setup.plan.rounds
        return self.changed(m, decided=last, open=((last, False),) if self.random.random() < 0.5 else ())

    def ahead(self, m: int, now: float) -> bytes:
        """As far as the clock allows, and now and then signed."""
        decided = max(1, self.server.terms.clock_round(now))
        shown = (self.publication(decided, bytes(8 * self.setup.terms.rules.length)),)
        return self.changed(m, decided=decided, open=(), shown=shown if self.random.random() < 0.1 else ())

    def seen(self, m: int, _: float) -> bytes:
        return self.changed(m, seen=self.random.choice((self.said[m].seen + 5, self.setup.plan.rounds)))

    def other_bytes(self, m: int, _: float) -> bytes:
        """A second message of a round that was offered before, signed as the first one was."""
        message = self.offered[m]
        round, blob = message.offer or (0, b"")
        other = blob[8:] + blob[:8]
        return sync.encode(replace(message, offer=(round, other), shown=(self.publication(round, other),)))

    def unsigned(self, m: int, _: float) -> bytes:
        return sync.encode(replace(self.offered[m], shown=()))

    def out_of_range(self, m: int, _: float) -> bytes:
        said, blob = self.said[m], np.full(self.setup.terms.rules.length, 2**62, "<i8").tobytes()
        shown = (self.publication(said.decided, blob),)
        return self.changed(m, open=((said.decided, False),), offer=(said.decided, blob), shown=shown)

    def backward(self, m: int, _: float) -> bytes:
        return self.changed(m, decided=max(1, self.said[m].decided - 7), open=())

    def balance(self, m: int, _: float) -> bytes:
        return self.changed(m, open=(), balance=(self.random.randrange(2**20), self.random.randbytes(32)))

    def garbage(self, m: int, _: float) -> bytes:
        raw = bytearray(sync.encode(self.said[m]))
        for _ in range(self.random.randrange(1, 4)):
            raw[self.random.randrange(len(raw))] ^= 1 << self.random.randrange(8)
        return bytes(raw)

    def another(self, m: int, _: float) -> bytes:
        """In the name of another server."""
        return self.changed(m, sender=(self.said[m].sender + 1) % self.setup.plan.P)

    def tell(self, m: int, _: float) -> bytes:
        """A balance that nobody asked for, or a question that nobody needs."""
        rules, last = self.setup.terms.rules, self.said[m].seen
        if self.random.random() < 0.5:
            return sync.encode(TellBalance(rules.plan, rules.me, m, last, 1, 7, bytes(8 * rules.length)))
        return sync.encode(AskBalance(rules.plan, rules.me, m, self.said[m].decided, 1, 0))

    def publication(self, round: int, blob: bytes) -> Publication:
        rules, place = self.setup.terms.rules, (self.setup.me, round, -1)
        sha = hashlib.sha256(blob).digest()
        said = evidence.statement(rules.plan, place, sha)
        return Publication(*place, sha, self.setup.node.identity.sign(said))


class LyingServer(ServerProcess):
    """It says what an honest one would, and now and then something else besides."""

    def __init__(self, setup: ServerSetup, seed: int, tap: Path, **options: Any) -> None:
        super().__init__(setup, **options)
        self._lies = Lies(self, seed)
        self._tap = open(tap, "a", encoding="utf-8", buffering=1)  # noqa: SIM115 - as long as the process lives

    def _to_server(self, m: int, raw: bytes) -> None:
        message = _decoded(raw)
        if isinstance(message, Sync):
            self._lies.note(m, message)
        super()._to_server(m, raw)

    def _receive(self, node: Node, raw: bytes) -> None:
        message = _decoded(raw)
        if node.role == "server" and isinstance(message, Sync) and message.offer is not None:
            round, blob = message.offer
            line = {"server": node.number, "round": round, "sha256": hashlib.sha256(blob).hexdigest()}
            self._tap.write(json.dumps(line) + "\n")
        if isinstance(message, Sync):  # it forgives itself what it signed, or it would stop
            shown = tuple(p for p in message.shown if p.server != self.setup.me)
            raw = sync.encode(replace(message, seen=min(message.seen, self.server.books.decided), shown=shown))
        super()._receive(node, raw)

    async def _start(self) -> None:
        await super()._start()
        self._task(self._lie_for_ever)

    async def _lie_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._lies.random.expovariate(1 / EVERY))
            if (found := self._lies.one(self._clock())) is not None:
                m, lie, raw = found
                self._observer.log("disconnected", to=f"the truth, by {lie}")
                self._send(m, raw)


def _decoded(raw: bytes) -> object:
    try:
        return sync.decode(raw, LARGEST)
    except MalformedError:  # a word of a release
        return None


# A client


def wrong_shares(said: FromClient) -> FromClient | None:
    if not isinstance(said, Answer):
        return said
    return replace(said, seeds=tuple((j, share[:-1] + bytes([share[-1] ^ 1])) for j, share in said.seeds))


def bad_seals(said: FromClient) -> FromClient | None:
    if not isinstance(said, Shares):
        return said
    return replace(said, sealed=tuple((j, bytes(len(sealed))) for j, sealed in said.sealed))


def wrong_commitment(said: FromClient) -> FromClient | None:
    return replace(said, commitment=bytes(32)) if isinstance(said, Shares) else said


def poison(said: FromClient) -> FromClient | None:
    """As far as the ring goes."""
    if not isinstance(said, Masked):
        return said
    words = np.frombuffer(said.words, "<u4")
    return replace(said, words=(words + np.uint32(2**30)).tobytes())


def no_answer(said: FromClient) -> FromClient | None:
    return None if isinstance(said, Answer) else said


def honest(said: FromClient) -> FromClient | None:
    return said


class LyingClient(ClientProcess):
    """Each round it lies about another thing, or about none."""

    def __init__(self, setup: ClientSetup, seed: int, **options: Any) -> None:
        super().__init__(setup, **options)
        self._seed = seed

    def _say(self, raw: bytes) -> None:
        message = client_messages.from_client(raw, LARGEST)
        if not isinstance(message, Reply):
            return super()._say(raw)
        chance = random.Random(f"{self._seed} {message.round}")  # noqa: S311
        lie = chance.choice([wrong_shares, bad_seals, wrong_commitment, poison, no_answer, honest])
        said = lie(messages.from_client(message.payload, LARGEST))
        if said is not None:
            super()._say(client_messages.encode(replace(message, payload=messages.encode(said))))


def main(arguments: list[str]) -> int:
    fd, kind, path, seed, tap = arguments

    def watch() -> None:
        os.read(int(fd), 1)  # returns when nobody holds the other end
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()

    def run() -> None:
        if kind == "client":
            config = load_client(path)
            with begin(config, None) as observer:
                LyingClient(ClientSetup.load(config), int(seed), observer=observer).run()
        else:
            of_server = load_server(path)
            with begin(of_server, None) as observer:
                LyingServer(ServerSetup.load(of_server), int(seed), Path(tap), observer=observer).run()

    return exit_code(run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
