"""Shamir's shares: published numbers, any t of n give the secret, fewer say nothing."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from confide.base.errors import InputError
from confide.secure import shares
from confide.secure.shares import (
    PRIME,
    SHARE_BYTES,
    WORDS,
    agreeing,
    combine,
    lagrange,
    multiply,
    pack,
    share,
    uniform,
    unpack,
)
from exploring import more

Field = NDArray[np.int64]
SECRET = b"a secret key, thirty-two letters"


def dice(seed: int) -> Callable[[int], bytes]:
    return np.random.default_rng(seed).bytes


def words(secret: bytes) -> list[int]:
    return [int.from_bytes(secret[i : i + 2], "little") for i in range(0, 32, 2)]


# Published


@pytest.mark.parametrize("t", [3, 4, 5, 6])
def test_wikipedia(t: int) -> None:
    """1234 + 166 x + 94 x^2 modulo 1613, from any three or more of the six published points."""
    published = {1: 1494, 2: 329, 3: 965, 4: 176, 5: 1188, 6: 775}
    for points in itertools.permutations(published, t):
        values = np.array([published[x] for x in points])
        assert int(lagrange(points, 1613) @ values) % 1613 == 1234


def test_wikipedia_coefficients() -> None:
    """x = 2, 4, 5 as in the article's computation: l(0) = 20/6, -10/2, 8/3."""
    found = lagrange((2, 4, 5), 1613)
    assert [int(c * d) % 1613 for c, d in zip(found, (6, 2, 3), strict=True)] == [20, 1613 - 10, 8]


def test_two_are_not_enough_for_three() -> None:
    assert int(lagrange((1, 2), 1613) @ np.array([1494, 329])) % 1613 != 1234


# Any t of n


@given(st.data())
def test_any_t_of_n_give_the_secrets(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 14))
    t = data.draw(st.integers(2, n))
    secrets = data.draw(st.lists(st.binary(min_size=32, max_size=32), min_size=1, max_size=3))
    rows = share(secrets, n, t, dice(data.draw(st.integers(0, 2**32))))
    assert len(rows) == n
    assert all(len(row) == len(secrets) and all(len(one) == SHARE_BYTES for one in row) for row in rows)
    holders = data.draw(st.permutations(range(n)))[: data.draw(st.integers(t, n))]
    assert combine(tuple(x + 1 for x in holders), [rows[x] for x in holders]) == secrets


def test_a_threshold_of_one_is_a_copy_for_everybody() -> None:
    """It is accepted as a setting, so it must work."""
    rows = share([SECRET], 3, 1, dice(4))
    assert [combine((x,), [row]) for x, row in enumerate(rows, 1)] == [[SECRET]] * 3


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32, SECRET])
def test_every_subset_of_five(secret: bytes) -> None:
    rows = share([secret], 5, 3, dice(4))
    for size in range(1, 6):
        for holders in itertools.combinations(range(5), size):
            found = combine(tuple(x + 1 for x in holders), [rows[x] for x in holders])
            assert (found == [secret]) == (size >= 3)


def test_shares_are_values_of_a_polynomial() -> None:
    """In Python's integers, from the very coefficients that were handed in."""
    a = np.random.default_rng(1).integers(0, PRIME, (2, WORDS))
    rows = share([SECRET], 9, 3, lambda n: a.astype("<u4").tobytes()[:n])
    for x, row in enumerate(rows, 1):
        expected = [(s + int(b) * x + int(c) * x * x) % PRIME for s, b, c in zip(words(SECRET), *a, strict=True)]
        assert unpack(row)[0].tolist() == expected


def test_a_thousand_holders() -> None:
    secrets, t = [SECRET, SECRET[::-1]], 667
    rows = share(secrets, 1000, t, dice(4))
    for seed in range(3):
        holders = random.Random(seed).sample(range(1000), t)  # noqa: S311
        points = tuple(x + 1 for x in holders)
        assert combine(points, [rows[x] for x in holders]) == secrets
        few = combine(points[:-1], [rows[x] for x in holders[:-1]])
        assert few[0] != SECRET
        assert few[1] != secrets[1]


def test_a_changed_share_changes_the_secret() -> None:
    rows = share([SECRET], 4, 3, dice(4))
    for x, word in itertools.product(range(3), range(WORDS)):
        changed = unpack(rows[x])
        changed[0, word] = (changed[0, word] + 1) % PRIME
        mixed = [pack(changed) if y == x else rows[y] for y in range(3)]
        assert combine((1, 2, 3), mixed) != [SECRET]


