"""`confide.simulate`: the same bits on any threads, whole rounds after Ctrl-C or a divergence, clear refusals."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import ModuleType
from typing import Any

import numba
import numpy as np
import pytest

import confide
from confide.base.errors import InputError
from confide.engines import compiled, driver
from confide.engines.recording import Recording
from confide.engines.run import DivergenceWarning, NoNoiseWarning, Run
from confide.graph.graph import Graph
from confide.problems.federation import Federation
from confide.problems.models import Linear
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL, Failures
from confide.rounds.clipping import Clip
from confide.rounds.schemes import KEYS, Scheme, scheme
from confide.secure.settings import Secure
from work import lines

Maker = Callable[..., Problem]
GRAPH = Graph.ring(4)
ALG = GFL(scheme("homomorphic", 0.3), step=0.3, sampled=3, local_steps=(1, 3), batch=(1, 4), dropout=0.1)
ENGINES = ["compiled", "reference", *(name for name in driver.ON_DEVICES if importlib.util.find_spec(name))]


def same(a: Run, b: Run, repeats: int | None = None) -> None:
    """Equal to the last bit, in the repetitions that both have."""
    assert np.array_equal(a.models[:repeats], b.models[:repeats])
    assert a.metrics.keys() == b.metrics.keys()
    for name in a.metrics:
        assert np.array_equal(a.metrics[name][:repeats], b.metrics[name][:repeats], equal_nan=True), name


# ---- determinism


def test_the_same_bits_on_any_number_of_threads(ragged: Maker) -> None:
    """Rounds enough for the repetitions to run at the same time, and not one after the other."""
    settings: dict[str, Any] = {"rounds": 4000, "repeats": 5, "seed": 2, "engine": "compiled"}
    runs = [confide.simulate(ragged(), GRAPH, ALG, **settings, threads=t) for t in (1, 2, 3, 8)]
    for other in runs[1:]:
        same(runs[0], other)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_same_bits_whatever_the_chunks(ragged: Maker, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"rounds": 30, "repeats": 2, "seed": 2, "engine": engine, "evaluate_every": 7}
    runs = []
    for seconds in (0.0, 0.1, 1e9):
        monkeypatch.setattr(driver, "CHUNK_SECONDS", seconds)
        runs.append(confide.simulate(ragged(), GRAPH, ALG, **settings))
    same(runs[0], runs[1])
    same(runs[0], runs[2])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_longer_run_begins_with_the_shorter(ragged: Maker, engine: str) -> None:
    short, long = (
        confide.simulate(ragged(), GRAPH, ALG, rounds=r, repeats=2, seed=2, engine=engine, evaluate_every=5)
        for r in (10, 23)
    )
    for name, values in short.metrics.items():
        assert np.array_equal(values, long.metrics[name][:, :10], equal_nan=True), name
    assert not np.array_equal(short.models, long.models)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_repetition_does_not_know_how_many_there_are(ragged: Maker, engine: str) -> None:
    few, many = (confide.simulate(ragged(), GRAPH, ALG, rounds=8, repeats=r, seed=2, engine=engine) for r in (2, 5))
    same(few, many, repeats=2)
    assert len({w.tobytes() for w in many.models}) == 5


def test_seeds_differ(ragged: Maker) -> None:
    a, b = (confide.simulate(ragged(), GRAPH, ALG, rounds=8, seed=s) for s in (0, 1))
    assert not np.array_equal(a.models, b.models)


# ---- evaluation


@pytest.mark.parametrize("engine", ENGINES)
def test_evaluations_are_those_of_the_centroid(ragged: Maker, engine: str) -> None:
    problem = ragged(model="logistic")
    run = confide.simulate(problem, GRAPH, ALG, rounds=11, repeats=2, engine=engine, evaluate_every=4)
    for name in ("train_loss", "test_metric", "test_error", "test_auc", "test_log_loss"):
        seen = np.isfinite(run.metrics[name])
        assert np.array_equal(seen[0], [i % 4 == 0 or i == 11 for i in range(1, 12)]), name
    assert problem.test is not None
    for r in range(2):
        w = run.models[r].mean(axis=0)
        assert run.metrics["train_loss"][r, -1] == pytest.approx(problem.risk(w), rel=1e-12)
        tests = problem.model.metrics(w, *problem.test)
        assert run.metrics["test_metric"][r, -1] == pytest.approx(next(iter(tests.values())), rel=1e-12)
        assert run.metrics["test_auc"][r, -1] == pytest.approx(tests["auc"], rel=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_metrics_are_what_their_names_say(ragged: Maker, engine: str) -> None:
    problem = ragged()
    run = confide.simulate(problem, GRAPH, ALG, rounds=9, repeats=2, engine=engine)
    optimum = problem.optimum
    assert optimum is not None
    for r in range(2):
        w, last = run.models[r], {name: values[r, -1] for name, values in run.metrics.items()}
        centroid = w.mean(axis=0)
        assert last["centroid_msd"] == pytest.approx(np.sum((centroid - optimum) ** 2), rel=1e-10)
        assert last["individual_msd"] == pytest.approx(np.mean(np.sum((w - optimum) ** 2, axis=1)), rel=1e-10)
        assert last["disagreement"] == pytest.approx(np.mean(np.sum((w - centroid) ** 2, axis=1)), rel=1e-10)
        assert last["residual"] < 1e-14
        assert last["uncancelled"] < 1e-14  # ALG is homomorphic
    assert set(run.metrics) >= {"train_loss", "test_metric", "participants"}


def test_the_residual_is_exactly_zero_in_fixed_point(ragged: Maker) -> None:
    alg = replace(ALG, arithmetic="fixed", clip=Clip("update", 1.0), failures=Failures(link=0.3, unit=0.1))
    run = confide.simulate(ragged(), GRAPH, alg, rounds=10, repeats=2)
    assert run.inputs["engine"] == "reference"
    assert not run.metrics["residual"].any()
    assert not run.metrics["uncancelled"].any()
    random = confide.simulate(ragged(), GRAPH, replace(alg, scheme=scheme("shared", 0.5)), rounds=3)
    assert random.metrics["uncancelled"].all()
    assert run.models.dtype == np.float64


def test_one_unit_is_told_that_its_noise_is_not_there(ragged: Maker, each_scheme: Scheme) -> None:
    """The warning, the note and the models say the same."""
    alg, quiet = (replace(ALG, scheme=s) for s in (each_scheme, each_scheme.resized(**zeros(each_scheme))))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        noisy, silent = (confide.simulate(ragged(P=1), Graph.path(1), a, rounds=4) for a in (alg, quiet))
    alike = bool(each_scheme.sigma) and np.array_equal(noisy.models, silent.models)
    assert [w.category for w in said] == [NoNoiseWarning] * alike
    assert [note for note in noisy.notes if "a_pp = 1" in note] == [str(w.message) for w in said]
    assert alike == (each_scheme.name in ("homomorphic", "own-clean", "per-link-clean"))


def zeros(s: Scheme) -> dict[str, float]:
    return {key: 0.0 for key in KEYS if getattr(s, key)}


def test_a_bar_changes_nothing_and_leaves_stdout_alone(ragged: Maker, capsys: pytest.CaptureFixture[str]) -> None:
    plain, barred = (
        confide.simulate(ragged(), GRAPH, ALG, rounds=30, repeats=2, seed=2, progress=p) for p in (False, True)
    )
    same(plain, barred)
    assert capsys.readouterr().out == ""


# ---- interruption


def interrupt(monkeypatch: pytest.MonkeyPatch, nth: int) -> None:
    """Ctrl-C that arrives when the n-th chunk has been computed but not yet counted."""
    calls, really_wait = [], driver.wait

    def wait(tasks: Iterable[Any]) -> object:
        calls.append(1)
        done = really_wait(tasks)
        if len(calls) == nth:
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(driver, "wait", wait)


@pytest.mark.parametrize("nth", [2, 4])
@pytest.mark.parametrize("engine", ENGINES)
def test_ctrl_c_keeps_whole_rounds(ragged: Maker, engine: str, nth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"repeats": 3, "seed": 2, "engine": engine, "evaluate_every": 1}
    with monkeypatch.context() as patched:
        interrupt(patched, nth)
        run = confide.simulate(ragged(), GRAPH, ALG, rounds=1000, **settings)
    assert run.interrupted
    assert nth - 1 <= run.rounds < 1000
    assert run.inputs["rounds"] == 1000
    whole = confide.simulate(ragged(), GRAPH, ALG, rounds=run.rounds, **settings)
    assert not whole.interrupted
    same(run, whole)
    assert f"interrupted    after round {run.rounds} of 1000" in repr(run)


def test_ctrl_c_before_the_first_round_is_ctrl_c(ragged: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(monkeypatch, 1)
    with pytest.raises(KeyboardInterrupt):
        confide.simulate(ragged(), GRAPH, ALG, rounds=10)


def test_an_error_inside_a_repetition_comes_out(ragged: Maker) -> None:
    def local(w: np.ndarray, X: np.ndarray, d: np.ndarray, task: object) -> np.ndarray:
        raise ZeroDivisionError("the user's own step")

    with pytest.raises(ZeroDivisionError, match="the user's own step"):
        confide.simulate(ragged(), GRAPH, replace(ALG, local=local), rounds=3)


# ---- divergence


@pytest.mark.filterwarnings("ignore::confide.engines.run.StabilityWarning")  # said first, see test_driver_stability
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("step", [30.0, 1e40])
def test_a_divergence_is_told_and_cut_off(ragged: Maker, engine: str, step: float) -> None:
    alg = replace(ALG, step=step, local_steps=2)
    with pytest.warns(DivergenceWarning) as told:
        run = confide.simulate(ragged(), GRAPH, alg, rounds=150, repeats=3, seed=2, engine=engine)
    assert run.diverged is not None
    at = run.diverged["round"]
    assert run.rounds == at - 1 < 150
    assert run.diverged["step"] == step
    assert f"round {at} of repetition {run.diverged['repetition']} with step {step:g}" in str(told[-1].message)
    assert np.isfinite(run.models).all()
    for name, values in run.metrics.items():
        assert values.shape == (3, at - 1)
        assert np.isfinite(values).all(), name
    if run.rounds:
        whole = confide.simulate(ragged(), GRAPH, alg, rounds=run.rounds, repeats=3, seed=2, engine=engine)
        assert np.array_equal(run.models, whole.models)
        assert np.array_equal(run.metrics["centroid_msd"], whole.metrics["centroid_msd"])
        assert whole.diverged is None
    assert "diverged" in repr(run)


def test_both_engines_diverge_in_the_same_round(ragged: Maker) -> None:
    found = []
    for engine in ENGINES:
        with pytest.warns(DivergenceWarning):
            run = confide.simulate(ragged(), GRAPH, replace(ALG, step=30.0), rounds=150, repeats=3, engine=engine)
        found.append(run.diverged)
    assert found[0] == found[1]


# ---- cost


def uncompiled(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The compiled engine with its kernel as plain Python, every line of which can be counted."""
    spec = importlib.util.spec_from_file_location("plain_kernel", compiled.kernel.__file__)
    assert spec is not None
    assert spec.loader is not None
    plain = importlib.util.module_from_spec(spec)
    monkeypatch.setattr(numba.config, "DISABLE_JIT", True)
    spec.loader.exec_module(plain)
    monkeypatch.setattr(compiled, "kernel", plain)
    return plain


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # words wrap around, as they must
def test_a_round_does_not_pay_for_clients_that_were_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """K = 20 and K = 2,000 with two samples each: L = 10 are drawn, and the kernel runs the same lines as often."""
    plain = uncompiled(monkeypatch)
    alg = GFL(scheme("none"), step=0.1, sampled=10, local_steps=2, batch=2)

    def ran(K: int) -> int:
        X = np.random.default_rng(0).standard_normal((4 * K, 2))
        offsets = np.arange(0, 4 * K + 1, 2), np.array([0, K, 2 * K])
        problem = Problem(Federation(X, X @ np.ones(2), *offsets), Linear(0.1))
        engine, out = compiled.CompiledEngine(problem, [Graph.path(2)], alg, 4, 0), Recording.empty(1, 4, 2, 4)
        return lines(lambda: engine.advance(0, engine.start(), 1, 4, out), plain.__file__)

    assert ran(20) == ran(2000) > 4 * 2 * 10  # rounds, servers, clients


