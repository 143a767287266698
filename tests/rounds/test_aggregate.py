"""aggregation = "secure": the ring's sum is the plain one, and the full protocol's, to the last bit."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

import confide.rounds.reference
from confide.base.errors import InputError
from confide.engines.driver import simulate
from confide.graph.graph import Graph
from confide.plans.config import parse
from confide.problems import regression
from confide.rounds.aggregate import SecureSum
from confide.rounds.algorithm import GFL
from confide.rounds.clipping import Clip
from confide.rounds.reference import prepare
from confide.rounds.schemes import scheme
from confide.secure import server
from confide.secure.client import Member
from confide.secure.keys import Identity
from confide.secure.session import Task
from confide.secure.settings import Secure
from confide.testing.secure_sessions import Phase, rehearse
from exploring import more

PROBLEM = regression(units=3, clients=9, samples=20, features=4, seed=3)
GRAPH = Graph.ring(3)
SECURE = Secure(corrupted=0.0, dropped=0.3)
IDENTITIES = [Identity.of(bytes([k]) * 32) for k in range(7)]
PEERS = {k: identity.public for k, identity in enumerate(IDENTITIES)}


def algorithm(**changes: Any) -> GFL:
    settings: dict[str, Any] = {
        "scheme": scheme("homomorphic", 0.1, noise="gaussian"),
        "sampled": 7,
        "step": 0.3,
        "clip": Clip("example", 1.0),
        "arithmetic": "fixed",
        "fraction_bits": 20,
        "aggregation": SECURE,
    }
    return GFL(**{**settings, **changes})


def rounds(alg: GFL, n: int = 4) -> list[Any]:
    reference = prepare(PROBLEM, [GRAPH], alg, n, 5)(0)
    w, found = reference.start(np.zeros((3, PROBLEM.M))), []
    for i in range(1, n + 1):
        found.append(reference.round(i, w))
        w = found[-1].w
    return found


class RealSum(SecureSum):
    """The same sum by a whole session: every key, share and mask, and clients that vanish in any phase."""

    algorithm: GFL
    sessions = 0

    @classmethod
    def of(cls, algorithm: GFL, length: int) -> RealSum:
        found = super().of(algorithm, length)
        found.algorithm, found.words = algorithm, []  # type: ignore[attr-defined]
        return found

    def add(self, update: Any, noise: Any) -> None:
        self.words.append(self.encoding.encode(update, noise).words)  # type: ignore[attr-defined]

    def value(self) -> Any:
        secure, L = self.algorithm.aggregation, self.algorithm.sampled
        assert secure is not None
        active = secure.server == "active"
        members = [Member(k, IDENTITIES[k], PEERS) if active else Member(k) for k in range(L)]
        sent = dict(enumerate(self.words))  # type: ignore[attr-defined]
        lost = range(len(sent), L)
        drops = {k: list(Phase)[:3][k % 3] for k in lost}  # they advertise nothing, share nothing, or send no update
        if len(sent) > secure.parameters(L).quorum:
            drops[0] = Phase.UNMASK  # its update is in the sum already
        nothing = np.zeros_like(self.total)
        task = Task(bytes(32), 0, 1, bytes(32), secure.parameters(L), len(nothing), self.encoding.ring_bits)
        done = rehearse(task, members, {k: sent.get(k, nothing) for k in range(L)}, drops).state
        assert isinstance(done, server.Summed), done
        assert done.survivors == tuple(sent)
        RealSum.sessions += 1
        return self.encoding.decode(done.total)


SETTINGS = list(product((32, 64), ("curious", "active"), (0.0, 0.15), (0.0, 0.01)))
HALF = [case for n, case in enumerate(SETTINGS) if n.bit_count() % 2 == 0]  # any three of the four meet in all ways


@pytest.mark.parametrize(("ring_bits", "kind", "dropout", "sigma"), more(HALF, SETTINGS))
def test_a_simulation_equals_the_full_protocol_bit_for_bit(
    monkeypatch: pytest.MonkeyPatch, ring_bits: int, kind: str, dropout: float, sigma: float
) -> None:
    secure = replace(SECURE, ring_bits=ring_bits, server=kind, sigma=sigma, dropped=0.25)
    alg = algorithm(aggregation=secure, dropout=dropout)
    simulated = rounds(alg)
    before = RealSum.sessions
    monkeypatch.setattr(confide.rounds.reference, "SecureSum", RealSum)
    for mine, real in zip(simulated, rounds(alg), strict=True):
        for field in ("w", "psi", "own", "sent", "participants"):
            np.testing.assert_array_equal(getattr(mine, field), getattr(real, field))
    assert RealSum.sessions > before


def test_secure_equals_plain_for_every_scheme(each_fixed_scheme: Any) -> None:
    secure = rounds(algorithm(scheme=each_fixed_scheme))
    plain = rounds(algorithm(scheme=each_fixed_scheme, aggregation=None))
    for a, b in zip(secure, plain, strict=True):
        np.testing.assert_array_equal(a.w, b.w)


def test_below_the_quorum_a_unit_skips_the_round() -> None:
    alg = algorithm(dropout=0.5)
    quorum = SECURE.parameters(7).quorum
    reference = prepare(PROBLEM, [GRAPH], alg, 30, 5)(0)
    w, skipped = reference.start(np.zeros((3, PROBLEM.M))), 0
    for i in range(1, 31):
        done = reference.round(i, w)
        for p in range(3):
            if len(reference.sample(i, p)) < quorum:
                skipped += 1
                np.testing.assert_array_equal(done.w[p], w[p])  # no update, no noise, no flow on any edge
                np.testing.assert_array_equal(done.sent[p], w[p])
            else:
                assert not np.array_equal(done.sent[p], w[p])
        np.testing.assert_array_equal(done.w.sum(axis=0), done.own.sum(axis=0))  # conserved all the same
        w = done.w
    assert 10 < skipped < 80


def test_noise_inside_the_sum_is_at_least_what_is_promised() -> None:
    """Everybody survives, so psi carries more than sigma: 7 shares, of which quorum - corrupted were counted on."""
    problem = regression(units=3, clients=9, samples=20, features=40, seed=3)
    secure = Secure(corrupted=0.15, dropped=0.25, sigma=0.05, ring_bits=64)
    p = secure.parameters(7)
    assert (p.quorum, p.corrupted) == (4, 1)

    def psi(aggregation: Secure) -> np.ndarray:
        reference = prepare(problem, [GRAPH], algorithm(aggregation=aggregation), 50, 5)(0)
        start = reference.start(np.zeros((3, 40)))
        return np.concatenate([reference.round(i, start).psi for i in range(1, 51)]) * 2.0**-20 / 7

    deviation = float(np.std(psi(secure) - psi(replace(secure, sigma=0.0))))
    assert deviation == pytest.approx(0.05 * np.sqrt(7 / 3), rel=0.05)  # 5 standard errors


def test_config_and_refusals() -> None:
    tree = {
        "rounds": 2,
        "repeats": 1,
        "algorithm": {"clip": "example", "bound": 1.0, "arithmetic": "fixed", "aggregation": "secure"},
        "secure": {"server": "active", "ring_bits": 64, "sigma": 0.1},
    }
    built = parse(tree).build()
    assert built.algorithm.aggregation == Secure(server="active", ring_bits=64, sigma=0.1)
    assert simulate(*built[:3], rounds=2, repeats=1, progress=False).metrics["participants"].sum() > 0
    for change, message in {
        "algorithm.aggregation='plain'": "secure.sigma = 0.1: noise inside the sum needs a secure sum",
        "algorithm.arithmetic='float'": "algorithm.arithmetic = 'float': masks cancel in a ring",
        "secure.ring_bits=16": "secure.ring_bits = 16: must be 32 or 64",
        "secure.server='evil'": "secure.server = 'evil'",
        "secure.dropped=0.9": "secure.dropped = 0.9: of 11 clients 8 must answer",
        "secure.threshold=11": "secure.threshold = 11",
        "algorithm.sampled=2": "algorithm.sampled = 2: with 0 corrupted a sum needs 3 clients or more",
        "secure.sigma=-1.0": "secure.sigma = -1.0",
        "algorithm.bound=1e12": "algorithm.fraction_bits = 24: the sum of 11 clients could wrap",
    }.items():
        with pytest.raises(InputError) as refused:
            parse(tree, [change]).build()
        assert str(refused.value).startswith(message), refused.value
