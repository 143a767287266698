"""The schemes at equal privacy: bounds that the proofs rest on, accounts, files, and verdicts that can be no."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from confide.engines.driver import simulate
from confide.engines.run import Run
from confide.experiments import equal_privacy as q
from confide.experiments import reproduce as module
from confide.experiments.claims import Claim
from confide.graph.graph import Graph
from confide.plans.words import ConvexGlm
from confide.privacy.accountant import account

BUDGETS = q.FEW


@pytest.fixture(scope="module")
def tiny() -> q.EqualPrivacy:
    return q.EqualPrivacy(BUDGETS, 2, 0)


@pytest.fixture(scope="module")
def made(tiny: q.EqualPrivacy, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], list[Claim]]:
    folder = tmp_path_factory.mktemp("figures")
    (files, claims), (more, others) = q.figure_f(tiny, folder), q.figure_g(tiny, folder)
    return folder, files + more, claims + others


# ---- what is declared is true


@pytest.mark.parametrize("seed", [0, 1])
def test_rows_and_gradients_keep_to_the_declared_bounds(seed: int) -> None:
    for task in q.EqualPrivacy(BUDGETS, 1, seed).tasks.values():
        f, model = task.problem.federation, task.problem.model
        assert (f.P, *set(f.K), *set(f.N)) == (q.P, q.K, q.N)
        assert np.linalg.norm(f.X, axis=1).max() <= 1 + 1e-12
        assert model.smoothness(f.X) <= task.smoothness * (1 + 1e-12)  # type: ignore[attr-defined]
        assert task.sensitivity.proof == ConvexGlm(2 * model.rho)
    # no gradient of the logistic problems is longer than B, so the clip changes nothing there
    for name in ("mild", "strong"):
        task = q.EqualPrivacy(BUDGETS, 1, seed).tasks[name]
        w = 100.0 * np.ones(q.M)
        gradients = task.problem.model.gradients(w, task.problem.federation.X, task.problem.federation.d)
        assert np.linalg.norm(gradients, axis=1).max() <= task.bound * (1 + 1e-12)


def test_the_clip_of_the_regression_matters_little_near_the_optimum() -> None:
    task = q.bounded_regression(0)
    f, w = task.problem.federation, task.problem.optimum
    assert w is not None
    assert np.mean(np.linalg.norm(task.problem.model.gradients(w, f.X, f.d), axis=1) > task.bound) < 0.002


def test_strong_is_more_heterogeneous_than_mild(tiny: q.EqualPrivacy) -> None:
    def spread(name: str) -> float:
        X = tiny.tasks[name].problem.federation.X.reshape(q.P, -1, q.M)
        covariances = np.einsum("pni,pnj->pij", X, X) / X.shape[1]
        return float(covariances.std(axis=0).max())

    assert spread("strong") > 5 * spread("mild")


# ---- every point costs what it says


def test_every_point_is_accounted_at_its_epsilon(tiny: q.EqualPrivacy) -> None:
    points = list(q._accounts(tiny))
    assert len(points) == len(tiny.tasks) * (len(q.WAYS) - 1) * len(BUDGETS)
    for asked, spent in points:
        assert spent == pytest.approx(asked, rel=1e-6)
        assert spent <= asked * (1 + 1e-9)


def test_less_noise_would_cost_more(tiny: q.EqualPrivacy) -> None:
    graph = Graph.ring(q.P, weights="metropolis")
    for way in ("shared", "homomorphic", "released", "pairwise-30", "central", "per-link"):
        c = tiny.point("mild", way, 2.0).calibrated
        assert c is not None
        less = c.scheme.resized(sigma=0.9 * c.scheme.sigma, sigma_pair=0.9 * c.scheme.sigma_pair)
        s = tiny.tasks["mild"].sensitivity
        spent = account(less, graph, s, rounds=q.ROUNDS, release=c.release, delta=q.DELTA).epsilon
        assert spent is not None
        assert spent > 2.0 * 1.01


def test_a_release_is_paid_from_the_same_budget(tiny: q.EqualPrivacy) -> None:
    hidden, released = (tiny.point("mild", way, 2.0) for way in ("homomorphic", "released"))
    assert hidden.released is None
    assert released.released is not None
    assert hidden.calibrated is not None
    assert released.calibrated is not None
    assert released.calibrated.scheme.sigma == pytest.approx(np.sqrt(2) * hidden.calibrated.scheme.sigma, rel=0.05)
    # P - 1 of P shares put sigma on the mean; the mean carries all of them.
    extra = q.M * released.calibrated.release.sigma**2 * q.P / (q.P - 1)
    np.testing.assert_allclose(released.released, released.centroid + extra)
    shared = tiny.point("mild", "shared", 2.0)
    np.testing.assert_array_equal(shared.released, shared.centroid)  # a public state costs nothing to reveal


def test_local_training_and_no_noise_do_not_depend_on_epsilon(tiny: q.EqualPrivacy) -> None:
    for way in ("none", "local-only"):
        few, many = (tiny.point("strong", way, e) for e in BUDGETS)
        np.testing.assert_array_equal(few.individual, many.individual)
        assert np.ptp(few.centroid) < 1e-9  # full batches, all clients: nothing is random


# ---- files and claims


def test_pictures_and_data(made: tuple[Path, list[str], list[Claim]], tiny: q.EqualPrivacy) -> None:
    folder, files, claims = made
    stems, suffixes = ("equal_privacy_released", "equal_privacy_individual"), (".png", ".svg", ".pdf")
    pictures = [f"{stem}{suffix}" for stem in stems for suffix in suffixes]
    assert sorted(os.listdir(folder)) == sorted(Path(f).name for f in files) == sorted([*pictures, f"{stems[0]}.csv"])
    table = pl.read_csv(folder / f"{stems[0]}.csv")
    assert table.height == len(tiny.tasks) * len(q.WAYS) * len(BUDGETS)
    row = table.filter((pl.col("problem") == "strong") & (pl.col("scheme") == "released") & (pl.col("epsilon") == 10))
    point = tiny.point("strong", "released", 10.0)
    assert point.released is not None
    assert row["released mean"].item() == pytest.approx(point.released.mean())
    assert row["released low"].item() <= row["released mean"].item() <= row["released high"].item()
    assert row["accounted epsilon"].item() == pytest.approx(10.0)
    assert table.filter(pl.col("scheme") == "homomorphic")["released mean"].null_count() == 6
    assert table.filter(pl.col("scheme") == "none")["accounted epsilon"].null_count() == 6
    assert [c.id for c in claims] == ["f1", "f2", "f3", "f4", "f5", "f6", "f7", "g1", "g2"]
    for claim in claims:
        plain = claim.to_dict()
        assert json.loads(json.dumps(plain, allow_nan=False)) == plain
        assert isinstance(claim.holds, bool)
        assert claim.figure == stems[claim.id[0] == "g"]
        assert 0 < len(claim.line) <= 31, "a line of the table on the terminal"


LEARNT = {
    "none": 1e-4,
    "shared": 0.1,
    "per-link": 0.5,
    "homomorphic": 0.001,
    "released": 0.02,
    "local-only": 0.01,
    "pairwise-2.6": 0.04,
    "pairwise-30": 0.03,
    "central": 0.02,
}
LEARNT_OF = {
    "regression": LEARNT | {"homomorphic": 0.12},
    "mild": LEARNT,
    "strong": LEARNT | {"homomorphic": 0.09, "released": 0.15, "local-only": 0.2},
}


class Told(q.EqualPrivacy):
    """Errors as told, the same at every epsilon and in every repetition."""

    def tell(
        self, tiny: q.EqualPrivacy, learnt: Any = None, individual: Any = None, spent: Any = None, cost: float = 15.0
    ) -> Told:
        self.tiny, self.learnt, self.individual, self.spent, self.cost = (
            tiny,
            learnt or {},
            individual or {},
            spent or {},
            cost,
        )
        return self

    def clip_costs(self, epsilon: float) -> float:
        return self.cost

    def point(self, task: str, way: str, epsilon: float, weights: str = "metropolis") -> q.Point:
        base = self.tiny.point(task, way, epsilon, weights)
        own = self.individual.get((task, way), 10.0 if way == "homomorphic" else 0.5)
        rows = np.full(2, self.learnt.get((task, way), LEARNT_OF[task][way]))
        return base._replace(
            centroid=rows,
            released=None if base.released is None else rows,
            individual=np.full(2, own),
            epsilon=self.spent.get((task, way), base.epsilon),
        )


@pytest.mark.parametrize(
    ("change", "fails"),
    [
        ({}, []),
        ({"spent": {("mild", "shared"): 2.1}}, ["f1"]),
        ({"spent": {("mild", "shared"): None}}, ["f1"]),  # a leak
        ({"learnt": {("mild", "homomorphic"): 0.02}}, ["f2"]),
        ({"learnt": {("regression", "homomorphic"): 0.07}}, ["f3"]),
        ({"cost": 3.0}, ["f3"]),
        ({"learnt": {("mild", "local-only"): 0.015}}, ["f4"]),
        ({"learnt": {("strong", "homomorphic"): 0.02}}, ["f5"]),
        ({"learnt": {("strong", "released"): 0.05}}, ["f5"]),
        ({"learnt": {("strong", "pairwise-30"): 0.05}}, ["f6"]),  # beaten by k = 2.6, and too far from central
        ({"learnt": {("strong", "central"): 0.001}}, ["f6"]),
        ({"learnt": {("mild", "released"): 0.001}}, ["f4", "f7"]),
        ({"learnt": {("strong", "local-only"): 0.001}}, ["f6", "f7"]),  # then one scheme wins everywhere
        ({"individual": {("mild", "homomorphic"): 4.0}}, ["g1"]),
        ({"individual": {("strong", "homomorphic"): 0.1}}, ["g1", "g2"]),
    ],
)
def test_every_verdict_can_be_no(
    change: dict[str, Any], fails: list[str], tiny: q.EqualPrivacy, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = verdicts(monkeypatch, Told(BUDGETS, 2, 0).tell(tiny, **change))
    assert [name for name, claim in told.items() if not claim.holds] == fails


def verdicts(monkeypatch: pytest.MonkeyPatch, x: q.EqualPrivacy) -> dict[str, Claim]:
    """The claims, without the pictures."""
    monkeypatch.setattr(q, "_panels", lambda *arguments: None)
    monkeypatch.setattr(q.figures, "save", lambda *arguments: [])
    monkeypatch.setattr(q.figures, "save_csv", lambda *arguments: "")
    return {c.id: c for figure in (q.figure_f, q.figure_g) for c in figure(x, Path("x"))[1]}


def test_the_sentence_follows_the_numbers(tiny: q.EqualPrivacy, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = (
        verdicts(monkeypatch, Told(BUDGETS, 2, 0).tell(tiny, learnt=learnt))["f7"].statement
        for learnt in ({}, {("mild", "shared"): 0.001})
    )
    assert "mild heterogeneity: local-only + release at every epsilon" in before
    assert "mild heterogeneity: shared at every epsilon" in after
    assert "strong heterogeneity: pairwise, k = 30 at every epsilon" in before


def test_what_the_clip_costs_is_measured(tiny: q.EqualPrivacy) -> None:
    assert tiny.clip_costs(10.0) > 5.0


def test_ties_and_stretches_are_said(tiny: q.EqualPrivacy) -> None:
    rows = [("shared",), ("shared",), ("shared", "released")]
    x = q.EqualPrivacy((1.0, 2.0, 4.38), 1, 0)
    x.__dict__["tasks"] = tiny.tasks
    said = q._sentence(x, {"mild": rows})
    assert said.endswith("shared at epsilon 1 to 2, shared or homomorphic + release at epsilon 4.38")


# ---- the hook


def test_names_sizes_and_interruption(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def told(*names: str) -> list[str]:
        return [what for what, _, _ in module._figures(names, 1, 1, 0, Path("x"), None)]

    assert told("equal-privacy")[:2] == [q.RELEASED, q.INDIVIDUAL]
    assert not {q.RELEASED, q.INDIVIDUAL} & {*told("regression", "classification")}
    assert q.EqualPrivacy.sized(True, None, 3) == q.EqualPrivacy(q.FEW, 10, 3)
    assert q.EqualPrivacy.sized(False, None, 0) == q.EqualPrivacy(q.EPSILONS, 60, 0)
    assert q.EqualPrivacy.sized(True, 5, 0).repeats == 5
    assert {q.USUAL} <= set(q.FEW) & set(q.EPSILONS)

    def interrupted(*arguments: Any, **options: Any) -> Run:
        return replace(simulate(*arguments, **options), interrupted=True)

    monkeypatch.setattr(q, "simulate", interrupted)
    report = module.reproduce(("equal-privacy",), quick=True, repeats=1, out=tmp_path)
    assert report.interrupted
    assert report.claims == []
    assert sorted(os.listdir(tmp_path)) == ["claims.json", "index.html"]
