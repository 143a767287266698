"""The bounds hold in simulation wherever their step condition holds, and are refused elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from confide.base.errors import InputError
from confide.engines.driver import simulate
from confide.graph.graph import Graph
from confide.problems.federation import Federation
from confide.problems.gaussian import regression
from confide.problems.models import Linear
from confide.problems.problem import Problem
from confide.rounds import reference
from confide.rounds.algorithm import GFL, Failures
from confide.rounds.clipping import Clip
from confide.rounds.schemes import Exchange, Scheme, scheme
from confide.theory.bounds import bounds, fixed_point, largest_step, radius
from confide.theory.bounds_printed import printed_centroid, printed_disagreement, printed_individual
from confide.theory.bounds_round import one_round
from confide.theory.constants import constants
from confide.theory.constants_clients import clients
from confide.theory.prediction import predict
from exploring import more
from paper import appendix_d_factor

CURVES = {"centroid": "centroid_msd", "disagreement": "disagreement", "individual": "individual_msd"}


def settings(**changes: object) -> GFL:
    base: dict[str, object] = {"scheme": scheme("none"), "step": 0.3, "sampled": 2, "local_steps": (1, 4), "batch": 2}
    return GFL(**(base | changes))


# ---- they hold

CASES = [  # model, graph, algorithm, share of the largest step
    ("linear", Graph.ring(5), settings(scheme=scheme("homomorphic", 0.5)), 0.1),
    ("linear", Graph.ring(5, "metropolis"), settings(scheme=scheme("per-link", 0.3, sigma_client=0.2)), 0.3),
    ("logistic", Graph.ring(5), settings(scheme=scheme("homomorphic", 0.5)), 0.3),
    ("logistic", Graph.star(4), settings(scheme=scheme("per-link-clean", 0.3), local_steps=1, sampled=3), 0.5),
    ("logistic", Graph.complete(4, "uniform"), settings(local_steps=5, batch=1), 0.2),
    ("logistic", Graph.path(3, "metropolis"), settings(scheme=scheme("shared", 0.4), dropout=0.2), 0.05),
]
LINEAR = [  # as random problems in `test_ten_problems.py`
    ("linear", Graph.complete(4, "uniform"), settings(scheme=scheme("shared", 0.4), local_steps=1), 0.2),
    ("linear", Graph.star(6), settings(scheme=scheme("pairwise", 0.2, sigma_pair=0.5), sampled=3, batch=(1, 3)), 0.02),
    ("linear", Graph.path(3), settings(scheme=scheme("own-clean", 0.4, noise="gaussian"), dropout=0.3), 0.3),
    ("linear", Graph.complete(4), settings(scheme=scheme("central", 0.3), batch=3, replacement=False), 0.5),
    ("linear", Graph.random(6, 0.5, seed=1), settings(scheme=scheme("partial:0.5", 0.4), sampled=1), 0.2),
]


@pytest.mark.parametrize(
    ("model", "graph", "algorithm", "share"),
    more(CASES, CASES + LINEAR),
    ids=lambda v: v.scheme.name if isinstance(v, GFL) else str(v),
)
def test_bounds_hold_in_simulation(
    ragged: Callable[..., Problem], model: str, graph: Graph, algorithm: GFL, share: float
) -> None:
    problem = ragged(P=graph.P, model=model, rho=0.3)
    step = share * largest_step(problem, graph, algorithm, 3)
    algorithm = GFL(**{f: getattr(algorithm, f) for f in algorithm.__dataclass_fields__} | {"step": step})
    rounds, repeats = 80, 60
    found = bounds(problem, graph, algorithm, rounds, 3)
    run = simulate(
        problem, graph, algorithm, rounds=rounds, repeats=repeats, seed=3, evaluate_every=rounds, progress=False
    )
    for name, metric in CURVES.items():
        measured, bound = run.metrics[metric], getattr(found, name)[1:]
        error = measured.std(axis=0, ddof=1) / math.sqrt(repeats)
        assert np.all(measured.mean(axis=0) <= bound + 4 * error + 1e-12), name
    last = np.sum((run.models - problem.optimum) ** 2, axis=2)
    error = last.std(axis=0, ddof=1) / math.sqrt(repeats)
    assert np.all(last.mean(axis=0) <= found.individual_units[-1] + 4 * error + 1e-12)


def test_the_papers_regression_is_bounded_within_a_few_decibels() -> None:
    """Not only true: on the paper's problem and step the limit is near what is measured."""
    problem, graph = regression(clients=30, seed=1), Graph.random(10, 0.4, seed=1)
    for noise, loose in (
        (scheme("none"), 4.0),
        (scheme("homomorphic", math.sqrt(0.1)), 8.0),
        (scheme("shared", 0.3), 2.0),
    ):
        algorithm = GFL(scheme=noise)
        limit = bounds(problem, graph, algorithm, 1, 0).limits
        run = simulate(problem, graph, algorithm, rounds=150, repeats=8, seed=0, progress=False)
        for name, metric in (("centroid", "centroid_msd"), ("individual", "individual_msd")):
            measured = run.metrics[metric][:, 50:].mean()
            assert 1.0 < limit[name] / measured < 10 ** (loose / 10), (noise.name, name)


