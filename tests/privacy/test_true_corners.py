"""Numbers at the corners of what doubles and plans can say: each was printed smaller than what the test attains."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import confide
from builders import a_plan, a_shared_plan, priced
from confide.base.errors import InputError
from confide.engines.release import LOST, Releasing
from confide.graph.graph import Graph
from confide.laws.conversion import gaussian_epsilon
from confide.laws.law import GAUSSIAN
from confide.laws.secret_stream import SecretStream
from confide.plans.words import Centroid, OwnServer
from confide.privacy.accountant import account
from confide.privacy.asked import add_up
from confide.privacy.price import price
from confide.privacy.reveal import Reveal
from confide.privacy.sensitivity import Sensitivity
from confide.problems.federation import Federation
from confide.problems.models import Linear
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL, Failures
from confide.rounds.arithmetic import on_grid
from confide.rounds.clipping import Clip, clip
from confide.rounds.reference import prepare
from confide.rounds.schemes import Noise, Place, Scheme, scheme
from confide.secure.settings import Secure

PAIR = Graph.path(2)

# ---- what gets around a clip


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")  # of the risk, which nobody promises anything about
@pytest.mark.parametrize("engine", ["compiled", "reference"])
@pytest.mark.parametrize(("feature", "label"), [(1e-165, 1e167), (1e-160, 1e163), (1e-170, 1e200), (1e120, 1e120)])
def test_a_tiny_feature_with_a_huge_label_is_clipped(engine: str, feature: float, label: float) -> None:
    """The square of the feature vanished, and with it the norm that the gradient is held against."""

    def row(x: float, d: float) -> tuple[np.ndarray, np.ndarray]:
        return np.full((1, 1), x), np.array([d])

    algorithm = GFL(
        scheme("shared", 0.0, noise="gaussian"), step=0.1, sampled=1, local_steps=1, batch=1, clip=Clip("example", 1.0)
    )
    problem = Problem(Federation.from_clients([[row(feature, label)], [row(0.0, 0.0)]]), Linear(0.0), private=False)
    run = confide.simulate(problem, PAIR, algorithm, rounds=1, engine=engine, progress=False)
    assert run.diverged is None
    assert float(run.models[0].sum()) == pytest.approx(0.1)  # mu B, shared between the two


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("bound", [1e-100, 1e-15, 1.0])
@pytest.mark.parametrize("x", [1e-170, 1e-155, 1e-99, 1e160, 1.7e308])
def test_no_share_of_a_bound_is_lost(x: float, bound: float, norm: str) -> None:
    kept = clip(np.array([x]), bound, norm)
    assert float(kept[0]) == pytest.approx(min(x, bound), rel=1e-14, abs=0.0)


def test_a_bound_whose_square_vanishes_is_refused() -> None:
    with pytest.raises(InputError, match="squares of it vanish"):
        Clip("example", 1e-180)
    with pytest.raises(InputError, match=r"algorithm\.step"):
        a_plan(step=1e-60, bound=1e-60)


# ---- noise inside the sum, where the update itself is a float


def test_the_sum_counts_what_floats_add_to_one_example() -> None:
    """Beside a model of 558 a step of 1e-11 is rounded to 2^-43, far more than one of a thousand examples moves it."""
    L, n, f, bound, w = 4, 1000, 44, 1.0329019210455686e-11, 558.4441074
    X = np.ones((n, 1))
    X[1:500] = 0.0
    secure = Secure(ring_bits=64, sigma=1e-11, corrupted=0.0, dropped=0.0)
    algorithm = GFL(
        scheme("shared", 100.0, noise="gaussian"), step=1.0, sampled=L, local_steps=1, batch=n, replacement=False,
        clip=Clip("example", bound), arithmetic="fixed", fraction_bits=f, aggregation=secure,
    )  # fmt: skip

    def problem(first: float) -> Problem:
        d = np.zeros(n)
        d[0] = first
        return Problem(Federation.from_clients([[(X, d)] * L] * 2), Linear(0.0))

    def sent(first: float, model: float) -> int:
        r = prepare(problem(first), [PAIR], algorithm, 3, 0)(0)
        update, _ = r.train(2, 0, 0, r.arithmetic.value(r.arithmetic.state(np.array([model]))))
        return int(r.arithmetic.encode(update)[0])

    models = w * (1.0 + np.linspace(0.0, 1e-3, 60))
    gap = max(abs(sent(1e9, m) - sent(-1e9, m)) for m in models) * 2.0**-f / L
    paid = priced(confide.Privacy(level="example"), problem(0.0), [PAIR], algorithm, 3)
    assert gap > 2.0 * bound / L / n + 2.0**-f / L  # its part of the batch, and a quantum
    assert gap <= min(paid.account(3, 0, OwnServer()).deltas)


# ---- schemes of one's own that tell or keep almost nothing


def told_apart(by: float) -> Callable[[Graph], np.ndarray]:
    """Server 1 gets a little more of everybody's noise than the others."""

    def receivers(graph: Graph) -> np.ndarray:
        found = np.ones((graph.P, graph.P))
        found[:, 1] += by
        return found

    return receivers


