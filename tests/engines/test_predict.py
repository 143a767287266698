"""`confide predict`: what a model learned is applied to another table as it was to the training rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import confide
from confide.base.errors import InputError
from confide.engines.predict import predict
from confide.engines.run import Run


def rows(n: int, seed: int) -> pl.DataFrame:
    g = np.random.default_rng(seed)
    x, c = g.normal(size=n), g.choice(["red", "blue"], n)
    y = 2 * x + (c == "red") + 0.1 * g.normal(size=n)
    return pl.DataFrame(
        {"u": np.arange(n) % 2, "k": np.arange(n) // 2 % 3, "x": x, "c": c, "y": y, "yes": np.where(y > 0, "y", "n")}
    )


Maker = Callable[..., Run]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A regression and a classification, each learned from a table and saved."""
    folder = tmp_path_factory.mktemp("runs")
    rows(120, 0).write_csv(folder / "train.csv")
    found = {"folder": folder}
    for task, label in (("regression", "y"), ("binary", "yes")):
        problem = confide.problems.table(
            folder / "train.csv",
            label=label,
            task=task,
            unit="u",
            client="k",
            numeric=["x"],
            categorical=["c"],
            scaling={"x": [0.5, 2.0]},
            categories={"c": ["red", "blue"]},
            rho=0.01,
        )
        algorithm = confide.GFL(scheme=confide.scheme("homomorphic", 0.05), step=0.5, sampled=3, batch=8)
        run = confide.simulate(problem, confide.Graph.ring(2), algorithm, rounds=60, repeats=2)
        run.save(folder / task)
        found[task] = folder / task
    rows(50, 1).write_csv(folder / "new.csv")
    return found


def features(table: pl.DataFrame) -> np.ndarray:
    """By hand: x scaled, red, blue, other, the intercept."""
    x, c = table["x"].to_numpy(), table["c"].to_numpy()
    return np.column_stack([(x - 0.5) / 2.0, c == "red", c == "blue", ~np.isin(c, ["red", "blue"]), np.ones(len(x))])


def test_a_regression_by_hand(saved: dict[str, Path]) -> None:
    new = pl.read_csv(saved["folder"] / "new.csv")
    frame, metrics = predict(saved["regression"], saved["folder"] / "new.csv")
    w = Run.load(saved["regression"]).models[0].mean(axis=0)
    assert frame.columns == ["prediction"]
    np.testing.assert_allclose(frame["prediction"], features(new) @ w, rtol=1e-12)
    error = frame["prediction"].to_numpy() - new["y"].to_numpy()
    assert any(value == pytest.approx(np.mean(error**2)) for value in metrics.values())
    assert np.mean(error**2) < 0.2 * np.var(new["y"].to_numpy())


def test_a_classification_by_hand(saved: dict[str, Path]) -> None:
    new = pl.read_csv(saved["folder"] / "new.csv")
    frame, metrics = predict(saved["binary"], saved["folder"] / "new.csv")
    w = Run.load(saved["binary"]).models[0].mean(axis=0)
    p = 1 / (1 + np.exp(-features(new) @ w))
    np.testing.assert_allclose(frame["probability"], p, rtol=1e-12)
    assert frame["prediction"].to_list() == ["y" if v > 0.5 else "n" for v in p]
    wrong = np.mean(frame["prediction"].to_numpy() != new["yes"].to_numpy())
    assert metrics["error"] == pytest.approx(wrong)
    assert wrong < 0.2


def test_one_repetition_one_server(saved: dict[str, Path]) -> None:
    run, new = Run.load(saved["regression"]), pl.read_csv(saved["folder"] / "new.csv")
    frame, _ = predict(saved["regression"], saved["folder"] / "new.csv", repeat=1, server=1)
    np.testing.assert_allclose(frame["prediction"], features(new) @ run.models[1, 1], rtol=1e-12)
    assert not np.array_equal(run.models[1, 1], run.models[0].mean(axis=0))


