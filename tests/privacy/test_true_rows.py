"""One row that fails a check silenced its whole client, and level `example` was charged for one row of a batch."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from builders import changed, deployed
from confide.base.errors import DataError, InputError
from confide.deploy.machines import own_training, training
from confide.deploy.node.client_setup import ClientSetup
from confide.plans.config import parse
from confide.plans.plan import Plan
from confide.privacy.price import agreed
from confide.rounds.clipping import Clip

ROWS = 100


def plan_of(kind: str = "linear", clip: str = "example", **privacy: Any) -> Plan:
    """A mini-batch is all of a client's rows: one row fewer would be too few."""
    e = parse(
        {
            "rounds": 8,
            "repeats": 1,
            "graph": {"topology": "ring"},
            "problem": {"units": 3, "clients": 2, "samples": ROWS, "rho": 0.1},
            "algorithm": {"step": 0.01, "sampled": 2, "local_steps": 1, "batch": ROWS, "replacement": False}
            | {"clip": clip, "bound": 1.0, "arithmetic": "fixed"},
            "scheme": {"name": "shared", "noise": "gaussian", "sigma": 0.02},
            "privacy": {"proof": "none", "level": "example"} | privacy,
        }
    ).build()
    return agreed(changed(deployed(e), model=kind)).plan


def update(plan: Plan, path: Path) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """As `client_process` has it: zeros where the data fail a check as a whole."""
    config: Any = SimpleNamespace(train=None, model=None, data=path.name, path=lambda name: path.parent / name)
    told: list[tuple[int, int]] = []
    try:
        train = ClientSetup(config, plan, 0, 0, node=None, passphrase=None, trust=None).trainer(
            1, lambda *n: told.append(n)
        )  # type: ignore[arg-type]
    except DataError:
        train = training.without_data(plan, 0, 0)
    return train(np.zeros(plan.algorithm.model.length), 1, {}), told


def csv(path: Path, rows: list[str], names: int) -> Path:
    lines = [",".join(f"x{i}" for i in range(names)), *rows, ""]
    path.write_bytes("\n".join(lines).encode(errors="surrogateescape"))
    return path


@pytest.mark.parametrize(
    "row", ["{},1,1", "", "#", "text", "{}", "nan,{}", "{},inf", "{},1e101", "1e9,{}", "\x00", "\r\r", "\udcff"]
)
@pytest.mark.parametrize("proof", ["none", "convex-glm:0.2", "declared"])
def test_a_row_of_a_csv_moves_no_more_than_its_part(tmp_path: Path, proof: str, row: str) -> None:
    smooth = {"proof": "convex-glm:0.2", "smoothness": 60.0} if proof == "declared" else {"proof": proof}
    plan = plan_of(**smooth)
    M = plan.algorithm.model.length
    good = ",".join(["1"] * M) + ",1000"
    whole, none = update(plan, csv(tmp_path / "a.csv", [good] * ROWS, M + 1))
    assert not none
    assert np.linalg.norm(whole) == pytest.approx(0.01)
    for place in (0, 7, ROWS - 1):
        rows = [good] * ROWS
        rows[place] = row.format(",".join(["1"] * M))
        found, told = update(plan, csv(tmp_path / "b.csv", rows, M + 1))
        assert told == ([] if "1e9" in row and proof != "declared" else [(1, ROWS)])
        moved = np.linalg.norm(whole - found) / plan.algorithm.sampled
        assert 0.0 < moved <= agreed(plan).messages[0].sensitivity


@pytest.mark.parametrize(
    ("kind", "where", "value"),
    [
        ("linear", "X", np.nan),
        ("linear", "X", -np.inf),
        ("linear", "X", 1e200),
        ("linear", "y", np.nan),
        ("logistic", "y", 0.0),
        ("logistic", "y", 2.0),
        ("logistic", "X", np.nan),
        ("softmax:2", "y", 2.0),
        ("softmax:2", "y", 0.5),
        ("softmax:2", "X", np.nan),
    ],
)
def test_a_row_of_an_npz_moves_no_more_than_its_part(tmp_path: Path, kind: str, where: str, value: float) -> None:
    plan = plan_of(kind)
    arrays = {"X": np.ones((ROWS, plan.algorithm.model.features)), "y": np.ones(ROWS)}
    np.savez(tmp_path / "a.npz", allow_pickle=False, **arrays)
    arrays[where][7] = value
    np.savez(tmp_path / "b.npz", allow_pickle=False, **arrays)
    whole, _ = update(plan, tmp_path / "a.npz")
    found, told = update(plan, tmp_path / "b.npz")
    assert told == [(1, ROWS)]
    assert 0.0 < np.linalg.norm(whole - found) / plan.algorithm.sampled <= agreed(plan).messages[0].sensitivity


def test_a_row_beyond_the_declared_smoothness_counts_as_zeros() -> None:
    plan = plan_of(proof="convex-glm:0.2", smoothness=60.0)
    M = plan.algorithm.model.length
    X, y, w, told = np.ones((ROWS, M)), np.ones(ROWS), np.zeros(M), []
    whole = training.of_plan(plan, 0, 0, X, y)(w.copy(), 1, {})
    X[7] *= 1e3
    found = training.of_plan(plan, 0, 0, X, y, told=lambda *n: told.append(n))(w.copy(), 1, {})
    assert told == [(1, ROWS)]
    np.testing.assert_allclose(found, whole * (ROWS - 1) / ROWS, rtol=1e-12)


def test_what_an_npz_holds_is_decided_by_its_type(tmp_path: Path) -> None:
    """Texts are refused whether or not each is a number: else one of them would decide over all."""
    plan = plan_of()
    for text in ("1", "one"):
        X = np.full((ROWS, plan.algorithm.model.length), "1", "<U3")
        X[7] = text
        np.savez(tmp_path / "a.npz", allow_pickle=False, X=X, y=np.ones(ROWS))
        found, told = update(plan, tmp_path / "a.npz")
        assert not found.any()
        assert not told


def test_a_training_of_ones_own_is_never_at_level_example() -> None:
    """It may fail for one row's sake, and then its client adds zeros."""
    with pytest.raises(InputError, match="needs per-example clipping"):
        plan_of(clip="update")
    with pytest.raises(InputError, match="clipped as a whole"):
        own_training.entry_point("math:fsum", Clip("example", 1.0), 0.1)