@pytest.mark.parametrize("by", [1e-6, 5e-10, 1e-10, 1e-12, 1e-14])
def test_two_noises_that_are_almost_one_have_no_price(by: float) -> None:
    """y_1 = psi + (1 + by) z and y_2 = psi + z: by psi = (1 + by) y_2 - y_1, without noise. It had epsilon 1.3."""
    s = Scheme("almost", GAUSSIAN, (Noise(Place.SERVER, 1.0),), receivers=told_apart(by))
    unit = Sensitivity(0.1, 1.0, level="unit")
    with pytest.raises(InputError, match="as good as the same"):
        account(s, Graph.ring(4), unit, rounds=3)
    assert account(replace(s, receivers=told_apart(1e-4)), Graph.ring(4), unit, rounds=3).leak


@pytest.mark.parametrize("carry", [1e-6, 1e-13, 1e-15])
@pytest.mark.parametrize(("level", "threat"), [("client", "links"), ("unit", "own-client")])
def test_a_state_that_keeps_almost_nothing_has_no_price(carry: float, level: str, threat: str) -> None:
    """What it keeps is shown to clients without noise, and turns the gradients of others round; it was taken for 0."""
    s = Scheme("almost", GAUSSIAN, (Noise(Place.SERVER, 1.0, taps=(1.0, -0.5)),), carry=carry)
    with pytest.raises(InputError, match=r"scheme\.carry"):
        account(s, Graph.ring(4), Sensitivity(0.1, 1.0, level=level, sampled=5), rounds=3, threat=threat)


# ---- conversions


def delta_of(mu: float, epsilon: float) -> Decimal:
    """Phi(a) - e^epsilon Phi(b) of mu-GDP to a hundred places, by the integral of (e^(mu t - mu^2 / 2) - e^epsilon) phi
    from where it is 0: Simpson's rule on the first part of it, which leaves some out."""
    with localcontext() as context:
        context.prec = 100
        m, e = Decimal(mu), Decimal(epsilon)
        start, steps = e / m + m / 2, 4000
        end = start + 40 / (start + 1)
        h = (end - start) / steps

        def f(t: Decimal) -> Decimal:
            return ((m * t - m * m / 2).exp() - e.exp()) * (-t * t / 2).exp()

        parts = [f(start + h * n) * (1 if n in (0, steps) else 4 if n % 2 else 2) for n in range(steps + 1)]
        pi = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
        return sum(parts, Decimal(0)) * h / 3 / (2 * pi).sqrt()


@pytest.mark.parametrize("delta", [1e-5, 1e-17, 1e-100, 1e-300])
@pytest.mark.parametrize("mu", [1e-12, 1e-10, 1e-8, 1e-4])
def test_gaussian_noise_attains_no_more_than_its_epsilon(mu: float, delta: float) -> None:
    epsilon = gaussian_epsilon(mu, delta)
    if epsilon == 0.0:
        assert mu / math.sqrt(2.0 * math.pi) <= delta  # all that two normal laws so near each other differ by
    else:
        assert delta_of(mu, epsilon * (1.0 + 1e-9)) <= Decimal(delta)  # as it is printed
        assert delta_of(mu, epsilon * (1.0 - 1e-4)) > Decimal(delta)


