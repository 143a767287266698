"""The secret of a run: the cipher's words in NumPy and in the kernel, and nothing that shows them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from confide.base.randomness import Purpose, key, stream, words
from confide.engines import kernel
from confide.engines.compiled import CompiledEngine
from confide.engines.driver import Engine
from confide.engines.plain import PlainEngine
from confide.engines.recording import Recording
from confide.graph.graph import Graph
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL, Failures
from confide.rounds.arithmetic import State
from confide.rounds.clipping import Clip
from confide.rounds.reference import prepare
from confide.rounds.schemes import Scheme, scheme
from confide.secure.keys import Secret
from confide.secure.secret import RunSecret, Streams

Maker = Callable[..., Problem]
GRAPH = Graph.random(4, 0.6, seed=1)
SMALL = {"step": 0.3, "sampled": 3, "local_steps": (1, 3), "batch": (1, 4)}
NOISES = (Purpose.SERVER_NOISE, Purpose.LINK_NOISE, Purpose.CLIENT_NOISE)


def test_a_stream_is_the_ciphers_keystream() -> None:
    own = Secret(bytes(range(32)))
    found = Streams({Purpose.LINK_NOISE: own}).words(Purpose.LINK_NOISE, (7, 2, 5), 20)
    nonce = bytes([0, 0, 0, 0, 7, 0, 0, 0, 2, 0, 0, 0, 5, 0, 0, 0])
    expected = Cipher(ChaCha20(bytes(own), nonce), mode=None).encryptor().update(bytes(160))
    assert found.tobytes() == expected


@pytest.mark.parametrize("count", [1, 2, 8, 9, 100, 1001])
def test_the_kernel_computes_the_same_words(count: int) -> None:
    streams = RunSecret().streams(3)
    scratch = np.empty((2, 16), np.uint32), np.empty(count + 8, np.uint64)
    source = kernel.Source(np.uint64(0), True, True, streams.table(), *scratch)
    for purpose, ids in product(NOISES, ((1, 0, 0), (2**32 - 1, 5, 2**31), (12, 0, 7))):
        kernel.keystream(source, int(purpose), *ids, count)
        assert np.array_equal(source.words[:count], streams.words(purpose, ids, count))
    assert kernel.draw_key(source, np.uint64(9), int(Purpose.BATCHES), 4, 5, 6) == streams.key(
        Purpose.BATCHES, (4, 5, 6)
    )


def test_streams_of_other_names_repetitions_and_runs_share_no_word() -> None:
    one, other = RunSecret(), RunSecret()
    names = [(purpose, ids) for purpose in Purpose for ids in ((), (1,), (2,), (1, 1), (1, 0, 1))]
    found = [s.words(*name, 8) for s in (one.streams(0), one.streams(1), other.streams(0)) for name in names]
    assert len(set(np.concatenate(found).tolist())) == 8 * len(found)
    again = [one.streams(1).words(Purpose.BATCHES, (1, 2, 3), 8) for _ in range(2)]
    assert np.array_equal(*again)


def test_a_seed_or_streams_are_asked_in_the_same_way() -> None:
    streams = RunSecret().streams(0)
    assert key(streams, Purpose.CLIENTS, 1, 2) == streams.key(Purpose.CLIENTS, (1, 2))
    assert np.array_equal(stream(5, Purpose.CLIENTS, (1, 2), 4), words(key(5, Purpose.CLIENTS, 1, 2), 4))
    assert np.array_equal(stream(streams, Purpose.CLIENTS, (1, 2), 4), streams.words(Purpose.CLIENTS, (1, 2), 4))


def test_a_secret_is_neither_shown_nor_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("confide.secure.secret.os.urandom", lambda n: b"\xab" * n)
    secret = RunSecret()
    for x in (secret, secret.streams(0)):
        assert "ab" not in f"{x!r}{x}{x:}".replace("abc", "").lower()
        assert not hasattr(x, "__dict__")
        for leak in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="neither copied nor pickled"):
                leak(x)


# ---- engines


def course(engine: Engine, problem: Problem, rounds: int, repetitions: int = 1, threads: int = 1) -> np.ndarray:
    """The last models of every repetition, computed by so many threads."""
    out = Recording.empty(repetitions, rounds, problem.M, rounds)
    states: list[State] = [engine.start() for _ in range(repetitions)]
    with ThreadPoolExecutor(threads) as pool:
        assert not any(pool.map(lambda r: engine.advance(r, states[r], 1, rounds, out), range(repetitions)))
    return np.stack([engine.models(w) for w in states])


@pytest.mark.parametrize("draws", [False, True])
@pytest.mark.parametrize("law", ["laplace", "gaussian"])
def test_both_engines_draw_alike_from_one_secret(ragged: Maker, each_scheme: Scheme, law: str, draws: bool) -> None:
    central = each_scheme.exchange == "average"
    failures = Failures() if central else Failures(link=0.3, unit=0.2)
    alg = GFL(replace(each_scheme, law=law), **SMALL, dropout=0.2, failures=failures)
    for problem in (ragged(M=2), ragged(M=3), ragged(M=17), ragged(M=3, model="softmax")):
        secret = RunSecret(draws)
        one, other = (
            course(make(problem, [GRAPH], alg, 5, 3, secret=secret), problem, 5)
            for make in (CompiledEngine, PlainEngine)
        )
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)
        assert np.abs(one).max() > 1e-3


def test_client_noise_draws_alike_too(ragged: Maker) -> None:
    problem, secret = ragged(M=3), RunSecret()
    alg = GFL(scheme("per-link", 0.3, sigma_client=0.4), **SMALL)
    made = [make(problem, [GRAPH], alg, 4, 3, secret=secret) for make in (CompiledEngine, PlainEngine)]
    one, other = (course(engine, problem, 4) for engine in made)
    np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)
    assert not np.allclose(one, course(CompiledEngine(problem, [GRAPH], alg, 4, 3, secret=RunSecret()), problem, 4))


def test_threads_keep_the_bits(ragged: Maker) -> None:
    problem, secret = ragged(), RunSecret(draws=True)
    engine = CompiledEngine(problem, [GRAPH], GFL(scheme("homomorphic", 0.3), **SMALL), 20, 3, secret=secret)
    one, two = (course(engine, problem, 20, repetitions=6, threads=n) for n in (1, 2))
    assert np.array_equal(one, two)
    assert len(np.unique(one[:, 0, 0])) == 6


def test_a_replayed_round_keeps_its_bits(ragged: Maker) -> None:
    problem, secret = ragged(), RunSecret(draws=True)
    for arithmetic in ("float", "fixed"):
        alg = GFL(scheme("homomorphic", 0.3), **SMALL, clip=Clip("update", 1.0), arithmetic=arithmetic)
        r = prepare(problem, [GRAPH], alg, 5, 3, secret=secret)(0)
        w = r.start(np.zeros((4, 2)))
        assert np.array_equal(r.round(3, w).w, r.round(3, w).w)
        other = prepare(problem, [GRAPH], alg, 5, 3, secret=RunSecret(draws=True))(0)
        assert not np.array_equal(r.round(3, w).w, other.round(3, w).w)


def test_draws_stay_the_seeds_unless_a_price_rests_on_them(ragged: Maker) -> None:
    problem, alg = ragged(), GFL(scheme("homomorphic", 0.3), **SMALL, dropout=0.3)
    seeded, noisy, hidden = (
        [prepare(problem, [GRAPH], alg, 9, 3, secret=s)(0).sample(i, p) for i in range(1, 40) for p in range(4)]
        for s in (None, RunSecret(), RunSecret(draws=True))
    )
    assert seeded == noisy
    assert seeded != hidden
