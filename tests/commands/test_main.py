"""The command: one JSON object or readable text on stdout, the rest on stderr, and honest exit codes."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from confide.commands import main as cli
from confide.engines.run import Run
from confide.experiments.claims import Claim
from confide.experiments.reproduce import Report
from confide.plans.config import Config, load
from patience import LIMIT, until

COMMAND = Path(sys.executable).with_name("confide")
CONFIG = """
rounds = 6
repeats = 2
[graph]
topology = "ring"
[problem]
units = 3
clients = 4
samples = 5
[algorithm]
sampled = 2
local_steps = 2
batch = 2
"""
Outcome = tuple[int, str, str]


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(CONFIG)
    return tmp_path / "small.toml"


def one_object(outcome: Outcome, code: int = 0) -> dict[str, Any]:
    assert outcome[0] == code, outcome
    assert outcome[1].count("\n") == 1
    found = json.loads(outcome[1], parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert isinstance(found, dict)
    return found


# ---- simulate


def test_simulate_json(command: Callable[..., Outcome]) -> None:
    outcome = command("simulate", "small.toml", "--out", "run", "--json")
    found = one_object(outcome)
    assert outcome[2] == ""
    assert found["privacy"] is None
    assert (found["rounds"], found["repeats"], found["interrupted"], found["diverged"]) == (6, 2, False, None)
    assert set(found["steady_state"]) == {"centroid_db", "individual_db"}
    metrics = {"centroid_msd", "individual_msd", "disagreement", "train_loss", "test_metric", "residual", "uncancelled"}
    assert metrics | {"participants"} <= set(found["final"])
    assert found["final"]["test_metric"] is None  # no test rows were asked for
    assert found["files"]
    assert all(Path(f).is_file() for f in found["files"])
    curves = ["curves.pdf", "curves.png", "curves.svg"]
    assert sorted(os.listdir("run")) == [*curves, "metrics.parquet", "model.npz", "run.json"]
    run = Run.load("run")
    assert run.final == found["final"]
    assert run.config == load("small.toml").model_dump(mode="json", exclude_none=True)


def test_simulate_in_words(command: Callable[..., Outcome]) -> None:
    code, out, err = command("simulate", "small.toml")
    assert (code, err) == (0, "")
    assert "homomorphic, laplace sigma 0.316 on regression, ring:3 (lazy), 6 rounds x 2" in out
    assert "privacy        not accounted" in out
    assert out.endswith("files          results/small\n")
    assert Run.load("results/small").rounds == 6


def test_the_folder_of_the_config_and_of_the_option(command: Callable[..., Outcome]) -> None:
    command("simulate", "small.toml", "--set", "output.folder=there")
    assert Run.load("there").rounds == 6
    command("simulate", "small.toml", "--set", "output.folder=there", "--set", "rounds=4", "--out", "here")
    assert (Run.load("here").rounds, Run.load("there").rounds) == (4, 6)


def test_a_run_again_from_its_record_gives_the_same_bits(command: Callable[..., Outcome]) -> None:
    assert command("simulate", "small.toml", "--set", "scheme.name=per-link", "--set", "seed=5", "--out", "a")[0] == 0
    assert command("simulate", "a/run.json", "--out", "b")[0] == 0
    a, b = Run.load("a"), Run.load("b")
    assert a.models.tobytes() == b.models.tobytes()
    assert a.metrics.keys() == b.metrics.keys()
    assert all(a.metrics[name].tobytes() == b.metrics[name].tobytes() for name in a.metrics)
    assert a.inputs == b.inputs
    assert command("simulate", "a/run.json", "--set", "seed=6", "--out", "c")[0] == 0
    assert Run.load("c").models.tobytes() != a.models.tobytes()


def test_a_divergence_is_a_failed_run_that_keeps_what_came_before(command: Callable[..., Outcome]) -> None:
    arguments = ("simulate", "small.toml", "--set", "algorithm.step=300.0", "--set", "rounds=90", "--out", "run")
    outcome = command(*arguments, "--json")
    found = one_object(outcome, code=1)
    at = found["diverged"]["round"]
    assert found["diverged"]["step"] == 300.0
    assert 1 < at <= 90
    assert found["rounds"] == at - 1
    line = f"failed: the run diverged in round {at} of repetition {found['diverged']['repetition']}, "
    assert outcome[2].startswith(f"{line}with algorithm.step = 300; what came before is kept")
    assert outcome[2].count("\n") == 1
    run = Run.load("run")
    assert run.rounds == at - 1
    assert np.isfinite(run.models).all()


def test_a_divergence_in_the_first_round(command: Callable[..., Outcome]) -> None:
    found = one_object(command("simulate", "small.toml", "--set", "algorithm.step=1e30", "--out", "r", "--json"), 1)
    assert (found["rounds"], found["steady_state"]) == (0, None)
    assert Run.load("r").rounds == 0
    assert command("simulate", "small.toml", "--set", "algorithm.step=1e30", "--out", "r")[0] == 1


def test_the_printed_default_and_schema(command: Callable[..., Outcome], tmp_path: Path) -> None:
    code, out, err = command("simulate", "--print-default")
    assert (code, err) == (0, "")
    (tmp_path / "default.toml").write_text(out)
    assert load(tmp_path / "default.toml") == Config()
    code, out, err = command("simulate", "--print-schema")
    assert (code, err) == (0, "")
    assert json.loads(out) == Config.model_json_schema()


# ---- reproduce


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Report:
    """What `confide reproduce` is told, without the work."""
    made = Report([Claim("a1", "it [rises]", True, {"db": -3.0, "at": float("inf")})], ["x/a.png"], 1.0)
    monkeypatch.setattr("confide.experiments.reproduce.reproduce", lambda names, **options: made)
    return made


def test_reproduce_json(command: Callable[..., Outcome], report: Report) -> None:
    found = one_object(command("reproduce", "--json"))
    (claim,) = found["claims"]
    assert claim.items() >= {"id": "a1", "statement": "it [rises]", "verdict": "holds", "holds": True}.items()
    assert claim["numbers"] == {"db": -3.0, "at": None}
    assert (found["files"], found["seconds"]) == (["x/a.png"], 1.0)


def test_a_failed_claim_exits_1(command: Callable[..., Outcome], report: Report) -> None:
    report.claims.append(Claim("a2", "it falls", False))
    assert one_object(command("reproduce", "--json"), code=1)["claims"][1]["holds"] is False
    code, out, _ = command("reproduce")
    assert code == 1
    assert "does not hold" in out
    assert "it falls" in out
    assert "not as expected: a2" in out


def test_claims_that_hold_exit_0_and_are_shown(command: Callable[..., Outcome], report: Report) -> None:
    code, out, _ = command("reproduce")
    assert code == 0
    for word in ("a1", "holds", "it [rises]", "1 of 1 hold, 0 under some readings only", "x/a.png"):
        assert word in out


def test_an_interrupted_reproduction_exits_130(command: Callable[..., Outcome], report: Report) -> None:
    report.interrupted = True
    outcome = command("reproduce", "--json", "--out", "there")
    assert one_object(outcome, code=130)["interrupted"] is True
    assert outcome[2] == "interrupted: the figures made so far are in there\n"


def test_the_options_reach_the_work(command: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, Any]] = []
    monkeypatch.setattr(
        "confide.experiments.reproduce.reproduce", lambda names, **options: calls.append((names, options)) or Report()
    )
    command("reproduce")
    command("reproduce", "all", "--quick", "--repeats", 3, "--seed", 7, "--out", "o", "--data", "d.csv")
    (first, _), (second, options) = calls
    assert (first, second) == (("regression", "classification", "privacy"), ("all",))
    assert options.pop("announce")
    assert options == {"quick": True, "repeats": 3, "seed": 7, "out": Path("o"), "data": Path("d.csv")}


# ---- predict and bench


@pytest.fixture
def learned(command: Callable[..., Outcome]) -> Path:
    rng = np.random.default_rng(0)
    rows = [f"{n % 2},{n // 2 % 3},{x:.3f},{'yes' if x > 0 else 'no'}" for n, x in enumerate(rng.normal(size=60))]
    Path("t.csv").write_text("\n".join(["u,k,x,y", *rows]) + "\n")
    Path("t.toml").write_text(
        'rounds = 30\nrepeats = 2\n[graph]\ntopology = "ring"\n[problem]\nname = "table"\npath = "t.csv"\nlabel = "y"\n'
        'task = "binary"\nunit = "u"\nclient = "k"\nnumeric = ["x"]\nrho = 0.01\n[algorithm]\nsampled = 2\nbatch = 4\n'
    )
    assert command("simulate", "t.toml", "--out", "run")[0] == 0
    return Path("run")


def test_predict(command: Callable[..., Outcome], learned: Path) -> None:
    outcome = command("predict", learned, "t.csv", "--json")
    found = one_object(outcome)
    assert outcome[2] == ""
    assert (found["rows"], found["file"]) == (60, None)
    assert set(found["predictions"]) == {"probability", "prediction"}
    assert set(found["predictions"]["prediction"]) <= {"yes", "no"}
    assert found["metrics"]["error"] < 0.5

    code, out, err = command("predict", learned, "t.csv")
    assert code == 0
    assert out.splitlines()[0] == "probability,prediction"
    assert len(out.splitlines()) == 61
    assert re.search(r"^error 0(\.\d+)?$", err, re.MULTILINE)

    found = one_object(command("predict", learned, "t.csv", "--out", "new/p.csv", "--json"))
    assert (found["predictions"], found["file"]) == (None, "new/p.csv")
    assert Path("new/p.csv").read_text() == out
    assert os.listdir("new") == ["p.csv"]

    one = command("predict", learned, "t.csv", "--repeat", 1, "--server", 0)[1]
    assert one != out
    for wrong in (["--repeat", 2], ["--server", 5], ["--out", "t.csv/x"]):
        code, out, err = command("predict", learned, "t.csv", *wrong)
        assert (code, out, err.count("\n")) == (2, "", 1)


def test_bench(command: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("confide.benchmarks.regression.bench", lambda seed, watch: {"ratio": 250.0, "floor_ratio": 2.5})
    assert one_object(command("bench", "regression", "--json")) == {"ratio": 250.0, "floor_ratio": 2.5}
    code, out, _ = command("bench", "regression")
    assert (code, out.split()) == (0, ["ratio", "250.0", "floor_ratio", "2.50"])


# ---- the command as a whole


def test_help_names_every_command(command: Callable[..., Outcome]) -> None:
    code, out, err = command("--help")
    assert (code, err) == (0, "")
    for name in ("reproduce", "simulate", "predict", "bench"):
        assert name in out
        assert command(name, "--help")[0] == 0
        assert "--json" in command(name, "--help")[1]


def test_no_command_shows_the_help_and_is_bad_input(command: Callable[..., Outcome]) -> None:
    code, out, err = command()
    assert code == 2
    assert "Usage" in out
    assert err == "error: name a command\n"


def test_a_bug_is_not_dressed_up_as_a_mistake_of_the_user(
    command: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("confide.engines.driver.simulate", broken)
    monkeypatch.setattr(sys, "argv", ["confide", "simulate", "small.toml"])
    with pytest.raises(ZeroDivisionError, match="ours"):
        cli.main()
    assert not Path("results").exists()


def test_ctrl_c_before_the_first_round_leaves_nothing(
    command: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("confide.engines.driver.simulate", stopped)
    assert command("simulate", "small.toml", "--json") == (130, "", "interrupted\n")
    assert not Path("results").exists()


def read_until(terminal: int, pattern: bytes) -> bytes:
    seen = b""

    def found() -> bool:
        nonlocal seen
        if select.select([terminal], [], [], 0.0)[0]:
            seen += os.read(terminal, 65536)
        return bool(re.search(pattern, seen))

    until(found, lambda: f"{pattern!r} in {seen[-500:]!r}", pause=0.02)
    return seen


def test_ctrl_c_keeps_what_was_computed() -> None:
    """On a terminal, whose progress bar says when the rounds are under way."""
    endless = ("--set", "rounds=200000", "--set", "algorithm.local_steps=50000")  # an hour
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [COMMAND, "simulate", "small.toml", *endless, "--out", "run", "--json"],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "120"},
        text=True,
    )
    os.close(theirs)
    try:
        read_until(ours, rb"[1-9]\d*/200000")
        process.send_signal(signal.SIGINT)
        seen = read_until(ours, rb"interrupted after round \d+ of 200000; what was computed is in run")
        out, _ = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
        os.close(ours)
    assert process.returncode == 130
    assert b"Traceback" not in seen
    found = json.loads(out)
    assert found["interrupted"] is True
    assert 0 < found["rounds"] < 200000
    run = Run.load("run")
    assert run.interrupted
    assert run.rounds == found["rounds"]
    assert np.isfinite(run.metrics["disagreement"]).all()
    assert os.listdir(".") != []
    assert [p for p in os.listdir(".") if p.startswith(".")] == []


def test_no_progress_bar_where_nobody_watches() -> None:
    done = subprocess.run([COMMAND, "simulate", "small.toml"], capture_output=True, text=True, timeout=LIMIT)
    assert (done.returncode, done.stderr) == (0, "")
    assert "/6" not in done.stdout


@pytest.mark.parametrize("arguments", [["simulate", "--print-default"], ["--help"]])
def test_a_reader_that_has_gone_is_no_error(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        done = subprocess.run([COMMAND, *arguments], stdout=pipe, stderr=subprocess.PIPE, text=True, timeout=LIMIT)
    assert done.stderr == ""
    assert done.returncode in (0, 1)


FIRST_ROUND = """
import json, os, sys
from confide.commands import main as cli
from confide.engines import compiled, kernel
advance = compiled.CompiledEngine.advance
def first(self, *arguments):
    advance(self, *arguments)
    functions = [f for f in vars(kernel).values() if hasattr(f, "stats")]
    compiled_anew = sum(sum(f.stats.cache_misses.values()) for f in functions)
    print(json.dumps([compiled_anew, sorted({m.partition(".")[0] for m in sys.modules})]), flush=True)
    os._exit(0)
compiled.CompiledEngine.advance = first
cli.main()
"""


def test_a_later_start_compiles_nothing_before_its_first_round() -> None:
    """Nor does it load what only pictures, tables and random graphs need."""
    arguments = [sys.executable, "-c", FIRST_ROUND, "simulate", "small.toml", "--set", "repeats=1"]
    for _ in range(5):  # the first fills the cache, and so do tests in other processes, one over the other
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=LIMIT)
        assert done.returncode == 0, done.stderr
        compiled_anew, loaded = json.loads(done.stdout)
        if not compiled_anew:
            break
    assert compiled_anew == 0
    assert "numba" in loaded
    assert not {"matplotlib", "polars", "networkx"} & set(loaded)
