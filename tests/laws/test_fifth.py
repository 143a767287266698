"""A law that nobody was taught: each part prices it by its own row or refuses it, and none takes it for another."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from confide.attacks import worlds
from confide.base.errors import InputError
from confide.base.randomness import Purpose
from confide.deploy.machines.draws import secret_noise
from confide.engines.compiled import CompiledEngine
from confide.graph.graph import Graph
from confide.laws.conversion import pure_epsilon, renyi_epsilon
from confide.laws.law import LAPLACE, LAWS, Conversion, Law, Norm, Spent
from confide.plans.text import encoded
from confide.plans.words import Always, Random
from confide.privacy.accountant import account
from confide.privacy.ledger import Cost
from confide.privacy.participation import amplified_curve
from confide.privacy.sensitivity import Sensitivity
from confide.privacy.statement import statement
from confide.rounds.algorithm import GFL
from confide.rounds.schemes import scheme

Floats = NDArray[np.float64]
RING = Graph.ring(4)
ONCE = Sensitivity(0.1, 1.0, norm="l1", level="unit")
SIGMA = 2.0


def logistic_cost(deviation: Floats, sigma: float, copies: Floats | float) -> Spent:
    """Of logistic noise with scale s = sqrt(3) sigma / pi the log density has slope at most 1 / s."""
    each = copies * deviation * math.pi / (math.sqrt(3.0) * sigma)
    return Spent(np.minimum(each**2 / 2.0, each), each)


def narrow_cost(deviation: Floats, sigma: float, copies: Floats | float) -> Spent:
    """A law of which only a rho is known."""
    return Spent(7.0 * copies * (deviation / sigma) ** 2)


LOGISTIC = Law(
    "logistic", "continuous logistic", Norm.L1, False, None, logistic_cost, None, (Conversion.PURE, Conversion.PURES)
)
NARROW = Law("narrow", "continuous narrow", Norm.L2, False, None, narrow_cost, None, (Conversion.ZCDP,))


@pytest.fixture(params=[LOGISTIC, NARROW], ids=str)
def fifth(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Law:
    law: Law = request.param
    monkeypatch.setitem(LAWS, law.name, law)
    return law


def spent(law: Law, sensitivity: Sensitivity = ONCE, **given: Any) -> Any:
    return account(scheme("shared", SIGMA, noise=law), RING, sensitivity, rounds=3, **given)


def test_the_accountant_prices_it_by_its_own_cost(fifth: Law) -> None:
    a = spent(fifth)
    own = fifth.cost(np.array(a.deltas), SIGMA, 1.0)
    each = own.rho if own.pure is None else own.pure
    assert a.costs == tuple(each.tolist())
    assert a.rho == pytest.approx(own.rho.sum())
    assert a.mu_gdp is None
    if own.pure is None:
        assert (a.conversion, a.epsilon_pure) == (Conversion.ZCDP, None)
    else:
        assert a.epsilon == pytest.approx(pure_epsilon(own.pure, 1e-5))
        assert a.epsilon_pure == pytest.approx(own.pure.sum())
        assert a.conversion in fifth.conversions
    assert not a.exact
    assert a.law.startswith(fifth.words)
    for known in ("gaussian", "laplace"):
        assert spent(LAWS[known]).epsilon != pytest.approx(a.epsilon, rel=1e-3)


def test_links_add_their_copies(fifth: Law) -> None:
    one, both = (account(scheme(n, SIGMA, noise=fifth), RING, ONCE, rounds=1) for n in ("shared", "per-link-clean"))
    assert fifth.cost(np.array(both.deltas), SIGMA, 2.0).rho[0] == pytest.approx(both.rho)
    assert both.epsilon > one.epsilon


def test_a_release_has_shares_of_its_own(fifth: Law) -> None:
    quiet = spent(fifth, release="centroid:0.5")
    assert quiet.rho >= spent(fifth).rho
    assert quiet.mu_gdp is None


def test_edge_noise_and_amplification_are_refused(fifth: Law) -> None:
    pairs = scheme("pairwise", 1.0, noise=fifth, sigma_pair=1.0)
    with pytest.raises(InputError, match="proof for Gaussian noise only"):
        account(pairs, RING, ONCE, rounds=2)
    with pytest.raises(InputError, match="implemented for Gaussian"):
        amplified_curve(ONCE, 0.1, fifth, np.ones(2))


def test_participation_by_chance_asks_for_a_curve(fifth: Law, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one the price is that of a client who is always there, and says why; with one it is the law's own."""
    drawn = Sensitivity(0.1, 1.0, norm="l1", sampled=1, clients=10, participation=Random(0.1))
    always = replace(drawn, participation=Always())
    a = spent(fifth, drawn)
    assert a.epsilon == spent(fifth, always).epsilon
    assert "random is refused (no Rényi curve" in a.assumptions[-1]
    taught = replace(fifth, renyi=lambda x, sigma, copies, order: 0.0 * x)
    monkeypatch.setitem(LAWS, fifth.name, taught)
    assert spent(taught, drawn).epsilon == pytest.approx(renyi_epsilon(lambda orders: 0.0 * orders, 1e-5))


def test_a_ledger_holds_what_it_charges(fifth: Law) -> None:
    charged = Cost.of(0.3, 1.0, SIGMA, fifth)
    rho, pure = (0.3**2 / 2.0, 0.3) if fifth.pure else (0.3, None)
    assert charged == Cost(rho, pure, 1.0, SIGMA, fifth.name)
    assert Cost.of(None, 1.0, SIGMA, fifth) == Cost(None, None, 1.0, SIGMA, fifth.name)


def test_a_ledger_refuses_what_is_no_law() -> None:
    with pytest.raises(InputError, match=r"event\.cost\.law = 'logistic'"):
        Cost(0.1, None, 1.0, 1.0, "logistic")
    with pytest.raises(InputError, match=r"noise = 'logistic'"):
        account(scheme("shared", 1.0), RING, ONCE, rounds=1, noise="logistic")
    with pytest.raises(InputError, match=r"scheme\.noise = 'logistic'"):
        scheme("shared", 1.0, noise="logistic")


def test_a_statement_and_a_plan_name_it(fifth: Law) -> None:
    made = scheme("shared", SIGMA, noise=fifth.name)
    assert made.law is fifth
    assert statement(made, RING, ONCE, rounds=2).noise == fifth.name == encoded(made)["law"]


def test_no_machine_draws_it(fifth: Law) -> None:
    with pytest.raises(InputError, match="only integers leave a machine"):
        secret_noise(1.0, {}, bytes(32))(Purpose.SERVER_NOISE, (1, 0), fifth, 1.0, 2)
    with pytest.raises(InputError, match="draws no reals"):
        fifth.reals(np.zeros(2, np.uint64), 2)


def test_the_compiled_engine_refuses_it(fifth: Law, ragged: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also under a number that the kernel does not know."""
    for law in (fifth, replace(fifth, kernel=2)):
        monkeypatch.setitem(LAWS, fifth.name, law)
        with pytest.raises(InputError, match="the compiled engine does not draw it"):
            CompiledEngine(ragged(M=2), [RING], GFL(scheme("shared", 1.0, noise=law), sampled=1), 1, 0)


def test_attacks_know_no_test_of_it(fifth: Law) -> None:
    with pytest.raises(InputError, match="no test of this noise is known"):
        worlds.heard(scheme("shared", 1.0, noise=fifth), RING, 0, frozenset())
    assert not fifth.normal
    assert np.isfinite(worlds.heard(scheme("shared", 1.0, noise=LAPLACE), RING, 0, frozenset())).all()
