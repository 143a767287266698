"""The planner against docs/design/privacy.md, 3, and against simulation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from confide.base.errors import InputError
from confide.engines.driver import simulate
from confide.graph.graph import Graph
from confide.plans.build import of_run
from confide.plans.privacy import Budget, Privacy
from confide.plans.words import ConvexGlm
from confide.privacy import deviation
from confide.privacy.calibrate import Calibrated, calibrate
from confide.privacy.planner import BASELINES, CANDIDATES, MEASURED, SHARES, by_formula, noise_variance, plan
from confide.privacy.sensitivity import Sensitivity
from confide.problems import regression
from confide.problems.federation import Federation
from confide.problems.models import Linear
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL
from confide.rounds.clipping import Clip
from confide.rounds.schemes import scheme

RING = Graph.ring(10, weights="metropolis")


def table(nu: float, release: str, *names: str) -> dict[str, tuple[float, float]]:
    """Variances in units 1/rho: ring of 10, mu 0.1, T 100, B 1, unit level, Hessian 1."""
    s = Sensitivity(step=0.1, bound=1.0, level="unit", proof=ConvexGlm(nu))
    of = {"rounds": 100, "release": release}
    options = [option for name in names for option in plan(RING, s, Budget(rho=1.0), scheme=name, **of)]
    return {o.name: (o.released, o.individual) for o in options if o.released is not None and o.individual is not None}


def test_the_table_of_section_3() -> None:
    unreleased = table(0.5, "none", "shared", "homomorphic", "central")
    released = table(0.5, "centroid", "homomorphic", "local-only")
    assert unreleased["shared"] == pytest.approx((1.05, 2.05), rel=0.01)
    assert unreleased["homomorphic"] == pytest.approx((0.0, 409), rel=0.01, abs=1e-9)
    assert unreleased["central"] == pytest.approx((0.105, 0.105), rel=0.01)
    # The messages' noise leaves the mean alone, so that the release gets all but the least share (half: 0.158, 4.0).
    assert released["homomorphic"][0] == pytest.approx(0.079 / (1 - SHARES[0]), rel=0.02)
    assert released["local-only"][0] == pytest.approx(0.079, rel=0.01)
    without_proof = table(0.0, "centroid", "homomorphic", "local-only")
    assert without_proof["homomorphic"][0] == pytest.approx(2.0 / (1 - SHARES[0]), rel=0.02)
    assert without_proof["local-only"][0] == pytest.approx(2.0, rel=0.01)
    assert table(0.0, "none", "homomorphic")["homomorphic"][1] == pytest.approx(4838, rel=0.01)


@pytest.mark.parametrize("threat", ["links", "neighbours"])
def test_all_shares_of_a_release_count_in_its_error(threat: str) -> None:
    """Whoever knows some: the released mean carries the noise of all P. Rho is 1."""
    s, P, T = Sensitivity(step=0.1, bound=1.0, level="unit"), 10, 100
    (found,) = plan(
        RING, s, Budget(rho=1.0), rounds=T, scheme="homomorphic", threat=threat, measure=lambda c: (0.25, 1.0)
    )
    unknown = P - (2 if threat == "neighbours" else 0)
    assert found.calibrated is not None
    spent = 0.2**2 * T * (T + 1) * (2 * T + 1) / 6 / (2 * found.calibrated.scheme.sigma**2)
    assert 0.05 <= spent <= 0.06
    seen = (T * 0.2 / P) ** 2 / (2 * (1.0 - spent))  # variance that the unknown shares must have on the mean
    assert found.released == pytest.approx(0.25 + seen * P / unknown, rel=1e-6)


def test_baselines_are_shown_but_never_recommended() -> None:
    s = Sensitivity(step=0.1, bound=1.0, level="unit")
    options = plan(RING, s, Budget(epsilon=2.0), rounds=50)
    best = {o.name: o.released for o in options if o.released is not None}
    assert min(best, key=lambda name: best[name] or 0.0) == "central" != options[0].name
    deployed = [o.released for o in options if o.released is not None and o.name not in BASELINES]
    assert deployed == sorted(deployed)
    assert [o.name in BASELINES for o in options] == [False] * 4 + [True] * 3


@pytest.mark.parametrize(("noise", "epsilon"), [("gaussian", 2.0), ("laplace", 0.5)])  # few losses to convolve
def test_the_split_of_a_budget_is_searched(noise: str, epsilon: float) -> None:
    """No other share of the budget for the messages leaves less error in what is released; and it stays within it."""
    s, budget = Sensitivity(step=0.1, bound=1.0, norm="l1", level="unit"), Budget(epsilon=epsilon)
    measure = by_formula(RING, 0.1, 1.0, 100, 1)
    (found,) = plan(RING, s, budget, rounds=100, scheme="own-clean", noise=noise)
    assert found.calibrated is not None
    assert found.calibrated.account.epsilon == pytest.approx(epsilon, rel=1e-6)
    for share in (0.05, 0.1, 0.2, 0.4, 0.7, 0.95, 0.999) if noise == "gaussian" else MEASURED:
        c = calibrate("own-clean", RING, s, budget, rounds=100, noise=noise, release="centroid", share=share)
        assert found.released is not None
        assert found.released <= (measure(c)[0] + c.release.hidden(RING.P, 0) ** 2) * (1 + 1e-3)


def test_every_scheme_has_its_rows_against_everybody() -> None:
    """pairwise meets the budget against links only: whoever reads the table sees what all neighbours learn."""
    s = Sensitivity(step=0.1, bound=1.0, level="unit")
    (found,) = plan(RING, s, Budget(epsilon=4.0), rounds=100, scheme="pairwise")
    assert found.statement is not None
    rows = {a.threat: a.epsilon for a in found.statement.accounts}
    assert rows["links"] == pytest.approx(4.0, rel=1e-6)
    assert rows["neighbours"] == pytest.approx(15.3, abs=0.05)


def test_what_cannot_meet_the_budget_says_why() -> None:
    s = Sensitivity(step=0.1, bound=1.0, level="client", sampled=5)  # no proof: carrying schemes are refused
    options = plan(RING, s, Budget(epsilon=2.0), rounds=50, release="none")
    reasons = {o.name: o.reason for o in options}
    assert "needs a proof" in reasons["homomorphic"]
    assert reasons["shared"] == ""
    assert options[0].name in ("shared", "pairwise")


@pytest.mark.parametrize("name", ["homomorphic", "shared", "own-clean", "per-link", "pairwise", "central"])
def test_a_simulation_confirms_the_predicted_variance(name: str) -> None:
    """One sample d = 0 for every client: the loss is |w|^2 exactly, so all that is left of w is noise."""
    P, M, mu, T = 4, 3, 0.2, 60
    graph = Graph.ring(P)
    u = np.eye(M)  # full batches of an orthonormal basis: Hessian 2/M
    f = Federation.from_clients([[(u, np.zeros(M))] for _ in range(P)])
    noise = scheme(name, 0.5, noise="gaussian", sigma_pair=1.0 if name == "pairwise" else 0.0)
    algorithm = GFL(scheme=noise, step=mu, sampled=1, local_steps=1, batch=M, replacement=False)
    run = simulate(Problem(f, Linear(0.0)), graph, algorithm, rounds=T, repeats=200, seed=1)
    centroid, individual = noise_variance(noise, graph, 1.0 - mu * 2.0 / M, T)
    measured = run.metrics["individual_msd"][:, -1].mean(), run.metrics["centroid_msd"][:, -1].mean()
    assert measured[0] == pytest.approx(M * individual, rel=0.12)
    if name == "homomorphic":
        assert measured[1] < 1e-20
    else:
        assert measured[1] == pytest.approx(M * centroid, rel=0.2)
    louder = noise.resized(sigma=noise.sigma * 1.5, sigma_pair=noise.sigma_pair * 1.5)
    assert measured[0] != pytest.approx(M * noise_variance(louder, graph, 1.0 - mu * 2.0 / M, T)[1], rel=0.12)


def test_a_step_that_is_not_stable_is_refused() -> None:
    with pytest.raises(InputError, match="not stable"):
        by_formula(RING, 3.0, 1.0, 10, 1)


def test_calibrated_noise_keeps_a_run_within_its_budget() -> None:
    """What the planner promises is what the accountant charges the run."""
    problem, graph = regression(units=4, clients=6, samples=8, covariance=(0.01, 0.05), seed=2), Graph.ring(4)
    base = GFL(step=0.3, sampled=3, local_steps=1, batch=4, clip=Clip("example", 1.0))
    privacy = Privacy(proof="convex-glm:0.2", smoothness=2.0, epsilon=3.0)
    s = deviation.sensitivity(of_run(problem, [graph], base, 40, 0, privacy))
    for name in ("homomorphic", "shared", "own-clean", "per-link"):
        found = calibrate(name, graph, s, Budget(epsilon=3.0), rounds=25)
        run = simulate(problem, graph, replace(base, scheme=found.scheme), rounds=40, privacy=privacy)
        assert run.rounds == 25
        assert run.privacy is not None
        assert run.privacy["statement"]["accounts"][0]["epsilon"] == pytest.approx(3.0, rel=1e-6)


def test_a_scheme_that_cannot_be_measured_is_listed_with_the_reason() -> None:
    """`central` has no fixed point: the others are compared all the same."""

    def measure(c: Calibrated) -> tuple[float, float]:
        if c.scheme.name == "central":
            raise InputError("algorithm.arithmetic", "fixed", "use float")
        return 1.0, 1.0

    s = Sensitivity(step=0.1, bound=1.0, level="unit")
    options = plan(RING, s, Budget(rho=1.0), rounds=10, measure=measure)
    reasons = {o.name: o.reason for o in options if o.reason}
    assert reasons == {"central": "algorithm.arithmetic = 'fixed': use float"}
    assert len(options) == len(CANDIDATES)
