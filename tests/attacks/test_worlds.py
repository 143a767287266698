"""Two worlds at equal messages: their gaps are those of the accountant where it says that they are attained."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from confide.attacks.worlds import Side, drive, heard, loudness, pairs, row, units
from confide.graph.graph import Graph
from confide.plans.build import of_run
from confide.plans.config import Experiment, parse
from confide.plans.words import Colluders, Links, Neighbours, Threat, colluders
from confide.privacy.accountant import account
from confide.privacy.deviation import sensitivity
from confide.privacy.sensitivity import Sensitivity
from confide.problems.models import Linear, Logistic
from confide.rounds.noise import float_noise
from confide.rounds.schemes import scheme

CONFIG = {
    "rounds": 6,
    "graph": {"topology": "ring"},
    "problem": {"units": 4, "clients": 6, "samples": 12, "features": 3, "rho": 0.0},
    "algorithm": {
        "sampled": 3, "step": 0.3, "clip": "example", "bound": 2.0, "local_steps": 1, "batch": 4, "replacement": False,
    },
    "scheme": {"name": "homomorphic", "noise": "gaussian", "sigma": 1.5},
    "privacy": {"level": "unit"},
}  # fmt: skip


def experiment(*changes: str) -> tuple[Experiment, Sensitivity]:
    e = parse(CONFIG, changes).build()
    assert e.privacy is not None
    return e, sensitivity(of_run(e.problem, e.graph, e.algorithm, e.rounds, e.seed, e.privacy))


def steady(e: Experiment, s: Sensitivity, **options: Any) -> Any:
    unit = units(e, 0)[0]
    pair = pairs(e, s, unit)[0]
    assert pair.steady
    return drive(e, unit, Side(pair.one), Side(pair.other), e.rounds, **options)


SCHEMES = ["homomorphic", "shared", "own-clean", "partial:0.3", "per-link-clean", "pairwise", "central"]


@pytest.mark.parametrize("adjacency", ["replace", "zero-out"])
@pytest.mark.parametrize("name", SCHEMES)
def test_gaps_are_the_deltas_of_the_accountant(name: str, adjacency: str) -> None:
    changes = [f"scheme.name='{name}'", f"privacy.adjacency='{adjacency}'"]
    changes += ["scheme.sigma_pair=0.7"] if name == "pairwise" else []
    e, s = experiment(*changes)
    spent = account(e.algorithm.scheme, e.graph, s, rounds=e.rounds)
    assert spent.exact
    assert np.linalg.norm(steady(e, s).psi, axis=1) == pytest.approx(spent.deltas, rel=1e-12)


@pytest.mark.parametrize(
    "changes",
    [
        [],
        ["problem.rho=0.4", "algorithm.local_steps=[1, 3]"],
        ["scheme.name='own-clean'", "algorithm.clip='update'", "algorithm.local_steps=4", "problem.rho=0.4"],
        ["scheme.name='shared'", "privacy.level='example'"],
        ["scheme.name='central'", "privacy.level='client'"],
    ],
)
def test_steady_gaps_do_not_depend_on_the_messages(changes: list[str]) -> None:
    """So the two views are one Gaussian and the same moved, and nothing has to be sampled."""
    e, s = experiment(*changes)
    calm = steady(e, s)
    for seed in range(3):
        noisy = steady(e, s, noise=float_noise(seed))
        np.testing.assert_allclose(noisy.psi, calm.psi, rtol=0, atol=1e-12)
        np.testing.assert_allclose(noisy.kept, calm.kept, rtol=0, atol=1e-12)


def test_an_absent_unit_sends_nothing_and_keeps_its_gap() -> None:
    e, s = experiment("graph.failed_units=[[2, 0]]")
    sizes = np.linalg.norm(steady(e, s).psi, axis=1) / 1.2
    assert sizes == pytest.approx([1, 0, 2, 3, 4, 5])


def test_who_knows_the_model_starts_from_it_anew() -> None:
    e, s = experiment()
    assert np.linalg.norm(steady(e, s, public=True).psi, axis=1) == pytest.approx([1.2] * 6)


def test_every_client_is_attacked_with_the_steps_and_batches_of_the_config() -> None:
    e, _ = experiment("algorithm.local_steps=[1, 9]", "algorithm.batch=[2, 9]")
    E, batch = e.algorithm.settle(e.problem.federation, e.seed)
    most, smallest = units(e, 1)
    assert most.E[0] == E[6:12].max()
    assert smallest.batch[0] == batch[6:12].min()
    for unit in (most, smallest):
        assert len(unit.E) == len(unit.batch) == 4  # and one more, who takes the target's place
        assert set(zip(unit.E, unit.batch, strict=True)) <= set(
            zip(E[6:12].tolist(), batch[6:12].tolist(), strict=True)
        )


@pytest.mark.parametrize("model", [Linear(0.3), Logistic(0.3)])
def test_a_row_has_the_gradient_that_it_was_made_for(model: Linear | Logistic) -> None:
    v = np.array([0.6, -0.8])
    for size in (0.5, -3.0, 0.0):
        x, d = row(model, v, size)
        np.testing.assert_allclose(model.gradients(np.zeros(2), x[None], np.array([d]))[0], -size * v, atol=1e-12)


THREATS = [Links(), Colluders(frozenset({1})), Colluders(frozenset({1, 3})), Neighbours()]


@pytest.mark.parametrize("threat", THREATS, ids=str)
@pytest.mark.parametrize("name", SCHEMES)
def test_what_is_heard_is_what_the_accountant_counts(name: str, threat: Threat) -> None:
    graph = Graph.random(5, 0.6, seed=1)
    made = scheme(name, 0.7, noise="gaussian", sigma_pair=0.4 if name == "pairwise" else 0.0)
    s = Sensitivity(0.5, 1.0, level="unit")
    spent = account(made, graph, s, rounds=1, threat=threat)
    assert spent.target is not None
    near = frozenset(graph.neighbours(spent.target).tolist())
    seen = heard(made, graph, spent.target, near if isinstance(threat, Neighbours) else colluders(threat))
    assert float(np.linalg.norm(seen)) == pytest.approx(spent.mu_gdp, rel=1e-9)


def test_laplace_messages_are_heard_one_by_one() -> None:
    graph = Graph.star(4)
    assert heard(scheme("per-link", 2.0), graph, 0, frozenset()).tolist() == [0.5] * 3
    assert heard(scheme("shared", 2.0), graph, 0, frozenset({1})).tolist() == [0.5]
    assert heard(scheme("local-only"), graph, 0, frozenset()).tolist() == []
    assert heard(scheme("none"), graph, 0, frozenset()).tolist() == [math.inf]


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
@pytest.mark.parametrize("name", ["shared", "per-link", "pairwise", "central"])
def test_noise_that_is_drawn_too_softly_is_noticed(name: str, law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "pairwise" and law == "laplace":
        pytest.skip("no price")
    pair = ["scheme.sigma_pair=0.7"] if name == "pairwise" else []
    e, s = experiment(f"scheme.name='{name}'", f"scheme.noise='{law}'", "problem.features=20", *pair)
    unit = units(e, 0)[0]
    assert loudness(e, s, unit) == 1.0

    def weak(seed: int) -> Any:
        draw = float_noise(seed)
        return lambda purpose, ids, law, sigma, size: draw(purpose, ids, law, sigma / 2, size)

    monkeypatch.setattr("confide.rounds.reference.float_noise", weak)
    assert 0.49 < loudness(e, s, unit) < 0.65
