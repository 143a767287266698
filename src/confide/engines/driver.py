"""`confide.simulate`: repetitions over threads, progress, interruption, divergence, evaluation."""

from __future__ import annotations

import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from confide.base.arrays import Floats
from confide.base.errors import InputError, RunError
from confide.base.randomness import repetition_seed
from confide.base.validation import one_of, positive_int, whole
from confide.engines.engine import Engine
from confide.engines.recording import Recording
from confide.engines.run import (
    MAY_LOOK_FINE,
    Divergence,
    DivergenceWarning,
    NoNoiseWarning,
    Run,
    StabilityWarning,
    describe,
    describe_model,
    traffic,
)
from confide.graph.graph import Graph, check_turns
from confide.plans import words
from confide.problems.models import OWN
from confide.problems.problem import Problem
from confide.problems.train_function import Own
from confide.rounds.algorithm import GFL
from confide.rounds.arithmetic import State
from confide.rounds.reference import check_failures
from confide.theory.foresight import foresee

if TYPE_CHECKING:
    from confide.engines.release import Releasing
    from confide.plans.privacy import Privacy
    from confide.privacy.data_ledger import Reservation
    from confide.privacy.price import Price
    from confide.secure.secret import RunSecret

NO_OPTIMUM = "no unique optimum is known (own model, or no regulariser): no mean-square deviation"
ON_DEVICES = ("jax", "torch")  # `confide.engines.device`
ENGINES = ("auto", "compiled", *ON_DEVICES, "reference")
PARTS = 8  # tasks a thread in a chunk: enough to even out what they cost
CHUNK_SECONDS = 0.1  # between two looks at the clock: short enough for Ctrl-C, long enough to cost nothing


