"""`simulate` warns of a step that is not mean-square stable, before it runs; it costs little and never stops a run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import confide
from confide.base.errors import RunError
from confide.engines.run import DivergenceWarning, StabilityWarning
from confide.graph.graph import Graph
from confide.problems import regression
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL, Failures
from confide.rounds.clipping import Clip
from confide.rounds.schemes import scheme
from confide.theory import foresight, stability
from confide.theory.foresight import contracts, foresee
from confide.theory.moments import moments
from confide.theory.quadratics import linearise
from work import lines, peak_bytes

Maker = Callable[..., Problem]
GRAPH = Graph.ring(4)
ALG = GFL(scheme("homomorphic", 0.3), step=0.3, sampled=3, local_steps=(1, 3), batch=(1, 4), dropout=0.1)


def limit(problem: Problem) -> float:
    return stability.max_stable_step(problem, GRAPH, ALG, seed=2)


def test_a_step_beyond_stability_is_told_before_the_run_and_noted(ragged: Maker) -> None:
    most = limit(ragged())
    alg = replace(ALG, step=1.02 * most)
    with pytest.warns(StabilityWarning, match="not mean-square stable") as told:
        run = confide.simulate(ragged(), GRAPH, alg, rounds=3, seed=2)
    assert len(told) == 1
    text = str(told[0].message)
    assert f"the limit is {most:.4g}, half of it is safe" in text
    assert "most runs still look fine" in text
    assert told[0].filename == __file__
    assert run.diverged is None
    assert [n for n in run.notes if n == text]


def test_a_divergence_says_why(ragged: Maker) -> None:
    alg = replace(ALG, step=30.0, local_steps=2)
    with pytest.warns(DivergenceWarning) as told:
        run = confide.simulate(ragged(), GRAPH, alg, rounds=150, repeats=2, seed=2)
    assert [type(w.message) for w in told] == [StabilityWarning, DivergenceWarning]
    assert run.diverged is not None
    assert "step 30 is not mean-square stable" in run.diverged["why"]
    assert f"A smaller step is the remedy: {run.diverged['why']}" in str(told[1].message)
    assert run.diverged["why"] in run.notes


def test_silence_below_the_limit(ragged: Maker) -> None:
    for share in (0.01, 0.5, 0.98):
        run = confide.simulate(ragged(), GRAPH, replace(ALG, step=share * limit(ragged())), rounds=2, seed=2)
        assert not [n for n in run.notes if "stable" in n]


@pytest.mark.parametrize("what", ["logistic", "clip", "failures", "several graphs", "many features"])
def test_silence_where_nothing_is_known(ragged: Maker, what: str) -> None:
    problem, graphs, alg = ragged(), [GRAPH], replace(ALG, step=8.0)
    if what == "logistic":
        problem = ragged(model="logistic")
    elif what == "clip":
        alg = replace(alg, clip=Clip("update", 1.0))
    elif what == "failures":
        alg = replace(alg, failures=Failures(link=0.1))
    elif what == "several graphs":
        graphs = [GRAPH, Graph.path(4)]
    else:
        problem = ragged(M=13)
    assert foresee(ragged(), [GRAPH], replace(ALG, step=8.0), 0) is not None
    assert foresee(problem, graphs, alg, 0) is None


def test_a_proof_of_stability_is_one(ragged: Maker) -> None:
    """Against the spectral radius, over schemes and steps; and it misses little."""
    quadratics, missed = linearise(ragged()), 0
    for name in ("homomorphic", "local-only", "central"):
        alg = replace(ALG, scheme=scheme(name, 0.0))
        most = stability.max_stable_step(ragged(), GRAPH, alg)
        for share in (0.1, 0.7, 0.97, 1.001, 1.01, 1.5, 4.0):
            found = contracts(moments(quadratics, GRAPH, replace(alg, step=share * most), 0))
            assert not (found and share > 1.0), (name, share)
            missed += share < 1.0 and not found
    assert missed <= 1
    with np.errstate(all="ignore"):
        assert contracts(moments(quadratics, GRAPH, replace(ALG, step=1e60), 0)) is None


@pytest.mark.parametrize("step", [1e3, 1e20, 1e40, 1e300])
def test_an_absurd_step_is_explained_or_passed_over(
    ragged: Maker, step: float, capfd: pytest.CaptureFixture[str]
) -> None:
    said = foresee(ragged(), [GRAPH], replace(ALG, step=step), 0)
    assert said is None or f"step {step:g} is not mean-square stable" in said
    assert said is not None or step == 1e300
    assert capfd.readouterr() == ("", "")  # LAPACK prints where it is handed infinities


@pytest.mark.parametrize("error", [RunError("x"), ZeroDivisionError(), np.linalg.LinAlgError("x"), ValueError("x")])
def test_a_failure_of_the_theory_does_not_stop_a_run(
    ragged: Maker, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(stability, "explain", broken)
    run = confide.simulate(ragged(), GRAPH, replace(ALG, step=1.02 * limit(ragged())), rounds=3, seed=2)
    assert run.rounds == 3


def test_large_problems_are_passed_over_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foresight, "moments", lambda *_: pytest.fail("the moments of a large problem were made"))
    problem = regression(units=3, clients=5000, samples=2)
    assert foresee(problem, [Graph.ring(3)], GFL(step=100.0), 0) is None


def test_the_papers_problem_is_asked_in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few lines for each of 1,000 clients, none for their 100,000 samples, and no search for the limit."""
    for name in ("explain", "max_stable_step"):
        monkeypatch.setattr(stability, name, lambda *_, **__: pytest.fail("a stable step was searched for"))
    problem, graph = regression(), Graph.random(10)
    assert problem.optimum is not None
    assert foresee(problem, [graph], GFL(step=5.0), 0) is None

    def work() -> None:
        foresee(problem, [graph], GFL(step=5.0), 0)

    assert lines(work) < 40 * problem.federation.clients
    assert peak_bytes(work) < 10 * problem.federation.X.nbytes


def test_a_stable_run_does_not_load_the_optimisers() -> None:
    code = (
        "import sys, confide; "
        "confide.simulate(confide.problems.regression(units=3, clients=20), confide.Graph.ring(3), rounds=2); "
        "print([m for m in ('scipy.optimize', 'confide.theory.stability') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
