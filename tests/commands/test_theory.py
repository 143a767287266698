"""`confide theory`: what is known is printed, what is not is null with its reason, and nothing is NaN."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from confide.graph.graph import Graph
from confide.plans.config import load
from confide.theory import summary
from confide.theory.bounds import bounds
from confide.theory.constants import constants
from confide.theory.design import best_step, noise_allowed
from confide.theory.prediction import predict
from confide.theory.stability import max_stable_step
from exploring import more
from patience import LIMIT

COMMAND = Path(sys.executable).with_name("confide")
CONFIG = """
rounds = 40
repeats = 2
[graph]
topology = "ring"
[problem]
units = 4
clients = 5
samples = 8
[algorithm]
step = 0.2
sampled = 3
local_steps = 2
batch = 2
"""
KEYS = {
    "exact", "constants", "bounds", "steady_state", "stable", "explanation", "max_stable_step", "best_step", "best",
    "split", "transient", "sigma", "sigma_allowed", "weights", "refused",
}  # fmt: skip
FLAT = ("--set", "problem.rho=0.0", "--set", "problem.features=30", "--set", "problem.samples=1")
Outcome = tuple[int, str, str]
Command = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.toml").write_text(CONFIG)


def ask(command: Command, *changes: str, target: float | None = None) -> dict[str, Any]:
    options = [word for change in changes for word in ("--set", change)]
    options += [] if target is None else ["--target-db", str(target)]
    code, out, _ = command("theory", "c.toml", *options, "--json")
    assert code == 0
    assert out.count("\n") == 1
    found = json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert set(found) == KEYS
    return found


def test_every_part_is_what_the_library_says(command: Command) -> None:
    found, x = ask(command), load("c.toml").build()
    run = (x.problem, x.graph[0], x.algorithm)
    predicted = predict(*run, rounds=40, seed=0)
    assert predicted.limit is not None
    assert found["steady_state"] == predicted.limit.db
    assert found["transient"]["last_fifth"] == predicted.steady_state
    assert found["max_stable_step"] == max_stable_step(*run)
    best = best_step(*run, rounds=40)
    assert (found["best_step"], found["best"]["centroid"]["db"]) == (best.step, best.db)
    assert found["best"]["individual"]["step"] == best_step(*run, rounds=40, which="individual").step
    assert found["constants"] == constants(*run, 0).to_dict()
    proven = bounds(*run, 40, 0)
    assert found["bounds"]["limits"]["centroid"] == proven.limits["centroid"]
    assert found["bounds"]["last_round"]["centroid"] == proven.centroid[-1]
    assert (found["stable"], found["exact"], found["refused"]) == (True, True, {})
    split = found["split"]["centroid"]
    assert sum(split.values()) == pytest.approx(predicted.limit.centroid.total)
    allowed = found["sigma_allowed"]["centroid"]  # by default, twice the error without noise
    assert allowed["sigma"] == pytest.approx(noise_allowed(*run, allowed["target_db"]))
    quiet = split["bias_squared"] + split["gradient_noise"]
    assert 10.0 ** (allowed["target_db"] / 10.0) == pytest.approx(2.0 * quiet)
    weights = found["weights"]
    assert weights["lazy"]["iota_2"] == x.graph[0].iota_2
    assert weights["lazy"]["centroid_db"] == found["steady_state"]["centroid_db"]
    assert weights["fastest"]["lower_bound"] == pytest.approx(weights["fastest"]["iota_2"], abs=1e-4)
    assert weights["fastest"]["iota_2"] <= min(w["iota_2"] for w in weights.values())


def test_the_round_from_which_the_error_is_at_its_limit(command: Command) -> None:
    found, x = ask(command), load("c.toml").build()
    curve = predict(x.problem, x.graph[0], x.algorithm, rounds=40).centroid_msd
    at = found["transient"]["settled_round"]["centroid"]
    limit = sum(found["split"]["centroid"].values())
    assert abs(curve[at - 1 :] / limit - 1.0).max() < 10**0.05 - 1.0
    assert curve[at - 2] / limit > 10**0.05
    assert ask(command, "algorithm.step=0.001")["transient"]["settled_round"]["centroid"] is None


def test_a_target(command: Command) -> None:
    found = ask(command, target=-15.0)
    assert found["best"]["centroid"]["rounds"] < 40
    assert found["best"]["centroid"]["db"] <= -15.0
    assert found["sigma_allowed"]["centroid"]["target_db"] == -15.0
    assert "least that any step leaves" in found["refused"]["best_step.individual"]
    assert found["best"]["individual"] is None
    found = ask(command, target=-80.0)
    assert found["sigma_allowed"]["centroid"] is None
    assert "without this noise" in found["refused"]["sigma_allowed.centroid"]


@pytest.mark.parametrize("step", more([30.0, 1e30], [30.0, 1e6, 1e30]))
def test_a_step_beyond_stability_is_an_answer(command: Command, step: float) -> None:
    found = ask(command, f"algorithm.step={step}")
    assert found["steady_state"] == {"centroid_db": None, "individual_db": None}
    assert found["stable"] is False
    assert "is not mean-square stable" in found["explanation"]
    assert f"{found['max_stable_step']:.4g}" in found["explanation"]
    assert found["best_step"] < found["max_stable_step"] < step
    assert found["bounds"] is None
    assert "bounds" in found["refused"]
    assert "steady_state" not in found["refused"]


def test_lapack_does_not_speak_in_between() -> None:
    """It prints to the process's own stdout where it is handed infinities."""
    words = [COMMAND, "theory", "c.toml", "--set", "algorithm.step=1e30", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=LIMIT)
    assert json.loads(done.stdout)["stable"] is False


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (["algorithm.clip=example", "algorithm.bound=1.0"], "clipping is not linear"),
        (["graph.link_failure=0.1"], "stay up"),
    ],
)
def test_what_predictions_refuse_leaves_the_constants(command: Command, changes: list[str], reason: str) -> None:
    found = ask(command, *changes)
    assert found["constants"]["nu"] > 0.0
    for part in ("steady_state", "max_stable_step", "best_step"):
        assert found[part] is None
        assert reason in found["refused"][part]
    assert (found["stable"], found["exact"], found["split"], found["bounds"]) == (None, None, None, None)
    assert found["weights"]["lazy"]["iota_2"] < 1.0


