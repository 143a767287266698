"""What a run leaves: numbers by their definitions, and folders that are whole or not there."""

from __future__ import annotations

import errno
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from matplotlib.figure import Figure

import confide
from confide.base.errors import InputError, RunError
from confide.engines.run import METRICS, MODEL, RECORD, DivergenceWarning, Run, traffic
from confide.graph.graph import Graph
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL, Failures
from confide.rounds.clipping import Clip
from confide.rounds.schemes import scheme
from confide.secure.settings import Secure

Maker = Callable[..., Problem]
GRAPH = Graph.ring(3)
ALG = GFL(scheme("homomorphic", 0.3), step=0.3, sampled=2, local_steps=(1, 3), batch=(1, 4))


@pytest.fixture(scope="module")
def run() -> Run:
    problem = confide.problems.regression(units=3, clients=4, samples=6, test_rows=5, seed=1)
    return confide.simulate(problem, GRAPH, ALG, rounds=12, repeats=3, seed=4, evaluate_every=5)


@dataclass(frozen=True)
class Median:
    """A model of the user's own: |d - u'w|, whose optimum no solver here knows."""

    rho: float = 0.1

    def dimension(self, features: int) -> int:
        return features

    def loss(self, w: np.ndarray, X: np.ndarray, d: np.ndarray) -> np.ndarray:
        return np.abs(d - X @ w) + self.rho * float(w @ w)

    def gradients(self, w: np.ndarray, X: np.ndarray, d: np.ndarray) -> np.ndarray:
        return -np.sign(d - X @ w)[:, None] * X

    def metrics(self, w: np.ndarray, X: np.ndarray, d: np.ndarray) -> dict[str, float]:
        return {"mae": float(np.mean(np.abs(d - X @ w)))}


# ---- numbers


def test_steady_state_by_hand() -> None:
    """12 rounds: the last fifth is 3 of them; the mean over them and over repetitions comes before the dB."""
    centroid = np.full((2, 12), 7.0)
    centroid[:, -3:] = [[1.0, 2.0, 3.0], [4.0, 5.0, 9.0]]
    r = Run({"centroid_msd": centroid, "individual_msd": 10 * centroid}, np.zeros((2, 3, 1)), {}, {})
    assert r.steady_state == pytest.approx(
        {"centroid_db": 10 * math.log10(4.0), "individual_db": 10 * math.log10(40.0)}
    )


def test_steady_state_of_a_simulation(run: Run) -> None:
    assert run.steady_state is not None
    for key, metric in (("centroid_db", "centroid_msd"), ("individual_db", "individual_msd")):
        assert run.steady_state[key] == pytest.approx(10 * math.log10(run.metrics[metric][:, 9:].mean()))


def test_final_is_the_last_evaluation_averaged_over_repetitions(run: Run) -> None:
    final = run.final
    assert final["train_loss"] == pytest.approx(run.metrics["train_loss"][:, -1].mean())
    assert final["participants"] == 6.0
    metrics = {"loss": np.array([[1.0, 3.0, np.nan], [2.0, 5.0, np.nan]]), "never": np.full((2, 3), np.nan)}
    assert Run(metrics, np.zeros((2, 1, 1)), {}, {}).final == {"loss": 4.0, "never": None}


def test_shapes(run: Run) -> None:
    assert (run.rounds, run.repeats) == (12, 3)
    assert run.models.shape == (3, 3, 2)
    np.testing.assert_allclose(run.centroids, run.models.mean(axis=1))
    assert all(m.shape == (3, 12) for m in run.metrics.values())


def test_bytes_that_a_round_sends(run: Run) -> None:
    """A ring of three has six messages of two numbers; 3 units x 2 clients send an update and get a model."""
    assert run.bytes_a_round == {"between_servers": 6 * 2 * 8, "from_clients": 6 * 2 * 8, "to_clients": 6 * 2 * 8}
    assert run.summary()["bytes_a_round"] == run.bytes_a_round
    clip = Clip("example", 1.0)
    secure = replace(ALG, sampled=4, clip=clip, arithmetic="fixed", fraction_bits=16, aggregation=Secure(ring_bits=32))
    assert traffic([GRAPH], secure, 5)["from_clients"] == 3 * 4 * 5 * 4
    assert traffic(Graph.path(4).matchings(), ALG, 5)["between_servers"] == (4 + 2) / 2 * 5 * 8
    for name, messages in (("central", 6), ("local-only", 0)):
        assert traffic([GRAPH], replace(ALG, scheme=scheme(name)), 5)["between_servers"] == messages * 5 * 8


def test_summary_is_json_without_nan(run: Run) -> None:
    text = json.dumps(run.summary(), allow_nan=False)
    assert json.loads(text)["rounds"] == 12
    assert json.loads(text)["steady_state"].keys() == {"centroid_db", "individual_db"}