def test_shares_at_other_places_do_not_fit() -> None:
    rows = share([SECRET], 4, 3, dice(4))
    assert combine((1, 2, 3), [rows[0], rows[2], rows[1]]) != [SECRET]
    assert combine((1, 2, 4), rows[:3]) != [SECRET]


def test_a_word_that_no_secret_has_is_noticed() -> None:
    void = np.zeros((1, WORDS), np.int64)
    void[0, 5] = PRIME - 1
    ok = words(SECRET)
    rows = [[*pack(void), *pack(np.array([ok]))]]
    assert combine((3,), rows) == [None, SECRET]  # t = 1: every share is the secret


# Fewer say nothing


@pytest.mark.parametrize("x", [1, 2, 3, 1000])
@pytest.mark.parametrize("word", [0, 1, 777, 65535])
def test_one_share_of_two_takes_every_value_once(x: int, word: int) -> None:
    """Exhaustive: over all 2^16 + 1 coefficients a holder's number runs through the whole field, whatever the secret,
    so for every share and every guess of the secret there is exactly one coefficient that explains it."""
    columns = -(-PRIME // WORDS)
    a = np.arange(columns * WORDS) % PRIME
    secret = word.to_bytes(2, "little") * WORDS
    if x < 1000:
        rows = share([secret] * columns, max(x, 2), 2, lambda n: a.astype("<u4").tobytes()[:n])
        values = unpack(rows[x - 1]).ravel()
    else:  # the same numbers without a thousand rows of them
        values = multiply(np.array([[1, x]]), np.stack([np.full(len(a), word), a]))[0]
    assert np.array_equal(np.sort(values[:PRIME]), np.arange(PRIME))


def test_two_shares_of_three_fit_every_secret() -> None:
    """For each of the 2^16 + 1 secrets, the only polynomial through it and two real shares; all polynomials differ."""
    first, second = (int(unpack(row)[0, 0]) for row in share([SECRET], 2, 2, dice(4)))
    s = np.arange(PRIME)
    # f(1) = s + b + c, f(2) = s + 2b + 4c
    half = pow(2, -1, PRIME)
    c = (second - 2 * first + s) * half % PRIME
    b = (first - s - c) % PRIME
    assert np.all((s + b + c) % PRIME == first)
    assert np.all((s + 2 * b + 4 * c) % PRIME == second)
    assert len(set(zip(b.tolist(), c.tolist(), strict=True))) == PRIME


def uniformity(secret: bytes, entropy: Callable[[int], bytes], t: int = 3, cells: int = 24) -> float:
    """Chi-square of the first t - 1 = 2 shares jointly, cut into cells."""
    rows = share([secret] * 6000, 2 if t == 2 else t, t, entropy)
    a, b = (unpack(row).ravel() * cells // PRIME for row in rows[:2])
    return float(stats.chisquare(np.bincount(a * cells + b, minlength=cells * cells)).pvalue)


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32, SECRET])
def test_fewer_shares_are_uniform_whatever_the_secret(secret: bytes) -> None:
    assert uniformity(secret, dice(7)) > 1e-3