def simulate(
    problem: Problem,
    graph: Graph | Sequence[Graph],
    algorithm: GFL | None = None,
    *,
    rounds: int = 1000,
    repeats: int = 1,
    seed: int = 0,
    privacy: Privacy | None = None,
    evaluate_every: int | None = None,
    engine: str = "auto",
    device: str | None = None,
    threads: int | None = None,
    progress: bool | None = None,
    ledger: str | Path | None = None,
) -> Run:
    """Run graph federated learning.

    Args:
        problem: data and model, e.g. `confide.problems.regression()`.
        graph: the servers' graph, or several that take turns from round to round.
        algorithm: step, sampling, scheme...; the paper's by default.
        seed: of every draw; but where `privacy` is given and the data are somebody's (`problem.private`), noise comes
            from a secret of the run, and so do the draws of clients and batches where the price rests on them.
        privacy: whose data, against whom, by which proof, within which budget. It gives the run its statement and its
            release, and stops it before the round that would pass the budget; without it a run is not accounted.
        evaluate_every: rounds between evaluations of train loss and test metrics (default: rounds / 100).
        engine: "compiled" (built-in models, float), "jax" or "torch" (these and networks of the framework, float),
            "reference" (anything), or "auto".
        device: "cpu" or "gpu" of the engines "jax" and "torch" (default: a GPU where there is one).
        threads: repetitions run at once (default: the cores); the results do not depend on it.
        progress: show a bar on stderr (default: only on a terminal).
        ledger: file that says what plans on these data have spent, which an accounted run pays into (default: of
            somebody's file or named data one in the state folder; else none).

    Returns:
        A `Run` of the rounds that were completed: all, or fewer after Ctrl-C or a divergence, and it says so.
    """
    algorithm = (algorithm if algorithm is not None else GFL()).on(problem.model)
    graphs = _graphs(graph, problem)
    rounds, repeats = positive_int("rounds", rounds), positive_int("repeats", repeats)
    seed = whole("seed", seed, 0, 2**63 - 1)
    every = positive_int("evaluate_every", evaluate_every if evaluate_every is not None else max(1, rounds // 100))
    check_failures(algorithm.failures, graphs, rounds)
    planned, price, releasing, secret, cap, paid = rounds, None, None, None, None, None
    if privacy is not None:
        from confide.engines.release import Releasing
        from confide.privacy.price import price_run

        price = price_run(problem, graphs, algorithm, rounds, seed, privacy)
        rounds, cap = price.affordable(rounds), words.cap(privacy.participation)
        releasing = Releasing.of(price)
        if problem.private:
            secret = _secret(privacy, repeats)
    name = choose_engine(engine, problem, algorithm)
    if device is not None:
        one_of("device", device, ("cpu", "gpu"))
    threads = positive_int("threads", threads if threads is not None else (os.cpu_count() or 1))
    unstable, vanishing = foresee(problem, graphs, algorithm, seed), algorithm.scheme.vanishes(graphs[0])
    if price is not None and (paid := _reserved(ledger, price, problem, rounds, repeats, seed)) is not None:
        rounds = paid.rounds
    if price is None and problem.private:
        from confide.privacy.data_ledger import note_unaccounted

        note_unaccounted(problem)
    work: Engine | None = None
    try:
        work = engine_named(name, device)(problem, graphs, algorithm, rounds, seed, cap, secret=secret)
        if unstable is not None:
            warnings.warn(StabilityWarning(unstable), stacklevel=2)
        if vanishing is not None:
            warnings.warn(NoNoiseWarning(vanishing), stacklevel=2)
        recording = Recording.empty(repeats, rounds, problem.M, every)
        course = _Course(problem, work, recording, rounds, work.states(repeats))
    except BaseException:
        if paid is not None:  # nothing has been computed
            paid.end(0)
        if work is not None:
            work.close()
        raise
    began = time.perf_counter()
    with _bar(progress, rounds, repeats, price) as tick:
        course.run(threads if name == "compiled" else 1, tick)
    unended = None if paid is None or course.broke else _end(paid, course.done)
    if course.done == 0 and course.interrupted:
        raise KeyboardInterrupt
    counted = rounds if course.broke else course.done  # in which round it broke tells of the data
    if course.broke:
        warnings.warn(DivergenceWarning(*course.broke, algorithm.step, unstable), stacklevel=2)
    notes = problem.notes + (() if problem.optimum is not None else (NO_OPTIMUM,))
    notes += () if vanishing is None else (vanishing,)
    if unstable is not None:
        notes += (unstable if course.broke else f"{unstable}. {MAY_LOOK_FINE}",)
    if rounds < planned:
        notes += (f"budget: stopped before round {rounds + 1} of {planned}, which would have passed it",)
    if algorithm.aggregation is not None and (doubt := algorithm.aggregation.doubt(algorithm.sampled)):
        notes += (doubt,)
    notes += work.notes
    notes += () if paid is None else paid.notes
    notes += () if unended is None else (unended,)
    metrics = course.metrics()
    if price is not None and course.done:
        metrics |= _epsilon_so_far(price, recording, course.done, rounds)
    models, released = np.concatenate([work.models(w).reshape(-1, work.P, work.M) for w in course.states]), None
    if releasing is not None and course.done and not course.broke:  # where it broke tells of the data
        exact = list(models) if algorithm.arithmetic == "float" else [w[: work.P] for w in course.states]
        released = _release(releasing, exact, models, None if secret is not None else seed)
        if released is None and price is not None and price.releases:
            from confide.engines.release import LOST

            notes += (LOST,)
    return Run(
        metrics=metrics,
        models=models,
        released=released,
        released_db=_decibels(released, problem.optimum),
        private=problem.private,
        inputs=describe(
            problem,
            tuple(graphs),
            algorithm,
            rounds=planned,
            repeats=repeats,
            seed=seed,
            evaluate_every=every,
            engine=name,
        ),
        model=describe_model(problem),
        bytes_a_round=traffic(graphs, algorithm, problem.M),
        notes=notes,
        privacy=None if price is None or counted == 0 else _accounted(price, counted, paid, problem, seed),
        seconds=time.perf_counter() - began,
        interrupted=course.interrupted,
        diverged=Divergence(*course.broke, algorithm.step, unstable) if course.broke else None,
    )


def _reserved(
    ledger: str | Path | None, price: Price, problem: Problem, rounds: int, repeats: int, seed: int
) -> Reservation | None:
    """Paid in the ledger of the data, where they have one."""
    from confide.privacy import data_ledger
    from confide.privacy.run_ledger import run_name

    of_data = data_ledger.of_run(problem, price.plan.privacy, ledger)
    return None if of_data is None else of_data.reserve(price, rounds, run_name(problem, seed), repeats)


def _end(paid: Reservation, done: int) -> str | None:
    """Say what was really spent; a word where that cannot be written, since the run itself is whole."""
    try:
        paid.end(done)
    except (InputError, RunError) as e:
        return f"the ledger of the data counts all rounds that were reserved, since the end could not be written: {e}"
    return None


def _accounted(price: Price, done: int, paid: Reservation | None, problem: Problem, seed: int) -> dict[str, Any]:
    """What the run says about privacy: it is the plan of the rounds that count as done."""
    from confide.privacy.price import price as price_of
    from confide.privacy.run_ledger import run_name, summary

    if done != price.plan.rounds:
        price = price_of(replace(price.plan, rounds=done))
    return summary(price, run_name(problem, seed) if paid is None else paid.spending.run)


def _secret(privacy: Privacy, repeats: int) -> RunSecret:
    """Of a run on somebody's data, whose price counts on noise that nobody can know."""
    from confide.secure.secret import RunSecret

    if repeats > 1:
        remedy = "every repetition would be another release of the same data, and one run is paid for; use 1"
        raise InputError("repeats", repeats, remedy)
    return RunSecret(draws=privacy.participation.by_chance)


def _release(releasing: Releasing, states: list[State], models: Floats, seed: int | None) -> Floats | None:
    """Of every repetition; its noise is the seed's, or the operating system's where there is none."""
    from confide.engines.release import seeded
    from confide.laws.secret_stream import SecretStream

    found = []
    for r, state in enumerate(states):
        stream = SecretStream() if seed is None else seeded(repetition_seed(seed, r))
        found.append(releasing.make(state, models[r], stream))
    made = [one for one in found if one is not None]
    return np.stack(made) if made and len(made) == len(found) else None


def _decibels(released: Floats | None, optimum: Floats | None) -> float | None:
    """MSD of what was released, over repetitions and, where these are released, single models."""
    if released is None or optimum is None:
        return None
    msd = float(np.mean(np.sum((released - optimum) ** 2, axis=-1)))
    return 10.0 * math.log10(msd) if 0.0 < msd < math.inf else None


def _epsilon_so_far(price: Price, out: Recording, done: int, rounds: int) -> dict[str, Floats]:
    """epsilon at the evaluation rounds, the same for every repetition; after the last one with the release."""
    at = out.evaluation_rounds(1, done, rounds)
    found = price.so_far(at, last=done)
    rows = np.full((len(out.residual), done), np.nan)
    if found is None:
        return {}
    rows[:, np.array(at) - 1] = found
    return {"epsilon": rows}


@dataclass
class _Course:
    """All repetitions move on together, chunk by chunk, so that stopping early leaves whole rounds of each."""

    problem: Problem
    engine: Engine
    out: Recording
    rounds: int
    states: list[State]
    done: int = 0
    interrupted: bool = False
    broke: tuple[int, int] | None = None  # (round, repetition)
    evaluations: dict[str, Floats] = field(default_factory=dict)

    def run(self, threads: int, tick: Callable[[int], None]) -> None:
        try:
            self._run(threads, tick)
        finally:
            self.engine.close()

    def _run(self, threads: int, tick: Callable[[int], None]) -> None:
        chunk = 1
        with ThreadPoolExecutor(min(threads, len(self.states))) as pool:
            while self.done < self.rounds and self.broke is None:
                before, tasks = self.states, list[Future[list[tuple[int, int]]]]()
                try:
                    before = [w.copy() for w in self.states]
                    began = time.perf_counter()
                    first, last = self.done + 1, min(self.done + chunk, self.rounds)
                    for some in np.array_split(np.arange(len(self.states)), min(len(self.states), PARTS * threads)):
                        tasks.append(pool.submit(self._advance_some, some.tolist(), first, last))
                    wait(tasks)
                    broken = [where for t in tasks for where in t.result()]
                    if broken:
                        self._go_back(before, first, min(broken))
                        return
                    seconds = time.perf_counter() - began
                    chunk = max(1, min(16 * chunk, int(chunk * CHUNK_SECONDS / max(seconds, 1e-4))))
                    tick(last)
                    self.done = last
                except KeyboardInterrupt:
                    self.engine.close()
                    for t in tasks:
                        t.cancel()
                    wait(tasks)
                    self.states, self.interrupted = before, True
                    return

    def _go_back(self, before: list[State], first: int, broke: tuple[int, int]) -> None:
        """The models as they were after the last round that all repetitions completed."""
        last = broke[0] - 1
        for r, w in enumerate(before):
            if last >= first:
                self.engine.advance(r, w, first, last, self.out)
        self.states, self.done, self.broke = before, last, broke

    def _advance_some(self, states: list[int], first: int, last: int) -> list[tuple[int, int]]:
        """Where and which of them broke; several in a task, as a task costs more than a round of a small problem."""
        return [broke for n in states if (broke := self._advance(n, first, last)) is not None]

    def _advance(self, n: int, first: int, last: int) -> tuple[int, int] | None:
        with np.errstate(over="ignore", invalid="ignore"):  # a divergence is reported, not warned about
            broke = self.engine.advance(n, self.states[n], first, last, self.out)
        repeats = len(self.out.residual)
        for repetition in [n] if len(self.states) == repeats else range(repeats):
            for i in self.out.evaluation_rounds(first, last if broke is None else broke[0] - 1, self.rounds):
                self._evaluate(repetition, i)
        return broke

    def _evaluate(self, repetition: int, i: int) -> None:
        w = self.out.centroids[repetition, self.out.slot(i)]
        found = {"train_loss": self.problem.risk(w)}
        if self.problem.test is not None:
            tests = self.problem.model.metrics(w, *self.problem.test)
            found |= {"test_metric": next(iter(tests.values()))} | {f"test_{k}": v for k, v in tests.items()}
        for name, value in found.items():
            if name not in self.evaluations:
                self.evaluations.setdefault(name, np.full(self.out.residual.shape, np.nan))  # or another thread did
            self.evaluations[name][repetition, i - 1] = value

    def metrics(self) -> dict[str, Floats]:
        nothing = np.full(self.out.residual.shape, np.nan)
        evaluated = {"train_loss": nothing, "test_metric": nothing} | self.evaluations
        rows = {
            "centroid_msd": self.out.centroid_msd,
            "individual_msd": self.out.individual_msd,
            "disagreement": self.out.disagreement,
            **evaluated,
            "residual": self.out.residual,
            "uncancelled": self.out.uncancelled,
            "participants": self.out.participants,
        }
        return {name: row[:, : self.done].copy() for name, row in rows.items()}


def choose_engine(engine: str, problem: Problem, algorithm: GFL) -> str:
    """The engine of this name if it runs this; of "auto" a network's framework or the compiled, else the reference."""
    one_of("engine", engine, ENGINES)
    if isinstance(problem.model, Own) and engine in ("auto", "reference"):  # the reference round, with a pool
        return OWN
    wanted = getattr(problem.model, "framework", "compiled") if engine == "auto" else engine
    why_not = _unable(wanted, problem, algorithm)
    if why_not is None:
        return wanted
    if engine != "auto":
        raise InputError("engine", engine, f"{why_not}; use {choose_engine('auto', problem, algorithm)!r}")
    return "reference"


def _unable(engine: str, problem: Problem, algorithm: GFL) -> str | None:
    if engine == "reference":
        return None
    if engine == "compiled":
        from confide.engines.compiled import unable as unable_compiled

        return unable_compiled(problem, algorithm)
    from confide.engines.device.engine import unable

    return unable(problem, algorithm, engine)


def engine_named(name: str, device: str | None = None) -> Callable[..., Engine]:
    if name in ON_DEVICES:
        from confide.engines.device.engine import DeviceEngine

        return partial(DeviceEngine, framework=name, device=device)
    if device == "gpu":
        raise InputError("device", device, f"the engine {name!r} runs on the CPU; use one of {', '.join(ON_DEVICES)}")
    if name == "compiled":
        from confide.engines.compiled import CompiledEngine

        return CompiledEngine
    if name == OWN:
        from confide.engines.own import OwnEngine

        return OwnEngine
    from confide.engines.plain import PlainEngine

    return PlainEngine


def _graphs(graph: Graph | Sequence[Graph], problem: Problem) -> list[Graph]:
    graphs = [graph] if isinstance(graph, Graph) else list(graph)
    if not graphs:
        raise InputError("graph", graph, "at least one graph is needed")
    for g in graphs:
        g.check_units(problem.federation.P)
    check_turns(graphs)
    return graphs


@contextmanager
def _bar(progress: bool | None, rounds: int, repeats: int, price: Price | None) -> Iterator[Callable[[int], None]]:
    if not (sys.stderr.isatty() if progress is None else progress):
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    what = f"rounds x {repeats}" if repeats > 1 else "rounds"
    from confide.privacy.paid import Terms
    from confide.privacy.statement import rounded_up

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=rounds)

        def tick(done: int) -> None:
            said = what
            if price is not None and not price.plan.privacy.participation.by_chance:
                spent, p = price.so_far([done]), price.plan.privacy
                shown = "" if spent is None else f", epsilon {rounded_up(spent[0], 3)} at delta {p.delta:g}"
                said += shown and f"{shown} against {p.threat}, {Terms.of(p)}"
            bar.update(task, completed=done, description=said)

        yield tick
