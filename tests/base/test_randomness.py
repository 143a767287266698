"""Streams: published words, exact choices, and noise laws that reject their neighbours."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from confide.base.randomness import (
    MASK,
    Purpose,
    below,
    choose,
    fold,
    gaussian,
    generator,
    key,
    laplace,
    mix,
    repetition_seed,
    uniform,
    words,
)
from exploring import more

ACCEPT, REJECT = 1e-3, 1e-6
DRAWS = 50_000
LAWS = {"laplace": (laplace, stats.laplace(scale=math.sqrt(0.5))), "gaussian": (gaussian, stats.norm())}


# ---- words


@pytest.mark.parametrize(
    ("seed", "published"),
    [
        (0, [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC]),
        (1234567, [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]),
    ],
)
def test_words_are_the_published_output_of_splitmix64(seed: int, published: list[int]) -> None:
    assert words(seed, 4).tolist() == published


@given(st.integers(0, MASK), st.integers(0, 20))
def test_a_word_depends_on_the_key_and_its_place_alone(k: int, n: int) -> None:
    w = words(k, n)
    assert w.dtype == np.uint64
    assert w.shape == (n,)
    assert w.tolist() == [mix((k + (i + 1) * 0x9E3779B97F4A7C15) & MASK) for i in range(n)]
    assert words(k, n + 7)[:n].tolist() == w.tolist()


def test_bytes_and_bits_of_the_words_are_uniform() -> None:
    w = words(key(3, Purpose.SERVER_NOISE, 1, 2), DRAWS)
    octets = w.view(np.uint8).reshape(-1, 8)
    for place in range(8):
        assert stats.chisquare(np.bincount(octets[:, place], minlength=256)).pvalue > ACCEPT
    ones = np.unpackbits(octets, axis=1).sum(axis=0, dtype=np.int64)
    z = (ones - DRAWS / 2) / math.sqrt(DRAWS / 4)
    assert stats.kstest(z, "norm").pvalue > ACCEPT
    assert np.abs(z).max() < 4.5


def test_the_first_words_of_neighbouring_keys_are_uniform() -> None:
    """A round draws a few words from each of very many keys."""
    first = np.array([words(key(0, Purpose.CLIENTS, i, p), 2) for i in range(1, 200) for p in range(20)])
    for column in first.T:
        assert stats.kstest(uniform(column), "uniform").pvalue > ACCEPT
        assert stats.chisquare(np.bincount((column & np.uint64(63)).astype(int), minlength=64)).pvalue > ACCEPT


# ---- keys


def test_no_two_places_share_a_key() -> None:
    purposes, rounds = (Purpose.CLIENTS, Purpose.BATCHES, Purpose.LINK_NOISE), range(1, more(10, 42))
    ids = list(itertools.product((0, 1), purposes, rounds, range(20), range(21)))
    assert len(ids) > 20_000
    assert len({key(*i) for i in ids}) == len(ids)


def test_order_length_purpose_and_seed_all_matter() -> None:
    places = [(), (0,), (0, 0), (1,), (1, 0), (0, 1), (1, 2), (2, 1), (1, 2, 0), (-1,), (1 << 40,)]
    keys = {key(s, p, *ids) for s in (0, 1, -1, 1 << 63) for p in Purpose for ids in places}
    assert len(keys) == 4 * len(Purpose) * len(places)
    assert len({int(p) for p in Purpose}) == len(Purpose.__members__)  # no alias: two names, one stream


def test_a_flipped_bit_changes_half_of_the_key() -> None:
    flips = [
        (fold(k, n) ^ fold(k, n ^ (1 << b))).bit_count() for k in (0, 1, MASK) for n in range(20) for b in range(64)
    ]
    flips += [(fold(k, 5) ^ fold(k ^ (1 << b), 5)).bit_count() for k in range(20) for b in range(64)]
    assert abs(np.mean(flips) - 32) < 0.3  # one standard deviation of the mean is 0.06
    assert min(flips) > 10


def test_repetitions_have_seeds_of_their_own() -> None:
    seeds = [repetition_seed(s, r) for s in range(50) for r in range(50)]
    assert len({*seeds, *range(50)}) == 2550


# ---- integers, uniforms and choices


@given(st.lists(st.integers(0, MASK), min_size=1, max_size=30), st.integers(1, 1 << 32))
def test_below_stays_in_range_and_is_the_floor(ws: list[int], n: int) -> None:
    got = below(np.array(ws, dtype=np.uint64), n)
    assert got.dtype == np.int64
    assert got.tolist() == [((w >> 32) * n) >> 32 for w in ws]
    assert 0 <= got.min() <= got.max() < n


def test_below_takes_a_limit_for_each_word_and_is_uniform() -> None:
    w = words(9, 60_000)
    limits = np.tile([1, 2, 7], 20_000)
    got = below(w, limits)
    assert not got[limits == 1].any()
    for n in (2, 7):
        assert stats.chisquare(np.bincount(got[limits == n], minlength=n)).pvalue > ACCEPT


def test_uniforms_never_touch_zero_or_one() -> None:
    extreme = np.array([0, 1, (1 << 63) - 1, 1 << 63, MASK - 4096, MASK], dtype=np.uint64)
    u = uniform(extreme)
    assert (u > 0).all()
    assert (u < 1).all()  # the middle of the last cell is no double: it must not be rounded up to 1
    assert (np.diff(u) >= 0).all()
    np.testing.assert_allclose(u, extreme / 2.0**64, atol=2.0**-53)
    assert stats.kstest(uniform(words(4, DRAWS)), "uniform").pvalue > ACCEPT


@pytest.mark.parametrize(("n", "L"), [(1, 1), (4, 1), (4, 2), (5, 3), (4, 4)])
def test_choose_reaches_every_arrangement_exactly_once(n: int, L: int) -> None:
    """All n (n-1) ... outcomes of the L bounded integers give all arrangements: uniform as far as `below` is."""
    seen = Counter()
    for js in itertools.product(*(range(n - i) for i in range(L))):
        w = [-(-(j << 32) // (n - i)) << 32 for i, j in enumerate(js)]  # the least word with below(w, n - i) = j
        seen[tuple(choose(np.array(w, dtype=np.uint64), n).tolist())] += 1
    assert seen == Counter(itertools.permutations(range(n), L))


def test_choose_is_uniform_over_subsets_and_positions() -> None:
    picks = np.array([choose(words(key(1, Purpose.CLIENTS, i), 3), 6) for i in range(8000)])
    subsets = Counter(tuple(sorted(p)) for p in picks.tolist())
    assert len(subsets) == 20
    assert stats.chisquare(list(subsets.values())).pvalue > ACCEPT
    for place in picks.T:
        assert stats.chisquare(np.bincount(place, minlength=6)).pvalue > ACCEPT


@given(st.integers(0, MASK), st.integers(1, 60), st.data())
def test_choose_never_repeats(k: int, n: int, data: st.DataObject) -> None:
    L = data.draw(st.integers(0, n))
    picked = choose(words(k, L), n).tolist()
    assert len(picked) == len(set(picked)) == L
    assert set(picked) <= set(range(n))


# ---- noise


@pytest.mark.parametrize("k", more([0, MASK], [0, 1, key(5, Purpose.SERVER_NOISE, 3, 1), MASK]))
@pytest.mark.parametrize("law", LAWS)
def test_noise_follows_its_law_and_no_other(law: str, k: int) -> None:
    draw, right = LAWS[law]
    x = draw(k, DRAWS)
    assert stats.kstest(x, right.cdf).pvalue > ACCEPT
    for scale in (2 / 3, 3 / 2):
        assert stats.kstest(x, lambda v, s=scale: right.cdf(v / s)).pvalue < REJECT
        assert stats.kstest(scale * x, right.cdf).pvalue < REJECT
    ((_, other),) = [v for name, v in LAWS.items() if name != law]
    assert stats.kstest(x, other.cdf).pvalue < REJECT


@pytest.mark.parametrize("law", LAWS)
def test_noise_has_unit_variance_and_the_tails_of_its_law(law: str) -> None:
    draw, right = LAWS[law]
    x = draw(17, 400_000)
    kurtosis = {"laplace": 6.0, "gaussian": 3.0}[law]
    assert abs(x.mean()) < 4.5 / math.sqrt(len(x))
    assert abs(x.var() - 1) < 4.5 * math.sqrt((kurtosis - 1) / len(x))
    for tail in (3.0, 4.0):
        expected = 2 * right.sf(tail) * len(x)
        assert abs((np.abs(x) > tail).sum() - expected) < 4.5 * math.sqrt(expected)


def test_a_laplace_draw_at_either_end_of_the_words_is_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = np.array([0, MASK], dtype=np.uint64)
    monkeypatch.setattr("confide.base.randomness.words", lambda k, count: ends[:count])
    low, high = laplace(0, 2)
    assert -27 < low < -25  # log(2^-53) / sqrt 2
    assert 25 < high < 27
    assert np.isfinite(gaussian(0, 2)).all()


@pytest.mark.parametrize("law", LAWS)
def test_noise_of_neighbouring_places_is_independent_and_of_the_same_law(law: str) -> None:
    draw, right = LAWS[law]
    rounds, units, M = 160, 40, 4
    x = np.array([[draw(key(0, Purpose.SERVER_NOISE, i, p), M) for p in range(units)] for i in range(rounds)])
    assert stats.kstest(x.ravel(), right.cdf).pvalue > ACCEPT
    neighbours = {"round": (x[1:], x[:-1]), "unit": (x[:, 1:], x[:, :-1]), "coordinate": (x[..., 1:], x[..., :-1])}
    other = [[draw(key(0, Purpose.LINK_NOISE, i, p), M) for p in range(units)] for i in range(rounds)]
    neighbours["purpose"] = (x, np.array(other))
    for name, (a, b) in neighbours.items():
        for view in (np.asarray, np.abs, np.sign):  # a shared scale or sign would show where values do not
            r = np.corrcoef(view(a).ravel(), view(b).ravel())[0, 1]
            assert abs(r) < 4.5 / math.sqrt(a.size), (name, view)


@pytest.mark.parametrize("law", LAWS)
@given(k=st.integers(0, MASK), n=st.integers(0, 9))
def test_a_shorter_draw_is_the_beginning_of_a_longer_one(law: str, k: int, n: int) -> None:
    draw, _ = LAWS[law]
    assert draw(k, n).shape == (n,)
    assert np.array_equal(draw(k, n), draw(k, n + 3)[:n])


def test_a_generator_is_made_again_from_its_place() -> None:
    def draw(*place: int) -> list[float]:
        return generator(place[0], Purpose(place[1]), *place[2:]).standard_normal(5).tolist()

    assert draw(7, 1, 2) == draw(7, 1, 2)
    assert len({tuple(draw(*p)) for p in [(7, 1, 2), (8, 1, 2), (7, 2, 2), (7, 1, 3), (7, 1), (7, 1, 2, 0)]}) == 6
