"""Issue 23, items 8 and 13: noise on somebody's data is nobody's to know, and what is priced as a release is made."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import confide
from builders import priced
from confide.base.errors import InputError
from confide.engines.driver import simulate
from confide.engines.predict import predict
from confide.engines.release import Releasing
from confide.engines.run import CLEAN, MODEL, RECORD, Run
from confide.graph.graph import Graph
from confide.laws.secret_stream import SecretStream
from confide.plans.privacy import Privacy
from confide.problems import regression
from confide.problems.federation import Federation
from confide.problems.models import Linear
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL
from confide.rounds.clipping import Clip
from confide.rounds.schemes import scheme
from exploring import more

GRAPH = Graph.ring(4)
BASE = GFL(
    scheme=scheme("homomorphic", 1.0, noise="gaussian"),
    step=0.3, sampled=3, local_steps=1, batch=4, clip=Clip("example", 1.0),
)  # fmt: skip
UNIT = Privacy(level="unit")
MADE_UP = regression(units=4, clients=5, samples=8, seed=2)
MINE = Problem(MADE_UP.federation, MADE_UP.model)
FIRST_SERVER = [0.15616798545855787, 0.10169696946981832]  # of a seeded run, before there were secrets


COORDINATES = 3000  # as many as a test of a law needs, in runs of a tenth of them: an optimum costs their cube


def wide(M: int = COORDINATES // 10, P: int = 4) -> Problem:
    """One sample a client."""
    g = np.random.default_rng(0)
    return Problem(Federation.from_clients([[(g.normal(size=(1, M)), np.ones(1))] * 3] * P), Linear(0.1))


# ---- item 13: the same seed, other noise


def test_two_runs_with_one_seed_do_not_cancel_their_noise() -> None:
    """One round with sigma 1 and one with sigma 2: 2 w_a - w_b was the clean A psi."""

    def once(problem: Problem, sigma: float) -> np.ndarray:
        alg = replace(BASE, scheme=scheme("homomorphic", sigma, noise="gaussian"))
        return simulate(problem, GRAPH, alg, rounds=1, seed=7, privacy=UNIT).models[0]

    clean = simulate(MINE, GRAPH, replace(BASE, scheme=scheme("none")), rounds=1, seed=7).models[0]
    for problem, cancels in ((MADE_UP, True), (MINE, False)):
        found = 2.0 * once(problem, 1.0) - once(problem, 2.0)
        assert bool(np.abs(found - clean).max() < 1e-12) is cancels


@pytest.mark.parametrize("arithmetic", ["float", "fixed"])
def test_the_same_seed_gives_other_noise_on_somebodys_data_alone(arithmetic: str) -> None:
    alg = replace(BASE, arithmetic=arithmetic)

    def twice(problem: Problem, privacy: Privacy | None) -> tuple[np.ndarray, np.ndarray]:
        one, other = (simulate(problem, GRAPH, alg, rounds=3, seed=7, privacy=privacy).models for _ in range(2))
        return one, other

    for problem, privacy in ((MADE_UP, UNIT), (MADE_UP, None), (MINE, None)):
        assert np.array_equal(*twice(problem, privacy))
    one, other = twice(MINE, UNIT)
    assert np.abs(one - other).min() > 1e-9


def test_a_seeded_run_has_the_bits_that_it_had() -> None:
    """Published once from the commit before secrets were: a change here changes everybody's seeds."""
    run = simulate(MADE_UP, GRAPH, BASE, rounds=3, seed=7, privacy=UNIT)
    assert np.array_equal(run.models, simulate(MINE, GRAPH, BASE, rounds=3, seed=7).models)
    np.testing.assert_allclose(run.models[0, 0], FIRST_SERVER, rtol=1e-12)


