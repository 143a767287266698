"""Noise that leaves a machine: the stated laws, their distance counted exactly, and nothing said about the key."""

from __future__ import annotations

import math
import subprocess
import sys
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import optimize, stats

from confide.base.errors import InputError
from confide.laws import noise
from confide.laws.noise import LAWS, discrete_gaussian, discrete_laplace
from confide.laws.secret_stream import SecretStream
from draws import statistical_distance, variance

SAMPLERS = {"laplace": discrete_laplace, "gaussian": discrete_gaussian}
KEY = bytes(range(32))
SMALL, LARGE = (0.3, 1, 3.7, 50), (400.0, 2.0**12, 2.0**20 + 0.5, 2.0**30, 2.0**40, 2.0**50)
Integers = NDArray[np.int64]


def dice_of(law: str, scale: float) -> Any:
    """The tables of the sampler, one for each digit; the tests of their arrays have no other way to them."""
    return noise._dice(law, scale)


def sample(law: str, scale: float, n: int, key: bytes = KEY) -> Integers:
    return SAMPLERS[law](SecretStream(key), scale, n)


def pmf(law: str, scale: float, x: Integers) -> NDArray[np.float64]:
    reach = np.arange(-60 * math.ceil(scale), 60 * math.ceil(scale) + 1)
    weight = {"laplace": lambda z: np.exp(-np.abs(z) / scale), "gaussian": lambda z: np.exp(-((z / scale) ** 2) / 2)}
    return weight[law](x) / weight[law](reach).sum()


def pmf_test(x: Integers, law: str, scale: float) -> float:
    """Chi-square of every integer that is expected ten times, the rest in the last cell of its side."""
    faces = np.arange(-60 * math.ceil(scale), 60 * math.ceil(scale) + 1)
    expected = len(x) * pmf(law, scale, faces)
    common = faces[expected >= 10]
    low, high = min(common[0], -1), max(common[-1], 1)
    clipped = np.clip(x, low, high)
    observed = np.bincount(clipped - low, minlength=high - low + 1)
    expected = np.bincount(np.clip(faces, low, high) - low, weights=expected)
    return float(stats.chisquare(observed, expected * len(x) / expected.sum()).pvalue)


def cdf(law: str, scale: float, x: Integers) -> NDArray[np.float64]:
    """P(X <= x): exact for Laplace, for Gaussian off by less than 1 / (50 sigma^2), far below the sampling error."""
    if law == "gaussian":
        return stats.norm.cdf((x + 0.5) / scale)
    tail = np.exp(-np.where(x >= 0, x + 1, -x) / scale) / (1 + math.exp(-1 / scale))
    return np.where(x >= 0, 1 - tail, tail)


def bin_test(x: Integers, law: str, scale: float, bins: int = 200) -> float:
    quantile = {"laplace": stats.laplace.ppf, "gaussian": stats.norm.ppf}[law]
    edges = np.rint(quantile(np.arange(1, bins) / bins) * scale).astype(np.int64)
    expected = np.diff(cdf(law, scale, edges), prepend=0.0, append=1.0)
    observed = np.bincount(np.searchsorted(edges, x, side="left"), minlength=bins)
    return float(stats.chisquare(observed, expected * len(x)).pvalue)


def two_samples(a: Integers, b: Integers, bins: int = 40) -> float:
    edges = np.unique(np.quantile(np.concatenate([a, b]), np.arange(1, bins) / bins))
    table = np.array([np.bincount(np.searchsorted(edges, x), minlength=len(edges) + 1) for x in (a, b)])
    return float(stats.chi2_contingency(table[:, table.sum(axis=0) > 20]).pvalue)


def other(law: str, scale: float) -> tuple[str, float]:
    """The other family with the same variance."""
    twin = "gaussian" if law == "laplace" else "laplace"
    target = variance(law, scale)
    return twin, float(optimize.brentq(lambda s: variance(twin, s) - target, scale / 5, scale * 5))


