"""An owner's own function is called, and what it returns checked and clipped."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import numpy as np
import pytest

from confide.base.errors import DataError, InputError, RunError
from confide.deploy.machines.own_training import entry_point
from confide.rounds.clipping import Clip

W = np.array([0.5, -1.0, 2.0])
CLIP = Clip("update", 0.5)
MODULE = """
import numpy as np
NUMBER = 3
def train(weights, round, config):
    return np.full(3, config["rate"] * round)
def single(weights, round, config): return np.ones(3, np.float32)
def whole(weights, round, config): return np.ones(3, int)
def a_list(weights, round, config): return [1.0, 2.0, 3.0]
def nothing(weights, round, config): pass
def short(weights, round, config): return weights[:2]
def table(weights, round, config): return weights[None]
def nan(weights, round, config): return weights * np.nan
def inf(weights, round, config): return np.array([0.0, -np.inf, 0.0])
def raises(weights, round, config): raise ValueError(f"the patient {weights[0]}")
def leaves(weights, round, config): raise SystemExit(3)
def stops(weights, round, config): raise KeyboardInterrupt
def spoils(weights, round, config):
    weights[:] = 7.0
    return weights
def one(weights): return weights
def named(weights, *, round, config): return weights
def far(weights, round, config): return np.array([1e300, 1.0, -0.2])
any_of_them = lambda *all: all[0]
build = dict
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "owners_code.py").write_text(MODULE)
    (tmp_path / "owners_broken.py").write_text("1 / 0")
    (tmp_path / "owners_leaving.py").write_text("raise SystemExit(1)")
    (tmp_path / "owners_needs.py").write_text("import owners_absent")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [m for m in sys.modules if m.startswith("owners_")]:
        monkeypatch.delitem(sys.modules, name)


def test_an_entry_point_is_called_and_clipped() -> None:
    train = entry_point("owners_code:train", CLIP, 0.2)
    assert np.array_equal(train(W, 1, {"rate": 0.01}), np.full(3, 0.01))
    np.testing.assert_allclose(np.linalg.norm(train(W, 2, {"rate": 5.0})), 0.1)
    l1 = entry_point("owners_code:train", Clip("update", 0.5, "l1"), 0.2)
    np.testing.assert_allclose(np.abs(l1(W, 2, {"rate": 5.0})).sum(), 0.1)
    single = entry_point("owners_code:single", CLIP, 100.0)(W, 1, {})
    assert single.dtype == np.float64
    assert single.tolist() == [1.0, 1.0, 1.0]
    assert entry_point("owners_code:any_of_them", CLIP, 100.0)(W, 1, {}).tolist() == W.tolist()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("owners_code", "must be written package.module:name"),
        ("owners_code:", "must be written"),
        (":train", "must be written"),
        ("owners_code:a.b", "must be written"),
        ("owners code:a", "must be written"),
        ("../owners_code:train", "must be written"),
        ("owners_missing:train", "there is no module 'owners_missing'"),
        ("owners_missing.part:train", "there is no module 'owners_missing'"),
        ("owners_needs:train", "there is no module 'owners_absent'"),
        ("owners_code:missing", "gives no 'missing'"),
        ("owners_code:NUMBER", "is a int, not a function"),
        ("owners_code:one", "must take three arguments"),
        ("owners_code:named", "must take three arguments"),
        ("owners_broken:train", "loading 'owners_broken' raised ZeroDivisionError"),
        ("owners_leaving:train", "loading 'owners_leaving' raised SystemExit"),
    ],
)
def test_names_that_give_no_function(name: str, message: str) -> None:
    with pytest.raises(InputError) as refused:
        entry_point(name, CLIP, 1.0)
    assert str(refused.value).startswith(f"train = {name!r}: ")
    assert message in str(refused.value)
    assert isinstance(refused.value, DataError) == message.startswith("loading")  # it may have looked at the data


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("whole", "an array of int64"),
        ("a_list", "a list"),
        ("nothing", "a NoneType"),
        ("short", "shape (2,); the weights have (3,)"),
        ("table", "shape (1, 3)"),
        ("nan", "NaN or infinity"),
        ("inf", "NaN or infinity"),
        ("raises", "raised ValueError in round 4"),
        ("leaves", "raised SystemExit in round 4"),
        ("build", "raised TypeError in round 4"),
    ],
)
def test_what_it_must_not_do(name: str, message: str) -> None:
    train = entry_point(f"owners_code:{name}", CLIP, 1.0)
    with pytest.raises(RunError) as failed:
        train(W, 4, {"rate": 1.0})
    assert str(failed.value).startswith(f"owners_code:{name} r")
    assert message in str(failed.value)
    assert "patient" not in str(failed.value)


def test_ctrl_c_is_the_owners_wish() -> None:
    with pytest.raises(KeyboardInterrupt):
        entry_point("owners_code:stops", CLIP, 1.0)(W, 1, {})


def test_only_the_whole_update_of_such_a_step_can_be_clipped() -> None:
    with pytest.raises(InputError, match="clip = 'example'"):
        entry_point("owners_code:train", Clip("example", 1.0), 1.0)


def test_what_a_number_far_beyond_the_bound_does_to_the_others_is_told(caplog: pytest.LogCaptureFixture) -> None:
    train = entry_point("owners_code:far", CLIP, 1.0)
    assert np.abs(train(W, 4, {}) - [0.5, 0.0, 0.0]).max() < 1e-200
    (line,) = caplog.records
    assert line.levelno == logging.WARNING
    assert line.getMessage().startswith("numbers of the update of round 4 end as zero: one is beyond 1e100")
    entry_point("owners_code:single", CLIP, 1.0)(W, 4, {})
    assert len(caplog.records) == 1