# ---- exactly, where nothing is lost


def parabolas(h: float, P: int, centres: float | list[float] = 1.0, K: int = 1) -> Problem:
    """Every client of unit p has the one loss (h/2)(x - c_p)^2."""
    u = math.sqrt(h / 2)
    c = [centres] * P if isinstance(centres, float) else centres
    return Problem(Federation.from_clients([[([[u]], [u * c[p]])] * K for p in range(P)]), Linear(0.0))


def test_one_unit_by_hand() -> None:
    """h = 2, mu = 0.1, E = 2: a round multiplies by (1 - 0.1)^2 = 0.81 and adds noise of variance 0.25."""
    algorithm = settings(scheme=scheme("shared", 0.5), step=0.1, local_steps=2, sampled=1, batch=1)
    found = bounds(parabolas(2.0, 1), Graph.path(1), algorithm, 2, 0)
    assert found.centroid == pytest.approx([1.0, 0.81**2 + 0.25, 0.81**2 * (0.81**2 + 0.25) + 0.25])
    assert found.limits["centroid"] == pytest.approx(0.25 / (1 - 0.81**2))
    assert not np.any(found.disagreement)
    assert found.individual_units[:, 0] == pytest.approx(found.centroid)
    assert found.radius == pytest.approx(0.81)
    assert found.limits["incremental_noise"] == pytest.approx(  # (h/E) times the first step, from where it ends
        (2 / 2 * 0.1) ** 2 * found.limits["centroid"]
    )


def test_homomorphic_noise_of_equal_units_by_hand() -> None:
    """A = [[3/4, 1/4], [1/4, 3/4]], eigenvalues 1 and 1/2: the centroid is noiseless, the difference exact."""
    algorithm = settings(scheme=scheme("homomorphic", 0.8), step=0.1, local_steps=1, sampled=1, batch=1)
    found = bounds(parabolas(2.0, 2), Graph.path(2), algorithm, 3, 0)
    entering = 0.64 * (1 - 0.5) ** 2 / 2  # (1/P) sigma^2 (1 - 1/2)^2
    assert found.centroid == pytest.approx(0.64 ** np.arange(4))
    assert found.disagreement[:3] == pytest.approx([0.0, entering, entering * (1 + 0.16)])
    assert found.limits["centroid"] == pytest.approx(0.0, abs=1e-20)
    assert found.limits["disagreement"] == pytest.approx(entering / (1 - 0.16))
    assert found.limits["individual"] == pytest.approx(found.limits["disagreement"])


def test_unlike_units_by_hand() -> None:
    """Optima 1 and -1, h = 2, mu = 0.1: t_p = -+0.2, and the difference tends to 0.5 (0.8 r + 0.2) = r, r = 1/6."""
    algorithm = settings(step=0.1, local_steps=1, sampled=1, batch=1)
    problem = parabolas(2.0, 2, [1.0, -1.0])
    found = bounds(problem, Graph.path(2), algorithm, 400, 0)
    assert found.limits["centroid"] == pytest.approx(0.0, abs=1e-20)
    assert found.limits["disagreement"] == pytest.approx((1 / 6) ** 2)
    run = simulate(problem, Graph.path(2), algorithm, rounds=400, progress=False)
    assert run.metrics["disagreement"][0] == pytest.approx(found.disagreement[1:], rel=1e-9)