def test_a_logistic_loss_is_linearised(command: Command) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 2))
    words = np.where(X @ [1.0, -1.0] + rng.standard_normal(120) > 0, "yes", "no")
    rows = [f"{a:.3f},{b:.3f},{y}" for (a, b), y in zip(X, words, strict=True)]
    Path("t.csv").write_text("\n".join(["a,b,y", *rows]) + "\n")
    Path("c.toml").write_text("""
rounds = 30
[problem]
name = "table"
path = "t.csv"
label = "y"
task = "binary"
positive = "yes"
numeric = ["a", "b"]
split = "iid"
units = 3
clients = 4
rho = 0.1
[graph]
topology = "ring"
[algorithm]
sampled = 3
local_steps = 1
batch = 4
""")
    found = ask(command)
    assert found["exact"] is False
    assert found["steady_state"]["centroid_db"] < 0.0
    assert found["sigma_allowed"]["centroid"]["sigma"] > 0.0


def test_what_would_take_long_is_refused(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "LONG", 1.0)
    found = ask(command)
    for part in ("max_stable_step", "best_step"):
        assert found[part] is None
        assert "minutes" in found["refused"][part]
    assert found["steady_state"]["centroid_db"] is not None
    assert found["weights"]["fastest"]["iota_2"] is not None


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        (["graph.topology=complete"], None),  # iota_2 = 0 with other weights
        (["graph.topology=complete", "graph.weights=uniform"], None),
        (["scheme.name=local-only"], "bounds"),
        (["scheme.name=central"], None),
        (["scheme.name=none"], None),
        (["problem.units=1"], "weights"),
    ],
)
def test_corner_cases_have_answers(command: Command, changes: list[str], part: str | None) -> None:
    found = ask(command, *changes)
    assert found["stable"] is True
    assert set(found["refused"]) <= {part}
    if "scheme.name=none" in changes:
        assert found["sigma_allowed"]["centroid"]["unlimited"] is True
        assert found["sigma_allowed"]["centroid"]["sigma"] is None


def test_a_matrix_that_does_not_mix(command: Command) -> None:
    Path("A.txt").write_text("0 1\n1 0\n")
    changes = ["problem.units=2", "graph.topology=file:A.txt", "graph.weights=given"]
    code, _, err = command("theory", "c.toml", *(word for change in changes for word in ("--set", change)))
    assert (code, "must mix (iota_2 < 1)" in err) == (2, True)
    x = load("c.toml", ["problem.units=2", "scheme.name=none"]).build()
    found = summary.summary(x._replace(graph=[Graph.from_file("A.txt", "given", turn=True)]))
    assert found["weights"]["given"]["iota_2"] == pytest.approx(1.0)
    assert "does not mix" in found["refused"]["bounds"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.toml"], "config = 'nowhere.toml'"),
        (["c.toml", "--set", "algorithm.stop=1"], "did you mean 'algorithm.step'"),
        (["c.toml", "--set", "graph.topology=['ring', 'path']"], "the theory is for one graph"),
        (["c.toml", "--target-db", "nan"], "target_db = nan"),
        (["c.toml", "--set", "algorithm.sampled=9"], "sample at most that many"),
        (["c.toml", *FLAT], "positive regulariser"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(command: Command, arguments: list[str], said: str) -> None:
    code, out, err = command("theory", *arguments, "--json")
    assert (code, out) == (2, "")
    assert said in err.splitlines()[-1]
    assert err.splitlines()[-1].startswith("error: ")


def test_in_words(command: Command) -> None:
    code, out, err = command("theory", "c.toml")
    assert code == 0
    rows = {line[:18].strip(): line[19:] for line in out.splitlines()}
    assert rows["converges"] == "yes"
    for name in ("largest step", "ends at", "on the way", "best step", "noise allowed", "proven bounds", "constants"):
        assert name in rows
    assert "exact for squared loss" in out
    assert "weights fastest" in out
    assert "prediction ..." in err
    code, out, _ = command("theory", "c.toml", "--set", "algorithm.step=30.0")
    assert out.startswith("converges          no: step 30 is not mean-square stable")
    _, out, _ = command("theory", "c.toml", "--set", "algorithm.clip=update", "--set", "algorithm.bound=1.0")
    assert out.count("clipping is not linear") == 1  # a reason is said once, for all that it refuses