# ---- refusals


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"engine": "fast"}, "engine"),
        ({"rounds": 0}, "rounds"),
        ({"rounds": 2.5}, "rounds"),
        ({"repeats": 0}, "repeats"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"threads": 0}, "threads"),
        ({"evaluate_every": 0}, "evaluate_every"),
        ({"graph": Graph.ring(5)}, "graph"),
        ({"graph": [GRAPH, Graph.ring(5)]}, "graph"),
        ({"graph": []}, "graph"),
        ({"algorithm": replace(ALG, sampled=4)}, "algorithm.sampled"),
        ({"algorithm": replace(ALG, batch=10, replacement=False)}, "algorithm.batch"),
        ({"algorithm": replace(ALG, failures=Failures(units=((4, 0),)))}, "failures.units"),
        ({"algorithm": replace(ALG, failures=Failures(links=((1, 0, 2),)))}, "failures.links"),
    ],
)
@pytest.mark.parametrize("engine", ENGINES)
def test_what_simulate_refuses(ragged: Maker, settings: dict[str, Any], field: str, engine: str) -> None:
    given = {"problem": ragged(), "graph": GRAPH, "algorithm": ALG, "rounds": 3, "engine": engine} | settings
    with pytest.raises(InputError) as refusal:
        confide.simulate(**given)
    assert refusal.value.field == field


