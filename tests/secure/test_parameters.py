"""Thresholds and degrees: the criterion in exact integers, minimal, and refusals that can be acted on."""

from __future__ import annotations

import math
import re
from contextlib import nullcontext
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confide.base.errors import InputError
from confide.secure import parameters
from confide.secure.parameters import (
    COMPLETE_UP_TO,
    FEWEST_HONEST,
    LARGEST_COHORT,
    SERVERS,
    Parameters,
    choose,
    hypergeometric,
)
from confide.secure.settings import Secure
from exploring import more

# Exact integers: P[x of the k drawn among `total` are among the `marked`] = ways(...) / comb(total, k)


@cache
def ways(total: int, marked: int, k: int) -> list[int]:
    return [math.comb(marked, x) * math.comb(total - marked, k - x) for x in range(k + 1)]


def leaks(n: int, bad: int, k: int, t: int, server: str) -> bool:
    """n P[t or more corrupted neighbours] > 2^-40, or 2^-80 for a server that may draw again; the third line too."""
    w, bits = ways(n - 1, bad, k), 80 if server == "active" else 40
    whole = math.comb(n - 1, k)
    most = min(t, max(2 * t - k, 0)) if server == "active" else t  # 2t <= k + corrupted is a leak as well
    return n * sum(w[most:]) << bits > whole


def fails(n: int, lost: int, k: int, t: int) -> bool:
    return n * sum(ways(n - 1, n - 1 - lost, k)[:t]) << 20 > math.comb(n - 1, k)


