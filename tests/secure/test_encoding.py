"""Updates in the ring: the sum is exact, the stated errors hold, and nothing that could wrap is ever accepted."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from confide.base.errors import InputError
from confide.secure.encoding import RINGS, Encoding, signed, truncate, words_of
from exploring import more

Floats = NDArray[np.float64]
LARGEST = {32: 2**31 - 1, 64: 2**63 - 1}
# 2^31 - 1 is a prime; 2^63 - 1 = 7^2 73 127 337 92737 649657
EDGES = [
    (32, 1, 2**31 - 1),
    (32, 2**31 - 1, 1),
    (32, 1023, LARGEST[32] // 1023),
    (32, 6, LARGEST[32] // 6),
    (64, 7 * 7 * 73 * 127, 337 * 92737 * 649657),
    (64, 1024, 2**53 - 1),
    (64, LARGEST[64], 1),
]


def total(e: Encoding, words: NDArray[Any], n: int) -> NDArray[Any]:
    """The sum of n equal clients, one by one or, where that would take years, by a product in the same ring."""
    if n > 2000:
        return words * np.array(n % (1 << e.ring_bits), e.dtype)
    found = np.zeros(len(words), e.dtype)
    for _ in range(n):
        found += words
    return found


# The sum


@st.composite
def rounds(draw: st.DrawFn) -> tuple[Encoding, list[list[float]]]:
    ring = draw(st.sampled_from([32, 64]))
    bound, n = draw(st.sampled_from([0.3, 1.0, 1.7])), draw(st.integers(1, 6))
    f = draw(st.integers(0, 27 if ring == 32 else 51))
    value = st.floats(-1.5 * bound, 1.5 * bound) | st.sampled_from([bound, -bound, 0.0, -0.0, 5e-324, 0.5**f])
    length = draw(st.integers(1, 5))
    updates = draw(st.lists(st.lists(value, min_size=length, max_size=length), min_size=n, max_size=n))
    return Encoding(ring, f, bound, n), updates


@settings(max_examples=more(100, 250))
@given(rounds())
def test_the_decoded_sum_is_exact_and_the_mean_as_near_as_stated(case: tuple[Encoding, list[list[float]]]) -> None:
    e, updates = case
    n, scale = len(updates), 2**e.fraction_bits
    clipped = [[min(max(Fraction(x), -Fraction(e.bound)), Fraction(e.bound)) for x in u] for u in updates]
    integers, ring_sum = [], np.zeros(len(updates[0]), e.dtype)
    for u in updates:
        words = e.encode(np.array(u)).words
        assert words.dtype == RINGS[e.ring_bits]
        integers.append([int(k) for k in signed(words)])
        ring_sum += words
    for ks, xs in zip(integers, clipped, strict=True):
        for k, x in zip(ks, xs, strict=True):
            error = k - x * scale
            assert abs(error) < 1
            assert k == math.trunc(x * scale)
    sums = [sum(column) for column in zip(*integers, strict=True)]
    assert e.decode(ring_sum).tolist() == sums
    for s, mean, xs in zip(sums, e.mean(ring_sum, n), zip(*clipped, strict=True), strict=True):
        exact = Fraction(s, n * scale)
        assert abs(exact - sum(xs) / n) * scale < 1  # in quanta
        assert abs(Fraction(float(mean)) - exact) <= abs(exact) * Fraction(1, 2**51)  # what doubles lose


def test_the_stated_error_is_not_generous() -> None:
    e, n = Encoding(32, 8, 1.0, 3), 3
    x = np.array([0.999 / 256, 0.5 / 256, 100.999 / 256])
    words = total(e, e.encode(x).words, n)
    assert np.max(np.abs(e.mean(words, n) - x)) >= 0.99 / 256 * 0.99


def test_mean_of_fewer_is_taken_over_the_divisor() -> None:
    e = Encoding(32, 10, 1.0, 8)
    words = e.encode(np.array([0.5, -0.25])).words
    assert e.mean(words, 2).tolist() == [0.25, -0.125]
    for bad in (0, -1, 1.5):
        with pytest.raises(InputError, match="divisor"):
            e.mean(words, bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("bits", RINGS)
@given(st.data())
def test_words_stand_for_integers(bits: int, data: st.DataObject) -> None:
    half = 1 << (bits - 1)
    some = st.integers(-half, half - 1) | st.sampled_from([-half, half - 1, -1, 0])
    x = np.array(data.draw(st.lists(some, max_size=9)), np.int64)
    words = words_of(x, bits)
    assert words.tolist() == [int(k) % (1 << bits) for k in x]
    assert np.array_equal(signed(words), x)
    assert words.tobytes() == b"".join((int(k) % (1 << bits)).to_bytes(bits // 8, "little") for k in x)


def test_words_are_taken_modulo_the_ring() -> None:
    assert words_of(np.array([2**32 + 5, -(2**32) - 1, 2**63 - 1]), 32).tolist() == [5, 2**32 - 1, 2**32 - 1]
    assert words_of(np.array([256, 255, -1]), 8).tolist() == [0, 255, 255]


def test_empty_update() -> None:
    e = Encoding(32, 10, 1.0, 4)
    words, clipped = e.encode(np.empty(0))
    assert (len(words), clipped, len(e.decode(words))) == (0, 0, 0)


# Rounding


@settings(max_examples=more(100, 300))
@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20), st.integers(0, 40), st.sampled_from([1, 2, 3, 7]))
def test_truncation_never_grows_a_norm(x: list[float], f: int, p: int) -> None:
    k, scaled = [int(v) for v in truncate(np.array(x), f)], [Fraction(v) * 2**f for v in x]
    assert sum(abs(v) ** p for v in k) <= sum(abs(v) ** p for v in scaled)
    assert max(abs(v) for v in k) <= max(abs(v) for v in scaled)
    assert all(v * s >= 0 for v, s in zip(k, scaled, strict=True))


def test_rounding_to_the_nearest_would_grow_a_norm() -> None:
    """So that the test above says something."""
    x = np.full(1000, 0.6 / 256)
    assert np.linalg.norm(np.rint(x * 256) / 256) > np.linalg.norm(x)


def test_whole_quanta_are_never_moved() -> None:
    x = np.arange(-256, 257) / 256
    assert signed(Encoding(32, 8, 1.0, 4).encode(x).words).tolist() == list(range(-256, 257))


# The clip


@pytest.mark.parametrize("ring", [32, 64])
def test_values_at_and_beyond_the_clip(ring: int) -> None:
    e = Encoding(ring, 12, 0.75, 4)
    beyond = math.nextafter(0.75, 1)
    x = np.array([0.75, -0.75, beyond, -beyond, 8.0, -1e300, 0.1])
    before = x.copy()
    words, clipped = e.encode(x)
    assert clipped == 4
    q = int(0.75 * 2**12)
    assert signed(words)[:6].tolist() == [q, -q, q, -q, q, -q]
    assert np.array_equal(x, before)
    assert e.encode(np.array([0.75, -0.75, 0.0])).clipped == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused_without_showing_the_update(bad: float) -> None:
    e = Encoding(32, 10, 1.0, 4)
    for update in ([0.123456789, bad], [bad], [7.123456789, bad, -0.5]):
        with pytest.raises(InputError, match="must be finite") as error:
            e.encode(np.array(update))
        shown = f"{error.value}{error.value.args}{error.value.value}"
        assert not any(digits in shown for digits in ("0.123", "7.123", "0.5"))


# No sum wraps


@pytest.mark.parametrize(("ring", "n", "quanta"), EDGES)
@pytest.mark.parametrize("f", [0, 5])
def test_the_edge_of_the_ring(ring: int, n: int, quanta: int, f: int) -> None:
    """n q = 2^(b-1) - 1 or the last multiple below it is read back; one client or one quantum more is refused."""
    bound = quanta / 2**f
    e = Encoding(ring, f, bound, n)
    words, clipped = e.encode(np.array([bound, -bound, 2 * bound, -2 * bound]))
    assert clipped == 2
    top = n * quanta
    assert LARGEST[ring] - top < max(n, quanta)
    assert e.decode(total(e, words, n)).tolist() == [top, -top, top, -top]
    if (n + 1) * quanta > LARGEST[ring]:
        with pytest.raises(InputError, match="could wrap"):
            Encoding(ring, f, bound, n + 1)
    if n * (quanta + 1) > LARGEST[ring]:
        with pytest.raises(InputError, match="could wrap"):
            Encoding(ring, f, (quanta + 1) / 2**f, n)


def test_bounds_off_the_grid_are_counted_as_they_round() -> None:
    """1.6 quanta are one after truncation; two would be one too many for half of the ring."""
    n = 2**30
    assert Encoding(32, 0, 1.6, n).encode(np.array([1.6, -1.6])).words.tolist() == [1, 2**32 - 1]
    with pytest.raises(InputError, match="could wrap"):
        Encoding(32, 0, 2.0, n)


def test_the_refused_sum_would_have_wrapped() -> None:
    """The peer's mistake: a range of 2^22 for 1024 clients in a 32-bit ring."""
    with pytest.raises(InputError, match=r"1024 clients could wrap in a 32-bit ring; use at most 17$"):
        Encoding(32, 18, bound=8.0, clients=1024)
    e = Encoding(32, 18, bound=8.0, clients=1023)
    words = e.encode(np.array([8.0])).words
    assert e.decode(total(e, words, 1023)).tolist() == [1023 * 2**21]
    assert e.decode(total(e, words, 1024)).tolist() == [-(2**31)]  # +8 on average would be read as -8
    remedy = Encoding(32, 17, bound=8.0, clients=1024)
    assert remedy.mean(total(remedy, remedy.encode(np.array([8.0])).words, 1024), 1024).tolist() == [8.0]