def test_a_model_without_an_optimum(ragged: Maker, tmp_path: Path) -> None:
    linear = ragged(P=3)
    r = confide.simulate(Problem(linear.federation, Median(), linear.test), GRAPH, ALG, rounds=6)
    assert r.inputs["engine"] == "reference"
    assert r.steady_state is None
    summary = json.loads(json.dumps(r.summary(), allow_nan=False))
    assert summary["steady_state"] is None
    assert summary["final"]["centroid_msd"] is None
    assert summary["final"]["test_metric"] == summary["final"]["test_mae"] > 0
    r.save(tmp_path / "run")
    assert Run.load(tmp_path / "run").steady_state is None
    assert r.model["name"] == "Median"


def test_the_first_screen(run: Run) -> None:
    lines = repr(run).splitlines()
    assert lines[0].startswith("homomorphic, laplace sigma 0.3 on regression, ring:3 (lazy), 12 rounds x 3")
    assert any(line.startswith("steady state   centroid -") for line in lines)
    assert "privacy        not accounted" in lines


# ---- save and load


def equal(a: Run, b: Run) -> None:
    assert a.metrics.keys() == b.metrics.keys()
    for name in a.metrics:
        assert np.array_equal(a.metrics[name], b.metrics[name], equal_nan=True), name
    assert np.array_equal(a.models, b.models)
    for field in ("inputs", "model", "notes", "privacy", "seconds", "interrupted", "diverged", "config"):
        assert getattr(a, field) == getattr(b, field), field


def test_save_and_load_are_exact(run: Run, tmp_path: Path) -> None:
    run = replace(run, notes=("synthetic",), config={"seed": 4}, privacy={"epsilon": None, "leak": True})
    files = run.save(tmp_path / "deep" / "run")
    assert sorted(Path(f).name for f in files) == sorted([METRICS, MODEL, RECORD])
    assert all(Path(f).is_file() for f in files)
    loaded = Run.load(tmp_path / "deep" / "run")
    equal(run, loaded)
    assert loaded.versions is not None
    assert loaded.versions["numpy"] == np.__version__
    loaded.save(tmp_path / "again")
    equal(run, Run.load(tmp_path / "again"))
    assert Graph.from_dict(loaded.inputs["graphs"][0]).A.tobytes() == GRAPH.A.tobytes()


def test_the_table_names_repetition_and_round(run: Run, tmp_path: Path) -> None:
    run.save(tmp_path / "run")
    table = pl.read_parquet(tmp_path / "run" / METRICS)
    row = table.filter((pl.col("repeat") == 1) & (pl.col("round") == 7))
    assert row["centroid_msd"].item() == run.metrics["centroid_msd"][1, 6]
    assert math.isnan(row["train_loss"].item())


@pytest.mark.filterwarnings("ignore::confide.engines.run.DivergenceWarning")
def test_a_run_that_broke_in_its_first_round_is_saved_too(ragged: Maker, tmp_path: Path) -> None:
    r = confide.simulate(ragged(P=3), GRAPH, replace(ALG, step=1e40), rounds=5, repeats=2)
    assert r.rounds == 0
    r.save(tmp_path / "run")
    equal(r, Run.load(tmp_path / "run"))


def test_every_setting_survives_as_plain_data(ragged: Maker, tmp_path: Path) -> None:
    """NumPy's numbers and arrays come in from loops and sweeps; the record holds plain ones."""
    problem = ragged(P=3)
    alg = GFL(
        scheme("shared", np.float64(0.1)),
        step=np.float64(0.3),
        sampled=np.int64(2),
        local_steps=np.int64(2),
        batch=np.arange(1, problem.federation.clients + 1),
        clip=Clip("update", np.float32(1.0)),
        failures=Failures(units=tuple(map(tuple, np.array([[1, 0]])))),
    )
    r = confide.simulate(problem, GRAPH, alg, rounds=np.int64(3), seed=np.int64(1))
    r.save(tmp_path / "run")
    settings = Run.load(tmp_path / "run").inputs["algorithm"]
    assert settings["sampled"] == settings["local_steps"] == 2
    assert settings["batch"] == list(range(1, problem.federation.clients + 1))
    assert settings["failures"]["units"] == [[1, 0]]
    assert settings["local"] == "sgd"


