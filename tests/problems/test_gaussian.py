"""The paper's regression: its statistics, its optimum, and the same bits again."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import numpy as np
import pytest
from scipy import stats

from confide.base.errors import InputError
from confide.base.randomness import Purpose, generator
from confide.problems import Problem, regression
from confide.problems.models import Linear

BITS = ("X", "d", "client_offsets", "unit_offsets")


def same_bits(a: Problem, b: Problem) -> bool:
    tests = [p.test or () for p in (a, b)]
    return (
        all(getattr(a.federation, n).tobytes() == getattr(b.federation, n).tobytes() for n in BITS)
        and [x.tobytes() for x in tests[0]] == [x.tobytes() for x in tests[1]]
        and a.model == b.model
    )


def w_star(features: int, seed: int) -> np.ndarray:
    """The generating model is the first thing drawn, and has length sqrt(M) whatever the seed."""
    direction = generator(seed, Purpose.DATA).standard_normal(features)
    return direction * math.sqrt(features) / np.linalg.norm(direction)


# ---- the same again


def test_the_defaults_are_the_papers() -> None:
    p = regression()
    f = p.federation
    assert (f.P, f.clients, f.samples, f.M) == (10, 1000, 100_000, 2)
    assert set(f.K) == set(f.N) == {100}
    assert p.model == Linear(rho=0.1)
    assert p.test is None
    assert p.notes == ()


def test_a_seed_gives_the_same_bits_and_another_seed_others() -> None:
    a, b, c = (regression(3, 4, 5, seed=s, test_rows=6) for s in (1, 1, 2))
    assert same_bits(a, b)
    assert not np.isin(c.federation.X, a.federation.X).any()
    assert not np.isin(c.federation.d, a.federation.d).any()


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"units": 2, "clients": 3, "samples": 4, "features": 5, "rho": 0.0, "seed": 12},
        {"covariance": (1, 2.5), "noise_variance": (0.1, 0.1), "test_rows": 7, "units": 1, "seed": 3},
        {"units": np.int64(2), "samples": np.int32(3), "rho": np.float32(0.5), "seed": np.uint8(4)},
    ],
)
def test_the_spec_makes_the_problem_again_even_through_json(how: Mapping[str, object]) -> None:
    p = regression(**how)
    spec = json.loads(json.dumps(p.spec))
    assert spec.pop("name") == "regression"
    assert spec.keys() == regression.__kwdefaults__.keys() | {"units", "clients", "samples", "features"}
    again = regression(**spec)
    assert same_bits(p, again)
    assert again.spec == p.spec


def test_held_out_rows_change_no_training_row() -> None:
    assert regression(2, 3, 4, test_rows=9).federation.X.tobytes() == regression(2, 3, 4).federation.X.tobytes()


# ---- statistics


@pytest.fixture(scope="module")
def large() -> Problem:
    return regression(units=2, clients=30, samples=4000, features=3, test_rows=60_000, seed=1)


def by_client(p: Problem) -> list[tuple[np.ndarray, np.ndarray]]:
    return [p.federation.client(u, k) for u in range(p.federation.P) for k in range(p.federation.K[u])]


def test_covariances_have_eigenvalues_in_the_range_and_axes_of_their_own(large: Problem) -> None:
    X = np.array([x for x, _ in by_client(large)])
    covariances = np.einsum("cni,cnj->cij", X, X) / X.shape[1]
    eigenvalues = np.linalg.eigvalsh(covariances)
    slack = 1 + 6 * math.sqrt(2 / X.shape[1])
    assert 0.05 / slack < eigenvalues.min() < 0.1
    assert 0.4 < eigenvalues.max() < 0.5 * slack
    assert stats.kstest(np.trace(covariances, axis1=1, axis2=2) / 3, stats.norm(0.275, 0.45 / 6).cdf).pvalue > 1e-3
    assert np.abs(X.mean(axis=1)).max() < 5 * math.sqrt(0.5 / X.shape[1])
    _, axes = np.linalg.eigh(covariances)
    first = axes[:, :, 2]
    assert np.linalg.eigvalsh(first.T @ first / len(first))[0] > 0.1  # they point everywhere, not along one axis
    off = np.abs(covariances[:, *np.triu_indices(3, 1)])
    assert (off.max(axis=1) > 0.02).mean() > 0.8


@pytest.mark.parametrize("M", [1, 2, 5])
def test_the_generating_model_has_the_same_length_for_every_seed(M: int) -> None:
    for seed in range(4):
        f = regression(2, 5, 2000, M, seed=seed).federation
        estimate = np.linalg.lstsq(f.X, f.d, rcond=None)[0]
        np.testing.assert_allclose(estimate, w_star(M, seed), atol=0.03)
        assert np.linalg.norm(estimate) == pytest.approx(math.sqrt(M), abs=0.03)


def test_features_are_gaussian_and_independent_of_the_noise(large: Problem) -> None:
    w = w_star(3, 1)
    for X, d in by_client(large)[:5]:
        for u in X.T:
            assert stats.kstest(u / u.std(), "norm").pvalue > 1e-3
        v = d - X @ w
        assert stats.kstest(v / v.std(), "norm").pvalue > 1e-3
        assert max(abs(np.corrcoef(u, v)[0, 1]) for u in X.T) < 4.5 / math.sqrt(len(v))


def test_the_noise_variance_is_uniform_in_its_range_client_by_client(large: Problem) -> None:
    w = w_star(3, 1)
    variances = np.array([np.mean((d - X @ w) ** 2) for X, d in by_client(large)])
    slack = 1 + 5 * math.sqrt(2 / 4000)
    assert 0.01 / slack < variances.min() < 0.02
    assert 0.09 < variances.max() < 0.1 * slack
    assert stats.kstest(variances, stats.uniform(0.01, 0.09).cdf).pvalue > 1e-3


def test_a_range_of_one_point_fixes_the_law() -> None:
    p = regression(1, 4, 20_000, 2, covariance=(0.3, 0.3), noise_variance=(0.04, 0.04), seed=5)
    w = w_star(2, 5)
    for X, d in by_client(p):
        np.testing.assert_allclose(X.T @ X / len(X), 0.3 * np.eye(2), atol=5 * 0.3 * math.sqrt(2 / len(X)))
        assert np.mean((d - X @ w) ** 2) == pytest.approx(0.04, rel=5 * math.sqrt(2 / len(X)))


def test_held_out_rows_come_from_the_clients_in_turn(large: Problem) -> None:
    X, d = large.test
    assert X.shape == (60_000, 3)
    w, clients = w_star(3, 1), large.federation.clients
    for c in (0, 17, clients - 1):
        mine, theirs = X[c::clients], by_client(large)[c][0]
        np.testing.assert_allclose(mine.T @ mine / len(mine), theirs.T @ theirs / len(theirs), atol=0.12)
        noise = [np.mean((d[c::clients] - mine @ w) ** 2), np.mean((by_client(large)[c][1] - theirs @ w) ** 2)]
        assert noise[0] == pytest.approx(noise[1], rel=0.25)
    assert not np.isin(X[:1000], large.federation.X).any()


# ---- the optimum


@pytest.mark.parametrize("rho", [0.0, 0.1, 2.0])
def test_the_optimum_is_the_papers_formula(rho: float) -> None:
    """w^o = (R + rho I)^-1 (R w* + r_uv), with R and r_uv the paper's means of means of means."""
    p = regression(3, 5, 20, features=4, rho=rho, seed=9)
    w = w_star(4, 9)
    R, r_uv = np.zeros((4, 4)), np.zeros(4)
    for X, d in by_client(p):
        R += X.T @ X / 20 / 15
        r_uv += X.T @ (d - X @ w) / 20 / 15
    np.testing.assert_allclose(p.optimum, np.linalg.solve(R + rho * np.eye(4), R @ w + r_uv), rtol=0, atol=1e-10)
    assert (np.linalg.norm(p.optimum - w) < 0.2) == (rho == 0)  # the regulariser pulls it away from w*


