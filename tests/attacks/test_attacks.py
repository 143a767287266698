"""Attacks succeed where the accountant says leak, and fail where it gives a number."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from confide.attacks.attacks import (
    Attack,
    Transcript,
    demonstrations,
    features,
    flows,
    leaks,
    naive_amplification,
    record,
    recover_features,
    subtract_flows,
    telescope,
    telescoping,
)
from confide.base.errors import RunError
from confide.graph.graph import Graph
from confide.laws.law import LAWS
from confide.problems import clicks
from confide.problems.models import Logistic
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL, Failures
from confide.rounds.clipping import Clip
from confide.rounds.schemes import scheme

Maker = Callable[..., Problem]
ALGORITHM = GFL(scheme=scheme("homomorphic", 0.5), step=0.3, sampled=3, local_steps=2, batch=2)
GRAPHS = [Graph.ring(5), Graph.star(5)]


def run(problem: Problem, name: str, sigma: float = 0.5, rounds: int = 12, noise: str = "gaussian") -> Transcript:
    algorithm = replace(ALGORITHM, scheme=scheme(name, sigma, noise=noise))
    return record(problem, GRAPHS, algorithm, rounds, seed=3)


def noises(t: Transcript) -> np.ndarray:
    return t.sent - t.w[:-1] - t.updates


@pytest.mark.parametrize(("name", "carry"), [("homomorphic", 1.0), ("partial:0.3", 0.3), ("shared", 0.0)])
def test_telescoping_leaves_one_noise_and_the_share_that_was_not_subtracted(
    ragged: Maker, name: str, carry: float
) -> None:
    t = run(ragged(P=5), name)
    g = noises(t)
    for p in range(5):
        error = telescope(t.graphs, t.sent, t.w[0, p], p) - np.cumsum(t.updates[:, p], axis=0)
        earlier = np.cumsum(g[:, p], axis=0) - g[:, p]
        np.testing.assert_allclose(error, g[:, p] + (1 - carry) * earlier, atol=1e-12)


def test_the_attacks_read_only_the_neighbourhood(ragged: Maker) -> None:
    t = run(ragged(P=5), "homomorphic")
    ring = [Graph.ring(5)] * len(t.sent)
    elsewhere = t.sent.copy()
    elsewhere[:, [2, 3]] = np.nan
    np.testing.assert_array_equal(flows(ring, elsewhere, 0), flows(ring, t.sent, 0))


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_the_sum_of_updates_telescopes_for_homomorphic_noise_only(ragged: Maker, noise: str) -> None:
    algorithm = replace(ALGORITHM, scheme=scheme("none", noise=noise))  # a config without noise is attacked with some
    homomorphic, shared = telescoping(ragged(P=5), GRAPHS, algorithm, 32, seed=1)
    assert homomorphic.succeeds
    assert not shared.succeeds
    assert homomorphic.ok
    assert shared.ok
    for attack, grown in ((homomorphic, 1.0), (shared, np.sqrt(32))):
        n = attack.numbers
        assert n["rounds"] == [1, 2, 4, 8, 16, 32]
        assert 0.6 * grown < n["sum_error_over_sigma"][-1] < 1.5 * grown
    assert homomorphic.numbers["mean_error_exponent"] == pytest.approx(-1.0, abs=0.2)
    assert shared.numbers["mean_error_exponent"] == pytest.approx(-0.5, abs=0.2)
    assert homomorphic.numbers["relative_sum_error"][-1] < 0.5 * homomorphic.numbers["relative_sum_error"][0]
    assert shared.numbers["relative_sum_error"][-1] > 0.5


@pytest.mark.parametrize("clip", [None, Clip("update", 0.1), Clip("example", 1.0)])
def test_models_and_messages_leak_exactly_unless_carry_is_zero(ragged: Maker, clip: Clip | None) -> None:
    found = list(leaks(ragged(P=5), GRAPHS, replace(ALGORITHM, clip=clip), 20, seed=2))
    assert [a.name for a in found] == [
        f"{what}, {name}" for name in ("homomorphic", "shared") for what in ("final model", "own client")
    ]
    assert all(a.ok for a in found)
    for a in found:
        exact = a.should_succeed
        assert (a.numbers["relative_error"] <= 1e-10) == exact
        assert (a.numbers["error_over_sigma"] > 0.5) != exact
        assert a.numbers["model_is_function_of_messages"] != exact
        json.dumps(a.to_dict(), allow_nan=False)


def test_a_partial_carry_leaves_the_rest_of_the_noise(ragged: Maker) -> None:
    t = run(ragged(P=5), "partial:0.3", sigma=100.0)
    guess = subtract_flows(t.graphs, t.sent, t.w[0, 1], t.w[-1, 1], 1)
    np.testing.assert_allclose(guess - t.updates[:, 1].sum(axis=0), 0.7 * noises(t)[:, 1].sum(axis=0), rtol=1e-9)


def test_failures_are_left_out_and_a_diverging_run_is_said(ragged: Maker) -> None:
    failing = replace(ALGORITHM, failures=Failures(link=0.5, unit=0.5))
    with_them, without = (record(ragged(P=5), GRAPHS, a, 4, seed=0) for a in (failing, ALGORITHM))
    np.testing.assert_array_equal(with_them.sent, without.sent)
    with pytest.raises(RunError, match="diverged in round"):
        record(ragged(P=5), GRAPHS, replace(ALGORITHM, step=1e9), 60, seed=0)


def test_features_of_one_client_and_not_of_a_sum() -> None:
    problem = clicks(units=2, clients=8, rows=300, test_rows=0)
    one, several = features(problem, 0.5, 6, seed=0)
    assert one.succeeds
    assert one.ok
    assert one.numbers["cosine"] > 1 - 1e-12
    assert one.numbers["relative_error"] < 1e-12
    assert not several.succeeds
    assert several.ok
    assert several.name == "features, sum of 6"
    assert several.numbers["cosine_largest"] < 0.9


def test_without_an_intercept_features_are_known_up_to_scale_and_sign() -> None:
    rng = np.random.default_rng(0)
    u, w, model = rng.standard_normal(7), rng.standard_normal(7), Logistic(0.03)
    for d in (-1.0, 1.0):
        update = -0.5 * (model.gradients(w, u[None], np.array([d]))[0] + 2 * model.rho * w)
        found = recover_features(update, w, 0.5, model.rho)
        np.testing.assert_allclose(-d * found, u / np.linalg.norm(u), rtol=1e-12)


def test_an_attack_that_surprises_is_not_ok() -> None:
    assert not Attack("x", "", True, False, {}).ok
    assert not Attack("x", "", False, True, {}).ok
    assert Attack("x", "", False, False, {}).ok


def test_amplification_round_by_round_is_refuted_where_the_state_remembers() -> None:
    found = naive_amplification()
    assert found.succeeds
    assert found.numbers["naive"] < 0.8 * found.numbers["attained"]


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_all_demonstrations_go_as_predicted(law: str) -> None:
    found = demonstrations(GRAPHS, LAWS[law], seed=0)
    assert [a.name for a in found if not a.ok] == []
    assert len(found) == 9
    assert {a.words for a in found} == {"succeeds, as predicted", "fails, as predicted"}
    assert replace(found[0], succeeds=False).words == "fails, NOT AS PREDICTED"
