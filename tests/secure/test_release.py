"""The sum over servers: exact modulo 2^64, its noise drawn once an attempt, and all servers or nothing."""

from __future__ import annotations

import numpy as np
import pytest

from confide.base.errors import InputError
from confide.laws.noise import discrete_gaussian
from confide.laws.secret_stream import SecretStream
from confide.secure import client, server
from confide.secure.client import Member
from confide.secure.encoding import signed, words_of
from confide.secure.release import RING_BITS, Terms
from confide.secure.session import RefusedError, Why
from confide.testing.rehearsal import server_identity
from confide.testing.secure_sessions import Phase, rehearse

PLAN, WHAT = bytes(range(32)), bytes(32)
PEERS = {p: server_identity(p).public for p in range(4)}


def terms(P: int = 4, **changes: object) -> Terms:
    return Terms(**{"servers": P, "sigma": 0.01, "quantum": 2.0**-20, "length": 5, **changes})  # type: ignore[arg-type]


def contribution(t: Terms, state: np.ndarray, stream: SecretStream) -> np.ndarray:
    """What a server sends, as `deploy.machines.release` makes it."""
    return words_of(state, RING_BITS) + words_of(discrete_gaussian(stream, t.share_quanta, t.length), RING_BITS)


def session(t: Terms, words: list, attempt: int = 1, drops: dict | None = None) -> server.State:
    members = [Member(p, server_identity(p), PEERS) for p in range(t.servers)]
    return rehearse(t.task(PLAN, attempt, WHAT), members, dict(enumerate(words)), drops).state


def test_the_sum_of_states_and_shares_is_exact_although_single_words_wrap() -> None:
    t = terms()
    rng = np.random.default_rng(1)
    states = rng.integers(-(2**63), 2**63 - 1, (4, 5), dtype=np.int64)
    states[3] = (1000 - states[:3].astype(object).sum(axis=0) + 2**63) % 2**64 - 2**63  # the sum is 1000 modulo 2^64
    sent = [contribution(t, state, SecretStream(bytes([p]) * 32)) for p, state in enumerate(states)]
    shares = sum(signed(w - words_of(s, 64)).astype(object) for w, s in zip(sent, states, strict=True))
    done = session(t, sent)
    assert isinstance(done, server.Summed)
    np.testing.assert_array_equal(signed(done.total).astype(object), 1000 + shares)
    np.testing.assert_allclose(t.mean(done.total), (1000 + shares).astype(float) * 2.0**-20 / 4)


@pytest.mark.parametrize("colluders", [0, 1, 3])
def test_honest_shares_put_sigma_on_the_mean(colluders: int) -> None:
    t = terms(length=20_000, colluders=colluders)
    still = np.zeros(t.length, np.int64)
    streams = [SecretStream(bytes([p]) * 32) for p in range(t.servers - colluders)]
    honest = [contribution(t, still, stream) for stream in streams]
    deviation = float(np.std(sum(signed(w) for w in honest) * t.quantum / t.servers))
    assert deviation == pytest.approx(t.sigma, rel=0.03)  # 6 standard errors


@pytest.mark.parametrize("phase", list(Phase)[:3])
def test_all_servers_or_nothing(phase: Phase) -> None:
    words = [np.arange(5, dtype="<u8")] * 4
    ended = session(terms(), words, drops={2: phase})
    assert isinstance(ended, server.Aborted)
    assert isinstance(session(terms(), words, drops={2: Phase.UNMASK}), server.Aborted)
    assert isinstance(session(terms(), words), server.Summed)


def test_an_attempt_is_answered_once() -> None:
    t, member = terms(), Member(0, server_identity(0), PEERS)
    words = np.zeros(5, "<u8")
    with pytest.raises(RefusedError, match=str(Why.ANSWERED_BEFORE)):
        client.start(t.task(PLAN, 1, WHAT), member, words, answered=1)
    client.start(t.task(PLAN, 2, WHAT), member, words, answered=1)


def test_two_servers_may_release() -> None:
    t = terms(2)
    done = session(t, [np.full(5, 1, "<u8"), np.full(5, 2, "<u8")])
    assert isinstance(done, server.Summed)
    assert done.total.tolist() == [3] * 5


def test_only_the_sum_must_fit() -> None:
    t = terms(quantum=1.0, sigma=1.0)  # a share is at most 41 quanta
    t.check_fits(2.0**60)
    with pytest.raises(InputError, match="could wrap"):
        t.check_fits(2.0**61)
    for bad in ({"servers": 1}, {"colluders": 4}, {"sigma": 0.0}, {"length": 0}):
        with pytest.raises(InputError):
            terms(**bad)


@pytest.mark.parametrize("P", [2, 3, 4, 7, 12])
def test_fewer_servers_hide_no_less_from_anybody_who_is_priced(P: int) -> None:
    """Two known shares of four, sized for one: after a removal the statement's number was 3/4 of the truth."""
    for C in range(P):
        for known in range(P):
            whole = terms(P, colluders=C, known=known)
            for n in range(max(2, C + 1), P + 1):
                left = whole.left(n)
                assert (left.servers, left.colluders) == (n, C)
                for k in range(max(C, known) + 1):
                    before = (P - k) * whole.share_quanta**2
                    after = (n - min(k, n - 1)) * left.share_quanta**2
                    assert after >= before * (1 - 1e-12), (C, known, n, k)
            assert whole.left(P) == whole


def test_wider_shares_of_fewer_servers_fit_too() -> None:
    whole = terms(4, colluders=0, known=2, sigma=1.0, quantum=2.0**-52)
    noise = max(n * whole.left(n).share_quanta for n in (2, 3, 4))
    room = ((2**63 - 1) / noise - 20.0) * noise / 4  # what is left for each state
    assert noise > 1.05 * 4 * whole.share_quanta
    whole.check_fits(0.99 * room * whole.quantum)
    with pytest.raises(InputError, match="could wrap"):
        whole.check_fits(1.01 * room * whole.quantum)