def search(n: int, bad: int, lost: int, server: str) -> tuple[int, int] | None:
    """The page's criterion, letter by letter; the smallest roster has k neighbours for all and three honest clients."""
    if n - lost < bad + FEWEST_HONEST:
        return None
    for k in range(2, min(n - lost, n - 1), 2):
        for t in range(k // 2 + 1, k + 1):
            if not leaks(n, bad, k, t, server):
                if not fails(n, lost, k, t):
                    return k, t
                break  # a larger t fails more often
    return None


# The sparse graph


def test_a_thousand_with_five_percent() -> None:
    p = choose(1000, corrupted=0.05, dropped=0.05)
    assert (p.degree, p.threshold, p.corrupted, p.quorum) == (30, 17, 50, 950)
    assert not p.complete
    assert p.holders == 30


@pytest.mark.parametrize(
    ("n", "fraction", "google"),
    [
        (1000, 0.05, (30, 17)),
        (1000, 0.10, (48, 27)),
        (1000, 0.33, (286, 150)),
        (10_000, 0.05, (34, 20)),
        (10_000, 0.10, (54, 31)),
        (10_000, 0.33, (422, 221)),
    ],
)
def test_like_googles_table(n: int, fraction: float, google: tuple[int, int]) -> None:
    """The same for 5%; the union bound finds slightly smaller ones for 10 and 33%."""
    p = choose(n, fraction, fraction)
    degree, threshold = google
    if fraction == 0.05:
        assert (p.degree, p.threshold) == google
    else:
        assert 0.95 * degree <= p.degree <= degree
        assert 0.95 * threshold <= p.threshold < threshold


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize(("corrupted", "dropped"), [(0.0, 0.0), (0.05, 0.05), (0.1, 0.3), (0.3, 0.1), (0.6, 0.05)])
@pytest.mark.parametrize("n", [101, 128, 251])
def test_the_smallest_that_meets_the_criterion(n: int, corrupted: float, dropped: float, server: str) -> None:
    bad, lost = int(corrupted * n), int(dropped * n)
    expected = search(n, bad, lost, server)
    try:
        p = choose(n, corrupted, dropped, server)
    except InputError:
        assert expected is None
        return
    if expected is None:
        assert p.complete
    else:
        assert (p.degree, p.threshold) == expected
        assert not p.complete


def test_the_smallest_for_random_cohorts() -> None:
    """However the search goes about it."""
    rng = np.random.default_rng(6)
    for _ in range(40):
        n, server = int(rng.integers(101, 190)), str(rng.choice(SERVERS))
        bad, lost = (int(x) for x in n * rng.uniform(0, [0.6, 0.4]))
        expected = search(n, bad, lost, server)
        try:
            p = choose(n, (bad + 0.25) / n, (lost + 0.25) / n, server)
        except InputError:
            assert expected is None
            continue
        assert (None if p.complete else (p.degree, p.threshold)) == expected


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize(("n", "fraction"), [(1000, 0.05), (1000, 0.2), (4000, 0.1)])
def test_one_less_is_not_enough(n: int, fraction: float, server: str) -> None:
    p = choose(n, fraction, fraction, server)
    k, t, bad, lost = p.degree, p.threshold, p.corrupted, n - p.quorum
    assert (bad, lost) == (fraction * n, fraction * n)
    assert not leaks(n, bad, k, t, server)
    assert not fails(n, lost, k, t)
    assert 2 * (t - 1) <= k or leaks(n, bad, k, t - 1, server)
    smaller = range((k - 2) // 2 + 1, k - 1)
    assert all(leaks(n, bad, k - 2, s, server) or fails(n, lost, k - 2, s) for s in smaller)


@pytest.mark.parametrize(("n", "corrupted"), [(200, 0.05), (1000, 0.05), (1000, 0.2), (3000, 0.3)])
def test_active_needs_more_than_half_of_the_neighbours_and_the_corrupted(n: int, corrupted: float) -> None:
    """2t > degree + corrupted neighbours but for n P <= 2^-80; a curious server's parameters would not do."""
    active, curious = choose(n, corrupted, 0.05, "active"), choose(n, corrupted, 0.05)
    k, t, bad = active.degree, active.threshold, active.corrupted
    allowed = 2 * t - k - 1  # the most corrupted neighbours that are harmless
    assert n * sum(ways(n - 1, bad, k)[allowed + 1 :]) << 80 <= math.comb(n - 1, k)
    assert leaks(n, bad, curious.degree, curious.threshold, "active")
    assert (k, t) > (curious.degree, curious.threshold)


@pytest.mark.parametrize("total", [1, 2, 7, 30, 100])
def test_tails_against_binomial_coefficients(total: int) -> None:
    for marked in {0, 1, total // 3, total // 2, total - 1, total}:
        for drawn in {1, total // 2, total - 1, total} - {0}:
            found = hypergeometric(total, marked, drawn)
            exact = [Fraction(w, math.comb(total, drawn)) for w in ways(total, marked, drawn)]
            assert len(found) == drawn + 1
            for p, q in zip(found.tolist(), exact, strict=True):
                assert q <= Fraction(p) <= q * Fraction(1_000_003, 1_000_000)  # rounded up, by no more than it says


@pytest.mark.parametrize(("total", "marked", "drawn"), [(999, 50, 30), (9999, 3300, 422), (65535, 20000, 600)])
def test_tails_of_large_cohorts_never_fall_below_the_truth(total: int, marked: int, drawn: int) -> None:
    found, whole = hypergeometric(total, marked, drawn), math.comb(total, drawn)
    for t in range(1, drawn + 1, 7):
        upper = Fraction(sum(ways(total, marked, drawn)[t:]), whole)
        p = Fraction(float(found[t:].sum()))
        assert p >= upper or upper < Fraction(1, 2**900)
        assert p <= upper * Fraction(1_000_003, 1_000_000) + Fraction(1, 2**900)


def test_probabilities_add_up() -> None:
    for total, marked, drawn in ((999, 50, 30), (10, 0, 3), (10, 10, 3), (65535, 30000, 1000)):
        assert hypergeometric(total, marked, drawn).sum() == pytest.approx(1, abs=3e-6)
    assert np.flatnonzero(hypergeometric(10, 8, 5)).tolist() == [3, 4, 5]  # only 2 are not marked


# The complete graph


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("n", [*range(3, 41), 67, 99, 100])
def test_thresholds_of_the_complete_graph(n: int, server: str) -> None:
    for bad in range(n - 2):
        p = choose(n, (bad + 0.25) / n, 0.0, server)
        t = p.threshold
        assert p.complete
        assert (p.degree, p.holders, p.corrupted) == (n - 1, n, bad)
        assert t <= p.quorum <= n

        def enough(t: int, n: int = n, bad: int = bad) -> bool:
            rule = 3 * t > 2 * n and 2 * t > n + bad if server == "active" else 2 * t > n
            return rule and t >= bad + FEWEST_HONEST

        assert enough(t)
        assert not enough(t - 1)


@pytest.mark.parametrize(
    ("server", "n", "t"), [("curious", 10, 6), ("curious", 11, 6), ("active", 9, 7), ("active", 10, 7)]
)
def test_more_than_half_and_more_than_two_thirds(server: str, n: int, t: int) -> None:
    assert choose(n, 0.0, 0.0, server).threshold == t


def test_where_the_graph_becomes_sparse() -> None:
    assert choose(COMPLETE_UP_TO, 0.05, 0.05).complete
    assert not choose(COMPLETE_UP_TO + 1, 0.05, 0.05).complete
    assert choose(1000, 0.05, 0.05, threshold=600).complete


def test_a_larger_threshold() -> None:
    p = choose(20, 0.1, 0.25, threshold=14)
    assert (p.threshold, p.quorum) == (14, 14)
    for bad, least in ((10, 11), (16, 11), (0, 11)):
        with pytest.raises(InputError, match=f"threshold = {bad}: must be between {least} and 15"):
            choose(20, 0.1, 0.25, threshold=bad)


# Fractions


@pytest.mark.parametrize(
    ("fraction", "n", "count"), [(0.29, 100, 29), (0.57, 100, 57), (0.07, 100, 7), (0.1, 30, 3), (0.3, 10, 3)]
)
def test_a_fraction_of_a_cohort_is_counted_in_whole_clients(fraction: float, n: int, count: int) -> None:
    """29% of 100 are 29: doubles make it 28.999999999999996, and one corrupted client too few is assumed."""
    assert choose(n, corrupted=fraction, dropped=0.0).corrupted == count


def test_fractions_of_a_client_do_not_count() -> None:
    assert choose(11, 0.1, 0.0).corrupted == 1
    assert choose(9, 0.1, 0.0).corrupted == 0


# Refusals


def test_one_client_or_two() -> None:
    for n in (1, 2):
        with pytest.raises(InputError, match="needs 3 clients or more"):
            choose(n, 0.0, 0.0)
    assert choose(3, 0.0, 0.0).complete


@pytest.mark.parametrize("name", ["corrupted", "dropped"])
def test_somebody_has_to_be_left(name: str) -> None:
    fractions: dict[str, Any] = {"corrupted": 0.0, "dropped": 0.0, name: 1.0}
    with pytest.raises(InputError, match=f"^{name} = 1.0: must be below 1"):
        choose(10, **fractions)


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize(("n", "bad"), [(3, 1), (10, 8), (10, 9), (50, 48), (300, 298)])
def test_fewer_than_three_honest(n: int, bad: int, server: str) -> None:
    """The advice names how many clients that many corrupted call for; with them it works, with one less it does not."""
    with pytest.raises(InputError, match=r"^clients = ") as error:
        choose(n, (bad + 0.25) / n, 0.0, server)
    corrupted, needed = map(int, re.findall(r"\d+", error.value.remedy))
    assert corrupted == bad
    assert choose(needed, (bad + 0.25) / needed, 0.0, server).corrupted == bad
    with pytest.raises(InputError):
        choose(needed - 1, (bad + 0.25) / (needed - 1), 0.0, server)


def follow(n: int, corrupted: float, dropped: float, server: str = "curious", threshold: int | None = None) -> None:
    """Do what the refusal says."""
    with pytest.raises(InputError, match=r"^dropped = ") as error:
        choose(n, corrupted, dropped, server, threshold)
    advice = re.search(r"at most (\d+) may drop out: ([\d.e-]+)$", error.value.remedy)
    assert advice is not None
    choose(n, corrupted, float(advice[2]), server)
    choose(n, corrupted, (int(advice[1]) + 0.25) / n, server)  # and it is the most
    with pytest.raises(InputError):
        choose(n, corrupted, (int(advice[1]) + 1.25) / n, server)


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("n", [3, 7, 10, 30, 100])
def test_too_many_may_drop(n: int, server: str) -> None:
    follow(n, 0.0, 0.9, server)
    if n > 5:
        follow(n, 0.2, 0.9, server)


@pytest.mark.parametrize("n", [2002, 4000])
def test_too_many_may_drop_of_many(n: int) -> None:
    """The advised fraction must not be rounded up to one more client."""
    follow(n, 0.0, 0.9)


def test_honest_survivors() -> None:
    p = choose(20, corrupted=0.1, dropped=0.2)
    assert p.honest_survivors == p.quorum - 2


@pytest.mark.parametrize(
    ("n", "corrupted", "dropped"), [(3, 0.0, 0.34), (4, 0.25, 0.25), (10, 0.5, 0.4), (20, 0.5, 0.3), (100, 0.6, 0.3)]
)
def test_every_sum_has_three_honest_clients(n: int, corrupted: float, dropped: float) -> None:
    """A sum over the corrupted and one honest client is that client's update; three must be in every sum."""
    try:
        p = choose(n, corrupted, dropped)
    except InputError:
        return
    assert p.honest_survivors >= FEWEST_HONEST, p


# Whatever is given

numbers = st.integers(-2, 400) | st.sampled_from([0, 1, 2, 3, 100, 101, 1000, LARGEST_COHORT + 1, 2**70])
junk = st.none() | st.booleans() | st.text(max_size=3) | st.floats() | st.just(10**400) | st.binary(max_size=3)
fractions = st.floats(0, 1) | st.floats(0, 0.4) | junk


@settings(max_examples=more(120, 300))
@given(clients=numbers | junk, corrupted=fractions, dropped=fractions, server=st.sampled_from([*SERVERS, "x", None]))
def test_only_sound_parameters_are_chosen(clients: Any, corrupted: Any, dropped: Any, server: Any) -> None:
    try:
        p = choose(clients, corrupted, dropped, server)
    except InputError:
        return
    n, t = p.clients, p.threshold
    bad, lost = p.corrupted, math.floor(Fraction(dropped) * n)
    assert n == clients
    assert abs(bad - corrupted * n) < 1 + 1e-9
    assert n - bad >= FEWEST_HONEST
    assert 2 * t > p.holders
    assert t <= p.holders
    assert t <= p.quorum <= n
    assert p.quorum <= max(n - lost, t)  # the dropouts that were announced do not stop it
    assert p.honest_survivors >= FEWEST_HONEST
    if p.complete:
        assert server == "curious" or (3 * t > 2 * n and 2 * t > n + bad)
        assert n - lost >= t
    else:
        assert p.degree % 2 == 0
        assert 2 <= p.degree < min(n - 1, p.quorum)  # the smallest roster has neighbours for all
        assert not leaks(n, bad, p.degree, t, server)
        assert not fails(n, lost, p.degree, t)


@settings(max_examples=more(120, 300))
@given(st.integers(1, 8), st.integers(-1, 8), st.integers(-1, 8), st.integers(-1, 8), st.integers(-1, 4))
def test_parameters_are_sound_or_refused(n: int, degree: int, threshold: int, quorum: int, corrupted: int) -> None:
    try:
        p = Parameters(n, degree, threshold, quorum, corrupted)
    except InputError:
        return
    assert 0 <= corrupted < n >= 2
    assert p.honest_survivors == quorum - corrupted >= 1
    assert p.complete == (degree == n - 1)
    assert p.complete or (degree % 2 == 0 and 2 <= degree <= n - 2)
    assert p.holders == (n if p.complete else degree)
    assert 2 * threshold > p.holders >= threshold >= 2
    assert max(threshold, corrupted + 1) <= quorum <= n
    assert p.complete or quorum > degree  # the smallest roster has neighbours for all


@pytest.mark.parametrize("field", ["clients", "degree", "threshold", "quorum", "corrupted", "server"])
@pytest.mark.parametrize("bad", [None, "x", 4.0, 4.5, True, b"4", [], 10**400, math.nan])
def test_fields_of_another_type(field: str, bad: object) -> None:
    good: dict[str, Any] = {"clients": 10, "degree": 4, "threshold": 4, "quorum": 6, "corrupted": 1, "server": "active"}
    Parameters(**good)
    with pytest.raises(InputError, match=f"^{field} = "):
        Parameters(**{**good, field: bad})


@pytest.mark.parametrize(("corrupted", "dropped"), [(0.01, 0.6), (0.05, 0.05), (0.3, 0.3)])
def test_the_search_tries_few_degrees(corrupted: float, dropped: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for a cohort for which only the complete graph would do, or nothing: not each of thousands of degrees."""
    tried, threshold = [], parameters._threshold

    def counted(n: int, bad: int, lost: int, server: str, k: int) -> int | None:
        tried.append(k)
        return threshold(n, bad, lost, server, k)

    monkeypatch.setattr(parameters, "_threshold", counted)
    parameters._sparse.cache_clear()
    with pytest.raises(InputError) if dropped > 0.5 else nullcontext():
        choose(16_000, corrupted, dropped)
    assert 0 < len(tried) < 4 * math.log2(16_000)


def test_a_fraction_that_is_nobody_is_said() -> None:
    assert "secure.corrupted = 0.1 of 9 clients is nobody" in Secure().doubt(9)
    assert [Secure().doubt(10), Secure(corrupted=0.0).doubt(9)] == ["", ""]