@pytest.mark.parametrize("task", ["regression", "binary"])
def test_without_labels_there_are_predictions_and_no_metrics(saved: dict[str, Path], tmp_path: Path, task: str) -> None:
    new = pl.read_csv(saved["folder"] / "new.csv").drop("y", "yes", "u", "k")
    new.write_parquet(tmp_path / "new.parquet")
    frame, metrics = predict(saved[task], tmp_path / "new.parquet")
    assert (frame.height, metrics) == (50, {})


@pytest.mark.parametrize("task", ["regression", "binary"])
def test_rows_with_odd_labels_are_predicted_but_not_counted(saved: dict[str, Path], tmp_path: Path, task: str) -> None:
    new = pl.read_csv(saved["folder"] / "new.csv", infer_schema=False)
    label = "y" if task == "regression" else "yes"
    odd = new.with_columns(pl.Series(label, ["", "who knows", *new[label][2:]]))
    odd.write_csv(tmp_path / "odd.csv")
    new[2:].write_csv(tmp_path / "rest.csv")
    frame, metrics = predict(saved[task], tmp_path / "odd.csv")
    assert frame.height == 50
    assert metrics == predict(saved[task], tmp_path / "rest.csv")[1]


def test_labels_that_are_floats_in_a_file_are_the_labels_of_the_training(tmp_path: Path) -> None:
    """A column of whole numbers that a tool wrote as floats: 1.0 is the label "1", as it was to the training rows."""
    table = rows(120, 0).with_columns(yes=(pl.col("y") > 0).cast(pl.Float64))
    table.write_parquet(tmp_path / "train.parquet")
    problem = confide.problems.table(
        tmp_path / "train.parquet", label="yes", task="binary", unit="u", client="k", numeric=["x"], rho=0.01
    )
    confide.simulate(problem, confide.Graph.ring(2), confide.GFL(step=0.5, sampled=3), rounds=5).save(tmp_path / "run")
    assert predict(tmp_path / "run", tmp_path / "train.parquet")[1].keys() == {"error", "auc", "log_loss"}


def test_rows_of_one_class_give_no_invented_auc(saved: dict[str, Path], tmp_path: Path) -> None:
    new = pl.read_csv(saved["folder"] / "new.csv")
    new.filter(pl.col("yes") == "y").write_csv(tmp_path / "one.csv")
    _, metrics = predict(saved["binary"], tmp_path / "one.csv")
    json.dumps(metrics, allow_nan=False)
    assert 0 <= metrics["error"] <= 1


@pytest.mark.parametrize(("option", "value"), [("repeat", 2), ("repeat", -1), ("server", 2), ("server", -1)])
def test_there_is_no_such_model(saved: dict[str, Path], option: str, value: int) -> None:
    with pytest.raises(InputError, match=f"^{option} = {value}: must be between 0 and 1"):
        predict(saved["regression"], saved["folder"] / "new.csv", **{option: value})


def test_a_table_must_have_the_columns(saved: dict[str, Path], tmp_path: Path) -> None:
    pl.read_csv(saved["folder"] / "new.csv").drop("c").write_csv(tmp_path / "short.csv")
    with pytest.raises(InputError, match=r"^table = 'c': no such column; the table has u, k, x, y, yes"):
        predict(saved["regression"], tmp_path / "short.csv")
    with pytest.raises(InputError, match=r"^table = .*no such file"):
        predict(saved["regression"], tmp_path / "none.csv")


def test_a_run_without_columns_cannot_be_applied(saved: dict[str, Path], tmp_path: Path) -> None:
    problem = confide.problems.regression(units=2, clients=3, samples=4)
    confide.simulate(problem, confide.Graph.ring(2), confide.GFL(sampled=2), rounds=2).save(tmp_path / "run")
    with pytest.raises(InputError, match=r"^run = .*was not trained on a table"):
        predict(tmp_path / "run", saved["folder"] / "new.csv")


