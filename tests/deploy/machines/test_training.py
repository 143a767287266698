"""What a client computes is what the reference computes, and an owner's own function is checked and clipped."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from confide.base.errors import DataError, InputError, RunError
from confide.base.randomness import Purpose, key
from confide.deploy.machines.training import built_in, entry_point, fresh_key
from confide.problems.models import Linear, Logistic
from confide.rounds.clipping import Clip
from confide.rounds.local import LocalTask, sgd, shared_update

RNG = np.random.default_rng(1)
X, D = RNG.standard_normal((9, 3)), np.where(RNG.standard_normal(9) > 0, 1.0, -1.0)
W = np.array([0.5, -1.0, 2.0])
CLIP = Clip("update", 0.5)


def task(**changes: Any) -> LocalTask:
    settings: dict[str, Any] = {"model": Linear(0.1), "step": 0.3, "E": 3, "batch": 4, "replacement": True}
    return LocalTask(**({"clip": Clip("example", 0.5), "key": 0} | settings | changes))


@pytest.mark.parametrize("kind", ["example", "update"])
@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("model", [Linear(0.1), Logistic(0.2)], ids=["linear", "logistic"])
def test_built_in_is_the_shared_update_with_the_key_of_the_round(kind: str, norm: str, model: Any) -> None:
    t = task(model=model, clip=Clip(kind, 0.5, norm))
    train = built_in(t, X, D, lambda i: key(5, Purpose.BATCHES, i, 1, 2))
    seen = []
    for i in (1, 2):
        expected, _ = shared_update(sgd, W, X, D, t._replace(key=key(5, Purpose.BATCHES, i, 1, 2)), fixed=True)
        found = train(W, i, {})
        assert np.array_equal(found, expected)
        assert np.linalg.norm(found, 1 if norm == "l1" else 2) <= 0.5 * 0.3 * (1 + 1e-15)
        seen.append(found.tolist())
    assert seen[0] != seen[1]


def test_the_decay_is_the_servers_only_in_fixed_point_with_clipped_examples() -> None:
    t, free = task(), task(clip=Clip("update", 1e9))
    whole, none = shared_update(sgd, W, X, D, t, fixed=False)
    part, gone = shared_update(sgd, W, X, D, t, fixed=True)
    assert none == 0.0
    assert gone == 1.0 - (1.0 - 2 * 0.1 * 0.3 / 3) ** 3
    np.testing.assert_allclose(part - gone * W, whole, atol=1e-15)
    assert np.array_equal(shared_update(sgd, W, X, D, free, fixed=True)[0], sgd(W, X, D, free))
    assert shared_update(sgd, W, X, D, free, fixed=True)[1] == 0.0


def test_batches_cannot_be_foreseen() -> None:
    assert len({fresh_key(1) for _ in range(50)}) == 50
    train = built_in(task(E=9), X, D)  # so many batches that they are the same again once in 10^23 times
    assert not np.array_equal(train(W, 1, {}), train(W, 1, {}))


def test_the_samples_are_copied() -> None:
    mine, first = X.copy(), lambda i: 1
    train = built_in(task(), mine, D, first)
    before = train(W, 1, {})
    mine[:] = 0.0
    assert np.array_equal(train(W, 1, {}), before)


@pytest.mark.parametrize(
    ("changes", "data", "message"),
    [
        ({}, (X[:, 0], D), "data = "),
        ({}, (X, D[:-1]), "data = "),
        ({}, (X[:0], D[:0]), "data = "),
        ({}, (X * np.inf, D), "data = 'NaN or infinity'"),
        ({}, (X, D * np.nan), "data = 'NaN or infinity'"),
        ({"clip": None}, (X, D), "clip = None"),
        ({"E": 0}, (X, D), "local_steps = 0"),
        ({"batch": 0}, (X, D), "batch = 0"),
        ({"step": -1.0}, (X, D), "step = -1.0"),
        ({"batch": 10, "replacement": False}, (X, D), "batch = 10: there are only 9 samples"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_refusals(changes: dict[str, Any], data: Any, message: str) -> None:
    with pytest.raises(InputError) as refused:
        built_in(task(**changes), *data)
    assert str(refused.value).startswith(message)
    assert isinstance(refused.value, DataError) == (message.startswith("data") or "only 9 samples" in message)


# ---- an owner's own function

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
        ("owners_code", "must be written package.module:function"),
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