@settings(max_examples=more(100, 250))
@given(
    ring=st.sampled_from([32, 64]),
    f=st.integers(0, 52),
    bound=st.floats(1e-6, 1e6),
    n=st.integers(1, 2000) | st.integers(1, 2**40),
    noise=st.just(0) | st.integers(0, 2**30),
)
@example(ring=64, f=52, bound=1.0, n=1, noise=0)
def test_whatever_is_accepted_is_read_back(ring: int, f: int, bound: float, n: int, noise: int) -> None:
    """The extreme sums with the extreme noise, whatever the settings; else a refusal that names a field."""
    try:
        e = Encoding(ring, f, bound, n, noise)
    except InputError as error:
        assert error.field == "fraction_bits"  # noqa: PT017
        q = math.floor(Fraction(bound) * 2**f)
        assert n * (q + noise) > LARGEST[ring] or q >= 2**53  # it was not refused for nothing
        return
    x, t = np.array([bound, -bound]), np.array([noise, -noise])
    words, _ = e.encode(x, t)
    one = signed(words).tolist()
    assert one == [math.floor(Fraction(bound) * 2**f) + noise, -math.floor(Fraction(bound) * 2**f) - noise]
    assert e.decode(total(e, words, n)).tolist() == [n * one[0], n * one[1]]


