"""`confide bench secure`: a whole session with dropouts against what no such protocol can avoid, in one process.

The floor of a party is the keystream of its masks from the fastest cipher, one addition in the ring for every word of
them (and of every update that a server takes in), and its key agreements. These are timed alone, in pieces that stay in
the cache, right before and after the work that they are compared with: after each client's masking, for that client,
and around the server's unmasking, which is done several times. A ratio is the median of those of the clients, or of
these times. All times are processor time of this process, which works in one thread: what else the machine does then
matters less.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES, ChaCha20
from cryptography.hazmat.primitives.ciphers.modes import CTR

from confide.base.arrays import Floats
from confide.base.errors import InputError
from confide.base.validation import number, whole
from confide.benchmarks.timing import Turns, all_told
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
TIMED: Final = 1 << 24  # bytes or words of a primitive in one timing
PIECES: Final = (1 << 17, 1 << 18, 1 << 22)  # bytes that a cipher is asked for at once
CLIENTS_TIMED: Final = 100  # at most about so many
UNMASKINGS: Final = 7


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
    words = encoding.encode(update).words
    dead = range(round(dropout * clients))

    beside = _Beside(encoding, update, clients, watch)
    outcome = rehearse(
        task, members, dict.fromkeys(range(clients), words), dict.fromkeys(dead, Phase.MASK), beside.turned
    )
    if not isinstance(outcome.state, server.Summed):
        raise InputError("dropout", dropout, f"the session ended without a sum: {outcome.state}")
    wanted = signed(words) * (clients - len(dead))
    exact = bool(np.array_equal(encoding.decode(outcome.state.total), wanted))
    unmasked = beside.unmask()

    p, floor, survivors = parameters, beside.floor, range(len(dead), clients)
    session = next(s for s in (getattr(state, "session", None) for state in outcome.clients.values()) if s)
    agreements = _unavoidable_agreements(session, len(dead))
    server_words = (len(survivors) + agreements) * length
    taking_in = len(survivors) * length * floor.medians["add"]
    seen = [k for k in survivors if k in beside.sample_after]
    times = {
        "client": Turns(
            {
                "work": [beside.encode_s[k] + outcome.client_seconds[k] for k in seen],
                "floor": [floor.around(beside.sample_after[k], (p.degree + 1) * length, 2 * p.degree) for k in seen],
            }
        ),
        "server": Turns(
            {
                "work": [beside.server_seconds + took for took in unmasked.values()],
                "floor": [taking_in + floor.around(n, server_words, agreements) for n in unmasked],
            }
        ),
    }
    sent = statistics.mean(outcome.sent[k] for k in survivors)
    got = statistics.mean(outcome.got[k] for k in survivors)
    unavoidable = length * task.dtype.itemsize + 2 * p.degree * SEALED_BYTES + p.holders * SHARE_BYTES
    return {
        "clients": clients,
        "length": length,
        "dropped": len(dead),
        "server": p.server,
        "degree": p.degree,
        "threshold": p.threshold,
        "cipher": floor.cipher,
        **{f"{side}_s": turns.median("work") for side, turns in times.items()},
        **{f"{side}_floor_s": turns.median("floor") for side, turns in times.items()},
        **all_told({f"{side}_ratio": turns.ratios("work", "floor") for side, turns in times.items()}),
        "bytes_per_client": sent + got,
        "bytes_floor": unavoidable,
        "bytes_ratio": (sent + got) / unavoidable,
        "total_s": sum(outcome.client_seconds.values()) + outcome.server_seconds,
        "exact": exact,
    }


def _encoding(clients: int) -> Encoding:
    """As fine as the 32-bit ring allows for this many clients."""
    for fraction_bits in range(30, -1, -1):
        with suppress(InputError):
            return Encoding(32, fraction_bits, BOUND, clients)
    raise AssertionError("a quantum of 1 always fits")


def _unavoidable_agreements(session: Session, dead: int) -> int:
    """Masks that survivors hold with the dead: the server must find each one."""
    return sum(sum(j >= dead for j in session.neighbours(k)) for k in range(dead))


class _Beside:
    """What is timed while a session goes on, beside it.

    Attributes:
        encode_s: seconds of encoding an update, right after a client's masking.
        sample_after: the number of the floor's sample then.
        server_seconds: the server's before it unmasks.
    """

    def __init__(self, encoding: Encoding, update: Floats, clients: int, watch: Callable[[], None]) -> None:
        self.floor = _Floor()
        self.floor.sample()
        self.encode_s: dict[int, float] = {}
        self.sample_after: dict[int, int] = {}
        self.server_seconds = 0.0
        self._answered: server.State | None = None
        self._spoken: Counter[int] = Counter()
        self._encode, self._watch = partial(encoding.encode, update), watch
        self._every = max(1, clients // CLIENTS_TIMED)

    def turned(self, me: int, so_far: Outcome) -> None:
        self._spoken[me] += 1
        if self._spoken[me] == Phase.MASK + 1 and me % self._every == 0:
            self.encode_s[me] = _timed(self._encode)
            self.sample_after[me] = self.floor.sample()
        self._answered, self.server_seconds = so_far.state, so_far.server_seconds
        self._watch()

    def unmask(self) -> dict[int, float]:
        """Seconds of unmasking, once more and again, by the number of the floor's sample after it."""
        assert self._answered is not None  # noqa: S101 - somebody spoke
        found = {}
        self.floor.sample()
        for _ in range(UNMASKINGS):
            took = _timed(partial(server.close, self._answered))
            found[self.floor.sample()] = took
            self._watch()
        return found