@pytest.mark.parametrize("change", [{"name": "Huber"}, {"features": "no label"}])
def test_a_model_that_is_not_ours_is_refused(saved: dict[str, Path], tmp_path: Path, change: dict[str, str]) -> None:
    run = Run.load(saved["regression"])
    model = dict(run.model) | change
    if "features" in change:
        model["features"] = {k: v for k, v in run.model["features"].items() if k != "label"}
    replace(run, model=model).save(tmp_path / "run")
    with pytest.raises(InputError, match=r"^run = .*cannot be applied"):
        predict(tmp_path / "run", saved["folder"] / "new.csv")


def test_a_run_that_is_not_whole_is_refused(saved: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^run = .*run.json is missing"):
        predict(tmp_path / "none", saved["folder"] / "new.csv")
    for name in ("run.json", "metrics.parquet", "model.npz"):
        Run.load(saved["regression"]).save(tmp_path / "run")
        whole = (tmp_path / "run" / name).read_bytes()
        for part in (b"", whole[: len(whole) // 2], b"\xff" * 100):
            (tmp_path / "run" / name).write_bytes(part)
            with pytest.raises(InputError, match=r"^run = .*is not a whole run"):
                predict(tmp_path / "run", saved["folder"] / "new.csv")
        (tmp_path / "run" / name).unlink()
        with pytest.raises(InputError, match=f"^run = .*{name} is missing"):
            predict(tmp_path / "run", saved["folder"] / "new.csv")
        (tmp_path / "run" / name).write_bytes(whole)


def released(path: Path, kind: str) -> Path:
    meta = {"format": 1, "model": {"kind": kind, "rho": 0.1}}
    np.savez(path / "model.npz", weights=np.array([1.0, 2.0, 3.0]), meta=np.array(json.dumps(meta)))
    return path / "model.npz"


def test_a_released_model_knows_its_features_by_their_order(tmp_path: Path) -> None:
    table = tmp_path / "new.csv"
    table.write_text("a,b,c\n0.1,0.2,0.3\n1,0,-1\n")
    frame, metrics = predict(released(tmp_path, "linear"), table)
    assert frame["prediction"].to_list() == pytest.approx([1.4, -2.0])
    assert metrics == {}
    table.write_text("a,b,c,y\n0.1,0.2,0.3,1.4\n1,0,-1,-2\n")
    assert predict(released(tmp_path, "linear"), table)[1]
    frame, _ = predict(released(tmp_path, "logistic"), table)
    assert frame["prediction"].to_list() == [1.0, -1.0]


def test_a_released_softmax_model_names_the_likeliest_class(tmp_path: Path) -> None:
    table = tmp_path / "new.csv"
    table.write_text("a,y\n1,2\n-1,1\n")
    frame, metrics = predict(released(tmp_path, "softmax:3"), table)  # margins 1, 2, 3 and their negatives
    assert frame["prediction"].to_list() == [2.0, 0.0]
    e = np.exp([1.0, 2.0, 3.0])
    assert frame["probability"].to_list() == pytest.approx([e[2] / e.sum()] * 2)
    assert metrics == {"error": 0.5, "log_loss": pytest.approx(-np.log([e[2] / e.sum(), e[1] / e.sum()]).mean())}
    table.write_text("a,b,c\n1,2,3\n")
    with pytest.raises(InputError, match="must have 1 columns"):
        predict(released(tmp_path, "softmax:3"), table)


@pytest.mark.parametrize("text", ["a,b\n1,2\n", "a,b,c\n1,2,x\n", "a,b,c,d,e\n1,2,3,4,5\n", "a,b,c\n1,2,nan\n"])
def test_a_table_that_does_not_fit_a_released_model(text: str, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text(text)
    with pytest.raises(InputError, match="must have 3 columns of numbers"):
        predict(released(tmp_path, "linear"), tmp_path / "new.csv")


def test_a_released_model_of_ones_own_needs_ones_own_code(tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("a,b,c\n1,2,3\n")
    with pytest.raises(InputError, match="only its own code can apply it"):
        predict(released(tmp_path, "own"), tmp_path / "new.csv")
