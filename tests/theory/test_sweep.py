"""`confide theory CONFIG --sweep KEY=VALUES`: each point is the limit that the same config alone has."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from confide.base.errors import InputError
from confide.commands import main as cli
from confide.plans.config import load
from confide.theory.prediction import predict
from confide.theory.sweep import asked, sweep

FIGURE_4 = Path(__file__).parents[2] / "figures" / "4.toml"
SMALL = ["problem.clients=20", "problem.samples=20"]


def test_every_point_is_the_prediction_of_its_own_config() -> None:
    for key, values in (("algorithm.step", [0.1, 2.0]), ("problem.units", [4, 6]), ("algorithm.sampled", [3, 20])):
        changes = [*SMALL, "graph.topology=ring"]
        for point in sweep(FIGURE_4, changes, key, values):
            x = load(FIGURE_4, [*changes, f"{key}={point.value}"]).build()
            assert point.levels == predict(x.problem, x.graph[0], x.algorithm, seed=x.seed).limit
            assert point.levels is not None


def test_a_step_without_a_steady_state_is_a_point_with_the_reason() -> None:
    low, high = sweep(FIGURE_4, SMALL, "algorithm.step", [0.5, 50.0])
    assert low.levels is not None
    assert not low.why
    assert high.levels is None
    assert high.to_dict()["centroid_db"] is None
    assert "not mean-square stable" in high.to_dict()["why"]


@pytest.mark.parametrize("text", ["x", "=1", "algorithm.step=", "algorithm.step=1,,2", ""])
def test_what_is_no_sweep_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="KEY=VALUE"):
        asked(text)


def test_values_are_those_of_toml() -> None:
    assert asked('a.b=1,2.5,true,"x"') == ("a.b", [1, 2.5, True, "x"])


def test_the_command_prints_a_line_a_value_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [option for change in SMALL for option in ("--set", change)]
    line = ["theory", str(FIGURE_4), *options, "--sweep", "algorithm.step=0.1,1,50"]
    assert cli.app(line, standalone_mode=False) is None
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith("algorithm.step")
    assert [row.split()[0] for row in rows] == ["0.1", "1", "50"]
    assert "stable" in rows[-1]
    cli.app([*line, "--out", str(tmp_path / "curve.png"), "--json"], standalone_mode=False)
    told = json.loads(capsys.readouterr().out)
    assert {Path(file).name for file in told["files"]} >= {"curve.png", "curve.svg", "curve.csv"}
    table = pl.read_csv(tmp_path / "curve.csv")
    assert table["algorithm.step"].to_list() == [0.1, 1.0, 50.0]
    assert table["centroid dB"].to_list() == [point["centroid_db"] for point in told["points"]]


def test_out_is_for_a_sweep() -> None:
    with pytest.raises(InputError, match="sweep"):
        cli.app(["theory", str(FIGURE_4), "--out", "x.png"], standalone_mode=False)
