from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from confide.base.errors import InputError
from confide.problems import table
from confide.problems.features import FeatureMap
from confide.problems.models import Linear, Logistic
from confide.problems.reading import read_table

ROWS = 240


@pytest.fixture
def visits() -> pl.DataFrame:
    """Units 2, 9 and 10; client ids a and b in each; one row in 7 has no age."""
    rng = np.random.Generator(np.random.Philox(1))
    age = rng.normal(50, 10, ROWS)
    ward = np.array(["icu", "er", "lab"])[rng.integers(0, 3, ROWS)]
    return pl.DataFrame(
        {
            "hospital": np.array(["10", "9", "2"])[np.arange(ROWS) % 3],
            "doctor": np.where(np.arange(ROWS) // 3 % 4 > 0, "a", "b"),
            "age": [None if i % 7 == 0 else float(a) for i, a in enumerate(age)],
            "ward": ward,
            "cost": 3 * age + 20 * (ward == "icu") + rng.normal(0, 1, ROWS),
            "ill": np.where(age + rng.normal(0, 5, ROWS) > 50, "yes", "no"),
        }
    )


@pytest.fixture
def path(visits: pl.DataFrame, tmp_path: Path) -> Path:
    visits.write_csv(tmp_path / "visits.csv")
    return tmp_path / "visits.csv"


HOW = {"label": "cost", "numeric": ["age"], "categorical": ["ward"]}
BY_COLUMNS = {**HOW, "unit": "hospital", "client": "doctor"}
BY_IID = {**HOW, "split": "iid", "units": 2, "clients": 3}


def test_units_and_clients_come_from_the_columns(path: Path, visits: pl.DataFrame) -> None:
    p = table(path, **BY_COLUMNS, test_fraction=0)
    assert p.test is None
    assert p.features["units"] == ["2", "9", "10"]  # by number, not by text
    assert p.federation.K.tolist() == [2, 2, 2]
    mine = visits.filter((pl.col("hospital") == "9") & (pl.col("doctor") == "b"))
    X, d = p.federation.client(1, 1)
    np.testing.assert_array_equal(d, mine["cost"].to_numpy())
    np.testing.assert_array_equal(X, FeatureMap.from_dict(p.features).apply(mine))
    assert isinstance(p.model, Linear)
    assert p.notes == ("scaling and categories computed from the data, not private",)


def test_csv_gz_tsv_and_parquet_agree(path: Path, visits: pl.DataFrame, tmp_path: Path) -> None:
    (tmp_path / "v.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
    visits.write_csv(tmp_path / "v.tsv", separator="\t")
    visits.write_parquet(tmp_path / "v.parquet")
    X = table(path, **BY_COLUMNS).federation.X
    for name in ("v.csv.gz", "v.tsv", "v.parquet"):
        np.testing.assert_array_equal(table(tmp_path / name, **BY_COLUMNS).federation.X, X)


def test_the_spec_makes_the_problem_again(path: Path) -> None:
    p = table(path, **BY_COLUMNS, scaling={"age": (50, 10)}, rho=0.1, seed=4)
    spec = json.loads(json.dumps(p.spec))
    assert spec.pop("name") == "table"
    assert Path(spec["path"]).is_absolute()
    again = table(**spec)
    assert again.spec == p.spec
    np.testing.assert_array_equal(again.federation.X, p.federation.X)
    np.testing.assert_array_equal(again.test[1], p.test[1])


def test_declared_scaling_and_categories_leave_no_note(path: Path) -> None:
    p = table(path, **BY_COLUMNS, scaling={"age": [50, 10]}, categories={"ward": ["icu", "er"]})
    assert p.notes == ()
    assert p.features["note"] == ""


def test_held_out_rows_are_a_fifth_of_every_client_and_depend_on_the_seed(path: Path) -> None:
    p, q = (table(path, **BY_COLUMNS, seed=s) for s in (0, 1))
    assert p.federation.samples == 192
    assert np.isin(p.federation.N, [48, 16]).sum() >= 4
    assert abs(p.federation.N / np.array([60, 20] * 3) - 0.8).max() <= 1 / 20
    assert len(p.test[1]) == 48
    assert not set(p.test[1]) & set(p.federation.d)
    assert set(p.test[1]) != set(q.test[1])
    np.testing.assert_array_equal(table(path, **BY_COLUMNS, seed=0).test[1], p.test[1])


def test_every_client_keeps_a_training_row(tmp_path: Path) -> None:
    sizes = [1, 1, 2, 3, 30]
    who = np.repeat(np.arange(5), sizes)
    pl.DataFrame({"u": [0] * 37, "c": who, "x": np.arange(37), "y": np.arange(37)}).write_csv(tmp_path / "t.csv")
    p = table(tmp_path / "t.csv", label="y", numeric=["x"], unit="u", client="c", test_fraction=0.9)
    assert p.federation.N.min() == 1
    assert p.federation.N[:2].tolist() == [1, 1]
    assert p.federation.N[4] == pytest.approx(3, abs=1)
    pl.DataFrame({"u": [0, 0], "c": [0, 1], "x": [0, 1], "y": [0, 1]}).write_csv(tmp_path / "t.csv")
    p = table(tmp_path / "t.csv", label="y", numeric=["x"], unit="u", client="c", test_fraction=0.9)
    assert p.test is None
    assert "no test rows" in p.notes[-1]


def test_scaling_is_of_the_training_rows_only(path: Path) -> None:
    p = table(path, **{**BY_COLUMNS, "categorical": []})
    known = p.federation.X[:, 0][p.federation.X[:, 0] != 0]
    assert known.mean() == pytest.approx(0, abs=1e-12)
    assert known.std() == pytest.approx(1)


def test_binary_labels(path: Path, visits: pl.DataFrame) -> None:
    how = {**BY_COLUMNS, "label": "ill", "task": "binary", "test_fraction": 0}
    p = table(path, **how)
    assert isinstance(p.model, Logistic)
    assert p.features["label"] == {"name": "ill", "task": "binary", "negative": "no", "positive": "yes"}
    assert (p.federation.d == 1).sum() == (visits["ill"] == "yes").sum()
    q = table(path, **how, positive="no")
    assert q.features["label"]["positive"] == "no"
    np.testing.assert_array_equal(q.federation.d, -p.federation.d)


@pytest.mark.parametrize(
    ("labels", "positive", "expected"),
    [
        ([0, 1], None, ("0", "1")),
        ([-1, 1], None, ("-1", "1")),
        ([9, 10], None, ("9", "10")),
        ([0, 1], 0, ("1", "0")),
        ([0.0, 1.0], 1, ("0", "1")),
        ([False, True], None, ("false", "true")),
        ([False, True], False, ("true", "false")),
    ],
)
def test_which_label_is_positive(tmp_path: Path, labels, positive, expected) -> None:
    for name, write in (("t.parquet", "write_parquet"), ("t.csv", "write_csv")):
        getattr(pl.DataFrame({"y": labels * 5, "x": range(10)}), write)(tmp_path / name)
        how = {"label": "y", "numeric": ["x"], "split": "iid", "units": 1, "clients": 2}
        p = table(tmp_path / name, task="binary", positive=positive, **how)
        texts = (
            tuple(f"{float(x)}" for x in expected)
            if write == "write_csv" and isinstance(labels[0], float)
            else expected
        )
        assert (p.features["label"]["negative"], p.features["label"]["positive"]) == texts  # a .csv's text stays text
        assert set(p.federation.d) == {-1, 1}


def test_the_other_splits(path: Path) -> None:
    assert table(path, **BY_IID, test_fraction=0).federation.N.tolist() == [40] * 6
    how = {**BY_IID, "test_fraction": 0}
    assert np.ptp(table(path, **{**how, "split": "unequal"}).federation.N) > 20
    by_cost = {**how, "split": "dirichlet"}
    means = [
        [table(path, **by_cost, alpha=alpha).federation.client(p, k)[1].mean() for p in (0, 1) for k in (0, 1, 2)]
        for alpha in (0.1, 1000)
    ]
    assert np.std(means[0]) > 3 * np.std(means[1])


def test_text_stays_text(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('a,b\n007,\n7,"x, y"\n')
    frame = read_table(tmp_path / "t.csv", "f")
    assert frame["a"].to_list() == ["007", "7"]
    assert frame["b"].to_list() == [None, "x, y"]


CSV = b"a,b,c\n" + b"".join(b"%d,x%d,%d\n" % (i, i, i) for i in range(3000))
GZ = gzip.compress(CSV, mtime=0)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("t.csv", None, "no such file"),
        ("t.csv", b"", "is empty"),
        ("t.csv", b"\n\n", "is empty"),
        ("t.csv", b"a,b\n", "holds no row"),
        ("t.csv", "a,b\n1,é\n".encode("latin-1"), "is not UTF-8; save it as UTF-8"),
        ("t.csv", "é,b\n1,2\n".encode("latin-1"), "is not UTF-8"),
        ("t.csv", "a,b\n1,2\n".encode("utf-16"), "is not UTF-8"),
        ("t.csv", b"a,b\n1,2\n1,2,3\n", "is ragged: a row has more fields"),
        ("t.csv", b"a,b\n1,2\n1\n3,4\n", "line 3 has fewer fields"),
        ("t.csv", CSV[:-8], "truncated or ragged: line 3001 has fewer fields"),
        ("t.csv", b'a,b\n1,"x\n2,3\n', "quote that never closes"),
        ("t.csv", b"a,b,a\n1,2,3\n", "has two columns 'a'"),
        ("t.gz", GZ[: len(GZ) // 2], "truncated or damaged"),
        ("t.csv.gz", GZ[:-4], "truncated or damaged"),
        ("t.csv.gz", GZ[:-8] + b"\0" * 8, "truncated or damaged"),
        ("t.csv.gz", gzip.compress(b"", mtime=0), "is empty"),
        ("t.parquet", b"PAR1 and no more", "truncated or damaged"),
        ("t.parquet", CSV, "truncated or damaged"),
        ("t.xlsx", CSV, "unknown kind of file; use one of .csv"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name, data, message) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=message) as e:
        read_table(tmp_path / name, "problem.path")
    assert e.value.field == "problem.path"
    assert "\n" not in str(e.value)


def test_truncated_parquet(tmp_path: Path, visits: pl.DataFrame) -> None:
    visits.write_parquet(tmp_path / "t.parquet")
    data = (tmp_path / "t.parquet").read_bytes()
    for cut in (data[:-50], data[: len(data) // 2], data[:40] + data[400:]):
        (tmp_path / "t.parquet").write_bytes(cut)
        with pytest.raises(InputError, match="truncated or damaged"):
            read_table(tmp_path / "t.parquet", "table")


def test_a_folder_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        read_table(tmp_path, "table")


def test_blank_last_fields_are_not_a_short_row(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,\n2,3\n\n")
    assert read_table(tmp_path / "t.csv", "table")["b"].null_count() >= 1


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"label": "price"}, r"problem.label = 'price': no such column; the table has hospital, doctor"),
        ({"label": ""}, r"problem.label = '': must be the name of a column"),
        ({"label": "ward", "categorical": []}, r"problem.label = 'ward': row 1 holds"),
        ({"numeric": ["weight"]}, r"problem.numeric = 'weight': no such column"),
        ({"categorical": ["colour"]}, r"problem.categorical = 'colour': no such column"),
        ({"numeric": "age"}, r"problem.numeric = 'age': must be a list of column names"),
        ({"numeric": [3]}, r"problem.numeric = 3: must be the name of a column"),
        ({"numeric": ["ward"], "categorical": []}, r"problem.numeric = 'ward': row 1 holds"),
        ({"numeric": ["age", "cost"]}, r"problem.numeric = 'cost': is used already, as label"),
        ({"categorical": ["age"]}, r"problem.categorical = 'age': is used already, as numeric"),
        ({"numeric": [], "categorical": []}, r"no features; name columns"),
        ({"unit": None}, r'problem.unit = None: split = "columns" needs the columns of unit and client'),
        ({"client": None}, r"problem.client = None"),
        ({"client": "age"}, r"problem.numeric = 'age': is used already, as client"),
        ({"client": "age", "numeric": []}, r"problem.client = 'age': 35 rows name no client"),
        ({"units": 3}, r'problem.units = 3: split = "columns" counts them itself'),
        ({"split": "iid"}, r"problem.unit = 'hospital': split = \"iid\" would ignore the column"),
        ({"alpha": 1.0}, r"problem.alpha = 1.0: split = \"columns\" has no alpha"),
        ({"split": "random"}, r"problem.split = 'random'"),
        ({"task": "multiclass"}, r"problem.task = 'multiclass'"),
        ({"task": "binary", "label": "cost"}, r"needs two distinct labels, found 240"),
        ({"task": "binary", "label": "ill", "positive": "perhaps"}, r"must be one of the labels no and yes"),
        ({"task": "binary", "label": "ill", "positive": []}, r"problem.positive = \[\]"),
        ({"positive": "yes"}, r"only a task = \"binary\" has a positive label"),
        ({"scaling": [1, 2]}, r"problem.scaling = \[1, 2\]: must be a table of column names"),
        ({"test_fraction": 1.0}, r"problem.test_fraction = 1.0: must be below 1"),
        ({"test_fraction": -0.1}, r"problem.test_fraction = -0.1"),
        ({"test_fraction": float("nan")}, r"problem.test_fraction = nan"),
        ({"rho": -1}, r"problem.rho = -1"),
        ({"top": True}, r"problem.top = True"),
        ({"seed": 0.5}, r"problem.seed = 0.5"),
    ],
)
def test_refusals(path: Path, how, message) -> None:
    with pytest.raises(InputError, match=message):
        table(path, **{**BY_COLUMNS, **how})


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"units": None}, r'problem.units = None: split = "iid" needs a number of units'),
        ({"clients": 0}, r"problem.clients = 0"),
        ({"clients": 500}, r"2 units of 500 clients need at least 1000 rows and there are 240"),
        ({"split": "dirichlet"}, r'problem.alpha = None: split = "dirichlet" needs a positive alpha'),
        ({"split": "dirichlet", "alpha": -1.0}, r"problem.alpha = -1.0: must be positive"),
    ],
)
def test_refusals_of_the_other_splits(path: Path, how, message) -> None:
    with pytest.raises(InputError, match=message):
        table(path, **{**BY_IID, **how})


@pytest.mark.parametrize("label", ["", "nan"])
def test_rows_without_a_label(tmp_path: Path, label: str) -> None:
    (tmp_path / "t.csv").write_text(f"y,x\n1,2\n{label},3\n3,4\n")
    with pytest.raises(InputError, match=r"problem.label = 'y': 1 (rows have no label|labels are not numbers)"):
        table(tmp_path / "t.csv", label="y", numeric=["x"], split="iid", units=1, clients=1)


def test_a_constant_feature_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("y,x\n1,2\n2,2\n3,2\n")
    with pytest.raises(InputError, match=r"problem.numeric = 'x': .*drop it from features \(the model has its own"):
        table(tmp_path / "t.csv", label="y", numeric=["x"], split="iid", units=1, clients=1)
