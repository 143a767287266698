"""The noise of a deployed server: secret integers of the plan's law, and pair noise that two servers derive alike.

A server's own noise comes from the operating system and is never drawn the same twice, so whoever publishes stores the
message before it leaves. Pair noise is a function of the edge's X25519 secret, the plan, the edge and the round: both
ends get the same integers without a word between them, a restarted end gets them again, and nobody else gets them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from confide.base.errors import InputError
from confide.base.randomness import Purpose
from confide.base.validation import positive
from confide.laws.law import Law
from confide.laws.secret_stream import SecretStream
from confide.rounds.arithmetic import State
from confide.rounds.noise import NoiseSource
from confide.secure.keys import Secret, derive

PAIR_NOISE: Final = b"confide pair noise"


def secret_noise(
    quantum: float,
    edge_secrets: Mapping[tuple[int, int], Secret],
    plan: bytes,
    stream: SecretStream | None = None,
) -> NoiseSource:
    """Noise in whole quanta: the discrete law with the scale of the continuous one of standard deviation sigma.

    Args:
        quantum: of a server's state.
        edge_secrets: for "pairwise", the secret of each edge (a, b), a < b, of this server.
        plan: the plan's hash.
        stream: of the server's own noise; seeded by the operating system unless a test gives one.
    """
    positive("quantum", quantum)
    if len(plan) != 32:
        raise InputError("plan", f"{len(plan)} bytes", "must be a hash of 32 bytes")
    own = SecretStream() if stream is None else stream

    def source(purpose: Purpose, ids: tuple[int, ...], law: Law, sigma: float, size: int) -> State:
        if purpose in (Purpose.SERVER_NOISE, Purpose.LINK_NOISE):
            return law.discrete.integers(own, sigma, quantum, size)
        if purpose != Purpose.PAIR_NOISE:
            raise InputError("purpose", purpose.name, "a deployed server draws SERVER_NOISE, LINK_NOISE or PAIR_NOISE")
        i, a, b = ids
        if (a, b) not in edge_secrets:
            raise InputError("edge_secrets", (a, b), "has no secret for this edge; give one for (a, b) with a < b")
        key = derive(edge_secrets[a, b], plan, PAIR_NOISE, a, b, i)
        return law.discrete.integers(SecretStream(key), sigma, quantum, size)

    return source