def test_noise_and_step_of_lemmas_1_and_2_by_hand() -> None:
    """Two examples with gradients +-1 at w^o, h = 2, E = 2: E|s|^2 = 1/2, and q is (h/2)(mu/2) times a gradient."""
    data = [[([[1.0], [1.0]], [0.5, -0.5])]]
    algorithm = settings(step=0.1, local_steps=2, sampled=1, batch=1)
    found = bounds(Problem(Federation.from_clients(data), Linear(0.0)), Graph.path(1), algorithm, 1, 0)
    assert found.limits["gradient_noise"] == pytest.approx(2 * 1.0 / 2)  # 2 V/(E B), the same Hessian everywhere
    drift = 0.1 / 2 * (1.0 + 2.0 * math.sqrt(found.limits["individual"]))  # eta |g|, at w^o and of the distance to it
    assert found.limits["incremental_noise"] == pytest.approx((2.0 / 2 * drift) ** 2)  # (delta/E) d_1


def test_complete_graph_has_the_exact_limit() -> None:
    """iota_2 = 0: after every round only the noise of that round is left between the models."""
    problem = regression(units=4, clients=3, samples=10)
    algorithm = settings(scheme=scheme("homomorphic", 0.8))
    found = bounds(problem, Graph.complete(4, "uniform"), algorithm, 5, 0)
    assert found.disagreement[1:] == pytest.approx(2 * 0.64 * 3 / 4)  # M sigma^2 |I - 11'/4|^2 / P
    assert found.limits["disagreement"] == pytest.approx(2 * 0.64 * 3 / 4)
    quiet = bounds(problem, Graph.complete(4, "uniform"), settings(), 5, 0)
    assert quiet.limits["disagreement"] == pytest.approx(0.0, abs=1e-12)


def test_corollary_has_no_noise_in_the_centroid() -> None:
    problem, graph = regression(units=5, clients=3, samples=10), Graph.ring(5)
    for name, cancels in (("homomorphic", True), ("shared", False), ("per-link", False)):
        c = constants(problem, graph, settings(scheme=scheme(name, 0.5)), 0)
        assert (c.g2 == 0.0) is cancels
    small, large = (
        bounds(problem, graph, settings(scheme=scheme("shared", 0.5), step=mu), 1, 0).limits["centroid"]
        for mu in (0.01, 0.04)
    )
    assert small / large == pytest.approx(4.0, rel=0.1)  # O(1/mu)
    small, large = (
        bounds(problem, graph, settings(scheme=scheme("homomorphic", 0.5), step=mu), 1, 0).limits["centroid"]
        for mu in (0.001, 0.004)
    )
    assert small / large == pytest.approx(0.25, rel=0.15)  # O(mu)


def test_limit_is_where_the_rounds_lead() -> None:
    problem, graph = regression(units=5, clients=4, samples=10), Graph.ring(5)
    for noise in (scheme("none"), scheme("homomorphic", 0.5), scheme("per-link", 0.2)):
        algorithm = settings(scheme=noise)
        found = bounds(problem, graph, algorithm, 500, 0)
        for name in (*CURVES, "individual_units"):
            assert found.limits[name] == pytest.approx(getattr(found, name)[-1], rel=1e-6), name
        step = one_round(clients(problem, algorithm, 0), graph, algorithm, algorithm.step)
        assert step.advance(fixed_point(step)) == pytest.approx(fixed_point(step), rel=1e-12)


def test_radius_is_the_rate_without_noise() -> None:
    problem, graph, algorithm = regression(units=5, clients=4, samples=10), Graph.ring(5), settings()
    step = one_round(clients(problem, algorithm, 0), graph, algorithm, algorithm.step)
    r = np.ones(2)
    for _ in range(300):
        r = step.advance(r / r[0], constants=False)
    assert radius(step) == pytest.approx(float(r[0]), rel=1e-6)