# The laws


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("scale", SMALL)
def test_every_integer_has_its_probability(law: str, scale: float) -> None:
    x = sample(law, scale, 4_000_000)
    assert pmf_test(x, law, scale) > 1e-3
    for wrong in (scale * 2 / 3, scale * 3 / 2):
        assert pmf_test(x, law, wrong) < 1e-9
    assert pmf_test(x, *other(law, scale)) < 1e-9


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("scale", LARGE)
def test_large_scales(law: str, scale: float) -> None:
    x = sample(law, scale, 200_000)
    assert bin_test(x, law, scale) > 1e-3
    for wrong in (scale * 2 / 3, scale * 3 / 2):
        assert bin_test(x, law, wrong) < 1e-9
    twin = "gaussian" if law == "laplace" else "laplace"
    assert bin_test(x, twin, math.sqrt(variance(law, scale) / variance(twin, 1e6)) * 1e6) < 1e-9
    spread = np.random.default_rng(1).uniform(-0.5, 0.5, len(x))  # so that Kolmogorov-Smirnov meets no ties
    continuous = {"laplace": stats.laplace, "gaussian": stats.norm}[law]
    assert stats.kstest((x + spread) / scale, continuous.cdf, method="asymp").pvalue > 1e-3
    assert stats.kstest((x + spread) / (scale * 1.05), continuous.cdf, method="asymp").pvalue < 1e-6


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("scale", [2.0**20 + 0.5, 2.0**30, 2.0**40])
def test_low_digits_of_a_large_scale_are_uniform(law: str, scale: float) -> None:
    """Bins cannot see a fault in the low digits or in their carries."""
    x = sample(law, scale, 2_000_000)
    for digits in (x & 63, (x >> 6) & 63, x & 4095):
        assert stats.chisquare(np.bincount(digits)).pvalue > 1e-3


@pytest.mark.parametrize("scale", [400.0, 900.0])
def test_joined_gaussian_integer_by_integer(scale: float) -> None:
    assert len(dice_of("gaussian", scale)) == 2
    assert pmf_test(sample("gaussian", scale, 4_000_000), "gaussian", scale) > 1e-3


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("scale", [*SMALL, *LARGE])
def test_mean_symmetry_and_moments(law: str, scale: float) -> None:
    n = 250_000
    x = sample(law, scale, n).astype(float)
    v = variance(law, scale)
    fourth = np.mean(x**4)
    assert abs(x.mean()) < 4.5 * math.sqrt(v / n)
    assert abs(np.mean(x**2) - v) < 4.5 * math.sqrt((fourth - v * v) / n)
    ahead, behind = int((x > 0).sum()), int((x < 0).sum())
    assert stats.binomtest(ahead, ahead + behind).pvalue > 1e-3


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("scale", [3.7, 1000.25])
def test_like_opendp(law: str, scale: float) -> None:
    import opendp.prelude as dp

    dp.enable_features("contrib")
    domain = dp.vector_domain(dp.atom_domain(T=int))
    if law == "laplace":
        mechanism = dp.m.make_laplace(domain, dp.l1_distance(T=int), scale=scale)
    else:
        mechanism = dp.m.make_gaussian(domain, dp.l2_distance(T=float), scale=scale)
    theirs = np.array(mechanism([0] * 10_000))  # seeded by the OS: once in 10^10 runs it looks like another law
    assert two_samples(sample(law, scale, 400_000), theirs) > 1e-10
    for wrong in (scale * 2 / 3, scale * 3 / 2):
        assert two_samples(sample(law, wrong, 400_000), theirs) < 1e-20
    assert two_samples(sample(*other(law, scale), 400_000), theirs) < 1e-20


def test_scales_near_zero_give_zero() -> None:
    for law in LAWS:
        for scale in (5e-324, 1e-300, 1e-3):
            assert not sample(law, scale, 1000).any()
            assert variance(law, scale) == pytest.approx(0, abs=1e-300)
            assert statistical_distance(law, scale) < 2**-112


# The stated distance


def masses(die: Any) -> dict[int, int]:
    """The die's probabilities times 2^128, from the very arrays that `throw` reads."""
    column = 1 << (128 - die.bits)
    found: dict[int, int] = {}
    for c, (high, low, alias) in enumerate(zip(die.high.tolist(), die.low.tolist(), die.alias.tolist(), strict=True)):
        keep = ((high - (c << (64 - die.bits))) << 64) + low
        assert 0 <= keep < column
        for value, mass in ((c - die.radius, keep), (alias, column - keep)):
            if mass:
                found[value] = found.get(value, 0) + mass
    return found


def exact(law: str, scale: float) -> dict[int, Fraction]:
    """The sampler's probabilities, by counting every word it could be handed."""
    total = {0: 1}
    dice = dice_of(law, scale)
    for die in reversed(dice):
        faces, previous, total = masses(die), total, {}
        for high, p in previous.items():
            for low, q in faces.items():
                total[64 * high + low] = total.get(64 * high + low, 0) + p * q
    return {x: Fraction(p, 1 << (128 * len(dice))) for x, p in total.items()}


