from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from confide.base.errors import InputError
from confide.problems.click_log import COLUMNS, FIELDS, clicks, disturb, effects, synthetic_log, vocabulary
from confide.problems.features import FeatureMap
from confide.problems.models import Logistic, auc
from confide.problems.problem import Problem
from work import lines

AVAZU = Path(__file__).parents[3] / "shared" / "data" / "avazu_10k.csv"
real = pytest.mark.skipif(not AVAZU.exists(), reason="no Avazu sample on this machine")


def learnt(p: Problem) -> np.ndarray:
    """Gradient descent on the pooled risk: no solver, no weights of clients."""
    w = np.zeros(p.M)
    X, d = p.federation.X, p.federation.d
    for _ in range(100):
        w -= 1.5 * (p.model.gradients(w, X, d).mean(axis=0) + 2 * p.model.rho * w)
    return w


@pytest.fixture(scope="module")
def log() -> tuple[pl.DataFrame, np.ndarray]:
    return synthetic_log(20_000, seed=3)


@pytest.fixture
def file(log: tuple[pl.DataFrame, np.ndarray], tmp_path: Path) -> Path:
    log[0].head(3000).write_csv(tmp_path / "train.csv")
    return tmp_path / "train.csv"


def test_the_default_problem_is_the_papers() -> None:
    p = clicks()
    f = p.federation
    assert (f.P, f.K.tolist(), f.samples) == (5, [10] * 5, 5101)
    assert 60 <= f.M <= 150
    assert f.N.max() > 3 * np.median(f.N)
    assert p.model == Logistic(0.03)
    assert p.notes == ("synthetic click log: no Avazu file was given",)
    X, d = p.test
    assert X.shape == (256, f.M)
    assert d.sum() == 0
    assert abs(f.d.sum()) == 1


def test_no_loop_goes_over_the_fields_of_every_row() -> None:
    few, many = (lines(lambda rows=rows: clicks(rows=rows)) for rows in (500, 5000))
    assert many - few < len(FIELDS) * 4500


def test_the_synthetic_log_follows_its_known_model(log: tuple[pl.DataFrame, np.ndarray]) -> None:
    frame, probability = log
    assert tuple(frame.columns) == COLUMNS
    clicked = frame["click"].to_numpy()
    # calibrated in every fifth of the probabilities, to four standard errors
    for part in np.array_split(np.argsort(probability), 5):
        error = clicked[part].mean() - probability[part].mean()
        assert abs(error) < 4 * np.sqrt(np.mean(probability[part] * (1 - probability[part])) / len(part))
    assert 0.15 < clicked.mean() < 0.2
    assert 0.76 < auc(probability, clicked == 1) < 0.82
    # and the probabilities are those of the published effects
    logit = np.full(len(frame), -2.0)
    for name in FIELDS:
        place = dict(zip(vocabulary(name), effects(name), strict=True))
        logit += [place[v if name != "hour" else v[-2:]] for v in frame[name].cast(pl.String)]
    np.testing.assert_allclose(probability, 1 / (1 + np.exp(-logit)))


def test_the_synthetic_log_looks_like_kaggles(log: tuple[pl.DataFrame, np.ndarray]) -> None:
    frame = log[0]
    assert frame["site_id"].str.contains("^[0-9a-f]{8}$").all()
    assert frame["hour"].cast(pl.String).str.contains("^14(102[1-9]|1030)([01][0-9]|2[0-3])$").all()
    shares = np.sort(frame["site_id"].value_counts()["count"].to_numpy())[::-1] / len(frame)
    assert shares[0] > 2 * shares[1]
    assert frame["device_ip"].n_unique() > 0.99 * len(frame)
    assert frame["id"].n_unique() == len(frame)
    assert not synthetic_log(50, 1)[0].equals(synthetic_log(50, 2)[0])
    assert synthetic_log(50, 1)[0].equals(synthetic_log(50, 1)[0])


@pytest.mark.parametrize("encoding", ["top", "hash"])
def test_a_trained_model_beats_chance(encoding: str) -> None:
    p = clicks(test_rows=2000, encoding=encoding)
    metrics = p.model.metrics(learnt(p), *p.test)
    assert 0.64 < metrics["auc"] < 0.76
    assert metrics["error"] < 0.45


