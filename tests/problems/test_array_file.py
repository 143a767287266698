"""Arrays in a file: where they come from changes nothing, and whatever is wrong with one is one line."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import confide
from confide.base.errors import InputError
from confide.plans.config import parse
from confide.problems import arrays
from confide.problems.models import Linear, Logistic, Softmax

ROWS = 120
RNG = np.random.Generator(np.random.Philox(3))
IMAGES = RNG.integers(0, 256, (ROWS, 3, 4), dtype=np.uint8)
LABELS = RNG.integers(0, 3, ROWS)
UNIT = np.array(["north", "south"])[np.arange(ROWS) % 2]
CLIENT = np.arange(ROWS) // 2 % 3
COLUMNS: dict[str, Any] = {"unit": "unit", "client": "client", "classes": 3}
IID: dict[str, Any] = {"split": "iid", "units": 2, "clients": 3, "classes": 3}


def npz(path: Path, compressed: bool = False, **changes: Any) -> Path:
    held = {"X": IMAGES, "y": LABELS, "unit": UNIT, "client": CLIENT} | changes
    (np.savez_compressed if compressed else np.savez)(path / "own.npz", **held)
    return path / "own.npz"


def parquet(path: Path, **changes: Any) -> Path:
    flat = IMAGES.reshape(ROWS, -1)
    held = {"X": flat.tolist(), "y": LABELS, "unit": UNIT, "client": CLIENT} | changes
    pl.DataFrame(held).write_parquet(path / "own.parquet")
    return path / "own.parquet"


def test_units_and_clients_come_from_the_arrays(tmp_path: Path) -> None:
    p = arrays(npz(tmp_path), **COLUMNS, test_fraction=0)
    assert p.private
    assert p.undeclared == ()
    assert p.source is not None
    assert p.federation.K.tolist() == [3, 3]
    X, d = p.federation.client(1, 2)
    mine = (UNIT == "south") & (CLIENT == 2)
    assert np.array_equal(X, IMAGES[mine].reshape(mine.sum(), 12))
    assert np.array_equal(d, LABELS[mine])
    assert p.model == Softmax(classes=3)
    assert p.M == 36


def test_every_kind_of_file_says_the_same(tmp_path: Path) -> None:
    first = arrays(npz(tmp_path), **COLUMNS, scale=255)
    assert first.federation.X.max() <= 1.0
    nested = pl.Series(IMAGES.tolist(), dtype=pl.Array(pl.Array(pl.UInt8, 4), 3))
    flat, text = IMAGES.reshape(ROWS, -1), UNIT.astype("S")
    for write, changes, kind in (
        (npz, {"compressed": True}, np.float32),
        (npz, {"X": np.asfortranarray(IMAGES)}, np.float32),
        (npz, {"X": IMAGES.astype(np.float64), "unit": text}, np.float64),
        (parquet, {}, np.float64),  # polars makes large integers of Python's
        (parquet, {"X": pl.Series(flat.tolist(), dtype=pl.List(pl.Float32))}, np.float32),
        (parquet, {"X": nested}, np.float32),
        (parquet, {"X": nested.cast(pl.List(pl.List(pl.UInt8)))}, np.float32),
    ):
        path = write(tmp_path, **changes)
        p = arrays(path, **COLUMNS, scale=255)
        assert p.federation.X.dtype == kind
        np.testing.assert_allclose(p.federation.X, first.federation.X, rtol=1e-6)
        assert np.array_equal(p.federation.d, first.federation.d)
        assert p.test is not None
        assert first.test is not None
        np.testing.assert_allclose(p.test[0], first.test[0], rtol=1e-6)


def test_names_of_arrays_are_asked_for(tmp_path: Path) -> None:
    path = npz(tmp_path, pictures=IMAGES, digit=LABELS)
    p = arrays(path, features="pictures", label="digit", **COLUMNS)
    assert np.array_equal(p.federation.X, arrays(path, **COLUMNS).federation.X)


@pytest.mark.parametrize(
    ("kind", "short"),
    [("u1", True), ("i2", True), ("?", True), ("f2", True), ("f4", True), ("i4", False), ("u8", False), ("f8", False)],
)
def test_single_precision_is_kept_where_the_file_has_no_more(tmp_path: Path, kind: str, short: bool) -> None:
    p = arrays(npz(tmp_path, X=(IMAGES % 2).astype(kind)), **COLUMNS)
    assert p.federation.X.dtype == (np.float32 if short else np.float64)
    assert p.federation.d.dtype == np.float64


def test_a_row_is_copied_once(tmp_path: Path) -> None:
    """Beside the rows of training and test there is nothing of their size: the file is mapped."""
    X = np.zeros((4000, 1000), np.float32)
    path = npz(tmp_path, X=X, y=np.arange(4000) % 3, unit=np.zeros(4000), client=np.arange(4000) % 5)
    tracemalloc.start()
    p = arrays(path, **COLUMNS)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert p.federation.X.dtype == np.float32
    assert most < 1.5 * X.nbytes


def test_the_spec_makes_the_problem_again(tmp_path: Path) -> None:
    p = arrays(npz(tmp_path), **IID, scale=255, rho=0.1, seed=4)
    spec = json.loads(json.dumps(p.spec))
    assert spec.pop("name") == "arrays"
    assert Path(spec["path"]).is_absolute()
    again = arrays(**spec)
    assert again.spec == p.spec
    assert np.array_equal(again.federation.X, p.federation.X)
    config = parse({"problem": p.spec, "rounds": 2, "graph": {"topology": "ring"}})
    assert config.repeats == 1
    assert np.array_equal(config.build().problem.federation.X, p.federation.X)


@given(split=st.sampled_from(["iid", "unequal", "dirichlet", "columns"]), seed=st.integers(0, 99))
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_row_is_somebodys_once(tmp_path: Path, split: str, seed: int) -> None:
    X = np.arange(float(ROWS))[:, None]
    how = COLUMNS if split == "columns" else IID | {"split": split, "alpha": 0.3 if split == "dirichlet" else None}
    p = arrays(npz(tmp_path, X=X), **how, seed=seed)
    assert p.test is not None
    assert sorted(np.concatenate([p.federation.X, p.test[0]])[:, 0]) == X[:, 0].tolist()
    assert np.array_equal(p.federation.d, LABELS[p.federation.X[:, 0].astype(int)])
    assert p.federation.N.min() >= 1


def test_models_by_name(tmp_path: Path) -> None:
    y = RNG.standard_normal(ROWS)
    p = arrays(npz(tmp_path, y=y), model="linear", rho=0.1, unit="unit", client="client")
    assert p.model == Linear(0.1)
    assert arrays(npz(tmp_path, y=np.sign(y)), model="logistic", unit="unit", client="client").model == Logistic()
    skewed = arrays(npz(tmp_path, y=y), model="linear", split="dirichlet", alpha=0.05, units=2, clients=3)
    means = [skewed.federation.client(u, k)[1].mean() for u in range(2) for k in range(3)]
    assert np.std(means) > 0.3


# ---- what an epsilon would not cover


def test_what_is_computed_from_everybodys_rows_is_said(tmp_path: Path) -> None:
    path = npz(tmp_path)
    counted = arrays(path, unit="unit", client="client")
    assert counted.model == Softmax(classes=3)
    assert len(counted.undeclared) == 1
    assert "classes = 10" in counted.undeclared[0]
    (why,) = arrays(path, **IID).undeclared
    assert "for experiments" in why
    (why,) = arrays(path, **IID | {"split": "dirichlet", "alpha": 1.0}).undeclared
    assert "everybody's labels" in why
    tables = {
        "rounds": 2, "graph": {"topology": "ring"}, "algorithm": {"sampled": 2, "clip": "update", "bound": 1.0},
        "scheme": {"name": "shared", "sigma": 1.0},
    }  # fmt: skip
    e = parse({**tables, "problem": {"name": "arrays", "path": str(path), **IID}}).build()
    with pytest.raises(InputError, match="no epsilon covers how its rows were prepared"):
        confide.simulate(e.problem, e.graph, e.algorithm, rounds=2, privacy=e.privacy)
    e = parse({**tables, "problem": {"name": "arrays", "path": str(path), **COLUMNS}}).build()
    run = confide.simulate(e.problem, e.graph, e.algorithm, rounds=2, privacy=e.privacy)
    assert run.privacy is not None


def test_a_declared_class_that_nobody_has_is_learnt_of_nobody(tmp_path: Path) -> None:
    p = arrays(npz(tmp_path, y=np.where(LABELS == 1, 0, LABELS)), **COLUMNS | {"classes": 4}, rho=0.01, scale=255)
    assert p.M == 48
    assert p.optimum is not None
    rare = p.model.predict(p.optimum, p.federation.X).mean(axis=0)  # type: ignore[attr-defined]
    assert rare[[1, 3]].max() < 0.05


# ---- bad input


@pytest.mark.parametrize(
    ("changes", "how", "message"),
    [
        ({"X": np.array([{}] * ROWS, dtype=object)}, {}, "pickled objects are not read"),
        ({"y": np.array(["a"] * ROWS)}, {}, r"problem.label = 'y': is of <U1; must be an array of numbers"),
        ({"X": IMAGES.astype(complex)}, {}, r"problem.features = 'X': is of complex128"),
        ({"X": np.zeros(ROWS)}, {}, r"problem.features = 'X': has shape \(120,\)"),
        ({"X": np.zeros((ROWS, 0))}, {}, r"problem.features = 'X': has shape \(120, 0\)"),
        ({"X": np.zeros((0, 4)), "y": np.zeros(0)}, {}, r"problem.features = 'X': has shape \(0, 4\)"),
        ({"y": LABELS[1:]}, {}, r"problem.label = 'y': has shape \(119,\)"),
        ({"y": np.eye(3)[LABELS]}, {}, r"problem.label = 'y': has shape \(120, 3\)"),
        ({"X": np.where(np.arange(ROWS) == 7, np.nan, 1.0)[:, None]}, {}, "row 8 holds NaN or infinity"),
        ({"y": np.where(np.arange(ROWS) == 7, np.inf, 1.0)}, {}, "row 8 has no label"),
        ({"y": LABELS + 0.5}, {}, r"problem.label = \d.5: the labels of this model are whole numbers from 0 to 2"),
        ({"y": LABELS - 1}, {}, r"problem.label = -1.0: the labels of this model are whole numbers from 0 to 2"),
        ({"y": LABELS + 1}, {}, r"problem.label = 3.0: the labels of this model are whole numbers from 0 to 2"),
        ({"y": LABELS * 1000}, {"classes": None}, "are they classes"),
        ({}, {"model": "logistic", "classes": None}, r"the labels of this model are -1 and \+1"),
        ({}, {"model": "linear"}, r"problem.classes = 3: only model = \"softmax\" has classes"),
        ({}, {"model": "mpl", "classes": None}, r"problem.model = 'mpl'"),
        ({}, {"classes": 1}, r"problem.classes = 1"),
        ({}, {"model": "no_such_module:network", "classes": None}, r"problem.model = .*no module 'no_such_module'"),
        ({}, {"hidden": [3]}, r"problem.hidden = \[3\]"),
        ({}, {"framework": "jax"}, r"problem.framework = 'jax'"),
        ({}, {"weights": "w.safetensors"}, r"problem.weights = 'w.safetensors'"),
        ({}, {"features": "Z"}, r"problem.features = 'Z': no such array or column; the file has X, y, unit, client"),
        ({}, {"features": "y"}, r"problem.label = 'y': is used already, as features"),
        ({}, {"label": ""}, r"problem.label = '': must be the name of an array or column"),
        ({"unit": UNIT[1:]}, {}, r"problem.unit = 'unit': has shape \(119,\)"),
        ({"client": np.where(np.arange(ROWS) < 2, np.nan, 1.0)}, {}, "'client': 2 rows name no client"),
        ({}, {"unit": None}, r"problem.unit = None"),
        ({}, {"units": 2}, r"problem.units = 2"),
        ({}, {"scale": 0.0}, r"problem.scale = 0.0"),
        ({}, {"scale": 1e-320}, "problem.scale = 1e-320: is so small"),
        ({}, {"rho": -1.0}, r"problem.rho = -1.0"),
        ({}, IID | {"unit": None, "client": None, "clients": 500}, "need at least 1000 rows and there are 120"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("compressed", [False, True])
def test_refusals(tmp_path: Path, changes: dict[str, Any], how: dict[str, Any], message: str, compressed: bool) -> None:
    with pytest.raises(InputError, match=message) as refused:
        arrays(npz(tmp_path, compressed, **changes), **COLUMNS | how)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"X": [[1.0, 2.0]] * (ROWS - 1) + [[1.0]]}, "has lists of 1 to 2 entries; all must have equally many"),
        ({"X": [[]] * ROWS}, "has lists of 0 to 0 entries"),
        ({"X": [[1.0]] * (ROWS - 1) + [None]}, "misses lists"),
        ({"X": [[1.0, 2.0]] * 7 + [[1.0, None]] * (ROWS - 7)}, "row 8 lacks a number"),
        ({"X": [[1.0, float("nan")]] * ROWS}, "row 1 holds NaN"),
        ({"X": [["a"]] * ROWS}, "must be a column of numbers"),
        ({"X": [1.0] * ROWS}, r'holds no lists; .*problem.name = "table"'),
        ({"y": [None] + [1] * (ROWS - 1)}, "row 1 has no label"),
        ({"y": ["one"] * ROWS}, "must be a column of numbers"),
        ({"unit": [None] * 2 + ["a"] * (ROWS - 2)}, r"problem.unit = 'unit': 2 rows name no unit"),
    ],
)
def test_refusals_of_a_parquet_file(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        arrays(parquet(tmp_path, **changes), **COLUMNS)
    assert "\n" not in str(refused.value)


def test_a_column_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"problem.features = 'Z': no such array or column; the file has X, y, unit"):
        arrays(parquet(tmp_path), features="Z", **COLUMNS)


@pytest.mark.parametrize("end", [".npz", ".parquet", ".csv", ""])
def test_files_that_cannot_be_read(tmp_path: Path, end: str) -> None:
    path = tmp_path / f"a{end}"
    wrong = "no such file" if end in (".npz", ".parquet") else "unknown kind of file; use one of .npz .parquet"
    with pytest.raises(InputError, match=wrong):
        arrays(path, **COLUMNS)
    path.write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(InputError, match=r"is no \.npz of numbers|damaged|unknown kind"):
        arrays(path, **COLUMNS)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_truncated_or_damaged_npz(tmp_path: Path, compressed: bool) -> None:
    path = npz(tmp_path, compressed)
    whole = path.read_bytes()
    head = whole.index(b"NUMPY") + 1 if not compressed else 60
    for data in (whole[:-30], whole[: len(whole) // 2], whole[:head] + b"\xff" * 8 + whole[head + 8 :], b""):
        path.write_bytes(data)
        with pytest.raises(InputError, match=r"^problem\.path = .*is no \.npz of numbers"):
            arrays(path, **COLUMNS)


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from confide.problems import array_file

    path, parts = npz(tmp_path), array_file.parts

    def changing(*given: Any) -> Any:
        done = parts(*given)
        npz(tmp_path, y=(LABELS + 1) % 3)
        return done

    monkeypatch.setattr(array_file, "parts", changing)
    with pytest.raises(InputError, match="was changed while it was read"):
        arrays(path, **COLUMNS)