@pytest.mark.parametrize(
    ("law", "scale"),
    [
        *(("laplace", s) for s in (0.3, 1.0, 3.7, 32.5, 50.0)),
        *(("gaussian", s) for s in (0.3, 1.0, 3.7, 50.0, 320.5)),  # 320.5: the join with the smallest t
    ],
)
def test_distance_counted_exactly(law: str, scale: float) -> None:
    found = exact(law, scale)
    assert sum(found.values()) == 1
    assert all(p == found[-x] for x, p in found.items())
    with localcontext() as context:
        context.prec = 70
        s, reach = Decimal(scale), max(found) + 40
        power = (lambda x: -x / s) if law == "laplace" else (lambda x: -(x * x) / (2 * s * s))
        half = [power(Decimal(x)).exp() for x in range(reach + 1)]
        whole = 2 * sum(half) - half[0]
        moved = sum(
            abs(Decimal(p.numerator) / Decimal(p.denominator) - half[abs(x)] / whole)
            for x, p in ((x, found.get(x, Fraction(0))) for x in range(-reach, reach + 1))
        )
    distance = float(moved / 2)
    print(
        f"{law} {scale}: counted 2^{math.log2(distance):.2f}, stated {math.log2(statistical_distance(law, scale)):.2f}"
    )
    assert 0 < distance <= statistical_distance(law, scale)
    assert max(abs(x) for x in found) <= (84 if law == "laplace" else 20) * scale + 1


def test_joins_are_as_close_as_the_proof_needs() -> None:
    v_1, v = Fraction(noise.JOIN), Fraction(noise.SPLIT_GAUSSIAN)  # the smallest v that is split has the smallest t
    t_squared = v_1 * (v - v_1) / noise.K**2 / v
    assert t_squared >= 4
    e = 2 * sum(math.exp(-2 * (math.pi * j) ** 2 * float(t_squared)) for j in (1, 2, 3))
    assert e / (1 - e) < 2**-112


@pytest.mark.parametrize("law", LAWS)
def test_distance_is_small_for_every_scale(law: str) -> None:
    distances = [statistical_distance(law, 2.0**k) for k in range(-10, 51)]
    assert all(2**-113 < d < 2**-108 for d in distances)
    assert statistical_distance("gaussian", 2.0**50) > statistical_distance("gaussian", 2.0**10)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("scale", [0.3, 20.0, 320.0, 321.0, 12345.678, 2.0**30, 2.0**50])
def test_dice_add_up_to_the_variance_and_the_range(law: str, scale: float) -> None:
    dice = dice_of(law, scale)
    v = sum(
        64 ** (2 * i) * Fraction(sum(x * x * m for x, m in masses(d).items()), 1 << 128) for i, d in enumerate(dice)
    )
    assert float(v) == pytest.approx(variance(law, scale), rel=1e-13)
    largest = sum(64**i * die.radius for i, die in enumerate(dice))
    assert largest <= (84 if law == "laplace" else 20) * scale + 1
    assert largest < 2**57


def test_laplace_digits_repeat() -> None:
    """The digits above the lowest are those of scale / 64, so counting small scales covers large ones."""
    for above, smaller in zip(dice_of("laplace", 2.0**50)[1:], dice_of("laplace", 2.0**44), strict=True):
        assert masses(above) == masses(smaller)


class Handed:
    """A stream of chosen words."""

    def __init__(self, *words: int) -> None:
        self.left = list(words)

    def words(self, n: int) -> NDArray[np.uint64]:
        out, self.left = self.left[:n], self.left[n:]
        return np.array(out, dtype=np.uint64)


def test_tie_is_settled_by_a_second_word() -> None:
    die = dice_of("gaussian", 3.7)[0]
    c = next(c for c in range(2 * die.radius + 1) if die.high[c] > c << (64 - die.bits))
    high, low = int(die.high[c]), int(die.low[c])
    own, alias = c - die.radius, int(die.alias[c])
    handed = Handed(high, high, high - 1, high + 1, low - 1, low)
    assert die.throw(handed, 4).tolist() == [own, alias, own, alias]  # type: ignore[arg-type]
    assert handed.left == []


# Variance


