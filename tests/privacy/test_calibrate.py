"""The noise that a budget asks for: within it, and hardly less noise is not."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest

from confide.base.errors import InputError
from confide.graph.graph import Graph
from confide.plans.privacy import Budget
from confide.plans.words import Cap, Centroid, PublicPoint, Random
from confide.privacy.accountant import account
from confide.privacy.calibrate import PAIR_RATIO, calibrate, calibrate_sum
from confide.privacy.course import Account
from confide.privacy.price import largest
from confide.privacy.reveal import Reveal
from confide.privacy.sensitivity import Sensitivity
from confide.rounds.schemes import scheme
from exploring import more

RING = Graph.ring(4)
NOISY = ("homomorphic", "shared", "own-clean", "partial:0.5", "per-link", "per-link-clean", "pairwise", "central")


def unit(**given: Any) -> Sensitivity:
    return Sensitivity(**({"step": 0.1, "bound": 1.0, "norm": "l1", "level": "unit"} | given))


def less(name: str, sigma: float, law: str, by: float = 0.999) -> Any:
    pair = PAIR_RATIO * sigma * by if name == "pairwise" else 0.0
    return scheme(name, sigma * by, noise=law, sigma_pair=pair)


def tight(
    name: str, s: Sensitivity, budget: Budget, T: int, noise: str, threat: str = "links", release: str = "none"
) -> None:
    found = calibrate(name, RING, s, budget, rounds=T, noise=noise, threat=threat, release=release)
    again = account(
        found.scheme, RING, s, rounds=T, noise=noise, threat=threat, release=found.release, delta=budget.delta
    )
    assert again == found.account
    assert budget.allows(again)
    worse = account(
        less(name, found.scheme.sigma, noise.removeprefix("discrete-")),
        RING,
        s,
        rounds=T,
        noise=noise,
        threat=threat,
        release=found.release,
        delta=budget.delta,
    )
    assert not budget.allows(worse)


@pytest.mark.parametrize("name", NOISY)
@pytest.mark.parametrize("noise", ["gaussian", "discrete-gaussian", "laplace", "discrete-laplace"])
def test_just_enough_noise(name: str, noise: str) -> None:
    if name == "pairwise" and noise != "gaussian":
        with pytest.raises(InputError, match="Gaussian noise only"):
            calibrate(name, RING, unit(), Budget(epsilon=2.0), rounds=3, noise=noise)
        return
    if noise == "laplace" and name not in ("homomorphic", "central"):
        return  # convolutions at each step of the search: two schemes are enough
    budget, rounds = (0.5, 2) if noise == "laplace" else (2.0, 3)  # a small epsilon has few losses to convolve
    tight(name, unit(), Budget(epsilon=budget), rounds, noise)


@pytest.mark.parametrize("rho", [1e-6, 0.5, 1e6])
def test_rho_as_a_budget_has_a_closed_form(rho: float) -> None:
    T = 30
    found = calibrate("homomorphic", RING, unit(), Budget(rho=rho), rounds=T)
    expected = 0.2 * math.sqrt(T * (T + 1) * (2 * T + 1) / 6 / (2 * rho))
    assert found.scheme.sigma == pytest.approx(expected, rel=1e-8)
    assert found.account.rho == pytest.approx(rho, rel=1e-8)
    assert (found.account.rho or 0) <= rho * (1 + 1e-12)


EVERY = list(itertools.product(("homomorphic", "shared", "own-clean"), ("gaussian", "laplace")))


@pytest.mark.parametrize(("name", "noise"), more([EVERY[0], EVERY[3], EVERY[4]], EVERY))
def test_with_random_participation(name: str, noise: str) -> None:
    s = unit(level="client", sampled=3, clients=10, proof=PublicPoint(), participation=Random(0.3))
    tight(name, s, Budget(epsilon=1.5), 4, noise)


def test_with_a_cap() -> None:
    s = unit(level="client", sampled=2, proof=PublicPoint(), participation=Cap(3))
    tight("homomorphic", s, Budget(epsilon=1.5), 9, "gaussian")


def test_against_neighbours_pairwise_needs_more() -> None:
    tight("pairwise", unit(), Budget(epsilon=2.0), 3, "gaussian", threat="neighbours")
    alone = calibrate("pairwise", RING, unit(), Budget(rho=1.0), rounds=3)
    caught = calibrate("pairwise", RING, unit(), Budget(rho=1.0), rounds=3, threat="neighbours")
    assert caught.scheme.sigma > 1.5 * alone.scheme.sigma


# Releases


@pytest.mark.parametrize("name", ["homomorphic", "own-clean", "per-link"])
@pytest.mark.parametrize("noise", ["gaussian", "discrete-laplace"])
@pytest.mark.parametrize("size", [1.0, 1e-7])
def test_a_release_is_paid_from_the_same_budget(name: str, noise: str, size: float) -> None:
    """Also where the update is so small that a release with noise 1 would cost nothing: it still needs its noise."""
    s, budget = unit(step=0.1 * size), Budget(epsilon=2.0)
    found = calibrate(name, RING, s, budget, rounds=3, noise=noise, release="centroid")
    assert isinstance(found.release.release, Centroid)
    assert found.release.sigma > 0
    again = account(found.scheme, RING, s, rounds=3, noise=noise, release=found.release)
    assert not again.leak
    assert budget.allows(again)
    assert again.epsilon == pytest.approx(2.0, rel=1e-3)
    smaller = replace(found.release, release=Centroid(0.999 * found.release.sigma))
    assert not budget.allows(account(found.scheme, RING, s, rounds=3, noise=noise, release=smaller))


@pytest.mark.parametrize(("threat", "colluders"), [("links", 1), ("colluders:0,1", 2), ("neighbours", 2)])
def test_shares_of_a_release_are_sized_for_the_adversary(threat: str, colluders: int) -> None:
    """Half of rho 1 for the release: (3 s / P)^2 / 2 / v, v of the noise on the mean that stays unknown."""
    found = calibrate("homomorphic", RING, unit(), Budget(rho=1.0), rounds=3, threat=threat, release="centroid")
    assert found.release.colluders == colluders
    known = 0 if threat == "links" else colluders
    unknown = found.release.sigma**2 * (4 - known) / (4 - colluders)
    assert (3 * 0.2 / 4) ** 2 / 2 / unknown == pytest.approx(0.5, rel=1e-6)
    again = account(found.scheme, RING, unit(), rounds=3, threat=threat, release=found.release)
    assert again == found.account


def test_half_of_rho_goes_to_each() -> None:
    found = calibrate("homomorphic", RING, unit(), Budget(rho=1.0), rounds=5, release="centroid")
    messages = account(found.scheme, RING, unit(), rounds=5)
    assert messages.rho == pytest.approx(0.5, rel=1e-6)
    assert found.account.rho == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("name", ["shared", "pairwise", "central"])
@pytest.mark.parametrize("noise", ["gaussian", "discrete-laplace"])
def test_a_release_that_the_messages_determine_is_free(name: str, noise: str) -> None:
    if name == "pairwise" and noise != "gaussian":
        return
    found = calibrate(name, RING, unit(), Budget(epsilon=2.0), rounds=3, noise=noise, release="centroid")
    plain = calibrate(name, RING, unit(), Budget(epsilon=2.0), rounds=3, noise=noise)
    assert found.scheme == plain.scheme
    assert found.release == Reveal(Centroid(0.0))
    assert not found.account.leak
    assert found.account.epsilon == plain.account.epsilon


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_local_training_pays_for_the_release_alone(noise: str) -> None:
    budget = Budget(epsilon=1.0)
    found = calibrate("local-only", RING, unit(), budget, rounds=5, noise=noise, release="centroid")
    assert found.scheme.sigma == 0.0
    assert budget.allows(found.account)
    assert not budget.allows(
        account(
            found.scheme,
            RING,
            unit(),
            rounds=5,
            noise=noise,
            release=Reveal(Centroid(0.999 * found.release.sigma)),
        ),
    )


# Refusals


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"epsilon": 1.0, "rho": 1.0},
        {"epsilon": 0.0},
        {"epsilon": -1.0},
        {"epsilon": math.nan},
        {"epsilon": math.inf},
        {"rho": math.nan},
        {"rho": 0},
        {"epsilon": 1.0, "delta": 0.0},
        {"epsilon": 1.0, "delta": 1.0},
        {"epsilon": 1.0, "delta": math.nan},
        {"epsilon": 1.0, "delta": -1e-5},
    ],
)
def test_nonsense_budgets(given: dict[str, float]) -> None:
    with pytest.raises(InputError) as e:
        Budget(**given)
    assert e.value.field in ("epsilon", "rho", "delta")


@pytest.mark.parametrize("name", ["none", "homomorphic"])
def test_no_noise_helps_against_a_leak(name: str) -> None:
    with pytest.raises(InputError, match=r"has no noise to calibrate|no noise helps"):
        calibrate(name, RING, unit(), Budget(epsilon=1.0), rounds=3, threat="own-server")
    with pytest.raises(InputError, match="no noise"):
        calibrate(name, RING, unit(), Budget(epsilon=1.0), rounds=3, release="local")
    with pytest.raises(InputError, match="no noise"):
        calibrate("none", RING, unit(), Budget(epsilon=1.0), rounds=3, release="centroid")


@pytest.mark.parametrize("noise", ["laplace", "discrete-laplace"])
@pytest.mark.parametrize(("rho", "each"), [(0.03, math.sqrt(0.02)), (6.0, 2.0), (15.0, 5.0)])
def test_the_rho_of_a_pure_epsilon(noise: str, rho: float, each: float) -> None:
    """Three rounds of 2 mu B / b each: a rho of half its square, or of itself where that is less, from 2 on."""
    found = calibrate("shared", RING, unit(), Budget(rho=rho), rounds=3, noise=noise)
    assert found.scheme.sigma == pytest.approx(math.sqrt(2) * 0.2 / each, rel=1e-8)
    assert found.account.rho == pytest.approx(3 * min(each**2 / 2, each), rel=1e-7)
    assert found.account.epsilon_pure == pytest.approx(3 * each, rel=1e-7)


def test_rho_does_not_exist_for_random_participation() -> None:
    s = unit(level="client", sampled=3, clients=10, participation=Random(0.3))
    with pytest.raises(InputError, match="has no rho; give epsilon and delta"):
        calibrate("shared", RING, s, Budget(rho=1.0), rounds=3)
    every = replace(s, sampled=10, participation=Random(1.0))  # the bound for all is the smaller
    found = calibrate("shared", RING, every, Budget(rho=1.0), rounds=3)
    assert found.scheme.sigma == pytest.approx(0.02 * math.sqrt(3 / 2), rel=1e-8)


@pytest.mark.parametrize(
    "given",
    [
        {"name": "magic"},
        {"name": "partial:2"},
        {"noise": "uniform"},
        {"threat": "colluders:9"},
        {"release": "centroid:nan"},
        {"rounds": 0},
        {"pair_ratio": math.nan, "name": "pairwise"},
        {"pair_ratio": -1.0, "name": "pairwise"},
    ],
)
def test_nonsense_questions(given: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"name": "shared", "rounds": 3} | given
    with pytest.raises(InputError):
        calibrate(asked.pop("name"), RING, unit(), Budget(epsilon=1.0), **asked)


# Rounds


@pytest.mark.parametrize("paid", [0, 1, 7, 50])
def test_affordable_rounds(paid: int) -> None:
    s = scheme("homomorphic", 1.0, noise="gaussian")

    def spend(T: int) -> Account:
        return account(s, RING, unit(), rounds=T)

    budget = Budget(rho=(spend(paid).rho or 0.0) * 1.001 if paid else 1e-9)
    assert largest(50, lambda T: budget.allows(spend(T))) == min(paid, 50)
    if 0 < paid < 50:
        assert budget.allows(spend(paid))
        assert not budget.allows(spend(paid + 1))


@pytest.mark.parametrize("budget", [Budget(epsilon=2.0), Budget(rho=0.3), Budget(epsilon=0.1, delta=1e-8)])
@pytest.mark.parametrize("bits", [4, 24])
def test_just_enough_noise_inside_the_sum(budget: Budget, bits: int) -> None:
    s = Sensitivity(0.1, 1.0, sampled=20, dim=10)
    noise, spent = calibrate_sum(s, budget, rounds=50, honest=12, corrupted=2, fraction_bits=bits)
    assert spent.adversary.endswith("with up to 2 corrupted clients")
    assert spent.by == "sum"
    assert budget.allows(spent)
    assert noise.share_quanta >= 0.5
    less = type(noise).sized(noise.sigma * 0.999, 12, sampled=20, fraction_bits=bits, dim=10)
    s_less = account(scheme("none"), RING, s, rounds=50, threat="own-server", delta=budget.delta, sum_noise=less)
    assert not budget.allows(s_less)


def test_the_narrowest_share_may_be_more_than_enough() -> None:
    s = Sensitivity(0.1, 1e-9, sampled=20, dim=1)
    noise, spent = calibrate_sum(s, Budget(epsilon=50.0), rounds=1, honest=2, fraction_bits=10)
    assert noise.share_quanta == pytest.approx(0.5)
    assert (spent.epsilon or 0.0) < 50.0
    for missing in ({"sampled": None, "level": "unit"}, {"dim": None}):
        with pytest.raises(InputError, match="give L and M"):
            calibrate_sum(replace(s, **missing), Budget(epsilon=1.0), rounds=1, honest=2)  # type: ignore[arg-type]