def test_the_engine_is_chosen_by_what_it_can_do(ragged: Maker) -> None:
    def ours(w: np.ndarray, X: np.ndarray, d: np.ndarray, task: object) -> np.ndarray:
        return -0.1 * w

    fixed = replace(ALG, arithmetic="fixed", clip=Clip("update", 1.0))
    for alg, expected in ((ALG, "compiled"), (fixed, "reference"), (replace(ALG, local=ours), "reference")):
        run = confide.simulate(ragged(), GRAPH, alg, rounds=2)
        assert run.inputs["engine"] == expected
        if expected == "reference":
            with pytest.raises(InputError, match="use 'reference'"):
                confide.simulate(ragged(), GRAPH, alg, rounds=2, engine="compiled")


def test_corrupted_clients_who_are_nobody_are_noted(ragged: Maker) -> None:
    secure = replace(ALG, clip=Clip("example", 1.0), arithmetic="fixed", aggregation=Secure(dropped=0.0), dropout=0.0)
    told = [note for note in confide.simulate(ragged(), GRAPH, secure, rounds=1).notes if "is nobody" in note]
    assert told == [secure.aggregation.doubt(3)]  # type: ignore[union-attr]


@pytest.mark.parametrize("framework", [name for name in driver.ON_DEVICES if name not in ENGINES])
def test_a_framework_that_is_not_here_is_named_with_its_installation(ragged: Maker, framework: str) -> None:
    with pytest.raises(InputError, match=rf"pip install 'confide\[{framework}\]'"):
        confide.simulate(ragged(), GRAPH, ALG, rounds=1, engine=framework)
