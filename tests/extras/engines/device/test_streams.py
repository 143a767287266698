"""Word for word the streams of `confide.base.randomness` and `confide.secure.secret`."""

from __future__ import annotations

import numpy as np
import pytest

from confide.base import randomness
from confide.base.randomness import Purpose
from confide.engines.device import streams
from confide.engines.device.backend import Backend
from confide.secure.secret import RunSecret

SEEDS = [0, 7, 2**63 - 1]


def seeded(b: Backend) -> streams.Streams:
    return streams.Streams(b.to_device(streams.roots_of(SEEDS)), b.to_device(np.zeros((3, 0, 8), np.int32)), False)


def unsigned(b: Backend, x: object) -> np.ndarray:
    return b.to_numpy(x).view(np.uint64)


def test_keys_and_words(exact: Backend) -> None:
    with exact.exact():
        k = exact.to_device(np.array([[5, 0], [1, 2**40], [9, 3]]))
        keys = seeded(exact).key(exact, Purpose.BATCHES, 4, k)
        found = unsigned(exact, streams.word(exact, keys[..., None], exact.arange(6)))
    for r, seed in enumerate(SEEDS):
        for n, number in enumerate(np.asarray(exact.to_numpy(k))[r].tolist()):
            expected = randomness.words(randomness.key(seed, Purpose.BATCHES, 4, number), 6)
            assert np.array_equal(found[r, n], expected)


@pytest.mark.parametrize("size", [1, 4, 5])
@pytest.mark.parametrize("law", ["laplace", "gaussian"])
def test_noise(exact: Backend, law: str, size: int) -> None:
    with exact.exact():
        p = exact.arange(3)[None]
        drawn = seeded(exact).noise(
            exact, streams.LAWS.index(getattr(streams, law)), Purpose.SERVER_NOISE, (8, p), size
        )
        found = exact.to_numpy(drawn)
    for r, seed in enumerate(SEEDS):
        for at in range(3):
            expected = getattr(randomness, law)(randomness.key(seed, Purpose.SERVER_NOISE, 8, at), size)
            np.testing.assert_allclose(found[r, at], expected, rtol=1e-13)


@pytest.mark.parametrize("picks", [1, 5, 40])
def test_choice_without_replacement(exact: Backend, picks: int) -> None:
    sizes = np.array([[picks, picks + 1], [picks + 7, 3 * picks], [1000, 10**6]])
    with exact.exact():
        keys = seeded(exact).key(exact, Purpose.CLIENTS, 3, exact.arange(2)[None])
        w = streams.word(exact, keys[..., None], exact.arange(picks))
        found = exact.to_numpy(streams.choose(exact, w, exact.to_device(sizes)[..., None]))
    for r, seed in enumerate(SEEDS):
        for p in range(2):
            w = randomness.words(randomness.key(seed, Purpose.CLIENTS, 3, p), picks)
            assert np.array_equal(found[r, p], randomness.choose(w, int(sizes[r, p])))


def test_below_and_chances(exact: Backend) -> None:
    w = randomness.words(11, 500)
    edges = np.array([0, 2**12 - 1, 2**12, 2**63, 2**64 - 1], np.uint64)
    w = np.concatenate([w, edges])
    with exact.exact():
        given = exact.to_device(w.view(np.int64))
        assert np.array_equal(exact.to_numpy(streams.below(exact, given, 7)), randomness.below(w, 7))
        for p in (0.0, 2.0**-53, 1e-12, 0.3, 0.5, 1.0 - 2.0**-53, 1.0):
            found = exact.to_numpy(streams.happens(exact, given, p))
            assert np.array_equal(found, randomness.uniform(w) < p), p


@pytest.mark.parametrize("count", [1, 8, 21])
def test_secret_streams(exact: Backend, count: int) -> None:
    own = RunSecret(draws=True).streams(0)
    with exact.exact():
        keys = exact.to_device(own.table().view(np.int32)[None])
        source = streams.Streams(exact.to_device(streams.roots_of([1])), keys, True)
        p = exact.arange(3)[None]
        found = unsigned(exact, streams.keystream(exact, source.secret(Purpose.LINK_NOISE, 2), (6, p, p + 1), count))
        key = unsigned(exact, source.key(exact, Purpose.CLIENTS, 6, p))
        whole = unsigned(exact, streams.keystream(exact, source.secret(Purpose.NETWORK_NOISE, 1), (6,), count))
    for at in range(3):
        assert np.array_equal(found[0, at], own.words(Purpose.LINK_NOISE, (6, at, at + 1), count))
        assert key[0, at] == own.key(Purpose.CLIENTS, (6, at))
    assert np.array_equal(whole[0], own.words(Purpose.NETWORK_NOISE, (6,), count))


def test_float32_draws_are_those_of_float64_to_its_precision(exact: Backend) -> None:
    from confide.engines.device.backend import backend

    narrow = backend(exact.name, "cpu", np.float32)
    w = randomness.words(5, 2000)
    with narrow.exact():
        given = narrow.to_device(w.view(np.int64))
        for law, draw in enumerate(streams.LAWS):
            found = narrow.to_numpy(draw(narrow, given, 2000))
            assert found.dtype == np.float32
            expected = (randomness.laplace_of, randomness.gaussian_of)[law](w, 2000)
            np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6)