class _Floor:
    """Seconds of a word of keystream, of one addition and of one agreement, in samples that are numbered from 0."""

    def __init__(self) -> None:
        self._zeros = np.zeros(max(PIECES), np.uint8)
        self._out = np.empty(max(PIECES), np.uint8)
        self._own = X25519PrivateKey.generate()
        self._other = X25519PrivateKey.generate().public_key()
        self._samples: dict[str, list[float]] = defaultdict(list)

    def sample(self) -> int:
        """Its number."""
        aes = Cipher(AES(bytes(32)), CTR(bytes(16))).encryptor()
        chacha = Cipher(ChaCha20(bytes(32), bytes(16)), None).encryptor()
        for name, cipher in (("AES-256-CTR", aes), ("ChaCha20", chacha)):
            for piece in PIECES:
                self._samples[f"{name} in pieces of {piece}"].append(self._keystream(cipher, piece) / (TIMED // 4))
        x, y = (array[: PIECES[0]].view(np.uint32) for array in (self._out, self._zeros))
        added = _timed(lambda: [np.add(x, y, out=x) for _ in range(TIMED // len(x))])
        self._samples["add"].append(added / TIMED)
        agreed = _timed(lambda: [self._own.exchange(self._other) for _ in range(20)])
        self._samples["agree"].append(agreed / 20)
        return len(self._samples["agree"]) - 1

    def _keystream(self, cipher: Any, piece: int) -> float:
        zeros, out = self._zeros[:piece].data, self._out[:piece].data
        return _timed(lambda: [cipher.update_into(zeros, out) for _ in range(TIMED // piece)])

    @property
    def medians(self) -> dict[str, float]:
        return {name: statistics.median(taken) for name, taken in self._samples.items()}

    @property
    def _fastest(self) -> str:
        medians = self.medians
        return min((name for name in medians if " in pieces of " in name), key=medians.__getitem__)

    @property
    def cipher(self) -> str:
        return self._fastest.partition(" ")[0]

    def around(self, n: int, mask_words: int, agreements: int) -> float:
        """Seconds of so many words and agreements, by the samples n - 1 and n."""
        cipher, add, agree = (sum(self._samples[name][n - 1 : n + 1]) / 2 for name in (self._fastest, "add", "agree"))
        return mask_words * (cipher + add) + agreements * agree


def _timed(work: Callable[[], Any]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun
