"""What has a price where the loss is a network's, so that no convexity bounds how two models drift apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import confide
from confide.base.errors import InputError
from confide.plans.build import of_run
from confide.plans.plan import Plan
from confide.privacy import deviation
from confide.privacy.price import OWN_STEP, START, price
from confide.privacy.sensitivity import REAL_NUMBERS, WITHOUT
from confide.problems.problem import Problem
from confide.rounds.clipping import Clip
from confide.rounds.local import LocalTask, sgd
from numpy_network import NumpyNetwork
from same_network import C, F

GRAPH = confide.Graph.ring(3)
RNG = np.random.default_rng(1)
ROWS = [[(RNG.normal(size=(6, F)), RNG.integers(0, C, 6)) for _ in range(8)] for _ in range(3)]


def plan(
    scheme: str = "homomorphic", *, rho: float = 0.0, clip: str = "example", optimizer: Any = None, E: int = 2,
    rounds: int = 5, sigma_in_sums: float = 0.0, **privacy: Any,
) -> Plan:  # fmt: skip
    problem = Problem(confide.Federation.from_clients(ROWS), NumpyNetwork(rho=rho, optimizer=optimizer), private=False)  # type: ignore[arg-type]
    inside = (
        {"arithmetic": "fixed", "aggregation": confide.Secure(sigma=sigma_in_sums, ring_bits=64)}
        if sigma_in_sums
        else {}
    )
    algorithm = confide.GFL(
        confide.scheme(scheme, 1.0, noise="gaussian"), step=0.2, sampled=6, clip=Clip(clip, 1.0), batch=3,
        local_steps=E, replacement=False, **inside,  # type: ignore[arg-type]
    )  # fmt: skip
    return of_run(problem, [GRAPH], algorithm, rounds, 0, confide.Privacy(**privacy))


@pytest.mark.parametrize("level", ["client", "example"])
def test_what_is_kept_has_no_bound_for_a_single_client(level: str) -> None:
    """The words say which levels and proofs remain."""
    with pytest.raises(InputError, match="no convexity bounds") as e:
        price(plan(level=level)).account(5)
    assert e.value.remedy.endswith(WITHOUT)
    for word in ("carry 0", "level 'unit'", "regulariser:RHO", "noise inside secure sums"):
        assert word in WITHOUT


@pytest.mark.parametrize("smoothness", [None, 3.0])
def test_a_proof_by_convexity_is_refused(smoothness: float | None) -> None:
    found = plan(rho=0.1, proof="convex-glm:0.2", smoothness=smoothness)
    with pytest.raises(InputError, match="one margin") as e:
        deviation.sensitivity(found)
    assert e.value.field == "privacy.proof"
    assert WITHOUT in e.value.remedy


@pytest.mark.parametrize(
    "left",
    [
        {"level": "unit"},
        {"level": "unit", "clip": "update"},
        {"scheme": "shared"},
        {"scheme": "shared", "clip": "update"},
        {"scheme": "shared", "clip": "update", "optimizer": 0.1},
        {"scheme": "shared", "level": "example"},
        {"scheme": "shared", "level": "example", "E": 1},
        {"rho": 0.1, "proof": "regulariser:0.1"},
    ],
)
def test_what_remains(left: dict[str, Any]) -> None:
    found = price(plan(**left))
    account = found.account(5)
    assert not account.leak
    assert np.isfinite(account.epsilon)  # type: ignore[arg-type]
    assert START in account.assumptions
    assert REAL_NUMBERS in account.assumptions
    assert (OWN_STEP in account.assumptions) == ("optimizer" in left)
    said = any("computed from it and the model alone" in line for line in account.assumptions)
    assert said == (left.get("level") == "example")


def test_noise_inside_the_sums_remains() -> None:
    found = price(plan(clip="update", sigma_in_sums=1.0, threat="own-server"))
    assert np.isfinite(found.account(5).epsilon)  # type: ignore[arg-type]


@pytest.mark.parametrize("proof", ["regulariser:0.1", "convex-glm:0.2"])
def test_an_optimiser_has_neither(proof: str) -> None:
    with pytest.raises(InputError, match="built-in local step only"):
        deviation.sensitivity(plan(clip="update", optimizer=0.1, rho=0.1, proof=proof))


def test_a_price_without_initial_weights_assumes_nothing_of_them() -> None:
    found = plan("shared")
    model = replace(found.algorithm.model, start=None)
    zero = replace(found, algorithm=replace(found.algorithm, model=model))
    assert START not in price(zero).account(5).assumptions
    assert price(zero).account(5).epsilon == price(found).account(5).epsilon  # in floating point w0 is in no bound


@pytest.mark.parametrize(("E", "batch"), [(1, 1), (3, 2), (5, 6)])
def test_a_regulariser_bounds_two_networks_whatever_their_losses(E: int, batch: int) -> None:
    """g d + (B / rho)(1 - g) for models d apart, on other data: the recursion that proof regulariser claims."""
    rho, step, bound = 0.4, 0.9, 0.7
    network, draws = NumpyNetwork(rho=rho), np.random.default_rng(E)
    g = (1.0 - 2.0 * rho * step / E) ** E
    for n in range(10):
        w = draws.normal(size=network.dimension(F)) * 3.0
        apart = draws.normal(size=len(w)) * draws.choice([0.0, 0.01, 1.0])
        task = LocalTask(network, step, E, batch, False, Clip("example", bound), n)
        ends = []
        for begin in (w, w + apart):
            X, d = draws.normal(size=(6, F)) * 5.0, draws.integers(0, C, 6).astype(float)
            ends.append(begin + sgd(begin, X, d, task))
        most = g * np.linalg.norm(apart) + bound / rho * (1.0 - g)
        assert np.linalg.norm(ends[0] - ends[1]) <= most * (1.0 + 1e-9)


def test_a_large_model_in_single_precision_rounds_more_than_an_update_moves_it() -> None:
    """Why the statement says that its numbers are real: a million of them near 10 move by 1.04 s."""
    draws, s = np.random.default_rng(0), 1e-3
    w, v = 10.0 * draws.normal(size=10**6), draws.normal(size=10**6)
    v *= s / 2.0 / np.linalg.norm(v)
    one, other = (w.astype(np.float32) + u.astype(np.float32) for u in (v, -v))
    assert np.linalg.norm(one.astype(float) - other) > 1.04 * s