def test_saving_twice_replaces_and_a_strange_folder_is_left_alone(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run.save(folder)
    other = replace(run, seconds=123.0)
    other.save(folder)
    equal(other, Run.load(folder))
    assert [p.name for p in tmp_path.iterdir()] == ["run"]

    precious = tmp_path / "thesis"
    precious.mkdir()
    (precious / "chapter.tex").write_text("years of work")
    with pytest.raises(InputError, match=r"holds no run\.json"):
        run.save(precious)
    assert [p.name for p in precious.iterdir()] == ["chapter.tex"]


@pytest.mark.parametrize("victim", ["numpy.savez", "polars.DataFrame.write_parquet", "json.dumps"])
def test_a_save_that_fails_leaves_the_older_run(
    run: Run, victim: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    run.save(folder)

    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("the power went out")

    with monkeypatch.context() as patched:
        patched.setattr(victim, broken)
        with pytest.raises(RuntimeError, match="the power went out"):
            replace(run, seconds=123.0).save(folder)
        with pytest.raises(RuntimeError, match="the power went out"):
            run.save(tmp_path / "new")
    equal(run, Run.load(folder))
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


# ---- folders that are not whole


def refused(folder: Path) -> str:
    with pytest.raises(InputError) as refusal:
        Run.load(folder)
    assert refusal.value.field == "run"
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    assert "run.json is missing" in refused(tmp_path / "nowhere")


@pytest.mark.parametrize("name", [METRICS, MODEL, RECORD])
def test_a_missing_file_is_named(run: Run, name: str, tmp_path: Path) -> None:
    run.save(tmp_path / "run")
    (tmp_path / "run" / name).unlink()
    assert f"{name} is missing" in refused(tmp_path / "run")


@pytest.mark.parametrize("keep", [0.0, 0.02, 0.5, 0.9])
@pytest.mark.parametrize("name", [METRICS, MODEL, RECORD])
def test_a_truncated_file_is_refused(run: Run, name: str, keep: float, tmp_path: Path) -> None:
    run.save(tmp_path / "run")
    file = tmp_path / "run" / name
    whole = file.read_bytes()
    file.write_bytes(whole[: int(keep * len(whole))])
    refused(tmp_path / "run")


@pytest.mark.parametrize("name", [METRICS, MODEL, RECORD])
def test_a_file_of_something_else_is_refused(run: Run, name: str, tmp_path: Path) -> None:
    run.save(tmp_path / "run")
    for other in (b"\x93NUMPY not really", b"PK\x03\x04 nor this", b"PAR1....PAR1", b"[1, 2]", b'"text"', b"\xff\xfe"):
        (tmp_path / "run" / name).write_bytes(other)
        refused(tmp_path / "run")


def test_a_single_array_instead_of_an_archive_is_refused(run: Run, tmp_path: Path) -> None:
    run.save(tmp_path / "run")
    with open(tmp_path / "run" / MODEL, "wb") as file:
        np.save(file, run.models)
    refused(tmp_path / "run")


@pytest.mark.parametrize("entry", ["format", "inputs", "model", "notes", "rounds", "repeats", "seconds", "interrupted"])
@pytest.mark.parametrize("how", ["gone", "null"])
def test_a_tampered_record_is_refused(run: Run, entry: str, how: str, tmp_path: Path) -> None:
    run.save(tmp_path / "run")
    file = tmp_path / "run" / RECORD
    record = json.loads(file.read_text())
    if how == "gone":
        del record[entry]
    else:
        record[entry] = None
    file.write_text(json.dumps(record))
    refused(tmp_path / "run")


def test_another_format_is_named(run: Run, tmp_path: Path) -> None:
    run.save(tmp_path / "run")
    file = tmp_path / "run" / RECORD
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 99}))
    assert "has format 99" in refused(tmp_path / "run")


@pytest.mark.parametrize(
    "tamper",
    [
        lambda t: t.head(len(t) - 1),
        lambda t: t.filter(pl.col("round") <= 6),  # still a multiple of the repetitions
        lambda t: t.reverse(),
        lambda t: t.drop("centroid_msd"),
        lambda t: t.drop("round"),
        lambda t: t.with_columns(pl.lit("x").alias("residual")),
    ],
    ids=["a row short", "half the rounds", "reversed", "without a metric", "without rounds", "text"],
)
def test_a_tampered_table_is_refused(run: Run, tamper: Callable[[pl.DataFrame], pl.DataFrame], tmp_path: Path) -> None:
    run.save(tmp_path / "run")
    file = tmp_path / "run" / METRICS
    tamper(pl.read_parquet(file)).write_parquet(file)
    refused(tmp_path / "run")


def test_models_of_another_run_are_refused(run: Run, tmp_path: Path) -> None:
    run.save(tmp_path / "run")
    np.savez(tmp_path / "run" / MODEL, models=run.models[:, :, :, None])
    refused(tmp_path / "run")
    np.savez(tmp_path / "run" / MODEL, models=run.models[:1])
    refused(tmp_path / "run")


def test_the_warning_names_round_repetition_step_and_remedy() -> None:
    text = str(DivergenceWarning(7, 2, 30.0))
    assert "round 7 of repetition 2 with step 30" in text
    assert "smaller step" in text


# ---- curves


def test_curves_are_in_the_folder_or_no_folder_is(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = run.save(tmp_path / "run", curves=True)
    assert {"curves.png", "curves.svg", "curves.pdf"} == {Path(f).name for f in files} - {
        "metrics.parquet",
        "run.json",
        "model.npz",
    }
    before = {p: p.read_bytes() for p in (tmp_path / "run").iterdir()}

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(Figure, "savefig", full)
    with pytest.raises(RunError, match="the disk is full"):
        run.save(tmp_path / "run", curves=True)
    assert {p: p.read_bytes() for p in (tmp_path / "run").iterdir()} == before
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_a_run_that_cannot_be_drawn_is_saved(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ValueError("too many points")

    monkeypatch.setattr(Figure, "savefig", refuse)
    with pytest.warns(UserWarning, match="could not be drawn .too many points"):
        files = run.save(tmp_path / "run", curves=True)
    assert sorted(Path(f).name for f in files) == ["metrics.parquet", "model.npz", "run.json"]
    assert Run.load(tmp_path / "run").final == run.final