def test_bounds_are_of_every_round_and_the_start() -> None:
    found = bounds(regression(units=3, clients=3, samples=5), Graph.path(3), settings(), 4, 0)
    assert found.centroid.shape == found.disagreement.shape == found.individual.shape == (5,)
    assert found.individual_units.shape == (5, 3)
    assert np.isfinite(found.individual_units).all()


# ---- refused


def test_refused_beyond_the_largest_step() -> None:
    problem, graph = regression(units=5, clients=4, samples=10), Graph.ring(5)
    most = largest_step(problem, graph, settings(), 0)
    assert bounds(problem, graph, settings(step=0.999 * most), 1, 0).radius < 1
    for wrong in (1.001 * most, 50.0, 1e30, 1e300):
        with pytest.raises(InputError, match=rf"algorithm\.step = .*below {most:.4g}"):
            bounds(problem, graph, settings(step=wrong), 1, 0)


def test_largest_step_by_hand() -> None:
    """Equal parabolas without draws: |1 - mu h| = 1, and with E = 2 |1 - mu h/2|^2 = 1."""
    for E, most in ((1, 1.0), (2, 2.0)):
        algorithm = settings(local_steps=E, sampled=1, batch=1)
        assert largest_step(parabolas(2.0, 3), Graph.ring(3), algorithm, 0) == pytest.approx(most, rel=1e-6)


def test_refused_where_the_graph_does_not_mix() -> None:
    problem = regression(units=2, clients=3, samples=5)
    with pytest.raises(InputError, match="iota_2 = 1"):
        bounds(problem, Graph.from_matrix([[0.0, 1.0], [1.0, 0.0]], turn=True), settings(), 1, 0)
    with pytest.raises(InputError, match=r"scheme\.name = 'local-only'.*iota_2 = 1"):
        bounds(problem, Graph.path(2), settings(scheme=scheme("local-only")), 1, 0)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"clip": Clip("update", 1.0)}, "algorithm.clip"),
        ({"failures": Failures(link=0.1)}, "failures"),
        ({"local": lambda w, X, d, task: -w}, "algorithm.local"),
        ({"dropout": 1.0}, "algorithm.dropout"),
    ],
)
def test_refused_where_the_proof_does_not_reach(changes: dict[str, object], field: str) -> None:
    with pytest.raises(InputError) as refused:
        bounds(regression(units=2, clients=3, samples=5), Graph.path(2), settings(**changes), 1, 0)
    assert refused.value.field == field


def test_refused_without_strong_convexity(ragged: Callable[..., Problem]) -> None:
    data = [[([[1.0, 0.0]], [1.0])], [([[1.0, 0.0]], [2.0])]]
    with pytest.raises(InputError, match=r"problem\.rho = 0\.0"):
        bounds(Problem(Federation.from_clients(data), Linear(0.0)), Graph.path(2), settings(sampled=1), 1, 0)
    with pytest.raises(InputError, match=r"problem\.rho = 0\.0"):
        bounds(ragged(P=3, model="logistic", rho=0.0), Graph.path(3), settings(), 1, 0)


def test_singular_clients_are_fine_when_the_network_is_not() -> None:
    """Each client sees one direction; together they see both. No client is strongly convex, the network is."""
    data = [[([[1.0, 0.0]], [1.0]), ([[0.0, 1.0]], [1.0])], [([[1.0, 1.0]], [1.0]), ([[1.0, -1.0]], [0.5])]]
    problem = Problem(Federation.from_clients(data), Linear(0.0))
    algorithm = settings(scheme=scheme("homomorphic", 0.1), sampled=1, batch=1, step=0.05)
    found = bounds(problem, Graph.path(2), algorithm, 60, 0)
    run = simulate(problem, Graph.path(2), algorithm, rounds=60, repeats=200, progress=False)
    for name, metric in CURVES.items():
        assert np.all(run.metrics[metric].mean(axis=0) <= getattr(found, name)[1:])
    with pytest.raises(InputError, match="assumption 2"):
        printed_centroid(constants(problem, Graph.path(2), algorithm, 0))


def test_refused_for_another_graph() -> None:
    with pytest.raises(InputError, match="the problem has 2 units"):
        bounds(regression(units=2, clients=3, samples=5), Graph.path(3), settings(), 1, 0)


