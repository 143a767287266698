"""Randomness of a rehearsal from a test seed, as `testing.rehearsal` and the reference draw it: nothing is private.

Only with it a process can be told to kill itself at a crash point (docs/design/flows.md, 5), by
CONFIDE_CRASH_AT="POINT:PASSED", where PASSED is how often the point is passed before.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable

import numpy as np

from confide.base.errors import InputError
from confide.base.randomness import Purpose, choose, key, repetition_seed, words
from confide.deploy.store.books import Vector
from confide.deploy.store.store import At, nowhere
from confide.laws.law import GAUSSIAN
from confide.plans.plan import Plan
from confide.rounds.arithmetic import FixedArithmetic
from confide.rounds.noise import NoiseSource, integer_noise

CRASH = "CONFIDE_CRASH_AT"
WARNING = (
    "TEST SEED: noise, samples and batches can be foreseen by anybody. NOTHING HERE IS PRIVATE. Never on real data."
)


def server_noise(seed: int, arithmetic: FixedArithmetic) -> NoiseSource:
    return integer_noise(repetition_seed(seed, 0), arithmetic)


def sample(seed: int, p: int, L: int, K: int) -> Callable[[int], tuple[int, ...]]:
    own = repetition_seed(seed, 0)
    return lambda i: tuple(choose(words(key(own, Purpose.CLIENTS, i, p), L), K).tolist())


def batches(seed: int, p: int, k: int) -> Callable[[int], int]:
    own = repetition_seed(seed, 0)
    return lambda i: key(own, Purpose.BATCHES, i, p, k)


def client_noise(seed: int, plan: Plan, p: int, k: int) -> Callable[[int, int], Vector] | None:
    """None where the plan has no noise inside the sums."""
    a, secure = plan.algorithm, plan.secure
    if secure is None or a.fraction_bits is None or secure.sigma == 0.0:
        return None
    noise, share = server_noise(seed, FixedArithmetic(a.sampled, a.fraction_bits)), secure.share
    return lambda i, size: np.asarray(noise(Purpose.CLIENT_NOISE, (i, p, k), GAUSSIAN, share, size), np.int64)


def release_share(seed: int, p: int) -> Callable[[int, float, int], Vector]:
    """Not of the reference, which has no release."""
    from confide.base.randomness import gaussian

    own = repetition_seed(seed, 0)

    def draw(attempt: int, quanta: float, length: int) -> Vector:
        return np.rint(quanta * gaussian(key(own, Purpose.NETWORK_NOISE, attempt, p), length)).astype(np.int64)

    return draw


def crash_points() -> At:
    """Kills this process where the environment says so."""
    if not (given := os.environ.get(CRASH)):
        return nowhere
    name, colon, count = given.rpartition(":")
    if not (colon and name and count.isdecimal()):
        raise InputError(CRASH, given, "write POINT:PASSED, such as publish.committed:2")
    passed: Counter[str] = Counter()

    def at(point: str) -> None:
        if point == name and passed[point] == int(count):
            os.kill(os.getpid(), signal.SIGKILL)
        passed[point] += 1

    return at
