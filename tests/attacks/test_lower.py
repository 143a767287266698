"""Lower bounds stay below known truths, and come near them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from confide.attacks.lower import (
    counted_epsilon,
    epsilon_of,
    gaussian_look,
    laplace_looks,
    mixture_look,
    rounded_epsilon,
)
from confide.laws.conversion import gaussian_epsilon, laplace_epsilon

DELTA = 1e-5


@pytest.mark.parametrize("mu", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("times", [1, 7, 100])
def test_gaussian_looks_add_up(mu: float, times: int) -> None:
    look = gaussian_look(mu / math.sqrt(times))._replace(times=times)
    truth = gaussian_epsilon(mu, DELTA)
    assert 0.998 * truth <= epsilon_of([look], DELTA) <= truth


def test_looks_of_two_kinds_add_up() -> None:
    both = [gaussian_look(1.5), gaussian_look(0.5)._replace(times=7)]
    truth = gaussian_epsilon(2.0, DELTA)
    assert 0.999 * truth <= epsilon_of(both, DELTA) <= truth


def test_nothing_is_told_by_nothing() -> None:
    assert epsilon_of([], DELTA) == 0.0
    assert epsilon_of(laplace_looks(np.zeros(3)), DELTA) == 0.0
    assert epsilon_of([gaussian_look(0.0)], DELTA) == 0.0
    assert epsilon_of([gaussian_look(0.0)] * 3, DELTA) == 0.0
    assert rounded_epsilon(0, 1, 3.0, DELTA) == 0.0


@pytest.mark.parametrize("ratios", [[0.2] * 20, [0.1, 0.2, 0.3, 0.4], [1.5]])
def test_laplace_stays_below_its_composition_and_below_pure_epsilon(ratios: list[float]) -> None:
    found = epsilon_of(laplace_looks(np.array(ratios)), DELTA)
    most = min(sum(ratios), laplace_epsilon(np.array(ratios), DELTA))
    assert 0.98 * most <= found <= most * (1 + 1e-9)


def test_a_laplace_look_is_the_loss_of_that_noise() -> None:
    (look,) = laplace_looks(np.array([0.8]))
    assert look.mass.sum() == pytest.approx(1.0)
    assert (look.mass * np.exp(-look.loss)).sum() == pytest.approx(1.0)  # Q is a distribution too
    assert (look.loss.min(), look.loss.max()) == (-0.8, 0.8)


def test_a_client_that_is_drawn_by_chance() -> None:
    """K = 100, L = 1, sigma = mu B / L, 200 rounds under zero-out, everybody else opposed: 6.05 (issue 23, item 3)."""
    absent = 0.99, 0.0
    there, zero = [absent, (0.01, 2.0)], [absent, (0.01, 1.0)]
    assert epsilon_of([mixture_look(there, zero, 200)], DELTA) == pytest.approx(6.05, abs=0.01)
    always = epsilon_of([mixture_look([(1.0, 2.0)], [(1.0, 1.0)], 20)], DELTA)
    assert always == pytest.approx(gaussian_epsilon(math.sqrt(20), DELTA), rel=1e-3)


def test_known_participation_is_an_average_over_how_often() -> None:
    assert counted_epsilon(1.0, 10, 0.5, DELTA) == pytest.approx(gaussian_epsilon(0.5 * math.sqrt(10), DELTA))
    assert counted_epsilon(0.1, 1, 2.0, DELTA) == pytest.approx(gaussian_epsilon(2.0, 10 * DELTA))


@pytest.mark.parametrize(("steps", "terms", "sigma"), [(3, 1, 2.0), (64, 64, 10.0), (1024, 1024, 25.6), (5, 1, 0.4)])
def test_rounded_noise_tells_no_more_than_the_noise(steps: int, terms: int, sigma: float) -> None:
    truth = gaussian_epsilon(steps / math.sqrt(terms) / sigma, DELTA)
    found = rounded_epsilon(steps, terms, sigma, DELTA)
    assert found <= truth
    if sigma > 1:
        assert found > 0.95 * truth
