"""The train functions of `examples/`, as a client's TOML names them: each learns in a network, and keeps the rules."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from confide.base.errors import RunError
from confide.deploy.machines.own_training import entry_point
from confide.rounds.clipping import Clip

FOLDER = Path(__file__).parents[1] / "examples"
NAMES = sorted(path.stem for path in FOLDER.glob("train_*.py"))
ANY = Clip("update", 1e6)  # clips nothing


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name = str(request.param)
    if name == "train_torch":
        pytest.importorskip("torch", reason="torch is not installed: pip install 'confide[torch]'")
    monkeypatch.syspath_prepend(str(FOLDER))
    for own in (*NAMES, "rehearse"):
        monkeypatch.delitem(sys.modules, own, raising=False)
    return name


@pytest.fixture
def module(name: str) -> dict[str, Any]:
    return runpy.run_path(str(FOLDER / f"{name}.py"))


@pytest.fixture
def config(module: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    X, y = module["sample"](np.random.default_rng(1), 200)
    np.savez(tmp_path / "own.npz", X=X, y=y)
    return {"data": str(tmp_path / "own.npz")}


def test_all_three_are_here() -> None:
    assert NAMES == ["train_numpy", "train_sklearn", "train_torch"]


def test_it_learns(name: str, module: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr().out
    size, before, after = re.search(
        r"the model has (\d+) numbers.* ([\d.]+)%? before, ([\d.]+)%? after", printed, re.DOTALL
    ).groups()  # type: ignore[union-attr]
    assert f"--features {size}`" in (FOLDER / f"{name}.py").read_text(encoding="utf-8")  # what the reader is told
    if "error" in printed:
        assert float(after) < 0.7 * float(before)
    else:
        assert float(after) > max(float(before) + 30, 85)


def test_it_keeps_the_rules(name: str, module: dict[str, Any], config: dict[str, Any]) -> None:
    train, w = entry_point(f"{name}:train", ANY, 1.0), np.random.default_rng(2).normal(0, 0.1, module["size"]())
    given = w.copy()
    update = train(w, 1, config)
    assert update.dtype == np.float64
    assert np.abs(update).max() > 1e-3
    assert np.array_equal(w, given)
    train(w + 1.0, 2, config)
    assert np.array_equal(train(w, 1, config), update)  # nothing stays from another round
    clipped = entry_point(f"{name}:train", Clip("update", 0.01), 1.0)(w, 1, config)
    np.testing.assert_allclose(clipped, update * (0.01 / np.linalg.norm(update)), rtol=1e-12)


def test_it_moves_from_the_weights_that_it_is_given(name: str, module: dict[str, Any], config: dict[str, Any]) -> None:
    """A model that restarts each round would send the same new weights whatever the old."""
    train, M = entry_point(f"{name}:train", ANY, 1.0), module["size"]()
    a, b = np.zeros(M), np.random.default_rng(3).normal(0, 0.5, M)
    assert not np.allclose(a + train(a, 1, config), b + train(b, 1, config), atol=1e-2)


def test_updates_add_up(name: str, module: dict[str, Any], config: dict[str, Any]) -> None:
    """Forty of them, without noise and without others, fit the client's own samples: new - old, not old - new."""
    train, w = entry_point(f"{name}:train", ANY, 1.0), np.zeros(module["size"]())
    for i in range(1, 41):
        w += train(w, i, config)
    with np.load(config["data"]) as data:
        X, y = data["X"], data["y"]
    if "accuracy" in module:
        assert module["accuracy"](w, X, y) > 0.9
    else:
        assert module["error"](w, X, y) < 0.8 * module["error"](np.zeros_like(w), X, y)


@pytest.mark.parametrize("more", [-1, 1])
def test_weights_of_another_model(name: str, module: dict[str, Any], config: dict[str, Any], more: int) -> None:
    with pytest.raises(RunError, match=f"{name}:train raised (ValueError|RuntimeError) in round 1"):
        entry_point(f"{name}:train", ANY, 1.0)(np.zeros(module["size"]() + more), 1, config)


def test_pickles_are_not_read(name: str, module: dict[str, Any], tmp_path: Path) -> None:
    X, y = module["sample"](np.random.default_rng(1), 10)
    np.savez(tmp_path / "own.npz", X=X, y=y.astype(object))
    with pytest.raises(RunError, match="raised ValueError") as failed:
        entry_point(f"{name}:train", ANY, 1.0)(np.zeros(module["size"]()), 1, {"data": str(tmp_path / "own.npz")})
    assert "allow_pickle" in str(failed.value.__cause__)


@pytest.mark.parametrize("name", ["train_numpy"], indirect=True)
def test_a_rehearsal_shows_an_error_at_once(name: str, module: dict[str, Any]) -> None:
    rehearse = runpy.run_path(str(FOLDER / "rehearse.py"))
    with pytest.raises(RunError, match="train_numpy:train raised ValueError in round 1"):
        rehearse["learn"](f"{name}:train", 9, module["sample"], module["error"], 1.0)