REFUSED: list[dict[str, Any]] = [
    {"ring_bits": 32, "fraction_bits": 24, "bound": 1.0, "clients": 200},
    {"ring_bits": 32, "fraction_bits": 30, "bound": 3.0, "clients": 7},
    {"ring_bits": 32, "fraction_bits": 20, "bound": 50.0, "clients": 100},
    {"ring_bits": 32, "fraction_bits": 20, "bound": 1.0, "clients": 2048, "noise": 1000},
    {"ring_bits": 32, "fraction_bits": 0, "bound": 1e7, "clients": 1000},
    {"ring_bits": 32, "fraction_bits": 10, "bound": 1.0, "clients": 1000, "noise": 2**22},
    {"ring_bits": 64, "fraction_bits": 52, "bound": 8.0, "clients": 1000},
    {"ring_bits": 64, "fraction_bits": 52, "bound": 1024.0, "clients": 2000},
    {"ring_bits": 64, "fraction_bits": 52, "bound": 1024.0, "clients": 4},
]


@pytest.mark.parametrize("case", REFUSED)
def test_the_remedy_works_when_followed(case: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"^fraction_bits = ") as error:
        Encoding(**case)
    said = error.value.remedy
    if most := re.search(r"at most (\d+)", said):
        f = int(most[1])
        Encoding(**{**case, "fraction_bits": f})
        with pytest.raises(InputError):  # it is the largest
            Encoding(**{**case, "fraction_bits": f + 1})
        return
    works = {}
    for ring in (32, 64):
        for f in range(case["fraction_bits"]):
            try:
                Encoding(**{**case, "fraction_bits": f, "ring_bits": ring})
                works[ring] = f
            except InputError:
                pass
    if "64-bit ring" in said:
        Encoding(**{**case, "ring_bits": 64})
    else:
        assert case["ring_bits"] in works, f"no fewer bits will do, yet it says: {said}"


def test_updates_in_single_precision_do_not_wrap() -> None:
    """0.1 in single precision lies beyond the bound 0.1: it must be clipped as any other number, or refused."""
    e = Encoding(32, 30, bound=0.1, clients=20)
    update = np.full(3, 0.1, np.float32)
    try:
        words, clipped = e.encode(update)  # type: ignore[arg-type]
    except InputError:
        return
    assert clipped == 3
    assert np.max(signed(words)) <= math.ceil(0.1 * 2**30)
    assert np.all(e.decode(total(e, words, e.clients)) > 0)


