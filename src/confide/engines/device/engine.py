"""The engines "jax" and "torch": all repetitions of a run together, round after round on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from confide.base.arrays import Floats
from confide.base.errors import InputError
from confide.base.randomness import repetition_seed
from confide.engines.device.backend import Array, Backend, backend
from confide.engines.device.round import MEASURES, Carried, Rounds
from confide.engines.device.streams import Streams, roots_of
from confide.engines.device.tables import Tables, rule_of, tables_of
from confide.engines.device.training import ways
from confide.engines.device.training.choice import fastest, trained
from confide.engines.device.training.cohort import Cohort
from confide.engines.engine import Engine
from confide.engines.recording import Recording
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL
from confide.rounds.local import sgd
from confide.rounds.schemes import Place

MOST = 256  # rounds of a program's call: the length of what it records
LARGE = 1e60  # a squared norm beyond this is a divergence, caught long before infinity
LARGE_FLOAT32 = 1e30


def unable(problem: Problem, algorithm: GFL, framework: str) -> str | None:
    """What the engine has not been taught about a run, None where it runs it."""
    if algorithm.arithmetic != "float" or algorithm.local is not sgd:
        return "it computes in float with the built-in local step"
    s, places = algorithm.scheme, algorithm.scheme.places - {Place.CLIENT}
    if not s.plain:
        return "it draws noise without memory that is the same for all receivers"
    if s.law.kernel is None:
        return "it draws Laplace and Gaussian noise"
    if s.by_link and not places <= {Place.LINK, Place.OWN}:
        return "it draws other noises than these: of servers, edges and the network, or of links and own terms"
    return ways.unable(problem.model, framework)


class Held:
    """What all repetitions carry from round to round, on the device."""

    def __init__(self, b: Backend, carried: Carried) -> None:
        self._b, self.carried = b, carried

    def copy(self) -> Held:
        with self._b.exact():
            return Held(self._b, Carried(*(self._b.copied(x) for x in self.carried)))


@dataclass(eq=False)
class DeviceEngine(Engine):
    """As `Engine`.

    Attributes:
        framework: "jax" or "torch".
        device: "cpu" or "gpu"; None: a GPU where there is one.
        half_rows: the data in bfloat16 on the device, and products with them; for networks without a clip.
        way: of training, one of `training.ways`; None: the one that a measurement finds the fastest.
    """

    framework: str = "jax"
    device: str | None = None
    way: str | None = None
    half_rows: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._notes: tuple[str, ...] = ()
        self._repeats, self._draws = 1, self.secret is not None and self.secret.draws
        model = self.problem.model
        exact = ways.closed_form(model) and backend(self.framework, self.device).device == "cpu"
        self.b = b = backend(self.framework, self.device, np.float64 if exact else np.float32)
        self.large = LARGE if exact else LARGE_FLOAT32
        self.rule = rule_of(self.problem, self.algorithm, self.seed, self.cap)
        self._ways = ways.ways(b, model, self.rule)
        if self.half_rows and (ways.closed_form(model) or self.rule.clip is not None):
            raise InputError(
                "half_rows", True, "is for networks without a clip, which products in bfloat16 could break"
            )
        with b.exact(), self._memory():
            self._tables = tables_of(b, self.problem, self.graphs, self.algorithm, self.seed, ways.labels(model))
            if self.half_rows:
                self._tables = self._tables._replace(X=b.cast(self._tables.X, b.xp.bfloat16))

    @property
    def notes(self) -> tuple[str, ...]:
        return self._notes

    def start(self) -> Any:
        return self.states(1)[0]

    def states(self, repeats: int) -> list[Any]:
        """One, of all repetitions."""
        b, self._repeats = self.b, repeats
        table = np.zeros((repeats, 0, 8), np.int32)
        if self.secret is not None:
            table = np.stack([self.secret.streams(r).table().view(np.int32) for r in range(repeats)])
        clients = self.problem.federation.clients if self.cap is not None else 0
        seeds = [repetition_seed(self.seed, r) for r in range(repeats)]
        with b.exact(), self._memory():
            self._keys = b.to_device(roots_of(seeds)), b.to_device(table)
            w = b.to_device(np.broadcast_to(self.problem.start, (repeats, self.P, self.M)))
            self._choose(w)
            return [Held(b, Carried(w, b.to_device(np.zeros((repeats, clients), np.int32))))]

    def _choose(self, w: Array) -> None:
        """The program, with the fastest way to train so many repetitions here."""
        b, names = self.b, list(self._ways) if self.way is None else [self.way]
        if len(names) > 1:
            name, took = fastest(b, self._ways, self._first_training(w), self.rule.clip, self.rounds)
            others = [f"{each} takes {_told(took[each])}" for each in took if each != name]
            beside = ", ".join(others) or "to try other ways would take longer than the run"
            self._notes = (f"training: {name}, {_told(took[name])} a round here; {beside}",)
            names = [name]
        self._rounds = Rounds(b, self.rule, self._ways[names[0]])
        self._program: Callable[..., tuple[Carried, Array, Array]] = b.jit(self._some, donate=(0,))

    def _first_training(self, w: Array) -> tuple[Array, Array, Array, Cohort]:
        """What the first round gives a way of training."""
        b, a_round = self.b, Rounds(self.b, self.rule, next(iter(self._ways.values())))
        cohort = b.jit(lambda t, roots, keys: a_round.first(t, Streams(roots, keys, self._draws)))(
            self._tables, *self._keys
        )
        return b.xp.reshape(w, (-1, self.M)), self._tables.X, self._tables.d, cohort

    def trial(self, w: Held) -> Callable[[], None]:
        """The first round's training alone, again and again."""
        b, clip, train = self.b, self.rule.clip, self._rounds.train
        with b.exact():
            given = self._first_training(w.carried.w)
            program = b.jit(partial(trained, b, train, clip))

        def call() -> None:
            with b.exact():
                b.to_numpy(program(*given)[:1, :1])

        return call

    def advance(self, repetition: int, w: Held, first: int, last: int, out: Recording) -> tuple[int, int] | None:
        """Rounds first..last of all repetitions; the first (round, repetition) whose states blew up."""
        b, calls = self.b, []
        with b.exact(), self._memory():
            for start, end in self._calls(first, last, out):
                w.carried, measures, centroid = self._program(w.carried, self._tables, *self._keys, start, end)
                calls.append((start, end, measures, centroid))
            found = [(start, end, b.to_numpy(m)[: end - start + 1], b.to_numpy(c)) for start, end, m, c in calls]
        broke = None
        for start, end, measures, centroid in found:
            for name, rows in zip(MEASURES[:-1], np.moveaxis(measures, 1, 0), strict=False):
                getattr(out, name)[:, start - 1 : end] = rows.T
            if end % out.every == 0 or end == self.rounds:
                out.centroids[:, out.slot(end)] = centroid
            large = ~(measures[:, -1] < self.large)
            if broke is None and large.any():
                at, r = (int(x) for x in np.argwhere(large)[0])
                broke = start + at, r
        return broke

    def models(self, w: Held) -> Floats:
        """(repetitions, P, M)"""
        return self.b.to_numpy(w.carried.w).astype(np.float64)

    def _some(
        self, before: Carried, t: Tables, roots: Array, keys: Array, first: Array, last: Array
    ) -> tuple[Carried, Array, Array]:
        """Rounds first..last: what they carry, their measures one under the other, and the last centroids.

        How many they are is no constant of the program, so that one program serves all.
        """
        b, s = self.b, Streams(roots, keys, self._draws)

        def step(n: Array, so_far: tuple[Carried, Array]) -> tuple[Carried, Array]:
            carried, found = self._rounds.one(t, s, first + n, so_far[0])
            return carried, b.recorded(so_far[1], n, found)

        nothing = b.zeros((MOST, len(MEASURES), before.w.shape[0]))
        carried, measures = b.fold(last - first + 1, step, (before, nothing))
        return carried, measures, b.xp.mean(carried.w, axis=1)

    def _calls(self, first: int, last: int, out: Recording) -> Iterator[tuple[int, int]]:
        """Calls of the program, each up to a round whose centroid is kept."""
        while first <= last:
            evaluated = min(-(-first // out.every) * out.every, self.rounds)
            end = min(last, evaluated, first + MOST - 1)
            yield first, end
            first = end + 1

    @contextmanager
    def _memory(self) -> Iterator[None]:
        """Whoever runs out of memory is told what did not fit."""
        try:
            yield
        except Exception as e:
            if not self.b.out_of_memory(e):
                raise
            gigabytes = self._repeats * self.P * self.rule.sampled * self.M * self.b.width / 2**30
            remedy = (
                f"is out of memory: the updates of {self._repeats} repetitions of {self.P} units with "
                f"{self.rule.sampled} sampled clients each have {self.M} numbers and take {gigabytes:.3g} GiB, several "
                "times over, besides the data; lower repeats, algorithm.sampled or algorithm.batch, or use the CPU"
            )
            raise InputError("device", self.b.device, remedy) from e


def _told(seconds: float) -> str:
    """
    >>> [_told(s) for s in (0.000336, 0.118, 16.83)]
    ['0.336 ms', '118 ms', '16.8 s']
    """
    return f"{seconds:.3g} s" if seconds >= 1.0 else f"{1e3 * seconds:.3g} ms"
