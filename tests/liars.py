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


class LyingServer(ServerProcess):
    """It says what an honest one would, and now and then something else besides."""

    def __init__(self, setup: ServerSetup, seed: int, tap: Path, **options: Any) -> None:
        self._said: dict[int, Sync] = {}
        self._offered: dict[int, Sync] = {}
        super().__init__(setup, **options)
        self._random = random.Random(seed)  # noqa: S311
        self._tap = open(tap, "a", encoding="utf-8", buffering=1)  # noqa: SIM115 - as long as the process lives

    def _to_server(self, m: int, raw: bytes) -> None:
        message = _decoded(raw)
        if isinstance(message, Sync):
            self._said[m] = message
            if message.offer is not None:
                self._offered[m] = message
        super()._to_server(m, raw)

    def _receive(self, node: Node, raw: bytes) -> None:
        message = _decoded(raw)
        if node.role == "server" and isinstance(message, Sync) and message.offer is not None:
            round, blob = message.offer
            line = {"server": node.number, "round": round, "sha256": hashlib.sha256(blob).hexdigest()}
            self._tap.write(json.dumps(line) + "\n")
        super()._receive(node, raw)

    async def _start(self) -> None:
        await super()._start()
        self._task(self._lie_for_ever())

    async def _lie_for_ever(self) -> None:
        lies: list[Callable[[int], bytes | None]] = [
            self._end, self._ahead, self._seen, self._other_bytes, self._unsigned, self._out_of_range, self._backward,
            self._balance, self._garbage, self._another, self._tell,
        ]  # fmt: skip
        while True:
            await asyncio.sleep(self._random.expovariate(1 / EVERY))
            m = self._random.choice(sorted(self.setup.terms.weights))
            lie = self._random.choice(lies)
            if m in self._said and (raw := lie(m)) is not None:
                self._observer.log("disconnected", to=f"the truth, by {lie.__name__}")
                self._send(m, raw)

    def _changed(self, m: int, **fields: Any) -> bytes:
        return sync.encode(replace(self._said[m], **{"offer": None, "balance": None} | fields))

    def _end(self, m: int) -> bytes:
        last = self.setup.plan.rounds
        return self._changed(m, decided=last, open=((last, False),) if self._random.random() < 0.5 else ())

    def _ahead(self, m: int) -> bytes:
        """As far as the clock allows, without a signature or with one."""
        decided = max(1, self.server.terms.clock_round(self._clock()))
        shown = (self._publication(decided, bytes(8 * self.setup.terms.rules.length)),)
        return self._changed(m, decided=decided, open=(), shown=shown if self._random.random() < 0.3 else ())

    def _seen(self, m: int) -> bytes:
        return self._changed(m, seen=self._random.choice((self._said[m].seen + 5, self.setup.plan.rounds)))

    def _other_bytes(self, m: int) -> bytes | None:
        """A second message of a round that was offered before, signed as the first one was."""
        if m not in self._offered:
            return None
        message = self._offered[m]
        round, blob = message.offer or (0, b"")
        other = blob[:-1] + bytes([blob[-1] ^ 1]) if blob[-1] in (0, 255) else blob[8:] + blob[:8]
        return sync.encode(replace(message, offer=(round, other), shown=(self._publication(round, other),)))

    def _unsigned(self, m: int) -> bytes | None:
        return None if m not in self._offered else sync.encode(replace(self._offered[m], shown=()))

    def _out_of_range(self, m: int) -> bytes:
        said, blob = self._said[m], np.full(self.setup.terms.rules.length, 2**62, "<i8").tobytes()
        shown = (self._publication(said.decided, blob),)
        return self._changed(m, open=((said.decided, False),), offer=(said.decided, blob), shown=shown)

    def _backward(self, m: int) -> bytes:
        return self._changed(m, decided=max(1, self._said[m].decided - 7), open=())

    def _balance(self, m: int) -> bytes:
        return self._changed(m, open=(), balance=(self._random.randrange(2**20), self._random.randbytes(32)))

    def _garbage(self, m: int) -> bytes:
        raw = bytearray(sync.encode(self._said[m]))
        for _ in range(self._random.randrange(1, 4)):
            raw[self._random.randrange(len(raw))] ^= 1 << self._random.randrange(8)
        return bytes(raw)

    def _another(self, m: int) -> bytes:
        """In the name of another server."""
        return self._changed(m, sender=(self._said[m].sender + 1) % self.setup.plan.P)

    def _tell(self, m: int) -> bytes:
        """A balance that nobody asked for, or a question that nobody needs."""
        rules, last = self.setup.terms.rules, self._said[m].seen
        if self._random.random() < 0.5:
            return sync.encode(TellBalance(rules.plan, rules.me, m, last, 1, 7, bytes(8 * rules.length)))
        return sync.encode(AskBalance(rules.plan, rules.me, m, self._said[m].decided, 1, 0))

    def _publication(self, round: int, blob: bytes) -> Publication:
        rules, place = self.setup.terms.rules, (self.setup.me, round, -1)
        sha = hashlib.sha256(blob).digest()
        said = evidence.statement(rules.plan, place, sha)
        return Publication(*place, sha, self.setup.node.identity.sign(said))


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
            observer = begin(config, None)
            LyingClient(ClientSetup.load(config), int(seed), observer=observer).run()
        else:
            of_server = load_server(path)
            observer = begin(of_server, None)
            LyingServer(ServerSetup.load(of_server), int(seed), Path(tap), observer=observer).run()

    return exit_code(run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
