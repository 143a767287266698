"""`confide bench secure`: a whole session with dropouts against what no such protocol can avoid, in one process.

The floor of a party is the keystream of its masks from the fastest cipher, one addition in the ring for every word of
them (and of every update that a server takes in), and its key agreements; each is timed between the turns of the
session itself, alone and in pieces that stay in the cache. All times are processor time of this process, which works in
one thread: what else the machine does then matters less.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES, ChaCha20
from cryptography.hazmat.primitives.ciphers.modes import CTR

from confide.base.errors import InputError
from confide.base.validation import number, whole
from confide.secure import server
from confide.secure.client import Member
from confide.secure.encoding import Encoding, signed
from confide.secure.keys import Identity
from confide.secure.messages import SEALED_BYTES
from confide.secure.parameters import choose
from confide.secure.session import Session, Task
from confide.secure.shares import SHARE_BYTES
from confide.testing.secure_sessions import Outcome, Phase, rehearse

ASSUMED: Final = 0.05  # fraction corrupted, and the least fraction dropped, that the parameters allow for
BOUND: Final = 0.01
TIMED: Final = 1 << 22  # bytes or words of a primitive in one timing
SAMPLES: Final = 20  # timings of the primitives in a session


def bench(
    clients: int,
    length: int,
    dropout: float,
    kind: str = "curious",
    watch: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """One session in which a fraction of the clients shares its secrets and then sends no update: the dearest way."""
    whole("clients", clients, 3, 10_000)
    whole("length", length, 1, 10**8)
    number("dropout", dropout, 0.0, 0.99)
    parameters = choose(clients, ASSUMED, max(dropout, ASSUMED), kind)
    task = Task(os.urandom(32), 0, 1, os.urandom(32), parameters, length)
    identities = [Identity.of(os.urandom(32)) for _ in range(clients if kind == "active" else 0)]
    peers = {k: identity.public for k, identity in enumerate(identities)}
    members = [Member(k, identities[k] if identities else None, peers) for k in range(clients)]
    encoding = _encoding(clients)
    update = np.random.default_rng(0).uniform(-BOUND, BOUND, length)
    encode_s, words = _timed(lambda: encoding.encode(update).words)
    dead = range(round(dropout * clients))

    primitives = _Primitives()
    turn, every = 0, max(1, clients * len(Phase) // SAMPLES)

    def turned() -> None:
        nonlocal turn
        turn += 1
        if turn % every == 0:
            primitives.sample()
        watch()

    outcome = rehearse(task, members, dict.fromkeys(range(clients), words), dict.fromkeys(dead, Phase.MASK), turned)
    primitives.sample()
    if not isinstance(outcome.state, server.Summed):
        raise InputError("dropout", dropout, f"the session ended without a sum: {outcome.state}")
    wanted = signed(words) * (clients - len(dead))
    exact = bool(np.array_equal(encoding.decode(outcome.state.total), wanted))
    return _figures(task, outcome, primitives, encode_s, len(dead)) | {"exact": exact}


def _encoding(clients: int) -> Encoding:
    """As fine as the 32-bit ring allows for this many clients."""
    for fraction_bits in range(30, -1, -1):
        with suppress(InputError):
            return Encoding(32, fraction_bits, BOUND, clients)
    raise AssertionError("a quantum of 1 always fits")


def _figures(task: Task, outcome: Outcome, primitives: _Primitives, encode_s: float, dead: int) -> dict[str, Any]:
    p, n = task.parameters, task.parameters.clients
    survivors = range(dead, n)
    session = next(s for s in (getattr(state, "session", None) for state in outcome.clients.values()) if s)
    agreements = _unavoidable_agreements(session, dead)
    client_s = encode_s + statistics.median(outcome.client_seconds[k] for k in survivors)
    client_floor = primitives.seconds((p.degree + 1) * task.length, 2 * p.degree)
    server_masks = len(survivors) + agreements
    server_floor = primitives.seconds(server_masks * task.length, agreements)
    server_floor += len(survivors) * task.length * primitives.addition
    sent = statistics.mean(outcome.sent[k] for k in survivors)
    got = statistics.mean(outcome.got[k] for k in survivors)
    unavoidable = task.length * task.dtype.itemsize + 2 * p.degree * SEALED_BYTES + p.holders * SHARE_BYTES
    return {
        "clients": n,
        "length": task.length,
        "dropped": dead,
        "server": p.server,
        "degree": p.degree,
        "threshold": p.threshold,
        "cipher": primitives.cipher,
        "client_s": client_s,
        "client_floor_s": client_floor,
        "client_ratio": client_s / client_floor,
        "server_s": outcome.server_seconds,
        "server_floor_s": server_floor,
        "server_ratio": outcome.server_seconds / server_floor,
        "bytes_per_client": sent + got,
        "bytes_floor": unavoidable,
        "bytes_ratio": (sent + got) / unavoidable,
        "total_s": sum(outcome.client_seconds.values()) + outcome.server_seconds,
    }


def _unavoidable_agreements(session: Session, dead: int) -> int:
    """Masks that survivors hold with the dead: the server must find each one."""
    return sum(sum(j >= dead for j in session.neighbours(k)) for k in range(dead))


class _Primitives:
    """Seconds for a word of keystream, a word of addition and one agreement: medians of samples."""

    def __init__(self) -> None:
        self._zeros = np.zeros(TIMED, np.uint8)
        self._out = np.empty(TIMED, np.uint8)
        self._own = X25519PrivateKey.generate()
        self._other = X25519PrivateKey.generate().public_key()
        self._samples: dict[str, list[float]] = {name: [] for name in ("AES-256-CTR", "ChaCha20", "add", "agree")}

    def sample(self) -> None:
        aes = Cipher(AES(bytes(32)), CTR(bytes(16))).encryptor()
        chacha = Cipher(ChaCha20(bytes(32), bytes(16)), None).encryptor()
        for name, cipher in (("AES-256-CTR", aes), ("ChaCha20", chacha)):
            best = min(self._keystream(cipher, piece) for piece in (1 << 17, 1 << 18, TIMED))
            self._samples[name].append(best / (TIMED // 4))
        x, y = self._out[: 1 << 17].view(np.uint32), self._zeros[: 1 << 17].view(np.uint32)
        seconds, _ = _timed(lambda: [np.add(x, y, out=x) for _ in range(TIMED // len(x))])
        self._samples["add"].append(seconds / TIMED)
        seconds, _ = _timed(lambda: [self._own.exchange(self._other) for _ in range(20)])
        self._samples["agree"].append(seconds / 20)

    def _keystream(self, cipher: Any, piece: int) -> float:
        zeros, out = self._zeros[:piece].data, self._out[:piece].data
        return _timed(lambda: [cipher.update_into(zeros, out) for _ in range(TIMED // piece)])[0]

    def _median(self, name: str) -> float:
        return statistics.median(self._samples[name])

    @property
    def cipher(self) -> str:
        return min(("AES-256-CTR", "ChaCha20"), key=self._median)

    @property
    def addition(self) -> float:
        return self._median("add")

    def seconds(self, mask_words: int, agreements: int) -> float:
        return mask_words * (self._median(self.cipher) + self.addition) + agreements * self._median("agree")


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.process_time()
    result = work()
    return time.process_time() - begun, result