@pytest.mark.parametrize(("participation", "draws"), [("all", False), ("random:0.6", True), ("amplified:0.6", True)])
def test_draws_are_secret_where_a_price_rests_on_them(
    participation: str, draws: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from confide.engines import driver

    seen: list[Any] = []
    named = driver.engine_named

    def noting(name: str, *args: Any, **options: Any) -> Any:
        seen.append(options["secret"])
        return named(name)(*args, **options)

    monkeypatch.setattr(driver, "engine_named", lambda name, device: partial(noting, name))
    alg = replace(BASE, scheme=scheme("shared", 1.0, noise="gaussian"))
    simulate(MINE, GRAPH, alg, rounds=2, privacy=Privacy(participation=participation))
    simulate(MADE_UP, GRAPH, alg, rounds=2, privacy=Privacy(participation=participation))
    assert seen[0].draws is draws
    assert seen[1] is None


def test_every_saved_repetition_would_be_paid() -> None:
    with pytest.raises(InputError, match=r"^repeats = 2: every repetition would be another release"):
        simulate(MINE, GRAPH, BASE, rounds=2, repeats=2, privacy=UNIT)
    assert simulate(MADE_UP, GRAPH, BASE, rounds=2, repeats=2, privacy=UNIT).repeats == 2


def test_the_secret_is_not_among_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = os.urandom(32)
    monkeypatch.setattr("confide.secure.secret.os.urandom", lambda n: told)
    run = simulate(MINE, GRAPH, BASE, rounds=3, privacy=replace(UNIT, release="centroid:1"))
    run.save(tmp_path / "run", unreleased_models=True)
    written = b"".join(path.read_bytes() for path in (tmp_path / "run").iterdir())
    assert told not in written
    assert told.hex().encode() not in written
    assert told.hex() not in repr(run) + repr(vars(run))


# ---- item 8: the release


RELEASES = [
    (arithmetic, *one)
    for one in (
        ("links", 4, np.sqrt(4 / 3)),
        ("colluders:1,2", 4, np.sqrt(4 / 2)),
        ("neighbours", 4, np.sqrt(4 / 2)),
        ("links", 1, 1.0),
        ("links", 2, np.sqrt(2.0)),
    )
    for arithmetic in ("float", "fixed")
]


@pytest.mark.filterwarnings("ignore::confide.engines.run.NoNoiseWarning")  # of one unit, whose release has noise
@pytest.mark.parametrize(
    ("arithmetic", "threat", "P", "factor"), more([RELEASES[0], RELEASES[3], RELEASES[6]], RELEASES)
)
def test_the_released_mean_has_the_noise_that_is_priced(arithmetic: str, threat: str, P: int, factor: float) -> None:
    """All shares: those of all but the colluders put sigma on the mean."""
    problem, sigma = wide(P=P), 0.5
    alg = replace(BASE, arithmetic=arithmetic, batch=1)
    privacy = replace(UNIT, threat=threat, release=f"centroid:{sigma}")
    graph = Graph.ring(P) if P > 2 else Graph.path(P)

    def hidden() -> np.ndarray:
        run = simulate(problem, graph, alg, rounds=2, privacy=privacy)
        assert run.released is not None
        assert run.released.shape == (1, problem.M)
        return (run.released - run.centroids)[0] / (sigma * factor)

    noise = np.concatenate([hidden() for _ in range(COORDINATES // problem.M)])
    kurtosis = np.mean(noise**4)

    def right(scale: float) -> bool:  # 8 standard deviations of a variance from so many coordinates
        return abs(float(np.mean((noise / scale) ** 2)) - 1.0) < 8.0 * np.sqrt(2.0 / noise.size)

    assert right(1.0)
    assert not right(2.0 / 3.0)
    assert not right(1.5)
    assert abs(np.mean(noise)) < 8.0 / np.sqrt(noise.size)
    assert 2.0 < kurtosis < 4.5  # Laplace has 6
    assert abs(np.mean(noise[1:] * noise[:-1])) < 8.0 / np.sqrt(noise.size)


def test_shares_in_fixed_point_are_whole_quanta() -> None:
    alg = replace(BASE, arithmetic="fixed", fraction_bits=8)
    privacy = replace(UNIT, release="centroid:0.5")
    run = simulate(MINE, GRAPH, alg, rounds=2, privacy=privacy)
    quanta = run.released * (4 * 3 * 2**8)  # P states of quantum 2^-f / L
    assert np.abs(quanta - np.rint(quanta)).max() < 1e-6
    assert np.abs(quanta - run.centroids * (4 * 3 * 2**8)).max() > 1.0


def test_what_could_not_be_read_back_is_refused_before_the_first_round() -> None:
    alg = replace(BASE, arithmetic="fixed", fraction_bits=46, scheme=scheme("homomorphic", 1e-3, noise="gaussian"))
    with pytest.raises(InputError, match=r"^algorithm.fraction_bits = 46: the released sum over 4 servers"):
        Releasing.of(priced(replace(UNIT, release="centroid:1000"), MADE_UP, [GRAPH], alg, 2))


@pytest.mark.parametrize("release", ["none", "centroid:5", "local"])
def test_a_release_is_what_its_name_says(release: str, tmp_path: Path) -> None:
    privacy, alg = replace(UNIT, release=release), replace(BASE, scheme=scheme("shared", 1.0, noise="gaussian"))
    run = simulate(MINE, GRAPH, alg, rounds=3, privacy=privacy)
    run.save(tmp_path / "run")
    with np.load(tmp_path / "run" / MODEL, allow_pickle=False) as arrays:
        kept = dict(arrays)
    assert kept.keys() == {"description"} | ({"released"} if release != "none" else set())
    if release == "local":
        assert np.array_equal(kept["released"], run.models)
    if release == "centroid:5":
        assert np.abs(kept["released"] - run.centroids).max() > 1e-3
    assert not (tmp_path / "run" / CLEAN).exists()
    loaded = Run.load(tmp_path / "run")
    assert loaded.models.shape[1] == 0
    with pytest.raises(InputError, match="were not kept"):
        _ = loaded.centroids
    assert loaded.guarded
    assert loaded.released_db == run.released_db
    assert np.array_equal(loaded.released, run.released) if release != "none" else loaded.released is None
    loaded.save(tmp_path / "again")
    assert json.loads((tmp_path / "again" / RECORD).read_text()) == json.loads((tmp_path / "run" / RECORD).read_text())


def test_clean_models_are_kept_only_under_a_name_that_says_so(tmp_path: Path) -> None:
    run = simulate(MINE, GRAPH, BASE, rounds=3, privacy=replace(UNIT, release="centroid:5"))
    run.save(tmp_path / "run", unreleased_models=True)
    with np.load(tmp_path / "run" / MODEL, allow_pickle=False) as arrays:
        assert set(arrays) == {"description", "released"}
    with np.load(tmp_path / "run" / CLEAN, allow_pickle=False) as arrays:
        assert np.array_equal(arrays["models"], run.models)
    assert np.array_equal(Run.load(tmp_path / "run").models, run.models)


@pytest.mark.parametrize(("problem", "privacy"), [(MADE_UP, replace(UNIT, release="centroid:5")), (MINE, None)])
def test_made_up_data_and_unaccounted_runs_keep_their_models(
    problem: Problem, privacy: Privacy | None, tmp_path: Path
) -> None:
    run = simulate(problem, GRAPH, BASE, rounds=3, privacy=privacy)
    run.save(tmp_path / "run")
    loaded = Run.load(tmp_path / "run")
    assert np.array_equal(loaded.models, run.models)
    assert not loaded.guarded
    assert run.summary()["not_released"] == []
    assert "not released" not in repr(run)
    again = simulate(problem, GRAPH, BASE, rounds=3, privacy=privacy)
    assert (run.released is None) == (privacy is None)
    if run.released is not None:
        assert np.array_equal(run.released, again.released)  # a function of the seed


def test_what_comes_from_the_data_without_a_price_is_marked() -> None:
    run = simulate(MINE, GRAPH, BASE, rounds=3, privacy=replace(UNIT, release="centroid:5"))
    marked = run.summary()["not_released"]
    for name in ("metrics.parquet", "final", "steady_state", "released_db", "diverged", "notes"):
        assert name in marked
    assert "\nreleased       centroid:5, " in repr(run)
    assert "\nnot released   all else here" in repr(run)
    error = float(np.sum((run.released[0] - MINE.optimum) ** 2))
    assert run.released_db == pytest.approx(10.0 * np.log10(error))


@pytest.mark.filterwarnings("ignore::confide.engines.run.DivergenceWarning")
def test_a_run_that_broke_releases_nothing() -> None:
    alg = replace(BASE, clip=Clip("update", 1e200), scheme=scheme("homomorphic", 1e150, noise="gaussian"))
    run = simulate(MINE, GRAPH, alg, rounds=5, privacy=replace(UNIT, release="centroid:1"))
    assert run.diverged is not None
    assert run.released is None


def test_the_noise_of_a_release_is_the_operating_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[bytes | None] = []
    made = SecretStream.__init__

    def note(self: SecretStream, own: bytes | None = None) -> None:
        keys.append(own)
        made(self, own)

    monkeypatch.setattr(SecretStream, "__init__", note)
    for problem in (MINE, MADE_UP):
        simulate(problem, GRAPH, BASE, rounds=2, privacy=replace(UNIT, release="centroid:1"))
    assert keys[0] is None
    assert keys[1] is not None


# ---- a user's table


def a_config(tmp_path: Path, **tables: dict[str, Any]) -> Path:
    n, g = 80, np.random.default_rng(0)
    x = g.normal(size=n)
    frame = pl.DataFrame({"u": np.arange(n) % 2, "k": np.arange(n) // 2 % 4, "x": x, "y": 0.5 * x})
    if not (tmp_path / "mine.csv").exists():
        frame.write_csv(tmp_path / "mine.csv")
    problem = {"name": "table", "path": str(tmp_path / "mine.csv"), "label": "y", "unit": "u", "client": "k"}
    problem |= {"numeric": ["x"], "scaling": {"x": [0.0, 1.0]}, "rho": 0.1}
    config = {
        "rounds": 4,
        "problem": problem,
        "graph": {"topology": "path"},
        "algorithm": {"step": 0.3, "sampled": 2, "local_steps": 1, "batch": 2, "clip": "example", "bound": 1.0},
        "scheme": {"name": "shared", "noise": "gaussian", "sigma": 1.0},
        "privacy": {"release": "centroid:0.5"},
    }
    for name, table in tables.items():
        config[name] = {**config.get(name, {}), **table}
    (tmp_path / "mine.json").write_text(json.dumps({"config": config}))
    return tmp_path / "mine.json"


def test_predict_applies_the_released_model(tmp_path: Path, command: Any) -> None:
    code, out, _ = command("simulate", a_config(tmp_path), "--out", tmp_path / "run", "--json")
    assert (code, json.loads(out)["repeats"]) == (0, 1)
    run = Run.load(tmp_path / "run")
    frame, _ = predict(tmp_path / "run", tmp_path / "mine.csv")
    x = pl.read_csv(tmp_path / "mine.csv")["x"].to_numpy()
    w = run.released[0]
    np.testing.assert_allclose(frame["prediction"], x * w[0] + w[1], rtol=1e-12, atol=1e-12 * np.abs(w).sum())
    with pytest.raises(InputError, match=r"^server = 0: no server's own model was released"):
        predict(tmp_path / "run", tmp_path / "mine.csv", server=0)


def test_predict_says_why_there_is_no_model(tmp_path: Path, command: Any) -> None:
    config = a_config(tmp_path, privacy={"release": "none"})
    assert command("simulate", config, "--out", tmp_path / "run")[0] == 0
    code, _, err = command("predict", tmp_path / "run", tmp_path / "mine.csv")
    assert code == 2
    assert "privacy.release = 'centroid:SIGMA'" in err
    assert "output.unreleased_models = true" in err
    clean = a_config(tmp_path, privacy={"release": "none"}, output={"unreleased_models": True})
    assert command("simulate", clean, "--out", tmp_path / "clean")[0] == 0
    assert command("predict", tmp_path / "clean", tmp_path / "mine.csv")[0] == 0


def test_predict_applies_local_models_by_server(tmp_path: Path, command: Any) -> None:
    config = a_config(tmp_path, privacy={"release": "local"})
    assert command("simulate", config, "--out", tmp_path / "run")[0] == 0
    run = Run.load(tmp_path / "run")
    x = pl.read_csv(tmp_path / "mine.csv")["x"].to_numpy()
    for server, w in ((1, run.released[0, 1]), (None, run.released[0].mean(axis=0))):
        frame, _ = predict(tmp_path / "run", tmp_path / "mine.csv", server=server)
        np.testing.assert_allclose(frame["prediction"], x * w[0] + w[1], rtol=1e-12)


NAMED = "privacy.dataset=mine"  # a file that changes needs a name: whose data it holds now


def test_the_same_run_again_hands_out_what_is_kept(tmp_path: Path, command: Any) -> None:
    def released() -> np.ndarray:
        return Run.load(tmp_path / "run").released

    def again(*changes: str) -> dict[str, Any]:
        sets = [part for change in (NAMED, *changes) for part in ("--set", change)]
        code, out, _ = command("simulate", a_config(tmp_path), *sets, "--out", tmp_path / "run", "--json")
        assert code == 0
        return json.loads(out)

    assert again()["kept"] is False
    first = released()
    note = tmp_path / "run" / "same_data.json"
    assert note.stat().st_mode & 0o777 == 0o600
    second = again()
    assert second["kept"] is True
    assert str(note) in second["files"]
    assert np.array_equal(released(), first)
    code, out, _ = command("simulate", a_config(tmp_path), "--set", NAMED, "--out", tmp_path / "run")
    assert code == 0
    assert "\nkept           this run was made before" in out

    assert again("seed=1")["kept"] is False  # another run goes its way
    assert not np.array_equal(released(), first)
    assert again("seed=1")["kept"] is True
    last = released()
    table = pl.read_csv(tmp_path / "mine.csv")
    table.with_columns(pl.when(pl.int_range(pl.len()) == 5).then(9.0).otherwise(pl.col("x")).alias("x")).write_csv(
        tmp_path / "mine.csv"
    )
    assert again("seed=1")["kept"] is False  # one value of one row
    assert not np.array_equal(released(), last)
    note.write_text("{}")
    assert again("seed=1")["kept"] is False
    record = (tmp_path / "run" / RECORD).read_text()
    assert json.loads(note.read_text())["digest"] not in record


def test_an_unaccounted_table_and_made_up_data_are_run_again(tmp_path: Path, command: Any) -> None:
    (tmp_path / "r.toml").write_text("rounds = 3\nrepeats = 2\n[algorithm]\nclip = 'example'\nbound = 1.0\n")
    for _ in range(2):
        code, out, _ = command("simulate", tmp_path / "r.toml", "--out", tmp_path / "run", "--json")
        assert (code, json.loads(out)["kept"]) == (0, False)
    assert not (tmp_path / "run" / "same_data.json").exists()


def test_public_names_are_enough() -> None:
    """The same from the package's front door."""
    run = confide.simulate(MINE, GRAPH, BASE, rounds=2, privacy=confide.Privacy(level="unit", release="centroid:1"))
    assert run.released is not None
