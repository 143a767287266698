"""One contract for every law: it spreads as it says, costs what it says, and is drawn alike by who draws it."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant
from numpy.typing import NDArray
from scipy import stats

from confide.base.errors import InputError
from confide.base.randomness import Purpose, key, stream, words_for
from confide.engines import kernel
from confide.laws.law import LAWS, Conversion, Law, Norm
from confide.laws.secret_stream import SecretStream

Floats = NDArray[np.float64]
ROWS = pytest.mark.parametrize("law", LAWS.values(), ids=str)
ON_GRID = pytest.mark.parametrize("law", [law for law in LAWS.values() if law.on_grid], ids=str)
REAL = pytest.mark.parametrize("law", [law for law in LAWS.values() if not law.on_grid], ids=str)
N = 60_000
ORDERS = np.array([1.1, 1.5, 2.0, 4.0, 12.0])
SIGMA = 3.0  # so many quanta that the discrete laws spread as the continuous ones do


def drawn(law: Law, sigma: float, n: int = N) -> Floats:
    if law.on_grid:
        return law.integers(SecretStream(bytes(32)), sigma, 1.0, n).astype(np.float64)
    return sigma * law.reals(stream(5, Purpose.SERVER_NOISE, (1, 2), words_for(n)), n)


def spreads_as(law: Law, sigma: float, x: Floats) -> bool:
    """Whether the mean square of these draws is that of so large a standard deviation, to five standard errors."""
    fourth = 6.0 if law.norm is Norm.L1 else 3.0  # of a Laplace and of a normal law, in sigma^4
    return bool(abs(np.mean(x**2) / sigma**2 - 1.0) < 5.0 * math.sqrt((fourth - 1.0) / len(x)))


def log_density(law: Law, sigma: float, x: Floats) -> Floats:
    """Up to a constant; of a discrete law at integers, of a continuous one on a fine grid."""
    scale = sigma / math.sqrt(2.0)
    return np.asarray(-np.abs(x) / scale if law.norm is Norm.L1 else -0.5 * (x / sigma) ** 2)


def divergence(law: Law, sigma: float, moved: float, order: float) -> float:
    """Renyi divergence of the law from itself, moved, by summation over a grid that a whole number of steps moves."""
    x = np.arange(-400.0, 400.0, 1.0 if law.on_grid else moved / 2.0**9)
    p, q = (log_density(law, sigma, x - by) for by in (0.0, moved))
    p, q = (of - np.logaddexp.reduce(of) for of in (p, q))
    return float(np.logaddexp.reduce(order * p + (1.0 - order) * q) / (order - 1.0))


@ROWS
def test_it_spreads_as_it_says(law: Law) -> None:
    x = drawn(law, SIGMA)
    variance = np.var(x) if law.on_grid else SIGMA**2
    assert variance == pytest.approx(SIGMA**2, rel=0.04)  # of 3 quanta the discrete Laplace has 2 % less
    assert spreads_as(law, math.sqrt(variance), x)
    assert not spreads_as(law, 2.0 / 3.0 * SIGMA, x)
    assert not spreads_as(law, 1.5 * SIGMA, x)
    assert not spreads_as(law, SIGMA, drawn(law, 2.0 / 3.0 * SIGMA))
    assert not spreads_as(law, SIGMA, drawn(law, 1.5 * SIGMA))


@ROWS
@pytest.mark.parametrize("moved", [1.0, 2.0, 7.0])
def test_a_round_costs_no_less_than_it_shows(law: Law, moved: float) -> None:
    """Its rho, its pure epsilon and its Renyi curve against the divergence of its own density, summed up."""
    spent = law.cost(np.array([moved]), SIGMA, 1.0)
    found = np.array([divergence(law, SIGMA, moved, a) for a in ORDERS])
    assert law.renyi is not None
    curve = np.array([law.renyi(np.array([moved]), SIGMA, 1.0, a)[0] for a in ORDERS])
    assert np.all(found <= ORDERS * spent.rho[0] * (1 + 1e-6))
    assert np.all(found <= curve * (1 + 1e-5))
    if law is not LAWS["discrete-laplace"]:  # of which only the pure epsilon is used
        np.testing.assert_allclose(found, curve, rtol=1e-3)
    if spent.pure is None:
        np.testing.assert_allclose(found, ORDERS * spent.rho[0], rtol=1e-3)  # attained: no rho below it would do
        return
    assert np.all(found <= spent.pure[0])
    assert divergence(law, SIGMA, moved, 300.0) == pytest.approx(spent.pure[0], rel=0.02)


@ROWS
def test_a_cost_is_dear_enough_only_at_its_own_sigma(law: Law) -> None:
    """What two thirds of the noise shows costs more than the noise is said to cost; 3/2 of it costs less."""
    order = 4.0
    said = law.cost(np.array([2.0]), SIGMA, 1.0)
    less, more = (divergence(law, factor * SIGMA, 2.0, order) for factor in (2.0 / 3.0, 1.5))
    here = divergence(law, SIGMA, 2.0, order)
    assert more < here < less
    assert here <= order * said.rho[0] * (1 + 1e-6)
    assert law.pure or less > order * said.rho[0]
    assert said.pure is None or divergence(law, 2.0 / 3.0 * SIGMA, 2.0, 300.0) > said.pure[0]


def test_costs_are_those_of_dp_accounting() -> None:
    for law, event in (
        (LAWS["gaussian"], dp_accounting.GaussianDpEvent(SIGMA / 2.0)),
        (LAWS["laplace"], dp_accounting.LaplaceDpEvent(SIGMA / math.sqrt(2.0) / 2.0)),
    ):
        accountant = rdp_privacy_accountant.RdpAccountant(ORDERS.tolist())
        accountant.compose(event)
        assert law.renyi is not None
        ours = [law.renyi(np.array([2.0]), SIGMA, 1.0, a)[0] for a in ORDERS]
        np.testing.assert_allclose(ours, accountant._rdp, rtol=1e-9)


@ROWS
def test_rounds_are_priced_at_once_and_copies_add_up(law: Law) -> None:
    deltas, copies = np.array([0.0, 0.5, 2.0]), np.array([1.0, 0.0, 3.0])
    spent, pure = law.cost(deltas, SIGMA, copies), law.pure
    assert (spent.pure is not None) == pure
    for one in (x for x in spent if x is not None):
        assert one.shape == (3,)
        assert one[:2].tolist() == [0.0, 0.0]
    single = law.cost(deltas[2:], SIGMA, 1.0)
    assert spent.rho[2] == pytest.approx(3.0 * single.rho[0])
    if spent.pure is not None and single.pure is not None:
        assert spent.pure[2] == pytest.approx(3.0 * single.pure[0])
    assert not law.cost(deltas, math.inf, 0.0).rho.any()


@ROWS
def test_conversions_are_known_by_name(law: Law) -> None:
    assert law.conversions
    assert set(law.conversions) <= set(Conversion) - {Conversion.RENYI}


@REAL
def test_a_seeded_stream_is_reproducible_and_the_compiled_engine_draws_it(law: Law) -> None:
    for size in (1, 2, 7):
        words = stream(3, Purpose.LINK_NOISE, (2, 1, 4), words_for(size))
        one = law.reals(words, size)
        assert one.tobytes() == law.reals(words.copy(), size).tobytes()
        source = kernel.Source(
            np.uint64(0), False, False, np.zeros((1, 8), np.uint32), np.zeros((2, 16), np.uint32), words.copy()
        )
        out = np.empty(size)
        k = np.uint64(key(3, Purpose.LINK_NOISE, 2, 1, 4))
        kernel.fill_noise(source, k, np.int64(0), 2, 1, 4, law.kernel, 0.7, out)
        np.testing.assert_allclose(out, 0.7 * one, rtol=1e-13)
        other = law.reals(stream(4, Purpose.LINK_NOISE, (2, 1, 4), words_for(size)), size)
        assert not np.any(one == other)


@ON_GRID
def test_a_simulation_can_draw_what_a_deployment_draws(law: Law) -> None:
    """Four words of a seeded stream key the deployed sampler: the same seed, the same integers, of the same law."""
    words = stream(7, Purpose.SERVER_NOISE, (1, 0), 4)
    x = law.integers(SecretStream.of(words), SIGMA, 0.25, 20_000)
    assert x.dtype == np.int64
    assert x.tobytes() == law.integers(SecretStream.of(words.copy()), SIGMA, 0.25, 20_000).tobytes()
    deployed = law.integers(SecretStream(words.astype("<u8").tobytes()), SIGMA, 0.25, 20_000)
    assert x.tobytes() == deployed.tobytes()
    shape = stats.laplace(scale=SIGMA / math.sqrt(2.0)) if law.norm is Norm.L1 else stats.norm(scale=SIGMA)
    assert stats.kstest(0.25 * (x + np.random.default_rng(0).random(len(x)) - 0.5), shape.cdf).pvalue > 0.01
    other = stream(8, Purpose.SERVER_NOISE, (1, 0), 4)
    assert not np.array_equal(x, law.integers(SecretStream.of(other), SIGMA, 0.25, 20_000))


@ROWS
def test_partners(law: Law) -> None:
    assert (law.discrete.on_grid, law.continuous.on_grid) == (True, False)
    assert law.discrete.continuous is law.continuous
    assert law in (law.discrete, law.continuous)
    assert law.discrete.norm is law.continuous.norm
    assert (law.stream is None) == law.on_grid == (law.secret is not None) == (law.kernel is None)


@ROWS
def test_its_name_is_what_it_is_called(law: Law) -> None:
    assert str(law) == law.name
    assert Law.parse(law.name) is law
    assert Law.parse(law) is law
    with pytest.raises(InputError, match=r"^scheme\.noise = .*known: "):
        Law.parse(law, "scheme.noise", on_grid=not law.on_grid)


def test_unlike_numbers_in_the_compiled_engine() -> None:
    numbers = [law.kernel for law in LAWS.values() if law.kernel is not None]
    assert len(set(numbers)) == len(numbers)


def test_what_a_law_does_not_draw_is_refused() -> None:
    with pytest.raises(InputError, match="draws no reals"):
        LAWS["discrete-laplace"].reals(np.zeros(2, np.uint64), 1)
    with pytest.raises(InputError, match="has no sampler"):
        LAWS["laplace"].integers(SecretStream(bytes(32)), 1.0, 1.0, 1)