# ---- the homomorphic centroid, apart from the disagreement


def test_the_homomorphic_centroid_is_of_the_order_of_the_step() -> None:
    problem, graph = regression(clients=12), Graph.random(10, 0.4, seed=0)
    limits = {}
    for step in (2e-3, 2e-4, 2e-5):
        algorithm = GFL(step=step)
        end = predict(problem, graph, algorithm).limit
        limits[step] = bounds(problem, graph, algorithm, 1, 0).limits["centroid"]
        assert end is not None
        assert end.centroid.total <= limits[step] < 20 * end.centroid.total
        alone = fixed_point(one_round(clients(problem, algorithm, 0), graph, algorithm, step))[0] ** 2
        assert alone > 1e-4  # of order 1, when disagreement is not seen to be forgotten
    assert limits[2e-5] / 2e-5 < limits[2e-4] / 2e-4 < limits[2e-3] / 2e-3  # O(mu), and what is of higher order


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_both_recursions_are_above_the_exact_errors(
    ragged: Callable[..., Problem], each_scheme: Scheme, dropout: float
) -> None:
    """Unlike units, several local steps, a graph far from complete: round by round, and in the limit."""
    if each_scheme.exchange == Exchange.NOTHING:
        return
    problem, graph = ragged(), Graph.path(4)
    longest = largest_step(problem, graph, settings(scheme=each_scheme, dropout=dropout), 0)
    for share in (0.01, 0.3, 0.9):
        algorithm = settings(scheme=each_scheme, dropout=dropout, step=share * longest)
        exact, found = predict(problem, graph, algorithm, rounds=40), bounds(problem, graph, algorithm, 40, 0)
        assert np.all(exact.centroid_msd <= found.centroid[1:] * (1 + 1e-9))
        assert np.all(exact.individual_msd <= found.individual[1:] * (1 + 1e-9))
        assert exact.limit is not None
        assert exact.limit.centroid.total <= found.limits["centroid"] * (1 + 1e-9)


# ---- the printed ones, and where they fail


def test_printed_bounds_by_hand() -> None:
    """Parabolas with h = 2 at +-1, mu = 0.1, L = 1: alpha = 0.8, beta_s,p^2 = 12 h^2 = 48, grad Q(w^o)^2 = 4."""
    problem = parabolas(2.0, 2, [1.0, -1.0])
    mu, noise = 0.01, scheme("per-link", 0.5)
    c = constants(problem, Graph.path(2), settings(step=mu, scheme=noise, local_steps=1, sampled=1, batch=1), 0)
    alpha, beta, sigma = 1 - 2 * mu, 12 * 4.0, 15 * 4.0
    lam_c, source = alpha + 2 * beta * mu**2, mu**2 * sigma + 0.25 * 2 * (9 + 1) / 16 / 4
    found = printed_centroid(c)
    assert found.limit == pytest.approx(source / (1 - lam_c))
    assert "sum_p O(1) sigma_{g,p}^2" in found.leaves_out
    lam_p, source = alpha + beta * mu**2, mu**2 * sigma + 0.25
    found = printed_individual(c)
    assert found.limit == pytest.approx([source / (1 - lam_p)] * 2)
    found = printed_disagreement(c)
    assert found.limit == pytest.approx(0.25 / 0.5 * (mu**2 * sigma + 0.25 / 0.25))


def test_printed_bounds_need_a_minute_step_on_the_papers_problem() -> None:
    problem, graph = regression(clients=12), Graph.random(10, 0.4, seed=0)
    c = constants(problem, graph, GFL(), 0)
    for printed in (printed_centroid, printed_individual, printed_disagreement):
        with pytest.raises(InputError, match=r"algorithm\.step = 0\.7: .*a step below 0\.00"):
            printed(c)
    fine = constants(problem, graph, GFL(step=1e-4), 0)
    found = bounds(problem, graph, GFL(step=1e-4), 5, 0)
    assert printed_centroid(fine).limit > 0
    assert found.limits["centroid"] < printed_centroid(fine).limit + printed_disagreement(fine).limit