def test_train_and_test_rows_are_disjoint_and_the_test_rows_clean(file: Path) -> None:
    p = clicks(file, rows=200, test_rows=60, feature_noise=0.0)
    used = pl.read_csv(file, infer_schema=False)
    X = {row.tobytes() for row in FeatureMap.from_dict(p.features).apply(used)}
    assert all(row.tobytes() in X for row in p.federation.X)
    noisy = clicks(file, rows=200, test_rows=60, feature_noise=0.5)
    np.testing.assert_array_equal(noisy.test[0], p.test[0])
    assert not any(row.tobytes() in X for row in noisy.federation.X)
    np.testing.assert_array_equal(noisy.federation.d, p.federation.d)


def test_no_row_is_used_twice(tmp_path: Path, log: tuple[pl.DataFrame, np.ndarray]) -> None:
    n = 300
    marked = log[0].head(n).with_columns(C14=pl.Series(range(n)), click=pl.Series([0, 1] * (n // 2)))
    marked.write_csv(tmp_path / "t.csv")
    p = clicks(tmp_path / "t.csv", clients=2, rows=200, test_rows=100, top=n, feature_noise=0)
    at = [i for i, name in enumerate(p.features["names"]) if name.startswith("C14=") and name != "C14=other"]
    assert len(at) == 200
    assert (p.federation.X[:, at] > 0).sum(axis=0).tolist() == [1] * 200
    assert p.test[0][:, at].sum() == 0


def test_the_disturbance_is_a_clients_own_and_spares_the_intercept() -> None:
    M, per = 100, 400
    X = np.zeros((20 * per, M + 1))
    X[:, -1] = 1
    client = np.arange(20 * per) % 20
    moved = disturb(X, client, 0.6, seed=0)
    assert (moved[:, -1] == 1).all()
    assert (X[:, :-1] == 0).all()
    strength = np.array([moved[client == c, :M].std(axis=0).mean() for c in range(20)]) * np.sqrt(M)
    shift = np.array([np.linalg.norm(moved[client == c, :M].mean(axis=0)) for c in range(20)])
    assert strength.max() < 0.6
    assert strength.std() == pytest.approx(0.6 / np.sqrt(12), rel=0.4)
    np.testing.assert_allclose(shift, strength, rtol=0.3)
    np.testing.assert_array_equal(disturb(X, client, 0.0, seed=0), X)


def test_features_are_kaggles_fields_without_identifiers() -> None:
    described = clicks(rows=100, test_rows=10).features
    fields = {c["name"] for c in described["categorical"]}
    assert fields == set(COLUMNS) - {"id", "click", "device_id", "device_ip"}
    assert described["label"]["positive"] == "1"
    hours = [n for n in described["names"] if n.startswith("hour=")]
    assert hours == ["hour=13", "hour=20", "hour=03", "hour=10", "hour=17", "hour=other"]
    again = FeatureMap.from_dict(json.loads(json.dumps(described)))
    rows = synthetic_log(500, 0)[0].drop("click")
    at_13 = again.apply(rows)[:, described["names"].index("hour=13")] > 0
    np.testing.assert_array_equal(at_13, rows["hour"].to_numpy() % 100 == 13)
    assert at_13.any()


def test_rows_have_norm_one_beside_the_intercept() -> None:
    X = clicks(rows=100, test_rows=64).test[0]
    np.testing.assert_allclose(np.linalg.norm(X[:, :-1], axis=1), 1)
    X = clicks(rows=100, test_rows=64, unit_rows=False).test[0]
    np.testing.assert_allclose(np.linalg.norm(X[:, :-1], axis=1), np.sqrt(20))


def test_the_spec_makes_the_problem_again(file: Path) -> None:
    for path in (None, file):
        p = clicks(path, rows=300, test_rows=20, seed=5)
        spec = json.loads(json.dumps(p.spec))
        assert spec.pop("name") == "clicks"
        again = clicks(**spec)
        np.testing.assert_array_equal(again.federation.X, p.federation.X)
        assert not np.array_equal(clicks(**{**spec, "seed": 6}).federation.X, p.federation.X)


def test_gz_as_kaggle_ships_it(file: Path, tmp_path: Path) -> None:
    (tmp_path / "train.gz").write_bytes(gzip.compress(file.read_bytes()))
    p, q = (clicks(f, rows=300, test_rows=20) for f in (file, tmp_path / "train.gz"))
    np.testing.assert_array_equal(p.federation.X, q.federation.X)
    assert p.notes == ("scaling and categories computed from the data, not private",)
    assert clicks(file, rows=300, test_rows=20, encoding="hash").notes == ()


def test_balance_uses_what_there_is_and_says_so(file: Path) -> None:
    n = int(pl.read_csv(file)["click"].sum())
    p = clicks(file, test_rows=100)
    assert p.federation.samples == 2 * (n - 50)
    assert p.federation.d.sum() == 0
    assert p.notes[0] == (
        f"balanced classes: {2 * (n - 50)} training rows of the 5101 asked (the rarer class has {n} rows)"
    )
    natural = clicks(file, rows=2000, test_rows=1000, balance=False)
    assert (natural.federation.d > 0).sum() + (natural.test[1] > 0).sum() == n
    assert clicks(rows=3000, test_rows=0, balance=False).test is None


def test_zero_test_rows(file: Path) -> None:
    assert clicks(file, rows=100, test_rows=0).test is None


@real
def test_the_avazu_sample() -> None:
    p = clicks(AVAZU)
    assert p.federation.samples == 2976  # 2 x (1616 clicks - 128 of them in the test)
    assert "2976 training rows of the 5101 asked" in p.notes[0]
    assert not any("synthetic" in note for note in p.notes)
    assert 0.58 < p.model.metrics(learnt(p), *p.test)["auc"] < 0.72
    assert clicks(AVAZU, balance=False).federation.samples == 5101


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"units": 0}, r"problem.units = 0"),
        ({"clients": 2.5}, r"problem.clients = 2.5"),
        ({"rows": True}, r"problem.rows = True"),
        ({"rows": 20}, r"problem.clients = 10: 5 units of 10 clients need at least 50 rows and there are 20"),
        ({"test_rows": -1}, r"problem.test_rows = -1"),
        ({"encoding": "onehot"}, r"problem.encoding = 'onehot'"),
        ({"top": 0}, r"problem.top = 0"),
        ({"buckets": 0}, r"problem.buckets = 0"),
        ({"balance": 1}, r"problem.balance = 1: must be true or false"),
        ({"unit_rows": "yes"}, r"problem.unit_rows = 'yes': must be true or false"),
        ({"feature_noise": float("nan")}, r"problem.feature_noise = nan"),
        ({"feature_noise": -0.1}, r"problem.feature_noise = -0.1"),
        ({"rho": -1.0}, r"problem.rho = -1.0"),
        ({"seed": -1}, r"problem.seed = -1"),
        ({"path": 7}, r"problem.path = 7: must be the path"),
    ],
)
def test_refusals(how, message) -> None:
    with pytest.raises(InputError, match=message):
        clicks(**how)