def test_no_square_of_a_deviation_vanishes() -> None:
    """mu^2 = T (2 step B / sigma)^2, of which sigma^2 alone was too small for a double."""
    s = Sensitivity(1e-60, 1e-100, level="unit")
    found = account(scheme("shared", 2e-154, noise="gaussian"), PAIR, s, rounds=4, delta=1e-30)
    assert found.mu_gdp == pytest.approx(2.0 * 2e-160 / 2e-154, rel=1e-12)


# ---- who takes part


@pytest.mark.parametrize(
    "changes", [{"dropout": 0.5}, {"failures": Failures(unit=0.5)}, {"failures": Failures(link=0.5)}]
)
def test_where_an_update_may_be_lost_no_data_attain_the_number(changes: dict[str, Any]) -> None:
    assert price(a_shared_plan(sampled=5)).account(4).exact
    assert not price(a_shared_plan(sampled=5, **changes)).account(4).exact


def test_a_rate_is_as_precise_as_it_is_small() -> None:
    """A client of a million is drawn a thousandth more often than this says."""
    s = Sensitivity(0.1, 1.0, sampled=1, clients=10**6, participation="random:0.000001")
    with pytest.raises(InputError, match="participation"):
        replace(s, participation="random:0.000000999")


# ---- a plan that no engine runs has no number


def test_a_plan_says_what_a_round_can_do() -> None:
    central = scheme("central", sigma=1.0, noise="gaussian")
    a_plan(scheme=central)
    grid = {"scheme": replace(central, law=central.law.discrete), "graph": on_grid(Graph.ring(4)), "fraction_bits": 24}
    with pytest.raises(InputError, match="divides by P"):
        a_plan(**grid)
    with pytest.raises(InputError, match="perfect centre"):
        a_plan(scheme=central, failures=Failures(unit=0.5))
    with pytest.raises(InputError, match="built-in local step"):
        a_plan(built_in=False)


def test_two_schemes_of_one_name_that_share_their_noise_have_no_sum(tmp_path: Path) -> None:
    """y = psi + z, and of the other run y' = psi + 2 z by the same seed: 2 y - y' is clean. It was epsilon 1.5."""

    def spent(by: float) -> Any:
        s = Scheme("x", GAUSSIAN, (Noise(Place.SERVER, 1.0),), receivers=lambda g: np.full((g.P, g.P), by))
        algorithm = GFL(s, step=0.1, sampled=5, local_steps=1, batch=5, clip=Clip("example", 1.0))
        problem = confide.problems.regression(units=3, clients=5, samples=10)
        promised, given = confide.Privacy(level="unit"), tmp_path / "ledger.jsonl"
        confide.simulate(problem, Graph.ring(3), algorithm, rounds=3, privacy=promised, ledger=given, progress=False)
        return add_up([given], 1e-5)["epsilon"]

    assert spent(1.0) is not None
    assert spent(2.0) is None


# ---- a release in floating point


def test_what_holds_no_noise_is_not_released() -> None:
    """Beside 1e12 a double has no room for 1e-6: two releases were alike to the last bit."""
    made = Releasing(Reveal(Centroid(1e-6)), (Graph.ring(3),), None)
    for size in (0.0, 1.0, 1e3):
        state = np.full((3, 2), size)
        one, other = (made.make(state, state, SecretStream()) for _ in range(2))
        assert one is not None
        assert other is not None
        assert (one != other).all()
    large = np.full((3, 2), 1e12)
    assert made.make(large, large, SecretStream()) is None


def test_a_run_says_that_it_released_nothing() -> None:
    algorithm = GFL(
        scheme("homomorphic", 1e12, noise="gaussian"), sampled=5, local_steps=1, batch=5, clip=Clip("example", 1.0)
    )
    problem = confide.problems.regression(units=3, clients=5, samples=10)
    promised = confide.Privacy(level="unit", release="centroid:1e-6")
    run = confide.simulate(problem, Graph.ring(3), algorithm, rounds=3, privacy=promised, progress=False)
    assert run.released is None
    assert LOST in run.notes