def test_printed_disagreement_loses_a_term_in_the_limit() -> None:
    """30 clients a unit with one sample each: no gradient noise to speak of, but units that differ."""
    problem = parabolas(2.0, 2, [1.0, -1.0], K=30)
    graph = Graph.from_matrix([[0.95, 0.05], [0.05, 0.95]])
    algorithm = settings(step=0.01, local_steps=1, sampled=30, batch=1)
    c = constants(problem, graph, algorithm, 0)
    run = simulate(problem, graph, algorithm, rounds=3000, progress=False)
    measured = run.metrics["disagreement"][0, -1]
    assert measured > 5 * printed_disagreement(c).limit
    assert measured == pytest.approx(bounds(problem, graph, algorithm, 1, 0).limits["disagreement"], rel=1e-6)


def test_printed_disagreement_divides_by_zero_on_the_complete_graph() -> None:
    problem, algorithm = parabolas(2.0, 4), settings(step=0.001, local_steps=1, sampled=1, batch=1)
    with pytest.raises(InputError, match="divides by it"):
        printed_disagreement(constants(problem, Graph.complete(4, "uniform"), algorithm, 0))
    alone = constants(problem, Graph.path(4), settings(step=0.001, scheme=scheme("local-only"), sampled=1), 0)
    with pytest.raises(InputError, match="does not mix"):
        printed_disagreement(alone)


def test_printed_individual_bound_forgets_the_neighbours() -> None:
    """A unit at the optimum with no noise of any kind: by (60) it stays there. Its neighbour's error arrives."""
    problem, graph = parabolas(2.0, 2), Graph.path(2)
    algorithm = settings(step=0.01, local_steps=1, sampled=1, batch=1)
    c = constants(problem, graph, algorithm, 0)
    own = reference.prepare(problem, [graph], algorithm, 1, 0)(0)
    after = own.round(1, np.array([[1.0], [0.0]])).w - problem.optimum
    printed = c.printed.lambda_units[0] * 0.0 + c.step**2 * c.printed.sigma_s2_units[0] + c.printed.sigma_g2_units[0]
    assert max(printed, c.xi, c.printed.sigma_q2) < 1e-12  # rounding, so that no O(.) can help
    assert after[0, 0] ** 2 > 0.05
    step = one_round(clients(problem, algorithm, 0), graph, algorithm, algorithm.step)
    assert step.advance_units(np.array([0.0, 1.0])) == pytest.approx(np.abs(after[:, 0]))


def test_printed_individual_bound_takes_the_units_gradients_for_zero() -> None:
    """Two units that hardly speak go to their own optima, at distance 1, whatever the step; (61) says O(mu)."""
    problem = parabolas(2.0, 2, [1.0, -1.0], K=30)
    graph = Graph.from_matrix([[0.9999, 0.0001], [0.0001, 0.9999]])
    algorithm = settings(step=0.01, local_steps=1, sampled=30, batch=1)
    run = simulate(problem, graph, algorithm, rounds=2000, progress=False)
    measured = run.metrics["individual_msd"][0, -1]
    assert measured > 0.9
    assert printed_individual(constants(problem, graph, algorithm, 0)).limit.max() < 0.05
    assert measured == pytest.approx(bounds(problem, graph, algorithm, 1, 0).limits["individual"], rel=1e-6)


def test_appendix_d_never_contracts() -> None:
    for nu, delta in ((1.0, 1.0), (0.1, 1.0), (0.28, 17.0)):
        for step in np.geomspace(1e-9, 10.0, 200):
            assert appendix_d_factor(nu, delta, float(step)) > 1.0
            assert appendix_d_factor(nu, delta, float(step), weight=6.0) > 1.0


def test_every_scheme_that_exchanges_has_bounds(each_scheme: Scheme) -> None:
    problem, graph = regression(units=4, clients=3, samples=5), Graph.ring(4)
    algorithm = settings(scheme=each_scheme)
    if each_scheme.exchange == "nothing":
        assert constants(problem, graph, algorithm, 0).iota_2 == 1.0
        return
    found = bounds(problem, graph, algorithm, 30, 0)
    assert np.isfinite(found.individual).all()
