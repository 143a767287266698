from __future__ import annotations

import json
import math
import subprocess
import sys

import numpy as np
import polars as pl
import pytest

from confide.base.errors import InputError
from confide.problems.features import MISSING, FeatureMap, bucket, numbers

LOG = pl.DataFrame(
    {
        "age": ["20", "40", " 60 ", "NA", ""],
        "city": ["Rome", "Oslo", "Rome", None, "Bonn"],
        "code": [1, 1, 2, 3, None],
    }
)


def test_a_map_in_full() -> None:
    f = FeatureMap.fit(LOG, numeric=["age"], categorical=["city"], top=1)
    assert f.names == ("age", "city=Rome", f"city={MISSING}", "city=other", "1")
    sd = math.sqrt(800 / 3)
    expected = [
        [-20 / sd, 1, 0, 0, 1],
        [0, 0, 0, 1, 1],
        [20 / sd, 1, 0, 0, 1],
        [0, 0, 1, 0, 1],
        [0, 0, 0, 1, 1],
    ]
    np.testing.assert_allclose(f.apply(LOG), expected)


def test_unseen_and_missing_values_of_a_new_table() -> None:
    f = FeatureMap.fit(LOG, numeric=["age"], categorical=["city", "code"], categories={"code": [1, 2]})
    new = pl.DataFrame({"code": ["2", "9", ""], "city": ["Lima", "Bonn", ""], "age": [None, 40.0, math.nan]})
    X = dict(zip(f.names, f.apply(new).T, strict=True))
    assert X["age"].tolist() == [0, 0, 0]
    assert X["city=other"].tolist() == [1, 0, 0]
    assert X["city=Bonn"].tolist() == [0, 1, 0]
    assert X[f"city={MISSING}"].tolist() == [0, 0, 1]
    assert X["code=2"].tolist() == [1, 0, 0]
    assert X["code=other"].tolist() == [0, 1, 1]  # no "(missing)" was declared


def test_round_trip_through_json() -> None:
    f = FeatureMap.fit(
        LOG,
        numeric=["age"],
        categorical=["city"],
        hashed=["code"],
        buckets=7,
        last={"city": 3},
        unit_rows=True,
    )
    described = f.to_dict()
    again = FeatureMap.from_dict(json.loads(json.dumps({**described, "label": {"name": "y"}})))
    assert again == f
    assert described == json.loads(json.dumps(described))
    assert described["names"] == list(f.names)
    np.testing.assert_array_equal(again.apply(LOG), f.apply(LOG))
    with pytest.raises(InputError, match="not a feature description"):
        FeatureMap.from_dict({"numeric": []})


def test_what_is_declared_is_not_computed() -> None:
    declared = FeatureMap.fit(
        LOG,
        numeric=["age"],
        categorical=["city"],
        hashed=["code"],
        buckets=4,
        scaling={"age": [30, 10]},
        categories={"city": ["Oslo"]},
    )
    assert not declared.computed
    assert declared.to_dict()["note"] == ""
    np.testing.assert_allclose(declared.apply(LOG)[:, 0], [-1, 1, 3, 0, 0])
    half = FeatureMap.fit(LOG, numeric=["age"], categorical=["city"], scaling={"age": [30, 10]})
    assert half.computed
    assert half.to_dict()["note"] == "scaling and categories computed from the data, not private"
    assert not half.numeric[0].computed


def test_frequency_then_name_orders_the_categories() -> None:
    frame = pl.DataFrame({"c": ["b", "a", "c", "c", "other", "other", "other"]})
    assert FeatureMap.fit(frame, categorical=["c"], top=2).names == ("c=c", "c=a", "c=other", "1")
    assert FeatureMap.fit(frame, categorical=["c"]).apply(frame)[:, 3].sum() == 3


def test_hashes_are_stable_across_processes() -> None:
    code = "from confide.problems.features import bucket; print([bucket('c', str(i), 1000) for i in range(50)])"
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "7"}
    ).stdout
    here = [bucket("c", str(i), 1000) for i in range(50)]
    assert json.loads(told) == here
    assert len(set(here)) > 40
    assert here != [bucket("d", str(i), 1000) for i in range(50)]


def test_hashed_fields_share_buckets_and_collisions_add() -> None:
    frame = pl.DataFrame({"a": ["x", "y"], "b": ["x", "y"]})
    X = FeatureMap.fit(frame, hashed=["a", "b"], buckets=1).apply(frame)
    assert X.tolist() == [[2, 1], [2, 1]]
    f = FeatureMap.fit(frame, hashed=["a", "b"], buckets=64)
    assert np.flatnonzero(f.apply(frame)[0, :-1]).tolist() == sorted({bucket("a", "x", 64), bucket("b", "x", 64)})
    assert not f.computed