@pytest.mark.parametrize("scale", [0.05, 0.2, 0.5, 0.99, 1.0, 1.01, 2.0, 7.3, 40.0])
def test_variance_is_the_sum(scale: float) -> None:
    x = np.arange(-4000, 4001)
    for law in LAWS:
        weight = np.exp(-np.abs(x) / scale) if law == "laplace" else np.exp(-((x / scale) ** 2) / 2)
        assert variance(law, scale) == pytest.approx(float((x * x * weight).sum() / weight.sum()), rel=1e-12)


def test_variance_approaches_the_continuous_one() -> None:
    assert variance("gaussian", 2.0**30) == 2.0**60
    assert variance("laplace", 2.0**30) == pytest.approx(2 * 2.0**60, rel=1e-15)


# Keys


def test_same_key_same_noise_other_key_other_noise() -> None:
    for law in LAWS:
        x = sample(law, 2.0**24, 20_000)
        assert np.array_equal(x, sample(law, 2.0**24, 20_000))
        assert np.mean(x == sample(law, 2.0**24, 20_000, bytes(32))) < 0.01
        y, z = (SAMPLERS[law](SecretStream(), 2.0**24, 20_000) for _ in range(2))
        assert np.mean(y == z) < 0.01
        assert abs(np.corrcoef(y, z)[0, 1]) < 0.05  # seven standard errors: not once in 10^11 draws
        stream = SecretStream(KEY)
        assert not np.array_equal(SAMPLERS[law](stream, 2.0**24, 100), SAMPLERS[law](stream, 2.0**24, 100))


def test_published_draws() -> None:
    """Two ends of an edge may run different releases: what a key means must not change."""
    some = [0, 1, 8191, 8192, 9999]
    assert sample("laplace", 1e6, 10_000)[some].tolist() == [194356, -192813, -352630, 1974599, 1772298]
    assert sample("gaussian", 1e6, 10_000)[some].tolist() == [227699, 607423, -440337, -1326541, -193675]


# Edges


@pytest.mark.parametrize("bad", [0, -1.0, math.nan, math.inf, 2.0**50 * 1.001, 10**400, "1", None, True])
def test_bad_scales(bad: object) -> None:
    stream = SecretStream()
    for call in (
        lambda: discrete_laplace(stream, bad, 1),  # type: ignore[arg-type]
        lambda: discrete_gaussian(stream, bad, 1),  # type: ignore[arg-type]
    ):
        with pytest.raises(InputError, match=r"^(scale|sigma) = "):
            call()


@pytest.mark.parametrize("bad", [-1, 1.5, "3", None, True, 2**33])
def test_bad_sizes(bad: object) -> None:
    stream = SecretStream()
    for call in (discrete_laplace, discrete_gaussian):
        with pytest.raises(InputError, match=r"^size = "):
            call(stream, 1.0, bad)  # type: ignore[arg-type]


def test_sizes_and_types() -> None:
    for law in LAWS:
        for n in (0, 1, 8191, 8192, 8193, 20_000):
            x = sample(law, 1e6, n)
            assert x.shape == (n,)
            assert x.dtype == np.int64
            assert n < 1000 or np.count_nonzero(x == 0) < 10  # no part of it is left unfilled


def test_a_client_loads_neither_numba_nor_scipy() -> None:
    code = "import sys, confide.laws.noise; print([m for m in ('numba', 'scipy', 'networkx') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


class Counted(SecretStream):
    """Remembers how many words it was asked for, and when."""

    __slots__ = ("asked",)

    def __init__(self, key: bytes) -> None:
        super().__init__(key)
        self.asked: list[int] = []

    def words(self, n: int) -> NDArray[np.uint64]:
        self.asked.append(n)
        return super().words(n)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("scale", "dice"), [(1.0, 1), (2.0**10, 2), (2.0**20, 4), (2.0**30, 6), (2.0**40, 7)])
def test_a_sample_is_one_word_for_every_die(law: str, scale: float, dice: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No rejection, no loop over samples, and tables that are made once; `confide bench noise` has the rates."""
    stream, n = Counted(KEY), 3 * noise.CHUNK
    SAMPLERS[law](stream, scale, 1)  # builds the tables
    monkeypatch.setattr(noise, "_die", lambda *_, **__: pytest.fail("a table was made again"))
    stream.asked.clear()
    SAMPLERS[law](stream, scale, n)
    assert stream.asked == [noise.CHUNK] * (3 * len(dice_of(law, scale)))
    assert len(dice_of(law, scale)) <= dice