# ---- refusals


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"units": 0}, "problem.units = 0: must be at least 1"),
        ({"clients": -1}, "problem.clients = -1: must be at least 1"),
        ({"samples": 2.5}, "problem.samples = 2.5: must be a whole number"),
        ({"features": "2"}, "problem.features = '2': must be a whole number"),
        ({"test_rows": -1}, "problem.test_rows = -1: must be at least 0"),
        ({"test_rows": 1.5}, "problem.test_rows = 1.5: must be a whole number"),
        ({"seed": 0.5}, "problem.seed = 0.5: must be a whole number"),
        ({"seed": -1}, "problem.seed = -1: must be at least 0"),
        ({"rho": -0.1}, "problem.rho = -0.1: must be at least 0"),
        ({"rho": math.nan}, "problem.rho = nan: must be finite"),
        ({"rho": None}, "problem.rho = None: must be a number"),
        ({"covariance": (0.5, 0.05)}, r"problem.covariance = \(0.5, 0.05\): the low end must not exceed the high"),
        ({"covariance": (0.0, 0.5)}, r"problem.covariance\[0\] = 0.0: must be positive"),
        ({"covariance": 0.5}, "problem.covariance = 0.5: must be two numbers"),
        ({"noise_variance": (0.1,)}, r"problem.noise_variance = \(0.1,\): must be two numbers"),
        ({"noise_variance": (0.1, math.inf)}, r"problem.noise_variance\[1\] = inf: must be finite"),
    ],
)
def test_what_makes_no_sense_is_refused(how: Mapping[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        regression(**{"units": 2, "clients": 2, "samples": 2, **how})