def test_refusals_of_files(file: Path, tmp_path: Path) -> None:
    n = int(pl.read_csv(file)["click"].sum())
    with pytest.raises(InputError, match=rf"problem.test_rows = 2500: the file has {n} clicks and {3000 - n} others"):
        clicks(file, test_rows=2500)
    with pytest.raises(InputError, match=r"problem.rows = 2800: .* 3000 rows leave 2744"):
        clicks(file, rows=2800, balance=False)
    with pytest.raises(InputError, match="no such file"):
        clicks(tmp_path / "none.csv")
    pl.read_csv(file).drop("C17").write_csv(tmp_path / "t.csv")
    with pytest.raises(InputError, match="no column C17; give Avazu's train file"):
        clicks(tmp_path / "t.csv")
    pl.read_csv(file).with_columns(click=pl.Series([0, 2] * 1500)).write_csv(tmp_path / "t.csv")
    with pytest.raises(InputError, match="row 2 is cut short or its click is neither 0 nor 1"):
        clicks(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_bytes(file.read_bytes()[:-10])
    with pytest.raises(InputError, match=r"row 3000 is cut short .* is the file truncated"):
        clicks(tmp_path / "t.csv")
    data = gzip.compress(file.read_bytes())
    (tmp_path / "train.gz").write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match="truncated or damaged"):
        clicks(tmp_path / "train.gz")