def test_the_test_of_uniformity_can_fail() -> None:
    rng = np.random.default_rng(8)
    biased: dict[str, Callable[[int], bytes]] = {
        "no top bit": lambda n: (rng.integers(0, PRIME, n // 4) & 0x7FFF).astype("<u4").tobytes(),
        "bytes below 251": lambda n: rng.integers(0, 251, n, np.uint8).tobytes()[:n],
        "zeros now and then": lambda n: (
            np.where(rng.random(n // 4) < 0.05, 0, rng.integers(0, 2**32 - 1, n // 4, np.uint64))
            .astype("<u4")
            .tobytes()
        ),
    }
    p = {name: uniformity(SECRET, entropy) for name, entropy in biased.items()}
    assert p["no top bit"] < 1e-9
    assert p["zeros now and then"] < 1e-9
    assert uniformity(SECRET, dice(9), t=2) < 1e-9  # two shares of two: they determine the secret


def test_every_secret_has_its_own_polynomial() -> None:
    """Two secrets in one call must not be shared with the same coefficients: shares would give their difference."""
    rows = share([SECRET, SECRET], 3, 2, dice(4))
    for a, b in rows:
        assert np.count_nonzero(unpack([a]) == unpack([b])) < 4
    one = unpack(share([bytes(32)], 3, 2, dice(4))[0])[0]
    assert len(set(one.tolist())) > 12  # nor the words of one secret


def test_shares_of_the_same_secret_never_repeat() -> None:
    entropy = dice(5)
    assert share([SECRET], 2, 2, entropy)[0] != share([SECRET], 2, 2, entropy)[0]


# Numbers below the prime


def test_the_void_word_is_drawn_again() -> None:
    void = 2**32 - 1
    handed = [[5, void, PRIME, void], [void, PRIME + 1], [2**32 - 2]]
    asked: list[int] = []

    def entropy(n: int) -> bytes:
        asked.append(n)
        return np.array(handed[len(asked) - 1], "<u4").tobytes()

    assert uniform(4, entropy).tolist() == [5, 0, 1, (2**32 - 2) % PRIME]
    assert asked == [16, 8, 4]


def test_without_the_void_word_all_numbers_are_equally_many() -> None:
    assert (2**32 - 1) % PRIME == 0
    assert uniform(3, lambda n: np.array([0, PRIME - 1, 2 * PRIME - 1], "<u4").tobytes()).tolist() == [0, 65536, 65536]


def test_uniform_numbers() -> None:
    x = uniform(2_000_000, dice(3))
    assert x.min() == 0
    assert x.max() == PRIME - 1  # the top value occurs
    low = np.bincount(x % 256, minlength=256)
    expected = np.bincount(np.arange(PRIME) % 256, minlength=256) / PRIME * len(x)
    assert stats.chisquare(low, expected).pvalue > 1e-3
    assert len(uniform(0, dice(3))) == 0


# Packing


@given(st.lists(st.lists(st.integers(0, PRIME - 1) | st.just(PRIME - 1), min_size=16, max_size=16), max_size=5))
def test_pack_and_unpack(values: list[list[int]]) -> None:
    packed = pack(np.array(values, np.int64).reshape(-1, WORDS))
    for one, row in zip(packed, values, strict=True):
        assert len(one) == SHARE_BYTES == 34
        assert int.from_bytes(one, "little") == sum(v << (17 * i) for i, v in enumerate(row))
    assert unpack(packed).tolist() == values


def test_the_largest_value_survives() -> None:
    top = np.full((1, WORDS), PRIME - 1)
    assert np.array_equal(unpack(pack(top)), top)


@pytest.mark.parametrize("length", [0, 1, 33, 35, 68])
def test_shares_of_another_length_are_refused(length: int) -> None:
    good = pack(np.zeros((1, WORDS), np.int64))[0]
    for mixed in ([bytes(length)], [good, bytes(length)], [bytes(length), good]):
        with pytest.raises(InputError, match="must be 34 bytes"):
            unpack(mixed)


@pytest.mark.parametrize("bad", [PRIME, PRIME + 1, 2**17 - 1])
@pytest.mark.parametrize("place", [0, 7, 15])
def test_words_beyond_the_field_spoil_their_own_secret_only(bad: int, place: int) -> None:
    value = sum((bad if i == place else 12345) << (17 * i) for i in range(WORDS))
    rows = share([SECRET, SECRET], 3, 2, dice(4))
    rows[0][1] = value.to_bytes(SHARE_BYTES, "little")
    assert combine((1, 2), rows[:2]) == [SECRET, None]


@settings(max_examples=more(150, 500))
@given(st.binary(min_size=30, max_size=38))
def test_any_bytes_are_a_share_or_refused(raw: bytes) -> None:
    try:
        found = unpack([raw])
    except InputError:
        return
    assert pack(found) == [raw]


# Arithmetic


def test_products_are_exact_at_the_largest_size() -> None:
    """65536 products of 65536^2: the sum is 2^48, and one less must not be the same number."""
    n = shares.LARGEST
    a, b = np.full((2, n), PRIME - 1), np.full((n, 2), PRIME - 1)
    b[0, 1] = PRIME - 2
    expected = [n * (PRIME - 1) ** 2 % PRIME, (n * (PRIME - 1) ** 2 - (PRIME - 1)) % PRIME]
    assert multiply(a, b).tolist() == [expected, expected]
    rng = np.random.default_rng(4)
    a, b = rng.integers(PRIME - 50, PRIME, (2, n)), rng.integers(PRIME - 50, PRIME, (n, 3))
    exact = [[sum(map(int.__mul__, r, c)) % PRIME for c in b.T.tolist()] for r in a.tolist()]
    assert multiply(a, b).tolist() == exact


@given(st.integers(1, 8), st.integers(1, 300), st.integers(1, 8), st.integers(0, 2**32))
def test_products(rows: int, inner: int, columns: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, PRIME, (rows, inner)), rng.integers(0, PRIME, (inner, columns))
    exact = [[sum(map(int.__mul__, r, c)) % PRIME for c in b.T.tolist()] for r in a.tolist()]
    assert multiply(a, b).tolist() == exact


@given(st.sets(st.integers(1, PRIME - 1) | st.just(PRIME - 1), min_size=1, max_size=40), st.integers(0, 2**32))
def test_lagrange_interpolates(places: set[int], seed: int) -> None:
    """Against the definition, in Python's integers, up to the largest place."""
    points = tuple(places)
    found = lagrange(points)
    for x, coefficient in zip(points, found.tolist(), strict=True):
        others = [y for y in points if y != x]
        assert coefficient * math.prod(y - x for y in others) % PRIME == math.prod(others) % PRIME
    f = random.Random(seed).choices(range(PRIME), k=len(points))  # noqa: S311
    values = [sum(a * pow(x, j, PRIME) for j, a in enumerate(f)) % PRIME for x in points]
    assert sum(map(int.__mul__, found.tolist(), values)) % PRIME == f[0]


@pytest.mark.parametrize("points", [(1, 1), (1, 2, 1), (0, 1), (PRIME,), (-1, 2), (1, PRIME + 1)])
def test_bad_points(points: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"^points"):
        lagrange(points)


# Edges


@pytest.mark.parametrize(
    ("field", "holders", "threshold"),
    [("holders", 0, 1), ("holders", PRIME, 2), ("threshold", 3, 4), ("threshold", 3, 0), ("threshold", 3, 1.5)],
)
def test_bad_sharing(field: str, holders: int, threshold: int) -> None:
    with pytest.raises(InputError, match=f"^{field} = "):
        share([SECRET], holders, threshold, dice(4))


@pytest.mark.parametrize("secret", [SECRET + b"!", SECRET[:-1], b""])
def test_secrets_of_another_length_are_refused_and_not_shown(secret: bytes) -> None:
    with pytest.raises(InputError, match="must be 32 bytes") as error:
        share([bytes(32), secret], 3, 2, dice(4))
    assert "letters" not in str(error.value)


def test_nothing_to_unpack() -> None:
    assert unpack([]).shape == (0, WORDS)
    assert pack(np.empty((0, WORDS), np.int64)) == []


# Shares of which some are wrong


def lying(r: random.Random, share: bytes, how: str, word: int) -> bytes:
    """Wrong in one number, the same for all liars; in all of them; or in a way that agrees with other liars."""
    values = unpack([share])
    match how:
        case "one number":
            values[0, word] = (values[0, word] + 1 + r.randrange(PRIME - 1)) % PRIME
        case "all numbers":
            values = (values + 1 + np.array(r.choices(range(PRIME - 1), k=WORDS))) % PRIME
        case "together":
            values = (values + 1) % PRIME
    return pack(values)[0]


HOW = ("one number", "all numbers", "together")


@settings(max_examples=more(40, 400))
@given(st.data())
def test_half_of_the_spare_shares_may_be_wrong(data: st.DataObject) -> None:
    t = data.draw(st.integers(2, 9))
    m = t + data.draw(st.integers(0, 8))
    r = random.Random(data.draw(st.integers(0, 2**32)))  # noqa: S311
    points = tuple(r.sample(range(1, 3 * m), m))
    rows = share([SECRET], 3 * m, t, dice(r.randrange(2**32)))
    given_ = [rows[x - 1][0] for x in points]
    wrong = set(r.sample(range(m), data.draw(st.integers(0, (m - t) // 2))))
    how = data.draw(st.sampled_from(HOW))
    for n in wrong:
        given_[n] = lying(r, given_[n], how, 3)
    found = agreeing(points, given_, t)
    assert found == [n for n in range(m) if n not in wrong]
    assert combine(tuple(points[n] for n in found[:t]), [[given_[n]] for n in found[:t]]) == [SECRET]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("wrong", [1, 2, 3])
def test_more_wrong_ones_are_none_or_another_polynomial(how: str, wrong: int) -> None:
    """It says nothing, or places that agree: what they give is for the caller to check."""
    r = random.Random(wrong)  # noqa: S311
    rows = share([SECRET], 5, 3, dice(4))
    given_ = [lying(r, row[0], how, 7) if x < wrong else row[0] for x, row in enumerate(rows)]
    found = agreeing((1, 2, 3, 4, 5), given_, 3)
    if wrong == 1:
        assert found == [1, 2, 3, 4]
    else:
        assert not found or len(found) >= 3


@pytest.mark.parametrize(("m", "t"), [(3, 3), (4, 3)])
def test_without_two_spare_ones_an_error_is_seen_and_not_found(m: int, t: int) -> None:
    points = tuple(range(1, m + 1))
    rows = [row[0] for row in share([SECRET], m, t, dice(4))]
    assert agreeing(points, rows, t) == list(range(m))
    rows[1] = lying(random.Random(1), rows[1], "one number", 0)  # noqa: S311
    assert agreeing(points, rows, t) == (list(range(m)) if m == t else [])