def test_unit_rows_have_norm_one_beside_the_intercept() -> None:
    f = FeatureMap.fit(LOG, categorical=["city", "code"], unit_rows=True)
    X = f.apply(LOG)
    np.testing.assert_allclose((X[:, :-1] ** 2).sum(axis=1), 1)
    assert (X[:, -1] == 1).all()


def test_the_last_characters_of_a_value() -> None:
    frame = pl.DataFrame({"hour": [14102100, 14102223, 14103023]})
    assert FeatureMap.fit(frame, categorical=["hour"], last={"hour": 2}).names[:2] == ("hour=23", "hour=00")


def test_booleans_and_typed_columns_are_numbers_or_words() -> None:
    frame = pl.DataFrame({"flag": [True, False, None], "x": [1.5, math.nan, 2.0]})
    assert numbers(frame, "flag", "t")[:2].tolist() == [1, 0]
    assert np.isnan(numbers(frame, "flag", "t")[2])
    f = FeatureMap.fit(frame, categorical=["flag", "x"], categories={"flag": [True]})
    assert f.names[:2] == ("flag=true", "flag=other")
    assert f"x={MISSING}" in f.names


@pytest.mark.parametrize(
    ("frame", "how", "message"),
    [
        (
            {"x": [3, 3, None]},
            {"numeric": ["x"]},
            r"problem.numeric = 'x': has one value only \(3.0\); drop it",
        ),
        ({"x": ["a", "a"]}, {"categorical": ["x"]}, r"problem.categorical = 'x': has one value only \(a\)"),
        ({"x": [None, None]}, {"numeric": ["x"]}, r"'x': every value is missing"),
        ({"x": ["1", "two"]}, {"numeric": ["x"]}, r"problem.numeric = 'x': row 2 holds 'two'"),
        ({"x": [1.0, math.inf]}, {"numeric": ["x"]}, r"row 2 holds inf; every value must be a finite number"),
        ({"x": [1e308, -1e308]}, {"numeric": ["x"]}, r"too large to average"),
        ({"x": [[1], [2]]}, {"numeric": ["x"]}, r"holds List\(Int64\), not numbers"),
        ({"x": [[1], [2]]}, {"categorical": ["x"]}, r"holds List\(Int64\); categories are text"),
        ({"x": [1, 2]}, {"numeric": ["y"]}, r"problem.numeric = 'y': no such column; the table has x"),
        (
            {"x": [1, 2]},
            {"numeric": ["x"], "scaling": {"x": [0, 0]}},
            r"problem.scaling.x = 0: must be positive",
        ),
        (
            {"x": [1, 2]},
            {"numeric": ["x"], "scaling": {"x": 3}},
            r"problem.scaling.x = 3: must be two numbers",
        ),
        ({"x": [1, 2]}, {"numeric": ["x"], "scaling": {"y": [0, 1]}}, r"problem.scaling = 'y'"),
        ({"x": [1, 2]}, {"categorical": ["x"], "categories": {"x": [1, "1"]}}, r"names a category twice"),
        ({"x": [1, 2]}, {"categorical": ["x"], "categories": {"x": []}}, r"must be a list of categories"),
        ({"x": [1, 2]}, {"categorical": ["x"], "top": 0}, r"problem.top = 0"),
        ({"x": [1, 2]}, {"hashed": ["x"]}, r"problem.buckets = 0: must be at least 1"),
    ],
)
def test_refusals(frame, how, message) -> None:
    with pytest.raises(InputError, match=message):
        FeatureMap.fit(pl.DataFrame(frame, strict=False), **how)


def test_constant_columns_are_kept_on_request() -> None:
    frame = pl.DataFrame({"x": [3, 3], "c": ["a", "a"]})
    X = FeatureMap.fit(frame, numeric=["x"], categorical=["c"], refuse_constant=False).apply(frame)
    assert X.tolist() == [[0, 1, 0, 1]] * 2


def test_apply_names_the_table_it_was_given() -> None:
    f = FeatureMap.fit(LOG, numeric=["age"])
    with pytest.raises(InputError, match=r"new.csv = 'age': no such column; the table has x"):
        f.apply(pl.DataFrame({"x": [1]}), "new.csv")