def test_where_nothing_fits_no_impossible_advice_is_given() -> None:
    """Fewer than none is no remedy; fewer clients or a smaller bound would be."""
    for case in (
        {"ring_bits": 64, "fraction_bits": 0, "bound": 1.0, "clients": 2**63},
        {"ring_bits": 64, "fraction_bits": 3, "bound": 1.0, "clients": 4, "noise": 2**62},
    ):
        with pytest.raises(InputError) as error:
            Encoding(**case)  # type: ignore[arg-type]
        assert not error.value.remedy.endswith("use fewer"), str(error.value)


def test_a_bound_beyond_the_doubles_is_refused() -> None:
    with pytest.raises(InputError):
        Encoding(64, 52, bound=1e300, clients=2)


def test_coordinates_that_doubles_cannot_hold_are_refused() -> None:
    Encoding(64, 52, bound=math.nextafter(2.0, 0), clients=2)
    with pytest.raises(InputError, match="double precision"):
        Encoding(64, 52, bound=2.0, clients=2)


# Noise


def test_noise_is_counted() -> None:
    n, q, t = 10, 2**20, 1000
    room = LARGEST[32] // n - q
    Encoding(32, 20, 1.0, n, noise=room)
    with pytest.raises(InputError, match="could wrap"):
        Encoding(32, 20, 1.0, n, noise=room + 1)
    e = Encoding(32, 20, 1.0, n, noise=t)
    words, _ = e.encode(np.array([1.0, -1.0, 0.5]), np.array([t, -t, 7]))
    one = [q + t, -q - t, q // 2 + 7]
    assert signed(words).tolist() == one
    assert e.decode(total(e, words, n)).tolist() == [n * k for k in one]


@pytest.mark.parametrize("beyond", [6, -6, 2**40, 2**63 - 1, -(2**63)])
def test_noise_beyond_the_largest_is_refused_and_not_shown(beyond: int) -> None:
    e = Encoding(32, 10, 1.0, 4, noise=5)
    e.encode(np.zeros(2), np.array([5, -5]))
    with pytest.raises(InputError, match="noise") as error:
        e.encode(np.zeros(2), np.array([0, beyond]))
    assert str(abs(beyond)) not in str(error.value)


def test_one_share_of_noise_does_not_serve_all_coordinates() -> None:
    e = Encoding(32, 10, 1.0, 4, noise=5)
    with pytest.raises(InputError, match=r"^noise"):
        e.encode(np.zeros(3), np.array([3]))


# Edges


@pytest.mark.parametrize("dtype", ["<i4", "<u8", ">u4", "<u2", "<f4", "<f8", "<i8"])
def test_sums_of_another_type_are_not_decoded(dtype: str) -> None:
    e = Encoding(32, 10, 1.0, 4)
    with pytest.raises(InputError, match="words of the 32-bit ring"):
        e.decode(np.zeros(3, dtype))
    with pytest.raises(InputError, match="words of the 32-bit ring"):
        e.mean(np.zeros(3, dtype), 3)


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        *(("ring_bits", v) for v in (8, 16, 33, 0, None, "32")),
        *(("fraction_bits", v) for v in (-1, 53, 1.5, True, None)),
        *(("bound", v) for v in (0, -1.0, math.nan, math.inf, "1", None)),
        *(("clients", v) for v in (0, -3, 2.0, None)),
        *(("noise", v) for v in (-1, 0.5, None)),
    ],
)
def test_bad_settings(field: str, bad: object) -> None:
    good: dict[str, Any] = {"ring_bits": 32, "fraction_bits": 10, "bound": 1.0, "clients": 4}
    with pytest.raises(InputError, match=f"^{field} = "):
        Encoding(**{**good, field: bad})


def test_one_that_lies_can_turn_the_update_of_another_round() -> None:
    """Why a number that rests on the noise in messages assumes that all clients send in range: at the ring's edge one
    quantum of an honest client is the whole range. Noise that is added before, in the ring, is as wide as ever."""
    e = Encoding(32, 20, bound=1.0, clients=5)
    liar = words_of(np.array([e.largest]), 32)
    low, high = (int(e.decode(liar + e.encode(np.array([x])).words)[0]) for x in (0.0, 2.0**-20))
    assert (low, high) == (e.largest, -e.largest - 1)
    assert 5 * e.summand <= e.largest  # no sum of honest clients is clamped
    assert e.summand == 2**20
    assert replace(e, noise=7).summand == 2**20 + 7
